// What Precision::kAuto means.
#pragma once

#include <algorithm>

#include "sluice/problem.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice {

/// An operand of products: channels of q, k or v per token, or what they are made of. A number per
/// token and head that weighs a whole row (Mamba-2's time step) is none: like a gate it goes into
/// factors, which are float32 in every kernel.
[[nodiscard]] inline bool is_operand(const Spec& spec, const Input& input) {
    const auto has = [&](Axis axis) {
        return std::find(input.axes.begin(), input.axes.end(), axis) != input.axes.end();
    };
    return has(Axis::kT) && (has(Axis::kK) || has(Axis::kV)) &&
           (reads_input(spec.q, input.name) || reads_input(spec.k, input.name) ||
            reads_input(spec.v, input.name));
}

/// float64 where every input is; on a CUDA device bfloat16 where all operands are 16 bits wide
/// (more precision would not come from them), whatever gates and rates are; else float32.
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
        return input == nullptr || !is_operand(spec, *input) || size_bytes(x.second.dtype) == 2;
    });
    return narrow ? Precision::kBFloat16 : Precision::kFloat32;
}

}  // namespace sluice
