/* simd.h - the few vector operations the hot files need, once for each instruction set.
 *
 * vf is VW floats, vi VW 32-bit integers: vector types of the compiler (gcc and clang), so + - * /
 * and the bit operations are the language's own.  Operations that the language lacks, or compiles
 * badly, are here: fused multiply-add, conversions, selecting.  A file that includes this is
 * compiled once per level, with CPU_LEVEL_<its name>, or with none of them for the instructions
 * that the target guarantees.
 *
 * vf_fma is always fused or (base) never: the same call gives the same bits wherever it is
 * inlined, so a row's result is independent of its batch.
 *
 * Thread: any. */
#ifndef INFERD_CPU_SIMD_H
#define INFERD_CPU_SIMD_H

#include <stdint.h>
#include <string.h>

#include "kernels/dtype.h"

/* A level has all features of the level it derives from. */
#if defined(CPU_LEVEL_AVX512AMX)
#define LEVEL(name) name##_avx512amx
#define CPU_LEVEL_AVX512BF16
#define CPU_LEVEL_AVX512VNNI
#define CPU_LEVEL_AVX512
#elif defined(CPU_LEVEL_AVX512BF16)
#define LEVEL(name) name##_avx512bf16
#define CPU_LEVEL_AVX512VNNI
#define CPU_LEVEL_AVX512
#elif defined(CPU_LEVEL_AVX512VNNI)
#define LEVEL(name) name##_avx512vnni
#define CPU_LEVEL_AVX512
#elif defined(CPU_LEVEL_AVX512)
#define LEVEL(name) name##_avx512
#elif defined(CPU_LEVEL_AVXVNNI)
#define LEVEL(name) name##_avxvnni
#define CPU_LEVEL_AVX2
#elif defined(CPU_LEVEL_AVX2)
#define LEVEL(name) name##_avx2
#else
#define LEVEL(name) name##_base
#endif

#if defined(CPU_LEVEL_AVX512)
#include <immintrin.h>
enum { VW = 16 };
#elif defined(CPU_LEVEL_AVX2)
#include <immintrin.h>
enum { VW = 8 };
#else
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
enum { VW = 4 };
#endif

#define INLINE static inline __attribute__((always_inline, unused))
/* Registers need constant indices, so loops over them are unrolled.  Not for the sanitizers,
 * which would check every access of every copy and compile for minutes. */
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNROLL
#else
#define UNROLL _Pragma("clang loop unroll(full)")
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Loops that stay loops: unrolled, all their loads would come first and fill registers. */
#if defined(__clang__)
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define ROLLED _Pragma("GCC unroll 1")
#endif

/* Nothing in memory is read earlier or written later than here. */
#define COMPILER_FENCE __asm__ volatile("" ::: "memory")

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));
typedef int16_t vs __attribute__((vector_size(VW * 4))); // two in each lane
typedef uint16_t vus __attribute__((vector_size(VW * 4)));
typedef float vf_any __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef int32_t vi_any __attribute__((vector_size(VW * 4), aligned(4), may_alias));

INLINE vf vf_load(const float *p) {
    return *(const vf_any *)p;
}
INLINE void vf_store(float *p, vf v) {
    *(vf_any *)p = v;
}
INLINE vi vi_load(const void *p) {
    return *(const vi_any *)p;
}
INLINE void vi_store(void *p, vi v) {
    *(vi_any *)p = v;
}
INLINE vf vf_set1(float x) {
    return x - (vf){0}; // x - 0 is x for every x, also -0
}
INLINE vi vi_set1(int32_t x) {
    return x + (vi){0};
}
INLINE vf vf_of_vi(vi v) {
    return __builtin_convertvector(v, vf);
}
/* Keeps the sum in the order of the source: compilers would reorder integers, multiply first, and
 * run out of registers for the products. */
INLINE vi vi_in_order(vi sum) {
#if defined(CPU_LEVEL_AVX512)
    __asm__("" : "+v"(sum));
#elif defined(__SSE2__)
    __asm__("" : "+x"(sum));
#endif
    return sum;
}
/* Lanes where mask is all ones from a, the others from b. */
INLINE vf vf_select(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}
INLINE vi vi_iota(void) {
    static const int32_t iota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vi_load(iota);
}
/* ---- what differs ----
 *
 * vf_fma         a * b + c
 * vf_max         the larger; b where one is not a number
 * vi_max         the larger
 * vf_swap        lanes in groups of n, n a power of two: the halves of each group swapped
 * vi_load_u8     VW bytes as integers;  vi_load_i8 likewise
 * vf_load_u8     VW bytes as floats;  vf_load_i8, vf_load_f16 likewise
 * vf_store_f16   rounds to nearest even
 * vi_dot         acc + the products of the 16-bit halves of each lane
 * vf_dot_bf16    the same for halves that are bf16, in floats (avx512bf16 only)
 * vf_nibble      nibble j of every lane as a float, less `zero`
 * vf_bit         16 where bit k of the lane is set, else 0
 * vf_upper       16 * (bits 2k and 2k + 1 of the lane)
 * vf_code        n_bits (2 or 3) from bit k of every lane on as a float, less `zero`
 * vf_book        nibble j of every lane looked up in a codebook
 * vi_book        the same for each byte, which has the nibble, or other bits above it */

#if defined(CPU_LEVEL_AVX512)

INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE vf vf_max(vf a, vf b) {
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}
INLINE vi vi_max(vi a, vi b) {
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
}
INLINE vf vf_swap(vf v, int n) {
    __m512 x = (__m512)v;
    return (vf)(n == 16  ? _mm512_shuffle_f32x4(x, x, 0x4e)
                : n == 8 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                : n == 4 ? _mm512_shuffle_ps(x, x, 0x4e)
                         : _mm512_shuffle_ps(x, x, 0xb1));
}
INLINE vi vi_load_u8(const uint8_t *p) {
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE vf vf_load_u8(const uint8_t *p) {
    return vf_of_vi(vi_load_u8(p));
}
INLINE vi vi_load_i8(const int8_t *p) {
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE vf vf_load_i8(const int8_t *p) {
    return vf_of_vi(vi_load_i8(p));
}
INLINE vf vf_load_f16(const uint16_t *p) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE void vf_store_f16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vi vi_dot(vi acc, vi a, vi b) {
#if defined(CPU_LEVEL_AVX512VNNI)
    return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#else
    return vi_in_order(acc + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#endif
}
#if defined(CPU_LEVEL_AVX512BF16)
INLINE vf vf_dot_bf16(vf acc, vi a, vi b) {
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
}
#endif
/* A permutation uses the low four bits of its index: shift, look up; no mask, no conversion. */
INLINE vf vf_nibble(vi words, int j, float zero) {
    const __m512 value =
        (__m512)((vf){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} - zero);
    return (vf)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, (unsigned)(4 * j)), value);
}
INLINE vf vf_bit(vi words, int k) {
    const __m512 value = _mm512_setr_ps(0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16);
    return (vf)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, (unsigned)k), value);
}
INLINE vf vf_upper(vi words, int k) {
    const __m512 value = _mm512_setr_ps(0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48);
    return (vf)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, (unsigned)(2 * k)), value);
}
INLINE vf vf_code(vi words, int k, int n_bits, float zero) {
    const vf two = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    const vf three = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
    const __m512 value = (__m512)((n_bits == 2 ? two : three) - zero);
    return (vf)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, (unsigned)k), value);
}
INLINE vf vf_book(vi words, int j, const int8_t book[16]) {
    return (vf)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, (unsigned)(4 * j)),
                                     (__m512)vf_load_i8(book));
}
INLINE vi vi_book(vi at, const int8_t book[16]) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)book));
    return (vi)_mm512_shuffle_epi8(table, (__m512i)(at & 0x0f0f0f0f));
}

#else

INLINE vf vf_nibble(vi words, int j, float zero) {
    vf value = vf_of_vi((vi)((vu)words >> (4 * j)) & 15);
    return zero != 0 ? value - zero : value;
}
INLINE vf vf_bit(vi words, int k) {
    return vf_of_vi((k < 4 ? words << (4 - k) : (vi)((vu)words >> (k - 4))) & 16);
}
INLINE vf vf_upper(vi words, int k) {
    return vf_of_vi((k < 2 ? words << (4 - 2 * k) : (vi)((vu)words >> (2 * k - 4))) & 48);
}

INLINE vf vf_code(vi words, int k, int n_bits, float zero) {
    vf value = vf_of_vi((vi)((vu)words >> k) & ((1 << n_bits) - 1));
    return zero != 0 ? value - zero : value;
}
#if defined(CPU_LEVEL_AVX2)
INLINE vi vi_book(vi at, const int8_t book[16]) {
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)book));
    return (vi)_mm256_shuffle_epi8(table, (__m256i)(at & 0x0f0f0f0f));
}
#else
INLINE vi vi_book(vi at, const int8_t book[16]) { // nothing shuffles bytes by other bytes
    uint8_t from[VW * 4];
    int8_t to[VW * 4];
    memcpy(from, &at, sizeof from);
    for (int i = 0; i < VW * 4; i++) to[i] = book[from[i] & 15];
    memcpy(&at, to, sizeof at);
    return at;
}
#endif
/* The nibbles of a word are looked up four at a time; compilers keep what eight of them share. */
INLINE vf vf_book(vi words, int j, const int8_t book[16]) {
    vi four = vi_book((vi)((vu)words >> (4 * (j % 2))), book);
    return vf_of_vi(four << (24 - 8 * (j / 2)) >> 24);
}

#if defined(CPU_LEVEL_AVX2)

INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
INLINE vf vf_max(vf a, vf b) {
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}
INLINE vi vi_max(vi a, vi b) {
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
}
INLINE vf vf_swap(vf v, int n) {
    __m256 x = (__m256)v;
    return (vf)(n == 8   ? _mm256_permute2f128_ps(x, x, 1)
                : n == 4 ? _mm256_shuffle_ps(x, x, 0x4e)
                         : _mm256_shuffle_ps(x, x, 0xb1));
}
INLINE vi vi_load_u8(const uint8_t *p) {
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
INLINE vf vf_load_u8(const uint8_t *p) {
    return vf_of_vi(vi_load_u8(p));
}
INLINE vi vi_load_i8(const int8_t *p) {
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
INLINE vf vf_load_i8(const int8_t *p) {
    return vf_of_vi(vi_load_i8(p));
}
INLINE vf vf_load_f16(const uint16_t *p) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE void vf_store_f16(uint16_t *p, vf v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vi vi_dot(vi acc, vi a, vi b) {
#if defined(CPU_LEVEL_AVXVNNI)
    return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#else
    return vi_in_order(acc + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#endif
}

#else

typedef uint8_t v_u8 __attribute__((vector_size(VW)));
typedef int8_t v_i8 __attribute__((vector_size(VW)));
typedef uint16_t v_u16 __attribute__((vector_size(VW * 2)));

INLINE vf vf_fma(vf a, vf b, vf c) {
    return a * b + c; // two roundings: the build forbids contraction
}
INLINE vf vf_max(vf a, vf b) {
    return vf_select((vi)(a > b), a, b);
}
INLINE vi vi_max(vi a, vi b) {
    return (vi)vf_select((vi)(a > b), (vf)a, (vf)b);
}
INLINE vf vf_swap(vf v, int n) {
    return n == 4 ? (vf){v[2], v[3], v[0], v[1]} : (vf){v[1], v[0], v[3], v[2]};
}
INLINE vi vi_load_u8(const uint8_t *p) {
    v_u8 v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vi);
}
INLINE vf vf_load_u8(const uint8_t *p) {
    return vf_of_vi(vi_load_u8(p));
}
INLINE vi vi_load_i8(const int8_t *p) {
    v_i8 v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vi);
}
INLINE vf vf_load_i8(const int8_t *p) {
    return vf_of_vi(vi_load_i8(p));
}
/* A subnormal half is its mantissa times 2^-24; computing that needs no denormal float. */
INLINE vf vf_load_f16(const uint16_t *p) {
    v_u16 v;
    memcpy(&v, p, sizeof v);
    vi h = __builtin_convertvector(v, vi);
    vi sign = (h & 0x8000) << 16, exponent = h & 0x7c00, mantissa = h & 0x3ff;
    vf small = vf_of_vi(mantissa) * 0x1p-24f;
    vf normal = (vf)(((h & 0x7fff) << 13) + (112 << 23));
    vf special = (vf)(((h & 0x7fff) << 13) | 0x7f800000 | ((mantissa != 0) & 0x400000));
    vf magnitude = vf_select((vi)(exponent == 0), small, normal);
    magnitude = vf_select((vi)(exponent == 0x7c00), special, magnitude);
    return (vf)((vi)magnitude | sign);
}
INLINE void vf_store_f16(uint16_t *p, vf v) {
    for (int i = 0; i < VW; i++) p[i] = f32_to_f16(v[i]);
}
INLINE vi vi_dot(vi acc, vi a, vi b) {
#if defined(__SSE2__)
    return vi_in_order(acc + (vi)_mm_madd_epi16((__m128i)a, (__m128i)b));
#else
    return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

#endif
#endif

/* ---- built from the above ---- */

/* Across lanes, in a fixed tree; every lane has the result. */
INLINE vf vf_all_max(vf v) {
    for (int n = VW; n > 1; n /= 2) v = vf_max(v, vf_swap(v, n));
    return v;
}
INLINE vi vi_all_max(vi v) {
    for (int n = VW; n > 1; n /= 2) v = vi_max(v, (vi)vf_swap((vf)v, n));
    return v;
}
INLINE vi vi_all_add(vi v) {
    for (int n = VW; n > 1; n /= 2) v = v + (vi)vf_swap((vf)v, n);
    return v;
}
INLINE vf vf_all_add(vf v) {
    for (int n = VW; n > 1; n /= 2) v = v + vf_swap(v, n);
    return v;
}

/* e^x with a relative error of at most 2e-7; 0 below -87.  x = n ln2 + r with |r| <= ln2 / 2, the
 * series of e^r up to r^7, and n into the exponent.  ln2 comes in two parts so that n ln2 is exact
 * in its leading part. */
INLINE vf vf_exp(vf x) {
    const vf round = vf_set1(0x1.8p23f); // adding it leaves an integer in the low bits
    vf clamped = vf_max(x, vf_set1(-87.0f));
    clamped = vf_select((vi)(clamped < vf_set1(88.0f)), clamped, vf_set1(88.0f));
    vf shifted = vf_fma(clamped, vf_set1(0x1.715476p0f), round);
    vi n = (vi)shifted - (vi)round;
    vf whole = shifted - round;
    vf r = vf_fma(whole, vf_set1(-0x1.62e4p-1f), clamped);
    r = vf_fma(whole, vf_set1(-0x1.7f7d1cp-20f), r);
    vf sum = vf_set1(1.0f / 5040.0f);
    sum = vf_fma(sum, r, vf_set1(1.0f / 720.0f));
    sum = vf_fma(sum, r, vf_set1(1.0f / 120.0f));
    sum = vf_fma(sum, r, vf_set1(1.0f / 24.0f));
    sum = vf_fma(sum, r, vf_set1(1.0f / 6.0f));
    sum = vf_fma(sum, r, vf_set1(0.5f));
    sum = vf_fma(sum, r, vf_set1(1.0f));
    sum = vf_fma(sum, r, vf_set1(1.0f));
    vf scaled = (vf)((vi)sum + (n << 23));
    /* Not a number fails every comparison; select it back in. */
    scaled = vf_select((vi)(x < vf_set1(-87.0f)), vf_set1(0.0f), scaled);
    return vf_select((vi)(x == x), scaled, x);
}

/* ---- gates ---- */

INLINE vf vf_silu_mul(vf a, vf b) {
    return a / (vf_exp(-a) + 1.0f) * b;
}

/* (1 + tanh(u)) / 2 is 1 / (1 + e^-2u), so both are a gate of one exponential. */
INLINE vf vf_gelu_mul(vf a, vf b) {
    vf u = a * (a * a * 0.044715f + 1.0f) * 1.59576912160573f; // 2 sqrt(2 / pi)
    return a / (vf_exp(-u) + 1.0f) * b;
}

/* ACT_CLAMPED_SWIGLU; not a number fails every comparison and stays. */
INLINE vf vf_clamped_mul(vf a, vf b) {
    vf limit = vf_set1(7.0f);
    a = vf_select((vi)(a > limit), limit, a);
    b = vf_select((vi)(b > limit), limit, b);
    b = vf_select((vi)(b < -limit), -limit, b);
    return a / (vf_exp(a * -1.702f) + 1.0f) * (b + 1.0f);
}

#endif
