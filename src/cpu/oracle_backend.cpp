#include "cpu/backends.hpp"
#include "cpu/oracle.hpp"
#include "cpu/state_io.hpp"

namespace sluice::cpu {

namespace {

class OracleBackend final : public Backend {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return "oracle"; }
    [[nodiscard]] std::string_view summary() const noexcept override {
        return "float64 time loop straight from the definition; slow, the judge of the others";
    }
    [[nodiscard]] Support supports(const Problem& problem) const override {
        if (problem.device.kind != DeviceKind::kCpu) return {false, "tensors must be on the CPU"};
        return {true, ""};
    }
    [[nodiscard]] Plan plan(const Problem& problem, const DeviceSpec& device) const override {
        Plan plan;
        plan.backend = name();
        plan.kernel = "recurrent";
        plan.precision = Precision::kFloat64;
        plan.chunk = 1;
        plan.block = 1;
        plan.value_tile = problem.dims.V;
        plan.tasks = problem.dims.N * problem.dims.HV;
        plan.threads = thread_count(problem.threads);
        plan.floor = floor_on(device, work(problem));
        plan.workspace_bytes = plan.threads * problem.dims.K *
                               state_columns(problem, problem.dims.V) *
                               static_cast<std::int64_t>(sizeof(double));
        return plan;
    }
    void run(const Problem& problem, const Plan& plan) const override {
        run_oracle(problem, plan.threads);
    }
};

}  // namespace

const Backend& oracle_backend() {
    static const OracleBackend backend;
    return backend;
}

}  // namespace sluice::cpu
