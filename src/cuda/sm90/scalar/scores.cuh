// The scores role: Q K^T, once for all heads of the block.
#pragma once

#include "sm90/scalar/storage.cuh"

namespace sluice::scalar {

/// Rows from `valid` on of a tile belong to another sequence: zero. Bulk copies do not stop there,
/// and zero times whatever it holds may be NaN.
__device__ inline void clear_rows(unsigned char* boxes, int bytes, int valid, int thread) {
#pragma unroll 1
    for (int i = thread * 16; i < bytes; i += Config::kScoreThreads * 16) {
        if (i % Config::kBoxBytes / 128 >= valid) {
            *reinterpret_cast<uint4*>(boxes + i) = make_uint4(0, 0, 0, 0);
        }
    }
}

/// fp16 becomes bf16, in place; a batch of reads in flight before the first write.
__device__ inline void convert_boxes(unsigned char* boxes, int bytes, int thread) {
    constexpr int kBatch = 4;
    constexpr int kStep = Config::kScoreThreads * 16;
    static_assert(Config::kBoxBytes % (kBatch * kStep) == 0);
    const auto convert = [](u32 x) { return pack_bf16(low_fp16(x), high_fp16(x)); };
    for (int i = thread * 16; i < bytes; i += kBatch * kStep) {
        uint4 x[kBatch];
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
            x[n] = *reinterpret_cast<const uint4*>(boxes + i + n * kStep);
        }
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
            *reinterpret_cast<uint4*>(boxes + i + n * kStep) =
                make_uint4(convert(x[n].x), convert(x[n].y), convert(x[n].z), convert(x[n].w));
        }
    }
}

/// Begins a chunk's Q K^T, rows of queries: register 4 n + e is row 16 warp + lane / 4 + 8 (e / 2)
/// and column 8 n + lane % 4 * 2 + e % 2.
__device__ inline void multiply_keys(const Stage& stage, float (&scores)[32]) {
    product_begin();
    const u64 q = operand(stage.q);
    const u64 k = operand(stage.k);
#pragma unroll
    for (int n = 0; n < Config::kKeys / 16; ++n) {
        const u32 at = n / 4 * Config::kBoxBytes + n % 4 * 32;
        if constexpr (Config::kInput == Input::kFloat16) {
            product_fp16<0, 0>(scores, advance(q, at), advance(k, at), n != 0);
        } else {
            product<0, 0>(scores, advance(q, at), advance(k, at), n != 0);
        }
    }
    product_commit();
}

/// The scores of queries and keys no later than they. A warp writes its rows up to the block of 16
/// columns that the diagonal crosses; beyond it the tile is zero already. Strong gates: a factor that
/// is 1 where a row and its values have all of the decay between them in their own factors.
template <bool kStrong>
__device__ inline void store_scores(const HeadGates& gates, const float (&scores)[32],
                                    unsigned char* to, int thread) {
    const int warp = thread / 32;
    const int lane = thread % 32;
    float shift[2] = {};
    if constexpr (kStrong) {
        shift[0] = gates.row_shift[warp * 16 + lane / 4];
        shift[1] = gates.row_shift[warp * 16 + lane / 4 + 8];
    }
    const int matrix_row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
    const u32 tile_row = shared_address(to) + matrix_row * 128;
    const int swizzle = lane / 16 ^ (matrix_row & 7);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        if (n > warp) break;
        float a[8];
#pragma unroll
        for (int r = 0; r < 8; ++r) a[r] = scores[n * 8 + r];
        if constexpr (kStrong) {
            const float4 c = gates.shift.four(lane, n);
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                const float column = r < 4 ? (r % 2 ? c.y : c.x) : (r % 2 ? c.w : c.z);
                a[r] *= exp2_fast(shift[r / 2 % 2] - column);
            }
        }
        if (n == warp) {
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                const int i = lane / 4 + r / 2 % 2 * 8;
                const int j = r / 4 * 8 + lane % 4 * 2 + r % 2;
                if (j > i) a[r] = 0.f;
            }
        }
        store_matrices(tile_row + ((n * 2 ^ swizzle) << 4), pack_bf16(a[0], a[1]),
                       pack_bf16(a[2], a[3]), pack_bf16(a[4], a[5]), pack_bf16(a[6], a[7]));
    }
}

__device__ inline void scores_warpgroup(Storage& s) {
    const Task& task = s.task;
    const int thread = static_cast<int>(threadIdx.x) - Config::kMathThreads;
    if constexpr (!Config::kStateOnly) {
        for (Slot& slot : s.slot) clear_rows(slot.scores[0], sizeof slot.scores, 0, thread);
        named_barrier(kScoreBarrier, Config::kScoreThreads);
    }
    for (int chunk = task.first; chunk < task.end; ++chunk) {
        const int i = chunk - task.first;
        const int slot = i % Config::kSlots;
        Stage& stage = s.stage[i % Config::kStages];
        const HeadGates* gates = s.gates[i % Config::kStages];
        const int valid = task.length - chunk * Config::kChunk;
        s.stage_full[i % Config::kStages].wait(i / Config::kStages & 1);
        if (valid < Config::kChunk) {
            clear_rows(stage.k, sizeof stage.k, valid, thread);
            clear_rows(stage.v[0], sizeof stage.v, valid, thread);
        }
        if constexpr (!Config::kStateOnly) {
            float scores[32];
            multiply_keys(stage, scores);
            s.slot_empty[slot].wait((i / Config::kSlots + 1) & 1);
            product_wait<0>();
            keep(scores);
            if constexpr (Config::kConverted) {
                named_barrier(kScoreBarrier, Config::kScoreThreads);  // every warp's product has read
                convert_boxes(stage.q, sizeof stage.q, thread);
                convert_boxes(stage.k, sizeof stage.k, thread);
            }
            const Reaches reaches = s.reaches[i % Config::kStages];
            const int tiles = reaches.any_strong() ? Config::kHeads : 1;
#pragma unroll 1
            for (int h = 0; h < tiles; ++h) {
                unsigned char* to = s.slot[slot].scores[h];
                if (reaches.of(h) == kStrong) {
                    store_scores<true>(gates[h], scores, to, thread);
                } else {
                    store_scores<false>(gates[h], scores, to, thread);
                }
            }
        } else {
            s.slot_empty[slot].wait((i / Config::kSlots + 1) & 1);
            if constexpr (Config::kConverted) convert_boxes(stage.k, sizeof stage.k, thread);
        }
        fence_async_proxy();
        __syncwarp();
        if (thread % 32 == 0) s.slot_full[slot].arrive();
    }
}

}  // namespace sluice::scalar
