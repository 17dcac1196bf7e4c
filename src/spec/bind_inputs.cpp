#include "spec/bind_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace sluice {

std::string describe(const TensorView& view) {
    return fmt::format("{} {}", to_string(view.dtype), to_string(view.shape()));
}

namespace {

std::string print_axes(std::span<const Axis> axes) {
    return to_string(std::vector<Axis>(axes.begin(), axes.end()));
}

/// "[B, T, H, K] = [2, 130, H, 64]": extents where they are known.
std::string expected(std::span<const Axis> axes, const AxisExtents& extents) {
    std::string text = print_axes(axes) + " = [";
    for (std::size_t i = 0; i < axes.size(); ++i) {
        text += i ? ", " : "";
        text += extents[axes[i]] < 0 ? to_string(axes[i]) : std::to_string(extents[axes[i]]);
    }
    return text + "]";
}

/// Per-head parameters of two axes may come flattened ([HV * K]), as this field's layers store
/// them.
bool is_flattened(const TensorView& view, std::span<const Axis> axes) {
    return view.rank == 1 && axes.size() == 2 && axes[0] == Axis::kHV;
}

void unify(const std::string& name, const TensorView& view, std::span<const Axis> axes,
           AxisExtents& extents) {
    if (view.rank != static_cast<int>(axes.size())) {
        throw Error(ErrorCode::kShape, name, describe(view),
                    fmt::format("{} dimensions, {}", axes.size(), expected(axes, extents)));
    }
    for (std::size_t i = 0; i < axes.size(); ++i) {
        const std::int64_t extent = view.extents[i];
        std::int64_t& known = extents[axes[i]];
        if (known < 0) {
            known = extent;
            extents.from[static_cast<std::size_t>(axes[i])] = name;
        } else if (known != extent) {
            throw Error(
                ErrorCode::kShape, name, describe(view),
                fmt::format("{} ({} = {} as in {})", expected(axes, extents), to_string(axes[i]),
                            known, extents.from[static_cast<std::size_t>(axes[i])]));
        }
    }
}

void refuse_surplus(const Spec& spec, const NamedTensors& given) {
    for (auto it = given.begin(); it != given.end(); ++it) {
        const std::string& name = it->first;
        const bool twice = std::any_of(given.begin(), it,
                                       [&](const auto& earlier) { return earlier.first == name; });
        if (spec.find_input(name) != nullptr && !twice) continue;
        std::string known;
        for (const Input& input : spec.inputs) known += (known.empty() ? "" : ", ") + input.name;
        throw Error(ErrorCode::kSurplus, name, describe(it->second),
                    fmt::format("inputs of {}, each once: {}", spec.name, known));
    }
}

/// Refuses extents whose bytes do not fit 63 bits even as float64: every offset fits then.
void check_product(const char* what, std::initializer_list<std::int64_t> extents) {
    std::int64_t product = 8;  // bytes of an element
    for (const std::int64_t extent : extents) {
        if (__builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product)) {
            throw Error(ErrorCode::kShape, what,
                        to_string(std::span(extents.begin(), extents.size())),
                        "fewer than 2^63 bytes of float64");
        }
    }
}

void check_dims(const Dims& d) {
    const auto positive = [](const char* name, std::int64_t value) {
        if (value < 1) throw Error(ErrorCode::kShape, name, std::to_string(value), ">= 1");
    };
    positive("H", d.H);
    positive("HV", d.HV);
    positive("K", d.K);
    positive("V", d.V);
    if (d.HV % d.H != 0) {
        throw Error(ErrorCode::kShape, "HV", std::to_string(d.HV),
                    fmt::format("a multiple of H = {}", d.H));
    }
    check_product("[B, T, HV, V]", {d.B, d.T, d.HV, d.V});
    check_product("[B, T, HV, K]", {d.B, d.T, d.HV, d.K});
}

}  // namespace

const TensorView& find_view(const Spec& spec, const NamedTensors& given, const Input& input) {
    for (const auto& [name, view] : given) {
        if (name == input.name) return view;
    }
    throw Error(
        ErrorCode::kMissing, input.name, "nothing",
        fmt::format("{}: {} (an input of {})", to_string(input.axes), input.meaning, spec.name));
}

void check_states(const Dims& d) { check_product("[N, HV, K, V]", {d.N, d.HV, d.K, d.V}); }

void check_data(std::string_view name, const TensorView& view) {
    if (view.size() == 0) return;
    const std::size_t element = size_bytes(view.dtype);
    if (reinterpret_cast<std::uintptr_t>(view.data) % element != 0) {
        throw Error(
            ErrorCode::kStride, std::string(name), fmt::format("memory at {}", view.data),
            fmt::format("an address that is a multiple of the element's {} bytes", element));
    }
    if (view.data != nullptr) return;
    throw Error(ErrorCode::kValue, std::string(name), "null data",
                fmt::format("memory of {} bytes",
                            view.size() * static_cast<std::int64_t>(size_bytes(view.dtype))));
}

BoundInput bind_view(const std::string& name, const TensorView& view, std::span<const Axis> axes,
                     const Dims& dims) {
    check_data(name, view);
    TensorView shaped = view;
    if (is_flattened(view, axes)) {
        const std::int64_t inner = dims.extent(axes[1]);
        if (view.extents[0] != dims.HV * inner) {
            throw Error(ErrorCode::kShape, name, describe(view),
                        fmt::format("{} = [{}, {}], or flattened [{}]", print_axes(axes), dims.HV,
                                    inner, dims.HV * inner));
        }
        const std::int64_t shape[2] = {dims.HV, inner};
        const std::int64_t strides[2] = {view.stride_elements[0] * inner, view.stride_elements[0]};
        shaped = TensorView(view.data, view.dtype, shape, strides, view.device);
    }
    AxisExtents extents;
    for (int axis = 0; axis < kNumAxes; ++axis) {
        extents.extent[static_cast<std::size_t>(axis)] = dims.extent(static_cast<Axis>(axis));
        extents.from[static_cast<std::size_t>(axis)] = "the other arguments";
    }
    unify(name, shaped, axes, extents);
    if (!is_floating(view.dtype)) {
        throw Error(ErrorCode::kDType, name, to_string(view.dtype),
                    "float32, bfloat16, float16 or float64");
    }
    BoundInput bound;
    bound.name = name;
    bound.data = shaped.data;
    bound.dtype = shaped.dtype;
    for (std::size_t i = 0; i < axes.size(); ++i) {
        bound.stride[static_cast<std::size_t>(axes[i])] = shaped.stride_elements[i];
        bound.axis_mask |= 1U << static_cast<unsigned>(axes[i]);
    }
    return bound;
}

void bind_inputs(const Spec& spec, const NamedTensors& given, Problem& problem) {
    refuse_surplus(spec, given);
    AxisExtents extents;
    for (const Input& input : spec.inputs) {
        const TensorView& view = find_view(spec, given, input);
        if (!is_flattened(view, input.axes)) unify(input.name, view, input.axes, extents);
    }
    if (extents[Axis::kHV] < 0) extents[Axis::kHV] = extents[Axis::kH];
    if (extents[Axis::kH] < 0) extents[Axis::kH] = extents[Axis::kHV];
    Dims& dims = problem.dims;
    dims.B = extents[Axis::kB];
    dims.T = extents[Axis::kT];
    dims.H = extents[Axis::kH];
    dims.HV = extents[Axis::kHV];
    dims.K = extents[Axis::kK];
    dims.V = extents[Axis::kV];
    check_dims(dims);
    problem.inputs.reserve(spec.inputs.size());
    for (const Input& input : spec.inputs) {
        const TensorView& view = find_view(spec, given, input);
        if (problem.inputs.empty()) problem.device = view.device;
        if (view.device != problem.device) {
            throw Error(ErrorCode::kDevice, input.name, to_string(view.device),
                        fmt::format("{} as for {}", to_string(problem.device),
                                    problem.inputs.front().name));
        }
        problem.inputs.push_back(bind_view(input.name, view, input.axes, dims));
    }
}

}  // namespace sluice
