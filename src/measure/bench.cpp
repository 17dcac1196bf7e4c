#include "measure/bench.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <optional>

#include "measure/bench_job.hpp"
#include "measure/cache.hpp"
#include "measure/embedded.hpp"
#include "measure/gpu_timer.hpp"
#include "measure/memory.hpp"
#include "measure/statistics.hpp"
#include "measure/units.hpp"

namespace sluice::measure {

namespace {

/// Leaves room for the rest of the machine.
constexpr double kUsableMemoryShare = 0.85;

bool on_gpu(const Device& device) { return device.kind == DeviceKind::kCuda; }

std::int64_t memory_of(const Device& device) {
    return on_gpu(device) ? cuda::gpu(device.index).memory_bytes : available_memory_bytes();
}

void apply_limits(const BenchLimits& limits, Job& job) {
    Record& record = job.record;
    if (!record.ran()) return;
    const double usable = limits.memory_bytes > 0
                              ? static_cast<double>(limits.memory_bytes)
                              : kUsableMemoryShare * static_cast<double>(memory_of(job.device));
    const auto needed = static_cast<double>(record.io_bytes + job.workspace_bytes);
    if (usable > 0 && needed > usable) {
        record.skipped =
            fmt::format("needs {} of memory; {} may be used", format_with_prefix(needed, "B"),
                        format_with_prefix(usable, "B"));
    } else if (record.predicted_us > 1e6 * limits.rule.max_seconds) {
        record.skipped =
            fmt::format("one run is predicted to take {}; the limit is {}",
                        format_us(record.predicted_us), format_us(1e6 * limits.rule.max_seconds));
    }
}

Job prepare(const BenchCase& row, const BenchLimits& limits) {
    Job job = make_job(row);
    Record& record = job.record;
    record.version = embedded::version();
    record.commit = embedded::commit();
    record.date =
        fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::now()));
    apply_limits(limits, job);
    return job;
}

void add_plan(const std::optional<Plan>& plan, Record& record) {
    if (!plan) return;
    record.plan_hash = fmt::format("{:016x}", plan->hash());
    record.notice = plan->notice;
}

void add_samples(const std::vector<double>& samples_us, Record& record) {
    const Summary summary = summarize(samples_us);
    record.samples = summary.samples;
    record.measured_us = summary.median;
    record.p10_us = summary.p10;
    record.p90_us = summary.p90;
    record.relative_mad = summary.relative_mad;
}

Record time_on_gpu(const Job& job, const BenchLimits& limits) {
    Record record = job.record;
    const GpuTimer timer(job.device.index);
    record.cache = "flushed";
    job.fill();
    const auto run = [&] { (void)job.run(); };
    // The first call loads kernels, and compiles those that nobody compiled ahead.
    add_plan(job.run(), record);
    record.peak_memory_bytes = record.io_bytes + job.workspace_bytes;
    record.peak_memory_method = "workspace of the plan";
    const double warm_us = timer.gpu_us(run);
    const bool slow = warm_us >= 1e6 * limits.rule.max_seconds;
    const auto time = [&] { return timer.gpu_us(run); };
    add_samples(slow ? std::vector{warm_us} : collect_us(limits.rule, time), record);
    record.host_us = timer.host_us(run, record.measured_us);
    return record;
}

Record time_on_cpu(const Job& job, bool flush_caches, const BenchLimits& limits) {
    Record record = job.record;
    std::optional<CacheFlusher> flusher;
    if (flush_caches) flusher.emplace(record.device.cache_bytes);
    record.cache = !flusher ? "warm" : flusher->is_complete() ? "flushed" : "partly flushed";

    job.fill();
    const double start = steady_clock_us();
    const PeakMemory peak = measure_peak_memory([&] { add_plan(job.run(), record); });
    const double first_us = steady_clock_us() - start;
    record.peak_memory_bytes = record.io_bytes + peak.growth_bytes;
    record.peak_memory_method = peak.method;

    // A row whose warm-up used up its time is not run again.
    const bool slow = first_us >= 1e6 * limits.rule.max_seconds;
    const auto run = [&] { (void)job.run(); };
    const auto flush = [&] {
        if (flusher) (*flusher)();
    };
    add_samples(slow ? std::vector{first_us} : sample_us(limits.rule, run, flush), record);
    return record;
}

}  // namespace

Record predict(const BenchCase& row, const BenchLimits& limits) {
    return prepare(row, limits).record;
}

Record measure(const BenchCase& row, const BenchLimits& limits) {
    const Job job = prepare(row, limits);
    return job.record.ran() ? measure_job(job, row.flush, limits) : job.record;
}

Record measure_job(const Job& job, bool flush, const BenchLimits& limits) {
    const auto failed = [&](const std::string& problem) {
        Record record = job.record;
        record.skipped = "failed: " + problem;
        return record;
    };
    try {
        return on_gpu(job.device) ? time_on_gpu(job, limits) : time_on_cpu(job, flush, limits);
    } catch (const std::bad_alloc&) {
        return failed("out of memory");
    } catch (const std::exception& problem) {
        return failed(problem.what());
    }
}

void set_device(const DeviceSpec& device, Record& record) {
    record.device = device;
    const Work work{record.flops, record.bytes_read, record.bytes_written};
    record.floor_us = floor_on(device, work).us();
}

double expected_seconds(const Record& predicted, const BenchLimits& limits) {
    if (!predicted.ran()) return 0;
    constexpr double kFillBytesPerS = 2e8;
    const StoppingRule& rule = limits.rule;
    const double run = 1e-6 * predicted.predicted_us;
    // A GPU's inputs are one batch row, repeated.
    const double rows = predicted.backend == "cuda"
                            ? static_cast<double>(std::max<std::int64_t>(1, predicted.dims.B))
                            : 1;
    const double sampling = std::clamp(rule.min_runs * run, rule.min_seconds,
                                       std::max(rule.min_seconds, rule.max_seconds));
    return run + sampling + static_cast<double>(predicted.io_bytes) / rows / kFillBytesPerS;
}

}  // namespace sluice::measure
