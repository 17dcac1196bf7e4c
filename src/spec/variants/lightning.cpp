// Lightning attention: a constant decay per head that weakens with the layer's depth.
#include "sluice/error.hpp"
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary =
    "lightning attention (MiniMax): constant decay, g_h = -(8 / H) (1 - layer / layers) h";

Spec make(const VariantRequest& request) {
    Spec spec;
    spec.name = "lightning";
    spec.summary = kSummary;
    spec.source = "Qin et al., Lightning Attention-2, 2024";
    spec.inputs = {q(), k(), v()};
    const double layer = number(request, "layer_idx", 0);
    const double layers = number(request, "num_layers", 1);
    if (!(layers >= 1)) {
        throw Error(ErrorCode::kValue, "num_layers", request.settings.at("num_layers"), ">= 1");
    }
    if (!(layer >= 0 && layer < layers)) {
        throw Error(ErrorCode::kValue, "layer_idx", std::to_string(layer),
                    "0 <= layer_idx < num_layers = " + std::to_string(layers));
    }
    spec.parameters = {{"layer_idx", layer}, {"num_layers", layers}};
    spec.log_decay = -(8.0 / Expr::num_heads()) *
                     (1.0 - Expr::parameter("layer_idx") / Expr::parameter("num_layers")) *
                     Expr::head();
    return spec;
}

}  // namespace

Variant lightning() {
    return {"lightning",
            kSummary,
            {{"layer_idx", "index of the layer, from 0 (default 0)"},
             {"num_layers", "number of layers (default 1)"}},
            make};
}

}  // namespace sluice::variant
