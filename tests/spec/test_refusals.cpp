// Sizes that no address space holds, arguments without memory, and outputs over what a call reads.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <limits>

#include "support/call.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

using test::Call;
using test::refusal;

constexpr std::int64_t kHuge = std::int64_t{1} << 31;

void expect_starts_with(const std::string& text, const std::string& start) {
    EXPECT_TRUE(text.starts_with(start)) << text << "\nexpected: " << start;
}

/// bind() and both back ends refuse the call with a text that starts so, and write nothing.
void expect_refused(Call& call, const std::string& start, Phase phase = Phase::kPrefill) {
    const auto before = call.bytes();
    expect_starts_with(refusal([&] { (void)bind(call.spec, call.arguments, call.options, phase); }),
                       start);
    for (const Backend* backend : backends()) {
        call.options.backend = backend->name();
        expect_starts_with(refusal([&] { call.run(phase); }), start);
        EXPECT_EQ(call.bytes(), before) << backend->name();
    }
}

/// A view of memory that is nowhere: for calls that must be refused before anything is read.
TensorView nowhere(int which, std::initializer_list<std::int64_t> shape) {
    const auto address = static_cast<std::uintptr_t>(which + 1) << 44;
    TensorView view(reinterpret_cast<void*>(address), DType::kFloat32,
                    std::span<const std::int64_t>{});
    // Not by the constructor, which refuses too.
    view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view.extents.begin());
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
        view.stride_elements[static_cast<std::size_t>(d)] = stride;
        stride = static_cast<std::int64_t>(
            static_cast<std::uint64_t>(stride) *
            static_cast<std::uint64_t>(view.extents[static_cast<std::size_t>(d)]));
    }
    return view;
}

const std::vector<std::vector<std::int64_t>> kTooManyBytes = {
    {std::int64_t{1} << 61},                                     // bytes
    {kHuge, kHuge, 2},                                           // elements, to -2^63
    {kHuge, kHuge, 4},                                           // elements, to zero
    {std::int64_t{1} << 32, std::int64_t{1} << 32, 1, 1, 1, 1},  // to zero
    {3, std::numeric_limits<std::int64_t>::max()},               // to a positive number
    {std::numeric_limits<std::int64_t>::max(), 2},
};

TEST(Sizes, ViewsAndTensorsThatOverflowAreRefused) {
    for (const auto& shape : kTooManyBytes) {
        SCOPED_TRACE(to_string(shape));
        expect_starts_with(refusal([&] { (void)Tensor::empty(DType::kFloat32, shape); }),
                           "shape | ");
        expect_starts_with(refusal([&] { (void)Tensor::zeros(DType::kFloat32, shape); }),
                           "shape | ");
        expect_starts_with(refusal([&] { TensorView(nullptr, DType::kFloat32, shape); }),
                           "shape | ");
        const std::vector<std::int64_t> strides(shape.size(), 0);
        expect_starts_with(refusal([&] { TensorView(nullptr, DType::kFloat32, shape, strides); }),
                           "shape | ");
    }
}

TEST(Sizes, TheLargestThatFitIsNotRefused) {
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(TensorView(nullptr, DType::kBool, {most}).size(), most);
    EXPECT_EQ(TensorView(nullptr, DType::kFloat64, {most / 8}).size(), most / 8);
    expect_starts_with(refusal([&] { TensorView(nullptr, DType::kFloat64, {most / 8 + 1}); }),
                       "shape | ");
    EXPECT_EQ(TensorView(nullptr, DType::kFloat64, {kHuge, 0, 2}).size(), 0);
}

// Extents are public: a view can grow after it was made.
TEST(Sizes, BindRefusesInputsThatOverflow) {
    constexpr std::int64_t kTokens = std::int64_t{1} << 60;
    Call call(make_spec("linear"), {1, 3, 1, 4, 8, 4, 1});
    call.input("q") = nowhere(0, {1, kTokens, 1, 8});
    call.input("k") = nowhere(1, {1, kTokens, 1, 8});
    call.input("v") = nowhere(2, {1, kTokens, 4, 4});
    call.arguments.o = nowhere(3, {1, kTokens, 4, 4});
    expect_refused(call, "shape | ");
}

TEST(Sizes, BindRefusesStatesThatOverflow) {
    // Every tensor fits; HV K V = 2^64 wraps to zero.
    Call call(make_spec("linear"), {1, 1, 1, 4, 8, 4, 1});
    call.input("q") = nowhere(0, {1, 1, 1, kHuge});
    call.input("k") = nowhere(1, {1, 1, 1, kHuge});
    call.input("v") = nowhere(2, {1, 1, 4, kHuge});
    call.arguments.o = nowhere(3, {1, 1, 4, kHuge});
    expect_refused(call, "shape | ");
    expect_starts_with(refusal([&] { (void)infer_dims(call.spec, call.arguments); }), "shape | ");
}

TEST(Sizes, BindRefusesOutputsThatOverflow) {
    // No input has all of B, T, HV and V; their product 2^64 wraps to zero.
    Spec spec = make_spec("linear");
    spec.inputs = {{"q", {Axis::kB, Axis::kT, Axis::kK}, "queries"},
                   {"k", {Axis::kT, Axis::kHV, Axis::kK}, "keys"},
                   {"v", {Axis::kT, Axis::kV}, "values"}};
    constexpr std::int64_t kMany = std::int64_t{1} << 16;
    Call call(spec, {1, 1, 1, 1, 1, 1, 1});
    call.input("q") = nowhere(0, {kMany, kMany, 1});
    call.input("k") = nowhere(1, {kMany, kMany, 1});
    call.input("v") = nowhere(2, {kMany, kMany});
    call.arguments.o = nowhere(3, {kMany, kMany, kMany, kMany});
    expect_refused(call, "shape | ");
}

struct Named {
    const char* name;
    std::function<TensorView&(Call&)> view;
    int bytes;
    Phase phase = Phase::kPrefill;
};

/// The gated delta rule's call, with pools and whatever `phase` allows besides.
Call full_call(Phase phase) {
    Call call;
    if (phase == Phase::kPrefill) call.pack();
    call.add_pools();
    call.arguments.state.has_initial = call.ints({1, 1}, DType::kBool);
    if (phase == Phase::kPrefill) {
        call.add_checkpoints();
        call.arguments.state.checkpoint_positions = call.ints({0, 0}, DType::kInt32);
    } else {
        call.arguments.state.read_slots = call.ints({4, 2});
        call.arguments.state.read_slots->rank = 2;
        call.arguments.state.read_slots->extents = {2, 1};
        call.arguments.state.read_slots->stride_elements = {1, 1};
        call.arguments.state.accepted = call.ints({1, 1});
    }
    return call;
}

const Named kArguments[] = {
    {"q", [](Call& c) -> TensorView& { return c.input("q"); }, 70 * 2 * 8 * 4},
    {"g", [](Call& c) -> TensorView& { return c.input("g"); }, 70 * 4 * 4},
    {"o", [](Call& c) -> TensorView& { return c.arguments.o; }, 70 * 4 * 12 * 4},
    {"cu_seqlens", [](Call& c) -> TensorView& { return *c.arguments.cu_seqlens; }, 3 * 8},
    {"state.initial", [](Call& c) -> TensorView& { return *c.arguments.state.initial; },
     6 * 4 * 8 * 12 * 4},
    {"state.final", [](Call& c) -> TensorView& { return *c.arguments.state.final; },
     6 * 4 * 8 * 12 * 4},
    {"read_slots", [](Call& c) -> TensorView& { return *c.arguments.state.read_slots; }, 2 * 8},
    {"write_slots", [](Call& c) -> TensorView& { return *c.arguments.state.write_slots; }, 2 * 4},
    {"has_initial", [](Call& c) -> TensorView& { return *c.arguments.state.has_initial; }, 2},
    {"accepted", [](Call& c) -> TensorView& { return *c.arguments.state.accepted; }, 2 * 8,
     Phase::kDecode},
    {"checkpoints", [](Call& c) -> TensorView& { return *c.arguments.state.checkpoints; },
     3 * 4 * 8 * 12 * 4},
    {"checkpoint_sequences",
     [](Call& c) -> TensorView& { return *c.arguments.state.checkpoint_sequences; }, 2 * 8},
    {"checkpoint_positions",
     [](Call& c) -> TensorView& { return *c.arguments.state.checkpoint_positions; }, 2 * 4},
    {"checkpoint_slots", [](Call& c) -> TensorView& { return *c.arguments.state.checkpoint_slots; },
     2 * 8},
};

TEST(NullData, IsRefusedInEveryArgument) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        const Call call = full_call(phase);
        ASSERT_EQ(refusal([&] { call.run(phase); }), "accepted") << to_string(phase);
    }
    for (const auto& [name, view, bytes, phase] : kArguments) {
        SCOPED_TRACE(name);
        Call call = full_call(phase);
        view(call).data = nullptr;
        expect_refused(call,
                       std::string("value | ") + name + " | null data | memory of " +
                           std::to_string(bytes) + " bytes",
                       phase);
    }
}

TEST(NullData, IsRefusedInKeySums) {
    for (const bool initial : {true, false}) {
        Call call(make_spec("linear", {{}, {{"normalize", "true"}}}), {2, 7, 2, 4, 8, 12, 2});
        call.add_states();
        auto& s = call.arguments.state;
        s.initial_key_sum = call.zeros(DType::kFloat32, {2, 4, 8});
        s.final_key_sum = call.poison(DType::kFloat32, {2, 4, 8});
        (initial ? s.initial_key_sum : s.final_key_sum)->data = nullptr;
        expect_refused(call, std::string("value | ") + (initial ? "initial" : "final") +
                                 "_key_sum | null data | memory of 256 bytes");
    }
}

TEST(NullData, IsLegalWhereThereAreNoElements) {
    Call call(make_spec("gated_delta_rule"), {2, 0, 2, 4, 8, 12, 2});
    for (auto& [name, view] : call.arguments.inputs) view.data = nullptr;
    call.arguments.o.data = nullptr;
    for (const char* backend : {"cpu", "oracle"}) {
        call.options.backend = backend;
        EXPECT_EQ(refusal([&] { call.run(Phase::kPrefill); }), "accepted") << backend;
    }
}

TEST(Decode, ReadSlotsWithoutColumnsAreRefused) {
    for (const bool accepted : {false, true}) {
        Call call;
        call.add_pools();
        call.arguments.state.read_slots = call.zeros(DType::kInt64, {2, 0});
        if (accepted) call.arguments.state.accepted = call.ints({1, 1});
        expect_refused(call, "shape | read_slots | int64 [2, 0] | ", Phase::kDecode);
    }
}

TEST(Sizes, SpecsWithoutBatchOrTokensAreRefused) {
    const auto validated = [](std::vector<Axis> outer) {
        Spec spec = make_spec("linear");
        for (Input& input : spec.inputs) {
            input.axes.erase(input.axes.begin(), input.axes.begin() + 2);
            input.axes.insert(input.axes.begin(), outer.begin(), outer.end());
        }
        return refusal([&] { spec.validate(); });
    };
    expect_starts_with(validated({}), "unsupported | inputs | ");
    expect_starts_with(validated({Axis::kB}), "unsupported | inputs | ");
    expect_starts_with(validated({Axis::kT}), "unsupported | inputs | ");
    EXPECT_EQ(validated({Axis::kB, Axis::kT}), "accepted");
    EXPECT_EQ(validated({Axis::kT, Axis::kB}), "accepted");
}

/// Normalised linear attention from pools, with key sums; `shared` is the memory of both.
Call key_sum_call(std::initializer_list<std::int64_t> read,
                  std::initializer_list<std::int64_t> write, bool shared) {
    Call call(make_spec("linear", {{}, {{"normalize", "true"}}}), {2, 7, 2, 4, 8, 12, 2});
    call.add_pools();
    auto& s = call.arguments.state;
    s.read_slots = call.ints(read);
    s.write_slots = call.ints(write);
    s.initial_key_sum = call.zeros(DType::kFloat32, {6, 4, 8});
    s.final_key_sum = shared ? *s.initial_key_sum : call.poison(DType::kFloat32, {6, 4, 8});
    return call;
}

TEST(Aliases, KeySumsOfOnePoolDoNotCrossSequences) {
    Call crossed = key_sum_call({0, 1}, {1, 0}, true);
    expect_refused(crossed, "alias | ");
    Call chained = key_sum_call({0, 1}, {2, 0}, true);
    expect_refused(chained, "alias | ");
    for (const Call& legal :
         {key_sum_call({0, 1}, {1, 0}, false), key_sum_call({0, 1}, {0, 1}, true),
          key_sum_call({0, 1}, {2, 3}, true), key_sum_call({0, 1}, {-1, -1}, true),
          key_sum_call({0, -1}, {2, 1}, true)}) {
        EXPECT_EQ(refusal([&] { legal.run(Phase::kPrefill); }), "accepted");
    }
}

struct Overlap {
    const char* output;
    const char* input;
    std::function<void(Call&)> spoil;
};

/// Puts the elements of `view` into the first bytes of `memory`.
void move_into(TensorView& view, const TensorView& memory) {
    const std::size_t bytes = static_cast<std::size_t>(view.size()) * size_bytes(view.dtype);
    std::memcpy(memory.data, view.data, bytes);
    view.data = memory.data;
}

const Overlap kKeySumOverlaps[] = {
    {"o", "initial_key_sum",
     [](Call& c) { move_into(*c.arguments.state.initial_key_sum, c.arguments.o); }},
    {"final_key_sum", "o",
     [](Call& c) { c.arguments.state.final_key_sum->data = c.arguments.o.data; }},
    {"state.final", "initial_key_sum",
     [](Call& c) { move_into(*c.arguments.state.initial_key_sum, *c.arguments.state.final); }},
    {"final_key_sum", "state.initial",
     [](Call& c) { c.arguments.state.final_key_sum->data = c.arguments.state.initial->data; }},
    {"final_key_sum", "state.final",
     [](Call& c) { c.arguments.state.final_key_sum->data = c.arguments.state.final->data; }},
};

TEST(Aliases, KeySumsShareNoMemoryWithStatesAndOutputs) {
    for (const auto& [output, input, spoil] : kKeySumOverlaps) {
        SCOPED_TRACE(std::string(output) + " over " + input);
        Call call = key_sum_call({4, 2}, {1, 5}, false);
        spoil(call);
        expect_refused(call, std::string("alias | ") + output + " | memory that overlaps " + input +
                                 " | memory of its own");
    }
}

TEST(Aliases, OutputsShareNoMemoryWithCheckpointIndices) {
    using Output = TensorView& (*)(Call&);
    using Index = std::optional<TensorView> StateArguments::*;
    const std::pair<const char*, Output> outputs[] = {
        {"o", [](Call& c) -> TensorView& { return c.arguments.o; }},
        {"state.final", [](Call& c) -> TensorView& { return *c.arguments.state.final; }},
        {"checkpoints", [](Call& c) -> TensorView& { return *c.arguments.state.checkpoints; }},
    };
    const std::pair<const char*, Index> indices[] = {
        {"checkpoint_sequences", &StateArguments::checkpoint_sequences},
        {"checkpoint_positions", &StateArguments::checkpoint_positions},
        {"checkpoint_slots", &StateArguments::checkpoint_slots},
    };
    for (const auto& [output, view] : outputs) {
        for (const auto& [name, index] : indices) {
            SCOPED_TRACE(std::string(output) + " over " + name);
            Call call;
            call.add_states();
            call.add_checkpoints();
            move_into(*(call.arguments.state.*index), view(call));
            expect_refused(call, std::string("alias | ") + output + " | memory that overlaps " +
                                     name + " | memory of its own");
        }
    }
}

}  // namespace
}  // namespace sluice
