/* draft.h - drafts the next tokens of a sequence from its own text (prompt lookup).
 *
 * Answers repeat text: code, names, the text to be changed.  The last tokens are searched for
 * earlier in prompt and output, and what followed there is the draft.  A step then computes the
 * draft tokens as if they were known, and draws a token behind each row; the scheduler keeps those
 * up to the first that differs from the draft (sched_commit.c).  Every token that is kept was drawn
 * from the same logits and with the same random numbers as without drafts: the output is the same.
 *
 * A sequence that does not repeat itself should not pay for useless rows: the next draft is one
 * token longer than the right part of the last, and after some drafts in a row without a right
 * token there is none for a while.
 * Thread: engine. */
#ifndef INFERD_DRAFT_H
#define INFERD_DRAFT_H

#include "inferd/base.h"

enum {
    DRAFT_STREAMS_MAX = 7, // more sequences fill a step without drafts
    DRAFT_MISSES_MAX = 4,  // drafts in a row without a right token, then none ...
    DRAFT_REST_TOKENS = 32 // ... for so many tokens
};

typedef struct draft_habit {
    uint32_t n_next;     // length of the next draft
    uint32_t n_misses;   // drafts in a row without a right token
    uint32_t rest_until; // none before the sequence has so many tokens
} draft_habit;

#define DRAFT_HABIT_NEW(n_max) ((draft_habit){.n_next = (n_max)})
/* Of the last draft n_right tokens were right; the sequence has n_tokens now. */
void draft_learn(draft_habit *h, uint32_t n_max, uint32_t n_tokens, uint32_t n_right);

/* Writes at most n_max draft tokens behind the n tokens: what followed the newest earlier
 * occurrence of the last three, else of the last two.  Returns how many. */
uint32_t draft_write(tok_id *tokens, uint32_t n, uint32_t n_max);

#endif
