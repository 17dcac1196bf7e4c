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
/// indices), oldest first.
struct ShortConvArguments {
    TensorView x;                          // [B, T, D]
    TensorView weight;                     // [D, W]
    TensorView y;                          // output, [B, T, D]; may be x itself
    std::optional<TensorView> bias;        // [D]
    std::optional<TensorView> cu_seqlens;  // as in Arguments
    std::optional<TensorView> initial;     // state read
    std::optional<TensorView> final;       // state written; may be `initial` itself
    std::optional<TensorView> read_slots;  // as in StateArguments
    std::optional<TensorView> write_slots;
    std::optional<TensorView> has_initial;
    Activation activation = Activation::kNone;
};

/// Throws Error before anything is written. float32 arithmetic (float64 if all tensors are
/// float64).
void short_conv(const ShortConvArguments& arguments, const Options& options = {});

}  // namespace sluice
