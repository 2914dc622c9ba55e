/* phases.c - see phases.h. */
#include "cpu/phases.h"

#include <math.h>
#include <time.h>

enum {
    OPS_MAX = 1024,
    PHASES_MAX = 14 * OPS_MAX, // an operation makes at most seven, and seven more when timed
    JOB_BYTES_PER_OP = 768,
    GROUP_MAX = TPOOL_READS_MAX,
    FETCHING_ROWS_MAX = 8
};

struct phases {
    op *ops; // [OPS_MAX] owned
    uint32_t n_ops;
    tpool_phase *phases; // [PHASES_MAX] owned
    uint32_t n_phases;
    unsigned char *jobs; // [OPS_MAX * JOB_BYTES_PER_OP] owned
    size_t jobs_used;
    unsigned char *qact; // of the input of the matmul being run; owned
    size_t qact_room;
    uint64_t stamp_ns; // when the last part of a step that is profiled ended
};

phases *phases_open(void) {
    phases *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->ops = calloc(OPS_MAX, sizeof *p->ops);
    p->phases = calloc(PHASES_MAX, sizeof *p->phases);
    p->jobs = aligned_alloc(64, (size_t)OPS_MAX * JOB_BYTES_PER_OP);
    if (p->ops == NULL || p->phases == NULL || p->jobs == NULL) {
        phases_close(p);
        return NULL;
    }
    return p;
}

void phases_close(phases *p) {
    if (p == NULL) return;
    free(p->ops);
    free(p->phases);
    free(p->jobs);
    free(p->qact);
    free(p);
}

op *phases_add(phases *p, const phases_env *env, op_kind kind) {
    if (p->n_ops == OPS_MAX) phases_run(p, env, true, NULL);
    op *o = &p->ops[p->n_ops++];
    *o = (op){.kind = kind};
    return o;
}

bool phases_reserve(phases *p, const act *x) {
    size_t n_bytes = qact_align(qact_bytes(x->rows_max, x->dim));
    if (n_bytes <= p->qact_room) return true;
    unsigned char *fresh = aligned_alloc(64, n_bytes);
    if (fresh == NULL) return false;
    memset(fresh, 0, n_bytes); // the first touch is here, not in a step
    free(p->qact);
    p->qact = fresh;
    p->qact_room = n_bytes;
    return true;
}

void phases_clear(phases *p) {
    p->n_ops = 0;
}

/* ---- which operation reads which activation ---- */

static bool reads(const op *o, const act *a) {
    if (o->a == a || o->b == a || o->c == a) return true;
    return o->out == a && (o->kind == OP_ADD || o->kind == OP_SOFTCAP);
}

/* ---- making phases ---- */

typedef struct maker {
    phases *p;
    const phases_env *env;
    bool keep;
    const act *wanted;
} maker;

static const op *at(const maker *m, uint32_t i, op_kind kind) {
    return i < m->p->n_ops && m->p->ops[i].kind == kind ? &m->p->ops[i] : NULL;
}

/* Nothing reads `a` from operation i on before it is written whole. */
static bool dead(const maker *m, uint32_t i, const act *a) {
    for (; i < m->p->n_ops; i++) {
        if (reads(&m->p->ops[i], a)) return false;
        if (m->p->ops[i].out == a) return true;
    }
    return !m->keep && a != m->wanted;
}

static void *take_job(maker *m, size_t n_bytes) {
    n_bytes = (n_bytes + 15) / 16 * 16;
    INFERD_CHECK(m->p->jobs_used + n_bytes <= (size_t)OPS_MAX * JOB_BYTES_PER_OP);
    void *job = m->p->jobs + m->p->jobs_used;
    m->p->jobs_used += n_bytes;
    return job;
}

static void *copy_job(maker *m, const void *job, size_t n_bytes) {
    return memcpy(take_job(m, n_bytes), job, n_bytes);
}

typedef struct stamp_job {
    uint64_t *ns; // the part that ends here
    uint64_t *last_ns;
} stamp_job;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void stamp(const void *job, uint32_t begin, uint32_t end) {
    const stamp_job *j = job;
    uint64_t now = now_ns();
    (void)begin, (void)end;
    *j->ns += now - *j->last_ns;
    *j->last_ns = now;
}

static void put_phase(maker *m, tpool_phase phase) {
    INFERD_CHECK(m->p->n_phases < PHASES_MAX);
    m->p->phases[m->p->n_phases++] = phase;
}

static void phase(maker *m, step_part part, range_fn *f, const void *job, uint32_t n,
                  phase_how how) {
    if (n == 0) return;
    put_phase(m, (tpool_phase){f, job, n, n == 1 && how == PHASE_SPLIT ? PHASE_ALONE : how, NULL});
    if (m->env->part_ns == NULL) return;
    stamp_job j = {&m->env->part_ns[part], &m->p->stamp_ns};
    put_phase(m, (tpool_phase){stamp, copy_job(m, &j, sizeof j), 1, PHASE_ALONE, NULL});
}

static uint32_t units_of(const weight *w) {
    return (w->rows + MATMUL_UNIT - 1) / MATMUL_UNIT;
}

/* A phase of units of matrices, for n_rows rows.  Few rows wait for the memory, so they prefetch;
 * with many rows the present data in L2 is worth more than the beginning of a matrix. */
static void matrix_phase(maker *m, step_part part, range_fn *f, const void *job, uint32_t n_rows,
                         const weight *const *w, uint32_t n_weights) {
    tpool_reads reads = {.n_parts = n_weights};
    uint32_t n = 0, at = m->p->n_phases;
    for (uint32_t i = 0; i < n_weights; i++) {
        reads.parts[i].data = w[i]->data;
        reads.parts[i].unit_bytes = panel_bytes(w[i]->type, w[i]->cols) * MATMUL_UNIT / PANEL_ROWS;
        reads.parts[i].n_units = units_of(w[i]);
        n += units_of(w[i]);
    }
    phase(m, part, f, job, n, PHASE_SPLIT);
    if (n > 1 && n_rows <= FETCHING_ROWS_MAX)
        m->p->phases[at].reads = copy_job(m, &reads, sizeof reads);
}

/* ---- several jobs in one phase ---- */

/* One after the other: the ranges of all jobs make one. */
typedef struct group_job {
    struct {
        range_fn *f;
        const void *job;
        uint32_t n;
    } parts[GROUP_MAX];
    uint32_t n_parts;
} group_job;

static void run_group(const void *job, uint32_t begin, uint32_t end) {
    const group_job *j = job;
    uint32_t first = 0;
    for (uint32_t i = 0; i < j->n_parts; i++) {
        uint32_t limit = first + j->parts[i].n;
        uint32_t b = u32_max(begin, first), e = u32_min(end, limit);
        if (b < e) j->parts[i].f(j->parts[i].job, b - first, e - first);
        first = limit;
    }
}

/* Stacked: each job does its share of the same rows, `each` units to a row. */
typedef struct stack_job {
    struct {
        range_fn *f;
        const void *job;
        uint32_t each;
    } parts[GROUP_MAX];
    uint32_t n_parts;
} stack_job;

static void run_stack(const void *job, uint32_t begin, uint32_t end) {
    const stack_job *j = job;
    for (uint32_t i = 0; i < j->n_parts; i++)
        j->parts[i].f(j->parts[i].job, begin * j->parts[i].each, end * j->parts[i].each);
}

static void stack_put(stack_job *s, range_fn *f, const void *job, uint32_t each) {
    s->parts[s->n_parts].f = f;
    s->parts[s->n_parts].job = job;
    s->parts[s->n_parts++].each = each;
}

/* ---- operations with a loop of their own ---- */

typedef struct embed_job {
    float *out;
    weight table;
    const tok_id *tokens;
    float scale;
} embed_job;

static void embed(const void *job, uint32_t begin, uint32_t end) {
    const embed_job *j = job;
    for (uint32_t row = begin; row < end; row++) {
        float *out = j->out + (size_t)row * j->table.cols;
        panel_row_to_f32(&j->table, (uint32_t)j->tokens[row], 0, j->table.cols, out);
        if (j->scale == 1.0f) continue;
        for (uint32_t i = 0; i < j->table.cols; i++) out[i] *= j->scale;
    }
}

typedef struct angles_job {
    float *table;
    const rope_spec *rope;
    const uint32_t *positions;
    uint32_t n_rows;
} angles_job;

static void fill_angles(const void *job, uint32_t begin, uint32_t end) {
    const angles_job *j = job;
    const rope_spec *r = j->rope;
    float *growth = j->table + (size_t)j->n_rows * 2 * r->n_pairs;
    for (uint32_t row = begin; row < end; row++) {
        float *cosine = j->table + (size_t)row * 2 * r->n_pairs, *sine = cosine + r->n_pairs;
        uint32_t position = j->positions[row];
        for (uint32_t i = 0; i < r->n_pairs; i++) {
            double angle = (double)position * (double)r->inv_freq[i];
            cosine[i] = (float)(cos(angle) * (double)r->scale);
            sine[i] = (float)(sin(angle) * (double)r->scale);
        }
        if (r->growth != 0)
            growth[row] = (float)(1 + (double)r->growth * log1p(position / r->growth_length));
    }
}

typedef struct take_rows_job {
    float *out;
    const float *x;
    const uint32_t *rows;
    uint32_t dim;
} take_rows_job;

static void take_rows(const void *job, uint32_t begin, uint32_t end) {
    const take_rows_job *j = job;
    for (size_t i = begin; i < end; i++)
        memcpy(j->out + i * j->dim, j->x + (size_t)j->rows[i] * j->dim, j->dim * sizeof(float));
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

typedef struct scale_job {
    float *out;
    const float *x;
    size_t n;
    float factor;
} scale_job;

static void scale_by(const void *job, uint32_t begin, uint32_t end) {
    const scale_job *j = job;
    size_t limit = size_min((size_t)end * FLAT_UNIT, j->n);
    for (size_t i = (size_t)begin * FLAT_UNIT; i < limit; i++) j->out[i] = j->x[i] * j->factor;
}

static uint32_t flat_units(size_t n) {
    return (uint32_t)((n + FLAT_UNIT - 1) / FLAT_UNIT);
}

static void make_flat(maker *m, range_fn *f, flat_job job) {
    phase(m, PART_OTHER, f, copy_job(m, &job, sizeof job), flat_units(job.n), PHASE_SPLIT);
}

/* ---- matrix products ---- */

static cpu_math math_of(const maker *m, const weight *w) {
    return level_math(m->env->level, w->type, m->env->exact);
}

static qact qact_of(const maker *m, const op *mm) {
    return qact_at(m->p->qact, mm->n, mm->w.cols);
}

/* x in the form that products of this kind read, normed first when there is a norm.  normed_too:
 * other operations read the norm's floats. */
static void make_qact(maker *m, const op *mm, const op *norm, bool normed_too) {
    qact_job job = {.out = qact_of(m, mm),
                    .x = mm->a->data,
                    .n = mm->n,
                    .dim = mm->w.cols,
                    .math = math_of(m, &mm->w)};
    if (norm != NULL) {
        job.x = norm->a->data;
        job.norm = norm->v.data;
        job.normed = normed_too ? norm->out->data : NULL;
        job.eps = norm->f;
    }
    phase(m, PART_NORM, m->env->level->quantize, copy_job(m, &job, sizeof job), qact_tiles(mm->n),
          PHASE_SPLIT);
}

static bool is_head(const maker *m, const op *mm) {
    return mm->out == m->wanted;
}

/* Products from i on that read the same input in the same way; at most GROUP_MAX. */
static uint32_t count_products(const maker *m, uint32_t i) {
    const op *first = at(m, i, OP_MATMUL);
    uint32_t n = 0;
    for (; n < GROUP_MAX; n++) {
        const op *mm = at(m, i + n, OP_MATMUL);
        if (mm == NULL || mm->a != first->a || mm->n != first->n || mm->out == first->a ||
            math_of(m, &mm->w) != math_of(m, &first->w))
            break;
    }
    return n;
}

/* Are these the gate and the up projection with the function between them?  Three operations. */
static bool is_gated(const maker *m, uint32_t i) {
    const op *gate = at(m, i, OP_MATMUL), *up = at(m, i + 1, OP_MATMUL),
             *glu = at(m, i + 2, OP_GLU);
    if (glu == NULL || up == NULL || count_products(m, i) < 2 || glu->a != gate->out ||
        glu->b != up->out || gate->out == up->out || glu->n != gate->n ||
        glu->dim != gate->w.rows || gate->w.rows != up->w.rows || math_of(m, &gate->w) == MATH_F32)
        return false;
    return dead(m, i + 3, up->out) && (glu->out == gate->out || dead(m, i + 3, gate->out));
}

static void make_gated(maker *m, uint32_t i) {
    const op *gate = at(m, i, OP_MATMUL), *up = at(m, i + 1, OP_MATMUL),
             *glu = at(m, i + 2, OP_GLU);
    qglu_job job = {.x = qact_of(m, gate),
                    .gate = &gate->w,
                    .up = &up->w,
                    .gate_bias = gate->v.data,
                    .up_bias = up->v.data,
                    .fn = glu->fn,
                    .out = glu->out->data,
                    .n = gate->n,
                    .math = math_of(m, &gate->w)};
    const weight *w = &gate->w;
    matrix_phase(m, PART_GATE_UP, m->env->level->qglu, copy_job(m, &job, sizeof job), gate->n, &w,
                 1);
}

/* The addition behind the product at i, if the product can be added to its stream directly. */
static const op *addition_after(const maker *m, uint32_t i) {
    const op *mm = at(m, i, OP_MATMUL), *add = at(m, i + 1, OP_ADD);
    bool fits = add != NULL && add->a == mm->out && add->n == mm->n && add->dim == mm->w.rows &&
                add->out != mm->out && add->out != mm->a && math_of(m, &mm->w) != MATH_F32 &&
                dead(m, i + 2, mm->out);
    return fits ? add : NULL;
}

/* Products from i on, prepared by the norm before them if there is one; returns how many
 * operations they were. */
static uint32_t make_products(maker *m, uint32_t i, const op *norm) {
    const op *first = at(m, i, OP_MATMUL);
    cpu_math math = math_of(m, &first->w);
    bool gated = is_gated(m, i);
    uint32_t n = gated ? 3 : count_products(m, i);
    INFERD_CHECK(n > 0);
    if (math != MATH_F32) make_qact(m, first, norm, norm != NULL && !dead(m, i + n, norm->out));
    if (gated) {
        make_gated(m, i);
        return n;
    }
    const op *add = n == 1 ? addition_after(m, i) : NULL;
    group_job group = {.n_parts = n};
    const weight *w[GROUP_MAX];
    for (uint32_t k = 0; k < n; k++) {
        const op *mm = at(m, i + k, OP_MATMUL);
        if (math == MATH_F32) {
            matmul_job job = {mm->out->data, mm->a->data, &mm->w, mm->v.data, mm->n};
            group.parts[k].f = m->env->level->matmul;
            group.parts[k].job = copy_job(m, &job, sizeof job);
        } else {
            qmatmul_job job = {.x = qact_of(m, mm),
                               .w = &mm->w,
                               .bias = mm->v.data,
                               .add = add != NULL ? add->out->data : NULL,
                               .out = add != NULL ? add->out->data : mm->out->data,
                               .n = mm->n,
                               .math = math};
            group.parts[k].f = m->env->level->qmatmul;
            group.parts[k].job = copy_job(m, &job, sizeof job);
        }
        group.parts[k].n = units_of(&mm->w);
        w[k] = &mm->w;
    }
    step_part part = is_head(m, first) ? PART_HEAD : PART_MATMUL;
    if (n == 1)
        matrix_phase(m, part, group.parts[0].f, group.parts[0].job, first->n, w, n);
    else
        matrix_phase(m, part, run_group, copy_job(m, &group, sizeof group), first->n, w, n);
    return n + (add != NULL);
}

/* A norm, alone or with the products that read it. */
static uint32_t make_norm(maker *m, uint32_t i) {
    const op *norm = at(m, i, OP_NORM), *mm = at(m, i + 1, OP_MATMUL);
    if (mm != NULL && mm->a == norm->out && mm->n == norm->n && norm->a != norm->out &&
        math_of(m, &mm->w) != MATH_F32)
        return 1 + make_products(m, i + 1, norm);
    rmsnorm_job job = {norm->out->data, norm->a->data, norm->v.data, norm->v.n, norm->f};
    phase(m, PART_NORM, m->env->level->rmsnorm, copy_job(m, &job, sizeof job), norm->n,
          PHASE_SPLIT);
    return 1;
}

/* ---- experts ---- */

static void make_experts(maker *m, const op *o) {
    enum { ROUTED_ALONE = 4, PARTS_PER_RANK = 16 };
    const expert_weights *w = o->experts;
    uint32_t n_ranks = tpool_n_threads(m->env->threads);
    experts_job job = {.room = m->env->experts,
                       .level = m->env->level,
                       .w = w,
                       .math = experts_math(m->env->level, w, m->env->exact),
                       .down_math = math_of(m, w->down),
                       .x = o->a->data,
                       .logits = o->b->data,
                       .hidden = o->d->data,
                       .parts = o->e->data,
                       .out = o->out->data,
                       .n = o->n,
                       .n_parts = n_ranks * PARTS_PER_RANK,
                       .fetches = o->n <= FETCHING_ROWS_MAX};
    const phase_how how = job.fetches ? PHASE_SPLIT : PHASE_SHARE;
    const void *j = copy_job(m, &job, sizeof job);
    if (o->n <= ROUTED_ALONE) {
        phase(m, PART_OTHER, experts_route_and_sort, j, 1, PHASE_ALONE);
    } else {
        phase(m, PART_OTHER, experts_route, j, o->n, PHASE_SPLIT);
        phase(m, PART_OTHER, experts_sort, j, 1, PHASE_ALONE);
    }
    phase(m, PART_NORM, experts_gather, j, job.n_parts, PHASE_SPLIT);
    phase(m, PART_EXPERTS, experts_hidden, j, job.n_parts, how);
    if (job.down_math != MATH_F32) phase(m, PART_NORM, experts_again, j, job.n_parts, PHASE_SPLIT);
    phase(m, PART_EXPERTS, experts_down, j, job.n_parts, how);
    phase(m, PART_OTHER, experts_sum, j, o->n, PHASE_SPLIT);
}

/* ---- attention ---- */

static const void *head_norm_job(maker *m, const op *o) {
    rmsnorm_job job = {o->out->data, o->out->data, o->v.data, o->dim, o->f};
    return copy_job(m, &job, sizeof job);
}

/* Done row by row before attention: norms of heads, rotation, storing keys and values. */
static uint32_t make_heads(maker *m, uint32_t i) {
    const cpu_level *level = m->env->level;
    stack_job stack = {0};
    uint32_t n_rows = m->p->ops[i].n, k = i;
    const op *o;
    for (; k < i + 2 && (o = at(m, k, OP_HEAD_NORM)) != NULL && o->n == n_rows; k++)
        stack_put(&stack, level->rmsnorm, head_norm_job(m, o), o->n_heads);
    if ((o = at(m, k, OP_ROPE)) != NULL && o->n == n_rows) {
        rope_job job = {.q = o->out->data,
                        .k = o->b->data,
                        .table = o->table,
                        .growth = o->grows ? o->table + (size_t)o->n * 2 * o->n_pairs : NULL,
                        .n_pairs = o->n_pairs,
                        .n_heads = o->n_heads,
                        .n_kv_heads = o->n_kv_heads,
                        .head_dim = o->dim,
                        .interleaved = o->interleaved};
        stack_put(&stack, level->rope, copy_job(m, &job, sizeof job), 1);
        k++;
    }
    o = at(m, k, OP_ATTENTION);
    const attn_job *attn = NULL;
    if (o != NULL && o->n == n_rows) {
        attn_job job = {.out = o->out->data,
                        .q = o->a->data,
                        .k = o->b->data,
                        .v = o->c->data,
                        .sinks = o->v.data,
                        .b = m->env->b,
                        .kv = m->env->kv,
                        .spec = &o->attn,
                        .plan = o->plan,
                        .arena = m->env->arena,
                        .page_bytes = m->env->page_bytes,
                        .layer_idx = o->layer_idx,
                        .n_saturated = m->env->n_saturated};
        attn = copy_job(m, &job, sizeof job);
        stack_put(&stack, level->kv_store, attn, 1);
        k++;
    }
    phase(m, PART_STORE, run_stack, copy_job(m, &stack, sizeof stack), n_rows, PHASE_SPLIT);
    if (attn != NULL) {
        phase(m, PART_ATTEND, level->attend, attn, attn_plan_n_units(o->plan), PHASE_SHARE);
        phase(m, PART_ATTEND, level->attend_merge, attn, attn_plan_n_merges(o->plan), PHASE_SHARE);
    }
    return k - i;
}

/* ---- the whole list ---- */

/* Phases of operation i and those fused with it; returns how many operations they were. */
static uint32_t make(maker *m, uint32_t i) {
    const op *o = &m->p->ops[i];
    const cpu_level *level = m->env->level;
    switch (o->kind) {
    case OP_EMBED: {
        embed_job job = {o->out->data, o->w, m->env->b->tokens, o->f};
        phase(m, PART_EMBED, embed, copy_job(m, &job, sizeof job), o->n, PHASE_SPLIT);
        return 1;
    }
    case OP_NORM:
        return make_norm(m, i);
    case OP_MATMUL:
        return make_products(m, i, NULL);
    case OP_ANGLES: {
        angles_job job = {o->table, o->rope, m->env->b->positions, o->n};
        phase(m, PART_STORE, fill_angles, copy_job(m, &job, sizeof job), o->n, PHASE_SPLIT);
        return 1;
    }
    case OP_HEAD_NORM:
    case OP_ROPE:
    case OP_ATTENTION:
        return make_heads(m, i);
    case OP_GLU:
        make_flat(m, level_gate(level, o->fn),
                  (flat_job){o->out->data, o->a->data, o->b->data, (size_t)o->n * o->dim});
        return 1;
    case OP_EXPERTS:
        make_experts(m, o);
        return 1;
    case OP_SCALE: {
        scale_job job = {o->out->data, o->a->data, (size_t)o->n * o->dim, o->f};
        phase(m, PART_OTHER, scale_by, copy_job(m, &job, sizeof job), flat_units(job.n),
              PHASE_SPLIT);
        return 1;
    }
    case OP_ADD:
        make_flat(m, level->add,
                  (flat_job){o->out->data, o->out->data, o->a->data, (size_t)o->n * o->dim});
        return 1;
    case OP_TAKE: {
        take_rows_job job = {o->out->data, o->a->data, m->env->b->logit_rows, o->dim};
        phase(m, PART_OTHER, take_rows, copy_job(m, &job, sizeof job), o->n, PHASE_SPLIT);
        return 1;
    }
    case OP_SOFTCAP: {
        softcap_job job = {o->out->data, (size_t)o->n * o->dim, o->f};
        phase(m, PART_OTHER, cap_softly, copy_job(m, &job, sizeof job), flat_units(job.n),
              PHASE_SPLIT);
        return 1;
    }
    }
    INFERD_CHECK(!"an operation");
    return 1;
}

void phases_run(phases *p, const phases_env *env, bool keep, const act *wanted) {
    if (p->n_ops == 0) return;
    maker m = {p, env, keep, wanted};
    p->n_phases = 0;
    p->jobs_used = 0;
    if (env->part_ns != NULL) p->stamp_ns = now_ns();
    for (uint32_t i = 0; i < p->n_ops;) i += make(&m, i);
    if (env->part_ns != NULL) { // making the phases is a part too
        uint64_t now = now_ns();
        env->part_ns[PART_OTHER] += now - p->stamp_ns;
        p->stamp_ns = now;
    }
    tpool_phases(env->threads, p->phases, p->n_phases);
    p->n_ops = 0;
}
