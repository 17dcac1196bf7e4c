#include "support/values.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace sluice::test {

const char* to_string(Gates gates) noexcept {
    constexpr const char* kNames[] = {"zero", "mild",   "strong",     "spikes",
                                      "-inf", "forget", "one-channel"};
    return kNames[static_cast<int>(gates)];
}

const char* to_string(Keys keys) noexcept {
    constexpr const char* kNames[] = {"random", "normalized", "correlated", "identical", "four"};
    return kNames[static_cast<int>(keys)];
}

const char* to_string(Beta beta) noexcept {
    constexpr const char* kNames[] = {"random", "one", "two"};
    return kNames[static_cast<int>(beta)];
}

std::int64_t extent_of(const Dims& dims, Axis axis) {
    const std::int64_t by_axis[kNumAxes] = {dims.B, dims.T, dims.H, dims.HV, dims.K, dims.V};
    return by_axis[static_cast<int>(axis)];
}

std::vector<std::int64_t> shape_of(const Dims& dims, const std::vector<Axis>& axes) {
    std::vector<std::int64_t> shape;
    for (const Axis axis : axes) shape.push_back(extent_of(dims, axis));
    return shape;
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double log_sigmoid(double x) {
    return x > 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double logit(double p) { return std::log(p) - std::log1p(-p); }
/// The x whose softplus is y.
double inverse_softplus(double y) { return y > 30 ? y : std::log(std::expm1(y)); }

/// Indices of one element, by axis (zero along axes that the tensor does not have).
using Index = std::array<std::int64_t, kNumAxes>;
std::int64_t at(const Index& index, Axis axis) { return index[static_cast<std::size_t>(axis)]; }

/// FNV-1a: std::hash differs between standard libraries.
std::uint64_t hash(const std::string& text) {
    std::uint64_t h = 0xcbf29ce484222325ULL;
    for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return h;
}

bool uses(const Expr& expr, Op op) {
    if (expr.node().op == op) return true;
    return std::any_of(expr.node().args.begin(), expr.node().args.end(),
                       [&](const Expr& arg) { return uses(arg, op); });
}

bool has(const std::vector<Axis>& axes, Axis axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// Calls `f(element, index)` for every element in row-major order.
template <class F>
void for_each_element(const Values& values, const std::vector<Axis>& axes, F&& f) {
    Index index{};
    for (std::size_t i = 0; i < values.data.size(); ++i) {
        f(i, index);
        for (std::size_t d = axes.size(); d-- > 0;) {
            std::int64_t& position = index[static_cast<std::size_t>(axes[d])];
            if (++position < values.shape[d]) break;
            position = 0;
        }
    }
}

class Generator {
  public:
    Generator(const Form& form, const Spec& spec, const Dims& dims, const ValueKinds& kinds,
              std::uint64_t seed)
        : form_(form), spec_(spec), dims_(dims), kinds_(kinds), seed_(seed) {}

    std::map<std::string, Values> all() {
        // Per-head parameters before the raw gates that are chosen with them in hand, and keys
        // before the queries.
        for (const int wanted : {0, 1, 2}) {
            for (const Input& input : spec_.inputs) {
                if (turn(input) == wanted) made_[input.name] = make(input);
            }
        }
        return std::move(made_);
    }

  private:
    [[nodiscard]] int turn(const Input& input) const {
        const bool rate = input.name == "A" && form_.gate == GateFormula::kTimeStep;
        if (input.name == "A_log" || input.name == "dt_bias" || rate) return 0;
        return input.name == "k" || input.name == "B" ? 1 : 2;
    }

    Values make(const Input& input) {
        Random random(mix_seed(seed_, hash(input.name)));
        const std::string& name = input.name;
        if (name == "k" || name == "kappa" || name == "B" || name == "a" || name == "b") {
            return keys(input, random);
        }
        if (name == "q" || name == "C") return queries(input, random);
        if (name == "g") {
            return filled(input,
                          [&](const Index& index) { return log_decay(input, index, random); });
        }
        if (name == "g_raw") return raw_gates(input, random);
        if (name == "A_log") {
            return filled(input, [&](const Index&) { return 0.5 * random.normal(); });
        }
        if (name == "A") {
            return filled(input, [&](const Index& index) { return decay_rate(index, random); });
        }
        if (name == "dt") return filled(input, [&](const Index&) { return time_step(random); });
        if (name == "beta") return filled(input, [&](const Index&) { return beta(random); });
        // A positive skip does not cancel the output of a single token.
        if (name == "D")
            return filled(input, [&](const Index&) { return std::abs(random.normal()); });
        return filled(input, [&](const Index&) { return random.normal(); });
    }

    Values filled(const Input& input, const std::function<double(const Index&)>& value) const {
        Values values{shape_of(dims_, input.axes), {}};
        std::int64_t count = 1;
        for (const std::int64_t extent : values.shape) count *= extent;
        values.data.resize(static_cast<std::size_t>(count));
        for_each_element(values, input.axes,
                         [&](std::size_t i, const Index& index) { values.data[i] = value(index); });
        return values;
    }

    /// Queries lean towards their own token's key: the output of a sequence of one token is then no
    /// difference of nearly equal numbers, which would magnify any rounding.
    Values queries(const Input& input, Random& random) const {
        const Input& key = *spec_.find_input(input.name == "C" ? "B" : "k");
        const Values& keys = made_.at(key.name);
        double square = 0;
        for (const double x : keys.data) square += x * x;
        const double size = std::sqrt(square / static_cast<double>(keys.data.size()));
        return filled(input, [&](const Index& index) {
            const double x = random.normal() + keys.data[offset(key, index)] / size;
            return form_.positive_keys ? std::abs(x) : x;
        });
    }

    /// Where the element at `index` of an input lies; the index may come from a larger tensor.
    std::size_t offset(const Input& input, const Index& index) const {
        std::int64_t offset = 0;
        for (const Axis axis : input.axes) {
            std::int64_t position = at(index, axis);
            const bool by_value_head = !has(input.axes, Axis::kHV) && at(index, Axis::kHV) > 0;
            if (axis == Axis::kH && by_value_head) {
                position = at(index, Axis::kHV) / (dims_.HV / dims_.H);
            }
            offset = offset * extent_of(dims_, axis) + position;
        }
        return static_cast<std::size_t>(offset);
    }

    /// The vector that the keys of one head share, or one of its four.
    double common(const Index& index, std::int64_t which) const {
        std::uint64_t seed = mix_seed(seed_, 77);
        for (const Axis axis : {Axis::kB, Axis::kH, Axis::kHV, Axis::kK}) {
            seed = mix_seed(seed, static_cast<std::uint64_t>(at(index, axis)));
        }
        return Random(mix_seed(seed, static_cast<std::uint64_t>(which))).normal();
    }

    double raw_key(const Index& index, Random& random) const {
        switch (kinds_.keys) {
            case Keys::kRandom:
            case Keys::kNormalized: return random.normal();
            case Keys::kCorrelated:
                return std::sqrt(0.95) * common(index, 0) + std::sqrt(0.05) * random.normal();
            case Keys::kIdentical: return common(index, 0);
            case Keys::kFour: return common(index, at(index, Axis::kT) % 4);
        }
        return 0;
    }

    Values keys(const Input& input, Random& random) const {
        Values values = filled(input, [&](const Index& index) {
            const double x = raw_key(index, random);
            return form_.positive_keys ? std::abs(x) : x;
        });
        const bool stable = spec_.update == Update::kAdditive || form_.normalizes_keys;
        if (kinds_.keys == Keys::kRandom && stable) return values;
        const auto channels = static_cast<std::size_t>(dims_.K);
        // a and b alone make the rank-one form: I + a b^T must not grow, whatever they share.
        const double length = input.name == "a" ? -0.5 : input.name == "b" ? 0.5 : 1.0;
        for (std::size_t row = 0; row + channels <= values.data.size(); row += channels) {
            double sum = 0;
            for (std::size_t c = 0; c < channels; ++c) sum += std::pow(values.data[row + c], 2);
            // Random keys keep their own lengths, about 0.8; the others get exactly one.
            const double scale = kinds_.keys == Keys::kRandom
                                     ? 0.8 / std::sqrt(static_cast<double>(channels))
                                     : 1 / std::sqrt(sum);
            for (std::size_t c = 0; c < channels; ++c) values.data[row + c] *= length * scale;
        }
        return values;
    }

    double log_decay(const Input& input, const Index& index, Random& random) const {
        const double mild = log_sigmoid(random.normal()) / 16;
        switch (kinds_.gates) {
            case Gates::kZero: return 0;
            case Gates::kMild: return mild;
            case Gates::kStrong: return log_sigmoid(random.normal()) * 4;
            case Gates::kSpikes: return random.chance(0.05) ? -1000 : mild;
            case Gates::kMinusInfinity: return random.chance(0.02) ? -kInfinity : mild;
            case Gates::kAllForget: return -1000;
            case Gates::kOneChannel: {
                const bool vector = has(input.axes, Axis::kK);
                const bool chosen = vector ? at(index, Axis::kK) == 1 : at(index, Axis::kHV) == 0;
                return chosen ? log_sigmoid(random.normal()) * 40 : 0;
            }
        }
        return 0;
    }

    /// The raw gate whose formula gives the wanted log decay, as near as the formula can.
    Values raw_gates(const Input& input, Random& random) const {
        return filled(input, [&](const Index& index) {
            const double wanted = log_decay(input, index, random);
            const double rate = std::exp(parameter("A_log", index));
            const double bias = made_.contains("dt_bias") ? parameter("dt_bias", index) : 0;
            if (form_.gate == GateFormula::kBounded) {
                const double bound = spec_.parameters.at("lower_bound");
                const double share = wanted / bound;
                // Past the bound the raw gate saturates the sigmoid.
                const double raw = share >= 1 ? 60 : share <= 0 ? -60 : logit(share);
                return raw / rate - bias;
            }
            return wanted == 0 ? -80 : inverse_softplus(-wanted / rate) - bias;
        });
    }

    double parameter(const char* name, const Index& index) const {
        return made_.at(name).data[offset(*spec_.find_input(name), index)];
    }

    /// Mamba-2's time step multiplies the values too, so the rate carries the strength.
    double time_step(Random& random) const {
        if (kinds_.gates == Gates::kSpikes && random.chance(0.05)) return 60;
        const double x = random.normal();
        return uses(*spec_.log_decay, Op::kSoftplus) ? x - 1 : 0.1 + std::abs(x);
    }

    double decay_rate(const Index& index, Random& random) const {
        const double some = 0.5 + random.uniform();
        switch (kinds_.gates) {
            case Gates::kZero: return 0;
            case Gates::kMild: return -0.1 * some;
            case Gates::kStrong: return -8 * some;
            case Gates::kSpikes: return -0.1 * some - (at(index, Axis::kHV) % 2 == 0 ? 16 : 0);
            case Gates::kMinusInfinity: return at(index, Axis::kHV) == 0 ? -kInfinity : -0.1 * some;
            case Gates::kAllForget: return -4000;
            case Gates::kOneChannel: return at(index, Axis::kHV) == 0 ? -40 : 0;
        }
        return 0;
    }

    double beta(Random& random) const {
        // +40 saturates a sigmoid: exactly 1 in every arithmetic.
        const bool raw =
            form_.beta == BetaFormula::kSigmoid || form_.beta == BetaFormula::kTwiceSigmoid;
        const double random_value = random.normal();
        switch (kinds_.beta) {
            case Beta::kRandom: return raw ? random_value : sigmoid(random_value);
            case Beta::kOne: return form_.beta == BetaFormula::kTwiceSigmoid ? 0 : raw ? 40 : 1;
            case Beta::kTwo: return form_.beta == BetaFormula::kTwiceSigmoid ? 40 : 2;
        }
        return 0;
    }

    const Form& form_;
    const Spec& spec_;
    const Dims& dims_;
    ValueKinds kinds_;
    std::uint64_t seed_;
    std::map<std::string, Values> made_;
};

}  // namespace

std::map<std::string, Values> make_values(const Form& form, const Spec& spec, const Dims& dims,
                                          const ValueKinds& kinds, std::uint64_t seed) {
    return Generator(form, spec, dims, kinds, seed).all();
}

Values normal_values(std::vector<std::int64_t> shape, double size, std::uint64_t seed) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    Values values{std::move(shape), {}};
    Random random(seed);
    for (std::int64_t i = 0; i < count; ++i) values.data.push_back(size * random.normal());
    return values;
}

}  // namespace sluice::test
