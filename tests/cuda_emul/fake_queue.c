/* fake_queue.c - operations: how they wait, in which order they run, what they cost and do.
 *
 *     fk_op_submit -> queue of the stream -> fk_run_step, from its head   (or -> a capture's graph)
 *
 * A stream waits for marks: what event_record leaves in the queue of its stream.  A mark is queued
 * before anyone can wait for it, so streams never wait for each other in a circle; only a mark that
 * is lost never comes.
 *
 * Time: an operation begins when its stream is free, the host has issued it and what it waited for
 * is done.  Streams do not slow each other down.
 *
 * Thread: under the fake's lock. */
#include "fake_inner.h"

#include <string.h>

/* ---- marks and operations ---- */

fake_mark *fk_mark_create(void) {
    fake_mark *m = calloc(1, sizeof *m);
    if (m != NULL) m->refs = 1;
    return m;
}

void fk_mark_release(fake_mark *m) {
    if (m != NULL && --m->refs == 0) free(m);
}

fake_op *fk_op_create(fake_op_kind kind, uint32_t params_bytes) {
    fake_op *op = calloc(1, sizeof *op + params_bytes);
    if (op == NULL) {
        fk_say(CU_ENOMEM, "no host memory for an operation");
        return NULL;
    }
    op->kind = kind;
    return op;
}

void fk_op_destroy(fake_op *op) {
    if (op == NULL) return;
    fk_mark_release(op->mark);
    fk_mark_release(op->after);
    if (op->graph != NULL) fk_graph_release(op->graph);
    free(op->staged);
    free(op);
}

void fk_graph_release(cu_graph g) {
    if (--g->refs > 0) return;
    for (uint32_t i = 0; i < g->n_nodes; i++) fk_op_destroy(g->nodes[i]);
    free(g->nodes);
    fk_mark_release(g->newest);
    free(g);
}

static cu_result add_node(cu_graph g, fake_op *op) {
    if (g->n_nodes == g->nodes_max) {
        uint32_t max = g->nodes_max * 2 + 16;
        fake_op **nodes = realloc(g->nodes, max * sizeof(fake_op *));
        if (nodes == NULL) {
            fk_op_destroy(op);
            return fk_say(CU_ENOMEM, "no host memory for a graph of %u operations", max);
        }
        g->nodes = nodes;
        g->nodes_max = max;
    }
    g->nodes[g->n_nodes++] = op;
    return CU_OK;
}

cu_result fk_op_submit(cu_stream s, fake_op *op) {
    if (s->capture != NULL) return add_node(s->capture->graph, op);
    op->issued_ns = fk.host_ns;
    *s->tail = op;
    s->tail = &op->next;
    return CU_OK;
}

/* ---- doing it ---- */

static bool allowed(const void *p, size_t n, const char *what) {
    if (fk_memory_may_touch((uintptr_t)p, n)) {
        fk_memory_open(p, n);
        return true;
    }
    fk_violate("%s %zu bytes at %p, where the device may not", what, n, p);
    fk_lose("an illegal memory access was encountered: %s", fk.violation);
    return false;
}

static bool is_pinned(const void *p, size_t n, const char *what) {
    if (fk_memory_pinned(p, n) == PINNED_WHOLE) return true;
    fk_violate("%s %zu bytes of host memory at %p, which is not pinned any more", what, n, p);
    return false;
}

static void run_copy(const fake_op *op) {
    switch (op->kind) {
    case OP_TO_DEVICE:
        if (!allowed(op->dst, op->n, "a copy writes")) return;
        if (op->staged == NULL && !is_pinned(op->src, op->n, "a copy reads")) return;
        fk_settle();
        memcpy(op->dst, op->staged != NULL ? op->staged : op->src, op->n);
        break;
    case OP_TO_HOST:
        if (!allowed(op->src, op->n, "a copy reads")) return;
        /* Without staged memory the caller of copy_to_host stands and waits. */
        if (op->byte == 0 && !is_pinned(op->dst, op->n, "a copy writes")) return;
        memcpy(op->dst, op->src, op->n);
        break;
    case OP_ON_DEVICE:
        if (!allowed(op->src, op->n, "a copy reads") || !allowed(op->dst, op->n, "a copy writes"))
            return;
        memmove(op->dst, op->src, op->n);
        return;
    default:
        if (allowed(op->dst, op->n, "a fill writes")) memset(op->dst, op->byte, op->n);
        return;
    }
    fk.counts.n_copies++;
    fk.counts.copied_bytes += op->n;
}

static uint64_t copy_ns(size_t n) {
    uint64_t rate = fk.opt.bytes_per_us > 0 ? fk.opt.bytes_per_us : 1;
    return fk.opt.copy_us * 1000ull + (uint64_t)n * 1000 / rate;
}

/* Everything but marks, waits and graphs.  Returns the nanoseconds it took. */
static uint64_t run_work(const fake_op *op) {
    fk_memory_begin_work();
    if (op->kind == OP_LAUNCH) {
        fk.running = op->kernel->name;
        cu_result r = fk_kernel_run(op);
        fk_memory_look_for_faults();
        fk_memory_check_edges();
        if (r != CU_OK) fk_lose("%s", fk_me.text);
        return fk.opt.launch_us * 1000ull;
    }
    if (op->kind == OP_LT) {
        fk.running = "a matrix product";
        return fk_lt_run(op);
    }
    fk.running = "a copy";
    run_copy(op);
    return copy_ns(op->n);
}

/* ---- order ---- */

/* What the head of the queue waits for; NULL: nothing. */
static fake_mark *waits_for(const struct cu_stream_t *s) {
    const fake_op *op = s->head;
    if (op->kind == OP_RECORD && op->mark->lost) return op->mark;
    if (op->mark == NULL || op->mark->done || op->kind == OP_RECORD) return NULL;
    return op->mark;
}

static void set_mark(fake_mark *m, uint64_t now_ns) {
    m->done = true;
    m->home = NULL;
    m->time_ns = now_ns;
}

static void drop_stream_if_over(cu_stream s) {
    if (!s->destroyed || s->head != NULL) return;
    cu_stream *at = &fk.streams;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    free(s);
}

static void pop(cu_stream s) {
    fake_op *op = s->head;
    s->head = op->next;
    if (s->head == NULL) s->tail = &s->head;
    fk_op_destroy(op);
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

bool fk_run_step(cu_stream s) {
    fake_op *op = s->head;
    if (fk_is_lost((int32_t)s->device) || op == NULL || waits_for(s) != NULL) return false;
    fk.running_on = (int32_t)s->device;
    if (op->kind != OP_GRAPH || op->node_idx == 0) s->clock_ns = later(s->clock_ns, op->issued_ns);
    switch (op->kind) {
    case OP_RECORD:
        set_mark(op->mark, s->clock_ns);
        pop(s);
        break;
    case OP_WAIT:
        s->clock_ns = later(s->clock_ns, op->mark->time_ns);
        pop(s);
        break;
    case OP_GRAPH:
        if (op->node_idx == 0 && op->mark != NULL)
            s->clock_ns = later(s->clock_ns, op->mark->time_ns);
        if (op->node_idx < op->graph->n_nodes)
            s->clock_ns += run_work(op->graph->nodes[op->node_idx++]);
        if (op->node_idx == op->graph->n_nodes) {
            set_mark(op->after, s->clock_ns);
            pop(s);
        }
        break;
    default:
        s->clock_ns += run_work(op);
        pop(s);
    }
    fk.running_on = -1;
    drop_stream_if_over(s);
    return true;
}

void fk_run_some(uint32_t n_steps) {
    while (n_steps-- > 0) {
        cu_stream some[64];
        uint32_t n = 0;
        for (cu_stream s = fk.streams; s != NULL && n < INFERD_COUNT(some); s = s->next)
            if (s->head != NULL && waits_for(s) == NULL && !fk_is_lost((int32_t)s->device))
                some[n++] = s;
        if (n == 0 || !fk_run_step(some[fk_draw(n)])) return;
    }
}

/* A step of `s` may free it, when it was destroyed: its mark is done then. */
bool fk_run_until(cu_stream s, fake_mark *until) {
    while (until != NULL ? !until->done : s->head != NULL) {
        if (fk_is_lost((int32_t)s->device)) return false;
        if (fk.opt.advance_pct > 0 && fk_draw(4) == 0) {
            fk_run_some(1); // of any stream, perhaps of this one
            continue;
        }
        fake_mark *m = waits_for(s);
        if (m == NULL)
            fk_run_step(s);
        else if (m->lost || m->home == NULL || !fk_run_until(m->home, m))
            return false;
    }
    return true;
}

/* ---- looking into the queues ---- */

static bool overlaps(const void *a, size_t n_a, const void *b, size_t n_b) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a != NULL && x < y + n_b && y < x + n_a;
}

/* Any word of a kernel's parameters that is an address counts as one: a number of 64 bits that
 * looks like an address in one piece of memory is none by chance. */
static bool params_point_into(const fake_op *op, const void *p, size_t n) {
    for (size_t at = 0; at + sizeof(uintptr_t) <= op->launch.params_bytes; at += 8) {
        uintptr_t word;
        memcpy(&word, op->params + at, sizeof word);
        if (word - (uintptr_t)p < n) return true;
    }
    return false;
}

static bool op_touches(const fake_op *op, const void *p, size_t n) {
    switch (op->kind) {
    case OP_TO_DEVICE:
        return overlaps(op->dst, op->n, p, n) ||
               (op->staged == NULL && overlaps(op->src, op->n, p, n));
    case OP_TO_HOST:
    case OP_ON_DEVICE:
        return overlaps(op->dst, op->n, p, n) || overlaps(op->src, op->n, p, n);
    case OP_FILL:
        return overlaps(op->dst, op->n, p, n);
    case OP_LAUNCH:
        return params_point_into(op, p, n);
    case OP_LT:
        return overlaps(op->src, 1, p, n) || overlaps(op->w, 1, p, n) ||
               overlaps(op->dst, 1, p, n) || overlaps(op->workspace, op->n, p, n);
    case OP_GRAPH:
        for (uint32_t i = op->node_idx; i < op->graph->n_nodes; i++)
            if (op_touches(op->graph->nodes[i], p, n)) return true;
        return false;
    case OP_RECORD:
    case OP_WAIT:
        break;
    }
    return false;
}

void fk_queue_must_not_touch(const void *p, size_t n, const char *what) {
    for (cu_stream s = fk.streams; s != NULL; s = s->next)
        for (const fake_op *op = s->head; op != NULL; op = op->next)
            if (!fk_is_lost((int32_t)s->device) && op_touches(op, p, n)) {
                fk_violate("%s of %zu bytes at %p, which queued work (%s) still uses", what, n, p,
                           op->kind == OP_LAUNCH  ? op->kernel->name
                           : op->kind == OP_LT    ? "a matrix product"
                           : op->kind == OP_GRAPH ? "a graph"
                                                  : "a copy");
                return;
            }
}

uint32_t fk_queue_pending(void) {
    uint32_t n = 0;
    for (cu_stream s = fk.streams; s != NULL; s = s->next)
        for (const fake_op *op = s->head; op != NULL; op = op->next) n++;
    return n;
}

void fk_queue_reset(void) {
    for (cu_stream s = fk.streams; s != NULL; s = s->next)
        while (s->head != NULL) pop(s);
}
