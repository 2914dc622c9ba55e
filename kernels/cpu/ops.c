/* ops.c - the operations of a step: each makes a job and hands it to the threads.
 *
 * An operation is done when it returns, so there is nothing to wait for.  Work that is shorter than
 * waking the other threads stays on rank 0; that changes no result (level.h).
 *
 * Thread: engine. */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/panel.h"

/* Below this many floats touched, one thread is quicker than several. */
enum { ALONE_FLOATS = 16 * 1024 };

static void split(cpu_backend *c, range_fn *f, const void *job, uint32_t n, size_t n_floats) {
    if (n_floats < ALONE_FLOATS)
        pool_alone(c->threads, f, job, n);
    else
        pool_split(c->threads, f, job, n);
}

/* ---- embedding ---- */

typedef struct embed_job {
    float *out;
    const weight *table;
    const tok_id *tokens;
    float scale;
} embed_job;

static void embed(const void *job, uint32_t begin, uint32_t end) {
    const embed_job *j = job;
    for (uint32_t row = begin; row < end; row++) {
        float *out = j->out + (size_t)row * j->table->cols;
        panel_row_to_f32(j->table, (uint32_t)j->tokens[row], 0, j->table->cols, out);
        if (j->scale == 1.0f) continue;
        for (uint32_t i = 0; i < j->table->cols; i++) out[i] *= j->scale;
    }
}

void cpu_embed(backend *be, act *out, const weight *table, float scale) {
    cpu_backend *c = cpu_of(be);
    const batch *b = c->batch;
    for (uint32_t row = 0; row < b->n_rows; row++) {
        if (b->tokens[row] >= 0 && (uint32_t)b->tokens[row] < table->rows) continue;
        backend_fail(be, INFERD_EINVAL, "row %u has token %d, the embedding has %u rows", row,
                     b->tokens[row], table->rows);
        return;
    }
    embed_job job = {out->data, table, b->tokens, scale};
    split(c, embed, &job, b->n_rows, (size_t)b->n_rows * table->cols);
}

/* ---- rows ---- */

void cpu_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps) {
    cpu_backend *c = cpu_of(be);
    rmsnorm_job job = {out->data, x->data, w->data, w->n, eps};
    split(c, c->level->rmsnorm, &job, n, (size_t)n * w->n);
}

void cpu_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias, uint32_t n) {
    cpu_backend *c = cpu_of(be);
    if (n == 0) return;
    matmul_job job = {out->data, x->data, w, bias != NULL ? bias->data : NULL, n};
    uint32_t n_units = (w->rows + MATMUL_UNIT - 1) / MATMUL_UNIT;
    split(c, c->level->matmul, &job, n_units, (size_t)w->rows * w->cols);
}

static void flat(cpu_backend *c, range_fn *f, flat_job job) {
    split(c, f, &job, (uint32_t)((job.n + FLAT_UNIT - 1) / FLAT_UNIT), job.n);
}

void cpu_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                   uint32_t head_dim, float eps) {
    cpu_backend *c = cpu_of(be);
    rmsnorm_job job = {x->data, x->data, w->data, head_dim, eps};
    split(c, c->level->rmsnorm, &job, n * n_heads, (size_t)n * n_heads * head_dim);
}

void cpu_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
             uint32_t dim) {
    cpu_backend *c = cpu_of(be);
    flat(c, fn == ACT_SILU ? c->level->silu_mul : c->level->gelu_mul,
         (flat_job){out->data, gate->data, up->data, (size_t)n * dim});
}

void cpu_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim) {
    cpu_backend *c = cpu_of(be);
    flat(c, c->level->add, (flat_job){x->data, x->data, y->data, (size_t)n * dim});
}

void cpu_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim) {
    const batch *b = cpu_of(be)->batch;
    for (uint32_t i = 0; i < b->n_logits; i++)
        memcpy(out->data + (size_t)i * dim, x->data + (size_t)b->logit_rows[i] * dim,
               dim * sizeof(float));
}

typedef struct softcap_job {
    float *x;
    size_t n;
    float cap;
} softcap_job;

static void cap_softly(const void *job, uint32_t begin, uint32_t end) {
    const softcap_job *j = job;
    for (size_t i = (size_t)begin * FLAT_UNIT; i < (size_t)end * FLAT_UNIT && i < j->n; i++)
        j->x[i] = j->cap * tanhf(j->x[i] / j->cap);
}

void cpu_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap) {
    softcap_job job = {x->data, (size_t)n * dim, cap};
    split(cpu_of(be), cap_softly, &job, (uint32_t)((job.n + FLAT_UNIT - 1) / FLAT_UNIT), job.n * 8);
}

/* ---- rotary embedding ---- */

typedef struct angles_job {
    float *table;
    const float *inv_freq;
    const uint32_t *positions;
    uint32_t n_pairs;
    float scale;
} angles_job;

static void fill_angles(const void *job, uint32_t begin, uint32_t end) {
    const angles_job *j = job;
    for (uint32_t row = begin; row < end; row++) {
        float *cosine = j->table + (size_t)row * 2 * j->n_pairs, *sine = cosine + j->n_pairs;
        for (uint32_t i = 0; i < j->n_pairs; i++) {
            double angle = (double)j->positions[row] * (double)j->inv_freq[i];
            cosine[i] = (float)(cos(angle) * (double)j->scale);
            sine[i] = (float)(sin(angle) * (double)j->scale);
        }
    }
}

/* *p holds n floats, all zero so that none faults later; false: no memory, it is as it was. */
static bool replace(float **p, size_t n) {
    float *fresh = malloc(size_max(n, 1) * sizeof **p);
    if (fresh == NULL) return false;
    memset(fresh, 0, n * sizeof *fresh);
    free(*p);
    *p = fresh;
    return true;
}

/* The table of this step for these frequencies; NULL: no memory. */
static const float *angles(cpu_backend *c, const rope_spec *r) {
    size_t freq_bytes = r->n_pairs * sizeof *r->inv_freq;
    for (size_t i = 0; i < ROPE_TABLES; i++) {
        const rope_table *t = &c->ropes[i];
        if (t->step == c->step && t->n_pairs == r->n_pairs && t->scale == r->scale &&
            memcmp(t->inv_freq, r->inv_freq, freq_bytes) == 0)
            return t->data;
    }
    rope_table *t = &c->ropes[c->next_rope++ % ROPE_TABLES];
    uint32_t n_rows = c->batch->n_rows;
    size_t n = (size_t)n_rows * 2 * r->n_pairs;
    t->step = 0;
    if (n > t->capacity) { // once: later steps have no more rows than the activations
        size_t capacity = (size_t)u32_max(n_rows, c->rows_max) * 2 * r->n_pairs;
        if (!replace(&t->data, capacity)) return NULL;
        t->capacity = capacity;
    }
    if (r->n_pairs > t->n_pairs_max) {
        if (!replace(&t->inv_freq, r->n_pairs)) return NULL;
        t->n_pairs_max = r->n_pairs;
    }
    angles_job job = {t->data, r->inv_freq, c->batch->positions, r->n_pairs, r->scale};
    split(c, fill_angles, &job, n_rows, n * 32); // a sine costs as much as 32 floats moved
    memcpy(t->inv_freq, r->inv_freq, freq_bytes);
    t->n_pairs = r->n_pairs;
    t->scale = r->scale;
    t->step = c->step;
    return t->data;
}

void cpu_rope(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads,
              uint32_t n_kv_heads, uint32_t head_dim) {
    cpu_backend *c = cpu_of(be);
    if (r->n_pairs == 0 || c->batch->n_rows == 0) return;
    const float *table = angles(c, r);
    if (table == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory for the rotary table of %u rows",
                     c->batch->n_rows);
        return;
    }
    rope_job job = {q->data, k->data,    table,    r->n_pairs,
                    n_heads, n_kv_heads, head_dim, r->interleaved};
    uint32_t n = c->batch->n_rows;
    split(c, c->level->rope, &job, n, (size_t)n * (n_heads + n_kv_heads) * head_dim);
}

/* ---- attention ---- */

void cpu_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                   uint32_t layer_idx, const attn_spec *spec) {
    cpu_backend *c = cpu_of(be);
    const kv_layout *l = c->kv;
    if (spec->head_dim > HEAD_DIM_MAX) {
        backend_fail(be, INFERD_EUNSUPPORTED, "heads of %u, at most %u are possible",
                     spec->head_dim, (unsigned)HEAD_DIM_MAX);
        return;
    }
    attn_job job = {.out = out->data,
                    .q = q->data,
                    .k = k->data,
                    .v = v->data,
                    .b = c->batch,
                    .kv = l,
                    .spec = spec,
                    .arena = arena_base(c->pages),
                    .page_bytes = ARENA_PAGE_BYTES,
                    .layer_idx = layer_idx};
    uint32_t n = c->batch->n_rows;
    split(c, c->level->kv_store, &job, n, (size_t)n * l->n_kv_heads * l->head_dim * 4);
    pool_share(c->threads, c->level->attend, &job, n * spec->n_kv_heads);
}
