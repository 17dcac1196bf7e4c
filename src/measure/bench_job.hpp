// A benchmark row with its tensors: ready to be filled, then run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "measure/bench.hpp"
#include "sluice/plan.hpp"

namespace sluice::measure {

struct Job {
    Record record;                     // all but provenance and measurement
    Device device{};                   // of the tensors
    std::int64_t workspace_bytes = 0;  // that the plan asks for
    std::function<void()> fill;        // writes every tensor once
    /// The timed call, which does not wait for a GPU; the plan that ran, if it had one.
    std::function<std::optional<Plan>()> run;
};

/// Throws Error for a case that cannot be bound. A case that the backend refuses, or whose tensors
/// cannot be allocated, comes back with record.skipped set and nothing to run.
[[nodiscard]] Job make_job(const BenchCase& row);

/// Fills the job, runs it and gives its record with the measurement. What it throws does not
/// escape: the record is then a skipped one that says what it was, and other rows go on.
[[nodiscard]] Record measure_job(const Job& job, bool flush, const BenchLimits& limits);

}  // namespace sluice::measure
