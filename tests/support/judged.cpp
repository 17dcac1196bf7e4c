#include "support/judged.hpp"

#include <algorithm>
#include <stdexcept>

#include "cuda/backend/method.hpp"
#include "cuda/engine/driver.hpp"
#include "sluice/device.hpp"

namespace sluice::test {

namespace {

template <class E>
bool holds(const std::vector<E>& claimed, E wanted) {
    return std::find(claimed.begin(), claimed.end(), wanted) != claimed.end();
}

/// The CUDA back end's choice; null where none takes the problem.
const cuda::Method* method_for(const Problem& problem) {
    for (const cuda::Method* method :
         {&cuda::gla_method(), &cuda::scalar_method(), &cuda::recurrent_method()}) {
        if (method->supports(problem).ok) return method;
    }
    return nullptr;
}

}  // namespace

bool Judged::takes(const Spec& spec, Precision precision, Phase phase,
                   bool with_checkpoints) const {
    return holds(updates, spec.update) && holds(decays, spec.decay()) &&
           holds(precisions, precision) && holds(phases, phase) &&
           (normalizers || !spec.normalize) && (checkpoints || !with_checkpoints);
}

bool Judged::takes(const Case& c, const Problem& problem) const {
    if (!takes(problem.spec, c.resolved_precision(device), c.phase, c.checkpoints)) return false;
    if (!float64_tensors && c.has_float64()) return false;
    const bool open = !chunks && c.algorithm == Algorithm::kChunked;
    return !open || support_for(*this, problem).ok;
}

Support support_for(const Judged& backend, const Problem& problem) {
    if (backend.device == DeviceKind::kCpu || absence_of(backend.name).empty()) {
        return find_backend(backend.name).supports(problem);
    }
    const cuda::Method* method = method_for(problem);
    return method != nullptr ? Support{true, ""} : cuda::recurrent_method().supports(problem);
}

Plan plan_for(const Judged& backend, const Problem& problem) {
    if (backend.device == DeviceKind::kCpu || absence_of(backend.name).empty()) {
        return find_backend(backend.name).plan(problem, nominal_host());
    }
    Plan plan = method_for(problem)->plan(problem, h200());
    plan.backend = backend.name;
    return plan;
}

std::span<const Judged> judged_backends() {
    const std::vector<Update> all_updates = {Update::kAdditive, Update::kDelta, Update::kRankOne};
    const std::vector<Decay> all_decays = {Decay::kNone, Decay::kConstant, Decay::kScalar,
                                           Decay::kVector};
    const std::vector<Precision> all_precisions = {Precision::kFloat32, Precision::kFloat64,
                                                   Precision::kBFloat16};
    const std::vector<Precision> narrow = {Precision::kFloat32, Precision::kBFloat16};
    const std::vector<Phase> all_phases = {Phase::kPrefill, Phase::kDecode};
    constexpr auto kCpu = DeviceKind::kCpu;
    constexpr auto kCuda = DeviceKind::kCuda;
    static const std::vector<Judged> kJudged = {
        {"cpu", kCpu, all_updates, all_decays, all_precisions, all_phases, true, true},
        {"cuda", kCuda, all_updates, all_decays, narrow, all_phases, true, true, false, false},
    };
    return kJudged;
}

const Judged& find_judged(const std::string& name) {
    for (const Judged& backend : judged_backends()) {
        if (backend.name == name) return backend;
    }
    throw std::invalid_argument("no judged back end is called " + name);
}

std::string absence_of(const std::string& backend) {
    if (backend != "cuda" || cuda::driver_problem().empty()) return {};
    return "no CUDA device: " + cuda::driver_problem();
}

}  // namespace sluice::test
