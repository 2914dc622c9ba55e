/* retry.c - see scheduler/retry.h. */
#include "scheduler/retry.h"

enum {
    SECOND_US = 1000000,
    SECOND_MS = 1000,
    PER = 1000,       // seconds that a rate is of
    NEWEST_PARTS = 4, // a new window counts for 1 / this
    WINDOWS_MAX = 64, // without an end: the rate has faded to nothing
    MARGIN_TOP = 2,
    MARGIN_BOTTOM = 1
};
_Static_assert(RETRY_SECONDS > RETRY_MAX_MS / 1000 + RETRY_GRACE_S + 1, "promises do not overlap");

static void end_window(retry_book *b, uint32_t n_ended) {
    uint64_t seen = (uint64_t)n_ended * PER * SECOND_US / RETRY_WINDOW_US;
    b->per_1000s =
        b->per_1000s == 0 ? seen : b->per_1000s - b->per_1000s / NEWEST_PARTS + seen / NEWEST_PARTS;
}

static void pass_windows(retry_book *b, uint64_t now_us) {
    if (b->window_us == 0) b->window_us = now_us;
    for (int i = 0; i < WINDOWS_MAX && now_us >= b->window_us + RETRY_WINDOW_US; i++) {
        end_window(b, b->n_ended);
        b->n_ended = 0;
        b->window_us += RETRY_WINDOW_US;
    }
    if (now_us >= b->window_us + RETRY_WINDOW_US) b->window_us = now_us;
}

void retry_note_end(retry_book *b, uint64_t now_us) {
    pass_windows(b, now_us);
    b->n_ended++;
}

/* Promises nobody came for are forgotten. */
static void pass_seconds(retry_book *b, uint64_t now_us) {
    uint64_t second = now_us / SECOND_US;
    for (uint32_t i = 0; i < RETRY_SECONDS && b->second < second; i++, b->second++) {
        uint32_t *old = &b->due[(b->second + RETRY_SECONDS - RETRY_GRACE_S) % RETRY_SECONDS];
        b->n_open -= *old;
        *old = 0;
    }
    b->second = second;
}

/* Of those that are due: how many, and with `take` the oldest is used up. */
static uint32_t count_due(retry_book *b, bool take) {
    uint32_t n = 0;
    for (uint32_t i = RETRY_GRACE_S + 1; i-- > 0;) {
        uint32_t *due = &b->due[(b->second + RETRY_SECONDS - i) % RETRY_SECONDS];
        if (take && *due > 0) {
            *due -= 1;
            b->n_open--;
            return 1;
        }
        n += *due;
    }
    return n;
}

/* Places that newcomers may have. */
static uint32_t n_open_to_all(uint32_t n_max) {
    return n_max - n_max / RETRY_KEPT_PARTS;
}

bool retry_may_enter(retry_book *b, uint64_t now_us, uint32_t n_waiting, uint32_t n_max,
                     bool promised) {
    pass_seconds(b, now_us);
    if (!promised) return (uint64_t)n_waiting + count_due(b, false) < n_open_to_all(n_max);
    if (n_waiting >= n_max) return false;
    count_due(b, true);
    return true;
}

uint32_t retry_promise(retry_book *b, uint64_t now_us, uint32_t n_waiting, uint32_t n_max) {
    pass_windows(b, now_us);
    pass_seconds(b, now_us);
    uint32_t n_open = n_open_to_all(n_max);
    uint64_t missing = n_waiting >= n_open ? (uint64_t)n_waiting - n_open + 1 : 1;
    uint64_t seconds = RETRY_MAX_MS / SECOND_MS;
    if (b->per_1000s > 0) {
        uint64_t rate = b->per_1000s * MARGIN_BOTTOM;
        seconds = ((missing + b->n_open) * PER * MARGIN_TOP + rate - 1) / rate;
    }
    if (seconds * SECOND_MS > RETRY_MAX_MS) return 0;
    if (seconds * SECOND_MS < RETRY_MIN_MS) seconds = RETRY_MIN_MS / SECOND_MS;
    b->due[(b->second + seconds) % RETRY_SECONDS]++;
    b->n_open++;
    return (uint32_t)seconds * SECOND_MS;
}
