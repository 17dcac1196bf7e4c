// The back end "cuda": problems whose tensors are in one Hopper GPU's memory.
#pragma once

#include "sluice/backend.hpp"

namespace sluice::cuda {

[[nodiscard]] const Backend& cuda_backend();

/// The GPU as the planner sees it: h200()'s rates with this GPU's name and number of
/// multiprocessors. Throws Error(kDevice) where there is no such GPU.
[[nodiscard]] const DeviceSpec& nominal_gpu(int index);

}  // namespace sluice::cuda
