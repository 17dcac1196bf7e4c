// What the roles of the GLA kernel share: a block's shared memory, and what the block works on.
#pragma once

#include "sm90/common/state.cuh"
#include "sm90/gla/config.cuh"
#include "sm90/gla/params.cuh"
#include "tile/ptx.cuh"

namespace sluice::gla {

using namespace tile;

constexpr int kSharedBytes = 227 * 1024;  // of a block

/// Named barriers (0 is __syncthreads): one for each team and each math warpgroup.
enum NamedBarrier : u32 {
    kPrepareBarrier = 1,
    kMathBarrier = kPrepareBarrier + Config::kOwnTeams,
};

constexpr int kQueryTile = Config::kStateOnly ? 1024 : Config::kKeyBytes;  // 1,024: never empty

/// The inputs of a chunk, as bulk copies lay them: boxes of 64 tokens x 128 bytes, swizzled. A pair's
/// block reads the gates of every other chunk, and has one place for them elsewhere.
template <bool kWithGates>
struct Inputs {
    unsigned char k[Config::kKeyBytes];
    unsigned char v[Config::kValueBytes];
    unsigned char g[Config::kGateBytes];
    unsigned char q[kQueryTile];
};
template <>
struct Inputs<false> {
    unsigned char k[Config::kKeyBytes];
    unsigned char v[Config::kValueBytes];
    unsigned char q[kQueryTile];
};
using Stage = Inputs<!Config::kPaired>;

template <bool kHere>
struct Gates {};
template <>
struct Gates<true> {
    unsigned char g[Config::kGateBytes];
};
__device__ inline unsigned char* gates_of(Inputs<true>& stage, Gates<false>&) { return stage.g; }
__device__ inline unsigned char* gates_of(Inputs<false>&, Gates<true>& gates) { return gates.g; }

/// What the threads of a team tell each other about a chunk.
struct alignas(1024) TeamStorage {
    unsigned char level[Config::kStateOnly ? 1024 : Config::kKeyBytes];  // a tile of strong chunks
    float total[2][Config::kBlocks][Config::kKeys];  // what a block of rows decays, bits
    int first_overflow;                              // block that leaves the chunk's range first
};

/// A chunk on its way from prepare to math. In the first launch its barriers say all.
struct alignas(1024) SlotStorage {
    unsigned char scores[Config::kStateOnly ? 1024 : Config::kBoxBytes];
    float decay[Config::kKeys];  // of the chunk, a factor for the state
    int direct;                  // k~ decays to the chunk's end: scale the state before adding to it

    /// What a pair's block sends the other.
    static constexpr u32 kSentBytes = Config::kBoxBytes + Config::kKeys * sizeof(float) + 16;
};

/// What a block of threads works on; in shared memory, for registers are few.
struct Task {
    int sequence, head, key_head, value_tile, segment;
    int key_part;       // the block's rank in its cluster
    int batch;          // coordinate of the tensor maps
    long long begin;    // first token of the sequence
    int length;         // tokens of the sequence
    int first, end;     // chunks of the segment
    bool packed;

    /// The i-th chunk that is worked on. The first launch goes backwards: a chunk's keys are then decayed to
    /// the segment's end, and the state is never scaled.
    __device__ int chunk(int i) const { return Config::kStateOnly ? end - 1 - i : first + i; }
    /// Of the block's key channels.
    __device__ int first_key() const {
        return Config::kKeyParts == 1 ? 0 : key_part * Config::kKeys;
    }
    /// Of a chunk's tokens that the block stores.
    __device__ int first_output() const {
        return Config::kClustered ? key_part * Config::kOutputTokens : 0;
    }
};

/// A part of O^T from the cluster's other block, for a math warpgroup that adds its own.
struct alignas(16) Exchange {
    static constexpr int kRegisters = Config::kOutputTokens / 2;  // of a thread
    static constexpr u32 kBytes = kRegisters * 128 * sizeof(float);
    float part[kRegisters / 4][Config::kClustered ? 128 : 1][4];
    Barrier full;   // the part is here
    Barrier empty;  // the other block's place for ours is free
};

struct alignas(1024) Storage {
    Stage stage[Config::kStages];
    unsigned char o[Config::kMathGroups][Config::kStateOnly ? 1024 : Config::kOutputBytes];
    Exchange exchange[Config::kClustered ? Config::kMathGroups : 1];
    SlotStorage slot[Config::kTeams * Config::kSlots];
    TeamStorage team[Config::kOwnTeams];
    Gates<Config::kPaired> gates;
    Task task;
    Barrier stage_full[Config::kStages], stage_empty[Config::kStages];
    Barrier slot_full[Config::kTeams * Config::kSlots], slot_empty[Config::kTeams * Config::kSlots];
    Barrier totals_full[Config::kTeams];  // first launch: what a team's chunk decays, for the other team
    // Of a pair (pair.cuh).
    Barrier rows_full[Config::kPaired ? Config::kStages : 1], gates_empty, other_done;

    __device__ unsigned char* gates_of(int of_stage) {
        return gla::gates_of(stage[of_stage], gates);
    }
};
static_assert(sizeof(Storage) <= kSharedBytes);

/// A value that the compiler knows nothing about: what follows from it is computed anew, instead of kept in
/// registers that there are too few of.
__device__ inline u32 opaque(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

/// Where a team's n-th chunk goes, and when: the barriers' phase.
__device__ inline int slot_of(int team, int n) { return team * Config::kSlots + n % Config::kSlots; }
__device__ inline u32 phase_of(int n) { return n / Config::kSlots & 1; }

/// Whether the block prepares the segment's i-th chunk itself.
__device__ inline bool is_own(int i) {
    return !Config::kPaired || static_cast<u32>(i % 2) == cluster_rank();
}

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
    task.key_part = digit(Config::kKeyParts);
    task.value_tile = digit(p.value_tiles);
    task.segment = digit(launched_segments(p));
    task.head = digit(p.heads);
    task.key_head = task.head / p.heads_per_key_head;
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

}  // namespace sluice::gla
