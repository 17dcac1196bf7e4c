// The gated delta rule (Gated DeltaNet): scalar decay, given or computed from a raw gate.
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary =
    "gated delta rule (Gated DeltaNet, Qwen3-Next): scalar decay, delta update";

Spec make(const VariantRequest& request) {
    Spec spec;
    spec.name = "gated_delta_rule";
    spec.summary = kSummary;
    spec.source = "Yang et al., Gated Delta Networks, 2024";
    spec.inputs = {q(), k(), v()};
    if (has_tensor(request, "g_raw")) {
        const Expr raw =
            declare_raw_gate(request, spec, {Axis::kB, Axis::kT, Axis::kHV}, {Axis::kHV});
        spec.log_decay = -exp(Expr::input("A_log")) * softplus(raw);
    } else {
        spec.inputs.push_back(
            {"g", {Axis::kB, Axis::kT, Axis::kHV}, "log decay, <= 0, natural log"});
        spec.log_decay = Expr::input("g");
    }
    spec.inputs.push_back(beta());
    spec.q = normalized_if_set(request, "q");
    spec.k = normalized_if_set(request, "k");
    spec.update = Update::kDelta;
    spec.beta = beta_expr(request);
    return spec;
}

}  // namespace

Variant gated_delta_rule() {
    return {"gated_delta_rule", kSummary, {kL2NormSetting, kBetaSetting}, make};
}

}  // namespace sluice::variant
