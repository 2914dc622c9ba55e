/* thoughts.c - see thoughts.h. */
#include "thoughts.h"

#include <string.h>

#include "inferd/base.h"

void thoughts_deinit(thoughts *t) {
    free(t->waiting);
    *t = (thoughts){0};
}

/* Room for one more: of those in front that are taken, or new. */
static bool make_room(thoughts *t) {
    size_t wanted = size_max(t->capacity * 2, 16), n_bytes;
    if (t->first > t->n / 2) {
        memmove(t->waiting, t->waiting + t->first, (t->n - t->first) * sizeof *t->waiting);
        t->n -= t->first;
        t->first = 0;
    }
    if (t->n < t->capacity) return true;
    if (!size_mul(wanted, sizeof *t->waiting, &n_bytes)) return false;
    thought_token *p = realloc(t->waiting, n_bytes);
    if (p == NULL) return false;
    t->waiting = p;
    t->capacity = wanted;
    return true;
}

bool thoughts_add(thoughts *t, const thought_token *token) {
    if (t->n == t->capacity && !make_room(t)) return false;
    t->waiting[t->n++] = *token;
    return true;
}

bool thoughts_next(thoughts *t, const call_reasoning *r, tok_id *id, bool *is_reasoning) {
    if (t->first == t->n || t->waiting[t->first].end > r->known) return false;
    thought_token token = t->waiting[t->first++];
    *id = token.id;
    *is_reasoning = token.start >= r->from && token.start < r->to;
    t->n_reasoning += *is_reasoning && token.shown;
    return true;
}
