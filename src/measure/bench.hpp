// Benchmark rows: from a case to a Record, by prediction alone or by measuring.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "measure/random_inputs.hpp"
#include "measure/timer.hpp"
#include "sluice/problem.hpp"
#include "sluice/record.hpp"
#include "sluice/variants.hpp"

namespace sluice::measure {

/// The op that is no variant: causal softmax attention, the baseline.
inline constexpr std::string_view kSoftmax = "softmax";

struct BenchCase {
    std::string op;
    VariantRequest request;  // settings, and the optional inputs to give (shapes are not read)
    std::string model;       // for the record only
    Phase phase = Phase::kPrefill;
    /// N is not read. Prefill: T tokens per sequence. Decode: one token for each of B sequences,
    /// after T of them (softmax attends to those T; a recurrence does not depend on T).
    Dims dims;
    DType dtype = DType::kFloat32;
    DType gate_dtype = DType::kFloat32;
    Gates gates = Gates::kDefault;
    std::uint64_t seed = 0;
    Device device{};
    std::string backend = "cpu";
    Algorithm algorithm = Algorithm::kAuto;
    Precision precision = Precision::kAuto;
    int threads = 0;
    bool flush = false;  // evict the caches before each run; on a GPU always
};

struct BenchLimits {
    StoppingRule rule;
    /// Of the row's device. 0: what the system says is available, or most of a GPU's.
    std::int64_t memory_bytes = 0;
};

/// Everything but the measurement. `skipped` says why measure() would not run the row: the backend
/// does not support it, or it needs more memory or time than the limits. Allocates address space
/// (on a GPU memory, for a moment), touches none of it. Throws Error for a case that is no problem
/// at all.
[[nodiscard]] Record predict(const BenchCase& row, const BenchLimits& limits);

/// predict(), and unless the row is skipped its measurement. The first call is the warm-up; peak
/// memory is taken from it. On a GPU the inputs are one random batch row, repeated, and events time
/// the runs. A run that fails is a skipped row that says why.
[[nodiscard]] Record measure(const BenchCase& row, const BenchLimits& limits);

/// Sets the record's device, and its floor there.
void set_device(const DeviceSpec& device, Record& record);

/// What measure() will take, from what predict() said; 0 for a skipped row.
[[nodiscard]] double expected_seconds(const Record& predicted, const BenchLimits& limits);

}  // namespace sluice::measure
