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
//
//   role      threads              does
//   load      one warp             q, k, v, g of a chunk by bulk copies, kStages chunks ahead
//   prepare   one warpgroup per    running sums of gates; q~ and k~ over q and k; the scores A.
//             64 key channels      Teams take chunks in turn
//   math      one warpgroup per    S^T (64 x K, float32 registers) and O^T; stores O
//             64 value channels
//
// Where gates are so strong that 2^-b would leave the range (100 bits since the chunk began), the rows
// from there on get their scores from factors that never exceed one (prepare.cuh, "strong chunks").
#pragma once

#include "sm90/gla/math.cuh"
#include "sm90/gla/prepare.cuh"

namespace sluice::gla {

__device__ inline void load_thread(const Params& p, const Task& task, Storage& s) {
    const int key_head = task.head / p.heads_per_key_head;
    for (int chunk = task.first; chunk < task.end; ++chunk) {
        const int i = chunk - task.first;
        const int stage = i % Config::kStages;
        s.stage_empty[stage].wait((i / Config::kStages + 1) & 1);
        Barrier& full = s.stage_full[stage];
        full.arrive_expect(Config::kStageBytes);
        const int token = static_cast<int>(task.begin) + chunk * Config::kChunk;
        constexpr int kGateChannels = Config::kGate == GateType::kFloat32 ? 32 : 64;
#pragma unroll
        for (int c = 0; c < Config::kKeys; c += kGateChannels) {
            load_box(s.stage[stage].g + c / kGateChannels * Config::kBoxBytes,
                     reinterpret_cast<const TensorMap*>(&p.g), full, c, task.head, token,
                     task.batch);
        }
#pragma unroll
        for (int c = 0; c < Config::kKeys; c += 64) {
            load_box(s.stage[stage].k + c / 64 * Config::kBoxBytes,
                     reinterpret_cast<const TensorMap*>(&p.k), full, c, key_head, token, task.batch);
            if constexpr (!Config::kStateOnly) {
                load_box(s.stage[stage].q + c / 64 * Config::kBoxBytes,
                         reinterpret_cast<const TensorMap*>(&p.q), full, c, key_head, token,
                         task.batch);
            }
        }
#pragma unroll
        for (int m = 0; m < Config::kMathGroups; ++m) {
            load_box(s.stage[stage].v + m * Config::kBoxBytes, reinterpret_cast<const TensorMap*>(&p.v),
                     full, task.value_tile * Config::kValueTile + m * 64, task.head, token,
                     task.batch);
        }
    }
}

}  // namespace sluice::gla

extern "C" __global__ void __launch_bounds__(sluice::gla::Config::kThreads, 1)
    sluice_gla(const __grid_constant__ sluice::gla::Params p) {
    using namespace sluice::gla;
    extern __shared__ unsigned char raw[];
    Storage& s = *reinterpret_cast<Storage*>(
        (reinterpret_cast<unsigned long long>(raw) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Config::kStages; ++i) {
            s.stage_full[i].init(1);
            s.stage_empty[i].init(Config::kMathThreads / 32);
        }
        for (int i = 0; i < Config::kTeams * Config::kSlots; ++i) {
            s.slot_full[i].init(Config::kTeamThreads / 32);
            s.slot_empty[i].init(Config::kMathThreads / 32);
        }
        fence_barrier_init();
    }
    __syncthreads();
    const Task task = decode_task(p);
    if (threadIdx.x < Config::kPrepareThreads) {
        set_registers<Config::kPrepareRegisters, Config::kLaunchRegisters>();
        prepare_warpgroup(p, task, s);
    } else if (threadIdx.x < Config::kPrepareThreads + Config::kMathThreads) {
        set_registers<Config::kMathRegisters, Config::kLaunchRegisters>();
        math_warpgroup(p, task, s);
    } else {
        set_registers<Config::kLoadRegisters, Config::kLaunchRegisters>();
        if (threadIdx.x % 128 == 0) load_thread(p, task, s);
    }
}
