// bind() of tensors on a CUDA device: checked by shape, type, device and address alone. No memory
// stands behind the addresses here, so that reading any of it would crash the test.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sluice/sluice.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

using test::refusal;

constexpr Device kGpu{DeviceKind::kCuda, 0};
constexpr Device kOtherGpu{DeviceKind::kCuda, 1};
constexpr std::int64_t kB = 2, kT = 3, kH = 2, kHV = 4, kK = 8, kV = 12, kSlots = 6;

/// A call, of gated linear attention unless said otherwise, B 2, T 3, H 2, HV 4, K 8, V 12,
/// bfloat16, with states in float32.
struct DeviceCall {
    explicit DeviceCall(Spec of = make_spec("gla")) : spec(std::move(of)) {
        const std::int64_t extents[kNumAxes] = {kB, kT, kH, kHV, kK, kV};
        for (const Input& input : spec.inputs) {
            std::vector<std::int64_t> shape;
            for (const Axis axis : input.axes) shape.push_back(extents[static_cast<int>(axis)]);
            arguments.inputs.emplace_back(input.name, view(DType::kBFloat16, shape));
        }
        arguments.o = view(DType::kBFloat16, {kB, kT, kHV, kV});
    }

    /// An address of its own, aligned to 256 bytes.
    TensorView view(DType dtype, std::span<const std::int64_t> shape, Device device = kGpu) {
        const TensorView made(reinterpret_cast<void*>(next_address_), dtype, shape, device);
        next_address_ += 1 << 20;
        return made;
    }
    TensorView view(DType dtype, std::initializer_list<std::int64_t> shape, Device device = kGpu) {
        return view(dtype, std::span(shape.begin(), shape.size()), device);
    }
    TensorView& input(const std::string& name) {
        for (auto& [known, given] : arguments.inputs) {
            if (known == name) return given;
        }
        throw std::invalid_argument(name);
    }
    void set_inputs(DType dtype) {
        for (auto& [name, given] : arguments.inputs) given.dtype = dtype;
    }

    void add_states() {
        arguments.state.initial = view(DType::kFloat32, {kB, kHV, kK, kV});
        arguments.state.final = view(DType::kFloat32, {kB, kHV, kK, kV});
    }
    void add_pools() {
        StateArguments& s = arguments.state;
        s.initial = view(DType::kFloat32, {kSlots, kHV, kK, kV});
        s.final = s.initial;
        s.read_slots = view(DType::kInt32, {kB});
        s.write_slots = view(DType::kInt64, {kB});
        s.has_initial = view(DType::kBool, {kB});
    }
    void add_checkpoints(std::int64_t count) {
        StateArguments& s = arguments.state;
        s.checkpoints = view(DType::kFloat32, {kSlots, kHV, kK, kV});
        s.checkpoint_sequences = view(DType::kInt32, {count});
        s.checkpoint_positions = view(DType::kInt64, {count});
        s.checkpoint_slots = view(DType::kInt32, {count});
    }
    /// `sequences` in one row of seven tokens.
    void pack(std::int64_t sequences) {
        for (auto& [name, given] : arguments.inputs) {
            given = view(given.dtype, {1, 7, given.extents[2], given.extents[3]});
        }
        arguments.o = view(DType::kBFloat16, {1, 7, kHV, kV});
        arguments.cu_seqlens = view(DType::kInt32, {sequences + 1});
    }

    [[nodiscard]] Problem bind(Phase phase = Phase::kPrefill) const {
        return sluice::bind(spec, arguments, options, phase);
    }

    Spec spec;
    Arguments arguments;
    Options options;

  private:
    std::uintptr_t next_address_ = 0x7f00'0000'0000;
};

struct BadCall {
    const char* name;
    std::function<void(DeviceCall&)> spoil;  // of a call with pools, or as `start` says
    const char* refusal;                     // code | argument | value | accepted
    Phase phase = Phase::kPrefill;
};

template <std::size_t N>
void expect_all_refused(
    const BadCall (&list)[N], void (*start)(DeviceCall&) = [](DeviceCall& c) { c.add_pools(); }) {
    for (const BadCall& bad : list) {
        DeviceCall call;
        start(call);
        ASSERT_EQ(refusal([&] { (void)call.bind(); }), "accepted") << bad.name;
        bad.spoil(call);
        EXPECT_EQ(refusal([&] { (void)call.bind(bad.phase); }), bad.refusal) << bad.name;
    }
}

const BadCall kTensors[] = {
    {"input on the CPU", [](DeviceCall& c) { c.input("k").device = {}; },
     "device | k | cpu | cuda:0 as for q"},
    {"input on another GPU", [](DeviceCall& c) { c.input("g").device = kOtherGpu; },
     "device | g | cuda:1 | cuda:0 as for q"},
    {"input of integers", [](DeviceCall& c) { c.input("v").dtype = DType::kInt32; },
     "dtype | v | int32 | float32, bfloat16, float16 or float64"},
    {"input of another length",
     [](DeviceCall& c) {
         c.input("v") = c.view(DType::kBFloat16, {kB, 4, kHV, kV});
     },
     "shape | v | bfloat16 [2, 4, 4, 12] | [B, T, HV, V] = [2, 3, HV, V] (T = 3 as in q)"},
    {"null input", [](DeviceCall& c) { c.input("q").data = nullptr; },
     "value | q | null data | memory of 192 bytes"},
    {"output on the CPU", [](DeviceCall& c) { c.arguments.o.device = {}; },
     "device | o | cpu | cuda:0 as the inputs"},
    {"output of another shape",
     [](DeviceCall& c) {
         c.arguments.o = c.view(DType::kBFloat16, {kB, kT, kHV, kK});
     },
     "shape | o | bfloat16 [2, 3, 4, 8] | [B, T, HV, V] = [2, 3, 4, 12] (V = 12 as in the other "
     "arguments)"},
    {"output over an input", [](DeviceCall& c) { c.arguments.o.data = c.input("v").data; },
     "alias | o | memory that overlaps v | memory of its own"},
    {"state on the CPU", [](DeviceCall& c) { c.arguments.state.final->device = {}; },
     "device | state.final | cpu | cuda:0 as the inputs"},
    {"state of another shape",
     [](DeviceCall& c) {
         c.arguments.state.initial = c.view(DType::kFloat32, {kSlots, kHV, kV, kK});
     },
     "shape | state.initial | float32 [6, 4, 12, 8] | [slots, HV, K, V] = [6, 4, 8, 12]"},
};

TEST(BindDevice, RefusesBadTensors) { expect_all_refused(kTensors); }

const BadCall kIndexTensors[] = {
    {"read_slots on the CPU", [](DeviceCall& c) { c.arguments.state.read_slots->device = {}; },
     "device | read_slots | cpu | cuda:0 as the inputs"},
    {"write_slots on another GPU",
     [](DeviceCall& c) { c.arguments.state.write_slots->device = kOtherGpu; },
     "device | write_slots | cuda:1 | cuda:0 as the inputs"},
    {"has_initial on the CPU", [](DeviceCall& c) { c.arguments.state.has_initial->device = {}; },
     "device | has_initial | cpu | cuda:0 as the inputs"},
    {"read_slots of floats",
     [](DeviceCall& c) { c.arguments.state.read_slots->dtype = DType::kFloat32; },
     "dtype | read_slots | float32 | int32 or int64"},
    {"has_initial of integers",
     [](DeviceCall& c) { c.arguments.state.has_initial->dtype = DType::kInt32; },
     "dtype | has_initial | int32 | bool"},
    {"write_slots of bools",
     [](DeviceCall& c) { c.arguments.state.write_slots->dtype = DType::kBool; },
     "dtype | write_slots | bool | int32 or int64"},
    {"read_slots too short",
     [](DeviceCall& c) { c.arguments.state.read_slots = c.view(DType::kInt32, {1}); },
     "shape | read_slots | int32 [1] | [N] = [2]"},
    {"write_slots too long",
     [](DeviceCall& c) { c.arguments.state.write_slots = c.view(DType::kInt64, {3}); },
     "shape | write_slots | int64 [3] | [N] = [2]"},
    {"has_initial of rank 2",
     [](DeviceCall& c) {
         c.arguments.state.has_initial = c.view(DType::kBool, {kB, 1});
     },
     "shape | has_initial | bool [2, 1] | [N] = [2]"},
    {"null write_slots", [](DeviceCall& c) { c.arguments.state.write_slots->data = nullptr; },
     "value | write_slots | null data | memory of 16 bytes"},
    {"2-D read_slots in forward()",
     [](DeviceCall& c) {
         c.arguments.state.read_slots = c.view(DType::kInt32, {kB, 4});
     },
     "shape | read_slots | int32 [2, 4] | [N] = [2]"},
    {"2-D write_slots in forward()",
     [](DeviceCall& c) {
         c.arguments.state.write_slots = c.view(DType::kInt64, {kB, kT});
     },
     "shape | write_slots | int64 [2, 3] | [N] = [2]"},
    {"no columns in 2-D read_slots",
     [](DeviceCall& c) {
         c.arguments.state.read_slots = c.view(DType::kInt32, {kB, 0});
     },
     "shape | read_slots | int32 [2, 0] | [N, M] with M >= 1", Phase::kDecode},
    {"2-D write_slots of another length",
     [](DeviceCall& c) {
         c.arguments.state.write_slots = c.view(DType::kInt64, {kB, 4});
     },
     "shape | write_slots | int64 [2, 4] | [N, T] = [2, 3]", Phase::kDecode},
    {"accepted without columns",
     [](DeviceCall& c) { c.arguments.state.accepted = c.view(DType::kInt32, {kB}); },
     "surplus | accepted | int32 [2] | accepted only in step() with read_slots [N, M]",
     Phase::kDecode},
    {"accepted on the CPU",
     [](DeviceCall& c) {
         c.arguments.state.read_slots = c.view(DType::kInt32, {kB, 4});
         c.arguments.state.accepted = c.view(DType::kInt32, {kB}, {});
     },
     "device | accepted | cpu | cuda:0 as the inputs", Phase::kDecode},
    {"slots without a pool", [](DeviceCall& c) { c.arguments.state.final.reset(); },
     "missing | state.final | nothing | state.final with write_slots"},
    {"output over slots",
     [](DeviceCall& c) { c.arguments.o.data = c.arguments.state.read_slots->data; },
     "alias | o | memory that overlaps read_slots | memory of its own"},
};

TEST(BindDevice, RefusesBadIndexTensors) { expect_all_refused(kIndexTensors); }

const BadCall kPacked[] = {
    {"cu_seqlens on the CPU", [](DeviceCall& c) { c.arguments.cu_seqlens->device = {}; },
     "device | cu_seqlens | cpu | cuda:0 as the inputs"},
    {"cu_seqlens of floats", [](DeviceCall& c) { c.arguments.cu_seqlens->dtype = DType::kFloat32; },
     "dtype | cu_seqlens | float32 | int32 or int64"},
    {"cu_seqlens of rank 2",
     [](DeviceCall& c) {
         c.arguments.cu_seqlens = c.view(DType::kInt32, {2, 2});
     },
     "shape | cu_seqlens | int32 [2, 2] | [N + 1] = [any]"},
    {"no offsets", [](DeviceCall& c) { c.arguments.cu_seqlens = c.view(DType::kInt32, {0}); },
     "shape | cu_seqlens | int32 [0] | [N + 1]"},
    {"dense states of another N",
     [](DeviceCall& c) {
         c.arguments.state.final = c.view(DType::kFloat32, {2, kHV, kK, kV});
     },
     "shape | state.final | float32 [2, 4, 8, 12] | [N, HV, K, V] = [3, 4, 8, 12]"},
    {"write slots per token",
     [](DeviceCall& c) {
         c.arguments.state.final = c.view(DType::kFloat32, {kSlots, kHV, kK, kV});
         c.arguments.state.write_slots = c.view(DType::kInt32, {3, 7});
     },
     "unsupported | write_slots | int32 [3, 7] | [N] with cu_seqlens; [N, T] without",
     Phase::kDecode},
};

TEST(BindDevice, RefusesBadPackedCalls) {
    expect_all_refused(kPacked, [](DeviceCall& c) { c.pack(3); });
    DeviceCall rows;
    rows.arguments.cu_seqlens = rows.view(DType::kInt32, {3});
    EXPECT_EQ(refusal([&] { (void)rows.bind(); }),
              "shape | cu_seqlens | with B = 2 | packed sequences in one batch row, B = 1");
}

const BadCall kCheckpoints[] = {
    {"positions of another length",
     [](DeviceCall& c) { c.arguments.state.checkpoint_positions = c.view(DType::kInt64, {4}); },
     "shape | checkpoint_positions | int64 [4] | [M] = [5]"},
    {"sequences on the CPU",
     [](DeviceCall& c) { c.arguments.state.checkpoint_sequences->device = {}; },
     "device | checkpoint_sequences | cpu | cuda:0 as the inputs"},
    {"slots of floats",
     [](DeviceCall& c) { c.arguments.state.checkpoint_slots->dtype = DType::kFloat16; },
     "dtype | checkpoint_slots | float16 | int32 or int64"},
    {"without positions", [](DeviceCall& c) { c.arguments.state.checkpoint_positions.reset(); },
     "missing | checkpoint_positions | nothing | checkpoint_positions with checkpoints"},
};

TEST(BindDevice, RefusesBadCheckpoints) {
    expect_all_refused(kCheckpoints, [](DeviceCall& c) { c.add_checkpoints(5); });
}

const BadCall kWorkspaces[] = {
    {"on the CPU", [](DeviceCall& c) { c.arguments.workspace->device = {}; },
     "device | workspace | cpu | cuda:0 as the inputs"},
    {"on another GPU", [](DeviceCall& c) { c.arguments.workspace->device = kOtherGpu; },
     "device | workspace | cuda:1 | cuda:0 as the inputs"},
    {"null", [](DeviceCall& c) { c.arguments.workspace->data = nullptr; },
     "value | workspace | null data | memory of 4096 bytes"},
    {"over the output", [](DeviceCall& c) { c.arguments.workspace->data = c.arguments.o.data; },
     "alias | workspace | memory that overlaps o | memory of its own"},
    {"over an input", [](DeviceCall& c) { c.arguments.workspace->data = c.input("q").data; },
     "alias | workspace | memory that overlaps q | memory of its own"},
};

TEST(BindDevice, RefusesBadWorkspaces) {
    const auto start = [](DeviceCall& c) {
        c.arguments.workspace = c.view(DType::kFloat32, {1024});
    };
    expect_all_refused(kWorkspaces, start);
    DeviceCall call;
    start(call);
    TensorView& workspace = *call.arguments.workspace;
    auto* const aligned = static_cast<char*>(workspace.data);
    for (const int offset : {1, 4, 128}) {
        workspace.data = aligned + offset;
        const std::string text = refusal([&] { (void)call.bind(); });
        EXPECT_EQ(text.substr(0, 45), "stride | workspace | float32 [1024] at 0x7f00") << offset;
        EXPECT_NE(text.find("| contiguous memory, aligned to 256 bytes"), std::string::npos);
    }
    workspace.data = aligned;
    workspace.stride_elements[0] = 2;
    EXPECT_NE(refusal([&] { (void)call.bind(); }).find("contiguous memory"), std::string::npos);
}

void expect_bound(const DeviceIndices& bound, const TensorView& given) {
    EXPECT_EQ(bound.data, given.data);
    EXPECT_EQ(bound.dtype, given.dtype);
    for (int i = 0; i < given.rank; ++i) {
        EXPECT_EQ(bound.extents[i], given.extents[i]);
        EXPECT_EQ(bound.strides[i], given.stride_elements[i]);
    }
}

TEST(BindDevice, BindsADenseCall) {
    DeviceCall call;
    call.add_states();
    call.arguments.workspace = call.view(DType::kFloat32, {1024});
    int stream = 0;
    call.options.stream = &stream;
    call.options.compile = false;
    const Problem problem = call.bind();
    EXPECT_EQ(problem.device, kGpu);
    EXPECT_EQ(problem.dims.N, kB);
    EXPECT_EQ(problem.input("g").data, call.input("g").data);
    EXPECT_EQ(problem.o.data, call.arguments.o.data);
    EXPECT_EQ(problem.initial.data, call.arguments.state.initial->data);
    EXPECT_EQ(problem.final.slots, kB);
    EXPECT_EQ(problem.workspace, call.arguments.workspace->data);
    EXPECT_EQ(problem.workspace_bytes, 4096);
    EXPECT_EQ(problem.stream, &stream);
    EXPECT_FALSE(problem.compile);
    EXPECT_FALSE(problem.indices.cu_seqlens || problem.indices.read_slots ||
                 problem.indices.write_slots || problem.indices.has_initial ||
                 problem.indices.accepted || problem.indices.checkpoint_slots);
}

TEST(BindDevice, LeavesIndexTensorsWhereTheyAre) {
    DeviceCall call;
    call.add_pools();
    call.add_checkpoints(5);
    call.arguments.state.read_slots->stride_elements[0] = 7;
    const StateArguments& s = call.arguments.state;
    const Problem problem = call.bind();
    EXPECT_EQ(problem.initial.slots, kSlots);
    expect_bound(problem.indices.read_slots, *s.read_slots);
    expect_bound(problem.indices.write_slots, *s.write_slots);
    expect_bound(problem.indices.has_initial, *s.has_initial);
    expect_bound(problem.indices.checkpoint_sequences, *s.checkpoint_sequences);
    expect_bound(problem.indices.checkpoint_positions, *s.checkpoint_positions);
    expect_bound(problem.indices.checkpoint_slots, *s.checkpoint_slots);
    EXPECT_TRUE(problem.sequences.empty());
    EXPECT_TRUE(problem.sequence_checkpoints.empty());
}

TEST(BindDevice, BindsSlotsPerTokenInDecode) {
    DeviceCall call;
    call.add_pools();
    call.arguments.state.read_slots = call.view(DType::kInt32, {kB, 5});
    call.arguments.state.write_slots = call.view(DType::kInt64, {kB, kT});
    call.arguments.state.accepted = call.view(DType::kInt32, {kB});
    const Problem problem = call.bind(Phase::kDecode);
    expect_bound(problem.indices.read_slots, *call.arguments.state.read_slots);
    expect_bound(problem.indices.write_slots, *call.arguments.state.write_slots);
    expect_bound(problem.indices.accepted, *call.arguments.state.accepted);
    EXPECT_TRUE(problem.token_write_slots.empty());
}

TEST(BindDevice, CountsPackedSequencesByTheirOffsets) {
    DeviceCall call;
    call.pack(3);
    call.arguments.state.final = call.view(DType::kFloat32, {3, kHV, kK, kV});
    const Problem problem = call.bind();
    EXPECT_EQ(problem.dims.B, 1);
    EXPECT_EQ(problem.dims.N, 3);
    EXPECT_TRUE(problem.sequences.empty());
    expect_bound(problem.indices.cu_seqlens, *call.arguments.cu_seqlens);
    EXPECT_EQ(infer_dims(call.spec, call.arguments).N, 3);
    call.pack(0);  // one offset: no sequence
    call.arguments.state.final.reset();
    EXPECT_EQ(call.bind().dims.N, 0);
}

TEST(BindDevice, PrecisionFollowsTheOperands) {
    DeviceCall call;
    EXPECT_EQ(call.bind().precision, Precision::kBFloat16);
    call.input("k").dtype = DType::kFloat16;
    EXPECT_EQ(call.bind().precision, Precision::kBFloat16);
    call.input("g").dtype = DType::kFloat32;  // no operand of a product
    EXPECT_EQ(call.bind().precision, Precision::kBFloat16);
    for (const char* name : {"q", "k", "v"}) {
        DeviceCall wide;
        wide.input(name).dtype = DType::kFloat32;
        EXPECT_EQ(wide.bind().precision, Precision::kFloat32) << name;
    }
    call.set_inputs(DType::kFloat32);
    EXPECT_EQ(call.bind().precision, Precision::kFloat32);
    call.set_inputs(DType::kFloat64);
    EXPECT_EQ(call.bind().precision, Precision::kFloat64);
    call.options.precision = Precision::kFloat32;
    EXPECT_EQ(call.bind().precision, Precision::kFloat32);
}

// Mamba-2's layers keep dt, A, D and dt_bias in float32 beside x, B and C in bfloat16.
TEST(BindDevice, PrecisionDoesNotFollowTimeStepsAndRates) {
    VariantRequest request;
    request.tensors = {{"dt_bias", {kHV}}, {"D", {kHV}}, {"z", {kB, kT, kHV, kV}}};
    const Spec spec = make_spec("mamba2", request);
    DeviceCall call(spec);
    for (const char* name : {"dt", "A", "D", "dt_bias", "z"}) {
        call.input(name).dtype = DType::kFloat32;
        EXPECT_EQ(call.bind().precision, Precision::kBFloat16) << name;
    }
    for (const char* name : {"x", "B", "C"}) {
        DeviceCall wide(spec);
        wide.input(name).dtype = DType::kFloat32;
        EXPECT_EQ(wide.bind().precision, Precision::kFloat32) << name;
    }
}

// Keys that are made of gates per channel are as precise as those.
TEST(BindDevice, PrecisionFollowsWhatOperandsAreMadeOf) {
    Spec spec = make_spec("gla");
    spec.k = Expr::input("k") * (1.0 - exp(Expr::input("g")));
    DeviceCall call(spec);
    EXPECT_EQ(call.bind().precision, Precision::kBFloat16);
    call.input("g").dtype = DType::kFloat32;
    EXPECT_EQ(call.bind().precision, Precision::kFloat32);
}

}  // namespace
}  // namespace sluice
