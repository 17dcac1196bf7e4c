// Tensors: a non-owning strided view (what every call takes) and an owning buffer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

enum class DType : std::uint8_t {
    kFloat64,
    kFloat32,
    kBFloat16,
    kFloat16,
    kInt64,
    kInt32,
    kBool,  // one byte, 0 or 1
};

[[nodiscard]] std::size_t size_bytes(DType dtype) noexcept;
/// "float32", "bfloat16", "int64", ...
[[nodiscard]] const char* to_string(DType dtype) noexcept;
/// Accepts the names above and the usual short forms (f32, fp32, bf16, f16, half, ...).
[[nodiscard]] DType parse_dtype(std::string_view name);
[[nodiscard]] bool is_floating(DType dtype) noexcept;

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

struct Device {
    DeviceKind kind = DeviceKind::kCpu;
    int index = 0;
    friend bool operator==(const Device&, const Device&) = default;
};

[[nodiscard]] std::string to_string(const Device& device);

inline constexpr int kMaxRank = 6;

/// Memory that somebody else owns: base pointer, element type, extents and strides in elements.
/// Strides may be zero (expanded) or negative in inputs. Copies are cheap; nothing is freed.
/// `data` is not const: which views a call writes is said by the argument they are given as.
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::kFloat32;
    Device device{};
    int rank = 0;
    std::array<std::int64_t, kMaxRank> extents{};
    std::array<std::int64_t, kMaxRank> stride_elements{};

    TensorView() = default;
    /// A row-major contiguous view. Throws Error(kShape) on a rank over kMaxRank or an extent < 0.
    TensorView(void* data, DType dtype, std::span<const std::int64_t> shape, Device device = {});
    TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
               Device device = {});
    /// A strided view.
    TensorView(void* data, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::int64_t> strides, Device device = {});

    [[nodiscard]] std::span<const std::int64_t> shape() const noexcept {
        return {extents.data(), static_cast<std::size_t>(rank)};
    }
    [[nodiscard]] std::span<const std::int64_t> strides() const noexcept {
        return {stride_elements.data(), static_cast<std::size_t>(rank)};
    }
    [[nodiscard]] std::int64_t size() const noexcept;  // number of elements
    [[nodiscard]] bool is_contiguous() const noexcept;

    /// View with dimensions `a` and `b` exchanged.
    [[nodiscard]] TensorView transposed(int a, int b) const;
    /// View of [begin, end) along `dim`.
    [[nodiscard]] TensorView sliced(int dim, std::int64_t begin, std::int64_t end) const;
};

/// "[2, 130, 2, 64]"
[[nodiscard]] std::string to_string(std::span<const std::int64_t> shape);

/// A tensor that owns its memory: contiguous, 64-byte aligned CPU memory, unless it was adopted.
/// Copies share the memory. Tensors in a device's memory come from sluice/memory.hpp.
class Tensor {
  public:
    Tensor() = default;
    [[nodiscard]] static Tensor empty(DType dtype, std::span<const std::int64_t> shape);
    [[nodiscard]] static Tensor empty(DType dtype, std::initializer_list<std::int64_t> shape);
    [[nodiscard]] static Tensor zeros(DType dtype, std::span<const std::int64_t> shape);
    [[nodiscard]] static Tensor zeros(DType dtype, std::initializer_list<std::int64_t> shape);
    /// A contiguous copy of any CPU view, converted to `dtype` (round to nearest even).
    [[nodiscard]] static Tensor copy_of(const TensorView& source, DType dtype);
    /// `view`, in memory of any device that lives as long as `memory` does.
    [[nodiscard]] static Tensor adopt(std::shared_ptr<void> memory, const TensorView& view);

    [[nodiscard]] const TensorView& view() const noexcept { return view_; }
    /// A Tensor is a view where one is expected. The view does not keep the memory alive.
    operator const TensorView&() const noexcept { return view_; }  // NOLINT: implicit on purpose
    [[nodiscard]] bool defined() const noexcept { return storage_ != nullptr; }
    [[nodiscard]] DType dtype() const noexcept { return view_.dtype; }
    [[nodiscard]] std::span<const std::int64_t> shape() const noexcept { return view_.shape(); }
    [[nodiscard]] std::int64_t size() const noexcept { return view_.size(); }
    [[nodiscard]] std::size_t size_bytes() const noexcept;

    /// The elements, of contiguous CPU memory; T must be as large as the dtype's element (double,
    /// float, std::int64_t, std::int32_t, bool, or std::uint16_t for the bits of bfloat16 and
    /// float16).
    template <class T>
    [[nodiscard]] std::span<T> elements() const {
        check_elements(sizeof(T));
        return {static_cast<T*>(view_.data), static_cast<std::size_t>(view_.size())};
    }

  private:
    void check_elements(std::size_t bytes) const;
    std::shared_ptr<void> storage_;
    TensorView view_;
};

}  // namespace sluice
