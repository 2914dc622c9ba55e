/* bench_memory.c - the cost of mapping memory, and the speed of loading weights (see gpu.h for
 * timing).
 *
 *     vmm     create, map, allow, unmap, release per handle, for several sizes; allowing a range at
 *             once; the same while a kernel runs: does the host wait, does the kernel become
 *             slower; does a captured graph see other memory that was mapped at its addresses
 *     load    a window of the size of a model: mapped, written on the host, sent, sent again
 *             (waking); and the slowdown of reading weights on the device meanwhile */
#include <string.h>
#include <time.h>

#include "cuda/bench.h"
#include "cuda/memory.h"
#include "gpu.h"

enum { HANDLES_MAX = 2048 };

/* ---- handles ---- */

typedef struct range {
    unsigned char *p;
    size_t handle_bytes;
    uint32_t n;
    cu_handle handles[HANDLES_MAX];
} range;

static void range_open(gpu *g, range *r, size_t handle_bytes, uint32_t n) {
    r->handle_bytes = handle_bytes;
    r->n = n;
    void *p = NULL;
    gpu_need(g, g->api->vmm_reserve(handle_bytes * n, 0, &p), "reserving addresses");
    r->p = p;
}
static void create_all(gpu *g, range *r) {
    for (uint32_t i = 0; i < r->n; i++)
        gpu_need(g, g->api->vmm_create(r->handle_bytes, &r->handles[i]), "creating a handle");
}
static void map_all(gpu *g, range *r) {
    for (uint32_t i = 0; i < r->n; i++)
        gpu_need(g, g->api->vmm_map(r->p + i * r->handle_bytes, r->handle_bytes, r->handles[i]),
                 "mapping");
}
static void allow_each(gpu *g, range *r) {
    for (uint32_t i = 0; i < r->n; i++)
        gpu_need(g, g->api->vmm_access(r->p + i * r->handle_bytes, r->handle_bytes),
                 "allowing access");
}
static void allow_range(gpu *g, range *r) {
    gpu_need(g, g->api->vmm_access(r->p, r->handle_bytes * r->n), "allowing access");
}
static void unmap_all(gpu *g, range *r) {
    gpu_need(g, g->api->vmm_unmap(r->p, r->handle_bytes * r->n), "unmapping");
}
static void release_all(gpu *g, range *r) {
    for (uint32_t i = 0; i < r->n; i++)
        gpu_need(g, g->api->vmm_release(r->handles[i]), "releasing");
}
static void range_close(gpu *g, range *r) {
    gpu_need(g, g->api->vmm_unreserve(r->p, r->handle_bytes * r->n), "giving back addresses");
}

static double per_handle(gpu *g, range *r, void (*f)(gpu *g, range *r)) {
    double began = gpu_now_us();
    f(g, r);
    return (gpu_now_us() - began) / r->n;
}

static void handle_costs(gpu *g, size_t handle_bytes) {
    static range r;
    uint64_t total = g->tiny ? 4 * handle_bytes : 4096ull << 20;
    range_open(g, &r, handle_bytes, (uint32_t)size_min(total / handle_bytes, HANDLES_MAX));
    double create = per_handle(g, &r, create_all), map = per_handle(g, &r, map_all);
    double each = per_handle(g, &r, allow_each), unmap = per_handle(g, &r, unmap_all);
    map_all(g, &r);
    double at_once = per_handle(g, &r, allow_range);
    unmap_all(g, &r);
    double release = per_handle(g, &r, release_all);
    range_close(g, &r);
    row_begin("vmm");
    row_count("handle_bytes", handle_bytes);
    row_count("handles", r.n);
    row_number("create_us", create);
    row_number("map_us", map);
    row_number("access_each_us", each);
    row_number("access_range_us", at_once);
    row_number("unmap_us", unmap);
    row_number("release_us", release);
    row_number("us_per_gib", (map + at_once) * (1 << 30) / (double)handle_bytes);
    row_end();
}

typedef struct reading {
    void *from, *sink;
    size_t n;
    uint32_t times;
} reading;

static void queue_reads(gpu *g, void *ctx, uint32_t i) {
    reading *r = ctx;
    (void)i;
    for (uint32_t k = 0; k < r->times; k++) launch_bench_read(&g->l, r->from, r->n, r->sink);
}

static void while_kernels_run(gpu *g, size_t handle_bytes) {
    static range r;
    reading read = {.n = g->tiny ? 65536 : 1024ul << 20, .times = g->tiny ? 2 : 100};
    read.from = gpu_take_zeros(g, read.n);
    read.sink = gpu_take(g, BENCH_SINK_BYTES);
    queue_reads(g, &read, 0);
    gpu_sync(g);
    double alone = gpu_time_once(g, queue_reads, &read);
    uint64_t us = 0;
    range_open(g, &r, handle_bytes, g->tiny ? 2 : 64);
    create_all(g, &r);
    gpu_need(g, g->api->event_record(g->begin, g->l.stream), "recording an event");
    queue_reads(g, &read, 0);
    gpu_need(g, g->api->event_record(g->end, g->l.stream), "recording an event");
    double map = per_handle(g, &r, map_all), allow = per_handle(g, &r, allow_range);
    double unmap = per_handle(g, &r, unmap_all);
    bool was_running = g->api->event_query(g->end) == CU_NOT_READY;
    gpu_sync(g);
    gpu_need(g, g->api->event_elapsed_us(g->begin, g->end, &us), "reading events");
    release_all(g, &r);
    range_close(g, &r);
    gpu_give(g, read.from);
    gpu_give(g, read.sink);
    row_begin("vmm_while_running");
    row_count("handle_bytes", handle_bytes);
    row_count("handles", r.n);
    row_number("map_us", map);
    row_number("access_range_us", allow);
    row_number("unmap_us", unmap);
    row_number("kernels_alone_us", alone);
    row_number("kernels_us", (double)us);
    row_bool("kernels_still_ran", was_running);
    row_end();
}

static uint32_t first_sum(gpu *g, const void *sink) {
    uint32_t *all = malloc(BENCH_THREADS * 4), sum = 0;
    if (all == NULL) gpu_die("no memory");
    gpu_need(g, g->api->copy_to_host(all, sink, BENCH_THREADS * 4, g->l.stream),
             "copying to the host");
    gpu_sync(g);
    for (uint32_t i = 0; i < BENCH_THREADS; i++) sum += all[i];
    free(all);
    return sum;
}

/* Two handles are mapped alternately at one address that a graph reads. */
static void graphs_and_remapping(gpu *g, size_t handle_bytes) {
    uint32_t sums[2] = {0, 0};
    cu_handle h[2];
    void *p = NULL, *sink = gpu_take_zeros(g, BENCH_SINK_BYTES);
    cu_graph graph = NULL;
    gpu_need(g, g->api->vmm_reserve(handle_bytes, 0, &p), "reserving addresses");
    for (int i = 0; i < 2; i++) {
        gpu_need(g, g->api->vmm_create(handle_bytes, &h[i]), "creating a handle");
        gpu_need(g, g->api->vmm_map(p, handle_bytes, h[i]), "mapping");
        gpu_need(g, g->api->vmm_access(p, handle_bytes), "allowing access");
        gpu_need(g, g->api->fill(p, 0, handle_bytes, g->l.stream), "filling");
        gpu_need(g, g->api->fill(p, (uint8_t)(i + 1), 4, g->l.stream), "filling");
        if (i == 0) {
            launch_bench_read(&g->l, p, 4096, sink); // loads its code outside the capture
            gpu_sync(g);
            gpu_need(g, g->api->capture_begin(g->l.stream), "beginning a capture");
            launch_bench_read(&g->l, p, 4096, sink);
            gpu_need(g, g->api->capture_end(g->l.stream, &graph), "ending a capture");
        }
        gpu_need(g, g->api->graph_launch(graph, g->l.stream), "launching a graph");
        gpu_sync(g);
        sums[i] = first_sum(g, sink);
        gpu_need(g, g->api->vmm_unmap(p, handle_bytes), "unmapping");
    }
    gpu_need(g, g->api->graph_destroy(graph), "giving back a graph");
    for (int i = 0; i < 2; i++) gpu_need(g, g->api->vmm_release(h[i]), "releasing");
    gpu_need(g, g->api->vmm_unreserve(p, handle_bytes), "giving back addresses");
    gpu_give(g, sink);
    row_begin("graph_and_remapping");
    row_bool("graph_sees_new_memory", sums[0] != sums[1]);
    row_end();
}

void bench_vmm(gpu *g) {
    inferd_err err = {0};
    size_t granularity = 0;
    if (gpu_leaves_out(g, PART_VMM, "vmm")) return;
    gpu_need_status(bench_init(g->module, &err), &err);
    gpu_need(g, g->api->vmm_granularity(&granularity), "asking for the granularity");
    for (size_t n = granularity; n <= (g->tiny ? granularity : 64ul << 20); n *= 2)
        handle_costs(g, n);
    while_kernels_run(g, g->tiny ? granularity : 32ul << 20);
    if (!gpu_leaves_out(g, PART_GRAPHS, "graph_and_remapping"))
        graphs_and_remapping(g, granularity);
}

/* ---- loading and waking ---- */

static void send(cuda_memory *m, cuda_window *w, size_t n, inferd_err *err) {
    enum { UNIT = 64 << 20 };
    for (size_t at = 0; at < n; at += UNIT)
        gpu_need_status(window_upload_cuda(m, w, at, size_min(at + UNIT, n), err), err);
}

static void load_case(gpu *g, const char *name, size_t n, reading *read) {
    cuda_memory *m = NULL;
    cuda_window *w = NULL;
    inferd_err err = {0};
    /* Enough for the window, rounded up to whole handles. */
    cuda_memory_options o = {.memory_bytes = n + n / 8 + (g->tiny ? 16ull << 20 : 1024ull << 20),
                             .workspace_bytes = g->tiny ? 4ul << 20 : 64ul << 20,
                             .ready_pages_min = UINT32_MAX};
    double began = gpu_now_us();
    gpu_need_status(memory_open(g->api, 0, &g->device, &o, &m, &err), &err);
    double opened = gpu_now_us();
    uint32_t extent = u32_max(memory_extent_pages(m), 1);
    uint32_t n_pages = (uint32_t)((n + memory_page_bytes(m) - 1) / memory_page_bytes(m));
    n_pages = (n_pages + extent - 1) / extent * extent;
    while (memory_n_ready(m) < n_pages && memory_n_ready(m) < memory_n_pages(m))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    uint32_t *pages = malloc(n_pages * sizeof *pages);
    if (pages == NULL) gpu_die("no memory for %u pages", n_pages);
    for (uint32_t i = 0; i < n_pages; i++) pages[i] = i;
    gpu_need_status(window_open_cuda(m, n, &w, &err), &err);
    double ready = gpu_now_us();
    gpu_need_status(window_map_cuda(m, w, pages, n_pages, &err), &err);
    double mapped = gpu_now_us();
    unsigned char *image = memory_image_of(m, window_base_cuda(w));
    if (image == NULL) gpu_die("no host memory for a copy of %zu MiB", n >> 20);
    memset(image, 0x3c, n);
    double written = gpu_now_us();
    send(m, w, n, &err);
    gpu_need_status(memory_sync(m, &err), &err);
    double loaded = gpu_now_us();
    /* Pinning has finished or nearly so: waits up to 10 s for the pinning thread. */
    cuda_memory_stats st;
    for (int i = 0; i < 10000; i++) {
        memory_get_stats(m, &st);
        if (st.pinned_bytes >= n || g->tiny) break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    double unmapping = gpu_now_us();
    gpu_need_status(window_unmap_cuda(m, w, &err), &err);
    double unmapped = gpu_now_us();
    gpu_need_status(window_map_cuda(m, w, pages, n_pages, &err), &err);
    double again = gpu_now_us();
    send(m, w, n, &err);
    gpu_need_status(memory_sync(m, &err), &err);
    double woken = gpu_now_us();
    /* The same while kernels read. */
    double alone = gpu_time_once(g, queue_reads, read);
    send(m, w, n, &err);
    double beside = gpu_time_once(g, queue_reads, read);
    bool still = !memory_all_arrived(m);
    gpu_need_status(memory_sync(m, &err), &err);
    row_begin("load");
    row_text("size", name);
    row_count("bytes", n);
    row_count("handle_bytes", st.handle_bytes);
    row_count("pinned_bytes", st.pinned_bytes);
    row_number("open_us", opened - began);
    row_number("pages_us", ready - opened);
    row_number("map_us", mapped - ready);
    row_number("write_us", written - mapped);
    row_number("send_us", loaded - written);
    row_number("send_gb_s", (double)n / (loaded - written) * 1e-3);
    row_number("unmap_us", unmapped - unmapping);
    row_number("wake_map_us", again - unmapped);
    row_number("wake_us", woken - unmapped);
    row_number("wake_gb_s", (double)n / (woken - unmapped) * 1e-3);
    row_number("bus_gb_s", (double)st.bus_bytes_per_s * 1e-9);
    row_number("read_alone_us", alone);
    row_number("read_beside_us", beside);
    row_bool("still_loading", still);
    row_end();
    free(pages);
    window_close_cuda(m, w);
    memory_close(m);
}

void bench_load(gpu *g) {
    static const struct {
        const char *name;
        size_t bytes;
    } sizes[] = {{"1b bf16", 2472ul * 1000 * 1000}, {"8b bf16", 16060ul * 1000 * 1000}};
    inferd_err err = {0};
    gpu_need_status(bench_init(g->module, &err), &err);
    reading read = {.n = g->tiny ? 65536 : 1024ul << 20, .times = g->tiny ? 2 : 100};
    read.from = gpu_take_zeros(g, read.n);
    read.sink = gpu_take(g, BENCH_SINK_BYTES);
    queue_reads(g, &read, 0);
    gpu_sync(g);
    for (size_t i = 0; i < (g->tiny ? 1 : INFERD_COUNT(sizes)); i++)
        load_case(g, g->tiny ? "tiny" : sizes[i].name, g->tiny ? 3ul << 20 : sizes[i].bytes, &read);
    gpu_give(g, read.from);
    gpu_give(g, read.sink);
}
