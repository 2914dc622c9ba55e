// emul.h - the words of gpu.cuh as plain C++: a kernel's thread is a fiber, each word checks its
// rules.
//
// Included by gpu.cuh when a .cu file is compiled as C++17 (g++ or clang++ -x c++), and only there.
// Words that threads do together (barriers, shuffles, ldmatrix, mma) switch to other fibers until
// all have come; words for memory check alignment, bounds, races (emul_watch.h).  Plain accesses
// are seen where the kernel file is compiled with -fsanitize=thread: that makes the compiler call a
// function at each access, and emul.cc has these functions.  README.md says what is checked and how
// to debug.
//
// A word called with EMUL_AT knows the file and line that called it: threads meet at a place.
//
// Thread: fibers of the host thread that launched.
#ifndef INFERD_EMUL_H
#define INFERD_EMUL_H

#ifndef __cplusplus
#error "emul.h is for kernel files compiled as C++"
#endif

#include "emul_numbers.h"
#include "emul_run.h"

#define EMUL_AT   const char *file = __builtin_FILE(), uint32_t line = __builtin_LINE()
#define EMUL_HERE file, line

// How helper functions of kernels hand on the place that called them; nothing under nvcc.
#define GPU_CALLER          , const char *file = __builtin_FILE(), uint32_t line = __builtin_LINE()
#define GPU_CALLER_IS       , file, line
#define GPU_CALLER_IS_FIRST file, line

// ---- emul.cc ----
extern "C" {
void emul_enter(const char *kernel);
// Of the running fiber: constant while a function of a kernel runs.
uint32_t emul_thread_idx(void) __attribute__((const));
uint32_t emul_n_threads(void) __attribute__((const));
uint32_t emul_block(uint32_t axis) __attribute__((const));
uint32_t emul_grid(uint32_t axis) __attribute__((const));
void *emul_shared(void) __attribute__((const));

enum emul_shfl_kind { EMUL_SHFL, EMUL_SHFL_XOR, EMUL_SHFL_DOWN, EMUL_SHFL_UP };
enum emul_load_kind { EMUL_LOAD_ANY, EMUL_LOAD_STREAM, EMUL_LOAD_FRESH };
enum emul_atomic_kind { EMUL_ADD, EMUL_MAX, EMUL_OR };
enum emul_mma_kind { EMUL_MMA_BF16, EMUL_MMA_F16, EMUL_MMA_TF32 };

bool emul_sync_threads(bool x, bool wants_or, const char *file, uint32_t line);
void emul_sync_warp(const char *file, uint32_t line);
void emul_sync_named(uint32_t id, uint32_t threads, const char *file, uint32_t line);
uint64_t emul_shfl(uint64_t v, uint32_t arg, emul_shfl_kind kind, const char *file, uint32_t line);
uint32_t emul_ballot(bool x, const char *file, uint32_t line);
void emul_ldmatrix(uint32_t *r, uint32_t n, bool transposed, const void *row, const char *file,
                   uint32_t line);
void emul_mma(emul_mma_kind kind, float *d, const uint32_t *a, const uint32_t *b, const char *file,
              uint32_t line);

void emul_load(void *out, const void *p, uint32_t n, emul_load_kind kind, const char *file,
               uint32_t line);
void emul_store(void *p, const void *v, uint32_t n, const char *file, uint32_t line);
uint32_t emul_shared_address(const void *p, const char *file, uint32_t line);
void emul_cp_async(void *dst, const void *src, bool valid, const char *file, uint32_t line);
void emul_cp_async_commit(const char *file, uint32_t line);
void emul_cp_async_wait(uint32_t n_left, const char *file, uint32_t line);

void emul_fence(const char *file, uint32_t line);
uint64_t emul_atomic(void *p, uint32_t n, uint64_t v, emul_atomic_kind kind, const char *file,
                     uint32_t line);
void emul_wait_predecessor(const char *file, uint32_t line);
void emul_release_dependents(const char *file, uint32_t line);

uint32_t emul_fma2_f16(uint32_t a, uint32_t b, uint32_t c);
uint32_t emul_fma2_bf16(uint32_t a, uint32_t b, uint32_t c);
}

// Always inlined, so that functions of one name in two kernel files stay apart, as under nvcc.
#define GPU_FN EMUL_INLINE
// The kernel, and the function without types that a launch calls.
#define GPU_KERNEL(name, params_type, threads, min_blocks)                                         \
    static_assert((uint32_t)(threads) % 32 == 0 &&                                                 \
                      (uint32_t)(threads) <= (uint32_t)EMUL_THREADS_MAX,                           \
                  "whole warps, up to 1024");                                                      \
    static_assert(sizeof(params_type) <= (size_t)EMUL_PARAMS_MAX,                                  \
                  "a kernel's struct is too large");                                               \
    static_assert(__is_trivially_copyable(params_type), "params are copied as bytes");             \
    static void k_##name(const params_type &p);                                                    \
    extern "C" void emul_k_##name(const void *params) {                                            \
        emul_enter(#name);                                                                         \
        k_##name(*static_cast<const params_type *>(params));                                       \
    }                                                                                              \
    static void k_##name([[maybe_unused]] const params_type &p)
#define GPU_ENTRY(name, params_type, threads, cc)                                                  \
    { #name, (const void *)emul_k_##name, (uint32_t)sizeof(params_type), threads, cc }
#define GPU_TABLE(family)                                                                          \
    extern "C" {                                                                                   \
    extern const cu_kernel family##_table[];                                                       \
    extern const uint32_t family##_table_n;                                                        \
    }                                                                                              \
    const cu_kernel family##_table[] =
#define GPU_TABLE_END(family)                                                                      \
    ;                                                                                              \
    const uint32_t family##_table_n = sizeof family##_table / sizeof family##_table[0];

// ---- where am I ----
GPU_FN uint32_t thread_idx() {
    return emul_thread_idx();
}
GPU_FN uint32_t lane_idx() {
    return emul_thread_idx() & 31u;
}
GPU_FN uint32_t warp_idx() {
    return emul_thread_idx() >> 5;
}
GPU_FN uint32_t n_threads() {
    return emul_n_threads();
}
GPU_FN uint32_t block_x() {
    return emul_block(0);
}
GPU_FN uint32_t block_y() {
    return emul_block(1);
}
GPU_FN uint32_t block_z() {
    return emul_block(2);
}
GPU_FN uint32_t grid_x() {
    return emul_grid(0);
}
GPU_FN uint32_t grid_y() {
    return emul_grid(1);
}
GPU_FN uint32_t grid_z() {
    return emul_grid(2);
}

template <class T> GPU_FN T *shared() {
    return static_cast<T *>(emul_shared());
}

// ---- together ----
GPU_FN void sync_threads(EMUL_AT) {
    emul_sync_threads(false, false, EMUL_HERE);
}
GPU_FN void sync_warp(EMUL_AT) {
    emul_sync_warp(EMUL_HERE);
}
GPU_FN void sync_named(uint32_t id, uint32_t threads, EMUL_AT) {
    emul_sync_named(id, threads, EMUL_HERE);
}
GPU_FN bool sync_threads_or(bool x, EMUL_AT) {
    return emul_sync_threads(x, true, EMUL_HERE);
}

template <class T>
GPU_FN T emul_shfl_any(T v, uint32_t arg, emul_shfl_kind kind, const char *file, uint32_t line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emul_shfl(bits, arg, kind, file, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> GPU_FN T shfl(T v, uint32_t lane, EMUL_AT) {
    return emul_shfl_any(v, lane, EMUL_SHFL, EMUL_HERE);
}
template <class T> GPU_FN T shfl_xor(T v, uint32_t mask, EMUL_AT) {
    return emul_shfl_any(v, mask, EMUL_SHFL_XOR, EMUL_HERE);
}
template <class T> GPU_FN T shfl_down(T v, uint32_t n, EMUL_AT) {
    return emul_shfl_any(v, n, EMUL_SHFL_DOWN, EMUL_HERE);
}
template <class T> GPU_FN T shfl_up(T v, uint32_t n, EMUL_AT) {
    return emul_shfl_any(v, n, EMUL_SHFL_UP, EMUL_HERE);
}
GPU_FN uint32_t ballot(bool x, EMUL_AT) {
    return emul_ballot(x, EMUL_HERE);
}
GPU_FN uint32_t popcount(uint32_t x) {
    return (uint32_t)__builtin_popcount(x);
}
GPU_FN uint32_t leading_zeros(uint32_t x) {
    return x == 0 ? 32u : (uint32_t)__builtin_clz(x);
}

// ---- memory ----
template <class T>
GPU_FN T emul_load_as(const void *p, emul_load_kind kind, const char *file, uint32_t line) {
    T v;
    emul_load(&v, p, sizeof v, kind, file, line);
    return v;
}
GPU_FN word4 load_stream16(const void *p, EMUL_AT) {
    return emul_load_as<word4>(p, EMUL_LOAD_STREAM, EMUL_HERE);
}
GPU_FN word2 load_stream8(const void *p, EMUL_AT) {
    return emul_load_as<word2>(p, EMUL_LOAD_STREAM, EMUL_HERE);
}
GPU_FN uint32_t load_stream4(const void *p, EMUL_AT) {
    return emul_load_as<uint32_t>(p, EMUL_LOAD_STREAM, EMUL_HERE);
}
GPU_FN word4 load16(const void *p, EMUL_AT) {
    return emul_load_as<word4>(p, EMUL_LOAD_ANY, EMUL_HERE);
}
GPU_FN word2 load8(const void *p, EMUL_AT) {
    return emul_load_as<word2>(p, EMUL_LOAD_ANY, EMUL_HERE);
}
GPU_FN void store16(void *p, word4 v, EMUL_AT) {
    emul_store(p, &v, sizeof v, EMUL_HERE);
}
GPU_FN void store8(void *p, word2 v, EMUL_AT) {
    emul_store(p, &v, sizeof v, EMUL_HERE);
}
GPU_FN float load_fresh(const float *p, EMUL_AT) {
    return emul_load_as<float>(p, EMUL_LOAD_FRESH, EMUL_HERE);
}
GPU_FN uint32_t load_fresh(const uint32_t *p, EMUL_AT) {
    return emul_load_as<uint32_t>(p, EMUL_LOAD_FRESH, EMUL_HERE);
}
GPU_FN word4 load_fresh16(const void *p, EMUL_AT) {
    return emul_load_as<word4>(p, EMUL_LOAD_FRESH, EMUL_HERE);
}

GPU_FN uint32_t shared_address(const void *p, EMUL_AT) {
    return emul_shared_address(p, EMUL_HERE);
}
template <class V> GPU_FN V kept(V v) {
    return v;
}
template <bool KEEP, class V> GPU_FN V kept_if(V v) {
    return v;
}
GPU_FN void cp_async16(void *dst, const void *src, EMUL_AT) {
    emul_cp_async(dst, src, true, EMUL_HERE);
}
GPU_FN void cp_async16_or_zero(void *dst, const void *src, bool valid, EMUL_AT) {
    emul_cp_async(dst, src, valid, EMUL_HERE);
}
GPU_FN void cp_async_commit(EMUL_AT) {
    emul_cp_async_commit(EMUL_HERE);
}
template <int N> GPU_FN void cp_async_wait(EMUL_AT) {
    static_assert(N >= 0, "all but the newest N groups");
    emul_cp_async_wait(N, EMUL_HERE);
}

// ---- between blocks ----
GPU_FN void fence(EMUL_AT) {
    emul_fence(EMUL_HERE);
}
GPU_FN uint32_t atomic_add(uint32_t *p, uint32_t v, EMUL_AT) {
    return (uint32_t)emul_atomic(p, 4, v, EMUL_ADD, EMUL_HERE);
}
GPU_FN uint64_t atomic_add(uint64_t *p, uint64_t v, EMUL_AT) {
    return emul_atomic(p, 8, v, EMUL_ADD, EMUL_HERE);
}
GPU_FN uint32_t atomic_max(uint32_t *p, uint32_t v, EMUL_AT) {
    return (uint32_t)emul_atomic(p, 4, v, EMUL_MAX, EMUL_HERE);
}
GPU_FN uint64_t atomic_max(uint64_t *p, uint64_t v, EMUL_AT) {
    return emul_atomic(p, 8, v, EMUL_MAX, EMUL_HERE);
}
GPU_FN uint32_t atomic_or(uint32_t *p, uint32_t v, EMUL_AT) {
    return (uint32_t)emul_atomic(p, 4, v, EMUL_OR, EMUL_HERE);
}
GPU_FN void wait_predecessor(EMUL_AT) {
    emul_wait_predecessor(EMUL_HERE);
}
GPU_FN void release_dependents(EMUL_AT) {
    emul_release_dependents(EMUL_HERE);
}

// ---- numbers ----
GPU_FN float to_f32(float v) {
    return v;
}
GPU_FN float to_f32(bf16 v) {
    return emul_bf16_to_f32(v.bits);
}
GPU_FN float to_f32(f16 v) {
    return emul_f16_to_f32(v.bits);
}
template <class T> GPU_FN T from_f32(float v);
template <> GPU_FN float from_f32<float>(float v) {
    return v;
}
template <> GPU_FN bf16 from_f32<bf16>(float v) {
    return {emul_f32_to_bf16(v)};
}
template <> GPU_FN f16 from_f32<f16>(float v) {
    return {emul_f32_to_f16(v)};
}
template <class T> GPU_FN uint32_t pack2(float low, float high);
template <> GPU_FN uint32_t pack2<bf16>(float low, float high) {
    return emul_f32_to_bf16(low) | (uint32_t)emul_f32_to_bf16(high) << 16;
}
template <> GPU_FN uint32_t pack2<f16>(float low, float high) {
    return emul_f32_to_f16(low) | (uint32_t)emul_f32_to_f16(high) << 16;
}
template <class T> GPU_FN void unpack2(uint32_t v, float *low, float *high);
template <> GPU_FN void unpack2<bf16>(uint32_t v, float *low, float *high) {
    *low = emul_bf16_to_f32((uint16_t)v);
    *high = emul_bf16_to_f32((uint16_t)(v >> 16));
}
template <> GPU_FN void unpack2<f16>(uint32_t v, float *low, float *high) {
    *low = emul_f16_to_f32((uint16_t)v);
    *high = emul_f16_to_f32((uint16_t)(v >> 16));
}
GPU_FN uint32_t fma2_f16(uint32_t a, uint32_t b, uint32_t c) {
    return emul_fma2_f16(a, b, c);
}
GPU_FN uint32_t fma2_bf16(uint32_t a, uint32_t b, uint32_t c) {
    return emul_fma2_bf16(a, b, c);
}
GPU_FN float bits_to_f32(uint32_t v) {
    return emul_bits_f32(v);
}
GPU_FN uint32_t f32_to_bits(float v) {
    return emul_f32_bits(v);
}
GPU_FN float fma_f32(float a, float b, float c) {
    return fmaf(a, b, c);
}
GPU_FN float exp2_fast(float x) { // subnormal results are 0, as ex2.approx.ftz gives
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
GPU_FN float exp_f32(float x) {
    return expf(x);
}
GPU_FN float tanh_f32(float x) {
    return tanhf(x);
}
GPU_FN float rsqrt_f32(float x) {
    return 1.0f / sqrtf(x);
}
GPU_FN float max_f32(float a, float b) {
    return fmaxf(a, b);
}
GPU_FN float min_f32(float a, float b) {
    return fminf(a, b);
}
#define GPU_INFINITY __builtin_inff()

// ---- tensor cores ----
GPU_FN void ldmatrix4(uint32_t r[4], const void *row, EMUL_AT) {
    emul_ldmatrix(r, 4, false, row, EMUL_HERE);
}
GPU_FN void ldmatrix2(uint32_t r[2], const void *row, EMUL_AT) {
    emul_ldmatrix(r, 2, false, row, EMUL_HERE);
}
GPU_FN void ldmatrix4_t(uint32_t r[4], const void *row, EMUL_AT) {
    emul_ldmatrix(r, 4, true, row, EMUL_HERE);
}
GPU_FN void ldmatrix2_t(uint32_t r[2], const void *row, EMUL_AT) {
    emul_ldmatrix(r, 2, true, row, EMUL_HERE);
}
template <class T>
GPU_FN void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], EMUL_AT);
template <>
GPU_FN void mma_16816<bf16>(float d[4], const uint32_t a[4], const uint32_t b[2], const char *file,
                            uint32_t line) {
    emul_mma(EMUL_MMA_BF16, d, a, b, file, line);
}
template <>
GPU_FN void mma_16816<f16>(float d[4], const uint32_t a[4], const uint32_t b[2], const char *file,
                           uint32_t line) {
    emul_mma(EMUL_MMA_F16, d, a, b, file, line);
}
GPU_FN void mma_1688_tf32(float d[4], const float a[4], const float b[2], EMUL_AT) {
    uint32_t fa[4], fb[2];
    for (uint32_t i = 0; i < 4; i++) fa[i] = emul_f32_bits(a[i]);
    for (uint32_t i = 0; i < 2; i++) fb[i] = emul_f32_bits(b[i]);
    emul_mma(EMUL_MMA_TF32, d, fa, fb, EMUL_HERE);
}

#endif
