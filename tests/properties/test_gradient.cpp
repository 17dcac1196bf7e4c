// The oracle's gradients against central differences of the oracle itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/plain.hpp"
#include "support/refusal.hpp"

namespace sluice::test {
namespace {

constexpr double kTolerance = 1e-6;
constexpr double kStep = 1e-5;

/// sum(o * grad_o) + sum(final_state * grad_final): the loss that gradient() differentiates.
struct Loss {
    Tensor grad_o, grad_final;

    explicit Loss(const Plain& plain) {
        const Dims& d = plain.dims;
        grad_o = random_tensor({d.B, d.T, d.HV, d.V}, 21);
        grad_final = random_tensor(plain.state_shape(d.N), 22);
    }
    static Tensor random_tensor(const std::vector<std::int64_t>& shape, std::uint64_t seed) {
        const Values values = normal_values(shape, 1, seed);
        const Tensor tensor = Tensor::empty(DType::kFloat64, shape);
        std::copy(values.data.begin(), values.data.end(), tensor.elements<double>().begin());
        return tensor;
    }
    double operator()(const Plain& plain) const {
        const Outputs out = run_oracle(plain);
        return dot(out.o, grad_o) + dot(out.final, grad_final);
    }
    static double dot(const Tensor& a, const Tensor& b) {
        double sum = 0;
        const auto x = a.elements<double>();
        const auto y = b.elements<double>();
        for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
        return sum;
    }
};

std::map<std::string, Tensor> gradients(const Plain& plain, const Loss& loss) {
    Arguments arguments = plain.arguments();
    Tensor offsets;
    if (!plain.lengths.empty()) {
        std::vector<std::int64_t> ends = {0};
        for (const std::int64_t length : plain.lengths) ends.push_back(ends.back() + length);
        offsets = index_tensor(ends);
        arguments.cu_seqlens = offsets.view();
    }
    return gradient(plain.spec, arguments, loss.grad_o, loss.grad_final.view(), plain.options);
}

/// The tensors to differentiate by: the inputs, and the initial state under its name.
std::map<std::string, Tensor> variables(const Plain& plain) {
    std::map<std::string, Tensor> all = plain.inputs;
    if (plain.initial) all["initial_state"] = *plain.initial;
    return all;
}

/// Differences in every element of `variable`, which `plain` reads.
Tensor element_differences(const Plain& plain, const Loss& loss, const Tensor& variable) {
    const Tensor result = Tensor::empty(DType::kFloat64, variable.shape());
    const auto x = variable.elements<double>();
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double saved = x[i];
        x[i] = saved + kStep;
        const double above = loss(plain);
        x[i] = saved - kStep;
        const double below = loss(plain);
        x[i] = saved;
        result.elements<double>()[i] = (above - below) / (2 * kStep);
    }
    return result;
}

void expect_element_gradients(const Plain& plain) {
    const Loss loss(plain);
    const auto grads = gradients(plain, loss);
    for (const auto& [name, variable] : variables(plain)) {
        ASSERT_TRUE(grads.contains(name)) << name;
        const Tensor differences = element_differences(plain, loss, variable);
        const Accuracy accuracy = compare(whole_block(grads.at(name), differences));
        EXPECT_TRUE(within(accuracy, kTolerance))
            << "d " << name << ": " << describe(accuracy, kTolerance);
    }
    EXPECT_EQ(grads.size(), variables(plain).size());
}

/// One random direction per variable: reaches sizes where every element would take too long.
void expect_directional_gradients(const Plain& plain) {
    const Loss loss(plain);
    const auto grads = gradients(plain, loss);
    for (const auto& [name, variable] : variables(plain)) {
        const Tensor direction = Loss::random_tensor(
            {variable.shape().begin(), variable.shape().end()}, mix_seed(23, name.size()));
        const auto move = [&](double by) {
            const auto x = variable.elements<double>();
            for (std::size_t i = 0; i < x.size(); ++i) x[i] += by * direction.elements<double>()[i];
            return loss(plain);
        };
        const double above = move(kStep);
        const double below = move(-2 * kStep);
        move(kStep);
        const double difference = (above - below) / (2 * kStep);
        const double predicted = Loss::dot(grads.at(name), direction);
        EXPECT_NEAR(predicted, difference, kTolerance * std::max(1.0, std::abs(difference)))
            << name;
    }
}

class Gradient : public testing::TestWithParam<std::string> {
  protected:
    static Plain problem(const Dims& dims, Gates gates, std::uint64_t seed) {
        Plain plain = make_plain(
            find_form(GetParam()), dims,
            {.kinds = {.gates = gates}, .dtype = DType::kFloat64, .seed = seed, .initial = true});
        // A key sum has no gradient of its own; the sum starts from zero here. Without keys in it a
        // state would be divided by 1e-10, as where relu has cut all of q k.
        plain.initial_key_sum.reset();
        if (GetParam() == "linear_relu_normalized") plain.initial.reset();
        return plain;
    }
};

TEST_P(Gradient, EveryElement) {
    for (const Gates gates : {Gates::kMild, Gates::kStrong}) {
        expect_element_gradients(
            problem({.B = 2, .T = 4, .H = 1, .HV = 2, .K = 3, .V = 2}, gates, 31));
    }
}

TEST_P(Gradient, PackedSequencesAndGroups) {
    Plain plain = problem({.B = 1, .T = 8, .H = 2, .HV = 4, .K = 2, .V = 3}, Gates::kMild, 32);
    plain.lengths = {5, 0, 1, 2};
    plain.dims.N = 4;
    if (plain.initial) plain.initial = Loss::random_tensor(plain.state_shape(4), 33);
    expect_element_gradients(plain);
}

TEST_P(Gradient, LongSequences) {
    expect_directional_gradients(
        problem({.B = 1, .T = 77, .H = 1, .HV = 2, .K = 6, .V = 5}, Gates::kMild, 34));
}

TEST_P(Gradient, ValueFirstStates) {
    const Plain plain =
        problem({.B = 1, .T = 5, .H = 1, .HV = 1, .K = 3, .V = 2}, Gates::kMild, 35);
    if (!plain.initial) return;
    const Loss loss(plain);
    const Tensor key_first = gradients(plain, loss).at("initial_state");
    Plain transposed = plain;
    transposed.options.state_layout = StateLayout::kValueFirst;
    transposed.initial = Tensor::copy_of(plain.initial->view().transposed(2, 3), DType::kFloat64);
    Loss transposed_loss = loss;
    transposed_loss.grad_final =
        Tensor::copy_of(loss.grad_final.view().transposed(2, 3), DType::kFloat64);
    const Tensor value_first = gradients(transposed, transposed_loss).at("initial_state");
    EXPECT_TRUE(same_bits(key_first, value_first.view().transposed(2, 3)));
}

std::vector<std::string> form_names() {
    std::vector<std::string> names;
    for (const Form& form : forms()) names.push_back(form.name);
    return names;
}
INSTANTIATE_TEST_SUITE_P(Forms, Gradient, testing::ValuesIn(form_names()),
                         [](const auto& parameter) { return parameter.param; });

constexpr Dims kSmall = {.B = 2, .T = 6, .H = 1, .HV = 2, .K = 3, .V = 2};

Plain kda() {
    return make_plain(find_form("kda_bounded_bias"), kSmall,
                      {.kinds = {}, .dtype = DType::kFloat64, .initial = true});
}

TEST(GradientOptions, NoFinalGradientMeansZero) {
    const Plain plain = kda();
    Loss loss(plain);
    const auto without =
        gradient(plain.spec, plain.arguments(), loss.grad_o, std::nullopt, plain.options);
    loss.grad_final = Tensor::zeros(DType::kFloat64, plain.state_shape(2));
    const auto zero = gradients(plain, loss);
    for (const auto& [name, grad] : without) EXPECT_TRUE(same_bits(grad, zero.at(name))) << name;
}

TEST(GradientOptions, ScaleIsHonoured) {
    Plain plain = kda();
    plain.options.scale = 0.3;
    expect_element_gradients(plain);
}

TEST(GradientOptions, FlattenedParametersKeepTheirShape) {
    Plain plain = kda();
    const Loss loss(plain);
    const Tensor matrix = gradients(plain, loss).at("dt_bias");
    const Tensor flat = Tensor::empty(DType::kFloat64, {kSmall.HV * kSmall.K});
    std::copy_n(plain.inputs.at("dt_bias").elements<double>().begin(), flat.size(),
                flat.elements<double>().begin());
    plain.inputs["dt_bias"] = flat;
    const Tensor vector = gradients(plain, loss).at("dt_bias");
    EXPECT_EQ(sluice::to_string(vector.shape()), "[6]");
    EXPECT_TRUE(same_bits(vector, matrix));
}

TEST(GradientOptions, LowPrecisionInputsAndStridedGradients) {
    const Plain wide = kda();
    Plain narrow = wide;
    for (auto& [name, tensor] : narrow.inputs) tensor = Tensor::copy_of(tensor, DType::kBFloat16);
    Plain same = narrow;
    for (auto& [name, tensor] : same.inputs) tensor = Tensor::copy_of(tensor, DType::kFloat64);
    const Loss loss(wide);
    Loss strided = loss;
    const Tensor by_head = Tensor::copy_of(loss.grad_o.view().transposed(1, 2), DType::kFloat64);
    const auto a = gradient(narrow.spec, narrow.arguments(), by_head.view().transposed(1, 2),
                            loss.grad_final.view(), narrow.options);
    const auto b = gradients(same, loss);
    for (const auto& [name, grad] : a) {
        EXPECT_EQ(grad.dtype(), DType::kFloat64);
        EXPECT_TRUE(same_bits(grad, b.at(name))) << name;
    }
}

// The loss does not read the state of a masked sequence.
TEST(GradientOptions, MaskedSequencesHaveNoStateGradient) {
    const Plain plain = kda();
    const Loss loss(plain);
    Arguments arguments = plain.arguments();
    const Tensor mask = index_tensor({1, 0}, DType::kBool);
    arguments.state.has_initial = mask.view();
    const auto grads =
        gradient(plain.spec, arguments, loss.grad_o, loss.grad_final.view(), plain.options);
    const TensorView& state = grads.at("initial_state");
    EXPECT_TRUE(
        same_bits(state.sliced(0, 1, 2), Tensor::zeros(DType::kFloat64, plain.state_shape(1))));
    EXPECT_TRUE(same_bits(state.sliced(0, 0, 1),
                          gradients(plain, loss).at("initial_state").view().sliced(0, 0, 1)));
}

TEST(GradientOptions, Refusals) {
    const Plain plain = kda();
    const Loss loss(plain);
    const auto refused = [&](const Arguments& arguments, const TensorView& grad_o,
                             const std::optional<TensorView>& grad_final) {
        return refusal(
            [&] { (void)gradient(plain.spec, arguments, grad_o, grad_final, plain.options); });
    };
    const Arguments good = plain.arguments();
    EXPECT_EQ(refused(good, loss.grad_o.view().sliced(1, 0, 5), std::nullopt),
              "shape | grad_o | [2, 5, 2, 2] | [2, 6, 2, 2]");
    EXPECT_EQ(refused(good, loss.grad_o, loss.grad_final.view().sliced(0, 0, 1)),
              "shape | grad_final_state | [1, 2, 3, 2] | [2, 2, 3, 2]");
    const Tensor integers = Tensor::zeros(DType::kInt64, {2, 6, 2, 2});
    EXPECT_EQ(refused(good, integers, std::nullopt), "dtype | grad_o | int64 | a floating type");
    Arguments slots = good;
    const Tensor indices = index_tensor({0, 1});
    slots.state.read_slots = indices.view();
    EXPECT_EQ(
        refused(slots, loss.grad_o, std::nullopt),
        "unsupported | state | slots, checkpoints or key sums | dense initial and final states");
    Arguments missing = good;
    missing.inputs.erase(missing.inputs.begin());
    EXPECT_EQ(refused(missing, loss.grad_o, std::nullopt),
              "missing | q | nothing | [B, T, H, K]: queries (an input of kda)");
}

}  // namespace
}  // namespace sluice::test
