#include "spec/indices.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/convert.hpp"
#include "spec/bind_inputs.hpp"

namespace sluice {

Indices::Indices(std::string name, const TensorView& view, Kind kind)
    : name_(std::move(name)), view_(view) {
    const bool ok = kind == Kind::kBool
                        ? view.dtype == DType::kBool
                        : view.dtype == DType::kInt32 || view.dtype == DType::kInt64;
    if (!ok) {
        throw Error(ErrorCode::kDType, name_, to_string(view.dtype),
                    kind == Kind::kBool ? "bool" : "int32 or int64");
    }
    if (view.device.kind != DeviceKind::kCpu) {
        throw Error(ErrorCode::kDevice, name_, to_string(view.device), "cpu");
    }
    check_data(name_, view);
}

void Indices::require_shape(std::initializer_list<std::int64_t> shape, const char* meaning) const {
    if (!std::equal(shape.begin(), shape.end(), view_.shape().begin(), view_.shape().end())) {
        throw Error(
            ErrorCode::kShape, name_, describe(view_),
            fmt::format("{} = {}", meaning, to_string(std::span(shape.begin(), shape.size()))));
    }
}

std::int64_t Indices::operator()(std::int64_t i, std::int64_t j) const {
    return load_index(view_, i * view_.stride_elements[0] + j * view_.stride_elements[1]);
}

std::int64_t Indices::slot(std::int64_t slots, std::int64_t i, std::int64_t j) const {
    const std::int64_t value = (*this)(i, j);
    if (value < -1 || value >= slots) {
        throw Error(ErrorCode::kValue, name_,
                    rank() > 1 ? fmt::format("{} at [{}, {}]", value, i, j)
                               : fmt::format("{} at [{}]", value, i),
                    fmt::format("-1 (none) or a slot from 0 to {}", slots - 1));
    }
    return value;
}

std::vector<Sequence> split_sequences(const std::optional<TensorView>& cu_seqlens,
                                      std::int64_t batch, std::int64_t tokens) {
    std::vector<Sequence> sequences;
    if (!cu_seqlens) {
        for (std::int64_t b = 0; b < batch; ++b) {
            sequences.push_back({.batch = b, .begin = 0, .end = tokens});
        }
        return sequences;
    }
    const Indices offsets("cu_seqlens", *cu_seqlens);
    if (offsets.rank() != 1 || offsets.extent(0) < 1) {
        throw Error(ErrorCode::kShape, "cu_seqlens", describe(*cu_seqlens), "[N + 1]");
    }
    if (batch != 1) {
        throw Error(ErrorCode::kShape, "cu_seqlens", fmt::format("with B = {}", batch),
                    "packed sequences in one batch row, B = 1");
    }
    const std::int64_t count = offsets.extent(0) - 1;
    if (offsets(0) != 0 || offsets(count) != tokens) {
        throw Error(ErrorCode::kValue, "cu_seqlens",
                    fmt::format("offsets from {} to {}", offsets(0), offsets(count)),
                    fmt::format("offsets from 0 to T = {}", tokens));
    }
    for (std::int64_t n = 0; n < count; ++n) {
        const Sequence sequence{.batch = 0, .begin = offsets(n), .end = offsets(n + 1)};
        // With the last offset fixed, one above T must be followed by a smaller one.
        if (sequence.end < sequence.begin) {
            throw Error(ErrorCode::kValue, "cu_seqlens",
                        fmt::format("{} then {} at [{}]", sequence.begin, sequence.end, n),
                        "non-decreasing offsets");
        }
        sequences.push_back(sequence);
    }
    return sequences;
}

}  // namespace sluice
