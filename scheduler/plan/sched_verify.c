/* sched_verify.c - checks everything that scheduler.h and seq.h call always true. */
#include <string.h>

#include "sched_state.h"

static inferd_status verify_seq(const sched *s, const seq *q, inferd_err *err) {
    unsigned long long id = q->req != NULL ? q->req->id : 0;
    uint32_t n = q->n_computed + q->n_planned;
    if (q->req == NULL || !list_linked(&q->link))
        return inferd_fail(err, INFERD_EINVAL, "sched: a sequence in state %d is in no list",
                           q->state);
    inferd_status status = sched_verify_constraint(s, q, err);
    if (status != INFERD_OK) return status;
    if (q->state != SEQ_RUNNING) {
        if (q->table.n_blocks != 0 || n != 0 || q->n_pending != 0 || q->n_drafts != 0)
            return inferd_fail(err, INFERD_EINVAL,
                               "sched: request %llu does not run and holds %u "
                               "blocks",
                               id, q->table.n_blocks);
        return INFERD_OK;
    }
    const kv_layout *l = &s->models[q->model_idx].kv.layout;
    if (n > q->n_tokens + q->n_pending + q->n_drafts || q->n_tokens > q->tokens_max ||
        q->n_pending > s->limits.depth)
        return inferd_fail(err, INFERD_EINVAL,
                           "sched: request %llu has computed %u and planned %u of %u + %u tokens",
                           id, q->n_computed, q->n_planned, q->n_tokens, q->n_pending);
    uint32_t drafts_max = q->constraint != NULL
                              ? u32_max(s->limits.draft_tokens, CONSTRAINT_DRAFTS_MAX)
                              : s->limits.draft_tokens;
    if (q->n_drafts > 0 &&
        (q->n_steps != 1 || q->n_pending != 1 || q->n_drafts > drafts_max ||
         n != q->n_tokens + q->n_drafts || q->n_tokens + q->n_drafts >= q->tokens_max))
        return inferd_fail(
            err, INFERD_EINVAL,
            "sched: request %llu checks %u draft tokens of %u in %u steps after %u of %u tokens",
            id, q->n_drafts, drafts_max, q->n_steps, q->n_tokens, q->tokens_max);
    if (q->table.n_blocks < kv_blocks_of(l, n) || q->table.n_blocks > q->table.capacity)
        return inferd_fail(err, INFERD_EINVAL, "sched: request %llu has %u blocks for %u tokens",
                           id, q->table.n_blocks, n);
    if (q->cacheable && q->n_published != q->n_computed / l->block_tokens)
        return inferd_fail(err, INFERD_EINVAL,
                           "sched: request %llu published %u blocks, %u are full", id,
                           q->n_published, q->n_computed / l->block_tokens);
    if ((q->n_planned == 0) != (q->n_steps == 0))
        return inferd_fail(err, INFERD_EINVAL, "sched: request %llu plans %u rows in %u steps", id,
                           q->n_planned, q->n_steps);
    return INFERD_OK;
}

/* The count of each block is the number of tables that name it. */
static inferd_status verify_refs(const sched *s, uint32_t model_idx, inferd_err *err) {
    const kv *k = &s->models[model_idx].kv;
    uint32_t *refs = calloc(size_max(k->n_blocks, 1), sizeof *refs);
    if (refs == NULL) return inferd_fail(err, INFERD_ENOMEM, "sched: no memory to count blocks");
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const seq *q = &s->seqs[i];
        if (q->state == SEQ_FREE || q->model_idx != model_idx) continue;
        for (uint32_t b = 0; b < q->table.n_blocks; b++) refs[q->table.blocks[b]]++;
    }
    inferd_status status = INFERD_OK;
    for (uint32_t b = 0; b < k->n_blocks && status == INFERD_OK; b++)
        if (refs[b] != k->blocks[b].refs)
            status =
                inferd_fail(err, INFERD_EINVAL, "sched: block %u is in %u tables, its count is %u",
                            b, refs[b], k->blocks[b].refs);
    free(refs);
    return status;
}

static uint32_t length(const list_node *list) {
    uint32_t n = 0;
    LIST_EACH(node, list) n++;
    return n;
}

static inferd_status verify_lists(const sched *s, inferd_err *err) {
    uint32_t n_in[SEQ_ENDED + 1] = {0}, n_unsent = 0, n_paused = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        n_in[s->seqs[i].state]++;
        n_unsent += s->seqs[i].state == SEQ_ENDED && !s->seqs[i].done_sent;
        bool alive = s->seqs[i].state == SEQ_WAITING || s->seqs[i].state == SEQ_RUNNING;
        n_paused += alive && s->seqs[i].paused;
    }
    if (n_paused != s->n_paused)
        return inferd_fail(err, INFERD_EINVAL, "sched: %u are paused, the counter says %u",
                           n_paused, s->n_paused);
    if (n_in[SEQ_FREE] != length(&s->free) || n_in[SEQ_WAITING] != length(&s->waiting) ||
        n_in[SEQ_RUNNING] != length(&s->running) || n_in[SEQ_ENDED] != length(&s->ended) ||
        n_in[SEQ_WAITING] != s->n_waiting || n_in[SEQ_RUNNING] != s->n_running ||
        n_in[SEQ_ENDED] != s->n_ended || n_unsent != s->n_unsent)
        return inferd_fail(
            err, INFERD_EINVAL,
            "sched: %u waiting, %u running, %u ended (%u unsent); the counters say %u, %u, %u (%u)",
            n_in[SEQ_WAITING], n_in[SEQ_RUNNING], n_in[SEQ_ENDED], n_unsent, s->n_waiting,
            s->n_running, s->n_ended, s->n_unsent);
    return INFERD_OK;
}

static inferd_status verify_shares(const sched *s, inferd_err *err) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) n += s->models[i].share.percent > 0;
    for (uint32_t i = 0; i < s->n_tenants; i++) n += s->tenants[i].share.percent > 0;
    if (n == s->n_shares) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "sched: %u have a share, the counter says %u", n,
                       s->n_shares);
}

/* The tenants' counts are those of the sequences that they count. */
static inferd_status verify_tenants(const sched *s, inferd_err *err) {
    uint32_t n = 0, n_running = 0, counted = 0, counted_running = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        n += s->seqs[i].in_tenant;
        n_running += s->seqs[i].in_tenant && s->seqs[i].state == SEQ_RUNNING;
    }
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        counted += s->tenants[i].n_seqs;
        counted_running += s->tenants[i].n_running;
    }
    if (n == counted && n_running == counted_running) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL,
                       "sched: tenants have %u sequences, %u of them running; they count %u and %u",
                       n, n_running, counted, counted_running);
}

inferd_status sched_verify(const sched *s, inferd_err *err) {
    /* A device that never came up has no pool. */
    inferd_status status = s->pool->pages != NULL ? pool_verify(s->pool, err) : INFERD_OK;
    if (status == INFERD_OK) status = verify_lists(s, err);
    if (status == INFERD_OK) status = verify_tenants(s, err);
    if (status == INFERD_OK) status = verify_shares(s, err);
    for (uint32_t i = 0; i < s->n_seqs && status == INFERD_OK; i++)
        if (s->seqs[i].state != SEQ_FREE && s->seqs[i].state != SEQ_ENDED)
            status = verify_seq(s, &s->seqs[i], err);
        else if (s->seqs[i].state == SEQ_ENDED && s->seqs[i].table.n_blocks != 0)
            status = inferd_fail(err, INFERD_EINVAL, "sched: an ended sequence holds blocks");
    for (uint32_t i = 0; i < s->n_models && status == INFERD_OK; i++) {
        if (!s->models[i].open) continue;
        status = kv_verify(&s->models[i].kv, err);
        if (status == INFERD_OK) status = prefix_verify(&s->models[i].prefix, err);
        if (status == INFERD_OK) status = verify_refs(s, i, err);
        if (status != INFERD_OK || !s->models[i].swaps) continue;
        status = kv_verify(&s->models[i].swapped_kv, err);
        if (status == INFERD_OK) status = prefix_verify(&s->models[i].swapped, err);
    }
    if (status == INFERD_OK && !flow_usage_verify(&s->flow_usage))
        status = inferd_fail(err, INFERD_EINVAL,
                             "sched: flows do not add up to %llu us, or to the tokens charged",
                             (unsigned long long)s->flow_usage.all.device_us);
    if (status == INFERD_OK && s->flow_usage.all.device_us != s->charged_us)
        status = inferd_fail(err, INFERD_EINVAL, "sched: %llu us were charged, %llu to flows",
                             (unsigned long long)s->charged_us,
                             (unsigned long long)s->flow_usage.all.device_us);
    return status;
}
