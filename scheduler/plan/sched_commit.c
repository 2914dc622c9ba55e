/* sched_commit.c - applies a finished step: appends tokens, emits events, publishes blocks, ends
 * sequences.  Results of a sequence that left meanwhile are dropped; when it comes back it draws
 * the same tokens again, because drawing depends on nothing but the sequence. */
#include <string.h>

#include "sched_state.h"

static bool still_wanted(const step_item *item) {
    return item->run == item->q->run && item->q->state == SEQ_RUNNING;
}

void sched_refresh(sched *s, step *st) {
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const step_item *item = &st->items[i];
        bool wanted = still_wanted(item);
        for (uint32_t d = 0; d < item->n_draws && !wanted; d++)
            st->draws[item->draw_begin + d].dropped = true;
        if (wanted && item->q->constraint != NULL && !s->masks_before_launch && !st->masked)
            sched_constrain_item(s, st, item);
    }
    st->masked = true;
}

static void emit_result(sched *s, const seq *q, gen_kind kind, const sample_result *r,
                        uint64_t now_us) {
    gen_event e = {.id = q->req->id, .kind = kind, .at_us = now_us};
    e.token.r = *r;
    e.token.n_cached = q->n_cached;
    s->emit(s->emit_ctx, &e);
}

/* Names the blocks that became full, so that other sequences find them. */
static void publish(sched *s, seq *q) {
    sched_model *m = seq_model(s, q);
    uint32_t block_tokens = m->kv.layout.block_tokens;
    if (!q->cacheable) return;
    if (q->n_published == 0) q->name = prefix_root(&m->prefix, q->req->cache_scope);
    for (; q->n_published < q->n_computed / block_tokens; q->n_published++) {
        const tok_id *tokens = seq_tokens(q) + (size_t)q->n_published * block_tokens;
        q->name = prefix_extend(&m->prefix, q->name, tokens);
        prefix_publish(&m->prefix, &q->table, q->n_published, q->name, q->req->cache_scope, tokens);
    }
}

static bool is_end(const sched_model_spec *spec, tok_id id) {
    uint32_t begin = 0, end = spec->n_end_ids;
    while (begin < end) {
        uint32_t mid = begin + (end - begin) / 2;
        if (spec->end_ids[mid] < id)
            begin = mid + 1;
        else
            end = mid;
    }
    return begin < spec->n_end_ids && spec->end_ids[begin] == id;
}

static bool is_stop(const gen_request *r, tok_id id) {
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

static void end(sched *s, seq *q, gen_finish finish, tok_id stop_id, uint64_t now_us) {
    sched_end_seq(s, q, finish, stop_id, INFERD_OK, NULL, now_us);
}

static void append_token(sched *s, seq *q, const sample_result *r, uint64_t now_us) {
    const gen_request *req = q->req;
    bool may_end = seq_n_output(q) >= req->min_tokens;
    seq_tokens(q)[q->n_tokens++] = r->id;
    if (q->first_token_us == 0) q->first_token_us = now_us;
    q->last_token_us = now_us;
    sched_note_use(s, q, &(engine_flow){.output_tokens = 1});
    emit_result(s, q, GEN_EV_TOKEN, r, now_us);
    bool ends = q->constraint != NULL || (may_end && !req->ignore_eos);
    if (ends && is_end(&seq_model(s, q)->spec, r->id))
        end(s, q, GEN_STOP, -1, now_us);
    else if (may_end && is_stop(req, r->id))
        end(s, q, GEN_STOP, r->id, now_us);
    else if (q->n_tokens == q->tokens_max)
        end(s, q, sched_text_is_whole(q) ? GEN_STOP : GEN_LENGTH, -1, now_us);
}

static void end_without_logit(sched *s, seq *q, tok_id id, uint64_t now_us) {
    sched_end_seq(s, q, GEN_ERROR, -1, INFERD_EDEVICE,
                  id == SAMPLE_NONE_ALLOWED
                      ? "the model gave no finite logit to any token that the grammar allows"
                      : "the model produced no finite logit",
                  now_us);
}

/* A draw for which there was no mask.  Its row is computed again, in the next step. */
static void leave_undrawn(sched *s, seq *q, uint64_t now_us) {
    q->n_computed--;
    if (sched_end_constrained(s, q, now_us)) return;
    s->counters.n_masks_late += !q->constraint->here;
    publish(s, q);
}

/* The tokens drawn from result `d` on.  A row behind the first was computed with a draft token: it
 * counts when the token drawn before it is that draft; results behind a wrong draft are dropped. */
static void commit_draws(sched *s, seq *q, const step *st, uint32_t d, uint32_t draws_end,
                         uint64_t now_us) {
    uint32_t n_drafts = draws_end - d - 1, n_right = 0;
    q->n_pending--;
    if (q->constraint != NULL) q->constraint->undrawn = false;
    for (; d < draws_end; d++) {
        const sample_result *r = &st->results[d];
        if (st->draws[d].dropped) {
            leave_undrawn(s, q, now_us);
            break;
        }
        if (r->id < 0) {
            end_without_logit(s, q, r->id, now_us);
            break;
        }
        publish(s, q); // before its end frees the blocks
        tok_id draft = d + 1 < draws_end ? seq_tokens(q)[q->n_tokens] : -1;
        append_token(s, q, r, now_us);
        if (r->id != draft) break;
        n_right++;
        if (q->state != SEQ_RUNNING) break;
        q->n_computed++;
    }
    s->counters.n_drafted += n_drafts;
    s->counters.n_drafts_right += n_right;
    if (n_drafts > 0 && !sched_drafts_are_forced(q))
        draft_learn(&q->habit, s->limits.draft_tokens, q->n_tokens, n_right);
    if (q->constraint != NULL && q->state == SEQ_RUNNING && q->constraint->n_seen < q->n_tokens)
        sched_ask(s, q);
}

static void score_token(sched *s, seq *q, const sample_result *r, uint64_t now_us) {
    q->n_scored++;
    q->n_scored_planned--;
    emit_result(s, q, GEN_EV_PROMPT, r, now_us);
}

static void commit_item(sched *s, const step *st, const step_item *item, uint64_t now_us) {
    seq *q = item->q;
    uint32_t draws_end = item->draw_begin + item->n_draws;
    q->n_computed += item->n_rows - q->n_drafts; // rows of drafts count when they were right
    q->n_planned -= item->n_rows;
    q->n_drafts = 0;
    if (q->scoring && q->n_scored == 0) { // nothing precedes the first token
        sample_result first = {.id = seq_tokens(q)[0]};
        q->n_scored = 1;
        emit_result(s, q, GEN_EV_PROMPT, &first, now_us);
    }
    for (uint32_t d = item->draw_begin; d < draws_end; d++) {
        if (st->draws[d].row.forced < 0) { // the rest of its results are drawn tokens
            commit_draws(s, q, st, d, draws_end, now_us);
            return;
        }
        if (st->results[d].id < 0) {
            end_without_logit(s, q, SAMPLE_BROKEN, now_us);
            return;
        }
        score_token(s, q, &st->results[d], now_us);
    }
    publish(s, q);
    if (q->tokens_max == q->req->n_prompt && q->n_computed == q->req->n_prompt)
        end(s, q, GEN_LENGTH, -1, now_us);
}

void sched_commit(sched *s, step *st, uint64_t device_us, uint64_t now_us) {
    sched_model *m = &s->models[st->model_idx];
    pool_finish(s->pool, st->epoch);
    sched_note_step_end(s, now_us);
    rate_work work = step_work(st);
    rate_add(&m->rate, &work, device_us);
    m->n_steps--;
    s->clock_us = now_us;
    uint64_t charge_us = st->charge_us != 0 ? st->charge_us : device_us;
    sched_charge(s, st, charge_us);
    sched_note_relief(s, now_us);
    if (m->first_step) m->first_us_sum += m->first_us = charge_us;
    m->first_step = false;
    m->device_us += device_us;
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        st->items[i].q->n_steps--;
        if (still_wanted(&st->items[i])) commit_item(s, st, &st->items[i], now_us);
    }
}

/* The scheduler chooses the rows of a step, so its failure is never a fault of a request. */
static inferd_status as_told(inferd_status s) {
    return s == INFERD_ELOST || s == INFERD_ENOMEM ? s : INFERD_EDEVICE;
}

void sched_fail(sched *s, step *st, const inferd_err *why, uint64_t now_us) {
    pool_finish(s->pool, st->epoch);
    sched_note_step_end(s, now_us);
    s->models[st->model_idx].n_steps--;
    s->clock_us = now_us;
    sched_charge(s, st, st->charge_us);
    sched_note_relief(s, now_us);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        seq *q = st->items[i].q;
        q->n_steps--;
        if (still_wanted(&st->items[i]))
            sched_end_seq(s, q, GEN_ERROR, -1, as_told(why->status), why->text, now_us);
    }
}

void sched_withdraw(sched *s, step *st, uint64_t now_us) {
    pool_finish(s->pool, st->epoch);
    sched_note_step_end(s, now_us);
    s->models[st->model_idx].n_steps--;
    s->clock_us = now_us;
    s->waste_us += st->charge_us;
    sched_unexpect(s, st);
    sched_note_relief(s, now_us);
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        seq *q = st->items[i].q;
        q->n_steps--;
        if (!still_wanted(&st->items[i])) continue;
        /* Its blocks stay: the rows are written again. */
        q->n_planned = q->n_pending = q->n_drafts = q->n_scored_planned = 0;
        if (q->constraint != NULL) q->constraint->undrawn = false;
    }
}
