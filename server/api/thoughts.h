/* thoughts.h - which tokens of an answer are reasoning.
 *
 *     <think> I wonder </think> Yes        those that begin between the marks; the marks are none
 *             |------->|
 *
 * A token waits until it is known what its text is: a mark is known only when it is complete.
 * Tokens that begin between the marks are counted against a budget, too, and so are those of a mark
 * that the model writes itself: a budget is never less than what is counted here.
 * Thread: front. */
#ifndef INFERD_THOUGHTS_H
#define INFERD_THOUGHTS_H

#include "models/calls.h"
#include "models/tokenizer.h"

typedef struct thought_token {
    tok_id id;
    bool shown;         // it has text; else it ends the answer
    int64_t start, end; // of its text in that of the answer
} thought_token;

typedef struct thoughts {
    thought_token *waiting; // [n] owned; those before `first` are taken
    size_t first, n, capacity;
    uint32_t n_reasoning; // tokens of reasoning
} thoughts;

void thoughts_deinit(thoughts *t);
bool thoughts_add(thoughts *t, const thought_token *token); // false: no memory
/* Takes the next token of which it is known whether it is reasoning, and counts it.  False: there
 * is none. */
bool thoughts_next(thoughts *t, const call_reasoning *r, tok_id *id, bool *is_reasoning);

#endif
