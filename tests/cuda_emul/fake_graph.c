/* fake_graph.c - the calls about kernels, captures and graphs.
 *
 * Capture.  Between capture_begin and capture_end work of the stream goes into a graph; what the
 * capturing thread may not do meanwhile (fake_inner.h: NO_CAPTURE) fails and breaks the capture, as
 * do: a copy from or to host memory that is not pinned, waiting for an event that was recorded
 * outside, other threads that use the stream, and looking at an event recorded inside.  Forks of a
 * capture to other streams are not there: they are refused.
 *
 * Thread: under the fake's lock. */
#include "fake_inner.h"

#include <string.h>

enum { SHARED_DEFAULT = 48 << 10, SHARED_SYSTEM = 1 << 10, BLOCKS_PER_SM_MAX = 32 };
enum { GRID_YZ_MAX = 65535, PARAMS_MAX = 4096, THREADS_MAX = 1024 };

/* emul_run.h, when the emulator is linked. */
bool emul_launch(const void *fn, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes,
                 const void *params, uint32_t params_bytes, uint32_t threads_max, char *why,
                 size_t why_bytes) __attribute__((weak));
bool emul_waited(void) __attribute__((weak));
void emul_settle(void) __attribute__((weak));

/* ---- kernels ---- */

static fake_loaded *find_kernel(const void *fn) {
    for (uint32_t i = 0; i < fk.n_kernels; i++)
        if (fk.kernels[i].kernel->fn == fn) return &fk.kernels[i];
    fk_say(CU_EINVAL, "%p is no kernel of the module", fn);
    return NULL;
}

static cu_result check_block(const cu_kernel *k, uint32_t threads) {
    const cu_device *d = &fk.opt.device[fk_me.device];
    if (d->cc_major * 10 + d->cc_minor < k->cc_min)
        return fk_say(CU_EUNSUPPORTED, "%s: no kernel image for compute capability %u.%u", k->name,
                      d->cc_major, d->cc_minor);
    uint32_t max = u32_min(k->threads_max, THREADS_MAX);
    if (threads == 0 || threads % 32 != 0 || threads > max)
        return fk_say(CU_EINVAL, "%s: %u threads per block, allowed are whole warps up to %u",
                      k->name, threads, max);
    return CU_OK;
}

static uint32_t blocks_per_sm(uint32_t threads, uint32_t shared_bytes) {
    const cu_device *d = &fk.opt.device[fk_me.device];
    uint32_t n = BLOCKS_PER_SM_MAX;
    n = u32_min(n, d->threads_sm_max / threads);
    n = u32_min(n, d->shared_bytes_sm / (shared_bytes + SHARED_SYSTEM));
    if (fk.opt.registers_per_thread > 0)
        n = u32_min(n, d->registers_sm / (fk.opt.registers_per_thread * threads));
    return n;
}

static cu_result load(const void *fn, uint32_t threads, uint32_t shared_bytes,
                      cu_function_info *out) {
    fake_loaded *k = find_kernel(fn);
    if (k == NULL) return CU_EINVAL;
    cu_result r = check_block(k->kernel, threads);
    if (r != CU_OK) return r;
    uint32_t max = fk.opt.device[fk_me.device].shared_bytes_max;
    if (shared_bytes > max)
        return fk_say(CU_EINVAL, "%s: %u bytes of shared memory per block, the device has %u",
                      k->kernel->name, shared_bytes, max);
    k->threads = threads;
    k->shared_bytes = shared_bytes; // the newest word counts, as with the real attribute
    k->generation = fk.generation;
    if (out != NULL)
        *out = (cu_function_info){.registers = fk.opt.registers_per_thread,
                                  .threads_max = k->kernel->threads_max,
                                  .blocks_per_sm = blocks_per_sm(threads, shared_bytes)};
    return CU_OK;
}

static cu_result api_kernel_load(const void *fn, uint32_t threads, uint32_t shared_bytes,
                                 cu_function_info *out) {
    cu_result r = fk_enter(CALL_kernel_load);
    if (r == CU_OK) r = load(fn, threads, shared_bytes, out);
    return fk_leave(r);
}

static cu_result api_kernel_carve_out(const void *fn) {
    cu_result r = fk_enter(CALL_kernel_carve_out);
    if (r == CU_OK && find_kernel(fn) == NULL) r = CU_EINVAL;
    return fk_leave(r);
}

static cu_result check_launch(const fake_loaded *k, const cu_launch *l) {
    const cu_device *d = &fk.opt.device[fk_me.device];
    const char *name = k->kernel->name;
    cu_result r = check_block(k->kernel, l->threads);
    if (r != CU_OK) return r;
    if (l->grid[0] == 0 || l->grid[1] == 0 || l->grid[2] == 0 || l->grid[0] > INT32_MAX ||
        l->grid[1] > GRID_YZ_MAX || l->grid[2] > GRID_YZ_MAX)
        return fk_say(CU_EINVAL, "%s: a grid of %u x %u x %u", name, l->grid[0], l->grid[1],
                      l->grid[2]);
    if (l->params_bytes != k->kernel->params_bytes || l->params_bytes > PARAMS_MAX)
        return fk_say(CU_EINVAL, "%s: %u bytes of parameters, it takes %u (of at most %d)", name,
                      l->params_bytes, k->kernel->params_bytes, PARAMS_MAX);
    bool loaded = k->generation == fk.generation;
    uint32_t allowed = u32_max(SHARED_DEFAULT, loaded ? k->shared_bytes : 0);
    if (l->shared_bytes > u32_min(allowed, d->shared_bytes_max))
        return fk_say(CU_EINVAL, "%s: %u bytes of shared memory, kernel_load allowed %u", name,
                      l->shared_bytes, allowed);
    if (l->dependent && d->cc_major < 9)
        return fk_say(CU_EINVAL, "%s: a dependent launch needs compute capability 9.0", name);
    if (l->dependent && fk.opt.no_dependent)
        return fk_say(CU_EUNSUPPORTED, "%s: dependent launches are switched off", name);
    if (fk.opt.strict_loading && !loaded) fk_violate("%s was launched and never loaded", name);
    return CU_OK;
}

static cu_result submit_launch(const cu_launch *l, cu_stream s) {
    cu_result r = fk_stream_check(s);
    if (r != CU_OK) return r;
    const fake_loaded *k = find_kernel(l->fn);
    if (k == NULL) return CU_EINVAL;
    r = check_launch(k, l);
    if (r != CU_OK) return r;
    fake_op *op = fk_op_create(OP_LAUNCH, l->params_bytes);
    if (op == NULL) return CU_ENOMEM;
    op->kernel = k->kernel;
    op->launch = *l;
    op->launch.params = NULL; // the copy follows the operation
    memcpy(op->params, l->params, l->params_bytes);
    if (s->capture != NULL)
        fk.counts.n_captured++;
    else
        fk.counts.n_launches++;
    fk.counts.n_dependent += l->dependent;
    if (s->capture != NULL && l->dependent) s->capture->dependent = true;
    return fk_op_submit(s, op);
}

static cu_result api_launch(const cu_launch *l, cu_stream s) {
    cu_result r = fk_enter(CALL_launch);
    if (r == CU_OK) r = submit_launch(l, s);
    return fk_leave(r);
}

void fk_settle(void) {
    if (emul_settle != NULL) emul_settle();
}

cu_result fk_kernel_run(const fake_op *op) {
    fake_execute_fn *execute = fk.opt.execute != NULL ? fk.opt.execute : emul_launch;
    const cu_launch *l = &op->launch;
    char why[512] = "", where[160];
    fk.counts.n_run++;
    fk.refused = 0;
    if (!l->dependent) fk_settle(); // its predecessor has ended
    if (fk.lose_context_in > 0 && --fk.lose_context_in == 0)
        return fk_say(CU_ELOST, "%s: the context was lost because the test said so",
                      op->kernel->name);
    if (execute == NULL)
        return fk_say(CU_ELOST, "no emulator is linked to run %s", op->kernel->name);
    fk_wrong_before(op);
    if (execute(l->fn, l->grid, l->threads, l->shared_bytes, op->params, l->params_bytes,
                op->kernel->threads_max, why, sizeof why)) {
        fk_wrong_after();
        if (l->dependent && execute == emul_launch && emul_waited != NULL && !emul_waited())
            fk_violate("%s was launched as a dependent and never waits for its predecessor",
                       op->kernel->name);
        return CU_OK;
    }
    fk_memory_describe_refused(where, sizeof where);
    fk_violate("%s: %s%s%s%s", op->kernel->name, why, where[0] != 0 ? " (" : "", where,
               where[0] != 0 ? ")" : "");
    return fk_say(CU_ELOST, "unspecified launch failure in %s: %.180s", op->kernel->name, why);
}

/* ---- captures and graphs ---- */

static cu_result check_graph(cu_graph graph) {
    for (cu_graph g = fk.graphs; g != NULL; g = g->next)
        if (g == graph) return CU_OK;
    return fk_say(CU_EINVAL, "there is no graph %p", (void *)graph);
}

static cu_result begin_capture(cu_stream s) {
    cu_result r = fk_stream_check(s);
    if (r != CU_OK) return r;
    if (s->capture != NULL) return fk_break_capture(s->capture, "the stream is captured already");
    if (fk_me.capture != NULL)
        return fk_break_capture(fk_me.capture, "the thread captures already");
    fake_capture *c = calloc(1, sizeof *c);
    cu_graph g = calloc(1, sizeof *g);
    if (c == NULL || g == NULL) {
        free(c);
        free(g);
        return fk_say(CU_ENOMEM, "no host memory for a capture");
    }
    *g = (struct cu_graph_t){.serial = ++fk.serial, .refs = 1, .device = s->device};
    *c = (fake_capture){.stream = s, .graph = g, .thread = fk_me.id};
    s->capture = fk_me.capture = c;
    return CU_OK;
}

static cu_result api_capture_begin(cu_stream s) {
    cu_result r = fk_enter(CALL_capture_begin);
    if (r == CU_OK) r = begin_capture(s);
    return fk_leave(r);
}

static void drop_capture(fake_capture *c) {
    for (cu_event e = fk.events; e != NULL; e = e->next)
        if (e->capture == c) e->capture = NULL; // and stays `captured` until it is recorded again
    c->stream->capture = NULL;
    free(c);
}

static cu_result end_capture(cu_stream s, cu_graph *out) {
    cu_result r = fk_stream_check(s);
    if (r != CU_OK) return r;
    if (s->capture == NULL) return fk_say(CU_EINVAL, "the stream is not captured");
    fake_capture *c = s->capture;
    cu_graph g = c->graph;
    if (c->dependent && fk.opt.no_dependent_graphs && c->broken[0] == 0)
        snprintf(c->broken, sizeof c->broken, "dependent launches are in it");
    if (c->broken[0] != 0) {
        fk_say(CU_EINVAL, "the capture was broken: %.200s", c->broken);
        fk_graph_release(g);
        r = CU_EINVAL;
    } else {
        g->next = fk.graphs;
        fk.graphs = g;
        fk.counts.n_graphs++;
        *out = g;
    }
    drop_capture(c);
    fk_me.capture = NULL;
    return r;
}

static void abandon_capture(cu_stream s) {
    fk_graph_release(s->capture->graph);
    drop_capture(s->capture);
    fk_me.capture = NULL;
}

static cu_result api_capture_end(cu_stream s, cu_graph *out) {
    *out = NULL;
    cu_result r = fk_enter(CALL_capture_end);
    if (r == CU_OK)
        r = end_capture(s, out);
    else if (fk_stream_check(s) == CU_OK && s->capture != NULL) // however it ends, it has ended
        abandon_capture(s);
    return fk_leave(r);
}

static cu_result submit_graph(cu_graph g, cu_stream s) {
    cu_result r = fk_stream_check(s);
    if (r == CU_OK) r = check_graph(g);
    if (r != CU_OK) return r;
    if (g->device != s->device)
        return fk_say(CU_EINVAL, "the graph belongs to device %u, the stream to %u", g->device,
                      s->device);
    fake_op *op = fk_op_create(OP_GRAPH, 0);
    fake_mark *after = op != NULL ? fk_mark_create() : NULL;
    if (after == NULL) {
        fk_op_destroy(op);
        return fk_say(CU_ENOMEM, "no host memory for a graph launch");
    }
    op->graph = g;
    g->refs++;
    op->mark = g->newest; // takes the graph's reference
    op->after = after;
    after->home = s;
    after->refs = 2;
    g->newest = after;
    fk.counts.n_graph_launches++;
    return fk_op_submit(s, op);
}

static cu_result api_graph_launch(cu_graph g, cu_stream s) {
    cu_result r = fk_enter(CALL_graph_launch);
    if (r == CU_OK) r = submit_graph(g, s);
    return fk_leave(r);
}

static cu_result destroy_graph(cu_graph graph) {
    cu_result r = check_graph(graph);
    if (r != CU_OK) {
        fk_violate("graph_destroy: %s", fk_me.text);
        return r;
    }
    cu_graph *at = &fk.graphs;
    while (*at != graph) at = &(*at)->next;
    *at = graph->next;
    fk_graph_release(graph); // launches on their way hold it
    return CU_OK;
}

static cu_result api_graph_destroy(cu_graph g) {
    cu_result r = fk_enter(CALL_graph_destroy);
    if (gives_back(r)) r = fk_lost_or(r, destroy_graph(g));
    return fk_leave(r);
}

/* ---- the end ---- */

uint32_t fk_graph_leaks(void) {
    uint32_t n = 0;
    for (cu_graph g = fk.graphs; g != NULL; g = g->next, n++)
        fk_leaked("graph of %u operations (number %llu)", g->n_nodes,
                  (unsigned long long)g->serial);
    return n;
}

void fk_graph_reset(void) {
    while (fk.graphs != NULL) {
        cu_graph g = fk.graphs;
        fk.graphs = g->next;
        fk_graph_release(g);
    }
}

void fk_graph_api(cu_api *api) {
    api->kernel_load = api_kernel_load;
    api->kernel_carve_out = api_kernel_carve_out;
    api->launch = api_launch;
    api->capture_begin = api_capture_begin;
    api->capture_end = api_capture_end;
    api->graph_launch = api_graph_launch;
    api->graph_destroy = api_graph_destroy;
}
