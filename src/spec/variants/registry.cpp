#include "spec/variants/registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "sluice/error.hpp"

namespace sluice {

namespace variant {

Input q() { return {"q", {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, "queries"}; }
Input k() { return {"k", {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, "keys"}; }
Input v() { return {"v", {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, "values"}; }
Input beta() { return {"beta", {Axis::kB, Axis::kT, Axis::kHV}, "write strength"}; }

bool has_setting(const VariantRequest& request, const std::string& name) {
    return request.settings.contains(name);
}

bool has_tensor(const VariantRequest& request, const std::string& name) {
    return request.tensors.contains(name);
}

bool flag(const VariantRequest& request, const std::string& name, bool fallback) {
    const auto it = request.settings.find(name);
    if (it == request.settings.end()) return fallback;
    std::string text = it->second;
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (text == "true" || text == "1") return true;
    if (text == "false" || text == "0") return false;
    throw Error(ErrorCode::kValue, name, "'" + it->second + "'", "true or false");
}

double number(const VariantRequest& request, const std::string& name, double fallback) {
    const auto it = request.settings.find(name);
    if (it == request.settings.end()) return fallback;
    const std::string& text = it->second;
    double value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc{} || end != text.data() + text.size() || value != value) {
        throw Error(ErrorCode::kValue, name, "'" + text + "'", "a number");
    }
    return value;
}

std::string choice(const VariantRequest& request, const std::string& name,
                   const std::vector<std::string>& accepted) {
    const auto it = request.settings.find(name);
    if (it == request.settings.end()) return accepted.front();
    if (std::find(accepted.begin(), accepted.end(), it->second) == accepted.end()) {
        throw Error(ErrorCode::kValue, name, "'" + it->second + "'",
                    fmt::format("{}", fmt::join(accepted, ", ")));
    }
    return it->second;
}

const VariantSetting kBetaSetting{
    "beta", "given (default), sigmoid (beta = sigmoid(input)) or 2sigmoid (negative eigenvalues)"};
const VariantSetting kL2NormSetting{
    "qk_l2norm", "true: q and k are divided by sqrt(sum x^2 + 1e-6) (default false)"};

Expr beta_expr(const VariantRequest& request) {
    const std::string form = choice(request, kBetaSetting.name, {"given", "sigmoid", "2sigmoid"});
    Expr given = Expr::input("beta");
    if (form == "given") return given;
    return form == "sigmoid" ? sigmoid(given) : 2.0 * sigmoid(given);
}

Expr declare_raw_gate(const VariantRequest& request, Spec& spec, std::vector<Axis> gate_axes,
                      std::vector<Axis> bias_axes) {
    spec.inputs.push_back({"g_raw", std::move(gate_axes), "gate before its formula"});
    spec.inputs.push_back({"A_log", {Axis::kHV}, "log of the decay rate"});
    Expr raw = Expr::input("g_raw");
    if (has_tensor(request, "dt_bias")) {
        spec.inputs.push_back({"dt_bias", std::move(bias_axes), "added to the raw gate"});
        raw = raw + Expr::input("dt_bias");
    }
    return raw;
}

Expr normalized_if_set(const VariantRequest& request, const std::string& input) {
    Expr given = Expr::input(input);
    return flag(request, kL2NormSetting.name, false) ? l2norm(given) : given;
}

}  // namespace variant

namespace {

struct Outside {
    std::string_view name;
    std::string_view reason;
};

// Recurrences that users know by name and that no Spec can say.
constexpr Outside kOutside[] = {
    {"mamba1",
     "its decay is a full matrix over (channel, state): exp(dt[c] * A[c, n]) does not "
     "factor into a key-channel vector per head"},
    {"rg_lru", "it has no key-value outer product: the state is a vector, h = a * h + b * x"},
    {"hgrn", "it has no key-value outer product: the state is a vector, h = f * h + (1 - f) * i"},
    {"s4d", "its states are complex and its transition is constant in time"},
    {"titans", "its state is the weights of a multi-layer network, updated by a gradient step"},
    {"ttt_mlp", "its state is the weights of a multi-layer network, updated by a gradient step"},
    {"gated_slot_attention", "its output passes through a softmax between two recurrences"},
    {"slstm", "its gates read the previous output: the recurrence is not linear in the state"},
};

std::string plain(std::string_view name) {
    std::string text;
    for (const char c : name) {
        if (c != '-' && c != '_' && c != ' ') {
            text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    return text;
}

}  // namespace

std::span<const Variant> variants() {
    static const std::array<Variant, 9> kVariants = {
        variant::linear(), variant::retention(), variant::lightning(),  variant::simple_gla(),
        variant::gla(),    variant::mamba2(),    variant::delta_rule(), variant::gated_delta_rule(),
        variant::kda()};
    return kVariants;
}

const Variant& find_variant(std::string_view name) {
    std::vector<std::string> known;
    for (const Variant& candidate : variants()) {
        if (candidate.name == name) return candidate;
        known.push_back(candidate.name);
    }
    for (const Outside& outside : kOutside) {
        if (plain(outside.name) == plain(name)) {
            throw Error(ErrorCode::kUnsupported, "op", "'" + std::string(name) + "'",
                        fmt::format("{} ({} is outside this family: {})", fmt::join(known, ", "),
                                    outside.name, outside.reason));
        }
    }
    throw Error(ErrorCode::kUnsupported, "op", "'" + std::string(name) + "'",
                fmt::format("{}", fmt::join(known, ", ")));
}

Spec make_spec(std::string_view name, const VariantRequest& request) {
    const Variant& found = find_variant(name);
    std::vector<std::string> known;
    for (const VariantSetting& setting : found.settings) known.push_back(setting.name);
    for (const auto& [setting, value] : request.settings) {
        if (std::find(known.begin(), known.end(), setting) == known.end()) {
            throw Error(ErrorCode::kSurplus, setting, "'" + value + "'",
                        known.empty()
                            ? fmt::format("no settings for {}", name)
                            : fmt::format("settings of {}: {}", name, fmt::join(known, ", ")));
        }
    }
    Spec spec = found.make(request);
    spec.validate();
    return spec;
}

}  // namespace sluice
