#include "measure/crossover.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice::measure {

namespace {

struct Point {
    double tokens;
    double lag;  // log(curve / reference): positive where the curve is slower
};

/// Where the line through two points, straight on logarithmic axes, crosses zero.
double interpolate(const Point& a, const Point& b) {
    const double share = a.lag / (a.lag - b.lag);
    return a.tokens * std::pow(b.tokens / a.tokens, share);
}

}  // namespace

Crossover find_crossover(const Curve& curve, const Curve& reference) {
    std::vector<Point> points;
    Crossover result;
    for (const auto& [tokens, us] : curve) {
        const auto other = reference.find(tokens);
        if (other == reference.end()) continue;
        const double ratio = other->second / us;
        result.slowest_ratio = points.empty() ? ratio : std::min(result.slowest_ratio, ratio);
        result.fastest_ratio = std::max(result.fastest_ratio, ratio);
        points.push_back({tokens, -std::log(ratio)});
    }
    if (points.empty()) return result;
    result.shortest = points.front().tokens;
    result.longest = points.back().tokens;
    const bool slower_at_first = points.front().lag > 0;
    int crossings = 0;
    for (std::size_t i = 1; i < points.size(); ++i) {
        if ((points[i - 1].lag > 0) == (points[i].lag > 0)) continue;
        ++crossings;
        result.tokens = interpolate(points[i - 1], points[i]);
        result.before = points[i - 1].tokens;
        result.after = points[i].tokens;
    }
    if (crossings == 0) {
        result.standing =
            slower_at_first ? Standing::kSlowerThroughout : Standing::kFasterThroughout;
    } else if (crossings == 1) {
        result.standing = slower_at_first ? Standing::kOvertakes : Standing::kFallsBehind;
    } else {
        result.standing = Standing::kCrossesOften;
    }
    return result;
}

}  // namespace sluice::measure
