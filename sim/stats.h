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
 *     3  no flow gets more than its ceiling; the excess is divided among the others (water-filling)
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
    bool is_warmup; // not counted
} stats_request;

typedef struct stats_attained {
    uint64_t n_offered, n_met;
    uint64_t n_refused, n_failed, n_unfinished;
    uint64_t n_late_first,
        n_slow; // of the done ones: missed TTFT, missed TPOT; a request may count in both
    uint64_t n_output_met; // tokens of requests that met both
} stats_attained;

/* TTFT <= target, and TPOT = (last - first) / (n_output - 1) <= target; below two tokens no
 * TPOT. */
bool stats_meets(const stats_request *r);
stats_attained stats_attain(const stats_request *requests, size_t n);
double stats_attainment(const stats_attained *a); // [0, 1]; NAN when no request was offered
/* Requests and output tokens per second that met both; seconds > 0 is the counted time. */
double stats_goodput(const stats_attained *a, double seconds);
double stats_goodput_tokens(const stats_attained *a, double seconds);

/* The largest rate up to which attainment never falls below `level`, interpolated linearly between
 * the points (rates ascending, n > 0).  0 when the first is below; the last rate when none is. */
double stats_rate_at(const double *rates, const double *attainments, size_t n, double level);

/* Nearest rank: the value that a share q in (0, 1] does not exceed.  `sorted` ascending, n > 0. */
uint64_t stats_quantile(const uint64_t *sorted, size_t n, double q);

/* ---- shares ---- */

enum { STATS_FLOWS_MAX = 1024, STATS_WINDOWS = 3 };
extern const uint64_t stats_windows_us[STATS_WINDOWS]; // 1, 10 and 60 s

typedef struct stats_flow {
    share_policy policy;
    double percent;  // of one device; besteffort: ignored
    double ceiling;  // of share and surplus, percent; 0: none. fixed: ignored
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

/* The largest error over all flows and windows of each length. */
inferd_status stats_share_errors(const stats_run *run, stats_share_error out[STATS_WINDOWS],
                                 inferd_err *err);

/* Device time that each flow used in the run. */
void stats_used_us(const stats_run *run, double *out_us);

/* Device time that each flow was entitled to in the run. */
inferd_status stats_entitled_us(const stats_run *run, double *out_us, inferd_err *err);

/* (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything; NAN when all are 0 or
 * n is 0. For shares: x = used / weight. */
double stats_jain(const double *x, size_t n);

typedef struct stats_gap {
    double gap_us; // per unit of weight
    uint32_t a, b;
    uint64_t begin_us, end_us; // both are backlogged throughout; the gap is over a part of this
    bool is_known;             // false: no two flows with a weight were ever backlogged together
} stats_gap;

/* The largest difference of weighted service, |dS_a / w_a - dS_b / w_b|, over all pairs of flows
 * and all intervals in which both were backlogged throughout. */
inferd_status stats_service_gap(const stats_run *run, stats_gap *out, inferd_err *err);

#endif
