// A math thread's part of the state, and its ways to and from memory.
#pragma once

#include "sm90/scalar/storage.cuh"

namespace sluice::scalar {

constexpr int kStateRegisters = Config::kGroupKeys / 2;

/// A thread's part of S^T (64 value channels x K, or half of K): register 4 n + e is value row() +
/// 8 (e / 2) and key channel 8 n + column() + e % 2, of the half's.
using State = float[kStateRegisters];

/// A warpgroup's head and tile of value channels, and a thread's place in it.
struct Fragment {
    int group, thread;
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
    __device__ int column() const { return thread % 4 * 2; }
    __device__ int box() const { return Config::kKeyHalves > 1 ? 0 : group; }  // of values
    __device__ int half() const {
        return Config::kKeyHalves > 1 ? group : 0;
    }                                                               // of the key channels
    __device__ int head() const { return box() / Config::kTiles; }  // of the block's
    __device__ int value(const Task& task) const {                  // first channel
        return task.value_tile * Config::kValueTile + box() % Config::kTiles * 64;
    }
    /// The half's first box of a chunk's queries or keys.
    __device__ int key_bytes() const {
        return half() * (Config::kGroupKeys / 64) * Config::kBoxBytes;
    }
};

__device__ inline StatePlace place_of(const Params& p, const Task& task, const Fragment& at) {
    // The last block of a key head may have a head too many: it has no channels.
    return {task.head + at.head(), at.value(task) + at.row(), p.keys,
            at.head() < task.heads ? p.values : 0, at.half() * Config::kGroupKeys + at.column()};
}

/// The sequence's initial state.
__device__ inline void load_initial(const Params& p, const Task& task, const Fragment& at,
                                    State& state) {
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
    if (p.has_initial != nullptr && !p.has_initial[task.sequence * p.has_initial_stride]) return;
    load_state<kStateRegisters, true>(p.initial, slot_at(p.initial, task.sequence),
                                      place_of(p, task, at), state);
}

/// First of a head's segments in the workspace.
__device__ inline long long segment_row(const Params& p, const Task& task, const Fragment& at) {
    const long long head = task.head + min(at.head(), task.heads - 1);
    return (static_cast<long long>(task.sequence) * p.heads + head) * p.segments;
}

/// A segment's state in the workspace. The last segment's place holds the initial state, if any:
/// the second launch may overwrite that (a state updated in place) before all of its segments have
/// begun.
__device__ inline float* segment_state(const Params& p, const Task& task, int segment,
                                       const Fragment& at) {
    const long long row = segment_row(p, task, at) + segment;
    const int tile = task.value_tile * Config::kTiles + at.box() % Config::kTiles;
    return p.segment_state + (row * p.value_tiles * Config::kTiles + tile) * 64 * Config::kKeys +
           at.half() * 64 * Config::kGroupKeys + at.thread * 4;
}

__device__ inline void store_segment(const Params& p, const Task& task, const Fragment& at,
                                     int segment, State& state) {
    if (at.head() >= task.heads) return;
    store_registers<kStateRegisters>(segment_state(p, task, segment, at), state);
}

/// state = decay state + the segment's own state.
__device__ inline void add_segment(const float* from, float decay, State& state) {
#pragma unroll
    for (int r = 0; r < kStateRegisters; r += 4) {
        const float4 add = *reinterpret_cast<const float4*>(from + r * 128);
        state[r] = state[r] * decay + add.x;
        state[r + 1] = state[r + 1] * decay + add.y;
        state[r + 2] = state[r + 2] * decay + add.z;
        state[r + 3] = state[r + 3] * decay + add.w;
    }
}

/// The state that the task starts from: the sequence's, then the earlier segments in order.
__device__ inline void start_state(const Params& p, const Task& task, const Fragment& at,
                                   State& state) {
    if (p.segments == 1) return load_initial(p, task, at, state);
    if constexpr (Config::kStateOnly) {
        if (task.segment == 0 && p.initial.data != nullptr) {
            load_initial(p, task, at, state);
            store_segment(p, task, at, p.segments - 1, state);
        }
#pragma unroll
        for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
        return;
    }
    wait_for_previous_launch();
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
    if (p.initial.data != nullptr) {
        add_segment(segment_state(p, task, p.segments - 1, at), 0.f, state);
    }
    const long long row = segment_row(p, task, at);
#pragma unroll 2
    for (int segment = 0; segment < task.segment; ++segment) {
        add_segment(segment_state(p, task, segment, at), p.segment_decay[row + segment], state);
    }
}

}  // namespace sluice::scalar
