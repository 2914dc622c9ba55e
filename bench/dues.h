/* dues.h - a binary heap of the times at which a class starts a request.
 *
 * Invariant: items[i].at_ns <= items[2i + 1].at_ns, items[2i + 2].at_ns.
 * Thread: the load's. */
#ifndef BENCH_DUES_H
#define BENCH_DUES_H

#include "inferd/base.h"

struct talk;

typedef struct due {
    uint64_t at_ns;
    uint32_t class_idx;
    struct talk *talk; // its next turn is due; NULL: the class starts a request
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

/* There is room for one per closed-loop stream and one per open-loop class; conversations that
 * think make it grow.  False: no memory. */
static inline bool dues_push(dues *d, due item) {
    if (d->n == d->capacity) {
        due *items = realloc(d->items, 2 * d->capacity * sizeof *items);
        if (items == NULL) return false;
        d->items = items;
        d->capacity *= 2;
    }
    size_t i = d->n++;
    while (i > 0 && d->items[(i - 1) / 2].at_ns > item.at_ns) {
        d->items[i] = d->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    d->items[i] = item;
    return true;
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
