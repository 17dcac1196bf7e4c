// cubins FOLDER [nvrtc]: compiles the kernels of cuda/engine/prebuilt.hpp into FOLDER by nvcc, or
// NVRTC, with an index of what ptxas says of each. Those that are there already stay as they are;
// files of other kernels go.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <string_view>

#include "cuda/engine/cache.hpp"
#include "cuda/engine/compiler.hpp"
#include "cuda/engine/prebuilt.hpp"
#include "sluice/error.hpp"

namespace {

namespace fs = std::filesystem;
using namespace sluice;
using namespace sluice::cuda;

/// nvcc computes addresses of shared memory in 32 bits, NVRTC in 64: loops of nvcc's kernels are a
/// tenth shorter. So NVRTC only compiles them where it is asked for.
std::unique_ptr<const Compiler> open_compiler(bool nvrtc) {
    auto compiler = nvrtc ? open_nvrtc(environment()) : open_shipping_nvcc(environment());
    if (compiler == nullptr) {
        throw Error(ErrorCode::kMissing, "compiler",
                    nvrtc ? "no NVRTC" : "no nvcc of CUDA 12 or 13",
                    "nvcc in $CUDA_HOME/bin or $PATH (`make cubins` takes one from PyPI); or the "
                    "argument nvrtc, and libnvrtc of CUDA 12.0 or newer");
    }
    return compiler;
}

/// Compiles one kernel and returns its line for the index.
std::string compile(const Compiler& compiler, const KernelSource& kernel, const fs::path& folder) {
    const auto start = std::chrono::steady_clock::now();
    const TranslationUnit unit = translation_unit(kernel);
    const std::string key = unit.key();
    const Compiled compiled = compiler.compile(unit);
    if (!write_cubin(folder, key, compiled.cubin)) {
        throw Error(ErrorCode::kFile, folder.string(), "no file could be written", "a folder");
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const ResourceUsage& usage = compiled.usage;
    fmt::print("{:.1f} s  {}\n", seconds.count(), kernel.to_string());
    for (const std::string& warning : performance_warnings(compiled.log)) {
        fmt::print("       {}\n", warning);
    }
    if (usage.spill_store_bytes > 0) {
        fmt::print("       {} bytes spilled: slower than measured\n", usage.spill_store_bytes);
    }
    return fmt::format("{}  {}  {}: {} registers, stack {} bytes, spills {} + {} bytes\n",
                       cubin_file_name(key), compiler.version(), kernel.to_string(),
                       usage.registers, usage.stack_bytes, usage.spill_store_bytes,
                       usage.spill_load_bytes);
}

/// File name -> line of an index; empty if there is none.
std::map<std::string, std::string> read_index(const fs::path& path) {
    std::map<std::string, std::string> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        lines[line.substr(0, line.find(' '))] = line + '\n';
    }
    return lines;
}

void build(const Compiler& compiler, const fs::path& folder) {
    fmt::print("{}\n", compiler.version());
    if (!compiler.version().ends_with("V" SLUICE_JUDGED_NVCC)) {
        fmt::print("The tests of what ships judge nvcc {}: other code than this\n",
                   SLUICE_JUDGED_NVCC);
    }
    fs::create_directories(folder);
    const fs::path index_path = folder / "index.txt";
    const std::map<std::string, std::string> old_index = read_index(index_path);
    std::map<std::string, std::string> index;
    for (const KernelSource& kernel : prebuilt_kernels()) {
        const std::string key = translation_unit(kernel).key();
        const std::string name = cubin_file_name(key);
        const auto known = old_index.find(name);
        const bool is_there = known != old_index.end() &&
                              known->second.find(compiler.version()) != std::string::npos &&
                              read_cubin(folder, key).has_value();
        index[name] = is_there ? known->second : compile(compiler, kernel, folder);
    }
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (name.ends_with(".cubin") && !index.contains(name)) fs::remove(entry);
    }
    std::ofstream file(index_path);
    for (const auto& [name, line] : index) file << line;
    fmt::print("{} kernels in {}\n", index.size(), folder.string());
}

}  // namespace

int main(int argc, char** argv) {
    const bool nvrtc = argc == 3 && std::string_view(argv[2]) == "nvrtc";
    if (argc != 2 && !nvrtc) {
        fmt::print(stderr, "usage: cubins FOLDER [nvrtc]\n");
        return 2;
    }
    try {
        build(*open_compiler(nvrtc), argv[1]);
    } catch (const std::exception& error) {
        fmt::print(stderr, "cubins: {}\n", error.what());
        return 1;
    }
    return 0;
}
