// Kernels that `make cubins` compiles ahead, so that the usual calls neither wait nor need a
// compiler.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/engine/source.hpp"

namespace sluice::cuda {

/// What fits together in a GLA kernel: registers are exchanged among the roles, and stages fill
/// shared memory (sm90/gla/config.cuh); float32 gates leave room for fewer. `keys`: a block's; K
/// above 128 is spread over `key_parts` blocks. `paired`: two blocks prepare chunks for each other,
/// of 16-bit gates (no stages for others) and bfloat16 inputs.
struct GlaShape {
    int keys, key_parts, math_groups, teams;
    int stages, stages_float32_gates;
    int prepare_registers, math_registers;
    bool load_role, paired;
};
inline constexpr GlaShape kGlaShapes[] = {
    {128, 1, 2, 1, 2, 2, 96, 160, false, false},  // wide
    {128, 1, 1, 1, 3, 2, 128, 224, true, false},  // narrow
    {64, 1, 1, 2, 4, 4, 128, 224, true, false},   // small
    {128, 2, 2, 1, 2, 2, 96, 160, false, false},  // two of the wide
    {128, 1, 1, 2, 4, 0, 128, 224, true, true},   // a pair of the narrow
};
/// Of a split sequence's first launch, which has states alone to compute: key channels are
/// independent there.
inline constexpr GlaShape kGlaFirstShapes[] = {
    {128, 1, 2, 1, 3, 3, 96, 160, false, false},  // wide
    {128, 1, 1, 1, 3, 3, 128, 224, true, false},  // narrow
    {64, 1, 1, 2, 4, 4, 128, 224, true, false},   // small
    {128, 2, 2, 1, 3, 3, 96, 160, false, false},  // two of the wide
    {64, 2, 2, 2, 6, 4, 96, 128, true, false},    // the wide in halves of the keys
};

/// `input` and `gate` as the header names them: kBFloat16, kFloat16; gates also kFloat32.
[[nodiscard]] KernelSource gla_kernel(const GlaShape& shape, const std::string& input,
                                      const std::string& gate, bool state_only);

/// What a block of the kernel for scalar decays works on: K padded; value heads of one key head,
/// and tiles of 64 value channels of a head, two of either at most, and one of each where K is
/// above 128. Stages fill shared memory (sm90/scalar/config.cuh).
struct ScalarShape {
    int keys, heads, tiles, stages;
    bool operator==(const ScalarShape&) const = default;
};
inline constexpr ScalarShape kScalarShapes[] = {{128, 2, 1, 3}, {128, 1, 2, 3}, {128, 1, 1, 4},
                                                {64, 2, 1, 4},  {64, 1, 2, 4},  {64, 1, 1, 4},
                                                {256, 1, 1, 2}};
/// Of the first launch, for each of kScalarShapes: it has no more than states to keep in registers,
/// so a block has up to four heads, which share keys.
inline constexpr ScalarShape kScalarFirstShapes[] = {{128, 4, 1, 4}, {128, 1, 2, 6}, {128, 1, 1, 7},
                                                     {64, 4, 1, 4},  {64, 1, 2, 7},  {64, 1, 1, 7},
                                                     {256, 1, 1, 5}};
/// Which of them goes with the `shape`-th of kScalarShapes: a head's two tiles share keys as well.
[[nodiscard]] constexpr int first_shape_of(int shape, std::int64_t values) {
    constexpr int kWide = 1, kNarrow = 2;  // of K = 128
    return shape == kNarrow && values > 64 ? kWide : shape;
}

/// What a kernel for scalar decays computes. `gate`, `skip` and `input` as the header names them:
/// kNone, kConstant, kGiven, kTimeStep; kNone, kHead, kChannel; kBFloat16, kFloat16. `gated`:
/// outputs are times silu(z). `normalized`: they are divided by what queries read of the sum of
/// keys; of gates only kNone, and blocks of one head.
struct ScalarPolicy {
    std::string gate;
    std::string skip = "kNone";
    bool gated = false;
    std::string input = "kBFloat16";
    bool normalized = false;
    bool operator==(const ScalarPolicy&) const = default;
};
/// A policy's kernels: the first launch's, of a shape of its own and for all policies of a gate the
/// same, unless they are normalised; the outputs' with scores that each block computes; and with
/// scores that the first launch has.
enum class ScalarKernel { kFirst, kOutputs, kOutputsOfSharedScores };
[[nodiscard]] KernelSource scalar_kernel(const ScalarShape& shape, const ScalarPolicy& policy,
                                         ScalarKernel which);
/// Whether the policy has a kernel for shared scores: Mamba-2's, whose groups have many heads,
/// without z, which takes the time that it would save.
[[nodiscard]] bool can_share_scores(const ScalarPolicy& policy);

[[nodiscard]] std::vector<KernelSource> prebuilt_kernels();
/// Whether all kernels of the policy are among them.
[[nodiscard]] bool is_prebuilt(const ScalarShape& shape, const ScalarPolicy& policy);

/// Where their cubins may be: the folder known when the library was built, ../share/sluice/cubins
/// beside the running program, and cubins beside the shared library that this code is in.
[[nodiscard]] std::vector<std::filesystem::path> prebuilt_folders();

}  // namespace sluice::cuda
