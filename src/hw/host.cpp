// Probes the CPU: what it is called, how fast it copies, how fast it multiplies.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "sluice/device.hpp"

namespace sluice {

namespace {

constexpr std::int64_t kMinCopyBytes = 64LL << 20;
// Virtual machines report the whole socket's cache, hundreds of megabytes; do not chase it.
constexpr std::int64_t kMaxCopyBytes = 256LL << 20;
constexpr Eigen::Index kProductSize = 1536;
constexpr int kMaxRuns = 5;
constexpr double kMaxSeconds = 0.4;  // per rate

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("model name")) continue;
        const std::size_t colon = line.find(':');
        if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
    }
    return "CPU";
}

std::int64_t last_level_cache_bytes() {
    for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
        if (const long bytes = sysconf(level); bytes > 0) return bytes;
    }
    return 0;
}

/// The shortest of a few runs, after one that is not counted.
template <class F>
double best_seconds(const F& run) {
    using Clock = std::chrono::steady_clock;
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    run();
    const Clock::time_point begin = Clock::now();
    double best = 1e30;
    for (int i = 0; i < kMaxRuns && (i == 0 || seconds(Clock::now() - begin) < kMaxSeconds); ++i) {
        const Clock::time_point start = Clock::now();
        run();
        best = std::min(best, seconds(Clock::now() - start));
    }
    return best;
}

double measure_copy_bytes_per_s(std::int64_t cache_bytes) {
    const std::int64_t bytes = std::clamp(4 * cache_bytes, kMinCopyBytes, kMaxCopyBytes);
    const auto size = static_cast<std::size_t>(bytes);
    // Not value-initialised: each page is first touched by the thread that will copy it.
    const std::unique_ptr<char[]> from(new char[size]);
    const std::unique_ptr<char[]> to(new char[size]);
    const auto for_each_slice = [&](const auto& f) {
#pragma omp parallel
        {
            const auto threads = static_cast<std::size_t>(omp_get_num_threads());
            const auto thread = static_cast<std::size_t>(omp_get_thread_num());
            const std::size_t begin = size * thread / threads;
            f(begin, size * (thread + 1) / threads - begin);
        }
    };
    for_each_slice(
        [&](std::size_t begin, std::size_t count) { std::memset(from.get() + begin, 1, count); });
    const double seconds = best_seconds([&] {
        for_each_slice([&](std::size_t begin, std::size_t count) {
            std::memcpy(to.get() + begin, from.get() + begin, count);
        });
    });
    return 2 * static_cast<double>(bytes) / seconds;
}

double measure_product_flops_per_s() {
    const Eigen::MatrixXf a = Eigen::MatrixXf::Constant(kProductSize, kProductSize, 0.5F);
    const Eigen::MatrixXf b = Eigen::MatrixXf::Constant(kProductSize, kProductSize, 0.25F);
    Eigen::MatrixXf c(kProductSize, kProductSize);
    const double seconds = best_seconds([&] { c.noalias() = a * b; });
    const auto n = static_cast<double>(kProductSize);
    return 2 * n * n * n / seconds;
}

}  // namespace

DeviceSpec measure_host_device() {
    DeviceSpec device;
    device.multiprocessors = omp_get_num_procs();
    device.name = fmt::format("{}, {} cores", processor_name(), device.multiprocessors);
    device.source =
        fmt::format("measured {:%Y-%m-%d %H:%M} UTC: large copy, float32 matrix product",
                    fmt::gmtime(std::chrono::system_clock::now()));
    device.cache_bytes = last_level_cache_bytes();
    device.copy_bytes_per_s = measure_copy_bytes_per_s(device.cache_bytes);
    device.matmul_flops_per_s = measure_product_flops_per_s();
    return device;
}

const DeviceSpec& host_device() {
    static const DeviceSpec kDevice = measure_host_device();
    return kDevice;
}

}  // namespace sluice
