#include "sluice/forward.hpp"

#include "cpu/check_values.hpp"
#include "cpu/oracle.hpp"
#include "cuda/engine/driver.hpp"
#include "runtime/mirror.hpp"
#include "sluice/memory.hpp"
#include "spec/precision.hpp"

namespace sluice {

namespace {

/// Waits for what the caller has put on the stream: the values may still be on their way.
void wait_for_values(const Problem& problem) {
    const cuda::ContextScope scope(cuda::gpu(problem.device.index).index);
    const cuda::Driver& driver = cuda::require_driver();
    auto* const stream = static_cast<cuda::Stream>(problem.stream);
    cuda::CaptureStatus capture = cuda::CaptureStatus::kNone;
    cuda::check(driver.stream_is_capturing(stream, &capture), "cuStreamIsCapturing");
    if (capture != cuda::CaptureStatus::kNone) {
        throw Error(ErrorCode::kUnsupported, "validate", "true while the stream is captured",
                    "false, or before the capture");
    }
    cuda::check(driver.stream_synchronize(stream), "cuStreamSynchronize");
}

/// On a GPU's tensors through copies: binding them reads the index tensors, which nobody has yet.
void validate(const Problem& problem, const Spec& spec, const Arguments& arguments,
              const Options& options, Phase phase) {
    if (problem.device.kind == DeviceKind::kCpu) return cpu::check_values(problem);
    wait_for_values(problem);
    const Mirror mirror(arguments, Device{});
    mirror.fetch_inputs();
    cpu::check_values(bind(spec, mirror.arguments(), options, phase));
}

Plan run(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase) {
    const Problem problem = bind(spec, arguments, options, phase);
    const Backend& backend = select_backend(problem, options.backend);
    if (options.validate) validate(problem, spec, arguments, options, phase);
    Plan plan = backend.prepare(problem, backend.plan(problem, nominal_device(problem.device)));
    backend.run(problem, plan);
    return plan;
}

}  // namespace

Plan plan(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase) {
    const Problem problem = bind(spec, arguments, options, phase);
    return select_backend(problem, options.backend).plan(problem, nominal_device(problem.device));
}

Plan plan(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase,
          const DeviceSpec& device) {
    const Problem problem = bind(spec, arguments, options, phase);
    return select_backend(problem, options.backend).plan(problem, device);
}

Plan prepare(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase) {
    const Problem problem = bind(spec, arguments, options, phase);
    const Backend& backend = select_backend(problem, options.backend);
    return backend.prepare(problem, backend.plan(problem, nominal_device(problem.device)));
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
    const bool wide =
        resolve_precision(options.precision, spec, arguments.inputs) == Precision::kFloat64;
    const DType state_dtype = wide ? DType::kFloat64 : DType::kFloat32;
    const Device& device = arguments.inputs.front().second.device;
    const auto fresh = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
        return empty_on(dtype, std::span(shape.begin(), shape.size()), device);
    };
    Result result;
    result.o = fresh(o_dtype, {dims.B, dims.T, dims.HV, dims.V});
    result.final_state = fresh(state_dtype, {dims.N, dims.HV, value_first ? dims.V : dims.K,
                                             value_first ? dims.K : dims.V});
    Arguments filled = arguments;
    filled.o = result.o;
    filled.state.final = result.final_state;
    filled.state.write_slots.reset();
    filled.state.final_key_sum.reset();
    if (spec.normalize) {
        result.final_key_sum = fresh(state_dtype, {dims.N, dims.HV, dims.K});
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
    for (const auto& [name, view] : arguments.inputs) {
        if (view.device.kind == DeviceKind::kCpu) continue;
        throw Error(ErrorCode::kDevice, name, to_string(view.device), "cpu");
    }
    // Gradients need no outputs: o and the final state of the call are not written.
    Arguments inputs = arguments;
    const Dims dims = infer_dims(spec, arguments);
    const Tensor unused = Tensor::empty(DType::kFloat64, {dims.B, dims.T, dims.HV, dims.V});
    inputs.o = unused;
    inputs.state.final.reset();
    const Problem problem = bind(spec, inputs, options);
    if (options.validate) cpu::check_values(problem);
    return cpu::oracle_gradient(problem, arguments.inputs, grad_o, grad_final_state);
}

}  // namespace sluice
