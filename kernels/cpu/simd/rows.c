/* rows.c - rotary embedding and elementwise operations.  Compiled per level.
 *
 * All of these read and write each float once or twice; they are a small part of a step, and are
 * kept as loops that the compiler turns into vectors.
 *
 * Thread: any; ranges of one job do not overlap. */
#include "cpu/level.h"
#include "cpu/simd/simd.h"

/* ---- rotary embedding ---- */

static void turn_halves(float *restrict x, const float *restrict cosine, const float *restrict sine,
                        uint32_t n_pairs) {
    for (uint32_t i = 0; i < n_pairs; i++) {
        float a = x[i], b = x[i + n_pairs];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + n_pairs] = a * sine[i] + b * cosine[i];
    }
}

static void turn_pairs(float *restrict x, const float *restrict cosine, const float *restrict sine,
                       uint32_t n_pairs) {
    for (uint32_t i = 0; i < n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = a * sine[i] + b * cosine[i];
    }
}

void LEVEL(rope)(const void *job, uint32_t begin, uint32_t end) {
    const rope_job *j = job;
    uint32_t n_heads = j->n_heads + j->n_kv_heads;
    for (size_t row = begin; row < end; row++) {
        const float *cosine = j->table + row * 2 * j->n_pairs, *sine = cosine + j->n_pairs;
        for (uint32_t head = 0; head < n_heads; head++) {
            float *x = head < j->n_heads
                           ? j->q + (row * j->n_heads + head) * j->head_dim
                           : j->k + (row * j->n_kv_heads + head - j->n_heads) * j->head_dim;
            if (j->interleaved)
                turn_pairs(x, cosine, sine, j->n_pairs);
            else
                turn_halves(x, cosine, sine, j->n_pairs);
            if (j->growth == NULL || head >= j->n_heads) continue;
            for (uint32_t i = 0; i < j->head_dim; i++) x[i] *= j->growth[row];
        }
    }
}

/* ---- elementwise ---- */

#define GATED(name)                                                                                \
    void LEVEL(name)(const void *job, uint32_t begin, uint32_t end) {                              \
        const flat_job *j = job;                                                                   \
        size_t i = (size_t)begin * FLAT_UNIT, limit = size_min((size_t)end * FLAT_UNIT, j->n);     \
        for (; i + VW <= limit; i += VW)                                                           \
            vf_store(j->out + i, vf_##name(vf_load(j->a + i), vf_load(j->b + i)));                 \
        if (i == limit) return;                                                                    \
        float a[VW] = {0}, b[VW] = {0}, out[VW];                                                   \
        memcpy(a, j->a + i, (limit - i) * sizeof *a);                                              \
        memcpy(b, j->b + i, (limit - i) * sizeof *b);                                              \
        vf_store(out, vf_##name(vf_load(a), vf_load(b)));                                          \
        memcpy(j->out + i, out, (limit - i) * sizeof *out);                                        \
    }
GATED(silu_mul)
GATED(gelu_mul)
GATED(clamped_mul)

void LEVEL(add)(const void *job, uint32_t begin, uint32_t end) {
    const flat_job *j = job;
    size_t limit = size_min((size_t)end * FLAT_UNIT, j->n);
    for (size_t i = (size_t)begin * FLAT_UNIT; i < limit; i++) j->out[i] = j->a[i] + j->b[i];
}

void LEVEL(combine)(const void *job, uint32_t begin, uint32_t end) {
    const combine_job *j = job;
    for (size_t row = begin; row < end; row++) {
        float *restrict out = j->out + row * j->dim;
        for (uint32_t i = 0; i < j->n_used; i++) {
            const float *restrict part = j->parts + (size_t)j->slots[row * j->n_used + i] * j->dim;
            const float p = j->p[row * j->n_used + i];
            for (uint32_t d = 0; d < j->dim; d++) out[d] = p * part[d] + (i > 0 ? out[d] : 0.0f);
        }
    }
}
