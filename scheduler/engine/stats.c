/* stats.c - the snapshots of engine_private.h.
 *
 * Release stores of the words come after the odd number, acquire loads of them come before the
 * second look at it; so a reader that saw a word of a newer snapshot sees a newer number, too. */
#include <string.h>

#include "engine_private.h"

const uint32_t engine_step_us_bounds[ENGINE_STEP_BUCKETS] = {
    500,   1000,   2000,   5000,   10000,  20000,   35000,
    50000, 100000, 200000, 350000, 500000, 1000000, UINT32_MAX};

inferd_status board_init(board *b, size_t n_bytes, inferd_err *err) {
    *b = (board){.n_bytes = n_bytes, .n_words = (n_bytes + 7) / 8};
    b->words = calloc(b->n_words, sizeof *b->words);
    return b->words != NULL ? INFERD_OK
                            : inferd_fail(err, INFERD_ENOMEM, "no memory for %zu bytes", n_bytes);
}

void board_deinit(board *b) {
    free(b->words);
    b->words = NULL;
}

void board_publish(board *b, const void *value) {
    unsigned sequence = atomic_load_explicit(&b->sequence, memory_order_relaxed);
    atomic_store_explicit(&b->sequence, sequence + 1, memory_order_relaxed);
    for (size_t i = 0; i < b->n_words; i++) {
        uint64_t word = 0;
        memcpy(&word, (const char *)value + 8 * i, size_min(8, b->n_bytes - 8 * i));
        atomic_store_explicit(&b->words[i], word, memory_order_release);
    }
    atomic_store_explicit(&b->sequence, sequence + 2, memory_order_release);
}

void board_read(const board *b, void *out) {
    for (;;) {
        unsigned before = atomic_load_explicit(&b->sequence, memory_order_acquire);
        for (size_t i = 0; i < b->n_words; i++) {
            uint64_t word = atomic_load_explicit(&b->words[i], memory_order_acquire);
            memcpy((char *)out + 8 * i, &word, size_min(8, b->n_bytes - 8 * i));
        }
        unsigned after = atomic_load_explicit(&b->sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0) return;
    }
}

/* ---- flows ---- */

enum { FLOW_WORDS = (sizeof(engine_flow) + 7) / 8 };

inferd_status flow_views_init(flow_views *v, inferd_err *err) {
    v->boards = calloc(ENGINE_FLOWS_MAX, sizeof *v->boards);
    v->words = calloc((size_t)ENGINE_FLOWS_MAX * FLOW_WORDS, sizeof *v->words);
    if (v->boards == NULL || v->words == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the usage of %u flows",
                           ENGINE_FLOWS_MAX);
    for (size_t i = 0; i < ENGINE_FLOWS_MAX; i++)
        v->boards[i] = (board){.words = v->words + i * FLOW_WORDS,
                               .n_bytes = sizeof(engine_flow),
                               .n_words = FLOW_WORDS};
    return INFERD_OK;
}

void flow_views_deinit(flow_views *v) {
    free(v->boards);
    free(v->words);
    v->boards = NULL;
    v->words = NULL;
}

void flow_views_publish(flow_views *v, flow_usage *a) {
    for (uint32_t i; (i = flow_usage_next_changed(a)) != FLOW_USAGE_NONE;)
        board_publish(&v->boards[i], &a->rows[i].is);
    atomic_store_explicit(&v->n, a->n_rows, memory_order_release);
}

uint32_t engine_get_flows(const engine *e, engine_flow *out, uint32_t n_max) {
    uint32_t n = u32_min(atomic_load_explicit(&e->flows.n, memory_order_acquire), n_max);
    for (uint32_t i = 0; i < n; i++) board_read(&e->flows.boards[i], &out[i]);
    return n;
}
