// Refusals of the short convolution's states: slots, positions, decoding. (Its other arguments:
// tests/cpu/test_short_conv.cpp.)
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "sluice/short_conv.hpp"
#include "support/plain.hpp"
#include "support/refusal.hpp"

namespace sluice::test {
namespace {

/// D 8, W 4, float32.
struct Conv {
    ShortConvArguments arguments;
    Options options;
    Phase phase;

    explicit Conv(Phase of) : phase(of) {
        const std::vector<std::int64_t> tokens = phase == Phase::kPrefill
                                                     ? std::vector<std::int64_t>{1, 198, 8}
                                                     : std::vector<std::int64_t>{3, 4, 8};
        arguments.x = zeros(tokens);
        arguments.weight = zeros({8, 4});
        arguments.bias = zeros({8});
        arguments.y = poison(tokens);
        arguments.initial = zeros({12, 8, 3});
        arguments.final = poison({12, 8, 3});
        arguments.has_initial = keep(index_tensor({1, 1, 1}, DType::kBool));
        phase == Phase::kPrefill ? add_positions() : add_drafts();
    }

    TensorView keep(const Tensor& tensor) {
        memory_.push_back(tensor);
        return tensor;
    }
    TensorView zeros(const std::vector<std::int64_t>& shape, DType dtype = DType::kFloat32) {
        return keep(Tensor::zeros(dtype, shape));
    }
    TensorView poison(const std::vector<std::int64_t>& shape) {
        return keep(poisoned(DType::kFloat32, shape));
    }
    TensorView ints(const std::vector<std::int64_t>& values) { return keep(index_tensor(values)); }
    TensorView matrix(std::int64_t rows, const std::vector<std::int64_t>& values) {
        const auto count = static_cast<std::int64_t>(values.size());
        return TensorView(ints(values).data, DType::kInt64, {rows, count / rows});
    }

    void run() const { short_conv(arguments, options, phase); }
    [[nodiscard]] std::vector<std::byte> bytes() const {
        std::vector<std::byte> all;
        for (const Tensor& tensor : memory_) {
            const auto* data = static_cast<const std::byte*>(tensor.view().data);
            all.insert(all.end(), data, data + tensor.size_bytes());
        }
        return all;
    }

  private:
    /// Sequences of 128, 0 and 70 tokens.
    void add_positions() {
        arguments.cu_seqlens = ints({0, 128, 128, 198});
        arguments.read_slots = ints({4, -1, 2});
        arguments.write_slots = ints({1, 0, 5});
        arguments.checkpoints = poison({4, 8, 3});
        arguments.checkpoint_sequences = ints({0, 0, 2});
        arguments.checkpoint_positions = ints({64, 128, 64});
        arguments.checkpoint_slots = ints({3, -1, 1});
    }
    /// Three sequences of four drafted tokens, after one, four and two accepted ones.
    void add_drafts() {
        arguments.read_slots = matrix(3, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
        arguments.accepted = ints({1, 4, 2});
        arguments.write_slots = matrix(3, {0, 1, 2, 3, -1, 5, 6, 7, 8, 9, -1, 11});
    }

    std::vector<Tensor> memory_;
};

/// The refusal's text; expects that nothing was written.
std::string refused(const Conv& conv) {
    const auto before = conv.bytes();
    const std::string text = refusal([&] { conv.run(); });
    if (text != "accepted") {
        EXPECT_EQ(conv.bytes(), before) << text;
    }
    return text;
}

using Spoil = std::function<void(Conv&)>;

void expect_refusals(Phase phase, const std::vector<std::pair<Spoil, std::string>>& refusals) {
    for (const auto& [spoil, text] : refusals) {
        Conv conv(phase);
        spoil(conv);
        EXPECT_EQ(refused(conv), text);
    }
}

TEST(BindShortConv, AcceptsWhatTheOthersSpoil) {
    EXPECT_EQ(refused(Conv(Phase::kPrefill)), "accepted");
    EXPECT_EQ(refused(Conv(Phase::kDecode)), "accepted");
}

TEST(BindShortConv, SlotsAndStatesComeTogether) {
    expect_refusals(
        Phase::kPrefill,
        {{[](Conv& c) { c.arguments.initial.reset(); },
          "missing | initial | nothing | initial with read_slots"},
         {[](Conv& c) { c.arguments.final.reset(); },
          "missing | final | nothing | final with write_slots"},
         {[](Conv& c) { c.arguments.checkpoints.reset(); },
          "missing | checkpoints | nothing | checkpoints with checkpoint_slots"},
         {[](Conv& c) { c.arguments.checkpoint_slots.reset(); },
          "missing | checkpoint_slots | nothing | checkpoint_slots with checkpoints"},
         {[](Conv& c) { c.arguments.checkpoint_positions.reset(); },
          "missing | checkpoint_positions | nothing | checkpoint_positions with checkpoints"},
         {[](Conv& c) { c.arguments.checkpoint_sequences.reset(); },
          "missing | checkpoint_sequences | nothing | checkpoint_sequences with checkpoints"}});
}

TEST(BindShortConv, Checkpoints) {
    expect_refusals(
        Phase::kPrefill,
        {{[](Conv& c) {
              c.arguments.checkpoints = c.zeros({4, 3, 8});
          },
          "shape | checkpoints | float32 [4, 3, 8] | [slots, D, W - 1] = [4, 8, 3]"},
         {[](Conv& c) {
              c.arguments.checkpoints = c.zeros({4, 8, 3}, DType::kInt32);
          },
          "dtype | checkpoints | int32 | float32, bfloat16, float16 or float64"},
         {[](Conv& c) { c.arguments.checkpoint_slots = c.zeros({3}); },
          "dtype | checkpoint_slots | float32 | int32 or int64"},
         {[](Conv& c) {
              c.arguments.checkpoint_slots = c.matrix(1, {3, -1, 1});
          },
          "shape | checkpoint_slots | int64 [1, 3] | [M] = [0]"},
         {[](Conv& c) {
              c.arguments.checkpoint_sequences = c.ints({0, 0});
          },
          "shape | checkpoint_sequences | int64 [2] | [M] = [3]"},
         {[](Conv& c) {
              c.arguments.checkpoint_positions = c.ints({64, 128, 64, 0});
          },
          "shape | checkpoint_positions | int64 [4] | [M] = [3]"},
         {[](Conv& c) {
              c.arguments.checkpoint_sequences = c.ints({0, 0, 3});
          },
          "value | checkpoint_sequences | 3 at [2] | 0 to 2"},
         {[](Conv& c) {
              c.arguments.checkpoint_sequences = c.ints({0, -1, 2});
          },
          "value | checkpoint_sequences | -1 at [1] | 0 to 2"},
         {[](Conv& c) {
              c.arguments.checkpoint_positions = c.ints({64, 32, 64});
          },
          "value | checkpoint_positions | 32 at [1] | multiples of 64 from 0 to the sequence's "
          "length 128"},
         {[](Conv& c) {
              c.arguments.checkpoint_positions = c.ints({64, 128, 128});
          },
          "value | checkpoint_positions | 128 at [2] | multiples of 64 from 0 to the sequence's "
          "length 70"},
         {[](Conv& c) {
              c.arguments.checkpoint_positions = c.ints({-64, 128, 64});
          },
          "value | checkpoint_positions | -64 at [0] | multiples of 64 from 0 to the sequence's "
          "length 128"},
         {[](Conv& c) {
              c.arguments.checkpoint_slots = c.ints({3, -1, 4});
          },
          "value | checkpoint_slots | 4 at [2] | -1 (none) or a slot from 0 to 3"},
         {[](Conv& c) {
              c.arguments.checkpoint_slots = c.ints({3, -2, 1});
          },
          "value | checkpoint_slots | -2 at [1] | -1 (none) or a slot from 0 to 3"}});
}

TEST(BindShortConv, PhasesHaveTheirOwnArguments) {
    expect_refusals(
        Phase::kPrefill,
        {{[](Conv& c) {
              c.arguments.read_slots = c.matrix(3, {4, 0, 2});
          },
          "shape | read_slots | int64 [3, 1] | [N] = [3]"},
         {[](Conv& c) {
              c.arguments.write_slots = c.matrix(3, {1, 0, 5});
          },
          "shape | write_slots | int64 [3, 1] | [N] = [3]"},
         {[](Conv& c) {
              c.arguments.accepted = c.ints({1, 1, 1});
          },
          "surplus | accepted | int64 [3] | accepted only in a decode call with read_slots [N, "
          "M]"},
         {[](Conv& c) { c.phase = Phase::kDecode; },
          "unsupported | checkpoints | given to a decode call | checkpoints in a prefill call; "
          "write_slots [N, T] in a decode call"}});
    expect_refusals(Phase::kDecode, {{[](Conv& c) { c.phase = Phase::kPrefill; },
                                      "shape | read_slots | int64 [3, 4] | [N] = [3]"}});
}

TEST(BindShortConv, DecodeSlots) {
    expect_refusals(
        Phase::kDecode,
        {{[](Conv& c) {
              c.arguments.read_slots = c.ints({0, 1, 2});
          },
          "surplus | accepted | int64 [3] | accepted only in a decode call with read_slots [N, "
          "M]"},
         {[](Conv& c) {
              c.arguments.read_slots = c.zeros({3, 0}, DType::kInt64);
          },
          "shape | read_slots | int64 [3, 0] | [N, M] = [3, 1]"},
         {[](Conv& c) {
              c.arguments.read_slots = c.matrix(2, {0, 1, 2, 3});
          },
          "shape | read_slots | int64 [2, 2] | [N, M] = [3, 2]"},
         {[](Conv& c) {
              c.arguments.accepted = c.ints({1, 0, 2});
          },
          "value | accepted | 0 at [1] | 1 to 4 (columns of read_slots)"},
         {[](Conv& c) {
              c.arguments.accepted = c.ints({1, 4, 5});
          },
          "value | accepted | 5 at [2] | 1 to 4 (columns of read_slots)"},
         {[](Conv& c) {
              c.arguments.accepted = c.ints({1, 1});
          },
          "shape | accepted | int64 [2] | [N] = [3]"},
         {[](Conv& c) { c.arguments.accepted = c.zeros({3}); },
          "dtype | accepted | float32 | int32 or int64"},
         {[](Conv& c) {
              c.arguments.read_slots = c.matrix(3, {0, 1, 2, 3, 4, 5, 6, 12, 8, 9, 10, 11});
          },
          "value | read_slots | 12 at [1, 3] | -1 (none) or a slot from 0 to 11"},
         {[](Conv& c) {
              c.arguments.write_slots = c.matrix(3, {0, 1, 2, 3, 4, 5});
          },
          "shape | write_slots | int64 [3, 2] | [N, T] = [3, 4]"},
         {[](Conv& c) {
              c.arguments.write_slots = c.matrix(3, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12});
          },
          "value | write_slots | 12 at [2, 3] | -1 (none) or a slot from 0 to 11"},
         {[](Conv& c) {
              const std::int64_t one_row[] = {1, 12, 8};
              c.arguments.x = TensorView(c.arguments.x.data, DType::kFloat32, one_row);
              c.arguments.y = TensorView(c.arguments.y.data, DType::kFloat32, one_row);
              c.arguments.cu_seqlens = c.ints({0, 4, 8, 12});
              c.arguments.write_slots = c.zeros({3, 12}, DType::kInt64);
          },
          "unsupported | write_slots | int64 [3, 12] | [N] with cu_seqlens; [N, T] without"}});
}

TEST(BindShortConv, NoSlotIsWrittenTwiceOrReadByAnother) {
    expect_refusals(
        Phase::kPrefill,
        {{[](Conv& c) {
              c.arguments.write_slots = c.ints({1, 0, 1});
          },
          "value | write_slots | slot 1 for sequences 0 and 2 | each slot written at most once"},
         {[](Conv& c) {
              c.arguments.checkpoint_slots = c.ints({3, 0, 3});
          },
          "value | checkpoint_slots | slot 3 for sequences 0 and 2 | each slot written at most "
          "once"},
         {[](Conv& c) {
              c.arguments.checkpoint_slots = c.ints({3, 3, 0});
          },
          "value | checkpoint_slots | slot 3 for sequences 0 and 0 | each slot written at most "
          "once"},
         {[](Conv& c) {
              c.arguments.checkpoints = c.arguments.final;
              c.arguments.checkpoint_slots = c.ints({3, 2, 0});
          },
          "value | checkpoint_slots | slot 0 for sequences 1 and 2 | each slot written at most "
          "once"},
         {[](Conv& c) {
              c.arguments.checkpoints = c.arguments.initial;
              c.arguments.checkpoint_slots = c.ints({2, -1, 4});
          },
          "alias | read_slots | slot 4 read by sequence 0 and written by sequence 2 | slots that "
          "no other sequence writes in the same call"},
         {[](Conv& c) {
              c.arguments.final = c.arguments.initial;
              c.arguments.write_slots = c.ints({2, 0, 5});
          },
          "alias | read_slots | slot 2 read by sequence 2 and written by sequence 0 | slots that "
          "no other sequence writes in the same call"}});
    expect_refusals(
        Phase::kDecode,
        {{[](Conv& c) {
              c.arguments.write_slots = c.matrix(3, {0, 1, 2, 3, -1, 2, 6, 7, 8, 9, 10, 11});
          },
          "value | write_slots | slot 2 for sequences 0 and 1 | each slot written at most once"},
         {[](Conv& c) {
              c.arguments.final = c.arguments.initial;
              c.arguments.write_slots = c.matrix(3, {1, 2, 3, 7, -1, -1, -1, -1, 8, 9, 10, 11});
          },
          "alias | read_slots | slot 7 read by sequence 1 and written by sequence 0 | slots that "
          "no other sequence writes in the same call"}});
}

TEST(BindShortConv, OneMemoryForAllPoolsIsLegal) {
    Conv prefill(Phase::kPrefill);
    prefill.arguments.final = prefill.arguments.initial;
    prefill.arguments.checkpoints = prefill.arguments.initial;
    prefill.arguments.checkpoint_slots = prefill.ints({3, -1, 2});
    EXPECT_EQ(refused(prefill), "accepted");
    Conv decode(Phase::kDecode);
    decode.arguments.final = decode.arguments.initial;
    EXPECT_EQ(refused(decode), "accepted");
}

TEST(BindShortConv, CheckpointsOverlapNothingElse) {
    expect_refusals(
        Phase::kPrefill,
        {{[](Conv& c) { c.arguments.checkpoints->data = c.arguments.x.data; },
          "alias | checkpoints | memory that overlaps x | memory of its own"},
         {[](Conv& c) { c.arguments.checkpoints->data = c.arguments.y.data; },
          "alias | checkpoints | memory that overlaps y | memory of its own"},
         {[](Conv& c) { c.arguments.checkpoints = c.arguments.final->sliced(0, 6, 10); },
          "alias | checkpoints | memory that overlaps final | exactly the memory of final, or its "
          "own"},
         {[](Conv& c) {
              // The same address, but every second slot.
              c.arguments.checkpoints = c.arguments.initial->sliced(0, 0, 4);
              c.arguments.checkpoints->stride_elements[0] *= 2;
          },
          "alias | checkpoints | memory that overlaps initial | exactly the memory of initial, or "
          "its own"},
         {[](Conv& c) { c.arguments.checkpoints->stride_elements[0] = 0; },
          "stride | checkpoints | float32 [4, 8, 3] with strides [0, 3, 1] | an output whose "
          "elements do not overlap"}});
    using Index = std::optional<TensorView> ShortConvArguments::*;
    for (const auto& [name, index] :
         {std::pair<const char*, Index>{"checkpoint_sequences",
                                        &ShortConvArguments::checkpoint_sequences},
          {"checkpoint_positions", &ShortConvArguments::checkpoint_positions},
          {"checkpoint_slots", &ShortConvArguments::checkpoint_slots}}) {
        Conv conv(Phase::kPrefill);
        TensorView& view = *(conv.arguments.*index);
        std::memcpy(conv.arguments.checkpoints->data, view.data, 3 * sizeof(std::int64_t));
        view.data = conv.arguments.checkpoints->data;
        EXPECT_EQ(refused(conv), std::string("alias | checkpoints | memory that overlaps ") + name +
                                     " | memory of its own");
    }
}

using View = TensorView* (*)(ShortConvArguments&);
const std::pair<const char*, View> kViews[] = {
    {"x", [](ShortConvArguments& a) { return &a.x; }},
    {"weight", [](ShortConvArguments& a) { return &a.weight; }},
    {"bias", [](ShortConvArguments& a) { return &*a.bias; }},
    {"cu_seqlens", [](ShortConvArguments& a) { return a.cu_seqlens ? &*a.cu_seqlens : nullptr; }},
    {"initial", [](ShortConvArguments& a) { return &*a.initial; }},
    {"read_slots", [](ShortConvArguments& a) { return &*a.read_slots; }},
    {"write_slots", [](ShortConvArguments& a) { return &*a.write_slots; }},
    {"has_initial", [](ShortConvArguments& a) { return &*a.has_initial; }},
    {"accepted", [](ShortConvArguments& a) { return a.accepted ? &*a.accepted : nullptr; }},
    {"checkpoint_sequences",
     [](ShortConvArguments& a) {
         return a.checkpoint_sequences ? &*a.checkpoint_sequences : nullptr;
     }},
    {"checkpoint_positions",
     [](ShortConvArguments& a) {
         return a.checkpoint_positions ? &*a.checkpoint_positions : nullptr;
     }},
    {"checkpoint_slots",
     [](ShortConvArguments& a) { return a.checkpoint_slots ? &*a.checkpoint_slots : nullptr; }},
    {"y", [](ShortConvArguments& a) { return &a.y; }},
    {"final", [](ShortConvArguments& a) { return &*a.final; }},
    {"checkpoints",
     [](ShortConvArguments& a) { return a.checkpoints ? &*a.checkpoints : nullptr; }},
};

TEST(BindShortConv, DeviceMemoryIsRefusedBeforeAnythingElse) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        for (const auto& [name, view] : kViews) {
            Conv conv(phase);
            TensorView* argument = view(conv.arguments);
            if (argument == nullptr) continue;
            argument->device = {DeviceKind::kCuda, 2};
            conv.options.threads = -1;
            conv.arguments.x.rank = 2;
            EXPECT_EQ(refused(conv), std::string("device | ") + name + " | cuda:2 | cpu");
        }
    }
}

TEST(BindShortConv, NullDataIsRefused) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        for (const auto& [name, view] : kViews) {
            Conv conv(phase);
            TensorView* argument = view(conv.arguments);
            if (argument == nullptr) continue;
            const std::int64_t bytes =
                argument->size() * static_cast<std::int64_t>(size_bytes(argument->dtype));
            argument->data = nullptr;
            EXPECT_EQ(refused(conv), std::string("value | ") + name + " | null data | memory of " +
                                         std::to_string(bytes) + " bytes");
        }
    }
}

}  // namespace
}  // namespace sluice::test
