/* watch.c - see scheduler/watch.h.
 *
 *   front: engine_pages_ask > engine: watch_write_pages > front: engine_pages_take
 *
 * Three arrays of page codes go around: the front has one, the newest answer waits in `ready`, and
 * the engine writes the third, so the lock is held for an exchange of pointers only.
 * Thread: watch_* the engine's, engine_* the front's. */
#include <string.h>

#include "engine_private.h"
#include "seq.h"

inferd_status watch_init(watch *w, inferd_err *err) {
    return board_init(&w->step_board, sizeof(engine_step_view), err);
}

void watch_deinit(watch *w) {
    board_deinit(&w->step_board);
    free(w->writing);
    free(w->ready);
}

/* ---- pages ---- */

static uint32_t code_of(const core *c, uint32_t page) {
    static const page_use uses[PAGE_STATES] = {
        [PAGE_FREE] = PAGE_USE_FREE,       [PAGE_WEIGHT] = PAGE_USE_WEIGHT,
        [PAGE_KV] = PAGE_USE_KV,           [PAGE_WARM] = PAGE_USE_WARM,
        [PAGE_SWAPPED] = PAGE_USE_SWAPPED, [PAGE_QUARANTINE] = PAGE_USE_QUARANTINE,
        [PAGE_ABSENT] = PAGE_USE_ABSENT};
    const pool_page *p = &c->pool.pages[page];
    page_use use = uses[p->state];
    bool owned = p->state == PAGE_WEIGHT || p->state == PAGE_KV || p->state == PAGE_WARM ||
                 p->state == PAGE_SWAPPED;
    if (p->state == PAGE_KV && sched_page_is_cached(c->sched, p->owner, page))
        use = PAGE_USE_CACHED;
    return page_code(use, owned ? p->owner : UINT32_MAX);
}

void watch_write_pages(engine *e) {
    watch *w = &e->watch;
    uint32_t n = e->core.pool.n_pages;
    if (!atomic_exchange(&w->pages_wanted, false) || n == 0) return;
    if (w->n_writing < n) {
        uint32_t *grown = realloc(w->writing, n * sizeof *grown);
        if (grown == NULL) return; // asked for again soon
        w->writing = grown;
        w->n_writing = n;
    }
    for (uint32_t i = 0; i < n; i++) w->writing[i] = code_of(&e->core, i);
    pthread_mutex_lock(&e->mutex);
    uint32_t *old = w->ready, n_old = w->n_ready_room;
    w->ready = w->writing;
    w->n_ready_room = w->n_writing;
    w->n_ready = n;
    w->has_ready = true;
    pthread_mutex_unlock(&e->mutex);
    w->writing = old;
    w->n_writing = n_old;
}

void engine_pages_ask(engine *e) {
    atomic_store(&e->watch.pages_wanted, true);
    pthread_mutex_lock(&e->mutex);
    e->signalled = true;
    pthread_cond_signal(&e->to_engine);
    pthread_mutex_unlock(&e->mutex);
}

bool engine_pages_take(engine *e, uint32_t **codes, uint32_t *n) {
    watch *w = &e->watch;
    pthread_mutex_lock(&e->mutex);
    bool has = w->has_ready;
    if (has) {
        uint32_t *given = *codes, n_given = *n;
        *codes = w->ready;
        *n = w->n_ready;
        w->ready = given;
        w->n_ready_room = n_given;
        w->has_ready = false;
    }
    pthread_mutex_unlock(&e->mutex);
    return has;
}

/* ---- the running step ---- */

void engine_watch_steps(engine *e, uint64_t until_us) {
    atomic_store_explicit(&e->watch.steps_until_us, until_us, memory_order_relaxed);
}

void watch_launched(void *ctx, const step *st, uint64_t now_us) {
    engine *e = ctx;
    watch *w = &e->watch;
    if (now_us >= atomic_load_explicit(&w->steps_until_us, memory_order_relaxed)) return;
    engine_step_view v = {.began_us = now_us,
                          .model_idx = st->model_idx,
                          .n_prefill_rows = st->n_prefill_rows,
                          .n_decode_rows = st->b.n_rows - st->n_prefill_rows,
                          .n_seqs = st->b.n_seqs,
                          .last_us = w->last_us};
    for (uint32_t i = 0; i < st->b.n_seqs && i < ENGINE_STEP_SEQS_MAX; i++)
        v.seqs[i] =
            (engine_step_seq){.id = st->items[i].q->req->id,
                              .n_rows = st->items[i].n_rows,
                              .prefill = st->items[i].begin < st->items[i].q->req->n_prompt};
    w->step = v;
    w->step_epoch = st->epoch;
    board_publish(&w->step_board, &w->step);
}

void watch_finished(engine *e, const step *st, uint64_t wall_us) {
    watch *w = &e->watch;
    w->last_us = wall_us;
    if (w->step.began_us == 0 || w->step_epoch != st->epoch) return; // a later one runs
    w->step.ended_us = w->step.began_us + wall_us;
    w->step.last_us = wall_us;
    board_publish(&w->step_board, &w->step);
}

void engine_step_get(const engine *e, engine_step_view *out) {
    board_read(&e->watch.step_board, out);
}

/* ---- notes ---- */

void watch_note(void *ctx, const engine_note *note) {
    engine *e = ctx;
    watch *w = &e->watch;
    pthread_mutex_lock(&e->mutex);
    if (w->n_notes == ENGINE_NOTES_MAX) {
        w->first_note = (w->first_note + 1) % ENGINE_NOTES_MAX;
        w->n_notes--;
        w->n_notes_lost++;
    }
    w->notes[(w->first_note + w->n_notes++) % ENGINE_NOTES_MAX] = *note;
    pthread_mutex_unlock(&e->mutex);
}

uint32_t engine_notes_take(engine *e, engine_note *out, uint32_t n_max, uint64_t *n_lost) {
    watch *w = &e->watch;
    uint32_t n = 0;
    pthread_mutex_lock(&e->mutex);
    for (; n < n_max && w->n_notes > 0; n++, w->n_notes--) {
        out[n] = w->notes[w->first_note];
        w->first_note = (w->first_note + 1) % ENGINE_NOTES_MAX;
    }
    *n_lost += w->n_notes_lost;
    w->n_notes_lost = 0;
    pthread_mutex_unlock(&e->mutex);
    return n;
}
