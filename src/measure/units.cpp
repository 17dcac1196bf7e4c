#include "measure/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace sluice::measure {

namespace {

constexpr double kRoundsUp = 999.5;  // to 1000, at three digits

/// Three significant digits, without an exponent.
std::string three_digits(double value) {
    if (value == 0 || !std::isfinite(value)) return fmt::format("{}", value);
    const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(value) * 1.0005)));
    return fmt::format("{:.{}f}", value, std::clamp(2 - magnitude, 0, 6));
}

}  // namespace

std::string format_us(double microseconds) {
    if (microseconds < kRoundsUp) return three_digits(microseconds) + " us";
    if (microseconds < 1e3 * kRoundsUp) return three_digits(microseconds * 1e-3) + " ms";
    const double seconds = microseconds * 1e-6;
    if (seconds < 59.95) return three_digits(seconds) + " s";
    if (!(seconds < 1e15)) return fmt::format("{:.3g} s", seconds);
    const auto whole = static_cast<long long>(std::llround(seconds));
    if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
    return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string format_number(double value) { return three_digits(value); }

std::string format_with_prefix(double value, const char* unit) {
    constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
    std::size_t i = 0;
    for (; i + 1 < std::size(kPrefixes) && std::abs(value) >= kRoundsUp; ++i) value /= 1000;
    std::string text = fmt::format("{} {}{}", three_digits(value), kPrefixes[i], unit);
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
}

std::string format_fraction(double fraction) {
    if (fraction <= 0) return "-";
    const double percent = 100 * fraction;
    return fmt::format("{:.{}f} %", percent, percent < 9.95 ? 1 : 0);
}

}  // namespace sluice::measure
