/* sched.c - see scheduler.h: models, cancellation, ends and last events of requests. */
#include "scheduler.h"

#include <string.h>

#include "sched_state.h"

/* ---- life of the scheduler ---- */

static inferd_status check_limits(const sched_limits *l, inferd_err *err) {
    if (l->depth < 1 || l->depth > 2)
        return inferd_fail(err, INFERD_EINVAL, "depth %u, expected 1 or 2", l->depth);
    if (l->running_max == 0 || l->step_tokens_max < l->running_max ||
        l->logits_max < l->running_max)
        return inferd_fail(err, INFERD_EINVAL,
                           "a batch of %u sequences needs as many rows and logits per step, "
                           "configured are %u and %u",
                           l->running_max, l->step_tokens_max, l->logits_max);
    return INFERD_OK;
}

static void empty_model(sched_model *m) {
    *m = (sched_model){0};
    list_node_init(&m->waiting);
    list_node_init(&m->running);
    share_init(&m->share, SHARE_BESTEFFORT, 0, 1, 0);
}

inferd_status sched_create(const sched_limits *limits, pool *p, uint32_t n_models, sched_emit *emit,
                           void *emit_ctx, sched **out, inferd_err *err) {
    inferd_status status = check_limits(limits, err);
    if (status != INFERD_OK) return status;
    sched *s = calloc(1, sizeof *s);
    if (s == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a scheduler");
    s->limits = *limits;
    s->pool = p;
    s->emit = emit;
    s->emit_ctx = emit_ctx;
    s->n_slots = n_models;
    s->room_class = GEN_CLASSES;
    s->next_deadline_us = s->disk_due_us = UINT64_MAX;
    list_node_init(&s->free);
    list_node_init(&s->waiting);
    list_node_init(&s->running);
    list_node_init(&s->ended);
    list_node_init(&s->asked);
    /* Twice running_max: preempted and paused sequences do not take queue slots. */
    s->n_seqs = limits->queue_len_max + 2 * limits->running_max;
    s->seqs = calloc(s->n_seqs, sizeof *s->seqs);
    s->order = calloc(s->n_seqs, sizeof(seq *));
    s->models = calloc(size_max(n_models, 1), sizeof *s->models);
    if (s->seqs == NULL || s->order == NULL || s->models == NULL || !sched_init_flows(s) ||
        !flow_usage_init(&s->flow_usage)) {
        sched_destroy(s);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u sequences", limits->queue_len_max);
    }
    for (uint32_t i = 0; i < s->n_seqs; i++) list_push_back(&s->free, &s->seqs[i].link);
    for (uint32_t i = 0; i < n_models; i++) empty_model(&s->models[i]);
    for (uint32_t c = 0; c < GEN_CLASSES; c++) {
        share_init(&s->floors[c], SHARE_BURST, limits->starvation_percent, 1, 0);
        s->floors[c].level = 0;
    }
    share_init(&s->urgent, SHARE_BURST, limits->urgent_percent, 1, 0);
    s->urgent.cap_us = URGENT_CAP_US;
    s->urgent.level = (int64_t)URGENT_CAP_US * 100;
    s->share_ready_us = UINT64_MAX;
    *out = s;
    return INFERD_OK;
}

inferd_status sched_set_device(sched *s, uint32_t depth, uint32_t step_tokens_max,
                               inferd_err *err) {
    INFERD_CHECK(depth >= 1 && depth <= s->limits.depth && s->plan_no == 0);
    INFERD_CHECK(step_tokens_max <= s->limits.step_tokens_max &&
                 step_tokens_max >= s->limits.running_max);
    if (depth > 1 && s->limits.draft_tokens > 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "draft tokens (limits.draft_tokens is %u) need a device that computes "
                           "one step at a time, as the CPU does: set it to 0",
                           s->limits.draft_tokens);
    s->limits.depth = depth;
    s->limits.step_tokens_max = step_tokens_max;
    s->limits.logits_max = u32_min(s->limits.logits_max, step_tokens_max);
    return INFERD_OK;
}

static void release_seq_memory(sched *s, seq *q) {
    sched_close_constraint(s, q);
    gen_request_destroy(q->req);
    kv_table_deinit(&q->table);
    free(q->banned);
}

void sched_destroy(sched *s) {
    if (s == NULL) return;
    for (uint32_t i = 0; s->seqs != NULL && i < s->n_seqs; i++)
        if (s->seqs[i].state != SEQ_FREE) release_seq_memory(s, &s->seqs[i]);
    for (uint32_t i = 0; i < s->n_models; i++) {
        sched_close_swap(&s->models[i]);
        prefix_deinit(&s->models[i].prefix);
        kv_deinit(&s->models[i].kv);
    }
    flow_usage_deinit(&s->flow_usage);
    free(s->page_tenants);
    free(s->tenants);
    free(s->changed_tenants);
    free(s->flows);
    free(s->flow_buckets);
    free(s->models);
    free(s->seqs);
    free(s->order);
    free(s);
}

void sched_note_retry(const sched_model *m, seq *q, uint64_t now_us) {
    if (m->retry_at_us > now_us)
        q->done.done.retry_after_ms = (uint32_t)((m->retry_at_us - now_us + 999) / 1000);
}

static void zero_for(void *ctx, uint32_t page, size_t begin, size_t n_bytes, bool whole) {
    sched *s = ((sched_model *)ctx)->s;
    s->zero(s->zero_ctx, page, begin, n_bytes);
    s->counters.n_zeroed_pages += whole;
    s->counters.n_zeroed_slots += !whole;
}

inferd_status sched_set_zero(sched *s, sched_zero *zero, void *ctx, inferd_err *err) {
    size_t n = size_max(s->pool->n_pages, 1);
    s->page_tenants = malloc(n * sizeof *s->page_tenants);
    if (s->page_tenants == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the tenants of %zu pages", n);
    for (size_t i = 0; i < n; i++) s->page_tenants[i] = KV_TENANT_NONE;
    s->zero = zero;
    s->zero_ctx = ctx;
    return INFERD_OK;
}

/* Loops over all models cover the slots that have ever been used. */
static void note_slot(sched *s, uint32_t model_idx) {
    INFERD_CHECK(model_idx < s->n_slots);
    s->n_models = u32_max(s->n_models, model_idx + 1);
}

inferd_status sched_model_open(sched *s, uint32_t model_idx, const sched_model_spec *spec,
                               inferd_err *err) {
    sched_model *m = &s->models[model_idx];
    note_slot(s, model_idx);
    INFERD_CHECK(!m->open);
    inferd_status status = kv_init(&m->kv, &spec->kv, s->pool, model_idx, PAGE_KV, err);
    if (status != INFERD_OK) return status;
    uint64_t key[2];
    bool keyed = sched_disk_key(s, spec, key);
    status = kv_watch_tenants(&m->kv, s->page_tenants, zero_for, m, err);
    if (status == INFERD_OK) status = prefix_init(&m->prefix, &m->kv, keyed ? key : NULL, err);
    if (status == INFERD_OK) {
        status = sched_open_swap(s, m, err);
        if (status != INFERD_OK) prefix_deinit(&m->prefix);
    }
    if (status != INFERD_OK) {
        kv_deinit(&m->kv);
        return status;
    }
    m->s = s;
    m->weights_of = model_idx;
    m->kv.on_live = sched_on_live;
    m->kv.on_live_ctx = m;
    m->spec = *spec;
    m->open = true;
    return INFERD_OK;
}

void sched_model_close(sched *s, uint32_t model_idx) {
    sched_model *m = &s->models[model_idx];
    INFERD_CHECK(model_idx < s->n_models && m->n_seqs + m->n_ended == 0 && m->n_steps == 0);
    if (s->constraint_ops != NULL) s->constraint_ops->settle(s->constraint_ctx);
    if (m->open) {
        while (prefix_evict(&m->prefix)) {
        }
        INFERD_CHECK(m->kv.n_taken == 0); // what no sequence uses was cached, and is gone
        sched_forget_reads(s, model_idx);
        sched_close_swap(m);
        prefix_deinit(&m->prefix);
        kv_deinit(&m->kv);
    }
    flow_usage_close_model(&s->flow_usage, model_idx);
    s->n_shares -= m->share.percent > 0;
    empty_model(m);
}

void sched_model_hot(sched *s, uint32_t model_idx, bool hot, uint64_t now_us) {
    sched_model *m = &s->models[model_idx];
    INFERD_CHECK(model_idx < s->n_models && m->open && (hot || m->n_steps == 0));
    m->first_step = hot;
    m->hot = hot;
    if (hot) m->hot_us = now_us;
}

void sched_model_fail(sched *s, uint32_t model_idx, const inferd_err *why, uint64_t retry_at_us,
                      uint64_t now_us) {
    sched_model *m = &s->models[model_idx];
    note_slot(s, model_idx);
    m->failed = true;
    m->hot = false;
    m->why = *why;
    m->retry_at_us = retry_at_us;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        seq *q = &s->seqs[i];
        if ((q->state == SEQ_WAITING || q->state == SEQ_RUNNING) && q->model_idx == model_idx) {
            sched_end_seq(s, q, GEN_ERROR, -1, why->status, why->text, now_us);
            sched_note_retry(m, q, now_us);
        }
    }
}

void sched_model_revive(sched *s, uint32_t model_idx) {
    s->models[model_idx].failed = false;
}

uint32_t sched_model_preempt(sched *s, uint32_t model_idx) {
    uint32_t n = 0;
    LIST_EACH_SAFE(node, next, &s->running) {
        seq *q = LIST_ENTRY(node, seq, link);
        if (q->model_idx != model_idx) continue;
        sched_preempt_seq(s, q);
        sched_note_model_out(q);
        n++;
    }
    return n;
}

void sched_model_close_window(sched *s, uint32_t model_idx, bool closed) {
    s->models[model_idx].closed = closed;
    if (closed) return;
    s->models[model_idx].limits_changed = s->some_limits_changed = true; // limits known only now
}

uint32_t sched_model_n_steps(const sched *s, uint32_t model_idx) {
    return s->models[model_idx].n_steps;
}

uint32_t sched_model_n_seqs(const sched *s, uint32_t model_idx) {
    return s->models[model_idx].n_seqs + s->models[model_idx].n_ended;
}

uint32_t sched_model_n_cached(const sched *s, uint32_t model_idx) {
    return s->models[model_idx].open ? s->models[model_idx].kv.n_idle_pages : 0;
}

bool sched_stands_still(const sched *s, const seq *q) {
    const sched_model *m = &s->models[q->model_idx];
    if (q->paused || m->share.policy != SHARE_BESTEFFORT) return q->paused;
    return (m->share.weight == 0 || s->n_paused_tenants > 0) && *sched_pause_reason(s, q) != 0;
}

static void count_demand(const sched *s, const sched_model *m, sched_demand *d) {
    const seq *first = NULL;
    rate_work held = {0};
    uint64_t n_blocks = 0;
    LIST_EACH(node, &m->running) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (sched_stands_still(s, q)) continue;
        d->n_running++;
        n_blocks += q->table.n_blocks;
        rate_add_rows(&held, 0, q->n_computed);
        if (q->req->prio < d->running_class) d->running_class = q->req->prio;
        if (q->req->prio > d->lowest_class) d->lowest_class = q->req->prio;
    }
    LIST_EACH(node, &m->waiting) {
        const seq *q = LIST_ENTRY(node, seq, mine);
        if (sched_stands_still(s, q)) continue;
        d->n_waiting++;
        if (q->first_token_us == 0 && (d->unserved_us == 0 || q->req->arrival_us < d->unserved_us))
            d->unserved_us = q->req->arrival_us;
        if (q->req->prio > d->waiting_class) continue;
        if (q->req->prio < d->waiting_class || q->idle_since_us < d->oldest_us) {
            d->oldest_us = q->idle_since_us;
            first = q;
        }
        d->waiting_class = q->req->prio;
    }
    if (first != NULL) d->first_pages = sched_pages_to_start(s, first);
    d->again_us = sched_again_us(m, &held, n_blocks);
}

void sched_demands(const sched *s, uint64_t now_us, sched_demand *out) {
    for (uint32_t i = 0; i < s->n_models; i++)
        out[i] = (sched_demand){.n_steps = s->models[i].n_steps,
                                .waiting_class = GEN_CLASSES,
                                .running_class = GEN_CLASSES,
                                .lowest_class = GEN_SYSTEM,
                                .oldest_us = now_us};
    for (uint32_t i = 0; i < s->n_models; i++)
        if (s->models[i].n_seqs > 0) count_demand(s, &s->models[i], &out[i]);
}

uint32_t sched_drop_cached(sched *s, uint32_t n) {
    for (uint32_t i = 0; i < s->n_models && pool_n_device_free(s->pool) < n; i++) {
        sched_model *m = &s->models[(s->next_drop + i) % s->n_models];
        while (m->open && pool_n_device_free(s->pool) < n && sched_evict_block(s, m)) {
        }
    }
    s->next_drop = s->n_models > 0 ? (s->next_drop + 1) % s->n_models : 0;
    return pool_n_device_free(s->pool);
}

void sched_set_reclaim(sched *s, sched_reclaim *f, void *ctx) {
    s->reclaim = f;
    s->reclaim_ctx = ctx;
}

/* ---- ends ---- */

/* Frees its blocks and drops what unfinished steps would have brought. */
static void remove_running(sched *s, seq *q) {
    sched_leave_disk(s, q);
    prefix_release(&seq_model(s, q)->prefix, &q->table, q->last_epoch);
    q->run++;
    q->n_computed = q->n_planned = q->n_pending = q->n_drafts = q->n_scored_planned = 0;
    q->n_published = 0;
    if (q->constraint != NULL) q->constraint->undrawn = false;
    list_remove(&q->link);
    list_remove(&q->mine);
    s->n_running--;
    sched_note_runs(s, q, false);
    seq_model(s, q)->n_running--;
}

void sched_preempt_seq(sched *s, seq *q) {
    INFERD_CHECK(q->state == SEQ_RUNNING);
    sched_note_preempted(s, q);
    q->redo_until = u32_max(q->redo_until, q->n_computed);
    remove_running(s, q);
    q->displaced = false;
    q->state = SEQ_WAITING;
    q->n_preempted++;
    q->refused_plan = s->plan_no;
    if (q->last_epoch > s->relief_epoch) s->relief_epoch = q->last_epoch;
    list_push_back(&s->waiting, &q->link);
    list_push_back(&seq_model(s, q)->waiting, &q->mine);
    s->n_waiting++;
    s->counters.n_preemptions++;
    seq_model(s, q)->looked_plan = 0; // this plan chose from what was found before
}

/* From its arrival until its model was hot, at most until `until_us`; 0: it was hot. */
static uint64_t load_us(const sched *s, const seq *q, uint64_t until_us) {
    const sched_model *m = &s->models[q->model_idx];
    uint64_t arrival_us = q->req->arrival_us;
    if (!q->came_cold || until_us <= arrival_us) return 0;
    if (m->hot && m->hot_us <= arrival_us) return 0; // a name that joined a hot one
    uint64_t hot_us = m->hot_us > arrival_us ? u64_min(m->hot_us, until_us) : until_us;
    return hot_us - arrival_us;
}

void sched_end_seq(sched *s, seq *q, gen_finish finish, tok_id stop_id, inferd_status status,
                   const char *text, uint64_t now_us) {
    sched_note_ended_away(s, q, now_us);
    if (q->state == SEQ_RUNNING) {
        remove_running(s, q);
    } else if (q->state == SEQ_WAITING) {
        list_remove(&q->link);
        list_remove(&q->mine);
        s->n_waiting--;
    }
    if (q->state != SEQ_FREE) {
        sched_tenant_go_on(s, q->req->tenant_idx);
        s->models[q->model_idx].n_seqs--;
        s->models[q->model_idx].n_ended++;
        q->counted = true;
        s->n_paused -= q->paused;
        if (s->relief_for == q) s->relief_for = NULL;
        sched_leave_flow(s, q);
        sched_leave_tenant(s, q);
    }
    q->state = SEQ_ENDED;
    list_push_back(&s->ended, &q->link);
    s->n_ended++;
    s->n_unsent++;
    s->counters.n_finished[finish]++;
    uint64_t began_us = q->first_plan_us != 0 ? q->first_plan_us : now_us;
    q->done = (gen_event){.id = q->req->id, .kind = GEN_EV_DONE, .at_us = now_us};
    q->done.done.finish = finish;
    q->done.done.stop_id = stop_id;
    q->done.done.status = status;
    snprintf(q->done.done.text, sizeof q->done.done.text, "%s", text != NULL ? text : "");
    q->done.done.n_prompt = q->req->n_prompt;
    q->done.done.n_cached = q->n_cached;
    q->done.done.n_output = q->n_tokens > q->req->n_prompt ? seq_n_output(q) : 0;
    q->done.done.n_preempted = q->n_preempted;
    q->done.done.device_us = q->device_us; // unfinished steps may add more: charged, not reported
    q->done.done.load_us = load_us(s, q, began_us);
    q->done.done.n_aways = q->n_aways;
    memcpy(q->done.done.aways, q->aways, sizeof q->aways);
    q->done.done.waste_us = q->waste_us;
    q->done.done.swap_in_us = q->swap_in_us;
    q->done.done.away_us = q->away_us;
    q->done.done.n_recomputed = q->n_redone;
    memcpy(q->done.done.n_preempts, q->n_preempts, sizeof q->n_preempts);
    q->done.done.queued_us = began_us > q->req->arrival_us ? began_us - q->req->arrival_us : 0;
    if (q->done.done.n_output > 0) {
        q->done.done.prefill_us = q->first_token_us - began_us;
        q->done.done.decode_us = q->last_token_us - q->first_token_us;
    }
    q->done.done.queued_steps =
        q->first_plan_us != 0 ? q->queued_steps : (uint32_t)(s->pool->launched - q->steps_before);
}

void sched_note_step_end(sched *s, uint64_t now_us) {
    s->step_ends_us[s->pool->finished % STEP_ENDS] = now_us;
}

uint32_t sched_flush(sched *s, uint32_t room) {
    uint32_t n = 0;
    LIST_EACH_SAFE(node, next, &s->ended) {
        seq *q = LIST_ENTRY(node, seq, link);
        if (!q->done_sent) {
            if (n == room) break; // they end in order: none behind it was sent
            s->emit(s->emit_ctx, &q->done);
            q->done_sent = true;
            s->n_unsent--;
            n++;
        }
        if (q->n_steps > 0) continue; // an unfinished step still reads its block table
        if (q->counted) s->models[q->model_idx].n_ended--;
        release_seq_memory(s, q);
        list_remove(&q->link);
        *q = (seq){.table.open_page = PAGE_NONE};
        list_push_front(&s->free, &q->link);
        s->n_ended--;
    }
    return n;
}

uint32_t sched_n_unsent(const sched *s) {
    return s->n_unsent;
}

/* ---- messages about one request ---- */

static seq *find_alive(sched *s, uint64_t id) {
    LIST_EACH(node, &s->running) {
        seq *q = LIST_ENTRY(node, seq, link);
        if (q->req->id == id) return q;
    }
    LIST_EACH(node, &s->waiting) {
        seq *q = LIST_ENTRY(node, seq, link);
        if (q->req->id == id) return q;
    }
    return NULL;
}

void sched_cancel(sched *s, uint64_t id, uint64_t now_us) {
    seq *q = find_alive(s, id);
    if (q != NULL) sched_end_seq(s, q, GEN_CANCELLED, -1, INFERD_ECANCELED, "cancelled", now_us);
}

void sched_pause(sched *s, uint64_t id) {
    seq *q = find_alive(s, id);
    if (q == NULL || q->paused) return;
    q->paused = true;
    s->n_paused++;
    sched_tenant_go_on(s, q->req->tenant_idx); // the tenant's other sequences may take what it has
}

void sched_resume(sched *s, uint64_t id, uint64_t now_us) {
    seq *q = find_alive(s, id);
    if (q == NULL || !q->paused) return;
    q->paused = false;
    s->n_paused--;
    q->idle_since_us = now_us; // its reader was slow, not the scheduler
}

void sched_cancel_all(sched *s, uint64_t now_us) {
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        seq *q = &s->seqs[i];
        if (q->state == SEQ_WAITING || q->state == SEQ_RUNNING)
            sched_end_seq(s, q, GEN_CANCELLED, -1, INFERD_ECANCELED, "the engine stops", now_us);
    }
}

/* ---- numbers ---- */

uint64_t sched_next_deadline(const sched *s) {
    uint64_t us = s->share_ready_us < s->next_deadline_us ? s->share_ready_us : s->next_deadline_us;
    return s->disk_due_us < us ? s->disk_due_us : us;
}

void sched_count_model(const sched *s, uint32_t model_idx, sched_model_numbers *out) {
    const sched_model *m = &s->models[model_idx];
    *out = (sched_model_numbers){.n_running = m->n_running,
                                 .n_waiting = m->n_seqs - m->n_running,
                                 .pages_cached = m->open ? m->kv.n_idle_pages : 0,
                                 .blocks_used = m->open ? m->kv.n_live : 0,
                                 .device_us = m->device_us,
                                 .cost_error_ppm = rate_error_ppm(&m->rate),
                                 .first_us = m->first_us,
                                 .first_us_sum = m->first_us_sum};
    memcpy(out->n_preempts, m->n_preempts, sizeof out->n_preempts);
}

bool sched_page_is_cached(const sched *s, uint32_t model_idx, uint32_t page) {
    const sched_model *m = &s->models[model_idx];
    return m->open && m->kv.pages[page].n_live == 0;
}

static void count_class(const sched *s, const seq *q, sched_class *out) {
    sched_class *c = &out[q->req->prio];
    if (sched_stands_still(s, q)) return;
    c->n_running += q->state == SEQ_RUNNING;
    c->n_waiting += q->state == SEQ_WAITING;
    if (c->since_us == 0 || q->idle_since_us < c->since_us) c->since_us = q->idle_since_us;
}

void sched_count_classes(const sched *s, sched_class out[GEN_CLASSES]) {
    memset(out, 0, GEN_CLASSES * sizeof *out);
    LIST_EACH(node, &s->running) count_class(s, LIST_ENTRY(node, seq, link), out);
    LIST_EACH(node, &s->waiting) count_class(s, LIST_ENTRY(node, seq, link), out);
}

void sched_count(const sched *s, sched_counters *out) {
    *out = s->counters;
    out->charged_us = s->charged_us;
    out->waste_us = s->waste_us;
    out->n_running = s->n_running;
    out->n_waiting = s->n_waiting;
    out->n_paused = s->n_paused;
    out->n_ended = s->n_ended;
    for (uint32_t i = 0; i < s->n_models; i++) {
        if (!s->models[i].open) continue;
        out->pages_cached += s->models[i].kv.n_idle_pages;
        out->blocks_referenced += s->models[i].kv.n_live;
        if (s->models[i].swaps) out->blocks_swapped += s->models[i].swapped.n_published;
    }
}
