// The bf16-operand mode: operands of products rounded where a tensor-core kernel rounds them, sums
// in float32. What rounding alone costs is then known for any input.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/convert.hpp"

namespace sluice::cpu {

enum class Rounding : unsigned char { kNone, kBFloat16 };

template <class Real>
Real to_bfloat16(Real x) {
    return static_cast<Real>(static_cast<float>(BFloat16(static_cast<float>(x))));
}

/// One bf16 operand.
template <class Real>
void round_operand(Rounding rounding, std::int64_t n, Real* x) {
    if (rounding == Rounding::kNone) return;
    for (std::int64_t i = 0; i < n; ++i) x[i] = to_bfloat16(x[i]);
}

/// Two bf16 operands, high and low part: what the delta rules need for U and S, whose rounding
/// errors the recurrence feeds back (docs/exactness.md).
template <class Real>
void round_operand_pair(Rounding rounding, std::int64_t n, Real* x) {
    if (rounding == Rounding::kNone) return;
    for (std::int64_t i = 0; i < n; ++i) {
        const Real high = to_bfloat16(x[i]);
        x[i] = high + to_bfloat16(x[i] - high);
    }
}

}  // namespace sluice::cpu
