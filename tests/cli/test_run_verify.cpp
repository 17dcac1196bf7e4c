// sluice run and sluice verify: what they compute, what they refuse, and with which exit status.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "core/convert.hpp"
#include "sluice/memory.hpp"
#include "sluice/safetensors.hpp"
#include "support/metrics.hpp"

namespace sluice {
namespace {

using test::Outcome;
using test::run_sluice;
using test::ScratchDirectory;
using Words = std::vector<std::string>;

const std::filesystem::path kGolden =
    std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/data/golden";

std::string golden(const std::string& name) { return (kGolden / (name + ".safetensors")).string(); }

Words golden_files() {
    Words files;
    for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
        if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

Words operator+(Words a, const Words& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

void expect_contains(const std::string& text, const std::string& part) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring, part, text);
}

void expect_refused(const Outcome& outcome, const std::string& message) {
    EXPECT_EQ(outcome.status, 2) << outcome.out << outcome.err;
    expect_contains(outcome.err, message);
}

double error_between(const TensorView& result, const TensorView& reference) {
    EXPECT_EQ(to_string(result.shape()), to_string(reference.shape()));
    const test::Accuracy accuracy = test::compare(test::whole_block(result, reference));
    return accuracy.finite ? accuracy.whole : HUGE_VAL;
}

/// A scratch folder, and `run` from a golden (or edited) file into it.
class RunCommand : public testing::Test {
  protected:
    [[nodiscard]] std::string path(const std::string& name) const {
        return (directory_ / name).string();
    }
    /// Writes a copy of a golden file after `edit`, and gives its path.
    template <class F>
    std::string edited(const std::string& name, F&& edit) {
        TensorFile file = read_safetensors(golden(name));
        edit(file);
        const std::string result = path("edited.safetensors");
        write_safetensors(result, file);
        return result;
    }
    [[nodiscard]] Outcome run(const std::string& input, const Words& options = {}) const {
        return run_sluice(Words{"run", input, "-o", path("out.safetensors")} + options);
    }
    TensorFile run_and_read(const std::string& input, const Words& options = {}) {
        const Outcome outcome = run(input, options);
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        return read_safetensors(path("out.safetensors"));
    }
    ScratchDirectory directory_;
};

class VerifyCommand : public RunCommand {};

// ------------------------------------------------------------------------------------------- run

TEST_F(RunCommand, ReproducesEveryGoldenFile) {
    for (const std::string& input : golden_files()) {
        SCOPED_TRACE(input);
        const TensorFile expected = read_safetensors(input);
        const TensorFile actual = run_and_read(input, {"--o-dtype", "float32"});
        EXPECT_LE(error_between(actual.tensors.at("o"), expected.tensors.at("o")), 1e-5);
        EXPECT_EQ(actual.metadata.at("op"), expected.metadata.at("op"));
        if (expected.tensors.contains("final_state")) {
            EXPECT_LE(
                error_between(actual.tensors.at("final_state"), expected.tensors.at("final_state")),
                1e-5);
        }
    }
}

TEST_F(RunCommand, SaysWhatItDid) {
    const Outcome outcome = run(golden("kda_lower_bound"), {"--threads", "1"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
    for (const char* part :
         {"op      kda, ", "shape   B1 T130 H2 HV4 K64 V64 N1", "scale   0.125", "device  cpu\n",
          "set     lower_bound = -5.0", "plan    cpu ", "1 threads", "time    ",
          "o            bfloat16 [1, 130, 4, 64]", "final_state  float32 [1, 4, 64, 64]"}) {
        expect_contains(outcome.out, part);
    }
}

TEST_F(RunCommand, PrintsOneJsonObject) {
    const Outcome outcome = run(golden("gla_mild"), {"--json", "--algorithm", "recurrent"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const nlohmann::json object = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(object.at("op"), "gla");
    EXPECT_EQ(object.at("dims").at("T"), 130);
    EXPECT_EQ(object.at("scale"), 0.125);
    EXPECT_EQ(object.at("state_layout"), "key-first");
    EXPECT_EQ(object.at("device"), "cpu");
    EXPECT_EQ(object.at("plan").at("kernel"), "recurrent");
    EXPECT_EQ(object.at("plan").at("notice"), "");
    EXPECT_EQ(object.at("tensors").at("o").at("dtype"), "bfloat16");
    EXPECT_GT(object.at("milliseconds"), 0);
}

TEST_F(RunCommand, OutputTypeFollowsTheValuesUnlessGiven) {
    EXPECT_EQ(run_and_read(golden("gla_mild")).tensors.at("o").dtype(), DType::kBFloat16);
    EXPECT_EQ(run_and_read(golden("mamba2")).tensors.at("o").dtype(), DType::kBFloat16);
    const TensorFile half = run_and_read(golden("gla_mild"), {"--o-dtype", "f16"});
    EXPECT_EQ(half.tensors.at("o").dtype(), DType::kFloat16);
    const std::string input = edited("gla_mild", [](TensorFile& file) {
        file.tensors["v"] = Tensor::copy_of(file.tensors["v"], DType::kFloat32);
    });
    EXPECT_EQ(run_and_read(input).tensors.at("o").dtype(), DType::kFloat32);
}

TEST_F(RunCommand, OptionsOverrideTheFile) {
    const TensorFile plain = run_and_read(golden("gla_mild"), {"--o-dtype", "float32"});
    const TensorFile scaled =
        run_and_read(golden("gla_mild"), {"--o-dtype", "float32", "--scale", "-0.25"});
    EXPECT_EQ(scaled.metadata.at("scale"), "-0.25");
    for (std::int64_t i = 0; i < 1000; ++i) {
        EXPECT_FLOAT_EQ(scaled.tensors.at("o").elements<float>()[i],
                        -2 * plain.tensors.at("o").elements<float>()[i]);
    }
    const TensorFile bounded = run_and_read(golden("kda_lower_bound"), {"--lower-bound", "-2.5"});
    EXPECT_EQ(bounded.metadata.at("lower_bound"), "-2.5");
    const TensorFile set = run_and_read(golden("kda_lower_bound"), {"--set", "lower_bound=-2.5"});
    EXPECT_EQ(error_between(set.tensors.at("o"), bounded.tensors.at("o")), 0);
    const TensorFile file = run_and_read(golden("kda_lower_bound"));
    EXPECT_GT(error_between(set.tensors.at("o"), file.tensors.at("o")), 1e-2);
    EXPECT_EQ(
        run_and_read(golden("delta_rule"), {"--op", "linear", "--ignore-extra"}).metadata.at("op"),
        "linear");
}

TEST_F(RunCommand, SettingsComeFromMetadataOnlyWhereTheOpKnowsThem) {
    // "normalize" is a setting of linear, and free text to gla.
    const auto normalize = [](TensorFile& file) {
        file.metadata["normalize"] = "True";
        file.metadata["note"] = "anything";
        file.metadata["lower_bound"] = "None";
    };
    EXPECT_FALSE(run_and_read(edited("gla_mild", normalize)).metadata.contains("normalize"));
    const TensorFile linear = run_and_read(edited("linear", normalize));
    EXPECT_EQ(linear.metadata.at("normalize"), "True");
    EXPECT_TRUE(linear.tensors.contains("final_key_sum"));
    const TensorFile kda = run_and_read(edited("kda_raw_gate", normalize));
    EXPECT_FALSE(kda.metadata.contains("lower_bound"));
    expect_refused(run(golden("gla_mild"), {"--set", "normalize=true"}), "no settings for gla");
    expect_refused(run(golden("linear"), {"--set", "normalise=true"}), "normalise");
    expect_refused(run(golden("linear"), {"--set", "normalize"}), "accepted: name=value");
    expect_refused(run(golden("linear"), {"--set", "normalize=maybe"}), "true or false");
    expect_refused(run(golden("gla_mild"), {"--lower-bound", "-5"}), "lower_bound");
    expect_refused(run(golden("kda_lower_bound"), {"--lower-bound", "-7"}), "-5 <= lower_bound");
}

TEST_F(RunCommand, TheOpComesFromTheFileOrTheOption) {
    const std::string anonymous =
        edited("gla_mild", [](TensorFile& file) { file.metadata.clear(); });
    expect_refused(run(anonymous), "op: got nothing; accepted: --op, or op in the file's metadata");
    const TensorFile result = run_and_read(anonymous, {"--op", "gla", "--o-dtype", "float32"});
    const TensorFile expected = read_safetensors(golden("gla_mild"));
    EXPECT_LE(error_between(result.tensors.at("o"), expected.tensors.at("o")), 1e-5)
        << "the default scale is K^-0.5";
    expect_refused(run(anonymous, {"--op", "glaa"}), "op: got 'glaa'");
    expect_refused(run(anonymous, {"--op", "mamba1"}), "outside this family");
}

TEST_F(RunCommand, RefusesTensorsThatTheOpDoesNotUse) {
    const std::string input = edited("gla_mild", [](TensorFile& file) {
        file.tensors["gate"] = Tensor::zeros(DType::kFloat32, {2});
    });
    expect_refused(run(input), "gate: got float32 [2]; accepted: tensors of gla: q, k, v, g");
    EXPECT_EQ(run(input, {"--ignore-extra"}).status, 0);
    expect_refused(run(golden("gla_mild"), {"--op", "linear"}), "g: got float32");
    const std::string missing =
        edited("gla_mild", [](TensorFile& file) { file.tensors.erase("g"); });
    expect_refused(run(missing), "g: got nothing");
}

TEST_F(RunCommand, StateLayouts) {
    const std::string input = edited("simple_gla", [](TensorFile& file) {
        Tensor& state = file.tensors["initial_state"];
        state = Tensor::copy_of(state.view().transposed(2, 3), DType::kFloat32);
    });
    expect_refused(run(input), "state.initial");
    const TensorFile plain = run_and_read(golden("simple_gla"));
    const TensorFile turned = run_and_read(input, {"--value-first"});
    EXPECT_EQ(turned.metadata.at("state_layout"), "value-first");
    EXPECT_LE(error_between(turned.tensors.at("final_state").view().transposed(2, 3),
                            plain.tensors.at("final_state")),
              1e-6);
    for (const auto& [key, value] :
         {std::pair{"state_layout", "value-first"}, std::pair{"value_first", "True"}}) {
        TensorFile file = read_safetensors(input);
        file.metadata[key] = value;
        write_safetensors(path("layout.safetensors"), file);
        EXPECT_EQ(run(path("layout.safetensors")).status, 0) << key;
        expect_refused(run(path("layout.safetensors"), {"--key-first"}), "state.initial");
        file.metadata[key] = "sideways";
        write_safetensors(path("layout.safetensors"), file);
        expect_refused(run(path("layout.safetensors")), "'sideways' in the metadata");
    }
    EXPECT_EQ(run(input, {"--key-first", "--value-first"}).status, 2);
    const TensorFile mamba = run_and_read(golden("mamba2"), {"--key-first"});
    EXPECT_EQ(to_string(mamba.tensors.at("final_state").shape()), "[2, 4, 128, 64]");
}

TEST_F(RunCommand, BackendsPrecisionsAndPlans) {
    const TensorFile expected = read_safetensors(golden("gla_mild"));
    const auto error = [&](const Words& options) {
        const TensorFile file =
            run_and_read(golden("gla_mild"), Words{"--o-dtype", "float64"} + options);
        return error_between(file.tensors.at("o"), expected.tensors.at("o"));
    };
    EXPECT_LE(error({"--backend", "oracle"}), 2e-6);
    EXPECT_LE(error({"--precision", "float64"}), 2e-6);
    EXPECT_LE(error({"--chunk", "32", "--threads", "2"}), 1e-5);
    const double rounded = error({"--precision", "bfloat16"});
    EXPECT_GT(rounded, 1e-4);
    EXPECT_LE(rounded, 4e-3);
    const TensorFile wide = run_and_read(golden("gla_mild"), {"--precision", "float64"});
    EXPECT_EQ(wide.tensors.at("final_state").dtype(), DType::kFloat64);
    expect_refused(run(golden("gla_mild"), {"--backend", "tpu"}), "accepted: cuda, cpu, oracle");
    expect_refused(run(golden("gla_mild"), {"--backend", "cuda"}),
                   "tensors must be in the memory of a CUDA device");
    expect_refused(run(golden("gla_mild"), {"--device", "tpu"}),
                   "device: got 'tpu'; accepted: cpu, cuda, cuda:N, best");
    expect_refused(run(golden("gla_mild"), {"--precision", "int4"}), "accepted: auto, float32");
    expect_refused(run(golden("gla_mild"), {"--algorithm", "fast"}), "accepted: auto, chunked");
    expect_refused(run(golden("gla_mild"), {"--chunk", "33"}), "chunk: got 33");
    expect_refused(run(golden("gla_mild"), {"--threads", "-1"}), "threads: got -1");
    expect_refused(run(golden("gla_mild"), {"--o-dtype", "complex"}), "dtype: got 'complex'");
    expect_refused(run(golden("gla_mild"), {"--scale", "nan"}), "scale: got nan");
}

TEST_F(RunCommand, AGpuThatIsNotThereIsRefused) {
    if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
    for (const char* device : {"cuda", "cuda:3"}) {
        expect_refused(run(golden("gla_mild"), {"--device", device}),
                       "accepted: an NVIDIA driver R580 or newer");
    }
    EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
    EXPECT_EQ(run(golden("gla_mild"), {"--device", "best"}).status, 0);
}

TEST_F(RunCommand, TheSameResultsOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    const Words float32 = {"--o-dtype", "float32", "--precision", "float32"};
    for (const char* name : {"gla_varlen", "kda_raw_gate", "mamba2_z_groups_state"}) {
        SCOPED_TRACE(name);
        const TensorFile cpu = run_and_read(golden(name), float32);
        const Outcome outcome = run(golden(name), float32 + Words{"--device", "cuda"});
        ASSERT_EQ(outcome.status, 0) << outcome.err;
        expect_contains(outcome.out, "device  cuda:0");
        expect_contains(outcome.out, "plan    cuda recurrent float32");
        const TensorFile gpu = read_safetensors(path("out.safetensors"));
        for (const char* tensor : {"o", "final_state"}) {
            EXPECT_LE(error_between(gpu.tensors.at(tensor), cpu.tensors.at(tensor)), 1e-5);
        }
    }
    expect_refused(run(golden("gla_mild"), {"--device", "cuda:99"}), "device: got cuda:99");
    expect_refused(run(golden("gla_mild"), {"--device", "cuda", "--backend", "cpu"}),
                   "tensors must be on the CPU");
}

TEST_F(RunCommand, TensorCoresOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    constexpr std::pair<const char*, const char*> kKernels[] = {
        {"gla_k128_state", "gla"}, {"mamba2", "scalar"},    {"mamba2_z_groups_state", "scalar"},
        {"simple_gla", "scalar"},  {"lightning", "scalar"}, {"retention", "scalar"},
        {"linear", "scalar"}};
    for (const auto& [name, kernel] : kKernels) {
        SCOPED_TRACE(name);
        const Outcome outcome = run(golden(name), {"--device", "cuda", "--json"});
        ASSERT_EQ(outcome.status, 0) << outcome.out;
        const nlohmann::json object = nlohmann::json::parse(outcome.out);
        EXPECT_EQ(object.at("plan").at("kernel"), kernel);
        EXPECT_EQ(object.at("plan").at("precision"), "bfloat16");
        EXPECT_EQ(object.at("device"), "cuda:0");
    }
}

TEST_F(RunCommand, ValidateReadsTheGates) {
    const std::string input = edited(
        "gla_mild", [](TensorFile& file) { file.tensors["g"].elements<float>()[77] = 0.5F; });
    EXPECT_EQ(run(input).status, 0);
    expect_refused(run(input, {"--validate"}), "0.5");
}

TEST_F(RunCommand, NoFinalState) {
    const TensorFile file = run_and_read(golden("gla_mild"), {"--no-final-state"});
    EXPECT_EQ(file.tensors.size(), 1U);
    EXPECT_TRUE(file.tensors.contains("o"));
}

TEST_F(RunCommand, ASequenceContinuesFromWhatWasWritten) {
    // Normalised, so that the key sum must travel as well; in two calls through files, and in one.
    const Words options = {"--set",     "normalize=true", "--set", "feature_map=elu1",
                           "--o-dtype", "float32"};
    const TensorFile whole = run_and_read(golden("linear"), options);
    const auto part = [&](std::int64_t begin, std::int64_t end, const TensorFile* before) {
        return edited("linear", [&](TensorFile& file) {
            for (const char* name : {"q", "k", "v"}) {
                Tensor& tensor = file.tensors[name];
                tensor = Tensor::copy_of(tensor.view().sliced(1, begin, end), tensor.dtype());
            }
            if (before == nullptr) return;
            file.tensors["initial_state"] = before->tensors.at("final_state");
            file.tensors["initial_key_sum"] = before->tensors.at("final_key_sum");
        });
    };
    const TensorFile first = run_and_read(part(0, 50, nullptr), options);
    const TensorFile second = run_and_read(part(50, 120, &first), options);
    const TensorView o = whole.tensors.at("o");
    EXPECT_LE(error_between(first.tensors.at("o"), o.sliced(1, 0, 50)), 1e-6);
    EXPECT_LE(error_between(second.tensors.at("o"), o.sliced(1, 50, 120)), 1e-6);
    EXPECT_LE(error_between(second.tensors.at("final_key_sum"), whole.tensors.at("final_key_sum")),
              1e-6);
}

TEST_F(RunCommand, WritesNothingWhenRefused) {
    const std::string output = path("out.safetensors");
    expect_refused(run(golden("gla_mild"), {"--op", "linear"}), "g: got");
    EXPECT_FALSE(std::filesystem::exists(output));
    test::write_bytes(output, "precious");
    expect_refused(run(golden("gla_mild"), {"--op", "linear"}), "g: got");
    EXPECT_EQ(test::read_bytes(output), "precious");
    EXPECT_EQ(directory_.entries(), 1U);

    expect_refused(run(path("absent.safetensors")), "No such file");
    test::write_bytes(path("short.safetensors"), "short");
    expect_refused(run(path("short.safetensors")), "got 5 bytes");
    expect_refused(run_sluice({"run", golden("gla_mild"), "-o", path("absent/out.safetensors")}),
                   "No such file");
    const std::string input = edited("gla_mild", [](TensorFile&) {});
    const std::string before = test::read_bytes(input);
    expect_refused(run_sluice({"run", input, "-o", input}), "the input file as output");
    EXPECT_EQ(test::read_bytes(input), before);
}

TEST_F(RunCommand, TheOutputIsCheckedBeforeTheInputIsRead) {
    const Outcome outcome =
        run_sluice({"run", path("absent.safetensors"), "-o", path("absent/out.safetensors")});
    expect_refused(outcome, path("absent/out.safetensors"));
    expect_refused(run_sluice({"run", golden("gla_mild"), "-o", "/dev/null"}), "not a file");
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(RunCommand, AChunkBesideTheRecurrentAlgorithmIsRefused) {
    expect_refused(run(golden("gla_mild"), {"--algorithm", "recurrent", "--chunk", "32"}),
                   "chunk: got 32 with --algorithm recurrent");
}

TEST_F(RunCommand, RefusalsAsJson) {
    const Outcome outcome = run(golden("gla_mild"), {"--op", "linear", "--json"});
    EXPECT_EQ(outcome.status, 2);
    const nlohmann::json object = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(object.at("code"), "surplus");
    EXPECT_EQ(object.at("argument"), "g");
}

TEST_F(RunCommand, HelpTeaches) {
    for (const char* command : {"run", "verify"}) {
        const Outcome outcome = run_sluice({command, "--help"});
        EXPECT_EQ(outcome.status, 0);
        for (const char* part : {"Examples:", "--op NAME", "gated_delta_rule", "--backend NAME"}) {
            expect_contains(outcome.out, part);
        }
    }
    EXPECT_EQ(run_sluice({"run"}).status, 2);
    EXPECT_EQ(run_sluice({"verify"}).status, 2);
    EXPECT_EQ(run_sluice({"run", golden("gla_mild"), "-o", path("o"), "--bogus"}).status, 2);
}

// ---------------------------------------------------------------------------------------- verify

TEST_F(VerifyCommand, PassesEveryGoldenFile) {
    const Outcome outcome = run_sluice(Words{"verify"} + golden_files());
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    const auto lines =
        static_cast<std::size_t>(std::count(outcome.out.begin(), outcome.out.end(), '\n'));
    EXPECT_EQ(lines, golden_files().size() + 1);
    EXPECT_EQ(outcome.out.find("FAIL"), std::string::npos);
    for (const std::string& file : golden_files()) {
        expect_contains(outcome.out, std::filesystem::path(file).filename().string());
    }
}

TEST_F(VerifyCommand, PassesWithTheOracleAndInEveryPrecision) {
    const Words files = golden_files();
    const Words oracle = {"verify", "--backend", "oracle", "--tolerance", "2e-6"};
    EXPECT_EQ(run_sluice(oracle + files).status, 0);
    EXPECT_EQ(run_sluice(Words{"verify", "--algorithm", "recurrent"} + files).status, 0);
    EXPECT_EQ(run_sluice(Words{"verify", "--precision", "float64"} + files).status, 0);
}

TEST_F(VerifyCommand, RoundedOperandsHaveBoundsOfTheirOwn) {
    const Words files = {golden("gla_mild"), golden("simple_gla"), golden("gdn_gva_state")};
    const Outcome outcome =
        run_sluice(Words{"verify", "--json", "--precision", "bfloat16"} + files);
    EXPECT_EQ(outcome.status, 0) << outcome.out;
    const nlohmann::json list = nlohmann::json::parse(outcome.out).at("files");
    EXPECT_EQ(list[0].at("results").at("o").at("tolerance"), 4e-3);
    EXPECT_EQ(list[0].at("results").at("final_state").at("tolerance"), 5e-3);
    EXPECT_EQ(list[2].at("results").at("o").at("tolerance"), 5e-3);
    EXPECT_GT(list[0].at("results").at("o").at("error"), 1e-5);
    const Outcome strict =
        run_sluice(Words{"verify", "--precision", "bfloat16", "--tolerance", "1e-5"} + files);
    EXPECT_EQ(strict.status, 1);
}

TEST_F(VerifyCommand, GoldenFilesOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    const Outcome usual = run_sluice(Words{"verify", "--device", "cuda"} + golden_files());
    EXPECT_EQ(usual.status, 0) << usual.out;
    const Outcome strict =
        run_sluice(Words{"verify", "--device", "cuda", "--precision", "float32"} + golden_files());
    EXPECT_EQ(strict.status, 0) << strict.out;
}

TEST_F(VerifyCommand, JsonHasEveryNumber) {
    const Outcome outcome = run_sluice({"verify", "--json", golden("gla_varlen")});
    ASSERT_EQ(outcome.status, 0);
    const nlohmann::json object = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(object.at("pass"), true);
    const nlohmann::json& file = object.at("files").at(0);
    EXPECT_EQ(file.at("op"), "gla");
    EXPECT_EQ(file.at("dims").at("N"), 5);
    EXPECT_EQ(file.at("plan").at("backend"), "cpu");
    for (const char* name : {"o", "final_state"}) {
        const nlohmann::json& result = file.at("results").at(name);
        EXPECT_GT(result.at("error"), 0);
        EXPECT_GE(result.at("worst_block"), result.at("error"));
        EXPECT_EQ(result.at("tolerance"), 1e-5);
        EXPECT_EQ(result.at("pass"), true);
    }
}

TEST_F(VerifyCommand, FailsWhereAnElementIsWrong) {
    const std::string input = edited("gla_mild", [](TensorFile& file) {
        // Batch 1, token 70, head 1: the second block of its sequence and head.
        file.tensors["o"].elements<float>()[((130 + 70) * 2 + 1) * 64] += 1;
    });
    const Outcome outcome = run_sluice({"verify", input});
    EXPECT_EQ(outcome.status, 1);
    expect_contains(outcome.out, "FAIL");
    expect_contains(outcome.out, "  o: error ");
    expect_contains(outcome.out, "at sequence 1, head 1, token 64");
    const std::string state = edited("gla_mild", [](TensorFile& file) {
        file.tensors["final_state"].elements<float>()[64 * 64 + 5] += 1;
    });
    const Outcome bad_state = run_sluice({"verify", state});
    EXPECT_EQ(bad_state.status, 1);
    expect_contains(bad_state.out, "  final_state: error ");
    expect_contains(bad_state.out, "at sequence 0, head 1");
}

TEST_F(VerifyCommand, FailsOnOneBadBlockInAGoodWhole) {
    // The last two tokens of one head are off by 1e-3: under 1e-4 of the whole, over 4e-4 of them.
    const std::string input = edited("gla_mild", [](TensorFile& file) {
        for (const std::int64_t token : {128, 129}) {
            for (std::int64_t i = 0; i < 64; ++i) {
                file.tensors["o"].elements<float>()[token * 128 + i] *= 1.001F;
            }
        }
    });
    const Outcome outcome = run_sluice({"verify", "--json", "--tolerance", "1e-4", input});
    EXPECT_EQ(outcome.status, 1);
    const nlohmann::json o =
        nlohmann::json::parse(outcome.out).at("files").at(0).at("results").at("o");
    EXPECT_LT(o.at("error"), 1e-4);
    EXPECT_NEAR(o.at("worst_block"), 1e-3, 1e-5);
    EXPECT_EQ(o.at("where"), "sequence 0, head 0, token 128");
    EXPECT_EQ(o.at("pass"), false);
}

TEST_F(VerifyCommand, FailsOnNaNAndInfinity) {
    for (const float value : {NAN, INFINITY}) {
        const std::string reference = edited(
            "gla_mild", [&](TensorFile& file) { file.tensors["o"].elements<float>()[5] = value; });
        const Outcome outcome = run_sluice({"verify", "--tolerance", "1e30", reference});
        EXPECT_EQ(outcome.status, 1);
        expect_contains(outcome.out, "o: NaN or infinity at sequence 0, head 0, token 0");
        const std::string input = edited("linear", [&](TensorFile& file) {
            Tensor& v = file.tensors["v"];
            v = Tensor::copy_of(v, DType::kFloat32);
            v.elements<float>()[5] = value;
        });
        EXPECT_EQ(run_sluice({"verify", "--tolerance", "1e30", input}).status, 1);
    }
}

TEST_F(VerifyCommand, ChecksWhatTheFileHolds) {
    const std::string only_state =
        edited("gla_mild", [](TensorFile& file) { file.tensors.erase("o"); });
    const Outcome outcome = run_sluice({"verify", "--json", only_state});
    EXPECT_EQ(outcome.status, 0);
    const nlohmann::json results =
        nlohmann::json::parse(outcome.out).at("files").at(0).at("results");
    EXPECT_TRUE(results.contains("final_state"));
    EXPECT_FALSE(results.contains("o"));
    const std::string nothing = edited("gla_mild", [](TensorFile& file) {
        file.tensors.erase("o");
        file.tensors.erase("final_state");
    });
    const Outcome refused = run_sluice({"verify", nothing});
    EXPECT_EQ(refused.status, 2);
    expect_contains(refused.out, "neither o nor final_state");
}

TEST_F(VerifyCommand, TakesTheRawGateWhereThereIsOneAndGOtherwise) {
    const auto verify_without = [&](const Words& names) {
        const std::string input = edited("kda_lower_bound", [&](TensorFile& file) {
            for (const std::string& name : names) file.tensors.erase(name);
        });
        return run_sluice({"verify", input});
    };
    EXPECT_EQ(verify_without({"g"}).status, 0);
    EXPECT_EQ(verify_without({"g_raw", "A_log", "dt_bias"}).status, 0);
    expect_contains(verify_without({"g_raw"}).out, "A_log: got float32 [4]");
    expect_contains(verify_without({"A_log"}).out, "A_log: got nothing");
}

TEST_F(VerifyCommand, ARefusedFileDoesNotHideTheOthers) {
    test::write_bytes(path("bad.safetensors"), "not a safetensors file");
    const std::string wrong =
        edited("gla_mild", [](TensorFile& file) { file.tensors["o"].elements<float>()[0] += 1; });
    const Outcome outcome = run_sluice(
        {"verify", path("bad.safetensors"), wrong, path("absent.safetensors"), golden("linear")});
    EXPECT_EQ(outcome.status, 2);
    expect_contains(outcome.out, "bad.safetensors     refused: ");
    expect_contains(outcome.out, "absent.safetensors  refused: ");
    expect_contains(outcome.out, "FAIL");
    expect_contains(outcome.out, "pass");
    const Outcome json =
        run_sluice({"verify", "--json", path("bad.safetensors"), golden("linear")});
    EXPECT_EQ(json.status, 2);
    const nlohmann::json object = nlohmann::json::parse(json.out);
    EXPECT_EQ(object.at("pass"), false);
    EXPECT_EQ(object.at("files").at(0).at("pass"), false);
    EXPECT_EQ(object.at("files").at(0).at("code"), "file");
    EXPECT_EQ(object.at("files").at(0).at("argument"), path("bad.safetensors"));
    for (const char* member : {"error", "value", "accepted"}) {
        EXPECT_TRUE(object.at("files").at(0).contains(member)) << member;
    }
    EXPECT_EQ(object.at("files").at(1).at("pass"), true);
}

TEST_F(VerifyCommand, AFileThatDoesNotFitInMemoryDoesNotHideTheOthers) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "address sanitizer reserves more address space than the limit";
#endif
    // 4 GB that take no disk, under a limit of 1 GB.
    constexpr std::int64_t kBytes = std::int64_t{4} << 30;
    const std::string large = path("large.safetensors");
    test::write_bytes(large, test::raw_file(R"({"q":{"dtype":"F32","shape":[1073741824],)"
                                            R"("data_offsets":[0,4294967296]}})"));
    std::filesystem::resize_file(large, std::filesystem::file_size(large) + kBytes);
    const auto limited = [&](const Words& arguments) {
        return test::run_program(
            Words{"/bin/sh", "-c", "ulimit -v 1000000; exec \"$0\" \"$@\"", test::sluice_path()} +
            arguments);
    };
    const Outcome outcome = limited({"verify", large, golden("linear")});
    EXPECT_EQ(outcome.status, 2);
    expect_contains(outcome.out, "refused: out of memory");
    expect_contains(outcome.out, "pass");
    const Outcome run = limited({"run", large, "-o", path("out.safetensors")});
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.err, "sluice: out of memory\n");
}

TEST_F(VerifyCommand, RefusesReferencesOfTheWrongKind) {
    const std::string shape = edited("gla_mild", [](TensorFile& file) {
        file.tensors["o"] = Tensor::zeros(DType::kFloat32, {2, 130, 128});
    });
    const Outcome bad_shape = run_sluice({"verify", shape});
    EXPECT_EQ(bad_shape.status, 2);
    expect_contains(bad_shape.out, "o: got float32 [2, 130, 128]; accepted: [2, 130, 2, 64]");
    const std::string dtype = edited("gla_mild", [](TensorFile& file) {
        file.tensors["final_state"] = Tensor::zeros(DType::kInt32, {2, 2, 64, 64});
    });
    const Outcome bad_dtype = run_sluice({"verify", dtype});
    EXPECT_EQ(bad_dtype.status, 2);
    expect_contains(bad_dtype.out, "final_state: got int32");
    expect_refused(run_sluice({"verify", "--tolerance", "-1", golden("linear")}), "tolerance");
}

TEST_F(VerifyCommand, VerifiesWhatRunKept) {
    for (const char* name : {"kda_raw_gate", "mamba2_z_groups_state", "gla_varlen", "linear"}) {
        SCOPED_TRACE(name);
        for (const char* dtype : {"float32", "bfloat16"}) {
            const Words options = {"--backend",     "oracle",    "--value-first",
                                   "--keep-inputs", "--o-dtype", dtype};
            const std::string input = edited(name, [](TensorFile& file) {
                const auto state = file.tensors.find("initial_state");
                if (state == file.tensors.end() || file.metadata["op"] == "mamba2") return;
                state->second =
                    Tensor::copy_of(state->second.view().transposed(2, 3), state->second.dtype());
            });
            ASSERT_EQ(run(input, options).status, 0);
            const Outcome outcome = run_sluice({"verify", path("out.safetensors")});
            EXPECT_EQ(outcome.status, 0) << outcome.out;
        }
    }
}

}  // namespace
}  // namespace sluice
