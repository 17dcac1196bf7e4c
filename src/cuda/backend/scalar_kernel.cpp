#include "cuda/backend/scalar_kernel.hpp"

#include <string>

namespace sluice::cuda {

namespace {

using Gate = ScalarForm::Gate;
using Skip = ScalarForm::Skip;

// As the headers name them.
const char* name_of(Gate gate) {
    switch (gate) {
        case Gate::kNone: return "kNone";
        case Gate::kConstant: return "kConstant";
        case Gate::kGiven: return "kGiven";
        case Gate::kTimeStep: break;
    }
    return "kTimeStep";
}
const char* name_of(Skip skip) {
    return skip == Skip::kNone ? "kNone" : skip == Skip::kHead ? "kHead" : "kChannel";
}

}  // namespace

KernelSource scalar_kernel(const ScalarShape& shape, const ScalarForm& form, bool state_only) {
    // A segment's own state depends on no output.
    const Skip skip = state_only ? Skip::kNone : form.skip_kind;
    const bool gated = !state_only && !form.z.empty();
    return {.entry = "sm90/scalar/kernel.cuh",
            .function = "sluice_scalar",
            .definitions = {{"SLUICE_KEYS", std::to_string(shape.keys)},
                            {"SLUICE_HEADS", std::to_string(shape.heads)},
                            {"SLUICE_TILES", std::to_string(shape.tiles)},
                            {"SLUICE_STAGES", std::to_string(shape.stages)},
                            {"SLUICE_GATE", name_of(form.gate)},
                            {"SLUICE_SKIP", name_of(skip)},
                            {"SLUICE_GATED", gated ? "true" : "false"},
                            {"SLUICE_STATE_ONLY", state_only ? "true" : "false"}},
            .generated = {}};
}

std::vector<KernelSource> prebuilt_scalar_kernels() {
    std::vector<KernelSource> kernels;
    for (const ScalarShape& shape : kScalarShapes) {
        for (const Gate gate : {Gate::kNone, Gate::kConstant, Gate::kGiven, Gate::kTimeStep}) {
            ScalarForm form;
            form.gate = gate;
            kernels.push_back(scalar_kernel(shape, form, true));
            for (const Skip skip : {Skip::kNone, Skip::kHead, Skip::kChannel}) {
                for (const char* z : {"", "z"}) {
                    form.skip_kind = skip;
                    form.z = z;
                    const bool plain = skip == Skip::kNone && form.z.empty();
                    if (!plain && gate != Gate::kTimeStep) continue;
                    kernels.push_back(scalar_kernel(shape, form, false));
                }
            }
        }
    }
    return kernels;
}

}  // namespace sluice::cuda
