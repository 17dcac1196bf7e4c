// Normalised outputs, of recurrences without a decay: o_t is divided by scale q_t . n_t + 1e-10,
// n_t the sum of the keys up to t.
//
// With n the sum before a chunk, q_i . n_i is q_i . n and the sum of row i of the chunk's scores: a
// factor of the row, as every policy has one. All of it is in float32, and of keys and scores that
// have not been rounded: where the divisor is a small difference, its error must not be that of
// bf16 operands. By the threads of the scores role, while its product runs.
#pragma once

#include "sm90/scalar/storage.cuh"

namespace sluice::scalar {

constexpr float kNormalizerEpsilon = 1e-10f;

/// The eight channels from 8 `eight` on of a token's query or key, as bulk copies lay them; zeros
/// if the token does not exist.
__device__ inline void load_eight(u32 boxes, int token, int eight, bool exists, float (&x)[8]) {
    const int place = token * 128 + ((eight % 8 ^ (token & 7)) << 4);
    const float4 bits = load_shared_four(boxes + eight / 8 * Config::kBoxBytes + place);
    const float pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 pair = exists ? __float_as_uint(pairs[i]) : 0;
        x[2 * i] = low_input(pair);
        x[2 * i + 1] = high_input(pair);
    }
}

/// Neighbouring lanes add up kCount sums each: a lane gets those of kOwn, from `exchanged` on.
/// Halves of them change lanes, so that there are fewer at each step.
template <int kCount, int kOwn>
__device__ inline void exchange_sums(float (&sum)[kCount], int thread) {
#pragma unroll
    for (int count = kCount / 2, step = 1; count >= kOwn; count /= 2, step *= 2) {
        const bool upper = (thread & step) != 0;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float other = __shfl_xor_sync(~0u, upper ? sum[i] : sum[i + count], step);
            sum[i] = (upper ? sum[i + count] : sum[i]) + other;
        }
    }
}
template <int kCount, int kOwn = 1>
__device__ inline int exchanged(int thread) {
    int first = 0;
#pragma unroll
    for (int count = kCount / 2, step = 1; count >= kOwn; count /= 2, step *= 2) {
        if (thread & step) first += count;
    }
    return first;
}

/// A sum of keys, spread over the threads of the role: kLanes threads add up the tokens of eight
/// channels, and each then has kOwn channels of the sum.
struct KeySum {
    static constexpr int kLanes = 8 * Config::kScoreThreads / Config::kKeys;
    static constexpr int kOwn = kLanes < 8 ? 8 / kLanes : 1;
    static_assert(kLanes <= 32 && kOwn * kLanes >= 8);

    float own[kOwn] = {};

    /// First of the thread's channels. Of more lanes than channels the last ones repeat the others.
    __device__ static int channel(int thread) {
        return thread / kLanes * 8 + exchanged<8, kOwn>(thread);
    }

    /// Adds a chunk's keys, of `valid` tokens.
    __device__ void add(const unsigned char* keys, int valid, int thread) {
        const u32 boxes = shared_address(keys);
        float sum[8] = {};
#pragma unroll 8  // reads of shared memory in flight
        for (int n = 0; n < Config::kChunk / kLanes; ++n) {
            const int token = n * kLanes + thread % kLanes;
            float x[8];
            load_eight(boxes, token, thread / kLanes, token < valid, x);
#pragma unroll
            for (int c = 0; c < 8; ++c) sum[c] += x[c];
        }
        exchange_sums<8, kOwn>(sum, thread);
#pragma unroll
        for (int step = 8; step < kLanes; step *= 2) sum[0] += __shfl_xor_sync(~0u, sum[0], step);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) own[i] += sum[i];
    }
};

// ---- from and to memory -------------------------------------------------------------------------

__device__ inline long long key_sum_row(const Params& p, const Task& task, int head) {
    return static_cast<long long>(task.sequence) * p.heads + head;
}

/// Where a head's sum is in a tensor of states.
__device__ inline long long key_sum_at(const StateTensor& tensor, long long slot, int head) {
    return slot * tensor.slot_stride + head * tensor.head_stride;
}

__device__ inline float load_initial_key_sum(const Params& p, const Task& task, int head, int key) {
    const StateTensor& from = p.initial_key_sum;
    const long long slot = initial_slot(p, from, task.sequence);
    if (slot < 0) return 0.f;
    const long long at =
        key_sum_at(from, slot, head) + static_cast<long long>(key) * from.key_stride;
    return load_number(from.data, at, from.type);
}

/// First launch: a block for each head keeps its initial sum for the second, which may overwrite it
/// (updated in place) before all of its blocks have begun.
__device__ inline void keep_key_sum(const Params& p, const Task& task) {
    const int head = task.head + task.sharer;
    float* to = p.kept_key_sum + key_sum_row(p, task, head) * p.keys;
    for (int key = static_cast<int>(threadIdx.x); key < p.keys; key += Config::kThreads) {
        to[key] = load_initial_key_sum(p, task, head, key);
    }
}

/// First launch: the part's own sum.
__device__ inline void store_part(const Params& p, const Task& task, const KeySum& sum,
                                     int thread) {
    if (task.value_tile != 0) return;
    const long long row = key_sum_row(p, task, task.head) * parts_of(p) + task.part;
    float* to = p.part_key_sum + row * p.keys;
#pragma unroll
    for (int n = 0; n < KeySum::kOwn; ++n) {
        const int key = KeySum::channel(thread) + n;
        if (key < p.keys) to[key] = sum.own[n];
    }
}

// ---- outputs ------------------------------------------------------------------------------------
// The sum before a chunk is in shared memory alone, and so are factors of rows on their way: the
// role has no registers for them.

/// The sum that the task starts from: the sequence's, then the earlier segments' parts in order.
/// Channels that do not exist are zero.
__device__ inline void start_key_sum(const Params& p, Storage& s, int thread) {
    const Task& task = s.task;
    const long long row = key_sum_row(p, task, task.head);
    wait_for_previous_launch();
    for (int key = thread; key < Config::kKeys; key += Config::kScoreThreads) {
        float sum = 0.f;
        if (key < p.keys) {
            sum = p.kept_key_sum != nullptr ? p.kept_key_sum[row * p.keys + key]
                                            : load_initial_key_sum(p, task, task.head, key);
#pragma unroll 4
            for (int part = 0; part < task.segment * p.parts; ++part) {
                sum += p.part_key_sum[(row * parts_of(p) + part) * p.keys + key];
            }
        }
        s.key_sum(0)[key] = sum;
    }
}

/// q . n of the warp's sixteen queries into `rows`. Eight lanes have a part of the channels each,
/// of four queries.
__device__ inline void read_key_sum(const unsigned char* queries, const float* key_sum,
                                    Columns& rows, int thread) {
    constexpr int kEights = Config::kKeys / 64;  // of a lane
    const u32 boxes = shared_address(queries), sums = shared_address(key_sum);
    const int first = thread / 32 * 16 + thread % 32 / 8;  // and every fourth from there
    float sum[4] = {};
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
        const int eight = n * 8 + thread % 8;
        const float4 low = load_shared_four(sums + eight * 32);
        const float4 high = load_shared_four(sums + eight * 32 + 16);
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            float q[8];
            load_eight(boxes, first + 4 * row, eight, true, q);
            float& x = sum[row];
            x = fmaf(q[3], low.w, fmaf(q[2], low.z, fmaf(q[1], low.y, fmaf(q[0], low.x, x))));
            x = fmaf(q[7], high.w, fmaf(q[6], high.z, fmaf(q[5], high.y, fmaf(q[4], high.x, x))));
        }
    }
    exchange_sums<4, 1>(sum, thread);
    sum[0] += __shfl_xor_sync(~0u, sum[0], 4);
    if (thread % 8 < 4) rows.at(first + 4 * exchanged<4>(thread)) = sum[0];
}

/// The i-th chunk: q . n into the places of its rows' factors, then n with the chunk's keys into
/// the next one's.
__device__ inline void take_chunk(Storage& s, int i, int valid, int thread) {
    const int stage = i % Config::kStages;
    named_barrier(kScoreBarrier, Config::kScoreThreads);  // n is there, from every thread
    read_key_sum(s.stage[stage].q, s.key_sum(i), s.gates[stage][0].row, thread);
    KeySum sum;
    sum.add(s.stage[stage].k, valid, thread);
#pragma unroll
    for (int n = 0; n < KeySum::kOwn; ++n) {
        const int key = KeySum::channel(thread) + n;
        s.key_sum(i + 1)[key] = s.key_sum(i)[key] + sum.own[n];
    }
}

/// The factors of rows, from q . n in their places and from what the thread's scores of its rows,
/// lane / 4 and lane / 4 + 8, come to.
__device__ inline void store_divisors(Columns& rows, float2 sum, float scale, int thread) {
    const int lane = thread % 32;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        sum.x += __shfl_xor_sync(~0u, sum.x, step);
        sum.y += __shfl_xor_sync(~0u, sum.y, step);
    }
    const float above = __shfl_sync(~0u, sum.x, lane % 8 * 4);
    const float below = __shfl_sync(~0u, sum.y, lane % 8 * 4);
    __syncwarp();  // other lanes have written q . n
    if (lane >= 16) return;
    float& row = rows.at(thread / 32 * 16 + lane);
    row = scale / (scale * (row + (lane < 8 ? above : below)) + kNormalizerEpsilon);
}

/// After the last of a sequence's chunks, of which the task had `chunks`.
__device__ inline void store_final_key_sum(const Params& p, Storage& s, int chunks, int thread) {
    const Task& task = s.task;
    const StateTensor& to = p.final_key_sum;
    const long long slot = slot_at(to, task.sequence);
    if (slot < 0 || task.value_tile != 0 || task.segment != p.segments - 1) return;
    named_barrier(kScoreBarrier, Config::kScoreThreads);
    const int bytes = to.type == kFloat32 ? 4 : 2;
    for (int key = thread; key < p.keys; key += Config::kScoreThreads) {
        const long long at =
            key_sum_at(to, slot, task.head) + static_cast<long long>(key) * to.key_stride;
        store_predicated(static_cast<char*>(to.data) + at * bytes,
                         bits_of(s.key_sum(chunks)[key], to.type), bytes == 4, bytes == 2);
    }
}

}  // namespace sluice::scalar
