// One line on standard error that says how far a long command is; nothing if that is no terminal.
#pragma once

#include <chrono>
#include <string>

namespace sluice::cli {

class Progress {
  public:
    /// `expected_seconds` weighs the steps; the remaining time is corrected by what passed.
    explicit Progress(double expected_seconds);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Shows that `what` begins.
    void begin(const std::string& what);
    /// The step that begin() announced is over; it was expected to take this long.
    void end(double expected_seconds);

    /// Clears the line, until the next begin() or end(), for output to the same terminal.
    void hide() const;

  private:
    using Clock = std::chrono::steady_clock;
    void draw() const;

    bool visible_;
    double expected_seconds_;
    double done_seconds_ = 0;
    std::string what_;
    Clock::time_point start_ = Clock::now();
};

}  // namespace sluice::cli
