// The oracle against formulas written out here by hand, one per family: it judges all others.
#include <gtest/gtest.h>

#include <cmath>

#include "support/plain.hpp"

namespace sluice::test {
namespace {

constexpr Dims kDims = {.B = 2, .T = 19, .H = 2, .HV = 4, .K = 5, .V = 3};
constexpr double kTolerance = 1e-13;

Plain plain_of(const char* form, bool initial = false, Gates gates = Gates::kMild) {
    PlainSettings settings;
    settings.dtype = DType::kFloat64;
    settings.initial = initial;
    settings.kinds.gates = gates;
    return make_plain(find_form(form), kDims, settings);
}

/// Element of a contiguous float64 tensor.
template <class... I>
double at(const Tensor& tensor, I... index) {
    std::int64_t offset = 0;
    int d = 0;
    ((offset = offset * tensor.view().extents[d++] + index), ...);
    return tensor.elements<double>()[static_cast<std::size_t>(offset)];
}

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

/// Calls `f(b, h, key head, o)` for every sequence and value head, `o` a [T][V] matrix to fill, and
/// compares with the oracle.
template <class F>
void expect_outputs(const Plain& plain, F&& f) {
    const Outputs oracle = run_oracle(plain);
    const Tensor expected = Tensor::zeros(DType::kFloat64, oracle.o.shape());
    for (std::int64_t b = 0; b < kDims.B; ++b) {
        for (std::int64_t h = 0; h < kDims.HV; ++h) {
            Matrix o(kDims.T, Vector(kDims.V, 0.0));
            f(b, h, h / (kDims.HV / kDims.H), o);
            for (std::int64_t t = 0; t < kDims.T; ++t) {
                for (std::int64_t j = 0; j < kDims.V; ++j) {
                    const std::int64_t i = ((b * kDims.T + t) * kDims.HV + h) * kDims.V + j;
                    expected.elements<double>()[static_cast<std::size_t>(i)] = o[t][j];
                }
            }
        }
    }
    const Accuracy accuracy = compare(token_blocks(oracle.o, expected, plain.sequences()));
    EXPECT_TRUE(within(accuracy, kTolerance)) << describe(accuracy, kTolerance);
}

/// Additive attention without a state, straight from sums: o_t = scale sum_i (q_t . D(i..t) k_i)
/// v_i, where `log_decay(t, c)` is g.
template <class Query, class Key, class Value, class LogDecay>
void attend(Query&& q, Key&& k, Value&& v, LogDecay&& log_decay, double scale, bool normalize,
            Matrix& o) {
    for (std::int64_t t = 0; t < kDims.T; ++t) {
        double normalizer = 1e-10;
        Vector decay(kDims.K, 0.0);  // log decay from i to t
        for (std::int64_t i = t; i >= 0; --i) {
            double score = 0;
            for (std::int64_t c = 0; c < kDims.K; ++c) {
                score += scale * q(t, c) * k(i, c) * std::exp(decay[c]);
                decay[c] += log_decay(i, c);
            }
            normalizer += score;
            for (std::int64_t j = 0; j < kDims.V; ++j) o[t][j] += score * v(i, j);
        }
        if (!normalize) continue;
        for (double& x : o[t]) x /= normalizer;
    }
}

const double kScale = 1 / std::sqrt(5.0);

TEST(Oracle, LinearIsCausalAttentionWithoutSoftmax) {
    for (const char* form : {"linear", "linear_normalized"}) {
        const Plain p = plain_of(form);
        expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t kh, Matrix& o) {
            attend([&](auto t, auto c) { return at(p.inputs.at("q"), b, t, kh, c); },
                   [&](auto t, auto c) { return at(p.inputs.at("k"), b, t, kh, c); },
                   [&](auto t, auto j) { return at(p.inputs.at("v"), b, t, h, j); },
                   [](auto, auto) { return 0.0; }, kScale, p.spec.normalize, o);
        });
    }
}

TEST(Oracle, NormalizedEluMapsItsKeys) {
    const Plain p = plain_of("user_elu1_normalized");
    const auto map = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
    expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t kh, Matrix& o) {
        attend([&](auto t, auto c) { return map(at(p.inputs.at("q"), b, t, kh, c)); },
               [&](auto t, auto c) { return map(at(p.inputs.at("k"), b, t, kh, c)); },
               [&](auto t, auto j) { return at(p.inputs.at("v"), b, t, h, j); },
               [](auto, auto) { return 0.0; }, kScale, true, o);
    });
}

TEST(Oracle, RetentionAndLightningDecayByHead) {
    for (const char* form : {"retention", "lightning", "user_normalized_retention"}) {
        const Plain p = plain_of(form);
        const bool lightning = std::string(form) == "lightning";
        expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t kh, Matrix& o) {
            const auto head = static_cast<double>(h);
            const double g = lightning ? -(8.0 / 4) * (1 - 3.0 / 12) * head
                                       : std::log(1 - std::pow(2.0, -5 - head));
            attend([&](auto t, auto c) { return at(p.inputs.at("q"), b, t, kh, c); },
                   [&](auto t, auto c) { return at(p.inputs.at("k"), b, t, kh, c); },
                   [&](auto t, auto j) { return at(p.inputs.at("v"), b, t, h, j); },
                   [&](auto, auto) { return g; }, kScale, p.spec.normalize, o);
        });
    }
}

TEST(Oracle, GatedLinearAttention) {
    for (const Gates gates :
         {Gates::kMild, Gates::kStrong, Gates::kSpikes, Gates::kMinusInfinity}) {
        const Plain p = plain_of("gla", false, gates);
        expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t kh, Matrix& o) {
            attend([&](auto t, auto c) { return at(p.inputs.at("q"), b, t, kh, c); },
                   [&](auto t, auto c) { return at(p.inputs.at("k"), b, t, kh, c); },
                   [&](auto t, auto j) { return at(p.inputs.at("v"), b, t, h, j); },
                   [&](auto t, auto c) { return at(p.inputs.at("g"), b, t, h, c); }, kScale, false,
                   o);
        });
    }
}

TEST(Oracle, Mamba2WithEveryPart) {
    const Plain p = plain_of("mamba2_all");
    expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t group, Matrix& o) {
        const auto delta = [&](auto t) {
            const double x = at(p.inputs.at("dt"), b, t, h) + at(p.inputs.at("dt_bias"), h);
            return std::min(std::max(std::log1p(std::exp(x)), 0.05), 40.0);
        };
        attend([&](auto t, auto c) { return at(p.inputs.at("C"), b, t, group, c); },
               [&](auto t, auto c) { return at(p.inputs.at("B"), b, t, group, c); },
               [&](auto t, auto j) { return delta(t) * at(p.inputs.at("x"), b, t, h, j); },
               [&](auto t, auto) { return delta(t) * at(p.inputs.at("A"), h); }, 1.0, false, o);
        for (std::int64_t t = 0; t < kDims.T; ++t) {
            for (std::int64_t j = 0; j < kDims.V; ++j) {
                const double z = at(p.inputs.at("z"), b, t, h, j);
                const double skip = at(p.inputs.at("D"), h, j) * at(p.inputs.at("x"), b, t, h, j);
                o[t][j] = (o[t][j] + skip) * z / (1 + std::exp(-z));
            }
        }
    });
}

/// One token of a general step: S <- A S + k v^T for a dense K x K matrix A.
void transition(const Matrix& a, const Vector& k, const Vector& v, Matrix& state) {
    Matrix next(kDims.K, Vector(kDims.V, 0.0));
    for (std::int64_t i = 0; i < kDims.K; ++i) {
        for (std::int64_t j = 0; j < kDims.V; ++j) {
            for (std::int64_t c = 0; c < kDims.K; ++c) next[i][j] += a[i][c] * state[c][j];
            next[i][j] += k[i] * v[j];
        }
    }
    state = next;
}

void read(const Vector& q, const Matrix& state, Vector& o) {
    for (std::int64_t j = 0; j < kDims.V; ++j) {
        for (std::int64_t i = 0; i < kDims.K; ++i) o[j] += kScale * q[i] * state[i][j];
    }
}

/// Row (b, t, h, :) of a tensor.
Vector row(const Tensor& tensor, std::int64_t b, std::int64_t t, std::int64_t h) {
    Vector values;
    for (std::int64_t c = 0; c < tensor.view().extents[3]; ++c)
        values.push_back(at(tensor, b, t, h, c));
    return values;
}

Vector unit(Vector x) {
    double sum = 1e-6;
    for (const double value : x) sum += value * value;
    for (double& value : x) value /= std::sqrt(sum);
    return x;
}

// With (I - beta k k^T) D as a dense matrix, the delta rule is S <- A S + beta k v^T.
TEST(Oracle, KimiDeltaAttentionWithARawBoundedGate) {
    const Plain p = plain_of("kda_bounded_bias", true);
    expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t kh, Matrix& o) {
        Matrix state(kDims.K, Vector(kDims.V));
        for (std::int64_t i = 0; i < kDims.K; ++i) {
            for (std::int64_t j = 0; j < kDims.V; ++j) state[i][j] = at(*p.initial, b, h, i, j);
        }
        for (std::int64_t t = 0; t < kDims.T; ++t) {
            const Vector k = unit(row(p.inputs.at("k"), b, t, kh));
            const double beta = 1 / (1 + std::exp(-at(p.inputs.at("beta"), b, t, h)));
            const double rate = std::exp(at(p.inputs.at("A_log"), h));
            Matrix a(kDims.K, Vector(kDims.K, 0.0));
            for (std::int64_t c = 0; c < kDims.K; ++c) {
                const double x =
                    at(p.inputs.at("g_raw"), b, t, h, c) + at(p.inputs.at("dt_bias"), h, c);
                const double decay = std::exp(-2.5 / (1 + std::exp(-rate * x)));
                for (std::int64_t i = 0; i < kDims.K; ++i) {
                    a[i][c] = ((i == c ? 1.0 : 0.0) - beta * k[i] * k[c]) * decay;
                }
            }
            Vector v = row(p.inputs.at("v"), b, t, h);
            for (double& x : v) x *= beta;
            transition(a, k, v, state);
            read(unit(row(p.inputs.at("q"), b, t, kh)), state, o[t]);
        }
    });
}

TEST(Oracle, GatedDeltaRuleWithARawGate) {
    const Plain p = plain_of("gated_delta_rule_raw_bias");
    expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t kh, Matrix& o) {
        Matrix state(kDims.K, Vector(kDims.V, 0.0));
        for (std::int64_t t = 0; t < kDims.T; ++t) {
            const Vector k = row(p.inputs.at("k"), b, t, kh);
            const double beta = 1 / (1 + std::exp(-at(p.inputs.at("beta"), b, t, h)));
            const double x = at(p.inputs.at("g_raw"), b, t, h) + at(p.inputs.at("dt_bias"), h);
            const double decay =
                std::exp(-std::exp(at(p.inputs.at("A_log"), h)) * std::log1p(std::exp(x)));
            Matrix a(kDims.K, Vector(kDims.K));
            for (std::int64_t i = 0; i < kDims.K; ++i) {
                for (std::int64_t c = 0; c < kDims.K; ++c) {
                    a[i][c] = ((i == c ? 1.0 : 0.0) - beta * k[i] * k[c]) * decay;
                }
            }
            Vector v = row(p.inputs.at("v"), b, t, h);
            for (double& value : v) value *= beta;
            transition(a, k, v, state);
            read(row(p.inputs.at("q"), b, t, kh), state, o[t]);
        }
    });
}

// S <- (D - (eta kappa) kappa^T) S + k v^T: the removal reads the state before its decay.
TEST(Oracle, RankOneOfRwkv7) {
    const Plain p = plain_of("user_rwkv7");
    expect_outputs(p, [&](std::int64_t b, std::int64_t h, std::int64_t kh, Matrix& o) {
        Matrix state(kDims.K, Vector(kDims.V, 0.0));
        for (std::int64_t t = 0; t < kDims.T; ++t) {
            const Vector kappa = unit(row(p.inputs.at("kappa"), b, t, kh));
            Matrix a(kDims.K, Vector(kDims.K));
            for (std::int64_t i = 0; i < kDims.K; ++i) {
                const double eta = 1 / (1 + std::exp(-at(p.inputs.at("eta"), b, t, kh, i)));
                const double decay = std::exp(at(p.inputs.at("g"), b, t, h, i));
                for (std::int64_t c = 0; c < kDims.K; ++c) {
                    a[i][c] = (i == c ? decay : 0.0) - eta * kappa[i] * kappa[c];
                }
            }
            transition(a, row(p.inputs.at("k"), b, t, kh), row(p.inputs.at("v"), b, t, h), state);
            read(row(p.inputs.at("q"), b, t, kh), state, o[t]);
        }
    });
}

TEST(Oracle, DeltaIsACaseOfRankOne) {
    const Plain rank_one = plain_of("user_rank_one_delta", true, Gates::kStrong);
    Plain delta = rank_one;
    delta.spec = make_spec("gated_delta_rule");
    const Outputs a = run_oracle(rank_one);
    const Outputs b = run_oracle(delta);
    EXPECT_TRUE(within(compare(token_blocks(a.o, b.o, delta.sequences())), kTolerance));
    EXPECT_TRUE(within(compare(head_blocks(a.final, b.final)), kTolerance));
}

TEST(Oracle, FinalStateIsTheSumOfDecayedOuterProducts) {
    const Plain p = plain_of("simple_gla", true, Gates::kStrong);
    const Outputs oracle = run_oracle(p);
    const Tensor expected = Tensor::copy_of(*p.initial, DType::kFloat64);
    std::size_t element = 0;
    for (std::int64_t b = 0; b < kDims.B; ++b) {
        for (std::int64_t h = 0; h < kDims.HV; ++h) {
            for (std::int64_t i = 0; i < kDims.K; ++i) {
                for (std::int64_t j = 0; j < kDims.V; ++j, ++element) {
                    double decay = 0, sum = 0;
                    for (std::int64_t t = kDims.T - 1; t >= 0; --t) {
                        sum += std::exp(decay) * at(p.inputs.at("k"), b, t, h / 2, i) *
                               at(p.inputs.at("v"), b, t, h, j);
                        decay += at(p.inputs.at("g"), b, t, h);
                    }
                    double& state = expected.elements<double>()[element];
                    state = sum + std::exp(decay) * state;
                }
            }
        }
    }
    EXPECT_TRUE(within(compare(head_blocks(oracle.final, expected)), kTolerance));
}

}  // namespace
}  // namespace sluice::test
