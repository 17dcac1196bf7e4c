#include "measure/memory.hpp"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace sluice::measure {

namespace {

/// A line "<key>: <n> kB" of a file under /proc, in bytes.
std::optional<std::int64_t> read_kilobytes(const char* path, std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') {
            continue;
        }
        const std::size_t digit = line.find_first_of("0123456789");
        if (digit == std::string::npos) return std::nullopt;
        std::int64_t kilobytes = 0;
        std::from_chars(line.data() + digit, line.data() + line.size(), kilobytes);
        return kilobytes * 1024;
    }
    return std::nullopt;
}

/// The number that a file begins with; nothing for "max" or a file that is not there.
std::optional<std::int64_t> read_number(const char* path) {
    std::ifstream file(path);
    std::int64_t number = 0;
    return file >> number ? std::optional(number) : std::nullopt;
}

/// Sets the resident set's high-water mark to its present size.
bool reset_high_water_mark() {
    std::ofstream file("/proc/self/clear_refs");
    file << "5";
    file.flush();
    return file.good();
}

std::int64_t high_water_mark_ever_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

PeakMemory measure_peak_memory(const std::function<void()>& call) {
    constexpr const char* kStatus = "/proc/self/status";
    malloc_trim(0);
    const std::optional<std::int64_t> resident = read_kilobytes(kStatus, "VmRSS");
    if (resident && reset_high_water_mark()) {
        call();
        if (const auto peak = read_kilobytes(kStatus, "VmHWM")) {
            return {std::max<std::int64_t>(0, *peak - *resident), "VmHWM"};
        }
        return {0, "unknown"};
    }
    const std::int64_t before = high_water_mark_ever_bytes();
    call();
    return {high_water_mark_ever_bytes() - before, "getrusage (lower bound)"};
}

std::int64_t available_memory_bytes() {
    const std::int64_t system = read_kilobytes("/proc/meminfo", "MemAvailable").value_or(0);
    const auto limit = read_number("/sys/fs/cgroup/memory.max");
    const auto used = read_number("/sys/fs/cgroup/memory.current");
    return limit && used ? std::min(system, *limit - *used) : system;
}

}  // namespace sluice::measure
