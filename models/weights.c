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
    bool *read;           // [tensors of the file] looked up for the plan
    const gguf_tensor *looked_up;
    weight_problem *tell; // NULL: the first problem ends the plan
    void *ctx;
} planner;

/* A tool is told the problem, and the plan goes on. */
static void tell_problem(planner *p) {
    if (p->status == INFERD_OK || p->tell == NULL || p->status == INFERD_ENOMEM) return;
    p->tell(p->ctx, p->looked_up, p->err->text);
    p->status = INFERD_OK;
}

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
    plan->file_bytes += e.rows * (uint64_t)weight_entry_row_bytes(&e);
}

/* Shapes as text, outermost first. */
static void refuse_shape(planner *p, const gguf_tensor *t, const char *expected) {
    char got[96];
    size_t at = 0;
    for (uint32_t i = t->n_dims; i > 0; i--)
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%llu", i < t->n_dims ? ", " : "",
                               (unsigned long long)t->dims[i - 1]);
    p->status = inferd_fail(p->err, INFERD_EFORMAT, "%s: tensor %s is [%s], expected [%s]",
                            gguf_path_of(p->g, t), t->name, got, expected);
}

/* NULL and a failure when it is missing and required. */
static const gguf_tensor *find(planner *p, const char *name, bool required) {
    tell_problem(p);
    if (p->status != INFERD_OK) return NULL;
    const gguf_tensor *t = gguf_find_tensor(p->g, name);
    p->looked_up = t;
    if (t != NULL) p->read[t - gguf_tensor_at(p->g, 0)] = true;
    if (t == NULL && required)
        p->status =
            inferd_fail(p->err, INFERD_EFORMAT, "%s: tensor %s is missing", gguf_path(p->g), name);
    return t;
}

static bool check_matrix_type(planner *p, const gguf_tensor *t) {
    bool supported =
        p->be != NULL ? be_weight_supported(p->be, t->type) : dtype_about(t->type).supported;
    if (supported) return true;
    char types[DTYPE_LIST_BYTES];
    p->status = inferd_fail(p->err, INFERD_EUNSUPPORTED,
                            "%s: tensor %s has type %s, which cannot be computed with; types "
                            "that can: %s",
                            gguf_path_of(p->g, t), t->name, dtype_about(t->type).name,
                            dtype_list_supported(types));
    return false;
}

/* Rows [first, first + rows) of a tensor of the right shape as a matrix. */
static void plan_rows(planner *p, const gguf_tensor *t, uint64_t first, weight *w, uint32_t rows,
                      uint32_t cols, bool expert) {
    weight_entry e = {.tensor = t, .matrix = w, .rows = rows, .cols = cols, .expert = expert};
    e.tensor_at = first * weight_entry_row_bytes(&e);
    add_entry(p, e, p->be != NULL ? be_weight_bytes(p->be, t->type, rows, cols) : 0);
}

/* One after the other in a tensor of [their rows, cols]. */
typedef struct part {
    weight *w;
    uint32_t rows;
} part;

static void plan_parts(planner *p, const char *name, const part *parts, uint32_t n, uint32_t cols) {
    char expected[64];
    uint64_t rows = 0;
    for (uint32_t i = 0; i < n; i++) rows += parts[i].rows;
    const gguf_tensor *t = find(p, name, true);
    if (t == NULL) return;
    if (t->n_dims != 2 || t->dims[0] != cols || t->dims[1] != rows) {
        snprintf(expected, sizeof expected, "%llu, %u", (unsigned long long)rows, cols);
        refuse_shape(p, t, expected);
        return;
    }
    if (!check_matrix_type(p, t)) return;
    for (uint64_t i = 0, first = 0; i < n; first += parts[i++].rows)
        plan_rows(p, t, first, parts[i].w, parts[i].rows, cols, false);
}

static void plan_matrix(planner *p, weight *w, const char *name, uint32_t rows, uint32_t cols) {
    plan_parts(p, name, &(part){w, rows}, 1, cols);
}

static bool check_vector_type(planner *p, const gguf_tensor *t) {
    if (t->type == DTYPE_F32 || t->type == DTYPE_F16 || t->type == DTYPE_BF16) return true;
    p->status = inferd_fail(p->err, INFERD_EUNSUPPORTED,
                            "%s: tensor %s has type %s; expected F32, F16 or BF16",
                            gguf_path_of(p->g, t), t->name, dtype_about(t->type).name);
    return false;
}

/* Elements [first, first + n) of a tensor of `all`, or of [all / n, n] when those are experts. */
static void plan_slice(planner *p, vec *v, const char *name, uint32_t first, uint32_t n,
                       uint32_t all, uint32_t n_experts, bool required) {
    char expected[64];
    *v = (vec){0};
    const gguf_tensor *t = find(p, name, required);
    if (t == NULL) return;
    bool fits = n_experts == 0
                    ? t->n_dims == 1 && t->dims[0] == all
                    : t->n_dims == 2 && t->dims[0] == all / n_experts && t->dims[1] == n_experts;
    if (!fits) {
        if (n_experts == 0)
            snprintf(expected, sizeof expected, "%u", all);
        else
            snprintf(expected, sizeof expected, "%u, %u", n_experts, all / n_experts);
        refuse_shape(p, t, expected);
        return;
    }
    if (!check_vector_type(p, t)) return;
    add_entry(p,
              (weight_entry){.tensor = t,
                             .tensor_at = first * (uint64_t)dtype_about(t->type).block_bytes,
                             .vector = v,
                             .rows = 1,
                             .cols = n},
              (size_t)n * sizeof(float));
}

static void plan_vector(planner *p, vec *v, const char *name, uint32_t n, bool required) {
    plan_slice(p, v, name, 0, n, n, 0, required);
}

/* "blk.3.attn_q.weight" */
static const char *name_of(uint32_t layer, const char *name, const char *what,
                           char out[GGUF_NAME_BYTES_MAX + 1]) {
    snprintf(out, GGUF_NAME_BYTES_MAX + 1, "blk.%u.%s.%s", layer, name, what);
    return out;
}

static bool has(planner *p, uint32_t layer, const char *name, const char *what) {
    char full[GGUF_NAME_BYTES_MAX + 1];
    tell_problem(p);
    return p->status == INFERD_OK &&
           gguf_find_tensor(p->g, name_of(layer, name, what, full)) != NULL;
}

/* q, k and v are tensors of their own, or one. */
static void plan_qkv(planner *p, const decoder_spec *s, decoder_layer *w, uint32_t i) {
    char name[GGUF_NAME_BYTES_MAX + 1];
    const uint32_t q_dim = s->n_heads * s->head_dim, kv_dim = s->n_kv_heads * s->head_dim;
    const uint32_t all = q_dim + 2 * kv_dim;
    bool one = !has(p, i, "attn_q", "weight") && has(p, i, "attn_qkv", "weight");
    const struct {
        weight *matrix;
        vec *bias;
        const char *name;
        uint32_t rows, first;
    } parts[] = {
        {&w->wq, &w->bq, "attn_q", q_dim, 0},
        {&w->wk, &w->bk, "attn_k", kv_dim, q_dim},
        {&w->wv, &w->bv, "attn_v", kv_dim, q_dim + kv_dim},
    };
    if (one)
        plan_parts(p, name_of(i, "attn_qkv", "weight", name),
                   (part[]){{&w->wq, q_dim}, {&w->wk, kv_dim}, {&w->wv, kv_dim}}, 3, s->dim);
    for (size_t j = 0; j < INFERD_COUNT(parts) && !one; j++)
        plan_matrix(p, parts[j].matrix, name_of(i, parts[j].name, "weight", name), parts[j].rows,
                    s->dim);
    one = !has(p, i, "attn_q", "bias") && has(p, i, "attn_qkv", "bias");
    for (size_t j = 0; j < INFERD_COUNT(parts); j++)
        plan_slice(p, parts[j].bias, name_of(i, one ? "attn_qkv" : parts[j].name, "bias", name),
                   one ? parts[j].first : 0, parts[j].rows, one ? all : parts[j].rows, 0,
                   s->qkv_bias);
}

/* Gate and up are tensors of their own, or one that is called up. */
static void plan_mlp(planner *p, const decoder_spec *s, decoder_layer *w, uint32_t i) {
    char name[GGUF_NAME_BYTES_MAX + 1];
    bool one = !has(p, i, "ffn_gate", "weight") && s->fused_gate_up;
    if (one)
        plan_parts(p, name_of(i, "ffn_up", "weight", name),
                   (part[]){{&w->w_gate, s->ffn_dim}, {&w->w_up, s->ffn_dim}}, 2, s->dim);
    if (!one)
        plan_matrix(p, &w->w_gate, name_of(i, "ffn_gate", "weight", name), s->ffn_dim, s->dim);
    if (!one) plan_matrix(p, &w->w_up, name_of(i, "ffn_up", "weight", name), s->ffn_dim, s->dim);
    plan_matrix(p, &w->w_down, name_of(i, "ffn_down", "weight", name), s->dim, s->ffn_dim);
    if (one) return;
    plan_vector(p, &w->b_gate, name_of(i, "ffn_gate", "bias", name), s->ffn_dim, false);
    plan_vector(p, &w->b_up, name_of(i, "ffn_up", "bias", name), s->ffn_dim, false);
    plan_vector(p, &w->b_down, name_of(i, "ffn_down", "bias", name), s->dim, false);
}

/* ---- experts ---- */

/* One matrix of each expert, in a tensor [n_experts, all_rows, cols]: rows from `first` on. */
static void plan_stack(planner *p, const decoder_spec *s, uint32_t layer, const char *name,
                       weight *w, uint32_t first, uint32_t rows, uint32_t all_rows, uint32_t cols) {
    char full[GGUF_NAME_BYTES_MAX + 1], expected[64];
    const gguf_tensor *t = find(p, name_of(layer, name, "weight", full), true);
    if (t == NULL) return;
    if (t->n_dims != 3 || t->dims[0] != cols || t->dims[1] != all_rows ||
        t->dims[2] != s->n_experts) {
        snprintf(expected, sizeof expected, "%u, %u, %u", s->n_experts, all_rows, cols);
        refuse_shape(p, t, expected);
        return;
    }
    if (!check_matrix_type(p, t)) return;
    for (uint32_t e = 0; e < s->n_experts; e++)
        plan_rows(p, t, (uint64_t)e * all_rows + first, &w[e], rows, cols, true);
}

/* Files of 2023 have a tensor for each expert: "blk.0.ffn_gate.7.weight". */
static void plan_each(planner *p, const decoder_spec *s, uint32_t layer, const char *name,
                      weight *w, uint32_t rows, uint32_t cols) {
    char full[GGUF_NAME_BYTES_MAX + 1], numbered[32], expected[64];
    for (uint32_t e = 0; e < s->n_experts; e++) {
        snprintf(numbered, sizeof numbered, "%s.%u", name, e);
        const gguf_tensor *t = find(p, name_of(layer, numbered, "weight", full), true);
        if (t == NULL) return;
        if (t->n_dims != 2 || t->dims[0] != cols || t->dims[1] != rows) {
            snprintf(expected, sizeof expected, "%u, %u", rows, cols);
            refuse_shape(p, t, expected);
            return;
        }
        if (e > 0 && t->type != p->plan->entries[p->plan->n - 1].tensor->type) {
            p->status =
                inferd_fail(p->err, INFERD_EUNSUPPORTED,
                            "%s: tensor %s has type %s, and that of expert %u %s; one type "
                            "for all experts is supported",
                            gguf_path_of(p->g, t), t->name, dtype_about(t->type).name, e - 1,
                            dtype_about(p->plan->entries[p->plan->n - 1].tensor->type).name);
            return;
        }
        if (!check_matrix_type(p, t)) return;
        plan_rows(p, t, 0, &w[e], rows, cols, true);
    }
}

static void plan_experts(planner *p, const decoder_spec *s, decoder_layer *w, uint32_t i,
                         weight *matrices) {
    char name[GGUF_NAME_BYTES_MAX + 1];
    const uint32_t n = s->n_experts;
    weight *gate = matrices, *up = gate + n, *down = up + n;
    expert_weights *x = &w->experts;
    *x = (expert_weights){.n_experts = n,
                          .n_used = s->n_experts_used,
                          .fn = s->act,
                          .gate = gate,
                          .up = up,
                          .down = down};
    plan_matrix(p, &w->w_router, name_of(i, "ffn_gate_inp", "weight", name), n, s->dim);
    plan_vector(p, &w->b_router, name_of(i, "ffn_gate_inp", "bias", name), n, s->expert_bias);
    if (!has(p, i, "ffn_gate_exps", "weight") && has(p, i, "ffn_gate_up_exps", "weight")) {
        plan_stack(p, s, i, "ffn_gate_up_exps", gate, 0, s->ffn_dim, 2 * s->ffn_dim, s->dim);
        plan_stack(p, s, i, "ffn_gate_up_exps", up, s->ffn_dim, s->ffn_dim, 2 * s->ffn_dim, s->dim);
        plan_stack(p, s, i, "ffn_down_exps", down, 0, s->dim, s->dim, s->ffn_dim);
    } else if (!has(p, i, "ffn_gate_exps", "weight") && has(p, i, "ffn_gate.0", "weight")) {
        plan_each(p, s, i, "ffn_gate", gate, s->ffn_dim, s->dim);
        plan_each(p, s, i, "ffn_up", up, s->ffn_dim, s->dim);
        plan_each(p, s, i, "ffn_down", down, s->dim, s->ffn_dim);
    } else {
        plan_stack(p, s, i, "ffn_gate_exps", gate, 0, s->ffn_dim, s->ffn_dim, s->dim);
        plan_stack(p, s, i, "ffn_up_exps", up, 0, s->ffn_dim, s->ffn_dim, s->dim);
        plan_stack(p, s, i, "ffn_down_exps", down, 0, s->dim, s->dim, s->ffn_dim);
    }
    const struct {
        vec *bias;
        const char *name;
        uint32_t rows;
    } biases[] = {
        {&x->gate_bias, "ffn_gate_exps", s->ffn_dim},
        {&x->up_bias, "ffn_up_exps", s->ffn_dim},
        {&x->down_bias, "ffn_down_exps", s->dim},
    };
    for (size_t j = 0; j < INFERD_COUNT(biases); j++)
        plan_slice(p, biases[j].bias, name_of(i, biases[j].name, "bias", name), 0,
                   n * biases[j].rows, n * biases[j].rows, n, s->expert_bias);
}

/* ---- a layer ---- */

static void plan_norms(planner *p, const decoder_spec *s, decoder_layer *w, uint32_t i) {
    char name[GGUF_NAME_BYTES_MAX + 1];
    bool whole = s->qk_norm == QK_NORM_ALL;
    const struct {
        vec *vector;
        const char *name;
        uint32_t n;
        bool wanted;
    } norms[] = {
        {&w->attn_norm, "attn_norm", s->dim, s->pre_norms},
        {&w->ffn_norm, s->ffn_norm_name, s->dim, s->pre_norms},
        {&w->q_norm, "attn_q_norm", s->head_dim * (whole ? s->n_heads : 1),
         s->qk_norm != QK_NORM_NONE},
        {&w->k_norm, "attn_k_norm", s->head_dim * (whole ? s->n_kv_heads : 1),
         s->qk_norm != QK_NORM_NONE},
        {&w->post_attn_norm, "post_attention_norm", s->dim, s->post_norms},
        {&w->post_ffn_norm, "post_ffw_norm", s->dim, s->post_norms},
        {&w->sinks, "attn_sinks", s->n_heads, s->sinks},
    };
    for (size_t j = 0; j < INFERD_COUNT(norms); j++)
        if (norms[j].wanted)
            plan_vector(p, norms[j].vector, name_of(i, norms[j].name, "weight", name), norms[j].n,
                        true);
}

static void plan_layer(planner *p, const decoder_spec *s, decoder_layer *w, uint32_t i,
                       weight *experts) {
    char name[GGUF_NAME_BYTES_MAX + 1];
    plan_norms(p, s, w, i);
    plan_qkv(p, s, w, i);
    plan_matrix(p, &w->wo, name_of(i, "attn_output", "weight", name), s->dim,
                s->n_heads * s->head_dim);
    plan_vector(p, &w->bo, name_of(i, "attn_output", "bias", name), s->dim, s->out_bias);
    if (s->n_experts > 0)
        plan_experts(p, s, w, i, experts);
    else
        plan_mlp(p, s, w, i);
}

static void plan_ends(planner *p, const decoder_spec *s, decoder_weights *w) {
    plan_matrix(p, &w->embed, "token_embd.weight", s->n_vocab, s->dim);
    plan_vector(p, &w->norm, "output_norm.weight", s->dim, true);
    if (!s->tied) plan_matrix(p, &w->head, "output.weight", s->n_vocab, s->dim);
}

/* Divisors of rotary frequencies: arch/rope.c reads them, of LongRoPE's two one. */
static bool divides_rotation(const decoder_spec *s, const char *name) {
    if (s->rope_scaling != ROPE_LONG) return strcmp(name, "rope_freqs.weight") == 0;
    return strcmp(name, "rope_factors_long.weight") == 0 ||
           strcmp(name, "rope_factors_short.weight") == 0;
}

/* Every tensor of the file is in the plan, is read elsewhere or is harmless: an unread tensor would
 * be a part of the model that is left out. */
static void check_all_are_read(planner *p, const decoder_spec *s) {
    tell_problem(p);
    for (size_t i = 0; i < gguf_n_tensors(p->g) && p->status == INFERD_OK; i++) {
        const gguf_tensor *t = gguf_tensor_at(p->g, i);
        if (p->read[i] || divides_rotation(s, t->name)) continue;
        p->plan->n_unused++;
        if (!decoder_tensor_is_harmless(s, t->name))
            p->status = inferd_fail(
                p->err, INFERD_EUNSUPPORTED,
                "%s: tensor %s is not known for architecture %s, so it cannot be applied",
                gguf_path_of(p->g, t), t->name, s->architecture);
        p->looked_up = t;
        tell_problem(p);
    }
}

inferd_status weights_examine(const gguf *g, const backend *be, const decoder_spec *s,
                              weight_problem *tell, void *ctx, decoder_weights *out,
                              weight_plan *plan, inferd_err *err) {
    *out = (decoder_weights){0};
    *plan = (weight_plan){0};
    out->layers = calloc(s->n_layers, sizeof *out->layers);
    if (out->layers == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u layers", s->n_layers);
    const size_t of_layer = (size_t)3 * s->n_experts;
    if (of_layer > 0) out->experts = calloc(s->n_layers * of_layer, sizeof *out->experts);
    planner p = {.g = g, .be = be, .plan = plan, .err = err, .tell = tell, .ctx = ctx};
    p.read = calloc(size_max(gguf_n_tensors(g), 1), sizeof *p.read);
    if (p.read == NULL)
        p.status = inferd_fail(err, INFERD_ENOMEM, "no memory for a list of %zu tensors",
                               gguf_n_tensors(g));
    if (of_layer > 0 && out->experts == NULL)
        p.status = inferd_fail(err, INFERD_ENOMEM, "no memory for %u layers of %u experts",
                               s->n_layers, s->n_experts);
    plan_ends(&p, s, out);
    tell_problem(&p);
    for (uint32_t i = 0; i < s->n_layers && p.status == INFERD_OK; i++) {
        p.unit = 1 + i;
        plan_layer(&p, s, &out->layers[i], i, of_layer > 0 ? out->experts + i * of_layer : NULL);
        tell_problem(&p);
    }
    check_all_are_read(&p, s);
    free(p.read);
    if (p.status != INFERD_OK) weights_deinit(out, plan);
    return p.status;
}

inferd_status weights_plan(const gguf *g, const backend *be, const decoder_spec *s,
                           decoder_weights *out, weight_plan *plan, inferd_err *err) {
    return weights_examine(g, be, s, NULL, NULL, out, plan, err);
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
    free(w->experts);
    free(plan->entries);
    *w = (decoder_weights){0};
    *plan = (weight_plan){0};
}

/* -- binding -- */

size_t weight_entry_row_bytes(const weight_entry *e) {
    dtype_info info = dtype_about(e->tensor->type);
    return (size_t)(e->cols / info.block_elems) * info.block_bytes;
}

uint64_t weight_entry_file_offset(const weight_entry *e) {
    return e->tensor->file_offset + e->tensor_at;
}

void weight_entry_name(const gguf *g, const weight_entry *e, inferd_err *err) {
    const char *path = gguf_path_of(g, e->tensor), *name = e->tensor->name;
    uint64_t n_before = e->tensor_at / weight_entry_row_bytes(e);
    if (n_before == 0)
        inferd_context(err, "%s: tensor %s", path, name);
    else
        inferd_context(err, "%s: tensor %s, in its rows from %llu on", path, name,
                       (unsigned long long)n_before);
}

uint64_t weight_entry_seed(const weight_entry *e, uint64_t seed) {
    return dummy_seed(e->tensor->name, seed) ^ dummy_mix(e->tensor_at);
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
        if (plan->entries[i].matrix != NULL && !plan->entries[i].expert)
            matrices[n++] = plan->entries[i].matrix;
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
            be_weight_dummy(be, e->matrix, weight_entry_seed(e, seed),
                            dummy_scale(name, s->n_layers));
    }
}
