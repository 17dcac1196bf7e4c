#include "spec/expr_nodes.hpp"

namespace sluice {

std::size_t arity(Op op) noexcept {
    if (op <= Op::kNumHeads) return 0;
    return op < Op::kAdd ? 1 : 2;
}

void ExprNodes::add(const Expr& expr) {
    if (find(expr) < size_) return;
    for (const Expr& arg : expr.node().args) add(arg);
    append(expr);
}

void ExprNodes::append(const Expr& expr) {
    if (size_ < kFew) {
        few_[size_++] = &expr;
        return;
    }
    if (size_ == kFew) {
        many_.assign(few_.begin(), few_.end());
        for (std::size_t i = 0; i < kFew; ++i) index_.emplace(&few_[i]->node(), i);
    }
    index_.emplace(&expr.node(), size_++);
    many_.push_back(&expr);
}

std::size_t ExprNodes::find(const Expr& expr) const {
    const Expr::Node* node = &expr.node();
    if (!index_.empty()) {
        const auto it = index_.find(node);
        return it == index_.end() ? size_ : it->second;
    }
    for (std::size_t i = 0; i < size_; ++i) {
        if (&few_[i]->node() == node) return i;
    }
    return size_;
}

bool reads_input(const Expr& expr, std::string_view name) {
    const ExprNodes nodes(expr);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const Expr::Node& node = nodes[i].node();
        if (node.op == Op::kInput && node.name == name) return true;
    }
    return false;
}

}  // namespace sluice
