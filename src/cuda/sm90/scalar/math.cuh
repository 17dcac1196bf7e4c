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

/// V^T, each token's values times its weight, as a product's A operand.
__device__ inline void weigh_values(const unsigned char* v, const Columns& weight,
                                    const Fragment& at, u32 (&a)[4][4]) {
    const u32 from = matrices_at(v, at);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float4 w = weight.four(at.thread % 32, n);
        load_matrices_transposed(from + n * 2048, a[n]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            a[n][e] = pack_bf16(low_bf16(a[n][e]) * (e < 2 ? w.x : w.z),
                                high_bf16(a[n][e]) * (e < 2 ? w.y : w.w));
        }
    }
}

/// Columns (tokens) of O^T.
__device__ inline void scale_tokens(const float (&row)[16], float (&o)[32]) {
#pragma unroll
    for (int r = 0; r < 32; ++r) o[r] *= row[r / 4 * 2 + r % 2];
}

__device__ inline float silu(float x) { return x / (1.f + exp2_fast(x * -1.4426950408889634f)); }

/// O^T, sixteen tokens at a time, combined with a tile of the same shape: f(o, number).
template <class F>
__device__ inline void combine(const unsigned char* tile, const Fragment& at, float (&o)[32],
                               F&& f) {
    const u32 from = matrices_at(tile, at);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        u32 x[4];
        load_matrices_transposed(from + n * 2048, x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            f(o[8 * n + 2 * e], low_bf16(x[e]), e % 2);
            f(o[8 * n + 2 * e + 1], high_bf16(x[e]), e % 2);
        }
    }
}

/// O^T into its tile, times silu(z) where the tile holds z.
__device__ inline void write_output(const Fragment& at, unsigned char* tile, float (&o)[32]) {
    if constexpr (Config::kGated) {
        combine(tile, at, o, [](float& x, float z, int) { x *= silu(z); });
    }
    const u32 to = matrices_at(tile, at);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float* x = o + n * 8;
        store_matrices_transposed(to + n * 2048, pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                  pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
    }
}

/// To the store role: O of the i-th chunk is in its tile.
__device__ inline void publish_output(Storage& s, const Fragment& at, int i) {
    fence_async_proxy();
    __syncwarp();
    if (at.thread % 32 == 0) s.output_full[at.group][i % Config::kOutputs].arrive();
}

/// D of the thread's two value channels.
__device__ inline float2 channel_skip(const Params& p, const Task& task, const Fragment& at) {
    const int head = task.head + min(at.head(), task.heads - 1);
    const auto load = [&](int value) {
        if (value >= p.values) return 0.f;
        return load_number(p.skip.data, head * p.skip.head_stride + value * p.skip.channel_stride,
                           p.skip.type);
    };
    const int value = at.value(task) + at.row();
    return make_float2(load(value), load(value + 8));
}

/// The state as a product's A operand.
using StateOperand = u32[Config::kKeys / 16][4];

__device__ inline void pack_state(const State& state, StateOperand& a) {
#pragma unroll
    for (int n = 0; n < Config::kKeys / 16; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            a[n][e] = pack_bf16(state[n * 8 + e * 2], state[n * 8 + e * 2 + 1]);
        }
    }
}

/// Begins O^T = S^T Q^T + V^T A^T, each token's part of which has yet to be scaled.
__device__ inline void multiply_output(const StateOperand& state, const unsigned char* queries,
                                       const unsigned char* values, const unsigned char* scores,
                                       float (&o)[32]) {
    product_begin();
    const u64 q = operand(queries);
    const u64 v = operand(values);
    const u64 a = operand(scores);
#pragma unroll
    for (int n = 0; n < Config::kKeys / 16; ++n) {
        product<0>(o, state[n], advance(q, n / 4 * Config::kBoxBytes + n % 4 * 32), n != 0);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        product<1, 0>(o, advance(v, n * 2048), advance(a, n * 32), true);
    }
    product_commit();
}

__device__ inline void math_warpgroup(const Params& p, Storage& s, int group) {
    const Task& task = s.task;
    const Fragment at{group, static_cast<int>(threadIdx.x) % 128};
    float2 skip;
    if constexpr (Config::kSkip == Skip::kChannel) skip = channel_skip(p, task, at);
    State state;
    start_state(p, task, at, state);
    // A segment writes the states after its own chunks, the first also the one before.
    int checkpoint = kNoChunk;
    if (!Config::kStateOnly && p.checkpoint_count > 0) {
        checkpoint = next_checkpoint(p, task, task.segment == 0 ? 0 : task.first + 1);
        if (checkpoint == 0) checkpoint = store_checkpoints(p, task, at, 0, state);
    }
    const int chunks = task.end - task.first;
    for (int i = 0; i < chunks; ++i) {
        const int stage = i % Config::kStages;
        const int slot = i % Config::kSlots;
        StateOperand packed;
        if constexpr (!Config::kStateOnly) pack_state(state, packed);
        s.slot_full[slot].wait(i / Config::kSlots & 1);
        const HeadGates& gates = s.gates[stage][at.head()];
        const unsigned char* v = s.stage[stage].v[group];
        float o[32];
        if constexpr (!Config::kStateOnly) {
            multiply_output(packed, s.stage[stage].q, v, s.slot[slot].scores[at.head()], o);
        }
        u32 weighed[4][4];
        weigh_values(v, gates.weight, at, weighed);
        const float decay = gates.decay;
#pragma unroll
        for (float& x : state) x *= decay;
        product_begin();
        const u64 k = operand(s.stage[stage].k, Config::kBoxBytes);
#pragma unroll
        for (int n = 0; n < 4; ++n) product<1>(state, weighed[n], advance(k, n * 2048), true);
        product_commit();
        if constexpr (!Config::kStateOnly) {
            float row[16];
            gates.row.get(at.thread % 32, row);
            product_wait<1>();
            keep(o);
            scale_tokens(row, o);
            if constexpr (Config::kSkip == Skip::kChannel) {
                combine(v, at, o,
                        [&](float& x, float y, int e) { x += (e ? skip.y : skip.x) * y; });
            }
            const int turn = i % Config::kOutputs;
            s.output_empty[group][turn].wait((i / Config::kOutputs + (Config::kGated ? 0 : 1)) & 1);
            write_output(at, s.output[group].tile[turn], o);
            publish_output(s, at, i);
        }
        product_wait<0>();
        keep(state);
        if (at.thread % 32 == 0) {
            s.slot_empty[slot].arrive();
            s.stage_empty[stage].arrive();
        }
        if (task.first + i + 1 == checkpoint) {
            checkpoint = store_checkpoints(p, task, at, checkpoint, state);
        }
    }
    if constexpr (Config::kStateOnly) {
        store_segment(task, at, segment_state(p, task, task.segment, at), state);
    } else {
        if (task.segment == p.segments - 1) {
            store_state(p, task, p.final, slot_at(p.final, task.sequence), at, state);
        }
    }
}

}  // namespace sluice::scalar
