/* check.c - see check.h: the life of a world.
 *
 *     the input       events drawn from the seed
 *     the invariants  after every event
 *     the end         every request ends, everything is given back
 */
#include <stdarg.h>

#include "check_yard.h"

const char *check_invariant_name(check_invariant what) {
    static const char *const NAMES[CHECK_INVARIANTS] = {
        "none",    "books",   "tokens",  "events",   "ends",    "device",
        "weights", "pages",   "account", "deadline", "starved", "eviction",
        "states",  "tenants", "disk",    "deadlock", "leak"};
    return NAMES[what];
}

const char *const yard_state_names[MODEL_STATES] = {"none",    "cold", "staging",  "warm",
                                                    "loading", "hot",  "draining", "failed"};

/* ---- trace ---- */

void yard_say(yard *y, const char *format, ...) {
    if (!y->trace) return;
    va_list args;
    printf("%10llu us  ", (ull)now(y));
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

bool yard_fail_if(yard *y, bool broken, check_invariant what, const char *format, ...) {
    check_result *out = y->out;
    if (!broken || out->failed != CHECK_NONE) return broken;
    va_list args;
    va_start(args, format);
    vsnprintf(out->text, sizeof out->text, format, args);
    va_end(args);
    out->failed = what;
    out->at_us = now(y);
    yard_say(y, "VIOLATED %s: %.150s", check_invariant_name(what), out->text);
    return true;
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

/* Like the engine's sleep. */
static void wait_for_work(yard *y) {
    core *k = &y->core;
    uint64_t from_us = now(y), until_us = core_sleep_until_us(k, from_us);
    yard_fail_if(y, core_next_us(k) <= y->iteration_began_us && y->room == UINT32_MAX && !k->lost,
                 CHECK_STATES, "an iteration found no work, and the next one is due at once");
    for (uint32_t i = 0; i < y->n_models; i++)
        if (y->slots[i].wake_us != 0) until_us = u64_min(until_us, y->slots[i].wake_us);
    until_us = u64_min(until_us, yard_disk_next_us(y));
    /* External events: while there is input, the next one is near. */
    enum { INPUT_US = 1000, NOTHING_US = 5000 };
    if (!y->calm) until_us = u64_min(until_us, from_us + INPUT_US);
    if (until_us == UINT64_MAX) until_us = from_us + NOTHING_US;
    y->jumped_us += u64_max(until_us, from_us + 1) - from_us;
    core_idle(k, from_us, now(y));
}

static bool iterate(yard *y) {
    wake_stages(y);
    yard_note_models(y);
    y->iteration_began_us = now(y);
    bool any = core_iterate(&y->core);
    uint32_t taken = y->core.n_flight * y->core.step_events_max; // as in engine.c
    sched_flush(y->core.sched, y->room > taken ? y->room - taken : 0);
    if (is_sound(y) && !y->core.lost) yard_check_models(y);
    if (is_sound(y)) yard_look(y, true);
    return any;
}

static void tell_states(yard *y, check_invariant what, const char *why) {
    char text[CHECK_TEXT_BYTES];
    int n = snprintf(text, sizeof text, "%s; %u requests, %u pages free; models", why, y->n_alive,
                     pool_n_device_free(&y->core.pool));
    for (uint32_t i = 0; i < y->n_models && (size_t)n < sizeof text; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %u:%s/%u", i,
                      y->slots[i].used ? yard_state_names[state_of(y, i)] : "-",
                      pool_held(&y->core.pool.owners[i]));
    yard_fail_if(y, true, what, "%s", text);
}

/* The input stops: every request has to end. */
static void drain(yard *y) {
    y->calm = true;
    y->room = UINT32_MAX;
    yard_say(y, "the input stops, %u requests are alive", y->n_alive);
    for (uint64_t id = 1; id <= y->n_requests; id++) {
        y->requests[id].is_paused = false;
        sched_resume(y->core.sched, id, now(y));
    }
    uint64_t from_us = now(y), n = 0;
    while (is_sound(y) && (y->n_alive > 0 || sched_n_unsent(y->core.sched) > 0)) {
        if (!iterate(y)) wait_for_work(y);
        if (now(y) > from_us + DRAIN_US_MAX || ++n > ITERATIONS_MAX)
            tell_states(y, CHECK_DEADLOCK, "no request ends any more");
    }
    y->out->drain_us = u64_max(y->out->drain_us, now(y) - from_us);
}

static bool is_any_used(const yard *y) {
    bool any = false;
    for (uint32_t i = 0; i < y->n_models; i++) any |= y->slots[i].used;
    return any;
}

/* The models leave: every page has to be given back. */
static void leave(yard *y) {
    enum { LEAVE_US = 2000000 };
    for (uint32_t i = 0; i < y->n_models; i++) {
        if (!y->slots[i].used || y->slots[i].removed) continue;
        residency_remove(&y->core.models, i);
        y->slots[i].removed = true;
    }
    uint64_t until_us = now(y) + LEAVE_US;
    while (is_sound(y) && now(y) < until_us && is_any_used(y))
        if (!iterate(y)) wait_for_work(y);
    if (!is_sound(y)) return;
    const pool *p = &y->core.pool;
    for (uint32_t i = 0; i < y->n_models; i++)
        if (y->slots[i].used) tell_states(y, CHECK_LEAK, "a removed model is not detached");
    yard_fail_if(y, pool_n_device_free(p) != p->n_device || pool_n_host_free(p) != p->n_host,
                 CHECK_LEAK, "%u of %u pages of the device are free, %u of %u of the host",
                 pool_n_device_free(p), p->n_device, pool_n_host_free(p), p->n_host);
}

static void run(yard *y) {
    uint32_t n_events = EVENTS_MIN + below(y, EVENTS_MORE);
    for (uint32_t i = 0; i < n_events && is_sound(y) && !y->core.lost; i++) {
        yard_next_event(y);
        if (is_sound(y)) yard_look(y, false);
        if (is_sound(y) && !iterate(y)) wait_for_work(y);
        if (is_sound(y) && y->room != UINT32_MAX && chance(y, 30)) y->room = UINT32_MAX;
    }
    if (is_sound(y)) drain(y);
    if (is_sound(y) && !y->core.lost) leave(y);
}

static void sum_up(yard *y) {
    check_result *out = y->out;
    out->n_steps += y->n_steps;
    out->n_requests += y->n_requests;
    out->n_slices += y->core.models.n_slices;
    out->n_drafts_right += y->counters.n_drafts_right;
    out->n_hits += y->counters.prefix_hits_tokens;
    out->n_stored += y->counters.n_stored;
    out->n_fetched += y->counters.n_fetched;
    out->n_copied_ahead += y->counters.n_copied_ahead;
    for (uint32_t i = 0; i < y->n_models; i++) out->n_loads += y->slots[i].n_loads;
}

bool check_seed(uint64_t seed, bool trace, check_result *out) {
    yard *y = calloc(1, sizeof *y);
    if (y == NULL) return false;
    out->failed = CHECK_NONE;
    y->out = out;
    y->trace = trace;
    y->r = rng_make(seed, 1, 0);
    y->trouble = rng_make(seed, 2, 0);
    y->room = UINT32_MAX;
    y->next_stamp = -1000;
    /* Every other seed is a storm. */
    y->theme = seed % 2 == 0 ? THEME_STORM : (theme)(1 + seed / 2 % (THEMES - 1));
    if (yard_make(y)) run(y);
    sum_up(y);
    if (out->failed == CHECK_NONE) { // after a violation its data may be too inconsistent for this
        if (y->core.opened) core_end(&y->core);
        core_deinit(&y->core);
        yard_disk_look(y);
    }
    for (uint32_t id = 1; id <= y->n_requests; id++) {
        gen_request_destroy(y->requests[id].copy);
        free(y->requests[id].expected);
    }
    free(y->host_memory);
    free(y->writers);
    free(y);
    return true;
}
