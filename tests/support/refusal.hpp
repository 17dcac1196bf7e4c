// What a call was refused with, as one line to compare.
#pragma once

#include <string>

#include "sluice/error.hpp"

namespace sluice::test {

/// "shape | k | float32 [2, 3] | 4 dimensions, ...": the error's code, argument, value and what
/// would have been accepted; "accepted" when `f` throws nothing.
template <class F>
[[nodiscard]] std::string refusal(F&& f) {
    try {
        f();
    } catch (const Error& error) {
        return std::string(to_string(error.code())) + " | " + error.argument() + " | " +
               error.value() + " | " + error.accepted();
    }
    return "accepted";
}

}  // namespace sluice::test
