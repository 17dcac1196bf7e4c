#include "sluice/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "spec/bind_device.hpp"
#include "spec/bind_inputs.hpp"
#include "spec/bind_state.hpp"
#include "spec/memory.hpp"
#include "spec/precision.hpp"

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
    static constexpr std::array kAxes = {Axis::kB, Axis::kT, Axis::kHV, Axis::kV};
    const TensorView& o = arguments.o;
    problem.o = bind_view("o", o, kAxes, problem.dims);
    if (o.device != problem.device) {
        throw Error(ErrorCode::kDevice, "o", to_string(o.device),
                    to_string(problem.device) + " as the inputs");
    }
}

/// Arguments that may be the same memory: states updated in place, and pools that hold both final
/// states and checkpoints. (Their slots are bind_states()'s business.)
bool may_share(std::string_view output, std::string_view other) {
    constexpr std::pair<std::string_view, std::string_view> kAllowed[] = {
        {"state.final", "state.initial"},
        {"checkpoints", "state.initial"},
        {"checkpoints", "state.final"},
        {"final_key_sum", "initial_key_sum"},
    };
    return std::find(std::begin(kAllowed), std::end(kAllowed), std::pair{output, other}) !=
           std::end(kAllowed);
}

struct NamedView {
    std::string_view name;
    const TensorView* view;
    ByteRange range;
};

void check_disjoint(const NamedView& output, const NamedView& other) {
    if (!output.range.meets(other.range)) return;
    const bool shares = may_share(output.name, other.name);
    if (shares && same_memory(*output.view, *other.view)) return;
    if (!may_overlap(*output.view, *other.view)) return;
    throw Error(ErrorCode::kAlias, std::string(output.name),
                fmt::format("memory that overlaps {}", other.name),
                shares ? "the same memory with the same strides, or memory of its own"
                       : "memory of its own");
}

template <class F>
void for_each_output(const Arguments& arguments, F&& f) {
    const auto if_given = [&](std::string_view name, const std::optional<TensorView>& view) {
        if (view) f(name, *view);
    };
    f("o", arguments.o);
    if_given("state.final", arguments.state.final);
    if_given("final_key_sum", arguments.state.final_key_sum);
    if_given("checkpoints", arguments.state.checkpoints);
    if_given("workspace", arguments.workspace);
}

/// No output may touch itself, which its shape and strides decide.
void check_outputs(const Arguments& arguments) {
    for_each_output(arguments, [](std::string_view name, const TensorView& view) {
        if (!overlaps_itself(view)) return;
        throw Error(ErrorCode::kStride, std::string(name),
                    fmt::format("{} with strides {}", describe(view), to_string(view.strides())),
                    "an output whose elements do not overlap");
    });
}

/// No output may touch an input or another output, but for the pairs above, and those only as the
/// same memory with the same strides.
void check_aliases(const Arguments& arguments) {
    constexpr std::size_t kUsual = 6;  // besides the inputs; each has room for more
    const StateArguments& s = arguments.state;
    std::vector<NamedView> all;
    all.reserve(kUsual + arguments.inputs.size());
    const auto add = [&](std::string_view name, const TensorView& view) {
        all.push_back({name, &view, byte_range(view)});
    };
    const auto add_if = [&](std::string_view name, const std::optional<TensorView>& view) {
        if (view) add(name, *view);
    };
    for_each_output(arguments, add);
    const std::size_t outputs = all.size();
    for (const auto& [name, view] : arguments.inputs) add(name, view);
    add_if("cu_seqlens", arguments.cu_seqlens);
    add_if("state.initial", s.initial);
    add_if("initial_key_sum", s.initial_key_sum);
    add_if("read_slots", s.read_slots);
    add_if("write_slots", s.write_slots);
    add_if("has_initial", s.has_initial);
    add_if("accepted", s.accepted);
    add_if("checkpoint_sequences", s.checkpoint_sequences);
    add_if("checkpoint_positions", s.checkpoint_positions);
    add_if("checkpoint_slots", s.checkpoint_slots);
    for (std::size_t i = 0; i < outputs; ++i) {
        // Two outputs meet once, under the later name.
        for (std::size_t j = 0; j < i; ++j) check_disjoint(all[i], all[j]);
        for (std::size_t j = outputs; j < all.size(); ++j) check_disjoint(all[i], all[j]);
    }
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
    static std::atomic<std::uint64_t> latest{0};
    Problem problem;
    problem.bind_number = ++latest;
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
    problem.precision = resolve_precision(options.precision, spec, arguments.inputs);
    bind_device_call(arguments, options, problem);
    bind_output(arguments, problem);
    bind_sequences(arguments, problem);
    bind_states(arguments, problem);
    check_outputs(arguments);
    check_aliases(arguments);
    return problem;
}

namespace {

/// `bound` is an input, a state or indices.
template <class Bound>
void point(std::string_view name, const TensorView& view, Bound& bound) {
    check_data(name, view);
    bound.data = view.data;
}

template <class Bound>
void point(std::string_view name, const std::optional<TensorView>& view, Bound& bound) {
    if (view) point(name, *view, bound);
}

void point_states(const StateArguments& s, Problem& problem) {
    point("state.initial", s.initial, problem.initial);
    point("state.final", s.final, problem.final);
    point("checkpoints", s.checkpoints, problem.checkpoints);
    point("initial_key_sum", s.initial_key_sum, problem.initial_key_sum);
    point("final_key_sum", s.final_key_sum, problem.final_key_sum);
    auto& indices = problem.indices;
    point("read_slots", s.read_slots, indices.read_slots);
    point("write_slots", s.write_slots, indices.write_slots);
    point("has_initial", s.has_initial, indices.has_initial);
    point("accepted", s.accepted, indices.accepted);
    point("checkpoint_sequences", s.checkpoint_sequences, indices.checkpoint_sequences);
    point("checkpoint_positions", s.checkpoint_positions, indices.checkpoint_positions);
    point("checkpoint_slots", s.checkpoint_slots, indices.checkpoint_slots);
}

}  // namespace

void rebind(Problem& problem, const Arguments& arguments, const Options& options) {
    if (problem.device.kind != DeviceKind::kCuda) {
        throw Error(ErrorCode::kDevice, "problem", to_string(problem.device), "a CUDA device's");
    }
    const NamedTensors& given = arguments.inputs;
    for (std::size_t i = 0; i < problem.inputs.size(); ++i) {
        const Input& input = problem.spec.inputs[i];
        // Most callers keep the spec's order.
        const bool in_place = i < given.size() && given[i].first == input.name;
        point(input.name, in_place ? given[i].second : find_view(problem.spec, given, input),
              problem.inputs[i]);
    }
    point("o", arguments.o, problem.o);
    point("cu_seqlens", arguments.cu_seqlens, problem.indices.cu_seqlens);
    point_states(arguments.state, problem);
    problem.workspace = nullptr;
    problem.workspace_bytes = 0;
    bind_device_call(arguments, options, problem);
    check_aliases(arguments);
}

}  // namespace sluice
