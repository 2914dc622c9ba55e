/* load_progress.c - what a load tells while it runs; see progress.h. */
#include "load_state.h"

/* All requests that the run will start; 0: it is not known. */
static uint64_t requests_total(const bench_spec *spec) {
    uint64_t n = 0;
    for (size_t i = 0; i < spec->n_classes; i++) {
        const bench_class *c = &spec->classes[i];
        if (c->n_requests == 0 || c->turns.hi > 1) return 0;
        n += c->n_requests;
    }
    return n;
}

/* Output tokens since the last call, a second. */
static double tokens_per_s(load *l, uint64_t now_ns) {
    const group *all = l->figures->groups[0];
    double per_chunk = all->n_chunks > 0 ? (double)all->n_output / (double)all->n_chunks : 1;
    uint64_t n_chunks = 0;
    for (uint32_t i = 0; i < all->times.n; i++) n_chunks += all->times.bins[i].n_chunks;
    double over_s = (double)since_ns(l->told_ns, now_ns) / 1e9;
    double rate = over_s > 0 ? (double)(n_chunks - l->told_chunks) * per_chunk / over_s : 0;
    l->told_chunks = n_chunks;
    l->told_ns = now_ns;
    return rate;
}

void load_on_progress(uv_timer_t *timer) {
    load *l = timer->data;
    const group *all = l->figures->groups[0];
    char text[PROGRESS_BYTES];
    uint64_t now_ns = bench_now_ns();
    if (l->is_warming) {
        snprintf(text, sizeof text, "warm-up: %u of %u started", l->n_warm_started,
                 l->spec->n_warmup);
        progress_print(&l->shown, text);
        return;
    }
    if (l->told_ns == 0) l->told_ns = l->start_ns;
    const progress_facts f = {
        .elapsed_s = (double)since_ns(l->start_ns, now_ns) / 1e9,
        .total_s = l->spec->duration_s,
        .n_ended = l->n_ended,
        .n_total = requests_total(l->spec),
        .n_ok = all->n_ok,
        .n_failed = all->n_failed,
        .n_in_flight = l->n_active,
        .n_waiting = l->n_backlog,
        .tokens_per_s = tokens_per_s(l, now_ns),
        .ttft_ms = all->ttft.n > 0 ? (double)hist_at(&all->ttft, .5) / 1e6 : -1,
    };
    progress_text(&f, text);
    progress_print(&l->shown, text);
}
