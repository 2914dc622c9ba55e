/* regex_subsets.c - the subset construction, over symbols.
 *
 * A state of the result is the sorted set of those states of the nfa that read a symbol or end the
 * text, which its ways without a symbol lead to.
 *
 * Anchors are exact.  A way through ^ is open only from the start, before anything was read; a way
 * through $ leads to acceptance only, never to reading.  What cannot lead to acceptance without ^
 * is left out of every set but the first: the search for "^a" does not drag along "anything, then
 * ^". Where all that follows is accepted anyway (nfa.rest), the other members say nothing more. */
#include "regex_private.h"

enum {
    MEMBERS_MAX = 1 << 19, // of all sets
    CELLS_MAX = 2 << 20,   // of the table
    WORK_MAX = 8 << 20     // targets and ways that are looked at
};

enum {
    LEADS_ON = 1,     // acceptance can be reached without ^
    ENDS = 2,         // acceptance can be reached by $ alone
    ENDS_AT_BEGIN = 4 // the same, before anything was read
};

typedef struct subsets {
    const nfa *n;
    const symbols *s;
    const dfa_limits *limits;
    dfa_table *table;
    dfa_keys sets;  // number i: the members of state i
    uint8_t *flags; // [n->n]
    uint32_t *seen; // [n->n] the round in which a state was met
    uint32_t round;
    uint32_t *stack;   // [n->n + 1]
    uint32_t *members; // [n->n] of the set in work
    uint32_t n_members;
    uint32_t *alone; // [n->n] the state of the result for this one target; DFA_DEAD: not known
    uint32_t *count; // [s->n + 1] targets of each symbol, then where they begin
    uint32_t *targets;
    uint32_t targets_capacity;
    uint64_t n_work; // so far
    inferd_err *err;
} subsets;

/* ---- what leads where ---- */

static uint8_t flags_of(const subsets *w, const nfa_state *at) {
    uint8_t next = w->flags[at->out];
    switch (at->kind) {
    case NFA_ACCEPT:
        return LEADS_ON | ENDS | ENDS_AT_BEGIN;
    case NFA_SPLIT:
        return next | w->flags[at->other];
    case NFA_SET: {
        bool some = w->s->members_at[at->other] < w->s->members_at[at->other + 1];
        return some ? next & LEADS_ON : 0;
    }
    case NFA_BEGIN:
        return next & ENDS_AT_BEGIN;
    case NFA_END:
        break;
    }
    return next;
}

/* Most states come after their successors, so few passes are needed: one more than loops nest. */
static void find_flags(subsets *w) {
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < w->n->n; i++) {
            uint8_t flags = flags_of(w, &w->n->states[i]) | w->flags[i];
            changed |= flags != w->flags[i];
            w->flags[i] = flags;
        }
    }
}

/* ---- sets ---- */

/* Adds the members that can be reached from `from` without a symbol. */
static void add_closure(subsets *w, uint32_t from, bool at_begin) {
    uint32_t n = 0;
    w->stack[n++] = from;
    while (n > 0) {
        uint32_t i = w->stack[--n];
        if (w->seen[i] == w->round) continue;
        w->seen[i] = w->round;
        w->n_work++;
        const nfa_state *at = &w->n->states[i];
        switch (at->kind) {
        case NFA_SPLIT: // a state is on the stack once per edge that leads to it, at most
            if (w->seen[at->other] != w->round) w->stack[n++] = at->other;
            if (w->seen[at->out] != w->round) w->stack[n++] = at->out;
            break;
        case NFA_BEGIN:
            if (at_begin && w->seen[at->out] != w->round) w->stack[n++] = at->out;
            break;
        case NFA_SET:
        case NFA_END:
        case NFA_ACCEPT:
            if (at_begin || (w->flags[i] & LEADS_ON)) w->members[w->n_members++] = i;
            break;
        }
    }
}

static int compare_words(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void sort_members(subsets *w) {
    enum { FEW = 24 };
    if (w->n_members > FEW) {
        qsort(w->members, w->n_members, sizeof *w->members, compare_words);
        return;
    }
    for (uint32_t i = 1; i < w->n_members; i++) {
        uint32_t x = w->members[i], j = i;
        for (; j > 0 && w->members[j - 1] > x; j--) w->members[j] = w->members[j - 1];
        w->members[j] = x;
    }
}

/* Where all that follows is accepted, that alone is kept. */
static void keep_rest(subsets *w) {
    uint32_t rest = w->n->rest;
    if (rest == DFA_DEAD || w->seen[rest] != w->round) return;
    w->round++;
    w->n_members = 0;
    add_closure(w, w->n->states[rest].out, false);
}

static inferd_status refuse_size(subsets *w) {
    return inferd_fail(w->err, INFERD_ETOOLONG,
                       "pattern: needs more than %u states, or too large ones",
                       w->limits->states_max);
}

/* The set of the members in work as a state, which may be new. */
static inferd_status put_set(subsets *w, uint32_t *state) {
    bool added;
    sort_members(w);
    *state = dfa_keys_put(&w->sets, w->members, w->n_members, &added);
    if (*state == DFA_DEAD) return dfa_no_memory(w->err);
    if (!added) return INFERD_OK;
    if (*state >= w->limits->states_max || w->sets.n_words > MEMBERS_MAX ||
        (uint64_t)*state * w->s->n > CELLS_MAX)
        return refuse_size(w);
    if (!dfa_table_add(w->table, state)) return dfa_no_memory(w->err);
    for (uint32_t i = 0; i < w->n_members; i++) {
        uint32_t m = w->members[i];
        if (m < w->n->n && w->n->states[m].kind != NFA_SET && (w->flags[m] & ENDS))
            w->table->tags[*state] = 1;
    }
    return INFERD_OK;
}

static inferd_status state_of_targets(subsets *w, const uint32_t *targets, uint32_t n,
                                      uint32_t *state) {
    if (n == 1 && w->alone[targets[0]] != DFA_DEAD) {
        *state = w->alone[targets[0]];
        return INFERD_OK;
    }
    w->round++;
    w->n_members = 0;
    for (uint32_t i = 0; i < n; i++) add_closure(w, targets[i], false);
    keep_rest(w);
    inferd_status s = put_set(w, state);
    if (s == INFERD_OK && n == 1) w->alone[targets[0]] = *state;
    return s;
}

/* ---- edges ---- */

/* Lists the targets of each symbol: targets[count[s], count[s + 1]). */
static bool list_targets(subsets *w, uint32_t state) {
    const uint32_t *members = w->sets.words + w->sets.at[state];
    uint32_t n_members = w->sets.at[state + 1] - w->sets.at[state], n_symbols = w->s->n;
    memset(w->count, 0, ((size_t)n_symbols + 1) * sizeof *w->count);
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = n_members; i-- > 0;) {
            if (members[i] >= w->n->n) continue; // the mark of the start
            const nfa_state *at = &w->n->states[members[i]];
            if (at->kind != NFA_SET || !(w->flags[at->out] & LEADS_ON)) continue;
            uint32_t end = w->s->members_at[at->other + 1];
            for (uint32_t m = w->s->members_at[at->other]; m < end; m++) {
                if (fill)
                    w->targets[--w->count[w->s->members[m]]] = at->out;
                else
                    w->count[w->s->members[m]]++;
            }
        }
        if (fill) break;
        for (uint32_t i = 0; i < n_symbols; i++) w->count[i + 1] += w->count[i];
        uint32_t *p =
            dfa_grow(w->targets, &w->targets_capacity, (size_t)w->count[n_symbols] + 1, sizeof *p);
        if (p == NULL) return false;
        w->targets = p;
    }
    return true;
}

static inferd_status add_edges(subsets *w, uint32_t state) {
    uint32_t before = DFA_DEAD, to = DFA_DEAD; // the last symbol with targets, and its state
    if (!list_targets(w, state)) return dfa_no_memory(w->err);
    w->n_work += w->count[w->s->n];
    if (w->n_work > WORK_MAX) return refuse_size(w);
    for (uint32_t i = 0; i < w->s->n; i++) {
        const uint32_t *targets = w->targets + w->count[i];
        uint32_t n = w->count[i + 1] - w->count[i];
        if (n == 0) continue;
        bool same = before != DFA_DEAD && w->count[before + 1] - w->count[before] == n &&
                    memcmp(targets, w->targets + w->count[before], n * sizeof *targets) == 0;
        if (!same) {
            inferd_status s = state_of_targets(w, targets, n, &to);
            if (s == INFERD_OK && w->n_work > WORK_MAX) s = refuse_size(w);
            if (s != INFERD_OK) return s;
        }
        before = i;
        dfa_table_row(w->table, state)[i] = to;
    }
    return INFERD_OK;
}

/* The first state is one of its own when there is a ^: another with the same members has no way
 * through it. */
static inferd_status add_start(subsets *w) {
    uint32_t state;
    w->round++;
    add_closure(w, w->n->start, true);
    keep_rest(w);
    for (uint32_t i = 0; i < w->n->n; i++)
        if (w->n->states[i].kind == NFA_BEGIN) {
            w->members[w->n_members++] = w->n->n; // a mark: no state has this number
            break;
        }
    inferd_status s = put_set(w, &state);
    if (s == INFERD_OK) w->table->tags[state] = (w->flags[w->n->start] & ENDS_AT_BEGIN) != 0;
    return s;
}

inferd_status nfa_determinize(const nfa *n, const symbols *s, const dfa_limits *limits,
                              dfa_table *out, inferd_err *err) {
    *out = (dfa_table){.n_columns = s->n};
    subsets w = {
        .n = n,
        .s = s,
        .limits = limits,
        .table = out,
        .flags = calloc(n->n, 1),
        .seen = calloc(n->n, sizeof *w.seen),
        .stack = calloc((size_t)n->n * 2 + 1, sizeof *w.stack),
        .members = calloc((size_t)n->n + 1, sizeof *w.members),
        .alone = malloc(n->n * sizeof *w.alone),
        .count = calloc((size_t)s->n + 1, sizeof *w.count),
        .err = err,
    };
    inferd_status status = INFERD_OK;
    if (w.flags == NULL || w.seen == NULL || w.stack == NULL || w.members == NULL ||
        w.alone == NULL || w.count == NULL)
        status = dfa_no_memory(err);
    if (status == INFERD_OK) {
        memset(w.alone, 0xFF, n->n * sizeof *w.alone);
        find_flags(&w);
        status = add_start(&w);
    }
    for (uint32_t i = 0; status == INFERD_OK && i < out->n_states; i++) status = add_edges(&w, i);
    if (status == INFERD_OK && !(dfa_table_trim(out) && dfa_table_minimize(out)))
        status = dfa_no_memory(err);
    free(w.flags);
    free(w.seen);
    free(w.stack);
    free(w.members);
    free(w.alone);
    free(w.count);
    free(w.targets);
    dfa_keys_deinit(&w.sets);
    if (status != INFERD_OK) dfa_table_deinit(out);
    return status;
}
