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

__device__ inline float softplus(float x) {
    const float u = exp2_fast(x * kLog2E);
    if (x > 15.f) return x + exp2_fast(-x * kLog2E);
    // log(1 + u) loses u's digits where u is small.
    if (u < 0.02f) return u * (1.f - u * (0.5f - u * (1.f / 3 - u * 0.25f)));
    return log2_fast(1.f + u) * (1.f / kLog2E);
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
    if (p.softplus) step = softplus(step);
    step = at_most(at_least(step, p.least_step), p.greatest_step);
    return {step * head.bits, step};
}

constexpr bool kReadsGates = Config::kGate == Gate::kGiven || Config::kGate == Gate::kTimeStep;

/// A lane's two tokens of a chunk, as they are in memory.
struct RawGates {
    u32 bits[2];
};

__device__ inline RawGates fetch(const Params& p, const Task& task, int head, int chunk, int lane) {
    RawGates raw = {};
    if constexpr (kReadsGates) {
        const int token = chunk * Config::kChunk + 2 * lane;
        const long long at = task.batch * p.gate.batch_stride +
                             (task.begin + token) * p.gate.token_stride + head * p.gate.head_stride;
        if (token < task.length) raw.bits[0] = load_bits(p.gate.data, at, p.gate.type);
        if (token + 1 < task.length) {
            raw.bits[1] = load_bits(p.gate.data, at + p.gate.token_stride, p.gate.type);
        }
    }
    return raw;
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

__device__ inline void store_gates(HeadGates& to, int& reach, const ChunkGates& g, float scale,
                                   int lane) {
    const float2 b = g.sum;
    const bool strong = g.bits < -2 * kRange;
    const bool lifted = !Config::kStateOnly && g.bits < -kRange;
    const int lift = lifted ? static_cast<int>(kRange) : 0;
    if constexpr (!Config::kStateOnly) {
        const TokenFactors x = token_factors(b.x, lift);
        const TokenFactors y = token_factors(b.y, lift);
        to.value.set(lane, make_float2(g.token[0].weight * x.value, g.token[1].weight * y.value));
        to.row.set(lane, make_float2(scale * x.row, scale * y.row));
        // The other head's gates may be the strong ones: scores read both heads' shifts then.
        const float2 shift =
            make_float2(fminf(b.x + 2 * kRange, 0.f), fminf(b.y + 2 * kRange, 0.f));
        to.shift.set(lane, shift);
        reinterpret_cast<float2*>(to.row_shift)[lane] = shift;
    }
    if (Config::kStateOnly || strong) {
        const float2 rest = exp2_pair(make_float2(g.bits - b.x, g.bits - b.y));
        to.rest.set(lane, make_float2(g.token[0].weight * rest.x, g.token[1].weight * rest.y));
    }
    if (lane == 0) {
        to.decay = exp2_fast(g.bits + static_cast<float>(lift));
        reach = strong ? kStrong : lifted ? kLifted : kPlain;
    }
}

/// `local`: the head's place in the block.
__device__ inline void gate_warp(const Params& p, Storage& s, int local) {
    // Chunks at a time; as many are on their way from memory.
    constexpr int kAhead = Config::kStateOnly ? 4 : 2;
    const Task& task = s.task;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int head = task.head + min(local, task.heads - 1);
    const HeadRate rate = head_rate(p, head);
    float bits = 0.f;
    RawGates ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) ahead[a] = fetch(p, task, head, task.first + a, lane);
    for (int first = task.first; first < task.end; first += kAhead) {
        ChunkGates gates[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
            const int token = (first + a) * Config::kChunk + 2 * lane;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                TokenGate& to = gates[a].token[e];
                to = token_gate(p, rate, number_of(ahead[a].bits[e], p.gate.type));
                if (token + e >= task.length) to = {0.f, 0.f};
            }
            ahead[a] = fetch(p, task, head, first + kAhead + a, lane);
        }
        sum_gates(gates, lane);
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
            if (first + a >= task.end) break;
            bits += gates[a].bits;
            const int i = first + a - task.first;
            const int stage = i % Config::kStages;
            s.stage_empty[stage].wait((i / Config::kStages + 1) & 1);
            store_gates(s.gates[stage][local], s.reaches[stage].head[local], gates[a], p.scale,
                        lane);
            s.stage_full[stage].arrive_warp();
        }
    }
    if constexpr (Config::kStateOnly) {
        if (lane != 0 || task.value_tile != 0 || local >= task.heads) return;
        const long long row = static_cast<long long>(task.sequence) * p.heads + head;
        p.segment_decay[row * p.segments + task.segment] = exp2_fast(bits);
    }
}

}  // namespace sluice::scalar
