// What the host passes to the kernel for scalar decays. Read by both compilers: plain types only.
#pragma once

#include "sm90/common/params.cuh"

namespace sluice::scalar {

using namespace sm90;

/// A number per token and head.
struct TokenTensor {
    const void* data;
    long long batch_stride, token_stride, head_stride;  // in elements
    int type;                                           // NumberType
};

/// A number per head, or per head and value channel; data null: none.
struct HeadTensor {
    const void* data;
    long long head_stride, channel_stride;  // in elements
    int type;                               // NumberType
};

constexpr int kMostConstants = 256;  // heads with a constant decay

struct Params {
    Map q, k, v, o, z;   // (channel, head, token, batch), boxes of 64 tokens; z: gated outputs
    Indices cu_seqlens;  // none: one sequence per batch row
    StateTensor initial, final;
    const unsigned char* has_initial;  // null: all
    long long has_initial_stride;
    StateTensor checkpoints;
    Indices checkpoint_sequences, checkpoint_positions;
    int checkpoint_count;
    int segments;           // of each sequence; more than one: two launches
    int parts;              // first launch: of a segment, a block each
    int state_tiles;        // of a head in the workspace, 64 value channels each
    float* segment_state;   // workspace: [sequence x head][part][tile][64 x K]
    float* segment_decay;   // workspace: [sequence x head][part]
    unsigned char* scores;  // workspace, if they are shared: [chunk][key head], 8 KB (storage.cuh)
    int state_blocks;       // first launch: blocks of states, before those of shared scores
    int score_blocks;       // first launch: blocks that share a sequence and key head's scores
    void* o_data;           // for the rows of a packed sequence's last chunk
    long long o_token_stride, o_head_stride;
    int tokens;              // T
    int heads;               // HV
    int heads_per_key_head;  // HV / H
    int head_blocks;         // of a key head: its value heads by Config::kHeads, rounded up
    int keys, values;        // K, V
    int value_tiles;         // blocks that share a head
    float scale;             // > 0

    TokenTensor gate;  // Gate::kGiven: log decay; kTimeStep: time step before bias and softplus
    HeadTensor rate;   // kTimeStep: log decay per unit of time
    HeadTensor bias;   // kTimeStep: added to the time step
    HeadTensor skip;   // D
    int rate_is_log;   // the rate is -exp of what `rate` holds
    int softplus;
    float least_step, greatest_step;  // 0 <= least
    float decay[kMostConstants];      // Gate::kConstant: natural log

    // Normalised outputs. Sums of keys: elements (slot, head, k).
    StateTensor initial_key_sum, final_key_sum;
    float* kept_key_sum;     // workspace: the initial one, [sequence x head][K]; null: not kept
    float* part_key_sum;     // workspace: [sequence x head][part][K]
};

}  // namespace sluice::scalar
