/* define.c - every operation as its formula, in plain loops.
 *
 * This is the level `define`, the definition of each operation.  It is slow; the other levels and
 * other backends are compared with it.  Sums are kept in double so that the comparison measures
 * only the rounding of the others.
 *
 * Thread: any; ranges of one job do not overlap. */
#include <math.h>
#include <stdlib.h>

#include "cpu/attn_plan.h"
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
static void norm(const float *x, const float *w, uint32_t dim, float eps, float *out) {
    double sum = 0;
    for (uint32_t i = 0; i < dim; i++) sum += (double)x[i] * (double)x[i];
    double scale = 1.0 / sqrt(sum / dim + (double)eps);
    for (uint32_t i = 0; i < dim; i++) out[i] = (float)((double)x[i] * scale * (double)w[i]);
}

void rmsnorm_define(const void *job, uint32_t begin, uint32_t end) {
    const rmsnorm_job *j = job;
    for (size_t row = begin; row < end; row++)
        norm(j->x + row * j->dim, j->w, j->dim, j->eps, j->out + row * j->dim);
}

/* ---- 16-bit activations, qact.h ---- */

/* q = round(x * 32767 / max |x|), and sums of it over 32 columns and over 16 */
static void quantize_row(const qact_job *j, uint32_t row, const float *x) {
    size_t padded = qact_padded(j->dim), tile = row / QACT_ROWS;
    uint32_t n_rows = qact_tile_rows(j->n, (uint32_t)tile), r = row % QACT_ROWS;
    int32_t *sums = j->out.sum + tile * QACT_ROWS * (padded / 32);
    int32_t *sums16 = j->out.sum16 + tile * QACT_ROWS * (padded / 16);
    float max = 0;
    bool finite = true;
    for (uint32_t k = 0; k < j->dim; k++) {
        finite = finite && isfinite(x[k]);
        max = fmaxf(max, fabsf(x[k]));
    }
    bool counts = finite && max >= QACT_TINY;
    float inverse = counts ? 32767.0f / max : 0;
    for (uint32_t k = 0; k < j->dim; k++) {
        int16_t q = counts ? (int16_t)lrintf(x[k] * inverse) : 0;
        int32_t *sum = &sums[(size_t)(k / 32) * n_rows + r];
        int32_t *sum16 = &sums16[(size_t)(k / 16) * n_rows + r];
        j->out.q[qact_index(MATH_I16, j->n, padded, row, k, 0)] = (uint16_t)q;
        *sum = (k % 32 == 0 ? 0 : *sum) + q;
        *sum16 = (k % 16 == 0 ? 0 : *sum16) + q;
    }
    j->out.scale[row] = !finite ? NAN : counts ? max / 32767.0f : 0;
}

/* bf16(x) and bf16(x - bf16(x)), then zeros up to a whole word */
static void round_row(const qact_job *j, uint32_t row, const float *x) {
    size_t padded = qact_padded(j->dim);
    for (uint32_t k = 0; k < padded; k++) {
        uint16_t first = k < j->dim ? f32_to_bf16(x[k]) : 0;
        j->out.q[qact_index(MATH_BF16, j->n, padded, row, k, 0)] = first;
        j->out.q[qact_index(MATH_BF16, j->n, padded, row, k, 1)] =
            k < j->dim ? f32_to_bf16(x[k] - bf16_to_f32(first)) : 0;
    }
}

void quantize_define(const void *job, uint32_t begin, uint32_t end) {
    const qact_job *j = job;
    float *normed = malloc((size_t)j->dim * sizeof *normed);
    INFERD_CHECK(normed != NULL);
    for (uint32_t row = begin * QACT_ROWS; row < end * QACT_ROWS && row < j->n; row++) {
        const float *x = j->x + (size_t)(j->rows != NULL ? j->rows[row] : row) * j->dim;
        if (j->norm != NULL) {
            norm(x, j->norm, j->dim, j->eps, normed);
            x = normed;
            if (j->normed != NULL) memcpy(j->normed + (size_t)row * j->dim, x, j->dim * sizeof *x);
        }
        if (j->math == MATH_I16)
            quantize_row(j, row, x);
        else
            round_row(j, row, x);
    }
    free(normed);
}

/* silu: a / (1 + e^-a);  gelu: a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3))); times b.
 * Clamped SwiGLU: see act_fn. */
static double gate_of(act_fn fn, double a, double b) {
    const double limit = (double)ACT_CLAMP;
    if (fn == ACT_SILU) return a / (1.0 + exp(-a)) * b;
    if (fn == ACT_CLAMPED_SWIGLU) {
        a = a > limit ? limit : a; // NaN stays
        b = b > limit ? limit : b < -limit ? -limit : b;
        return a / (1.0 + exp((double)-ACT_CLAMP_SLOPE * a)) * (b + 1.0);
    }
    double inner = sqrt(2.0 / 3.14159265358979323846) * (a + 0.044715 * a * a * a);
    return a / 2 * (1 + tanh(inner)) * b;
}

/* x . w, where row i of x is as qact.h has it and w is row `o` of the matrix */
static double qdot(const qact *x, cpu_math math, uint32_t n, uint32_t i, const weight *w,
                   uint32_t o) {
    float block[PANEL_BLOCK];
    double sum = 0;
    for (uint32_t begin = 0; begin < w->cols; begin += PANEL_BLOCK) {
        uint32_t end = u32_min(begin + PANEL_BLOCK, w->cols);
        panel_row_to_f32(w, o, begin, end, block);
        for (uint32_t k = begin; k < end; k++) {
            double factor = 0;
            for (uint32_t t = 0; t < qact_terms(math); t++) {
                uint16_t q = x->q[qact_index(math, n, qact_padded(w->cols), i, k, t)];
                factor += math == MATH_I16 ? (double)(int16_t)q : (double)bf16_to_f32(q);
            }
            sum += factor * (double)block[k - begin];
        }
    }
    return math == MATH_I16 ? sum * (double)x->scale[i] : sum;
}

/* out[i, o] = (add[i, o] +) sum over k of x[i, k] * w[o, k] (+ bias[o]) */
void qmatmul_define(const void *job, uint32_t begin, uint32_t end) {
    const qmatmul_job *j = job;
    uint32_t rows = j->w->rows;
    for (uint32_t o = begin * MATMUL_UNIT; o < end * MATMUL_UNIT && o < rows; o++) {
        for (uint32_t i = 0; i < j->n; i++) {
            size_t at = (size_t)i * rows + o;
            double sum = qdot(&j->x, j->math, j->n, i, j->w, o);
            if (j->bias != NULL) sum += (double)j->bias[o];
            j->out[at] = j->add != NULL ? j->add[at] + (float)sum : (float)sum;
        }
    }
}

void qglu_define(const void *job, uint32_t begin, uint32_t end) {
    const qglu_job *j = job;
    uint32_t rows = j->gate->rows;
    for (uint32_t o = begin * MATMUL_UNIT; o < end * MATMUL_UNIT && o < rows; o++) {
        for (uint32_t i = 0; i < j->n; i++) {
            double gate = qdot(&j->x, j->math, j->n, i, j->gate, o);
            double up = qdot(&j->x, j->math, j->n, i, j->up, o);
            if (j->gate_bias != NULL) gate += (double)j->gate_bias[o];
            if (j->up_bias != NULL) up += (double)j->up_bias[o];
            // rounded as between two operations
            j->out[(size_t)i * rows + o] =
                (float)gate_of(j->fn, (double)(float)gate, (double)(float)up);
        }
    }
}

/* ---- rotary embedding, elementwise ---- */

/* (a, b) rotated: (a cos - b sin, a sin + b cos) */
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
            for (uint32_t i = 0; j->growth != NULL && head < j->n_heads && i < j->head_dim; i++)
                x[i] *= j->growth[row];
        }
    }
}

/* out = silu(a) * b */
void silu_mul_define(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++)
        j->out[i] = (float)gate_of(ACT_SILU, (double)j->a[i], (double)j->b[i]);
}

/* out = gelu(a) * b */
void gelu_mul_define(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++)
        j->out[i] = (float)gate_of(ACT_GELU_TANH, (double)j->a[i], (double)j->b[i]);
}

void clamped_mul_define(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++)
        j->out[i] = (float)gate_of(ACT_CLAMPED_SWIGLU, (double)j->a[i], (double)j->b[i]);
}

void add_define(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++)
        j->out[i] = j->a[i] + j->b[i];
}

void combine_define(const void *job, uint32_t begin, uint32_t end) {
    const combine_job *j = job;
    for (size_t row = begin; row < end; row++) {
        const uint32_t *slots = j->slots + row * j->n_used;
        for (uint32_t d = 0; d < j->dim; d++) {
            double sum = 0;
            for (uint32_t i = 0; i < j->n_used; i++)
                sum += (double)j->p[row * j->n_used + i] *
                       (double)j->parts[(size_t)slots[i] * j->dim + d];
            j->out[row * j->dim + d] = (float)sum;
        }
    }
}

/* ---- attention ---- */

static double kv_get(kv_type type, const unsigned char *p, size_t i) {
    if (type == KV_F32) return (double)((const float *)(const void *)p)[i];
    if (type == KV_I8) return (double)((const int8_t *)p)[i];
    if (type == KV_I16) return (double)((const int16_t *)(const void *)p)[i];
    uint16_t bits = ((const uint16_t *)(const void *)p)[i];
    return (double)(type == KV_F16 ? f16_to_f32(bits) : bf16_to_f32(bits));
}

/* The size of a row that becomes the integer `limit`, I8 and I16 only. */
typedef struct kv_range {
    float size, limit;
} kv_range;

static void kv_set(kv_type type, unsigned char *p, size_t i, float value, kv_range range) {
    if (type == KV_F32)
        ((float *)(void *)p)[i] = value;
    else if (type == KV_F16)
        ((uint16_t *)(void *)p)[i] = f32_to_f16(value);
    else if (type == KV_BF16)
        ((uint16_t *)(void *)p)[i] = f32_to_bf16(value);
    else if (type == KV_I8)
        ((int8_t *)p)[i] = (int8_t)lrintf(range.size > 0 ? value * (range.limit / range.size) : 0);
    else
        ((int16_t *)(void *)p)[i] =
            (int16_t)lrintf(range.size > 0 ? value * (range.limit / range.size) : 0);
}

/* See attn.h; the size is NaN when an element is not finite. */
static kv_range range_of(kv_type type, bool keys, const float *x, uint32_t n) {
    float largest = 0;
    double squares = 0;
    for (uint32_t d = 0; d < n; d++) {
        if (!isfinite(x[d])) return (kv_range){NAN, 1};
        largest = fmaxf(largest, fabsf(x[d]));
        squares += (double)x[d] * (double)x[d];
    }
    return type == KV_I8 ? (kv_range){largest, 127}
           : keys        ? (kv_range){(float)sqrt(squares), K16_NORM}
                         : (kv_range){largest, V16_MAX};
}

/* See F16_LARGEST. */
static void saturate(const attn_job *j, float *x) {
    uint64_t n = 0;
    for (uint32_t d = 0; j->kv->type == KV_F16 && d < j->kv->head_dim; d++) {
        if (!isfinite(x[d]) || fabsf(x[d]) <= F16_LARGEST) continue;
        x[d] = copysignf(F16_LARGEST, x[d]);
        n++;
    }
    if (n > 0) __atomic_fetch_add(j->n_saturated, n, __ATOMIC_RELAXED);
}

/* K[d][t] = k[d], V[t][d] = v[d], for the position of each row */
void kv_store_define(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    const kv_layout *l = j->kv;
    for (size_t row = begin; row < end; row++) {
        const batch_seq *s = &j->b->seqs[j->b->row_seq[row]];
        uint32_t pos = j->b->positions[row], t = pos % KV_TILE;
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            unsigned char *keys = kv_at(j, s, pos, head);
            unsigned char *values = keys + kv_k_bytes(l->type, l->head_dim);
            float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
            size_t at = (row * l->n_kv_heads + head) * l->head_dim;
            memcpy(k, j->k + at, l->head_dim * sizeof *k);
            memcpy(v, j->v + at, l->head_dim * sizeof *v);
            saturate(j, k);
            saturate(j, v);
            kv_range of_k = range_of(l->type, true, k, l->head_dim);
            kv_range of_v = range_of(l->type, false, v, l->head_dim);
            for (uint32_t d = 0; d < l->head_dim; d++) {
                kv_set(l->type, keys, kv_k_index(l->type, d, t), k[d], of_k);
                kv_set(l->type, values, kv_v_index(l->type, l->head_dim, d, t), v[d], of_v);
            }
            if (!kv_is_scaled(l->type)) continue;
            kv_k_scales(l->type, l->head_dim, keys)[t] = of_k.size / of_k.limit;
            kv_v_scales(l->type, l->head_dim, values)[t] = of_v.size / of_v.limit;
        }
    }
}

static double score(const attn_job *j, const batch_seq *s, uint32_t kv_head, uint32_t pos,
                    const float *q) {
    const kv_layout *l = j->kv;
    const unsigned char *keys = kv_at(j, s, pos, kv_head);
    double sum = 0;
    for (uint32_t d = 0; d < l->head_dim; d++)
        sum += (double)q[d] * kv_get(l->type, keys, kv_k_index(l->type, d, pos % KV_TILE));
    if (kv_is_scaled(l->type))
        sum *= (double)kv_k_scales(l->type, l->head_dim, keys)[pos % KV_TILE];
    sum *= (double)j->spec->scale;
    double cap = (double)j->spec->softcap;
    return cap != 0 ? cap * tanh(sum / cap) : sum;
}

/* out = sum over p of softmax(scores and the sink)[p] * v[p] */
static void attend_head(const attn_job *j, uint32_t row, uint32_t head) {
    const kv_layout *l = j->kv;
    const batch_seq *s = &j->b->seqs[j->b->row_seq[row]];
    uint32_t kv_head = head / (j->spec->n_heads / j->spec->n_kv_heads), pos = j->b->positions[row];
    size_t at = ((size_t)row * j->spec->n_heads + head) * j->spec->head_dim;
    const float *q = j->q + at;
    double max = j->sinks != NULL ? (double)j->sinks[head] : -INFINITY, sum[HEAD_DIM_MAX] = {0};
    uint32_t begin = attn_begin(j->spec, pos);
    for (uint32_t p = begin; p <= pos; p++) max = fmax(max, score(j, s, kv_head, p, q));
    double total = j->sinks != NULL ? exp((double)j->sinks[head] - max) : 0;
    for (uint32_t p = begin; p <= pos; p++) {
        double weight_of_p = exp(score(j, s, kv_head, p, q) - max);
        const unsigned char *values = kv_at(j, s, p, kv_head) + kv_k_bytes(l->type, l->head_dim);
        total += weight_of_p;
        if (kv_is_scaled(l->type))
            weight_of_p *= (double)kv_v_scales(l->type, l->head_dim, values)[p % KV_TILE];
        for (uint32_t d = 0; d < l->head_dim; d++) {
            size_t i = kv_v_index(l->type, l->head_dim, d, p % KV_TILE);
            sum[d] += weight_of_p * kv_get(l->type, values, i);
        }
    }
    for (uint32_t d = 0; d < l->head_dim; d++) j->out[at + d] = (float)(sum[d] / total);
}

/* Rows with chunks in several units are left to the merge, which here does all of it. */
void attend_define(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    for (uint32_t i = begin; i < end; i++) {
        const attn_unit *unit = &j->plan->units[i];
        for (uint32_t r = 0; unit->whole && r < unit->n_rows; r++)
            for (uint32_t h = 0; h < unit->n_heads; h++)
                attend_head(j, j->plan->rows[unit->rows_at + r], unit->head_begin + h);
    }
}

void attend_merge_define(const void *job, uint32_t begin, uint32_t end) {
    const attn_job *j = job;
    uint32_t n_kv_heads = j->spec->n_kv_heads, group = j->spec->n_heads / n_kv_heads;
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t h = 0; h < group; h++)
            attend_head(j, j->plan->merge_rows[i / n_kv_heads], i % n_kv_heads * group + h);
}
