// The prepare role: from a chunk's q, k and gates to q~, k~, the scores A and the chunk's decay.
//
// Strong chunks. Where the sum of gates leaves the range, q~ k~^T = q 2^b (k 2^-b)^T overflows. The
// rows from the block of 16 that leaves it first get their scores from levels h = 32, 16, 8, 4, 2, 1
// instead: rows i of the upper half and j of the lower half of each group of 2 h rows meet at the
// middle,
//
//   A_ij = sum_c (q_i 2^(b_i - b_middle)) (k_j 2^(b_middle - b_j)),
//
// both exponents sums of gates and so <= 0, whatever the gates are; the diagonal is q_i . k_i. A level is
// one tile (q's factors in upper rows, k's in lower ones) multiplied by itself. k~ then decays to the
// chunk's end. A row block's path depends on no gate after its last row: causality holds bit for bit.
#pragma once

#include "sm90/gla/state.cuh"

namespace sluice::gla {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kChunkRange = -100.f;  // bits that a factored chunk may decay
constexpr float kBlockRange = kChunkRange / Config::kBlocks;

__device__ inline float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

/// Row `r` of a tile in 128-byte swizzle, from the address of row 0 (or 8, 16, ...).
__device__ inline u32 row_address(u32 row_0, int r) { return (row_0 ^ ((r & 7) << 4)) + r * 128; }

/// A thread of the prepare role: two neighbouring key channels of one block of 16 rows.
struct Preparer {
    Storage& s;
    int team;    // takes every kTeams-th chunk; a pair's block has the team of its rank
    int thread;  // in the team
    int pair;    // channels 2 pair, 2 pair + 1
    int block;

    __device__ explicit Preparer(Storage& storage, int index)
        : s(storage),
          team(Config::kPaired       ? static_cast<int>(cluster_rank())
               : Config::kTeams == 1 ? 0
                                     : index / Config::kTeamThreads),
          thread(index % Config::kTeamThreads),
          pair(thread % (Config::kKeys / 2)),
          block(thread / (Config::kKeys / 2)) {}

    /// Among the block's teams.
    __device__ int place() const { return Config::kOwnTeams == 1 ? 0 : team; }
    __device__ TeamStorage& shared() const { return s.team[place()]; }
    __device__ void barrier() const {
        named_barrier(kPrepareBarrier + place(), Config::kTeamThreads);
    }
    __device__ bool barrier_any(bool value) const {
        return named_barrier_any(kPrepareBarrier + place(), Config::kTeamThreads, value);
    }

    /// Shared address of the thread's channels in row `r` of its block, in a tile of 16-bit elements.
    __device__ u32 address(const void* tile, int r) const {
        return row_address(shared_address(tile) + pair / 32 * Config::kBoxBytes +
                               block * Config::kBlock * 128 + pair % 32 * 4,
                           r);
    }
    /// In the chunk's k. One swizzled address serves q and the gates too: they lie at fixed distances.
    __device__ u32 key_address(int stage, int r) const { return address(s.stage[stage].k, r); }
    __device__ u32 query_address(int stage, int r) const {
        return key_address(stage, r) + Config::kQueryOffset;
    }
    __device__ u32 gate_address(int stage, int r) const {
        if constexpr (Config::kPaired) return address(s.gates_of(stage), r);
        if constexpr (Config::kGate != GateType::kFloat32) {
            return key_address(stage, r) + Config::kGateOffset;
        }
        return row_address(shared_address(s.gates_of(stage)) + pair / 16 * Config::kBoxBytes +
                               block * Config::kBlock * 128 + pair % 16 * 8,
                           r);
    }

    /// `sum` and the thread's gates at an address, in bits. Spelt as one multiply-add: the same sums have
    /// the same bits wherever they are formed, whatever a compiler would contract. Sums of gates are
    /// never subtracted from one another, so -inf needs no care.
    __device__ static float2 add_gate(float2 sum, float2 g) {
        return make_float2(fmaf(g.x, kLog2E, sum.x), fmaf(g.y, kLog2E, sum.y));
    }
    __device__ static float2 gate_at(u32 at) {
        if constexpr (Config::kGate == GateType::kFloat32) return load_shared_pair(at);
        const u32 x = load_shared(at);
        return Config::kGate == GateType::kBFloat16 ? make_float2(low_bf16(x), high_bf16(x))
                                                    : make_float2(low_fp16(x), high_fp16(x));
    }

    __device__ static float2 unpack(u32 x) {
        return Config::kInput == InputType::kBFloat16 ? make_float2(low_bf16(x), high_bf16(x))
                                                      : make_float2(low_fp16(x), high_fp16(x));
    }
    /// A pair of inputs times 2^bits, as bf16.
    __device__ static u32 scaled(u32 x, float2 bits) {
        const float2 value = unpack(x);
        return pack_bf16(value.x * exp2_fast(bits.x), value.y * exp2_fast(bits.y));
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

    /// The total of a block, for the team's n-th chunk.
    __device__ float2& total(int n, int of_block) const {
        return reinterpret_cast<float2*>(shared().total[n % 2][of_block])[pair];
    }
    /// The sum of the totals of blocks [begin, end).
    __device__ float2 totals(int n, int begin, int end) const {
        float2 sum = make_float2(0.f, 0.f);
        for (int b = begin; b < end; ++b) sum = sum + total(n, b);
        return sum;
    }
};

/// Running sums of a thread's gates from its block's first row, or only their last.
struct GateSums {
    float2 last;
    float2 running[Config::kKeepSums ? Config::kBlock : 1];

    __device__ GateSums(const Preparer& me, int stage) : last(make_float2(0.f, 0.f)) {
        const u32 gates = me.gate_address(stage, 0);
#pragma unroll
        for (int r = 0; r < Config::kBlock; ++r) {
            last = Preparer::add_gate(last, Preparer::gate_at(row_address(opaque(gates), r)));
            if constexpr (Config::kKeepSums) running[r] = last;
        }
    }
};

/// Tells math that the chunk in `slot` is ready: all threads' writes, seen by the tensor cores.
__device__ inline void publish(Storage& s, int slot) {
    fence_async_proxy();
    s.slot_full[slot].arrive_warp();
}

/// A warpgroup's columns of the 64 x 64 scores, in registers as products leave them.
struct Scores {
    static constexpr int kColumns = 64 / Config::kPrepareGroups;
    float x[kColumns / 2];

    /// Products of the rows of two tiles, of bf16 or as the inputs came. All of the team's writes come
    /// before.
    template <bool kInputs = false>
    __device__ void multiply(const void* rows, const void* columns, int thread) {
        product_begin();
        const u64 a = operand(rows);
        const u64 b = advance(operand(columns), thread / 128 * kColumns * 128);
#pragma unroll
        for (int step = 0; step < Config::kKeys / 16; ++step) {
            const u32 at = step / 4 * Config::kBoxBytes + step % 4 * 32;
            if constexpr (kInputs && Config::kInput == InputType::kFloat16) {
                product_fp16<0, 0>(x, advance(a, at), advance(b, at), step != 0);
            } else {
                product<0, 0>(x, advance(a, at), advance(b, at), step != 0);
            }
        }
        product_commit();
        product_wait<0>();
        keep(x);
    }

    /// Calls f(address, i, j, e) for each pair x[e], x[e + 1]: row i, columns j and j + 1 of a tile of
    /// bf16.
    template <class F>
    __device__ void for_each_pair(const void* tile, int thread, F&& f) const {
        const u32 base = shared_address(tile);
        const int row = thread % 128 / 32 * 16 + thread % 32 / 4;
        const int column = thread / 128 * kColumns + thread % 4 * 2;
#pragma unroll
        for (int e = 0; e < kColumns / 2; e += 2) {
            const int i = row + e / 2 % 2 * 8;
            const int j = column + e / 4 * 8;
            f(base + i * 128 + ((j / 8 ^ (i & 7)) << 4) + j % 8 * 2, i, j, e);
        }
    }

    /// To a tile of bf16 where(i, j), zero elsewhere. By selection: what is left out may be infinite.
    template <class F>
    __device__ void store(const void* tile, int thread, F&& where) const {
        for_each_pair(tile, thread, [&](u32 at, int i, int j, int e) {
            store_shared(at, pack_bf16(where(i, j) ? x[e] : 0.f, where(i, j + 1) ? x[e + 1] : 0.f));
        });
    }
    /// The same, leaving what the thread stored elsewhere.
    template <class F>
    __device__ void replace(const void* tile, int thread, F&& where) const {
        for_each_pair(tile, thread, [&](u32 at, int i, int j, int e) {
            const u32 mask = (where(i, j) ? 0xffffu : 0) | (where(i, j + 1) ? 0xffff0000u : 0);
            store_shared(at, (load_shared(at) & ~mask) | (pack_bf16(x[e], x[e + 1]) & mask));
        });
    }
};

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

/// q~ and k~ of the thread's rows, in place; `start` bits before the block's first row. Sums as in
/// GateSums, whether they are kept or formed again.
__device__ inline void scale_rows(const Preparer& me, int stage, float2 start,
                                  const GateSums& sums) {
    constexpr int kBatch = 4;  // loads in flight before the first use
    const u32 keys = opaque(me.key_address(stage, 0));
    // 16-bit gates share the keys' swizzled addresses.
    constexpr bool kShared = Config::kGate != GateType::kFloat32;
    const u32 gates = kShared ? 0 : opaque(me.gate_address(stage, 0));
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int first = 0; first < Config::kBlock; first += kBatch) {
        float2 b[kBatch];
        u32 k[kBatch];
        u32 q[kBatch];
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            const u32 at = row_address(opaque(keys), first + r);
            if constexpr (Config::kKeepSums) {
                b[r] = start + sums.running[first + r];
            } else {
                sum = Preparer::add_gate(
                    sum, Preparer::gate_at(kShared ? at + Config::kGateOffset
                                                   : row_address(gates, first + r)));
                b[r] = start + sum;
            }
            k[r] = load_shared(at);
            q[r] = load_shared(at + Config::kQueryOffset);
        }
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            const u32 at = row_address(opaque(keys), first + r);
            store_shared(at, Preparer::scaled(k[r], make_float2(-b[r].x, -b[r].y)));
            store_shared(at + Config::kQueryOffset, Preparer::scaled(q[r], b[r]));
        }
    }
}

enum class Direction { kUp, kDown };

/// Rows of the thread's block from tile `from` to tile `to`, times 2^sum. Up: the rows whose bit kHalf is
/// set, each decayed from the row where that bit's run begins, itself included. Down: the other rows,
/// each decayed to the end of its run, itself excluded. kHalf = 16: all rows, as one run, and `start` bits
/// more; sums upwards as in GateSums.
template <Direction kDirection, int kHalf>
__device__ inline void decay_rows(const Preparer& me, int stage, const void* from, const void* to,
                                  float2 start) {
    constexpr bool kUp = kDirection == Direction::kUp;
    constexpr int kBatch = 4;  // loads in flight before the first use
    constexpr int kCount = kHalf == Config::kBlock ? Config::kBlock : Config::kBlock / 2;
    const u32 from_row = opaque(me.address(from, 0));
    const u32 to_row = opaque(me.address(to, 0));
    const u32 gate_row = opaque(me.gate_address(stage, 0));
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int first = 0; first < kCount; first += kBatch) {
        int row[kBatch];
        float2 gate[kBatch];
        u32 x[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int n = kUp ? first + i : kCount - 1 - first - i;
            row[i] = kHalf == Config::kBlock ? n : 2 * n - n % kHalf + (kUp ? kHalf : 0);
            // Downwards a run's last gate counts for nothing.
            const bool counts = kUp || row[i] % kHalf != 0;
            gate[i] = counts ? Preparer::gate_at(row_address(gate_row, row[i]))
                             : make_float2(0.f, 0.f);
            x[i] = load_shared(row_address(from_row, row[i]));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const bool begins = row[i] % kHalf == (kUp ? 0 : kHalf - 1) && first + i > 0;
            if (begins) sum = make_float2(0.f, 0.f);
            if (kUp) sum = Preparer::add_gate(sum, gate[i]);
            const float2 bits = kHalf == Config::kBlock ? start + sum : sum;
            // Next to the middle nothing decays; fp16 still becomes bf16.
            const bool same = !kUp && kHalf < Config::kBlock && row[i] % kHalf == kHalf - 1 &&
                              Config::kInput == InputType::kBFloat16;
            store_shared(row_address(to_row, row[i]), same ? x[i] : Preparer::scaled(x[i], bits));
            if (!kUp) sum = Preparer::add_gate(sum, gate[i]);
        }
    }
}

// ---- strong chunks -------------------------------------------------------------------------------

/// The first block whose end leaves the chunk's range; kBlocks: none. Called by the whole team.
__device__ inline int find_overflow(const Preparer& me, int n) {
    TeamStorage& team = me.shared();
    if (me.thread == 0) team.first_overflow = Config::kBlocks;
    me.barrier();
    const float2 end = me.totals(n, 0, me.block + 1);
    // NaN compares false: it takes the careful way.
    if (!(end.x > kChunkRange && end.y > kChunkRange)) atomicMin(&team.first_overflow, me.block);
    me.barrier();
    return team.first_overflow;
}

/// Bits between a level's middle and the thread's block.
__device__ inline float2 level_start(const Preparer& me, int n, int h) {
    if (h == 32 && me.block == 3) return me.total(n, 2);
    if (h == 32 && me.block == 0) return me.total(n, 1);
    return make_float2(0.f, 0.f);
}

/// The thread's rows of the tile of a level below 16.
template <int kHalf>
__device__ inline void write_halves(const Preparer& me, int stage) {
    const Stage& tiles = me.s.stage[stage];
    const float2 zero = make_float2(0.f, 0.f);
    decay_rows<Direction::kUp, kHalf>(me, stage, tiles.q, me.shared().level, zero);
    decay_rows<Direction::kDown, kHalf>(me, stage, tiles.k, me.shared().level, zero);
}

/// The thread's rows of a level's tile: q's factors in the upper halves, k's in the lower ones.
__device__ inline void write_level(const Preparer& me, int n, int stage, int h) {
    const void* q = me.s.stage[stage].q;
    const void* k = me.s.stage[stage].k;
    unsigned char* tile = me.shared().level;
    if (h == 8) return write_halves<8>(me, stage);
    if (h == 4) return write_halves<4>(me, stage);
    if (h == 2) return write_halves<2>(me, stage);
    if (h == 1) return write_halves<1>(me, stage);
    // A thread's block is all in an upper half or all in a lower one.
    const float2 start = level_start(me, n, h);
    if (me.block * Config::kBlock & h) {
        decay_rows<Direction::kUp, 16>(me, stage, q, tile, start);
    } else {
        decay_rows<Direction::kDown, 16>(me, stage, k, tile, start);
    }
}

/// The scores of the rows before block `first`, as in a chunk that is not strong, bit for bit.
__device__ inline void factored_scores(const Preparer& me, int n, int stage, int slot, int first) {
    unsigned char* tile = me.shared().level;
    const float2 start = me.totals(n, 0, me.block);
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 1
    for (int r = 0; r < Config::kBlock; ++r) {
        sum = Preparer::add_gate(sum, Preparer::gate_at(me.gate_address(stage, r)));
        const float2 b = start + sum;
        const u32 key = load_shared(me.key_address(stage, r));
        const u32 factored = Preparer::scaled(key, make_float2(-b.x, -b.y));
        store_shared(me.address(tile, r), me.block < first ? factored : 0);
    }
    fence_async_proxy();
    me.barrier();
    Scores scores;
    scores.multiply(me.s.stage[stage].q, tile, me.thread);
    scores.replace(me.s.slot[slot].scores, me.thread,
                   [&](int i, int j) { return j <= i && i / Config::kBlock < first; });
}

/// A chunk whose blocks from `first` on leave the range: scores to the slot, q~ and k~ in place, k~
/// decayed to the chunk's end.
__device__ inline void prepare_strong(const Preparer& me, int n, int stage, int slot, int first) {
    Storage& s = me.s;
    unsigned char* tile = me.shared().level;
    const void* out = s.slot[slot].scores;
    Scores scores;
    scores.multiply<true>(s.stage[stage].q, s.stage[stage].k, me.thread);
    scores.store(out, me.thread, [](int i, int j) { return i == j; });
#pragma unroll 1
    for (int h = Config::kChunk / 2; h >= 1; h /= 2) {
        write_level(me, n, stage, h);
        fence_async_proxy();
        me.barrier();
        scores.multiply(tile, tile, me.thread);
        scores.replace(out, me.thread, [&](int i, int j) {
            return (i & h) != 0 && (i ^ j) >= h && (i ^ j) < 2 * h;
        });
        me.barrier();
    }
    unsigned char* q = s.stage[stage].q;
    unsigned char* k = s.stage[stage].k;
    decay_rows<Direction::kUp, 16>(me, stage, q, q, me.totals(n, 0, me.block));
    if (first > 0) factored_scores(me, n, stage, slot, first);
    decay_rows<Direction::kDown, 16>(me, stage, k, k,
                                 me.totals(n, me.block + 1, Config::kBlocks));
}

// ---- the role ------------------------------------------------------------------------------------

/// First launch: what the chunks after the present one decay, to the segment's end. One order of sums, whether
/// one team has all chunks or two take turns, which pass totals on.
struct LaterChunks {
    float2 bits = {};

    /// Before the i-th chunk, whose totals the thread has written.
    __device__ void begin(const Preparer& me, int i) {
        if constexpr (Config::kTeams == 1) return;
        // Read, then arrive: the places of its totals are a team's again when the other has read them.
        if (i > 0) {
            const int other = 1 - me.team, n = (i - 1) / 2;
            me.s.totals_full[other].wait(n & 1);
            add(Preparer(me.s, other * Config::kTeamThreads + me.thread), n);
        }
        me.s.totals_full[me.team].arrive_warp();
    }
    __device__ void add(const Preparer& of, int n) { bits = bits + of.totals(n, 0, Config::kBlocks); }

    /// After all chunks: the segment's decay.
    __device__ void store(const Params& p, const Task& task, const Preparer& me) const {
        const int last = max(task.end - task.first - 1, 0);  // its team has all
        if (me.team != last % Config::kTeams || me.block != 0 || task.value_tile != 0) return;
        reinterpret_cast<float2*>(segment_decay(p, task, task.segment))[me.pair] =
            make_float2(exp2_fast(bits.x), exp2_fast(bits.y));
    }
};

/// Waits until the slot is free, and writes what the outputs' math scales the state by. `first`: as
/// find_overflow() has it.
__device__ inline void take_slot(const Preparer& me, int n, int slot, int first) {
    Storage& s = me.s;
    if (n >= Config::kSlots) {
        s.slot_empty[slot].wait(phase_of(n) ^ 1);
        if constexpr (Config::kPaired) s.other_done.wait(phase_of(n) ^ 1);
    }
    if constexpr (Config::kStateOnly) return;
    if (me.block == 0) {
        const float2 whole = me.totals(n, 0, Config::kBlocks);
        reinterpret_cast<float2*>(s.slot[slot].decay)[me.pair] =
            make_float2(exp2_fast(whole.x), exp2_fast(whole.y));
    }
    if (me.thread == 0) s.slot[slot].direct = first < Config::kBlocks;
}

__device__ inline void prepare_warpgroup(const Params& p, Storage& s) {
    const Task& task = s.task;
    const Preparer me(s, static_cast<int>(threadIdx.x));
    [[maybe_unused]] LaterChunks later;
    for (int at = task.first + me.team; at < task.end; at += Config::kTeams) {
        const int i = at - task.first;
        const int n = i / Config::kTeams;
        const int stage = i % Config::kStages;
        const int chunk = Config::kStateOnly ? task.chunk(i) : at;  // a sum more would spill
        const int valid = min(task.length - chunk * Config::kChunk, Config::kChunk);
        s.stage_full[stage].wait(i / Config::kStages & 1);
        if (valid < Config::kChunk) me.clear_tail(stage, valid);
        const GateSums sums(me, stage);
        me.total(n, me.block) = sums.last;
        prepare_values(s, stage, valid, me.thread);
        int first = Config::kBlocks;
        if constexpr (Config::kStateOnly) {
            later.begin(me, i);
            me.barrier();
        } else {
            // The products read what clear_tail() wrote.
            if (valid < Config::kChunk) fence_async_proxy();
            const bool mild = sums.last.x > kBlockRange && sums.last.y > kBlockRange;
            if (me.barrier_any(!mild)) first = find_overflow(me, n);
        }
        const int slot = slot_of(me.team, n);
        if constexpr (Config::kStateOnly) {
            take_slot(me, n, slot, first);
            unsigned char* k = s.stage[stage].k;
            decay_rows<Direction::kDown, 16>(
                me, stage, k, k, later.bits + me.totals(n, me.block + 1, Config::kBlocks));
            later.add(me, n);
        } else if (first < Config::kBlocks) {
            take_slot(me, n, slot, first);
            prepare_strong(me, n, stage, slot, first);
            if constexpr (Config::kPaired) {
                s.gates_empty.arrive_warp();
                fence_async_proxy();
                s.rows_full[stage].arrive_warp();
            }
        } else {
            if constexpr (Config::kPaired) s.gates_empty.arrive_warp();  // the sums are in registers
            if constexpr (!Config::kPaired) take_slot(me, n, slot, first);
            scale_rows(me, stage, me.totals(n, 0, me.block), sums);
            fence_async_proxy();
            if constexpr (Config::kPaired) s.rows_full[stage].arrive_warp();
            me.barrier();
            Scores scores;
            scores.multiply(s.stage[stage].q, s.stage[stage].k, me.thread);
            // A pair's one slot for its team waits for math of both blocks.
            if constexpr (Config::kPaired) take_slot(me, n, slot, first);
            scores.store(s.slot[slot].scores, me.thread,
                         [](int i, int j) { return j <= i; });
        }
        publish(s, slot);
    }
    if constexpr (Config::kStateOnly) later.store(p, task, me);
}

}  // namespace sluice::gla
