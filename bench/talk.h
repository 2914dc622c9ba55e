/* talk.h - a conversation of several turns: the messages so far, with the answers of the model.
 *
 *     talk_create -> request of turn 0 -> talk_answer -> (think time) -> request of turn 1 -> ...
 *
 * A conversation ends after its turns, when a request of it failed, or when its messages are longer
 * than TALK_BYTES_MAX, or those of all conversations together longer than TALKS_BYTES_MAX.
 *
 * Thread: the load's. */
#ifndef BENCH_TALK_H
#define BENCH_TALK_H

#include "plan.h"

enum { TALK_BYTES_MAX = 8 << 20, TALKS_BYTES_MAX = 1 << 30, TALKS_MAX = 100000 };

typedef struct talk {
    uint64_t idx; // of the conversation in its class
    uint32_t class_idx, turn, n_turns;
    deck_card card;    // of all turns; of a text data set: of turn 0
    deck_card *lines;  // of a text data set: [n_turns - 1], of the turns after it; owned
    buf history;       // messages as JSON, with a comma after each
    uint64_t n_tokens; // of them, about
} talk;

/* Takes its cards from the decks, those of all its turns.  NULL: no memory. */
talk *talk_create(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx, decks *d);
void talk_destroy(talk *t); // accepts NULL

/* Adds a turn's message and its answer of `n_output` tokens; false: the conversation has ended. */
bool talk_answer(talk *t, const request_plan *plan, const bench_class *c, const char *answer,
                 uint64_t n_output);

/* The request of the conversation's turn; of `idx` and `card` without one. */
request_plan talk_plan(const talk *t, const bench_class *c, uint64_t seed, uint32_t class_idx,
                       uint64_t idx, deck_card card);

/* Time between the answer of a turn and the next message. */
double talk_think_s(const talk *t, const bench_class *c, uint64_t seed);

#endif
