// Reverse mode of the oracle: states are kept at tile starts and recomputed inside a tile.
#include <algorithm>
#include <vector>

#include "cpu/oracle.hpp"
#include "cpu/recurrence.hpp"
#include "cpu/state_io.hpp"

namespace sluice::cpu {

namespace {

constexpr std::int64_t kTile = 32;

using Vector = std::vector<double>;

/// Gradients of a tile's operands, dense rows.
struct OperandGradients {
    OperandGradients(const Dims& dims, std::int64_t columns, Decay decay)
        : q(keys(dims)),
          k(keys(dims)),
          a(keys(dims)),
          b(keys(dims)),
          v(static_cast<std::size_t>(kTile * dims.V)),
          u(static_cast<std::size_t>(columns)),
          bs(static_cast<std::size_t>(columns)),
          beta(kTile),
          log_decay(decay == Decay::kVector ? keys(dims) : kTile) {}

    void clear() {
        for (Vector* x : {&q, &k, &a, &b, &v, &beta, &log_decay})
            std::fill(x->begin(), x->end(), 0.0);
    }

    Vector q, k, a, b;  // [kTile, K]
    Vector v;           // [kTile, V]
    Vector u, bs;       // [columns], of the current token
    Vector beta;        // [kTile]
    Vector log_decay;   // [kTile, K] or [kTile]

  private:
    static std::size_t keys(const Dims& dims) { return static_cast<std::size_t>(kTile * dims.K); }
};

class GradientWorker {
  public:
    GradientWorker(const Problem& problem, const OperandPrograms<double>& programs,
                   const std::vector<GradientSink>& sinks)
        : problem_(problem),
          programs_(programs),
          sinks_(sinks),
          keys_(problem.dims.K),
          values_(problem.dims.V),
          columns_(state_columns(problem, problem.dims.V)),
          size_(keys_ * columns_),
          operands_(problem, programs, kTile, values_, 1),
          grads_(problem.dims, columns_, programs.decay),
          states_(static_cast<std::size_t>((kTile + 1) * size_)),
          decayed_(static_cast<std::size_t>(size_)),
          u_(static_cast<std::size_t>(kTile * columns_)),
          bs_(static_cast<std::size_t>(kTile * columns_)),
          read_(static_cast<std::size_t>(kTile * columns_)),
          o_(static_cast<std::size_t>(kTile * values_)),
          grad_o_(static_cast<std::size_t>(kTile * values_)),
          grad_read_(static_cast<std::size_t>(columns_)) {}

    /// `grad_state` holds the gradient of the final state and becomes that of the initial state.
    void run(const Task& task, const TensorView& grad_o, Vector& grad_state) {
        const Sequence& sequence = problem_.sequences[task.sequence];
        const std::int64_t tiles = (sequence.length() + kTile - 1) / kTile;
        Vector starts(static_cast<std::size_t>((tiles + 1) * size_));
        load_state<double>(problem_, task, sequence.read_slot, {starts.data(), columns_});
        for (std::int64_t i = 0; i < tiles; ++i) {
            const std::int64_t length = tile_length(sequence, i);
            replay(task, sequence, i * kTile, length, starts.data() + i * size_);
            std::copy_n(states_.data() + length * size_, size_, starts.data() + (i + 1) * size_);
        }
        for (std::int64_t i = tiles - 1; i >= 0; --i) {
            const std::int64_t length = tile_length(sequence, i);
            replay(task, sequence, i * kTile, length, starts.data() + i * size_);
            reverse_tile(task, sequence, i * kTile, length, grad_o, grad_state);
        }
    }

    [[nodiscard]] std::int64_t state_size() const { return size_; }

  private:
    [[nodiscard]] static std::int64_t tile_length(const Sequence& sequence, std::int64_t i) {
        return std::min(kTile, sequence.length() - i * kTile);
    }

    double* state(std::int64_t t) { return states_.data() + t * size_; }  // before token t

    void replay(const Task& task, const Sequence& sequence, std::int64_t begin, std::int64_t length,
                const double* start) {
        operands_.load(task, sequence, begin, length);
        std::copy_n(start, size_, state(0));
        for (std::int64_t t = 0; t < length; ++t) {
            const Token token(operands_, programs_.decay, t);
            std::copy_n(state(t), size_, state(t + 1));
            advance(problem_.spec.update, token, keys_, columns_, state(t + 1),
                    u_.data() + t * columns_, bs_.data() + t * columns_);
            read_out(token, problem_.scale, keys_, columns_, state(t + 1),
                     read_.data() + t * columns_);
        }
    }

    void reverse_tile(const Task& task, const Sequence& sequence, std::int64_t begin,
                      std::int64_t length, const TensorView& grad_o, Vector& grad_state) {
        grads_.clear();
        Tile tile{sequence.batch, sequence.begin + begin, length, task.head, 0, values_};
        reverse_output(tile, grad_o);
        for (std::int64_t t = length - 1; t >= 0; --t) reverse_token(t, grad_state.data());
        const std::span<const GradientSink> sinks(sinks_);
        programs_.v.backward(tile, grads_.v.data(), sinks, nullptr, nullptr);
        tile.channels = keys_;
        programs_.q.backward(tile, grads_.q.data(), sinks, nullptr, nullptr);
        programs_.k.backward(tile, grads_.k.data(), sinks, nullptr, nullptr);
        if (programs_.rank_one_a) {
            programs_.rank_one_a->backward(tile, grads_.a.data(), sinks, nullptr, nullptr);
            programs_.rank_one_b->backward(tile, grads_.b.data(), sinks, nullptr, nullptr);
        }
        if (programs_.decay != Decay::kVector) tile.channels = 1;
        if (programs_.log_decay) {
            programs_.log_decay->backward(tile, grads_.log_decay.data(), sinks, nullptr, nullptr);
        }
        tile.channels = 1;
        if (programs_.beta) {
            programs_.beta->backward(tile, grads_.beta.data(), sinks, nullptr, nullptr);
        }
    }

    /// Through the output stage: grad_o_ becomes the gradient of the stage's input.
    void reverse_output(const Tile& tile, const TensorView& grad_o) {
        Vector given(static_cast<std::size_t>(tile.length * values_));
        const auto& stride = grad_o.stride_elements;
        for (std::int64_t t = 0; t < tile.length; ++t) {
            load_row(grad_o.data, grad_o.dtype,
                     tile.batch * stride[0] + (tile.begin + t) * stride[1] + tile.head * stride[2],
                     stride[3], values_, given.data() + t * values_);
            const double* read = read_.data() + t * columns_;
            const double divisor =
                problem_.spec.normalize ? read[values_] + kNormalizerEpsilon : 1.0;
            for (std::int64_t j = 0; j < values_; ++j) o_[t * values_ + j] = read[j] / divisor;
        }
        std::fill(grad_o_.begin(), grad_o_.end(), 0.0);
        programs_.output.backward(tile, given.data(), sinks_, o_.data(), grad_o_.data());
    }

    void reverse_read(std::int64_t t) {
        const double* read = read_.data() + t * columns_;
        const double* grad = grad_o_.data() + t * values_;
        if (!problem_.spec.normalize) {
            std::copy_n(grad, values_, grad_read_.data());
            return;
        }
        const double divisor = read[values_] + kNormalizerEpsilon;
        double grad_divisor = 0;
        for (std::int64_t j = 0; j < values_; ++j) {
            grad_read_[j] = grad[j] / divisor;
            grad_divisor -= grad[j] * read[j] / (divisor * divisor);
        }
        grad_read_[values_] = grad_divisor;
    }

    void reverse_token(std::int64_t t, double* grad_state) {
        const Update update = problem_.spec.update;
        const Token token(operands_, programs_.decay, t);
        const double* before = state(t);
        const double* after = state(t + 1);
        const double* u = u_.data() + t * columns_;
        const double* bs = bs_.data() + t * columns_;
        reverse_read(t);
        std::fill(grads_.u.begin(), grads_.u.end(), 0.0);
        std::fill(grads_.bs.begin(), grads_.bs.end(), 0.0);
        // o = scale S^T q;  S = (D S_before) + k u^T + a bs^T
        for (std::int64_t i = 0; i < keys_; ++i) {
            double gq = 0, gk = 0, ga = 0;
            for (std::int64_t j = 0; j < columns_; ++j) {
                gq += grad_read_[j] * after[i * columns_ + j];
                double& g = grad_state[i * columns_ + j];
                g += problem_.scale * token.q[i] * grad_read_[j];
                gk += g * u[j];
                grads_.u[j] += g * token.k[i];
                if (update == Update::kRankOne) {
                    ga += g * bs[j];
                    grads_.bs[j] += g * token.a[i];
                }
            }
            grads_.q[t * keys_ + i] = problem_.scale * gq;
            grads_.k[t * keys_ + i] = gk;
            grads_.a[t * keys_ + i] = ga;
        }
        if (update == Update::kDelta) reverse_delta(t, token, before, grad_state);
        for (std::int64_t j = 0; j < values_; ++j) grads_.v[t * values_ + j] = grads_.u[j];
        // S -> D S, and b^T S
        for (std::int64_t i = 0; i < keys_; ++i) {
            const double decay = token.decay(i);
            double gg = 0, gb = 0;
            for (std::int64_t j = 0; j < columns_; ++j) {
                double& g = grad_state[i * columns_ + j];
                gg += g * decay * before[i * columns_ + j];
                g *= decay;
                if (update == Update::kRankOne) {
                    gb += grads_.bs[j] * before[i * columns_ + j];
                    g += token.b[i] * grads_.bs[j];
                }
            }
            grads_.b[t * keys_ + i] = gb;
            if (token.log_decay != nullptr) {
                grads_.log_decay[token.vector_decay ? t * keys_ + i : t] += gg;
            }
        }
    }

    /// u = beta (v - w), w = (D S)^T k: grads_.u becomes the gradient of v.
    void reverse_delta(std::int64_t t, const Token& token, const double* before,
                       double* grad_state) {
        Vector w(static_cast<std::size_t>(columns_), 0.0);
        for (std::int64_t i = 0; i < keys_; ++i) {
            const double decay = token.decay(i);
            for (std::int64_t j = 0; j < columns_; ++j) {
                decayed_[i * columns_ + j] = decay * before[i * columns_ + j];
                w[j] += token.k[i] * decayed_[i * columns_ + j];
            }
        }
        for (std::int64_t j = 0; j < columns_; ++j) {
            grads_.beta[t] += grads_.u[j] * (token.v[j] - w[j]);
            grads_.u[j] *= token.beta;
        }
        for (std::int64_t i = 0; i < keys_; ++i) {
            double gk = 0;
            for (std::int64_t j = 0; j < columns_; ++j) {
                gk -= grads_.u[j] * decayed_[i * columns_ + j];
                grad_state[i * columns_ + j] -= token.k[i] * grads_.u[j];
            }
            grads_.k[t * keys_ + i] += gk;
        }
    }

    const Problem& problem_;
    const OperandPrograms<double>& programs_;
    const std::vector<GradientSink>& sinks_;
    std::int64_t keys_, values_, columns_, size_;
    Operands<double> operands_;
    OperandGradients grads_;
    Vector states_;         // before tokens 0 ... kTile of the tile
    Vector decayed_;        // D S
    Vector u_, bs_, read_;  // [kTile, columns]
    Vector o_, grad_o_;     // [kTile, V]
    Vector grad_read_;      // [columns]
};

void require_shape(const char* name, const TensorView& view,
                   std::initializer_list<std::int64_t> shape) {
    if (!std::equal(shape.begin(), shape.end(), view.shape().begin(), view.shape().end())) {
        throw Error(ErrorCode::kShape, name, to_string(view.shape()),
                    to_string(std::span(shape.begin(), shape.size())));
    }
    if (!is_floating(view.dtype)) {
        throw Error(ErrorCode::kDType, name, to_string(view.dtype), "a floating type");
    }
}

/// A dense state tensor in the problem's layout as a BoundState.
BoundState dense_state(const Problem& problem, const TensorView& view) {
    const bool value_first = problem.state_layout == StateLayout::kValueFirst;
    BoundState s;
    s.data = view.data;
    s.dtype = view.dtype;
    s.slots = view.extents[0];
    s.stride_slot = view.stride_elements[0];
    s.stride_head = view.stride_elements[1];
    s.stride_k = view.stride_elements[value_first ? 3 : 2];
    s.stride_v = view.stride_elements[value_first ? 2 : 3];
    return s;
}

/// Loads the gradient of the final state as if it were an initial one.
void load_grad_state(const Problem& problem, const Task& task, const TensorView& grad,
                     std::int64_t columns, Vector& out) {
    const BoundState s = dense_state(problem, grad);
    for (std::int64_t k = 0; k < problem.dims.K; ++k) {
        load_row(s.data, s.dtype,
                 task.sequence * s.stride_slot + task.head * s.stride_head + k * s.stride_k,
                 s.stride_v, problem.dims.V, out.data() + k * columns);
    }
}

}  // namespace

std::map<std::string, Tensor> oracle_gradient(const Problem& problem, const NamedTensors& inputs,
                                              const TensorView& grad_o,
                                              const std::optional<TensorView>& grad_final_state) {
    const Dims& d = problem.dims;
    require_shape("grad_o", grad_o, {d.B, d.T, d.HV, d.V});
    const bool value_first = problem.state_layout == StateLayout::kValueFirst;
    if (grad_final_state) {
        require_shape("grad_final_state", *grad_final_state,
                      {d.N, d.HV, value_first ? d.V : d.K, value_first ? d.K : d.V});
    }
    std::map<std::string, Tensor> result;
    std::vector<GradientSink> sinks;
    for (const Input& input : problem.spec.inputs) {
        const auto given = std::find_if(inputs.begin(), inputs.end(),
                                        [&](const auto& item) { return item.first == input.name; });
        Tensor& grad = result[input.name] = Tensor::zeros(DType::kFloat64, given->second.shape());
        GradientSink sink;
        sink.data = static_cast<double*>(grad.view().data);
        std::int64_t stride = 1;
        for (auto axis = input.axes.rbegin(); axis != input.axes.rend(); ++axis) {
            sink.stride[static_cast<std::size_t>(*axis)] = stride;
            stride *= d.extent(*axis);
        }
        sinks.push_back(sink);
    }
    if (problem.initial) {
        result["initial_state"] = Tensor::zeros(
            DType::kFloat64, {d.N, d.HV, value_first ? d.V : d.K, value_first ? d.K : d.V});
    }
    const OperandPrograms<double> programs(problem);
    GradientWorker worker(problem, programs, sinks);
    const std::int64_t columns = state_columns(problem, d.V);
    Vector grad_state(static_cast<std::size_t>(worker.state_size()));
    for (std::int64_t n = 0; n < d.N; ++n) {
        for (std::int64_t head = 0; head < d.HV; ++head) {
            const Task task{n, head, 0, d.V};
            std::fill(grad_state.begin(), grad_state.end(), 0.0);
            if (grad_final_state) {
                load_grad_state(problem, task, *grad_final_state, columns, grad_state);
            }
            worker.run(task, grad_o, grad_state);
            // A sequence that starts from zero does not depend on the state.
            if (problem.initial && problem.sequences[n].read_slot >= 0) {
                store_state<double>(problem, dense_state(problem, result["initial_state"]), task, n,
                                    {grad_state.data(), columns});
            }
        }
    }
    return result;
}

}  // namespace sluice::cpu
