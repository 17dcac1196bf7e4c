// Every form of every variant, and specs that a user could build at run time.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "sluice/spec.hpp"

namespace sluice::test {

/// How the log decay follows from the inputs: what the generator of values must invert.
enum class GateFormula : unsigned char {
    kNone,      // no gate, or one that no input reaches
    kGiven,     // g
    kSoftplus,  // -exp(A_log) softplus(g_raw + dt_bias)
    kBounded,   // lower_bound sigmoid(exp(A_log) (g_raw + dt_bias))
    kTimeStep,  // Delta A, with the same Delta on the values
};

enum class BetaFormula : unsigned char { kNone, kGiven, kSigmoid, kTwiceSigmoid };

struct Form {
    std::string name;  // letters, digits and underscores: a GoogleTest parameter name
    std::function<Spec()> make;
    GateFormula gate = GateFormula::kNone;
    BetaFormula beta = BetaFormula::kNone;
    /// q and k must be positive: a normaliser near zero has no answer that rounding keeps.
    bool positive_keys = false;
    /// Keys are normalised inside, so that raw keys of any length are stable.
    bool normalizes_keys = false;
};

[[nodiscard]] std::span<const Form> forms();
[[nodiscard]] const Form& find_form(std::string_view name);

}  // namespace sluice::test
