// A recurrence of your own, at run time: RWKV-7's update and an elu(x) + 1 feature map, run by the
// default back end and checked against the float64 oracle.
#include <cmath>
#include <cstdio>
#include <random>

#include "sluice/sluice.hpp"

namespace {

using sluice::Axis;
using sluice::Expr;

/// RWKV-7 ("Goose", Peng et al. 2025): S <- diag(exp(g)) S - (kappa * rate) (kappa^T S) + k v^T,
/// kappa the normalised removal key, g = -exp(-1/2) sigmoid(w).
sluice::Spec rwkv7() {
    const std::vector<Axis> key = {Axis::kB, Axis::kT, Axis::kH, Axis::kK};
    sluice::Spec spec;
    spec.name = "rwkv7";
    spec.inputs = {{"r", key, "receptance: what is read"},
                   {"w", {Axis::kB, Axis::kT, Axis::kHV, Axis::kK}, "decay before its formula"},
                   {"k", key, "key"},
                   {"v", {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, "value"},
                   {"kappa", key, "removal key"},
                   {"rate", key, "in-context learning rate, before its sigmoid"}};
    const Expr kappa = l2norm(Expr::input("kappa"));
    spec.q = Expr::input("r");
    spec.log_decay = -std::exp(-0.5) * sigmoid(Expr::input("w"));
    spec.update = sluice::Update::kRankOne;
    spec.rank_one_a = -(kappa * sigmoid(Expr::input("rate")));
    spec.rank_one_b = kappa;
    spec.default_scale = 1.0;
    return spec;
}

/// Linear attention with the feature map elu(x) + 1 and its normaliser.
sluice::Spec elu_attention() {
    sluice::Spec spec =
        sluice::make_spec("linear", {.tensors = {}, .settings = {{"normalize", "true"}}});
    spec.name = "elu_attention";
    spec.q = elu(Expr::input("q")) + 1.0;
    spec.k = elu(Expr::input("k")) + 1.0;
    return spec;
}

/// Fills tensors for every input of the spec, runs it twice, and compares.
bool check(const sluice::Spec& spec) {
    constexpr std::int64_t kExtent[sluice::kNumAxes] = {2, 300, 4, 4, 64, 64};  // B T H HV K V
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    std::vector<sluice::Tensor> storage;
    sluice::Arguments arguments;
    for (const sluice::Input& input : spec.inputs) {
        std::vector<std::int64_t> shape;
        for (const Axis axis : input.axes) shape.push_back(kExtent[static_cast<int>(axis)]);
        storage.push_back(sluice::Tensor::empty(sluice::DType::kFloat32, shape));
        for (float& x : storage.back().elements<float>()) x = normal(generator);
        arguments.inputs.emplace_back(input.name, storage.back());
    }
    sluice::Options oracle;
    oracle.backend = "oracle";
    const sluice::Result ours = forward_new(spec, arguments, sluice::DType::kFloat32);
    const sluice::Result truth = forward_new(spec, arguments, sluice::DType::kFloat32, oracle);
    double error = 0, size = 0;
    const auto expected = truth.o.elements<float>();
    const auto got = ours.o.elements<float>();
    for (std::size_t i = 0; i < got.size(); ++i) {
        error += std::pow(got[i] - expected[i], 2);
        size += std::pow(expected[i], 2);
    }
    const double ratio = std::sqrt(error / size);
    std::printf("%s%s kernel, RMS error / RMS = %.1e\n\n", spec.to_string().c_str(),
                ours.plan.kernel.c_str(), ratio);
    return ratio < 1e-5;
}

}  // namespace

int main() {
    const bool ok = check(rwkv7()) && check(elu_attention());
    return ok ? 0 : 1;
}
