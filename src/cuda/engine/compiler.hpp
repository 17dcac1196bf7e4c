// From a kernel's text to a cubin: NVRTC if it is there, else nvcc. Both are found at run time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/engine/environment.hpp"
#include "cuda/engine/source.hpp"

namespace sluice::cuda {

/// What ptxas reports of a kernel. Where roles exchange registers (setmaxnreg), `registers` is what
/// a thread is launched with.
struct ResourceUsage {
    int registers = 0;
    int stack_bytes = 0;
    int spill_store_bytes = 0;
    int spill_load_bytes = 0;
};
/// Reads the lines of `ptxas -v` about `function`; zeros where there are none.
[[nodiscard]] ResourceUsage parse_resource_usage(std::string_view log, std::string_view function);
/// Lines of a log that say that ptxas gave up on wgmma's or setmaxnreg's promises (C7500 to C7599:
/// products serialised, register requests ignored): correct code, but slow.
[[nodiscard]] std::vector<std::string> performance_warnings(std::string_view log);

struct Compiled {
    std::string cubin;  // bytes
    std::string log;
    ResourceUsage usage;
};

class Compiler {
  public:
    virtual ~Compiler() = default;
    /// "NVRTC 13.0": part of the identity of what it compiles.
    [[nodiscard]] virtual const std::string& version() const noexcept = 0;
    /// Throws Error(kUnsupported) with the log.
    [[nodiscard]] virtual Compiled compile(const TranslationUnit& unit) const = 0;
};

/// Target, language, and what ptxas shall report.
[[nodiscard]] std::span<const std::string_view> compile_options() noexcept;

/// Null where there is none. SLUICE_NVRTC, when set, is the only place looked at, and
/// Error(kFile) if it does not hold a usable library.
[[nodiscard]] std::unique_ptr<const Compiler> open_nvrtc(const Environment& environment);
[[nodiscard]] std::unique_ptr<const Compiler> open_nvcc(const Environment& environment);
/// The nvcc that compiles kernels to ship: the first in CUDA_HOME and PATH whose cubins every
/// driver that the library takes can load. Null where there is none.
[[nodiscard]] std::unique_ptr<const Compiler> open_shipping_nvcc(const Environment& environment);
/// NVRTC, else nvcc, else null; looked for once, in the process's environment.
[[nodiscard]] const Compiler* find_compiler();

/// A compiler's refusal, as both compilers throw it.
[[noreturn]] void refuse_source(const std::string& compiler, const TranslationUnit& unit,
                                const std::string& log);

}  // namespace sluice::cuda
