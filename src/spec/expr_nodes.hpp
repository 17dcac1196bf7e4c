// The nodes of an expression, each once: what every walk over one goes through.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sluice/expr.hpp"

namespace sluice {

/// How many operands an operation takes.
[[nodiscard]] std::size_t arity(Op op) noexcept;

/// Every node that `root` reaches, once, operands before the operations that read them: the root is
/// last, and results of a walk go into an array by index(). `root` must outlive it.
class ExprNodes {
  public:
    explicit ExprNodes(const Expr& root) { add(root); }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] const Expr& operator[](std::size_t i) const noexcept {
        return *(many_.empty() ? few_[i] : many_[i]);
    }
    /// Where `expr`, one of them, stands.
    [[nodiscard]] std::size_t index(const Expr& expr) const { return find(expr); }

  private:
    void add(const Expr& expr);
    void append(const Expr& expr);
    [[nodiscard]] std::size_t find(const Expr& expr) const;  // size() when absent

    // Formulas have a handful of nodes: those are found by looking, without allocating.
    static constexpr std::size_t kFew = 16;
    std::array<const Expr*, kFew> few_{};
    std::size_t size_ = 0;
    std::vector<const Expr*> many_;  // all of them, if more than kFew
    std::unordered_map<const Expr::Node*, std::size_t> index_;
};

/// Whether `expr` reads the input `name`.
[[nodiscard]] bool reads_input(const Expr& expr, std::string_view name);

}  // namespace sluice
