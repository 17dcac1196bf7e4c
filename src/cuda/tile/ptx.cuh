// Hopper's own instructions as functions: barriers, bulk tensor copies, warpgroup products.
//
// Why not CuTe: a kernel of this library needs some fifteen instructions. Spelled out they compile
// in a second (CuTe: ten to twenty), need no third-party header at run time, and read like the PTX
// manual.
#pragma once

namespace sluice::tile {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

__device__ inline u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

/// threadIdx.x, read here: what is computed from it is not computed before a loop and kept in
/// registers through it.
__device__ inline int thread_anew() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

// ---- mbarriers ----------------------------------------------------------------------------------

/// How often a warp arrives. One lane does, after __syncwarp(), which compute-sanitizer's racecheck
/// does not take for an order of what the other lanes did before (it reports a kernel of ten lines
/// that does no more than hand over a row); where every lane arrives, it finds that order.
#ifdef SLUICE_EVERY_LANE_ARRIVES
constexpr u32 kWarpArrivals = 32;
#else
constexpr u32 kWarpArrivals = 1;
#endif

struct Barrier {
    u64 word;

    __device__ void init(u32 arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)),
                     "r"(arrivals));
    }
    __device__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word))
                     : "memory");
    }
    /// The whole warp: what its lanes did before is done.
    __device__ void arrive_warp() {
        __syncwarp();
        if (kWarpArrivals > 1 || threadIdx.x % 32 == 0) arrive();
    }
    /// One arrival, and `bytes` of bulk copies that the phase waits for.
    __device__ void arrive_expect(u32 bytes) {
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)),
            "r"(bytes)
            : "memory");
    }
    /// Waits for the end of the phase with this parity (0 for the first).
    __device__ void wait(u32 parity) {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "WAIT:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
            "@done bra DONE;\n"
            "bra WAIT;\n"
            "DONE:\n"
            "}" ::"r"(shared_address(&word)),
            "r"(parity)
            : "memory");
    }
};

__device__ inline void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Ordinary writes to shared memory before, seen by tensor cores and bulk copies after.
__device__ inline void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// In a launch that may begin before the one before it in its stream has ended: waits for that end,
/// and for all it wrote.
__device__ inline void wait_for_previous_launch() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Lets the next such launch begin.
__device__ inline void allow_next_launch() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- clusters of blocks -------------------------------------------------------------------------

__device__ inline u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/// Every thread of the cluster that has not ended.
__device__ inline void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// The address that block `rank` of the cluster has for what is at `address` here.
__device__ inline u32 cluster_address(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/// Sixteen bytes to a cluster address; counted by the barrier at another one of the same block.
__device__ inline void store_cluster(u32 to, u32 barrier, float a, float b, float c, float d) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5},"
        " [%1];" ::"r"(to),
        "r"(barrier), "f"(a), "f"(b), "f"(c), "f"(d)
        : "memory");
}
/// At a barrier of another block, by one thread after a barrier among those that have read: the reads
/// are done, which is all that is asked of it here. A release to the cluster would cost a fence of the
/// whole GPU.
__device__ inline void arrive_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// The whole warp's arrival there.
__device__ inline void arrive_cluster_warp(u32 barrier) {
    __syncwarp();
    if (kWarpArrivals > 1 || threadIdx.x % 32 == 0) arrive_cluster(barrier);
}
/// `bytes` (a multiple of 16) to another block of the cluster, counted by a barrier of it.
__device__ inline void copy_to_cluster(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "r"(shared_address(from)), "r"(bytes), "r"(barrier)
        : "memory");
}

/// Barrier `id` among `threads` threads of the block.
__device__ inline void named_barrier(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The same, and whether any of the threads passed true.
__device__ inline bool named_barrier_any(u32 id, u32 threads, bool value) {
    u32 any = 0;
    asm volatile(
        "{\n"
        ".reg .pred p, q;\n"
        "setp.ne.u32 p, %3, 0;\n"
        "barrier.cta.red.or.pred q, %1, %2, p;\n"
        "selp.u32 %0, 1, 0, q;\n"
        "}"
        : "=r"(any)
        : "r"(id), "r"(threads), "r"(static_cast<u32>(value))
        : "memory");
    return any != 0;
}

/// Registers per thread of the calling warpgroup, from what it was launched with.
template <int kRegisters, int kLaunched>
__device__ inline void set_registers() {
    if constexpr (kRegisters < kLaunched) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
    } else if constexpr (kRegisters > kLaunched) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
    }
}

// ---- bulk tensor copies -------------------------------------------------------------------------

struct alignas(64) TensorMap {
    u64 opaque[16];
};

__device__ inline void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Box at (channel, head, token, batch) of a 4-D tensor into shared memory.
__device__ inline void load_box(void* to, const TensorMap* map, Barrier& barrier, int channel,
                                int head, int token, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(&barrier.word)), "r"(channel), "r"(head), "r"(token),
        "r"(batch)
        : "memory");
}

/// `bytes` that are side by side (a multiple of 16, as the addresses).
__device__ inline void load_bytes(void* to, const void* from, u32 bytes, Barrier& barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(&barrier.word))
        : "memory");
}
__device__ inline void store_bytes(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

__device__ inline void store_box(const TensorMap* map, const void* from, int channel, int head,
                                 int token, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
        " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(channel), "r"(head), "r"(token), "r"(batch)
        : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until at most `kPending` store groups of this thread still read shared memory.
template <int kPending>
__device__ inline void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Until all of them have been written.
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- warpgroup products (16-bit operands, float32 sums) -----------------------------------------

/// Shared-memory operand in 128-byte swizzle. Rows of 64 elements (128 bytes), eight rows 1,024
/// bytes. Row-contiguous along the inner dimension ("K-major"), or transposed: along M or N, with
/// `column_stride_bytes` between groups of 64 elements of M or N.
__device__ inline u64 operand(const void* p, u32 column_stride_bytes = 16) {
    constexpr u64 kSwizzle128 = 1ull << 62;
    const u64 address = (shared_address(p) & 0x3ffff) >> 4;
    return kSwizzle128 | address | static_cast<u64>(column_stride_bytes >> 4) << 16 |
           static_cast<u64>(1024 >> 4) << 32;
}

__device__ inline u64 advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

__device__ inline void product_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void product_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void product_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of accumulators across a wait.
template <int kCount>
__device__ inline void keep(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// Has what is computed of x later computed of these registers, not kept from before.
template <int kCount>
__device__ inline void keep(u32 (&x)[kCount][4]) {
#pragma unroll
    for (int i = 0; i < kCount * 4; ++i) asm volatile("" : "+r"(x[i / 4][i % 4])::"memory");
}

/// Tensor cores read an A operand in registers until its product ends, but ptxas gives the
/// registers to others once it has begun, at least where branches are between that and the wait:
/// wrong states, now and then. A use after the wait keeps them, on a way that is `never` taken.
template <int kCount>
__device__ inline void hold(const u32 (&x)[kCount][4], bool never) {
    if (!never) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(0), "r"(x[i][0]),
                     "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3])
                     : "memory");
    }
}

#define SLUICE_D8(d, o)                                                                         \
    "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), \
        "+f"(d[o + 6]), "+f"(d[o + 7])
#define SLUICE_D16(d, o) SLUICE_D8(d, o), SLUICE_D8(d, o + 8)
#define SLUICE_D32(d, o) SLUICE_D16(d, o), SLUICE_D16(d, o + 16)

/// d[64, N] (+)= A x B, one step of 16 along the inner dimension, both in shared memory.
#define SLUICE_PRODUCT_N32(type)                                                             \
    asm volatile(                                                                            \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                         \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                          \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, %19, " \
        "%20;\n}"                                                                            \
        : SLUICE_D16(d, 0)                                                                   \
        : "l"(a), "l"(b), "r"(static_cast<u32>(add)), "n"(kTransposeA), "n"(kTransposeB))
#define SLUICE_PRODUCT_N64(type)                                                                   \
    asm volatile(                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                               \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
        "%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, %35, %36;\n}"                        \
        : SLUICE_D32(d, 0)                                                                         \
        : "l"(a), "l"(b), "r"(static_cast<u32>(add)), "n"(kTransposeA), "n"(kTransposeB))

template <int kTransposeA, int kTransposeB>
__device__ inline void product(float (&d)[16], u64 a, u64 b, bool add) {  // N = 32
    SLUICE_PRODUCT_N32("bf16");
}
template <int kTransposeA, int kTransposeB>
__device__ inline void product(float (&d)[32], u64 a, u64 b, bool add) {  // N = 64
    SLUICE_PRODUCT_N64("bf16");
}
/// The same with fp16 operands.
template <int kTransposeA, int kTransposeB>
__device__ inline void product_fp16(float (&d)[16], u64 a, u64 b, bool add) {
    SLUICE_PRODUCT_N32("f16");
}
template <int kTransposeA, int kTransposeB>
__device__ inline void product_fp16(float (&d)[32], u64 a, u64 b, bool add) {
    SLUICE_PRODUCT_N64("f16");
}
#undef SLUICE_PRODUCT_N32
#undef SLUICE_PRODUCT_N64

template <int kTransposeA, int kTransposeB>
__device__ inline void product(float (&d)[64], u64 a, u64 b, bool add) {  // N = 128
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
        "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "%64, %65, p, 1, 1, %67, %68;\n}"
        : SLUICE_D32(d, 0), SLUICE_D32(d, 32)
        : "l"(a), "l"(b), "r"(static_cast<u32>(add)), "n"(kTransposeA), "n"(kTransposeB));
}
/// The same with A in registers (four words of bf16 pairs), N = 64.
template <int kTransposeB>
__device__ inline void product(float (&d)[32], const u32 (&a)[4], u64 b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
        : SLUICE_D32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<u32>(add)),
          "n"(kTransposeB));
}

/// The same with A in registers, N = 128.
template <int kTransposeB>
__device__ inline void product(float (&d)[64], const u32 (&a)[4], u64 b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
        "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "{%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}"
        : SLUICE_D32(d, 0), SLUICE_D32(d, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<u32>(add)),
          "n"(kTransposeB));
}

#undef SLUICE_D8
#undef SLUICE_D16
#undef SLUICE_D32

// ---- numbers ------------------------------------------------------------------------------------

__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// bf16 pair, `low` in the low half.
__device__ inline u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ inline float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline u32 pack_fp16(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ inline float fp16_to_float(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ inline float low_fp16(u32 pair) { return fp16_to_float(static_cast<u16>(pair)); }
__device__ inline float high_fp16(u32 pair) { return fp16_to_float(static_cast<u16>(pair >> 16)); }

__device__ inline u32 load_shared(u32 address) {
    u32 x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
__device__ inline float4 load_shared_four(u32 address) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}
__device__ inline float2 load_shared_pair(u32 address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(address)
                 : "memory");
    return x;
}
__device__ inline void store_shared(u32 address, u32 x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
/// Four 8 x 8 matrices of 16-bit elements; lane l gives row l's address.
__device__ inline void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
__device__ inline void load_matrices(u32 address, u32 (&x)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}
__device__ inline void load_matrices_transposed(u32 address, u32 (&x)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}
/// Four 8 x 8 matrices of 16-bit elements, transposed on the way; lane l gives row l's address.
__device__ inline void store_matrices_transposed(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

}  // namespace sluice::tile
