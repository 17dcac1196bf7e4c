// Which specs the kernel for scalar decays recognises, by structure and not by name.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/backend/scalar_form.hpp"
#include "sluice/variants.hpp"

namespace sluice::cuda {
namespace {

using Gate = ScalarForm::Gate;
using Skip = ScalarForm::Skip;

std::optional<ScalarForm> find(const Spec& spec) {
    std::string why;
    auto form = find_scalar_form(spec, &why);
    EXPECT_EQ(form.has_value(), why.empty()) << why;
    return form;
}

Spec mamba2(std::map<std::string, std::vector<std::int64_t>> tensors,
            std::map<std::string, std::string> settings = {}) {
    VariantRequest request;
    request.tensors = std::move(tensors);
    request.settings = std::move(settings);
    return make_spec("mamba2", request);
}

TEST(ScalarForm, VariantsWithoutTimeSteps) {
    EXPECT_EQ(find(make_spec("linear"))->gate, Gate::kNone);
    EXPECT_EQ(find(make_spec("retention"))->gate, Gate::kConstant);
    EXPECT_EQ(find(make_spec("lightning"))->gate, Gate::kConstant);
    const auto simple = find(make_spec("simple_gla"));
    EXPECT_EQ(simple->gate, Gate::kGiven);
    EXPECT_EQ(simple->given, "g");
    EXPECT_EQ(simple->v, "v");
}

TEST(ScalarForm, Mamba2) {
    const auto plain = find(mamba2({}));
    EXPECT_EQ(plain->gate, Gate::kTimeStep);
    EXPECT_EQ(plain->q, "C");
    EXPECT_EQ(plain->k, "B");
    EXPECT_EQ(plain->v, "x");
    EXPECT_EQ(plain->time, "dt");
    EXPECT_EQ(plain->rate, "A");
    EXPECT_TRUE(plain->softplus);
    EXPECT_EQ(plain->bias, "");
    EXPECT_EQ(plain->skip_kind, Skip::kNone);
    EXPECT_EQ(plain->least_step, 0);
    EXPECT_TRUE(std::isinf(plain->greatest_step));

    const auto all = find(mamba2({{"dt_bias", {4}}, {"D", {4}}, {"z", {1, 8, 4, 64}}},
                                 {{"dt_min", "0.001"}, {"dt_max", "0.1"}}));
    EXPECT_EQ(all->bias, "dt_bias");
    EXPECT_EQ(all->skip, "D");
    EXPECT_EQ(all->skip_kind, Skip::kHead);
    EXPECT_EQ(all->z, "z");
    EXPECT_EQ(all->least_step, 0.001);
    EXPECT_EQ(all->greatest_step, 0.1);

    EXPECT_EQ(find(mamba2({{"D", {4, 64}}}))->skip_kind, Skip::kChannel);
    EXPECT_FALSE(find(mamba2({}, {{"dt_softplus", "false"}}))->softplus);
    EXPECT_FALSE(find(mamba2({}, {{"dt_softplus", "false"}, {"dt_min", "-1"}})).has_value());
}

TEST(ScalarForm, OrderAndNamesDoNotMatter) {
    Spec spec = mamba2({{"D", {4}}, {"z", {1, 8, 4, 64}}});
    spec.name = "mine";
    const Expr step = softplus(Expr::input("dt"));
    spec.v = Expr::input("x") * step;
    // A formula of its own, not the node that v has; the rate as models store it.
    spec.log_decay = -exp(Expr::input("A")) * softplus(Expr::input("dt"));
    spec.output = silu(Expr::input("z")) * (Expr::input("x") * Expr::input("D") + Expr::input("o"));
    const auto form = find(spec);
    ASSERT_TRUE(form.has_value());
    EXPECT_EQ(form->gate, Gate::kTimeStep);
    EXPECT_TRUE(form->rate_is_log);
    EXPECT_EQ(form->skip, "D");
    EXPECT_EQ(form->z, "z");
}

TEST(ScalarForm, NormalisedWithoutADecay) {
    const Spec spec = make_spec("linear", {{}, {{"normalize", "true"}}});
    const auto form = find(spec);
    ASSERT_TRUE(form.has_value());
    EXPECT_EQ(form->gate, Gate::kNone);
    EXPECT_TRUE(form->normalized);
    EXPECT_FALSE(find(make_spec("linear"))->normalized);

    Spec gated = spec;
    gated.inputs.push_back({"z", {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, "output gate"});
    gated.output = Expr::input("o") * silu(Expr::input("z"));
    EXPECT_TRUE(find(gated)->normalized);
    EXPECT_EQ(find(gated)->z, "z");

    for (const char* name : {"retention", "simple_gla"}) {
        Spec decaying = make_spec(name);
        decaying.normalize = true;
        std::string why;
        EXPECT_FALSE(find_scalar_form(decaying, &why).has_value()) << name;
        EXPECT_EQ(why, "normalised outputs only without a decay");
    }
}

TEST(ScalarForm, WhatIsRefused) {
    for (const char* name : {"gla", "kda", "delta_rule", "gated_delta_rule"}) {
        EXPECT_FALSE(find(make_spec(name)).has_value()) << name;
    }
    VariantRequest mapped;
    mapped.settings = {{"feature_map", "elu1"}};
    EXPECT_FALSE(find(make_spec("linear", mapped)).has_value());
    mapped.settings["normalize"] = "true";
    EXPECT_FALSE(find(make_spec("linear", mapped)).has_value());

    Spec other_step = mamba2({});
    other_step.log_decay = Expr::input("dt") * Expr::input("A");
    EXPECT_FALSE(find(other_step).has_value());
    Spec other_skip = mamba2({{"D", {4}}});
    other_skip.output = Expr::input("o") + Expr::input("D") * Expr::input("o");
    EXPECT_FALSE(find(other_skip).has_value());
    Spec mapped_gate = make_spec("simple_gla");
    mapped_gate.log_decay = -softplus(Expr::input("g"));
    EXPECT_FALSE(find(mapped_gate).has_value());
}

TEST(ScalarForm, ConstantsByHead) {
    const Spec spec = make_spec("retention");
    const auto values = values_by_head(spec, *spec.log_decay, 4);
    ASSERT_EQ(values.size(), 4U);
    for (int head = 0; head < 4; ++head) {
        EXPECT_NEAR(values[static_cast<std::size_t>(head)], std::log1p(-std::exp2(-5.0 - head)),
                    1e-12);
    }
}

/// 2^60 paths to one constant: a walk over paths would never end.
Expr deep(Expr expr) {
    for (int i = 0; i < 60; ++i) expr = (expr + expr) * 0.5;
    return expr;
}

TEST(ScalarForm, SharedNodesAreReadOnce) {
    Spec constant = make_spec("retention");
    constant.log_decay = deep(*constant.log_decay);
    EXPECT_EQ(find(constant)->gate, Gate::kConstant);
    const double decay = std::log1p(-std::exp2(-5.0));
    EXPECT_NEAR(values_by_head(constant, *constant.log_decay, 1).front(), decay, 1e-12);

    Spec steps = mamba2({});
    steps.v = deep(softplus(Expr::input("dt"))) * Expr::input("x");
    steps.log_decay = deep(softplus(Expr::input("dt"))) * Expr::input("A");
    EXPECT_FALSE(find(steps).has_value());
}

}  // namespace
}  // namespace sluice::cuda
