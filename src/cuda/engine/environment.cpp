#include "cuda/engine/environment.hpp"

#include <cstdlib>
#include <sstream>

namespace sluice::cuda {

namespace {

std::string variable(const char* name, const char* otherwise = "") {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : otherwise;
}

std::filesystem::path cache_folder() {
    if (const char* chosen = std::getenv("SLUICE_CACHE_DIR")) return chosen;
    // The XDG specification: relative paths are invalid and ignored.
    const std::filesystem::path base = variable("XDG_CACHE_HOME");
    if (base.is_absolute()) return base / "sluice";
    const std::filesystem::path home = variable("HOME");
    return home.is_absolute() ? home / ".cache/sluice" : std::filesystem::path();
}

Environment read() {
    Environment e;
    e.nvrtc = variable("SLUICE_NVRTC");
    e.cuda_home = variable("CUDA_HOME", "/usr/local/cuda");
    std::istringstream path(variable("PATH"));
    for (std::string folder; std::getline(path, folder, ':');) {
        if (!folder.empty()) e.path.emplace_back(folder);
    }
    e.cache = cache_folder();
    e.temporary = variable("TMPDIR", "/tmp");
    e.racecheck = !std::string(variable("SLUICE_RACECHECK")).empty();
    return e;
}

}  // namespace

const Environment& environment() {
    static const Environment kEnvironment = read();
    return kEnvironment;
}

}  // namespace sluice::cuda
