#include <algorithm>

#include "cpu/aligned.hpp"
#include "cpu/backends.hpp"
#include "cpu/chunked.hpp"
#include "cpu/recurrent.hpp"
#include "cpu/simd.hpp"
#include "cpu/task_grid.hpp"

namespace sluice::cpu {

namespace {

/// Sequences at most this long run token by token: a chunk's fixed work would not pay.
constexpr std::int64_t kShortSequence = 8;

constexpr int kDefaultChunk = 64;

std::int64_t longest(const Problem& problem) {
    std::int64_t length = 0;
    for (const Sequence& s : problem.sequences) length = std::max(length, s.length());
    return length;
}

bool wants_recurrent(const Problem& problem) {
    if (problem.algorithm != Algorithm::kAuto) return problem.algorithm == Algorithm::kRecurrent;
    if (problem.precision == Precision::kBFloat16) return false;
    return !problem.token_write_slots.empty() || longest(problem) <= kShortSequence;
}

/// Value channels are split only to give every thread work: each tile repeats the scores.
std::int64_t value_tile(const Problem& problem, int threads) {
    const std::int64_t pairs = std::max<std::int64_t>(problem.dims.N * problem.dims.HV, 1);
    const std::int64_t wanted = (threads + pairs - 1) / pairs;
    constexpr std::int64_t kSmallest = 32;
    const std::int64_t tile = round_up((problem.dims.V + wanted - 1) / wanted, kSmallest);
    return std::min(problem.dims.V, tile);
}

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
        if (problem.precision == Precision::kBFloat16 && wants_recurrent(problem)) {
            return {false, "bfloat16 operands are a mode of the chunked algorithm"};
        }
        return {true, ""};
    }

    [[nodiscard]] Plan plan(const Problem& problem) const override {
        const bool recurrent = wants_recurrent(problem);
        const bool wide = problem.precision == Precision::kFloat64;
        Plan plan;
        plan.backend = name();
        plan.kernel = recurrent ? "recurrent" : "chunked";
        plan.precision = problem.precision;
        plan.threads = thread_count(problem.threads);
        plan.value_tile = value_tile(problem, plan.threads);
        plan.tasks = problem.dims.N * problem.dims.HV *
                     ((problem.dims.V + plan.value_tile - 1) / plan.value_tile);
        std::int64_t bytes = 0;
        if (recurrent) {
            plan.chunk = 1;
            plan.block = 1;
            bytes = wide ? recurrent_workspace_bytes<double>(problem, plan.value_tile)
                         : recurrent_workspace_bytes<float>(problem, plan.value_tile);
        } else {
            plan.chunk = problem.chunk > 0 ? problem.chunk : kDefaultChunk;
            plan.block = kBlock;
            bytes = wide ? chunked_workspace_bytes<double>(problem, plan.chunk, plan.value_tile)
                         : chunked_workspace_bytes<float>(problem, plan.chunk, plan.value_tile);
        }
        plan.workspace_bytes =
            bytes * std::min<std::int64_t>(plan.threads, std::max<std::int64_t>(plan.tasks, 1));
        return plan;
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
