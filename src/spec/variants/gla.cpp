// Gated linear attention: one decay per token, head and key channel.
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary = "gated linear attention: vector decay per token and key channel";

Spec make(const VariantRequest& /*request*/) {
    Spec spec;
    spec.name = "gla";
    spec.summary = kSummary;
    spec.source = "Yang et al., Gated Linear Attention, 2023";
    spec.inputs = {
        q(),
        k(),
        v(),
        {"g", {Axis::kB, Axis::kT, Axis::kHV, Axis::kK}, "log decay, <= 0, natural log"}};
    spec.log_decay = Expr::input("g");
    return spec;
}

}  // namespace

Variant gla() { return {"gla", kSummary, {}, make}; }

}  // namespace sluice::variant
