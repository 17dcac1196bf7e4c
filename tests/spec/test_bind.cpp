// Every bad input, by what it is refused with; and that a refused call writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "support/call.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

using test::Call;
using test::refusal;

constexpr Device kCuda{DeviceKind::kCuda, 0};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct BadCall {
    const char* name;
    std::function<void(Call&)> spoil;
    const char* refusal;  // code | argument | value | accepted
    Phase phase = Phase::kPrefill;
};

void expect_refused(const BadCall& bad) {
    SCOPED_TRACE(bad.name);
    Call call;
    bad.spoil(call);
    const auto before = call.bytes();
    EXPECT_EQ(refusal([&] { (void)bind(call.spec, call.arguments, call.options, bad.phase); }),
              bad.refusal);
    for (const char* backend : {"cpu", "oracle"}) {
        call.options.backend = backend;
        EXPECT_EQ(refusal([&] { call.run(bad.phase); }), bad.refusal) << backend;
        EXPECT_EQ(call.bytes(), before) << backend;
    }
}

template <std::size_t N>
void expect_all_refused(const BadCall (&list)[N]) {
    for (const BadCall& bad : list) expect_refused(bad);
}

const BadCall kInputs[] = {
    {"missing", [](Call& c) { c.remove("k"); },
     "missing | k | nothing | [B, T, H, K]: keys (an input of gated_delta_rule)"},
    {"surplus",
     [](Call& c) {
         c.arguments.inputs.emplace_back("gate", c.zeros(DType::kFloat32, {2, 70, 4}));
     },
     "surplus | gate | float32 [2, 70, 4] | inputs of gated_delta_rule, each once: q, k, v, g, "
     "beta"},
    {"twice", [](Call& c) { c.arguments.inputs.emplace_back("q", c.input("q")); },
     "surplus | q | float32 [2, 70, 2, 8] | inputs of gated_delta_rule, each once: q, k, v, g, "
     "beta"},
    {"rank",
     [](Call& c) {
         c.input("q") = c.zeros(DType::kFloat32, {2, 70, 16});
     },
     "shape | q | float32 [2, 70, 16] | 4 dimensions, [B, T, H, K] = [B, T, H, K]"},
    {"tokens differ",
     [](Call& c) {
         c.input("k") = c.zeros(DType::kFloat32, {2, 71, 2, 8});
     },
     "shape | k | float32 [2, 71, 2, 8] | [B, T, H, K] = [2, 70, 2, 8] (T = 70 as in q)"},
    {"batch differs",
     [](Call& c) {
         c.input("v") = c.zeros(DType::kFloat32, {3, 70, 4, 12});
     },
     "shape | v | float32 [3, 70, 4, 12] | [B, T, HV, V] = [2, 70, HV, V] (B = 2 as in q)"},
    {"heads of the gate differ",
     [](Call& c) {
         c.input("g") = c.zeros(DType::kFloat32, {2, 70, 2});
     },
     "shape | g | float32 [2, 70, 2] | [B, T, HV] = [2, 70, 4] (HV = 4 as in v)"},
    {"channels differ",
     [](Call& c) {
         c.input("k") = c.zeros(DType::kFloat32, {2, 70, 2, 9});
     },
     "shape | k | float32 [2, 70, 2, 9] | [B, T, H, K] = [2, 70, 2, 8] (K = 8 as in q)"},
    {"value heads not a multiple",
     [](Call& c) {
         c.input("v") = c.zeros(DType::kFloat32, {2, 70, 3, 12});
         c.input("g") = c.zeros(DType::kFloat32, {2, 70, 3});
         c.input("beta") = c.zeros(DType::kFloat32, {2, 70, 3});
     },
     "shape | HV | 3 | a multiple of H = 2"},
    {"no heads",
     [](Call& c) {
         c.input("q") = c.zeros(DType::kFloat32, {2, 70, 0, 8});
         c.input("k") = c.zeros(DType::kFloat32, {2, 70, 0, 8});
     },
     "shape | H | 0 | >= 1"},
    {"no value heads",
     [](Call& c) {
         c.input("v") = c.zeros(DType::kFloat32, {2, 70, 0, 12});
         c.input("g") = c.zeros(DType::kFloat32, {2, 70, 0});
         c.input("beta") = c.zeros(DType::kFloat32, {2, 70, 0});
     },
     "shape | HV | 0 | >= 1"},
    {"no key channels",
     [](Call& c) {
         c.input("q") = c.zeros(DType::kFloat32, {2, 70, 2, 0});
         c.input("k") = c.zeros(DType::kFloat32, {2, 70, 2, 0});
     },
     "shape | K | 0 | >= 1"},
    {"no value channels",
     [](Call& c) {
         c.input("v") = c.zeros(DType::kFloat32, {2, 70, 4, 0});
     },
     "shape | V | 0 | >= 1"},
    {"integers",
     [](Call& c) {
         c.input("q") = c.zeros(DType::kInt32, {2, 70, 2, 8});
     },
     "dtype | q | int32 | float32, bfloat16, float16 or float64"},
    {"booleans",
     [](Call& c) {
         c.input("beta") = c.zeros(DType::kBool, {2, 70, 4});
     },
     "dtype | beta | bool | float32, bfloat16, float16 or float64"},
    {"one input on another device", [](Call& c) { c.input("v").device = kCuda; },
     "device | v | cuda:0 | cpu as for q"},
    {"invalid spec", [](Call& c) { c.spec.normalize = true; },
     "unsupported | normalize | true | additive updates only"},
};
TEST(Bind, RefusesBadInputs) { expect_all_refused(kInputs); }

const BadCall kOptions[] = {
    {"scale NaN", [](Call& c) { c.options.scale = kNaN; }, "value | scale | nan | a finite number"},
    {"scale inf", [](Call& c) { c.options.scale = -kInfinity; },
     "value | scale | -inf | a finite number"},
    {"threads", [](Call& c) { c.options.threads = -1; }, "value | threads | -1 | 0 to 4096"},
    {"many threads", [](Call& c) { c.options.threads = 5000; },
     "value | threads | 5000 | 0 to 4096"},
    {"negative chunk", [](Call& c) { c.options.chunk = -16; },
     "value | chunk | -16 | 0 (the planner chooses) or a multiple of 16 up to 256"},
    {"odd chunk", [](Call& c) { c.options.chunk = 24; },
     "value | chunk | 24 | 0 (the planner chooses) or a multiple of 16 up to 256"},
    {"large chunk", [](Call& c) { c.options.chunk = 272; },
     "value | chunk | 272 | 0 (the planner chooses) or a multiple of 16 up to 256"},
};
TEST(Bind, RefusesBadOptions) { expect_all_refused(kOptions); }

const BadCall kOutputs[] = {
    {"rank",
     [](Call& c) {
         c.arguments.o = c.poison(DType::kFloat32, {2, 70, 48});
     },
     "shape | o | float32 [2, 70, 48] | 4 dimensions, [B, T, HV, V] = [2, 70, 4, 12]"},
    {"extents",
     [](Call& c) {
         c.arguments.o = c.poison(DType::kFloat32, {2, 70, 2, 12});
     },
     "shape | o | float32 [2, 70, 2, 12] | [B, T, HV, V] = [2, 70, 4, 12] (HV = 4 as in the other "
     "arguments)"},
    {"dtype",
     [](Call& c) {
         c.arguments.o = c.poison(DType::kInt32, {2, 70, 4, 12});
     },
     "dtype | o | int32 | float32, bfloat16, float16 or float64"},
    {"device", [](Call& c) { c.arguments.o.device = kCuda; },
     "device | o | cuda:0 | cpu as the inputs"},
    {"over v", [](Call& c) { c.arguments.o = c.input("v"); },
     "alias | o | memory that overlaps v | memory of its own"},
    {"over part of q",
     [](Call& c) {
         // One buffer in which the last rows of q are the first of o.
         const TensorView buffer = c.zeros(DType::kFloat32, {2 * 70 * 16 + 2 * 70 * 48});
         c.input("q") = TensorView(buffer.data, DType::kFloat32, {2, 70, 2, 8});
         c.arguments.o = TensorView(static_cast<float*>(buffer.data) + 2 * 70 * 16 - 8,
                                    DType::kFloat32, {2, 70, 4, 12});
     },
     "alias | o | memory that overlaps q | memory of its own"},
    {"over itself", [](Call& c) { c.arguments.o.stride_elements[2] = 0; },
     "stride | o | float32 [2, 70, 4, 12] with strides [3360, 48, 0, 1] | an output whose elements "
     "do not overlap"},
    {"over the initial state",
     [](Call& c) {
         c.add_states();
         const TensorView buffer = c.zeros(DType::kFloat32, {2 * 70 * 48});
         c.arguments.state.initial = TensorView(buffer.data, DType::kFloat32, {2, 4, 8, 12});
         c.arguments.o = TensorView(buffer.data, DType::kFloat32, {2, 70, 4, 12});
     },
     "alias | o | memory that overlaps state.initial | memory of its own"},
    {"over the final state",
     [](Call& c) {
         c.add_states();
         c.arguments.state.final = TensorView(c.arguments.o.data, DType::kFloat32, {2, 4, 8, 12});
     },
     "alias | state.final | memory that overlaps o | memory of its own"},
    {"over the offsets",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens->data = c.arguments.o.data;
         auto* offsets = static_cast<std::int64_t*>(c.arguments.o.data);
         offsets[0] = 0, offsets[1] = 30, offsets[2] = 70;
     },
     "alias | o | memory that overlaps cu_seqlens | memory of its own"},
    {"final state over an input",
     [](Call& c) {
         c.add_states();
         c.arguments.state.final = TensorView(c.input("q").data, DType::kFloat32, {2, 4, 8, 12});
     },
     "alias | state.final | memory that overlaps q | memory of its own"},
};
TEST(Bind, RefusesBadOutputs) { expect_all_refused(kOutputs); }

const BadCall kOffsets[] = {
    {"rank",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.zeros(DType::kInt64, {1, 3});
     },
     "shape | cu_seqlens | int64 [1, 3] | [N + 1]"},
    {"empty",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.zeros(DType::kInt64, {0});
     },
     "shape | cu_seqlens | int64 [0] | [N + 1]"},
    {"dtype",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.zeros(DType::kFloat32, {3});
     },
     "dtype | cu_seqlens | float32 | int32 or int64"},
    {"device",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens->device = kCuda;
     },
     "device | cu_seqlens | cuda:0 | cpu"},
    {"two batch rows",
     [](Call& c) {
         c.arguments.cu_seqlens = c.ints({0, 70});
     },
     "shape | cu_seqlens | with B = 2 | packed sequences in one batch row, B = 1"},
    {"not from zero",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.ints({1, 30, 70});
     },
     "value | cu_seqlens | offsets from 1 to 70 | offsets from 0 to T = 70"},
    {"not to the end",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.ints({0, 30, 69}, DType::kInt32);
     },
     "value | cu_seqlens | offsets from 0 to 69 | offsets from 0 to T = 70"},
    {"past the end",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.ints({0, 30, 71});
     },
     "value | cu_seqlens | offsets from 0 to 71 | offsets from 0 to T = 70"},
    {"decreasing",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.ints({0, 40, 30, 70});
     },
     "value | cu_seqlens | 40 then 30 at [1] | non-decreasing offsets"},
    {"out of range inside",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.ints({0, 100, 70});
     },
     "value | cu_seqlens | 100 then 70 at [1] | non-decreasing offsets"},
    {"negative inside",
     [](Call& c) {
         c.pack();
         c.arguments.cu_seqlens = c.ints({0, -3, 70});
     },
     "value | cu_seqlens | 0 then -3 at [0] | non-decreasing offsets"},
};
TEST(Bind, RefusesBadOffsets) { expect_all_refused(kOffsets); }

const BadCall kStates[] = {
    {"initial extents",
     [](Call& c) {
         c.arguments.state.initial = c.zeros(DType::kFloat32, {2, 4, 12, 8});
     },
     "shape | state.initial | float32 [2, 4, 12, 8] | [N, HV, K, V] = [2, 4, 8, 12]"},
    {"initial layout",
     [](Call& c) {
         c.add_states();
         c.options.state_layout = StateLayout::kValueFirst;
     },
     "shape | state.initial | float32 [2, 4, 8, 12] | [N, HV, V, K] = [2, 4, 12, 8]"},
    {"initial rank",
     [](Call& c) {
         c.arguments.state.initial = c.zeros(DType::kFloat32, {4, 8, 12});
     },
     "shape | state.initial | float32 [4, 8, 12] | [N, HV, K, V] = [2, 4, 8, 12]"},
    {"final rows",
     [](Call& c) {
         c.arguments.state.final = c.poison(DType::kFloat32, {3, 4, 8, 12});
     },
     "shape | state.final | float32 [3, 4, 8, 12] | [N, HV, K, V] = [2, 4, 8, 12]"},
    {"rows for packed sequences",
     [](Call& c) {
         c.pack();
         c.arguments.state.initial = c.zeros(DType::kFloat32, {1, 4, 8, 12});
     },
     "shape | state.initial | float32 [1, 4, 8, 12] | [N, HV, K, V] = [2, 4, 8, 12]"},
    {"dtype",
     [](Call& c) {
         c.arguments.state.initial = c.zeros(DType::kInt32, {2, 4, 8, 12});
     },
     "dtype | state.initial | int32 | float32, bfloat16, float16 or float64"},
    {"device",
     [](Call& c) {
         c.add_states();
         c.arguments.state.final->device = kCuda;
     },
     "device | state.final | cuda:0 | cpu as the inputs"},
    {"final over itself",
     [](Call& c) {
         c.add_states();
         c.arguments.state.final->stride_elements[1] = 0;
     },
     "stride | state.final | float32 [2, 4, 8, 12] with strides [384, 0, 12, 1] | an output whose "
     "elements do not overlap"},
    {"final half over initial",
     [](Call& c) {
         const TensorView both = c.zeros(DType::kFloat32, {3, 4, 8, 12});
         c.arguments.state.initial = both.sliced(0, 0, 2);
         c.arguments.state.final = both.sliced(0, 1, 3);
     },
     "alias | state.final | memory that overlaps state.initial | the same memory with the same "
     "strides, or memory of its own"},
    {"mask without a state",
     [](Call& c) {
         c.arguments.state.has_initial = c.ints({1, 0}, DType::kBool);
     },
     "missing | state.initial | nothing | state.initial with has_initial"},
    {"mask of integers",
     [](Call& c) {
         c.add_states();
         c.arguments.state.has_initial = c.ints({1, 0});
     },
     "dtype | has_initial | int64 | bool"},
    {"mask extents",
     [](Call& c) {
         c.add_states();
         c.arguments.state.has_initial = c.ints({1, 0, 1}, DType::kBool);
     },
     "shape | has_initial | bool [3] | [N] = [2]"},
    {"key sum of a spec without normaliser",
     [](Call& c) {
         c.add_states();
         c.arguments.state.initial_key_sum = c.zeros(DType::kFloat32, {2, 4, 8});
     },
     "surplus | initial_key_sum | float32 [2, 4, 8] | specs with normalize only"},
};
TEST(Bind, RefusesBadStates) { expect_all_refused(kStates); }

const BadCall kSlots[] = {
    {"reads without a pool",
     [](Call& c) {
         c.arguments.state.read_slots = c.ints({0, 1});
     },
     "missing | state.initial | nothing | state.initial with read_slots"},
    {"writes without a pool",
     [](Call& c) {
         c.arguments.state.write_slots = c.ints({0, 1});
     },
     "missing | state.final | nothing | state.final with write_slots"},
    {"extents of reads",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.ints({0, 1, 2});
     },
     "shape | read_slots | int64 [3] | [N] = [2]"},
    {"matrix of writes in forward",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.write_slots = c.zeros(DType::kInt64, {2, 70});
     },
     "shape | write_slots | int64 [2, 70] | [N] = [2]"},
    {"dtype",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.zeros(DType::kFloat32, {2});
     },
     "dtype | read_slots | float32 | int32 or int64"},
    {"device",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.write_slots->device = kCuda;
     },
     "device | write_slots | cuda:0 | cpu"},
    {"read past the pool",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.ints({4, 6});
     },
     "value | read_slots | 6 at [1] | -1 (none) or a slot from 0 to 5"},
    {"read below -1",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.ints({-2, 1}, DType::kInt32);
     },
     "value | read_slots | -2 at [0] | -1 (none) or a slot from 0 to 5"},
    {"write past the pool",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.write_slots = c.ints({6, 1});
     },
     "value | write_slots | 6 at [0] | -1 (none) or a slot from 0 to 5"},
    {"one slot written twice",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.write_slots = c.ints({3, 3});
     },
     "value | write_slots | slot 3 for sequences 0 and 1 | each slot written at most once"},
    {"one sequence's source is another's target",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.final = c.arguments.state.initial;
         c.arguments.state.read_slots = c.ints({4, 1});
     },
     "alias | read_slots | slot 1 read by sequence 1 and written by sequence 0 | slots that no "
     "other sequence writes in the same call"},
    {"accepted counts in forward",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.accepted = c.ints({1, 1});
     },
     "surplus | accepted | int64 [2] | accepted only in step() with read_slots [N, M]"},
    {"pool's channels",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.initial = c.zeros(DType::kFloat32, {6, 4, 8, 8});
     },
     "shape | state.initial | float32 [6, 4, 8, 8] | [slots, HV, K, V] = [6, 4, 8, 12]"},
};
TEST(Bind, RefusesBadSlots) { expect_all_refused(kSlots); }

const BadCall kDecode[] = {
    {"accepted without a matrix",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.accepted = c.ints({1, 1});
     },
     "surplus | accepted | int64 [2] | accepted only in step() with read_slots [N, M]",
     Phase::kDecode},
    {"accepted zero",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.zeros(DType::kInt64, {2, 3});
         c.arguments.state.accepted = c.ints({1, 0});
     },
     "value | accepted | 0 at [1] | 1 to 3 (columns of read_slots)", Phase::kDecode},
    {"accepted more than there are",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.zeros(DType::kInt64, {2, 3});
         c.arguments.state.accepted = c.ints({4, 1}, DType::kInt32);
     },
     "value | accepted | 4 at [0] | 1 to 3 (columns of read_slots)", Phase::kDecode},
    {"accepted extents",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.zeros(DType::kInt64, {2, 3});
         c.arguments.state.accepted = c.ints({1, 1, 1});
     },
     "shape | accepted | int64 [3] | [N] = [2]", Phase::kDecode},
    {"accepted dtype",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.zeros(DType::kInt64, {2, 3});
         c.arguments.state.accepted = c.zeros(DType::kFloat32, {2});
     },
     "dtype | accepted | float32 | int32 or int64", Phase::kDecode},
    {"writes for another number of tokens",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.write_slots = c.zeros(DType::kInt64, {2, 3});
     },
     "shape | write_slots | int64 [2, 3] | [N, T] = [2, 70]", Phase::kDecode},
    {"checkpoints", [](Call& c) { c.add_checkpoints(); },
     "unsupported | checkpoints | given to step() | checkpoints in forward(); write_slots [N, T] "
     "in step()",
     Phase::kDecode},
};
TEST(Bind, RefusesBadDecodeArguments) { expect_all_refused(kDecode); }

const BadCall kCheckpoints[] = {
    {"no pool",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoints.reset();
     },
     "missing | checkpoints | nothing | checkpoints with checkpoint_slots"},
    {"no sequences",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_sequences.reset();
     },
     "missing | checkpoint_sequences | nothing | checkpoint_sequences with checkpoints"},
    {"no positions",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_positions.reset();
     },
     "missing | checkpoint_positions | nothing | checkpoint_positions with checkpoints"},
    {"no slots",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_slots.reset();
     },
     "missing | checkpoint_slots | nothing | checkpoint_slots with checkpoints"},
    {"position between multiples",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_positions = c.ints({64, 32});
     },
     "value | checkpoint_positions | 32 at [1] | multiples of 64 from 0 to the sequence's length "
     "70"},
    {"position past the end",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_positions = c.ints({128, 64});
     },
     "value | checkpoint_positions | 128 at [0] | multiples of 64 from 0 to the sequence's length "
     "70"},
    {"negative position",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_positions = c.ints({-64, 64});
     },
     "value | checkpoint_positions | -64 at [0] | multiples of 64 from 0 to the sequence's length "
     "70"},
    {"position past a short packed sequence",
     [](Call& c) {
         c.pack();
         c.add_checkpoints();
     },
     "value | checkpoint_positions | 64 at [0] | multiples of 64 from 0 to the sequence's length "
     "30"},
    {"unknown sequence",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_sequences = c.ints({0, 2});
     },
     "value | checkpoint_sequences | 2 at [1] | 0 to 1"},
    {"slot past the pool",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_slots = c.ints({3, 0});
     },
     "value | checkpoint_slots | 3 at [0] | -1 (none) or a slot from 0 to 2"},
    {"slot written twice",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_slots = c.ints({1, 1});
     },
     "value | checkpoint_slots | slot 1 for sequences 0 and 1 | each slot written at most once"},
    {"lengths differ",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_positions = c.ints({64});
     },
     "shape | checkpoint_positions | int64 [1] | [M] = [2]"},
    {"dtype of positions",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_positions = c.zeros(DType::kFloat64, {2});
     },
     "dtype | checkpoint_positions | float64 | int32 or int64"},
    {"pool's extents",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoints = c.poison(DType::kFloat32, {3, 4, 12, 8});
     },
     "shape | checkpoints | float32 [3, 4, 12, 8] | [slots, HV, K, V] = [3, 4, 8, 12]"},
    {"a slot that a sequence starts from",
     [](Call& c) {
         c.add_pools();
         c.add_checkpoints();
         c.arguments.state.checkpoints = c.arguments.state.initial;
         c.arguments.state.checkpoint_slots = c.ints({2, 0});
     },
     "alias | read_slots | slot 2 read by sequence 1 and written by sequence 0 | slots that no "
     "other sequence writes in the same call"},
    {"a slot that a sequence ends in",
     [](Call& c) {
         c.add_pools();
         c.add_checkpoints();
         c.arguments.state.checkpoints = c.arguments.state.final;
         c.arguments.state.checkpoint_slots = c.ints({5, 0});
     },
     "value | write_slots | slot 5 for sequences 0 and 1 | each slot written at most once"},
};
TEST(Bind, RefusesBadCheckpoints) { expect_all_refused(kCheckpoints); }

// What the rules above must not refuse.
const std::pair<const char*, std::function<void(Call&)>> kGoodCalls[] = {
    {"plain", [](Call&) {}},
    {"states", [](Call& c) { c.add_states(); }},
    {"pools", [](Call& c) { c.add_pools(); }},
    {"checkpoints", [](Call& c) { c.add_checkpoints(); }},
    {"packed", [](Call& c) { c.pack(); }},
    {"state in place",
     [](Call& c) {
         c.add_states();
         c.arguments.state.final = c.arguments.state.initial;
     }},
    {"pool in place",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.final = c.arguments.state.initial;
         c.arguments.state.read_slots = c.ints({1, 5});
     }},
    {"pool in place, crossing nowhere",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.final = c.arguments.state.initial;
     }},
    {"one slot read by all",
     [](Call& c) {
         c.add_pools();
         c.arguments.state.read_slots = c.ints({3, 3});
     }},
    {"checkpoints in the pool of the final states",
     [](Call& c) {
         c.add_pools();
         c.add_checkpoints();
         c.arguments.state.checkpoints = c.arguments.state.final;
     }},
    {"slices of one packed buffer, output among them",
     [](Call& c) {
         const TensorView buffer =
             c.zeros(DType::kFloat32, {2, 70, 2 * 8 + 2 * 8 + 4 * 12 + 4 * 12});
         const auto part = [&](std::int64_t at, std::int64_t heads, std::int64_t channels) {
             const std::int64_t shape[] = {2, 70, heads, channels};
             const std::int64_t strides[] = {70 * 128, 128, channels, 1};
             return TensorView(static_cast<float*>(buffer.data) + at, DType::kFloat32, shape,
                               strides);
         };
         c.input("q") = part(0, 2, 8);
         c.input("k") = part(16, 2, 8);
         c.input("v") = part(32, 4, 12);
         c.arguments.o = part(80, 4, 12);
     }},
    {"expanded keys", [](Call& c) { c.input("k").stride_elements[2] = 0; }},
    {"no tokens",
     [](Call& c) {
         c = Call(c.spec, {2, 0, 2, 4, 8, 12, 2});
     }},
    {"no batch rows",
     [](Call& c) {
         c = Call(c.spec, {0, 70, 2, 4, 8, 12, 0});
     }},
    {"no sequences",
     [](Call& c) {
         c = Call(c.spec, {1, 0, 2, 4, 8, 12, 0});
         c.arguments.cu_seqlens = c.ints({0});
     }},
    {"no checkpoints",
     [](Call& c) {
         c.add_checkpoints();
         c.arguments.state.checkpoint_sequences = c.ints({});
         c.arguments.state.checkpoint_positions = c.ints({});
         c.arguments.state.checkpoint_slots = c.ints({});
     }},
    {"scale zero", [](Call& c) { c.options.scale = 0; }},
    {"chunk 256", [](Call& c) { c.options.chunk = 256; }},
    {"mixed dtypes",
     [](Call& c) {
         c.input("q") = c.zeros(DType::kFloat16, {2, 70, 2, 8});
         c.input("v") = c.zeros(DType::kFloat64, {2, 70, 4, 12});
         c.arguments.o = c.poison(DType::kBFloat16, {2, 70, 4, 12});
     }},
};

TEST(Bind, AcceptsAndRuns) {
    for (const auto& [name, change] : kGoodCalls) {
        for (const char* backend : {"cpu", "oracle"}) {
            Call call;
            change(call);
            call.options.backend = backend;
            EXPECT_EQ(refusal([&] { call.run(Phase::kPrefill); }), "accepted") << name;
        }
    }
}

// Per-head parameters of two axes may come flattened, as layers store them.
TEST(Bind, FlattenedParameters) {
    const Spec spec = make_spec("kda", {{{"g_raw", {1, 1, 1, 1}}, {"dt_bias", {1}}}, {}});
    Call call(spec, {1, 5, 2, 4, 8, 12, 1});
    call.input("dt_bias") = call.zeros(DType::kFloat32, {32});
    const Problem problem = bind(call.spec, call.arguments, call.options);
    const BoundInput& bias = problem.input("dt_bias");
    EXPECT_EQ(bias.stride[static_cast<int>(Axis::kHV)], 8);
    EXPECT_EQ(bias.stride[static_cast<int>(Axis::kK)], 1);
    call.input("dt_bias") = call.zeros(DType::kFloat32, {33});
    EXPECT_EQ(refusal([&] { (void)bind(call.spec, call.arguments, call.options); }),
              "shape | dt_bias | float32 [33] | [HV, K] = [4, 8], or flattened [32]");
}

TEST(Bind, KeySumsFollowTheirStates) {
    const Spec spec = make_spec("linear", {{}, {{"normalize", "true"}}});
    const Dims dims = {2, 70, 2, 4, 8, 12, 2};
    const auto refused = [&](const std::function<void(Call&)>& spoil) {
        Call call(spec, dims);
        call.add_states();
        spoil(call);
        return refusal([&] { call.run(Phase::kPrefill); });
    };
    EXPECT_EQ(refused([](Call& c) {
                  c.arguments.state.initial_key_sum = c.zeros(DType::kFloat32, {2, 4, 8});
                  c.arguments.state.final_key_sum = c.poison(DType::kFloat32, {2, 4, 8});
              }),
              "accepted");
    EXPECT_EQ(refused([](Call& c) {
                  c.arguments.state.initial_key_sum = c.zeros(DType::kFloat32, {2, 4, 12});
              }),
              "shape | initial_key_sum | float32 [2, 4, 12] | [N, HV, K] = [2, 4, 8]");
    EXPECT_EQ(refused([](Call& c) {
                  c.arguments.state.initial_key_sum = c.zeros(DType::kFloat32, {2, 4, 8});
                  c.arguments.state.initial.reset();
              }),
              "missing | state.initial | nothing | state.initial with initial_key_sum");
    EXPECT_EQ(refused([](Call& c) {
                  c.arguments.state.final_key_sum = c.poison(DType::kFloat32, {2, 4, 8});
                  c.arguments.state.final.reset();
              }),
              "missing | state.final | nothing | state.final with final_key_sum");
    EXPECT_EQ(
        refused([](Call& c) {
            c.arguments.state.final_key_sum = c.poison(DType::kFloat32, {2, 4, 8});
            c.arguments.state.final_key_sum->stride_elements[1] = 0;
        }),
        "stride | final_key_sum | float32 [2, 4, 8] with strides [32, 0, 1] | an output whose "
        "elements do not overlap");
    EXPECT_EQ(refused([](Call& c) { c.add_checkpoints(); }),
              "unsupported | checkpoints | with normalize | checkpoints of specs without a "
              "normaliser (its key sum has no pool here)");
}

TEST(Bind, KeySumPoolsHaveTheSlotsOfTheirStates) {
    Call call(make_spec("linear", {{}, {{"normalize", "true"}}}), {2, 7, 2, 4, 8, 12, 2});
    call.add_pools();
    call.arguments.state.initial_key_sum = call.zeros(DType::kFloat32, {5, 4, 8});
    EXPECT_EQ(refusal([&] { call.run(Phase::kPrefill); }),
              "shape | initial_key_sum | float32 [5, 4, 8] | 6 slots as state.initial");
}

TEST(Bind, ValidateReadsTheGates) {
    const auto with_gate = [](double value, bool validate) {
        Call call;
        static_cast<float*>(call.input("g").data)[(70 + 3) * 4 + 2] = static_cast<float>(value);
        call.options.validate = validate;
        return refusal([&] { call.run(Phase::kPrefill); });
    };
    EXPECT_EQ(with_gate(0.5, true),
              "value | g | 0.5 at batch 1, token 3, head 2 | log decays <= 0");
    EXPECT_EQ(with_gate(kNaN, true),
              "value | g | nan at batch 1, token 3, head 2, channel 0 | numbers");
    EXPECT_EQ(with_gate(0.5, false), "accepted");
    for (const double legal : {0.0, -1000.0, -kInfinity}) {
        EXPECT_EQ(with_gate(legal, true), "accepted") << legal;
    }
}

TEST(Bind, ValidateReadsComputedDecays) {
    Call call(make_spec("mamba2"), {1, 3, 1, 2, 4, 4, 1});
    static_cast<float*>(call.input("A").data)[1] = 0.25F;
    call.options.validate = true;
    const auto before = call.bytes();
    const std::string text = refusal([&] { call.run(Phase::kPrefill); });
    EXPECT_TRUE(text.starts_with("value | log_decay | 0.17328")) << text;
    EXPECT_TRUE(text.ends_with(" at batch 0, token 0, head 1 | log decays <= 0")) << text;
    EXPECT_EQ(call.bytes(), before);
}

TEST(Bind, ValidateReadsEveryInput) {
    Call call;
    static_cast<float*>(call.input("v").data)[1] = static_cast<float>(kNaN);
    EXPECT_EQ(refusal([&] { call.run(Phase::kPrefill); }), "accepted");
    call.options.validate = true;
    EXPECT_EQ(refusal([&] { call.run(Phase::kPrefill); }),
              "value | v | nan at batch 0, token 0, head 0, channel 1 | numbers");
}

TEST(Bind, DefaultsComeFromTheSpec) {
    const Call call;
    Problem problem = bind(call.spec, call.arguments, {});
    EXPECT_DOUBLE_EQ(problem.scale, 1 / std::sqrt(8.0));
    EXPECT_EQ(problem.state_layout, StateLayout::kKeyFirst);
    EXPECT_EQ(problem.precision, Precision::kFloat32);
    EXPECT_EQ(problem.dims.N, 2);
    Options options;
    options.scale = 0.25;
    options.state_layout = StateLayout::kValueFirst;
    options.precision = Precision::kBFloat16;
    problem = bind(call.spec, call.arguments, options);
    EXPECT_EQ(problem.scale, 0.25);
    EXPECT_EQ(problem.state_layout, StateLayout::kValueFirst);
    EXPECT_EQ(problem.precision, Precision::kBFloat16);
    const Call mamba(make_spec("mamba2"), {1, 3, 1, 2, 4, 4, 1});
    problem = bind(mamba.spec, mamba.arguments, {});
    EXPECT_EQ(problem.scale, 1);
    EXPECT_EQ(problem.state_layout, StateLayout::kValueFirst);
}

TEST(Bind, AutoPrecisionIsFloat64OnlyWhenEveryInputIs) {
    Call call;
    for (auto& [name, view] : call.arguments.inputs) {
        const std::vector<std::int64_t> shape(view.shape().begin(), view.shape().end());
        EXPECT_EQ(bind(call.spec, call.arguments, {}).precision, Precision::kFloat32) << name;
        view = view.rank == 4
                   ? call.zeros(DType::kFloat64, {shape[0], shape[1], shape[2], shape[3]})
                   : call.zeros(DType::kFloat64, {shape[0], shape[1], shape[2]});
    }
    EXPECT_EQ(bind(call.spec, call.arguments, {}).precision, Precision::kFloat64);
}

TEST(Bind, SequencesOfAPackedBatch) {
    Call call;
    call.pack();
    call.arguments.cu_seqlens = call.ints({0, 0, 1, 70, 70}, DType::kInt32);
    const Problem problem = bind(call.spec, call.arguments, {});
    ASSERT_EQ(problem.sequences.size(), 4U);
    EXPECT_EQ(problem.dims.N, 4);
    const std::int64_t lengths[] = {0, 1, 69, 0};
    for (int n = 0; n < 4; ++n) EXPECT_EQ(problem.sequences[n].length(), lengths[n]);
}

TEST(Precision, NamesRoundTripAndUnknownOnesAreRefused) {
    for (const Precision p :
         {Precision::kAuto, Precision::kFloat32, Precision::kFloat64, Precision::kBFloat16}) {
        EXPECT_EQ(parse_precision(to_string(p)), p);
    }
    EXPECT_EQ(refusal([] { (void)parse_precision("tf32"); }),
              "value | precision | 'tf32' | auto, float32, float64, bfloat16");
}

}  // namespace
}  // namespace sluice
