// Conversion between memory dtypes and arithmetic: exact on the way in, rounded once on the way
// out.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "core/convert.hpp"
#include "support/random.hpp"

namespace sluice {
namespace {

constexpr DType kFloating[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};

double round_trip(DType dtype, double value) {
    alignas(8) std::byte memory[8];
    store_element(memory, dtype, 0, value);
    return load_element(memory, dtype, 0);
}

/// The nearest value of a binary format with `digits` significant bits, ties to even, by exact
/// double arithmetic. `least` is the exponent of the smallest subnormal.
double nearest(double value, int digits, int least) {
    if (value == 0 || !std::isfinite(value)) return value;
    const int exponent = std::max(std::ilogb(value) - (digits - 1), least);
    return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

TEST(Convert, EveryBFloat16AndFloat16SurvivesARoundTrip) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
            // As large as the widest type that the inlined switch looks at.
            alignas(8) std::array<std::uint16_t, 4> memory = {static_cast<std::uint16_t>(bits)};
            const double value = load_element(memory.data(), dtype, 0);
            alignas(8) std::array<std::uint16_t, 4> back = {};
            store_element(back.data(), dtype, 0, value);
            if (std::isnan(value)) {
                EXPECT_TRUE(std::isnan(load_element(back.data(), dtype, 0)));
            } else {
                ASSERT_EQ(back[0], memory[0]) << to_string(dtype);
            }
        }
    }
}

TEST(Convert, RoundsToNearestEvenFromDouble) {
    test::Random random(1);
    for (int i = 0; i < 200'000; ++i) {
        const double value = std::ldexp(random.normal(), static_cast<int>(random.below(40)) - 30);
        ASSERT_EQ(round_trip(DType::kBFloat16, value), nearest(value, 8, -133)) << value;
        ASSERT_EQ(round_trip(DType::kFloat16, value), nearest(value, 11, -24)) << value;
    }
}

// Half way between two bfloat16 numbers in float32, but not in float64: rounding by way of float32
// would see a tie.
TEST(Convert, DoesNotRoundTwice) {
    const double half_way = 1.0 + 0x1p-8;
    EXPECT_EQ(round_trip(DType::kBFloat16, half_way), 1.0);
    EXPECT_EQ(round_trip(DType::kBFloat16, half_way + 0x1p-40), 1.0 + 0x1p-7);
    EXPECT_EQ(round_trip(DType::kBFloat16, -half_way - 0x1p-40), -1.0 - 0x1p-7);
    const double odd = 1.0 + 3 * 0x1p-8;
    EXPECT_EQ(round_trip(DType::kBFloat16, odd), 1.0 + 0x1p-6);
    EXPECT_EQ(round_trip(DType::kBFloat16, odd - 0x1p-40), 1.0 + 0x1p-7);
    EXPECT_EQ(round_trip(DType::kFloat16, 1.0 + 0x1p-11), 1.0);
    EXPECT_EQ(round_trip(DType::kFloat16, 1.0 + 0x1p-11 + 0x1p-45), 1.0 + 0x1p-10);
}

TEST(Convert, Extremes) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const DType dtype : kFloating) {
        EXPECT_EQ(round_trip(dtype, kInfinity), kInfinity);
        EXPECT_EQ(round_trip(dtype, -kInfinity), -kInfinity);
        EXPECT_TRUE(std::isnan(round_trip(dtype, std::nan(""))));
        EXPECT_TRUE(std::signbit(round_trip(dtype, -0.0)));
    }
    EXPECT_EQ(round_trip(DType::kFloat16, 65504), 65504);
    EXPECT_EQ(round_trip(DType::kFloat16, 65519), 65504);
    EXPECT_EQ(round_trip(DType::kFloat16, 65520), kInfinity);
    EXPECT_EQ(round_trip(DType::kFloat16, 0x1p-24), 0x1p-24);
    EXPECT_EQ(round_trip(DType::kFloat16, 0x1p-26), 0);
    EXPECT_EQ(round_trip(DType::kBFloat16, 1e39), kInfinity);
    EXPECT_EQ(round_trip(DType::kFloat32, 1e39), kInfinity);
}

TEST(Convert, RowsFollowTheirStride) {
    for (const DType dtype : kFloating) {
        const Tensor memory = Tensor::zeros(dtype, {16});
        const float in[4] = {1, -2, 3, -4};
        store_row(memory.view().data, dtype, 1, 3, 4, in);
        float out[4] = {};
        load_row(memory.view().data, dtype, 1, 3, 4, out);
        for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], in[i]);
        EXPECT_EQ(load_element(memory.view().data, dtype, 4), -2);
        EXPECT_EQ(load_element(memory.view().data, dtype, 3), 0);
        double dense[2] = {};
        load_row(memory.view().data, dtype, 4, 1, 2, dense);
        EXPECT_EQ(dense[0], -2);
        EXPECT_EQ(dense[1], 0);
    }
}

TEST(Convert, Indices) {
    std::int32_t narrow[2] = {5, -1};
    std::int64_t wide[2] = {5, std::int64_t{1} << 40};
    unsigned char flags[2] = {0, 1};
    EXPECT_EQ(load_index(TensorView(narrow, DType::kInt32, {2}), 1), -1);
    EXPECT_EQ(load_index(TensorView(wide, DType::kInt64, {2}), 1), std::int64_t{1} << 40);
    EXPECT_EQ(load_index(TensorView(flags, DType::kBool, {2}), 0), 0);
    EXPECT_EQ(load_index(TensorView(flags, DType::kBool, {2}), 1), 1);
}

}  // namespace
}  // namespace sluice
