#include "sluice/plan.hpp"

#include <fmt/format.h>

#include <string_view>

namespace sluice {

std::string Plan::to_string() const {
    const bool on_gpu = backend == "cuda";
    return fmt::format(
        "backend: {}\nkernel: {}\nprecision: {}\nchunk: {} tokens\nblock: {} rows\n"
        "value_tile: {} channels\n{}tasks: {}\n{}workspace: {} bytes\n"
        "predicted: {:.1f} us\nfloor: {:.1f} us (memory {:.1f}, compute {:.1f})\nhash: {:016x}\n{}",
        backend, kernel, sluice::to_string(precision), chunk, block, value_tile,
        on_gpu ? fmt::format("segments: {}\nstages: {}\n", segments, stages) : "", tasks,
        on_gpu ? "" : fmt::format("threads: {}\n", threads), workspace_bytes, predicted_us,
        floor.us(), floor.memory_us, floor.compute_us, hash(),
        notice.empty() ? "" : "notice: " + notice + "\n");
}

std::uint64_t Plan::hash() const noexcept {
    constexpr std::uint64_t kPrime = 0x100000001b3;
    std::uint64_t h = 0xcbf29ce484222325;
    const auto mix_bytes = [&](std::string_view bytes) {
        for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * kPrime;
        h = (h ^ 0xff) * kPrime;
    };
    const auto mix = [&](std::uint64_t value) {
        for (int i = 0; i < 8; ++i) h = (h ^ (value >> (8 * i) & 0xff)) * kPrime;
    };
    mix_bytes(backend);
    mix_bytes(kernel);
    mix(static_cast<std::uint64_t>(precision));
    mix(static_cast<std::uint64_t>(chunk));
    mix(static_cast<std::uint64_t>(block));
    mix(static_cast<std::uint64_t>(segments));
    return h;
}

}  // namespace sluice
