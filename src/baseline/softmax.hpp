// Causal softmax attention on the CPU: what linear attention is compared with.
#pragma once

#include <cstdint>
#include <optional>

#include "sluice/tensor.hpp"
#include "sluice/work.hpp"

namespace sluice::baseline {

struct SoftmaxArguments {
    TensorView q;  // [B, T, HV, K]
    TensorView k;  // [B, S, H, K]; HV is a multiple of H, query head h reads head h / (HV / H)
    TensorView v;  // [B, S, H, V]
    TensorView o;  // output, [B, T, HV, V]
};

struct SoftmaxOptions {
    std::optional<double> scale;  // unset: K^-0.5
    int threads = 0;              // 0: all cores; results do not depend on it
};

/// o_i = sum_j softmax_j(scale q_i . k_j) v_j over the keys j <= i + S - T: the last query sees all
/// keys, so that S > T is decoding with a cache. Blocked with an online softmax; float32 arithmetic
/// on any floating dtype in memory. Channels contiguous. Throws Error before anything is written.
void softmax_attention(const SoftmaxArguments& arguments, const SoftmaxOptions& options = {});

/// FLOPs of the two products over the unmasked half, 2 (T S - T^2 / 2) (K + V) per query head; each
/// tensor once.
[[nodiscard]] Work softmax_work(const SoftmaxArguments& arguments);

/// Workspace of a call, over all threads.
[[nodiscard]] std::int64_t softmax_workspace_bytes(const SoftmaxArguments& arguments, int threads);

}  // namespace sluice::baseline
