#include "sluice/tensor.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/convert.hpp"
#include "sluice/error.hpp"

namespace sluice {

std::size_t size_bytes(DType dtype) noexcept {
    switch (dtype) {
        case DType::kFloat64:
        case DType::kInt64: return 8;
        case DType::kFloat32:
        case DType::kInt32: return 4;
        case DType::kBFloat16:
        case DType::kFloat16: return 2;
        case DType::kBool: return 1;
    }
    return 0;
}

const char* to_string(DType dtype) noexcept {
    switch (dtype) {
        case DType::kFloat64: return "float64";
        case DType::kFloat32: return "float32";
        case DType::kBFloat16: return "bfloat16";
        case DType::kFloat16: return "float16";
        case DType::kInt64: return "int64";
        case DType::kInt32: return "int32";
        case DType::kBool: return "bool";
    }
    return "?";
}

DType parse_dtype(std::string_view name) {
    constexpr std::pair<std::string_view, DType> kNames[] = {
        {"float64", DType::kFloat64}, {"f64", DType::kFloat64},     {"fp64", DType::kFloat64},
        {"double", DType::kFloat64},  {"float32", DType::kFloat32}, {"f32", DType::kFloat32},
        {"fp32", DType::kFloat32},    {"float", DType::kFloat32},   {"bfloat16", DType::kBFloat16},
        {"bf16", DType::kBFloat16},   {"float16", DType::kFloat16}, {"f16", DType::kFloat16},
        {"fp16", DType::kFloat16},    {"half", DType::kFloat16},    {"int64", DType::kInt64},
        {"i64", DType::kInt64},       {"int32", DType::kInt32},     {"i32", DType::kInt32},
        {"bool", DType::kBool},
    };
    for (const auto& [known, dtype] : kNames) {
        if (known == name) return dtype;
    }
    throw Error(ErrorCode::kDType, "dtype", "'" + std::string(name) + "'",
                "float64, float32, bfloat16, float16, int64, int32, bool");
}

bool is_floating(DType dtype) noexcept {
    return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16 ||
           dtype == DType::kFloat16;
}

std::string to_string(const Device& device) {
    return device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::string to_string(std::span<const std::int64_t> shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        text += (i ? ", " : "") + std::to_string(shape[i]);
    }
    return text + "]";
}

namespace {

/// Refuses shapes whose bytes, with empty extents counted as one, do not fit an address.
void check_size(const TensorView& view) {
    std::int64_t bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
    for (int i = 0; i < view.rank; ++i) {
        const std::int64_t extent = view.extents[i] > 0 ? view.extents[i] : 1;
        if (__builtin_mul_overflow(bytes, extent, &bytes)) {
            throw Error(ErrorCode::kShape, "shape", to_string(view.shape()),
                        "fewer than 2^63 bytes");
        }
    }
}

void set_shape(TensorView& view, std::span<const std::int64_t> shape) {
    if (shape.size() > kMaxRank) {
        throw Error(ErrorCode::kShape, "shape", to_string(shape),
                    "at most " + std::to_string(kMaxRank) + " dimensions");
    }
    view.rank = static_cast<int>(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] < 0) throw Error(ErrorCode::kShape, "shape", to_string(shape), "extents >= 0");
        view.extents[i] = shape[i];
    }
    check_size(view);
}

void set_contiguous(TensorView& view) {
    std::int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
        view.stride_elements[i] = stride;
        stride *= view.extents[i] > 0 ? view.extents[i] : 1;
    }
}

}  // namespace

TensorView::TensorView(void* memory, DType type, std::span<const std::int64_t> shape, Device where)
    : data(memory), dtype(type), device(where) {
    set_shape(*this, shape);
    set_contiguous(*this);
}

TensorView::TensorView(void* memory, DType type, std::initializer_list<std::int64_t> shape,
                       Device where)
    : TensorView(memory, type, std::span(shape.begin(), shape.size()), where) {}

TensorView::TensorView(void* memory, DType type, std::span<const std::int64_t> shape,
                       std::span<const std::int64_t> strides, Device where)
    : data(memory), dtype(type), device(where) {
    set_shape(*this, shape);
    if (strides.size() != shape.size()) {
        throw Error(ErrorCode::kStride, "strides", sluice::to_string(strides),
                    "one per dimension of " + sluice::to_string(shape));
    }
    for (std::size_t i = 0; i < strides.size(); ++i) stride_elements[i] = strides[i];
}

std::int64_t TensorView::size() const noexcept {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= extents[i];
    return n;
}

bool TensorView::is_contiguous() const noexcept {
    if (size() == 0) return true;
    std::int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
        if (extents[i] != 1 && stride_elements[i] != expected) return false;
        expected *= extents[i];
    }
    return true;
}

TensorView TensorView::transposed(int a, int b) const {
    if (a < 0 || b < 0 || a >= rank || b >= rank) {
        throw Error(ErrorCode::kShape, "dim", std::to_string(a) + ", " + std::to_string(b),
                    "0 to rank - 1 of " + sluice::to_string(shape()));
    }
    TensorView view = *this;
    std::swap(view.extents[a], view.extents[b]);
    std::swap(view.stride_elements[a], view.stride_elements[b]);
    return view;
}

TensorView TensorView::sliced(int dim, std::int64_t begin, std::int64_t end) const {
    if (dim < 0 || dim >= rank || begin < 0 || end < begin || end > extents[dim]) {
        throw Error(ErrorCode::kShape, "slice",
                    "[" + std::to_string(begin) + ", " + std::to_string(end) + ") of dim " +
                        std::to_string(dim),
                    "a range inside " + sluice::to_string(shape()));
    }
    TensorView view = *this;
    view.extents[dim] = end - begin;
    view.data = static_cast<char*>(data) +
                begin * stride_elements[dim] * static_cast<std::int64_t>(sluice::size_bytes(dtype));
    return view;
}

Tensor Tensor::empty(DType dtype, std::span<const std::int64_t> shape) {
    Tensor tensor;
    tensor.view_ = TensorView(nullptr, dtype, shape);
    constexpr std::size_t kAlignment = 64;
    const auto bytes = static_cast<std::size_t>(tensor.view_.size()) * sluice::size_bytes(dtype);
    // Never zero bytes, so that an empty tensor still has an address of its own.
    const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    tensor.storage_ = std::shared_ptr<void>(memory, std::free);
    tensor.view_.data = memory;
    return tensor;
}

Tensor Tensor::empty(DType dtype, std::initializer_list<std::int64_t> shape) {
    return empty(dtype, std::span(shape.begin(), shape.size()));
}

Tensor Tensor::zeros(DType dtype, std::span<const std::int64_t> shape) {
    Tensor tensor = empty(dtype, shape);
    std::memset(tensor.view_.data, 0, tensor.size_bytes());
    return tensor;
}

Tensor Tensor::zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
    return zeros(dtype, std::span(shape.begin(), shape.size()));
}

Tensor Tensor::copy_of(const TensorView& source, DType dtype) {
    if (source.device.kind != DeviceKind::kCpu) {
        throw Error(ErrorCode::kDevice, "source", sluice::to_string(source.device), "cpu");
    }
    Tensor tensor = empty(dtype, source.shape());
    const std::int64_t count = source.size();
    std::array<std::int64_t, kMaxRank> index{};
    for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t offset = 0;
        for (int d = 0; d < source.rank; ++d) offset += index[d] * source.stride_elements[d];
        if (is_floating(source.dtype) && is_floating(dtype)) {
            store_element(tensor.view_.data, dtype, i,
                          load_element(source.data, source.dtype, offset));
        } else if (source.dtype == dtype) {
            const std::size_t bytes = sluice::size_bytes(dtype);
            std::memcpy(
                static_cast<char*>(tensor.view_.data) + i * static_cast<std::int64_t>(bytes),
                static_cast<const char*>(source.data) + offset * static_cast<std::int64_t>(bytes),
                bytes);
        } else {
            throw Error(ErrorCode::kDType, "dtype", to_string(dtype),
                        std::string("a floating type, or ") + to_string(source.dtype) +
                            " as in the source");
        }
        for (int d = source.rank - 1; d >= 0; --d) {
            if (++index[d] < source.extents[d]) break;
            index[d] = 0;
        }
    }
    return tensor;
}

Tensor Tensor::adopt(std::shared_ptr<void> memory, const TensorView& view) {
    Tensor tensor;
    tensor.storage_ = std::move(memory);
    tensor.view_ = view;
    return tensor;
}

std::size_t Tensor::size_bytes() const noexcept {
    return static_cast<std::size_t>(view_.size()) * sluice::size_bytes(view_.dtype);
}

void Tensor::check_elements(std::size_t bytes) const {
    if (view_.device.kind != DeviceKind::kCpu) {
        throw Error(ErrorCode::kDevice, "elements", sluice::to_string(view_.device), "cpu");
    }
    if (!view_.is_contiguous()) {
        throw Error(ErrorCode::kStride, "elements", sluice::to_string(view_.strides()),
                    "contiguous memory");
    }
    if (bytes != sluice::size_bytes(view_.dtype)) {
        throw Error(ErrorCode::kDType, "elements", std::to_string(bytes) + "-byte type",
                    std::string("the size of ") + to_string(view_.dtype));
    }
}

}  // namespace sluice
