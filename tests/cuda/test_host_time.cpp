// What a call costs the host: printed, and bounded loosely (other programs share the machine).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <string>
#include <vector>

#include "cuda/backend/tensor_maps.hpp"
#include "cuda/engine/driver.hpp"
#include "runtime/mirror.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"

namespace sluice::test {
namespace {

constexpr int kCalls = 1000;
/// The driver makes a caller wait who is a thousand launches ahead.
constexpr int kCallsAhead = 50;

/// Median time of `call`, without waiting for the device in between.
template <class F>
double median_us(F&& call) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> times;
    for (int i = 0; i < kCalls; ++i) {
        if (i % kCallsAhead == 0) synchronize(first_cuda_device());
        const Clock::time_point start = Clock::now();
        call();
        const std::chrono::duration<double, std::micro> time = Clock::now() - start;
        times.push_back(time.count());
    }
    std::ranges::nth_element(times, times.begin() + kCalls / 2);
    return times[kCalls / 2];
}

class HostTimeOnGpu : public testing::Test {
  protected:
    void SetUp() override { SKIP_WITHOUT("cuda"); }
};

void print_host_time(const char* form, const Dims& dims) {
    const Device device = first_cuda_device();
    const Plain plain = make_plain(find_form(form), dims, {.kinds = {}, .dtype = DType::kBFloat16});
    const Tensor o = poisoned(DType::kBFloat16, {1, dims.T, dims.HV, dims.V});
    Arguments here = plain.arguments();
    here.o = o;
    const Mirror mirror(here, device);
    mirror.fetch();
    Options options;
    options.backend = "cuda";
    Arguments arguments = mirror.arguments();
    const Spec& spec = plain.spec;
    const Plan prepared = prepare(spec, arguments, options);
    const auto print = [](const char* what, double us) {
        std::cout << fmt::format("{:>48}  {:6.2f} us\n", what, us);
        return us;
    };
    std::cout << prepared.to_string() << '\n';

    print("forward, workspace by the library",
          median_us([&] { (void)forward(spec, arguments, options); }));
    const std::int64_t bytes[] = {std::max<std::int64_t>(prepared.workspace_bytes, 1)};
    const Tensor workspace = empty_on(DType::kBool, bytes, device);
    arguments.workspace = workspace.view();
    const double whole = print("forward, workspace by the caller",
                               median_us([&] { (void)forward(spec, arguments, options); }));

    const Problem problem = bind(spec, arguments, options);
    const Backend& backend = find_backend("cuda");
    const DeviceSpec& gpu = nominal_device(device);
    print("of it: bind", median_us([&] { (void)bind(spec, arguments, options); }));
    print("find and ask the back end",
          median_us([&] { (void)select_backend(problem, options.backend); }));
    print("plan", median_us([&] { (void)backend.plan(problem, gpu); }));
    print("prepare", median_us([&] { (void)backend.prepare(problem, prepared); }));
    print("run", median_us([&] { backend.run(problem, prepared); }));
    print("of it, as often as needed: a context made current",
          median_us([&] { const cuda::ContextScope scope(device.index); }));
    const cuda::ContextScope scope(device.index);
    print("whether the stream is captured", median_us([&] {
              cuda::CaptureStatus status{};
              (void)cuda::require_driver().stream_is_capturing(nullptr, &status);
          }));
    print("a tensor map", median_us([&] {
              alignas(64) std::byte map[128];
              cuda::encode_tensor_map(map, problem.o, dims, 64);
          }));
    EXPECT_LT(whole, 100);
}

TEST_F(HostTimeOnGpu, OfGlaB1T4096IsPrinted) {
    print_host_time("gla", {.B = 1, .T = 4096, .H = 16, .HV = 16, .K = 128, .V = 128});
}

TEST_F(HostTimeOnGpu, OfMamba2B1T4096IsPrinted) {
    print_host_time("mamba2_bias_d", {.B = 1, .T = 4096, .H = 1, .HV = 64, .K = 128, .V = 64});
}

TEST_F(HostTimeOnGpu, OfRetentionB1T4096IsPrinted) {
    print_host_time("retention", {.B = 1, .T = 4096, .H = 16, .HV = 16, .K = 128, .V = 128});
}

}  // namespace
}  // namespace sluice::test
