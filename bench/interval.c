/* interval.c - see interval.h. */
#include "interval.h"

#include <math.h>

static const double NORMAL = 1.959964; // 97.5 % of a normal distribution lie below

boot_ratio interval_of_parts(uint64_t k_a, uint64_t n_a, uint64_t k_b, uint64_t n_b) {
    double a = (double)k_a, b = (double)k_b, all_a = (double)n_a, all_b = (double)n_b;
    if (k_a == 0 && k_b == 0) return (boot_ratio){1, 0, INFINITY};
    double center = log((b + .5) / (all_b + .5)) - log((a + .5) / (all_a + .5));
    double half = NORMAL * sqrt(1 / (a + .5) - 1 / (all_a + .5) + 1 / (b + .5) - 1 / (all_b + .5));
    return (boot_ratio){.ratio = k_a == 0 ? INFINITY : b / all_b / (a / all_a),
                        .lo = k_b == 0 ? 0 : exp(center - half),
                        .hi = k_a == 0 ? INFINITY : exp(center + half)};
}
