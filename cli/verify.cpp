// sluice verify: recompute what files store, and say how far it is.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/call_from_file.hpp"
#include "cli/commands.hpp"
#include "cli/compare.hpp"
#include "cli/failure.hpp"
#include "cli/progress.hpp"

namespace sluice::cli {

namespace {

struct VerifyOptions {
    std::vector<std::string> files;
    std::optional<double> tolerance;
    CallOptions call;
};

struct Check {
    std::string name;  // of the tensor
    Deviation deviation;
    double bound = 0;
    [[nodiscard]] bool pass() const { return deviation.within(bound); }
};

struct Verdict {
    std::string path;
    std::string op;
    Device device;
    Dims dims;
    Plan plan;
    double milliseconds = 0;
    std::vector<Check> checks;
    [[nodiscard]] bool pass() const {
        return std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.pass(); });
    }
};

bool is_narrow(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

/// In float32 or wider, so that nothing but the arithmetic and the reference is judged; except on a
/// GPU, whose kernels for 16-bit tensors write 16 bits: unless float32 is asked for, what usual
/// calls run is what is verified.
DType result_dtype(const FileCall& call) {
    const DType values = value_dtype(call);
    const Precision precision = call.options.precision;
    if (precision == Precision::kFloat64 || values == DType::kFloat64) return DType::kFloat64;
    const bool on_gpu = call.device.kind == DeviceKind::kCuda;
    return on_gpu && precision != Precision::kFloat32 ? values : DType::kFloat32;
}

/// The largest error that the arithmetic, or results stored in half precision, explain.
double default_tolerance(const std::string& tensor, Update update, Precision precision,
                         DType reference, DType result) {
    const bool reduced =
        precision == Precision::kBFloat16 || is_narrow(reference) || is_narrow(result);
    if (!reduced) return 1e-5;
    return tensor == "o" && update == Update::kAdditive ? 4e-3 : 5e-3;
}

const Tensor* find_tensor(const TensorFile& file, const char* name) {
    const auto it = file.tensors.find(name);
    return it == file.tensors.end() ? nullptr : &it->second;
}

void require_comparable(const char* name, const TensorView& reference, const TensorView& result) {
    if (!std::equal(reference.shape().begin(), reference.shape().end(), result.shape().begin(),
                    result.shape().end())) {
        throw Error(ErrorCode::kShape, name, describe_tensor(reference),
                    to_string(result.shape()) + ", the shape of the result");
    }
    if (!is_floating(reference.dtype)) {
        throw Error(ErrorCode::kDType, name, to_string(reference.dtype),
                    "float32, bfloat16, float16 or float64");
    }
}

Verdict verify_file(const std::string& path, const VerifyOptions& options) {
    const FileCall call = load_call(path, options.call);
    const Tensor* o = find_tensor(call.file, "o");
    const Tensor* final_state = find_tensor(call.file, "final_state");
    const Tensor* final_key_sum =
        call.spec.normalize ? find_tensor(call.file, "final_key_sum") : nullptr;
    if (o == nullptr && final_state == nullptr) {
        throw Error(ErrorCode::kMissing, "o", "neither o nor final_state",
                    "a file that holds results to verify");
    }
    const CallResult result = run_call(call, result_dtype(call), final_state || final_key_sum);

    Verdict verdict{.path = path,
                    .op = call.op,
                    .device = call.device,
                    .dims = result.problem.dims,
                    .plan = result.plan,
                    .milliseconds = result.milliseconds,
                    .checks = {}};
    const auto check = [&](const char* name, const Tensor* reference, const Tensor& value) {
        if (reference == nullptr) return;
        require_comparable(name, *reference, value);
        const bool tokens = std::string_view(name) == "o";
        verdict.checks.push_back(
            {name,
             tokens ? compare_outputs(value, *reference, result.problem.sequences)
                    : compare_states(value, *reference),
             options.tolerance.value_or(default_tolerance(name, call.spec.update,
                                                          result.plan.precision, reference->dtype(),
                                                          value.dtype()))});
    };
    check("o", o, result.o);
    check("final_state", final_state, result.final_state);
    check("final_key_sum", final_key_sum, result.final_key_sum);
    return verdict;
}

nlohmann::ordered_json verdict_json(const Verdict& verdict) {
    nlohmann::ordered_json checks = nlohmann::ordered_json::object();
    for (const Check& check : verdict.checks) {
        checks[check.name] = {
            {"error", check.deviation.whole}, {"worst_block", check.deviation.worst_block},
            {"where", check.deviation.where}, {"finite", check.deviation.finite},
            {"tolerance", check.bound},       {"pass", check.pass()}};
    }
    return {{"file", verdict.path},
            {"op", verdict.op},
            {"device", to_string(verdict.device)},
            {"dims", to_json(verdict.dims)},
            {"plan", to_json(verdict.plan)},
            {"milliseconds", verdict.milliseconds},
            {"results", checks},
            {"pass", verdict.pass()}};
}

/// One line per file, written as soon as it is known.
class VerdictTable {
  public:
    explicit VerdictTable(const std::vector<std::string>& files) {
        for (const std::string& file : files) {
            file_width_ = std::max(file_width_, short_name(file).size());
        }
        fmt::print("{:<{}}  {:<16}  {:<34}  {:>8} {:>8}  {:>8} {:>8}  {:>9}\n", "file", file_width_,
                   "op", "shape", "o", "block", "state", "block", "tolerance");
    }
    void add(const Verdict& verdict) const {
        const auto find = [&](const char* name) -> const Check* {
            for (const Check& check : verdict.checks) {
                if (check.name == name) return &check;
            }
            return nullptr;
        };
        const Check* o = find("o");
        const Check* state = find("final_state");
        const double bound = std::max(o ? o->bound : 0, state ? state->bound : 0);
        fmt::print("{:<{}}  {:<16}  {:<34}  {}  {}  {:>9.1e}  {}\n", short_name(verdict.path),
                   file_width_, verdict.op, describe_dims(verdict.dims), cells(o), cells(state),
                   bound, verdict.pass() ? "pass" : "FAIL");
        for (const Check& check : verdict.checks) {
            if (!check.pass()) explain(check);
        }
    }
    void add_refused(const std::string& file, const std::exception& problem) const {
        fmt::print("{:<{}}  refused: {}\n", short_name(file), file_width_, failure_text(problem));
    }

  private:
    static std::string short_name(const std::string& path) {
        return std::filesystem::path(path).filename().string();
    }
    static std::string cells(const Check* check) {
        if (check == nullptr) return fmt::format("{:>8} {:>8}", "-", "-");
        return fmt::format("{:>8.1e} {:>8.1e}", check->deviation.whole,
                           check->deviation.worst_block);
    }
    static void explain(const Check& check) {
        const Deviation& d = check.deviation;
        if (d.finite) {
            fmt::print("  {}: error {:.3g}, tolerance {:.3g}; worst block {:.3g} at {}\n",
                       check.name, d.whole, check.bound, d.worst_block, d.where);
        } else {
            fmt::print("  {}: NaN or infinity at {}\n", check.name, d.where);
        }
    }
    std::size_t file_width_ = 4;
};

/// Reading and recomputing, roughly; the progress line corrects it by what passed.
double expected_seconds(const std::string& file) {
    constexpr double kBytesPerS = 50e6;
    std::error_code ignored;
    const std::uintmax_t bytes = std::filesystem::file_size(file, ignored);
    return ignored ? 0 : static_cast<double>(bytes) / kBytesPerS;
}

/// Verifies a file; its place in the JSON list. The other files are verified whatever this one
/// throws, and a refused one outweighs a failed one.
nlohmann::ordered_json verify_one(const std::string& file, const VerifyOptions& options,
                                  const VerdictTable* table, Progress& progress, Context& context) {
    std::optional<Verdict> verdict;
    try {
        progress.begin(file);
        verdict = verify_file(file, options);
    } catch (const std::exception& problem) {
        context.status = 2;
        progress.hide();
        if (table != nullptr) table->add_refused(file, problem);
        nlohmann::ordered_json object = {{"file", file}};
        object.update(failure_json(problem));
        object["pass"] = false;
        return object;
    }
    progress.hide();
    print_notice(verdict->plan);
    if (!verdict->pass()) context.status = std::max(context.status, 1);
    if (table != nullptr) table->add(*verdict);
    return verdict_json(*verdict);
}

void verify(const VerifyOptions& options, Context& context) {
    if (options.tolerance && !(*options.tolerance >= 0)) {
        throw Error(ErrorCode::kValue, "tolerance", fmt::format("{}", *options.tolerance), ">= 0");
    }
    std::optional<VerdictTable> table;
    if (!context.json) table.emplace(options.files);
    double seconds = 0;
    for (const std::string& file : options.files) seconds += expected_seconds(file);
    Progress progress(seconds);
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const std::string& file : options.files) {
        files.push_back(verify_one(file, options, table ? &*table : nullptr, progress, context));
        std::fflush(stdout);
        progress.end(expected_seconds(file));
    }
    if (context.json)
        fmt::print("{}", json_text({{"pass", context.status == 0}, {"files", files}}));
}

constexpr const char* kFooter =
    "Errors are RMS(x - ref) / RMS(ref), over the whole tensor and over the worst block: 64 "
    "tokens\n"
    "of one sequence and head, or one head's state. A file passes within the tolerance, each "
    "block\n"
    "within four times it, without NaN or infinity. Default: 1e-5; where operands are rounded to\n"
    "bfloat16, or the reference or the result has 16 bits, 4e-3 for o of additive updates, else\n"
    "5e-3. On a GPU o has the type of the values, unless --precision float32.\n"
    "\n"
    "Examples:\n"
    "  sluice verify tests/data/golden/*.safetensors\n"
    "  sluice verify --backend oracle --tolerance 2e-6 gla_mild.safetensors\n"
    "  sluice verify --device cuda tests/data/golden/*.safetensors\n"
    "  sluice verify --precision bfloat16 --json gla_mild.safetensors\n"
    "\n"
    "Exit status: 0 all pass, 1 past tolerance or not finite, 2 a file was refused.\n\n";

}  // namespace

void add_verify(CLI::App& program, Context& context) {
    auto options = std::make_shared<VerifyOptions>();
    CLI::App& command =
        *program.add_subcommand("verify", "Recompute stored results and compare them");
    command.add_option("files", options->files, "safetensors files with inputs, o, final_state")
        ->required()
        ->type_name("FILE");
    add_call_options(command, options->call);
    command.add_option("--tolerance", options->tolerance, "Largest error of o and final_state")
        ->type_name("NUMBER");
    command.add_flag("--json", context.json, "Print one JSON object");
    command.footer(kFooter + settings_help());
    command.callback([options, &context] { verify(*options, context); });
}

}  // namespace sluice::cli
