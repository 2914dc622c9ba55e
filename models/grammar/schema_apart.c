/* schema_apart.c - proofs that no value satisfies several demands at once.
 *
 * A proof looks at types, values of enum and const, bounds, automata of strings, and required
 * properties and items, whose demands must be apart in turn; APART_DEPTH deep.  Demands that it
 * does not look at only make it fail, so a proof is always right.
 *
 * It is used for the branches of oneOf, which need no negation when they are apart, and to drop
 * cases of merged schemas early. */
#include "schema.h"

enum { APART_DEPTH = 4, APART_VALUES_MAX = 256, APART_BRANCHES_MAX = 12 };

static bool values_apart(schema_ctx *c, const atom_list *flat) {
    for (size_t i = 0; i < flat->n; i++) {
        if (flat->at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat->at[i].schema);
        const json_t *one = schema_get(c, v, WORD_CONST), *many = schema_get(c, v, WORD_ENUM);
        if (one == NULL && (many == NULL || json_array_size(many) > APART_VALUES_MAX)) continue;
        size_t n = one != NULL ? 1 : json_array_size(many), n_out = 0;
        while (n_out < n && schema_valid_all(c, one != NULL ? one : json_array_get(many, n_out),
                                             flat) == TRUTH_NO)
            n_out++;
        if (n_out == n) return true;
    }
    return false;
}

static bool numbers_apart(schema_ctx *c, const atom_list *flat) {
    number_bound low = {0}, high = {0};
    for (size_t i = 0; i < flat->n; i++) {
        number_bound min, max;
        if (flat->at[i].kind != ATOM_BASE) continue;
        schema_bounds(c, schema_view_of(c, flat->at[i].schema), &min, &max);
        if (min.set && (!low.set || min.at > low.at || (min.at == low.at && min.open))) low = min;
        if (max.set && (!high.set || max.at < high.at || (max.at == high.at && max.open)))
            high = max;
    }
    if (!low.set || !high.set) return false;
    return low.at > high.at || (low.at == high.at && (low.open || high.open));
}

static bool list_apart(schema_ctx *c, const atom_list *atoms, int depth) {
    if (atoms->n == 0) return false;
    if (atoms->n == 1 && json_is_boolean(atoms->at[0].schema))
        return json_is_false(atoms->at[0].schema);
    return depth < APART_DEPTH && schema_apart(c, atoms, depth + 1);
}

static bool arrays_apart(schema_ctx *c, const atom_list *flat, int depth) {
    uint32_t min = 0, max = IR_NO_MAX;
    for (size_t i = 0; i < flat->n; i++) {
        if (flat->at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat->at[i].schema);
        min = u32_max(min, schema_count(c, v, WORD_MIN_ITEMS, 0));
        max = u32_min(max, schema_count(c, v, WORD_MAX_ITEMS, IR_NO_MAX));
    }
    if (min > max) return true;
    for (uint32_t i = 0; i < u32_min(min, 2); i++) {
        atom_list item = {0};
        schema_item_atoms(c, flat, i, &item);
        if (list_apart(c, &item, depth)) return true;
    }
    return false;
}

static bool objects_apart(schema_ctx *c, const atom_list *flat, int depth) {
    for (size_t i = 0; i < flat->n; i++) {
        const schema_atom *a = &flat->at[i];
        const json_t *required = NULL;
        if (a->kind == ATOM_BASE) {
            required = schema_get(c, schema_view_of(c, a->schema), WORD_REQUIRED);
            if (!json_is_array(required)) continue;
        } else if (a->kind != ATOM_HAS) {
            continue;
        }
        size_t n = required == NULL ? 1 : json_array_size(required);
        for (size_t k = 0; k < n; k++) {
            const char *name =
                required == NULL ? a->name : json_string_value(json_array_get(required, k));
            atom_list value = {0};
            if (name == NULL) continue;
            if (!schema_property_atoms(c, flat, name, &value)) return true;
            if (value.n > 1 && list_apart(c, &value, depth)) return true;
            if (value.n == 1 && json_is_false(value.at[0].schema)) return true;
        }
    }
    return false;
}

/* A split is apart from the rest if each of its branches is. */
static bool split_apart(schema_ctx *c, const atom_list *flat, size_t at, int depth) {
    const schema_atom *a = &flat->at[at];
    if (a->kind != ATOM_ANY_OF && a->kind != ATOM_ONE_OF) return false;
    const schema_view *v = schema_view_of(c, a->schema);
    const json_t *branches = v->of[a->kind == ATOM_ANY_OF ? WORD_ANY_OF : WORD_ONE_OF];
    size_t n = json_array_size(branches);
    if (n > APART_BRANCHES_MAX || depth >= APART_DEPTH) return false;
    for (size_t b = 0; b < n; b++) {
        atom_list with = {0};
        for (size_t i = 0; i < flat->n; i++)
            atom_list_add(c, &with, i == at ? atom_of(json_array_get(branches, b)) : flat->at[i]);
        if (!schema_apart(c, &with, depth + 1)) return false;
    }
    return true;
}

static bool types_apart(schema_ctx *c, const atom_list *flat, int depth) {
    uint32_t types = schema_types_left(c, flat);
    if (types == 0 || values_apart(c, flat)) return true;
    if ((types & (TYPE_NULL | TYPE_BOOLEAN)) == 0 &&
        ((types & TYPE_NUMBER) == 0 || numbers_apart(c, flat)) &&
        ((types & TYPE_ARRAY) == 0 || arrays_apart(c, flat, depth)) &&
        ((types & TYPE_OBJECT) == 0 || objects_apart(c, flat, depth)) &&
        ((types & TYPE_STRING) == 0 || schema_strings_apart(c, flat)))
        return true;
    for (size_t i = 0; i < flat->n; i++)
        if (split_apart(c, flat, i, depth)) return true;
    return false;
}

bool schema_apart(schema_ctx *c, const atom_list *atoms, int depth) {
    jmp_buf here, *outer = c->quiet;
    bool wide = c->wide;
    uint32_t n_scratch = c->n_scratch;
    schema_tick(c);
    schema_arena mark = schema_scratch_begin(c);
    if (setjmp(here) != 0) { // it failed: nothing is known
        c->quiet = outer;
        c->wide = wide;
        c->n_scratch = n_scratch + 1;
        schema_scratch_end(c, &mark);
        return false;
    }
    c->quiet = &here;
    atom_list flat = {0};
    bool apart = !schema_flatten(c, atoms, &flat) || types_apart(c, &flat, depth);
    c->quiet = outer;
    schema_scratch_end(c, &mark);
    return apart;
}
