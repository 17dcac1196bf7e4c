// Delta rules on keys that repeat: where rounding is amplified most, at the size of real heads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/judged.hpp"
#include "support/plain.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

struct Setting {
    Keys keys;
    Beta beta;
    DType dtype;
    std::int64_t channels;
    std::string backend;
};

std::string name_of(const Setting& s) {
    return fmt::format("{}_{}_beta_{}_{}_K{}", s.backend, to_string(s.keys), to_string(s.beta),
                       to_string(s.dtype), s.channels);
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name_of(s); }

class RepeatedKeys : public testing::TestWithParam<Setting> {
  protected:
    void SetUp() override { SKIP_WITHOUT(GetParam().backend); }

    static Plain problem(std::uint64_t seed, bool initial) {
        const auto& [keys, beta, dtype, channels, backend] = GetParam();
        Plain plain = make_plain(find_form("delta_rule"),
                                 {.B = 1, .T = 512, .H = 1, .HV = 2, .K = channels, .V = 64},
                                 {.kinds = {.keys = keys, .beta = beta},
                                  .dtype = dtype,
                                  .seed = seed,
                                  .initial = initial});
        plain.o_dtype = plain.state_dtype = DType::kFloat32;
        return plain;
    }

    static void expect_within(const Plain& plain, const Outputs& oracle) {
        const Outputs out = run(plain);
        const Regime regime =
            GetParam().beta == Beta::kTwo ? Regime::kReflections : Regime::kRepeatedKeys;
        const auto limit = [&](Quantity quantity) {
            return bound(out.plan.precision, Update::kDelta, quantity, regime);
        };
        const Accuracy o = compare(token_blocks(out.o, oracle.o, plain.sequences()));
        EXPECT_TRUE(within(o, limit(Quantity::kOutput)))
            << "o: " << describe(o, limit(Quantity::kOutput));
        const Accuracy state = compare(head_blocks(out.final, oracle.final));
        EXPECT_TRUE(within(state, limit(Quantity::kState)))
            << "state: " << describe(state, limit(Quantity::kState));
    }

    template <class F>
    static void for_each_problem(Precision precision, F&& f) {
        for (const std::uint64_t seed : {1, 2, 3}) {
            Plain plain = problem(seed, seed == 3);
            SCOPED_TRACE(fmt::format("seed {}", seed));
            const Outputs oracle = run_oracle(plain);
            plain.options.backend = GetParam().backend;
            plain.options.precision = precision;
            f(plain, oracle);
        }
    }
};

TEST_P(RepeatedKeys, Float32TokenByToken) {
    for_each_problem(Precision::kFloat32, [](Plain& plain, const Outputs& oracle) {
        plain.options.algorithm = Algorithm::kRecurrent;
        expect_within(plain, oracle);
    });
}

/// Back ends with a chunked algorithm for every problem.
class RepeatedKeysInChunks : public RepeatedKeys {};

TEST_P(RepeatedKeysInChunks, Float32) {
    for_each_problem(Precision::kFloat32, [](Plain& plain, const Outputs& oracle) {
        plain.options.algorithm = Algorithm::kChunked;
        for (const int chunk : {0, 16, 64, 128}) {
            SCOPED_TRACE(fmt::format("chunk {}", chunk));
            plain.options.chunk = chunk;
            expect_within(plain, oracle);
        }
    });
}

TEST_P(RepeatedKeysInChunks, ReducedOperands) {
    if (GetParam().dtype == DType::kFloat32) return;
    for_each_problem(Precision::kBFloat16, [](Plain& plain, const Outputs& oracle) {
        plain.options.chunk = 64;
        expect_within(plain, oracle);
    });
}

std::vector<Setting> settings(bool chunks) {
    std::vector<Setting> list;
    for (const Judged& backend : judged_backends()) {
        if (chunks && !backend.chunks) continue;
        for (const std::int64_t channels : {64, 128}) {
            for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
                list.push_back({Keys::kCorrelated, Beta::kOne, dtype, channels, backend.name});
                list.push_back({Keys::kIdentical, Beta::kOne, dtype, channels, backend.name});
                list.push_back({Keys::kIdentical, Beta::kTwo, dtype, channels, backend.name});
                list.push_back({Keys::kFour, Beta::kTwo, dtype, channels, backend.name});
            }
        }
    }
    return list;
}

INSTANTIATE_TEST_SUITE_P(DeltaRule, RepeatedKeys, testing::ValuesIn(settings(false)),
                         [](const auto& parameter) { return name_of(parameter.param); });
INSTANTIATE_TEST_SUITE_P(DeltaRule, RepeatedKeysInChunks, testing::ValuesIn(settings(true)),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace sluice::test
