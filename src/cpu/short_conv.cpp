// Short causal convolution on the CPU: a ring of the last W inputs slides over the tokens, for a
// block of channels at a time.
#include "sluice/short_conv.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <span>

#include "core/convert.hpp"
#include "cpu/team.hpp"
#include "spec/bind_short_conv.hpp"

namespace sluice {

namespace {

constexpr int kBlockChannels = 256;
/// Rows are computed in whole multiples of this, padded with zeros: every channel then goes through
/// the same vector code wherever it stands, and gets the same bits.
constexpr int kLanes = 16;

/// One sequence, one block of channels.
template <class Real, int W>
class BlockTask {
  public:
    BlockTask(const ShortConvProblem& conv, std::int64_t first_channel)
        : conv_(conv),
          first_(first_channel),
          count_(std::min<std::int64_t>(kBlockChannels, conv.channels - first_channel)),
          lanes_((count_ + kLanes - 1) / kLanes * kLanes) {
        for (int w = 0; w < W; ++w) {
            load(conv.weight, w * conv.weight.stride_elements[1], 0, weight_.col(w));
        }
        if (conv.bias) load(*conv.bias, 0, 0, bias_);
    }

    void run(std::size_t n) {
        const Sequence& sequence = conv_.slots.sequences[n];
        if (sequence.skip) return store_padding(sequence);
        const std::int64_t length = sequence.length();
        const auto token_slots = token_writes(n, length);
        auto checkpoints = checkpoints_of(n);
        load_state(sequence.read_slot);
        for (std::int64_t i = 0; i < length; ++i) {
            store_checkpoints(checkpoints, i);
            run_token(sequence, i);
            if (!token_slots.empty()) store_state(conv_.final, token_slots[i], i + 1);
        }
        store_checkpoints(checkpoints, length);
        store_state(conv_.final, sequence.write_slot, length);
    }

  private:
    using Row = Eigen::Array<Real, kBlockChannels, 1>;
    using Rows = Eigen::Array<Real, kBlockChannels, W>;

    void run_token(const Sequence& sequence, std::int64_t i) {
        const std::int64_t t = sequence.begin + i;
        // The ring holds token i - W + 1 + w in column (i + w) % W. Reading x before writing y is
        // what makes y == x safe.
        load(conv_.x, row_offset(conv_.x, sequence.batch, t), 2, ring_.col((i + W - 1) % W));
        auto sum = sum_.head(lanes_);
        sum = bias_.head(lanes_);
        for (int w = 0; w < W; ++w) {
            sum += weight_.col(w).head(lanes_) * ring_.col((i + w) % W).head(lanes_);
        }
        if (conv_.activation == Activation::kSilu) sum /= Real(1) + (-sum).exp();
        store(conv_.y, row_offset(conv_.y, sequence.batch, t), 2, sum_);
    }
    void store_padding(const Sequence& sequence) {
        sum_.setZero();
        for (std::int64_t t = sequence.begin; t < sequence.end; ++t) {
            store(conv_.y, row_offset(conv_.y, sequence.batch, t), 2, sum_);
        }
    }

    [[nodiscard]] std::span<const std::int64_t> token_writes(std::size_t n,
                                                             std::int64_t length) const {
        const auto& slots = conv_.slots.token_writes;
        if (slots.empty()) return {};
        return std::span(slots).subspan(n * length, length);
    }
    [[nodiscard]] std::span<const Checkpoint> checkpoints_of(std::size_t n) const {
        const auto& checkpoints = conv_.slots.checkpoints;
        if (checkpoints.empty()) return {};
        return checkpoints[n];
    }
    /// Takes those at `position` off the front of the sorted list.
    void store_checkpoints(std::span<const Checkpoint>& checkpoints, std::int64_t position) const {
        while (!checkpoints.empty() && checkpoints.front().position == position) {
            store_state(conv_.checkpoints, checkpoints.front().slot, position);
            checkpoints = checkpoints.subspan(1);
        }
    }

    static std::int64_t row_offset(const TensorView& view, std::int64_t b, std::int64_t t) {
        return b * view.stride_elements[0] + t * view.stride_elements[1];
    }
    /// The block's channels of `view`, whose channel dimension is `dim`, behind `offset`.
    void load(const TensorView& view, std::int64_t offset, int dim, Eigen::Ref<Row> out) const {
        const std::int64_t stride = view.stride_elements[dim];
        load_row(view.data, view.dtype, offset + first_ * stride, stride, count_, out.data());
    }
    void store(const TensorView& view, std::int64_t offset, int dim,
               const Eigen::Ref<const Row>& in) const {
        const std::int64_t stride = view.stride_elements[dim];
        store_row(view.data, view.dtype, offset + first_ * stride, stride, count_, in.data());
    }
    void load_state(std::int64_t slot) {
        ring_.setZero();
        if (slot < 0) return;
        const TensorView& state = *conv_.initial;
        for (int j = 0; j < W - 1; ++j) {
            load(state, slot * state.stride_elements[0] + j * state.stride_elements[2], 1,
                 ring_.col(j));
        }
    }
    /// The state after `position` tokens.
    void store_state(const std::optional<TensorView>& pool, std::int64_t slot,
                     std::int64_t position) const {
        if (slot < 0) return;
        const TensorView& state = *pool;
        for (int j = 0; j < W - 1; ++j) {
            store(state, slot * state.stride_elements[0] + j * state.stride_elements[2], 1,
                  ring_.col((position + j) % W));
        }
    }

    const ShortConvProblem& conv_;
    std::int64_t first_;
    std::int64_t count_;
    std::int64_t lanes_;
    Rows weight_ = Rows::Zero();
    Row bias_ = Row::Zero();
    Rows ring_;
    Row sum_;
};

template <class Real, int W>
void run_all(const ShortConvProblem& conv) {
    const std::int64_t blocks = (conv.channels + kBlockChannels - 1) / kBlockChannels;
    const std::int64_t tasks = blocks * static_cast<std::int64_t>(conv.slots.sequences.size());
    const int threads = cpu::team_size(cpu::thread_count(conv.threads));
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (tasks > 1)
    for (std::int64_t task = 0; task < tasks; ++task) {
        BlockTask<Real, W>(conv, task % blocks * kBlockChannels).run(task / blocks);
    }
}

template <class Real>
void run_width(const ShortConvProblem& conv) {
    switch (conv.width) {
        case 2: return run_all<Real, 2>(conv);
        case 3: return run_all<Real, 3>(conv);
        default: return run_all<Real, 4>(conv);
    }
}

}  // namespace

void short_conv(const ShortConvArguments& arguments, const Options& options, Phase phase) {
    const ShortConvProblem conv = bind_short_conv(arguments, options, phase);
    if (conv.precision == Precision::kFloat64) {
        run_width<double>(conv);
    } else {
        run_width<float>(conv);
    }
}

}  // namespace sluice
