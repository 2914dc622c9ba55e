/* stats.c - see stats.h.
 *
 * Integrals over time are *lines*: points (t, y) joined by straight segments, one line per flow,
 * made in one pass over the times at which a slope changes.  Memory: one point per change. */
#include "stats.h"

#include <math.h>
#include <string.h>

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

stats_attained stats_attain(const stats_request *requests, size_t n) {
    stats_attained a = {0};
    for (size_t i = 0; i < n; i++) {
        const stats_request *r = &requests[i];
        if (r->is_warmup) continue;
        a.n_offered++;
        a.n_refused += r->end == STATS_REFUSED;
        a.n_failed += r->end == STATS_FAILED;
        a.n_unfinished += r->end == STATS_UNFINISHED;
        if (r->end != STATS_DONE) continue;
        INFERD_CHECK(r->arrival_us <= r->first_us && r->first_us <= r->last_us);
        a.n_late_first += !first_in_time(r);
        a.n_slow += !fast_enough(r);
        if (!stats_meets(r)) continue;
        a.n_met++;
        a.n_output_met += r->n_output;
    }
    return a;
}

double stats_attainment(const stats_attained *a) {
    return a->n_offered == 0 ? (double)NAN : (double)a->n_met / (double)a->n_offered;
}

double stats_goodput(const stats_attained *a, double seconds) {
    INFERD_CHECK(seconds > 0);
    return (double)a->n_met / seconds;
}

double stats_goodput_tokens(const stats_attained *a, double seconds) {
    INFERD_CHECK(seconds > 0);
    return (double)a->n_output_met / seconds;
}

double stats_rate_at(const double *rates, const double *attainments, size_t n, double level) {
    INFERD_CHECK(n > 0);
    for (size_t i = 0; i < n; i++) {
        if (attainments[i] >= level) continue;
        if (i == 0) return 0;
        double drop = attainments[i - 1] - attainments[i];
        return rates[i - 1] + (rates[i] - rates[i - 1]) * (attainments[i - 1] - level) / drop;
    }
    return rates[n - 1];
}

uint64_t stats_quantile(const uint64_t *sorted, size_t n, double q) {
    INFERD_CHECK(n > 0 && q > 0 && q <= 1);
    /* 0.99 * 100 is a little more than 99 as a double: an exact rank must not become the next. */
    double rank = ceil(q * (double)n - 1e-9);
    return sorted[rank < 1 ? 0 : (size_t)rank - 1];
}

/* ---- entitlement ---- */

static double ceiling_of(const stats_run *run, const stats_flow *p) {
    return p->ceiling > 0 ? fmin(p->ceiling, run->capacity) : run->capacity;
}

static bool takes_surplus(const stats_flow *p) {
    return p->policy != SHARE_FIXED && p->weight > 0;
}

/* Divides `amount` by weight among the backlogged takers of classes [from, to); returns the rest.
 * Each round either places everything or fills one taker up to its ceiling. */
static double pour(const stats_run *run, const bool *backlogged, uint32_t from, uint32_t to,
                   double amount, double *percent) {
    const double nothing = 1e-9; // percent: rounding error of the sums
    while (amount > nothing) {
        double weights = 0, level = INFINITY;
        for (uint32_t i = 0; i < run->n_flows; i++) {
            const stats_flow *p = &run->flows[i];
            double room = ceiling_of(run, p) - percent[i];
            if (!backlogged[i] || !takes_surplus(p) || p->prio < from || p->prio >= to ||
                room <= nothing)
                continue;
            weights += p->weight;
            level = fmin(level, room / p->weight);
        }
        if (weights == 0) break;
        level = fmin(level, amount / weights);
        for (uint32_t i = 0; i < run->n_flows; i++) {
            const stats_flow *p = &run->flows[i];
            if (!backlogged[i] || !takes_surplus(p) || p->prio < from || p->prio >= to ||
                ceiling_of(run, p) - percent[i] <= nothing)
                continue;
            percent[i] += level * p->weight;
        }
        amount -= level * weights;
    }
    return fmax(amount, 0);
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
    if (l->n == l->capacity) {
        size_t capacity = l->capacity == 0 ? 16 : l->capacity * 2;
        point *points = realloc(l->points, capacity * sizeof *points);
        if (points == NULL) return false;
        l->points = points;
        l->capacity = capacity;
    }
    l->points[l->n++] = (point){t, y};
    return true;
}

static void lines_destroy(line *lines, uint32_t n) {
    if (lines == NULL) return;
    for (uint32_t i = 0; i < n; i++) free(lines[i].points);
    free(lines);
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

/* One line of device time per flow from service spans. */
static bool service_lines(const change *changes, size_t n, line *lines, double *slopes,
                          double *sums, double *last, uint32_t n_flows) {
    memset(slopes, 0, n_flows * sizeof *slopes);
    memset(sums, 0, n_flows * sizeof *sums);
    memset(last, 0, n_flows * sizeof *last);
    for (size_t i = 0; i < n; i++) {
        uint32_t p = changes[i].flow_idx;
        double t = (double)changes[i].at_us;
        sums[p] += slopes[p] * (t - last[p]);
        last[p] = t;
        slopes[p] += changes[i].rate;
        if (fabs(slopes[p]) < 1e-12) slopes[p] = 0; // rounding error of +r - r
        if (!line_add(&lines[p], t, sums[p])) return false;
    }
    return true;
}

/* D = measured - entitled, as lines; or only one of the two. */
typedef struct books {
    line *measured, *entitled; // [n] owned
    uint32_t n;
} books;

static void books_destroy(books *b) {
    lines_destroy(b->measured, b->n);
    lines_destroy(b->entitled, b->n);
}

typedef struct scratch {
    change *changes;
    double *slopes, *sums, *last;
    bool *backlogged;
} scratch;

static void scratch_destroy(scratch *s) {
    free(s->changes);
    free(s->slopes);
    free(s->sums);
    free(s->last);
    free(s->backlogged);
}

static bool scratch_create(scratch *s, const stats_run *run) {
    size_t n_spans = size_max(run->n_backlog, run->n_service), n = run->n_flows + 1u;
    *s = (scratch){
        .changes = calloc(2 * n_spans + 1, sizeof *s->changes),
        .slopes = calloc(n, sizeof *s->slopes),
        .sums = calloc(n, sizeof *s->sums),
        .last = calloc(n, sizeof *s->last),
        .backlogged = calloc(n, sizeof *s->backlogged),
    };
    return s->changes != NULL && s->slopes != NULL && s->sums != NULL && s->last != NULL &&
           s->backlogged != NULL;
}

static inferd_status entitled_lines(const stats_run *run, scratch *s, line *lines,
                                    inferd_err *err) {
    size_t n = changes_of(run, run->backlog, run->n_backlog, true, s->changes);
    uint64_t last_us = 0;
    memset(s->sums, 0, run->n_flows * sizeof *s->sums);
    memset(s->slopes, 0, run->n_flows * sizeof *s->slopes); // percent
    memset(s->backlogged, 0, run->n_flows * sizeof *s->backlogged);
    for (size_t i = 0; i < n;) {
        uint64_t at_us = s->changes[i].at_us;
        for (uint32_t p = 0; p < run->n_flows; p++)
            s->sums[p] += s->slopes[p] / 100 * (double)(at_us - last_us);
        last_us = at_us;
        /* Ends sort before begins, so a span may begin where the last one ended. */
        for (; i < n && s->changes[i].at_us == at_us; i++) {
            bool begins = s->changes[i].backlog > 0;
            uint32_t p = s->changes[i].flow_idx;
            if (s->backlogged[p] == begins)
                return inferd_fail(err, INFERD_EINVAL,
                                   "backlog of flow %u overlaps itself at %llu us", p,
                                   (unsigned long long)at_us);
            s->backlogged[p] = begins;
        }
        memcpy(s->last, s->slopes, run->n_flows * sizeof *s->last);
        inferd_status status = stats_entitle(run, s->backlogged, s->slopes, err);
        if (status != INFERD_OK) return status;
        for (uint32_t p = 0; p < run->n_flows; p++)
            if (s->slopes[p] != s->last[p] && !line_add(&lines[p], (double)at_us, s->sums[p]))
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

static inferd_status books_create(books *b, const stats_run *run, bool wants_entitled,
                                  inferd_err *err) {
    *b = (books){.n = run->n_flows};
    inferd_status status = check_run(run, err);
    if (status != INFERD_OK) return status;
    scratch s = {0};
    b->measured = calloc(b->n, sizeof *b->measured);
    b->entitled = calloc(b->n, sizeof *b->entitled);
    bool good = b->measured != NULL && b->entitled != NULL && scratch_create(&s, run);
    if (good) {
        size_t n = changes_of(run, run->service, run->n_service, false, s.changes);
        good = service_lines(s.changes, n, b->measured, s.slopes, s.sums, s.last, b->n);
    }
    if (!good)
        status = inferd_fail(err, INFERD_ENOMEM, "no memory for the state of %u flows", b->n);
    else if (wants_entitled)
        status = entitled_lines(run, &s, b->entitled, err);
    scratch_destroy(&s);
    if (status != INFERD_OK) {
        books_destroy(b);
        *b = (books){0};
    }
    return status;
}

void stats_used_us(const stats_run *run, double *out_us) {
    for (uint32_t i = 0; i < run->n_flows; i++) out_us[i] = 0;
    for (size_t i = 0; i < run->n_service; i++) {
        const stats_span *s = &run->service[i];
        uint64_t begin_us = s->begin_us > run->begin_us ? s->begin_us : run->begin_us;
        uint64_t end_us = s->end_us < run->end_us ? s->end_us : run->end_us;
        if (begin_us >= end_us) continue;
        out_us[s->flow_idx] +=
            s->device_us * (double)(end_us - begin_us) / (double)(s->end_us - s->begin_us);
    }
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

inferd_status stats_share_errors(const stats_run *run, stats_share_error out[STATS_WINDOWS],
                                 inferd_err *err) {
    books b;
    memset(out, 0, STATS_WINDOWS * sizeof *out);
    inferd_status status = books_create(&b, run, true, err);
    if (status != INFERD_OK) return status;
    for (int k = 0; k < STATS_WINDOWS; k++)
        for (uint32_t p = 0; p < b.n; p++)
            worst_window(&b.measured[p], &b.entitled[p], run, stats_windows_us[k], p, &out[k]);
    books_destroy(&b);
    return INFERD_OK;
}

inferd_status stats_entitled_us(const stats_run *run, double *out_us, inferd_err *err) {
    books b;
    inferd_status status = books_create(&b, run, true, err);
    if (status != INFERD_OK) return status;
    for (uint32_t p = 0; p < b.n; p++) {
        size_t at = 0;
        double before_us = line_at(&b.entitled[p], (double)run->begin_us, &at);
        out_us[p] = line_at(&b.entitled[p], (double)run->end_us, &at) - before_us;
    }
    books_destroy(&b);
    return INFERD_OK;
}

/* ---- fairness ---- */

double stats_jain(const double *x, size_t n) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += x[i], squares += x[i] * x[i];
    return squares > 0 ? sum * sum / ((double)n * squares) : (double)NAN;
}

static int by_begin(const void *a, const void *b) {
    const stats_span *x = a, *y = b;
    if (x->flow_idx != y->flow_idx) return x->flow_idx < y->flow_idx ? -1 : 1;
    return (x->begin_us > y->begin_us) - (x->begin_us < y->begin_us);
}

/* Joins touching spans of one flow: [first, first + n) becomes fewer. */
static size_t join(stats_span *spans, size_t n) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].begin_us == spans[i].end_us) continue;
        if (n_out > 0 && spans[n_out - 1].flow_idx == spans[i].flow_idx &&
            spans[n_out - 1].end_us >= spans[i].begin_us) {
            if (spans[i].end_us > spans[n_out - 1].end_us)
                spans[n_out - 1].end_us = spans[i].end_us;
        } else {
            spans[n_out++] = spans[i];
        }
    }
    return n_out;
}

typedef struct pair {
    const line *a, *b;
    double weight_a, weight_b;
    size_t at_a, at_b;     // positions for line_at
    size_t next_a, next_b; // next points
} pair;

static double lead(pair *p, double t) {
    return line_at(p->a, t, &p->at_a) / p->weight_a - line_at(p->b, t, &p->at_b) / p->weight_b;
}

/* The range of S_a / w_a - S_b / w_b over [begin, end]: the most that one gained on the other. */
static double range_over(pair *p, double begin, double end) {
    double low = lead(p, begin), high = low;
    for (;;) {
        while (p->next_a < p->a->n && p->a->points[p->next_a].t <= begin) p->next_a++;
        while (p->next_b < p->b->n && p->b->points[p->next_b].t <= begin) p->next_b++;
        double t = end;
        if (p->next_a < p->a->n) t = fmin(t, p->a->points[p->next_a].t);
        if (p->next_b < p->b->n) t = fmin(t, p->b->points[p->next_b].t);
        double y = lead(p, t);
        low = fmin(low, y), high = fmax(high, y);
        if (t >= end) return high - low;
        begin = t;
    }
}

static void pair_gap(pair p, const stats_span *a, size_t n_a, const stats_span *b, size_t n_b,
                     stats_gap *worst) {
    for (size_t i = 0, k = 0; i < n_a && k < n_b;) {
        uint64_t begin_us = a[i].begin_us > b[k].begin_us ? a[i].begin_us : b[k].begin_us;
        uint64_t end_us = a[i].end_us < b[k].end_us ? a[i].end_us : b[k].end_us;
        if (begin_us < end_us) {
            double gap_us = range_over(&p, (double)begin_us, (double)end_us);
            if (!worst->is_known || gap_us > worst->gap_us)
                *worst = (stats_gap){gap_us, a->flow_idx, b->flow_idx, begin_us, end_us, true};
        }
        if (a[i].end_us < b[k].end_us)
            i++;
        else
            k++;
    }
}

inferd_status stats_service_gap(const stats_run *run, stats_gap *out, inferd_err *err) {
    books b;
    *out = (stats_gap){0};
    inferd_status status = books_create(&b, run, false, err);
    if (status != INFERD_OK) return status;
    stats_span *spans = malloc((run->n_backlog + 1) * sizeof *spans);
    size_t *first = calloc(run->n_flows + 1u, sizeof *first);
    if (spans == NULL || first == NULL) {
        status = inferd_fail(err, INFERD_ENOMEM, "no memory for %zu spans", run->n_backlog);
        goto done;
    }
    if (run->n_backlog > 0) memcpy(spans, run->backlog, run->n_backlog * sizeof *spans);
    for (size_t i = 0; i < run->n_backlog; i++) INFERD_CHECK(spans[i].flow_idx < run->n_flows);
    qsort(spans, run->n_backlog, sizeof *spans, by_begin);
    size_t n = join(spans, run->n_backlog), at = 0;
    for (uint32_t p = 0; p < run->n_flows; p++) {
        first[p] = at;
        while (at < n && spans[at].flow_idx == p) at++;
    }
    first[run->n_flows] = n;
    for (uint32_t i = 0; i < run->n_flows; i++)
        for (uint32_t k = i + 1; k < run->n_flows; k++) {
            if (run->flows[i].weight == 0 || run->flows[k].weight == 0) continue;
            pair p = {.a = &b.measured[i],
                      .b = &b.measured[k],
                      .weight_a = run->flows[i].weight,
                      .weight_b = run->flows[k].weight};
            pair_gap(p, spans + first[i], first[i + 1] - first[i], spans + first[k],
                     first[k + 1] - first[k], out);
        }

done:
    free(spans);
    free(first);
    books_destroy(&b);
    return status;
}
