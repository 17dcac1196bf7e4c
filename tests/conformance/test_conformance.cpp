// The backend "cpu" against the float64 oracle, over the whole table of cases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "support/cases.hpp"
#include "support/instance.hpp"

namespace sluice::test {
namespace {

/// The largest error relative to its bound, by (update, precision), over results that their storage
/// does not round.
class Summary : public testing::Environment {
  public:
    void add(const Case& c, Update update, const Finding& finding) {
        if (finding.rounded) return;
        auto& worst = worst_[{to_string(update), to_string(c.resolved_precision())}];
        const double share =
            std::max(finding.accuracy.whole / finding.bound,
                     finding.accuracy.worst_block / (kBlockAllowance * finding.bound));
        if (share >= worst.first) worst = {share, finding.name + " of " + c.name()};
        ++count_;
    }
    void TearDown() override {
        std::string text;
        for (const auto& [key, worst] : worst_) {
            text += fmt::format("{}{}/{} {:.2g}", text.empty() ? "" : ", ", key.first, key.second,
                                worst.first);
        }
        if (count_ > 0) {
            fmt::print("worst share of the bound over {} results: {}\n", count_, text);
        }
    }

  private:
    std::map<std::pair<std::string, std::string>, std::pair<double, std::string>> worst_;
    int count_ = 0;
};

Summary& summary() {
    static auto* const kSummary =
        static_cast<Summary*>(testing::AddGlobalTestEnvironment(new Summary));
    return *kSummary;
}

void judge(const Case& c) {
    SCOPED_TRACE(c.name());
    Instance instance(c);
    std::vector<Finding> findings;
    try {
        findings = instance.judge("cpu");
    } catch (const Error& error) {
        FAIL() << error.what();
    }
    EXPECT_EQ(instance.plan().precision, c.resolved_precision());
    for (const Finding& finding : findings) {
        summary().add(c, instance.spec().update, finding);
        EXPECT_TRUE(finding.ok()) << finding.name << ": "
                                  << describe(finding.accuracy, finding.bound);
    }
    for (const std::string& fault : instance.memory_faults()) {
        ADD_FAILURE() << "memory of " << fault << " was written outside its elements";
    }
}

/// One test per form, so that CTest runs them side by side.
class Conformance : public testing::TestWithParam<std::string> {};

TEST_P(Conformance, AgreesWithTheOracle) {
    summary();
    for (const Case& c : cases()) {
        if (c.form->name == GetParam()) judge(c);
    }
}

std::vector<std::string> form_names() {
    std::vector<std::string> names;
    for (const Form& form : forms()) names.push_back(form.name);
    return names;
}

INSTANTIATE_TEST_SUITE_P(Forms, Conformance, testing::ValuesIn(form_names()),
                         [](const auto& parameter) { return parameter.param; });

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
    EXPECT_EQ(values_of([](const Case& c) { return c.checkpoints; }).size(), 2U);
    EXPECT_EQ(values_of([](const Case& c) { return c.regime(); }), all_of<Regime>(3));
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
