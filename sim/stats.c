/* stats.c - see stats.h.
 *
 * Integrals over time are *lines*: points (t, y) joined by straight segments, one line per flow,
 * made in one pass over the times at which a slope changes.  Memory: one point per change. */
#include "stats.h"

#include <math.h>
#include <string.h>

#include "report.h"

const uint64_t stats_windows_us[STATS_WINDOWS] = {1000000, 10000000, 60000000};

/* ---- attainment ---- */

static bool first_in_time(const stats_request *r) {
    return r->slo_ttft_us == 0 || r->first_us - r->arrival_us <= r->slo_ttft_us;
}

static bool fast_enough(const stats_request *r) {
    if (r->slo_tpot_us == 0 || r->n_output < 2) return true;
    return r->last_us - r->first_us <= (uint64_t)r->slo_tpot_us * (r->n_output - 1);
}

bool stats_meets(const stats_request *r) {
    return r->end == STATS_DONE && first_in_time(r) && fast_enough(r);
}

void stats_count(stats_attained *a, const stats_request *r) {
    a->n_offered++;
    a->n_refused += r->end == STATS_REFUSED;
    a->n_failed += r->end == STATS_FAILED;
    a->n_unfinished += r->end == STATS_UNFINISHED;
    if (r->end != STATS_DONE) return;
    INFERD_CHECK(r->arrival_us <= r->first_us && r->first_us <= r->last_us);
    a->n_done++;
    a->n_output += r->n_output;
    a->n_late_first += !first_in_time(r);
    a->n_slow += !fast_enough(r);
    if (!stats_meets(r)) return;
    a->n_met++;
    a->n_output_met += r->n_output;
}

double stats_attainment(const stats_attained *a) {
    return a->n_offered == 0 ? (double)NAN : (double)a->n_met / (double)a->n_offered;
}

uint64_t stats_quantile(const uint64_t *sorted, size_t n, double q) {
    INFERD_CHECK(n > 0 && q > 0 && q <= 1);
    /* 0.99 * 100 is a little more than 99 as a double: an exact rank must not become the next. */
    double rank = ceil(q * (double)n - 1e-9);
    return sorted[rank < 1 ? 0 : (size_t)rank - 1];
}

/* ---- entitlement ---- */

static bool takes_surplus(const stats_flow *p) {
    return p->policy != SHARE_FIXED && p->weight > 0;
}

/* Divides `amount` by weight among the backlogged takers of classes [from, to); returns the rest.
 */
static double pour(const stats_run *run, const bool *backlogged, uint32_t from, uint32_t to,
                   double amount, double *percent) {
    const double nothing = 1e-9; // percent: rounding error of the sums
    double weights = 0;
    if (amount <= nothing) return fmax(amount, 0);
    for (int adds = 0; adds < 2; adds++)
        for (uint32_t i = 0; i < run->n_flows; i++) {
            const stats_flow *p = &run->flows[i];
            if (!backlogged[i] || !takes_surplus(p) || p->prio < from || p->prio >= to) continue;
            if (adds == 1) percent[i] += amount / weights * p->weight;
            if (adds == 0) weights += p->weight;
        }
    return weights > 0 ? 0 : amount;
}

inferd_status stats_entitle(const stats_run *run, const bool *backlogged, double *out_percent,
                            inferd_err *err) {
    double left = run->capacity;
    uint32_t first = GEN_CLASSES; // the most urgent class that takes surplus
    for (uint32_t i = 0; i < run->n_flows; i++) {
        const stats_flow *p = &run->flows[i];
        out_percent[i] = 0;
        if (!backlogged[i]) continue;
        if (p->policy != SHARE_BESTEFFORT) out_percent[i] = p->percent;
        left -= out_percent[i];
        if (takes_surplus(p)) first = u32_min(first, p->prio);
    }
    if (left < -1e-6)
        return inferd_fail(err, INFERD_EINVAL, "shares add up to %g percent, the capacity is %g",
                           run->capacity - left, run->capacity);
    double reserved = left * run->floor_percent / 100;
    double unplaced = pour(run, backlogged, first + 1, GEN_CLASSES, reserved, out_percent);
    left += unplaced - reserved;
    for (uint32_t prio = first; prio < GEN_CLASSES; prio++)
        left = pour(run, backlogged, prio, prio + 1, left, out_percent);
    return INFERD_OK;
}

/* ---- lines ---- */

typedef struct point {
    double t, y; // us
} point;

typedef struct line {
    point *points; // [n] t ascending; owned; flat outside
    size_t n, capacity;
} line;

static bool line_add(line *l, double t, double y) {
    if (l->n > 0 && l->points[l->n - 1].t == t) {
        l->points[l->n - 1].y = y;
        return true;
    }
    point *grown = array_grow(l->points, l->n, &l->capacity, sizeof *grown);
    if (grown == NULL) return false;
    l->points = grown;
    l->points[l->n++] = (point){t, y};
    return true;
}

/* y at t; `at` remembers the position, so that calls with ascending t are cheap. */
static double line_at(const line *l, double t, size_t *at) {
    if (l->n == 0) return 0;
    if (t <= l->points[0].t) return l->points[0].y;
    while (*at + 1 < l->n && l->points[*at + 1].t <= t) (*at)++;
    const point *p = &l->points[*at];
    if (*at + 1 == l->n) return p->y;
    return p->y + (p[1].y - p->y) * (t - p->t) / (p[1].t - p->t);
}

/* A slope changes: a span begins or ends. */
typedef struct change {
    uint64_t at_us;
    uint32_t flow_idx;
    int32_t backlog; // +1, -1, 0
    double rate;     // of service, device us per us
} change;

static int by_time(const void *a, const void *b) {
    const change *x = a, *y = b;
    if (x->at_us != y->at_us) return x->at_us < y->at_us ? -1 : 1;
    if (x->flow_idx != y->flow_idx) return x->flow_idx < y->flow_idx ? -1 : 1;
    if (x->backlog != y->backlog) return x->backlog < y->backlog ? -1 : 1;
    return (x->rate > y->rate) - (x->rate < y->rate); // a total order: equal bytes, equal sums
}

static size_t changes_of(const stats_run *run, const stats_span *spans, size_t n, bool is_backlog,
                         change *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        const stats_span *s = &spans[i];
        INFERD_CHECK(s->flow_idx < run->n_flows && s->begin_us <= s->end_us);
        if (s->begin_us == s->end_us) continue;
        double rate = is_backlog ? 0 : s->device_us / (double)(s->end_us - s->begin_us);
        out[n_out++] = (change){s->begin_us, s->flow_idx, is_backlog, rate};
        out[n_out++] = (change){s->end_us, s->flow_idx, -(int32_t)is_backlog, -rate};
    }
    qsort(out, n_out, sizeof *out, by_time);
    return n_out;
}

/* Device time of each flow as lines, measured and entitled, and the arrays to make them. */
typedef struct books {
    line *measured, *entitled;    // [n] one array, owned
    change *changes;              // owned
    double *slopes, *sums, *last; // [n] one array, owned
    bool *backlogged;             // [n] owned
    uint32_t n;
} books;

static void books_destroy(books *b) {
    for (uint32_t i = 0; b->measured != NULL && i < 2 * b->n; i++) free(b->measured[i].points);
    free(b->measured);
    free(b->changes);
    free(b->slopes);
    free(b->backlogged);
}

static bool books_create(books *b, const stats_run *run) {
    size_t n_spans = size_max(run->n_backlog, run->n_service), n = run->n_flows;
    *b = (books){.n = run->n_flows,
                 .measured = calloc(2 * n, sizeof *b->measured),
                 .changes = calloc(2 * n_spans + 1, sizeof *b->changes),
                 .slopes = calloc(3 * n, sizeof *b->slopes),
                 .backlogged = calloc(n, sizeof *b->backlogged)};
    if (b->measured == NULL || b->changes == NULL || b->slopes == NULL || b->backlogged == NULL)
        return false;
    b->entitled = b->measured + n;
    b->sums = b->slopes + n;
    b->last = b->sums + n;
    return true;
}

static bool add_service(books *b, const stats_run *run) {
    size_t n = changes_of(run, run->service, run->n_service, false, b->changes);
    for (size_t i = 0; i < n; i++) {
        uint32_t p = b->changes[i].flow_idx;
        double t = (double)b->changes[i].at_us;
        b->sums[p] += b->slopes[p] * (t - b->last[p]);
        b->last[p] = t;
        b->slopes[p] += b->changes[i].rate;
        if (fabs(b->slopes[p]) < 1e-12) b->slopes[p] = 0; // rounding error of +r - r
        if (!line_add(&b->measured[p], t, b->sums[p])) return false;
    }
    memset(b->slopes, 0, 3 * b->n * sizeof *b->slopes);
    return true;
}

static inferd_status add_entitled(books *b, const stats_run *run, inferd_err *err) {
    size_t n = changes_of(run, run->backlog, run->n_backlog, true, b->changes);
    uint64_t last_us = 0;
    for (size_t i = 0; i < n;) {
        uint64_t at_us = b->changes[i].at_us;
        for (uint32_t p = 0; p < b->n; p++) // slopes are percent here
            b->sums[p] += b->slopes[p] / 100 * (double)(at_us - last_us);
        last_us = at_us;
        /* Ends sort before begins, so a span may begin where the last one ended. */
        for (; i < n && b->changes[i].at_us == at_us; i++) {
            bool begins = b->changes[i].backlog > 0;
            uint32_t p = b->changes[i].flow_idx;
            if (b->backlogged[p] == begins)
                return inferd_fail(err, INFERD_EINVAL,
                                   "backlog of flow %u overlaps itself at %llu us", p,
                                   (unsigned long long)at_us);
            b->backlogged[p] = begins;
        }
        memcpy(b->last, b->slopes, b->n * sizeof *b->last);
        inferd_status status = stats_entitle(run, b->backlogged, b->slopes, err);
        if (status != INFERD_OK) return status;
        for (uint32_t p = 0; p < b->n; p++)
            if (b->slopes[p] != b->last[p] && !line_add(&b->entitled[p], (double)at_us, b->sums[p]))
                return inferd_fail(err, INFERD_ENOMEM, "no memory for the entitled time");
    }
    return INFERD_OK;
}

static inferd_status check_run(const stats_run *run, inferd_err *err) {
    if (run->n_flows == 0 || run->n_flows > STATS_FLOWS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%u flows, expected 1 to %d", run->n_flows,
                           STATS_FLOWS_MAX);
    if (!(run->capacity > 0))
        return inferd_fail(err, INFERD_EINVAL, "capacity is %g percent, expected more than 0",
                           run->capacity);
    if (!(run->floor_percent >= 0 && run->floor_percent <= 100))
        return inferd_fail(err, INFERD_EINVAL, "floor_percent is %g, expected 0 to 100",
                           run->floor_percent);
    return INFERD_OK;
}

/* ---- share error ---- */

/* Positions in one line for the two ends of a window that only moves forward. */
typedef struct cursor {
    size_t measured_old, measured_new, entitled_old, entitled_new;
} cursor;

static void look(const line *measured, const line *entitled, cursor *at, double end_us,
                 uint64_t window_us, uint32_t flow_idx, stats_share_error *worst) {
    double w = (double)window_us;
    double m = line_at(measured, end_us, &at->measured_new) -
               line_at(measured, end_us - w, &at->measured_old);
    double e = line_at(entitled, end_us, &at->entitled_new) -
               line_at(entitled, end_us - w, &at->entitled_old);
    double points = 100 * fabs(m - e) / w;
    if (worst->is_known && points <= worst->points) return;
    *worst =
        (stats_share_error){points, 100 * m / w, 100 * e / w, flow_idx, (uint64_t)end_us, true};
}

/* The slope of the difference over a window changes only where one of its ends meets a point, so
 * the maximum is at such an end: ends at t and t + window for all points t of both lines, and at
 * the two limits.  Four ascending sequences are merged. */
static void worst_window(const line *measured, const line *entitled, const stats_run *run,
                         uint64_t window_us, uint32_t flow_idx, stats_share_error *worst) {
    if (run->end_us - run->begin_us < window_us) return;
    double first = (double)(run->begin_us + window_us), last = (double)run->end_us;
    const line *rows[4] = {measured, measured, entitled, entitled};
    const double shifts[4] = {0, (double)window_us, 0, (double)window_us};
    size_t next[4] = {0};
    cursor at = {0};
    look(measured, entitled, &at, first, window_us, flow_idx, worst);
    for (;;) {
        double end_us = INFINITY;
        int least = 0;
        for (int k = 0; k < 4; k++) {
            if (next[k] == rows[k]->n) continue;
            double t = rows[k]->points[next[k]].t + shifts[k];
            if (t < end_us) end_us = t, least = k;
        }
        if (end_us > last) break;
        next[least]++;
        if (end_us > first) look(measured, entitled, &at, end_us, window_us, flow_idx, worst);
    }
    look(measured, entitled, &at, last, window_us, flow_idx, worst);
}

static void add_used(const stats_run *run, double *out_us) {
    for (uint32_t i = 0; i < run->n_flows; i++) out_us[i] = 0;
    for (size_t i = 0; i < run->n_service; i++) {
        const stats_span *s = &run->service[i];
        uint64_t begin_us = u64_max(s->begin_us, run->begin_us);
        uint64_t end_us = u64_min(s->end_us, run->end_us);
        if (begin_us >= end_us) continue;
        out_us[s->flow_idx] +=
            s->device_us * (double)(end_us - begin_us) / (double)(s->end_us - s->begin_us);
    }
}

inferd_status stats_shares(const stats_run *run, stats_share_error errors[STATS_WINDOWS],
                           double *used_us, double *entitled_us, inferd_err *err) {
    inferd_status status = check_run(run, err);
    if (status != INFERD_OK) return status;
    books b;
    bool good = books_create(&b, run) && add_service(&b, run);
    status = good ? add_entitled(&b, run, err)
                  : inferd_fail(err, INFERD_ENOMEM, "no memory for the state of %u flows", b.n);
    memset(errors, 0, STATS_WINDOWS * sizeof *errors);
    for (uint32_t p = 0; p < b.n && status == INFERD_OK; p++) {
        for (int k = 0; k < STATS_WINDOWS; k++)
            worst_window(&b.measured[p], &b.entitled[p], run, stats_windows_us[k], p, &errors[k]);
        size_t at = 0;
        double before_us = line_at(&b.entitled[p], (double)run->begin_us, &at);
        entitled_us[p] = line_at(&b.entitled[p], (double)run->end_us, &at) - before_us;
    }
    if (status == INFERD_OK) add_used(run, used_us);
    books_destroy(&b);
    return status;
}
