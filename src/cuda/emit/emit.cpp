#include "cuda/emit/emit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace sluice::cuda {

namespace {

int input_number(const Spec& spec, const std::string& name) {
    const auto at = std::find_if(spec.inputs.begin(), spec.inputs.end(),
                                 [&](const Input& input) { return input.name == name; });
    return static_cast<int>(at - spec.inputs.begin());
}

int parameter_number(const Spec& spec, const std::string& name) {
    return static_cast<int>(std::distance(spec.parameters.begin(), spec.parameters.find(name)));
}

std::string number_text(float x) {
    if (std::isnan(x)) return "formula::nan()";
    if (std::isinf(x)) return x > 0 ? "formula::infinity()" : "-formula::infinity()";
    return fmt::format("{:#.9g}f", x);
}

/// The text of an operation on two (or one) named numbers.
std::string operation(Op op, const std::string& a, const std::string& b) {
    switch (op) {
        case Op::kNegate: return "-" + a;
        case Op::kExp: return "expf(" + a + ")";
        case Op::kLog: return "logf(" + a + ")";
        case Op::kSoftplus: return "formula::softplus(" + a + ")";
        case Op::kSigmoid: return "formula::sigmoid(" + a + ")";
        case Op::kSilu: return "formula::silu(" + a + ")";
        case Op::kRelu: return "formula::relu(" + a + ")";
        case Op::kElu: return "formula::elu(" + a + ")";
        case Op::kTanh: return "tanhf(" + a + ")";
        case Op::kSqrt: return "sqrtf(" + a + ")";
        case Op::kAdd: return a + " + " + b;
        case Op::kSubtract: return a + " - " + b;
        case Op::kMultiply: return a + " * " + b;
        case Op::kDivide: return a + " / " + b;
        case Op::kMin: return "formula::smaller(" + a + ", " + b + ")";
        case Op::kMax: return "formula::larger(" + a + ", " + b + ")";
        default: return "formula::nan()";
    }
}

/// One operand: its norms, innermost first, and the statements of each function.
class OperandWriter {
  public:
    OperandWriter(const Spec& spec, const Expr& expr) : spec_(spec) {
        std::set<const Expr::Node*> seen;
        collect_norms(expr, seen);
        for (const Expr::Node* norm : norms_) {
            normed_.push_back(body(norm->args[0].node(), kIndent + 4));
        }
        value_ = body(expr.node(), kIndent);
    }

    [[nodiscard]] std::string text(const char* name) const {
        std::string out = fmt::format(
            "    struct {} {{\n        static constexpr int kNorms = {};\n", name, norms_.size());
        if (!norms_.empty()) {
            out +=
                "        template <int kNorm, class At>\n"
                "        __device__ static float normed(const At& at) {\n";
            for (std::size_t i = 0; i < normed_.size(); ++i) {
                out += fmt::format("            if constexpr (kNorm == {}) {{\n{}            }}\n",
                                   i, normed_[i]);
            }
            out += "        }\n";
        }
        return out +
               "        template <class At>\n"
               "        __device__ static float value([[maybe_unused]] const At& at) {\n" +
               value_ + "        }\n    };\n";
    }

  private:
    static constexpr int kIndent = 12;  // of a function of an operand's struct

    void collect_norms(const Expr& expr, std::set<const Expr::Node*>& seen) {
        const Expr::Node& node = expr.node();
        if (!seen.insert(&node).second) return;
        for (const Expr& arg : node.args) collect_norms(arg, seen);
        if (node.op == Op::kL2Norm) norms_.push_back(&node);
    }

    [[nodiscard]] std::size_t norm_number(const Expr::Node& node) const {
        return static_cast<std::size_t>(std::find(norms_.begin(), norms_.end(), &node) -
                                        norms_.begin());
    }

    /// Statements that compute a node, each node once, and return it.
    [[nodiscard]] std::string body(const Expr::Node& node, int indent) const {
        std::map<const Expr::Node*, std::string> names;
        std::string statements;
        const std::string result = write(node, indent, names, statements);
        return fmt::format("{}{:{}}return {};\n", statements, "", indent, result);
    }

    std::string write(const Expr::Node& node, int indent,
                      std::map<const Expr::Node*, std::string>& names,
                      std::string& statements) const {
        const auto known = names.find(&node);
        if (known != names.end()) return known->second;
        const std::string a =
            node.args.empty() ? "" : write(node.args[0].node(), indent, names, statements);
        const std::string b =
            node.args.size() < 2 ? "" : write(node.args[1].node(), indent, names, statements);
        std::string name = fmt::format("x{}", names.size());
        statements +=
            fmt::format("{:{}}const float {} = {};\n", "", indent, name, text(node, a, b));
        names.emplace(&node, name);
        return name;
    }

    [[nodiscard]] std::string text(const Expr::Node& node, const std::string& a,
                                   const std::string& b) const {
        switch (node.op) {
            case Op::kConstant: return number_text(static_cast<float>(node.value));
            case Op::kInput:
                if (node.name == "o") return "at.o()";
                return fmt::format("at.input({})", input_number(spec_, node.name));
            case Op::kParameter:
                return fmt::format("at.parameter({})", parameter_number(spec_, node.name));
            case Op::kHead: return "at.head_index()";
            case Op::kNumHeads: return "at.num_heads()";
            case Op::kL2Norm: return fmt::format("{} * at.norm({})", a, norm_number(node));
            default: return operation(node.op, a, b);
        }
    }

    const Spec& spec_;
    std::vector<const Expr::Node*> norms_;
    std::vector<std::string> normed_;
    std::string value_;
};

/// The operands that a kernel evaluates, by the names that the text gives them.
std::vector<std::pair<const char*, const Expr*>> operands(const Spec& spec) {
    std::vector<std::pair<const char*, const Expr*>> list = {
        {"Query", &spec.q}, {"Key", &spec.k}, {"Value", &spec.v}, {"Output", &spec.output}};
    if (spec.decay() != Decay::kNone) list.emplace_back("LogDecay", &*spec.log_decay);
    if (spec.beta) list.emplace_back("Beta", &*spec.beta);
    if (spec.rank_one_a) list.emplace_back("RankOneA", &*spec.rank_one_a);
    if (spec.rank_one_b) list.emplace_back("RankOneB", &*spec.rank_one_b);
    return list;
}

const char* enumerator(Update update) {
    switch (update) {
        case Update::kAdditive: return "kAdditive";
        case Update::kDelta: return "kDelta";
        default: return "kRankOne";
    }
}

const char* enumerator(Decay decay) {
    switch (decay) {
        case Decay::kNone: return "kNone";
        case Decay::kConstant: return "kConstant";
        case Decay::kScalar: return "kScalar";
        default: return "kVector";
    }
}

void append_bytes(std::string& key, const void* data, std::size_t bytes) {
    key.append(static_cast<const char*>(data), bytes);
}

void append_number(std::string& key, int number) { append_bytes(key, &number, sizeof number); }

/// Prefix order: an operation's arity is known, so no two trees read the same. `seen` makes shared
/// nodes, which the text computes once, part of the identity.
void append_tree(std::string& key, const Spec& spec, const Expr& expr,
                 std::vector<const Expr::Node*>& seen) {
    const Expr::Node& node = expr.node();
    const auto at = std::find(seen.begin(), seen.end(), &node);
    constexpr char kSeen = '\xff';
    if (at != seen.end()) {
        key += kSeen;
        append_number(key, static_cast<int>(at - seen.begin()));
        return;
    }
    seen.push_back(&node);
    key += static_cast<char>(node.op);
    switch (node.op) {
        case Op::kConstant: {
            const auto value = static_cast<float>(node.value);
            append_bytes(key, &value, sizeof value);
            break;
        }
        case Op::kInput:
            append_number(key, node.name == "o" ? -1 : input_number(spec, node.name));
            break;
        case Op::kParameter: append_number(key, parameter_number(spec, node.name)); break;
        default: break;
    }
    for (const Expr& arg : node.args) append_tree(key, spec, arg, seen);
}

}  // namespace

std::string emit_formulas(const Spec& spec) {
    std::string text = fmt::format(
        "struct Formulas {{\n"
        "    static constexpr formula::Update kUpdate = formula::Update::{};\n"
        "    static constexpr formula::Decay kDecay = formula::Decay::{};\n"
        "    static constexpr bool kNormalize = {};\n"
        "    static constexpr int kInputs = {};\n\n",
        enumerator(spec.update), enumerator(spec.decay()), spec.normalize, spec.inputs.size());
    for (const auto& [name, expr] : operands(spec)) text += OperandWriter(spec, *expr).text(name);
    return text + "};\n";
}

std::string formulas_key(const Spec& spec) {
    std::string key;
    key.reserve(256);
    key += static_cast<char>(spec.update);
    key += static_cast<char>(spec.decay());
    key += spec.normalize ? '\1' : '\0';
    append_number(key, static_cast<int>(spec.inputs.size()));
    for (const auto& [name, expr] : operands(spec)) {
        std::vector<const Expr::Node*> seen;
        key += name[0];
        append_tree(key, spec, *expr, seen);
    }
    return key;
}

}  // namespace sluice::cuda
