#include "cpu/decay_scores.hpp"

#include <algorithm>
#include <cmath>

#include "cpu/chunked.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/products.hpp"

namespace sluice::cpu {

namespace {

/// A log decay that sums: -inf would not come back from a difference. exp(-1e4) is 0. NaN stays
/// NaN.
template <class Real>
Real clamped(Real log_decay) {
    constexpr Real kForget = -1e4;
    return log_decay < kForget ? kForget : log_decay;
}

}  // namespace

template <class Real>
ChunkDecay<Real>::ChunkDecay(Decay decay, std::int64_t chunk, std::int64_t key_stride)
    : decay_(decay),
      key_stride_(key_stride),
      width_(decay == Decay::kNone     ? 0
             : decay == Decay::kVector ? key_stride
                                       : 1) {
    const auto rows = static_cast<std::size_t>(chunk * width_);
    const auto blocks = static_cast<std::size_t>(chunk / kBlock * width_);
    factor_.resize(rows);
    prefix_.resize(rows);
    suffix_.resize(rows);
    total_.resize(blocks);
    before_.resize(blocks);
    inverse_.resize(blocks);
    sum_.resize(static_cast<std::size_t>(width_));
    chunk_total_.resize(static_cast<std::size_t>(width_));
    factorable_.resize(static_cast<std::size_t>(chunk / kBlock));
}

template <class Real>
void ChunkDecay<Real>::load(const Real* log_decay, std::int64_t rows) {
    // The factored form stays accurate and finite while 1 / total does.
    const Real limit = std::ldexp(Real(1), sizeof(Real) == 4 ? -60 : -600);
    rows_ = rows;
    if (width_ == 0) return;
    decay_factors(rows * width_, log_decay, factor_.data());
    double* chunk_sum = sum_.data();
    std::fill_n(chunk_sum, width_, 0.0);
    for (std::int64_t block = 0; block < rows / kBlock; ++block) {
        const std::int64_t first = block * kBlock;
        const std::int64_t last = first + kBlock - 1;
        std::copy_n(factor(first), width_, prefix_.data() + first * width_);
        for (std::int64_t row = first + 1; row <= last; ++row) {
            multiply(prefix_.data() + (row - 1) * width_, factor(row),
                     prefix_.data() + row * width_);
        }
        std::fill_n(suffix_.data() + last * width_, width_, Real(1));
        for (std::int64_t row = last; row > first; --row) {
            multiply(suffix_.data() + row * width_, factor(row),
                     suffix_.data() + (row - 1) * width_);
        }
        // Sixteen rows may be summed as they are: the exponential of a sum x off by |x| 1e-7 is off
        // by at most 4e-8. Over the chunk, in float64.
        Real* total = total_.data() + block * width_;
        Real* before = before_.data() + block * width_;
        std::fill_n(total, width_, Real(0));
        for (std::int64_t row = first; row <= last; ++row) {
            const Real* g = log_decay + row * width_;
            for (std::int64_t c = 0; c < width_; ++c) total[c] += clamped(g[c]);
        }
        for (std::int64_t c = 0; c < width_; ++c) {
            before[c] = static_cast<Real>(chunk_sum[c]);
            chunk_sum[c] += static_cast<double>(total[c]);
        }
        bool in_range = true;
        decay_factors(width_, total, total);
        decay_factors(width_, before, before);
        for (std::int64_t c = 0; c < width_; ++c) {
            in_range = in_range && total[c] >= limit;  // false for NaN
            inverse_[block * width_ + c] = Real(1) / total[c];
        }
        factorable_[block] = in_range ? 1 : 0;
    }
    decay_factors(width_, chunk_sum, chunk_total_.data());
}

template <class Real>
void ChunkDecay<Real>::multiply(const Real* in, const Real* by, Real* out) const {
    for (std::int64_t c = 0; c < width_; ++c) out[c] = in[c] * by[c];
}

namespace {

/// out = in times one number per channel, one number, or nothing.
template <class Real>
void scale_row(std::int64_t n, std::int64_t width, const Real* in, const Real* by, Real* out) {
    if (width == 0) {
        if (in != out) std::copy_n(in, n, out);
    } else if (width == 1) {
        const Real x = *by;
        for (std::int64_t c = 0; c < n; ++c) out[c] = in[c] * x;
    } else {
        for (std::int64_t c = 0; c < n; ++c) out[c] = in[c] * by[c];
    }
}

}  // namespace

template <class Real>
void ChunkDecay<Real>::from_block_start(std::int64_t row, bool inclusive, const Real* in,
                                        Real* out) const {
    if (!inclusive && row % kBlock == 0) {
        std::copy_n(in, key_stride_, out);
        return;
    }
    scale_row(key_stride_, width_, in, prefix_.data() + (inclusive ? row : row - 1) * width_, out);
}

template <class Real>
void ChunkDecay<Real>::from_chunk_start(std::int64_t block, const Real* in, Real* out) const {
    scale_row(key_stride_, block == 0 ? 0 : width_, in, before_.data() + block * width_, out);
}

template <class Real>
void ChunkDecay<Real>::to_block_end(std::int64_t row, const Real* in, Real* out) const {
    scale_row(key_stride_, width_, in, suffix_.data() + row * width_, out);
}

template <class Real>
void ChunkDecay<Real>::across_row(std::int64_t row, Real* values) const {
    scale_row(key_stride_, width_, values, factor_.data() + row * width_, values);
}

template <class Real>
void ChunkDecay<Real>::across_block(std::int64_t block, Real* row) const {
    scale_row(key_stride_, width_, row, total_.data() + block * width_, row);
}

template <class Real>
double ChunkDecay<Real>::chunk_total(std::int64_t k) const {
    if (width_ == 0) return 1;
    return chunk_total_[static_cast<std::size_t>(width_ == 1 ? 0 : k)];
}

namespace {

/// The diagonal block under a vector decay out of the factored form's range: each right row is
/// decayed step by step.
template <class Real>
void direct_diagonal(const ChunkDecay<Real>& decay, Pairing pairing, std::int64_t first,
                     std::int64_t key_stride, const Real* left, const Real* right, Real* row,
                     Real* out, std::int64_t out_stride) {
    const bool exclusive = pairing == Pairing::kExclusiveStrict;
    for (std::int64_t j = 0; j < kBlock; ++j) {
        std::copy_n(right + (first + j) * key_stride, key_stride, row);
        for (std::int64_t i = j; i < kBlock; ++i) {
            // Before row i: the factors j+1 ... i, or ... i-1 when the row reads the state before.
            const std::int64_t newest = exclusive ? i - 1 : i;
            if (newest > j) {
                const Real* e = decay.factor(first + newest);
                for (std::int64_t c = 0; c < key_stride; ++c) row[c] *= e[c];
            }
            detail::dot_tile<Real, 1, 1>(key_stride, left + (first + i) * key_stride, key_stride,
                                         row, key_stride, out + i * out_stride + j, out_stride);
        }
    }
}

/// The diagonal block under a scalar decay: one factor per pair.
template <class Real>
void scale_diagonal(const ChunkDecay<Real>& decay, Pairing pairing, std::int64_t first, Real* out,
                    std::int64_t out_stride) {
    const std::int64_t lag = pairing == Pairing::kExclusiveStrict ? 1 : 0;
    for (std::int64_t j = 0; j < kBlock; ++j) {
        Real product = 1;
        for (std::int64_t i = j + 1 + lag; i < kBlock; ++i) {
            product *= *decay.factor(first + i - lag);
            out[i * out_stride + j] *= product;
        }
    }
}

}  // namespace

template <class Real>
void decay_scores(const ChunkDecay<Real>& decay, Pairing pairing, Rounding rounding,
                  std::int64_t block, std::int64_t key_stride, const Real* left,
                  const Real* left_hat, const Real* right, const Real* anchored, Real* work,
                  Real* out, std::int64_t out_stride) {
    const std::int64_t first = block * kBlock;
    row_products(kBlock, first, key_stride, left_hat, key_stride, anchored, key_stride, out,
                 out_stride);
    Real* diagonal = out + first;
    if (decay.decay() != Decay::kVector) {
        row_products(kBlock, kBlock, key_stride, left + first * key_stride, key_stride,
                     right + first * key_stride, key_stride, diagonal, out_stride);
        if (decay.decay() != Decay::kNone) {
            scale_diagonal(decay, pairing, first, diagonal, out_stride);
        }
    } else if (decay.factorable(block)) {
        const Real* inverse = decay.inverse_total(block);
        for (std::int64_t i = 0; i < kBlock; ++i) {
            for (std::int64_t c = 0; c < key_stride; ++c) {
                work[i * key_stride + c] = left_hat[i * key_stride + c] * inverse[c];
            }
        }
        round_operand(rounding, kBlock * key_stride, work);
        row_products(kBlock, kBlock, key_stride, work, key_stride, anchored + first * key_stride,
                     key_stride, diagonal, out_stride);
    } else {
        direct_diagonal(decay, pairing, first, key_stride, left, right, work, diagonal, out_stride);
    }
    // Masked by assignment: what stands there may be anything.
    const std::int64_t strict = pairing == Pairing::kInclusive ? 0 : 1;
    for (std::int64_t i = 0; i < kBlock; ++i) {
        for (std::int64_t j = i + 1 - strict; j < kBlock; ++j)
            diagonal[i * out_stride + j] = Real(0);
        if (pairing == Pairing::kInclusive) {
            round_operand(rounding, first + kBlock, out + i * out_stride);
        }
    }
}

template class ChunkDecay<float>;
template class ChunkDecay<double>;
template void decay_scores<float>(const ChunkDecay<float>&, Pairing, Rounding, std::int64_t,
                                  std::int64_t, const float*, const float*, const float*,
                                  const float*, float*, float*, std::int64_t);
template void decay_scores<double>(const ChunkDecay<double>&, Pairing, Rounding, std::int64_t,
                                   std::int64_t, const double*, const double*, const double*,
                                   const double*, double*, double*, std::int64_t);

}  // namespace sluice::cpu
