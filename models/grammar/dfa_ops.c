/* dfa_ops.c - products of automata.
 *
 * A state of a product is a tuple with a state, or DFA_DEAD, of each part.  Tuples are made as they
 * are reached; what cannot accept is cut off at the end. */
#include "dfa_private.h"

enum { PARTS_MAX = 17 }; // of dfa_classify: all, and 16 parts

typedef enum product_kind { AND, AND_NOT, OR, CLASSIFY } product_kind;

typedef struct product {
    product_kind kind;
    const dfa *const *parts; // [n_parts]
    size_t n_parts;
    const dfa_limits *limits;
    dfa_keys tuples;
    dfa_table table;
    uint32_t column_of[256];
    unsigned char byte_of[256]; // one byte of each column
} product;

/* Bytes that no part tells apart share a column. */
static bool join_classes(product *w) {
    dfa_keys keys = {0};
    w->table.n_columns = 0;
    bool ok = true;
    for (int b = 0; b < 256 && ok; b++) {
        uint32_t key[PARTS_MAX];
        bool added;
        for (size_t i = 0; i < w->n_parts; i++) key[i] = w->parts[i]->classes[b];
        uint32_t column = dfa_keys_put(&keys, key, (uint32_t)w->n_parts, &added);
        ok = column != DFA_DEAD;
        if (ok && added) w->byte_of[w->table.n_columns++] = (unsigned char)b;
        w->column_of[b] = column;
    }
    dfa_keys_deinit(&keys);
    return ok;
}

/* May a text go on from here? */
static bool is_alive(const product *w, const uint32_t *tuple) {
    switch (w->kind) {
    case AND:
        return tuple[0] != DFA_DEAD && tuple[1] != DFA_DEAD;
    case OR:
        return tuple[0] != DFA_DEAD || tuple[1] != DFA_DEAD;
    case AND_NOT:
    case CLASSIFY:
        break;
    }
    return tuple[0] != DFA_DEAD;
}

static uint32_t tag_of(const product *w, const uint32_t *tuple) {
    uint32_t tags[PARTS_MAX], set = 0;
    for (size_t i = 0; i < w->n_parts; i++)
        tags[i] = tuple[i] == DFA_DEAD ? 0 : w->parts[i]->tags[tuple[i]];
    switch (w->kind) {
    case AND:
        return tags[1] != 0 ? tags[0] : 0;
    case OR:
        return tags[0] != 0 ? tags[0] : tags[1];
    case AND_NOT:
        return tags[1] == 0 ? tags[0] : 0;
    case CLASSIFY:
        break;
    }
    if (tags[0] == 0) return 0;
    for (size_t i = 1; i < w->n_parts; i++)
        if (tags[i] != 0) set |= 1u << (i - 1);
    return set + 1;
}

/* The state of a tuple, which may be new. */
static inferd_status put_tuple(product *w, const uint32_t *tuple, uint32_t *state,
                               inferd_err *err) {
    bool added;
    *state = dfa_keys_put(&w->tuples, tuple, (uint32_t)w->n_parts, &added);
    if (*state == DFA_DEAD) return dfa_no_memory(err);
    if (!added) return INFERD_OK;
    if (*state >= w->limits->states_max)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "a combination of patterns needs more than %u states",
                           w->limits->states_max);
    if (!dfa_table_add(&w->table, state)) return dfa_no_memory(err);
    w->table.tags[*state] = tag_of(w, tuple);
    return INFERD_OK;
}

static inferd_status explore(product *w, inferd_err *err) {
    uint32_t from[PARTS_MAX], to[PARTS_MAX], state;
    for (size_t i = 0; i < w->n_parts; i++) from[i] = w->parts[i]->n_states == 0 ? DFA_DEAD : 0;
    if (!is_alive(w, from)) return INFERD_OK;
    inferd_status s = put_tuple(w, from, &state, err);
    for (uint32_t at = 0; s == INFERD_OK && at < w->table.n_states; at++) {
        memcpy(from, w->tuples.words + w->tuples.at[at], w->n_parts * sizeof *from);
        for (uint32_t c = 0; s == INFERD_OK && c < w->table.n_columns; c++) {
            for (size_t i = 0; i < w->n_parts; i++)
                to[i] =
                    from[i] == DFA_DEAD ? DFA_DEAD : dfa_step(w->parts[i], from[i], w->byte_of[c]);
            if (!is_alive(w, to)) continue;
            s = put_tuple(w, to, &state, err);
            if (s == INFERD_OK) dfa_table_row(&w->table, at)[c] = state;
        }
    }
    return s;
}

static inferd_status build(product_kind kind, const dfa *const *parts, size_t n_parts,
                           const dfa_limits *limits, dfa *out, inferd_err *err) {
    product w = {.kind = kind, .parts = parts, .n_parts = n_parts, .limits = limits};
    *out = (dfa){0};
    inferd_status s = join_classes(&w) ? INFERD_OK : dfa_no_memory(err);
    if (s == INFERD_OK) s = explore(&w, err);
    if (s == INFERD_OK && !dfa_table_trim(&w.table)) s = dfa_no_memory(err);
    if (s == INFERD_OK) s = dfa_of_table(&w.table, w.column_of, out, err);
    dfa_keys_deinit(&w.tuples);
    dfa_table_deinit(&w.table);
    return s;
}

inferd_status dfa_and(const dfa *a, const dfa *b, const dfa_limits *limits, dfa *out,
                      inferd_err *err) {
    return build(AND, (const dfa *const[]){a, b}, 2, limits, out, err);
}

inferd_status dfa_and_not(const dfa *a, const dfa *b, const dfa_limits *limits, dfa *out,
                          inferd_err *err) {
    return build(AND_NOT, (const dfa *const[]){a, b}, 2, limits, out, err);
}

inferd_status dfa_or(const dfa *a, const dfa *b, const dfa_limits *limits, dfa *out,
                     inferd_err *err) {
    return build(OR, (const dfa *const[]){a, b}, 2, limits, out, err);
}

inferd_status dfa_classify(const dfa *all, const dfa *const *parts, size_t n,
                           const dfa_limits *limits, dfa *out, inferd_err *err) {
    const dfa *every[PARTS_MAX] = {all};
    *out = (dfa){0};
    if (n >= PARTS_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "%zu patterns beside one another; at most %d are",
                           n, PARTS_MAX - 1);
    for (size_t i = 0; i < n; i++) every[i + 1] = parts[i];
    return build(CLASSIFY, every, n + 1, limits, out, err);
}
