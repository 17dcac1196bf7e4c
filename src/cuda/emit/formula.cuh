// What generated formulas are made of: the elementwise functions of an Expr, in float32.
//
// The same definitions as the CPU's (cpu/program.cpp): none overflows where its value does not.
#pragma once

namespace sluice::formula {

enum class Update { kAdditive, kDelta, kRankOne };
enum class Decay { kNone, kConstant, kScalar, kVector };

constexpr float kNormEpsilon = 1e-6f;

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline float nan() { return __uint_as_float(0x7fc00000u); }

__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
__device__ inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.f + expf(-x)); }
__device__ inline float relu(float x) { return x < 0.f ? 0.f : x; }
__device__ inline float elu(float x) { return x > 0.f ? x : expm1f(x); }
__device__ inline float smaller(float x, float y) { return y < x ? y : x; }
__device__ inline float larger(float x, float y) { return x < y ? y : x; }

}  // namespace sluice::formula
