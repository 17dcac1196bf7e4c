// Simple gated linear attention: one decay per token and head.
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary = "simple GLA: scalar decay per token and head";

Spec make(const VariantRequest& /*request*/) {
    Spec spec;
    spec.name = "simple_gla";
    spec.summary = kSummary;
    spec.source = "Yang et al., Gated Linear Attention, 2023 (scalar gate)";
    spec.inputs = {
        q(), k(), v(), {"g", {Axis::kB, Axis::kT, Axis::kHV}, "log decay, <= 0, natural log"}};
    spec.log_decay = Expr::input("g");
    return spec;
}

}  // namespace

Variant simple_gla() { return {"simple_gla", kSummary, {}, make}; }

}  // namespace sluice::variant
