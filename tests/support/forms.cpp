#include "support/forms.hpp"

#include <stdexcept>
#include <utility>
#include <vector>

#include "sluice/variants.hpp"

namespace sluice::test {

namespace {

using Settings = std::map<std::string, std::string>;

/// A variant given the names (and ranks) of the tensors that decide between its forms.
std::function<Spec()> variant(std::string name, Settings settings = {},
                              std::map<std::string, std::vector<std::int64_t>> tensors = {}) {
    return [=] { return make_spec(name, {tensors, settings}); };
}

const std::vector<Axis> kPerToken = {Axis::kB, Axis::kT, Axis::kHV};
const std::vector<Axis> kKeyAxes = {Axis::kB, Axis::kT, Axis::kH, Axis::kK};
const std::vector<Axis> kValueAxes = {Axis::kB, Axis::kT, Axis::kHV, Axis::kV};
const std::vector<Axis> kGateAxes = {Axis::kB, Axis::kT, Axis::kHV, Axis::kK};

Expr in(const char* name) { return Expr::input(name); }

Spec user(std::string name, std::vector<Input> extra) {
    Spec spec;
    spec.name = std::move(name);
    spec.summary = "built at run time";
    spec.inputs = {
        {"q", kKeyAxes, "queries"}, {"k", kKeyAxes, "keys"}, {"v", kValueAxes, "values"}};
    spec.inputs.insert(spec.inputs.end(), extra.begin(), extra.end());
    return spec;
}

/// RWKV-7: S <- D S - (eta kappa) (kappa^T S) + k v^T, with kappa of length one.
Spec rwkv7() {
    Spec spec = user("rwkv7", {{"g", kGateAxes, "log decay"},
                               {"kappa", kKeyAxes, "removal key before its norm"},
                               {"eta", kKeyAxes, "removal strength before its sigmoid"}});
    spec.update = Update::kRankOne;
    spec.log_decay = in("g");
    spec.rank_one_a = -(l2norm(in("kappa")) * sigmoid(in("eta")));
    spec.rank_one_b = l2norm(in("kappa"));
    return spec;
}

/// The delta rule with a scalar gate, said as rank one: beta k (k^T D S) = (-beta k) (e^g k)^T S.
Spec rank_one_delta() {
    Spec spec = user("rank_one_delta",
                     {{"g", kPerToken, "log decay"}, {"beta", kPerToken, "write strength"}});
    spec.update = Update::kRankOne;
    spec.log_decay = in("g");
    spec.rank_one_a = -(in("beta") * in("k"));
    spec.rank_one_b = exp(in("g")) * in("k");
    spec.k = in("beta") * in("k");
    return spec;
}

Spec rank_one_plain() {
    Spec spec = user("rank_one_plain", {{"a", kKeyAxes, "left"}, {"b", kKeyAxes, "right"}});
    spec.update = Update::kRankOne;
    spec.rank_one_a = in("a");
    spec.rank_one_b = in("b");
    return spec;
}

Spec elu1_normalized() {
    Spec spec = user("elu1_normalized", {});
    spec.q = elu(in("q")) + 1.0;
    spec.k = elu(in("k")) + 1.0;
    spec.normalize = true;
    return spec;
}

Spec normalized_retention() {
    Spec spec = make_spec("retention");
    spec.name = "normalized_retention";
    spec.normalize = true;
    return spec;
}

Spec normalized_gla() {
    Spec spec = make_spec("gla");
    spec.name = "normalized_gla";
    spec.normalize = true;
    return spec;
}

/// A learned constant decay per head.
Spec learned_decay() {
    Spec spec = user("learned_decay", {{"A_log", {Axis::kHV}, "log of the decay rate"}});
    spec.log_decay = -exp(in("A_log"));
    return spec;
}

/// A decay per head that no token changes, and one per token for all heads: the axes that a scalar
/// decay may lack.
Spec head_gate() {
    Spec spec = user("head_gate", {{"g", {Axis::kHV}, "log decay"}});
    spec.log_decay = in("g");
    return spec;
}
Spec token_gate() {
    Spec spec = user("token_gate", {{"g", {Axis::kB, Axis::kT}, "log decay"}});
    spec.log_decay = in("g");
    return spec;
}

/// A decay per channel that no token changes.
Spec channel_decay() {
    Spec spec = user("channel_decay", {{"g", {Axis::kHV, Axis::kK}, "log decay"}});
    spec.log_decay = in("g");
    return spec;
}

/// One gate per token for all heads, and activations on k, v and the output.
Spec shared_gate() {
    Spec spec = user("shared_gate",
                     {{"g", {Axis::kB, Axis::kT}, "log decay"}, {"z", kValueAxes, "output gate"}});
    spec.log_decay = in("g");
    spec.k = tanh(in("k"));
    spec.v = silu(in("v"));
    spec.output = sigmoid(in("z")) * in("o");
    return spec;
}

/// Queries per value head, one key head for all: the other way round from grouped values.
Spec multi_query() {
    Spec spec;
    spec.name = "multi_query";
    spec.inputs = {{"q", kGateAxes, "queries"},
                   {"k", {Axis::kB, Axis::kT, Axis::kK}, "keys"},
                   {"v", kValueAxes, "values"},
                   {"g", {Axis::kB, Axis::kT, Axis::kHV}, "log decay"}};
    spec.log_decay = in("g");
    return spec;
}

/// A delta rule with constants where others have tensors.
Spec constant_delta() {
    Spec spec = user("constant_delta", {});
    spec.parameters = {{"strength", 0.5}, {"decay", -0.03}};
    spec.update = Update::kDelta;
    spec.beta = Expr::parameter("strength");
    spec.log_decay = Expr::parameter("decay");
    return spec;
}

/// A delta rule with a write strength per head, a gate without a batch axis, and a linear output.
Spec head_delta() {
    Spec spec =
        user("head_delta", {{"g", {Axis::kT, Axis::kHV}, "log decay"},
                            {"beta", {Axis::kHV}, "write strength"},
                            {"D", {Axis::kHV, Axis::kV}, "skip"},
                            {"x", {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, "skipped values"}});
    spec.update = Update::kDelta;
    spec.log_decay = in("g");
    spec.beta = in("beta");
    spec.output = in("o") + in("D") * in("x");
    return spec;
}

/// Keys and queries per value head.
Spec wide_delta() {
    Spec spec;
    spec.name = "wide_delta";
    spec.inputs = {{"q", kGateAxes, "queries"},
                   {"k", kGateAxes, "keys"},
                   {"v", kValueAxes, "values"},
                   {"g", kGateAxes, "log decay"},
                   {"beta", kPerToken, "write strength"}};
    spec.update = Update::kDelta;
    spec.log_decay = in("g");
    spec.beta = in("beta");
    return spec;
}

std::vector<Form> make_forms() {
    using G = GateFormula;
    using B = BetaFormula;
    const Settings l2 = {{"qk_l2norm", "true"}};
    return {
        {"linear", variant("linear")},
        {"linear_normalized", variant("linear", {{"normalize", "true"}}), G::kNone, B::kNone, true},
        {"linear_elu1", variant("linear", {{"feature_map", "elu1"}})},
        {"linear_relu_normalized",
         variant("linear", {{"feature_map", "relu"}, {"normalize", "true"}})},
        {"retention", variant("retention")},
        {"lightning", variant("lightning", {{"layer_idx", "3"}, {"num_layers", "12"}})},
        {"lightning_first", variant("lightning")},
        {"simple_gla", variant("simple_gla"), G::kGiven},
        {"gla", variant("gla"), G::kGiven},
        {"mamba2", variant("mamba2"), G::kTimeStep},
        {"mamba2_bias_d", variant("mamba2", {}, {{"dt_bias", {1}}, {"D", {1}}}), G::kTimeStep},
        {"mamba2_all",
         variant("mamba2", {{"dt_min", "0.05"}, {"dt_max", "40"}},
                 {{"dt_bias", {1}}, {"D", {1, 1}}, {"z", {1, 1, 1, 1}}}),
         G::kTimeStep},
        {"mamba2_plain_dt",
         variant("mamba2", {{"dt_softplus", "false"}, {"dt_max", "2"}}, {{"z", {1, 1, 1, 1}}}),
         G::kTimeStep},
        {"delta_rule", variant("delta_rule"), G::kNone, B::kGiven},
        {"delta_rule_l2norm", variant("delta_rule", {{"qk_l2norm", "true"}, {"beta", "sigmoid"}}),
         G::kNone, B::kSigmoid, false, true},
        {"delta_rule_negative", variant("delta_rule", {{"beta", "2sigmoid"}}), G::kNone,
         B::kTwiceSigmoid},
        {"gated_delta_rule", variant("gated_delta_rule"), G::kGiven, B::kGiven},
        {"gated_delta_rule_raw",
         variant("gated_delta_rule", l2, {{"g_raw", {1, 1, 1}}, {"A_log", {1}}}), G::kSoftplus,
         B::kGiven, false, true},
        {"gated_delta_rule_raw_bias",
         variant("gated_delta_rule", {{"beta", "sigmoid"}},
                 {{"g_raw", {1, 1, 1}}, {"A_log", {1}}, {"dt_bias", {1}}}),
         G::kSoftplus, B::kSigmoid},
        {"kda", variant("kda"), G::kGiven, B::kGiven},
        {"kda_raw", variant("kda", {}, {{"g_raw", {1, 1, 1, 1}}}), G::kSoftplus, B::kGiven},
        {"kda_raw_bias",
         variant("kda", {{"qk_l2norm", "true"}, {"beta", "2sigmoid"}},
                 {{"g_raw", {1, 1, 1, 1}}, {"dt_bias", {1, 1}}}),
         G::kSoftplus, B::kTwiceSigmoid, false, true},
        {"kda_bounded", variant("kda", {{"lower_bound", "-5"}}), G::kBounded, B::kGiven},
        {"kda_bounded_bias",
         variant("kda", {{"lower_bound", "-2.5"}, {"qk_l2norm", "true"}, {"beta", "sigmoid"}},
                 {{"g_raw", {1, 1, 1, 1}}, {"dt_bias", {1, 1}}}),
         G::kBounded, B::kSigmoid, false, true},
        {"user_rwkv7", rwkv7, G::kGiven},
        {"user_rank_one_delta", rank_one_delta, G::kGiven, B::kGiven},
        {"user_rank_one_plain", rank_one_plain},
        {"user_elu1_normalized", elu1_normalized},
        {"user_normalized_retention", normalized_retention, G::kNone, B::kNone, true},
        {"user_normalized_gla", normalized_gla, G::kGiven, B::kNone, true},
        {"user_learned_decay", learned_decay},
        {"user_channel_decay", channel_decay, G::kGiven},
        {"user_shared_gate", shared_gate, G::kGiven},
        {"user_multi_query", multi_query, G::kGiven},
        {"user_constant_delta", constant_delta},
        {"user_head_delta", head_delta, G::kGiven, B::kGiven},
        {"user_wide_delta", wide_delta, G::kGiven, B::kGiven},
        {"mamba2_d_z", variant("mamba2", {}, {{"D", {1}}, {"z", {1, 1, 1, 1}}}), G::kTimeStep},
        {"mamba2_channel_d",
         variant("mamba2", {{"dt_min", "0.01"}, {"dt_max", "10"}},
                 {{"dt_bias", {1}}, {"D", {1, 1}}}),
         G::kTimeStep},
        {"user_head_gate", head_gate},
        {"user_token_gate", token_gate, G::kGiven},
    };
}

}  // namespace

std::span<const Form> forms() {
    static const std::vector<Form> kForms = make_forms();
    return kForms;
}

const Form& find_form(std::string_view name) {
    for (const Form& form : forms()) {
        if (form.name == name) return form;
    }
    throw std::invalid_argument("no form is called " + std::string(name));
}

}  // namespace sluice::test
