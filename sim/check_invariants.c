/* check_invariants.c - see check_yard.h: the output, and the invariants after every event. */
#include <math.h>

#include "check_yard.h"

/* ---- the output ---- */

/* Its model is FAILED, or was FAILED at some time since then. */
static bool has_failed_since(const yard *y, uint32_t idx, uint64_t since_us) {
    const slot *s = &y->slots[idx], *root = &y->slots[s->same_as];
    return residency_state(&y->core.models, idx) == MODEL_FAILED || s->removed || !s->used ||
           s->failed_us >= since_us || root->failed_us >= since_us;
}

/* Notes the fewest tokens that limits have left to the request so far. */
void yard_note_limits(yard *y, request *q) {
    const gen_request *r = q->copy;
    const sched *s = y->core.sched;
    if (!s->models[r->model_idx].open) return;
    q->fewest = u32_min(q->fewest, sched_tokens_for(s, r->model_idx, r->tenant_idx));
    q->fewest_allowed =
        u32_min(q->fewest_allowed, sched_tenant_tokens(s, r->model_idx, r->tenant_idx));
    q->fewest_allowed = u32_min(q->fewest_allowed, sched_kv_tokens_ceiling(s, r->model_idx));
}

static uint32_t stored_max(const gen_request *r) {
    return r->n_prompt + (r->max_tokens > 0 ? r->max_tokens - 1 : 0);
}

/* The bring-up of a model pinned HOT failed in this iteration, after limits were checked with its
 * weights: no event saw those limits. */
static bool a_pinned_model_failed(const yard *y, uint32_t idx) {
    for (uint32_t i = 0; i < y->n_models; i++)
        if (i != y->slots[idx].same_as && y->slots[i].used && y->slots[i].policy.pin == PIN_HOT &&
            y->slots[i].before.state != MODEL_FAILED &&
            residency_state(&y->core.models, i) == MODEL_FAILED)
            return true;
    return false;
}

static void check_end(yard *y, request *q, const gen_event *e) {
    ull id = e->id;
    const gen_request *r = q->copy;
    inferd_status st = e->done.status;
    bool right = false;
    switch (e->done.finish) {
    case GEN_STOP:
    case GEN_LENGTH:
        yard_fail_if(y,
                     q->n_tokens != q->n_expected || e->done.finish != q->finish ||
                         e->done.stop_id != q->stop_id,
                     CHECK_TOKENS, "request %llu ended by %d after %u tokens, expected %d, %u", id,
                     (int)e->done.finish, q->n_tokens, (int)q->finish, q->n_expected);
        yard_fail_if(y, q->n_scored != (r->n_prompt_logprobs >= 0 ? r->n_prompt : 0), CHECK_TOKENS,
                     "request %llu: %u of %u prompt tokens were scored", id, q->n_scored,
                     r->n_prompt);
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
        yard_note_limits(y, q);
        right = (st == INFERD_EDEVICE && q->has_failed_step) ||
                (st == INFERD_ELOST && y->is_lost) ||
                (st == INFERD_ETOOLONG && (stored_max(r) > u32_min(q->fewest, CONTEXT - 1) ||
                                           a_pinned_model_failed(y, r->model_idx))) ||
                (st == INFERD_EQUOTA &&
                 (stored_max(r) > q->fewest_allowed ||
                  has_failed_since(y, r->model_idx, q->submitted_us))) || // weights above its max
                (st == INFERD_EMODEL &&
                 (q->fewest == 0 || has_failed_since(y, r->model_idx, q->submitted_us))) ||
                (st == INFERD_EBUSY && q->may_be_refused);
        break;
    }
    yard_fail_if(y, !right, CHECK_ENDS, "request %llu ended by %d, status %d: %s", id,
                 (int)e->done.finish, (int)st, e->done.text);
}

void yard_on_event(void *ctx, const gen_event *e) {
    yard *y = ctx;
    ull id = e->id;
    yard_fail_if(y, y->room == 0, CHECK_EVENTS,
                 "request %llu has an event, but there is no room for one", id);
    if (y->room != UINT32_MAX && y->room > 0) y->room--;
    bool is_known = e->id > 0 && e->id <= y->n_requests && y->requests[e->id].is_alive;
    if (yard_fail_if(y, !is_known, CHECK_EVENTS,
                     "request %llu has an event of kind %d and is not alive", id, (int)e->kind))
        return;
    request *q = &y->requests[e->id];
    if (e->kind == GEN_EV_PROMPT) {
        const tok_id *prompt = q->copy->prompt;
        uint32_t n = q->n_scored;
        bool in_order = q->n_tokens == 0 && n < q->copy->n_prompt && e->token.r.id == prompt[n];
        yard_fail_if(y, !in_order, CHECK_EVENTS, "request %llu: prompt token %u is out of order",
                     id, n);
        yard_fail_if(y,
                     in_order && n > 0 &&
                         fabsf(e->token.r.logprob - fake_logprob(prompt, n, prompt[n])) > 0,
                     CHECK_TOKENS, "request %llu: prompt token %u has another probability", id, n);
        q->n_scored++;
        return;
    }
    if (e->kind == GEN_EV_TOKEN) {
        yard_fail_if(y, q->n_tokens >= q->n_expected || e->token.r.id != q->expected[q->n_tokens],
                     CHECK_TOKENS, "request %llu: token %u is %d, expected %d of %u", id,
                     q->n_tokens, e->token.r.id,
                     q->n_tokens < q->n_expected ? q->expected[q->n_tokens] : -1, q->n_expected);
        q->n_tokens++;
        y->out->n_tokens++;
        return;
    }
    yard_say(y, "request %llu ended by %d, status %d, %u tokens", id, (int)e->done.finish,
             (int)e->done.status, q->n_tokens);
    yard_fail_if(y, e->done.n_output != q->n_tokens, CHECK_EVENTS,
                 "request %llu had %u tokens, its last event says %u", id, q->n_tokens,
                 e->done.n_output);
    yard_fail_if(y, e->done.n_cached > 0 && (q->copy->no_cache || q->is_private), CHECK_ENDS,
                 "request %llu found %u tokens in the cache, but may share none", id,
                 e->done.n_cached);
    check_end(y, q, e);
    y->out->n_preempted += e->done.n_preempted;
    q->is_alive = false;
    y->n_alive--;
    y->n_done++;
}

/* Counts draft tokens from the draws of a step and the resulting tokens. */
void yard_on_step(void *ctx, const step *st, uint64_t device_us, uint64_t wall_us) {
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

/* ---- the invariants ---- */

static void check_books(yard *y) {
    inferd_err err = {0};
    yard_fail_if(y, core_verify(&y->core, &err) != INFERD_OK, CHECK_BOOKS, "%s", err.text);
}

/* Budgets match the device's state; a model that took pages left the others their guarantees. */
static void check_pages(yard *y) {
    const pool *p = &y->core.pool;
    uint32_t n = 0, n_host = 0, n_weights = 0;
    for (int s = 0; s < PAGE_STATES; s++) n += p->n_in[s];
    yard_fail_if(y, n != p->n_pages, CHECK_PAGES, "%u of %u pages were found", n, p->n_pages);
    for (uint32_t i = 0; i < y->n_models; i++) {
        const fake_model *m = &y->fake.models[i];
        const slot *s = &y->slots[i];
        if (!s->used || m->weights_of != i || !m->attached) continue;
        bool there = m->staging || m->warm;
        if (m->copy) n_host += s->weight_pages;
        bool on_device = m->copy ? m->hot || s->loading : there;
        n_weights += on_device ? s->weight_pages : 0;
    }
    yard_fail_if(y, y->fake.apart && p->n_host_apart != n_host, CHECK_PAGES,
                 "the host budget has %u pages, the device keeps %u", p->n_host_apart, n_host);
    yard_fail_if(y, p->n_in[PAGE_WEIGHT] + p->n_in[PAGE_WARM] != n_weights && !y->is_lost,
                 CHECK_PAGES, "the pool has %u pages of weights, the device %u",
                 p->n_in[PAGE_WEIGHT] + p->n_in[PAGE_WARM], n_weights);
    uint32_t coming = pool_n_device_free(p) + p->n_in[PAGE_QUARANTINE];
    for (uint32_t i = 0; i < y->n_models; i++) {
        const pool_owner *o = &p->owners[i];
        uint32_t held = pool_held(o), unfilled = 0;
        for (uint32_t k = 0; k < p->n_owners; k++)
            if (k != i) unfilled += pool_unfilled(&p->owners[k]);
        yard_fail_if(y, held > y->slots[i].held && held > o->max, CHECK_PAGES,
                     "model %u took page number %u, its limit is %u", i, held, o->max);
        yard_fail_if(y, held > y->slots[i].held && held > o->min && coming < unfilled, CHECK_PAGES,
                     "model %u took page number %u, %u are left and %u are guaranteed to others", i,
                     held, coming, unfilled);
    }
    for (uint32_t i = 0; i < y->n_models; i++) y->slots[i].held = pool_held(&p->owners[i]);
    for (uint32_t i = 0; i < TENANTS && i < y->core.sched->n_tenants; i++) {
        const sched_tenant *t = &y->core.sched->tenants[i];
        yard_fail_if(y, t->used_bytes > y->tenant_used_bytes[i] && t->used_bytes > t->max_bytes,
                     CHECK_PAGES, "tenant %u took %llu KiB, its limit is %llu", i,
                     (ull)t->used_bytes / 1024, (ull)t->max_bytes / 1024);
        y->tenant_used_bytes[i] = t->used_bytes;
    }
}

static void check_usage(yard *y) {
    const core_usage *a = &y->core.usage, *b = &y->usage;
    uint64_t elapsed_us = now(y) - a->opened_us;
    yard_fail_if(y, a->step_us + a->load_us + a->idle_us > elapsed_us, CHECK_USAGE,
                 "%llu us of steps, %llu of loads, %llu idle in %llu us", (ull)a->step_us,
                 (ull)a->load_us, (ull)a->idle_us, (ull)elapsed_us);
    yard_fail_if(y, a->step_us < b->step_us || a->load_us < b->load_us || a->idle_us < b->idle_us,
                 CHECK_USAGE, "a measured time decreased");
    y->usage = *a;
    sched_counters c;
    sched_count(y->core.sched, &c);
    yard_fail_if(y, c.charged_us + c.waste_us != a->step_us, CHECK_USAGE,
                 "%llu us of steps, %llu were charged and %llu wasted", (ull)a->step_us,
                 (ull)c.charged_us, (ull)c.waste_us);
    uint64_t n_finished = 0;
    for (int i = 0; i <= GEN_ERROR; i++) n_finished += c.n_finished[i];
    uint64_t n_unsent = sched_n_unsent(y->core.sched);
    yard_fail_if(y,
                 c.n_submitted != y->n_requests ||
                     n_finished + c.n_running + c.n_waiting != y->n_requests ||
                     y->n_done + n_unsent != n_finished,
                 CHECK_USAGE,
                 "%u submitted; counted are %llu, %llu finished (%llu not reported), %u "
                 "alive; %llu last events received",
                 y->n_requests, (ull)c.n_submitted, (ull)n_finished, (ull)n_unsent,
                 c.n_running + c.n_waiting, (ull)y->n_done);
    yard_fail_if(y,
                 c.prefix_hits_tokens < y->counters.prefix_hits_tokens ||
                     c.n_preemptions < y->counters.n_preemptions ||
                     c.prefix_hits_tokens > c.prefix_queries_tokens,
                 CHECK_USAGE, "a counter decreased, or hits exceed queries");
    bool steps_went_well = true;
    for (uint32_t i = 1; i <= y->n_requests; i++)
        steps_went_well &= !y->requests[i].has_failed_step && !y->requests[i].is_cancelled;
    yard_fail_if(y,
                 steps_went_well && y->step_trouble_permille == 0 &&
                     (c.n_drafted != y->n_drafted || c.n_drafts_right < y->n_right_min ||
                      c.n_drafts_right > y->n_right_max),
                 CHECK_USAGE,
                 "%llu of %llu draft tokens were right; observed were %llu, and %llu to %llu right",
                 (ull)c.n_drafts_right, (ull)c.n_drafted, (ull)y->n_drafted, (ull)y->n_right_min,
                 (ull)y->n_right_max);
    y->counters = c;
    for (uint32_t i = 0; i < y->n_models; i++) {
        const resident *m = &y->core.models.slots[i];
        if (!y->slots[i].used || m->state == MODEL_NONE || m->weights_of != i) continue;
        yard_fail_if(y, m->n_stages != y->slots[i].n_stages || m->n_loads != y->slots[i].n_loads,
                     CHECK_USAGE, "model %u: %llu stages and %llu loads, counted %llu, %llu", i,
                     (ull)y->slots[i].n_stages, (ull)y->slots[i].n_loads, (ull)m->n_stages,
                     (ull)m->n_loads);
    }
}

/* After a plan with room for events: cancelled, failed and late requests are gone. */
static void check_gone(yard *y, const request *q) {
    const gen_request *r = q->copy;
    ull id = r->id;
    yard_fail_if(y, q->is_cancelled, CHECK_ENDS, "request %llu was cancelled and continues", id);
    yard_fail_if(y, state_of(y, r->model_idx) == MODEL_FAILED, CHECK_STATES,
                 "request %llu waits for model %u, which has failed", id, r->model_idx);
    yard_fail_if(y, r->deadline_us != 0 && r->deadline_us <= y->iteration_began_us, CHECK_DEADLINE,
                 "request %llu is alive %llu us after its deadline", id,
                 (ull)(now(y) - r->deadline_us));
    yard_fail_if(y,
                 r->queue_deadline_us != 0 && r->queue_deadline_us <= y->iteration_began_us &&
                     q->served_us == 0,
                 CHECK_DEADLINE, "request %llu waits %llu us after its deadline", id,
                 (ull)(now(y) - r->queue_deadline_us));
}

static void note_wait(yard *y, const request *q, uint64_t *longest, uint64_t wait,
                      uint64_t wait_max, const char *unit) {
    if (wait > *longest) *longest = wait;
    yard_fail_if(y, wait > wait_max, CHECK_STARVED,
                 "request %llu of model %u (%s) is not served for %llu %s", (ull)q->copy->id,
                 q->copy->model_idx, yard_state_names[state_of(y, q->copy->model_idx)], (ull)wait,
                 unit);
}

/* A request that could be computed is computed, within the bound of such a world. */
static void check_wait(yard *y, request *q) {
    check_result *out = y->out;
    uint64_t us = now(y) - (q->served_us > q->submitted_us ? q->served_us : q->submitted_us);
    uint32_t idx = q->copy->model_idx;
    if (state_of(y, idx) != MODEL_HOT) q->steps_then = y->n_steps;
    if (y->theme == THEME_FLOOD)
        note_wait(y, q, &out->flood_steps, y->n_steps - q->steps_then, FLOOD_STEPS_MAX,
                  "steps of others");
    if (y->theme == THEME_SLICES) note_wait(y, q, &out->slice_us, us, SLICE_WAIT_US_MAX, "us");
    if (y->theme == THEME_URGENT && idx == 1)
        note_wait(y, q, &out->urgent_us, us, URGENT_US_MAX, "us");
    if (y->theme == THEME_GUARANTEED && idx == 1)
        note_wait(y, q, &out->guaranteed_us, us, GUARANTEED_US_MAX, "us");
}

/* No sequence begins where its model is at its ceiling and has no block to give. */
static void check_begin(yard *y, bool planned) {
    const sched *s = y->core.sched;
    LIST_EACH(node, &s->running) {
        const seq *q = LIST_ENTRY(node, seq, link);
        request *r = &y->requests[q->req->id];
        yard_fail_if(
            y,
            planned && !r->has_run && q->table.n_blocks == 0 && sched_model_room(s, q) == 0 &&
                s->models[q->model_idx].kv.n_free_slots == 0 &&
                s->models[q->model_idx].prefix.n_evictable == 0,
            CHECK_STATES, "request %llu began in a plan that has no page for it", (ull)q->req->id);
        r->has_run = true;
    }
    LIST_EACH(node, &s->waiting) y->requests[LIST_ENTRY(node, seq, link)->req->id].has_run = false;
}

static void check_requests(yard *y, bool planned) {
    check_begin(y, planned);
    for (uint64_t id = 1; id <= y->n_requests && is_sound(y); id++) {
        request *q = &y->requests[id];
        if (!q->is_alive) continue;
        yard_note_limits(y, q);
        if (y->room == UINT32_MAX && planned) check_gone(y, q);
        check_wait(y, q);
    }
}

static bool is_idle(const yard *y, uint32_t idx) {
    sched_demand d = y->core.models.demands[idx];
    return d.n_waiting + d.n_running == 0;
}

/* Before an iteration: the state that residency_decide will find. */
void yard_note_models(yard *y) {
    for (uint32_t i = 0; i < y->n_models; i++) {
        const resident *m = &y->core.models.slots[i];
        slot *s = &y->slots[i];
        s->before = *m;
        s->had_steps = s->used && sched_model_n_steps(y->core.sched, i) > 0;
    }
    yard_note_room(y);
}

static bool was_pinned(const slot *s) {
    return s->before.policy.pin == PIN_HOT && s->before.served;
}

/* What worth.h says an idle model is worth, in doubles. */
static double value_of(const yard *y, uint32_t i, uint64_t at_us) {
    enum { HALVED_MS = 5000 };
    const resident *m = &y->core.models.slots[i];
    const slot *s = &y->slots[i];
    gen_class lowest = GEN_SYSTEM;
    for (uint32_t k = 0; k < y->n_models; k++) {
        const resident *other = &y->core.models.slots[k];
        if (other->state != MODEL_NONE && other->served && !other->no_guarantee &&
            other->policy.prio > lowest)
            lowest = other->policy.prio;
    }
    double idle_ms = at_us > s->before.active_us ? (double)(at_us - s->before.active_us) / 1000 : 0;
    double sum_ms = (double)m->pauses.sum_ms, n = m->pauses.n;
    double half_ms = n > 0 && sum_ms / n > HALVED_MS ? sum_ms / n : HALVED_MS;
    double factor = pow(8, (double)lowest - s->policy.prio) * pow(0.5, idle_ms / half_ms);
    double sum_log = (double)m->pauses.sum_log / WORTH_LOG_ONE + log2(idle_ms + 1);
    double next_ms = idle_ms + exp2(sum_log / (n + 1));
    double reload_us = m->bring_us > 0 ? (double)m->bring_us : 1000.0 * (s->weight_pages + 1);
    return (s->policy.weight + 1) * reload_us * fmax(factor, 1) / (s->weight_pages * next_ms);
}

/* Was v evicted, though w, which is as idle, was worth less? */
static bool is_worth_less(const yard *y, uint32_t w, uint32_t v) {
    enum { MARGIN_US = 2000 }; // ages are rounded, and halvings are straight lines
    const slot *a = &y->slots[w], *b = &y->slots[v];
    uint64_t at_us = y->iteration_began_us;
    /* w might not have been enough, or useless: its guarantee keeps its pages free for it. */
    if (a->weight_pages < b->weight_pages || a->policy.min_bytes != 0) return false;
    return value_of(y, w, at_us - u64_min(at_us, MARGIN_US)) * 1.25 <
           value_of(y, v, at_us + MARGIN_US);
}

/* The class of its work; GEN_CLASSES: it has none. */
static gen_class class_of_work(const yard *y, uint32_t i) {
    const sched_demand *d = &y->core.models.demands[i];
    return d->running_class < d->waiting_class ? d->running_class : d->waiting_class;
}

/* Was v evicted for its class, though w, which would have given as much, has work of a lower one?
 */
static bool is_of_lower_class(const yard *y, uint32_t w, uint32_t v) {
    const slot *a = &y->slots[w], *b = &y->slots[v];
    const sched_demand *d = &y->core.models.demands[w];
    uint64_t aged_us = d->oldest_us + y->core.options.limits.starvation_us;
    uint32_t held = u32_min(a->held, pool_held(&y->core.pool.owners[w]));
    uint32_t gives = u32_less(held, sched_model_n_cached(y->core.sched, w));
    if (b->before.state != MODEL_HOT || gives < b->held || a->policy.min_bytes != 0 ||
        class_of_work(y, v) == GEN_CLASSES || class_of_work(y, w) == GEN_CLASSES)
        return false;
    if (d->n_waiting > 0 && now(y) >= aged_us) return false; // v may have left for w
    return class_of_work(y, w) > class_of_work(y, v);
}

/* Since when v has waiting work that is more urgent than all other work, even if that has aged; 0:
 * there is none, or it began. */
static uint64_t most_urgent_since_us(const yard *y, uint32_t v) {
    const sched_demand *all = y->core.models.demands;
    if (all[v].waiting_class != GEN_SYSTEM || all[v].n_running > 0) return 0;
    for (uint32_t w = 0; w < y->n_models; w++)
        if (w != v && y->slots[w].used &&
            (all[w].waiting_class == GEN_SYSTEM || all[w].running_class == GEN_SYSTEM))
            return 0;
    return all[v].oldest_us;
}

static void check_eviction(yard *y, uint32_t v) {
    const resident *m = &y->core.models.slots[v];
    const slot *s = &y->slots[v];
    bool pushed = false, lower = false;
    for (int c = 0; c < ENGINE_EVICT_CAUSES; c++) {
        if (m->n_evictions[c] == s->before.n_evictions[c]) continue;
        y->out->n_evicted++;
        yard_say(y, "model %u is evicted, cause %d", v, c);
        yard_fail_if(
            y,
            c == ENGINE_EVICT_IDLE &&
                y->iteration_began_us < s->before.active_us + s->policy.keep_alive_us &&
                now(y) < s->before.active_us + s->policy.keep_alive_us && !yard_is_shared(y, v),
            CHECK_EVICTION, "model %u was evicted %llu us after its last use, before keep_alive", v,
            (ull)(now(y) - s->before.active_us));
        if (c > ENGINE_EVICT_SLICE) continue;
        pushed = c == ENGINE_EVICT_PRESSURE;
        lower = c == ENGINE_EVICT_CLASS;
        uint64_t urgent_us = most_urgent_since_us(y, v), slice_us = y->core.models.limits.slice_us;
        yard_fail_if(y, c == ENGINE_EVICT_SLICE && urgent_us != 0 && now(y) < urgent_us + slice_us,
                     CHECK_EVICTION,
                     "model %u was evicted %llu us after its most urgent work arrived, its "
                     "time slice is %llu",
                     v, (ull)(now(y) - urgent_us), (ull)slice_us);
        yard_fail_if(y, was_pinned(s), CHECK_EVICTION, "model %u was evicted while it was pinned",
                     v);
    }
    if ((!pushed && !lower) || yard_is_shared(y, v)) return;
    if (pushed) yard_check_room(y, v);
    /* Host memory apart: the host copy may have been needed; tenants' guarantees may be larger. */
    const pool_owner *o = &y->core.pool.owners[v];
    yard_fail_if(y,
                 pushed && s->before.state == MODEL_HOT && !y->fake.apart &&
                     sched_tenants_min_pages(y->core.sched) == 0 && s->held <= o->min &&
                     yard_n_alive_of(y, v) == 0,
                 CHECK_EVICTION, "model %u was evicted with %u pages, its guarantee is %u", v,
                 s->held, o->min);
    for (uint32_t w = 0; w < y->n_models; w++) {
        const resident *x = &y->core.models.slots[w];
        const slot *t = &y->slots[w];
        uint64_t stay_us = 2 * x->bring_us;
        if (w == v || !t->used || yard_is_shared(y, w) || t->before.state != MODEL_HOT ||
            x->state != MODEL_HOT || was_pinned(t) || t->before.wanted || t->had_steps ||
            x->wanted || y->iteration_began_us < t->before.hot_since_us + stay_us)
            continue;
        yard_fail_if(y, lower && is_of_lower_class(y, w, v), CHECK_EVICTION,
                     "model %u was evicted for its class, and model %u has work of a lower one", v,
                     w);
        if (lower || t->had_steps || !is_idle(y, w) ||
            t->before.active_us == y->iteration_began_us || yard_n_alive_of(y, w) > 0 ||
            sched_model_n_steps(y->core.sched, w) > 0)
            continue;
        if (yard_is_spared(y, w, v)) continue;
        yard_fail_if(y, is_worth_less(y, w, v), CHECK_EVICTION,
                     "model %u was evicted, and model %u was worth less", v, w);
    }
}

void yard_check_models(yard *y) {
    uint32_t n_staging = 0, n_loading = 0;
    for (uint32_t i = 0; i < y->n_models; i++) {
        const resident *m = &y->core.models.slots[i];
        const fake_model *f = &y->fake.models[i];
        slot *s = &y->slots[i];
        if (!s->used) continue;
        if (m->state == MODEL_NONE) { // it left
            yard_fail_if(y, !s->removed, CHECK_STATES, "model %u is detached, but was not removed",
                         i);
            yard_fail_if(y, f->attached, CHECK_STATES,
                         "model %u is detached, but the device still has it", i);
            s->used = s->removed = false;
            continue;
        }
        check_eviction(y, i);
        if (m->state == MODEL_FAILED) s->failed_us = now(y);
        yard_fail_if(y,
                     m->state == MODEL_FAILED && m->retry_at_us != 0 &&
                         s->before.state == MODEL_FAILED && m->weights_of == i &&
                         m->retry_at_us <= y->iteration_began_us,
                     CHECK_STATES, "model %u is FAILED %llu us after its retry", i,
                     (ull)(now(y) - m->retry_at_us));
        if (m->state == MODEL_FAILED && s->before.state != MODEL_FAILED) {
            s->is_asked_for = false;
            y->out->n_failed_loads++;
        }
        n_staging += m->state == MODEL_STAGING;
        n_loading += m->state == MODEL_LOADING;
        if (m->weights_of != i || y->is_lost) continue;
        bool hot = m->state == MODEL_HOT || m->state == MODEL_DRAINING;
        yard_fail_if(
            y,
            hot != f->hot || (m->state == MODEL_WARM) != (f->warm && !f->hot && !s->loading) ||
                (m->state == MODEL_STAGING) != f->staging,
            CHECK_STATES, "model %u is in state %d, the device has staging %d warm %d hot %d", i,
            (int)m->state, f->staging, f->warm, f->hot);
        uint64_t keep_us = s->policy.keep_alive_us;
        yard_fail_if(y,
                     keep_us != POLICY_NEVER && m->state == MODEL_HOT && !yard_is_shared(y, i) &&
                         !m->wanted && s->before.state == MODEL_HOT && s->policy.pin != PIN_HOT &&
                         yard_n_alive_of(y, i) == 0 && sched_model_n_steps(y->core.sched, i) == 0 &&
                         m->active_us != 0 && y->iteration_began_us >= m->active_us + keep_us &&
                         y->iteration_began_us >= s->before.active_us + keep_us,
                     CHECK_STATES, "model %u is idle for %llu us, keep_alive is %llu", i,
                     (ull)(now(y) - m->active_us), (ull)keep_us);
    }
    yard_fail_if(y, n_staging > 1 || n_loading > 1, CHECK_STATES,
                 "%u models are staged at once, %u loaded", n_staging, n_loading);
}

void yard_look(yard *y, bool planned) {
    y->out->n_events++;
    if (y->core.lost) return; // then only the ends of requests are guaranteed
    check_books(y);
    if (is_sound(y)) check_pages(y);
    if (is_sound(y)) check_usage(y);
    if (is_sound(y)) check_requests(y, planned);
    yard_look_for_faults(y, "an event");
}
