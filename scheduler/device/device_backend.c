/* device_backend.c - a backend, the forward pass of its models, and the sampler.
 *
 * launch starts the step and finish waits for it; the backend's depth limits how many may be on
 * their way.  A backend that draws (be_can_draw) feeds its tokens to the next step itself.  For
 * other backends, finish draws on the backend's threads: worker i takes draws i, i + n_workers, ...
 * with its own sampler; a draw depends only on its row, so the split does not change results. */
#include <string.h>

#include "device.h"
#include "inferd/clock.h"
#include "models/model.h"
#include "models/sampler.h"
#include "prefix.h"
#include "scheduler/pulse.h"

/* A slot: empty while m is NULL. */
typedef struct served_model {
    model *m;           // borrowed
    bound_model *bound; // owned; NULL: it computes with the bound model of slot same_as
    uint32_t same_as;
    device_limits limits;
    uint32_t n_vocab;   // ids that may be drawn: rows of the head that the tokenizer knows
    tok_id *end_ids;    // owned
    sampler **samplers; // [n_workers] owned
    uint32_t n_workers;
} served_model;

typedef struct backend_device {
    backend_options options; // its strings are owned
    backend *be;
    served_model *slots; // [n_slots] owned
    uint32_t n_slots;
    uint32_t n_launched;
    sample_row *rows; // [n_rows_max] of the step being launched; owned
    uint32_t n_rows_max;
} backend_device;

enum { OPTION_STRINGS = 8 };

static void list_strings(backend_options *o, const char **out[OPTION_STRINGS]) {
    const char **all[OPTION_STRINGS] = {&o->kind,        &o->cores,       &o->uuid,
                                        &o->activations, &o->module_path, &o->cublaslt_path,
                                        &o->tune_path,   &o->off};
    memcpy(out, all, sizeof all);
}

/* Copies the caller's strings.  False: no memory; the strings copied so far are owned. */
static bool own_strings(backend_options *o) {
    const char **strings[OPTION_STRINGS];
    bool ok = true;
    list_strings(o, strings);
    for (size_t i = 0; i < OPTION_STRINGS; i++) {
        if (*strings[i] == NULL) continue;
        *strings[i] = strdup(*strings[i]);
        ok &= *strings[i] != NULL;
    }
    return ok;
}

static void empty_slot(served_model *s) {
    bound_close(s->bound);
    for (uint32_t i = 0; i < s->n_workers; i++) sampler_destroy(s->samplers[i]);
    free(s->samplers);
    free(s->end_ids);
    *s = (served_model){.same_as = DEVICE_OWN};
}

static void backend_device_close(void *self) {
    backend_device *d = self;
    if (d == NULL) return;
    for (uint32_t i = 0; d->slots != NULL && i < d->n_slots; i++) empty_slot(&d->slots[i]);
    backend_close(d->be);
    free(d->slots);
    free(d->rows);
    const char **strings[OPTION_STRINGS];
    list_strings(&d->options, strings);
    for (size_t i = 0; i < OPTION_STRINGS; i++) free((char *)*strings[i]);
    free(d);
}

static inferd_status backend_device_open(void *self, device_about *out, inferd_err *err) {
    backend_device *d = self;
    inferd_status status = backend_open(&d->options, &d->be, err);
    if (status != INFERD_OK) return status;
    *out = (device_about){.n_ready = be_n_pages_ready(d->be), // first: n_pages may shrink to it
                          .n_pages = be_n_pages(d->be),
                          .n_host_pages = be_n_host_pages(d->be),
                          .one_memory = be_one_memory(d->be),
                          .n_swap_pages = be_n_swap_pages(d->be),
                          .swap_extent_pages = be_swap_extent_pages(d->be),
                          .page_bytes = be_page_bytes(d->be),
                          .extent_pages = be_extent_pages(d->be),
                          .depth = be_depth(d->be),
                          .draws = be_can_draw(d->be),
                          .rows_best = be_rows_best(d->be),
                          .rows_default = be_rows_default(d->be)};
    out->n_ready = u32_min(out->n_ready, out->n_pages);
    backend_stats stats;
    be_get_stats(d->be, &stats);
    out->bus_bytes_per_s = stats.bus_bytes_per_s;
    snprintf(out->warning, sizeof out->warning, "%s", be_warning(d->be));
    snprintf(out->name, sizeof out->name, "%s, %u threads", be_name(d->be), be_n_threads(d->be));
    return INFERD_OK;
}

static void backend_device_pages(void *self, device_pages *out) {
    backend_device *d = self;
    out->n_warm = be_n_pages_warm(d->be); // first: each may outgrow an earlier reading of the next
    out->n_ready = be_n_pages_ready(d->be);
    out->n_pages = u32_max(be_n_pages(d->be), out->n_ready);
}

static bound_model *bound_of(const backend_device *d, uint32_t idx) {
    const served_model *s = &d->slots[idx];
    return s->same_as == DEVICE_OWN ? s->bound : d->slots[s->same_as].bound;
}

static void backend_device_detach(void *self, uint32_t idx) {
    backend_device *d = self;
    for (uint32_t i = 0; i < d->n_slots; i++) // members of its weight group leave before it
        INFERD_CHECK(d->slots[i].m == NULL || d->slots[i].same_as != idx);
    empty_slot(&d->slots[idx]);
}

static void backend_device_hand_over(void *self, uint32_t from, uint32_t to) {
    backend_device *d = self;
    served_model *s = &d->slots[to];
    INFERD_CHECK(s->same_as == from && d->slots[from].bound != NULL);
    bound_read_from(d->slots[from].bound, s->m);
    s->bound = d->slots[from].bound;
    d->slots[from].bound = NULL;
    for (uint32_t i = 0; i < d->n_slots; i++)
        if (d->slots[i].m != NULL && d->slots[i].same_as == from) d->slots[i].same_as = to;
    d->slots[from].same_as = to;
    s->same_as = DEVICE_OWN;
}

/* The ids that end a generation, found once so that a step need not ask the tokenizer. */
static inferd_status collect_end_ids(served_model *s, uint32_t *n, inferd_err *err) {
    const tokenizer *t = model_tokenizer(s->m);
    *n = 0;
    for (uint32_t id = 0; id < s->n_vocab; id++) *n += tok_is_end(t, (tok_id)id);
    s->end_ids = malloc(size_max(*n, 1) * sizeof *s->end_ids);
    if (s->end_ids == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u end ids", *n);
    uint32_t i = 0;
    for (uint32_t id = 0; id < s->n_vocab && i < *n; id++)
        if (tok_is_end(t, (tok_id)id)) s->end_ids[i++] = (tok_id)id;
    return INFERD_OK;
}

static inferd_status open_samplers(served_model *s, uint32_t n_workers, inferd_err *err) {
    s->samplers = calloc(n_workers, sizeof *s->samplers);
    if (s->samplers == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for samplers");
    for (; s->n_workers < n_workers; s->n_workers++) {
        s->samplers[s->n_workers] = sampler_create(s->n_vocab);
        if (s->samplers[s->n_workers] == NULL)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for a sampler of %u tokens",
                               s->n_vocab);
    }
    return INFERD_OK;
}

static inferd_status hold_rows(backend_device *d, uint32_t n, inferd_err *err) {
    if (n <= d->n_rows_max) return INFERD_OK;
    sample_row *rows = realloc(d->rows, n * sizeof *rows);
    if (rows == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u rows to draw", n);
    d->rows = rows;
    d->n_rows_max = n;
    return INFERD_OK;
}

static inferd_status backend_device_weigh(const void *self, const model *m, uint32_t *n_pages,
                                          uint64_t *n_bytes, inferd_err *err) {
    const backend_device *d = self;
    return model_weigh(m, d->be, n_pages, n_bytes, err);
}

/* A hash of all that its keys and values depend on: the file, its computation here, their type. */
static void describe_content(const backend_device *d, const served_model *s, uint64_t out[2]) {
    static const uint64_t key[2] = {0}; // not secret
    struct {
        uint64_t model[2];
        char device[64], weights[64], math[256];
        uint64_t kv_type;
    } what = {0};
    const bound_model *p = s->bound != NULL ? s->bound : d->slots[s->same_as].bound;
    model_content(s->m, what.model);
    snprintf(what.device, sizeof what.device, "%s", be_name(d->be));
    snprintf(what.weights, sizeof what.weights, "%s", be_weight_layout(d->be));
    bound_describe_math(p, what.math, sizeof what.math);
    what.kv_type = (uint64_t)bound_kv(p)->type;
    uint64_t words[sizeof what / sizeof(uint64_t)];
    memcpy(words, &what, sizeof words);
    memcpy(out, prefix_hash(key, words, INFERD_COUNT(words)).h, 2 * sizeof *out);
}

static bool same_limits(const device_limits *a, const device_limits *b) {
    return a->rows_max == b->rows_max && a->logits_max == b->logits_max && a->kv == b->kv;
}

static inferd_status bind(backend_device *d, served_model *s, inferd_err *err) {
    model_limits limits = {s->limits.rows_max, s->limits.logits_max, s->limits.kv};
    if (s->same_as == DEVICE_OWN) return bound_open(s->m, d->be, &limits, &s->bound, err);
    const served_model *other = &d->slots[s->same_as];
    INFERD_CHECK(s->same_as < d->n_slots && other->bound != NULL &&
                 same_limits(&s->limits, &other->limits));
    return INFERD_OK;
}

static inferd_status backend_device_attach(void *self, uint32_t idx, model *m, uint32_t same_as,
                                           const device_limits *limits, device_model *out,
                                           inferd_err *err) {
    backend_device *d = self;
    served_model *s = &d->slots[idx];
    const model_info *about = model_about(m);
    uint32_t n_workers = u32_max(u32_min(be_n_threads(d->be), limits->logits_max), 1);
    uint32_t n_end_ids = 0;
    INFERD_CHECK(s->m == NULL);
    s->m = m;
    s->same_as = same_as;
    s->limits = *limits;
    s->n_vocab = (uint32_t)size_min(tok_n_vocab(model_tokenizer(m)), about->n_vocab);
    inferd_status status = bind(d, s, err);
    if (status == INFERD_OK) status = collect_end_ids(s, &n_end_ids, err);
    if (status == INFERD_OK) status = hold_rows(d, limits->logits_max, err);
    if (status == INFERD_OK && !be_can_draw(d->be)) status = open_samplers(s, n_workers, err);
    if (status != INFERD_OK) {
        empty_slot(s);
        return status;
    }
    *out = (device_model){.spec = {.kv = *bound_kv(bound_of(d, idx)),
                                   .context = about->context,
                                   .n_vocab = s->n_vocab,
                                   .end_ids = s->end_ids,
                                   .n_end_ids = n_end_ids,
                                   .tok = model_tokenizer(m)}};
    describe_content(d, s, out->spec.content);
    if (s->bound == NULL) return INFERD_OK; // its pages are those of another slot
    out->weight_pages = out->spec.weight_pages = bound_weight_pages(s->bound);
    out->weight_bytes = bound_weight_bytes(s->bound);
    out->host_pages = bound_host_pages(s->bound);
    out->stage_bytes = bound_stage_bytes(s->bound);
    out->n_unused_tensors = bound_n_unused_tensors(s->bound);
    bound_describe_math(s->bound, out->math, sizeof out->math);
    return INFERD_OK;
}

/* The bound model of a slot with weights of its own; other slots are never staged or loaded. */
static bound_model *own(void *self, uint32_t idx) {
    bound_model *p = ((backend_device *)self)->slots[idx].bound;
    INFERD_CHECK(p != NULL);
    return p;
}

static void tell(const bound_progress *from, device_progress *out) {
    *out = (device_progress){.done = from->done,
                             .total = from->total,
                             .device_us = from->device_us,
                             .finished = from->finished,
                             .waiting = from->waiting};
}

static inferd_status backend_device_stage_begin(void *self, uint32_t idx, const uint32_t *pages,
                                                void (*wake)(void *), void *wake_ctx,
                                                inferd_err *err) {
    bound_model *p = own(self, idx);
    return bound_stage_begin(p, pages, pages != NULL ? bound_weight_pages(p) : 0, wake, wake_ctx,
                             err);
}

static inferd_status backend_device_stage_step(void *self, uint32_t idx, uint64_t budget_us,
                                               device_progress *out, inferd_err *err) {
    bound_progress at = {0};
    inferd_status status = bound_stage_step(own(self, idx), budget_us, &at, err);
    tell(&at, out);
    if (at.finished) out->note = bound_stage_note(own(self, idx));
    return status;
}

static void backend_device_unstage(void *self, uint32_t idx) {
    bound_unstage(own(self, idx));
}

static inferd_status backend_device_load_begin(void *self, uint32_t idx, const uint32_t *pages,
                                               inferd_err *err) {
    bound_model *p = own(self, idx);
    return bound_load_begin(p, pages, bound_weight_pages(p), err);
}

static inferd_status backend_device_load_step(void *self, uint32_t idx, uint64_t budget_us,
                                              device_progress *out, inferd_err *err) {
    bound_progress at = {0};
    inferd_status status = bound_load_step(own(self, idx), budget_us, &at, err);
    tell(&at, out);
    return status;
}

static void backend_device_unload(void *self, uint32_t idx) {
    bound_unload(own(self, idx));
}

static void backend_device_drop_copy(void *self, uint32_t idx) {
    bound_drop_copy(own(self, idx));
}

static inferd_status backend_device_save_begin(void *self, uint32_t idx, inferd_err *err) {
    return bound_save_begin(own(self, idx), err);
}

static inferd_status backend_device_save_step(void *self, uint32_t idx, uint64_t budget_us,
                                              device_progress *out, inferd_err *err) {
    bound_progress at = {0};
    inferd_status status = bound_save_step(own(self, idx), budget_us, &at, err);
    tell(&at, out);
    return status;
}

static void backend_device_move_kv(void *self, uint32_t idx, uint32_t n, const int32_t *from,
                                   const int32_t *to, bool to_host) {
    backend_device *d = self;
    be_kv_move(d->be, bound_kv(bound_of(d, idx)), n, from, to, to_host);
}

static void backend_swap_empty(void *self, uint32_t first_page) {
    be_swap_empty(((backend_device *)self)->be, first_page);
}

static unsigned char *backend_device_kv_slot(void *self, uint32_t idx, int32_t slot) {
    backend_device *d = self;
    return be_kv_slot(d->be, bound_kv(bound_of(d, idx)), slot);
}

static void backend_device_zero(void *self, uint32_t page, size_t begin, size_t n_bytes) {
    backend_device *d = self;
    be_page_zero(d->be, page, begin, size_min(n_bytes, be_page_bytes(d->be) - begin));
}

static void backend_device_launch(void *self, const step *st) {
    backend_device *d = self;
    const served_model *s = &d->slots[st->model_idx];
    INFERD_CHECK(d->n_launched < be_depth(d->be) && st->b.n_logits <= d->n_rows_max);
    for (uint32_t i = 0; i < st->b.n_logits; i++) d->rows[i] = st->draws[i].row;
    bound_launch(bound_of(d, st->model_idx), &st->b, d->rows, s->n_vocab);
    d->n_launched++;
}

static void backend_device_draw(void *self, const step *st) {
    backend_device *d = self;
    for (uint32_t i = 0; i < st->b.n_logits; i++) d->rows[i] = st->draws[i].row;
    be_step_draw(d->be, d->rows);
}

typedef struct draw_work {
    const served_model *s;
    step *st;
    const float *logits; // [n_logits, row_floats]
    size_t row_floats;
    uint32_t n_workers;
} draw_work;

static void draw_share(void *ctx, uint32_t worker) {
    const draw_work *w = ctx;
    for (uint32_t i = worker; i < w->st->b.n_logits; i += w->n_workers) {
        if (w->st->draws[i].dropped) continue;
        sample_row row = w->st->draws[i].row;
        row.logits = w->logits + i * w->row_floats;
        sampler_draw(w->s->samplers[worker], &row, &w->st->results[i]);
    }
}

/* Draw on the host, from the step's logits; returns the time it took. */
static uint64_t draw_on_host(backend_device *d, step *st, const be_step_result *r) {
    const served_model *s = &d->slots[st->model_idx];
    draw_work w = {.s = s,
                   .st = st,
                   .logits = r->logits,
                   .row_floats = r->logits_stride,
                   .n_workers = u32_min(s->n_workers, st->b.n_logits)};
    uint64_t began_us = clock_now_us();
    pulse_at_model(PULSE_DEVICE, "sample_batch", st->model_idx);
    be_parallel(d->be, w.n_workers, draw_share, &w);
    return clock_now_us() - began_us; // drawing uses the same processors
}

static inferd_status backend_device_finish(void *self, step *st, uint64_t *device_us,
                                           inferd_err *err) {
    backend_device *d = self;
    be_step_result r;
    INFERD_CHECK(d->n_launched > 0);
    d->n_launched--;
    inferd_status status = be_step_finish(d->be, &r, err);
    *device_us = r.device_us;
    st->n_saturated = r.n_saturated;
    if (status == INFERD_OK && r.n_experts > 0)
        model_count_experts(d->slots[st->model_idx].m, r.expert_rows, r.n_experts,
                            r.n_expert_reads);
    if (status != INFERD_OK || st->b.n_logits == 0) return status;
    if (r.draws == NULL) {
        *device_us += draw_on_host(d, st, &r);
        return INFERD_OK;
    }
    for (uint32_t i = 0; i < st->b.n_logits; i++)
        if (!st->draws[i].dropped) st->results[i] = r.draws[i];
    return INFERD_OK;
}

static void backend_device_get_stats(void *self, backend_stats *out) {
    be_get_stats(((backend_device *)self)->be, out);
}

static void backend_device_thread_beside(const void *self) {
    be_thread_beside(((const backend_device *)self)->be);
}

inferd_status device_backend_create(const backend_options *options, uint32_t n_slots, device *out,
                                    inferd_err *err) {
    static const device_ops ops = {
        .open = backend_device_open,
        .close = backend_device_close,
        .pages = backend_device_pages,
        .attach = backend_device_attach,
        .weigh = backend_device_weigh,
        .detach = backend_device_detach,
        .hand_over = backend_device_hand_over,
        .stage_begin = backend_device_stage_begin,
        .stage_step = backend_device_stage_step,
        .unstage = backend_device_unstage,
        .load_begin = backend_device_load_begin,
        .load_step = backend_device_load_step,
        .unload = backend_device_unload,
        .drop_copy = backend_device_drop_copy,
        .save_begin = backend_device_save_begin,
        .save_step = backend_device_save_step,
        .move_kv = backend_device_move_kv,
        .swap_empty = backend_swap_empty,
        .kv_slot = backend_device_kv_slot,
        .zero = backend_device_zero,
        .launch = backend_device_launch,
        .draw = backend_device_draw,
        .finish = backend_device_finish,
        .get_stats = backend_device_get_stats,
        .thread_beside = backend_device_thread_beside,
    };
    backend_device *d = calloc(1, sizeof *d);
    if (d == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a device");
    d->options = *options;
    bool owned = own_strings(&d->options);
    d->slots = calloc(size_max(n_slots, 1), sizeof *d->slots);
    d->n_slots = n_slots;
    if (!owned || d->slots == NULL) {
        backend_device_close(d);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a device of %u models", n_slots);
    }
    *out = (device){&ops, d};
    return INFERD_OK;
}
