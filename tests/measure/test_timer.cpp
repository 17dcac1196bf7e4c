// When sampling stops, on a clock that the test turns.
#include <gtest/gtest.h>

#include <vector>

#include "measure/timer.hpp"

namespace sluice::measure {
namespace {

/// A call that takes the given microseconds in turn (the last one for ever), and its clock.
class FakeCall {
  public:
    explicit FakeCall(std::vector<double> durations_us) : durations_us_(std::move(durations_us)) {}

    std::vector<double> sample(const StoppingRule& rule, double prepare_us = 0) {
        return sample_us(
            rule,
            [this] {
                now_us_ += durations_us_[std::min(runs_, durations_us_.size() - 1)];
                ++runs_;
            },
            [this, prepare_us] {
                now_us_ += prepare_us;
                ++preparations_;
            },
            [this] { return now_us_; });
    }
    [[nodiscard]] std::size_t runs() const { return runs_; }
    [[nodiscard]] std::size_t preparations() const { return preparations_; }

  private:
    std::vector<double> durations_us_;
    double now_us_ = 1000;
    std::size_t runs_ = 0, preparations_ = 0;
};

constexpr StoppingRule kRule{
    .min_runs = 5, .max_runs = 100, .min_seconds = 0.05, .max_seconds = 2, .relative_spread = 0.01};

TEST(StoppingRule, SteadyCallStopsAtTheMinimumOfRuns) {
    FakeCall call({50'000});
    EXPECT_EQ(call.sample(kRule), std::vector<double>(5, 50'000));
}

TEST(StoppingRule, ShortCallGoesOnForTheMinimumOfTime) {
    FakeCall call({1000});
    const auto samples = call.sample(kRule);
    EXPECT_GE(samples.size(), 50U);  // 50 ms of one millisecond each
    EXPECT_LE(samples.size(), 63U);  // and at most a quarter more, between checks
}

TEST(StoppingRule, RestlessCallGoesOnUntilTimeIsUp) {
    FakeCall call({100'000, 200'000, 100'000, 200'000, 100'000, 200'000, 100'000, 200'000, 100'000,
                   200'000, 100'000, 200'000, 100'000, 200'000});
    // 2 s are reached with the 14th run: 7 x 0.1 + 7 x 0.2 = 2.1 s.
    EXPECT_EQ(call.sample(kRule).size(), 14U);
}

TEST(StoppingRule, SettlesOnceMostRunsAgree) {
    // Two slow starts: of five runs they are the upper quartile, of ten at most two are.
    FakeCall call({90'000, 70'000, 50'000});
    const auto samples = call.sample(kRule);
    EXPECT_GT(samples.size(), 5U);
    EXPECT_LE(samples.size(), 10U);
}

TEST(StoppingRule, ShortRestlessCallStopsAtTheMaximumOfRuns) {
    FakeCall call({10, 30, 10, 30, 20});
    StoppingRule rule = kRule;
    rule.relative_spread = -1;  // never settled
    EXPECT_GE(call.sample(rule).size(), 100U);
    EXPECT_LE(call.runs(), 125U);
}

TEST(StoppingRule, OneRunLongerThanTheLimitIsOneSample) {
    FakeCall call({3e6});
    EXPECT_EQ(call.sample(kRule), std::vector<double>{3e6});
}

TEST(StoppingRule, PreparationIsNotTimed) {
    FakeCall call({50'000});
    EXPECT_EQ(call.sample(kRule, 1e6), std::vector<double>(5, 50'000));
    EXPECT_EQ(call.preparations(), call.runs());
}

TEST(StoppingRule, NothingIsNeverSettled) { EXPECT_FALSE(is_settled(kRule, {})); }

TEST(SteadyClock, Advances) {
    const double before = steady_clock_us();
    double after = before;
    for (int i = 0; i < 1'000'000 && after == before; ++i) after = steady_clock_us();
    EXPECT_GT(after, before);
}

}  // namespace
}  // namespace sluice::measure
