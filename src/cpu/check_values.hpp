// Options::validate: what only the tensors' elements can show.
#pragma once

#include "sluice/problem.hpp"

namespace sluice::cpu {

/// Throws Error(kValue) for a NaN in any input and for a log decay above zero (or NaN), naming the
/// argument and the element.
void check_values(const Problem& problem);

}  // namespace sluice::cpu
