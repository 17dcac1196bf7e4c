// What the host passes to every tensor-core kernel. Read by both compilers: plain types only.
#pragma once

namespace sluice::sm90 {

/// A tensor map (128 opaque bytes) as both compilers see it.
struct alignas(64) Map {
    unsigned long long opaque[16];
};

enum NumberType : int { kFloat32, kBFloat16, kFloat16 };

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
    Indices indices;  // a slot per sequence (final, initial) or entry (checkpoints); none: its own
                      // index
    int type;         // NumberType
};

}  // namespace sluice::sm90
