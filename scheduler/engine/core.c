/* core.c - see core.h. */
#include "core.h"

#include <string.h>

#include "rate.h"
#include "scheduler/pulse.h"

enum {
    GROW_US = 2000,      // between two looks at pages that the device is still making
    PIECE_PERCENT = 15,  // of a typical step: a piece of loading between two steps; even when both
                         // take longer than usual, a sequence waits for at most two steps
    LEFT_PERCENT = 10,   // the same, for work of a lower class than what runs
    BESIDE_PERCENT = 50, // the same, beside a step that the device computes asynchronously
    KV_SLICE_PARTS = 2,  // of a model's time slice: pages of keys and values go before weights do
    PIECE_US_MIN = 200,  // less would be overhead only
    PIECE_URGENT_US = 40000, // for more urgent work than what runs: steps wait so long
    PIECE_IDLE_US = 4000,    // when no step runs; a new request waits no longer than this
    BUSY_US = 20000,         // after a step, others are likely to follow within this time
    SAVE_US = 1500000,       // at the end, for writing to the disk
    MASKS_US = 1000,         // the longest wait for masks, of a typical step at most
    MASKS_PERCENT = 10,      // so much before its launch, or where it draws itself later,
    MASKS_LATE_PERCENT = 3,  // and so much before it draws, which is nearly always enough
};

static uint64_t now(const core *c) {
    return c->options.clock(c->options.ctx);
}

/* Adds the time since the last piece, without the copies in it, to *part; returns what it added. */
static uint64_t add_usage_until(core *c, uint64_t *part, uint64_t now_us) {
    core_usage *a = &c->usage;
    if (a->opened_us == 0) return 0;
    uint64_t us = now_us > a->until_us ? now_us - a->until_us : 0;
    uint64_t moved_us = c->moved_us < us ? c->moved_us : us;
    c->moved_us = 0;
    a->move_us += moved_us;
    *part += us - moved_us;
    a->until_us += us;
    return us - moved_us;
}

/* ---- life ---- */

static inferd_status init_steps(core *c, inferd_err *err) {
    const sched_limits *l = &c->options.limits;
    c->step_events_max = l->logits_max + l->running_max;
    inferd_status st = INFERD_OK;
    for (int i = 0; i < CORE_DEPTH_MAX && st == INFERD_OK; i++)
        st = step_init(&c->steps[i], l->step_tokens_max, l->running_max, l->logits_max, err);
    return st;
}

/* Time of copying n slots, on a device with memory of its own.  The call only queues the copies,
 * or waits for steps too, so its own duration does not measure them.  0: not known. */
static uint64_t bus_us(const core *c, uint32_t idx, uint32_t n) {
    uint64_t n_bytes = (uint64_t)n * c->models.slots[idx].about.spec.kv.slot_bytes;
    return c->about.bus_bytes_per_s == 0 ? 0 : n_bytes * 1000000 / c->about.bus_bytes_per_s + 1;
}

static void move_kv(void *ctx, uint32_t idx, uint32_t n, const int32_t *from, const int32_t *to,
                    bool to_host) {
    core *c = ctx;
    uint64_t from_us = now(c);
    c->device.ops->move_kv(c->device.self, idx, n, from, to, to_host);
    uint64_t us = now(c) - from_us, on_bus_us = bus_us(c, idx, n);
    c->moved_us += us;
    sched_note_moves(c->sched, idx, 1, on_bus_us != 0 ? on_bus_us : us);
}

static unsigned char *kv_slot(void *ctx, uint32_t idx, int32_t slot) {
    core *c = ctx;
    return c->device.ops->kv_slot(c->device.self, idx, slot);
}

static void zero(void *ctx, uint32_t page, size_t begin, size_t n_bytes) {
    core *c = ctx;
    c->device.ops->zero(c->device.self, page, begin, n_bytes);
}

static void wake_for_disk(void *ctx) {
    core *c = ctx;
    c->options.wake(c->options.ctx);
}

static void swap_empty(void *ctx, uint32_t first_page) {
    core *c = ctx;
    if (c->device.ops->swap_empty != NULL) c->device.ops->swap_empty(c->device.self, first_page);
}

/* Pages of host memory for swapped-out blocks, where the pool's pages are the device's. */
static inferd_status open_host(core *c, inferd_err *err) {
    const device_about *about = &c->about;
    uint32_t n = u32_min(about->n_swap_pages, about->n_host_pages);
    uint32_t extent = u32_max(about->swap_extent_pages, 1);
    n -= n % extent;
    if (about->one_memory || n == 0) return INFERD_OK;
    inferd_status st = pool_init_extents(&c->host, n, n, extent, c->options.n_slots, err);
    if (st == INFERD_OK) pool_set_host(&c->host, &c->pool, swap_empty, c);
    return st;
}

/* Set up the tiers for keys and values below the device: host memory and disk; and zeroing. */
static inferd_status open_tiers(core *c, inferd_err *err) {
    const core_options *o = &c->options;
    const device_ops *ops = c->device.ops;
    pool *host = c->about.one_memory ? &c->pool : &c->host;
    if (ops->move_kv != NULL && host->n_pages > 0) sched_set_swapping(c->sched, host, move_kv, c);
    if (o->disk_ops != NULL && ops->kv_slot != NULL)
        sched_set_disk(c->sched, o->disk_ops, o->disk, c->about.one_memory, kv_slot, wake_for_disk,
                       c);
    if (!o->limits.zero_on_tenant_change) return INFERD_OK;
    if (ops->zero == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "policy.zero_on_tenant_change: this device cannot zero its memory");
    return sched_set_zero(c->sched, zero, c, err);
}

/* A worker of masks begins, or has an answer. */
static void leave_compute_threads(void *ctx) {
    const core *c = ctx;
    if (c->device.ops->thread_beside != NULL) c->device.ops->thread_beside(c->device.self);
}

static void wake_for_mask(void *ctx) {
    core *c = ctx;
    c->options.wake(c->options.ctx);
}

/* Only a sequence that is not planned without its mask waits for it: then the core may be asleep.
 */
static inferd_status open_masks(core *c, inferd_err *err) {
    bool before_launch = c->about.draws && c->device.ops->draw == NULL;
    masks_options o = {.n_threads = c->options.masks_threads,
                       .begin = leave_compute_threads,
                       .answered = before_launch && c->options.wake != NULL ? wake_for_mask : NULL,
                       .ctx = c};
    inferd_status st = masks_create(&o, &c->masks, err);
    c->masks_before_launch = before_launch;
    if (st == INFERD_OK) sched_set_constraints(c->sched, &masks_ops, c->masks, before_launch);
    return st;
}

static bool reclaim(void *ctx, uint32_t idx, gen_class waiting, gen_class aged, uint64_t since_us) {
    core *c = ctx;
    return residency_reclaim(&c->models, idx, waiting, aged, since_us, now(c));
}

inferd_status core_init(core *c, const core_options *options, inferd_err *err) {
    *c = (core){.options = *options, .device = options->device, .depth = 1};
    c->options.limits.kv_slice_us = options->residency.slice_us / KV_SLICE_PARTS;
    inferd_status st = sched_create(&c->options.limits, &c->pool, options->n_slots, options->emit,
                                    options->ctx, &c->sched, err);
    if (st == INFERD_OK)
        st = residency_init(&c->models, options->n_slots, &options->residency, &c->device, &c->pool,
                            c->sched, err);
    if (st == INFERD_OK) st = init_steps(c, err);
    if (st != INFERD_OK) return st;
    c->models.wake = options->wake;
    c->models.wake_ctx = options->ctx;
    c->models.note = options->note;
    c->models.note_ctx = options->ctx;
    sched_set_reclaim(c->sched, reclaim, c);
    return INFERD_OK;
}

void core_deinit(core *c) {
    masks_halt(c->masks); // they use the device
    if (c->device.ops != NULL) c->device.ops->close(c->device.self);
    c->host.on_empty = NULL; // the device is closed
    sched_destroy(c->sched);
    masks_destroy(c->masks);
    for (int i = 0; i < CORE_DEPTH_MAX; i++) step_deinit(&c->steps[i]);
    residency_deinit(&c->models);
    pool_deinit(&c->host); // before the pool that it counts in
    pool_deinit(&c->pool);
    *c = (core){0};
}

inferd_status core_open(core *c, inferd_err *err) {
    sched_limits *l = &c->options.limits;
    device_about *about = &c->about;
    inferd_status st = c->device.ops->open(c->device.self, about, err);
    if (st != INFERD_OK) {
        inferd_context(err, "opening the device");
        return st;
    }
    c->usage.opened_us = c->usage.until_us = now(c);
    st = pool_init_extents(&c->pool, about->n_pages, about->n_ready, about->extent_pages,
                           c->options.n_slots, err);
    if (st != INFERD_OK) return st;
    uint32_t n_host = about->n_host_pages;
    pool_set_budgets(&c->pool, about->one_memory ? about->n_pages - n_host : about->n_pages,
                     n_host);
    st = open_host(c, err);
    if (st != INFERD_OK) return st;
    c->depth = u32_min(u32_max(about->depth, 1), CORE_DEPTH_MAX);
    if (l->step_tokens_by_device) {
        uint32_t rows = about->rows_default != 0 ? about->rows_default : STEP_TOKENS_DEFAULT;
        l->step_tokens_max = u32_min(l->step_tokens_max, u32_max(rows, l->running_max));
    }
    /* Larger steps would gain nothing there and cost memory; each decoding sequence has a row. */
    uint32_t rows_best = u32_max(about->rows_best, 2 * l->running_max);
    if (about->rows_best != 0) l->step_tokens_max = u32_min(l->step_tokens_max, rows_best);
    st = sched_set_device(c->sched, c->depth, l->step_tokens_max, err);
    if (st != INFERD_OK) return st;
    l->logits_max = u32_min(l->logits_max, l->step_tokens_max);
    st = open_tiers(c, err);
    if (st == INFERD_OK) st = open_masks(c, err);
    if (st != INFERD_OK) return st;
    c->models.limits.device = (device_limits){l->step_tokens_max, l->logits_max, c->options.kv};
    sched_set_page_bytes(c->sched, about->page_bytes);
    c->models.one_memory = about->one_memory;
    c->models.page_bytes = about->page_bytes;
    c->opened = true;
    return INFERD_OK;
}

void core_lose(core *c, const inferd_err *why) {
    if (c->lost) return;
    c->lost = true;
    residency_fail_all(&c->models, why, now(c));
}

/* ---- steps ---- */

/* Pass to the pool the pages that the device has made or warmed meanwhile. */
static void grow_pool(core *c) {
    device_pages p;
    if (c->device.ops->pages == NULL) return;
    c->device.ops->pages(c->device.self, &p);
    c->pool.n_warm = p.n_warm;
    if (c->pool.n_in[PAGE_ABSENT] == 0) return;
    uint32_t n_pages = u32_min(p.n_pages, c->pool.n_pages);
    if (n_pages < c->pool.n_pages) sched_pool_shrank(c->sched);
    pool_set_ready(&c->pool, u32_min(p.n_ready, n_pages), n_pages);
}

/* There is room for the events of one more step, beside those of unfinished steps. */
static bool has_room(const core *c) {
    return c->options.room(c->options.ctx) >= (c->n_flight + 1) * c->step_events_max;
}

/* Masks take some microseconds each.  A sequence without one would miss a whole step, or compute
 * its row twice; so all wait a little, and no longer. */
static void await_masks(core *c, uint32_t percent) {
    uint64_t us = c->typical_us * percent / 100;
    if (c->masks != NULL) masks_await(c->masks, us < MASKS_US ? us : MASKS_US);
}

/* The steps before the newest one are finished, and it is being computed. */
static void draw_newest(core *c) {
    step *st = &c->steps[(c->oldest + c->n_flight - 1) % CORE_DEPTH_MAX];
    await_masks(c, MASKS_PERCENT);
    sched_refresh(c->sched, st);
    c->device.ops->draw(c->device.self, st);
    c->undrawn = false;
}

static void launch_steps(core *c) {
    while (c->n_flight < c->depth && has_room(c)) {
        if (c->undrawn) draw_newest(c);
        if (c->masks_before_launch) await_masks(c, MASKS_PERCENT);
        uint32_t idx = (c->oldest + c->n_flight) % CORE_DEPTH_MAX;
        uint64_t now_us = now(c);
        pulse_at(PULSE_WORK, "sched_plan");
        if (!sched_plan(c->sched, now_us, &c->steps[idx])) return;
        c->step_began_us[idx] = now_us;
        c->busy_since_us = now_us;
        pulse_at_model(PULSE_DEVICE, "model_forward", c->steps[idx].model_idx);
        c->device.ops->launch(c->device.self, &c->steps[idx]);
        c->n_flight++;
        if (c->options.on_launch != NULL)
            c->options.on_launch(c->options.ctx, &c->steps[idx], now_us);
        c->undrawn = c->about.draws && c->steps[idx].b.draws_later;
    }
}

/* Wait for the oldest step and charge it.  `withdrawn`: it was launched behind a failed one. */
static inferd_status finish_step(core *c, bool withdrawn) {
    step *st = &c->steps[c->oldest];
    inferd_err err = {0};
    uint64_t device_us = 0;
    st->n_saturated = 0;
    if (c->undrawn && c->n_flight == 1) draw_newest(c);
    if (!c->about.draws) await_masks(c, MASKS_LATE_PERCENT);
    sched_refresh(c->sched, st);
    pulse_at_model(PULSE_DEVICE, "step_finish", st->model_idx);
    inferd_status status = c->device.ops->finish(c->device.self, st, &device_us, &err);
    if (status == INFERD_OK && c->options.drill != NULL)
        status = c->options.drill(c->options.ctx, &device_us, &err);
    uint64_t now_us = now(c), began_us = c->step_began_us[c->oldest];
    if (began_us < c->finished_us) began_us = c->finished_us; // it was launched behind another
    c->finished_us = now_us;
    rate_note_typical(&c->typical_us, now_us - began_us);
    pulse_at_model(PULSE_WORK, "sched_commit", st->model_idx);
    c->models.slots[st->model_idx].n_saturated += st->n_saturated;
    st->charge_us = add_usage_until(c, &c->usage.step_us, now_us); // including the host's part
    if (withdrawn)
        sched_withdraw(c->sched, st, now_us);
    else if (status == INFERD_OK)
        sched_commit(c->sched, st, device_us, now_us);
    else
        sched_fail(c->sched, st, &err, now_us);
    c->busy_since_us = c->n_flight > 1 ? now_us : 0;
    if (status == INFERD_ELOST) core_lose(c, &err);
    if (c->options.on_step != NULL)
        c->options.on_step(c->options.ctx, st, device_us, now_us - c->step_began_us[c->oldest]);
    c->oldest = (c->oldest + 1) % CORE_DEPTH_MAX;
    c->n_flight--;
    return status;
}

/* A step that is queued behind a failed one may wait for tokens that were never drawn, and fails or
 * computes wrong values, though its other sequences did not fail.  So nothing more is launched
 * until it has finished, and its rows are planned again. */
static void finish_oldest(core *c) {
    bool failed = finish_step(c, false) != INFERD_OK;
    while (failed && c->n_flight > 0) finish_step(c, true);
}

/* A piece between two steps.  Following the classes of the work that waits for the load and of the
 * work that runs: a more urgent load has nearly all the time, an equal one its part of each step,
 * and a less urgent one what is left. */
static uint64_t piece_us(const core *c) {
    gen_class waits = residency_waiting_class(&c->models);
    gen_class runs = residency_running_class(&c->models);
    if (runs == GEN_CLASSES) return PIECE_IDLE_US; // a new request would wait for the piece
    if (waits < runs) return PIECE_URGENT_US;
    uint64_t percent = waits > runs ? LEFT_PERCENT : PIECE_PERCENT;
    if (c->depth > 1) percent = BESIDE_PERCENT;
    uint64_t us = c->typical_us * percent / 100;
    return us < PIECE_US_MIN ? PIECE_US_MIN : us > PIECE_IDLE_US ? PIECE_IDLE_US : us;
}

static bool bring_up(core *c, bool stepped) {
    if (!residency_has_work(&c->models)) return false;
    uint64_t from_us = now(c);
    bool busy = stepped || (c->finished_us != 0 && from_us < c->finished_us + BUSY_US);
    if (c->n_flight == 0) c->busy_since_us = from_us;
    pulse_at(PULSE_DEVICE, "residency_work");
    residency_work(&c->models, busy ? piece_us(c) : PIECE_IDLE_US, c->options.clock,
                   c->options.ctx);
    uint64_t to_us = now(c);
    if (c->n_flight == 0) {
        c->busy_since_us = 0;
        add_usage_until(c, &c->usage.load_us, to_us); // else the device computed meanwhile
    }
    return true;
}

/* The device is lost: steps on their way end, and models that are no longer served leave, so that
 * their slots can have other models. */
static bool wind_down(core *c) {
    bool any = c->n_flight > 0;
    while (c->n_flight > 0) finish_oldest(c);
    return residency_let_go(&c->models) || any;
}

bool core_iterate(core *c) {
    if (c->models.gone.status == INFERD_ELOST) core_lose(c, &c->models.gone);
    if (c->models.dead) return wind_down(c);
    if (!c->opened) return false;
    grow_pool(c);
    pulse_at(PULSE_WORK, "sched_reserve");
    sched_reserve(c->sched);
    pulse_at(PULSE_DEVICE, "residency_decide");
    bool any = residency_decide(&c->models, now(c));
    if (!any && c->models.staging == RESIDENCY_NONE && c->models.loading == RESIDENCY_NONE &&
        c->models.n_used > 0 && c->pool.n_in[PAGE_ABSENT] == 0)
        c->settled = true;
    launch_steps(c);
    bool stepped = c->n_flight > 0;
    /* A device that computes asynchronously need not wait for the host's work. */
    if (c->depth > 1 && stepped) any |= bring_up(c, true);
    if (stepped) finish_oldest(c);
    pulse_at(PULSE_DEVICE, "sched_copy_ahead");
    sched_copy_ahead(c->sched, now(c));
    if (c->depth == 1 || !stepped) any |= bring_up(c, stepped);
    return any || stepped;
}

uint64_t core_next_us(const core *c) {
    if (c->models.dead) return UINT64_MAX; // nothing is planned any more, and no deadline changes
    uint64_t next_us = sched_next_deadline(c->sched), models_us = residency_next_us(&c->models);
    /* The reader that makes room wakes the engine; until then no plan would check a deadline. */
    if (!has_room(c)) next_us = UINT64_MAX;
    /* Requests may wait for pages that the device is still making. */
    if (c->opened && c->pool.n_in[PAGE_ABSENT] > 0 && models_us > now(c) + GROW_US)
        models_us = now(c) + GROW_US;
    return models_us < next_us ? models_us : next_us;
}

uint64_t core_sleep_until_us(const core *c, uint64_t from_us) {
    sched_counters n;
    uint64_t until_us = core_next_us(c);
    sched_count(c->sched, &n);
    if (n.n_running + n.n_waiting <= n.n_paused) return until_us;
    until_us = u64_min(until_us, from_us + c->options.limits.starvation_us);
    return u64_min(until_us, from_us + c->options.residency.slice_us / 4);
}

void core_idle(core *c, uint64_t from_us, uint64_t to_us) {
    add_usage_until(c, &c->usage.host_us, from_us);
    add_usage_until(c, &c->usage.idle_us, to_us);
}

void core_set_policy(core *c, const sched_limits *limits) {
    sched_set_policy(c->sched, limits, now(c));
}

void core_end(core *c) {
    while (c->n_flight > 0) finish_oldest(c);
    sched_cancel_all(c->sched, now(c));
    if (c->opened) sched_save(c->sched, c->lost ? 0 : now(c) + SAVE_US);
    residency_close(&c->models);
}

inferd_status core_verify(const core *c, inferd_err *err) {
    inferd_status st = sched_verify(c->sched, err);
    if (st == INFERD_OK && c->host.n_pages > 0) st = pool_verify(&c->host, err);
    return st == INFERD_OK && c->opened ? residency_verify(&c->models, err) : st;
}
