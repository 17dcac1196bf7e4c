// States of tensor-core kernels, to and from memory: a warpgroup has S^T (64 value channels x K) as
// a product's accumulator.
#pragma once

#include "sm90/common/params.cuh"
#include "tile/ptx.cuh"

namespace sluice::sm90 {

using namespace tile;

__device__ inline long long load_index(const Indices& p, long long i) {
    return p.is_64_bit ? static_cast<const long long*>(p.data)[i * p.stride]
                       : static_cast<const int*>(p.data)[i * p.stride];
}

/// The slot of a state tensor that index `i` names; below zero: none. An index that nobody
/// validated may name no slot at all.
__device__ inline long long slot_at(const StateTensor& state, long long i) {
    if (state.data == nullptr) return -1;
    const long long slot = state.indices.data == nullptr ? i : load_index(state.indices, i);
    return slot < state.slots ? slot : -1;
}

/// The slot that a sequence starts from, of a tensor of initial states; below zero: it starts from
/// zero.
template <class Params>
__device__ inline long long initial_slot(const Params& p, const StateTensor& initial,
                                         int sequence) {
    if (p.has_initial != nullptr && !p.has_initial[sequence * p.has_initial_stride]) return -1;
    return slot_at(initial, sequence);
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

// Elements go to and from memory without branches among them, so that none waits for the one
// before. Whether one exists is predicated; what depends on the type is predicated for stores, and
// for loads decided once: a second predicated load into a register waits for the first, even where
// only one of them happens (32 loads then took 9 us).

/// An element of 32 bits or of 16, or two of 32, if it `exists`; else zero.
template <class Bits>
__device__ inline Bits load_existing(const void* p, bool exists) {
    if constexpr (sizeof(Bits) == 8) {
        uint2 x;
        asm volatile(
            "{\n.reg .pred e;\nsetp.ne.u32 e, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
            "@e ld.global.v2.b32 {%0, %1}, [%2];\n}"
            : "=r"(x.x), "=r"(x.y)
            : "l"(p), "r"(static_cast<u32>(exists)));
        return x;
    } else if constexpr (sizeof(Bits) == 4) {
        u32 x;
        asm volatile(
            "{\n.reg .pred e;\nsetp.ne.u32 e, %2, 0;\nmov.b32 %0, 0;\n@e ld.global.b32 %0, [%1];\n}"
            : "=r"(x)
            : "l"(p), "r"(static_cast<u32>(exists)));
        return x;
    } else {
        u16 x;
        asm volatile(
            "{\n.reg .pred e;\nsetp.ne.u32 e, %2, 0;\nmov.b16 %0, 0;\n@e ld.global.b16 %0, [%1];\n}"
            : "=h"(x)
            : "l"(p), "r"(static_cast<u32>(exists)));
        return x;
    }
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

/// A thread's elements in a slot of a state tensor.
struct Elements {
    char* base;                    // of the head
    int key_stride, value_stride;  // in bytes
    StatePlace at;
    bool any;  // the slot exists

    __device__ Elements(const StateTensor& tensor, long long slot, const StatePlace& place)
        : at(place), any(slot >= 0) {
        const int bytes = tensor.type == kFloat32 ? 4 : 2;
        base = static_cast<char*>(tensor.data) +
               (slot * tensor.slot_stride + at.head * tensor.head_stride) * bytes;
        key_stride = tensor.key_stride * bytes;
        value_stride = tensor.value_stride * bytes;
    }
    // By register of the accumulator.
    __device__ int value(int r) const { return at.value + r / 2 % 2 * 8; }
    __device__ int key(int r) const { return r / 4 * 8 + at.column + r % 2; }
    __device__ bool exists(int r) const { return any && value(r) < at.values && key(r) < at.keys; }
    __device__ char* address(int r) const {
        return base + key(r) * key_stride + value(r) * value_stride;
    }
};

constexpr int kInFlight =
    16;  // loads; for all at once, addresses take more registers than there are

template <class Bits, int kRegisters, class State>
__device__ inline void load_elements(const Elements& from, int type, State& state) {
#pragma unroll
    for (int first = 0; first < kRegisters; first += kInFlight) {
        Bits bits[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            bits[i] = load_existing<Bits>(from.address(first + i), from.exists(first + i));
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) state[first + i] = number_of(bits[i], type);
    }
}

/// Two neighbours along K in one access: `Bits` has both.
template <class Bits, int kRegisters, class State>
__device__ inline void load_pairs(const Elements& from, int type, State& state) {
#pragma unroll
    for (int first = 0; first < kRegisters; first += 2 * kInFlight) {
        Bits bits[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            const int r = first + 2 * i;
            bits[i] = load_existing<Bits>(from.address(r), from.exists(r));
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            const int r = first + 2 * i;
            if constexpr (sizeof(Bits) == 8) {
                state[r] = __uint_as_float(bits[i].x);
                state[r + 1] = __uint_as_float(bits[i].y);
            } else {
                state[r] = number_of(bits[i] & 0xffff, type);
                state[r + 1] = number_of(bits[i] >> 16, type);
            }
        }
    }
}

/// What two neighbours along K are in memory.
struct ElementAccess {
    bool wide;  // float32, else 16 bits
    bool pair;  // side by side, and aligned for one access
};

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

/// Whether two neighbours along K are one access: side by side in memory (value-first states, as
/// Mamba-2 keeps them), and aligned. A thread's first key channel is even, and so must K be.
__device__ inline bool in_pairs(const StateTensor& tensor, const Elements& elements) {
    const int bytes = tensor.type == kFloat32 ? 4 : 2;
    return tensor.key_stride == 1 && tensor.value_stride % 2 == 0 &&
           reinterpret_cast<u64>(elements.base) % (2 * bytes) == 0;
}

/// What does not exist loads as zero. kPairs: K is even; costs registers.
template <int kRegisters, bool kPairs, class State>
__device__ inline void load_state(const StateTensor& from, long long slot, const StatePlace& at,
                                  State& state) {
    const Elements elements(from, slot, at);
    if (kPairs && in_pairs(from, elements)) {
        if (from.type == kFloat32) return load_pairs<uint2, kRegisters>(elements, from.type, state);
        return load_pairs<u32, kRegisters>(elements, from.type, state);
    }
    if (from.type == kFloat32) return load_elements<u32, kRegisters>(elements, from.type, state);
    load_elements<u16, kRegisters>(elements, from.type, state);
}

template <int kRegisters, bool kPairs, class State>
__device__ inline void store_state(const StateTensor& to, long long slot, const StatePlace& at,
                                   State& state) {
    const Elements elements(to, slot, at);
    const int type = to.type;
    const bool wide = type == kFloat32;
    if constexpr (kPairs) {
        const ElementAccess access = {wide, in_pairs(to, elements)};
#pragma unroll
        for (int r = 0; r < kRegisters; r += 2) {
            u32 first, second = 0;
            if (wide) {
                first = __float_as_uint(state[r]);
                second = __float_as_uint(state[r + 1]);
            } else {
                first = type == kBFloat16 ? pack_bf16(state[r], state[r + 1])
                                          : pack_fp16(state[r], state[r + 1]);
                second = first >> 16;
            }
            store_two(elements.address(r), elements.key_stride, access, elements.exists(r), first,
                      second);
        }
    } else {
#pragma unroll
        for (int r = 0; r < kRegisters; ++r) {
            const bool exists = elements.exists(r);
            store_predicated(elements.address(r), bits_of(state[r], type), exists && wide,
                             exists && !wide);
        }
    }
}

// A sequence's own states. Where there is none, the code above is not run through for nothing: it is
// not in any cache yet, and fetching it takes up to 3 us.

template <int kRegisters, bool kPairs, class Params, class State>
__device__ inline void load_initial(const Params& p, int sequence, const StatePlace& at,
                                    State& state) {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) state[r] = 0.f;
    const long long slot = initial_slot(p, p.initial, sequence);
    if (slot >= 0) load_state<kRegisters, kPairs>(p.initial, slot, at, state);
}

template <int kRegisters, bool kPairs, class Params, class State>
__device__ inline void store_final(const Params& p, int sequence, const StatePlace& at,
                                   State& state) {
    const long long slot = slot_at(p.final, sequence);
    if (slot >= 0) store_state<kRegisters, kPairs>(p.final, slot, at, state);
}

// States at positions. The list is in no order; positions are multiples of the chunk.

constexpr int kNoChunk = 0x7fffffff;

/// The chunk that entry `i` wants the state after (0: before the first); kNoChunk: not this
/// sequence's.
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
    for (int i = thread_anew() % 32; i < p.checkpoint_count; i += 32) {
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
        const int i = first + thread_anew() % 32;
        u32 wanted = __ballot_sync(~0u, checkpoint_chunk<kChunk>(p, task, i) == chunk);
        for (; wanted != 0; wanted &= wanted - 1) {
            const int entry = first + __ffs(static_cast<int>(wanted)) - 1;
            store_state<kRegisters, kPairs>(p.checkpoints, slot_at(p.checkpoints, entry), at,
                                            state);
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
