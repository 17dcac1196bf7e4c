// Where one latency curve drops under another.
#pragma once

#include <map>

namespace sluice::measure {

/// Latency in microseconds by number of tokens.
using Curve = std::map<double, double>;

enum class Standing : unsigned char {
    kNothingShared,  // no T is on both curves
    kFasterThroughout,
    kSlowerThroughout,
    kOvertakes,     // slower at first, faster from `tokens` on
    kFallsBehind,   // faster at first, slower from `tokens` on
    kCrossesOften,  // more than one crossing
};

struct Crossover {
    Standing standing = Standing::kNothingShared;
    double tokens = 0;                            // kOvertakes, kFallsBehind: interpolated, log-log
    double before = 0, after = 0;                 // the measured T on either side
    double shortest = 0, longest = 0;             // range of shared T
    double slowest_ratio = 0, fastest_ratio = 0;  // of reference / curve over the shared T
};

/// How `curve` stands against `reference` at the T that both have.
[[nodiscard]] Crossover find_crossover(const Curve& curve, const Curve& reference);

}  // namespace sluice::measure
