/* check_device.c - see check_yard.h: the device of a world.
 *
 * It stores tokens where the block tables say and reads weights where they were put, so a page with
 * the wrong owner changes an output. */
#include "check_yard.h"

static void fault(yard *y, const char *what, uint32_t idx) {
    yard_fail_if(y, true, CHECK_DEVICE, "model %u: %s", idx, what);
}

void yard_look_for_faults(yard *y, const char *where) {
    yard_fail_if(y, y->fake.n_faults > 0, CHECK_DEVICE,
                 "%u faults in %s: block tables, rows, or the order of calls", y->fake.n_faults,
                 where);
}

static tok_id *cells_of(const yard *y, uint32_t page) {
    return &y->fake.memory[(size_t)page * PAGE_CELLS];
}

static void stamp_weights(yard *y, slot *s, const uint32_t *pages) {
    for (uint32_t p = 0; p < s->weight_pages; p++) {
        for (uint32_t i = 0; i < PAGE_CELLS; i++) cells_of(y, pages[p])[i] = s->stamp;
        memset(&y->writers[(size_t)pages[p] * PAGE_CELLS], 0, PAGE_CELLS);
    }
    s->pages = pages;
    s->is_stamped = true;
}

static void look_at_weights(yard *y, uint32_t idx, const char *when) {
    const slot *s = &y->slots[y->fake.models[idx].weights_of];
    for (uint32_t p = 0; s->is_stamped && p < s->weight_pages; p++)
        for (uint32_t i = 0; i < PAGE_CELLS; i++)
            if (yard_fail_if(y, cells_of(y, s->pages[p])[i] != s->stamp, CHECK_WEIGHTS,
                             "model %u %s: page %u of its weights holds other data", idx, when,
                             s->pages[p]))
                return;
}

static inferd_status yard_open(void *self, device_about *out, inferd_err *err) {
    yard *y = self;
    inferd_status st = fake_open(&y->fake, out, err);
    out->extent_pages = y->extent_pages;
    out->page_bytes = PAGE_BYTES;
    y->writers = calloc((size_t)out->n_pages * PAGE_CELLS, sizeof *y->writers);
    y->host_memory = calloc(size_max(y->fake.n_host_pages, 1) * PAGE_CELLS, sizeof(tok_id));
    return y->host_memory != NULL && y->writers != NULL
               ? st
               : inferd_fail(err, INFERD_ENOMEM, "no memory");
}

static void yard_close(void *self) {
    fake_close(&((yard *)self)->fake);
}

static inferd_status yard_attach(void *self, uint32_t idx, struct model *m, uint32_t same_as,
                                 const device_limits *limits, device_model *out, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    if (is_trouble(y, y->trouble_percent / 4)) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_ENOMEM, "no memory to attach");
    }
    y->fake.models[idx].weight_pages = s->weight_pages;
    inferd_status st = fake_attach(&y->fake, idx, m, same_as, limits, out, err);
    out->spec.kv = s->kv;
    out->spec.content[0] = 1;
    out->spec.content[1] = (uint64_t)(uint32_t)s->stamp;
    return st;
}

static void yard_detach(void *self, uint32_t idx) {
    yard *y = self;
    for (uint32_t i = 0; i < y->fake.n_launched; i++)
        if (y->fake.launched[i]->model_idx == idx) fault(y, "detached while a step uses it", idx);
    fake_detach(&y->fake, idx);
    y->slots[idx].is_stamped = y->slots[idx].loading = false;
    y->slots[idx].wake_us = 0;
}

/* The fields of the weights move with them; those of the name stay. */
static void yard_hand_over(void *self, uint32_t from, uint32_t to) {
    yard *y = self;
    slot *a = &y->slots[from], *b = &y->slots[to], weights = *a, other = *b;
    yard_say(y, "device: %u hands its weights over to %u", from, to);
    if (a->loading || y->fake.models[from].staging || y->fake.models[from].saving)
        fault(y, "handed over during its load", from);
    fake_hand_over(&y->fake, from, to);
    *a = other;
    *b = weights;
    const slot *was[] = {&weights, &other};
    slot *is[] = {a, b};
    for (int i = 0; i < 2; i++) {
        is[i]->used = was[i]->used;
        is[i]->removed = was[i]->removed;
        is[i]->policy = was[i]->policy;
        is[i]->kv = was[i]->kv;
        is[i]->held = was[i]->held;
    }
    for (uint32_t i = 0; i < y->n_models; i++)
        if (y->slots[i].same_as == from) y->slots[i].same_as = to;
    b->held += b->weight_pages; // `to` gets these pages without taking them
}

static void yard_unstage(void *self, uint32_t idx) {
    yard *y = self;
    slot *s = &y->slots[idx];
    if (!y->fake.models[idx].staging && !y->fake.models[idx].warm)
        fault(y, "unstaged without a stage", idx);
    fake_unstage(&y->fake, idx);
    s->is_stamped = s->loading = false;
    s->wake_us = 0;
    yard_say(y, "device: unstage %u", idx);
}

static inferd_status yard_stage_begin(void *self, uint32_t idx, const uint32_t *pages,
                                      void (*wake)(void *), void *wake_ctx, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    yard_say(y, "device: stage %u", idx);
    const resident *m = &y->core.models.slots[idx];
    yard_fail_if(y, m->n_failures > 0 && m->retry_at_us > now(y) && !s->is_asked_for, CHECK_STATES,
                 "model %u is staged %llu us before its retry", idx,
                 (ull)(m->retry_at_us - now(y)));
    if (is_trouble(y, y->trouble_percent / 3)) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_EIO, "the file cannot be opened");
    }
    s->n_pieces = 1 + (uint32_t)rng_below(&y->trouble, 5);
    if (is_trouble(y, y->trouble_percent)) s->n_pieces *= 10;
    s->fail_piece =
        is_trouble(y, y->trouble_percent) ? 1 + (uint32_t)rng_below(&y->trouble, s->n_pieces) : 0;
    s->wait_piece = is_trouble(y, 30) ? 1 + (uint32_t)rng_below(&y->trouble, s->n_pieces) : 0;
    s->has_waited = false;
    s->is_stamped = false;
    inferd_status st = fake_stage_begin(&y->fake, idx, pages, wake, wake_ctx, err);
    s->pages = pages;
    if (y->fake.apart && pages != NULL) stamp_weights(y, s, pages); // pieces go on at once
    return st;
}

static inferd_status yard_stage_step(void *self, uint32_t idx, uint64_t budget_us,
                                     device_progress *out, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    fake_model *m = &y->fake.models[idx];
    if (m->piece + 1 == s->wait_piece && !s->has_waited) {
        s->has_waited = true;
        s->wake_us = now(y) + 1 + rng_below(&y->trouble, 20000);
        *out = (device_progress){.done = m->piece, .total = s->n_pieces, .waiting = true};
        return INFERD_OK;
    }
    if (s->wake_us != 0) fault(y, "a stage was continued while it waits", idx);
    y->fake.stage_pieces = s->n_pieces;
    if (m->piece + 1 == s->fail_piece) {
        y->fake.fail_stage_at = y->fake.n_pieces + 1;
        s->failed_us = now(y);
    }
    uint32_t *pages = (uint32_t *)(uintptr_t)s->pages;
    inferd_status st = fake_stage_step(&y->fake, idx, budget_us, out, err);
    if (st == INFERD_OK && out->finished) {
        s->n_stages++;
        if (!y->fake.apart) stamp_weights(y, s, pages);
    }
    return st;
}

static inferd_status yard_load_begin(void *self, uint32_t idx, const uint32_t *pages,
                                     inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    yard_say(y, "device: load %u", idx);
    inferd_status st = fake_load_begin(&y->fake, idx, pages, err);
    if (!y->fake.models[idx].copy) look_at_weights(y, idx, "is loaded");
    if (is_trouble(y, y->trouble_percent / 3)) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_EDEVICE, "the device maps nothing");
    }
    if (y->fake.models[idx].copy) stamp_weights(y, s, pages); // as early as a copy may happen
    s->loading = true;
    s->n_load_pieces = y->fake.apart ? (uint32_t)rng_below(&y->trouble, 6) : 0;
    if (is_trouble(y, y->trouble_percent)) s->n_load_pieces *= 10;
    s->fail_load = is_trouble(y, y->trouble_percent / 2);
    return st;
}

/* True: one piece of a load or a save, which is not the last one. */
static bool copy_piece(yard *y, slot *s, device_progress *out) {
    if (s->n_load_pieces == 0) return false;
    s->n_load_pieces--;
    if (y->fake.n_launched == 0) y->fake.clock_us += 200;
    *out = (device_progress){.done = 1, .total = 100};
    return true;
}

static inferd_status yard_load_step(void *self, uint32_t idx, uint64_t budget_us,
                                    device_progress *out, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    if (!s->loading) fault(y, "a load step without a load", idx);
    if (copy_piece(y, s, out)) return INFERD_OK;
    if (s->fail_load) {
        s->failed_us = now(y);
        return inferd_fail(err, INFERD_EDEVICE, "the copy failed");
    }
    s->loading = false;
    s->n_loads++;
    return fake_load_step(&y->fake, idx, budget_us, out, err);
}

static void yard_unload(void *self, uint32_t idx) {
    yard *y = self;
    yard_say(y, "device: unload %u", idx);
    look_at_weights(y, idx, "is unloaded");
    y->slots[idx].unload_plan = y->core.sched->plan_no;
    fake_unload(&y->fake, idx);
    if (y->fake.apart) y->slots[idx].is_stamped = false;
    y->slots[idx].loading = false;
}

static inferd_status yard_save_begin(void *self, uint32_t idx, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    yard_say(y, "device: save %u", idx);
    look_at_weights(y, idx, "is saved");
    if (is_trouble(y, y->trouble_percent / 3))
        return inferd_fail(err, INFERD_ENOMEM, "host memory is used up");
    s->n_load_pieces = (uint32_t)rng_below(&y->trouble, 6);
    s->fail_load = is_trouble(y, y->trouble_percent / 2);
    return fake_save_begin(&y->fake, idx, err);
}

static inferd_status yard_save_step(void *self, uint32_t idx, uint64_t budget_us,
                                    device_progress *out, inferd_err *err) {
    yard *y = self;
    slot *s = &y->slots[idx];
    look_at_weights(y, idx, "was saved");
    if (copy_piece(y, s, out)) return INFERD_OK;
    if (s->fail_load) return inferd_fail(err, INFERD_EDEVICE, "the copy failed");
    return fake_save_step(&y->fake, idx, budget_us, out, err);
}

static void yard_drop_copy(void *self, uint32_t idx) {
    yard *y = self;
    yard_say(y, "device: drop the host copy of %u", idx);
    fake_drop_copy(&y->fake, idx);
}

/* Page k of the blocks of a sequence. */
static uint32_t page_of(const yard *y, const step *st, uint32_t seq_idx, uint32_t k) {
    return (uint32_t)st->b.seqs[seq_idx].slots[k] / y->slots[st->model_idx].kv.slots_per_page;
}

static uint32_t n_slots_of(const yard *y, const step *st, uint32_t seq_idx) {
    return st->b.seqs[seq_idx].n_blocks * y->slots[st->model_idx].kv.n_groups;
}

/* Steps of different models must have no page in common. */
static void look_for_common_pages(yard *y, const step *a, const step *b) {
    for (uint32_t i = 0; i < a->b.n_seqs; i++)
        for (uint32_t k = 0; k < n_slots_of(y, a, i); k++)
            for (uint32_t j = 0; j < b->b.n_seqs; j++)
                for (uint32_t l = 0; l < n_slots_of(y, b, j); l++)
                    if (page_of(y, a, i, k) == page_of(y, b, j, l))
                        fault(y, "a page is used by two models at once", a->model_idx);
}

static void note_served(yard *y, const step *st) {
    y->n_launches++;
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        uint64_t id = st->items[i].q->req->id;
        request *q = &y->requests[id];
        if (yard_fail_if(y, id > y->n_requests || !q->is_alive, CHECK_EVENTS,
                         "request %llu is computed after its end", (ull)id))
            return;
        yard_fail_if(y, q->copy->model_idx != st->model_idx, CHECK_DEVICE,
                     "request %llu of model %u is in a step of model %u", (ull)id,
                     q->copy->model_idx, st->model_idx);
        yard_fail_if(y, q->newest_launch == y->n_launches, CHECK_DEVICE,
                     "request %llu is in a step twice", (ull)id);
        yard_fail_if(y, q->is_paused, CHECK_DEVICE, "request %llu is computed while it is paused",
                     (ull)id);
        q->newest_launch = y->n_launches;
        q->served_us = now(y);
        q->steps_then = y->n_steps;
    }
}

/* A sequence must find no bytes of another tenant behind its computed positions.  Its tenant
 * becomes the writer of all that it computes now. */
static void look_for_others(yard *y, const step *st) {
    const kv_layout *l = &y->slots[st->model_idx].kv;
    uint32_t T = l->block_tokens;
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const batch_seq *s = &st->b.seqs[i];
        const gen_request *r = st->items[i].q->req;
        unsigned char me = (unsigned char)(r->tenant_idx + 1);
        for (uint32_t k = s->pos_begin / T * l->n_groups; k < s->n_blocks * l->n_groups; k++)
            for (uint32_t t = 0, pos = k / l->n_groups * T; t < T; t++, pos++) {
                unsigned char *writer = &y->writers[(size_t)s->slots[k] * T + t];
                if (pos < s->pos_begin) continue;
                yard_fail_if(y,
                             *writer != 0 && *writer != me &&
                                 y->core.options.limits.zero_on_tenant_change,
                             CHECK_TENANTS,
                             "request %llu of tenant %u gets a slot with data that tenant %d wrote",
                             (ull)r->id, r->tenant_idx, *writer - 1);
                if (pos < s->pos_begin + s->n_rows) *writer = me;
            }
    }
}

static void yard_zero(void *self, uint32_t page, size_t begin, size_t n_bytes) {
    yard *y = self;
    size_t n = n_bytes == SIZE_MAX ? PAGE_BYTES - begin : n_bytes;
    size_t first = page * (size_t)PAGE_CELLS + begin / sizeof(tok_id);
    if (begin > PAGE_BYTES || n > PAGE_BYTES - begin) {
        fault(y, "more than a page is zeroed", 0);
        return;
    }
    memset(&y->fake.memory[first], 0, n);
    memset(&y->writers[first], 0, n / sizeof(tok_id));
    y->out->n_zeroed++;
}

/* Swapped-out slots, and with one memory any slot. */
static unsigned char *yard_kv_slot(void *self, uint32_t idx, int32_t number) {
    yard *y = self;
    tok_id *memory = y->fake.apart ? y->host_memory : y->fake.memory;
    return (unsigned char *)&memory[(size_t)number * y->slots[idx].kv.block_tokens];
}

static void yard_launch(void *self, const step *st) {
    yard *y = self;
    fake_device *d = &y->fake;
    const sched_limits *l = &y->core.options.limits;
    uint32_t idx = st->model_idx;
    yard_fail_if(y, st->tier == TIER_URGENT && y->core.sched->urgent.level <= 0, CHECK_USAGE,
                 "an urgent step begins without an allowance");
    yard_say(y, "device: step %llu of model %u, %u rows, %u sequences", (ull)st->epoch, idx,
             st->b.n_rows, st->b.n_seqs);
    if (d->n_launched >= d->depth) fault(y, "too many steps at once", idx);
    if (!d->models[d->models[idx].weights_of].hot)
        fault(y, "a step of a model that is not hot", idx);
    if (st->b.n_rows > l->step_tokens_max || st->b.n_logits > l->logits_max ||
        st->b.n_seqs > l->running_max || st->b.n_rows == 0)
        fault(y, "a step that is too large", idx);
    d->kv = y->slots[idx].kv;
    fake_look_for_overlap(d, st, st);
    for (uint32_t i = 0; i < d->n_launched; i++) {
        if (d->launched[i]->model_idx == idx)
            fake_look_for_overlap(d, st, d->launched[i]);
        else
            look_for_common_pages(y, st, d->launched[i]);
    }
    look_at_weights(y, idx, "is computed with");
    look_for_others(y, st);
    if (!d->late) fake_compute(d, st, d->drawn[d->n_launched]);
    d->launched[d->n_launched++] = st;
    note_served(y, st);
    yard_look_for_faults(y, "launch");
}

static inferd_status yard_finish(void *self, step *st, uint64_t *device_us, inferd_err *err) {
    yard *y = self;
    fake_device *d = &y->fake;
    d->kv = y->slots[st->model_idx].kv;
    bool fails = !y->calm && rng_below(&y->trouble, 1000) < y->step_trouble_permille;
    bool nan = !y->calm && rng_below(&y->trouble, 1000) < y->step_trouble_permille;
    bool lost = y->may_lose && fails && rng_below(&y->trouble, 3) == 0;
    if (fails) d->fail_at = d->n_steps + 1;
    if (nan) d->nan_at = d->n_steps + 1;
    look_at_weights(y, st->model_idx, "was computed with");
    inferd_status status = fake_finish(d, st, device_us, err);
    y->n_steps++;
    yard_look_for_faults(y, "finish");
    for (uint32_t i = 0; i < st->b.n_seqs && (fails || nan); i++)
        y->requests[st->items[i].q->req->id].has_failed_step = true;
    if (!lost || status == INFERD_OK) return status;
    y->is_lost = true;
    yard_say(y, "device: lost");
    return inferd_fail(err, INFERD_ELOST, "the device is gone");
}

/* With one memory the host's slots are the pool's. */
static void yard_move_kv(void *self, uint32_t idx, uint32_t n, const int32_t *from,
                         const int32_t *to, bool to_host) {
    yard *y = self;
    size_t cells = y->slots[idx].kv.block_tokens;
    tok_id *near = y->fake.memory, *host = y->fake.apart ? y->host_memory : near;
    tok_id *source = to_host ? near : host, *target = to_host ? host : near;
    yard_say(y, "device: move %u slots of model %u %s", n, idx, to_host ? "to the host" : "back");
    for (uint32_t i = 0; i < n; i++) {
        memcpy(target + (size_t)to[i] * cells, source + (size_t)from[i] * cells,
               cells * sizeof *target);
        if (!y->fake.apart)
            memcpy(&y->writers[(size_t)to[i] * cells], &y->writers[(size_t)from[i] * cells], cells);
        else if (!to_host)
            memset(&y->writers[(size_t)to[i] * cells], 0, cells); // writer unknown
    }
    y->fake.clock_us += MOVE_US;
    y->out->n_moves++;
}

#define YARD_OPS                                                                                   \
    .open = yard_open, .close = yard_close, .attach = yard_attach, .detach = yard_detach,          \
    .hand_over = yard_hand_over, .stage_begin = yard_stage_begin, .stage_step = yard_stage_step,   \
    .drop_copy = yard_drop_copy, .save_begin = yard_save_begin, .save_step = yard_save_step,       \
    .unstage = yard_unstage, .load_begin = yard_load_begin, .load_step = yard_load_step,           \
    .unload = yard_unload, .kv_slot = yard_kv_slot, .zero = yard_zero, .launch = yard_launch,      \
    .finish = yard_finish

static const device_ops OPS_WITHOUT_MOVES = {YARD_OPS};
static const device_ops OPS = {YARD_OPS, .move_kv = yard_move_kv};

device yard_device(yard *y, bool moves) {
    return (device){moves ? &OPS : &OPS_WITHOUT_MOVES, y};
}

/* ---- texts ---- */

void yard_set_texts(uint32_t memory, uint32_t words) {
    fake_memory = memory;
    fake_words = words;
}

void yard_expect(request *q) {
    const gen_request *r = q->copy;
    tok_id all[TOKENS_MAX + 1], banned[2];
    uint32_t n = r->n_prompt, n_banned = 0;
    memcpy(all, r->prompt, n * sizeof *all);
    if (!r->ignore_eos) banned[n_banned++] = FAKE_END;
    if (r->n_stop_ids > 0) banned[n_banned++] = r->stop_ids[0];
    q->finish = GEN_LENGTH;
    q->stop_id = -1;
    q->n_expected = 0;
    while (q->n_expected < r->max_tokens) {
        bool early = q->n_expected < r->min_tokens;
        tok_id id = fake_next(all, n, banned, early ? n_banned : 0);
        all[n++] = q->expected[q->n_expected++] = id;
        if (early) continue;
        bool is_end = id == FAKE_END && !r->ignore_eos;
        if (!is_end && (r->n_stop_ids == 0 || r->stop_ids[0] != id)) continue;
        q->finish = GEN_STOP;
        q->stop_id = is_end ? -1 : id;
        return;
    }
}
