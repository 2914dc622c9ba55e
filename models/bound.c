/* bound.c - a bound model: a model on a backend; see models/model.h.
 *
 *     bound_open         KV layout, plan of the window, workspace of steps, scratch
 *     bound_stage_begin  COLD -> STAGING     a reader begins, stage.h
 *     bound_stage_step   STAGING -> WARM     everything is prepared at be_window_host
 *     bound_load_begin   WARM -> LOADING     pages -> window, weights bound to it
 *     bound_load_step    LOADING -> HOT      units uploaded, one after the other
 *     bound_unload       LOADING, HOT -> WARM
 *     bound_unstage      -> COLD
 *
 * If host and device are one memory the pages of the stage are the window, and loading only changes
 * the state.
 *
 * A stage into pages of a device with a memory of its own maps them at once: what is prepared goes
 * on to the device (send), and its host memory is free again.  Then there is no host copy
 * (`no_copy`) until bound_save_begin makes one.
 *
 * Made-up weights of a device with a memory of its own are made there: staging then only changes
 * the state, and loading makes them each time. */
#include <pthread.h>
#include <string.h>

#include "inferd/clock.h"
#include "packed.h"
#include "stage.h"

struct bound_model {
    const model *m; // borrowed, like the backend
    backend *be;
    model_limits limits;
    kv_layout kv;
    weight_plan plan;
    decoder_weights weights;
    be_reservation *reservation; // owned
    decoder_scratch scratch;
    be_window *window; // owned
    bound_state state;
    bool one_memory;
    bool made_there; // made-up weights, made on the device and never on the host
    bool tuned;

    stage *stage;                     // owned while STAGING
    bool no_packed;                   // stages read the model itself
    char note[INFERD_ERR_TEXT_BYTES]; // of the last stage
    uint32_t *pages;                  // of the stage, one memory: [weight_pages]; owned
    size_t next_entry;                // LOADING: the first entry of a unit that is not queued
    size_t queued_bytes;              // LOADING, or on the way without a copy: of the window
    bool no_copy;                     // two memories: the host has no copy, or none to keep
    bool prepared;                    // STAGING without a copy: all of it
    size_t saved_bytes;               // of the window, queued for a new copy
};

/* ---- opening ---- */

inferd_status bound_open(const model *m, backend *be, const model_limits *limits, bound_model **out,
                         inferd_err *err) {
    *out = NULL;
    inferd_status st;
    bound_model *p = calloc(1, sizeof *p);
    if (p == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a model on a device");
    p->m = m;
    p->be = be;
    p->limits = *limits;
    p->one_memory = be_one_memory(be);
    p->made_there = m->dummy && !p->one_memory;
    if ((st = kv_layout_choose(be, &m->spec, limits->kv, &p->kv, err)) ||
        (st = weights_plan(m->file, be, &m->spec, &p->weights, &p->plan, err)) ||
        (st = be_window_open(be, p->plan.n_bytes, &p->window, err)))
        goto fail;
    be_needs needs;
    decoder_needs(&m->spec, limits->rows_max, limits->logits_max, m->info.context, &p->kv, &needs);
    if ((st = be_reserve(be, &needs, &p->reservation, err)) ||
        (st = decoder_scratch_open(be, &m->spec, limits->rows_max, limits->logits_max, &p->scratch,
                                   err)))
        goto fail;
    if (p->one_memory) {
        p->pages = calloc(bound_weight_pages(p), sizeof *p->pages);
        if (p->pages == NULL) {
            st = inferd_fail(err, INFERD_ENOMEM, "no memory for a list of %u pages",
                             bound_weight_pages(p));
            goto fail;
        }
    }
    *out = p;
    return INFERD_OK;

fail:
    bound_close(p);
    return st;
}

void bound_close(bound_model *p) {
    if (p == NULL) return;
    bound_unstage(p);
    decoder_scratch_close(p->be, &p->scratch);
    be_release(p->be, p->reservation);
    be_window_close(p->be, p->window);
    weights_deinit(&p->weights, &p->plan);
    free(p->pages);
    free(p);
}

void bound_read_from(bound_model *p, const model *m) {
    INFERD_CHECK(p->state != BOUND_STAGING);
    for (size_t i = 0; i < p->plan.n; i++) {
        weight_entry *e = &p->plan.entries[i];
        e->tensor = gguf_find_tensor(m->file, e->tensor->name);
        INFERD_CHECK(e->tensor != NULL); // the bytes are the same
    }
    p->m = m;
}

/* ---- properties ---- */

bound_state bound_state_of(const bound_model *p) {
    return p->state;
}

static size_t pages_for(const bound_model *p, size_t each) {
    return (p->plan.n_bytes + each - 1) / each;
}

/* Pages for n_bytes of weights: whole extents. */
static uint32_t extent_pages_for(const backend *be, size_t n_bytes) {
    uint32_t extent = u32_max(be_extent_pages(be), 1);
    size_t each = be_page_bytes(be) * extent;
    return (uint32_t)((n_bytes + each - 1) / each) * extent;
}

inferd_status model_weigh(const model *m, const backend *be, uint32_t *n_pages, uint64_t *n_bytes,
                          inferd_err *err) {
    decoder_weights weights;
    weight_plan plan;
    inferd_status st = weights_plan(m->file, be, &m->spec, &weights, &plan, err);
    if (st != INFERD_OK) return st;
    *n_bytes = plan.n_bytes;
    *n_pages = extent_pages_for(be, plan.n_bytes);
    weights_deinit(&weights, &plan);
    return INFERD_OK;
}

inferd_status models_workspace_bytes(const model *const *models, uint32_t n,
                                     const backend_options *o, const model_limits *limits,
                                     uint64_t *out, inferd_err *err) {
    be_needs *needs = calloc(size_max(n, 1), sizeof *needs);
    *out = 0;
    if (needs == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", n);
    for (uint32_t i = 0; i < n; i++) {
        kv_layout kv;
        const decoder_spec *s = &models[i]->spec;
        kv_layout_guess(s, &kv);
        decoder_needs(s, limits->rows_max, limits->logits_max, models[i]->info.context, &kv,
                      &needs[i]);
    }
    *out = backend_workspace_bytes(o, needs, n);
    free(needs);
    return INFERD_OK;
}

uint32_t bound_weight_pages(const bound_model *p) {
    return extent_pages_for(p->be, p->plan.n_bytes);
}

uint64_t bound_weight_bytes(const bound_model *p) {
    return p->plan.n_bytes;
}

uint32_t bound_host_pages(const bound_model *p) {
    if (p->made_there) return 0;
    return p->one_memory ? bound_weight_pages(p) : (uint32_t)pages_for(p, be_page_bytes(p->be));
}

uint64_t bound_stage_bytes(const bound_model *p) {
    return p->made_there ? 0 : p->plan.file_bytes;
}

const kv_layout *bound_kv(const bound_model *p) {
    return &p->kv;
}

uint32_t bound_n_unused_tensors(const bound_model *p) {
    return p->plan.n_unused;
}

uint64_t bound_step_bytes(const bound_model *p) {
    uint64_t n_bytes = 0, experts = 0;
    for (size_t i = 0; i < p->plan.n; i++) {
        const weight_entry *e = &p->plan.entries[i];
        if (e->matrix == NULL || (e->matrix == &p->weights.embed && !p->m->spec.tied)) continue;
        uint64_t all = be_weight_bytes(p->be, e->tensor->type, e->rows, e->cols);
        if (e->expert)
            experts += all;
        else
            n_bytes += all;
    }
    if (experts > 0) n_bytes += experts / p->m->spec.n_experts * p->m->spec.n_experts_used;
    return n_bytes;
}

void bound_describe_math(const bound_model *p, char *text, size_t text_bytes) {
    size_t n_bytes[DTYPE_LIMIT] = {0}, used = 0;
    text[0] = 0;
    for (size_t i = 0; i < p->plan.n; i++) {
        const weight_entry *e = &p->plan.entries[i];
        if (e->matrix == NULL) continue;
        n_bytes[e->tensor->type] += be_weight_bytes(p->be, e->tensor->type, e->rows, e->cols);
    }
    for (uint32_t first = 0; first < DTYPE_LIMIT; first++) { // of a way; its other types follow
        if (n_bytes[first] == 0) continue;
        const char *way = be_weight_math(p->be, (dtype)first);
        for (uint32_t type = first; type < DTYPE_LIMIT && used < text_bytes; type++) {
            if (n_bytes[type] == 0 || strcmp(be_weight_math(p->be, (dtype)type), way) != 0)
                continue;
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s%s %s %.1f MB",
                                     type == first && used > 0 ? "; " : "",
                                     type == first ? way : "", type == first ? ":" : ",",
                                     dtype_about((dtype)type).name, (double)n_bytes[type] * 1e-6);
            n_bytes[type] = 0;
        }
    }
}

/* ---- file -> host ---- */

const char *bound_stage_note(const bound_model *p) {
    return p->note;
}

inferd_status bound_stage_begin(bound_model *p, const uint32_t *pages, uint32_t n_pages,
                                bound_wake *wake, void *ctx, inferd_err *err) {
    INFERD_CHECK(p->state == BOUND_COLD);
    INFERD_CHECK(n_pages == bound_weight_pages(p) || (n_pages == 0 && !p->one_memory));
    p->state = BOUND_STAGING;
    p->note[0] = 0;
    p->no_copy = !p->one_memory && !p->made_there && n_pages > 0;
    p->prepared = false;
    p->queued_bytes = 0;
    if (p->made_there) return INFERD_OK;
    inferd_status st = INFERD_OK;
    if (p->no_copy) {
        st = be_window_map(p->be, p->window, pages, n_pages, err);
        if (st == INFERD_OK) be_window_host_pass(p->be, p->window, 0);
        n_pages = 0;
    } else {
        st = be_window_host_take(p->be, p->window, err);
    }
    if (st == INFERD_OK) {
        if (n_pages > 0) memcpy(p->pages, pages, n_pages * sizeof *pages);
        weights_bind(p->be, &p->m->spec, &p->weights, &p->plan, be_window_host(p->window));
        st = stage_open(&(stage_source){.m = p->m,
                                        .be = p->be,
                                        .plan = &p->plan,
                                        .window = p->window,
                                        .pages = p->pages,
                                        .n_pages = n_pages,
                                        .no_packed = p->no_packed || p->no_copy,
                                        .in_order = p->no_copy,
                                        .wake = wake,
                                        .wake_ctx = ctx},
                        &p->stage, err);
    }
    if (st != INFERD_OK) bound_unstage(p);
    return st;
}

/* Sends what is prepared on to the device, and frees the host memory of what has arrived. */
static size_t send(bound_model *p) {
    enum { SEND_BYTES = 16 << 20 };
    size_t end = p->prepared ? p->plan.n_bytes : stage_prepared(p->stage);
    if (end - p->queued_bytes >= SEND_BYTES || p->prepared) {
        be_window_upload(p->be, p->window, p->queued_bytes, end);
        p->queued_bytes = end;
    }
    size_t pending = be_window_n_pending(p->be, p->window);
    be_window_host_pass(p->be, p->window, p->queued_bytes - size_min(pending, p->queued_bytes));
    return pending;
}

/* The host prepares no more than PENDING_BYTES ahead of the bus. */
static inferd_status stage_through(bound_model *p, uint64_t budget_us, bound_progress *out,
                                   inferd_err *err) {
    enum { PENDING_BYTES = 256 << 20 };
    inferd_status st = INFERD_OK;
    *out = (bound_progress){.total = p->plan.file_bytes, .done = p->plan.file_bytes};
    if (!p->prepared && be_window_n_pending(p->be, p->window) < PENDING_BYTES) {
        st = stage_step(p->stage, budget_us, out, err);
        p->prepared = st == INFERD_OK && out->finished;
    }
    if (st != INFERD_OK) return st;
    out->finished = send(p) == 0 && p->prepared;
    st = be_check(p->be, err);
    if (st != INFERD_OK || !out->finished) return st;
    be_window_host_give(p->be, p->window);
    weights_bind(p->be, &p->m->spec, &p->weights, &p->plan, be_window_base(p->window));
    return st;
}

inferd_status bound_stage_step(bound_model *p, uint64_t budget_us, bound_progress *out,
                               inferd_err *err) {
    INFERD_CHECK(p->state == BOUND_STAGING);
    inferd_status st = INFERD_OK;
    if (p->made_there)
        *out = (bound_progress){.finished = true};
    else
        st = p->no_copy ? stage_through(p, budget_us, out, err)
                        : stage_step(p->stage, budget_us, out, err);
    if (st != INFERD_OK) {
        bound_unstage(p);
    } else if (out->finished) {
        if (p->stage != NULL) snprintf(p->note, sizeof p->note, "%s", stage_note(p->stage));
        stage_close(p->stage);
        p->stage = NULL;
        p->state = BOUND_WARM;
    }
    return st;
}

/* A failure means that the device is lost; it is not used any more. */
static void unmap(bound_model *p) {
    inferd_err err = {0};
    inferd_status st = be_window_unmap(p->be, p->window, &err);
    INFERD_CHECK(st == INFERD_OK || st == INFERD_ELOST);
}

void bound_unstage(bound_model *p) {
    if (p->state == BOUND_COLD) return;
    stage_close(p->stage);
    p->stage = NULL;
    unmap(p); // after its copies
    be_window_host_give(p->be, p->window);
    p->no_copy = false;
    p->state = BOUND_COLD;
}

/* ---- host -> device ---- */

inferd_status bound_load_begin(bound_model *p, const uint32_t *pages, uint32_t n_pages,
                               inferd_err *err) {
    INFERD_CHECK(n_pages == bound_weight_pages(p));
    if (p->state != BOUND_WARM)
        return inferd_fail(err, INFERD_EMODEL, "%s: its weights are not in host memory",
                           p->m->path);
    if (p->no_copy) {
        p->next_entry = p->plan.n; // all of it is there
    } else if (!p->one_memory) {
        inferd_status st = be_window_map(p->be, p->window, pages, n_pages, err);
        if (st != INFERD_OK) return st;
        weights_bind(p->be, &p->m->spec, &p->weights, &p->plan, be_window_base(p->window));
        p->next_entry = p->queued_bytes = 0;
        /* Later steps read them: one stream, in order. */
        if (p->made_there) weights_make_up(p->be, &p->m->spec, &p->plan, p->m->dummy_seed);
    }
    p->state = BOUND_LOADING;
    return INFERD_OK;
}

static bool all_queued(const bound_model *p) {
    return p->one_memory || p->made_there || p->next_entry == p->plan.n;
}

static void queue_unit(bound_model *p) {
    size_t end = weights_unit_end(&p->plan, &p->next_entry);
    be_window_upload(p->be, p->window, p->queued_bytes, end);
    p->queued_bytes = end;
}

/* Made-up weights are complete when the device has finished; nothing else waits for that. */
static inferd_status look(bound_model *p, bound_progress *out, inferd_err *err) {
    if (p->made_there) {
        out->finished = true;
        return be_sync(p->be, err);
    }
    size_t pending = be_window_n_pending(p->be, p->window);
    out->total = p->plan.n_bytes;
    out->done = p->queued_bytes - size_min(pending, p->queued_bytes);
    out->finished = all_queued(p) && pending == 0;
    return be_check(p->be, err);
}

inferd_status bound_load_step(bound_model *p, uint64_t budget_us, bound_progress *out,
                              inferd_err *err) {
    INFERD_CHECK(p->state == BOUND_LOADING);
    *out = (bound_progress){.finished = true};
    uint64_t began_us = clock_now_us();
    inferd_status st = INFERD_OK;
    if (!p->one_memory) {
        while (!all_queued(p)) {
            queue_unit(p);
            if (clock_now_us() - began_us >= budget_us) break;
        }
        st = look(p, out, err);
        uint64_t tune_us = clock_now_us();
        if (st == INFERD_OK && out->finished && !p->tuned) {
            st = weights_tune(p->be, &p->plan, err);
            if (st == INFERD_OK) st = be_sync(p->be, err);
            p->tuned = st == INFERD_OK;
            out->device_us = clock_now_us() - tune_us;
        }
        if (p->made_there) out->device_us = clock_now_us() - began_us;
    }
    if (st != INFERD_OK)
        bound_unstage(p);
    else if (out->finished)
        p->state = BOUND_HOT;
    return st;
}

void bound_unload(bound_model *p) {
    if (p->state != BOUND_LOADING && p->state != BOUND_HOT) return;
    INFERD_CHECK(!p->no_copy);
    if (!p->one_memory) unmap(p);
    p->state = BOUND_WARM;
}

/* ---- a host copy of what is on the device ---- */

void bound_drop_copy(bound_model *p) {
    INFERD_CHECK(p->state == BOUND_HOT && !p->one_memory && !p->no_copy);
    be_window_host_give(p->be, p->window);
    p->no_copy = true;
}

inferd_status bound_save_begin(bound_model *p, inferd_err *err) {
    INFERD_CHECK(p->state == BOUND_HOT && p->no_copy);
    p->saved_bytes = 0;
    return be_window_host_take(p->be, p->window, err);
}

inferd_status bound_save_step(bound_model *p, uint64_t budget_us, bound_progress *out,
                              inferd_err *err) {
    enum { SAVE_BYTES = 64 << 20 };
    uint64_t began_us = clock_now_us();
    while (p->saved_bytes < p->plan.n_bytes && clock_now_us() - began_us <= budget_us) {
        size_t end = size_min(p->saved_bytes + SAVE_BYTES, p->plan.n_bytes);
        be_window_download(p->be, p->window, p->saved_bytes, end);
        p->saved_bytes = end;
    }
    size_t pending = be_window_n_pending(p->be, p->window);
    *out = (bound_progress){.done = p->saved_bytes - size_min(pending, p->saved_bytes),
                            .total = p->plan.n_bytes};
    out->finished = out->done == out->total;
    p->no_copy = !out->finished;
    return be_check(p->be, err);
}

void bound_launch(bound_model *p, const batch *b, const sample_row *draws, uint32_t n_vocab) {
    INFERD_CHECK((p->state == BOUND_HOT || p->state == BOUND_LOADING) && b->n_rows > 0 &&
                 b->n_rows <= p->limits.rows_max && b->n_logits <= p->limits.logits_max);
    while (!all_queued(p)) queue_unit(p); // all weights have arrived or are in flight
    be_step_begin(p->be, b, &p->kv);
    decoder_forward(p->be, &p->m->spec, &p->weights, &p->scratch, b);
    if (b->n_logits > 0 && draws != NULL && be_can_draw(p->be))
        be_draw(p->be, p->scratch.logits, draws, b->n_logits, n_vocab);
    else if (b->n_logits > 0)
        be_want_logits(p->be, p->scratch.logits, b->n_logits);
    be_step_end(p->be);
}

/* ---- all at once ---- */

enum { WHOLE_BUDGET_US = 100000 };

typedef struct bell {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool rings;
} bell;

static void ring(void *ctx) {
    bell *b = ctx;
    pthread_mutex_lock(&b->lock);
    b->rings = true;
    pthread_cond_signal(&b->woken);
    pthread_mutex_unlock(&b->lock);
}

static void wait_for_ring(bell *b) {
    pthread_mutex_lock(&b->lock);
    while (!b->rings) pthread_cond_wait(&b->woken, &b->lock);
    b->rings = false;
    pthread_mutex_unlock(&b->lock);
}

/* COLD -> WARM, waiting for the file. */
static inferd_status stage_whole(bound_model *p, const uint32_t *pages, uint32_t n_pages,
                                 inferd_err *err) {
    bell b = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    bound_progress at = {0};
    bool one = p->one_memory;
    inferd_status st = bound_stage_begin(p, one ? pages : NULL, one ? n_pages : 0, ring, &b, err);
    while (st == INFERD_OK && !at.finished) {
        st = bound_stage_step(p, WHOLE_BUDGET_US, &at, err);
        if (st == INFERD_OK && at.waiting) wait_for_ring(&b);
    }
    return st;
}

inferd_status bound_bring_up(bound_model *p, const uint32_t *pages, uint32_t n_pages,
                             inferd_err *err) {
    bound_progress at = {0};
    inferd_status st = stage_whole(p, pages, n_pages, err);
    if (st == INFERD_OK) st = bound_load_begin(p, pages, n_pages, err);
    while (st == INFERD_OK && !at.finished) {
        st = bound_load_step(p, WHOLE_BUDGET_US, &at, err);
        if (st == INFERD_OK && !at.finished && all_queued(p)) st = be_sync(p->be, err);
    }
    if (st != INFERD_OK) bound_unstage(p);
    return st;
}

inferd_status model_pack(const model *m, backend *be, const char *path, char **out_path,
                         inferd_err *err) {
    model_limits limits = {.rows_max = 1, .logits_max = 1, .kv = KV_AUTO};
    bound_model *p = NULL;
    uint32_t *pages = NULL;
    if (m->dummy)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "%s: made-up weights are not packed", m->path);
    inferd_status st = bound_open(m, be, &limits, &p, err);
    uint32_t n_pages = st == INFERD_OK ? bound_weight_pages(p) : 0;
    if (st == INFERD_OK && p->one_memory && n_pages > be_n_pages(be))
        st = inferd_fail(err, INFERD_ENOMEM, "%s needs %u pages, the device has %u", m->path,
                         n_pages, be_n_pages(be));
    if (st == INFERD_OK && (pages = malloc(size_max(n_pages, 1) * sizeof *pages)) == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for a list of %u pages", n_pages);
    if (st == INFERD_OK) {
        for (uint32_t i = 0; i < n_pages; i++) pages[i] = i;
        p->no_packed = true;
        st = stage_whole(p, pages, n_pages, err);
    }
    if (st == INFERD_OK) st = packed_write(m, be, &p->plan, be_window_host(p->window), path, err);
    if (st == INFERD_OK && out_path != NULL) {
        *out_path = path != NULL ? strdup(path) : packed_path(m, be);
        if (*out_path == NULL) st = inferd_fail(err, INFERD_ENOMEM, "no memory for a path");
    }
    free(pages);
    bound_close(p);
    return st;
}
