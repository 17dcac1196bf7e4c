// Decays so weak that a state remembers thousands of tokens: the rounding of a factor exp(g) just
// below one, small as it is, comes back at every token.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/judged.hpp"
#include "support/plain.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

struct Setting {
    const char* form;
    std::int64_t heads;
    double log_decay;  // of every token and channel; 0: the form's own, by head
    std::int64_t tokens;
    std::string backend;
};

std::string name_of(const Setting& s) {
    std::string name = s.form;
    if (s.log_decay != 0) name += fmt::format("_1em{}", s.log_decay == -1e-5 ? 5 : 3);
    return fmt::format("{}_{}_T{}", s.backend, name, s.tokens);
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name_of(s); }

class LongDecay : public testing::TestWithParam<Setting> {
  protected:
    void SetUp() override {
        const Setting& s = GetParam();
        SKIP_WITHOUT(s.backend);
        plain_ = make_plain(find_form(s.form),
                            {.B = 1, .T = s.tokens, .H = s.heads, .HV = s.heads, .K = 16, .V = 16},
                            {.kinds = {}, .seed = 9});
        if (s.log_decay != 0) {
            const auto g = plain_.inputs.at("g").elements<float>();
            std::fill(g.begin(), g.end(), static_cast<float>(s.log_decay));
        }
        plain_.options.backend = s.backend;
        plain_.options.precision = Precision::kFloat32;
        oracle_ = run_oracle(plain_);
    }

    void expect_within(double limit) const {
        const Outputs out = run(plain_);
        const Accuracy o = compare(token_blocks(out.o, oracle_.o, plain_.sequences()));
        EXPECT_TRUE(within(o, limit)) << "o: " << describe(o, limit);
        const Accuracy state = compare(head_blocks(out.final, oracle_.final));
        EXPECT_TRUE(within(state, limit)) << "state: " << describe(state, limit);
    }

    [[nodiscard]] double limit() const {
        return bound(Precision::kFloat32, plain_.spec.update, Quantity::kOutput);
    }

    Plain plain_;
    Outputs oracle_;
};

/// Back ends with a chunked algorithm for every problem.
class LongDecayInChunks : public LongDecay {};

TEST_P(LongDecayInChunks, IsWithinTheBound) {
    plain_.options.algorithm = Algorithm::kChunked;
    for (const int chunk : {0, 64}) {
        SCOPED_TRACE(fmt::format("chunk {}", chunk));
        plain_.options.chunk = chunk;
        expect_within(limit());
    }
}

// Token by token the state is multiplied by the float32 next to exp(g) T times. Just below one that
// is off by up to 2^-25 = 3e-8, always to the same side when g is constant, so that the oldest of
// what the state holds drifts by that much a token. The rounding of the products adds a little.
TEST_P(LongDecay, TokenByToken) {
    plain_.options.algorithm = Algorithm::kRecurrent;
    constexpr double kDriftPerToken = 4e-8;
    expect_within(limit() + kDriftPerToken * static_cast<double>(GetParam().tokens));
}

std::vector<Setting> settings(bool chunks) {
    std::vector<Setting> list;
    for (const Judged& backend : judged_backends()) {
        if (chunks && !backend.chunks) continue;
        for (const std::int64_t tokens : {4096, 16384}) {
            list.push_back({"retention", 16, 0, tokens, backend.name});
            list.push_back({"lightning_first", 4, 0, tokens, backend.name});
            list.push_back({"lightning", 4, 0, tokens, backend.name});
            for (const double log_decay : {-1e-5, -1e-3}) {
                list.push_back({"simple_gla", 2, log_decay, tokens, backend.name});
                list.push_back({"gla", 2, log_decay, tokens, backend.name});
            }
        }
    }
    return list;
}

INSTANTIATE_TEST_SUITE_P(Weak, LongDecay, testing::ValuesIn(settings(false)),
                         [](const auto& parameter) { return name_of(parameter.param); });
INSTANTIATE_TEST_SUITE_P(Weak, LongDecayInChunks, testing::ValuesIn(settings(true)),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace sluice::test
