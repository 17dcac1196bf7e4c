#include "support/on_device.hpp"

#include <algorithm>

#include "cuda/engine/driver.hpp"

namespace sluice::test {

namespace {

Plan call_here(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase) {
    return phase == Phase::kPrefill ? forward(spec, arguments, options)
                                    : step(spec, arguments, options);
}

}  // namespace

Device first_cuda_device() {
    const auto all = cuda::gpus();
    const auto found = std::ranges::find_if(all, &cuda::GpuInfo::runs_sm90a);
    return {DeviceKind::kCuda, found == all.end() ? 0 : found->index};
}

Plan call(const Spec& spec, const Arguments& arguments, const Options& options, Phase phase,
          const std::vector<Range>& around) {
    if (options.backend != "cuda") return call_here(spec, arguments, options, phase);
    const Device device = first_cuda_device();
    const Mirror mirror(arguments, device, around);
    mirror.fetch();
    const Plan plan = call_here(spec, mirror.arguments(), options, phase);
    synchronize(device);
    mirror.write_back();
    return plan;
}

Arguments as_if_on_cuda(Arguments arguments) {
    const auto move = [](TensorView& view) { view.device = {DeviceKind::kCuda, 0}; };
    for (auto& [name, view] : arguments.inputs) move(view);
    move(arguments.o);
    StateArguments& s = arguments.state;
    for (auto* view :
         {&arguments.cu_seqlens, &s.initial, &s.final, &s.read_slots, &s.write_slots,
          &s.has_initial, &s.accepted, &s.checkpoints, &s.checkpoint_sequences,
          &s.checkpoint_positions, &s.checkpoint_slots, &s.initial_key_sum, &s.final_key_sum}) {
        if (*view) move(**view);
    }
    return arguments;
}

}  // namespace sluice::test
