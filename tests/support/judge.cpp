#include "support/judge.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "support/on_device.hpp"
#include "support/refusal.hpp"

namespace sluice::test {

namespace {

/// The largest error relative to its bound, by back end, kernel, update and precision, over results
/// that their storage does not round.
class Summary : public testing::Environment {
  public:
    void add(const Instance& instance, const Case& c, const Finding& finding) {
        if (finding.rounded) return;
        const Plan& plan = instance.plan();
        auto& worst =
            worst_[fmt::format("{} {} {}/{}", plan.backend, plan.kernel,
                               to_string(instance.spec().update), to_string(plan.precision))];
        const double share =
            std::max(finding.accuracy.whole / finding.bound,
                     finding.accuracy.worst_block / (kBlockAllowance * finding.bound));
        if (share >= worst.first) worst = {share, finding.name + " of " + c.name()};
        ++count_;
    }
    void TearDown() override {
        std::string text;
        for (const auto& [key, worst] : worst_) {
            text += fmt::format("{}{} {:.2g}", text.empty() ? "" : ", ", key, worst.first);
        }
        if (count_ > 0) {
            fmt::print("worst share of the bound over {} results: {}\n", count_, text);
        }
    }

  private:
    std::map<std::string, std::pair<double, std::string>> worst_;
    int count_ = 0;
};

Summary& summary() {
    static auto* const kSummary =
        static_cast<Summary*>(testing::AddGlobalTestEnvironment(new Summary));
    return *kSummary;
}

}  // namespace

Problem problem_on(const Judged& backend, const Instance& instance, Phase phase) {
    const Arguments& here = instance.arguments();
    return bind(instance.spec(), backend.device == DeviceKind::kCuda ? as_if_on_cuda(here) : here,
                instance.options(), phase);
}

bool as_precise_as(Precision planned, Precision wanted) {
    return planned == wanted || (wanted == Precision::kBFloat16 && planned == Precision::kFloat32);
}

std::int64_t longest_case() {
    const char* given = std::getenv("SLUICE_TEST_LONGEST");
    return given == nullptr ? std::numeric_limits<std::int64_t>::max() : std::atoll(given);
}

void judge(const Judged& backend, const Case& c, const std::string& kernel) {
    SCOPED_TRACE(backend.name + ": " + c.name());
    Instance instance(c);
    if (!backend.takes(c, problem_on(backend, instance, c.phase))) {
        const std::string text = refusal([&] { (void)instance.judge(backend.name); });
        EXPECT_TRUE(text.starts_with("unsupported | backend | ")) << text;
        return;
    }
    std::vector<Finding> findings;
    try {
        findings = instance.judge(backend.name);
    } catch (const Error& error) {
        FAIL() << error.what();
    }
    EXPECT_EQ(instance.plan().backend, backend.name);
    if (!kernel.empty()) {
        EXPECT_EQ(instance.plan().kernel, kernel);
    }
    const Precision wanted = c.resolved_precision(backend.device);
    // The CPU has every precision.
    if (backend.device == DeviceKind::kCpu) {
        EXPECT_EQ(instance.plan().precision, wanted);
    } else {
        EXPECT_TRUE(as_precise_as(instance.plan().precision, wanted));
    }
    for (const Finding& finding : findings) {
        summary().add(instance, c, finding);
        EXPECT_TRUE(finding.ok()) << finding.name << ": "
                                  << describe(finding.accuracy, finding.bound);
    }
    for (const std::string& fault : instance.memory_faults()) {
        ADD_FAILURE() << "memory of " << fault << " was written outside its elements";
    }
}

}  // namespace sluice::test
