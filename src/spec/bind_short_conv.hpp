// bind() of the short convolution.
#pragma once

#include <cstdint>
#include <optional>

#include "sluice/short_conv.hpp"
#include "spec/state_slots.hpp"

namespace sluice {

/// The arguments of a call, checked, with its sequences and their slots.
struct ShortConvProblem {
    TensorView x, weight, y;
    std::optional<TensorView> bias, initial, final, checkpoints;
    std::int64_t channels = 0;
    int width = 0;
    Activation activation = Activation::kNone;
    Precision precision = Precision::kFloat32;  // or kFloat64
    int threads = 0;
    StateSlots slots;
};

/// Throws Error; reads no tensor elements but those of the index tensors.
[[nodiscard]] ShortConvProblem bind_short_conv(const ShortConvArguments& arguments,
                                               const Options& options, Phase phase);

}  // namespace sluice
