// The method for scalar decays without a GPU: what it refuses and why, what then takes its place,
// and its plans.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "cuda/backend/method.hpp"
#include "support/instance.hpp"
#include "support/judge.hpp"
#include "support/tensor_core_cases.hpp"

namespace sluice::test {
namespace {

/// A case that the kernel takes, bound as if its tensors were on a GPU.
struct Bound {
    explicit Bound(const Case& c)
        : instance(c), problem(problem_on(find_judged("cuda"), instance, c.phase)) {}

    Instance instance;  // the problem's memory
    Problem problem;
};

Case mamba2(std::int64_t tokens = 130) {
    Case c = tensor_core_case("mamba2_all", tokens, 128, 64);
    c.dims.HV = 4;
    return c;
}

/// Why the method refuses the problem; empty: it does not.
std::string refused(const Problem& problem) {
    const Support support = cuda::scalar_method().supports(problem);
    EXPECT_EQ(support.ok, support.reason.empty());
    return support.reason;
}
std::string refused(const Case& c) { return refused(Bound(c).problem); }

/// The back end's plan.
Plan plan_of(const Problem& problem) { return find_backend("cuda").plan(problem, h200()); }

TEST(ScalarMethod, TakesWhatItIsFor) {
    EXPECT_EQ(refused(mamba2()), "");
    for (const char* form : {"linear", "linear_normalized", "retention", "lightning", "simple_gla",
                             "user_head_gate", "user_token_gate", "mamba2", "mamba2_plain_dt"}) {
        const Bound bound(tensor_core_case(form, 70, 64, 64));
        EXPECT_EQ(refused(bound.problem), "") << form;
        const Plan plan = plan_of(bound.problem);
        EXPECT_EQ(plan.kernel, "scalar") << form;
        EXPECT_EQ(plan.precision, Precision::kBFloat16);
        EXPECT_EQ(plan.notice, "");
    }
}

TEST(ScalarMethod, NamesTheTypesThatItDoesNotTake) {
    Case half = mamba2();
    half.dtype = DType::kFloat16;
    EXPECT_EQ(refused(half), "o is bfloat16; it must be float16");
    half.o_dtype = DType::kFloat16;
    EXPECT_EQ(refused(half), "");
    half.dtype = DType::kFloat32;
    EXPECT_EQ(refused(half), "C is float32; it must be bfloat16 or float16");
    Case wide = mamba2();
    wide.o_dtype = DType::kFloat32;
    EXPECT_EQ(refused(wide), "o is float32; it must be bfloat16");
    Case state = mamba2();
    state.state_dtype = DType::kFloat64;
    EXPECT_EQ(refused(state), "states must not be float64");
    Case gates = mamba2();
    gates.gate_dtype = DType::kFloat64;
    EXPECT_EQ(refused(gates), "dt is float64; it must be 16 or 32 bits wide");
}

TEST(ScalarMethod, NamesWhatItDoesNotNormalise) {
    EXPECT_EQ(refused(tensor_core_case("user_normalized_retention", 70, 64, 64)),
              "normalised outputs only without a decay");
    EXPECT_EQ(refused(tensor_core_case("user_elu1_normalized", 70, 64, 64)),
              "q and k must be inputs as they are");
    Bound sums(tensor_core_case("linear_normalized", 70, 64, 64));
    EXPECT_EQ(refused(sums.problem), "");
    sums.problem.final_key_sum.dtype = DType::kFloat64;
    EXPECT_EQ(refused(sums.problem), "states must not be float64");
}

TEST(ScalarMethod, NamesTheSizesThatItDoesNotTake) {
    EXPECT_EQ(refused(tensor_core_case("simple_gla", 70, 264, 64)), "K = 264; at most 256");
    EXPECT_EQ(refused(tensor_core_case("simple_gla", 70, 21, 64)), "K = 21; an even number");
    EXPECT_EQ(refused(tensor_core_case("simple_gla", 70, 64, 20)),
              "V = 20; a multiple of 8, at most 512");
    EXPECT_EQ(refused(tensor_core_case("simple_gla", 70, 64, 520)),
              "V = 520; a multiple of 8, at most 512");
    Case heads = tensor_core_case("retention", 1, 8, 8);
    heads.dims.H = heads.dims.HV = 257;
    EXPECT_EQ(refused(heads), "257 heads with constant decays; at most 256");
    Bound bound(mamba2());
    bound.problem.dims.N = std::int64_t{1} << 29;
    EXPECT_EQ(refused(bound.problem),
              "536870912 sequences x 4 heads; fewer than 2^31 blocks of threads");
    bound.problem.dims.N = 1;
    bound.problem.dims.T = std::numeric_limits<int>::max();
    EXPECT_EQ(refused(bound.problem), "T = 2147483647; at most 2147482623");
    bound.problem.dims.T = 0;
    EXPECT_EQ(refused(bound.problem), "no tokens");
}

TEST(ScalarMethod, NamesTheStridesThatBulkCopiesCannotFollow) {
    Case spread = mamba2();
    spread.strides = Strides::kInterleaved;
    EXPECT_EQ(refused(spread), "C has stride 2 along K; it must be 1");
    Bound bound(mamba2());
    for (BoundInput& input : bound.problem.inputs) {
        if (input.name == "z") input.stride[static_cast<std::size_t>(Axis::kT)] += 4;
    }
    EXPECT_EQ(refused(bound.problem),
              "z has a stride of 520 bytes along T; it must be a positive multiple of 16 below "
              "2^40");
    Bound state(mamba2());
    state.problem.final.stride_k = std::int64_t{1} << 23;
    EXPECT_EQ(refused(state.problem), "a state's head spans 2^31 bytes");
}

TEST(ScalarMethod, NamesTheOptionsThatItDoesNotTake) {
    Case exact = mamba2();
    exact.precision = Precision::kFloat32;
    EXPECT_EQ(refused(exact), "precision float32; tensor cores round operands to bfloat16");
    Case chunk = mamba2();
    chunk.chunk = 128;
    EXPECT_EQ(refused(chunk), "chunks of 64 tokens");
    Bound bound(mamba2());
    bound.problem.scale = 0;
    EXPECT_EQ(refused(bound.problem), "scale = 0; above 0");
    bound.problem.phase = Phase::kDecode;
    EXPECT_EQ(refused(bound.problem), "prefill only");
}

// Slower, but the caller learns why.
TEST(ScalarMethod, WhatItRefusesRunsTokenByTokenWithANotice) {
    Case spread = mamba2();
    spread.strides = Strides::kInterleaved;
    spread.algorithm = Algorithm::kAuto;
    spread.chunk = 0;
    const Bound bound(spread);
    const Plan plan = plan_of(bound.problem);
    EXPECT_EQ(plan.kernel, "recurrent");
    EXPECT_NE(plan.notice.find("not scalar: C has stride 2 along K; it must be 1"),
              std::string::npos)
        << plan.notice;
}

/// The strides of a dense tensor, which say how much memory it is.
void set_dense(BoundInput& x, const Dims& dims) {
    std::int64_t step = 1;
    for (int i = kNumAxes - 1; i >= 0; --i) {
        const auto axis = static_cast<Axis>(i);
        if (!x.has(axis)) continue;
        x.stride[static_cast<std::size_t>(i)] = step;
        step *= dims.extent(axis);
    }
}

/// A case of `form` with these sizes.
Bound sized(const char* form, const Dims& dims) {
    Bound bound(tensor_core_case(form, 1, 8, 8));
    bound.problem.dims = dims;
    for (BoundInput& input : bound.problem.inputs) set_dense(input, dims);
    return bound;
}

Plan scalar_plan(const char* form, const Dims& dims) {
    return cuda::scalar_method().plan(sized(form, dims).problem, h200());
}

// Few heads of sequences are spread over as many blocks as there can be. Many share blocks by two:
// heads, or tiles of one, where an odd head or tile is alone.
TEST(ScalarMethod, BlocksCoverEveryHeadAndChannel) {
    struct Expected {
        std::int64_t heads, values;
        std::int64_t value_tile, blocks;  // where the GPU is full
    };
    for (const auto& [heads, values, value_tile, blocks] : {Expected{1, 64, 64, 1},
                                                            {2, 64, 64, 1},
                                                            {4, 8, 64, 2},
                                                            {5, 64, 64, 3},
                                                            {7, 64, 64, 4},
                                                            {128, 64, 64, 64},
                                                            {1, 72, 128, 1},
                                                            {1, 128, 128, 1},
                                                            {3, 128, 128, 3},
                                                            {2, 192, 64, 3}}) {
        for (const std::int64_t keys : {16, 64, 72, 128, 136, 256}) {
            SCOPED_TRACE(fmt::format("{} heads, K {}, V {}", heads, keys, values));
            Dims d{.B = 264, .T = 64, .H = 2, .HV = 2 * heads, .K = keys, .V = values, .N = 264};
            const Plan many = scalar_plan("mamba2_all", d);
            // Above 128 key channels a block has one tile of one head.
            const std::int64_t alone = heads * ((values + 63) / 64);
            EXPECT_EQ(many.value_tile, keys > 128 ? 64 : value_tile);
            EXPECT_EQ(many.segments, 1);
            EXPECT_EQ(many.tasks, 264 * 2 * (keys > 128 ? alone : blocks));
            EXPECT_EQ(many.workspace_bytes, 0);
            if (heads > 64) continue;
            d.B = d.N = 1;
            const Plan few = scalar_plan("mamba2_all", d);
            EXPECT_EQ(few.value_tile, 64);
            EXPECT_EQ(few.tasks, 2 * alone);
        }
    }
}

// Times of one H200 in microseconds; the model's constants come from these and others. It does not
// know Lightning's strong heads, with which B1 T16384 takes 132.
TEST(ScalarMethod, PlansAndTimesAreAsMeasured) {
    struct Measured {
        const char* form;
        Dims dims;
        std::int64_t value_tile, blocks;  // of a segment
        int segments;
        double us;
    };
    const Dims wide{.B = 1, .T = 16384, .H = 16, .HV = 16, .K = 128, .V = 128, .N = 1};
    const Dims grouped{.B = 1, .T = 16384, .H = 1, .HV = 64, .K = 128, .V = 64, .N = 1};
    const auto of = [](Dims d, std::int64_t batch, std::int64_t tokens) {
        d.B = d.N = batch;
        d.T = tokens;
        return d;
    };
    for (const auto& m : {Measured{"simple_gla", wide, 64, 32, 4, 118},
                          {"retention", wide, 64, 32, 4, 118},
                          {"linear", wide, 64, 32, 4, 118},
                          {"simple_gla", of(wide, 1, 4096), 64, 32, 4, 39.3},
                          {"retention", of(wide, 1, 4096), 64, 32, 4, 39.1},
                          {"lightning", of(wide, 1, 4096), 64, 32, 4, 43.0},
                          {"linear", of(wide, 1, 4096), 64, 32, 4, 39.5},
                          {"simple_gla", of(wide, 16, 16384), 128, 256, 1, 1018},
                          {"linear_normalized", of(wide, 1, 4096), 64, 32, 4, 45.7},
                          {"linear_normalized", of(wide, 16, 16384), 128, 256, 1, 1032},
                          {"mamba2_bias_d", grouped, 64, 32, 4, 155},
                          {"mamba2_bias_d", of(grouped, 1, 4096), 64, 32, 4, 51},
                          {"mamba2_bias_d", of(grouped, 4, 16384), 64, 128, 1, 423},
                          {"mamba2_all", of(grouped, 4, 16384), 64, 128, 1, 870}}) {
        SCOPED_TRACE(fmt::format("{} B{} T{}", m.form, m.dims.B, m.dims.T));
        const Plan plan = scalar_plan(m.form, m.dims);
        EXPECT_EQ(plan.value_tile, m.value_tile);
        EXPECT_EQ(plan.segments, m.segments);
        EXPECT_EQ(plan.tasks, m.blocks * m.segments);
        EXPECT_NEAR(plan.predicted_us, m.us, 0.08 * m.us);
    }
}

// Where a kernel for the problem is compiled ahead, no length or batch needs a compiler.
TEST(ScalarMethod, StaysWithTheKernelsThatAreCompiledAhead) {
    for (const std::int64_t batch : {1, 3, 16}) {
        for (const std::int64_t tokens : {1, 64, 500, 4096, 16384}) {
            SCOPED_TRACE(fmt::format("B {}, T {}", batch, tokens));
            Dims d{.B = batch, .T = tokens, .H = 1, .HV = 64, .K = 128, .V = 64, .N = batch};
            const Plan pairs = scalar_plan("mamba2_bias_d", d);
            EXPECT_EQ(pairs.tasks, batch * 32 * pairs.segments);
            d.K = 64;
            d.H = d.HV = 8;
            d.V = 128;
            EXPECT_EQ(scalar_plan("simple_gla", d).value_tile, 64);
        }
    }
    // D per channel is compiled on first use whatever the shape: the fastest.
    const Dims few{.B = 1, .T = 448, .H = 1, .HV = 64, .K = 128, .V = 64, .N = 1};
    EXPECT_EQ(scalar_plan("mamba2_channel_d", few).tasks, 64);
    EXPECT_EQ(scalar_plan("mamba2_bias_d", few).tasks, 32);
}

// A sum of keys is a head's own, so heads do not share blocks. In the workspace: those of parts,
// and the initial ones where another block might overwrite them first.
TEST(ScalarMethod, KeepsSumsOfKeysInTheWorkspace) {
    const auto plan_of_sums = [](Dims d, bool initial, bool final) {
        Bound bound = sized("linear_normalized", d);
        bound.problem.batch_invariant = d.B > 1;
        if (!initial) bound.problem.initial_key_sum = {};
        if (!final) bound.problem.final_key_sum = {};
        return cuda::scalar_method().plan(bound.problem, h200());
    };
    const Dims many{.B = 264, .T = 64, .H = 2, .HV = 4, .K = 80, .V = 128, .N = 264};
    EXPECT_EQ(plan_of_sums(many, true, true).tasks, 264 * 4);
    EXPECT_EQ(plan_of_sums(many, true, true).workspace_bytes, 0);
    Dims wide = many;
    wide.V = 192;
    EXPECT_EQ(plan_of_sums(wide, true, true).workspace_bytes, 264 * 4 * 80 * 4);
    EXPECT_EQ(plan_of_sums(wide, false, true).workspace_bytes, 0);
    EXPECT_EQ(plan_of_sums(wide, true, false).workspace_bytes, 0);

    const Dims few{.B = 1, .T = 8192, .H = 2, .HV = 4, .K = 80, .V = 64, .N = 1};
    const Plan split = plan_of_sums(few, true, true);
    ASSERT_GT(split.segments, 1);
    const std::int64_t states = 4 * split.segments * (128 * 64 + 1) * 4;
    const std::int64_t parts = split.segments - 1;  // here a segment is one
    EXPECT_EQ(split.workspace_bytes, states + 4 * (parts + 1) * 80 * 4);
    EXPECT_EQ(plan_of_sums(few, false, true).workspace_bytes, states + 4 * parts * 80 * 4);
}

TEST(ScalarMethod, SplitsLongSequencesUnlessToldNotTo) {
    Bound bound(mamba2());
    Dims& d = bound.problem.dims;
    d = {.B = 1, .T = 16384, .H = 1, .HV = 64, .K = 128, .V = 64, .N = 1};
    const Plan split = cuda::scalar_method().plan(bound.problem, h200());
    EXPECT_GT(split.segments, 1);
    EXPECT_EQ(split.tasks, 32 * split.segments);
    // A state and a decay of both parts of each head's segments but the last, and the initial
    // state.
    const int states = 2 * (split.segments - 1) + 1;
    EXPECT_EQ(split.workspace_bytes, 64 * states * (128 * 64 + 1) * 4);
    EXPECT_LT(split.workspace_bytes, 16 << 20);
    bound.problem.batch_invariant = true;
    const Plan whole = cuda::scalar_method().plan(bound.problem, h200());
    EXPECT_EQ(whole.segments, 1);
    EXPECT_GT(whole.predicted_us, split.predicted_us);
}

}  // namespace
}  // namespace sluice::test
