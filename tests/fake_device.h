/* fake_device.h - a device without a model, for tests of the scheduler and the engine.
 *
 * Its "keys and values" are the tokens themselves, stored in the slots of the block table.  The
 * logits of a row say one token: a pure function of all tokens up to the row, *as read back from
 * the slots*.  So a wrong block table, a page reused too early, or a block shared wrongly changes
 * the output, and a correct schedule gives fake_next of the prompt, whatever happened in between.
 *
 * `late`: a launched step is computed when it is finished, as late as a device may; otherwise when
 * it is launched.  Time is virtual: a_us + b_us * rows + attended positions / c_per_us.
 *
 * With all tokens deciding, the text never repeats itself.  Tests of guessing set fake_memory: then
 * only so many last tokens decide, and at every 13th position also the position, so that the text
 * runs in circles and leaves them now and then; and fake_words, for texts of few different tokens.
 */
#ifndef INFERD_FAKE_DEVICE_H
#define INFERD_FAKE_DEVICE_H

#include <string.h>
#include <time.h>

#include "device.h"

enum { FAKE_VOCAB = 256, FAKE_END = 7, FAKE_LOGITS_MAX = 1024, FAKE_MODELS_MAX = 64 };
enum { FAKE_PAGE_BYTES = 2 << 20 };

/* Where a slot is, as the device sees it. */
typedef struct fake_model {
    bool attached, staging, warm, hot;
    bool copy; // apart: it has host memory
    bool saving;
    uint32_t weights_of;
    uint32_t piece;
    uint32_t weight_pages; // 0: the device's
    const uint32_t *pages; // borrowed from the residency
} fake_model;

typedef struct fake_device {
    /* What it is. */
    uint32_t n_pages, n_host_pages, depth, context, weight_pages; // n_pages: of the device
    kv_layout kv;
    const tokenizer *tok; // of all models, for text that grammars force; NULL: none
    bool late, fail_open, fail_load;
    bool apart;       // host memory is no memory of the pool
    bool draws;       // by itself, like a device of depth 2
    bool takes_draws; // after the launch of their step
    uint32_t swap_extent_pages;
    uint32_t stage_pieces, load_pieces; // a stage takes so many pieces of stage_us; 0: one
    uint64_t stage_us, load_us, move_us;
    uint32_t fail_stage_at; // the piece of this number (from 1, over all stages) fails; 0 = none
    uint64_t a_us, b_us, c_per_us;
    uint32_t sleep_us;   // real time per step, for tests with threads
    uint32_t fail_at;    // the step of this number (from 1) fails; 0 = none
    uint32_t nan_at;     // the draws of this step have no finite logit
    uint32_t n_attached; // models attached now
    uint32_t n_handed_over;
    uint64_t bad_files; // slots whose file cannot be read, as bits
    fake_model models[FAKE_MODELS_MAX];
    uint32_t n_pieces; // of all stages
    uint32_t n_moved;  // slots
    uint32_t n_zeroed; // pages and slots
    uint64_t content;  // of all models, for a disk; 0: unknown
    uint64_t clock_us; // grows with what the device does; for virtual clocks
    /* What happened. */
    tok_id *memory;      // [n_pages * slots_per_page, block_tokens]
    tok_id *host_memory; // what slots of the host count through; one memory: the same
    uint32_t n_emptied;  // extents of the host's pages
    const step *launched[2];
    bool owed_draws; // the step launched last has draws_later, and they did not come
    tok_id drawn[2][FAKE_LOGITS_MAX], before[FAKE_LOGITS_MAX];
    uint32_t n_launched, n_steps, n_faults;
} fake_device;

static inline kv_layout fake_layout(uint32_t block_tokens, uint32_t n_groups,
                                    uint32_t slots_per_page) {
    return (kv_layout){.n_layers = n_groups,
                       .block_tokens = block_tokens,
                       .group_layers = 1,
                       .n_groups = n_groups,
                       .slots_per_page = slots_per_page};
}

static inline uint64_t fake_hash(uint64_t h, tok_id token) {
    h = (h ^ (uint64_t)(uint32_t)token) * 0x9e3779b97f4a7c15;
    return h ^ h >> 29;
}

static uint32_t fake_memory; // tokens that decide what follows; 0: all
static uint32_t fake_words;  // different ones in a text; 0: FAKE_VOCAB

static inline tok_id fake_choose(uint64_t h, const tok_id *banned, uint32_t n_banned) {
    tok_id id = (tok_id)(h % (fake_words > 0 ? fake_words : FAKE_VOCAB));
    for (uint32_t i = 0; i < n_banned; i++)
        if (banned[i] == id) {
            id = (id + 1) % FAKE_VOCAB;
            i = UINT32_MAX; // from the start again
        }
    return id;
}

/* The same under a mask: the first from there on that it allows.  SAMPLE_NONE_ALLOWED: none. */
static inline tok_id fake_choose_allowed(uint64_t h, const tok_id *banned, uint32_t n_banned,
                                         const uint64_t *mask) {
    if (mask == NULL) return fake_choose(h, banned, n_banned);
    uint32_t begin = (uint32_t)(h % FAKE_VOCAB);
    for (uint32_t i = 0; i < FAKE_VOCAB; i++) {
        uint32_t id = (begin + i) % FAKE_VOCAB;
        bool is_banned = false;
        for (uint32_t b = 0; b < n_banned; b++) is_banned |= banned[b] == (tok_id)id;
        if (!is_banned && (mask[id / 64] >> id % 64 & 1) != 0) return (tok_id)id;
    }
    return SAMPLE_NONE_ALLOWED;
}

static inline bool fake_counts(uint32_t pos, uint32_t n) {
    return fake_memory == 0 || pos + fake_memory >= n;
}

static inline uint64_t fake_begin(uint32_t n) {
    return fake_memory > 0 && n % 13 == 0 ? n : 1;
}

/* What follows these tokens. */
static inline tok_id fake_next(const tok_id *tokens, uint32_t n, const tok_id *banned,
                               uint32_t n_banned) {
    uint64_t h = fake_begin(n);
    for (uint32_t i = 0; i < n; i++)
        if (fake_counts(i, n)) h = fake_hash(h, tokens[i]);
    return fake_choose(h, banned, n_banned);
}

/* Log-probability of a token after others: any number that depends on all of them. */
static inline float fake_logprob(const tok_id *tokens, uint32_t n, tok_id id) {
    uint64_t h = 1;
    for (uint32_t i = 0; i < n; i++) h = fake_hash(h, tokens[i]);
    return -(float)(fake_hash(h, id) % 1000) / 100;
}

static inline tok_id *fake_cell(fake_device *d, const batch_seq *s, uint32_t pos, uint32_t group) {
    uint32_t T = d->kv.block_tokens;
    int32_t slot = s->slots[(size_t)(pos / T) * d->kv.n_groups + group];
    return &d->memory[(size_t)slot * T + pos % T];
}

static inline void fake_compute(fake_device *d, const step *st, tok_id *drawn) {
    const batch *b = &st->b;
    for (uint32_t row = 0; row < b->n_rows; row++) {
        const batch_seq *s = &b->seqs[b->row_seq[row]];
        uint32_t pos = b->positions[row];
        tok_id token = b->tokens[row] == TOK_PENDING ? d->before[b->pending[row]] : b->tokens[row];
        if (pos >= s->n_blocks * d->kv.block_tokens || row < s->row_begin ||
            row >= s->row_begin + s->n_rows || pos != s->pos_begin + row - s->row_begin)
            d->n_faults++;
        else
            for (uint32_t g = 0; g < d->kv.n_groups; g++) *fake_cell(d, s, pos, g) = token;
    }
    for (uint32_t i = 0; i < b->n_logits; i++) {
        uint32_t row = b->logit_rows[i];
        const batch_seq *s = &b->seqs[b->row_seq[row]];
        const step_draw *draw = &st->draws[i];
        uint32_t n = b->positions[row] + 1;
        uint64_t h = fake_begin(n);
        for (uint32_t pos = 0; pos < n; pos++) {
            tok_id token = *fake_cell(d, s, pos, 0);
            for (uint32_t g = 1; g < d->kv.n_groups; g++)
                if (*fake_cell(d, s, pos, g) != token) d->n_faults++;
            if (d->late && !draw->dropped && token != draw->row.tokens[pos]) d->n_faults++;
            if (fake_counts(pos, n)) h = fake_hash(h, token);
        }
        if (draw->row.n_tokens != n) d->n_faults++;
        drawn[i] = draw->row.forced >= 0 ? draw->row.forced
                                         : fake_choose_allowed(h, draw->row.banned,
                                                               draw->row.n_banned, draw->row.mask);
    }
    memcpy(d->before, drawn, b->n_logits * sizeof *drawn);
}

static inline inferd_status fake_open(void *self, device_about *out, inferd_err *err) {
    fake_device *d = self;
    if (d->fail_open) return inferd_fail(err, INFERD_EDEVICE, "no such device");
    uint32_t n_pages = d->apart ? d->n_pages : d->n_pages + d->n_host_pages;
    *out = (device_about){.n_pages = n_pages,
                          .n_ready = n_pages,
                          .n_host_pages = d->n_host_pages,
                          .one_memory = !d->apart,
                          .n_swap_pages = d->apart ? d->n_host_pages : 0,
                          .swap_extent_pages = d->swap_extent_pages,
                          .page_bytes = FAKE_PAGE_BYTES,
                          .extent_pages = 1,
                          .depth = d->depth,
                          .draws = d->draws || d->depth > 1};
    snprintf(out->name, sizeof out->name, "fake");
    size_t n_host = d->apart ? d->n_host_pages : 0;
    size_t each = (size_t)d->kv.slots_per_page * d->kv.block_tokens;
    size_t n = (n_pages + n_host) * each;
    d->memory = malloc(size_max(n, 1) * sizeof *d->memory);
    if (d->memory == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory");
    for (size_t i = 0; i < n; i++) d->memory[i] = -2;
    d->host_memory = d->apart ? d->memory + n_pages * each : d->memory;
    return INFERD_OK;
}

static inline void fake_close(void *self) {
    fake_device *d = self;
    free(d->memory);
    d->memory = NULL;
}

static inline uint32_t fake_weight_pages(const fake_device *d, uint32_t idx) {
    return d->models[idx].weight_pages != 0 ? d->models[idx].weight_pages : d->weight_pages;
}

static inline inferd_status fake_attach(void *self, uint32_t idx, struct model *m, uint32_t same_as,
                                        const device_limits *limits, device_model *out,
                                        inferd_err *err) {
    static const tok_id end_ids[] = {FAKE_END};
    fake_device *d = self;
    (void)m, (void)err;
    if (limits->logits_max > FAKE_LOGITS_MAX || d->models[idx].attached) d->n_faults++;
    *out = (device_model){.spec = {.kv = d->kv,
                                   .context = d->context,
                                   .n_vocab = FAKE_VOCAB,
                                   .end_ids = end_ids,
                                   .n_end_ids = 1,
                                   .content = {d->content, d->content},
                                   .tok = d->tok},
                          .weight_pages = same_as == DEVICE_OWN ? fake_weight_pages(d, idx) : 0,
                          .stage_bytes = 100};
    if (out->weight_pages > 0) // the last page is half used
        out->weight_bytes = (uint64_t)out->weight_pages * FAKE_PAGE_BYTES - FAKE_PAGE_BYTES / 2;
    out->host_pages = out->weight_pages;
    uint32_t pages = d->models[idx].weight_pages;
    d->models[idx] = (fake_model){.attached = true, .weight_pages = pages};
    d->models[idx].weights_of = same_as == DEVICE_OWN ? idx : same_as;
    d->n_attached++;
    return INFERD_OK;
}

static inline void fake_unstage(void *self, uint32_t idx) {
    fake_device *d = self;
    fake_model *m = &d->models[idx];
    if (!m->attached || m->weights_of != idx) d->n_faults++;
    m->staging = m->warm = m->hot = m->copy = m->saving = false;
}

static inline void fake_detach(void *self, uint32_t idx) {
    fake_device *d = self;
    if (!d->models[idx].attached) return;
    for (uint32_t i = 0; i < FAKE_MODELS_MAX; i++) // those who use its weights leave before it
        if (i != idx && d->models[i].attached && d->models[i].weights_of == idx) d->n_faults++;
    uint32_t pages = d->models[idx].weight_pages;
    d->models[idx] = (fake_model){.weight_pages = pages};
    d->n_attached--;
}

static inline void fake_hand_over(void *self, uint32_t from, uint32_t to) {
    fake_device *d = self;
    fake_model *a = &d->models[from], *b = &d->models[to];
    if (!a->attached || !b->attached || a->weights_of != from || b->weights_of != from ||
        a->staging)
        d->n_faults++;
    fake_model weights = *a;
    *a = *b;
    *b = weights;
    for (uint32_t i = 0; i < FAKE_MODELS_MAX; i++)
        if (d->models[i].attached && d->models[i].weights_of == from) d->models[i].weights_of = to;
    d->n_handed_over++;
}

static inline inferd_status fake_stage_begin(void *self, uint32_t idx, const uint32_t *pages,
                                             void (*wake)(void *), void *wake_ctx,
                                             inferd_err *err) {
    fake_device *d = self;
    fake_model *m = &d->models[idx];
    (void)wake, (void)wake_ctx, (void)err;
    if (!m->attached || m->staging || m->warm || m->hot || m->weights_of != idx) d->n_faults++;
    if (pages == NULL && !d->apart) d->n_faults++;
    *m = (fake_model){.attached = true,
                      .staging = true,
                      .copy = pages == NULL,
                      .weights_of = idx,
                      .weight_pages = m->weight_pages,
                      .pages = pages};
    return INFERD_OK;
}

static inline inferd_status fake_stage_step(void *self, uint32_t idx, uint64_t budget_us,
                                            device_progress *out, inferd_err *err) {
    fake_device *d = self;
    fake_model *m = &d->models[idx];
    uint32_t n = u32_max(d->stage_pieces, 1);
    (void)budget_us;
    if (!m->staging) d->n_faults++;
    d->n_pieces++;
    m->piece++;
    d->clock_us += d->stage_us;
    *out = (device_progress){.done = (uint64_t)100 * m->piece / n,
                             .total = 100,
                             .device_us = d->stage_us,
                             .finished = m->piece >= n};
    if (d->fail_load || d->n_pieces == d->fail_stage_at || (d->bad_files >> idx & 1) != 0) {
        m->staging = m->copy = false;
        return inferd_fail(err, INFERD_EFORMAT, "the file is wrong");
    }
    if (out->finished) {
        m->staging = false;
        m->warm = true;
    }
    return INFERD_OK;
}

static inline inferd_status fake_load_begin(void *self, uint32_t idx, const uint32_t *pages,
                                            inferd_err *err) {
    fake_device *d = self;
    fake_model *m = &d->models[idx];
    (void)err;
    if (!m->warm || m->hot || pages == NULL || (!m->copy && pages != m->pages)) d->n_faults++;
    m->piece = 0;
    return INFERD_OK;
}

static inline inferd_status fake_load_step(void *self, uint32_t idx, uint64_t budget_us,
                                           device_progress *out, inferd_err *err) {
    fake_device *d = self;
    (void)budget_us, (void)err;
    uint32_t n = u32_max(d->load_pieces, 1), piece = ++d->models[idx].piece;
    d->clock_us += d->load_us;
    *out = (device_progress){.done = (uint64_t)100 * piece / n,
                             .total = 100,
                             .device_us = d->load_us,
                             .finished = piece >= n};
    d->models[idx].hot = out->finished;
    return INFERD_OK;
}

static inline void fake_unload(void *self, uint32_t idx) {
    fake_device *d = self;
    fake_model *m = &d->models[idx];
    if (!m->hot || m->saving || (d->apart && !m->copy)) d->n_faults++;
    for (uint32_t i = 0; i < d->n_launched; i++)
        if (d->models[d->launched[i]->model_idx].weights_of == idx) d->n_faults++;
    m->hot = false;
}

static inline void fake_drop_copy(void *self, uint32_t idx) {
    fake_device *d = self;
    if (!d->models[idx].hot || !d->models[idx].copy) d->n_faults++;
    d->models[idx].copy = false;
}

static inline inferd_status fake_save_begin(void *self, uint32_t idx, inferd_err *err) {
    fake_device *d = self;
    fake_model *m = &d->models[idx];
    (void)err;
    if (!d->apart || !m->hot || m->copy) d->n_faults++;
    m->copy = m->saving = true;
    m->piece = 0;
    return INFERD_OK;
}

static inline inferd_status fake_save_step(void *self, uint32_t idx, uint64_t budget_us,
                                           device_progress *out, inferd_err *err) {
    fake_device *d = self;
    (void)budget_us, (void)err;
    uint32_t n = u32_max(d->load_pieces, 1), piece = ++d->models[idx].piece;
    if (!d->models[idx].saving) d->n_faults++;
    for (uint32_t i = 0; i < d->n_launched; i++)
        if (d->models[d->launched[i]->model_idx].weights_of == idx) d->n_faults++;
    d->clock_us += d->load_us;
    *out = (device_progress){.done = piece, .total = n, .finished = piece >= n};
    d->models[idx].saving = !out->finished;
    return INFERD_OK;
}

/* Does this sequence of a step have the slot in its table? */
static inline bool fake_holds(const fake_device *d, const batch_seq *s, int32_t slot) {
    for (uint32_t i = 0; i < s->n_blocks * d->kv.n_groups; i++)
        if (s->slots[i] == slot) return true;
    return false;
}

/* A device may work on everything launched at once: a slot that one sequence writes may be in no
 * other table, of this step or of an unfinished one. */
static inline void fake_look_for_overlap(fake_device *d, const step *st, const step *other) {
    for (uint32_t row = 0; row < st->b.n_rows; row++) {
        uint32_t i = st->b.row_seq[row];
        const batch_seq *s = &st->b.seqs[i];
        int32_t slot =
            s->slots[(size_t)(st->b.positions[row] / d->kv.block_tokens) * d->kv.n_groups];
        for (uint32_t j = 0; j < other->b.n_seqs; j++) {
            bool same =
                other->items[j].q == st->items[i].q && other->items[j].run == st->items[i].run;
            if (!same && fake_holds(d, &other->b.seqs[j], slot)) d->n_faults++;
        }
    }
}

static inline void fake_launch(void *self, const step *st) {
    fake_device *d = self;
    if (d->n_launched >= d->depth) d->n_faults++;
    const fake_model *m = &d->models[st->model_idx];
    if (m->attached && !d->models[m->weights_of].hot) d->n_faults++;
    fake_look_for_overlap(d, st, st);
    for (uint32_t i = 0; i < d->n_launched; i++) fake_look_for_overlap(d, st, d->launched[i]);
    if (!d->late) fake_compute(d, st, d->drawn[d->n_launched]);
    if (d->owed_draws) d->n_faults++;
    d->owed_draws = d->takes_draws && st->b.draws_later;
    d->launched[d->n_launched++] = st;
}

static inline void fake_draw(void *self, const step *st) {
    fake_device *d = self;
    if (!d->owed_draws || d->launched[d->n_launched - 1] != st || d->n_launched > 1) d->n_faults++;
    d->owed_draws = false;
}

static inline inferd_status fake_finish(void *self, step *st, uint64_t *device_us,
                                        inferd_err *err) {
    fake_device *d = self;
    if (d->n_launched == 0 || d->launched[0] != st) d->n_faults++;
    if (d->owed_draws && d->n_launched == 1) d->n_faults++;
    if (d->late) fake_compute(d, st, d->drawn[0]);
    d->n_steps++;
    *device_us = d->a_us + d->b_us * st->b.n_rows;
    if (d->c_per_us > 0) *device_us += st->n_attended / d->c_per_us;
    d->clock_us += *device_us;
    for (uint32_t i = 0; i < st->b.n_logits; i++) {
        const sample_row *row = &st->draws[i].row;
        if (st->draws[i].dropped) continue;
        st->results[i] = (sample_result){.id = d->n_steps == d->nan_at ? -1 : d->drawn[0][i]};
        if (row->n_top >= 0)
            st->results[i].logprob = fake_logprob(row->tokens, row->n_tokens, d->drawn[0][i]);
    }
    d->launched[0] = d->launched[1];
    memcpy(d->drawn[0], d->drawn[1], sizeof d->drawn[0]);
    d->n_launched--;
    if (d->sleep_us > 0) nanosleep(&(struct timespec){.tv_nsec = d->sleep_us * 1000}, NULL);
    if (d->n_steps == d->fail_at) return inferd_fail(err, INFERD_EDEVICE, "the device broke");
    return INFERD_OK;
}

static inline void fake_move_kv(void *self, uint32_t idx, uint32_t n, const int32_t *from,
                                const int32_t *to, bool to_host) {
    fake_device *d = self;
    (void)idx;
    const tok_id *source = to_host ? d->memory : d->host_memory;
    tok_id *target = to_host ? d->host_memory : d->memory;
    for (uint32_t i = 0; i < n; i++)
        memcpy(&target[(size_t)to[i] * d->kv.block_tokens],
               &source[(size_t)from[i] * d->kv.block_tokens],
               d->kv.block_tokens * sizeof *d->memory);
    d->n_moved += n;
    d->clock_us += d->move_us;
}

static inline unsigned char *fake_kv_slot(void *self, uint32_t idx, int32_t slot) {
    fake_device *d = self;
    (void)idx;
    return (unsigned char *)&d->host_memory[(size_t)slot * d->kv.block_tokens];
}

static inline void fake_swap_empty(void *self, uint32_t first_page) {
    (void)first_page;
    ((fake_device *)self)->n_emptied++;
}

static inline void fake_zero(void *self, uint32_t page, size_t begin, size_t n_bytes) {
    fake_device *d = self;
    size_t slot_bytes = d->kv.block_tokens * sizeof *d->memory;
    size_t page_bytes = d->kv.slots_per_page * slot_bytes;
    unsigned char *p = (unsigned char *)d->memory + page * page_bytes;
    if (n_bytes == SIZE_MAX) n_bytes = page_bytes - begin;
    if (begin + n_bytes > page_bytes) d->n_faults++;
    memset(p + begin, 0, n_bytes);
    d->n_zeroed++;
}

static inline void fake_get_stats(void *self, backend_stats *out) {
    (void)self;
    *out = (backend_stats){0};
}

static inline device fake_as_device(fake_device *d) {
    static device_ops later;
    static const device_ops ops = {
        .open = fake_open,
        .close = fake_close,
        .attach = fake_attach,
        .detach = fake_detach,
        .hand_over = fake_hand_over,
        .stage_begin = fake_stage_begin,
        .stage_step = fake_stage_step,
        .unstage = fake_unstage,
        .load_begin = fake_load_begin,
        .load_step = fake_load_step,
        .unload = fake_unload,
        .drop_copy = fake_drop_copy,
        .save_begin = fake_save_begin,
        .save_step = fake_save_step,
        .move_kv = fake_move_kv,
        .swap_empty = fake_swap_empty,
        .kv_slot = fake_kv_slot,
        .zero = fake_zero,
        .launch = fake_launch,
        .finish = fake_finish,
        .get_stats = fake_get_stats,
    };
    later = ops;
    later.draw = fake_draw;
    return (device){d->takes_draws ? &later : &ops, d};
}

#endif
