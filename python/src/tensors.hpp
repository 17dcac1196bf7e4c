// DLPack tensors, as the binding layer passes them, and this library's views of them.
#pragma once

#include <dlpack/dlpack.h>

#include <string>

#include "sluice/tensor.hpp"

namespace sluice::python {

/// The same memory. `name` is the argument's, for the Error of a type, device or rank that the
/// library does not know.
[[nodiscard]] TensorView to_view(const std::string& name, const DLTensor& tensor);

/// Without its last axis: the first element along it.
[[nodiscard]] TensorView first_of_last(const std::string& name, const TensorView& view);
/// With an axis of one token in second place.
[[nodiscard]] TensorView with_token(const std::string& name, const TensorView& view);

[[nodiscard]] DLDataType to_dlpack(DType dtype) noexcept;
[[nodiscard]] DLDevice to_dlpack(const Device& device) noexcept;

}  // namespace sluice::python
