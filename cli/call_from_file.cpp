#include "cli/call_from_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>

#include "cli/device.hpp"
#include "runtime/mirror.hpp"
#include "sluice/memory.hpp"
#include "sluice/variants.hpp"

namespace sluice::cli {

namespace {

// Tensors that are not inputs of any spec.
constexpr const char* kInitialState = "initial_state";
constexpr const char* kInitialKeySum = "initial_key_sum";
constexpr const char* kSequenceOffsets = "cu_seqlens";
const std::set<std::string> kResults = {"o", "final_state", "final_key_sum"};

std::string names_of(auto&& items) {
    std::string names;
    for (const auto& item : items) names += (names.empty() ? "" : ", ") + item.name;
    return names;
}

std::string backend_names() {
    std::string names;
    for (const Backend* backend : backends()) {
        names += fmt::format("{}{}", names.empty() ? "" : ", ", backend->name());
    }
    return names;
}

/// A metadata value; writers in Python store absent ones as "None".
std::optional<std::string> metadata(const TensorFile& file, const std::string& name) {
    const auto it = file.metadata.find(name);
    if (it == file.metadata.end() || it->second.empty() || it->second == "None") return {};
    return it->second;
}

double parse_scale(const std::string& text) {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (status != std::errc{} || stop != end) {
        throw Error(ErrorCode::kValue, "scale", fmt::format("'{}' in the metadata", text),
                    "a number");
    }
    return value;
}

std::string choose_op(const TensorFile& file, const CallOptions& options) {
    if (!options.op.empty()) return options.op;
    if (const auto op = metadata(file, "op")) return *op;
    throw Error(ErrorCode::kMissing, "op", "nothing",
                "--op, or op in the file's metadata: " + names_of(variants()));
}

/// Metadata is free text: only what the op calls a setting is one. What the user sets is passed on
/// whatever it is, so that a misspelt name is refused.
std::map<std::string, std::string> choose_settings(const TensorFile& file, const Variant& variant,
                                                   const CallOptions& options) {
    std::map<std::string, std::string> settings;
    for (const VariantSetting& setting : variant.settings) {
        // A bound belongs to the raw gate; beside g alone it only says where g came from.
        if (setting.name == "lower_bound" && !file.tensors.contains("g_raw")) continue;
        if (const auto value = metadata(file, setting.name)) settings[setting.name] = *value;
    }
    if (!options.lower_bound.empty()) settings["lower_bound"] = options.lower_bound;
    for (const std::string& text : options.settings) {
        const std::size_t equals = text.find('=');
        if (equals == 0 || equals == std::string::npos) {
            throw Error(ErrorCode::kValue, "set", "'" + text + "'", "name=value");
        }
        settings[text.substr(0, equals)] = text.substr(equals + 1);
    }
    return settings;
}

std::optional<StateLayout> choose_layout(const TensorFile& file, const CallOptions& options) {
    if (options.value_first) return StateLayout::kValueFirst;
    if (options.key_first) return StateLayout::kKeyFirst;
    if (const auto name = metadata(file, "state_layout")) {
        for (const StateLayout layout : {StateLayout::kKeyFirst, StateLayout::kValueFirst}) {
            if (*name == to_string(layout)) return layout;
        }
        throw Error(ErrorCode::kValue, "state_layout", fmt::format("'{}' in the metadata", *name),
                    "key-first, value-first");
    }
    if (const auto flag = metadata(file, "value_first")) {
        if (*flag == "True" || *flag == "true" || *flag == "1") return StateLayout::kValueFirst;
        if (*flag == "False" || *flag == "false" || *flag == "0") return StateLayout::kKeyFirst;
        throw Error(ErrorCode::kValue, "value_first", fmt::format("'{}' in the metadata", *flag),
                    "true, false");
    }
    return {};
}

Options choose_options(const TensorFile& file, const CallOptions& given) {
    Options options = given.options;
    options.precision = parse_precision(given.precision);
    options.algorithm = parse_algorithm(given.algorithm);
    options.state_layout = choose_layout(file, given);
    if (options.algorithm == Algorithm::kRecurrent && options.chunk != 0) {
        throw Error(ErrorCode::kSurplus, "chunk",
                    fmt::format("{} with --algorithm recurrent", options.chunk),
                    "no --chunk: the recurrent algorithm goes token by token");
    }
    if (!options.scale) {
        if (const auto text = metadata(file, "scale")) options.scale = parse_scale(*text);
    }
    return options;
}

Spec make_file_spec(const FileCall& call) {
    VariantRequest request;
    request.settings = call.settings;
    for (const auto& [name, tensor] : call.file.tensors) {
        if (kResults.contains(name)) continue;
        request.tensors[name] = {tensor.shape().begin(), tensor.shape().end()};
    }
    return make_spec(call.op, request);
}

/// Gives every tensor of the file its place in the call.
void place_tensors(FileCall& call, bool ignore_extra) {
    const bool raw_gate = call.spec.find_input("g_raw") != nullptr;
    for (const auto& [name, tensor] : call.file.tensors) {
        if (call.spec.find_input(name) != nullptr) {
            call.arguments.inputs.emplace_back(name, tensor.view());
        } else if (name == kInitialState) {
            call.arguments.state.initial = tensor.view();
        } else if (name == kInitialKeySum && call.spec.normalize) {
            call.arguments.state.initial_key_sum = tensor.view();
        } else if (name == kSequenceOffsets) {
            call.arguments.cu_seqlens = tensor.view();
        } else if (!kResults.contains(name) && !(name == "g" && raw_gate) && !ignore_extra) {
            throw Error(
                ErrorCode::kSurplus, name, describe_tensor(tensor),
                fmt::format("tensors of {}: {}, {}, {} (--ignore-extra skips others)", call.op,
                            names_of(call.spec.inputs), kInitialState, kSequenceOffsets));
        }
    }
}

bool is_float64(const FileCall& call) {
    if (call.options.precision != Precision::kAuto) {
        return call.options.precision == Precision::kFloat64;
    }
    return std::all_of(call.arguments.inputs.begin(), call.arguments.inputs.end(),
                       [](const auto& input) { return input.second.dtype == DType::kFloat64; });
}

}  // namespace

void add_call_options(CLI::App& command, CallOptions& o) {
    command.add_option("--op", o.op, "Recurrence (default: the file's): " + names_of(variants()))
        ->type_name("NAME");
    command.add_option("--scale", o.options.scale, "Factor on the output (default: the file's)")
        ->type_name("NUMBER");
    command.add_option("--set", o.settings, "A setting of the op, e.g. --set normalize=true")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false);
    command.add_option("--lower-bound", o.lower_bound, "kda: --set lower_bound=NUMBER")
        ->type_name("NUMBER");
    auto* value_first =
        command.add_flag("--value-first", o.value_first, "States are [N, HV, V, K]");
    command.add_flag("--key-first", o.key_first, "States are [N, HV, K, V]")->excludes(value_first);
    command.add_option("--device", o.device, std::string("Device: ") + kDeviceHelp)
        ->type_name("DEVICE");
    command.add_option("--backend", o.options.backend, "Backend: " + backend_names())
        ->type_name("NAME");
    command
        .add_option("--precision", o.precision,
                    "Arithmetic: auto, float32, float64, bfloat16 (operands rounded)")
        ->type_name("NAME");
    command.add_option("--algorithm", o.algorithm, "Algorithm: auto, chunked, recurrent")
        ->type_name("NAME");
    command.add_option("--chunk", o.options.chunk, "Tokens per chunk (default: planned)")
        ->type_name("TOKENS");
    command.add_option("--threads", o.options.threads, "Threads (default: all cores)")
        ->type_name("COUNT");
    command.add_flag("--validate", o.options.validate, "Refuse log decays above 0 and NaN inputs");
    command.add_flag("--ignore-extra", o.ignore_extra, "Skip tensors that the op does not use");
}

std::string settings_help() {
    std::string text = "Settings (--set, or metadata of the file):";
    for (const Variant& variant : variants()) {
        for (const VariantSetting& setting : variant.settings) {
            text +=
                fmt::format("\n  {:<16}  {:<11}  {}", variant.name, setting.name, setting.meaning);
        }
    }
    return text;
}

FileCall load_call(const std::filesystem::path& path, const CallOptions& options) {
    FileCall call;
    call.device = parse_device(options.device);
    call.file = read_safetensors(path);
    call.op = choose_op(call.file, options);
    call.settings = choose_settings(call.file, find_variant(call.op), options);
    call.spec = make_file_spec(call);
    call.options = choose_options(call.file, options);
    place_tensors(call, options.ignore_extra);
    return call;
}

namespace {

/// Of the call alone, with its kernels compiled and loaded before.
void time_call(const FileCall& call, const Arguments& arguments, CallResult& result) {
    const Plan prepared = prepare(call.spec, arguments, call.options);
    const auto start = std::chrono::steady_clock::now();
    result.plan = forward(call.spec, arguments, call.options);
    synchronize(call.device);
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    result.milliseconds = elapsed.count();
    if (result.plan.notice.empty()) result.plan.notice = prepared.notice;
}

}  // namespace

CallResult run_call(const FileCall& call, DType o_dtype, bool with_final_state) {
    const Dims d = infer_dims(call.spec, call.arguments);
    const StateLayout layout = call.options.state_layout.value_or(call.spec.default_state_layout);
    const bool value_first = layout == StateLayout::kValueFirst;
    const DType state_dtype = is_float64(call) ? DType::kFloat64 : DType::kFloat32;

    CallResult result;
    Arguments arguments = call.arguments;
    result.o = Tensor::empty(o_dtype, {d.B, d.T, d.HV, d.V});
    arguments.o = result.o;
    if (with_final_state) {
        result.final_state = Tensor::empty(
            state_dtype, {d.N, d.HV, value_first ? d.V : d.K, value_first ? d.K : d.V});
        arguments.state.final = result.final_state;
        if (call.spec.normalize) {
            result.final_key_sum = Tensor::empty(state_dtype, {d.N, d.HV, d.K});
            arguments.state.final_key_sum = result.final_key_sum;
        }
    }
    result.problem = bind(call.spec, arguments, call.options);
    if (call.device.kind == DeviceKind::kCpu) {
        time_call(call, arguments, result);
    } else {
        const Mirror mirror(arguments, call.device);
        mirror.fetch_inputs();
        time_call(call, mirror.arguments(), result);
        mirror.write_back();
    }
    return result;
}

void print_notice(const Plan& plan) {
    if (!plan.notice.empty()) fmt::print(stderr, "note: {}\n", plan.notice);
}

DType value_dtype(const FileCall& call) {
    for (const std::string& name : call.spec.v.inputs()) {
        const std::vector<Axis>& axes = call.spec.find_input(name)->axes;
        if (std::find(axes.begin(), axes.end(), Axis::kV) == axes.end()) continue;
        for (const auto& [given, view] : call.arguments.inputs) {
            if (given == name) return view.dtype;
        }
    }
    return DType::kFloat32;
}

std::string describe_plan(const Plan& plan) {
    const std::string parts = plan.backend == "cuda" ? fmt::format("{} segments", plan.segments)
                                                     : fmt::format("{} threads", plan.threads);
    return fmt::format("{} {} {}, chunk {}, {}, hash {:016x}", plan.backend, plan.kernel,
                       to_string(plan.precision), plan.chunk, parts, plan.hash());
}

std::string describe_tensor(const TensorView& view) {
    return fmt::format("{} {}", to_string(view.dtype), to_string(view.shape()));
}

std::string describe_dims(const Dims& d) {
    return fmt::format("B{} T{} H{} HV{} K{} V{} N{}", d.B, d.T, d.H, d.HV, d.K, d.V, d.N);
}

nlohmann::ordered_json to_json(const TensorView& view) {
    return {{"dtype", to_string(view.dtype)}, {"shape", view.shape()}};
}

nlohmann::ordered_json to_json(const Dims& d) {
    return {{"B", d.B}, {"T", d.T}, {"H", d.H}, {"HV", d.HV}, {"K", d.K}, {"V", d.V}, {"N", d.N}};
}

nlohmann::ordered_json to_json(const Plan& plan) {
    return {{"backend", plan.backend},
            {"kernel", plan.kernel},
            {"precision", to_string(plan.precision)},
            {"chunk", plan.chunk},
            {"value_tile", plan.value_tile},
            {"segments", plan.segments},
            {"tasks", plan.tasks},
            {"threads", plan.threads},
            {"workspace_bytes", plan.workspace_bytes},
            {"hash", fmt::format("{:016x}", plan.hash())},
            {"notice", plan.notice}};
}

}  // namespace sluice::cli
