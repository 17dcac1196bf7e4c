#include "cpu/recurrent.hpp"

#include <algorithm>

#include "cpu/denormals.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/operands.hpp"
#include "cpu/simd.hpp"
#include "cpu/state_io.hpp"

namespace sluice::cpu {

namespace {

constexpr std::int64_t kTile = 64;  // tokens whose operands are evaluated together

/// The operands of one token as the inner loops read them.
template <class Real>
struct TokenRows {
    const Real *q, *k, *a, *b, *v;
    const Real* decay;  // factors; step 0: one for all channels
    std::int64_t decay_step;
    Real beta;
};

/// `Vectors` vectors of value channels through one step. The state's columns stay in the
/// first-level cache (K rows of at most 4 vectors), and are read and written once for an additive
/// update.
template <class Real, int Vectors>
class Lanes {
    using S = Simd<Real>;
    using Vector = typename S::Vector;

  public:
    static void step(Update update, const TokenRows<Real>& x, std::int64_t keys, Real* state,
                     std::int64_t stride, Real* o) {
        Vector u[Vectors], bs[Vectors] = {}, read[Vectors] = {};
        for (int i = 0; i < Vectors; ++i) u[i] = S::load(x.v + i * S::kLanes);
        if (update == Update::kDelta) {
            Vector old[Vectors] = {};
            for (std::int64_t k = 0; k < keys; ++k) {
                const Vector weight = S::broadcast(x.k[k] * x.decay[k * x.decay_step]);
                for (int i = 0; i < Vectors; ++i) {
                    old[i] = S::fma(weight, S::load(state + k * stride + i * S::kLanes), old[i]);
                }
            }
            for (int i = 0; i < Vectors; ++i) u[i] = x.beta * (u[i] - old[i]);
        } else if (update == Update::kRankOne) {
            for (std::int64_t k = 0; k < keys; ++k) {
                const Vector weight = S::broadcast(x.b[k]);
                for (int i = 0; i < Vectors; ++i) {
                    bs[i] = S::fma(weight, S::load(state + k * stride + i * S::kLanes), bs[i]);
                }
            }
        }
        for (std::int64_t k = 0; k < keys; ++k) {
            const Vector decay = S::broadcast(x.decay[k * x.decay_step]);
            const Vector key = S::broadcast(x.k[k]);
            const Vector query = S::broadcast(x.q[k]);
            const Vector a = S::broadcast(update == Update::kRankOne ? x.a[k] : Real(0));
            for (int i = 0; i < Vectors; ++i) {
                Real* p = state + k * stride + i * S::kLanes;
                Vector s = S::fma(key, u[i], S::load(p) * decay);
                if (update == Update::kRankOne) s = S::fma(a, bs[i], s);
                S::store(p, s);
                read[i] = S::fma(query, s, read[i]);
            }
        }
        for (int i = 0; i < Vectors; ++i) S::store(o + i * S::kLanes, read[i]);
    }
};

template <class Real>
class RecurrentWorker {
    static constexpr std::int64_t kLanes = Simd<Real>::kLanes;
    static constexpr int kVectors = 4;

  public:
    RecurrentWorker(const Problem& problem, const Plan& plan, const OperandPrograms<Real>& programs)
        : problem_(problem),
          decay_kind_(programs.decay),
          operands_(problem, programs, kTile, plan.value_tile, kLanes),
          keys_(operands_.key_stride()),
          values_(operands_.value_stride()),
          state_(static_cast<std::size_t>(problem.dims.K * values_)),
          decay_(std::max<std::size_t>(operands_.log_decay.size(), 1), Real(1)),
          o_(static_cast<std::size_t>(kTile * values_)) {}

    void operator()(const Task& task) {
        const FlushDenormals flush;
        const Sequence& sequence = problem_.sequences[task.sequence];
        const StateBuffer<Real> state{state_.data(), values_};
        if (sequence.skip) {
            std::fill(o_.begin(), o_.end(), Real(0));
        } else {
            load_state(problem_, task, sequence.read_slot, state);
        }
        checkpoint(task, 0);
        for (std::int64_t begin = 0; begin < sequence.length(); begin += kTile) {
            const std::int64_t length = std::min(kTile, sequence.length() - begin);
            if (!sequence.skip) run_tile(task, sequence, begin, length);
            store_output(problem_, task, sequence.batch, sequence.begin + begin, length, o_.data(),
                         values_);
            checkpoint(task, begin + length);
        }
        if (!sequence.skip) store_final(problem_, task, sequence.write_slot, state);
    }

  private:
    void run_tile(const Task& task, const Sequence& sequence, std::int64_t begin,
                  std::int64_t length) {
        operands_.load(task, sequence, begin, length);
        if (decay_kind_ != Decay::kNone) {
            const std::int64_t n = length * (decay_kind_ == Decay::kVector ? keys_ : 1);
            decay_factors(n, operands_.log_decay.data(), decay_.data());
        }
        if (problem_.token_write_slots.empty()) {
            // All tokens for one group of columns, then the next: the group stays in cache.
            for (std::int64_t c = 0; c < values_; c += kVectors * kLanes) {
                for (std::int64_t t = 0; t < length; ++t) step_columns(t, c);
            }
        } else {
            for (std::int64_t t = 0; t < length; ++t) {
                for (std::int64_t c = 0; c < values_; c += kVectors * kLanes) step_columns(t, c);
                store_final<Real>(
                    problem_, task,
                    problem_.token_write_slots[task.sequence * problem_.dims.T + begin + t],
                    {state_.data(), values_});
            }
        }
        finish_output(length);
        operands_.apply_output(o_.data());
    }

    void step_columns(std::int64_t t, std::int64_t column) {
        const bool vector = decay_kind_ == Decay::kVector;
        const auto key_row = [&](const AlignedVector<Real>& rows) {
            return rows.empty() ? nullptr : rows.data() + t * keys_;
        };
        TokenRows<Real> x;
        x.q = key_row(operands_.q);
        x.k = key_row(operands_.k);
        x.a = key_row(operands_.a);
        x.b = key_row(operands_.b);
        x.v = operands_.v.data() + t * values_ + column;
        x.decay = decay_.data() + (decay_kind_ == Decay::kNone ? 0 : t * (vector ? keys_ : 1));
        x.decay_step = vector ? 1 : 0;
        x.beta = operands_.beta.empty() ? Real(1) : operands_.beta[static_cast<std::size_t>(t)];
        Real* state = state_.data() + column;
        Real* o = o_.data() + t * values_ + column;
        const Update update = problem_.spec.update;
        switch (std::min<std::int64_t>((values_ - column) / kLanes, kVectors)) {
            case 4: Lanes<Real, 4>::step(update, x, problem_.dims.K, state, values_, o); break;
            case 3: Lanes<Real, 3>::step(update, x, problem_.dims.K, state, values_, o); break;
            case 2: Lanes<Real, 2>::step(update, x, problem_.dims.K, state, values_, o); break;
            default: Lanes<Real, 1>::step(update, x, problem_.dims.K, state, values_, o); break;
        }
    }

    void finish_output(std::int64_t length) {
        const Real scale = static_cast<Real>(problem_.scale);
        for (std::int64_t i = 0; i < length * values_; ++i) o_[i] *= scale;
        if (!problem_.spec.normalize) return;
        const std::int64_t divisor = operands_.values();
        for (std::int64_t t = 0; t < length; ++t) {
            Real* row = o_.data() + t * values_;
            const Real inverse = Real(1) / (row[divisor] + static_cast<Real>(kNormalizerEpsilon));
            for (std::int64_t c = 0; c < divisor; ++c) row[c] *= inverse;
        }
    }

    void checkpoint(const Task& task, std::int64_t position) {
        if (problem_.sequence_checkpoints.empty()) return;
        for (const Checkpoint& c : problem_.sequence_checkpoints[task.sequence]) {
            if (c.position == position) {
                store_state<Real>(problem_, problem_.checkpoints, task, c.slot,
                                  {state_.data(), values_});
            }
        }
    }

    const Problem& problem_;
    Decay decay_kind_;
    Operands<Real> operands_;
    std::int64_t keys_, values_;
    AlignedVector<Real> state_;
    AlignedVector<Real> decay_;
    AlignedVector<Real> o_;
};

}  // namespace

template <class Real>
std::int64_t recurrent_workspace_bytes(const Problem& problem, std::int64_t value_tile) {
    constexpr std::int64_t kLanes = Simd<Real>::kLanes;
    const std::int64_t keys = round_up(problem.dims.K, kLanes);
    const std::int64_t values = round_up(state_columns(problem, value_tile), kLanes);
    const std::int64_t elements = problem.dims.K * values + kTile * (2 * values + 4 * keys);
    return elements * static_cast<std::int64_t>(sizeof(Real));
}

template <class Real>
void run_recurrent(const Problem& problem, const Plan& plan) {
    const OperandPrograms<Real> programs(problem);
    for_each_task(problem, plan.value_tile, plan.threads,
                  [&] { return RecurrentWorker<Real>(problem, plan, programs); });
}

template void run_recurrent<float>(const Problem&, const Plan&);
template void run_recurrent<double>(const Problem&, const Plan&);
template std::int64_t recurrent_workspace_bytes<float>(const Problem&, std::int64_t);
template std::int64_t recurrent_workspace_bytes<double>(const Problem&, std::int64_t);

}  // namespace sluice::cpu
