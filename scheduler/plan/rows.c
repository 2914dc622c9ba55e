/* rows.c - how many tokens each sequence of a step computes.
 *
 *     prompts owed a step  >  one row for each sequence that decodes  >  prompt chunks, admission
 *
 * Thread: engine. */
#include "plan.h"

enum { OWED_PARTS = 4 };       // of the pace: for prompts that are owed a step
enum { BRING_BACK_PARTS = 4 }; // of a step: time to swap blocks in

/* ---- one sequence ---- */

/* Row i reports prompt token i + 1.  The first is the row of the first token not reported yet. */
static uint32_t first_scored_row(const seq *q) {
    return u32_max(q->n_scored, 1) - 1 + q->n_scored_planned;
}

static uint32_t n_scored_rows(const seq *q, uint32_t begin, uint32_t n) {
    if (!q->scoring) return 0;
    uint32_t from = u32_max(begin, first_scored_row(q));
    uint32_t to = u32_min(begin + n, q->req->n_prompt - 1);
    return to > from ? to - from : 0;
}

/* Do these rows reach the last known or pending token?  Its logits draw the next one. */
static bool draws_next(const seq *q, uint32_t begin, uint32_t n) {
    return q->tokens_max > q->req->n_prompt && begin + n >= q->n_tokens + q->n_pending;
}

static void add_draw(step *st, uint32_t row, const sample_row *draw) {
    uint32_t i = st->b.n_logits++;
    st->b.logit_rows[i] = row;
    st->draws[i] = (step_draw){.row = *draw};
    st->results[i] = (sample_result){.id = -1};
}

static void add_row(step *st, const seq *q, uint32_t pos, uint32_t seq_idx) {
    uint32_t row = st->b.n_rows++;
    bool known = pos < q->n_tokens + q->n_drafts;
    st->n_attended += pos + 1;
    st->b.tokens[row] = known ? seq_tokens(q)[pos] : TOK_PENDING;
    st->b.pending[row] = known ? 0 : q->pending_logit;
    st->b.positions[row] = pos;
    st->b.row_seq[row] = seq_idx;
}

/* The next n rows of q, those of its drafts included. */
static void add_item(plan *p, seq *q, uint32_t n) {
    step *st = p->st;
    const gen_request *r = q->req;
    uint32_t begin = q->n_computed + q->n_planned, seq_idx = st->b.n_seqs++;
    step_item *item = &st->items[seq_idx];
    *item = (step_item){
        .q = q, .run = q->run, .begin = begin, .n_rows = n, .draw_begin = st->b.n_logits};
    st->b.seqs[seq_idx] = (batch_seq){.row_begin = st->b.n_rows,
                                      .n_rows = n,
                                      .pos_begin = begin,
                                      .n_blocks = q->table.n_blocks,
                                      .slots = q->table.slots};
    INFERD_CHECK(st->b.n_rows + n <= p->s->limits.step_tokens_max);
    sample_row draw = {.params = &r->sampling, .tokens = seq_tokens(q), .n_prompt = r->n_prompt};
    uint32_t scored_from = first_scored_row(q), n_scored = n_scored_rows(q, begin, n);
    bool next = draws_next(q, begin, n);
    for (uint32_t pos = begin; pos < begin + n; pos++) {
        uint32_t row = st->b.n_rows;
        add_row(st, q, pos, seq_idx);
        draw.n_tokens = pos + 1;
        if (q->scoring && pos >= scored_from && pos + 1 < r->n_prompt) {
            draw.forced = seq_tokens(q)[pos + 1];
            draw.n_top = r->n_prompt_logprobs;
            add_draw(st, row, &draw);
        } else if (draws_next(q, pos, 1)) {
            bool early = pos + 1 - r->n_prompt < r->min_tokens;
            draw.forced = -1;
            draw.n_top = r->n_logprobs;
            draw.n_banned = early ? q->n_banned : q->n_banned_always;
            draw.banned = draw.n_banned > 0 ? q->banned : NULL;
            if (q->constraint != NULL && q->constraint->before_launch)
                INFERD_CHECK(sched_constrain_row(q, pos + 1 - q->n_tokens, &draw));
            else if (q->constraint != NULL)
                st->b.draws_later = true;
            q->pending_logit = st->b.n_logits;
            add_draw(st, row, &draw);
        }
    }
    q->n_pending += next;
    item->n_draws = st->b.n_logits - item->draw_begin;
    sched_note_rows(p->s, q, p->now_us);
    q->n_planned += n;
    q->n_scored_planned += n_scored;
    q->n_steps++;
    q->planned_plan = p->s->plan_no;
    q->idle_since_us = p->now_us;
    if (q->first_plan_us == 0) {
        q->first_plan_us = p->now_us;
        q->queued_steps = (uint32_t)(p->s->pool->launched - q->steps_before);
    }
}

/* Take blocks for the next n rows of q.  Returns how many of these rows its blocks then hold. */
static uint32_t cover_rows(plan *p, seq *q, uint32_t n, bool must) {
    const kv_layout *l = &p->m->kv.layout;
    uint32_t begin = q->n_computed + q->n_planned, n_blocks = kv_blocks_of(l, begin + n);
    while (q->table.n_blocks < n_blocks)
        if (!plan_take_block(p, q, must && q->table.n_blocks * l->block_tokens <= begin)) break;
    uint32_t covered = q->table.n_blocks * l->block_tokens;
    return u32_min(n, covered > begin ? covered - begin : 0);
}

/* Give q up to n rows, as far as blocks and logits allow; returns how many. */
static uint32_t plan_rows(plan *p, seq *q, uint32_t n) {
    uint32_t begin = q->n_computed + q->n_planned;
    uint32_t logits_left = p->s->limits.logits_max - p->st->b.n_logits;
    while (n > 0 && n_scored_rows(q, begin, n) + draws_next(q, begin, n) > logits_left) n--;
    n = cover_rows(p, q, n, true);
    if (n == 0)
        q->refused_plan = p->s->plan_no;
    else
        add_item(p, q, n);
    return n;
}

static uint32_t n_active(const plan *p) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < GEN_CLASSES; c++) n += p->n_active[c];
    return n;
}

/* Writes drafts behind the tokens of q; returns how many. */
static uint32_t write_drafts(seq *q, uint32_t n_max) {
    if (q->constraint != NULL) return sched_constrained_drafts(q, n_max);
    if (q->n_tokens < q->habit.rest_until) return 0;
    return draft_write(seq_tokens(q), q->n_tokens, u32_min(q->habit.n_next, n_max));
}

/* Draft the tokens behind q's last one, as far as rows, logits and q's own end allow; n_others
 * sequences need a row and logits, too.  No sequence is preempted for a draft.  A block taken for
 * one stays, because q is about to need it. */
static void plan_drafts(plan *p, seq *q, uint32_t n_others) {
    const sched_limits *l = &p->s->limits;
    const batch *b = &p->st->b;
    if (l->draft_tokens == 0 || n_active(p) > DRAFT_STREAMS_MAX || q->n_steps > 0 ||
        !draws_next(q, q->n_computed, 1))
        return;
    uint32_t taken = n_others + 1; // of rows, and of logits
    uint32_t rows_left = l->step_tokens_max - b->n_rows, logits_left = l->logits_max - b->n_logits;
    uint32_t n = q->tokens_max - q->n_tokens - 1;
    n = u32_min(n, rows_left > taken ? rows_left - taken : 0);
    n = u32_min(n, logits_left > taken ? logits_left - taken : 0);
    n = write_drafts(q, n);
    if (n > 0) q->n_drafts = u32_max(cover_rows(p, q, 1 + n, false), 1) - 1;
}

/* It runs, and this plan has neither given it rows nor refused it. */
static bool wants_rows(const plan *p, const seq *q) {
    return q->state == SEQ_RUNNING && q->planned_plan != p->s->plan_no &&
           q->refused_plan != p->s->plan_no;
}

/* Swap in q's blocks instead of computing them: all at once when the step is still empty, else for
 * about a quarter of a step's time, and the rest next time.  Blocks on the disk are waited for.
 * False: some are still missing. */
static bool bring_back(plan *p, seq *q) {
    sched *s = p->s;
    uint32_t n_before = q->n_computed, n_max = plan_blocks_findable(q, &p->m->kv.layout);
    n_max -= u32_min(n_max, q->n_published);
    if (n_max == 0 || (!p->m->swaps && !sched_has_disk(s, p->m))) return true;
    uint32_t n = n_max;
    if (p->st->b.n_rows > 0 && p->m->move.us > 0)
        n = u32_min(n, (uint32_t)(s->typical_us / BRING_BACK_PARTS / p->m->move.us) + 1);
    uint32_t done = sched_swap_in(s, q, n, p->now_us), tokens = q->n_computed - n_before;
    if (q->n_preempted == 0) {
        q->n_cached += tokens;
        s->counters.prefix_hits_tokens += tokens;
        if (q->first_plan_us != 0) sched_note_cached(s, q, tokens);
    }
    if (!q->waits_for_disk && (done < n || n == n_max)) return true;
    q->refused_plan = s->plan_no; // no rows for blocks that may still be swapped in
    return false;
}

/* ---- all of them ---- */

/* One row when q decodes.  For a prompt: what fits into a quarter of the pace, for all of them
 * together, and into rows that others of the batch do not need. */
static uint32_t owed_rows(const plan *p, const seq *q) {
    const sched_limits *l = &p->s->limits;
    rate_work work = step_work(p->st);
    uint32_t taken = work.rows + l->running_max - p->st->b.n_seqs - 1;
    uint32_t n_max =
        u32_min(seq_n_wanted(q), l->step_tokens_max - u32_min(taken, l->step_tokens_max));
    uint32_t n =
        rate_rows(&p->m->rate, l->pace_us / OWED_PARTS, &work, q->n_computed + q->n_planned, n_max);
    return u32_max(n, 1);
}

/* Sequences owed a step (rule 2 of order.c) come first in order; their prompts get rows before all
 * others, or sequences that decode might take all rows.  Returns how many rows. */
static uint32_t plan_owed(plan *p, uint32_t n_order) {
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n_order && p->s->order[i]->key.floor; i++) {
        seq *q = p->s->order[i];
        if (seq_n_wanted(q) > 1 && bring_back(p, q)) n_rows += plan_rows(p, q, owed_rows(p, q));
    }
    return n_rows;
}

/* One row for each sequence that decodes.  With guarantees of memory, sequences within theirs go
 * first: those above it are then not in the plan yet, and can still be preempted. */
static void plan_single_rows(plan *p, uint32_t n_order) {
    bool guarantees = sched_has_guarantees(p->s);
    for (int more = 0; more <= guarantees; more++)
        for (uint32_t i = 0; i < n_order; i++) {
            seq *q = p->s->order[i];
            if (q->state != SEQ_RUNNING || seq_n_wanted(q) != 1 ||
                q->planned_plan == p->s->plan_no || q->refused_plan == p->s->plan_no ||
                (guarantees && more == 0 && !sched_is_secure(p->s, q)))
                continue;
            plan_drafts(p, q, n_order - u32_min(n_order, p->st->b.n_seqs + 1));
            plan_rows(p, q, 1 + q->n_drafts);
        }
}

/* How long the step may take with prompts beside the rows that it already has. */
static uint64_t step_budget_us(const plan *p) {
    rate_work work = step_work(p->st);
    uint64_t budget_us = sched_budget_us(p->s, p->m, &work);
    /* The request with the earliest deadline, of any model, must still get a step before it. */
    if (p->due_us != 0) {
        uint64_t at_us = p->now_us + p->s->typical_us;
        budget_us = u64_min(budget_us, p->due_us > at_us ? p->due_us - at_us : 0);
    }
    if (work.rows == 0) {
        rate_add_rows(&work, 0, 1);
        return u64_max(budget_us, 2 * rate_us(&p->m->rate, &work));
    }
    uint64_t alone_us = rate_us(&p->m->rate, &work);
    return u64_max(budget_us, alone_us + alone_us / 4);
}

/* Bounds of a step: its time, and its rows. */
typedef struct step_bound {
    uint64_t us;
    uint32_t rows;
} step_bound;

/* Rows of a sequence that the step still has time for, at least one, or it would never advance.
 * The first prompt gets at least half as many as decode: even if all time goes with the rows, the
 * step is then half as long again, and the rate learns from steps that differ that much. */
static uint32_t chunk_rows(const plan *p, const seq *q, const step_bound *bound) {
    const step *st = p->st;
    rate_work work = step_work(st);
    uint32_t n_max = u32_min(seq_n_wanted(q), bound->rows - work.rows);
    uint32_t least = u32_max(st->n_prefill_rows == 0 ? work.rows / 2 : 0, 1);
    uint32_t n = rate_rows(&p->m->rate, bound->us, &work, q->n_computed + q->n_planned, n_max);
    return u32_max(n, u32_min(least, n_max));
}

static bool has_rows(const plan *p, uint32_t rows_max) {
    return p->st->b.n_seqs < p->s->limits.running_max && p->st->b.n_rows < rows_max;
}

/* Is there a row left, and time for it?  The first prompt gets some in any case. */
static bool has_room(const plan *p, const step_bound *bound) {
    rate_work work = step_work(p->st);
    return has_rows(p, bound->rows) &&
           (p->st->n_prefill_rows == 0 || rate_rows(&p->m->rate, bound->us, &work, 0, 1) > 0);
}

static void plan_chunks(plan *p, uint32_t n_order) {
    sched *s = p->s;
    const step_bound bound = {step_budget_us(p), s->limits.step_tokens_max};
    for (uint32_t i = 0; has_room(p, &bound);) {
        while (i < n_order && !wants_rows(p, s->order[i])) i++;
        seq *q = i < n_order ? s->order[i] : NULL;
        seq *w = plan_window_next(p);
        if (q == NULL && w == NULL) break;
        if (w != NULL && (q == NULL || order_before(&w->key, &q->key))) {
            if (!plan_window_try(p, w)) continue;
            q = w;
        } else {
            i++;
        }
        if (bring_back(p, q)) p->st->n_prefill_rows += plan_rows(p, q, chunk_rows(p, q, &bound));
    }
}

void plan_fill(plan *p) {
    uint32_t n_order = plan_order_running(p);
    uint32_t n_owed_rows = plan_owed(p, n_order);
    plan_single_rows(p, n_order);
    plan_chunks(p, n_order);
    p->st->n_prefill_rows += n_owed_rows;
}
