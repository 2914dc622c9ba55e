/* stats.c - the snapshot of engine_private.h.
 *
 * Release stores of the words keep the odd number in front of them, acquire loads keep the second
 * look behind them; so a reader that saw one word of a newer snapshot sees a newer number, too. */
#include <string.h>

#include "engine_private.h"

const uint32_t engine_step_us_bounds[ENGINE_STEP_BUCKETS] = {
    500,   1000,   2000,   5000,   10000,  20000,   35000,
    50000, 100000, 200000, 350000, 500000, 1000000, UINT32_MAX};

void stats_publish(stats_board *board, const engine_stats *stats) {
    uint64_t words[STATS_WORDS] = {0};
    memcpy(words, stats, sizeof *stats);
    unsigned sequence = atomic_load_explicit(&board->sequence, memory_order_relaxed);
    atomic_store_explicit(&board->sequence, sequence + 1, memory_order_relaxed);
    for (size_t i = 0; i < STATS_WORDS; i++)
        atomic_store_explicit(&board->words[i], words[i], memory_order_release);
    atomic_store_explicit(&board->sequence, sequence + 2, memory_order_release);
}

void stats_read(const stats_board *board, engine_stats *out) {
    uint64_t words[STATS_WORDS];
    for (;;) {
        unsigned before = atomic_load_explicit(&board->sequence, memory_order_acquire);
        for (size_t i = 0; i < STATS_WORDS; i++)
            words[i] = atomic_load_explicit(&board->words[i], memory_order_acquire);
        unsigned after = atomic_load_explicit(&board->sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0) break;
    }
    memcpy(out, words, sizeof *out);
}
