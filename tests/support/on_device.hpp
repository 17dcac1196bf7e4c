// Calls whose tensors are in CPU memory, on a back end whose tensors are elsewhere.
#pragma once

#include <vector>

#include "runtime/mirror.hpp"
#include "sluice/sluice.hpp"

namespace sluice::test {

/// The first GPU that this library's kernels run on. There is one (absence_of).
[[nodiscard]] Device first_cuda_device();

/// forward() or step(), by phase. Where options.backend is "cuda", on that GPU's copies of the
/// tensors' memory and of all memory in `around` (guards, say), which is copied back afterwards
/// byte for byte: a stray write shows as it would on the CPU.
Plan call(const Spec& spec, const Arguments& arguments, const Options& options,
          Phase phase = Phase::kPrefill, const std::vector<Range>& around = {});

/// The same arguments as they would be on a CUDA device, for what reads no memory: bind(), plan().
[[nodiscard]] Arguments as_if_on_cuda(Arguments arguments);

}  // namespace sluice::test
