// From a kernel's name and its compile-time choices to the text that a compiler reads.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cuda {

/// A header of src/cuda, carried inside the library so that an installed one can compile kernels.
struct EmbeddedHeader {
    std::string_view path;  // as in #include "..."
    std::string_view text;
};
[[nodiscard]] std::span<const EmbeddedHeader> embedded_headers() noexcept;

/// One kernel, as a value.
struct KernelSource {
    std::string entry;                               // header that defines it
    std::string function;                            // extern "C"
    std::map<std::string, std::string> definitions;  // macro -> value
    /// Further headers, path -> text: formulas of a user's variant, say. They go before embedded
    /// headers of the same path.
    std::map<std::string, std::string> generated;

    /// "sluice_gla (KEYS=128, STAGES=2)"
    [[nodiscard]] std::string to_string() const;
};

/// What a compiler reads: definitions and the entry's #include, and every header reached from
/// there.
struct TranslationUnit {
    std::string function;
    std::string program;
    std::map<std::string, std::string> headers;  // path -> text

    /// Everything that decides the code, as one text. A kernel's identity apart from the compiler.
    [[nodiscard]] std::string key() const;
};
/// Throws Error(kValue) for a definition that is not one macro, or a generated path that leaves its
/// folder; Error(kMissing) for an #include "..." that is neither embedded nor generated.
[[nodiscard]] TranslationUnit translation_unit(const KernelSource& source);

}  // namespace sluice::cuda
