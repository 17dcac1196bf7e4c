// A math thread's part of the state, and its ways to and from memory.
#pragma once

#include "sm90/scalar/storage.cuh"

namespace sluice::scalar {

constexpr int kStateRegisters = Config::kGroupKeys / 2;

/// A thread's part of S^T (64 value channels x K, or half of K): register 4 n + e is value row() +
/// 8 (e / 2) and key channel 8 n + column() + e % 2, of the half's.
using State = float[kStateRegisters];

__device__ inline void zero(State& state) {
#pragma unroll
    for (float& x : state) x = 0.f;
}

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

/// A head's part in the workspace.
__device__ inline long long part_row(const Params& p, const Task& task, const Fragment& at,
                                     int part) {
    const long long head = task.head + min(at.head(), task.heads - 1);
    return (static_cast<long long>(task.sequence) * p.heads + head) * (parts_of(p) + 1) + part;
}

/// A part's state in the workspace. Behind the last is the initial state, if any: the second launch
/// may overwrite that (a state updated in place) before all of its segments have begun.
__device__ inline float* part_state(const Params& p, const Task& task, int part,
                                    const Fragment& at) {
    const int tile = task.value_tile * Config::kTiles + at.box() % Config::kTiles;
    return p.segment_state +
           (part_row(p, task, at, part) * p.state_tiles + tile) * 64 * Config::kKeys +
           at.half() * 64 * Config::kGroupKeys + at.thread * 4;
}

__device__ inline void store_part(const Params& p, const Task& task, const Fragment& at, int part,
                                  State& state) {
    if (at.head() >= task.heads) return;
    store_registers<kStateRegisters>(part_state(p, task, part, at), state);
}

/// state = decay state + the part's own state.
__device__ inline void add_part(const float* from, float decay, State& state) {
#pragma unroll
    for (int r = 0; r < kStateRegisters; r += 4) {
        const float4 add = *reinterpret_cast<const float4*>(from + r * 128);
        state[r] = state[r] * decay + add.x;
        state[r + 1] = state[r + 1] * decay + add.y;
        state[r + 2] = state[r + 2] * decay + add.z;
        state[r + 3] = state[r + 3] * decay + add.w;
    }
}

/// First launch: the block's share of the sequence's initial state, to the workspace. In pieces of
/// 64 key channels of a box, of which the parts' blocks take turns.
__device__ inline void copy_initial(const Params& p, const Task& task, int group, int thread) {
    constexpr int kRegisters = 32;
    constexpr int kPieces = kStateRegisters / kRegisters;
    if (p.initial.data == nullptr) return;
#pragma unroll 1
    for (int i = task.part; i < kPieces * Config::kGroupBoxes; i += parts_of(p)) {
        const Fragment at{group * Config::kGroupBoxes + i / kPieces, thread};
        if (at.head() >= task.heads) continue;
        StatePlace place = place_of(p, task, at);
        place.column += i % kPieces * 64;
        float piece[kRegisters];
        load_initial<kRegisters, true>(p, task.sequence, place, piece);
        store_registers<kRegisters>(
            part_state(p, task, parts_of(p), at) + i % kPieces * kRegisters * 128, piece);
    }
}

/// The state that the task starts from: the sequence's, then the earlier segments' parts in order.
__device__ inline void start_state(const Params& p, const Task& task, const Fragment& at,
                                   State& state) {
    if (p.segments == 1) {
        return load_initial<kStateRegisters, true>(p, task.sequence, place_of(p, task, at), state);
    }
    wait_for_previous_launch();
    zero(state);
    if (p.initial.data != nullptr) add_part(part_state(p, task, parts_of(p), at), 0.f, state);
#pragma unroll 2
    for (int part = 0; part < task.segment * p.parts; ++part) {
        add_part(part_state(p, task, part, at), p.segment_decay[part_row(p, task, at, part)],
                 state);
    }
}

}  // namespace sluice::scalar
