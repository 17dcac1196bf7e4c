// Expressions: their text, and what they read.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sluice/expr.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

const Expr kA = Expr::input("a");
const Expr kB = Expr::input("b");
const Expr kC = Expr::input("c");

TEST(Expr, PrintsWithTheParenthesesItNeeds) {
    EXPECT_EQ((kA + kB * kC).to_string(), "a + b * c");
    EXPECT_EQ(((kA + kB) * kC).to_string(), "(a + b) * c");
    EXPECT_EQ((kA - (kB - kC)).to_string(), "a - (b - c)");
    EXPECT_EQ((kA - kB - kC).to_string(), "a - b - c");
    EXPECT_EQ((kA / (kB * kC)).to_string(), "a / (b * c)");
    EXPECT_EQ((kA / kB / kC).to_string(), "a / b / c");
    EXPECT_EQ((-(kA + kB)).to_string(), "-(a + b)");
    EXPECT_EQ((-kA * kB).to_string(), "-a * b");
    EXPECT_EQ((kA * Expr(-2.0)).to_string(), "a * (-2)");
    EXPECT_EQ((kA - Expr(0.5)).to_string(), "a - 0.5");
    EXPECT_EQ((-(-kA)).to_string(), "-(-a)");
    EXPECT_EQ((-Expr(-2.0)).to_string(), "-(-2)");
    EXPECT_EQ((kA - -kB).to_string(), "a - -b");
}

/// x + x, `times` over: a tree of 2^(times + 1) - 1 nodes, times + 1 of them different.
Expr doubled(Expr x, int times) {
    for (int i = 0; i < times; ++i) x = x + x;
    return x;
}

TEST(Expr, PrintsSmallExpressionsInFull) {
    const Expr rate = exp(kA);
    EXPECT_EQ((rate * softplus(rate + kB)).to_string(), "exp(a) * softplus(exp(a) + b)");
    EXPECT_EQ(doubled(kA, 3).to_string(), "a + a + a + a + a + a + a + a");
    EXPECT_EQ(doubled(kA, 5).to_string().find('$'), std::string::npos);
}

TEST(Expr, NamesSharedOperationsOfLargeExpressions) {
    EXPECT_EQ(doubled(kA, 6).to_string(),
              "$5 + $5 where $1 = a + a, $2 = $1 + $1, $3 = $2 + $2, $4 = $3 + $3, $5 = $4 + $4");
    EXPECT_EQ((doubled(kA * kB, 6) * -kC).to_string(),
              "($6 + $6) * -c where $1 = a * b, $2 = $1 + $1, $3 = $2 + $2, $4 = $3 + $3, "
              "$5 = $4 + $4, $6 = $5 + $5");
}

TEST(Expr, PrintsLargeExpressionsWithoutSharingInFull) {
    Expr sum = kA;
    std::string text = "a";
    for (int i = 0; i < 100; ++i) {
        sum = sum + Expr::input("b");
        text += " + b";
    }
    EXPECT_EQ(sum.to_string(), text);
}

TEST(Expr, VisitsSharedOperandsOnce) {
    const Expr deep = doubled(kA * Expr::parameter("p") + kB, 60);
    EXPECT_EQ(deep.inputs(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(deep.parameters(), (std::vector<std::string>{"p"}));
    EXPECT_LT(deep.to_string().size(), 60 * 20);
}

TEST(Expr, RefusesWhatIsTooDeep) {
    const auto chain = [](int depth) {
        Expr x = kA;
        for (int i = 0; i < depth; ++i) x = x + kB;
        return x;
    };
    const Expr deepest = chain(kMaxExprDepth);
    EXPECT_EQ(deepest.node().depth, 1000);
    EXPECT_EQ(deepest.inputs(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(deepest.to_string().size(), 1 + 4 * 1000);
    EXPECT_EQ(test::refusal([&] { (void)chain(100'000); }),
              "unsupported | expression | 1001 operations deep | at most 1000 operations deep");
}

TEST(Expr, PrintsWrongNumbersOfOperands) {
    EXPECT_EQ(Expr::make(Op::kNegate, {}).to_string(), "-()");
    EXPECT_EQ(Expr::make(Op::kAdd, {kA}).to_string(), "+(a)");
}

TEST(Expr, PrintsFunctions) {
    const Expr gate = -exp(Expr::input("A_log")) * softplus(Expr::input("g_raw") + kB);
    EXPECT_EQ(gate.to_string(), "-exp(A_log) * softplus(g_raw + b)");
    EXPECT_EQ(min(max(kA, Expr::parameter("low")), Expr(3.0)).to_string(), "min(max(a, low), 3)");
    EXPECT_EQ((log(kA) + sigmoid(kA) + silu(kA) + relu(kA)).to_string(),
              "log(a) + sigmoid(a) + silu(a) + relu(a)");
    EXPECT_EQ((elu(kA) + tanh(kA) + sqrt(kA) + l2norm(kA)).to_string(),
              "elu(a) + tanh(a) + sqrt(a) + l2norm(a)");
    EXPECT_EQ((Expr::head() / Expr::num_heads()).to_string(), "h / HV");
}

TEST(Expr, ListsInputsAndParametersOnceInOrder) {
    const Expr e =
        kB * Expr::parameter("p") + kA * (kB + Expr::parameter("q")) * Expr::parameter("p");
    EXPECT_EQ(e.inputs(), (std::vector<std::string>{"b", "a"}));
    EXPECT_EQ(e.parameters(), (std::vector<std::string>{"p", "q"}));
    EXPECT_TRUE(Expr(1.0).inputs().empty());
}

TEST(Expr, KnowsPlainInputsAndConstants) {
    EXPECT_TRUE(kA.is_input("a"));
    EXPECT_FALSE(kA.is_input("b"));
    EXPECT_FALSE((kA + 0.0).is_input("a"));
    EXPECT_FALSE(Expr::parameter("a").is_input("a"));
    EXPECT_TRUE(Expr(0.0).is_constant(0));
    EXPECT_FALSE(Expr(0.5).is_constant(0));
    EXPECT_FALSE(kA.is_constant(0));
}

TEST(Expr, CopiesShareNodes) {
    const Expr copy = kA;  // NOLINT: the copy is the point
    EXPECT_EQ(&copy.node(), &kA.node());
}

TEST(Expr, EveryOperationHasAName) {
    for (int op = 0; op <= static_cast<int>(Op::kMax); ++op) {
        EXPECT_STRNE(to_string(static_cast<Op>(op)), "?") << op;
    }
}

}  // namespace
}  // namespace sluice
