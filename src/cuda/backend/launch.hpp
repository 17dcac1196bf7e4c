// What the methods of the tensor-core kernels share: the calls that none of them takes, split
// sequences, a problem as kernels' parameters, and the launch.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "cuda/engine/kernel.hpp"
#include "cuda/sm90/common/params.cuh"
#include "sluice/plan.hpp"
#include "sluice/problem.hpp"

namespace sluice::cuda {

inline constexpr int kChunk = 64;             // tokens
inline constexpr int kValueTile = 64;         // value channels of a warpgroup
inline constexpr int kBlockKeys = 128;        // key channels of a block, at least
inline constexpr int kMostSegments = 32;      // of a sequence
inline constexpr double kMemoryShare = 0.92;  // of the copy rate that bulk copies reach
inline constexpr std::int64_t kMostBlocks = std::numeric_limits<int>::max();  // of a launch

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}
[[nodiscard]] inline std::int64_t stride(const BoundInput& x, Axis axis) {
    return x.stride[static_cast<std::size_t>(axis)];
}

// ---- what is refused ----------------------------------------------------------------------------
// Each says why; empty: nothing is wrong.

/// Phase, precision, algorithm and sizes that no tensor-core kernel takes, or not this one: K above
/// `most_keys`.
[[nodiscard]] std::string refuse_call(const Problem& problem, std::int64_t most_keys);
/// An input that bulk copies read, or the output.
[[nodiscard]] std::string refuse_operand(const BoundInput& x, std::initializer_list<Axis> axes,
                                         const Dims& dims);
[[nodiscard]] std::string refuse_states(const Problem& problem);

// ---- split sequences ----------------------------------------------------------------------------

/// Of a sequence. Those of packed input are taken to be equally long: their lengths are on the
/// device.
[[nodiscard]] std::int64_t chunks_of(const Dims& dims);
/// Results depend on the split, which batch_invariant therefore forbids.
[[nodiscard]] int most_segments(const Problem& problem);

/// Workspace: the segments' states, then their decays. Zero bytes for a single segment.
struct SegmentBytes {
    std::int64_t states = 0, decays = 0;
    [[nodiscard]] std::int64_t total() const noexcept { return states + decays; }
};
/// `state`, `decays`: float32 numbers of a head's segment.
[[nodiscard]] SegmentBytes segment_bytes(const Dims& dims, int segments, std::int64_t state,
                                         std::int64_t decays);

/// A plan of another problem would send kernels outside its workspace.
void require_segments(const Plan& plan, std::int64_t workspace_bytes);
[[noreturn]] void refuse_plan(const std::string& what);

// ---- a problem as parameters --------------------------------------------------------------------

[[nodiscard]] sm90::NumberType number_type(DType dtype);
[[nodiscard]] sm90::Indices indices_of(const DeviceIndices& from);
[[nodiscard]] sm90::StateTensor state_of(const BoundState& from, const DeviceIndices& indices);

/// What every kernel's Params have: sequences, states, the output's rows, and sizes.
template <class Params>
void set_call(Params& p, const Problem& problem) {
    const auto& indices = problem.indices;
    p.cu_seqlens = indices_of(indices.cu_seqlens);
    p.initial = state_of(problem.initial, indices.read_slots);
    p.final = state_of(problem.final, indices.write_slots);
    p.has_initial = static_cast<const unsigned char*>(indices.has_initial.data);
    p.has_initial_stride = indices.has_initial.strides[0];
    p.checkpoints = state_of(problem.checkpoints, indices.checkpoint_slots);
    p.checkpoint_sequences = indices_of(indices.checkpoint_sequences);
    p.checkpoint_positions = indices_of(indices.checkpoint_positions);
    p.checkpoint_count = static_cast<int>(indices.checkpoint_slots.extents[0]);
    p.o_data = problem.o.data;
    p.o_token_stride = stride(problem.o, Axis::kT);
    p.o_head_stride = stride(problem.o, Axis::kHV);
    const Dims& d = problem.dims;
    p.tokens = static_cast<int>(d.T);
    p.heads = static_cast<int>(d.HV);
    p.heads_per_key_head = static_cast<int>(d.HV / d.H);
    p.keys = static_cast<int>(d.K);
    p.values = static_cast<int>(d.V);
    p.scale = static_cast<float>(problem.scale);
}

template <class Params>
void set_segments(Params& p, int segments, const SegmentBytes& bytes, void* workspace) {
    p.segments = segments;
    if (segments == 1) return;
    auto* at = static_cast<char*>(workspace);
    p.segment_state = reinterpret_cast<float*>(at);
    p.segment_decay = reinterpret_cast<float*>(at + bytes.states);
}

// ---- kernels ------------------------------------------------------------------------------------

/// A family's kernels by GPU and variant: spares the usual call the kernel's text.
template <std::size_t kVariants>
class KernelTable {
  public:
    /// `source()`: the kernel's text.
    template <class Source>
    const Kernel& find(int gpu_index, std::size_t variant, CompilePolicy policy, bool* compiled,
                       Source&& source) {
        constexpr int kGpus = 16;
        static_assert(kGpus == std::tuple_size_v<decltype(kernels_)>);
        const bool held = gpu_index >= 0 && gpu_index < kGpus;
        std::atomic<const Kernel*>* entry =
            held ? &kernels_[static_cast<std::size_t>(gpu_index)][variant] : nullptr;
        if (held) {
            if (const Kernel* known = entry->load(std::memory_order_acquire)) return *known;
        }
        const Kernel& kernel = find_kernel(source(), gpu_index, policy, compiled);
        if (held) entry->store(&kernel, std::memory_order_release);
        return kernel;
    }

  private:
    std::array<std::array<std::atomic<const Kernel*>, kVariants>, 16> kernels_{};
};

/// On the problem's stream, with all shared memory of a multiprocessor.
void launch(const Problem& problem, const Kernel& kernel, std::int64_t blocks, int threads,
            const void* params, Kernel::Start start);

}  // namespace sluice::cuda
