#include "sluice/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "cuda/engine/driver.hpp"
#include "sluice/error.hpp"

namespace sluice {

namespace {

constexpr std::size_t kAlignment = 256;
constexpr cuda::Result kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

bool on_cpu(const Device& device) { return device.kind == DeviceKind::kCpu; }

cuda::DevicePointer device_pointer(const void* data) {
    return reinterpret_cast<cuda::DevicePointer>(data);
}

std::size_t bytes_of(const TensorView& view) {
    return static_cast<std::size_t>(view.size()) * size_bytes(view.dtype);
}

std::shared_ptr<void> allocate_on_cpu(std::size_t bytes) {
    void* memory = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
    if (memory == nullptr) throw std::bad_alloc();
    return {memory, std::free};
}

void free_on_gpu(int index, cuda::DevicePointer pointer) noexcept {
    try {
        const cuda::ContextScope scope(index);
        cuda::require_driver().memory_free(pointer);
    } catch (const Error&) {
        // A tensor that outlives the driver, at the end of the process: there is nothing to free.
    }
}

std::shared_ptr<void> allocate_on_gpu(std::size_t bytes, const Device& device) {
    const int index = cuda::gpu(device.index).index;
    const cuda::ContextScope scope(index);
    cuda::DevicePointer pointer = 0;
    const cuda::Result result =
        cuda::require_driver().memory_alloc(&pointer, std::max<std::size_t>(bytes, 1));
    if (result == kOutOfMemory) {
        throw Error(ErrorCode::kMemory, "device",
                    fmt::format("{} bytes on {}", bytes, to_string(device)), "what is free there");
    }
    cuda::check(result, "cuMemAlloc");
    auto* const address = reinterpret_cast<void*>(pointer);  // NOLINT: an address of the device
    return {address, [index, pointer](void*) { free_on_gpu(index, pointer); }};
}

void check_copy(const TensorView& to, const TensorView& from) {
    if (to.dtype != from.dtype) {
        throw Error(ErrorCode::kDType, "to", to_string(to.dtype),
                    fmt::format("{} as in the source", to_string(from.dtype)));
    }
    if (!std::ranges::equal(to.shape(), from.shape())) {
        throw Error(ErrorCode::kShape, "to", to_string(to.shape()),
                    fmt::format("{} as the source", to_string(from.shape())));
    }
    if (to.is_contiguous() && from.is_contiguous()) return;
    const bool alike = std::ranges::equal(to.strides(), from.strides());
    if (on_cpu(to.device) && on_cpu(from.device) && alike) return;
    throw Error(
        ErrorCode::kStride, "to",
        fmt::format("strides {} from {}", to_string(to.strides()), to_string(from.strides())),
        "contiguous memory, or the same strides on the CPU");
}

/// Element by element: what lies between the elements of `to` is somebody else's.
void copy_strided(const TensorView& to, const TensorView& from) {
    const std::size_t bytes = size_bytes(to.dtype);
    std::array<std::int64_t, kMaxRank> index{};
    for (std::int64_t left = to.size(); left > 0; --left) {
        std::int64_t offset = 0;
        for (int d = 0; d < to.rank; ++d) offset += index[d] * to.stride_elements[d];
        offset *= static_cast<std::int64_t>(bytes);
        std::memcpy(static_cast<std::byte*>(to.data) + offset,
                    static_cast<const std::byte*>(from.data) + offset, bytes);
        for (int d = to.rank - 1; d >= 0; --d) {
            if (++index[d] < to.extents[d]) break;
            index[d] = 0;
        }
    }
}

void copy_to_cpu(void* to, const TensorView& from) {
    const cuda::ContextScope scope(cuda::gpu(from.device.index).index);
    cuda::check(cuda::require_driver().copy_to_host(to, device_pointer(from.data), bytes_of(from)),
                "cuMemcpyDtoH");
}

void copy_to_gpu(const TensorView& to, const void* from) {
    const cuda::ContextScope scope(cuda::gpu(to.device.index).index);
    const cuda::Driver& driver = cuda::require_driver();
    cuda::check(driver.copy_to_device(device_pointer(to.data), from, bytes_of(to)), "cuMemcpyHtoD");
    // From pageable memory it may return while the last bytes are on their way.
    cuda::check(driver.stream_synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace

Tensor empty_on(DType dtype, std::span<const std::int64_t> shape, const Device& device) {
    TensorView view(nullptr, dtype, shape, device);
    const std::size_t bytes = bytes_of(view);
    std::shared_ptr<void> memory =
        on_cpu(device) ? allocate_on_cpu(bytes) : allocate_on_gpu(bytes, device);
    view.data = memory.get();
    return Tensor::adopt(std::move(memory), view);
}

Tensor copy_on(const TensorView& source, const Device& device) {
    if (on_cpu(source.device) && !source.is_contiguous()) {
        return copy_on(Tensor::copy_of(source, source.dtype), device);
    }
    Tensor tensor = empty_on(source.dtype, source.shape(), device);
    copy(tensor, source);
    return tensor;
}

void copy(const TensorView& to, const TensorView& from) {
    check_copy(to, from);
    const std::size_t bytes = bytes_of(to);
    if (bytes == 0) return;
    if (on_cpu(to.device) && on_cpu(from.device)) {
        to.is_contiguous() && from.is_contiguous() ? void(std::memmove(to.data, from.data, bytes))
                                                   : copy_strided(to, from);
    } else if (on_cpu(to.device)) {
        copy_to_cpu(to.data, from);
    } else if (on_cpu(from.device)) {
        copy_to_gpu(to, from.data);
    } else {
        // By way of the CPU: any two GPUs, whether or not they reach each other.
        std::vector<std::byte> staged(bytes);
        copy_to_cpu(staged.data(), from);
        copy_to_gpu(to, staged.data());
    }
}

void synchronize(const Device& device) {
    if (on_cpu(device)) return;
    const cuda::ContextScope scope(cuda::gpu(device.index).index);
    // The one wait that also covers streams that do not wait for the default one.
    cuda::check(cuda::require_driver().context_synchronize(), "cuCtxSynchronize");
}

int cuda_device_count() {
    if (!cuda::driver_problem().empty()) return 0;
    const auto all = cuda::gpus();
    return static_cast<int>(std::ranges::count_if(all, &cuda::GpuInfo::runs_sm90a));
}

}  // namespace sluice
