// Explicit vectors (GCC and Clang vector extensions): the width of the machine compiled for.
#pragma once

#include <cstdint>
#include <cstring>

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
    /// x, rounded: the compiler may not fuse the product behind it into a sum. Where a sum has two
    /// products, which one it fuses would differ from place to place, and the bits with it.
    static Vector rounded(Vector x) {
#if defined(__x86_64__)
        asm("" : "+v"(x));
#elif defined(__aarch64__)
        asm("" : "+w"(x));
#endif
        return x;
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

}  // namespace sluice::cpu
