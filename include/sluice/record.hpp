// Record: one measured row, as a value and as JSON. Tables, charts and reports read only these.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/problem.hpp"
#include "sluice/tensor.hpp"
#include "sluice/work.hpp"

namespace sluice {

struct Record {
    static constexpr int kSchema = 2;

    // Provenance.
    std::string version;  // of this library
    std::string commit;   // of its sources, "unknown" outside a checkout
    std::string date;     // UTC, 2026-11-29T17:15:00Z
    std::string command;  // the command line that measured it

    // What ran, where.
    DeviceSpec device;      // with the rates that the floors use
    double clock_mhz = 0;   // of a GPU's multiprocessors, nominal; 0 for a CPU
    std::string backend;    // "cuda", "cpu", "oracle"; "baseline" for softmax attention
    std::string kernel;     // Plan::kernel, or "online-softmax"
    std::string precision;  // of the arithmetic
    int threads = 0;
    std::string plan_hash;  // 16 hexadecimal digits, empty for the baseline
    std::string notice;     // Plan::notice of the first call

    // The problem. Softmax attention has HV query heads and H key heads.
    std::string op;
    std::string model;  // the workload row that the shape comes from, if any
    Phase phase = Phase::kPrefill;
    Dims dims;                 // decode: T tokens per call (1)
    std::int64_t context = 0;  // softmax decode: keys attended to; else 0
    DType dtype = DType::kFloat32;
    DType gate_dtype = DType::kFloat32;
    DType state_dtype = DType::kFloat32;
    std::string gates;  // distribution of the log decays
    std::uint64_t seed = 0;

    // Work, by formula: the same whatever the kernel does.
    double flops = 0;
    double bytes_read = 0;
    double bytes_written = 0;

    // Measurement. Zero, with `skipped` saying why, for a row that was not run.
    std::string skipped;
    std::string cache;  // "warm", "flushed", "partly flushed"
    int samples = 0;
    double measured_us = 0;  // median
    double p10_us = 0, p90_us = 0;
    double relative_mad = 0;    // median absolute deviation / median
    double host_us = 0;         // GPU: what a call keeps the host, which does not wait; CPU: 0
    std::int64_t io_bytes = 0;  // inputs, outputs and states, as allocated
    /// io_bytes + growth of the resident set during the first call (some hundred kB of code and
    /// stacks among it); on a GPU io_bytes + the plan's workspace.
    std::int64_t peak_memory_bytes = 0;
    std::string peak_memory_method;

    // Predictions: by the planner, and the least time that the hardware allows.
    double predicted_us = 0;   // 0: none
    double floor_us = 0;       // on `device`
    double h200_floor_us = 0;  // the same bytes and FLOPs on one H200

    [[nodiscard]] bool ran() const noexcept { return skipped.empty(); }
    [[nodiscard]] double bytes() const noexcept { return bytes_read + bytes_written; }
    // Rates; 0 for a row that was not run.
    [[nodiscard]] double tokens_per_s() const noexcept;
    [[nodiscard]] double gflops_per_s() const noexcept;
    [[nodiscard]] double gbytes_per_s() const noexcept;
    [[nodiscard]] double fraction_of_floor() const noexcept;   // floor_us / measured_us
    [[nodiscard]] double fraction_of_matmul() const noexcept;  // FLOP/s / matmul rate of `device`
    [[nodiscard]] double peak_memory_ratio() const noexcept;   // peak_memory_bytes / io_bytes
    /// Which rate makes the floor on `device`.
    [[nodiscard]] bool memory_bound() const noexcept;
};

/// A JSON array of objects with the members above, flat but for "device" and "dims". The rates are
/// written too, for readers that want them, and recomputed when read.
[[nodiscard]] std::string to_json(std::span<const Record> records);
/// Throws Error(kFile) that names `source` for text that is not such an array, another schema, or
/// a member that is missing, surplus or of the wrong type.
[[nodiscard]] std::vector<Record> parse_records(std::string_view json, const std::string& source);

[[nodiscard]] std::vector<Record> read_records(const std::filesystem::path& path);
/// The file appears whole or not at all.
void write_records(const std::filesystem::path& path, std::span<const Record> records);

}  // namespace sluice
