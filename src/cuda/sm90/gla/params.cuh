// What the host passes to the GLA kernel. Read by both compilers: plain types only.
#pragma once

#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

namespace sluice::gla {

/// A tensor map (128 opaque bytes) as both compilers see it.
struct alignas(64) Map {
    unsigned long long opaque[16];
};

enum StateType : int { kStateFloat32, kStateBFloat16, kStateFloat16 };

/// A state tensor: element (slot, head, k, v) at the dot product with the strides, in elements.
/// Offsets inside a head are below 2^31 bytes.
struct StateTensor {
    void* data;  // null: none
    long long slot_stride, head_stride;
    int key_stride, value_stride;
    const void* slots;  // slot per sequence (-1: none); null: the sequence's own index
    int type;           // StateType
    int slots_are_64_bit;
};

struct Params {
    Map q, k, v, g, o;  // (channel, head, token, batch), boxes of 64 tokens
    const void* cu_seqlens;  // null: one sequence per batch row
    StateTensor initial, final;
    const unsigned char* has_initial;  // null: all
    float* segment_state;              // workspace: [task][64 x K per warpgroup], fragment order
    float* segment_decay;              // workspace: [sequence x head x segment][K]
    void* o_data;                      // for the rows of a packed sequence's last chunk
    long long o_token_stride, o_head_stride;
    int cu_seqlens_are_64_bit;
    int tokens;  // T
    int heads;   // HV
    int heads_per_key_head;
    int keys, values;  // K, V
    int value_tiles;
    int segments;
    float scale;
};

}  // namespace sluice::gla
