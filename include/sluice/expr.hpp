// Small scalar expressions, held as values: the formulas inside a Spec.
//
// A back end interprets them (CPU) or prints them (CUDA emission); neither knows any model's name.
// Broadcasting follows the axes of the inputs that an expression reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace sluice {

enum class Op : unsigned char {
    // leaves
    kConstant,   // a number
    kInput,      // an input tensor of the spec, by name; in the output stage also "o"
    kParameter,  // a run-time scalar of the spec, by name
    kHead,       // the value head's index h, 0 <= h < HV
    kNumHeads,   // HV
    // unary
    kNegate,
    kExp,
    kLog,
    kSoftplus,  // log(1 + exp(x)), without overflow
    kSigmoid,
    kSilu,  // x * sigmoid(x)
    kRelu,
    kElu,  // x > 0 ? x : exp(x) - 1
    kTanh,
    kSqrt,
    kL2Norm,  // x / sqrt(sum over the key channels of x^2 + 1e-6); the one reduction
    // binary
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kMin,
    kMax,
};

[[nodiscard]] const char* to_string(Op op) noexcept;

/// Operations on the longest path from an expression to a leaf, at most: walks and destruction may
/// recurse.
inline constexpr int kMaxExprDepth = 1000;

/// An immutable expression: operations over shared operands, each evaluated once. Copies share
/// nodes.
class Expr {
  public:
    struct Node {
        Op op = Op::kConstant;
        double value = 0;        // kConstant
        std::string name;        // kInput, kParameter
        std::vector<Expr> args;  // one or two for the operations
        int depth = 0;           // operations down to the farthest leaf
    };

    Expr(double value);  // NOLINT: numbers are expressions
    [[nodiscard]] static Expr input(std::string name);
    [[nodiscard]] static Expr parameter(std::string name);
    [[nodiscard]] static Expr head();
    [[nodiscard]] static Expr num_heads();
    /// Throws Error(kUnsupported) beyond kMaxExprDepth.
    [[nodiscard]] static Expr make(Op op, std::vector<Expr> args);

    [[nodiscard]] const Node& node() const noexcept { return *node_; }
    /// Whether the expression is just the input `name`, unchanged.
    [[nodiscard]] bool is_input(const std::string& name) const noexcept;
    /// Whether the expression is the constant `value`.
    [[nodiscard]] bool is_constant(double value) const noexcept;
    /// Names of all inputs (parameters) read, in order of first appearance.
    [[nodiscard]] std::vector<std::string> inputs() const;
    [[nodiscard]] std::vector<std::string> parameters() const;
    /// Infix text, e.g. "-exp(A_log) * softplus(g_raw + dt_bias)". A large expression names the
    /// operations that it uses more than once: "$2 * $2 where $1 = a + b, $2 = $1 * $1".
    [[nodiscard]] std::string to_string() const;

  private:
    explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
    std::shared_ptr<const Node> node_;
};

[[nodiscard]] Expr operator+(const Expr& a, const Expr& b);
[[nodiscard]] Expr operator-(const Expr& a, const Expr& b);
[[nodiscard]] Expr operator*(const Expr& a, const Expr& b);
[[nodiscard]] Expr operator/(const Expr& a, const Expr& b);
[[nodiscard]] Expr operator-(const Expr& a);
[[nodiscard]] Expr exp(const Expr& x);
[[nodiscard]] Expr log(const Expr& x);
[[nodiscard]] Expr softplus(const Expr& x);
[[nodiscard]] Expr sigmoid(const Expr& x);
[[nodiscard]] Expr silu(const Expr& x);
[[nodiscard]] Expr relu(const Expr& x);
[[nodiscard]] Expr elu(const Expr& x);
[[nodiscard]] Expr tanh(const Expr& x);
[[nodiscard]] Expr sqrt(const Expr& x);
[[nodiscard]] Expr l2norm(const Expr& x);
[[nodiscard]] Expr min(const Expr& a, const Expr& b);
[[nodiscard]] Expr max(const Expr& a, const Expr& b);

}  // namespace sluice
