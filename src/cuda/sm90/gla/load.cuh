// The load role: bulk copies of the chunks' inputs.
#pragma once

#include "sm90/gla/storage.cuh"

namespace sluice::gla {

/// The i-th chunk into a stage that is free. A pair's block loads q, k and g of the chunks that
/// it prepares; of the others it is given what they become.
__device__ inline void load_stage(const Params& p, Storage& s, int i, int stage) {
    const Task& task = s.task;
    Barrier& full = s.stage_full[stage];
    const bool own = is_own(i);
    full.arrive_expect(own ? Config::kStageBytes : Config::kStageBytes - Config::kGateBytes);
    const int token = static_cast<int>(task.begin) + task.chunk(i) * Config::kChunk;
    const auto load = [&](unsigned char* to, const Map& map, int channel, int head) {
        load_box(to, reinterpret_cast<const TensorMap*>(&map), full, channel, head, token,
                 task.batch);
    };
    const auto load_gates = [&] {
        constexpr int kGateChannels = Config::kGate == GateType::kFloat32 ? 32 : 64;
#pragma unroll
        for (int c = 0; c < Config::kKeys; c += kGateChannels) {
            load(s.gates_of(stage) + c / kGateChannels * Config::kBoxBytes, p.g,
                 task.first_key() + c, task.head);
        }
    };
    if constexpr (!Config::kPaired) load_gates();
#pragma unroll
    for (int c = 0; own && c < Config::kKeys; c += 64) {
        load(s.stage[stage].k + c / 64 * Config::kBoxBytes, p.k, task.first_key() + c, task.key_head);
        if constexpr (!Config::kStateOnly) {
            load(s.stage[stage].q + c / 64 * Config::kBoxBytes, p.q, task.first_key() + c,
                 task.key_head);
        }
    }
#pragma unroll
    for (int m = 0; m < Config::kMathGroups; ++m) {
        load(s.stage[stage].v + m * Config::kBoxBytes, p.v,
             task.value_tile * Config::kValueTile + m * 64, task.head);
    }
    if constexpr (Config::kPaired) {  // one place for gates: the chunk before may still be using it
        if (!own) return;
        s.gates_empty.wait((i / Config::kTeams + 1) & 1);
        load_gates();
    }
}

/// The i-th chunk, once its stage is free.
__device__ inline void load_chunk(const Params& p, Storage& s, int i) {
    const int stage = i % Config::kStages;
    s.stage_empty[stage].wait((i / Config::kStages + 1) & 1);
    load_stage(p, s, i, static_cast<int>(opaque(stage)));
}

__device__ inline void load_all(const Params& p, Storage& s) {
    const int chunks = s.task.end - s.task.first;
    for (int i = 0; i < chunks; ++i) load_chunk(p, s, i);
}

}  // namespace sluice::gla
