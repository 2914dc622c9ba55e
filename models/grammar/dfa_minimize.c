/* dfa_minimize.c - fewest states, by partition refinement over edges.
 *
 * States are divided into blocks, first by their tags; edges into cords, first by their columns.  A
 * block that is split off splits each cord by "leads into the block"; a cord that is split off
 * splits each block by "has an edge of the cord".  The smaller part becomes the new set, so each
 * edge is looked at log n times (A. Valmari and P. Lehtinen, "Efficient minimization of DFAs with
 * partial transition functions", 2008).  At the end each block is a state. */
#include "dfa_private.h"

/* Items in sets; the marked items of a set stand first. */
typedef struct partition {
    uint32_t *items;       // [n] set by set
    uint32_t *place;       // [n] of each item in items
    uint32_t *set_of;      // [n]
    uint32_t *begin, *end; // [n_sets]
    uint32_t *n_marked;    // [n_sets]
    uint32_t *touched;     // sets with marked items
    uint32_t n_sets, n_touched;
} partition;

static void partition_deinit(partition *p) {
    free(p->items);
    free(p->place);
    free(p->set_of);
    free(p->begin);
    free(p->end);
    free(p->n_marked);
    free(p->touched);
}

/* All items in one set; false: no memory. */
static bool partition_init(partition *p, uint32_t n) {
    size_t n_bytes = size_max(n, 1) * sizeof(uint32_t);
    *p = (partition){
        .items = malloc(n_bytes),
        .place = malloc(n_bytes),
        .set_of = malloc(n_bytes),
        .begin = malloc(n_bytes),
        .end = malloc(n_bytes),
        .n_marked = malloc(n_bytes),
        .touched = malloc(n_bytes),
    };
    if (p->items == NULL || p->place == NULL || p->set_of == NULL || p->begin == NULL ||
        p->end == NULL || p->n_marked == NULL || p->touched == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++) p->items[i] = p->place[i] = i, p->set_of[i] = 0;
    if (n > 0) p->begin[0] = 0, p->end[0] = n, p->n_marked[0] = 0, p->n_sets = 1;
    return true;
}

static void mark(partition *p, uint32_t item) {
    uint32_t set = p->set_of[item], at = p->place[item], to = p->begin[set] + p->n_marked[set];
    if (at < to) return; // it is marked
    uint32_t other = p->items[to];
    p->items[at] = other;
    p->place[other] = at;
    p->items[to] = item;
    p->place[item] = to;
    if (p->n_marked[set]++ == 0) p->touched[p->n_touched++] = set;
}

/* Divides each touched set into its marked and other items; the smaller part is a new set. */
static void split(partition *p) {
    while (p->n_touched > 0) {
        uint32_t set = p->touched[--p->n_touched];
        uint32_t middle = p->begin[set] + p->n_marked[set], fresh = p->n_sets;
        bool whole = middle == p->end[set];
        bool marked_less = p->n_marked[set] <= p->end[set] - middle;
        p->n_marked[set] = 0;
        if (whole) continue;
        if (marked_less) {
            p->begin[fresh] = p->begin[set];
            p->end[fresh] = p->begin[set] = middle;
        } else {
            p->end[fresh] = p->end[set];
            p->begin[fresh] = p->end[set] = middle;
        }
        p->n_marked[fresh] = 0;
        p->n_sets++;
        for (uint32_t i = p->begin[fresh]; i < p->end[fresh]; i++) p->set_of[p->items[i]] = fresh;
    }
}

typedef struct minimizer {
    partition blocks, cords;
    uint32_t *tail, *head; // [n_edges] sorted by column
    uint32_t *into_at;     // [n_states + 1]
    uint32_t *into;        // [n_edges] edges by their head
    uint32_t *by_tag;      // [n_states]
    uint32_t n_edges;
} minimizer;

static void minimizer_deinit(minimizer *m) {
    partition_deinit(&m->blocks);
    partition_deinit(&m->cords);
    free(m->tail);
    free(m->head);
    free(m->into_at);
    free(m->into);
    free(m->by_tag);
}

static bool minimizer_init(minimizer *m, const dfa_table *t) {
    size_t n_edges = 0, n_cells = (size_t)t->n_states * t->n_columns;
    for (size_t i = 0; i < n_cells; i++) n_edges += t->next[i] != DFA_DEAD;
    if (n_edges >= UINT32_MAX) return false;
    size_t n_bytes = size_max(n_edges, 1) * sizeof(uint32_t);
    *m = (minimizer){
        .tail = malloc(n_bytes),
        .head = malloc(n_bytes),
        .into_at = calloc((size_t)t->n_states + 1, sizeof *m->into_at),
        .into = malloc(n_bytes),
        .by_tag = malloc(t->n_states * sizeof *m->by_tag),
        .n_edges = (uint32_t)n_edges,
    };
    return m->tail != NULL && m->head != NULL && m->into_at != NULL && m->into != NULL &&
           m->by_tag != NULL && partition_init(&m->blocks, t->n_states) &&
           partition_init(&m->cords, m->n_edges);
}

/* Edges in the order of their columns; each column is a cord. */
static void list_edges(minimizer *m, const dfa_table *t) {
    uint32_t n = 0;
    m->cords.n_sets = 0;
    for (uint32_t c = 0; c < t->n_columns; c++) {
        uint32_t first = n;
        for (uint32_t s = 0; s < t->n_states; s++) {
            uint32_t to = dfa_table_row(t, s)[c];
            if (to == DFA_DEAD) continue;
            m->tail[n] = s;
            m->head[n] = to;
            m->cords.set_of[n++] = m->cords.n_sets;
            m->into_at[to]++;
        }
        if (n == first) continue;
        m->cords.begin[m->cords.n_sets] = first;
        m->cords.end[m->cords.n_sets] = n;
        m->cords.n_marked[m->cords.n_sets++] = 0;
    }
    for (uint32_t s = 0; s < t->n_states; s++) m->into_at[s + 1] += m->into_at[s];
    for (uint32_t e = n; e-- > 0;) m->into[--m->into_at[m->head[e]]] = e;
}

static int compare_tags(const void *a, const void *b, void *tags_of) {
    const uint32_t *tags = tags_of;
    uint32_t x = tags[*(const uint32_t *)a], y = tags[*(const uint32_t *)b];
    return x < y ? -1 : x > y;
}

/* The first blocks: one for each tag. */
static void divide_by_tags(minimizer *m, const dfa_table *t) {
    for (uint32_t s = 0; s < t->n_states; s++) m->by_tag[s] = s;
    qsort_r(m->by_tag, t->n_states, sizeof *m->by_tag, compare_tags, t->tags);
    for (uint32_t i = 1, first = 0; i <= t->n_states; i++) {
        if (i < t->n_states && t->tags[m->by_tag[i]] == t->tags[m->by_tag[first]]) continue;
        if (first > 0) // the first run is what is left of set 0
            for (uint32_t j = first; j < i; j++) mark(&m->blocks, m->by_tag[j]);
        split(&m->blocks);
        first = i;
    }
}

static void refine(minimizer *m) {
    uint32_t block = 1; // one of the first blocks need not split cords
    for (uint32_t cord = 0; cord < m->cords.n_sets; cord++) {
        for (uint32_t i = m->cords.begin[cord]; i < m->cords.end[cord]; i++)
            mark(&m->blocks, m->tail[m->cords.items[i]]);
        split(&m->blocks);
        for (; block < m->blocks.n_sets; block++) {
            for (uint32_t i = m->blocks.begin[block]; i < m->blocks.end[block]; i++) {
                uint32_t s = m->blocks.items[i];
                for (uint32_t e = m->into_at[s]; e < m->into_at[s + 1]; e++)
                    mark(&m->cords, m->into[e]);
            }
            split(&m->cords);
        }
    }
}

/* A state per block; the block of the start comes first. */
static bool build_minimal(const minimizer *m, dfa_table *t) {
    const partition *p = &m->blocks;
    dfa_table small = {.n_columns = t->n_columns};
    uint32_t start = p->set_of[0];
    for (uint32_t b = 0; b < p->n_sets; b++) {
        uint32_t set = b == 0 ? start : b <= start ? b - 1 : b, state;
        if (!dfa_table_add(&small, &state)) {
            dfa_table_deinit(&small);
            return false;
        }
        uint32_t member = p->items[p->begin[set]];
        const uint32_t *row = dfa_table_row(t, member);
        uint32_t *out = dfa_table_row(&small, state);
        for (uint32_t c = 0; c < t->n_columns; c++) {
            if (row[c] == DFA_DEAD) continue;
            uint32_t to = p->set_of[row[c]];
            out[c] = to == start ? 0 : to < start ? to + 1 : to;
        }
        small.tags[state] = t->tags[member];
    }
    dfa_table_deinit(t);
    *t = small;
    return true;
}

bool dfa_table_minimize(dfa_table *t) {
    if (t->n_states < 2) return true;
    minimizer m = {0};
    bool ok = minimizer_init(&m, t);
    if (ok) {
        list_edges(&m, t);
        divide_by_tags(&m, t);
        refine(&m);
        ok = m.blocks.n_sets == t->n_states || build_minimal(&m, t);
    }
    minimizer_deinit(&m);
    return ok;
}

inferd_status dfa_minimize(dfa *d, inferd_err *err) {
    if (d->next == NULL || d->n_states < 2) return INFERD_OK;
    dfa_table t = {.n_columns = d->n_classes};
    uint32_t column_of[256], state;
    for (int b = 0; b < 256; b++) column_of[b] = d->classes[b];
    for (uint32_t s = 0; s < d->n_states; s++) {
        if (!dfa_table_add(&t, &state)) {
            dfa_table_deinit(&t);
            return dfa_no_memory(err);
        }
        memcpy(dfa_table_row(&t, state), d->next + (size_t)s * d->n_classes,
               d->n_classes * sizeof *d->next);
        t.tags[state] = d->tags[s];
    }
    dfa small;
    if (!dfa_table_minimize(&t)) {
        dfa_table_deinit(&t);
        return dfa_no_memory(err);
    }
    inferd_status s = dfa_of_table(&t, column_of, &small, err);
    if (s != INFERD_OK) return s;
    dfa_deinit(d);
    *d = small;
    return INFERD_OK;
}
