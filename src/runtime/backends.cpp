#include "cpu/backends.hpp"

#include <fmt/format.h>

#include <array>

#include "cuda/backend/cuda_backend.hpp"
#include "runtime/environment.hpp"
#include "sluice/backend.hpp"
#include "sluice/error.hpp"

namespace sluice {

std::span<const Backend* const> backends() {
    static const std::array<const Backend*, 3> kBackends = {
        &cuda::cuda_backend(), &cpu::cpu_backend(), &cpu::oracle_backend()};
    return kBackends;
}

const Backend& find_backend(std::string_view name) {
    std::string known;
    for (const Backend* backend : backends()) {
        if (backend->name() == name) return *backend;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", backend->name());
    }
    throw Error(ErrorCode::kUnsupported, "backend", fmt::format("'{}'", name), known);
}

const Backend& select_backend(const Problem& problem, std::string_view requested) {
    const std::string_view name = requested.empty() ? environment().backend : requested;
    if (!name.empty()) {
        const Backend& backend = find_backend(name);
        const Support support = backend.supports(problem);
        if (!support.ok) {
            throw Error(ErrorCode::kUnsupported, "backend",
                        fmt::format("'{}' for {}", name, problem.to_string()), support.reason);
        }
        return backend;
    }
    std::string reasons;
    for (const Backend* backend : backends()) {
        const Support support = backend->supports(problem);
        if (support.ok) return *backend;
        reasons +=
            fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", backend->name(), support.reason);
    }
    throw Error(ErrorCode::kUnsupported, "backend",
                fmt::format("none that takes {}", problem.to_string()), reasons);
}

}  // namespace sluice
