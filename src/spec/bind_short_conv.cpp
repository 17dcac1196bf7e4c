#include "spec/bind_short_conv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/error.hpp"
#include "spec/bind_inputs.hpp"
#include "spec/indices.hpp"
#include "spec/memory.hpp"

namespace sluice {

namespace {

constexpr StateNames kNames = {
    .initial = "initial", .final = "final", .prefill = "a prefill call", .decode = "a decode call"};

StateArguments states_of(const ShortConvArguments& a) {
    StateArguments s;
    s.initial = a.initial;
    s.final = a.final;
    s.read_slots = a.read_slots;
    s.write_slots = a.write_slots;
    s.has_initial = a.has_initial;
    s.accepted = a.accepted;
    s.checkpoints = a.checkpoints;
    s.checkpoint_sequences = a.checkpoint_sequences;
    s.checkpoint_positions = a.checkpoint_positions;
    s.checkpoint_slots = a.checkpoint_slots;
    return s;
}

/// All tensors of a call by name, the outputs last.
struct NamedViews {
    std::vector<std::pair<std::string_view, const TensorView*>> views;
    std::size_t first_output = 0;

    explicit NamedViews(const ShortConvArguments& a) {
        add("x", a.x);
        add("weight", a.weight);
        add("bias", a.bias);
        add("cu_seqlens", a.cu_seqlens);
        add("initial", a.initial);
        add("read_slots", a.read_slots);
        add("write_slots", a.write_slots);
        add("has_initial", a.has_initial);
        add("accepted", a.accepted);
        add("checkpoint_sequences", a.checkpoint_sequences);
        add("checkpoint_positions", a.checkpoint_positions);
        add("checkpoint_slots", a.checkpoint_slots);
        first_output = views.size();
        add("y", a.y);
        add("final", a.final);
        add("checkpoints", a.checkpoints);
    }
    void add(std::string_view name, const TensorView& view) { views.emplace_back(name, &view); }
    void add(std::string_view name, const std::optional<TensorView>& view) {
        if (view) add(name, *view);
    }
};

void check_memory(const NamedViews& all) {
    for (const auto& [name, view] : all.views) {
        if (view->device.kind != DeviceKind::kCpu) {
            throw Error(ErrorCode::kDevice, std::string(name), to_string(view->device), "cpu");
        }
    }
    for (const auto& [name, view] : all.views) check_data(std::string(name), *view);
}

void check_tensor(const char* name, const TensorView& view,
                  std::initializer_list<std::int64_t> shape, const char* meaning) {
    if (!std::equal(shape.begin(), shape.end(), view.shape().begin(), view.shape().end())) {
        throw Error(
            ErrorCode::kShape, name, describe(view),
            fmt::format("{} = {}", meaning, to_string(std::span(shape.begin(), shape.size()))));
    }
    if (!is_floating(view.dtype)) {
        throw Error(ErrorCode::kDType, name, to_string(view.dtype),
                    "float32, bfloat16, float16 or float64");
    }
}

void check_extents(const ShortConvArguments& a) {
    if (a.x.rank != 3 || a.x.extents[2] < 1) {
        throw Error(ErrorCode::kShape, "x", describe(a.x), "[B, T, D] with D >= 1");
    }
    const std::int64_t width = a.weight.rank == 2 ? a.weight.extents[1] : 0;
    if (width < 2 || width > 4) {
        throw Error(ErrorCode::kShape, "weight", describe(a.weight),
                    fmt::format("[D, W] = [{}, W] with W from 2 to 4", a.x.extents[2]));
    }
}

void check_tensors(const ShortConvArguments& a, std::int64_t sequences) {
    const std::int64_t batch = a.x.extents[0];
    const std::int64_t tokens = a.x.extents[1];
    const std::int64_t channels = a.x.extents[2];
    const std::int64_t width = a.weight.extents[1];
    check_tensor("x", a.x, {batch, tokens, channels}, "[B, T, D]");
    check_tensor("weight", a.weight, {channels, width}, "[D, W]");
    check_tensor("y", a.y, {batch, tokens, channels}, "[B, T, D]");
    if (a.bias) check_tensor("bias", *a.bias, {channels}, "[D]");
    const auto check_state = [&](const char* name, const std::optional<TensorView>& state,
                                 bool indexed) {
        if (!state) return;
        const std::int64_t rows = !indexed ? sequences : state->rank > 0 ? state->extents[0] : 0;
        check_tensor(name, *state, {rows, channels, width - 1},
                     indexed ? "[slots, D, W - 1]" : "[N, D, W - 1]");
    };
    check_state("initial", a.initial, a.read_slots.has_value());
    check_state("final", a.final, a.write_slots.has_value());
    check_state("checkpoints", a.checkpoints, true);
}

/// An output may be the whole memory of these: work in place, and pools that hold both final states
/// and checkpoints. (Their slots are bind_state_slots()'s business.)
bool may_share(std::string_view output, std::string_view other) {
    constexpr std::pair<std::string_view, std::string_view> kAllowed[] = {
        {"y", "x"}, {"final", "initial"}, {"checkpoints", "initial"}, {"checkpoints", "final"}};
    return std::find(std::begin(kAllowed), std::end(kAllowed), std::pair{output, other}) !=
           std::end(kAllowed);
}

/// No output may touch an input, another output, or itself, but for the pairs above.
void check_aliases(const NamedViews& all) {
    for (std::size_t i = all.first_output; i < all.views.size(); ++i) {
        const auto& [name, view] = all.views[i];
        if (overlaps_itself(*view)) {
            throw Error(
                ErrorCode::kStride, std::string(name),
                fmt::format("{} with strides {}", describe(*view), to_string(view->strides())),
                "an output whose elements do not overlap");
        }
        for (std::size_t j = 0; j < i; ++j) {
            const auto& [other, other_view] = all.views[j];
            if (!may_overlap(*view, *other_view)) continue;
            const bool shares = may_share(name, other);
            if (shares && same_memory(*view, *other_view)) continue;
            throw Error(ErrorCode::kAlias, std::string(name),
                        fmt::format("memory that overlaps {}", other),
                        shares ? fmt::format("exactly the memory of {}, or its own", other)
                               : "memory of its own");
        }
    }
}

/// No product of this layer runs on operands rounded below float32, so kBFloat16 is float32.
Precision resolve_precision(const NamedViews& all, Precision wanted) {
    const bool wide = wanted == Precision::kFloat64 ||
                      (wanted == Precision::kAuto &&
                       std::all_of(all.views.begin(), all.views.end(), [](const auto& named) {
                           const DType dtype = named.second->dtype;
                           return dtype == DType::kFloat64 || !is_floating(dtype);
                       }));
    return wide ? Precision::kFloat64 : Precision::kFloat32;
}

}  // namespace

ShortConvProblem bind_short_conv(const ShortConvArguments& a, const Options& options, Phase phase) {
    const NamedViews all(a);
    check_memory(all);
    if (options.threads < 0 || options.threads > 4096) {
        throw Error(ErrorCode::kValue, "threads", std::to_string(options.threads), "0 to 4096");
    }
    check_extents(a);
    const StateArguments states = states_of(a);
    check_state_arguments(states, phase, kNames);
    const std::int64_t batch = a.x.extents[0];
    const std::int64_t tokens = a.x.extents[1];
    std::vector<Sequence> sequences = split_sequences(a.cu_seqlens, batch, tokens);
    check_tensors(a, static_cast<std::int64_t>(sequences.size()));
    ShortConvProblem problem;
    problem.slots = bind_state_slots(states, phase, {batch, tokens, std::move(sequences)});
    check_aliases(all);
    problem.x = a.x;
    problem.weight = a.weight;
    problem.y = a.y;
    problem.bias = a.bias;
    problem.initial = a.initial;
    problem.final = a.final;
    problem.checkpoints = a.checkpoints;
    problem.channels = a.x.extents[2];
    problem.width = static_cast<int>(a.weight.extents[1]);
    problem.activation = a.activation;
    problem.precision = resolve_precision(all, options.precision);
    problem.threads = options.threads;
    return problem;
}

}  // namespace sluice
