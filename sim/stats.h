/* stats.h - figures of finished requests.
 *
 * Attainment counts every request that was *offered*: a refused, failed or unfinished one is a
 * miss, so that refusing work cannot improve it.
 *
 * Thread: any. */
#ifndef SIM_STATS_H
#define SIM_STATS_H

#include "inferd/base.h"

typedef enum stats_end { STATS_DONE, STATS_REFUSED, STATS_FAILED, STATS_UNFINISHED } stats_end;

typedef struct stats_request {
    uint64_t arrival_us;
    uint64_t first_us, last_us; // times of the first and the last token; DONE only
    uint32_t n_prompt, n_output;
    uint32_t slo_ttft_us, slo_tpot_us; // 0: no target
    stats_end end;
} stats_request;

typedef struct stats_attained {
    uint64_t n_offered, n_done, n_met;
    uint64_t n_refused, n_failed, n_unfinished;
    /* Of the done ones: missed TTFT, missed TPOT; a request may count in both. */
    uint64_t n_late_first, n_slow;
    uint64_t n_output, n_output_met; // tokens of done requests, and of those that met both
} stats_attained;

/* TTFT <= target, and TPOT = (last - first) / (n_output - 1) <= target; below two tokens no
 * TPOT. */
bool stats_meets(const stats_request *r);
void stats_count(stats_attained *a, const stats_request *r); // one more request
double stats_attainment(const stats_attained *a); // [0, 1]; NAN when no request was offered

/* Nearest rank: the value that a share q in (0, 1] does not exceed.  `sorted` ascending, n > 0. */
uint64_t stats_quantile(const uint64_t *sorted, size_t n, double q);

#endif
