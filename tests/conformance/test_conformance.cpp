// Every back end against the float64 oracle, over the whole table of cases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "support/cases.hpp"
#include "support/instance.hpp"
#include "support/judge.hpp"
#include "support/judged.hpp"

namespace sluice::test {
namespace {

/// One test per back end and form, so that CTest runs them side by side.
class Conformance : public testing::TestWithParam<std::tuple<Judged, std::string>> {};

TEST_P(Conformance, AgreesWithTheOracle) {
    const auto& [backend, form] = GetParam();
    SKIP_WITHOUT(backend.name);
    for (const Case& c : cases()) {
        if (c.form->name == form && c.dims.T <= longest_case()) judge(backend, c);
    }
}

std::vector<std::string> form_names() {
    std::vector<std::string> names;
    for (const Form& form : forms()) names.push_back(form.name);
    return names;
}

std::string name_of(const std::tuple<Judged, std::string>& parameter) {
    return std::get<0>(parameter).name + "_" + std::get<1>(parameter);
}

INSTANTIATE_TEST_SUITE_P(Forms, Conformance,
                         testing::Combine(testing::ValuesIn(judged_backends().begin(),
                                                            judged_backends().end()),
                                          testing::ValuesIn(form_names())),
                         [](const auto& parameter) { return name_of(parameter.param); });

// What a back end says of a case needs no device.
TEST(Claims, SupportAndPlansAreAsClaimed) {
    std::map<std::string, int> planned;
    for (const Judged& backend : judged_backends()) {
        for (const Case& c : cases()) {
            SCOPED_TRACE(backend.name + ": " + c.name());
            const Instance instance(c);
            const Problem problem = problem_on(backend, instance, c.phase);
            EXPECT_EQ(problem.precision, c.resolved_precision(backend.device));
            const Support support = support_for(backend, problem);
            EXPECT_EQ(support.ok, backend.takes(c, problem)) << support.reason;
            EXPECT_EQ(support.ok, support.reason.empty());
            if (!support.ok) continue;
            const Plan plan = plan_for(backend, problem);
            EXPECT_EQ(plan.backend, backend.name);
            EXPECT_TRUE(as_precise_as(plan.precision, problem.precision));
            EXPECT_GT(plan.chunk, 0);
            EXPECT_GE(plan.workspace_bytes, 0);
            ++planned[backend.name + " " + plan.kernel];
        }
    }
    for (const char* kernel : {"cpu chunked", "cpu recurrent", "cuda recurrent"}) {
        EXPECT_GT(planned[kernel], 100) << kernel;
    }
}

TEST(Coverage, EveryBackendButTheOracleIsJudged) {
    std::set<std::string> listed, judged;
    for (const Backend* backend : backends()) listed.emplace(backend->name());
    for (const Judged& backend : judged_backends()) judged.insert(backend.name);
    judged.insert("oracle");
    EXPECT_EQ(judged, listed);
}

/// The values of one axis that the table holds.
template <class F>
auto values_of(F&& axis) {
    std::set<decltype(axis(cases().front()))> values;
    for (const Case& c : cases()) values.insert(axis(c));
    return values;
}

template <class T, std::size_t N>
std::set<T> all_of(const T (&values)[N]) {
    return {std::begin(values), std::end(values)};
}

/// Every enumerator below `count`.
template <class E>
std::set<E> all_of(int count) {
    std::set<E> values;
    for (int i = 0; i < count; ++i) values.insert(static_cast<E>(i));
    return values;
}

TEST(Coverage, TheTableIsLargeAndDistinct) {
    EXPECT_GE(cases().size(), 600U);
    EXPECT_EQ(values_of([](const Case& c) { return c.name(); }).size(), cases().size());
    EXPECT_EQ(values_of([](const Case& c) { return c.form->name; }).size(), forms().size());
}

TEST(Coverage, EveryValueOfEveryAxisOccurs) {
    EXPECT_EQ(values_of([](const Case& c) { return c.dims.K; }), all_of(kChannelCounts));
    EXPECT_EQ(values_of([](const Case& c) { return c.dims.V; }), all_of(kChannelCounts));
    EXPECT_EQ(values_of([](const Case& c) { return c.dims.HV / c.dims.H; }), all_of(kGroupSizes));
    const auto tokens = values_of(
        [](const Case& c) { return c.phase == Phase::kPrefill ? c.dims.T : std::int64_t{1}; });
    EXPECT_EQ(tokens, all_of(kTokenCounts));
    EXPECT_EQ(values_of([](const Case& c) { return c.chunk; }), all_of(kChunks));
    EXPECT_EQ(values_of([](const Case& c) { return c.dtype; }), all_of(kDTypes));
    EXPECT_EQ(values_of([](const Case& c) { return c.o_dtype; }), all_of(kDTypes));
    EXPECT_EQ(values_of([](const Case& c) { return c.state_dtype; }), all_of(kDTypes));
    EXPECT_EQ(values_of([](const Case& c) { return c.gate_dtype; }), all_of(kDTypes));
    EXPECT_EQ(values_of([](const Case& c) { return c.kinds.gates; }), all_of<Gates>(7));
    EXPECT_EQ(values_of([](const Case& c) { return c.kinds.keys; }), all_of<Keys>(5));
    EXPECT_EQ(values_of([](const Case& c) { return c.kinds.beta; }), all_of<Beta>(3));
    EXPECT_EQ(values_of([](const Case& c) { return c.states; }), all_of<States>(kNumStates));
    EXPECT_EQ(values_of([](const Case& c) { return c.strides; }), all_of<Strides>(kNumStrides));
    EXPECT_EQ(values_of([](const Case& c) { return c.packing; }), all_of<Packing>(3));
    EXPECT_EQ(values_of([](const Case& c) { return c.algorithm; }), all_of<Algorithm>(3));
    EXPECT_EQ(values_of([](const Case& c) { return c.precision; }), all_of<Precision>(4));
    EXPECT_EQ(values_of([](const Case& c) { return c.phase; }), all_of<Phase>(2));
    EXPECT_EQ(values_of([](const Case& c) { return c.layout; }), all_of<StateLayout>(2));
    EXPECT_EQ(values_of([](const Case& c) { return c.poison; }), all_of<Poison>(2));
    EXPECT_EQ(values_of([](const Case& c) { return c.alignment; }), all_of<Alignment>(2));
    EXPECT_EQ(values_of([](const Case& c) { return c.checkpoints; }).size(), 2U);
    EXPECT_EQ(values_of([](const Case& c) { return c.regime(); }), all_of<Regime>(3));
}

/// The values of one axis that a form meets in prefill.
template <class F>
auto values_of(const Form& form, F&& axis) {
    std::set<decltype(axis(cases().front()))> values;
    for (const Case& c : cases()) {
        if (c.form == &form && c.phase == Phase::kPrefill) values.insert(axis(c));
    }
    return values;
}

TEST(Coverage, EveryFormMeetsEveryTokenCountAndLayoutOfMemory) {
    for (const Form& form : forms()) {
        SCOPED_TRACE(form.name);
        const auto tokens = values_of(form, [](const Case& c) { return c.dims.T; });
        EXPECT_EQ(tokens, all_of(kTokenCounts));
        for (const std::int64_t required : {1, 15, 63, 64, 65, 200, 500}) {
            EXPECT_TRUE(tokens.contains(required)) << "T " << required;
        }
        EXPECT_EQ(values_of(form, [](const Case& c) { return c.states; }),
                  all_of<States>(kNumStates));
        EXPECT_EQ(values_of(form, [](const Case& c) { return c.packing; }), all_of<Packing>(3));
        EXPECT_EQ(values_of(form, [](const Case& c) { return c.strides; }),
                  all_of<Strides>(kNumStrides));
    }
}

TEST(Coverage, EveryGatedFormMeetsEveryKindOfGates) {
    for (const Form& form : forms()) {
        if (form.gate == GateFormula::kNone) continue;
        SCOPED_TRACE(form.name);
        EXPECT_EQ(values_of(form, [](const Case& c) { return c.kinds.gates; }), all_of<Gates>(7));
    }
}

// Five per cent of few gates may be none of them: what counts is what the generator dealt.
TEST(Coverage, EveryGivenGateHoldsSpikesAndMinusInfinity) {
    for (const Form& form : forms()) {
        if (form.gate != GateFormula::kGiven) continue;
        bool spike = false, infinite = false;
        for (const Case& c : cases()) {
            if (c.form != &form || c.phase != Phase::kPrefill) continue;
            if (c.kinds.gates != Gates::kSpikes && c.kinds.gates != Gates::kMinusInfinity) continue;
            const auto values = make_values(form, form.make(), c.dims, c.kinds, c.seed);
            for (const double g : values.at("g").data) {
                spike = spike || g == -1000;
                infinite = infinite || std::isinf(g);
            }
        }
        EXPECT_TRUE(spike) << form.name;
        EXPECT_TRUE(infinite) << form.name;
    }
}

TEST(Coverage, EveryDeltaFormMeetsRepeatedKeysWithBetaOne) {
    for (const Form& form : forms()) {
        SCOPED_TRACE(form.name);
        const auto keys = values_of(form, [](const Case& c) { return c.kinds.keys; });
        EXPECT_TRUE(keys.contains(Keys::kCorrelated));
        EXPECT_TRUE(keys.contains(Keys::kIdentical));
        if (form.beta == BetaFormula::kNone) continue;
        const auto pairs =
            values_of(form, [](const Case& c) { return std::pair(c.kinds.keys, c.kinds.beta); });
        EXPECT_TRUE(pairs.contains({Keys::kCorrelated, Beta::kOne}));
        EXPECT_TRUE(pairs.contains({Keys::kIdentical, Beta::kOne}));
    }
}

TEST(Coverage, ChannelCountsAreEqualAndUnequal) {
    for (const Form& form : forms()) {
        EXPECT_EQ(values_of(form, [](const Case& c) { return c.dims.K == c.dims.V; }).size(), 2U)
            << form.name;
    }
}

TEST(Coverage, EveryUpdateMeetsEveryDecayAlgorithmAndPrecision) {
    std::set<std::tuple<Update, Precision, Algorithm>> met;
    std::set<std::pair<Decay, Gates>> gates;
    for (const Case& c : cases()) {
        const Spec spec = c.form->make();
        met.insert({spec.update, c.resolved_precision(), c.algorithm});
        gates.insert({spec.decay(), c.kinds.gates});
    }
    for (const Update update : all_of<Update>(3)) {
        for (const Algorithm algorithm : all_of<Algorithm>(3)) {
            for (const Precision precision : {Precision::kFloat32, Precision::kFloat64}) {
                EXPECT_TRUE(met.contains({update, precision, algorithm}));
            }
        }
        EXPECT_TRUE(met.contains({update, Precision::kBFloat16, Algorithm::kChunked}));
    }
    for (const Gates kind : all_of<Gates>(7)) {
        EXPECT_TRUE(gates.contains({Decay::kScalar, kind})) << to_string(kind);
        EXPECT_TRUE(gates.contains({Decay::kVector, kind})) << to_string(kind);
    }
}

TEST(Coverage, PackedLengthsIncludeEmptyAndSingleTokens) {
    std::int64_t empty = 0, single = 0, odd = 0;
    for (const Case& c : cases()) {
        for (const std::int64_t length : c.lengths) {
            empty += length == 0;
            single += length == 1;
            odd += length > 1 && length % 2 == 1;
        }
    }
    EXPECT_GT(empty, 20);
    EXPECT_GT(single, 20);
    EXPECT_GT(odd, 50);
}

TEST(Coverage, RepeatedKeysMeetEveryPrecision) {
    std::set<std::pair<Regime, Precision>> met;
    for (const Case& c : cases()) met.insert({c.regime(), c.resolved_precision()});
    for (const Regime regime : all_of<Regime>(3)) {
        for (const Precision precision :
             {Precision::kFloat32, Precision::kFloat64, Precision::kBFloat16}) {
            EXPECT_TRUE(met.contains({regime, precision}))
                << static_cast<int>(regime) << " " << to_string(precision);
        }
    }
}

}  // namespace
}  // namespace sluice::test
