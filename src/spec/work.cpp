#include "sluice/work.hpp"

#include <algorithm>
#include <cstdlib>

#include "spec/axes.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice {

namespace {

/// Whether the input feeds only the decay: gates have a dtype of their own.
bool is_gate(const Spec& spec, const std::string& name) {
    return spec.log_decay && reads_input(*spec.log_decay, name) && !reads_input(spec.v, name);
}

/// Elements of a dense tensor over `axes`. B and T together are the shape's tokens.
double dense_elements(const Shape& shape, unsigned axes) {
    const auto tokens = static_cast<double>(shape.tokens);
    const auto rows = static_cast<double>(shape.dims.B);
    const bool by_row = axes & axis_bit(Axis::kB);
    double elements = by_row ? rows : 1;
    if (axes & axis_bit(Axis::kT)) elements = by_row || rows < 1 ? tokens : tokens / rows;
    for (const Axis axis : {Axis::kH, Axis::kHV, Axis::kK, Axis::kV}) {
        if (axes & axis_bit(axis)) elements *= static_cast<double>(shape.dims.extent(axis));
    }
    return elements;
}

double dense_input_bytes(const Spec& spec, const Shape& shape) {
    double bytes = 0;
    for (const Input& input : spec.inputs) {
        const unsigned axes = axis_bits(input.axes);
        const DType dtype = (axes & axis_bit(Axis::kT)) == 0 ? DType::kFloat32
                            : is_gate(spec, input.name)      ? shape.gate_dtype
                                                             : shape.dtype;
        bytes += dense_elements(shape, axes) * static_cast<double>(size_bytes(dtype));
    }
    return bytes;
}

/// Elements in memory, however often dimensions of stride 0, or windows that overlap, repeat them.
double distinct_elements(const BoundInput& input, const Dims& dims) {
    double elements = 1;
    double span = 1;  // of addresses
    for (int i = 0; i < kNumAxes; ++i) {
        const auto axis = static_cast<Axis>(i);
        if (!input.has(axis)) continue;
        const auto extent = static_cast<double>(dims.extent(axis));
        if (extent < 1) return 0;
        const auto stride =
            static_cast<double>(std::abs(input.stride[static_cast<std::size_t>(i)]));
        if (stride > 0) elements *= extent;
        span += (extent - 1) * stride;
    }
    return std::min(elements, span);
}

}  // namespace

Shape shape_of(const Problem& problem) {
    Shape shape;
    shape.dims = problem.dims;
    shape.tokens = problem.dims.B * problem.dims.T;
    shape.dtype = problem.o.dtype;
    double bytes = 0;
    for (const BoundInput& input : problem.inputs) {
        bytes +=
            distinct_elements(input, problem.dims) * static_cast<double>(size_bytes(input.dtype));
        if (input.has(Axis::kT) && is_gate(problem.spec, input.name)) {
            shape.gate_dtype = input.dtype;
        }
    }
    shape.input_bytes = bytes;
    shape.reads_state = static_cast<bool>(problem.initial);
    shape.writes_state = static_cast<bool>(problem.final);
    if (problem.initial) shape.initial_dtype = problem.initial.dtype;
    if (problem.final) shape.state_dtype = problem.final.dtype;
    return shape;
}

Work work(const Spec& spec, const Shape& shape, Phase phase) {
    constexpr double kChunk = 64;
    const auto k = static_cast<double>(shape.dims.K);
    const auto v = static_cast<double>(shape.dims.V);
    const auto heads = static_cast<double>(shape.dims.HV);
    const auto tokens = static_cast<double>(shape.tokens);
    // Without a decay per key channel the products of q and k are one per key head: the decay goes
    // onto the scores, so all value heads of a group share them.
    const double score_heads =
        spec.decay() == Decay::kVector ? heads : static_cast<double>(shape.dims.H);
    double per_token = 0;  // over all heads
    if (phase == Phase::kPrefill) {
        per_token = score_heads * 2 * kChunk * k + heads * (2 * kChunk * v + 4 * k * v);
        if (spec.update == Update::kDelta) {
            per_token += score_heads * 2 * kChunk * k + heads * (kChunk * v + 2 * k * v);
        }
        if (spec.update == Update::kRankOne) {
            // Scores of q with a, of b with k and with a; then their products, b S and a^T U.
            per_token += score_heads * 6 * kChunk * k + heads * (5 * kChunk * v + 4 * k * v);
        }
    } else {
        per_token = heads * 5 * k * v;  // decay, k v^T and add, q S
        if (spec.update == Update::kDelta) per_token += heads * 2 * k * v;
        if (spec.update == Update::kRankOne) per_token += heads * 4 * k * v;
    }
    Work total;
    total.flops = per_token * tokens;
    const double states = static_cast<double>(shape.dims.N) * heads * k * v;
    const auto bytes_of = [](DType dtype) { return static_cast<double>(size_bytes(dtype)); };
    total.bytes_read = shape.input_bytes ? *shape.input_bytes : dense_input_bytes(spec, shape);
    if (shape.reads_state) {
        total.bytes_read += states * bytes_of(shape.initial_dtype.value_or(shape.state_dtype));
    }
    total.bytes_written = tokens * heads * v * bytes_of(shape.dtype);
    if (shape.writes_state) total.bytes_written += states * bytes_of(shape.state_dtype);
    return total;
}

Work work(const Problem& problem) { return work(problem.spec, shape_of(problem), problem.phase); }

Floor floor_on(const DeviceSpec& device, const Work& work) {
    Floor floor;
    if (device.copy_bytes_per_s > 0) floor.memory_us = 1e6 * work.bytes() / device.copy_bytes_per_s;
    if (device.matmul_flops_per_s > 0) {
        floor.compute_us = 1e6 * work.flops / device.matmul_flops_per_s;
    }
    return floor;
}

}  // namespace sluice
