#include "support/call.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "support/values.hpp"

namespace sluice::test {

Call::Call() : Call(make_spec("gated_delta_rule"), {kB, kT, kH, kHV, kK, kV, kB}) {}

Call::Call(Spec spec_of_inputs, const Dims& wanted) : spec(std::move(spec_of_inputs)) {
    make(wanted);
}

void Call::make(const Dims& wanted) {
    dims = wanted;
    arguments.inputs.clear();
    for (const Input& input : spec.inputs) {
        memory_.push_back(Tensor::zeros(DType::kFloat32, shape_of(dims, input.axes)));
        arguments.inputs.emplace_back(input.name, memory_.back().view());
    }
    arguments.o = poison(DType::kFloat32, {dims.B, dims.T, dims.HV, dims.V});
}

TensorView Call::zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
    memory_.push_back(Tensor::zeros(dtype, shape));
    return memory_.back();
}

TensorView Call::poison(DType dtype, std::initializer_list<std::int64_t> shape) {
    memory_.push_back(Tensor::empty(dtype, shape));
    std::memset(memory_.back().view().data, 0xff, memory_.back().size_bytes());
    return memory_.back();
}

TensorView Call::ints(std::initializer_list<std::int64_t> values, DType dtype) {
    const TensorView view = zeros(dtype, {static_cast<std::int64_t>(values.size())});
    std::int64_t i = 0;
    for (const std::int64_t value : values) {
        switch (dtype) {
            case DType::kInt64: static_cast<std::int64_t*>(view.data)[i++] = value; break;
            case DType::kInt32:
                static_cast<std::int32_t*>(view.data)[i++] = static_cast<std::int32_t>(value);
                break;
            default: static_cast<unsigned char*>(view.data)[i++] = value != 0 ? 1 : 0;
        }
    }
    return view;
}

TensorView& Call::input(const std::string& name) {
    for (auto& [known, view] : arguments.inputs) {
        if (known == name) return view;
    }
    throw std::invalid_argument("no input is called " + name);
}

void Call::remove(const std::string& name) {
    std::erase_if(arguments.inputs, [&](const auto& item) { return item.first == name; });
}

void Call::add_states() {
    arguments.state.initial = zeros(DType::kFloat32, {dims.N, dims.HV, dims.K, dims.V});
    arguments.state.final = poison(DType::kFloat32, {dims.N, dims.HV, dims.K, dims.V});
}

void Call::add_pools() {
    arguments.state.initial = zeros(DType::kFloat32, {6, dims.HV, dims.K, dims.V});
    arguments.state.final = poison(DType::kFloat32, {6, dims.HV, dims.K, dims.V});
    arguments.state.read_slots = ints({4, 2});
    arguments.state.write_slots = ints({1, 5}, DType::kInt32);
}

void Call::add_checkpoints() {
    arguments.state.checkpoints = poison(DType::kFloat32, {3, dims.HV, dims.K, dims.V});
    arguments.state.checkpoint_sequences = ints({0, 1});
    arguments.state.checkpoint_positions = ints({64, 64}, DType::kInt32);
    arguments.state.checkpoint_slots = ints({2, 0});
}

void Call::pack() {
    Dims packed = dims;
    packed.B = 1;
    make(packed);
    arguments.cu_seqlens = ints({0, 30, 70});
}

void Call::run(Phase phase) const {
    if (phase == Phase::kPrefill) {
        (void)forward(spec, arguments, options);
    } else {
        (void)step(spec, arguments, options);
    }
}

std::vector<std::byte> Call::bytes() const {
    std::vector<std::byte> all;
    for (const Tensor& tensor : memory_) {
        const auto* data = static_cast<const std::byte*>(tensor.view().data);
        all.insert(all.end(), data, data + tensor.size_bytes());
    }
    return all;
}

}  // namespace sluice::test
