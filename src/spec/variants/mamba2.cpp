// Mamba-2 (SSD): Delta = clamp(softplus(dt + dt_bias)), g = Delta A, q = C, k = B, v = Delta x.
#include <limits>

#include "sluice/error.hpp"
#include "spec/variants/registry.hpp"

namespace sluice::variant {

namespace {

constexpr const char* kSummary =
    "Mamba-2 (SSD): scalar decay Delta A, grouped B and C, skip D and gate silu(z) optional";

Spec make(const VariantRequest& request) {
    Spec spec;
    spec.name = "mamba2";
    spec.summary = kSummary;
    spec.source = "Dao and Gu, Transformers are SSMs, 2024";
    spec.inputs = {
        {"x", {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, "values before the time step"},
        {"dt", {Axis::kB, Axis::kT, Axis::kHV}, "time step before bias and softplus"},
        {"A", {Axis::kHV}, "decay rate, < 0"},
        {"B", {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, "keys, one per group"},
        {"C", {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, "queries, one per group"},
    };
    Expr delta = Expr::input("dt");
    if (has_tensor(request, "dt_bias")) {
        spec.inputs.push_back({"dt_bias", {Axis::kHV}, "added to dt"});
        delta = delta + Expr::input("dt_bias");
    }
    const bool positive = flag(request, "dt_softplus", true);
    if (positive) delta = softplus(delta);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double low = number(request, "dt_min", 0);
    const double high = number(request, "dt_max", kInfinity);
    if (!(low <= high)) {
        throw Error(ErrorCode::kValue, "dt_min", std::to_string(low),
                    "at most dt_max = " + std::to_string(high));
    }
    // The clamp to [0, inf) stays out of the formula where softplus implies it.
    if (!positive || low > 0 || high < kInfinity) {
        spec.parameters = {{"dt_min", low}, {"dt_max", high}};
        delta = min(max(delta, Expr::parameter("dt_min")), Expr::parameter("dt_max"));
    }
    spec.q = Expr::input("C");
    spec.k = Expr::input("B");
    spec.v = delta * Expr::input("x");
    spec.log_decay = delta * Expr::input("A");
    if (const auto d = request.tensors.find("D"); d != request.tensors.end()) {
        const bool per_channel = d->second.size() == 2;
        spec.inputs.push_back(
            {"D", per_channel ? std::vector{Axis::kHV, Axis::kV} : std::vector{Axis::kHV},
             "skip: D x is added to the output"});
        spec.output = spec.output + Expr::input("D") * Expr::input("x");
    }
    if (has_tensor(request, "z")) {
        spec.inputs.push_back(
            {"z", {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, "gate: the output is times silu(z)"});
        spec.output = spec.output * silu(Expr::input("z"));
    }
    spec.default_scale = 1.0;
    spec.default_state_layout = StateLayout::kValueFirst;
    return spec;
}

}  // namespace

Variant mamba2() {
    return {"mamba2",
            kSummary,
            {{"dt_softplus", "true (default): softplus on dt + dt_bias"},
             {"dt_min", "lower limit of the time step (default 0)"},
             {"dt_max", "upper limit of the time step (default inf)"}},
            make};
}

}  // namespace sluice::variant
