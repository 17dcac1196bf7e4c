// What the host passes to the GLA kernel. Read by both compilers: plain types only.
#pragma once

#include "sm90/common/params.cuh"

namespace sluice::gla {

using namespace sm90;

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
