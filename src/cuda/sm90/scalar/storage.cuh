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
enum NamedBarrier : u32 { kScoreBarrier = 1, kGateBarrier };

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

/// What a buffer takes that a configuration does not have: arrays are not empty.
constexpr int kNothing = 16;

/// The inputs of a chunk, as bulk copies lay them: boxes of 64 tokens x 128 bytes, swizzled. Of
/// fp16 inputs the scores role turns q and k into bf16.
struct alignas(1024) Stage {
    unsigned char k[Config::kKeyBytes];
    unsigned char v[Config::kValueBoxes][Config::kBoxBytes];
    unsigned char q[Config::kStateOnly ? kNothing : Config::kKeyBytes];
    unsigned char scores[Config::kLoadsScores ? Config::kBoxBytes : kNothing];
};

/// First launch: what shared scores are computed of, and a tile of them on its way out.
struct alignas(1024) Pair {
    unsigned char q[Config::kKeyBytes], k[Config::kKeyBytes];
    unsigned char scores[Config::kBoxBytes];
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
    __device__ float& at(int token) {
        return number[token / 2 % 4 * kStride + token / 8 * 2 + token % 2];
    }
    /// Four of the thread's: those of tokens [16 n, 16 n + 16), in order.
    __device__ float4 four(int lane, int n) const {
        return load_shared_four(shared_address(number) + lane % 4 * (kStride * 4) + n * 16);
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

/// Bits that a row's and a value's factor may take apart, on either side of 1: 2^80 leaves values
/// and keys 47 bits of float32's and bfloat16's range.
constexpr float kRange = 80.f;
constexpr float kLowered = 0x1p-80f;  // what a state is scaled by in a lifted chunk

/// What a chunk's gates come to, for one head. b: bits decayed since the chunk began, a token's own
/// decay included; w: the weight of its value. A chunk is lifted if it decays by more than kRange:
/// its factors then reach from 2^-kRange to 2^kRange (lift = kRange, else 0). It is strong if that
/// is not enough either (below -2 kRange).
struct HeadGates {
    Columns value;  // w 2^(-max(b, -2 kRange) - lift): what values are scaled by
    Columns row;    // scale 2^(max(b, -2 kRange) + lift): what all of a token's output is scaled by
    Columns rest;   // strong, first launch: w 2^(b_last - b), for the leaving state
    Columns shift;  // min(b + 2 kRange, 0): strong scores take 2^(shift_i - shift_j)
    float row_shift[Config::kChunk];  // the same numbers in the order of tokens
    float decay;                      // 2^(b_last + lift): of the state that has been lifted
};

/// A chunk's scores, rows of 64 columns (128 bytes, swizzled), on their way to math: the first tile
/// for all heads, and one for a strong head (scores_tile). The first of shared scores comes with
/// the inputs.
struct alignas(Config::kStateOnly ? kNothing : 1024) Slot {
    static constexpr int kTiles = Config::kHeads - (Config::kLoadsScores ? 1 : 0);
    static constexpr bool kNone = Config::kStateOnly || kTiles == 0;
    unsigned char scores[kNone ? 1 : kTiles][kNone ? kNothing : Config::kBoxBytes];
};

/// A math warpgroup's O of a chunk on its way out: 64 tokens x 64 values. With gated outputs the
/// tile holds z until O is written over it. The second of two halves of the key channels has its
/// part of O^T there, as float32, on the way to the first.
struct alignas(Config::kStateOnly ? kNothing : 1024) Output {
    unsigned char tile[Config::kOutputs][Config::kStateOnly ? kNothing : Config::kBoxBytes];
};

/// First launch, blocks of four heads: gates of as many chunks as they are in memory, a token's
/// heads read at once.
struct GateRows {
    u32 bits[4][Config::kHeads][Config::kHeads == 4 ? Config::kChunk : 2];  // [chunk][head][token]
};

/// What a block of threads works on.
struct Task {
    int sequence, key_head, head, heads;  // value heads [head, head + heads)
    int value_tile, segment;
    int part;         // first launch: of all that the sequence has
    int sharer;       // first launch: which of the blocks of shared scores; -1: it's one of states
    int batch;        // coordinate of the tensor maps
    long long begin;  // first token of the sequence
    int length;       // tokens of the sequence
    int first, end;   // chunks of the segment, first launch: of the part
    bool packed;

    /// The i-th chunk that is worked on. The first launch goes backwards: a chunk's values are then
    /// weighed for the part's end, and the second launch finds the part's beginning in L2.
    __device__ int chunk(int i) const { return Config::kStateOnly ? end - 1 - i : first + i; }
};

/// How a chunk of each head decays.
enum Reach : int { kPlain, kLifted, kStrong };
struct alignas(8) Reaches {
    int head[2];
    __device__ bool any_strong() const {
        return head[0] == kStrong || (Config::kHeads > 1 && head[1] == kStrong);
    }
    // Not by index: registers have none.
    __device__ int of(int local) const {
        return Config::kHeads > 1 && local > 0 ? head[1] : head[0];
    }
    /// Which of a chunk's tiles of scores is a head's. A strong head's is the second, so that the
    /// other head has the first, as it is; of two strong heads each has its own.
    __device__ int tile(int local) const {
        if (Config::kHeads == 1 || of(local) != kStrong) return 0;
        return of(1 - local) == kStrong ? local : 1;
    }
};

/// Whether the scores role has a part in a chunk, and math waits for it: scores that are not
/// shared, tiles of strong heads, or a sequence that ends inside.
__device__ inline bool has_slot(const Reaches& reaches, bool partial) {
    return !Config::kLoadsScores || partial || reaches.any_strong();
}

/// First launch: whether a chunk is cleared, converted or added to a sum of keys before math has it.
/// One that the sequence does not fill is the first.
__device__ inline bool is_tidied(const Task& task, int i) {
    return Config::kConverted || Config::kNormalized ||
           i == 0 && task.end * Config::kChunk > task.length;
}

/// By 32-bit address: the compiler at run time computes others in twice as many registers.
__device__ inline Reaches load_reaches(const Reaches& from) {
    const u32 address = shared_address(&from);
    return {{static_cast<int>(load_shared(address)), static_cast<int>(load_shared(address + 4))}};
}

/// Normalised outputs: the sum of the keys before a chunk, by turns.
template <bool kNormalized>
struct KeySums {
    alignas(16) float turns[2][Config::kKeys];
    __device__ float* key_sum(int i) { return turns[i % 2]; }
};
template <>
struct KeySums<false> {
    __device__ float* key_sum(int) { return nullptr; }
};

struct Storage : KeySums<Config::kNormalized && !Config::kStateOnly> {
    union {
        Stage stage[Config::kStages];
        Pair pair[Config::kPairs];  // blocks of shared scores have nothing else
    };
    Output output[Config::kMathGroups];
    Slot slot[Config::kStateOnly ? 1 : Config::kSlots];
    HeadGates gates[Config::kStages][Config::kHeads];
    Reaches reaches[Config::kStages];
    GateRows gate_rows;
    Task task;
    Barrier stage_full[Config::kStages], stage_empty[Config::kStages];
    Barrier pair_full[Config::kPairs];
    Barrier slot_full[Config::kSlots], slot_empty[Config::kSlots];
    Barrier output_full[Config::kMathGroups][Config::kOutputs];
    Barrier output_empty[Config::kMathGroups][Config::kOutputs];  // gated outputs: z is there
};
static_assert(sizeof(Storage) <= kSharedBytes);
static_assert(!Config::kStateOnly ||
              sizeof(Pair) * Config::kPairs <= sizeof(Stage) * Config::kStages);

/// A head's scores of a chunk.
__device__ inline unsigned char* scores_tile(Storage& s, const Reaches& reaches, int local,
                                             int stage, int slot) {
    const int tile = reaches.tile(local);
    if (!Config::kLoadsScores) return s.slot[slot].scores[tile];
    return tile == 0 ? s.stage[stage].scores : s.slot[slot].scores[0];
}

/// The same number in all lanes, and known to be: what is computed from it fits uniform registers.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

/// Parts that a sequence has in the first launch: the last segment's own state is nobody's start.
__device__ inline int parts_of(const Params& p) { return (p.segments - 1) * p.parts; }

__device__ inline Task decode_task(const Params& p) {
    Task task;
    u32 x = blockIdx.x;  // 32 bits: a division of 64 takes a hundred nanoseconds
    const auto digit = [&](u32 base) {
        const u32 d = x % base;
        x /= base;
        return static_cast<int>(d);
    };
    const int key_heads = p.heads / p.heads_per_key_head;
    task.sharer = -1;
    int head = 0;
    if (Config::kStateOnly && x >= static_cast<u32>(p.state_blocks)) {
        x -= p.state_blocks;
        task.sharer = digit(p.score_blocks);
        task.value_tile = task.segment = task.part = 0;
    } else {
        task.value_tile = digit(p.value_tiles);
        if constexpr (Config::kStateOnly) {
            task.part = digit(parts_of(p));
            task.segment = task.part / p.parts;
        } else {
            task.segment = digit(p.segments);
        }
        head = digit(p.head_blocks) * Config::kHeads;
    }
    task.heads = min(p.heads_per_key_head - head, Config::kHeads);
    task.key_head = digit(key_heads);
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
    if constexpr (Config::kStateOnly) {
        const int per_part = (per_segment + p.parts - 1) / p.parts;
        task.first = min(task.first + task.part % p.parts * per_part, task.end);
        task.end = min(task.first + per_part, task.end);
    }
    return task;
}

/// 64 tokens' queries or keys.
__device__ inline void load_keys(unsigned char* to, const Map& map, const Task& task, int token,
                                 Barrier& full) {
#pragma unroll
    for (int box = 0; box < Config::kKeys / 64; ++box) {
        load_box(to + box * Config::kBoxBytes, reinterpret_cast<const TensorMap*>(&map), full,
                 box * 64, task.key_head, token, task.batch);
    }
}

/// A chunk's shared scores in the workspace. Of packed sequences each begins with its first token's
/// chunk of 64 and as many further tiles as there are sequences before: none needs to know how many
/// chunks those have.
__device__ inline unsigned char* shared_scores(const Params& p, const Task& task, int chunk) {
    const int of_batch_row = (p.tokens + Config::kChunk - 1) / Config::kChunk;
    const long long first = task.packed ? task.begin / Config::kChunk + task.sequence
                                        : static_cast<long long>(task.sequence) * of_batch_row;
    const int key_heads = p.heads / p.heads_per_key_head;
    return p.scores + ((first + chunk) * key_heads + task.key_head) * Config::kBoxBytes;
}

}  // namespace sluice::scalar
