#include "measure/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "cuda/engine/driver.hpp"
#include "measure/gpu_timer.hpp"
#include "sluice/device.hpp"
#include "sluice/memory.hpp"

namespace sluice::measure {

namespace {

bool on_cpu(const Device& device) { return device.kind == DeviceKind::kCpu; }

cuda::DevicePointer pointer(const TensorView& view) {
    return reinterpret_cast<cuda::DevicePointer>(view.data);
}

std::size_t bytes_of(const TensorView& view) {
    return static_cast<std::size_t>(view.size()) * size_bytes(view.dtype);
}

/// Bytes read plus bytes written, of a copy of 2 GiB; the best of a few.
double measure_gpu_copy_rate(int index) {
    constexpr std::int64_t kBytes = std::int64_t{2} << 30;
    constexpr std::array<std::int64_t, 1> kShape = {2 * kBytes};
    constexpr int kRuns = 8;
    const Tensor memory = empty_on(DType::kBool, kShape, {DeviceKind::kCuda, index});
    const GpuTimer timer(index);
    double best_us = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRuns; ++i) {
        const auto copy = [&] {
            const auto bytes = static_cast<std::size_t>(kBytes);
            const cuda::DevicePointer first = pointer(memory);
            cuda::check(
                cuda::require_driver().copy_on_device_async(first + bytes, first, bytes, nullptr),
                "cuMemcpyDtoDAsync");
        };
        best_us = std::min(best_us, timer.gpu_us(copy));
    }
    return 2e6 * static_cast<double>(kBytes) / best_us;
}

/// Rows that are there already are copied to those after them, twice as many each time.
void repeat_on_gpu(const TensorView& to, const TensorView& row) {
    const cuda::ContextScope scope(to.device.index);
    const cuda::Driver& driver = cuda::require_driver();
    const std::size_t total = bytes_of(to);
    std::size_t done = bytes_of(row);
    cuda::check(driver.copy_to_device(pointer(to), row.data, done), "cuMemcpyHtoD");
    while (done < total) {
        const std::size_t more = std::min(done, total - done);
        cuda::check(driver.copy_on_device_async(pointer(to) + done, pointer(to), more, nullptr),
                    "cuMemcpyDtoDAsync");
        done += more;
    }
    cuda::check(driver.stream_synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace

DeviceSpec measure_device(const Device& device) {
    if (on_cpu(device)) return measure_host_device();
    DeviceSpec spec = nominal_device(device);
    spec.copy_bytes_per_s = measure_gpu_copy_rate(device.index);
    int version = 0;
    cuda::check(cuda::require_driver().driver_version(&version), "cuDriverGetVersion");
    spec.source =
        fmt::format("copy measured; bfloat16 matmul rate of docs/devices.md; driver for CUDA {}.{}",
                    version / 1000, version % 1000 / 10);
    return spec;
}

const DeviceSpec& measured_device(const Device& device) {
    if (on_cpu(device)) return host_device();
    static std::mutex mutex;
    static std::map<int, DeviceSpec> known;
    const std::scoped_lock lock(mutex);
    const auto found = known.find(device.index);
    if (found != known.end()) return found->second;
    return known.emplace(device.index, measure_device(device)).first->second;
}

double clock_mhz(const Device& device) {
    return on_cpu(device) ? 0 : 1e-3 * cuda::gpu(device.index).clock_khz;
}

void repeat(const TensorView& to, const TensorView& row) {
    if (to.size() == 0) return;
    if (to.size() == row.size()) return copy(to, row);
    if (!on_cpu(to.device)) return repeat_on_gpu(to, row);
    const std::size_t bytes = bytes_of(row);
    auto* const first = static_cast<std::byte*>(to.data);
    for (std::size_t at = 0; at < bytes_of(to); at += bytes) {
        std::memcpy(first + at, row.data, bytes);
    }
}

void zero(const TensorView& view) {
    const std::size_t bytes = bytes_of(view);
    if (on_cpu(view.device)) {
        std::memset(view.data, 0, bytes);
        return;
    }
    if (bytes == 0) return;
    const cuda::ContextScope scope(view.device.index);
    const cuda::Driver& driver = cuda::require_driver();
    cuda::check(driver.fill_bytes_async(pointer(view), 0, bytes, nullptr), "cuMemsetD8Async");
    cuda::check(driver.stream_synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace sluice::measure
