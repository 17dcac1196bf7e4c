#include "sluice/expr.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sluice/error.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice {

const char* to_string(Op op) noexcept {
    switch (op) {
        case Op::kConstant: return "constant";
        case Op::kInput: return "input";
        case Op::kParameter: return "parameter";
        case Op::kHead: return "h";
        case Op::kNumHeads: return "HV";
        case Op::kNegate: return "-";
        case Op::kExp: return "exp";
        case Op::kLog: return "log";
        case Op::kSoftplus: return "softplus";
        case Op::kSigmoid: return "sigmoid";
        case Op::kSilu: return "silu";
        case Op::kRelu: return "relu";
        case Op::kElu: return "elu";
        case Op::kTanh: return "tanh";
        case Op::kSqrt: return "sqrt";
        case Op::kL2Norm: return "l2norm";
        case Op::kAdd: return "+";
        case Op::kSubtract: return "-";
        case Op::kMultiply: return "*";
        case Op::kDivide: return "/";
        case Op::kMin: return "min";
        case Op::kMax: return "max";
    }
    return "?";
}

namespace {

Expr::Node leaf(Op op) {
    Expr::Node node;
    node.op = op;
    return node;
}

/// How tightly an operation's text binds: a sum needs parentheses inside a product.
int precedence(Op op) {
    switch (op) {
        case Op::kAdd:
        case Op::kSubtract: return 1;
        case Op::kMultiply:
        case Op::kDivide: return 2;
        case Op::kNegate: return 3;
        default: return 4;
    }
}

std::vector<std::string> names(const Expr& e, Op op) {
    std::vector<std::string> found;
    const ExprNodes nodes(e);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const Expr::Node& node = nodes[i].node();
        if (node.op == op && std::find(found.begin(), found.end(), node.name) == found.end()) {
            found.push_back(node.name);
        }
    }
    return found;
}

/// Prints an expression, in full unless its tree is large: then operations that are read more than
/// once become "$1", "$2", ..., which bounds the text by the number of nodes.
class Printer {
  public:
    explicit Printer(const Expr& root) : root_(root), nodes_(root), label_(nodes_.size(), 0) {
        name_shared_operations();
    }

    [[nodiscard]] std::string print() && {
        write(root_);
        const char* separator = " where ";
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            if (label_[i] == 0) continue;
            text_ += fmt::format("{}${} = ", separator, label_[i]);
            write(nodes_[i]);
            separator = ", ";
        }
        return std::move(text_);
    }

  private:
    /// Nodes of the tree with shared operands written out that a reader still takes in.
    static constexpr double kLargeTree = 64;

    void name_shared_operations() {
        std::vector<double> tree(nodes_.size(), 1);
        std::vector<int> readers(nodes_.size(), 0);
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            for (const Expr& arg : nodes_[i].node().args) {
                tree[i] += tree[nodes_.index(arg)];
                ++readers[nodes_.index(arg)];
            }
        }
        if (tree.back() <= kLargeTree) return;
        int named = 0;
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            if (readers[i] > 1 && !nodes_[i].node().args.empty()) label_[i] = ++named;
        }
    }

    /// `e` as an operand: its name if it has one, else in the parentheses that it needs.
    void write_operand(const Expr& e, int at_least) {
        if (const int label = label_[nodes_.index(e)]; label > 0) {
            text_ += fmt::format("${}", label);
            return;
        }
        const bool negative = e.node().op == Op::kConstant && e.node().value < 0;
        const bool wrap = precedence(e.node().op) < at_least || (negative && at_least > 1);
        if (wrap) text_ += '(';
        write(e);
        if (wrap) text_ += ')';
    }

    void write(const Expr& e) {
        const Expr::Node& n = e.node();
        // Spec::validate() prints what it refuses, a wrong number of operands among it.
        if (n.args.size() != arity(n.op)) return write_call(n);
        switch (n.op) {
            case Op::kConstant: text_ += fmt::format("{}", n.value); break;
            case Op::kInput:
            case Op::kParameter: text_ += n.name; break;
            case Op::kHead:
            case Op::kNumHeads: text_ += to_string(n.op); break;
            case Op::kNegate:
                text_ += '-';
                write_operand(n.args[0], precedence(n.op) + 1);
                break;
            case Op::kAdd:
            case Op::kSubtract:
            case Op::kMultiply:
            case Op::kDivide: {
                const int level = precedence(n.op);
                // The right side of - and / needs parentheses at its own level too.
                const bool regroups = n.op == Op::kAdd || n.op == Op::kMultiply;
                write_operand(n.args[0], level);
                text_ += fmt::format(" {} ", to_string(n.op));
                write_operand(n.args[1], regroups ? level : level + 1);
                break;
            }
            default: write_call(n);
        }
    }

    void write_call(const Expr::Node& n) {
        text_ += fmt::format("{}(", to_string(n.op));
        for (std::size_t i = 0; i < n.args.size(); ++i) {
            text_ += i > 0 ? ", " : "";
            write_operand(n.args[i], 0);
        }
        text_ += ')';
    }

    const Expr& root_;
    ExprNodes nodes_;
    std::vector<int> label_;  // by node; 0: written out
    std::string text_;
};

}  // namespace

Expr::Expr(double value) {
    Node node;
    node.value = value;
    node_ = std::make_shared<const Node>(std::move(node));
}

Expr Expr::input(std::string name) {
    Node node = leaf(Op::kInput);
    node.name = std::move(name);
    return Expr(std::make_shared<const Node>(std::move(node)));
}

Expr Expr::parameter(std::string name) {
    Node node = leaf(Op::kParameter);
    node.name = std::move(name);
    return Expr(std::make_shared<const Node>(std::move(node)));
}

Expr Expr::head() { return Expr(std::make_shared<const Node>(leaf(Op::kHead))); }
Expr Expr::num_heads() { return Expr(std::make_shared<const Node>(leaf(Op::kNumHeads))); }

Expr Expr::make(Op op, std::vector<Expr> args) {
    Node node = leaf(op);
    node.args = std::move(args);
    for (const Expr& arg : node.args) node.depth = std::max(node.depth, arg.node().depth + 1);
    if (node.depth > kMaxExprDepth) {
        throw Error(ErrorCode::kUnsupported, "expression",
                    fmt::format("{} operations deep", node.depth),
                    fmt::format("at most {} operations deep", kMaxExprDepth));
    }
    return Expr(std::make_shared<const Node>(std::move(node)));
}

bool Expr::is_input(const std::string& name) const noexcept {
    return node_->op == Op::kInput && node_->name == name;
}

bool Expr::is_constant(double value) const noexcept {
    return node_->op == Op::kConstant && node_->value == value;
}

std::vector<std::string> Expr::inputs() const { return names(*this, Op::kInput); }
std::vector<std::string> Expr::parameters() const { return names(*this, Op::kParameter); }

std::string Expr::to_string() const { return Printer(*this).print(); }

Expr operator+(const Expr& a, const Expr& b) { return Expr::make(Op::kAdd, {a, b}); }
Expr operator-(const Expr& a, const Expr& b) { return Expr::make(Op::kSubtract, {a, b}); }
Expr operator*(const Expr& a, const Expr& b) { return Expr::make(Op::kMultiply, {a, b}); }
Expr operator/(const Expr& a, const Expr& b) { return Expr::make(Op::kDivide, {a, b}); }
Expr operator-(const Expr& a) { return Expr::make(Op::kNegate, {a}); }
Expr exp(const Expr& x) { return Expr::make(Op::kExp, {x}); }
Expr log(const Expr& x) { return Expr::make(Op::kLog, {x}); }
Expr softplus(const Expr& x) { return Expr::make(Op::kSoftplus, {x}); }
Expr sigmoid(const Expr& x) { return Expr::make(Op::kSigmoid, {x}); }
Expr silu(const Expr& x) { return Expr::make(Op::kSilu, {x}); }
Expr relu(const Expr& x) { return Expr::make(Op::kRelu, {x}); }
Expr elu(const Expr& x) { return Expr::make(Op::kElu, {x}); }
Expr tanh(const Expr& x) { return Expr::make(Op::kTanh, {x}); }
Expr sqrt(const Expr& x) { return Expr::make(Op::kSqrt, {x}); }
Expr l2norm(const Expr& x) { return Expr::make(Op::kL2Norm, {x}); }
Expr min(const Expr& a, const Expr& b) { return Expr::make(Op::kMin, {a, b}); }
Expr max(const Expr& a, const Expr& b) { return Expr::make(Op::kMax, {a, b}); }

}  // namespace sluice
