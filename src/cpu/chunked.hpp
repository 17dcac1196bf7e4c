// The chunked form, float32 or float64: products over chunks of tokens. See docs/kernels/cpu.md.
#pragma once

#include "sluice/plan.hpp"
#include "sluice/problem.hpp"

namespace sluice::cpu {

inline constexpr std::int64_t kBlock = 16;  // rows that share one decay anchor

template <class Real>
void run_chunked(const Problem& problem, const Plan& plan);

/// Bytes of one thread's buffers.
template <class Real>
[[nodiscard]] std::int64_t chunked_workspace_bytes(const Problem& problem, std::int64_t chunk,
                                                   std::int64_t value_tile);

extern template void run_chunked<float>(const Problem&, const Plan&);
extern template void run_chunked<double>(const Problem&, const Plan&);
extern template std::int64_t chunked_workspace_bytes<float>(const Problem&, std::int64_t,
                                                            std::int64_t);
extern template std::int64_t chunked_workspace_bytes<double>(const Problem&, std::int64_t,
                                                             std::int64_t);

}  // namespace sluice::cpu
