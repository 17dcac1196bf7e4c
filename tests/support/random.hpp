// A random stream that is the same on every platform (the distributions of <random> are not).
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace sluice::test {

class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    /// splitmix64
    std::uint64_t next() noexcept {
        state_ += 0x9e3779b97f4a7c15ULL;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }
    /// In (0, 1), never an end.
    double uniform() noexcept { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
    double normal() noexcept {
        const double radius = std::sqrt(-2.0 * std::log(uniform()));
        return radius * std::cos(2.0 * std::numbers::pi * uniform());
    }
    /// In [0, n).
    std::int64_t below(std::int64_t n) noexcept {
        return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
    }
    bool chance(double probability) noexcept { return uniform() < probability; }
    template <class T>
    const T& pick(const std::vector<T>& from) noexcept {
        return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
    }
    template <class T>
    void shuffle(std::vector<T>& list) noexcept {
        for (std::size_t i = list.size(); i > 1; --i) {
            std::swap(list[i - 1],
                      list[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
        }
    }

  private:
    std::uint64_t state_;
};

/// A seed for one thing among many: "case 12, input g, head 3".
[[nodiscard]] constexpr std::uint64_t mix_seed(std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t z = a ^ (b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2));
    z = (z ^ (z >> 33)) * 0xff51afd7ed558ccdULL;
    return z ^ (z >> 29);
}

}  // namespace sluice::test
