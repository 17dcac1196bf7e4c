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
};

std::string name_of(const Setting& s) {
    std::string name = s.form;
    if (s.log_decay != 0) name += fmt::format("_1em{}", s.log_decay == -1e-5 ? 5 : 3);
    return fmt::format("{}_T{}", name, s.tokens);
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name_of(s); }

class LongDecay : public testing::TestWithParam<Setting> {
  protected:
    /// The problem and its reference; made once for the tests of one setting.
    struct Solved {
        std::string name;
        Plain plain;
        Outputs oracle;
    };
    static Solved& solved() {
        const Setting& s = GetParam();
        if (last_.name == name_of(s)) return last_;
        Plain plain =
            make_plain(find_form(s.form),
                       {.B = 1, .T = s.tokens, .H = s.heads, .HV = s.heads, .K = 16, .V = 16},
                       {.kinds = {}, .seed = 9});
        if (s.log_decay != 0) {
            const auto g = plain.inputs.at("g").elements<float>();
            std::fill(g.begin(), g.end(), static_cast<float>(s.log_decay));
        }
        plain.options.precision = Precision::kFloat32;
        last_ = {name_of(s), plain, run_oracle(plain)};
        return last_;
    }

    static void expect_within(const Plain& plain, const Outputs& oracle, double limit) {
        const Outputs out = run(plain);
        const Accuracy o = compare(token_blocks(out.o, oracle.o, plain.sequences()));
        EXPECT_TRUE(within(o, limit)) << "o: " << describe(o, limit);
        const Accuracy state = compare(head_blocks(out.final, oracle.final));
        EXPECT_TRUE(within(state, limit)) << "state: " << describe(state, limit);
    }

    /// `f(plain, oracle)` for every back end that takes the setting.
    template <class F>
    static void for_each_backend(F&& f) {
        auto& [name, plain, oracle] = solved();
        for (const Judged& backend : judged_backends()) {
            if (!backend.takes(plain.spec, Precision::kFloat32, Phase::kPrefill)) continue;
            SCOPED_TRACE(backend.name);
            plain.options.backend = backend.name;
            f(plain, oracle);
        }
    }

  private:
    static inline Solved last_;
};

TEST_P(LongDecay, InChunks) {
    for_each_backend([](Plain& plain, const Outputs& oracle) {
        plain.options.algorithm = Algorithm::kChunked;
        for (const int chunk : {0, 64}) {
            SCOPED_TRACE(fmt::format("chunk {}", chunk));
            plain.options.chunk = chunk;
            expect_within(plain, oracle,
                          bound(Precision::kFloat32, plain.spec.update, Quantity::kOutput));
        }
    });
}

// Token by token the state is multiplied by the float32 next to exp(g) T times. Just below one that
// is off by up to 2^-25 = 3e-8, always to the same side when g is constant, so that the oldest of
// what the state holds drifts by that much a token. The rounding of the products adds a little.
TEST_P(LongDecay, TokenByToken) {
    for_each_backend([](Plain& plain, const Outputs& oracle) {
        plain.options.algorithm = Algorithm::kRecurrent;
        plain.options.chunk = 0;
        constexpr double kDriftPerToken = 4e-8;
        expect_within(plain, oracle,
                      bound(Precision::kFloat32, plain.spec.update, Quantity::kOutput) +
                          kDriftPerToken * static_cast<double>(GetParam().tokens));
    });
}

std::vector<Setting> settings() {
    std::vector<Setting> list;
    for (const std::int64_t tokens : {4096, 16384}) {
        list.push_back({"retention", 16, 0, tokens});
        list.push_back({"lightning_first", 4, 0, tokens});
        list.push_back({"lightning", 4, 0, tokens});
        for (const double log_decay : {-1e-5, -1e-3}) {
            list.push_back({"simple_gla", 2, log_decay, tokens});
            list.push_back({"gla", 2, log_decay, tokens});
        }
    }
    return list;
}

INSTANTIATE_TEST_SUITE_P(Weak, LongDecay, testing::ValuesIn(settings()),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace sluice::test
