#include "cpu/check_values.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/convert.hpp"
#include "cpu/operands.hpp"

namespace sluice::cpu {

namespace {

void refuse_nan(const Dims& d, const BoundInput& input) {
    const auto n = [&](Axis axis) { return input.has(axis) ? d.extent(axis) : 1; };
    const auto s = [&](Axis axis) { return input.stride[static_cast<std::size_t>(axis)]; };
    for (std::int64_t b = 0; b < n(Axis::kB); ++b)
        for (std::int64_t t = 0; t < n(Axis::kT); ++t)
            for (std::int64_t h = 0; h < n(Axis::kH); ++h)
                for (std::int64_t hv = 0; hv < n(Axis::kHV); ++hv)
                    for (std::int64_t k = 0; k < n(Axis::kK); ++k)
                        for (std::int64_t v = 0; v < n(Axis::kV); ++v) {
                            const std::int64_t at = b * s(Axis::kB) + t * s(Axis::kT) +
                                                    h * s(Axis::kH) + hv * s(Axis::kHV) +
                                                    k * s(Axis::kK) + v * s(Axis::kV);
                            if (std::isnan(load_element(input.data, input.dtype, at))) {
                                throw Error(ErrorCode::kValue, input.name,
                                            fmt::format("nan at batch {}, token {}, head {}, "
                                                        "channel {}",
                                                        b, t, h + hv, k + v),
                                            "numbers");
                            }
                        }
}

void refuse_nan_state(const Problem& problem, std::int64_t slot) {
    const BoundState& s = problem.initial;
    if (!s || slot < 0) return;
    for (std::int64_t h = 0; h < problem.dims.HV; ++h) {
        for (std::int64_t k = 0; k < problem.dims.K; ++k) {
            for (std::int64_t v = 0; v < problem.dims.V; ++v) {
                const std::int64_t at =
                    slot * s.stride_slot + h * s.stride_head + k * s.stride_k + v * s.stride_v;
                if (std::isnan(load_element(s.data, s.dtype, at))) {
                    throw Error(
                        ErrorCode::kValue, "state.initial",
                        fmt::format("nan in slot {}, head {}, key channel {}, value channel {}",
                                    slot, h, k, v),
                        "numbers");
                }
            }
        }
    }
}

/// The argument that a caller would look at: the gate itself where the decay is given as it is.
std::string decay_argument(const Spec& spec) {
    const auto names = spec.log_decay->inputs();
    return names.size() == 1 && spec.log_decay->is_input(names[0]) ? names[0] : "log_decay";
}

void refuse_growth(const Problem& problem) {
    const OperandPrograms<double> programs(problem);
    if (!programs.log_decay) return;
    const bool vector = programs.decay == Decay::kVector;
    const std::int64_t width = vector ? problem.dims.K : 1;
    AlignedVector<double> row(static_cast<std::size_t>(width));
    AlignedVector<double> scratch(programs.scratch_elements(problem, 1));
    for (std::int64_t b = 0; b < problem.dims.B; ++b) {
        for (std::int64_t t = 0; t < problem.dims.T; ++t) {
            for (std::int64_t h = 0; h < problem.dims.HV; ++h) {
                programs.log_decay->run({b, t, 1, h, 0, width}, scratch, row.data(), width);
                for (std::int64_t c = 0; c < width; ++c) {
                    if (row[c] <= 0) continue;
                    throw Error(ErrorCode::kValue, decay_argument(problem.spec),
                                fmt::format("{} at batch {}, token {}, head {}{}", row[c], b, t, h,
                                            vector ? fmt::format(", channel {}", c) : ""),
                                "log decays <= 0");
                }
            }
        }
    }
}

}  // namespace

void check_values(const Problem& problem) {
    for (const BoundInput& input : problem.inputs) refuse_nan(problem.dims, input);
    for (const Sequence& sequence : problem.sequences)
        refuse_nan_state(problem, sequence.read_slot);
    refuse_growth(problem);
}

}  // namespace sluice::cpu
