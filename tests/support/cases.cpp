#include "support/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace sluice::test {

const char* to_string(States states) noexcept {
    constexpr const char* kNames[kNumStates] = {"none",          "final",      "dense",
                                                "in-place",      "masked",     "pool",
                                                "pool-in-place", "pool-shift", "pool-masked"};
    return kNames[static_cast<int>(states)];
}

const char* to_string(Packing packing) noexcept {
    constexpr const char* kNames[] = {"dense", "packed-int32", "packed-int64"};
    return kNames[static_cast<int>(packing)];
}

Precision Case::resolved_precision(DeviceKind device) const {
    if (precision != Precision::kAuto) return precision;
    // Per-head parameters have float64 when the tokens have.
    if (dtype == DType::kFloat64 && gate_dtype == DType::kFloat64) return Precision::kFloat64;
    const bool narrow = size_bytes(dtype) == 2;
    return device == DeviceKind::kCuda && narrow ? Precision::kBFloat16 : Precision::kFloat32;
}

bool Case::has_float64() const noexcept {
    const bool states_hold =
        (states != States::kNone || checkpoints) && state_dtype == DType::kFloat64;
    return dtype == DType::kFloat64 || gate_dtype == DType::kFloat64 ||
           o_dtype == DType::kFloat64 || states_hold;
}

Regime Case::regime() const {
    if (form->beta == BetaFormula::kNone) return Regime::kOrdinary;
    const bool repeated = kinds.keys == Keys::kCorrelated || kinds.keys == Keys::kIdentical;
    if (kinds.beta == Beta::kTwo) return Regime::kReflections;
    return repeated && kinds.beta == Beta::kOne ? Regime::kRepeatedKeys : Regime::kOrdinary;
}

std::string Case::name() const {
    std::string text =
        fmt::format("{} {} B{} T{} H{} HV{} K{} V{} N{} {}", form->name, sluice::to_string(phase),
                    dims.B, dims.T, dims.H, dims.HV, dims.K, dims.V, dims.N, to_string(packing));
    if (!lengths.empty()) text += " " + sluice::to_string(lengths);
    text += fmt::format(" {} gates:{} o:{} state:{}", sluice::to_string(dtype),
                        sluice::to_string(gate_dtype), sluice::to_string(o_dtype),
                        sluice::to_string(state_dtype));
    text +=
        fmt::format(" | gates {} keys {} beta {} | states {} {}{} | {}{} |", to_string(kinds.gates),
                    to_string(kinds.keys), to_string(kinds.beta), to_string(states),
                    sluice::to_string(layout), checkpoints ? " checkpoints" : "",
                    to_string(strides), alignment == Alignment::kElement ? "" : " aligned");
    return text + fmt::format(" {} {} chunk {} threads {} seed {:#x}", sluice::to_string(algorithm),
                              sluice::to_string(precision), chunk, threads, seed);
}

namespace {

constexpr int kCasesPerForm = 22;
/// Every fifth case is one of decode: 18 of prefill, more than any axis of a Hand has values.
constexpr int kDecodeEvery = 5;
constexpr std::uint64_t kSeed = 20240607;
/// B T HV K V of one case: keeps the whole table within a minute or so.
constexpr std::int64_t kLargestWork = 5'000'000;

/// Deals the values of an axis in shuffled rounds, so that each comes equally often.
template <class T>
class Deck {
  public:
    Deck(std::vector<T> values, std::uint64_t seed) : values_(std::move(values)), random_(seed) {}
    T next() {
        if (at_ == 0) random_.shuffle(values_);
        const T value = values_[at_];
        at_ = (at_ + 1) % values_.size();
        return value;
    }

  private:
    std::vector<T> values_;
    Random random_;
    std::size_t at_ = 0;
};

template <class T, std::size_t N>
std::vector<T> list(const T (&values)[N]) {
    return {std::begin(values), std::end(values)};
}

template <class A, class B>
std::vector<std::pair<A, B>> products(const std::vector<A>& as, const std::vector<B>& bs) {
    std::vector<std::pair<A, B>> pairs;
    for (const A& a : as) {
        for (const B& b : bs) pairs.emplace_back(a, b);
    }
    return pairs;
}

constexpr Keys kAllKeys[] = {Keys::kRandom, Keys::kNormalized, Keys::kCorrelated, Keys::kIdentical,
                             Keys::kFour};
constexpr Beta kAllBetas[] = {Beta::kRandom, Beta::kOne, Beta::kTwo};

/// The axes that each form meets in full. A form's prefill cases are dealt from a hand of its own,
/// so that no value goes to other forms only; the decode cases of all forms share one.
struct Hand {
    explicit Hand(std::uint64_t seed)
        : tokens(list(kTokenCounts), mix_seed(seed, 1)),
          gates({Gates::kZero, Gates::kMild, Gates::kStrong, Gates::kSpikes, Gates::kMinusInfinity,
                 Gates::kAllForget, Gates::kOneChannel},
                mix_seed(seed, 2)),
          keys(list(kAllKeys), mix_seed(seed, 3)),
          keys_and_betas(products(list(kAllKeys), list(kAllBetas)), mix_seed(seed, 4)),
          states({States::kNone, States::kFinal, States::kDense, States::kInPlace, States::kMasked,
                  States::kPool, States::kPoolInPlace, States::kPoolShift, States::kPoolMasked},
                 mix_seed(seed, 5)),
          packings({Packing::kDense, Packing::kInt32, Packing::kInt64}, mix_seed(seed, 6)),
          strides({Strides::kContiguous, Strides::kTransposed, Strides::kSliced, Strides::kPadded,
                   Strides::kInterleaved, Strides::kReversed, Strides::kExpanded},
                  mix_seed(seed, 7)) {}

    Deck<std::int64_t> tokens;
    Deck<Gates> gates;
    Deck<Keys> keys;
    Deck<std::pair<Keys, Beta>> keys_and_betas;
    Deck<States> states;
    Deck<Packing> packings;
    Deck<Strides> strides;
};

class Table {
  public:
    std::vector<Case> make() {
        std::vector<Case> table;
        Hand decode(kSeed);
        for (const Form& form : forms()) {
            Hand prefill(random_.next());
            for (int i = 1; i <= kCasesPerForm; ++i) {
                const bool decodes = i % kDecodeEvery == 0;
                table.push_back(deal(form, decodes ? Phase::kDecode : Phase::kPrefill,
                                     decodes ? decode : prefill));
            }
        }
        return table;
    }

  private:
    Case deal(const Form& form, Phase phase, Hand& hand) {
        Case c;
        c.form = &form;
        c.phase = phase;
        c.seed = random_.next();
        choose_dtypes(c);
        c.poison = random_.chance(0.5) ? Poison::kNaN : Poison::kHuge;
        c.alignment = c.seed >> 32 & 1U ? Alignment::kSixteenBytes : Alignment::kElement;
        c.strides = hand.strides.next();
        c.states = hand.states.next();
        c.layout = random_.chance(0.5) ? StateLayout::kKeyFirst : StateLayout::kValueFirst;
        c.threads = random_.chance(0.25) ? 3 : 1;
        choose_algorithm(c);
        choose_values(c, hand);
        choose_dims(c, hand);
        if (phase == Phase::kPrefill) choose_packing(c, hand);
        c.checkpoints = phase == Phase::kPrefill && c.dims.T >= 64 && !form.make().normalize &&
                        random_.chance(0.5);
        return c;
    }

    void choose_dtypes(Case& c) {
        c.dtype = dtypes_.next();
        c.precision = precisions_.next();
        if (c.dtype == DType::kFloat64 && random_.chance(0.5)) c.precision = Precision::kAuto;
        // The reduced precision's bounds are for inputs that are narrow already.
        if (c.precision == Precision::kBFloat16) {
            c.dtype = random_.chance(0.7) ? DType::kBFloat16 : DType::kFloat16;
        }
        c.gate_dtype = c.dtype == DType::kFloat64 ? c.dtype : gate_dtypes_.next();
        c.o_dtype = random_.chance(0.5) ? c.dtype : o_dtypes_.next();
        c.state_dtype = state_dtypes_.next();
    }

    void choose_algorithm(Case& c) {
        c.algorithm = algorithms_.next();
        // Reduced operands are a mode of the chunked algorithm.
        if (c.algorithm == Algorithm::kRecurrent && c.precision == Precision::kBFloat16) {
            c.algorithm = Algorithm::kChunked;
        }
        c.chunk = c.algorithm == Algorithm::kRecurrent ? 0 : chunks_.next();
    }

    void choose_values(Case& c, Hand& hand) {
        const Spec spec = c.form->make();
        if (c.form->gate != GateFormula::kNone) c.kinds.gates = hand.gates.next();
        if (c.form->beta == BetaFormula::kNone) {
            c.kinds.keys = hand.keys.next();
        } else {
            std::tie(c.kinds.keys, c.kinds.beta) = hand.keys_and_betas.next();
        }
        if (c.kinds.beta == Beta::kTwo) {
            // Reflections are bounded for repeated unit keys without decay only.
            const bool reachable = c.form->beta != BetaFormula::kSigmoid;
            if (!reachable || spec.decay() != Decay::kNone) {
                c.kinds.beta = Beta::kOne;
            } else if (c.kinds.keys != Keys::kIdentical) {
                c.kinds.keys = Keys::kFour;
            }
        }
        // The reduced precision promises nothing about other mixtures of repeated keys.
        const bool repeated = c.kinds.keys != Keys::kRandom && c.kinds.keys != Keys::kNormalized;
        if (c.precision == Precision::kBFloat16 && spec.update != Update::kAdditive && repeated &&
            c.regime() == Regime::kOrdinary) {
            c.kinds.keys = Keys::kNormalized;
        }
    }

    void choose_dims(Case& c, Hand& hand) {
        Dims& d = c.dims;
        d.K = channels_k_.next();
        d.V = random_.chance(0.3) ? d.K : channels_v_.next();
        const std::int64_t group = groups_.next();
        d.H = 1 + random_.below(3);
        d.HV = d.H * group;
        if (c.phase == Phase::kPrefill) {
            d.B = 1 + random_.below(3);
            d.T = hand.tokens.next();
        } else {
            // Decode: few tokens of more sequences.
            d.B = 3 + random_.below(3);
            d.T = random_.chance(0.5) ? 1 : 1 + random_.below(4);
        }
        // T stays what was dealt; everything else gives way.
        const auto work = [&] { return d.B * d.T * d.HV * d.K * d.V; };
        if (work() > kLargestWork) d.H = 1, d.HV = group;
        if (work() > kLargestWork) d.B = 1;
        while (work() > kLargestWork) {
            std::int64_t& larger = d.K > d.V ? d.K : d.V;
            larger = *(std::find(std::begin(kChannelCounts), std::end(kChannelCounts), larger) - 1);
        }
        d.N = d.B;
    }

    void choose_packing(Case& c, Hand& hand) {
        c.packing = hand.packings.next();
        if (c.packing == Packing::kDense) return;
        c.dims.B = 1;
        c.dims.N = 1 + random_.below(5);
        // Cuts may coincide (an empty sequence) or be one apart (a sequence of one token).
        std::vector<std::int64_t> cuts = {0, c.dims.T};
        for (std::int64_t n = 1; n < c.dims.N; ++n) {
            const std::int64_t any = random_.below(c.dims.T + 1);
            const std::int64_t near = std::min(c.dims.T, cuts.back() + random_.below(2));
            cuts.push_back(random_.chance(0.4) ? near : any);
        }
        std::sort(cuts.begin(), cuts.end());
        for (std::size_t n = 0; n + 1 < cuts.size(); ++n)
            c.lengths.push_back(cuts[n + 1] - cuts[n]);
    }

    Random random_{kSeed};
    Deck<std::int64_t> channels_k_{list(kChannelCounts), kSeed + 2};
    Deck<std::int64_t> channels_v_{list(kChannelCounts), kSeed + 3};
    Deck<std::int64_t> groups_{list(kGroupSizes), kSeed + 4};
    Deck<DType> dtypes_{list(kDTypes), kSeed + 11};
    Deck<DType> gate_dtypes_{{DType::kFloat32, DType::kBFloat16, DType::kFloat16}, kSeed + 12};
    Deck<DType> o_dtypes_{list(kDTypes), kSeed + 13};
    Deck<DType> state_dtypes_{list(kDTypes), kSeed + 14};
    Deck<Algorithm> algorithms_{
        {Algorithm::kChunked, Algorithm::kChunked, Algorithm::kRecurrent, Algorithm::kAuto},
        kSeed + 15};
    Deck<Precision> precisions_{
        {Precision::kAuto, Precision::kFloat32, Precision::kBFloat16, Precision::kFloat64},
        kSeed + 16};
    Deck<int> chunks_{list(kChunks), kSeed + 17};
};

}  // namespace

std::span<const Case> cases() {
    static const std::vector<Case> kTable = Table().make();
    return kTable;
}

}  // namespace sluice::test
