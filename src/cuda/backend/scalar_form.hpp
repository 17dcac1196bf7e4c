// Recurrences that the kernel for scalar decays computes, recognised by the structure of a spec's
// expressions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sluice/spec.hpp"

namespace sluice::cuda {

/// A spec as the kernel sees it: q, k and v are inputs as they are, and the log decay and the
/// weight of a value come from one of four formulas. Inputs by name.
struct ScalarForm {
    enum class Gate {
        kNone,
        kConstant,  // log decay: a number per head
        kGiven,     // log decay: an input without channels
        kTimeStep,  // weight: step = min(max(softplus(time + bias), least), greatest); log decay:
                    // step * rate
    };
    enum class Skip { kNone, kHead, kChannel };

    Gate gate = Gate::kNone;
    std::string q, k, v;
    std::string given;             // kGiven
    std::string time, rate, bias;  // kTimeStep; bias empty: none
    bool rate_is_log = false;      // the rate is -exp of the input
    bool softplus = false;
    double least_step = 0, greatest_step = 0;
    Skip skip_kind = Skip::kNone;
    std::string skip;         // the output is o + skip * v
    std::string z;            // ... times silu(z); empty: not gated
    bool normalized = false;  // o before all that: divided by what q reads of the sum of keys
};

/// Nothing, and why, where the spec has no such form.
[[nodiscard]] std::optional<ScalarForm> find_scalar_form(const Spec& spec, std::string* why);

/// An expression of heads, parameters and constants, for each of `heads` heads.
[[nodiscard]] std::vector<double> values_by_head(const Spec& spec, const Expr& expr, int heads);

}  // namespace sluice::cuda
