/* bench_step.c - a whole step of a model on the CUDA backend, and the time of its parts.
 *
 *     step      device time of a step as in the engine (upload, graph, results), and the host's
 *               time to describe and send it, with two unfinished steps
 *     whole     the same launches, captured again without copies: plain, and as programmatic
 *               dependents (PDL)
 *     kernels   the launches grouped by kernel and grid (a `sort`); each group replayed alone, with
 *               all its layers one after another, so that weights are read from memory: the sum is
 *               the time of the step without the cost of boundaries between different kernels
 *
 * The backend gets a table of calls that records the launches during capture (`spy`); the kernels
 * are then launched again with the same arguments.  Their results become meaningless, but their
 * time does not change. */
#include <string.h>

#include "cuda/module.h"
#include "gpu.h"
#include "inferd/clock.h"
#include "models/model.h"

static const uint64_t TINY_MEMORY = 2ull << 30; // at most
enum {
    CONTEXT = 1024,
    TINY_CONTEXT = 48,
    BATCH_MAX = 256,
    STEPS = 24,
    TINY_STEPS = 4,
    NOTES_MAX = 4096,
    GROUPS_MAX = 64,
    PARAMS_BYTES_MAX = 1024
};

/* ---- the table of calls ---- */

typedef struct note {
    cu_launch launch; // params points to `params`
    bool lt;
    lt_shape shape;
    lt_algo algo;
    const void *x, *w;
    void *out, *workspace;
    size_t workspace_bytes;
    unsigned char params[PARAMS_BYTES_MAX];
} note;

static struct {
    const cu_api *api;
    cu_api calls;
    cuda_module module;
    bool noting, broken;
    note *notes; // [NOTES_MAX] owned
    uint32_t n;
} spy;

static note *next_note(void) {
    if (spy.n == NOTES_MAX) spy.broken = true;
    if (spy.broken) return NULL;
    note *n = &spy.notes[spy.n++];
    memset(n, 0, sizeof *n);
    return n;
}

static cu_result spy_capture_begin(cu_stream s) {
    cu_result r = spy.api->capture_begin(s);
    spy.noting = r == CU_OK;
    spy.n = 0;
    return r;
}
static cu_result spy_capture_end(cu_stream s, cu_graph *out) {
    spy.noting = false;
    return spy.api->capture_end(s, out);
}
static cu_result spy_launch(const cu_launch *l, cu_stream s) {
    note *n = spy.noting ? next_note() : NULL;
    if (n != NULL && l->params_bytes > PARAMS_BYTES_MAX) spy.broken = true;
    if (n != NULL && !spy.broken) {
        n->launch = *l;
        memcpy(n->params, l->params, l->params_bytes);
        n->launch.params = n->params;
    }
    return spy.api->launch(l, s);
}
static cu_result spy_lt_matmul(const lt_shape *shape, const lt_algo *algo, const void *x,
                               const void *w, void *out, void *workspace, size_t workspace_bytes,
                               cu_stream s) {
    note *n = spy.noting ? next_note() : NULL;
    if (n != NULL) {
        n->lt = true;
        n->shape = *shape;
        n->algo = *algo;
        n->x = x;
        n->w = w;
        n->out = out;
        n->workspace = workspace;
        n->workspace_bytes = workspace_bytes;
    }
    return spy.api->lt_matmul(shape, algo, x, w, out, workspace, workspace_bytes, s);
}

static const cuda_module *spy_open(bool emulated) {
    const cuda_module *m = gpu_module(emulated);
    spy.api = m->api;
    spy.calls = *m->api;
    spy.calls.capture_begin = spy_capture_begin;
    spy.calls.capture_end = spy_capture_end;
    spy.calls.launch = spy_launch;
    spy.calls.lt_matmul = spy_lt_matmul;
    spy.module = *m;
    spy.module.api = &spy.calls;
    spy.notes = calloc(NOTES_MAX, sizeof *spy.notes);
    if (spy.notes == NULL) gpu_die("no memory for %d launches", NOTES_MAX);
    return &spy.module;
}

/* ---- launching again ---- */

static const char *name_of(const note *n) {
    if (n->lt) return "cuBLASLt";
    for (uint32_t i = 0; i < spy.module.n_kernels; i++)
        if (spy.module.kernels[i].fn == n->launch.fn) return spy.module.kernels[i].name;
    return "unknown";
}

static bool same_sort(const note *a, const note *b) {
    if (a->lt || b->lt) return a->lt && b->lt && memcmp(&a->shape, &b->shape, sizeof a->shape) == 0;
    return a->launch.fn == b->launch.fn && a->launch.threads == b->launch.threads &&
           memcmp(a->launch.grid, b->launch.grid, sizeof a->launch.grid) == 0 &&
           a->launch.shared_bytes == b->launch.shared_bytes;
}

static void again(gpu *g, const note *n, bool dependent) {
    cu_result r;
    if (n->lt) {
        r = g->api->lt_matmul(&n->shape, &n->algo, n->x, n->w, n->out, n->workspace,
                              n->workspace_bytes, g->l.stream);
    } else {
        cu_launch l = n->launch;
        l.dependent = dependent;
        r = g->api->launch(&l, g->l.stream);
    }
    launch_failed(&g->l, r, name_of(n));
}

typedef struct sort {
    const note *notes[NOTES_MAX];
    uint32_t n;
} sort;

static void queue_one(gpu *g, void *ctx, uint32_t i) {
    const sort *s = ctx;
    again(g, s->notes[i % s->n], false);
}

static void queue_all(gpu *g, void *ctx, uint32_t i) {
    const bool *dependent = ctx;
    (void)i;
    for (uint32_t k = 0; k < spy.n; k++) again(g, &spy.notes[k], *dependent);
}

/* Prints the times of the groups; returns their sum in microseconds. */
static double kernels(gpu *g, const char *name, uint32_t rows) {
    static sort s;
    bool *done = calloc(spy.n, sizeof *done);
    if (done == NULL) gpu_die("no memory for %u launches", spy.n);
    double sum = 0;
    for (uint32_t i = 0; i < spy.n; i++) {
        if (done[i]) continue;
        s.n = 0;
        for (uint32_t k = i; k < spy.n; k++)
            if (!done[k] && same_sort(&spy.notes[i], &spy.notes[k])) {
                done[k] = true;
                s.notes[s.n++] = &spy.notes[k];
            }
        gpu_time t = gpu_measure(g, queue_one, &s, s.n);
        sum += t.us * s.n;
        const cu_launch *l = &spy.notes[i].launch;
        row_begin("kernels");
        row_text("model", name);
        row_count("batch", rows);
        row_text("kernel", name_of(&spy.notes[i]));
        if (!spy.notes[i].lt) {
            row_count("grid_x", l->grid[0]);
            row_count("grid_y", l->grid[1]);
            row_count("grid_z", l->grid[2]);
        } else {
            row_count("n", spy.notes[i].shape.n);
            row_count("k", spy.notes[i].shape.k);
        }
        row_count("launches", s.n);
        row_time(&t);
        row_number("step_us", t.us * s.n);
        row_end();
    }
    free(done);
    return sum;
}

/* ---- a model that decodes ---- */

typedef struct rig {
    backend *be;
    model *m;
    bound_model *p;
    uint32_t *pages, n_pages, context;
    batch b;
    tok_id tokens[BATCH_MAX], history[CONTEXT + STEPS];
    uint32_t pending[BATCH_MAX], positions[BATCH_MAX], row_seq[BATCH_MAX], logit_rows[BATCH_MAX];
    batch_seq seqs[BATCH_MAX];
    sample_row draws[BATCH_MAX];
    int32_t *slots; // [batch, blocks, groups] owned
    uint64_t load_us, memory_bytes;
} rig;

static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1};

/* 0: all free memory.  A small model neither needs nor waits for all of it: a backend is open once
 * all of its memory is created, which takes tens of thousands of calls on a large card. */
static uint64_t memory_for(gpu *g, const gpu_options *o) {
    return o->tiny || o->emulated ? u64_min(TINY_MEMORY, gpu_free_bytes(g) / 4 * 3) : 0;
}

static void rig_open(rig *r, gpu *g, const gpu_options *o, const char *path) {
    inferd_err err = {0};
    memset(r, 0, sizeof *r);
    r->context = o->tiny ? TINY_CONTEXT : CONTEXT;
    backend_options options = {
        .kind = "cuda", .memory_bytes = memory_for(g, o), .module = spy_open(o->emulated)};
    gpu_need_status(backend_open(&options, &r->be, &err), &err);
    gpu_need_status(model_open(&(model_options){.path = path, .allow_dummy = true}, &r->m, &err),
                    &err);
    model_limits limits = {
        .rows_max = BATCH_MAX, .logits_max = o->tiny ? 8 : BATCH_MAX, .kv = KV_F16};
    limits.rows_max = limits.logits_max;
    gpu_need_status(bound_open(r->m, r->be, &limits, &r->p, &err), &err);
    uint64_t began = clock_now_us();
    r->n_pages = bound_weight_pages(r->p);
    r->pages = malloc(r->n_pages * sizeof *r->pages);
    if (r->pages == NULL) gpu_die("no memory for %u pages", r->n_pages);
    for (uint32_t i = 0; i < r->n_pages; i++) r->pages[i] = i;
    while (be_n_pages_ready(r->be) < be_n_pages(r->be))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (be_n_pages(r->be) < r->n_pages)
        gpu_die("%s needs %u pages, the device has %u", path, r->n_pages, be_n_pages(r->be));
    gpu_need_status(bound_bring_up(r->p, r->pages, r->n_pages, &err), &err);
    gpu_need_status(be_sync(r->be, &err), &err);
    r->memory_bytes = (uint64_t)be_n_pages(r->be) * be_page_bytes(r->be);
    r->load_us = clock_now_us() - began;
}

static void rig_close(rig *r) {
    bound_close(r->p);
    model_close(r->m);
    backend_close(r->be);
    free(r->pages);
    free(r->slots);
    free(spy.notes);
}

/* n sequences, each with r->context tokens.  False: their keys and values do not fit. */
static bool make_batch(rig *r, uint32_t n) {
    const kv_layout *kv = bound_kv(r->p);
    uint32_t n_blocks = kv_blocks_of(kv, r->context + STEPS);
    uint64_t n_slots = (uint64_t)n * n_blocks * kv->n_groups,
             first = (uint64_t)r->n_pages * kv->slots_per_page;
    if (first + n_slots > (uint64_t)be_n_pages(r->be) * kv->slots_per_page) return false;
    free(r->slots);
    r->slots = malloc(n_slots * sizeof *r->slots);
    if (r->slots == NULL) gpu_die("no memory for %llu slots", (unsigned long long)n_slots);
    for (uint64_t i = 0; i < n_slots; i++) r->slots[i] = (int32_t)(first + i);
    for (uint32_t i = 0; i < r->context + STEPS; i++) r->history[i] = (tok_id)(i % 100);
    for (uint32_t i = 0; i < n; i++) {
        r->tokens[i] = (tok_id)(1 + i % 100);
        r->pending[i] = 0;
        r->row_seq[i] = r->logit_rows[i] = i;
        r->seqs[i] = (batch_seq){i, 1, 0, n_blocks, r->slots + (size_t)i * n_blocks * kv->n_groups};
        r->draws[i] = (sample_row){
            .params = &greedy, .tokens = r->history, .n_prompt = 1, .forced = -1, .n_top = -1};
    }
    r->b = (batch){.n_rows = n,
                   .n_seqs = n,
                   .n_logits = n,
                   .tokens = r->tokens,
                   .pending = r->pending,
                   .positions = r->positions,
                   .row_seq = r->row_seq,
                   .seqs = r->seqs,
                   .logit_rows = r->logit_rows};
    return true;
}

static void send(rig *r, uint32_t position) {
    for (uint32_t i = 0; i < r->b.n_rows; i++) {
        r->positions[i] = r->seqs[i].pos_begin = position;
        r->draws[i].n_tokens = position + 1;
    }
    bound_launch(r->p, &r->b, r->draws, model_about(r->m)->n_vocab);
}

static double finish(rig *r) {
    be_step_result result;
    inferd_err err = {0};
    gpu_need_status(be_step_finish(r->be, &result, &err), &err);
    return (double)result.device_us;
}

static void steps(rig *r, const char *name, uint32_t n, bool tiny) {
    double device[STEPS], host[STEPS], waited = 0;
    uint32_t n_steps = tiny ? TINY_STEPS : STEPS, n_timed = 0, depth = be_depth(r->be);
    uint32_t begin = r->context - n_steps; // the last step has r->context
    uint32_t warm = tiny ? 2 : 4;          // run once, then captured
    for (uint32_t i = 0; i < warm; i++) {
        send(r, begin);
        finish(r);
    }
    uint64_t began = clock_now_us();
    for (uint32_t i = 0; i < n_steps; i++) {
        double before = gpu_now_us();
        send(r, begin + i);
        host[i] = gpu_now_us() - before;
        if (i + 1 < depth) continue;
        device[n_timed++] = finish(r);
    }
    while (n_timed < n_steps) device[n_timed++] = finish(r);
    waited = (double)(clock_now_us() - began) / n_steps;
    backend_stats stats;
    be_get_stats(r->be, &stats);
    double median = gpu_median(device, n_steps);
    row_begin("step");
    row_text("model", name);
    row_count("batch", n);
    row_count("context", r->context);
    row_number("device_us", median);
    row_number("low_us", device[0]);
    row_number("high_us", device[n_steps - 1]);
    row_number("host_us", gpu_median(host, n_steps));
    row_number("wall_us", waited);
    row_number("tokens_s", n / waited * 1e6);
    row_count("graphs", stats.n_graphs);
    row_count("graphs_refused", stats.n_graphs_refused);
    row_end();
}

static void parts(gpu *g, rig *r, const char *name, uint32_t n) {
    if (spy.broken) gpu_die("a step has more launches, or larger arguments, than can be noted");
    if (spy.n == 0) return; // graphs are off, so nothing was captured
    double sum = kernels(g, name, n);
    for (int dependent = 0; dependent < 2; dependent++) {
        bool pdl = dependent == 1;
        if (pdl && g->device.cc_major < 9) continue;
        gpu_time t = gpu_measure(g, queue_all, &pdl, 1);
        row_begin("whole");
        row_text("model", name);
        row_count("batch", n);
        row_bool("pdl", pdl);
        row_count("launches", spy.n);
        row_number("launches_per_layer", (double)spy.n / model_about(r->m)->n_layers);
        row_time(&t);
        row_number("kernels_us", sum);
        row_number("whole_over_kernels", t.us / sum);
        row_end();
    }
}

void bench_step(const gpu_options *o, const char *path, const char *batches) {
    static rig r;
    gpu g;
    gpu_open(&g, o);
    rig_open(&r, &g, o, path);
    row_begin("model");
    row_text("model", path);
    row_count("layers", model_about(r.m)->n_layers);
    row_count("params", model_about(r.m)->n_params);
    row_number("load_us", (double)r.load_us);
    row_count("pages_bytes", r.memory_bytes);
    row_end();
    for (const char *p = batches; *p != 0; p += strcspn(p, ","), p += *p == ',') {
        uint32_t n = (uint32_t)strtoul(p, NULL, 10);
        if (n == 0 || n > (o->tiny ? 8u : (uint32_t)BATCH_MAX)) gpu_die("a batch of \"%s\"", p);
        spy.n = 0;
        if (!make_batch(&r, n)) {
            row_begin("step");
            row_text("model", path);
            row_count("batch", n);
            row_text("left_out", "its keys and values do not fit");
            row_end();
            continue;
        }
        steps(&r, path, n, o->tiny);
        parts(&g, &r, path, n);
    }
    backend_stats stats;
    be_get_stats(r.be, &stats);
    gpu_tell_parts(&stats);
    rig_close(&r);
    gpu_close(&g);
}
