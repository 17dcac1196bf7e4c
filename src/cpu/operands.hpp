// The operands of the recurrence for a tile of tokens, computed from the spec's inputs.
#pragma once

#include <optional>
#include <vector>

#include "cpu/aligned.hpp"
#include "cpu/program.hpp"
#include "cpu/task_grid.hpp"
#include "sluice/problem.hpp"

namespace sluice::cpu {

/// The spec's expressions, compiled.
template <class Real>
struct OperandPrograms {
    explicit OperandPrograms(const Problem& problem);

    Program<Real> q, k, v, output;
    std::optional<Program<Real>> log_decay, beta, rank_one_a, rank_one_b;
    Decay decay;
    bool normalize;

    [[nodiscard]] std::size_t scratch_elements(const Problem& problem, std::int64_t length) const;
};

/// Buffers for up to `length` tokens, rows padded with zeros to `key_stride` and `value_stride`.
template <class Real>
class Operands {
  public:
    Operands(const Problem& problem, const OperandPrograms<Real>& programs, std::int64_t length,
             std::int64_t value_tile, std::int64_t row_multiple);

    /// Evaluates everything but the output stage for the tile's tokens.
    void load(const Task& task, const Sequence& sequence, std::int64_t begin, std::int64_t length);
    /// The output stage, in place on `o` (rows of value_stride()); needs load() of the same tile.
    void apply_output(Real* o);

    [[nodiscard]] std::int64_t key_stride() const { return key_stride_; }
    [[nodiscard]] std::int64_t value_stride() const { return value_stride_; }
    /// Value channels of the loaded tile; a normalised spec's key sum is in the next column.
    [[nodiscard]] std::int64_t values() const { return tile_.channels; }

    // Row t of each; a and b are empty unless the update is rank-one, beta unless delta.
    AlignedVector<Real> q, k, a, b;  // [length, key_stride]
    AlignedVector<Real> v;           // [length, value_stride]; normalised: column V is 1
    AlignedVector<Real> log_decay;   // vector: [length, key_stride]; else [length]; none: empty
    AlignedVector<Real> beta;        // [length]

  private:
    const Problem& problem_;
    const OperandPrograms<Real>& programs_;
    std::int64_t key_stride_, value_stride_;
    Tile tile_;
    AlignedVector<Real> scratch_;
};

extern template struct OperandPrograms<float>;
extern template struct OperandPrograms<double>;
extern template class Operands<float>;
extern template class Operands<double>;

}  // namespace sluice::cpu
