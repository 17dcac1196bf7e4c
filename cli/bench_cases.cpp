#include "cli/bench_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <tuple>

#include "cli/device.hpp"
#include "measure/workloads.hpp"
#include "runtime/environment.hpp"
#include "sluice/backend.hpp"
#include "sluice/error.hpp"

namespace sluice::cli {

using measure::BenchCase;
using measure::kSoftmax;

namespace {

template <class T>
std::vector<T> or_default(const std::vector<T>& given, std::vector<T> fallback) {
    return given.empty() ? fallback : given;
}

std::vector<std::string> all_ops() {
    std::vector<std::string> ops;
    for (const Variant& variant : variants()) ops.push_back(variant.name);
    ops.emplace_back(kSoftmax);
    return ops;
}

/// Where a row's op and dimensions come from.
struct ShapeRow {
    std::string op;
    std::string model;
    Dims dims;
};

void check_op(const std::string& op) {
    if (op == kSoftmax) return;
    try {
        (void)find_variant(op);
    } catch (const Error& error) {
        throw Error(error.code(), "op", error.value(),
                    fmt::format("{}, {}, all", error.accepted(), kSoftmax));
    }
}

std::vector<std::string> expand_ops(const std::vector<std::string>& given) {
    std::vector<std::string> ops;
    for (const std::string& name : or_default<std::string>(given, {"gla"})) {
        if (name != "all") check_op(name);
        for (const std::string& op : name == "all" ? all_ops() : std::vector{name}) {
            if (std::find(ops.begin(), ops.end(), op) == ops.end()) ops.push_back(op);
        }
    }
    return ops;
}

void add_model(const measure::Workload& workload, const BenchFlags& flags,
               std::vector<ShapeRow>& rows) {
    const measure::WorkloadShape shape = measure::shape_of(workload, flags.tensor_parallel);
    const std::string model = flags.tensor_parallel == 1
                                  ? workload.model
                                  : fmt::format("{}, TP{}", workload.model, flags.tensor_parallel);
    const Dims dims{.H = shape.H, .HV = shape.HV, .K = shape.K, .V = shape.V};
    rows.push_back({shape.op, model, dims});
    if (!flags.ops.empty()) rows.push_back({std::string(kSoftmax), model, dims});
}

std::vector<ShapeRow> model_rows(const BenchFlags& flags, std::vector<std::string>& refused) {
    for (const std::string& op : flags.ops) {
        if (op != kSoftmax) {
            throw Error(ErrorCode::kSurplus, "op", "'" + op + "'",
                        "with --model only softmax, for comparison: the model says the op");
        }
    }
    std::vector<ShapeRow> rows;
    for (const std::string& name : flags.models) {
        std::optional<Error> refusal;
        for (const measure::Workload& workload : measure::find_workloads(name)) {
            try {
                add_model(workload, flags, rows);
            } catch (const Error& error) {
                if (error.code() != ErrorCode::kUnsupported) throw;
                // A name that fits several models runs those that can be.
                refused.emplace_back(error.what());
                if (!refusal) refusal = error;
            }
        }
        if (rows.empty() && refusal) throw *refusal;
    }
    return rows;
}

std::vector<ShapeRow> flag_rows(const BenchFlags& flags, const std::vector<std::int64_t>& heads) {
    std::vector<ShapeRow> rows;
    for (const std::string& op : expand_ops(flags.ops)) {
        for (const std::int64_t h : heads) {
            for (const std::int64_t hv : or_default<std::int64_t>(flags.HV, {h})) {
                for (const std::int64_t k : or_default<std::int64_t>(flags.K, {128})) {
                    for (const std::int64_t v : or_default<std::int64_t>(flags.V, {k})) {
                        rows.push_back({op, "", {.H = h, .HV = hv, .K = k, .V = v}});
                    }
                }
            }
        }
    }
    return rows;
}

VariantRequest parse_request(const BenchFlags& flags) {
    VariantRequest request;
    for (const std::string& setting : flags.settings) {
        const std::size_t equals = setting.find('=');
        if (equals == std::string::npos || equals == 0) {
            throw Error(ErrorCode::kValue, "set", "'" + setting + "'", "name=value");
        }
        request.settings[setting.substr(0, equals)] = setting.substr(equals + 1);
    }
    for (const std::string& name : flags.with) request.tensors[name] = {};
    return request;
}

/// What the rows of one shape are multiplied by.
struct Variation {
    Phase phase;
    DType dtype;
    std::string backend;
    Algorithm algorithm;
};

/// Rows name their backend: a record says what ran.
std::string default_backend(const Device& device) {
    const std::string& chosen = environment().backend;
    if (!chosen.empty()) return chosen;
    return device.kind == DeviceKind::kCuda ? "cuda" : "cpu";
}

std::vector<Variation> variations(const BenchFlags& flags, const Device& device) {
    std::vector<Variation> list;
    for (const std::string& phase : or_default<std::string>(flags.phases, {"prefill"})) {
        for (const std::string& dtype : or_default<std::string>(flags.dtypes, {"float32"})) {
            const DType type = parse_dtype(dtype);
            if (!is_floating(type)) {
                throw Error(ErrorCode::kDType, "dtype", dtype,
                            "float32, bfloat16, float16, float64");
            }
            for (const std::string& backend :
                 or_default<std::string>(flags.backends, {default_backend(device)})) {
                (void)find_backend(backend);
                for (const std::string& algorithm :
                     or_default<std::string>(flags.algorithms, {"auto"})) {
                    list.push_back({parse_phase(phase), type, backend, parse_algorithm(algorithm)});
                }
            }
        }
    }
    return list;
}

/// Rows with equal keys are one measurement.
auto key_of(const BenchCase& c) {
    const bool softmax = c.op == kSoftmax;
    const bool has_algorithm = !softmax && c.backend == "cpu";
    const bool has_length = softmax || c.phase == Phase::kPrefill;
    return std::tuple(c.op, c.model, c.phase, c.dims.B, has_length ? c.dims.T : 0, c.dims.H,
                      c.dims.HV, c.dims.K, c.dims.V, c.dtype, softmax ? "" : c.backend,
                      has_algorithm ? c.algorithm : Algorithm::kAuto);
}

void check_positive(const char* name, std::int64_t value) {
    if (value < 1) throw Error(ErrorCode::kValue, name, std::to_string(value), ">= 1");
}

}  // namespace

BenchCases bench_cases(const BenchFlags& flags) {
    if (!flags.sweep.empty() && flags.sweep != "standard") {
        throw Error(ErrorCode::kValue, "sweep", "'" + flags.sweep + "'", "standard");
    }
    const bool sweep = !flags.sweep.empty();
    BenchCases cases;
    const auto rows = flags.models.empty()
                          ? flag_rows(flags, sweep ? std::vector<std::int64_t>{16}
                                                   : or_default<std::int64_t>(flags.H, {4}))
                          : model_rows(flags, cases.refused);
    const auto batches =
        sweep ? std::vector<std::int64_t>{1, 4, 16} : or_default<std::int64_t>(flags.B, {1});
    const auto lengths = sweep ? std::vector<std::int64_t>{2048, 4096, 8192, 16384}
                               : or_default<std::int64_t>(flags.T, {4096});
    BenchCase common;
    common.device = parse_device(flags.device);
    common.precision = parse_precision(flags.precision);
    common.gates = measure::parse_gates(flags.gates);
    common.seed = flags.seed;
    common.threads = flags.threads;
    common.flush = flags.flush;
    const VariantRequest request = parse_request(flags);
    const std::vector<Variation> variation_list = variations(flags, common.device);

    const auto add = [&](const ShapeRow& row, std::int64_t batch, std::int64_t tokens,
                         const Variation& variation) {
        BenchCase c = common;
        c.op = row.op;
        c.model = row.model;
        if (c.op != kSoftmax) c.request = request;
        c.dims = row.dims;
        c.dims.B = batch;
        c.dims.T = tokens;
        for (const auto& [name, value] : {std::pair{"B", batch},
                                          {"T", tokens},
                                          {"H", c.dims.H},
                                          {"hv", c.dims.HV},
                                          {"K", c.dims.K},
                                          {"V", c.dims.V}}) {
            check_positive(name, value);
        }
        c.phase = variation.phase;
        c.dtype = variation.dtype;
        c.gate_dtype = flags.gate_dtype.empty() ? c.dtype : parse_dtype(flags.gate_dtype);
        c.backend = variation.backend;
        c.algorithm = variation.algorithm;
        const bool seen =
            std::any_of(cases.rows.begin(), cases.rows.end(),
                        [&](const BenchCase& other) { return key_of(other) == key_of(c); });
        if (!seen) cases.rows.push_back(std::move(c));
    };
    for (const ShapeRow& row : rows) {
        for (const std::int64_t batch : batches) {
            for (const std::int64_t tokens : lengths) {
                for (const Variation& variation : variation_list)
                    add(row, batch, tokens, variation);
            }
        }
    }
    return cases;
}

}  // namespace sluice::cli
