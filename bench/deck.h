/* deck.h - hands out the entries of data sets: each once before any comes again.
 *
 *     seed 7:  the order of 8 entries         3 6 1 4 7 2 5 0
 *     two classes with this data set          a b a b a b a b
 *
 * The seed of a command gives each data set one order.  Each class with the data set has a part of
 * it, so its requests do not depend on when other classes send theirs.  A class that has used its
 * part takes entries from the end of the part of which most is left.  Once all entries are taken,
 * the next round has the same order, and its cards say so: a prefix cache may have these prompts.
 *
 * Warm-up requests take from the same decks, and a search goes on with them from probe to probe.
 *
 * Always true: n_left of a first class is the sum of end - next of all classes with its data set.
 * Thread: the load's. */
#ifndef BENCH_DECK_H
#define BENCH_DECK_H

#include "spec.h"

/* An entry for one request, or for one turn of a conversation of a text data set. */
typedef struct deck_card {
    uint32_t entry; // index into dataset.entries
    bool is_again;  // all entries were taken before
} deck_card;

/* Entry `rank + i * n_parts` of the order is card i of the part. */
typedef struct deck_part {
    uint32_t first_class; // with the same data set
    uint32_t rank;        // among the classes with it
    size_t next, end;     // cards [next, end) are left

    uint32_t n_parts, n_rounds; // of the data set: only of its first class
    size_t n_left;
} deck_part;

typedef struct decks {
    const bench_spec *spec; // borrowed
    uint64_t seed;
    deck_part parts[CLASSES_MAX]; // [spec->n_classes]
} decks;

/* `spec` is finished.  The seed is that of now: a search changes it later. */
void decks_init(decks *d, const bench_spec *spec);

/* {0, false} for a class without a data set. */
deck_card decks_take(decks *d, uint32_t class_idx);

#endif
