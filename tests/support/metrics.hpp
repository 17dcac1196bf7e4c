// How far a result is from its reference, as the project defines it.
#pragma once

#include <string>
#include <vector>

#include "sluice/problem.hpp"
#include "sluice/tensor.hpp"

namespace sluice::test {

/// One (sequence, head, 64-token block) of a result, or one (sequence, head) of a state.
struct Block {
    std::string where;
    TensorView result;
    TensorView reference;
};

struct Accuracy {
    double whole = 0;        // RMS(x - ref) / RMS(ref) over all blocks together
    double worst_block = 0;  // the same over the worst one; where its reference vanishes, over 1e-6
                             // of the tensor's RMS
    std::string where;       // the worst block, or the first value that is not finite
    bool finite = true;
};

[[nodiscard]] Accuracy compare(const std::vector<Block>& blocks);

/// A block may be this much worse than the whole.
inline constexpr double kBlockAllowance = 4;

/// Whether the whole tensor is within `bound` and every block within four times it.
[[nodiscard]] bool within(const Accuracy& accuracy, double bound);
/// For messages: "1.2e-05 (block 3.1e-05 at n0 h1 t64) > 1e-05".
[[nodiscard]] std::string describe(const Accuracy& accuracy, double bound);

/// Blocks of an output [B, T, HV, V], by sequence.
[[nodiscard]] std::vector<Block> token_blocks(const TensorView& result, const TensorView& reference,
                                              const std::vector<Sequence>& sequences);
/// Blocks of a tensor whose first two dimensions are (sequence, head).
[[nodiscard]] std::vector<Block> head_blocks(const TensorView& result, const TensorView& reference);
/// The tensor as one block.
[[nodiscard]] std::vector<Block> whole_block(const TensorView& result, const TensorView& reference);

/// Whether two tensors of one shape and dtype hold the same bits.
[[nodiscard]] bool same_bits(const TensorView& a, const TensorView& b);

}  // namespace sluice::test
