#include "cuda/engine/prebuilt.hpp"

#include <dlfcn.h>

#include <system_error>

namespace sluice::cuda {

KernelSource gla_kernel(const GlaShape& shape, const std::string& input, const std::string& gate,
                        bool state_only) {
    const int stages = gate == "kFloat32" ? shape.stages_float32_gates : shape.stages;
    return {.entry = "sm90/gla/kernel.cuh",
            .function = "sluice_gla",
            .definitions = {{"SLUICE_KEYS", std::to_string(shape.keys)},
                            {"SLUICE_MATH_GROUPS", std::to_string(shape.math_groups)},
                            {"SLUICE_TEAMS", std::to_string(shape.teams)},
                            {"SLUICE_STAGES", std::to_string(stages)},
                            {"SLUICE_PREPARE_REGISTERS", std::to_string(shape.prepare_registers)},
                            {"SLUICE_MATH_REGISTERS", std::to_string(shape.math_registers)},
                            {"SLUICE_LOAD_ROLE", shape.load_role ? "true" : "false"},
                            {"SLUICE_INPUT", input},
                            {"SLUICE_GATE", gate},
                            {"SLUICE_STATE_ONLY", state_only ? "true" : "false"}},
            .generated = {}};
}

std::vector<KernelSource> prebuilt_kernels() {
    std::vector<KernelSource> kernels;
    for (const GlaShape& shape : kGlaShapes) {
        for (const char* input : {"kBFloat16", "kFloat16"}) {
            for (const std::string gate : {input, "kFloat32"}) {
                for (const bool state_only : {false, true}) {
                    kernels.push_back(gla_kernel(shape, input, gate, state_only));
                }
            }
        }
    }
    return kernels;
}

std::vector<std::filesystem::path> prebuilt_folders() {
    std::vector<std::filesystem::path> folders = {SLUICE_CUBINS};
    std::error_code problem;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", problem);
    if (!problem) folders.push_back(program.parent_path().parent_path() / "share/sluice/cubins");
    // A shared library that this is linked into (a Python package's) brings its own.
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&prebuilt_folders), &here) != 0 &&
        here.dli_fname != nullptr) {
        folders.push_back(std::filesystem::path(here.dli_fname).parent_path() / "cubins");
    }
    return folders;
}

}  // namespace sluice::cuda
