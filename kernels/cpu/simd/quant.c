/* quant.c - RMS norm, and rows in the format of the fast products (qact.h).  Compiled per level.
 *
 * A row is read two or three times and stays in L1 meanwhile: its squares, its largest magnitude,
 * its factors.  The normed values are computed twice rather than kept: two multiplications each.
 *
 *     norm     y = x * scale * w, the arithmetic of rmsnorm
 *     factor   q = round(y * (32767 / max |y|)), the product rounded once before
 *
 * Rounding adds 1.5 * 2^23, which leaves the integer in the low bits: nearest even at every level.
 *
 * Thread: any; ranges of one job do not overlap. */
#include <math.h>

#include "cpu/level.h"
#include "cpu/simd/simd.h"

/* Sixteen sums, element i in sum i % 16, then added up in a fixed tree: halves, quarters, ... */
static float sum_of_squares(const float *x, uint32_t n) {
    enum { N = 16 / VW };
    float rest[16] = {0};
    vf sums[N];
    for (int v = 0; v < N; v++) sums[v] = vf_set1(0);
    for (uint32_t i = 0; i < n; i += 16) {
        const float *part = x + i;
        if (n - i < 16) part = memcpy(rest, part, (n - i) * sizeof *rest);
        UNROLL
        for (int v = 0; v < N; v++) sums[v] += vf_load(part + v * VW) * vf_load(part + v * VW);
    }
    for (int half = N / 2; half > 0; half /= 2)
        for (int v = 0; v < half; v++) sums[v] += sums[v + half];
    return vf_all_add(sums[0])[0];
}

static float norm_scale(const float *x, uint32_t n, float eps) {
    return 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
}

void LEVEL(rmsnorm)(const void *job, uint32_t begin, uint32_t end) {
    const rmsnorm_job *j = job;
    for (size_t row = begin; row < end; row++) {
        const float *x = j->x + row * j->dim;
        float *out = j->out + row * j->dim;
        float scale = norm_scale(x, j->dim, j->eps);
        for (uint32_t i = 0; i < j->dim; i++) out[i] = x[i] * scale * j->w[i];
    }
}

/* ---- factors ---- */

/* A row that is being converted: its elements are x, or x * scale * w. */
typedef struct row_in {
    const float *x, *w; // w NULL: no norm
    float *normed;      // NULL: not needed
    vf scale;
    unsigned char *planes; // of its first columns (qact.h); NULL: not as planes
} row_in;

INLINE vf value(const row_in *in, uint32_t i) {
    vf x = vf_load(in->x + i);
    return in->w != NULL ? x * in->scale * vf_load(in->w + i) : x;
}

/* Columns in words of 8 become pairs p, p + 4 of 16 bits: a and b are 2 * VW columns. */
INLINE vi pairs(vi a, vi b) {
#if defined(CPU_LEVEL_AVX512)
    vi low =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    vi high =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#elif defined(CPU_LEVEL_AVX2)
    vi low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    vi high = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
#else
    vi low = a, high = b;
#endif
    return (low & 0xffff) | high << 16;
}

/* VW pairs of a row to their places among those of a tile of n_rows. */
INLINE void put(uint32_t *q, uint32_t n_rows, vi pairs_of_row) {
    if (n_rows == 1) {
        vi_store(q, pairs_of_row);
        return;
    }
    uint32_t part[VW];
    vi_store(part, pairs_of_row);
    for (int i = 0; i < VW; i++) q[(size_t)i * n_rows] = part[i];
}

INLINE float largest(const row_in *in, uint32_t n) {
    vi max = vi_set1(0); // of floats without their signs, which order as integers do; NaN is last
    for (uint32_t i = 0; i < n; i += VW) max = vi_max(max, (vi)value(in, i) & 0x7fffffff);
    return ((vf)vi_all_max(max))[0];
}

#if defined(CPU_LEVEL_AVX512AMX)
/* VW columns of a row to their places in both planes. */
INLINE void put_planes(unsigned char *planes, vi x) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m128i high = _mm512_cvtepi32_epi8((__m512i)(x >> 8)), low = _mm512_cvtepi32_epi8((__m512i)x);
    _mm_storeu_si128((__m128i *)planes, _mm_shuffle_epi8(high, order));
    _mm_storeu_si128((__m128i *)(planes + QACT_PLANE_BYTES), _mm_shuffle_epi8(low, order));
}
#endif

/* Sums of 16 columns each. */
typedef struct halves {
    int32_t sum[2];
} halves;

/* 32 columns: their pairs, and their planes if there are such; returns their sums. */
INLINE halves group(const row_in *in, uint32_t begin, vf inverse, vi keep, uint32_t *q,
                    uint32_t n_rows) {
    const vf round = vf_set1(0x1.8p23f);
    vi sum[2] = {vi_set1(0), vi_set1(0)}; // of avx512 the first has both halves
    UNROLL
    for (int i = 0; i < 32; i += 2 * VW) {
        vf y[2];
        vi rounded[2];
        UNROLL
        for (int half = 0; half < 2; half++) {
            uint32_t at = begin + (uint32_t)(i + half * VW);
            y[half] = value(in, at);
            if (in->normed != NULL) vf_store(in->normed + at, y[half]);
            rounded[half] = ((vi)(y[half] * inverse + round) - (vi)round) & keep;
        }
#if defined(CPU_LEVEL_AVX512AMX)
        if (in->planes != NULL) {
            unsigned char *planes = in->planes + (size_t)(begin / 32) * 2 * QACT_PLANE_BYTES;
            put_planes(planes, rounded[0]);
            put_planes(planes + VW, rounded[1]);
        }
#endif
        vi both = pairs(rounded[0], rounded[1]);
        put(q + (size_t)(i / 2) * n_rows, n_rows, both);
        sum[i / 16] = vi_dot(sum[i / 16], both, vi_set1(0x00010001));
    }
    UNROLL
    for (int n = VW < 8 ? VW : 8; n > 1; n /= 2) UNROLL
    for (int half = 0; half < (VW == 16 ? 1 : 2); half++)
        sum[half] += (vi)vf_swap((vf)sum[half], n);
    return (halves){{sum[0][0], VW == 16 ? sum[0][VW / 2] : sum[1][0]}};
}

/* The sums of 32 columns of a row, in a tile of n_rows. */
INLINE void put_sums(halves h, uint32_t n_rows, int32_t *sum, int32_t *sum16) {
    *sum = h.sum[0] + h.sum[1];
    sum16[0] = h.sum[0];
    sum16[n_rows] = h.sum[1];
}

/* The factor of a row, 32767 / max, or a mask that clears the row.  Returns its scale. */
INLINE float choose_scale(const row_in *in, uint32_t cols, vf *inverse, vi *keep) {
    float max = largest(in, cols);
    bool finite = max < INFINITY, counts = finite && max >= QACT_TINY;
    *inverse = vf_set1(counts ? 32767.0f / max : 0.0f);
    *keep = vi_set1(counts ? -1 : 0);
    return !finite ? NAN : counts ? max / 32767.0f : 0.0f;
}

/* Row r of a tile of n_rows. */
INLINE void quantize_row(const row_in *in, uint32_t cols, uint32_t r, uint32_t n_rows, uint32_t *q,
                         int32_t *sum, int32_t *sum16, float *scale) {
    vf inverse;
    vi keep;
    *scale = choose_scale(in, cols, &inverse, &keep);
    for (uint32_t i = 0; i < cols; i += 32)
        put_sums(group(in, i, inverse, keep, q + (size_t)(i / 2) * n_rows + r, n_rows), n_rows,
                 sum + (size_t)(i / 32) * n_rows + r, sum16 + (size_t)(i / 16) * n_rows + r);
}

/* [8 rows][16 pairs] to [16 pairs][8 rows], in squares of four. */
INLINE void transpose(uint32_t (*in)[16], uint32_t *out) {
    typedef uint32_t four __attribute__((vector_size(16)));
    typedef uint32_t four_any __attribute__((vector_size(16), aligned(4), may_alias));
    UNROLL
    for (int p = 0; p < 16; p += 4) UNROLL
    for (int r = 0; r < QACT_ROWS; r += 4) {
        four x[4], y[4];
        UNROLL
        for (int i = 0; i < 4; i++) x[i] = *(const four_any *)(in[r + i] + p);
        y[0] = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
        y[1] = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
        y[2] = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
        y[3] = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
        UNROLL
        for (int i = 0; i < 4; i += 2) {
            uint32_t *to = out + (p + i) * QACT_ROWS + r;
            *(four_any *)to = __builtin_shufflevector(y[i], y[i + 1], 0, 1, 4, 5);
            *(four_any *)(to + QACT_ROWS) = __builtin_shufflevector(y[i], y[i + 1], 2, 3, 6, 7);
        }
    }
}

/* The rows of a whole tile together: their pairs are transposed in registers. */
INLINE void quantize_tile(const row_in *in, uint32_t cols, uint32_t *q, int32_t *sum,
                          int32_t *sum16, float *scale) {
    vf inverse[QACT_ROWS];
    vi keep[QACT_ROWS];
    for (int r = 0; r < QACT_ROWS; r++)
        scale[r] = choose_scale(&in[r], cols, &inverse[r], &keep[r]);
    for (uint32_t i = 0; i < cols; i += 32, q += 16 * QACT_ROWS, sum += QACT_ROWS) {
        int32_t *halves_of = sum16 + (size_t)(i / 16) * QACT_ROWS;
        _Alignas(64) uint32_t pairs_of[QACT_ROWS][16];
        for (int r = 0; r < QACT_ROWS; r++)
            put_sums(group(&in[r], i, inverse[r], keep[r], pairs_of[r], 1), QACT_ROWS, sum + r,
                     halves_of + r);
        transpose(pairs_of, q);
    }
}

/* ---- bf16 ---- */

#if defined(CPU_LEVEL_AVX512BF16)
INLINE vi bf16_bits(vf v) {
    return (vi)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v));
}

enum { STEP = 2 * VW }; // columns at a time

/* Pairs of both terms of 2 * VW columns. */
INLINE void split_pairs(vf a, vf b, vi out[2]) {
    vi first_a = bf16_bits(a), first_b = bf16_bits(b);
    out[0] = pairs(first_a, first_b);
    out[1] = pairs(bf16_bits(a - (vf)(first_a << 16)), bf16_bits(b - (vf)(first_b << 16)));
}

INLINE void bf16_pairs(const row_in *in, uint32_t i, vi out[2]) {
    vf a = value(in, i), b = value(in, i + VW);
    if (in->normed != NULL) {
        vf_store(in->normed + i, a);
        vf_store(in->normed + i + VW, b);
    }
    split_pairs(a, b, out);
}

/* Columns from i on, less than a whole step; zeros follow up to a whole word. */
INLINE void bf16_rest(const row_in *in, uint32_t i, uint32_t cols, uint32_t r, uint32_t n_rows,
                      uint32_t *q, size_t plane) {
    if (i == cols) return;
    float x[STEP] = {0}, w[STEP] = {0}, normed[STEP];
    uint32_t part[VW], left = cols - i;
    memcpy(x, in->x + i, left * sizeof *x);
    if (in->w != NULL) memcpy(w, in->w + i, left * sizeof *w);
    row_in rest = {x, in->w != NULL ? w : NULL, NULL, in->scale};
    vf a = value(&rest, 0), b = value(&rest, VW);
    vf_store(normed, a);
    vf_store(normed + VW, b);
    if (in->normed != NULL) memcpy(in->normed + i, normed, left * sizeof *normed);
    vi terms[2];
    split_pairs(a, b, terms);
    for (int t = 0; t < 2; t++) {
        vi_store(part, terms[t]);
        for (uint32_t p = 0; p < qact_padded(left) / 2; p++)
            q[(size_t)t * plane + (i / 2 + p) * (size_t)n_rows + r] = part[p];
    }
}

/* plane: from the first terms to the second ones */
INLINE void bf16_row(const row_in *in, uint32_t cols, uint32_t r, uint32_t n_rows, uint32_t *q) {
    const size_t plane = qact_padded(cols) / 2 * n_rows;
    uint32_t i = 0;
    for (; i + STEP <= cols; i += STEP) {
        vi terms[2];
        bf16_pairs(in, i, terms);
        for (int t = 0; t < 2; t++)
            put(q + (size_t)t * plane + (size_t)(i / 2) * n_rows + r, n_rows, terms[t]);
    }
    bf16_rest(in, i, cols, r, n_rows, q, plane);
}

INLINE void bf16_tile(const row_in *in, uint32_t cols, uint32_t *q) {
    const size_t plane = qact_padded(cols) / 2 * QACT_ROWS;
    _Alignas(64) uint32_t pairs_of[2][QACT_ROWS][VW];
    uint32_t i = 0;
    for (; i + STEP <= cols; i += STEP) {
        for (int r = 0; r < QACT_ROWS; r++) {
            vi terms[2];
            bf16_pairs(&in[r], i, terms);
            for (int t = 0; t < 2; t++) vi_store(pairs_of[t][r], terms[t]);
        }
        for (int t = 0; t < 2; t++)
            transpose(pairs_of[t], q + (size_t)t * plane + (size_t)(i / 2) * QACT_ROWS);
    }
    for (uint32_t r = 0; r < QACT_ROWS; r++) bf16_rest(&in[r], i, cols, r, QACT_ROWS, q, plane);
}
#endif

/* ---- jobs ---- */

/* Also prefetches the row of the next tile: the products left it in L3, or in another core. */
INLINE row_in open_row(const qact_job *j, bool normed, size_t row) {
    row_in in = {.x = j->x + (j->rows != NULL ? j->rows[row] : row) * j->dim};
    if (row + QACT_ROWS < j->n)
        for (uint32_t i = 0; i < j->dim; i += 16)
            __builtin_prefetch(in.x + (size_t)QACT_ROWS * j->dim + i);
    if (normed) {
        in.w = j->norm;
        in.scale = vf_set1(norm_scale(in.x, j->dim, j->eps));
        if (j->normed != NULL) in.normed = j->normed + row * j->dim;
    }
#if defined(CPU_LEVEL_AVX512AMX)
    if (j->math == MATH_I16 && row < qact_plane_rows(j->n))
        in.planes = qact_planes(&j->out, j->n, j->dim) +
                    row / QACT_PLANE_ROWS * QACT_PLANE_ROWS * 2 * j->dim +
                    row % QACT_PLANE_ROWS * QACT_PLANE_COLS;
#endif
    return in;
}

INLINE void make_tile(const qact_job *j, bool normed, uint32_t i) {
    const uint32_t n_rows = qact_tile_rows(j->n, i);
    size_t first = (size_t)i * QACT_ROWS, padded = qact_padded(j->dim);
    uint32_t *q = (uint32_t *)(void *)(j->out.q + first * padded * qact_terms(j->math));
    int32_t *sum = j->out.sum + first * (padded / 32);
    int32_t *sum16 = j->out.sum16 + first * (padded / 16);
    if (n_rows == QACT_ROWS) {
        row_in in[QACT_ROWS];
        for (uint32_t r = 0; r < QACT_ROWS; r++) in[r] = open_row(j, normed, first + r);
#if defined(CPU_LEVEL_AVX512BF16)
        if (j->math == MATH_BF16) {
            bf16_tile(in, j->dim, q);
            return;
        }
#endif
        quantize_tile(in, j->dim, q, sum, sum16, j->out.scale + first);
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        row_in in = open_row(j, normed, first + r);
#if defined(CPU_LEVEL_AVX512BF16)
        if (j->math == MATH_BF16) {
            bf16_row(&in, j->dim, r, n_rows, q);
            continue;
        }
#endif
        quantize_row(&in, j->dim, r, n_rows, q, sum, sum16, &j->out.scale[first + r]);
    }
}

void LEVEL(quantize)(const void *job, uint32_t begin, uint32_t end) {
    const qact_job *j = job;
#if defined(CPU_LEVEL_AVX512BF16)
    INFERD_CHECK(j->math == MATH_BF16 || (j->math == MATH_I16 && j->dim % 32 == 0));
#else
    INFERD_CHECK(j->math == MATH_I16 && j->dim % 32 == 0);
#endif
    for (uint32_t i = begin; i < end; i++) {
        if (j->norm != NULL)
            make_tile(j, true, i);
        else
            make_tile(j, false, i);
    }
}
