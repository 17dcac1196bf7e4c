// Records on a terminal.
#pragma once

#include <span>
#include <string>

#include "sluice/record.hpp"

namespace sluice::cli {

/// The machine and its measured rates, the table, and why rows were skipped.
[[nodiscard]] std::string bench_table(std::span<const Record> records);

/// Latency against T, a letter per op and kernel; empty unless some op has several T.
[[nodiscard]] std::string bench_plot(std::span<const Record> records);

}  // namespace sluice::cli
