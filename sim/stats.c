/* stats.c - see stats.h. */
#include "stats.h"

#include <math.h>

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
