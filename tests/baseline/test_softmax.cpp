// Softmax attention against the definition in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <string>
#include <vector>

#include "baseline/softmax.hpp"
#include "core/convert.hpp"
#include "measure/random_inputs.hpp"
#include "support/metrics.hpp"
#include "support/refusal.hpp"

namespace sluice::baseline {
namespace {

using test::compare;
using test::describe;
using test::refusal;
using test::same_bits;
using test::whole_block;
using test::within;

struct Shape {
    std::int64_t B, T, S, H, HV, K, V;
    DType dtype = DType::kFloat32;
};

struct Problem {
    Tensor q, k, v, o;
    [[nodiscard]] SoftmaxArguments arguments() const { return {q, k, v, o}; }
};

Problem make(const Shape& s, std::uint64_t seed = 1) {
    Problem p{Tensor::empty(s.dtype, {s.B, s.T, s.HV, s.K}),
              Tensor::empty(s.dtype, {s.B, s.S, s.H, s.K}),
              Tensor::empty(s.dtype, {s.B, s.S, s.H, s.V}),
              Tensor::zeros(s.dtype, {s.B, s.T, s.HV, s.V})};
    measure::fill_normal(p.q, seed, "q");
    measure::fill_normal(p.k, seed, "k");
    measure::fill_normal(p.v, seed, "v");
    return p;
}

double at(const TensorView& x, std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) {
    return load_element(x.data, x.dtype,
                        b * x.stride_elements[0] + t * x.stride_elements[1] +
                            h * x.stride_elements[2] + c * x.stride_elements[3]);
}

/// Row (b, i, h) of the definition.
std::vector<double> reference_row(const SoftmaxArguments& a, double scale, std::int64_t b,
                                  std::int64_t i, std::int64_t h) {
    const std::int64_t keys = i + 1 + a.k.extents[1] - a.q.extents[1];
    const std::int64_t kh = h / (a.q.extents[2] / a.k.extents[2]);
    std::vector<double> weights;
    for (std::int64_t j = 0; j < keys; ++j) {
        double score = 0;
        for (std::int64_t c = 0; c < a.q.extents[3]; ++c) {
            score += at(a.q, b, i, h, c) * at(a.k, b, j, kh, c);
        }
        weights.push_back(scale * score);
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - largest);
    std::vector<double> row(static_cast<std::size_t>(a.v.extents[3]), 0.0);
    for (std::size_t c = 0; c < row.size(); ++c) {
        for (std::size_t j = 0; j < weights.size(); ++j) {
            row[c] += weights[j] / sum *
                      at(a.v, b, static_cast<std::int64_t>(j), kh, static_cast<std::int64_t>(c));
        }
    }
    return row;
}

Tensor reference(const SoftmaxArguments& a, double scale) {
    Tensor o = Tensor::empty(DType::kFloat64, a.o.shape());
    double* out = o.elements<double>().data();
    for (std::int64_t b = 0; b < a.q.extents[0]; ++b) {
        for (std::int64_t i = 0; i < a.q.extents[1]; ++i) {
            for (std::int64_t h = 0; h < a.q.extents[2]; ++h) {
                const std::vector<double> row = reference_row(a, scale, b, i, h);
                out = std::copy(row.begin(), row.end(), out);
            }
        }
    }
    return o;
}

double bound(DType dtype) {
    switch (dtype) {
        case DType::kBFloat16: return 4e-3;
        case DType::kFloat16: return 5e-4;
        default: return 1e-5;
    }
}

class SoftmaxShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(SoftmaxShapes, EqualsTheDefinition) {
    const Shape& s = GetParam();
    const Problem p = make(s);
    softmax_attention(p.arguments());
    const auto accuracy = compare(
        whole_block(p.o, reference(p.arguments(), 1 / std::sqrt(static_cast<double>(s.K)))));
    EXPECT_TRUE(within(accuracy, bound(s.dtype))) << describe(accuracy, bound(s.dtype));
}

// One token; around one block of queries (96) and of keys (128); ragged channels; grouped heads;
// all dtypes; decoding with a cache.
INSTANTIATE_TEST_SUITE_P(
    Odd, SoftmaxShapes,
    ::testing::Values(Shape{1, 1, 1, 1, 1, 8, 8}, Shape{2, 95, 95, 2, 2, 16, 16},
                      Shape{1, 96, 96, 1, 1, 16, 8}, Shape{1, 97, 97, 1, 3, 20, 12},
                      Shape{1, 129, 129, 2, 4, 7, 33}, Shape{3, 300, 300, 1, 2, 64, 64},
                      Shape{1, 1, 257, 2, 6, 32, 16}, Shape{2, 5, 131, 1, 1, 16, 1},
                      Shape{1, 193, 193, 2, 2, 32, 32, DType::kBFloat16},
                      Shape{1, 193, 193, 1, 2, 32, 32, DType::kFloat16},
                      Shape{1, 65, 65, 1, 1, 16, 16, DType::kFloat64}));

TEST(Softmax, LargeLogitsDoNotOverflow) {
    // Scores of some tens of thousands: exp of any overflows a double.
    const Problem p = make({1, 150, 150, 1, 1, 16, 16});
    for (float& x : p.q.elements<float>()) x *= 3000;
    softmax_attention(p.arguments(), {4.0, 0});
    const auto accuracy = compare(whole_block(p.o, reference(p.arguments(), 4.0)));
    // Rounding of such scores (1e-3) goes straight into the weights.
    EXPECT_TRUE(within(accuracy, 1e-2)) << describe(accuracy, 1e-2);
}

TEST(Softmax, ConstantLogitsGiveTheMean) {
    const Problem p = make({1, 100, 100, 1, 1, 8, 4});
    for (float& x : p.k.elements<float>()) x = -1e4F;
    for (float& x : p.q.elements<float>()) x = 1e4F;
    softmax_attention(p.arguments());
    const auto v = p.v.elements<float>(), o = p.o.elements<float>();
    double sum = 0;
    for (std::size_t t = 0; t < 100; ++t) {
        sum += static_cast<double>(v[4 * t]);
        EXPECT_NEAR(o[4 * t], sum / static_cast<double>(t + 1), 1e-5);
    }
}

TEST(Softmax, ThreadsDoNotChangeABit) {
    const Shape s{2, 210, 210, 2, 4, 32, 40};
    const Problem one = make(s), many = make(s);
    softmax_attention(one.arguments(), {{}, 1});
    softmax_attention(many.arguments(), {{}, 5});
    EXPECT_TRUE(same_bits(one.o, many.o));
}

TEST(Softmax, CausalBlockByBlock) {
    const Shape s{1, 300, 300, 1, 1, 16, 16};
    const Problem before = make(s), after = make(s);
    softmax_attention(before.arguments());
    // Token 200 changes, so that the first two blocks of queries (96 each) do not.
    for (const Tensor* x : {&after.q, &after.k, &after.v}) {
        for (std::size_t c = 0; c < 16; ++c) x->elements<float>()[200 * 16 + c] += 1;
    }
    softmax_attention(after.arguments());
    EXPECT_TRUE(same_bits(before.o.view().sliced(1, 0, 192), after.o.view().sliced(1, 0, 192)));
    EXPECT_FALSE(
        same_bits(before.o.view().sliced(1, 200, 201), after.o.view().sliced(1, 200, 201)));
}

TEST(Softmax, StridedTokensAndHeads) {
    const Shape s{1, 130, 130, 2, 2, 16, 16};
    const Problem dense = make(s);
    softmax_attention(dense.arguments());
    // q, k and v packed beside each other, as a fused projection leaves them: [B, T, H, 3 * D].
    const Tensor packed = Tensor::empty(DType::kFloat32, {1, 130, 2, 48});
    const TensorView parts[] = {packed.view().sliced(3, 0, 16), packed.view().sliced(3, 16, 32),
                                packed.view().sliced(3, 32, 48)};
    const Tensor* sources[] = {&dense.q, &dense.k, &dense.v};
    for (int i = 0; i < 3; ++i) {
        for (std::int64_t t = 0; t < 130; ++t) {
            for (std::int64_t h = 0; h < 2; ++h) {
                for (std::int64_t c = 0; c < 16; ++c) {
                    static_cast<float*>(parts[i].data)[t * 96 + h * 48 + c] =
                        static_cast<float>(at(*sources[i], 0, t, h, c));
                }
            }
        }
    }
    const Tensor o = Tensor::zeros(DType::kFloat32, {1, 130, 2, 16});
    softmax_attention({parts[0], parts[1], parts[2], o});
    EXPECT_TRUE(same_bits(o, dense.o));
}

TEST(Softmax, EmptyIsLegal) {
    const Problem p = make({1, 0, 0, 1, 1, 8, 8});
    EXPECT_NO_THROW(softmax_attention(p.arguments()));
}

TEST(Softmax, RefusesWhatDoesNotFit) {
    const Problem p = make({1, 4, 4, 2, 2, 8, 8});
    const auto refused = [&](auto&& change) {
        SoftmaxArguments a = p.arguments();
        change(a);
        return refusal([&] { softmax_attention(a); });
    };
    const Tensor other = Tensor::zeros(DType::kFloat32, {1, 4, 3, 8});
    const Tensor shorter = Tensor::zeros(DType::kFloat32, {1, 3, 2, 8});
    const Tensor integers = Tensor::zeros(DType::kInt32, {1, 4, 2, 8});
    const Tensor flat = Tensor::zeros(DType::kFloat32, {4, 16});
    EXPECT_EQ(refused([&](auto& a) { a.q = a.o = other; }),
              "shape | q | 3 heads | a multiple of k's 2 heads");
    EXPECT_EQ(refused([&](auto& a) { a.v = other; }), "shape | v | [1, 4, 3, 8] | [1, 4, 2, 8]");
    EXPECT_EQ(refused([&](auto& a) { a.k = a.v = shorter; }),
              "shape | k | 3 keys | at least as many as queries, 4");
    EXPECT_EQ(refused([&](auto& a) { a.k = integers; }),
              "dtype | k | int32 [1, 4, 2, 8] | float32, bfloat16, float16 or float64");
    EXPECT_EQ(refused([&](auto& a) { a.q = flat; }),
              "shape | q | float32 [4, 16] | 4 dimensions, [B, T, H, D]");
    EXPECT_EQ(refused([&](auto& a) { a.v = a.v.transposed(1, 3).transposed(1, 3); }), "accepted");
    const TensorView turned = Tensor(p.v).view().transposed(1, 3);
    EXPECT_TRUE(refused([&](auto& a) { a.v = turned; }).starts_with("stride | v | "));
}

TEST(SoftmaxWork, CountsTheUnmaskedHalf) {
    const Problem p = make({2, 64, 64, 1, 4, 8, 24});
    const Work work = softmax_work(p.arguments());
    EXPECT_DOUBLE_EQ(work.flops, 2.0 * (64.0 * 64 / 2) * (8 + 24) * (2 * 4));
    EXPECT_DOUBLE_EQ(work.bytes_read, 4.0 * 2 * 64 * (4 * 8 + 8 + 24));
    EXPECT_DOUBLE_EQ(work.bytes_written, 4.0 * 2 * 64 * 4 * 24);
}

TEST(Softmax, BuffersThatCannotBeAllocatedAreAnException) {
    // Channels past any address space: the buffers fail, and no element is touched.
    float element = 0;
    TensorView huge = Tensor::zeros(DType::kFloat32, {1, 1, 1, 1});
    huge.data = &element;
    huge.extents[3] = std::int64_t{1} << 57;
    for (const int threads : {1, 4}) {
        EXPECT_THROW(softmax_attention({huge, huge, huge, huge}, {{}, threads}), std::bad_alloc);
    }
}

}  // namespace
}  // namespace sluice::baseline
