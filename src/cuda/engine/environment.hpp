// What the CUDA engine takes from the environment, read once.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sluice::cuda {

struct Environment {
    std::string nvrtc;                        // SLUICE_NVRTC: libnvrtc, or the folder it is in
    std::filesystem::path cuda_home;          // CUDA_HOME, else /usr/local/cuda
    std::vector<std::filesystem::path> path;  // PATH
    /// SLUICE_CACHE_DIR (empty: no cache), else sluice in XDG_CACHE_HOME, else in ~/.cache.
    std::filesystem::path cache;
    std::filesystem::path temporary;  // TMPDIR, else /tmp
    bool racecheck = false;           // SLUICE_RACECHECK: kernels for compute-sanitizer's racecheck
};

[[nodiscard]] const Environment& environment();

}  // namespace sluice::cuda
