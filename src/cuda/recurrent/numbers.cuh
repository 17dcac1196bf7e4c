// Numbers in memory whose type is known at run time, without branches: a branch around each load
// would let only one be in flight.
#pragma once

#include "recurrent/params.cuh"
#include "tile/ptx.cuh"

namespace sluice::recurrent {

__device__ inline float decode_number(tile::u32 bits, int type) {
    const float wide = __uint_as_float(type == kFloat32 ? bits : bits << 16);
    return type == kFloat16 ? tile::fp16_to_float(static_cast<tile::u16>(bits)) : wide;
}

/// The low 16 bits, unless the type is 32 bits wide.
__device__ inline tile::u32 encode_number(float x, int type) {
    const tile::u32 narrow = type == kFloat16 ? tile::pack_fp16(x, 0.f) : tile::pack_bf16(x, 0.f);
    return type == kFloat32 ? __float_as_uint(x) : narrow;
}

__device__ inline const char* address_of(const void* data, int type, long long offset) {
    return static_cast<const char*>(data) + (offset << (type == kFloat32 ? 2 : 1));
}

/// An element that nothing writes while the kernel runs.
__device__ inline float load_input(const void* data, int type, long long offset) {
    tile::u32 bits;
    asm("{\n.reg .pred wide;\nsetp.eq.s32 wide, %2, 0;\n"
        "@wide ld.global.nc.b32 %0, [%1];\n@!wide ld.global.nc.u16 %0, [%1];\n}"
        : "=r"(bits)
        : "l"(address_of(data, type, offset)), "r"(type));
    return decode_number(bits, type);
}

/// An element of a state, or zero. States may be updated in place.
__device__ inline float load_state_number(bool present, const void* data, int type,
                                          long long offset) {
    tile::u32 bits;
    asm volatile(
        "{\n.reg .pred wide, narrow;\nmov.b32 %0, 0;\n"
        "setp.eq.s32 wide, %2, 0;\nsetp.eq.s32 narrow, %2, 1;\n"
        "@wide ld.global.b32 %0, [%1];\n@narrow ld.global.u16 %0, [%1];\n}"
        : "=&r"(bits)
        : "l"(address_of(data, type, offset)), "r"(!present           ? 2
                                                   : type == kFloat32 ? 0
                                                                      : 1)
        : "memory");
    return decode_number(bits, type);
}

/// Four neighbours, aligned to their size.
__device__ inline void load_state_quad(bool present, const void* data, int type, long long offset,
                                       float (&x)[4]) {
    tile::u32 a, b, c, d;
    asm volatile(
        "{\n.reg .pred wide, narrow;\n"
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "setp.eq.s32 wide, %5, 0;\nsetp.eq.s32 narrow, %5, 1;\n"
        "@wide ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        "@narrow ld.global.v2.b32 {%0, %2}, [%4];\n}"
        : "=&r"(a), "=&r"(b), "=&r"(c), "=&r"(d)
        : "l"(address_of(data, type, offset)), "r"(!present           ? 2
                                                   : type == kFloat32 ? 0
                                                                      : 1)
        : "memory");
    // Of two 16-bit numbers in a word, the second is moved to where decode_number() looks.
    x[0] = decode_number(type == kFloat32 ? a : a & 0xffff, type);
    x[1] = decode_number(type == kFloat32 ? b : a >> 16, type);
    x[2] = decode_number(type == kFloat32 ? c : c & 0xffff, type);
    x[3] = decode_number(type == kFloat32 ? d : c >> 16, type);
}

__device__ inline void store_number(void* data, int type, long long offset, float x) {
    const tile::u32 bits = encode_number(x, type);
    asm volatile(
        "{\n.reg .pred wide;\nsetp.eq.s32 wide, %2, 0;\n"
        "@wide st.global.b32 [%0], %1;\n@!wide st.global.u16 [%0], %1;\n}" ::"l"(
            address_of(data, type, offset)),
        "r"(bits), "r"(type)
        : "memory");
}

__device__ inline void store_quad(void* data, int type, long long offset, const float (&x)[4]) {
    const tile::u32 a = encode_number(x[0], type), b = encode_number(x[1], type);
    const tile::u32 c = encode_number(x[2], type), d = encode_number(x[3], type);
    const tile::u32 low = (a & 0xffff) | b << 16, high = (c & 0xffff) | d << 16;
    asm volatile(
        "{\n.reg .pred wide;\nsetp.eq.s32 wide, %7, 0;\n"
        "@wide st.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
        "@!wide st.global.v2.b32 [%0], {%5, %6};\n}" ::"l"(address_of(data, type, offset)),
        "r"(a), "r"(b), "r"(c), "r"(d), "r"(low), "r"(high), "r"(type)
        : "memory");
}

/// A number that the compiler must take as new: or it would compute the addresses of a whole state
/// ahead of the loop that stores it, and keep them in registers.
__device__ inline long long hide(long long x) {
    asm volatile("" : "+l"(x));
    return x;
}

}  // namespace sluice::recurrent
