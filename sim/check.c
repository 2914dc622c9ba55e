/* check.c - see check.h.
 *
 *     the device      tests/fake_device.h with weights that can be told apart, layouts that differ,
 *                     and trouble
 *     the input       what happens, drawn from the seed
 *     the invariants  after every event
 *     the end         everything ends, everything is given back
 */
#include "check.h"

#include <stdarg.h>

#include "../bench/rng.h"
#include "core.h"
#include "fake_device.h"
#include "sched_state.h"

enum {
    MODELS_MAX = 10,
    REQUESTS_MAX = 400,
    TOKENS_MAX = 130, // prompt and output of one request
    PAGE_CELLS = 24,  // tokens in a page, whatever the layout
    CONTEXT = 160,
    TRACE_LINES = 40, // shown of a world that failed
    TRACE_BYTES = 200,
    PAGE_BYTES = 2 << 20,
    TENANTS = 3,

    EVENTS_MIN = 500,
    EVENTS_MORE = 700,
    TURNS_MAX = 300000, // of a world in all; more: nothing moves
    DRAIN_US_MAX = 60 * 1000 * 1000,

    STARVATION_US = 20000,
    RETRY_US = 30000,
    RETRY_US_MAX = 120000,

    /* Longest waits that are no fault, about twice what a few thousand sound worlds show. */
    FLOOD_STEPS_MAX = 150,
    TURN_WAIT_US_MAX = 4500000,
    URGENT_US_MAX = 60000,
    GUARANTEED_US_MAX = 260000
};

/* What a world is about. */
typedef enum theme {
    THEME_STORM,      // everything
    THEME_FLOOD,      // one model's urgent requests never stop; another's wait
    THEME_TURNS,      // work without end for models that do not fit together
    THEME_URGENT,     // one model is always busy; another wakes, of a higher class
    THEME_GUARANTEED, // the same, with a guarantee and everybody alike
    THEME_IDLE,       // few requests for many models: who goes, who comes back
    THEMES
} theme;

static const char *const THEME_NAMES[THEMES] = {"storm",  "flood",      "turns",
                                                "urgent", "guaranteed", "idle"};

typedef struct slot {
    bool used, removed;
    model_policy policy;
    kv_layout kv;
    uint32_t weight_pages;
    tok_id stamp; // what its weights are made of
    uint32_t same_as;
    bool is_stamped;

    uint32_t n_pieces, fail_piece, wait_piece; // of the stage under way; 0: none
    bool has_waited;
    uint64_t wake_us; // 0: nobody waits
    uint32_t n_load_pieces;
    bool fail_load, loading;
    const uint32_t *pages;

    uint64_t n_stages, n_loads; // that ended well
    uint64_t failed_us;         // when it was FAILED last
    bool is_asked_for;          // by hand, since it failed

    /* Before the newest turn. */
    model_state state;
    uint64_t active_us, hot_since_us, n_evicted[ENGINE_EVICT_CAUSES];
    uint32_t held;
    bool was_wanted, was_pinned, had_steps;
} slot;

typedef struct request {
    gen_request *copy; // owned
    tok_id *expected;  // owned
    uint32_t n_expected, n_tokens, n_scored, n_drawn;
    gen_finish finish;
    tok_id stop_id;
    bool is_alive, is_paused, is_cancelled, has_failed_step, is_private;
    uint64_t submitted_us, served_us; // last row
    uint64_t steps_then;              // steps of the world when it was served, or could be
    uint64_t newest_launch;
    uint32_t fewest, fewest_of_tenant; // tokens that limits left it since it came
} request;

typedef struct yard {
    fake_device fake;
    tok_id *host_memory; // [n_host_pages, PAGE_CELLS] owned
    core core;
    rng r;       // of the input
    rng trouble; // of the device
    theme theme;
    bool calm; // no more trouble
    uint64_t jumped_us;
    uint32_t room; // events that fit
    uint32_t extent_pages;
    slot slots[MODELS_MAX];
    uint32_t n_models;
    uint64_t tenant_used_bytes[TENANTS]; // at the last look
    tok_id next_stamp;
    request requests[REQUESTS_MAX + 1]; // by id
    uint32_t n_requests, n_alive, requests_max;
    uint64_t n_launches, n_steps;
    uint32_t trouble_percent, step_trouble_permille;
    bool may_lose, is_lost;
    bool ranks, guesses;
    uint64_t turn_began_us;
    uint64_t n_drafted, n_right_min, n_right_max, n_done;
    uint64_t tokens_before;
    core_account account;
    sched_counters counters;
    uint64_t next_urgent_us;
    uint64_t model_served_us[MODELS_MAX];

    bool trace;
    char (*lines)[TRACE_BYTES]; // [TRACE_LINES] a ring
    uint64_t n_lines;
    check_result *out;
} yard;

const char *check_invariant_name(check_invariant what) {
    static const char *const NAMES[CHECK_INVARIANTS] = {
        "none",    "books",    "tokens",  "events",   "ends",   "device",   "weights", "pages",
        "account", "deadline", "starved", "eviction", "states", "deadlock", "leak"};
    return NAMES[what];
}

static const char *const STATE_NAMES[MODEL_STATES] = {"none",    "cold", "staging",  "warm",
                                                      "loading", "hot",  "draining", "failed"};

/* ---- saying it ---- */

static uint64_t now(const yard *y) {
    return y->fake.clock_us + y->jumped_us;
}

__attribute__((format(printf, 2, 3))) static void say(yard *y, const char *format, ...) {
    char *line = y->lines[y->n_lines++ % TRACE_LINES];
    int n = snprintf(line, TRACE_BYTES, "%10llu us  ", (unsigned long long)now(y));
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, TRACE_BYTES - (size_t)n, format, args);
    va_end(args);
    if (y->trace) printf("%s\n", line);
}

/* The first one counts. */
__attribute__((format(printf, 3, 4))) static void violated(yard *y, check_invariant what,
                                                           const char *format, ...) {
    check_result *out = y->out;
    if (out->failed != CHECK_NONE) return;
    va_list args;
    va_start(args, format);
    vsnprintf(out->text, sizeof out->text, format, args);
    va_end(args);
    out->failed = what;
    out->at_us = now(y);
    say(y, "VIOLATED %s: %.150s", check_invariant_name(what), out->text);
}

static bool is_sound(const yard *y) {
    return y->out->failed == CHECK_NONE;
}

static uint32_t below(yard *y, uint32_t n) {
    return n > 0 ? (uint32_t)rng_below(&y->r, n) : 0;
}
static bool chance(yard *y, uint32_t percent) {
    return below(y, 100) < percent;
}
static bool is_trouble(yard *y, uint32_t percent) {
    return !y->calm && rng_below(&y->trouble, 100) < percent;
}

/* ---- the device ---- */

static void fault(yard *y, const char *what, uint32_t idx) {
    violated(y, CHECK_DEVICE, "model %u: %s", idx, what);
}

static void look_for_faults(yard *y, const char *where) {
    if (y->fake.n_faults == 0) return;
    violated(y, CHECK_DEVICE, "%u faults in %s: block tables, rows, or an order of calls",
             y->fake.n_faults, where);
}

static void stamp_weights(yard *y, slot *s, const uint32_t *pages) {
    for (uint32_t p = 0; p < s->weight_pages; p++)
        for (uint32_t i = 0; i < PAGE_CELLS; i++)
            y->fake.memory[(size_t)pages[p] * PAGE_CELLS + i] = s->stamp;
    s->pages = pages;
    s->is_stamped = true;
}

static void look_at_weights(yard *y, uint32_t idx, const char *when) {
    const slot *s = &y->slots[y->fake.models[idx].weights_of];
    if (!s->is_stamped) return;
    for (uint32_t p = 0; p < s->weight_pages; p++)
        for (uint32_t i = 0; i < PAGE_CELLS; i++)
            if (y->fake.memory[(size_t)s->pages[p] * PAGE_CELLS + i] != s->stamp) {
                violated(y, CHECK_WEIGHTS,
                         "model %u %s: page %u of its weights holds something else", idx, when,
                         s->pages[p]);
                return;
            }
}

static inferd_status yard_open(void *self, device_about *out, inferd_err *err) {
    yard *y = self;
    inferd_status st = fake_open(&y->fake, out, err);
    out->extent_pages = y->extent_pages;
    y->host_memory = calloc(size_max(y->fake.n_host_pages, 1) * PAGE_CELLS, sizeof(tok_id));
    return y->host_memory != NULL ? st : inferd_fail(err, INFERD_ENOMEM, "no memory");
}

static void yard_close(void *self) {
    fake_close(&((yard *)self)->fake);
}

static inferd_status yard_attach(void *self, uint32_t idx, struct model *m, uint32_t same_as,
                                 const device_limits *limits, device_model *out, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    if (is_trouble(y, y->trouble_percent / 4)) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_ENOMEM, "no memory to attach");
    }
    y->fake.models[idx].weight_pages = s->weight_pages;
    inferd_status st = fake_attach(&y->fake, idx, m, same_as, limits, out, err);
    out->spec.kv = s->kv;
    return st;
}

static void yard_detach(void *self, uint32_t idx) {
    yard *y = self;
    for (uint32_t i = 0; i < y->fake.n_launched; i++)
        if (y->fake.launched[i]->model_idx == idx) fault(y, "detached while a step uses it", idx);
    fake_detach(&y->fake, idx);
    y->slots[idx].is_stamped = y->slots[idx].loading = false;
    y->slots[idx].wake_us = 0;
}

static void yard_unstage(void *self, uint32_t idx) {
    yard *y = self;
    slot *s = &y->slots[idx];
    if (!y->fake.models[idx].staging && !y->fake.models[idx].warm)
        fault(y, "unstaged, and nothing is staged", idx);
    fake_unstage(&y->fake, idx);
    s->is_stamped = s->loading = false;
    s->wake_us = 0;
    say(y, "device: unstage %u", idx);
}

static inferd_status yard_stage_begin(void *self, uint32_t idx, const uint32_t *pages,
                                      void (*wake)(void *), void *wake_ctx, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    say(y, "device: stage %u", idx);
    const resident *m = &y->core.models.slots[idx];
    if (m->n_failures > 0 && m->retry_at_us > now(y) && !s->is_asked_for)
        violated(y, CHECK_STATES, "model %u is staged %llu us before its retry", idx,
                 (unsigned long long)(m->retry_at_us - now(y)));
    if (is_trouble(y, y->trouble_percent / 3)) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_EIO, "the file cannot be opened");
    }
    s->n_pieces = 1 + (uint32_t)rng_below(&y->trouble, 5);
    if (is_trouble(y, y->trouble_percent)) s->n_pieces *= 10;
    s->fail_piece =
        is_trouble(y, y->trouble_percent) ? 1 + (uint32_t)rng_below(&y->trouble, s->n_pieces) : 0;
    s->wait_piece = is_trouble(y, 30) ? 1 + (uint32_t)rng_below(&y->trouble, s->n_pieces) : 0;
    s->has_waited = false;
    s->is_stamped = false;
    s->pages = pages;
    return fake_stage_begin(&y->fake, idx, pages, wake, wake_ctx, err);
}

static inferd_status yard_stage_step(void *self, uint32_t idx, uint64_t budget_us,
                                     device_progress *out, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    fake_model *m = &y->fake.models[idx];
    if (m->piece + 1 == s->wait_piece && !s->has_waited) {
        s->has_waited = true;
        s->wake_us = now(y) + 1 + rng_below(&y->trouble, 20000);
        *out = (device_progress){.done = m->piece, .total = s->n_pieces, .waiting = true};
        return INFERD_OK;
    }
    if (s->wake_us != 0) fault(y, "a stage that waits was worked on", idx);
    y->fake.stage_pieces = s->n_pieces;
    if (m->piece + 1 == s->fail_piece) {
        y->fake.fail_stage_at = y->fake.n_pieces + 1;
        s->failed_us = now(y);
    }
    uint32_t *pages = (uint32_t *)(uintptr_t)s->pages;
    inferd_status st = fake_stage_step(&y->fake, idx, budget_us, out, err);
    if (st == INFERD_OK && out->finished) {
        s->n_stages++;
        if (!y->fake.apart) stamp_weights(y, s, pages);
    }
    return st;
}

static inferd_status yard_load_begin(void *self, uint32_t idx, const uint32_t *pages,
                                     inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    say(y, "device: load %u", idx);
    inferd_status st = fake_load_begin(&y->fake, idx, pages, err);
    if (!y->fake.apart) look_at_weights(y, idx, "is loaded");
    if (is_trouble(y, y->trouble_percent / 3)) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_EDEVICE, "the device maps nothing");
    }
    if (y->fake.apart) stamp_weights(y, s, pages); // as early as a copy may be
    s->loading = true;
    s->n_load_pieces = y->fake.apart ? (uint32_t)rng_below(&y->trouble, 6) : 0;
    if (is_trouble(y, y->trouble_percent)) s->n_load_pieces *= 10;
    s->fail_load = is_trouble(y, y->trouble_percent / 2);
    return st;
}

static inferd_status yard_load_step(void *self, uint32_t idx, uint64_t budget_us,
                                    device_progress *out, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    if (!s->loading) fault(y, "a load step without a load", idx);
    if (s->n_load_pieces > 0) {
        s->n_load_pieces--;
        if (y->fake.n_launched == 0) y->fake.clock_us += 200;
        *out = (device_progress){.done = 1, .total = 100};
        return INFERD_OK;
    }
    if (s->fail_load) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_EDEVICE, "the copy failed");
    }
    s->loading = false;
    s->n_loads++;
    return fake_load_step(&y->fake, idx, budget_us, out, err);
}

static void yard_unload(void *self, uint32_t idx) {
    yard *y = self;
    say(y, "device: unload %u", idx);
    look_at_weights(y, idx, "is unloaded");
    fake_unload(&y->fake, idx);
    if (y->fake.apart) y->slots[idx].is_stamped = false;
    y->slots[idx].loading = false;
}

/* Pages that sequence `s` of a step may touch. */
static bool uses_page(const yard *y, const step *st, uint32_t seq_idx, uint32_t page) {
    const batch_seq *s = &st->b.seqs[seq_idx];
    const kv_layout *l = &y->slots[st->model_idx].kv;
    for (uint32_t i = 0; i < s->n_blocks * l->n_groups; i++)
        if ((uint32_t)s->slots[i] / l->slots_per_page == page) return true;
    return false;
}

/* Steps of different models have no page in common. */
static void look_for_common_pages(yard *y, const step *a, const step *b) {
    const kv_layout *l = &y->slots[a->model_idx].kv;
    for (uint32_t i = 0; i < a->b.n_seqs; i++)
        for (uint32_t k = 0; k < a->b.seqs[i].n_blocks * l->n_groups; k++)
            for (uint32_t j = 0; j < b->b.n_seqs; j++)
                if (uses_page(y, b, j, (uint32_t)a->b.seqs[i].slots[k] / l->slots_per_page)) {
                    fault(y, "a page is used by two models at once", a->model_idx);
                    return;
                }
}

static void note_served(yard *y, const step *st) {
    y->n_launches++;
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        uint64_t id = st->items[i].q->req->id;
        request *q = &y->requests[id];
        if (id > y->n_requests || !q->is_alive) {
            violated(y, CHECK_EVENTS, "request %llu is computed and has ended",
                     (unsigned long long)id);
            return;
        }
        if (q->copy->model_idx != st->model_idx)
            violated(y, CHECK_DEVICE, "request %llu of model %u is in a step of model %u",
                     (unsigned long long)id, q->copy->model_idx, st->model_idx);
        if (q->newest_launch == y->n_launches)
            violated(y, CHECK_DEVICE, "request %llu is in a step twice", (unsigned long long)id);
        if (q->is_paused)
            violated(y, CHECK_DEVICE, "request %llu is paused and computed",
                     (unsigned long long)id);
        q->newest_launch = y->n_launches;
        q->served_us = now(y);
        q->steps_then = y->n_steps;
    }
    y->model_served_us[st->model_idx] = now(y);
}

static void yard_launch(void *self, const step *st) {
    yard *y = self;
    fake_device *d = &y->fake;
    const sched_limits *l = &y->core.options.limits;
    uint32_t idx = st->model_idx;
    say(y, "device: step %llu of model %u, %u rows, %u sequences", (unsigned long long)st->epoch,
        idx, st->b.n_rows, st->b.n_seqs);
    if (d->n_launched >= d->depth) fault(y, "too many steps at once", idx);
    if (!d->models[d->models[idx].weights_of].hot)
        fault(y, "a step of a model that is not hot", idx);
    if (st->b.n_rows > l->step_tokens_max || st->b.n_logits > l->logits_max ||
        st->b.n_seqs > l->running_max || st->b.n_rows == 0)
        fault(y, "a step that is too large", idx);
    d->kv = y->slots[idx].kv;
    fake_look_for_overlap(d, st, st);
    for (uint32_t i = 0; i < d->n_launched; i++) {
        if (d->launched[i]->model_idx == idx)
            fake_look_for_overlap(d, st, d->launched[i]);
        else
            look_for_common_pages(y, st, d->launched[i]);
    }
    look_at_weights(y, idx, "is computed with");
    if (!d->late) fake_compute(d, st, d->drawn[d->n_launched]);
    d->launched[d->n_launched++] = st;
    note_served(y, st);
    look_for_faults(y, "launch");
}

static inferd_status yard_finish(void *self, step *st, uint64_t *device_us, inferd_err *err) {
    yard *y = self;
    fake_device *d = &y->fake;
    d->kv = y->slots[st->model_idx].kv;
    bool fails = !y->calm && rng_below(&y->trouble, 1000) < y->step_trouble_permille;
    bool nan = !y->calm && rng_below(&y->trouble, 1000) < y->step_trouble_permille;
    bool lost = y->may_lose && fails && rng_below(&y->trouble, 3) == 0;
    if (fails) d->fail_at = d->n_steps + 1;
    if (nan) d->nan_at = d->n_steps + 1;
    look_at_weights(y, st->model_idx, "was computed with");
    inferd_status status = fake_finish(d, st, device_us, err);
    y->n_steps++;
    look_for_faults(y, "finish");
    for (uint32_t i = 0; i < st->b.n_seqs && (fails || nan); i++)
        y->requests[st->items[i].q->req->id].has_failed_step = true;
    if (!lost || status == INFERD_OK) return status;
    y->is_lost = true;
    say(y, "device: lost");
    return inferd_fail(err, INFERD_ELOST, "the device is gone");
}

/* Where there is one memory the host's slots are the pool's. */
static void yard_move_kv(void *self, uint32_t idx, uint32_t n, const int32_t *from,
                         const int32_t *to, bool to_host) {
    yard *y = self;
    size_t cells = y->slots[idx].kv.block_tokens;
    tok_id *near = y->fake.memory, *host = y->fake.apart ? y->host_memory : near;
    tok_id *source = to_host ? near : host, *target = to_host ? host : near;
    say(y, "device: move %u slots of model %u %s", n, idx, to_host ? "to the host" : "back");
    for (uint32_t i = 0; i < n; i++)
        memcpy(target + (size_t)to[i] * cells, source + (size_t)from[i] * cells,
               cells * sizeof *target);
    y->fake.clock_us += 20;
    y->out->n_moves++;
}

static void yard_stats(void *self, backend_stats *out) {
    (void)self;
    *out = (backend_stats){0};
}

#define YARD_OPS                                                                                   \
    .open = yard_open, .close = yard_close, .attach = yard_attach, .detach = yard_detach,          \
    .stage_begin = yard_stage_begin, .stage_step = yard_stage_step, .unstage = yard_unstage,       \
    .load_begin = yard_load_begin, .load_step = yard_load_step, .unload = yard_unload,             \
    .launch = yard_launch, .finish = yard_finish, .get_stats = yard_stats

static const device_ops OPS_WITHOUT_MOVES = {YARD_OPS};
static const device_ops OPS = {YARD_OPS, .move_kv = yard_move_kv};

/* ---- what comes out ---- */

/* Its model is FAILED, or was since then. */
static bool has_failed_since(const yard *y, uint32_t idx, uint64_t since_us) {
    const slot *s = &y->slots[idx], *root = &y->slots[s->same_as];
    return residency_state(&y->core.models, idx) == MODEL_FAILED || s->removed || !s->used ||
           s->failed_us >= since_us || root->failed_us >= since_us;
}

/* Whatever was the least that limits left it, up to now. */
static void note_limits(yard *y, request *q) {
    const gen_request *r = q->copy;
    const sched *s = y->core.sched;
    if (!s->models[r->model_idx].open) return;
    q->fewest = u32_min(q->fewest, sched_tokens_for(s, r->model_idx, r->tenant_idx));
    q->fewest_of_tenant =
        u32_min(q->fewest_of_tenant, sched_tenant_tokens(s, r->model_idx, r->tenant_idx));
}

static uint32_t stored_max(const gen_request *r) {
    return r->n_prompt + (r->max_tokens > 0 ? r->max_tokens - 1 : 0);
}

static void check_end(yard *y, request *q, const gen_event *e) {
    unsigned long long id = e->id;
    const gen_request *r = q->copy;
    inferd_status st = e->done.status;
    bool right = false;
    switch (e->done.finish) {
    case GEN_STOP:
    case GEN_LENGTH:
        if (q->n_tokens != q->n_expected || e->done.finish != q->finish ||
            e->done.stop_id != q->stop_id)
            violated(y, CHECK_TOKENS, "request %llu ended by %d after %u tokens, expected %d, %u",
                     id, (int)e->done.finish, q->n_tokens, (int)q->finish, q->n_expected);
        if (q->n_scored != (r->n_prompt_logprobs >= 0 ? r->n_prompt : 0))
            violated(y, CHECK_TOKENS, "request %llu: %u of %u prompt tokens were scored", id,
                     q->n_scored, r->n_prompt);
        return;
    case GEN_CANCELLED:
        right = q->is_cancelled;
        break;
    case GEN_TIMEOUT:
        right =
            (r->deadline_us != 0 && e->at_us >= r->deadline_us) ||
            (r->queue_deadline_us != 0 && e->at_us >= r->queue_deadline_us && q->served_us == 0);
        break;
    case GEN_ERROR:
        note_limits(y, q);
        right = (st == INFERD_EDEVICE && q->has_failed_step) ||
                (st == INFERD_ELOST && y->is_lost) ||
                (st == INFERD_ETOOLONG && stored_max(r) > u32_min(q->fewest, CONTEXT - 1)) ||
                (st == INFERD_EQUOTA && stored_max(r) > q->fewest_of_tenant) ||
                (st == INFERD_EMODEL && has_failed_since(y, r->model_idx, q->submitted_us)) ||
                st == INFERD_EBUSY;
        break;
    }
    if (!right)
        violated(y, CHECK_ENDS, "request %llu ended by %d, status %d: %s", id, (int)e->done.finish,
                 (int)st, e->done.text);
}

static void on_event(void *ctx, const gen_event *e) {
    yard *y = ctx;
    unsigned long long id = e->id;
    if (y->room == 0) violated(y, CHECK_EVENTS, "request %llu has an event, and none fits", id);
    if (y->room != UINT32_MAX && y->room > 0) y->room--;
    if (e->id == 0 || e->id > y->n_requests || !y->requests[e->id].is_alive) {
        violated(y, CHECK_EVENTS, "request %llu has an event of kind %d and is not alive", id,
                 (int)e->kind);
        return;
    }
    request *q = &y->requests[e->id];
    if (e->kind == GEN_EV_PROMPT) {
        if (q->n_tokens > 0 || q->n_scored >= q->copy->n_prompt ||
            e->token.r.id != q->copy->prompt[q->n_scored])
            violated(y, CHECK_EVENTS, "request %llu: prompt token %u is out of order", id,
                     q->n_scored);
        else if (q->n_scored > 0 &&
                 fabsf(e->token.r.logprob -
                       fake_logprob(q->copy->prompt, q->n_scored, e->token.r.id)) > 0)
            violated(y, CHECK_TOKENS, "request %llu: prompt token %u has another probability", id,
                     q->n_scored);
        q->n_scored++;
        return;
    }
    if (e->kind == GEN_EV_TOKEN) {
        if (q->n_tokens >= q->n_expected || e->token.r.id != q->expected[q->n_tokens])
            violated(y, CHECK_TOKENS, "request %llu: token %u is %d, expected %d of %u", id,
                     q->n_tokens, e->token.r.id,
                     q->n_tokens < q->n_expected ? q->expected[q->n_tokens] : -1, q->n_expected);
        q->n_tokens++;
        y->out->n_tokens++;
        return;
    }
    say(y, "request %llu ended by %d, status %d, %u tokens", id, (int)e->done.finish,
        (int)e->done.status, q->n_tokens);
    if (e->done.n_output != q->n_tokens)
        violated(y, CHECK_EVENTS, "request %llu had %u tokens, its last event says %u", id,
                 q->n_tokens, e->done.n_output);
    if (e->done.n_cached > 0 && (q->copy->no_cache || q->is_private))
        violated(y, CHECK_ENDS, "request %llu found %u tokens in the cache, and shares none", id,
                 e->done.n_cached);
    check_end(y, q, e);
    y->out->n_preempted += e->done.n_preempted;
    q->is_alive = false;
    y->n_alive--;
    y->n_done++;
}

/* Guesses counted by what a step drew and what became of it. */
static void on_step(void *ctx, const step *st, uint64_t device_us, uint64_t wall_us) {
    yard *y = ctx;
    (void)device_us, (void)wall_us;
    if (y->core.lost) return;
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const step_item *item = &st->items[i];
        request *q = &y->requests[item->q->req != NULL ? item->q->req->id : 0];
        uint32_t n_drawn = 0;
        bool dropped = false;
        for (uint32_t d = item->draw_begin; d < item->draw_begin + item->n_draws; d++) {
            if (st->draws[d].row.forced >= 0) continue;
            n_drawn++;
            dropped |= st->draws[d].dropped;
        }
        uint32_t n_new = q->n_tokens - q->n_drawn;
        q->n_drawn = q->n_tokens;
        if (n_drawn <= 1 || dropped || q->has_failed_step) continue;
        y->n_drafted += n_drawn - 1;
        y->n_right_min += n_new > 0 ? n_new - 1 : 0;
        y->n_right_max += n_new;
    }
}

static uint64_t read_clock(void *ctx) {
    return now(ctx);
}
static uint32_t read_room(void *ctx) {
    return ((yard *)ctx)->room;
}

/* ---- the input ---- */

/* What the request gives when it is alone in the world. */
static void expect(request *q) {
    const gen_request *r = q->copy;
    tok_id all[TOKENS_MAX + 1], banned[2];
    uint32_t n = r->n_prompt, n_banned = 0;
    memcpy(all, r->prompt, n * sizeof *all);
    if (!r->ignore_eos) banned[n_banned++] = FAKE_END;
    if (r->n_stop_ids > 0) banned[n_banned++] = r->stop_ids[0];
    q->finish = GEN_LENGTH;
    q->stop_id = -1;
    q->n_expected = 0;
    while (q->n_expected < r->max_tokens) {
        bool early = q->n_expected < r->min_tokens;
        tok_id id = fake_next(all, n, banned, early ? n_banned : 0);
        all[n++] = q->expected[q->n_expected++] = id;
        if (early) continue;
        bool is_end = id == FAKE_END && !r->ignore_eos;
        if (!is_end && (r->n_stop_ids == 0 || r->stop_ids[0] != id)) continue;
        q->finish = GEN_STOP;
        q->stop_id = is_end ? -1 : id;
        return;
    }
}

static gen_request *copy_of(const gen_request *q) {
    gen_request *c = malloc(sizeof *c);
    *c = *q;
    c->prompt = malloc(q->n_prompt * sizeof *c->prompt);
    memcpy(c->prompt, q->prompt, q->n_prompt * sizeof *c->prompt);
    c->stop_ids = malloc((q->n_stop_ids + 1) * sizeof *c->stop_ids);
    if (q->n_stop_ids > 0) c->stop_ids[0] = q->stop_ids[0];
    return c;
}

/* Requests may name it. */
static bool is_served(const yard *y, uint32_t idx) {
    return y->slots[idx].used && !y->slots[idx].removed;
}

static gen_request *draw_request(yard *y, uint64_t id, uint32_t idx) {
    gen_request *q = calloc(1, sizeof *q);
    uint32_t n_prompt = 1 + (chance(y, 25) ? below(y, 80) : below(y, 30)), kind = below(y, 4);
    q->id = id;
    q->model_idx = idx;
    q->tenant_idx = below(y, TENANTS);
    q->class = (gen_class)below(y, GEN_CLASSES);
    q->rank = y->ranks ? (int32_t)below(y, 3) : 0;
    q->prompt = malloc(n_prompt * sizeof *q->prompt);
    q->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        q->prompt[i] = i < n_prompt * 3 / 4 ? (tok_id)((kind * 50 + i) % FAKE_VOCAB)
                                            : (tok_id)below(y, FAKE_VOCAB);
    q->max_tokens = u32_min(below(y, 50), TOKENS_MAX - n_prompt);
    q->ignore_eos = chance(y, 60);
    q->min_tokens = chance(y, 30) ? below(y, 10) : 0;
    q->no_cache = chance(y, 15);
    q->n_logprobs = -1;
    q->n_prompt_logprobs = chance(y, 15) ? 0 : -1;
    q->cache_scope[0] = below(y, 2);
    q->sampling.temperature = 0;
    if (chance(y, 20)) {
        q->stop_ids = malloc(sizeof *q->stop_ids);
        q->stop_ids[0] = (tok_id)below(y, FAKE_VOCAB);
        q->n_stop_ids = 1;
    }
    return q;
}

/* Takes the request. */
static void submit(yard *y, gen_request *r) {
    request *q = &y->requests[r->id];
    INFERD_CHECK(r->id == y->n_requests + 1 && r->id <= REQUESTS_MAX);
    y->n_requests++;
    *q = (request){.copy = copy_of(r),
                   .expected = malloc(TOKENS_MAX * sizeof *q->expected),
                   .is_alive = true,
                   .submitted_us = now(y),
                   .steps_then = y->n_steps,
                   .fewest = UINT32_MAX,
                   .fewest_of_tenant = UINT32_MAX};
    note_limits(y, q);
    q->is_private = r->cache_scope[1] != 0;
    if (residency_state(&y->core.models, r->model_idx) == MODEL_FAILED)
        y->slots[r->model_idx].failed_us = now(y);
    r->arrival_us = now(y);
    expect(q);
    y->n_alive++;
    say(y, "submit %llu: model %u class %d, prompt %u, output %u%s", (unsigned long long)r->id,
        r->model_idx, (int)r->class, r->n_prompt, r->max_tokens,
        r->deadline_us != 0 || r->queue_deadline_us != 0 ? ", deadline" : "");
    sched_submit(y->core.sched, r, now(y));
}

static bool may_submit(const yard *y) {
    return y->n_requests < y->requests_max && y->room > y->core.n_flight * y->core.step_events_max;
}

static void submit_any(yard *y) {
    uint32_t idx = below(y, y->n_models);
    if (!may_submit(y) || !is_served(y, idx)) return;
    gen_request *r = draw_request(y, y->n_requests + 1, idx);
    if (chance(y, 8)) r->deadline_us = now(y) + 1 + below(y, 200000);
    if (chance(y, 8)) r->queue_deadline_us = now(y) + 1 + below(y, 30000);
    if (chance(y, 10)) r->cache_scope[1] = r->id; // shares nothing with anybody
    submit(y, r);
}

static void submit_plain(yard *y, uint32_t idx, gen_class class, uint32_t n_prompt,
                         uint32_t n_output) {
    if (!may_submit(y) || !is_served(y, idx)) return;
    gen_request *r = draw_request(y, y->n_requests + 1, idx);
    r->class = class;
    r->rank = 0;
    r->n_prompt = u32_min(n_prompt, r->n_prompt);
    r->max_tokens = u32_min(n_output, TOKENS_MAX - r->n_prompt);
    r->ignore_eos = true;
    r->n_stop_ids = 0;
    r->n_prompt_logprobs = -1;
    submit(y, r);
}

static void draw_shape(yard *y, slot *s, uint32_t pages_max) {
    static const uint32_t GROUPS[] = {1, 2, 1, 2}, TOKENS[] = {4, 4, 6, 3};
    uint32_t kind = below(y, 4);
    s->kv = fake_layout(TOKENS[kind], GROUPS[kind], PAGE_CELLS / TOKENS[kind]);
    s->kv.slot_bytes = PAGE_BYTES / s->kv.slots_per_page;
    uint32_t n = 1 + below(y, pages_max);
    s->weight_pages = (n + y->extent_pages - 1) / y->extent_pages * y->extent_pages;
}

/* Its weights are another's, too. */
static bool is_shared(const yard *y, uint32_t idx) {
    for (uint32_t i = 0; i < y->n_models; i++)
        if (i != idx && y->slots[i].used && y->slots[i].same_as == idx) return true;
    return y->slots[idx].same_as != idx;
}

static model_policy draw_policy(yard *y, uint32_t idx) {
    model_policy p = {.class = (gen_class)below(y, GEN_CLASSES),
                      .weight = 1 + below(y, 5),
                      .keep_alive_us = chance(y, 20) ? 5000 + below(y, 40000) : POLICY_NEVER,
                      .replicas_min = 1,
                      .replicas_max = 1};
    if (chance(y, 20)) p.share = (share_spec){(share_policy)below(y, 3), 5 + below(y, 30), 1};
    if (chance(y, 10)) p.slo_ttft_ms = 5 + below(y, 50), p.slo_tpot_ms = 2 + below(y, 20);
    if (chance(y, 8)) p.pin = chance(y, 50) ? PIN_HOT : PIN_WARM;
    if (y->slots[idx].used && is_shared(y, idx)) p.pin = PIN_NONE;
    uint32_t n_min = chance(y, 15) ? 1 + below(y, 10) : 0;
    if (p.pin == PIN_HOT && chance(y, 50)) n_min += y->slots[idx].weight_pages;
    p.min_bytes = (uint64_t)n_min * PAGE_BYTES;
    if (chance(y, 10))
        p.max_bytes = (uint64_t)(y->slots[idx].weight_pages + 5 + below(y, 20)) * PAGE_BYTES;
    if (p.max_bytes != 0 && p.max_bytes < p.min_bytes) p.max_bytes = p.min_bytes;
    return p;
}

static void attach(yard *y, uint32_t idx, const model_policy *policy, uint32_t same_as) {
    slot *s = &y->slots[idx];
    slot fresh = {.used = true,
                  .policy = *policy,
                  .kv = s->kv,
                  .weight_pages = s->weight_pages,
                  .stamp = y->next_stamp--,
                  .failed_us = s->failed_us,
                  .same_as = same_as == DEVICE_OWN ? idx : same_as};
    if (same_as != DEVICE_OWN) fresh.weight_pages = y->slots[same_as].weight_pages;
    *s = fresh;
    say(y, "attach %u: %u pages, class %d, %u a block, pin %d, min %llu%s", idx, s->weight_pages,
        (int)policy->class, s->kv.block_tokens, (int)policy->pin,
        (unsigned long long)policy->min_bytes / PAGE_BYTES,
        same_as != DEVICE_OWN ? ", shared" : "");
    residency_attach(&y->core.models, idx, NULL, same_as, policy, now(y));
    if (y->core.models.slots[idx].state == MODEL_FAILED) // it has no guarantee, and needs none
        s->policy.min_bytes = s->policy.max_bytes = 0;
}

/* Whoever was let in and never fits under it ends with an error. */
static void set_policy(yard *y, uint32_t idx, const model_policy *policy) {
    inferd_err err = {0};
    residency *m = &y->core.models;
    if (residency_set_policy(m, idx, policy, now(y), &err) != INFERD_OK) return;
    say(y, "policy of %u: class %d, pin %d, min %llu, max %llu", idx, (int)policy->class,
        (int)policy->pin, (unsigned long long)policy->min_bytes / PAGE_BYTES,
        (unsigned long long)policy->max_bytes / PAGE_BYTES);
    y->slots[idx].policy = *policy;
}

/* Guarantees are sometimes more than there is room for, ceilings less than requests need. */
static void change_tenant(yard *y) {
    uint32_t idx = below(y, TENANTS);
    inferd_err err = {0};
    tenant_policy p = {.weight = 1 + below(y, 4), .max_class = GEN_SYSTEM};
    if (chance(y, 30)) p.share = (share_spec){(share_policy)below(y, 3), 5 + below(y, 30), 1};
    if (chance(y, 30)) p.min_bytes = (uint64_t)(1 + below(y, 8)) * PAGE_BYTES;
    if (chance(y, 30)) p.max_bytes = p.min_bytes + (uint64_t)(1 + below(y, 12)) * PAGE_BYTES;
    say(y, "tenant %u: share %d of %u, min %llu, max %llu", idx, (int)p.share.policy,
        p.share.percent, (unsigned long long)p.min_bytes / PAGE_BYTES,
        (unsigned long long)p.max_bytes / PAGE_BYTES);
    if (sched_set_tenant(y->core.sched, idx, &p, now(y), &err) != INFERD_OK)
        violated(y, CHECK_STATES, "tenant %u: %s", idx, err.text);
}

static void change_models(yard *y) {
    uint32_t idx = below(y, y->n_models);
    slot *s = &y->slots[idx];
    if (!s->used) {
        draw_shape(y, s, y->fake.n_pages / 2);
        model_policy p = draw_policy(y, idx), plain = p;
        plain.min_bytes = 0;
        plain.pin = PIN_NONE;
        attach(y, idx, &plain, DEVICE_OWN);
        set_policy(y, idx, &p);
    } else if (!s->removed && chance(y, 40)) {
        say(y, "remove %u", idx);
        residency_remove(&y->core.models, idx);
        s->removed = true;
    } else if (!s->removed) {
        model_policy p = draw_policy(y, idx);
        set_policy(y, idx, &p);
    }
}

static void command(yard *y) {
    static const char *const NAMES[] = {"load", "prefetch", "unload", "drop", "drain"};
    uint32_t idx = below(y, y->n_models);
    engine_command c = (engine_command)below(y, 5);
    if (!y->slots[idx].used) return;
    say(y, "%s %u", NAMES[c], idx);
    if (c == ENGINE_LOAD || c == ENGINE_PREFETCH)
        y->slots[y->core.models.slots[idx].weights_of].is_asked_for = true;
    residency_do(&y->core.models, idx, c, now(y));
}

static void storm_event(yard *y) {
    uint32_t what = below(y, 100);
    uint64_t id = 1 + below(y, u32_max(y->n_requests, 1));
    request *q = &y->requests[id];
    if (what < 26) {
        submit_any(y);
    } else if (what < 30 && y->n_requests > 0) {
        say(y, "cancel %llu", (unsigned long long)id);
        q->is_cancelled = true;
        sched_cancel(y->core.sched, id, now(y));
    } else if (what < 33 && y->n_requests > 0 && q->is_alive) {
        say(y, "pause %llu", (unsigned long long)id);
        q->is_paused = true;
        sched_pause(y->core.sched, id);
    } else if (what < 39 && y->n_requests > 0) {
        say(y, "resume %llu", (unsigned long long)id);
        if (q->is_paused) q->steps_then = y->n_steps;
        q->is_paused = false;
        sched_resume(y->core.sched, id, now(y));
    } else if (what < 43) {
        command(y);
    } else if (what < 45) {
        change_models(y);
    } else if (what < 47) {
        y->jumped_us += 1 + below(y, chance(y, 10) ? 500000 : 10000);
    } else if (what < 49) {
        /* What is on its way has its room already. */
        y->room = y->core.n_flight * y->core.step_events_max + 1 + below(y, 60);
    } else if (what < 50) {
        change_tenant(y);
    }
}

static uint32_t n_alive_of(const yard *y, uint32_t idx) {
    uint32_t n = 0;
    for (uint32_t i = 1; i <= y->n_requests; i++)
        n += y->requests[i].is_alive && y->requests[i].copy->model_idx == idx;
    return n;
}

/* Requests until so many of the model are alive. */
static void keep_busy(yard *y, uint32_t idx, uint32_t n, gen_class class, uint32_t n_output) {
    for (uint32_t k = n_alive_of(y, idx); k < n; k++) submit_plain(y, idx, class, 20, n_output);
}

static void themed_event(yard *y) {
    switch (y->theme) {
    case THEME_STORM:
    case THEMES:
        storm_event(y);
        return;
    case THEME_FLOOD:
        keep_busy(y, 0, 4, GEN_HIGH, 8);
        keep_busy(y, 1, 1, GEN_BATCH, 20);
        return;
    case THEME_TURNS:
        for (uint32_t i = 0; i < y->n_models; i++) keep_busy(y, i, 2, GEN_NORMAL, 60);
        return;
    case THEME_URGENT:
    case THEME_GUARANTEED:
        keep_busy(y, 0, 3, y->theme == THEME_URGENT ? GEN_BATCH : GEN_NORMAL, 60);
        if (now(y) < y->next_urgent_us || n_alive_of(y, 1) > 0) return;
        submit_plain(y, 1, y->theme == THEME_URGENT ? GEN_HIGH : GEN_NORMAL, 20, 5);
        y->next_urgent_us = now(y) + 50000 + below(y, 150000);
        return;
    case THEME_IDLE:
        if (chance(y, 3)) submit_plain(y, below(y, y->n_models), GEN_NORMAL, 20, 8);
        if (chance(y, 40)) y->jumped_us += below(y, 2000);
        return;
    }
}

/* ---- the invariants ---- */

static void check_books(yard *y) {
    inferd_err err = {0};
    if (core_verify(&y->core, &err) != INFERD_OK) violated(y, CHECK_BOOKS, "%s", err.text);
}

static uint32_t held_by(const pool_owner *o) {
    return o->held[PAGE_WEIGHT] + o->held[PAGE_KV];
}

/* Ledgers as the device sees them; who took more left the others their guarantees. */
static void check_pages(yard *y) {
    const pool *p = &y->core.pool;
    uint32_t n = 0, n_host = 0, n_weights = 0;
    for (int s = 0; s < PAGE_STATES; s++) n += p->n_in[s];
    if (n != p->n_pages) violated(y, CHECK_PAGES, "%u of %u pages are somewhere", n, p->n_pages);
    for (uint32_t i = 0; i < y->n_models; i++) {
        const fake_model *m = &y->fake.models[i];
        const slot *s = &y->slots[i];
        if (!s->used || m->weights_of != i || !m->attached) continue;
        if (m->staging || m->warm) n_host += s->weight_pages;
        bool on_device = y->fake.apart ? m->hot || s->loading : m->staging || m->warm;
        n_weights += on_device ? s->weight_pages : 0;
    }
    if (y->fake.apart && p->n_host_apart != n_host)
        violated(y, CHECK_PAGES, "the host's ledger has %u pages, the device keeps %u",
                 p->n_host_apart, n_host);
    if (p->n_in[PAGE_WEIGHT] + p->n_in[PAGE_WARM] != n_weights && !y->is_lost)
        violated(y, CHECK_PAGES, "the pool has %u pages of weights, the device %u",
                 p->n_in[PAGE_WEIGHT] + p->n_in[PAGE_WARM], n_weights);
    uint32_t coming = pool_n_device_free(p) + p->n_in[PAGE_QUARANTINE];
    for (uint32_t i = 0; i < y->n_models; i++) {
        const pool_owner *o = &p->owners[i];
        uint32_t held = held_by(o), unfilled = 0;
        for (uint32_t k = 0; k < p->n_owners; k++)
            if (k != i && p->owners[k].min > held_by(&p->owners[k]))
                unfilled += p->owners[k].min - held_by(&p->owners[k]);
        if (held > y->slots[i].held && held > o->max)
            violated(y, CHECK_PAGES, "model %u took its page %u, and may have %u", i, held, o->max);
        if (held > y->slots[i].held && held > o->min && coming < unfilled)
            violated(y, CHECK_PAGES,
                     "model %u took its page %u, %u are left and %u are guaranteed to others", i,
                     held, coming, unfilled);
    }
    for (uint32_t i = 0; i < y->n_models; i++) y->slots[i].held = held_by(&p->owners[i]);
    for (uint32_t i = 0; i < TENANTS && i < y->core.sched->n_tenants; i++) {
        const sched_tenant *t = &y->core.sched->tenants[i];
        if (t->used_bytes > y->tenant_used_bytes[i] && t->used_bytes > t->max_bytes)
            violated(y, CHECK_PAGES, "tenant %u took its KiB %llu, and may have %llu", i,
                     (unsigned long long)t->used_bytes / 1024,
                     (unsigned long long)t->max_bytes / 1024);
        y->tenant_used_bytes[i] = t->used_bytes;
    }
}

static void check_account(yard *y) {
    const core_account *a = &y->core.account, *b = &y->account;
    uint64_t elapsed_us = now(y) - a->opened_us;
    if (a->step_us + a->load_us + a->idle_us > elapsed_us)
        violated(y, CHECK_ACCOUNT, "%llu us of steps, %llu of loads, %llu idle in %llu us",
                 (unsigned long long)a->step_us, (unsigned long long)a->load_us,
                 (unsigned long long)a->idle_us, (unsigned long long)elapsed_us);
    if (a->step_us < b->step_us || a->load_us < b->load_us || a->idle_us < b->idle_us)
        violated(y, CHECK_ACCOUNT, "the account went backwards");
    y->account = *a;
    sched_counters c;
    sched_count(y->core.sched, &c);
    if (c.charged_us + c.waste_us != a->step_us)
        violated(y, CHECK_ACCOUNT, "%llu us of steps, %llu were charged and %llu wasted",
                 (unsigned long long)a->step_us, (unsigned long long)c.charged_us,
                 (unsigned long long)c.waste_us);
    uint64_t n_finished = 0;
    for (int i = 0; i <= GEN_ERROR; i++) n_finished += c.n_finished[i];
    uint64_t n_unsent = sched_n_unsent(y->core.sched);
    if (c.n_submitted != y->n_requests || n_finished + c.n_running + c.n_waiting != y->n_requests ||
        y->n_done + n_unsent != n_finished)
        violated(y, CHECK_ACCOUNT,
                 "%u submitted; counted are %llu, %llu finished (%llu not told), %u alive; %llu "
                 "last events came",
                 y->n_requests, (unsigned long long)c.n_submitted, (unsigned long long)n_finished,
                 (unsigned long long)n_unsent, c.n_running + c.n_waiting,
                 (unsigned long long)y->n_done);
    if (c.prefix_hits_tokens < y->counters.prefix_hits_tokens ||
        c.n_preemptions < y->counters.n_preemptions ||
        c.prefix_hits_tokens > c.prefix_queries_tokens)
        violated(y, CHECK_ACCOUNT, "a counter went backwards, or hits exceed queries");
    bool steps_went_well = true;
    for (uint32_t i = 1; i <= y->n_requests; i++)
        steps_went_well &= !y->requests[i].has_failed_step && !y->requests[i].is_cancelled;
    if (steps_went_well && y->step_trouble_permille == 0 &&
        (c.n_drafted != y->n_drafted || c.n_drafts_right < y->n_right_min ||
         c.n_drafts_right > y->n_right_max))
        violated(y, CHECK_ACCOUNT,
                 "%llu of %llu guesses were right; seen were %llu, and %llu to %llu right",
                 (unsigned long long)c.n_drafts_right, (unsigned long long)c.n_drafted,
                 (unsigned long long)y->n_drafted, (unsigned long long)y->n_right_min,
                 (unsigned long long)y->n_right_max);
    y->counters = c;
    for (uint32_t i = 0; i < y->n_models; i++) {
        const resident *m = &y->core.models.slots[i];
        if (!y->slots[i].used || m->state == MODEL_NONE || m->weights_of != i) continue;
        if (m->n_stages != y->slots[i].n_stages || m->n_loads != y->slots[i].n_loads)
            violated(y, CHECK_ACCOUNT, "model %u: %llu stages and %llu loads, counted %llu, %llu",
                     i, (unsigned long long)y->slots[i].n_stages,
                     (unsigned long long)y->slots[i].n_loads, (unsigned long long)m->n_stages,
                     (unsigned long long)m->n_loads);
    }
}

static model_state state_of(const yard *y, uint32_t idx) {
    return residency_state(&y->core.models, idx);
}

/* After a plan with room for events: who is cancelled, failed or late is gone. */
static void check_gone(yard *y, const request *q) {
    const gen_request *r = q->copy;
    unsigned long long id = r->id;
    if (q->is_cancelled) violated(y, CHECK_ENDS, "request %llu was cancelled and goes on", id);
    if (state_of(y, r->model_idx) == MODEL_FAILED)
        violated(y, CHECK_STATES, "request %llu waits for model %u, which has failed", id,
                 r->model_idx);
    if (r->deadline_us != 0 && r->deadline_us <= y->turn_began_us)
        violated(y, CHECK_DEADLINE, "request %llu is alive %llu us after its deadline", id,
                 (unsigned long long)(now(y) - r->deadline_us));
    if (r->queue_deadline_us != 0 && r->queue_deadline_us <= y->turn_began_us && q->served_us == 0)
        violated(y, CHECK_DEADLINE, "request %llu waits %llu us after its deadline", id,
                 (unsigned long long)(now(y) - r->queue_deadline_us));
}

static void note_wait(yard *y, const request *q, uint64_t *longest, uint64_t wait,
                      uint64_t wait_max, const char *unit) {
    if (wait > *longest) *longest = wait;
    if (wait > wait_max)
        violated(y, CHECK_STARVED, "request %llu of model %u (%s) is not served for %llu %s",
                 (unsigned long long)q->copy->id, q->copy->model_idx,
                 STATE_NAMES[state_of(y, q->copy->model_idx)], (unsigned long long)wait, unit);
}

/* Who could be computed is, within the bound of such a world. */
static void check_wait(yard *y, request *q) {
    check_result *out = y->out;
    uint64_t us = now(y) - (q->served_us > q->submitted_us ? q->served_us : q->submitted_us);
    uint32_t idx = q->copy->model_idx;
    if (state_of(y, idx) != MODEL_HOT) q->steps_then = y->n_steps;
    if (y->theme == THEME_FLOOD)
        note_wait(y, q, &out->flood_steps, y->n_steps - q->steps_then, FLOOD_STEPS_MAX,
                  "steps of others");
    if (y->theme == THEME_TURNS) note_wait(y, q, &out->turn_us, us, TURN_WAIT_US_MAX, "us");
    if (y->theme == THEME_URGENT && idx == 1)
        note_wait(y, q, &out->urgent_us, us, URGENT_US_MAX, "us");
    if (y->theme == THEME_GUARANTEED && idx == 1)
        note_wait(y, q, &out->guaranteed_us, us, GUARANTEED_US_MAX, "us");
}

static void check_requests(yard *y, bool planned) {
    for (uint64_t id = 1; id <= y->n_requests && is_sound(y); id++) {
        request *q = &y->requests[id];
        if (!q->is_alive) continue;
        note_limits(y, q);
        if (y->room == UINT32_MAX && planned) check_gone(y, q);
        check_wait(y, q);
    }
}

static bool is_idle(const yard *y, uint32_t idx) {
    sched_demand d = y->core.models.demands[idx];
    return d.n_waiting + d.n_running == 0;
}

/* Before a turn: what residency_decide will find. */
static void note_models(yard *y) {
    for (uint32_t i = 0; i < y->n_models; i++) {
        const resident *m = &y->core.models.slots[i];
        slot *s = &y->slots[i];
        s->state = m->state;
        s->active_us = m->active_us;
        s->hot_since_us = m->hot_since_us;
        memcpy(s->n_evicted, m->n_evictions, sizeof s->n_evicted);
        s->had_steps = s->used && sched_model_n_steps(y->core.sched, i) > 0;
        s->was_wanted = m->wanted;
        s->was_pinned = m->policy.pin == PIN_HOT && m->served;
    }
}

/* However long the pauses under way have been, the mean of a's is not above that of b's. */
static bool pauses_less(const worth_pauses *a, const worth_pauses *b) {
    return b->n <= a->n && a->sum_ms * (b->n + 1) <= b->sum_ms * (a->n + 1);
}

/* Did v go to make room, though w, which is as idle, was worth less in every way? */
static bool is_worth_less(const yard *y, uint32_t w, uint32_t v) {
    const slot *a = &y->slots[w], *b = &y->slots[v];
    const resident *x = &y->core.models.slots[w], *z = &y->core.models.slots[v];
    if (a->weight_pages < b->weight_pages) return false; // it might not have been enough
    if (a->policy.class != b->policy.class) return a->policy.class > b->policy.class;
    enum { MARGIN_US = 2000 }; // ages are rounded
    return a->active_us + MARGIN_US < b->active_us && a->policy.weight <= b->policy.weight &&
           x->bring_us <= z->bring_us && x->bring_us > 0 && pauses_less(&z->pauses, &x->pauses);
}

static void check_eviction(yard *y, uint32_t v) {
    const resident *m = &y->core.models.slots[v];
    const slot *s = &y->slots[v];
    uint64_t min_us = y->core.models.limits.min_residency_us;
    bool pushed = false;
    for (int c = 0; c < ENGINE_EVICT_CAUSES; c++) {
        if (m->n_evictions[c] == s->n_evicted[c]) continue;
        y->out->n_evicted++;
        say(y, "model %u leaves, cause %d", v, c);
        if (c == ENGINE_EVICT_IDLE && y->turn_began_us < s->active_us + s->policy.keep_alive_us &&
            now(y) < s->active_us + s->policy.keep_alive_us && !is_shared(y, v))
            violated(y, CHECK_EVICTION,
                     "model %u left %llu us after its last use, before keep_alive", v,
                     (unsigned long long)(now(y) - s->active_us));
        if (c > ENGINE_EVICT_TURN) continue;
        pushed = c == ENGINE_EVICT_PRESSURE;
        if (s->was_pinned) violated(y, CHECK_EVICTION, "model %u is pinned and had to go", v);
        if (s->state == MODEL_HOT && now(y) < s->hot_since_us + min_us)
            violated(y, CHECK_EVICTION, "model %u had to go after %llu us, it may stay %llu", v,
                     (unsigned long long)(now(y) - s->hot_since_us), (unsigned long long)min_us);
    }
    if (!pushed || is_shared(y, v)) return;
    for (uint32_t w = 0; w < y->n_models; w++) {
        const resident *x = &y->core.models.slots[w];
        const slot *t = &y->slots[w];
        uint64_t stay_us = min_us != 0 ? min_us : 2 * x->bring_us;
        if (w == v || !t->used || is_shared(y, w) || t->state != MODEL_HOT ||
            x->state != MODEL_HOT || t->was_pinned || t->was_wanted || t->had_steps || x->wanted ||
            !is_idle(y, w) || t->active_us == y->turn_began_us ||
            y->turn_began_us < t->hot_since_us + stay_us || n_alive_of(y, w) > 0 ||
            sched_model_n_steps(y->core.sched, w) > 0)
            continue;
        if (is_worth_less(y, w, v))
            violated(y, CHECK_EVICTION, "model %u had to go, and %u was worth less", v, w);
    }
}

static void check_models(yard *y) {
    uint32_t n_staging = 0, n_loading = 0;
    for (uint32_t i = 0; i < y->n_models; i++) {
        const resident *m = &y->core.models.slots[i];
        const fake_model *f = &y->fake.models[i];
        slot *s = &y->slots[i];
        if (!s->used) continue;
        if (m->state == MODEL_NONE) { // it left
            if (!s->removed) violated(y, CHECK_STATES, "model %u left, and is served", i);
            if (f->attached) violated(y, CHECK_STATES, "model %u left, the device has it", i);
            s->used = s->removed = false;
            continue;
        }
        check_eviction(y, i);
        if (m->state == MODEL_FAILED) s->failed_us = now(y);
        if (m->state == MODEL_FAILED && m->retry_at_us != 0 && s->state == MODEL_FAILED &&
            m->weights_of == i && m->retry_at_us <= y->turn_began_us)
            violated(y, CHECK_STATES, "model %u is FAILED %llu us after its retry", i,
                     (unsigned long long)(now(y) - m->retry_at_us));
        if (m->state == MODEL_FAILED && s->state != MODEL_FAILED) {
            s->is_asked_for = false;
            y->out->n_failed_loads++;
        }
        n_staging += m->state == MODEL_STAGING;
        n_loading += m->state == MODEL_LOADING;
        if (m->weights_of != i || y->is_lost) continue;
        bool hot = m->state == MODEL_HOT || m->state == MODEL_DRAINING;
        if (hot != f->hot || (m->state == MODEL_WARM) != (f->warm && !f->hot && !s->loading) ||
            (m->state == MODEL_STAGING) != f->staging)
            violated(y, CHECK_STATES,
                     "model %u is in state %d, the device has staging %d warm %d hot %d", i,
                     (int)m->state, f->staging, f->warm, f->hot);
        uint64_t keep_us = s->policy.keep_alive_us;
        if (keep_us != POLICY_NEVER && m->state == MODEL_HOT && !is_shared(y, i) && !m->wanted &&
            s->state == MODEL_HOT && s->policy.pin != PIN_HOT && n_alive_of(y, i) == 0 &&
            sched_model_n_steps(y->core.sched, i) == 0 && m->active_us != 0 &&
            y->turn_began_us >= m->active_us + keep_us &&
            y->turn_began_us >= s->active_us + keep_us)
            violated(y, CHECK_STATES, "model %u is idle for %llu us, keep_alive is %llu", i,
                     (unsigned long long)(now(y) - m->active_us), (unsigned long long)keep_us);
    }
    if (n_staging > 1 || n_loading > 1)
        violated(y, CHECK_STATES, "%u models are staged at once, %u loaded", n_staging, n_loading);
}

/* ---- time ---- */

static void wake_stages(yard *y) {
    for (uint32_t i = 0; i < y->n_models; i++) {
        slot *s = &y->slots[i];
        if (s->wake_us == 0 || s->wake_us > now(y)) continue;
        s->wake_us = 0;
        atomic_store_explicit(&y->core.models.stage_ready, true, memory_order_release);
    }
}

/* As the engine does; see world.c. */
static void park(yard *y) {
    core *k = &y->core;
    uint64_t from_us = now(y), until_us = core_next_us(k);
    sched_counters c;
    if (until_us <= y->turn_began_us && y->room == UINT32_MAX && !k->lost)
        violated(y, CHECK_STATES, "a turn found nothing, and is asked for again at once");
    sched_count(k->sched, &c);
    if (c.n_running + c.n_waiting > c.n_paused) {
        uint64_t again_us = from_us + k->options.limits.starvation_us;
        uint64_t turn_us = from_us + k->options.residency.turn_us / 4;
        if (again_us < until_us) until_us = again_us;
        if (turn_us < until_us) until_us = turn_us;
    }
    for (uint32_t i = 0; i < y->n_models; i++)
        if (y->slots[i].wake_us != 0 && y->slots[i].wake_us < until_us)
            until_us = y->slots[i].wake_us;
    /* What comes from outside: with input there is always something soon. */
    enum { INPUT_US = 1000, NOTHING_US = 5000 };
    if (!y->calm && until_us > from_us + INPUT_US) until_us = from_us + INPUT_US;
    if (until_us == UINT64_MAX) until_us = from_us + NOTHING_US;
    if (until_us <= from_us) until_us = from_us + 1;
    y->jumped_us += until_us - from_us;
    core_idle(k, from_us, now(y));
}

static void look(yard *y, bool planned) {
    y->out->n_events++;
    if (y->core.lost) return; // nothing is promised but the ends
    check_books(y);
    if (is_sound(y)) check_pages(y);
    if (is_sound(y)) check_account(y);
    if (is_sound(y)) check_requests(y, planned);
    look_for_faults(y, "an event");
}

static bool turn(yard *y) {
    wake_stages(y);
    note_models(y);
    y->turn_began_us = now(y);
    bool any = core_turn(&y->core);
    sched_flush(y->core.sched, y->room);
    if (is_sound(y) && !y->core.lost) check_models(y);
    if (is_sound(y)) look(y, true);
    return any;
}

/* ---- a world ---- */

static void make_models(yard *y) {
    for (uint32_t i = 0; i < y->n_models; i++) {
        slot *s = &y->slots[i];
        draw_shape(y, s, y->fake.n_pages * 2 / 3);
        model_policy p = draw_policy(y, i);
        uint32_t same_as = DEVICE_OWN;
        if (y->theme == THEME_STORM) {
            if (p.pin == PIN_NONE && i > 1 && chance(y, 15) && y->slots[i - 1].same_as == i - 1)
                same_as = i - 1;
        } else {
            p = (model_policy){.class = GEN_NORMAL,
                               .weight = y->theme == THEME_IDLE ? 1 + below(y, 3) : 1,
                               .keep_alive_us = POLICY_NEVER,
                               .replicas_min = 1,
                               .replicas_max = 1};
            /* Two do not fit together, one and its keys and values do. */
            uint32_t n = y->fake.n_pages * 5 / 9, x = y->extent_pages;
            if (y->theme == THEME_FLOOD) n = 2;
            if (y->theme == THEME_IDLE) {
                n = y->fake.n_pages * 2 / 9 + below(y, 2) * 2;
                p.class = (gen_class)(GEN_NORMAL + below(y, 2));
            }
            s->weight_pages = (n + x - 1) / x * x;
            if (y->theme == THEME_GUARANTEED && i == 1)
                p.min_bytes = (uint64_t)12 * PAGE_BYTES, s->weight_pages = x;
            if (y->theme == THEME_GUARANTEED && i == 0) s->weight_pages = x;
            if (y->theme == THEME_URGENT) p.class = i == 0 ? GEN_BATCH : GEN_HIGH;
        }
        attach(y, i, &p, same_as);
    }
}

static void make_limits(yard *y, sched_limits *l, residency_limits *m) {
    *l = (sched_limits){.depth = CORE_DEPTH_MAX,
                        .running_max = 2 + below(y, 6),
                        .queue_len_max = 40,
                        .step_max_us = 100000,
                        .decode_step_us = 25000,
                        .starvation_us = STARVATION_US,
                        .no_prefix_cache = chance(y, 10)};
    l->logits_max = l->running_max + below(y, 12);
    l->step_tokens_max = l->logits_max + 16 + below(y, 100);
    if (y->fake.depth == 1 && chance(y, 60)) l->draft_tokens = below(y, 7);
    if (y->theme != THEME_STORM) l->running_max = 6, l->logits_max = 8, l->no_prefix_cache = false;
    *m = (residency_limits){.min_residency_us = chance(y, 50) ? below(y, 20000) : 0,
                            .turn_us = 20000 + below(y, 40000),
                            .retry_us = RETRY_US,
                            .retry_max_us = RETRY_US_MAX,
                            .eager = chance(y, 50)};
}

static bool make_world(yard *y) {
    sched_limits limits;
    residency_limits models;
    inferd_err err = {0};
    y->ranks = chance(y, 50);
    y->extent_pages = 1;
    y->fake = (fake_device){.n_pages = 20 + below(y, 41),
                            .depth = 1 + below(y, 2),
                            .context = CONTEXT,
                            .kv = fake_layout(4, 2, 6),
                            .late = chance(y, 70),
                            .apart = chance(y, 50),
                            .a_us = 500 + below(y, 1000),
                            .b_us = 10 + below(y, 100),
                            .c_per_us = chance(y, 50) ? 10 : 0,
                            .stage_us = 100 + below(y, 500),
                            .load_us = below(y, 2) * 200};
    y->fake.n_host_pages = chance(y, 20) ? 0 : below(y, 2 * y->fake.n_pages);
    if (y->fake.apart) {
        y->fake.n_host_pages += y->fake.n_pages / 2; // a copy of each is kept there
        y->extent_pages = 1u << below(y, 3);
        y->fake.n_pages = y->fake.n_pages / y->extent_pages * y->extent_pages;
    }
    if (y->theme != THEME_STORM) y->fake.n_host_pages = 4 * y->fake.n_pages;
    y->n_models = 3 + below(y, 8);
    if (y->theme != THEME_STORM && y->theme != THEME_IDLE) y->n_models = 2;
    if (y->theme == THEME_TURNS) y->n_models = 2 + below(y, 2);
    y->requests_max = y->theme == THEME_STORM ? 150 : REQUESTS_MAX;
    y->trouble_percent = y->theme == THEME_STORM && chance(y, 60) ? 5 + below(y, 15) : 0;
    y->step_trouble_permille = y->theme == THEME_STORM && chance(y, 30) ? 1 + below(y, 10) : 0;
    y->may_lose = chance(y, 10);
    make_limits(y, &limits, &models);
    fake_memory = chance(y, 50); // 1: texts repeat themselves, and guesses are right
    fake_words = 0;
    y->jumped_us = 1000000;
    core_options o = {.device = {chance(y, 50) ? &OPS : &OPS_WITHOUT_MOVES, y},
                      .limits = limits,
                      .residency = models,
                      .n_slots = MODELS_MAX,
                      .clock = read_clock,
                      .room = read_room,
                      .emit = on_event,
                      .on_step = on_step,
                      .ctx = y};
    if (core_init(&y->core, &o, &err) != INFERD_OK || core_open(&y->core, &err) != INFERD_OK) {
        violated(y, CHECK_BOOKS, "opening: %s", err.text);
        return false;
    }
    say(y, "seed: %s, %u pages and %u of the host %s, depth %u, %u models, %u running, drafts %u",
        THEME_NAMES[y->theme], y->fake.n_pages, y->fake.n_host_pages,
        y->fake.apart ? "apart" : "in one memory", y->fake.depth, y->n_models, limits.running_max,
        limits.draft_tokens);
    make_models(y);
    return true;
}

static void tell_states(yard *y, check_invariant what, const char *why) {
    char text[CHECK_TEXT_BYTES];
    int n = snprintf(text, sizeof text, "%s; models", why);
    for (uint32_t i = 0; i < y->n_models && (size_t)n < sizeof text; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %u:%s/%u", i,
                      y->slots[i].used ? STATE_NAMES[state_of(y, i)] : "-",
                      held_by(&y->core.pool.owners[i]));
    if ((size_t)n < sizeof text)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %u free; requests",
                      pool_n_device_free(&y->core.pool));
    for (uint64_t id = 1; id <= y->n_requests && (size_t)n < sizeof text; id++)
        if (y->requests[id].is_alive)
            n += snprintf(text + n, sizeof text - (size_t)n, " %llu (model %u, %u of %u)",
                          (unsigned long long)id, y->requests[id].copy->model_idx,
                          y->requests[id].n_tokens, y->requests[id].n_expected);
    violated(y, what, "%s", text);
}

/* The input stops: everything ends. */
static void drain(yard *y) {
    y->calm = true;
    y->room = UINT32_MAX;
    say(y, "the input stops, %u are alive", y->n_alive);
    for (uint64_t id = 1; id <= y->n_requests; id++) {
        y->requests[id].is_paused = false;
        sched_resume(y->core.sched, id, now(y));
    }
    uint64_t from_us = now(y), n = 0;
    while (is_sound(y) && (y->n_alive > 0 || sched_n_unsent(y->core.sched) > 0)) {
        if (!turn(y)) park(y);
        if (now(y) > from_us + DRAIN_US_MAX || ++n > TURNS_MAX)
            tell_states(y, CHECK_DEADLOCK, "nothing ends any more");
    }
    y->out->drain_us = now(y) - from_us;
}

static bool is_any_used(const yard *y) {
    bool any = false;
    for (uint32_t i = 0; i < y->n_models; i++) any |= y->slots[i].used;
    return any;
}

/* The models go: every page is back. */
static void leave(yard *y) {
    enum { LEAVE_US = 2000000 };
    for (uint32_t i = 0; i < y->n_models; i++) {
        if (!y->slots[i].used || y->slots[i].removed) continue;
        residency_remove(&y->core.models, i);
        y->slots[i].removed = true;
    }
    uint64_t until_us = now(y) + LEAVE_US;
    while (is_sound(y) && now(y) < until_us && is_any_used(y))
        if (!turn(y)) park(y);
    if (!is_sound(y)) return;
    const pool *p = &y->core.pool;
    for (uint32_t i = 0; i < y->n_models; i++)
        if (y->slots[i].used) tell_states(y, CHECK_LEAK, "a removed model does not leave");
    if (pool_n_device_free(p) != p->n_device || pool_n_host_free(p) != p->n_host)
        violated(y, CHECK_LEAK, "%u of %u pages of the device are free, %u of %u of the host",
                 pool_n_device_free(p), p->n_device, pool_n_host_free(p), p->n_host);
}

static void run(yard *y) {
    uint32_t n_events = EVENTS_MIN + below(y, EVENTS_MORE);
    for (uint32_t i = 0; i < n_events && is_sound(y) && !y->core.lost; i++) {
        themed_event(y);
        if (is_sound(y)) look(y, false);
        if (is_sound(y) && !turn(y)) park(y);
        if (is_sound(y) && y->room != UINT32_MAX && chance(y, 30)) y->room = UINT32_MAX;
    }
    if (is_sound(y)) drain(y);
    if (is_sound(y) && !y->core.lost) leave(y);
}

static void sum_up(yard *y) {
    check_result *out = y->out;
    out->n_steps = y->n_steps;
    out->n_requests = y->n_requests;
    out->n_turns = y->core.models.n_turns;
    out->n_drafts_right = y->counters.n_drafts_right;
    out->n_hits = y->counters.prefix_hits_tokens;
    for (uint32_t i = 0; i < y->n_models; i++) {
        out->n_loads += y->slots[i].n_loads;
    }
}

bool check_seed(uint64_t seed, bool trace, check_result *out) {
    *out = (check_result){.failed = CHECK_NONE};
    yard *y = calloc(1, sizeof *y);
    if (y == NULL) return false;
    y->out = out;
    y->trace = trace;
    y->lines = calloc(TRACE_LINES, sizeof *y->lines);
    if (y->lines == NULL) {
        free(y);
        return false;
    }
    y->r = rng_make(seed, 1, 0);
    y->trouble = rng_make(seed, 2, 0);
    y->room = UINT32_MAX;
    y->next_stamp = -1000;
    /* Half of the worlds are storms. */
    y->theme = seed % 2 == 0 ? THEME_STORM : (theme)(1 + seed / 2 % (THEMES - 1));
    if (make_world(y)) run(y);
    sum_up(y);
    if (out->failed != CHECK_NONE && !trace) {
        uint64_t from = y->n_lines > TRACE_LINES ? y->n_lines - TRACE_LINES : 0;
        for (uint64_t i = from; i < y->n_lines; i++) printf("%s\n", y->lines[i % TRACE_LINES]);
    }
    if (out->failed == CHECK_NONE) { // else its books may be beyond this
        if (y->core.opened) core_end(&y->core);
        core_deinit(&y->core);
    }
    for (uint32_t id = 1; id <= y->n_requests; id++) {
        gen_request_destroy(y->requests[id].copy);
        free(y->requests[id].expected);
    }
    free(y->host_memory);
    free(y->lines);
    free(y);
    return true;
}
