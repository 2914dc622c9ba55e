/* attention.c - storing keys and values, and attending to them.  Compiled per level.
 *
 * Layout and chunks: attn.h; units: attn_plan.h.  A unit is some queries (a query is one head of
 * one row), and chunks.  A chunk is processed in three passes:
 *
 *     s[h][t] = q[h] . K[:, t]             a lane is one of the 16 positions of a tile
 *     p[h][t] = exp(s[h][t] - max)         0 where the query does not attend to the position
 *     part[h] = sum of p[h][t] * V[t, :]   a lane is a feature
 *
 * and its result is joined to the result of the chunks before (join).  Up to QUERIES queries, a
 * group, share each loaded K and V in registers; the groups process the same few tiles of K, and
 * then of features of V, one after the other, so that these stay in the first-level cache.  Every
 * lane of every query is one chain of operations in a fixed order, so the other queries do not
 * matter.
 *
 * Factors, per type of K and V:
 *
 *     F16 F32  floats, fused multiply-add
 *     BF16     floats made of the stored halves; at level avx512bf16 q and p are rounded to bf16,
 *              too, and multiplied in pairs
 *     I8 I16   q, and p times the scale of V, are integers of 16 bits with one scale each (per
 *              query, and per query and chunk); products and sums are exact (attn.h)
 *
 * While a tile is read, the one FETCH_AHEAD tiles later is prefetched: blocks lie anywhere in
 * memory, so the hardware cannot predict them.
 *
 * A weight of 0 does not hide a NaN: rows of the same sequence that share its tile become NaN, too.
 * Positions that were never stored are not read.
 *
 * Bytes moved: K and V of the positions attended to, once per unit.
 *
 * Thread: any; ranges of one job do not overlap. */
#include <math.h>

#include "cpu/attn_plan.h"
#include "cpu/level.h"
#include "cpu/simd/simd.h"

enum {
    TILE_VECS = KV_TILE / VW, // vectors of 16 floats
    CHUNK_TILES = ATTN_CHUNK / KV_TILE,
    QUERIES = VW >= 8 ? 6 : 3, // that share registers
    OUT_VECS = 4,              // vectors of features that do
    SCORE_TILES = VW / 4,      // tiles that do
    FETCH_AHEAD = 4            // tiles: reading them takes longer than a fetch
};

/* ---- factors ---- */

#if defined(CPU_LEVEL_AVX512BF16)
enum { BF16_DOT = 1 };
#else
enum { BF16_DOT = 0 };
#endif

/* Are two neighbouring elements one factor of 32 bits? */
INLINE bool is_dot(kv_type type) {
    return kv_is_scaled(type) || (type == KV_BF16 && BF16_DOT);
}
/* Factors of a pair of elements. */
INLINE int steps_of(kv_type type) {
    return is_dot(type) ? 1 : 2;
}
/* Bytes of a query's or a weight's element. */
INLINE size_t factor_bytes(kv_type type) {
    return is_dot(type) ? 2 : 4;
}

typedef int8_t int8_v __attribute__((vector_size(VW * 2)));
typedef int16_t halves_v __attribute__((vector_size(VW * 2)));

/* 16-bit pairs of VW pairs of bytes. */
INLINE vi load_byte_pairs(const void *p) {
    int8_v pairs;
    memcpy(&pairs, p, sizeof pairs);
    vs wide = __builtin_convertvector(pairs, vs);
    return (vi)wide;
}

/* The lower halves of VW integers. */
INLINE void store_halves(void *p, vi v) {
    halves_v halves = __builtin_convertvector(v, halves_v);
    memcpy(p, &halves, sizeof halves);
}

/* The bits of a float rounded to bf16, to nearest even. */
INLINE vi to_bf16(vf x) {
    vi rounded = (vi)(((vu)x + 0x7fff + (((vu)x >> 16) & 1)) >> 16);
    return (vi)vf_select((vi)(x == x), (vf)rounded, (vf)vi_set1(0x7fc0));
}

/* x * by as an integer below 2^22, to nearest even, in the low bits, by adding 1.5 * 2^23. */
INLINE vi to_nearest(vf x, float by) {
    return (vi)vf_fma(x, vf_set1(by), vf_set1(0x1.8p23f));
}

/* Factor e of the pair at p, for VW lanes; stride: from the first of a pair to the second, where
 * they do not lie side by side. */
INLINE vf load_factor(kv_type type, const unsigned char *p, size_t stride, int e) {
    const void *q = p + (kv_in_pairs(type) ? 0 : (size_t)e * stride);
    if (type == KV_F32) return vf_load(q);
    if (type == KV_F16) return vf_load_f16(q);
    if (type == KV_I8) return (vf)load_byte_pairs(q);
    if (type == KV_I16 || BF16_DOT) return (vf)vi_load(q);
    return (vf)(e == 0 ? vi_load(q) << 16 : vi_load(q) & vi_set1(-0x10000));
}

/* The same of one query, in all lanes. */
INLINE vf spread_factor(kv_type type, const void *q, size_t pair, int e) {
    if (!is_dot(type)) return vf_set1(((const float *)q)[2 * pair + (size_t)e]);
    int32_t both;
    memcpy(&both, (const unsigned char *)q + 4 * pair, sizeof both);
    return (vf)vi_set1(both);
}

/* vi_dot of integer lanes in vectors of type float.  gcc copies each sum before the instruction
 * that overwrites it, and then has no registers left: half the speed. */
INLINE vf vi_dot_lanes(vf sum, vf a, vf b) {
#if defined(CPU_LEVEL_AVX512VNNI)
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#else
    return (vf)vi_dot((vi)sum, (vi)a, (vi)b);
#endif
}

/* sum + a * b; for I8 and I16 the lanes of the sum are integers */
INLINE vf multiply(kv_type type, vf a, vf b, vf sum) {
#if defined(CPU_LEVEL_AVX512BF16)
    if (type == KV_BF16) return vf_dot_bf16(sum, (vi)a, (vi)b);
#endif
    return kv_is_scaled(type) ? vi_dot_lanes(sum, a, b) : vf_fma(a, b, sum);
}

/* ---- storing ---- */

/* A row of floats that is being stored into a tile. */
typedef struct element_row {
    float x[HEAD_DIM_MAX]; // padded with zeros to whole vectors
    uint16_t halves[HEAD_DIM_MAX];
    float scale;
    uint32_t n_saturated; // elements beyond F16_LARGEST so far
} element_row;

/* Magnitudes are ordered like their bits, and NaN comes last. */
INLINE float largest_of(const float *x, size_t n) {
    vi most = vi_set1(0);
    for (size_t i = 0; i < n; i += VW)
        most = vi_max(most, (vi)vf_load(x + i) & vi_set1(0x7fffffff));
    return ((vf)vi_all_max(most))[0];
}

/* n floats as integers, rounded to nearest even, so that `size` (of the floats: the largest, say)
 * becomes `limit`; returns the value of the integer 1.  With a size that is not finite that is NaN,
 * and the integers are zero. */
INLINE float to_integers(const float *x, size_t n, float size, float limit, unsigned char *out) {
    float inverse = size > 0 ? limit / size : 0;
    if (!(size < INFINITY)) size = NAN, inverse = 0;
    if (!(inverse < INFINITY)) size = 0, inverse = 0; // too small for an inverse: zeros
    for (size_t i = 0; i < n; i += VW)
        store_halves(out + 2 * i, inverse != 0 ? to_nearest(vf_load(x + i), inverse) : vi_set1(0));
    return size / limit;
}

/* The root of the sum of squares; if that is no normal float, computed in parts of the largest. */
INLINE float norm_of(const float *x, size_t n) {
    vf sum = vf_set1(0);
    for (size_t i = 0; i < n; i += VW) sum = vf_fma(vf_load(x + i), vf_load(x + i), sum);
    float squares = vf_all_add(sum)[0];
    if (squares > 1e-30f && squares < INFINITY) return sqrtf(squares);
    float largest = largest_of(x, n), inverse = 1 / largest;
    if (!(largest < INFINITY) || !(inverse < INFINITY)) return largest;
    sum = vf_set1(0);
    for (size_t i = 0; i < n; i += VW) {
        vf part = vf_load(x + i) * inverse;
        sum = vf_fma(part, part, sum);
    }
    return largest * sqrtf(vf_all_add(sum)[0]);
}

/* Kept out of line: it is rare. */
static __attribute__((noinline)) void saturate(element_row *e, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(e->x[i]) || fabsf(e->x[i]) <= F16_LARGEST) continue;
        e->x[i] = copysignf(F16_LARGEST, e->x[i]);
        e->n_saturated++;
    }
}

typedef enum kv_part { KEYS, VALUES, QUERY } kv_part;

/* n is a multiple of KV_TILE. */
INLINE void to_elements(kv_type type, kv_part part, size_t n, element_row *e) {
    unsigned char *halves = (unsigned char *)e->halves;
    if (type == KV_I8)
        e->scale = to_integers(e->x, n, largest_of(e->x, n), part == QUERY ? 32767 : 127, halves);
    else if (type == KV_I16 && part == VALUES)
        e->scale = to_integers(e->x, n, largest_of(e->x, n), V16_MAX, halves);
    else if (type == KV_I16)
        e->scale = to_integers(e->x, n, norm_of(e->x, n), K16_NORM, halves);
    else if (type == KV_F16) {
        if (!(largest_of(e->x, n) <= F16_LARGEST)) saturate(e, n);
        for (size_t i = 0; i < n; i += VW) vf_store_f16(e->halves + i, vf_load(e->x + i));
    } else if (type == KV_BF16)
        for (size_t i = 0; i < n; i += VW) store_halves(e->halves + i, to_bf16(vf_load(e->x + i)));
}

INLINE void put(kv_type type, unsigned char *p, size_t at, const element_row *e, size_t d) {
    if (type == KV_F32)
        ((float *)(void *)p)[at] = e->x[d];
    else if (type == KV_I8)
        p[at] = (unsigned char)e->halves[d];
    else
        ((uint16_t *)(void *)p)[at] = e->halves[d];
}

INLINE void load_row(element_row *e, const float *x, uint32_t n) {
    memcpy(e->x, x, n * sizeof *x);
    memset(e->x + n, 0, (kv_padded(n) - n) * sizeof *x);
}

/* Elements beyond head_dim are zeros, so that padding is no special case afterwards.  Returns
 * how many elements were too large. */
INLINE uint32_t store_head(kv_type type, uint32_t head_dim, unsigned char *keys, uint32_t t,
                           const float *k, const float *v) {
    unsigned char *values = keys + kv_k_bytes(type, head_dim);
    size_t width = kv_padded(head_dim);
    element_row e;
    e.n_saturated = 0;
    load_row(&e, k, head_dim);
    to_elements(type, KEYS, width, &e);
    for (size_t d = 0; d < kv_even(head_dim); d++) put(type, keys, kv_k_index(type, d, t), &e, d);
    if (kv_is_scaled(type)) kv_k_scales(type, head_dim, keys)[t] = e.scale;
    load_row(&e, v, head_dim);
    to_elements(type, VALUES, width, &e);
    for (size_t d = 0; d < width; d++) put(type, values, kv_v_index(type, head_dim, d, t), &e, d);
    if (kv_is_scaled(type)) kv_v_scales(type, head_dim, values)[t] = e.scale;
    return e.n_saturated;
}

INLINE void store_rows(kv_type type, const attn_job *j, uint32_t begin, uint32_t end) {
    const kv_layout *l = j->kv;
    uint64_t n_saturated = 0;
    for (size_t row = begin; row < end; row++) {
        const batch_seq *s = &j->b->seqs[j->b->row_seq[row]];
        uint32_t pos = j->b->positions[row];
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            size_t from = (row * l->n_kv_heads + head) * l->head_dim;
            n_saturated += store_head(type, l->head_dim, kv_at(j, s, pos, head), pos % KV_TILE,
                                      j->k + from, j->v + from);
        }
    }
    if (n_saturated > 0) __atomic_fetch_add(j->n_saturated, n_saturated, __ATOMIC_RELAXED);
}

void LEVEL(kv_store)(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    switch (j->kv->type) {
    case KV_F16:
        store_rows(KV_F16, j, begin, end);
        break;
    case KV_BF16:
        store_rows(KV_BF16, j, begin, end);
        break;
    case KV_F32:
        store_rows(KV_F32, j, begin, end);
        break;
    case KV_I8:
        store_rows(KV_I8, j, begin, end);
        break;
    case KV_I16:
        store_rows(KV_I16, j, begin, end);
        break;
    case KV_AUTO:
        INFERD_CHECK(false); // never in a layout
    }
}

/* ---- a unit at work ---- */

/* The addresses of the tiles of a chunk and of the next one, in the order they are read: K of tiles
 * [0, n), V of them, K of the next.  The last is repeated past the end, for the prefetches. */
enum { STREAM_MAX = 3 * CHUNK_TILES + FETCH_AHEAD + SCORE_TILES };
typedef struct stream {
    const unsigned char *at[STREAM_MAX];
    uint32_t first, n; // the first tile of the chunk that is there, and how many
} stream;

/* Queries [q0, q0 + n) and the positions that any of them attends to, counted in the chunk. */
typedef struct group {
    uint32_t q0, n;
    uint32_t tile_begin, tile_end;
    uint32_t end; // the position after the last
} group;
/* Each run of queries that end in one tile may have one of fewer than three. */
enum { GROUPS_MAX = ATTN_QUERIES / 3 + ATTN_QUERIES / KV_TILE + 1, LANES = ATTN_QUERIES + KV_TILE };

typedef struct unit_state {
    const attn_job *j;
    size_t width; // of a row of V
    uint32_t n_queries, n_pairs, n_groups;
    uint32_t from[ATTN_QUERIES], to[ATTN_QUERIES]; // positions that the query attends to
    float *acc[ATTN_QUERIES];                      // [width] weighted sum of values so far
    float q_scale[ATTN_QUERIES];                   // of its scores
    float p_scale[ATTN_QUERIES];                   // I8, I16: of its weights
    float max[LANES], sum[LANES];                  // of all chunks so far
    float part_max[LANES], part_sum[LANES];        // of this chunk
    float keep[LANES], gain[LANES];                // see join
    group groups[GROUPS_MAX];
    _Alignas(64) float room[ATTN_QUERY_FLOATS]; // for acc, when the unit has whole rows
    _Alignas(64) float q[ATTN_QUERY_FLOATS];    // factors, [n_queries, n_pairs]
    _Alignas(
        64) float s[ATTN_QUERIES][ATTN_CHUNK]; // scores; then weights as factors, in place of them
} unit_state;

/* Queries that go together when `left` are left. */
static uint32_t queries_at_once(uint32_t left) {
    if (QUERIES == 3) return u32_min(left, 3);
    return left >= 9 || left == 6 ? 6 : left >= 7 ? 4 : left == 5 ? 3 : left;
}

/* Does query i attend to anything in the chunk at `base`? */
static bool attends(const unit_state *u, uint32_t i, uint32_t base) {
    return u->from[i] < base + ATTN_CHUNK && u->to[i] > base;
}

/* The tile that query i ends in, of those in the chunk at `base`. */
static uint32_t last_tile(const unit_state *u, uint32_t i, uint32_t base) {
    return (u32_min(u->to[i], base + ATTN_CHUNK) - 1) / KV_TILE;
}

/* How many queries from q0 on end in the same tile. */
static uint32_t same_end(const unit_state *u, uint32_t q0, uint32_t base) {
    uint32_t n = 1, tile = last_tile(u, q0, base);
    while (q0 + n < u->n_queries && last_tile(u, q0 + n, base) == tile) n++;
    return n;
}

/* Groups of the queries that attend to something in this chunk.  A group multiplies all its tiles,
 * with weights of 0 where a query sees nothing.  So no query may be in a group with more tiles than
 * its own: a NaN there would reach it, which it must not see yet. */
static void make_groups(unit_state *u, uint32_t base) {
    u->n_groups = 0;
    for (uint32_t q0 = 0, n; q0 < u->n_queries; q0 += n) {
        uint32_t begin = ATTN_CHUNK, end = 0;
        n = queries_at_once(same_end(u, q0, base));
        for (uint32_t i = q0; i < q0 + n; i++) {
            if (!attends(u, i, base)) continue;
            begin = u32_min(begin, u32_max(u->from[i], base) - base);
            end = u32_max(end, u32_min(u->to[i], base + ATTN_CHUNK) - base);
        }
        if (begin >= end) continue;
        u->groups[u->n_groups++] =
            (group){q0, n, begin / KV_TILE, (end + KV_TILE - 1) / KV_TILE, end};
    }
}

/* ---- scores ---- */

/* s[h][16 i + lane] for n_tiles tiles from `i` on; those past the end repeat the last tile. */
INLINE void score_tiles(kv_type type, int n, int n_tiles, unit_state *u, const stream *st,
                        uint32_t q0, uint32_t i) {
    const size_t stride = KV_TILE * kv_elem_bytes(type), pair_bytes = 2 * stride;
    const size_t vec_bytes = VW * kv_elem_bytes(type) * (kv_in_pairs(type) ? 2 : 1);
    const size_t q_floats = u->n_pairs * (factor_bytes(type) / 2);
    const float *q = u->q + q0 * q_floats;
    const unsigned char *k[SCORE_TILES], *ahead[SCORE_TILES];
    vf sums[QUERIES][SCORE_TILES * TILE_VECS];
    UNROLL
    for (int t = 0; t < n_tiles; t++) {
        k[t] = st->at[u32_min(i + (uint32_t)t, st->n - 1)];
        ahead[t] = st->at[i + (uint32_t)t + FETCH_AHEAD];
        if (kv_is_scaled(type)) { // the scales of V are needed before V
            __builtin_prefetch(ahead[t] + u->n_pairs * pair_bytes);
            __builtin_prefetch(k[t] + kv_tile_bytes(type, u->j->spec->head_dim) -
                               kv_scale_bytes(type));
        }
        UNROLL
        for (int h = 0; h < n; h++) UNROLL
        for (int v = 0; v < TILE_VECS; v++) sums[h][t * TILE_VECS + v] = vf_set1(0);
    }
    ROLLED
    for (size_t pair = 0, at = 0; pair < u->n_pairs; pair++, at += pair_bytes) {
        UNROLL
        for (int t = 0; t < n_tiles; t++) UNROLL
        for (size_t line = 0; line < pair_bytes; line += 64)
            __builtin_prefetch(ahead[t] + at + line);
        UNROLL
        for (int e = 0; e < steps_of(type); e++) {
            vf x[SCORE_TILES * TILE_VECS];
            UNROLL
            for (int t = 0; t < n_tiles; t++) UNROLL
            for (int v = 0; v < TILE_VECS; v++)
                x[t * TILE_VECS + v] =
                    load_factor(type, k[t] + at + (size_t)v * vec_bytes, stride, e);
            UNROLL
            for (int h = 0; h < n; h++) {
                vf f = spread_factor(type, q + (size_t)h * q_floats, pair, e);
                UNROLL
                for (int v = 0; v < n_tiles * TILE_VECS; v++)
                    sums[h][v] = multiply(type, f, x[v], sums[h][v]);
            }
        }
    }
    UNROLL
    for (int t = 0; t < n_tiles; t++) {
        if (i + (uint32_t)t >= st->n) break;
        UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            vf scales = vf_set1(0);
            if (kv_is_scaled(type))
                scales = vf_load(kv_k_scales(type, u->j->spec->head_dim, k[t]) + v * VW);
            UNROLL
            for (int h = 0; h < n; h++) {
                vf s = sums[h][t * TILE_VECS + v];
                if (kv_is_scaled(type)) s = vf_of_vi((vi)s) * scales;
                float *out = u->s[q0 + (uint32_t)h] + (st->first + i + (uint32_t)t) * KV_TILE;
                vf_store(out + v * VW, s * vf_set1(u->q_scale[q0 + (uint32_t)h]));
            }
        }
    }
}

/* The group's part of tiles [i, i + SCORE_TILES), if it has one. */
INLINE void score(kv_type type, int n, unit_state *u, const stream *st, const group *g,
                  uint32_t i) {
    const int half = SCORE_TILES > 1 ? SCORE_TILES / 2 : 1; // if fewer are left, or fit
    uint32_t begin = u32_max(i, g->tile_begin - st->first);
    uint32_t end = u32_min(i + SCORE_TILES, g->tile_end - st->first);
    for (; begin < end; begin += (uint32_t)half) {
        if (!(VW == 8 && n > 3) && begin + (uint32_t)half < end) {
            score_tiles(type, n, SCORE_TILES, u, st, g->q0, begin);
            return;
        }
        score_tiles(type, n, half, u, st, g->q0, begin);
    }
}

/* ---- weights ---- */

/* cap * tanh(x / cap), tanh(y) = 1 - 2 / (e^2y + 1) */
INLINE vf soften(vf x, float cap) {
    return cap * (1.0f - 2.0f / (vf_exp(x * (2.0f / cap)) + 1.0f));
}

/* e^x with a relative error of at most 2e-7, for x <= 0; x = n ln2 + r, and a polynomial with a
 * small largest error between -ln2 / 2 and ln2 / 2.  vf_exp took a third of a short step's time. */
INLINE vf exp_of_negative(vf x) {
#if defined(CPU_LEVEL_AVX512)
    x = vf_max(vf_set1(-104), x); // gives 0; NaN stays
    __m512 n = _mm512_roundscale_ps((__m512)(x * 0x1.715476p0f), _MM_FROUND_TO_NEAREST_INT);
    vf r = vf_fma((vf)n, vf_set1(-0x1.62e4p-1f), x);
    r = vf_fma((vf)n, vf_set1(-0x1.7f7d1cp-20f), r);
    vf sum = vf_fma(vf_set1(0x1.12106cp-7f), r, vf_set1(0x1.57146cp-5f));
    sum = vf_fma(sum, r, vf_set1(0x1.5554d8p-3f));
    sum = vf_fma(sum, r, vf_set1(0x1.fffe4ap-2f));
    sum = vf_fma(sum, r, vf_set1(1));
    sum = vf_fma(sum, r, vf_set1(1));
    return (vf)_mm512_scalef_ps((__m512)sum, n);
#else
    return vf_exp(x);
#endif
}

/* The lanes of the vector that begins at position `at` that are in [from, to). */
INLINE vi lanes_between(uint32_t at, uint32_t from, uint32_t to) {
    vi pos = vi_iota() + (int32_t)at;
    return (vi)(pos >= (int32_t)from) & (vi)(pos < (int32_t)to);
}

/* Weights are not wider than scores: in ascending order none is overwritten before it was read. */
INLINE void store_weight(kv_type type, float *s, size_t at, vf x) {
#if defined(CPU_LEVEL_AVX512BF16)
    if (type == KV_BF16) {
        __m256bh halves = _mm512_cvtneps_pbh((__m512)x);
        memcpy((unsigned char *)s + 2 * at, &halves, sizeof halves);
        return;
    }
#endif
    if (kv_is_scaled(type))
        store_halves((unsigned char *)s + 2 * at, (vi)x);
    else
        vf_store(s + at, x);
}

/* The scores of query i, one of group g, become weights: p = exp(s - max). */
INLINE void weigh(kv_type type, unit_state *u, const stream *st, const group *g, uint32_t base,
                  uint32_t i) {
    const float cap = u->j->spec->softcap;
    const uint32_t head_dim = u->j->spec->head_dim;
    uint32_t begin = g->tile_begin * KV_TILE, end = begin, from = 0, to = 0;
    float *s = u->s[i];
    if (attends(u, i, base)) {
        from = u32_max(u->from[i], base) - base;
        to = u32_min(u->to[i], base + ATTN_CHUNK) - base;
        begin = from / KV_TILE * KV_TILE;
        end = (to + KV_TILE - 1) / KV_TILE * KV_TILE;
    }
    vf most = vf_set1(-INFINITY), sum = vf_set1(0);
    vf scaled_most = vf_set1(0), scaled_sum = vf_set1(0);
    for (uint32_t t = begin; t < end; t += VW) {
        vf x = vf_load(s + t);
        bool edge = t < from || t + VW > to;
        if (cap != 0) x = soften(x, cap);
        if (edge) x = vf_select(lanes_between(t, from, to), x, vf_set1(-INFINITY));
        if (cap != 0 || edge) vf_store(s + t, x);
        most = vf_max(most, x);
    }
    most = vf_all_max(most);
    for (uint32_t t = g->tile_begin * KV_TILE; t < begin; t += VW)
        store_weight(type, s, t, vf_set1(0));
    for (uint32_t t = begin; t < end; t += VW) {
        vf x = exp_of_negative(vf_load(s + t) - most);
        sum += x;
        if (!kv_is_scaled(type)) {
            store_weight(type, s, t, x);
            continue;
        }
        const unsigned char *values = st->at[st->n + t / KV_TILE - st->first];
        x *= vf_load(kv_v_scales(type, head_dim, values) + t % KV_TILE);
        if (t < from || t + VW > to) // the other positions may hold anything
            x = vf_select(lanes_between(t, from, to), x, vf_set1(0));
        vf_store(s + t, x);
        scaled_most = vf_max(x, scaled_most); // ignores NaN, which the sum has
        scaled_sum += x;
    }
    if (kv_is_scaled(type)) {
        float size = vf_all_max(scaled_most)[0], total = vf_all_add(scaled_sum)[0];
        if (type == KV_I16) total *= 32767.0f / P16_SUM;
        if (!(total < INFINITY) || (type == KV_I16 && total > size)) size = total;
        u->p_scale[i] =
            to_integers(s + begin, end - begin, size, 32767, (unsigned char *)s + 2 * begin);
    }
    for (uint32_t t = end; t < g->tile_end * KV_TILE; t += VW) store_weight(type, s, t, vf_set1(0));
    u->part_max[i] = most[0];
    u->part_sum[i] = vf_all_add(sum)[0];
}

/* ---- joining ---- */

/* Joins the result of the chunks so far (max, sum) and the result of the next:
 *
 *     m    = max(max, part_max)
 *     keep = exp(max - m)         factor of the result so far
 *     gain = exp(part_max - m)    factor of the next; 0 if nothing was attended to
 *     sum  = sum * keep + part_sum * gain
 *
 * VW of them. */
INLINE void join(float *max, float *sum, const float *part_max, const float *part_sum, float *keep,
                 float *gain) {
    vf before = vf_load(max), next = vf_load(part_max);
    vf most = vf_max(before, next);
    vi nothing = (vi)(next == vf_set1(-INFINITY));
    vf k = vf_select(nothing, vf_set1(1), vf_exp(before - most));
    vf g = vf_select(nothing, vf_set1(0), vf_exp(next - most));
    vf_store(sum, vf_fma(vf_load(part_sum), g, vf_load(sum) * k));
    vf_store(max, most);
    vf_store(keep, k);
    vf_store(gain, g);
}

/* ---- values ---- */

/* n_vecs vectors of features from f on. */
INLINE void sum_features(kv_type type, int n, int n_vecs, const unit_state *u, const stream *st,
                         const group *g, size_t f) {
    const size_t elem = kv_elem_bytes(type), stride = u->width * elem, pair_bytes = 2 * stride;
    const size_t vec_bytes = VW * elem * (kv_in_pairs(type) ? 2 : 1);
    const size_t skip = f * elem * (kv_in_pairs(type) ? 2 : 1);
    vf sums[QUERIES][OUT_VECS];
    UNROLL
    for (int h = 0; h < n; h++) UNROLL
    for (int v = 0; v < n_vecs; v++) sums[h][v] = vf_set1(0);
    for (uint32_t t = g->tile_begin; t < g->tile_end; t++) {
        const unsigned char *values = st->at[st->n + t - st->first] + skip;
        const unsigned char *ahead = st->at[st->n + t - st->first + FETCH_AHEAD] + 2 * f * elem;
        const unsigned char *p =
            (const unsigned char *)u->s[g->q0] + t * KV_TILE * factor_bytes(type);
        const uint32_t n_pos = u32_min(g->end - t * KV_TILE, KV_TILE);
        if (kv_is_scaled(type) && f == 0) __builtin_prefetch(ahead + KV_TILE * stride);
        ROLLED
        for (uint32_t pair = 0; pair < n_pos / 2; pair++) {
            UNROLL
            for (size_t line = 0; line < (size_t)n_vecs * 2 * VW * elem; line += 64)
                __builtin_prefetch(ahead + line);
            UNROLL
            for (int e = 0; e < steps_of(type); e++) {
                vf x[OUT_VECS];
                UNROLL
                for (int v = 0; v < n_vecs; v++)
                    x[v] = load_factor(type, values + (size_t)v * vec_bytes, stride, e);
                UNROLL
                for (int h = 0; h < n; h++) {
                    vf w = spread_factor(type, p + (size_t)h * sizeof u->s[0], pair, e);
                    UNROLL
                    for (int v = 0; v < n_vecs; v++)
                        sums[h][v] = multiply(type, w, x[v], sums[h][v]);
                }
            }
            values += pair_bytes;
            ahead += pair_bytes;
        }
        if (n_pos % 2 == 0) continue;
        UNROLL
        for (int v = 0; v < n_vecs; v++) { // the second position may hold anything
            vf x = load_factor(type, values + (size_t)v * vec_bytes, stride, 0);
            if (is_dot(type)) x = (vf)((vi)x & 0xffff);
            UNROLL
            for (int h = 0; h < n; h++) {
                vf w = spread_factor(type, p + (size_t)h * sizeof u->s[0], n_pos / 2, 0);
                sums[h][v] = multiply(type, w, x, sums[h][v]);
            }
        }
    }
    UNROLL
    for (int h = 0; h < n; h++) {
        const uint32_t i = g->q0 + (uint32_t)h;
        float *acc = u->acc[i] + f;
        UNROLL
        for (int v = 0; v < n_vecs; v++) {
            vf x = sums[h][v];
            if (kv_is_scaled(type)) x = vf_of_vi((vi)x) * u->p_scale[i];
            vf_store(acc + v * VW,
                     vf_fma(x, vf_set1(u->gain[i]), vf_load(acc + v * VW) * u->keep[i]));
        }
    }
}

/* The group's part of features [f, f + n_vecs * VW). */
INLINE void sum_values(kv_type type, int n, const unit_state *u, const stream *st, const group *g,
                       size_t f, int n_vecs) {
    if (n_vecs == OUT_VECS && !(VW == 8 && n > 3)) {
        sum_features(type, n, OUT_VECS, u, st, g, f);
        return;
    }
    const int few = VW == 8 && n > 3 ? 2 : 1; // as registers allow
    for (int v = 0; v < n_vecs; v += few)
        sum_features(type, n, few, u, st, g, f + (size_t)(v * VW));
}

/* ---- for each number of queries ---- */

/* Functions of their own: the compiler takes far longer for one that has all of them inside. */
typedef void score_fn(unit_state *u, const stream *st, const group *g, uint32_t i);
typedef void values_fn(const unit_state *u, const stream *st, const group *g, size_t f, int n_vecs);

#define GROUP_OF(type, n)                                                                          \
    static void score_##type##_##n(unit_state *u, const stream *st, const group *g, uint32_t i) {  \
        score(KV_##type, n, u, st, g, i);                                                          \
    }                                                                                              \
    static void values_##type##_##n(const unit_state *u, const stream *st, const group *g,         \
                                    size_t f, int n_vecs) {                                        \
        sum_values(KV_##type, n, u, st, g, f, n_vecs);                                             \
    }
#if defined(CPU_LEVEL_AVX2) || defined(CPU_LEVEL_AVX512)
#define GROUPS_OF(type)                                                                            \
    GROUP_OF(type, 1)                                                                              \
    GROUP_OF(type, 2) GROUP_OF(type, 3) GROUP_OF(type, 4) GROUP_OF(type, 6)
#define FUNCTIONS_OF(f, type)                                                                      \
    {                                                                                              \
        [1] = f##_##type##_1, [2] = f##_##type##_2, [3] = f##_##type##_3, [4] = f##_##type##_4,    \
        [6] = f##_##type##_6                                                                       \
    }
#else
#define GROUPS_OF(type) GROUP_OF(type, 1) GROUP_OF(type, 2) GROUP_OF(type, 3)
#define FUNCTIONS_OF(f, type)                                                                      \
    { [1] = f##_##type##_1, [2] = f##_##type##_2, [3] = f##_##type##_3 }
#endif

/* ---- units ---- */

/* The weighted sum of values over the sum of weights, of which the sink has one, too.  A sum of
 * zero may be -0 or 0, depending on the other queries: + 0 makes it 0. */
static void write_out(const attn_job *j, uint32_t row, uint32_t head, const float *acc, float max,
                      float sum) {
    const attn_spec *spec = j->spec;
    float *out = j->out + ((size_t)row * spec->n_heads + head) * spec->head_dim;
    if (j->sinks != NULL)
        sum += expf(j->sinks[head] - max); // infinite: nothing but the sink counts
    for (uint32_t d = 0; d < spec->head_dim; d++) out[d] = acc[d] / sum + 0.0f;
}

/* The chunk that begins at position `base`, for all queries. */
INLINE void attend_chunk(kv_type type, score_fn *const *scores, values_fn *const *values,
                         unit_state *u, const stream *st, uint32_t base) {
    make_groups(u, base);
    for (uint32_t i = 0; i < st->n; i += SCORE_TILES)
        for (const group *g = u->groups; g < u->groups + u->n_groups; g++)
            scores[g->n](u, st, g, i);
    for (uint32_t i = 0; i < u->n_queries; i++) u->part_max[i] = -INFINITY, u->part_sum[i] = 0;
    for (const group *g = u->groups; g < u->groups + u->n_groups; g++)
        for (uint32_t i = g->q0; i < g->q0 + g->n; i++) weigh(type, u, st, g, base, i);
    for (uint32_t i = 0; i < u->n_queries; i += VW)
        join(u->max + i, u->sum + i, u->part_max + i, u->part_sum + i, u->keep + i, u->gain + i);
    for (size_t f = 0; f < u->width; f += OUT_VECS * VW) {
        int n_vecs = (int)size_min((u->width - f) / VW, OUT_VECS);
        for (const group *g = u->groups; g < u->groups + u->n_groups; g++)
            values[g->n](u, st, g, f, n_vecs);
    }
}

/* Queries of the unit, row by row. */
INLINE void load_queries(kv_type type, const attn_job *j, const attn_unit *unit, unit_state *u) {
    const attn_spec *spec = j->spec;
    const uint32_t *rows = j->plan->rows + unit->rows_at;
    element_row e;
    u->j = j;
    u->width = kv_padded(spec->head_dim);
    u->n_pairs = (uint32_t)kv_even(spec->head_dim) / 2;
    u->n_queries = unit->n_rows * unit->n_heads;
    for (uint32_t i = 0; i < u->n_queries; i++) {
        uint32_t row = rows[i / unit->n_heads], head = unit->head_begin + i % unit->n_heads;
        u->from[i] = attn_begin(spec, j->b->positions[row]);
        u->to[i] = j->b->positions[row] + 1;
        u->q_scale[i] = spec->scale;
        load_row(&e, j->q + ((size_t)row * spec->n_heads + head) * spec->head_dim, spec->head_dim);
        unsigned char *q = (unsigned char *)u->q + (size_t)i * u->n_pairs * 2 * factor_bytes(type);
        if (is_dot(type)) to_elements(type, QUERY, u->width, &e);
        if (kv_is_scaled(type)) u->q_scale[i] *= e.scale;
        memcpy(q, is_dot(type) ? (const void *)e.halves : e.x,
               (size_t)u->n_pairs * 2 * factor_bytes(type));
    }
}

/* Set the sums of a chunk's queries to zero.  A unit with whole rows keeps their sums in its own
 * memory from the first chunk to the last; others leave the sums of each chunk for the merge. */
INLINE void begin_chunk(unit_state *u, const attn_unit *unit, uint32_t chunk) {
    if (unit->whole && chunk != unit->chunk_begin) return;
    const attn_job *j = u->j;
    for (uint32_t i = 0; i < LANES; i++) u->max[i] = u->part_max[i] = -INFINITY;
    for (uint32_t i = 0; i < LANES; i++) u->sum[i] = u->part_sum[i] = 0;
    for (uint32_t i = 0; i < u->n_queries; i++) {
        bool leaves = !unit->whole && attends(u, i, chunk * ATTN_CHUNK);
        u->acc[i] = leaves
                        ? attn_partial(j->plan, j, j->plan->rows[unit->rows_at + i / unit->n_heads],
                                       unit->head_begin + i % unit->n_heads, chunk)
                        : u->room + i * u->width;
        memset(u->acc[i], 0, u->width * sizeof(float));
    }
}

static void end_chunk(unit_state *u, const attn_unit *unit, uint32_t chunk) {
    for (uint32_t i = 0; !unit->whole && i < u->n_queries; i++) {
        if (!attends(u, i, chunk * ATTN_CHUNK)) continue;
        u->acc[i][u->width] = u->max[i];
        u->acc[i][u->width + 1] = u->sum[i];
    }
}

/* K of the tiles of a chunk that the unit reads: `first` is the first of them; how many. */
static uint32_t find_tiles(const unit_state *u, const batch_seq *s, uint32_t kv_head, uint32_t base,
                           uint32_t *first, const unsigned char **at) {
    uint32_t begin = UINT32_MAX, end = base;
    for (uint32_t i = 0; i < u->n_queries; i++) {
        begin = u32_min(begin, u32_max(u->from[i], base));
        end = u32_max(end, u32_min(u->to[i], base + ATTN_CHUNK));
    }
    INFERD_CHECK(begin < end); // a query attends to every chunk of a unit
    *first = (begin - base) / KV_TILE;
    uint32_t n = (end - base + KV_TILE - 1) / KV_TILE - *first;
    for (uint32_t i = 0; i < n; i++) at[i] = kv_at(u->j, s, base + (*first + i) * KV_TILE, kv_head);
    return n;
}

INLINE void attend_unit(kv_type type, score_fn *const *scores, values_fn *const *values,
                        const attn_job *j, const attn_unit *unit) {
    const attn_spec *spec = j->spec;
    const uint32_t *rows = j->plan->rows + unit->rows_at;
    const batch_seq *s = &j->b->seqs[j->b->row_seq[rows[0]]];
    const uint32_t kv_head = unit->head_begin / (spec->n_heads / spec->n_kv_heads);
    const size_t k_bytes = kv_k_bytes(type, spec->head_dim);
    const unsigned char *next[CHUNK_TILES];
    uint32_t next_first, n_next;
    unit_state u;
    stream st;
    load_queries(type, j, unit, &u);
    n_next = find_tiles(&u, s, kv_head, unit->chunk_begin * ATTN_CHUNK, &next_first, next);
    for (uint32_t i = 0; i < u32_min(n_next, FETCH_AHEAD); i++)
        for (size_t line = 0; line < k_bytes; line += 64) __builtin_prefetch(next[i] + line);
    for (uint32_t chunk = unit->chunk_begin; chunk < unit->chunk_end; chunk++) {
        begin_chunk(&u, unit, chunk);
        st.first = next_first;
        st.n = n_next;
        memcpy(st.at, next, n_next * sizeof *next);
        for (uint32_t i = 0; i < st.n; i++) st.at[st.n + i] = next[i] + k_bytes;
        n_next = 0;
        if (chunk + 1 < unit->chunk_end)
            n_next = find_tiles(&u, s, kv_head, (chunk + 1) * ATTN_CHUNK, &next_first, next);
        memcpy(st.at + 2 * st.n, next, n_next * sizeof *next);
        for (uint32_t i = 2 * st.n + n_next; i < STREAM_MAX; i++) st.at[i] = st.at[i - 1];
        attend_chunk(type, scores, values, &u, &st, chunk * ATTN_CHUNK);
        end_chunk(&u, unit, chunk);
    }
    if (!unit->whole) return;
    for (uint32_t i = 0; i < u.n_queries; i++)
        write_out(j, rows[i / unit->n_heads], unit->head_begin + i % unit->n_heads, u.acc[i],
                  u.max[i], u.sum[i]);
}

#define ATTEND(type)                                                                               \
    GROUPS_OF(type)                                                                                \
    void LEVEL(attend_##type)(const attn_job *j, const attn_unit *unit) {                          \
        static score_fn *const scores[] = FUNCTIONS_OF(score, type);                               \
        static values_fn *const values[] = FUNCTIONS_OF(values, type);                             \
        attend_unit(KV_##type, scores, values, j, unit);                                           \
    }

/* Level avx512bf16 multiplies floats as avx512 does, and has the same functions. */
#if defined(CPU_LEVEL_AVX512BF16)
#define ATTEND_FLOATS(type) attend_##type##_avx512
#else
#define ATTEND_FLOATS(type) LEVEL(attend_##type)
ATTEND(F16)
ATTEND(F32)
#endif
ATTEND(BF16)
ATTEND(I8)
ATTEND(I16)

void LEVEL(attend)(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    static attend_unit_fn *const attend[] = {[KV_F16] = ATTEND_FLOATS(F16),
                                             [KV_F32] = ATTEND_FLOATS(F32),
                                             [KV_BF16] = LEVEL(attend_BF16),
                                             [KV_I8] = LEVEL(attend_I8),
                                             [KV_I16] = LEVEL(attend_I16)};
    INFERD_CHECK(j->kv->type < INFERD_COUNT(attend)); // KV_AUTO is never in a layout
    for (uint32_t i = begin; i < end; i++) attend[j->kv->type](j, &j->plan->units[i]);
}

/* The chunks of one query, in ascending order; one lane is used. */
static void merge_query(const attn_job *j, uint32_t row, uint32_t head) {
    const size_t width = kv_padded(j->spec->head_dim);
    const uint32_t pos = j->b->positions[row], end = attn_chunk_end(pos);
    _Alignas(64) float acc[HEAD_DIM_MAX] = {0};
    float max[VW], sum[VW] = {0}, part_max[VW], part_sum[VW] = {0}, keep[VW], gain[VW];
    for (int i = 0; i < VW; i++) max[i] = part_max[i] = -INFINITY;
    for (uint32_t chunk = attn_chunk_begin(j->spec, pos); chunk < end; chunk++) {
        const float *partial = attn_partial(j->plan, j, row, head, chunk);
        part_max[0] = partial[width];
        part_sum[0] = partial[width + 1];
        join(max, sum, part_max, part_sum, keep, gain);
        for (size_t d = 0; d < width; d += VW)
            vf_store(acc + d,
                     vf_fma(vf_load(partial + d), vf_set1(gain[0]), vf_load(acc + d) * keep[0]));
    }
    write_out(j, row, head, acc, max[0], sum[0]);
}

void LEVEL(attend_merge)(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    uint32_t n_kv_heads = j->spec->n_kv_heads, n = j->spec->n_heads / n_kv_heads;
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t h = 0; h < n; h++)
            merge_query(j, j->plan->merge_rows[i / n_kv_heads], i % n_kv_heads * n + h);
}
