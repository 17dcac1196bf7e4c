// The same problem gives the same bits: again, on any number of threads, in another process.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"

namespace sluice::test {
namespace {

std::uint64_t hash_bits(std::uint64_t h, const Tensor& tensor) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.view().data);
    for (std::size_t i = 0; i < tensor.size_bytes(); ++i) h = (h ^ bytes[i]) * 0x100000001b3ULL;
    return h;
}

constexpr Dims kDims = {.B = 1, .T = 130, .H = 1, .HV = 2, .K = 32, .V = 130};

Plain problem(const Form& form, Precision precision, const std::string& backend = "cpu") {
    Plain plain = make_plain(form, kDims, {.kinds = {.gates = Gates::kSpikes}, .initial = true});
    plain.options.backend = backend;
    plain.options.precision = precision;
    return plain;
}

/// Problems for tensor cores, long enough to be split among a GPU's processors.
std::vector<Plain> split_problems() {
    struct Choice {
        const char* form;
        std::int64_t keys, values;
    };
    constexpr Choice kChoices[] = {{"gla", 64, 128},
                                   {"gla", 256, 128},
                                   {"simple_gla", 64, 192},
                                   {"retention", 64, 64},
                                   {"linear_normalized", 64, 192},
                                   {"mamba2_all", 64, 64},
                                   {"mamba2_d_z", 64, 128}};
    std::vector<Plain> list;
    for (const auto& [form, keys, values] : kChoices) {
        Plain plain = make_plain(
            find_form(form), {.B = 1, .T = 3000, .H = 1, .HV = 3, .K = keys, .V = values},
            {.kinds = {.gates = Gates::kSpikes}, .dtype = DType::kBFloat16, .initial = true});
        plain.options.backend = "cuda";
        plain.o_dtype = DType::kBFloat16;
        list.push_back(plain);
    }
    return list;
}

/// Of every form, in every precision of the back end.
std::uint64_t hash_of_everything(int threads, const std::string& backend) {
    std::uint64_t h = 0xcbf29ce484222325ULL;
    for (const Form& form : forms()) {
        for (const Precision precision : find_judged(backend).precisions) {
            Plain plain = problem(form, precision, backend);
            plain.options.threads = threads;
            const Outputs out = run(plain);
            h = hash_bits(hash_bits(h, out.o), out.final);
            if (out.final_key_sum.defined()) h = hash_bits(h, out.final_key_sum);
        }
    }
    return h;
}

class Determinism : public testing::TestWithParam<std::string> {};

TEST_P(Determinism, AnyNumberOfThreadsTwice) {
    for (const Precision precision :
         {Precision::kFloat32, Precision::kFloat64, Precision::kBFloat16}) {
        for (const Algorithm algorithm : {Algorithm::kChunked, Algorithm::kRecurrent}) {
            const bool reduced = precision == Precision::kBFloat16;
            if (reduced && algorithm == Algorithm::kRecurrent) continue;
            Plain plain = problem(find_form(GetParam()), precision);
            plain.options.algorithm = algorithm;
            plain.options.threads = 1;
            const Outputs first = run(plain);
            for (const int threads : {1, 2, 3, 5, 0}) {
                SCOPED_TRACE(fmt::format("{} threads, {}, {}", threads, to_string(precision),
                                         to_string(algorithm)));
                plain.options.threads = threads;
                const Outputs again = run(plain);
                EXPECT_TRUE(same_bits(first.o, again.o));
                EXPECT_TRUE(same_bits(first.final, again.final));
                EXPECT_EQ(first.plan.hash(), again.plan.hash());
            }
        }
    }
}

std::vector<std::string> form_names() {
    std::vector<std::string> names;
    for (const Form& form : forms()) names.push_back(form.name);
    return names;
}
INSTANTIATE_TEST_SUITE_P(Forms, Determinism, testing::ValuesIn(form_names()),
                         [](const auto& parameter) { return parameter.param; });

void expect_same_again(const Plain& plain) {
    const Outputs first = run(plain);
    for (int i = 0; i < 10; ++i) {
        const Outputs again = run(plain);
        ASSERT_TRUE(same_bits(first.o, again.o)) << i;
        ASSERT_TRUE(same_bits(first.final, again.final)) << i;
        if (first.final_key_sum.defined()) {
            ASSERT_TRUE(same_bits(first.final_key_sum, again.final_key_sum)) << i;
        }
        EXPECT_EQ(first.plan.hash(), again.plan.hash());
    }
}

class DeterminismOnGpu : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { SKIP_WITHOUT("cuda"); }
};

TEST_P(DeterminismOnGpu, TheSameBitsAgain) {
    expect_same_again(problem(find_form(GetParam()), Precision::kFloat32, "cuda"));
}

INSTANTIATE_TEST_SUITE_P(Forms, DeterminismOnGpu, testing::ValuesIn(form_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST(TensorCoresOnGpu, TheSameBitsAgain) {
    SKIP_WITHOUT("cuda");
    for (const Plain& plain : split_problems()) {
        SCOPED_TRACE(plain.form->name);
        expect_same_again(plain);
    }
}

/// A state in place is read by every value tile of a head and written by each: no tile may see what
/// another wrote.
void expect_no_race(Plain plain) {
    const Outputs expected = run(plain);
    plain.options.threads = 8;
    for (int i = 0; i < 200; ++i) {
        const Tensor o =
            poisoned(plain.o_dtype, {expected.o.shape().begin(), expected.o.shape().end()});
        const Tensor state = Tensor::copy_of(*plain.initial, DType::kFloat32);
        Arguments arguments = plain.arguments();
        arguments.o = o;
        arguments.state.initial = arguments.state.final = state.view();
        Tensor sum;
        if (plain.spec.normalize) {
            sum = Tensor::copy_of(*plain.initial_key_sum, DType::kFloat32);
            arguments.state.initial_key_sum = arguments.state.final_key_sum = sum.view();
        }
        call(plain.spec, arguments, plain.options);
        ASSERT_TRUE(same_bits(o, expected.o)) << "run " << i;
        ASSERT_TRUE(same_bits(state, expected.final)) << "run " << i;
        if (sum.defined()) {
            ASSERT_TRUE(same_bits(sum, expected.final_key_sum)) << "run " << i;
        }
    }
}

class StatesInPlace : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { SKIP_WITHOUT(GetParam()); }
};

TEST_P(StatesInPlace, DoNotRace) {
    for (const char* form : {"user_elu1_normalized", "user_normalized_gla", "gated_delta_rule"}) {
        for (const Algorithm algorithm : {Algorithm::kChunked, Algorithm::kRecurrent}) {
            if (algorithm == Algorithm::kChunked && !find_judged(GetParam()).chunks) continue;
            SCOPED_TRACE(fmt::format("{} {}", form, to_string(algorithm)));
            Plain plain =
                make_plain(find_form(form), {.B = 1, .T = 20, .H = 1, .HV = 1, .K = 16, .V = 256},
                           {.kinds = {}, .initial = true});
            plain.options.backend = GetParam();
            plain.options.algorithm = algorithm;
            expect_no_race(plain);
        }
    }
    if (GetParam() != "cuda") return;
    for (const Plain& plain : split_problems()) {
        SCOPED_TRACE(plain.form->name);
        expect_no_race(plain);
    }
    // Not split: more blocks of a head than the GPU has room for at once.
    Plain plain = make_plain(find_form("linear_normalized"),
                             {.B = 40, .T = 100, .H = 1, .HV = 1, .K = 64, .V = 512},
                             {.kinds = {}, .dtype = DType::kBFloat16, .initial = true});
    plain.options.backend = "cuda";
    plain.options.batch_invariant = true;
    plain.o_dtype = DType::kBFloat16;
    expect_no_race(plain);
}

std::vector<std::string> backend_names() {
    std::vector<std::string> names;
    for (const Judged& backend : judged_backends()) names.push_back(backend.name);
    return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, StatesInPlace, testing::ValuesIn(backend_names()),
                         [](const auto& parameter) { return parameter.param; });

class Processes : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { SKIP_WITHOUT(GetParam()); }
};

// Run by the next test in a process of its own.
TEST_P(Processes, DISABLED_PrintHash) {
    fmt::print("hash={:016x}\n", hash_of_everything(3, GetParam()));
}

TEST_P(Processes, AnotherGivesTheSameBits) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    const std::string command = fmt::format(
        "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX '{}' --gtest_also_run_disabled_tests "
        "--gtest_filter='*Processes.DISABLED_PrintHash/{}'",
        program, GetParam());
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> child(popen(command.c_str(), "r"),
                                                                pclose);
    ASSERT_NE(child, nullptr);
    std::string output;
    std::array<char, 256> line{};
    while (std::fgets(line.data(), line.size(), child.get()) != nullptr) output += line.data();
    const std::string expected = fmt::format("hash={:016x}\n", hash_of_everything(1, GetParam()));
    EXPECT_NE(output.find(expected), std::string::npos) << expected << output;
}

INSTANTIATE_TEST_SUITE_P(Backends, Processes, testing::ValuesIn(backend_names()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace sluice::test
