// Peak memory of a call, and cold caches.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "measure/cache.hpp"
#include "measure/memory.hpp"

namespace sluice::measure {
namespace {

constexpr std::int64_t kBlock_bytes = 64LL << 20;
constexpr std::int64_t kSlack_bytes = 4LL << 20;  // the kernel counts in batches, per thread

/// Allocates, touches and frees.
void use_memory(std::int64_t bytes) {
    std::vector<char> block(static_cast<std::size_t>(bytes));
    std::memset(block.data(), 1, block.size());
    // Read back through volatile: the compiler may not drop the block.
    const volatile char* last = &block.back();
    ASSERT_EQ(*last, 1);
}

TEST(PeakMemory, SeesWhatACallTouchesAndFreesAgain) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the address sanitizer keeps freed memory";
#endif
    const PeakMemory peak = measure_peak_memory([] { use_memory(kBlock_bytes); });
    ASSERT_EQ(peak.method, "VmHWM")
        << "this system does not let a process reset its high-water mark";
    EXPECT_NEAR(static_cast<double>(peak.growth_bytes), static_cast<double>(kBlock_bytes),
                static_cast<double>(kSlack_bytes));
}

TEST(PeakMemory, EarlierPeaksDoNotCount) {
    use_memory(2 * kBlock_bytes);
    const PeakMemory peak = measure_peak_memory([] { use_memory(kBlock_bytes / 4); });
    EXPECT_LT(peak.growth_bytes, kBlock_bytes / 4 + kSlack_bytes);
    EXPECT_GT(peak.growth_bytes, kBlock_bytes / 4 - kSlack_bytes);
}

TEST(PeakMemory, NothingForACallThatNeedsNothing) {
    int calls = 0;
    EXPECT_LT(measure_peak_memory([&] { ++calls; }).growth_bytes, kSlack_bytes);
    EXPECT_EQ(calls, 1);
}

TEST(AvailableMemory, IsThere) { EXPECT_GT(available_memory_bytes(), 1 << 20); }

TEST(CacheFlusher, SaysWhetherItReachesTheWholeCache) {
    CacheFlusher small(1 << 20);
    EXPECT_TRUE(small.is_complete());
    small();
    EXPECT_FALSE(CacheFlusher(480LL << 20).is_complete());
}

}  // namespace
}  // namespace sluice::measure
