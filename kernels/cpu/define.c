/* define.c - every operation as the formula, in loops as plain as they come.
 *
 * This is the level `define`: what each operation means.  It is slow, and it is what the other
 * levels and other backends are compared with.  Sums are kept in double so that the comparison
 * measures the others' rounding only.
 *
 * Thread: any; ranges of one job do not overlap. */
#include <math.h>

#include "cpu/level.h"
#include "cpu/panel.h"

/* x . w, where w is row `o` of the matrix, unpacked a block at a time */
static double dot(const float *x, const weight *w, uint32_t o) {
    float block[PANEL_BLOCK];
    double sum = 0;
    for (uint32_t begin = 0; begin < w->cols; begin += PANEL_BLOCK) {
        uint32_t end = u32_min(begin + PANEL_BLOCK, w->cols);
        panel_row_to_f32(w, o, begin, end, block);
        for (uint32_t k = begin; k < end; k++) sum += (double)x[k] * (double)block[k - begin];
    }
    return sum;
}

/* out[i, o] = sum over k of x[i, k] * w[o, k], + bias[o] */
void matmul_define(const void *job, uint32_t begin, uint32_t end) {
    const matmul_job *j = job;
    uint32_t rows = j->w->rows;
    for (uint32_t o = begin * MATMUL_UNIT; o < end * MATMUL_UNIT && o < rows; o++) {
        double bias = j->bias != NULL ? (double)j->bias[o] : 0;
        for (size_t i = 0; i < j->n; i++)
            j->out[i * rows + o] = (float)(dot(j->x + i * j->w->cols, j->w, o) + bias);
    }
}

/* out[i] = x[i] * (mean(x^2) + eps)^-1/2 * w[i] */
void rmsnorm_define(const void *job, uint32_t begin, uint32_t end) {
    const rmsnorm_job *j = job;
    for (size_t row = begin; row < end; row++) {
        const float *x = j->x + row * j->dim;
        float *out = j->out + row * j->dim;
        double sum = 0;
        for (uint32_t i = 0; i < j->dim; i++) sum += (double)x[i] * (double)x[i];
        double scale = 1.0 / sqrt(sum / j->dim + (double)j->eps);
        for (uint32_t i = 0; i < j->dim; i++)
            out[i] = (float)((double)x[i] * scale * (double)j->w[i]);
    }
}

/* (a, b) turned: (a cos - b sin, a sin + b cos) */
static void turn(float *a, float *b, float cosine, float sine) {
    double x = (double)*a, y = (double)*b;
    *a = (float)(x * (double)cosine - y * (double)sine);
    *b = (float)(x * (double)sine + y * (double)cosine);
}

void rope_define(const void *job, uint32_t begin, uint32_t end) {
    const rope_job *j = job;
    for (size_t row = begin; row < end; row++) {
        const float *cosine = j->table + row * 2 * j->n_pairs, *sine = cosine + j->n_pairs;
        for (size_t head = 0; head < (size_t)j->n_heads + j->n_kv_heads; head++) {
            float *x = head < j->n_heads
                           ? j->q + (row * j->n_heads + head) * j->head_dim
                           : j->k + (row * j->n_kv_heads + head - j->n_heads) * j->head_dim;
            for (uint32_t i = 0; i < j->n_pairs; i++) {
                if (j->interleaved)
                    turn(&x[2 * i], &x[2 * i + 1], cosine[i], sine[i]);
                else
                    turn(&x[i], &x[i + j->n_pairs], cosine[i], sine[i]);
            }
        }
    }
}

/* out = a / (1 + e^-a) * b */
void silu_mul_define(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++)
        j->out[i] = (float)((double)j->a[i] / (1.0 + exp(-(double)j->a[i])) * (double)j->b[i]);
}

/* out = a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3))) * b */
void gelu_mul_define(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++) {
        double a = (double)j->a[i];
        double inner = sqrt(2.0 / 3.14159265358979323846) * (a + 0.044715 * a * a * a);
        j->out[i] = (float)(a / 2 * (1 + tanh(inner)) * (double)j->b[i]);
    }
}

void add_define(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++)
        j->out[i] = j->a[i] + j->b[i];
}

/* ---- attention ---- */

static float kv_get(kv_type type, const unsigned char *p, size_t i) {
    if (type == KV_F32) return ((const float *)(const void *)p)[i];
    uint16_t bits = ((const uint16_t *)(const void *)p)[i];
    return type == KV_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

static void kv_set(kv_type type, unsigned char *p, size_t i, float value) {
    if (type == KV_F32)
        ((float *)(void *)p)[i] = value;
    else if (type == KV_F16)
        ((uint16_t *)(void *)p)[i] = f32_to_f16(value);
    else
        ((uint16_t *)(void *)p)[i] = f32_to_bf16(value);
}

/* K[d][t] = k[d], V[t][d] = v[d], for the position of each row */
void kv_store_define(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    const kv_layout *l = j->kv;
    for (size_t row = begin; row < end; row++) {
        const batch_seq *s = &j->b->seqs[j->b->row_seq[row]];
        uint32_t pos = j->b->positions[row], t = pos % l->block_tokens;
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            unsigned char *keys = kv_at(j, s, pos / l->block_tokens, head);
            unsigned char *values = keys + kv_k_elems(l) * kv_elem_bytes(l->type);
            size_t from = (row * l->n_kv_heads + head) * l->head_dim;
            for (uint32_t d = 0; d < l->head_dim; d++) {
                kv_set(l->type, keys, d * kv_padded(l->block_tokens) + t, j->k[from + d]);
                kv_set(l->type, values, t * kv_padded(l->head_dim) + d, j->v[from + d]);
            }
        }
    }
}

static double score(const attn_job *j, const batch_seq *s, uint32_t kv_head, uint32_t pos,
                    const float *q) {
    const kv_layout *l = j->kv;
    const unsigned char *keys = kv_at(j, s, pos / l->block_tokens, kv_head);
    double sum = 0;
    for (uint32_t d = 0; d < l->head_dim; d++) {
        size_t at = d * kv_padded(l->block_tokens) + pos % l->block_tokens;
        sum += (double)q[d] * (double)kv_get(l->type, keys, at);
    }
    sum *= (double)j->spec->scale;
    double cap = (double)j->spec->softcap;
    return cap != 0 ? cap * tanh(sum / cap) : sum;
}

/* out = sum over p of softmax(scores)[p] * v[p] */
static void attend_head(const attn_job *j, const batch_seq *s, uint32_t kv_head, uint32_t pos,
                        const float *q, float *out) {
    const kv_layout *l = j->kv;
    double max = -INFINITY, total = 0, sum[HEAD_DIM_MAX] = {0};
    uint32_t begin = attn_begin(j->spec, pos);
    for (uint32_t p = begin; p <= pos; p++) max = fmax(max, score(j, s, kv_head, p, q));
    for (uint32_t p = begin; p <= pos; p++) {
        double weight_of_p = exp(score(j, s, kv_head, p, q) - max);
        const unsigned char *values =
            kv_at(j, s, p / l->block_tokens, kv_head) + kv_k_elems(l) * kv_elem_bytes(l->type);
        total += weight_of_p;
        for (uint32_t d = 0; d < l->head_dim; d++) {
            size_t at = p % l->block_tokens * kv_padded(l->head_dim) + d;
            sum[d] += weight_of_p * (double)kv_get(l->type, values, at);
        }
    }
    for (uint32_t d = 0; d < l->head_dim; d++) out[d] = (float)(sum[d] / total);
}

void attend_define(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    uint32_t n_kv_heads = j->spec->n_kv_heads, group = j->spec->n_heads / n_kv_heads;
    for (uint32_t unit = begin; unit < end; unit++) {
        size_t row = unit / n_kv_heads;
        uint32_t kv_head = unit % n_kv_heads;
        const batch_seq *s = &j->b->seqs[j->b->row_seq[row]];
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            size_t at = (row * j->spec->n_heads + head) * j->spec->head_dim;
            attend_head(j, s, kv_head, j->b->positions[row], j->q + at, j->out + at);
        }
    }
}
