// Where the states of a call come from and go to: its slot tensors, resolved. The recurrence and
// the short convolution keep different states by the same rules.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/problem.hpp"

namespace sluice {

/// What a call names itself and its states, for messages.
struct StateNames {
    const char* initial = "state.initial";
    const char* final = "state.final";
    const char* prefill = "forward()";
    const char* decode = "step()";
};

/// Refuses an argument that needs another one which was not given.
void require_argument(const char* needed, bool is_given, const char* needed_by);

/// Refuses index tensors without the states that they index, and those of the other phase. Reads
/// no tensor elements.
void check_state_arguments(const StateArguments& state, Phase phase, const StateNames& names);

/// The tokens of a call, [batch, tokens], and how they split into sequences.
struct SplitTokens {
    std::int64_t batch = 0, tokens = 0;
    std::vector<Sequence> sequences;
};

struct StateSlots {
    std::vector<Sequence> sequences;  // with their slots; padding rows are marked
    /// Per sequence, sorted by position; empty where the call has no checkpoints.
    std::vector<std::vector<Checkpoint>> checkpoints;
    /// Decode with write_slots [N, T]: the slot after each token, row-major; else empty.
    std::vector<std::int64_t> token_writes;
};

/// Resolves the slots. The pools in `state` have their slots as first dimension, and
/// check_state_arguments() accepted it. Refuses slots outside the pools, slots written twice, and
/// slots that one sequence reads and another writes.
[[nodiscard]] StateSlots bind_state_slots(const StateArguments& state, Phase phase,
                                          SplitTokens split);

}  // namespace sluice
