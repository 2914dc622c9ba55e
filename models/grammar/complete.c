/* complete.c - a short text that ends a grammar from a position: for tests, and to show what a text
 * that was cut lacks.
 *
 * A search of the machine's states, the most promising first: bytes written so far, and an estimate
 * of those that are missing: from a config's state to the end of its terminal, and what its frames
 * still demand.  The estimate is never too high, so the text is a shortest one, and nearly always
 * exact, so the search goes straight to it. */
#include <string.h>

#include "machine.h"

enum { STATES_MAX = 200000 };

/* ---- the estimate ---- */

static uint32_t add_sat(uint32_t a, uint32_t b) {
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

/* A property that is required, with its comma. */
static uint32_t property_needs(const grammar *g, const object *o, uint32_t p) {
    return o->required[p] ? add_sat(o->name_bytes[p] + 4, g->shortest[o->values[p]]) : 0;
}

static bool was_written(const object *o, const frame *f, uint32_t p) {
    return o->any_order ? ((f->pos | (uint64_t)f->high << 32) >> p & 1) != 0 : p < f->pos;
}

/* The brace, and before it all that is required and was not written. */
static uint32_t rest_needs(const grammar *g, const object *o, const frame *f) {
    if (!o->any_order) return o->needs[f->pos];
    uint32_t sum = 1;
    for (uint32_t p = 0; p < o->n_properties; p++)
        if (!was_written(o, f, p)) sum = add_sat(sum, property_needs(g, o, p));
    return sum;
}

/* From inside of a name: its rest, its value, and what must follow that. */
static uint32_t key_needs(const grammar *g, const object *o, const frame *f, uint32_t d,
                          uint32_t t) {
    uint32_t rest = rest_needs(g, o, f), best = UINT32_MAX;
    uint32_t last = o->any_order ? o->n_properties : o->next_required[f->pos];
    if (d != OTHERS_OFF)
        for (uint32_t i = 0; i < o->n_other_values; i++)
            best = u32_min(
                best, add_sat(g->distance[d] + 2, add_sat(g->shortest[o->other_values[i]], rest)));
    if (t == KEY_OFF) return best;
    const key_node *k = &o->key_nodes[t - 1];
    for (uint32_t i = k->begin; i < k->end; i++) {
        uint32_t p = o->by_name[i];
        if (p > last || was_written(o, f, p)) continue;
        uint32_t more = add_sat(g->shortest[o->values[p]], rest - property_needs(g, o, p));
        best = u32_min(best, add_sat(o->name_bytes[p] - k->depth + 2, more));
    }
    return best;
}

/* Behind the terminal that its config is in, or behind its value. */
static uint32_t object_needs(const grammar *g, const object *o, const frame *f) {
    uint32_t rest = rest_needs(g, o, f), d = OTHERS_OFF;
    bool some = o->n_required[0] > 0; // the first has no comma
    switch ((object_phase)(f->aux & 7)) {
    case OBJECT_OPEN:
        return rest - (some ? 1 : 0);
    case OBJECT_QUOTE:
        if (o->others != UINT32_MAX && f->count < o->max &&
            (o->any_order || o->next_required[f->pos] == o->n_properties))
            d = g->first_state[o->others];
        return key_needs(g, o, f, d, 1);
    case OBJECT_COLON:
        return add_sat(g->shortest[f->aux >> 3], rest);
    case OBJECT_CLOSE:
        return 0;
    case OBJECT_KEY:
    case OBJECT_VALUE:
        break;
    }
    return rest;
}

static uint32_t frame_needs(const grammar *g, const frame *f) {
    const graph_node *n = &g->nodes[f->node];
    uint32_t sum = 0;
    if (n->kind == NODE_SEQ) {
        for (uint32_t i = f->pos; i < n->b; i++)
            sum = add_sat(sum, g->shortest[g->children[n->a + i]]);
        return sum;
    }
    if (n->kind == NODE_OBJECT) return object_needs(g, &g->objects[n->a], f);
    uint64_t done = (uint64_t)f->count + 1, each = n->kind == NODE_CHARS ? 1 : g->shortest[n->b];
    uint64_t more = done < n->c ? (n->c - done) * each : 0;
    return more < UINT32_MAX ? (uint32_t)more : UINT32_MAX;
}

static uint32_t config_needs(const grammar_machine *m, const config *c, uint32_t best) {
    const grammar *g = m->g;
    uint32_t f = c->frame, sum;
    if (c->t == 0) {
        sum = g->distance[c->d];
    } else { // a name
        const frame *top = &m->frames[f];
        sum = key_needs(g, &g->objects[g->nodes[top->node].a], top, c->d, c->t);
        f = top->parent;
    }
    for (; f != 0 && sum < best; f = m->frames[f].parent)
        sum = add_sat(sum, frame_needs(g, &m->frames[f]));
    return u32_min(best, sum);
}

static uint32_t state_needs(const grammar_machine *m, uint32_t s) {
    uint32_t best = UINT32_MAX;
    if (m->states[s].accepts) return 0;
    for (uint32_t i = 0; i < m->states[s].n_configs; i++)
        best = config_needs(m, &m->configs[m->states[s].configs + i], best);
    return best;
}

/* ---- the search ---- */

typedef struct found {
    uint32_t state, from; // index of the one before
    uint32_t n, cost;     // bytes so far; with those missing
    unsigned char byte;
} found;

typedef struct search {
    found *all; // [n]
    uint32_t n, capacity;
    uint32_t *heap; // [n_heap] the lowest cost, then the newest, on top
    uint32_t n_heap, heap_capacity;
    uint8_t *seen; // [n_seen] by state
    uint32_t n_seen;
} search;

static bool comes_first(const search *s, uint32_t a, uint32_t b) {
    return s->all[a].cost < s->all[b].cost || (s->all[a].cost == s->all[b].cost && a > b);
}

static void swap(uint32_t *a, uint32_t *b) {
    uint32_t c = *a;
    *a = *b;
    *b = c;
}

static void push(search *s, uint32_t one) {
    uint32_t at = s->n_heap++;
    s->heap[at] = one;
    for (; at > 0 && comes_first(s, s->heap[at], s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(&s->heap[at], &s->heap[(at - 1) / 2]);
}

static uint32_t pop(search *s) {
    uint32_t top = s->heap[0], at = 0;
    s->heap[0] = s->heap[--s->n_heap];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= s->n_heap) return top;
        if (child + 1 < s->n_heap && comes_first(s, s->heap[child + 1], s->heap[child])) child++;
        if (!comes_first(s, s->heap[child], s->heap[at])) return top;
        swap(&s->heap[at], &s->heap[child]);
        at = child;
    }
}

static bool add(grammar_machine *m, search *s, uint32_t to, uint32_t from, unsigned char byte) {
    if (to >= s->n_seen) {
        uint32_t n = m->states_capacity;
        uint8_t *seen = realloc(s->seen, n);
        if (seen == NULL) return false;
        memset(seen + s->n_seen, 0, n - s->n_seen);
        s->seen = seen;
        s->n_seen = n;
    }
    if (s->seen[to]) return true;
    s->seen[to] = 1;
    if (s->n >= STATES_MAX ||
        !machine_hold(m, (void **)&s->all, &s->capacity, (size_t)s->n + 1, sizeof *s->all) ||
        !machine_hold(m, (void **)&s->heap, &s->heap_capacity, (size_t)s->n + 1, sizeof *s->heap))
        return false;
    uint32_t n = s->n == 0 ? 0 : s->all[from].n + 1;
    s->all[s->n] = (found){to, from, n, add_sat(n, state_needs(m, to)), byte};
    push(s, s->n++);
    return true;
}

/* Appends the bytes on the way to `at`. */
static void write_way(const search *s, uint32_t at, buf *out) {
    size_t n = s->all[at].n;
    if (!buf_reserve(out, n)) return;
    char *end = out->p + out->n + n;
    for (; s->all[at].n > 0; at = s->all[at].from) *--end = (char)s->all[at].byte;
    out->n += n;
}

bool grammar_complete(grammar_machine *m, grammar_pos p, size_t n_max, buf *out) {
    search s = {0};
    bool done = false;
    pthread_mutex_lock(&m->lock);
    m->failure = (inferd_err){0};
    m->n_steps = 0;
    uint32_t from = machine_keep_small(m) ? m->positions[p] : STATE_DEAD;
    bool ok = from != STATE_DEAD && add(m, &s, from, 0, 0);
    while (ok && s.n_heap > 0 && !done) {
        uint32_t at = pop(&s);
        m->n_steps = 0; // STATES_MAX bounds the search
        done = m->states[s.all[at].state].accepts;
        if (done) {
            write_way(&s, at, out);
            break;
        }
        for (int b = 0; b < 256 && ok && s.all[at].n < n_max; b++) {
            uint32_t to = machine_next(m, s.all[at].state, (unsigned char)b);
            if (to != STATE_DEAD) ok = add(m, &s, to, at, (unsigned char)b);
            ok = ok && m->failure.status == INFERD_OK;
        }
    }
    pthread_mutex_unlock(&m->lock);
    free(s.all);
    free(s.heap);
    free(s.seen);
    return done && !out->failed;
}
