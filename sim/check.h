/* check.h - many small randomized worlds in which everything happens at once, and the invariants
 * that must always hold.
 *
 * A seed makes a world: a few pages, models of different sizes, classes and policies, one memory or
 * two, depth 1 or 2, draft tokens or none, a disk or none; and then the
 * events in it: requests, cancellations, pauses, commands, policies, files that fail, slow loads,
 * failed steps, a clock that jumps.  The device stores tokens where the block tables say and reads
 * weights where they were put, so a page with the wrong owner changes an output.
 *
 * After every event core_verify and the invariants of check_invariant are checked.  At the end the
 * input stops, and every request has to end; then the models leave, and every page has to be given
 * back.
 *
 * The same seed gives the same world, event for event.  Thread: one at a time in a process, because
 * the fake device has globals. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include "inferd/base.h"

typedef enum check_invariant {
    CHECK_NONE,
    CHECK_BOOKS,    // core_verify
    CHECK_TOKENS,   // an output differs from what its prompt determines
    CHECK_EVENTS,   // out of order, after the last one, or of an unknown request
    CHECK_ENDS,     // an end without a valid reason
    CHECK_DEVICE,   // the device was used wrongly
    CHECK_WEIGHTS,  // weights were overwritten
    CHECK_PAGES,    // budgets of device and host, guarantees and ceilings
    CHECK_USAGE,    // time was counted twice, or a counter is wrong
    CHECK_DEADLINE, // a request outlived its deadline
    CHECK_STARVED,  // a request could be served, and only others are
    CHECK_EVICTION, // the wrong model was evicted, or too early
    CHECK_STATES,   // a model's state and its requests disagree
    CHECK_TENANTS,  // a tenant finds bytes that another one wrote
    CHECK_DISK,     // the disk was used wrongly
    CHECK_DEADLOCK, // no progress any more
    CHECK_LEAK,     // something is still held at the end
    CHECK_INVARIANTS
} check_invariant;

const char *check_invariant_name(check_invariant what);

enum { CHECK_TEXT_BYTES = 640 };

typedef struct check_result {
    check_invariant failed; // CHECK_NONE: no violation
    char text[CHECK_TEXT_BYTES];
    uint64_t at_us;
    /* Counts of events in all seeds so far, as evidence that they occurred. */
    uint64_t n_events, n_steps, n_requests, n_tokens, n_preempted, n_loads, n_evicted, n_slices;
    uint64_t n_failed_loads, n_drafts_right, n_hits, n_moves;
    uint64_t n_stored, n_fetched, n_copied_ahead, n_zeroed;
    /* The longest waits in worlds that bound them: steps of others, and times. */
    uint64_t flood_steps, slice_us, urgent_us, guaranteed_us, drain_us;
} check_result;

/* `check` of the command line: --seeds N, --seed0 N, --trace SEED, --quiet, --keep-going.  Returns
 * the exit status. */
int check_main(int argc, char **argv);

/* Adds to the counts of `out`, which is zeroed before the first seed.  `trace`: print every event
 * to stdout.  False: no memory. */
bool check_seed(uint64_t seed, bool trace, check_result *out);

#endif
