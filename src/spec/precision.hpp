// What Precision::kAuto means.
#pragma once

#include <algorithm>

#include "sluice/problem.hpp"

namespace sluice {

/// float64 where every input is, else float32.
[[nodiscard]] inline Precision resolve_precision(Precision wanted, const NamedTensors& inputs) {
    if (wanted != Precision::kAuto) return wanted;
    const bool all_wide = std::all_of(inputs.begin(), inputs.end(), [](const auto& input) {
        return input.second.dtype == DType::kFloat64;
    });
    return all_wide ? Precision::kFloat64 : Precision::kFloat32;
}

}  // namespace sluice
