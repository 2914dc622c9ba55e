/* dfa_table.c - what is done with a finished table: trimming, merging of equal columns. */
#include "dfa_private.h"

/* ---- trimming ---- */

typedef struct trimmer {
    uint32_t *seen;           // [n_states] order of discovery from the start; DFA_DEAD: not reached
    uint32_t *order;          // [n_states] the states in that order
    uint32_t *from_at, *from; // edges reversed, among the states that are reached
    uint8_t *live;
    uint32_t n_seen;
} trimmer;

static void find_reached(const dfa_table *t, trimmer *w) {
    memset(w->seen, 0xFF, t->n_states * sizeof *w->seen);
    w->seen[0] = 0;
    w->order[w->n_seen++] = 0;
    for (uint32_t i = 0; i < w->n_seen; i++) {
        const uint32_t *row = dfa_table_row(t, w->order[i]);
        for (uint32_t c = 0; c < t->n_columns; c++) {
            if (row[c] == DFA_DEAD || w->seen[row[c]] != DFA_DEAD) continue;
            w->seen[row[c]] = w->n_seen;
            w->order[w->n_seen++] = row[c];
        }
    }
}

/* Runs of columns with the same target count as one edge. */
static size_t count_edges(const dfa_table *t, const trimmer *w) {
    size_t n = 0;
    for (uint32_t i = 0; i < w->n_seen; i++) {
        const uint32_t *row = dfa_table_row(t, w->order[i]);
        for (uint32_t c = 0; c < t->n_columns; c++)
            n += row[c] != DFA_DEAD && (c == 0 || row[c] != row[c - 1]);
    }
    return n;
}

static void reverse_edges(const dfa_table *t, trimmer *w) {
    memset(w->from_at, 0, ((size_t)t->n_states + 1) * sizeof *w->from_at);
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < w->n_seen; i++) {
            const uint32_t *row = dfa_table_row(t, w->order[i]);
            for (uint32_t c = 0; c < t->n_columns; c++) {
                if (row[c] == DFA_DEAD || (c > 0 && row[c] == row[c - 1])) continue;
                if (fill)
                    w->from[--w->from_at[row[c]]] = w->order[i];
                else
                    w->from_at[row[c]]++;
            }
        }
        if (fill) break;
        for (uint32_t s = 0; s < t->n_states; s++) w->from_at[s + 1] += w->from_at[s];
    }
}

/* Marks what reaches an accepting state; seen[] is used up as the stack. */
static void find_live(const dfa_table *t, trimmer *w, uint32_t *stack) {
    uint32_t n = 0;
    memset(w->live, 0, t->n_states);
    for (uint32_t i = 0; i < w->n_seen; i++)
        if (t->tags[w->order[i]] != 0) w->live[w->order[i]] = 1, stack[n++] = w->order[i];
    while (n > 0) {
        uint32_t s = stack[--n];
        for (uint32_t e = w->from_at[s]; e < w->from_at[s + 1]; e++)
            if (!w->live[w->from[e]]) w->live[w->from[e]] = 1, stack[n++] = w->from[e];
    }
}

/* Moves the live states into a new table, in the order of their discovery. */
static bool keep_live(dfa_table *t, trimmer *w) {
    uint32_t *number = w->seen, n = 0;
    memset(number, 0xFF, t->n_states * sizeof *number);
    if (t->n_states > 0 && w->live[0])
        for (uint32_t i = 0; i < w->n_seen; i++)
            if (w->live[w->order[i]]) number[w->order[i]] = n++;
    dfa_table kept = {.n_columns = t->n_columns};
    for (uint32_t i = 0; i < w->n_seen; i++) {
        uint32_t s = w->order[i], state;
        if (number[s] == DFA_DEAD) continue;
        if (!dfa_table_add(&kept, &state)) {
            dfa_table_deinit(&kept);
            return false;
        }
        const uint32_t *row = dfa_table_row(t, s);
        uint32_t *out = dfa_table_row(&kept, state);
        for (uint32_t c = 0; c < t->n_columns; c++)
            if (row[c] != DFA_DEAD) out[c] = number[row[c]];
        kept.tags[state] = t->tags[s];
    }
    dfa_table_deinit(t);
    *t = kept;
    return true;
}

bool dfa_table_trim(dfa_table *t) {
    if (t->n_states == 0) return true;
    size_t n = t->n_states;
    trimmer w = {
        .seen = malloc(n * sizeof *w.seen),
        .order = malloc(n * sizeof *w.order),
        .from_at = malloc((n + 1) * sizeof *w.from_at),
        .live = malloc(n),
    };
    bool ok = w.seen != NULL && w.order != NULL && w.from_at != NULL && w.live != NULL;
    if (ok) {
        find_reached(t, &w);
        size_t n_edges = count_edges(t, &w);
        ok = n_edges <= UINT32_MAX;
        if (ok) w.from = malloc(size_max(n_edges, 1) * sizeof *w.from);
        ok = ok && w.from != NULL;
    }
    if (ok) {
        reverse_edges(t, &w);
        find_live(t, &w, w.seen);
        ok = keep_live(t, &w);
    }
    free(w.seen);
    free(w.order);
    free(w.from_at);
    free(w.from);
    free(w.live);
    return ok;
}

/* ---- columns ---- */

typedef struct columns {
    uint64_t *hash;    // [n_columns]
    uint32_t *same_as; // [n_columns] the first column that equals it
    uint32_t *number;  // [n_columns] its class, for columns that are kept
    uint32_t n_kept;
} columns;

static bool columns_equal(const dfa_table *t, uint32_t a, uint32_t b) {
    for (uint32_t s = 0; s < t->n_states; s++)
        if (dfa_table_row(t, s)[a] != dfa_table_row(t, s)[b]) return false;
    return true;
}

static void merge_columns(const dfa_table *t, columns *w) {
    for (uint32_t c = 0; c < t->n_columns; c++) w->hash[c] = 1;
    for (uint32_t s = 0; s < t->n_states; s++) {
        const uint32_t *row = dfa_table_row(t, s);
        for (uint32_t c = 0; c < t->n_columns; c++)
            w->hash[c] = (w->hash[c] ^ row[c]) * 0xFF51AFD7ED558CCDu + (w->hash[c] >> 31);
    }
    for (uint32_t c = 0; c < t->n_columns; c++) {
        w->same_as[c] = c;
        for (uint32_t b = 0; b < c && w->same_as[c] == c; b++)
            if (w->same_as[b] == b && w->hash[b] == w->hash[c] && columns_equal(t, b, c))
                w->same_as[c] = b;
        if (w->same_as[c] == c) w->number[c] = w->n_kept++;
    }
}

/* A class per column that is kept, and one for bytes without a column when there are such. */
static bool fill_dfa(const dfa_table *t, const columns *w, const uint32_t column_of[256],
                     dfa *out) {
    bool any_missing = false;
    for (int b = 0; b < 256; b++) {
        bool missing = column_of[b] >= t->n_columns;
        any_missing |= missing;
        out->classes[b] = (uint8_t)(missing ? w->n_kept : w->number[w->same_as[column_of[b]]]);
    }
    out->n_classes = w->n_kept + any_missing;
    out->n_states = t->n_states;
    size_t n_cells;
    if (!size_mul(t->n_states, size_max(out->n_classes, 1), &n_cells)) return false;
    out->next = calloc(size_max(n_cells, 1), sizeof *out->next);
    out->tags = calloc(size_max(t->n_states, 1), sizeof *out->tags);
    if (out->next == NULL || out->tags == NULL) return false;
    for (uint32_t s = 0; s < t->n_states; s++) {
        const uint32_t *row = dfa_table_row(t, s);
        uint32_t *to = out->next + (size_t)s * out->n_classes;
        for (uint32_t c = 0; c < t->n_columns; c++)
            if (w->same_as[c] == c) to[w->number[c]] = row[c];
        if (any_missing) to[w->n_kept] = DFA_DEAD;
        out->tags[s] = t->tags[s];
    }
    return true;
}

inferd_status dfa_of_table(dfa_table *t, const uint32_t column_of[256], dfa *out, inferd_err *err) {
    *out = (dfa){0};
    size_t n = size_max(t->n_columns, 1);
    columns w = {
        .hash = calloc(n, sizeof *w.hash),
        .same_as = calloc(n, sizeof *w.same_as),
        .number = calloc(n, sizeof *w.number),
    };
    bool ok = w.hash != NULL && w.same_as != NULL && w.number != NULL;
    if (ok) {
        merge_columns(t, &w);
        ok = fill_dfa(t, &w, column_of, out);
    }
    free(w.hash);
    free(w.same_as);
    free(w.number);
    dfa_table_deinit(t);
    if (ok) return INFERD_OK;
    dfa_deinit(out);
    return dfa_no_memory(err);
}
