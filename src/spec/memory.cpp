#include "spec/memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace sluice {

namespace {

struct Dim {
    std::int64_t extent;
    std::int64_t stride_bytes;  // positive
};

/// A view with positive strides and without dimensions of one element, and its first byte.
struct Footprint {
    std::int64_t first;
    std::int64_t element_bytes;
    std::vector<Dim> dims;

    explicit Footprint(const TensorView& view)
        : first(reinterpret_cast<std::int64_t>(view.data)),
          element_bytes(static_cast<std::int64_t>(size_bytes(view.dtype))) {
        for (int d = 0; d < view.rank; ++d) {
            if (view.extents[d] <= 1 || view.stride_elements[d] == 0) continue;
            const std::int64_t stride = view.stride_elements[d] * element_bytes;
            if (stride < 0) first += (view.extents[d] - 1) * stride;
            dims.push_back({view.extents[d], std::abs(stride)});
        }
    }

    /// Bytes from the first to past the last, counting only strides that `period` does not divide.
    [[nodiscard]] std::int64_t span(std::int64_t period) const {
        std::int64_t bytes = element_bytes;
        for (const Dim& dim : dims) {
            if (period == 0 || dim.stride_bytes % period != 0) {
                bytes += (dim.extent - 1) * dim.stride_bytes;
            }
        }
        return bytes;
    }
};

}  // namespace

bool may_overlap(const TensorView& a, const TensorView& b) {
    if (a.size() == 0 || b.size() == 0 || a.device != b.device) return false;
    const Footprint x(a);
    const Footprint y(b);
    if (x.first + x.span(0) <= y.first || y.first + y.span(0) <= x.first) return false;
    // Modulo a common stride P both views may stay inside disjoint windows of the period.
    for (const Footprint* f : {&x, &y}) {
        for (const Dim& dim : f->dims) {
            const std::int64_t period = dim.stride_bytes;
            const std::int64_t offset = ((x.first - y.first) % period + period) % period;
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
    Footprint footprint(view);
    std::sort(footprint.dims.begin(), footprint.dims.end(),
              [](const Dim& a, const Dim& b) { return a.stride_bytes < b.stride_bytes; });
    std::int64_t inner = footprint.element_bytes;
    for (const Dim& dim : footprint.dims) {
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
