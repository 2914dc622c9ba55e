/* bootstrap.c - see bootstrap.h. */
#include "bootstrap.h"

#include <math.h>
#include <string.h>

static const double QUANTILES[BOOT_STATS] = {0, .5, .9, .99};
static const double TAIL = .025; // on each side of the interval

typedef struct placed {
    double value;
    size_t at; // in the order of the files
} placed;

static int by_value(const void *a, const void *b) {
    const placed *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

bool boot_pool_init(boot_pool *p, const double *values, const size_t *from, size_t n_files) {
    size_t n = from[n_files];
    *p = (boot_pool){.n = n, .block = 1};
    if (n == 0 || n > UINT32_MAX) return false;
    placed *all = malloc(n * sizeof *all);
    p->sorted = malloc(n * sizeof *p->sorted);
    p->ranks = malloc(n * sizeof *p->ranks);
    p->counts = calloc(n, sizeof *p->counts);
    bool good = all != NULL && p->sorted != NULL && p->ranks != NULL && p->counts != NULL;
    for (size_t i = 0; good && i < n; i++) all[i] = (placed){values[i], i};
    if (good) qsort(all, n, sizeof *all, by_value);
    for (size_t i = 0; good && i < n; i++) {
        p->sorted[i] = all[i].value;
        p->ranks[all[i].at] = (uint32_t)i;
    }
    for (size_t f = 0; f < n_files; f++)
        if (from[f + 1] > from[f]) p->from[++p->n_files] = from[f + 1];
    free(all);
    return good;
}

void boot_pool_deinit(boot_pool *p) {
    free(p->sorted);
    free(p->ranks);
    free(p->counts);
    *p = (boot_pool){0};
}

/* The statistics of `n` values, of which value i occurs counts[i] times. */
static void tell(const boot_pool *p, size_t n, double out[BOOT_STATS]) {
    double sum = 0;
    size_t seen = 0, k = BOOT_P50;
    for (size_t i = 0; i < p->n; i++) {
        seen += p->counts[i];
        sum += p->counts[i] * p->sorted[i];
        while (k < BOOT_STATS && seen >= (size_t)ceil(QUANTILES[k] * (double)n))
            out[k++] = p->sorted[i];
    }
    out[BOOT_MEAN] = sum / (double)n;
}

void boot_tell_file(const boot_pool *p, size_t file, double out[BOOT_STATS]) {
    memset(p->counts, 0, p->n * sizeof *p->counts);
    for (size_t i = p->from[file]; i < p->from[file + 1]; i++) p->counts[p->ranks[i]] = 1;
    tell(p, p->from[file + 1] - p->from[file], out);
}

void boot_tell(const boot_pool *p, double out[BOOT_STATS]) {
    for (size_t i = 0; i < p->n; i++) p->counts[i] = 1;
    tell(p, p->n, out);
}

/* As many values as there are, in blocks; the last value is followed by the first one. */
static void draw_values(const boot_pool *p, size_t first, size_t n, rng *random) {
    size_t block = p->block > 0 ? p->block : (size_t)(cbrt((double)n) + 0.5);
    for (size_t drawn = 0; drawn < n;) {
        size_t at = (size_t)rng_below(random, n);
        for (size_t i = 0; i < block && drawn < n; i++, drawn++)
            p->counts[p->ranks[first + (at + i) % n]]++;
    }
}

static void draw(const boot_pool *p, rng *random, double out[BOOT_STATS]) {
    size_t n = 0;
    memset(p->counts, 0, p->n * sizeof *p->counts);
    for (size_t i = 0; i < p->n_files; i++) {
        size_t first = p->from[i], n_values = p->from[i + 1] - first;
        draw_values(p, first, n_values, random);
        n += n_values;
    }
    tell(p, n, out);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double ratio_of(double a, double b) {
    return a == 0 && b == 0 ? 1 : b / a;
}

bool boot_ratios(boot_pool *a, boot_pool *b, uint64_t seed, boot_ratio out[BOOT_STATS]) {
    double(*drawn)[BOOT_ROUNDS] = malloc(BOOT_STATS * sizeof *drawn);
    if (drawn == NULL) return false;
    rng random = rng_make(seed, 0x626f6f74, 0);
    double of_a[BOOT_STATS], of_b[BOOT_STATS];
    for (size_t r = 0; r < BOOT_ROUNDS; r++) {
        draw(a, &random, of_a);
        draw(b, &random, of_b);
        for (size_t k = 0; k < BOOT_STATS; k++) drawn[k][r] = ratio_of(of_a[k], of_b[k]);
    }
    boot_tell(a, of_a);
    boot_tell(b, of_b);
    size_t lo = (size_t)(TAIL * BOOT_ROUNDS);
    for (size_t k = 0; k < BOOT_STATS; k++) {
        qsort(drawn[k], BOOT_ROUNDS, sizeof drawn[k][0], ascending);
        out[k] =
            (boot_ratio){ratio_of(of_a[k], of_b[k]), drawn[k][lo], drawn[k][BOOT_ROUNDS - 1 - lo]};
    }
    free(drawn);
    return true;
}
