/* plan.h - what one request asks for, and its body.
 *
 * Everything is a function of (seed, class, index): the same seed gives the same requests, whatever
 * the server does and whenever they are sent.  Prompts are random, so no two share more than
 * `shared_prefix` tokens but for chance, and a prefix cache helps only where that is asked for.
 *
 * Thread: any. */
#ifndef BENCH_PLAN_H
#define BENCH_PLAN_H

#include "inferd/buf.h"
#include "spec.h"

typedef struct request_plan {
    uint64_t seed;
    uint32_t class_idx;
    uint64_t idx;                        // of the request in its class
    uint32_t model, key, priority, tier; // into the choices of the class; 0 when there are none
    uint32_t n_prompt, n_output;         // tokens
} request_plan;

/* Warm-up requests are counted from here, so that they are not those of the run. */
#define PLAN_WARMUP_IDX ((uint64_t)1 << 60)

request_plan plan_draw(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx);

/* The JSON body; false: no memory. */
bool plan_body(const request_plan *plan, const bench_class *c, buf *out);

#endif
