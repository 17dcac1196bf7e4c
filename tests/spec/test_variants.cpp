// The ready-made specs: forms, settings, and names that are refused.
#include <gtest/gtest.h>

#include <cmath>

#include "sluice/variants.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

using test::refusal;

std::string names_of(const Spec& spec) {
    std::string text;
    for (const Input& input : spec.inputs) text += (text.empty() ? "" : " ") + input.name;
    return text;
}

std::string formula(const Spec& spec) {
    return spec.log_decay ? spec.log_decay->to_string() : "none";
}

constexpr const char* kKnown =
    "linear, retention, lightning, simple_gla, gla, mamba2, delta_rule, gated_delta_rule, kda";

TEST(Variants, TableIsInOrderAndComplete) {
    std::string names;
    for (const Variant& variant : variants()) {
        names += (names.empty() ? "" : ", ") + variant.name;
        const Spec spec = make_spec(variant.name);
        EXPECT_EQ(spec.name, variant.name);
        EXPECT_EQ(spec.summary, variant.summary);
        EXPECT_FALSE(spec.source.empty()) << variant.name;
        for (const VariantSetting& setting : variant.settings) {
            EXPECT_FALSE(setting.meaning.empty()) << setting.name;
        }
        EXPECT_EQ(&find_variant(variant.name), &variant);
    }
    EXPECT_EQ(names, kKnown);
}

TEST(Variants, PlainForms) {
    EXPECT_EQ(names_of(make_spec("linear")), "q k v");
    EXPECT_EQ(formula(make_spec("linear")), "none");
    EXPECT_EQ(names_of(make_spec("retention")), "q k v");
    EXPECT_EQ(names_of(make_spec("simple_gla")), "q k v g");
    EXPECT_EQ(names_of(make_spec("gla")), "q k v g");
    EXPECT_EQ(names_of(make_spec("mamba2")), "x dt A B C");
    EXPECT_EQ(names_of(make_spec("delta_rule")), "q k v beta");
    EXPECT_EQ(names_of(make_spec("gated_delta_rule")), "q k v g beta");
    EXPECT_EQ(names_of(make_spec("kda")), "q k v g beta");
}

TEST(Variants, RawGatesFollowFromTheTensors) {
    const Spec gdn = make_spec("gated_delta_rule",
                               {{{"g_raw", {1, 2, 3}}, {"A_log", {3}}, {"dt_bias", {3}}}, {}});
    EXPECT_EQ(names_of(gdn), "q k v g_raw A_log dt_bias beta");
    EXPECT_EQ(formula(gdn), "-exp(A_log) * softplus(g_raw + dt_bias)");
    const Spec kda = make_spec("kda", {{{"g_raw", {1, 2, 3, 4}}}, {}});
    EXPECT_EQ(formula(kda), "-exp(A_log) * softplus(g_raw)");
    EXPECT_EQ(to_string(kda.find_input("A_log")->axes), "[HV]");
}

TEST(Variants, LowerBoundMakesTheBoundedGate) {
    const Spec kda = make_spec("kda", {{{"dt_bias", {3, 4}}}, {{"lower_bound", "-2.5"}}});
    EXPECT_EQ(formula(kda), "lower_bound * sigmoid(exp(A_log) * (g_raw + dt_bias))");
    EXPECT_EQ(kda.parameters.at("lower_bound"), -2.5);
    for (const char* bad : {"0", "-5.01", "1", "-inf"}) {
        EXPECT_EQ(refusal([&] {
                      (void)make_spec("kda", {{}, {{"lower_bound", bad}}});
                  }),
                  std::string("value | lower_bound | ") + bad + " | -5 <= lower_bound < 0");
    }
    EXPECT_EQ(refusal([] {
                  (void)make_spec("kda", {{}, {{"lower_bound", "nan"}}});
              }),
              "value | lower_bound | 'nan' | a number");
    EXPECT_EQ(make_spec("kda", {{}, {{"lower_bound", "-5"}}}).parameters.at("lower_bound"), -5);
}

TEST(Variants, Mamba2OptionalParts) {
    const Spec all = make_spec(
        "mamba2", {{{"D", {4, 8}}, {"z", {1, 2, 4, 8}}, {"dt_bias", {4}}}, {{"dt_max", "1.5"}}});
    EXPECT_EQ(names_of(all), "x dt A B C dt_bias D z");
    EXPECT_EQ(formula(all), "min(max(softplus(dt + dt_bias), dt_min), dt_max) * A");
    EXPECT_EQ(all.output.to_string(), "(o + D * x) * silu(z)");
    EXPECT_EQ(to_string(all.find_input("D")->axes), "[HV, V]");
    EXPECT_EQ(all.default_state_layout, StateLayout::kValueFirst);
    EXPECT_EQ(all.default_scale, 1.0);
    EXPECT_EQ(to_string(make_spec("mamba2", {{{"D", {4}}}, {}}).find_input("D")->axes), "[HV]");
    EXPECT_EQ(formula(make_spec("mamba2")), "softplus(dt) * A");
    EXPECT_EQ(formula(make_spec("mamba2", {{}, {{"dt_softplus", "False"}}})),
              "min(max(dt, dt_min), dt_max) * A");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("mamba2", {{}, {{"dt_min", "2"}, {"dt_max", "1"}}});
              }),
              "value | dt_min | 2.000000 | at most dt_max = 1.000000");
}

TEST(Variants, MapsAndBeta) {
    const Spec linear = make_spec("linear", {{}, {{"feature_map", "elu1"}, {"normalize", "1"}}});
    EXPECT_EQ(linear.q.to_string(), "elu(q) + 1");
    EXPECT_TRUE(linear.normalize);
    EXPECT_EQ(make_spec("linear", {{}, {{"feature_map", "relu"}}}).k.to_string(), "relu(k)");
    const Spec delta = make_spec("delta_rule", {{}, {{"qk_l2norm", "true"}, {"beta", "2sigmoid"}}});
    EXPECT_EQ(delta.k.to_string(), "l2norm(k)");
    EXPECT_EQ(delta.beta->to_string(), "2 * sigmoid(beta)");
    EXPECT_EQ(make_spec("kda", {{}, {{"beta", "sigmoid"}}}).beta->to_string(), "sigmoid(beta)");
}

TEST(Variants, LightningLayers) {
    const Spec spec = make_spec("lightning", {{}, {{"layer_idx", "3"}, {"num_layers", "12"}}});
    EXPECT_EQ(spec.parameters.at("layer_idx"), 3);
    EXPECT_EQ(spec.parameters.at("num_layers"), 12);
    EXPECT_EQ(refusal([] {
                  (void)make_spec("lightning", {{}, {{"layer_idx", "1"}}});
              }),
              "value | layer_idx | 1.000000 | 0 <= layer_idx < num_layers = 1.000000");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("lightning", {{}, {{"layer_idx", "-1"}}});
              }),
              "value | layer_idx | -1.000000 | 0 <= layer_idx < num_layers = 1.000000");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("lightning", {{}, {{"num_layers", "0"}}});
              }),
              "value | num_layers | 0 | >= 1");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("lightning", {{}, {{"num_layers", "many"}}});
              }),
              "value | num_layers | 'many' | a number");
}

TEST(Variants, UnknownSettingsAreRefusedByName) {
    EXPECT_EQ(refusal([] {
                  (void)make_spec("linear", {{}, {{"normalise", "true"}}});
              }),
              "surplus | normalise | 'true' | settings of linear: normalize, feature_map");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("gla", {{}, {{"lower_bound", "-5"}}});
              }),
              "surplus | lower_bound | '-5' | no settings for gla");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("linear", {{}, {{"normalize", "yes"}}});
              }),
              "value | normalize | 'yes' | true or false");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("linear", {{}, {{"feature_map", "gelu"}}});
              }),
              "value | feature_map | 'gelu' | identity, elu1, relu");
    EXPECT_EQ(refusal([] {
                  (void)make_spec("kda", {{}, {{"beta", "tanh"}}});
              }),
              "value | beta | 'tanh' | given, sigmoid, 2sigmoid");
}

TEST(Variants, UnknownNamesListTheKnownOnes) {
    EXPECT_EQ(refusal([] { (void)find_variant("GLA"); }),
              std::string("unsupported | op | 'GLA' | ") + kKnown);
    EXPECT_EQ(refusal([] { (void)make_spec("rwkv8"); }),
              std::string("unsupported | op | 'rwkv8' | ") + kKnown);
}

TEST(Variants, RecurrencesOutsideTheFamilyAreRefusedWithTheReason) {
    const auto refused = [](const char* given, const char* name, const char* reason) {
        EXPECT_EQ(refusal([&] { (void)make_spec(given); }),
                  std::string("unsupported | op | '") + given + "' | " + kKnown + " (" + name +
                      " is outside this family: " + reason + ")");
    };
    const char* full =
        "its decay is a full matrix over (channel, state): exp(dt[c] * A[c, n]) does not factor "
        "into a key-channel vector per head";
    refused("mamba1", "mamba1", full);
    refused("Mamba-1", "mamba1", full);
    const char* vector =
        "it has no key-value outer product: the state is a vector, h = a * h + b * x";
    refused("rg_lru", "rg_lru", vector);
    refused("RG-LRU", "rg_lru", vector);
    for (const char* name : {"hgrn", "s4d", "titans", "ttt_mlp", "gated_slot_attention", "slstm"}) {
        EXPECT_NE(refusal([&] {
                      (void)find_variant(name);
                  }).find(std::string(name) + " is outside this family: "),
                  std::string::npos)
            << name;
    }
}

}  // namespace
}  // namespace sluice
