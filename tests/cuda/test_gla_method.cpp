// The method for gated linear attention without a GPU: types and lengths that it refuses, and what
// then takes its place.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "cuda/backend/method.hpp"
#include "support/instance.hpp"
#include "support/judge.hpp"
#include "support/tensor_core_cases.hpp"

namespace sluice::test {
namespace {

std::string refused(const Case& c) {
    const Instance instance(c);
    const Problem problem = problem_on(find_judged("cuda"), instance, c.phase);
    const Support support = cuda::gla_method().supports(problem);
    EXPECT_EQ(support.ok, support.reason.empty());
    return support.reason;
}

Case gla(std::int64_t tokens, DType dtype) {
    return tensor_core_case("gla", tokens, 64, 64, dtype);
}

TEST(GlaMethod, TakesNarrowInputsOfEitherType) {
    EXPECT_EQ(refused(gla(1, DType::kBFloat16)), "");
    EXPECT_EQ(refused(gla(17, DType::kFloat16)), "");
    Case packed = gla(17, DType::kFloat16);
    pack(packed, {1, 16}, Packing::kInt32);
    EXPECT_EQ(refused(packed), "");
    Case gates = gla(130, DType::kBFloat16);
    gates.gate_dtype = DType::kFloat32;
    EXPECT_EQ(refused(gates), "");
}

TEST(GlaMethod, TakesTheKeysOfACluster) {
    for (const std::int64_t keys : {136, 192, 256}) {
        EXPECT_EQ(refused(tensor_core_case("gla", 70, keys, 64, DType::kBFloat16)), "") << keys;
    }
    EXPECT_EQ(refused(tensor_core_case("gla", 70, 264, 64, DType::kBFloat16)),
              "K = 264; at most 256");
}

// Two blocks for a head's tile of values; as many segments as fill the GPU.
TEST(GlaMethod, PlansKeysAbove128InPairsOfBlocks) {
    Case c = tensor_core_case("gla", 4096, 256, 512, DType::kBFloat16);
    c.dims.H = c.dims.HV = 4;
    const Instance instance(c);
    const Problem problem = problem_on(find_judged("cuda"), instance, c.phase);
    const Plan plan = cuda::gla_method().plan(problem, h200());
    EXPECT_EQ(plan.value_tile, 128);
    EXPECT_EQ(plan.segments, 4);
    EXPECT_EQ(plan.tasks, 4 * 4 * 2 * 4);  // heads, tiles of values, halves of keys, segments
    constexpr std::int64_t kHeadSegments = 4 * 4;
    EXPECT_EQ(plan.workspace_bytes, kHeadSegments * 4 * (256 * 512 + 256));
    EXPECT_NEAR(plan.predicted_us, 80, 0.08 * 80);
}

/// On a GPU of eight multiprocessors: few heads fill it.
Plan planned(std::int64_t heads, std::int64_t tokens, std::int64_t values,
             DType dtype = DType::kBFloat16, DType gates = DType::kBFloat16) {
    Case c = tensor_core_case("gla", tokens, 128, values, dtype);
    c.dims.H = c.dims.HV = heads;
    c.gate_dtype = gates;
    const Instance instance(c);
    DeviceSpec device = h200();
    device.multiprocessors = 8;
    return cuda::gla_method().plan(problem_on(find_judged("cuda"), instance, c.phase), device);
}

// Where tiles of 128 value channels leave half of the GPU idle, a head has a pair of blocks.
TEST(GlaMethod, PlansPairsOfBlocksForFewHeads) {
    const Plan pair = planned(4, 256, 128);
    EXPECT_EQ(pair.value_tile, 64);
    EXPECT_EQ(pair.stages, 4);
    EXPECT_EQ(pair.tasks, 8);
    EXPECT_EQ(planned(2, 256, 192).tasks, 8) << "three tiles of 64, and none";
    EXPECT_EQ(planned(4, 256, 64).tasks, 4) << "nothing to pair";
    EXPECT_EQ(planned(8, 256, 128).value_tile, 128) << "enough heads";
    const Plan split = planned(1, 2048, 128);
    EXPECT_EQ(split.value_tile, 64);
    EXPECT_EQ(split.segments, 4);
}

// Their shared memory has no place for gates of 32 bits, and nobody has the time to convert values.
TEST(GlaMethod, PairsNoBlocksOfOtherTypes) {
    for (const auto& [dtype, gates, stages] : {std::tuple{DType::kBFloat16, DType::kBFloat16, 4},
                                               {DType::kBFloat16, DType::kFloat16, 4},
                                               {DType::kBFloat16, DType::kFloat32, 2},
                                               {DType::kFloat16, DType::kFloat16, 3}}) {
        const Plan plan = planned(4, 256, 128, dtype, gates);
        EXPECT_EQ(plan.value_tile, 64) << plan.to_string();
        EXPECT_EQ(plan.stages, stages) << plan.to_string();
    }
}

// What a sequence is computed by must not depend on what it is packed with.
TEST(GlaMethod, TakesAFewTokensOfFloat16WhereBitsMustNotDependOnNeighbours) {
    Case packed = gla(3, DType::kFloat16);
    pack(packed, {1, 2}, Packing::kInt32);
    EXPECT_EQ(refused(packed), "");
    const Instance instance(gla(1, DType::kFloat16));
    Problem problem = problem_on(find_judged("cuda"), instance, Phase::kPrefill);
    problem.batch_invariant = true;
    EXPECT_TRUE(cuda::gla_method().supports(problem).ok);
}

// Their bfloat16 operands would exceed the bound on the error of o.
TEST(GlaMethod, LeavesAFewTokensOfFloat16ToTheRecurrentMethod) {
    EXPECT_EQ(refused(gla(1, DType::kFloat16)),
              "q is float16 and T = 1; rounded to bfloat16 it needs T above 16");
    Case c = gla(16, DType::kFloat16);
    EXPECT_EQ(refused(c), "q is float16 and T = 16; rounded to bfloat16 it needs T above 16");
    c.algorithm = Algorithm::kAuto;
    c.chunk = 0;
    const Instance instance(c);
    const Problem problem = problem_on(find_judged("cuda"), instance, c.phase);
    const Plan plan = find_backend("cuda").plan(problem, h200());
    EXPECT_EQ(plan.kernel, "recurrent");
    EXPECT_EQ(plan.precision, Precision::kFloat32);
    EXPECT_NE(plan.notice.find("not gla: q is float16 and T = 16"), std::string::npos)
        << plan.notice;
}

}  // namespace
}  // namespace sluice::test
