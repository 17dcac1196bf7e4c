// An expression compiled for evaluation over tiles of tokens of one head.
//
// Every node keeps only the axes that it varies over: [tokens or 1] x [channels or 1]. A constant
// decay is one number per head, a scalar gate one per token, whatever the tile's width.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sluice/problem.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice::cpu {

/// Tokens [begin, begin + length) of batch row `batch`, value head `head`.
struct Tile {
    std::int64_t batch = 0;
    std::int64_t begin = 0;
    std::int64_t length = 0;
    std::int64_t head = 0;
    std::int64_t channel_begin = 0;  // value channels may be tiled; key channels are always whole
    std::int64_t channels = 1;
};

/// Where gradients of one input are added: element strides by Axis, float64.
struct GradientSink {
    double* data = nullptr;
    std::array<std::int64_t, kNumAxes> stride{};
};

template <class Real>
class Program {
  public:
    /// `channel` is the axis that tile.channels counts: kK or kV; kT for expressions without one.
    /// `problem` must outlive the program.
    Program(const Expr& expr, const Problem& problem, Axis channel);

    /// Scratch for tiles of up to this size; one per thread.
    [[nodiscard]] std::size_t scratch_elements(std::int64_t length, std::int64_t channels) const;

    /// out[t * row_stride + c] for t < tile.length, c < tile.channels. `o` feeds the input "o"
    /// (same layout as out; may be out itself).
    void run(const Tile& tile, std::span<Real> scratch, Real* out, std::int64_t row_stride,
             const Real* o = nullptr) const;

    /// Adds d(loss)/d(input) for every input read, given d(loss)/d(out) as a dense
    /// [tile.length, tile.channels] array; `sinks` by the index of Problem::inputs. The gradient of
    /// "o", if the expression reads it, is added to `grad_o` (dense).
    void backward(const Tile& tile, const Real* grad_out, std::span<const GradientSink> sinks,
                  const Real* o, Real* grad_o) const;

  private:
    struct Instruction {
        Op op = Op::kConstant;
        int a = -1, b = -1;  // operands: earlier instructions
        int input = -1;      // index into problem inputs
        bool is_o = false;   // the reserved input "o"
        Real value = 0;      // constants, parameters
        bool by_token = false, by_channel = false;
    };
    struct Shape {
        std::int64_t rows, columns;
        [[nodiscard]] std::int64_t size() const { return rows * columns; }
    };

    [[nodiscard]] Instruction compile(const Expr::Node& node, const ExprNodes& nodes,
                                      const Problem& problem) const;
    [[nodiscard]] Shape shape(const Instruction& in, const Tile& tile) const {
        return {in.by_token ? tile.length : 1, in.by_channel ? tile.channels : 1};
    }
    void load(const Instruction& in, const Tile& tile, Real* out, std::int64_t row_stride) const;
    void evaluate(const Tile& tile, std::span<Real* const> value, const Real* o,
                  std::int64_t o_stride) const;
    void add_to_sink(const Instruction& in, const Tile& tile, const Real* grad,
                     const GradientSink& sink) const;

    std::vector<Instruction> code_;  // one for each node of the expression
    std::span<const BoundInput> inputs_;
    Axis channel_;
    std::int64_t heads_per_key_head_ = 1;
};

extern template class Program<float>;
extern template class Program<double>;

}  // namespace sluice::cpu
