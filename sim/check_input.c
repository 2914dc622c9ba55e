/* check_input.c - see check_yard.h: the events of a world. */
#include "check_yard.h"

/* ---- requests ---- */

static gen_request *copy_of(const gen_request *q) {
    gen_request *c = malloc(sizeof *c);
    *c = *q;
    c->prompt = malloc(q->n_prompt * sizeof *c->prompt);
    memcpy(c->prompt, q->prompt, q->n_prompt * sizeof *c->prompt);
    c->stop_ids = malloc((q->n_stop_ids + 1) * sizeof *c->stop_ids);
    if (q->n_stop_ids > 0) c->stop_ids[0] = q->stop_ids[0];
    return c;
}

/* Requests may name this model. */
static bool is_served(const yard *y, uint32_t idx) {
    return y->slots[idx].used && !y->slots[idx].removed;
}

static gen_request *draw_request(yard *y, uint64_t id, uint32_t idx) {
    gen_request *q = calloc(1, sizeof *q);
    uint32_t n_prompt = 1 + (chance(y, 25) ? below(y, 80) : below(y, 30)), kind = below(y, 4);
    q->id = id;
    q->model_idx = idx;
    q->tenant_idx = below(y, TENANTS);
    q->prio = (gen_class)below(y, GEN_CLASSES);
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
    /* Zeroing is not meant to cover blocks that tenants share through a scope.  As in the daemon,
     * each tenant has its own scope then. */
    if (y->core.options.limits.zero_on_tenant_change) q->cache_scope[0] = q->tenant_idx;
    q->sampling.temperature = 0;
    if (chance(y, 20)) {
        q->stop_ids = malloc(sizeof *q->stop_ids);
        q->stop_ids[0] = (tok_id)below(y, FAKE_VOCAB);
        q->n_stop_ids = 1;
    }
    return q;
}

/* Takes ownership of the request. */
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
                   .fewest_allowed = UINT32_MAX};
    yard_note_limits(y, q);
    q->is_private = r->cache_scope[1] != 0;
    const sched_limits *l = &y->core.options.limits;
    q->may_be_refused = y->n_alive >= l->queue_len_max;
    if (residency_state(&y->core.models, r->model_idx) == MODEL_FAILED)
        y->slots[r->model_idx].failed_us = now(y);
    r->arrival_us = now(y);
    yard_expect(q);
    y->n_alive++;
    yard_say(y, "submit %llu: model %u class %d, prompt %u, output %u", (ull)r->id, r->model_idx,
             (int)r->prio, r->n_prompt, r->max_tokens);
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
    if (chance(y, 10)) r->cache_scope[1] = r->id; // shares no prefix with any request
    if (chance(y, 15)) r->ttft_target_ms = 5 + below(y, 50), r->tpot_target_ms = 2 + below(y, 20);
    submit(y, r);
}

static void submit_plain(yard *y, uint32_t idx, gen_class prio, uint32_t n_prompt,
                         uint32_t n_output) {
    if (!may_submit(y) || !is_served(y, idx)) return;
    gen_request *r = draw_request(y, y->n_requests + 1, idx);
    r->prio = prio;
    r->rank = 0;
    r->n_prompt = u32_min(n_prompt, r->n_prompt);
    r->max_tokens = u32_min(n_output, TOKENS_MAX - r->n_prompt);
    r->ignore_eos = true;
    r->n_stop_ids = 0;
    r->n_prompt_logprobs = -1;
    submit(y, r);
}

/* Some guarantees are more than there is room for, some ceilings less than requests need. */
static void change_tenant(yard *y) {
    uint32_t idx = below(y, TENANTS);
    inferd_err err = {0};
    tenant_policy p = {.weight = 1 + below(y, 4), .max_class = GEN_SYSTEM};
    if (chance(y, 30)) p.share = (share_spec){(share_policy)below(y, 3), 5 + below(y, 30), 1};
    if (chance(y, 30)) p.min_bytes = (uint64_t)(1 + below(y, 8)) * PAGE_BYTES;
    if (chance(y, 30)) p.max_bytes = p.min_bytes + (uint64_t)(1 + below(y, 12)) * PAGE_BYTES;
    yard_say(y, "tenant %u: share %d of %u", idx, (int)p.share.policy, p.share.percent);
    yard_fail_if(y, sched_set_tenant(y->core.sched, idx, &p, now(y), &err) != INFERD_OK,
                 CHECK_STATES, "tenant %u: %s", idx, err.text);
}

static void change_models(yard *y) {
    uint32_t idx = below(y, y->n_models);
    slot *s = &y->slots[idx];
    if (!s->used) {
        yard_draw_shape(y, s, y->fake.n_pages / 2);
        model_policy p = yard_draw_policy(y, idx), plain = p;
        plain.min_bytes = 0;
        plain.pin = PIN_NONE;
        yard_add_model(y, idx, &plain, DEVICE_OWN);
        yard_set_policy(y, idx, &p);
    } else if (!s->removed && chance(y, 40)) {
        yard_say(y, "remove %u", idx);
        residency_remove(&y->core.models, idx);
        s->removed = true;
    } else if (!s->removed) {
        model_policy p = yard_draw_policy(y, idx);
        yard_set_policy(y, idx, &p);
    }
}

static void command(yard *y) {
    static const char *const NAMES[] = {"load", "prefetch", "unload", "drop", "drain"};
    uint32_t idx = below(y, y->n_models);
    engine_command c = (engine_command)below(y, 5);
    if (!y->slots[idx].used) return;
    yard_say(y, "%s %u", NAMES[c], idx);
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
        yard_say(y, "cancel %llu", (ull)id);
        q->is_cancelled = true;
        sched_cancel(y->core.sched, id, now(y));
    } else if (what < 33 && y->n_requests > 0 && q->is_alive) {
        yard_say(y, "pause %llu", (ull)id);
        q->is_paused = true;
        sched_pause(y->core.sched, id);
    } else if (what < 39 && y->n_requests > 0) {
        yard_say(y, "resume %llu", (ull)id);
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
        /* Steps on their way have reserved room for their events already. */
        y->room = y->core.n_flight * y->core.step_events_max + 1 + below(y, 60);
    } else if (what < 50) {
        change_tenant(y);
    }
}

uint32_t yard_n_alive_of(const yard *y, uint32_t idx) {
    uint32_t n = 0;
    for (uint32_t i = 1; i <= y->n_requests; i++)
        n += y->requests[i].is_alive && y->requests[i].copy->model_idx == idx;
    return n;
}

/* Submits requests until n of the model are alive. */
static void keep_busy(yard *y, uint32_t idx, uint32_t n, gen_class prio, uint32_t n_output) {
    for (uint32_t k = yard_n_alive_of(y, idx); k < n; k++) submit_plain(y, idx, prio, 20, n_output);
}

void yard_next_event(yard *y) {
    switch (y->theme) {
    case THEME_STORM:
    case THEMES:
        storm_event(y);
        return;
    case THEME_FLOOD:
        keep_busy(y, 0, 4, GEN_HIGH, 8);
        keep_busy(y, 1, 1, GEN_BATCH, 20);
        return;
    case THEME_SLICES:
        for (uint32_t i = 0; i < y->n_models; i++) keep_busy(y, i, 2, GEN_NORMAL, 60);
        return;
    case THEME_URGENT:
    case THEME_GUARANTEED:
        keep_busy(y, 0, 3, y->theme == THEME_URGENT ? GEN_BATCH : GEN_NORMAL, 60);
        if (now(y) < y->next_urgent_us || yard_n_alive_of(y, 1) > 0) return;
        submit_plain(y, 1, y->theme == THEME_URGENT ? GEN_HIGH : GEN_NORMAL, 20, 5);
        y->next_urgent_us = now(y) + 50000 + below(y, 150000);
        return;
    case THEME_IDLE:
        if (y->n_models % 2 == 0 && y->n_alive < 6) submit_plain(y, 0, GEN_BATCH, 30, 60);
        if (chance(y, 3)) submit_plain(y, below(y, y->n_models), GEN_NORMAL, 20, 8);
        if (chance(y, 40)) y->jumped_us += below(y, 2000);
        return;
    }
}
