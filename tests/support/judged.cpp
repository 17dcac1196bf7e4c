#include "support/judged.hpp"

#include <algorithm>

namespace sluice::test {

namespace {

template <class E>
bool holds(const std::vector<E>& claimed, E wanted) {
    return std::find(claimed.begin(), claimed.end(), wanted) != claimed.end();
}

}  // namespace

bool Judged::takes(const Spec& spec, Precision precision, Phase phase,
                   bool with_checkpoints) const {
    return holds(updates, spec.update) && holds(decays, spec.decay()) &&
           holds(precisions, precision) && holds(phases, phase) &&
           (normalizers || !spec.normalize) && (checkpoints || !with_checkpoints);
}

std::span<const Judged> judged_backends() {
    const std::vector<Update> all_updates = {Update::kAdditive, Update::kDelta, Update::kRankOne};
    const std::vector<Decay> all_decays = {Decay::kNone, Decay::kConstant, Decay::kScalar,
                                           Decay::kVector};
    const std::vector<Precision> all_precisions = {Precision::kFloat32, Precision::kFloat64,
                                                   Precision::kBFloat16};
    const std::vector<Phase> all_phases = {Phase::kPrefill, Phase::kDecode};
    static const std::vector<Judged> kJudged = {
        {"cpu", all_updates, all_decays, all_precisions, all_phases, true, true},
    };
    return kJudged;
}

}  // namespace sluice::test
