// Rows of a benchmark: predicted without touching memory, measured, or skipped for a reason.
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "measure/bench.hpp"
#include "measure/bench_job.hpp"
#include "sluice/device.hpp"
#include "sluice/memory.hpp"
#include "sluice/variants.hpp"
#include "support/refusal.hpp"

namespace sluice::measure {
namespace {

using test::refusal;

BenchCase small(const std::string& op) {
    BenchCase row;
    row.op = op;
    row.dims = {.B = 2, .T = 96, .H = 1, .HV = 2, .K = 16, .V = 32};
    return row;
}

constexpr BenchLimits kLimits{.rule = {.min_runs = 2,
                                       .max_runs = 3,
                                       .min_seconds = 0,
                                       .max_seconds = 5,
                                       .relative_spread = 1},
                              .memory_bytes = 1LL << 30};

void expect_measured(const Record& r) {
    EXPECT_TRUE(r.ran()) << r.skipped;
    EXPECT_GE(r.samples, 2);
    EXPECT_GT(r.measured_us, 0);
    EXPECT_LE(r.p10_us, r.measured_us);
    EXPECT_GE(r.p90_us, r.measured_us);
    EXPECT_GT(r.tokens_per_s(), 0);
    EXPECT_GT(r.floor_us, 0);
    EXPECT_GT(r.h200_floor_us, 0);
    EXPECT_LT(r.h200_floor_us, r.floor_us);
    EXPECT_GT(r.predicted_us, 0);
    EXPECT_GE(r.peak_memory_ratio(), 1);
    EXPECT_FALSE(r.date.empty());
    EXPECT_EQ(r.cache, "warm");
}

TEST(Bench, EveryOpInBothPhases) {
    std::vector<std::string> ops = {std::string(kSoftmax)};
    for (const Variant& variant : variants()) ops.push_back(variant.name);
    for (const std::string& op : ops) {
        for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
            SCOPED_TRACE(op + " " + to_string(phase));
            BenchCase row = small(op);
            row.phase = phase;
            const Record r = measure(row, kLimits);
            expect_measured(r);
            EXPECT_EQ(r.op, op);
            EXPECT_EQ(r.dims.T, phase == Phase::kPrefill ? 96 : 1);
            EXPECT_EQ(r.dims.N, 2);
            EXPECT_EQ(r.context, op == kSoftmax && phase == Phase::kDecode ? 96 : 0);
            EXPECT_EQ(r.plan_hash.size(), op == kSoftmax ? 0U : 16U);
        }
    }
}

TEST(Bench, WorkIsTheFormulas) {
    const Record gla = predict(small("gla"), kLimits);
    // Vector decay, per token and value head: 2CK + 2CV + 4KV with C = 64.
    const double per_head = 2 * 64 * 16 + 2 * 64 * 32 + 4 * 16 * 32;
    EXPECT_DOUBLE_EQ(gla.flops, per_head * 2 * 2 * 96);
    // q, k [H 1], v, g [HV 2], o; float32.
    EXPECT_DOUBLE_EQ(gla.bytes_read, 4.0 * 2 * 96 * (16 + 16 + 2 * 32 + 2 * 16));
    EXPECT_DOUBLE_EQ(gla.bytes_written, 4.0 * 2 * 96 * 2 * 32);
    EXPECT_EQ(static_cast<double>(gla.io_bytes), gla.bytes());
    EXPECT_DOUBLE_EQ(gla.floor_us, std::max(1e6 * gla.bytes() / host_device().copy_bytes_per_s,
                                            1e6 * gla.flops / host_device().matmul_flops_per_s));
    EXPECT_DOUBLE_EQ(gla.h200_floor_us,
                     std::max(1e6 * gla.bytes() / 4.28e12, 1e6 * gla.flops / 800e12));
}

TEST(Bench, DecodeReadsAndWritesFloat32States) {
    BenchCase row = small("gla");
    row.phase = Phase::kDecode;
    row.dtype = row.gate_dtype = DType::kBFloat16;
    const Record r = predict(row, kLimits);
    EXPECT_EQ(r.state_dtype, DType::kFloat32);
    const double state = 4.0 * 2 * 2 * 16 * 32;
    EXPECT_DOUBLE_EQ(r.bytes_read, state + 2.0 * 2 * (16 + 16 + 2 * 32 + 2 * 16));
    EXPECT_DOUBLE_EQ(r.bytes_written, state + 2.0 * 2 * 2 * 32);
}

TEST(Bench, BackendsAndAlgorithms) {
    BenchCase row = small("kda");
    row.backend = "oracle";
    EXPECT_EQ(measure(row, kLimits).precision, "float64");
    row.backend = "cpu";
    row.algorithm = Algorithm::kRecurrent;
    EXPECT_EQ(measure(row, kLimits).kernel, "recurrent");
    row.algorithm = Algorithm::kChunked;
    EXPECT_EQ(measure(row, kLimits).kernel, "chunked");
}

TEST(Bench, OptionalInputsAndSettingsChooseTheForm) {
    BenchCase row = small("kda");
    row.request.tensors = {{"g_raw", {}}, {"A_log", {}}, {"dt_bias", {}}};
    row.request.settings = {{"lower_bound", "-5"}, {"qk_l2norm", "true"}};
    expect_measured(measure(row, kLimits));
    row.request.tensors["z"] = {};
    EXPECT_EQ(
        refusal([&] { (void)predict(row, kLimits); }),
        "surplus | z | asked for as an optional input | an input that this form of kda reads");
    row.request.tensors.clear();
    row.op = kSoftmax;
    EXPECT_EQ(refusal([&] { (void)predict(row, kLimits); }),
              "surplus | lower_bound | given | no settings or optional inputs for softmax");
}

TEST(Bench, NormalizedSpecDecodesWithItsKeySums) {
    BenchCase row = small("linear");
    row.phase = Phase::kDecode;
    row.request.settings = {{"normalize", "true"}, {"feature_map", "elu1"}};
    expect_measured(measure(row, kLimits));
}

TEST(Bench, SkipsForMemory) {
    BenchLimits limits = kLimits;
    limits.memory_bytes = 1000;
    for (const char* op : {"gla", "softmax"}) {
        const Record r = measure(small(op), limits);
        EXPECT_FALSE(r.ran());
        EXPECT_TRUE(r.skipped.starts_with("needs ")) << r.skipped;
        EXPECT_TRUE(r.skipped.ends_with(" of memory; 1.00 kB may be used")) << r.skipped;
        EXPECT_EQ(r.measured_us, 0);
        EXPECT_EQ(expected_seconds(r, limits), 0);
    }
}

TEST(Bench, SkipsForTime) {
    BenchLimits limits = kLimits;
    limits.rule.max_seconds = 1e-9;
    for (const char* backend : {"cpu", "oracle"}) {
        BenchCase row = small("gla");
        row.backend = backend;
        const Record r = measure(row, limits);
        EXPECT_TRUE(r.skipped.starts_with("one run is predicted to take ")) << r.skipped;
        EXPECT_GT(r.predicted_us, 0);
    }
}

TEST(Bench, SkipsWhatCannotBeAllocatedWithoutTryingTo) {
    for (const char* op : {"gla", "softmax"}) {
        BenchCase row = small(op);
        row.dims.B = 1'000'000'000;
        row.dims.T = 1'000'000'000'000;
        EXPECT_EQ(predict(row, kLimits).skipped, "its tensors cannot be allocated");
    }
}

TEST(Bench, SkipsWhatTheBackendDoesNotDo) {
    BenchCase row = small("gla");
    row.precision = Precision::kBFloat16;
    row.algorithm = Algorithm::kRecurrent;
    const Record r = measure(row, kLimits);
    EXPECT_TRUE(r.skipped.starts_with("not supported by cpu: ")) << r.skipped;
}

TEST(Bench, FlushedRowsSaySo) {
    BenchCase row = small("gla");
    row.flush = true;
    const std::string cache = measure(row, kLimits).cache;
    EXPECT_TRUE(cache == "flushed" || cache == "partly flushed") << cache;
}

TEST(Bench, ExpectedTimeGrowsWithTheRow) {
    BenchCase row = small("gla");
    const double little = expected_seconds(predict(row, kLimits), kLimits);
    row.dims.T *= 1000;
    EXPECT_GT(expected_seconds(predict(row, kLimits), kLimits), little);
    EXPECT_GT(little, 0);
}

TEST(Bench, DeviceSetsTheFloor) {
    Record r = predict(small("gla"), kLimits);
    DeviceSpec twice = r.device;
    twice.copy_bytes_per_s *= 2;
    twice.matmul_flops_per_s *= 2;
    const double before = r.floor_us;
    set_device(twice, r);
    EXPECT_DOUBLE_EQ(r.floor_us, before / 2);
}

TEST(Bench, MoreThanAGpuHoldsIsASkippedRowOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    BenchCase row = small("gla");
    row.device = {DeviceKind::kCuda, 0};
    row.backend = "cuda";
    row.dims.T = std::int64_t{1} << 34;
    const Record r = predict(row, {.rule = kLimits.rule});
    EXPECT_TRUE(r.skipped.starts_with("its tensors cannot be allocated: ")) << r.skipped;
}

TEST(Bench, EveryOpInBothPhasesOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    for (const Variant& variant : variants()) {
        for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
            SCOPED_TRACE(variant.name + " " + to_string(phase));
            BenchCase row = small(variant.name);
            row.phase = phase;
            row.dtype = row.gate_dtype = DType::kBFloat16;
            row.device = {DeviceKind::kCuda, 0};
            row.backend = "cuda";
            const Record r = measure(row, {.rule = kLimits.rule});
            EXPECT_TRUE(r.ran()) << r.skipped;
            EXPECT_GT(r.measured_us, 0);
            EXPECT_GT(r.host_us, 0);
            EXPECT_EQ(r.plan_hash.size(), 16U);
            EXPECT_EQ(r.cache, "flushed");
        }
    }
}

TEST(Bench, ARunThatFailsIsASkippedRow) {
    Job job = make_job(small("gla"));
    job.run = []() -> std::optional<Plan> { throw std::runtime_error("a reason"); };
    const Record r = measure_job(job, false, kLimits);
    EXPECT_EQ(r.skipped, "failed: a reason");
    EXPECT_EQ(r.measured_us, 0);
    EXPECT_EQ(r.op, "gla");
    job.run = []() -> std::optional<Plan> { throw std::bad_alloc(); };
    EXPECT_EQ(measure_job(job, false, kLimits).skipped, "failed: out of memory");
}

}  // namespace
}  // namespace sluice::measure
