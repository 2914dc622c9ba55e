/* thoughts.c - see thoughts.h. */
#include "thoughts.h"

#include <string.h>

#include "inferd/base.h"

void thoughts_deinit(thoughts *t) {
    free(t->waiting);
    *t = (thoughts){0};
}

bool thoughts_add(thoughts *t, const thought_token *token) {
    if (t->n_waiting == t->capacity) {
        size_t wanted = size_max(t->capacity * 2, 16), n_bytes;
        if (!size_mul(wanted, sizeof *t->waiting, &n_bytes)) return false;
        thought_token *p = realloc(t->waiting, n_bytes);
        if (p == NULL) return false;
        t->waiting = p;
        t->capacity = wanted;
    }
    t->waiting[t->n_waiting++] = *token;
    return true;
}

bool thoughts_next(thoughts *t, const call_reasoning *r, tok_id *id, bool *is_reasoning) {
    if (t->n_waiting == 0 || t->waiting[0].end > r->known) return false;
    thought_token token = t->waiting[0];
    memmove(t->waiting, t->waiting + 1, --t->n_waiting * sizeof *t->waiting); // few wait
    *id = token.id;
    *is_reasoning = token.start >= r->from && token.start < r->to;
    t->n_reasoning += *is_reasoning && token.shown;
    return true;
}
