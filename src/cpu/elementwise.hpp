// Elementwise functions whose bits do not depend on where an element lies.
//
// A vectorised exp and the scalar one of its tail may differ in the last bit. Here every element
// goes through the same vector code: whole blocks, and the tail in a padded block.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

namespace sluice::cpu {

/// out = f(in) for n elements; f maps Eigen arrays of kWidth elements. in may be out.
template <class Real, class F>
void map_elements(std::int64_t n, const Real* in, Real* out, F&& f) {
    constexpr int kWidth = 16;
    using Block = Eigen::Array<Real, kWidth, 1>;
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
        const Block x = Eigen::Map<const Block>(in + i);
        Eigen::Map<Block>(out + i) = f(x);
    }
    if (i < n) {
        Block x = Block::Ones();
        std::copy_n(in + i, n - i, x.data());
        const Block y = f(x);
        std::copy_n(y.data(), n - i, out + i);
    }
}

/// Decay factors exp(g) of log decays: exactly 0 where float32 has no normal number for them
/// (g = -inf, -1000, ...), so that "forget everything" forgets everything. NaN stays NaN.
template <class Real>
void decay_factors(std::int64_t n, const Real* log_decay, Real* out) {
    const Real smallest = sizeof(Real) == 4 ? Real(-87) : Real(-708);
    map_elements(n, log_decay, out, [smallest](const auto& g) {
        // exp on its own: Eigen does not vectorise across a select.
        const auto e = g.exp().eval();
        return (g < smallest).select(Real(0), e).eval();
    });
}

}  // namespace sluice::cpu
