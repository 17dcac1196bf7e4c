// Alias checks against brute force: sound always, exact on the layouts that callers use.
#include <gtest/gtest.h>

#include <set>

#include "spec/memory.hpp"
#include "support/guarded.hpp"
#include "support/random.hpp"

namespace sluice {
namespace {

std::set<std::int64_t> bytes_of(const TensorView& view) {
    std::set<std::int64_t> bytes;
    const auto base = reinterpret_cast<std::int64_t>(view.data);
    const auto size = static_cast<std::int64_t>(size_bytes(view.dtype));
    test::for_each_offset(view, [&](std::int64_t offset) {
        for (std::int64_t b = 0; b < size; ++b) bytes.insert(base + offset * size + b);
    });
    return bytes;
}

bool share_a_byte(const TensorView& a, const TensorView& b) {
    const std::set<std::int64_t> x = bytes_of(a);
    for (const std::int64_t byte : bytes_of(b)) {
        if (x.contains(byte)) return true;
    }
    return false;
}

bool addresses_twice(const TensorView& view) {
    return static_cast<std::int64_t>(bytes_of(view).size()) !=
           view.size() * static_cast<std::int64_t>(size_bytes(view.dtype));
}

std::string print(const TensorView& view) {
    return to_string(view.dtype) + to_string(view.shape()) + " strides " +
           to_string(view.strides()) + " at " +
           std::to_string(reinterpret_cast<std::int64_t>(view.data));
}

/// A view somewhere in the middle of a buffer of 4 KiB, with any small strides.
TensorView random_view(test::Random& random) {
    static char memory[4096];
    const int rank = static_cast<int>(random.below(4));
    std::vector<std::int64_t> shape, strides;
    for (int d = 0; d < rank; ++d) {
        shape.push_back(random.below(5));
        strides.push_back(random.below(25) - 8);
    }
    const DType dtype = random.chance(0.5) ? DType::kFloat32 : DType::kBFloat16;
    const auto size = static_cast<std::int64_t>(size_bytes(dtype));
    return {memory + 2048 + size * random.below(40), dtype, shape, strides};
}

TEST(Memory, MayOverlapIsNeverFalseWhenAByteIsShared) {
    test::Random random(11);
    int shared = 0, apart = 0, proved_apart = 0;
    for (int i = 0; i < 20'000; ++i) {
        const TensorView a = random_view(random);
        const TensorView b = random_view(random);
        const bool truth = share_a_byte(a, b);
        const bool answer = may_overlap(a, b);
        ASSERT_EQ(answer, may_overlap(b, a)) << print(a) << "\n" << print(b);
        if (truth) {
            ASSERT_TRUE(answer) << print(a) << "\n" << print(b);
        }
        ++(truth ? shared : apart);
        proved_apart += answer ? 0 : 1;
    }
    // Both kinds must have been drawn often, and most of the disjoint pairs be recognised.
    EXPECT_GT(shared, 1500);
    EXPECT_GT(apart, 1500);
    EXPECT_GT(proved_apart, apart / 2);
}

TEST(Memory, OverlapsItselfIsNeverFalseWhenAByteIsSharedTwice) {
    test::Random random(12);
    int twice = 0;
    for (int i = 0; i < 20'000; ++i) {
        const TensorView view = random_view(random);
        if (!addresses_twice(view)) continue;
        ++twice;
        ASSERT_TRUE(overlaps_itself(view)) << print(view);
    }
    EXPECT_GT(twice, 1000);
}

TEST(Memory, EveryStrideKindOfTheTestsIsRecognised) {
    for (int kind = 0; kind < test::kNumStrides; ++kind) {
        const auto strides = static_cast<test::Strides>(kind);
        const test::Values values = test::normal_values({2, 5, 3, 4}, 1, 1);
        const test::Guarded tensor =
            test::Guarded::input(values, DType::kFloat32, strides, test::Poison::kNaN);
        EXPECT_EQ(overlaps_itself(tensor.view()), strides == test::Strides::kExpanded)
            << test::to_string(strides);
    }
}

/// q, k, v, o interleaved in one buffer [B, T, H, 4 * D], or [B, T, 4, H, D].
TEST(Memory, SlicesOfOnePackedBufferDoNotOverlap) {
    const Tensor channels = Tensor::zeros(DType::kBFloat16, {2, 7, 3, 4 * 8});
    const Tensor heads = Tensor::zeros(DType::kFloat32, {2, 7, 4 * 3, 8});
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
            const TensorView a = channels.view().sliced(3, 8 * i, 8 * i + 8);
            const TensorView b = channels.view().sliced(3, 8 * j, 8 * j + 8);
            EXPECT_EQ(may_overlap(a, b), i == j);
            EXPECT_EQ(may_overlap(a.transposed(1, 2), b), i == j);
            const TensorView c = heads.view().sliced(2, 3 * i, 3 * i + 3);
            const TensorView d = heads.view().sliced(2, 3 * j, 3 * j + 3);
            EXPECT_EQ(may_overlap(c, d), i == j);
        }
    }
    EXPECT_TRUE(may_overlap(channels.view().sliced(3, 0, 9), channels.view().sliced(3, 8, 16)));
}

TEST(Memory, TokensAndBatchRowsOfOneBuffer) {
    const Tensor buffer = Tensor::zeros(DType::kFloat32, {4, 10, 3, 8});
    const TensorView& all = buffer.view();
    EXPECT_FALSE(may_overlap(all.sliced(1, 0, 5), all.sliced(1, 5, 10)));
    EXPECT_TRUE(may_overlap(all.sliced(1, 0, 6), all.sliced(1, 5, 10)));
    EXPECT_FALSE(may_overlap(all.sliced(0, 1, 2), all.sliced(0, 2, 4)));
    EXPECT_FALSE(may_overlap(all.sliced(1, 3, 3), all));
}

TEST(Memory, EvenAndOddElementsInterleave) {
    const Tensor buffer = Tensor::zeros(DType::kFloat32, {64});
    auto* data = buffer.elements<float>().data();
    const std::int64_t shape[] = {16};
    const std::int64_t strides[] = {2};
    const TensorView even(data, DType::kFloat32, shape, strides);
    const TensorView odd(data + 1, DType::kFloat32, shape, strides);
    EXPECT_FALSE(may_overlap(even, odd));
    EXPECT_TRUE(may_overlap(even, even));
    EXPECT_FALSE(overlaps_itself(even));
}

TEST(Memory, DifferentDevicesNeverOverlap) {
    float data[4];
    const TensorView a(data, DType::kFloat32, {4});
    const TensorView b(data, DType::kFloat32, {4}, Device{DeviceKind::kCuda, 0});
    EXPECT_FALSE(may_overlap(a, b));
}

TEST(Memory, SameMemoryMeansSameAddressTypeAndStrides) {
    const Tensor buffer = Tensor::zeros(DType::kFloat32, {4, 4});
    EXPECT_TRUE(same_memory(buffer, buffer));
    EXPECT_FALSE(same_memory(buffer, buffer.view().transposed(0, 1)));
    EXPECT_FALSE(same_memory(buffer, buffer.view().sliced(0, 1, 4)));
}

}  // namespace
}  // namespace sluice
