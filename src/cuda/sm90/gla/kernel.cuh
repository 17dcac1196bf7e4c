// Gated linear attention, prefill: one pass over q, k, v, g; the state never leaves the registers.
//
//   S_t = diag(exp g_t) S_{t-1} + k_t v_t^T,   o_t = scale S_t^T q_t
//
// For a chunk of 64 tokens, with b_i the sum of g log2(e) from the chunk's first token to i:
//
//   q~ = q 2^b    k~ = k 2^-b    A = tril(q~ k~^T)
//   O^T = S^T q~^T + V^T A^T     S^T <- (S^T + V^T k~) diag(2^b_last)
//
// A block of threads has one sequence's head, a tile of value channels, and a segment of the chunks.
// K above 128 is spread over a cluster of two blocks, half each: what is above holds for each half, and
// O is the sum of theirs (math.cuh, exchange_output).
//
//   role      threads              does
//   load      one thread, or one   q, k, v, g of a chunk by bulk copies, kStages chunks ahead
//             of math
//   prepare   one warpgroup per    running sums of gates; q~ and k~ over q and k; the scores A.
//             64 key channels      Teams take chunks in turn
//   math      one warpgroup per    S^T (64 x K, float32 registers) and O^T; stores O
//             64 value channels
//   send      one thread of        q~, k~ and A of every other chunk to the cluster's other block, which
//             a paired block       has the head's next value channels (pair.cuh)
//
// Where gates are so strong that 2^-b would leave the range (100 bits since the chunk began), the rows
// from there on get their scores from factors that never exceed one (prepare.cuh, "strong chunks").
#pragma once

#include "sm90/gla/load.cuh"
#include "sm90/gla/math.cuh"
#include "sm90/gla/pair.cuh"
#include "sm90/gla/prepare.cuh"

#if SLUICE_PAIRED || (SLUICE_KEY_PARTS > 1 && !SLUICE_STATE_ONLY)
#define SLUICE_CLUSTER __cluster_dims__(2)
#else
#define SLUICE_CLUSTER
#endif

extern "C" __global__ void SLUICE_CLUSTER __launch_bounds__(sluice::gla::Config::kThreads, 1)
    sluice_gla(const __grid_constant__ sluice::gla::Params p) {
    using namespace sluice::gla;
    // Not aligned by arithmetic: the compiler would no longer know that it is shared memory.
    extern __shared__ __align__(1024) unsigned char raw[];
    Storage& s = *reinterpret_cast<Storage*>(raw);
    if (threadIdx.x == 0) {
        if (sluice::tile::shared_address(raw) % 1024 != 0) __trap();
        constexpr u32 kMathArrivals = Config::kMathThreads / 32 * kWarpArrivals;
        for (int i = 0; i < Config::kStages; ++i) {
            s.stage_full[i].init(1);
            s.stage_empty[i].init(Config::kPaired && is_own(i) ? 2 * kMathArrivals : kMathArrivals);
        }
        for (int i = 0; i < Config::kTeams * Config::kSlots; ++i) {
            s.slot_full[i].init(is_own(i) ? Config::kTeamThreads / 32 * kWarpArrivals : 1);
            s.slot_empty[i].init(kMathArrivals);
        }
        for (Barrier& totals : s.totals_full) totals.init(Config::kTeamThreads / 32 * kWarpArrivals);
        if constexpr (Config::kPaired) {
            for (Barrier& rows : s.rows_full) rows.init(Config::kTeamThreads / 32 * kWarpArrivals);
            s.gates_empty.init(Config::kTeamThreads / 32 * kWarpArrivals);
            s.other_done.init(kMathArrivals);
        }
        if constexpr (Config::kClustered) {
            for (Exchange& x : s.exchange) {
                x.full.init(1);
                x.empty.init(1);
            }
        }
        fence_barrier_init();
        s.task = decode_task(p);
    }
    __syncthreads();
    constexpr bool kInCluster = Config::kClustered || Config::kPaired;
    if constexpr (kInCluster) cluster_barrier();  // the other's barriers are ready
    if constexpr (Config::kStateOnly) sluice::tile::allow_next_launch();
    if (threadIdx.x < Config::kPrepareThreads) {
        set_registers<Config::kPrepareRegisters, Config::kLaunchRegisters>();
        prepare_warpgroup(p, s);
    } else if (threadIdx.x < Config::kPrepareThreads + Config::kMathThreads) {
        set_registers<Config::kMathRegisters, Config::kLaunchRegisters>();
        math_warpgroup(p, s);
    } else if constexpr (Config::kLoadRole) {
        set_registers<Config::kLoadRegisters, Config::kLaunchRegisters>();
        if (threadIdx.x % 128 == 0) load_all(p, s);
        if (Config::kPaired && threadIdx.x % 128 == 32) send_all(s);
        __syncwarp();
    }
    if constexpr (kInCluster) cluster_barrier();  // until then the other may write here
}
