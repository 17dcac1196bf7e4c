#include "cpu/backends.hpp"
#include "cpu/chunked.hpp"
#include "cpu/cpu_plan.hpp"
#include "cpu/recurrent.hpp"

namespace sluice::cpu {

namespace {

class CpuBackend final : public Backend {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return "cpu"; }
    [[nodiscard]] std::string_view summary() const noexcept override {
        return "chunked or token by token, float32 or float64 arithmetic, all cores";
    }

    [[nodiscard]] Support supports(const Problem& problem) const override {
        if (problem.device.kind != DeviceKind::kCpu) return {false, "tensors must be on the CPU"};
        if (problem.algorithm == Algorithm::kChunked && !problem.token_write_slots.empty()) {
            return {false, "states after every token need the recurrent algorithm"};
        }
        if (problem.precision == Precision::kBFloat16 && runs_recurrent(problem)) {
            return {false, "bfloat16 operands are a mode of the chunked algorithm"};
        }
        if (problem.precision == Precision::kBFloat16 && !problem.token_write_slots.empty()) {
            return {false, "bfloat16 operands cannot give states after every token"};
        }
        return {true, ""};
    }

    [[nodiscard]] Plan plan(const Problem& problem, const DeviceSpec& device) const override {
        return make_plan(problem, device);
    }

    void run(const Problem& problem, const Plan& plan) const override {
        const bool wide = plan.precision == Precision::kFloat64;
        if (plan.kernel == "recurrent") {
            wide ? run_recurrent<double>(problem, plan) : run_recurrent<float>(problem, plan);
        } else {
            wide ? run_chunked<double>(problem, plan) : run_chunked<float>(problem, plan);
        }
    }
};

}  // namespace

const Backend& cpu_backend() {
    static const CpuBackend backend;
    return backend;
}

}  // namespace sluice::cpu
