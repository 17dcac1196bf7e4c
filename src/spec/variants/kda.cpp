// Kimi delta attention: vector decay, given or computed from a raw gate, delta update.
#include "sluice/error.hpp"
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary =
    "Kimi delta attention (Kimi Linear): vector decay per key channel, delta update";

Spec make(const VariantRequest& request) {
    Spec spec;
    spec.name = "kda";
    spec.summary = kSummary;
    spec.source = "Kimi Team, Kimi Linear, 2025";
    spec.inputs = {q(), k(), v()};
    const bool bounded = has_setting(request, "lower_bound");
    if (has_tensor(request, "g_raw") || bounded) {
        const Expr raw = declare_raw_gate(request, spec, {Axis::kB, Axis::kT, Axis::kHV, Axis::kK},
                                          {Axis::kHV, Axis::kK});
        const Expr rate = exp(Expr::input("A_log"));
        if (bounded) {
            const double bound = number(request, "lower_bound", 0);
            if (!(bound >= -5.0 && bound < 0)) {
                throw Error(ErrorCode::kValue, "lower_bound", request.settings.at("lower_bound"),
                            "-5 <= lower_bound < 0");
            }
            spec.parameters = {{"lower_bound", bound}};
            spec.log_decay = Expr::parameter("lower_bound") * sigmoid(rate * raw);
        } else {
            spec.log_decay = -rate * softplus(raw);
        }
    } else {
        spec.inputs.push_back(
            {"g", {Axis::kB, Axis::kT, Axis::kHV, Axis::kK}, "log decay, <= 0, natural log"});
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

Variant kda() {
    return {"kda",
            kSummary,
            {{"lower_bound", "g = lower_bound * sigmoid(exp(A_log) (g_raw + dt_bias)), in [-5, 0)"},
             kL2NormSetting,
             kBetaSetting},
            make};
}

}  // namespace sluice::variant
