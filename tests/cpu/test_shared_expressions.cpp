// Specs whose expressions share operands: every back end computes each once, in value and gradient.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "support/call.hpp"

namespace sluice {
namespace {

/// The same numbers, bit for bit: 2x / 2, 60 times over, a tree of 2^60 nodes.
Expr entangled(Expr x) {
    for (int i = 0; i < 60; ++i) x = 0.5 * (x + x);
    return x;
}

Spec entangled(Spec spec) {
    spec.q = entangled(spec.q);
    spec.k = entangled(spec.k);
    spec.v = entangled(spec.v);
    spec.log_decay = entangled(*spec.log_decay);
    spec.beta = entangled(*spec.beta);
    spec.output = entangled(spec.output);
    return spec;
}

/// Numbers below 0.3, so that keys are shorter than 1; gates <= 0.
void fill(test::Call& call) {
    int phase = 0;
    for (auto& [name, view] : call.arguments.inputs) {
        auto* data = static_cast<float*>(view.data);
        for (std::int64_t i = 0; i < view.size(); ++i) {
            const double wave = 0.3 * std::sin(0.7 * static_cast<double>(i) + ++phase % 11);
            data[i] = static_cast<float>(name == "g" ? -std::abs(wave) : wave);
        }
    }
}

test::Call filled_call(const Spec& spec) {
    test::Call call(spec, {.B = 2, .T = 70, .H = 2, .HV = 4, .K = 8, .V = 12, .N = 2});
    fill(call);
    return call;
}

void expect_same_bits(const Tensor& a, const Tensor& b) {
    ASSERT_EQ(a.size_bytes(), b.size_bytes());
    EXPECT_EQ(std::memcmp(a.view().data, b.view().data, a.size_bytes()), 0);
}

TEST(SharedExpressions, GiveTheSameBits) {
    const Spec plain = make_spec("gated_delta_rule");
    const test::Call call = filled_call(plain);
    constexpr std::pair<const char*, Algorithm> kRuns[] = {
        {"cpu", Algorithm::kChunked},
        {"cpu", Algorithm::kRecurrent},
        {"oracle", Algorithm::kAuto},
    };
    for (const auto& [backend, algorithm] : kRuns) {
        SCOPED_TRACE(testing::Message() << backend << " " << to_string(algorithm));
        Options options;
        options.backend = backend;
        options.algorithm = algorithm;
        const Result expected = forward_new(plain, call.arguments, DType::kFloat32, options);
        const Result got = forward_new(entangled(plain), call.arguments, DType::kFloat32, options);
        expect_same_bits(expected.o, got.o);
        expect_same_bits(expected.final_state, got.final_state);
    }
}

// y = x^2 through two operands that are one node: dy/dx = 2 x, not x.
TEST(SharedExpressions, AddTheirGradients) {
    const Spec plain = make_spec("gated_delta_rule");
    Spec shared = plain;
    shared.v = shared.v * shared.v;
    test::Call call = filled_call(plain);
    test::Call squared = filled_call(plain);
    auto* v = static_cast<float*>(squared.input("v").data);
    for (std::int64_t i = 0; i < squared.input("v").size(); ++i) v[i] *= v[i];
    const Tensor grad_o = Tensor::zeros(DType::kFloat64, {2, 70, 4, 12});
    for (double& g : grad_o.elements<double>()) g = 1;
    const auto of_x = gradient(shared, call.arguments, grad_o, {}, {});
    const auto of_square = gradient(plain, squared.arguments, grad_o, {}, {});
    const auto dx = of_x.at("v").elements<double>();
    const auto dy = of_square.at("v").elements<double>();
    const auto* x = static_cast<const float*>(call.input("v").data);
    for (std::size_t i = 0; i < dx.size(); ++i) {
        ASSERT_NEAR(dx[i], 2 * x[i] * dy[i], 1e-5 * (1 + std::abs(dx[i]))) << i;
    }
}

TEST(SharedExpressions, DoNotChangeTheGradient) {
    const Spec plain = make_spec("gated_delta_rule");
    const test::Call call = filled_call(plain);
    const Tensor grad_o = Tensor::zeros(DType::kFloat64, {2, 70, 4, 12});
    for (double& g : grad_o.elements<double>()) g = 1;
    const auto expected = gradient(plain, call.arguments, grad_o, {}, {});
    const auto got = gradient(entangled(plain), call.arguments, grad_o, {}, {});
    for (const auto& [name, tensor] : expected) {
        SCOPED_TRACE(name);
        expect_same_bits(tensor, got.at(name));
    }
}

}  // namespace
}  // namespace sluice
