// Retention: one constant decay per head.
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary = "retention (RetNet): constant decay, g_h = log(1 - 2^(-5 - h))";
constexpr double kLn2 = 0.693147180559945309417;

Spec make(const VariantRequest& /*request*/) {
    Spec spec;
    spec.name = "retention";
    spec.summary = kSummary;
    spec.source = "Sun et al., Retentive Network, 2023";
    spec.inputs = {q(), k(), v()};
    spec.log_decay = log(1.0 - exp(kLn2 * (-5.0 - Expr::head())));
    return spec;
}

}  // namespace

Variant retention() { return {"retention", kSummary, {}, make}; }

}  // namespace sluice::variant
