// sluice bench: how fast, and how far from what the machine allows.
#include "measure/bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench_cases.hpp"
#include "cli/bench_table.hpp"
#include "cli/commands.hpp"
#include "cli/device.hpp"
#include "cli/failure.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "core/file.hpp"
#include "measure/device.hpp"
#include "measure/units.hpp"
#include "measure/verdicts.hpp"
#include "measure/workloads.hpp"
#include "sluice/error.hpp"
#include "sluice/record.hpp"

namespace sluice::cli {

namespace {

struct BenchCommand {
    BenchFlags flags;
    measure::BenchLimits limits;
    double max_memory_gb = 0;
    std::string output;
    bool list_models = false;
    bool plot = false;
};

/// As a word that a shell reads back as it was.
std::string shell_word(const std::string& word) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string text = "'";
    for (const char c : word) {
        if (c == '\'') {
            text += "'\\''";
        } else {
            text += c;
        }
    }
    return text + "'";
}

std::string command_line() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::string text, argument;
    while (std::getline(file, argument, '\0')) {
        if (text.empty()) argument = std::filesystem::path(argument).filename().string();
        text += (text.empty() ? "" : " ") + shell_word(argument);
    }
    return text;
}

/// The op that a model's layers are, or why it cannot be run.
struct ModelOp {
    std::string op, refusal;
};

ModelOp op_of(const measure::Workload& workload) {
    try {
        return {measure::shape_of(workload).op, ""};
    } catch (const Error& error) {
        return {"", error.accepted()};
    }
}

std::string model_table() {
    Table table({"<model", "<family", "layers", "H", "HV", "K", "V", "<op"});
    for (const measure::Workload& w : measure::workloads()) {
        const auto show = [](std::int64_t n) { return n > 0 ? std::to_string(n) : "?"; };
        const ModelOp op = op_of(w);
        table.add({w.model, w.family, fmt::format("{}/{}", w.layers_recurrent, w.layers_total),
                   show(w.heads_qk), show(w.heads_v), show(w.dim_k), show(w.dim_v),
                   op.refusal.empty() ? op.op : "refused: " + op.refusal});
    }
    return table.to_string();
}

/// Dimensions that are not published are null, as is the op of a model that cannot be run.
nlohmann::ordered_json models_json() {
    const auto number = [](std::int64_t n) {
        return n > 0 ? nlohmann::ordered_json(n) : nlohmann::ordered_json();
    };
    nlohmann::ordered_json models = nlohmann::ordered_json::array();
    for (const measure::Workload& w : measure::workloads()) {
        const ModelOp op = op_of(w);
        nlohmann::ordered_json model = {{"model", w.model},
                                        {"family", w.family},
                                        {"layers_recurrent", w.layers_recurrent},
                                        {"layers_total", w.layers_total},
                                        {"H", number(w.heads_qk)},
                                        {"HV", number(w.heads_v)},
                                        {"K", number(w.dim_k)},
                                        {"V", number(w.dim_v)},
                                        {"op", nullptr}};
        if (op.refusal.empty()) {
            model["op"] = op.op;
        } else {
            model["refused"] = op.refusal;
        }
        models.push_back(std::move(model));
    }
    return models;
}

/// Every row's prediction, so that a long run is announced and hopeless rows are known first.
std::vector<Record> predict_all(const std::vector<measure::BenchCase>& rows,
                                const measure::BenchLimits& limits) {
    std::vector<Record> records;
    records.reserve(rows.size());
    for (const measure::BenchCase& row : rows) records.push_back(measure::predict(row, limits));
    return records;
}

/// Measures the device once more: the floors use the better of before and after, and a device that
/// was not the same is said so.
void settle_rates(const Device& where, std::vector<Record>& records) {
    constexpr double kSame = 0.85;
    if (std::none_of(records.begin(), records.end(), [](const Record& r) { return r.ran(); })) {
        return;
    }
    DeviceSpec device = measure::measured_device(where);
    const DeviceSpec again = measure::measure_device(where);
    const auto agree = [](double a, double b) { return std::min(a, b) >= kSame * std::max(a, b); };
    if (!agree(device.copy_bytes_per_s, again.copy_bytes_per_s) ||
        !agree(device.matmul_flops_per_s, again.matmul_flops_per_s)) {
        fmt::print(stderr,
                   "warning: this device's rates changed during the run; other programs were "
                   "probably running\n  before {}\n  after  {}\n",
                   measure::describe_rates(device), measure::describe_rates(again));
    }
    device.copy_bytes_per_s = std::max(device.copy_bytes_per_s, again.copy_bytes_per_s);
    device.matmul_flops_per_s = std::max(device.matmul_flops_per_s, again.matmul_flops_per_s);
    for (Record& record : records) measure::set_device(device, record);
}

std::vector<Record> measure_all(const std::vector<measure::BenchCase>& rows,
                                const measure::BenchLimits& limits) {
    std::vector<Record> records = predict_all(rows, limits);
    std::vector<double> seconds;
    seconds.reserve(records.size());
    for (const Record& record : records) {
        seconds.push_back(measure::expected_seconds(record, limits));
    }
    const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    const auto skipped =
        std::count_if(records.begin(), records.end(), [](const Record& r) { return !r.ran(); });
    fmt::print(stderr, "{} row{}, {} skipped; about {}\n", rows.size(), rows.size() == 1 ? "" : "s",
               skipped, measure::format_us(1e6 * total));
    Progress progress(total);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (!records[i].ran()) continue;
        progress.begin(fmt::format("{} {}", records[i].op, measure::describe_shape(records[i])));
        records[i] = measure::measure(rows[i], limits);
        progress.end(seconds[i]);
    }
    if (!rows.empty()) settle_rates(rows.front().device, records);
    const std::string command = command_line();
    for (Record& record : records) record.command = command;
    return records;
}

void print_records(const std::vector<Record>& records, const BenchCommand& command,
                   const Context& context) {
    if (context.json) {
        fmt::print("{}", to_json(records));
        return;
    }
    fmt::print("{}", bench_table(records));
    if (!command.plot && isatty(STDOUT_FILENO) == 0) return;
    const std::string plot = bench_plot(records);
    if (!plot.empty()) fmt::print("\n{}", plot);
}

void run(const BenchCommand& command, Context& context) {
    if (command.list_models) {
        fmt::print("{}", context.json ? json_text(models_json()) : model_table());
        return;
    }
    measure::BenchLimits limits = command.limits;
    limits.memory_bytes = static_cast<std::int64_t>(1e9 * command.max_memory_gb);
    const BenchCases cases = bench_cases(command.flags);
    for (const std::string& refusal : cases.refused) {
        fmt::print(stderr, "skipped: {}\n", refusal);
    }
    if (!command.output.empty()) require_writable(command.output);
    const std::vector<Record> records = measure_all(cases.rows, limits);
    if (std::none_of(records.begin(), records.end(), [](const Record& r) { return r.ran(); })) {
        context.status = 2;
    }
    // Shown before they are written: measurements outlive a disk that is full by now.
    print_records(records, command, context);
    if (command.output.empty()) return;
    try {
        write_records(command.output, records);
    } catch (const Error& error) {
        // Standard output has its document; an error object after it would spoil it.
        fmt::print(stderr, "sluice: {}\n", failure_text(error));
        context.status = 2;
    }
}

constexpr const char* kFooter =
    "Columns: median of the runs; spread, the median deviation from it; FLOPs and bytes by "
    "formula\n"
    "(chunks of 64 tokens, each tensor once), whatever a kernel does; floor: max(bytes / copy "
    "rate,\n"
    "FLOPs / matmul rate), both measured in the same run (small rows in a warm cache may beat "
    "it);\n"
    "memory: peak over inputs and outputs.\n"
    "On a GPU: events time the runs, the L2 is flushed before each; inputs are one random batch "
    "row,\n"
    "repeated; the matmul rate is tabulated; host: what a call keeps the CPU; memory: with the "
    "workspace.\n"
    "--output keeps all of it, and more, for `sluice report`.\n"
    "\n"
    "Examples:\n"
    "  sluice bench --op gla -B 1 -T 4096 -H 4 -K 128 -V 128 --algorithm chunked,recurrent\n"
    "  sluice bench --op gla,gated_delta_rule,softmax -T 512,1024,2048,4096 --output records.json\n"
    "  sluice bench --model Qwen3-Next --tp 4 --op softmax --dtype bfloat16\n"
    "  sluice bench --device cuda --dtype bfloat16 -B 1,16 -T 4096,16384 -H 16\n"
    "  sluice bench --op all --phase decode -B 1,32 -H 16\n"
    "  sluice bench --op kda --with g_raw,A_log,dt_bias --set lower_bound=-5 --set qk_l2norm=true\n"
    "  sluice bench --sweep standard --op gla,softmax --max-seconds 20 --output sweep.json\n"
    "  sluice report records.json -o report.md";

template <class T>
CLI::Option* add_list(CLI::App& app, const char* name, std::vector<T>& list, const char* text) {
    return app.add_option(name, list, text)->delimiter(',')->take_all();
}

void add_rows(CLI::App& app, BenchFlags& flags) {
    add_list(app, "--op", flags.ops, "Ops, or all; softmax is causal softmax attention")
        ->type_name("OP,...");
    std::vector<CLI::Option*> shape = {
        add_list(app, "-H,--heads", flags.H, "Key heads (4)"),
        add_list(app, "--hv", flags.HV, "Value heads, a multiple of H (H)"),
        add_list(app, "-K", flags.K, "Key channels per head (128)"),
        add_list(app, "-V", flags.V, "Value channels per head (K)")};
    CLI::Option* batch = add_list(app, "-B,--batch", flags.B, "Sequences (1)");
    CLI::Option* length = add_list(app, "-T,--tokens", flags.T, "Tokens per sequence (4096)");
    CLI::Option* model =
        add_list(app, "--model", flags.models, "Shapes and ops of models, by part of their name")
            ->type_name("NAME,...");
    app.add_option("--tp", flags.tensor_parallel, "With --model: heads of one of N devices")
        ->needs(model);
    CLI::Option* sweep = app.add_option("--sweep", flags.sweep,
                                        "standard: B 1,4,16, T 2048 to 16384, H 16, K = V = 128")
                             ->type_name("NAME");
    for (CLI::Option* option : shape) {
        option->type_name("N,...");
        model->excludes(option);
        sweep->excludes(option);
    }
    for (CLI::Option* option : {batch, length}) {
        option->type_name("N,...");
        sweep->excludes(option);
    }
    sweep->excludes(model);
    app.add_option("--device", flags.device, kDeviceHelp)->type_name("DEVICE");
    add_list(app, "--phase", flags.phases, "prefill (default), decode: one token per sequence")
        ->type_name("PHASE,...");
    add_list(app, "--dtype", flags.dtypes, "float32 (default), bfloat16, float16, float64")
        ->type_name("DTYPE,...");
    add_list(app, "--backend", flags.backends,
             "cpu or, on a GPU, cuda (defaults, or SLUICE_BACKEND); oracle")
        ->type_name("NAME,...");
    add_list(app, "--algorithm", flags.algorithms, "Of cpu: auto (default), chunked, recurrent")
        ->type_name("NAME,...");
}

void add_conditions(CLI::App& app, BenchCommand& command) {
    BenchFlags& flags = command.flags;
    app.add_option("--precision", flags.precision,
                   "Of the arithmetic: auto, float32, float64, bfloat16")
        ->capture_default_str();
    app.add_option("--gates", flags.gates,
                   "Log decays: mild, logsigmoid(N(0,1))/16; usual, without /16; spiky, mild with "
                   "5 % of -1000")
        ->capture_default_str();
    app.add_option("--gate-dtype", flags.gate_dtype, "Of g and g_raw (that of q)");
    app.add_option("--set", flags.settings, "A setting of the op (see `sluice info --op`)")
        ->type_name("NAME=VALUE");
    add_list(app, "--with", flags.with, "Optional inputs of the op: g_raw, dt_bias, D, z, ...")
        ->type_name("NAME,...");
    app.add_option("--seed", flags.seed, "Of the random inputs")->capture_default_str();
    app.add_option("--threads", flags.threads, "0: all cores")
        ->check(CLI::Range(0, 4096))
        ->capture_default_str();
    app.add_flag("--flush", flags.flush, "Evict the caches before each run (on a GPU always)");
    app.add_option("--min-runs", command.limits.rule.min_runs, "Timed runs at least")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    app.add_option("--max-seconds", command.limits.rule.max_seconds,
                   "Time of a row; rows of which one run is predicted to take longer are skipped")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--max-memory", command.max_memory_gb,
                   "GB a row may need (85 % of what is available, or of a GPU's memory)")
        ->check(CLI::PositiveNumber);
}

}  // namespace

void add_bench(CLI::App& program, Context& context) {
    auto command = std::make_shared<BenchCommand>();
    command->limits.rule.max_seconds = 5;
    CLI::App& app = *program.add_subcommand(
        "bench", "Measure: time, rates, distance from the floor, peak memory");
    add_rows(app, command->flags);
    add_conditions(app, *command);
    app.add_option("-o,--output", command->output, "Write the records, a JSON array")
        ->type_name("FILE");
    app.add_flag("--json", context.json, "Print the records (or the models) as JSON");
    app.add_flag("--plot", command->plot, "Draw latency against T even if not on a terminal");
    app.add_flag("--list-models", command->list_models, "List the models and exit");
    app.footer(kFooter);
    app.callback([command, &context] { run(*command, context); });
}

}  // namespace sluice::cli
