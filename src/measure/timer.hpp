// Timing a call again and again until its median is settled.
#pragma once

#include <functional>
#include <vector>

namespace sluice::measure {

/// Microseconds since some fixed moment. A parameter, so that tests can bring their own.
using Clock = std::function<double()>;
[[nodiscard]] double steady_clock_us();

/// When to stop. In order of force: `max_runs` and `max_seconds` end the sampling whatever the
/// spread; else it goes on for `min_runs` and `min_seconds`; then a small spread ends it.
struct StoppingRule {
    int min_runs = 5;
    int max_runs = 1000;
    double min_seconds = 0.05;  // of timed runs, so that a microsecond's work is not three samples
    double max_seconds = 2;     // of timed runs
    /// Largest median deviation, and largest half distance of the quartiles, over the median. They
    /// agree for symmetric samples; the former alone would not see every other run being slow.
    double relative_spread = 0.01;
};

/// Whether `samples` (microseconds) are enough.
[[nodiscard]] bool is_settled(const StoppingRule& rule, const std::vector<double>& samples);

/// Calls `time`, which gives the microseconds of a run, until is_settled(), at least once.
[[nodiscard]] std::vector<double> collect_us(const StoppingRule& rule,
                                             const std::function<double()>& time);

/// The same for a run that is timed by `clock`. `prepare`, if any, goes before each run and is
/// not timed. Warm-up is the caller's.
[[nodiscard]] std::vector<double> sample_us(const StoppingRule& rule,
                                            const std::function<void()>& run,
                                            const std::function<void()>& prepare = {},
                                            const Clock& clock = steady_clock_us);

}  // namespace sluice::measure
