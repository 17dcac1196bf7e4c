#include "cuda/backend/scalar_form.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "spec/axes.hpp"
#include "spec/expr_nodes.hpp"

namespace sluice::cuda {

namespace {

bool is(const Expr& e, Op op) { return e.node().op == op; }
const Expr& argument(const Expr& e, std::size_t i) { return e.node().args[i]; }

/// Whether two expressions are the same formula.
bool same(const Expr& a, const Expr& b) {
    const Expr::Node& x = a.node();
    const Expr::Node& y = b.node();
    if (&x == &y) return true;
    return x.op == y.op && x.value == y.value && x.name == y.name &&
           std::equal(x.args.begin(), x.args.end(), y.args.begin(), y.args.end(), same);
}

unsigned bits_of(std::initializer_list<Axis> axes) { return axis_bits(axes); }

/// The input that `e` is, if its axes are among `axes`.
const Input* input_within(const Spec& spec, const Expr& e, unsigned axes) {
    if (!is(e, Op::kInput)) return nullptr;
    const Input* input = spec.find_input(e.node().name);
    return input != nullptr && (axis_bits(input->axes) & ~axes) == 0 ? input : nullptr;
}

/// Tries both orders of a commutative operation's operands.
template <class F>
bool either_order(const Expr& e, Op op, F&& matches) {
    if (!is(e, op)) return false;
    return matches(argument(e, 0), argument(e, 1)) || matches(argument(e, 1), argument(e, 0));
}

/// A number known without tensors or heads.
std::optional<double> number(const Spec& spec, const Expr& e) {
    if (is(e, Op::kConstant)) return e.node().value;
    if (!is(e, Op::kParameter)) return std::nullopt;
    const auto at = spec.parameters.find(e.node().name);
    if (at == spec.parameters.end()) return std::nullopt;
    return at->second;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool match_limit(const Spec& spec, Expr& step, Op op, double* limit) {
    std::optional<Expr> inner;
    either_order(step, op, [&](const Expr& a, const Expr& b) {
        const auto value = number(spec, b);
        if (value) {
            inner = a;
            *limit = *value;
        }
        return value.has_value();
    });
    if (inner) step = *inner;
    return inner.has_value();
}

/// step = min(max(softplus(time + bias), least), greatest), each part but `time` optional.
bool match_step(const Spec& spec, Expr step, ScalarForm& form) {
    const unsigned per_head = bits_of({Axis::kHV});
    const unsigned per_token = bits_of({Axis::kB, Axis::kT, Axis::kHV});
    form.greatest_step = kInfinity;
    form.least_step = -kInfinity;
    match_limit(spec, step, Op::kMin, &form.greatest_step);
    match_limit(spec, step, Op::kMax, &form.least_step);
    if (is(step, Op::kSoftplus)) {
        form.softplus = true;
        form.least_step = std::max(form.least_step, 0.0);
        const Expr inner = argument(step, 0);
        step = inner;
    }
    if (const Input* time = input_within(spec, step, per_token)) {
        form.time = time->name;
        return true;
    }
    return either_order(step, Op::kAdd, [&](const Expr& a, const Expr& b) {
        const Input* time = input_within(spec, a, per_token);
        const Input* bias = input_within(spec, b, per_head);
        if (time == nullptr || bias == nullptr) return false;
        form.time = time->name;
        form.bias = bias->name;
        return true;
    });
}

bool match_rate(const Spec& spec, const Expr& e, ScalarForm& form) {
    const bool negated = is(e, Op::kNegate) && is(argument(e, 0), Op::kExp);
    const Expr& inner = negated ? argument(argument(e, 0), 0) : e;
    const Input* rate = input_within(spec, inner, bits_of({Axis::kHV}));
    if (rate == nullptr) return false;
    form.rate = rate->name;
    form.rate_is_log = negated;
    return true;
}

/// v = step * x, log decay = step * rate.
bool match_time_step(const Spec& spec, ScalarForm& form) {
    return either_order(spec.v, Op::kMultiply, [&](const Expr& step, const Expr& x) {
        if (!is(x, Op::kInput)) return false;
        ScalarForm found = form;
        found.gate = ScalarForm::Gate::kTimeStep;
        found.v = x.node().name;
        // The step first: same() then compares a formula of a few nodes with another.
        const bool matches =
            match_step(spec, step, found) &&
            either_order(*spec.log_decay, Op::kMultiply, [&](const Expr& a, const Expr& b) {
                return same(a, step) && match_rate(spec, b, found);
            });
        if (matches) form = std::move(found);
        return matches;
    });
}

bool match_gate(const Spec& spec, Decay decay, ScalarForm& form) {
    if (decay == Decay::kScalar && match_time_step(spec, form)) return true;
    if (!is(spec.v, Op::kInput)) return false;
    form.v = spec.v.node().name;
    if (decay == Decay::kNone) return true;
    const unsigned per_token = bits_of({Axis::kB, Axis::kT, Axis::kHV});
    if (const Input* given = input_within(spec, *spec.log_decay, per_token)) {
        form.gate = ScalarForm::Gate::kGiven;
        form.given = given->name;
        return true;
    }
    form.gate = ScalarForm::Gate::kConstant;
    return decay == Decay::kConstant && spec.log_decay->inputs().empty();
}

/// o, o + D x, either times silu(z).
bool match_output(const Spec& spec, ScalarForm& form) {
    Expr output = spec.output;
    const unsigned channels = bits_of({Axis::kB, Axis::kT, Axis::kHV, Axis::kV});
    std::optional<Expr> inner;
    either_order(output, Op::kMultiply, [&](const Expr& a, const Expr& b) {
        if (!is(b, Op::kSilu)) return false;
        const Input* z = input_within(spec, argument(b, 0), channels);
        if (z == nullptr) return false;
        form.z = z->name;
        inner = a;
        return true;
    });
    if (inner) output = *inner;
    if (output.is_input("o")) return true;
    return either_order(output, Op::kAdd, [&](const Expr& o, const Expr& skip) {
        return o.is_input("o") &&
               either_order(skip, Op::kMultiply, [&](const Expr& d, const Expr& x) {
                   const Input* input = input_within(spec, d, bits_of({Axis::kHV, Axis::kV}));
                   if (input == nullptr || !x.is_input(form.v)) return false;
                   form.skip = input->name;
                   form.skip_kind = axis_bits(input->axes) & axis_bit(Axis::kV)
                                        ? ScalarForm::Skip::kChannel
                                        : ScalarForm::Skip::kHead;
                   return true;
               });
    });
}

/// A node's value from its operands'.
double apply(const Spec& spec, const Expr::Node& node, int head, int heads, double x, double y) {
    switch (node.op) {
        case Op::kConstant: return node.value;
        case Op::kParameter: return spec.parameters.at(node.name);
        case Op::kHead: return head;
        case Op::kNumHeads: return heads;
        case Op::kNegate: return -x;
        case Op::kExp: return std::exp(x);
        case Op::kLog: return std::log(x);
        case Op::kSoftplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
        case Op::kSigmoid: return 1 / (1 + std::exp(-x));
        case Op::kSilu: return x / (1 + std::exp(-x));
        case Op::kRelu: return std::max(x, 0.0);
        case Op::kElu: return x > 0 ? x : std::expm1(x);
        case Op::kTanh: return std::tanh(x);
        case Op::kSqrt: return std::sqrt(x);
        case Op::kAdd: return x + y;
        case Op::kSubtract: return x - y;
        case Op::kMultiply: return x * y;
        case Op::kDivide: return x / y;
        case Op::kMin: return std::min(x, y);
        case Op::kMax: return std::max(x, y);
        case Op::kInput:
        case Op::kL2Norm: break;
    }
    return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::optional<ScalarForm> find_scalar_form(const Spec& spec, std::string* why) {
    const auto refuse = [&](const char* reason) {
        *why = reason;
        return std::nullopt;
    };
    const Decay decay = spec.decay();
    if (spec.update != Update::kAdditive || decay == Decay::kVector) {
        return refuse("additive updates without a decay per key channel");
    }
    if (spec.normalize && decay != Decay::kNone) {
        return refuse("normalised outputs only without a decay");
    }
    if (!is(spec.q, Op::kInput) || !is(spec.k, Op::kInput)) {
        return refuse("q and k must be inputs as they are");
    }
    ScalarForm form;
    form.q = spec.q.node().name;
    form.k = spec.k.node().name;
    form.normalized = spec.normalize;
    if (!match_gate(spec, decay, form)) {
        return refuse(
            "v must be an input and the log decay an input or a number per head, or both a time "
            "step's products");
    }
    if (form.gate == ScalarForm::Gate::kTimeStep && form.least_step < 0) {
        return refuse("time steps may be negative: they need a softplus or a lower limit of zero");
    }
    if (!match_output(spec, form)) {
        return refuse("the output must be o, or o plus an input times v, or either times silu");
    }
    return form;
}

std::vector<double> values_by_head(const Spec& spec, const Expr& expr, int heads) {
    struct Step {
        const Expr::Node& node;
        std::array<std::size_t, 2> operands;  // by index; those that the operation lacks: any
    };
    const ExprNodes nodes(expr);
    std::vector<Step> steps;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        Step step{nodes[i].node(), {}};
        for (std::size_t a = 0; a < arity(step.node.op); ++a) {
            step.operands[a] = nodes.index(step.node.args[a]);
        }
        steps.push_back(step);
    }
    std::vector<double> of_step(steps.size());
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(heads));
    for (int head = 0; head < heads; ++head) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            const auto& [node, operands] = steps[i];
            of_step[i] = apply(spec, node, head, heads, of_step[operands[0]], of_step[operands[1]]);
        }
        values.push_back(of_step.back());
    }
    return values;
}

}  // namespace sluice::cuda
