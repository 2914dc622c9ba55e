/* trail.c - see trail.h. */
#include "trail.h"

bool trail_init(trail *t) {
    *t = (trail){.rows = malloc(TRAIL_MAX * sizeof *t->rows), .limit = UINT64_MAX};
    return t->rows != NULL;
}

void trail_deinit(trail *t) {
    free(t->rows);
    *t = (trail){0};
}

static void drop_half(trail *t) {
    size_t n = 0;
    t->limit /= 2;
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].hash <= t->limit) t->rows[n++] = t->rows[i];
    t->n = n;
}

static double ms_after(uint64_t from_ns, uint64_t at_ns, bool exists) {
    return exists && at_ns != 0 ? (double)since_ns(from_ns, at_ns) / 1e6 : -1;
}

void trail_add(trail *t, const result *r, slo_outcome slo, uint64_t clock_ns) {
    const request_plan *p = &r->plan;
    rng random = rng_make(p->seed ^ 0x7261696c, p->class_idx, p->idx * TURNS_MAX + p->turn);
    uint64_t tpot_ns = 0, hash = rng_next(&random);
    t->n_seen++;
    while (hash <= t->limit && t->n == TRAIL_MAX) drop_half(t);
    if (hash > t->limit) return;
    bool has_tpot = r->outcome == OUTCOME_OK && result_tpot_ns(r, &tpot_ns);
    t->rows[t->n++] = (trail_row){
        .hash = hash,
        .idx = p->idx,
        .class_idx = p->class_idx,
        .model = p->model,
        .key = p->key,
        .turn = p->turn,
        .outcome = r->outcome,
        .slo = slo,
        .sched_s = ((double)r->sched_ns - (double)clock_ns) / 1e9,
        .sent_ms = ms_after(r->sched_ns, r->sent_ns, true),
        .first_ms = ms_after(r->sched_ns, r->first_ns, true),
        .last_ms = ms_after(r->sched_ns, r->last_ns, true),
        .end_ms = ms_after(r->sched_ns, r->end_ns, true),
        .tpot_ms = has_tpot ? (double)tpot_ns / 1e6 : -1,
        .longest_ms = r->n_chunks > 1 ? (double)r->gap_max_ns / 1e6 : -1,
        .n_prompt = r->has_usage && r->n_prompt > 0 ? (uint64_t)r->n_prompt : plan_prompt_tokens(p),
        .n_output = result_n_output(r),
        .gaps = r->gaps,
    };
}

static int by_start(const void *a, const void *b) {
    const trail_row *x = a, *y = b;
    if (x->sched_s != y->sched_s) return x->sched_s < y->sched_s ? -1 : 1;
    return x->hash < y->hash ? -1 : x->hash > y->hash;
}

void trail_sort(trail *t) {
    if (t->n > 0) qsort(t->rows, t->n, sizeof *t->rows, by_start);
}
