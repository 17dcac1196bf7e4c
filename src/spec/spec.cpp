#include "sluice/spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sluice/error.hpp"

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

bool contains(const std::vector<Axis>& axes, Axis axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

void collect_axes(const Spec& spec, const Expr& expr, std::set<Axis>& axes) {
    const Expr::Node& node = expr.node();
    if (node.op == Op::kInput) {
        if (const Input* input = spec.find_input(node.name)) {
            axes.insert(input->axes.begin(), input->axes.end());
        }
    }
    if (node.op == Op::kHead) axes.insert(Axis::kHV);
    for (const Expr& arg : node.args) collect_axes(spec, arg, axes);
}

std::size_t arity(Op op) {
    if (op <= Op::kNumHeads) return 0;
    return op < Op::kAdd ? 1 : 2;
}

void check_tree(const std::string& where, const Expr& expr, bool key_channels) {
    const Expr::Node& node = expr.node();
    if (node.args.size() != arity(node.op)) {
        throw Error(ErrorCode::kUnsupported, where,
                    fmt::format("{} with {} operands", to_string(node.op), node.args.size()),
                    fmt::format("{} operands", arity(node.op)));
    }
    if (node.op == Op::kL2Norm && !key_channels) {
        throw Error(ErrorCode::kUnsupported, where, expr.to_string(),
                    "l2norm in q, k, rank_one_a and rank_one_b only (it sums over key channels)");
    }
    for (const Expr& arg : node.args) check_tree(where, arg, key_channels);
}

/// One expression of the spec, and where it may reach.
struct Slot {
    std::string name;
    const Expr* expr;
    std::vector<Axis> allowed;
    bool key_channels;
    bool needs_channel;  // must vary over its channel axis (the last of `allowed`)
};

std::vector<Slot> slots(const Spec& s) {
    const std::vector<Axis> key = {Axis::kB, Axis::kT, Axis::kH, Axis::kHV, Axis::kK};
    const std::vector<Axis> value = {Axis::kB, Axis::kT, Axis::kHV, Axis::kV};
    std::vector<Slot> list = {{"q", &s.q, key, true, true},
                              {"k", &s.k, key, true, true},
                              {"v", &s.v, value, false, true},
                              {"output", &s.output, value, false, false}};
    if (s.log_decay) {
        list.push_back(
            {"log_decay", &*s.log_decay, {Axis::kB, Axis::kT, Axis::kHV, Axis::kK}, false, false});
    }
    if (s.beta) {
        list.push_back({"beta", &*s.beta, {Axis::kB, Axis::kT, Axis::kHV}, false, false});
    }
    if (s.rank_one_a) list.push_back({"rank_one_a", &*s.rank_one_a, key, true, true});
    if (s.rank_one_b) list.push_back({"rank_one_b", &*s.rank_one_b, key, true, true});
    return list;
}

void check_slot(const Spec& spec, const Slot& slot, std::set<std::string>& used) {
    check_tree(slot.name, *slot.expr, slot.key_channels);
    for (const std::string& name : slot.expr->inputs()) {
        if (name == "o" && slot.name == "output") continue;
        if (spec.find_input(name) == nullptr) {
            throw Error(ErrorCode::kMissing, slot.name, slot.expr->to_string(),
                        fmt::format("expressions over declared inputs ('{}' is none)", name));
        }
        used.insert(name);
    }
    for (const std::string& name : slot.expr->parameters()) {
        if (!spec.parameters.contains(name)) {
            throw Error(ErrorCode::kMissing, slot.name, slot.expr->to_string(),
                        fmt::format("expressions over declared parameters ('{}' is none)", name));
        }
    }
    const std::vector<Axis> axes = spec.axes_of(*slot.expr);
    for (const Axis axis : axes) {
        if (!contains(slot.allowed, axis)) {
            throw Error(ErrorCode::kUnsupported, slot.name,
                        fmt::format("{} over axes {}", slot.expr->to_string(), to_string(axes)),
                        "axes within " + to_string(slot.allowed));
        }
    }
    if (slot.needs_channel && !contains(axes, slot.allowed.back())) {
        throw Error(
            ErrorCode::kUnsupported, slot.name, slot.expr->to_string(),
            fmt::format("an expression that varies over axis {}", to_string(slot.allowed.back())));
    }
}

}  // namespace

std::vector<Axis> Spec::axes_of(const Expr& expr) const {
    std::set<Axis> axes;
    collect_axes(*this, expr, axes);
    return {axes.begin(), axes.end()};
}

Decay Spec::decay() const {
    if (!log_decay || log_decay->is_constant(0)) return Decay::kNone;
    const std::vector<Axis> axes = axes_of(*log_decay);
    if (contains(axes, Axis::kK)) return Decay::kVector;
    if (contains(axes, Axis::kT) || contains(axes, Axis::kB)) return Decay::kScalar;
    return Decay::kConstant;
}

void Spec::validate() const {
    std::set<std::string> seen;
    for (const Input& input : inputs) {
        if (input.name.empty() || input.name == "o" || !seen.insert(input.name).second) {
            throw Error(ErrorCode::kUnsupported, "inputs", "'" + input.name + "'",
                        "distinct, non-empty names other than 'o'");
        }
        std::set<Axis> axes(input.axes.begin(), input.axes.end());
        if (axes.size() != input.axes.size() || input.axes.empty()) {
            throw Error(ErrorCode::kUnsupported, "inputs",
                        input.name + " " + sluice::to_string(input.axes),
                        "one or more axes, each once");
        }
    }
    for (const Axis axis : {Axis::kB, Axis::kT}) {
        const bool found = std::any_of(inputs.begin(), inputs.end(), [&](const Input& input) {
            return contains(input.axes, axis);
        });
        if (!found) {
            throw Error(ErrorCode::kUnsupported, "inputs",
                        fmt::format("none with axis {}", sluice::to_string(axis)),
                        "an input with axis B and one with axis T");
        }
    }
    const bool delta = update == Update::kDelta;
    const bool rank_one = update == Update::kRankOne;
    if (beta.has_value() != delta) {
        throw Error(delta ? ErrorCode::kMissing : ErrorCode::kSurplus, "beta",
                    beta ? beta->to_string() : "none", "beta exactly with the delta update");
    }
    if (rank_one_a.has_value() != rank_one || rank_one_b.has_value() != rank_one) {
        throw Error(rank_one ? ErrorCode::kMissing : ErrorCode::kSurplus, "rank_one_a, rank_one_b",
                    "one or both of them", "both exactly with the rank-one update");
    }
    if (normalize && update != Update::kAdditive) {
        throw Error(ErrorCode::kUnsupported, "normalize", "true", "additive updates only");
    }
    std::set<std::string> used;
    for (const Slot& slot : slots(*this)) check_slot(*this, slot, used);
    for (const Input& input : inputs) {
        if (!used.contains(input.name)) {
            throw Error(ErrorCode::kSurplus, "inputs", input.name,
                        "inputs that an expression reads");
        }
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
