#include "cuda/backend/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/backend/tensor_maps.hpp"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

constexpr std::int64_t kLargestValues = 512;
constexpr std::size_t kSharedBytes = std::size_t{227} * 1024;  // as the kernels assert

}  // namespace

std::string refuse_call(const Problem& problem, std::int64_t most_keys) {
    if (problem.phase != Phase::kPrefill) return "prefill only";
    if (problem.precision != Precision::kBFloat16) {
        return fmt::format("precision {}; tensor cores round operands to bfloat16",
                           to_string(problem.precision));
    }
    if (problem.algorithm == Algorithm::kRecurrent) return "a chunked algorithm";
    if (problem.chunk != 0 && problem.chunk != kChunk) return "chunks of 64 tokens";
    const Dims& d = problem.dims;
    if (d.K > most_keys) return fmt::format("K = {}; at most {}", d.K, most_keys);
    if (d.V > kLargestValues || d.V % 8 != 0) {
        return fmt::format("V = {}; a multiple of 8, at most {}", d.V, kLargestValues);
    }
    // Kernels count in 32 bits, and look some chunks ahead.
    constexpr std::int64_t kMostTokens = std::numeric_limits<int>::max() - 16 * kChunk;
    if (d.T > kMostTokens) return fmt::format("T = {}; at most {}", d.T, kMostTokens);
    if (d.B * d.T == 0) return "no tokens";
    if (d.N * d.HV > kMostBlocks / (ceil_div(d.V, kValueTile) * ceil_div(d.K, kBlockKeys))) {
        return fmt::format("{} sequences x {} heads; fewer than 2^31 blocks of threads", d.N, d.HV);
    }
    return {};
}

std::string refuse_operand(const BoundInput& x, std::initializer_list<Axis> axes,
                           const Dims& dims) {
    for (const Axis axis : axes) {
        if (!x.has(axis)) return fmt::format("{} has no axis {}", x.name, to_string(axis));
    }
    return refuse_tensor_map(x, dims);
}

std::string refuse_states(const Problem& problem) {
    for (const BoundState* state : {&problem.initial, &problem.final, &problem.checkpoints,
                                    &problem.initial_key_sum, &problem.final_key_sum}) {
        if (!*state) continue;
        if (state->dtype == DType::kFloat64) return "states must not be float64";
        // The kernels' offsets inside a head are 32 bits wide.
        const double reach =
            std::abs(static_cast<double>(state->stride_k)) * static_cast<double>(problem.dims.K) +
            std::abs(static_cast<double>(state->stride_v)) * static_cast<double>(problem.dims.V);
        if (4 * reach >= std::numeric_limits<int>::max()) return "a state's head spans 2^31 bytes";
    }
    return {};
}

std::int64_t chunks_of(const Dims& dims) {
    return ceil_div(dims.B * dims.T, std::max<std::int64_t>(dims.N, 1) * kChunk);
}

int most_segments(const Problem& problem) {
    constexpr int kLeastChunks = 4;  // of a segment
    if (problem.batch_invariant) return 1;
    return static_cast<int>(
        std::clamp<std::int64_t>(chunks_of(problem.dims) / kLeastChunks, 1, kMostSegments));
}

SegmentBytes segment_bytes(const Dims& dims, int segments, std::int64_t state,
                           std::int64_t decays) {
    if (segments == 1) return {};
    const std::int64_t count = dims.N * dims.HV * segments * static_cast<int>(sizeof(float));
    return {.states = count * state, .decays = count * decays};
}

void refuse_plan(const std::string& what) {
    throw Error(ErrorCode::kValue, "plan", what, "a plan of this back end for this problem");
}

void require_segments(const Plan& plan, std::int64_t workspace_bytes) {
    const bool ok = plan.segments >= 1 && plan.segments <= kMostSegments &&
                    plan.workspace_bytes == workspace_bytes;
    if (!ok) {
        refuse_plan(
            fmt::format("{} segments, {} bytes of workspace", plan.segments, plan.workspace_bytes));
    }
}

sm90::NumberType number_type(DType dtype) {
    return dtype == DType::kFloat32    ? sm90::kFloat32
           : dtype == DType::kBFloat16 ? sm90::kBFloat16
                                       : sm90::kFloat16;
}

sm90::Indices indices_of(const DeviceIndices& from) {
    return {.data = from.data, .stride = from.strides[0], .is_64_bit = from.dtype == DType::kInt64};
}

sm90::StateTensor state_of(const BoundState& from, const DeviceIndices& indices) {
    return {.data = from.data,
            .slots = from.slots,
            .slot_stride = from.stride_slot,
            .head_stride = from.stride_head,
            .key_stride = static_cast<int>(from.stride_k),
            .value_stride = static_cast<int>(from.stride_v),
            .indices = indices_of(indices),
            .type = number_type(from.dtype)};
}

void launch(const Problem& problem, const Kernel& kernel, std::int64_t blocks, int threads,
            const void* params, Kernel::Start start) {
    kernel.launch({.x = static_cast<unsigned>(blocks)}, static_cast<unsigned>(threads),
                  kSharedBytes, static_cast<Stream>(problem.stream), params, start);
}

}  // namespace sluice::cuda
