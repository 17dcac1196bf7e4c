// sluice info: what this program can run, and on what.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.hpp"
#include "cli/device.hpp"
#include "cli/failure.hpp"
#include "cli/info_forms.hpp"
#include "cli/table.hpp"
#include "cuda/engine/driver.hpp"
#include "measure/embedded.hpp"
#include "measure/units.hpp"
#include "sluice/backend.hpp"
#include "sluice/device.hpp"
#include "sluice/variants.hpp"

namespace sluice::cli {

namespace {

using measure::format_with_prefix;

struct InfoCommand {
    std::string op;
    bool verbose = false;
};

std::string joined_inputs(const Spec& spec) {
    std::string text;
    for (const Input& input : spec.inputs) text += (text.empty() ? "" : " ") + input.name;
    return text;
}

/// "13.0": the CUDA version that the driver is for; empty without one.
std::string driver_version() {
    int version = 0;
    if (cuda::driver() == nullptr) return "";
    cuda::check(cuda::driver()->driver_version(&version), "cuDriverGetVersion");
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// The GPUs that the driver shows, and whether the library runs on each.
std::string gpus_text() {
    if (cuda::gpus().empty()) return fmt::format("CUDA: {}\n", cuda_problem());
    Table table({"<GPU", "<name", "SMs", "capability", "memory", "clock", "L2", "<"});
    for (const cuda::GpuInfo& gpu : cuda::gpus()) {
        table.add({fmt::format("cuda:{}", gpu.index), gpu.name, std::to_string(gpu.multiprocessors),
                   fmt::format("{}.{}", gpu.major, gpu.minor),
                   format_with_prefix(static_cast<double>(gpu.memory_bytes), "B"),
                   fmt::format("{} MHz", gpu.clock_khz / 1000),
                   format_with_prefix(static_cast<double>(gpu.l2_bytes), "B"),
                   gpu.runs_sm90a() ? "usable" : "not usable; needed: " + gpu_problem(gpu.index)});
    }
    const std::string problem = cuda_problem();
    return fmt::format("{}Driver for CUDA {}{}\n", table.to_string(), driver_version(),
                       problem.empty() ? "" : "; no GPU is used: " + problem);
}

nlohmann::ordered_json cuda_json() {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const cuda::GpuInfo& gpu : cuda::gpus()) {
        list.push_back({{"device", fmt::format("cuda:{}", gpu.index)},
                        {"name", gpu.name},
                        {"multiprocessors", gpu.multiprocessors},
                        {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                        {"memory_bytes", gpu.memory_bytes},
                        {"clock_mhz", gpu.clock_khz / 1000},
                        {"l2_bytes", gpu.l2_bytes},
                        {"usable", gpu.runs_sm90a()}});
    }
    const std::string problem = cuda_problem();
    return {{"usable", problem.empty()},
            {"problem", problem},
            {"driver", driver_version()},
            {"gpus", list}};
}

std::string devices_text() {
    Table table({"<device", "copy", "matmul", "cores", "cache", "<rates"});
    for (const DeviceSpec* device : {&host_device(), &h200()}) {
        table.add({device->name, format_with_prefix(device->copy_bytes_per_s, "B/s"),
                   format_with_prefix(device->matmul_flops_per_s, "FLOP/s"),
                   std::to_string(device->multiprocessors),
                   format_with_prefix(static_cast<double>(device->cache_bytes), "B"),
                   device->source});
    }
    return table.to_string() + "The H200 row is for floors; its matmul rate is that of bf16.\n\n" +
           gpus_text();
}

std::string backends_text() {
    Table table({"<backend", "<summary"});
    for (const Backend* backend : backends()) {
        table.add({std::string(backend->name()), std::string(backend->summary())});
    }
    return table.to_string();
}

std::string variants_text() {
    Table table({"<op", "<decay", "<update", "<inputs", "<summary"});
    for (const Variant& variant : variants()) {
        const Spec spec = make_spec(variant.name);
        table.add({variant.name, to_string(spec.decay()), to_string(spec.update),
                   joined_inputs(spec), variant.summary});
    }
    return table.to_string();
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

/// One op in full: each form's recurrence and inputs, its settings, and what runs it.
std::string variant_text(const Variant& variant) {
    const std::vector<OpForm> forms = forms_of(variant);
    std::string text = variant.summary + "\n";
    for (const OpForm& form : forms) {
        if (!form.given.empty()) text += fmt::format("given {}:\n", form.given);
        text += form.spec.to_string();
        if (!form.optional.empty()) text += fmt::format("  optional: {}\n", joined(form.optional));
    }
    text += fmt::format("source: {}\n", forms.front().spec.source);
    for (const VariantSetting& setting : variant.settings) {
        text += fmt::format("--set {}=...: {}\n", setting.name, setting.meaning);
    }
    for (const std::string& line : support_of(forms.front().spec)) {
        text += fmt::format("runs on {}\n", line);
    }
    return text;
}

nlohmann::ordered_json inputs_json(const OpForm& form) {
    nlohmann::ordered_json inputs = nlohmann::ordered_json::array();
    for (const Input& input : form.spec.inputs) {
        const bool optional = std::find(form.optional.begin(), form.optional.end(), input.name) !=
                              form.optional.end();
        inputs.push_back({{"name", input.name},
                          {"axes", to_string(input.axes)},
                          {"meaning", input.meaning},
                          {"optional", optional}});
    }
    return inputs;
}

nlohmann::ordered_json to_json(const DeviceSpec& device) {
    return {{"name", device.name},
            {"source", device.source},
            {"copy_bytes_per_s", device.copy_bytes_per_s},
            {"matmul_flops_per_s", device.matmul_flops_per_s},
            {"multiprocessors", device.multiprocessors},
            {"cache_bytes", device.cache_bytes},
            {"shared_memory_bytes", device.shared_memory_bytes}};
}

nlohmann::ordered_json to_json(const Variant& variant) {
    nlohmann::ordered_json forms = nlohmann::ordered_json::array();
    for (const OpForm& form : forms_of(variant)) {
        forms.push_back({{"given", form.given},
                         {"inputs", inputs_json(form)},
                         {"recurrence", form.spec.to_string()}});
    }
    nlohmann::ordered_json settings = nlohmann::ordered_json::array();
    for (const VariantSetting& setting : variant.settings) {
        settings.push_back({{"name", setting.name}, {"meaning", setting.meaning}});
    }
    const Spec spec = make_spec(variant.name);
    return {{"name", variant.name},
            {"summary", variant.summary},
            {"decay", to_string(spec.decay())},
            {"update", to_string(spec.update)},
            {"source", spec.source},
            {"forms", forms},
            {"settings", settings},
            {"runs_on", support_of(spec)}};
}

void print_json(const InfoCommand& command) {
    nlohmann::ordered_json object;
    if (!command.op.empty()) {
        object = to_json(find_variant(command.op));
    } else {
        object = {{"version", measure::embedded::version()},
                  {"commit", measure::embedded::commit()},
                  {"devices", {to_json(host_device()), to_json(h200())}},
                  {"cuda", cuda_json()},
                  {"backends", nlohmann::ordered_json::array()},
                  {"ops", nlohmann::ordered_json::array()}};
        for (const Backend* backend : backends()) {
            object["backends"].push_back(
                {{"name", backend->name()}, {"summary", backend->summary()}});
        }
        for (const Variant& variant : variants()) object["ops"].push_back(to_json(variant));
    }
    fmt::print("{}", json_text(object));
}

void run(const InfoCommand& command, const Context& context) {
    if (context.json) return print_json(command);
    if (!command.op.empty()) {
        fmt::print("{}", variant_text(find_variant(command.op)));
        return;
    }
    fmt::print("sluice {}, commit {}\n\n{}\n{}\n", measure::embedded::version(),
               measure::embedded::commit(), devices_text(), backends_text());
    fmt::print("{}", variants_text());
    if (!command.verbose) return;
    for (const Variant& variant : variants()) fmt::print("\n{}", variant_text(variant));
}

constexpr const char* kFooter =
    "Examples:\n"
    "  sluice info                  devices (this CPU is measured), GPUs, backends, ops\n"
    "  sluice info --op kda         one op: its forms, inputs and settings, and what runs it\n"
    "  sluice info --verbose        all of them";

}  // namespace

void add_info(CLI::App& program, Context& context) {
    auto command = std::make_shared<InfoCommand>();
    CLI::App& app = *program.add_subcommand("info", "Devices, backends and ops");
    app.add_option("--op", command->op, "One op in full")->type_name("NAME");
    app.add_flag("-v,--verbose", command->verbose, "All ops in full");
    app.add_flag("--json", context.json, "As JSON");
    app.footer(kFooter);
    app.callback([command, &context] { run(*command, context); });
}

}  // namespace sluice::cli
