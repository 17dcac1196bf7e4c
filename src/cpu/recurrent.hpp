// The time loop, float32 or float64: what step() runs, and the baseline that the chunked form beats
// on long sequences.
#pragma once

#include "sluice/plan.hpp"
#include "sluice/problem.hpp"

namespace sluice::cpu {

template <class Real>
void run_recurrent(const Problem& problem, const Plan& plan);

template <class Real>
[[nodiscard]] std::int64_t recurrent_workspace_bytes(const Problem& problem,
                                                     std::int64_t value_tile);

extern template void run_recurrent<float>(const Problem&, const Plan&);
extern template void run_recurrent<double>(const Problem&, const Plan&);
extern template std::int64_t recurrent_workspace_bytes<float>(const Problem&, std::int64_t);
extern template std::int64_t recurrent_workspace_bytes<double>(const Problem&, std::int64_t);

}  // namespace sluice::cpu
