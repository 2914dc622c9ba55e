/* gpu.c - see gpu.h. */
#include "gpu.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cuda/formats.h"
#include "cuda/open.h"
#include "cuda/rows.h"
#include "inferd/buf.h"
#include "inferd/clock.h"

/* Part of the emulation; absent in programs built without the tests. */
const cuda_module *emul_module(void) __attribute__((weak));
uint32_t fake_violations(void) __attribute__((weak));
uint32_t fake_leaks(void) __attribute__((weak));

double gpu_now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

/* ---- output ---- */

static buf line;

static void add_key(const char *key) {
    buf_add_format(&line, "%s\"%s\":", line.n == 1 ? "" : ",", key);
}

void row_begin(const char *bench) {
    buf_clear(&line);
    buf_add_char(&line, '{');
    row_text("bench", bench);
}
void row_text(const char *key, const char *value) {
    add_key(key);
    buf_add_char(&line, '"');
    for (const char *p = value; *p != 0; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            buf_add_format(&line, "\\%c", c);
        else
            buf_add_char(&line, c < 0x20 || c > 0x7e ? ' ' : (char)c);
    }
    buf_add_char(&line, '"');
}
void row_number(const char *key, double value) {
    add_key(key);
    if (isfinite(value))
        buf_add_format(&line, "%.6g", value);
    else
        buf_add_str(&line, "null");
}
void row_count(const char *key, uint64_t value) {
    add_key(key);
    buf_add_format(&line, "%llu", (unsigned long long)value);
}
void row_bool(const char *key, bool value) {
    add_key(key);
    buf_add_str(&line, value ? "true" : "false");
}
void row_time(const gpu_time *t) {
    row_number("us", t->us);
    row_number("low_us", t->low_us);
    row_number("high_us", t->high_us);
    row_number("noise", t->noise);
    row_count("replays", t->replays);
    row_count("per_graph", t->per_graph);
}
void row_rate(const gpu_time *t, double n_bytes, double flop) {
    if (n_bytes > 0) row_number("bytes", n_bytes);
    if (n_bytes > 0) row_number("gb_s", n_bytes / t->us * 1e-3);
    if (flop > 0) row_number("flop", flop);
    if (flop > 0) row_number("tflop_s", flop / t->us * 1e-6);
}
void row_end(void) {
    buf_add_str(&line, "}\n");
    if (line.failed) gpu_die("no memory for a line of output");
    fwrite(line.p, 1, line.n, stdout);
    fflush(stdout);
}

void gpu_die(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    buf_clear(&line);
    row_begin("error");
    row_text("text", text);
    buf_add_str(&line, "}\n");
    fwrite(line.p, 1, line.n, stdout);
    fflush(stdout);
    fprintf(stderr, "%s\n", text);
    exit(1);
}
void gpu_need(gpu *g, cu_result r, const char *what) {
    if (r != CU_OK) gpu_die("%s: result %d: %s", what, (int)r, g->api->text());
}
void gpu_need_status(inferd_status s, const inferd_err *err) {
    if (s != INFERD_OK) gpu_die("%s", err->text);
}
void gpu_sync(gpu *g) {
    if (g->l.status != CU_OK) gpu_die("result %d: %s", (int)g->l.status, g->l.text);
    gpu_need(g, g->api->stream_sync(g->l.stream), "waiting for the stream");
}

/* ---- opening ---- */

const cuda_module *gpu_module(bool emulated) {
    const cuda_module *m = NULL;
    inferd_err err = {0};
    if (emulated) {
        if (emul_module == NULL) gpu_die("this program was built without the emulation");
        return emul_module();
    }
    gpu_need_status(cuda_module_open(NULL, &m, &err), &err);
    return m;
}

static void tell_device(const gpu *g) {
    const cu_device *d = &g->device;
    row_begin("device");
    row_bool("emulated", g->emulated || strstr(g->module->about, "emulated") != NULL);
    row_bool("tiny", g->tiny);
    row_text("name", d->name);
    row_text("uuid", d->uuid);
    row_text("module", g->module->about);
    row_count("driver", (uint64_t)d->driver_version);
    row_count("runtime", (uint64_t)d->runtime_version);
    row_count("cc", d->cc_major * 10 + d->cc_minor);
    row_count("n_sms", d->n_sms);
    row_count("l2_bytes", d->l2_bytes);
    row_count("memory_bytes", d->memory_bytes);
    row_bool("mig", d->mig);
    row_count("context_us", g->open_us);
    row_end();
}

void gpu_open(gpu *g, const gpu_options *o) {
    *g = (gpu){.tiny = o->tiny, .emulated = o->emulated};
    double began = gpu_now_us();
    g->module = gpu_module(o->emulated);
    g->api = g->module->api;
    inferd_err err = {0};
    gpu_need_status(parts_init(&g->parts, NULL, &err), &err);
    gpu_need(g, g->api->init(), "opening the driver");
    gpu_need(g, g->api->device_about(0, &g->device), "asking for the device");
    parts_look(&g->parts, &g->device);
    gpu_need(g, g->api->device_use(0), "making a context");
    g->open_us = (uint64_t)(gpu_now_us() - began);
    g->l = (launcher){.module = g->module, .api = g->api, .device = &g->device, .parts = &g->parts};
    gpu_need(g, g->api->stream_create(false, &g->l.stream), "making a stream");
    gpu_need(g, g->api->event_create(CU_EVENT_TIMED, &g->begin), "making an event");
    gpu_need(g, g->api->event_create(CU_EVENT_TIMED, &g->end), "making an event");
    tell_device(g);
}

static void tell_part(const be_device_part *part) {
    row_begin("part");
    row_text("name", part->name);
    row_text("state", be_part_state_name(part->state));
    row_text("why", part->why);
    row_end();
}

void gpu_close(gpu *g) {
    gpu_sync(g);
    for (uint32_t i = 0; i < CUDA_PARTS; i++)
        if (g->parts.part[i].state == BE_PART_DEGRADED) tell_part(&g->parts.part[i]);
    gpu_need(g, g->api->event_destroy(g->begin), "giving back an event");
    gpu_need(g, g->api->event_destroy(g->end), "giving back an event");
    gpu_need(g, g->api->stream_destroy(g->l.stream), "giving back the stream");
    gpu_check_emulation(g->emulated);
}

void gpu_check_emulation(bool emulated) {
    if (emulated && fake_violations != NULL && fake_violations() > 0)
        gpu_die("%u rules of the emulation were broken", fake_violations());
    if (emulated && fake_leaks != NULL && fake_leaks() > 0)
        gpu_die("%u resources were not released", fake_leaks());
}

/* ---- parts ---- */

bool gpu_leaves_out(gpu *g, cuda_part part, const char *bench) {
    if (parts_is_on(&g->parts, part)) return false;
    row_begin(bench);
    row_text("left_out", g->parts.part[part].why);
    row_end();
    return true;
}

void gpu_tell_parts(const backend_stats *stats) {
    for (uint32_t i = 0; i < stats->n_parts; i++)
        if (stats->parts[i].state != BE_PART_ON) tell_part(&stats->parts[i]);
}

/* ---- memory ---- */

void *gpu_take(gpu *g, size_t n) {
    void *p = NULL;
    cu_result r = g->api->alloc(size_max(n, 256), &p);
    if (r != CU_OK) gpu_die("taking %zu MiB of device memory: %s", n >> 20, g->api->text());
    return p;
}
void *gpu_take_zeros(gpu *g, size_t n) {
    void *p = gpu_take(g, n);
    gpu_need(g, g->api->fill(p, 0, size_max(n, 256), g->l.stream), "clearing memory");
    return p;
}
void *gpu_put(gpu *g, const void *host, size_t n) {
    void *p = gpu_take(g, n);
    gpu_need(g, g->api->copy_to_device(p, host, n, g->l.stream), "copying to the device");
    gpu_sync(g);
    return p;
}
void gpu_give(gpu *g, void *p) {
    if (p == NULL) return;
    gpu_sync(g);
    gpu_need(g, g->api->free(p), "giving back device memory");
}
uint64_t gpu_free_bytes(gpu *g) {
    uint64_t free_bytes = 0, total = 0;
    gpu_need(g, g->api->memory_info(&free_bytes, &total), "asking for free memory");
    return free_bytes;
}

static uint64_t random_state;
static uint32_t random_u32(void) { // splitmix64, its upper half
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}
/* Sum of four uniform numbers: close enough to a normal distribution, and fast. */
static float random_normal(void) {
    uint32_t a = random_u32(), b = random_u32();
    int32_t sum = (int32_t)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - 131070;
    return (float)sum / 37837.227f;
}

void *gpu_normals(gpu *g, cu_type type, size_t n, float scale, uint64_t seed) {
    size_t each = type == CU_F32 ? 4 : 2;
    unsigned char *host = malloc(n * each);
    if (host == NULL) gpu_die("no memory for %zu numbers", n);
    random_state = seed;
    for (size_t i = 0; i < n; i++) {
        float v = scale * random_normal();
        uint16_t bits = type == CU_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
        if (type == CU_F32)
            memcpy(host + i * each, &v, 4);
        else
            memcpy(host + i * each, &bits, 2);
    }
    void *p = gpu_put(g, host, n * each);
    free(host);
    return p;
}

/* Copies a piece of noise from the host, then the device doubles it repeatedly. */
void gpu_scribble(gpu *g, void *p, size_t n) {
    enum { PIECE = 1 << 20 };
    size_t have = size_min(n, PIECE);
    uint16_t *host = malloc(have + 2);
    if (host == NULL) gpu_die("no memory for %zu bytes of noise", have);
    random_state = 11;
    for (size_t i = 0; i < have / 2 + 1; i++) {
        /* a sign, and in bf16 2^-7 to 2, in f16 1 to 2 */
        host[i] = (uint16_t)(0x3c00 | (random_u32() & 0x83ff));
    }
    gpu_need(g, g->api->copy_to_device(p, host, have, g->l.stream), "copying to the device");
    gpu_sync(g);
    free(host);
    while (have < n) {
        size_t more = size_min(have, n - have);
        gpu_need(g, g->api->copy_on_device((unsigned char *)p + have, p, more, g->l.stream),
                 "copying on the device");
        have += more;
    }
    gpu_sync(g);
}

gpu_matrix gpu_weights(gpu *g, dtype type, uint32_t rows, uint32_t cols, uint64_t seed) {
    gpu_matrix w = {.base = gpu_take(g, format_bytes(type, rows, cols))};
    w.m = format_matrix(type, rows, cols, w.base);
    launch_dummy(&g->l, &(dummy_args){.m = w.m,
                                      .data = (void *)(uintptr_t)w.m.data,
                                      .low = (void *)(uintptr_t)w.m.low,
                                      .high = (void *)(uintptr_t)w.m.high,
                                      .scales = (void *)(uintptr_t)w.m.scales,
                                      .file_type = (uint32_t)type,
                                      .seed = seed,
                                      .scale = 0.02f});
    gpu_sync(g);
    return w;
}

/* ---- time ---- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double gpu_median(double *values, uint32_t n) {
    if (n == 0) return NAN;
    qsort(values, n, sizeof *values, by_size);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static double elapsed_us(gpu *g) {
    uint64_t us = 0;
    gpu_need(g, g->api->event_record(g->end, g->l.stream), "recording an event");
    gpu_need(g, g->api->event_sync(g->end), "waiting for an event");
    gpu_need(g, g->api->event_elapsed_us(g->begin, g->end, &us), "reading events");
    return (double)(us > 0 ? us : 1);
}

double gpu_time_once(gpu *g, void (*f)(gpu *g, void *ctx, uint32_t i), void *ctx) {
    gpu_need(g, g->api->event_record(g->begin, g->l.stream), "recording an event");
    f(g, ctx, 0);
    double us = elapsed_us(g);
    gpu_sync(g);
    return us;
}

typedef struct work {
    void (*queue)(gpu *g, void *ctx, uint32_t i);
    void *ctx;
    uint32_t n;
    cu_graph graph; // NULL: graphs are off
} work;

static double replay_us(gpu *g, const work *w) {
    gpu_need(g, g->api->event_record(g->begin, g->l.stream), "recording an event");
    if (w->graph != NULL)
        gpu_need(g, g->api->graph_launch(w->graph, g->l.stream), "launching a graph");
    for (uint32_t i = 0; i < w->n && w->graph == NULL; i++) w->queue(g, w->ctx, i);
    double us = elapsed_us(g);
    gpu_sync(g);
    return us;
}

static void capture(gpu *g, work *w) {
    gpu_need(g, g->api->capture_begin(g->l.stream), "beginning a capture");
    for (uint32_t i = 0; i < w->n; i++) w->queue(g, w->ctx, i);
    gpu_need(g, g->api->capture_end(g->l.stream, &w->graph), "ending a capture");
}

/* Launches per graph: a multiple of the number of sets, and at least half a millisecond. */
static uint32_t launches_for(const gpu *g, double once_us, uint32_t sets) {
    if (g->tiny) return u32_min(sets, 2);
    double wanted = 500 / once_us;
    uint32_t n = wanted > GPU_LAUNCHES_MAX ? GPU_LAUNCHES_MAX : (uint32_t)wanted + 1;
    n = (n + sets - 1) / sets * sets;
    return n > GPU_LAUNCHES_MAX ? u32_max(GPU_LAUNCHES_MAX / sets * sets, 1) : n;
}

static void statistics(gpu_time *t, const double *us) {
    double all[GPU_REPLAYS_MAX], even[GPU_REPLAYS_MAX], odd[GPU_REPLAYS_MAX];
    uint32_t n_even = 0, n_odd = 0;
    for (uint32_t i = 0; i < t->replays; i++) {
        all[i] = us[i] / t->per_graph;
        if (i % 2 == 0)
            even[n_even++] = all[i];
        else
            odd[n_odd++] = all[i];
    }
    t->us = gpu_median(all, t->replays); // sorts, so the ends are the least and the greatest
    t->low_us = all[0];
    t->high_us = all[t->replays - 1];
    t->noise = n_odd == 0 ? NAN : fabs(gpu_median(even, n_even) - gpu_median(odd, n_odd)) / t->us;
}

gpu_time gpu_measure(gpu *g, void (*queue)(gpu *g, void *ctx, uint32_t i), void *ctx,
                     uint32_t sets) {
    double us[GPU_REPLAYS_MAX], used = 0;
    gpu_time t = {0};
    queue(g, ctx, 0); // loads everything that is loaded at the first call
    gpu_sync(g);
    double once = gpu_time_once(g, queue, ctx);
    t.per_graph = launches_for(g, once, u32_max(sets, 1));
    work w = {.queue = queue, .ctx = ctx, .n = t.per_graph};
    if (parts_is_on(&g->parts, PART_GRAPHS)) capture(g, &w);
    double first = replay_us(g, &w); // warms up; not counted
    uint32_t most = g->tiny ? 2 : GPU_REPLAYS_MAX;
    uint32_t least = g->tiny || first > GPU_CASE_US ? 2 : GPU_REPLAYS_MIN;
    while (t.replays < most && (t.replays < least || used < GPU_CASE_US)) {
        us[t.replays] = replay_us(g, &w);
        used += us[t.replays++];
    }
    if (w.graph != NULL) gpu_need(g, g->api->graph_destroy(w.graph), "giving back a graph");
    statistics(&t, us);
    return t;
}
