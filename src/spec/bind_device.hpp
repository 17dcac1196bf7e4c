// bind() where index tensors are in device memory: their shapes and types are checked, their
// elements are not read.
#pragma once

#include "sluice/problem.hpp"

namespace sluice {

/// problem.dims.N, and cu_seqlens.
void bind_device_sequences(const Arguments& arguments, Problem& problem);
/// Every other index tensor. The pools are bound already.
void bind_device_slots(const StateArguments& state, Problem& problem);
/// Caller's workspace and stream.
void bind_device_call(const Arguments& arguments, const Options& options, Problem& problem);

}  // namespace sluice
