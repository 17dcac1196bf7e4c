// What the roles share: a block's shared memory, and what the block works on.
#pragma once

#include "sm90/common/state.cuh"
#include "sm90/scalar/config.cuh"
#include "sm90/scalar/params.cuh"
#include "tile/ptx.cuh"

namespace sluice::scalar {

using namespace tile;

constexpr int kSharedBytes = 227 * 1024;  // of a block

/// Named barriers; 0 is __syncthreads.
enum NamedBarrier : u32 { kScoreBarrier = 1 };

/// Two neighbours of an input or of o, as they are in memory.
__device__ inline float low_input(u32 pair) {
    return Config::kInput == Input::kBFloat16 ? low_bf16(pair) : low_fp16(pair);
}
__device__ inline float high_input(u32 pair) {
    return Config::kInput == Input::kBFloat16 ? high_bf16(pair) : high_fp16(pair);
}
__device__ inline u32 pack_output(float low, float high) {
    return Config::kInput == Input::kBFloat16 ? pack_bf16(low, high) : pack_fp16(low, high);
}

/// The inputs of a chunk, as bulk copies lay them: boxes of 64 tokens x 128 bytes, swizzled. Of fp16
/// inputs the scores role turns q and k into bf16.
struct alignas(1024) Stage {
    unsigned char k[Config::kKeyBytes];
    unsigned char v[Config::kValueBoxes][Config::kBoxBytes];
    unsigned char q[Config::kStateOnly ? 1024 : Config::kKeyBytes];  // 1,024: never empty
};

/// A number per token, in the order of a product's columns: a thread has tokens 8 n + 2 q and the
/// next one, q = lane % 4, for all n. They are neighbours here, and the four q are in different
/// banks.
struct alignas(16) Columns {
    static constexpr int kStride = Config::kChunk / 4 + 4;
    float number[4 * kStride];

    __device__ void set(int pair, float2 x) {  // tokens 2 pair, 2 pair + 1
        *reinterpret_cast<float2*>(number + pair % 4 * kStride + pair / 4 * 2) = x;
    }
    /// Four of the thread's: those of tokens [16 n, 16 n + 16), in order.
    __device__ float4 four(int lane, int n) const {
        return reinterpret_cast<const float4*>(number + lane % 4 * kStride)[n];
    }
    /// The thread's sixteen: token 8 n + 2 q + e at 2 n + e.
    __device__ void get(int lane, float (&x)[16]) const {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const float4 numbers = four(lane, n);
            x[4 * n] = numbers.x;
            x[4 * n + 1] = numbers.y;
            x[4 * n + 2] = numbers.z;
            x[4 * n + 3] = numbers.w;
        }
    }
};

/// Bits that a row's and a value's factor may take apart, on either side of 1: 2^80 leaves values and
/// keys 47 bits of float32's and bfloat16's range.
constexpr float kRange = 80.f;
constexpr float kLowered = 0x1p-80f;  // what a state is scaled by in a lifted chunk

/// What a chunk's gates come to, for one head. b: bits decayed since the chunk began, a token's own
/// decay included; w: the weight of its value. A chunk is lifted if it decays by more than kRange: its
/// factors then reach from 2^-kRange to 2^kRange (lift = kRange, else 0). It is strong if that is not
/// enough either (below -2 kRange).
struct HeadGates {
    Columns value;  // w 2^(-max(b, -2 kRange) - lift): what values are scaled by
    Columns row;    // scale 2^(max(b, -2 kRange) + lift): what all of a token's output is scaled by
    Columns rest;   // strong, first launch: w 2^(b_last - b), for the leaving state
    Columns shift;  // min(b + 2 kRange, 0): strong scores take 2^(shift_i - shift_j)
    float row_shift[Config::kChunk];  // the same numbers in the order of tokens
    float decay;                      // 2^(b_last + lift): of the state that has been lifted
};

/// A chunk's scores, rows of 64 columns (128 bytes, swizzled), on their way to math: one tile for all
/// heads, or one for each if any head's gates are strong.
struct alignas(1024) Slot {
    unsigned char scores[Config::kHeads][Config::kStateOnly ? 1024 : Config::kBoxBytes];
};

/// A math warpgroup's O of a chunk on its way out: 64 tokens x 64 values. With gated outputs the
/// tile holds z until O is written over it. The second of two halves of the key channels has its part
/// of O^T there, as float32, on the way to the first.
struct alignas(1024) Output {
    unsigned char tile[Config::kOutputs][Config::kStateOnly ? 1024 : Config::kBoxBytes];
};

/// What a block of threads works on.
struct Task {
    int sequence, key_head, head, heads;  // value heads [head, head + heads)
    int value_tile, segment;
    int batch;        // coordinate of the tensor maps
    long long begin;  // first token of the sequence
    int length;       // tokens of the sequence
    int first, end;   // chunks of the segment
    bool packed;
};

/// How a chunk of each head decays.
enum Reach : int { kPlain, kLifted, kStrong };
struct alignas(8) Reaches {
    int head[2];
    __device__ bool any_strong() const {
        return head[0] == kStrong || (Config::kHeads > 1 && head[1] == kStrong);
    }
    // Not by index: registers have none.
    __device__ int of(int local) const { return Config::kHeads > 1 && local > 0 ? head[1] : head[0]; }
};

struct Storage {
    Stage stage[Config::kStages];
    Output output[Config::kMathGroups];
    Slot slot[Config::kSlots];
    HeadGates gates[Config::kStages][Config::kHeads];
    Reaches reaches[Config::kStages];
    Task task;
    Barrier stage_full[Config::kStages], stage_empty[Config::kStages];
    Barrier slot_full[Config::kSlots], slot_empty[Config::kSlots];
    Barrier output_full[Config::kMathGroups][Config::kOutputs];
    Barrier output_empty[Config::kMathGroups][Config::kOutputs];  // gated outputs: z is there
};
static_assert(sizeof(Storage) <= kSharedBytes);

/// The same number in all lanes, and known to be: what is computed from it fits uniform registers.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

/// Segments that a launch has: the last one's own state is nobody's start.
__device__ inline int launched_segments(const Params& p) {
    return Config::kStateOnly ? p.segments - 1 : p.segments;
}

__device__ inline Task decode_task(const Params& p) {
    Task task;
    u32 x = blockIdx.x;  // 32 bits: a division of 64 takes a hundred nanoseconds
    const auto digit = [&](u32 base) {
        const u32 d = x % base;
        x /= base;
        return static_cast<int>(d);
    };
    task.value_tile = digit(p.value_tiles);
    task.segment = digit(launched_segments(p));
    const int head = digit(p.head_blocks) * Config::kHeads;
    task.heads = min(p.heads_per_key_head - head, Config::kHeads);
    task.key_head = digit(p.heads / p.heads_per_key_head);
    task.head = task.key_head * p.heads_per_key_head + head;
    task.sequence = static_cast<int>(x);
    task.packed = p.cu_seqlens.data != nullptr;
    long long end = p.tokens;
    task.begin = 0;
    task.batch = task.sequence;
    if (task.packed) {
        // Clamped: offsets that nobody validated may give wrong numbers, not wrong accesses.
        const auto clamp = [&](long long v) { return min(max(v, 0ll), (long long)p.tokens); };
        task.begin = clamp(load_index(p.cu_seqlens, task.sequence));
        end = clamp(load_index(p.cu_seqlens, task.sequence + 1));
        task.batch = 0;
    }
    task.length = static_cast<int>(max(end - task.begin, 0ll));
    const int chunks = (task.length + Config::kChunk - 1) / Config::kChunk;
    const int per_segment = (chunks + p.segments - 1) / p.segments;
    task.first = min(task.segment * per_segment, chunks);
    task.end = min(task.first + per_segment, chunks);
    return task;
}

}  // namespace sluice::scalar
