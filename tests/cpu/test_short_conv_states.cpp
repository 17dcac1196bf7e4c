// The short convolution's states: pools and slots, states at positions, decoding, speculation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>

#include "core/convert.hpp"
#include "sluice/short_conv.hpp"
#include "support/guarded.hpp"
#include "support/metrics.hpp"
#include "support/plain.hpp"

namespace sluice::test {
namespace {

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64};

double at(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t k) {
    return load_element(
        view.data, view.dtype,
        i * view.stride_elements[0] + j * view.stride_elements[1] + k * view.stride_elements[2]);
}

TensorView row(const TensorView& view, std::int64_t n) { return view.sliced(0, n, n + 1); }

// ------------------------------------------------------------------------------------------------
// The definition, as a loop over tokens and taps.

/// A call's sequence, and every state that it must leave behind: (memory, slot) -> after how many
/// tokens.
struct Expected {
    Sequence sequence;
    std::map<std::pair<const void*, std::int64_t>, std::int64_t> states;
};

/// What a call read, copied before it ran.
struct Loop {
    Tensor x, weight, bias, initial;
    Activation activation;

    explicit Loop(const ShortConvArguments& a)
        : x(Tensor::copy_of(a.x, DType::kFloat64)),
          weight(Tensor::copy_of(a.weight, DType::kFloat64)),
          bias(Tensor::copy_of(*a.bias, DType::kFloat64)),
          initial(Tensor::copy_of(*a.initial, DType::kFloat64)),
          activation(a.activation) {}

    [[nodiscard]] std::int64_t channels() const { return weight.shape()[0]; }
    [[nodiscard]] std::int64_t width() const { return weight.shape()[1]; }
    /// Input i of a sequence; those before its start are in the state.
    [[nodiscard]] double input(const Sequence& s, std::int64_t i, std::int64_t c) const {
        if (i >= 0) return at(x, s.batch, s.begin + i, c);
        return s.read_slot < 0 ? 0 : at(initial, s.read_slot, c, width() - 1 + i);
    }
    void expect_output(const Sequence& s, const TensorView& y) const {
        for (std::int64_t i = 0; i < s.length(); ++i) {
            for (std::int64_t c = 0; c < channels(); ++c) {
                double sum = bias.elements<double>()[static_cast<std::size_t>(c)];
                double magnitude = std::abs(sum);
                for (std::int64_t w = 0; w < width(); ++w) {
                    const double term = input(s, i - width() + 1 + w, c) * at(weight, c, w, 0);
                    sum += term;
                    magnitude += std::abs(term);
                }
                if (activation == Activation::kSilu) sum /= 1 + std::exp(-sum);
                if (s.skip) sum = magnitude = 0;
                const double actual = at(y, s.batch, s.begin + i, c);
                ASSERT_LE(std::abs(actual - sum), bound(y.dtype, sum, magnitude))
                    << "token " << i << " channel " << c << ": " << actual << ", not " << sum;
            }
        }
    }
    void expect_state(const Sequence& s, std::int64_t position, const TensorView& state) const {
        for (std::int64_t c = 0; c < channels(); ++c) {
            for (std::int64_t j = 0; j < width() - 1; ++j) {
                ASSERT_EQ(at(state, 0, c, j), input(s, position - (width() - 1) + j, c))
                    << "after token " << position << " channel " << c << " input " << j;
            }
        }
    }

  private:
    /// One rounding to the dtype, and float32 (float64) arithmetic.
    static double bound(DType dtype, double value, double magnitude) {
        switch (dtype) {
            case DType::kFloat64: return 1e-15 * magnitude;
            case DType::kBFloat16: return 6e-7 * magnitude + 0x1p-8 * std::abs(value);
            case DType::kFloat16:
                return 6e-7 * magnitude + std::max(0x1p-11 * std::abs(value), 0x1p-25);
            default: return 6e-7 * magnitude;
        }
    }
};

// ------------------------------------------------------------------------------------------------
// Random calls: everything that the state contract lets a caller combine.

class Trial {
  public:
    explicit Trial(std::uint64_t seed) : random_(seed) {
        dtype_ = kFloats[random_.below(4)];
        width_ = 2 + random_.below(3);
        channels_ = random_.pick<std::int64_t>({1, 5, 40, 300});
        phase_ = random_.chance(0.5) ? Phase::kDecode : Phase::kPrefill;
        make_sequences();
        make_tensors();
        make_writes();
        make_reads();
    }

    void run() {
        // A padding row's inputs are whatever the batch buffer held.
        for (const Expected& e : expected_) {
            const Sequence& s = e.sequence;
            if (!s.skip) continue;
            const TensorView tokens = row(arguments_.x, s.batch).sliced(1, s.begin, s.end);
            assign(tokens, poisoned(dtype_, {1, s.length(), channels_}));
        }
        const Loop loop(arguments_);
        short_conv(arguments_, {}, phase_);
        std::map<const void*, std::vector<TensorView>> written;
        for (std::size_t n = 0; n < expected_.size(); ++n) {
            const Expected& e = expected_[n];
            SCOPED_TRACE(testing::Message() << "sequence " << n << " of " << expected_.size());
            loop.expect_output(e.sequence, arguments_.y);
            for (const auto& [where, position] : e.states) {
                const TensorView state = row(pool_at(where.first), where.second);
                loop.expect_state(e.sequence, position, state);
                written[where.first].push_back(state);
            }
            if (testing::Test::HasFatalFailure()) return;
        }
        for (const Guarded& pool : pools_) {
            EXPECT_TRUE(pool.untouched_outside(written[pool.view().data]));
        }
        if (arguments_.y.data != arguments_.x.data) {
            EXPECT_TRUE(y_->untouched_outside({arguments_.y}));
        }
    }

    [[nodiscard]] Phase phase() const { return phase_; }
    [[nodiscard]] const ShortConvArguments& arguments() const { return arguments_; }
    [[nodiscard]] bool has_padding() const {
        return std::any_of(expected_.begin(), expected_.end(),
                           [](const Expected& e) { return e.sequence.skip; });
    }
    [[nodiscard]] std::string description() const {
        return std::string(sluice::to_string(phase_)) + " " + sluice::to_string(dtype_) + " " +
               sluice::to_string(arguments_.x.shape()) + " W" + std::to_string(width_) + " N" +
               std::to_string(expected_.size());
    }

  private:
    Strides any_strides() { return static_cast<Strides>(random_.below(kNumStrides - 1)); }
    Guarded tensor(std::vector<std::int64_t> shape) {
        return Guarded::input(normal_values(std::move(shape), 1, random_.next()), dtype_,
                              any_strides(), Poison::kNaN);
    }
    TensorView keep(const Guarded& guarded) {
        memory_.push_back(guarded);
        return guarded.view();
    }
    TensorView pool(std::int64_t slots) {
        pools_.push_back(tensor({slots, channels_, width_ - 1}));
        return pools_.back().view();
    }
    [[nodiscard]] TensorView pool_at(const void* data) const {
        for (const Guarded& pool : pools_) {
            if (pool.view().data == data) return pool.view();
        }
        throw std::logic_error("no such pool");
    }
    TensorView indices(const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& values) {
        return keep(
            Guarded::indices(shape, values, random_.chance(0.5) ? DType::kInt32 : DType::kInt64));
    }
    std::int64_t some_length() {
        return phase_ == Phase::kDecode
                   ? random_.below(5)
                   : random_.pick<std::int64_t>({0, 1, 2, 5, 63, 64, 65, 128, 140});
    }
    [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(expected_.size()); }

    void make_sequences() {
        expected_.resize(static_cast<std::size_t>(random_.below(5)));
        packed_ = random_.chance(0.5);
        batch_ = packed_ ? 1 : count();
        tokens_ = packed_ ? 0 : some_length();
        std::vector<std::int64_t> offsets = {0};
        for (std::int64_t n = 0; n < count(); ++n) {
            Sequence& s = expected_[static_cast<std::size_t>(n)].sequence;
            s.batch = packed_ ? 0 : n;
            s.begin = packed_ ? offsets.back() : 0;
            s.end = s.begin + (packed_ ? some_length() : tokens_);
            offsets.push_back(s.end);
        }
        if (!packed_) return;
        tokens_ = offsets.back();
        arguments_.cu_seqlens = indices({count() + 1}, offsets);
    }

    void make_tensors() {
        arguments_.x = keep(tensor({batch_, tokens_, channels_}));
        arguments_.weight = keep(tensor({channels_, width_}));
        arguments_.bias = keep(tensor({channels_}));
        y_ = Guarded::output({batch_, tokens_, channels_}, dtype_, any_strides());
        arguments_.y = random_.chance(0.3) ? arguments_.x : y_->view();
        arguments_.activation = random_.chance(0.5) ? Activation::kSilu : Activation::kNone;
        // Every sequence may write a slot after each of four tokens, at four positions and at its
        // end, and read another one.
        const std::int64_t slots = 10 * count() + 3;
        unused_.resize(static_cast<std::size_t>(slots));
        std::iota(unused_.begin(), unused_.end(), 0);
        random_.shuffle(unused_);
        arguments_.initial = pool(slots);
        arguments_.final = random_.chance(0.5) ? *arguments_.initial : pool(slots);
        if (phase_ == Phase::kPrefill && random_.chance(0.7)) {
            arguments_.checkpoints = random_.chance(0.3)   ? *arguments_.initial
                                     : random_.chance(0.5) ? *arguments_.final
                                                           : pool(slots);
        }
    }

    /// A slot that nothing else writes, or -1.
    std::int64_t next_slot() {
        if (random_.chance(0.3)) return -1;
        const std::int64_t slot = unused_.back();
        unused_.pop_back();
        return slot;
    }
    static void expect(Expected& e, const TensorView& pool, std::int64_t slot,
                       std::int64_t position) {
        if (slot >= 0) e.states[{pool.data, slot}] = position;
    }

    void make_writes() {
        std::vector<std::int64_t> slots;
        const bool matrix = phase_ == Phase::kDecode && !packed_ && random_.chance(0.5);
        for (Expected& e : expected_) {
            const std::int64_t length = e.sequence.length();
            const bool pads = random_.chance(0.2);
            for (std::int64_t t = 0; t < (matrix ? length : 1); ++t) {
                slots.push_back(pads ? -1 : next_slot());
                expect(e, *arguments_.final, slots.back(), matrix ? t + 1 : length);
            }
        }
        arguments_.write_slots =
            matrix ? indices({count(), tokens_}, slots) : indices({count()}, slots);
        if (arguments_.checkpoints) make_checkpoints();
    }

    void make_checkpoints() {
        std::vector<std::array<std::int64_t, 3>> list;
        for (std::int64_t n = 0; n < count(); ++n) {
            Expected& e = expected_[static_cast<std::size_t>(n)];
            for (const std::int64_t position : {0, 64, 128, 64}) {
                if (position > e.sequence.length() || random_.chance(0.3)) continue;
                list.push_back({n, position, next_slot()});
                expect(e, *arguments_.checkpoints, list.back()[2], position);
            }
        }
        random_.shuffle(list);
        const auto column = [&](std::size_t i) {
            std::vector<std::int64_t> values;
            for (const auto& entry : list) values.push_back(entry[i]);
            return indices({static_cast<std::int64_t>(list.size())}, values);
        };
        arguments_.checkpoint_sequences = column(0);
        arguments_.checkpoint_positions = column(1);
        arguments_.checkpoint_slots = column(2);
    }

    /// A slot that the sequence itself writes, or one that nobody does, or -1.
    std::int64_t read_slot(const Expected& e) {
        if (random_.chance(0.3)) return -1;
        if (!e.states.empty() && random_.chance(0.5)) return e.states.begin()->first.second;
        return random_.pick(unused_);
    }

    void make_reads() {
        const bool matrix = phase_ == Phase::kDecode && random_.chance(0.5);
        const std::int64_t columns = matrix ? 1 + random_.below(3) : 1;
        const bool counts = matrix && random_.chance(0.7);
        const bool masks = random_.chance(0.3);
        std::vector<std::int64_t> slots, accepted, mask;
        for (Expected& e : expected_) {
            accepted.push_back(counts ? 1 + random_.below(columns) : 1);
            const std::int64_t read = read_slot(e);
            for (std::int64_t m = 1; m <= columns; ++m) {
                slots.push_back(m == accepted.back() ? read : random_.below(3));
            }
            mask.push_back(masks && random_.chance(0.5) ? 0 : 1);
            e.sequence.read_slot = mask.back() == 0 ? -1 : read;
            e.sequence.skip = phase_ == Phase::kDecode && read < 0 && e.states.empty();
        }
        arguments_.read_slots =
            matrix ? indices({count(), columns}, slots) : indices({count()}, slots);
        if (counts) arguments_.accepted = indices({count()}, accepted);
        if (masks) {
            arguments_.has_initial = keep(Guarded::indices({count()}, mask, DType::kBool));
        }
    }

    Random random_;
    DType dtype_ = DType::kFloat32;
    std::int64_t width_ = 0, channels_ = 0, batch_ = 0, tokens_ = 0;
    Phase phase_ = Phase::kPrefill;
    bool packed_ = false;
    ShortConvArguments arguments_;
    std::optional<Guarded> y_;
    std::vector<Guarded> memory_, pools_;
    std::vector<std::int64_t> unused_;
    std::vector<Expected> expected_;
};

TEST(ShortConvStates, RandomCallsMatchTheLoopAndTouchNothingElse) {
    std::map<std::string, int> seen;
    for (std::uint64_t seed = 0; seed < 600; ++seed) {
        Trial trial(seed);
        SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << trial.description());
        trial.run();
        if (HasFailure()) return;
        const ShortConvArguments& a = trial.arguments();
        seen["padding"] += trial.has_padding();
        seen["checkpoints"] += a.checkpoints.has_value();
        seen["accepted"] += a.accepted.has_value();
        seen["a slot per token"] += a.write_slots->rank == 2;
        seen["one pool"] += a.final->data == a.initial->data;
        seen["packed decode"] += a.cu_seqlens && trial.phase() == Phase::kDecode;
    }
    for (const auto& [what, count] : seen) EXPECT_GT(count, 30) << what;
}

// ------------------------------------------------------------------------------------------------
// Properties, bit for bit.

/// A call on contiguous memory, and its results.
struct Layer {
    Tensor x, weight, bias, initial, y, final;

    Layer(std::int64_t batch, std::int64_t tokens, DType dtype, std::int64_t width,
          std::int64_t channels = 300) {
        std::uint64_t seed = 1;
        const auto normal = [&](std::vector<std::int64_t> shape) {
            const Guarded values = Guarded::input(normal_values(std::move(shape), 1, seed++), dtype,
                                                  Strides::kContiguous, Poison::kNaN);
            return Tensor::copy_of(values.view(), dtype);
        };
        x = normal({batch, tokens, channels});
        weight = normal({channels, width});
        bias = normal({channels});
        initial = normal({batch, channels, width - 1});
        y = poisoned(dtype, {batch, tokens, channels});
        final = poisoned(dtype, {batch, channels, width - 1});
    }
    [[nodiscard]] ShortConvArguments arguments() const {
        ShortConvArguments a;
        a.x = x;
        a.weight = weight;
        a.bias = bias;
        a.initial = initial;
        a.y = y;
        a.final = final;
        a.activation = Activation::kSilu;
        return a;
    }
    [[nodiscard]] Tensor pool(std::int64_t slots) const {
        return poisoned(x.dtype(), {slots, initial.shape()[1], initial.shape()[2]});
    }
};

/// For all types and widths.
template <class F>
void for_each_kind(F&& f) {
    for (const DType dtype : kFloats) {
        for (const std::int64_t width : {2, 3, 4}) {
            SCOPED_TRACE(testing::Message() << to_string(dtype) << " W" << width);
            f(dtype, width);
        }
    }
}

TEST(ShortConvStates, ContinuingFromACheckpointEqualsTheWhole) {
    for_each_kind([](DType dtype, std::int64_t width) {
        const Layer whole(2, 150, dtype, width);
        const Tensor pool = whole.pool(5);
        const Tensor sequences = index_tensor({1, 0, 1, 0});
        const Tensor positions = index_tensor({64, 128, 128, 64});
        const Tensor slots = index_tensor({4, 0, 3, 1});
        ShortConvArguments a = whole.arguments();
        a.checkpoints = pool;
        a.checkpoint_sequences = sequences;
        a.checkpoint_positions = positions;
        a.checkpoint_slots = slots;
        short_conv(a);
        for (const auto& [position, read] :
             {std::pair<std::int64_t, Tensor>{64, index_tensor({1, 4})},
              std::pair<std::int64_t, Tensor>{128, index_tensor({0, 3})}}) {
            const Layer rest(2, 150 - position, dtype, width);
            ShortConvArguments b = rest.arguments();
            b.x = whole.x.view().sliced(1, position, 150);
            b.initial = pool;
            b.read_slots = read;
            short_conv(b);
            EXPECT_TRUE(same_bits(rest.y, whole.y.view().sliced(1, position, 150))) << position;
            EXPECT_TRUE(same_bits(rest.final, whole.final)) << position;
        }
    });
}

TEST(ShortConvStates, DecodeTokenByTokenEqualsPrefill) {
    for_each_kind([](DType dtype, std::int64_t width) {
        const Layer whole(3, 7, dtype, width);
        short_conv(whole.arguments());
        const Layer steps(3, 7, dtype, width);
        const Tensor pool = steps.pool(6);
        const std::int64_t slots[] = {5, 0, 3};
        for (std::int64_t n = 0; n < 3; ++n) assign(row(pool, slots[n]), row(steps.initial, n));
        const Tensor indices = index_tensor({5, 0, 3});
        for (std::int64_t t = 0; t < 7; ++t) {
            ShortConvArguments a = steps.arguments();
            a.x = steps.x.view().sliced(1, t, t + 1);
            a.y = steps.y.view().sliced(1, t, t + 1);
            a.initial = pool;
            a.final = pool;
            a.read_slots = indices;
            a.write_slots = indices;
            short_conv(a, {}, Phase::kDecode);
        }
        EXPECT_TRUE(same_bits(steps.y, whole.y));
        for (std::int64_t n = 0; n < 3; ++n) {
            EXPECT_TRUE(same_bits(row(pool, slots[n]), row(whole.final, n)));
        }
    });
}

// Two rounds of four drafted tokens in one pool, sequence n in slots 4n ... 4n + 3: the second
// starts after the tokens that were accepted, and overwrites the slots it reads.
TEST(ShortConvStates, SpeculativeDecodingEqualsPrefill) {
    for_each_kind([](DType dtype, std::int64_t width) {
        const Layer whole(3, 8, dtype, width);
        short_conv(whole.arguments());
        const std::vector<std::int64_t> kept = {1, 4, 3};
        const Tensor pool = whole.pool(12);
        const Tensor list = index_tensor({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
        const TensorView matrix(list.view().data, DType::kInt64, {3, 4});

        const Layer draft(3, 4, dtype, width);
        ShortConvArguments a = draft.arguments();
        a.x = whole.x.view().sliced(1, 0, 4);
        a.initial = whole.initial;
        a.final = pool;
        a.write_slots = matrix;
        short_conv(a, {}, Phase::kDecode);
        EXPECT_TRUE(same_bits(draft.y, whole.y.view().sliced(1, 0, 4)));

        const Layer next(3, 4, dtype, width);
        const Tensor accepted = index_tensor(kept);
        for (std::int64_t n = 0; n < 3; ++n) {
            const std::int64_t from = kept[static_cast<std::size_t>(n)];
            assign(row(next.x, n), row(whole.x, n).sliced(1, from, from + 4));
        }
        ShortConvArguments b = next.arguments();
        b.initial = pool;
        b.final = pool;
        b.read_slots = matrix;
        b.accepted = accepted;
        b.write_slots = matrix;
        short_conv(b, {}, Phase::kDecode);
        for (std::int64_t n = 0; n < 3; ++n) {
            const std::int64_t from = kept[static_cast<std::size_t>(n)];
            EXPECT_TRUE(same_bits(row(next.y, n), row(whole.y, n).sliced(1, from, from + 4))) << n;
        }
        EXPECT_TRUE(same_bits(row(pool, 4 * 1 + 3), row(whole.final, 1)));
    });
}

// Only slots that are named make padding, only in decode, and a mask does not.
TEST(ShortConvStates, WhatIsNotPadding) {
    const Layer zero(2, 3, DType::kFloat32, 4);
    ShortConvArguments from_zero = zero.arguments();
    from_zero.initial.reset();
    short_conv(from_zero);
    const Tensor none = index_tensor({-1, -1});
    const Tensor read = index_tensor({0, 1});
    const Tensor masked = index_tensor({0, 0}, DType::kBool);

    const auto expect_computed = [&](const char* what, Phase phase, auto&& change) {
        const Layer layer(2, 3, DType::kFloat32, 4);
        ShortConvArguments a = layer.arguments();
        change(a);
        short_conv(a, {}, phase);
        EXPECT_TRUE(same_bits(layer.y, zero.y)) << what;
    };
    expect_computed("prefill", Phase::kPrefill, [&](ShortConvArguments& a) {
        a.read_slots = none;
        a.write_slots = none;
    });
    expect_computed("no write slots", Phase::kDecode,
                    [&](ShortConvArguments& a) { a.read_slots = none; });
    expect_computed("no read slots", Phase::kDecode, [&](ShortConvArguments& a) {
        a.initial.reset();
        a.write_slots = none;
    });
    expect_computed("masked", Phase::kDecode, [&](ShortConvArguments& a) {
        a.read_slots = read;
        a.write_slots = none;
        a.has_initial = masked;
    });
}

}  // namespace
}  // namespace sluice::test
