// Cases for tensor-core kernels: half-width tensors, laid out as models have them. The table of
// cases meets these axes rarely at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/cases.hpp"
#include "support/judged.hpp"

namespace sluice::test {

/// Q, k, v and o in `dtype`, products in bfloat16, chunks of 64; one head, dense states.
[[nodiscard]] Case tensor_core_case(const std::string& form, std::int64_t tokens, std::int64_t keys,
                                    std::int64_t values, DType dtype = DType::kBFloat16);

/// The same with H key heads and HV value heads, and inputs of its own.
[[nodiscard]] Case with_heads(Case c, std::int64_t key_heads, std::int64_t value_heads);

/// The sequences of a packed row; T is their sum.
void pack(Case& c, std::vector<std::int64_t> lengths, Packing packing);

/// A layer of every published model whose recurrence is `op` (data/workloads.json), as it is on one
/// device and on the eighth of it that one of eight has; each shape once.
[[nodiscard]] std::vector<Case> model_cases(const std::string& op, const std::string& form,
                                            std::int64_t tokens);

/// Cases that belong together. `split`: few sequences and heads, many tokens, so that a planner
/// splits each sequence among a GPU's processors.
struct CaseGroup {
    const char* name;
    std::vector<Case> (*cases)();
    bool split = false;
};
void PrintTo(const CaseGroup& group, std::ostream* out);

/// Judges a group on a back end. On the CUDA back end `kernel` must run it.
void judge(const Judged& backend, const CaseGroup& group, const std::string& kernel);
/// What the back end's plans say of the group: needs no device.
void expect_plans(const Judged& backend, const CaseGroup& group, const std::string& kernel);

}  // namespace sluice::test
