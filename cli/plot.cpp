#include "cli/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "measure/units.hpp"

namespace sluice::cli {

namespace {

constexpr int kColumns = 60;
constexpr int kRows = 16;
constexpr int kLabelWidth = 9;

/// Log-scaled axis from a range of values to cells.
class Axis {
  public:
    void include(double value) {
        low_ = std::min(low_, value);
        high_ = std::max(high_, value);
    }
    [[nodiscard]] bool empty() const { return low_ > high_; }
    [[nodiscard]] int cell(double value, int cells) const {
        if (low_ >= high_) return 0;
        const double share = std::log(value / low_) / std::log(high_ / low_);
        return static_cast<int>(std::lround(share * (cells - 1)));
    }
    [[nodiscard]] double at(int cell, int cells) const {
        return low_ * std::pow(high_ / low_, static_cast<double>(cell) / (cells - 1));
    }
    [[nodiscard]] double low() const { return low_; }
    [[nodiscard]] double high() const { return high_; }

  private:
    double low_ = std::numeric_limits<double>::infinity();
    double high_ = 0;
};

char letter(std::size_t i) { return static_cast<char>('A' + i % 26); }

}  // namespace

std::string plot_log_log(const std::vector<Series>& series, const std::string& x_label,
                         const std::string& y_label) {
    Axis x, y;
    for (const Series& s : series) {
        for (const auto& [px, py] : s.points) {
            x.include(px);
            y.include(py);
        }
    }
    if (x.empty()) return "";
    std::vector<std::string> canvas(kRows, std::string(kColumns, ' '));
    for (std::size_t i = 0; i < series.size(); ++i) {
        for (const auto& [px, py] : series[i].points) {
            canvas[static_cast<std::size_t>(y.cell(py, kRows))]
                  [static_cast<std::size_t>(x.cell(px, kColumns))] = letter(i);
        }
    }
    std::string text = fmt::format("{} against {}, both logarithmic\n", y_label, x_label);
    for (int row = kRows - 1; row >= 0; --row) {
        const bool labelled = row % 5 == 0;
        text += fmt::format("{:>{}} |{}\n", labelled ? measure::format_us(y.at(row, kRows)) : "",
                            kLabelWidth, canvas[static_cast<std::size_t>(row)]);
    }
    const std::string low = fmt::format("{:.0f}", x.low());
    text += fmt::format("{:>{}} +{}\n", "", kLabelWidth, std::string(kColumns, '-'));
    text += fmt::format("{:>{}}  {}{:>{}.0f}\n", "", kLabelWidth, low, x.high(),
                        kColumns - static_cast<int>(low.size()));
    for (std::size_t i = 0; i < series.size(); ++i) {
        text += fmt::format("{:>{}}  {} {}\n", "", kLabelWidth, letter(i), series[i].name);
    }
    return text;
}

}  // namespace sluice::cli
