// The recurrent kernel as values: its text, and its parameters for a problem.
#pragma once

#include <cstdint>

#include "cuda/engine/source.hpp"
#include "cuda/recurrent/params.cuh"
#include "sluice/problem.hpp"

namespace sluice::cuda {

/// K as the kernel is compiled for it.
[[nodiscard]] int padded_keys(std::int64_t keys) noexcept;

/// Threads that share four value channels, and value channels of a block.
[[nodiscard]] constexpr int lanes_of(int padded_keys) noexcept {
    return padded_keys < 64 ? padded_keys / 4 : 16;
}
[[nodiscard]] constexpr int value_tile_of(int padded_keys) noexcept {
    return recurrent::kThreads / lanes_of(padded_keys) * recurrent::kColumns;
}

/// The kernel for every problem of a spec whose number of keys is padded to this.
[[nodiscard]] KernelSource recurrent_kernel(const Spec& spec, int keys);

/// For a problem that recurrent_method() supports.
[[nodiscard]] recurrent::Params recurrent_params(const Problem& problem);

/// Sequences x value heads x the parts that a head's value tiles are shared out in.
[[nodiscard]] std::int64_t recurrent_blocks(const Problem& problem) noexcept;

}  // namespace sluice::cuda
