/* ops.c - the operations of a step: each is checked and recorded (phases.h).
 *
 * Data that depends on the batch only, and is the same in every layer, is made here once per step
 * and kind of layer: the table of rotary angles, and the attention plan.
 *
 * Thread: engine. */
#include "cpu/cpu.h"

static phases_env env_of(cpu_backend *c) {
    return (phases_env){.threads = c->threads,
                        .level = c->level,
                        .exact = c->exact,
                        .b = c->batch,
                        .kv = c->kv,
                        .arena = arena_base(c->pages),
                        .page_bytes = ARENA_PAGE_BYTES,
                        .n_saturated = &c->n_saturated,
                        .experts = c->experts,
                        .part_ns = c->part_ns};
}

void cpu_flush(cpu_backend *c, bool keep) {
    phases_env env = env_of(c);
    phases_run(c->phases, &env, keep, c->wanted);
}

static op *add_op(backend *be, op_kind kind, uint32_t n) {
    cpu_backend *c = cpu_of(be);
    phases_env env = env_of(c);
    op *o = phases_add(c->phases, &env, kind);
    o->n = n;
    return o;
}

void cpu_embed(backend *be, act *out, const weight *table, float scale) {
    const batch *b = cpu_of(be)->batch;
    for (uint32_t row = 0; row < b->n_rows; row++) {
        if (b->tokens[row] >= 0 && (uint32_t)b->tokens[row] < table->rows) continue;
        backend_fail(be, INFERD_EINVAL, "row %u has token %d, the embedding has %u rows", row,
                     b->tokens[row], table->rows);
        return;
    }
    op *o = add_op(be, OP_EMBED, b->n_rows);
    o->out = out;
    o->w = *table;
    o->f = scale;
}

void cpu_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps) {
    op *o = add_op(be, OP_NORM, n);
    o->out = out;
    o->a = x;
    o->v = *w;
    o->f = eps;
}

void cpu_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias, uint32_t n) {
    cpu_backend *c = cpu_of(be);
    if (n == 0) return;
    if (level_math(c->level, w->type, c->exact) != MATH_F32 && !phases_reserve(c->phases, x)) {
        backend_fail(be, INFERD_ENOMEM, "no memory for %u rows of %u as integers", x->rows_max,
                     x->dim);
        return;
    }
    op *o = add_op(be, OP_MATMUL, n);
    o->out = out;
    o->a = x;
    o->w = *w;
    if (bias != NULL) o->v = *bias;
}

void cpu_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                   uint32_t head_dim, float eps) {
    op *o = add_op(be, OP_HEAD_NORM, n);
    o->out = x;
    o->a = x;
    o->v = *w;
    o->n_heads = n_heads;
    o->dim = head_dim;
    o->f = eps;
}

void cpu_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
             uint32_t dim) {
    op *o = add_op(be, OP_GLU, n);
    o->out = out;
    o->a = gate;
    o->b = up;
    o->fn = fn;
    o->dim = dim;
}

void cpu_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim) {
    op *o = add_op(be, OP_ADD, n);
    o->out = x;
    o->a = y;
    o->dim = dim;
}

void cpu_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim) {
    op *o = add_op(be, OP_TAKE, cpu_of(be)->batch->n_logits);
    o->out = out;
    o->a = x;
    o->dim = dim;
}

void cpu_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap) {
    op *o = add_op(be, OP_SOFTCAP, n);
    o->out = x;
    o->f = cap;
    o->dim = dim;
}

void cpu_scale(backend *be, act *out, const act *x, uint32_t n, uint32_t dim, float factor) {
    op *o = add_op(be, OP_SCALE, n);
    o->out = out;
    o->a = x;
    o->f = factor;
    o->dim = dim;
}

void cpu_experts(backend *be, act *out, const act *x, const act *logits, const expert_weights *w,
                 act *hidden, act *parts, uint32_t n) {
    cpu_backend *c = cpu_of(be);
    if (n == 0) return;
    if (!experts_reserve(c->experts, w, x->rows_max, experts_math(c->level, w, c->exact),
                         level_math(c->level, w->down->type, c->exact))) {
        backend_fail(be, INFERD_ENOMEM, "no memory for %u rows of %u experts each", x->rows_max,
                     w->n_used);
        return;
    }
    op *o = add_op(be, OP_EXPERTS, n);
    o->out = out;
    o->a = x;
    o->b = logits;
    o->d = hidden;
    o->e = parts;
    o->experts = w;
}

/* ---- rotary embedding ---- */

/* Replace *p by n floats, all zero so that none faults later; false: no memory, *p is unchanged. */
static bool replace(float **p, size_t n) {
    float *fresh = malloc(size_max(n, 1) * sizeof **p);
    if (fresh == NULL) return false;
    memset(fresh, 0, n * sizeof *fresh);
    free(*p);
    *p = fresh;
    return true;
}

/* This step's table for these frequencies, filled in when the step runs; NULL: no memory. */
static float *angles(backend *be, const rope_spec *r) {
    cpu_backend *c = cpu_of(be);
    size_t freq_bytes = r->n_pairs * sizeof *r->inv_freq;
    for (size_t i = 0; i < ROPE_TABLES; i++) {
        const rope_table *t = &c->ropes[i];
        if (t->step == c->step && t->n_pairs == r->n_pairs && t->scale == r->scale &&
            t->growth == r->growth && t->growth_length == r->growth_length &&
            memcmp(t->inv_freq, r->inv_freq, freq_bytes) == 0)
            return t->data;
    }
    rope_table *t = &c->ropes[c->next_rope++ % ROPE_TABLES];
    uint32_t n_rows = c->batch->n_rows;
    size_t n = (size_t)n_rows * (2 * r->n_pairs + 1); // and growth
    if (t->step == c->step) cpu_flush(c, true);       // recorded operations still read the table
    t->step = 0;
    if (n > t->capacity) { // once: later steps have no more rows than the activations
        size_t capacity = (size_t)u32_max(n_rows, c->rows_max) * (2 * r->n_pairs + 1);
        if (!replace(&t->data, capacity)) return NULL;
        t->capacity = capacity;
    }
    if (r->n_pairs > t->n_pairs_max) {
        if (!replace(&t->inv_freq, r->n_pairs)) return NULL;
        t->n_pairs_max = r->n_pairs;
    }
    op *o = add_op(be, OP_ANGLES, n_rows);
    o->rope = r;
    o->table = t->data;
    memcpy(t->inv_freq, r->inv_freq, freq_bytes);
    t->n_pairs = r->n_pairs;
    t->scale = r->scale;
    t->growth = r->growth;
    t->growth_length = r->growth_length;
    t->step = c->step;
    return t->data;
}

void cpu_rope(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads,
              uint32_t n_kv_heads, uint32_t head_dim) {
    cpu_backend *c = cpu_of(be);
    if (r->n_pairs == 0 || c->batch->n_rows == 0) return;
    float *table = angles(be, r);
    if (table == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory for the rotary table of %u rows",
                     c->batch->n_rows);
        return;
    }
    op *o = add_op(be, OP_ROPE, c->batch->n_rows);
    o->out = q;
    o->a = q;
    o->b = k;
    o->table = table;
    o->n_pairs = r->n_pairs;
    o->n_heads = n_heads;
    o->n_kv_heads = n_kv_heads;
    o->dim = head_dim;
    o->interleaved = r->interleaved;
    o->grows = r->growth != 0;
}

/* ---- attention ---- */

/* The plan of this step for layers like this one; NULL: no memory. */
static const attn_plan *plan_of(cpu_backend *c, const attn_spec *spec) {
    for (size_t i = 0; i < ATTN_PLANS; i++) {
        const step_plan *p = &c->plans[i];
        if (p->step == c->step && memcmp(&p->spec, spec, sizeof *spec) == 0) return p->plan;
    }
    step_plan *p = &c->plans[c->next_plan++ % ATTN_PLANS];
    if (p->step == c->step) cpu_flush(c, true); // recorded operations still read the plan
    p->step = 0;
    if (!attn_plan_make(p->plan, c->batch, c->kv, spec, tpool_n_threads(c->threads))) return NULL;
    p->spec = *spec;
    p->step = c->step;
    return p->plan;
}

void cpu_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                   uint32_t layer_idx, const attn_spec *spec, const vec *sinks) {
    cpu_backend *c = cpu_of(be);
    if (spec->head_dim > HEAD_DIM_MAX) {
        backend_fail(be, INFERD_EUNSUPPORTED, "heads of %u, at most %u are possible",
                     spec->head_dim, (unsigned)HEAD_DIM_MAX);
        return;
    }
    const attn_plan *plan = plan_of(c, spec);
    if (plan == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory for the plan of %u rows", c->batch->n_rows);
        return;
    }
    op *o = add_op(be, OP_ATTENTION, c->batch->n_rows);
    o->out = out;
    o->a = q;
    o->b = k;
    o->c = v;
    if (sinks != NULL) o->v = *sinks;
    o->layer_idx = layer_idx;
    o->attn = *spec;
    o->plan = plan;
}
