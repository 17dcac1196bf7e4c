#include "sluice/error.hpp"

#include <utility>

namespace sluice {

const char* to_string(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::kMissing: return "missing";
        case ErrorCode::kSurplus: return "surplus";
        case ErrorCode::kShape: return "shape";
        case ErrorCode::kDType: return "dtype";
        case ErrorCode::kDevice: return "device";
        case ErrorCode::kStride: return "stride";
        case ErrorCode::kAlias: return "alias";
        case ErrorCode::kValue: return "value";
        case ErrorCode::kUnsupported: return "unsupported";
        case ErrorCode::kMemory: return "memory";
        case ErrorCode::kFile: return "file";
    }
    return "?";
}

Error::Error(ErrorCode code, std::string argument, std::string value, std::string accepted)
    : std::runtime_error(argument + ": got " + value + "; accepted: " + accepted),
      code_(code),
      argument_(std::move(argument)),
      value_(std::move(value)),
      accepted_(std::move(accepted)) {}

}  // namespace sluice
