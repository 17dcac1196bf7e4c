#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "measure/units.hpp"

namespace sluice::cli {

namespace {

constexpr const char* kClearLine = "\r\033[K";

std::string whole_seconds(double seconds) {
    return seconds < 59.5 ? fmt::format("{:.0f} s", seconds) : measure::format_us(1e6 * seconds);
}

}  // namespace

Progress::Progress(double expected_seconds)
    : visible_(isatty(STDERR_FILENO) != 0), expected_seconds_(expected_seconds) {}

Progress::~Progress() { hide(); }

void Progress::hide() const {
    if (!visible_) return;
    std::fputs(kClearLine, stderr);
    std::fflush(stderr);
}

void Progress::begin(const std::string& what) {
    what_ = what;
    draw();
}

void Progress::end(double expected_seconds) {
    done_seconds_ += expected_seconds;
    draw();
}

void Progress::draw() const {
    if (!visible_) return;
    constexpr std::size_t kWidth = 24;
    const double fraction =
        expected_seconds_ > 0 ? std::clamp(done_seconds_ / expected_seconds_, 0.0, 1.0) : 0;
    const auto filled = static_cast<std::size_t>(fraction * static_cast<double>(kWidth));
    const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
    // Until something is done only the prediction is known; then it is scaled by what passed.
    const double pace = done_seconds_ > 0 ? elapsed / done_seconds_ : 1;
    const double left = std::max(0.0, (expected_seconds_ - done_seconds_) * pace);
    fmt::print(stderr, "{}[{}{}] {} elapsed, about {} left  {}", kClearLine,
               std::string(filled, '#'), std::string(kWidth - filled, '.'), whole_seconds(elapsed),
               whole_seconds(left), what_);
    std::fflush(stderr);
}

}  // namespace sluice::cli
