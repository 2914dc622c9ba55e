/* regex_symbols.c - which code points no set tells apart.
 *
 * The bounds of all ranges cut the code points into intervals.  Intervals begin as one group; each
 * set divides the groups it cuts.  The groups that are left are the symbols. */
#include "regex_private.h"

void symbols_deinit(symbols *s) {
    free(s->intervals);
    free(s->members);
    free(s->members_at);
    *s = (symbols){0};
}

static int compare_words(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The intervals between all bounds, those that no set has included. */
static bool cut_intervals(const dfa_keys *sets, symbols *out) {
    uint32_t n_bounds = 0, *bounds = malloc(((size_t)sets->n_words + 1) * sizeof *bounds);
    if (bounds == NULL) return false;
    for (uint32_t i = 0; i < sets->n_words; i++) bounds[i] = sets->words[i] + (i & 1);
    qsort(bounds, sets->n_words, sizeof *bounds, compare_words);
    for (uint32_t i = 0; i < sets->n_words; i++)
        if (n_bounds == 0 || bounds[n_bounds - 1] != bounds[i]) bounds[n_bounds++] = bounds[i];
    out->intervals = calloc(size_max(n_bounds, 1), sizeof *out->intervals);
    if (out->intervals != NULL)
        for (uint32_t i = 0; i + 1 < n_bounds; i++)
            out->intervals[out->n_intervals++] =
                (code_interval){.first = bounds[i], .last = bounds[i + 1] - 1};
    free(bounds);
    return out->intervals != NULL;
}

/* The first interval that ends behind this code point. */
static uint32_t interval_at(const symbols *s, uint32_t code) {
    uint32_t low = 0, high = s->n_intervals;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->intervals[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct refiner {
    uint32_t *size;    // [n_intervals] intervals of each group
    uint32_t *inside;  // [n_intervals] of them, how many the set has; 0 between sets
    uint32_t *renamed; // [n_intervals] the new group of those; DFA_DEAD between sets
    bool *covered;     // [n_intervals] some set has it
    uint32_t n_groups;
} refiner;

#define EACH_INTERVAL(sets, number, s, i)                                                          \
    for (uint32_t word_ = (sets)->at[number]; word_ < (sets)->at[(number) + 1]; word_ += 2)        \
        for (uint32_t i = interval_at(s, (sets)->words[word_]);                                    \
             i < (s)->n_intervals && (s)->intervals[i].last <= (sets)->words[word_ + 1]; i++)

static void divide_groups(const dfa_keys *sets, uint32_t set, symbols *s, refiner *w) {
    uint32_t n_before = w->n_groups;
    EACH_INTERVAL(sets, set, s, i) {
        w->covered[i] = true;
        w->inside[s->intervals[i].symbol]++;
    }
    EACH_INTERVAL(sets, set, s, i) {
        uint32_t group = s->intervals[i].symbol;
        if (w->inside[group] == w->size[group]) continue;
        if (w->renamed[group] == DFA_DEAD) {
            w->size[w->n_groups] = w->inside[group];
            w->renamed[group] = w->n_groups++;
        }
        s->intervals[i].symbol = w->renamed[group];
    }
    for (uint32_t g = 0; g < n_before; g++) {
        if (w->renamed[g] != DFA_DEAD) w->size[g] -= w->inside[g];
        w->renamed[g] = DFA_DEAD;
        w->inside[g] = 0;
    }
}

/* Groups that some set has are numbered; intervals that none has go. */
static void number_symbols(symbols *s, refiner *w) {
    uint32_t n = 0, *number = w->renamed; // all DFA_DEAD by now
    for (uint32_t i = 0; i < s->n_intervals; i++) {
        code_interval at = s->intervals[i];
        if (!w->covered[i]) continue;
        if (number[at.symbol] == DFA_DEAD) number[at.symbol] = s->n++;
        at.symbol = number[at.symbol];
        s->intervals[n++] = at;
    }
    s->n_intervals = n;
}

/* The symbols of each set; *seen has room for a mark per symbol. */
static bool list_members(const dfa_keys *sets, symbols *s, uint32_t *seen) {
    uint32_t n = 0, capacity = 0;
    for (uint32_t i = 0; i < s->n; i++) seen[i] = DFA_DEAD;
    s->members_at = calloc((size_t)sets->n + 1, sizeof *s->members_at);
    if (s->members_at == NULL) return false;
    for (uint32_t set = 0; set < sets->n; set++) {
        EACH_INTERVAL(sets, set, s, i) {
            uint32_t symbol = s->intervals[i].symbol;
            if (seen[symbol] == set) continue;
            uint32_t *p = dfa_grow(s->members, &capacity, (size_t)n + 1, sizeof *p);
            if (p == NULL) return false;
            s->members = p;
            s->members[n++] = symbol;
            seen[symbol] = set;
        }
        s->members_at[set + 1] = n;
    }
    return true;
}

bool symbols_of_sets(const dfa_keys *sets, symbols *out) {
    *out = (symbols){0};
    if (!cut_intervals(sets, out)) return false;
    size_t n = size_max(out->n_intervals, 1);
    refiner w = {
        .size = calloc(n, sizeof *w.size),
        .inside = calloc(n, sizeof *w.inside),
        .renamed = malloc(n * sizeof *w.renamed),
        .covered = calloc(n, sizeof *w.covered),
        .n_groups = 1,
    };
    bool ok = w.size != NULL && w.inside != NULL && w.renamed != NULL && w.covered != NULL;
    if (ok) {
        memset(w.renamed, 0xFF, n * sizeof *w.renamed);
        w.size[0] = out->n_intervals;
        for (uint32_t set = 0; set < sets->n; set++) divide_groups(sets, set, out, &w);
        number_symbols(out, &w);
        ok = list_members(sets, out, w.inside);
    }
    free(w.size);
    free(w.inside);
    free(w.renamed);
    free(w.covered);
    if (!ok) symbols_deinit(out);
    return ok;
}
