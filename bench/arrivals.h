/* arrivals.h - when requests start.
 *
 * Closed loop: `closed:N` keeps N streams busy; a stream's next request is scheduled for the time
 * its previous request ended.  All other forms are open loops: the times are drawn from a seed
 * before anything is sent, and do not depend on how fast the server is.
 *
 *     closed:N             N streams, one request after another
 *     constant:R           R a second, evenly; the first immediately
 *     every:T              one each T (1s, 250ms); the first immediately
 *     poisson:R            R a second on average, exponential gaps
 *     gamma:R/CV           the same with another coefficient of variation of the gaps (poisson: 1)
 *     steps:R/T,R/T,...    Poisson with rate R for time T, then the next pair; ends after the last
 *     onoff:R/ON/OFF       Poisson with rate R for ON, nothing for OFF, repeated
 *     burst:R/ON/OFF       the same with exponential ON and OFF of these means
 *     trace                the times of the trace file, divided by `speed`
 *
 * Thread: the owner's. */
#ifndef BENCH_ARRIVALS_H
#define BENCH_ARRIVALS_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "rng.h"
#include "trace.h"

enum { ARRIVALS_STEPS_MAX = 64, ARRIVALS_STREAMS_MAX = 100000 };

typedef enum arrivals_kind {
    ARRIVALS_CLOSED,
    ARRIVALS_CONSTANT,
    ARRIVALS_POISSON,
    ARRIVALS_GAMMA,
    ARRIVALS_STEPS,
    ARRIVALS_ONOFF,
    ARRIVALS_BURST,
    ARRIVALS_TRACE
} arrivals_kind;

typedef struct arrivals_step {
    double rate; // a second
    double s;    // how long
} arrivals_step;

typedef struct arrivals_spec {
    arrivals_kind kind;
    uint32_t n_streams;                      // closed
    double rate, cv;                         // a second
    arrivals_step steps[ARRIVALS_STEPS_MAX]; // steps; onoff and burst: {on, off}
    uint32_t n_steps;
} arrivals_spec;

/* The text forms above. */
inferd_status arrivals_parse(arrivals_spec *spec, const char *text, inferd_err *err);

/* "250ms", "3s", "1.5m", "2h", "3" (seconds) in seconds; false when it is none of these. */
bool seconds_parse(const char *text, double *out_s);

typedef struct arrivals {
    const arrivals_spec *spec;
    const trace *trace; // for ARRIVALS_TRACE
    double speed;
    rng random;
    uint64_t n;       // arrivals so far
    double at_s;      // of the last one
    uint32_t step;    // index of the current step
    double step_left; // remaining time of it in seconds
} arrivals;

/* `spec` and `tr` are borrowed; `spec` must not be closed. */
void arrivals_init(arrivals *a, const arrivals_spec *spec, const trace *tr, double speed,
                   rng random);

/* The next arrival in nanoseconds since the start; false: there are no more. */
bool arrivals_next(arrivals *a, uint64_t *out_ns);

#endif
