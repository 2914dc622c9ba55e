/* timeline.c - see timeline.h. */
#include "timeline.h"

#include <string.h>

static void halve(timeline *t) {
    for (uint32_t i = 0; i < TIMELINE_BINS / 2; i++) {
        const timeline_bin *a = &t->bins[2 * i], *b = a + 1;
        t->bins[i] = (timeline_bin){a->n_chunks + b->n_chunks, a->n_started + b->n_started,
                                    a->n_ended + b->n_ended, u64_max(a->gap_max_ns, b->gap_max_ns)};
    }
    memset(t->bins + TIMELINE_BINS / 2, 0, sizeof t->bins / 2);
    t->n = (t->n + 1) / 2;
    t->bin_ns *= 2;
}

timeline_bin *timeline_at(timeline *t, uint64_t at_ns) {
    if (t->bin_ns == 0) t->bin_ns = TIMELINE_BIN_NS;
    while (at_ns / t->bin_ns >= TIMELINE_BINS) halve(t);
    uint32_t i = (uint32_t)(at_ns / t->bin_ns);
    t->n = u32_max(t->n, i + 1);
    return &t->bins[i];
}

void timeline_widen(timeline *t, uint32_t n_max, uint64_t bin_ns) {
    if (t->bin_ns == 0) return;
    while (t->n > n_max || t->bin_ns < bin_ns) halve(t);
}
