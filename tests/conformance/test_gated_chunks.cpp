// Gated linear attention in half-width tensors: what the tensor-core kernel for it takes.
#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "support/tensor_core_cases.hpp"

namespace sluice::test {
namespace {

Case chunked_case(std::int64_t tokens, std::int64_t keys, std::int64_t values, DType dtype) {
    return tensor_core_case("gla", tokens, keys, values, dtype);
}

std::vector<Case> token_and_channel_counts() {
    std::vector<Case> list;
    for (const auto& [keys, values] : {std::pair{64, 64},
                                       {64, 128},
                                       {128, 64},
                                       {128, 128},
                                       {128, 256},
                                       {32, 64},
                                       {96, 80},
                                       {136, 64},
                                       {192, 200},
                                       {256, 512}}) {
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
                for (const std::int64_t keys : {64, 128, 256}) {
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
                    for (const std::int64_t keys : {128, 192}) {
                        Case c = chunked_case(130, keys, 128, dtype);
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
    }
    return list;
}

std::vector<Case> states_in_dense_and_packed_rows() {
    std::vector<Case> list;
    for (int kind = 0; kind < kNumStates; ++kind) {
        for (const Packing packing : {Packing::kDense, Packing::kInt32, Packing::kInt64}) {
            for (const auto& [keys, values] : {std::pair{64, 64}, {128, 128}, {256, 64}}) {
                Case c = chunked_case(150, keys, values, DType::kBFloat16);
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
    }
    return list;
}

std::vector<Case> long_sequences() {
    std::vector<Case> list;
    for (const Gates gates : {Gates::kMild, Gates::kSpikes, Gates::kMinusInfinity}) {
        for (const std::int64_t tokens : {2048, 4001}) {
            for (const std::int64_t keys : {64, 128, 256}) {
                Case c = chunked_case(tokens, keys, 128, DType::kBFloat16);
                c.kinds.gates = gates;
                list.push_back(c);
                pack(c, {tokens - 70, 1, tokens}, Packing::kInt32);
                list.push_back(c);
            }
        }
    }
    // Rows that end inside one of the first segments, after whole chunks of it.
    for (const std::int64_t keys : {64, 128, 256}) {
        for (const auto& [dtype, gates] : {std::pair{DType::kBFloat16, DType::kBFloat16},
                                           {DType::kBFloat16, DType::kFloat32},
                                           {DType::kFloat16, DType::kFloat16}}) {
            Case c = chunked_case(3600, keys, 128, dtype);
            c.gate_dtype = gates;
            pack(c, {3600, 200, 450, 130, 64}, Packing::kInt32);
            list.push_back(c);
        }
    }
    return list;
}

std::vector<Case> layers_of_models() { return model_cases("gla", "gla", 130); }

constexpr CaseGroup kGroups[] = {
    {"TokenAndChannelCounts", token_and_channel_counts},
    {"GatesOfEveryKindAndType", gates_of_every_kind_and_type},
    {"TensorsOfEveryTypeAndLayout", tensors_of_every_type_and_layout},
    {"StatesInDenseAndPackedRows", states_in_dense_and_packed_rows},
    {"LayersOfModels", layers_of_models},
    {"LongSequences", long_sequences, true},
};

class GatedChunks : public testing::TestWithParam<std::tuple<Judged, CaseGroup>> {};

TEST_P(GatedChunks, AgreeWithTheOracle) {
    const auto& [backend, group] = GetParam();
    SKIP_WITHOUT(backend.name);
    judge(backend, group, "gla");
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
    for (const CaseGroup& group : kGroups) expect_plans(find_judged("cuda"), group, "gla");
}

}  // namespace
}  // namespace sluice::test
