// Plans of the CPU backend: candidates scored by a model of one core's time.
#pragma once

#include "sluice/plan.hpp"
#include "sluice/problem.hpp"

namespace sluice::cpu {

/// Whether the problem runs token by token: asked for, or sequences too short for a chunk's fixed
/// work, or states wanted after every token.
[[nodiscard]] bool runs_recurrent(const Problem& problem);

[[nodiscard]] Plan make_plan(const Problem& problem, const DeviceSpec& device);

}  // namespace sluice::cpu
