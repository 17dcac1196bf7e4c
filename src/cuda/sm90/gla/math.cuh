// The math role: the state through a segment's chunks, and the output.
#pragma once

#include "sm90/gla/load.cuh"
#include "sm90/gla/pair.cuh"
#include "sm90/gla/state.cuh"

namespace sluice::gla {

__device__ inline void scale_columns(const float* decay, int column,
                                     State& state) {
#pragma unroll
    for (int n = 0; n < kStateRegisters / 4; ++n) {
        const float2 d = *reinterpret_cast<const float2*>(decay + n * 8 + column);
        state[4 * n] *= d.x;
        state[4 * n + 1] *= d.y;
        state[4 * n + 2] *= d.x;
        state[4 * n + 3] *= d.y;
    }
}

/// State += V^T k~ of sixteen rows.
__device__ inline void add_block(State& state, u64 v, u64 k) {
    if constexpr (Config::kWholeStateProduct) {
        product<1, 1>(state.part[0], v, k, true);
    } else {
#pragma unroll
        for (int half = 0; half < Config::kKeys / 64; ++half) {
            product<1, 1>(state.part[half], v, advance(k, half * Config::kBoxBytes), true);
        }
    }
}

__device__ inline void keep_state(State& state) {
#pragma unroll
    for (auto& part : state.part) keep(part);
}

constexpr int kOutputRegisters = Exchange::kRegisters;

/// Where K is spread over a cluster's two blocks, O is the sum of theirs. Each adds up and stores half
/// of the chunk's tokens: this gives the other's away, of the segment's n-th chunk, and keeps its own.
__device__ inline void exchange_output(Storage& s, const Fragment& at, int n, const float (&o)[32],
                                       float (&own)[kOutputRegisters]) {
    const bool upper = cluster_rank() != 0;
    Exchange& x = s.exchange[at.group];
    if (at.thread == 0) x.full.arrive_expect(Exchange::kBytes);
    x.empty.wait((n + 1) & 1);
    const u32 other = cluster_rank() ^ 1;
    const u32 to = cluster_address(shared_address(&x.part[0][at.thread]), other);
    const u32 barrier = cluster_address(shared_address(&x.full.word), other);
    float away[kOutputRegisters];
#pragma unroll
    for (int i = 0; i < kOutputRegisters; ++i) {
        own[i] = upper ? o[kOutputRegisters + i] : o[i];
        away[i] = upper ? o[i] : o[kOutputRegisters + i];
    }
#pragma unroll
    for (int i = 0; i < kOutputRegisters; i += 4) {
        store_cluster(to + i / 4 * sizeof(x.part[0]), barrier, away[i], away[i + 1], away[i + 2],
                      away[i + 3]);
    }
}

/// Adds the other block's part.
__device__ inline void add_other_output(Storage& s, const Fragment& at, int n,
                                        float (&own)[kOutputRegisters]) {
    Exchange& x = s.exchange[at.group];
    x.full.wait(n & 1);
    const u32 part = shared_address(x.part[0][at.thread]);
#pragma unroll
    for (int i = 0; i < kOutputRegisters; i += 4) {
        const float4 add = load_shared_four(part + i / 4 * sizeof(x.part[0]));
        own[i] += add.x;
        own[i + 1] += add.y;
        own[i + 2] += add.z;
        own[i + 3] += add.w;
    }
}

/// O^T of a chunk's tokens, or of the block's share of them, to global memory through shared memory.
template <int kCount>
__device__ inline void store_output(const Params& p, const Task& task, Storage& s,
                                    const Fragment& at, int chunk, const float (&o)[kCount]) {
    const u32 barrier = kMathBarrier + at.group;
    unsigned char* tile = s.o[at.group];
    if (at.thread == 0) wait_stores_read<0>();
    named_barrier(barrier, 128);
    const int lane = at.thread % 32;
    // Matrices: values 0-7, 8-15 of the warp's sixteen, tokens of two neighbouring columns of eight.
    const int value_chunk = at.thread / 32 * 2 + lane / 8 % 2;
    constexpr bool kHalf = Config::kInput == InputType::kFloat16;
    const auto pack = [&](float a, float b) {
        return kHalf ? pack_fp16(a * p.scale, b * p.scale) : pack_bf16(a * p.scale, b * p.scale);
    };
#pragma unroll
    for (int n = 0; n < kCount / 4; n += 2) {
        const int token = n * 8 + lane / 16 * 8 + lane % 8;
        const u32 address =
            shared_address(tile) + token * 128 + ((value_chunk ^ (token & 7)) << 4);
        const float* x = o + n * 4;
        store_matrices_transposed(address, pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]),
                                  pack(x[6], x[7]));
    }
    fence_async_proxy();
    named_barrier(barrier, 128);
    if (Config::kClustered && at.thread == 0) {  // all have added it
        arrive_cluster(
            cluster_address(shared_address(&s.exchange[at.group].empty.word), cluster_rank() ^ 1));
    }
    const int value = task.value_tile * Config::kValueTile + at.group * 64;
    const int first = chunk * Config::kChunk + task.first_output();
    const int token = static_cast<int>(task.begin) + first;
    const int valid = task.length - first;
    if (task.packed && valid < Config::kOutputTokens) {
        // A bulk copy would write into the next sequence. Nothing of this is kept from chunk to chunk.
        for (int i = static_cast<int>(opaque(at.thread)); i < valid * 8; i += 128) {
            const int row = i / 8;
            const int v = value + i % 8 * 8;
            if (v >= p.values) continue;
            const uint4 x = *reinterpret_cast<const uint4*>(
                tile + row * 128 + ((i % 8 ^ (row & 7)) << 4));
            u16* out = static_cast<u16*>(p.o_data) + (token + row) * p.o_token_stride +
                       task.head * p.o_head_stride + v;
            *reinterpret_cast<uint4*>(out) = x;
        }
    } else if (at.thread == 0) {
        store_box(reinterpret_cast<const TensorMap*>(&p.o), tile, value, task.head, token,
                  task.batch);
        commit_stores();
    }
}

__device__ inline void math_warpgroup(const Params& p, Storage& s) {
    const Task& task = s.task;
    const int thread = static_cast<int>(threadIdx.x) - Config::kPrepareThreads;
    const Fragment at{thread / 128, thread % 128};
    const bool loads = !Config::kLoadRole && thread == 0;
    for (int i = 0; loads && i < min(Config::kStages, task.end - task.first); ++i) {
        load_chunk(p, s, i);
    }
    State state;
    start_state(p, task, at, state);
    // A segment writes the states after its own chunks, the first also the one before.
    const auto store_checkpoint = [&](int chunk) {
        return store_checkpoints<Config::kChunk, kStateRegisters, false>(
            p, task, place_of(p, task, at.anew()), chunk, state);
    };
    int checkpoint = kNoChunk;
    if (!Config::kStateOnly && p.checkpoint_count > 0) {
        checkpoint = next_checkpoint<Config::kChunk>(p, task, task.segment == 0 ? 0 : task.first + 1);
        if (checkpoint == 0) checkpoint = store_checkpoint(0);
    }
    for (int chunk = task.first; chunk < task.end; ++chunk) {
        const int i = chunk - task.first;
        const int stage = i % Config::kStages;
        const int slot = slot_of(i % Config::kTeams, i / Config::kTeams);
        const bool own = is_own(i);
        if (!own) receive_chunk(s, at, i, stage, slot, task.length - chunk * Config::kChunk);
        s.slot_full[slot].wait(phase_of(i / Config::kTeams));
        const u64 v = operand(s.stage[stage].v + at.group * Config::kBoxBytes);
        const u64 k = operand(s.stage[stage].k, Config::kBoxBytes);
        const float* decay = s.slot[slot].decay;
        const bool direct = Config::kStateOnly || s.slot[slot].direct != 0;
        float o[32];
        if constexpr (!Config::kStateOnly) {
            u32 a[Config::kKeys / 16][4];
#pragma unroll
            for (int n = 0; n < Config::kKeys / 16; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    a[n][e] = pack_bf16(state[n * 8 + e * 2], state[n * 8 + e * 2 + 1]);
                }
            }
            if (direct) scale_columns(decay, at.column(), state);
            product_begin();
            const u64 q = operand(s.stage[stage].q);
            const u64 scores = operand(s.slot[slot].scores);
#pragma unroll
            for (int n = 0; n < Config::kKeys / 16; ++n) {
                product<0>(o, a[n], advance(q, n / 4 * Config::kBoxBytes + n % 4 * 32), n != 0);
            }
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                product<1, 0>(o, advance(v, n * 2048), advance(scores, n * 32), true);
            }
            product_commit();
        } else {
            product_begin();
        }
#pragma unroll
        for (int n = 0; n < Config::kBlocks; ++n) {
            add_block(state, advance(v, n * 2048), advance(k, n * 2048));
        }
        product_commit();
        [[maybe_unused]] float part[kOutputRegisters];  // of a clustered kernel
        if constexpr (!Config::kStateOnly) {
            product_wait<1>();
            keep(o);
            if constexpr (Config::kClustered) {
                exchange_output(s, at.anew(), i, o, part);
            } else {
                store_output(p, task, s, at, chunk, o);
            }
        }
        product_wait<0>();
        keep_state(state);
        if (!direct) scale_columns(decay, at.column(), state);
        release_chunk(s, stage, slot, own);
        if (loads && chunk + Config::kStages < task.end) load_chunk(p, s, i + Config::kStages);
        if constexpr (Config::kClustered) {
            add_other_output(s, at.anew(), i, part);
            store_output(p, task, s, at.anew(), chunk, part);
        }
        if (chunk + 1 == checkpoint) checkpoint = store_checkpoint(checkpoint);
    }
    if constexpr (Config::kStateOnly) {
        store_registers<kStateRegisters>(segment_state(p, task, task.segment, at), state);
    } else {
        if (task.segment == p.segments - 1) {
            store_final<kStateRegisters, false>(p, task.sequence, place_of(p, task, at.anew()),
                                                state);
        }
        if (at.thread == 0) wait_stores_read<0>();
    }
}

}  // namespace sluice::gla
