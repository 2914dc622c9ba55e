/* cpu_roofs.h - the limits of a matrix product on this CPU, measured next to it: reading memory,
 * and the multiply instruction of a level.  (bench_ceilings measures all roofs of the machine.)
 *
 * Both take short samples on all threads and return the best sample. */
#ifndef INFERD_BENCH_CPU_ROOFS_H
#define INFERD_BENCH_CPU_ROOFS_H

#include <time.h>

#include "cpu/level.h"

enum { ROOF_SAMPLES = 200, ROOF_TURNS = 20000, ROOF_CHAINS = 12, ROOF_AHEAD_BYTES = 8192 };
#define ROOF_PIECE ((size_t)4 << 20) // read by one thread in one sample

static inline double roof_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ---- reading ---- */

typedef struct roof_reading {
    const unsigned char *at;
} roof_reading;

static inline void roof_read_piece(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const roof_reading *r = ctx;
    const unsigned char *at = r->at + rank * ROOF_PIECE;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    (void)n_ranks;
    for (size_t i = 0; i < ROOF_PIECE; i += 64) {
        const uint64_t *w = (const uint64_t *)(const void *)(at + i);
        __builtin_prefetch(at + i + ROOF_AHEAD_BYTES);
        a |= w[0] | w[4], b |= w[1] | w[5], c |= w[2] | w[6], d |= w[3] | w[7];
    }
    __asm__ volatile("" : : "r"(a | b | c | d));
}

/* Bytes per second of all threads, from memory of n_bytes that no cache holds. */
static inline double roof_read(tpool *p, const unsigned char *memory, size_t n_bytes) {
    size_t step = tpool_n_threads(p) * ROOF_PIECE;
    double best = 0;
    for (size_t s = 0; s < ROOF_SAMPLES; s++) {
        roof_reading r = {memory + s % (n_bytes / step) * step};
        double begin = roof_now();
        tpool_run(p, roof_read_piece, &r);
        double rate = (double)step / (roof_now() - begin);
        if (rate > best) best = rate;
    }
    return best;
}

/* ---- multiplying ---- */

#if defined(__x86_64__)

/* Sums are in registers 0..11, factors in 14 and 15, an intermediate product in 13. */
#define ROOF_LOOP(name, one)                                                                       \
    static void roof_##name(void *ctx, uint32_t rank, uint32_t n_ranks) {                          \
        uint64_t n = ROOF_TURNS;                                                                   \
        (void)ctx, (void)rank, (void)n_ranks;                                                      \
        __asm__ volatile("1:\n\t" one("0") one("1") one("2") one("3") one("4") one("5") one("6")   \
                             one("7") one("8") one("9") one("10") one("11") "dec %0\n\tjnz 1b"     \
                         : "+r"(n)                                                                 \
                         :                                                                         \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                           "xmm9", "xmm10", "xmm11", "xmm13", "cc");                               \
    }
#define ROOF_PAIRS_SSE2(i)                                                                         \
    "movdqa %%xmm14, %%xmm13\n\tpmaddwd %%xmm15, %%xmm13\n\tpaddd %%xmm13, %%xmm" i "\n\t"
#define ROOF_PAIRS_AVX2(i)                                                                         \
    "vpmaddwd %%ymm14, %%ymm15, %%ymm13\n\tvpaddd %%ymm13, %%ymm" i ", %%ymm" i "\n\t"
#define ROOF_PAIRS_AVX512(i)                                                                       \
    "vpmaddwd %%zmm14, %%zmm15, %%zmm13\n\tvpaddd %%zmm13, %%zmm" i ", %%zmm" i "\n\t"
#define ROOF_PAIRS_AVXVNNI(i)    "%{vex%} vpdpwssd %%ymm14, %%ymm15, %%ymm" i "\n\t"
#define ROOF_PAIRS_AVX512VNNI(i) "vpdpwssd %%zmm14, %%zmm15, %%zmm" i "\n\t"
#define ROOF_BF16(i)             "vdpbf16ps %%zmm14, %%zmm15, %%zmm" i "\n\t"
#define ROOF_F32_SSE2(i)                                                                           \
    "movaps %%xmm14, %%xmm13\n\tmulps %%xmm15, %%xmm13\n\taddps %%xmm13, %%xmm" i "\n\t"
#define ROOF_F32_AVX2(i)   "vfmadd231ps %%ymm14, %%ymm15, %%ymm" i "\n\t"
#define ROOF_F32_AVX512(i) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" i "\n\t"
ROOF_LOOP(pairs_sse2, ROOF_PAIRS_SSE2)
ROOF_LOOP(pairs_avx2, ROOF_PAIRS_AVX2)
ROOF_LOOP(pairs_avxvnni, ROOF_PAIRS_AVXVNNI)
ROOF_LOOP(pairs_avx512, ROOF_PAIRS_AVX512)
ROOF_LOOP(pairs_avx512vnni, ROOF_PAIRS_AVX512VNNI)
ROOF_LOOP(bf16, ROOF_BF16)
ROOF_LOOP(f32_sse2, ROOF_F32_SSE2)
ROOF_LOOP(f32_avx2, ROOF_F32_AVX2)
ROOF_LOOP(f32_avx512, ROOF_F32_AVX512)

typedef struct roof_level {
    const char *name;
    tpool_fn *f32, *pairs;
    uint32_t lanes;
} roof_level;

static const roof_level roof_levels[] = {
    {"define", roof_f32_sse2, roof_pairs_sse2, 4},
    {"base", roof_f32_sse2, roof_pairs_sse2, 4},
    {"avx2", roof_f32_avx2, roof_pairs_avx2, 8},
    {"avxvnni", roof_f32_avx2, roof_pairs_avxvnni, 8},
    {"avx512", roof_f32_avx512, roof_pairs_avx512, 16},
    {"avx512vnni", roof_f32_avx512, roof_pairs_avx512vnni, 16},
    {"avx512bf16", roof_f32_avx512, roof_pairs_avx512vnni, 16},
    {"avx512amx", roof_f32_avx512, roof_pairs_avx512vnni, 16}, // tiles are faster: over 100 %
};

/* Operations per second of all threads (a product and its addition are two); 0: not known. */
static inline double roof_multiply(tpool *p, const cpu_level *level, cpu_math math) {
    double best = 0;
    for (size_t i = 0; i < INFERD_COUNT(roof_levels); i++) {
        const roof_level *l = &roof_levels[i];
        if (strcmp(l->name, level->name) != 0) continue;
        tpool_fn *f = math == MATH_F32 ? l->f32 : math == MATH_I16 ? l->pairs : roof_bf16;
        double n_ops = (double)ROOF_TURNS * ROOF_CHAINS * l->lanes * (math == MATH_F32 ? 2 : 4) *
                       tpool_n_threads(p);
        for (int s = 0; s < ROOF_SAMPLES; s++) {
            double begin = roof_now();
            tpool_run(p, f, NULL);
            double rate = n_ops / (roof_now() - begin);
            if (rate > best) best = rate;
        }
    }
    return best;
}

#else
static inline double roof_multiply(tpool *p, const cpu_level *level, cpu_math math) {
    (void)p, (void)level, (void)math;
    return 0;
}
#endif

#endif
