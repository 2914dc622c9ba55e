/* nearest.h - finds the known word that a misspelt one probably means.
 *
 *   nearest n = {0};
 *   for each known word: nearest_try(&n, word, known);
 *   nearest_word(&n)      NULL: none is near
 * Thread: any; values. */
#ifndef INFERD_NEAREST_H
#define INFERD_NEAREST_H

#include <stddef.h>

enum { NEAREST_BYTES_MAX = 40 }; // longer words match none

typedef struct nearest {
    const char *best; // borrowed
    size_t distance;  // letters to insert, remove or replace
} nearest;

void nearest_try(nearest *n, const char *word, const char *known);
/* The best, if its distance is at most a quarter of its letters plus one, and not all of them. */
const char *nearest_word(const nearest *n);

#endif
