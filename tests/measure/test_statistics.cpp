// Order statistics of timings, and numbers as people read them.
#include <gtest/gtest.h>

#include <vector>

#include "measure/statistics.hpp"
#include "measure/units.hpp"
#include "support/refusal.hpp"

namespace sluice::measure {
namespace {

using test::refusal;

TEST(Quantile, InterpolatesBetweenNeighbours) {
    const std::vector<double> samples = {40, 10, 30, 20};  // unsorted
    EXPECT_DOUBLE_EQ(quantile(samples, 0), 10);
    EXPECT_DOUBLE_EQ(quantile(samples, 1), 40);
    EXPECT_DOUBLE_EQ(quantile(samples, 0.5), 25);
    EXPECT_DOUBLE_EQ(quantile(samples, 0.1), 13);
}

TEST(Quantile, OfOneSampleIsThatSample) {
    const std::vector<double> samples = {7};
    for (const double p : {0.0, 0.3, 1.0}) EXPECT_DOUBLE_EQ(quantile(samples, p), 7);
}

TEST(Quantile, RefusesNothingAndImpossibleShares) {
    EXPECT_EQ(refusal([] { (void)quantile({}, 0.5); }), "value | samples | none | at least one");
    const std::vector<double> samples = {1};
    EXPECT_EQ(refusal([&] { (void)quantile(samples, 1.5); }), "value | p | 1.500000 | 0 to 1");
}

TEST(Summary, OneOutlierMovesNeitherMedianNorSpread) {
    const std::vector<double> samples = {100, 98, 102, 101, 99, 100, 100000};
    const Summary summary = summarize(samples);
    EXPECT_EQ(summary.samples, 7);
    EXPECT_DOUBLE_EQ(summary.median, 100);
    EXPECT_DOUBLE_EQ(summary.relative_mad, 0.01);
    EXPECT_DOUBLE_EQ(summary.p10, 98.6);
    EXPECT_GT(summary.p90, 102);
}

TEST(Units, ThreeDigitsAndTheNextUnitInTime) {
    EXPECT_EQ(format_us(0.4321), "0.432 us");
    EXPECT_EQ(format_us(12.34), "12.3 us");
    EXPECT_EQ(format_us(999.4), "999 us");
    EXPECT_EQ(format_us(999.6), "1.00 ms");
    EXPECT_EQ(format_us(1.5e6), "1.50 s");
    EXPECT_EQ(format_us(125e6), "2 min 5 s");
    EXPECT_EQ(format_us(7260e6), "2 h 1 min");
    EXPECT_EQ(format_us(0), "0 us");
}

TEST(Units, Prefixes) {
    EXPECT_EQ(format_with_prefix(1'500'000, "B"), "1.50 MB");
    EXPECT_EQ(format_with_prefix(815, ""), "815");
    EXPECT_EQ(format_with_prefix(4.28e12, "B/s"), "4.28 TB/s");
    EXPECT_EQ(format_with_prefix(999'700, ""), "1.00 M");
}

TEST(Units, Fractions) {
    EXPECT_EQ(format_fraction(0.374), "37 %");
    EXPECT_EQ(format_fraction(0.003), "0.3 %");
    EXPECT_EQ(format_fraction(1.2), "120 %");
    EXPECT_EQ(format_fraction(0), "-");
}

}  // namespace
}  // namespace sluice::measure
