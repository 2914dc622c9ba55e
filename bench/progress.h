/* progress.h - how far a run is, on standard error.
 *
 *     terminal                     one line that is rewritten each second
 *     not a terminal               a line each PROGRESS_SELDOM_S, so that a log of a long run stays
 * short
 *     --progress                   a line each second (rewritten on a terminal)
 *     --quiet, or --progress=off   none
 *
 * Thread: the load's. */
#ifndef BENCH_PROGRESS_H
#define BENCH_PROGRESS_H

#include "inferd/base.h"

enum { PROGRESS_SELDOM_S = 30, PROGRESS_BYTES = 256 };

typedef enum progress_choice { PROGRESS_AUTO, PROGRESS_ON, PROGRESS_OFF } progress_choice;

typedef struct progress {
    uint32_t every_s; // 0: none
    bool is_rewritten;
    bool has_line; // a rewritten line is on the terminal
} progress;

progress progress_make(progress_choice choice, bool is_quiet, bool is_terminal);
/* The same for standard error; a terminal without cursor movement (TERM=dumb) is no terminal. */
progress progress_of_stderr(progress_choice choice, bool is_quiet);

typedef struct progress_facts {
    double elapsed_s, total_s; // total_s 0: the run has no duration
    uint64_t n_ended, n_total; // requests; n_total 0: it is not known
    uint64_t n_ok, n_failed, n_in_flight, n_waiting;
    double tokens_per_s; // in the last second or so
    double ttft_ms;      // median so far; below zero: there is none
} progress_facts;

/* About how long the run still starts requests; below zero: it is not known. */
double progress_left_s(const progress_facts *f);
void progress_text(const progress_facts *f, char out[PROGRESS_BYTES]);

void progress_print(progress *p, const char *text);
void progress_clear(progress *p); // removes a rewritten line

#endif
