// Shapes of the recurrent layers of published models (data/workloads.json, built into the library).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::measure {

/// One row of the file. Dimensions that the source does not give are 0.
struct Workload {
    std::string model;
    std::string family;  // "KDA", "GDN", "Lightning", "Mamba-2", "GLA", "RetNet", ...
    std::int64_t layers_total = 0;
    std::int64_t layers_recurrent = 0;
    std::int64_t heads_qk = 0, heads_v = 0, dim_k = 0, dim_v = 0;
    std::string gate;  // its formula, as the source writes it
};

[[nodiscard]] std::span<const Workload> workloads();

/// Rows whose model name contains `name`, whatever the case. Throws Error(kUnsupported) if none.
[[nodiscard]] std::vector<Workload> find_workloads(std::string_view name);

/// One layer's recurrence on one of `tensor_parallel` devices.
struct WorkloadShape {
    std::string op;
    std::int64_t H = 0, HV = 0, K = 0, V = 0;
};

/// Heads are divided among the devices; key heads fewer than devices are replicated. Throws
/// Error(kUnsupported) that names the model and the reason: outside the family, dimensions not
/// published, or heads that do not divide.
[[nodiscard]] WorkloadShape shape_of(const Workload& workload, std::int64_t tensor_parallel = 1);

}  // namespace sluice::measure
