#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sluice/error.hpp"

namespace sluice::measure {

double quantile(std::span<const double> samples, double p) {
    if (samples.empty()) throw Error(ErrorCode::kValue, "samples", "none", "at least one");
    if (!(p >= 0 && p <= 1)) throw Error(ErrorCode::kValue, "p", std::to_string(p), "0 to 1");
    std::vector<double> sorted(samples.begin(), samples.end());
    std::sort(sorted.begin(), sorted.end());
    const double rank = p * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<std::size_t>(rank);
    const std::size_t high = std::min(low + 1, sorted.size() - 1);
    return std::lerp(sorted[low], sorted[high], rank - static_cast<double>(low));
}

double median(std::span<const double> samples) { return quantile(samples, 0.5); }

Summary summarize(std::span<const double> samples) {
    Summary summary;
    summary.samples = static_cast<int>(samples.size());
    summary.median = median(samples);
    summary.p10 = quantile(samples, 0.1);
    summary.p90 = quantile(samples, 0.9);
    std::vector<double> deviations;
    deviations.reserve(samples.size());
    for (const double sample : samples) deviations.push_back(std::abs(sample - summary.median));
    const double deviation = median(deviations);
    summary.relative_mad = summary.median > 0 ? deviation / summary.median : 0;
    return summary;
}

}  // namespace sluice::measure
