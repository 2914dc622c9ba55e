/* model_state.c - see model_state.h. */
#include "model_state.h"

#include <time.h>

inferd_status models_init(model_set *ms, uint32_t n, inferd_err *err) {
    *ms = (model_set){.n = n};
    ms->slots = calloc(size_max(n, 1), sizeof *ms->slots);
    if (ms->slots == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u models", n);
    for (uint32_t i = 0; i < n; i++) atomic_init(&ms->slots[i].state, MODEL_COLD);
    return INFERD_OK;
}

void models_deinit(model_set *ms) {
    for (uint32_t i = 0; ms->slots != NULL && i < ms->n; i++) free(ms->slots[i].pages);
    free(ms->slots);
    *ms = (model_set){0};
}

static void set_state(model_slot *slot, model_state state) {
    atomic_store_explicit(&slot->state, state, memory_order_release);
}

model_state slot_state(const model_slot *slot) {
    return (model_state)atomic_load_explicit(&slot->state, memory_order_acquire);
}

void slot_error(const model_slot *slot, inferd_err *out) {
    if (slot_state(slot) == MODEL_FAILED)
        *out = slot->why;
    else
        *out = (inferd_err){.status = INFERD_OK};
}

static void give_pages(model_slot *slot, pool *p) {
    for (uint32_t i = 0; i < slot->n_pages; i++) pool_give(p, slot->pages[i], 0);
    slot->n_pages = 0;
}

static void fail(model_set *ms, uint32_t idx, sched *s, const inferd_err *why, uint64_t now_us) {
    model_slot *slot = &ms->slots[idx];
    slot->why = *why;
    sched_model_fail(s, idx, why, now_us);
    set_state(slot, MODEL_FAILED);
}

void models_fail_all(model_set *ms, sched *s, const inferd_err *why, uint64_t now_us) {
    for (uint32_t i = 0; i < ms->n; i++) fail(ms, i, s, why, now_us);
    ms->next_load = ms->n;
}

void models_grow_pool(const device *dev, pool *p) {
    device_pages now;
    if (dev->ops->pages == NULL || p->n_pages == 0) return; // 0: it could not be opened
    dev->ops->pages(dev->self, &now);
    p->n_warm = now.n_warm;
    if (p->n_in[PAGE_ABSENT] == 0) return;
    uint32_t n_pages = u32_min(now.n_pages, p->n_pages);
    pool_set_ready(p, u32_min(now.n_ready, n_pages), n_pages);
}

/* Pages for the weights, and at least one more for keys and values.  At start the device may still
 * be making them, and there is nothing else to do. */
static inferd_status take_pages(model_slot *slot, uint32_t idx, uint32_t n, const device *dev,
                                pool *p, inferd_err *err) {
    slot->pages = malloc(size_max(n, 1) * sizeof *slot->pages);
    if (slot->pages == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u pages", n);
    for (;;) {
        bool last = p->n_in[PAGE_ABSENT] == 0;
        if (pool_n_takeable(p, idx) > n && pool_take_weights(p, idx, n, slot->pages)) break;
        if (last)
            return inferd_fail(err, INFERD_ENOMEM,
                               "the weights need %u pages%s and keys and values at least one; %u "
                               "of the device's %u "
                               "are free",
                               n, p->runs ? " in a row" : "", pool_n_takeable(p, idx), p->n_pages);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        models_grow_pool(dev, p);
    }
    slot->n_pages = n;
    return INFERD_OK;
}

static inferd_status attach(model_set *ms, uint32_t idx, const device *dev,
                            const device_limits *limits, pool *p, sched *s, inferd_err *err) {
    model_slot *slot = &ms->slots[idx];
    sched_model_spec spec;
    uint32_t n_pages = 0;
    inferd_status status = dev->ops->attach(dev->self, idx, limits, &spec, &n_pages, err);
    if (status != INFERD_OK) return status;
    slot->attached = true;
    status = take_pages(slot, idx, n_pages, dev, p, err);
    if (status == INFERD_OK) status = sched_model_open(s, idx, &spec, err);
    if (status == INFERD_OK) {
        atomic_store(&slot->context, spec.context);
        return INFERD_OK;
    }
    give_pages(slot, p);
    slot->attached = false;
    dev->ops->detach(dev->self, idx);
    return status;
}

/* What fits changes when weights come or go. */
static void publish_capacity(model_set *ms, const sched *s) {
    for (uint32_t i = 0; i < ms->n; i++)
        atomic_store(&ms->slots[i].kv_tokens_max, sched_kv_tokens_max(s, i));
}

void models_attach(model_set *ms, const device *dev, const device_limits *limits, pool *p, sched *s,
                   uint64_t now_us) {
    for (uint32_t i = 0; i < ms->n; i++) {
        inferd_err err = {0};
        if (attach(ms, i, dev, limits, p, s, &err) != INFERD_OK) fail(ms, i, s, &err, now_us);
    }
    publish_capacity(ms, s);
    for (uint32_t i = 0; i < ms->n; i++)
        if (slot_state(&ms->slots[i]) == MODEL_COLD) set_state(&ms->slots[i], MODEL_LOADING);
}

typedef struct load_watch {
    model_slot *slot;
    void (*progress)(void *ctx);
    void *ctx;
} load_watch;

static void on_progress(void *ctx, uint64_t bytes_done, uint64_t bytes_total) {
    load_watch *w = ctx;
    atomic_store_explicit(&w->slot->bytes_total, bytes_total, memory_order_relaxed);
    atomic_store_explicit(&w->slot->bytes_done, bytes_done, memory_order_relaxed);
    w->progress(w->ctx);
}

bool models_load_next(model_set *ms, const device *dev, pool *p, sched *s,
                      void (*progress)(void *ctx), void *progress_ctx, uint64_t (*now)(void)) {
    while (ms->next_load < ms->n && slot_state(&ms->slots[ms->next_load]) != MODEL_LOADING)
        ms->next_load++;
    if (ms->next_load == ms->n) return false;
    uint32_t idx = ms->next_load++;
    model_slot *slot = &ms->slots[idx];
    load_watch watch = {slot, progress, progress_ctx};
    inferd_err err = {0};
    if (dev->ops->load(dev->self, idx, slot->pages, slot->n_pages, on_progress, &watch, &err) ==
        INFERD_OK) {
        sched_model_hot(s, idx);
        set_state(slot, MODEL_HOT);
    } else {
        slot->attached = false;
        dev->ops->detach(dev->self, idx);
        give_pages(slot, p);
        fail(ms, idx, s, &err, now());
        publish_capacity(ms, s);
    }
    progress(progress_ctx);
    return true;
}

void models_close(model_set *ms, const device *dev, pool *p) {
    for (uint32_t i = 0; i < ms->n; i++) {
        model_slot *slot = &ms->slots[i];
        if (slot_state(slot) == MODEL_HOT) set_state(slot, MODEL_DRAINING);
        if (slot->attached) dev->ops->detach(dev->self, i);
        slot->attached = false;
        give_pages(slot, p);
    }
}
