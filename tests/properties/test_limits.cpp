// Sizes at the edges: one channel, many sequences, offsets past 2^31 elements, fresh outputs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>

#include "core/convert.hpp"
#include "support/guarded.hpp"
#include "support/plain.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

void expect_oracle(const Plain& plain, const Outputs& out) {
    const Outputs oracle = run_oracle(plain);
    const Update update = plain.spec.update;
    const double o_limit = bound(out.plan.precision, update, Quantity::kOutput);
    const Accuracy o = compare(token_blocks(out.o, oracle.o, plain.sequences()));
    EXPECT_TRUE(within(o, o_limit)) << describe(o, o_limit);
    const double state_limit = bound(out.plan.precision, update, Quantity::kState);
    const Accuracy state = compare(head_blocks(out.final, oracle.final));
    EXPECT_TRUE(within(state, state_limit)) << describe(state, state_limit);
}

const char* const kFamilies[] = {"linear_elu1",        "gla",     "mamba2_all",
                                 "gated_delta_rule",   "kda_raw", "user_rwkv7",
                                 "user_normalized_gla"};

TEST(Limits, AnySmallChannelCount) {
    for (const char* form : kFamilies) {
        for (const std::int64_t keys : {1, 2, 3, 7, 17, 33}) {
            for (const std::int64_t values : {1, 5, 31}) {
                for (const Algorithm algorithm : {Algorithm::kChunked, Algorithm::kRecurrent}) {
                    Plain plain = make_plain(
                        find_form(form), {.B = 1, .T = 67, .H = 1, .HV = 2, .K = keys, .V = values},
                        {.kinds = {.gates = Gates::kStrong}, .initial = true});
                    plain.options.algorithm = algorithm;
                    SCOPED_TRACE(
                        fmt::format("{} K {} V {} {}", form, keys, values, to_string(algorithm)));
                    expect_oracle(plain, run(plain));
                }
            }
        }
    }
}

TEST(Limits, HeadCountsThatAreNoPowerOfTwo) {
    for (const char* form : kFamilies) {
        for (const auto& [heads, value_heads] :
             {std::pair{3, 3}, {5, 10}, {6, 6}, {10, 10}, {1, 12}, {3, 9}}) {
            SCOPED_TRACE(fmt::format("{} H {} HV {}", form, heads, value_heads));
            const Plain plain = make_plain(
                find_form(form), {.B = 2, .T = 33, .H = heads, .HV = value_heads, .K = 8, .V = 12},
                {.kinds = {.keys = Keys::kNormalized}, .initial = true});
            expect_oracle(plain, run(plain));
        }
    }
}

TEST(Limits, MoreSequencesTimesHeadsThanSixteenBits) {
    for (const char* form : {"gla", "gated_delta_rule"}) {
        Plain plain = make_plain(find_form(form),
                                 {.B = 1, .T = 2050 * 16, .H = 32, .HV = 32, .K = 4, .V = 4});
        plain.dims.N = 2050;
        plain.lengths.assign(2050, 16);
        ASSERT_GT(plain.dims.N * plain.dims.HV, 65'535);
        expect_oracle(plain, run(plain));
    }
}

TEST(Limits, SequencesOfOneTokenAndLongOnes) {
    for (const char* form : kFamilies) {
        Plain plain =
            make_plain(find_form(form), {.B = 1, .T = 600, .H = 1, .HV = 1, .K = 16, .V = 16});
        plain.lengths.assign(50, 1);
        plain.lengths.push_back(550);
        plain.dims.N = 51;
        expect_oracle(plain, run(plain));
    }
}

/// Pages that exist only where they are touched.
std::shared_ptr<void> reserve(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    return {memory, [bytes](void* p) { munmap(p, bytes); }};
}

// Rows 2^31 elements apart: an offset kept in 32 bits would land elsewhere.
TEST(Limits, OffsetsPastThirtyOneBits) {
    constexpr std::int64_t kApart = (std::int64_t{1} << 31) + 64;
    for (const char* form : {"gla", "delta_rule"}) {
        const Plain plain =
            make_plain(find_form(form), {.B = 2, .T = 40, .H = 1, .HV = 2, .K = 8, .V = 8},
                       {.kinds = {}, .initial = true});
        const Outputs expected = run(plain);
        Arguments arguments = plain.arguments();
        std::vector<std::shared_ptr<void>> memory;
        const auto spread = [&](const TensorView& source) {
            memory.push_back(reserve(static_cast<std::size_t>(kApart + 64 * 1024) * 4));
            TensorView view = source;
            view.data = memory.back().get();
            view.stride_elements[0] = kApart;
            return view;
        };
        for (auto& [name, view] : arguments.inputs) {
            const TensorView wide = spread(view);
            if (wide.data == nullptr) GTEST_SKIP() << "no address space";
            assign(wide, view);
            view = wide;
        }
        arguments.o = spread(expected.o);
        arguments.state.final = spread(expected.final);
        const TensorView initial = spread(*plain.initial);
        if (initial.data == nullptr) GTEST_SKIP() << "no address space";
        assign(initial, *plain.initial);
        arguments.state.initial = initial;
        forward(plain.spec, arguments, plain.options);
        EXPECT_TRUE(same_bits(arguments.o, expected.o));
        EXPECT_TRUE(same_bits(*arguments.state.final, expected.final));
    }
}

TEST(Limits, ForwardNewMakesItsOutputs) {
    Plain plain = make_plain(find_form("kda"), {.B = 2, .T = 20, .H = 1, .HV = 2, .K = 8, .V = 12},
                             {.kinds = {}, .initial = true});
    plain.options.state_layout = StateLayout::kValueFirst;
    plain.initial = Tensor::copy_of(plain.initial->view().transposed(2, 3), DType::kFloat32);
    const Outputs expected = run(plain);
    const Result result =
        forward_new(plain.spec, plain.arguments(), DType::kBFloat16, plain.options);
    EXPECT_TRUE(same_bits(result.o, Tensor::copy_of(expected.o, DType::kBFloat16)));
    EXPECT_TRUE(same_bits(result.final_state, expected.final));
    EXPECT_EQ(sluice::to_string(result.final_state.shape()), "[2, 2, 12, 8]");
    EXPECT_EQ(result.plan.hash(), expected.plan.hash());
}

TEST(Limits, ForwardNewKeepsFloat64States) {
    const Plain plain =
        make_plain(find_form("gla"), {.B = 1, .T = 20, .H = 1, .HV = 1, .K = 8, .V = 12},
                   {.kinds = {}, .dtype = DType::kFloat64});
    const Result result =
        forward_new(plain.spec, plain.arguments(), DType::kFloat32, plain.options);
    EXPECT_EQ(result.final_state.dtype(), DType::kFloat64);
    EXPECT_EQ(result.plan.precision, Precision::kFloat64);
    EXPECT_TRUE(same_bits(result.final_state, run(plain).final));
}

}  // namespace
}  // namespace sluice::test
