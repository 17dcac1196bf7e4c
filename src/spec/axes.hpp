// Sets of axes, as bits: what validation and binding compute with.
#pragma once

#include "sluice/spec.hpp"

namespace sluice {

[[nodiscard]] constexpr unsigned axis_bit(Axis axis) noexcept {
    return 1U << static_cast<unsigned>(axis);
}

template <class Axes>
[[nodiscard]] constexpr unsigned axis_bits(const Axes& axes) noexcept {
    unsigned bits = 0;
    for (const Axis axis : axes) bits |= axis_bit(axis);
    return bits;
}

/// Union of the axes of all inputs that `expr` reads (kHV for Expr::head()).
[[nodiscard]] unsigned axis_bits(const Spec& spec, const Expr& expr);

}  // namespace sluice
