/* dues.h - a binary heap of the times at which a class starts a request.
 *
 * Invariant: items[i].at_ns <= items[2i + 1].at_ns, items[2i + 2].at_ns.
 * Thread: the load's. */
#ifndef BENCH_DUES_H
#define BENCH_DUES_H

#include "inferd/base.h"

typedef struct due {
    uint64_t at_ns;
    uint32_t class_idx;
} due;

typedef struct dues {
    due *items; // [capacity]; owned
    size_t n, capacity;
} dues;

static inline bool dues_init(dues *d, size_t capacity) {
    *d = (dues){.items = calloc(capacity, sizeof(due)), .capacity = capacity};
    return d->items != NULL;
}

static inline void dues_deinit(dues *d) {
    free(d->items);
    *d = (dues){0};
}

/* One per closed-loop stream and one per open-loop class is the capacity: there is always room. */
static inline void dues_push(dues *d, due item) {
    INFERD_CHECK(d->n < d->capacity);
    size_t i = d->n++;
    while (i > 0 && d->items[(i - 1) / 2].at_ns > item.at_ns) {
        d->items[i] = d->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    d->items[i] = item;
}

static inline due dues_pop(dues *d) {
    due top = d->items[0], moved = d->items[--d->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= d->n) break;
        if (child + 1 < d->n && d->items[child + 1].at_ns < d->items[child].at_ns) child++;
        if (moved.at_ns <= d->items[child].at_ns) break;
        d->items[i] = d->items[child];
        i = child;
    }
    d->items[i] = moved;
    return top;
}

#endif
