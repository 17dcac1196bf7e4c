// Tensor maps are encoded once for a geometry: one that differs in anything must not be taken for
// another.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/backend/tensor_maps.hpp"
#include "cuda/engine/driver.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"

namespace sluice::cuda {
namespace {

struct Map {
    alignas(64) std::array<std::byte, 128> bytes{};
    friend bool operator==(const Map&, const Map&) = default;
};

struct Tensor {
    BoundInput input;
    Dims dims;
    int tokens = 64;

    [[nodiscard]] Map map() const {
        const ContextScope scope(test::first_cuda_device().index);
        Map map;
        encode_tensor_map(map.bytes.data(), input, dims, tokens);
        return map;
    }
    /// As a thread encodes it that has encoded nothing yet.
    [[nodiscard]] Map fresh_map() const {
        Map map;
        std::thread([&] { map = this->map(); }).join();
        return map;
    }
};

Tensor plain() {
    Tensor t{.input = {}, .dims = {.B = 2, .T = 130, .H = 4, .HV = 4, .K = 64, .V = 64, .N = 2}};
    t.input.name = "q";
    t.input.data = reinterpret_cast<void*>(std::uintptr_t{1} << 30);
    t.input.dtype = DType::kBFloat16;
    const std::pair<Axis, std::int64_t> strides[] = {
        {Axis::kB, 130 * 256}, {Axis::kT, 256}, {Axis::kH, 64}, {Axis::kK, 1}};
    for (const auto& [axis, stride] : strides) {
        t.input.stride[static_cast<std::size_t>(axis)] = stride;
        t.input.axis_mask |= 1U << static_cast<unsigned>(axis);
    }
    return t;
}

/// Tensors at the same address, and then the first elsewhere.
std::vector<std::pair<std::string, Tensor>> tensors() {
    std::vector<std::pair<std::string, Tensor>> all = {{"plain", plain()}};
    const auto add = [&](const char* what, auto&& change) {
        all.emplace_back(what, plain());
        change(all.back().second);
    };
    const auto stride = [](Tensor& t, Axis axis) -> std::int64_t& {
        return t.input.stride[static_cast<std::size_t>(axis)];
    };
    add("float16", [](Tensor& t) { t.input.dtype = DType::kFloat16; });
    add("float32", [](Tensor& t) { t.input.dtype = DType::kFloat32; });
    add("B", [](Tensor& t) { t.dims.B = 3; });
    add("T", [](Tensor& t) { t.dims.T = 65; });
    add("H", [](Tensor& t) { t.dims.H = 2; });
    add("K", [](Tensor& t) { t.dims.K = 56; });
    add("stride of B", [&](Tensor& t) { stride(t, Axis::kB) *= 2; });
    add("stride of T", [&](Tensor& t) { stride(t, Axis::kT) *= 2; });
    add("stride of H", [&](Tensor& t) { stride(t, Axis::kH) *= 2; });
    add("tokens of a box", [](Tensor& t) { t.tokens = 32; });
    for (std::uintptr_t i = 1; i <= 100; ++i) {
        add("address",
            [&](Tensor& t) { t.input.data = static_cast<char*>(t.input.data) + 256 * i; });
    }
    return all;
}

TEST(TensorMapsOnGpu, AreThoseOfTheirTensors) {
    SKIP_WITHOUT("cuda");
    const auto all = tensors();
    std::vector<Map> expected;
    for (const auto& [what, tensor] : all) expected.push_back(tensor.fresh_map());
    for (std::size_t i = 1; i < all.size(); ++i) {
        EXPECT_NE(expected[i], expected[0]) << all[i].first;
    }
    for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            SCOPED_TRACE(all[i].first);
            EXPECT_EQ(all[i].second.map(), expected[i]);
            EXPECT_EQ(all[i].second.map(), expected[i]);
            EXPECT_EQ(all[0].second.map(), expected[0]);
        }
    }
}

}  // namespace
}  // namespace sluice::cuda
