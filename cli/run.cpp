// sluice run: one call, from a file to a file.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/call_from_file.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "core/file.hpp"

namespace sluice::cli {

namespace {

struct RunOptions {
    std::string input;
    std::string output;
    std::string o_dtype;
    bool no_final_state = false;
    bool keep_inputs = false;
    CallOptions call;
};

TensorFile output_file(const FileCall& call, const CallResult& result, bool keep_inputs) {
    TensorFile file;
    if (keep_inputs) file.tensors = call.file.tensors;
    const auto put = [&](const char* name, const Tensor& tensor) {
        if (tensor.defined()) {
            file.tensors[name] = tensor;
        } else {
            file.tensors.erase(name);
        }
    };
    put("o", result.o);
    put("final_state", result.final_state);
    put("final_key_sum", result.final_key_sum);
    file.metadata = call.settings;
    file.metadata["op"] = call.op;
    file.metadata["scale"] = fmt::format("{}", result.problem.scale);
    file.metadata["state_layout"] = to_string(result.problem.state_layout);
    file.metadata["source"] = "sluice run: " + describe_plan(result.plan);
    return file;
}

void print_text(const FileCall& call, const CallResult& result, const TensorFile& written,
                const std::string& path) {
    fmt::print("op      {}, {}\n", call.op, call.spec.summary);
    fmt::print("shape   {}\n", describe_dims(result.problem.dims));
    fmt::print("scale   {}\n", result.problem.scale);
    for (const auto& [name, value] : call.settings) fmt::print("set     {} = {}\n", name, value);
    fmt::print("device  {}\n", to_string(call.device));
    fmt::print("plan    {}\n", describe_plan(result.plan));
    fmt::print("time    {:.3f} ms\n", result.milliseconds);
    fmt::print("wrote   {}\n", path);
    for (const auto& [name, tensor] : written.tensors) {
        fmt::print("        {:<12} {}\n", name, describe_tensor(tensor));
    }
}

void print_json(const FileCall& call, const CallResult& result, const TensorFile& written,
                const std::string& path) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
    for (const auto& [name, tensor] : written.tensors) tensors[name] = to_json(tensor.view());
    const nlohmann::ordered_json object = {
        {"op", call.op},
        {"dims", to_json(result.problem.dims)},
        {"scale", result.problem.scale},
        {"state_layout", to_string(result.problem.state_layout)},
        {"settings", call.settings},
        {"device", to_string(call.device)},
        {"plan", to_json(result.plan)},
        {"milliseconds", result.milliseconds},
        {"output", path},
        {"tensors", tensors},
    };
    fmt::print("{}", json_text(object));
}

void run(const RunOptions& options, const Context& context) {
    std::error_code ignored;
    if (std::filesystem::equivalent(options.input, options.output, ignored)) {
        throw Error(ErrorCode::kFile, options.output, "the input file as output", "another path");
    }
    require_writable(options.output);
    const FileCall call = load_call(options.input, options.call);
    const DType o_dtype =
        options.o_dtype.empty() ? value_dtype(call) : parse_dtype(options.o_dtype);
    const CallResult result = run_call(call, o_dtype, !options.no_final_state);
    print_notice(result.plan);
    const TensorFile file = output_file(call, result, options.keep_inputs);
    write_safetensors(options.output, file);
    (context.json ? print_json : print_text)(call, result, file, options.output);
}

constexpr const char* kFooter =
    "The file holds the op's inputs by name: q k v, g (log decay) or g_raw A_log dt_bias, beta;\n"
    "mamba2: x dt A B C, optional D z dt_bias. Optional for all: initial_state, cu_seqlens.\n"
    "The result holds o and final_state. It appears whole or not at all.\n"
    "\n"
    "Examples:\n"
    "  sluice run --op gla in.safetensors -o out.safetensors\n"
    "  sluice run in.safetensors -o out.safetensors          op from the file's metadata\n"
    "  sluice run --op kda --lower-bound -5 in.safetensors -o out.safetensors\n"
    "  sluice run --op linear --set normalize=true --set feature_map=elu1 in.safetensors -o o.st\n"
    "  sluice run --device cuda in.safetensors -o out.safetensors\n"
    "  sluice run --backend oracle --o-dtype float32 --keep-inputs in.safetensors -o golden.st\n"
    "                                                        a file that `sluice verify` "
    "checks\n\n";

}  // namespace

void add_run(CLI::App& program, Context& context) {
    auto options = std::make_shared<RunOptions>();
    CLI::App& command = *program.add_subcommand("run", "Run a recurrence on tensors from a file");
    command.add_option("input", options->input, "A safetensors file")
        ->required()
        ->type_name("FILE");
    command.add_option("-o,--output", options->output, "Where the result goes")
        ->required()
        ->type_name("FILE");
    add_call_options(command, options->call);
    command.add_option("--o-dtype", options->o_dtype, "Type of o (default: that of v, or x)")
        ->type_name("DTYPE");
    command.add_flag("--no-final-state", options->no_final_state, "Do not store final_state");
    command.add_flag("--keep-inputs", options->keep_inputs, "Store the inputs beside the result");
    command.add_flag("--json", context.json, "Print one JSON object");
    command.footer(kFooter + settings_help());
    command.callback([options, &context] { run(*options, context); });
}

}  // namespace sluice::cli
