#include "cpu/chunked.hpp"

#include <algorithm>

#include "cpu/decay_scores.hpp"
#include "cpu/denormals.hpp"
#include "cpu/operands.hpp"
#include "cpu/products.hpp"
#include "cpu/rounding.hpp"
#include "cpu/state_io.hpp"

namespace sluice::cpu {

namespace {

/// One row side of the products: q, the delta rule's k, or b. Its block's rows decayed from the
/// block's start (for scores) and from the chunk's start (for the state).
template <class Real>
struct LeftRows {
    const Real* raw = nullptr;  // [chunk, key_stride]
    AlignedVector<Real> hat;    // [16, key_stride]
    AlignedVector<Real> state;  // [16, key_stride]
};

template <class Real>
class ChunkedWorker {
  public:
    ChunkedWorker(const Problem& problem, const Plan& plan, const OperandPrograms<Real>& programs)
        : problem_(problem),
          chunk_(plan.chunk),
          update_(problem.spec.update),
          rounding_(plan.precision == Precision::kBFloat16 ? Rounding::kBFloat16 : Rounding::kNone),
          operands_(problem, programs, chunk_, plan.value_tile, Simd<Real>::kLanes),
          keys_(operands_.key_stride()),
          values_(operands_.value_stride()),
          decay_(programs.decay, chunk_, keys_) {
        const auto key_rows = static_cast<std::size_t>(chunk_ * keys_);
        const auto value_rows = static_cast<std::size_t>(chunk_ * values_);
        const auto block_keys = static_cast<std::size_t>(kBlock * keys_);
        const auto block_values = static_cast<std::size_t>(kBlock * values_);
        const auto block_scores = static_cast<std::size_t>(kBlock * chunk_);
        state_.resize(static_cast<std::size_t>(problem.dims.K * values_));
        if (rounding_ != Rounding::kNone) read_state_.resize(state_.size());
        anchored_k_.resize(key_rows);
        work_.resize(block_keys);
        scores_.resize(block_scores);
        o_.resize(value_rows);
        for (LeftRows<Real>* rows : {&q_, &second_}) {
            rows->hat.resize(block_keys);
            rows->state.resize(block_keys);
        }
        if (update_ != Update::kAdditive) {
            u_.resize(value_rows);
            read_.resize(block_values);
        }
        if (update_ == Update::kDelta) wide_.resize(static_cast<std::size_t>(values_));
        if (update_ == Update::kRankOne) {
            anchored_a_.resize(key_rows);
            scores_a_.resize(block_scores);
        }
    }

    void operator()(const Task& task) {
        const FlushDenormals flush;
        const Sequence& sequence = problem_.sequences[task.sequence];
        if (sequence.skip) {
            std::fill(o_.begin(), o_.end(), Real(0));
            for (std::int64_t t = 0; t < sequence.length(); t += chunk_) {
                store_output(problem_, task, sequence.batch, sequence.begin + t,
                             std::min(chunk_, sequence.length() - t), o_.data(), values_);
            }
            return;
        }
        const StateBuffer<Real> state{state_.data(), values_};
        load_state(problem_, task, sequence.read_slot, state);
        static const std::vector<Checkpoint> kNone;
        const std::vector<Checkpoint>& checkpoints =
            problem_.sequence_checkpoints.empty() ? kNone
                                                  : problem_.sequence_checkpoints[task.sequence];
        auto next = checkpoints.begin();
        std::int64_t begin = 0;
        while (true) {
            for (; next != checkpoints.end() && next->position == begin; ++next) {
                store_state(problem_, problem_.checkpoints, task, next->slot, state);
            }
            if (begin == sequence.length()) break;
            // A chunk ends where a checkpoint wants the state.
            std::int64_t end = std::min(begin + chunk_, sequence.length());
            if (next != checkpoints.end()) end = std::min(end, next->position);
            operands_.load(task, sequence, begin, end - begin);
            run_chunk(end - begin);
            operands_.apply_output(o_.data());
            store_output(problem_, task, sequence.batch, sequence.begin + begin, end - begin,
                         o_.data(), values_);
            begin = end;
        }
        store_final(problem_, task, sequence.write_slot, state);
    }

  private:
    /// Outputs of the loaded tokens into o_, and the state after them.
    void run_chunk(std::int64_t length) {
        rows_ = round_up(length, kBlock);
        clear_padding(length);
        decay_.load(operands_.log_decay.data(), rows_);
        q_.raw = operands_.q.data();
        second_.raw = update_ == Update::kRankOne ? operands_.b.data() : operands_.k.data();
        if (update_ == Update::kAdditive) round_operand(rounding_, rows_ * values_, values_of_k());
        prepare_read_state();
        for (std::int64_t block = 0; block < rows_ / kBlock; ++block) {
            prepare_left(q_, block, true);
            prepare_right(operands_.k, anchored_k_, block);
            if (update_ == Update::kDelta) {
                prepare_left(second_, block, true);
                solve_delta(block);
            } else if (update_ == Update::kRankOne) {
                prepare_left(second_, block, false);
                prepare_right(operands_.a, anchored_a_, block);
                solve_rank_one(block);
            }
            read_out(block);
            advance_anchor(anchored_k_, block);
            if (update_ == Update::kRankOne) advance_anchor(anchored_a_, block);
        }
        update_state();
    }

    /// What k is paired with: v, or the delta rule's u.
    Real* values_of_k() { return update_ == Update::kDelta ? u_.data() : operands_.v.data(); }

    /// Rows past the end take part in products: zero operands, no decay.
    void clear_padding(std::int64_t length) {
        const auto clear = [&](AlignedVector<Real>& rows, std::int64_t stride) {
            if (rows.empty()) return;
            std::fill(rows.begin() + length * stride, rows.begin() + rows_ * stride, Real(0));
        };
        for (AlignedVector<Real>* rows : {&operands_.q, &operands_.k, &operands_.a, &operands_.b}) {
            clear(*rows, keys_);
        }
        clear(operands_.v, values_);
        clear(operands_.log_decay, decay_.decay() == Decay::kVector ? keys_ : 1);
        clear(operands_.beta, 1);
    }

    /// Key-side operands are rounded where a decay was multiplied into them; without a decay per
    /// channel a kernel's products read q and k as they are.
    [[nodiscard]] Rounding key_rounding() const {
        return decay_.decay() == Decay::kVector ? rounding_ : Rounding::kNone;
    }

    /// The state as products read it: rounded in the bf16 mode, once per chunk.
    void prepare_read_state() {
        if (rounding_ == Rounding::kNone) return;
        std::copy(state_.begin(), state_.end(), read_state_.begin());
        const auto n = static_cast<std::int64_t>(state_.size());
        if (update_ == Update::kAdditive) {
            round_operand(rounding_, n, read_state_.data());
        } else {
            round_operand_pair(rounding_, n, read_state_.data());
        }
    }

    [[nodiscard]] const Real* read_state() const {
        return rounding_ == Rounding::kNone ? state_.data() : read_state_.data();
    }

    void prepare_left(LeftRows<Real>& rows, std::int64_t block, bool inclusive) {
        for (std::int64_t i = 0; i < kBlock; ++i) {
            const std::int64_t row = block * kBlock + i;
            Real* hat = rows.hat.data() + i * keys_;
            decay_.from_block_start(row, inclusive, rows.raw + row * keys_, hat);
            decay_.from_chunk_start(block, hat, rows.state.data() + i * keys_);
        }
        round_operand(key_rounding(), kBlock * keys_, rows.hat.data());
        round_operand(key_rounding(), kBlock * keys_, rows.state.data());
    }

    /// The block's own right rows, anchored at its last row.
    void prepare_right(const AlignedVector<Real>& raw, AlignedVector<Real>& anchored,
                       std::int64_t block) {
        for (std::int64_t row = block * kBlock; row < (block + 1) * kBlock; ++row) {
            decay_.to_block_end(row, raw.data() + row * keys_, anchored.data() + row * keys_);
        }
        round_operand(key_rounding(), kBlock * keys_, anchored.data() + block * kBlock * keys_);
    }

    /// Rows before the block move from its first row to its last, where its own rows are.
    void advance_anchor(AlignedVector<Real>& anchored, std::int64_t block) {
        if (decay_.decay() == Decay::kNone) return;
        for (std::int64_t row = 0; row < block * kBlock; ++row) {
            decay_.across_block(block, anchored.data() + row * keys_);
        }
    }

    void scores(const LeftRows<Real>& left, const AlignedVector<Real>& right,
                const AlignedVector<Real>& anchored, Pairing pairing, std::int64_t block,
                Real* out) {
        decay_scores(decay_, pairing, rounding_, block, keys_, left.raw, left.hat.data(),
                     right.data(), anchored.data(), work_.data(), out, chunk_);
    }

    /// result (16 rows) += scores of rows [0, count) x those rows of `values`.
    void apply_scores(const Real* scores, std::int64_t count, const Real* values, Real* result) {
        accumulate<Real>(kBlock, values_, count, {scores, chunk_, 1}, values, values_, result,
                         values_);
    }

    void apply_state(const LeftRows<Real>& left, Real* result) {
        accumulate<Real>(kBlock, values_, problem_.dims.K, {left.state.data(), keys_, 1},
                         read_state(), values_, result, values_);
    }

    /// u_i = beta_i (v_i - k_i^ S - sum_{j < i} L_ij u_j)
    void solve_delta(std::int64_t block) {
        const std::int64_t first = block * kBlock;
        std::fill(read_.begin(), read_.end(), Real(0));
        apply_state(second_, read_.data());
        if (amplifies(first)) {
            solve_delta_wide(first);
            return;
        }
        scores(second_, operands_.k, anchored_k_, Pairing::kInclusiveStrict, block, scores_.data());
        apply_scores(scores_.data(), first, u_.data(), read_.data());
        for (std::int64_t i = 0; i < kBlock; ++i) {
            Real* sum = read_.data() + i * values_;
            substitute(scores_.data() + i * chunk_ + first, i, u_.data() + first * values_, sum);
            finish_delta_row(first + i, sum);
        }
    }

    void finish_delta_row(std::int64_t row, const auto* sum) {
        const Real beta = operands_.beta[static_cast<std::size_t>(row)];
        const Real* v = operands_.v.data() + row * values_;
        Real* u = u_.data() + row * values_;
        for (std::int64_t c = 0; c < values_; ++c) u[c] = static_cast<Real>(beta * (v[c] - sum[c]));
        // Rounded as the next rows and the state will read it.
        round_operand_pair(rounding_, values_, u);
    }

    /// With beta over 1 a step reflects instead of contracting: along repeated keys the errors of L
    /// add up over the chunk instead of dying out, and float32 scores are not enough. (The rows'
    /// own betas decide, and those before them: a later token changes nothing.)
    [[nodiscard]] bool amplifies(std::int64_t first) const {
        if (sizeof(Real) > sizeof(float)) return false;
        const auto beta = operands_.beta.begin();
        return std::any_of(beta, beta + first + kBlock, [](Real x) { return x > Real(1); });
    }

    /// The same with L and its sums in float64, row by row. Without a decay per channel the factors
    /// stand on whole rows, so that L is exact to the operands' rounding.
    void solve_delta_wide(std::int64_t first) {
        for (std::int64_t i = 0; i < kBlock; ++i) {
            std::copy_n(read_.data() + i * values_, values_, wide_.data());
            for (std::int64_t j = 0; j < first; ++j) {
                add_wide(
                    wide_dot(keys_, second_.hat.data() + i * keys_, anchored_k_.data() + j * keys_),
                    j);
            }
            // Inside the block, each earlier row decays to this one step by step.
            const Real* key = operands_.k.data() + (first + i) * keys_;
            std::copy_n(key, keys_, work_.data());
            for (std::int64_t j = i - 1; j >= 0; --j) {
                decay_.across_row(first + j + 1, work_.data());
                add_wide(wide_dot(keys_, work_.data(), operands_.k.data() + (first + j) * keys_),
                         first + j);
            }
            finish_delta_row(first + i, wide_.data());
        }
    }

    void add_wide(double weight, std::int64_t row) {
        const Real* u = u_.data() + row * values_;
        for (std::int64_t c = 0; c < values_; ++c) wide_[c] += weight * static_cast<double>(u[c]);
    }

    /// y_i = b_i^T S_{i-1}: the entering state's part, the keys' and the earlier a's.
    void solve_rank_one(std::int64_t block) {
        const std::int64_t first = block * kBlock;
        Real* y = u_.data() + first * values_;
        std::fill_n(y, kBlock * values_, Real(0));
        apply_state(second_, y);
        scores(second_, operands_.k, anchored_k_, Pairing::kExclusiveStrict, block, scores_.data());
        apply_scores(scores_.data(), first + kBlock, operands_.v.data(), y);
        scores(second_, operands_.a, anchored_a_, Pairing::kExclusiveStrict, block,
               scores_a_.data());
        apply_scores(scores_a_.data(), first, u_.data(), y);
        for (std::int64_t i = 0; i < kBlock; ++i) {
            substitute(scores_a_.data() + i * chunk_ + first, i, y, y + i * values_);
            round_operand_pair(rounding_, values_, y + i * values_);
        }
    }

    /// sum += weights[j] * rows[j] for j < count: forward substitution inside a block.
    void substitute(const Real* weights, std::int64_t count, const Real* rows, Real* sum) {
        for (std::int64_t j = 0; j < count; ++j) {
            for (std::int64_t c = 0; c < values_; ++c) sum[c] += weights[j] * rows[j * values_ + c];
        }
    }

    /// o = scale (q^ S + A u), normalised where the spec says so.
    void read_out(std::int64_t block) {
        const std::int64_t first = block * kBlock;
        Real* o = o_.data() + first * values_;
        std::fill_n(o, kBlock * values_, Real(0));
        apply_state(q_, o);
        scores(q_, operands_.k, anchored_k_, Pairing::kInclusive, block, scores_.data());
        apply_scores(scores_.data(), first + kBlock, values_of_k(), o);
        if (update_ == Update::kRankOne) {
            scores(q_, operands_.a, anchored_a_, Pairing::kInclusive, block, scores_a_.data());
            apply_scores(scores_a_.data(), first + kBlock, u_.data(), o);
        }
        const Real scale = static_cast<Real>(problem_.scale);
        for (std::int64_t i = 0; i < kBlock * values_; ++i) o[i] *= scale;
        if (problem_.spec.normalize) {
            const std::int64_t divisor = operands_.values();
            for (std::int64_t i = 0; i < kBlock; ++i) {
                Real* row = o + i * values_;
                const Real inverse =
                    Real(1) / (row[divisor] + static_cast<Real>(kNormalizerEpsilon));
                for (std::int64_t c = 0; c < divisor; ++c) row[c] *= inverse;
            }
        }
    }

    /// S <- diag(chunk's decay) S + sum_j r_j~ u_j^T
    void update_state() {
        const std::int64_t keys = problem_.dims.K;
        if (decay_.decay() != Decay::kNone) {
            for (std::int64_t k = 0; k < keys; ++k) {
                scale_state_row(decay_.chunk_total(k), state_.data() + k * values_);
            }
        }
        accumulate<Real>(keys, values_, rows_, {anchored_k_.data(), 1, keys_}, values_of_k(),
                         values_, state_.data(), values_);
        if (update_ == Update::kRankOne) {
            accumulate<Real>(keys, values_, rows_, {anchored_a_.data(), 1, keys_}, u_.data(),
                             values_, state_.data(), values_);
        }
    }

    /// row *= factor, the factor to twice the precision: rounded once a chunk it would drift.
    void scale_state_row(double factor, Real* row) {
        using S = Simd<Real>;
        const Real high = static_cast<Real>(factor);
        const auto low = S::broadcast(static_cast<Real>(factor - static_cast<double>(high)));
        for (std::int64_t c = 0; c < values_; c += S::kLanes) {
            const auto x = S::load(row + c);
            S::store(row + c, S::fma(x, S::broadcast(high), x * low));
        }
    }

    const Problem& problem_;
    std::int64_t chunk_;
    Update update_;
    Rounding rounding_;
    Operands<Real> operands_;
    std::int64_t keys_, values_;  // row strides: K and the tile's columns, padded
    std::int64_t rows_ = 0;       // of the current chunk, padded to blocks
    ChunkDecay<Real> decay_;
    LeftRows<Real> q_, second_;       // second: k of the delta rule, b of a rank-one update
    AlignedVector<Real> state_;       // [K, values_]
    AlignedVector<Real> read_state_;  // the same, rounded (bf16 mode)
    AlignedVector<Real> anchored_k_, anchored_a_;  // [chunk, keys_]
    AlignedVector<Real> work_;                     // [16, keys_]
    AlignedVector<Real> scores_, scores_a_;        // [16, chunk]
    AlignedVector<Real> u_;                        // [chunk, values_]: u (delta), y (rank-one)
    AlignedVector<Real> read_;                     // [16, values_]
    AlignedVector<double> wide_;                   // [values_]
    AlignedVector<Real> o_;                        // [chunk, values_]
};

}  // namespace

template <class Real>
std::int64_t chunked_workspace_bytes(const Problem& problem, std::int64_t chunk,
                                     std::int64_t value_tile) {
    constexpr std::int64_t kLanes = Simd<Real>::kLanes;
    const std::int64_t keys = round_up(problem.dims.K, kLanes);
    const std::int64_t values = round_up(state_columns(problem, value_tile), kLanes);
    const bool vector = problem.spec.decay() == Decay::kVector;
    const bool additive = problem.spec.update == Update::kAdditive;
    const bool rank_one = problem.spec.update == Update::kRankOne;
    // q k (a b), anchored k (a), decays and their products; v u o; the state; 16-row buffers.
    const std::int64_t key_rows = (rank_one ? 6 : 3) + (vector ? 4 : 0);
    const std::int64_t value_rows = additive ? 2 : 3;
    const std::int64_t elements = chunk * (key_rows * keys + value_rows * values) +
                                  problem.dims.K * values +
                                  kBlock * (5 * keys + values + (rank_one ? 2 : 1) * chunk);
    return elements * static_cast<std::int64_t>(sizeof(Real));
}

template <class Real>
void run_chunked(const Problem& problem, const Plan& plan) {
    const OperandPrograms<Real> programs(problem);
    for_each_task(problem, plan.value_tile, plan.threads,
                  [&] { return ChunkedWorker<Real>(problem, plan, programs); });
}

template void run_chunked<float>(const Problem&, const Plan&);
template void run_chunked<double>(const Problem&, const Plan&);
template std::int64_t chunked_workspace_bytes<float>(const Problem&, std::int64_t, std::int64_t);
template std::int64_t chunked_workspace_bytes<double>(const Problem&, std::int64_t, std::int64_t);

}  // namespace sluice::cpu
