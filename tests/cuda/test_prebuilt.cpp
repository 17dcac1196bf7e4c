// The tensor-core kernels without a GPU, those compiled ahead and the like of them: each compiles
// to the machine code that it was tuned for, by nvcc what ships and by NVRTC what may be compiled
// on first use. One test a kernel and compiler: they take seconds, and run side by side.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/engine/cubins.hpp"
#include "cuda/engine/prebuilt.hpp"
#include "io/raw_file.hpp"
#include "support/cuda_tools.hpp"

namespace sluice::cuda {

namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

// ---- what is expected ---------------------------------------------------------------------------

/// Each takes seconds to compile and a hundred kilobytes of every installation. Three gates of the
/// kernel for scalar decays have a shape for many sequences and one for few, each in two kernels.
constexpr std::size_t kMostKernels = 38;

/// What a thread is launched with where a block has a multiprocessor to itself and its roles
/// exchange registers: the headers count on it (kLaunchRegisters).
int launch_registers(int threads) { return std::min(65536 / threads / 8 * 8, 168); }

// ---- machine code -------------------------------------------------------------------------------

struct MachineCode {
    int threads = 0;                  // of a block
    int tensor_core_products = 0;     // HGMMA
    int local_memory = 0;             // LDL and STL: spills, or arrays that are indexed
    std::vector<int> role_registers;  // USETMAXREG
    /// Instructions that write what a product may still read (lab/operands.py says of what).
    int overwritten_operands = 0;
};

/// "LDL.LU R20, [R1+0x2c] ;" of "  /*20b10*/  @P0 LDL.LU R20, [R1+0x2c] ;"; empty for a line
/// without an instruction.
std::string_view instruction(std::string_view line) {
    const std::size_t address = line.find("*/");
    if (address == std::string_view::npos) return {};
    line.remove_prefix(address + 2);
    const auto skip_spaces = [&] {
        line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    skip_spaces();
    if (line.starts_with('@')) {
        line.remove_prefix(std::min(line.find(' '), line.size()));
        skip_spaces();
    }
    return line;
}

/// The last "0x..." of a line; -1 without one.
int last_number(std::string_view line) {
    const std::size_t at = line.rfind("0x");
    int value = -1;
    if (at == std::string_view::npos) return value;
    std::from_chars(line.data() + at + 2, line.data() + line.size(), value, 16);
    return value;
}

/// The n-th register or other operand of an instruction.
std::string_view operand(std::string_view instruction, int n) {
    std::size_t at = instruction.find(' ');
    for (; n > 0 && at != std::string_view::npos; --n) at = instruction.find(',', at + 1);
    if (at == std::string_view::npos) return {};
    instruction.remove_prefix(at + 1);
    instruction.remove_prefix(std::min(instruction.find_first_not_of(' '), instruction.size()));
    return instruction;
}

/// `count` registers from the one that an operand begins with; none if it is no register.
std::set<int> registers(std::string_view operand, int count) {
    std::set<int> found;
    int first = 0;
    if (!operand.starts_with('R')) return found;
    const auto end = operand.data() + operand.size();
    if (std::from_chars(operand.data() + 1, end, first).ec != std::errc()) return found;
    for (int i = 0; i < count; ++i) found.insert(first + i);
    return found;
}

/// What products in flight read of registers, instruction by instruction, in the order in which
/// they lie in memory.
class OperandsInFlight {
  public:
    /// Whether the instruction writes one of them.
    bool overwrites(std::string_view name, std::string_view instruction) {
        if (name == "HGMMA") {
            open_.merge(registers(operand(instruction, 1), 4));
            if (instruction.find("gsb0") == std::string_view::npos) return false;
            groups_.push_back(std::exchange(open_, {}));
            return false;
        }
        const std::string_view operation = instruction.substr(0, instruction.find(' '));
        if (operation.starts_with("WARPGROUP.DEPBAR")) {
            const std::string_view pending = operand(instruction, 1);
            const auto count = static_cast<std::size_t>(last_number(pending));
            if (groups_.size() > count) {
                groups_.erase(groups_.begin(), groups_.end() - static_cast<std::ptrdiff_t>(count));
            }
            return false;
        }
        const auto has = [&](std::string_view part) {
            return operation.find(part) != std::string_view::npos;
        };
        const int width = has(".128") || (has("LDSM") && has(".4")) ? 4
                          : has(".64") || has("WIDE")               ? 2
                                                                    : 1;
        const std::set<int> written = registers(operand(instruction, 0), width);
        const auto reads = [&](const std::set<int>& group) {
            return std::ranges::any_of(written, [&](int r) { return group.contains(r); });
        };
        return reads(open_) || std::ranges::any_of(groups_, reads);
    }

  private:
    std::vector<std::set<int>> groups_;  // committed
    std::set<int> open_;
};

MachineCode read_machine_code(const std::string& listing) {
    MachineCode code;
    std::istringstream lines(listing);
    OperandsInFlight operands;
    bool threads_follow = false;
    for (std::string line; std::getline(lines, line);) {
        if (line.find("EIATTR_MAX_THREADS") != std::string::npos) threads_follow = true;
        if (threads_follow && line.find(".word") != std::string::npos) {
            code.threads = last_number(line);
            threads_follow = false;
        }
        const std::string_view text = instruction(line);
        const std::string_view name = text.substr(0, text.find_first_of(". ;"));
        if (operands.overwrites(name, text)) ++code.overwritten_operands;
        if (name == "HGMMA") ++code.tensor_core_products;
        if (name == "LDL" || name == "STL") ++code.local_memory;
        if (name == "USETMAXREG") code.role_registers.push_back(last_number(line));
    }
    return code;
}

TEST(MachineCode, IsReadFromWhatNvdisasmPrints) {
    const MachineCode code = read_machine_code(
        "\t//----- nvinfo : EIATTR_MAX_THREADS\n"
        "        /*05ba*/ \t.short\t(.L_25 - .L_24)\n"
        "        /*05bc*/ \t.word\t0x00000280\n"
        "        /*05c0*/ \t.word\t0x00000001\n"
        "        /*12400*/                   HGMMA.64x64x16.F32.BF16 R24, R120, gdesc[UR16] ;\n"
        "        /*20b10*/              @!P0 STL [R1+0x2c], R20 ;\n"
        "        /*20b20*/                   LDL.LU R20, [R1+0x2c] ;\n"
        "        /*20b30*/                   LDS R20, [R1+0x2c] ;\n"
        "        /*20b40*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xa0 ;\n"
        "        /*20b50*/                   USETMAXREG.DEALLOC.CTAPOOL 0x18 ;\n");
    EXPECT_EQ(code.threads, 640);
    EXPECT_EQ(code.tensor_core_products, 1);
    EXPECT_EQ(code.local_memory, 2);
    EXPECT_EQ(code.role_registers, (std::vector<int>{160, 24}));
    EXPECT_EQ(code.overwritten_operands, 0);
}

TEST(MachineCode, KnowsWhatProductsInFlightRead) {
    const std::string product =
        "/*00*/ HGMMA.64x64x16.F32.BF16 R24, R120, gdesc[UR16], R24, gsb0 ;\n";
    const auto count = [&](const std::string& rest) {
        return read_machine_code(product + rest).overwritten_operands;
    };
    EXPECT_EQ(count("/*10*/ LDS R123, [R1] ;\n"), 1);
    EXPECT_EQ(count("/*10*/ @P0 LDSM.16.MT88.4 R117, [R3+UR8] ;\n"), 1);
    EXPECT_EQ(count("/*10*/ LDS.128 R116, [R1] ;\n/*20*/ LDS R124, [R1] ;\n"), 0);
    EXPECT_EQ(count("/*10*/ STS.128 [R120], R120 ;\n/*20*/ IADD3 R4, R120, R121, RZ ;\n"), 0);
    const std::string other = "/*10*/ HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR4], R24, gsb0 ;\n";
    EXPECT_EQ(count(other + "/*20*/ WARPGROUP.DEPBAR.LE gsb0, 0x1 ;\n/*30*/ LDS R120, [R1] ;\n"),
              0);
    EXPECT_EQ(count(other + "/*20*/ WARPGROUP.DEPBAR.LE gsb0, 0x1 ;\n/*30*/ LDS R88, [R1] ;\n"), 1);
    EXPECT_EQ(count("/*20*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n/*30*/ LDS R120, [R1] ;\n"), 0);
}

/// nvdisasm in PATH or of the toolkit; empty where there is none.
fs::path find_disassembler() {
    std::vector<fs::path> folders = environment().path;
    folders.push_back(environment().cuda_home / "bin");
    for (const fs::path& folder : folders) {
        if (fs::exists(folder / "nvdisasm")) return folder / "nvdisasm";
    }
    return {};
}

std::string disassemble(const fs::path& disassembler, const fs::path& cubin) {
    const std::string command = disassembler.string() + " " + cubin.string();
    std::string text;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> part{};
    for (std::size_t n = 0; (n = fread(part.data(), 1, part.size(), pipe)) > 0;) {
        text.append(part.data(), n);
    }
    EXPECT_EQ(pclose(pipe), 0) << command;
    return text;
}

// ---- the kernels --------------------------------------------------------------------------------

using CompilerPointer = std::unique_ptr<const Compiler>;

struct Case {
    const char* compiler;
    CompilerPointer (*open)(const Environment&);
    KernelSource kernel;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << c.compiler << ", " << c.kernel.to_string();
}

class TensorCoreKernel : public ::testing::TestWithParam<Case> {
  protected:
    void SetUp() override {
        compiler_ = GetParam().open(environment());
        disassembler_ = find_disassembler();
        if (compiler_ == nullptr) return test::skip_without(GetParam().compiler);
        if (disassembler_.empty()) return test::skip_without("nvdisasm");
    }

    struct Report {
        ResourceUsage usage;
        MachineCode code;
    };

    /// Compiles the kernel. Its roles exchange registers, and its products on tensor cores are in
    /// flight together.
    [[nodiscard]] Report expect_roles() const {
        const Compiled compiled = compiler_->compile(translation_unit(GetParam().kernel));
        const ResourceUsage& usage = compiled.usage;
        const MachineCode code = machine_code(compiled.cubin);
        std::cout << compiler_->version() << ": " << code.threads << " threads of "
                  << usage.registers << " registers, stack " << usage.stack_bytes
                  << " bytes, spills " << usage.spill_store_bytes << " + " << usage.spill_load_bytes
                  << " bytes in " << code.local_memory << " instructions, "
                  << code.tensor_core_products << " products on tensor cores\n";
        EXPECT_TRUE(performance_warnings(compiled.log).empty()) << compiled.log;
        EXPECT_GT(code.tensor_core_products, 0);
        EXPECT_EQ(code.overwritten_operands, 0);
        EXPECT_GT(code.threads, 0);
        EXPECT_EQ(usage.registers, launch_registers(std::max(code.threads, 1)));
        EXPECT_FALSE(code.role_registers.empty());
        return {usage, code};
    }

  private:
    // Through a file of the cache: tools take it for the cubin that it begins with.
    [[nodiscard]] MachineCode machine_code(const std::string& cubin) const {
        const ScratchDirectory scratch;
        test::write_bytes(scratch / "file", encode_cubin(cubin, "key"));
        return read_machine_code(disassemble(disassembler_, scratch / "file"));
    }

    CompilerPointer compiler_;
    fs::path disassembler_;
};

TEST_P(TensorCoreKernel, CompilesToTheMachineCodeItIsTunedFor) {
    const auto [usage, code] = expect_roles();
    EXPECT_EQ(usage.spill_store_bytes, 0);
    EXPECT_EQ(usage.spill_load_bytes, 0);
    EXPECT_EQ(usage.stack_bytes, 0);
    EXPECT_EQ(code.local_memory, 0);
}

/// Not tuned: registers may spill.
class OtherKernel : public TensorCoreKernel {};

TEST_P(OtherKernel, CompilesToRolesThatExchangeRegisters) { (void)expect_roles(); }

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
    std::string name = info.param.kernel.to_string();
    std::ranges::replace_if(
        name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
}

/// GLA's kernels for other types: compiled on first use, and no worse.
std::vector<KernelSource> other_gla_kernels() {
    std::vector<KernelSource> kernels;
    const auto add = [&](const GlaShape& shape, bool state_only) {
        if (shape.paired)
            return kernels.push_back(gla_kernel(shape, "kBFloat16", "kFloat16", false));
        kernels.push_back(gla_kernel(shape, "kBFloat16", "kFloat32", state_only));
        kernels.push_back(gla_kernel(shape, "kFloat16", "kFloat16", state_only));
        kernels.push_back(gla_kernel(shape, "kFloat16", "kFloat32", state_only));
    };
    for (const GlaShape& shape : kGlaShapes) add(shape, false);
    for (const GlaShape& shape : kGlaFirstShapes) add(shape, true);
    return kernels;
}

/// Every shape of the kernel for scalar decays with the policy that needs most registers.
std::vector<KernelSource> largest_scalar_kernels() {
    std::vector<KernelSource> kernels;
    for (const ScalarShape& shape : kScalarShapes) {
        for (const char* input : {"kBFloat16", "kFloat16"}) {
            kernels.push_back(scalar_kernel(
                shape, {.gate = "kTimeStep", .skip = "kChannel", .gated = true, .input = input},
                ScalarKernel::kOutputs));
        }
        kernels.push_back(scalar_kernel(shape, {.gate = "kTimeStep", .skip = "kChannel"},
                                        ScalarKernel::kOutputsOfSharedScores));
    }
    for (const ScalarShape& shape : kScalarFirstShapes) {
        for (const char* input : {"kBFloat16", "kFloat16"}) {
            kernels.push_back(
                scalar_kernel(shape, {.gate = "kTimeStep", .input = input}, ScalarKernel::kFirst));
        }
    }
    return kernels;
}

/// Normalised outputs: compiled on first use, and no worse.
std::vector<KernelSource> normalized_kernels() {
    std::vector<KernelSource> kernels;
    for (std::size_t i = 0; i < std::size(kScalarShapes); ++i) {
        if (kScalarShapes[i].heads > 1) continue;
        for (const char* input : {"kBFloat16", "kFloat16"}) {
            const ScalarPolicy policy{.gate = "kNone", .input = input, .normalized = true};
            kernels.push_back(scalar_kernel(kScalarShapes[i], policy, ScalarKernel::kOutputs));
            kernels.push_back(scalar_kernel(kScalarFirstShapes[i], policy, ScalarKernel::kFirst));
        }
    }
    return kernels;
}

auto by_nvcc(const std::vector<KernelSource>& kernels) {
    std::vector<Case> cases;
    for (const KernelSource& k : kernels) cases.push_back({"nvcc", open_shipping_nvcc, k});
    return ::testing::ValuesIn(cases);
}

auto by_nvrtc(const std::vector<KernelSource>& kernels) {
    std::vector<Case> cases;
    for (const KernelSource& k : kernels) cases.push_back({"NVRTC", open_nvrtc, k});
    return ::testing::ValuesIn(cases);
}

INSTANTIATE_TEST_SUITE_P(Shipped, TensorCoreKernel, by_nvcc(prebuilt_kernels()), name_of);
INSTANTIATE_TEST_SUITE_P(NotFound, TensorCoreKernel, by_nvrtc(prebuilt_kernels()), name_of);
INSTANTIATE_TEST_SUITE_P(OtherTypes, TensorCoreKernel, by_nvrtc(other_gla_kernels()), name_of);
INSTANTIATE_TEST_SUITE_P(Normalized, TensorCoreKernel, by_nvrtc(normalized_kernels()), name_of);
INSTANTIATE_TEST_SUITE_P(OnFirstUse, OtherKernel, by_nvrtc(largest_scalar_kernels()), name_of);

/// "13.0.88" of the line "nvidia-cuda-nvcc==13.0.88" of scripts/cuda-tools.txt.
std::string version_of(const std::string& package) {
    std::ifstream list(fs::path(SLUICE_SOURCE_DIR) / "scripts/cuda-tools.txt");
    for (std::string line; std::getline(list, line);) {
        if (line.starts_with(package + "==")) return line.substr(package.size() + 2);
    }
    return {};
}

// `make cubins` takes the same list's.
TEST(PrebuiltKernels, AreCompiledByTheNvccThatShipsThem) {
    if (!test::cuda_tools_are_required()) GTEST_SKIP() << "any nvcc may be the one of this machine";
    const std::string version = version_of("nvidia-cuda-nvcc");
    ASSERT_FALSE(version.empty());
    const CompilerPointer nvcc = open_shipping_nvcc(environment());
    ASSERT_NE(nvcc, nullptr);
    EXPECT_TRUE(nvcc->version().ends_with("V" + version)) << nvcc->version();
    for (const char* package : {"nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-nvrtc"}) {
        EXPECT_EQ(version_of(package), version) << package;
    }
}

TEST(PrebuiltKernels, AreFewAndDifferent) {
    std::set<std::string> names;
    for (const KernelSource& kernel : prebuilt_kernels()) {
        names.insert(cubin_file_name(translation_unit(kernel).key()));
    }
    EXPECT_EQ(names.size(), prebuilt_kernels().size());
    EXPECT_LE(names.size(), kMostKernels);
}

// A planner that takes is_prebuilt()'s word must find all kernels.
TEST(PrebuiltKernels, OfAShapeAndPolicyAreThereAll) {
    std::set<std::string> shipped;
    for (const KernelSource& kernel : prebuilt_kernels()) shipped.insert(kernel.to_string());
    int prebuilt = 0;
    for (int index = 0; const ScalarShape& shape : kScalarShapes) {
        const auto first_of = [&, index](std::int64_t values) {
            return kScalarFirstShapes[first_shape_of(index, values)];
        };
        ++index;
        for (const char* gate : {"kNone", "kConstant", "kGiven", "kTimeStep"}) {
            for (const char* skip : {"kNone", "kHead", "kChannel"}) {
                for (const bool gated : {false, true}) {
                    const ScalarPolicy policy{.gate = gate, .skip = skip, .gated = gated};
                    const auto there = [&](ScalarKernel which) {
                        return shipped.contains(scalar_kernel(shape, policy, which).to_string());
                    };
                    const bool outputs = there(ScalarKernel::kOutputs);
                    EXPECT_EQ(is_prebuilt(shape, policy), outputs) << gate << skip << gated;
                    EXPECT_EQ(there(ScalarKernel::kOutputsOfSharedScores),
                              outputs && can_share_scores(policy))
                        << gate << skip << gated;
                    if (!outputs) continue;
                    ++prebuilt;
                    for (const std::int64_t values : {64, 128}) {
                        const KernelSource first =
                            scalar_kernel(first_of(values), policy, ScalarKernel::kFirst);
                        EXPECT_TRUE(shipped.contains(first.to_string())) << first.to_string();
                    }
                }
            }
        }
    }
    EXPECT_GT(prebuilt, 0);
}

}  // namespace
}  // namespace sluice::cuda
