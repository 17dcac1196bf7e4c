#include "cuda/engine/cubins.hpp"

#include "cuda/engine/prebuilt.hpp"
#include "sluice/error.hpp"

namespace sluice::cuda {

const CubinSources& default_cubin_sources() {
    static const CubinSources kSources = {.prebuilt = prebuilt_folders(),
                                          .cache = DiskCache(environment().cache),
                                          .compiler = find_compiler};
    return kSources;
}

Cubin find_cubin(const CubinSources& sources, const KernelSource& kernel, CompilePolicy policy) {
    const TranslationUnit unit = translation_unit(kernel);
    const std::string key = unit.key();
    for (const std::filesystem::path& folder : sources.prebuilt) {
        if (auto cubin = read_cubin(folder, key))
            return {*std::move(cubin), CubinOrigin::kPrebuilt};
    }
    const Compiler* compiler = sources.compiler();
    if (compiler == nullptr) {
        throw Error(ErrorCode::kUnsupported, kernel.to_string(), "no cubin and no compiler",
                    "a kernel of `make cubins`; or libnvrtc of CUDA 12.0 or newer where the loader "
                    "looks, in $CUDA_HOME/lib64 or at $SLUICE_NVRTC; or nvcc in $PATH");
    }
    // Another compiler makes other code of the same text.
    const std::string cache_key = compiler->version() + '\n' + key;
    if (auto cubin = sources.cache.load(cache_key)) return {*std::move(cubin), CubinOrigin::kCache};
    if (policy == CompilePolicy::kNever) {
        throw Error(ErrorCode::kUnsupported, kernel.to_string(),
                    "no cubin, and a call that must not compile (a stream is being captured)",
                    "the same call once before, outside the capture");
    }
    Compiled compiled = compiler->compile(unit);
    sources.cache.store(cache_key, compiled.cubin);
    return {std::move(compiled.cubin), CubinOrigin::kCompiler};
}

}  // namespace sluice::cuda
