/* null_server.h - a server that computes nothing: it sends fixed chunks at a given pace.
 *
 * A load generator run against it measures itself, and the pace and the faults are known, so
 * reports can be checked.  The server parses only the HTTP that a load generator sends, and
 * searches for the few fields it needs by name, so that it is not the bottleneck.
 *
 * It must not be reachable by other machines: the resources a peer can use are not limited. */
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
    uint32_t tokens_per_write;   // without a pace: number of events in one write
    uint32_t stall_at, stall_ms; // before token number stall_at (0-based, > 0) wait stall_ms longer
    uint32_t fail_every, cut_every; // each Nth request: refused, or cut in the middle; 0: never
    int fail_status;
    uint32_t eos_at; // without ignore_eos, end after this many tokens; 0: never
    bool no_usage;   // never send usage
} null_options;

null_options null_options_default(void);

/* Serves until SIGINT or SIGTERM.  Once it listens, the port is written to `ready_fd` (as an int,
 * if ready_fd >= 0) or printed to standard output otherwise. */
inferd_status null_server_run(const null_options *o, int ready_fd, inferd_err *err);

#endif
