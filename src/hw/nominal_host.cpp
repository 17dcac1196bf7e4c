#include <omp.h>

#include "sluice/device.hpp"

namespace sluice {

const DeviceSpec& nominal_host() {
    static const DeviceSpec kDevice = [] {
        constexpr double kClockHz = 2.5e9;
        constexpr double kFmaUnits = 2;
        constexpr double kCopyBytesPerCorePerS = 8e9;
#if defined(__AVX512F__)
        constexpr double kFloatLanes = 16;
#elif defined(__AVX__)
        constexpr double kFloatLanes = 8;
#else
        constexpr double kFloatLanes = 4;
#endif
        DeviceSpec device;
        device.name = "CPU";
        device.source = "nominal: 2.5 GHz, two multiply-add units a core, 8 GB/s a core";
        device.multiprocessors = omp_get_num_procs();
        device.matmul_flops_per_s = device.multiprocessors * kClockHz * kFmaUnits * 2 * kFloatLanes;
        device.copy_bytes_per_s = device.multiprocessors * kCopyBytesPerCorePerS;
        return device;
    }();
    return kDevice;
}

}  // namespace sluice
