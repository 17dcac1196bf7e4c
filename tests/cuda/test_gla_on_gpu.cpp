// The tensor-core kernel for gated linear attention: what a plan chooses does not change bits,
// grids beyond 16 bits, and a workspace that is too small.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/mirror.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"
#include "support/refusal.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

class GlaOnGpu : public testing::Test {
  protected:
    void SetUp() override { SKIP_WITHOUT("cuda"); }

    static Plain problem(const Dims& dims, std::uint64_t seed = 1, Gates gates = Gates::kSpikes) {
        Plain plain = make_plain(
            find_form("gla"), dims,
            {.kinds = {.gates = gates}, .dtype = DType::kBFloat16, .seed = seed, .initial = true});
        plain.options.backend = "cuda";
        plain.options.batch_invariant = true;
        plain.o_dtype = DType::kBFloat16;
        return plain;
    }

    static Outputs run_gla(const Plain& plain, std::int64_t value_tile) {
        Outputs out = run(plain);
        EXPECT_EQ(out.plan.kernel, "gla");
        EXPECT_EQ(out.plan.segments, 1);
        EXPECT_EQ(out.plan.value_tile, value_tile) << out.plan.to_string();
        return out;
    }

    /// Outputs and final states of sequence `n` of packed ones against those of it alone.
    static void expect_row(const Outputs& all, const Plain& packed_rows, std::int64_t n,
                           const Outputs& alone) {
        SCOPED_TRACE(n);
        const Sequence s = packed_rows.sequences()[static_cast<std::size_t>(n)];
        EXPECT_TRUE(same_bits(all.o.view().sliced(1, s.begin, s.end), alone.o));
        EXPECT_TRUE(same_bits(all.final.view().sliced(0, n, n + 1), alone.final));
    }
};

// Alone, a sequence's two heads do not fill the GPU with tiles of 128 value channels: the planner
// takes the kernel for 64. Among a hundred neighbours it takes the one for 128.
TEST_F(GlaOnGpu, ASequenceHasTheSameBitsAloneAndAmongNeighboursInTheOtherKernel) {
    for (const Gates gates : {Gates::kSpikes, Gates::kMild}) {
        SCOPED_TRACE(static_cast<int>(gates));
        std::vector<Plain> rows;
        for (std::uint64_t n = 0; n < 100; ++n) {
            const std::int64_t tokens = n == 0 ? 1000 : n % 3 == 0 ? 150 : n % 3 == 1 ? 64 : 1;
            rows.push_back(
                problem({.B = 1, .T = tokens, .H = 1, .HV = 2, .K = 128, .V = 128}, n + 1, gates));
        }
        const Plain together = packed(rows);
        const Outputs all = run_gla(together, 128);
        for (const std::int64_t n : {0, 1, 2, 51, 99}) {
            expect_row(all, together, n, run_gla(rows[static_cast<std::size_t>(n)], 64));
        }
        // Among few, in its own.
        const std::vector<Plain> few(rows.begin(), rows.begin() + 4);
        expect_row(run_gla(packed(few), 64), packed(few), 3, run_gla(rows[3], 64));
    }
}

// A split sequence's first launch has other shapes for more neighbours, with one team or two.
TEST_F(GlaOnGpu, ASplitSequenceHasTheSameBitsAloneAndAmongNeighboursInAsManySegments) {
    for (const std::int64_t heads : {23, 40}) {
        SCOPED_TRACE(heads);
        Plain whole =
            problem({.B = 3, .T = 4096, .H = 1, .HV = heads, .K = 128, .V = 128}, 1, Gates::kMild);
        whole.options.batch_invariant = false;
        const auto run_first = [&](std::int64_t rows) {
            Plain part = whole;
            part.dims.B = part.dims.N = rows;
            for (auto& [name, input] : part.inputs) {
                input = Tensor::copy_of(input.view().sliced(0, 0, rows), input.dtype());
            }
            part.initial =
                Tensor::copy_of(whole.initial->view().sliced(0, 0, rows), whole.initial->dtype());
            return run(part);
        };
        const Outputs alone = run_first(1);
        EXPECT_GT(alone.plan.segments, 2);
        int compared = 0;
        for (const std::int64_t rows : {2, 3}) {
            const Outputs all = run_first(rows);
            if (all.plan.segments != alone.plan.segments) continue;  // other sums, then
            EXPECT_TRUE(same_bits(all.o.view().sliced(0, 0, 1), alone.o)) << rows;
            EXPECT_TRUE(same_bits(all.final.view().sliced(0, 0, 1), alone.final)) << rows;
            ++compared;
        }
        EXPECT_GT(compared, 0) << alone.plan.to_string();
    }
}

TEST_F(GlaOnGpu, ValueChannelsHaveTheSameBitsInAnyTile) {
    for (const std::int64_t keys : {64, 128, 256}) {
        SCOPED_TRACE(keys);
        const std::int64_t tile = keys > 128 ? 128 : 64;
        const Plain whole = problem({.B = 2, .T = 130, .H = 1, .HV = 1, .K = keys, .V = 200});
        const Outputs expected = run_gla(whole, tile);
        constexpr std::int64_t kCuts[] = {0, 8, 72, 136, 200};
        for (std::size_t i = 0; i + 1 < std::size(kCuts); ++i) {
            const std::int64_t begin = kCuts[i], end = kCuts[i + 1];
            SCOPED_TRACE(begin);
            Plain part = whole;
            part.dims.V = end - begin;
            part.inputs["v"] =
                Tensor::copy_of(whole.input("v").sliced(3, begin, end), DType::kBFloat16);
            part.initial = Tensor::copy_of(whole.initial->view().sliced(3, begin, end),
                                           whole.initial->dtype());
            const Outputs result = run_gla(part, tile);
            EXPECT_TRUE(same_bits(expected.o.view().sliced(3, begin, end), result.o));
            EXPECT_TRUE(same_bits(expected.final.view().sliced(3, begin, end), result.final));
        }
    }
}

// 65,600 heads of sequences: more than a grid's second and third dimension hold. Their contents
// recur, but not with a period that a wrapped index could hide behind.
TEST_F(GlaOnGpu, MoreHeadsOfSequencesThanSixteenBitsCount) {
    constexpr std::size_t kSequences = 2050, kContents = 41;
    std::vector<Plain> rows;
    for (std::size_t n = 0; n < kSequences; ++n) {
        rows.push_back(n < kContents
                           ? problem({.B = 1, .T = 16, .H = 32, .HV = 32, .K = 16, .V = 16}, n + 1,
                                     Gates::kMild)
                           : rows[n - kContents]);
    }
    const Plain many = packed(rows);
    const Outputs all = run_gla(many, 64);
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

TEST_F(GlaOnGpu, AWorkspaceThatIsTooSmallIsRefusedBeforeAnythingIsWritten) {
    const Device device = first_cuda_device();
    Plain plain = problem({.B = 1, .T = 4000, .H = 1, .HV = 1, .K = 64, .V = 64});
    plain.options.batch_invariant = false;
    const Tensor o = poisoned(DType::kBFloat16, {1, 4000, 1, 64});
    Arguments here = plain.arguments();
    here.o = o;
    const Mirror mirror(here, device);
    mirror.fetch();
    Arguments arguments = mirror.arguments();
    const Plan plan = prepare(plain.spec, arguments, plain.options);
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

}  // namespace
}  // namespace sluice::test
