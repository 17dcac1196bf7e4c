// Where a kernel's cubin comes from: compiled ahead, compiled by an earlier process, or compiled
// now.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cuda/engine/cache.hpp"
#include "cuda/engine/compiler.hpp"
#include "cuda/engine/source.hpp"

namespace sluice::cuda {

/// Compiling takes seconds and runs other code: never while a stream is being captured, say.
enum class CompilePolicy { kNever, kAllow };

enum class CubinOrigin { kPrebuilt, kCache, kCompiler };

struct Cubin {
    std::string bytes;
    CubinOrigin origin = CubinOrigin::kPrebuilt;
};

struct CubinSources {
    std::vector<std::filesystem::path> prebuilt;
    DiskCache cache;
    /// Called only when no prebuilt cubin fits: opening a compiler takes time. Null: there is none.
    std::function<const Compiler*()> compiler;
};
/// prebuilt_folders(), the environment's cache, find_compiler().
[[nodiscard]] const CubinSources& default_cubin_sources();

/// In the order of CubinOrigin. Throws Error(kUnsupported) when there is no cubin and none may or
/// can be compiled.
[[nodiscard]] Cubin find_cubin(const CubinSources& sources, const KernelSource& kernel,
                               CompilePolicy policy);

}  // namespace sluice::cuda
