#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "cuda/backend/method.hpp"
#include "cuda/emit/emit.hpp"
#include "cuda/engine/kernel.hpp"
#include "cuda/recurrent/recurrent_kernel.hpp"

namespace sluice::cuda {

namespace {

// ---- kernels ----------------------------------------------------------------------------------

/// A kernel's text, made once, and the kernel on each GPU that it was loaded on.
class Entry {
  public:
    explicit Entry(KernelSource source) : source_(std::move(source)) {}

    /// Null until load().
    [[nodiscard]] const Kernel* loaded(int gpu_index) const noexcept {
        return is_slot(gpu_index) ? kernels_[static_cast<std::size_t>(gpu_index)].load() : nullptr;
    }
    const Kernel& load(int gpu_index, CompilePolicy policy) {
        if (const Kernel* kernel = loaded(gpu_index)) return *kernel;
        const Kernel& kernel = find_kernel(source_, gpu_index, policy);
        if (is_slot(gpu_index)) kernels_[static_cast<std::size_t>(gpu_index)].store(&kernel);
        return kernel;
    }

  private:
    static constexpr int kGpus = 32;
    static bool is_slot(int gpu_index) noexcept { return gpu_index >= 0 && gpu_index < kGpus; }

    KernelSource source_;
    std::array<std::atomic<const Kernel*>, kGpus> kernels_{};  // find_kernel() keeps them for good
};

/// By what decides the kernel: writing its text takes longer than many a decode step.
Entry& entry_of(const Problem& problem) {
    static std::shared_mutex mutex;
    static auto& table = *new std::unordered_map<std::string, std::unique_ptr<Entry>>;
    const int keys = padded_keys(problem.dims.K);
    const std::string key = formulas_key(problem.spec) + std::to_string(keys);
    {
        const std::shared_lock lock(mutex);
        const auto at = table.find(key);
        if (at != table.end()) return *at->second;
    }
    auto entry = std::make_unique<Entry>(recurrent_kernel(problem.spec, keys));
    const std::unique_lock lock(mutex);
    return *table.try_emplace(key, std::move(entry)).first->second;
}

// ---- planning ---------------------------------------------------------------------------------

// The model: estimates (docs/kernels/cuda-recurrent.md).
constexpr double kClockHz = 1.7e9;
constexpr double kLaunchUs = 4;
constexpr double kWarpsPerCycle = 4;       // instructions that a multiprocessor starts
constexpr double kBlocksAtATime = 8;       // of a multiprocessor
constexpr double kStageInstructions = 40;  // to evaluate, convert and store one operand's element
constexpr double kSumCycles = 150;         // exchanges of one sum over keys, end to end

/// Sums over keys that one token's state waits for.
int sums_in_a_row(Update update) { return update == Update::kAdditive ? 0 : 1; }

double instructions_per_token(const Problem& problem) {
    const int keys = padded_keys(problem.dims.K);
    const double rows = static_cast<double>(keys) / lanes_of(keys);
    const Update update = problem.spec.update;
    const bool decays = problem.spec.decay() != Decay::kNone;
    const int passes = (update == Update::kAdditive ? 2
                        : update == Update::kDelta  ? 3
                                                    : 4) +
                       (decays ? 1 : 0);
    const int operands =
        (update == Update::kRankOne ? 4 : 2) + (problem.spec.decay() == Decay::kVector ? 1 : 0);
    const double state = passes * rows * recurrent::kColumns;
    const double loads = operands * rows / 4 * 2;
    const double exchanges = 9.0 * (1 + sums_in_a_row(update));
    const double staging = kStageInstructions * operands * keys / recurrent::kThreads;
    return state + loads + exchanges + staging;
}

double predicted_us(const Problem& problem, const Plan& plan, const DeviceSpec& device) {
    const double multiprocessors = std::max(device.multiprocessors, 1);
    const double sequences = std::max<double>(static_cast<double>(problem.dims.N), 1);
    // The lengths of packed sequences are known to the device only: their mean stands for each.
    const double length = static_cast<double>(problem.dims.B * problem.dims.T) / sequences;
    const double instructions = instructions_per_token(problem);
    constexpr int kWarps = recurrent::kThreads / 32;
    const double issue = static_cast<double>(plan.tasks) * length * kWarps * instructions /
                         (multiprocessors * kWarpsPerCycle);
    const double waves =
        std::max(1.0, static_cast<double>(plan.tasks) / (multiprocessors * kBlocksAtATime));
    const double chain =
        waves * length * (instructions + kSumCycles * sums_in_a_row(problem.spec.update));
    const double cycles_us = 1e6 * std::max(issue, chain) / kClockHz;
    return kLaunchUs + std::max(cycles_us, plan.floor.memory_us);
}

// ---- what is refused --------------------------------------------------------------------------

std::string wide_tensor(const Problem& problem) {
    for (const BoundInput& input : problem.inputs) {
        if (input.dtype == DType::kFloat64) return input.name;
    }
    if (problem.o.dtype == DType::kFloat64) return "o";
    const std::pair<const BoundState*, const char*> states[] = {
        {&problem.initial, "state.initial"},
        {&problem.final, "state.final"},
        {&problem.checkpoints, "checkpoints"},
        {&problem.initial_key_sum, "initial_key_sum"},
        {&problem.final_key_sum, "final_key_sum"}};
    for (const auto& [state, name] : states) {
        if (*state && state->dtype == DType::kFloat64) return name;
    }
    return "";
}

std::string refusal(const Problem& problem) {
    const auto text = [](const char* argument, const auto& value, const std::string& accepted) {
        return fmt::format("{}: got {}; accepted: {}", argument, value, accepted);
    };
    if (problem.device.kind != DeviceKind::kCuda) {
        return text("device", to_string(problem.device), "tensors on a CUDA device");
    }
    if (problem.precision == Precision::kFloat64) {
        return text("precision", "float64", "float32 arithmetic");
    }
    if (const std::string name = wide_tensor(problem); !name.empty()) {
        return text(name.c_str(), "float64", "float32, bfloat16 or float16");
    }
    if (problem.algorithm == Algorithm::kChunked) {
        return text("algorithm", "chunked", "auto or recurrent");
    }
    if (problem.dims.K > recurrent::kMaxKeys) {
        return text("K", problem.dims.K, fmt::format("up to {}", recurrent::kMaxKeys));
    }
    if (problem.inputs.size() > recurrent::kMaxInputs) {
        return text("inputs", problem.inputs.size(),
                    fmt::format("up to {}", recurrent::kMaxInputs));
    }
    if (problem.spec.parameters.size() > recurrent::kMaxParameters) {
        return text("parameters", problem.spec.parameters.size(),
                    fmt::format("up to {}", recurrent::kMaxParameters));
    }
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (problem.dims.HV > kMost || problem.dims.V > kMost - recurrent::kMaxKeys) {
        return text("V", fmt::format("{} in {} heads", problem.dims.V, problem.dims.HV),
                    "fewer than 2^31 of either");
    }
    if (recurrent_blocks(problem) > kMost) {
        return text("sequences", fmt::format("{} blocks of threads", recurrent_blocks(problem)),
                    fmt::format("up to {}", kMost));
    }
    return "";
}

class RecurrentMethod final : public Method {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return "recurrent"; }

    [[nodiscard]] Support supports(const Problem& problem) const override {
        std::string reason = refusal(problem);
        return {reason.empty(), std::move(reason)};
    }

    [[nodiscard]] Plan plan(const Problem& problem, const DeviceSpec& device) const override {
        Plan plan;
        plan.kernel = name();
        plan.precision = Precision::kFloat32;
        plan.chunk = 1;
        plan.block = 1;
        plan.value_tile = value_tile_of(padded_keys(problem.dims.K));
        plan.tasks = recurrent_blocks(problem);
        plan.floor = floor_on(device, work(problem));
        plan.predicted_us = predicted_us(problem, plan, device);
        return plan;
    }

    bool prepare(const Problem& problem, const Plan& /*plan*/,
                 CompilePolicy policy) const override {
        Entry& entry = entry_of(problem);
        const int gpu_index = problem.device.index;
        if (entry.loaded(gpu_index) != nullptr) return false;
        try {
            entry.load(gpu_index, CompilePolicy::kNever);
            return false;
        } catch (const Error& error) {
            // No cubin yet, most likely; whatever else it is shows again.
            if (error.code() != ErrorCode::kUnsupported) throw;
        }
        entry.load(gpu_index, policy);
        return true;
    }

    void run(const Problem& problem, const Plan& /*plan*/, CompilePolicy policy,
             void* /*workspace*/) const override {
        const std::int64_t blocks = recurrent_blocks(problem);
        if (blocks == 0) return;
        const Kernel& kernel = entry_of(problem).load(problem.device.index, policy);
        const recurrent::Params params = recurrent_params(problem);
        static_assert(sizeof params <= 4096);  // what every driver passes by value
        kernel.launch({.x = static_cast<unsigned>(blocks)}, recurrent::kThreads, 0,
                      static_cast<Stream>(problem.stream), &params);
    }
};

}  // namespace

const Method& recurrent_method() {
    static const RecurrentMethod method;
    return method;
}

}  // namespace sluice::cuda
