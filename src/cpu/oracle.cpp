#include "cpu/oracle.hpp"

#include <algorithm>
#include <vector>

#include "cpu/recurrence.hpp"
#include "cpu/state_io.hpp"

namespace sluice::cpu {

namespace {

constexpr std::int64_t kTile = 64;  // tokens evaluated together; a checkpoint's position divides

class OracleWorker {
  public:
    OracleWorker(const Problem& problem, const OperandPrograms<double>& programs)
        : problem_(problem),
          decay_(programs.decay),
          columns_(state_columns(problem, problem.dims.V)),
          operands_(problem, programs, kTile, problem.dims.V, 1),
          state_(static_cast<std::size_t>(problem.dims.K * columns_)),
          u_(static_cast<std::size_t>(columns_)),
          bs_(static_cast<std::size_t>(columns_)),
          o_(static_cast<std::size_t>(kTile * columns_)) {}

    void operator()(const Task& task) {
        const Sequence& sequence = problem_.sequences[task.sequence];
        const StateBuffer<double> state{state_.data(), columns_};
        if (!sequence.skip) load_state(problem_, task, sequence.read_slot, state);
        checkpoint(task, 0);
        for (std::int64_t begin = 0; begin < sequence.length(); begin += kTile) {
            const std::int64_t length = std::min(kTile, sequence.length() - begin);
            if (sequence.skip) {
                std::fill(o_.begin(), o_.end(), 0.0);
            } else {
                run_tile(task, sequence, begin, length);
            }
            store_output(problem_, task, sequence.batch, sequence.begin + begin, length, o_.data(),
                         columns_);
            checkpoint(task, begin + length);
        }
        if (!sequence.skip) store_final<double>(problem_, task, sequence.write_slot, state);
    }

  private:
    void run_tile(const Task& task, const Sequence& sequence, std::int64_t begin,
                  std::int64_t length) {
        operands_.load(task, sequence, begin, length);
        for (std::int64_t t = 0; t < length; ++t) {
            const Token token(operands_, decay_, t);
            double* o = o_.data() + t * columns_;
            advance(problem_.spec.update, token, problem_.dims.K, columns_, state_.data(),
                    u_.data(), bs_.data());
            read_out(token, problem_.scale, problem_.dims.K, columns_, state_.data(), o);
            if (problem_.spec.normalize) {
                for (std::int64_t j = 0; j < problem_.dims.V; ++j) {
                    o[j] /= o[problem_.dims.V] + kNormalizerEpsilon;
                }
            }
            if (!problem_.token_write_slots.empty()) {
                store_final<double>(
                    problem_, task,
                    problem_.token_write_slots[task.sequence * problem_.dims.T + begin + t],
                    {state_.data(), columns_});
            }
        }
        operands_.apply_output(o_.data());
    }

    void checkpoint(const Task& task, std::int64_t position) {
        if (problem_.sequence_checkpoints.empty()) return;
        for (const Checkpoint& c : problem_.sequence_checkpoints[task.sequence]) {
            if (c.position == position) {
                store_state<double>(problem_, problem_.checkpoints, task, c.slot,
                                    {state_.data(), columns_});
            }
        }
    }

    const Problem& problem_;
    Decay decay_;
    std::int64_t columns_;
    Operands<double> operands_;
    std::vector<double> state_, u_, bs_, o_;
};

}  // namespace

void run_oracle(const Problem& problem, int threads) {
    const OperandPrograms<double> programs(problem);
    for_each_task(problem, problem.dims.V, thread_count(threads),
                  [&] { return OracleWorker(problem, programs); });
}

}  // namespace sluice::cpu
