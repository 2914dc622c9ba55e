/* cuda_ops.c - weights and activations of the CUDA backend, and the operations of a step, which are
 * only recorded here (program.h).
 *
 * Thread: engine. */
#include <math.h>
#include <string.h>

#include "cuda/cuda.h"
#include "cuda/formats.h"

/* ---- weights ---- */

bool cuda_weight_supported(const backend *be, dtype type) {
    cu_format format;
    (void)be;
    return format_of(type, &format);
}

size_t cuda_weight_bytes(const backend *be, dtype type, uint32_t rows, uint32_t cols) {
    (void)be;
    return format_bytes(type, rows, cols);
}

void cuda_weight_init(backend *be, weight *w, dtype type, uint32_t rows, uint32_t cols, void *dst) {
    cu_format format = CU_FMT_F32;
    (void)be;
    format_of(type, &format);
    *w = (weight){.type = type, .rows = rows, .cols = cols, .data = dst, .layout = format};
}

/* See layout.h; the same for every device. */
const char *cuda_weight_layout(const backend *be) {
    (void)be;
    return "cuda-tiles-1";
}

typedef struct prepare_job {
    cu_matrix m;
    dtype type;
    void *image;
    const unsigned char *rows;
    size_t row_bytes;
    uint32_t row_begin, n_rows;
    inferd_err *errs; // [n pieces]
} prepare_job;

enum { PREPARE_PIECE_ROWS = 64 };

static void prepare_piece(void *ctx, uint32_t i) {
    const prepare_job *j = ctx;
    uint32_t begin = i * PREPARE_PIECE_ROWS, n = u32_min(PREPARE_PIECE_ROWS, j->n_rows - begin);
    format_prepare(&j->m, j->type, j->image, j->rows + begin * j->row_bytes, j->row_begin + begin,
                   n, &j->errs[i]);
}

void cuda_weight_prepare(backend *be, weight *w, const void *rows, uint32_t row_begin,
                         uint32_t n_rows) {
    cuda_backend *c = cuda_of(be);
    dtype_info info = dtype_about(w->type);
    uint32_t n_pieces = (n_rows + PREPARE_PIECE_ROWS - 1) / PREPARE_PIECE_ROWS;
    prepare_job j = {.m = format_matrix(w->type, w->rows, w->cols, w->data),
                     .type = w->type,
                     .image = memory_image_of(c->memory, w->data),
                     .rows = rows,
                     .row_bytes = (size_t)w->cols / info.block_elems * info.block_bytes,
                     .row_begin = row_begin,
                     .n_rows = n_rows,
                     .errs = calloc(size_max(n_pieces, 1), sizeof(inferd_err))};
    INFERD_CHECK(j.image != NULL);
    if (j.errs == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory to prepare %u rows", n_rows);
        return;
    }
    be_parallel(be, n_pieces, prepare_piece, &j);
    for (uint32_t i = 0; i < n_pieces; i++)
        if (j.errs[i].status != INFERD_OK) backend_fail(be, j.errs[i].status, "%s", j.errs[i].text);
    free(j.errs);
}

inferd_status cuda_weight_prepare_part(const backend *be, const weight *w, const void *rows,
                                       uint32_t row_begin, uint32_t n_rows, inferd_err *err) {
    cu_matrix m = format_matrix(w->type, w->rows, w->cols, w->data);
    void *image = memory_image_of(cuda_of_const(be)->memory, w->data);
    INFERD_CHECK(image != NULL);
    return format_prepare(&m, w->type, image, rows, row_begin, n_rows, err);
}

void cuda_weight_dummy(backend *be, weight *w, uint64_t seed, float scale) {
    cuda_backend *c = cuda_of(be);
    cu_matrix m = format_matrix(w->type, w->rows, w->cols, w->data);
    launch_dummy(&c->launch, &(dummy_args){.m = m,
                                           .data = (void *)m.data,
                                           .low = (void *)m.low,
                                           .high = (void *)m.high,
                                           .scales = (void *)m.scales,
                                           .file_type = w->type,
                                           .seed = seed,
                                           .scale = scale});
    c->launch.settle = true; // the next kernel may read these weights before it waits
    cuda_check_launches(c);
}

void cuda_vec_init(backend *be, vec *v, uint32_t n, void *dst) {
    (void)be;
    *v = (vec){.data = dst, .n = n};
}

void cuda_vec_load(backend *be, vec *v, const float *host) {
    float *image = memory_image_of(cuda_of(be)->memory, v->data);
    INFERD_CHECK(image != NULL);
    memcpy(image, host, v->n * sizeof *host);
}

/* Without the image: a model that is made up on the device never needs one. */
void cuda_vec_fill(backend *be, vec *v, float value) {
    cuda_backend *c = cuda_of(be);
    float *host = malloc(size_max(v->n, 1) * sizeof *host);
    if (host == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory for a vector of %u", v->n);
        return;
    }
    for (uint32_t i = 0; i < v->n; i++) host[i] = value;
    cu_result r = c->api->copy_to_device(v->data, host, v->n * sizeof *host, c->stream);
    if (r == CU_OK) r = c->api->stream_sync(c->stream); // the copy may still read `host`
    cuda_failed(c, r, "filling a vector");
    free(host);
}

/* ---- activations ---- */

static size_t type_bytes(cu_type t) {
    return t == CU_F32 ? 4 : 2;
}

void cuda_scratch_begin(backend *be) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(!c->scratch_open);
    c->scratch_open = true;
    c->scratch_used = 0;
}

void cuda_scratch_end(backend *be) {
    cuda_of(be)->scratch_open = false;
}

static void *hold_scratch(cuda_backend *c, size_t n, inferd_err *err) {
    enum { ALIGN = 256 };
    size_t used = c->scratch_used + (n + ALIGN - 1) / ALIGN * ALIGN;
    unsigned char *end = memory_scratch_hold(c->memory, used, err);
    if (end == NULL && cuda_room_shrink(c)) end = memory_scratch_hold(c->memory, used, err);
    if (end == NULL) return NULL;
    c->scratch_used = used;
    return end - used;
}

static void *hold_padded(cuda_backend *c, size_t n, inferd_err *err) {
    void *p = memory_workspace_take(c->memory, n, err);
    if (p == NULL && cuda_room_shrink(c)) p = memory_workspace_take(c->memory, n, err);
    return p;
}

/* Steps are in order on one stream, copies of their results included, so the activations of
 * different models may share memory.  Not activations with padding in their rows: padding is read,
 * and must stay zeros. */
act *cuda_act_open(backend *be, act_kind kind, uint32_t rows_max, uint32_t dim) {
    cuda_backend *c = cuda_of(be);
    size_t n;
    inferd_err err = {0};
    act *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    a->type = kind == ACT_INNER ? c->inner : CU_F32;
    a->rows_max = rows_max;
    a->dim = dim;
    a->stride = cuda_act_stride(dim);
    a->in_scratch = c->scratch_open && a->stride == dim;
    if (size_mul(rows_max, a->stride, &n) && size_mul(n, type_bytes(a->type), &n))
        a->data = a->in_scratch ? hold_scratch(c, size_max(n, 1), &err)
                                : hold_padded(c, size_max(n, 1), &err);
    if (a->data == NULL) {
        free(a);
        return NULL;
    }
    c->act_rows_max = u32_max(c->act_rows_max, rows_max);
    /* Padding columns and rows of a graph's bucket are read before anything was written there. */
    if (!cuda_failed(c, c->api->fill(a->data, 0, n, c->stream), "clearing an activation")) return a;
    cuda_act_close(be, a);
    return NULL;
}

void cuda_act_close(backend *be, act *a) {
    cuda_backend *c = cuda_of(be);
    cuda_forget_graphs(c); // they use its address
    c->api->stream_sync(c->stream);
    if (!a->in_scratch) memory_workspace_give(c->memory, a->data);
    free(a->host);
    free(a);
}

static void to_floats(cu_type type, const void *from, float *out, size_t n) {
    const uint16_t *bits = from;
    if (type == CU_F32)
        memcpy(out, from, n * sizeof *out);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = type == CU_BF16 ? bf16_to_f32(bits[i]) : f16_to_f32(bits[i]);
}

const float *cuda_act_host(backend *be, const act *a) {
    cuda_backend *c = cuda_of(be);
    size_t row_bytes = a->stride * type_bytes(a->type), n = a->rows_max * row_bytes;
    act *own = (act *)a; // the copy is a cache
    if (own->host == NULL)
        own->host = malloc(size_max((size_t)a->rows_max * a->dim, 1) * sizeof(float));
    unsigned char *raw = malloc(size_max(n, 1));
    if (own->host == NULL || raw == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory for %zu bytes of an activation", n);
    } else {
        cuda_failed(c, c->api->copy_to_host(raw, a->data, n, c->stream), "reading an activation");
        cuda_failed(c, c->api->stream_sync(c->stream), "reading an activation");
        for (uint32_t i = 0; i < a->rows_max; i++)
            to_floats(a->type, raw + i * row_bytes, own->host + (size_t)i * a->dim, a->dim);
    }
    free(raw);
    return own->host;
}

/* ---- operations ---- */

static step_op *note(backend *be, op_kind kind, uint32_t n) {
    cuda_backend *c = cuda_of(be);
    step_op *o = program_add(&c->program, kind);
    if (o == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory for a step of %u operations", c->program.n);
        return NULL;
    }
    if (c->program.after_take && n == c->batch->n_logits)
        o->extent = ROWS_LOGITS;
    else if (c->batch != NULL && n == c->batch->n_rows)
        o->extent = ROWS_BATCH;
    else {
        o->extent = ROWS_FIXED;
        o->n = n;
    }
    return o;
}

/* Member by member, so that padding stays zero. */
static void copy_weight(weight *to, const weight *w) {
    to->type = w->type;
    to->rows = w->rows;
    to->cols = w->cols;
    to->data = w->data;
    to->layout = w->layout;
}
static void set_weight(step_op *o, const weight *w) {
    copy_weight(&o->w, w);
}
static void set_vec(step_op *o, const vec *v) {
    if (v == NULL || v->data == NULL) return;
    o->v.data = v->data;
    o->v.n = v->n;
}

/* A token beyond the vocabulary would be read from outside the table. */
static bool tokens_fit(cuda_backend *c, const weight *table) {
    const batch *b = c->batch;
    for (uint32_t row = 0; row < b->n_rows; row++) {
        if (b->tokens[row] == TOK_PENDING) {
            if (b->pending[row] < c->n_drawn) continue;
            backend_fail(&c->be, INFERD_EDEVICE, "row %u waits for draw %u of a step that had %u",
                         row, b->pending[row], c->n_drawn);
            return false;
        }
        if (b->tokens[row] >= 0 && (uint32_t)b->tokens[row] < table->rows) continue;
        backend_fail(&c->be, INFERD_EINVAL, "row %u has token %d, the embedding has %u rows", row,
                     b->tokens[row], table->rows);
        return false;
    }
    return true;
}

void cuda_embed(backend *be, act *out, const weight *table, float scale) {
    cuda_backend *c = cuda_of(be);
    if (!tokens_fit(c, table)) return;
    step_op *o = note(be, OP_EMBED, c->batch->n_rows);
    if (o == NULL) return;
    o->out = out;
    set_weight(o, table);
    o->f = scale;
}

void cuda_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps) {
    step_op *o = note(be, OP_NORM, n);
    if (o == NULL) return;
    o->out = out;
    o->a = x;
    set_vec(o, w);
    o->f = eps;
}

void cuda_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias,
                 uint32_t n) {
    step_op *o = note(be, OP_MATMUL, n);
    if (o == NULL) return;
    o->out = out;
    o->a = x;
    set_weight(o, w);
    set_vec(o, bias);
}

void cuda_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                    uint32_t head_dim, float eps) {
    step_op *o = note(be, OP_HEAD_NORM, n);
    if (o == NULL) return;
    o->out = x;
    o->a = x;
    set_vec(o, w);
    o->n_heads = n_heads;
    o->head_dim = head_dim;
    o->f = eps;
}

void cuda_rope_op(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads,
                  uint32_t n_kv_heads, uint32_t head_dim) {
    cuda_backend *c = cuda_of(be);
    step_op *o = note(be, OP_ROPE, c->batch->n_rows);
    if (o == NULL) return;
    o->a = q;
    o->b = k;
    o->n_heads = n_heads;
    o->n_kv_heads = n_kv_heads;
    o->head_dim = head_dim;
    o->rope.inv_freq = r->inv_freq;
    o->rope.n_pairs = r->n_pairs;
    o->rope.scale = r->scale;
    o->rope.interleaved = r->interleaved;
    o->rope.growth = r->growth;
    o->rope.growth_length = r->growth_length;
}

void cuda_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                    uint32_t layer_idx, const attn_spec *spec, const vec *sinks) {
    cuda_backend *c = cuda_of(be);
    inferd_err err = {0};
    inferd_status s = attention_supported(spec->n_heads, spec->n_kv_heads, spec->head_dim, &err);
    if (s != INFERD_OK) {
        backend_fail(be, s, "%s", err.text);
        return;
    }
    step_op *o = note(be, OP_ATTENTION, c->batch->n_rows);
    if (o == NULL) return;
    o->out = out;
    o->a = q;
    o->b = k;
    o->c = v;
    o->layer_idx = layer_idx;
    o->attn = *spec; // words only: no padding
    set_vec(o, sinks);
}

void cuda_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
              uint32_t dim) {
    INFERD_CHECK(dim == out->dim && dim == gate->dim && dim == up->dim);
    step_op *o = note(be, OP_GLU, n);
    if (o == NULL) return;
    o->out = out;
    o->a = gate;
    o->b = up;
    o->fn = fn;
}

/* The first of n matrices at equal distances, and the bytes from one to the next. */
static uint64_t set_matrices(weight *first, const weight *w, uint32_t n) {
    copy_weight(first, w);
    uint64_t step = n > 1 ? (uint64_t)((uintptr_t)w[1].data - (uintptr_t)w[0].data) : 0;
    INFERD_CHECK((uintptr_t)w[n - 1].data - (uintptr_t)w[0].data == step * (n - 1));
    return step;
}

void cuda_experts(backend *be, act *out, const act *x, const act *logits, const expert_weights *w,
                  act *hidden, act *parts, uint32_t n) {
    INFERD_CHECK(w->n_experts <= BE_EXPERTS_MAX && w->n_used <= BE_EXPERTS_USED_MAX);
    INFERD_CHECK(logits->type == CU_F32 && x->type != CU_F32 && hidden->type == x->type);
    INFERD_CHECK((size_t)n * w->n_used <= u32_min(hidden->rows_max, parts->rows_max));
    step_op *o = note(be, OP_EXPERTS, n);
    if (o == NULL) return;
    o->out = out;
    o->a = x;
    o->b = logits;
    o->fn = w->fn;
    op_experts *e = &o->experts;
    e->gate_step = set_matrices(&e->gate, w->gate, w->n_experts);
    e->up_step = set_matrices(&e->up, w->up, w->n_experts);
    e->down_step = set_matrices(&e->down, w->down, w->n_experts);
    e->gate_bias = w->gate_bias.data;
    e->up_bias = w->up_bias.data;
    e->down_bias = w->down_bias.data;
    e->hidden = hidden;
    e->parts = parts;
    e->n_experts = w->n_experts;
    e->n_used = w->n_used;
}

void cuda_scale(backend *be, act *out, const act *x, uint32_t n, uint32_t dim, float factor) {
    INFERD_CHECK(dim == x->dim && dim == out->dim);
    step_op *o = note(be, OP_SCALE, n);
    if (o == NULL) return;
    o->out = out;
    o->a = x;
    o->f = factor;
}

void cuda_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim) {
    INFERD_CHECK(dim == x->dim && dim == y->dim);
    step_op *o = note(be, OP_ADD, n);
    if (o == NULL) return;
    o->out = x;
    o->a = y;
}

void cuda_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(dim == x->dim && dim == out->dim && out->type == x->type);
    c->program.after_take = true;
    step_op *o = note(be, OP_TAKE, c->batch->n_logits);
    if (o == NULL) return;
    o->out = out;
    o->a = x;
}

void cuda_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap) {
    INFERD_CHECK(dim == x->dim && x->type == CU_F32);
    step_op *o = note(be, OP_SOFTCAP, n);
    if (o == NULL) return;
    o->out = x;
    o->f = cap;
}

void cuda_draw(backend *be, const act *logits, const sample_row *rows, uint32_t n,
               uint32_t n_vocab) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(logits->type == CU_F32 && n == c->batch->n_logits && n_vocab <= logits->dim);
    if (!c->batch->draws_later) {
        step_op *o = note(be, OP_DRAW, n);
        if (o == NULL) return;
        o->a = logits;
        o->n_vocab = n_vocab;
    }
    c->draw_rows = rows;
    c->n_draws = n;
    c->draw_vocab = n_vocab;
    c->draw_logits = logits;
}

void cuda_want_logits(backend *be, const act *logits, uint32_t n) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(logits->type == CU_F32 && n <= logits->rows_max);
    c->wanted = logits;
    c->n_wanted = n;
}
