// The first half of bind(): inputs by name, and the extents that they agree on.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "sluice/problem.hpp"

namespace sluice {

/// Extents by axis, with the argument that each came from (for messages).
struct AxisExtents {
    std::array<std::int64_t, kNumAxes> extent{-1, -1, -1, -1, -1, -1};
    std::array<std::string_view, kNumAxes> from;
    std::int64_t& operator[](Axis axis) { return extent[static_cast<std::size_t>(axis)]; }
    std::int64_t operator[](Axis axis) const { return extent[static_cast<std::size_t>(axis)]; }
};

/// Fills problem.inputs and problem.dims (all but N) and problem.device.
void bind_inputs(const Spec& spec, const NamedTensors& given, Problem& problem);

/// The tensor given for `input`. Throws Error(kMissing) where there is none.
[[nodiscard]] const TensorView& find_view(const Spec& spec, const NamedTensors& given,
                                          const Input& input);

/// Binds `view` to `axes`, checking its extents against problem.dims.
[[nodiscard]] BoundInput bind_view(const std::string& name, const TensorView& view,
                                   std::span<const Axis> axes, const Dims& dims);

/// Refuses a non-empty view without memory, or whose elements are not aligned.
void check_data(std::string_view name, const TensorView& view);

/// Refuses states, [N, HV, K, V], that no address space holds.
void check_states(const Dims& dims);

/// "float32 [2, 130, 2, 64]"
[[nodiscard]] std::string describe(const TensorView& view);

}  // namespace sluice
