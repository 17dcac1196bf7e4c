// Tensors in device memory, and the calls' way with them.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/engine/driver.hpp"
#include "runtime/mirror.hpp"
#include "sluice/memory.hpp"
#include "support/call.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"
#include "support/refusal.hpp"

namespace sluice::test {
namespace {

constexpr Device kCpu{};
constexpr Device kCuda{DeviceKind::kCuda, 0};

Tensor counted(std::initializer_list<std::int64_t> shape) {
    const Tensor tensor = Tensor::empty(DType::kFloat32, shape);
    float next = 0;
    for (float& x : tensor.elements<float>()) x = next++;
    return tensor;
}

std::uintptr_t address(const TensorView& view) {
    return reinterpret_cast<std::uintptr_t>(view.data);
}

TEST(Adopt, KeepsTheMemoryAndTheView) {
    auto memory = std::make_shared<std::vector<float>>(6, 1.5F);
    const std::weak_ptr<void> alive = memory;
    {
        const TensorView view(memory->data(), DType::kFloat32, {2, 3});
        const Tensor tensor = Tensor::adopt(std::move(memory), view);
        EXPECT_TRUE(tensor.defined());
        EXPECT_EQ(tensor.elements<float>()[5], 1.5F);
        EXPECT_FALSE(alive.expired());
    }
    EXPECT_TRUE(alive.expired());
}

TEST(Adopt, ElementsAreOfContiguousCpuMemory) {
    auto memory = std::make_shared<std::vector<float>>(8);
    const Tensor far =
        Tensor::adopt(memory, TensorView(memory->data(), DType::kFloat32, {8}, kCuda));
    EXPECT_EQ(refusal([&] { (void)far.elements<float>(); }), "device | elements | cuda:0 | cpu");
    const std::int64_t shape[] = {4}, strides[] = {2};
    const Tensor spread =
        Tensor::adopt(memory, TensorView(memory->data(), DType::kFloat32, shape, strides));
    EXPECT_EQ(refusal([&] { (void)spread.elements<float>(); }),
              "stride | elements | [2] | contiguous memory");
}

TEST(Memory, OnTheCpuIsAligned) {
    const std::int64_t shape[] = {3, 5};
    for (int i = 0; i < 8; ++i) {
        const Tensor tensor = empty_on(DType::kBFloat16, shape, kCpu);
        EXPECT_EQ(address(tensor) % 256, 0U);
        EXPECT_EQ(sluice::to_string(tensor.shape()), "[3, 5]");
        EXPECT_TRUE(tensor.view().is_contiguous());
    }
    const std::int64_t none[] = {0, 5};
    EXPECT_NE(empty_on(DType::kFloat32, none, kCpu).view().data, nullptr);
}

TEST(Memory, CopiesOnTheCpu) {
    const Tensor source = counted({2, 3, 4});
    EXPECT_TRUE(same_bits(copy_on(source, kCpu), source));
    const TensorView strided = source.view().transposed(0, 2);
    const Tensor dense = copy_on(strided, kCpu);
    EXPECT_TRUE(dense.view().is_contiguous());
    EXPECT_TRUE(same_bits(dense, strided));
    synchronize(kCpu);
}

TEST(Memory, ACopyBetweenStridesLeavesTheGapsAlone) {
    const Tensor source = counted({4, 6});
    const Tensor target = Tensor::zeros(DType::kFloat32, {4, 6});
    copy(target.view().sliced(1, 2, 4), source.view().sliced(1, 2, 4));
    for (std::int64_t i = 0; i < 24; ++i) {
        const bool inside = i % 6 == 2 || i % 6 == 3;
        EXPECT_EQ(target.elements<float>()[static_cast<std::size_t>(i)],
                  inside ? static_cast<float>(i) : 0.F);
    }
}

TEST(Memory, UnlikeTensorsAreNotCopied) {
    const Tensor x = counted({2, 3});
    const Tensor narrow = Tensor::zeros(DType::kBFloat16, {2, 3});
    const Tensor other = Tensor::zeros(DType::kFloat32, {3, 2});
    EXPECT_EQ(refusal([&] { copy(narrow, x); }),
              "dtype | to | bfloat16 | float32 as in the source");
    EXPECT_EQ(refusal([&] { copy(other, x); }), "shape | to | [3, 2] | [2, 3] as the source");
    EXPECT_EQ(refusal([&] { copy(other, x.view().transposed(0, 1)); }),
              "stride | to | strides [2, 1] from [1, 3] | contiguous memory, or the same strides "
              "on the CPU");
}

TEST(Memory, WithoutADriverDevicesAreRefused) {
    if (cuda::driver() != nullptr) GTEST_SKIP() << "there is a driver";
    EXPECT_EQ(cuda_device_count(), 0);
    const std::string accepted =
        "an NVIDIA driver R580 or newer (CUDA 13) and a GPU of compute capability 9.0 (H100, H200)";
    const std::string refused = "device | device | cuda:0 | " + accepted;
    const std::int64_t shape[] = {4};
    const Tensor here = counted({4});
    TensorView there = here;
    there.device = kCuda;
    EXPECT_EQ(refusal([&] { (void)empty_on(DType::kFloat32, shape, kCuda); }), refused);
    EXPECT_EQ(refusal([&] { (void)copy_on(here, kCuda); }), refused);
    EXPECT_EQ(refusal([&] { copy(there, here); }), refused);
    EXPECT_EQ(refusal([&] { copy(here, there); }), refused);
    EXPECT_EQ(refusal([&] { synchronize(kCuda); }), refused);
}

TEST(MirrorRange, IsFromTheLowestToTheHighestByte) {
    std::vector<float> memory(100);
    const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::int64_t shape[] = {3, 4}, strides[] = {10, -2};
    const Range range = range_of(TensorView(memory.data() + 50, DType::kFloat32, shape, strides));
    EXPECT_EQ(range.begin, base + (50 - 6) * 4);
    EXPECT_EQ(range.end, base + (50 + 20 + 1) * 4);
    const Range none = range_of(TensorView(memory.data(), DType::kFloat32, {0, 4}));
    EXPECT_EQ(none.begin, none.end);
}

/// q, k and v interleaved in one buffer, a state in place, packed offsets.
struct Interleaved {
    Tensor qkv = counted({1, 5, 3, 8});
    Tensor state = counted({2, 1, 8, 8});
    Tensor o = poisoned(DType::kFloat32, {1, 5, 1, 8});
    Tensor offsets = index_tensor({0, 2, 5});
    Arguments arguments;

    Interleaved() {
        for (int i = 0; i < 3; ++i) {
            arguments.inputs.emplace_back(std::string(1, "qkv"[i]), qkv.view().sliced(2, i, i + 1));
        }
        arguments.o = o;
        arguments.state.initial = arguments.state.final = state.view();
        arguments.cu_seqlens = offsets.view();
    }
};

TEST(Mirror, KeepsDistancesAlignmentAndSharing) {
    const Interleaved call;
    const Mirror mirror(call.arguments, kCpu);
    const Arguments& image = mirror.arguments();
    for (std::size_t i = 0; i < 3; ++i) {
        const TensorView& own = call.arguments.inputs[i].second;
        const TensorView& copy = image.inputs[i].second;
        EXPECT_NE(own.data, copy.data);
        EXPECT_EQ(address(own) % 256, address(copy) % 256);
        EXPECT_EQ(address(copy) - address(image.inputs[0].second),
                  address(own) - address(call.arguments.inputs[0].second));
        EXPECT_TRUE(std::ranges::equal(own.strides(), copy.strides()));
    }
    EXPECT_EQ(image.state.initial->data, image.state.final->data);
}

TEST(Mirror, FetchesInputsAndWritesBack) {
    Interleaved call;
    const Mirror mirror(call.arguments, kCpu);
    mirror.fetch_inputs();
    const Arguments& image = mirror.arguments();
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(same_bits(image.inputs[i].second, call.arguments.inputs[i].second));
    }
    EXPECT_TRUE(same_bits(*image.cu_seqlens, call.offsets));
    EXPECT_TRUE(same_bits(*image.state.initial, call.state));

    mirror.fetch();
    EXPECT_TRUE(same_bits(image.o, call.o));
    std::memset(image.o.data, 0, call.o.size_bytes());
    std::memset(image.state.final->data, 0, call.state.size_bytes());
    mirror.write_back();
    EXPECT_TRUE(same_bits(call.o, Tensor::zeros(DType::kFloat32, {1, 5, 1, 8})));
    EXPECT_TRUE(same_bits(call.state, Tensor::zeros(DType::kFloat32, {2, 1, 8, 8})));
}

TEST(Mirror, CarriesWhatLiesAroundATensor) {
    const Tensor whole = counted({10, 8});
    Interleaved call;
    call.arguments.o =
        TensorView(static_cast<float*>(whole.view().data) + 16, DType::kFloat32, {1, 5, 1, 8});
    const auto begin = address(whole);
    const Mirror mirror(call.arguments, kCpu, {{begin, begin + whole.size_bytes()}});
    mirror.fetch();
    auto* const image = static_cast<float*>(mirror.arguments().o.data);
    EXPECT_EQ(image[-1], 15.F);
    image[-1] = -1;
    mirror.write_back();
    EXPECT_EQ(whole.elements<float>()[15], -1.F);
}

TEST(Mirror, OfAWholeCallGivesTheSameResult) {
    Call call;
    call.add_pools();
    call.add_checkpoints();
    for (auto& [name, view] : call.arguments.inputs) {
        Random random(name.size());
        const double size = name == "g" ? -0.1 : 0.5;
        const auto count = static_cast<std::size_t>(view.size());
        for (float& x : std::span(static_cast<float*>(view.data), count)) {
            x = static_cast<float>(size * random.uniform());
        }
    }
    const Mirror mirror(call.arguments, kCpu);
    mirror.fetch();
    (void)forward(call.spec, mirror.arguments(), call.options);
    call.run(Phase::kPrefill);
    EXPECT_TRUE(same_bits(mirror.arguments().o, call.arguments.o));
    EXPECT_TRUE(same_bits(*mirror.arguments().state.final, *call.arguments.state.final));
    EXPECT_TRUE(
        same_bits(*mirror.arguments().state.checkpoints, *call.arguments.state.checkpoints));
}

TEST(Prepare, OnTheCpuIsThePlan) {
    Call call;
    call.add_states();
    const std::vector<std::byte> before = call.bytes();
    const Plan plan = prepare(call.spec, call.arguments, call.options);
    EXPECT_EQ(plan.hash(), sluice::plan(call.spec, call.arguments, call.options).hash());
    EXPECT_TRUE(plan.notice.empty());
    EXPECT_EQ(call.bytes(), before);
}

TEST(Gradient, OfDeviceTensorsIsRefused) {
    Call call;
    const Arguments there = as_if_on_cuda(call.arguments);
    EXPECT_EQ(refusal([&] { (void)gradient(call.spec, there, call.arguments.o, {}); }),
              "device | " + there.inputs.front().first + " | cuda:0 | cpu");
}

// ---- on a GPU -------------------------------------------------------------------------------

class MemoryOnGpu : public testing::Test {
  protected:
    void SetUp() override { SKIP_WITHOUT("cuda"); }
};

TEST_F(MemoryOnGpu, ThereAndBack) {
    const Device device = first_cuda_device();
    EXPECT_GE(cuda_device_count(), 1);
    const Tensor source = counted({3, 5, 7});
    const TensorView strided = source.view().transposed(0, 2);
    const Tensor there = copy_on(strided, device);
    EXPECT_EQ(address(there) % 256, 0U);
    EXPECT_EQ(there.view().device, device);
    EXPECT_TRUE(there.view().is_contiguous());
    const Tensor again = copy_on(there, device);
    synchronize(device);
    EXPECT_TRUE(same_bits(copy_on(again, kCpu), strided));
    EXPECT_EQ(refusal([&] {
                  copy(there.view().transposed(0, 1), again.view().transposed(0, 1));
              }).substr(0, 9),
              "stride | ");
}

TEST_F(MemoryOnGpu, FullMemoryIsAnErrorOfItsOwn) {
    const std::int64_t shape[] = {std::int64_t{1} << 50};
    EXPECT_TRUE(refusal([&] {
                    (void)empty_on(DType::kFloat32, shape, first_cuda_device());
                }).starts_with("memory | device | "));
}

TEST_F(MemoryOnGpu, ForwardNewMakesItsOutputsThere) {
    const Device device = first_cuda_device();
    Plain plain = make_plain(find_form("user_elu1_normalized"),
                             {.B = 2, .T = 20, .H = 1, .HV = 2, .K = 8, .V = 12});
    plain.options.backend = "cuda";
    const Outputs expected = run(plain);
    Arguments arguments = plain.arguments();
    std::vector<Tensor> memory;
    for (auto& [name, view] : arguments.inputs) {
        memory.push_back(copy_on(view, device));
        view = memory.back();
    }
    const Result result = forward_new(plain.spec, arguments, DType::kFloat32, plain.options);
    EXPECT_TRUE(same_bits(copy_on(result.o, kCpu), expected.o));
    EXPECT_TRUE(same_bits(copy_on(result.final_state, kCpu), expected.final));
    EXPECT_TRUE(same_bits(copy_on(result.final_key_sum, kCpu), expected.final_key_sum));
}

TEST_F(MemoryOnGpu, ValidationReadsValuesAndIndices) {
    Call call;
    call.add_pools();
    call.options.backend = "cuda";
    call.options.validate = true;
    const auto outcome = [&] {
        return refusal([&] { test::call(call.spec, call.arguments, call.options); });
    };
    EXPECT_EQ(outcome(), "accepted");
    auto* const g = static_cast<float*>(call.input("g").data);
    g[3] = 0.5F;
    const std::string growth = outcome();
    EXPECT_TRUE(growth.starts_with("value | g | 0.5 at batch 0, token 0, head 3 | ")) << growth;
    g[3] = 0;
    auto* const slots = static_cast<std::int64_t*>(call.arguments.state.read_slots->data);
    slots[1] = 6;
    const std::string slot = outcome();
    EXPECT_TRUE(slot.starts_with("value | read_slots | ")) << slot;
    slots[1] = 2;
    EXPECT_EQ(outcome(), "accepted");
}

TEST_F(MemoryOnGpu, PrepareWritesNothingAndLeavesNothingToCompile) {
    const Device device = first_cuda_device();
    Call call;
    call.options.backend = "cuda";
    const Mirror mirror(call.arguments, device);
    mirror.fetch();
    const Plan prepared = prepare(call.spec, mirror.arguments(), call.options);
    EXPECT_EQ(prepared.backend, "cuda");
    const Tensor o = copy_on(mirror.arguments().o, kCpu);
    EXPECT_TRUE(same_bits(o, call.arguments.o));
    call.options.compile = false;
    EXPECT_EQ(forward(call.spec, mirror.arguments(), call.options).hash(), prepared.hash());
}

}  // namespace
}  // namespace sluice::test
