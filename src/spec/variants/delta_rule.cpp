// The delta rule (DeltaNet): no decay, the old value under k is replaced.
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary = "delta rule (DeltaNet): u = beta (v - S^T k)";

Spec make(const VariantRequest& request) {
    Spec spec;
    spec.name = "delta_rule";
    spec.summary = kSummary;
    spec.source = "Yang et al., Parallelizing Linear Transformers with the Delta Rule, 2024";
    spec.inputs = {q(), k(), v(), beta()};
    spec.q = normalized_if_set(request, "q");
    spec.k = normalized_if_set(request, "k");
    spec.update = Update::kDelta;
    spec.beta = beta_expr(request);
    return spec;
}

}  // namespace

Variant delta_rule() { return {"delta_rule", kSummary, {kL2NormSetting, kBetaSetting}, make}; }

}  // namespace sluice::variant
