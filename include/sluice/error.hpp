// The one error type of the library.
#pragma once

#include <stdexcept>
#include <string>

namespace sluice {

enum class ErrorCode {
    kMissing,      // an argument that the spec needs was not given
    kSurplus,      // an argument or setting that nothing asks for (a misspelt name, say)
    kShape,        // rank or extents
    kDType,        // element type
    kDevice,       // memory that the chosen backend cannot reach
    kStride,       // a memory layout that is not supported
    kAlias,        // an output that overlaps another argument
    kValue,        // a number out of range, NaN, unsorted offsets, ...
    kUnsupported,  // outside the family, or no backend takes the problem
    kMemory,       // memory that is not there to be had
    kFile,         // a file that cannot be read or written, or is malformed
};

[[nodiscard]] const char* to_string(ErrorCode code) noexcept;

/// Thrown for every refused input, before anything is written. `what()` reads
/// "<argument>: got <value>; accepted: <accepted>".
class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, std::string argument, std::string value, std::string accepted);

    [[nodiscard]] ErrorCode code() const noexcept { return code_; }
    /// The name of the refused argument, as the caller wrote it ("k", "cu_seqlens", "scale").
    [[nodiscard]] const std::string& argument() const noexcept { return argument_; }
    /// The offending value, printed.
    [[nodiscard]] const std::string& value() const noexcept { return value_; }
    /// What would have been accepted.
    [[nodiscard]] const std::string& accepted() const noexcept { return accepted_; }

  private:
    ErrorCode code_;
    std::string argument_;
    std::string value_;
    std::string accepted_;
};

}  // namespace sluice
