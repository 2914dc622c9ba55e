/* bench_limits.c - the maximum rates of the device and the bus (see gpu.h for timing).
 *
 *     memory      read once; read and write; the driver's own copy
 *     bus         pinned memory to the device and back, one way and both at once; pinning itself
 *     boundaries  empty kernels in one graph, with and without programmatic dependence
 *     graphs      creating, launching, memory
 *     answers     from a kernel's end until the host sees it
 *     products    8192 x 8192 x 8192 in bf16 by cuBLASLt; `sustain`: for half a minute, with
 *                 power, temperature and throttling */
#include <string.h>
#include <sys/mman.h>

#include "cuda/bench.h"
#include "cuda/rows.h"
#include "gpu.h"

enum { ASKS = 200, GRAPH_KERNELS = 224, GRAPHS = 16 };

typedef struct streaming {
    unsigned char *from, *to;
    size_t n_bytes, stride; // of one piece; pieces are read one after another
    uint32_t n_pieces;
    void *sink;
} streaming;

static void queue_read(gpu *g, void *ctx, uint32_t i) {
    streaming *s = ctx;
    launch_bench_read(&g->l, s->from + i % s->n_pieces * s->stride, s->n_bytes, s->sink);
}
static void queue_copy(gpu *g, void *ctx, uint32_t i) {
    streaming *s = ctx;
    launch_bench_copy(&g->l, s->to + i % s->n_pieces * s->stride,
                      s->from + i % s->n_pieces * s->stride, s->n_bytes);
}
static void queue_driver_copy(gpu *g, void *ctx, uint32_t i) {
    streaming *s = ctx;
    size_t at = i % s->n_pieces * s->stride;
    launch_failed(&g->l, g->api->copy_on_device(s->to + at, s->from + at, s->n_bytes, g->l.stream),
                  "copying on the device");
}

static void tell(const char *what, const gpu_time *t, size_t n, double n_bytes) {
    row_begin("memory");
    row_text("what", what);
    row_count("piece_bytes", n);
    row_time(t);
    row_rate(t, n_bytes, 0);
    row_end();
}

static void memory(gpu *g) {
    static const size_t sizes[] = {8ul << 20, 32ul << 20, 128ul << 20, 1024ul << 20};
    size_t most = g->tiny ? 1 << 20 : 4096ul << 20;
    streaming s = {.sink = gpu_take(g, BENCH_SINK_BYTES)};
    s.from = gpu_take(g, most);
    s.to = gpu_take(g, most);
    gpu_scribble(g, s.from, most);
    for (size_t i = 0; i < (g->tiny ? 1 : INFERD_COUNT(sizes)); i++) {
        s.n_bytes = s.stride = g->tiny ? 70000 / 16 * 16 : sizes[i];
        s.n_pieces = (uint32_t)size_min(most / s.n_bytes, 64);
        gpu_time t = gpu_measure(g, queue_read, &s, s.n_pieces);
        tell("read", &t, s.n_bytes, (double)s.n_bytes);
        t = gpu_measure(g, queue_copy, &s, s.n_pieces);
        tell("copy, kernel", &t, s.n_bytes, 2.0 * (double)s.n_bytes);
        t = gpu_measure(g, queue_driver_copy, &s, s.n_pieces);
        tell("copy, driver", &t, s.n_bytes, 2.0 * (double)s.n_bytes);
    }
    gpu_give(g, s.from);
    gpu_give(g, s.to);
    gpu_give(g, s.sink);
}

/* ---- the bus ---- */

typedef struct bus {
    void *host[2], *device[2];
    size_t n;
    cu_stream second;
    cu_event other_done;
    bool in, out;
    uint32_t times;
} bus;

static void queue_bus(gpu *g, void *ctx, uint32_t i) {
    bus *b = ctx;
    (void)i;
    for (uint32_t k = 0; k < b->times; k++) {
        if (b->in)
            launch_failed(
                &g->l, g->api->copy_to_device(b->device[0], b->host[0], b->n, g->l.stream), "copy");
        if (b->out)
            launch_failed(&g->l,
                          g->api->copy_to_host(b->host[1], b->device[1], b->n,
                                               b->in ? b->second : g->l.stream),
                          "copy");
    }
    if (!b->in || !b->out) return;
    launch_failed(&g->l, g->api->event_record(b->other_done, b->second), "recording an event");
    launch_failed(&g->l, g->api->stream_wait(g->l.stream, b->other_done), "waiting for a stream");
}

static void bus_case(gpu *g, bus *b, const char *what) {
    double us[5];
    uint32_t n = g->tiny ? 2 : 5;
    queue_bus(g, b, 0);
    gpu_sync(g);
    for (uint32_t i = 0; i < n; i++) us[i] = gpu_time_once(g, queue_bus, b) / b->times;
    double median = gpu_median(us, n);
    row_begin("bus");
    row_text("what", what);
    row_count("piece_bytes", b->n);
    row_number("us", median);
    row_number("low_us", us[0]);
    row_number("high_us", us[n - 1]);
    row_number("gb_s", (double)b->n * (b->in && b->out ? 2 : 1) / median * 1e-3);
    row_end();
}

static void the_bus(gpu *g) {
    static const size_t sizes[] = {64ul << 10, 2ul << 20, 32ul << 20, 256ul << 20};
    size_t most = g->tiny ? 64ul << 10 : 256ul << 20;
    bus b = {0};
    if (gpu_leaves_out(g, PART_PINNED, "bus")) return;
    double began = gpu_now_us();
    for (int i = 0; i < 2; i++) gpu_need(g, g->api->host_alloc(most, &b.host[i]), "pinned memory");
    row_begin("pinned");
    row_text("what", "host_alloc, both buffers");
    row_number("us", gpu_now_us() - began);
    row_count("bytes", 2 * most);
    row_end();
    for (int i = 0; i < 2; i++) {
        memset(b.host[i], 1, most);
        b.device[i] = gpu_take_zeros(g, most);
    }
    gpu_need(g, g->api->stream_create(false, &b.second), "making a stream");
    gpu_need(g, g->api->event_create(0, &b.other_done), "making an event");
    for (size_t i = 0; i < (g->tiny ? 1 : INFERD_COUNT(sizes)); i++) {
        b.n = sizes[i];
        b.times = g->tiny ? 1 : (uint32_t)((512ul << 20) / b.n > 256 ? 256 : (512ul << 20) / b.n);
        b.in = true, b.out = false;
        bus_case(g, &b, "to the device");
        b.in = false, b.out = true;
        bus_case(g, &b, "to the host");
        b.in = true, b.out = true;
        bus_case(g, &b, "both at once");
    }
    gpu_need(g, g->api->stream_sync(b.second), "waiting for a stream");
    gpu_need(g, g->api->event_destroy(b.other_done), "giving back an event");
    gpu_need(g, g->api->stream_destroy(b.second), "giving back a stream");
    for (int i = 0; i < 2; i++) {
        gpu_give(g, b.device[i]);
        gpu_need(g, g->api->host_free(b.host[i]), "giving back pinned memory");
    }
}

/* Memory of the program, touched and then pinned. */
static void pinning(gpu *g) {
    size_t n = g->tiny ? 1 << 20 : 2048ul << 20;
    if (gpu_leaves_out(g, PART_PINNED, "pinned")) return;
    for (int huge = 0; huge < 2; huge++) {
        unsigned char *p =
            mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) gpu_die("no %zu MiB of host memory", n >> 20);
        if (huge) madvise(p, n, MADV_HUGEPAGE);
        double began = gpu_now_us();
        for (size_t i = 0; i < n; i += 4096) p[i] = 1;
        double touched = gpu_now_us();
        gpu_need(g, g->api->host_pin(p, n), "pinning");
        double pinned = gpu_now_us();
        gpu_need(g, g->api->host_unpin(p), "unpinning");
        row_begin("pinned");
        row_text("what", huge ? "host_pin, huge pages" : "host_pin, small pages");
        row_number("touch_us", touched - began);
        row_number("us", pinned - touched);
        row_number("unpin_us", gpu_now_us() - pinned);
        row_count("bytes", n);
        row_number("gb_s", (double)n / (pinned - touched) * 1e-3);
        row_end();
        munmap(p, n);
    }
}

/* ---- boundaries, graphs, answers ---- */

static void queue_empty(gpu *g, void *ctx, uint32_t i) {
    (void)ctx;
    (void)i;
    launch_bench_empty(&g->l);
}

static void boundaries(gpu *g) {
    for (int dependent = 0; dependent < 2; dependent++) {
        if (dependent && g->device.cc_major < 9) continue;
        g->l.dependent = dependent == 1;
        gpu_time t = gpu_measure(g, queue_empty, NULL, g->tiny ? 2 : GPU_LAUNCHES_MAX);
        g->l.dependent = false;
        row_begin("boundary");
        row_text("what", dependent ? "programmatic dependence" : "plain");
        row_time(&t);
        row_end();
    }
}

static cu_graph one_graph(gpu *g, uint32_t n, double *capture_us, double *instantiate_us) {
    cu_graph graph = NULL;
    double began = gpu_now_us();
    gpu_need(g, g->api->capture_begin(g->l.stream), "beginning a capture");
    for (uint32_t i = 0; i < n; i++) launch_bench_empty(&g->l);
    double captured = gpu_now_us();
    gpu_need(g, g->api->capture_end(g->l.stream, &graph), "ending a capture");
    *capture_us = captured - began;
    *instantiate_us = gpu_now_us() - captured;
    return graph;
}

static void graphs(gpu *g) {
    cu_graph graph[GRAPHS];
    double capture[GRAPHS], instantiate[GRAPHS], launch_us[GRAPHS], done_us[GRAPHS];
    uint32_t n = g->tiny ? 2 : GRAPHS, kernels = g->tiny ? 4 : GRAPH_KERNELS;
    if (gpu_leaves_out(g, PART_GRAPHS, "graph")) return;
    uint64_t before = gpu_free_bytes(g);
    for (uint32_t i = 0; i < n; i++) graph[i] = one_graph(g, kernels, &capture[i], &instantiate[i]);
    uint64_t after = gpu_free_bytes(g);
    for (uint32_t i = 0; i < n; i++) {
        gpu_sync(g);
        double began = gpu_now_us();
        gpu_need(g, g->api->graph_launch(graph[i], g->l.stream), "launching a graph");
        launch_us[i] = gpu_now_us() - began;
        gpu_sync(g);
        done_us[i] = gpu_now_us() - began;
    }
    for (uint32_t i = 0; i < n; i++)
        gpu_need(g, g->api->graph_destroy(graph[i]), "giving back a graph");
    row_begin("graph");
    row_count("kernels", kernels);
    row_number("capture_us", gpu_median(capture, n));
    row_number("instantiate_us", gpu_median(instantiate, n));
    row_number("launch_us", gpu_median(launch_us, n)); // on the host, of the first launch
    row_number("launch_to_end_us", gpu_median(done_us, n));
    row_number("device_bytes", before > after ? (double)(before - after) / n : 0);
    row_end();
}

/* Time from launching an empty kernel until the host sees its event; and the cost of recording. */
static void answers(gpu *g) {
    double asked[ASKS], slept[ASKS], record[ASKS];
    uint32_t n = g->tiny ? 3 : ASKS;
    for (uint32_t i = 0; i < n; i++) {
        gpu_sync(g);
        double began = gpu_now_us();
        launch_bench_empty(&g->l);
        double launched = gpu_now_us();
        gpu_need(g, g->api->event_record(g->end, g->l.stream), "recording an event");
        record[i] = gpu_now_us() - launched;
        cu_result r;
        while ((r = g->api->event_query(g->end)) == CU_NOT_READY) {
        }
        gpu_need(g, r, "asking an event");
        asked[i] = gpu_now_us() - began;
    }
    for (uint32_t i = 0; i < n; i++) {
        gpu_sync(g);
        double began = gpu_now_us();
        launch_bench_empty(&g->l);
        gpu_need(g, g->api->event_record(g->end, g->l.stream), "recording an event");
        gpu_need(g, g->api->event_sync(g->end), "waiting for an event");
        slept[i] = gpu_now_us() - began;
    }
    row_begin("answer");
    row_number("query_us", gpu_median(asked, n));
    row_number("query_p99_us", asked[n * 99 / 100]);
    row_number("sync_us", gpu_median(slept, n));
    row_number("record_us", gpu_median(record, n));
    row_end();
}

/* ---- products ---- */

typedef struct product {
    lt_shape s;
    lt_algo algo;
    void *x, *w, *out, *workspace;
    size_t workspace_bytes;
} product;

static void queue_product(gpu *g, void *ctx, uint32_t i) {
    product *p = ctx;
    (void)i;
    launch_failed(&g->l,
                  g->api->lt_matmul(&p->s, &p->algo, p->x, p->w, p->out, p->workspace,
                                    p->workspace_bytes, g->l.stream),
                  "cuBLASLt");
}

/* False: cuBLASLt is not available. */
static bool open_product(gpu *g, product *p) {
    uint32_t n = g->tiny ? 64 : 8192, found = 0;
    if (gpu_leaves_out(g, PART_LT, "product")) return false;
    if (g->api->lt_open(NULL) != CU_OK) {
        row_begin("product");
        row_text("left_out", g->api->text());
        row_end();
        return false;
    }
    *p = (product){.s = {.m = n,
                         .n = n,
                         .k = n,
                         .x_stride = n,
                         .w_stride = n,
                         .out_stride = n,
                         .in = LT_BF16,
                         .out = LT_BF16},
                   .workspace_bytes = 32ul << 20};
    gpu_need(g, g->api->lt_candidates(&p->s, p->workspace_bytes, 1, &p->algo, &found), "cuBLASLt");
    if (found == 0) gpu_die("cuBLASLt knows no algorithm for %u x %u x %u", n, n, n);
    inferd_err err = {0};
    gpu_need_status(rows_init(g->module, &g->device, &err), &err);
    p->x = gpu_weights(g, DTYPE_BF16, n, n, 31).base;
    p->w = gpu_weights(g, DTYPE_BF16, n, n, 32).base;
    p->out = gpu_take(g, (size_t)n * n * 2);
    p->workspace = gpu_take(g, p->workspace_bytes);
    return true;
}

static void close_product(gpu *g, product *p) {
    gpu_give(g, p->x);
    gpu_give(g, p->w);
    gpu_give(g, p->out);
    gpu_give(g, p->workspace);
}

static double flop_of(const product *p) {
    return 2.0 * p->s.m * p->s.n * p->s.k;
}

static void products(gpu *g) {
    product p;
    if (!open_product(g, &p)) return;
    gpu_time t = gpu_measure(g, queue_product, &p, 1);
    row_begin("product");
    row_count("n", p.s.n);
    row_time(&t);
    row_rate(&t, 0, flop_of(&p));
    row_end();
    close_product(g, &p);
}

void bench_limits(gpu *g) {
    inferd_err err = {0};
    gpu_need_status(bench_init(g->module, &err), &err);
    memory(g);
    boundaries(g);
    graphs(g);
    answers(g);
    the_bus(g);
    pinning(g);
    products(g);
}

/* Products for half a minute: a line each second. */
static void queue_many(gpu *g, void *ctx, uint32_t i) {
    for (uint32_t k = 0; k < (g->tiny ? 1u : 100u); k++) queue_product(g, ctx, i);
}

void bench_sustain(gpu *g) {
    product p;
    if (!open_product(g, &p)) return;
    double began = gpu_now_us(), until = g->tiny ? 0 : 25e6, told = 0;
    do {
        double us = gpu_time_once(g, queue_many, &p) / (g->tiny ? 1 : 100),
               at = gpu_now_us() - began;
        if (at - told < 1e6 && !g->tiny) continue;
        told = at;
        cu_health h = {0};
        bool known = g->api->device_health(0, &h) == CU_OK && h.known;
        row_begin("sustain");
        row_number("at_s", at * 1e-6);
        row_number("us", us);
        row_number("tflop_s", flop_of(&p) / us * 1e-6);
        if (known) row_number("power_w", h.power_w);
        if (known) row_number("temperature_c", h.temperature_c);
        if (known) row_bool("throttle_thermal", h.throttle_thermal == 1);
        row_end();
    } while (gpu_now_us() - began < until);
    close_product(g, &p);
}
