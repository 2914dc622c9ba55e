/* dfa_literals.c - a set of texts as a trie with lists of edges, made from the sorted texts.
 *
 * The states are numbered level by level: the children of a state follow one another, and the texts
 * of a state are a run of the sorted texts.  One pass over each level, so the time is linear in the
 * bytes, after the sort. */
#include "dfa_private.h"

enum { DENSE_CELLS_MAX = 1 << 16 }; // tables up to this size are faster than lists of edges

static int compare_texts(const void *a, const void *b, void *texts_of) {
    const bytes *texts = texts_of;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    bytes x = texts[i], y = texts[j];
    size_t n = size_min(x.n, y.n);
    int c = n == 0 ? 0 : memcmp(x.p, y.p, n);
    if (c == 0) c = x.n < y.n ? -1 : x.n > y.n;
    return c != 0 ? c : i < j ? -1 : i > j;
}

typedef struct trie {
    const bytes *texts;
    const uint32_t *tags;
    uint32_t *order;       // [n] texts, sorted
    uint32_t *begin, *end; // [n_states] the run of texts of a state
    uint32_t *depth;       // [n_states]
    dfa *out;
    uint32_t n_states_max, n_edges;
} trie;

/* The texts that end here; the rest of the run goes on.  Returns where the rest begins. */
static uint32_t take_ends(trie *w, uint32_t s) {
    uint32_t i = w->begin[s], best = 0;
    for (; i < w->end[s] && w->texts[w->order[i]].n == w->depth[s]; i++) {
        uint32_t tag = (w->tags == NULL ? 0 : w->tags[w->order[i]]) + 1;
        if (best == 0 || tag < best) best = tag;
    }
    w->out->tags[s] = best;
    return i;
}

static void add_children(trie *w, uint32_t s) {
    dfa *d = w->out;
    d->edges_at[s] = w->n_edges;
    uint32_t at = w->depth[s];
    for (uint32_t i = take_ends(w, s); i < w->end[s];) {
        unsigned char byte = (unsigned char)w->texts[w->order[i]].p[at];
        uint32_t child = d->n_states++, first = i;
        while (i < w->end[s] && (unsigned char)w->texts[w->order[i]].p[at] == byte) i++;
        w->begin[child] = first;
        w->end[child] = i;
        w->depth[child] = at + 1;
        d->edge_class[w->n_edges] = d->classes[byte];
        d->edge_to[w->n_edges++] = child;
    }
}

/* A class for each byte that occurs, in the order of bytes, and one for all others. */
static void classes_of_texts(const bytes *texts, size_t n, dfa *out) {
    bool used[256] = {false};
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < texts[i].n; j++) used[(unsigned char)texts[i].p[j]] = true;
    uint32_t n_used = 0;
    for (int b = 0; b < 256; b++)
        if (used[b]) out->classes[b] = (uint8_t)n_used++;
    for (int b = 0; b < 256; b++)
        if (!used[b]) out->classes[b] = (uint8_t)n_used;
    out->n_classes = n_used < 256 ? n_used + 1 : 256;
}

static bool make_dense(dfa *d) {
    size_t n_cells = (size_t)d->n_states * d->n_classes;
    if (n_cells > DENSE_CELLS_MAX) return true;
    uint32_t *next = malloc(n_cells * sizeof *next);
    if (next == NULL) return false;
    memset(next, 0xFF, n_cells * sizeof *next);
    for (uint32_t s = 0; s < d->n_states; s++)
        for (uint32_t e = d->edges_at[s]; e < d->edges_at[s + 1]; e++)
            next[(size_t)s * d->n_classes + d->edge_class[e]] = d->edge_to[e];
    free(d->edges_at);
    free(d->edge_class);
    free(d->edge_to);
    d->edges_at = d->edge_to = NULL;
    d->edge_class = NULL;
    d->next = next;
    return true;
}

static bool trie_alloc(trie *w, size_t n, size_t n_states_max) {
    dfa *d = w->out;
    d->tags = calloc(n_states_max, sizeof *d->tags);
    d->edges_at = calloc(n_states_max + 1, sizeof *d->edges_at);
    d->edge_class = calloc(n_states_max, sizeof *d->edge_class);
    d->edge_to = calloc(n_states_max, sizeof *d->edge_to);
    w->order = malloc(n * sizeof *w->order);
    w->begin = malloc(n_states_max * sizeof *w->begin);
    w->end = malloc(n_states_max * sizeof *w->end);
    w->depth = malloc(n_states_max * sizeof *w->depth);
    return d->tags != NULL && d->edges_at != NULL && d->edge_class != NULL && d->edge_to != NULL &&
           w->order != NULL && w->begin != NULL && w->end != NULL && w->depth != NULL;
}

/* Gives back what the arrays have too much; a failure to shrink is none. */
static void shrink(dfa *d) {
    uint32_t *tags = realloc(d->tags, d->n_states * sizeof *tags);
    if (tags != NULL) d->tags = tags;
    if (d->next != NULL) return;
    uint32_t *at = realloc(d->edges_at, ((size_t)d->n_states + 1) * sizeof *at);
    if (at != NULL) d->edges_at = at;
    uint8_t *edge_class = realloc(d->edge_class, d->n_states);
    if (edge_class != NULL) d->edge_class = edge_class;
    uint32_t *to = realloc(d->edge_to, d->n_states * sizeof *to);
    if (to != NULL) d->edge_to = to;
}

inferd_status dfa_of_literals(const bytes *texts, const uint32_t *tags, size_t n,
                              const dfa_limits *limits, dfa *out, inferd_err *err) {
    (void)limits; // the bytes are the limit
    *out = (dfa){0};
    size_t n_bytes = 1;
    for (size_t i = 0; i < n; i++)
        if (!size_add(n_bytes, texts[i].n, &n_bytes) || n_bytes > INT32_MAX || n > INT32_MAX)
            return inferd_fail(err, INFERD_ETOOLONG, "%zu literals are too long", n);
    if (n == 0) return INFERD_OK;

    trie w = {.texts = texts, .tags = tags, .out = out};
    bool ok = trie_alloc(&w, n, n_bytes);
    if (ok) {
        for (size_t i = 0; i < n; i++) w.order[i] = (uint32_t)i;
        qsort_r(w.order, n, sizeof *w.order, compare_texts, (void *)texts);
        classes_of_texts(texts, n, out);
        w.end[0] = (uint32_t)n;
        w.begin[0] = w.depth[0] = 0;
        out->n_states = 1;
        for (uint32_t s = 0; s < out->n_states; s++) add_children(&w, s);
        out->edges_at[out->n_states] = w.n_edges;
        ok = make_dense(out);
        if (ok) shrink(out);
    }
    free(w.order);
    free(w.begin);
    free(w.end);
    free(w.depth);
    if (ok) return INFERD_OK;
    dfa_deinit(out);
    return dfa_no_memory(err);
}
