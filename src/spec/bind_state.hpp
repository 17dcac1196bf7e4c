// The second half of bind(): sequences, states, slots and checkpoints.
#pragma once

#include "sluice/problem.hpp"

namespace sluice {

/// Fills problem.sequences and dims.N from cu_seqlens (or one sequence per batch row).
void bind_sequences(const Arguments& arguments, Problem& problem);

/// Fills the states, the sequences' slots and the checkpoints. Needs bind_sequences() first.
void bind_states(const Arguments& arguments, Problem& problem);

}  // namespace sluice
