/* worth.c - see scheduler/worth.h. */
#include "scheduler/worth.h"

typedef unsigned __int128 wide;

enum {
    SCALE_SHIFT = 40, // so that a small model that has been idle for weeks is worth more than 0
    WORTH_BITS = 64
};

static uint64_t to_ms(uint64_t us) {
    uint64_t ms = us / 1000;
    return ms < WORTH_PAUSE_MAX_MS ? ms : WORTH_PAUSE_MAX_MS;
}

void worth_note_pause(worth_pauses *p, uint64_t pause_us, uint64_t reload_us) {
    if (pause_us < reload_us) return;
    if (p->n == WORTH_PAUSES_MAX) {
        p->n /= 2;
        p->sum_ms /= 2;
    }
    p->sum_ms += to_ms(pause_us);
    p->n++;
}

uint64_t worth_next_ms(const worth_idle *m) {
    uint64_t idle_ms = to_ms(m->idle_us);
    uint64_t mean_ms =
        (m->pauses.sum_ms + WORTH_PRIOR * idle_ms) / (m->pauses.n + (uint64_t)WORTH_PRIOR);
    return idle_ms + mean_ms + 1;
}

uint64_t worth_of(const worth_idle *m) {
    wide saved = (wide)(m->weight + 1) * m->reload_us;
    wide rent = (wide)u32_max(m->n_pages, 1) * worth_next_ms(m);
    if (saved >> (2 * WORTH_BITS - SCALE_SHIFT - 1) != 0) return UINT64_MAX;
    wide worth = (saved << SCALE_SHIFT) / rent;
    return worth >> WORTH_BITS != 0 ? UINT64_MAX : (uint64_t)worth;
}

uint32_t worth_first(const uint32_t *pages, uint32_t n, uint64_t missing) {
    uint64_t sum = 0;
    uint32_t end = 0, first = 0;
    while (end < n && sum < missing) sum += pages[end++];
    if (sum < missing) return 0;
    for (uint32_t i = end; i-- > 0;) {
        if (sum - pages[i] >= missing)
            sum -= pages[i]; // the others are enough
        else
            first = i;
    }
    return first;
}
