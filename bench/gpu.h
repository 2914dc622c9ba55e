/* gpu.h - shared code of the benches of the CUDA backend: a device, memory, timing, and one output
 * line per case.
 *
 * Output is JSON, one object per line, flat: {"bench":"matmul","shape":"8b qkv",...,"us":12.3}. The
 * first line names the device and says whether it is emulated ("emulated").
 *
 * Timing.  The work of a case is queued `per_graph` times into one captured graph, each time with
 * another set of weights if there are several (so that nothing is in the L2 cache), and the graph
 * is replayed between two events until GPU_CASE_US of device time are used up.  The output has the
 * median, the least and the greatest of the replays, per launch of the work, and `noise`: the
 * difference between the medians of the even and the odd replays, relative to the median, an
 * estimate of the difference between two measurements of the same work.  With graphs switched off
 * the launches are queued one by one.
 *
 * A failed call ends the program with a line that names it, and status 1: after most failures no
 * later call on the device would succeed either.
 *
 * Thread: one. */
#ifndef INFERD_BENCH_GPU_H
#define INFERD_BENCH_GPU_H

#include "cuda/layout.h"
#include "cuda/module.h"
#include "cuda/parts.h"
#include "inferd/base.h"
#include "inferd/status.h"
#include "kernels/dtype.h"

enum {
    GPU_CASE_US = 20000, // device time of one case
    GPU_REPLAYS_MAX = 64,
    GPU_REPLAYS_MIN = 5,
    GPU_LAUNCHES_MAX = 256, // in one graph
    GPU_COLD_MIB = 240      // weights read one after another: several times the L2 cache
};

typedef struct gpu {
    const cuda_module *module;
    const cu_api *api;
    cu_device device;
    launcher l;
    cu_event begin, end;
    bool tiny, emulated; // tiny: the smallest sizes, two replays
    uint64_t open_us;    // from nothing to a context
    cuda_parts parts;    // without the parts named in INFERD_CUDA_OFF
} gpu;

typedef struct gpu_options {
    bool tiny, emulated;
} gpu_options;

/* Ends the program when there is no device; prints the first line. */
void gpu_open(gpu *g, const gpu_options *o);
void gpu_close(gpu *g);
/* Ends the program when the emulation found a violated rule or a leaked resource. */
void gpu_check_emulation(bool emulated);
/* True when the part is off or absent; then prints a row of `bench` that says so. */
bool gpu_leaves_out(gpu *g, cuda_part part, const char *bench);
/* Prints a row {"bench":"part",...} for each part that does not work fully; scripts/gpu-check calls
 * this degraded. */
void gpu_tell_parts(const backend_stats *stats);
/* The module: the emulation's (ends the program if it is not linked), or the backend's. */
const cuda_module *gpu_module(bool emulated);

_Noreturn void gpu_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void gpu_need(gpu *g, cu_result r, const char *what);
void gpu_need_status(inferd_status s, const inferd_err *err);
void gpu_sync(gpu *g); // ends the program if a launch or the stream failed

/* -- memory -- */
void *gpu_take(gpu *g, size_t n); // device memory
void *gpu_take_zeros(gpu *g, size_t n);
void *gpu_put(gpu *g, const void *host, size_t n);
void gpu_give(gpu *g, void *p);
uint64_t gpu_free_bytes(gpu *g);
/* n elements of normal(0, scale), the same for the same seed; float or 16-bit. */
void *gpu_normals(gpu *g, cu_type type, size_t n, float scale, uint64_t seed);
/* Device memory full of bits that are small finite numbers in any 16-bit type. */
void gpu_scribble(gpu *g, void *p, size_t n);

/* A matrix of made-up weights in the device's layout (rows_init was called). */
typedef struct gpu_matrix {
    cu_matrix m;
    void *base; // owned
} gpu_matrix;
gpu_matrix gpu_weights(gpu *g, dtype type, uint32_t rows, uint32_t cols, uint64_t seed);

/* -- time -- */
typedef struct gpu_time {
    double us, low_us, high_us, noise; // of one call of `queue`
    uint32_t per_graph, replays;
} gpu_time;
/* queue(ctx, i) launches the i-th repetition on g->l.  `sets`: number of repetitions after which
 * the same memory is used again. */
gpu_time gpu_measure(gpu *g, void (*queue)(gpu *g, void *ctx, uint32_t i), void *ctx,
                     uint32_t sets);
/* Device time of the work queued by f, once, without a graph. */
double gpu_time_once(gpu *g, void (*f)(gpu *g, void *ctx, uint32_t i), void *ctx);
double gpu_median(double *values, uint32_t n); // sorts
double gpu_now_us(void);

/* -- output -- */
void row_begin(const char *bench);
void row_text(const char *key, const char *value);
void row_number(const char *key, double value);
void row_count(const char *key, uint64_t value);
void row_bool(const char *key, bool value);
void row_time(const gpu_time *t);
void row_rate(const gpu_time *t, double n_bytes, double flop); // 0: not printed
void row_end(void);

/* -- the benches: bench_<name>.c -- */
void bench_limits(gpu *g);
void bench_sustain(gpu *g);
void bench_vmm(gpu *g);
void bench_load(gpu *g);
void bench_matmul(gpu *g);
void bench_experts(gpu *g);
void bench_attention(gpu *g);
void bench_prefill(gpu *g);
void bench_draw(gpu *g);
void bench_step(const gpu_options *o, const char *path, const char *batches);

#endif
