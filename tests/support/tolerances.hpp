// The project's error bounds (docs/exactness.md): one table for every backend.
#pragma once

#include "sluice/problem.hpp"

namespace sluice::test {

enum class Quantity : unsigned char {
    kOutput,
    kState,
    kGradient,      // of q, k, v, S0
    kGateGradient,  // of g, beta
};
[[nodiscard]] const char* to_string(Quantity quantity) noexcept;

/// Delta rules amplify the rounding of operands when keys repeat.
enum class Regime : unsigned char {
    kOrdinary,
    kRepeatedKeys,  // 0.95-correlated or identical keys, beta = 1
    kReflections,   // identical keys or four in turn, beta = 2, no decay, T <= 512
};

/// Largest RMS(x - ref) / RMS(ref). `precision` is a resolved one, never kAuto.
[[nodiscard]] double bound(Precision precision, Update update, Quantity quantity,
                           Regime regime = Regime::kOrdinary);

/// What rounding a result to `dtype` may add to an error: nothing beyond the table for the
/// reduced precision, whose rows include it.
[[nodiscard]] double storage_bound(Precision precision, DType dtype);

}  // namespace sluice::test
