// A math thread's part of the state, and its ways to and from memory.
#pragma once

#include "sm90/gla/storage.cuh"

namespace sluice::gla {

constexpr int kStateRegisters = Config::kKeys / 2;

/// A thread's part of S^T (64 value channels x K): register 4 n + e is value row() + 8 (e / 2) and key
/// channel 8 n + column() + e % 2. In parts as products write them (config.cuh).
struct State {
    static constexpr int kPart = Config::kWholeStateProduct ? kStateRegisters : 32;
    float part[kStateRegisters / kPart][kPart];
    __device__ float& operator[](int r) { return part[r / kPart][r % kPart]; }
};

struct Fragment {
    int group, thread;
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
    __device__ int column() const { return thread % 4 * 2; }
    /// What follows from it is not kept from chunk to chunk.
    __device__ Fragment anew() const { return {group, static_cast<int>(opaque(thread))}; }
};

__device__ inline StatePlace place_of(const Params& p, const Task& task, const Fragment& at) {
    return {task.head, task.value_tile * Config::kValueTile + at.group * 64 + at.row(), p.keys,
            p.values, task.first_key() + at.column()};
}

/// A segment's state in the workspace. The last segment's place holds the initial state, if any: the second
/// launch may overwrite that (a state updated in place) before all of its segments have begun.
__device__ inline float* segment_state(const Params& p, const Task& task, int segment,
                                       const Fragment& at) {
    const long long row =
        (static_cast<long long>(task.sequence) * p.heads + task.head) * p.segments + segment;
    return p.segment_state +
           ((row * p.value_tiles + task.value_tile) * Config::kMathGroups + at.group) * 64 *
               Config::kKeys * Config::kKeyParts +
           64 * task.first_key() + at.thread * 4;
}
/// What a segment decays the block's key channels by.
__device__ inline float* segment_decay(const Params& p, const Task& task, int segment) {
    const long long row =
        (static_cast<long long>(task.sequence) * p.heads + task.head) * p.segments + segment;
    return p.segment_decay + row * Config::kKeys * Config::kKeyParts + task.first_key();
}

/// state = state diag(decay) + the segment's own state; decay null: the segment's state alone.
__device__ inline void add_segment(const float* from, const float* decay, const Fragment& at,
                                   State& state) {
#pragma unroll
    for (int r = 0; r < kStateRegisters; r += 4) {
        const float4 add = *reinterpret_cast<const float4*>(from + r * 128);
        float2 d = make_float2(0.f, 0.f);
        if (decay != nullptr) d = *reinterpret_cast<const float2*>(decay + r * 2 + at.column());
        state[r] = state[r] * d.x + add.x;
        state[r + 1] = state[r + 1] * d.y + add.y;
        state[r + 2] = state[r + 2] * d.x + add.z;
        state[r + 3] = state[r + 3] * d.y + add.w;
    }
}

/// The state that the task starts from: the sequence's, then the earlier segments in order.
__device__ inline void start_state(const Params& p, const Task& task, const Fragment& at,
                                   State& state) {
    const auto load_first = [&] {
        load_initial<kStateRegisters, false>(p, task.sequence, place_of(p, task, at), state);
    };
    if (p.segments == 1) return load_first();
    if constexpr (Config::kStateOnly) {
        if (task.segment == 0 && p.initial.data != nullptr) {
            load_first();
            store_registers<kStateRegisters>(segment_state(p, task, p.segments - 1, at), state);
        }
#pragma unroll
        for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
        return;
    }
    wait_for_previous_launch();
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
    if (p.initial.data != nullptr) {
        add_segment(segment_state(p, task, p.segments - 1, at), nullptr, at, state);
    }
#pragma unroll 2
    for (int segment = 0; segment < task.segment; ++segment) {
        add_segment(segment_state(p, task, segment, at), segment_decay(p, task, segment), at,
                    state);
    }
}

}  // namespace sluice::gla
