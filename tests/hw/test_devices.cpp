// Device tables, and the probe of this machine.
#include <gtest/gtest.h>
#include <omp.h>

#include "sluice/device.hpp"
#include "sluice/work.hpp"

namespace sluice {
namespace {

TEST(H200, Table) {
    const DeviceSpec& d = h200();
    EXPECT_EQ(d.name, "NVIDIA H200");
    EXPECT_FALSE(d.source.empty());
    EXPECT_EQ(d.multiprocessors, 132);
    EXPECT_EQ(d.shared_memory_bytes, 233'472);
    // The balance between arithmetic and memory, FLOPs per byte, that prefill is judged against.
    EXPECT_NEAR(d.matmul_flops_per_s / d.copy_bytes_per_s, 187, 1);
}

TEST(H200, FloorsOfThePublishedShapes) {
    // B 16, T 16384, H 16, K = V = 128 in bfloat16: 1.25 ms with vector gates, 1.0 with scalar.
    Shape shape;
    shape.dims = {.B = 16, .T = 16384, .H = 16, .HV = 16, .K = 128, .V = 128, .N = 16};
    shape.tokens = shape.dims.B * shape.dims.T;
    Spec spec;
    spec.inputs = {{"q", {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, ""},
                   {"k", {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, ""},
                   {"v", {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, ""},
                   {"g", {Axis::kB, Axis::kT, Axis::kHV, Axis::kK}, ""}};
    spec.log_decay = Expr::input("g");
    const auto floor = [&] { return floor_on(h200(), work(spec, shape, Phase::kPrefill)); };
    EXPECT_NEAR(floor().us(), 1254, 2);
    EXPECT_EQ(floor().us(), floor().memory_us);
    spec.inputs.back().axes.pop_back();
    EXPECT_NEAR(floor().us(), 1007, 2);
}

TEST(Host, ProbeIsPlausibleAndRemembered) {
    const DeviceSpec& d = host_device();
    EXPECT_EQ(&d, &host_device());
    EXPECT_EQ(d.multiprocessors, omp_get_num_procs());
    EXPECT_FALSE(d.name.empty());
    EXPECT_TRUE(d.source.starts_with("measured ")) << d.source;
    // Between a busy small board and anything that exists.
    EXPECT_GT(d.copy_bytes_per_s, 1e8);
    EXPECT_LT(d.copy_bytes_per_s, 1e13);
    EXPECT_GT(d.matmul_flops_per_s, 1e8);
    EXPECT_LT(d.matmul_flops_per_s, 1e15);
}

}  // namespace
}  // namespace sluice
