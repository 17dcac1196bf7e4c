// The store role: one warp takes finished tiles of O to global memory.
#pragma once

#include "sm90/scalar/storage.cuh"

namespace sluice::scalar {

/// Where a math warpgroup's output belongs.
struct Destination {
    int head, value;
    bool exists;  // the last block of a key head may have a head too many
};

__device__ inline Destination destination_of(const Task& task, int group) {
    const int head = group / Config::kTiles;
    return {task.head + head, task.value_tile * Config::kValueTile + group % Config::kTiles * 64,
            head < task.heads};
}

/// The first rows of a tile: in packed input a bulk copy of a sequence's last rows would write into
/// the next sequence.
__device__ inline void store_rows(const Params& p, const Task& task, const Destination& to,
                                  const unsigned char* tile, int chunk, int rows) {
    const long long token = task.begin + static_cast<long long>(chunk) * Config::kChunk;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < rows * 8; i += 32) {
        const int row = i / 8;
        const int value = to.value + i % 8 * 8;
        if (value >= p.values) continue;
        const uint4 x =
            *reinterpret_cast<const uint4*>(tile + row * 128 + ((i % 8 ^ (row & 7)) << 4));
        u16* o = static_cast<u16*>(p.o_data) + (token + row) * p.o_token_stride +
                 to.head * p.o_head_stride + value;
        *reinterpret_cast<uint4*>(o) = x;
    }
}

/// The tile of a chunk is free: with gated outputs z goes there first.
__device__ inline void release_output(const Params& p, Storage& s, const Destination& to, int group,
                                      int i) {
    Barrier& barrier = s.output_empty[group][i % Config::kOutputs];
    if constexpr (Config::kGated) {
        const Task& task = s.task;
        barrier.arrive_expect(Config::kBoxBytes);
        load_box(s.output[group].tile[i % Config::kOutputs],
                 reinterpret_cast<const TensorMap*>(&p.z), barrier, to.value, to.head,
                 static_cast<int>(task.begin) + (task.first + i) * Config::kChunk, task.batch);
    } else {
        barrier.arrive();
    }
}

__device__ inline void store_warp(const Params& p, Storage& s) {
    const Task& task = s.task;
    const bool leads = threadIdx.x % 32 == 0;
    const int chunks = task.end - task.first;
    if (Config::kGated && leads) {
        for (int i = 0; i < min(chunks, Config::kOutputs); ++i) {
            for (int group = 0; group < Config::kValueBoxes; ++group) {
                release_output(p, s, destination_of(task, group), group, i);
            }
        }
    }
    for (int i = 0; i < chunks; ++i) {
        const int chunk = task.first + i;
        const int turn = i % Config::kOutputs;
        const int valid = task.length - chunk * Config::kChunk;
#pragma unroll 1
        for (int group = 0; group < Config::kValueBoxes; ++group) {
            const Destination to = destination_of(task, group);
            const unsigned char* tile = s.output[group].tile[turn];
            s.output_full[group][turn].wait(i / Config::kOutputs & 1);
            __syncwarp();  // every lane has seen it before one of them lets the tile go
            if (to.exists && task.packed && valid < Config::kChunk) {
                store_rows(p, task, to, tile, chunk, valid);
            } else if (to.exists && leads) {
                store_box(reinterpret_cast<const TensorMap*>(&p.o), tile, to.value, to.head,
                          static_cast<int>(task.begin) + chunk * Config::kChunk, task.batch);
                commit_stores();
            }
            if (!leads || i + Config::kOutputs >= chunks) continue;
            wait_stores_read<0>();
            release_output(p, s, to, group, i + Config::kOutputs);
        }
    }
    if (leads) wait_stores_read<0>();
}

}  // namespace sluice::scalar
