/* weights.c - see weights.h. */
#include "weights.h"

#include <string.h>

#include "dummy_model.h"
#include "inferd/dummy_math.h"

enum { WINDOW_ALIGN = 256 };

/* -- planning -- */

typedef struct planner {
    const gguf *g;
    const backend *be; // NULL: no offsets, only checks
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
    bool supported =
        p->be != NULL ? be_weight_supported(p->be, t->type) : dtype_about(t->type).supported;
    if (!supported) {
        char types[DTYPE_LIST_BYTES];
        p->status = inferd_fail(p->err, INFERD_EUNSUPPORTED,
                                "%s: tensor %s has type %s, which cannot be computed with; types "
                                "that can: %s",
                                gguf_path(p->g), name, dtype_about(t->type).name,
                                dtype_list_supported(types));
        return;
    }
    add_entry(p, (weight_entry){.tensor = t, .matrix = w, .rows = rows, .cols = cols},
              p->be != NULL ? be_weight_bytes(p->be, t->type, rows, cols) : 0);
}

static void plan_vector(planner *p, vec *v, const char *name, uint32_t n, bool required) {
    *v = (vec){0};
    const gguf_tensor *t = find(p, name, required);
    if (t == NULL) return;
    if (t->n_dims != 1 || t->dims[0] != n) {
        refuse_shape(p, t, 1, n);
        return;
    }
    if (t->type != DTYPE_F32 && t->type != DTYPE_F16 && t->type != DTYPE_BF16) {
        p->status = inferd_fail(p->err, INFERD_EUNSUPPORTED,
                                "%s: tensor %s has type %s; expected F32, F16 or BF16",
                                gguf_path(p->g), name, dtype_about(t->type).name);
        return;
    }
    add_entry(p, (weight_entry){.tensor = t, .vector = v, .rows = 1, .cols = n},
              (size_t)n * sizeof(float));
}

static void plan_layer(planner *p, const decoder_spec *s, decoder_layer *w, uint32_t i) {
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
    } biases[] = {
        {&w->bq, "attn_q.bias", q_dim},
        {&w->bk, "attn_k.bias", kv_dim},
        {&w->bv, "attn_v.bias", kv_dim},
        {&w->bo, "attn_output.bias", s->dim},
        {&w->b_gate, "ffn_gate.bias", s->ffn_dim},
        {&w->b_up, "ffn_up.bias", s->ffn_dim},
        {&w->b_down, "ffn_down.bias", s->dim},
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
        plan_vector(p, biases[j].vector, name, biases[j].n, false);
    }
}

static void plan_ends(planner *p, const decoder_spec *s, decoder_weights *w) {
    plan_matrix(p, &w->embed, "token_embd.weight", s->n_vocab, s->dim);
    plan_vector(p, &w->norm, "output_norm.weight", s->dim, true);
    if (!s->tied) plan_matrix(p, &w->head, "output.weight", s->n_vocab, s->dim);
}

/* Every tensor of the file is in the plan, is read elsewhere or is harmless: an unread tensor would
 * be a part of the model that is left out. */
static void check_all_are_read(planner *p, const decoder_spec *s) {
    size_t n = gguf_n_tensors(p->g);
    if (p->status != INFERD_OK || n == 0) return;
    const gguf_tensor *first = gguf_tensor_at(p->g, 0);
    bool *read = calloc(n, sizeof *read);
    if (read == NULL) {
        p->status = inferd_fail(p->err, INFERD_ENOMEM, "no memory for a list of %zu tensors", n);
        return;
    }
    for (size_t i = 0; i < p->plan->n; i++) read[p->plan->entries[i].tensor - first] = true;
    for (size_t i = 0; i < n && p->status == INFERD_OK; i++) {
        const gguf_tensor *t = gguf_tensor_at(p->g, i);
        if (read[i] || strcmp(t->name, "rope_freqs.weight") == 0) continue;
        p->plan->n_unused++;
        if (!decoder_tensor_is_harmless(s, t->name))
            p->status = inferd_fail(
                p->err, INFERD_EUNSUPPORTED,
                "%s: tensor %s is not known for architecture %s, so it cannot be applied",
                gguf_path(p->g), t->name, s->architecture);
    }
    free(read);
}

inferd_status weights_plan(const gguf *g, const backend *be, const decoder_spec *s,
                           decoder_weights *out, weight_plan *plan, inferd_err *err) {
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
    check_all_are_read(&p, s);
    if (p.status != INFERD_OK) weights_deinit(out, plan);
    return p.status;
}

inferd_status weights_check(const gguf *g, const decoder_spec *s, inferd_err *err) {
    decoder_weights weights;
    weight_plan plan;
    inferd_status st = weights_plan(g, NULL, s, &weights, &plan, err);
    if (st == INFERD_OK) weights_deinit(&weights, &plan);
    return st;
}

void weights_deinit(decoder_weights *w, weight_plan *plan) {
    free(w->layers);
    free(plan->entries);
    *w = (decoder_weights){0};
    *plan = (weight_plan){0};
}

/* -- binding -- */

size_t weight_entry_row_bytes(const weight_entry *e) {
    if (e->matrix == NULL) return (size_t)e->tensor->n_bytes;
    dtype_info info = dtype_about(e->tensor->type);
    return (size_t)(e->cols / info.block_elems) * info.block_bytes;
}

void weights_bind(backend *be, const decoder_spec *s, decoder_weights *w, const weight_plan *plan,
                  void *base) {
    for (size_t i = 0; i < plan->n; i++) {
        const weight_entry *e = &plan->entries[i];
        void *at = (unsigned char *)base + e->offset;
        if (e->matrix != NULL)
            be_weight_init(be, e->matrix, e->tensor->type, e->rows, e->cols, at);
        else
            be_vec_init(be, e->vector, e->cols, at);
    }
    if (s->tied) w->head = w->embed;
}

inferd_status weights_tune(backend *be, const weight_plan *plan, inferd_err *err) {
    const weight **matrices = malloc(size_max(plan->n, 1) * sizeof(*matrices));
    uint32_t n = 0;
    if (matrices == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a list of matrices");
    for (size_t i = 0; i < plan->n; i++)
        if (plan->entries[i].matrix != NULL) matrices[n++] = plan->entries[i].matrix;
    be_tune(be, matrices, n);
    free(matrices);
    return be_check(be, err);
}

size_t weights_unit_end(const weight_plan *plan, size_t *i) {
    uint32_t unit = plan->entries[*i].unit;
    while (*i < plan->n && plan->entries[*i].unit == unit) ++*i;
    return *i < plan->n ? plan->entries[*i].offset : plan->n_bytes;
}

void weights_make_up(backend *be, const decoder_spec *s, const weight_plan *plan, uint64_t seed) {
    for (size_t i = 0; i < plan->n; i++) {
        const weight_entry *e = &plan->entries[i];
        const char *name = e->tensor->name;
        if (e->matrix == NULL)
            be_vec_fill(be, e->vector, 1.0f);
        else
            be_weight_dummy(be, e->matrix, dummy_seed(name, seed), dummy_scale(name, s->n_layers));
    }
}
