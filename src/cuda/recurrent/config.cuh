// Sizes of the recurrent kernel, by what the host defines (recurrent_kernel.cpp).
#pragma once

#include "recurrent/params.cuh"

namespace sluice::recurrent {

struct Config {
    static constexpr int kKeys = SLUICE_KEYS;    // K padded
    static constexpr int kLanes = SLUICE_LANES;  // threads that share columns
    static constexpr int kWarps = kThreads / 32;
    static constexpr int kRows = kKeys / kLanes;  // keys of a thread, in quads
    static constexpr int kQuads = kRows / 4;
    static constexpr int kValues = kThreads / kLanes * kColumns;
    static constexpr int kTokens = kKeys <= 128 ? 16 : 8;  // staged together
    static constexpr int kBlocksPerMultiprocessor = kKeys <= 128 ? 3 : 2;

    static_assert(kKeys % (4 * kLanes) == 0 && kLanes % kColumns == 0 && 32 % kLanes == 0);
};

}  // namespace sluice::recurrent
