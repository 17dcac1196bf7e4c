#include "measure/gpu_timer.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "measure/statistics.hpp"
#include "measure/timer.hpp"
#include "sluice/memory.hpp"

namespace sluice::measure {

namespace {

constexpr std::int64_t kFlushBytes = std::int64_t{256} << 20;  // several times any L2
constexpr std::array<std::int64_t, 1> kFlushShape = {3 * kFlushBytes};
constexpr cuda::Stream kDefaultStream = nullptr;

}  // namespace

GpuTimer::GpuTimer(int gpu_index)
    : gpu_(gpu_index),
      memory_(empty_on(DType::kBool, kFlushShape, {DeviceKind::kCuda, gpu_index})) {
    const cuda::ContextScope scope(gpu_);
    const cuda::Driver& driver = cuda::require_driver();
    cuda::check(driver.event_create(&begin_, cuda::kEventDefault), "cuEventCreate");
    cuda::check(driver.event_create(&end_, cuda::kEventDefault), "cuEventCreate");
}

GpuTimer::~GpuTimer() {
    const cuda::ContextScope scope(gpu_);
    cuda::require_driver().event_destroy(begin_);
    cuda::require_driver().event_destroy(end_);
}

/// Writes 256 MB, then reads other 256 MB: nothing of a run is left, and no dirty line to write
/// back during the next.
void GpuTimer::flush() const {
    const cuda::Driver& driver = cuda::require_driver();
    const auto first = reinterpret_cast<cuda::DevicePointer>(memory_.view().data);
    const auto bytes = static_cast<std::size_t>(kFlushBytes);
    cuda::check(driver.fill_bytes_async(first, 1, bytes, kDefaultStream), "cuMemsetD8Async");
    cuda::check(
        driver.copy_on_device_async(first + bytes, first + 2 * bytes, bytes, kDefaultStream),
        "cuMemcpyDtoDAsync");
}

double GpuTimer::gpu_us(const std::function<void()>& run) const {
    const cuda::ContextScope scope(gpu_);
    const cuda::Driver& driver = cuda::require_driver();
    flush();
    cuda::check(driver.event_record(begin_, kDefaultStream), "cuEventRecord");
    run();
    cuda::check(driver.event_record(end_, kDefaultStream), "cuEventRecord");
    cuda::check(driver.event_synchronize(end_), "cuEventSynchronize");
    float milliseconds = 0;
    cuda::check(driver.event_elapsed_ms(&milliseconds, begin_, end_), "cuEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
}

double GpuTimer::host_us(const std::function<void()>& run, double expected_gpu_us) const {
    // Few enough that the queue of launches does not fill: then the host would wait.
    constexpr double kLongest_us = 2e5, kFewest = 5, kMost = 100;
    const double wanted = kLongest_us / std::max(expected_gpu_us, 1.0);
    const int calls = static_cast<int>(std::clamp(wanted, kFewest, kMost));
    const Device device{DeviceKind::kCuda, gpu_};
    synchronize(device);
    std::vector<double> samples;
    for (int i = 0; i < calls; ++i) {
        const double start = steady_clock_us();
        run();
        samples.push_back(steady_clock_us() - start);
    }
    synchronize(device);
    return median(samples);
}

}  // namespace sluice::measure
