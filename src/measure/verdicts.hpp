// Sentences computed from records.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sluice/record.hpp"

namespace sluice::measure {

/// For each op and kernel: what bounds it here, how far it is from the floor, its floor on an H200,
/// its memory, how good the planner's prediction was. Rows that were not run do not count.
[[nodiscard]] std::vector<std::string> verdicts_by_op(std::span<const Record> records);

/// For each op, kernel and shape that softmax attention was measured on too: from which T on it is
/// faster.
[[nodiscard]] std::vector<std::string> verdicts_against_softmax(std::span<const Record> records);

/// How many rows scatter too much to be trusted to a tenth, and which is the worst.
[[nodiscard]] std::vector<std::string> verdicts_on_noise(std::span<const Record> records);

/// "gla chunked", "gla recurrent (oracle)", "softmax"; arithmetic other than float32 is named.
[[nodiscard]] std::string describe_kernel(const Record& record);
/// "B1 T4096 H16 K128 V128": HV where it differs from H; a decode has a T only for softmax.
[[nodiscard]] std::string describe_shape(const Record& record);
/// The same without T: what a curve over T has in common.
[[nodiscard]] std::string describe_curve_shape(const Record& record);
/// "<name>: copy 26.1 GB/s, matmul 290 GFLOP/s (<source>)"
/// "4 threads, caches warm, seed 0"; of a GPU its nominal clock instead of the threads.
[[nodiscard]] std::string describe_conditions(const Record& record);
[[nodiscard]] std::string describe_rates(const DeviceSpec& device);

}  // namespace sluice::measure
