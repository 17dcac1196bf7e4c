// Random inputs for any spec: realistic ranges by the inputs' names, the same bits for a seed
// whatever the number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/problem.hpp"
#include "sluice/spec.hpp"
#include "sluice/tensor.hpp"

namespace sluice::measure {

/// Distribution of a log decay that is given as it is (input "g").
enum class Gates : unsigned char {
    kDefault,     // logsigmoid(N(0,1)) / 16
    kLogSigmoid,  // logsigmoid(N(0,1))
    kSpiky,       // kDefault, and -1000 on 5 % of the elements
};
/// "logsigmoid/16", "logsigmoid", "spiky": how records call them.
[[nodiscard]] const char* to_string(Gates gates) noexcept;
/// Those names, or "mild", "usual", "spiky".
[[nodiscard]] Gates parse_gates(std::string_view name);

struct InputOptions {
    std::uint64_t seed = 0;
    Gates gates = Gates::kDefault;
    DType dtype = DType::kFloat32;       // inputs with a token axis
    DType gate_dtype = DType::kFloat32;  // g and g_raw
};

/// Names and tensors, in the order of spec.inputs.
using OwnedInputs = std::vector<std::pair<std::string, Tensor>>;
[[nodiscard]] NamedTensors views(const OwnedInputs& inputs);

/// Tensors of the right shapes and types on `device`, not filled. Per-head parameters (inputs
/// without a token axis) are float32. Throws Error(kUnsupported) naming the first input whose
/// distribution is not known by its name: a user's own spec may have such.
[[nodiscard]] OwnedInputs allocate_inputs(const Spec& spec, const Dims& dims,
                                          const InputOptions& options, const Device& device = {});
/// Fills them, on the CPU: q, k, v, x, B, C, z and g_raw from N(0,1), k of a delta update with unit
/// norm; g by `options.gates`; beta in (0, 1), or N(0,1) where the spec applies a sigmoid to it; dt
/// such that the time step lies about [1e-3, 1e-1]; A_log = log U[1,16], A = -U[1,16]; dt_bias =
/// softplus^-1 of [1e-3, 1e-1], log-uniformly; D from N(1, 0.1).
void fill_inputs(const Spec& spec, const InputOptions& options, OwnedInputs& inputs);
/// Both.
[[nodiscard]] OwnedInputs random_inputs(const Spec& spec, const Dims& dims,
                                        const InputOptions& options);

/// N(0,1) into a contiguous tensor; the name separates the tensors of one seed.
void fill_normal(const Tensor& tensor, std::uint64_t seed, std::string_view name);

}  // namespace sluice::measure
