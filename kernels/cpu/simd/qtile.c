/* qtile.c - a tile of rows times a part of a panel (qmatmul.c).  Compiled per level.
 *
 * Lanes are output features (panel.h).  A word of weights becomes pairs of 16-bit factors by a
 * shift and a mask, 32 bits of activations are broadcast, and one instruction multiplies and adds
 * both.  A tile holds n_rows x n_vecs dots in registers and their totals, needed once in a group,
 * in L1; there is one for each number of rows, none is padded.
 *
 * Few rows are bound by the bytes of the weights, which are prefetched.  Many rows are bound by the
 * multiplying units; then the next panel is prefetched while the first tile reads this one.
 *
 * Thread: any. */
#include "cpu/level.h"
#include "cpu/simd/qtile.h"

/* Columns k and k + 4 of the word, less the offset. */
INLINE vi pair(dtype type, const word *w, int k) {
    if (type == DTYPE_Q8_0) {
        vs four = (vs)w->low[k / 2];
        return (vi)((k % 2 == 0 ? four << 8 : four) >> 8);
    }
    if (dtype_codebook(type) != NULL) {
        vs four = (vs)w->low[k % 2];
        return (vi)((k < 2 ? four << 8 : four) >> 8);
    }
    vi q = k == 3 ? (vi)((vus)w->low[0] >> 12) : (vi)((vu)w->low[0] >> (4 * k)) & 0x000f000f;
    if (type == DTYPE_Q6_K) {
        vi high = k < 2 ? w->high << (4 - 2 * k) : (vi)((vu)w->high >> (2 * k - 4));
        q |= high & 0x00300030;
    }
    if (type == DTYPE_Q5_0 || type == DTYPE_Q5_1 || type == DTYPE_Q5_K)
        q |= w->high << (4 - k) & 0x00100010;
    return (vi)((vs)q - offset_of(type));
}

/* ---- tiles ---- */

/* Prefetch the lines of [at, at + n_bytes), `ahead` bytes further on: into L1 data that is read
 * soon, into L2 the data of the next panel. */
INLINE void fetch(const void *at, size_t n_bytes, size_t ahead, bool soon) {
    UNROLL
    for (size_t i = 0; i < n_bytes; i += 64) {
        if (soon)
            __builtin_prefetch((const unsigned char *)at + ahead + i, 0, 3);
        else
            __builtin_prefetch((const unsigned char *)at + ahead + i, 0, 2);
    }
}

/* The parts of a group that a tile reads besides its words. */
INLINE void fetch_scales(const panel_group *p, uint32_t lane, size_t n_lanes, size_t ahead,
                         bool soon) {
    if (p->d != NULL) fetch(p->d + lane, n_lanes * 2, ahead, soon);
    if (p->m != NULL) fetch(p->m + lane, n_lanes * 2, ahead, soon);
    if (p->scale_u8 != NULL) fetch(p->scale_u8 + lane, n_lanes, ahead, soon);
    if (p->min_u8 != NULL) fetch(p->min_u8 + lane, n_lanes, ahead, soon);
    if (p->scale_i8 != NULL) fetch(p->scale_i8 + lane, n_lanes, ahead, soon);
    if (p->exponent != NULL) fetch(p->exponent + lane, n_lanes, ahead, soon);
    if (p->high != NULL) fetch(p->high + lane, n_lanes * 4, ahead, soon);
}

enum { WORD_LINES = PANEL_ROWS * 4 / 64 }; // cache lines of 32 bits of each row of a panel

/* Before product i of n: a stream prefetches one of n_lines lines, if it is its turn.  A stream
 * waits for the memory, and evenly spread fetches keep the memory busy: all lines at once took up
 * to 40 % longer. */
INLINE void fetch_between(const unsigned char *lines, int n_lines, int i, int n) {
    if (i % (n / n_lines) == 0) __builtin_prefetch(lines + i / (n / n_lines) * 64, 0, 3);
    __asm__ volatile(""); // keeps it between the products
}

/* Of types with two scales: what a block begins with. */
INLINE void fetch_block(dtype type, const panel_group *p, uint32_t lane, size_t n_lanes,
                        size_t ahead, bool soon) {
    fetch(p->d + lane, n_lanes * 2, ahead, soon);
    if (type == DTYPE_Q2_K) fetch(p->m + lane, n_lanes * 2, ahead, soon);
}
/* The words of a half of a group: of three words two and one. */
INLINE int first_word(dtype type, uint32_t half) {
    return type == DTYPE_Q3_K && half == 1 ? 2 : (int)half;
}
INLINE int n_words(dtype type, uint32_t half) {
    return type == DTYPE_Q3_K && half == 0 ? 2 : 1;
}
/* A half's scale and, except for a stream, its words. */
INLINE void fetch_half(dtype type, const panel_group *p, uint32_t half, uint32_t lane,
                       size_t n_lanes, size_t ahead, bool stream) {
    const unsigned char *scale = type == DTYPE_Q2_K ? p->both_u4 : (const uint8_t *)p->scale_i8;
    fetch(scale + half * PANEL_ROWS + lane, n_lanes, ahead, stream);
    if (stream) return;
    UNROLL
    for (int i = 0; i < n_words(type, half); i++)
        fetch(p->q + ((size_t)(first_word(type, half) + i) * PANEL_ROWS + lane) * 4, n_lanes * 4,
              ahead, false);
}

/* n words of 8 columns. */
INLINE void fetch_words(dtype type, const unsigned char *q, uint32_t n, uint32_t lane,
                        size_t n_lanes, size_t ahead, bool soon) {
    UNROLL
    for (uint32_t i = 0; i < n * words_of(type); i++)
        fetch(q + ((size_t)i * PANEL_ROWS + lane) * 4, n_lanes * 4, ahead, soon);
}

INLINE void tile_i16(dtype type, int n_rows, int n_vecs, source w, uint32_t lane, x_tile x,
                     float *sums) {
    const uint32_t in_group = group_cols(type);
    const size_t n_lanes = (size_t)n_vecs * VW;
    const bool soon = streams(type, n_rows) || words_of(type) > 1;
    const bool stream = is_whole(n_vecs);
    const int n_lines = (int)words_of(type) * WORD_LINES;
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++) vf_store(sums + r * PANEL_ROWS + v * VW, vf_set1(0));
    for (uint32_t g = 0; g < w.cols / in_group; g++, x.sum += has_base(type) ? n_rows : 0) {
        panel_group p = panel_group_at(type, w.panel, g);
        const bool fetches = (uintptr_t)p.q + w.ahead < (uintptr_t)w.end;
        if (fetches) {
            fetch_scales(&p, lane, n_lanes, w.ahead, soon);
            if (!stream)
                fetch_words(type, p.q, in_group / PANEL_WORD, lane, n_lanes, w.ahead, soon);
        }
        const size_t later = fetches ? w.ahead : 0; // past the end, what is read now
        vi dot[QACT_ROWS][4], high[4];
        UNROLL
        for (int v = 0; v < n_vecs; v++)
            high[v] = p.high != NULL ? vi_load(p.high + lane + v * VW) : vi_set1(0);
        UNROLL
        for (int r = 0; r < n_rows; r++) UNROLL
        for (int v = 0; v < n_vecs; v++) dot[r][v] = vi_set1(0);
        ROLLED
        for (uint32_t i = 0; i < in_group / PANEL_WORD; i++) {
            const unsigned char *at = p.q + (size_t)i * words_of(type) * PANEL_ROWS * 4;
            word words[4];
            UNROLL
            for (int v = 0; v < n_vecs; v++)
                words[v] = word_at(type, at, &high[v], lane + (uint32_t)(v * VW));
            UNROLL
            for (int k = 0; k < 4; k++, x.q += n_rows) {
                vi pairs[4];
                UNROLL
                for (int v = 0; v < n_vecs; v++) pairs[v] = pair(type, &words[v], k);
                UNROLL
                for (int r = 0; r < n_rows; r++) {
                    vi a = vi_set1((int32_t)x.q[r]);
                    UNROLL
                    for (int v = 0; v < n_vecs; v++) {
                        if (stream && r == 0)
                            fetch_between(at + later, n_lines, k * n_vecs + v, 4 * n_vecs);
                        dot[r][v] = vi_dot(dot[r][v], pairs[v], a);
                    }
                }
            }
        }
        COMPILER_FENCE; // before it, the dots need the registers
        UNROLL
        for (int v = 0; v < n_vecs; v++) {
            vf scale, base;
            group_scale(type, &p, 0, lane + (uint32_t)(v * VW), &scale, &base);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                float *at = sums + r * PANEL_ROWS + v * VW;
                vf total = vf_fma(scale, vf_of_vi(dot[r][v]), vf_load(at));
                if (has_base(type)) total = vf_fma(base, vf_of_vi(vi_set1(x.sum[r])), total);
                vf_store(at, total);
            }
        }
    }
}

/* ---- types with two scales in a group ---- */

/* Columns k and k + 4 of a word of codes, without the offset: the sums have it (add_half). */
INLINE vi code_pair(dtype type, vi codes, int k) {
    return type == DTYPE_Q2_K ? (vi)((vu)codes >> (2 * k)) & 0x00030003
                              : (vi)((vu)codes >> (3 * k)) & 0x00070007;
}

/* Two words of a group, from `first` on, times their columns; x.q moves on. */
INLINE void dot_half(dtype type, int n_rows, int n_vecs, const panel_group *p, uint32_t half,
                     uint32_t lane, size_t later, x_tile *x, vi dot[QACT_ROWS][4]) {
    const unsigned char *lines = p->q + (size_t)first_word(type, half) * PANEL_ROWS * 4 + later;
    const int n_lines = n_words(type, half) * WORD_LINES;
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++) dot[r][v] = vi_set1(0);
    UNROLL
    for (uint32_t i = 2 * half; i < 2 * half + 2; i++) {
        vi words[4];
        UNROLL
        for (int v = 0; v < n_vecs; v++)
            words[v] = code_word(type, p->q, i, lane + (uint32_t)(v * VW));
        UNROLL
        for (int k = 0; k < 4; k++, x->q += n_rows) {
            vi pairs[4];
            UNROLL
            for (int v = 0; v < n_vecs; v++) pairs[v] = code_pair(type, words[v], k);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vi a = vi_set1((int32_t)x->q[r]);
                UNROLL
                for (int v = 0; v < n_vecs; v++) {
                    if (is_whole(n_vecs) && r == 0)
                        fetch_between(lines, n_lines, (int)(i % 2 * 4 + (uint32_t)k) * n_vecs + v,
                                      8 * n_vecs);
                    dot[r][v] = vi_dot(dot[r][v], pairs[v], a);
                }
            }
        }
    }
}

/* Sums of a block of 256 columns, exact: of scale times dot, below 2^30, and, while there are
 * registers for them, of minimum times x. */
typedef struct block_sums {
    vi dot[QACT_ROWS][4], min[QACT_ROWS][4];
} block_sums;

INLINE bool has_min_sums(dtype type, int n_rows) {
    return has_base(type) && n_rows <= 2;
}

INLINE void clear_block(int n_rows, int n_vecs, block_sums *b) {
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++) b->dot[r][v] = b->min[r][v] = vi_set1(0);
}

/* The dots of half a group to the sums of its block. */
INLINE void add_half(dtype type, int n_rows, int n_vecs, const panel_group *p, uint32_t half,
                     uint32_t lane, const int32_t *sum16, vi dot[QACT_ROWS][4], block_sums *b) {
    vi of_x[QACT_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++) of_x[r] = vi_set1(sum16[r]);
    UNROLL
    for (int v = 0; v < n_vecs; v++) {
        const uint32_t at = half * PANEL_ROWS + lane + (uint32_t)(v * VW);
        vi both = type == DTYPE_Q2_K ? vi_load_u8(p->both_u4 + at) : vi_load_i8(p->scale_i8 + at);
        vi scale = type == DTYPE_Q2_K ? both & 15 : both;
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            b->dot[r][v] += scale * (dot[r][v] - of_x[r] * offset_of(type));
            if (has_min_sums(type, n_rows)) b->min[r][v] += (vi)((vu)both >> 4) * of_x[r];
        }
    }
}

/* Minima times x of a block that begins with group `first`, for one vector of lanes. */
INLINE void sum_minima(int n_rows, const unsigned char *panel, uint32_t first, uint32_t lane,
                       const int32_t *sum16, vi min[QACT_ROWS]) {
    UNROLL
    for (int r = 0; r < n_rows; r++) min[r] = vi_set1(0);
    for (uint32_t h = 0; h < PANEL_BLOCK / 16; h++, sum16 += n_rows) {
        panel_group p = panel_group_at(DTYPE_Q2_K, panel, first + h / 2);
        vu both = (vu)vi_load_u8(p.both_u4 + h % 2 * PANEL_ROWS + lane);
        UNROLL
        for (int r = 0; r < n_rows; r++) min[r] += (vi)(both >> 4) * vi_set1(sum16[r]);
    }
}

/* The sums of a block, scaled, to those of the rows. */
INLINE void finish_block(dtype type, int n_rows, int n_vecs, const unsigned char *panel,
                         uint32_t first, uint32_t lane, const int32_t *sum16, const block_sums *b,
                         float *sums) {
    panel_group p = panel_group_at(type, panel, first);
    UNROLL
    for (int v = 0; v < n_vecs; v++) {
        vf d = vf_load_f16(p.d + lane + v * VW), m = vf_set1(0);
        vi min[QACT_ROWS];
        if (has_base(type)) m = -vf_load_f16(p.m + lane + v * VW);
        if (has_base(type) && !has_min_sums(type, n_rows))
            sum_minima(n_rows, panel, first, lane + (uint32_t)(v * VW), sum16, min);
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            float *at = sums + r * PANEL_ROWS + v * VW;
            if (has_min_sums(type, n_rows)) min[r] = b->min[r][v];
            vf total = vf_fma(d, vf_of_vi(b->dot[r][v]), vf_load(at));
            if (has_base(type)) total = vf_fma(m, vf_of_vi(min[r]), total);
            vf_store(at, total);
        }
    }
}

INLINE void tile_halves(dtype type, int n_rows, int n_vecs, source w, uint32_t lane, x_tile x,
                        float *sums) {
    const uint32_t n_groups = PANEL_BLOCK / group_cols(type); // of a block
    const size_t n_lanes = (size_t)n_vecs * VW;
    const bool stream = is_whole(n_vecs);
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++) vf_store(sums + r * PANEL_ROWS + v * VW, vf_set1(0));
    for (uint32_t first = 0; first < w.cols / group_cols(type); first += n_groups) {
        panel_group begin = panel_group_at(type, w.panel, first);
        const int32_t *sum16 = x.sum16;
        block_sums b;
        clear_block(n_rows, n_vecs, &b);
        if ((uintptr_t)begin.q + w.ahead < (uintptr_t)w.end)
            fetch_block(type, &begin, lane, n_lanes, w.ahead, stream);
        ROLLED
        for (uint32_t g = first; g < first + n_groups; g++) {
            panel_group p = panel_group_at(type, w.panel, g);
            const bool fetches = (uintptr_t)p.q + w.ahead < (uintptr_t)w.end;
            UNROLL
            for (uint32_t half = 0; half < 2; half++, x.sum16 += n_rows) {
                vi dot[QACT_ROWS][4];
                if (fetches) fetch_half(type, &p, half, lane, n_lanes, w.ahead, stream);
                dot_half(type, n_rows, n_vecs, &p, half, lane, fetches ? w.ahead : 0, &x, dot);
                COMPILER_FENCE; // before it, the dots need the registers
                add_half(type, n_rows, n_vecs, &p, half, lane, x.sum16, dot, &b);
            }
        }
        finish_block(type, n_rows, n_vecs, w.panel, first, lane, sum16, &b, sums);
    }
}

#if defined(CPU_LEVEL_AVX512BF16)
INLINE void tile_bf16(int n_rows, int n_vecs, source w, uint32_t lane, x_tile x, float *sums) {
    const uint32_t *rest = x.q + (size_t)w.cols / 2 * (size_t)n_rows; // second terms
    const bool stream = is_whole(n_vecs);
    vf total[QACT_ROWS][4];
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++) total[r][v] = vf_set1(0);
    for (uint32_t g = 0; g < w.cols / PANEL_WORD; g++) {
        panel_group p = panel_group_at(DTYPE_BF16, w.panel, g);
        const bool fetches = (uintptr_t)p.q + w.ahead < (uintptr_t)w.end;
        const size_t later = fetches ? w.ahead : 0;
        if (fetches && !stream)
            fetch_words(DTYPE_BF16, p.q, 1, lane, (size_t)n_vecs * VW, w.ahead, true);
        UNROLL
        for (int k = 0; k < 4; k++, x.q += n_rows, rest += n_rows) {
            vi pairs[4];
            UNROLL
            for (int v = 0; v < n_vecs; v++)
                pairs[v] = vi_load(p.q + ((size_t)(k * PANEL_ROWS + v * VW) + lane) * 4);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vi a = vi_set1((int32_t)x.q[r]);
                UNROLL
                for (int v = 0; v < n_vecs; v++) {
                    if (stream && r == 0)
                        fetch_between(p.q + later, (int)words_of(DTYPE_BF16) * WORD_LINES,
                                      k * n_vecs + v, 4 * n_vecs);
                    total[r][v] = vf_dot_bf16(total[r][v], pairs[v], a);
                }
            }
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vi a = vi_set1((int32_t)rest[r]);
                UNROLL
                for (int v = 0; v < n_vecs; v++)
                    total[r][v] = vf_dot_bf16(total[r][v], pairs[v], a);
            }
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++) vf_store(sums + r * PANEL_ROWS + v * VW, total[r][v]);
}
#endif

INLINE void tile(dtype type, int n_rows, int n_vecs, const source *w, uint32_t lane,
                 const x_tile *x, float *sums) {
#if defined(CPU_LEVEL_AVX512BF16)
    if (type == DTYPE_BF16) {
        tile_bf16(n_rows, n_vecs, *w, lane, *x, sums);
        return;
    }
#endif
    if (panel_group_scales(type) == 2)
        tile_halves(type, n_rows, n_vecs, *w, lane, *x, sums);
    else
        tile_i16(type, n_rows, n_vecs, *w, lane, *x, sums);
}

INLINE void lanes(dtype type, int n_rows, const source *w, uint32_t lane, uint32_t n_lanes,
                  const x_tile *x, float *sums) {
    const int n_vecs = vecs_of(type, n_rows);
    uint32_t l = 0;
    for (; l + (uint32_t)(n_vecs * VW) <= n_lanes; l += (uint32_t)(n_vecs * VW))
        tile(type, n_rows, n_vecs, w, is_whole(n_vecs) ? 0 : lane + l, x, sums + l);
    if (n_vecs * VW > MATMUL_UNIT && l < n_lanes)
        tile(type, n_rows, n_vecs / 2, w, lane + l, x, sums + l);
}

#define TILE(type, n)                                                                              \
    static void tile_##type##_##n(const source *w, uint32_t lane, uint32_t n_lanes,                \
                                  const x_tile *x, float *sums) {                                  \
        lanes(DTYPE_##type, n, w, lane, n_lanes, x, sums);                                         \
    }
#define TILES(type)                                                                                \
    TILE(type, 1)                                                                                  \
    TILE(type, 2)                                                                                  \
    TILE(type, 3)                                                                                  \
    TILE(type, 4) TILE(type, 5) TILE(type, 6) TILE(type, 7) TILE(type, 8)
#define TILES_OF(type)                                                                             \
    [DTYPE_##type] = {tile_##type##_1, tile_##type##_2, tile_##type##_3, tile_##type##_4,          \
                      tile_##type##_5, tile_##type##_6, tile_##type##_7, tile_##type##_8}

#if defined(CPU_LEVEL_AVX512BF16)
TILES(BF16)
qtile_table LEVEL(qtiles) = {TILES_OF(BF16)};
#else
TILES(Q4_0)
TILES(Q4_1)
TILES(Q5_0)
TILES(Q5_1)
TILES(Q8_0)
TILES(Q4_K)
TILES(Q5_K)
TILES(Q6_K)
TILES(Q2_K)
TILES(Q3_K)
TILES(IQ4_NL)
TILES(IQ4_XS)
TILES(MXFP4)
qtile_table LEVEL(qtiles) = {TILES_OF(Q4_0), TILES_OF(Q4_1), TILES_OF(Q5_0),   TILES_OF(Q5_1),
                             TILES_OF(Q8_0), TILES_OF(Q4_K), TILES_OF(Q5_K),   TILES_OF(Q6_K),
                             TILES_OF(Q2_K), TILES_OF(Q3_K), TILES_OF(IQ4_NL), TILES_OF(IQ4_XS),
                             TILES_OF(MXFP4)};
#endif
