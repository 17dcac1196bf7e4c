// Linear attention: no decay, additive.
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary = "linear attention: S += k v^T";

Expr mapped(const std::string& map, const Expr& x) {
    if (map == "elu1") return elu(x) + 1.0;
    if (map == "relu") return relu(x);
    return x;
}

Spec make(const VariantRequest& request) {
    const std::string map = choice(request, "feature_map", {"identity", "elu1", "relu"});
    Spec spec;
    spec.name = "linear";
    spec.summary = kSummary;
    spec.source = "Katharopoulos et al., Transformers are RNNs, 2020";
    spec.inputs = {q(), k(), v()};
    spec.q = mapped(map, Expr::input("q"));
    spec.k = mapped(map, Expr::input("k"));
    spec.normalize = flag(request, "normalize", false);
    return spec;
}

}  // namespace

Variant linear() {
    return {"linear",
            kSummary,
            {{"normalize", "true: divide by scale * q . sum(k) + 1e-10 (default false)"},
             {"feature_map", "identity (default), elu1 (elu(x) + 1) or relu, on q and k"}},
            make};
}

}  // namespace sluice::variant
