// How far a result is from its reference: RMS(x - ref) / RMS(ref), of the whole and block by block.
#pragma once

#include <string>
#include <vector>

#include "sluice/problem.hpp"
#include "sluice/tensor.hpp"

namespace sluice::cli {

struct Deviation {
    double whole = 0;
    double worst_block = 0;  // where its reference vanishes: over 1e-6 of the tensor's RMS
    std::string where;       // of the worst block, or of the first NaN or infinity
    bool finite = true;

    /// A block may be four times as far as the whole.
    [[nodiscard]] bool within(double bound) const noexcept {
        return finite && whole <= bound && worst_block <= 4 * bound;
    }
};

/// [B, T, HV, V], in blocks of 64 tokens of one sequence and head.
[[nodiscard]] Deviation compare_outputs(const TensorView& result, const TensorView& reference,
                                        const std::vector<Sequence>& sequences);
/// [N, HV, ...], in blocks of one sequence and head.
[[nodiscard]] Deviation compare_states(const TensorView& result, const TensorView& reference);

}  // namespace sluice::cli
