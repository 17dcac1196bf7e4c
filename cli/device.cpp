#include "cli/device.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "cuda/engine/driver.hpp"
#include "sluice/error.hpp"

namespace sluice::cli {

namespace {

constexpr std::string_view kNumbered = "cuda:";

/// require_driver() made sure that there is one.
Device first_gpu() {
    int index = 0;
    while (!cuda::gpu(index).runs_sm90a()) ++index;
    return {DeviceKind::kCuda, index};
}

Device numbered_gpu(const std::string& name) {
    int index = 0;
    const char* end = name.data() + name.size();
    const auto [stop, status] = std::from_chars(name.data() + kNumbered.size(), end, index);
    if (status != std::errc{} || stop != end || index < 0) {
        throw Error(ErrorCode::kDevice, "device", "'" + name + "'", "cpu, cuda, cuda:N, best");
    }
    (void)cuda::require_driver();
    const cuda::GpuInfo& gpu = cuda::gpu(index);
    if (const std::string problem = gpu_problem(index); !problem.empty()) {
        throw Error(ErrorCode::kDevice, "device", fmt::format("{} ({})", name, gpu.name), problem);
    }
    return {DeviceKind::kCuda, index};
}

}  // namespace

Device parse_device(const std::string& name) {
    if (name.empty() || name == "cpu") return {};
    if (name == "best") return cuda::driver_problem().empty() ? first_gpu() : Device{};
    if (name == "cuda") {
        (void)cuda::require_driver();
        return first_gpu();
    }
    if (name.starts_with(kNumbered)) return numbered_gpu(name);
    throw Error(ErrorCode::kDevice, "device", "'" + name + "'", "cpu, cuda, cuda:N, best");
}

std::string gpu_problem(int index) {
    return cuda::gpu(index).runs_sm90a() ? "" : "a GPU of compute capability 9.0 (H100, H200)";
}

std::string cuda_problem() {
    try {
        (void)cuda::require_driver();
        return "";
    } catch (const Error& error) {
        return fmt::format("{}; needed: {}", error.value(), error.accepted());
    }
}

}  // namespace sluice::cli
