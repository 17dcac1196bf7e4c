// Running a recurrence: prefill, decode, and the oracle's gradient.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "sluice/backend.hpp"
#include "sluice/device.hpp"
#include "sluice/plan.hpp"
#include "sluice/problem.hpp"

namespace sluice {

/// The plan that forward() (or step(), by phase) would run for these arguments, on nominal_device()
/// or another device: for predictions on this CPU, pass the measured host_device().
[[nodiscard]] Plan plan(const Spec& spec, const Arguments& arguments, const Options& options = {},
                        Phase phase = Phase::kPrefill);
[[nodiscard]] Plan plan(const Spec& spec, const Arguments& arguments, const Options& options,
                        Phase phase, const DeviceSpec& device);

/// Makes ready what the call would otherwise do on its first run: on a CUDA device, compiles and
/// loads its kernels (seconds, unless they were compiled ahead). Runs nothing and writes nothing.
Plan prepare(const Spec& spec, const Arguments& arguments, const Options& options = {},
             Phase phase = Phase::kPrefill);

/// Runs `spec` over whole sequences and writes arguments.o and the requested states.
/// Throws Error before anything is written. Returns the plan that ran.
Plan forward(const Spec& spec, const Arguments& arguments, const Options& options = {});

/// Decode: one or several tokens per sequence (T small), states read and written through slots.
/// The same mathematics as forward(); in addition a sequence whose read and write slots are both -1
/// is padding (output zero, nothing else touched), and per-token write slots are allowed.
Plan step(const Spec& spec, const Arguments& arguments, const Options& options = {});

struct Result {
    Tensor o;              // [B, T, HV, V]
    Tensor final_state;    // dense, in the requested layout; float32, or float64 for that precision
    Tensor final_key_sum;  // [N, HV, K], normalised specs only, else undefined; as final_state
    Plan plan;
};
/// forward() into fresh tensors. `arguments.o` and the outputs in `arguments.state` but checkpoints
/// are ignored; o gets `o_dtype`.
[[nodiscard]] Result forward_new(const Spec& spec, const Arguments& arguments, DType o_dtype,
                                 const Options& options = {});

/// Reverse mode through the oracle, float64: gradients of
///   sum(o * grad_o) + sum(final_state * grad_final_state)
/// with respect to every input of the spec (by name, in the input's shape) and "initial_state"
/// (dense, in the requested layout) when arguments.state.initial is given.
/// `grad_final_state` may be undefined (zero). Dense states only, no slots.
[[nodiscard]] std::map<std::string, Tensor> gradient(
    const Spec& spec, const Arguments& arguments, const TensorView& grad_o,
    const std::optional<TensorView>& grad_final_state, const Options& options = {});

}  // namespace sluice
