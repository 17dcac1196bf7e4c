// 64-byte aligned vectors: one cache line, one AVX-512 register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace sluice::cpu {

inline constexpr std::size_t kAlignmentBytes = 64;

template <class T>
struct AlignedAllocator {
    using value_type = T;
    AlignedAllocator() = default;
    template <class U>
    AlignedAllocator(const AlignedAllocator<U>&) noexcept {}  // NOLINT: allocators convert

    T* allocate(std::size_t n) {
        return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{kAlignmentBytes}));
    }
    void deallocate(T* p, std::size_t /*n*/) noexcept {
        ::operator delete (p, std::align_val_t{kAlignmentBytes});
    }
    friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

}  // namespace sluice::cpu
