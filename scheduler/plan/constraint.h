/* constraint.h - the grammar of one sequence: which tokens its next draws may give.
 *
 * After each token the scheduler asks: accept it, and say which tokens may follow.  Answering takes
 * microseconds, seldom milliseconds, so it is work of other threads, beside the forward pass that
 * computes the logits (engine/masks.h); without such threads it is done at once.
 *
 *     ASKED    constraint_ask_ops.ask       a worker's: the scheduler changes nothing in it
 *     DONE     constraint_work has ended    the answer may be read, from the next collection on
 *
 * Draft tokens need masks, too: the mask behind a draft token depends on it.  A walk accepts tokens
 * one after the other on a copy of the position, up to the first that is not allowed.  There are
 * two:
 *
 *     guess    draft tokens that the scheduler knew when it asked (draft.h, or the rest of
 * `forced`) forced   tokens of the text that must come next, however the model writes on
 *
 * Forced text has many splits into tokens, and the model's own is that of its tokenizer, which is
 * used here.  The text ends where the grammar leaves a choice, and a token of the model may begin
 * in the text and reach into the choice: the walk ends before the first position at which one can.
 *
 * Whatever the drafts are, each token is drawn under the mask of the tokens before it: drafts
 * change no output.
 *
 * Reasoning before the text may have a budget of tokens, which is that of all blocks of reasoning:
 * tokens that are drawn in one are counted, also those of its closing mark, and at the budget it is
 * closed (grammar_close_reasoning).  So where it is closed depends on the tokens only, as the rest
 * of a position.
 * Thread: as said above. */
#ifndef INFERD_CONSTRAINT_H
#define INFERD_CONSTRAINT_H

#include <stdatomic.h>

#include "inferd/base.h"
#include "inferd/list.h"
#include "inferd/status.h"
#include "models/grammar.h"
#include "models/tokenizer.h"

enum {
    CONSTRAINT_DRAFTS_MAX = 32, // of a walk; forced ones are nearly always right
    CONSTRAINT_TEXT_MAX = 128,  // bytes of forced text looked at
    CONSTRAINT_SPANS_MAX = 256  // allowed tokens of a position in forced text, looked at one by one
};

/* Draft tokens, and the masks of the draws behind them. */
typedef struct constraint_walk {
    tok_id tokens[CONSTRAINT_DRAFTS_MAX];
    grammar_mask *masks[CONSTRAINT_DRAFTS_MAX]; // [n] counted
    uint32_t n;
} constraint_walk;

typedef enum constraint_state { CONSTRAINT_ASKED, CONSTRAINT_DONE } constraint_state;

typedef struct constraint {
    list_node queued; // of the workers, and guarded by them, as the next two
    bool running, closing;
    grammar_machine *machine; // counted
    const tokenizer *tok;     // borrowed; NULL: nothing is forced
    uint32_t n_vocab;         // of the model
    bool bounds_reasoning;    // as in gen_request, as the next
    uint32_t reasoning_tokens_max;
    atomic_int state; // constraint_state

    /* The question. */
    tok_id accepted[CONSTRAINT_DRAFTS_MAX + 1]; // [n_accepted] tokens drawn since the last one
    uint32_t n_accepted;
    uint32_t n_guess; // guess.tokens[n_guess] belong to the question, too
    bool wants_forced;

    /* The answer. */
    grammar_pos pos;     // behind all accepted tokens; 0: not begun
    uint32_t n_reasoned; // of them, those of reasoning
    grammar_mask *mask;  // of the next draw, counted; NULL: must_end or err
    constraint_walk guess, forced;
    bool must_end;  // the text has ended, and nothing may follow
    inferd_err err; // status INFERD_OK: none
    uint64_t took_us;
    uint32_t n_masks, n_made; // masks of the answer; of these not from the machine's cache

    /* The scheduler's. */
    struct seq *q;
    list_node asked;               // in sched.asked until the answer is collected
    bool before_launch;            // the device needs the mask when its step is launched
    bool here;                     // the answer was collected, and fits the newest token
    bool undrawn;                  // a row of its unfinished step was computed, and drew nothing
    bool guess_is_forced;          // the guess is what was left of forced tokens
    uint32_t n_seen;               // tokens of the sequence up to the last question
    const constraint_walk *drafts; // where the drafts of its unfinished step come from
} constraint;

typedef struct constraint_ops {
    /* The constraint is a worker's until its state is DONE. */
    void (*ask)(void *ctx, constraint *c);
    /* Frees it, when no worker has it any more. */
    void (*close)(void *ctx, constraint *c);
    /* Waits until all closed ones are freed: tokenizers that they use may go. */
    void (*settle)(void *ctx);
} constraint_ops;

/* Holds the machine.  NULL: no memory. */
constraint *constraint_create(grammar_machine *machine, const tokenizer *tok, uint32_t n_vocab);
void constraint_destroy(constraint *c); // accepts NULL
/* Answers the question: all but `state`. */
void constraint_work(constraint *c);
/* A token at `pos`, which may be a copy of c->pos, with the tokens of reasoning before it in
 * *n_reasoned.  False: not accepted. */
bool constraint_accept(const constraint *c, grammar_pos pos, uint32_t *n_reasoned, tok_id id,
                       inferd_err *err);
/* The masks of the last answer are released. */
void constraint_forget(constraint *c);

/* Allows the mask any token but these?  Then banning them leaves something to draw. */
bool mask_has_other(const grammar_mask *mask, const tok_id *ids, uint32_t n);

/* The last token of the sequence cannot be computed for a draw yet. */
static inline bool constraint_holds_back(const constraint *c, uint32_t n_pending) {
    return c->undrawn || (c->before_launch && (n_pending > 0 || !c->here));
}

#endif
