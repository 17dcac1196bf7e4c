// Kernels that `make cubins` compiles ahead, so that the usual calls neither wait nor need a
// compiler.
#pragma once

#include <filesystem>
#include <vector>

#include "cuda/engine/source.hpp"

namespace sluice::cuda {

/// What fits together in a GLA kernel: registers are exchanged among the roles, and stages fill
/// shared memory (sm90/gla/config.cuh); float32 gates leave room for fewer.
struct GlaShape {
    int keys, math_groups, teams, stages, stages_float32_gates, prepare_registers, math_registers;
    bool load_role;
};
inline constexpr GlaShape kGlaShapes[] = {{128, 2, 1, 2, 2, 96, 160, false},
                                          {128, 1, 1, 3, 2, 128, 224, true},
                                          {64, 1, 2, 3, 3, 128, 224, true}};

/// `input` and `gate` as the header names them: kBFloat16, kFloat16; gates also kFloat32.
[[nodiscard]] KernelSource gla_kernel(const GlaShape& shape, const std::string& input,
                                      const std::string& gate, bool state_only);

[[nodiscard]] std::vector<KernelSource> prebuilt_kernels();

/// Where their cubins may be: the folder known when the library was built, ../share/sluice/cubins
/// beside the running program, and cubins beside the shared library that this code is in.
[[nodiscard]] std::vector<std::filesystem::path> prebuilt_folders();

}  // namespace sluice::cuda
