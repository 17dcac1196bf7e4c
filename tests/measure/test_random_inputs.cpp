// Random inputs: for every variant and form, deterministic, in the ranges that they promise.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/convert.hpp"
#include "measure/random_inputs.hpp"
#include "sluice/variants.hpp"
#include "support/metrics.hpp"
#include "support/refusal.hpp"

namespace sluice::measure {
namespace {

using test::refusal;
using test::same_bits;

constexpr Dims kDims{.B = 2, .T = 70, .H = 2, .HV = 4, .K = 24, .V = 16, .N = 2};

const Tensor& find(const OwnedInputs& inputs, const std::string& name) {
    const auto it = std::find_if(inputs.begin(), inputs.end(),
                                 [&](const auto& input) { return input.first == name; });
    if (it == inputs.end()) throw std::out_of_range(name);
    return it->second;
}

std::vector<double> values(const Tensor& tensor) {
    std::vector<double> list(static_cast<std::size_t>(tensor.size()));
    for (std::size_t i = 0; i < list.size(); ++i) {
        list[i] = load_element(tensor.view().data, tensor.dtype(), static_cast<std::int64_t>(i));
    }
    return list;
}

double mean(const std::vector<double>& list) {
    return std::accumulate(list.begin(), list.end(), 0.0) / static_cast<double>(list.size());
}

double variance(const std::vector<double>& list) {
    double sum = 0;
    for (const double x : list) sum += x * x;
    return sum / static_cast<double>(list.size()) - mean(list) * mean(list);
}

VariantRequest request(std::vector<std::string> tensors,
                       std::map<std::string, std::string> settings = {}) {
    VariantRequest r;
    for (const std::string& name : tensors) r.tensors[name] = {};
    r.settings = std::move(settings);
    return r;
}

// 2^60 paths lead through this formula: whoever walks them all never returns.
TEST(RandomInputs, SharedPartsOfAFormulaAreWalkedOnce) {
    Spec spec = make_spec("delta_rule");
    Expr beta = sigmoid(Expr::input("beta"));
    for (int i = 0; i < 60; ++i) beta = min(beta, beta);
    spec.beta = beta;
    const std::vector<double> raw = values(find(random_inputs(spec, kDims, {.seed = 7}), "beta"));
    EXPECT_LT(*std::min_element(raw.begin(), raw.end()), 0) << "the formula has the sigmoid";
}

TEST(RandomInputs, EveryVariantBindsAndIsFinite) {
    for (const Variant& variant : variants()) {
        SCOPED_TRACE(variant.name);
        const Spec spec = make_spec(variant.name);
        const OwnedInputs inputs = random_inputs(spec, kDims, {.seed = 3});
        const Tensor o = Tensor::zeros(DType::kFloat32, {2, 70, 4, 16});
        Arguments arguments;
        arguments.inputs = views(inputs);
        arguments.o = o;
        Options options;
        options.validate = true;  // log decays <= 0, no NaN
        const Dims dims = bind(spec, arguments, options).dims;
        EXPECT_EQ(dims.HV, 4);
        ASSERT_EQ(inputs.size(), spec.inputs.size());
        for (const auto& [name, tensor] : inputs) {
            for (const double x : values(tensor)) ASSERT_TRUE(std::isfinite(x)) << name;
        }
    }
}

TEST(RandomInputs, SeedAndNameDecideNotThreads) {
    const Spec spec = make_spec("gated_delta_rule");
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const OwnedInputs one = random_inputs(spec, kDims, {.seed = 7});
    omp_set_num_threads(3);
    const OwnedInputs three = random_inputs(spec, kDims, {.seed = 7});
    omp_set_num_threads(threads);
    const OwnedInputs other = random_inputs(spec, kDims, {.seed = 8});
    for (std::size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(same_bits(one[i].second, three[i].second)) << one[i].first;
        EXPECT_FALSE(same_bits(one[i].second, other[i].second)) << one[i].first;
    }
    // The same q for every variant; q and k of one shape are not the same numbers.
    const OwnedInputs gla = random_inputs(make_spec("gla"), kDims, {.seed = 7});
    EXPECT_TRUE(same_bits(find(gla, "q"), find(one, "q")));
    EXPECT_FALSE(same_bits(find(gla, "q"), find(gla, "k")));
}

TEST(RandomInputs, NormalHasItsMoments) {
    const Tensor tensor = Tensor::empty(DType::kFloat32, {100'001});  // odd: half a pair at the end
    fill_normal(tensor, 1, "q");
    const std::vector<double> list = values(tensor);
    EXPECT_NEAR(mean(list), 0, 0.02);
    EXPECT_NEAR(variance(list), 1, 0.03);
    double fourth = 0;
    for (const double x : list) fourth += x * x * x * x;
    EXPECT_NEAR(fourth / static_cast<double>(list.size()), 3, 0.15);
    EXPECT_EQ(std::set<double>(list.begin(), list.end()).size() > 90'000, true);
}

TEST(RandomInputs, KeysOfDeltaRulesHaveUnitNorm) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const auto inputs = random_inputs(make_spec("delta_rule"), kDims,
                                          {.seed = 1, .gates = Gates::kDefault, .dtype = dtype});
        const std::vector<double> k = values(find(inputs, "k"));
        for (std::size_t row = 0; row < k.size(); row += 24) {
            double sum = 0;
            for (std::size_t c = 0; c < 24; ++c) sum += k[row + c] * k[row + c];
            ASSERT_NEAR(sum, 1, dtype == DType::kFloat32 ? 1e-4 : 2e-2) << row;
        }
    }
    // Additive updates take keys as they are.
    const auto inputs = random_inputs(make_spec("gla"), kDims, {.seed = 1});
    EXPECT_NEAR(variance(values(find(inputs, "k"))), 1, 0.05);
}

TEST(RandomInputs, Gates) {
    const Spec spec = make_spec("gla");
    const auto gate = [&](Gates gates) {
        return values(find(random_inputs(spec, kDims, {.seed = 5, .gates = gates}), "g"));
    };
    const std::vector<double> mild = gate(Gates::kDefault), plain = gate(Gates::kLogSigmoid),
                              spiky = gate(Gates::kSpiky);
    std::size_t spikes = 0;
    for (std::size_t i = 0; i < mild.size(); ++i) {
        ASSERT_LT(plain[i], 0);
        ASSERT_NEAR(mild[i], plain[i] / 16, 1e-7 * std::abs(plain[i]));
        spikes += spiky[i] == -1000 ? 1 : 0;
        if (spiky[i] != -1000) {
            ASSERT_EQ(spiky[i], mild[i]);
        }
    }
    EXPECT_NEAR(static_cast<double>(spikes) / static_cast<double>(spiky.size()), 0.05, 0.01);
    EXPECT_NEAR(mean(plain), -0.806, 0.03);  // E[log sigmoid(N(0,1))]
}

TEST(RandomInputs, BetaIsAWriteStrengthUnlessTheSpecMakesItOne) {
    const auto given = values(find(random_inputs(make_spec("kda"), kDims, {}), "beta"));
    for (const double beta : given) ASSERT_TRUE(beta > 0 && beta < 1) << beta;
    const Spec raw = make_spec("kda", request({}, {{"beta", "sigmoid"}}));
    const auto normal = values(find(random_inputs(raw, kDims, {}), "beta"));
    EXPECT_LT(*std::min_element(normal.begin(), normal.end()), -1);
    EXPECT_GT(*std::max_element(normal.begin(), normal.end()), 1);
}

TEST(RandomInputs, TimeStepsAndRatesOfMamba2) {
    const Spec spec = make_spec("mamba2", request({"dt_bias", "D", "z"}));
    Dims dims = kDims;
    dims.HV = 400;
    dims.H = 1;
    const OwnedInputs inputs = random_inputs(spec, dims, {.seed = 2});
    for (const double a : values(find(inputs, "A"))) ASSERT_TRUE(a <= -1 && a >= -16) << a;
    const std::vector<double> bias = values(find(inputs, "dt_bias"));
    for (const double b : bias) {
        const double step = std::log1p(std::exp(b));
        ASSERT_TRUE(step > 0.999e-3 && step < 1.001e-1) << step;
    }
    EXPECT_NEAR(mean(values(find(inputs, "D"))), 1, 0.05);
    // Without a bias dt itself is centred on a small step; without softplus it is the step.
    const auto plain = values(find(random_inputs(make_spec("mamba2"), dims, {}), "dt"));
    EXPECT_NEAR(mean(plain), std::log(std::expm1(1e-2)), 0.1);
    const Spec direct = make_spec("mamba2", request({}, {{"dt_softplus", "false"}}));
    for (const double dt : values(find(random_inputs(direct, dims, {}), "dt"))) {
        ASSERT_TRUE(dt > 0.999e-3 && dt < 1.001e-1) << dt;
    }
}

TEST(RandomInputs, TypesByRole) {
    const Spec spec = make_spec("kda", request({"g_raw", "dt_bias"}));
    const OwnedInputs inputs = allocate_inputs(spec, kDims,
                                               {.seed = 0,
                                                .gates = Gates::kDefault,
                                                .dtype = DType::kBFloat16,
                                                .gate_dtype = DType::kFloat16});
    EXPECT_EQ(find(inputs, "q").dtype(), DType::kBFloat16);
    EXPECT_EQ(find(inputs, "beta").dtype(), DType::kBFloat16);
    EXPECT_EQ(find(inputs, "g_raw").dtype(), DType::kFloat16);
    EXPECT_EQ(find(inputs, "A_log").dtype(), DType::kFloat32);  // a parameter
    EXPECT_EQ(sluice::to_string(find(inputs, "dt_bias").shape()), "[4, 24]");
}

TEST(RandomInputs, UnknownInputOfAUserIsRefusedByName) {
    Spec spec = make_spec("linear");
    spec.inputs.push_back({"temperature", {Axis::kHV}, "a user's own"});
    EXPECT_EQ(refusal([&] { (void)random_inputs(spec, kDims, {}); }),
              "unsupported | temperature | an input of linear without a known distribution | "
              "random values for q, k, v, g, beta, g_raw, A_log, dt_bias, x, dt, A, B, C, D, z");
}

TEST(Gates, NamesRoundTrip) {
    for (const Gates gates : {Gates::kDefault, Gates::kLogSigmoid, Gates::kSpiky}) {
        EXPECT_EQ(parse_gates(to_string(gates)), gates);
    }
    EXPECT_EQ(refusal([] { (void)parse_gates("sharp"); }),
              "value | gates | 'sharp' | mild (logsigmoid/16), usual (logsigmoid), spiky");
    EXPECT_EQ(parse_gates("mild"), Gates::kDefault);
    EXPECT_EQ(parse_gates("usual"), Gates::kLogSigmoid);
}

}  // namespace
}  // namespace sluice::measure
