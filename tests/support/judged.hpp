// The back ends that are held to the project's bounds.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/problem.hpp"
#include "support/cases.hpp"

namespace sluice::test {

/// A back end, and what it must take. What it does not claim it must refuse.
struct Judged {
    std::string name;
    DeviceKind device = DeviceKind::kCpu;
    std::vector<Update> updates;
    std::vector<Decay> decays;
    std::vector<Precision> precisions;  // resolved ones
    std::vector<Phase> phases;
    bool normalizers = false;
    bool checkpoints = false;
    bool float64_tensors = true;
    /// A chunked algorithm for every problem. Else Algorithm::kChunked is left to support_for().
    bool chunks = true;

    [[nodiscard]] bool takes(const Spec& spec, Precision precision, Phase phase,
                             bool with_checkpoints = false) const;
    /// Whether a case, bound for the back end's device, must be taken.
    [[nodiscard]] bool takes(const Case& c, const Problem& problem) const;
};

/// What Backend::supports() says, and plan(), where the back end has a device; elsewhere what they
/// would say.
[[nodiscard]] Support support_for(const Judged& backend, const Problem& problem);
[[nodiscard]] Plan plan_for(const Judged& backend, const Problem& problem);

/// All but the oracle, which judges. A new back end is one line here.
[[nodiscard]] std::span<const Judged> judged_backends();
[[nodiscard]] const Judged& find_judged(const std::string& name);

/// Why a back end's device is not here, "no CUDA device: ..."; empty: it is. (SKIP_WITHOUT)
[[nodiscard]] std::string absence_of(const std::string& backend);

/// Skips a test (a whole one: from SetUp) where the back end has no device to run on.
#define SKIP_WITHOUT(backend)                                                              \
    if (const std::string absence_ = sluice::test::absence_of(backend); !absence_.empty()) \
    GTEST_SKIP() << absence_

}  // namespace sluice::test
