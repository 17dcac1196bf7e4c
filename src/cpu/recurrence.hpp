// One step of the recurrence in float64, as MATH writes it, and what a step's adjoint needs.
#pragma once

#include <cmath>
#include <vector>

#include "cpu/operands.hpp"

namespace sluice::cpu {

/// The operands of token `t` of a loaded tile.
struct Token {
    const double *q, *k, *a, *b, *v;
    const double* log_decay;  // null: none
    bool vector_decay;
    double beta;

    Token(const Operands<double>& operands, Decay decay, std::int64_t t)
        : q(operands.q.data() + t * operands.key_stride()),
          k(operands.k.data() + t * operands.key_stride()),
          a(operands.a.empty() ? nullptr : operands.a.data() + t * operands.key_stride()),
          b(operands.b.empty() ? nullptr : operands.b.data() + t * operands.key_stride()),
          v(operands.v.data() + t * operands.value_stride()),
          log_decay(operands.log_decay.empty()
                        ? nullptr
                        : operands.log_decay.data() +
                              t * (decay == Decay::kVector ? operands.key_stride() : 1)),
          vector_decay(decay == Decay::kVector),
          beta(operands.beta.empty() ? 1.0 : operands.beta[static_cast<std::size_t>(t)]) {}

    [[nodiscard]] double decay(std::int64_t key) const {
        return log_decay == nullptr ? 1.0 : std::exp(log_decay[vector_decay ? key : 0]);
    }
};

/// state [K, columns] <- the state after `token`. `u` receives what k is paired with (v, or beta
/// times the delta rule's residual); `bs` receives b^T S (rank-one).
inline void advance(Update update, const Token& token, std::int64_t keys, std::int64_t columns,
                    double* state, double* u, double* bs) {
    if (update == Update::kRankOne) {
        std::fill_n(bs, columns, 0.0);
        for (std::int64_t i = 0; i < keys; ++i) {
            for (std::int64_t j = 0; j < columns; ++j) bs[j] += token.b[i] * state[i * columns + j];
        }
    }
    for (std::int64_t i = 0; i < keys; ++i) {
        const double decay = token.decay(i);
        for (std::int64_t j = 0; j < columns; ++j) state[i * columns + j] *= decay;
    }
    std::copy_n(token.v, columns, u);
    if (update == Update::kDelta) {
        for (std::int64_t i = 0; i < keys; ++i) {
            for (std::int64_t j = 0; j < columns; ++j) u[j] -= token.k[i] * state[i * columns + j];
        }
        for (std::int64_t j = 0; j < columns; ++j) u[j] *= token.beta;
    }
    for (std::int64_t i = 0; i < keys; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            state[i * columns + j] += token.k[i] * u[j];
            if (update == Update::kRankOne) state[i * columns + j] += token.a[i] * bs[j];
        }
    }
}

/// read[j] = scale * sum_i q[i] S[i, j]
inline void read_out(const Token& token, double scale, std::int64_t keys, std::int64_t columns,
                     const double* state, double* read) {
    std::fill_n(read, columns, 0.0);
    for (std::int64_t i = 0; i < keys; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            read[j] += scale * token.q[i] * state[i * columns + j];
        }
    }
}

}  // namespace sluice::cpu
