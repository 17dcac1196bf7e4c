#include "support/tensor_core_cases.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <ostream>
#include <utility>

#include "support/instance.hpp"
#include "support/judge.hpp"

namespace sluice::test {

Case tensor_core_case(const std::string& form, std::int64_t tokens, std::int64_t keys,
                      std::int64_t values, DType dtype) {
    Case c;
    c.form = &find_form(form);
    c.dims = {.B = 1, .T = tokens, .H = 1, .HV = 1, .K = keys, .V = values, .N = 1};
    c.dtype = c.o_dtype = dtype;
    c.states = States::kDense;
    c.alignment = Alignment::kSixteenBytes;
    c.algorithm = Algorithm::kChunked;
    c.precision = Precision::kBFloat16;
    c.chunk = 64;
    c.seed = mix_seed(static_cast<std::uint64_t>(tokens * 1000 + keys),
                      static_cast<std::uint64_t>(values));
    return c;
}

void pack(Case& c, std::vector<std::int64_t> lengths, Packing packing) {
    c.packing = packing;
    c.dims.B = 1;
    c.dims.T = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    c.dims.N = std::ssize(lengths);
    c.lengths = std::move(lengths);
}

void PrintTo(const CaseGroup& group, std::ostream* out) { *out << group.name; }

void judge(const Judged& backend, const CaseGroup& group, const std::string& kernel) {
    const bool on_gpu = backend.device == DeviceKind::kCuda;
    bool any = false;
    for (const Case& c : group.cases()) {
        if (c.dims.T > longest_case()) continue;
        any = true;
        judge(backend, c, on_gpu ? kernel : "chunked");
    }
    EXPECT_TRUE(any) << "no case of " << group.name << " has at most " << longest_case()
                     << " tokens";
}

void expect_plans(const Judged& backend, const CaseGroup& group, const std::string& kernel) {
    for (const Case& c : group.cases()) {
        SCOPED_TRACE(backend.name + ": " + c.name());
        const Instance instance(c);
        const Problem problem = problem_on(backend, instance, c.phase);
        const Support support = support_for(backend, problem);
        ASSERT_TRUE(support.ok) << support.reason;
        const Plan plan = plan_for(backend, problem);
        EXPECT_EQ(plan.kernel, kernel);
        if (group.split) {
            EXPECT_GT(plan.segments, 1);
        }
    }
}

}  // namespace sluice::test
