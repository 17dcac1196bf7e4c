// States of tensor-core kernels, to and from memory: a warpgroup has S^T (64 value channels x K) as a
// product's accumulator.
#pragma once

#include "sm90/common/params.cuh"
#include "tile/ptx.cuh"

namespace sluice::sm90 {

using namespace tile;

__device__ inline long long load_index(const Indices& p, long long i) {
    return p.is_64_bit ? static_cast<const long long*>(p.data)[i * p.stride]
                       : static_cast<const int*>(p.data)[i * p.stride];
}

/// The slot of a state tensor that index `i` names; below zero: none. An index that nobody validated
/// may name no slot at all.
__device__ inline long long slot_at(const StateTensor& state, long long i) {
    if (state.data == nullptr) return -1;
    const long long slot = state.indices.data == nullptr ? i : load_index(state.indices, i);
    return slot < state.slots ? slot : -1;
}

/// A number's bits, and what they mean.
__device__ inline u32 load_bits(const void* data, long long i, int type) {
    return type == kFloat32 ? static_cast<const u32*>(data)[i] : static_cast<const u16*>(data)[i];
}
__device__ inline float number_of(u32 bits, int type) {
    if (type == kFloat32) return __uint_as_float(bits);
    return type == kBFloat16 ? low_bf16(bits) : low_fp16(bits);
}
__device__ inline float load_number(const void* data, long long i, int type) {
    return number_of(load_bits(data, i, type), type);
}

/// A thread's place in its warpgroup's S^T: register 4 n + e of an accumulator is value channel
/// value + 8 (e / 2) and key channel 8 n + column + e % 2.
struct StatePlace {
    int head;          // of the tensor
    int value;         // first value channel
    int keys, values;  // channels that exist: K, V
    int column;        // first key channel
};

// Elements go to and from memory without branches, so that none waits for the one before: what
// depends on the type, and on whether an element exists, is predicated.

/// 32 bits, or 16 (`narrow`); zero where there is nothing (neither).
__device__ inline u32 load_predicated(const void* p, bool wide, bool narrow) {
    u32 x;
    asm volatile(
        "{\n.reg .pred w, n;\n"
        "setp.ne.u32 w, %2, 0;\nsetp.ne.u32 n, %3, 0;\n"
        "mov.b32 %0, 0;\n"
        "@n ld.global.u16 %0, [%1];\n@w ld.global.b32 %0, [%1];\n}"
        : "=r"(x)
        : "l"(p), "r"(static_cast<u32>(wide)), "r"(static_cast<u32>(narrow)));
    return x;
}
__device__ inline void store_predicated(void* p, u32 x, bool wide, bool narrow) {
    asm volatile(
        "{\n.reg .pred w, n;\n"
        "setp.ne.u32 w, %2, 0;\nsetp.ne.u32 n, %3, 0;\n"
        "@n st.global.u16 [%0], %1;\n@w st.global.b32 [%0], %1;\n}" ::"l"(p),
        "r"(x), "r"(static_cast<u32>(wide)), "r"(static_cast<u32>(narrow))
        : "memory");
}

__device__ inline u32 bits_of(float x, int type) {
    if (type == kFloat32) return __float_as_uint(x);
    return type == kBFloat16 ? pack_bf16(x, 0.f) : pack_fp16(x, 0.f);
}

/// The thread's elements in a slot (below zero: none); those that do not exist load as zero.
template <bool kStore, int kRegisters, class State>
__device__ inline void move_elements(const StateTensor& tensor, long long slot, const StatePlace& at,
                                  State& state) {
    const bool wide = tensor.type == kFloat32;
    const int bytes = wide ? 4 : 2;
    char* base = static_cast<char*>(tensor.data) +
                 (slot * tensor.slot_stride + at.head * tensor.head_stride) * bytes;
    u32 bits[kRegisters];
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) {
        const int value = at.value + r / 2 % 2 * 8;
        const int key = r / 4 * 8 + at.column + r % 2;
        const bool exists = slot >= 0 && value < at.values && key < at.keys;
        char* p = base + (key * tensor.key_stride + value * tensor.value_stride) * bytes;
        if constexpr (kStore) {
            store_predicated(p, bits_of(state[r], tensor.type), exists && wide, exists && !wide);
        } else {
            bits[r] = load_predicated(p, exists && wide, exists && !wide);
        }
    }
    if constexpr (!kStore) {
#pragma unroll
        for (int r = 0; r < kRegisters; ++r) state[r] = number_of(bits[r], tensor.type);
    }
}

/// What two neighbours along K are in memory.
struct ElementAccess {
    bool wide;  // float32, else 16 bits
    bool pair;  // side by side, and aligned for one access
};

/// Bits of two elements; zero where they do not `exist`.
__device__ inline uint2 load_two(const char* p, int key_stride_bytes, ElementAccess access,
                                 bool exists) {
    uint2 x;
    const char* second = p + key_stride_bytes;
    asm volatile(
        "{\n.reg .pred wide, pair, exists, w1, w2, n1, n2;\n"
        "setp.ne.u32 wide, %4, 0;\nsetp.ne.u32 pair, %5, 0;\nsetp.ne.u32 exists, %6, 0;\n"
        "and.pred w2, wide, pair;\nand.pred w2, w2, exists;\n"
        "not.pred pair, pair;\nand.pred w1, wide, pair;\nand.pred w1, w1, exists;\n"
        "not.pred wide, wide;\nand.pred n1, wide, pair;\nand.pred n1, n1, exists;\n"
        "not.pred pair, pair;\nand.pred n2, wide, pair;\nand.pred n2, n2, exists;\n"
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\n"
        "@n1 ld.global.u16 %0, [%2];\n@n1 ld.global.u16 %1, [%3];\n"
        "@n2 ld.global.b32 %0, [%2];\n"
        "@w1 ld.global.b32 %0, [%2];\n@w1 ld.global.b32 %1, [%3];\n"
        "@w2 ld.global.v2.b32 {%0, %1}, [%2];\n}"
        : "=r"(x.x), "=r"(x.y)
        : "l"(p), "l"(second), "r"(static_cast<u32>(access.wide)),
          "r"(static_cast<u32>(access.pair)), "r"(static_cast<u32>(exists)));
    return x;
}
__device__ inline void store_two(char* p, int key_stride_bytes, ElementAccess access, bool exists,
                                 u32 first, u32 second) {
    char* next = p + key_stride_bytes;
    asm volatile(
        "{\n.reg .pred wide, pair, exists, w1, w2, n1, n2;\n"
        "setp.ne.u32 wide, %4, 0;\nsetp.ne.u32 pair, %5, 0;\nsetp.ne.u32 exists, %6, 0;\n"
        "and.pred w2, wide, pair;\nand.pred w2, w2, exists;\n"
        "not.pred pair, pair;\nand.pred w1, wide, pair;\nand.pred w1, w1, exists;\n"
        "not.pred wide, wide;\nand.pred n1, wide, pair;\nand.pred n1, n1, exists;\n"
        "not.pred pair, pair;\nand.pred n2, wide, pair;\nand.pred n2, n2, exists;\n"
        "@n1 st.global.u16 [%0], %2;\n@n1 st.global.u16 [%1], %3;\n"
        "@n2 st.global.b32 [%0], %2;\n"
        "@w1 st.global.b32 [%0], %2;\n@w1 st.global.b32 [%1], %3;\n"
        "@w2 st.global.v2.b32 [%0], {%2, %3};\n}" ::"l"(p),
        "l"(next), "r"(first), "r"(second), "r"(static_cast<u32>(access.wide)),
        "r"(static_cast<u32>(access.pair)), "r"(static_cast<u32>(exists))
        : "memory");
}

/// The same, two neighbours in one access where they are neighbours in memory (value-first states, as
/// Mamba-2 keeps them): 4 us less for a launch that reads and writes a state.
template <bool kStore, int kRegisters, class State>
__device__ inline void move_pairs(const StateTensor& tensor, long long slot, const StatePlace& at,
                                  State& state) {
    const int type = tensor.type;
    const int bytes = type == kFloat32 ? 4 : 2;
    char* base = static_cast<char*>(tensor.data) +
                 (slot * tensor.slot_stride + at.head * tensor.head_stride) * bytes;
    // A thread's first key channel is even, and so is K.
    const bool pair = tensor.key_stride == 1 && tensor.value_stride % 2 == 0 &&
                      reinterpret_cast<u64>(base) % (2 * bytes) == 0;
    const ElementAccess access = {type == kFloat32, pair};
    uint2 bits[kRegisters / 2];
#pragma unroll
    for (int r = 0; r < kRegisters; r += 2) {
        const int value = at.value + r / 2 % 2 * 8;
        const int key = r / 4 * 8 + at.column;
        const bool exists = slot >= 0 && value < at.values && key < at.keys;
        char* p = base + (key * tensor.key_stride + value * tensor.value_stride) * bytes;
        if constexpr (kStore) {
            u32 first, second = 0;
            if (type == kFloat32) {
                first = __float_as_uint(state[r]);
                second = __float_as_uint(state[r + 1]);
            } else {
                first = type == kBFloat16 ? pack_bf16(state[r], state[r + 1])
                                          : pack_fp16(state[r], state[r + 1]);
                second = first >> 16;
            }
            store_two(p, tensor.key_stride * bytes, access, exists, first, second);
        } else {
            bits[r / 2] = load_two(p, tensor.key_stride * bytes, access, exists);
        }
    }
    if constexpr (!kStore) {
#pragma unroll
        for (int r = 0; r < kRegisters; r += 2) {
            uint2 x = bits[r / 2];
            if (!access.wide && access.pair) x = make_uint2(x.x & 0xffff, x.x >> 16);
            state[r] = number_of(x.x, type);
            state[r + 1] = number_of(x.y, type);
        }
    }
}

/// kPairs costs registers.
template <int kRegisters, bool kPairs, class State>
__device__ inline void load_state(const StateTensor& from, long long slot, const StatePlace& at,
                                  State& state) {
    if constexpr (kPairs) {
        move_pairs<false, kRegisters>(from, slot, at, state);
    } else {
        move_elements<false, kRegisters>(from, slot, at, state);
    }
}
template <int kRegisters, bool kPairs, class State>
__device__ inline void store_state(const StateTensor& to, long long slot, const StatePlace& at,
                                   State& state) {
    if constexpr (kPairs) {
        move_pairs<true, kRegisters>(to, slot, at, state);
    } else {
        move_elements<true, kRegisters>(to, slot, at, state);
    }
}

// States at positions. The list is in no order; positions are multiples of the chunk.

constexpr int kNoChunk = 0x7fffffff;

/// The chunk that entry `i` wants the state after (0: before the first); kNoChunk: not this sequence's.
template <int kChunk, class Params, class Task>
__device__ inline int checkpoint_chunk(const Params& p, const Task& task, int i) {
    if (i >= p.checkpoint_count || load_index(p.checkpoint_sequences, i) != task.sequence) {
        return kNoChunk;
    }
    const long long position = load_index(p.checkpoint_positions, i);
    const bool ok = position >= 0 && position <= task.length && position % kChunk == 0;
    return ok ? static_cast<int>(position / kChunk) : kNoChunk;
}

/// The first chunk from `from` on after which the state is wanted.
template <int kChunk, class Params, class Task>
__device__ inline int next_checkpoint(const Params& p, const Task& task, int from) {
    int next = kNoChunk;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < p.checkpoint_count; i += 32) {
        const int chunk = checkpoint_chunk<kChunk>(p, task, i);
        if (chunk >= from) next = min(next, chunk);
    }
    return __reduce_min_sync(~0u, next);
}

/// To every entry that wants the state after `chunk` chunks. Returns the next one wanted.
template <int kChunk, int kRegisters, bool kPairs, class Params, class Task, class State>
__device__ inline int store_checkpoints(const Params& p, const Task& task, const StatePlace& at,
                                        int chunk, State& state) {
    for (int first = 0; first < p.checkpoint_count; first += 32) {
        const int i = first + static_cast<int>(threadIdx.x) % 32;
        u32 wanted = __ballot_sync(~0u, checkpoint_chunk<kChunk>(p, task, i) == chunk);
        for (; wanted != 0; wanted &= wanted - 1) {
            const int entry = first + __ffs(static_cast<int>(wanted)) - 1;
            store_state<kRegisters, kPairs>(p.checkpoints, slot_at(p.checkpoints, entry), at, state);
        }
    }
    return next_checkpoint<kChunk>(p, task, chunk + 1);
}

// Segments of split sequences, in the workspace as threads have them in registers.

template <int kRegisters, class State>
__device__ inline void store_registers(float* to, State& state) {
#pragma unroll
    for (int r = 0; r < kRegisters; r += 4) {
        *reinterpret_cast<float4*>(to + r * 128) =
            make_float4(state[r], state[r + 1], state[r + 2], state[r + 3]);
    }
}

}  // namespace sluice::sm90
