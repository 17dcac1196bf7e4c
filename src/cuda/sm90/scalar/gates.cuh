// The gate role: a warp for each head turns gates into what scores, values and states are scaled
// by.
#pragma once

#include "sm90/scalar/storage.cuh"

namespace sluice::scalar {

constexpr float kLog2E = 1.4426950408889634f;
/// Less than any state times this is left of nothing, and 64 such sums keep float32's digits.
constexpr float kLeastBits = -256.f;

/// What the gates of a head have in common.
struct HeadRate {
    float bits;  // kConstant: of a token; kTimeStep: per unit of time
    float bias;
};

struct TokenGate {
    float bits;    // log2 of the decay
    float weight;  // of the value
};

// NaN stays NaN, which fmaxf and fminf drop: a gate that is none must not look like one.
__device__ inline float at_least(float x, float least) { return x < least ? least : x; }
__device__ inline float at_most(float x, float most) { return x > most ? most : x; }

/// log(1 + e^x), without a branch: lanes would take the ways of one after the other.
__device__ inline float softplus(float x) {
    const float u = exp2_fast(-fabsf(x) * kLog2E);
    const float log = log2_fast(1.f + u) * (1.f / kLog2E);
    // log(1 + u) loses u's digits where u is small.
    const float series = u * (1.f - u * (0.5f - u * (1.f / 3 - u * 0.25f)));
    return fmaxf(x, 0.f) + (u < 0.02f ? series : log);
}

__device__ inline HeadRate head_rate(const Params& p, int head) {
    if constexpr (Config::kGate == Gate::kConstant) return {p.decay[head] * kLog2E, 0.f};
    if constexpr (Config::kGate == Gate::kTimeStep) {
        const float rate = load_number(p.rate.data, head * p.rate.head_stride, p.rate.type);
        const float bias = p.bias.data == nullptr
                               ? 0.f
                               : load_number(p.bias.data, head * p.bias.head_stride, p.bias.type);
        return {(p.rate_is_log ? -expf(rate) : rate) * kLog2E, bias};
    }
    return {0.f, 0.f};
}

/// The policy: all that differs between simple GLA, Mamba-2, constant and no decay.
__device__ inline TokenGate token_gate(const Params& p, const HeadRate& head, float raw) {
    if constexpr (Config::kGate == Gate::kNone) return {0.f, 1.f};
    if constexpr (Config::kGate == Gate::kConstant) return {head.bits, 1.f};
    if constexpr (Config::kGate == Gate::kGiven) return {raw * kLog2E, 1.f};
    float step = raw + head.bias;
    const float soft = softplus(step);
    step = p.softplus ? soft : step;
    step = at_most(at_least(step, p.least_step), p.greatest_step);
    return {step * head.bits, step};
}

constexpr bool kReadsGates = Config::kGate == Gate::kGiven || Config::kGate == Gate::kTimeStep;

/// A lane's two tokens of a chunk, as they are in memory.
struct RawGates {
    u32 bits[2];
};

/// Reads a head's gates, some chunks at once in the order of work; while those are worked on, as
/// many are on their way.
struct GateReader {
    static constexpr int kChunks = Config::kStateOnly ? 4 : 2;
    static constexpr int kStep = Config::kStateOnly ? -Config::kChunk : Config::kChunk;
    const char* at;  // the lane's first token of the next chunk
    int token;
    RawGates ahead[kChunks];

    __device__ GateReader(const Params& p, const Task& task, int local, int lane)
        : token(task.chunk(0) * Config::kChunk + 2 * lane), ahead{} {
        const long long first = task.batch * p.gate.batch_stride +
                                (task.head + min(local, task.heads - 1)) * p.gate.head_stride +
                                (task.begin + token) * p.gate.token_stride;
        at = static_cast<const char*>(p.gate.data) + first * (p.gate.type == kFloat32 ? 4 : 2);
    }
    /// All loads are in flight together. What the sequence does not have is zero.
    template <class Bits>
    __device__ void fetch_as(const Params& p, int length) {
        const long long token_bytes = p.gate.token_stride * sizeof(Bits);
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool exists = static_cast<u32>(token + e) < static_cast<u32>(length);
                const auto* from = reinterpret_cast<const Bits*>(at + e * token_bytes);
                ahead[c].bits[e] = exists ? *from : 0;
            }
            token += kStep;
            at += kStep * token_bytes;
        }
    }
    __device__ void fetch(const Params& p, const Task& task) {
        if constexpr (!kReadsGates) {
            token += kChunks * kStep;
        } else if (p.gate.type == kFloat32) {
            fetch_as<u32>(p, task.length);
        } else {
            fetch_as<u16>(p, task.length);
        }
    }
    /// What was fetched last; returns the lane's first token of it.
    __device__ int get(Storage&, int, int, RawGates (&raw)[kChunks]) const {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) raw[c] = ahead[c];
        return token - kChunks * kStep;
    }
};

/// The same for the four warps of a block of four heads: each reads a chunk's gates of all heads,
/// which are side by side. Each head's alone would be as many sectors from L2, and those are what
/// the first launch waits for.
struct GateRowReader {
    static constexpr int kHeads = Config::kHeads, kChunks = 4;
    static constexpr int kStep = kChunks * GateReader::kStep;
    const char* at;  // the lane's first token of the warp's next chunk
    int token;
    bool rows;  // a token's are 8 bytes, and aligned
    u32 ahead[2][kHeads];

    __device__ GateRowReader(const Params& p, const Task& task, int warp, int lane)
        : token(task.chunk(warp) * Config::kChunk + 2 * lane) {
        const long long first = task.batch * p.gate.batch_stride + task.head * p.gate.head_stride +
                                (task.begin + token) * p.gate.token_stride;
        at = static_cast<const char*>(p.gate.data) + first * (p.gate.type == kFloat32 ? 4 : 2);
        rows = task.heads == kHeads && p.gate.type != kFloat32 && p.gate.head_stride == 1 &&
               p.gate.token_stride % 4 == 0 && reinterpret_cast<u64>(at) % 8 == 0;
    }
    template <class Bits>
    __device__ void fetch_each(const Params& p, const Task& task) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const auto* from = reinterpret_cast<const Bits*>(at) + e * p.gate.token_stride;
            const bool exists = static_cast<u32>(token + e) < static_cast<u32>(task.length);
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                ahead[e][h] = exists && h < task.heads ? from[h * p.gate.head_stride] : 0;
            }
        }
        at += kStep * p.gate.token_stride * static_cast<int>(sizeof(Bits));
    }
    __device__ void fetch(const Params& p, const Task& task) {
        if (rows) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool exists = static_cast<u32>(token + e) < static_cast<u32>(task.length);
                uint2 x = make_uint2(0, 0);
                if (exists) x = *reinterpret_cast<const uint2*>(at + e * p.gate.token_stride * 2);
                ahead[e][0] = x.x;
                ahead[e][1] = x.y;
            }
            at += kStep * p.gate.token_stride * 2;
        } else if (p.gate.type == kFloat32) {
            fetch_each<u32>(p, task);
        } else {
            fetch_each<u16>(p, task);
        }
        token += kStep;
    }
    /// What the four warps have fetched, of a head; returns the lane's first token of it.
    __device__ int get(Storage& s, int warp, int lane, RawGates (&raw)[kChunks]) {
        if (rows) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const u32 low = ahead[e][0], high = ahead[e][1];
                ahead[e][0] = low & 0xffff;
                ahead[e][1] = low >> 16;
                ahead[e][2 % kHeads] = high & 0xffff;
                ahead[e][3 % kHeads] = high >> 16;
            }
        }
        named_barrier(kGateBarrier, kHeads * 32);  // the chunks before have been read
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
            *reinterpret_cast<uint2*>(&s.gate_rows.bits[warp][h][2 * lane]) =
                make_uint2(ahead[0][h], ahead[1][h]);
        }
        named_barrier(kGateBarrier, kHeads * 32);
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            const uint2 x = *reinterpret_cast<const uint2*>(&s.gate_rows.bits[c][warp][2 * lane]);
            raw[c] = {{x.x, x.y}};
        }
        return token - kStep - warp * GateReader::kStep;
    }
};

template <bool kRows>
struct FirstLaunchReader {
    using Type = GateReader;
};
template <>
struct FirstLaunchReader<true> {
    using Type = GateRowReader;
};

/// As numbers, the type decided once.
template <int kChunks>
__device__ inline void numbers_of(const RawGates (&raw)[kChunks], int type,
                                  float (&x)[kChunks][2]) {
    const int shift = type == kBFloat16 ? 16 : 0;
#pragma unroll
    for (int c = 0; c < kChunks * 2; ++c) {
        x[c / 2][c % 2] = __uint_as_float(raw[c / 2].bits[c % 2] << shift);
    }
    if (type != kFloat16) return;
#pragma unroll
    for (int c = 0; c < kChunks * 2; ++c) x[c / 2][c % 2] = low_fp16(raw[c / 2].bits[c % 2]);
}

/// What a lane's two tokens come to.
struct ChunkGates {
    TokenGate token[2];
    float2 sum;  // b
    float bits;  // of the chunk
};

/// Of several chunks at once: shuffles queue behind the products' operands, each for its own time.
template <int kChunks>
__device__ inline void sum_gates(ChunkGates (&chunk)[kChunks], int lane) {
    float first[kChunks], both[kChunks], through[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
        first[c] = at_least(chunk[c].token[0].bits, kLeastBits);
        both[c] = first[c] + at_least(chunk[c].token[1].bits, kLeastBits);
        through[c] = both[c];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        float before[kChunks];
#pragma unroll
        for (int c = 0; c < kChunks; ++c) before[c] = __shfl_up_sync(~0u, through[c], step);
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            if (lane >= step) through[c] += before[c];
        }
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
        const float up = __shfl_up_sync(~0u, through[c], 1);
        const float before = lane == 0 ? 0.f : up;
        chunk[c].sum = make_float2(before + first[c], before + both[c]);
        chunk[c].bits = __shfl_sync(~0u, through[c], 31);
    }
}

__device__ inline float2 exp2_pair(float2 x) { return make_float2(exp2_fast(x.x), exp2_fast(x.y)); }

/// 2^n, -126 <= n <= 127.
__device__ inline float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

/// What a token's output and its value are scaled by.
struct TokenFactors {
    float row, value;
};

/// 2^(b + lift) and 2^-(b + lift): 2^lift is a factor of its own, so that the same token in a chunk
/// that is lifted and in one that is not has the same bits but for the exponent.
__device__ inline TokenFactors token_factors(float b, int lift) {
    const float in_range = at_least(b, -2 * kRange);
    const float whole = rintf(in_range);
    const float rest = in_range - whole;
    const int n = static_cast<int>(whole) + lift;
    return {exp2_fast(rest) * power_of_two(n), exp2_fast(-rest) * power_of_two(-n)};
}

/// First launch: `after`, bits of the part's later chunks.
__device__ inline void store_part_gates(HeadGates& to, const ChunkGates& g, float after, int lane) {
    const float2 rest = exp2_pair(make_float2(g.bits - g.sum.x + after, g.bits - g.sum.y + after));
    to.rest.set(lane, make_float2(g.token[0].weight * rest.x, g.token[1].weight * rest.y));
}

__device__ inline void store_gates(HeadGates& to, int& reach, const ChunkGates& g, float scale,
                                   int lane) {
    const float2 b = g.sum;
    const bool strong = g.bits < -2 * kRange;
    const bool lifted = g.bits < -kRange;
    const int lift = lifted ? static_cast<int>(kRange) : 0;
    const TokenFactors x = token_factors(b.x, lift);
    const TokenFactors y = token_factors(b.y, lift);
    to.value.set(lane, make_float2(g.token[0].weight * x.value, g.token[1].weight * y.value));
    to.row.set(lane, make_float2(scale * x.row, scale * y.row));
    // The other head's gates may be the strong ones: scores read both heads' shifts then.
    const float2 shift = make_float2(fminf(b.x + 2 * kRange, 0.f), fminf(b.y + 2 * kRange, 0.f));
    to.shift.set(lane, shift);
    reinterpret_cast<float2*>(to.row_shift)[lane] = shift;
    if (strong) {
        const float2 rest = exp2_pair(make_float2(g.bits - b.x, g.bits - b.y));
        to.rest.set(lane, make_float2(g.token[0].weight * rest.x, g.token[1].weight * rest.y));
    }
    if (lane == 0) {
        to.decay = exp2_fast(g.bits + static_cast<float>(lift));
        reach = strong ? kStrong : lifted ? kLifted : kPlain;
    }
}

/// `local`: the head's place in the block.
template <class Reader>
__device__ inline void gate_warp(const Params& p, Storage& s, int local) {
    constexpr int kAhead = Reader::kChunks;
    const Task& task = s.task;
    const int head = task.head + min(local, task.heads - 1);
    const auto lane = [] { return thread_anew() % 32; };  // not kept in a register
    Reader reader(p, task, local, lane());
    reader.fetch(p, task);
    const HeadRate rate = head_rate(p, head);  // while that is on its way
    float bits = 0.f;
    for (int first = 0; task.first + first < task.end; first += kAhead) {
        float raw[kAhead][2];
        RawGates loaded[kAhead];
        int token = reader.get(s, local, lane(), loaded);
        numbers_of(loaded, p.gate.type, raw);
        ChunkGates gates[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const TokenGate gate = token_gate(p, rate, raw[a][e]);
                const bool exists = token + e < task.length;
                gates[a].token[e] = {exists ? gate.bits : 0.f, exists ? gate.weight : 0.f};
            }
            token += GateReader::kStep;
        }
        reader.fetch(p, task);
        if constexpr (!Config::kNormalized) sum_gates(gates, lane());
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
            const int i = first + a;
            if (task.first + i >= task.end) break;
            const int stage = i % Config::kStages;
            HeadGates& to = s.gates[stage][local];
            s.stage_empty[stage].wait((i / Config::kStages + 1) & 1);
            if constexpr (Config::kNormalized) {
                // Nothing decays; rows' factors: normalizer.cuh.
            } else if constexpr (Config::kStateOnly) {
                store_part_gates(to, gates[a], bits, lane());
                bits += gates[a].bits;
            } else {
                store_gates(to, s.reaches[stage].head[local], gates[a], p.scale, lane());
            }
            s.stage_full[stage].arrive_warp();
        }
    }
    if constexpr (Config::kStateOnly) {
        if (lane() != 0 || task.value_tile != 0 || local >= task.heads) return;
        const long long row = static_cast<long long>(task.sequence) * p.heads + head;
        p.segment_decay[row * (parts_of(p) + 1) + task.part] = exp2_fast(bits);
    }
}

}  // namespace sluice::scalar
