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
// Prepare and math pass each other *items*: usually one a chunk. Where gates are so strong that 2^-b
// would leave the range (100 bits since the chunk began), the chunk becomes several items: the blocks
// of 16 rows before the first that overflows together, then each following block by itself, anchored
// at its own first row, with scores evaluated pair by pair if even 16 rows overflow. A row block's
// path depends on no gate after its last row, so that causality holds bit for bit.
#pragma once

#include "sm90/gla/config.cuh"
#include "sm90/gla/params.cuh"
#include "tile/ptx.cuh"

namespace sluice::gla {

using namespace tile;

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kStrongestGate = -178.f;  // natural log, 256 bits; -inf and -1000 become it
constexpr float kChunkRange = -69.f;      // what a factored run of blocks may decay: 100 bits
constexpr float kBlockRange = kChunkRange / Config::kBlocks;

/// Named barriers (0 is __syncthreads): one for each team and each math warpgroup.
enum NamedBarrier : u32 { kPrepareBarrier = 1, kMathBarrier = kPrepareBarrier + Config::kTeams };

/// One unit of work from prepare to math.
struct Item {
    int begin, end;  // blocks of 16 rows
    int direct;      // k~ decays to the item's end: scale the state before adding to it
};

/// The inputs of a chunk, as bulk copies lay them: boxes of 64 tokens x 128 bytes, swizzled.
struct Stage {
    unsigned char k[Config::kKeyBytes];
    unsigned char v[Config::kValueBytes];
    unsigned char g[Config::kGateBytes];
    unsigned char q[Config::kStateOnly ? 1024 : Config::kKeyBytes];  // 1,024: never empty
};

/// What the threads of a team tell each other about a chunk.
struct TeamStorage {
    float total[2][Config::kBlocks][Config::kKeys];  // what a block of rows decays, natural log
    float direct[Config::kStateOnly ? 1 : Config::kPrepareGroups][Config::kBlocks]
                [Config::kBlock * Config::kBlock];
    int first_overflow;  // first block that leaves the chunk's range
    unsigned overflows;  // bit r: block r leaves a block's own range
};

/// An item on its way from prepare to math.
struct SlotStorage {
    alignas(1024) unsigned char scores[Config::kStateOnly ? 1024 : Config::kBoxBytes];
    float decay[Config::kKeys];  // of the item, a factor for the state
    Item item;
};

struct alignas(1024) Storage {
    Stage stage[Config::kStages];
    unsigned char o[Config::kMathGroups][Config::kStateOnly ? 1024 : Config::kBoxBytes];
    unsigned char zero[Config::kBlock * 128];  // sixteen rows of nothing
    alignas(1024) SlotStorage slot[Config::kTeams * Config::kSlots];
    TeamStorage team[Config::kTeams];
    Barrier stage_full[Config::kStages], stage_empty[Config::kStages];
    Barrier slot_full[Config::kTeams * Config::kSlots], slot_empty[Config::kTeams * Config::kSlots];
};

/// Where the n-th item of a team goes, and when: the barriers' phase.
__device__ inline int slot_of(int team, int n) { return team * Config::kSlots + n % Config::kSlots; }
__device__ inline u32 phase_of(int n) { return n / Config::kSlots & 1; }

/// What a block of threads works on.
struct Task {
    int sequence, head, value_tile, segment;
    int batch;          // coordinate of the tensor maps
    long long begin;    // first token of the sequence
    int length;         // tokens of the sequence
    int first, end;     // chunks of the segment
    bool packed;
};

__device__ inline long long load_integer(const void* p, int is_64_bit, long long i) {
    return is_64_bit ? static_cast<const long long*>(p)[i] : static_cast<const int*>(p)[i];
}

__device__ inline Task decode_task(const Params& p) {
    Task task;
    long long x = blockIdx.x;
    task.value_tile = static_cast<int>(x % p.value_tiles);
    x /= p.value_tiles;
    task.segment = static_cast<int>(x % p.segments);
    x /= p.segments;
    task.head = static_cast<int>(x % p.heads);
    task.sequence = static_cast<int>(x / p.heads);
    task.packed = p.cu_seqlens != nullptr;
    long long end = p.tokens;
    task.begin = 0;
    task.batch = task.sequence;
    if (task.packed) {
        // Clamped: offsets that nobody validated may give wrong numbers, not wrong accesses.
        const auto clamp = [&](long long v) { return min(max(v, 0ll), (long long)p.tokens); };
        task.begin = clamp(load_integer(p.cu_seqlens, p.cu_seqlens_are_64_bit, task.sequence));
        end = clamp(load_integer(p.cu_seqlens, p.cu_seqlens_are_64_bit, task.sequence + 1));
        task.batch = 0;
    }
    task.length = static_cast<int>(max(end - task.begin, 0ll));
    const int chunks = (task.length + Config::kChunk - 1) / Config::kChunk;
    const int per_segment = (chunks + p.segments - 1) / p.segments;
    task.first = min(task.segment * per_segment, chunks);
    task.end = min(task.first + per_segment, chunks);
    return task;
}

// ---- load ----------------------------------------------------------------------------------------

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

// ---- prepare -------------------------------------------------------------------------------------

/// A thread of the prepare role: two neighbouring key channels of one block of 16 rows.
struct Preparer {
    Storage& s;
    int team;    // takes every kTeams-th chunk
    int thread;  // in the team
    int pair;    // channels 2 pair, 2 pair + 1
    int block;

    __device__ explicit Preparer(Storage& storage, int index)
        : s(storage),
          team(Config::kTeams == 1 ? 0 : index / Config::kTeamThreads),
          thread(index % Config::kTeamThreads),
          pair(thread % (Config::kKeys / 2)),
          block(thread / (Config::kKeys / 2)) {}

    __device__ TeamStorage& shared() const { return s.team[team]; }
    __device__ void barrier() const { named_barrier(kPrepareBarrier + team, Config::kTeamThreads); }
    __device__ bool barrier_any(bool value) const {
        return named_barrier_any(kPrepareBarrier + team, Config::kTeamThreads, value);
    }

    /// Shared address of the thread's channels in row `r` of its block, in the chunk's k. Swizzled: one
    /// exclusive-or serves all tiles of 16-bit elements, which lie at fixed distances from k.
    __device__ u32 key_address(int stage, int r) const {
        const u32 row = shared_address(s.stage[stage].k) + pair / 32 * Config::kBoxBytes +
                        block * Config::kBlock * 128 + pair % 32 * 4;
        return (row ^ ((r & 7) << 4)) + r * 128;
    }
    __device__ u32 query_address(int stage, int r) const {
        return key_address(stage, r) + Config::kQueryOffset;
    }
    __device__ u32 gate_address(int stage, int r) const {
        if constexpr (Config::kGate != GateType::kFloat32) {
            return key_address(stage, r) + Config::kGateOffset;
        }
        const u32 row = shared_address(s.stage[stage].g) + pair / 16 * Config::kBoxBytes +
                        block * Config::kBlock * 128 + pair % 16 * 8;
        return (row ^ ((r & 7) << 4)) + r * 128;
    }

    /// The thread's gates of row `r`, natural log.
    __device__ float2 gate(int stage, int r) const {
        const u32 at = gate_address(stage, r);
        float2 g;
        if constexpr (Config::kGate == GateType::kFloat32) {
            g = load_shared_pair(at);
        } else {
            const u32 x = load_shared(at);
            g = Config::kGate == GateType::kBFloat16 ? make_float2(low_bf16(x), high_bf16(x))
                                                     : make_float2(low_fp16(x), high_fp16(x));
        }
        return make_float2(fmaxf(g.x, kStrongestGate), fmaxf(g.y, kStrongestGate));
    }

    __device__ static float2 unpack(u32 x) {
        return Config::kInput == InputType::kBFloat16 ? make_float2(low_bf16(x), high_bf16(x))
                                                      : make_float2(low_fp16(x), high_fp16(x));
    }

    /// The thread's rows past the sequence's end: no keys, no queries, no decay.
    __device__ void clear_tail(int stage, int valid) const {
        for (int r = max(valid - block * Config::kBlock, 0); r < Config::kBlock; ++r) {
            store_shared(key_address(stage, r), 0);
            if (!Config::kStateOnly) store_shared(query_address(stage, r), 0);
            store_shared(gate_address(stage, r), 0);
            if (Config::kGate == GateType::kFloat32) store_shared(gate_address(stage, r) + 4, 0);
        }
    }

    /// The sum of the block's gates.
    __device__ float2 sum_gates(int stage) const {
        float2 sum = make_float2(0.f, 0.f);
#pragma unroll
        for (int r = 0; r < Config::kBlock; ++r) {
            const float2 g = gate(stage, r);
            sum = make_float2(sum.x + g.x, sum.y + g.y);
        }
        return sum;
    }

    /// The total of a block, for the team's n-th chunk.
    __device__ float2& total(int n, int of_block) const {
        return reinterpret_cast<float2*>(shared().total[n % 2][of_block])[pair];
    }
};

/// Tells math that the item in `slot` is ready: all threads' writes, seen by the tensor cores.
__device__ inline void publish(Storage& s, int slot) {
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) s.slot_full[slot].arrive();
}

/// Scores of the tiles q~ and k~ as bf16: causal, and from the item's first row on.
__device__ inline void compute_scores(Storage& s, int stage, int slot, int first_row, int thread) {
    constexpr int kColumns = 64 / Config::kPrepareGroups;
    const int group = thread / 128;
    const int warp = thread % 128 / 32;
    const int lane = thread % 32;
    float d[kColumns / 2];
    product_begin();
    const u64 a = operand(s.stage[stage].q);
    const u64 b = operand(s.stage[stage].k + group * kColumns * 128);
#pragma unroll
    for (int step = 0; step < Config::kKeys / 16; ++step) {
        const u32 at = step / 4 * Config::kBoxBytes + step % 4 * 32;
        product<0, 0>(d, advance(a, at), advance(b, at), step != 0);
    }
    product_commit();
    product_wait<0>();
    keep(d);
    const u32 base = shared_address(s.slot[slot].scores);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
        const int j = group * kColumns + n * 8 + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = warp * 16 + lane / 4 + half * 8;
            // By selection: what is masked may be infinite.
            const bool in_item = j >= first_row;
            const float x = in_item && j <= i ? d[n * 4 + half * 2] : 0.f;
            const float y = in_item && j + 1 <= i ? d[n * 4 + half * 2 + 1] : 0.f;
            store_shared(base + i * 128 + ((j / 8 ^ (i & 7)) << 4) + j % 8 * 2, pack_bf16(x, y));
        }
    }
}

/// Half of the sums move to the other half of the lanes: x[0 ... kCount) from x[0 ... 2 kCount).
template <int kCount>
__device__ inline void fold(float (&x)[16], int lane) {
    const bool upper = lane & (2 * kCount);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        const float give = upper ? x[i] : x[i + kCount];
        const float take = upper ? x[i + kCount] : x[i];
        x[i] = take + __shfl_xor_sync(~0u, give, 2 * kCount);
    }
}

/// x[i] summed over the warp, for the i that the lane's bits 1 ... 4 name (bit 4 first): sixteen sums
/// for sixteen exchanges instead of eighty.
__device__ inline float sum_sixteen(float (&x)[16], int lane) {
    fold<8>(x, lane);
    fold<4>(x, lane);
    fold<2>(x, lane);
    fold<1>(x, lane);
    return x[0] + __shfl_xor_sync(~0u, x[0], 1);
}

/// Scores of blocks whose 16 rows leave the factored range, from the raw tiles: pair by pair, each
/// thread its two channels, summed over a warp (32 channel pairs). The decay from j to i grows by one
/// factor as j moves back.
__device__ inline void direct_scores(const Preparer& me, int stage) {
    float* out = me.shared().direct[me.pair / 32][me.block];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float2 decay[Config::kBlock] = {};
    float2 next = make_float2(0.f, 0.f);  // decay of row j + 1
#pragma unroll 1
    for (int j = Config::kBlock - 1; j >= 0; --j) {
        const float2 key = Preparer::unpack(load_shared(me.key_address(stage, j)));
        float x[Config::kBlock];
#pragma unroll
        for (int i = 0; i < Config::kBlock; ++i) {
            decay[i] = i == j ? make_float2(1.f, 1.f)
                              : make_float2(decay[i].x * next.x, decay[i].y * next.y);
            const float2 query = Preparer::unpack(load_shared(me.query_address(stage, i)));
            // Rows before j have no decay yet: zero.
            x[i] = query.x * key.x * decay[i].x + query.y * key.y * decay[i].y;
        }
        const float total = sum_sixteen(x, lane);
        if (lane % 2 == 0) out[lane / 2 * Config::kBlock + j] = total;
        const float2 g = me.gate(stage, j);
        next = make_float2(exp2_fast(g.x * kLog2E), exp2_fast(g.y * kLog2E));
    }
}

/// The score tile of a direct item: its block on the diagonal, zero elsewhere.
__device__ inline void write_direct_scores(const Preparer& me, int slot, int block) {
    Storage& s = me.s;
    const u32 base = shared_address(s.slot[slot].scores);
    for (int at = me.thread; at < 64 * 32; at += Config::kTeamThreads) {
        const int i = at / 32;
        const int j = at % 32 * 2;
        const int row = i - block * Config::kBlock;
        const int column = j - block * Config::kBlock;
        float x = 0.f;
        float y = 0.f;
        if (row >= 0 && row < Config::kBlock && column >= 0 && column <= row) {
#pragma unroll
            for (int half = 0; half < Config::kPrepareGroups; ++half) {
                const float* d = me.shared().direct[half][block] + row * Config::kBlock + column;
                x += d[0];
                if (column < row) y += d[1];
            }
        }
        store_shared(base + i * 128 + ((j / 8 ^ (i & 7)) << 4) + j % 8 * 2, pack_bf16(x, y));
    }
}

/// Rows past the sequence's end hold its neighbour: zero times infinity is NaN, so V is cleared.
/// fp16 values become bf16.
__device__ inline void prepare_values(Storage& s, int stage, int valid, int thread) {
    constexpr bool kConvert = Config::kInput == InputType::kFloat16;
    if (valid >= Config::kChunk && !kConvert) return;
    const u32 base = shared_address(s.stage[stage].v);
    for (int at = thread; at < Config::kValueBytes / 4; at += Config::kTeamThreads) {
        const int row = at * 4 / 128 % Config::kChunk;
        if (row >= valid) {
            store_shared(base + at * 4, 0);
        } else if (kConvert) {
            const float2 x = Preparer::unpack(load_shared(base + at * 4));
            store_shared(base + at * 4, pack_bf16(x.x, x.y));
        }
    }
}

/// q~ and k~ of the thread's rows, in place: `start` bits at the block's first row, k~ decaying towards
/// `anchor`. The gates are summed again: sixteen loads cost less than thirty-two registers.
__device__ inline void scale_rows(const Preparer& me, int stage, float2 start, float2 anchor) {
    constexpr int kBatch = 4;  // loads in flight before the first use
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int first = 0; first < Config::kBlock; first += kBatch) {
        float2 g[kBatch];
        u32 raw_k[kBatch];
        u32 raw_q[kBatch];
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            g[r] = me.gate(stage, first + r);
            raw_k[r] = load_shared(me.key_address(stage, first + r));
            if (!Config::kStateOnly) raw_q[r] = load_shared(me.query_address(stage, first + r));
        }
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            sum = make_float2(sum.x + g[r].x, sum.y + g[r].y);
            const float2 b = make_float2(fmaf(sum.x, kLog2E, start.x), fmaf(sum.y, kLog2E, start.y));
            const float2 key = Preparer::unpack(raw_k[r]);
            raw_k[r] = pack_bf16(key.x * exp2_fast(anchor.x - b.x), key.y * exp2_fast(anchor.y - b.y));
            if (!Config::kStateOnly) {
                const float2 query = Preparer::unpack(raw_q[r]);
                raw_q[r] = pack_bf16(query.x * exp2_fast(b.x), query.y * exp2_fast(b.y));
            }
        }
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            store_shared(me.key_address(stage, first + r), raw_k[r]);
            if (!Config::kStateOnly) store_shared(me.query_address(stage, first + r), raw_q[r]);
        }
    }
}

/// An item: blocks [begin, end) of the team's n-th chunk, anchored at the first row of `begin`. q~ and
/// k~ go over q and k; earlier rows of q~ become zero; later rows stay as they are (math drops them).
/// Direct: k~ decays to the item's end instead, and the scores are evaluated pair by pair.
__device__ inline void prepare_item(const Preparer& me, int n, int stage, int slot, int begin,
                                    int end, bool direct) {
    Storage& s = me.s;
    float2 start = make_float2(0.f, 0.f);
    float2 whole = make_float2(0.f, 0.f);
    for (int b = begin; b < end; ++b) {
        const float2 t = me.total(n, b);
        if (b < me.block) start = make_float2(start.x + t.x, start.y + t.y);
        whole = make_float2(whole.x + t.x, whole.y + t.y);
    }
    start = make_float2(start.x * kLog2E, start.y * kLog2E);
    whole = make_float2(whole.x * kLog2E, whole.y * kLog2E);
    if (me.block >= begin && me.block < end) {
        scale_rows(me, stage, start, direct ? whole : make_float2(0.f, 0.f));
        if (me.block == begin) {
            reinterpret_cast<float2*>(s.slot[slot].decay)[me.pair] =
                make_float2(exp2_fast(whole.x), exp2_fast(whole.y));
        }
    } else if (!Config::kStateOnly && me.block < begin) {
#pragma unroll
        for (int r = 0; r < Config::kBlock; ++r) store_shared(me.query_address(stage, r), 0);
    }
    if (me.thread == 0) s.slot[slot].item = {begin, end, direct};
    if constexpr (!Config::kStateOnly) {
        fence_async_proxy();
        me.barrier();
        if (direct) {
            write_direct_scores(me, slot, begin);
        } else {
            compute_scores(s, stage, slot, begin * Config::kBlock, me.thread);
        }
    }
    publish(s, slot);
}

/// Which blocks leave the range, for a chunk with a strong block.
__device__ inline void find_overflows(const Preparer& me, int n, float2 own) {
    TeamStorage& team = me.shared();
    if (me.thread == 0) {
        team.first_overflow = Config::kBlocks;
        team.overflows = 0;
    }
    me.barrier();
    float2 end = make_float2(0.f, 0.f);
    for (int b = 0; b <= me.block; ++b) {
        end = make_float2(end.x + me.total(n, b).x, end.y + me.total(n, b).y);
    }
    // NaN compares false: it takes the careful way.
    if (!(end.x > kChunkRange && end.y > kChunkRange)) atomicMin(&team.first_overflow, me.block);
    if (!(own.x > kChunkRange && own.y > kChunkRange)) atomicOr(&team.overflows, 1u << me.block);
    me.barrier();
}

__device__ inline void prepare_warpgroup(const Params& p, const Task& task, Storage& s) {
    const Preparer me(s, static_cast<int>(threadIdx.x));
    float2 segment = make_float2(0.f, 0.f);
    int item = 0;  // of the team
    for (int chunk = task.first + me.team; chunk < task.end; chunk += Config::kTeams) {
        const int i = chunk - task.first;
        const int n = i / Config::kTeams;
        const int stage = i % Config::kStages;
        const int valid = min(task.length - chunk * Config::kChunk, Config::kChunk);
        s.stage_full[stage].wait(i / Config::kStages & 1);
        if (valid < Config::kChunk) me.clear_tail(stage, valid);
        const float2 own = me.sum_gates(stage);
        me.total(n, me.block) = own;
        prepare_values(s, stage, valid, me.thread);
        const bool mild = own.x > kBlockRange && own.y > kBlockRange;
        int first = Config::kBlocks;
        unsigned overflows = 0;
        if (me.barrier_any(!mild)) {
            find_overflows(me, n, own);
            first = me.shared().first_overflow;
            overflows = first < Config::kBlocks ? me.shared().overflows : 0;
            if (!Config::kStateOnly && (overflows >> me.block & 1)) direct_scores(me, stage);
            me.barrier();
        }
        if (Config::kStateOnly && me.block == 0) {
            for (int b = 0; b < Config::kBlocks; ++b) {
                segment = make_float2(segment.x + me.total(n, b).x, segment.y + me.total(n, b).y);
            }
        }
        for (int begin = 0; begin < Config::kBlocks; ++item) {
            const int end = begin < first ? first : begin + 1;
            // The first item of a chunk finds fresh tiles; a later one waits for its forerunner.
            if (begin > 0) s.slot_empty[slot_of(me.team, item - 1)].wait(phase_of(item - 1));
            const int slot = slot_of(me.team, item);
            if (item >= Config::kSlots) s.slot_empty[slot].wait(phase_of(item) ^ 1);
            prepare_item(me, n, stage, slot, begin, end, begin >= first && (overflows >> begin & 1));
            begin = end;
        }
    }
    if constexpr (Config::kStateOnly) {
        // Each team's share of the segment's decay; the last barrier of team 0 orders the sum.
        if (me.block == 0) me.total(0, 0) = segment;
        named_barrier(kMathBarrier + Config::kMathGroups, Config::kPrepareThreads);
        if (me.team == 0 && me.block == 0 && task.value_tile == 0) {
            float2 all = make_float2(0.f, 0.f);
            for (int t = 0; t < Config::kTeams; ++t) {
                const float2 x = reinterpret_cast<const float2*>(s.team[t].total[0][0])[me.pair];
                all = make_float2(all.x + x.x, all.y + x.y);
            }
            const long long row =
                (static_cast<long long>(task.sequence) * p.heads + task.head) * p.segments +
                task.segment;
            reinterpret_cast<float2*>(p.segment_decay + row * Config::kKeys)[me.pair] =
                make_float2(exp2_fast(all.x * kLog2E), exp2_fast(all.y * kLog2E));
        }
    }
}

// ---- math ----------------------------------------------------------------------------------------

constexpr int kStateRegisters = Config::kKeys / 2;

/// A thread's part of S^T (64 value channels x K): register 4 n + e is value row() + 8 (e / 2) and key
/// channel 8 n + column() + e % 2.
struct Fragment {
    int group, thread;
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
    __device__ int column() const { return thread % 4 * 2; }
};

__device__ inline float load_number(const void* p, int type) {
    if (type == kStateFloat32) return *static_cast<const float*>(p);
    const u16 x = *static_cast<const u16*>(p);
    return type == kStateBFloat16 ? low_bf16(x) : fp16_to_float(x);
}

__device__ inline void store_number(void* p, int type, float x) {
    if (type == kStateFloat32) {
        *static_cast<float*>(p) = x;
    } else {
        *static_cast<u16*>(p) =
            static_cast<u16>(type == kStateBFloat16 ? pack_bf16(x, 0.f) : pack_fp16(x, 0.f));
    }
}

/// Calls f(register, address) for the fragment's elements that exist, at the sequence's slot.
template <class F>
__device__ inline void for_each_state_element(const Params& p, const Task& task,
                                              const StateTensor& state, const Fragment& at, F&& f) {
    if (state.data == nullptr) return;
    long long slot = task.sequence;
    if (state.slots != nullptr) {
        slot = load_integer(state.slots, state.slots_are_64_bit, task.sequence);
    }
    if (slot < 0) return;
    const int bytes = state.type == kStateFloat32 ? 4 : 2;
    char* base = static_cast<char*>(state.data) +
                 (slot * state.slot_stride + task.head * state.head_stride) * bytes;
    const int value = task.value_tile * Config::kValueTile + at.group * 64 + at.row();
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) {
        const int v = value + r / 2 % 2 * 8;
        const int key = r / 4 * 8 + at.column() + r % 2;
        if (v < p.values && key < p.keys) {
            f(r, base + (key * state.key_stride + v * state.value_stride) * bytes);
        }
    }
}

/// The state that the segment starts from: the sequence's, then the earlier segments in order.
__device__ inline void load_initial(const Params& p, const Task& task, const Fragment& at,
                                    float (&state)[kStateRegisters]) {
#pragma unroll
    for (int r = 0; r < kStateRegisters; ++r) state[r] = 0.f;
    if constexpr (Config::kStateOnly) return;
    if (p.has_initial == nullptr || p.has_initial[task.sequence]) {
        for_each_state_element(p, task, p.initial, at, [&](int r, const void* from) {
            state[r] = load_number(from, p.initial.type);
        });
    }
    const long long row = (static_cast<long long>(task.sequence) * p.heads + task.head) * p.segments;
    for (int segment = 0; segment < task.segment; ++segment) {
        const float* decay = p.segment_decay + (row + segment) * Config::kKeys;
        const float* add = p.segment_state +
                           (((row + segment) * p.value_tiles + task.value_tile) *
                                Config::kMathGroups +
                            at.group) *
                               64 * Config::kKeys +
                           at.thread;
#pragma unroll
        for (int r = 0; r < kStateRegisters; ++r) {
            state[r] = state[r] * decay[r / 4 * 8 + at.column() + r % 2] + add[r * 128];
        }
    }
}

__device__ inline void scale_columns(const float* decay, int column,
                                     float (&state)[kStateRegisters]) {
#pragma unroll
    for (int n = 0; n < kStateRegisters / 4; ++n) {
        const float2 d = *reinterpret_cast<const float2*>(decay + n * 8 + column);
        state[4 * n] *= d.x;
        state[4 * n + 1] *= d.y;
        state[4 * n + 2] *= d.x;
        state[4 * n + 3] *= d.y;
    }
}

/// O^T of a chunk to global memory, through shared memory.
__device__ inline void store_output(const Params& p, const Task& task, Storage& s,
                                    const Fragment& at, int chunk, const float (&o)[32]) {
    const u32 barrier = kMathBarrier + at.group;
    unsigned char* tile = s.o[at.group];
    if (at.thread == 0) wait_stores_read<0>();
    named_barrier(barrier, 128);
    const int lane = at.thread % 32;
    // Matrices: values 0-7, 8-15 of the warp's sixteen, tokens of two neighbouring columns of eight.
    const int value_chunk = at.thread / 32 * 2 + lane / 8 % 2;
    constexpr bool kHalf = Config::kInput == InputType::kFloat16;
    const auto pack = [&](float a, float b) {
        return kHalf ? pack_fp16(a * p.scale, b * p.scale) : pack_bf16(a * p.scale, b * p.scale);
    };
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        const int token = n * 8 + lane / 16 * 8 + lane % 8;
        const u32 address =
            shared_address(tile) + token * 128 + ((value_chunk ^ (token & 7)) << 4);
        const float* x = o + n * 4;
        store_matrices_transposed(address, pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]),
                                  pack(x[6], x[7]));
    }
    fence_async_proxy();
    named_barrier(barrier, 128);
    const int value = task.value_tile * Config::kValueTile + at.group * 64;
    const int token = static_cast<int>(task.begin) + chunk * Config::kChunk;
    const int valid = task.length - chunk * Config::kChunk;
    if (task.packed && valid < Config::kChunk) {
        // A bulk copy would write into the next sequence.
        for (int i = at.thread; i < valid * 8; i += 128) {
            const int row = i / 8;
            const int v = value + i % 8 * 8;
            if (v >= p.values) continue;
            const uint4 x = *reinterpret_cast<const uint4*>(
                tile + row * 128 + ((i % 8 ^ (row & 7)) << 4));
            u16* out = static_cast<u16*>(p.o_data) + (token + row) * p.o_token_stride +
                       task.head * p.o_head_stride + v;
            *reinterpret_cast<uint4*>(out) = x;
        }
    } else if (at.thread == 0) {
        store_box(reinterpret_cast<const TensorMap*>(&p.o), tile, value, task.head, token,
                  task.batch);
        commit_stores();
    }
}

/// O of the rows after an item is not O yet: zero, for the items to come.
__device__ inline void drop_rows(int end, float (&o)[32]) {
#pragma unroll
    for (int r = 0; r < 32; ++r) {
        if (r / 8 >= end) o[r] = 0.f;  // eight registers hold a block's sixteen tokens
    }
}

__device__ inline void math_warpgroup(const Params& p, const Task& task, Storage& s) {
    const int thread = static_cast<int>(threadIdx.x) - Config::kPrepareThreads;
    const Fragment at{thread / 128, thread % 128};
    const u64 zero = operand(s.zero, 0);
    float state[kStateRegisters];
    load_initial(p, task, at, state);
    int items[Config::kTeams] = {};  // seen of each team
    for (int chunk = task.first; chunk < task.end; ++chunk) {
        const int stage = (chunk - task.first) % Config::kStages;
        const int team = Config::kTeams == 1 ? 0 : (chunk - task.first) % Config::kTeams;
        const u64 v = operand(s.stage[stage].v + at.group * Config::kBoxBytes);
        const u64 k = operand(s.stage[stage].k, Config::kBoxBytes);
        float o[32];
        bool first = true;
        bool last = false;
        while (!last) {
            const int item = team == 0 ? items[0] : items[Config::kTeams - 1];
            const int slot = slot_of(team, item);
            s.slot_full[slot].wait(phase_of(item));
            const Item what = s.slot[slot].item;
            last = what.end == Config::kBlocks;
            const bool before = what.direct != 0;
            const float* decay = s.slot[slot].decay;
            if constexpr (!Config::kStateOnly) {
                u32 a[Config::kKeys / 16][4];
#pragma unroll
                for (int i = 0; i < Config::kKeys / 16; ++i) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        a[i][e] = pack_bf16(state[i * 8 + e * 2], state[i * 8 + e * 2 + 1]);
                    }
                }
                if (before) scale_columns(decay, at.column(), state);
                product_begin();
                const u64 q = operand(s.stage[stage].q);
                const u64 scores = operand(s.slot[slot].scores);
#pragma unroll
                for (int i = 0; i < Config::kKeys / 16; ++i) {
                    product<0>(o, a[i], advance(q, i / 4 * Config::kBoxBytes + i % 4 * 32),
                               !(first && i == 0));
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    product<1, 0>(o, advance(v, i * 2048), advance(scores, i * 32), true);
                }
                product_commit();
            } else {
                if (before) scale_columns(decay, at.column(), state);
                product_begin();
            }
#pragma unroll
            for (int i = 0; i < Config::kBlocks; ++i) {
                // Other items' rows are replaced by nothing: a product cannot be skipped by a branch.
                const bool in_item = i >= what.begin && i < what.end;
                product<1, 1>(state, in_item ? advance(v, i * 2048) : zero,
                              in_item ? advance(k, i * 2048) : zero, true);
            }
            product_commit();
            if constexpr (!Config::kStateOnly) {
                product_wait<1>();
                keep(o);
                if (!last) drop_rows(what.end, o);
                if (last) store_output(p, task, s, at, chunk, o);
            }
            product_wait<0>();
            keep(state);
            if (!before) scale_columns(decay, at.column(), state);
            if (thread % 32 == 0) {
                s.slot_empty[slot].arrive();
                if (last) s.stage_empty[stage].arrive();
            }
            first = false;
            ++(team == 0 ? items[0] : items[Config::kTeams - 1]);
        }
    }
    if constexpr (Config::kStateOnly) {
        const long long row =
            (static_cast<long long>(task.sequence) * p.heads + task.head) * p.segments + task.segment;
        float* out = p.segment_state +
                     ((row * p.value_tiles + task.value_tile) * Config::kMathGroups + at.group) * 64 *
                         Config::kKeys +
                     at.thread;
#pragma unroll
        for (int r = 0; r < kStateRegisters; ++r) out[r * 128] = state[r];
    } else {
        if (task.segment == p.segments - 1) {
            for_each_state_element(p, task, p.final, at, [&](int r, void* to) {
                store_number(to, p.final.type, state[r]);
            });
        }
        if (at.thread == 0) wait_stores_read<0>();
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
    for (int i = threadIdx.x; i < Config::kBlock * 32; i += Config::kThreads) {
        reinterpret_cast<unsigned*>(s.zero)[i] = 0;
    }
    sluice::tile::fence_async_proxy();
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
