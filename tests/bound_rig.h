/* bound_rig.h - a small model from a file on a backend: staged as a test wants it, and what it
 * says about a fixed text.
 *
 *     rig_open     backend, model, placed; nothing is read yet
 *     rig_score    logits of all rows of one step, copied
 *     told_by      the same by the book: whole tensors, one after the other, no stage */
#ifndef INFERD_BOUND_RIG_H
#define INFERD_BOUND_RIG_H

#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "kernels/backend.h"
#include "model_private.h"
#include "test.h"
#include "tiny_gguf.h"
#include "weights.h"

enum { RIG_ROWS = 12, RIG_PAGES_MAX = 64, RIG_KV_PAGES = 2, RIG_LOGITS_MAX = RIG_ROWS * 1024 };

typedef struct rig {
    backend *be;
    model *m;
    bound_model *p;
    uint32_t first_page; // of the weights; keys and values are at kv_page
    uint32_t kv_page;
    uint32_t pages[RIG_PAGES_MAX], n_pages;
} rig;

typedef struct told {
    float logits[RIG_LOGITS_MAX];
    size_t n;
} told;

static inline void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static inline bool fine(inferd_status st, const inferd_err *err) {
    if (st == INFERD_OK) return true;
    printf("%s\n", err->text);
    test_failures++;
    return false;
}

static inline model *open_model(const char *path) {
    model *m = NULL;
    inferd_err err = {0};
    fine(model_open(&(model_options){.path = path, .allow_dummy = true}, &m, &err), &err);
    return m;
}

/* Place the model on the rig's backend, its pages from first_page on, taken from the last down so
 * that nothing is in order where pages need no neighbours. */
static inline bool rig_bind(rig *r, const char *path, uint32_t first_page) {
    inferd_err err = {0};
    model_limits limits = {.rows_max = RIG_ROWS, .logits_max = RIG_ROWS, .kv = KV_F16};
    r->m = open_model(path);
    if (r->m == NULL || !fine(bound_open(r->m, r->be, &limits, &r->p, &err), &err)) return false;
    r->n_pages = bound_weight_pages(r->p);
    r->first_page = first_page;
    r->kv_page = first_page + r->n_pages;
    INFERD_CHECK(r->n_pages <= RIG_PAGES_MAX && r->kv_page + RIG_KV_PAGES <= be_n_pages(r->be));
    for (int i = 0; i < 100000 && be_n_pages_ready(r->be) < r->kv_page + RIG_KV_PAGES; i++) nap();
    bool any_order = be_extent_pages(r->be) == 1;
    for (uint32_t i = 0; i < r->n_pages; i++)
        r->pages[i] = first_page + (any_order ? r->n_pages - 1 - i : i);
    return true;
}

static inline bool rig_open(rig *r, const backend_options *o, const char *path) {
    inferd_err err = {0};
    *r = (rig){0};
    return fine(backend_open(o, &r->be, &err), &err) && rig_bind(r, path, 0);
}

static inline void rig_close(rig *r) {
    bound_close(r->p);
    model_close(r->m);
    backend_close(r->be);
    *r = (rig){0};
}

static inline const backend_options *on_cpu(uint32_t n_threads) {
    static _Thread_local backend_options o;
    o = (backend_options){
        .kind = "cpu", .n_threads = n_threads, .memory_bytes = 96u << 20, .exact_math = true};
    return &o;
}

/* ---- what it says ---- */

typedef struct text {
    tok_id tokens[RIG_ROWS];
    uint32_t pending[RIG_ROWS], positions[RIG_ROWS], row_seq[RIG_ROWS];
    int32_t slots[64];
    batch_seq seq;
    batch b;
} text;

static inline void text_make(text *t, const kv_layout *kv, uint32_t kv_page) {
    uint32_t n_blocks = kv_blocks_of(kv, RIG_ROWS), n_slots = n_blocks * kv->n_groups;
    memset(t, 0, sizeof *t);
    INFERD_CHECK(n_slots <= INFERD_COUNT(t->slots) && n_slots <= RIG_KV_PAGES * kv->slots_per_page);
    for (uint32_t i = 0; i < n_slots; i++)
        t->slots[i] = (int32_t)(kv_page * kv->slots_per_page + i);
    for (uint32_t i = 0; i < RIG_ROWS; i++) {
        t->tokens[i] = (tok_id)(3 + i * 37 % 270);
        t->positions[i] = i;
    }
    t->seq = (batch_seq){0, RIG_ROWS, 0, n_blocks, t->slots};
    t->b = (batch){RIG_ROWS,     1,          RIG_ROWS, t->tokens,   t->pending,
                   t->positions, t->row_seq, &t->seq,  t->positions};
}

static inline void keep(told *out, const be_step_result *r, uint32_t n_vocab) {
    out->n = (size_t)RIG_ROWS * n_vocab;
    INFERD_CHECK(out->n <= RIG_LOGITS_MAX && r->logits != NULL);
    for (uint32_t i = 0; i < RIG_ROWS; i++)
        memcpy(out->logits + (size_t)i * n_vocab, r->logits + i * r->logits_stride,
               n_vocab * sizeof(float));
}

static inline bool rig_score(rig *r, told *out) {
    text t;
    be_step_result result;
    inferd_err err = {0};
    uint32_t n_vocab = model_about(r->m)->n_vocab;
    text_make(&t, bound_kv(r->p), r->kv_page);
    bound_launch(r->p, &t.b, NULL, n_vocab);
    if (!fine(be_step_finish(r->be, &result, &err), &err)) return false;
    keep(out, &result, n_vocab);
    return true;
}

static inline bool same(const told *a, const told *b) {
    return a->n > 0 && a->n == b->n && memcmp(a->logits, b->logits, a->n * sizeof(float)) == 0;
}

/* ---- by the book ---- */

static inline void put_whole(backend *be, const gguf *g, const weight_entry *e) {
    inferd_err err = {0};
    unsigned char *raw = malloc(e->tensor->n_bytes);
    float *values = malloc(e->cols * sizeof *values);
    INFERD_CHECK(raw != NULL && values != NULL);
    EXPECT_EQ(gguf_read(g, e->tensor, 0, raw, e->tensor->n_bytes, &err), INFERD_OK);
    if (e->matrix != NULL) {
        be_weight_prepare(be, e->matrix, raw, 0, e->rows);
    } else {
        dtype_to_f32(e->tensor->type, raw, values, e->cols);
        be_vec_load(be, e->vector, values);
    }
    free(raw);
    free(values);
}

/* On a CPU backend of its own. */
static inline void told_by(const char *path, const backend_options *o, told *out) {
    inferd_err err = {0};
    backend *be = NULL;
    model *m = open_model(path);
    decoder_weights weights;
    decoder_scratch scratch;
    weight_plan plan;
    be_window *seen;
    kv_layout kv;
    uint32_t pages[RIG_PAGES_MAX];
    text t;
    be_step_result result;
    INFERD_CHECK(m != NULL && backend_open(o, &be, &err) == INFERD_OK);
    const decoder_spec *s = &m->spec;
    EXPECT_EQ(kv_layout_choose(be, s, KV_F16, &kv, &err), INFERD_OK);
    EXPECT_EQ(weights_plan(m->file, be, s, &weights, &plan, &err), INFERD_OK);
    EXPECT_EQ(be_window_open(be, plan.n_bytes, &seen, &err), INFERD_OK);
    uint32_t n_pages = (uint32_t)((plan.n_bytes + be_page_bytes(be) - 1) / be_page_bytes(be));
    INFERD_CHECK(n_pages <= RIG_PAGES_MAX);
    for (uint32_t i = 0; i < n_pages; i++) pages[i] = i;
    EXPECT_EQ(be_window_map(be, seen, pages, n_pages, &err), INFERD_OK);
    EXPECT_EQ(decoder_scratch_open(be, s, RIG_ROWS, RIG_ROWS, &scratch, &err), INFERD_OK);
    weights_bind(be, s, &weights, &plan, be_window_base(seen));
    if (s->tied) weights.head = weights.embed;
    if (m->dummy)
        weights_make_up(be, s, &plan, m->dummy_seed);
    else
        for (size_t i = 0; i < plan.n; i++) put_whole(be, m->file, &plan.entries[i]);
    text_make(&t, &kv, n_pages);
    be_step_begin(be, &t.b, &kv);
    decoder_forward(be, s, &weights, &scratch, &t.b);
    be_want_logits(be, scratch.logits, RIG_ROWS);
    be_step_end(be);
    if (fine(be_step_finish(be, &result, &err), &err)) keep(out, &result, s->n_vocab);
    decoder_scratch_close(be, &scratch);
    be_window_close(be, seen);
    weights_deinit(&weights, &plan);
    model_close(m);
    backend_close(be);
}

/* ---- bringing it up in pieces ---- */

typedef struct bell {
    sem_t woken;
    uint32_t n_waits;
} bell;

static inline void bell_ring(void *ctx) {
    sem_post(&((bell *)ctx)->woken);
}

/* A stage that waits is woken once; false: it was not. */
static inline bool bell_wait(bell *b) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    b->n_waits++;
    return sem_timedwait(&b->woken, &until) == 0;
}

static inline inferd_status rig_stage_begin(rig *r, bell *b, inferd_err *err) {
    bool one = be_one_memory(r->be);
    return bound_stage_begin(r->p, one ? r->pages : NULL, one ? r->n_pages : 0, bell_ring, b, err);
}

/* At most n pieces that did something, as small as they come; how many there were.  *st: the first
 * failure. */
static inline uint32_t rig_pieces(rig *r, bell *b, uint32_t n, bound_progress *at,
                                  inferd_status *st, inferd_err *err) {
    uint32_t n_done = 0;
    *st = INFERD_OK;
    while (n_done < n && !at->finished && *st == INFERD_OK) {
        uint64_t before = at->done;
        *st = bound_stage_step(r->p, 0, at, err);
        if (*st != INFERD_OK) break;
        EXPECT(at->done >= before && at->done <= at->total);
        if (!at->waiting)
            n_done++;
        else if (!bell_wait(b)) {
            printf("a stage that waited was not woken\n");
            test_failures++;
            break;
        }
    }
    return n_done;
}

static inline uint32_t n_threads_now(void) {
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/task");
    INFERD_CHECK(d != NULL);
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n;
}

#endif
