/* slo.h - the greatest rate of requests at which enough of them meet their targets.
 *
 *     probe at --rate --> held: twice as much, until it does not --+
 *                     \-> not held: half as much, until it does ---+--> halve the bracket [lo, hi]
 *
 * A probe is a run of its own with the seed plus its number, so that prompts are new and a repeated
 * search does the same.  It counts requests that the generator cut at the end as missed, and stops
 * as soon as so many are late that it cannot hold any more.
 *
 * Overload is what a lower rate would mend.  A probe in which every request failed for another
 * reason (a wrong key, no server) ends the search with an error.
 *
 * Thread: main. */
#ifndef BENCH_SLO_H
#define BENCH_SLO_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "stats.h"

enum { SLO_PROBES_MAX = 64 };

typedef enum slo_reason {
    SLO_GOES_ON,
    SLO_PRECISE,   // hi / lo is at most 1 + precision
    SLO_AT_MAX,    // held at rate_max
    SLO_BELOW_MIN, // not held at rate_min
    SLO_NO_TIME,
    SLO_NO_PROBES,
    SLO_REFUSED, // every request of a probe failed, and not of overload
    SLO_INTERRUPTED
} slo_reason;

/* The bracket.  Invariant: lo < hi when both are known. */
typedef struct slo_search {
    double rate, rate_min, rate_max, precision; // as given
    double lo;                                  // the greatest rate that held below hi; 0: none
    double hi;                                  // the least rate that did not; 0: none
    uint32_t n_probes;
} slo_search;

/* Plans a probe in the time left: false, its starts do not fit.  A drain that does not fit is cut
 * short; a probe that missed only for that tells nothing. */
bool slo_fits(double left_s, double duration_s, double *drain_s);

/* The rate of the next probe; anything but SLO_GOES_ON: the search has ended. */
slo_reason slo_next(const slo_search *s, double *out_rate);
void slo_take(slo_search *s, double rate, bool held);

/* How many requests with a target a probe of the spec starts.  0: it is not known, because a class
 * with a target is a closed loop, or its arrivals are conversations of several requests. */
uint64_t slo_requests_of(const bench_spec *spec, double duration_s);

/* What the rate counts: "requests/s", or "conversations/s" where a scaled class has turns. */
const char *slo_unit(const bench_spec *spec);

/* Whether every request of a probe failed for a reason that no rate mends.  Of a probe that stopped
 * early, FAILURES_SURE of them stand for all.  A request that was cut after its first token was
 * served. */
bool slo_is_refused(const group *all, bool is_stopped);

/* The command; returns the exit status. */
int slo_command(int argc, char **argv);

#endif
