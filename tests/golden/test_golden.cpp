// Vectors from the field's step-by-step references: every backend, algorithm and state layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "sluice/forward.hpp"
#include "sluice/safetensors.hpp"
#include "sluice/variants.hpp"
#include "support/judged.hpp"
#include "support/metrics.hpp"
#include "support/on_device.hpp"
#include "support/tolerances.hpp"

namespace sluice {
namespace {

constexpr double kFloat32Bound = 1e-5;
/// How closely the vectors themselves agree with a float64 time loop.
constexpr double kGoldenBound = 2e-6;

const std::filesystem::path kDirectory =
    std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/data/golden";

/// Which of the two gates that kda's files hold.
enum class Gate : unsigned char { kRaw, kGiven };

struct Golden {
    TensorFile file;
    Spec spec;
    Arguments arguments;
    Options options;

    [[nodiscard]] const Tensor* find(const std::string& name) const {
        const auto it = file.tensors.find(name);
        return it == file.tensors.end() ? nullptr : &it->second;
    }
};

Golden load(const std::string& name, Gate gate = Gate::kRaw) {
    Golden golden;
    golden.file = read_safetensors(kDirectory / (name + ".safetensors"));
    const std::set<std::string> raw = {"g_raw", "A_log", "dt_bias"};
    const bool skip_raw = gate == Gate::kGiven;
    VariantRequest request;
    for (const auto& [tensor, value] : golden.file.tensors) {
        if (skip_raw && raw.contains(tensor)) continue;
        request.tensors[tensor] = {value.shape().begin(), value.shape().end()};
    }
    const std::string op = golden.file.metadata.at("op");
    for (const VariantSetting& setting : find_variant(op).settings) {
        const auto it = golden.file.metadata.find(setting.name);
        if (it == golden.file.metadata.end()) continue;
        if (!(skip_raw && setting.name == "lower_bound")) request.settings.insert(*it);
    }
    golden.spec = make_spec(op, request);
    for (const Input& input : golden.spec.inputs) {
        golden.arguments.inputs.emplace_back(input.name, golden.file.tensors.at(input.name));
    }
    if (const Tensor* state = golden.find("initial_state")) {
        golden.arguments.state.initial = *state;
    }
    if (const Tensor* offsets = golden.find("cu_seqlens")) golden.arguments.cu_seqlens = *offsets;
    if (golden.file.metadata.contains("scale")) {
        golden.options.scale = std::stod(golden.file.metadata.at("scale"));
    }
    return golden;
}

std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(kDirectory)) {
        if (entry.path().extension() == ".safetensors") found.push_back(entry.path().stem());
    }
    std::sort(found.begin(), found.end());
    return found;
}

std::vector<Sequence> sequences_of(const Golden& golden, const Result& result) {
    Arguments arguments = golden.arguments;
    arguments.o = result.o;
    return bind(golden.spec, arguments, golden.options).sequences;
}

void expect_within(const test::Accuracy& accuracy, double bound, const char* what) {
    EXPECT_TRUE(test::within(accuracy, bound)) << what << ": " << test::describe(accuracy, bound);
}

/// `state` is a final state in the layout of the file.
void expect_matches(const Golden& golden, const Result& result, const TensorView& state,
                    double bound) {
    const Tensor* o = golden.find("o");
    ASSERT_NE(o, nullptr);
    expect_within(test::compare(test::token_blocks(result.o, *o, sequences_of(golden, result))),
                  bound, "o");
    if (const Tensor* expected = golden.find("final_state")) {
        expect_within(test::compare(test::head_blocks(state, *expected)), bound, "final_state");
    }
}

class GoldenFile : public testing::TestWithParam<std::string> {};

TEST_P(GoldenFile, CpuBackend) {
    Golden golden = load(GetParam());
    golden.options.backend = "cpu";
    for (const Algorithm algorithm : {Algorithm::kChunked, Algorithm::kRecurrent}) {
        SCOPED_TRACE(to_string(algorithm));
        golden.options.algorithm = algorithm;
        const Result result =
            forward_new(golden.spec, golden.arguments, DType::kFloat32, golden.options);
        EXPECT_EQ(result.plan.backend, "cpu");
        EXPECT_EQ(result.plan.kernel, to_string(algorithm));
        EXPECT_EQ(result.plan.precision, Precision::kFloat32);
        expect_matches(golden, result, result.final_state, kFloat32Bound);
    }
}

TEST_P(GoldenFile, Oracle) {
    Golden golden = load(GetParam());
    golden.options.backend = "oracle";
    const Result result =
        forward_new(golden.spec, golden.arguments, DType::kFloat32, golden.options);
    EXPECT_EQ(result.plan.backend, "oracle");
    expect_matches(golden, result, result.final_state, kGoldenBound);
}

TEST_P(GoldenFile, TheOtherStateLayout) {
    Golden golden = load(GetParam());
    golden.options.state_layout = golden.spec.default_state_layout == StateLayout::kKeyFirst
                                      ? StateLayout::kValueFirst
                                      : StateLayout::kKeyFirst;
    Tensor initial;  // what a caller with that layout would hold
    if (const Tensor* state = golden.find("initial_state")) {
        initial = Tensor::copy_of(state->view().transposed(2, 3), state->dtype());
        golden.arguments.state.initial = initial;
    }
    for (const char* backend : {"cpu", "oracle"}) {
        SCOPED_TRACE(backend);
        golden.options.backend = backend;
        const Result result =
            forward_new(golden.spec, golden.arguments, DType::kFloat32, golden.options);
        expect_matches(golden, result, result.final_state.view().transposed(2, 3), kFloat32Bound);
    }
}

// Half-width outputs are what tensor cores write.
TEST_P(GoldenFile, OnGpu) {
    SKIP_WITHOUT("cuda");
    Golden golden = load(GetParam());
    Result result = forward_new(golden.spec, golden.arguments, DType::kFloat32, golden.options);
    golden.options.backend = "cuda";
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        SCOPED_TRACE(to_string(dtype));
        result.o = Tensor::empty(dtype, result.o.shape());
        result.final_state = Tensor::empty(DType::kFloat32, result.final_state.shape());
        golden.arguments.o = result.o;
        golden.arguments.state.final = result.final_state.view();
        const Plan plan = test::call(golden.spec, golden.arguments, golden.options);
        EXPECT_EQ(plan.backend, "cuda");
        const double bound =
            test::bound(plan.precision, golden.spec.update, test::Quantity::kOutput) +
            test::storage_bound(plan.precision, dtype);
        golden.arguments.state.final.reset();
        expect_matches(golden, result, result.final_state, bound);
    }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenFile, testing::ValuesIn(names()),
                         [](const auto& parameter) { return parameter.param; });

TEST(Golden, EveryVariantHasAFile) {
    std::set<std::string> ops;
    for (const std::string& name : names()) ops.insert(load(name).file.metadata.at("op"));
    for (const Variant& variant : variants())
        EXPECT_TRUE(ops.contains(variant.name)) << variant.name;
}

TEST(Golden, KdaGateGivenAndRawAgree) {
    for (const char* name : {"kda_raw_gate", "kda_lower_bound"}) {
        SCOPED_TRACE(name);
        const Golden raw = load(name, Gate::kRaw);
        const Golden given = load(name, Gate::kGiven);
        ASSERT_NE(raw.spec.find_input("g_raw"), nullptr);
        ASSERT_NE(given.spec.find_input("g"), nullptr);
        ASSERT_EQ(given.spec.find_input("g_raw"), nullptr);
        for (const char* backend : {"cpu", "oracle"}) {
            SCOPED_TRACE(backend);
            Options options = given.options;
            options.backend = backend;
            const Result a = forward_new(raw.spec, raw.arguments, DType::kFloat32, options);
            const Result b = forward_new(given.spec, given.arguments, DType::kFloat32, options);
            expect_matches(given, b, b.final_state, kFloat32Bound);
            expect_within(test::compare(test::whole_block(a.o, b.o)), kFloat32Bound, "o");
            expect_within(test::compare(test::whole_block(a.final_state, b.final_state)),
                          kFloat32Bound, "final_state");
        }
    }
}

}  // namespace
}  // namespace sluice
