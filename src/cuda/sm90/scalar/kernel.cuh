// Recurrences with a scalar, constant or no decay (Mamba-2, simple GLA, Lightning, RetNet, linear
// attention), prefill: one pass; the state never leaves the registers.
//
//   S_t = 2^{g_t} S_{t-1} + w_t k_t v_t^T,   o_t = scale S_t^T q_t + D v_t          (g in bits)
//
// For a chunk of 64 tokens, with b_i the sum of g from the chunk's first token to i:
//
//   v'_j = w_j 2^-b_j v_j,   M_ij = q_i . k_j  for i >= j
//   O^T  = (S^T Q^T + V'^T M^T) diag(scale 2^b) + D V^T
//   S^T <- 2^b_last (S^T + V'^T K)
//
// Q and K go to the tensor cores as they are, M is the same for all heads of a key head, and V' is
// the A operand, from registers, of both of its products. A chunk that decays by more than 80 bits
// is lifted (factors from 2^-80 to 2^80 instead of from 1 to 2^80); one that decays by more than
// 160 is strong: its M takes an exponential an element, and the state a second weighing of V
// (storage.cuh). A row's numbers are the same in every case, so they depend on no later gate. A
// block of threads has one or two value heads of a key head, a tile of value channels, and a
// segment of the chunks. Normalised outputs (no decay) have other factors of rows (normalizer.cuh).
//
//   role      threads              does
//   load      one thread           q, k, v (and shared scores) of a chunk by bulk copies, kStages
//                                  chunks ahead
//   gates     one warp per head    gates to b and the factors above (the policy: gates.cuh)
//   scores    one warpgroup        M, where the first launch's blocks of shared scores have not
//   math      one warpgroup per    S^T (64 x K, float32 registers) and O^T
//             64 value channels     (K above 128: two, with half of the key channels each)
//   store     one warp             O by bulk copies (and brings z)
#pragma once

#include "sm90/scalar/gates.cuh"
#include "sm90/scalar/math.cuh"
#include "sm90/scalar/scores.cuh"
#include "sm90/scalar/store.cuh"

namespace sluice::scalar {

/// A chunk's inputs into a stage.
__device__ inline void load_chunk(const Params& p, Storage& s, int chunk, int stage) {
    const Task& task = s.task;
    Barrier& full = s.stage_full[stage];
    full.arrive_expect(Config::kStageBytes);
    const int token = static_cast<int>(task.begin) + chunk * Config::kChunk;
    load_keys(s.stage[stage].k, p.k, task, token, full);
    if constexpr (!Config::kStateOnly) load_keys(s.stage[stage].q, p.q, task, token, full);
#pragma unroll
    for (int m = 0; m < Config::kValueBoxes; ++m) {
        load_box(s.stage[stage].v[m], reinterpret_cast<const TensorMap*>(&p.v), full,
                 task.value_tile * Config::kValueTile + m % Config::kTiles * 64,
                 task.head + m / Config::kTiles, token, task.batch);
    }
}

__device__ inline void load_scores(const Params& p, Storage& s, int chunk, int stage) {
    load_bytes(s.stage[stage].scores, shared_scores(p, s.task, chunk), Config::kBoxBytes,
               s.stage_full[stage]);
}

__device__ inline void load_thread(const Params& p, Storage& s) {
    const Task& task = s.task;
    const int chunks = task.end - task.first;
    const int at_once = min(Config::kStages, chunks);
    for (int i = 0; i < at_once; ++i) load_chunk(p, s, task.chunk(i), i);
    if constexpr (Config::kLoadsScores) {  // which the launch before computes
        wait_for_previous_launch();
        for (int i = 0; i < at_once; ++i) load_scores(p, s, task.chunk(i), i);
    }
    for (int i = at_once; i < chunks; ++i) {
        const int stage = i % Config::kStages;
        s.stage_empty[stage].wait((i / Config::kStages + 1) & 1);
        load_chunk(p, s, task.chunk(i), stage);
        if constexpr (Config::kLoadsScores) load_scores(p, s, task.chunk(i), stage);
    }
}

}  // namespace sluice::scalar

extern "C" __global__ void __launch_bounds__(sluice::scalar::Config::kThreads, 1)
    sluice_scalar(const __grid_constant__ sluice::scalar::Params p) {
    using namespace sluice::scalar;
    // Not aligned by arithmetic: the compiler would no longer know that it is shared memory.
    extern __shared__ __align__(1024) unsigned char raw[];
    Storage& s = *reinterpret_cast<Storage*>(raw);
    if (threadIdx.x == 0) {
        if (sluice::tile::shared_address(raw) % 1024 != 0) __trap();
        for (int i = 0; i < Config::kStages; ++i) {
            s.stage_full[i].init(1 + Config::kHeads * kWarpArrivals);  // load and gates
            s.stage_empty[i].init(Config::kStageReaders * kWarpArrivals);
        }
        for (int i = 0; i < Config::kPairs; ++i) s.pair_full[i].init(1);
        for (int i = 0; i < Config::kSlots; ++i) {
            s.slot_full[i].init(Config::kTidyThreads / 32 * kWarpArrivals);
            s.slot_empty[i].init(Config::kMathThreads / 32 * kWarpArrivals);
        }
        for (int m = 0; m < Config::kMathGroups; ++m) {
            for (int i = 0; i < Config::kOutputs; ++i) {
                s.output_full[m][i].init(4 * kWarpArrivals);
                s.output_empty[m][i].init(
                    m < Config::kValueBoxes ? 1 : 4 * kWarpArrivals);  // store, math
            }
        }
        fence_barrier_init();
        s.task = decode_task(p);
    }
    __syncthreads();
    if constexpr (Config::kStateOnly) {
        sluice::tile::allow_next_launch();
        if (s.task.sharer >= 0) {
            if constexpr (Config::kNormalized) return keep_key_sum(p, s.task);
            return share_scores(p, s);
        }
    }
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    constexpr int kScoreWarp = Config::kMathThreads / 32;
    constexpr int kLoadWarp = kScoreWarp + Config::kScoreThreads / 32;
    if (warp < kScoreWarp) {
        set_registers<Config::kMathRegisters, Config::kLaunchRegisters>();
        // Computed anew: not kept in a register from before the roles part.
        const int group = uniform(static_cast<int>(threadIdx.x) / 128);
        if constexpr (Config::kStateOnly) {
            add_parts(p, s, group);
        } else {
            math_warpgroup(p, s, group);
        }
    } else if (warp < kLoadWarp) {
        set_registers<Config::kScoreRegisters, Config::kLaunchRegisters>();
        if constexpr (Config::kStateOnly && Config::kNormalized) {
            tidy_chunks(p, s, static_cast<int>(threadIdx.x) - Config::kMathThreads);
        } else if constexpr (Config::kStateOnly) {
            using Reader = FirstLaunchReader<kReadsGates && Config::kHeads == 4>::Type;
            if (warp < kScoreWarp + Config::kHeads) gate_warp<Reader>(p, s, warp - kScoreWarp);
        } else {
            serve_outputs(p, s);
        }
    } else {
        set_registers<Config::kLoadRegisters, Config::kLaunchRegisters>();
        if (warp == kLoadWarp) {
            if (threadIdx.x % 32 == 0) load_thread(p, s);
        } else if constexpr (Config::kStateOnly && !Config::kNormalized) {
            const int thread = static_cast<int>(threadIdx.x) - (kLoadWarp + 1) * 32;
            if (thread < Config::kTidyThreads) tidy_chunks(p, s, thread);
        } else if (warp <= kLoadWarp + Config::kHeads) {
            gate_warp<GateReader>(p, s, warp - kLoadWarp - 1);
        } else if (!Config::kStateOnly && warp == kLoadWarp + 3) {
            store_warp(p, s);
        }
    }
}
