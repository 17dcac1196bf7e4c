// The oracle: the recurrence in float64, token by token, straight from the definition.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "sluice/backend.hpp"
#include "sluice/problem.hpp"

namespace sluice::cpu {

void run_oracle(const Problem& problem, int threads);

/// Reverse mode of the oracle; see sluice::gradient().
[[nodiscard]] std::map<std::string, Tensor> oracle_gradient(
    const Problem& problem, const NamedTensors& inputs, const TensorView& grad_o,
    const std::optional<TensorView>& grad_final_state);

}  // namespace sluice::cpu
