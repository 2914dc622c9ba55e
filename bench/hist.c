/* hist.c - see hist.h for the layout of the buckets. */
#include "hist.h"

#include <math.h>

static size_t bucket_of(uint64_t value) {
    const uint64_t n_sub = 1u << HIST_SUB_BITS;
    if (value < n_sub) return (size_t)value;
    int top = 63 - __builtin_clzll(value);
    if (top >= HIST_TOP_BIT) return HIST_BUCKETS - 1;
    int shift = top - HIST_SUB_BITS;
    return ((size_t)(shift + 1) << HIST_SUB_BITS) + (size_t)((value >> shift) & (n_sub - 1));
}

static uint64_t middle_of(size_t bucket) {
    const uint64_t n_sub = 1u << HIST_SUB_BITS;
    if (bucket < n_sub) return bucket;
    int shift = (int)(bucket >> HIST_SUB_BITS) - 1;
    uint64_t low = (n_sub + (bucket & (n_sub - 1))) << shift;
    return low + (((uint64_t)1 << shift) >> 1);
}

void hist_add(hist *h, uint64_t value) {
    if (h->n == 0 || value < h->min) h->min = value;
    if (h->n == 0 || value > h->max) h->max = value;
    h->n++;
    h->sum += (double)value;
    h->squares += (double)value * (double)value;
    h->buckets[bucket_of(value)]++;
}

uint64_t hist_at(const hist *h, double q) {
    if (h->n == 0) return 0;
    return hist_at_rank(h, (uint64_t)ceil(q * (double)h->n));
}

uint64_t hist_at_rank(const hist *h, uint64_t rank) {
    if (h->n == 0) return 0;
    if (rank >= h->n) return h->max;
    if (rank <= 1) return h->min;
    uint64_t seen = 0;
    for (size_t i = 0; i < HIST_BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen < rank) continue;
        uint64_t value = middle_of(i);
        if (value < h->min) return h->min;
        return value > h->max ? h->max : value;
    }
    return h->max;
}

double hist_mean(const hist *h) {
    return h->n == 0 ? 0 : h->sum / (double)h->n;
}

double hist_deviation(const hist *h) {
    if (h->n == 0) return 0;
    double mean = hist_mean(h);
    return sqrt(fmax(h->squares / (double)h->n - mean * mean, 0));
}
