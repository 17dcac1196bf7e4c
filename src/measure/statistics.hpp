// Order statistics of timings: a median and a spread that an interrupted run does not move.
#pragma once

#include <span>

namespace sluice::measure {

/// The value under which a fraction `p` of the samples lies, linear between neighbours; `p` in
/// [0, 1]. Throws Error(kValue) without samples.
[[nodiscard]] double quantile(std::span<const double> samples, double p);
[[nodiscard]] double median(std::span<const double> samples);

struct Summary {
    int samples = 0;
    double median = 0;
    double p10 = 0, p90 = 0;
    double relative_mad = 0;  // median of |x - median|, divided by the median
};
[[nodiscard]] Summary summarize(std::span<const double> samples);

}  // namespace sluice::measure
