// The kernels for scalar decays, as values.
#pragma once

#include <vector>

#include "cuda/backend/scalar_form.hpp"
#include "cuda/engine/source.hpp"

namespace sluice::cuda {

/// What a block of threads works on: K padded; value heads of one key head, and tiles of 64 value
/// channels of a head, two of either at most. Stages fill shared memory (sm90/scalar/config.cuh).
struct ScalarShape {
    int keys, heads, tiles, stages;
};
inline constexpr ScalarShape kScalarShapes[] = {{128, 2, 1, 3}, {128, 1, 2, 3}, {128, 1, 1, 4},
                                                {64, 2, 1, 4},  {64, 1, 2, 4},  {64, 1, 1, 4}};

[[nodiscard]] KernelSource scalar_kernel(const ScalarShape& shape, const ScalarForm& form,
                                         bool state_only);

/// Those to compile ahead: the library's own variants.
[[nodiscard]] std::vector<KernelSource> prebuilt_scalar_kernels();

}  // namespace sluice::cuda
