// Reports from records made up here: every number in them can be checked by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "measure/crossover.hpp"
#include "measure/records.hpp"
#include "measure/report.hpp"
#include "measure/verdicts.hpp"
#include "support/refusal.hpp"

namespace sluice::measure {
namespace {

using test::prefill_record;
using test::refusal;

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST(Crossover, IsInterpolatedOnLogarithmicAxes) {
    // Linear against quadratic time: t = 4 T and t = T^2 / 256 meet at T = 1024. Both are straight
    // lines on these axes, so that the interpolation is exact whatever the measured T.
    Curve linear, quadratic;
    for (const double t : {300.0, 700.0, 3000.0, 9000.0}) {
        linear[t] = 4 * t;
        quadratic[t] = t * t / 256;
    }
    const Crossover c = find_crossover(linear, quadratic);
    EXPECT_EQ(c.standing, Standing::kOvertakes);
    EXPECT_NEAR(c.tokens, 1024, 1e-9 * 1024);
    EXPECT_EQ(c.before, 700);
    EXPECT_EQ(c.after, 3000);
    EXPECT_NEAR(c.slowest_ratio, 300.0 / 1024, 1e-12);
    EXPECT_NEAR(c.fastest_ratio, 9000.0 / 1024, 1e-12);
    // Seen from the other side.
    const Crossover back = find_crossover(quadratic, linear);
    EXPECT_EQ(back.standing, Standing::kFallsBehind);
    EXPECT_NEAR(back.tokens, 1024, 1e-9 * 1024);
}

TEST(Crossover, NoneInRange) {
    const Curve slow = {{512, 10}, {1024, 20}}, fast = {{512, 5}, {1024, 19}, {2048, 100}};
    EXPECT_EQ(find_crossover(fast, slow).standing, Standing::kFasterThroughout);
    EXPECT_EQ(find_crossover(slow, fast).standing, Standing::kSlowerThroughout);
    EXPECT_EQ(find_crossover(slow, fast).longest, 1024);  // only what both have
    EXPECT_EQ(find_crossover(slow, {{4096, 1}}).standing, Standing::kNothingShared);
}

TEST(Crossover, MoreThanOne) {
    const Curve a = {{1, 2}, {2, 1}, {3, 2}}, b = {{1, 1.5}, {2, 1.5}, {3, 1.5}};
    EXPECT_EQ(find_crossover(a, b).standing, Standing::kCrossesOften);
}

std::vector<Record> crossing_records() {
    std::vector<Record> records;
    for (const std::int64_t t : {256, 512, 2048}) {
        const auto tokens = static_cast<double>(t);
        records.push_back(prefill_record("gla", t, 4 * tokens));
        records.push_back(prefill_record("softmax", t, tokens * tokens / 256));
    }
    return records;
}

TEST(Verdicts, CrossoverAgainstSoftmax) {
    const auto verdicts = verdicts_against_softmax(crossing_records());
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0],
              "gla chunked prefill, float32 at B1 H4 K128 V128, against softmax attention: faster "
              "from about T = 1024 on (interpolated between 512 and 2048); 0.25 to 2.00 times as "
              "fast over T = 256 to 2048.");
}

TEST(Verdicts, OtherShapesAreNotCompared) {
    std::vector<Record> records = crossing_records();
    for (Record& r : records) {
        if (r.op == "softmax") r.dims.HV = 8;
    }
    EXPECT_TRUE(verdicts_against_softmax(records).empty());
}

TEST(Verdicts, DecodeDoesNotDependOnTheContext) {
    std::vector<Record> records = {prefill_record("gla", 1, 30)};
    records[0].phase = Phase::kDecode;
    records[0].kernel = "recurrent";
    for (const std::int64_t context : {100, 400}) {
        records.push_back(prefill_record("softmax", 1, static_cast<double>(context) / 10));
        records.back().phase = Phase::kDecode;
        records.back().context = context;
    }
    const auto verdicts = verdicts_against_softmax(records);
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_TRUE(contains(verdicts[0],
                         "faster from about T = 300 on (interpolated between 100 and "
                         "400)"))
        << verdicts[0];
}

TEST(Verdicts, BoundAndDistanceFromTheFloor) {
    std::vector<Record> records = {prefill_record("gla", 256, 1000),
                                   prefill_record("gla", 512, 4000)};
    records[0].floor_us = 100;   // 10 times
    records[1].floor_us = 1000;  // 4 times
    records[0].flops = 1e6;      // memory: 0.2 s of bytes
    records[1].flops = 1e12;     // compute: 10 s of FLOPs, here and, 1.25 ms to 0.47 ms, on an H200
    records[0].predicted_us = 1000;
    records[1].predicted_us = 2000;
    const auto verdicts = verdicts_by_op(records);
    ASSERT_EQ(verdicts.size(), 1U);
    const std::string& text = verdicts[0];
    EXPECT_TRUE(
        text.starts_with("gla chunked prefill, float32 (2 rows): memory-bound in 1 of 2 "
                         "rows, else compute-bound on this machine by the floor; measured "
                         "at 4.00 to 10 times the floor (10 % to 25 % of it)"))
        << text;
    EXPECT_TRUE(
        contains(text, "On an H200 its floor (bf16 rate) is 0.500 us, memory-bound in 1 of 2 rows"))
        << text;
    EXPECT_TRUE(contains(text, "Peak memory: 1.10 times inputs and outputs.")) << text;
    EXPECT_TRUE(contains(text, "Predicted time / measured: 0.50 to 1.00.")) << text;
    EXPECT_FALSE(contains(text, "stayed in the cache")) << text;
    records[0].floor_us = 1100;
    EXPECT_TRUE(contains(verdicts_by_op(records)[0], "Above 100 %: the data stayed in the cache"));
}

TEST(Verdicts, Noise) {
    std::vector<Record> records = crossing_records();
    EXPECT_EQ(verdicts_on_noise(records).front(),
              "No row's median deviation exceeds 5.0 % of its median.");
    records[2].relative_mad = 0.2;
    records[3].samples = 1;
    const auto verdicts = verdicts_on_noise(records);
    ASSERT_EQ(verdicts.size(), 2U);
    EXPECT_TRUE(verdicts[0].starts_with("1 of 6 rows are noisy")) << verdicts[0];
    EXPECT_TRUE(contains(verdicts[0], "gla chunked prefill, float32 at B1 T512 H4 K128 V128, 20 %"))
        << verdicts[0];
    EXPECT_EQ(verdicts[1], "1 of 6 rows were run once only.");
}

std::vector<Record> with_skipped_row() {
    std::vector<Record> records = crossing_records();
    records.push_back(prefill_record("kda", 4096, 0));
    records.back().skipped = "needs 9 TB of memory; 1 GB may be used";
    return records;
}

TEST(Report, MarkdownStatesProvenanceTableVerdictsAndWhatWasSkipped) {
    const std::string text = to_markdown(make_report(with_skipped_row()));
    for (const char* part :
         {"a \"machine\": copy 10.0 GB/s, matmul 100 GFLOP/s (imagined)",
          "sluice 1.2.3, commit abcdef, 2030-01-02", "sluice bench --op gla -T 1", "gates spiky",
          "NVIDIA H200: copy 4.28 TB/s, matmul 800 TFLOP/s",
          "; its matmul rate is that of bf16, also for rows of another type",
          "| H200 floor (bf16 rate) |",
          "| gla | prefill | cpu chunked | B1 T256 H4 K128 V128 | float32 | 1.02 ms |",
          "faster from about T = 1024 on",
          "- kda prefill cpu B1 T4096 H4 K128 V128, float32: needs 9 TB of memory"}) {
        EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
    }
    // Each table line has as many cells as the header.
    std::size_t cells = 0;
    for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos;
         at = end + 1) {
        const std::string line = text.substr(at, end - at);
        if (!line.starts_with('|')) continue;
        const auto bars = static_cast<std::size_t>(std::count(line.begin(), line.end(), '|'));
        if (cells == 0) cells = bars;
        EXPECT_EQ(bars, cells) << line;
    }
    EXPECT_EQ(cells, 18U);
}

TEST(Report, MarkdownEscapesBars) {
    std::vector<Record> records = {prefill_record("gla", 256, 10)};
    records[0].model = "a|b";
    EXPECT_TRUE(contains(to_markdown(make_report(records)), "a\\|b |"));
}

TEST(Report, HtmlIsOneFileWithAChart) {
    std::vector<Record> records = with_skipped_row();
    records[0].model = "<script>";
    const std::string html = to_html(make_report(records));
    EXPECT_TRUE(html.starts_with("<!doctype html>"));
    EXPECT_TRUE(contains(html, "&lt;script&gt;"));
    EXPECT_FALSE(contains(html, "<script"));
    EXPECT_FALSE(contains(html, "http"));  // nothing is fetched
    EXPECT_FALSE(contains(html, "src="));
    EXPECT_TRUE(contains(html, "<svg "));
    EXPECT_TRUE(contains(html, "a &quot;machine&quot;"));
    std::size_t curves = 0;
    for (std::size_t at = 0; (at = html.find("<polyline", at)) != std::string::npos; ++at) ++curves;
    EXPECT_EQ(curves, 2U);
    EXPECT_TRUE(contains(html, ">softmax</text>"));
}

TEST(Report, ChartIsStraightOnLogarithmicAxes) {
    // Three points of t = T^2, evenly spaced in log T: the middle one lies halfway.
    const Curves curves{"", {{"square", {{10, 1e2}, {100, 1e4}, {1000, 1e6}}}}};
    const std::string svg = to_svg(curves);
    const std::size_t begin = svg.find("points=\"") + 8;
    double x[3], y[3];
    ASSERT_EQ(std::sscanf(svg.c_str() + begin, "%lf,%lf %lf,%lf %lf,%lf", &x[0], &y[0], &x[1],
                          &y[1], &x[2], &y[2]),
              6);
    EXPECT_NEAR(x[1], (x[0] + x[2]) / 2, 0.11);
    EXPECT_NEAR(y[1], (y[0] + y[2]) / 2, 0.11);
    EXPECT_LT(x[0], x[2]);
    EXPECT_GT(y[0], y[2]);  // up is more
}

TEST(Report, ChartLeavesOutWhatHasNoPlaceOnItsAxes) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Curves curves{"",
                        {{"odd",
                          {{10, 1e2},
                           {20, 0},
                           {30, -1},
                           {40, kInfinity},
                           {50, NAN},
                           {60, 5e-324},
                           {0, 7},
                           {1000, 1e6}}}}};
    const std::string svg = to_svg(curves);
    std::size_t dots = 0;
    for (std::size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++dots;
    EXPECT_EQ(dots, 2U);
    EXPECT_FALSE(contains(svg, "nan"));
    EXPECT_FALSE(contains(svg, "inf"));
}

TEST(Report, OneLengthMakesNoChart) {
    const std::vector<Record> records = {prefill_record("gla", 256, 10)};
    EXPECT_TRUE(make_report(records).charts.empty());
    EXPECT_FALSE(contains(to_html(make_report(records)), "<svg"));
}

TEST(Report, NothingIsRefused) {
    EXPECT_EQ(refusal([] { (void)make_report({}); }),
              "value | records | none | at least one record");
}

TEST(DescribeShape, ShowsWhatTellsRowsApart) {
    Record r = prefill_record("gla", 256, 10);
    EXPECT_EQ(describe_shape(r), "B1 T256 H4 K128 V128");
    r.dims.HV = 8;
    EXPECT_EQ(describe_shape(r), "B1 T256 H4 HV8 K128 V128");
    r.phase = Phase::kDecode;
    EXPECT_EQ(describe_shape(r), "B1 H4 HV8 K128 V128");
    r.context = 4096;
    EXPECT_EQ(describe_shape(r), "B1 T4096 H4 HV8 K128 V128");
}

}  // namespace
}  // namespace sluice::measure
