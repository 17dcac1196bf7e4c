// Views, owning tensors, and the names of dtypes.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/convert.hpp"
#include "sluice/tensor.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

using test::refusal;

constexpr DType kAll[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                          DType::kInt64,   DType::kInt32,   DType::kBool};

TEST(DType, NamesRoundTrip) {
    for (const DType dtype : kAll) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
}

TEST(DType, ShortNames) {
    for (const char* name : {"f64", "fp64", "double"})
        EXPECT_EQ(parse_dtype(name), DType::kFloat64);
    for (const char* name : {"f32", "fp32", "float"}) EXPECT_EQ(parse_dtype(name), DType::kFloat32);
    for (const char* name : {"f16", "fp16", "half"}) EXPECT_EQ(parse_dtype(name), DType::kFloat16);
    EXPECT_EQ(parse_dtype("bf16"), DType::kBFloat16);
    EXPECT_EQ(parse_dtype("i64"), DType::kInt64);
    EXPECT_EQ(parse_dtype("i32"), DType::kInt32);
}

TEST(DType, UnknownNameIsRefused) {
    EXPECT_EQ(refusal([] { (void)parse_dtype("float8"); }),
              "dtype | dtype | 'float8' | float64, float32, bfloat16, float16, int64, int32, bool");
}

TEST(DType, Sizes) {
    constexpr std::size_t kSizes[] = {8, 4, 2, 2, 8, 4, 1};
    for (std::size_t i = 0; i < std::size(kAll); ++i) EXPECT_EQ(size_bytes(kAll[i]), kSizes[i]);
    EXPECT_TRUE(is_floating(DType::kFloat16));
    EXPECT_FALSE(is_floating(DType::kInt32));
    EXPECT_FALSE(is_floating(DType::kBool));
}

TEST(Device, Names) {
    EXPECT_EQ(to_string(Device{}), "cpu");
    EXPECT_EQ(to_string(Device{DeviceKind::kCuda, 3}), "cuda:3");
}

TEST(TensorView, RowMajorStrides) {
    const TensorView view(nullptr, DType::kFloat32, {2, 3, 4});
    EXPECT_EQ(to_string(view.shape()), "[2, 3, 4]");
    EXPECT_EQ(to_string(view.strides()), "[12, 4, 1]");
    EXPECT_EQ(view.size(), 24);
    EXPECT_TRUE(view.is_contiguous());
}

TEST(TensorView, EmptyExtentKeepsStridesOfTheRest) {
    const TensorView view(nullptr, DType::kFloat32, {2, 0, 4});
    EXPECT_EQ(view.size(), 0);
    EXPECT_EQ(to_string(view.strides()), "[4, 4, 1]");
    EXPECT_TRUE(view.transposed(0, 2).is_contiguous()) << "there is nothing to be apart";
}

TEST(TensorView, ScalarHasOneElement) {
    const TensorView view(nullptr, DType::kFloat32, std::span<const std::int64_t>{});
    EXPECT_EQ(view.size(), 1);
    EXPECT_TRUE(view.is_contiguous());
}

TEST(TensorView, TransposedAndSliced) {
    float data[24];
    const TensorView view(data, DType::kFloat32, {2, 3, 4});
    const TensorView t = view.transposed(0, 2);
    EXPECT_EQ(to_string(t.shape()), "[4, 3, 2]");
    EXPECT_EQ(to_string(t.strides()), "[1, 4, 12]");
    EXPECT_FALSE(t.is_contiguous());
    const TensorView s = view.sliced(1, 1, 3);
    EXPECT_EQ(to_string(s.shape()), "[2, 2, 4]");
    EXPECT_EQ(s.data, data + 4);
    EXPECT_FALSE(s.is_contiguous());
    EXPECT_TRUE(view.sliced(0, 1, 2).is_contiguous());
    EXPECT_EQ(view.sliced(1, 3, 3).size(), 0);
}

TEST(TensorView, Refusals) {
    const TensorView view(nullptr, DType::kFloat32, {2, 3});
    EXPECT_EQ(refusal([] {
                  TensorView(nullptr, DType::kFloat32, {1, 1, 1, 1, 1, 1, 1});
              }),
              "shape | shape | [1, 1, 1, 1, 1, 1, 1] | at most 6 dimensions");
    EXPECT_EQ(refusal([] {
                  TensorView(nullptr, DType::kFloat32, {2, -1});
              }),
              "shape | shape | [2, -1] | extents >= 0");
    EXPECT_EQ(refusal([] {
                  const std::int64_t shape[] = {2, 3};
                  const std::int64_t strides[] = {3};
                  TensorView(nullptr, DType::kFloat32, shape, strides);
              }),
              "stride | strides | [3] | one per dimension of [2, 3]");
    EXPECT_EQ(refusal([&] { (void)view.transposed(0, 2); }),
              "shape | dim | 0, 2 | 0 to rank - 1 of [2, 3]");
    for (const auto& [begin, end] : {std::pair{0, 4}, {2, 1}, {-1, 2}}) {
        EXPECT_EQ(refusal([&, b = begin, e = end] { (void)view.sliced(1, b, e); }),
                  "shape | slice | [" + std::to_string(begin) + ", " + std::to_string(end) +
                      ") of dim 1 | a range inside [2, 3]");
    }
}

TEST(Tensor, OwnsAlignedMemoryThatCopiesShare) {
    const Tensor a = Tensor::zeros(DType::kFloat32, {3, 5});
    EXPECT_TRUE(a.defined());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.view().data) % 64, 0U);
    EXPECT_EQ(a.size_bytes(), 60U);
    const Tensor b = a;  // NOLINT: the copy is the point
    b.elements<float>()[7] = 4;
    EXPECT_EQ(a.elements<float>()[7], 4);
    EXPECT_FALSE(Tensor().defined());
}

TEST(Tensor, EmptyHasAnAddressOfItsOwn) {
    const Tensor a = Tensor::empty(DType::kFloat32, {0, 4});
    const Tensor b = Tensor::empty(DType::kFloat32, {0, 4});
    EXPECT_NE(a.view().data, nullptr);
    EXPECT_NE(a.view().data, b.view().data);
}

TEST(Tensor, ElementsOfAnotherSizeAreRefused) {
    const Tensor a = Tensor::zeros(DType::kBFloat16, {2});
    EXPECT_EQ(refusal([&] { (void)a.elements<float>(); }),
              "dtype | elements | 4-byte type | the size of bfloat16");
    EXPECT_EQ(a.elements<std::uint16_t>().size(), 2U);
}

TEST(Tensor, CopyOfFollowsStridesAndConverts) {
    const Tensor source = Tensor::empty(DType::kFloat32, {2, 3, 4});
    const auto elements = source.elements<float>();
    std::iota(elements.begin(), elements.end(), 0.0F);
    const TensorView view = source.view().transposed(0, 2).sliced(1, 1, 3);  // [4, 2, 2]
    const Tensor copy = Tensor::copy_of(view, DType::kFloat64);
    EXPECT_EQ(to_string(copy.shape()), "[4, 2, 2]");
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 2; ++j) {
            for (int k = 0; k < 2; ++k) {
                EXPECT_EQ(copy.elements<double>()[4 * i + 2 * j + k], 12 * k + 4 * (j + 1) + i);
            }
        }
    }
}

TEST(Tensor, CopyOfExpandedAndReversedViews) {
    float data[3] = {1, 2, 3};
    const std::int64_t shape[] = {2, 3};
    const std::int64_t strides[] = {0, -1};
    const Tensor copy =
        Tensor::copy_of(TensorView(data + 2, DType::kFloat32, shape, strides), DType::kFloat32);
    const std::vector<float> expected = {3, 2, 1, 3, 2, 1};
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), copy.elements<float>().begin()));
}

TEST(Tensor, CopyOfIntegersKeepsTheirType) {
    std::int32_t data[2] = {-7, 1 << 30};
    const TensorView view(data, DType::kInt32, {2});
    EXPECT_EQ(Tensor::copy_of(view, DType::kInt32).elements<std::int32_t>()[0], -7);
    EXPECT_EQ(refusal([&] { (void)Tensor::copy_of(view, DType::kInt64); }),
              "dtype | dtype | int64 | a floating type, or int32 as in the source");
    EXPECT_EQ(refusal([&] { (void)Tensor::copy_of(view, DType::kFloat32); }),
              "dtype | dtype | float32 | a floating type, or int32 as in the source");
}

TEST(Tensor, CopyOfDeviceMemoryIsRefused) {
    const TensorView view(nullptr, DType::kFloat32, {2}, Device{DeviceKind::kCuda, 1});
    EXPECT_EQ(refusal([&] { (void)Tensor::copy_of(view, DType::kFloat32); }),
              "device | source | cuda:1 | cpu");
}

}  // namespace
}  // namespace sluice
