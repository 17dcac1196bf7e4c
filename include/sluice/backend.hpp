// Back ends: an ordered list; the first that takes a problem runs it, unless one is named.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sluice/plan.hpp"
#include "sluice/problem.hpp"
#include "sluice/work.hpp"

namespace sluice {

struct Support {
    bool ok = false;
    std::string reason;  // why not
};

class Backend {
  public:
    virtual ~Backend() = default;
    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    [[nodiscard]] virtual std::string_view summary() const noexcept = 0;
    [[nodiscard]] virtual Support supports(const Problem& problem) const = 0;
    /// Chooses among candidates by predicted time on `device`.
    [[nodiscard]] virtual Plan plan(const Problem& problem, const DeviceSpec& device) const = 0;
    /// Makes ready what run() would otherwise do on its first call with such a plan: compiles and
    /// loads kernels, say. Returns the plan with a notice of what was done.
    [[nodiscard]] virtual Plan prepare(const Problem& problem, const Plan& plan) const {
        (void)problem;
        return plan;
    }
    /// Writes the problem's outputs. `plan` comes from this backend's plan() of the same problem.
    virtual void run(const Problem& problem, const Plan& plan) const = 0;
};

/// The list, best first: "cuda" (one Hopper GPU; tensors in its memory), "cpu" (chunked and
/// recurrent, float32 or float64), "oracle" (float64 time loop, straight from the definition).
[[nodiscard]] std::span<const Backend* const> backends();
/// Throws Error(kUnsupported) that lists the names.
[[nodiscard]] const Backend& find_backend(std::string_view name);
/// `requested` if not empty, else SLUICE_BACKEND (read once), else the first that supports the
/// problem. A named backend that does not support the problem is an Error with its reason.
[[nodiscard]] const Backend& select_backend(const Problem& problem, std::string_view requested);

}  // namespace sluice
