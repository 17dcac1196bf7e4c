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

/// An index tensor of one dimension; data null: none.
struct Indices {
    const void* data;
    long long stride;  // in elements
    int is_64_bit;
};

/// A state tensor: element (slot, head, k, v) at the dot product with the strides, in elements.
/// Offsets inside a head are below 2^31 bytes.
struct StateTensor {
    void* data;  // null: none
    long long slots;
    long long slot_stride, head_stride;
    int key_stride, value_stride;
    Indices indices;  // a slot per sequence (final, initial) or entry (checkpoints); none: its own index
    int type;         // StateType
};

struct Params {
    Map q, k, v, g, o;  // (channel, head, token, batch), boxes of 64 tokens
    Indices cu_seqlens;  // none: one sequence per batch row
    StateTensor initial, final;
    const unsigned char* has_initial;  // null: all
    long long has_initial_stride;
    StateTensor checkpoints;
    Indices checkpoint_sequences, checkpoint_positions;
    int checkpoint_count;
    int segments;          // of each sequence; more than one: two launches
    float* segment_state;  // workspace: [sequence x head][segment][value tile][64 x K per warpgroup]
    float* segment_decay;  // workspace: [sequence x head][segment][K]
    void* o_data;          // for the rows of a packed sequence's last chunk
    long long o_token_stride, o_head_stride;
    int tokens;  // T
    int heads;   // HV
    int heads_per_key_head;
    int keys, values;  // K, V
    int value_tiles;
    float scale;
};

}  // namespace sluice::gla
