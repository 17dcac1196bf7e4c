// sluice bench, info and report as their users call them: small shapes, all outputs.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "sluice/memory.hpp"
#include "sluice/record.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using test::Outcome;
using test::run_sluice;

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// `arguments` after "bench", with limits that keep a test short.
Outcome bench(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"bench", "--max-seconds", "0.3", "--min-runs", "1"});
    return run_sluice(arguments);
}

std::vector<std::string> small_shape() {
    return {"-T", "64,128", "-H", "1", "-K", "16", "-V", "8"};
}

std::vector<std::string> with(std::vector<std::string> list, const std::vector<std::string>& more) {
    list.insert(list.end(), more.begin(), more.end());
    return list;
}

TEST(BenchCommand, TableHasItsColumnsAndRows) {
    const Outcome outcome = bench(with(small_shape(), {"--op", "gla,softmax", "--plot"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* part :
         {"copy ", "matmul ", "gates logsigmoid/16", "median", "spread", "tokens/s", "GFLOP/s",
          "GB/s", "of floor", "of matmul", "memory", "cpu chunked", "baseline online-softmax",
          "B1 T128 H1 K16 V8", "latency against T, both logarithmic"}) {
        EXPECT_TRUE(contains(outcome.out, part)) << part << "\n" << outcome.out;
    }
    EXPECT_TRUE(contains(outcome.err, "4 rows, 0 skipped")) << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "\r")) << "a progress bar without a terminal";
}

TEST(BenchCommand, AlgorithmsBesideTheMatmulRateOfTheSameRun) {
    const Outcome outcome = bench({"--op", "gla", "-B", "1", "-T", "256", "-H", "2", "-K", "32",
                                   "-V", "32", "--algorithm", "chunked,recurrent", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<Record> records = parse_records(outcome.out, "stdout");
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(records[0].kernel, "chunked");
    EXPECT_EQ(records[1].kernel, "recurrent");
    for (const Record& r : records) {
        EXPECT_GT(r.device.matmul_flops_per_s, 0);
        EXPECT_NEAR(r.fraction_of_matmul(),
                    r.flops / (1e-6 * r.measured_us) / r.device.matmul_flops_per_s, 1e-9);
        EXPECT_TRUE(contains(r.command, "bench")) << r.command;
        EXPECT_TRUE(contains(r.command, "--algorithm chunked,recurrent")) << r.command;
    }
}

TEST(BenchCommand, RowsThatWouldBeTheSameAppearOnce) {
    const Outcome outcome =
        bench(with(small_shape(), {"--op", "gla,softmax,gla", "--phase", "decode", "--backend",
                                   "cpu,oracle", "--algorithm", "recurrent,recurrent", "--json"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    // gla's step on each backend, whatever T; softmax's at both T, on no backend.
    EXPECT_EQ(parse_records(outcome.out, "stdout").size(), 4U);
}

TEST(BenchCommand, AllOps) {
    const Outcome outcome =
        bench({"--op", "all", "-T", "32", "-H", "1", "-K", "8", "--dtype", "bf16", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<Record> records = parse_records(outcome.out, "stdout");
    ASSERT_EQ(records.size(), 10U);
    EXPECT_EQ(records.back().op, "softmax");
    for (const Record& r : records) {
        EXPECT_EQ(r.dtype, DType::kBFloat16);
        EXPECT_EQ(r.gate_dtype, DType::kBFloat16);
        EXPECT_EQ(r.dims.V, 8);  // that of K
    }
}

TEST(BenchCommand, ModelGivesOpAndShape) {
    const Outcome outcome =
        bench({"--model", "qwen3-next", "--tp", "8", "--op", "softmax", "-T", "16", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<Record> records = parse_records(outcome.out, "stdout");
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(records[0].op, "gated_delta_rule");
    EXPECT_EQ(records[1].op, "softmax");
    for (const Record& r : records) {
        EXPECT_EQ(r.dims.H, 2);
        EXPECT_EQ(r.dims.HV, 4);
        EXPECT_EQ(r.dims.K, 128);
        EXPECT_TRUE(contains(r.model, "Qwen3-Next")) << r.model;
    }
}

TEST(BenchCommand, ListsModelsAndRefusals) {
    const Outcome outcome = run_sluice({"bench", "--list-models"});
    ASSERT_EQ(outcome.status, 0);
    EXPECT_TRUE(contains(outcome.out, "Kimi-Linear-48B-A3B"));
    EXPECT_TRUE(contains(outcome.out, "refused: "));
}

TEST(BenchCommand, ListsModelsAsJson) {
    const json models = json::parse(run_sluice({"bench", "--list-models", "--json"}).out);
    ASSERT_GT(models.size(), 5U);
    int refused = 0;
    for (const json& model : models) {
        EXPECT_NE(model["op"].is_string(), model.contains("refused")) << model;
        refused += model.contains("refused") ? 1 : 0;
    }
    EXPECT_GT(refused, 0);
}

TEST(BenchCommand, OutputThatCannotBeWrittenIsRefusedBeforeMeasuring) {
    const test::ScratchDirectory directory;
    const std::string fifo = (directory / "fifo").string();
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    for (const std::string& path :
         {fifo, std::string("/dev/null"), (directory / "absent" / "r.json").string()}) {
        const Outcome outcome = bench({"--op", "gla", "-T", "16", "--output", path});
        EXPECT_EQ(outcome.status, 2);
        EXPECT_TRUE(contains(outcome.err, "sluice: " + path + ": got ")) << outcome.err;
        EXPECT_FALSE(contains(outcome.err, "1 row")) << "it was measured first\n" << outcome.err;
    }
    EXPECT_TRUE(std::filesystem::is_fifo(fifo));
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
    EXPECT_EQ(directory.entries(), 1U);
}

TEST(BenchCommand, TheEnvironmentChoosesTheBackend) {
    const std::vector<std::string> row = {"--op", "gla", "-T", "16",    "-H",
                                          "1",    "-K",  "8",  "--json"};
    setenv("SLUICE_BACKEND", "oracle", 1);
    const Outcome chosen = bench(row), named = bench(with(row, {"--backend", "cpu"}));
    unsetenv("SLUICE_BACKEND");
    EXPECT_EQ(parse_records(chosen.out, "stdout").at(0).backend, "oracle");
    EXPECT_EQ(parse_records(named.out, "stdout").at(0).backend, "cpu");
    EXPECT_EQ(parse_records(bench(row).out, "stdout").at(0).backend, "cpu");
}

TEST(BenchCommand, RecordedCommandsPasteBackIntoAShell) {
    const test::ScratchDirectory directory;
    const std::string path = (directory / "it's $HOME & `more`.json").string();
    ASSERT_EQ(bench({"--op", "gla", "-T", "16", "-H", "1", "-K", "8", "--output", path,
                     "--gate-dtype", ""})
                  .status,
              0);
    const std::string command = read_records(path).at(0).command;
    ASSERT_TRUE(command.starts_with("sluice bench ")) << command;
    // The shell's own reading of it, a word a line.
    const Outcome echoed = test::run_program({"/bin/sh", "-c", "printf '%s\\n' " + command});
    EXPECT_TRUE(contains(echoed.out, "\n--output\n" + path + "\n--gate-dtype\n\n"))
        << command << "\n"
        << echoed.out;
}

TEST(Program, UsageErrorsAsJson) {
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"bench", "--oops", "--json"},
                                               {"--json"},
                                               {"run", "--json"},
                                               {"bench", "--threads", "-1", "--json"}}) {
        const Outcome outcome = run_sluice(arguments);
        EXPECT_EQ(outcome.status, 2);
        EXPECT_EQ(outcome.err, "");
        EXPECT_EQ(json::parse(outcome.out)["code"], "usage") << outcome.out;
    }
}

TEST(Program, LostOutputIsAFailure) {
    // Short output is lost when it is flushed at the end, long output before.
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"bench", "--list-models"},
                                               {"info", "--op", "gla"},
                                               {"info", "--json", "--op", "?"}}) {
        const Outcome outcome = run_sluice(arguments, "/dev/full");
        EXPECT_EQ(outcome.status, 2);
        EXPECT_TRUE(contains(outcome.err, "standard output could not be written")) << outcome.err;
    }
}

TEST(BenchCommand, SkippedRowsAreSaidNotSwallowed) {
    const Outcome outcome = run_sluice(
        {"bench", "--sweep", "standard", "--op", "gla", "--max-memory", "0.000001", "--json"});
    EXPECT_EQ(outcome.status, 2);  // nothing ran
    EXPECT_TRUE(contains(outcome.err, "12 rows, 12 skipped")) << outcome.err;
    const std::vector<Record> records = parse_records(outcome.out, "stdout");
    ASSERT_EQ(records.size(), 12U);
    for (const Record& r : records) {
        EXPECT_TRUE(r.skipped.starts_with("needs ")) << r.skipped;
        EXPECT_EQ(r.dims.H, 16);
    }
    EXPECT_EQ(records.back().dims.B, 16);
    EXPECT_EQ(records.back().dims.T, 16384);
}

TEST(BenchCommand, RefusalsNameTheFlag) {
    const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
        {{"--op", "glaa"}, "op: got 'glaa'; accepted: linear, "},
        {{"--op", "rwkv4"}, "op: got 'rwkv4'"},
        {{"--phase", "training"}, "phase: got 'training'; accepted: prefill, decode"},
        {{"--dtype", "int32"}, "dtype: got int32; accepted: float32"},
        {{"--backend", "tpu"}, "backend: got 'tpu'; accepted: cuda, cpu, oracle"},
        {{"--device", "tpu"}, "device: got 'tpu'; accepted: cpu, cuda, cuda:N, best"},
        {{"--device", "cuda:x"}, "device: got 'cuda:x'; accepted: cpu, cuda, cuda:N, best"},
        {{"--algorithm", "fast"}, "algorithm: got 'fast'; accepted: auto, chunked, recurrent"},
        {{"--gates", "sharp"}, "gates: got 'sharp'"},
        {{"--sweep", "wide"}, "sweep: got 'wide'; accepted: standard"},
        {{"-T", "0"}, "T: got 0; accepted: >= 1"},
        {{"-H", "2", "--hv", "3"}, "HV: got 3; accepted: a multiple of H = 2"},
        {{"--set", "decay"}, "set: got 'decay'; accepted: name=value"},
        {{"--set", "decay=1"}, "decay: got '1'; accepted: no settings for gla"},
        {{"--with", "z"}, "z: got asked for as an optional input"},
        {{"--model", "Jamba-v0.1"},
         "model: got Jamba-v0.1 / Jamba-1.5-Mini / 1.6-Mini (Mamba-1); accepted: models of this "
         "family"},
        {{"--model", "gpt-2"}, "model: got 'gpt-2'"},
        {{"--model", "Kimi-K3", "--op", "gla"},
         "op: got 'gla'; accepted: with --model only softmax"},
    };
    for (const auto& [arguments, message] : refused) {
        SCOPED_TRACE(message);
        const Outcome outcome = bench(arguments);
        EXPECT_EQ(outcome.status, 2);
        EXPECT_TRUE(contains(outcome.err, message)) << outcome.err;
        EXPECT_TRUE(outcome.out.empty()) << outcome.out;
    }
}

TEST(BenchCommand, RowsThatTheDeviceDoesNotRunSayWhy) {
    const Outcome outcome =
        bench({"--op", "gla", "-T", "16", "-H", "1", "-K", "8", "--backend", "cuda", "--json"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(parse_records(outcome.out, "stdout").at(0).skipped,
              "not supported by cuda: tensors must be in the memory of a CUDA device");
}

TEST(BenchCommand, AGpuThatIsNotThereIsRefused) {
    if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
    for (const char* device : {"cuda", "cuda:0"}) {
        const Outcome outcome = bench({"--device", device});
        EXPECT_EQ(outcome.status, 2);
        EXPECT_TRUE(contains(outcome.err, "cuda: got ")) << outcome.err;
        EXPECT_TRUE(contains(outcome.err, "accepted: an NVIDIA driver R580 or newer"))
            << outcome.err;
    }
    const Outcome best = bench(with(small_shape(), {"--op", "gla", "--device", "best", "--json"}));
    ASSERT_EQ(best.status, 0) << best.err;
    EXPECT_EQ(parse_records(best.out, "stdout").at(0).backend, "cpu");
}

TEST(BenchCommand, MeasuresOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    const Outcome outcome =
        bench({"--device", "cuda", "--op", "gla,mamba2,softmax", "--dtype", "bfloat16", "-B", "3",
               "-T", "256", "-H", "2", "--gates", "usual", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<Record> records = parse_records(outcome.out, "stdout");
    ASSERT_EQ(records.size(), 3U);
    EXPECT_EQ(records[0].kernel, "gla");
    EXPECT_EQ(records[0].gates, "logsigmoid");
    for (const Record& r : {records[0], records[1]}) {
        EXPECT_EQ(r.backend, "cuda");
        EXPECT_EQ(r.cache, "flushed");
        EXPECT_GT(r.measured_us, r.floor_us);
        EXPECT_GT(r.host_us, 0);
        EXPECT_GT(r.clock_mhz, 100);
        EXPECT_GT(r.device.copy_bytes_per_s, 1e12);
        EXPECT_GE(r.peak_memory_bytes, r.io_bytes);
    }
    EXPECT_EQ(records[2].skipped, "the baseline runs on the CPU only");
}

TEST(BenchCommand, RefusalAsJson) {
    const Outcome outcome = bench({"--op", "glaa", "--json"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(json::parse(outcome.out)["argument"], "op");
}

TEST(BenchCommand, ContradictoryFlagsAreRefused) {
    EXPECT_EQ(bench({"--sweep", "standard", "-T", "64"}).status, 2);
    EXPECT_EQ(bench({"--model", "Kimi-K3", "-H", "2"}).status, 2);
    EXPECT_EQ(bench({"--tp", "2"}).status, 2);
    EXPECT_EQ(bench({"--oops"}).status, 2);
}

TEST(BenchCommand, HelpTeachesByExample) {
    const Outcome outcome = run_sluice({"bench", "--help"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_TRUE(contains(outcome.out, "Examples:\n  sluice bench --op gla"));
}

TEST(ReportCommand, FromRecordsToDocuments) {
    const test::ScratchDirectory directory;
    const std::string records = (directory / "records.json").string();
    const std::string markdown = (directory / "report.md").string();
    const std::string html = (directory / "report.html").string();
    ASSERT_EQ(bench(with(small_shape(), {"--op", "gla,softmax", "--output", records})).status, 0);
    ASSERT_EQ(read_records(records).size(), 4U);

    const Outcome printed = run_sluice({"report", records});
    ASSERT_EQ(printed.status, 0) << printed.err;
    EXPECT_TRUE(contains(printed.out, "against softmax attention"));
    EXPECT_TRUE(contains(printed.out, "--op gla,softmax"));
    ASSERT_EQ(run_sluice({"report", records, "-o", markdown}).status, 0);
    EXPECT_EQ(test::read_bytes(markdown), printed.out);
    ASSERT_EQ(run_sluice({"report", records, records, "-o", html}).status, 0);
    EXPECT_TRUE(contains(test::read_bytes(html), "<svg "));

    const json summary = json::parse(run_sluice({"report", records, "-o", html, "--json"}).out);
    EXPECT_EQ(summary["output"], html);
    EXPECT_EQ(summary["format"], "html");
    EXPECT_EQ(summary["rows"], 4);
    EXPECT_EQ(summary["bytes"], test::read_bytes(html).size());
    EXPECT_EQ(json::parse(run_sluice({"report", records, "--json"}).out)["document"], printed.out);

    EXPECT_EQ(run_sluice({"report", records, "-o", "/dev/null"}).status, 2);
    EXPECT_EQ(run_sluice({"report", records, "-o", "report.pdf"}).status, 2);
    EXPECT_EQ(run_sluice({"report", markdown}).status, 2);
    EXPECT_EQ(run_sluice({"report", (directory / "nothing.json").string()}).status, 2);
}

TEST(InfoCommand, DevicesBackendsAndOps) {
    const Outcome outcome = run_sluice({"info"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* part : {"sluice ", "NVIDIA H200", "4.28 TB/s", "CUDA", "one Hopper GPU",
                             "oracle", "gated_delta_rule", "q k v g beta"}) {
        EXPECT_TRUE(contains(outcome.out, part)) << part;
    }
    const json object = json::parse(run_sluice({"info", "--json"}).out);
    EXPECT_EQ(object["ops"].size(), 9U);
    EXPECT_EQ(object["devices"].size(), 2U);
    ASSERT_EQ(object["backends"].size(), 3U);
    EXPECT_EQ(object["backends"][0]["name"], "cuda");
    const json& cuda = object["cuda"];
    EXPECT_EQ(cuda["usable"].get<bool>(), cuda_device_count() > 0);
    EXPECT_EQ(cuda["usable"].get<bool>(), cuda["problem"].get<std::string>().empty());
    if (cuda_device_count() > 0) return;
    EXPECT_TRUE(contains(outcome.out, "CUDA: ")) << outcome.out;
    EXPECT_TRUE(contains(cuda["problem"], "needed: an NVIDIA driver R580 or newer")) << cuda;
}

TEST(InfoCommand, WithoutAGpuSaysWhyNothingRunsThere) {
    if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
    EXPECT_TRUE(
        contains(run_sluice({"info", "--op", "gla"}).out, "runs on cuda prefill: not here: "));
}

TEST(InfoCommand, KernelsOnGpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    const Outcome outcome = run_sluice({"info"});
    EXPECT_TRUE(contains(outcome.out, "usable\n")) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "Driver for CUDA ")) << outcome.out;
    const json gpus = json::parse(run_sluice({"info", "--json"}).out)["cuda"]["gpus"];
    ASSERT_FALSE(gpus.empty());
    EXPECT_GT(gpus[0]["multiprocessors"], 0);
    const std::string gla = run_sluice({"info", "--op", "gla"}).out;
    EXPECT_TRUE(contains(gla,
                         "runs on cuda prefill: float32 (recurrent), bfloat16 (gla, tensor "
                         "cores), float16 (gla, tensor cores)"))
        << gla;
    EXPECT_TRUE(contains(gla, "runs on cuda decode: float32 (recurrent), ")) << gla;
}

TEST(InfoCommand, OneOpInFull) {
    const Outcome outcome = run_sluice({"info", "--op", "kda"});
    ASSERT_EQ(outcome.status, 0);
    EXPECT_TRUE(contains(outcome.out, "S <- D S + k u^T"));
    EXPECT_TRUE(contains(outcome.out, "--set lower_bound=...: "));
    EXPECT_EQ(run_sluice({"info", "--op", "mamba1"}).status, 2);
}

TEST(InfoCommand, EveryFormOfAnOp) {
    const std::string kda = run_sluice({"info", "--op", "kda"}).out;
    for (const char* part :
         {"given g_raw and A_log:\n", "given g_raw and A_log, --set lower_bound=-5:\n",
          "g_raw [B, T, HV, K]: ", "optional: dt_bias\n", "runs on cpu prefill: float32, ",
          "runs on oracle decode: float32, "}) {
        EXPECT_TRUE(contains(kda, part)) << part << "\n" << kda;
    }
    EXPECT_TRUE(contains(run_sluice({"info", "--op", "mamba2"}).out, "optional: dt_bias, D, z\n"));
    const std::string gla = run_sluice({"info", "--op", "gla"}).out;
    EXPECT_FALSE(contains(gla, "given ")) << gla;
    const json forms = json::parse(run_sluice({"info", "--op", "kda", "--json"}).out)["forms"];
    ASSERT_EQ(forms.size(), 3U);
    EXPECT_EQ(forms[0]["given"], "");
    EXPECT_TRUE(std::any_of(forms[1]["inputs"].begin(), forms[1]["inputs"].end(),
                            [](const json& i) { return i["name"] == "dt_bias" && i["optional"]; }));
}

}  // namespace
}  // namespace sluice
