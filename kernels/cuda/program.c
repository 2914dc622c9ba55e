/* program.c - see program.h. */
#include "cuda/program.h"

#include <string.h>

#include "cuda/cuda.h"
#include "cuda/formats.h"

/* ---- the list ---- */

void program_clear(program *p) {
    p->n = 0;
    p->after_take = false;
}

void program_deinit(program *p) {
    free(p->ops);
    *p = (program){0};
}

step_op *program_add(program *p, op_kind kind) {
    if (p->n == p->capacity) {
        uint32_t capacity = p->capacity == 0 ? 512 : p->capacity * 2;
        step_op *ops = realloc(p->ops, capacity * sizeof *ops);
        if (ops == NULL) return NULL;
        p->ops = ops;
        p->capacity = capacity;
    }
    step_op *o = &p->ops[p->n++];
    memset(o, 0, sizeof *o); // padding too: lists are compared as bytes
    o->kind = kind;
    return o;
}

bool program_equal(const step_op *a, uint32_t n_a, const step_op *b, uint32_t n_b) {
    return n_a == n_b && memcmp(a, b, n_a * sizeof *a) == 0;
}

uint32_t program_n_experts(const program *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->ops[i].kind == OP_EXPERTS) n = u32_max(n, p->ops[i].experts.n_experts);
    return n;
}

/* ---- which operation reads which activation ---- */

static bool reads(const step_op *o, const act *a) {
    if (o->a == a || o->b == a || o->c == a) return true;
    return (o->kind == OP_ADD || o->kind == OP_SOFTCAP) && o->out == a;
}

/* Nothing reads `a` from operation `from` on before it is written whole. */
static bool dead(const program *p, uint32_t from, const act *a, bool keep) {
    for (uint32_t i = from; i < p->n; i++) {
        if (reads(&p->ops[i], a)) return false;
        if (p->ops[i].out == a) return true;
    }
    return !keep;
}

/* ---- launching ---- */

typedef struct emitter {
    cuda_backend *c;
    const program *p;
    uint32_t rows, logits;
    bool keep;
    bool had_experts; // a mixture was launched
} emitter;

static uint32_t rows_of(const emitter *e, const step_op *o) {
    return o->extent == ROWS_BATCH ? e->rows : o->extent == ROWS_LOGITS ? e->logits : o->n;
}

static cu_matrix matrix_of(const weight *w) {
    return format_matrix(w->type, w->rows, w->cols, w->data);
}

/* Wait for weights that are still in flight: each operation waits for its own. */
static void wait_for(emitter *e, const void *weights) {
    inferd_err err = {0};
    if (weights == NULL || e->c->capturing) return;
    if (memory_wait(e->c->memory, e->c->stream, weights, &err) != INFERD_OK)
        backend_fail(&e->c->be, err.status, "%s", err.text);
}

static const step_op *at(const emitter *e, uint32_t i) {
    return i < e->p->n ? &e->p->ops[i] : NULL;
}

static bool is(const step_op *o, op_kind kind) {
    return o != NULL && o->kind == kind;
}

static void emit_norm(emitter *e, const step_op *o, const act *gather_from, const act *add) {
    const act *x = gather_from != NULL ? gather_from : o->a;
    wait_for(e, o->v.data);
    launch_norm(&e->c->launch,
                &(norm_args){.out = o->out->data,
                             .out_type = o->out->type,
                             .x = x->data,
                             .x_type = x->type,
                             .add = add != NULL ? add->data : NULL,
                             .add_type = add != NULL ? add->type : CU_F32,
                             .w = o->v.data,
                             .gather = gather_from != NULL ? e->c->view.logit_rows : NULL,
                             .eps = o->f,
                             .rows = rows_of(e, o),
                             .dim = o->v.n,
                             .x_stride = x->stride,
                             .out_stride = o->out->stride,
                             .add_stride = add != NULL ? add->stride : 0});
}

static matmul_args matmul_begin(const emitter *e, const step_op *first) {
    const act *x = first->a;
    return (matmul_args){.x = x->data,
                         .x_type = x->type,
                         .x_stride = x->stride,
                         .rows = rows_of(e, first),
                         .inner = e->c->inner};
}

static void matmul_output(matmul_args *m, const step_op *o) {
    uint32_t i = m->n_out++;
    m->out[i].w = matrix_of(&o->w);
    m->out[i].bias = o->v.data;
    m->out[i].out = o->out->data;
    m->out[i].out_type = o->out->type;
    m->out[i].out_stride = o->out->stride;
}

static void emit_matmul(emitter *e, const matmul_args *m) {
    for (uint32_t i = 0; i < m->n_out; i++) {
        const cu_matrix *w = &m->out[i].w;
        wait_for(e, w->data != NULL ? w->data : w->low);
        wait_for(e, m->out[i].bias);
    }
    wait_for(e, m->norm);
    launch_matmul(&e->c->launch, e->c->mm, m);
}

/* Let the kernel itself norm x, by `norm`, and gather its rows, by `take` if it is not NULL. */
static void fuse_norm(matmul_args *m, const emitter *e, const step_op *norm, const step_op *take) {
    const act *x = take != NULL ? take->a : norm->a;
    m->x = x->data;
    m->x_type = x->type;
    m->x_stride = x->stride;
    m->norm = norm->v.data;
    m->norm_eps = norm->f;
    m->gather = take != NULL ? e->c->view.logit_rows : NULL;
}

/* How many matmuls from i on read the same x; at most MATMUL_FUSED_MAX. */
static uint32_t count_matmuls(const emitter *e, uint32_t i) {
    uint32_t n = 0;
    while (n < MATMUL_FUSED_MAX && is(at(e, i + n), OP_MATMUL) && at(e, i + n)->a == at(e, i)->a &&
           at(e, i + n)->extent == at(e, i)->extent && at(e, i + n)->n == at(e, i)->n)
        n++;
    return n;
}

/* [norm,] gate, up, glu: one launch.  Operations used, 0: not possible. */
static uint32_t try_glu(emitter *e, uint32_t i, const step_op *norm, const step_op *take) {
    const step_op *gate = at(e, i), *up = at(e, i + 1), *glu = at(e, i + 2);
    if (!is(gate, OP_MATMUL) || !is(up, OP_MATMUL) || !is(glu, OP_GLU)) return 0;
    if (gate->a != up->a || glu->a != gate->out || glu->b != up->out || gate->out == up->out)
        return 0;
    if (glu->out != gate->out && !dead(e->p, i + 3, gate->out, e->keep)) return 0;
    if (glu->out != up->out && !dead(e->p, i + 3, up->out, e->keep)) return 0;
    matmul_args m = matmul_begin(e, gate);
    matmul_output(&m, gate);
    matmul_output(&m, up);
    m.out[0].out = glu->out->data;
    m.out[0].out_type = glu->out->type;
    m.out[0].out_stride = glu->out->stride;
    m.glu = true;
    m.act = (glu_kind)glu->fn;
    if (norm != NULL) fuse_norm(&m, e, norm, take);
    if (!matmul_can_fuse(e->c->mm, &m)) return 0;
    emit_matmul(e, &m);
    return 3;
}

/* matmul, add to the residual stream: one launch. */
static uint32_t try_matmul_add(emitter *e, uint32_t i) {
    const step_op *mm = at(e, i), *add = at(e, i + 1);
    if (!is(add, OP_ADD) || add->a != mm->out || add->out->type != CU_F32 ||
        add->out->dim != mm->out->dim || !dead(e->p, i + 2, mm->out, e->keep))
        return 0;
    matmul_args m = matmul_begin(e, mm);
    matmul_output(&m, mm);
    m.out[0].out = add->out->data;
    m.out[0].out_type = add->out->type;
    m.out[0].out_stride = add->out->stride;
    m.add = true;
    emit_matmul(e, &m);
    return 2;
}

/* As many matmuls of the same x as one launch takes, with the norm before if it can be fused. */
static uint32_t emit_matmuls(emitter *e, uint32_t i, const step_op *norm, const step_op *take) {
    uint32_t n = count_matmuls(e, i);
    for (uint32_t k = n; k > (norm != NULL ? n - 1 : 1); k--) { // with a norm: all or none
        matmul_args m = matmul_begin(e, at(e, i));
        for (uint32_t j = 0; j < k; j++) matmul_output(&m, at(e, i + j));
        if (norm != NULL) fuse_norm(&m, e, norm, take);
        if (!matmul_can_fuse(e->c->mm, &m)) continue;
        emit_matmul(e, &m);
        return k;
    }
    if (norm != NULL) return 0;
    uint32_t used = try_matmul_add(e, i);
    if (used > 0) return used;
    matmul_args m = matmul_begin(e, at(e, i));
    matmul_output(&m, at(e, i));
    emit_matmul(e, &m);
    return 1;
}

/* A norm, and the operations that read it.  `take`: the gather just before it, or NULL. */
static uint32_t emit_norm_and_on(emitter *e, uint32_t i, const step_op *take) {
    const step_op *norm = at(e, i), *next = at(e, i + 1);
    const act *x = take != NULL ? take->a : norm->a;
    if (is(next, OP_MATMUL) && next->a == norm->out && norm->out != x && x->type == CU_F32) {
        uint32_t n = count_matmuls(e, i + 1);
        if (dead(e->p, i + 1 + n, norm->out, e->keep)) {
            uint32_t used = try_glu(e, i + 1, norm, take);
            if (used == 0) used = emit_matmuls(e, i + 1, norm, take);
            if (used > 0) return 1 + used;
        }
    }
    emit_norm(e, norm, take != NULL ? take->a : NULL, NULL);
    return 1;
}

static uint32_t emit_take(emitter *e, uint32_t i) {
    const step_op *take = at(e, i), *norm = at(e, i + 1);
    if (is(norm, OP_NORM) && norm->a == take->out &&
        (norm->out == take->out || dead(e->p, i + 2, take->out, e->keep)))
        return 1 + emit_norm_and_on(e, i + 1, take);
    launch_gather(&e->c->launch, &(gather_args){.out = take->out->data,
                                                .x = take->a->data,
                                                .gather = e->c->view.logit_rows,
                                                .type = take->out->type,
                                                .rows = rows_of(e, take),
                                                .dim = take->out->dim,
                                                .x_stride = take->a->stride,
                                                .out_stride = take->out->stride});
    return 1;
}

static uint32_t emit_add(emitter *e, uint32_t i) {
    const step_op *add = at(e, i), *norm = at(e, i + 1);
    if (is(norm, OP_NORM) && norm->a == add->out && norm->out != add->out &&
        norm->extent == add->extent && norm->n == add->n) {
        emit_norm(e, norm, NULL, add->a);
        return 2;
    }
    launch_add(&e->c->launch, &(add_args){.x = add->out->data,
                                          .y = add->a->data,
                                          .x_type = add->out->type,
                                          .y_type = add->a->type,
                                          .rows = rows_of(e, add),
                                          .dim = add->out->dim,
                                          .x_stride = add->out->stride,
                                          .y_stride = add->a->stride});
    return 1;
}

/* ---- attention ---- */

static rope_args rope_begin(const emitter *e, const step_op *o, uint32_t n_heads,
                            uint32_t n_kv_heads, uint32_t head_dim) {
    return (rope_args){.inner = e->c->inner,
                       .view = &e->c->view,
                       .kv = &e->c->kv,
                       .n_heads = n_heads,
                       .n_kv_heads = n_kv_heads,
                       .head_dim = head_dim,
                       .rows = rows_of(e, o)};
}

static void rope_turn(emitter *e, rope_args *r, const step_op *o) {
    if (!rope_has_table(&o->rope)) return;
    r->table = cuda_rope(e->c, &o->rope);
    r->n_pairs = o->rope.n_pairs;
    r->grows = o->rope.growth != 0;
    r->interleaved = o->rope.interleaved;
}

static void emit_attention(emitter *e, const step_op *o, rope_args *r) {
    r->q = o->a->data;
    r->k = o->b->data;
    r->v = o->c->data;
    r->q_stride = o->a->stride;
    r->k_stride = o->b->stride;
    r->v_stride = o->c->stride;
    r->layer_idx = o->layer_idx;
    launch_rope(&e->c->launch, r);
    wait_for(e, o->v.data);
    launch_attention(&e->c->launch, &e->c->attn_workspace,
                     &(attention_args){.out = o->out->data,
                                       .q = o->a->data,
                                       .inner = e->c->inner,
                                       .out_stride = o->out->stride,
                                       .q_stride = o->a->stride,
                                       .view = &e->c->view,
                                       .kv = &e->c->kv,
                                       .layer_idx = o->layer_idx,
                                       .n_heads = o->attn.n_heads,
                                       .n_kv_heads = o->attn.n_kv_heads,
                                       .head_dim = o->attn.head_dim,
                                       .scale = o->attn.scale,
                                       .softcap = o->attn.softcap,
                                       .sinks = o->v.data,
                                       .window = o->attn.window,
                                       .n_decode = e->c->n_decode,
                                       .n_tiles = e->c->n_tiles,
                                       .context_max = e->c->context_max});
}

/* [head norm of q, of k,] [rotate,] store and attend.  Operations used. */
static uint32_t emit_heads(emitter *e, uint32_t i) {
    const step_op *q_norm = NULL, *k_norm = NULL, *rope = NULL, *attention = NULL;
    uint32_t n = i;
    if (is(at(e, n), OP_HEAD_NORM)) q_norm = at(e, n++);
    if (is(at(e, n), OP_HEAD_NORM)) k_norm = at(e, n++);
    if (is(at(e, n), OP_ROPE)) rope = at(e, n++);
    if (is(at(e, n), OP_ATTENTION)) attention = at(e, n);
    bool norms_match =
        q_norm == NULL || (k_norm != NULL && rope != NULL && q_norm->out == rope->a &&
                           k_norm->out == rope->b && q_norm->f == k_norm->f);
    if (attention != NULL && norms_match &&
        (rope == NULL || (rope->a == attention->a && rope->b == attention->b))) {
        const attn_spec *s = &attention->attn;
        rope_args r = rope_begin(e, attention, s->n_heads, s->n_kv_heads, s->head_dim);
        if (q_norm != NULL) {
            wait_for(e, q_norm->v.data);
            wait_for(e, k_norm->v.data);
            r.q_norm = q_norm->v.data;
            r.k_norm = k_norm->v.data;
            r.norm_eps = q_norm->f;
        }
        if (rope != NULL) rope_turn(e, &r, rope);
        r.write_k =
            (q_norm != NULL || r.table != NULL) && !dead(e->p, n + 1, attention->b, e->keep);
        emit_attention(e, attention, &r);
        return n + 1 - i;
    }
    const step_op *o = at(e, i); // alone: one at a time
    if (o->kind == OP_HEAD_NORM) {
        rope_args r = rope_begin(e, o, o->n_heads, 0, o->head_dim);
        wait_for(e, o->v.data);
        r.q = o->out->data;
        r.q_stride = o->out->stride;
        r.q_norm = o->v.data;
        r.norm_eps = o->f;
        launch_rope(&e->c->launch, &r);
    } else if (o->kind == OP_ROPE) {
        rope_args r = rope_begin(e, o, o->n_heads, o->n_kv_heads, o->head_dim);
        r.q = (void *)o->a->data;
        r.k = (void *)o->b->data;
        r.q_stride = o->a->stride;
        r.k_stride = o->b->stride;
        r.write_k = true;
        rope_turn(e, &r, o);
        if (r.table != NULL) launch_rope(&e->c->launch, &r);
    } else {
        const attn_spec *s = &o->attn;
        rope_args r = rope_begin(e, o, s->n_heads, s->n_kv_heads, s->head_dim);
        emit_attention(e, o, &r);
    }
    return 1;
}

/* ---- experts ---- */

/* All matrices of a role lie in one layer's bytes, which arrive as one. */
static experts_matrices matrices_of(emitter *e, const weight *w, uint64_t step, const float *bias) {
    wait_for(e, w->data);
    wait_for(e, bias);
    return (experts_matrices){matrix_of(w), step, bias};
}

static void emit_experts(emitter *e, const step_op *o) {
    const op_experts *x = &o->experts;
    const step_header *h = e->c->view.header;
    experts_args a = {.x = o->a->data,
                      .inner = e->c->inner,
                      .logits = o->b->data,
                      .x_stride = o->a->stride,
                      .logits_stride = o->b->stride,
                      .gate = matrices_of(e, &x->gate, x->gate_step, x->gate_bias),
                      .up = matrices_of(e, &x->up, x->up_step, x->up_bias),
                      .down = matrices_of(e, &x->down, x->down_step, x->down_bias),
                      .act = (glu_kind)o->fn,
                      .n_experts = x->n_experts,
                      .n_used = x->n_used,
                      .hidden = x->hidden->data,
                      .parts = x->parts->data,
                      .parts_type = x->parts->type,
                      .hidden_stride = x->hidden->stride,
                      .parts_stride = x->parts->stride,
                      .out = o->out->data,
                      .out_type = o->out->type,
                      .out_stride = o->out->stride,
                      .rows = rows_of(e, o),
                      .n_counts = e->had_experts ? 0 : program_n_experts(e->p)};
    if (o->extent == ROWS_BATCH) a.n_valid = &h->n_rows;
    if (o->extent == ROWS_LOGITS) a.n_valid = &h->n_logits;
    e->had_experts = true;
    launch_experts(&e->c->launch, &e->c->experts_workspace, &a);
}

/* ---- the rest ---- */

static void emit_embed(emitter *e, const step_op *o) {
    wait_for(e, o->w.data);
    launch_embed(&e->c->launch, &(embed_args){.out = o->out->data,
                                              .out_type = o->out->type,
                                              .table = matrix_of(&o->w),
                                              .view = &e->c->view,
                                              .scale = o->f,
                                              .rows = rows_of(e, o),
                                              .out_stride = o->out->stride});
}

static void emit_glu(emitter *e, const step_op *o) {
    launch_glu(&e->c->launch, &(glu_args){.out = o->out->data,
                                          .gate = o->a->data,
                                          .up = o->b->data,
                                          .inner = e->c->inner,
                                          .kind = (glu_kind)o->fn,
                                          .rows = rows_of(e, o),
                                          .dim = o->out->dim,
                                          .stride = o->out->stride});
}

static void emit_draw(emitter *e, const step_op *o) {
    cuda_backend *c = e->c;
    launch_draw(&c->launch, &(draw_args){.plan = c->draw_at,
                                         .logits = o->a->data,
                                         .changed = c->changed,
                                         .rows = e->logits,
                                         .n_vocab = o->n_vocab,
                                         .stride = o->a->stride,
                                         .drawn_before = c->drawn_before,
                                         .drawn = c->drawn,
                                         .results = c->results_dev,
                                         .scratch = c->draw_scratch_dev,
                                         .rows_max = c->room.draws});
}

static uint32_t emit(emitter *e, uint32_t i) {
    const step_op *o = at(e, i);
    uint32_t used;
    switch (o->kind) {
    case OP_NORM:
        return emit_norm_and_on(e, i, NULL);
    case OP_MATMUL:
        used = try_glu(e, i, NULL, NULL);
        return used > 0 ? used : emit_matmuls(e, i, NULL, NULL);
    case OP_HEAD_NORM:
    case OP_ROPE:
    case OP_ATTENTION:
        return emit_heads(e, i);
    case OP_TAKE:
        return emit_take(e, i);
    case OP_ADD:
        return emit_add(e, i);
    case OP_EMBED:
        emit_embed(e, o);
        return 1;
    case OP_GLU:
        emit_glu(e, o);
        return 1;
    case OP_SOFTCAP:
        launch_softcap(&e->c->launch, &(softcap_args){.x = o->out->data,
                                                      .cap = o->f,
                                                      .rows = rows_of(e, o),
                                                      .dim = o->out->dim,
                                                      .stride = o->out->stride});
        return 1;
    case OP_SCALE:
        launch_scale(&e->c->launch, &(scale_args){.out = o->out->data,
                                                  .x = o->a->data,
                                                  .out_type = o->out->type,
                                                  .x_type = o->a->type,
                                                  .factor = o->f,
                                                  .rows = rows_of(e, o),
                                                  .dim = o->out->dim,
                                                  .x_stride = o->a->stride,
                                                  .out_stride = o->out->stride});
        return 1;
    case OP_EXPERTS:
        emit_experts(e, o);
        return 1;
    case OP_DRAW:
        emit_draw(e, o);
        return 1;
    }
    return 1;
}

void program_launch(cuda_backend *c, const program *p, uint32_t rows, uint32_t logits, bool keep) {
    emitter e = {c, p, rows, logits, keep, false};
    for (uint32_t i = 0; i < p->n && c->be.failure.status == INFERD_OK;) i += emit(&e, i);
}
