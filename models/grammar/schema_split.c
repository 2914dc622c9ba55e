/* schema_split.c - alternatives: of anyOf, oneOf, if, dependencies, and names of properties.
 *
 * oneOf is its branches, each with the negation of those others that are not provably apart from
 * it. */
#include "schema.h"

/* Whether no value of the base is valid for both, in any reading. */
static bool pair_apart(schema_ctx *c, const json_t *base, const json_t *a, const json_t *b) {
    const void *key[4] = {a, b, base, NULL};
    void **known = schema_table_at(c, c->made, key, sizeof key, true);
    if (*known == NULL) {
        atom_list all = {0};
        atom_list_add(c, &all, (schema_atom){.schema = base, .kind = ATOM_BASE});
        atom_list_add(c, &all, atom_of(a));
        atom_list_add(c, &all, atom_of(b));
        bool wide = c->wide;
        c->wide = true;
        bool apart = schema_apart(c, &all, 0);
        c->wide = wide;
        known = schema_table_at(c, c->made, key, sizeof key, true);
        *known = apart ? c : (void *)c->limits;
    }
    return *known == c;
}

/* The object behind a branch that is only a reference. */
static const schema_view *branch_view(schema_ctx *c, const json_t *branch) {
    if (!json_is_object(branch)) return NULL;
    const schema_view *v = schema_view_of(c, branch);
    const char *ref = json_string_value(v->of[WORD_REF]);
    if (ref == NULL) return v;
    const json_t *to = schema_resolve(c, branch, WORD_REF, ref);
    return json_is_object(to) ? schema_view_of(c, to) : NULL;
}

/* Notes the values that a required property of branch i may have: texts and integers.  False: one
 * is known of another branch, or it may have other values. */
static bool note_values(schema_ctx *c, const schema_view *v, size_t i, const char *name,
                        schema_table *known) {
    const json_t *of = json_object_get(schema_get(c, v, WORD_PROPERTIES), name);
    if (!json_is_object(of) || !schema_requires(c, v, name)) return false;
    const schema_view *value = schema_view_of(c, of);
    const json_t *one = schema_get(c, value, WORD_CONST), *many = schema_get(c, value, WORD_ENUM);
    size_t n = one != NULL ? 1 : json_array_size(many);
    for (size_t k = 0; k < n; k++) {
        const json_t *x = one != NULL ? one : json_array_get(many, k);
        json_int_t number = json_integer_value(x);
        const void *key = json_is_string(x) ? (const void *)json_string_value(x) : &number;
        size_t n_key = json_is_string(x) ? json_string_length(x) + 1 : sizeof number;
        if (!json_is_string(x) && !json_is_integer(x)) return false;
        void **at = schema_table_at(c, known, key, n_key, true);
        if (*at != NULL && (size_t)(uintptr_t)*at != i + 1) return false;
        *at = (void *)(uintptr_t)(i + 1);
    }
    return n > 0;
}

/* Many branches of objects that each require another value of one property: then no pairs are
 * looked at.  The base, or each branch, must be of objects. */
static bool told_apart(schema_ctx *c, const schema_view *base, const json_t *branches) {
    const schema_view *first = branch_view(c, json_array_get(branches, 0));
    const json_t *map = first == NULL ? NULL : schema_get(c, first, WORD_PROPERTIES);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value) {
        schema_table *known = schema_table_create(c);
        size_t i = 0, n = json_array_size(branches);
        for (; i < n; i++) {
            const schema_view *v = branch_view(c, json_array_get(branches, i));
            schema_tick(c);
            if (v == NULL || ((schema_types(c, v) & schema_types(c, base)) != TYPE_OBJECT) ||
                !note_values(c, v, i, name, known))
                break;
        }
        if (i == n) return true;
    }
    return false;
}

static void split_one_of(schema_ctx *c, const schema_view *v, split *out) {
    const json_t *branches = v->of[WORD_ONE_OF];
    size_t n = json_array_size(branches);
    bool wide = c->wide;
    c->wide = true;
    bool told = told_apart(c, v, branches);
    c->wide = wide;
    for (size_t i = 0; i < n; i++) {
        atom_list *l = schema_split_add(c, out);
        const json_t *branch = json_array_get(branches, i);
        atom_list_add(c, l, atom_of(branch));
        for (size_t j = 0; j < n && !told; j++) {
            const json_t *other = json_array_get(branches, j);
            schema_tick(c);
            if (j == i) continue;
            if (pair_apart(c, v->schema, json_array_get(branches, j < i ? j : i),
                           json_array_get(branches, j < i ? i : j)))
                continue;
            atom_list_add(c, l, atom_not(other));
        }
    }
}

static void split_needs(schema_ctx *c, const schema_atom *a, const schema_view *v, split *out) {
    const json_t *needs = json_object_get(v->of[a->word], a->name);
    schema_split_add_one(c, out, (schema_atom){.kind = ATOM_LACKS, .name = a->name});
    atom_list *l = schema_split_add(c, out);
    atom_list_add(c, l, (schema_atom){.kind = ATOM_HAS, .name = a->name});
    atom_list_add(c, l, atom_types(TYPE_OBJECT));
    if (json_is_array(needs)) {
        for (size_t i = 0; i < json_array_size(needs); i++) {
            const char *name = json_string_value(json_array_get(needs, i));
            if (name == NULL) schema_malformed(c, a->word, v->schema, "needs what is no name");
            atom_list_add(c, l, (schema_atom){.kind = ATOM_HAS, .name = schema_intern(c, name)});
        }
    } else if (json_is_string(needs)) {
        atom_list_add(
            c, l,
            (schema_atom){.kind = ATOM_HAS, .name = schema_intern(c, json_string_value(needs))});
    } else {
        atom_list_add(c, l, atom_of(needs));
    }
}

/* A property of this name violates the keyword, by its name alone or by its value. */
static void add_violation(schema_ctx *c, const schema_view *v, schema_word w, const char *name,
                          split *out) {
    json_t *value = v->of[w];
    atom_list *l;
    if (w == WORD_PATTERN_PROPERTIES) {
        const char *pattern;
        json_object_foreach(v->of[w], pattern, value) {
            if (schema_is_trivial(value) || schema_name_matches(c, v, pattern, name) != TRUTH_YES)
                continue;
            l = schema_split_add(c, out);
            atom_list_add(c, l, (schema_atom){.kind = ATOM_HAS, .name = name});
            if (json_is_false(value)) continue;
            const json_t *violated = schema_property_not(c, value, name, value);
            atom_list_add(c, l, atom_of(violated));
        }
        return;
    }
    schema_truth t = schema_violates(c, v, w, name, NULL);
    if (t == TRUTH_NO) return;
    l = schema_split_add(c, out);
    atom_list_add(c, l, (schema_atom){.kind = ATOM_HAS, .name = name});
    if (t == TRUTH_UNKNOWN)
        atom_list_add(c, l, atom_of(schema_property_not(c, value, name, value)));
}

/* Names that violate propertyNames, if these are few values of enum or const: each as alternative.
 */
static bool split_names(schema_ctx *c, const schema_view *v, split *out) {
    atom_list in = {0}, flat = {0};
    atom_list_add(c, &in, atom_not(v->of[WORD_PROPERTY_NAMES]));
    atom_list_add(c, &in, atom_types(TYPE_STRING));
    if (!schema_flatten(c, &in, &flat)) return true;
    for (size_t i = 0; i < flat.n; i++) {
        if (flat.at[i].kind != ATOM_BASE) continue;
        const schema_view *base = schema_view_of(c, flat.at[i].schema);
        const json_t *one = base->of[WORD_CONST], *many = base->of[WORD_ENUM];
        if (one == NULL && many == NULL) continue;
        for (size_t k = 0; k < (one != NULL ? 1 : json_array_size(many)); k++) {
            const json_t *x = one != NULL ? one : json_array_get(many, k);
            if (json_is_string(x) && schema_valid_all(c, x, &flat) == TRUTH_YES)
                schema_split_add_one(c, out,
                                     (schema_atom){.kind = ATOM_HAS,
                                                   .name = schema_intern(c, json_string_value(x))});
        }
        return true;
    }
    return false;
}

/* Over the names that the other demands know.  Where there may be names beyond these, a violation
 * by one of them cannot be described. */
static void split_other(schema_ctx *c, const schema_atom *a, const schema_view *v,
                        const atom_list *among, split *out) {
    object_plan known = {0};
    bool all = a->word == WORD_PROPERTY_NAMES && split_names(c, v, out);
    if (!all) schema_names(c, among, &known);
    for (size_t i = 0; i < known.n; i++)
        add_violation(c, v, a->word, schema_intern(c, known.names[i]), out);
    for (size_t i = 0; i < out->n; i++) atom_list_add(c, &out->at[i], atom_types(TYPE_OBJECT));
    for (size_t i = 0; i < among->n && !all; i++) {
        if (among->at[i].kind != ATOM_BASE) continue;
        const schema_view *base = schema_view_of(c, among->at[i].schema);
        if (json_is_false(base->of[WORD_ADDITIONAL_PROPERTIES]) &&
            json_object_size(base->of[WORD_PATTERN_PROPERTIES]) == 0)
            all = true;
    }
    if (!all) schema_drop(c, v, a->word);
}

static void split_if(schema_ctx *c, const schema_view *v, split *out) {
    const json_t *then = v->of[WORD_THEN], *other = v->of[WORD_ELSE];
    atom_list *l = schema_split_add(c, out);
    atom_list_add(c, l, atom_of(v->of[WORD_IF]));
    if (then != NULL) atom_list_add(c, l, atom_of(then));
    l = schema_split_add(c, out);
    atom_list_add(c, l, atom_not(v->of[WORD_IF]));
    if (other != NULL) atom_list_add(c, l, atom_of(other));
}

void schema_split(schema_ctx *c, const schema_atom *a, const atom_list *among, split *out) {
    *out = (split){0};
    c->any_order |= a->kind != ATOM_ANY_OF && a->kind != ATOM_ONE_OF;
    if (a->kind == ATOM_NOT) {
        schema_negate(c, a->schema, out);
        return;
    }
    const schema_view *v = schema_view_of(c, a->schema);
    switch (a->kind) {
    case ATOM_ANY_OF:
        for (size_t i = 0; i < json_array_size(v->of[WORD_ANY_OF]); i++)
            schema_split_add_one(c, out, atom_of(json_array_get(v->of[WORD_ANY_OF], i)));
        return;
    case ATOM_ONE_OF:
        split_one_of(c, v, out);
        return;
    case ATOM_IF:
        split_if(c, v, out);
        return;
    case ATOM_OTHER:
        split_other(c, a, v, among, out);
        return;
    default:
        split_needs(c, a, v, out);
        return;
    }
}
