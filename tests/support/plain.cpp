#include "support/plain.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/convert.hpp"
#include "support/guarded.hpp"
#include "support/on_device.hpp"

namespace sluice::test {

std::optional<int> token_dim(const Input& input) {
    const auto at = std::find(input.axes.begin(), input.axes.end(), Axis::kT);
    if (at == input.axes.end()) return std::nullopt;
    return static_cast<int>(at - input.axes.begin());
}

std::vector<std::int64_t> Plain::state_shape(std::int64_t slots) const {
    const StateLayout layout = options.state_layout.value_or(spec.default_state_layout);
    if (layout == StateLayout::kKeyFirst) return {slots, dims.HV, dims.K, dims.V};
    return {slots, dims.HV, dims.V, dims.K};
}

Arguments Plain::arguments() const {
    Arguments arguments;
    for (const Input& input : spec.inputs) {
        arguments.inputs.emplace_back(input.name, inputs.at(input.name).view());
    }
    if (initial) arguments.state.initial = initial->view();
    if (initial_key_sum) arguments.state.initial_key_sum = initial_key_sum->view();
    return arguments;
}

std::vector<Sequence> Plain::sequences() const {
    std::vector<Sequence> list;
    if (lengths.empty()) {
        for (std::int64_t b = 0; b < dims.B; ++b) list.push_back({.batch = b, .end = dims.T});
        return list;
    }
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
        list.push_back({.begin = begin, .end = begin + length});
        begin += length;
    }
    return list;
}

namespace {

Tensor tensor_of(const Values& values, DType dtype) {
    const Tensor tensor = Tensor::empty(dtype, values.shape);
    for (std::size_t i = 0; i < values.data.size(); ++i) {
        store_element(tensor.view().data, dtype, static_cast<std::int64_t>(i), values.data[i]);
    }
    return tensor;
}

}  // namespace

Plain make_plain(const Form& form, const Dims& dims, const PlainSettings& settings) {
    Plain plain;
    plain.form = &form;
    plain.spec = form.make();
    plain.dims = dims;
    plain.dims.N = dims.B;
    plain.options.backend = "cpu";
    plain.options.threads = 1;
    plain.options.state_layout = StateLayout::kKeyFirst;
    for (const auto& [name, values] :
         make_values(form, plain.spec, dims, settings.kinds, settings.seed)) {
        plain.inputs[name] = tensor_of(values, settings.dtype);
    }
    if (settings.dtype == DType::kFloat64) plain.o_dtype = plain.state_dtype = DType::kFloat64;
    if (settings.initial) {
        plain.initial =
            tensor_of(normal_values(plain.state_shape(dims.B), 0.5, mix_seed(settings.seed, 4)),
                      plain.state_dtype);
        if (plain.spec.normalize) {
            Values sums = normal_values({dims.B, dims.HV, dims.K}, 0.5, mix_seed(settings.seed, 5));
            for (double& x : sums.data) x = std::abs(x);
            plain.initial_key_sum = tensor_of(sums, plain.state_dtype);
        }
    }
    return plain;
}

Plain tokens_of(const Plain& plain, std::int64_t begin, std::int64_t end) {
    Plain part = plain;
    part.dims.T = end - begin;
    for (const Input& input : plain.spec.inputs) {
        if (const auto dim = token_dim(input)) {
            part.inputs[input.name] = Tensor::copy_of(
                plain.input(input.name).sliced(*dim, begin, end), plain.input(input.name).dtype);
        }
    }
    return part;
}

Plain packed(const std::vector<Plain>& rows) {
    Plain all = rows.front();
    all.lengths.clear();
    all.dims.T = 0;
    all.dims.N = static_cast<std::int64_t>(rows.size());
    for (const Plain& row : rows) {
        all.lengths.push_back(row.dims.T);
        all.dims.T += row.dims.T;
    }
    for (const Input& input : all.spec.inputs) {
        const auto dim = token_dim(input);
        if (!dim) continue;
        const TensorView& like = rows.front().input(input.name);
        all.inputs[input.name] = Tensor::empty(like.dtype, shape_of(all.dims, input.axes));
        std::int64_t begin = 0;
        for (const Plain& row : rows) {
            assign(all.input(input.name).sliced(*dim, begin, begin + row.dims.T),
                   row.input(input.name));
            begin += row.dims.T;
        }
    }
    const auto join = [&](std::optional<Tensor> Plain::*member) {
        if (!(rows.front().*member)) return;
        std::vector<std::int64_t> shape((rows.front().*member)->shape().begin(),
                                        (rows.front().*member)->shape().end());
        shape[0] = all.dims.N;
        const Tensor joined = Tensor::empty((rows.front().*member)->dtype(), shape);
        for (std::int64_t n = 0; n < all.dims.N; ++n) {
            assign(joined.view().sliced(0, n, n + 1), *(rows[static_cast<std::size_t>(n)].*member));
        }
        all.*member = joined;
    };
    join(&Plain::initial);
    join(&Plain::initial_key_sum);
    return all;
}

Plain copied(const Plain& plain) {
    Plain copy = plain;
    for (auto& [name, tensor] : copy.inputs) tensor = Tensor::copy_of(tensor, tensor.dtype());
    if (copy.initial) copy.initial = Tensor::copy_of(*copy.initial, copy.initial->dtype());
    return copy;
}

namespace {

Outputs run_into(const Plain& plain, Phase phase, const Options& options, DType o_dtype,
                 DType state_dtype) {
    Arguments arguments = plain.arguments();
    const Dims& d = plain.dims;
    Outputs out;
    out.o = poisoned(o_dtype, {d.B, d.T, d.HV, d.V});
    out.final = poisoned(state_dtype, plain.state_shape(d.N));
    arguments.o = out.o;
    arguments.state.final = out.final.view();
    if (plain.spec.normalize) {
        out.final_key_sum = poisoned(state_dtype, {d.N, d.HV, d.K});
        arguments.state.final_key_sum = out.final_key_sum.view();
    }
    Tensor offsets;
    if (!plain.lengths.empty()) {
        std::vector<std::int64_t> ends = {0};
        for (const std::int64_t length : plain.lengths) ends.push_back(ends.back() + length);
        offsets = index_tensor(ends);
        arguments.cu_seqlens = offsets.view();
    }
    out.plan = call(plain.spec, arguments, options, phase);
    return out;
}

}  // namespace

Outputs run(const Plain& plain, Phase phase) {
    return run_into(plain, phase, plain.options, plain.o_dtype, plain.state_dtype);
}

Outputs run_oracle(const Plain& plain) {
    Options options;
    options.backend = "oracle";
    options.threads = 1;
    options.scale = plain.options.scale;
    options.state_layout = plain.options.state_layout;
    return run_into(plain, Phase::kPrefill, options, DType::kFloat64, DType::kFloat64);
}

Tensor poisoned(DType dtype, const std::vector<std::int64_t>& shape) {
    const Tensor tensor = Tensor::empty(dtype, shape);
    std::memset(tensor.view().data, 0xff, tensor.size_bytes());
    return tensor;
}

Tensor index_tensor(const std::vector<std::int64_t>& values, DType dtype) {
    const Tensor tensor = Tensor::empty(dtype, {static_cast<std::int64_t>(values.size())});
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (dtype == DType::kBool) {
            tensor.elements<bool>()[i] = values[i] != 0;
        } else {
            tensor.elements<std::int64_t>()[i] = values[i];
        }
    }
    return tensor;
}

void assign(const TensorView& to, const TensorView& from) {
    const Tensor source = Tensor::copy_of(from, to.dtype);
    const auto bytes = static_cast<std::int64_t>(size_bytes(to.dtype));
    const auto* in = static_cast<const std::byte*>(source.view().data);
    for_each_offset(to, [&](std::int64_t offset) {
        std::memcpy(static_cast<std::byte*>(to.data) + offset * bytes, in,
                    static_cast<std::size_t>(bytes));
        in += bytes;
    });
}

bool all_finite(const TensorView& view) {
    bool finite = true;
    for_each_offset(view, [&](std::int64_t offset) {
        finite = finite && std::isfinite(load_element(view.data, view.dtype, offset));
    });
    return finite;
}

}  // namespace sluice::test
