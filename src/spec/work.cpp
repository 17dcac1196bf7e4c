#include "sluice/work.hpp"

#include <algorithm>

namespace sluice {

namespace {

/// Tokens count over all batch rows, so that rows do not.
std::int64_t extent(const Shape& shape, Axis axis) {
    if (axis == Axis::kB) return 1;
    return axis == Axis::kT ? shape.tokens : shape.dims.extent(axis);
}

/// Whether the input feeds only the decay: gates have a dtype of their own.
bool is_gate(const Spec& spec, const std::string& name) {
    const auto reads = [&](const Expr& e) {
        const auto names = e.inputs();
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    return spec.log_decay && reads(*spec.log_decay) && !reads(spec.v);
}

}  // namespace

Shape shape_of(const Problem& problem) {
    Shape shape;
    shape.dims = problem.dims;
    shape.tokens = problem.dims.B * problem.dims.T;
    shape.dtype = problem.o.dtype;
    for (const BoundInput& input : problem.inputs) {
        if (is_gate(problem.spec, input.name) && input.has(Axis::kT))
            shape.gate_dtype = input.dtype;
    }
    shape.reads_state = static_cast<bool>(problem.initial);
    shape.writes_state = static_cast<bool>(problem.final);
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
    for (const Input& input : spec.inputs) {
        double elements = 1;
        for (const Axis axis : input.axes) elements *= static_cast<double>(extent(shape, axis));
        const bool per_token_input =
            std::find(input.axes.begin(), input.axes.end(), Axis::kT) != input.axes.end();
        const DType dtype = !per_token_input            ? DType::kFloat32
                            : is_gate(spec, input.name) ? shape.gate_dtype
                                                        : shape.dtype;
        total.bytes_read += elements * static_cast<double>(size_bytes(dtype));
    }
    const double state = static_cast<double>(shape.dims.N) * heads * k * v *
                         static_cast<double>(size_bytes(shape.state_dtype));
    if (shape.reads_state) total.bytes_read += state;
    total.bytes_written = tokens * heads * v * static_cast<double>(size_bytes(shape.dtype));
    if (shape.writes_state) total.bytes_written += state;
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
