/* matmul.c - out[n, rows] = x[n, cols] * transpose(w), for all weight types.  Compiled per level.
 *
 * Lanes are output features (panel.h); an activation is broadcast.  Two ways, one result:
 *
 *     n <= DIRECT_ROWS   weights become floats in registers and are used at once: bytes moved are
 *                        those of the prepared weights, which bound a single stream
 *     n larger           SLAB_COLS columns of the panel become floats in L1 once, and tiles of
 *                        rows x lanes in registers run over them
 *
 * Always, for one output element and in both ways, with acc and out starting at zero:
 *
 *     per slab of 64 columns    acc = 0;  acc = fma(w, x, acc) in ascending columns;  out += acc
 *     at the end                out += bias
 *
 * so a row's result does not depend on the other rows, and errors grow with cols / 64 + 64 instead
 * of cols.
 *
 * Thread: any; ranges of one job do not overlap. */
#include "cpu/level.h"
#include "cpu/panel.h"
#include "cpu/simd/group.h"
#include "cpu/simd/simd.h"

enum {
    SLAB_COLS = 64,    // 64 x 64 floats: 16 KiB of L1
    DIRECT_ROWS = 4,   // with more rows, unpacking once is faster
    BLOCK_ROWS = 128,  // of x per pass over the weights, so that x stays in L2
    AHEAD_BYTES = 8192 // how far in front of a direct read the weights are prefetched
};

#if defined(CPU_LEVEL_AVX512) // 32 registers
enum { TILE_ROWS = 6, TILE_VECS = 4 };
#elif defined(CPU_LEVEL_AVX2)
enum { TILE_ROWS = 6, TILE_VECS = 2 };
#else
enum { TILE_ROWS = 4, TILE_VECS = 2 };
#endif

/* ---- weights as floats ---- */

/* Column j of a word of BF16, which lies in pairs, and of Q8_0; see panel.h. */
INLINE vf half_weight(const unsigned char *q, int word, int j, uint32_t lane) {
    vi pair = vi_load(q + (((size_t)word * 4 + (size_t)j % 4) * PANEL_ROWS + lane) * 4);
    return (vf)(j < 4 ? pair << 16 : pair & (int32_t)0xffff0000);
}
INLINE vf byte_weight(const unsigned char *q, int word, int j, uint32_t lane) {
    vi four = vi_load(q + (((size_t)word * 2 + (size_t)j % 4 / 2) * PANEL_ROWS + lane) * 4);
    return vf_of_vi(four << (24 - 8 * (j % 2 + j / 4 * 2)) >> 24);
}

/* Eight columns, from word * PANEL_WORD of the group on. */
INLINE void word_weights(dtype type, const panel_group *p, int word, uint32_t lane, vf scale,
                         vf base, vf w[PANEL_WORD]) {
    size_t at = (size_t)word * PANEL_WORD * PANEL_ROWS + lane;
    vi bits = vi_set1(0), high = vi_set1(0);
    const bool nibbles = type != DTYPE_F32 && type != DTYPE_F16 && type != DTYPE_BF16 &&
                         type != DTYPE_Q8_0 && panel_group_scales(type) == 1;
    if (panel_group_scales(type) == 2) bits = code_word(type, p->q, (uint32_t)word, lane);
    if (nibbles) bits = vi_load(p->q + ((size_t)word * PANEL_ROWS + lane) * 4);
    if (p->high != NULL) // this word's bits to the bottom of both halves
        high = (vi)((vu)vi_load(p->high + lane) >> (word * (type == DTYPE_Q6_K ? 8 : 4)));
    UNROLL
    for (int j = 0; j < PANEL_WORD; j++, at += PANEL_ROWS) {
        switch ((int)type) {
        case DTYPE_F32:
            w[j] = vf_load((const float *)(const void *)p->q + at);
            break;
        case DTYPE_F16:
            w[j] = vf_load_f16((const uint16_t *)(const void *)p->q + at);
            break;
        case DTYPE_BF16:
            w[j] = half_weight(p->q, word, j, lane);
            break;
        case DTYPE_Q4_0:
            w[j] = scale * vf_nibble(bits, j, 8);
            break;
        case DTYPE_Q4_1:
        case DTYPE_Q4_K:
            w[j] = vf_fma(scale, vf_nibble(bits, j, 0), base);
            break;
        case DTYPE_Q5_0:
            w[j] = scale * (vf_nibble(bits, j, 16) + vf_bit(high, j % 4 + j / 4 * 16));
            break;
        case DTYPE_Q5_1:
        case DTYPE_Q5_K:
            w[j] = vf_fma(scale, vf_nibble(bits, j, 0) + vf_bit(high, j % 4 + j / 4 * 16), base);
            break;
        case DTYPE_Q8_0:
            w[j] = scale * byte_weight(p->q, word, j, lane);
            break;
        case DTYPE_Q2_K:
            w[j] = vf_fma(scale, vf_code(bits, j % 4 * 2 + j / 4 * 16, 2, 0), base);
            break;
        case DTYPE_Q3_K:
            w[j] = scale * vf_code(bits, j % 4 * 3 + j / 4 * 16, 3, 4);
            break;
        case DTYPE_IQ4_NL:
        case DTYPE_IQ4_XS:
        case DTYPE_MXFP4:
            w[j] = scale * vf_book(bits, j, dtype_codebook(type));
            break;
        default:
            w[j] = scale * (vf_nibble(bits, j, 32) + vf_upper(high, j % 4 + j / 4 * 8));
            break; // Q6_K
        }
    }
}

/* Prefetch the data AHEAD_BYTES after this group; the panels of a range are one stream. */
INLINE void fetch_ahead(dtype type, const panel_group *p) {
    const int n_lines = type == DTYPE_F32                          ? 4 * PANEL_WORD
                        : type == DTYPE_F16 || type == DTYPE_BF16  ? 2 * PANEL_WORD
                        : type == DTYPE_Q8_0                       ? 34
                        : type == DTYPE_Q6_K                       ? 13
                        : type == DTYPE_Q5_0 || type == DTYPE_Q5_1 ? 24
                        : type == DTYPE_Q5_K                       ? 22
                        : type == DTYPE_Q2_K                       ? 11
                        : type == DTYPE_Q3_K                       ? 15
                                                                   : 20;
    for (int i = 0; i < n_lines; i++) __builtin_prefetch(p->q + AHEAD_BYTES + i * 64);
}

/* ---- sums into the output ---- */

/* For the last panel, which may have lanes without a feature.  Kept out of line: it is rare. */
static __attribute__((noinline)) void put_some(float *out, vf acc, bool first, int n_lanes) {
    float lanes[VW];
    vf_store(lanes, acc);
    for (int i = 0; i < n_lanes; i++) out[i] = first ? lanes[i] : out[i] + lanes[i];
}

INLINE void put(float *out, vf acc, bool first, int n_lanes) {
    if (n_lanes >= VW)
        vf_store(out, first ? acc : vf_load(out) + acc);
    else
        put_some(out, acc, first, n_lanes);
}

/* Where one job's output goes: n_lanes features from `out` on, rows `stride` apart. */
typedef struct target {
    float *out;
    size_t stride;
    int n_lanes;
} target;

/* ---- few rows: unpack in registers ---- */

/* A word of weights times its columns of n_rows rows, from `x` on. */
INLINE void add_word(dtype type, int n_rows, int n_vecs, const panel_group *p, int word,
                     uint32_t lane, const vf scale[4], const vf base[4], const float *x,
                     uint32_t cols, int n_cols, vf acc[4][4]) {
    UNROLL
    for (int v = 0; v < n_vecs; v++) {
        vf w[PANEL_WORD];
        word_weights(type, p, word, lane + (uint32_t)(v * VW), scale[v], base[v], w);
        UNROLL
        for (int j = 0; j < PANEL_WORD; j++) {
            if (j >= n_cols) break;
            UNROLL
            for (int r = 0; r < n_rows; r++)
                acc[v][r] = vf_fma(w[j], vf_set1(x[(size_t)r * cols + (size_t)j]), acc[v][r]);
        }
    }
}

INLINE void direct(dtype type, int n_rows, int n_vecs, const unsigned char *panel, uint32_t lane,
                   const float *x, uint32_t cols, target to) {
    const uint32_t in_group = group_cols(type), n_scales = panel_group_scales(type);
    const int n_words = (int)(in_group / PANEL_WORD / n_scales); // that share a scale
    for (uint32_t begin = 0; begin < cols; begin += SLAB_COLS) {
        uint32_t end = u32_min(begin + SLAB_COLS, cols);
        vf acc[4][4];
        UNROLL
        for (int v = 0; v < n_vecs; v++) UNROLL
        for (int r = 0; r < n_rows; r++) acc[v][r] = vf_set1(0);
        for (uint32_t col = begin; col < end; col += in_group) {
            panel_group p = panel_group_at(type, panel, col / in_group);
            fetch_ahead(type, &p);
            /* Only types without groups end inside a word. */
            int n_cols = in_group == PANEL_WORD ? (int)u32_min(end - col, PANEL_WORD) : PANEL_WORD;
            UNROLL
            for (uint32_t half = 0; half < n_scales; half++) {
                vf scale[4], base[4];
                UNROLL
                for (int v = 0; v < n_vecs; v++)
                    group_scale(type, &p, half, lane + (uint32_t)(v * VW), &scale[v], &base[v]);
                int word = (int)half * n_words;
                for (int last = word + n_words; word < last; word++)
                    add_word(type, n_rows, n_vecs, &p, word, lane, scale, base,
                             x + col + word * PANEL_WORD, cols, n_cols, acc);
            }
        }
        UNROLL
        for (int v = 0; v < n_vecs; v++) UNROLL
        for (int r = 0; r < n_rows; r++)
            put(to.out + (size_t)r * to.stride + v * VW, acc[v][r], begin == 0,
                to.n_lanes - v * VW);
    }
}

/* ---- many rows: unpack once ---- */

INLINE void unpack(dtype type, const unsigned char *panel, uint32_t lane, uint32_t n_lanes,
                   uint32_t begin, uint32_t end, float *slab) {
    const uint32_t in_group = group_cols(type);
    for (uint32_t col = begin; col < end; col += in_group) {
        panel_group p = panel_group_at(type, panel, col / in_group);
        fetch_ahead(type, &p);
        for (uint32_t l = lane; l < lane + n_lanes; l += VW) {
            vf scale, base;
            group_scale(type, &p, 0, l, &scale, &base);
            for (int word = 0; word < (int)in_group / PANEL_WORD; word++) {
                vf w[PANEL_WORD];
                if (panel_group_scales(type) == 2 && word == 2)
                    group_scale(type, &p, 1, l, &scale, &base);
                word_weights(type, &p, word, l, scale, base, w);
                float *at = slab + (size_t)(col - begin + (uint32_t)word * PANEL_WORD) * PANEL_ROWS;
                UNROLL
                for (int j = 0; j < PANEL_WORD; j++) vf_store(at + j * PANEL_ROWS + l, w[j]);
            }
        }
    }
}

/* n_rows x (n_vecs * VW) sums over n_cols columns of the slab. */
INLINE void tile(int n_rows, int n_vecs, const float *slab, const float *x, size_t x_stride,
                 uint32_t n_cols, bool first, target to) {
    vf acc[TILE_ROWS][TILE_VECS];
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++) acc[r][v] = vf_set1(0);
    for (uint32_t k = 0; k < n_cols; k++) {
        vf w[TILE_VECS];
        UNROLL
        for (int v = 0; v < n_vecs; v++) w[v] = vf_load(slab + (size_t)k * PANEL_ROWS + v * VW);
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            vf a = vf_set1(x[(size_t)r * x_stride + k]);
            UNROLL
            for (int v = 0; v < n_vecs; v++) acc[r][v] = vf_fma(w[v], a, acc[r][v]);
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) UNROLL
    for (int v = 0; v < n_vecs; v++)
        put(to.out + (size_t)r * to.stride + v * VW, acc[r][v], first, to.n_lanes - v * VW);
}

INLINE void tile_n(int n_rows, int n_vecs, const float *slab, const float *x, size_t x_stride,
                   uint32_t n_cols, bool first, target to) {
    switch (n_rows) {
    case 1:
        tile(1, n_vecs, slab, x, x_stride, n_cols, first, to);
        break;
    case 2:
        tile(2, n_vecs, slab, x, x_stride, n_cols, first, to);
        break;
    case 3:
        tile(3, n_vecs, slab, x, x_stride, n_cols, first, to);
        break;
    case 4:
        tile(4, n_vecs, slab, x, x_stride, n_cols, first, to);
        break;
    case 5:
        tile(TILE_ROWS < 5 ? 1 : 5, n_vecs, slab, x, x_stride, n_cols, first, to);
        break;
    default:
        tile(TILE_ROWS, n_vecs, slab, x, x_stride, n_cols, first, to);
        break;
    }
}

/* All rows of the block against n_lanes lanes of the slab, in tiles of nearly equal height. */
static __attribute__((noinline)) void tiles(const float *slab, uint32_t n_lanes, const float *x,
                                            uint32_t n, uint32_t cols, uint32_t n_cols, bool first,
                                            target to) {
    uint32_t n_tiles = (n + TILE_ROWS - 1) / TILE_ROWS;
    for (uint32_t l = 0; l < n_lanes; l += TILE_VECS * VW) {
        bool whole = n_lanes - l >= TILE_VECS * VW; // else half of it: avx512 with half a panel
        for (uint32_t i = 0; i < n_tiles; i++) {
            uint32_t row = i * n / n_tiles, n_rows = (i + 1) * n / n_tiles - row;
            target part = {to.out + row * to.stride + l, to.stride, to.n_lanes - (int)l};
            const float *rows = x + (size_t)row * cols;
            if (part.n_lanes <= 0) break;
            if (whole)
                tile_n((int)n_rows, TILE_VECS, slab + l, rows, cols, n_cols, first, part);
            else
                tile_n((int)n_rows, TILE_VECS / 2, slab + l, rows, cols, n_cols, first, part);
        }
    }
}

/* ---- one type ---- */

/* n_rows rows times n_vecs vectors of lanes; a function of its own for each, because the compiler
 * takes far longer for one that has all of them inside. */
typedef void direct_fn(const unsigned char *panel, uint32_t lane, const float *x, uint32_t cols,
                       target to);

/* One range of lanes against n rows, in passes of 4, 2 and 1 rows; the panel stays in cache. */
static void passes(direct_fn *const *by_rows, const unsigned char *panel, uint32_t lane,
                   const float *x, uint32_t n, uint32_t cols, target to) {
    for (uint32_t row = 0, n_rows; row < n; row += n_rows) {
        uint32_t left = n - row;
        n_rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        by_rows[n_rows](panel, lane, x + (size_t)row * cols, cols,
                        (target){to.out + row * to.stride, to.stride, to.n_lanes});
    }
}

/* Features [lane, lane + n_lanes) of a panel, a multiple of MATMUL_UNIT, for n rows of x; `two`:
 * for half a panel, where four vectors are more than that. */
static void few_rows(direct_fn *const *four, direct_fn *const *two, const unsigned char *panel,
                     uint32_t lane, uint32_t n_lanes, const float *x, uint32_t n, uint32_t cols,
                     target to) {
    uint32_t l = 0;
    for (; l + 4 * VW <= n_lanes && to.n_lanes > (int)l; l += 4 * VW)
        passes(four, panel, lane + l, x, n, cols,
               (target){to.out + l, to.stride, to.n_lanes - (int)l});
    if (two != NULL && l < n_lanes && to.n_lanes > (int)l)
        passes(two, panel, lane + l, x, n, cols,
               (target){to.out + l, to.stride, to.n_lanes - (int)l});
}

INLINE void many_rows(dtype type, const unsigned char *panel, uint32_t lane, uint32_t n_lanes,
                      const float *x, uint32_t n, uint32_t cols, target to) {
    _Alignas(64) float slab[SLAB_COLS * PANEL_ROWS];
    for (uint32_t begin = 0; begin < cols; begin += SLAB_COLS) {
        uint32_t end = u32_min(begin + SLAB_COLS, cols);
        unpack(type, panel, lane, n_lanes, begin, end, slab);
        tiles(slab + lane, n_lanes, x + begin, n, cols, end - begin, begin == 0, to);
    }
}

#define DIRECT(type, n_rows, n_vecs)                                                               \
    static void direct_##type##_##n_rows##_##n_vecs(const unsigned char *panel, uint32_t lane,     \
                                                    const float *x, uint32_t cols, target to) {    \
        direct(DTYPE_##type, n_rows, n_vecs, panel, lane, x, cols, to);                            \
    }
#define DIRECT_OF(type, n_vecs)                                                                    \
    DIRECT(type, 1, n_vecs)                                                                        \
    DIRECT(type, 2, n_vecs)                                                                        \
    DIRECT(type, 4, n_vecs)                                                                        \
    static direct_fn *const direct_##type##_##n_vecs[DIRECT_ROWS + 1] = {                          \
        [1] = direct_##type##_1_##n_vecs,                                                          \
        [2] = direct_##type##_2_##n_vecs,                                                          \
        [4] = direct_##type##_4_##n_vecs};
#if defined(CPU_LEVEL_AVX512) // elsewhere four vectors are half a panel already
#define HALF_A_PANEL(type)    DIRECT_OF(type, 2)
#define HALF_A_PANEL_OF(type) direct_##type##_2
#else
#define HALF_A_PANEL(type)
#define HALF_A_PANEL_OF(type) NULL
#endif
#define TYPE_FUNCTIONS(type)                                                                       \
    DIRECT_OF(type, 4)                                                                             \
    HALF_A_PANEL(type)                                                                             \
    static void few_##type(const unsigned char *panel, uint32_t lane, uint32_t n_lanes,            \
                           const float *x, uint32_t n, uint32_t cols, target to) {                 \
        few_rows(direct_##type##_4, HALF_A_PANEL_OF(type), panel, lane, n_lanes, x, n, cols, to);  \
    }                                                                                              \
    static void many_##type(const unsigned char *panel, uint32_t lane, uint32_t n_lanes,           \
                            const float *x, uint32_t n, uint32_t cols, target to) {                \
        many_rows(DTYPE_##type, panel, lane, n_lanes, x, n, cols, to);                             \
    }

TYPE_FUNCTIONS(F32)
TYPE_FUNCTIONS(F16)
TYPE_FUNCTIONS(BF16)
TYPE_FUNCTIONS(Q4_0)
TYPE_FUNCTIONS(Q4_1)
TYPE_FUNCTIONS(Q5_0)
TYPE_FUNCTIONS(Q5_1)
TYPE_FUNCTIONS(Q8_0)
TYPE_FUNCTIONS(Q4_K)
TYPE_FUNCTIONS(Q5_K)
TYPE_FUNCTIONS(Q6_K)
TYPE_FUNCTIONS(Q2_K)
TYPE_FUNCTIONS(Q3_K)
TYPE_FUNCTIONS(IQ4_NL)
TYPE_FUNCTIONS(IQ4_XS)
TYPE_FUNCTIONS(MXFP4)

typedef void panel_fn(const unsigned char *panel, uint32_t lane, uint32_t n_lanes, const float *x,
                      uint32_t n, uint32_t cols, target to);

static const struct {
    panel_fn *few, *many;
} functions[DTYPE_LIMIT] = {
    [DTYPE_F32] = {few_F32, many_F32},          [DTYPE_F16] = {few_F16, many_F16},
    [DTYPE_BF16] = {few_BF16, many_BF16},       [DTYPE_Q4_0] = {few_Q4_0, many_Q4_0},
    [DTYPE_Q4_1] = {few_Q4_1, many_Q4_1},       [DTYPE_Q5_0] = {few_Q5_0, many_Q5_0},
    [DTYPE_Q5_1] = {few_Q5_1, many_Q5_1},       [DTYPE_Q8_0] = {few_Q8_0, many_Q8_0},
    [DTYPE_Q4_K] = {few_Q4_K, many_Q4_K},       [DTYPE_Q5_K] = {few_Q5_K, many_Q5_K},
    [DTYPE_Q6_K] = {few_Q6_K, many_Q6_K},       [DTYPE_Q2_K] = {few_Q2_K, many_Q2_K},
    [DTYPE_Q3_K] = {few_Q3_K, many_Q3_K},       [DTYPE_IQ4_NL] = {few_IQ4_NL, many_IQ4_NL},
    [DTYPE_IQ4_XS] = {few_IQ4_XS, many_IQ4_XS}, [DTYPE_MXFP4] = {few_MXFP4, many_MXFP4},
};

static void add_bias(const matmul_job *j, uint32_t begin, uint32_t end) {
    for (size_t i = 0; i < j->n; i++)
        for (uint32_t o = begin; o < end; o++) j->out[i * j->w->rows + o] += j->bias[o];
}

void LEVEL(matmul)(const void *job, uint32_t begin, uint32_t end) {
    const matmul_job *j = job;
    const weight *w = j->w;
    uint32_t first = begin * MATMUL_UNIT, limit = u32_min(end * MATMUL_UNIT, w->rows);
    size_t stride = panel_bytes(w->type, w->cols);
    for (uint32_t i = 0; i < j->n; i += BLOCK_ROWS) {
        uint32_t n = u32_min(j->n - i, BLOCK_ROWS);
        panel_fn *f = n <= DIRECT_ROWS ? functions[w->type].few : functions[w->type].many;
        for (uint32_t o = first; o < limit;) {
            uint32_t lane = o % PANEL_ROWS;
            uint32_t n_lanes = u32_min(PANEL_ROWS - lane, end * MATMUL_UNIT - o);
            target to = {j->out + (size_t)i * w->rows + o, w->rows,
                         (int)u32_min(n_lanes, limit - o)};
            f((const unsigned char *)w->data + o / PANEL_ROWS * stride, lane, n_lanes,
              j->x + (size_t)i * w->cols, n, w->cols, to);
            o += n_lanes;
        }
    }
    if (j->bias != NULL) add_bias(j, first, limit);
}
