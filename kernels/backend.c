/* backend.c - calls the function table of a device and keeps the first failure.
 *
 * Thread: engine. */
#include "kernels/backend.h"

#include "backend_ops.h"

inferd_status backend_open(const backend_options *options, backend **out, inferd_err *err) {
    *out = NULL;
    if (options->kind == NULL || strcmp(options->kind, "cpu") == 0)
        return cpu_open(options, out, err);
    if (strcmp(options->kind, "cuda") == 0) return cuda_open(options, out, err);
    return inferd_fail(err, INFERD_EUNSUPPORTED, "no backend \"%s\", only \"cpu\" and \"cuda\"",
                       options->kind);
}

inferd_status backend_list_devices(const backend_options *options, backend_device_about *out,
                                   uint32_t *n, inferd_err *err) {
    *n = 0;
    if (options->kind != NULL && strcmp(options->kind, "cuda") == 0)
        return cuda_list_devices(options, out, n, err);
    return cpu_list_devices(options, out, n, err);
}

inferd_status backend_list_parts(const backend_options *options, uint32_t index,
                                 be_device_part out[BE_DEVICE_PARTS_MAX], uint32_t *n,
                                 inferd_err *err) {
    *n = 0;
    bool cuda = options->kind != NULL && strcmp(options->kind, "cuda") == 0;
    return cuda ? cuda_list_parts(options, index, out, n, err) : INFERD_OK;
}

inferd_status backend_look(const backend_options *options, bool inside, backend_device_about *out,
                           inferd_err *err) {
    uint32_t n;
    if (options->kind != NULL && strcmp(options->kind, "cuda") == 0)
        return cuda_look_device(options, inside, out, err);
    return cpu_list_devices(options, out, &n, err);
}

uint32_t backend_list_instances(const backend_options *options, uint32_t n_max,
                                backend_instance *out) {
    bool cuda = options->kind != NULL && strcmp(options->kind, "cuda") == 0;
    return cuda ? cuda_list_instances(options, n_max, out) : 0;
}

uint64_t backend_workspace_bytes(const backend_options *options, const be_needs *needs,
                                 uint32_t n) {
    bool cuda = options->kind != NULL && strcmp(options->kind, "cuda") == 0;
    return cuda ? cuda_workspace_bytes(options, needs, n) : 0;
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
    return be_check(be, err);
}

inferd_status be_check(backend *be, inferd_err *err) {
    inferd_status s = be->failure.status;
    if (s == INFERD_OK) return INFERD_OK;
    if (err != NULL) *err = be->failure;
    be->failure = (inferd_err){0};
    return s;
}

/* ---- steps ---- */

void be_step_begin(backend *be, const batch *b, const kv_layout *kv) {
    if (ready(be, "step_begin")) be->ops->step_begin(be, b, kv);
}

/* A failure while the step was recorded belongs to it, not to the steps before it. */
void be_step_end(backend *be) {
    INFERD_CHECK(be->n_steps < BE_STEPS_MAX);
    be->ops->step_end(be, be->failure.status != INFERD_OK);
    be->step_failure[(be->step_first + be->n_steps++) % BE_STEPS_MAX] = be->failure;
    be->failure = (inferd_err){0};
}

inferd_status be_step_finish(backend *be, be_step_result *out, inferd_err *err) {
    INFERD_CHECK(be->n_steps > 0);
    *out = (be_step_result){0};
    inferd_err failure = be->step_failure[be->step_first];
    be->step_first = (be->step_first + 1) % BE_STEPS_MAX;
    be->n_steps--;
    if (failure.status == INFERD_OK) {
        be->ops->step_finish(be, out);
        failure = be->failure;
        be->failure = (inferd_err){0};
    }
    if (failure.status != INFERD_OK && err != NULL) *err = failure;
    return failure.status;
}

/* ---- the device and its pages ---- */

const char *be_name(const backend *be) {
    return be->ops->name(be);
}
const char *be_warning(const backend *be) {
    return be->ops->warning != NULL ? be->ops->warning(be) : "";
}
uint32_t be_depth(const backend *be) {
    return be->ops->depth(be);
}
uint32_t be_n_threads(const backend *be) {
    return be->ops->n_threads(be);
}
uint32_t be_rows_best(const backend *be) {
    return be->ops->rows_best != NULL ? be->ops->rows_best(be) : 0;
}
uint32_t be_rows_default(const backend *be) {
    return be->ops->rows_default != NULL ? be->ops->rows_default(be) : 0;
}
void be_get_stats(const backend *be, backend_stats *out) {
    be->ops->get_stats(be, out);
}
const char *be_part_state_name(be_part_state state) {
    static const char *const names[] = {[BE_PART_ON] = "on",
                                        [BE_PART_OFF] = "off",
                                        [BE_PART_ABSENT] = "absent",
                                        [BE_PART_DEGRADED] = "degraded"};
    return names[state];
}
uint32_t be_get_profile(const backend *be, be_part out[BE_PARTS_MAX]) {
    return be->ops->get_profile != NULL ? be->ops->get_profile(be, out) : 0;
}
uint32_t be_n_pages(const backend *be) {
    return be->ops->n_pages(be);
}
size_t be_page_bytes(const backend *be) {
    return be->ops->page_bytes(be);
}

uint32_t be_n_pages_ready(const backend *be) {
    return be->ops->n_pages_ready != NULL ? be->ops->n_pages_ready(be) : be->ops->n_pages(be);
}
uint32_t be_n_pages_warm(const backend *be) {
    return be->ops->n_pages_warm != NULL ? be->ops->n_pages_warm(be) : be_n_pages_ready(be);
}
uint32_t be_extent_pages(const backend *be) {
    return be->ops->extent_pages != NULL ? be->ops->extent_pages(be) : 1;
}
bool be_one_memory(const backend *be) {
    return be->ops->window_grow != NULL;
}
uint32_t be_n_host_pages(const backend *be) {
    return be->ops->n_host_pages != NULL ? be->ops->n_host_pages(be) : 0;
}
void be_kv_move(backend *be, const kv_layout *kv, uint32_t n, const int32_t *from,
                const int32_t *to, bool to_host) {
    be->ops->kv_move(be, kv, n, from, to, to_host);
}

unsigned char *be_kv_slot(backend *be, const kv_layout *kv, int32_t slot) {
    return be->ops->kv_slot(be, kv, slot);
}
uint32_t be_n_swap_pages(const backend *be) {
    return be->ops->n_swap_pages != NULL ? be->ops->n_swap_pages(be) : 0;
}
uint32_t be_swap_extent_pages(const backend *be) {
    return be->ops->swap_extent_pages != NULL ? be->ops->swap_extent_pages(be) : 1;
}
void be_swap_empty(backend *be, uint32_t first_page) {
    if (be->ops->swap_empty != NULL) be->ops->swap_empty(be, first_page);
}
void be_page_zero(backend *be, uint32_t page, size_t begin, size_t n_bytes) {
    be->ops->page_zero(be, page, begin, n_bytes);
}

void be_page_touch(backend *be, uint32_t page) {
    if (be->ops->page_touch != NULL) be->ops->page_touch(be, page);
}

/* A window begins with its function table, because some calls do not pass the backend. */
static const backend_ops *ops_of(const be_window *w) {
    return *(const backend_ops *const *)(const void *)w;
}

inferd_status be_window_open(backend *be, size_t n_bytes, be_window **out, inferd_err *err) {
    return be->ops->window_open(be, n_bytes, out, err);
}
void be_window_close(backend *be, be_window *w) {
    if (w != NULL) be->ops->window_close(be, w);
}
void *be_window_base(const be_window *w) {
    return ops_of(w)->window_base(w);
}
inferd_status be_window_map(backend *be, be_window *w, const uint32_t *pages, uint32_t n_pages,
                            inferd_err *err) {
    return be->ops->window_map(be, w, pages, n_pages, err);
}
inferd_status be_window_unmap(backend *be, be_window *w, inferd_err *err) {
    return be->ops->window_unmap(be, w, err);
}
inferd_status be_window_grow(backend *be, be_window *w, const uint32_t *pages, uint32_t n_pages,
                             inferd_err *err) {
    INFERD_CHECK(be_one_memory(be));
    return be->ops->window_grow(be, w, pages, n_pages, err);
}
inferd_status be_window_host_take(backend *be, be_window *w, inferd_err *err) {
    if (be->ops->window_host_take == NULL) return INFERD_OK;
    return be->ops->window_host_take(be, w, err);
}
void be_window_host_give(backend *be, be_window *w) {
    if (be->ops->window_host_give != NULL) be->ops->window_host_give(be, w);
}
void *be_window_host(const be_window *w) {
    return ops_of(w)->window_host != NULL ? ops_of(w)->window_host(w) : be_window_base(w);
}
void be_window_upload(backend *be, be_window *w, size_t begin, size_t end) {
    if (be->ops->window_upload != NULL && be->failure.status == INFERD_OK)
        be->ops->window_upload(be, w, begin, end);
}
void be_window_download(backend *be, be_window *w, size_t begin, size_t end) {
    if (be->ops->window_download != NULL && be->failure.status == INFERD_OK)
        be->ops->window_download(be, w, begin, end);
}
void be_window_host_pass(backend *be, be_window *w, size_t end) {
    if (be->ops->window_host_pass != NULL) be->ops->window_host_pass(be, w, end);
}
size_t be_window_n_pending(backend *be, const be_window *w) {
    return be->ops->window_n_pending != NULL ? be->ops->window_n_pending(be, w) : 0;
}
kv_type be_kv_preferred(const backend *be) {
    return be->ops->kv_preferred != NULL ? be->ops->kv_preferred(be) : KV_F16;
}
size_t be_kv_layer_bytes(const backend *be, kv_type type, uint32_t n_kv_heads, uint32_t head_dim,
                         uint32_t block_tokens) {
    return be->ops->kv_layer_bytes(be, type, n_kv_heads, head_dim, block_tokens);
}

/* ---- weights and activations ---- */

bool be_weight_supported(const backend *be, dtype type) {
    return be->ops->weight_supported(be, type);
}
const char *be_weight_math(const backend *be, dtype type) {
    return be->ops->weight_math != NULL ? be->ops->weight_math(be, type) : "";
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
inferd_status be_weight_prepare_part(const backend *be, const weight *w, const void *rows,
                                     uint32_t row_begin, uint32_t n_rows, inferd_err *err) {
    return be->ops->weight_prepare_part(be, w, rows, row_begin, n_rows, err);
}
void be_weight_dummy(backend *be, weight *w, uint64_t seed, float scale) {
    if (be->failure.status == INFERD_OK) be->ops->weight_dummy(be, w, seed, scale);
}
void be_weight_dummy_rows(backend *be, weight *w, uint64_t seed, float scale, uint32_t row_begin,
                          uint32_t n_rows) {
    INFERD_CHECK(be_one_memory(be));
    if (be->failure.status == INFERD_OK)
        be->ops->weight_dummy_rows(be, w, seed, scale, row_begin, n_rows);
}
const char *be_weight_layout(const backend *be) {
    return be->ops->weight_layout(be);
}
void be_tune(backend *be, const weight *const *weights, uint32_t n) {
    if (be->ops->tune != NULL && be->failure.status == INFERD_OK) be->ops->tune(be, weights, n);
}
void be_vec_init(backend *be, vec *v, uint32_t n, void *dst) {
    be->ops->vec_init(be, v, n, dst);
}
void be_vec_load(backend *be, vec *v, const float *host) {
    be->ops->vec_load(be, v, host);
}
void be_vec_fill(backend *be, vec *v, float value) {
    if (be->failure.status == INFERD_OK) be->ops->vec_fill(be, v, value);
}
inferd_status be_reserve(backend *be, const be_needs *n, be_reservation **out, inferd_err *err) {
    *out = NULL;
    return be->ops->reserve != NULL ? be->ops->reserve(be, n, out, err) : INFERD_OK;
}
void be_release(backend *be, be_reservation *r) {
    if (r != NULL) be->ops->release(be, r);
}
void be_scratch_begin(backend *be) {
    be->ops->scratch_begin(be);
}
void be_scratch_end(backend *be) {
    be->ops->scratch_end(be);
}
act *be_act_open(backend *be, act_kind kind, uint32_t rows_max, uint32_t dim) {
    return be->ops->act_open(be, kind, rows_max, dim);
}
void be_act_close(backend *be, act *a) {
    if (a != NULL) be->ops->act_close(be, a);
}

/* ---- one step ---- */

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
                  uint32_t layer_idx, const attn_spec *spec, const vec *sinks) {
    if (ready(be, "attention")) be->ops->attention(be, out, q, k, v, layer_idx, spec, sinks);
}
void be_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                  uint32_t head_dim, float eps) {
    if (ready(be, "head_norm")) be->ops->head_norm(be, x, w, n, n_heads, head_dim, eps);
}
void be_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
            uint32_t dim) {
    if (ready(be, "glu")) be->ops->glu(be, fn, out, gate, up, n, dim);
}
void be_experts(backend *be, act *out, const act *x, const act *logits, const expert_weights *w,
                act *hidden, act *parts, uint32_t n) {
    INFERD_CHECK(w->n_used >= 1 && w->n_used <= w->n_experts && w->n_used <= BE_EXPERTS_USED_MAX &&
                 w->n_experts <= BE_EXPERTS_MAX);
    if (ready(be, "experts")) be->ops->experts(be, out, x, logits, w, hidden, parts, n);
}
void be_scale(backend *be, act *out, const act *x, uint32_t n, uint32_t dim, float factor) {
    if (ready(be, "scale")) be->ops->scale(be, out, x, n, dim, factor);
}
void be_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim) {
    if (ready(be, "add")) be->ops->add(be, x, y, n, dim);
}
void be_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim) {
    if (ready(be, "take_logit_rows")) be->ops->take_logit_rows(be, out, x, dim);
}
void be_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap) {
    if (ready(be, "softcap")) be->ops->softcap(be, x, n, dim, cap);
}

bool be_can_draw(const backend *be) {
    return be->ops->draw != NULL;
}
void be_draw(backend *be, const act *logits, const sample_row *rows, uint32_t n, uint32_t n_vocab) {
    INFERD_CHECK(be->ops->draw != NULL);
    if (ready(be, "draw")) be->ops->draw(be, logits, rows, n, n_vocab);
}
bool be_can_draw_later(const backend *be) {
    return be->ops->step_draw != NULL;
}
void be_step_draw(backend *be, const sample_row *rows) {
    INFERD_CHECK(be->n_steps > 0);
    inferd_err *failure = &be->step_failure[(be->step_first + be->n_steps - 1) % BE_STEPS_MAX];
    if (failure->status != INFERD_OK) return; // nothing of it was launched
    be->ops->step_draw(be, rows); // also after a failure since then, for example of a copy
    *failure = be->failure;
    be->failure = (inferd_err){0};
}
void be_want_logits(backend *be, const act *logits, uint32_t n) {
    if (ready(be, "want_logits")) be->ops->want_logits(be, logits, n);
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
void be_thread_beside(const backend *be) {
    if (be->ops->thread_beside != NULL) be->ops->thread_beside(be);
}
