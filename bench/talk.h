/* talk.h - a conversation of several turns: the messages so far, with the answers of the model.
 *
 *     talk_create -> request of turn 0 -> talk_answer -> (think time) -> request of turn 1 -> ...
 *
 * A conversation ends after its turns, when a request of it failed, or when its messages are longer
 * than TALK_BYTES_MAX.
 *
 * Thread: the load's. */
#ifndef BENCH_TALK_H
#define BENCH_TALK_H

#include "plan.h"

enum { TALK_BYTES_MAX = 8 << 20, TALKS_MAX = 100000 };

typedef struct talk {
    uint64_t idx; // of the conversation in its class
    uint32_t class_idx, turn, n_turns;
    buf history; // messages as JSON, with a comma after each
} talk;

/* NULL: no memory. */
talk *talk_create(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx);
void talk_destroy(talk *t); // accepts NULL

/* Adds a turn's message and its answer; false: the conversation has ended. */
bool talk_answer(talk *t, const request_plan *plan, const bench_class *c, const char *answer);

/* Time between the answer of a turn and the next message. */
double talk_think_s(const talk *t, const bench_class *c, uint64_t seed);

#endif
