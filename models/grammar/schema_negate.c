/* schema_negate.c - what a value must be, so that it is not valid for a schema.
 *
 * A negation is an alternation over the keywords of the schema: one of them is violated.  Where the
 * violation of a keyword cannot be expressed, its alternative is left out, which accepts less; when
 * nothing remains, the schema is refused (schema.c).
 *
 * Violations are atoms, or schemas that are made here: the negation of maxLength 3 is minLength 4.
 */
#include "schema.h"
#include "schema_weaken.h"

atom_list *schema_split_add(schema_ctx *c, split *s) {
    s->at = schema_grow_list(c, s->at, s->n, &s->capacity, sizeof *s->at);
    s->at[s->n] = (atom_list){0};
    return &s->at[s->n++];
}

void schema_split_add_one(schema_ctx *c, split *s, schema_atom a) {
    atom_list_add(c, schema_split_add(c, s), a);
}

static void add_typed(schema_ctx *c, split *s, uint32_t types, schema_atom a) {
    atom_list *l = schema_split_add(c, s);
    atom_list_add(c, l, atom_types(types));
    atom_list_add(c, l, a);
}

/* ---- negation ---- */

void schema_drop(schema_ctx *c, const schema_view *v, schema_word w) {
    c->dropped_word = w;
    c->dropped_at = c->lost_at = v->schema;
}

/* The violation of a bound: the opposite bound, of a value that has one. */
static void negate_count(schema_ctx *c, const schema_view *v, schema_word w, split *out) {
    static const struct {
        schema_word of, opposite;
        uint32_t types;
        int step;
    } counts[] = {
        {WORD_MIN_LENGTH, WORD_MAX_LENGTH, TYPE_STRING, -1},
        {WORD_MAX_LENGTH, WORD_MIN_LENGTH, TYPE_STRING, 1},
        {WORD_MIN_ITEMS, WORD_MAX_ITEMS, TYPE_ARRAY, -1},
        {WORD_MAX_ITEMS, WORD_MIN_ITEMS, TYPE_ARRAY, 1},
        {WORD_MIN_PROPERTIES, WORD_MAX_PROPERTIES, TYPE_OBJECT, -1},
        {WORD_MAX_PROPERTIES, WORD_MIN_PROPERTIES, TYPE_OBJECT, 1},
    };
    for (size_t i = 0; i < INFERD_COUNT(counts); i++) {
        if (counts[i].of != w) continue;
        int64_t n = (int64_t)schema_count(c, v, w, 0) + counts[i].step;
        if (n < 0 || n >= IR_NO_MAX) return;
        add_typed(c, out, counts[i].types,
                  atom_of(schema_make(c, v->schema, w, NULL, counts[i].opposite, json_integer(n))));
    }
}

static void negate_bound(schema_ctx *c, const schema_view *v, schema_word w, split *out) {
    json_t *bound = v->of[w];
    schema_word opposite;
    if (json_is_boolean(bound)) return; // of draft 4: part of its bound
    if (!json_is_number(bound)) schema_malformed(c, w, v->schema, "is not a number");
    bool open = (w == WORD_MINIMUM && json_is_true(v->of[WORD_EXCLUSIVE_MINIMUM])) ||
                (w == WORD_MAXIMUM && json_is_true(v->of[WORD_EXCLUSIVE_MAXIMUM]));
    switch (w) {
    case WORD_MINIMUM:
        opposite = open ? WORD_MAXIMUM : WORD_EXCLUSIVE_MAXIMUM;
        break;
    case WORD_MAXIMUM:
        opposite = open ? WORD_MINIMUM : WORD_EXCLUSIVE_MINIMUM;
        break;
    case WORD_EXCLUSIVE_MINIMUM:
        opposite = WORD_MAXIMUM;
        break;
    default:
        opposite = WORD_MINIMUM;
        break;
    }
    add_typed(c, out, TYPE_NUMBER,
              atom_of(schema_make(c, v->schema, w, NULL, opposite, json_incref(bound))));
}

bool schema_is_trivial(const json_t *schema) {
    return json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0);
}

/* Properties with few values tell branches apart.  Their violations come first, and the other
 * alternatives demand that they hold: then alternatives exclude each other, and a case that has
 * decided for one value of a `kind` does not multiply with the negations of other kinds. */
enum { TELLING_MAX = 4 };

typedef struct telling {
    const char *names[TELLING_MAX];
    json_t *values[TELLING_MAX];
    size_t n;
} telling;

static bool has_few_values(schema_ctx *c, const json_t *schema) {
    if (!json_is_object(schema)) return false;
    const schema_view *v = schema_view_of(c, schema);
    if (json_is_string(v->of[WORD_REF])) {
        const json_t *to = schema_resolve(c, schema, WORD_REF, json_string_value(v->of[WORD_REF]));
        if (!json_is_object(to)) return false;
        v = schema_view_of(c, to);
    }
    return v->of[WORD_ENUM] != NULL || v->of[WORD_CONST] != NULL;
}

static telling telling_of(schema_ctx *c, const schema_view *v) {
    telling t = {.n = 0};
    const char *name;
    json_t *value;
    json_object_foreach(schema_get(c, v, WORD_PROPERTIES), name, value) {
        if (t.n == TELLING_MAX) break;
        if (!has_few_values(c, value)) continue;
        t.names[t.n] = name;
        t.values[t.n++] = value;
    }
    return t;
}

static bool is_telling(const telling *t, const char *name) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->names[i], name) == 0) return true;
    return false;
}

static atom_list *add_of_object(schema_ctx *c, const schema_view *v, const telling *t,
                                size_t n_held, split *out) {
    atom_list *l = schema_split_add(c, out);
    atom_list_add(c, l, atom_types(TYPE_OBJECT));
    for (size_t i = 0; i < n_held; i++) {
        atom_list_add(c, l, atom_of(schema_make_property(c, v->schema, t->names[i], t->values[i])));
        if (schema_requires(c, v, t->names[i]))
            atom_list_add(c, l,
                          (schema_atom){.kind = ATOM_HAS, .name = schema_intern(c, t->names[i])});
    }
    return l;
}

/* The property has a value that violates its schema or, if it is required, is absent. */
static void negate_property(schema_ctx *c, const schema_view *v, const telling *t, size_t n_held,
                            const char *name, json_t *value, split *out) {
    atom_list *l = add_of_object(c, v, t, n_held, out);
    bool required = schema_requires(c, v, name);
    name = schema_intern(c, name);
    if (value == NULL || schema_is_trivial(value)) {
        atom_list_add(c, l, (schema_atom){.kind = ATOM_LACKS, .name = name});
        return;
    }
    if (!required) atom_list_add(c, l, (schema_atom){.kind = ATOM_HAS, .name = name});
    atom_list_add(c, l, atom_of(schema_property_not(c, v->schema, name, value)));
}

static void negate_required(schema_ctx *c, const schema_view *v, const json_t *names, split *out) {
    const json_t *map = schema_get(c, v, WORD_PROPERTIES);
    telling t = telling_of(c, v);
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (name == NULL)
            schema_malformed(c, WORD_REQUIRED, v->schema, "has a name that is no string");
        if (!is_telling(&t, name))
            negate_property(c, v, &t, t.n, name, json_object_get(map, name), out);
    }
}

static void negate_properties(schema_ctx *c, const schema_view *v, json_t *map, split *out) {
    const char *name;
    json_t *value;
    telling t = telling_of(c, v);
    for (size_t i = 0; i < t.n; i++) negate_property(c, v, &t, i, t.names[i], t.values[i], out);
    json_object_foreach(map, name, value) {
        if (schema_is_trivial(value) || is_telling(&t, name) || schema_requires(c, v, name))
            continue;
        negate_property(c, v, &t, t.n, name, value, out);
    }
}

static void negate_one_of(schema_ctx *c, const json_t *branches, split *out) {
    size_t n = json_array_size(branches);
    atom_list *none = schema_split_add(c, out);
    for (size_t i = 0; i < n; i++) atom_list_add(c, none, atom_not(json_array_get(branches, i)));
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            atom_list *two = schema_split_add(c, out);
            atom_list_add(c, two, atom_of(json_array_get(branches, i)));
            atom_list_add(c, two, atom_of(json_array_get(branches, j)));
        }
    }
}

static void negate_needs(schema_ctx *c, const schema_view *v, json_t *map, split *out) {
    const char *name;
    json_t *needs;
    json_object_foreach(map, name, needs) {
        if (json_is_array(needs)) {
            for (size_t i = 0; i < json_array_size(needs); i++) {
                const char *needed = json_string_value(json_array_get(needs, i));
                if (needed == NULL) continue;
                atom_list *l = schema_split_add(c, out);
                atom_list_add(c, l, atom_types(TYPE_OBJECT));
                atom_list_add(c, l,
                              (schema_atom){.kind = ATOM_HAS, .name = schema_intern(c, name)});
                atom_list_add(c, l,
                              (schema_atom){.kind = ATOM_LACKS, .name = schema_intern(c, needed)});
            }
        } else {
            atom_list *l = schema_split_add(c, out);
            atom_list_add(c, l, atom_types(TYPE_OBJECT));
            atom_list_add(c, l, (schema_atom){.kind = ATOM_HAS, .name = schema_intern(c, name)});
            atom_list_add(c, l, atom_not(needs));
        }
    }
    (void)v;
}

static void negate_if(schema_ctx *c, const schema_view *v, split *out) {
    const json_t *condition = v->of[WORD_IF], *then = v->of[WORD_THEN], *other = v->of[WORD_ELSE];
    if (then != NULL) {
        atom_list *l = schema_split_add(c, out);
        atom_list_add(c, l, atom_of(condition));
        atom_list_add(c, l, atom_not(then));
    }
    if (other != NULL) {
        atom_list *l = schema_split_add(c, out);
        atom_list_add(c, l, atom_not(condition));
        atom_list_add(c, l, atom_not(other));
    }
}

static void negate_schemas(schema_ctx *c, schema_word w, const json_t *array, split *out) {
    if (w == WORD_ONE_OF) {
        negate_one_of(c, array, out);
        return;
    }
    atom_list *all = w == WORD_ANY_OF ? schema_split_add(c, out) : NULL;
    for (size_t i = 0; i < json_array_size(array); i++) {
        schema_atom a = atom_not(json_array_get(array, i));
        if (all != NULL)
            atom_list_add(c, all, a);
        else
            schema_split_add_one(c, out, a);
    }
}

/* An array with an item at a place where it violates the schema of the place. */
static void negate_prefix(schema_ctx *c, const schema_view *v, const json_t *schemas, split *out) {
    if (!json_is_array(schemas))
        schema_malformed(c, WORD_PREFIX_ITEMS, v->schema, "is not an array of schemas");
    for (size_t i = 0; i < json_array_size(schemas); i++) {
        json_t *schema = json_array_get(schemas, i);
        if (schema_is_trivial(schema)) continue;
        json_t *places = schema_own_json(c, json_array());
        for (size_t k = 0; k < i; k++)
            if (json_array_append_new(places, json_true()) != 0) schema_no_memory(c);
        if (json_array_append(places, schema_make_not(c, v->schema, schema)) != 0)
            schema_no_memory(c);
        atom_list *l = schema_split_add(c, out);
        atom_list_add(c, l, atom_types(TYPE_ARRAY));
        char place[24];
        snprintf(place, sizeof place, "%zu", i);
        const char *name = schema_intern(c, place); // tells what is made for one place from another
        atom_list_add(c, l,
                      atom_of(schema_make(c, v->schema, WORD_ITEMS, name, WORD_MIN_ITEMS,
                                          json_integer((json_int_t)i + 1))));
        atom_list_add(c, l,
                      atom_of(schema_make(c, v->schema, WORD_ITEMS, name, WORD_PREFIX_ITEMS,
                                          json_incref(places))));
    }
}

/* None of the values: simple ones are excluded by their text, others are schemas that must not
 * hold. */
static void negate_values(schema_ctx *c, const schema_view *v, schema_word w, const json_t *values,
                          split *out) {
    atom_list *l = schema_split_add(c, out);
    size_t n = w == WORD_CONST ? 1 : json_array_size(values);
    atom_list_add(c, l, (schema_atom){.schema = v->schema, .kind = ATOM_NOT_ENUM, .word = w});
    for (size_t i = 0; i < n; i++) {
        const json_t *x = w == WORD_CONST ? values : json_array_get(values, i);
        if (json_is_array(x) || json_is_object(x))
            atom_list_add(c, l, atom_not(schema_make_like(c, v->schema, x)));
    }
}

static void negate_word(schema_ctx *c, const schema_view *v, schema_word w, json_t *value,
                        split *out) {
    switch (w) {
    case WORD_NONE:
    case WORD_THEN:
    case WORD_ELSE:
    case WORD_MIN_CONTAINS:
    case WORD_MAX_CONTAINS:
        return;
    case WORD_TYPE: {
        uint32_t types = TYPE_ALL & ~schema_types(c, v);
        if (types != 0) schema_split_add_one(c, out, atom_types(types));
        return;
    }
    case WORD_REF:
    case WORD_RECURSIVE_REF:
    case WORD_DYNAMIC_REF:
        if (json_is_string(value))
            schema_split_add_one(
                c, out, atom_not(schema_resolve(c, v->schema, w, json_string_value(value))));
        return;
    case WORD_NOT:
        schema_split_add_one(c, out, atom_of(value));
        return;
    case WORD_ENUM:
    case WORD_CONST:
        negate_values(c, v, w, value, out);
        return;
    case WORD_PATTERN:
        add_typed(c, out, TYPE_STRING,
                  (schema_atom){.schema = v->schema, .kind = ATOM_NOT_PATTERN});
        return;
    case WORD_MULTIPLE_OF:
        add_typed(c, out, TYPE_NUMBER,
                  (schema_atom){.schema = v->schema, .kind = ATOM_NOT_MULTIPLE});
        return;
    case WORD_MINIMUM:
    case WORD_MAXIMUM:
    case WORD_EXCLUSIVE_MINIMUM:
    case WORD_EXCLUSIVE_MAXIMUM:
        negate_bound(c, v, w, out);
        return;
    case WORD_MIN_LENGTH:
    case WORD_MAX_LENGTH:
    case WORD_MIN_ITEMS:
    case WORD_MAX_ITEMS:
    case WORD_MIN_PROPERTIES:
    case WORD_MAX_PROPERTIES:
        negate_count(c, v, w, out);
        return;
    case WORD_REQUIRED:
        negate_required(c, v, value, out);
        return;
    case WORD_PROPERTIES:
        negate_properties(c, v, value, out);
        return;
    case WORD_ALL_OF:
    case WORD_ANY_OF:
    case WORD_ONE_OF:
        negate_schemas(c, w, value, out);
        return;
    case WORD_IF:
        negate_if(c, v, out);
        return;
    case WORD_DEPENDENCIES:
    case WORD_DEPENDENT_REQUIRED:
    case WORD_DEPENDENT_SCHEMAS:
        negate_needs(c, v, value, out);
        return;
    case WORD_CONTAINS:
        if (v->of[WORD_MIN_CONTAINS] == NULL && v->of[WORD_MAX_CONTAINS] == NULL)
            add_typed(c, out, TYPE_ARRAY,
                      atom_of(schema_make(c, v->schema, w, NULL, WORD_ITEMS,
                                          json_incref(schema_make_not(c, v->schema, value)))));
        else
            schema_drop(c, v, w);
        return;
    case WORD_PREFIX_ITEMS:
        negate_prefix(c, v, value, out);
        return;
    case WORD_ITEMS:
        if (json_is_array(value)) {
            negate_prefix(c, v, value, out);
            return;
        }
        if (v->of[WORD_PREFIX_ITEMS] == NULL) {
            if (json_is_true(value)) return;
            add_typed(c, out, TYPE_ARRAY,
                      atom_of(schema_make(c, v->schema, w, NULL, WORD_CONTAINS,
                                          json_incref(schema_make_not(c, v->schema, value)))));
            return;
        }
        schema_drop(c, v, w);
        return;
    case WORD_ADDITIONAL_PROPERTIES:
    case WORD_PATTERN_PROPERTIES:
    case WORD_PROPERTY_NAMES:
        if (!schema_is_trivial(value))
            schema_split_add_one(c, out,
                                 (schema_atom){.schema = v->schema, .kind = ATOM_OTHER, .word = w});
        return;
    default: // an item by position somewhere, equal items, a format
        if (!json_is_true(value)) schema_drop(c, v, w);
        return;
    }
}

typedef struct negation {
    split alternatives;
    schema_word dropped_word;
    const json_t *dropped_at;
} negation;

static void negate(schema_ctx *c, const json_t *schema, split *out) {
    bool wide = c->wide;
    c->wide = true;
    const schema_view *v = schema_view_of(c, schema);
    for (schema_word w = 1; w < WORD_COUNT; w++) {
        json_t *value = schema_get(c, v, w);
        if (value != NULL) negate_word(c, v, w, value, out);
    }
    /* A format may be enforced or not: its violation is never an alternative. */
    if (v->of[WORD_FORMAT] != NULL && !(c->draft <= 7 && v->of[WORD_REF] != NULL))
        schema_drop(c, v, WORD_FORMAT);
    c->wide = wide;
}

bool schema_negation_softens(schema_ctx *c, const json_t *schema) {
    void **known = schema_table_at(c, c->negations, &schema, sizeof schema, false);
    const negation *n = known == NULL ? NULL : *known;
    return n != NULL && n->dropped_word != WORD_NONE && schema_soften(c, WORD_NONE, schema);
}

void schema_negate(schema_ctx *c, const json_t *schema, split *out) {
    if (json_is_boolean(schema)) {
        if (json_is_false(schema)) schema_split_add(c, out);
        return;
    }
    if (!json_is_object(schema))
        schema_malformed(c, WORD_NONE, schema, "a schema is an object or a boolean");
    void **known = schema_table_at(c, c->negations, &schema, sizeof schema, false);
    if (known == NULL) {
        negation *n = schema_take(c, sizeof *n);
        schema_word word = c->dropped_word;
        const json_t *at = c->dropped_at;
        uint32_t n_scratch = c->n_scratch;
        c->dropped_word = WORD_NONE;
        c->n_scratch = 0; // it is kept
        negate(c, schema, &n->alternatives);
        c->n_scratch = n_scratch;
        n->dropped_word = c->dropped_word;
        n->dropped_at = c->dropped_at;
        c->dropped_word = word;
        c->dropped_at = at;
        known = schema_table_at(c, c->negations, &schema, sizeof schema, true);
        *known = n;
    }
    const negation *n = *known;
    *out = n->alternatives;
    if (n->dropped_word == WORD_NONE) return;
    c->dropped_word = n->dropped_word;
    c->dropped_at = n->dropped_at;
}
