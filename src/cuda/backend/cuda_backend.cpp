#include "cuda/backend/cuda_backend.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/backend/method.hpp"
#include "cuda/engine/driver.hpp"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

/// The general one last: what it takes, another did not.
std::array<const Method*, 3> methods() {
    return {&gla_method(), &scalar_method(), &recurrent_method()};
}

bool is_captured(const Problem& problem) {
    CaptureStatus status = CaptureStatus::kNone;
    const Result result =
        require_driver().stream_is_capturing(static_cast<Stream>(problem.stream), &status);
    // The default stream refuses the question while another stream is captured.
    return result != kSuccess || status != CaptureStatus::kNone;
}

/// Compiling takes seconds and runs other code, which a stream that is being captured forbids.
CompilePolicy compile_policy(const Problem& problem) {
    return problem.compile && !is_captured(problem) ? CompilePolicy::kAllow : CompilePolicy::kNever;
}

/// The device's memory for workspaces. A pool of this library's own keeps what it has: a device's
/// default pool gives it back at every synchronisation, and asking again takes longer than a
/// kernel.
MemoryPool workspace_pool(int gpu_index) {
    static std::mutex mutex;
    static std::map<int, MemoryPool> pools;
    const std::scoped_lock lock(mutex);
    MemoryPool& pool = pools[gpu_index];
    if (pool == nullptr) {
        const Driver& d = require_driver();
        const MemoryPoolProperties properties{.location = gpu_index};
        check(d.memory_pool_create(&pool, &properties), "cuMemPoolCreate");
        std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
        check(d.memory_pool_set(pool, kPoolReleaseThreshold, &keep), "cuMemPoolSetAttribute");
    }
    return pool;
}

/// Memory in the stream's order. A graph brings its own: while it is captured no pool may be made,
/// and none is asked.
Result allocate(const Problem& problem, std::size_t bytes, DevicePointer* pointer) {
    auto* const stream = static_cast<Stream>(problem.stream);
    const Driver& d = require_driver();
    if (is_captured(problem)) return d.memory_alloc_async(pointer, bytes, stream);
    return d.memory_alloc_from_pool(pointer, bytes, workspace_pool(problem.device.index), stream);
}

/// The caller's workspace, or memory that lives from here to here in the stream's order.
class Workspace {
  public:
    Workspace(const Problem& problem, const Plan& plan)
        : stream_(static_cast<Stream>(problem.stream)) {
        if (plan.workspace_bytes == 0) return;
        if (problem.workspace != nullptr) {
            if (problem.workspace_bytes < plan.workspace_bytes) {
                throw Error(ErrorCode::kValue, "workspace",
                            fmt::format("{} bytes", problem.workspace_bytes),
                            fmt::format("at least {} bytes", plan.workspace_bytes));
            }
            data_ = problem.workspace;
            return;
        }
        const Result result =
            allocate(problem, static_cast<std::size_t>(plan.workspace_bytes), &owned_);
        if (result == kOutOfMemory) {
            throw Error(ErrorCode::kMemory, "workspace",
                        fmt::format("{} bytes refused by the device", plan.workspace_bytes),
                        "a workspace of the caller's, or free device memory");
        }
        check(result, "allocation of the workspace");
        data_ = reinterpret_cast<void*>(owned_);  // NOLINT: an address of the device
    }
    ~Workspace() {
        if (owned_ != 0) driver()->memory_free_async(owned_, stream_);
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    [[nodiscard]] void* data() const noexcept { return data_; }

  private:
    Stream stream_;
    DevicePointer owned_ = 0;
    void* data_ = nullptr;
};

class CudaBackend final : public Backend {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return "cuda"; }
    [[nodiscard]] std::string_view summary() const noexcept override {
        return "one Hopper GPU: tensor cores for gated linear attention and for scalar decays, "
               "float32 cores for every other recurrence";
    }

    [[nodiscard]] Support supports(const Problem& problem) const override {
        if (problem.device.kind != DeviceKind::kCuda) {
            return {false, "tensors must be in the memory of a CUDA device"};
        }
        if (!driver_problem().empty()) return {false, driver_problem()};
        const auto all = gpus();
        const auto index = static_cast<std::size_t>(problem.device.index);
        if (problem.device.index < 0 || index >= all.size() || !all[index].runs_sm90a()) {
            return {false, fmt::format("{} is not a GPU of compute capability 9.0 (Hopper)",
                                       to_string(problem.device))};
        }
        std::string reasons;
        for (const Method* method : methods()) {
            Support support = method->supports(problem);
            if (support.ok) return support;
            reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", method->name(),
                                   support.reason);
        }
        return {false, reasons};
    }

    [[nodiscard]] Plan plan(const Problem& problem, const DeviceSpec& device) const override {
        std::string passed_over;
        for (const Method* method : methods()) {
            const Support support = method->supports(problem);
            if (!support.ok) {
                passed_over += fmt::format("{}not {}: {}", passed_over.empty() ? "" : "; ",
                                           method->name(), support.reason);
                continue;
            }
            Plan plan = method->plan(problem, device);
            plan.backend = name();
            if (method == methods().back()) plan.notice = std::move(passed_over);
            return plan;
        }
        throw Error(ErrorCode::kUnsupported, "backend", problem.to_string(),
                    "a problem that supports() accepts");
    }

    [[nodiscard]] Plan prepare(const Problem& problem, const Plan& plan) const override {
        const ContextScope scope(problem.device.index);
        Plan prepared = plan;
        if (method_of(plan).prepare(problem, plan, compile_policy(problem))) {
            prepared.notice += fmt::format("{}compiled the kernel {}",
                                           prepared.notice.empty() ? "" : "; ", plan.kernel);
        }
        return prepared;
    }

    void run(const Problem& problem, const Plan& plan) const override {
        const ContextScope scope(problem.device.index);
        const Workspace workspace(problem, plan);
        method_of(plan).run(problem, plan, compile_policy(problem), workspace.data());
    }

  private:
    static const Method& method_of(const Plan& plan) {
        for (const Method* method : methods()) {
            if (method->name() == plan.kernel) return *method;
        }
        throw Error(ErrorCode::kUnsupported, "plan", plan.kernel, "a plan of this back end");
    }
};

}  // namespace

const Backend& cuda_backend() {
    static const CudaBackend backend;
    return backend;
}

const DeviceSpec& nominal_gpu(int index) {
    static const std::vector<DeviceSpec> specs = [] {
        std::vector<DeviceSpec> all;
        for (const GpuInfo& info : gpus()) {
            DeviceSpec spec = h200();
            spec.name = info.name;
            spec.multiprocessors = info.multiprocessors;
            spec.cache_bytes = info.l2_bytes;
            all.push_back(spec);
        }
        return all;
    }();
    (void)gpu(index);
    return specs[static_cast<std::size_t>(index)];
}

}  // namespace sluice::cuda
