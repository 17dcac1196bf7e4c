// rebind(): the problem that bind() would have made, without binding.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/sluice.hpp"
#include "support/cases.hpp"
#include "support/instance.hpp"
#include "support/on_device.hpp"
#include "support/refusal.hpp"

namespace sluice::test {
namespace {

constexpr std::ptrdiff_t kElsewhere = std::ptrdiff_t{1} << 40;

/// Every tensor moved by as many bytes, so that they lie to each other as they did.
Arguments moved(Arguments arguments, std::ptrdiff_t bytes) {
    const auto move = [&](TensorView& view) {
        view.data = reinterpret_cast<void*>(reinterpret_cast<std::intptr_t>(view.data) + bytes);
    };
    for (auto& [name, view] : arguments.inputs) move(view);
    move(arguments.o);
    StateArguments& s = arguments.state;
    for (auto* view :
         {&arguments.cu_seqlens, &arguments.workspace, &s.initial, &s.final, &s.read_slots,
          &s.write_slots, &s.has_initial, &s.accepted, &s.checkpoints, &s.checkpoint_sequences,
          &s.checkpoint_positions, &s.checkpoint_slots, &s.initial_key_sum, &s.final_key_sum}) {
        if (*view) move(**view);
    }
    return arguments;
}

/// All that a call can change in a problem that is bound again.
std::vector<const void*> addresses(const Problem& p) {
    std::vector<const void*> all;
    for (const BoundInput& input : p.inputs) all.push_back(input.data);
    const auto& i = p.indices;
    for (const void* address :
         {static_cast<const void*>(p.o.data), static_cast<const void*>(p.initial.data),
          static_cast<const void*>(p.final.data), static_cast<const void*>(p.checkpoints.data),
          static_cast<const void*>(p.initial_key_sum.data),
          static_cast<const void*>(p.final_key_sum.data), i.cu_seqlens.data, i.read_slots.data,
          i.write_slots.data, i.has_initial.data, i.accepted.data, i.checkpoint_sequences.data,
          i.checkpoint_positions.data, i.checkpoint_slots.data,
          static_cast<const void*>(p.workspace), static_cast<const void*>(p.stream),
          reinterpret_cast<const void*>(p.workspace_bytes)}) {
        all.push_back(address);
    }
    return all;
}

TEST(Rebind, KeepsTheNumberOfItsBind) {
    const Case& c = cases().front();
    const Instance instance(c);
    const Arguments here = as_if_on_cuda(instance.arguments());
    Problem problem = bind(instance.spec(), here, instance.options(), c.phase);
    const std::uint64_t number = problem.bind_number;
    EXPECT_NE(number, 0U);
    rebind(problem, moved(here, kElsewhere), instance.options());
    EXPECT_EQ(problem.bind_number, number);
    EXPECT_NE(bind(instance.spec(), here, instance.options(), c.phase).bind_number, number);
}

TEST(Rebind, PointsEverywhereWhereBindWould) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(c.name());
        const Instance instance(c);
        const Arguments here = as_if_on_cuda(instance.arguments());
        const Arguments there = moved(here, kElsewhere);
        Options options = instance.options();
        Problem problem = bind(instance.spec(), here, options, c.phase);
        const std::vector<const void*> before = addresses(problem);
        options.stream = &options;
        const Problem expected = bind(instance.spec(), there, options, c.phase);
        rebind(problem, there, options);
        EXPECT_EQ(addresses(problem), addresses(expected));
        rebind(problem, here, instance.options());
        EXPECT_EQ(addresses(problem), before);
    }
}

/// An address of its own, without memory.
TensorView view(DType dtype, std::initializer_list<std::int64_t> shape) {
    static std::uintptr_t next = 1 << 20;
    next += 1 << 20;
    return {reinterpret_cast<void*>(next), dtype, shape, Device{DeviceKind::kCuda, 0}};
}

/// Gated linear attention with a state in place.
struct Call {
    Call() {
        for (const char* name : {"q", "k", "v", "g"}) {
            arguments.inputs.emplace_back(name, view(DType::kBFloat16, {1, 64, 2, 64}));
        }
        arguments.o = view(DType::kBFloat16, {1, 64, 2, 64});
        arguments.state.initial = view(DType::kFloat32, {1, 2, 64, 64});
        arguments.state.final = arguments.state.initial;
        problem = bind(spec, arguments, options);
    }
    [[nodiscard]] std::string rebound() {
        return refusal([&] { rebind(problem, arguments, options); });
    }
    Spec spec = make_spec("gla");
    Arguments arguments;
    Options options;
    Problem problem;
};

TEST(Rebind, TakesTheWorkspaceAndForgetsIt) {
    Call call;
    call.arguments.workspace =
        TensorView(reinterpret_cast<void*>(1 << 16), DType::kBool, {1024}, {DeviceKind::kCuda, 0});
    EXPECT_EQ(call.rebound(), "accepted");
    EXPECT_EQ(call.problem.workspace, call.arguments.workspace->data);
    EXPECT_EQ(call.problem.workspace_bytes, 1024);
    call.arguments.workspace.reset();
    EXPECT_EQ(call.rebound(), "accepted");
    EXPECT_EQ(call.problem.workspace, nullptr);
    EXPECT_EQ(call.problem.workspace_bytes, 0);
}

TEST(Rebind, RefusesWhatAddressesGetWrong) {
    {
        Call call;
        call.arguments.o.data = call.arguments.inputs[1].second.data;
        EXPECT_EQ(call.rebound(), "alias | o | memory that overlaps k | memory of its own");
    }
    {
        Call call;
        call.arguments.state.final->data = static_cast<char*>(call.arguments.state.final->data) + 4;
        EXPECT_EQ(call.rebound(),
                  "alias | state.final | memory that overlaps state.initial | the same memory with "
                  "the same strides, or memory of its own");
    }
    {
        Call call;
        call.arguments.inputs[2].second.data = nullptr;
        EXPECT_EQ(call.rebound(), "value | v | null data | memory of 16384 bytes");
    }
    {
        Call call;
        call.arguments.state.initial->data = reinterpret_cast<void*>(0x30000001);
        EXPECT_EQ(
            call.rebound(),
            "stride | state.initial | memory at 0x30000001 | an address that is a multiple of "
            "the element's 4 bytes");
    }
    {
        Call call;
        call.arguments.workspace = TensorView(reinterpret_cast<void*>(0x10080), DType::kBool,
                                              {1024}, {DeviceKind::kCuda, 0});
        EXPECT_TRUE(call.rebound().starts_with("stride | workspace | ")) << call.rebound();
    }
}

TEST(Rebind, IsForDevices) {
    const Tensor x = Tensor::zeros(DType::kFloat32, {1, 4, 1, 8});
    const Tensor o = Tensor::zeros(DType::kFloat32, {1, 4, 1, 8});
    Arguments arguments;
    for (const char* name : {"q", "k", "v", "g"}) arguments.inputs.emplace_back(name, x);
    arguments.o = o;
    Problem problem = bind(make_spec("gla"), arguments, {});
    EXPECT_EQ(refusal([&] { rebind(problem, arguments, {}); }),
              "device | problem | cpu | a CUDA device's");
}

}  // namespace
}  // namespace sluice::test
