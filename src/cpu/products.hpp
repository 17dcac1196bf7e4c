// Small dense products for operands that stay in a core's caches.
//
// Why not a library's gemm: these products are 16 to 64 rows tall, so packing costs as much as it
// saves; and here every element of a result is one chain of multiply-adds in the order of the inner
// index, whatever the shape around it. A result's bits then do not depend on tiles, neighbours or
// threads. Rows are padded to whole vectors (zeros), so that no product has a ragged edge.
#pragma once

#include <algorithm>
#include <utility>

#include "cpu/simd.hpp"

namespace sluice::cpu {

/// A matrix operand whose element (row, inner) is data[row * row_stride + inner * inner_stride].
template <class Real>
struct Left {
    const Real* data;
    std::int64_t row_stride;
    std::int64_t inner_stride;
};

namespace detail {

/// Result rows [0, Rows) x vectors [0, Vectors): registers += left x right.
template <class Real, int Rows, int Vectors>
inline void accumulate_tile(std::int64_t inner, Left<Real> left, const Real* right,
                            std::int64_t right_stride, Real* result, std::int64_t result_stride) {
    using S = Simd<Real>;
    typename S::Vector sum[Rows][Vectors];
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) {
            sum[r][v] = S::load(result + r * result_stride + v * S::kLanes);
        }
    }
    for (std::int64_t i = 0; i < inner; ++i) {
        typename S::Vector row[Vectors];
        for (int v = 0; v < Vectors; ++v)
            row[v] = S::load(right + i * right_stride + v * S::kLanes);
        for (int r = 0; r < Rows; ++r) {
            const auto x = S::broadcast(left.data[r * left.row_stride + i * left.inner_stride]);
            for (int v = 0; v < Vectors; ++v) sum[r][v] = S::fma(x, row[v], sum[r][v]);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) {
            S::store(result + r * result_stride + v * S::kLanes, sum[r][v]);
        }
    }
}

template <class Real, int Vectors>
inline void accumulate_columns(std::int64_t rows, std::int64_t inner, Left<Real> left,
                               const Real* right, std::int64_t right_stride, Real* result,
                               std::int64_t result_stride) {
    // Accumulators, the row of the right side and one broadcast value fill the registers.
    constexpr int kRows = std::clamp((kVectorRegisters - Vectors - 1) / Vectors, 1, 8);
    std::int64_t r = 0;
    const auto at = [&](std::int64_t row) {
        return Left<Real>{left.data + row * left.row_stride, left.row_stride, left.inner_stride};
    };
    for (; r + kRows <= rows; r += kRows) {
        accumulate_tile<Real, kRows, Vectors>(inner, at(r), right, right_stride,
                                              result + r * result_stride, result_stride);
    }
    for (; r + 2 <= rows; r += 2) {
        accumulate_tile<Real, 2, Vectors>(inner, at(r), right, right_stride,
                                          result + r * result_stride, result_stride);
    }
    for (; r < rows; ++r) {
        accumulate_tile<Real, 1, Vectors>(inner, at(r), right, right_stride,
                                          result + r * result_stride, result_stride);
    }
}

template <class Real, int Rows, int Columns>
inline void dot_tile(std::int64_t inner, const Real* left, std::int64_t left_stride,
                     const Real* right, std::int64_t right_stride, Real* result,
                     std::int64_t result_stride) {
    using S = Simd<Real>;
    typename S::Vector sum[Rows][Columns] = {};
    for (std::int64_t i = 0; i < inner; i += S::kLanes) {
        typename S::Vector x[Rows];
        for (int r = 0; r < Rows; ++r) x[r] = S::load(left + r * left_stride + i);
        for (int c = 0; c < Columns; ++c) {
            const auto y = S::load(right + c * right_stride + i);
            for (int r = 0; r < Rows; ++r) sum[r][c] = S::fma(x[r], y, sum[r][c]);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int c = 0; c < Columns; ++c) result[r * result_stride + c] = S::sum(sum[r][c]);
    }
}

}  // namespace detail

/// result[rows, columns] += left[rows, inner] x right[inner, columns]; columns is a multiple of the
/// vector width.
template <class Real>
void accumulate(std::int64_t rows, std::int64_t columns, std::int64_t inner, Left<Real> left,
                const Real* right, std::int64_t right_stride, Real* result,
                std::int64_t result_stride) {
    constexpr std::int64_t kLanes = Simd<Real>::kLanes;
    std::int64_t c = 0;
    for (; c + 3 * kLanes <= columns; c += 3 * kLanes) {
        detail::accumulate_columns<Real, 3>(rows, inner, left, right + c, right_stride, result + c,
                                            result_stride);
    }
    if (c + 2 * kLanes <= columns) {
        detail::accumulate_columns<Real, 2>(rows, inner, left, right + c, right_stride, result + c,
                                            result_stride);
        c += 2 * kLanes;
    }
    if (c < columns) {
        detail::accumulate_columns<Real, 1>(rows, inner, left, right + c, right_stride, result + c,
                                            result_stride);
    }
}

/// result[r, c] = left row r . right row c, for rows and columns that are multiples of 4 and an
/// inner length (rows padded with zeros) that is a multiple of the vector width.
template <class Real>
void row_products(std::int64_t rows, std::int64_t columns, std::int64_t inner, const Real* left,
                  std::int64_t left_stride, const Real* right, std::int64_t right_stride,
                  Real* result, std::int64_t result_stride) {
    constexpr int kTile = 4;
    for (std::int64_t c = 0; c < columns; c += kTile) {
        for (std::int64_t r = 0; r < rows; r += kTile) {
            detail::dot_tile<Real, kTile, kTile>(inner, left + r * left_stride, left_stride,
                                                 right + c * right_stride, right_stride,
                                                 result + r * result_stride + c, result_stride);
        }
    }
}

}  // namespace sluice::cpu
