// Any recurrence of the family, token by token in float32: the path that takes every spec.
//
//   S <- D S + k u^T   with   u = v,   or   u = beta (v - (D S)^T k)
//   S <- D S + a (b^T S) + k v^T                      o = output(scale S^T q)
//
// `Formulas` is a generated struct (cuda/emit): the kind of update and decay as constants, and each
// operand as a function of the inputs. A block of threads has one sequence's head and a tile of
// value channels; it takes kTokens tokens at a time:
//
//   stage    one warp a token      evaluates q, k, v, exp g, beta, a, b into shared memory
//   advance  every thread          kLanes threads share four columns of the state, each with its
//   keys
//                                  in registers; sums over keys by exchange between the lanes
//   finish   one warp a token      the output stage; stores o
//
// Value columns are computed alike wherever they fall, sums in a fixed order: results depend
// neither on neighbours nor on where tiles of tokens begin.
#pragma once

#include "emit/formula.cuh"
#include "recurrent/config.cuh"
#include "recurrent/numbers.cuh"
#include "recurrent/params.cuh"

namespace sluice::recurrent {

using formula::Decay;
using formula::Update;

constexpr long long kNever = 0x7fffffffffffffffll;
constexpr float kNormalizerEpsilon = 1e-10f;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// What a block works on.
struct Task {
    long long sequence, batch, begin, length;  // tokens [begin, begin + length) of a batch row
    long long read_slot, write_slot;           // -1: none
    int head;
    int first_tile;
    int skip;  // padding: output zero, nothing else touched
};

/// Operands of a tile of tokens, and its outputs. Rows of key channels are padded with zeros.
template <class Formulas>
struct Storage {
    static constexpr bool kRankOne = Formulas::kUpdate == Update::kRankOne;
    static constexpr bool kVectorDecay = Formulas::kDecay == Decay::kVector;

    alignas(16) float q[Config::kTokens][Config::kKeys];
    float k[Config::kTokens][Config::kKeys];
    float decay[Config::kTokens][kVectorDecay ? Config::kKeys : 1];  // factors
    alignas(16) float a[kRankOne ? Config::kTokens : 1][kRankOne ? Config::kKeys : 4];
    float b[kRankOne ? Config::kTokens : 1][kRankOne ? Config::kKeys : 4];
    float v[Config::kTokens][Config::kValues];
    float o[Config::kTokens][Config::kValues];
    float beta[Config::kTokens];
    long long base[kMaxInputs];  // where each input's elements of this sequence and head begin
    Task task;                   // here, so that registers are left for the state
};

// ---- what a block works on --------------------------------------------------------------------

__device__ inline long long read_index(const IndexTensor& x, long long row, long long column = 0) {
    const long long at = row * x.row_stride + column * x.column_stride;
    return x.is_64_bit ? static_cast<const long long*>(x.data)[at]
                       : static_cast<const int*>(x.data)[at];
}

/// Indices that nobody validated may give wrong numbers, not wrong accesses.
__device__ inline long long valid_slot(long long slot, const StateTensor& pool) {
    return slot >= 0 && slot < pool.slots ? slot : -1;
}

/// The slot named for reading, whether or not the sequence has an initial state.
__device__ inline long long named_read_slot(const Params& p, long long sequence) {
    if (p.initial.data == nullptr) return -1;
    if (p.read_slots.data == nullptr) return valid_slot(sequence, p.initial);
    const long long column = p.accepted.data == nullptr ? 0 : read_index(p.accepted, sequence) - 1;
    if (column < 0 || column >= p.read_slots.columns) return -1;
    return valid_slot(read_index(p.read_slots, sequence, column), p.initial);
}

/// The slot for the state after the sequence, or after its token `token`.
__device__ inline long long named_write_slot(const Params& p, long long sequence, long long token) {
    if (p.final.data == nullptr) return -1;
    const long long slot =
        p.write_slots.data == nullptr ? sequence : read_index(p.write_slots, sequence, token);
    return valid_slot(slot, p.final);
}

__device__ inline Task decode_task(const Params& p) {
    Task task;
    const int tile_blocks = p.value_tiles / p.tiles_per_block;
    long long x = blockIdx.x;
    task.first_tile = static_cast<int>(x % tile_blocks) * p.tiles_per_block;
    x /= tile_blocks;
    task.head = static_cast<int>(x % p.heads);
    task.sequence = x / p.heads;
    const bool packed = p.cu_seqlens.data != nullptr;
    task.batch = packed ? 0 : task.sequence;
    task.begin = 0;
    task.length = p.tokens;
    if (packed) {
        const auto offset = [&](long long i) {
            const long long value = read_index(p.cu_seqlens, i);
            return value < 0 ? 0 : value > p.tokens ? p.tokens : value;
        };
        task.begin = offset(task.sequence);
        const long long end = offset(task.sequence + 1);
        task.length = end > task.begin ? end - task.begin : 0;
    }
    task.read_slot = named_read_slot(p, task.sequence);
    task.write_slot = p.writes_every_token ? -1 : named_write_slot(p, task.sequence, 0);
    bool writes = task.write_slot >= 0;
    for (long long t = 0; p.writes_every_token && !writes && t < task.length; ++t) {
        writes = named_write_slot(p, task.sequence, t) >= 0;
    }
    task.skip = p.padding && task.read_slot < 0 && !writes;
    if (p.has_initial != nullptr && p.has_initial[task.sequence * p.has_initial_stride] == 0) {
        task.read_slot = -1;
    }
    return task;
}

// ---- operands ---------------------------------------------------------------------------------

/// One element of one token, as generated formulas see it.
template <class Storage, int kNorms>
struct Element {
    const Params& p;
    const Storage& s;
    int head;
    long long token;  // of the sequence
    int channel;
    float norms[kNorms > 0 ? kNorms : 1];
    float output;

    __device__ float input(int i) const {
        const Tensor& x = p.inputs[i];
        return load_input(x.data, x.type,
                          s.base[i] + token * x.token_stride + channel * x.channel_stride);
    }
    __device__ float parameter(int i) const { return p.parameters[i]; }
    __device__ float head_index() const { return static_cast<float>(head); }
    __device__ float num_heads() const { return static_cast<float>(p.heads); }
    /// 1 / sqrt(sum of squares) of the formula's i-th norm.
    __device__ float norm(int i) const { return norms[i]; }
    __device__ float o() const { return output; }
};

__device__ inline float sum_over_warp(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
    return x;
}

/// The norms of a formula, one after the other: a later one may read an earlier one.
template <class Operand, int kNorm, class Element>
__device__ inline void evaluate_norms(Element& at, int lane) {
    if constexpr (kNorm < Operand::kNorms) {
        float sum = 0.f;
#pragma unroll
        for (int c = lane; c < Config::kKeys; c += 32) {
            at.channel = min(c, at.p.keys - 1);
            const float x = Operand::template normed<kNorm>(at);
            sum += c < at.p.keys ? x * x : 0.f;
        }
        at.norms[kNorm] = 1.f / sqrtf(sum_over_warp(sum) + formula::kNormEpsilon);
        evaluate_norms<Operand, kNorm + 1>(at, lane);
    }
}

/// A whole warp: one token's channels [first, first + kCount) of `extent`; zeros past the end.
/// Channels past the end repeat the last one, so that no load stands behind a branch.
template <class Operand, int kCount, class Storage, class Map>
__device__ inline void stage_row(const Params& p, const Storage& s, const Task& task,
                                 long long token, int first, int extent, int lane, float* row,
                                 Map&& map) {
    Element<Storage, Operand::kNorms> at{p, s, task.head, token, 0, {}, 0.f};
    evaluate_norms<Operand, 0>(at, lane);
#pragma unroll
    for (int c = lane; c < kCount; c += 32) {
        at.channel = min(first + c, extent - 1);
        const float x = map(Operand::value(at));
        row[c] = first + c < extent ? x : 0.f;
    }
}

template <class Operand, class Storage>
__device__ inline float evaluate_scalar(const Params& p, const Storage& s, const Task& task,
                                        long long token) {
    const Element<Storage, 0> at{p, s, task.head, token, 0, {}, 0.f};
    return Operand::value(at);
}

template <class Formulas>
__device__ inline void stage_token(const Params& p, const Task& task, int tile, long long token,
                                   int row, int lane, Storage<Formulas>& s) {
    const auto same = [](float x) { return x; };
    stage_row<typename Formulas::Query, Config::kKeys>(p, s, task, token, 0, p.keys, lane, s.q[row],
                                                       same);
    stage_row<typename Formulas::Key, Config::kKeys>(p, s, task, token, 0, p.keys, lane, s.k[row],
                                                     same);
    stage_row<typename Formulas::Value, Config::kValues>(p, s, task, token, tile * Config::kValues,
                                                         p.values, lane, s.v[row], same);
    if constexpr (Formulas::kDecay == Decay::kVector) {
        stage_row<typename Formulas::LogDecay, Config::kKeys>(
            p, s, task, token, 0, p.keys, lane, s.decay[row], [](float g) { return expf(g); });
    } else if constexpr (Formulas::kDecay != Decay::kNone) {
        const float g = evaluate_scalar<typename Formulas::LogDecay>(p, s, task, token);
        if (lane == 0) s.decay[row][0] = expf(g);
    }
    if constexpr (Formulas::kUpdate == Update::kDelta) {
        const float beta = evaluate_scalar<typename Formulas::Beta>(p, s, task, token);
        if (lane == 0) s.beta[row] = beta;
    }
    if constexpr (Formulas::kUpdate == Update::kRankOne) {
        stage_row<typename Formulas::RankOneA, Config::kKeys>(p, s, task, token, 0, p.keys, lane,
                                                              s.a[row], same);
        stage_row<typename Formulas::RankOneB, Config::kKeys>(p, s, task, token, 0, p.keys, lane,
                                                              s.b[row], same);
    }
}

__device__ inline void store_output(const Params& p, const Task& task, long long token, int channel,
                                    float x) {
    store_number(p.o.data, p.o.type,
                 task.batch * p.o.batch_stride + (task.begin + token) * p.o.token_stride +
                     task.head * p.o.head_stride + channel * p.o.channel_stride,
                 x);
}

template <class Formulas>
__device__ inline void finish_token(const Params& p, const Task& task, int tile, long long token,
                                    int row, int lane, const Storage<Formulas>& s) {
    Element<Storage<Formulas>, 0> at{p, s, task.head, token, 0, {}, 0.f};
#pragma unroll
    for (int c = lane; c < Config::kValues; c += 32) {
        const int channel = tile * Config::kValues + c;
        at.channel = min(channel, p.values - 1);
        at.output = s.o[row][c];
        const float x = Formulas::Output::value(at);
        if (channel < p.values) store_output(p, task, token, channel, x);
    }
}

__device__ inline void store_padding(const Params& p, const Task& task) {
    const int first = task.first_tile * Config::kValues;
    const int end = min(first + p.tiles_per_block * Config::kValues, p.values);
    for (long long t = 0; t < task.length; ++t) {
        for (int c = first + static_cast<int>(threadIdx.x); c < end; c += kThreads) {
            store_output(p, task, t, c, 0.f);
        }
    }
}

// ---- state ------------------------------------------------------------------------------------

/// A thread's part of the state: four columns, and of their keys every kLanes-th quad.
struct Columns {
    float s[Config::kRows][kColumns];
    float key_sum[Config::kRows];  // normalised specs only; the same in every group of lanes
    int lane;                      // among those that share the columns
    int first;                     // value channel
    int local;                     // the same, in the block's tile

    __device__ explicit Columns(int tile)
        : lane(static_cast<int>(threadIdx.x) % Config::kLanes),
          local(static_cast<int>(threadIdx.x) / Config::kLanes * kColumns) {
        first = tile * Config::kValues + local;
    }

    __device__ int key(int quad, int i) const { return (quad * Config::kLanes + lane) * 4 + i; }
    /// Of the four columns, the one whose sums this lane keeps.
    __device__ int own() const { return lane % kColumns; }
};

/// Calls f(quad, i, column) for every element of a thread.
template <class F>
__device__ inline void for_each_element(F&& f) {
#pragma unroll
    for (int quad = 0; quad < Config::kQuads; ++quad) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) f(quad, i, c);
        }
    }
}

__device__ inline void load_state(const Params& p, const Task& task, Columns& x) {
    const StateTensor& t = p.initial;
    const bool any = task.read_slot >= 0;
    const long long base = task.read_slot * t.slot_stride + task.head * t.head_stride;
    const auto offset = [&](int key, int column) {
        return base + key * t.key_stride + column * t.value_stride;
    };
    if (t.quads == kValueQuads) {
#pragma unroll
        for (int r = 0; r < Config::kRows; ++r) {
            const int key = x.key(r / 4, r % 4);
            load_state_quad(any && key < p.keys && x.first < p.values, t.data, t.type,
                            offset(key, x.first), x.s[r]);
        }
    } else if (t.quads == kKeyQuads) {
#pragma unroll
        for (int r = 0; r < Config::kQuads * kColumns; ++r) {
            const int quad = r / kColumns, c = r % kColumns;
            const int key = x.key(quad, 0), column = x.first + c;
            float y[4];
            load_state_quad(any && key < p.keys && column < p.values, t.data, t.type,
                            offset(key, column), y);
#pragma unroll
            for (int i = 0; i < 4; ++i) x.s[quad * 4 + i][c] = y[i];
        }
    } else {
        for_each_element([&](int quad, int i, int c) {
            const int key = x.key(quad, i), column = x.first + c;
            x.s[quad * 4 + i][c] = load_state_number(any && key < p.keys && column < p.values,
                                                     t.data, t.type, offset(key, column));
        });
    }
}

__device__ inline void load_key_sum(const Params& p, const Task& task, Columns& x) {
    const StateTensor& t = p.initial_key_sum;
    const bool any = task.read_slot >= 0 && t.data != nullptr;
    const long long base = task.read_slot * t.slot_stride + task.head * t.head_stride;
#pragma unroll
    for (int r = 0; r < Config::kRows; ++r) {
        const int key = x.key(r / 4, r % 4);
        x.key_sum[r] =
            load_state_number(any && key < p.keys, t.data, t.type, base + key * t.key_stride);
    }
}

__device__ inline void store_state(const Params& p, const StateTensor& t, const Task& task,
                                   long long slot, const Columns& x) {
    const long long base = hide(slot * t.slot_stride + task.head * t.head_stride);
    const long long key_stride = hide(t.key_stride), value_stride = hide(t.value_stride);
    const auto offset = [&](int key, int column) {
        return base + key * key_stride + column * value_stride;
    };
    if (t.quads == kValueQuads) {
#pragma unroll
        for (int r = 0; r < Config::kRows; ++r) {
            const int key = x.key(r / 4, r % 4);
            if (key < p.keys && x.first < p.values) {
                store_quad(t.data, t.type, offset(key, x.first), x.s[r]);
            }
        }
    } else if (t.quads == kKeyQuads) {
#pragma unroll
        for (int r = 0; r < Config::kQuads * kColumns; ++r) {
            const int quad = r / kColumns, c = r % kColumns;
            const int key = x.key(quad, 0), column = x.first + c;
            const float y[4] = {x.s[quad * 4][c], x.s[quad * 4 + 1][c], x.s[quad * 4 + 2][c],
                                x.s[quad * 4 + 3][c]};
            if (key < p.keys && column < p.values) {
                store_quad(t.data, t.type, offset(key, column), y);
            }
        }
    } else {
        for_each_element([&](int quad, int i, int c) {
            const int key = x.key(quad, i), column = x.first + c;
            if (key < p.keys && column < p.values) {
                store_number(t.data, t.type, offset(key, column), x.s[quad * 4 + i][c]);
            }
        });
    }
}

/// By the lanes of the block's first columns.
__device__ inline void store_key_sum(const Params& p, const Task& task, long long slot,
                                     const Columns& x) {
    const StateTensor& t = p.final_key_sum;
    if (t.data == nullptr || x.local != 0) return;
    const long long base = hide(slot * t.slot_stride + task.head * t.head_stride);
    const long long key_stride = hide(t.key_stride);
#pragma unroll
    for (int r = 0; r < Config::kRows; ++r) {
        const int key = x.key(r / 4, r % 4);
        if (key < p.keys) store_number(t.data, t.type, base + key * key_stride, x.key_sum[r]);
    }
}

// ---- states inside a sequence -----------------------------------------------------------------

/// The first position from `from` on that a state of the sequence is wanted at. Every warp finds
/// the same.
__device__ inline long long next_checkpoint(const Params& p, const Task& task, long long from) {
    long long next = kNever;
    for (long long m = threadIdx.x % 32; m < p.checkpoint_count; m += 32) {
        if (read_index(p.checkpoint_sequences, m) != task.sequence) continue;
        const long long position = read_index(p.checkpoint_positions, m);
        // As in every kernel: multiples of 64 only.
        if (position % 64 != 0) continue;
        if (position >= from && position <= task.length && position < next) next = position;
    }
    for (int step = 16; step > 0; step /= 2) {
        const long long other = __shfl_xor_sync(kWholeWarp, next, step);
        next = other < next ? other : next;
    }
    return next;
}

/// The state at `position` to every slot that wants it.
__device__ inline void store_checkpoints(const Params& p, const Task& task, long long position,
                                         const Columns& x) {
    for (long long first = 0; first < p.checkpoint_count; first += 32) {
        const long long m = first + threadIdx.x % 32;
        long long slot = -1;
        if (m < p.checkpoint_count && read_index(p.checkpoint_sequences, m) == task.sequence &&
            read_index(p.checkpoint_positions, m) == position) {
            slot = valid_slot(read_index(p.checkpoint_slots, m), p.checkpoints);
        }
        unsigned wanted = __ballot_sync(kWholeWarp, slot >= 0);
        while (wanted != 0) {
            const int source = __ffs(static_cast<int>(wanted)) - 1;
            store_state(p, p.checkpoints, task, __shfl_sync(kWholeWarp, slot, source), x);
            wanted &= wanted - 1;
        }
    }
}

// ---- one step ---------------------------------------------------------------------------------

/// Sums over the lanes that share the four columns x; each lane gets the sum of its own().
__device__ inline float sum_columns(const float (&x)[kColumns], int lane) {
    const bool high = (lane & 2) != 0, odd = (lane & 1) != 0;
    const float a = (high ? x[2] : x[0]) + __shfl_xor_sync(kWholeWarp, high ? x[0] : x[2], 2);
    const float b = (high ? x[3] : x[1]) + __shfl_xor_sync(kWholeWarp, high ? x[1] : x[3], 2);
    float sum = (odd ? b : a) + __shfl_xor_sync(kWholeWarp, odd ? a : b, 1);
#pragma unroll
    for (int step = 4; step < Config::kLanes; step *= 2) {
        sum += __shfl_xor_sync(kWholeWarp, sum, step);
    }
    return sum;
}

/// The four columns' numbers, from the lanes that own them.
__device__ inline void share_columns(float own, float (&x)[kColumns]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
        x[c] = __shfl_sync(kWholeWarp, own, (lane & ~(kColumns - 1)) | c);
    }
}

/// The thread's keys of a staged row.
__device__ inline void load_keys(const float* row, const Columns& x, float (&keys)[Config::kRows]) {
#pragma unroll
    for (int quad = 0; quad < Config::kQuads; ++quad) {
        const float4 y = *reinterpret_cast<const float4*>(row + x.key(quad, 0));
        keys[quad * 4] = y.x;
        keys[quad * 4 + 1] = y.y;
        keys[quad * 4 + 2] = y.z;
        keys[quad * 4 + 3] = y.w;
    }
}

/// x^T S over the thread's keys, summed: what the lane owns of it.
__device__ inline float contract(const float (&row)[Config::kRows], const Columns& x) {
    float sum[kColumns] = {};
    for_each_element([&](int quad, int i, int c) {
        sum[c] = fmaf(row[quad * 4 + i], x.s[quad * 4 + i][c], sum[c]);
    });
    return sum_columns(sum, x.lane);
}

/// The state after a staged token, and its output before the output stage.
template <class Formulas>
__device__ inline float advance(const Params& p, const Storage<Formulas>& s, int row, Columns& x) {
    constexpr int kRows = Config::kRows;
    float k[kRows], q[kRows], u[kColumns];
    load_keys(s.k[row], x, k);

    float removed[kColumns];  // rank-one: b^T S, of the state before the decay
    if constexpr (Formulas::kUpdate == Update::kRankOne) {
        float b[kRows];
        load_keys(s.b[row], x, b);
        share_columns(contract(b, x), removed);
    }
    if constexpr (Formulas::kDecay != Decay::kNone) {
        float decay[kRows];
        if constexpr (Formulas::kDecay == Decay::kVector) {
            load_keys(s.decay[row], x, decay);
        } else {
#pragma unroll
            for (int r = 0; r < kRows; ++r) decay[r] = s.decay[row][0];
        }
        for_each_element(
            [&](int quad, int i, int c) { x.s[quad * 4 + i][c] *= decay[quad * 4 + i]; });
        if constexpr (Formulas::kNormalize) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) x.key_sum[r] *= decay[r];
        }
    }
    if constexpr (Formulas::kUpdate == Update::kDelta) {
        share_columns(s.beta[row] * (s.v[row][x.local + x.own()] - contract(k, x)), u);
    } else {
        const float4 v = *reinterpret_cast<const float4*>(&s.v[row][x.local]);
        u[0] = v.x;
        u[1] = v.y;
        u[2] = v.z;
        u[3] = v.w;
    }
    if constexpr (Formulas::kUpdate == Update::kRankOne) {
        float a[kRows];
        load_keys(s.a[row], x, a);
        for_each_element([&](int quad, int i, int c) {
            const int r = quad * 4 + i;
            x.s[r][c] = fmaf(a[r], removed[c], x.s[r][c]);
        });
    }
    for_each_element([&](int quad, int i, int c) {
        const int r = quad * 4 + i;
        x.s[r][c] = fmaf(k[r], u[c], x.s[r][c]);
    });
    load_keys(s.q[row], x, q);
    const float read = p.scale * contract(q, x);
    if constexpr (Formulas::kNormalize) {
        float divisor = 0.f;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            x.key_sum[r] += k[r];
            divisor = fmaf(q[r], x.key_sum[r], divisor);
        }
#pragma unroll
        for (int step = 1; step < Config::kLanes; step *= 2) {
            divisor += __shfl_xor_sync(kWholeWarp, divisor, step);
        }
        return read / (p.scale * divisor + kNormalizerEpsilon);
    }
    return read;
}

// ---- a block ----------------------------------------------------------------------------------

template <class Formulas>
__device__ inline void run_tile(const Params& p, const Task& task, int tile, Storage<Formulas>& s) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Columns x(tile);
    load_state(p, task, x);
    if constexpr (Formulas::kNormalize) load_key_sum(p, task, x);
    // s.base is complete, and in-place key sums are read, before anybody goes on.
    __syncthreads();
    long long next = next_checkpoint(p, task, 0);
    for (long long done = 0;;) {
        if (done == next) {
            store_checkpoints(p, task, done, x);
            next = next_checkpoint(p, task, done + 1);
        }
        const bool last = done == task.length;
        long long slot = last ? task.write_slot : -1;
        if (p.writes_every_token && done > 0) slot = named_write_slot(p, task.sequence, done - 1);
        if (slot >= 0) {
            store_state(p, p.final, task, slot, x);
            if constexpr (Formulas::kNormalize) {
                if (tile == p.value_tiles - 1) store_key_sum(p, task, slot, x);
            }
        }
        if (last) return;

        const long long stop = next < task.length ? next : task.length;
        const int tokens_most = p.writes_every_token ? 1 : Config::kTokens;
        const int tokens = stop - done < tokens_most ? static_cast<int>(stop - done) : tokens_most;
#pragma unroll 1
        for (int t = warp; t < tokens; t += Config::kWarps) {
            stage_token(p, task, tile, done + t, t, lane, s);
        }
        __syncthreads();
#pragma unroll 1
        for (int t = 0; t < tokens; ++t) {
            const float o = advance(p, s, t, x);
            if (x.lane < kColumns) s.o[t][x.local + x.own()] = o;
        }
        __syncthreads();
#pragma unroll 1
        for (int t = warp; t < tokens; t += Config::kWarps) {
            finish_token(p, task, tile, done + t, t, lane, s);
        }
        done += tokens;
    }
}

template <class Formulas>
__device__ inline void run(const Params& p, Storage<Formulas>& s) {
    if (threadIdx.x == 0) s.task = decode_task(p);
    __syncthreads();
    const Task& task = s.task;
    if (task.skip) return store_padding(p, task);
    if (threadIdx.x < Formulas::kInputs) {
        const Tensor& x = p.inputs[threadIdx.x];
        s.base[threadIdx.x] = task.batch * x.batch_stride + task.begin * x.token_stride +
                              task.head / p.heads_per_key_head * x.key_head_stride +
                              task.head * x.head_stride;
    }
    for (int i = 0; i < p.tiles_per_block; ++i) run_tile(p, task, task.first_tile + i, s);
}

}  // namespace sluice::recurrent
