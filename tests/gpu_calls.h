/* gpu_calls.h - a test program that INFERD_CUDA_MODULE sent to a device says how much it did there.
 *
 * At its end it prints {"bench":"gpu_calls","n":N}: kernels, replays and products that ran.
 * scripts/gpu-check takes a test that passed without such a line, or with 0, for one that did not
 * run.
 *
 * Thread: one. */
#ifndef INFERD_GPU_CALLS_H
#define INFERD_GPU_CALLS_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t gpu_calls_n;

static inline bool gpu_calls_wanted(void) {
    const char *path = getenv("INFERD_CUDA_MODULE");
    return path != NULL && path[0] != 0;
}

static inline void gpu_calls_tell(void) {
    printf("{\"bench\":\"gpu_calls\",\"n\":%" PRIu64 "}\n", gpu_calls_n);
}

static inline void gpu_calls_add(uint64_t n) {
    static bool asked;
    gpu_calls_n += n;
    if (!asked && gpu_calls_wanted()) atexit(gpu_calls_tell);
    asked = true;
}

#endif
