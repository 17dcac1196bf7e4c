// Memory filled for a benchmark, and what is measured of a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "measure/device.hpp"
#include "measure/gpu_timer.hpp"
#include "sluice/device.hpp"
#include "sluice/memory.hpp"
#include "support/refusal.hpp"

namespace sluice::measure {
namespace {

using test::refusal;

constexpr std::array<std::int64_t, 3> kShape = {5, 2, 3};

Tensor row_of_numbers() {
    Tensor row = Tensor::empty(DType::kInt32, {1, 2, 3});
    for (int i = 0; i < 6; ++i) row.elements<std::int32_t>()[static_cast<std::size_t>(i)] = i + 1;
    return row;
}

/// Rows repeated and then read back on the CPU.
void expect_repeated(const Device& device) {
    const Tensor there = empty_on(DType::kInt32, kShape, device);
    repeat(there, row_of_numbers());
    const Tensor back = copy_on(there, {});
    for (std::int64_t i = 0; i < back.size(); ++i) {
        ASSERT_EQ(back.elements<std::int32_t>()[static_cast<std::size_t>(i)], i % 6 + 1) << i;
    }
    zero(there);
    const Tensor zeros = copy_on(there, {});
    EXPECT_TRUE(std::ranges::all_of(zeros.elements<std::int32_t>(), [](int x) { return x == 0; }));
}

TEST(Repeat, FillsEveryRow) { expect_repeated({}); }

TEST(Repeat, EqualShapesAreCopied) {
    const Tensor to = Tensor::zeros(DType::kInt32, {1, 2, 3});
    repeat(to, row_of_numbers());
    EXPECT_EQ(to.elements<std::int32_t>()[5], 6);
}

TEST(Repeat, NothingIntoNothing) {
    const Tensor to = Tensor::empty(DType::kInt32, {4, 0});
    EXPECT_EQ(refusal([&] { repeat(to, Tensor::empty(DType::kInt32, {1, 0})); }), "accepted");
}

TEST(MeasuredDevice, OfTheCpuIsTheHost) {
    EXPECT_EQ(&measured_device({}), &host_device());
    EXPECT_EQ(clock_mhz({}), 0);
}

TEST(MeasuredDevice, AGpuThatIsNotThereIsRefused) {
    if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
    const Device gpu{DeviceKind::kCuda, 0};
    for (const std::string& text :
         {refusal([&] { (void)measured_device(gpu); }), refusal([&] { (void)clock_mhz(gpu); }),
          refusal([] { (void)GpuTimer(0); })}) {
        EXPECT_TRUE(text.starts_with("device | ")) << text;
    }
}

TEST(Repeat, FillsEveryRowOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    expect_repeated({DeviceKind::kCuda, 0});
}

TEST(MeasuredDevice, RatesOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    const Device gpu{DeviceKind::kCuda, 0};
    const DeviceSpec& spec = measured_device(gpu);
    EXPECT_EQ(&spec, &measured_device(gpu));
    EXPECT_GT(spec.copy_bytes_per_s, 1e12);
    EXPECT_LT(spec.copy_bytes_per_s, 1e13);
    EXPECT_GT(clock_mhz(gpu), 100);
    EXPECT_NE(spec.source.find("driver for CUDA "), std::string::npos) << spec.source;
}

// Twice the bytes take twice as long.
TEST(GpuTimer, TimesGrowWithTheWorkOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    constexpr std::array<std::int64_t, 1> kBytes = {std::int64_t{512} << 20};
    const Tensor memory = empty_on(DType::kBool, kBytes, {DeviceKind::kCuda, 0});
    const GpuTimer timer(0);
    const auto best_us = [&](std::int64_t end) {
        double best = 1e9;
        for (int i = 0; i < 5; ++i) {
            best = std::min(best, timer.gpu_us([&] { zero(memory.view().sliced(0, 0, end)); }));
        }
        return best;
    };
    const double half = best_us(kBytes[0] / 2), whole = best_us(kBytes[0]);
    EXPECT_GT(whole, 1.5 * half);
    EXPECT_LT(whole, 2.5 * half);
    EXPECT_GT(half, 20);
    EXPECT_GT(timer.host_us([] {}, 1), 0);
}

}  // namespace
}  // namespace sluice::measure
