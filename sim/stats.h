/* stats.h - figures of a finished run, as pure functions over arrays.
 *
 * Attainment counts every request that was *offered*: a refused, failed or unfinished one is a
 * miss, so that refusing work cannot improve it.
 *
 * Entitlement is the device time that each flow should have got.  At any moment the backlogged
 * flows (with waiting or running work) divide the device:
 *
 *     1  fixed and burst get their share
 *     2  the rest (surplus) goes to burst and besteffort by weight, the most urgent class first;
 *        classes after the first together have up to `floor_percent` of it reserved
 *
 * The entitled time of a window is the integral of that.  Entitled and measured time are both
 * piecewise linear, so the largest error over *all* windows of a length is at one of finitely many
 * points and is found exactly, not by sampling.
 *
 * Times are microseconds.  A device has 100 percent; n devices n * 100.
 * Thread: any. */
#ifndef SIM_STATS_H
#define SIM_STATS_H

#include "scheduler/policy.h"

/* ---- attainment ---- */

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

/* ---- shares ---- */

enum { STATS_FLOWS_MAX = 1024, STATS_WINDOWS = 3 };
extern const uint64_t stats_windows_us[STATS_WINDOWS]; // 1, 10 and 60 s

typedef struct stats_flow {
    share_policy policy;
    double percent;  // of one device; besteffort: ignored
    uint32_t weight; // of the surplus; 0 gets none
    gen_class prio;
} stats_flow;

/* A flow was backlogged, or used the device: [begin, end). */
typedef struct stats_span {
    uint32_t flow_idx;
    uint64_t begin_us, end_us;
    double device_us; // service only: device time used, spread evenly over the span
} stats_span;

typedef struct stats_run {
    const stats_flow *flows; // [n_flows]
    uint32_t n_flows;
    double capacity;           // percent of all devices together, > 0
    double floor_percent;      // of the surplus, for classes after the first; 0: none
    const stats_span *backlog; // [n_backlog] any order; spans of one flow do not overlap
    size_t n_backlog;
    const stats_span *service; // [n_service] any order; may overlap
    size_t n_service;
    uint64_t begin_us, end_us; // windows lie inside
} stats_run;

/* The percentage that each flow is entitled to while exactly the flows with backlogged[i] are
 * backlogged.  EINVAL: their shares add up to more than the capacity. */
inferd_status stats_entitle(const stats_run *run, const bool *backlogged, double *out_percent,
                            inferd_err *err);

typedef struct stats_share_error {
    double points;             // |measured - entitled| in percent points of one device
    double measured, entitled; // percent, in that window
    uint32_t flow_idx;
    uint64_t window_end_us;
    bool is_known; // false: the run is shorter than the window
} stats_share_error;

/* The largest error over all flows and windows of each length, and the device time that each flow
 * used and was entitled to in the run, [n_flows]. */
inferd_status stats_shares(const stats_run *run, stats_share_error errors[STATS_WINDOWS],
                           double *used_us, double *entitled_us, inferd_err *err);

#endif
