// A call's tensors in another device's memory: every byte at the same distance from its neighbours,
// so that strides, overlaps and alignment (modulo 256 bytes) are those of the original.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/problem.hpp"

namespace sluice {

/// Memory addresses [begin, end).
struct Range {
    std::uintptr_t begin = 0, end = 0;
};

/// From the lowest to past the highest byte that a view touches; empty for a view without elements.
[[nodiscard]] Range range_of(const TensorView& view);

class Mirror {
  public:
    /// Allocates. `with`: memory around the tensors that belongs to the image, too. A workspace is
    /// not mirrored: it has no contents.
    Mirror(const Arguments& arguments, const Device& to, const std::vector<Range>& with = {});

    /// The call, in the image.
    [[nodiscard]] const Arguments& arguments() const noexcept { return arguments_; }
    /// Copies to the image everything that a call may read (what only outputs touch stays as it
    /// is).
    void fetch_inputs() const;
    /// Copies all memory to the image, and back.
    void fetch() const;
    void write_back() const;

  private:
    /// A piece of the original's memory, and its image.
    struct Block {
        Range range;
        Tensor memory;
        std::byte* image = nullptr;  // of range.begin
    };
    [[nodiscard]] const Block& block_of(const Range& range) const;
    [[nodiscard]] TensorView original(const Range& range) const;
    [[nodiscard]] TensorView image(const Range& range) const;

    Device from_, to_;
    Arguments arguments_;
    std::vector<Range> inputs_;
    std::vector<Block> blocks_;  // by address, apart
};

}  // namespace sluice
