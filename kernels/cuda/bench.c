/* bench.c - launchers of the kernels that measure a device; see bench.h.
 *
 * Thread: engine. */
#include "cuda/bench.h"

static const cu_kernel *k_read, *k_copy, *k_empty; // the module lives as long as the process

static inferd_status find(const cuda_module *m, const char *name, uint32_t threads,
                          const cu_kernel **out, inferd_err *err) {
    *out = module_find(m, name);
    if (*out == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "the module (%s) has no kernel %s", m->about,
                           name);
    return module_load(m, *out, threads, 0, err);
}

inferd_status bench_init(const cuda_module *m, inferd_err *err) {
    inferd_status s = find(m, "bench_read", BENCH_THREADS, &k_read, err);
    if (s == INFERD_OK) s = find(m, "bench_copy", BENCH_THREADS, &k_copy, err);
    if (s == INFERD_OK) s = find(m, "bench_empty", 32, &k_empty, err);
    return s;
}

/* As many blocks as are resident at once, fewer for little work. */
static uint32_t blocks_for(const launcher *l, uint64_t n_words) {
    uint64_t per_block = (uint64_t)BENCH_THREADS * BENCH_LOADS;
    uint64_t wanted = (n_words + per_block - 1) / per_block;
    uint32_t most =
        u32_min(l->device->n_sms * BENCH_BLOCKS_PER_SM, BENCH_SINK_BYTES / 4 / BENCH_THREADS);
    return (uint32_t)size_min(wanted, most);
}

static void launch_stream(launcher *l, const cu_kernel *k, bench_params p, size_t n_bytes) {
    INFERD_CHECK(n_bytes % 16 == 0);
    p.n_words = n_bytes / 16;
    launch(l, k, blocks_for(l, p.n_words), 1, 1, BENCH_THREADS, 0, &p, sizeof p);
}

void launch_bench_read(launcher *l, const void *from, size_t n_bytes, void *sink) {
    launch_stream(l, k_read, (bench_params){.from = from, .sink = sink}, n_bytes);
}

void launch_bench_copy(launcher *l, void *to, const void *from, size_t n_bytes) {
    launch_stream(l, k_copy, (bench_params){.from = from, .to = to}, n_bytes);
}

void launch_bench_empty(launcher *l) {
    bench_params p = {0};
    launch(l, k_empty, 1, 1, 1, 32, 0, &p, sizeof p);
}
