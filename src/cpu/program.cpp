#include "cpu/program.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/convert.hpp"
#include "cpu/elementwise.hpp"

namespace sluice::cpu {

namespace {

constexpr double kNormEpsilon = 1e-6;

template <class Real>
void unary(Op op, std::int64_t n, const Real* in, Real* out) {
    const auto apply = [&](auto f) { map_elements(n, in, out, f); };
    switch (op) {
        case Op::kNegate: apply([](const auto& x) { return -x; }); break;
        case Op::kExp: apply([](const auto& x) { return x.exp(); }); break;
        case Op::kLog: apply([](const auto& x) { return x.log(); }); break;
        // max(x, 0) + log(1 + exp(-|x|)) never overflows.
        case Op::kSoftplus:
            apply([](const auto& x) { return (x.max(Real(0)) + (-x.abs()).exp().log1p()).eval(); });
            break;
        case Op::kSigmoid:
            apply([](const auto& x) { return (Real(1) + (-x).exp()).inverse().eval(); });
            break;
        case Op::kSilu:
            apply([](const auto& x) { return (x / (Real(1) + (-x).exp())).eval(); });
            break;
        case Op::kRelu: apply([](const auto& x) { return x.max(Real(0)).eval(); }); break;
        case Op::kElu:
            apply([](const auto& x) { return (x.max(Real(0)) + x.min(Real(0)).expm1()).eval(); });
            break;
        case Op::kTanh: apply([](const auto& x) { return x.tanh(); }); break;
        case Op::kSqrt: apply([](const auto& x) { return x.sqrt(); }); break;
        default: break;
    }
}

/// f(out, a, b) over a [rows, columns] result whose operands may be one row or one column.
template <class Real, class F>
void broadcast(std::int64_t rows, std::int64_t columns, Real* out, const Real* a, bool a_rows,
               bool a_columns, const Real* b, bool b_rows, bool b_columns, F&& f) {
    if (columns == 1) {  // one long row instead of many short ones
        a_columns = a_rows;
        b_columns = b_rows;
        a_rows = b_rows = false;
        std::swap(rows, columns);
    }
    const std::int64_t a_step = a_rows ? (a_columns ? columns : 1) : 0;
    const std::int64_t b_step = b_rows ? (b_columns ? columns : 1) : 0;
    for (std::int64_t r = 0; r < rows; ++r) {
        const Real* pa = a + r * a_step;
        const Real* pb = b + r * b_step;
        Real* po = out + r * columns;
        if (a_columns && b_columns) {
            for (std::int64_t c = 0; c < columns; ++c) po[c] = f(pa[c], pb[c]);
        } else if (a_columns) {
            for (std::int64_t c = 0; c < columns; ++c) po[c] = f(pa[c], *pb);
        } else if (b_columns) {
            for (std::int64_t c = 0; c < columns; ++c) po[c] = f(*pa, pb[c]);
        } else {
            std::fill_n(po, columns, f(*pa, *pb));
        }
    }
}

template <class Real>
void binary(Op op, std::int64_t rows, std::int64_t columns, Real* out, const Real* a, bool a_rows,
            bool a_columns, const Real* b, bool b_rows, bool b_columns) {
    const auto apply = [&](auto f) {
        broadcast(rows, columns, out, a, a_rows, a_columns, b, b_rows, b_columns, f);
    };
    switch (op) {
        case Op::kAdd: apply([](Real x, Real y) { return x + y; }); break;
        case Op::kSubtract: apply([](Real x, Real y) { return x - y; }); break;
        case Op::kMultiply: apply([](Real x, Real y) { return x * y; }); break;
        case Op::kDivide: apply([](Real x, Real y) { return x / y; }); break;
        case Op::kMin: apply([](Real x, Real y) { return y < x ? y : x; }); break;
        case Op::kMax: apply([](Real x, Real y) { return x < y ? y : x; }); break;
        default: break;
    }
}

/// 1 / sqrt(sum x^2 + epsilon), summed in a fixed order.
template <class Real>
Real inverse_norm(const Real* row, std::int64_t n) {
    constexpr std::int64_t kLanes = 16;
    Real sums[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane)
            sums[lane] += row[i + lane] * row[i + lane];
    }
    for (std::int64_t lane = 0; i + lane < n; ++lane) sums[lane] += row[i + lane] * row[i + lane];
    Real total = Real(kNormEpsilon);
    for (const Real sum : sums) total += sum;
    return Real(1) / std::sqrt(total);
}

/// dy/dx of an elementwise operation, from its operand and its result.
template <class Real>
Real slope(Op op, Real x, Real y) {
    const auto sigmoid = [](Real v) { return Real(1) / (Real(1) + std::exp(-v)); };
    switch (op) {
        case Op::kNegate: return Real(-1);
        case Op::kExp: return y;
        case Op::kLog: return Real(1) / x;
        case Op::kSoftplus: return sigmoid(x);
        case Op::kSigmoid: return y * (Real(1) - y);
        case Op::kSilu: return sigmoid(x) * (Real(1) + x * (Real(1) - sigmoid(x)));
        case Op::kRelu: return x > 0 ? Real(1) : Real(0);
        case Op::kElu: return x > 0 ? Real(1) : y + Real(1);
        case Op::kTanh: return Real(1) - y * y;
        case Op::kSqrt: return Real(0.5) / y;
        default: return Real(0);
    }
}

}  // namespace

template <class Real>
Program<Real>::Program(const Expr& expr, const Problem& problem, Axis channel)
    : inputs_(problem.inputs),
      channel_(channel),
      heads_per_key_head_(problem.dims.HV / problem.dims.H) {
    const ExprNodes nodes(expr);
    code_.reserve(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        code_.push_back(compile(nodes[i].node(), nodes, problem));
    }
}

template <class Real>
auto Program<Real>::compile(const Expr::Node& node, const ExprNodes& nodes,
                            const Problem& problem) const -> Instruction {
    Instruction in;
    in.op = node.op;
    switch (node.op) {
        case Op::kConstant: in.value = static_cast<Real>(node.value); break;
        case Op::kParameter:
            in.value = static_cast<Real>(problem.spec.parameters.at(node.name));
            break;
        case Op::kNumHeads: in.value = static_cast<Real>(problem.dims.HV); break;
        case Op::kHead: break;
        case Op::kInput:
            in.is_o = node.name == "o";
            in.by_token = in.by_channel = in.is_o;
            for (std::size_t i = 0; i < inputs_.size() && !in.is_o; ++i) {
                if (inputs_[i].name != node.name) continue;
                in.input = static_cast<int>(i);
                in.by_token = inputs_[i].has(Axis::kT);
                in.by_channel = inputs_[i].has(channel_) && channel_ != Axis::kT;
            }
            break;
        default:
            // Operands come first among the nodes: their instructions are there.
            in.a = static_cast<int>(nodes.index(node.args[0]));
            in.by_token = code_[in.a].by_token;
            in.by_channel = code_[in.a].by_channel;
            if (node.args.size() > 1) {
                in.b = static_cast<int>(nodes.index(node.args[1]));
                in.by_token = in.by_token || code_[in.b].by_token;
                in.by_channel = in.by_channel || code_[in.b].by_channel;
            }
    }
    return in;
}

template <class Real>
std::size_t Program<Real>::scratch_elements(std::int64_t length, std::int64_t channels) const {
    if (code_.size() == 1) return 0;
    Tile tile;
    tile.length = length;
    tile.channels = channels;
    std::int64_t total = 0;
    for (const Instruction& in : code_) total += shape(in, tile).size();
    return static_cast<std::size_t>(total);
}

template <class Real>
void Program<Real>::load(const Instruction& in, const Tile& tile, Real* out,
                         std::int64_t row_stride) const {
    const BoundInput& input = inputs_[in.input];
    const auto stride = [&](Axis axis) { return input.stride[static_cast<std::size_t>(axis)]; };
    const Shape s = shape(in, tile);
    const std::int64_t base = tile.batch * stride(Axis::kB) + tile.begin * stride(Axis::kT) +
                              tile.head / heads_per_key_head_ * stride(Axis::kH) +
                              tile.head * stride(Axis::kHV) +
                              (in.by_channel ? tile.channel_begin * stride(channel_) : 0);
    if (s.columns == 1) {  // one number per token: a strided row over tokens
        if (row_stride == 1 || s.rows == 1) {
            load_row(input.data, input.dtype, base, stride(Axis::kT), s.rows, out);
            return;
        }
    }
    const std::int64_t step = in.by_channel ? stride(channel_) : 0;
    for (std::int64_t t = 0; t < s.rows; ++t) {
        load_row(input.data, input.dtype, base + t * stride(Axis::kT), step, s.columns,
                 out + t * row_stride);
    }
}

template <class Real>
void Program<Real>::evaluate(const Tile& tile, std::span<Real* const> value, const Real* o,
                             std::int64_t o_stride) const {
    for (std::size_t i = 0; i < code_.size(); ++i) {
        const Instruction& in = code_[i];
        const Shape s = shape(in, tile);
        Real* out = value[i];
        switch (in.op) {
            case Op::kConstant:
            case Op::kParameter:
            case Op::kNumHeads: *out = in.value; break;
            case Op::kHead: *out = static_cast<Real>(tile.head); break;
            case Op::kInput:
                if (in.is_o) {
                    for (std::int64_t t = 0; t < s.rows; ++t) {
                        std::copy_n(o + t * o_stride, s.columns, out + t * s.columns);
                    }
                } else {
                    load(in, tile, out, s.columns);
                }
                break;
            case Op::kL2Norm:
                for (std::int64_t t = 0; t < s.rows; ++t) {
                    const Real* row = value[in.a] + t * s.columns;
                    const Real factor = inverse_norm(row, s.columns);
                    for (std::int64_t c = 0; c < s.columns; ++c) {
                        out[t * s.columns + c] = row[c] * factor;
                    }
                }
                break;
            default:
                if (in.b < 0) {
                    unary(in.op, s.size(), value[in.a], out);
                } else {
                    const Instruction& a = code_[in.a];
                    const Instruction& b = code_[in.b];
                    binary(in.op, s.rows, s.columns, out, value[in.a], a.by_token, a.by_channel,
                           value[in.b], b.by_token, b.by_channel);
                }
        }
    }
}

template <class Real>
void Program<Real>::run(const Tile& tile, std::span<Real> scratch, Real* out,
                        std::int64_t row_stride, const Real* o) const {
    if (tile.length == 0) return;
    const Instruction& last = code_.back();
    const Real* result = out;
    Shape s = shape(last, tile);
    if (code_.size() == 1 && last.op == Op::kInput) {
        if (last.is_o) {
            if (o != out) {
                for (std::int64_t t = 0; t < tile.length; ++t) {
                    std::copy_n(o + t * row_stride, tile.channels, out + t * row_stride);
                }
            }
            return;
        }
        if (s.rows == tile.length && s.columns == tile.channels) {
            load(last, tile, out, row_stride);
            return;
        }
    }
    thread_local std::vector<Real*> value;
    thread_local std::vector<Real> single;  // a lone leaf has no scratch of its own
    value.resize(code_.size());
    Real* next = scratch.data();
    if (code_.size() == 1) {
        single.resize(static_cast<std::size_t>(s.size()));
        next = single.data();
    }
    for (std::size_t i = 0; i < code_.size(); ++i) {
        value[i] = next;
        next += shape(code_[i], tile).size();
    }
    evaluate(tile, value, o, row_stride);
    result = value.back();
    for (std::int64_t t = 0; t < tile.length; ++t) {
        const Real* row = result + (last.by_token ? t * s.columns : 0);
        if (last.by_channel) {
            std::copy_n(row, tile.channels, out + t * row_stride);
        } else {
            std::fill_n(out + t * row_stride, tile.channels, *row);
        }
    }
}

template <class Real>
void Program<Real>::add_to_sink(const Instruction& in, const Tile& tile, const Real* grad,
                                const GradientSink& sink) const {
    if (sink.data == nullptr) return;
    const auto stride = [&](Axis axis) { return sink.stride[static_cast<std::size_t>(axis)]; };
    const Shape s = shape(in, tile);
    const std::int64_t base = tile.batch * stride(Axis::kB) + tile.begin * stride(Axis::kT) +
                              tile.head / heads_per_key_head_ * stride(Axis::kH) +
                              tile.head * stride(Axis::kHV) +
                              (in.by_channel ? tile.channel_begin * stride(channel_) : 0);
    const std::int64_t step = in.by_channel ? stride(channel_) : 0;
    for (std::int64_t t = 0; t < s.rows; ++t) {
        for (std::int64_t c = 0; c < s.columns; ++c) {
            sink.data[base + t * stride(Axis::kT) + c * step] +=
                static_cast<double>(grad[t * s.columns + c]);
        }
    }
}

template <class Real>
void Program<Real>::backward(const Tile& tile, const Real* grad_out,
                             std::span<const GradientSink> sinks, const Real* o,
                             Real* grad_o) const {
    std::vector<std::vector<Real>> value_memory(code_.size());
    std::vector<std::vector<Real>> grad(code_.size());
    std::vector<Real*> value(code_.size());
    for (std::size_t i = 0; i < code_.size(); ++i) {
        const auto n = static_cast<std::size_t>(shape(code_[i], tile).size());
        value_memory[i].resize(n);
        grad[i].assign(n, Real(0));
        value[i] = value_memory[i].data();
    }
    evaluate(tile, value, o, tile.channels);

    // Element (t, c) of a node that may be one row or one column.
    const auto at = [&](int node, std::int64_t t, std::int64_t c) {
        const Instruction& in = code_[node];
        return (in.by_token ? t : 0) * (in.by_channel ? tile.channels : 1) +
               (in.by_channel ? c : 0);
    };
    const int last = static_cast<int>(code_.size()) - 1;
    for (std::int64_t t = 0; t < tile.length; ++t) {
        for (std::int64_t c = 0; c < tile.channels; ++c) {
            grad[last][at(last, t, c)] += grad_out[t * tile.channels + c];
        }
    }
    for (int i = last; i >= 0; --i) {
        const Instruction& in = code_[i];
        const Shape s = shape(in, tile);
        if (in.op == Op::kInput) {
            if (!in.is_o) {
                add_to_sink(in, tile, grad[i].data(), sinks[in.input]);
            } else if (grad_o != nullptr) {
                for (std::int64_t e = 0; e < s.size(); ++e) grad_o[e] += grad[i][e];
            }
            continue;
        }
        for (std::int64_t t = 0; t < s.rows; ++t) {
            if (in.op == Op::kL2Norm) {
                const Real* x = value[in.a] + t * s.columns;
                const Real* y = value[i] + t * s.columns;
                const Real* gy = grad[i].data() + t * s.columns;
                const Real factor = inverse_norm(x, s.columns);
                Real dot = 0;
                for (std::int64_t c = 0; c < s.columns; ++c) dot += gy[c] * y[c];
                for (std::int64_t c = 0; c < s.columns; ++c) {
                    grad[in.a][t * s.columns + c] += factor * (gy[c] - y[c] * dot);
                }
                continue;
            }
            for (std::int64_t c = 0; c < s.columns && in.a >= 0; ++c) {
                const Real gy = grad[i][t * s.columns + c];
                const std::int64_t ia = at(in.a, t, c);
                const Real x = value[in.a][ia];
                if (in.b < 0) {
                    grad[in.a][ia] += gy * slope(in.op, x, value[i][t * s.columns + c]);
                    continue;
                }
                const std::int64_t ib = at(in.b, t, c);
                const Real y = value[in.b][ib];
                Real da = 0;
                Real db = 0;
                switch (in.op) {
                    case Op::kAdd: da = db = 1; break;
                    case Op::kSubtract:
                        da = 1;
                        db = -1;
                        break;
                    case Op::kMultiply:
                        da = y;
                        db = x;
                        break;
                    case Op::kDivide:
                        da = 1 / y;
                        db = -x / (y * y);
                        break;
                    case Op::kMin: (y < x ? db : da) = 1; break;
                    case Op::kMax: (x < y ? db : da) = 1; break;
                    default: break;
                }
                grad[in.a][ia] += gy * da;
                grad[in.b][ib] += gy * db;
            }
        }
    }
}

template class Program<float>;
template class Program<double>;

}  // namespace sluice::cpu
