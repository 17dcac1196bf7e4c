// Explicit vectors (GCC and Clang vector extensions): the width of the machine compiled for.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sluice::cpu {

#if defined(__AVX512F__)
inline constexpr std::int64_t kVectorBytes = 64;
inline constexpr int kVectorRegisters = 32;
#elif defined(__AVX__)
inline constexpr std::int64_t kVectorBytes = 32;
inline constexpr int kVectorRegisters = 16;
#else
inline constexpr std::int64_t kVectorBytes = 16;
inline constexpr int kVectorRegisters = sizeof(void*) == 8 ? 16 : 8;
#endif

template <class Real>
struct Simd {
    static constexpr std::int64_t kLanes = kVectorBytes / static_cast<std::int64_t>(sizeof(Real));
    using Vector __attribute__((vector_size(kVectorBytes))) = Real;
    using Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(Real)), may_alias)) =
        Real;

    static Vector load(const Real* p) { return *reinterpret_cast<const Unaligned*>(p); }
    static void store(Real* p, Vector v) { *reinterpret_cast<Unaligned*>(p) = v; }
    static Vector zero() { return Vector{}; }
    static Vector broadcast(Real x) { return Vector{} + x; }
    /// a * b + c, rounded once where the machine can. Written out, because which product of an
    /// expression a compiler fuses differs from place to place, and the bits with it.
    static Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
        if constexpr (sizeof(Real) == 4) {
            return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
        } else {
            return (Vector)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
        }
#elif defined(__FMA__)
        if constexpr (sizeof(Real) == 4) {
            return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
        } else {
            return (Vector)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
        }
#elif defined(__aarch64__)
        if constexpr (sizeof(Real) == 4) {
            return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
        } else {
            return (Vector)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
        }
#else
        return a * b + c;
#endif
    }
    static Real sum(Vector v) {
        // Halves are added pairwise: a fixed order, and short dependency chains.
        Real lanes[kLanes];
        std::memcpy(lanes, &v, sizeof v);
        for (std::int64_t n = kLanes / 2; n > 0; n /= 2) {
            for (std::int64_t i = 0; i < n; ++i) lanes[i] += lanes[i + n];
        }
        return lanes[0];
    }
};

/// a . b, products and sums in float64. n is a multiple of the float64 vector's width.
template <class Real>
double wide_dot(std::int64_t n, const Real* a, const Real* b) {
    using D = Simd<double>;
    using Narrow
        __attribute__((vector_size(D::kLanes * sizeof(Real)), aligned(alignof(Real)), may_alias)) =
            Real;
    typename D::Vector sum = D::zero();
    for (std::int64_t i = 0; i < n; i += D::kLanes) {
        const auto x =
            __builtin_convertvector(*reinterpret_cast<const Narrow*>(a + i), typename D::Vector);
        const auto y =
            __builtin_convertvector(*reinterpret_cast<const Narrow*>(b + i), typename D::Vector);
        sum = D::fma(x, y, sum);
    }
    return D::sum(sum);
}

}  // namespace sluice::cpu
