// Tensors in device memory, and copies between devices, for programs without an allocator of their
// own (this project's command and tests; PyTorch users bring theirs).
#pragma once

#include <span>

#include "sluice/tensor.hpp"

namespace sluice {

/// A contiguous tensor in `device`'s memory, aligned to 256 bytes; its elements are undefined.
/// Throws Error(kDevice) where there is no such device, Error(kMemory) if its memory is full.
[[nodiscard]] Tensor empty_on(DType dtype, std::span<const std::int64_t> shape,
                              const Device& device);

/// A contiguous copy of `source` in `device`'s memory. `source` may be anywhere; in device memory
/// it must be contiguous. Waits for the copy.
[[nodiscard]] Tensor copy_on(const TensorView& source, const Device& device);

/// Copies all elements. Same shape and dtype; contiguous, or both with the same strides on the CPU.
/// Waits for the work on the default stream and for the copy.
void copy(const TensorView& to, const TensorView& from);

/// Waits until all work on `device` is done. Nothing to do on the CPU.
void synchronize(const Device& device);

/// The CUDA devices this library's kernels run on: 0 without a driver.
[[nodiscard]] int cuda_device_count();

}  // namespace sluice
