#include "cuda/backend/cuda_backend.hpp"
#include "sluice/device.hpp"

namespace sluice {

const DeviceSpec& nominal_device(const Device& device) {
    return device.kind == DeviceKind::kCuda ? cuda::nominal_gpu(device.index) : nominal_host();
}

}  // namespace sluice
