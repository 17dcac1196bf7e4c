// The one table of cases: every backend is judged by it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/problem.hpp"
#include "support/forms.hpp"
#include "support/guarded.hpp"
#include "support/tolerances.hpp"
#include "support/values.hpp"

namespace sluice::test {

enum class States : unsigned char {
    kNone,
    kFinal,        // from zero, written
    kDense,        // read and written, memory of their own
    kInPlace,      // read and written in the same memory
    kMasked,       // dense, has_initial false for some sequences
    kPool,         // two pools: repeated and absent reads, discarded writes
    kPoolInPlace,  // one pool, each sequence in its slot
    kPoolShift,    // one pool, read from some slots and written to others
    kPoolMasked,   // kPool with has_initial
};
inline constexpr int kNumStates = 9;
[[nodiscard]] const char* to_string(States states) noexcept;

enum class Packing : unsigned char { kDense, kInt32, kInt64 };
[[nodiscard]] const char* to_string(Packing packing) noexcept;

struct Case {
    const Form* form = nullptr;
    Dims dims;  // N is the number of sequences
    Phase phase = Phase::kPrefill;
    std::vector<std::int64_t> lengths;  // of packed sequences, adding up to T
    Packing packing = Packing::kDense;
    DType dtype = DType::kFloat32;  // per-token inputs but gates
    DType gate_dtype = DType::kFloat32;
    DType o_dtype = DType::kFloat32;
    DType state_dtype = DType::kFloat32;
    ValueKinds kinds;
    States states = States::kNone;
    StateLayout layout = StateLayout::kKeyFirst;
    bool checkpoints = false;
    Strides strides = Strides::kContiguous;
    Poison poison = Poison::kNaN;
    Alignment alignment = Alignment::kElement;
    Algorithm algorithm = Algorithm::kAuto;
    Precision precision = Precision::kAuto;
    int chunk = 0;
    int threads = 1;
    std::uint64_t seed = 0;

    [[nodiscard]] std::string name() const;
    /// What Precision::kAuto means for these dtypes on a device.
    [[nodiscard]] Precision resolved_precision(DeviceKind device = DeviceKind::kCpu) const;
    /// Whether any tensor of the call holds float64.
    [[nodiscard]] bool has_float64() const noexcept;
    [[nodiscard]] Regime regime() const;
};

/// The table, the same on every machine: some twenty cases for each form, in the forms' order. Each
/// form meets every token count, kind of gates and keys, state, packing and stride in prefill.
[[nodiscard]] std::span<const Case> cases();

// The values that every axis of the table takes; a test counts that all of them occur.
inline constexpr std::int64_t kTokenCounts[] = {1, 15, 16, 17, 63, 64, 65, 128, 200, 500};
inline constexpr std::int64_t kChannelCounts[] = {8,  16, 20,  32,  60,  64,
                                                  80, 96, 100, 128, 192, 256};
inline constexpr std::int64_t kGroupSizes[] = {1, 2, 3, 4, 8};
inline constexpr int kChunks[] = {0, 16, 32, 64, 128};
inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                    DType::kFloat64};

}  // namespace sluice::test
