#include "cli/info_forms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/device.hpp"
#include "measure/random_inputs.hpp"
#include "sluice/backend.hpp"
#include "sluice/device.hpp"
#include "sluice/error.hpp"
#include "sluice/memory.hpp"

namespace sluice::cli {

namespace {

// Tensors that choose a form, and those that a form may have besides.
constexpr std::array kFormTensors = {"g_raw", "A_log"};
constexpr std::array kOptionalTensors = {"dt_bias", "D", "z"};

bool has_setting(const Variant& variant, const char* name) {
    return std::any_of(variant.settings.begin(), variant.settings.end(),
                       [&](const VariantSetting& setting) { return setting.name == name; });
}

OpForm make_form(const Variant& variant, std::string given, VariantRequest request) {
    OpForm form{std::move(given), make_spec(variant.name, request), {}};
    for (const char* name : kOptionalTensors) {
        VariantRequest more = request;
        more.tensors[name] = {};
        const Spec spec = make_spec(variant.name, more);
        if (spec.find_input(name) == nullptr || form.spec.find_input(name) != nullptr) continue;
        form.optional.emplace_back(name);
        request = more;
        form.spec = spec;
    }
    return form;
}

/// "bfloat16", or on a GPU, where it decides the speed, "bfloat16 (gla, tensor cores)".
std::string describe_choice(const Backend& backend, const Problem& problem, DType dtype) {
    if (problem.device.kind == DeviceKind::kCpu) return to_string(dtype);
    const Plan plan = backend.plan(problem, nominal_device(problem.device));
    return fmt::format("{} ({}{})", to_string(dtype), plan.kernel,
                       plan.chunk > 1 ? ", tensor cores" : "");
}

std::string support_line(const Spec& spec, const Backend& backend, Phase phase) {
    const bool on_gpu = backend.name() == "cuda";
    if (on_gpu) {
        if (const std::string problem = cuda_problem(); !problem.empty()) {
            return fmt::format("{} {}: not here: {}", backend.name(), to_string(phase), problem);
        }
    }
    const Device device = parse_device(on_gpu ? "cuda" : "cpu");
    const Dims dims{
        .B = 1, .T = phase == Phase::kPrefill ? 64 : 1, .H = 1, .HV = 1, .K = 64, .V = 64, .N = 1};
    std::string types, refusal;
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
        const measure::OwnedInputs inputs =
            measure::allocate_inputs(spec, dims, {.dtype = dtype, .gate_dtype = dtype}, device);
        const std::array shape = {dims.B, dims.T, dims.HV, dims.V};
        const Tensor o = empty_on(dtype, shape, device);
        Arguments arguments;
        arguments.inputs = measure::views(inputs);
        arguments.o = o;
        const Problem problem = bind(spec, arguments, {}, phase);
        const Support support = backend.supports(problem);
        if (support.ok) {
            types += (types.empty() ? "" : ", ") + describe_choice(backend, problem, dtype);
        } else {
            refusal = support.reason;
        }
    }
    return fmt::format("{} {}: {}", backend.name(), to_string(phase),
                       types.empty() ? "none: " + refusal : types);
}

}  // namespace

std::vector<OpForm> forms_of(const Variant& variant) {
    VariantRequest raw;
    for (const char* name : kFormTensors) raw.tensors[name] = {};
    std::vector<OpForm> forms = {make_form(variant, "", {}),
                                 make_form(variant, "g_raw and A_log", raw)};
    if (has_setting(variant, "lower_bound")) {
        raw.settings["lower_bound"] = "-5";
        forms.push_back(make_form(variant, "g_raw and A_log, --set lower_bound=-5", raw));
    }
    // A variant that does not know a tensor builds the form that it has built before.
    std::vector<OpForm> distinct;
    for (OpForm& form : forms) {
        const bool seen = std::any_of(distinct.begin(), distinct.end(), [&](const OpForm& other) {
            return other.spec.to_string() == form.spec.to_string();
        });
        if (!seen) distinct.push_back(std::move(form));
    }
    return distinct;
}

std::vector<std::string> support_of(const Spec& spec) {
    std::vector<std::string> lines;
    for (const Backend* backend : backends()) {
        for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
            lines.push_back(support_line(spec, *backend, phase));
        }
    }
    return lines;
}

}  // namespace sluice::cli
