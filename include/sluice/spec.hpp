// Spec: a recurrence as a value.
//
// One head, one sequence, step t; the state S is K x V (rows: key channels, columns: value
// channels); D_t = diag(exp(g_t)) with the natural-log decay g_t <= 0:
//
//   kAdditive   S_t = D_t S_{t-1} + k_t v_t^T
//   kDelta      S_t = D_t S_{t-1} + k_t u_t^T,   u_t = beta_t (v_t - (D_t S_{t-1})^T k_t)
//   kRankOne    S_t = D_t S_{t-1} + a_t (b_t^T S_{t-1}) + k_t v_t^T
//
//   o_t = output(scale * S_t^T q_t)              (the state after the update of the same step)
//
// q, k, v, g, beta, a, b and the output stage are expressions over the spec's own named inputs.
// Everything reads this value: validation, the oracle, work counts, the planner, the back ends.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sluice/expr.hpp"

namespace sluice {

/// Axes of an input tensor. B batch, T tokens, H key heads, HV value heads (a multiple of H; value
/// head h uses key head h / (HV / H)), K key channels, V value channels.
enum class Axis : unsigned char { kB, kT, kH, kHV, kK, kV };
inline constexpr int kNumAxes = 6;

[[nodiscard]] const char* to_string(Axis axis) noexcept;
[[nodiscard]] std::string to_string(const std::vector<Axis>& axes);

struct Input {
    std::string name;
    std::vector<Axis> axes;  // e.g. {kB, kT, kH, kK}
    std::string meaning;     // one line for --help and the docs, with units
};

enum class Decay : unsigned char {
    kNone,
    kConstant,  // per value head
    kScalar,    // per token and value head
    kVector,    // per token, value head and key channel
};
[[nodiscard]] const char* to_string(Decay decay) noexcept;

enum class Update : unsigned char { kAdditive, kDelta, kRankOne };
[[nodiscard]] const char* to_string(Update update) noexcept;

enum class StateLayout : unsigned char {
    kKeyFirst,    // [N, HV, K, V]
    kValueFirst,  // [N, HV, V, K]
};
[[nodiscard]] const char* to_string(StateLayout layout) noexcept;

inline constexpr double kNormalizerEpsilon = 1e-10;

struct Spec {
    std::string name;     // for messages, records and tables only; no back end looks at it
    std::string summary;  // one line
    std::string source;   // where the formula comes from

    std::vector<Input> inputs;
    std::map<std::string, double> parameters;  // run-time scalars that the expressions read

    Expr q = Expr::input("q");      // axes within B T H HV K
    Expr k = Expr::input("k");      // axes within B T H HV K
    Expr v = Expr::input("v");      // axes within B T HV V
    std::optional<Expr> log_decay;  // g: none, or axes within B T HV K; the axes give the Decay
    Update update = Update::kAdditive;
    std::optional<Expr> beta;        // kDelta; axes within B T HV
    std::optional<Expr> rank_one_a;  // kRankOne; axes within B T H HV K
    std::optional<Expr> rank_one_b;  // kRankOne; axes within B T H HV K
    /// Divide by scale * q_t . n_t + kNormalizerEpsilon with n_t = D_t n_{t-1} + k_t, n_0 = 0
    /// (additive only).
    bool normalize = false;
    Expr output = Expr::input("o");  // over "o" and inputs with axes within B T HV V

    std::optional<double> default_scale;  // unset: K^-0.5
    StateLayout default_state_layout = StateLayout::kKeyFirst;

    [[nodiscard]] const Input* find_input(const std::string& name) const noexcept;
    /// Union of the axes of all inputs that `expr` reads (kHV for Expr::head()).
    [[nodiscard]] std::vector<Axis> axes_of(const Expr& expr) const;
    [[nodiscard]] Decay decay() const;
    /// Throws Error(kUnsupported/kMissing/kSurplus) when the value is not a member of the family.
    void validate() const;
    /// The recurrence in a few lines of text.
    [[nodiscard]] std::string to_string() const;
};

}  // namespace sluice
