// gpu.cuh - the primitives that kernels are written with.
//
// Every instruction that is not plain C++ has one function here, so that a kernel file reads as
// math, and so that the same file runs on a GPU and in emulation: compiled by nvcc it is PTX;
// compiled as C++ by the tests (tests/cuda_emul/emul.h) each thread is a fiber, each of these
// functions checks its rules, and every access to memory is checked for races.  Kernel files use no
// CUDA built-in directly.
//
// Rules that both rely on:
//   - one struct argument by value; one-dimensional blocks of whole warps;
//   - all shared memory is dynamic: shared<T>() is its base (16-byte aligned), which the kernel
//     carves up;
//   - warp functions are called by all 32 lanes; sync_threads() by all threads of the block that
//     have not returned, from the same place;
//   - memory is ordered by barriers only: between threads of a warp by sync_warp(), not by
//     shuffles, ballots, ldmatrix or mma;
//   - 16-byte accesses are 16-byte aligned (8 and 4 likewise);
//   - no float atomics: sums have a fixed order, so the same run gives the same bits;
//   - blocks communicate only through atomics and fence(): data that a block wrote before fence()
//     and its atomic_add is seen by a block that reads after its own atomic_add and fence().
//
// Fragments of mma (PTX ISA, "Matrix fragments for mma.m16n8k16"), lane = 4 * g + t:
//   A 16x16  a[0]: (g, 2t..2t+1)  a[1]: (g+8, 2t..)  a[2]: (g, 2t+8..)  a[3]: (g+8, 2t+8..)
//   B 16x8   b[0]: (k 2t..2t+1, n g)  b[1]: (k 2t+8..2t+9, n g)
//   C 16x8   d[0..1]: (g, 2t..2t+1)  d[2..3]: (g+8, 2t..2t+1)      float
// Of mma.m16n8k8 with tf32 (floats of 10 bits of mantissa):
//   A 16x8   a[0]: (g, t)  a[1]: (g+8, t)  a[2]: (g, t+4)  a[3]: (g+8, t+4)
//   B 8x8    b[0]: (k t, n g)  b[1]: (k t+4, n g)                  C as above
#ifndef INFERD_GPU_CUH
#define INFERD_GPU_CUH

#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "cuda/module.h"
}

// 16-bit floats as storage; arithmetic is float.
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct alignas(8) word2 {
    uint32_t x, y;
};
struct alignas(16) word4 {
    uint32_t x, y, z, w;
};

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define GPU_FN __device__ __forceinline__
#define GPU_KERNEL(name, params_type, threads, min_blocks)                                         \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks)                              \
        k_##name(const __grid_constant__ params_type p)
// A line of the family's table; cc: first compute capability it runs on, 80 or 90.
#define GPU_ENTRY(name, params_type, threads, cc)                                                  \
    { #name, (const void *)k_##name, (uint32_t)sizeof(params_type), threads, cc }
// A helper that synchronises threads passes its caller in emulation: `f(int x GPU_CALLER)` calls
// `sync_threads(GPU_CALLER_IS_FIRST)` or `shfl(v, 0 GPU_CALLER_IS)`; so two calls of f are two
// different barriers.
#define GPU_CALLER
#define GPU_CALLER_IS
#define GPU_CALLER_IS_FIRST
#define GPU_TABLE(family) extern "C" const cu_kernel family##_table[] =
#define GPU_TABLE_END(family)                                                                      \
    ;                                                                                              \
    extern "C" const uint32_t family##_table_n = sizeof family##_table / sizeof family##_table[0];

// ---- indices ----
GPU_FN uint32_t thread_idx() {
    return threadIdx.x;
}
GPU_FN uint32_t lane_idx() {
    return threadIdx.x & 31u;
}
GPU_FN uint32_t warp_idx() {
    return threadIdx.x >> 5;
}
GPU_FN uint32_t n_threads() {
    return blockDim.x;
}
GPU_FN uint32_t block_x() {
    return blockIdx.x;
}
GPU_FN uint32_t block_y() {
    return blockIdx.y;
}
GPU_FN uint32_t block_z() {
    return blockIdx.z;
}
GPU_FN uint32_t grid_x() {
    return gridDim.x;
}
GPU_FN uint32_t grid_y() {
    return gridDim.y;
}
GPU_FN uint32_t grid_z() {
    return gridDim.z;
}

extern __shared__ __align__(128) unsigned char gpu_shared_base[];
template <class T> GPU_FN T *shared() {
    return reinterpret_cast<T *>(gpu_shared_base);
}

// ---- barriers, shuffles, votes ----
GPU_FN void sync_threads() {
    __syncthreads();
}
GPU_FN void sync_warp() {
    __syncwarp();
}
// Barrier `id` (1..15) of the first `threads` callers (a multiple of 32).
GPU_FN void sync_named(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
GPU_FN bool sync_threads_or(bool x) {
    return __syncthreads_or(x) != 0;
}
template <class T> GPU_FN T shfl(T v, uint32_t lane) {
    return __shfl_sync(~0u, v, (int)lane);
}
template <class T> GPU_FN T shfl_xor(T v, uint32_t mask) {
    return __shfl_xor_sync(~0u, v, (int)mask);
}
template <class T> GPU_FN T shfl_down(T v, uint32_t n) {
    return __shfl_down_sync(~0u, v, n);
}
template <class T> GPU_FN T shfl_up(T v, uint32_t n) {
    return __shfl_up_sync(~0u, v, n);
}
GPU_FN uint32_t gpu_ballot(bool x) {
    return __ballot_sync(~0u, x);
}
#define ballot gpu_ballot // CUDA's headers have an old function of that name
GPU_FN uint32_t popcount(uint32_t x) {
    return (uint32_t)__popc(x);
}
GPU_FN uint32_t leading_zeros(uint32_t x) {
    return (uint32_t)__clz((int)x);
}

// ---- memory ----
// Weights: read once, not kept in L1, first to leave L2.  (One policy word per kernel: not
// volatile, so the compiler keeps a single one.)  The compiler may move these loads before
// wait_predecessor(): never use them for data that another kernel of the step writes.
GPU_FN uint64_t stream_policy() {
    uint64_t v;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(v));
    return v;
}
GPU_FN word4 load_stream16(const void *p) {
    word4 v;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p), "l"(stream_policy()));
    return v;
}
GPU_FN word2 load_stream8(const void *p) {
    word2 v;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0,%1}, [%2], %3;"
        : "=r"(v.x), "=r"(v.y)
        : "l"(p), "l"(stream_policy()));
    return v;
}
GPU_FN uint32_t load_stream4(const void *p) {
    uint32_t v;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;"
        : "=r"(v)
        : "l"(p), "l"(stream_policy()));
    return v;
}
// Global or shared memory that other blocks or earlier kernels wrote.
GPU_FN word4 load16(const void *p) {
    return *static_cast<const word4 *>(p);
}
GPU_FN word2 load8(const void *p) {
    return *static_cast<const word2 *>(p);
}
GPU_FN void store16(void *p, word4 v) {
    *static_cast<word4 *>(p) = v;
}
GPU_FN void store8(void *p, word2 v) {
    *static_cast<word2 *>(p) = v;
}
// Data that another block of this launch may have written: not from L1.
GPU_FN float load_fresh(const float *p) {
    return __ldcg(p);
}
GPU_FN uint32_t load_fresh(const uint32_t *p) {
    return __ldcg(p);
}
GPU_FN word4 load_fresh16(const void *p) {
    uint4 v = __ldcg(static_cast<const uint4 *>(p));
    return {v.x, v.y, v.z, v.w};
}

// v, with its origin hidden from the compiler, which then keeps the value in a register instead of
// computing it anew at each use.
GPU_FN uint32_t kept(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}
template <class V> GPU_FN V *kept(V *v) {
    asm volatile("" : "+l"(v));
    return v;
}
template <bool KEEP, class V> GPU_FN V kept_if(V v) {
    if constexpr (KEEP) return kept(v);
    return v;
}

// Asynchronous copies to shared memory; each thread waits for its own, sync_threads() makes them
// visible to the others.  They may arrive any time between the call and the wait.
GPU_FN uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
GPU_FN void cp_async16(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
                 "l"(global)
                 : "memory");
}
// `valid` false: zeros are written and `global` is not read.
GPU_FN void cp_async16_or_zero(void *shared, const void *global, bool valid) {
    int n = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(n)
                 : "memory");
}
GPU_FN void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the newest N groups of this thread have arrived.
template <int N> GPU_FN void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- between blocks ----
GPU_FN void fence() {
    __threadfence();
}
GPU_FN uint32_t atomic_add(uint32_t *p, uint32_t v) {
    return atomicAdd(p, v);
} // global or shared
GPU_FN uint64_t atomic_add(uint64_t *p, uint64_t v) {
    return atomicAdd(reinterpret_cast<unsigned long long *>(p), (unsigned long long)v);
}
GPU_FN uint32_t atomic_max(uint32_t *p, uint32_t v) {
    return atomicMax(p, v);
}
GPU_FN uint64_t atomic_max(uint64_t *p, uint64_t v) {
    return atomicMax(reinterpret_cast<unsigned long long *>(p), (unsigned long long)v);
}
GPU_FN uint32_t atomic_or(uint32_t *p, uint32_t v) {
    return atomicOr(p, v);
}

// Programmatic dependent launch: nothing of the predecessor may be read before wait; weights may.
GPU_FN void wait_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
GPU_FN void release_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- numbers ----
GPU_FN float to_f32(float v) {
    return v;
}
GPU_FN float to_f32(bf16 v) {
    return __uint_as_float((uint32_t)v.bits << 16);
}
GPU_FN float to_f32(f16 v) {
    __half h;
    memcpy(&h, &v, 2);
    return __half2float(h);
}
template <class T> GPU_FN T from_f32(float v); // round to nearest even
template <> GPU_FN float from_f32<float>(float v) {
    return v;
}
template <> GPU_FN bf16 from_f32<bf16>(float v) {
    __nv_bfloat16 h = __float2bfloat16_rn(v);
    bf16 out;
    memcpy(&out, &h, 2);
    return out;
}
template <> GPU_FN f16 from_f32<f16>(float v) {
    __half h = __float2half_rn(v);
    f16 out;
    memcpy(&out, &h, 2);
    return out;
}
// Two neighbours in one word, the first in the low half.
template <class T> GPU_FN uint32_t pack2(float low, float high);
template <> GPU_FN uint32_t pack2<bf16>(float low, float high) {
    __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
    uint32_t out;
    memcpy(&out, &h, 4);
    return out;
}
template <> GPU_FN uint32_t pack2<f16>(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    uint32_t out;
    memcpy(&out, &h, 4);
    return out;
}
template <class T> GPU_FN void unpack2(uint32_t v, float *low, float *high);
template <> GPU_FN void unpack2<bf16>(uint32_t v, float *low, float *high) {
    *low = __uint_as_float(v << 16);
    *high = __uint_as_float(v & 0xffff0000u);
}
template <> GPU_FN void unpack2<f16>(uint32_t v, float *low, float *high) {
    __half2 h;
    memcpy(&h, &v, 4);
    float2 f = __half22float2(h);
    *low = f.x;
    *high = f.y;
}
// Both halves at once, in the type's own arithmetic: a * b + c, rounded once each.
GPU_FN uint32_t fma2_f16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
GPU_FN uint32_t fma2_bf16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
GPU_FN float bits_to_f32(uint32_t v) {
    return __uint_as_float(v);
}
GPU_FN uint32_t f32_to_bits(float v) {
    return __float_as_uint(v);
}
GPU_FN float fma_f32(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
GPU_FN float exp2_fast(float x) { // within 2 ulp; -inf gives 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_FN float exp_f32(float x) {
    return expf(x);
}
GPU_FN float tanh_f32(float x) {
    return tanhf(x);
}
GPU_FN float rsqrt_f32(float x) {
    return rsqrtf(x);
}
GPU_FN float max_f32(float a, float b) {
    return fmaxf(a, b);
}
GPU_FN float min_f32(float a, float b) {
    return fminf(a, b);
}
#define GPU_INFINITY __int_as_float(0x7f800000)

// ---- tensor cores ----
// Rows of 16 bytes at the addresses that lanes 0-7, 8-15, 16-23, 24-31 give are matrices 0..3 of
// 8x8 16-bit numbers; lane l gets elements (l / 4, 2 * (l % 4)) and the next of each.
GPU_FN void ldmatrix4(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
GPU_FN void ldmatrix2(uint32_t r[2], const void *row) { // addresses of lanes 0-15
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
// The same with each 8x8 matrix transposed.
GPU_FN void ldmatrix4_t(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
GPU_FN void ldmatrix2_t(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
// d += a * b
template <class T> GPU_FN void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2]);
template <> GPU_FN void mma_16816<bf16>(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <> GPU_FN void mma_16816<f16>(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d += a b with a 16x8 and b 8x8 of tf32: floats with zeros in the low 13 bits.
GPU_FN void mma_1688_tf32(float d[4], const float a[4], const float b[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(f32_to_bits(a[0])), "r"(f32_to_bits(a[1])), "r"(f32_to_bits(a[2])),
                   "r"(f32_to_bits(a[3])), "r"(f32_to_bits(b[0])), "r"(f32_to_bits(b[1])));
}

#else
#include "emul.h" // tests/cuda_emul: the same primitives on fibers
#endif

// ---- helpers for GPU and emulation ----
// The nearest f16 of a finite number.
GPU_FN float within_f16(float v) {
    const float largest = 65504.0f;
    bool finite = v > -GPU_INFINITY && v < GPU_INFINITY; // false for NaN
    return finite ? max_f32(-largest, min_f32(v, largest)) : v;
}
// (v & mask) | bits in one instruction: the compiler takes two for two constants.
GPU_FN uint32_t and_or(uint32_t v, uint32_t mask, uint32_t bits) {
#ifdef __CUDACC__
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(v), "r"(mask), "r"(bits));
    return out;
#else
    return (v & mask) | bits;
#endif
}
// The nearest tf32 (10 bits of mantissa) of v, finite; ties go away from 0.
GPU_FN float tf32_of(float v) {
    return bits_to_f32((f32_to_bits(v) + 0x1000u) & 0xffffe000u);
}
// Butterfly: every lane gets the sum, in a fixed order.
template <class T> GPU_FN T warp_sum(T v GPU_CALLER) {
    for (uint32_t m = 16; m > 0; m >>= 1) v += shfl_xor(v, m GPU_CALLER_IS);
    return v;
}
GPU_FN float warp_max(float v GPU_CALLER) {
    for (uint32_t m = 16; m > 0; m >>= 1) v = max_f32(v, shfl_xor(v, m GPU_CALLER_IS));
    return v;
}
GPU_FN constexpr uint32_t div_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

#endif
