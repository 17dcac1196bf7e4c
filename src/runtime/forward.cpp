#include "sluice/forward.hpp"

#include "cpu/check_values.hpp"
#include "cpu/oracle.hpp"
#include "spec/precision.hpp"

namespace sluice {

namespace {

Plan run(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase) {
    const Problem problem = bind(spec, arguments, options, phase);
    const Backend& backend = select_backend(problem, options.backend);
    if (options.validate) cpu::check_values(problem);
    Plan plan = backend.plan(problem, nominal_host());
    backend.run(problem, plan);
    return plan;
}

}  // namespace

Plan plan(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase,
          const DeviceSpec& device) {
    const Problem problem = bind(spec, arguments, options, phase);
    return select_backend(problem, options.backend).plan(problem, device);
}

Plan forward(const Spec& spec, const Arguments& arguments, const Options& options) {
    return run(spec, arguments, options, Phase::kPrefill);
}

Plan step(const Spec& spec, const Arguments& arguments, const Options& options) {
    return run(spec, arguments, options, Phase::kDecode);
}

Result forward_new(const Spec& spec, const Arguments& arguments, DType o_dtype,
                   const Options& options) {
    const Dims dims = infer_dims(spec, arguments);
    const StateLayout layout = options.state_layout.value_or(spec.default_state_layout);
    const bool value_first = layout == StateLayout::kValueFirst;
    const bool wide = resolve_precision(options.precision, arguments.inputs) == Precision::kFloat64;
    const DType state_dtype = wide ? DType::kFloat64 : DType::kFloat32;
    Result result;
    result.o = Tensor::empty(o_dtype, {dims.B, dims.T, dims.HV, dims.V});
    result.final_state = Tensor::empty(state_dtype, {dims.N, dims.HV, value_first ? dims.V : dims.K,
                                                     value_first ? dims.K : dims.V});
    Arguments filled = arguments;
    filled.o = result.o;
    filled.state.final = result.final_state;
    filled.state.write_slots.reset();
    filled.state.final_key_sum.reset();
    if (spec.normalize) {
        result.final_key_sum = Tensor::empty(state_dtype, {dims.N, dims.HV, dims.K});
        filled.state.final_key_sum = result.final_key_sum;
    }
    result.plan = forward(spec, filled, options);
    return result;
}

std::map<std::string, Tensor> gradient(const Spec& spec, const Arguments& arguments,
                                       const TensorView& grad_o,
                                       const std::optional<TensorView>& grad_final_state,
                                       const Options& options) {
    const StateArguments& s = arguments.state;
    if (s.read_slots || s.write_slots || s.checkpoints || s.initial_key_sum) {
        throw Error(ErrorCode::kUnsupported, "state", "slots, checkpoints or key sums",
                    "dense initial and final states");
    }
    // Gradients need no outputs: o and the final state of the call are not written.
    Arguments inputs = arguments;
    const Dims dims = infer_dims(spec, arguments);
    const Tensor unused = Tensor::empty(DType::kFloat64, {dims.B, dims.T, dims.HV, dims.V});
    inputs.o = unused;
    inputs.state.final.reset();
    const Problem problem = bind(spec, inputs, options);
    if (problem.device.kind != DeviceKind::kCpu) {
        throw Error(ErrorCode::kDevice, "inputs", to_string(problem.device), "cpu");
    }
    if (options.validate) cpu::check_values(problem);
    return cpu::oracle_gradient(problem, arguments.inputs, grad_o, grad_final_state);
}

}  // namespace sluice
