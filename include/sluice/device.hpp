// The machine that this process runs on, measured.
#pragma once

#include "sluice/work.hpp"

namespace sluice {

/// This CPU: its large-copy bandwidth (all cores, bytes read plus bytes written) and its float32
/// matrix-product rate (all cores), measured on the first call, in about a second, and remembered.
/// The bandwidth is of memory only where the buffers (256 MB at most) exceed the last-level cache.
[[nodiscard]] const DeviceSpec& host_device();

/// The same, measured anew on each call: other programs may have disturbed the first time.
[[nodiscard]] DeviceSpec measure_host_device();

/// This CPU by its core count and vector width, at a nominal clock: costs nothing to ask. The
/// planner's device where nobody measured; good for choosing, not for predicting.
[[nodiscard]] const DeviceSpec& nominal_host();

/// nominal_host(), or a CUDA device by h200()'s rates and its own number of multiprocessors: what
/// forward() plans for. Throws Error(kDevice) where there is no such device.
[[nodiscard]] const DeviceSpec& nominal_device(const Device& device);

}  // namespace sluice
