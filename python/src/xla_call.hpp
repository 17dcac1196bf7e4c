// Declared calls as functions that XLA's programs call: how JAX arrays reach the library.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "declared_call.hpp"
#include "xla_abi.hpp"

namespace sluice::python {

/// Memory of so many bytes on the call's device, for its own use until it returns.
using WorkspaceSource = std::function<void*(std::int64_t bytes)>;

/// Runs a call that has no results but those given, on the stream. `views` are in the order of the
/// call's slots. Throws Error, its argument by the name that Python knows.
void run_given(DeclaredCall& declared, std::span<const TensorView> views,
               const std::optional<double>& scale, void* stream, const WorkspaceSource& workspace);

/// Calls with the attributes "call", a declaration whose tensors are the arguments and then the
/// results, and "scale", if there is one. On a GPU everything is put on XLA's stream and the
/// workspace is XLA's memory.
[[nodiscard]] xla::Handler* xla_handler(DeviceKind kind) noexcept;

}  // namespace sluice::python
