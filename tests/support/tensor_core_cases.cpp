#include "support/tensor_core_cases.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <ostream>
#include <set>
#include <utility>

#include "measure/workloads.hpp"
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

Case with_heads(Case c, std::int64_t key_heads, std::int64_t value_heads) {
    c.dims.H = key_heads;
    c.dims.HV = value_heads;
    c.seed = mix_seed(c.seed, static_cast<std::uint64_t>(1000 * key_heads + value_heads));
    return c;
}

void pack(Case& c, std::vector<std::int64_t> lengths, Packing packing) {
    c.packing = packing;
    c.dims.B = 1;
    c.dims.T = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    c.dims.N = std::ssize(lengths);
    c.lengths = std::move(lengths);
}

std::vector<Case> model_cases(const std::string& op, const std::string& form, std::int64_t tokens) {
    std::set<std::array<std::int64_t, 4>> shapes;
    for (const measure::Workload& workload : measure::workloads()) {
        for (const std::int64_t devices : {1, 8}) {
            try {
                const measure::WorkloadShape shape = measure::shape_of(workload, devices);
                if (shape.op == op) shapes.insert({shape.H, shape.HV, shape.K, shape.V});
            } catch (const Error&) {  // not of the family, or heads that do not divide
            }
        }
    }
    std::vector<Case> list;
    for (const auto& [key_heads, value_heads, keys, values] : shapes) {
        list.push_back(
            with_heads(tensor_core_case(form, tokens, keys, values), key_heads, value_heads));
    }
    return list;
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
