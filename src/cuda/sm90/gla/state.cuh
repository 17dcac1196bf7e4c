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
};

__device__ inline float load_number(const void* p, int type) {
    if (type == kFloat32) return *static_cast<const float*>(p);
    const u16 x = *static_cast<const u16*>(p);
    return type == kBFloat16 ? low_bf16(x) : fp16_to_float(x);
}

__device__ inline void store_number(void* p, int type, float x) {
    if (type == kFloat32) {
        *static_cast<float*>(p) = x;
    } else {
        *static_cast<u16*>(p) =
            static_cast<u16>(type == kBFloat16 ? pack_bf16(x, 0.f) : pack_fp16(x, 0.f));
    }
}

/// The slot of a state tensor that index `i` names; below zero: none. An index that nobody validated
/// may name no slot at all.
__device__ inline long long slot_at(const StateTensor& state, long long i) {
    if (state.data == nullptr) return -1;
    const long long slot = state.indices.data == nullptr ? i : load_index(state.indices, i);
    return slot < state.slots ? slot : -1;
}

/// Calls f(register, address) for the fragment's elements that exist in a slot.
template <class F>
__device__ inline void for_each_state_element(const Params& p, const Task& task,
                                              const StateTensor& state, long long slot,
                                              const Fragment& at, F&& f) {
    if (slot < 0) return;
    const int bytes = state.type == kFloat32 ? 4 : 2;
    char* base = static_cast<char*>(state.data) +
                 (slot * state.slot_stride + task.head * state.head_stride) * bytes;
    const int value = task.value_tile * Config::kValueTile + at.group * 64 + at.row();
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) {
        const int v = value + r / 2 % 2 * 8;
        const int key = r / 4 * 8 + at.column() + r % 2;
        if (v < p.values && key < p.keys) {
            f(r, base + (key * state.key_stride + v * state.value_stride) * bytes);
        }
    }
}

__device__ inline void store_state(const Params& p, const Task& task, const StateTensor& to,
                                   long long slot, const Fragment& at, State& state) {
    for_each_state_element(p, task, to, slot, at, [&](int r, void* element) {
        store_number(element, to.type, state[r]);
    });
}

/// The sequence's initial state.
__device__ inline void load_initial(const Params& p, const Task& task, const Fragment& at,
                                    State& state) {
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
    if (p.has_initial != nullptr && !p.has_initial[task.sequence * p.has_initial_stride]) return;
    for_each_state_element(
        p, task, p.initial, slot_at(p.initial, task.sequence), at,
        [&](int r, const void* from) { state[r] = load_number(from, p.initial.type); });
}

/// A segment's state in the workspace. The last segment's place holds the initial state: the second
/// launch may overwrite that (a state updated in place) before all of its segments have begun.
__device__ inline float* segment_state(const Params& p, const Task& task, int segment,
                                       const Fragment& at) {
    const long long row =
        (static_cast<long long>(task.sequence) * p.heads + task.head) * p.segments + segment;
    return p.segment_state +
           ((row * p.value_tiles + task.value_tile) * Config::kMathGroups + at.group) * 64 *
               Config::kKeys +
           at.thread * 4;
}

__device__ inline void store_segment(float* to, State& state) {
#pragma unroll
    for (int r = 0; r < kStateRegisters; r += 4) {
        *reinterpret_cast<float4*>(to + r * 128) =
            make_float4(state[r], state[r + 1], state[r + 2], state[r + 3]);
    }
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
    if (p.segments == 1) return load_initial(p, task, at, state);
    if constexpr (Config::kStateOnly) {
        if (task.segment == 0) {
            load_initial(p, task, at, state);
            store_segment(segment_state(p, task, p.segments - 1, at), state);
        }
#pragma unroll
        for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
        return;
    }
    wait_for_previous_launch();
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
    add_segment(segment_state(p, task, p.segments - 1, at), nullptr, at, state);
    const long long row = (static_cast<long long>(task.sequence) * p.heads + task.head) * p.segments;
    for (int segment = 0; segment < task.segment; ++segment) {
        add_segment(segment_state(p, task, segment, at),
                    p.segment_decay + (row + segment) * Config::kKeys, at, state);
    }
}

// States at positions. The list is in no order; positions are multiples of the chunk.

constexpr int kNoChunk = 0x7fffffff;

/// The chunk that entry `i` wants the state after (0: before the first); kNoChunk: not this sequence's.
__device__ inline int checkpoint_chunk(const Params& p, const Task& task, int i) {
    if (i >= p.checkpoint_count || load_index(p.checkpoint_sequences, i) != task.sequence) {
        return kNoChunk;
    }
    const long long position = load_index(p.checkpoint_positions, i);
    const bool ok = position >= 0 && position <= task.length && position % Config::kChunk == 0;
    return ok ? static_cast<int>(position / Config::kChunk) : kNoChunk;
}

/// The first chunk from `from` on after which the state is wanted.
__device__ inline int next_checkpoint(const Params& p, const Task& task, int from) {
    int next = kNoChunk;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < p.checkpoint_count; i += 32) {
        const int chunk = checkpoint_chunk(p, task, i);
        if (chunk >= from) next = min(next, chunk);
    }
    return __reduce_min_sync(~0u, next);
}

/// To every entry that wants the state after `chunk` chunks. Returns the next one wanted.
__device__ inline int store_checkpoints(const Params& p, const Task& task, const Fragment& at,
                                        int chunk, State& state) {
    for (int first = 0; first < p.checkpoint_count; first += 32) {
        const int i = first + static_cast<int>(threadIdx.x) % 32;
        u32 wanted = __ballot_sync(~0u, checkpoint_chunk(p, task, i) == chunk);
        for (; wanted != 0; wanted &= wanted - 1) {
            const int entry = first + __ffs(static_cast<int>(wanted)) - 1;
            store_state(p, task, p.checkpoints, slot_at(p.checkpoints, entry), at, state);
        }
    }
    return next_checkpoint(p, task, chunk + 1);
}

}  // namespace sluice::gla
