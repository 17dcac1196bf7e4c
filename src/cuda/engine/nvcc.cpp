#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "cuda/engine/compiler.hpp"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

namespace fs = std::filesystem;

/// A new folder that goes away with everything in it.
class TemporaryFolder {
  public:
    explicit TemporaryFolder(const fs::path& parent) {
        std::string name = parent / "sluice-XXXXXX";
        if (mkdtemp(name.data()) == nullptr) {
            throw Error(ErrorCode::kFile, parent.string(), std::strerror(errno),
                        "a folder for temporary files (TMPDIR)");
        }
        path_ = name;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    [[nodiscard]] fs::path operator/(const fs::path& name) const { return path_ / name; }

  private:
    fs::path path_;
};

std::string read_bytes(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
    std::error_code ignored;  // the file then cannot be written
    fs::create_directories(path.parent_path(), ignored);
    std::ofstream file(path, std::ios::binary);
    file << bytes;
    file.close();
    if (!file) {
        throw Error(ErrorCode::kFile, path.string(), std::strerror(errno), "a file to write");
    }
}

/// Runs a program without a shell, its output in the file `log`; whether it succeeded.
bool run(const std::vector<std::string>& words, const fs::path& log) {
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
    pid_t child = 0;
    const int failed = posix_spawn(&child, argv[0], &files, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) return false;
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class NvccCompiler : public Compiler {
  public:
    NvccCompiler(fs::path nvcc, fs::path temporary, std::string version)
        : nvcc_(std::move(nvcc)), temporary_(std::move(temporary)), version_(std::move(version)) {}

    [[nodiscard]] const std::string& version() const noexcept override { return version_; }

    [[nodiscard]] Compiled compile(const TranslationUnit& unit) const override {
        const TemporaryFolder folder(temporary_);
        const fs::path program = folder / (unit.function + ".cu");
        const fs::path cubin = folder / "out.cubin";
        const fs::path log_file = folder / "log";
        for (const auto& [path, text] : unit.headers) write_bytes(folder / "include" / path, text);
        write_bytes(program, unit.program);
        std::vector<std::string> words = {nvcc_};
        words.insert(words.end(), compile_options().begin(), compile_options().end());
        words.insert(words.end(), {"--cubin", "--include-path", folder / "include", "--output-file",
                                   cubin, program});
        const bool compiled = run(words, log_file);
        std::string log = read_bytes(log_file);
        if (!compiled) refuse_source(version_, unit, log);
        const ResourceUsage usage = parse_resource_usage(log, unit.function);
        return {.cubin = read_bytes(cubin), .log = std::move(log), .usage = usage};
    }

  private:
    fs::path nvcc_, temporary_;
    std::string version_;
};

/// Of CUDA: 12 is the first that knows sm_90a and C++20. Drivers load what is compiled to machine
/// code by a CUDA of their own major version, a newer minor one too (NVIDIA, "CUDA Compatibility",
/// Minor Version Compatibility: every 13.x from R580 on), and by older ones.
constexpr int kOldestMajor = 12, kMajorOfOldestDriver = 13;

/// "13.0, V13.0.88" of "Cuda compilation tools, release 13.0, V13.0.88"; empty if that fails.
std::string release_of(const fs::path& nvcc, const fs::path& temporary) {
    const TemporaryFolder folder(temporary);
    const fs::path log = folder / "log";
    if (!run({nvcc, "--version"}, log)) return {};
    const std::string text = read_bytes(log);
    constexpr std::string_view kMark = "release ";
    const std::size_t at = text.find(kMark);
    if (at == std::string::npos) return {};
    return text.substr(at + kMark.size(), text.find('\n', at) - at - kMark.size());
}

/// The first of at most `newest_major`.
std::unique_ptr<const Compiler> find_nvcc(const Environment& environment, int newest_major) {
    std::vector<fs::path> folders = environment.path;
    folders.insert(folders.begin(), environment.cuda_home / "bin");
    for (const fs::path& folder : folders) {
        const fs::path nvcc = folder / "nvcc";
        if (access(nvcc.c_str(), X_OK) != 0) continue;
        const std::string release = release_of(nvcc, environment.temporary);
        const int major = std::atoi(release.c_str());  // 0 of an empty one
        if (major < kOldestMajor || major > newest_major) continue;
        return std::make_unique<NvccCompiler>(nvcc, environment.temporary, "nvcc " + release);
    }
    return {};
}

}  // namespace

std::unique_ptr<const Compiler> open_nvcc(const Environment& environment) {
    return find_nvcc(environment, std::numeric_limits<int>::max());
}

std::unique_ptr<const Compiler> open_shipping_nvcc(const Environment& environment) {
    return find_nvcc(environment, kMajorOfOldestDriver);
}

}  // namespace sluice::cuda
