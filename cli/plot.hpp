// A small log-log chart in text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice::cli {

struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // positive
};

/// A chart with one letter per series and a legend; later series draw over earlier ones. Empty
/// without points.
[[nodiscard]] std::string plot_log_log(const std::vector<Series>& series,
                                       const std::string& x_label, const std::string& y_label);

}  // namespace sluice::cli
