/* rng.h - random numbers that are the same on every machine for the same seed.
 *
 * splitmix64: one add and three mixes per number, and every 64-bit state is valid, so a new
 * generator can be made from (seed, class, request) without a warm-up.  All values of a request are
 * drawn from its own generator, so its content does not depend on timing.
 *
 * Thread: the owner's. */
#ifndef BENCH_RNG_H
#define BENCH_RNG_H

#include <math.h>
#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r) {
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A separate generator for (seed, a, b). */
static inline rng rng_make(uint64_t seed, uint64_t a, uint64_t b) {
    rng r = {seed};
    r.state = rng_next(&r) ^ a;
    r.state = rng_next(&r) ^ b;
    r.state = rng_next(&r);
    return r;
}

/* [0, n); n > 0.  The bias of the multiply is below n / 2^64. */
static inline uint64_t rng_below(rng *r, uint64_t n) {
    return (uint64_t)(((unsigned __int128)rng_next(r) * n) >> 64);
}

/* (0, 1], so that its logarithm is finite. */
static inline double rng_unit(rng *r) {
    return (double)((rng_next(r) >> 11) + 1) * 0x1p-53;
}

/* Exponential with mean 1. */
static inline double rng_exp(rng *r) {
    return -log(rng_unit(r));
}

/* Normal with mean 0 and deviation 1 (polar method; the second value is not kept). */
static inline double rng_normal(rng *r) {
    for (;;) {
        double u = 2 * rng_unit(r) - 1, v = 2 * rng_unit(r) - 1;
        double s = u * u + v * v;
        if (s > 0 && s < 1) return u * sqrt(-2 * log(s) / s);
    }
}

/* Gamma with shape k > 0 and scale 1: Marsaglia and Tsang's rejection, and for k < 1 the identity
 * Gamma(k) = Gamma(k + 1) * U^(1/k). */
static inline double rng_gamma(rng *r, double k) {
    double boost = 1;
    if (k < 1) {
        boost = pow(rng_unit(r), 1 / k);
        k += 1;
    }
    double d = k - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = rng_normal(r), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(rng_unit(r)) < 0.5 * x * x + d - d * v + d * log(v)) return boost * d * v;
    }
}

#endif
