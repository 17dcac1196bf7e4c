// The judges judged: errors, stray writes and tolerances that must be noticed are.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "support/guarded.hpp"
#include "support/instance.hpp"
#include "support/judged.hpp"
#include "support/plain.hpp"

namespace sluice::test {
namespace {

constexpr std::int64_t kTokens = 130, kHeads = 3, kChannels = 8;

Tensor random_output(std::uint64_t seed) {
    const Tensor tensor = Tensor::empty(DType::kFloat64, {1, kTokens, kHeads, kChannels});
    Random random(seed);
    for (double& x : tensor.elements<double>()) x = random.normal();
    return tensor;
}

std::vector<Block> blocks_of(const Tensor& x, const Tensor& reference) {
    return token_blocks(x, reference, {{.end = 70}, {.begin = 70, .end = kTokens}});
}

TEST(Metrics, BlocksAreSequencesHeadsAndSixtyFourTokens) {
    const Tensor x = random_output(1);
    std::set<std::string> names;
    std::int64_t elements = 0;
    for (const Block& block : blocks_of(x, x)) {
        names.insert(block.where);
        elements += block.result.size();
    }
    EXPECT_EQ(names,
              (std::set<std::string>{"n0 h0 t0", "n0 h0 t64", "n0 h1 t0", "n0 h1 t64", "n0 h2 t0",
                                     "n0 h2 t64", "n1 h0 t0", "n1 h1 t0", "n1 h2 t0"}));
    EXPECT_EQ(elements, x.size());
}

TEST(Metrics, RelativeErrorOfTheWhole) {
    const Tensor reference = random_output(1);
    const Tensor x = Tensor::copy_of(reference, DType::kFloat64);
    for (double& value : x.elements<double>()) value *= 1.001;
    const Accuracy accuracy = compare(blocks_of(x, reference));
    EXPECT_NEAR(accuracy.whole, 1e-3, 1e-12);
    EXPECT_NEAR(accuracy.worst_block, 1e-3, 1e-12);
    EXPECT_TRUE(within(accuracy, 1.0001e-3));
    EXPECT_FALSE(within(accuracy, 0.9999e-3));
}

TEST(Metrics, OneBadBlockIsFound) {
    const Tensor reference = random_output(1);
    const Tensor x = Tensor::copy_of(reference, DType::kFloat64);
    // Head 1 of tokens 64 ... 69: a small part of the whole.
    for (std::int64_t t = 64; t < 70; ++t) {
        for (std::int64_t c = 0; c < kChannels; ++c) {
            x.elements<double>()[(t * kHeads + 1) * kChannels + c] *= 1.05;
        }
    }
    const Accuracy accuracy = compare(blocks_of(x, reference));
    EXPECT_LT(accuracy.whole, 1e-2);
    EXPECT_NEAR(accuracy.worst_block, 5e-2, 1e-12);
    EXPECT_EQ(accuracy.where, "n0 h1 t64");
    EXPECT_FALSE(within(accuracy, 1.2e-2));
    EXPECT_TRUE(within(accuracy, 1.3e-2));
}

TEST(Metrics, NoNumberIsAFailureWhereverItIs) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        const Tensor reference = random_output(1);
        const Tensor x = Tensor::copy_of(reference, DType::kFloat64);
        x.elements<double>()[(100 * kHeads + 2) * kChannels] = bad;
        const Accuracy accuracy = compare(blocks_of(x, reference));
        EXPECT_FALSE(within(accuracy, 1e9));
        EXPECT_EQ(accuracy.where, "n1 h2 t0");
    }
}

TEST(Metrics, WhereTheReferenceVanishesTheFloorCounts) {
    const Tensor reference = random_output(1);
    for (std::int64_t t = 70; t < kTokens; ++t) {
        for (std::int64_t c = 0; c < kChannels; ++c) {
            reference.elements<double>()[t * kHeads * kChannels + c] = 0;
        }
    }
    const Tensor x = Tensor::copy_of(reference, DType::kFloat64);
    EXPECT_TRUE(within(compare(blocks_of(x, reference)), 0));
    for (std::int64_t t = 70; t < kTokens; ++t) {
        for (std::int64_t c = 0; c < kChannels; ++c) {
            x.elements<double>()[t * kHeads * kChannels + c] = 1e-9;
        }
    }
    const Accuracy accuracy = compare(blocks_of(x, reference));
    EXPECT_EQ(accuracy.where, "n1 h0 t0");
    EXPECT_NEAR(accuracy.worst_block, 1e-3, 2e-4);
}

TEST(Tolerances, AreTheProjectsTable) {
    using enum Quantity;
    constexpr auto kF32 = Precision::kFloat32;
    constexpr auto kBF16 = Precision::kBFloat16;
    for (const Update update : {Update::kAdditive, Update::kDelta, Update::kRankOne}) {
        EXPECT_EQ(bound(kF32, update, kOutput), 1e-5);
        EXPECT_EQ(bound(kF32, update, kState), 1e-5);
        EXPECT_EQ(bound(kF32, update, kGradient), 2e-5);
        EXPECT_EQ(bound(kF32, update, kGateGradient), 1e-4);
        EXPECT_EQ(bound(kF32, update, kOutput, Regime::kReflections), 1e-5);
        EXPECT_EQ(bound(kBF16, update, kState), 5e-3);
        EXPECT_EQ(bound(kBF16, update, kGradient), 8e-3);
        EXPECT_EQ(bound(kBF16, update, kGateGradient), 2e-2);
    }
    EXPECT_EQ(bound(kBF16, Update::kAdditive, kOutput), 4e-3);
    EXPECT_EQ(bound(kBF16, Update::kDelta, kOutput), 5e-3);
    EXPECT_EQ(bound(kBF16, Update::kDelta, kOutput, Regime::kRepeatedKeys), 1.5e-2);
    EXPECT_EQ(bound(kBF16, Update::kDelta, kState, Regime::kReflections), 1e-1);
    EXPECT_EQ(bound(kBF16, Update::kAdditive, kOutput, Regime::kReflections), 4e-3);
}

TEST(Guarded, StrayWritesShow) {
    const Values values = normal_values({2, 5, 3, 4}, 1, 1);
    for (int kind = 0; kind < kNumStrides; ++kind) {
        const auto strides = static_cast<Strides>(kind);
        SCOPED_TRACE(to_string(strides));
        const Guarded tensor = Guarded::input(values, DType::kFloat32, strides, Poison::kHuge);
        EXPECT_TRUE(tensor.untouched());
        auto* data = static_cast<float*>(tensor.view().data);
        // Before the first element of the buffer's data, and past the last.
        std::int64_t first = 0, last = 0;
        for_each_offset(tensor.view(), [&](std::int64_t offset) {
            first = std::min(first, offset);
            last = std::max(last, offset);
        });
        for (const std::int64_t stray : {first - 1, last + 1}) {
            const float saved = data[stray];
            data[stray] = 1;
            EXPECT_FALSE(tensor.untouched_outside({tensor.view()}));
            data[stray] = saved;
        }
        data[0] += 1;
        EXPECT_FALSE(tensor.untouched());
        EXPECT_TRUE(tensor.untouched_outside({tensor.view()}));
        EXPECT_EQ(tensor.untouched_outside({tensor.view().sliced(0, 0, 1)}), true);
        EXPECT_FALSE(tensor.untouched_outside({tensor.view().sliced(0, 1, 2)}));
    }
}

TEST(Guarded, HoldsItsValuesInEveryStride) {
    const Values values = normal_values({2, 5, 3, 4}, 1, 1);
    for (int kind = 0; kind < kNumStrides; ++kind) {
        const auto strides = static_cast<Strides>(kind);
        if (strides == Strides::kExpanded) continue;
        const Guarded tensor = Guarded::input(values, DType::kFloat64, strides, Poison::kNaN);
        const Tensor dense = Tensor::copy_of(tensor.view(), DType::kFloat64);
        EXPECT_TRUE(
            std::equal(values.data.begin(), values.data.end(), dense.elements<double>().begin()))
            << to_string(strides);
    }
}

TEST(Guarded, OutputsArePoisonUntilWritten) {
    for (const DType dtype : kDTypes) {
        const Guarded tensor = Guarded::output({2, 3}, dtype, Strides::kPadded);
        for_each_offset(tensor.view(), [&](std::int64_t offset) {
            TensorView one(tensor.view());
            one.rank = 0;
            one.data = static_cast<std::byte*>(one.data) +
                       offset * static_cast<std::int64_t>(size_bytes(dtype));
            EXPECT_FALSE(all_finite(one)) << to_string(dtype);
        });
    }
}

TEST(Judged, TakesWhatItClaimsAndNothingElse) {
    Judged backend = {.name = "partial",
                      .updates = {Update::kAdditive},
                      .decays = {Decay::kVector},
                      .precisions = {Precision::kBFloat16},
                      .phases = {Phase::kPrefill}};
    const auto takes = [&](const char* form, Precision precision = Precision::kBFloat16,
                           Phase phase = Phase::kPrefill, bool checkpoints = false) {
        return backend.takes(find_form(form).make(), precision, phase, checkpoints);
    };
    EXPECT_TRUE(takes("gla"));
    EXPECT_FALSE(takes("kda"));
    EXPECT_FALSE(takes("simple_gla"));
    EXPECT_FALSE(takes("user_normalized_gla"));
    EXPECT_FALSE(takes("gla", Precision::kFloat32));
    EXPECT_FALSE(takes("gla", Precision::kBFloat16, Phase::kDecode));
    EXPECT_FALSE(takes("gla", Precision::kBFloat16, Phase::kPrefill, true));
    backend.normalizers = backend.checkpoints = true;
    EXPECT_TRUE(takes("user_normalized_gla"));
    EXPECT_TRUE(takes("gla", Precision::kBFloat16, Phase::kPrefill, true));
}

// The oracle judged by itself passes every case with the widest margin: what fails elsewhere is not
// the harness.
TEST(Instance, TheOracleAgreesWithItself) {
    for (std::size_t i = 0; i < cases().size(); i += 13) {
        Case c = cases()[i];
        c.precision = Precision::kFloat64;
        c.algorithm = Algorithm::kAuto;
        Instance instance(c);
        for (const Finding& finding : instance.judge("oracle")) {
            EXPECT_TRUE(finding.ok())
                << c.name() << ": " << describe(finding.accuracy, finding.bound);
            if (!finding.rounded) {
                EXPECT_EQ(finding.accuracy.whole, 0) << c.name();
            }
        }
        EXPECT_TRUE(instance.memory_faults().empty()) << c.name();
    }
}

}  // namespace
}  // namespace sluice::test
