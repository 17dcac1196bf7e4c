#include "spec/state_slots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "spec/bind_inputs.hpp"
#include "spec/indices.hpp"

namespace sluice {

namespace {

constexpr std::int64_t kCheckpointMultiple = 64;

void check_checkpoint_arguments(const StateArguments& s, Phase phase, const StateNames& names) {
    const char* given = s.checkpoints            ? "checkpoints"
                        : s.checkpoint_slots     ? "checkpoint_slots"
                        : s.checkpoint_positions ? "checkpoint_positions"
                        : s.checkpoint_sequences ? "checkpoint_sequences"
                                                 : nullptr;
    if (given == nullptr) return;
    if (phase != Phase::kPrefill) {
        throw Error(ErrorCode::kUnsupported, "checkpoints",
                    fmt::format("given to {}", names.decode),
                    fmt::format("checkpoints in {}; write_slots [N, T] in {}", names.prefill,
                                names.decode));
    }
    require_argument("checkpoints", s.checkpoints.has_value(), given);
    require_argument("checkpoint_sequences", s.checkpoint_sequences.has_value(), given);
    require_argument("checkpoint_positions", s.checkpoint_positions.has_value(), given);
    require_argument("checkpoint_slots", s.checkpoint_slots.has_value(), given);
}

/// Who writes and reads which slot of which memory: no slot is written twice, and none is written
/// by one sequence and read by another (they run at the same time).
class SlotUse {
  public:
    /// `pool` names the memory: equal for the same memory. All writes come before all reads.
    void write(const void* pool, const char* name, std::int64_t slot, std::int64_t sequence) {
        if (slot < 0) return;
        const auto [it, fresh] = writer_.try_emplace({pool, slot}, sequence);
        if (fresh) return;
        throw Error(ErrorCode::kValue, name,
                    fmt::format("slot {} for sequences {} and {}", slot, it->second, sequence),
                    "each slot written at most once");
    }
    void read(const void* pool, const char* name, std::int64_t slot, std::int64_t sequence) const {
        if (slot < 0) return;
        const auto it = writer_.find({pool, slot});
        if (it == writer_.end() || it->second == sequence) return;
        throw Error(ErrorCode::kAlias, name,
                    fmt::format("slot {} read by sequence {} and written by sequence {}", slot,
                                sequence, it->second),
                    "slots that no other sequence writes in the same call");
    }

  private:
    std::map<std::pair<const void*, std::int64_t>, std::int64_t> writer_;
};

class SlotBinder {
  public:
    SlotBinder(const StateArguments& state, Phase phase, SplitTokens split)
        : s_(state),
          decode_(phase == Phase::kDecode),
          batch_(split.batch),
          tokens_(split.tokens),
          count_(static_cast<std::int64_t>(split.sequences.size())) {
        slots_.sequences = std::move(split.sequences);
    }

    StateSlots bind() && {
        bind_reads();
        bind_writes();
        mark_padding();
        apply_mask();
        bind_checkpoints();
        check_use(s_.initial, s_.final);
        // Key sums share the states' slots, but may be in place where the states are not.
        check_use(s_.initial_key_sum, s_.final_key_sum);
        return std::move(slots_);
    }

  private:
    void bind_reads() {
        if (!s_.read_slots) {
            for (std::int64_t n = 0; s_.initial && n < count_; ++n) {
                slots_.sequences[n].read_slot = n;
            }
            return;
        }
        const Indices indices("read_slots", *s_.read_slots);
        const bool matrix = decode_ && indices.rank() == 2;
        if (matrix) {
            indices.require_shape({count_, std::max<std::int64_t>(indices.extent(1), 1)}, "[N, M]");
        } else {
            indices.require_shape({count_}, "[N]");
        }
        const auto columns = read_columns(indices);
        for (std::int64_t n = 0; n < count_; ++n) {
            slots_.sequences[n].read_slot = indices.slot(s_.initial->extents[0], n, columns[n]);
        }
    }

    /// The column of read_slots that holds each sequence's last accepted token.
    [[nodiscard]] std::vector<std::int64_t> read_columns(const Indices& read_slots) const {
        std::vector<std::int64_t> columns(static_cast<std::size_t>(count_), 0);
        if (!s_.accepted) return columns;
        const Indices accepted("accepted", *s_.accepted);
        accepted.require_shape({count_}, "[N]");
        for (std::int64_t n = 0; n < count_; ++n) {
            const std::int64_t tokens = accepted(n);
            if (tokens < 1 || tokens > read_slots.extent(1)) {
                throw Error(ErrorCode::kValue, "accepted", fmt::format("{} at [{}]", tokens, n),
                            fmt::format("1 to {} (columns of read_slots)", read_slots.extent(1)));
            }
            columns[n] = tokens - 1;
        }
        return columns;
    }

    void bind_writes() {
        if (!s_.write_slots) {
            for (std::int64_t n = 0; s_.final && n < count_; ++n) {
                slots_.sequences[n].write_slot = n;
            }
            return;
        }
        const Indices indices("write_slots", *s_.write_slots);
        const std::int64_t pool_slots = s_.final->extents[0];
        if (!decode_ || indices.rank() != 2) {
            indices.require_shape({count_}, "[N]");
            for (std::int64_t n = 0; n < count_; ++n) {
                slots_.sequences[n].write_slot = indices.slot(pool_slots, n);
            }
            return;
        }
        indices.require_shape({count_, tokens_}, "[N, T]");
        if (count_ != batch_) {
            throw Error(ErrorCode::kUnsupported, "write_slots", describe(*s_.write_slots),
                        "[N] with cu_seqlens; [N, T] without");
        }
        for (std::int64_t n = 0; n < count_; ++n) {
            for (std::int64_t t = 0; t < tokens_; ++t) {
                slots_.token_writes.push_back(indices.slot(pool_slots, n, t));
            }
        }
    }

    [[nodiscard]] std::span<const std::int64_t> token_writes(std::int64_t n) const {
        if (slots_.token_writes.empty()) return {};
        return std::span(slots_.token_writes).subspan(n * tokens_, tokens_);
    }

    /// A padding row of a decode call: it names slots to read and to write, and all of them are -1.
    void mark_padding() {
        if (!decode_ || !s_.read_slots || !s_.write_slots) return;
        for (std::int64_t n = 0; n < count_; ++n) {
            Sequence& sequence = slots_.sequences[n];
            const auto tokens = token_writes(n);
            const bool writes = sequence.write_slot >= 0 ||
                                std::any_of(tokens.begin(), tokens.end(),
                                            [](std::int64_t slot) { return slot >= 0; });
            sequence.skip = !writes && sequence.read_slot < 0;
        }
    }

    void apply_mask() {
        if (!s_.has_initial) return;
        const Indices mask("has_initial", *s_.has_initial, Indices::Kind::kBool);
        mask.require_shape({count_}, "[N]");
        for (std::int64_t n = 0; n < count_; ++n) {
            if (mask(n) == 0) slots_.sequences[n].read_slot = -1;
        }
    }

    void bind_checkpoints() {
        if (!s_.checkpoints) return;
        const Indices sequences("checkpoint_sequences", *s_.checkpoint_sequences);
        const Indices positions("checkpoint_positions", *s_.checkpoint_positions);
        const Indices indices("checkpoint_slots", *s_.checkpoint_slots);
        const std::int64_t checkpoints = indices.rank() == 1 ? indices.extent(0) : 0;
        indices.require_shape({checkpoints}, "[M]");
        sequences.require_shape({checkpoints}, "[M]");
        positions.require_shape({checkpoints}, "[M]");
        slots_.checkpoints.resize(slots_.sequences.size());
        for (std::int64_t i = 0; i < checkpoints; ++i) {
            const std::int64_t n = sequences(i);
            if (n < 0 || n >= count_) {
                throw Error(ErrorCode::kValue, "checkpoint_sequences",
                            fmt::format("{} at [{}]", n, i), fmt::format("0 to {}", count_ - 1));
            }
            const std::int64_t position = checked_position(positions(i), i, n);
            const std::int64_t slot = indices.slot(s_.checkpoints->extents[0], i);
            if (slot >= 0) slots_.checkpoints[n].push_back({position, slot});
        }
        for (auto& list : slots_.checkpoints) {
            std::sort(list.begin(), list.end(), [](const Checkpoint& a, const Checkpoint& b) {
                return a.position < b.position;
            });
        }
    }

    [[nodiscard]] std::int64_t checked_position(std::int64_t position, std::int64_t i,
                                                std::int64_t n) const {
        const std::int64_t length = slots_.sequences[n].length();
        if (position < 0 || position > length || position % kCheckpointMultiple != 0) {
            throw Error(ErrorCode::kValue, "checkpoint_positions",
                        fmt::format("{} at [{}]", position, i),
                        fmt::format("multiples of {} from 0 to the sequence's length {}",
                                    kCheckpointMultiple, length));
        }
        return position;
    }

    void check_use(const std::optional<TensorView>& initial,
                   const std::optional<TensorView>& final) const {
        SlotUse use;
        for (std::int64_t n = 0; n < count_; ++n) {
            if (final) {
                use.write(final->data, "write_slots", slots_.sequences[n].write_slot, n);
                for (const std::int64_t slot : token_writes(n)) {
                    use.write(final->data, "write_slots", slot, n);
                }
            }
            if (slots_.checkpoints.empty()) continue;
            for (const Checkpoint& c : slots_.checkpoints[n]) {
                use.write(s_.checkpoints->data, "checkpoint_slots", c.slot, n);
            }
        }
        for (std::int64_t n = 0; initial && n < count_; ++n) {
            use.read(initial->data, "read_slots", slots_.sequences[n].read_slot, n);
        }
    }

    const StateArguments& s_;
    bool decode_;
    std::int64_t batch_, tokens_;
    std::int64_t count_;  // sequences
    StateSlots slots_;
};

}  // namespace

void require_argument(const char* needed, bool is_given, const char* needed_by) {
    if (is_given) return;
    throw Error(ErrorCode::kMissing, needed, "nothing",
                fmt::format("{} with {}", needed, needed_by));
}

void check_state_arguments(const StateArguments& s, Phase phase, const StateNames& names) {
    if (s.read_slots) require_argument(names.initial, s.initial.has_value(), "read_slots");
    if (s.write_slots) require_argument(names.final, s.final.has_value(), "write_slots");
    if (s.has_initial) require_argument(names.initial, s.initial.has_value(), "has_initial");
    if (s.accepted && !(s.read_slots && s.read_slots->rank == 2)) {
        throw Error(ErrorCode::kSurplus, "accepted", describe(*s.accepted),
                    fmt::format("accepted only in {} with read_slots [N, M]", names.decode));
    }
    check_checkpoint_arguments(s, phase, names);
}

StateSlots bind_state_slots(const StateArguments& state, Phase phase, SplitTokens split) {
    return SlotBinder(state, phase, std::move(split)).bind();
}

}  // namespace sluice
