/* plan.h - the parameters of one request, and its body.
 *
 * All values are a function of (seed, class, index) and of the card of a data set: the same seed
 * gives the same requests, independent of the server's answers and of the time they are sent. Cards
 * are handed out in the order in which a class starts its requests (deck.h).  Prompts of
 * random words share more than `shared_prefix` tokens only by chance, so a prefix cache helps only
 * if `shared_prefix` is set.
 *
 * Thread: any. */
#ifndef BENCH_PLAN_H
#define BENCH_PLAN_H

#include "deck.h"
#include "inferd/buf.h"

typedef struct request_plan {
    uint64_t seed;
    uint32_t class_idx;
    uint64_t idx;                        // of the request, or of its conversation, in its class
    uint32_t turn;                       // of the conversation, from 0
    deck_card card;                      // of the turn or the conversation; data sets only
    uint32_t model, key, priority, tier; // indexes into the class's choices; 0 when there are none
    uint32_t n_prompt, n_output;         // tokens; n_prompt is that of the new message
    uint64_t n_before;                   // prompt tokens before it: system message, earlier turns
} request_plan;

/* Index of the first warm-up request, so that they differ from the requests of the run. */
#define PLAN_WARMUP_IDX ((uint64_t)1 << 60)

/* Model, key, priority and tier are the same in all turns of a conversation. */
request_plan plan_draw(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                       uint32_t turn);
/* The same for a class with a data set. */
request_plan plan_draw_card(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                            uint32_t turn, deck_card card);

static inline uint64_t plan_prompt_tokens(const request_plan *plan) {
    return plan->n_before + plan->n_prompt;
}

/* Turns of a conversation: of a ShareGPT data set at most as many as entry `card` has. */
uint32_t plan_turns(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                    deck_card card);

/* The JSON body; `history`: the messages before, with a comma after each, or NULL.  False: no
 * memory. */
bool plan_body(const request_plan *plan, const bench_class *c, const buf *history, buf *out);

/* Parts of a body: the prompt or the user's message as JSON, and a JSON string. */
void plan_message(const request_plan *plan, const bench_class *c, buf *out);
void plan_string(buf *out, const char *text);

#endif
