// Scores with decay: A_ij = sum_c l_i[c] r_j[c] prod_{m = j+1..i} e_m[c], for 16-row blocks in
// turn.
//
// Inside a block of 16 rows everything is built from the factors e = exp(g) <= 1 by products: they
// keep their relative accuracy however strong the decay, and nothing can grow. Across blocks and
// chunks the decay is the exponential of a float64 sum: a factor rounded once a token would drift,
// the same way every time, where gates are weak and constant (3e-8 a token, 1e-4 after 4,096).
//
//   l_i ^   = l_i prod(e) from the block's first row to i            (<= 1)
//   r_j ~   = r_j prod(e) from j + 1 to the block's first row        (<= 1; "anchored")
//   A_ij    = l_i^ . r_j~                                            for j before the block
//
// Inside the block the anchor is its last row: A_ij = (l_i^ / t) . r_j~ with t the block's total
// factor ("factored"), as long as no channel of t is under 2^-60; otherwise the row r_j is decayed
// step by step ("direct"). Either way a block reads no gate after its own last row.
#pragma once

#include <cstdint>

#include "cpu/aligned.hpp"
#include "cpu/rounding.hpp"
#include "sluice/spec.hpp"

namespace sluice::cpu {

/// Which pairs a score matrix holds, and which factors lie between them.
enum class Pairing : unsigned char {
    kInclusive,        // j <= i, factors j+1 ... i     (outputs)
    kInclusiveStrict,  // j <  i, factors j+1 ... i     (the delta rule's L)
    kExclusiveStrict,  // j <  i, factors j+1 ... i-1   (reads of the state before the step)
};

/// Decay factors of a chunk and their running products, per row: `width` numbers each (the padded
/// key channels for vector decays, one for scalar and constant decays, none without decay).
template <class Real>
class ChunkDecay {
  public:
    ChunkDecay(Decay decay, std::int64_t chunk, std::int64_t key_stride);

    /// From the log decays of `rows` rows (padding rows hold 0); rows is a multiple of 16.
    void load(const Real* log_decay, std::int64_t rows);

    /// out row = in row times the decay since the block began, inclusive of the row or not.
    void from_block_start(std::int64_t row, bool inclusive, const Real* in, Real* out) const;
    /// row times the decay of all blocks before `block`: what the entering state has gone through.
    void from_chunk_start(std::int64_t block, const Real* in, Real* out) const;
    /// row times the decay after it, to the end of its block.
    void to_block_end(std::int64_t row, const Real* in, Real* out) const;
    /// values times the decay of one row alone.
    void across_row(std::int64_t row, Real* values) const;
    /// row times the total decay of `block`.
    void across_block(std::int64_t block, Real* row) const;
    /// The decay of the whole chunk for key channel k.
    [[nodiscard]] double chunk_total(std::int64_t k) const;

    /// Whether the block's total decay is in the range of the factored form (NaN: no).
    [[nodiscard]] bool factorable(std::int64_t block) const { return factorable_[block] != 0; }
    /// 1 / total of the block, for factorable blocks of vector decays.
    [[nodiscard]] const Real* inverse_total(std::int64_t block) const {
        return inverse_.data() + block * width_;
    }
    [[nodiscard]] const Real* factor(std::int64_t row) const {
        return factor_.data() + row * width_;
    }
    [[nodiscard]] Decay decay() const { return decay_; }

  private:
    void multiply(const Real* in, const Real* by, Real* out) const;

    Decay decay_;
    std::int64_t key_stride_;
    std::int64_t width_;
    std::int64_t rows_ = 0;
    AlignedVector<Real> factor_;   // e, per row
    AlignedVector<Real> prefix_;   // product from the block's first row to the row
    AlignedVector<Real> suffix_;   // product from the next row to the block's last
    AlignedVector<Real> total_;    // of a block
    AlignedVector<Real> before_;   // of all blocks before, per block
    AlignedVector<Real> inverse_;  // 1 / the block's total
    AlignedVector<double> sum_;    // of log decays since the chunk began
    AlignedVector<double> chunk_total_;
    AlignedVector<char> factorable_;
};

/// Scores of block `block` against all rows up to it: out[i * out_stride + j].
/// `left` and `right` are the raw rows of the whole chunk, `left_hat` the block's 16 rows after
/// from_block_start(), `anchored` the rows r_j~: those before the block anchored at its first row,
/// its own at its last. `work` holds 16 rows. Rounded where a product reads them next: the strict
/// ones go into a float32 substitution.
template <class Real>
void decay_scores(const ChunkDecay<Real>& decay, Pairing pairing, Rounding rounding,
                  std::int64_t block, std::int64_t key_stride, const Real* left,
                  const Real* left_hat, const Real* right, const Real* anchored, Real* work,
                  Real* out, std::int64_t out_stride);

extern template class ChunkDecay<float>;
extern template class ChunkDecay<double>;

}  // namespace sluice::cpu
