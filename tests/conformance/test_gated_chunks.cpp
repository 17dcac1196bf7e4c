// Gated linear attention in half-width tensors, laid out as models have them: what tensor-core
// kernels are for. The table of cases meets these axes rarely at once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "support/judge.hpp"
#include "support/plain.hpp"

namespace sluice::test {
namespace {

/// The kernel of each back end that must run these cases.
std::string kernel_of(const Judged& backend) {
    return backend.device == DeviceKind::kCuda ? "gla" : "chunked";
}

/// Q, k, v and o in `dtype`, products in bfloat16, chunks of 64.
Case chunked_case(std::int64_t tokens, std::int64_t keys, std::int64_t values, DType dtype) {
    Case c;
    c.form = &find_form("gla");
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

/// The sequences of packed rows; T is their sum.
void pack(Case& c, std::vector<std::int64_t> lengths, Packing packing) {
    c.packing = packing;
    c.dims.B = 1;
    c.dims.T = 0;
    for (const std::int64_t length : lengths) c.dims.T += length;
    c.dims.N = static_cast<std::int64_t>(lengths.size());
    c.lengths = std::move(lengths);
}

std::vector<Case> token_and_channel_counts() {
    std::vector<Case> list;
    for (const auto& [keys, values] :
         {std::pair{64, 64}, {64, 128}, {128, 64}, {128, 128}, {128, 256}, {32, 64}, {96, 80}}) {
        for (const std::int64_t tokens : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 193, 500}) {
            list.push_back(chunked_case(tokens, keys, values, DType::kBFloat16));
        }
    }
    return list;
}

std::vector<Case> gates_of_every_kind_and_type() {
    std::vector<Case> list;
    for (const Gates gates : {Gates::kZero, Gates::kMild, Gates::kStrong, Gates::kSpikes,
                              Gates::kMinusInfinity, Gates::kAllForget, Gates::kOneChannel}) {
        for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
            for (const DType gate_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
                for (const std::int64_t keys : {64, 128}) {
                    Case c = chunked_case(200, keys, 128, dtype);
                    c.kinds.gates = gates;
                    c.gate_dtype = gate_dtype;
                    list.push_back(c);
                }
            }
        }
    }
    return list;
}

std::vector<Case> tensors_of_every_type_and_layout() {
    std::vector<Case> list;
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        for (const Strides strides : {Strides::kContiguous, Strides::kTransposed}) {
            for (const DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
                for (const StateLayout layout :
                     {StateLayout::kKeyFirst, StateLayout::kValueFirst}) {
                    Case c = chunked_case(130, 128, 128, dtype);
                    c.dims.B = c.dims.N = 2;
                    c.dims.H = 2;
                    c.dims.HV = 4;
                    c.strides = strides;
                    c.state_dtype = state;
                    c.layout = layout;
                    c.checkpoints = true;
                    list.push_back(c);
                }
            }
        }
    }
    return list;
}

std::vector<Case> states_in_dense_and_packed_rows() {
    std::vector<Case> list;
    for (int kind = 0; kind < kNumStates; ++kind) {
        for (const Packing packing : {Packing::kDense, Packing::kInt32, Packing::kInt64}) {
            Case c = chunked_case(150, 64, 64, DType::kBFloat16);
            c.states = static_cast<States>(kind);
            c.dims.B = c.dims.N = 3;
            c.dims.H = c.dims.HV = 2;
            if (packing != Packing::kDense) pack(c, {65, 0, 1, 64, 130, 63, 0}, packing);
            // Other slots, other masks, int32 and int64; with and without states at positions.
            for (const bool checkpoints : {false, true}) {
                c.seed += 1;
                c.checkpoints = checkpoints;
                list.push_back(c);
            }
        }
    }
    return list;
}

/// Few sequences and heads, many tokens: where a planner splits a sequence among the processors.
std::vector<Case> long_sequences() {
    std::vector<Case> list;
    for (const Gates gates : {Gates::kMild, Gates::kSpikes, Gates::kMinusInfinity}) {
        for (const std::int64_t tokens : {2048, 4001}) {
            Case c = chunked_case(tokens, 128, 128, DType::kBFloat16);
            c.kinds.gates = gates;
            list.push_back(c);
            pack(c, {tokens / 2, 1, tokens / 3, 70}, Packing::kInt32);
            list.push_back(c);
        }
    }
    return list;
}

struct Group {
    const char* name;
    std::vector<Case> (*cases)();
};
void PrintTo(const Group& group, std::ostream* out) { *out << group.name; }

constexpr Group kGroups[] = {
    {"TokenAndChannelCounts", token_and_channel_counts},
    {"GatesOfEveryKindAndType", gates_of_every_kind_and_type},
    {"TensorsOfEveryTypeAndLayout", tensors_of_every_type_and_layout},
    {"StatesInDenseAndPackedRows", states_in_dense_and_packed_rows},
    {"LongSequences", long_sequences},
};

class GatedChunks : public testing::TestWithParam<std::tuple<Judged, Group>> {};

TEST_P(GatedChunks, AgreeWithTheOracle) {
    const auto& [backend, group] = GetParam();
    SKIP_WITHOUT(backend.name);
    for (const Case& c : group.cases()) {
        if (c.dims.T <= longest_case()) judge(backend, c, kernel_of(backend));
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, GatedChunks,
                         testing::Combine(testing::ValuesIn(judged_backends().begin(),
                                                            judged_backends().end()),
                                          testing::ValuesIn(kGroups)),
                         [](const auto& parameter) {
                             return std::get<0>(parameter.param).name + "_" +
                                    std::get<1>(parameter.param).name;
                         });

// Which kernel a plan names needs no device.
TEST(GatedChunksPlans, NameTheKernelForThem) {
    for (const Judged& backend : judged_backends()) {
        for (const Group& group : kGroups) {
            for (const Case& c : group.cases()) {
                SCOPED_TRACE(backend.name + ": " + c.name());
                const Instance instance(c);
                const Problem problem = problem_on(backend, instance, c.phase);
                const Support support = support_for(backend, problem);
                ASSERT_TRUE(support.ok) << support.reason;
                EXPECT_EQ(plan_for(backend, problem).kernel, kernel_of(backend));
            }
        }
    }
}

}  // namespace
}  // namespace sluice::test
