// The same mathematics said in two ways gives the same numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/convert.hpp"
#include "support/cases.hpp"
#include "support/instance.hpp"
#include "support/judged.hpp"
#include "support/plain.hpp"

namespace sluice::test {
namespace {

struct Setting {
    std::string form;
    std::string backend;
    /// V of half-width tensors in whole tiles, which tensor-core kernels take; 0: not those.
    std::int64_t narrow = 0;
};

std::string name_of(const Setting& s) {
    const std::string values = s.narrow > 0 ? fmt::format("_narrow{}", s.narrow) : "";
    return fmt::format("{}_{}{}", s.backend, s.form, values);
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name_of(s); }

class Invariance : public testing::TestWithParam<Setting> {
  protected:
    void SetUp() override { SKIP_WITHOUT(GetParam().backend); }

    static Plain problem(Dims dims, Gates gates = Gates::kStrong, bool initial = true) {
        const Setting& s = GetParam();
        if (s.narrow > 0) dims.K = 64, dims.V = s.narrow;
        Plain plain = make_plain(find_form(s.form), dims,
                                 {.kinds = {.gates = gates},
                                  .dtype = s.narrow > 0 ? DType::kBFloat16 : DType::kFloat32,
                                  .seed = 7,
                                  .initial = initial});
        plain.options.backend = s.backend;
        if (s.narrow > 0) plain.o_dtype = DType::kBFloat16;
        return plain;
    }
    static bool has_chunks() { return find_judged(GetParam().backend).chunks; }

    /// Twice the bound: both sides are computed.
    static void expect_near(const TensorView& a, const TensorView& b, Update update,
                            Quantity quantity, const std::vector<Sequence>& sequences) {
        const Precision precision =
            GetParam().narrow > 0 ? Precision::kBFloat16 : Precision::kFloat32;
        const double limit = 2 * bound(precision, update, quantity);
        const Accuracy accuracy = compare(
            quantity == Quantity::kOutput ? token_blocks(a, b, sequences) : head_blocks(a, b));
        EXPECT_TRUE(within(accuracy, limit)) << describe(accuracy, limit);
    }
    static void expect_near(const Plain& plain, const Outputs& a, const Outputs& b) {
        expect_near(a.o, b.o, plain.spec.update, Quantity::kOutput, plain.sequences());
        expect_near(a.final, b.final, plain.spec.update, Quantity::kState, {});
        if (!plain.spec.normalize) return;
        expect_near(a.final_key_sum, b.final_key_sum, plain.spec.update, Quantity::kState, {});
    }
};

constexpr Dims kDims = {.B = 2, .T = 203, .H = 1, .HV = 2, .K = 24, .V = 40};

TEST_P(Invariance, AnyChunkAndTheRecurrence) {
    Plain plain = problem(kDims);
    plain.options.algorithm = Algorithm::kRecurrent;
    const Outputs recurrent = run(plain);
    plain.options.algorithm = has_chunks() ? Algorithm::kChunked : Algorithm::kAuto;
    const std::vector<int> chunks = {0, 16, 32, 48, 64, 128, 256};
    for (const int chunk : has_chunks() ? chunks : std::vector<int>{0}) {
        SCOPED_TRACE(chunk);
        plain.options.chunk = chunk;
        expect_near(plain, run(plain), recurrent);
    }
}

TEST_P(Invariance, SplitThroughTheState) {
    const Plain whole = problem(kDims);
    const Outputs expected = run(whole);
    for (const std::int64_t cut : {1, 64, 100, 202}) {
        SCOPED_TRACE(cut);
        const Plain first = tokens_of(whole, 0, cut);
        const Outputs a = run(first);
        Plain second = tokens_of(whole, cut, kDims.T);
        second.initial = a.final;
        if (second.spec.normalize) second.initial_key_sum = a.final_key_sum;
        const Outputs b = run(second);
        expect_near(a.o, expected.o.view().sliced(1, 0, cut), whole.spec.update, Quantity::kOutput,
                    first.sequences());
        expect_near(b.o, expected.o.view().sliced(1, cut, kDims.T), whole.spec.update,
                    Quantity::kOutput, second.sequences());
        expect_near(b.final, expected.final, whole.spec.update, Quantity::kState, {});
    }
}

TEST_P(Invariance, StepByStepIsForward) {
    Dims dims = kDims;
    dims.T = 37;
    const Plain whole = problem(dims);
    const Outputs expected = run(whole);
    Plain state = whole;
    for (std::int64_t t = 0, tokens = 1; t < dims.T; t += tokens) {
        // One token at a time, then three.
        tokens = t < 10 ? 1 : 3;
        Plain now = tokens_of(state, t, t + tokens);
        const Outputs out = run(now, Phase::kDecode);
        expect_near(out.o, expected.o.view().sliced(1, t, t + tokens), whole.spec.update,
                    Quantity::kOutput, now.sequences());
        state.initial = out.final;
        if (whole.spec.normalize) state.initial_key_sum = out.final_key_sum;
    }
    expect_near(*state.initial, expected.final, whole.spec.update, Quantity::kState, {});
}

// Every backend reads through strides: how the inputs lie cannot change a bit.
TEST_P(Invariance, BitsDoNotDependOnStrides) {
    for (const Algorithm algorithm : {Algorithm::kChunked, Algorithm::kRecurrent}) {
        if (algorithm == Algorithm::kChunked && !has_chunks()) continue;
        Case c;
        c.form = &find_form(GetParam().form);
        c.dims = {.B = 2, .T = 70, .H = 2, .HV = 4, .K = 20, .V = 16, .N = 2};
        c.states = States::kDense;
        c.algorithm = algorithm;
        c.seed = 5;
        Tensor o;
        for (int kind = 0; kind < kNumStrides; ++kind) {
            c.strides = static_cast<Strides>(kind);
            if (c.strides == Strides::kExpanded) continue;  // holds other values
            Instance instance(c);
            for (const Finding& finding : instance.judge(GetParam().backend)) {
                EXPECT_TRUE(finding.ok()) << describe(finding.accuracy, finding.bound);
            }
            if (!o.defined()) o = Tensor::copy_of(instance.arguments().o, DType::kFloat32);
            EXPECT_TRUE(same_bits(instance.arguments().o, o)) << to_string(c.strides);
        }
    }
}

TEST_P(Invariance, ValueFirstIsTheTransposedState) {
    Plain plain = problem(kDims);
    const Outputs key_first = run(plain);
    plain.options.state_layout = StateLayout::kValueFirst;
    plain.initial = Tensor::copy_of(plain.initial->view().transposed(2, 3), DType::kFloat32);
    const Outputs value_first = run(plain);
    EXPECT_TRUE(same_bits(key_first.o, value_first.o));
    EXPECT_TRUE(same_bits(key_first.final, value_first.final.view().transposed(2, 3)));
}

TEST_P(Invariance, NarrowOutputsAreTheWideOnesRounded) {
    Plain plain = problem(kDims);
    const Outputs wide = run(plain);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
        if (dtype == DType::kFloat64 && !find_judged(GetParam().backend).float64_tensors) continue;
        plain.state_dtype = dtype;
        if (GetParam().narrow == 0) plain.o_dtype = dtype;
        const Outputs out = run(plain);
        EXPECT_TRUE(same_bits(out.o, Tensor::copy_of(wide.o, plain.o_dtype))) << to_string(dtype);
        EXPECT_TRUE(same_bits(out.final, Tensor::copy_of(wide.final, dtype))) << to_string(dtype);
    }
}

TEST_P(Invariance, GroupedHeadsAreRepeatedHeads) {
    Dims dims = kDims;
    dims.H = 2;
    dims.HV = 6;
    const Plain grouped = problem(dims);
    Plain repeated = grouped;
    repeated.dims.H = 6;
    for (const Input& input : grouped.spec.inputs) {
        const auto at = std::find(input.axes.begin(), input.axes.end(), Axis::kH);
        if (at == input.axes.end()) continue;
        const int dim = static_cast<int>(at - input.axes.begin());
        const TensorView& few = grouped.input(input.name);
        const Tensor many = Tensor::empty(few.dtype, shape_of(repeated.dims, input.axes));
        for (std::int64_t h = 0; h < 6; ++h) {
            assign(many.view().sliced(dim, h, h + 1), few.sliced(dim, h / 3, h / 3 + 1));
        }
        repeated.inputs[input.name] = many;
    }
    const Outputs a = run(grouped);
    const Outputs b = run(repeated);
    EXPECT_TRUE(same_bits(a.o, b.o));
    EXPECT_TRUE(same_bits(a.final, b.final));
}

// A power of two commutes with rounding, unless an output stage or a normaliser follows.
TEST_P(Invariance, ScaleMultipliesTheOutput) {
    Plain plain = problem(kDims);
    if (plain.spec.normalize || !plain.spec.output.is_input("o")) return;
    plain.options.scale = 0.25;
    const Outputs a = run(plain);
    plain.options.scale = 1.0;
    const Outputs b = run(plain);
    EXPECT_TRUE(same_bits(a.final, b.final));
    for (std::int64_t i = 0; i < a.o.size(); ++i) {
        ASSERT_EQ(4 * load_element(a.o.view().data, a.o.dtype(), i),
                  load_element(b.o.view().data, b.o.dtype(), i));
    }
}

std::vector<Setting> settings() {
    std::vector<Setting> list;
    for (const Judged& backend : judged_backends()) {
        for (const Form& form : forms()) list.push_back({form.name, backend.name});
    }
    list.push_back({"gla", "cuda", 128});
    for (const char* form :
         {"linear", "linear_normalized", "retention", "simple_gla", "mamba2_all", "mamba2_d_z"}) {
        for (const std::int64_t values : {64, 128}) list.push_back({form, "cuda", values});
    }
    return list;
}

INSTANTIATE_TEST_SUITE_P(Forms, Invariance, testing::ValuesIn(settings()),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace sluice::test
