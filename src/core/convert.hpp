// Element conversion: any floating dtype in memory, float or double in arithmetic.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <cstring>

#include "sluice/tensor.hpp"

namespace sluice {

using Half = Eigen::half;
using BFloat16 = Eigen::bfloat16;

/// Calls `f` with a value of the C++ type of a floating `dtype`.
template <class F>
decltype(auto) visit_floating(DType dtype, F&& f) {
    switch (dtype) {
        case DType::kFloat64: return f(double{});
        case DType::kBFloat16: return f(BFloat16{});
        case DType::kFloat16: return f(Half{});
        default: return f(float{});
    }
}

/// One element of a floating tensor.
inline double load_element(const void* data, DType dtype, std::int64_t offset) {
    return visit_floating(dtype, [&](auto tag) {
        return static_cast<double>(static_cast<const decltype(tag)*>(data)[offset]);
    });
}

/// Rounds once, to nearest even, from double: double -> float -> bfloat16 would round twice.
template <class To>
To round_to(double value) {
    if constexpr (std::is_same_v<To, BFloat16> || std::is_same_v<To, Half>) {
        // Round to odd in float first: the second rounding then cannot land on a false tie.
        auto f = static_cast<float>(value);
        if (static_cast<double>(f) != value && value == value) {
            std::uint32_t bits = 0;
            std::memcpy(&bits, &f, sizeof bits);
            const bool away = (value > 0) == (static_cast<double>(f) > value);
            if ((bits & 1U) == 0 && (bits & 0x7f800000U) != 0x7f800000U) {
                // f is even and inexact: move to the odd neighbour on value's side.
                bits = away ? (f == 0 ? bits : bits - 1) : bits + 1;
                std::memcpy(&f, &bits, sizeof f);
            }
        }
        return To(f);
    } else {
        return static_cast<To>(value);
    }
}

inline void store_element(void* data, DType dtype, std::int64_t offset, double value) {
    visit_floating(dtype, [&](auto tag) {
        using T = decltype(tag);
        static_cast<T*>(data)[offset] = round_to<T>(value);
    });
}

/// An element of an int32 or int64 tensor, or of a bool tensor as 0 or 1.
inline std::int64_t load_index(const TensorView& view, std::int64_t offset) {
    switch (view.dtype) {
        case DType::kInt64: return static_cast<const std::int64_t*>(view.data)[offset];
        case DType::kInt32: return static_cast<const std::int32_t*>(view.data)[offset];
        default: return static_cast<const unsigned char*>(view.data)[offset] != 0 ? 1 : 0;
    }
}

/// Contiguous-to-contiguous or strided rows, vectorised: `count` elements `stride` apart.
template <class Real>
void load_row(const void* data, DType dtype, std::int64_t offset, std::int64_t stride,
              std::int64_t count, Real* out) {
    visit_floating(dtype, [&](auto tag) {
        using T = decltype(tag);
        const T* p = static_cast<const T*>(data) + offset;
        if (stride == 1) {
            for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<Real>(p[i]);
        } else {
            for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<Real>(p[i * stride]);
        }
    });
}

template <class Real>
void store_row(void* data, DType dtype, std::int64_t offset, std::int64_t stride,
               std::int64_t count, const Real* in) {
    visit_floating(dtype, [&](auto tag) {
        using T = decltype(tag);
        T* p = static_cast<T*>(data) + offset;
        for (std::int64_t i = 0; i < count; ++i) {
            if constexpr (std::is_same_v<Real, double>) {
                p[i * stride] = round_to<T>(in[i]);
            } else {
                p[i * stride] = static_cast<T>(in[i]);
            }
        }
    });
}

}  // namespace sluice
