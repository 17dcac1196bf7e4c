// From the flags of `sluice bench` to the list of its rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/bench.hpp"

namespace sluice::cli {

/// As given; an empty list means its default.
struct BenchFlags {
    std::string device;
    std::vector<std::string> ops;
    std::vector<std::string> phases;
    std::vector<std::string> dtypes;
    std::vector<std::string> backends;
    std::vector<std::string> algorithms;
    std::vector<std::int64_t> B, T, H, HV, K, V;
    std::vector<std::string> models;
    std::int64_t tensor_parallel = 1;
    std::string sweep;
    std::string precision = "auto";
    std::string gate_dtype;
    std::string gates = "logsigmoid/16";
    std::vector<std::string> settings;  // "name=value"
    std::vector<std::string> with;      // optional inputs
    std::uint64_t seed = 0;
    int threads = 0;
    bool flush = false;
};

struct BenchCases {
    std::vector<measure::BenchCase> rows;
    std::vector<std::string> refused;  // models that match the name but cannot be run, and why
};

/// The cross product, all on one device. Rows that would be the same measurement twice appear once:
/// softmax has no backend or algorithm, the oracle no algorithm, a recurrence's decode no T. Throws
/// Error for flags that make no sense, and if all models are refused.
[[nodiscard]] BenchCases bench_cases(const BenchFlags& flags);

}  // namespace sluice::cli
