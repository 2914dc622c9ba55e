/* check.h - many small worlds in which everything happens at once, and what must hold whatever
 * happens.
 *
 * A seed makes a world: a few pages, models of different sizes, classes and policies, one memory or
 * two, depth 1 or 2, guesses or none, a disk or none, one of four objectives; and then what
 * happens in it: requests, cancellations, pauses, commands, policies, files that fail, slow loads,
 * failed steps, a clock that jumps.  The device stores tokens where the block tables say and reads
 * weights where they were put, so a page in the wrong hands changes an output.
 *
 * After every event: the books (core_verify), and the invariants named by check_invariant_name.  At
 * the end the input stops, and everything has to end, too; then the models go, and every page has
 * to be back.
 *
 * The same seed gives the same world, event for event.  Thread: one at a time in a process, because
 * the fake device has globals. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include "inferd/base.h"

typedef enum check_invariant {
    CHECK_NONE,
    CHECK_BOOKS,    // core_verify
    CHECK_TOKENS,   // an output is not what its prompt gives
    CHECK_EVENTS,   // out of order, after the last, or of nobody
    CHECK_ENDS,     // an end without its reason
    CHECK_DEVICE,   // the device was used wrongly
    CHECK_WEIGHTS,  // weights were overwritten
    CHECK_PAGES,    // ledgers of device and host, guarantees and ceilings
    CHECK_ACCOUNT,  // time was counted twice, or a counter is wrong
    CHECK_DEADLINE, // somebody outlived it
    CHECK_STARVED,  // others are served, and it could be, and is not
    CHECK_EVICTION, // the wrong one had to go, or too early
    CHECK_STATES,   // a model's state and its requests disagree
    CHECK_TENANTS,  // one finds what another wrote
    CHECK_DISK,     // the disk was used wrongly
    CHECK_DEADLOCK, // nothing moves any more
    CHECK_LEAK,     // all is over, and something is kept
    CHECK_INVARIANTS
} check_invariant;

const char *check_invariant_name(check_invariant what);

enum { CHECK_TEXT_BYTES = 640 };

typedef struct check_result {
    check_invariant failed; // CHECK_NONE: the world is sound
    char text[CHECK_TEXT_BYTES];
    uint64_t at_us;
    /* What happened, to be sure that it did. */
    uint64_t n_events, n_steps, n_requests, n_tokens, n_preempted, n_loads, n_evicted, n_turns;
    uint64_t n_failed_loads, n_drafts_right, n_hits, n_moves;
    uint64_t n_stored, n_fetched, n_copied_ahead, n_zeroed;
    /* The longest waits of worlds that bound them: steps of others, and times. */
    uint64_t flood_steps, turn_us, urgent_us, guaranteed_us, drain_us;
} check_result;

/* `check` of the command line: --seeds N, --seed0 N, --trace SEED, --quiet, --keep-going.  The exit
 * status. */
int check_main(int argc, char **argv);

/* `trace`: every event to stdout.  False: no memory. */
bool check_seed(uint64_t seed, bool trace, check_result *out);

#endif
