/* submit.c - how a request becomes a waiting sequence.
 *
 *   sched_submit    in this order: is a sequence free, is the request complete and its model there,
 *                   has the queue room, could it ever fit (memory of the device, ceilings of its
 *                   model and its tenant).  The first no ends the request
 *   memory          for all its tokens and blocks, so that nothing is allocated later
 *   flow            the work of its tenant on its model (charge.c); then it waits
 *
 * The fit is the arithmetic of the section "fit".  The front asks it for a request before it
 * submits it (engine_admit), with numbers published by the engine; here it is computed again only
 * if there is less memory for the request now, or for its tenant (gen_request.fit_tokens).  When
 * limits change it is computed for all sequences, and those that cannot be finished end. */
#include <string.h>

#include "sched_state.h"

/* ---- tenants and bytes ---- */

uint64_t sched_block_bytes(const sched_model *m) {
    return m->kv.layout.slot_bytes * m->kv.layout.n_groups;
}

const sched_tenant *sched_tenant_at(const sched *s, uint32_t idx) {
    return idx < s->n_tenants ? &s->tenants[idx] : NULL;
}

const sched_tenant *sched_tenant_of(const sched *s, const seq *q) {
    return sched_tenant_at(s, q->req->tenant_idx);
}

uint32_t sched_pages_of(const sched *s, uint64_t n_bytes) {
    if (s->page_bytes == 0) return 0;
    uint64_t n = n_bytes / s->page_bytes + (n_bytes % s->page_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* ---- fit ---- */

static guarantee_sum kept_by_others(const sched *s, uint32_t model_idx) {
    const sched_model *m = &s->models[model_idx];
    guarantee_sum k = {0, 0};
    for (uint32_t i = 0; i < s->n_models; i++) {
        uint32_t pinned = i != m->weights_of ? s->models[i].pinned_pages : 0;
        guarantee_add(&k, pinned, i != model_idx ? s->pool->owners[i].min : 0,
                      i == m->weights_of ? m->spec.weight_pages : pinned);
    }
    return k;
}

/* Pages for KV when all others hold no more than they keep in any case. */
static uint32_t pages_beside(const sched *s, guarantee_sum kept, uint32_t model_idx,
                             uint32_t tenant_idx) {
    const sched_model *m = &s->models[model_idx];
    const pool *p = s->pool;
    uint64_t pinned = kept.pinned;
    const sched_tenant *t = sched_tenant_at(s, tenant_idx);
    uint64_t others = s->min_bytes - (t != NULL ? t->min_bytes : 0);
    if (tenant_idx == UINT32_MAX) others = 0;
    uint64_t guaranteed = guarantee_free(&kept, sched_pages_of(s, others));
    /* A model with weights that do not even fit fails as a whole, with an error about that, so pins
     * do not count here; unless its weights came before others were guaranteed so much. */
    if (p->owners[m->weights_of].held[PAGE_WEIGHT] == 0 &&
        pinned + guaranteed + m->spec.weight_pages >= p->n_device)
        pinned = 0;
    uint64_t left = pinned + guaranteed < p->n_device ? p->n_device - pinned - guaranteed : 0;
    if (left > p->owners[model_idx].max) left = p->owners[model_idx].max;
    return left > m->spec.weight_pages ? (uint32_t)left - m->spec.weight_pages : 0;
}

static uint32_t tokens_beside(const sched *s, guarantee_sum kept, uint32_t model_idx,
                              uint32_t tenant_idx) {
    const kv_layout *l = &s->models[model_idx].spec.kv;
    uint64_t n_blocks = kv_blocks_in(l, pages_beside(s, kept, model_idx, tenant_idx));
    uint64_t n = n_blocks * l->block_tokens;
    return n < INT32_MAX ? (uint32_t)n : INT32_MAX;
}

uint32_t sched_tokens_for(const sched *s, uint32_t model_idx, uint32_t tenant_idx) {
    return tokens_beside(s, kept_by_others(s, model_idx), model_idx, tenant_idx);
}

uint32_t sched_kv_tokens_ceiling(const sched *s, uint32_t model_idx) {
    const sched_model *m = &s->models[model_idx];
    uint32_t max = s->pool->owners[model_idx].max;
    if (!m->open || max == UINT32_MAX) return INT32_MAX;
    uint32_t n_pages = max > m->spec.weight_pages ? max - m->spec.weight_pages : 0;
    uint64_t n = kv_blocks_in(&m->spec.kv, n_pages) * (uint64_t)m->spec.kv.block_tokens;
    return n < INT32_MAX ? (uint32_t)n : INT32_MAX;
}

uint32_t sched_tenant_tokens(const sched *s, uint32_t model_idx, uint32_t tenant_idx) {
    const kv_layout *l = &s->models[model_idx].spec.kv;
    const sched_tenant *t = sched_tenant_at(s, tenant_idx);
    uint64_t n_bytes = l->slot_bytes * l->n_groups;
    if (t == NULL || t->max_bytes == UINT64_MAX || n_bytes == 0) return INT32_MAX;
    uint64_t n_blocks = t->max_bytes / n_bytes;
    return n_blocks < INT32_MAX / l->block_tokens ? (uint32_t)n_blocks * l->block_tokens
                                                  : INT32_MAX;
}

uint32_t sched_kv_tokens_max(const sched *s, uint32_t model_idx) {
    const sched_model *m = &s->models[model_idx];
    if (!m->open) return 0;
    return sched_tokens_for(s, model_idx, UINT32_MAX);
}

inferd_status sched_admit(uint32_t context, uint32_t kv_tokens_max, uint32_t kv_tokens_ceiling,
                          uint32_t n_prompt, uint32_t max_tokens, inferd_err *err) {
    uint32_t room = max_tokens > 0 ? 1 : 0; // for output
    if (n_prompt > context || context - n_prompt < room)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "the prompt has %u tokens, the context holds %u including the output",
                           n_prompt, context);
    bool has_end = max_tokens > 0 && max_tokens != GEN_NO_MAX;
    /* The last token drawn needs no keys and values. */
    uint64_t wanted = (uint64_t)n_prompt + (has_end ? max_tokens : 1);
    uint64_t stored = (wanted < context ? wanted : context) - 1;
    if (stored < n_prompt) stored = n_prompt;
    if (stored > kv_tokens_ceiling)
        return inferd_fail(err, INFERD_EQUOTA,
                           "the request needs keys and values of %llu tokens, the model's max "
                           "leaves room for %u",
                           (unsigned long long)stored, kv_tokens_ceiling);
    if (kv_tokens_max == 0)
        return inferd_fail(
            err, INFERD_EMODEL,
            "the device has no memory for keys and values of this model: its weights leave none "
            "beside memory that is pinned or guaranteed to others");
    if (n_prompt > kv_tokens_max)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "the prompt has %u tokens, the memory for keys and values holds %u",
                           n_prompt, kv_tokens_max);
    if (stored > kv_tokens_max)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "%u prompt tokens and %u output tokens need keys and values of %llu "
                           "tokens, the memory for them holds %u",
                           n_prompt, max_tokens, (unsigned long long)stored, kv_tokens_max);
    return INFERD_OK;
}

/* Could it ever fit into what its tenant may have? */
static inferd_status admit_tenant(const sched *s, const seq *q, inferd_err *err) {
    const sched_tenant *t = sched_tenant_of(s, q);
    const sched_model *m = &s->models[q->model_idx];
    if (t == NULL || t->max_bytes == UINT64_MAX) return INFERD_OK;
    uint64_t needed = kv_blocks_of(&m->kv.layout, q->req->n_prompt) * sched_block_bytes(m);
    if (q->req->max_tokens != GEN_NO_MAX)
        needed = kv_blocks_of(&m->kv.layout, seq_stored_max(q)) * sched_block_bytes(m);
    if (needed <= t->max_bytes) return INFERD_OK;
    return inferd_fail(err, INFERD_EQUOTA,
                       "the request needs %llu KiB for keys and values, the tenant may have %llu",
                       (unsigned long long)(needed + 1023) / 1024,
                       (unsigned long long)t->max_bytes / 1024);
}

/* ---- changed limits ---- */

/* False: it can not be finished any more. */
static bool still_fits(const sched *s, guarantee_sum kept, seq *q, inferd_err *err) {
    uint32_t n_memory = tokens_beside(s, kept, q->model_idx, q->req->tenant_idx);
    uint32_t n_tenant = sched_tenant_tokens(s, q->model_idx, q->req->tenant_idx);
    uint32_t n_max = u32_min(n_memory, n_tenant);
    uint32_t n_known = q->n_tokens + q->n_pending + q->n_drafts;
    if (seq_stored_max(q) <= n_max) return true;
    if (q->req->max_tokens == GEN_NO_MAX && n_known <= n_max) {
        q->tokens_max = n_max + 1; // the last one drawn needs no keys and values
        return true;
    }
    uint32_t n = q->req->max_tokens == GEN_NO_MAX ? n_known : seq_stored_max(q);
    if (n_tenant < n_memory)
        inferd_fail(err, INFERD_EQUOTA,
                    "the limits were changed: the request needs keys and values of %u tokens, the "
                    "tenant may have %u",
                    n, n_tenant);
    else if (n_memory == sched_kv_tokens_ceiling(s, q->model_idx))
        inferd_fail(err, INFERD_EQUOTA,
                    "the limits were changed: the request needs keys and values of %u tokens, the "
                    "model's max leaves room for %u",
                    n, n_memory);
    else
        inferd_fail(err, INFERD_ETOOLONG,
                    "the limits were changed: the request needs keys and values of %u tokens, the "
                    "memory for them holds %u",
                    n, n_memory);
    return false;
}

static void recheck_model(sched *s, uint32_t model_idx, uint64_t now_us) {
    sched_model *m = &s->models[model_idx];
    guarantee_sum kept = kept_by_others(s, model_idx);
    list_node *lists[2] = {&m->running, &m->waiting};
    for (int l = 0; l < 2; l++)
        LIST_EACH_SAFE(node, next, lists[l]) {
            seq *q = LIST_ENTRY(node, seq, mine);
            inferd_err err = {0};
            if (!still_fits(s, kept, q, &err))
                sched_end_seq(s, q, GEN_ERROR, -1, err.status, err.text, now_us);
        }
}

void sched_recheck_limits(sched *s, uint64_t now_us) {
    bool all = s->limits_changed;
    s->limits_changed = s->some_limits_changed = false;
    for (uint32_t i = 0; i < s->n_models; i++) {
        sched_model *m = &s->models[i];
        if (m->open && (all || m->limits_changed)) recheck_model(s, i, now_us);
        m->limits_changed = false;
    }
    for (uint32_t i = 0; i < s->n_models && all; i++)
        if (s->models[i].open) sched_trim_to_max(s, &s->models[i]);
}

/* ---- flows ---- */

static uint32_t bucket_of(const sched *s, uint32_t tenant, uint32_t model) {
    return (tenant * 2654435761u ^ model * 40503u) % s->n_flows;
}

static flow *find(sched *s, uint32_t tenant, uint32_t model) {
    for (uint32_t i = s->flow_buckets[bucket_of(s, tenant, model)]; i != FLOW_NONE;
         i = s->flows[i].next)
        if (s->flows[i].tenant == tenant && s->flows[i].model == model) return &s->flows[i];
    return NULL;
}

static void unhash(sched *s, flow *p) {
    uint32_t *at = &s->flow_buckets[bucket_of(s, p->tenant, p->model)];
    while (&s->flows[*at] != p) at = &s->flows[*at].next;
    *at = p->next;
}

/* The flow idle for longest makes room: there are more of them than sequences. */
static flow *create(sched *s, uint32_t tenant, uint32_t model) {
    flow *p = LIST_ENTRY(s->idle_flows.next, flow, idle);
    if (p->used) {
        unhash(s, p);
        flow_usage_let_go(&s->flow_usage, &p->flow_usage);
    }
    list_remove(&p->idle);
    *p = (flow){.tenant = tenant, .model = model, .used = true};
    list_node_init(&p->idle);
    list_push_back(&s->idle_flows, &p->idle);
    uint32_t *bucket = &s->flow_buckets[bucket_of(s, tenant, model)];
    p->next = *bucket;
    *bucket = (uint32_t)(p - s->flows);
    return p;
}

/* It has work, but all of it in the other part, and its virtual time in this one stands still. */
static bool is_away(const flow *p, uint32_t part) {
    enum { AWAY_US = 1000000 }; // parts alternate from step to step: so short a time is no absence
    return p->seen_us[!part] > p->seen_us[part] + AWAY_US;
}

/* The smallest virtual time of the flows with work in this part; without any, that of the flow
 * served last. */
static uint64_t least_virtual(const sched *s, uint32_t part) {
    uint64_t least = UINT64_MAX;
    LIST_EACH(node, &s->active_flows) {
        const flow *p = LIST_ENTRY(node, flow, idle);
        if (!is_away(p, part) && p->virtual_us[part] < least) least = p->virtual_us[part];
    }
    return least != UINT64_MAX ? least : s->virtual_us[part];
}

/* From now on its virtual time counts: time without work in this part is no credit. */
static void begin_part(const sched *s, flow *p, uint32_t part) {
    uint64_t least = least_virtual(s, part);
    if (p->virtual_us[part] < least) p->virtual_us[part] = least;
}

void sched_see_flow(sched *s, flow *p, sched_tier tier, uint64_t now_us) {
    uint32_t part = flow_part(tier);
    if (is_away(p, part)) begin_part(s, p, part);
    p->seen_us[part] = now_us;
}

static flow *look_up(sched *s, const seq *q) {
    flow *p = find(s, q->req->tenant_idx, q->model_idx);
    return p != NULL ? p : create(s, q->req->tenant_idx, q->model_idx);
}

flow *sched_flow_of(sched *s, const seq *q) {
    flow *p = &s->flows[q->flow];
    bool is_its = p->tenant == q->req->tenant_idx && p->model == q->model_idx;
    return is_its ? p : look_up(s, q);
}

static void join_flow(sched *s, seq *q) {
    flow *p = look_up(s, q);
    if (p->n_seqs++ == 0) {
        for (uint32_t i = 0; i < FLOW_PARTS; i++) {
            begin_part(s, p, i);
            p->seen_us[i] = 0;
        }
        list_remove(&p->idle);
        list_push_back(&s->active_flows, &p->idle);
    }
    q->flow = (uint32_t)(p - s->flows);
}

void sched_leave_flow(sched *s, seq *q) {
    flow *p = &s->flows[q->flow];
    if (--p->n_seqs > 0) return;
    list_remove(&p->idle);
    list_push_back(&s->idle_flows, &p->idle);
}

/* ---- the counts of a tenant ---- */

void sched_note_tenant(sched *s, uint32_t tenant) {
    if (s->tenants[tenant].changed) return;
    s->tenants[tenant].changed = true;
    s->changed_tenants[s->n_changed_tenants++] = tenant;
}

static void join_tenant(sched *s, seq *q) {
    q->in_tenant = q->req->tenant_idx < s->n_tenants;
    if (!q->in_tenant) return;
    s->tenants[q->req->tenant_idx].n_seqs++;
    sched_note_tenant(s, q->req->tenant_idx);
}

void sched_leave_tenant(sched *s, seq *q) {
    if (!q->in_tenant) return;
    q->in_tenant = false;
    s->tenants[q->req->tenant_idx].n_seqs--;
    sched_note_tenant(s, q->req->tenant_idx);
}

void sched_note_runs(sched *s, const seq *q, bool runs) {
    if (!q->in_tenant) return;
    sched_tenant *t = &s->tenants[q->req->tenant_idx];
    t->n_running += runs ? 1 : UINT32_MAX;
    sched_note_tenant(s, q->req->tenant_idx);
}

bool sched_init_flows(sched *s) {
    s->n_flows = 2 * s->n_seqs;
    s->flows = calloc(s->n_flows, sizeof *s->flows);
    s->flow_buckets = malloc(s->n_flows * sizeof *s->flow_buckets);
    list_node_init(&s->idle_flows);
    list_node_init(&s->active_flows);
    if (s->flows == NULL || s->flow_buckets == NULL) return false;
    for (uint32_t i = 0; i < s->n_flows; i++) {
        s->flow_buckets[i] = FLOW_NONE;
        list_push_back(&s->idle_flows, &s->flows[i].idle);
    }
    return true;
}

/* ---- submission ---- */

/* Steps that had ended at that time, which is recent: the front took it. */
static uint64_t steps_ended_by(const sched *s, uint64_t at_us) {
    uint64_t n = s->pool->finished;
    for (int i = 0; i < STEP_ENDS && n > 0 && s->step_ends_us[n % STEP_ENDS] > at_us; i++) n--;
    return n;
}

static inferd_status check_ids(const gen_request *r, uint32_t n_vocab, inferd_err *err) {
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= n_vocab)
            return inferd_fail(err, INFERD_EINVAL, "prompt token %u is %d, the vocabulary has %u",
                               i, r->prompt[i], n_vocab);
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] < 0 || (uint32_t)r->stop_ids[i] >= n_vocab)
            return inferd_fail(err, INFERD_EINVAL, "stop id %d, the vocabulary has %u",
                               r->stop_ids[i], n_vocab);
    for (uint32_t i = 0; i < r->sampling.n_bias; i++)
        if (r->sampling.bias[i].id < 0 || (uint32_t)r->sampling.bias[i].id >= n_vocab)
            return inferd_fail(err, INFERD_EINVAL, "logit_bias for token %d, the vocabulary has %u",
                               r->sampling.bias[i].id, n_vocab);
    return INFERD_OK;
}

static inferd_status check_request(const sched *s, const gen_request *r, uint64_t now_us,
                                   inferd_err *err) {
    if (r->model_idx >= s->n_models)
        return inferd_fail(err, INFERD_ENOTFOUND, "model index %u, there are %u models",
                           r->model_idx, s->n_models);
    const sched_model *m = &s->models[r->model_idx];
    /* A client that is back after Retry-After may be the first to notice that the time is over. */
    if (m->failed && (m->retry_at_us == 0 || now_us < m->retry_at_us))
        return inferd_fail(err, m->why.status, "%s", m->why.text);
    if (!m->open)
        return inferd_fail(err, INFERD_ENOTFOUND, "there is no model in slot %u", r->model_idx);
    if (s->n_waiting >= s->limits.queue_len_max)
        return inferd_fail(err, INFERD_EBUSY, "%u requests are waiting, the queue holds %u",
                           s->n_waiting, s->limits.queue_len_max);
    if (r->n_prompt == 0 || r->prompt == NULL)
        return inferd_fail(err, INFERD_EINVAL, "the prompt has no tokens");
    if ((uint32_t)r->prio >= GEN_CLASSES)
        return inferd_fail(err, INFERD_EINVAL, "priority class %u, there are %u", (unsigned)r->prio,
                           GEN_CLASSES);
    return check_ids(r, m->spec.n_vocab, err);
}

/* room: tokens that its tenant could have here. */
static inferd_status check_fit(const sched *s, const gen_request *r, uint32_t room,
                               inferd_err *err) {
    uint32_t ceiling = sched_kv_tokens_ceiling(s, r->model_idx);
    if (r->fit_tokens > 0 && u32_min(room, ceiling) >= r->fit_tokens) return INFERD_OK;
    return sched_admit(s->models[r->model_idx].spec.context, room, ceiling, r->n_prompt,
                       r->max_tokens, err);
}

/* Memory for all its tokens and blocks; the system backs it lazily, so a bound costs nothing. */
static inferd_status take_memory(sched *s, seq *q, uint32_t room, inferd_err *err) {
    gen_request *r = q->req;
    const sched_model *m = &s->models[q->model_idx];
    room = u32_min(m->spec.context, room + 1); // the last token drawn is never computed
    if (r->max_tokens == GEN_NO_MAX)
        room = u32_min(room, sched_tenant_tokens(s, q->model_idx, r->tenant_idx) + 1);
    uint64_t wanted = (uint64_t)r->n_prompt + r->max_tokens;
    q->tokens_max = wanted < room ? (uint32_t)wanted : u32_max(room, r->n_prompt);
    uint32_t stored = u32_max(q->tokens_max - 1, r->n_prompt); // seq_stored_max
    tok_id *tokens = realloc(r->prompt, (size_t)q->tokens_max * sizeof *tokens);
    if (tokens != NULL) r->prompt = tokens;
    bool always = r->ignore_eos && r->grammar != NULL; // the text goes on as long as it may
    uint32_t n_end_ids = r->ignore_eos && !always ? 0 : m->spec.n_end_ids;
    size_t n_banned = r->min_tokens > 0 || always ? (size_t)n_end_ids + r->n_stop_ids : 0;
    q->banned = n_banned > 0 ? malloc(n_banned * sizeof *q->banned) : NULL;
    if (tokens == NULL || (n_banned > 0 && q->banned == NULL) ||
        !kv_table_init(&q->table, &m->spec.kv, kv_blocks_of(&m->spec.kv, stored)) ||
        (r->grammar != NULL && !sched_open_constraint(s, q)))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a sequence of %u tokens",
                           q->tokens_max);
    if (n_banned == 0) return INFERD_OK;
    if (n_end_ids > 0) memcpy(q->banned, m->spec.end_ids, n_end_ids * sizeof *q->banned);
    if (r->n_stop_ids > 0)
        memcpy(q->banned + n_end_ids, r->stop_ids, r->n_stop_ids * sizeof *q->banned);
    q->n_banned = (uint32_t)n_banned;
    q->n_banned_always = always ? n_end_ids : 0;
    return INFERD_OK;
}

static void note_deadlines(sched *s, const seq *q) {
    const gen_request *r = q->req;
    if (r->deadline_us != 0 && r->deadline_us < s->next_deadline_us)
        s->next_deadline_us = r->deadline_us;
    if (r->queue_deadline_us != 0 && q->first_plan_us == 0 &&
        r->queue_deadline_us < s->next_deadline_us)
        s->next_deadline_us = r->queue_deadline_us;
}

/* No sequence is free, not even for its end: the last event is emitted at once. */
static void refuse_at_once(sched *s, gen_request *r, uint64_t now_us) {
    gen_event e = {.id = r->id, .kind = GEN_EV_DONE, .at_us = now_us};
    e.done.finish = GEN_ERROR;
    e.done.stop_id = -1;
    e.done.status = INFERD_EBUSY;
    e.done.n_prompt = r->n_prompt;
    snprintf(e.done.text, sizeof e.done.text, "all %u sequences of the engine are in use",
             s->n_seqs);
    s->counters.n_finished[GEN_ERROR]++;
    s->emit(s->emit_ctx, &e);
    gen_request_destroy(r);
}

/* All questions of the file's head but the first, in their order. */
static inferd_status check_and_take(sched *s, seq *q, uint64_t now_us, inferd_err *err) {
    gen_request *r = q->req;
    inferd_status status = check_request(s, r, now_us, err);
    if (status != INFERD_OK) return status;
    uint32_t room = sched_tokens_for(s, r->model_idx, r->tenant_idx);
    if ((status = check_fit(s, r, room, err)) != INFERD_OK) return status;
    q->model_idx = r->model_idx;
    if ((status = take_memory(s, q, room, err)) != INFERD_OK) return status;
    q->table.tenant = r->tenant_idx;
    return admit_tenant(s, q, err);
}

/* It waits, for its first step. */
static void begin_waiting(sched *s, seq *q, uint64_t now_us) {
    const gen_request *r = q->req;
    sched_model *m = &s->models[q->model_idx];
    m->n_seqs++;
    join_flow(s, q);
    join_tenant(s, q);
    if (r->tenant_idx < s->n_tenants) s->tenants[r->tenant_idx].stopped_plan = 0;
    q->state = SEQ_WAITING;
    q->came_cold = !m->hot;
    q->n_tokens = r->n_prompt;
    q->arrival_no = s->next_arrival_no++;
    q->idle_since_us = now_us;
    q->scoring = r->n_prompt_logprobs >= 0;
    q->cacheable = !r->no_cache;
    q->habit = DRAFT_HABIT_NEW(s->limits.draft_tokens);
    list_push_back(&s->waiting, &q->link);
    list_push_back(&m->waiting, &q->mine);
    s->n_waiting++;
    note_deadlines(s, q);
    if (q->constraint != NULL) sched_ask(s, q);
}

void sched_submit(sched *s, gen_request *r, uint64_t now_us) {
    s->counters.n_submitted++;
    if (list_empty(&s->free)) {
        refuse_at_once(s, r, now_us);
        return;
    }
    seq *q = LIST_ENTRY(s->free.next, seq, link);
    list_remove(&q->link);
    *q = (seq){.req = r, .table.open_page = PAGE_NONE};
    q->steps_before = steps_ended_by(s, r->arrival_us);
    list_node_init(&q->link);
    inferd_err err = {0};
    if (check_and_take(s, q, now_us, &err) == INFERD_OK) {
        begin_waiting(s, q, now_us);
        return;
    }
    /* n_tokens is 0: no output is reported */
    sched_end_seq(s, q, GEN_ERROR, -1, err.status, err.text, now_us);
    if (r->model_idx < s->n_models) sched_note_retry(&s->models[r->model_idx], q, now_us);
}
