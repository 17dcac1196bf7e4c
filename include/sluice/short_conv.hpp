// Short depthwise causal convolution over tokens, the layer most hybrid models put before q, k, v.
#pragma once

#include <optional>

#include "sluice/problem.hpp"
#include "sluice/tensor.hpp"

namespace sluice {

enum class Activation : unsigned char { kNone, kSilu };

/// y_t[c] = act(bias[c] + sum_{w < W} x_{t-W+1+w}[c] * weight[c, w]), per sequence, inputs before
/// the sequence's start taken from the state (zero without one). W in 2 ... 4.
///
/// The state of a sequence is its last W - 1 inputs, [N, D, W - 1] (or [slots, D, W - 1] with slot
/// indices, any strides), oldest first. It is read and written by the rules of StateArguments,
/// whose names these are; a call of Phase::kDecode is what step() is there.
struct ShortConvArguments {
    TensorView x;                           // [B, T, D]
    TensorView weight;                      // [D, W]
    TensorView y;                           // output, [B, T, D]; may be x itself
    std::optional<TensorView> bias;         // [D]
    std::optional<TensorView> cu_seqlens;   // as in Arguments
    std::optional<TensorView> initial;      // state read
    std::optional<TensorView> final;        // state written; may be `initial` itself
    std::optional<TensorView> read_slots;   // [N]; decode also [N, M]
    std::optional<TensorView> write_slots;  // [N]; decode also [N, T]
    std::optional<TensorView> has_initial;  // bool [N]
    std::optional<TensorView> accepted;     // [N], decode with 2-D read_slots
    std::optional<TensorView> checkpoints;  // prefill; may be `initial` or `final` itself
    std::optional<TensorView> checkpoint_sequences;
    std::optional<TensorView> checkpoint_positions;
    std::optional<TensorView> checkpoint_slots;
    Activation activation = Activation::kNone;
};

/// Throws Error before anything is written. float32 arithmetic (float64 if all floating tensors are
/// float64). Tensors on the CPU only. In decode a sequence whose read and write slots are all -1 is
/// padding: output zero, nothing else touched.
void short_conv(const ShortConvArguments& arguments, const Options& options = {},
                Phase phase = Phase::kPrefill);

}  // namespace sluice
