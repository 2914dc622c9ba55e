/* nearest.c - see nearest.h. */
#include "nearest.h"

#include <string.h>

#include "inferd/base.h"

/* The number of edits that turn one word into the other; NEAREST_BYTES_MAX for longer words. */
static size_t distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b), row[NEAREST_BYTES_MAX + 1];
    if (n > NEAREST_BYTES_MAX || m > NEAREST_BYTES_MAX) return NEAREST_BYTES_MAX;
    for (size_t k = 0; k <= m; k++) row[k] = k;
    for (size_t i = 1; i <= n; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t k = 1; k <= m; k++) {
            size_t keep = corner + (a[i - 1] != b[k - 1]);
            corner = row[k];
            row[k] = size_min(keep, size_min(row[k], row[k - 1]) + 1);
        }
    }
    return row[m];
}

void nearest_try(nearest *n, const char *word, const char *known) {
    size_t d = distance(word, known);
    if (n->best == NULL || d < n->distance) *n = (nearest){known, d};
}

const char *nearest_word(const nearest *n) {
    if (n->best == NULL) return NULL;
    size_t length = strlen(n->best);
    return n->distance <= 1 + length / 4 && n->distance < length ? n->best : NULL;
}
