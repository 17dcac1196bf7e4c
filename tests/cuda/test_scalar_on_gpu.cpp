// The tensor-core kernel for scalar decays: what a block of threads shares does not change bits,
// grids beyond 16 bits, and a workspace that is too small.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/mirror.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"
#include "support/refusal.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

class ScalarOnGpu : public testing::Test {
  protected:
    void SetUp() override { SKIP_WITHOUT("cuda"); }

    static Plain problem(const char* form, const Dims& dims, std::uint64_t seed = 1,
                         Gates gates = Gates::kSpikes) {
        Plain plain = make_plain(
            find_form(form), dims,
            {.kinds = {.gates = gates}, .dtype = DType::kBFloat16, .seed = seed, .initial = true});
        plain.options.backend = "cuda";
        plain.options.batch_invariant = true;
        plain.o_dtype = DType::kBFloat16;
        return plain;
    }

    static Outputs run_scalar(const Plain& plain, std::int64_t value_tile) {
        Outputs out = run(plain);
        EXPECT_EQ(out.plan.kernel, "scalar");
        EXPECT_EQ(out.plan.segments, 1);
        EXPECT_EQ(out.plan.value_tile, value_tile) << out.plan.to_string();
        return out;
    }
};

/// Channels [begin, end) of everything that has value channels.
Plain channels_of(const Plain& whole, std::int64_t begin, std::int64_t end) {
    Plain part = whole;
    part.dims.V = end - begin;
    for (const Input& input : whole.spec.inputs) {
        if (input.axes.back() != Axis::kV) continue;
        const TensorView& all = whole.input(input.name);
        part.inputs[input.name] = Tensor::copy_of(all.sliced(all.rank - 1, begin, end), all.dtype);
    }
    part.initial =
        Tensor::copy_of(whole.initial->view().sliced(3, begin, end), whole.initial->dtype());
    return part;
}

/// Value heads [begin, end) of the only key head.
Plain heads_of(const Plain& whole, std::int64_t begin, std::int64_t end) {
    Plain part = whole;
    part.dims.HV = end - begin;
    for (const Input& input : whole.spec.inputs) {
        const auto at = std::find(input.axes.begin(), input.axes.end(), Axis::kHV);
        if (at == input.axes.end()) continue;
        const TensorView& all = whole.input(input.name);
        part.inputs[input.name] = Tensor::copy_of(
            all.sliced(static_cast<int>(at - input.axes.begin()), begin, end), all.dtype);
    }
    part.initial =
        Tensor::copy_of(whole.initial->view().sliced(1, begin, end), whole.initial->dtype());
    return part;
}

// A tile beside another of its head, and alone. So many blocks that the planner gives a head's
// tiles two to a block.
TEST_F(ScalarOnGpu, ValueChannelsHaveTheSameBitsInAnyTile) {
    constexpr std::pair<const char*, std::int64_t> kSettings[] = {
        {"simple_gla", 128},       {"mamba2_all", 64},        {"mamba2_all", 128},
        {"mamba2_d_z", 64},        {"mamba2_channel_d", 128}, {"mamba2_channel_d", 64},
        {"linear_normalized", 128}};
    for (const auto& [form, keys] : kSettings) {
        SCOPED_TRACE(std::string(form) + " K " + std::to_string(keys));
        const Plain whole =
            problem(form, {.B = 12, .T = 130, .H = 1, .HV = 3, .K = keys, .V = 200});
        const Outputs expected = run_scalar(whole, 128);
        constexpr std::int64_t kCuts[] = {0, 8, 72, 136, 200};
        for (std::size_t i = 0; i + 1 < std::size(kCuts); ++i) {
            const std::int64_t begin = kCuts[i], end = kCuts[i + 1];
            SCOPED_TRACE(begin);
            const Outputs result = run_scalar(channels_of(whole, begin, end), 64);
            EXPECT_TRUE(same_bits(expected.o.view().sliced(3, begin, end), result.o));
            EXPECT_TRUE(same_bits(expected.final.view().sliced(3, begin, end), result.final));
            if (result.final_key_sum.defined()) {
                EXPECT_TRUE(same_bits(expected.final_key_sum, result.final_key_sum));
            }
        }
    }
}

// A head in a block of two, in one with a place left over, and in one for a head alone. D per head
// is compiled ahead for two; what is not takes two where there are many blocks.
TEST_F(ScalarOnGpu, HeadsHaveTheSameBitsBesideAnyOther) {
    constexpr std::pair<const char*, std::int64_t> kSettings[] = {
        {"mamba2_bias_d", 1}, {"mamba2_d_z", 1}, {"mamba2_all", 40}};
    for (const auto& [form, batch] : kSettings) {
        SCOPED_TRACE(form);
        const Plain whole =
            problem(form, {.B = batch, .T = 200, .H = 1, .HV = 5, .K = 128, .V = 64});
        const Outputs expected = run_scalar(whole, 64);
        EXPECT_EQ(expected.plan.tasks, 3 * batch);
        constexpr std::pair<std::int64_t, std::int64_t> kParts[] = {
            {0, 1}, {0, 3}, {1, 3}, {1, 5}, {4, 5}};
        for (const auto& [begin, end] : kParts) {
            SCOPED_TRACE(begin);
            const Outputs part = run_scalar(heads_of(whole, begin, end), 64);
            EXPECT_TRUE(same_bits(expected.o.view().sliced(2, begin, end), part.o));
            EXPECT_TRUE(same_bits(expected.final.view().sliced(1, begin, end), part.final));
        }
    }
}

// Many heads share a launch that computes scores; two have their own.
TEST_F(ScalarOnGpu, SharedScoresChangeNoBits) {
    for (const Gates gates : {Gates::kMild, Gates::kStrong, Gates::kSpikes}) {
        for (const std::int64_t keys : {64, 128}) {
            const Plain whole =
                problem("mamba2_bias_d", {.B = 2, .T = 3100, .H = 1, .HV = 16, .K = keys, .V = 64},
                        3, gates);
            const Outputs shared = run_scalar(whole, 64);
            EXPECT_GT(shared.plan.workspace_bytes, 0);
            constexpr std::pair<std::int64_t, std::int64_t> kParts[] = {{0, 2}, {3, 4}, {13, 16}};
            for (const auto& [begin, end] : kParts) {
                SCOPED_TRACE(begin);
                const Outputs part = run_scalar(heads_of(whole, begin, end), 64);
                EXPECT_EQ(part.plan.workspace_bytes, 0);
                EXPECT_TRUE(same_bits(shared.o.view().sliced(2, begin, end), part.o));
                EXPECT_TRUE(same_bits(shared.final.view().sliced(1, begin, end), part.final));
            }
        }
    }
}

// 65,600 heads of sequences: more than a grid's second and third dimension hold. Their contents
// recur, but not with a period that a wrapped index could hide behind.
TEST_F(ScalarOnGpu, MoreHeadsOfSequencesThanSixteenBitsCount) {
    constexpr std::size_t kSequences = 2050, kContents = 41;
    std::vector<Plain> rows;
    for (std::size_t n = 0; n < kSequences; ++n) {
        rows.push_back(n < kContents
                           ? problem("simple_gla",
                                     {.B = 1, .T = 16, .H = 32, .HV = 32, .K = 16, .V = 16}, n + 1,
                                     Gates::kMild)
                           : rows[n - kContents]);
    }
    const Plain many = packed(rows);
    const Outputs all = run_scalar(many, 64);
    const auto expect_near = [](Quantity quantity, const std::vector<Block>& blocks) {
        const double limit = bound(Precision::kBFloat16, Update::kAdditive, quantity);
        const Accuracy accuracy = compare(blocks);
        EXPECT_TRUE(within(accuracy, limit)) << describe(accuracy, limit);
    };
    for (const std::size_t n : {0, 1, 1023, 2047, 2048, 2049}) {
        SCOPED_TRACE(n);
        const Outputs exact = run_oracle(rows[n]);
        const Sequence s = many.sequences()[n];
        const auto row = static_cast<std::int64_t>(n);
        expect_near(Quantity::kOutput, token_blocks(all.o.view().sliced(1, s.begin, s.end), exact.o,
                                                    rows[n].sequences()));
        expect_near(Quantity::kState,
                    head_blocks(all.final.view().sliced(0, row, row + 1), exact.final));
    }
}

TEST_F(ScalarOnGpu, AWorkspaceThatIsTooSmallIsRefusedBeforeAnythingIsWritten) {
    const Device device = first_cuda_device();
    Plain plain = problem("mamba2_bias_d", {.B = 1, .T = 4000, .H = 1, .HV = 3, .K = 64, .V = 64});
    plain.options.batch_invariant = false;
    const Tensor o = poisoned(DType::kBFloat16, {1, 4000, 3, 64});
    Arguments here = plain.arguments();
    here.o = o;
    const Mirror mirror(here, device);
    mirror.fetch();
    Arguments arguments = mirror.arguments();
    const Plan plan = prepare(plain.spec, arguments, plain.options);
    ASSERT_EQ(plan.kernel, "scalar");
    ASSERT_GT(plan.segments, 1);
    ASSERT_GT(plan.workspace_bytes, 256);

    const std::int64_t bytes[] = {plan.workspace_bytes};
    const Tensor workspace = empty_on(DType::kBool, bytes, device);
    arguments.workspace = workspace.view().sliced(0, 0, plan.workspace_bytes - 1);
    EXPECT_EQ(refusal([&] { (void)forward(plain.spec, arguments, plain.options); }),
              "value | workspace | " + std::to_string(plan.workspace_bytes - 1) +
                  " bytes | at least " + std::to_string(plan.workspace_bytes) + " bytes");
    EXPECT_TRUE(same_bits(copy_on(arguments.o, Device{}), o));
    arguments.workspace = workspace.view();
    EXPECT_EQ(refusal([&] { (void)forward(plain.spec, arguments, plain.options); }), "accepted");
}

// Without a split, a sequence's bits are its own.
TEST_F(ScalarOnGpu, ASequenceHasTheSameBitsAloneAndAmongAHundred) {
    for (const char* form : {"mamba2_d_z", "simple_gla", "linear_normalized"}) {
        SCOPED_TRACE(form);
        std::vector<Plain> rows;
        for (std::uint64_t n = 0; n < 100; ++n) {
            const std::int64_t tokens = n == 0 ? 1000 : n % 3 == 0 ? 150 : n % 3 == 1 ? 64 : 1;
            Plain row =
                problem(form, {.B = 1, .T = tokens, .H = 1, .HV = 2, .K = 128, .V = 64}, n + 1);
            for (const Input& input : row.spec.inputs) {
                if (n > 0 && !token_dim(input)) {
                    row.inputs[input.name] = rows.front().inputs.at(input.name);
                }
            }
            rows.push_back(row);
        }
        const Plain together = packed(rows);
        const Outputs all = run_scalar(together, 64);
        for (const std::int64_t n : {0, 1, 2, 51, 99}) {
            SCOPED_TRACE(n);
            const Sequence s = together.sequences()[static_cast<std::size_t>(n)];
            const Outputs alone = run_scalar(rows[static_cast<std::size_t>(n)], 64);
            EXPECT_TRUE(same_bits(all.o.view().sliced(1, s.begin, s.end), alone.o));
            EXPECT_TRUE(same_bits(all.final.view().sliced(0, n, n + 1), alone.final));
        }
    }
}

}  // namespace
}  // namespace sluice::test
