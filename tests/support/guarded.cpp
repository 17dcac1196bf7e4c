#include "support/guarded.hpp"

#include <algorithm>
#include <cstring>

#include "core/convert.hpp"

namespace sluice::test {

const char* to_string(Strides strides) noexcept {
    constexpr const char* kNames[kNumStrides] = {"contiguous",  "transposed", "sliced",  "padded",
                                                 "interleaved", "reversed",   "expanded"};
    return kNames[static_cast<int>(strides)];
}

namespace {

/// Elements on either side of the data. A vector of bytes is aligned to 16 of them.
std::int64_t margin(Alignment alignment) { return alignment == Alignment::kElement ? 37 : 64; }

/// Strides of `shape` inside a buffer, and the buffer's element count without margins.
struct Placement {
    std::vector<std::int64_t> strides;
    std::int64_t first = 0;  // offset of element 0
    std::int64_t elements = 1;
};

Placement place(const std::vector<std::int64_t>& shape, Strides kind) {
    const int rank = static_cast<int>(shape.size());
    std::vector<std::int64_t> stored = shape;  // extents in memory
    std::vector<int> order(shape.size());      // dimension at each place, outermost first
    for (int d = 0; d < rank; ++d) order[static_cast<std::size_t>(d)] = d;
    if (kind == Strides::kTransposed && rank >= 2) {
        const auto a = static_cast<std::size_t>(rank >= 3 ? 1 : 0);
        std::swap(order[a], order[a + 1]);
    }
    if (kind == Strides::kSliced && rank >= 1) stored.back() += 5;
    if (kind == Strides::kExpanded && rank >= 3) stored[2] = std::min<std::int64_t>(shape[2], 1);
    std::int64_t unit = kind == Strides::kInterleaved ? 2 : 1;
    Placement placement;
    placement.strides.resize(shape.size());
    for (std::size_t i = shape.size(); i-- > 0;) {
        const auto d = static_cast<std::size_t>(order[i]);
        placement.strides[d] = unit;
        unit *= stored[d];
        if (kind == Strides::kPadded && i == 2) unit += 7;
    }
    placement.elements = unit;
    if (kind == Strides::kSliced) placement.first = 3;
    if (kind == Strides::kExpanded && rank >= 3) placement.strides[2] = 0;
    if (kind == Strides::kReversed && rank >= 2 && shape[1] > 0) {
        placement.first = (shape[1] - 1) * placement.strides[1];
        placement.strides[1] = -placement.strides[1];
    }
    return placement;
}

}  // namespace

Guarded::Guarded(const std::vector<std::int64_t>& shape, DType dtype, Strides strides,
                 Alignment alignment) {
    const Placement placement = place(shape, strides);
    const auto bytes = static_cast<std::int64_t>(size_bytes(dtype));
    const std::int64_t total = placement.elements + 2 * margin(alignment);
    memory_ = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(total * bytes));
    view_ = TensorView(memory_->data() + (margin(alignment) + placement.first) * bytes, dtype,
                       shape, placement.strides);
}

void Guarded::fill(Poison poison) {
    // All ones is a NaN in every floating type, and -1 in the integers.
    std::memset(memory_->data(), 0xff, memory_->size());
    // float16 has no huge number whose products stay finite; it keeps the NaNs.
    if (poison == Poison::kHuge && view_.dtype != DType::kFloat16) {
        const std::size_t count = memory_->size() / size_bytes(view_.dtype);
        for (std::size_t i = 0; i < count; ++i) {
            store_element(memory_->data(), view_.dtype, static_cast<std::int64_t>(i), 1e30);
        }
    }
}

void Guarded::snapshot() { before_ = *memory_; }

Guarded Guarded::input(const Values& values, DType dtype, Strides strides, Poison poison,
                       Alignment alignment) {
    Guarded tensor(values.shape, dtype, strides, alignment);
    tensor.fill(poison);
    std::size_t i = 0;
    for_each_offset(tensor.view_, [&](std::int64_t offset) {
        store_element(tensor.view_.data, dtype, offset, values.data[i++]);
    });
    tensor.snapshot();
    return tensor;
}

Guarded Guarded::output(const std::vector<std::int64_t>& shape, DType dtype, Strides strides,
                        Alignment alignment) {
    Guarded tensor(shape, dtype, strides == Strides::kExpanded ? Strides::kPadded : strides,
                   alignment);
    tensor.fill(Poison::kNaN);
    tensor.snapshot();
    return tensor;
}

Guarded Guarded::indices(const std::vector<std::int64_t>& shape,
                         const std::vector<std::int64_t>& values, DType dtype) {
    Guarded tensor(shape, dtype, Strides::kInterleaved, Alignment::kElement);
    std::memset(tensor.memory_->data(), 0x7f, tensor.memory_->size());
    std::size_t i = 0;
    for_each_offset(tensor.view_, [&](std::int64_t offset) {
        const std::int64_t value = values[i++];
        switch (dtype) {
            case DType::kInt64:
                static_cast<std::int64_t*>(tensor.view_.data)[offset] = value;
                break;
            case DType::kInt32:
                static_cast<std::int32_t*>(tensor.view_.data)[offset] =
                    static_cast<std::int32_t>(value);
                break;
            default: static_cast<unsigned char*>(tensor.view_.data)[offset] = value != 0 ? 1 : 0;
        }
    });
    tensor.snapshot();
    return tensor;
}

bool Guarded::untouched_outside(const std::vector<TensorView>& writable) const {
    std::vector<bool> free(memory_->size());
    const auto bytes = static_cast<std::int64_t>(size_bytes(view_.dtype));
    for (const TensorView& part : writable) {
        const std::int64_t base = static_cast<const std::byte*>(part.data) - memory_->data();
        for_each_offset(part, [&](std::int64_t offset) {
            for (std::int64_t b = 0; b < bytes; ++b) {
                free[static_cast<std::size_t>(base + offset * bytes + b)] = true;
            }
        });
    }
    for (std::size_t i = 0; i < memory_->size(); ++i) {
        if (!free[i] && (*memory_)[i] != before_[i]) return false;
    }
    return true;
}

}  // namespace sluice::test
