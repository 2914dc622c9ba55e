/* stats.h - figures of a finished run, as pure functions over arrays.
 *
 * Attainment counts every request that was *offered*: one that was refused, failed or had not ended
 * is a miss, so that turning work away cannot improve it.
 *
 * Entitlement says what each principal should have got.  At any moment the backlogged ones (with
 * work waiting or running) divide the device:
 *
 *     1  fixed and burst get their share
 *     2  what is left (surplus) goes to burst and besteffort by weight, the most urgent class
 * first; classes after the first together have up to `floor_percent` of it reserved 3  no one gets
 * more than its ceiling; what it leaves is divided among the rest (water-filling)
 *
 * The entitled time of a window is the integral of that.  Entitled and measured time are both
 * piecewise linear, so the largest error over *all* windows of a length is at one of finitely many
 * places and is found exactly, not by sampling.
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
    uint64_t first_us, last_us; // when the first and the last token were there; DONE only
    uint32_t n_prompt, n_output;
    uint32_t slo_ttft_us, slo_tpot_us; // 0: no target
    stats_end end;
    bool is_warmup; // not counted
} stats_request;

typedef struct stats_attained {
    uint64_t n_offered, n_met;
    uint64_t n_refused, n_failed, n_unfinished;
    uint64_t n_late_first, n_slow; // of the done ones: missed TTFT, missed TPOT; maybe both
    uint64_t n_output_met;         // tokens of those that met both
} stats_attained;

/* TTFT <= its target, and TPOT = (last - first) / (n_output - 1) <= its target; one token or none
 * has no TPOT. */
bool stats_meets(const stats_request *r);
stats_attained stats_attain(const stats_request *requests, size_t n);
double stats_attainment(const stats_attained *a); // [0, 1]; NAN when nothing was offered
/* Requests and output tokens a second that met both; seconds > 0 is the counted time. */
double stats_goodput(const stats_attained *a, double seconds);
double stats_goodput_tokens(const stats_attained *a, double seconds);

/* The largest rate up to which attainment never falls below `level`, by straight lines between the
 * points (rates ascending, n > 0).  0 when the first is below already; the last rate when none is.
 */
double stats_rate_at(const double *rates, const double *attainments, size_t n, double level);

/* Nearest rank: the value that a share q in (0, 1] does not exceed.  `sorted` ascending, n > 0. */
uint64_t stats_quantile(const uint64_t *sorted, size_t n, double q);

/* ---- shares ---- */

enum { STATS_PRINCIPALS_MAX = 1024, STATS_WINDOWS = 3 };
extern const uint64_t stats_windows_us[STATS_WINDOWS]; // 1, 10 and 60 s

typedef struct stats_principal {
    share_policy policy;
    double percent;  // of one device; besteffort: not looked at
    double ceiling;  // of share and surplus, percent; 0: none.  fixed: not looked at
    uint32_t weight; // of the surplus; 0 gets none
    gen_class class;
} stats_principal;

/* A principal was backlogged, or had the device: [begin, end). */
typedef struct stats_span {
    uint32_t principal_idx;
    uint64_t begin_us, end_us;
    double device_us; // service only: device time used, spread evenly over the span
} stats_span;

typedef struct stats_run {
    const stats_principal *principals; // [n_principals]
    uint32_t n_principals;
    double capacity;           // percent of all devices together, > 0
    double floor_percent;      // of the surplus, for classes after the first; 0: none
    const stats_span *backlog; // [n_backlog] any order; those of one principal do not overlap
    size_t n_backlog;
    const stats_span *service; // [n_service] any order; may overlap
    size_t n_service;
    uint64_t begin_us, end_us; // windows lie inside
} stats_run;

/* What each principal is entitled to while exactly those with backlogged[i] are, in percent.
 * EINVAL when shares of the backlogged ones add up to more than the capacity. */
inferd_status stats_entitle(const stats_run *run, const bool *backlogged, double *out_percent,
                            inferd_err *err);

typedef struct stats_share_error {
    double points;             // |measured - entitled| in percent points of one device
    double measured, entitled; // percent, in that window
    uint32_t principal_idx;
    uint64_t window_end_us;
    bool is_known; // false: the run is shorter than the window
} stats_share_error;

/* The largest over all principals and windows of each length. */
inferd_status stats_share_errors(const stats_run *run, stats_share_error out[STATS_WINDOWS],
                                 inferd_err *err);

/* Device time that each principal used in the run. */
void stats_used_us(const stats_run *run, double *out_us);

/* Device time that each was entitled to in the run. */
inferd_status stats_entitled_us(const stats_run *run, double *out_us, inferd_err *err);

/* (sum x)^2 / (n sum x^2): 1 when all are alike, 1/n when one has everything; NAN when all are 0
 * or n is 0.  For shares: x = used / weight. */
double stats_jain(const double *x, size_t n);

typedef struct stats_gap {
    double gap_us; // per unit of weight
    uint32_t a, b;
    uint64_t begin_us, end_us; // both backlogged all the time; the gap is of a part of this
    bool is_known;             // false: no two with a weight were ever backlogged together
} stats_gap;

/* The largest difference of weighted service, |dS_a / w_a - dS_b / w_b|, over all pairs and all
 * stretches of time in which both were backlogged throughout. */
inferd_status stats_service_gap(const stats_run *run, stats_gap *out, inferd_err *err);

#endif
