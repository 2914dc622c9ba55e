// bench.cu - kernels that compute nothing: see bench.h.
//
// read and copy: blocks take pieces of BENCH_THREADS * BENCH_LOADS words of 16 bytes round-robin;
// a thread requests its BENCH_LOADS words, one block of threads apart from each other, before it
// uses the first.  `read` reduces its words to one word per thread in `sink`, so that no load can
// be optimised away.
//
// Bytes moved: n_words * 16 in; copy: as many out.  grid: at most BENCH_BLOCKS_PER_SM per
// multiprocessor.
#include "gpu.cuh"

extern "C" {
#include "cuda/bench.h"
}

namespace {

constexpr uint64_t PIECE = (uint64_t)BENCH_THREADS * BENCH_LOADS;

GPU_FN uint32_t mix(word4 v) {
    return v.x ^ v.y ^ v.z ^ v.w;
}

} // namespace

GPU_KERNEL(bench_read, bench_params, BENCH_THREADS, 2) {
    const word4 *from = (const word4 *)p.from;
    uint32_t sum = 0;
    wait_predecessor(); // another copy of this kernel may still write its sums
    release_dependents();
    for (uint64_t at = block_x() * PIECE; at < p.n_words; at += grid_x() * PIECE) {
        uint64_t i = at + thread_idx();
        if (at + PIECE <= p.n_words) {
            word4 v[BENCH_LOADS];
#pragma unroll
            for (uint32_t k = 0; k < BENCH_LOADS; k++)
                v[k] = load_stream16(from + i + k * BENCH_THREADS);
#pragma unroll
            for (uint32_t k = 0; k < BENCH_LOADS; k++) sum ^= mix(v[k]);
        } else {
            for (; i < p.n_words; i += BENCH_THREADS) sum ^= mix(load_stream16(from + i));
        }
    }
    p.sink[block_x() * BENCH_THREADS + thread_idx()] = sum;
}

GPU_KERNEL(bench_copy, bench_params, BENCH_THREADS, 2) {
    const word4 *from = (const word4 *)p.from;
    word4 *to = (word4 *)p.to;
    wait_predecessor();
    release_dependents();
    for (uint64_t at = block_x() * PIECE; at < p.n_words; at += grid_x() * PIECE) {
        uint64_t i = at + thread_idx();
        if (at + PIECE <= p.n_words) {
            word4 v[BENCH_LOADS];
#pragma unroll
            for (uint32_t k = 0; k < BENCH_LOADS; k++)
                v[k] = load_stream16(from + i + k * BENCH_THREADS);
#pragma unroll
            for (uint32_t k = 0; k < BENCH_LOADS; k++) store16(to + i + k * BENCH_THREADS, v[k]);
        } else {
            for (; i < p.n_words; i += BENCH_THREADS) store16(to + i, load_stream16(from + i));
        }
    }
}

GPU_KERNEL(bench_empty, bench_params, 32, 1) {
    wait_predecessor();
    release_dependents();
}

// clang-format off
GPU_TABLE(bench) {
    GPU_ENTRY(bench_read, bench_params, BENCH_THREADS, 80),
    GPU_ENTRY(bench_copy, bench_params, BENCH_THREADS, 80),
    GPU_ENTRY(bench_empty, bench_params, 32, 80),
} GPU_TABLE_END(bench)
    // clang-format on
