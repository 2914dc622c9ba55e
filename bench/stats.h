/* stats.h - the measurements of a run, in total and by class, model, priority, tier, key and turn.
 *
 * A group is a set of figures; each request belongs to the group "all" and to one group of each
 * kind that has more than one member.  Every figure of a group has a fixed size, so a run of a day
 * needs as much memory as a run of a minute.  Of single requests a bounded sample is kept
 * (trail.h); all of them are written only to the CSV file.
 *
 *     stats_groups   once per request, when it starts
 *     stats_chunk    for each chunk with text, when it is read
 *     stats_gap      for each gap between chunks, when it is measured
 *     stats_finish   once per request, when it has ended
 *
 * Only counted requests are included.  tpot and e2e include the requests that succeeded, ttft and
 * longest also those cut by the generator, and itl every measured gap, also of requests that failed
 * later.
 *
 * Invariant: n_offered == n_ok + n_failed + n_cut once nothing is in flight.
 * Thread: the load's. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include "hist.h"
#include "result.h"
#include "spec.h"
#include "timeline.h"
#include "trail.h"

enum {
    TALLY_MAX = 24,
    GROUPS_MAX = 256,
    GROUPS_PER_REQUEST = 7,
    GROUP_NAME_BYTES = 256,
    TURNS_TOLD_MAX = 16,
    FAILURES_SURE = 5 // so many failures, and nothing else, are no chance
};

/* Counts by word: finish reasons, or error codes with the first text of each. */
typedef struct tally_entry {
    char name[48];
    uint64_t n;
    char text[160];
} tally_entry;
typedef struct tally {
    tally_entry entries[TALLY_MAX]; // the last entry becomes "other" when there are more
    uint32_t n;
} tally;

typedef struct group {
    const char *by; // "all", "class", "model", "priority", "tier", "key", "turn"
    char *name;     // owned
    uint64_t n_offered, n_ok, n_failed, n_cut;
    tally errors, finishes;

    hist ttft, itl, tpot, e2e, longest, late; // ns

    uint64_t n_prompt_asked, n_output_asked; // of the ok ones, as are the next six
    uint64_t n_prompt, n_cached, n_output;   // from usage, or chunks
    uint64_t n_chunks;                       // with text
    uint64_t n_prompt_asked_of_told;         // requested prompt tokens where usage was reported
    uint64_t n_by_usage, n_by_chunks;        // requests counted by usage and by chunks
    uint64_t n_short, n_textless;            // requests
    double n_output_steady;                  // tokens that arrived in the steady time

    uint64_t n_slo, n_slo_met; // requests of classes with a target (failed ones too)
    uint64_t n_slo_output;     // output tokens of the requests that met it

    timeline times; // of all requests, counted or not
} group;

typedef struct stats {
    const bench_spec *spec;
    group *groups[GROUPS_MAX]; // [n_groups]; owned; the first is "all"
    uint32_t n_groups;
    bool groups_dropped; // GROUPS_MAX was reached

    uint64_t clock_ns;                        // start of the clock, after the warm-up
    uint64_t start_ns, end_ns;                // start of counting, last end of a counted request
    uint64_t steady_from_ns, steady_until_ns; // the time in which requests were being started
    double cpu_s, cpu_wall_s;                 // of this process while it ran
    uint64_t n_warmup_failed;
    uint64_t n_again;           // counted requests with an entry of a data set sent before
    trail kept;                 // counted requests
    uint64_t n_cut_with_target; // requests that were cut before they met or missed their target
    uint64_t n_missed_max;      // cut all once so many requests missed their targets; 0: never
    bool is_stopped;            // that was the case
    bool is_interrupted;
} stats;

inferd_status stats_init(stats *s, const bench_spec *spec, inferd_err *err);
void stats_deinit(stats *s);

/* Fills in the groups of a request; NULL after the last.  Counts it as offered in them. */
void stats_groups(stats *s, const request_plan *plan, group *out[GROUPS_PER_REQUEST]);
/* The name of the group of kind `by` that a request belongs to; false: it belongs to none.  Names
 * longer than GROUP_NAME_BYTES are cut. */
bool stats_group_name(const stats *s, const char *by, const request_plan *plan,
                      char out[GROUP_NAME_BYTES]);
void stats_chunk(const stats *s, group *const groups[GROUPS_PER_REQUEST], uint64_t now_ns);
void stats_gap(const stats *s, group *const groups[GROUPS_PER_REQUEST], uint64_t now_ns,
               uint64_t gap_ns);
void stats_finish(stats *s, group *const groups[GROUPS_PER_REQUEST], const result *r);

/* Whether n_missed_max requests missed their targets; where none succeeded, at least FAILURES_SURE
 * must have failed. */
bool stats_missed_too_many(const stats *s);

double stats_wall_s(const stats *s);   // 0 when nothing was counted
double stats_steady_s(const stats *s); // 0 when there was no steady time

#endif
