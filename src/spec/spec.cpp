#include "sluice/spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "sluice/error.hpp"
#include "spec/axes.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice {

const char* to_string(Axis axis) noexcept {
    constexpr const char* kNames[kNumAxes] = {"B", "T", "H", "HV", "K", "V"};
    return kNames[static_cast<int>(axis)];
}

std::string to_string(const std::vector<Axis>& axes) {
    std::string text = "[";
    for (std::size_t i = 0; i < axes.size(); ++i)
        text += (i ? ", " : "") + std::string(to_string(axes[i]));
    return text + "]";
}

const char* to_string(Decay decay) noexcept {
    switch (decay) {
        case Decay::kNone: return "none";
        case Decay::kConstant: return "constant";
        case Decay::kScalar: return "scalar";
        case Decay::kVector: return "vector";
    }
    return "?";
}

const char* to_string(Update update) noexcept {
    switch (update) {
        case Update::kAdditive: return "additive";
        case Update::kDelta: return "delta";
        case Update::kRankOne: return "rank-one";
    }
    return "?";
}

const char* to_string(StateLayout layout) noexcept {
    return layout == StateLayout::kKeyFirst ? "key-first" : "value-first";
}

const Input* Spec::find_input(const std::string& wanted) const noexcept {
    for (const Input& input : inputs) {
        if (input.name == wanted) return &input;
    }
    return nullptr;
}

namespace {

std::vector<Axis> axes_in(unsigned bits) {
    std::vector<Axis> axes;
    for (int i = 0; i < kNumAxes; ++i) {
        if (bits & axis_bit(static_cast<Axis>(i))) axes.push_back(static_cast<Axis>(i));
    }
    return axes;
}

std::string print_axes(unsigned bits) { return to_string(axes_in(bits)); }

/// Axes of a node without operands.
unsigned leaf_axes(const Spec& spec, const Expr::Node& node) {
    if (node.op == Op::kHead) return axis_bit(Axis::kHV);
    if (node.op != Op::kInput) return 0;
    const Input* input = spec.find_input(node.name);
    return input == nullptr ? 0 : axis_bits(input->axes);
}

enum class Role : unsigned char {
    kKey,     // varies over key channels; may be normalised over them
    kValue,   // varies over value channels
    kOutput,  // also reads "o"
    kGate,
};

/// One expression of the spec, and where it may reach.
struct Slot {
    const char* name;
    const Expr& expr;
    Role role;
    unsigned allowed;  // axes
};

/// Calls `check` for every expression of the spec.
template <class Check>
void for_each_slot(const Spec& s, Check&& check) {
    constexpr unsigned kHeads = axis_bits(std::array{Axis::kB, Axis::kT, Axis::kHV});
    constexpr unsigned kGate = kHeads | axis_bit(Axis::kK);
    constexpr unsigned kKey = kGate | axis_bit(Axis::kH);
    constexpr unsigned kValue = kHeads | axis_bit(Axis::kV);
    check(Slot{"q", s.q, Role::kKey, kKey});
    check(Slot{"k", s.k, Role::kKey, kKey});
    check(Slot{"v", s.v, Role::kValue, kValue});
    check(Slot{"output", s.output, Role::kOutput, kValue});
    if (s.log_decay) check(Slot{"log_decay", *s.log_decay, Role::kGate, kGate});
    if (s.beta) check(Slot{"beta", *s.beta, Role::kGate, kHeads});
    if (s.rank_one_a) check(Slot{"rank_one_a", *s.rank_one_a, Role::kKey, kKey});
    if (s.rank_one_b) check(Slot{"rank_one_b", *s.rank_one_b, Role::kKey, kKey});
}

void check_input(const Spec& spec, const Slot& slot, const std::string& name,
                 std::vector<bool>& used) {
    if (slot.role == Role::kOutput && name == "o") return;
    const Input* input = spec.find_input(name);
    if (input == nullptr) {
        throw Error(ErrorCode::kMissing, slot.name, slot.expr.to_string(),
                    fmt::format("expressions over declared inputs ('{}' is none)", name));
    }
    used[static_cast<std::size_t>(input - spec.inputs.data())] = true;
}

void check_parameter(const Spec& spec, const Slot& slot, const std::string& name) {
    if (spec.parameters.contains(name)) return;
    throw Error(ErrorCode::kMissing, slot.name, slot.expr.to_string(),
                fmt::format("expressions over declared parameters ('{}' is none)", name));
}

void check_operands(const Slot& slot, const Expr::Node& node) {
    if (node.args.size() == arity(node.op)) return;
    throw Error(ErrorCode::kUnsupported, slot.name,
                fmt::format("{} with {} operands", to_string(node.op), node.args.size()),
                fmt::format("{} operands", arity(node.op)));
}

/// Refuses l2norm where it may not be, or of what has no key channels to sum over.
void check_norms(const Spec& spec, const Slot& slot, const ExprNodes& nodes) {
    std::vector<unsigned> axes(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const Expr::Node& node = nodes[i].node();
        axes[i] = leaf_axes(spec, node);
        for (const Expr& arg : node.args) axes[i] |= axes[nodes.index(arg)];
        if (node.op != Op::kL2Norm) continue;
        if (slot.role != Role::kKey) {
            throw Error(
                ErrorCode::kUnsupported, slot.name, nodes[i].to_string(),
                "l2norm in q, k, rank_one_a and rank_one_b only (it sums over key channels)");
        }
        if ((axes[i] & axis_bit(Axis::kK)) == 0) {
            throw Error(ErrorCode::kUnsupported, slot.name,
                        fmt::format("{} over axes {}", nodes[i].to_string(), print_axes(axes[i])),
                        "l2norm of expressions that vary over axis K");
        }
    }
}

void check_slot(const Spec& spec, const Slot& slot, std::vector<bool>& used) {
    const ExprNodes nodes(slot.expr);
    unsigned axes = 0;
    bool normalizes = false;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const Expr::Node& node = nodes[i].node();
        check_operands(slot, node);
        if (node.op == Op::kInput) check_input(spec, slot, node.name, used);
        if (node.op == Op::kParameter) check_parameter(spec, slot, node.name);
        normalizes = normalizes || node.op == Op::kL2Norm;
        axes |= leaf_axes(spec, node);
    }
    if (normalizes) check_norms(spec, slot, nodes);
    if ((axes & ~slot.allowed) != 0) {
        throw Error(ErrorCode::kUnsupported, slot.name,
                    fmt::format("{} over axes {}", slot.expr.to_string(), print_axes(axes)),
                    "axes within " + print_axes(slot.allowed));
    }
    if (slot.role != Role::kKey && slot.role != Role::kValue) return;
    const Axis channel = slot.role == Role::kKey ? Axis::kK : Axis::kV;
    if ((axes & axis_bit(channel)) == 0) {
        throw Error(ErrorCode::kUnsupported, slot.name, slot.expr.to_string(),
                    fmt::format("an expression that varies over axis {}", to_string(channel)));
    }
}

void check_declared(const std::vector<Input>& inputs) {
    unsigned all_axes = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Input& input = inputs[i];
        const bool twice =
            std::any_of(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(i),
                        [&](const Input& earlier) { return earlier.name == input.name; });
        if (input.name.empty() || input.name == "o" || twice) {
            throw Error(ErrorCode::kUnsupported, "inputs", "'" + input.name + "'",
                        "distinct, non-empty names other than 'o'");
        }
        const unsigned axes = axis_bits(input.axes);
        if (input.axes.empty() || std::popcount(axes) != static_cast<int>(input.axes.size())) {
            throw Error(ErrorCode::kUnsupported, "inputs", input.name + " " + to_string(input.axes),
                        "one or more axes, each once");
        }
        all_axes |= axes;
    }
    for (const Axis axis : {Axis::kB, Axis::kT}) {
        if ((all_axes & axis_bit(axis)) == 0) {
            throw Error(ErrorCode::kUnsupported, "inputs",
                        fmt::format("none with axis {}", to_string(axis)),
                        "an input with axis B and one with axis T");
        }
    }
}

/// Which expressions the update asks for.
void check_update(const Spec& spec) {
    const bool delta = spec.update == Update::kDelta;
    const bool rank_one = spec.update == Update::kRankOne;
    if (spec.beta.has_value() != delta) {
        throw Error(delta ? ErrorCode::kMissing : ErrorCode::kSurplus, "beta",
                    spec.beta ? spec.beta->to_string() : "none",
                    "beta exactly with the delta update");
    }
    if (spec.rank_one_a.has_value() != rank_one || spec.rank_one_b.has_value() != rank_one) {
        throw Error(rank_one ? ErrorCode::kMissing : ErrorCode::kSurplus, "rank_one_a, rank_one_b",
                    "one or both of them", "both exactly with the rank-one update");
    }
    if (spec.normalize && spec.update != Update::kAdditive) {
        throw Error(ErrorCode::kUnsupported, "normalize", "true", "additive updates only");
    }
}

}  // namespace

unsigned axis_bits(const Spec& spec, const Expr& expr) {
    const ExprNodes nodes(expr);
    unsigned axes = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) axes |= leaf_axes(spec, nodes[i].node());
    return axes;
}

std::vector<Axis> Spec::axes_of(const Expr& expr) const { return axes_in(axis_bits(*this, expr)); }

Decay Spec::decay() const {
    if (!log_decay || log_decay->is_constant(0)) return Decay::kNone;
    const unsigned axes = axis_bits(*this, *log_decay);
    if (axes & axis_bit(Axis::kK)) return Decay::kVector;
    return axes & (axis_bit(Axis::kT) | axis_bit(Axis::kB)) ? Decay::kScalar : Decay::kConstant;
}

void Spec::validate() const {
    check_declared(inputs);
    check_update(*this);
    std::vector<bool> used(inputs.size());
    for_each_slot(*this, [&](const Slot& slot) { check_slot(*this, slot, used); });
    const auto unused = std::find(used.begin(), used.end(), false);
    if (unused != used.end()) {
        throw Error(ErrorCode::kSurplus, "inputs",
                    inputs[static_cast<std::size_t>(unused - used.begin())].name,
                    "inputs that an expression reads");
    }
}

std::string Spec::to_string() const {
    std::string decay_text;
    if (decay() != Decay::kNone) decay_text = "exp(g) S";
    std::string text = name + "\n";
    const std::string previous = decay_text.empty() ? "S" : "D S";
    switch (update) {
        case Update::kAdditive: text += fmt::format("  S <- {} + k v^T\n", previous); break;
        case Update::kDelta:
            text += fmt::format("  S <- {0} + k u^T,  u = beta (v - ({0})^T k)\n", previous);
            break;
        case Update::kRankOne:
            text += fmt::format("  S <- {} + a (b^T S) + k v^T\n", previous);
            break;
    }
    text += fmt::format("  o = {}{}\n", output.is_input("o") ? "" : output.to_string() + ",  o = ",
                        normalize ? "scale S^T q / (scale q . sum(k) + 1e-10)" : "scale S^T q");
    if (decay() != Decay::kNone) {
        text += fmt::format("  D = diag(exp(g)),  g = {}  ({})\n", log_decay->to_string(),
                            sluice::to_string(decay()));
    }
    const auto show = [&](const char* label, const Expr& e) {
        if (!e.is_input(label)) text += fmt::format("  {} = {}\n", label, e.to_string());
    };
    show("q", q);
    show("k", k);
    show("v", v);
    if (beta) show("beta", *beta);
    if (rank_one_a) show("a", *rank_one_a);
    if (rank_one_b) show("b", *rank_one_b);
    for (const auto& [key, value] : parameters) text += fmt::format("  {} = {}\n", key, value);
    for (const Input& input : inputs) {
        text +=
            fmt::format("  {} {}: {}\n", input.name, sluice::to_string(input.axes), input.meaning);
    }
    return text;
}

}  // namespace sluice
