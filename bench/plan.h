/* plan.h - the parameters of one request, and its body.
 *
 * All values are a function of (seed, class, index): the same seed gives the same requests,
 * independent of the server's answers and of the time they are sent.  Prompts are random, so two of
 * them share more than `shared_prefix` tokens only by chance, and a prefix cache helps only if
 * `shared_prefix` is set.
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
    uint32_t model, key, priority, tier; // indexes into the class's choices; 0 when there are none
    uint32_t n_prompt, n_output;         // tokens
} request_plan;

/* Index of the first warm-up request, so that they differ from the requests of the run. */
#define PLAN_WARMUP_IDX ((uint64_t)1 << 60)

request_plan plan_draw(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx);

/* The JSON body; false: no memory. */
bool plan_body(const request_plan *plan, const bench_class *c, buf *out);

#endif
