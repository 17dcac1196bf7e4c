// A case put before a back end: what it takes must agree with the oracle, what it does not it must
// refuse.
#pragma once

#include "support/instance.hpp"
#include "support/judged.hpp"

namespace sluice::test {

/// Reports to GoogleTest. `kernel`, if not empty: what must have run it.
void judge(const Judged& backend, const Case& c, const std::string& kernel = {});

/// The instance's call, bound for the back end's device, whether or not that is here.
[[nodiscard]] Problem problem_on(const Judged& backend, const Instance& instance, Phase phase);

/// Whether a plan's precision is what was asked for: reduced operands are allowed, not demanded,
/// where a kernel has no use for them.
[[nodiscard]] bool as_precise_as(Precision planned, Precision wanted);

/// SLUICE_TEST_LONGEST: only cases of at most so many tokens are judged, for slow instruments.
[[nodiscard]] std::int64_t longest_case();

}  // namespace sluice::test
