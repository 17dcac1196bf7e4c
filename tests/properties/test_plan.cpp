// Plans print themselves, and hash everything that can change a result's bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include "support/plain.hpp"
#include "support/refusal.hpp"

namespace sluice::test {
namespace {

Plain problem() {
    return make_plain(find_form("gla"), {.B = 1, .T = 100, .H = 1, .HV = 1, .K = 16, .V = 128});
}

Plan plan_of(const Plain& plain) {
    Arguments arguments = plain.arguments();
    const Dims& d = plain.dims;
    const Tensor o = Tensor::empty(DType::kFloat32, {d.B, d.T, d.HV, d.V});
    const Tensor state = Tensor::empty(DType::kFloat32, plain.state_shape(d.N));
    arguments.o = o;
    arguments.state.final = state.view();
    return sluice::plan(plain.spec, arguments, plain.options);
}

TEST(Plan, PrintsNameAndValueLines) {
    const Plan plan = plan_of(problem());
    const std::string text = plan.to_string();
    for (const char* line : {"backend: cpu\n", "kernel: chunked\n", "precision: float32\n",
                             "chunk: ", "block: ", "value_tile: ", "tasks: ", "threads: ",
                             "workspace: ", "predicted: ", "floor: ", "hash: "}) {
        EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
    }
    EXPECT_EQ(text.back(), '\n');
}

TEST(Plan, IsThePlanThatRan) {
    const Plain plain = problem();
    EXPECT_EQ(run(plain).plan.to_string(), plan_of(plain).to_string());
}

TEST(Plan, HashIsStable) {
    EXPECT_EQ(plan_of(problem()).hash(), plan_of(problem()).hash());
    Plan plan;
    plan.backend = "cpu";
    plan.kernel = "chunked";
    plan.chunk = 64;
    const std::uint64_t before = plan.hash();
    plan.threads = 7;
    plan.predicted_us = 3;
    plan.workspace_bytes = 1;
    plan.floor.memory_us = 2;
    EXPECT_EQ(plan.hash(), before);
}

TEST(Plan, HashDoesNotDependOnThreads) {
    std::set<std::uint64_t> hashes;
    for (const int threads : {1, 2, 3, 5, 8}) {
        Plain plain = problem();
        plain.options.threads = threads;
        hashes.insert(plan_of(plain).hash());
    }
    EXPECT_EQ(hashes.size(), 1U);
}

TEST(Plan, HashDiffersWithWhateverChangesBits) {
    std::set<std::uint64_t> hashes;
    for (const int chunk : {16, 32, 64, 128}) {
        Plain plain = problem();
        plain.options.chunk = chunk;
        EXPECT_EQ(plan_of(plain).chunk, chunk);
        hashes.insert(plan_of(plain).hash());
    }
    Plain plain = problem();
    plain.options.algorithm = Algorithm::kRecurrent;
    hashes.insert(plan_of(plain).hash());
    plain = problem();
    plain.options.precision = Precision::kBFloat16;
    hashes.insert(plan_of(plain).hash());
    plain.options.precision = Precision::kFloat64;
    hashes.insert(plan_of(plain).hash());
    plain = problem();
    plain.options.backend = "oracle";
    hashes.insert(plan_of(plain).hash());
    EXPECT_EQ(hashes.size(), 8U);
}

TEST(Backends, AreListedAndFound) {
    std::string names;
    for (const Backend* backend : backends()) {
        names += std::string(backend->name()) + " ";
        EXPECT_EQ(&find_backend(backend->name()), backend);
        EXPECT_FALSE(backend->summary().empty());
    }
    EXPECT_EQ(names, "cuda cpu oracle ");
    EXPECT_EQ(refusal([] { (void)find_backend("gpu"); }),
              "unsupported | backend | 'gpu' | cuda, cpu, oracle");
}

TEST(Backends, ANamedOneIsUsed) {
    Plain plain = problem();
    for (const char* name : {"cpu", "oracle"}) {
        plain.options.backend = name;
        EXPECT_EQ(run(plain).plan.backend, name);
    }
    plain.options.backend = "gpu";
    EXPECT_EQ(refusal([&] { (void)run(plain); }),
              "unsupported | backend | 'gpu' | cuda, cpu, oracle");
}

// Run by the next test in processes of its own: the environment is read once.
TEST(Backends, DISABLED_PrintDefault) {
    Plain plain = problem();
    plain.options.backend.clear();
    try {
        fmt::print("ran on {}\n", run(plain).plan.backend);
    } catch (const Error& error) {
        fmt::print("refused: {}\n", error.what());
    }
}

std::string default_backend(const std::string& environment) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    const std::string command = fmt::format(
        "{} '{}' --gtest_also_run_disabled_tests --gtest_filter=Backends.DISABLED_PrintDefault",
        environment, program);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> child(popen(command.c_str(), "r"),
                                                                pclose);
    std::string output;
    std::array<char, 256> line{};
    while (std::fgets(line.data(), line.size(), child.get()) != nullptr) output += line.data();
    return output;
}

TEST(Backends, TheEnvironmentChoosesTheDefault) {
    const std::pair<const char*, const char*> expected[] = {
        {"SLUICE_BACKEND=", "ran on cpu\n"},
        {"SLUICE_BACKEND=oracle", "ran on oracle\n"},
        {"SLUICE_BACKEND=gpu", "refused: backend: got 'gpu'; accepted: cuda, cpu, oracle\n"},
    };
    for (const auto& [environment, line] : expected) {
        const std::string output = default_backend(environment);
        EXPECT_NE(output.find(line), std::string::npos) << output;
    }
}

TEST(Backends, WhatTheCpuCannotTakeIsRefusedWithTheReason) {
    Plain plain = problem();
    plain.options.precision = Precision::kBFloat16;
    plain.options.algorithm = Algorithm::kRecurrent;
    EXPECT_EQ(refusal([&] { (void)run(plain); }),
              "unsupported | backend | 'cpu' for gla prefill B1 T100 H1 HV1 K16 V128 N1 float32 | "
              "bfloat16 operands are a mode of the chunked algorithm");
}

TEST(Backends, DeviceMemoryIsRefusedByAllOfThem) {
    const Plain plain = problem();
    Arguments arguments = plain.arguments();
    const Tensor o = poisoned(DType::kFloat32, {1, 100, 1, 128});
    arguments.o = o;
    const Device cuda{DeviceKind::kCuda, 0};
    for (auto& [name, view] : arguments.inputs) view.device = cuda;
    arguments.o.device = cuda;
    Options options;
    options.backend = "cpu";
    EXPECT_EQ(refusal([&] { (void)forward(plain.spec, arguments, options); }),
              "unsupported | backend | 'cpu' for gla prefill B1 T100 H1 HV1 K16 V128 N1 float32 | "
              "tensors must be on the CPU");
    EXPECT_TRUE(same_bits(o, poisoned(DType::kFloat32, {1, 100, 1, 128})));
}

}  // namespace
}  // namespace sluice::test
