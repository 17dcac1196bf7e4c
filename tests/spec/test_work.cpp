// Counts of work against closed forms worked out by hand.
#include <gtest/gtest.h>

#include "sluice/variants.hpp"
#include "sluice/work.hpp"
#include "support/call.hpp"

namespace sluice {
namespace {

/// One token of one head, K = V = 128, bfloat16: every count below is per token and head.
Shape one_token() {
    Shape shape;
    shape.dims = {.B = 1, .T = 1, .H = 1, .HV = 1, .K = 128, .V = 128, .N = 1};
    shape.tokens = 1;
    return shape;
}

// Prefill, additive: scores 2 * 64 * 128, A U 2 * 64 * 128, q S and k^T U 2 * 128 * 128 each.
TEST(Work, PrefillWithAVectorGate) {
    const Work w = work(make_spec("gla"), one_token(), Phase::kPrefill);
    EXPECT_EQ(w.flops, 98'304);
    EXPECT_EQ(w.bytes_read, 4 * 256);  // q, k, v, g
    EXPECT_EQ(w.bytes_written, 256);   // o
    EXPECT_EQ(w.bytes(), 1280);
}

TEST(Work, PrefillWithAWideGate) {
    Shape shape = one_token();
    shape.gate_dtype = DType::kFloat32;
    const Work w = work(make_spec("gla"), shape, Phase::kPrefill);
    EXPECT_EQ(w.flops, 98'304);
    EXPECT_EQ(w.bytes(), 1536);
}

TEST(Work, PrefillWithAScalarGate) {
    Shape shape = one_token();
    shape.gate_dtype = DType::kFloat32;
    const Work w = work(make_spec("simple_gla"), shape, Phase::kPrefill);
    EXPECT_EQ(w.flops, 98'304);
    EXPECT_EQ(w.bytes(), 1028);
}

TEST(Work, PrefillWithoutAGate) {
    EXPECT_EQ(work(make_spec("linear"), one_token(), Phase::kPrefill).bytes(), 1024);
    EXPECT_EQ(work(make_spec("retention"), one_token(), Phase::kPrefill).flops, 98'304);
}

// 64 heads of P 64, N 128 over one group: scores 2 * 64 * 128 once, per head A U 2 * 64 * 64, q S
// and k^T U 2 * 128 * 64 each. B and C are 2 * 128 * 2 bytes for all heads together.
TEST(Work, PrefillOfMamba2SharesItsScores) {
    Shape shape = one_token();
    shape.dims = {.B = 1, .T = 1, .H = 1, .HV = 64, .K = 128, .V = 64, .N = 1};
    const Work w = work(make_spec("mamba2"), shape, Phase::kPrefill);
    EXPECT_EQ(w.flops, 2 * 64 * 128 + 64 * (2 * 64 * 64 + 2 * 2 * 128 * 64));
    EXPECT_EQ((w.flops - 2 * 64 * 128) / 64, 40'960);
    // x and o 128 bytes, dt 2, the share of B and C 8; A is float32 and once.
    EXPECT_EQ(w.bytes(), 64 * (128 + 128 + 2 + 8) + 64 * 4);
    EXPECT_EQ((w.bytes() - 64 * 4) / 64, 266);
}

// Grouped keys share scores unless each value head has a decay per channel.
TEST(Work, ScoresAreCountedOncePerKeyHeadUnlessTheDecayIsAVector) {
    Shape shape = one_token();
    shape.dims.HV = 4;
    constexpr double kScores = 2 * 64 * 128;
    constexpr double kRest = 98'304 - kScores;
    EXPECT_EQ(work(make_spec("simple_gla"), shape, Phase::kPrefill).flops, kScores + 4 * kRest);
    EXPECT_EQ(work(make_spec("gla"), shape, Phase::kPrefill).flops, 4 * 98'304);
}

// Delta adds L 2 * 64 * 128, the solve 64 * 128, and k S 2 * 128 * 128.
TEST(Work, PrefillOfDeltaRules) {
    constexpr double kExtra = 2 * 64 * 128 + 64 * 128 + 2 * 128 * 128;
    EXPECT_EQ(work(make_spec("delta_rule"), one_token(), Phase::kPrefill).flops, 98'304 + kExtra);
    EXPECT_EQ(work(make_spec("kda"), one_token(), Phase::kPrefill).flops, 98'304 + kExtra);
    // q, k, v, o and beta
    EXPECT_EQ(work(make_spec("delta_rule"), one_token(), Phase::kPrefill).bytes(), 1024 + 2);
}

// Decode: decay, k v^T and add, q S are five operations an element of the state; it is read and
// written in float32.
TEST(Work, DecodeMovesTheState) {
    Shape shape = one_token();
    shape.reads_state = shape.writes_state = true;
    const Work w = work(make_spec("gla"), shape, Phase::kDecode);
    EXPECT_EQ(w.flops, 5 * 128 * 128);
    EXPECT_EQ(w.flops, 81'920);
    EXPECT_EQ(w.bytes(), 2 * 128 * 128 * 4 + 1280);
    EXPECT_EQ(w.bytes(), 132'352);
    EXPECT_EQ(work(make_spec("kda"), shape, Phase::kDecode).flops, 7 * 128 * 128);
}

TEST(Work, StatesCountOncePerSequence) {
    Shape shape = one_token();
    shape.dims.N = 3;
    shape.tokens = 30;
    shape.reads_state = true;
    shape.state_dtype = DType::kBFloat16;
    const Work w = work(make_spec("linear"), shape, Phase::kPrefill);
    EXPECT_EQ(w.bytes_read, 30 * 768 + 3 * 128 * 128 * 2);
    EXPECT_EQ(w.bytes_written, 30 * 256);
    EXPECT_EQ(w.flops, 30 * 98'304);
}

TEST(Work, FloorIsTheSlowerOfMemoryAndProducts) {
    DeviceSpec device;
    device.copy_bytes_per_s = 4e12;
    device.matmul_flops_per_s = 8e14;
    Work w;
    w.flops = 8e11;
    w.bytes_read = 3e9;
    w.bytes_written = 1e9;
    Floor floor = floor_on(device, w);
    EXPECT_DOUBLE_EQ(floor.memory_us, 1000);
    EXPECT_DOUBLE_EQ(floor.compute_us, 1000);
    w.bytes_written = 0;
    floor = floor_on(device, w);
    EXPECT_DOUBLE_EQ(floor.us(), 1000);
    EXPECT_DOUBLE_EQ(floor.memory_us, 750);
    EXPECT_EQ(floor_on(DeviceSpec{}, w).us(), 0);
}

// B16 T16384 H16 with a vector gate on an H200: 5.37 GB, 1.25 ms; scalar: 1.0 ms.
TEST(Work, FloorsOfTheHopperTable) {
    Shape shape = one_token();
    shape.dims = {.B = 16, .T = 16'384, .H = 16, .HV = 16, .K = 128, .V = 128, .N = 16};
    shape.tokens = 16 * 16'384;
    const Work vector = work(make_spec("gla"), shape, Phase::kPrefill);
    EXPECT_NEAR(vector.bytes(), 5.37e9, 0.005e9);
    EXPECT_NEAR(floor_on(h200(), vector).us(), 1254, 5);
    const Work scalar = work(make_spec("simple_gla"), shape, Phase::kPrefill);
    EXPECT_NEAR(floor_on(h200(), scalar).us(), 1005, 5);
}

TEST(Work, ShapeFollowsTheProblem) {
    test::Call call;
    call.add_states();
    call.arguments.o = call.poison(DType::kBFloat16, {2, 70, 4, 12});
    const Problem problem = bind(call.spec, call.arguments, {});
    const Shape shape = shape_of(problem);
    EXPECT_EQ(shape.tokens, 140);
    EXPECT_EQ(shape.dtype, DType::kBFloat16);
    EXPECT_EQ(shape.gate_dtype, DType::kFloat32);
    EXPECT_EQ(shape.state_dtype, DType::kFloat32);
    EXPECT_TRUE(shape.reads_state && shape.writes_state);
    EXPECT_EQ(work(problem).flops, work(call.spec, shape, Phase::kPrefill).flops);
}

// Gated delta rule, B 2, T 70, H 2, HV 4, K 8, V 12: q and k of 2240 elements, v 6720, g and beta
// 560 each, and o 6720.
TEST(Work, InputsCountWithTheirOwnDtypes) {
    test::Call call;
    call.input("k") = call.zeros(DType::kBFloat16, {2, 70, 2, 8});
    call.input("v") = call.zeros(DType::kFloat16, {2, 70, 4, 12});
    call.input("beta") = call.zeros(DType::kFloat64, {2, 70, 4});
    const Work w = work(bind(call.spec, call.arguments, {}));
    EXPECT_EQ(w.bytes_read, 2240 * 4 + 2240 * 2 + 6720 * 2 + 560 * 4 + 560 * 8);
    EXPECT_EQ(w.bytes_written, 6720 * 4);
    call.arguments.o = call.poison(DType::kBFloat16, {2, 70, 4, 12});
    const Work narrow = work(bind(call.spec, call.arguments, {}));
    EXPECT_EQ(narrow.bytes_read, w.bytes_read);
    EXPECT_EQ(narrow.bytes_written, 6720 * 2);
}

TEST(Work, ExpandedDimensionsCountOnce) {
    test::Call call;
    call.input("q").stride_elements[2] = 0;                   // one key head's queries for both
    call.input("g").stride_elements = {0, 1, 0};              // one gate per token
    call.input("beta").stride_elements = {0, 0, 0};           // one number
    call.input("v").stride_elements = {70 * 48, -48, 12, 1};  // tokens backwards
    call.input("v").data = static_cast<float*>(call.input("v").data) + 69 * 48;
    const Work w = work(bind(call.spec, call.arguments, {}));
    EXPECT_EQ(w.bytes_read, 4 * (1120 + 2240 + 6720 + 70 + 1));
}

// Rows of eight keys that begin one element apart share all but one.
TEST(Work, OverlappingWindowsCountOnce) {
    test::Call call;
    call.input("k").stride_elements = {71, 1, 0, 1};
    const Work w = work(bind(call.spec, call.arguments, {}));
    EXPECT_EQ(w.bytes_read, 4 * (2240 + (71 + 69 + 7 + 1) + 6720 + 560 + 560));
}

TEST(Work, NothingIsReadOfNoTokens) {
    test::Call call(make_spec("gla"), {.B = 2, .T = 0, .H = 2, .HV = 4, .K = 8, .V = 12, .N = 2});
    const Work w = work(bind(call.spec, call.arguments, {}));
    EXPECT_EQ(w.bytes(), 0);
    EXPECT_EQ(w.flops, 0);
}

TEST(Work, StatesCountWithTheirOwnDtypes) {
    test::Call call;
    const double inputs = work(bind(call.spec, call.arguments, {})).bytes_read;
    call.arguments.state.initial = call.zeros(DType::kBFloat16, {2, 4, 8, 12});
    EXPECT_EQ(work(bind(call.spec, call.arguments, {})).bytes_read, inputs + 768 * 2);
    call.arguments.state.final = call.zeros(DType::kFloat64, {2, 4, 8, 12});
    const Work w = work(bind(call.spec, call.arguments, {}));
    EXPECT_EQ(w.bytes_read, inputs + 768 * 2);
    EXPECT_EQ(w.bytes_written, 6720 * 4 + 768 * 8);
}

// Without tensors: an input of rows but no tokens, and one that all rows share.
TEST(Work, DenseInputsCountByTheirAxes) {
    Shape shape = one_token();
    shape.dims = {.B = 3, .T = 10, .H = 1, .HV = 2, .K = 128, .V = 128, .N = 3};
    shape.tokens = 30;
    Spec spec = make_spec("linear");
    const double plain = work(spec, shape, Phase::kPrefill).bytes_read;
    spec.inputs.push_back({"per_row", {Axis::kB, Axis::kHV}, ""});
    EXPECT_EQ(work(spec, shape, Phase::kPrefill).bytes_read, plain + 3 * 2 * 4);
    spec.inputs.back() = {"per_position", {Axis::kT, Axis::kHV}, ""};
    EXPECT_EQ(work(spec, shape, Phase::kPrefill).bytes_read, plain + 10 * 2 * 2);
}

}  // namespace
}  // namespace sluice
