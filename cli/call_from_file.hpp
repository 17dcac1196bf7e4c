// A call as a safetensors file holds it: tensors by name, op, scale and settings as metadata.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sluice/forward.hpp"
#include "sluice/safetensors.hpp"

namespace sluice::cli {

/// What the command line says about a call. What it leaves open comes from the file's metadata,
/// then from the op.
struct CallOptions {
    std::string op;
    std::vector<std::string> settings;  // "name=value"
    std::string lower_bound;
    std::string precision = "auto";
    std::string algorithm = "auto";
    bool value_first = false;
    bool key_first = false;
    bool ignore_extra = false;
    std::string device;
    Options options;
};

/// Adds the options that `run` and `verify` share.
void add_call_options(CLI::App& command, CallOptions& options);
/// What --set accepts, op by op, for --help.
[[nodiscard]] std::string settings_help();

struct FileCall {
    TensorFile file;
    std::string op;
    std::map<std::string, std::string> settings;  // of the op: what the file and the user set
    Spec spec;
    Arguments arguments;  // inputs and initial states, in the file's memory; no outputs yet
    Options options;
    Device device{};  // that the call runs on
};

[[nodiscard]] FileCall load_call(const std::filesystem::path& path, const CallOptions& options);

/// The results are on the CPU, wherever the call ran; so is the problem that describes them.
struct CallResult {
    Problem problem;
    Plan plan;
    Tensor o;
    Tensor final_state;    // undefined unless asked for
    Tensor final_key_sum;  // with it, for normalised specs
    double milliseconds = 0;
};

/// On a GPU the tensors are copied there and the results back; only the call itself is timed.
[[nodiscard]] CallResult run_call(const FileCall& call, DType o_dtype, bool with_final_state);

/// The type of the values: what an output has unless somebody asks for another.
[[nodiscard]] DType value_dtype(const FileCall& call);

/// What a plan has to say (a kernel was compiled), on standard error.
void print_notice(const Plan& plan);

/// "cuda gla bfloat16, chunk 64, 2 segments, hash 0123456789abcdef"
[[nodiscard]] std::string describe_plan(const Plan& plan);

/// "bfloat16 [1, 130, 2, 64]"
[[nodiscard]] std::string describe_tensor(const TensorView& view);
/// "B1 T130 H2 HV2 K64 V64 N1"
[[nodiscard]] std::string describe_dims(const Dims& dims);

[[nodiscard]] nlohmann::ordered_json to_json(const TensorView& view);
[[nodiscard]] nlohmann::ordered_json to_json(const Dims& dims);
[[nodiscard]] nlohmann::ordered_json to_json(const Plan& plan);

}  // namespace sluice::cli
