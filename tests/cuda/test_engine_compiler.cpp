// From a kernel as a value to its cubin: the text, the compilers, and the order of the places
// searched.
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <utility>

#include "cuda/engine/cubins.hpp"
#include "cuda/engine/prebuilt.hpp"
#include "io/raw_file.hpp"
#include "support/cuda_tools.hpp"
#include "support/refusal.hpp"

namespace sluice::cuda {

namespace {

namespace fs = std::filesystem;
using test::refusal;
using test::ScratchDirectory;

KernelSource tiny_kernel(const std::string& body = "*p.out = TINY_VALUE;") {
    return {
        .entry = "tiny/kernel.cuh",
        .function = "tiny",
        .definitions = {{"TINY_VALUE", "7"}},
        .generated = {{"tiny/params.cuh", "#pragma once\nstruct Params { int* out; };\n"},
                      {"tiny/kernel.cuh",
                       "#include \"tiny/params.cuh\"\n"
                       "extern \"C\" __global__ void tiny(const __grid_constant__ Params p) { " +
                           body + " }\n"}}};
}

// ---- text
// ----------------------------------------------------------------------------------------

TEST(EmbeddedHeaders, AreTheFilesOfTheSourceTree) {
    const fs::path root = fs::path(SLUICE_SOURCE_DIR) / "src/cuda";
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (entry.path().extension() == ".cuh") files.insert(fs::relative(entry.path(), root));
    }
    ASSERT_GT(files.size(), 3U);
    std::set<std::string> embedded;
    for (const EmbeddedHeader& header : embedded_headers()) {
        embedded.emplace(header.path);
        EXPECT_EQ(header.text, test::read_bytes(root / header.path)) << header.path;
    }
    EXPECT_EQ(embedded, files);
}

TEST(EmbeddedHeaders, IncludeOnlyEachOther) {
    for (const EmbeddedHeader& header : embedded_headers()) {
        const KernelSource source{std::string(header.path), "f", {}, {}};
        EXPECT_EQ(refusal([&] { (void)translation_unit(source); }), "accepted") << header.path;
    }
}

TEST(TranslationUnit, HoldsTheDefinitionsAndTheHeadersReachedFromTheEntry) {
    KernelSource source = tiny_kernel();
    source.generated["tiny/other.cuh"] = "nobody includes this";
    const TranslationUnit unit = translation_unit(source);
    EXPECT_EQ(unit.program, "#define TINY_VALUE 7\n#include \"tiny/kernel.cuh\"\n");
    ASSERT_EQ(unit.headers.size(), 2U);
    EXPECT_TRUE(unit.headers.contains("tiny/params.cuh"));
}

TEST(TranslationUnit, GeneratedHeadersGoBeforeEmbeddedOnes) {
    KernelSource source = gla_kernel(kGlaShapes[0], "kBFloat16", "kBFloat16", false);
    EXPECT_GT(translation_unit(source).headers.at("tile/ptx.cuh").size(), 1000U);
    source.generated["tile/ptx.cuh"] = "// mine";
    EXPECT_EQ(translation_unit(source).headers.at("tile/ptx.cuh"), "// mine");
}

TEST(TranslationUnit, KeysDifferInEverythingThatDecidesTheCode) {
    const KernelSource base = tiny_kernel();
    std::vector<KernelSource> variants(5, base);
    variants[1].definitions["TINY_VALUE"] = "8";
    variants[2].generated["tiny/params.cuh"] += "\n";
    variants[3].function = "other";
    variants[4].generated["tiny/kernel.cuh"] += "#include \"tile/ptx.cuh\"\n";
    std::set<std::string> keys;
    for (const KernelSource& variant : variants) keys.insert(translation_unit(variant).key());
    EXPECT_EQ(keys.size(), variants.size());
}

TEST(TranslationUnit, RefusesWhatIsNotOneMacroOrAPathInside) {
    const auto with_definition = [](const std::string& name, const std::string& value) {
        KernelSource source = tiny_kernel();
        source.definitions[name] = value;
        return refusal([&] { (void)translation_unit(source); });
    };
    EXPECT_EQ(with_definition("A B", "1"), "value | definition | 'A B' | an identifier");
    EXPECT_EQ(with_definition("A", "1\n#error"),
              "value | A | '1\n#error' | one line without backslashes");
    for (const char* path : {"../x.cuh", "/etc/passwd", "a/../../x", "", "a//b", "x/"}) {
        const KernelSource source{path, "f", {}, {{path, ""}}};
        EXPECT_EQ(refusal([&] { (void)translation_unit(source); }),
                  "value | header | '" + std::string(path) + "' | a path like gla/config.cuh");
    }
    const KernelSource missing{"none.cuh", "f", {}, {}};
    EXPECT_EQ(refusal([&] { (void)translation_unit(missing); }),
              "missing | header | 'none.cuh' | a header of src/cuda or a generated one");
}

TEST(ResourceUsage, IsReadFromWhatPtxasPrints) {
    const std::string log =
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable ...\n"
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Function properties for helper\n"
        "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Function properties for tiny\n"
        "ptxas         .     208 bytes stack frame, 340 bytes spill stores, 476 bytes spill loads\n"
        "ptxas info    : Used 96 registers, used 16 barriers, 208 bytes cumulative stack size\n";
    const ResourceUsage usage = parse_resource_usage(log, "tiny");
    EXPECT_EQ(usage.registers, 96);
    EXPECT_EQ(usage.stack_bytes, 208);
    EXPECT_EQ(usage.spill_store_bytes, 340);
    EXPECT_EQ(usage.spill_load_bytes, 476);
    EXPECT_EQ(parse_resource_usage(log, "unknown").registers, 0);
    EXPECT_EQ(performance_warnings(log).size(), 1U);
}

// ---- order of places
// -----------------------------------------------------------------------------

/// Counts what it is asked for; compiles to a text.
class FakeCompiler : public Compiler {
  public:
    [[nodiscard]] const std::string& version() const noexcept override { return version_; }
    [[nodiscard]] Compiled compile(const TranslationUnit& unit) const override {
        ++compiled;
        return {version_ + " " + unit.function, "", {}};
    }
    void set_version(const std::string& version) { version_ = version; }

    mutable int compiled = 0;

  private:
    std::string version_ = "fake 1";
};

class FindCubin : public ::testing::Test {
  protected:
    [[nodiscard]] Cubin find(CompilePolicy policy) const {
        return find_cubin(sources_, tiny_kernel(), policy);
    }

    ScratchDirectory scratch_;
    FakeCompiler compiler_;
    CubinSources sources_{.prebuilt = {scratch_ / "absent", scratch_ / "prebuilt"},
                          .cache = DiskCache(scratch_ / "cache"),
                          .compiler = [this] { return &compiler_; }};
};

TEST_F(FindCubin, CompilesOnceAndThenReadsTheCache) {
    const Cubin first = find(CompilePolicy::kAllow);
    EXPECT_EQ(first.origin, CubinOrigin::kCompiler);
    EXPECT_EQ(first.bytes, "fake 1 tiny");
    for (const CompilePolicy policy : {CompilePolicy::kAllow, CompilePolicy::kNever}) {
        const Cubin again = find(policy);
        EXPECT_EQ(again.origin, CubinOrigin::kCache);
        EXPECT_EQ(again.bytes, first.bytes);
    }
    EXPECT_EQ(compiler_.compiled, 1);
}

TEST_F(FindCubin, NeverCompilesWhereThatIsForbidden) {
    EXPECT_EQ(refusal([&] { (void)find(CompilePolicy::kNever); }),
              "unsupported | tiny (TINY_VALUE=7) | no cubin, and a call that must not compile (a "
              "stream is being captured) | the same call once before, outside the capture");
    EXPECT_EQ(compiler_.compiled, 0);
}

TEST_F(FindCubin, AnotherCompilerCompilesAnew) {
    (void)find(CompilePolicy::kAllow);
    compiler_.set_version("fake 2");
    EXPECT_EQ(find(CompilePolicy::kAllow).bytes, "fake 2 tiny");
}

TEST_F(FindCubin, PrebuiltComesFirstAndNeedsNoCompiler) {
    (void)find(CompilePolicy::kAllow);
    fs::create_directory(sources_.prebuilt[1]);
    ASSERT_TRUE(write_cubin(sources_.prebuilt[1], translation_unit(tiny_kernel()).key(), "ready"));
    sources_.compiler = []() -> const Compiler* { throw std::logic_error("asked for"); };
    const Cubin cubin = find(CompilePolicy::kNever);
    EXPECT_EQ(cubin.origin, CubinOrigin::kPrebuilt);
    EXPECT_EQ(cubin.bytes, "ready");
}

TEST_F(FindCubin, WorksWithoutACache) {
    sources_.cache = DiskCache(fs::path("/proc/none/cache"));
    EXPECT_EQ(find(CompilePolicy::kAllow).origin, CubinOrigin::kCompiler);
    EXPECT_EQ(find(CompilePolicy::kAllow).origin, CubinOrigin::kCompiler);
}

TEST_F(FindCubin, SaysWhatIsNeededWhereThereIsNoCompiler) {
    sources_.compiler = [] { return nullptr; };
    EXPECT_EQ(
        refusal([&] { (void)find(CompilePolicy::kAllow); })
            .find("unsupported | tiny (TINY_VALUE=7) | no cubin and no compiler | a kernel of "
                  "`make cubins`; or libnvrtc"),
        0U);
}

// ---- compilers
// -----------------------------------------------------------------------------------

TEST(Nvrtc, AWrongSettingIsAnError) {
    const ScratchDirectory scratch;
    Environment e = environment();
    const std::string folder = scratch / "";
    for (const std::string& place : {folder, std::string("libm.so.6"), std::string("/none")}) {
        e.nvrtc = place;
        EXPECT_EQ(refusal([&] { (void)open_nvrtc(e); }),
                  "file | SLUICE_NVRTC | '" + place +
                      "' | libnvrtc.so of CUDA 12.0 or newer, or the folder that holds it");
    }
}

TEST(Nvcc, IsAbsentWhereNoFolderHasAWorkingOne) {
    const ScratchDirectory scratch;
    Environment e = environment();
    e.cuda_home = scratch / "none";
    e.path = {scratch / "bin"};
    EXPECT_EQ(open_nvcc(e), nullptr);
    fs::create_directory(scratch / "bin");
    fs::create_symlink("/bin/true", scratch / "bin/nvcc");
    EXPECT_EQ(open_nvcc(e), nullptr);
}

/// A folder with a program nvcc that says of what release it is.
fs::path folder_of_nvcc(const fs::path& folder, const std::string& release) {
    fs::create_directories(folder);
    test::write_bytes(folder / "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release " +
                                           release + ", V" + release + ".1'\n");
    fs::permissions(folder / "nvcc", fs::perms::owner_all);
    return folder;
}

TEST(Nvcc, OfTooOldACudaIsPassedOver) {
    const ScratchDirectory scratch;
    Environment e = environment();
    e.cuda_home = scratch / "none";
    e.path = {folder_of_nvcc(scratch / "a", "11.8"), folder_of_nvcc(scratch / "b", "14.1")};
    ASSERT_NE(open_nvcc(e), nullptr);
    EXPECT_EQ(open_nvcc(e)->version(), "nvcc 14.1, V14.1.1");
}

// Kernels to ship load where the library runs: with a driver of CUDA 13 or a newer one.
TEST(Nvcc, ThatIsNewerThanTheOldestDriverShipsNothing) {
    const ScratchDirectory scratch;
    Environment e = environment();
    e.cuda_home = scratch / "none";
    e.path = {folder_of_nvcc(scratch / "a", "14.0"), folder_of_nvcc(scratch / "b", "13.9"),
              folder_of_nvcc(scratch / "c", "12.8")};
    ASSERT_NE(open_shipping_nvcc(e), nullptr);
    EXPECT_EQ(open_shipping_nvcc(e)->version(), "nvcc 13.9, V13.9.1");
    e.path.resize(1);
    EXPECT_EQ(open_shipping_nvcc(e), nullptr);
}

using Named = std::pair<const char*, std::unique_ptr<const Compiler> (*)(const Environment&)>;

/// The same tests for both compilers.
class RealCompiler : public ::testing::TestWithParam<Named> {
  protected:
    void SetUp() override {
        compiler_ = GetParam().second(environment());
        if (!compiler_) test::skip_without(GetParam().first);
    }

    std::unique_ptr<const Compiler> compiler_;
};

TEST_P(RealCompiler, CompilesAKernelToElf) {
    EXPECT_TRUE(compiler_->version().starts_with(GetParam().first)) << compiler_->version();
    const Compiled compiled = compiler_->compile(translation_unit(tiny_kernel()));
    EXPECT_TRUE(
        compiled.cubin.starts_with("\x7f"
                                   "ELF"));
    EXPECT_GT(compiled.usage.registers, 0) << compiled.log;
    EXPECT_EQ(compiled.usage.spill_store_bytes, 0);
    EXPECT_TRUE(performance_warnings(compiled.log).empty()) << compiled.log;
}

TEST_P(RealCompiler, ReportsThatRegistersAreNotExchanged) {
    // Without launch bounds ptxas ignores the request.
    const KernelSource source =
        tiny_kernel("asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\"); *p.out = TINY_VALUE;");
    const Compiled compiled = compiler_->compile(translation_unit(source));
    ASSERT_EQ(performance_warnings(compiled.log).size(), 1U) << compiled.log;
    EXPECT_NE(performance_warnings(compiled.log)[0].find("C7508"), std::string::npos);
}

TEST_P(RealCompiler, RefusesWithItsLog) {
    const TranslationUnit unit = translation_unit(tiny_kernel("*p.out = unknown_name;"));
    const std::string text = refusal([&] { (void)compiler_->compile(unit); });
    EXPECT_TRUE(text.starts_with("unsupported | tiny | source that " + compiler_->version()))
        << text;
    EXPECT_NE(text.find("\"unknown_name\" is undefined"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Compilers, RealCompiler,
                         ::testing::Values(Named("NVRTC", open_nvrtc), Named("nvcc", open_nvcc)),
                         [](const auto& p) { return std::string(p.param.first); });

}  // namespace
}  // namespace sluice::cuda
