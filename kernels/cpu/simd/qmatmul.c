/* qmatmul.c - products of prepared weights with 16-bit activations (qact.h).  Compiled per level.
 *
 *     I16    per group of columns that share a scale, ascending:
 *                dot   = sum of (q_w - offset) * q_x, exact in 32 bits
 *                total = fma(scale, dot, total), and of types with a minimum
 *                total = fma(base, sum of q_x, total)
 *            at the end total * scale of the row (+ bias) (+ add)
 *            Types with an integer as scale of 16 columns (Q2_K, Q3_K), per block of 256:
 *                dot   = sum of scale * (q_w - offset) * q_x, exact in 32 bits
 *                total = fma(d, dot, total), and of Q2_K
 *                total = fma(-dmin, sum of min * q_x, total), the sum exact in 32 bits
 *     BF16   total += w * x, a pair at a time and of x one term after the other; at the end
 *            (+ bias) (+ add)
 *
 * The order is the same for every shape of tile, so a row's result does not depend on other rows;
 * levels with fused multiply-add agree in every bit.
 *
 *     block of rows > unit or panel > tile of up to 8 rows (qtile.c) > vectors of lanes > columns
 *
 * If the machine has tiles of bytes, more than 8 rows go through them, with the same bits (amx.h),
 * except of types with two scales in a group: their tiles of bytes would be of 16 columns, half
 * full.
 *
 * Thread: any; ranges of one job do not overlap. */
#include "cpu/level.h"
#if defined(CPU_LEVEL_AVX512AMX)
#include "cpu/simd/amx.h"
#endif
#include "cpu/simd/qtile.h"

enum {
    AHEAD_BYTES = 8192,      // how far ahead a stream prefetches
    BLOCK_BYTES = 384 << 10, // of rows that are multiplied in one pass over the weights
    BLOCK_ROWS_MIN = 32,
#if defined(CPU_LEVEL_AVX512AMX)
    BLOCK_ROWS_MAX = 128 // there is space for the sums of so many
#else
    BLOCK_ROWS_MAX = INT32_MAX
#endif
};

/* ---- jobs ---- */

/* The part that a call computes at a time: n_lanes features from `first` on, of one panel. */
typedef struct part {
    uint32_t first, lane, n_lanes;
    uint32_t n_out; // of these lanes, how many are features
    uint32_t limit; // end of the range
} part;

static part part_at(const weight *w, uint32_t first, uint32_t end) {
    part p = {.first = first, .lane = first % PANEL_ROWS, .limit = u32_min(end, w->rows)};
    p.n_lanes = u32_min(PANEL_ROWS - p.lane, end - first);
    p.n_out = u32_min(p.n_lanes, w->rows - first);
    return p;
}

static tile_fn *const *tiles_of(dtype type) {
#if defined(CPU_LEVEL_AVX512BF16)
    return type == DTYPE_BF16 ? qtiles_avx512bf16[type] : qtiles_avx512vnni[type];
#else
    return LEVEL(qtiles)[type];
#endif
}

/* Tile i of the rows times a part, into sums[n_rows][64], without the row's scale. first_of_part:
 * the part's weights come from memory, and those of the next part are prefetched. */
static void multiply(const weight *w, const qact *x, uint32_t n, uint32_t i, const part *p,
                     bool first_of_part, float *sums) {
    uint32_t n_rows = qact_tile_rows(n, i), padded = (uint32_t)qact_padded(w->cols);
    size_t first = (size_t)i * QACT_ROWS, stride = panel_bytes(w->type, w->cols);
    const size_t terms = qact_terms(w->type == DTYPE_BF16 ? MATH_BF16 : MATH_I16);
    const x_tile rows = {(const uint32_t *)(const void *)(x->q + first * padded * terms),
                         x->sum + first * (padded / 32), x->sum16 + first * (padded / 16)};
    const unsigned char *panels = w->data;
    source from = {.panel = panels + p->first / PANEL_ROWS * stride,
                   .end = panels + (p->limit + PANEL_ROWS - 1) / PANEL_ROWS * stride,
                   .ahead = streams(w->type, (int)n_rows) ? AHEAD_BYTES : stride,
                   .cols = padded};
    if (!first_of_part) from.end = NULL;
    tiles_of(w->type)[n_rows - 1](&from, p->lane, p->n_lanes, &rows, sums);
}

#if defined(CPU_LEVEL_AVX512AMX)
/* Bytes of four columns of each lane: even columns of the word, and odd ones (qact.h). */
INLINE void quads(dtype type, const word *w, vi out[2]) {
    typedef int8_t octets __attribute__((vector_size(VW * 4)));
    vu low = (vu)w->low[0], high = (vu)w->high;
    if (type == DTYPE_Q8_0) {
        vu other = (vu)w->low[1];
        out[0] = (vi)((low & 0x00ff00ff) | (other & 0x00ff00ff) << 8);
        out[1] = (vi)((low >> 8 & 0x00ff00ff) | (other & 0xff00ff00));
        return;
    }
    if (dtype_codebook(type) != NULL) {
        out[0] = w->low[0];
        out[1] = w->low[1];
        return;
    }
    UNROLL
    for (int k = 0; k < 2; k++) {
        vu q = low >> (4 * k) & 0x0f0f0f0f;
        if (type == DTYPE_Q6_K)
            q |= (high << (4 - 2 * k) & 0x00300030) | (high << (8 - 2 * k) & 0x30003000);
        if (type == DTYPE_Q5_0 || type == DTYPE_Q5_1 || type == DTYPE_Q5_K)
            q |= (high << (4 - k) & 0x00100010) | (high << (10 - k) & 0x10001000);
        out[k] = (vi)((octets)q - (int8_t)offset_of(type));
    }
}

/* Groups [first, first + n) of the lanes of a part. */
INLINE void unpack(dtype type, const unsigned char *panel, const part *p, uint32_t first,
                   uint32_t n, amx_weights *out) {
    for (uint32_t g = 0; g < n; g++) {
        panel_group from = panel_group_at(type, panel, first + g);
        for (uint32_t v = 0; v < p->n_lanes / VW; v++) {
            uint32_t lane = p->lane + v * VW;
            vi high = from.high != NULL ? vi_load(from.high + lane) : vi_set1(0);
            group_scale(type, &from, 0, lane, &out->scale[v][g], &out->base[v][g]);
            UNROLL
            for (uint32_t i = 0; i < group_cols(type) / PANEL_WORD; i++) {
                const size_t at = (size_t)i * words_of(type) * PANEL_ROWS * 4;
                word w = word_at(type, from.q + at, &high, lane);
                quads(type, &w, &out->q[v][g][2 * i]);
            }
        }
    }
}

typedef void unpack_fn(const unsigned char *panel, const part *p, uint32_t first, uint32_t n,
                       amx_weights *out);
#define UNPACK(type)                                                                               \
    static void unpack_##type(const unsigned char *panel, const part *p, uint32_t first,           \
                              uint32_t n, amx_weights *out) {                                      \
        unpack(DTYPE_##type, panel, p, first, n, out);                                             \
    }
UNPACK(Q4_0)
UNPACK(Q4_1)
UNPACK(Q5_0)
UNPACK(Q5_1)
UNPACK(Q8_0)
UNPACK(Q4_K)
UNPACK(Q5_K)
UNPACK(Q6_K)
UNPACK(IQ4_NL)
UNPACK(IQ4_XS)
UNPACK(MXFP4)

static unpack_fn *const unpack_of[DTYPE_LIMIT] = {
    [DTYPE_Q4_0] = unpack_Q4_0,     [DTYPE_Q4_1] = unpack_Q4_1,   [DTYPE_Q5_0] = unpack_Q5_0,
    [DTYPE_Q5_1] = unpack_Q5_1,     [DTYPE_Q8_0] = unpack_Q8_0,   [DTYPE_Q4_K] = unpack_Q4_K,
    [DTYPE_Q5_K] = unpack_Q5_K,     [DTYPE_Q6_K] = unpack_Q6_K,   [DTYPE_IQ4_NL] = unpack_IQ4_NL,
    [DTYPE_IQ4_XS] = unpack_IQ4_XS, [DTYPE_MXFP4] = unpack_MXFP4,
};

/* Sums of the activations of 16 rows, as floats: of n groups of 32 columns from `first` on. */
static void load_x_sums(const qact *x, uint32_t n_all, uint32_t cols, uint32_t row, uint32_t first,
                        uint32_t n, float (*out)[QACT_PLANE_ROWS]) {
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t i = row / QACT_ROWS + half, n_rows = qact_tile_rows(n_all, i);
        const int32_t *sum = x->sum + (size_t)i * QACT_ROWS * (cols / 32) + (size_t)first * n_rows;
        for (uint32_t g = 0; g < n; g++) UNROLL
        for (uint32_t r = 0; r < QACT_ROWS; r++) // rows past the last may have any sum
            out[g][half * QACT_ROWS + r] = (float)sum[(size_t)g * n_rows + r];
    }
}

/* Rows [begin, end) of the planes times a part, into sums[end - begin, up to whole 16][64]. */
static void multiply_planes(const weight *w, const qact *x, uint32_t n, uint32_t begin,
                            uint32_t end, const part *p, float *sums) {
    amx_weights weights;
    float x_sums[AMX_GROUPS][QACT_PLANE_ROWS];
    const bool base = has_base(w->type);
    const uint32_t cols = w->cols, in_group = panel_group_cols(w->type), n_groups = cols / in_group;
    const uint32_t n_parts = (n_groups + AMX_GROUPS - 1) / AMX_GROUPS;
    const unsigned char *panel =
        (const unsigned char *)w->data + p->first / PANEL_ROWS * panel_bytes(w->type, cols);
    amx_result t = {.half = in_group < QACT_PLANE_COLS, .x_sums = base ? x_sums : NULL};
    memset(sums, 0,
           (size_t)(end - begin + QACT_PLANE_ROWS - 1) / QACT_PLANE_ROWS * QACT_PLANE_ROWS *
               PANEL_ROWS * sizeof *sums);
    amx_begin(in_group);
    for (uint32_t i = 0, first = 0; i < n_parts; i++, first += t.n_groups) {
        t.n_groups = (n_groups - first) / (n_parts - i);
        t.first_half = t.half * (first % 2);
        unpack_of[w->type](panel, p, first, t.n_groups, &weights);
        for (uint32_t row = begin; row < end; row += QACT_PLANE_ROWS) {
            if (base) load_x_sums(x, n, cols, row, first, t.n_groups, x_sums);
            COMPILER_FENCE; // tiles read the memory written above
            t.rows = qact_planes(x, n, cols) + (size_t)row * 2 * cols +
                     (size_t)(first * in_group / QACT_PLANE_COLS) * 2 * QACT_PLANE_BYTES;
            for (uint32_t v = 0; v < p->n_lanes / VW; v++) {
                float *at = sums + (size_t)(row - begin) * PANEL_ROWS + v * VW;
                t.weights = (const vi(*)[AMX_QUADS])weights.q[v];
                t.scale = weights.scale[v];
                t.base = weights.base[v];
                if (base)
                    amx_tile(&t, true, at);
                else
                    amx_tile(&t, false, at);
            }
        }
    }
    amx_end();
}
#endif

/* Sums of a block of rows for a part, a tile at a time, or all at once for planes. */
typedef struct block {
    const qact *x;
    uint32_t n, begin; // rows of the job; the first of the block
    uint32_t tiled;    // rows before it are planes
    _Alignas(64) float tile[QACT_ROWS * PANEL_ROWS];
#if defined(CPU_LEVEL_AVX512AMX)
    _Alignas(64) float planes[BLOCK_ROWS_MAX * PANEL_ROWS];
#endif
} block;

static void open_block(block *b, const weight *w, const qact *x, cpu_math math, uint32_t n,
                       uint32_t begin, uint32_t end) {
    b->x = x;
    b->n = n;
    b->begin = b->tiled = begin;
#if defined(CPU_LEVEL_AVX512AMX)
    if (math == MATH_I16 && panel_group_scales(w->type) == 1)
        b->tiled = u32_max(begin, u32_min(end, qact_plane_rows(n)));
#else
    (void)w;
    (void)math;
    (void)end;
#endif
}

/* [64] of one row; rows come in order. */
INLINE float *sums_of(block *b, const weight *w, const part *p, uint32_t row) {
#if defined(CPU_LEVEL_AVX512AMX)
    if (row < b->tiled) {
        if (row == b->begin) multiply_planes(w, b->x, b->n, b->begin, b->tiled, p, b->planes);
        return b->planes + (size_t)(row - b->begin) * PANEL_ROWS;
    }
#endif
    uint32_t r = row % QACT_ROWS;
    if (r == 0) multiply(w, b->x, b->n, row / QACT_ROWS, p, row == b->begin, b->tile);
    return b->tile + r * PANEL_ROWS;
}

/* One row of sums: * scale (+ bias) (+ add), `n` of them. */
static void finish(const float *sums, float scale, const float *bias, const float *add, float *out,
                   uint32_t n) {
    uint32_t l = 0;
    for (; l + VW <= n; l += VW) {
        vf y = vf_load(sums + l) * scale;
        if (bias != NULL) y += vf_load(bias + l);
        if (add != NULL) y += vf_load(add + l);
        vf_store(out + l, y);
    }
    for (; l < n; l++) {
        float y = sums[l] * scale;
        if (bias != NULL) y += bias[l];
        if (add != NULL) y += add[l];
        out[l] = y;
    }
}

static const float *offset(const float *p, size_t by) {
    return p != NULL ? p + by : NULL;
}

/* Rows of one pass over the weights: as many as stay in L2 beside a panel.  More rows would come
 * from L3 again for each panel; the weights come once per block, which is less. */
static uint32_t block_rows(cpu_math math, uint32_t cols) {
    size_t row_bytes = qact_padded(cols) * sizeof(uint16_t) * qact_terms(math);
    size_t n = BLOCK_BYTES / row_bytes / QACT_PLANE_ROWS * QACT_PLANE_ROWS;
    return u32_min(u32_max((uint32_t)n, BLOCK_ROWS_MIN), BLOCK_ROWS_MAX);
}

/* Features [o, end) of rows [row_begin, row_end). */
static void products(const qmatmul_job *j, uint32_t o, uint32_t end, uint32_t row_begin,
                     uint32_t row_end) {
    block sums;
    open_block(&sums, j->w, &j->x, j->math, j->n, row_begin, row_end);
    for (part p; o < end && o < j->w->rows; o += p.n_lanes) {
        p = part_at(j->w, o, end);
        for (uint32_t row = row_begin; row < row_end; row++) {
            size_t at = (size_t)row * j->w->rows + o;
            finish(sums_of(&sums, j->w, &p, row), j->math == MATH_I16 ? j->x.scale[row] : 1.0f,
                   offset(j->bias, o), offset(j->add, at), j->out + at, p.n_out);
        }
    }
}

void LEVEL(qmatmul)(const void *job, uint32_t begin, uint32_t end) {
    const qmatmul_job *j = job;
    uint32_t n_rows = block_rows(j->math, j->w->cols);
    for (uint32_t row = 0; row < j->n; row += n_rows)
        products(j, begin * MATMUL_UNIT, end * MATMUL_UNIT, row, u32_min(row + n_rows, j->n));
}

static void gated(const qglu_job *j, uint32_t o, uint32_t end, uint32_t row_begin,
                  uint32_t row_end) {
    block gate, up;
    uint32_t n_features = j->gate->rows;
    open_block(&gate, j->gate, &j->x, j->math, j->n, row_begin, row_end);
    open_block(&up, j->up, &j->x, j->math, j->n, row_begin, row_end);
    for (part p; o < end && o < n_features; o += p.n_lanes) {
        p = part_at(j->gate, o, end);
        for (uint32_t row = row_begin; row < row_end; row++) {
            float *a = sums_of(&gate, j->gate, &p, row), *b = sums_of(&up, j->up, &p, row);
            float scale = j->math == MATH_I16 ? j->x.scale[row] : 1.0f;
            finish(a, scale, offset(j->gate_bias, o), NULL, a, p.n_out);
            finish(b, scale, offset(j->up_bias, o), NULL, b, p.n_out);
            for (uint32_t l = 0; l < p.n_lanes; l += VW) { // lanes past the last are computed, too
                vf va = vf_load(a + l), vb = vf_load(b + l);
                vf_store(a + l, j->fn == ACT_SILU             ? vf_silu_mul(va, vb)
                                : j->fn == ACT_CLAMPED_SWIGLU ? vf_clamped_mul(va, vb)
                                                              : vf_gelu_mul(va, vb));
            }
            memcpy(j->out + (size_t)row * n_features + o, a, p.n_out * sizeof *a);
        }
    }
}

void LEVEL(qglu)(const void *job, uint32_t begin, uint32_t end) {
    const qglu_job *j = job;
    uint32_t n_rows = block_rows(j->math, j->gate->cols);
    for (uint32_t row = 0; row < j->n; row += n_rows)
        gated(j, begin * MATMUL_UNIT, end * MATMUL_UNIT, row, u32_min(row + n_rows, j->n));
}
