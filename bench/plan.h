/* plan.h - the parameters of one request, and its body.
 *
 * All values are a function of (seed, class, index): the same seed gives the same requests,
 * independent of the server's answers and of the time they are sent.  The lines of a text data set
 * are handed out in the order of the conversations, as many to each as it has turns.  Prompts are
 * random, so two of them share more than `shared_prefix` tokens only by chance, and a prefix cache
 * helps only if `shared_prefix` is set.
 *
 * Thread: any. */
#ifndef BENCH_PLAN_H
#define BENCH_PLAN_H

#include "inferd/buf.h"
#include "spec.h"

typedef struct request_plan {
    uint64_t seed;
    uint32_t class_idx;
    uint64_t idx;                        // of the request, or of its conversation, in its class
    uint32_t turn;                       // of the conversation, from 0
    uint64_t first_line;                 // of a text data set: that of turn 0, in drawn order
    uint32_t model, key, priority, tier; // indexes into the class's choices; 0 when there are none
    uint32_t n_prompt, n_output;         // tokens; n_prompt is that of the new message
    uint64_t n_before;                   // prompt tokens before it: system message, earlier turns
} request_plan;

/* Index of the first warm-up request, so that they differ from the requests of the run. */
#define PLAN_WARMUP_IDX ((uint64_t)1 << 60)

/* Model, key, priority and tier are the same in all turns of a conversation. */
request_plan plan_draw(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                       uint32_t turn);
/* The same where turn 0 takes line `first_line` of a text data set, and not line `idx`. */
request_plan plan_draw_line(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                            uint32_t turn, uint64_t first_line);

static inline uint64_t plan_prompt_tokens(const request_plan *plan) {
    return plan->n_before + plan->n_prompt;
}

/* Turns of a conversation. */
uint32_t plan_turns(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx);

/* The JSON body; `history`: the messages before, with a comma after each, or NULL.  False: no
 * memory. */
bool plan_body(const request_plan *plan, const bench_class *c, const buf *history, buf *out);

/* Parts of a body: the prompt or the user's message as JSON, and a JSON string. */
void plan_message(const request_plan *plan, const bench_class *c, buf *out);
void plan_string(buf *out, const char *text);

#endif
