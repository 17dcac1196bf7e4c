// Tensors embedded in poisoned memory: whatever a kernel reads or writes outside shows.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/tensor.hpp"
#include "support/values.hpp"

namespace sluice::test {

/// How a tensor lies in memory. Every kind has poisoned elements before, after and (but for the
/// contiguous one) between its rows.
enum class Strides : unsigned char {
    kContiguous,
    kTransposed,   // dimensions 1 and 2 exchanged: [B, H, T, D] storage
    kSliced,       // columns of a wider buffer
    kPadded,       // rows (all dimensions but the first two) padded
    kInterleaved,  // every second element
    kReversed,     // dimension 1 backwards, a negative stride
    kExpanded,     // dimension 2 is one element repeated, stride zero (inputs only)
};
inline constexpr int kNumStrides = 7;
[[nodiscard]] const char* to_string(Strides strides) noexcept;

enum class Poison : unsigned char { kNaN, kHuge };

/// Where element 0 of a buffer's data lies.
enum class Alignment : unsigned char {
    kElement,       // at an address that only the element's size divides
    kSixteenBytes,  // where vector loads and bulk copies can start, strides permitting
};

class Guarded {
  public:
    /// An input that holds `values`, rounded to `dtype`.
    [[nodiscard]] static Guarded input(const Values& values, DType dtype, Strides strides,
                                       Poison poison, Alignment alignment = Alignment::kElement);
    /// An output whose elements are poison (NaN) until they are written.
    [[nodiscard]] static Guarded output(const std::vector<std::int64_t>& shape, DType dtype,
                                        Strides strides, Alignment alignment = Alignment::kElement);
    /// An int32 or int64 vector or matrix, or a bool vector.
    [[nodiscard]] static Guarded indices(const std::vector<std::int64_t>& shape,
                                         const std::vector<std::int64_t>& values, DType dtype);

    [[nodiscard]] const TensorView& view() const noexcept { return view_; }
    /// Whether every byte outside `writable` is as it was made. Each of `writable` is a part of
    /// view().
    [[nodiscard]] bool untouched_outside(const std::vector<TensorView>& writable) const;
    [[nodiscard]] bool untouched() const { return untouched_outside({}); }
    /// All of it, with what lies around the elements.
    [[nodiscard]] std::span<const std::byte> memory() const noexcept { return *memory_; }

  private:
    Guarded(const std::vector<std::int64_t>& shape, DType dtype, Strides strides,
            Alignment alignment);
    void fill(Poison poison);
    void snapshot();

    std::shared_ptr<std::vector<std::byte>> memory_;
    std::vector<std::byte> before_;
    TensorView view_;
};

/// Calls `f(offset)` with the element offset of every element of `view`, in row-major order.
template <class F>
void for_each_offset(const TensorView& view, F&& f) {
    std::array<std::int64_t, kMaxRank> index{};
    const std::int64_t count = view.size();
    for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t offset = 0;
        for (int d = 0; d < view.rank; ++d) offset += index[d] * view.stride_elements[d];
        f(offset);
        for (int d = view.rank - 1; d >= 0; --d) {
            if (++index[d] < view.extents[d]) break;
            index[d] = 0;
        }
    }
}

}  // namespace sluice::test
