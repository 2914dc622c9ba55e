/* sched_constraint.c - sequences with a grammar: what is asked about them, and when answers are
 * used.
 *
 *     sched_submit   asks for the mask of the first token
 *     sched_commit   tokens were drawn: asks for the mask behind them
 *     sched_plan     collects answers; a complete text ends its sequence
 *     sched_refresh  collects answers, where the device draws after this
 *
 * A device that draws itself, and takes the draws of a step after its launch (batch.draws_later),
 * is planned two steps ahead also with grammars: the row of a pending token is computed while that
 * token is drawn and its mask is made.
 *
 * An answer depends on the tokens only, so it stays valid through preemption, swapping and failed
 * steps: the sequence draws the same token under the same mask later.
 *
 * The grammar wins over the rest of a request: an end token ends the sequence also with ignore_eos
 * or before min_tokens, because nothing can follow it.  Both of them ban end tokens as long as the
 * grammar allows anything else.
 *
 * Thread: engine. */
#include <string.h>

#include "sched_state.h"

void sched_set_constraints(sched *s, const constraint_ops *ops, void *ctx, bool before_launch) {
    INFERD_CHECK(s->plan_no == 0);
    s->constraint_ops = ops;
    s->constraint_ctx = ctx;
    s->masks_before_launch = before_launch;
}

/* ---- questions ---- */

static void ask(sched *s, constraint *c) {
    c->here = false;
    c->drafts = NULL;
    list_push_back(&s->asked, &c->asked);
    if (s->constraint_ops != NULL) {
        atomic_store_explicit(&c->state, CONSTRAINT_ASKED, memory_order_relaxed);
        s->constraint_ops->ask(s->constraint_ctx, c);
    } else {
        constraint_work(c);
    }
}

/* The first k of the walk's tokens were drawn: guesses the others, which are still forced. */
static bool guess_rest(constraint *c, const constraint_walk *w, const tok_id *drawn, uint32_t k) {
    if (w->n <= k || memcmp(w->tokens, drawn, k * sizeof *drawn) != 0) return false;
    c->n_guess = w->n - k;
    memmove(c->guess.tokens, w->tokens + k, c->n_guess * sizeof *drawn);
    return true;
}

static void guess_more(seq *q) {
    constraint *c = q->constraint;
    uint32_t n = u32_min(q->habit.n_next, q->tokens_max - q->n_tokens - 1);
    if (q->n_tokens < q->habit.rest_until) return;
    c->n_guess = draft_write(seq_tokens(q), q->n_tokens, u32_min(n, CONSTRAINT_DRAFTS_MAX));
    memcpy(c->guess.tokens, seq_tokens(q) + q->n_tokens, c->n_guess * sizeof *c->guess.tokens);
}

void sched_ask(sched *s, seq *q) {
    constraint *c = q->constraint;
    const tok_id *drawn = seq_tokens(q) + c->n_seen;
    uint32_t n = q->n_tokens - c->n_seen;
    INFERD_CHECK(n <= INFERD_COUNT(c->accepted) && !list_linked(&c->asked));
    memcpy(c->accepted, drawn, n * sizeof *drawn);
    c->n_accepted = n;
    c->n_seen = q->n_tokens;
    c->n_guess = 0;
    c->wants_forced = s->limits.draft_tokens > 0 && seq_model(s, q)->n_running <= DRAFT_STREAMS_MAX;
    c->guess_is_forced =
        c->wants_forced && (guess_rest(c, &c->forced, drawn, n) ||
                            (c->guess_is_forced && guess_rest(c, &c->guess, drawn, n)));
    if (c->wants_forced && !c->guess_is_forced && n > 0) guess_more(q);
    constraint_forget(c);
    ask(s, c);
}

bool sched_open_constraint(sched *s, seq *q) {
    const gen_request *r = q->req;
    if (q->tokens_max == r->n_prompt) return true; // nothing is drawn
    const sched_model_spec *spec = &seq_model(s, q)->spec;
    constraint *c = constraint_create(r->grammar, spec->tok, spec->n_vocab);
    if (c == NULL) return false;
    c->q = q;
    c->bounds_reasoning = r->bounds_reasoning;
    c->reasoning_tokens_max = r->reasoning_tokens_max;
    c->before_launch = s->masks_before_launch;
    c->n_seen = r->n_prompt;
    q->constraint = c;
    return true;
}

void sched_close_constraint(sched *s, seq *q) {
    constraint *c = q->constraint;
    if (c == NULL) return;
    q->constraint = NULL;
    grammar_machine_release(q->req->grammar); // first: the last count may free megabytes
    q->req->grammar = NULL;
    list_remove(&c->asked);
    if (s->constraint_ops != NULL)
        s->constraint_ops->close(s->constraint_ctx, c);
    else
        constraint_destroy(c);
}

/* ---- answers ---- */

static bool collect(sched *s, constraint *c) {
    if (c->here) return true;
    if (atomic_load_explicit(&c->state, memory_order_acquire) != CONSTRAINT_DONE) return false;
    c->here = true;
    list_remove(&c->asked);
    s->counters.n_masks += c->n_masks;
    s->counters.n_masks_made += c->n_made;
    s->counters.masks_us += c->took_us;
    return true;
}

bool sched_end_constrained(sched *s, seq *q, uint64_t now_us) {
    const constraint *c = q->constraint;
    if (!c->here || (!c->must_end && c->err.status == INFERD_OK)) return false;
    if (c->err.status != INFERD_OK)
        sched_end_seq(s, q, GEN_ERROR, -1, c->err.status, c->err.text, now_us);
    else
        sched_end_seq(s, q, GEN_STOP, -1, INFERD_OK, NULL, now_us);
    return true;
}

bool sched_text_is_whole(const seq *q) {
    const constraint *c = q->constraint;
    inferd_err unsaid = {0};
    if (c == NULL || !c->here) return false; // drawn without its mask: never
    grammar_pos pos = grammar_copy(c->machine, c->pos);
    uint32_t n_reasoned = c->n_reasoned;
    bool whole = pos != 0;
    for (uint32_t i = c->n_seen; i < q->n_tokens && whole; i++)
        whole = constraint_accept(c, pos, &n_reasoned, seq_tokens(q)[i], &unsaid);
    whole = whole && grammar_must_end(c->machine, pos);
    grammar_drop(c->machine, pos);
    return whole;
}

void sched_collect(sched *s, uint64_t now_us) {
    LIST_EACH_SAFE(node, next, &s->asked) {
        constraint *c = LIST_ENTRY(node, constraint, asked);
        bool alive = c->q->state == SEQ_WAITING || c->q->state == SEQ_RUNNING;
        if (collect(s, c) && alive) sched_end_constrained(s, c->q, now_us);
    }
}

/* ---- draws ---- */

uint32_t sched_constrained_drafts(seq *q, uint32_t n_max) {
    constraint *c = q->constraint;
    const constraint_walk *w = c->here && c->forced.n > 0 ? &c->forced : &c->guess;
    uint32_t n = u32_min(c->here ? w->n : c->n_guess, n_max);
    memcpy(seq_tokens(q) + q->n_tokens, w->tokens, n * sizeof *w->tokens);
    c->drafts = w;
    return n;
}

bool sched_drafts_are_forced(const seq *q) {
    const constraint *c = q->constraint;
    return c != NULL && c->drafts != NULL && (c->drafts == &c->forced || c->guess_is_forced);
}

bool sched_constrain_row(const seq *q, uint32_t i, sample_row *row) {
    const constraint *c = q->constraint;
    const grammar_mask *mask = NULL;
    if (c->here && i == 0) mask = c->mask;
    if (c->here && i > 0 && c->drafts != NULL && i <= c->drafts->n) mask = c->drafts->masks[i - 1];
    if (mask == NULL || row->n_tokens != q->n_tokens + i) return false;
    row->mask = mask->bits;
    if (row->n_banned > 0 && !mask_has_other(mask, row->banned, row->n_banned)) row->n_banned = 0;
    return true;
}

void sched_constrain_item(sched *s, step *st, const step_item *item) {
    constraint *c = item->q->constraint;
    uint32_t n = 0;
    collect(s, c);
    for (uint32_t d = item->draw_begin; d < item->draw_begin + item->n_draws; d++) {
        step_draw *draw = &st->draws[d];
        if (draw->row.forced >= 0) continue;
        draw->dropped = !sched_constrain_row(item->q, n++, &draw->row);
        c->undrawn |= draw->dropped;
    }
}

/* ---- checks ---- */

inferd_status sched_verify_constraint(const sched *s, const seq *q, inferd_err *err) {
    const constraint *c = q->constraint;
    unsigned long long id = q->req->id;
    bool wanted = q->req->grammar != NULL && q->tokens_max > q->req->n_prompt;
    if ((c != NULL) != wanted)
        return inferd_fail(err, INFERD_EINVAL, "sched: request %llu %s its grammar", id,
                           wanted ? "lacks" : "has a place in");
    if (c == NULL) return INFERD_OK;
    if (c->q != q || c->machine != q->req->grammar || c->n_seen != q->n_tokens ||
        c->here == list_linked(&c->asked))
        return inferd_fail(
            err, INFERD_EINVAL,
            "sched: the grammar of request %llu knows %u of %u tokens, its answer is "
            "%shere",
            id, c->n_seen, q->n_tokens, c->here ? "" : "not ");
    if (s->masks_before_launch && q->n_pending > 0 && (!c->here || q->n_pending > 1))
        return inferd_fail(err, INFERD_EINVAL, "sched: request %llu draws %u tokens without a mask",
                           id, q->n_pending);
    return INFERD_OK;
}
