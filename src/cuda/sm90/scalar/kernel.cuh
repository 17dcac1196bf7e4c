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
// segment of the chunks.
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
    if constexpr (Config::kLoadsScores) {
        load_bytes(s.stage[stage].scores, shared_scores(p, task, chunk), Config::kBoxBytes, full);
    }
}

__device__ inline void load_thread(const Params& p, Storage& s) {
    if constexpr (Config::kLoadsScores) wait_for_previous_launch();
    const int chunks = s.task.end - s.task.first;
    for (int i = 0; i < chunks; ++i) {
        const int stage = i % Config::kStages;
        s.stage_empty[stage].wait((i / Config::kStages + 1) & 1);
        load_chunk(p, s, s.task.first + i, stage);
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
            s.slot_full[i].init(Config::kScoreThreads / 32 * kWarpArrivals);
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
        if (s.task.sharer >= 0) return share_scores(p, s);
    }
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    constexpr int kScoreWarp = Config::kMathThreads / 32;
    constexpr int kLoadWarp = kScoreWarp + Config::kScoreThreads / 32;
    if (warp < kScoreWarp) {
        set_registers<Config::kMathRegisters, Config::kLaunchRegisters>();
        // Computed anew: not kept in a register from before the roles part.
        math_warpgroup(p, s, uniform(static_cast<int>(threadIdx.x) / 128));
    } else if (warp < kLoadWarp) {
        set_registers<Config::kScoreRegisters, Config::kLaunchRegisters>();
        scores_warpgroup(s);
    } else {
        set_registers<Config::kLoadRegisters, Config::kLaunchRegisters>();
        if (warp == kLoadWarp) {
            if (threadIdx.x % 32 == 0) load_thread(p, s);
        } else if (warp <= kLoadWarp + Config::kHeads) {
            gate_warp(p, s, warp - kLoadWarp - 1);
        } else if (!Config::kStateOnly && warp == kLoadWarp + 3) {
            store_warp(p, s);
        }
    }
}
