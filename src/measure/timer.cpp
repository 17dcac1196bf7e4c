#include "measure/timer.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "measure/statistics.hpp"

namespace sluice::measure {

double steady_clock_us() {
    using Microseconds = std::chrono::duration<double, std::micro>;
    return Microseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_settled(const StoppingRule& rule, const std::vector<double>& samples) {
    if (samples.empty()) return false;
    const auto runs = static_cast<int>(samples.size());
    const double seconds = 1e-6 * std::accumulate(samples.begin(), samples.end(), 0.0);
    if (runs >= rule.max_runs || seconds >= rule.max_seconds) return true;
    if (runs < rule.min_runs || seconds < rule.min_seconds) return false;
    const Summary summary = summarize(samples);
    const double quartiles = (quantile(samples, 0.75) - quantile(samples, 0.25)) / 2;
    return summary.relative_mad <= rule.relative_spread &&
           quartiles <= rule.relative_spread * summary.median;
}

std::vector<double> collect_us(const StoppingRule& rule, const std::function<double()>& time) {
    std::vector<double> samples;
    // Each check sorts all samples: check at sizes that grow by a quarter, not at every size. Long
    // runs are checked every time, since there max_seconds matters.
    constexpr double kLongRun_us = 1e4;
    std::size_t next_check = 1;
    do {
        samples.push_back(time());
        if (samples.back() > kLongRun_us) next_check = samples.size();
        if (samples.size() < next_check) continue;
        if (is_settled(rule, samples)) break;
        next_check = samples.size() + std::max<std::size_t>(1, samples.size() / 4);
    } while (true);
    return samples;
}

std::vector<double> sample_us(const StoppingRule& rule, const std::function<void()>& run,
                              const std::function<void()>& prepare, const Clock& clock) {
    return collect_us(rule, [&] {
        if (prepare) prepare();
        const double start = clock();
        run();
        return clock() - start;
    });
}

}  // namespace sluice::measure
