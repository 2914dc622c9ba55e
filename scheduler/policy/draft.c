/* draft.c - see draft.h.  The search is one pass over the tokens, about a nanosecond for each. */
#include "draft.h"

void draft_learn(draft_habit *h, uint32_t n_max, uint32_t n_tokens, uint32_t n_right) {
    h->n_next = u32_min(n_right + 1, n_max);
    h->n_misses = n_right > 0 ? 0 : h->n_misses + 1;
    if (h->n_misses < DRAFT_MISSES_MAX) return;
    h->n_misses = 0;
    h->rest_until = n_tokens + DRAFT_REST_TOKENS;
}

/* Index behind the newest earlier occurrence of the last tokens; 0: there is none. */
static uint32_t find_end(const tok_id *tokens, uint32_t n) {
    if (n < 3) return 0;
    tok_id last = tokens[n - 1], before = tokens[n - 2], first = tokens[n - 3];
    uint32_t two = 0;
    for (uint32_t i = n - 2; i > 0; i--) {
        if (tokens[i] != last || tokens[i - 1] != before) continue;
        if (i > 1 && tokens[i - 2] == first) return i + 1;
        if (two == 0) two = i + 1;
    }
    return two;
}

uint32_t draft_write(tok_id *tokens, uint32_t n, uint32_t n_max) {
    uint32_t from = n_max > 0 ? find_end(tokens, n) : 0;
    if (from == 0) return 0;
    /* `from` is below n, so a draft that runs into the end goes on with its own beginning. */
    for (uint32_t i = 0; i < n_max; i++) tokens[n + i] = tokens[from + i];
    return n_max;
}
