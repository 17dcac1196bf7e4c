// The state contract: pools, slots, masks, checkpoints, speculative decoding.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/convert.hpp"
#include "support/guarded.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

constexpr Dims kDims = {.B = 3, .T = 20, .H = 1, .HV = 2, .K = 12, .V = 24};

/// One form per update and decay, and a normalised one.
std::vector<std::string> form_names() {
    return {"linear",     "retention", "simple_gla",       "gla",        "mamba2_all",
            "delta_rule", "kda",       "gated_delta_rule", "user_rwkv7", "user_elu1_normalized"};
}

class States : public testing::TestWithParam<std::tuple<std::string, std::string>> {
  protected:
    void SetUp() override { SKIP_WITHOUT(std::get<1>(GetParam())); }

    static Plain problem(const Dims& dims = kDims) {
        Plain plain = make_plain(find_form(std::get<0>(GetParam())), dims,
                                 {.kinds = {.gates = Gates::kMild}, .seed = 9, .initial = true});
        plain.options.backend = std::get<1>(GetParam());
        return plain;
    }

    /// A pool of `slots` states that holds row n of `dense` in slot at[n], and poison elsewhere.
    static Tensor pool(const Tensor& dense, std::int64_t slots,
                       const std::vector<std::int64_t>& at) {
        std::vector<std::int64_t> shape(dense.shape().begin(), dense.shape().end());
        shape[0] = slots;
        const Tensor pool = poisoned(dense.dtype(), shape);
        for (std::size_t n = 0; n < at.size(); ++n) {
            const auto row = static_cast<std::int64_t>(n);
            if (at[n] >= 0) {
                assign(pool.view().sliced(0, at[n], at[n] + 1),
                       dense.view().sliced(0, row, row + 1));
            }
        }
        return pool;
    }

    static bool untouched(const TensorView& slots) {
        return same_bits(slots,
                         poisoned(slots.dtype, {slots.shape().begin(), slots.shape().end()}));
    }

    /// A call with states in pools; keeps its tensors.
    struct PoolCall {
        Arguments arguments;
        Tensor o, initial, final, initial_sum, final_sum;
        std::vector<Tensor> indices;

        std::optional<TensorView> index(const std::vector<std::int64_t>& values,
                                        DType dtype = DType::kInt64) {
            indices.push_back(index_tensor(values, dtype));
            return indices.back().view();
        }
    };

    static PoolCall pool_call(const Plain& plain, const std::vector<std::int64_t>& held_at,
                              std::int64_t slots) {
        const Dims& d = plain.dims;
        PoolCall call;
        call.arguments = plain.arguments();
        call.o = poisoned(DType::kFloat32, {d.B, d.T, d.HV, d.V});
        call.initial = pool(*plain.initial, slots, held_at);
        call.final = poisoned(DType::kFloat32, plain.state_shape(slots));
        call.arguments.o = call.o;
        call.arguments.state.initial = call.initial.view();
        call.arguments.state.final = call.final.view();
        if (plain.spec.normalize) {
            call.initial_sum = pool(*plain.initial_key_sum, slots, held_at);
            call.final_sum = poisoned(DType::kFloat32, {slots, d.HV, d.K});
            call.arguments.state.initial_key_sum = call.initial_sum.view();
            call.arguments.state.final_key_sum = call.final_sum.view();
        }
        return call;
    }

    static TensorView row(const Tensor& tensor, std::int64_t n) {
        return tensor.view().sliced(0, n, n + 1);
    }
};

TEST_P(States, PoolsAreDenseStatesElsewhere) {
    const Plain plain = problem();
    const Outputs dense = run(plain);
    PoolCall call = pool_call(plain, {4, 0, 6}, 7);
    call.arguments.state.read_slots = call.index({4, 0, 6});
    call.arguments.state.write_slots = call.index({1, 5, 2});
    test::call(plain.spec, call.arguments, plain.options);
    EXPECT_TRUE(same_bits(call.o, dense.o));
    const std::int64_t slots[] = {1, 5, 2};
    for (std::int64_t n = 0; n < 3; ++n) {
        EXPECT_TRUE(same_bits(row(call.final, slots[n]), row(dense.final, n)));
        if (!plain.spec.normalize) continue;
        EXPECT_TRUE(same_bits(row(call.final_sum, slots[n]), row(dense.final_key_sum, n)));
    }
    for (const std::int64_t slot : {0, 3, 4, 6}) EXPECT_TRUE(untouched(row(call.final, slot)));
}

TEST_P(States, OnePoolInPlace) {
    const Plain plain = problem();
    const Outputs dense = run(plain);
    PoolCall call = pool_call(plain, {4, 0, 6}, 7);
    call.arguments.state.final = call.arguments.state.initial;
    call.arguments.state.final_key_sum = call.arguments.state.initial_key_sum;
    call.arguments.state.read_slots = call.index({4, 0, 6});
    // In its own slot, in another one, and nowhere.
    call.arguments.state.write_slots = call.index({4, 3, -1});
    test::call(plain.spec, call.arguments, plain.options);
    EXPECT_TRUE(same_bits(call.o, dense.o));
    EXPECT_TRUE(same_bits(row(call.initial, 4), row(dense.final, 0)));
    EXPECT_TRUE(same_bits(row(call.initial, 3), row(dense.final, 1)));
    EXPECT_TRUE(same_bits(row(call.initial, 0), row(*plain.initial, 1)));
    EXPECT_TRUE(same_bits(row(call.initial, 6), row(*plain.initial, 2)));
    for (const std::int64_t slot : {1, 2, 5}) EXPECT_TRUE(untouched(row(call.initial, slot)));
}

TEST_P(States, MinusOneReadsZeroAndWritesNothing) {
    const Plain plain = problem();
    Plain from_zero = plain;
    from_zero.initial.reset();
    from_zero.initial_key_sum.reset();
    const Outputs with = run(plain);
    const Outputs without = run(from_zero);
    PoolCall call = pool_call(plain, {4, -1, 6}, 7);
    call.arguments.state.read_slots = call.index({4, -1, 6});
    call.arguments.state.write_slots = call.index({-1, 2, 0});
    test::call(plain.spec, call.arguments, plain.options);
    EXPECT_TRUE(same_bits(row(call.o, 0), row(with.o, 0)));
    EXPECT_TRUE(same_bits(row(call.o, 1), row(without.o, 1)));
    EXPECT_TRUE(same_bits(row(call.final, 2), row(without.final, 1)));
    EXPECT_TRUE(same_bits(row(call.final, 0), row(with.final, 2)));
    for (const std::int64_t slot : {1, 3, 4, 5, 6}) {
        EXPECT_TRUE(untouched(row(call.final, slot)));
    }
}

TEST_P(States, OneSlotReadByAll) {
    Plain plain = problem();
    for (std::int64_t n = 1; n < 3; ++n) {
        assign(row(*plain.initial, n), row(*plain.initial, 0));
        if (plain.spec.normalize)
            assign(row(*plain.initial_key_sum, n), row(*plain.initial_key_sum, 0));
    }
    const Outputs dense = run(plain);
    PoolCall call = pool_call(plain, {3, 3, 3}, 4);
    call.arguments.state.read_slots = call.index({3, 3, 3});
    call.arguments.state.write_slots = call.index({0, 1, 2});
    test::call(plain.spec, call.arguments, plain.options);
    EXPECT_TRUE(same_bits(call.o, dense.o));
    EXPECT_TRUE(same_bits(call.final.view().sliced(0, 0, 3), dense.final));
}

TEST_P(States, MaskedSequencesStartFromZero) {
    Plain plain = problem();
    Plain from_zero = plain;
    from_zero.initial.reset();
    from_zero.initial_key_sum.reset();
    const Outputs with = run(plain);
    const Outputs without = run(from_zero);
    // What is masked is never read.
    assign(row(*plain.initial, 1), poisoned(DType::kFloat32, plain.state_shape(1)));
    PoolCall call = pool_call(plain, {0, 1, 2}, 3);
    call.arguments.state.has_initial = call.index({1, 0, 1}, DType::kBool);
    test::call(plain.spec, call.arguments, plain.options);
    for (std::int64_t n = 0; n < 3; ++n) {
        const Outputs& expected = n == 1 ? without : with;
        EXPECT_TRUE(same_bits(row(call.o, n), row(expected.o, n)));
        EXPECT_TRUE(same_bits(row(call.final, n), row(expected.final, n)));
    }
}

TEST_P(States, EmptySequencesKeepTheirState) {
    Plain plain = problem({.B = 1, .T = 16, .H = 1, .HV = 2, .K = 12, .V = 24});
    plain.lengths = {0, 0, 16, 0};
    plain.dims.N = 4;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        const Tensor states = Tensor::empty(DType::kFloat32, plain.state_shape(4));
        Random random(8);
        for (float& x : states.elements<float>()) x = static_cast<float>(random.normal());
        plain.initial = Tensor::copy_of(states, dtype);
        plain.state_dtype = dtype;
        if (plain.spec.normalize) {
            const Tensor sums = Tensor::empty(dtype, {4, 2, 12});
            for (std::int64_t i = 0; i < sums.size(); ++i) {
                store_element(sums.view().data, dtype, i, random.uniform());
            }
            plain.initial_key_sum = sums;
        }
        const Outputs out = run(plain);
        for (const std::int64_t n : {0, 1, 3}) {
            EXPECT_TRUE(same_bits(row(out.final, n), row(*plain.initial, n))) << to_string(dtype);
            if (!plain.spec.normalize) continue;
            EXPECT_TRUE(same_bits(row(out.final_key_sum, n), row(*plain.initial_key_sum, n)));
        }
        EXPECT_TRUE(all_finite(out.o));
    }
    plain.initial.reset();
    plain.initial_key_sum.reset();
    plain.state_dtype = DType::kFloat32;
    const Outputs out = run(plain);
    for (const std::int64_t n : {0, 1, 3}) {
        EXPECT_TRUE(
            same_bits(row(out.final, n), Tensor::zeros(DType::kFloat32, plain.state_shape(1))));
    }
}

TEST_P(States, NoTokensAtAll) {
    Dims dims = kDims;
    dims.T = 0;
    Plain plain = problem(dims);
    const Outputs kept = run(plain);
    EXPECT_TRUE(same_bits(kept.final, *plain.initial));
    plain.initial.reset();
    plain.initial_key_sum.reset();
    const Outputs zero = run(plain);
    EXPECT_TRUE(same_bits(zero.final, Tensor::zeros(DType::kFloat32, plain.state_shape(3))));
}

TEST_P(States, CheckpointsAreFinalStatesOfTheBeginning) {
    if (problem().spec.normalize) return;
    Dims dims = kDims;
    dims.B = 2;
    dims.T = 200;
    Plain plain = problem(dims);
    // A back end that need not have chunks chooses for itself.
    const bool chunks = plain.options.backend != "cuda";
    for (const int chunk : chunks ? std::vector<int>{0, 16, 48, 128} : std::vector<int>{0}) {
        SCOPED_TRACE(chunk);
        plain.options.chunk = chunk;
        const Outputs whole = run(plain);
        PoolCall call = pool_call(plain, {0, 1}, 2);
        const Tensor checkpoints = poisoned(DType::kFloat32, plain.state_shape(9));
        const std::int64_t sequences[] = {1, 0, 1, 0, 1, 0, 0};
        const std::int64_t positions[] = {64, 192, 128, 0, 0, 64, 128};
        const std::int64_t slots[] = {7, 2, 0, 5, 8, -1, 3};
        call.arguments.state.checkpoints = checkpoints.view();
        call.arguments.state.checkpoint_sequences =
            call.index({std::begin(sequences), std::end(sequences)});
        call.arguments.state.checkpoint_positions =
            call.index({std::begin(positions), std::end(positions)});
        call.arguments.state.checkpoint_slots = call.index({std::begin(slots), std::end(slots)});
        test::call(plain.spec, call.arguments, plain.options);
        // Asking for states inside changes nothing outside, but for where a longer chunk is cut.
        if (64 % whole.plan.chunk == 0) {
            EXPECT_TRUE(same_bits(call.o, whole.o));
            EXPECT_TRUE(same_bits(call.final, whole.final));
        }
        const double o_limit = 2 * bound(Precision::kFloat32, plain.spec.update, Quantity::kOutput);
        const Accuracy o = compare(token_blocks(call.o, whole.o, plain.sequences()));
        EXPECT_TRUE(within(o, o_limit)) << describe(o, o_limit);
        for (std::size_t i = 0; i < std::size(slots); ++i) {
            if (slots[i] < 0) continue;
            const Outputs beginning = run(tokens_of(plain, 0, positions[i]));
            const double limit =
                2 * bound(Precision::kFloat32, plain.spec.update, Quantity::kState);
            const Accuracy accuracy = compare(
                head_blocks(row(checkpoints, slots[i]), row(beginning.final, sequences[i])));
            EXPECT_TRUE(within(accuracy, limit))
                << positions[i] << ": " << describe(accuracy, limit);
            if (positions[i] == 0) {
                EXPECT_TRUE(
                    same_bits(row(checkpoints, slots[i]), row(*plain.initial, sequences[i])));
            }
        }
        for (const std::int64_t slot : {1, 4, 6}) EXPECT_TRUE(untouched(row(checkpoints, slot)));
    }
}

TEST_P(States, PaddingRowsOfAStepAreZeroAndTouchNothing) {
    Dims dims = kDims;
    dims.T = 1;
    const Plain plain = problem(dims);
    const Outputs dense = run(plain, Phase::kDecode);
    PoolCall call = pool_call(plain, {4, -1, 6}, 7);
    call.arguments.state.read_slots = call.index({4, -1, 6});
    call.arguments.state.write_slots = call.index({1, -1, 2});
    test::call(plain.spec, call.arguments, plain.options, Phase::kDecode);
    EXPECT_TRUE(same_bits(row(call.o, 0), row(dense.o, 0)));
    EXPECT_TRUE(same_bits(row(call.o, 2), row(dense.o, 2)));
    EXPECT_TRUE(same_bits(row(call.o, 1), Tensor::zeros(DType::kFloat32, {1, 1, 2, 24})));
    for (const std::int64_t slot : {0, 3, 4, 5, 6}) {
        EXPECT_TRUE(untouched(row(call.final, slot)));
    }
}

// A padding row's inputs are whatever the batch buffer held.
TEST_P(States, PaddingRowsMayHoldGarbage) {
    Dims dims = kDims;
    dims.T = 2;
    Plain plain = problem(dims);
    const Outputs dense = run(plain, Phase::kDecode);
    for (const Input& input : plain.spec.inputs) {
        if (input.axes.front() != Axis::kB) continue;
        Dims one = dims;
        one.B = 1;
        assign(plain.input(input.name).sliced(0, 1, 2),
               poisoned(DType::kFloat32, shape_of(one, input.axes)));
    }
    PoolCall call = pool_call(plain, {0, -1, 2}, 3);
    call.arguments.state.final = call.arguments.state.initial;
    call.arguments.state.final_key_sum = call.arguments.state.initial_key_sum;
    call.arguments.state.read_slots = call.index({0, -1, 2});
    call.arguments.state.write_slots = call.arguments.state.read_slots;
    test::call(plain.spec, call.arguments, plain.options, Phase::kDecode);
    EXPECT_TRUE(same_bits(row(call.o, 0), row(dense.o, 0)));
    EXPECT_TRUE(same_bits(row(call.o, 1), Tensor::zeros(DType::kFloat32, {1, 2, 2, 24})));
    EXPECT_TRUE(untouched(row(call.initial, 1)));
    EXPECT_TRUE(same_bits(row(call.initial, 2), row(dense.final, 2)));
}

// Only a row that names -1 on both sides is padding.
TEST_P(States, DiscardedStatesStillGiveOutputs) {
    Dims dims = kDims;
    dims.T = 1;
    const Plain plain = problem(dims);
    const Outputs dense = run(plain, Phase::kDecode);
    PoolCall call = pool_call(plain, {0, 1, 2}, 3);
    call.arguments.state.write_slots = call.index({-1, 0, -1});
    test::call(plain.spec, call.arguments, plain.options, Phase::kDecode);
    EXPECT_TRUE(same_bits(call.o, dense.o));
    EXPECT_TRUE(same_bits(row(call.final, 0), row(dense.final, 1)));
    EXPECT_TRUE(untouched(call.final.view().sliced(0, 1, 3)));
}

TEST_P(States, StateAfterEveryTokenOfAStep) {
    Dims dims = kDims;
    dims.T = 4;
    const Plain plain = problem(dims);
    PoolCall call = pool_call(plain, {0, 1, 2}, 14);
    call.arguments.state.read_slots = call.index({0, 1, 2});
    const Tensor slots = index_tensor({2, 3, 4, 5, 6, -1, 7, 8, 13, 12, 11, -1});
    call.arguments.state.write_slots = TensorView(slots.view().data, DType::kInt64, {3, 4});
    test::call(plain.spec, call.arguments, plain.options, Phase::kDecode);
    Plain recurrent = plain;
    recurrent.options.algorithm = Algorithm::kRecurrent;
    for (std::int64_t t = 0; t < 4; ++t) {
        const Outputs beginning = run(tokens_of(recurrent, 0, t + 1), Phase::kDecode);
        for (std::int64_t n = 0; n < 3; ++n) {
            const std::int64_t slot =
                slots.elements<std::int64_t>()[static_cast<std::size_t>(4 * n + t)];
            EXPECT_TRUE(same_bits(call.o.view().sliced(0, n, n + 1).sliced(1, t, t + 1),
                                  beginning.o.view().sliced(0, n, n + 1).sliced(1, t, t + 1)));
            if (slot < 0) continue;
            EXPECT_TRUE(same_bits(row(call.final, slot), row(beginning.final, n))) << t;
            if (!plain.spec.normalize) continue;
            EXPECT_TRUE(same_bits(row(call.final_sum, slot), row(beginning.final_key_sum, n)));
        }
    }
    for (const std::int64_t slot : {0, 1, 9, 10}) EXPECT_TRUE(untouched(row(call.final, slot)));
}

// Draft four tokens, keep some, go on from the state after the last kept one.
TEST_P(States, SpeculativeDecodingRollsBack) {
    Dims dims = kDims;
    dims.T = 8;
    const Plain whole = problem(dims);
    const std::vector<std::int64_t> kept = {1, 4, 3};

    const Plain draft = tokens_of(whole, 0, 4);
    PoolCall first = pool_call(draft, {0, 1, 2}, 3);
    const Tensor pool = poisoned(DType::kFloat32, whole.state_shape(12));
    const Tensor sum_pool = poisoned(DType::kFloat32, {12, dims.HV, dims.K});
    const Tensor slots = index_tensor({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    const TensorView matrix(slots.view().data, DType::kInt64, {3, 4});
    first.arguments.state.final = pool.view();
    if (whole.spec.normalize) first.arguments.state.final_key_sum = sum_pool.view();
    first.arguments.state.write_slots = matrix;
    test::call(draft.spec, first.arguments, draft.options, Phase::kDecode);

    // Sequence n goes on with tokens kept[n] ... kept[n] + 2.
    Plain next = tokens_of(whole, 0, 2);
    for (const Input& input : whole.spec.inputs) {
        if (!token_dim(input)) continue;
        for (std::int64_t n = 0; n < 3; ++n) {
            const std::int64_t at = kept[static_cast<std::size_t>(n)];
            assign(next.input(input.name).sliced(0, n, n + 1),
                   whole.input(input.name).sliced(0, n, n + 1).sliced(1, at, at + 2));
        }
    }
    PoolCall second = pool_call(next, {0, 1, 2}, 3);
    second.arguments.state.initial = pool.view();
    if (whole.spec.normalize) second.arguments.state.initial_key_sum = sum_pool.view();
    second.arguments.state.read_slots = matrix;
    second.arguments.state.accepted = second.index(kept);
    test::call(next.spec, second.arguments, next.options, Phase::kDecode);

    Plain recurrent = whole;
    recurrent.options.algorithm = Algorithm::kRecurrent;
    const Outputs expected = run(recurrent);
    for (std::int64_t n = 0; n < 3; ++n) {
        const std::int64_t at = kept[static_cast<std::size_t>(n)];
        const TensorView wanted = expected.o.view().sliced(0, n, n + 1).sliced(1, at, at + 2);
        const double limit = 2 * bound(Precision::kFloat32, whole.spec.update, Quantity::kOutput);
        const Accuracy accuracy = compare(whole_block(row(second.o, n), wanted));
        EXPECT_TRUE(within(accuracy, limit)) << n << ": " << describe(accuracy, limit);
    }
}

// Without `accepted` a matrix of read slots means its first column.
TEST_P(States, MatrixOfReadSlotsWithoutCounts) {
    Dims dims = kDims;
    dims.T = 1;
    const Plain plain = problem(dims);
    const Outputs dense = run(plain, Phase::kDecode);
    PoolCall call = pool_call(plain, {5, 3, 1}, 6);
    const Tensor slots = index_tensor({5, 0, 3, 0, 1, 0});
    call.arguments.state.read_slots = TensorView(slots.view().data, DType::kInt64, {3, 2});
    call.arguments.state.write_slots = call.index({0, 1, 2});
    test::call(plain.spec, call.arguments, plain.options, Phase::kDecode);
    EXPECT_TRUE(same_bits(call.o, dense.o));
}

INSTANTIATE_TEST_SUITE_P(Forms, States,
                         testing::Combine(testing::ValuesIn(form_names()),
                                          testing::Values("cpu", "oracle", "cuda")),
                         [](const auto& parameter) {
                             return std::get<0>(parameter.param) + "_" +
                                    std::get<1>(parameter.param);
                         });

}  // namespace
}  // namespace sluice::test
