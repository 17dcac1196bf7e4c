// The scores role: Q K^T, once for all heads of the block, or in a first launch once for all blocks
// of a key head.
#pragma once

#include "sm90/scalar/normalizer.cuh"

namespace sluice::scalar {

/// Rows from `valid` on of a tile belong to another sequence: zero. Bulk copies do not stop there,
/// and zero times whatever it holds may be NaN.
__device__ inline void clear_rows(unsigned char* boxes, int bytes, int valid, int thread) {
#pragma unroll 1
    for (int i = thread * 16; i < bytes; i += Config::kTidyThreads * 16) {
        if (i % Config::kBoxBytes / 128 >= valid) {
            *reinterpret_cast<uint4*>(boxes + i) = make_uint4(0, 0, 0, 0);
        }
    }
}

/// The same of a chunk's keys and values.
__device__ inline void clear_chunk(Stage& stage, int valid, int thread) {
    if (valid >= Config::kChunk) return;
    clear_rows(stage.k, sizeof stage.k, valid, thread);
    clear_rows(stage.v[0], sizeof stage.v, valid, thread);
}

/// To math: the role is done with a chunk.
__device__ inline void release_slot(Storage& s, int slot) {
    fence_async_proxy();
    s.slot_full[slot].arrive_warp();
}

/// fp16 becomes bf16, in place; a batch of reads in flight before the first write.
__device__ inline void convert_boxes(unsigned char* boxes, int bytes, int thread) {
    constexpr int kBatch = 4;
    constexpr int kStep = Config::kTidyThreads * 16;
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
__device__ inline void multiply_keys(const unsigned char* queries, const unsigned char* keys,
                                     float (&scores)[32]) {
    product_begin();
    const u64 q = operand(queries);
    const u64 k = operand(keys);
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

/// Where a lane's row of four 8 x 8 matrices lies in a swizzled tile of scores: the warp's sixteen
/// rows, columns [0, 16). Columns 16 n further on: `columns(n)`.
struct TileRow {
    u32 row;
    int swizzle;
    __device__ TileRow(const unsigned char* tile, int thread) {
        const int lane = thread % 32;
        const int matrix_row = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
        row = shared_address(tile) + matrix_row * 128;
        swizzle = lane / 16 ^ (matrix_row & 7);
    }
    __device__ u32 columns(int n) const { return row + ((n * 2 ^ swizzle) << 4); }
};

/// The scores of queries and keys no later than they, as bf16. A warp writes its rows up to the
/// block of 16 columns that the diagonal crosses; beyond it the tile is zero already. Returns what
/// the thread's scores of its two rows, before they are rounded, add up to (normalised outputs).
__device__ inline float2 store_scores(const float (&scores)[32], unsigned char* to, int thread) {
    const int warp = thread / 32;
    const int lane = thread % 32;
    const TileRow at(to, thread);
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        if (n > warp) break;
        float a[8];
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            const int i = lane / 4 + r / 2 % 2 * 8;
            const int j = r / 4 * 8 + lane % 4 * 2 + r % 2;
            a[r] = n == warp && j > i ? 0.f : scores[n * 8 + r];
        }
        store_matrices(at.columns(n), pack_bf16(a[0], a[1]), pack_bf16(a[2], a[3]),
                       pack_bf16(a[4], a[5]), pack_bf16(a[6], a[7]));
        if constexpr (Config::kNormalized) {
            sum.x += (a[0] + a[1]) + (a[4] + a[5]);
            sum.y += (a[2] + a[3]) + (a[6] + a[7]);
        }
    }
    return sum;
}

/// A strong head's tile of the scores in `from` (which may be the same): a factor that is 1 where a
/// row and its values have all of the decay between them in their own factors. A thread reads and
/// writes the same elements.
__device__ inline void weaken_scores(const HeadGates& gates, const unsigned char* from,
                                     unsigned char* to, int thread) {
    const int warp = thread / 32;
    const int lane = thread % 32;
    const float above = gates.row_shift[warp * 16 + lane / 4];
    const float below = gates.row_shift[warp * 16 + lane / 4 + 8];
    const TileRow source(from, thread);
    const TileRow target(to, thread);
    __syncwarp();  // other lanes may have written what this one reads
#pragma unroll 1
    for (int n = 0; n <= warp; ++n) {
        u32 a[4];
        load_matrices(source.columns(n), a);
        const float4 c = gates.shift.four(lane, n);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const float row = r % 2 ? below : above;
            // Beyond the diagonal the score is 0, and its factor must not be infinite.
            a[r] = pack_bf16(low_bf16(a[r]) * exp2_fast(fminf(row - (r < 2 ? c.x : c.z), 0.f)),
                             high_bf16(a[r]) * exp2_fast(fminf(row - (r < 2 ? c.y : c.w), 0.f)));
        }
        store_matrices(target.columns(n), a[0], a[1], a[2], a[3]);
    }
}

// ---- shared scores -----------------------------------------------------------------------------

__device__ inline void load_pair(const Params& p, Storage& s, int chunk, int pair) {
    const Task& task = s.task;
    Barrier& full = s.pair_full[pair];
    full.arrive_expect(2 * Config::kKeyBytes);
    const int token = static_cast<int>(task.begin) + chunk * Config::kChunk;
    load_keys(s.pair[pair].q, p.q, task, token, full);
    load_keys(s.pair[pair].k, p.k, task, token, full);
}

/// All that a block of shared scores does, by one warpgroup: every score_blocks-th chunk of a
/// sequence. Rows and columns of tokens that the sequence does not have hold anything: rows nobody
/// stores, and columns that are masked for all other rows.
__device__ inline void share_scores(const Params& p, Storage& s) {
    const Task& task = s.task;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= Config::kScoreThreads) return;
    const int chunks = (task.length + Config::kChunk - 1) / Config::kChunk;
    const auto load = [&](int chunk, int pair) {
        if (thread == 0 && chunk < chunks) load_pair(p, s, chunk, pair);
    };
    for (int i = 0; i < Config::kPairs; ++i) {
        load(task.sharer + i * p.score_blocks, i);
        if (thread < Config::kTidyThreads) {
            clear_rows(s.pair[i].scores, sizeof s.pair[i].scores, 0, thread);
        }
    }
    named_barrier(kScoreBarrier, Config::kScoreThreads);
    int done = 0;
    for (int chunk = task.sharer; chunk < chunks; chunk += p.score_blocks, ++done) {
        const int turn = done % Config::kPairs;
        Pair& pair = s.pair[turn];
        s.pair_full[turn].wait(done / Config::kPairs & 1);
        float scores[32];
        multiply_keys(pair.q, pair.k, scores);
        if (thread == 0) wait_stores_read<Config::kPairs - 1>();  // of this tile
        product_wait<0>();
        keep(scores);
        named_barrier(kScoreBarrier, Config::kScoreThreads);  // every warp's product has read
        load(chunk + Config::kPairs * p.score_blocks, turn);
        (void)store_scores(scores, pair.scores, thread);
        fence_async_proxy();
        named_barrier(kScoreBarrier, Config::kScoreThreads);
        if (thread == 0) {
            store_bytes(shared_scores(p, task, chunk), pair.scores, Config::kBoxBytes);
            commit_stores();
        }
    }
    if (thread == 0) wait_stores();
}

// ---- the role ----------------------------------------------------------------------------------

__device__ inline void serve_outputs(const Params& p, Storage& s) {
    const Task& task = s.task;
    const auto thread_here = [] { return thread_anew() - Config::kMathThreads; };
    for (Slot& slot : s.slot) clear_rows(slot.scores[0], sizeof slot.scores, 0, thread_here());
    named_barrier(kScoreBarrier, Config::kScoreThreads);
    if constexpr (Config::kNormalized) start_key_sum(p, s, thread_here());
    int turn = 0;  // chunks that had a slot
    for (int chunk = task.first; chunk < task.end; ++chunk) {
        const int i = chunk - task.first;
        const int slot = turn % Config::kSlots;
        const int slot_parity = (turn / Config::kSlots + 1) & 1;
        Stage& stage = s.stage[i % Config::kStages];
        const HeadGates* gates = s.gates[i % Config::kStages];
        const int valid = task.length - chunk * Config::kChunk;
        const int thread = thread_here();
        s.stage_full[i % Config::kStages].wait(i / Config::kStages & 1);
        clear_chunk(stage, valid, thread);
        const Reaches reaches = Config::kNormalized ? Reaches{} : s.reaches[i % Config::kStages];
        if constexpr (Config::kLoadsScores) {
            if (has_slot(reaches, valid < Config::kChunk)) s.slot_empty[slot].wait(slot_parity);
        } else {
            float scores[32];
            multiply_keys(stage.q, stage.k, scores);
            if constexpr (Config::kNormalized) take_chunk(s, i, valid, thread);
            s.slot_empty[slot].wait(slot_parity);
            product_wait<0>();
            keep(scores);
            if constexpr (Config::kConverted) {
                // Every warp's product has read.
                named_barrier(kScoreBarrier, Config::kScoreThreads);
                convert_boxes(stage.q, sizeof stage.q, thread);
                convert_boxes(stage.k, sizeof stage.k, thread);
            }
            const float2 sum = store_scores(scores, s.slot[slot].scores[0], thread);
            if constexpr (Config::kNormalized) {
                store_divisors(s.gates[i % Config::kStages][0].row, sum, p.scale, thread);
            }
        }
        const unsigned char* from = Config::kLoadsScores ? stage.scores : s.slot[slot].scores[0];
#pragma unroll 1
        for (int h = Config::kHeads - 1; h >= 0; --h) {  // the first may be in place
            if (reaches.of(h) != kStrong) continue;
            weaken_scores(gates[h], from, scores_tile(s, reaches, h, i % Config::kStages, slot),
                          thread);
        }
        if (has_slot(reaches, valid < Config::kChunk)) {
            release_slot(s, slot);
            ++turn;
        }
        if constexpr (Config::kLoadsScores) s.stage_empty[i % Config::kStages].arrive_warp();
    }
    if constexpr (Config::kNormalized) {
        store_final_key_sum(p, s, task.end - task.first, thread_here());
    }
}

/// The first launch's chunks: those that need it.
__device__ inline void tidy_chunks(const Params& p, Storage& s, int thread) {
    const Task& task = s.task;
    KeySum sum;
    for (int i = 0; i < task.end - task.first; ++i) {
        if (!is_tidied(task, i)) break;
        const int stage = i % Config::kStages;
        const int valid = task.length - task.chunk(i) * Config::kChunk;
        s.stage_full[stage].wait(i / Config::kStages & 1);
        clear_chunk(s.stage[stage], valid, thread);
        if constexpr (Config::kNormalized) {
            // Others clear rows that are read here, for nothing.
            if (valid < Config::kChunk) named_barrier(kScoreBarrier, Config::kTidyThreads);
            sum.add(s.stage[stage].k, valid, thread);
            // Every warp has read.
            if constexpr (Config::kConverted) named_barrier(kScoreBarrier, Config::kTidyThreads);
        }
        if constexpr (Config::kConverted) {
            convert_boxes(s.stage[stage].k, sizeof s.stage[stage].k, thread);
        }
        release_slot(s, stage);
    }
    if constexpr (Config::kNormalized) store_part(p, task, sum, thread);
}

}  // namespace sluice::scalar
