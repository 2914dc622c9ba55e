/* null_server.h - a server that computes nothing: canned chunks at a given pace.
 *
 * What a load generator measures against it is the generator itself, and the pace and the faults
 * are known, so reports can be checked.  It reads HTTP only as far as a load generator speaks it,
 * and looks for the few fields it needs by their names, because it must not be the limit.
 *
 * Never to be reached by others: it has no limits on what a peer may hold. */
#ifndef BENCH_NULL_SERVER_H
#define BENCH_NULL_SERVER_H

#include "inferd/base.h"
#include "inferd/status.h"

enum { TOKENS_PER_WRITE_MAX = 64 };

typedef struct null_options {
    char host[64];
    int port; // 0: any; printed
    double ttft_ms;
    double tokens_per_s;         // of each stream; 0: one after another without a pause
    uint32_t tokens_per_write;   // without a pace: that many events in one write
    uint32_t stall_at, stall_ms; // before token number stall_at (0-based, > 0) wait stall_ms more
    uint32_t fail_every, cut_every; // each Nth request: refused, or cut in the middle; 0: never
    int fail_status;
    uint32_t eos_at; // without ignore_eos, end after that many tokens; 0: never
    bool no_usage;   // never send usage
} null_options;

null_options null_options_default(void);

/* Serves until SIGINT or SIGTERM.  Once it listens, the port is written to `ready_fd` (an int, if
 * ready_fd >= 0) and told on standard output otherwise. */
inferd_status null_server_run(const null_options *o, int ready_fd, inferd_err *err);

#endif
