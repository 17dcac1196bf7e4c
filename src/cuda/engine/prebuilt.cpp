#include "cuda/engine/prebuilt.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

namespace sluice::cuda {

KernelSource gla_kernel(const GlaShape& shape, const std::string& input, const std::string& gate,
                        bool state_only) {
    const int stages = gate == "kFloat32" ? shape.stages_float32_gates : shape.stages;
    return {.entry = "sm90/gla/kernel.cuh",
            .function = "sluice_gla",
            .definitions = {{"SLUICE_KEYS", std::to_string(shape.keys)},
                            {"SLUICE_KEY_PARTS", std::to_string(shape.key_parts)},
                            {"SLUICE_MATH_GROUPS", std::to_string(shape.math_groups)},
                            {"SLUICE_TEAMS", std::to_string(shape.teams)},
                            {"SLUICE_STAGES", std::to_string(stages)},
                            {"SLUICE_PREPARE_REGISTERS", std::to_string(shape.prepare_registers)},
                            {"SLUICE_MATH_REGISTERS", std::to_string(shape.math_registers)},
                            {"SLUICE_LOAD_ROLE", shape.load_role ? "true" : "false"},
                            {"SLUICE_PAIRED", shape.paired ? "true" : "false"},
                            {"SLUICE_INPUT", input},
                            {"SLUICE_GATE", gate},
                            {"SLUICE_STATE_ONLY", state_only ? "true" : "false"}},
            .generated = {}};
}

KernelSource scalar_kernel(const ScalarShape& shape, const ScalarPolicy& policy,
                           ScalarKernel which) {
    const bool first = which == ScalarKernel::kFirst;
    const bool shared = which == ScalarKernel::kOutputsOfSharedScores;
    return {.entry = "sm90/scalar/kernel.cuh",
            .function = "sluice_scalar",
            .definitions = {{"SLUICE_KEYS", std::to_string(shape.keys)},
                            {"SLUICE_HEADS", std::to_string(shape.heads)},
                            {"SLUICE_TILES", std::to_string(shape.tiles)},
                            {"SLUICE_STAGES", std::to_string(shape.stages)},
                            {"SLUICE_INPUT", policy.input},
                            {"SLUICE_GATE", policy.gate},
                            {"SLUICE_SKIP", first ? "kNone" : policy.skip},
                            {"SLUICE_GATED", !first && policy.gated ? "true" : "false"},
                            {"SLUICE_NORMALIZED", policy.normalized ? "true" : "false"},
                            {"SLUICE_SHARED_SCORES", shared ? "true" : "false"},
                            {"SLUICE_STATE_ONLY", first ? "true" : "false"}},
            .generated = {}};
}

bool can_share_scores(const ScalarPolicy& policy) {
    return policy.gate == "kTimeStep" && !policy.gated && policy.input == "kBFloat16";
}

namespace {

/// A shape and what it computes there.
struct ScalarChoice {
    ScalarShape shape;
    std::vector<ScalarPolicy> policies;  // of one gate: they have the first launch in common
};

std::vector<ScalarChoice> make_scalar_choices() {
    const auto& [pair128, wide128, narrow128, pair64, wide64, narrow64, single256] = kScalarShapes;
    const ScalarPolicy mamba2{.gate = "kTimeStep", .skip = "kHead"};
    const ScalarPolicy mamba2_z{.gate = "kTimeStep", .skip = "kHead", .gated = true};
    std::vector<ScalarChoice> choices = {{pair128, {mamba2, mamba2_z}},  // N 128, P up to 64
                                         {wide128, {mamba2}},            // P 80
                                         {pair64, {mamba2}}};            // N 64
    for (const char* gate : {"kGiven", "kConstant", "kNone"}) {
        for (const ScalarShape& shape : {wide128, narrow128, narrow64}) {
            choices.push_back({shape, {{.gate = gate}}});
        }
    }
    return choices;
}

/// Those that go with a shape, for any V.
std::set<int> first_shapes(const ScalarShape& shape) {
    const auto index = static_cast<int>(std::ranges::find(kScalarShapes, shape) - kScalarShapes);
    return {first_shape_of(index, 64), first_shape_of(index, 128)};
}

const std::vector<ScalarChoice>& scalar_choices() {
    static const std::vector<ScalarChoice> choices = make_scalar_choices();
    return choices;
}

}  // namespace

// What models run (data/workloads.json): bfloat16, K and V of 64 or 128, and GLA's K of 256 with V
// of 512. Mamba-2 with D per head,
// grouped heads and, at the size that most have, z; other gates without a skip, a value head a key
// head, at K = 128 in blocks for many sequences and for few. Everything else is compiled on first
// use, or by prepare().
std::vector<KernelSource> prebuilt_kernels() {
    std::vector<KernelSource> kernels;
    for (const GlaShape& shape : kGlaShapes) {
        kernels.push_back(gla_kernel(shape, "kBFloat16", "kBFloat16", false));
    }
    for (const GlaShape& shape : kGlaFirstShapes) {
        kernels.push_back(gla_kernel(shape, "kBFloat16", "kBFloat16", true));
    }
    for (const ScalarChoice& choice : scalar_choices()) {
        for (const ScalarPolicy& policy : choice.policies) {
            kernels.push_back(scalar_kernel(choice.shape, policy, ScalarKernel::kOutputs));
            if (!can_share_scores(policy)) continue;
            kernels.push_back(
                scalar_kernel(choice.shape, policy, ScalarKernel::kOutputsOfSharedScores));
        }
        for (const int first : first_shapes(choice.shape)) {
            KernelSource kernel = scalar_kernel(kScalarFirstShapes[first], choice.policies.front(),
                                                ScalarKernel::kFirst);
            if (std::ranges::count(kernels, kernel.to_string(), &KernelSource::to_string) == 0)
                kernels.push_back(std::move(kernel));
        }
    }
    return kernels;
}

bool is_prebuilt(const ScalarShape& shape, const ScalarPolicy& policy) {
    return std::ranges::any_of(scalar_choices(), [&](const ScalarChoice& choice) {
        return choice.shape == shape && std::ranges::count(choice.policies, policy) > 0;
    });
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
