#include "tensors.hpp"

#include <algorithm>
#include <span>

#include "sluice/error.hpp"

namespace sluice::python {

namespace {

struct TypePair {
    DLDataTypeCode code;
    std::uint8_t bits;
    DType ours;
};

constexpr TypePair kTypes[] = {
    {kDLFloat, 64, DType::kFloat64},   {kDLFloat, 32, DType::kFloat32},
    {kDLBfloat, 16, DType::kBFloat16}, {kDLFloat, 16, DType::kFloat16},
    {kDLInt, 64, DType::kInt64},       {kDLInt, 32, DType::kInt32},
    {kDLBool, 8, DType::kBool},
};

DType to_dtype(const std::string& name, const DLDataType& dtype) {
    for (const TypePair& pair : kTypes) {
        if (pair.code == dtype.code && pair.bits == dtype.bits && dtype.lanes == 1) {
            return pair.ours;
        }
    }
    throw Error(ErrorCode::kDType, name,
                "DLPack type code " + std::to_string(dtype.code) + ", " +
                    std::to_string(dtype.bits) + " bits, " + std::to_string(dtype.lanes) + " lanes",
                "float64, float32, bfloat16, float16, int64, int32 or bool");
}

Device to_device(const std::string& name, const DLDevice& device) {
    switch (device.device_type) {
        case kDLCPU:
        case kDLCUDAHost: return {};
        case kDLCUDA:
        case kDLCUDAManaged: return {DeviceKind::kCuda, device.device_id};
        default:
            throw Error(ErrorCode::kDevice, name,
                        "DLPack device type " + std::to_string(device.device_type),
                        "memory of the CPU or of a CUDA device");
    }
}

}  // namespace

TensorView to_view(const std::string& name, const DLTensor& tensor) {
    if (tensor.ndim > kMaxRank) {
        throw Error(ErrorCode::kShape, name, std::to_string(tensor.ndim) + " dimensions",
                    "at most " + std::to_string(kMaxRank));
    }
    const auto rank = static_cast<std::size_t>(tensor.ndim);
    void* const data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
    const std::span<const std::int64_t> shape(tensor.shape, rank);
    const DType dtype = to_dtype(name, tensor.dtype);
    const Device device = to_device(name, tensor.device);
    if (tensor.strides == nullptr) return {data, dtype, shape, device};
    return {data, dtype, shape, std::span<const std::int64_t>(tensor.strides, rank), device};
}

TensorView first_of_last(const std::string& name, const TensorView& view) {
    if (view.rank == 0 || view.shape().back() == 0) {
        throw Error(ErrorCode::kShape, name, to_string(view.shape()),
                    "one element along the last axis, at least");
    }
    TensorView first = view;
    --first.rank;
    first.extents[static_cast<std::size_t>(first.rank)] = 0;
    first.stride_elements[static_cast<std::size_t>(first.rank)] = 0;
    return first;
}

TensorView with_token(const std::string& name, const TensorView& view) {
    if (view.rank == 0 || view.rank == kMaxRank) {
        throw Error(ErrorCode::kShape, name, to_string(view.shape()),
                    "1 to " + std::to_string(kMaxRank - 1) + " dimensions");
    }
    TensorView wider = view;
    ++wider.rank;
    const auto shift = [&](auto& of_axes, std::int64_t inserted) {
        std::copy_backward(of_axes.begin() + 1, of_axes.begin() + view.rank,
                           of_axes.begin() + wider.rank);
        of_axes[1] = inserted;
    };
    shift(wider.extents, 1);
    shift(wider.stride_elements, view.extents[0] == 0 ? 1 : view.stride_elements[0]);
    return wider;
}

DLDataType to_dlpack(DType dtype) noexcept {
    for (const TypePair& pair : kTypes) {
        if (pair.ours == dtype) return {static_cast<std::uint8_t>(pair.code), pair.bits, 1};
    }
    return {kDLFloat, 32, 1};
}

DLDevice to_dlpack(const Device& device) noexcept {
    return device.kind == DeviceKind::kCuda ? DLDevice{kDLCUDA, device.index} : DLDevice{kDLCPU, 0};
}

}  // namespace sluice::python
