// What CMake knew when it configured the build (embedded.cmake writes the definitions).
#pragma once

#include <string_view>

namespace sluice::measure::embedded {

[[nodiscard]] std::string_view workloads_json() noexcept;
[[nodiscard]] std::string_view version() noexcept;
/// Short hash of the checkout's commit, with "+" if it had local changes when it was configured;
/// "unknown" outside a checkout.
[[nodiscard]] std::string_view commit() noexcept;

}  // namespace sluice::measure::embedded
