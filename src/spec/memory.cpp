#include "spec/memory.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

namespace sluice {

namespace {

struct Dim {
    std::int64_t extent;
    std::int64_t stride_bytes;  // positive
};

/// A view with positive strides and without dimensions of one element, and its first byte.
class Footprint {
  public:
    explicit Footprint(const TensorView& view)
        : first_(reinterpret_cast<std::int64_t>(view.data)),
          element_bytes_(static_cast<std::int64_t>(size_bytes(view.dtype))) {
        for (int d = 0; d < view.rank; ++d) {
            if (view.extents[d] <= 1 || view.stride_elements[d] == 0) continue;
            const std::int64_t stride = view.stride_elements[d] * element_bytes_;
            if (stride < 0) first_ += (view.extents[d] - 1) * stride;
            insert({view.extents[d], std::abs(stride)});
        }
    }

    [[nodiscard]] std::int64_t first() const noexcept { return first_; }
    [[nodiscard]] std::int64_t element_bytes() const noexcept { return element_bytes_; }
    /// Smallest stride first.
    [[nodiscard]] std::span<const Dim> dims() const noexcept { return {dims_.data(), rank_}; }

    /// Bytes from the first to past the last, counting only strides that `period` does not divide.
    [[nodiscard]] std::int64_t span(std::int64_t period) const noexcept {
        std::int64_t bytes = element_bytes_;
        for (std::size_t d = 0; d < rank_; ++d) {
            if (period == 0 || dims_[d].stride_bytes % period != 0) {
                bytes += (dims_[d].extent - 1) * dims_[d].stride_bytes;
            }
        }
        return bytes;
    }

  private:
    void insert(const Dim& dim) noexcept {
        std::size_t at = rank_++;
        for (; at > 0 && dims_[at - 1].stride_bytes > dim.stride_bytes; --at) {
            dims_[at] = dims_[at - 1];
        }
        dims_[at] = dim;
    }

    std::int64_t first_;
    std::int64_t element_bytes_;
    std::array<Dim, kMaxRank> dims_;
    std::size_t rank_ = 0;
};

}  // namespace

ByteRange byte_range(const TensorView& view) noexcept {
    if (view.size() == 0) return {};
    const auto bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
    const auto first = reinterpret_cast<std::int64_t>(view.data);
    ByteRange range{first, first + bytes};
    for (int d = 0; d < view.rank; ++d) {
        const std::int64_t reach = (view.extents[d] - 1) * view.stride_elements[d] * bytes;
        (reach < 0 ? range.begin : range.end) += reach;
    }
    return range;
}

bool may_overlap(const TensorView& a, const TensorView& b) {
    if (a.device != b.device || !byte_range(a).meets(byte_range(b))) return false;
    const Footprint x(a);
    const Footprint y(b);
    // Modulo a common stride P both views may stay inside disjoint windows of the period.
    for (const Footprint* f : {&x, &y}) {
        for (const Dim& dim : f->dims()) {
            const std::int64_t period = dim.stride_bytes;
            const std::int64_t offset = ((x.first() - y.first()) % period + period) % period;
            if (y.span(period) <= offset && offset + x.span(period) <= period) return false;
        }
    }
    return true;
}

bool overlaps_itself(const TensorView& view) {
    if (view.size() == 0) return false;
    for (int d = 0; d < view.rank; ++d) {
        if (view.extents[d] > 1 && view.stride_elements[d] == 0) return true;
    }
    const Footprint footprint(view);
    std::int64_t inner = footprint.element_bytes();
    for (const Dim& dim : footprint.dims()) {
        if (dim.stride_bytes < inner) return true;
        inner += (dim.extent - 1) * dim.stride_bytes;
    }
    return false;
}

bool same_memory(const TensorView& a, const TensorView& b) {
    return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank &&
           std::equal(a.strides().begin(), a.strides().end(), b.strides().begin());
}

}  // namespace sluice
