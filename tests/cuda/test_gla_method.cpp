// The method for gated linear attention without a GPU: types and lengths that it refuses, and what
// then takes its place.
#include <gtest/gtest.h>

#include <string>

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
