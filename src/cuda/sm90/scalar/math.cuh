// The math role: the state through a segment's chunks, and the output.
#pragma once

#include "sm90/scalar/state.cuh"

namespace sluice::scalar {

/// Where a lane's row of four 8 x 8 matrices lies in a swizzled tile of 64 tokens x 64 values:
/// values 0-7 and 8-15 of the warp's sixteen, of tokens 0-7, then of 8-15. 16 tokens further: 2,048
/// bytes.
__device__ inline u32 matrices_at(const unsigned char* tile, const Fragment& at) {
    const int lane = at.thread % 32;
    const int token = lane / 16 * 8 + lane % 8;
    const int value_chunk = at.thread / 32 * 2 + lane / 8 % 2;
    return shared_address(tile) + token * 128 + ((value_chunk ^ (token & 7)) << 4);
}

/// V^T as a product's A operand: register [n][e] is values row() + 8 (e % 2) and tokens
/// 16 n + 8 (e / 2) + column() and the next one. O^T's register 8 n + 2 e and the next are the
/// same.
using ValueOperand = u32[4][4];

__device__ inline void load_values(const unsigned char* tile, const Fragment& at, ValueOperand& v) {
    const u32 from = matrices_at(tile, at);
#pragma unroll
    for (int n = 0; n < 4; ++n) load_matrices_transposed(from + n * 2048, v[n]);
}

/// Normalised outputs have no decay.
constexpr bool kWeighs = !Config::kNormalized;

/// A factor for each of the thread's sixteen tokens, in the order of an operand's registers.
using Factors = float4[4];

__device__ inline void load_factors(const Columns& from, const Fragment& at, Factors& factors) {
#pragma unroll
    for (int n = 0; n < 4; ++n) factors[n] = from.four(at.thread % 32, n);
}

/// Each token's values times its factor, which is 1 where there is no decay.
__device__ inline void weigh(const ValueOperand& values, const Factors& factors, ValueOperand& v) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float4 f = kWeighs ? factors[n] : make_float4(1.f, 1.f, 1.f, 1.f);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (!kWeighs && !Config::kConverted) {
                v[n][e] = values[n][e];
                continue;
            }
            v[n][e] = pack_bf16(low_input(values[n][e]) * (e < 2 ? f.x : f.z),
                                high_input(values[n][e]) * (e < 2 ? f.y : f.w));
        }
    }
}

__device__ inline float silu(float x) { return x / (1.f + exp2_fast(x * -1.4426950408889634f)); }

/// O^T scaled token by token, and D of its two value channels times the values.
__device__ inline void finish_output(const Factors& row, const ValueOperand& v, float2 skip,
                                     float (&o)[32]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float4 r = row[n];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float& x = o[8 * n + 2 * e];
            float& y = o[8 * n + 2 * e + 1];
            x *= e < 2 ? r.x : r.z;
            y *= e < 2 ? r.y : r.w;
            if constexpr (Config::kSkip != Skip::kNone) {
                const float d = e % 2 ? skip.y : skip.x;
                x += d * low_input(v[n][e]);
                y += d * high_input(v[n][e]);
            }
        }
    }
}

/// O^T into its tile, times silu(z) where the tile holds z.
__device__ inline void write_output(const Fragment& at, unsigned char* tile, float (&o)[32]) {
    if constexpr (Config::kGated) {
        ValueOperand z;
        load_values(tile, at, z);
#pragma unroll
        for (int r = 0; r < 32; r += 2) {
            o[r] *= silu(low_input(z[r / 8][r / 2 % 4]));
            o[r + 1] *= silu(high_input(z[r / 8][r / 2 % 4]));
        }
    }
    const u32 to = matrices_at(tile, at);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float* x = o + n * 8;
        store_matrices_transposed(to + n * 2048, pack_output(x[0], x[1]), pack_output(x[2], x[3]),
                                  pack_output(x[4], x[5]), pack_output(x[6], x[7]));
    }
}

/// To the store role: O of the i-th chunk is in its tile.
__device__ inline void publish_output(Storage& s, const Fragment& at, int i) {
    fence_async_proxy();
    s.output_full[at.box()][i % Config::kOutputs].arrive_warp();
}

constexpr int kSecondHalf = Config::kMathGroups - 1;
static_assert(Config::kStateOnly || sizeof(Output) == 64 * 64 * sizeof(float));

/// The second half's O^T of the i-th chunk, which the first adds to its own, register by register.
__device__ inline void give_half(Storage& s, const Fragment& at, int i, const float (&o)[32]) {
    auto* to = reinterpret_cast<float4*>(s.output[kSecondHalf].tile) + at.thread;
    s.output_empty[kSecondHalf][0].wait((i + 1) & 1);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        to[n * 128] = make_float4(o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]);
    }
    s.output_full[kSecondHalf][0].arrive_warp();
}
__device__ inline void add_half(Storage& s, const Fragment& at, int i, float (&o)[32]) {
    const auto* from = reinterpret_cast<const float4*>(s.output[kSecondHalf].tile) + at.thread;
    s.output_full[kSecondHalf][0].wait(i & 1);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const float4 x = from[n * 128];
        o[4 * n] += x.x;
        o[4 * n + 1] += x.y;
        o[4 * n + 2] += x.z;
        o[4 * n + 3] += x.w;
    }
    s.output_empty[kSecondHalf][0].arrive_warp();
}

/// D of the thread's two value channels.
__device__ inline float2 load_skip(const Params& p, const Task& task, const Fragment& at) {
    if constexpr (Config::kSkip == Skip::kNone) return make_float2(0.f, 0.f);
    const int head = task.head + min(at.head(), task.heads - 1);
    const auto load = [&](int value) {
        if (value >= p.values) return 0.f;
        return load_number(p.skip.data, head * p.skip.head_stride + value * p.skip.channel_stride,
                           p.skip.type);
    };
    if constexpr (Config::kSkip == Skip::kHead) {
        const float d = load(0);
        return make_float2(d, d);
    }
    const int value = at.value(task) + at.row();
    return make_float2(load(value), load(value + 8));
}

/// The state as a product's A operand.
using StateOperand = u32[Config::kGroupKeys / 16][4];

__device__ inline void pack_state(const State& state, StateOperand& a) {
#pragma unroll
    for (int n = 0; n < Config::kGroupKeys / 16; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            a[n][e] = pack_bf16(state[n * 8 + e * 2], state[n * 8 + e * 2 + 1]);
        }
    }
}

/// Begins O^T = S^T Q^T, each token's part of which has yet to be scaled.
__device__ inline void multiply_queries(const StateOperand& state, const unsigned char* queries,
                                        float (&o)[32]) {
    product_begin();
    const u64 q = operand(queries);
#pragma unroll
    for (int n = 0; n < Config::kGroupKeys / 16; ++n) {
        product<0>(o, state[n], advance(q, n / 4 * Config::kBoxBytes + n % 4 * 32), n != 0);
    }
}

/// Begins O^T += V^T A^T, the same.
__device__ inline void multiply_scores(const ValueOperand& values, const unsigned char* scores,
                                       float (&o)[32]) {
    product_begin();
    const u64 a = operand(scores);
#pragma unroll
    for (int n = 0; n < 4; ++n) product<0>(o, values[n], advance(a, n * 32), true);
    product_commit();
}

/// Begins S^T += V^T K, or S^T = V^T K.
__device__ inline void multiply_keys(const ValueOperand& values, const unsigned char* keys,
                                     State& state, bool add = true) {
    product_begin();
    const u64 k = operand(keys, Config::kBoxBytes);
#pragma unroll
    for (int n = 0; n < 4; ++n) product<1>(state, values[n], advance(k, n * 2048), add || n > 0);
    product_commit();
}

__device__ inline void scale_state(float decay, State& state) {
#pragma unroll
    for (float& x : state) x *= decay;
}

/// The first launch: a part's own states. Values are weighed for the part's end, so states need no
/// scaling, and a box's product runs while the next one's values are weighed.
__device__ inline void add_parts(const Params& p, Storage& s, int group) {
    constexpr int kBoxes = Config::kGroupBoxes;
    const Task& task = s.task;
    const auto fragment = [&](int box, int thread) {
        return Fragment{group * kBoxes + box, thread};
    };
    const int thread = static_cast<int>(threadIdx.x) % 128;
    copy_initial(p, task, group, thread);
    State state[kBoxes];
    const bool never = p.tokens < 0;
    const int chunks = uniform(task.end - task.first);
    for (int i = 0; i < chunks; ++i) {
        const int stage = i % Config::kStages;
        const u32 phase = i / Config::kStages & 1;
        s.stage_full[stage].wait(phase);
        if (is_tidied(task, i)) s.slot_full[stage].wait(phase);
        // All reads before the first product, behind which they would queue.
        ValueOperand v[kBoxes];
        Factors factors[kBoxes];
#pragma unroll
        for (int b = 0; b < kBoxes; ++b) {
            const Fragment at = fragment(b, thread);
            load_values(s.stage[stage].v[at.box()], at, v[b]);
            if constexpr (kWeighs) load_factors(s.gates[stage][at.head()].rest, at, factors[b]);
        }
#pragma unroll
        for (int b = 0; b < kBoxes; ++b) {
            weigh(v[b], factors[b], v[b]);
            multiply_keys(v[b], s.stage[stage].k + fragment(b, 0).key_bytes(), state[b], i > 0);
        }
        product_wait<0>();
#pragma unroll
        for (int b = 0; b < kBoxes; ++b) {
            keep(state[b]);
            hold(v[b], never);
        }
        s.stage_empty[stage].arrive_warp();
    }
#pragma unroll
    for (int b = 0; b < kBoxes; ++b) {
        if (chunks == 0) zero(state[b]);
        store_part(p, task, fragment(b, thread_anew() % 128), task.part, state[b]);
    }
}

/// What is read of a chunk's gates before the chunk begins.
struct ChunkStart {
    Reaches reaches;
    float decay;
};

__device__ inline void math_warpgroup(const Params& p, Storage& s, int group) {
    const Task& task = s.task;
    const Fragment at{group, static_cast<int>(threadIdx.x) % 128};
    const float2 skip = load_skip(p, task, at);
    State state;
    start_state(p, task, at, state);
    // A segment writes the states after its own chunks, the first also the one before.
    const auto place = [&] { return place_of(p, task, Fragment{group, thread_anew() % 128}); };
    const auto store_checkpoint = [&](int chunk) {
        return store_checkpoints<Config::kChunk, kStateRegisters, true>(p, task, place(), chunk,
                                                                        state);
    };
    int checkpoint = kNoChunk;
    if (p.checkpoint_count > 0) {
        checkpoint =
            next_checkpoint<Config::kChunk>(p, task, task.segment == 0 ? 0 : task.first + 1);
        if (checkpoint == 0) checkpoint = store_checkpoint(0);
    }
    const bool finishes = at.half() == 0;
    const bool never = p.tokens < 0;
    const int chunks = uniform(task.end - task.first);
    const int whole = uniform(task.length / Config::kChunk - task.first);  // chunks
    int taken = 0;                                                         // slots
    const auto slot_of = [&](int i) { return Config::kLoadsScores ? taken : i; };
    // Waits for a chunk's inputs and gates.
    const auto begin_chunk = [&](int i) {
        // The scores role clears what a last chunk has too many, and converts fp16.
        if (Config::kConverted || i >= whole) {
            s.slot_full[slot_of(i) % Config::kSlots].wait(slot_of(i) / Config::kSlots & 1);
        }
        s.stage_full[i % Config::kStages].wait(i / Config::kStages & 1);
        if constexpr (!kWeighs) return ChunkStart{};
        const u32 gates = shared_address(&s.gates[i % Config::kStages][at.head()].decay);
        return ChunkStart{load_reaches(s.reaches[i % Config::kStages]),
                          __uint_as_float(load_shared(gates))};
    };
    ChunkStart start = {};
    if (chunks > 0) start = begin_chunk(0);
    for (int i = 0; i < chunks; ++i) {
        const int stage = i % Config::kStages;
        const bool takes = has_slot(start.reaches, i >= whole);
        const int slot = slot_of(i) % Config::kSlots;
        const HeadGates& gates = s.gates[stage][at.head()];
        const bool strong = start.reaches.of(at.head()) == kStrong;
        float decay = kWeighs ? start.decay : 1.f;
        ValueOperand values, v, rest;
        Factors factors, row;
        const auto read = [&](const Columns& columns) {
            load_values(s.stage[stage].v[at.box()], at, values);
            if constexpr (kWeighs) load_factors(columns, at, factors);
        };
        // A read of shared memory queues behind the products that its warp has begun. Where there
        // are registers for it, what is needed while they run is read before them.
        if (Config::kReadsEarly) read(gates.value);
        float o[32];
        StateOperand packed;
        // Not with the decay before in one factor, which may be too small for a float.
        if (start.reaches.of(at.head()) != kPlain) scale_state(kLowered, state);
        pack_state(state, packed);
        if (strong) {  // what it adds is scaled back from the chunk's end
            scale_state(decay, state);
            decay = 1.f;
        }
        multiply_queries(packed, s.stage[stage].q + at.key_bytes(), o);
        // Also keeps ptxas, which moves nothing across, from weighing among the products.
        if (takes) s.slot_full[slot].wait(slot_of(i) / Config::kSlots & 1);
        if (!Config::kReadsEarly) read(gates.value);
        weigh(values, factors, v);
        // Packed: the compiler would keep both halves of each until the output is finished.
        if (Config::kReadsEarly) keep(values);
        const unsigned char* scores = scores_tile(s, start.reaches, at.head(), stage, slot);
        if (finishes) {
            multiply_scores(v, scores, o);
        } else {
            product_begin();  // as on the other way: the compiler would inject one
            product_commit();
        }
        if (strong) {
            if constexpr (!Config::kKeepsValues)
                load_values(s.stage[stage].v[at.box()], at, values);
            load_factors(gates.rest, at, factors);
            weigh(values, factors, rest);
            multiply_keys(rest, s.stage[stage].k + at.key_bytes(), state);
        } else {
            multiply_keys(v, s.stage[stage].k + at.key_bytes(), state);
        }
        const int turn = i % Config::kOutputs;
        if (finishes) {
            const int phase = i / Config::kOutputs + (Config::kGated ? 0 : 1);
            s.output_empty[at.box()][turn].wait(phase & 1);
        }
        if (Config::kSkip != Skip::kNone && !Config::kReadsEarly) {
            load_values(s.stage[stage].v[at.box()], at, values);
        }
        product_wait<1>();
        keep(o);
        hold(packed, never);
        if (finishes) {
            load_factors(gates.row, at, row);
            if constexpr (Config::kKeyHalves > 1) add_half(s, at, i, o);
            finish_output(row, values, skip, o);
            write_output(at, s.output[at.box()].tile[turn], o);
        } else {
            give_half(s, at, i, o);
        }
        product_wait<0>();
        keep(state);
        hold(v, never);
        hold(rest, never);
        if (takes) s.slot_empty[slot].arrive_warp();
        s.stage_empty[stage].arrive_warp();
        taken += takes ? 1 : 0;
        start = {};
        if (i + 1 < chunks) start = begin_chunk(i + 1);
        scale_state(decay, state);
        // Late: the fence waits for what was written, which meanwhile is there.
        if (finishes) publish_output(s, at, i);
        if (task.first + i + 1 == checkpoint) checkpoint = store_checkpoint(checkpoint);
    }
    if (task.segment == p.segments - 1) {
        store_final<kStateRegisters, true>(p, task.sequence, place(), state);
    }
}

}  // namespace sluice::scalar
