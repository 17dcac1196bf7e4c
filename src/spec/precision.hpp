// What Precision::kAuto means.
#pragma once

#include <algorithm>

#include "sluice/problem.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice {

/// float64 where every input is; on a CUDA device bfloat16 where all that q, k and v read per token
/// is 16 bits wide (more precision would not come from such inputs); else float32.
[[nodiscard]] inline Precision resolve_precision(Precision wanted, const Spec& spec,
                                                 const NamedTensors& inputs) {
    if (wanted != Precision::kAuto) return wanted;
    const auto all = [&](auto&& holds) {
        return std::all_of(inputs.begin(), inputs.end(), [&](const auto& x) { return holds(x); });
    };
    if (all([](const auto& x) { return x.second.dtype == DType::kFloat64; })) {
        return Precision::kFloat64;
    }
    if (inputs.empty() || inputs.front().second.device.kind != DeviceKind::kCuda) {
        return Precision::kFloat32;
    }
    const bool narrow = all([&](const auto& x) {
        const Input* input = spec.find_input(x.first);
        const bool per_token = input != nullptr && std::find(input->axes.begin(), input->axes.end(),
                                                             Axis::kT) != input->axes.end();
        const bool operand =
            per_token && (reads_input(spec.q, x.first) || reads_input(spec.k, x.first) ||
                          reads_input(spec.v, x.first));
        return !operand || size_bytes(x.second.dtype) == 2;
    });
    return narrow ? Precision::kBFloat16 : Precision::kFloat32;
}

}  // namespace sluice
