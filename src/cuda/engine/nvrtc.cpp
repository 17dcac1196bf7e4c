#include <fmt/format.h>

#include <optional>
#include <utility>

#include "cuda/engine/compiler.hpp"
#include "cuda/engine/shared_library.hpp"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

using Program = struct ProgramState*;  // nvrtcProgram

/// The part of NVRTC's public ABI that is used here. A result of 0 is success.
struct Nvrtc {
    int (*version)(int* major, int* minor);
    const char* (*error_string)(int result);
    int (*create)(Program* program, const char* source, const char* name, int num_headers,
                  const char* const* headers, const char* const* header_names);
    int (*compile)(Program program, int num_options, const char* const* options);
    int (*log_bytes)(Program program, std::size_t* bytes);
    int (*log)(Program program, char* log);
    int (*cubin_bytes)(Program program, std::size_t* bytes);
    int (*cubin)(Program program, char* cubin);
    int (*destroy)(Program* program);
};

class ProgramHandle {
  public:
    ProgramHandle(const Nvrtc& nvrtc, const TranslationUnit& unit) : nvrtc_(nvrtc) {
        std::vector<const char*> paths;
        std::vector<const char*> texts;
        for (const auto& [path, text] : unit.headers) {
            paths.push_back(path.c_str());
            texts.push_back(text.c_str());
        }
        const std::string name = unit.function + ".cu";
        check(nvrtc.create(&program_, unit.program.c_str(), name.c_str(),
                           static_cast<int>(paths.size()), texts.data(), paths.data()));
    }
    ~ProgramHandle() { nvrtc_.destroy(&program_); }
    ProgramHandle(const ProgramHandle&) = delete;
    ProgramHandle& operator=(const ProgramHandle&) = delete;

    [[nodiscard]] bool compile() const {
        std::vector<const char*> options;
        for (const std::string_view option : compile_options()) options.push_back(option.data());
        return nvrtc_.compile(program_, static_cast<int>(options.size()), options.data()) == 0;
    }
    [[nodiscard]] std::string log() const {
        std::string text = bytes(nvrtc_.log_bytes, nvrtc_.log);
        if (text.ends_with('\0')) text.pop_back();
        return text;
    }
    [[nodiscard]] std::string cubin() const { return bytes(nvrtc_.cubin_bytes, nvrtc_.cubin); }

  private:
    void check(int result) const {
        if (result != 0) {
            throw Error(ErrorCode::kUnsupported, "NVRTC", nvrtc_.error_string(result), "success");
        }
    }
    [[nodiscard]] std::string bytes(int (*measure)(Program, std::size_t*),
                                    int (*read)(Program, char*)) const {
        std::size_t size = 0;
        check(measure(program_, &size));
        std::string out(size, '\0');
        check(read(program_, out.data()));
        return out;
    }

    const Nvrtc& nvrtc_;
    Program program_ = nullptr;
};

class NvrtcCompiler : public Compiler {
  public:
    NvrtcCompiler(const Nvrtc& nvrtc, std::string version)
        : nvrtc_(nvrtc), version_(std::move(version)) {}

    [[nodiscard]] const std::string& version() const noexcept override { return version_; }

    [[nodiscard]] Compiled compile(const TranslationUnit& unit) const override {
        const ProgramHandle program(nvrtc_, unit);
        const bool compiled = program.compile();
        std::string log = program.log();
        if (!compiled) refuse_source(version_, unit, log);
        const ResourceUsage usage = parse_resource_usage(log, unit.function);
        return {.cubin = program.cubin(), .log = std::move(log), .usage = usage};
    }

  private:
    Nvrtc nvrtc_;
    std::string version_;
};

/// Null unless `path` is an NVRTC that knows C++20 and sm_90a, so 12.0 or newer.
std::unique_ptr<const Compiler> open(const std::string& path) {
    SharedLibrary library(path);
    Nvrtc nvrtc{};
    library.bind(nvrtc.version, "nvrtcVersion");
    library.bind(nvrtc.error_string, "nvrtcGetErrorString");
    library.bind(nvrtc.create, "nvrtcCreateProgram");
    library.bind(nvrtc.compile, "nvrtcCompileProgram");
    library.bind(nvrtc.log_bytes, "nvrtcGetProgramLogSize");
    library.bind(nvrtc.log, "nvrtcGetProgramLog");
    library.bind(nvrtc.cubin_bytes, "nvrtcGetCUBINSize");
    library.bind(nvrtc.cubin, "nvrtcGetCUBIN");
    library.bind(nvrtc.destroy, "nvrtcDestroyProgram");
    int major = 0;
    int minor = 0;
    if (!library.problem().empty() || nvrtc.version(&major, &minor) != 0 || major < 12) return {};
    // NVRTC opens this one by its bare name, which the loader finds in no folder of a Python
    // package. Loaded before, it is found.
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) {
        (void)SharedLibrary(folder / fmt::format("libnvrtc-builtins.so.{}.{}", major, minor));
    }
    return std::make_unique<NvrtcCompiler>(nvrtc, fmt::format("NVRTC {}.{}", major, minor));
}

std::unique_ptr<const Compiler> open_any(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
        if (auto compiler = open(path)) return compiler;
    }
    return {};
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
    return {folder / "libnvrtc.so.13", folder / "libnvrtc.so.12", folder / "libnvrtc.so"};
}

}  // namespace

std::unique_ptr<const Compiler> open_nvrtc(const Environment& environment) {
    if (!environment.nvrtc.empty()) {
        std::error_code ignored;
        const bool is_folder = std::filesystem::is_directory(environment.nvrtc, ignored);
        auto compiler = is_folder ? open_any(names_in(environment.nvrtc)) : open(environment.nvrtc);
        if (!compiler) {
            throw Error(ErrorCode::kFile, "SLUICE_NVRTC", "'" + environment.nvrtc + "'",
                        "libnvrtc.so of CUDA 12.0 or newer, or the folder that holds it");
        }
        return compiler;
    }
    if (auto compiler = open_any(names_in(""))) return compiler;  // where the loader looks
    return open_any(names_in(environment.cuda_home / "lib64"));
}

}  // namespace sluice::cuda
