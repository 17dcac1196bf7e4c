// The formulas of a spec as CUDA C++: what a kernel for any member of the family is made specific
// by.
#pragma once

#include <string>

#include "sluice/spec.hpp"

namespace sluice::cuda {

/// `struct Formulas { ... };` over emit/formula.cuh. Operands are functions of an element `at`,
/// which knows inputs and parameters by number (the order of spec.inputs, of parameters by name):
///
///   struct Key {
///       static constexpr int kNorms = 1;
///       template <int kNorm, class At> __device__ static float normed(const At& at) { ... }
///       template <class At> __device__ static float value(const At& at) { ... }
///   };
///
/// normed<n> is what the n-th l2norm takes, and may read at.norm(i), i < n; value may read all.
/// Names of a user's never reach the text.
[[nodiscard]] std::string emit_formulas(const Spec& spec);

/// Bytes that are equal exactly where the text is: cheap to make, for tables of kernels.
[[nodiscard]] std::string formulas_key(const Spec& spec);

}  // namespace sluice::cuda
