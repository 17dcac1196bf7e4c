// Scalar, constant and no decays in half-width tensors: what the tensor-core kernel for them takes.
#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "support/instance.hpp"
#include "support/judge.hpp"
#include "support/tensor_core_cases.hpp"

namespace sluice::test {
namespace {

std::vector<Case> token_and_channel_counts() {
    std::vector<Case> list;
    for (const auto& [keys, values] : {std::pair{64, 64},
                                       {128, 64},
                                       {128, 128},
                                       {16, 8},
                                       {64, 32},
                                       {80, 80},
                                       {96, 192},
                                       {128, 40},
                                       {16, 136}}) {
        for (const std::int64_t tokens : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 193, 500}) {
            for (const char* form : {"mamba2_bias_d", "simple_gla"}) {
                list.push_back(with_heads(tensor_core_case(form, tokens, keys, values), 1, 2));
            }
        }
    }
    return list;
}

// A block of threads takes two value heads of a key head: the last may have one.
std::vector<Case> heads_of_every_group() {
    std::vector<Case> list;
    constexpr std::pair<int, int> kHeads[] = {{1, 1}, {1, 2}, {1, 3},  {1, 5},  {2, 2},   {2, 6},
                                              {3, 9}, {8, 8}, {8, 24}, {8, 56}, {1, 128}, {2, 256}};
    for (const auto& [key_heads, value_heads] : kHeads) {
        for (const char* form : {"mamba2_d_z", "simple_gla", "retention", "linear"}) {
            for (const auto& [keys, values] : {std::pair{16, 16}, {128, 64}, {64, 72}}) {
                if (value_heads > 24 && keys > 16) continue;
                list.push_back(
                    with_heads(tensor_core_case(form, 130, keys, values), key_heads, value_heads));
            }
        }
    }
    return list;
}

std::vector<Case> gates_of_every_kind_and_type() {
    std::vector<Case> list;
    for (const Gates gates : {Gates::kZero, Gates::kMild, Gates::kStrong, Gates::kSpikes,
                              Gates::kMinusInfinity, Gates::kAllForget, Gates::kOneChannel}) {
        for (const char* form : {"simple_gla", "mamba2", "mamba2_bias_d", "mamba2_all",
                                 "mamba2_plain_dt", "user_token_gate"}) {
            for (const DType gate_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
                for (const std::int64_t keys : {64, 128}) {
                    Case c = with_heads(tensor_core_case(form, 200, keys, 64), 1, 3);
                    c.kinds.gates = gates;
                    c.gate_dtype = gate_dtype;
                    list.push_back(c);
                }
            }
        }
    }
    return list;
}

/// What is added to outputs, and what they are multiplied by, in every shape of the kernel.
std::vector<Case> skips_and_gated_outputs() {
    std::vector<Case> list;
    for (const char* form : {"mamba2", "mamba2_bias_d", "mamba2_channel_d", "mamba2_d_z",
                             "mamba2_all", "mamba2_plain_dt"}) {
        for (const std::int64_t keys : {64, 128}) {
            for (const std::int64_t values : {64, 80, 128}) {
                for (const std::int64_t heads : {1, 2, 3}) {
                    for (const std::int64_t tokens : {65, 320}) {
                        list.push_back(
                            with_heads(tensor_core_case(form, tokens, keys, values), 1, heads));
                    }
                }
            }
        }
    }
    return list;
}

std::vector<Case> tensors_of_every_type_and_layout() {
    std::vector<Case> list;
    for (const char* form : {"mamba2_all", "simple_gla", "lightning"}) {
        for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
            for (const Strides strides : {Strides::kContiguous, Strides::kTransposed}) {
                for (const DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
                    for (const StateLayout layout :
                         {StateLayout::kKeyFirst, StateLayout::kValueFirst}) {
                        Case c = with_heads(tensor_core_case(form, 130, 128, 64, dtype), 2, 4);
                        c.dims.B = c.dims.N = 2;
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

/// Keys and queries become bf16 between two products: gates of every size, whole and partial
/// chunks, skips and gated outputs, packed rows.
std::vector<Case> float16_tensors() {
    std::vector<Case> list;
    for (const char* form :
         {"mamba2_all", "mamba2_channel_d", "simple_gla", "retention", "linear"}) {
        for (const auto& [keys, values] : {std::pair{64, 64}, {128, 64}, {128, 128}, {96, 40}}) {
            for (const Gates gates : {Gates::kMild, Gates::kStrong, Gates::kSpikes}) {
                for (const std::int64_t tokens : {1, 64, 65, 320}) {
                    Case c = with_heads(
                        tensor_core_case(form, tokens, keys, values, DType::kFloat16), 1, 3);
                    c.kinds.gates = gates;
                    list.push_back(c);
                }
                Case c = list.back();
                pack(c, {65, 0, 1, 64, 130, 63, 0}, Packing::kInt32);
                list.push_back(c);
            }
        }
    }
    return list;
}

/// Two warpgroups share a state: every kind of decay, skip and gated output, states of every layout
/// and at positions, packed rows, both types.
std::vector<Case> more_than_128_key_channels() {
    std::vector<Case> list;
    for (const char* form :
         {"mamba2_all", "mamba2_channel_d", "simple_gla", "retention", "linear"}) {
        for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
            for (const auto& [keys, values] :
                 {std::pair{256, 64}, {136, 40}, {192, 80}, {248, 128}, {256, 512}}) {
                for (const std::int64_t tokens : {16, 64, 65, 320}) {
                    if (values == 512 && tokens > 65) continue;
                    Case c = with_heads(tensor_core_case(form, tokens, keys, values, dtype), 2, 4);
                    // fp16 does not hold what spikes of time steps and this many keys come to.
                    c.kinds.gates = tokens <= 65               ? Gates::kMild
                                    : dtype == DType::kFloat16 ? Gates::kStrong
                                                               : Gates::kSpikes;
                    c.state_dtype = list.size() % 2 == 0 ? DType::kFloat32 : DType::kBFloat16;
                    c.layout =
                        list.size() % 3 == 0 ? StateLayout::kKeyFirst : StateLayout::kValueFirst;
                    c.checkpoints = true;
                    list.push_back(c);
                }
            }
            Case c = with_heads(tensor_core_case(form, 1, 256, 64, dtype), 1, 2);
            pack(c, {65, 0, 1, 64, 130, 63, 0}, Packing::kInt64);
            list.push_back(c);
        }
    }
    return list;
}

std::vector<Case> states_in_dense_and_packed_rows() {
    std::vector<Case> list;
    for (int kind = 0; kind < kNumStates; ++kind) {
        for (const Packing packing : {Packing::kDense, Packing::kInt32, Packing::kInt64}) {
            for (const char* form : {"mamba2_d_z", "simple_gla", "retention"}) {
                Case c = with_heads(tensor_core_case(form, 150, 64, 64), 2, 6);
                c.states = static_cast<States>(kind);
                c.dims.B = c.dims.N = 3;
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
    for (const char* form : {"mamba2_bias_d", "mamba2_all", "simple_gla", "lightning", "linear"}) {
        const bool gated = find_form(form).gate != GateFormula::kNone;
        for (const Gates gates : {Gates::kMild, Gates::kSpikes, Gates::kMinusInfinity}) {
            if (!gated && gates != Gates::kMild) continue;
            for (const std::int64_t tokens : {2048, 4001}) {
                Case c = with_heads(tensor_core_case(form, tokens, 128, 64), 1, 3);
                c.kinds.gates = gates;
                c.checkpoints = tokens == 2048;
                list.push_back(c);
                pack(c, {tokens - 70, 1, tokens}, Packing::kInt32);
                list.push_back(c);
            }
        }
    }
    return list;
}

/// Shapes that the kernel's other sizes split.
std::vector<Case> long_sequences_of_every_shape() {
    std::vector<Case> list;
    for (const auto& [keys, values] :
         {std::pair{64, 64}, {64, 128}, {128, 128}, {128, 192}, {256, 64}}) {
        for (const std::int64_t heads : {1, 2}) {
            for (const char* form : {"mamba2_bias_d", "simple_gla"}) {
                for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
                    list.push_back(
                        with_heads(tensor_core_case(form, 1500, keys, values, dtype), 1, heads));
                }
            }
        }
    }
    return list;
}

/// So many heads of a group that its scores are computed once for all blocks.
std::vector<Case> groups_of_many_heads() {
    std::vector<Case> list;
    const auto add = [&](Case c) {
        list.push_back(c);
        const std::int64_t tokens = c.dims.T;
        pack(c, {2 * tokens - 65, 1}, Packing::kInt32);
        c.checkpoints = true;
        list.push_back(c);
    };
    for (const Gates gates : {Gates::kZero, Gates::kMild, Gates::kStrong, Gates::kSpikes,
                              Gates::kMinusInfinity, Gates::kAllForget}) {
        Case c = with_heads(tensor_core_case("mamba2_bias_d", 1300, 128, 64), 1, 16);
        c.kinds.gates = gates;
        add(c);
    }
    for (const char* form : {"mamba2", "mamba2_channel_d"}) {
        list.push_back(with_heads(tensor_core_case(form, 1217, 128, 64), 2, 32));
    }
    for (const auto& [keys, values] :
         {std::pair{64, 64}, {80, 64}, {128, 80}, {128, 40}, {256, 64}, {200, 64}}) {
        add(with_heads(tensor_core_case("mamba2_bias_d", 1350, keys, values), 1, 17));
    }
    return list;
}

/// So many blocks of threads that two heads, or two tiles of a head, share one; fewer are spread.
std::vector<Case> many_sequences() {
    struct Setting {
        std::int64_t sequences, heads, values;
        std::vector<const char*> forms;
    };
    const Setting settings[] = {
        {70, 2, 40, {"mamba2_all", "mamba2_d_z", "mamba2_channel_d", "mamba2_plain_dt"}},
        {40, 2, 136, {"mamba2_all", "mamba2_bias_d"}},  // of each of a head's tiles
        {70,
         1,
         72,
         {"mamba2_all", "mamba2_channel_d", "simple_gla", "retention", "linear",
          "linear_normalized"}}};
    std::vector<Case> list;
    for (const auto& [sequences, heads, values, forms] : settings) {
        for (const char* form : forms) {
            Case c = with_heads(tensor_core_case(form, 65, 72, values), 1, heads);
            c.dims.B = c.dims.N = sequences;
            list.push_back(c);
        }
    }
    return list;
}

/// Divided by what queries read of the sum of keys: every shape of the kernel, partial chunks,
/// heads that share keys, states of every kind and type, and in place among the blocks of a head.
std::vector<Case> normalized_outputs() {
    std::vector<Case> list;
    const char* form = "linear_normalized";
    for (const auto& [keys, values] : {std::pair{64, 64},
                                       {128, 64},
                                       {128, 128},
                                       {16, 8},
                                       {80, 136},
                                       {96, 512},
                                       {192, 64},
                                       {256, 192}}) {
        for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
            for (const std::int64_t tokens : {1, 16, 63, 64, 65, 129, 320}) {
                Case c = with_heads(tensor_core_case(form, tokens, keys, values, dtype), 2, 4);
                c.states = list.size() % 2 == 0 ? States::kInPlace : States::kDense;
                list.push_back(c);
            }
            for (const States states : {States::kPool, States::kPoolMasked}) {
                Case c = with_heads(tensor_core_case(form, 1, keys, values, dtype), 1, 2);
                pack(c, {65, 0, 1, 64, 130, 63, 0}, Packing::kInt32);
                c.states = states;
                list.push_back(c);
            }
        }
    }
    for (int kind = 0; kind < kNumStates; ++kind) {
        for (const DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
            for (const std::int64_t values : {64, 192}) {
                Case c = with_heads(tensor_core_case(form, 150, 64, values), 2, 2);
                c.states = static_cast<States>(kind);
                c.state_dtype = state;
                c.dims.B = c.dims.N = 3;
                list.push_back(c);
                pack(c, {65, 0, 1, 64, 130, 63, 0}, Packing::kInt64);
                c.seed += 1;
                list.push_back(c);
            }
        }
    }
    for (const Keys keys : {Keys::kNormalized, Keys::kCorrelated, Keys::kIdentical, Keys::kFour}) {
        Case c = with_heads(tensor_core_case(form, 500, 128, 128), 1, 1);
        c.kinds.keys = keys;
        list.push_back(c);
    }
    return list;
}

/// The same where sequences are split: each segment has a sum of its own.
std::vector<Case> long_normalized_sequences() {
    std::vector<Case> list;
    for (const auto& [keys, values] :
         {std::pair{64, 64}, {64, 128}, {128, 128}, {128, 192}, {256, 64}}) {
        for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
            for (const States states : {States::kFinal, States::kInPlace, States::kMasked}) {
                Case c = with_heads(
                    tensor_core_case("linear_normalized", 1500, keys, values, dtype), 1, 2);
                c.states = states;
                list.push_back(c);
            }
            Case c = list.back();
            pack(c, {2100, 0, 1, 3900}, Packing::kInt32);
            c.states = States::kPoolMasked;
            list.push_back(c);
        }
    }
    return list;
}

/// Granite 4, Nemotron-H, Falcon-H1, Zamba2, MiniMax, Ring, RetNet, ...
std::vector<Case> layers_of_models() {
    std::vector<Case> list = model_cases("mamba2", "mamba2_bias_d", 130);
    for (const char* form : {"lightning", "retention"}) {
        const std::vector<Case> more = model_cases(form, form, 130);
        list.insert(list.end(), more.begin(), more.end());
    }
    return list;
}

constexpr CaseGroup kGroups[] = {
    {"TokenAndChannelCounts", token_and_channel_counts},
    {"HeadsOfEveryGroup", heads_of_every_group},
    {"GatesOfEveryKindAndType", gates_of_every_kind_and_type},
    {"SkipsAndGatedOutputs", skips_and_gated_outputs},
    {"TensorsOfEveryTypeAndLayout", tensors_of_every_type_and_layout},
    {"Float16Tensors", float16_tensors},
    {"MoreThan128KeyChannels", more_than_128_key_channels},
    {"StatesInDenseAndPackedRows", states_in_dense_and_packed_rows},
    {"ManySequences", many_sequences},
    {"GroupsOfManyHeads", groups_of_many_heads, true},
    {"LayersOfModels", layers_of_models},
    {"LongSequences", long_sequences, true},
    {"LongSequencesOfEveryShape", long_sequences_of_every_shape, true},
    {"NormalizedOutputs", normalized_outputs},
    {"LongNormalizedSequences", long_normalized_sequences, true},
};

class ScalarChunks : public testing::TestWithParam<std::tuple<Judged, CaseGroup>> {};

TEST_P(ScalarChunks, AgreeWithTheOracle) {
    const auto& [backend, group] = GetParam();
    SKIP_WITHOUT(backend.name);
    judge(backend, group, "scalar");
}

INSTANTIATE_TEST_SUITE_P(Backends, ScalarChunks,
                         testing::Combine(testing::ValuesIn(judged_backends().begin(),
                                                            judged_backends().end()),
                                          testing::ValuesIn(kGroups)),
                         [](const auto& parameter) {
                             return std::get<0>(parameter.param).name + "_" +
                                    std::get<1>(parameter.param).name;
                         });

// Which kernel a plan names needs no device.
TEST(ScalarChunksPlans, NameTheKernelForThem) {
    for (const CaseGroup& group : kGroups) expect_plans(find_judged("cuda"), group, "scalar");
}

// A workspace of more than the segments' states and decays.
TEST(ScalarChunksPlans, ShareTheScoresOfManyHeads) {
    for (const Case& c : groups_of_many_heads()) {
        SCOPED_TRACE(c.name());
        const Instance instance(c);
        const Problem problem = problem_on(find_judged("cuda"), instance, c.phase);
        const Plan plan = plan_for(find_judged("cuda"), problem);
        const std::int64_t keys = c.dims.K <= 64 ? 64 : c.dims.K <= 128 ? 128 : 256;
        const std::int64_t values =
            (c.dims.V + plan.value_tile - 1) / plan.value_tile * plan.value_tile;
        const std::int64_t segments =
            c.dims.N * c.dims.HV * plan.segments * (keys * values + 1) * 4;
        EXPECT_GE(plan.workspace_bytes, segments + c.dims.T / 64 * c.dims.H * 8192);
    }
}

TEST(ScalarChunksPlans, GiveManySequencesFewerBlocks) {
    for (const Case& c : many_sequences()) {
        SCOPED_TRACE(c.name());
        const Instance instance(c);
        const Problem problem = problem_on(find_judged("cuda"), instance, c.phase);
        const Plan plan = plan_for(find_judged("cuda"), problem);
        const std::int64_t alone = c.dims.N * c.dims.HV * ((c.dims.V + 63) / 64);
        EXPECT_EQ(plan.tasks, alone / 2);
    }
}

}  // namespace
}  // namespace sluice::test
