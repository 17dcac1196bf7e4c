#include "spec/bind_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "spec/bind_device.hpp"
#include "spec/bind_inputs.hpp"
#include "spec/indices.hpp"
#include "spec/state_slots.hpp"

namespace sluice {

namespace {

/// A state tensor: dense ([N, ...]) unless slots index it.
BoundState bind_pool(const std::string& name, const TensorView& view, const Problem& problem,
                     bool indexed, bool key_sum) {
    const Dims& d = problem.dims;
    const bool value_first = problem.state_layout == StateLayout::kValueFirst;
    std::vector<std::int64_t> shape = {indexed ? view.rank > 0 ? view.extents[0] : 0 : d.N, d.HV};
    std::string meaning = indexed ? "[slots, HV, " : "[N, HV, ";
    if (key_sum) {
        shape.push_back(d.K);
        meaning += "K]";
    } else {
        shape.push_back(value_first ? d.V : d.K);
        shape.push_back(value_first ? d.K : d.V);
        meaning += value_first ? "V, K]" : "K, V]";
    }
    if (!std::equal(shape.begin(), shape.end(), view.shape().begin(), view.shape().end())) {
        throw Error(ErrorCode::kShape, name, describe(view),
                    fmt::format("{} = {}", meaning, to_string(shape)));
    }
    if (!is_floating(view.dtype)) {
        throw Error(ErrorCode::kDType, name, to_string(view.dtype),
                    "float32, bfloat16, float16 or float64");
    }
    if (view.device != problem.device) {
        throw Error(ErrorCode::kDevice, name, to_string(view.device),
                    to_string(problem.device) + " as the inputs");
    }
    check_data(name, view);
    BoundState state;
    state.data = view.data;
    state.dtype = view.dtype;
    state.slots = view.extents[0];
    state.stride_slot = view.stride_elements[0];
    state.stride_head = view.stride_elements[1];
    state.stride_k = view.stride_elements[!key_sum && value_first ? 3 : 2];
    state.stride_v = key_sum ? 0 : view.stride_elements[value_first ? 2 : 3];
    return state;
}

void bind_checkpoint_pool(const StateArguments& s, Problem& problem) {
    if (!s.checkpoints) return;
    if (problem.spec.normalize) {
        throw Error(ErrorCode::kUnsupported, "checkpoints", "with normalize",
                    "checkpoints of specs without a normaliser (its key sum has no pool here)");
    }
    problem.checkpoints = bind_pool("checkpoints", *s.checkpoints, problem, true, false);
}

void bind_key_sums(const StateArguments& s, Problem& problem) {
    for (const auto& [view, name] : {std::pair{s.initial_key_sum, "initial_key_sum"},
                                     std::pair{s.final_key_sum, "final_key_sum"}}) {
        if (view && !problem.spec.normalize) {
            throw Error(ErrorCode::kSurplus, name, describe(*view), "specs with normalize only");
        }
    }
    // A sum read through the state's slots belongs to the state: one without the other would
    // continue half a sequence.
    if (s.initial_key_sum) {
        require_argument("state.initial", s.initial.has_value(), "initial_key_sum");
        problem.initial_key_sum = bind_pool("initial_key_sum", *s.initial_key_sum, problem,
                                            s.read_slots.has_value(), true);
        if (problem.initial_key_sum.slots != problem.initial.slots) {
            throw Error(ErrorCode::kShape, "initial_key_sum", describe(*s.initial_key_sum),
                        fmt::format("{} slots as state.initial", problem.initial.slots));
        }
    }
    if (s.final_key_sum) {
        require_argument("state.final", s.final.has_value(), "final_key_sum");
        problem.final_key_sum =
            bind_pool("final_key_sum", *s.final_key_sum, problem, s.write_slots.has_value(), true);
        if (problem.final_key_sum.slots != problem.final.slots) {
            throw Error(ErrorCode::kShape, "final_key_sum", describe(*s.final_key_sum),
                        fmt::format("{} slots as state.final", problem.final.slots));
        }
    }
}

}  // namespace

void bind_sequences(const Arguments& arguments, Problem& problem) {
    if (problem.device.kind != DeviceKind::kCpu) return bind_device_sequences(arguments, problem);
    problem.sequences = split_sequences(arguments.cu_seqlens, problem.dims.B, problem.dims.T);
    problem.dims.N = static_cast<std::int64_t>(problem.sequences.size());
    check_states(problem.dims);
}

void bind_states(const Arguments& arguments, Problem& problem) {
    const StateArguments& s = arguments.state;
    check_state_arguments(s, problem.phase, {});
    if (s.initial) {
        problem.initial =
            bind_pool("state.initial", *s.initial, problem, s.read_slots.has_value(), false);
    }
    if (s.final) {
        problem.final =
            bind_pool("state.final", *s.final, problem, s.write_slots.has_value(), false);
    }
    bind_key_sums(s, problem);
    bind_checkpoint_pool(s, problem);
    if (problem.device.kind != DeviceKind::kCpu) return bind_device_slots(s, problem);
    StateSlots slots = bind_state_slots(
        s, problem.phase, {problem.dims.B, problem.dims.T, std::move(problem.sequences)});
    problem.sequences = std::move(slots.sequences);
    problem.sequence_checkpoints = std::move(slots.checkpoints);
    problem.token_write_slots = std::move(slots.token_writes);
}

}  // namespace sluice
