// What the host passes to the recurrent kernel. Read by both compilers: plain types only.
//
// Strides count elements. Everything about types and strides is decided at run time: one kernel
// serves all memory layouts of a spec.
#pragma once

namespace sluice::recurrent {

constexpr int kMaxInputs = 32;
constexpr int kMaxParameters = 32;
constexpr int kMaxKeys = 256;

constexpr int kThreads = 128;  // of a block
constexpr int kColumns = 4;    // value channels of a thread

enum NumberType : int { kFloat32, kBFloat16, kFloat16 };

/// An input or the output: element (batch, token, key head, value head, channel).
struct Tensor {
    void* data;
    long long batch_stride, token_stride, key_head_stride, head_stride, channel_stride;
    int type;  // NumberType
};

/// Which elements of a state four at a time are one aligned load.
enum Quads : int { kNoQuads, kKeyQuads, kValueQuads };

/// A pool of states: element (slot, head, key, value).
struct StateTensor {
    void* data;  // null: none
    long long slots, slot_stride, head_stride, key_stride, value_stride;
    int type;   // NumberType
    int quads;  // Quads
};

/// int32 or int64, a vector or a matrix.
struct IndexTensor {
    const void* data;  // null: none
    long long row_stride, column_stride;
    long long columns;
    int is_64_bit;
};

struct Params {
    Tensor inputs[kMaxInputs];  // in the spec's order
    Tensor o;
    StateTensor initial, final, checkpoints;
    StateTensor initial_key_sum, final_key_sum;  // value_stride unused
    IndexTensor cu_seqlens;                      // none: one sequence per batch row
    IndexTensor read_slots, write_slots, accepted;
    IndexTensor checkpoint_sequences, checkpoint_positions, checkpoint_slots;
    long long checkpoint_count;
    const unsigned char* has_initial;
    long long has_initial_stride;
    float parameters[kMaxParameters];  // in the order of their names
    long long tokens;                  // T
    int heads;                         // HV
    int heads_per_key_head;
    int keys, values;     // K, V
    int value_tiles;      // of a head
    int tiles_per_block;  // 1, or all: key sums in place are written after every tile has read them
    int writes_every_token;  // write_slots is [N, T]
    int padding;             // a sequence without a slot to read or to write is padding
    float scale;
};

}  // namespace sluice::recurrent
