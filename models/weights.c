/* weights.c - see weights.h. */
#include "weights.h"

#include <math.h>
#include <string.h>

#include "dummy_model.h"
#include "inferd/dummy_math.h"

enum {
    READ_CHUNK_BYTES = 1 << 20, // so that what was read is still cached when it is prepared,
    READ_CHUNK_GROUPS = 4,      // or so many groups of rows for each thread, where that is more,
    READ_CHUNK_BYTES_MAX = 64 << 20, // up to this
    WINDOW_ALIGN = 256
};

/* -- planning -- */

typedef struct planner {
    const gguf *g;
    backend *be;
    weight_plan *plan;
    inferd_err *err;
    inferd_status status; // the first failure; later calls do nothing
    uint32_t unit;        // of the entries added now
} planner;

static void add_entry(planner *p, weight_entry e, size_t n_bytes) {
    weight_plan *plan = p->plan;
    if (plan->n == plan->capacity) {
        size_t capacity = plan->capacity == 0 ? 64 : plan->capacity * 2;
        weight_entry *entries = realloc(plan->entries, capacity * sizeof *entries);
        if (entries == NULL) {
            p->status = inferd_fail(p->err, INFERD_ENOMEM, "no memory for the list of %zu tensors",
                                    capacity);
            return;
        }
        plan->entries = entries;
        plan->capacity = capacity;
    }
    e.offset = plan->n_bytes;
    e.unit = p->unit;
    plan->entries[plan->n++] = e;
    plan->n_bytes += (n_bytes + WINDOW_ALIGN - 1) / WINDOW_ALIGN * WINDOW_ALIGN;
    plan->file_bytes += e.tensor->n_bytes;
}

static void refuse_shape(planner *p, const gguf_tensor *t, uint32_t rows, uint32_t cols) {
    p->status =
        inferd_fail(p->err, INFERD_EFORMAT, "%s: tensor %s is [%llu, %llu%s], expected [%u, %u]",
                    gguf_path(p->g), t->name, (unsigned long long)t->dims[1],
                    (unsigned long long)t->dims[0], t->n_dims > 2 ? ", ..." : "", rows, cols);
}

/* NULL and a failure when it is missing and required. */
static const gguf_tensor *find(planner *p, const char *name, bool required) {
    if (p->status != INFERD_OK) return NULL;
    const gguf_tensor *t = gguf_find_tensor(p->g, name);
    if (t == NULL && required)
        p->status =
            inferd_fail(p->err, INFERD_EFORMAT, "%s: tensor %s is missing", gguf_path(p->g), name);
    return t;
}

static void plan_matrix(planner *p, weight *w, const char *name, uint32_t rows, uint32_t cols) {
    const gguf_tensor *t = find(p, name, true);
    if (t == NULL) return;
    if (t->n_dims != 2 || t->dims[0] != cols || t->dims[1] != rows) {
        refuse_shape(p, t, rows, cols);
        return;
    }
    if (!be_weight_supported(p->be, t->type)) {
        p->status = inferd_fail(p->err, INFERD_EUNSUPPORTED,
                                "%s: tensor %s has type %s, which this backend cannot compute with",
                                gguf_path(p->g), name, dtype_about(t->type).name);
        return;
    }
    add_entry(p, (weight_entry){.tensor = t, .matrix = w, .rows = rows, .cols = cols},
              be_weight_bytes(p->be, t->type, rows, cols));
}

static bool plan_vector(planner *p, vec *v, const char *name, uint32_t n, bool required) {
    *v = (vec){0};
    const gguf_tensor *t = find(p, name, required);
    if (t == NULL) return false;
    if (t->n_dims != 1 || t->dims[0] != n) {
        refuse_shape(p, t, 1, n);
        return false;
    }
    if (t->type != DTYPE_F32 && t->type != DTYPE_F16 && t->type != DTYPE_BF16) {
        p->status = inferd_fail(p->err, INFERD_EUNSUPPORTED,
                                "%s: tensor %s has type %s; expected F32, F16 or BF16",
                                gguf_path(p->g), name, dtype_about(t->type).name);
        return false;
    }
    add_entry(p, (weight_entry){.tensor = t, .vector = v, .rows = 1, .cols = n},
              (size_t)n * sizeof(float));
    return true;
}

static void plan_layer(planner *p, decoder_spec *s, decoder_layer *w, uint32_t i) {
    uint32_t q_dim = s->n_heads * s->head_dim, kv_dim = s->n_kv_heads * s->head_dim;
    const struct {
        weight *matrix;
        vec *vector;
        const char *name;
        uint32_t rows, cols;
    } wanted[] = {
        {NULL, &w->attn_norm, "attn_norm.weight", 1, s->dim},
        {&w->wq, NULL, "attn_q.weight", q_dim, s->dim},
        {&w->wk, NULL, "attn_k.weight", kv_dim, s->dim},
        {&w->wv, NULL, "attn_v.weight", kv_dim, s->dim},
        {&w->wo, NULL, "attn_output.weight", s->dim, q_dim},
        {NULL, &w->ffn_norm, "ffn_norm.weight", 1, s->dim},
        {&w->w_gate, NULL, "ffn_gate.weight", s->ffn_dim, s->dim},
        {&w->w_up, NULL, "ffn_up.weight", s->ffn_dim, s->dim},
        {&w->w_down, NULL, "ffn_down.weight", s->dim, s->ffn_dim},
    };
    const struct {
        vec *vector;
        const char *name;
        uint32_t n;
        bool *flag;
    } biases[] = {
        {&w->bq, "attn_q.bias", q_dim, &s->attn_bias},
        {&w->bk, "attn_k.bias", kv_dim, &s->attn_bias},
        {&w->bv, "attn_v.bias", kv_dim, &s->attn_bias},
        {&w->bo, "attn_output.bias", s->dim, &s->attn_bias},
        {&w->b_gate, "ffn_gate.bias", s->ffn_dim, &s->mlp_bias},
        {&w->b_up, "ffn_up.bias", s->ffn_dim, &s->mlp_bias},
        {&w->b_down, "ffn_down.bias", s->dim, &s->mlp_bias},
    };
    char name[GGUF_NAME_BYTES_MAX + 1];
    for (size_t j = 0; j < INFERD_COUNT(wanted); j++) {
        snprintf(name, sizeof name, "blk.%u.%s", i, wanted[j].name);
        if (wanted[j].matrix != NULL)
            plan_matrix(p, wanted[j].matrix, name, wanted[j].rows, wanted[j].cols);
        else
            plan_vector(p, wanted[j].vector, name, wanted[j].cols, true);
    }
    const struct {
        vec *vector;
        const char *name;
        uint32_t n;
        bool wanted;
    } norms[] = {
        {&w->q_norm, "attn_q_norm.weight", s->head_dim, s->qk_norm},
        {&w->k_norm, "attn_k_norm.weight", s->head_dim, s->qk_norm},
        {&w->post_attn_norm, "post_attention_norm.weight", s->dim, s->post_norms},
        {&w->post_ffn_norm, "post_ffw_norm.weight", s->dim, s->post_norms},
    };
    for (size_t j = 0; j < INFERD_COUNT(norms); j++) {
        snprintf(name, sizeof name, "blk.%u.%s", i, norms[j].name);
        if (norms[j].wanted) plan_vector(p, norms[j].vector, name, norms[j].n, true);
    }
    for (size_t j = 0; j < INFERD_COUNT(biases); j++) {
        snprintf(name, sizeof name, "blk.%u.%s", i, biases[j].name);
        if (plan_vector(p, biases[j].vector, name, biases[j].n, false)) *biases[j].flag = true;
    }
}

/* The head and embedding: the number of rows is the vocabulary of the model. */
static void plan_ends(planner *p, decoder_spec *s, decoder_weights *w) {
    const gguf_tensor *t = find(p, "token_embd.weight", true);
    if (t == NULL) return;
    if (t->n_dims != 2 || t->dims[0] != s->dim || t->dims[1] > DECODER_VOCAB_MAX) {
        refuse_shape(p, t, s->n_vocab, s->dim);
        return;
    }
    s->n_vocab = (uint32_t)t->dims[1];
    plan_matrix(p, &w->embed, "token_embd.weight", s->n_vocab, s->dim);
    plan_vector(p, &w->norm, "output_norm.weight", s->dim, true);
    s->tied = gguf_find_tensor(p->g, "output.weight") == NULL;
    if (!s->tied) plan_matrix(p, &w->head, "output.weight", s->n_vocab, s->dim);
}

/* Tensors that are known and need no place: read elsewhere, or derived. */
static uint32_t count_unused(const gguf *g, const weight_plan *plan) {
    size_t known = plan->n;
    if (gguf_find_tensor(g, "rope_freqs.weight") != NULL) known++;
    size_t n = gguf_n_tensors(g);
    return n > known ? (uint32_t)(n - known) : 0;
}

inferd_status weights_plan(const gguf *g, backend *be, decoder_spec *s, decoder_weights *out,
                           weight_plan *plan, inferd_err *err) {
    *out = (decoder_weights){0};
    *plan = (weight_plan){0};
    out->layers = calloc(s->n_layers, sizeof *out->layers);
    if (out->layers == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u layers", s->n_layers);
    planner p = {g, be, plan, err, INFERD_OK, 0};
    plan_ends(&p, s, out);
    for (uint32_t i = 0; i < s->n_layers && p.status == INFERD_OK; i++) {
        p.unit = 1 + i;
        plan_layer(&p, s, &out->layers[i], i);
    }
    plan->n_unused = count_unused(g, plan);
    if (p.status != INFERD_OK) weights_deinit(out, plan);
    return p.status;
}

void weights_deinit(decoder_weights *w, weight_plan *plan) {
    free(w->layers);
    free(plan->entries);
    *w = (decoder_weights){0};
    *plan = (weight_plan){0};
}

/* -- loading -- */

typedef struct loader {
    const gguf *g;
    backend *be;
    unsigned char *chunk; // [READ_CHUNK_BYTES or one group of rows] owned
    size_t chunk_bytes;
    uint64_t done, total;
    model_progress *progress;
    void *ctx;
} loader;

static size_t row_bytes(const gguf_tensor *t, uint32_t cols) {
    dtype_info info = dtype_about(t->type);
    return (size_t)(cols / info.block_elems) * info.block_bytes;
}

static inferd_status grow_chunk(loader *l, size_t n_bytes, inferd_err *err) {
    if (n_bytes <= l->chunk_bytes) return INFERD_OK;
    unsigned char *chunk = realloc(l->chunk, n_bytes);
    if (chunk == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a read buffer of %zu bytes", n_bytes);
    l->chunk = chunk;
    l->chunk_bytes = n_bytes;
    return INFERD_OK;
}

static void report(loader *l, size_t n_bytes) {
    l->done += n_bytes;
    if (l->progress != NULL) l->progress(l->ctx, l->done, l->total);
}

static inferd_status load_matrix(loader *l, const weight_entry *e, void *dst, inferd_err *err) {
    size_t row = row_bytes(e->tensor, e->cols), group = row * BE_PREPARE_ROWS;
    size_t for_all =
        size_max((size_t)be_n_threads(l->be) * READ_CHUNK_GROUPS * group, READ_CHUNK_BYTES);
    size_t rows_per_chunk =
        size_max(size_min(for_all, READ_CHUNK_BYTES_MAX) / size_max(group, 1), 1) * BE_PREPARE_ROWS;
    inferd_status st = grow_chunk(l, size_min(rows_per_chunk, e->rows) * row, err);
    if (st != INFERD_OK) return st;
    be_weight_init(l->be, e->matrix, e->tensor->type, e->rows, e->cols, dst);
    for (uint32_t begin = 0; begin < e->rows;) {
        uint32_t n = (uint32_t)size_min(rows_per_chunk, e->rows - begin);
        st = gguf_read(l->g, e->tensor, (uint64_t)begin * row, l->chunk, n * row, err);
        if (st != INFERD_OK) return st;
        be_weight_prepare(l->be, e->matrix, l->chunk, begin, n);
        report(l, n * row);
        begin += n;
    }
    return INFERD_OK;
}

static inferd_status load_vector(loader *l, const weight_entry *e, void *dst, inferd_err *err) {
    size_t n_bytes = (size_t)e->tensor->n_bytes, floats = (size_t)e->cols * sizeof(float);
    inferd_status st = grow_chunk(l, n_bytes + floats, err);
    if (st != INFERD_OK) return st;
    float *values = (float *)(void *)l->chunk; // floats first: the chunk is aligned for them
    st = gguf_read(l->g, e->tensor, 0, l->chunk + floats, n_bytes, err);
    if (st != INFERD_OK) return st;
    dtype_to_f32(e->tensor->type, l->chunk + floats, values, e->cols);
    for (uint32_t i = 0; i < e->cols; i++)
        if (!isfinite(values[i]))
            return inferd_fail(err, INFERD_EFORMAT, "%s: tensor %s[%u] is not a finite number",
                               gguf_path(l->g), e->tensor->name, i);
    be_vec_init(l->be, e->vector, e->cols, dst);
    be_vec_load(l->be, e->vector, values);
    report(l, n_bytes);
    return INFERD_OK;
}

/* Everything is in the host's copy already: only say where it lies. */
static void bind(loader *l, const weight_entry *e, void *dst) {
    if (e->matrix != NULL)
        be_weight_init(l->be, e->matrix, e->tensor->type, e->rows, e->cols, dst);
    else
        be_vec_init(l->be, e->vector, e->cols, dst);
    report(l, (size_t)e->tensor->n_bytes);
}

static inferd_status tune(backend *be, const weight_plan *plan, inferd_err *err) {
    const weight **matrices = malloc(size_max(plan->n, 1) * sizeof(*matrices));
    uint32_t n = 0;
    if (matrices == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a list of matrices");
    for (size_t i = 0; i < plan->n; i++)
        if (plan->entries[i].matrix != NULL) matrices[n++] = plan->entries[i].matrix;
    be_tune(be, matrices, n);
    free(matrices);
    return INFERD_OK;
}

/* Where the unit of entry i ends in the window, when i is its last. */
static bool ends_unit(const weight_plan *plan, size_t i, size_t *end) {
    bool last = i + 1 == plan->n;
    if (!last && plan->entries[i + 1].unit == plan->entries[i].unit) return false;
    *end = last ? plan->n_bytes : plan->entries[i + 1].offset;
    return true;
}

inferd_status weights_load(const gguf *g, backend *be, const decoder_spec *s, decoder_weights *w,
                           const weight_plan *plan, be_window *window, model_progress *progress,
                           void *ctx, inferd_err *err) {
    loader l = {.g = g, .be = be, .total = plan->file_bytes, .progress = progress, .ctx = ctx};
    inferd_status st = INFERD_OK;
    bool warm = be_window_is_warm(window);
    size_t uploaded = 0, end;
    for (size_t i = 0; i < plan->n && st == INFERD_OK; i++) {
        const weight_entry *e = &plan->entries[i];
        void *dst = (unsigned char *)be_window_base(window) + e->offset;
        if (warm)
            bind(&l, e, dst);
        else if (e->matrix != NULL)
            st = load_matrix(&l, e, dst, err);
        else
            st = load_vector(&l, e, dst, err);
        if (st == INFERD_OK && ends_unit(plan, i, &end)) {
            be_window_upload(be, window, uploaded, end);
            uploaded = end;
        }
    }
    free(l.chunk);
    if (st == INFERD_OK && s->tied) w->head = w->embed;
    if (st == INFERD_OK && !warm) st = tune(be, plan, err); // the shapes of a warm window are known
    inferd_status device = be_check(be, st == INFERD_OK ? err : NULL);
    if (st == INFERD_OK) st = device;
    be_window_set_warm(window, st == INFERD_OK);
    return st;
}

/* -- making up -- */

static void make_up(backend *be, const decoder_spec *s, const weight_entry *e, void *dst,
                    uint64_t seed) {
    const char *name = e->tensor->name;
    if (e->matrix == NULL) {
        be_vec_init(be, e->vector, e->cols, dst);
        be_vec_fill(be, e->vector, 1.0f);
        return;
    }
    be_weight_init(be, e->matrix, e->tensor->type, e->rows, e->cols, dst);
    be_weight_dummy(be, e->matrix, dummy_seed(name, seed), dummy_scale(name, s->n_layers));
}

inferd_status weights_make_up(backend *be, const decoder_spec *s, decoder_weights *w,
                              const weight_plan *plan, be_window *window, uint64_t seed,
                              model_progress *progress, void *ctx, inferd_err *err) {
    loader l = {.be = be, .total = plan->file_bytes, .progress = progress, .ctx = ctx};
    be_window_set_warm(window, false);
    for (size_t i = 0; i < plan->n; i++) {
        const weight_entry *e = &plan->entries[i];
        make_up(be, s, e, (unsigned char *)be_window_base(window) + e->offset, seed);
        report(&l, (size_t)e->tensor->n_bytes);
    }
    if (s->tied) w->head = w->embed;
    /* Pages may go home again at once, and only uploads are waited for then. */
    inferd_status made = be_sync(be, err);
    if (made != INFERD_OK) return made;
    inferd_status tuned = tune(be, plan, err);
    inferd_status device = be_sync(be, tuned == INFERD_OK ? err : NULL);
    return tuned != INFERD_OK ? tuned : device;
}
