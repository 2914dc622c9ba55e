/* family_rig.h - a small model of a family on the CPU, and steps of any composition on it.
 *
 *     rig_backend   the CPU, exact or fast
 *     golden_read   what the reference says, from tests/families/NAME.golden (make.py there)
 *     rig_open      the model's file, perhaps changed, on a backend
 *     rig_step      rows of several sequences in one step; the logits of the last row of each
 *     rig_prefill   a prompt alone, in chunks of n
 *
 * Sequences have blocks in no order. */
#ifndef INFERD_FAMILY_RIG_H
#define INFERD_FAMILY_RIG_H

#include <unistd.h>

#include "family_file.h"
#include "kernels/backend.h"
#include "model_private.h"
#include "test.h"

enum {
    RIG_ROWS = 512,
    RIG_SEQS = 8,
    RIG_PAGES = 24,
    RIG_BLOCKS = 512, // of a sequence, times groups
    RIG_VOCAB_MAX = 512
};

/* ---- goldens ---- */

enum { GOLDEN_PROMPTS_MAX = 8, GOLDEN_GREEDY = 16 };

typedef struct golden_prompt {
    uint32_t n_tokens;
    float logits[RIG_VOCAB_MAX]; // of the last position
    tok_id said[GOLDEN_GREEDY];  // after it
    float gaps[GOLDEN_GREEDY];   // between the two largest logits, in their rms
} golden_prompt;

typedef struct golden {
    char head[FAMILY_NAME_BYTES];
    uint64_t seed, file_hash;
    uint32_t context; // served; 0: that of the file
    uint32_t n_vocab;
    tok_id *tokens; // of the longest prompt; owned
    golden_prompt prompts[GOLDEN_PROMPTS_MAX];
    size_t n_prompts;
} golden;

static inline void golden_path(const char *name, const char *suffix, char *out, size_t n) {
    const char *dir = getenv("INFERD_TEST_FAMILIES"); // where they were copied
    snprintf(out, n, "%s/%s.%s", dir != NULL ? dir : INFERD_SOURCE_DIR "/tests/families", name,
             suffix);
}

static inline void golden_read_greedy(const char *line, golden_prompt *p) {
    for (int i = 0, n; i < GOLDEN_GREEDY; i++, line += n)
        INFERD_CHECK(sscanf(line, " %u:%f%n", &p->said[i], &p->gaps[i], &n) == 2);
}

static inline void golden_read_line(const char *line, golden *g) {
    unsigned n;
    if (sscanf(line, "prompt %u", &n) == 1) {
        INFERD_CHECK(g->n_prompts < GOLDEN_PROMPTS_MAX);
        g->prompts[g->n_prompts++].n_tokens = n;
    } else if (strncmp(line, "greedy ", 7) == 0) {
        INFERD_CHECK(g->n_prompts > 0);
        golden_read_greedy(line + 7, &g->prompts[g->n_prompts - 1]);
    } else if (sscanf(line, "head %63s", g->head) != 1 &&
               sscanf(line, "seed %" SCNu64, &g->seed) != 1 &&
               sscanf(line, "file %" SCNx64, &g->file_hash) != 1 &&
               sscanf(line, "context %u", &g->context) != 1) {
        sscanf(line, "vocab %u", &g->n_vocab); // others are for people
    }
}

static inline void golden_read(const char *name, golden *g) {
    char path[512];
    size_t n, at = 0;
    *g = (golden){0};
    golden_path(name, "golden", path, sizeof path);
    unsigned char *p = family_read(path, &n);
    while (at < n && p[at] != '\n') {
        char line[512];
        size_t length = (size_t)((unsigned char *)memchr(p + at, '\n', n - at) - (p + at));
        INFERD_CHECK(length < sizeof line);
        memcpy(line, p + at, length);
        line[length] = 0;
        golden_read_line(line, g);
        at += length + 1;
    }
    at++;
    INFERD_CHECK(g->n_prompts > 0 && g->n_vocab > 0 && g->n_vocab <= RIG_VOCAB_MAX);
    size_t n_tokens = g->prompts[g->n_prompts - 1].n_tokens, logit_bytes = g->n_vocab * 4;
    INFERD_CHECK(at + n_tokens * 2 + g->n_prompts * logit_bytes == n);
    g->tokens = malloc(n_tokens * sizeof *g->tokens);
    INFERD_CHECK(g->tokens != NULL);
    for (size_t i = 0; i < n_tokens; i++, at += 2) g->tokens[i] = (tok_id)(p[at] | p[at + 1] << 8);
    for (size_t i = 0; i < g->n_prompts; i++, at += logit_bytes)
        memcpy(g->prompts[i].logits, p + at, logit_bytes);
    free(p);
}

static inline void golden_deinit(golden *g) {
    free(g->tokens);
    g->tokens = NULL;
}

/* The file that belongs to it; the caller changes and writes it. */
static inline void golden_file(const golden *g, family_file *out) {
    char path[512];
    size_t n;
    golden_path(g->head, "head", path, sizeof path);
    unsigned char *head = family_read(path, &n);
    family_make(head, n, g->seed, out);
    free(head);
    if (family_hash(out->p, out->n) == g->file_hash) return;
    printf("%s.head and seed %" PRIu64 " give another file than the golden's\n", g->head, g->seed);
    test_failures++;
}

/* ---- the model ---- */

/* Opened once for all models of a test: its memory is touched page by page. */
static inline backend *rig_backend_open(const backend_options *o) {
    inferd_err err;
    backend *be = NULL;
    if (backend_open(o, &be, &err) != INFERD_OK) printf("%s\n", err.text);
    INFERD_CHECK(be != NULL && be_n_pages(be) >= RIG_PAGES);
    while (be_n_pages_ready(be) < RIG_PAGES) usleep(200);
    return be;
}

static inline backend *rig_backend(bool fast) {
    backend_options o = {
        .kind = "cpu", .n_threads = 1, .memory_bytes = RIG_PAGES * 2u << 20, .exact_math = !fast};
    return rig_backend_open(&o);
}

typedef struct rig {
    backend *be; // borrowed
    model *m;
    bound_model *p;
    uint32_t kv_page, n_slots, slots_used;
    uint32_t n_vocab;
    char path[64];
} rig;

typedef struct rig_seq {
    uint32_t n_computed, n_blocks;
    int32_t slots[RIG_BLOCKS]; // [n_blocks, n_groups]
} rig_seq;

/* Changes of the description, before the model is placed and after it; both may be NULL. */
typedef struct rig_options {
    kv_type kv;
    uint32_t context;
    void (*change)(decoder_spec *s);
    void (*change_late)(decoder_spec *s);
} rig_options;

static inline bool rig_bring_up(rig *r, const rig_options *o, inferd_err *err) {
    uint32_t pages[RIG_PAGES];
    model_limits limits = {RIG_ROWS, RIG_SEQS, o->kv};
    model_options from = {.path = r->path, .context_max = o->context};
    if (model_open(&from, &r->m, err) != INFERD_OK) return false;
    if (o->change != NULL) o->change(&r->m->spec);
    if (bound_open(r->m, r->be, &limits, &r->p, err) != INFERD_OK) return false;
    uint32_t n = bound_weight_pages(r->p);
    INFERD_CHECK(n < RIG_PAGES);
    for (uint32_t i = 0; i < n; i++) pages[i] = i;
    if (bound_bring_up(r->p, pages, n, err) != INFERD_OK) return false;
    if (o->change_late != NULL) o->change_late(&r->m->spec);
    r->kv_page = n;
    r->n_slots = (RIG_PAGES - n) * bound_kv(r->p)->slots_per_page;
    r->n_vocab = model_about(r->m)->n_vocab;
    INFERD_CHECK(r->n_vocab <= RIG_VOCAB_MAX);
    return true;
}

static inline void rig_close(rig *r) {
    bound_close(r->p);
    model_close(r->m);
    if (r->path[0] != 0) unlink(r->path);
    *r = (rig){0};
}

/* false: the file cannot be served, and err says why. */
static inline bool rig_open(rig *r, backend *be, const family_file *f, const rig_options *o,
                            inferd_err *err) {
    *r = (rig){.be = be};
    *err = (inferd_err){0};
    snprintf(r->path, sizeof r->path, "/tmp/test_families.%d.gguf", (int)getpid());
    family_write(r->path, f->p, f->n);
    if (rig_bring_up(r, o, err)) return true;
    rig_close(r);
    return false;
}

/* ---- steps ---- */

/* The k-th slot that is taken: all of them in an order without neighbours. */
static inline int32_t slot_at(const rig *r, uint32_t k) {
    enum { STEP = 7919 }; // a prime
    INFERD_CHECK(r->n_slots % STEP != 0);
    uint32_t at = (uint32_t)((uint64_t)k * STEP % r->n_slots);
    return (int32_t)(r->kv_page * bound_kv(r->p)->slots_per_page + at);
}

static inline void seq_make_room(rig *r, rig_seq *s, uint32_t n_tokens) {
    const kv_layout *kv = bound_kv(r->p);
    uint32_t n_blocks = kv_blocks_of(kv, n_tokens);
    INFERD_CHECK(n_blocks * kv->n_groups <= RIG_BLOCKS);
    for (; s->n_blocks < n_blocks; s->n_blocks++)
        for (uint32_t g = 0; g < kv->n_groups; g++) {
            INFERD_CHECK(r->slots_used < r->n_slots);
            s->slots[s->n_blocks * kv->n_groups + g] = slot_at(r, r->slots_used++);
        }
}

/* All sequences are forgotten. */
static inline void rig_forget(rig *r) {
    r->slots_used = 0;
}

/* Some rows of a sequence: the next `n` tokens. */
typedef struct rig_part {
    rig_seq *seq;
    const tok_id *tokens; // [n]
    uint32_t n;
    float *logits; // [n_vocab] of the last row; NULL: not wanted
} rig_part;

typedef struct rig_batch {
    tok_id tokens[RIG_ROWS];
    uint32_t pending[RIG_ROWS], positions[RIG_ROWS], row_seq[RIG_ROWS], logit_rows[RIG_SEQS];
    batch_seq seqs[RIG_SEQS];
    batch b;
} rig_batch;

static inline void add_part(rig *r, rig_batch *t, const rig_part *part) {
    rig_seq *s = part->seq;
    uint32_t at = t->b.n_rows, idx = t->b.n_seqs++;
    INFERD_CHECK(at + part->n <= RIG_ROWS && idx < RIG_SEQS);
    seq_make_room(r, s, s->n_computed + part->n);
    t->seqs[idx] = (batch_seq){at, part->n, s->n_computed, s->n_blocks, s->slots};
    for (uint32_t i = 0; i < part->n; i++) {
        t->tokens[at + i] = part->tokens[i];
        t->positions[at + i] = s->n_computed + i;
        t->row_seq[at + i] = idx;
    }
    t->b.n_rows += part->n;
    s->n_computed += part->n;
    if (part->logits != NULL) t->logit_rows[t->b.n_logits++] = t->b.n_rows - 1;
}

static inline bool rig_step(rig *r, const rig_part *parts, size_t n_parts) {
    static rig_batch t;
    be_step_result result;
    inferd_err err = {0};
    uint32_t n_logits = 0;
    t.b = (batch){.tokens = t.tokens,
                  .pending = t.pending,
                  .positions = t.positions,
                  .row_seq = t.row_seq,
                  .seqs = t.seqs,
                  .logit_rows = t.logit_rows};
    for (size_t i = 0; i < n_parts; i++) add_part(r, &t, &parts[i]);
    bound_launch(r->p, &t.b, NULL, r->n_vocab);
    if (be_step_finish(r->be, &result, &err) != INFERD_OK) {
        printf("a step: %s\n", err.text);
        test_failures++;
        return false;
    }
    for (size_t i = 0; i < n_parts; i++)
        if (parts[i].logits != NULL)
            memcpy(parts[i].logits, result.logits + result.logits_stride * n_logits++,
                   r->n_vocab * sizeof(float));
    return true;
}

/* Tokens [s->n_computed, n) in chunks, alone. */
static inline void rig_prefill(rig *r, rig_seq *s, const tok_id *tokens, uint32_t n, uint32_t chunk,
                               float *logits) {
    while (s->n_computed < n) {
        uint32_t rows = n - s->n_computed < chunk ? n - s->n_computed : chunk;
        bool last = s->n_computed + rows == n;
        rig_part part = {s, tokens + s->n_computed, rows, last ? logits : NULL};
        if (!rig_step(r, &part, 1)) return;
    }
}

/* ---- numbers ---- */

/* Normalised mean square error. */
static inline double rig_nmse(const float *got, const float *wanted, uint32_t n) {
    double off = 0, all = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)wanted[i];
        off += d * d;
        all += (double)wanted[i] * (double)wanted[i];
    }
    return off / all;
}

static inline tok_id rig_best(const float *logits, uint32_t n) {
    tok_id best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

#endif
