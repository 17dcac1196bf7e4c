// Expressions: their text, and what they read.
#include <gtest/gtest.h>

#include "sluice/expr.hpp"

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
