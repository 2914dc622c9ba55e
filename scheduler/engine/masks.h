/* masks.h - threads that answer the questions of constraint.h beside the steps of a device.
 *
 *     engine   commit ---ask---> plan, launch ======= step ======= finish: is the answer there?
 *     worker             accept the token, make its masks ... done
 *
 * A few threads answer, which start with the first question; if none can be started, the engine's
 * thread answers.  Questions are answered in the order in which they came, but quick ones do not
 * wait for slow ones: first questions of sequences, and those whose last answer took long, have a
 * queue of their own, and one thread never takes from it.  The workers free what ended sequences
 * had.  A question of a sequence that has ended is not answered.
 *
 * Thread: engine; the workers share only what the lock guards, and constraints. */
#ifndef INFERD_MASKS_H
#define INFERD_MASKS_H

#include "constraint.h"

enum {
    MASKS_THREADS_MIN = 2, // one of them for slow answers
    MASKS_THREADS_MAX = 4,
    MASKS_CPUS_EACH = 4 // CPUs of the machine for each thread
};

typedef struct masks masks;

typedef struct masks_options {
    uint32_t n_threads; // 0: by the CPUs of the machine
    /* Called by a worker before anything else, and after an answer for which masks_await waited in
     * vain; NULL: no call. */
    void (*begin)(void *ctx);
    void (*answered)(void *ctx);
    void *ctx;
} masks_options;

inferd_status masks_create(const masks_options *options, masks **out, inferd_err *err);
/* Waits for the answers to all questions, for most_us at most.  False: some are missing, and each
 * will be told. */
bool masks_await(masks *m, uint64_t most_us);
/* The threads end, after the constraints that they have; later questions are answered at once. */
void masks_halt(masks *m);
void masks_destroy(masks *m); // halts; accepts NULL.  All constraints are closed

extern const constraint_ops masks_ops; // their ctx: a masks

#endif
