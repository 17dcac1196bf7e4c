// Spec: what it infers, and what it refuses to be.
#include <gtest/gtest.h>

#include <functional>

#include "sluice/spec.hpp"
#include "sluice/variants.hpp"
#include "support/forms.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

using test::refusal;

const std::vector<Axis> kScalarGate = {Axis::kB, Axis::kT, Axis::kHV};

Spec with_log_decay(std::vector<Axis> axes) {
    Spec spec = make_spec("linear");
    spec.inputs.push_back({"g", std::move(axes), "log decay"});
    spec.log_decay = Expr::input("g");
    return spec;
}

TEST(Spec, DecayFollowsFromTheAxes) {
    EXPECT_EQ(make_spec("linear").decay(), Decay::kNone);
    EXPECT_EQ(make_spec("retention").decay(), Decay::kConstant);
    EXPECT_EQ(make_spec("lightning").decay(), Decay::kConstant);
    EXPECT_EQ(make_spec("simple_gla").decay(), Decay::kScalar);
    EXPECT_EQ(make_spec("gla").decay(), Decay::kVector);
    EXPECT_EQ(make_spec("mamba2").decay(), Decay::kScalar);
    EXPECT_EQ(make_spec("delta_rule").decay(), Decay::kNone);
    EXPECT_EQ(make_spec("gated_delta_rule").decay(), Decay::kScalar);
    EXPECT_EQ(make_spec("kda").decay(), Decay::kVector);
    EXPECT_EQ(with_log_decay({Axis::kHV}).decay(), Decay::kConstant);
    EXPECT_EQ(with_log_decay({Axis::kT}).decay(), Decay::kScalar);
    EXPECT_EQ(with_log_decay({Axis::kB}).decay(), Decay::kScalar);
    EXPECT_EQ(with_log_decay({Axis::kK}).decay(), Decay::kVector);
    Spec zero = make_spec("linear");
    zero.log_decay = Expr(0.0);
    EXPECT_EQ(zero.decay(), Decay::kNone);
    zero.log_decay = Expr(-0.5);
    EXPECT_EQ(zero.decay(), Decay::kConstant);
}

TEST(Spec, AxesAreTheUnionOverInputsRead) {
    const Spec kda = make_spec("kda", {{{"g_raw", {1, 1, 1, 1}}, {"dt_bias", {1, 1}}}, {}});
    EXPECT_EQ(to_string(kda.axes_of(*kda.log_decay)), "[B, T, HV, K]");
    EXPECT_EQ(to_string(kda.axes_of(Expr::input("A_log"))), "[HV]");
    EXPECT_EQ(to_string(kda.axes_of(Expr::head() + 1.0)), "[HV]");
    EXPECT_EQ(to_string(kda.axes_of(Expr::num_heads())), "[]");
    EXPECT_EQ(to_string(kda.axes_of(Expr(2.0))), "[]");
}

TEST(Spec, FindsInputsByName) {
    const Spec spec = make_spec("gla");
    ASSERT_NE(spec.find_input("g"), nullptr);
    EXPECT_EQ(to_string(spec.find_input("g")->axes), "[B, T, HV, K]");
    EXPECT_EQ(spec.find_input("beta"), nullptr);
}

TEST(Spec, PrintsTheRecurrence) {
    const std::string text =
        make_spec("kda", {{{"g_raw", {1, 1, 1, 1}}}, {{"lower_bound", "-5"}}}).to_string();
    EXPECT_EQ(text.substr(0, text.find("  q [")),
              "kda\n"
              "  S <- D S + k u^T,  u = beta (v - (D S)^T k)\n"
              "  o = scale S^T q\n"
              "  D = diag(exp(g)),  g = lower_bound * sigmoid(exp(A_log) * g_raw)  (vector)\n"
              "  lower_bound = -5\n")
        << text;
}

TEST(Spec, EveryFormIsValidAndPrints) {
    for (const test::Form& form : test::forms()) {
        const Spec spec = form.make();
        EXPECT_EQ(refusal([&] { spec.validate(); }), "accepted") << form.name;
        EXPECT_NE(spec.to_string().find("S <- "), std::string::npos);
        for (const Input& input : spec.inputs) EXPECT_FALSE(input.meaning.empty()) << form.name;
    }
}

struct BadSpec {
    const char* name;
    std::function<void(Spec&)> spoil;  // of plain linear attention
    const char* refusal;
};

const BadSpec kBadSpecs[] = {
    {"input without a name",
     [](Spec& s) {
         s.inputs.push_back({"", {Axis::kB}, ""});
     },
     "unsupported | inputs | '' | distinct, non-empty names other than 'o'"},
    {"input called o",
     [](Spec& s) {
         s.inputs.push_back({"o", {Axis::kB}, ""});
     },
     "unsupported | inputs | 'o' | distinct, non-empty names other than 'o'"},
    {"two inputs of one name", [](Spec& s) { s.inputs.push_back(s.inputs[0]); },
     "unsupported | inputs | 'q' | distinct, non-empty names other than 'o'"},
    {"input without axes",
     [](Spec& s) {
         s.inputs.push_back({"g", {}, ""});
     },
     "unsupported | inputs | g [] | one or more axes, each once"},
    {"axis twice",
     [](Spec& s) {
         s.inputs.push_back({"g", {Axis::kT, Axis::kT}, ""});
     },
     "unsupported | inputs | g [T, T] | one or more axes, each once"},
    {"input that nothing reads",
     [](Spec& s) {
         s.inputs.push_back({"g", {Axis::kT}, ""});
     },
     "surplus | inputs | g | inputs that an expression reads"},
    {"undeclared input", [](Spec& s) { s.q = Expr::input("query"); },
     "missing | q | query | expressions over declared inputs ('query' is none)"},
    {"undeclared parameter", [](Spec& s) { s.v = s.v * Expr::parameter("p"); },
     "missing | v | v * p | expressions over declared parameters ('p' is none)"},
    {"o outside the output", [](Spec& s) { s.v = s.v + Expr::input("o"); },
     "missing | v | v + o | expressions over declared inputs ('o' is none)"},
    {"delta without beta", [](Spec& s) { s.update = Update::kDelta; },
     "missing | beta | none | beta exactly with the delta update"},
    {"beta without delta", [](Spec& s) { s.beta = Expr(1.0); },
     "surplus | beta | 1 | beta exactly with the delta update"},
    {"rank-one without b",
     [](Spec& s) {
         s.update = Update::kRankOne;
         s.rank_one_a = s.k;
     },
     "missing | rank_one_a, rank_one_b | one or both of them | both exactly with the rank-one "
     "update"},
    {"a and b without rank-one",
     [](Spec& s) {
         s.rank_one_a = s.k;
         s.rank_one_b = s.k;
     },
     "surplus | rank_one_a, rank_one_b | one or both of them | both exactly with the rank-one "
     "update"},
    {"normalised delta",
     [](Spec& s) {
         s.update = Update::kDelta;
         s.beta = Expr(1.0);
         s.normalize = true;
     },
     "unsupported | normalize | true | additive updates only"},
    {"operator with the wrong number of operands",
     [](Spec& s) { s.v = Expr::make(Op::kAdd, {s.v}); },
     "unsupported | v | + with 1 operands | 2 operands"},
    {"function with two operands",
     [](Spec& s) {
         s.q = Expr::make(Op::kExp, {s.q, s.q});
     },
     "unsupported | q | exp with 2 operands | 1 operands"},
    {"l2norm over value channels", [](Spec& s) { s.v = l2norm(s.v); },
     "unsupported | v | l2norm(v) | l2norm in q, k, rank_one_a and rank_one_b only (it sums over "
     "key channels)"},
    {"l2norm of a gate",
     [](Spec& s) {
         s.inputs.push_back({"g", {Axis::kT, Axis::kHV, Axis::kK}, ""});
         s.log_decay = -l2norm(Expr::input("g"));
     },
     "unsupported | log_decay | l2norm(g) | l2norm in q, k, rank_one_a and rank_one_b only (it "
     "sums over key channels)"},
    {"l2norm without key channels",
     [](Spec& s) {
         s.inputs.push_back({"m", {Axis::kT, Axis::kH}, ""});
         s.q = s.q * l2norm(exp(Expr::input("m")));
     },
     "unsupported | q | l2norm(exp(m)) over axes [T, H] | l2norm of expressions that vary over "
     "axis K"},
    {"beta with the wrong number of operands, without delta",
     [](Spec& s) { s.beta = Expr::make(Op::kNegate, {}); },
     "surplus | beta | -() | beta exactly with the delta update"},
    {"value channels in k", [](Spec& s) { s.k = s.k * Expr::input("v"); },
     "unsupported | k | k * v over axes [B, T, H, HV, K, V] | axes within [B, T, H, HV, K]"},
    {"key heads in v",
     [](Spec& s) {
         s.inputs.push_back({"m", {Axis::kH}, ""});
         s.v = s.v * Expr::input("m");
     },
     "unsupported | v | v * m over axes [B, T, H, HV, V] | axes within [B, T, HV, V]"},
    {"gate per value channel",
     [](Spec& s) {
         s.inputs.push_back({"g", {Axis::kT, Axis::kV}, ""});
         s.log_decay = Expr::input("g");
     },
     "unsupported | log_decay | g over axes [T, V] | axes within [B, T, HV, K]"},
    {"gate per key head",
     [](Spec& s) {
         s.inputs.push_back({"g", {Axis::kT, Axis::kH}, ""});
         s.log_decay = Expr::input("g");
     },
     "unsupported | log_decay | g over axes [T, H] | axes within [B, T, HV, K]"},
    {"beta per key channel",
     [](Spec& s) {
         s.inputs.push_back({"beta", {Axis::kT, Axis::kHV, Axis::kK}, ""});
         s.update = Update::kDelta;
         s.beta = Expr::input("beta");
     },
     "unsupported | beta | beta over axes [T, HV, K] | axes within [B, T, HV]"},
    {"queries in the output", [](Spec& s) { s.output = s.output * Expr::input("q"); },
     "unsupported | output | o * q over axes [B, T, H, K] | axes within [B, T, HV, V]"},
    {"key without channels",
     [](Spec& s) {
         s.inputs[1].axes = {Axis::kB, Axis::kT, Axis::kH};
     },
     "unsupported | k | k | an expression that varies over axis K"},
    {"constant value",
     [](Spec& s) {
         s.inputs.pop_back();
         s.v = Expr(1.0);
     },
     "unsupported | v | 1 | an expression that varies over axis V"},
};

// Every operation below is the operand of the next one twice: trees of 2^60 nodes.
TEST(Spec, ReadsSharedOperandsOnce) {
    const auto halves = [](Expr x) {
        for (int i = 0; i < 60; ++i) x = 0.5 * x + 0.5 * x;
        return x;
    };
    Spec spec = make_spec("kda", {{{"g_raw", {1, 1, 1, 1}}}, {{"qk_l2norm", "true"}}});
    spec.q = l2norm(halves(spec.q));
    spec.v = halves(spec.v);
    spec.log_decay = halves(*spec.log_decay);
    spec.beta = halves(*spec.beta);
    EXPECT_EQ(refusal([&] { spec.validate(); }), "accepted");
    EXPECT_EQ(spec.decay(), Decay::kVector);
    EXPECT_EQ(to_string(spec.axes_of(*spec.beta)), "[B, T, HV]");
    EXPECT_LT(spec.to_string().size(), 10'000);
    spec.v = spec.v * Expr::input("q");
    EXPECT_NE(refusal([&] { spec.validate(); }), "accepted");
}

TEST(Spec, RefusesWhatIsNotInTheFamily) {
    for (const BadSpec& bad : kBadSpecs) {
        Spec spec = make_spec("linear");
        bad.spoil(spec);
        EXPECT_EQ(refusal([&] { spec.validate(); }), bad.refusal) << bad.name;
    }
}

}  // namespace
}  // namespace sluice
