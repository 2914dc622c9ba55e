/* forced_rig.c - a model on a device computes the rows of a text; see forced.h.
 *
 *     pages   [ weights | prompt, whole | prompt, in chunks | prompt beside | a block per row ]
 *
 * A decode row uses the prompt's blocks that its context fills completely, shared with the other
 * rows, and one block of its own.  The remaining tokens of its context are computed again into its
 * own block, followed by its own token.  Blocks have 16 or 32 tokens, depending on the backend; the
 * results do not depend on it. */
#include <string.h>
#include <time.h>

#include "forced.h"
#include "gpu.h"

enum { BEST = 20 }; // log-probabilities the device returns when it draws

typedef struct table {
    int32_t *slots; // [n_blocks, n_groups] owned
    uint32_t n_blocks;
} table;

struct forced_rig {
    backend *be;
    model *m;
    bound_model *p;
    const forced_reference *text; // borrowed
    uint32_t *pages, n_pages;     // of the weights
    uint32_t block_tokens, n_groups, rows_max;
    int32_t next_slot;
    table prompt[FORCED_CUTS], beside, decode[FORCED_DECODE_MAX];
    /* The step being built: [rows_max] each, owned. */
    tok_id *tokens;
    uint32_t *pending, *positions, *row_seq, *logit_rows, *asked;
    batch_seq *seqs;
    batch b;
};

static void *take(size_t n, size_t each) {
    void *p = calloc(n, each);
    if (p == NULL) gpu_die("no memory for %zu things of %zu bytes", n, each);
    return p;
}

/* ---- opening ---- */

static uint64_t kv_bytes(const forced_rig *r) {
    const model_info *a = model_about(r->m);
    uint64_t n_tokens = 3 * (uint64_t)r->text->n_prompt + 32 * (uint64_t)r->text->n_decode + 256;
    return n_tokens * 2 * a->n_kv_heads * a->head_dim * a->n_layers * sizeof(float);
}

static uint32_t logits_max(const forced_reference *t) {
    return u32_max(t->n_decode, t->n_rows);
}

static void open_backend(forced_rig *r, const forced_device *d) {
    inferd_err err = {0};
    uint64_t weights = model_about(r->m)->file_bytes;
    backend_options o = {
        .kind = d->kind, .exact_math = d->exact, .off = d->off, .activations = d->activations};
    if (strcmp(d->kind, "cuda") == 0)
        o.workspace_bytes =
            d->tiny ? (96ull << 20) + 8 * logits_max(r->text) * r->text->n_vocab : 2ull << 30;
    o.memory_bytes = weights * 5 / 4 + kv_bytes(r) * 5 / 4 + o.workspace_bytes + (96ull << 20);
    if (d->emulated) o.module = gpu_module(true);
    gpu_need_status(backend_open(&o, &r->be, &err), &err);
}

static void bind_model(forced_rig *r, const forced_device *d) {
    inferd_err err = {0};
    const forced_reference *t = r->text;
    bool cpu = strcmp(d->kind, "cpu") == 0;
    r->rows_max = u32_max(t->n_prompt, t->n_decode);
    model_limits limits = {.rows_max = r->rows_max,
                           .logits_max = logits_max(t),
                           .kv = !cpu       ? KV_F16
                                 : d->exact ? KV_F32
                                            : KV_AUTO};
    gpu_need_status(bound_open(r->m, r->be, &limits, &r->p, &err), &err);
    r->n_pages = bound_weight_pages(r->p);
    r->pages = take(r->n_pages, sizeof *r->pages);
    for (uint32_t i = 0; i < r->n_pages; i++) r->pages[i] = i;
    while (be_n_pages_ready(r->be) < be_n_pages(r->be))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (be_n_pages(r->be) < r->n_pages)
        gpu_die("%s needs %u pages, the device has %u", model_about(r->m)->path, r->n_pages,
                be_n_pages(r->be));
    gpu_need_status(bound_bring_up(r->p, r->pages, r->n_pages, &err), &err);
    gpu_need_status(be_sync(r->be, &err), &err);
}

/* `n_shared` blocks of another table, then new blocks. */
static table make_table(forced_rig *r, const table *shared, uint32_t n_shared, uint32_t n_blocks) {
    table t = {take((size_t)n_blocks * r->n_groups, sizeof(int32_t)), n_blocks};
    const kv_layout *kv = bound_kv(r->p);
    for (uint32_t i = 0; i < n_blocks * r->n_groups; i++)
        t.slots[i] = i < n_shared * r->n_groups ? shared->slots[i] : r->next_slot++;
    if ((uint64_t)r->next_slot > (uint64_t)be_n_pages(r->be) * kv->slots_per_page)
        gpu_die("%u pages do not hold the text's keys and values", be_n_pages(r->be));
    return t;
}

forced_rig *forced_open(const forced_device *d, const char *path, const forced_reference *text) {
    inferd_err err = {0};
    forced_rig *r = take(1, sizeof *r);
    r->text = text;
    gpu_need_status(model_open(&(model_options){.path = path, .allow_dummy = true}, &r->m, &err),
                    &err);
    if (model_about(r->m)->n_vocab != text->n_vocab)
        gpu_die("%s has %u tokens, the reference %u", path, model_about(r->m)->n_vocab,
                text->n_vocab);
    if (model_about(r->m)->context <= text->n_prompt)
        gpu_die("%s has %u positions, the text %u and one", path, model_about(r->m)->context,
                text->n_prompt);
    open_backend(r, d);
    bind_model(r, d);
    const kv_layout *kv = bound_kv(r->p);
    r->block_tokens = kv->block_tokens;
    r->n_groups = kv->n_groups;
    r->next_slot = (int32_t)(r->n_pages * kv->slots_per_page);
    uint32_t n_blocks = kv_blocks_of(kv, text->n_prompt);
    for (int i = 0; i < FORCED_CUTS; i++) r->prompt[i] = make_table(r, NULL, 0, n_blocks);
    r->beside = make_table(r, NULL, 0, n_blocks);
    r->tokens = take(r->rows_max, sizeof *r->tokens);
    r->pending = take(r->rows_max, sizeof *r->pending);
    r->positions = take(r->rows_max, sizeof *r->positions);
    r->row_seq = take(r->rows_max, sizeof *r->row_seq);
    r->logit_rows = take(r->rows_max, sizeof *r->logit_rows);
    r->asked = take(r->rows_max, sizeof *r->asked);
    r->seqs = take(r->rows_max, sizeof *r->seqs);
    return r;
}

void forced_close(forced_rig *r) {
    bound_close(r->p);
    model_close(r->m);
    backend_close(r->be);
    for (int i = 0; i < FORCED_CUTS; i++) free(r->prompt[i].slots);
    for (uint32_t i = 0; i < FORCED_DECODE_MAX; i++) free(r->decode[i].slots);
    free(r->beside.slots);
    void *owned[] = {r->pages,   r->tokens,     r->pending, r->positions,
                     r->row_seq, r->logit_rows, r->asked,   r->seqs};
    for (size_t i = 0; i < INFERD_COUNT(owned); i++) free(owned[i]);
    free(r);
}

const char *forced_name(const forced_rig *r) {
    return be_name(r->be);
}

void forced_stats(const forced_rig *r, backend_stats *out) {
    be_get_stats(r->be, out);
}

/* ---- a step ---- */

static void begin_step(forced_rig *r) {
    r->b = (batch){.tokens = r->tokens,
                   .pending = r->pending,
                   .positions = r->positions,
                   .row_seq = r->row_seq,
                   .seqs = r->seqs,
                   .logit_rows = r->logit_rows};
}

/* Adds a sequence's next n tokens, starting at `position`. */
static void add_rows(forced_rig *r, const tok_id *tokens, uint32_t n, uint32_t position,
                     const table *t) {
    batch *b = &r->b;
    uint32_t n_blocks = (position + n + r->block_tokens - 1) / r->block_tokens;
    INFERD_CHECK(b->n_rows + n <= r->rows_max && n_blocks <= t->n_blocks);
    b->seqs[b->n_seqs] = (batch_seq){b->n_rows, n, position, n_blocks, t->slots};
    for (uint32_t i = 0; i < n; i++, b->n_rows++) {
        b->tokens[b->n_rows] = tokens[i];
        b->positions[b->n_rows] = position + i;
        b->row_seq[b->n_rows] = b->n_seqs;
        b->pending[b->n_rows] = 0;
    }
    b->n_seqs++;
}

static void ask_for(forced_rig *r, uint32_t row, uint32_t number) {
    r->asked[r->b.n_logits] = number;
    r->logit_rows[r->b.n_logits++] = row;
}

static void finish_step(forced_rig *r, const sample_row *draws, be_step_result *result) {
    inferd_err err = {0};
    bound_launch(r->p, &r->b, draws, r->text->n_vocab);
    gpu_need_status(be_step_finish(r->be, result, &err), &err);
}

static void run_step(forced_rig *r, forced_row_fn *f, void *ctx) {
    be_step_result result = {0};
    finish_step(r, NULL, &result);
    if (r->b.n_logits == 0 || f == NULL) return;
    if (result.logits == NULL) gpu_die("a step brought no logits");
    for (uint32_t i = 0; i < r->b.n_logits; i++)
        f(ctx, r->asked[i], result.logits + (size_t)i * result.logits_stride);
}

/* ---- the text ---- */

void forced_prompt(forced_rig *r, forced_cut cut, uint32_t chunk, forced_row_fn *f, void *ctx) {
    const forced_reference *t = r->text;
    for (uint32_t begin = 0, k = 0; begin < t->n_prompt; begin += chunk) {
        uint32_t n = u32_min(chunk, t->n_prompt - begin);
        begin_step(r);
        add_rows(r, t->prompt + begin, n, begin, &r->prompt[cut]);
        for (; k < t->n_rows && t->positions[k] < begin + n; k++)
            ask_for(r, t->positions[k] - begin, k);
        run_step(r, f, ctx);
    }
}

void forced_tails(forced_rig *r, bool chunks) {
    const forced_reference *t = r->text;
    begin_step(r);
    for (uint32_t i = 0; i < t->n_decode; i++) {
        uint32_t n_full = t->contexts[i] / r->block_tokens, begin = n_full * r->block_tokens;
        uint32_t n = t->contexts[i] - begin;
        const table *prompt = &r->prompt[chunks && i % 2 == 1 ? FORCED_CHUNKS : FORCED_WHOLE];
        r->decode[i] = make_table(r, prompt, n_full, n_full + 1);
        if (n == 0) continue;
        if (r->b.n_rows + n > r->rows_max) {
            run_step(r, NULL, NULL);
            begin_step(r);
        }
        add_rows(r, t->prompt + begin, n, begin, &r->decode[i]);
    }
    if (r->b.n_rows > 0) run_step(r, NULL, NULL);
}

static void add_decode(forced_rig *r, uint32_t begin, uint32_t n) {
    const forced_reference *t = r->text;
    for (uint32_t i = begin; i < begin + n; i++) {
        ask_for(r, r->b.n_rows, i);
        add_rows(r, &t->next[i], 1, t->contexts[i], &r->decode[i]);
    }
}

void forced_decode(forced_rig *r, uint32_t begin, uint32_t n, uint32_t beside, forced_row_fn *f,
                   void *ctx) {
    begin_step(r);
    add_decode(r, begin, n);
    if (beside > 0) add_rows(r, r->text->prompt, beside, 0, &r->beside);
    run_step(r, f, ctx);
}

const sample_result *forced_draw(forced_rig *r, uint32_t begin, uint32_t n) {
    static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1};
    static sample_row draws[FORCED_DECODE_MAX];
    be_step_result result = {0};
    if (!be_can_draw(r->be)) return NULL;
    begin_step(r);
    add_decode(r, begin, n);
    for (uint32_t i = 0; i < n; i++)
        draws[i] = (sample_row){.params = &greedy,
                                .tokens = r->text->prompt,
                                .n_prompt = 1,
                                .n_tokens = r->text->contexts[begin + i] + 1,
                                .forced = -1,
                                .n_top = BEST};
    finish_step(r, draws, &result);
    if (result.draws == NULL) gpu_die("a step drew nothing");
    return result.draws;
}
