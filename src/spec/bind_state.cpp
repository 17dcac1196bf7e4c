#include "spec/bind_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "spec/bind_inputs.hpp"
#include "spec/indices.hpp"

namespace sluice {

namespace {

constexpr std::int64_t kCheckpointMultiple = 64;

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

void require(bool given, const char* name, bool needed_by, const char* needed) {
    if (given && !needed_by) {
        throw Error(ErrorCode::kMissing, needed, "nothing",
                    fmt::format("{} with {}", needed, name));
    }
}

void bind_read_slots(const StateArguments& s, Problem& problem) {
    const std::int64_t n = problem.dims.N;
    if (s.read_slots) {
        const Indices slots("read_slots", *s.read_slots);
        std::optional<Indices> accepted;
        if (slots.rank() == 2 && problem.phase == Phase::kDecode) {
            slots.require_shape({n, std::max<std::int64_t>(slots.extent(1), 1)}, "[N, M]");
            if (s.accepted) {
                accepted.emplace("accepted", *s.accepted);
                accepted->require_shape({n}, "[N]");
            }
        } else {
            slots.require_shape({n}, "[N]");
        }
        for (std::int64_t i = 0; i < n; ++i) {
            std::int64_t column = 0;
            if (accepted) {
                column = (*accepted)(i)-1;
                if (column < 0 || column >= slots.extent(1)) {
                    throw Error(ErrorCode::kValue, "accepted",
                                fmt::format("{} at [{}]", column + 1, i),
                                fmt::format("1 to {} (columns of read_slots)", slots.extent(1)));
                }
            }
            problem.sequences[i].read_slot = slots.slot(problem.initial.slots, i, column);
        }
    } else if (problem.initial) {
        for (std::int64_t i = 0; i < n; ++i) problem.sequences[i].read_slot = i;
    }
    if (s.accepted && !(s.read_slots && s.read_slots->rank == 2)) {
        throw Error(ErrorCode::kSurplus, "accepted", describe(*s.accepted),
                    "accepted only in step() with read_slots [N, M]");
    }
}

void bind_write_slots(const StateArguments& s, Problem& problem) {
    const std::int64_t n = problem.dims.N;
    if (s.write_slots) {
        const Indices slots("write_slots", *s.write_slots);
        if (slots.rank() == 2 && problem.phase == Phase::kDecode) {
            slots.require_shape({n, problem.dims.T}, "[N, T]");
            if (n != problem.dims.B) {
                throw Error(ErrorCode::kUnsupported, "write_slots", describe(*s.write_slots),
                            "[N] with cu_seqlens; [N, T] without");
            }
            for (std::int64_t i = 0; i < n; ++i) {
                for (std::int64_t t = 0; t < problem.dims.T; ++t) {
                    problem.token_write_slots.push_back(slots.slot(problem.final.slots, i, t));
                }
            }
        } else {
            slots.require_shape({n}, "[N]");
            for (std::int64_t i = 0; i < n; ++i) {
                problem.sequences[i].write_slot = slots.slot(problem.final.slots, i);
            }
        }
    } else if (problem.final) {
        for (std::int64_t i = 0; i < n; ++i) problem.sequences[i].write_slot = i;
    }
}

/// A padding row of step(): it names slots to read and to write, and all of them are -1.
void mark_padding(const StateArguments& s, Problem& problem) {
    if (problem.phase != Phase::kDecode || !s.read_slots || !s.write_slots) return;
    for (std::int64_t i = 0; i < problem.dims.N; ++i) {
        Sequence& sequence = problem.sequences[i];
        bool writes = sequence.write_slot >= 0;
        if (!problem.token_write_slots.empty()) {
            for (std::int64_t t = 0; t < problem.dims.T; ++t) {
                writes = writes || problem.token_write_slots[i * problem.dims.T + t] >= 0;
            }
        }
        sequence.skip = !writes && sequence.read_slot < 0;
    }
}

void bind_has_initial(const StateArguments& s, Problem& problem) {
    if (!s.has_initial) return;
    const Indices mask("has_initial", *s.has_initial, Indices::Kind::kBool);
    mask.require_shape({problem.dims.N}, "[N]");
    for (std::int64_t i = 0; i < problem.dims.N; ++i) {
        if (mask(i) == 0) problem.sequences[i].read_slot = -1;
    }
}

void bind_checkpoints(const StateArguments& s, Problem& problem) {
    const bool any =
        s.checkpoints || s.checkpoint_sequences || s.checkpoint_positions || s.checkpoint_slots;
    if (!any) return;
    if (problem.phase != Phase::kPrefill) {
        throw Error(ErrorCode::kUnsupported, "checkpoints", "given to step()",
                    "checkpoints in forward(); write_slots [N, T] in step()");
    }
    const char* given = s.checkpoints            ? "checkpoints"
                        : s.checkpoint_slots     ? "checkpoint_slots"
                        : s.checkpoint_positions ? "checkpoint_positions"
                                                 : "checkpoint_sequences";
    require(true, given, s.checkpoints.has_value(), "checkpoints");
    require(true, given, s.checkpoint_sequences.has_value(), "checkpoint_sequences");
    require(true, given, s.checkpoint_positions.has_value(), "checkpoint_positions");
    require(true, given, s.checkpoint_slots.has_value(), "checkpoint_slots");
    if (problem.spec.normalize) {
        throw Error(ErrorCode::kUnsupported, "checkpoints", "with normalize",
                    "checkpoints of specs without a normaliser (its key sum has no pool here)");
    }
    problem.checkpoints = bind_pool("checkpoints", *s.checkpoints, problem, true, false);
    const Indices sequences("checkpoint_sequences", *s.checkpoint_sequences);
    const Indices positions("checkpoint_positions", *s.checkpoint_positions);
    const Indices slots("checkpoint_slots", *s.checkpoint_slots);
    const std::int64_t count = s.checkpoint_slots->rank == 1 ? slots.extent(0) : 0;
    slots.require_shape({count}, "[M]");
    sequences.require_shape({count}, "[M]");
    positions.require_shape({count}, "[M]");
    problem.sequence_checkpoints.resize(problem.sequences.size());
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t n = sequences(i);
        if (n < 0 || n >= problem.dims.N) {
            throw Error(ErrorCode::kValue, "checkpoint_sequences", fmt::format("{} at [{}]", n, i),
                        fmt::format("0 to {}", problem.dims.N - 1));
        }
        const std::int64_t position = positions(i);
        const std::int64_t length = problem.sequences[n].length();
        if (position < 0 || position > length || position % kCheckpointMultiple != 0) {
            throw Error(ErrorCode::kValue, "checkpoint_positions",
                        fmt::format("{} at [{}]", position, i),
                        fmt::format("multiples of {} from 0 to the sequence's length {}",
                                    kCheckpointMultiple, length));
        }
        const std::int64_t slot = slots.slot(problem.checkpoints.slots, i);
        if (slot >= 0) problem.sequence_checkpoints[n].push_back({position, slot});
    }
    for (auto& list : problem.sequence_checkpoints) {
        std::sort(list.begin(), list.end(),
                  [](const Checkpoint& a, const Checkpoint& b) { return a.position < b.position; });
    }
}

void check_slots(const Problem& problem) {
    SlotUse use;
    const void* final_pool = problem.final.data;
    const void* initial_pool = problem.initial.data;
    const void* checkpoint_pool = problem.checkpoints.data;
    // Key sums share the states' slots, but may be in place where the states are not.
    const bool sums_in_place = problem.final_key_sum && problem.initial_key_sum &&
                               problem.final_key_sum.data == problem.initial_key_sum.data;
    for (std::int64_t n = 0; n < problem.dims.N; ++n) {
        use.write(final_pool, "write_slots", problem.sequences[n].write_slot, n);
        if (sums_in_place) {
            use.write(problem.final_key_sum.data, "write_slots", problem.sequences[n].write_slot,
                      n);
        }
        for (std::int64_t t = 0; !problem.token_write_slots.empty() && t < problem.dims.T; ++t) {
            use.write(final_pool, "write_slots", problem.token_write_slots[n * problem.dims.T + t],
                      n);
        }
        if (!problem.sequence_checkpoints.empty()) {
            for (const Checkpoint& c : problem.sequence_checkpoints[n]) {
                use.write(checkpoint_pool, "checkpoint_slots", c.slot, n);
            }
        }
    }
    for (std::int64_t n = 0; n < problem.dims.N; ++n) {
        use.read(initial_pool, "read_slots", problem.sequences[n].read_slot, n);
        if (sums_in_place) {
            use.read(problem.initial_key_sum.data, "read_slots", problem.sequences[n].read_slot, n);
        }
    }
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
        require(true, "initial_key_sum", s.initial.has_value(), "state.initial");
        problem.initial_key_sum = bind_pool("initial_key_sum", *s.initial_key_sum, problem,
                                            s.read_slots.has_value(), true);
        if (problem.initial_key_sum.slots != problem.initial.slots) {
            throw Error(ErrorCode::kShape, "initial_key_sum", describe(*s.initial_key_sum),
                        fmt::format("{} slots as state.initial", problem.initial.slots));
        }
    }
    if (s.final_key_sum) {
        require(true, "final_key_sum", s.final.has_value(), "state.final");
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
    problem.sequences = split_sequences(arguments.cu_seqlens, problem.dims.B, problem.dims.T);
    problem.dims.N = static_cast<std::int64_t>(problem.sequences.size());
    check_states(problem.dims);
}

void bind_states(const Arguments& arguments, Problem& problem) {
    const StateArguments& s = arguments.state;
    require(s.read_slots.has_value(), "read_slots", s.initial.has_value(), "state.initial");
    require(s.write_slots.has_value(), "write_slots", s.final.has_value(), "state.final");
    require(s.has_initial.has_value(), "has_initial", s.initial.has_value(), "state.initial");
    if (s.initial) {
        problem.initial =
            bind_pool("state.initial", *s.initial, problem, s.read_slots.has_value(), false);
    }
    if (s.final) {
        problem.final =
            bind_pool("state.final", *s.final, problem, s.write_slots.has_value(), false);
    }
    bind_key_sums(s, problem);
    bind_read_slots(s, problem);
    bind_write_slots(s, problem);
    mark_padding(s, problem);
    bind_has_initial(s, problem);
    bind_checkpoints(s, problem);
    check_slots(problem);
}

}  // namespace sluice
