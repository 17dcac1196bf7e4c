#include "cpu/operands.hpp"

#include <algorithm>

#include "cpu/state_io.hpp"

namespace sluice::cpu {

template <class Real>
OperandPrograms<Real>::OperandPrograms(const Problem& problem)
    : q(problem.spec.q, problem, Axis::kK),
      k(problem.spec.k, problem, Axis::kK),
      v(problem.spec.v, problem, Axis::kV),
      output(problem.spec.output, problem, Axis::kV),
      decay(problem.spec.decay()),
      normalize(problem.spec.normalize) {
    const Spec& spec = problem.spec;
    if (decay != Decay::kNone) {
        log_decay.emplace(*spec.log_decay, problem, decay == Decay::kVector ? Axis::kK : Axis::kT);
    }
    if (spec.beta) beta.emplace(*spec.beta, problem, Axis::kT);
    if (spec.rank_one_a) rank_one_a.emplace(*spec.rank_one_a, problem, Axis::kK);
    if (spec.rank_one_b) rank_one_b.emplace(*spec.rank_one_b, problem, Axis::kK);
}

template <class Real>
std::size_t OperandPrograms<Real>::scratch_elements(const Problem& problem,
                                                    std::int64_t length) const {
    const std::int64_t keys = problem.dims.K;
    const std::int64_t values = problem.dims.V;
    std::size_t most =
        std::max({q.scratch_elements(length, keys), k.scratch_elements(length, keys),
                  v.scratch_elements(length, values), output.scratch_elements(length, values)});
    for (const auto* program : {&log_decay, &rank_one_a, &rank_one_b}) {
        if (*program) most = std::max(most, (*program)->scratch_elements(length, keys));
    }
    if (beta) most = std::max(most, beta->scratch_elements(length, 1));
    return most;
}

template <class Real>
Operands<Real>::Operands(const Problem& problem, const OperandPrograms<Real>& programs,
                         std::int64_t length, std::int64_t value_tile, std::int64_t row_multiple)
    : problem_(problem),
      programs_(programs),
      key_stride_(round_up(problem.dims.K, row_multiple)),
      value_stride_(round_up(state_columns(problem, value_tile), row_multiple)),
      scratch_(programs.scratch_elements(problem, length)) {
    const auto keys = static_cast<std::size_t>(length * key_stride_);
    q.resize(keys);
    k.resize(keys);
    if (programs.rank_one_a) {
        a.resize(keys);
        b.resize(keys);
    }
    v.resize(static_cast<std::size_t>(length * value_stride_));
    if (programs.decay == Decay::kVector) {
        log_decay.resize(keys);
    } else if (programs.decay != Decay::kNone) {
        log_decay.resize(static_cast<std::size_t>(length));
    }
    if (programs.beta) beta.resize(static_cast<std::size_t>(length));
}

template <class Real>
void Operands<Real>::load(const Task& task, const Sequence& sequence, std::int64_t begin,
                          std::int64_t length) {
    tile_ = {sequence.batch, sequence.begin + begin, length, task.head, 0, problem_.dims.K};
    programs_.q.run(tile_, scratch_, q.data(), key_stride_);
    programs_.k.run(tile_, scratch_, k.data(), key_stride_);
    if (programs_.rank_one_a) {
        programs_.rank_one_a->run(tile_, scratch_, a.data(), key_stride_);
        programs_.rank_one_b->run(tile_, scratch_, b.data(), key_stride_);
    }
    if (programs_.decay == Decay::kVector) {
        programs_.log_decay->run(tile_, scratch_, log_decay.data(), key_stride_);
    }
    tile_.channels = 1;
    if (programs_.decay == Decay::kScalar || programs_.decay == Decay::kConstant) {
        programs_.log_decay->run(tile_, scratch_, log_decay.data(), 1);
    }
    if (programs_.beta) programs_.beta->run(tile_, scratch_, beta.data(), 1);
    tile_.channel_begin = task.value_begin;
    tile_.channels = task.values();
    // A narrow last tile leaves columns of a wider one behind.
    std::fill(v.begin(), v.end(), Real(0));
    programs_.v.run(tile_, scratch_, v.data(), value_stride_);
    if (programs_.normalize) {
        for (std::int64_t t = 0; t < length; ++t) v[t * value_stride_ + task.values()] = Real(1);
    }
}

template <class Real>
void Operands<Real>::apply_output(Real* o) {
    programs_.output.run(tile_, scratch_, o, value_stride_, o);
}

template struct OperandPrograms<float>;
template struct OperandPrograms<double>;
template class Operands<float>;
template class Operands<double>;

}  // namespace sluice::cpu
