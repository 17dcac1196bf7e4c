#include "measure/workloads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "measure/embedded.hpp"
#include "sluice/error.hpp"
#include "sluice/variants.hpp"

namespace sluice::measure {

namespace {

std::string lower(std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return result;
}

std::int64_t integer_or_zero(const nlohmann::json& row, const char* name) {
    const nlohmann::json& value = row.at(name);
    return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}

std::vector<Workload> parse(std::string_view text) {
    std::vector<Workload> rows;
    for (const nlohmann::json& row : nlohmann::json::parse(text)) {
        Workload workload;
        workload.model = row.at("model").get<std::string>();
        workload.family = row.at("family").get<std::string>();
        workload.gate = row.at("gate").get<std::string>();
        workload.layers_total = integer_or_zero(row, "layers_total");
        workload.layers_recurrent = integer_or_zero(row, "layers_recurrent");
        workload.heads_qk = integer_or_zero(row, "heads_qk");
        workload.heads_v = integer_or_zero(row, "heads_v");
        workload.dim_k = integer_or_zero(row, "dim_k");
        workload.dim_v = integer_or_zero(row, "dim_v");
        rows.push_back(std::move(workload));
    }
    return rows;
}

struct Family {
    std::string_view name;
    std::string_view op;       // empty: no ready-made variant computes it
    std::string_view refusal;  // then why
};

constexpr Family kFamilies[] = {
    {"KDA", "kda", ""},
    {"GDN", "gated_delta_rule", ""},
    {"Lightning", "lightning", ""},
    {"Mamba-2", "mamba2", ""},
    {"GLA", "gla", ""},
    {"RetNet", "retention", ""},
    {"RWKV-7", "",
     "its rank-one update is in the family, but no ready-made variant has it: build a Spec with "
     "Update::kRankOne"},
    {"Mamba-1", "", "its decay does not factor into a key-channel vector per head"},
    {"RG-LRU", "", "its state is a vector: there is no key-value outer product"},
    {"short-conv", "", "it has a short convolution only: there is no matrix state"},
};

[[noreturn]] void refuse(const Workload& workload, const std::string& accepted) {
    throw Error(ErrorCode::kUnsupported, "model",
                fmt::format("{} ({})", workload.model, workload.family), accepted);
}

std::string_view op_of(const Workload& workload) {
    for (const Family& family : kFamilies) {
        if (family.name != workload.family) continue;
        if (family.op.empty()) {
            refuse(workload, fmt::format("models of this family ({})", family.refusal));
        }
        return family.op;
    }
    refuse(workload, "a known family of recurrences");
}

}  // namespace

std::span<const Workload> workloads() {
    static const std::vector<Workload> kRows = parse(embedded::workloads_json());
    return kRows;
}

std::vector<Workload> find_workloads(std::string_view name) {
    std::vector<Workload> found;
    for (const Workload& workload : workloads()) {
        if (lower(workload.model).find(lower(name)) != std::string::npos) found.push_back(workload);
    }
    if (found.empty()) {
        throw Error(ErrorCode::kUnsupported, "model", "'" + std::string(name) + "'",
                    "part of a name that `sluice bench --list-models` prints");
    }
    return found;
}

WorkloadShape shape_of(const Workload& workload, std::int64_t tensor_parallel) {
    WorkloadShape shape;
    shape.op = op_of(workload);
    if (workload.heads_qk < 1 || workload.heads_v < 1 || workload.dim_k < 1 || workload.dim_v < 1) {
        refuse(workload, "models whose heads and dimensions are published");
    }
    if (tensor_parallel < 1) {
        throw Error(ErrorCode::kValue, "tp", std::to_string(tensor_parallel), ">= 1");
    }
    const std::int64_t tp = tensor_parallel;
    const bool replicated = tp % workload.heads_qk == 0;
    if (workload.heads_v % tp != 0 || (workload.heads_qk % tp != 0 && !replicated)) {
        refuse(
            workload,
            fmt::format("tensor parallelism that divides {} key heads and {} value heads, not {}",
                        workload.heads_qk, workload.heads_v, tp));
    }
    shape.H = std::max<std::int64_t>(1, workload.heads_qk / tp);
    shape.HV = workload.heads_v / tp;
    shape.K = workload.dim_k;
    shape.V = workload.dim_v;
    return shape;
}

}  // namespace sluice::measure
