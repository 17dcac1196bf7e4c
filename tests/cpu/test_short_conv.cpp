// The short convolution against its definition, a double loop in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "core/convert.hpp"
#include "sluice/error.hpp"
#include "sluice/short_conv.hpp"

namespace sluice {
namespace {

using Shape = std::vector<std::int64_t>;

Tensor random_tensor(DType dtype, const Shape& shape, std::mt19937_64& random, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    const Tensor values = Tensor::empty(DType::kFloat64, shape);
    for (double& value : values.elements<double>()) value = normal(random);
    return Tensor::copy_of(values, dtype);
}

template <class T>
Tensor integers(DType dtype, const std::vector<T>& values) {
    const Tensor tensor = Tensor::empty(dtype, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), tensor.elements<T>().begin());
    return tensor;
}
Tensor i32(const std::vector<std::int32_t>& v) { return integers(DType::kInt32, v); }
Tensor i64(const std::vector<std::int64_t>& v) { return integers(DType::kInt64, v); }
Tensor mask(const std::vector<char>& values) {
    const Tensor tensor = Tensor::empty(DType::kBool, {static_cast<std::int64_t>(values.size())});
    std::memcpy(tensor.view().data, values.data(), values.size());
    return tensor;
}

Options with_threads(int threads) {
    Options options;
    options.threads = threads;
    return options;
}
Options with_precision(Precision precision) {
    Options options;
    options.precision = precision;
    return options;
}

double at(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t k) {
    return load_element(
        view.data, view.dtype,
        i * view.stride_elements[0] + j * view.stride_elements[1] + k * view.stride_elements[2]);
}

double activate(Activation activation, double x) {
    return activation == Activation::kSilu ? x / (1 + std::exp(-x)) : x;
}

/// One sequence by the definition: `batch`, tokens [begin, end), from row `slot` of the state (-1:
/// zero).
struct Reference {
    const ShortConvArguments& a;
    std::int64_t batch, begin, end, slot;

    /// Input i of the sequence; those before its start are in the state.
    [[nodiscard]] double input(std::int64_t i, std::int64_t c) const {
        if (i >= 0) return at(a.x, batch, begin + i, c);
        const std::int64_t W = a.weight.extents[1];
        return slot < 0 ? 0 : at(*a.initial, slot, c, W - 1 + i);
    }
    /// The output, and the sum of magnitudes that its rounding is measured by.
    [[nodiscard]] std::pair<double, double> output(std::int64_t i, std::int64_t c) const {
        const std::int64_t W = a.weight.extents[1];
        double sum =
            a.bias ? load_element(a.bias->data, a.bias->dtype, c * a.bias->stride_elements[0]) : 0;
        double magnitude = std::abs(sum);
        for (std::int64_t w = 0; w < W; ++w) {
            const double term = input(i - W + 1 + w, c) * at(a.weight, c, w, 0);
            sum += term;
            magnitude += std::abs(term);
        }
        return {activate(a.activation, sum), magnitude};
    }
};

/// Relative error of one rounding to `dtype`, and a bound on float32 (float64) arithmetic.
double rounding(DType dtype) {
    switch (dtype) {
        case DType::kBFloat16: return 0x1p-8;
        case DType::kFloat16: return 0x1p-11;
        default: return 0;
    }
}

struct Call {
    ShortConvArguments arguments;
    std::vector<Tensor> memory;  // what the views point into

    TensorView keep(const Tensor& tensor) {
        memory.push_back(tensor);
        return tensor.view();
    }
};

/// Runs the call and compares outputs and states with the definition. `arguments.x` and `initial`
/// may be overwritten by the call, so the reference reads copies.
void expect_matches_reference(const ShortConvArguments& arguments,
                              const std::vector<Sequence>& seqs, const Options& options = {}) {
    ShortConvArguments original = arguments;
    const Tensor x = Tensor::copy_of(arguments.x, arguments.x.dtype);
    original.x = x;
    Tensor initial;
    if (arguments.initial) {
        initial = Tensor::copy_of(*arguments.initial, arguments.initial->dtype);
        original.initial = initial;
    }
    short_conv(arguments, options);

    const bool exact = options.precision == Precision::kFloat64 ||
                       (options.precision == Precision::kAuto && x.dtype() == DType::kFloat64);
    const std::int64_t D = x.shape()[2];
    const std::int64_t W = arguments.weight.extents[1];
    for (std::size_t n = 0; n < seqs.size(); ++n) {
        SCOPED_TRACE("sequence " + std::to_string(n));
        const Sequence& s = seqs[n];
        const Reference reference{original, s.batch, s.begin, s.end, s.read_slot};
        for (std::int64_t c = 0; c < D; ++c) {
            for (std::int64_t i = 0; i < s.length(); ++i) {
                const auto [expected, magnitude] = reference.output(i, c);
                const double actual = at(arguments.y, s.batch, s.begin + i, c);
                const double bound = (exact ? 1e-15 : 6e-7) * magnitude +
                                     rounding(arguments.y.dtype) * std::abs(expected) + 1e-37;
                ASSERT_NEAR(actual, expected, bound) << "token " << i << " channel " << c;
            }
            if (s.write_slot < 0) continue;
            for (std::int64_t j = 0; j < W - 1; ++j) {
                const double expected = reference.input(s.length() - (W - 1) + j, c);
                const double actual = at(*arguments.final, s.write_slot, c, j);
                const double bound = rounding(arguments.final->dtype) * std::abs(expected);
                ASSERT_NEAR(actual, expected, bound) << "state " << j << " channel " << c;
            }
        }
    }
}

std::vector<Sequence> dense_sequences(std::int64_t B, std::int64_t T, bool states) {
    std::vector<Sequence> sequences;
    for (std::int64_t b = 0; b < B; ++b) {
        const std::int64_t slot = states ? b : -1;
        sequences.push_back(
            {.batch = b, .begin = 0, .end = T, .read_slot = slot, .write_slot = slot});
    }
    return sequences;
}

/// Dense sequences with states, all of one dtype.
Call make_call(std::int64_t B, std::int64_t T, std::int64_t D, std::int64_t W, DType dtype,
               Activation activation, bool bias, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Call p;
    p.arguments.x = p.keep(random_tensor(dtype, {B, T, D}, random));
    p.arguments.weight = p.keep(random_tensor(dtype, {D, W}, random, 0.5));
    p.arguments.y = p.keep(random_tensor(dtype, {B, T, D}, random));
    if (bias) p.arguments.bias = p.keep(random_tensor(dtype, {D}, random));
    p.arguments.initial = p.keep(random_tensor(dtype, {B, D, W - 1}, random));
    p.arguments.final = p.keep(random_tensor(dtype, {B, D, W - 1}, random));
    p.arguments.activation = activation;
    return p;
}

TEST(ShortConv, MatchesTheDefinitionOverShapesAndTypes) {
    std::mt19937_64 random(7);
    int runs = 0;
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
        for (const std::int64_t W : {2, 3, 4}) {
            for (const std::int64_t D : {1, 5, 16, 67, 256, 300}) {
                for (const std::int64_t T : {0, 1, 2, 3, 4, 33}) {
                    SCOPED_TRACE(testing::Message()
                                 << to_string(dtype) << " T" << T << " D" << D << " W" << W);
                    const auto B = static_cast<std::int64_t>(1 + random() % 3);
                    const Call p = make_call(B, T, D, W, dtype,
                                             random() % 2 ? Activation::kSilu : Activation::kNone,
                                             random() % 2 != 0, random());
                    expect_matches_reference(p.arguments, dense_sequences(B, T, true));
                    if (HasFatalFailure()) return;
                    ++runs;
                }
            }
        }
    }
    EXPECT_EQ(runs, 4 * 3 * 6 * 6);
}

TEST(ShortConv, WorksWithoutBiasAndStates) {
    Call p = make_call(2, 9, 70, 4, DType::kFloat32, Activation::kNone, false, 1);
    p.arguments.initial.reset();
    p.arguments.final.reset();
    expect_matches_reference(p.arguments, dense_sequences(2, 9, false));
}

TEST(ShortConv, MixesTypes) {
    std::mt19937_64 random(3);
    Call p;
    p.arguments.x = p.keep(random_tensor(DType::kBFloat16, {2, 20, 40}, random));
    p.arguments.weight = p.keep(random_tensor(DType::kFloat32, {40, 4}, random));
    p.arguments.bias = p.keep(random_tensor(DType::kFloat16, {40}, random));
    p.arguments.y = p.keep(random_tensor(DType::kFloat32, {2, 20, 40}, random));
    p.arguments.initial = p.keep(random_tensor(DType::kFloat16, {2, 40, 3}, random));
    p.arguments.final = p.keep(random_tensor(DType::kFloat32, {2, 40, 3}, random));
    expect_matches_reference(p.arguments, dense_sequences(2, 20, true));
}

TEST(ShortConv, ComputesInFloat64OnlyWhenEverythingIsOrWhenAsked) {
    Call p = make_call(1, 50, 8, 4, DType::kFloat64, Activation::kSilu, true, 4);
    expect_matches_reference(p.arguments, dense_sequences(1, 50, true), {});
    const auto difference = [&](const Options& options) {
        short_conv(p.arguments, options);
        const Tensor wide = Tensor::copy_of(p.arguments.y, DType::kFloat64);
        short_conv(p.arguments, with_precision(Precision::kFloat64));
        double worst = 0;
        for (std::int64_t i = 0; i < wide.size(); ++i) {
            worst = std::max(worst, std::abs(wide.elements<double>()[i] -
                                             static_cast<double*>(p.arguments.y.data)[i]));
        }
        return worst;
    };
    EXPECT_EQ(difference({}), 0);
    EXPECT_GT(difference(with_precision(Precision::kFloat32)), 1e-9);
    std::mt19937_64 random(5);
    p.arguments.bias = p.keep(random_tensor(DType::kFloat32, {8}, random));
    EXPECT_GT(difference({}), 1e-9) << "one float32 tensor makes the arithmetic float32";
}

TEST(ShortConv, SiluIsFiniteFarOut) {
    Call p = make_call(1, 6, 3, 2, DType::kFloat32, Activation::kSilu, false, 6);
    auto* x = static_cast<float*>(p.arguments.x.data);
    for (int i = 0; i < 18; ++i) x[i] = (i % 2 ? 1.0F : -1.0F) * std::pow(10.0F, float(i));
    short_conv(p.arguments);
    for (std::int64_t i = 0; i < 18; ++i) {
        EXPECT_TRUE(std::isfinite(static_cast<float*>(p.arguments.y.data)[i])) << i;
    }
}

// ------------------------------------------------------------------------------------------------

/// Packed sequences of these lengths, with states in dense rows.
Call packed_call(const std::vector<std::int64_t>& lengths, std::int64_t D, std::int64_t W,
                 DType dtype, std::vector<Sequence>& sequences) {
    std::vector<std::int32_t> offsets = {0};
    sequences.clear();
    for (const std::int64_t length : lengths) {
        const auto n = static_cast<std::int64_t>(sequences.size());
        sequences.push_back({.batch = 0,
                             .begin = offsets.back(),
                             .end = offsets.back() + length,
                             .read_slot = n,
                             .write_slot = n});
        offsets.push_back(static_cast<std::int32_t>(offsets.back() + length));
    }
    Call p = make_call(1, offsets.back(), D, W, dtype, Activation::kSilu, true, 11);
    std::mt19937_64 random(12);
    const auto N = static_cast<std::int64_t>(lengths.size());
    p.arguments.initial = p.keep(random_tensor(dtype, {N, D, W - 1}, random));
    p.arguments.final = p.keep(random_tensor(dtype, {N, D, W - 1}, random));
    p.arguments.cu_seqlens = p.keep(i32(offsets));
    return p;
}

TEST(ShortConv, PackedSequencesIncludingEmptyOnes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const std::int64_t W : {2, 3, 4}) {
            std::vector<Sequence> sequences;
            const Call p = packed_call({0, 0, 1, 7, 0, 2, 3, 40, 0}, 37, W, dtype, sequences);
            expect_matches_reference(p.arguments, sequences);
        }
    }
}

TEST(ShortConv, OffsetsMayBeInt64AndAllSequencesEmpty) {
    std::vector<Sequence> sequences;
    Call p = packed_call({0, 0, 0}, 5, 4, DType::kFloat32, sequences);
    p.arguments.cu_seqlens = p.keep(i64({0, 0, 0, 0}));
    expect_matches_reference(p.arguments, sequences);
    p = packed_call({}, 5, 4, DType::kFloat32, sequences);
    expect_matches_reference(p.arguments, sequences);
}

TEST(ShortConv, OnePassEqualsTwoThroughTheState) {
    for (const std::int64_t W : {2, 3, 4}) {
        for (const std::int64_t split : {0, 1, 2, 3, 10, 29, 30}) {
            SCOPED_TRACE(testing::Message() << "W" << W << " split " << split);
            const Call whole =
                make_call(2, 30, 70, W, DType::kBFloat16, Activation::kSilu, true, 21);
            short_conv(whole.arguments);

            const Tensor y = Tensor::empty(DType::kBFloat16, {2, 30, 70});
            const Tensor middle = Tensor::empty(DType::kBFloat16, {2, 70, W - 1});
            const Tensor last = Tensor::empty(DType::kBFloat16, {2, 70, W - 1});
            ShortConvArguments first = whole.arguments;
            first.x = whole.arguments.x.sliced(1, 0, split);
            first.y = y.view().sliced(1, 0, split);
            first.final = middle;
            short_conv(first);
            ShortConvArguments second = whole.arguments;
            second.x = whole.arguments.x.sliced(1, split, 30);
            second.y = y.view().sliced(1, split, 30);
            second.initial = middle;
            second.final = last;
            short_conv(second);
            EXPECT_EQ(std::memcmp(y.view().data, whole.arguments.y.data, y.size_bytes()), 0);
            EXPECT_EQ(std::memcmp(last.view().data, whole.arguments.final->data, last.size_bytes()),
                      0);
        }
    }
}

TEST(ShortConv, TokenByTokenInPlaceEqualsOnePass) {
    const Call whole = make_call(3, 12, 66, 4, DType::kFloat32, Activation::kSilu, true, 22);
    short_conv(whole.arguments);
    const Tensor state = Tensor::copy_of(*whole.arguments.initial, DType::kFloat32);
    const Tensor xy = Tensor::copy_of(whole.arguments.x, DType::kFloat32);
    for (std::int64_t t = 0; t < 12; ++t) {
        ShortConvArguments step = whole.arguments;
        step.x = xy.view().sliced(1, t, t + 1);
        step.y = step.x;
        step.initial = state;
        step.final = state;
        short_conv(step);
    }
    EXPECT_EQ(std::memcmp(xy.view().data, whole.arguments.y.data, xy.size_bytes()), 0);
    EXPECT_EQ(std::memcmp(state.view().data, whole.arguments.final->data, state.size_bytes()), 0);
}

TEST(ShortConv, InPlaceMatchesTheDefinition) {
    for (const std::int64_t W : {2, 3, 4}) {
        std::vector<Sequence> sequences;
        Call p = packed_call({3, 0, 21, 1, 2}, 270, W, DType::kFloat32, sequences);
        p.arguments.y = p.arguments.x;
        p.arguments.final = p.arguments.initial;
        expect_matches_reference(p.arguments, sequences);
    }
}

TEST(ShortConv, SlotsReadWriteAndDiscard) {
    std::vector<Sequence> sequences;
    Call p = packed_call({4, 0, 2, 9, 1}, 20, 4, DType::kFloat32, sequences);
    std::mt19937_64 random(31);
    p.arguments.initial = p.keep(random_tensor(DType::kFloat32, {4, 20, 3}, random));
    p.arguments.final = p.keep(random_tensor(DType::kFloat32, {7, 20, 3}, random));
    p.arguments.read_slots = p.keep(i32({2, -1, 2, 0, 3}));
    p.arguments.write_slots = p.keep(i64({6, 0, -1, 2, -1}));
    const std::int64_t read[] = {2, -1, 2, 0, 3};
    const std::int64_t write[] = {6, 0, -1, 2, -1};
    for (std::size_t n = 0; n < sequences.size(); ++n) {
        sequences[n].read_slot = read[n];
        sequences[n].write_slot = write[n];
    }
    const Tensor before = Tensor::copy_of(*p.arguments.final, DType::kFloat32);
    expect_matches_reference(p.arguments, sequences);
    for (const std::int64_t untouched : {1, 3, 4, 5}) {
        const std::size_t row = 20 * 3;
        EXPECT_EQ(
            std::memcmp(static_cast<float*>(p.arguments.final->data) + untouched * 60,
                        before.elements<float>().data() + untouched * 60, row * sizeof(float)),
            0)
            << "slot " << untouched;
    }
}

TEST(ShortConv, OnePoolUpdatedInPlace) {
    std::vector<Sequence> sequences;
    Call p = packed_call({4, 5, 0}, 20, 3, DType::kFloat32, sequences);
    std::mt19937_64 random(32);
    p.arguments.initial = p.keep(random_tensor(DType::kFloat32, {6, 20, 2}, random));
    p.arguments.final = p.arguments.initial;
    p.arguments.read_slots = p.keep(i32({5, 1, 3}));
    p.arguments.write_slots = p.keep(i32({5, 0, 3}));
    const std::int64_t read[] = {5, 1, 3};
    const std::int64_t write[] = {5, 0, 3};
    for (std::size_t n = 0; n < 3; ++n) {
        sequences[n].read_slot = read[n];
        sequences[n].write_slot = write[n];
    }
    expect_matches_reference(p.arguments, sequences);
}

TEST(ShortConv, HasInitialMasksTheState) {
    std::vector<Sequence> sequences;
    Call p = packed_call({4, 5, 0, 2}, 9, 4, DType::kFloat32, sequences);
    p.arguments.has_initial = p.keep(mask({1, 0, 0, 1}));
    sequences[1].read_slot = -1;
    sequences[2].read_slot = -1;
    expect_matches_reference(p.arguments, sequences);
}

// ------------------------------------------------------------------------------------------------

/// The same tensor in other memory: dimensions stored in the order `order`, every second element.
TensorView scattered(Call& p, const TensorView& view, const std::array<int, 3>& order) {
    const Shape extents = {view.extents[order[0]], view.extents[order[1]], view.extents[order[2]],
                           2};
    const Tensor memory = Tensor::zeros(view.dtype, extents);
    Shape strides(3);
    for (int i = 0; i < 3; ++i) strides[order[i]] = memory.view().stride_elements[i];
    const TensorView result(p.keep(memory).data, view.dtype, view.shape(), strides);
    for (std::int64_t i = 0; i < view.extents[0]; ++i) {
        for (std::int64_t j = 0; j < view.extents[1]; ++j) {
            for (std::int64_t k = 0; k < view.extents[2]; ++k) {
                store_element(result.data, result.dtype,
                              i * strides[0] + j * strides[1] + k * strides[2], at(view, i, j, k));
            }
        }
    }
    return result;
}

TEST(ShortConv, AnyStrides) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
        Call p = make_call(2, 11, 75, 4, dtype, Activation::kSilu, true, 41);
        p.arguments.x = scattered(p, p.arguments.x, {2, 0, 1});
        p.arguments.y = scattered(p, p.arguments.y, {1, 2, 0});
        p.arguments.initial = scattered(p, *p.arguments.initial, {2, 1, 0});
        p.arguments.final = scattered(p, *p.arguments.final, {1, 0, 2});
        expect_matches_reference(p.arguments, dense_sequences(2, 11, true));
    }
}

TEST(ShortConv, SlicesOfOneBufferAndReversedInputs) {
    // x and y side by side in one projection buffer; weights stored [W, D]; tokens backwards.
    Call p = make_call(1, 14, 16, 3, DType::kFloat32, Activation::kNone, true, 42);
    std::mt19937_64 random(43);
    const TensorView buffer = p.keep(random_tensor(DType::kFloat32, {1, 14, 48}, random));
    const TensorView x = buffer.sliced(2, 0, 16);
    p.arguments.y = buffer.sliced(2, 16, 32);
    const Shape strides = {14 * 48, -48, 1};
    p.arguments.x = TensorView(static_cast<float*>(x.data) + 13 * 48, x.dtype, x.shape(), strides);
    p.arguments.weight = p.keep(random_tensor(DType::kFloat32, {3, 16}, random)).transposed(0, 1);
    const Shape zero = {0};
    p.arguments.bias =
        TensorView(p.arguments.bias->data, DType::kFloat32, p.arguments.bias->shape(), zero);
    expect_matches_reference(p.arguments, dense_sequences(1, 14, true));
}

TEST(ShortConv, ThreadsNeverChangeTheBits) {
    const Call p = make_call(3, 50, 600, 4, DType::kBFloat16, Activation::kSilu, true, 51);
    short_conv(p.arguments, with_threads(1));
    const Tensor y = Tensor::copy_of(p.arguments.y, DType::kBFloat16);
    const Tensor state = Tensor::copy_of(*p.arguments.final, DType::kBFloat16);
    for (const int threads : {0, 2, 3, 7}) {
        short_conv(p.arguments, with_threads(threads));
        EXPECT_EQ(std::memcmp(y.view().data, p.arguments.y.data, y.size_bytes()), 0) << threads;
        EXPECT_EQ(std::memcmp(state.view().data, p.arguments.final->data, state.size_bytes()), 0);
    }
}

TEST(ShortConv, ASequenceDoesNotDependOnItsNeighbours) {
    std::vector<Sequence> sequences;
    const Call p = packed_call({5, 13, 0, 8}, 300, 4, DType::kFloat32, sequences);
    short_conv(p.arguments);
    ShortConvArguments alone = p.arguments;
    const Tensor y = Tensor::empty(DType::kFloat32, {1, 13, 300});
    alone.cu_seqlens.reset();
    alone.x = p.arguments.x.sliced(1, 5, 18);
    alone.y = y;
    alone.initial = p.arguments.initial->sliced(0, 1, 2);
    alone.final.reset();
    short_conv(alone);
    EXPECT_EQ(std::memcmp(y.view().data, static_cast<float*>(p.arguments.y.data) + 5 * 300,
                          y.size_bytes()),
              0);
}

// ------------------------------------------------------------------------------------------------

struct Refusal {
    const char* what;
    std::function<void(Call&)> spoil;
    ErrorCode code;
    const char* argument;
    const char* message;  // part of what()
    Options options{};
};

TensorView fresh(Call& p, DType dtype, const Shape& shape) {
    return p.keep(Tensor::zeros(dtype, shape));
}

/// On a packed problem: N = 3, T = 6, D = 8, W = 4, float32.
std::vector<Refusal> refusals() {
    const auto f32 = DType::kFloat32;
    return {
        {"x rank",
         [=](Call& p) {
             p.arguments.x = fresh(p, f32, {6, 8});
         },
         ErrorCode::kShape, "x", "accepted: [B, T, D] with D >= 1"},
        {"no channels",
         [=](Call& p) {
             p.arguments.x = fresh(p, f32, {1, 6, 0});
         },
         ErrorCode::kShape, "x", "got float32 [1, 6, 0]"},
        {"x dtype",
         [](Call& p) {
             p.arguments.x = fresh(p, DType::kInt32, {1, 6, 8});
         },
         ErrorCode::kDType, "x", "got int32; accepted: float32, bfloat16"},
        {"x device",
         [](Call& p) {
             p.arguments.x.device = {DeviceKind::kCuda, 0};
         },
         ErrorCode::kDevice, "x", "got cuda:0; accepted: cpu"},
        {"W 1",
         [=](Call& p) {
             p.arguments.weight = fresh(p, f32, {8, 1});
         },
         ErrorCode::kShape, "weight", "W from 2 to 4"},
        {"W 5",
         [=](Call& p) {
             p.arguments.weight = fresh(p, f32, {8, 5});
         },
         ErrorCode::kShape, "weight", "W from 2 to 4"},
        {"weight rank",
         [=](Call& p) {
             p.arguments.weight = fresh(p, f32, {8, 1, 4});
         },
         ErrorCode::kShape, "weight", "[D, W] = [8, W]"},
        {"weight D",
         [=](Call& p) {
             p.arguments.weight = fresh(p, f32, {7, 4});
         },
         ErrorCode::kShape, "weight", "[D, W] = [8, 4]"},
        {"weight dtype",
         [](Call& p) {
             p.arguments.weight = fresh(p, DType::kBool, {8, 4});
         },
         ErrorCode::kDType, "weight", "got bool"},
        {"y shape",
         [=](Call& p) {
             p.arguments.y = fresh(p, f32, {1, 7, 8});
         },
         ErrorCode::kShape, "y", "[B, T, D] = [1, 6, 8]"},
        {"y dtype",
         [](Call& p) {
             p.arguments.y = fresh(p, DType::kInt64, {1, 6, 8});
         },
         ErrorCode::kDType, "y", "got int64"},
        {"bias shape", [=](Call& p) { p.arguments.bias = fresh(p, f32, {4}); }, ErrorCode::kShape,
         "bias", "[D] = [8]"},
        {"initial shape",
         [=](Call& p) {
             p.arguments.initial = fresh(p, f32, {3, 8, 4});
         },
         ErrorCode::kShape, "initial", "[N, D, W - 1] = [3, 8, 3]"},
        {"initial rows",
         [=](Call& p) {
             p.arguments.initial = fresh(p, f32, {2, 8, 3});
         },
         ErrorCode::kShape, "initial", "[N, D, W - 1] = [3, 8, 3]"},
        {"initial dtype",
         [](Call& p) {
             p.arguments.initial = fresh(p, DType::kInt32, {3, 8, 3});
         },
         ErrorCode::kDType, "initial", "got int32"},
        {"final shape",
         [=](Call& p) {
             p.arguments.final = fresh(p, f32, {3, 3, 8});
         },
         ErrorCode::kShape, "final", "[N, D, W - 1] = [3, 8, 3]"},
        {"pool shape",
         [=](Call& p) {
             p.arguments.final = fresh(p, f32, {5, 8});
             p.arguments.write_slots = p.keep(i32({0, 1, 2}));
         },
         ErrorCode::kShape, "final", "[slots, D, W - 1] = [5, 8, 3]"},

        {"offsets dtype", [=](Call& p) { p.arguments.cu_seqlens = fresh(p, f32, {4}); },
         ErrorCode::kDType, "cu_seqlens", "accepted: int32 or int64"},
        {"offsets rank",
         [](Call& p) {
             p.arguments.cu_seqlens = fresh(p, DType::kInt32, {1, 4});
         },
         ErrorCode::kShape, "cu_seqlens", "[N + 1]"},
        {"no offsets", [](Call& p) { p.arguments.cu_seqlens = fresh(p, DType::kInt32, {0}); },
         ErrorCode::kShape, "cu_seqlens", "[N + 1]"},
        {"offsets device",
         [](Call& p) {
             p.arguments.cu_seqlens->device = {DeviceKind::kCuda, 1};
         },
         ErrorCode::kDevice, "cu_seqlens", "got cuda:1"},
        {"offsets from 1",
         [](Call& p) {
             p.arguments.cu_seqlens = p.keep(i32({1, 2, 3, 6}));
         },
         ErrorCode::kValue, "cu_seqlens", "offsets from 0 to T = 6"},
        {"offsets to 5",
         [](Call& p) {
             p.arguments.cu_seqlens = p.keep(i32({0, 2, 3, 5}));
         },
         ErrorCode::kValue, "cu_seqlens", "got offsets from 0 to 5"},
        {"offsets unsorted",
         [](Call& p) {
             p.arguments.cu_seqlens = p.keep(i32({0, 4, 3, 6}));
         },
         ErrorCode::kValue, "cu_seqlens", "got 4 then 3 at [1]; accepted: non-decreasing"},
        {"offsets past T",
         [](Call& p) {
             p.arguments.cu_seqlens = p.keep(i32({0, 9, 9, 6}));
         },
         ErrorCode::kValue, "cu_seqlens", "got 9 then 6 at [2]"},
        {"negative offsets",
         [](Call& p) {
             p.arguments.cu_seqlens = p.keep(i32({0, -1, 3, 6}));
         },
         ErrorCode::kValue, "cu_seqlens", "got 0 then -1 at [0]"},
        {"packed with B = 2",
         [=](Call& p) {
             p.arguments.x = fresh(p, f32, {2, 6, 8});
             p.arguments.y = fresh(p, f32, {2, 6, 8});
         },
         ErrorCode::kShape, "cu_seqlens", "B = 1"},

        {"slots without a state",
         [](Call& p) {
             p.arguments.initial.reset();
             p.arguments.read_slots = p.keep(i32({0, 1, 2}));
         },
         ErrorCode::kMissing, "initial", "initial with read_slots"},
        {"write slots without a state",
         [](Call& p) {
             p.arguments.final.reset();
             p.arguments.write_slots = p.keep(i32({0, 1, 2}));
         },
         ErrorCode::kMissing, "final", "final with write_slots"},
        {"mask without a state",
         [](Call& p) {
             p.arguments.initial.reset();
             p.arguments.has_initial = p.keep(mask({1, 1, 1}));
         },
         ErrorCode::kMissing, "initial", "initial with has_initial"},
        {"slot too large",
         [](Call& p) {
             p.arguments.read_slots = p.keep(i32({0, 3, 2}));
         },
         ErrorCode::kValue, "read_slots",
         "got 3 at [1]; accepted: -1 (none) or a slot from 0 to 2"},
        {"slot below -1",
         [](Call& p) {
             p.arguments.write_slots = p.keep(i32({0, 1, -2}));
         },
         ErrorCode::kValue, "write_slots", "got -2 at [2]"},
        {"slots shape",
         [](Call& p) {
             p.arguments.write_slots = p.keep(i32({0, 1}));
         },
         ErrorCode::kShape, "write_slots", "[N] = [3]"},
        {"slots dtype", [=](Call& p) { p.arguments.read_slots = fresh(p, f32, {3}); },
         ErrorCode::kDType, "read_slots", "int32 or int64"},
        {"slot written twice",
         [](Call& p) {
             p.arguments.write_slots = p.keep(i32({1, 0, 1}));
         },
         ErrorCode::kValue, "write_slots", "slot 1 for sequences 0 and 2"},
        {"slot read by another",
         [](Call& p) {
             p.arguments.final = p.arguments.initial;
             p.arguments.read_slots = p.keep(i32({0, 2, -1}));
         },
         ErrorCode::kAlias, "read_slots", "slot 2 read by sequence 1 and written by sequence 2"},
        {"mask dtype",
         [](Call& p) {
             p.arguments.has_initial = p.keep(i32({1, 1, 1}));
         },
         ErrorCode::kDType, "has_initial", "accepted: bool"},
        {"mask shape",
         [](Call& p) {
             p.arguments.has_initial = p.keep(mask({1, 1}));
         },
         ErrorCode::kShape, "has_initial", "[N] = [3]"},

        {"y expanded",
         [](Call& p) {
             const Shape strides = {48, 0, 1};
             p.arguments.y =
                 TensorView(p.arguments.y.data, DType::kFloat32, p.arguments.y.shape(), strides);
         },
         ErrorCode::kStride, "y", "do not overlap"},
        {"y one token ahead of x",
         [=](Call& p) {
             const TensorView buffer = fresh(p, f32, {1, 7, 8});
             p.arguments.x = buffer.sliced(1, 0, 6);
             p.arguments.y = buffer.sliced(1, 1, 7);
         },
         ErrorCode::kAlias, "y", "exactly the memory of x"},
        {"y in x's memory with other strides",
         [](Call& p) {
             const Shape strides = {48, 1, 6};
             p.arguments.y =
                 TensorView(p.arguments.x.data, DType::kFloat32, p.arguments.x.shape(), strides);
         },
         ErrorCode::kAlias, "y", "exactly the memory of x"},
        {"y over weight", [](Call& p) { p.arguments.weight.data = p.arguments.y.data; },
         ErrorCode::kAlias, "y", "overlaps weight"},
        {"y over initial", [](Call& p) { p.arguments.initial->data = p.arguments.y.data; },
         ErrorCode::kAlias, "y", "overlaps initial"},
        {"final over bias", [](Call& p) { p.arguments.bias->data = p.arguments.final->data; },
         ErrorCode::kAlias, "final", "overlaps bias"},
        {"final over x", [](Call& p) { p.arguments.final->data = p.arguments.x.data; },
         ErrorCode::kAlias, "final", "overlaps x"},
        {"final over y", [](Call& p) { p.arguments.final->data = p.arguments.y.data; },
         ErrorCode::kAlias, "final", "overlaps y"},
        {"final shifted in initial",
         [=](Call& p) {
             const TensorView pool = fresh(p, f32, {4, 8, 3});
             p.arguments.initial = pool.sliced(0, 0, 3);
             p.arguments.final = pool.sliced(0, 1, 4);
         },
         ErrorCode::kAlias, "final", "exactly the memory of initial"},
        {"threads", [](Call&) {}, ErrorCode::kValue, "threads", "0 to 4096", with_threads(-1)},
        {"many threads", [](Call&) {}, ErrorCode::kValue, "threads", "0 to 4096",
         with_threads(4097)},
    };
}

TEST(ShortConv, RefusesEveryBadInputBeforeWriting) {
    for (const Refusal& refusal : refusals()) {
        SCOPED_TRACE(refusal.what);
        std::vector<Sequence> sequences;
        Call p = packed_call({3, 1, 2}, 8, 4, DType::kFloat32, sequences);
        refusal.spoil(p);
        std::vector<std::string> before;
        for (const Tensor& tensor : p.memory) {
            const auto* bytes = static_cast<const char*>(tensor.view().data);
            before.emplace_back(bytes, bytes + tensor.size_bytes());
        }
        try {
            short_conv(p.arguments, refusal.options);
            ADD_FAILURE() << "was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(to_string(error.code()), std::string(to_string(refusal.code)));
            EXPECT_EQ(error.argument(), refusal.argument);
            EXPECT_PRED_FORMAT2(testing::IsSubstring, refusal.message, error.what());
        }
        for (std::size_t i = 0; i < p.memory.size(); ++i) {
            EXPECT_EQ(std::memcmp(before[i].data(), p.memory[i].view().data, before[i].size()), 0);
        }
    }
}

}  // namespace
}  // namespace sluice
