#include "sluice/expr.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

std::string wrapped(const Expr& e, int at_least) {
    const std::string text = e.to_string();
    const bool negative = e.node().op == Op::kConstant && e.node().value < 0;
    return precedence(e.node().op) < at_least || (negative && at_least > 1) ? "(" + text + ")"
                                                                            : text;
}

template <class Visit>
void walk(const Expr& e, Visit&& visit) {
    visit(e.node());
    for (const Expr& arg : e.node().args) walk(arg, visit);
}

std::vector<std::string> names(const Expr& e, Op op) {
    std::vector<std::string> found;
    walk(e, [&](const Expr::Node& node) {
        if (node.op == op && std::find(found.begin(), found.end(), node.name) == found.end()) {
            found.push_back(node.name);
        }
    });
    return found;
}

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

std::string Expr::to_string() const {
    const Node& n = *node_;
    switch (n.op) {
        case Op::kConstant: return fmt::format("{}", n.value);
        case Op::kInput:
        case Op::kParameter: return n.name;
        case Op::kHead:
        case Op::kNumHeads: return sluice::to_string(n.op);
        case Op::kNegate: return "-" + wrapped(n.args[0], 3);
        case Op::kAdd:
        case Op::kSubtract:
        case Op::kMultiply:
        case Op::kDivide: {
            const int level = precedence(n.op);
            // The right side of - and / needs parentheses at its own level too.
            const int right = n.op == Op::kAdd || n.op == Op::kMultiply ? level : level + 1;
            return wrapped(n.args[0], level) + " " + sluice::to_string(n.op) + " " +
                   wrapped(n.args[1], right);
        }
        default: {
            std::string text = std::string(sluice::to_string(n.op)) + "(";
            for (std::size_t i = 0; i < n.args.size(); ++i) {
                text += (i ? ", " : "") + n.args[i].to_string();
            }
            return text + ")";
        }
    }
}

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
