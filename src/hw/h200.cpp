// Device tables: rates measured elsewhere, for floors on devices that this process does not have.
#include "sluice/work.hpp"

namespace sluice {

const DeviceSpec& h200() {
    static const DeviceSpec kDevice = {
        .name = "NVIDIA H200",
        .source = "measured: large copy, bfloat16 matrix product (docs/devices.md)",
        .copy_bytes_per_s = 4.28e12,
        .matmul_flops_per_s = 800e12,
        .multiprocessors = 132,
        .cache_bytes = 60'000'000,
        .shared_memory_bytes = 228 * 1024,
    };
    return kDevice;
}

}  // namespace sluice
