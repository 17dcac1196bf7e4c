// Which memory views touch: alias checks that accept interleaved slices of one buffer.
#pragma once

#include "sluice/tensor.hpp"

namespace sluice {

/// Addresses [begin, end) around every element; empty where there is none.
struct ByteRange {
    std::int64_t begin = 0, end = 0;
    [[nodiscard]] bool meets(const ByteRange& other) const noexcept {
        return begin < other.end && other.begin < end;
    }
};
[[nodiscard]] ByteRange byte_range(const TensorView& view) noexcept;

/// False only if no byte belongs to both views (proved by their ranges, or modulo a common stride:
/// slices of one packed buffer interleave without touching).
[[nodiscard]] bool may_overlap(const TensorView& a, const TensorView& b);

/// Whether two index tuples of one view can address the same byte (expanded dimensions do).
[[nodiscard]] bool overlaps_itself(const TensorView& view);

/// Same address, element type and strides.
[[nodiscard]] bool same_memory(const TensorView& a, const TensorView& b);

}  // namespace sluice
