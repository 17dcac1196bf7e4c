// recurrent/numbers.cuh for the emulator: the same functions without PTX.
#pragma once

#include "recurrent/params.cuh"

namespace sluice::recurrent {

inline float load_input(const void* data, int type, long long offset) {
    if (type == kFloat32) return static_cast<const float*>(data)[offset];
    if (type == kFloat16) return static_cast<float>(static_cast<const _Float16*>(data)[offset]);
    return __uint_as_float(static_cast<unsigned>(static_cast<const unsigned short*>(data)[offset])
                           << 16);
}

inline float load_state_number(bool present, const void* data, int type, long long offset) {
    return present ? load_input(data, type, offset) : 0.f;
}

inline void load_state_quad(bool present, const void* data, int type, long long offset,
                            float (&x)[4]) {
    for (int i = 0; i < 4; ++i) x[i] = load_state_number(present, data, type, offset + i);
}

inline void store_number(void* data, int type, long long offset, float x) {
    if (type == kFloat32) {
        static_cast<float*>(data)[offset] = x;
    } else if (type == kFloat16) {
        static_cast<_Float16*>(data)[offset] = static_cast<_Float16>(x);
    } else {
        const unsigned bits = __float_as_uint(x);
        const unsigned rounded = bits + 0x7fff + (bits >> 16 & 1);
        static_cast<unsigned short*>(data)[offset] =
            static_cast<unsigned short>((x == x ? rounded : bits | 0x400000) >> 16);
    }
}

inline void store_quad(void* data, int type, long long offset, const float (&x)[4]) {
    for (int i = 0; i < 4; ++i) store_number(data, type, offset + i, x[i]);
}

inline long long hide(long long x) { return x; }

}  // namespace sluice::recurrent
