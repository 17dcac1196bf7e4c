// Devices with the rates that the floors of records use, and memory there filled for a benchmark.
#pragma once

#include "sluice/tensor.hpp"
#include "sluice/work.hpp"

namespace sluice::measure {

/// host_device(), or a GPU: its copy rate measured on the first call and remembered, its
/// matrix-product rate that of h200(). Throws Error where there is no such GPU.
[[nodiscard]] const DeviceSpec& measured_device(const Device& device);
/// The same, measured anew on each call.
[[nodiscard]] DeviceSpec measure_device(const Device& device);

/// Nominal, of the multiprocessors; 0 for a CPU.
[[nodiscard]] double clock_mhz(const Device& device);

/// Copies `row`, on the CPU with an extent of 1 in front, into every row of `to`, a contiguous
/// tensor on any device. Shapes that are equal are copied as they are.
void repeat(const TensorView& to, const TensorView& row);

/// Writes zeros, on any device.
void zero(const TensorView& view);

}  // namespace sluice::measure
