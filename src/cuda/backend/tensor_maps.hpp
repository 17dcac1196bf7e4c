// Tensor maps: how bulk copies see an input or output, (channel, head, token, batch).
#pragma once

#include <string>

#include "sluice/problem.hpp"

namespace sluice::cuda {

/// Why bulk copies cannot read (or write) the tensor: which stride or address, and what is
/// accepted; empty: they can.
[[nodiscard]] std::string refuse_tensor_map(const BoundInput& tensor, const Dims& dims);

/// Writes the map (128 bytes, aligned to 64) of boxes of `tokens` tokens x 128 bytes of channels in
/// 128-byte swizzle. Channels and tokens outside the tensor read as zero.
void encode_tensor_map(void* map, const BoundInput& tensor, const Dims& dims, int tokens);

}  // namespace sluice::cuda
