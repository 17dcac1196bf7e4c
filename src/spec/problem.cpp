#include "sluice/problem.hpp"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <string_view>

#include "spec/bind_inputs.hpp"
#include "spec/bind_state.hpp"
#include "spec/memory.hpp"

namespace sluice {

const char* to_string(Precision precision) noexcept {
    switch (precision) {
        case Precision::kAuto: return "auto";
        case Precision::kFloat32: return "float32";
        case Precision::kFloat64: return "float64";
        case Precision::kBFloat16: return "bfloat16";
    }
    return "?";
}

const char* to_string(Algorithm algorithm) noexcept {
    switch (algorithm) {
        case Algorithm::kAuto: return "auto";
        case Algorithm::kChunked: return "chunked";
        case Algorithm::kRecurrent: return "recurrent";
    }
    return "?";
}

const char* to_string(Phase phase) noexcept {
    return phase == Phase::kPrefill ? "prefill" : "decode";
}

namespace {

/// The value whose to_string() is `name`.
template <class E>
E parse_name(const char* argument, std::string_view name, std::initializer_list<E> values) {
    std::string accepted;
    for (const E value : values) {
        if (name == to_string(value)) return value;
        accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", to_string(value));
    }
    throw Error(ErrorCode::kValue, argument, fmt::format("'{}'", name), accepted);
}

}  // namespace

Precision parse_precision(std::string_view name) {
    return parse_name(
        "precision", name,
        {Precision::kAuto, Precision::kFloat32, Precision::kFloat64, Precision::kBFloat16});
}

Algorithm parse_algorithm(std::string_view name) {
    return parse_name("algorithm", name,
                      {Algorithm::kAuto, Algorithm::kChunked, Algorithm::kRecurrent});
}

Phase parse_phase(std::string_view name) {
    return parse_name("phase", name, {Phase::kPrefill, Phase::kDecode});
}

const BoundInput& Problem::input(const std::string& name) const {
    for (const BoundInput& bound : inputs) {
        if (bound.name == name) return bound;
    }
    throw Error(ErrorCode::kMissing, name, "nothing", "an input of " + spec.name);
}

std::string Problem::to_string() const {
    const DType dtype = inputs.empty() ? DType::kFloat32 : inputs.front().dtype;
    return fmt::format("{} {} B{} T{} H{} HV{} K{} V{} N{} {}", spec.name, sluice::to_string(phase),
                       dims.B, dims.T, dims.H, dims.HV, dims.K, dims.V, dims.N,
                       sluice::to_string(dtype));
}

namespace {

void bind_output(const Arguments& arguments, Problem& problem) {
    const TensorView& o = arguments.o;
    problem.o = bind_view("o", o, {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, problem.dims);
    if (o.device != problem.device) {
        throw Error(ErrorCode::kDevice, "o", to_string(o.device),
                    to_string(problem.device) + " as the inputs");
    }
}

/// No output may touch an input, another output, or itself. (State in place, and slots of one pool,
/// are bind_states()'s.)
void check_aliases(const Arguments& arguments) {
    const StateArguments& s = arguments.state;
    std::vector<std::pair<const char*, const TensorView*>> outputs = {{"o", &arguments.o}};
    const auto add = [](auto& list, const char* name, const std::optional<TensorView>& view) {
        if (view) list.emplace_back(name, &*view);
    };
    add(outputs, "state.final", s.final);
    add(outputs, "final_key_sum", s.final_key_sum);
    add(outputs, "checkpoints", s.checkpoints);
    std::vector<std::pair<const char*, const TensorView*>> inputs;
    for (const auto& [name, view] : arguments.inputs) inputs.emplace_back(name.c_str(), &view);
    add(inputs, "cu_seqlens", arguments.cu_seqlens);
    add(inputs, "read_slots", s.read_slots);
    add(inputs, "write_slots", s.write_slots);
    add(inputs, "has_initial", s.has_initial);
    add(inputs, "accepted", s.accepted);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto& [name, view] = outputs[i];
        if (overlaps_itself(*view)) {
            throw Error(
                ErrorCode::kStride, name,
                fmt::format("{} with strides {}", describe(*view), to_string(view->strides())),
                "an output whose elements do not overlap");
        }
        const auto refuse = [&, name = name](const char* other) {
            throw Error(ErrorCode::kAlias, name, fmt::format("memory that overlaps {}", other),
                        "memory of its own");
        };
        for (const auto& [other, other_view] : inputs) {
            if (may_overlap(*view, *other_view)) refuse(other);
        }
        // o against every state; the key sums against the states. Pools among themselves share.
        for (std::size_t j = 0; j < i; ++j) {
            const bool pools = std::string_view(outputs[j].first) == "state.final" &&
                               std::string_view(name) == "checkpoints";
            if (!pools && may_overlap(*view, *outputs[j].second)) refuse(outputs[j].first);
        }
    }
    if (s.initial && may_overlap(arguments.o, *s.initial)) {
        throw Error(ErrorCode::kAlias, "o", "memory that overlaps state.initial",
                    "memory of its own");
    }
    if (s.initial_key_sum && s.final_key_sum && may_overlap(*s.initial_key_sum, *s.final_key_sum) &&
        !same_memory(*s.initial_key_sum, *s.final_key_sum)) {
        throw Error(ErrorCode::kAlias, "final_key_sum", "memory that overlaps initial_key_sum",
                    "the same memory with the same strides, or memory of its own");
    }
}

Precision resolve_precision(Precision wanted, const Problem& problem) {
    if (wanted != Precision::kAuto) return wanted;
    for (const BoundInput& input : problem.inputs) {
        if (input.dtype != DType::kFloat64) return Precision::kFloat32;
    }
    return Precision::kFloat64;
}

}  // namespace

Dims infer_dims(const Spec& spec, const Arguments& arguments) {
    spec.validate();
    Problem problem;
    bind_inputs(spec, arguments.inputs, problem);
    bind_sequences(arguments, problem);
    return problem.dims;
}

Problem bind(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase) {
    spec.validate();
    Problem problem;
    problem.spec = spec;
    problem.phase = phase;
    bind_inputs(spec, arguments.inputs, problem);
    problem.scale = options.scale.value_or(
        spec.default_scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.dims.K))));
    if (!std::isfinite(problem.scale)) {
        throw Error(ErrorCode::kValue, "scale", fmt::format("{}", problem.scale),
                    "a finite number");
    }
    if (options.threads < 0 || options.threads > 4096) {
        throw Error(ErrorCode::kValue, "threads", std::to_string(options.threads), "0 to 4096");
    }
    if (options.chunk < 0 || options.chunk % 16 != 0 || options.chunk > 256) {
        throw Error(ErrorCode::kValue, "chunk", std::to_string(options.chunk),
                    "0 (the planner chooses) or a multiple of 16 up to 256");
    }
    problem.state_layout = options.state_layout.value_or(spec.default_state_layout);
    problem.algorithm = options.algorithm;
    problem.chunk = options.chunk;
    problem.threads = options.threads;
    problem.batch_invariant = options.batch_invariant;
    problem.precision = resolve_precision(options.precision, problem);
    bind_output(arguments, problem);
    bind_sequences(arguments, problem);
    bind_states(arguments, problem);
    check_aliases(arguments);
    return problem;
}

}  // namespace sluice
