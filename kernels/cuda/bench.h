/* bench.h - kernels that compute nothing: the peak rates of a device, for bench/bench_cuda.c.
 *
 *     read    bytes from memory, each once, 16 at a time, nothing kept        the ceiling of a gemv
 *     copy    the same, written to other memory
 *     empty   a kernel that ends at once: the cost of a boundary between two
 *
 * Sizes are multiples of 16 bytes.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_BENCH_H
#define INFERD_CUDA_BENCH_H

#include "cuda/module.h"

enum {
    BENCH_THREADS = 512,
    BENCH_LOADS = 8,                            // of 16 bytes, in flight in each thread
    BENCH_BLOCKS_PER_SM = 2,                    // 128 KiB in flight in each multiprocessor
    BENCH_SINK_BYTES = 4096 * BENCH_THREADS * 4 // more blocks than any device is given
};

typedef struct bench_params {
    const void *from;
    void *to;
    uint64_t n_words; // of 16 bytes
    uint32_t *sink;   // [blocks, BENCH_THREADS] results of `read`
} bench_params;

/* Looks up and loads the kernels; INFERD_EUNSUPPORTED: the module was built without them. */
inferd_status bench_init(const cuda_module *m, inferd_err *err);
void launch_bench_read(launcher *l, const void *from, size_t n_bytes, void *sink);
void launch_bench_copy(launcher *l, void *to, const void *from, size_t n_bytes);
void launch_bench_empty(launcher *l);

#endif
