// Short causal convolution on the CPU: a ring of the last W inputs slides over the tokens, for a
// block of channels at a time.
#include "sluice/short_conv.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <Eigen/Core>
#include <algorithm>
#include <vector>

#include "core/convert.hpp"
#include "sluice/error.hpp"
#include "spec/bind_inputs.hpp"
#include "spec/indices.hpp"
#include "spec/memory.hpp"

namespace sluice {

namespace {

/// The arguments, checked, with the sequences and their slots.
struct BoundConv {
    TensorView x, weight, y;
    std::optional<TensorView> bias, initial, final;
    std::int64_t channels = 0;
    int width = 0;
    Activation activation = Activation::kNone;
    std::vector<Sequence> sequences;
};

struct Argument {
    const char* name;
    const TensorView* view;
};

void check_tensor(const Argument& argument, std::initializer_list<std::int64_t> shape,
                  const char* meaning) {
    const TensorView& view = *argument.view;
    if (!std::equal(shape.begin(), shape.end(), view.shape().begin(), view.shape().end())) {
        throw Error(
            ErrorCode::kShape, argument.name, describe(view),
            fmt::format("{} = {}", meaning, to_string(std::span(shape.begin(), shape.size()))));
    }
    if (!is_floating(view.dtype)) {
        throw Error(ErrorCode::kDType, argument.name, to_string(view.dtype),
                    "float32, bfloat16, float16 or float64");
    }
    if (view.device.kind != DeviceKind::kCpu) {
        throw Error(ErrorCode::kDevice, argument.name, to_string(view.device), "cpu");
    }
}

void check_extents(const ShortConvArguments& a) {
    if (a.x.rank != 3 || a.x.extents[2] < 1) {
        throw Error(ErrorCode::kShape, "x", describe(a.x), "[B, T, D] with D >= 1");
    }
    const std::int64_t width = a.weight.rank == 2 ? a.weight.extents[1] : 0;
    if (width < 2 || width > 4) {
        throw Error(ErrorCode::kShape, "weight", describe(a.weight),
                    fmt::format("[D, W] = [{}, W] with W from 2 to 4", a.x.extents[2]));
    }
}

void check_tensors(const ShortConvArguments& a, std::int64_t sequences) {
    const std::int64_t batch = a.x.extents[0];
    const std::int64_t tokens = a.x.extents[1];
    const std::int64_t channels = a.x.extents[2];
    const std::int64_t width = a.weight.extents[1];
    check_tensor({"x", &a.x}, {batch, tokens, channels}, "[B, T, D]");
    check_tensor({"weight", &a.weight}, {channels, width}, "[D, W]");
    check_tensor({"y", &a.y}, {batch, tokens, channels}, "[B, T, D]");
    if (a.bias) check_tensor({"bias", &*a.bias}, {channels}, "[D]");
    const auto check_state = [&](const char* name, const std::optional<TensorView>& state,
                                 const std::optional<TensorView>& slots) {
        if (!state) return;
        const std::int64_t rows = !slots ? sequences : state->rank > 0 ? state->extents[0] : 0;
        check_tensor({name, &*state}, {rows, channels, width - 1},
                     slots ? "[slots, D, W - 1]" : "[N, D, W - 1]");
    };
    check_state("initial", a.initial, a.read_slots);
    check_state("final", a.final, a.write_slots);
}

/// Without slots sequence n has slot n of the state, with them the slot they name.
std::vector<std::int64_t> slots_of(const char* name, const std::optional<TensorView>& slots,
                                   const char* state_name, const std::optional<TensorView>& state,
                                   std::int64_t sequences) {
    if (slots && !state) {
        throw Error(ErrorCode::kMissing, state_name, "nothing",
                    fmt::format("{} with {}", state_name, name));
    }
    std::vector<std::int64_t> result(static_cast<std::size_t>(sequences), -1);
    if (!state) return result;
    for (std::int64_t n = 0; n < sequences; ++n) result[n] = n;
    if (!slots) return result;
    const Indices indices(name, *slots);
    indices.require_shape({sequences}, "[N]");
    for (std::int64_t n = 0; n < sequences; ++n) result[n] = indices.slot(state->extents[0], n);
    return result;
}

void bind_slots(const ShortConvArguments& a, std::vector<Sequence>& sequences) {
    const auto count = static_cast<std::int64_t>(sequences.size());
    const auto read = slots_of("read_slots", a.read_slots, "initial", a.initial, count);
    const auto write = slots_of("write_slots", a.write_slots, "final", a.final, count);
    std::optional<Indices> mask;
    if (a.has_initial) {
        if (!a.initial) {
            throw Error(ErrorCode::kMissing, "initial", "nothing", "initial with has_initial");
        }
        mask.emplace("has_initial", *a.has_initial, Indices::Kind::kBool);
        mask->require_shape({count}, "[N]");
    }
    SlotUse use;
    for (std::int64_t n = 0; n < count; ++n) {
        sequences[n].read_slot = mask && (*mask)(n) == 0 ? -1 : read[n];
        sequences[n].write_slot = write[n];
        if (a.final) use.write(a.final->data, "write_slots", write[n], n);
    }
    for (std::int64_t n = 0; a.initial && n < count; ++n) {
        use.read(a.initial->data, "read_slots", sequences[n].read_slot, n);
    }
}

/// Each output has memory of its own; only x and y, and the two states, may share all of theirs.
void check_aliases(const ShortConvArguments& a) {
    std::vector<Argument> arguments = {{"x", &a.x}, {"weight", &a.weight}};
    const auto add = [&](const char* name, const std::optional<TensorView>& view) {
        if (view) arguments.push_back({name, &*view});
    };
    add("bias", a.bias);
    add("cu_seqlens", a.cu_seqlens);
    add("initial", a.initial);
    add("read_slots", a.read_slots);
    add("write_slots", a.write_slots);
    add("has_initial", a.has_initial);
    const auto check_output = [&](const Argument& output, const TensorView* in_place) {
        if (overlaps_itself(*output.view)) {
            throw Error(ErrorCode::kStride, output.name,
                        fmt::format("{} with strides {}", describe(*output.view),
                                    to_string(output.view->strides())),
                        "an output whose elements do not overlap");
        }
        for (const Argument& other : arguments) {
            const bool allowed = other.view == in_place && same_memory(*output.view, *other.view);
            if (!allowed && may_overlap(*output.view, *other.view)) {
                throw Error(ErrorCode::kAlias, output.name,
                            fmt::format("memory that overlaps {}", other.name),
                            other.view == in_place
                                ? fmt::format("exactly the memory of {}, or its own", other.name)
                                : "memory of its own");
            }
        }
    };
    check_output({"y", &a.y}, &a.x);
    if (!a.final) return;
    arguments.push_back({"y", &a.y});
    check_output({"final", &*a.final}, a.initial ? &*a.initial : nullptr);
}

BoundConv bind_conv(const ShortConvArguments& a, const Options& options) {
    if (options.threads < 0 || options.threads > 4096) {
        throw Error(ErrorCode::kValue, "threads", std::to_string(options.threads), "0 to 4096");
    }
    check_extents(a);
    BoundConv conv;
    conv.sequences = split_sequences(a.cu_seqlens, a.x.extents[0], a.x.extents[1]);
    check_tensors(a, static_cast<std::int64_t>(conv.sequences.size()));
    bind_slots(a, conv.sequences);
    check_aliases(a);
    conv.x = a.x;
    conv.weight = a.weight;
    conv.y = a.y;
    conv.bias = a.bias;
    conv.initial = a.initial;
    conv.final = a.final;
    conv.channels = a.x.extents[2];
    conv.width = static_cast<int>(a.weight.extents[1]);
    conv.activation = a.activation;
    return conv;
}

bool wants_double(const BoundConv& conv, Precision precision) {
    if (precision != Precision::kAuto) return precision == Precision::kFloat64;
    const auto is_double = [](const TensorView& view) { return view.dtype == DType::kFloat64; };
    return is_double(conv.x) && is_double(conv.weight) && is_double(conv.y) &&
           is_double(conv.bias.value_or(conv.x)) && is_double(conv.initial.value_or(conv.x)) &&
           is_double(conv.final.value_or(conv.x));
}

constexpr int kBlockChannels = 256;
/// Rows are computed in whole multiples of this, padded with zeros: every channel then goes through
/// the same vector code wherever it stands, and gets the same bits.
constexpr int kLanes = 16;

/// One sequence, one block of channels.
template <class Real, int W>
class BlockTask {
  public:
    BlockTask(const BoundConv& conv, std::int64_t first_channel)
        : conv_(conv),
          first_(first_channel),
          count_(std::min<std::int64_t>(kBlockChannels, conv.channels - first_channel)),
          lanes_((count_ + kLanes - 1) / kLanes * kLanes) {
        for (int w = 0; w < W; ++w) {
            load(conv.weight, w * conv.weight.stride_elements[1], 0, weight_.col(w));
        }
        if (conv.bias) load(*conv.bias, 0, 0, bias_);
    }

    void run(const Sequence& sequence) {
        load_state(sequence.read_slot);
        const std::int64_t length = sequence.length();
        for (std::int64_t i = 0; i < length; ++i) {
            const std::int64_t t = sequence.begin + i;
            // The ring holds token i - W + 1 + w in column (i + w) % W. Reading x before writing y
            // is what makes y == x safe.
            load(conv_.x, row_offset(conv_.x, sequence.batch, t), 2, ring_.col((i + W - 1) % W));
            auto sum = sum_.head(lanes_);
            sum = bias_.head(lanes_);
            for (int w = 0; w < W; ++w) {
                sum += weight_.col(w).head(lanes_) * ring_.col((i + w) % W).head(lanes_);
            }
            if (conv_.activation == Activation::kSilu) sum /= Real(1) + (-sum).exp();
            store(conv_.y, row_offset(conv_.y, sequence.batch, t), 2, sum_);
        }
        store_state(sequence.write_slot, length);
    }

  private:
    using Row = Eigen::Array<Real, kBlockChannels, 1>;
    using Rows = Eigen::Array<Real, kBlockChannels, W>;

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
    void store_state(std::int64_t slot, std::int64_t length) const {
        if (slot < 0) return;
        const TensorView& state = *conv_.final;
        for (int j = 0; j < W - 1; ++j) {
            store(state, slot * state.stride_elements[0] + j * state.stride_elements[2], 1,
                  ring_.col((length + j) % W));
        }
    }

    const BoundConv& conv_;
    std::int64_t first_;
    std::int64_t count_;
    std::int64_t lanes_;
    Rows weight_ = Rows::Zero();
    Row bias_ = Row::Zero();
    Rows ring_;
    Row sum_;
};

template <class Real, int W>
void run_all(const BoundConv& conv, int threads) {
    const std::int64_t blocks = (conv.channels + kBlockChannels - 1) / kBlockChannels;
    const std::int64_t tasks = blocks * static_cast<std::int64_t>(conv.sequences.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (tasks > 1)
    for (std::int64_t task = 0; task < tasks; ++task) {
        BlockTask<Real, W>(conv, task % blocks * kBlockChannels).run(conv.sequences[task / blocks]);
    }
}

template <class Real>
void run_width(const BoundConv& conv, int threads) {
    switch (conv.width) {
        case 2: return run_all<Real, 2>(conv, threads);
        case 3: return run_all<Real, 3>(conv, threads);
        default: return run_all<Real, 4>(conv, threads);
    }
}

}  // namespace

void short_conv(const ShortConvArguments& arguments, const Options& options) {
    const BoundConv conv = bind_conv(arguments, options);
    const int threads = options.threads > 0 ? options.threads : omp_get_max_threads();
    if (wants_double(conv, options.precision)) {
        run_width<double>(conv, threads);
    } else {
        // No product of this layer runs on operands rounded below float32, so kBFloat16 is float32.
        run_width<float>(conv, threads);
    }
}

}  // namespace sluice
