#include "measure/random_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "core/convert.hpp"
#include "sluice/error.hpp"
#include "sluice/memory.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice::measure {

const char* to_string(Gates gates) noexcept {
    switch (gates) {
        case Gates::kDefault: return "logsigmoid/16";
        case Gates::kLogSigmoid: return "logsigmoid";
        case Gates::kSpiky: return "spiky";
    }
    return "?";
}

Gates parse_gates(std::string_view name) {
    constexpr std::pair<Gates, std::string_view> kNames[] = {
        {Gates::kDefault, "mild"}, {Gates::kLogSigmoid, "usual"}, {Gates::kSpiky, "spiky"}};
    for (const auto& [gates, short_name] : kNames) {
        if (name == short_name || name == to_string(gates)) return gates;
    }
    throw Error(ErrorCode::kValue, "gates", "'" + std::string(name) + "'",
                "mild (logsigmoid/16), usual (logsigmoid), spiky");
}

namespace {

// Counter-based random numbers: element i of a stream is a function of (seed, stream, i) alone, so
// any thread can compute it.

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
}

/// One stream per seed and name: variants that share an input get the same one.
std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    return mix(mix(seed) ^ hash);
}

/// In (0, 1].
double uniform(std::uint64_t key, std::int64_t i) {
    constexpr double kStep = 0x1p-53;
    return (static_cast<double>(mix(key + static_cast<std::uint64_t>(i)) >> 11U) + 1) * kStep;
}

/// element i = f(n_i, i) with n_i from N(0,1), by Box-Muller: two at a time.
template <class F>
void fill_from_normal(const Tensor& tensor, std::uint64_t key, F&& f) {
    constexpr float kStep = 0x1p-24F;
    const TensorView& view = tensor.view();
    const std::int64_t size = view.size();
    visit_floating(view.dtype, [&](auto tag) {
        using T = decltype(tag);
        T* const out = static_cast<T*>(view.data);
#pragma omp parallel for schedule(static)
        for (std::int64_t pair = 0; pair < (size + 1) / 2; ++pair) {
            const std::uint64_t bits = mix(key + static_cast<std::uint64_t>(pair));
            const float u = (static_cast<float>(bits >> 40U) + 1) * kStep;
            const float angle =
                2 * std::numbers::pi_v<float> * static_cast<float>(bits & 0xffffffU) * kStep;
            const float radius = std::sqrt(-2 * std::log(u));
            const std::int64_t i = 2 * pair;
            out[i] = round_to<T>(f(static_cast<double>(radius * std::cos(angle)), i));
            if (i + 1 < size) {
                out[i + 1] = round_to<T>(f(static_cast<double>(radius * std::sin(angle)), i + 1));
            }
        }
    });
}

bool contains(const Expr& expr, Op op) {
    const ExprNodes nodes(expr);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].node().op == op) return true;
    }
    return false;
}

double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double inverse_softplus(double y) { return std::log(std::expm1(y)); }
double log_uniform(double low, double high, double u) {
    return std::exp(std::lerp(std::log(low), std::log(high), u));
}

// Where time steps and decay rates start in trained Mamba-2 and Gated DeltaNet layers.
constexpr double kMinStep = 1e-3, kMaxStep = 1e-1;
constexpr double kMinRate = 1, kMaxRate = 16;

struct Target {
    const Spec& spec;
    const InputOptions& options;
    const Tensor& tensor;
    std::uint64_t key;
};

template <class F>
void fill_from_uniform(const Target& target, F&& f) {
    fill_from_normal(target.tensor, target.key,
                     [&](double /*normal*/, std::int64_t i) { return f(uniform(~target.key, i)); });
}

void normal(const Target& target) {
    fill_from_normal(target.tensor, target.key, [](double n, std::int64_t /*i*/) { return n; });
}

void keys(const Target& target) {
    normal(target);
    if (target.spec.update != Update::kDelta) return;
    const TensorView& view = target.tensor.view();
    const std::int64_t channels = view.extents[view.rank - 1];
    const std::int64_t rows = channels > 0 ? view.size() / channels : 0;
    visit_floating(view.dtype, [&](auto tag) {
        using T = decltype(tag);
#pragma omp parallel for schedule(static)
        for (std::int64_t row = 0; row < rows; ++row) {
            T* const k = static_cast<T*>(view.data) + row * channels;
            double sum = 0;
            for (std::int64_t c = 0; c < channels; ++c) {
                sum += static_cast<double>(k[c]) * static_cast<double>(k[c]);
            }
            const double inverse = 1 / std::sqrt(sum + 1e-6);
            for (std::int64_t c = 0; c < channels; ++c) {
                k[c] = round_to<T>(static_cast<double>(k[c]) * inverse);
            }
        }
    });
}

void log_decays(const Target& target) {
    constexpr double kSpike = -1000, kSpikeShare = 0.05;
    const Gates gates = target.options.gates;
    const double divisor = gates == Gates::kLogSigmoid ? 1 : 16;
    fill_from_normal(target.tensor, target.key, [&](double n, std::int64_t i) {
        if (gates == Gates::kSpiky && uniform(~target.key, i) <= kSpikeShare) return kSpike;
        return log_sigmoid(n) / divisor;
    });
}

void betas(const Target& target) {
    const bool raw = target.spec.beta && contains(*target.spec.beta, Op::kSigmoid);
    fill_from_normal(target.tensor, target.key,
                     [&](double n, std::int64_t /*i*/) { return raw ? n : sigmoid(n); });
}

void time_steps(const Target& target) {
    if (!contains(target.spec.v, Op::kSoftplus)) {
        fill_from_uniform(target, [](double u) { return log_uniform(kMinStep, kMaxStep, u); });
        return;
    }
    const bool biased = target.spec.find_input("dt_bias") != nullptr;
    const double centre = biased ? 0 : inverse_softplus(std::sqrt(kMinStep * kMaxStep));
    fill_from_normal(target.tensor, target.key,
                     [&](double n, std::int64_t /*i*/) { return centre + n; });
}

void time_step_biases(const Target& target) {
    fill_from_uniform(
        target, [](double u) { return inverse_softplus(log_uniform(kMinStep, kMaxStep, u)); });
}

void rates(const Target& target) {
    fill_from_uniform(target, [](double u) { return -std::lerp(kMinRate, kMaxRate, u); });
}

void log_rates(const Target& target) {
    fill_from_uniform(target, [](double u) { return std::log(std::lerp(kMinRate, kMaxRate, u)); });
}

void skips(const Target& target) {
    fill_from_normal(target.tensor, target.key,
                     [](double n, std::int64_t /*i*/) { return 1 + 0.1 * n; });
}

struct Distribution {
    std::string_view input;
    void (*fill)(const Target& target);
};

constexpr Distribution kDistributions[] = {
    {"q", normal},   {"k", keys},        {"v", normal},        {"g", log_decays},
    {"beta", betas}, {"g_raw", normal},  {"A_log", log_rates}, {"dt_bias", time_step_biases},
    {"x", normal},   {"dt", time_steps}, {"A", rates},         {"B", normal},
    {"C", normal},   {"D", skips},       {"z", normal},
};

const Distribution& find_distribution(const Spec& spec, std::string_view input) {
    std::string known;
    for (const Distribution& candidate : kDistributions) {
        if (candidate.input == input) return candidate;
        known += (known.empty() ? "" : ", ") + std::string(candidate.input);
    }
    throw Error(ErrorCode::kUnsupported, std::string(input),
                fmt::format("an input of {} without a known distribution", spec.name),
                "random values for " + known);
}

DType dtype_of(const Input& input, const InputOptions& options) {
    const bool per_token =
        std::find(input.axes.begin(), input.axes.end(), Axis::kT) != input.axes.end();
    if (!per_token) return DType::kFloat32;
    return input.name == "g" || input.name == "g_raw" ? options.gate_dtype : options.dtype;
}

}  // namespace

NamedTensors views(const OwnedInputs& inputs) {
    NamedTensors named;
    for (const auto& [name, tensor] : inputs) named.emplace_back(name, tensor.view());
    return named;
}

OwnedInputs allocate_inputs(const Spec& spec, const Dims& dims, const InputOptions& options,
                            const Device& device) {
    OwnedInputs inputs;
    for (const Input& input : spec.inputs) {
        (void)find_distribution(spec, input.name);
        std::vector<std::int64_t> shape;
        for (const Axis axis : input.axes) shape.push_back(dims.extent(axis));
        inputs.emplace_back(input.name, empty_on(dtype_of(input, options), shape, device));
    }
    return inputs;
}

void fill_inputs(const Spec& spec, const InputOptions& options, OwnedInputs& inputs) {
    for (auto& [name, tensor] : inputs) {
        const std::uint64_t key = stream_key(options.seed, name);
        find_distribution(spec, name).fill({spec, options, tensor, key});
    }
}

OwnedInputs random_inputs(const Spec& spec, const Dims& dims, const InputOptions& options) {
    OwnedInputs inputs = allocate_inputs(spec, dims, options);
    fill_inputs(spec, options, inputs);
    return inputs;
}

void fill_normal(const Tensor& tensor, std::uint64_t seed, std::string_view name) {
    fill_from_normal(tensor, stream_key(seed, name),
                     [](double n, std::int64_t /*i*/) { return n; });
}

}  // namespace sluice::measure
