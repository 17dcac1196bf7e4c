// --device: where a command's tensors are.
#pragma once

#include <string>

#include "sluice/tensor.hpp"

namespace sluice::cli {

inline constexpr const char* kDeviceHelp =
    "cpu (default), cuda (the first GPU that the library runs on), cuda:N, best (that GPU, else "
    "cpu)";

/// Throws Error(kDevice) for another word, and for a device that is not there or that the library
/// does not run on. Empty: the CPU.
[[nodiscard]] Device parse_device(const std::string& name);

/// Why the library cannot run on the GPU, or on any GPU here; empty: it can.
[[nodiscard]] std::string gpu_problem(int index);
[[nodiscard]] std::string cuda_problem();

}  // namespace sluice::cli
