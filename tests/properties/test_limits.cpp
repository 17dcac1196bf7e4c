// Sizes at the edges: one channel, many sequences, offsets past 2^31 elements, fresh outputs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>

#include "core/convert.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

void expect_oracle(const Plain& plain, const Outputs& out) {
    const Outputs oracle = run_oracle(plain);
    const Update update = plain.spec.update;
    const double o_limit = bound(out.plan.precision, update, Quantity::kOutput);
    const Accuracy o = compare(token_blocks(out.o, oracle.o, plain.sequences()));
    EXPECT_TRUE(within(o, o_limit)) << describe(o, o_limit);
    const double state_limit = bound(out.plan.precision, update, Quantity::kState);
    const Accuracy state = compare(head_blocks(out.final, oracle.final));
    EXPECT_TRUE(within(state, state_limit)) << describe(state, state_limit);
}

const char* const kFamilies[] = {"linear_elu1",        "gla",     "mamba2_all",
                                 "gated_delta_rule",   "kda_raw", "user_rwkv7",
                                 "user_normalized_gla"};

class Limits : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { SKIP_WITHOUT(GetParam()); }

    /// Whether the oracle is met by the parameter's back end.
    static void expect_right(Plain plain) {
        plain.options.backend = GetParam();
        expect_oracle(plain, run(plain));
    }
};

TEST_P(Limits, AnySmallChannelCount) {
    for (const char* form : kFamilies) {
        for (const std::int64_t keys : {1, 2, 3, 7, 17, 33}) {
            for (const std::int64_t values : {1, 5, 31}) {
                for (const Algorithm algorithm : {Algorithm::kChunked, Algorithm::kRecurrent}) {
                    const bool chunked = algorithm == Algorithm::kChunked;
                    if (chunked && !find_judged(GetParam()).chunks) continue;
                    Plain plain = make_plain(
                        find_form(form), {.B = 1, .T = 67, .H = 1, .HV = 2, .K = keys, .V = values},
                        {.kinds = {.gates = Gates::kStrong}, .initial = true});
                    plain.options.algorithm = algorithm;
                    SCOPED_TRACE(
                        fmt::format("{} K {} V {} {}", form, keys, values, to_string(algorithm)));
                    expect_right(plain);
                }
            }
        }
    }
}

TEST_P(Limits, HeadCountsThatAreNoPowerOfTwo) {
    for (const char* form : kFamilies) {
        for (const auto& [heads, value_heads] :
             {std::pair{3, 3}, {5, 10}, {6, 6}, {10, 10}, {1, 12}, {3, 9}}) {
            SCOPED_TRACE(fmt::format("{} H {} HV {}", form, heads, value_heads));
            const Plain plain = make_plain(
                find_form(form), {.B = 2, .T = 33, .H = heads, .HV = value_heads, .K = 8, .V = 12},
                {.kinds = {.keys = Keys::kNormalized}, .initial = true});
            expect_right(plain);
        }
    }
}

TEST_P(Limits, MoreSequencesTimesHeadsThanSixteenBits) {
    for (const char* form : {"gla", "gated_delta_rule"}) {
        Plain plain = make_plain(find_form(form),
                                 {.B = 1, .T = 2050 * 16, .H = 32, .HV = 32, .K = 4, .V = 4});
        plain.dims.N = 2050;
        plain.lengths.assign(2050, 16);
        ASSERT_GT(plain.dims.N * plain.dims.HV, 65'535);
        expect_right(plain);
    }
}

TEST_P(Limits, SequencesOfOneTokenAndLongOnes) {
    for (const char* form : kFamilies) {
        Plain plain =
            make_plain(find_form(form), {.B = 1, .T = 600, .H = 1, .HV = 1, .K = 16, .V = 16});
        plain.lengths.assign(50, 1);
        plain.lengths.push_back(550);
        plain.dims.N = 51;
        expect_right(plain);
    }
}

/// Memory of a size that only its ends are used of: on the CPU, pages that exist where they are
/// touched.
std::shared_ptr<void> reserve(std::size_t bytes, const Device& device) {
    if (device.kind == DeviceKind::kCuda) {
        const std::int64_t shape[] = {static_cast<std::int64_t>(bytes)};
        const auto tensor = std::make_shared<Tensor>(empty_on(DType::kBool, shape, device));
        return {tensor, tensor->view().data};
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    return {memory, [bytes](void* p) { munmap(p, bytes); }};
}

void copy_rows(const TensorView& to, const TensorView& from) {
    for (std::int64_t row = 0; row < to.extents[0]; ++row) {
        copy(to.sliced(0, row, row + 1), from.sliced(0, row, row + 1));
    }
}

/// A problem whose batch rows will lie far apart. Half-width ones are for tensor cores.
Plain two_rows(const char* form, DType dtype) {
    const std::int64_t channels = size_bytes(dtype) == 2 ? 64 : 8;
    Plain plain = make_plain(find_form(form),
                             {.B = 2, .T = 40, .H = 1, .HV = 2, .K = channels, .V = channels},
                             {.kinds = {}, .dtype = dtype, .initial = true});
    plain.o_dtype = dtype;
    return plain;
}

// Rows 2^31 elements apart: an offset kept in 32 bits would land elsewhere.
TEST_P(Limits, OffsetsPastThirtyOneBits) {
    constexpr std::int64_t kApart = (std::int64_t{1} << 31) + 64;
    const Device device = GetParam() == "cuda" ? first_cuda_device() : Device{};
    for (const auto& [form, dtype] : {std::pair{"gla", DType::kFloat32},
                                      {"delta_rule", DType::kFloat32},
                                      {"gla", DType::kBFloat16},
                                      {"simple_gla", DType::kBFloat16},
                                      {"mamba2_d_z", DType::kBFloat16}}) {
        SCOPED_TRACE(form);
        Plain plain = two_rows(form, dtype);
        plain.options.backend = GetParam();
        const Outputs expected = run(plain);
        Arguments arguments = plain.arguments();
        std::vector<std::shared_ptr<void>> memory;
        const auto spread = [&](TensorView& view) {
            TensorView wide = view;
            const auto elements = static_cast<std::size_t>(kApart + 64 * 1024);
            memory.push_back(reserve(elements * size_bytes(view.dtype), device));
            wide.data = memory.back().get();
            wide.device = device;
            wide.stride_elements[0] = kApart;
            if (wide.data != nullptr) copy_rows(wide, view);
            view = wide;
        };
        for (auto& [name, view] : arguments.inputs) spread(view);
        spread(*arguments.state.initial);
        const Tensor o = poisoned(dtype, {2, 40, 2, plain.dims.V});
        const Tensor final = poisoned(DType::kFloat32, plain.state_shape(2));
        arguments.o = o;
        arguments.state.final = final.view();
        spread(arguments.o);
        spread(*arguments.state.final);
        for (const auto& part : memory) {
            if (part == nullptr) GTEST_SKIP() << "no address space";
        }
        const Plan plan = forward(plain.spec, arguments, plain.options);
        EXPECT_EQ(plan.kernel, expected.plan.kernel);
        copy_rows(o, arguments.o);
        copy_rows(final, *arguments.state.final);
        EXPECT_TRUE(same_bits(o, expected.o));
        EXPECT_TRUE(same_bits(final, expected.final));
    }
}

std::vector<std::string> backend_names() {
    std::vector<std::string> names;
    for (const Judged& backend : judged_backends()) names.push_back(backend.name);
    return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, Limits, testing::ValuesIn(backend_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST(Outputs, ForwardNewMakesItsOutputs) {
    Plain plain = make_plain(find_form("kda"), {.B = 2, .T = 20, .H = 1, .HV = 2, .K = 8, .V = 12},
                             {.kinds = {}, .initial = true});
    plain.options.state_layout = StateLayout::kValueFirst;
    plain.initial = Tensor::copy_of(plain.initial->view().transposed(2, 3), DType::kFloat32);
    const Outputs expected = run(plain);
    const Result result =
        forward_new(plain.spec, plain.arguments(), DType::kBFloat16, plain.options);
    EXPECT_TRUE(same_bits(result.o, Tensor::copy_of(expected.o, DType::kBFloat16)));
    EXPECT_TRUE(same_bits(result.final_state, expected.final));
    EXPECT_EQ(sluice::to_string(result.final_state.shape()), "[2, 2, 12, 8]");
    EXPECT_EQ(result.plan.hash(), expected.plan.hash());
}

TEST(Outputs, ForwardNewKeepsFloat64States) {
    const Plain plain =
        make_plain(find_form("gla"), {.B = 1, .T = 20, .H = 1, .HV = 1, .K = 8, .V = 12},
                   {.kinds = {}, .dtype = DType::kFloat64});
    const Result result =
        forward_new(plain.spec, plain.arguments(), DType::kFloat32, plain.options);
    EXPECT_EQ(result.final_state.dtype(), DType::kFloat64);
    EXPECT_EQ(result.plan.precision, Precision::kFloat64);
    EXPECT_TRUE(same_bits(result.final_state, run(plain).final));
}

}  // namespace
}  // namespace sluice::test
