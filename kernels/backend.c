/* backend.c - the face of a device: hands on to its table, keeps the first failure.
 *
 * Thread: engine. */
#include "kernels/backend.h"

#include "backend_ops.h"

inferd_status backend_open(const backend_options *options, backend **out, inferd_err *err) {
    *out = NULL;
    if (options->kind == NULL || strcmp(options->kind, "cpu") == 0)
        return cpu_open(options, out, err);
    return inferd_fail(err, INFERD_EUNSUPPORTED, "no backend \"%s\" in this build, only \"cpu\"",
                       options->kind);
}

void backend_close(backend *be) {
    if (be != NULL) be->ops->close(be);
}

/* ---- failing ---- */

void backend_fail(backend *be, inferd_status status, const char *format, ...) {
    if (be->failure.status != INFERD_OK) return;
    be->failure.status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(be->failure.text, sizeof be->failure.text, format, args);
    va_end(args);
}

void backend_fail_at(backend *be, uint32_t n_ops) {
    be->fail_at = n_ops;
}

/* May the operation `name` run? */
static bool ready(backend *be, const char *name) {
    if (be->failure.status != INFERD_OK) return false;
    if (be->fail_at == 0 || --be->fail_at > 0) return true;
    backend_fail(be, INFERD_EDEVICE, "%s: a test made this operation fail", name);
    return false;
}

inferd_status be_sync(backend *be, inferd_err *err) {
    be->ops->sync(be);
    inferd_status s = be->failure.status;
    if (s == INFERD_OK) return INFERD_OK;
    if (err != NULL) *err = be->failure;
    be->failure = (inferd_err){0};
    return s;
}

/* ---- the device and its pages ---- */

const char *be_name(const backend *be) {
    return be->ops->name(be);
}
uint32_t be_depth(const backend *be) {
    return be->ops->depth(be);
}
uint32_t be_n_threads(const backend *be) {
    return be->ops->n_threads(be);
}
void be_get_stats(const backend *be, backend_stats *out) {
    be->ops->get_stats(be, out);
}
uint32_t be_n_pages(const backend *be) {
    return be->ops->n_pages(be);
}
size_t be_page_bytes(const backend *be) {
    return be->ops->page_bytes(be);
}

/* A window begins with its table, because be_window_base is asked without the backend. */
inferd_status be_window_open(backend *be, size_t n_bytes, be_window **out, inferd_err *err) {
    return be->ops->window_open(be, n_bytes, out, err);
}
void be_window_close(backend *be, be_window *w) {
    if (w != NULL) be->ops->window_close(be, w);
}
void *be_window_base(const be_window *w) {
    return (*(const backend_ops *const *)(const void *)w)->window_base(w);
}
inferd_status be_window_map(backend *be, be_window *w, const uint32_t *pages, uint32_t n_pages,
                            inferd_err *err) {
    return be->ops->window_map(be, w, pages, n_pages, err);
}
inferd_status be_window_unmap(backend *be, be_window *w, inferd_err *err) {
    return be->ops->window_unmap(be, w, err);
}
size_t be_kv_layer_bytes(const backend *be, kv_type type, uint32_t n_kv_heads, uint32_t head_dim,
                         uint32_t block_tokens) {
    return be->ops->kv_layer_bytes(be, type, n_kv_heads, head_dim, block_tokens);
}

/* ---- weights and activations ---- */

bool be_weight_supported(const backend *be, dtype type) {
    return be->ops->weight_supported(be, type);
}
size_t be_weight_bytes(const backend *be, dtype type, uint32_t rows, uint32_t cols) {
    return be->ops->weight_bytes(be, type, rows, cols);
}
void be_weight_init(backend *be, weight *w, dtype type, uint32_t rows, uint32_t cols, void *dst) {
    be->ops->weight_init(be, w, type, rows, cols, dst);
}
void be_weight_prepare(backend *be, weight *w, const void *rows, uint32_t row_begin,
                       uint32_t n_rows) {
    be->ops->weight_prepare(be, w, rows, row_begin, n_rows);
}
void be_vec_init(backend *be, vec *v, uint32_t n, void *dst) {
    be->ops->vec_init(be, v, n, dst);
}
void be_vec_load(backend *be, vec *v, const float *host) {
    be->ops->vec_load(be, v, host);
}
act *be_act_open(backend *be, uint32_t rows_max, uint32_t dim) {
    return be->ops->act_open(be, rows_max, dim);
}
void be_act_close(backend *be, act *a) {
    if (a != NULL) be->ops->act_close(be, a);
}

/* ---- one step ---- */

void be_step_begin(backend *be, const batch *b, const kv_layout *kv) {
    if (ready(be, "step_begin")) be->ops->step_begin(be, b, kv);
}
void be_embed(backend *be, act *out, const weight *table, float scale) {
    if (ready(be, "embed")) be->ops->embed(be, out, table, scale);
}
void be_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps) {
    if (ready(be, "rmsnorm")) be->ops->rmsnorm(be, out, x, w, n, eps);
}
void be_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias, uint32_t n) {
    if (ready(be, "matmul")) be->ops->matmul(be, out, x, w, bias, n);
}
void be_rope(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads, uint32_t n_kv_heads,
             uint32_t head_dim) {
    if (ready(be, "rope")) be->ops->rope(be, q, k, r, n_heads, n_kv_heads, head_dim);
}
void be_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                  uint32_t layer_idx, const attn_spec *spec) {
    if (ready(be, "attention")) be->ops->attention(be, out, q, k, v, layer_idx, spec);
}
void be_silu_mul(backend *be, act *out, const act *gate, const act *up, uint32_t n, uint32_t dim) {
    if (ready(be, "silu_mul")) be->ops->silu_mul(be, out, gate, up, n, dim);
}
void be_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim) {
    if (ready(be, "add")) be->ops->add(be, x, y, n, dim);
}
void be_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim) {
    if (ready(be, "take_logit_rows")) be->ops->take_logit_rows(be, out, x, dim);
}

const float *be_act_host(backend *be, const act *a) {
    return be->ops->act_host(be, a);
}
void be_event_record(backend *be, uint32_t event) {
    INFERD_CHECK(event < BE_EVENTS);
    be->ops->event_record(be, event);
}
uint64_t be_event_elapsed_us(const backend *be, uint32_t begin, uint32_t end) {
    INFERD_CHECK(begin < BE_EVENTS && end < BE_EVENTS);
    return be->ops->event_elapsed_us(be, begin, end);
}
void be_parallel(backend *be, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx) {
    be->ops->parallel(be, n, f, ctx);
}
