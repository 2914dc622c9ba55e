/* worth.c - see scheduler/worth.h. */
#include "scheduler/worth.h"

typedef unsigned __int128 wide;

enum {
    SCALE_SHIFT = 40, // so that a small model that has been idle for weeks is worth more than 0
    WORTH_BITS = 64,
    FACTOR_ONE = 1024
};

static uint64_t to_ms(uint64_t us) {
    uint64_t ms = us / 1000;
    return ms < WORTH_PAUSE_MAX_MS ? ms : WORTH_PAUSE_MAX_MS;
}

/* The binary logarithm, linear between powers of two; exponential undoes it. */
static uint64_t logarithm(uint64_t ms) {
    uint64_t x = ms + 1, e = 63 - (uint64_t)__builtin_clzll(x);
    return e * WORTH_LOG_ONE + (x - (1ull << e)) * WORTH_LOG_ONE / (1ull << e);
}

static uint64_t exponential(uint64_t log) {
    uint64_t e = log / WORTH_LOG_ONE, rest = log % WORTH_LOG_ONE;
    return (1ull << e) + (1ull << e) * rest / WORTH_LOG_ONE - 1;
}

void worth_note_pause(worth_pauses *p, uint64_t pause_us, uint64_t reload_us) {
    if (pause_us < reload_us) return;
    if (p->n == WORTH_PAUSES_MAX) {
        p->n /= 2;
        p->sum_ms /= 2;
        p->sum_log /= 2;
    }
    p->sum_ms += to_ms(pause_us);
    p->sum_log += logarithm(to_ms(pause_us));
    p->n++;
}

uint64_t worth_next_ms(const worth_idle *m) {
    uint64_t idle_ms = to_ms(m->idle_us);
    uint64_t sum_log = m->pauses.sum_log + WORTH_PRIOR * logarithm(idle_ms);
    return idle_ms + exponential(sum_log / (m->pauses.n + (uint64_t)WORTH_PRIOR)) + 1;
}

/* In parts of FACTOR_ONE; between two halvings it falls evenly. */
static uint64_t class_factor(const worth_idle *m) {
    uint64_t mean_ms = m->pauses.n > 0 ? m->pauses.sum_ms / m->pauses.n : 0;
    uint64_t half_ms = mean_ms > WORTH_HALVED_MS ? mean_ms : WORTH_HALVED_MS;
    uint64_t n = to_ms(m->idle_us) / half_ms, rest_ms = to_ms(m->idle_us) % half_ms;
    uint64_t factor = FACTOR_ONE;
    for (uint32_t i = 0; i < m->n_above; i++) factor *= WORTH_CLASS;
    for (; n > 0 && factor > FACTOR_ONE; n--) factor /= 2;
    factor -= factor / 2 * rest_ms / half_ms;
    return factor > FACTOR_ONE ? factor : FACTOR_ONE;
}

bool worth_is_urgent(const worth_idle *m) {
    return class_factor(m) > FACTOR_ONE;
}

uint64_t worth_of(const worth_idle *m) {
    wide saved = (wide)(m->weight + 1) * m->reload_us * class_factor(m) / FACTOR_ONE;
    wide rent = (wide)u32_max(m->n_pages, 1) * worth_next_ms(m);
    if (saved >> (2 * WORTH_BITS - SCALE_SHIFT - 1) != 0) return UINT64_MAX;
    wide worth = (saved << SCALE_SHIFT) / rent;
    return worth >> WORTH_BITS != 0 ? UINT64_MAX : (uint64_t)worth;
}

bool worth_goes_before(const worth_candidate *a, const worth_candidate *b) {
    if (a->prio != b->prio) return a->prio > b->prio;
    return a->value != b->value ? a->value < b->value : a->idx < b->idx;
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
