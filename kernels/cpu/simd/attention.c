/* attention.c - storing keys and values, and attending to them.  Compiled per level.
 *
 * Layout: level.h.  A row goes through its positions in tiles of 16 and keeps a running maximum m,
 * sum l and weighted sum acc:
 *
 *     s   = scale * q . K[:, tile]            16 lanes, one per position; K read as it lies
 *     m'  = max(m, max s)                     positions outside [begin, pos] do not count
 *     p   = exp(s - m'),  c = exp(m - m')
 *     l   = l * c + sum p
 *     acc = acc * c + sum over t of p[t] * V[t, :]
 *     out = acc / l                           at the end
 *
 * Tiles begin at multiples of 16 inside blocks, blocks at multiples of block_tokens: where a row's
 * tiles lie depends on nothing but its own position, so its result does not depend on the batch.
 * Up to four query heads of a group share each loaded K and V.
 *
 * Bytes moved: K and V of the positions attended to, once per (row, kv head, four query heads).
 *
 * Thread: any; ranges of one job do not overlap. */
#include <math.h>

#include "cpu/level.h"
#include "cpu/simd/simd.h"

enum {
    TILE = KV_PAD,              // positions per tile
    TILE_VECS = TILE / VW,      // vectors they take
    HEADS_MAX = 4,              // query heads that share a pass
    CHAINS = VW == 16 ? 2 : 1,  // independent sums per score: features d, d + CHAINS, ...
    OUT_VECS = VW == 16 ? 4 : 2 // vectors of acc kept in registers per head
};

/* ---- elements ---- */

INLINE vf load_kv(kv_type type, const unsigned char *p, size_t i) {
    if (type == KV_F32) return vf_load((const float *)(const void *)p + i);
    const uint16_t *h = (const uint16_t *)(const void *)p + i;
    return type == KV_F16 ? vf_load_f16(h) : vf_load_bf16(h);
}

/* ---- storing ---- */

/* n floats, padded with zeros to whole vectors, as elements. */
static void convert(kv_type type, const float *x, uint32_t n, uint16_t *out) {
    float padded[HEAD_DIM_MAX + KV_PAD] = {0};
    memcpy(padded, x, n * sizeof *x);
    if (type == KV_F16)
        for (size_t i = 0; i < kv_padded(n); i += VW) vf_store_f16(out + i, vf_load(padded + i));
    else
        for (size_t i = 0; i < kv_padded(n); i++) out[i] = f32_to_bf16(padded[i]);
}

static void store_head(const kv_layout *l, unsigned char *keys, uint32_t t, const float *k,
                       const float *v) {
    unsigned char *values = keys + kv_k_elems(l) * kv_elem_bytes(l->type);
    size_t lanes = kv_padded(l->block_tokens), v_row = t * kv_padded(l->head_dim);
    if (l->type == KV_F32) {
        float *kf = (float *)(void *)keys, *vf_ = (float *)(void *)values + v_row;
        for (size_t d = 0; d < l->head_dim; d++) kf[d * lanes + t] = k[d];
        for (size_t d = 0; d < kv_padded(l->head_dim); d++) vf_[d] = d < l->head_dim ? v[d] : 0;
        return;
    }
    uint16_t elems[HEAD_DIM_MAX + KV_PAD], *kh = (uint16_t *)(void *)keys;
    convert(l->type, k, l->head_dim, elems);
    for (size_t d = 0; d < l->head_dim; d++) kh[d * lanes + t] = elems[d];
    convert(l->type, v, l->head_dim, elems);
    memcpy((uint16_t *)(void *)values + v_row, elems, kv_padded(l->head_dim) * sizeof *elems);
}

void LEVEL(kv_store)(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    const kv_layout *l = j->kv;
    for (size_t row = begin; row < end; row++) {
        const batch_seq *s = &j->b->seqs[j->b->row_seq[row]];
        uint32_t pos = j->b->positions[row];
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            size_t from = (row * l->n_kv_heads + head) * l->head_dim;
            store_head(l, kv_at(j, s, pos / l->block_tokens, head), pos % l->block_tokens,
                       j->k + from, j->v + from);
        }
    }
}

/* ---- attending ---- */

/* Some query heads of one row, on their way through the positions. */
typedef struct state {
    vf max[HEADS_MAX];  // m, the same in all lanes
    vf keep[HEADS_MAX]; // c, the same in all lanes
    vf sum[HEADS_MAX];  // l is the sum of the lanes
    float p[HEADS_MAX][TILE];
    _Alignas(64) float acc[HEADS_MAX * (HEAD_DIM_MAX + KV_PAD)]; // [n_heads, head_dim padded]
} state;

/* s[h] = q[h] . K for the 16 positions from `keys` on; lanes: row length of K. */
INLINE void scores(kv_type type, int n_heads, const float *q, uint32_t head_dim,
                   const unsigned char *keys, size_t lanes, vf s[HEADS_MAX][TILE_VECS]) {
    vf sums[CHAINS][HEADS_MAX][TILE_VECS];
    UNROLL
    for (int c = 0; c < CHAINS; c++) UNROLL
    for (int h = 0; h < n_heads; h++) UNROLL
    for (int v = 0; v < TILE_VECS; v++) sums[c][h][v] = vf_set1(0);
    uint32_t d = 0;
    for (; d + CHAINS <= head_dim; d += CHAINS) UNROLL
    for (int c = 0; c < CHAINS; c++) UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
        vf k = load_kv(type, keys, (d + (uint32_t)c) * lanes + (size_t)(v * VW));
        UNROLL
        for (int h = 0; h < n_heads; h++)
            sums[c][h][v] =
                vf_fma(vf_set1(q[(uint32_t)h * head_dim + d + (uint32_t)c]), k, sums[c][h][v]);
    }
    for (; d < head_dim; d++)
        for (int v = 0; v < TILE_VECS; v++)
            for (int h = 0; h < n_heads; h++)
                sums[0][h][v] =
                    vf_fma(vf_set1(q[(uint32_t)h * head_dim + d]),
                           load_kv(type, keys, d * lanes + (size_t)(v * VW)), sums[0][h][v]);
    UNROLL
    for (int h = 0; h < n_heads; h++) UNROLL
    for (int v = 0; v < TILE_VECS; v++)
        s[h][v] = CHAINS == 2 ? sums[0][h][v] + sums[CHAINS - 1][h][v] : sums[0][h][v];
}

/* cap * tanh(x / cap), tanh(y) = 1 - 2 / (e^2y + 1) */
INLINE vf soften(vf x, float cap) {
    return cap * (1.0f - 2.0f / (vf_exp(x * (2.0f / cap)) + 1.0f));
}

/* Scores of lanes [from, to) become weights; m, l and c move on. */
INLINE void weigh(state *st, int n_heads, vf s[HEADS_MAX][TILE_VECS], const attn_spec *spec,
                  int from, int to) {
    UNROLL
    for (int h = 0; h < n_heads; h++) {
        vi mask[TILE_VECS];
        vf most = vf_set1(-INFINITY);
        UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            vi lane = vi_iota() + v * VW;
            s[h][v] *= spec->scale;
            if (spec->softcap != 0) s[h][v] = soften(s[h][v], spec->softcap);
            mask[v] = (vi)(lane >= from) & (vi)(lane < to);
            most = vf_max(most, vf_select(mask[v], s[h][v], vf_set1(-INFINITY)));
        }
        vf max = vf_max(vf_all_max(most), st->max[h]);
        st->keep[h] = vf_exp(st->max[h] - max);
        st->max[h] = max;
        st->sum[h] *= st->keep[h];
        UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            vf p = vf_select(mask[v], vf_exp(s[h][v] - max), vf_set1(0));
            vf_store(&st->p[h][v * VW], p);
            st->sum[h] += p;
        }
    }
}

/* acc = acc * c + p . V for n_vecs vectors of features from `d` on. */
INLINE void gather(kv_type type, int n_heads, int n_vecs, state *st, const unsigned char *values,
                   size_t width, size_t d, int from, int to) {
    vf acc[HEADS_MAX][OUT_VECS];
    UNROLL
    for (int h = 0; h < n_heads; h++) UNROLL
    for (int v = 0; v < n_vecs; v++)
        acc[h][v] = vf_load(st->acc + (size_t)h * width + d + (size_t)(v * VW)) * st->keep[h];
    for (int t = from; t < to; t++) UNROLL
    for (int v = 0; v < n_vecs; v++) {
        vf value = load_kv(type, values, (size_t)t * width + d + (size_t)(v * VW));
        UNROLL
        for (int h = 0; h < n_heads; h++)
            acc[h][v] = vf_fma(vf_set1(st->p[h][t]), value, acc[h][v]);
    }
    UNROLL
    for (int h = 0; h < n_heads; h++) UNROLL
    for (int v = 0; v < n_vecs; v++)
        vf_store(st->acc + (size_t)h * width + d + (size_t)(v * VW), acc[h][v]);
}

/* Blocks lie anywhere in memory, so no hardware guesses the next one. */
INLINE void fetch_block(const kv_layout *l, const unsigned char *keys) {
    size_t n_bytes = (kv_k_elems(l) + kv_v_elems(l)) * kv_elem_bytes(l->type);
    for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(keys + i);
}

/* n_heads query heads of one row against positions [begin, pos]. */
INLINE void attend_row(kv_type type, int n_heads, const attn_job *j, const batch_seq *s,
                       uint32_t kv_head, uint32_t pos, const float *q, float *out) {
    const kv_layout *l = j->kv;
    const size_t lanes = kv_padded(l->block_tokens), width = kv_padded(l->head_dim);
    state st;
    for (int h = 0; h < n_heads; h++) {
        st.max[h] = vf_set1(-INFINITY);
        st.sum[h] = vf_set1(0);
    }
    memset(st.acc, 0, (size_t)n_heads * width * sizeof *st.acc);
    uint32_t begin = attn_begin(j->spec, pos);
    for (uint32_t block = begin / l->block_tokens; block <= pos / l->block_tokens; block++) {
        const unsigned char *keys = kv_at(j, s, block, kv_head);
        const unsigned char *values = keys + kv_k_elems(l) * kv_elem_bytes(l->type);
        uint32_t first = block * l->block_tokens;
        if (block < pos / l->block_tokens) fetch_block(l, kv_at(j, s, block + 1, kv_head));
        for (uint32_t t = 0; t < l->block_tokens && first + t <= pos; t += TILE) {
            int from = first + t < begin ? (int)u32_min(begin - first - t, TILE) : 0;
            int to = (int)u32_min(u32_min(l->block_tokens - t, pos + 1 - first - t), TILE);
            if (from >= to) continue;
            vf sc[HEADS_MAX][TILE_VECS];
            scores(type, n_heads, q, l->head_dim, keys + t * kv_elem_bytes(type), lanes, sc);
            weigh(&st, n_heads, sc, j->spec, from, to);
            const unsigned char *rows = values + t * width * kv_elem_bytes(type);
            size_t d = 0;
            for (; d + OUT_VECS * VW <= width; d += OUT_VECS * VW)
                gather(type, n_heads, OUT_VECS, &st, rows, width, d, from, to);
            for (; d < width; d += VW) gather(type, n_heads, 1, &st, rows, width, d, from, to);
        }
    }
    for (int h = 0; h < n_heads; h++) {
        float sum = vf_all_add(st.sum[h])[0];
        for (uint32_t d = 0; d < l->head_dim; d++)
            out[(uint32_t)h * l->head_dim + d] = st.acc[(size_t)h * width + d] / sum;
    }
}

INLINE void attend_heads(kv_type type, const attn_job *j, uint32_t row, uint32_t kv_head) {
    const batch_seq *s = &j->b->seqs[j->b->row_seq[row]];
    uint32_t pos = j->b->positions[row], head_dim = j->spec->head_dim;
    uint32_t group = j->spec->n_heads / j->spec->n_kv_heads;
    size_t at = ((size_t)row * j->spec->n_heads + kv_head * group) * head_dim;
    const float *q = j->q + at;
    float *out = j->out + at;
    for (uint32_t h = 0; h < group;
         h += HEADS_MAX, q += HEADS_MAX * head_dim, out += HEADS_MAX * head_dim) {
        switch (group - h) {
        case 1:
            attend_row(type, 1, j, s, kv_head, pos, q, out);
            break;
        case 2:
            attend_row(type, 2, j, s, kv_head, pos, q, out);
            break;
        case 3:
            attend_row(type, 3, j, s, kv_head, pos, q, out);
            break;
        default:
            attend_row(type, HEADS_MAX, j, s, kv_head, pos, q, out);
            break;
        }
    }
}

void LEVEL(attend)(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    uint32_t n_kv_heads = j->spec->n_kv_heads;
    for (uint32_t unit = begin; unit < end; unit++) {
        switch (j->kv->type) {
        case KV_F16:
            attend_heads(KV_F16, j, unit / n_kv_heads, unit % n_kv_heads);
            break;
        case KV_BF16:
            attend_heads(KV_BF16, j, unit / n_kv_heads, unit % n_kv_heads);
            break;
        case KV_F32:
            attend_heads(KV_F32, j, unit / n_kv_heads, unit % n_kv_heads);
            break;
        }
    }
}
