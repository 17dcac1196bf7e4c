// One way to run a problem on a GPU: a kernel family with its planner. The back end asks each in
// turn.
#pragma once

#include <string_view>

#include "cuda/engine/cubins.hpp"
#include "sluice/backend.hpp"

namespace sluice::cuda {

class Method {
  public:
    virtual ~Method() = default;
    /// Plan::kernel.
    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    /// Whether the method takes the problem, else the reason: which argument, what it has, what is
    /// accepted.
    [[nodiscard]] virtual Support supports(const Problem& problem) const = 0;
    /// Fills everything but the backend's name. Needs no GPU.
    [[nodiscard]] virtual Plan plan(const Problem& problem, const DeviceSpec& device) const = 0;
    /// Loads (and, if `policy` allows, compiles) the kernels of the plan. Whether any was compiled.
    virtual bool prepare(const Problem& problem, const Plan& plan, CompilePolicy policy) const = 0;
    /// Puts the work on problem.stream and returns: no synchronisation, no allocation, no copy to
    /// the host. `workspace`: plan.workspace_bytes of device memory, aligned to 256 bytes (null if
    /// 0). The problem's GPU has the current context.
    virtual void run(const Problem& problem, const Plan& plan, CompilePolicy policy,
                     void* workspace) const = 0;
};

/// Tensor-core kernel for gated linear attention (sm90/gla).
[[nodiscard]] const Method& gla_method();
/// Tensor-core kernel for scalar, constant and no decays (sm90/scalar).
[[nodiscard]] const Method& scalar_method();
/// Token by token in float32 on the general-purpose cores: every spec of the family.
[[nodiscard]] const Method& recurrent_method();

}  // namespace sluice::cuda
