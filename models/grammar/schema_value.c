/* schema_value.c - whether a value, of an enum or const, is valid for a schema.
 *
 * Values of an enum are few and known, so they are tested by all demands on their place instead of
 * multiplying automata.  The answer has three values: what cannot be decided is UNKNOWN.
 *
 * Calls nest as deep as value and schema do, VALUE_DEPTH_MAX at most; deeper is UNKNOWN. */
#include <math.h>

#include "schema.h"

enum { VALUE_DEPTH_MAX = 96 };

static schema_truth truth_of(bool yes) {
    return yes ? TRUTH_YES : TRUTH_NO;
}
static schema_truth both(schema_truth a, schema_truth b) {
    if (a == TRUTH_NO || b == TRUTH_NO) return TRUTH_NO;
    return a == TRUTH_YES && b == TRUTH_YES ? TRUTH_YES : TRUTH_UNKNOWN;
}
static schema_truth opposite(schema_truth a) {
    return a == TRUTH_UNKNOWN ? a : truth_of(a == TRUTH_NO);
}

static long double number_of(const json_t *x) {
    return json_is_integer(x) ? (long double)json_integer_value(x)
                              : (long double)json_real_value(x);
}

uint32_t schema_type_of(const json_t *x) {
    switch (json_typeof(x)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(x) == floor(json_real_value(x)) ? TYPE_INTEGER : TYPE_FRACTION;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_OBJECT;
    }
}

size_t schema_code_points(const char *text) {
    size_t n = 0;
    for (; *text != 0; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static bool equal(const json_t *a, const json_t *b, int depth);

static bool equal_objects(const json_t *a, const json_t *b, int depth) {
    if (json_object_size(a) != json_object_size(b)) return false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)a, key, value) {
        const json_t *other = json_object_get(b, key);
        if (other == NULL || !equal(value, other, depth + 1)) return false;
    }
    return true;
}

static bool equal(const json_t *a, const json_t *b, int depth) {
    if (json_is_number(a) && json_is_number(b)) return number_of(a) == number_of(b);
    if (json_typeof(a) != json_typeof(b) || depth > VALUE_DEPTH_MAX) return false;
    if (json_is_object(a)) return equal_objects(a, b, depth);
    if (!json_is_array(a)) return json_equal(a, b) != 0;
    if (json_array_size(a) != json_array_size(b)) return false;
    for (size_t i = 0; i < json_array_size(a); i++)
        if (!equal(json_array_get(a, i), json_array_get(b, i), depth + 1)) return false;
    return true;
}

bool schema_equal(const json_t *a, const json_t *b) {
    return equal(a, b, 0);
}

/* ---- keywords of one type ---- */

static schema_truth valid_number(schema_ctx *c, const json_t *x, const schema_view *v) {
    number_bound min, max;
    schema_bounds(c, v, &min, &max);
    long double at = number_of(x);
    if (min.set && (at < min.at || (min.open && at == min.at))) return TRUTH_NO;
    if (max.set && (at > max.at || (max.open && at == max.at))) return TRUTH_NO;
    const json_t *multiple = schema_get(c, v, WORD_MULTIPLE_OF);
    if (multiple == NULL) return TRUTH_YES;
    if (json_is_integer(multiple) && json_is_integer(x) && json_integer_value(multiple) > 0)
        return truth_of(json_integer_value(x) % json_integer_value(multiple) == 0);
    long double of = number_of(multiple);
    if (of == floorl(of) && at != floorl(at)) return TRUTH_NO;
    return of > 0 && of == floorl(of) ? truth_of(fmodl(at, of) == 0) : TRUTH_UNKNOWN;
}

static schema_truth matches(const dfa *d, const char *text) {
    buf content;
    buf_init(&content, 0);
    json_canonical(&content, (bytes){text, strlen(text)});
    schema_truth t = content.failed
                         ? TRUTH_UNKNOWN
                         : truth_of(dfa_match(d, (bytes){buf_cstr(&content), content.n}) != 0);
    buf_deinit(&content);
    return t;
}

static schema_truth valid_string(schema_ctx *c, const json_t *x, const schema_view *v) {
    const char *text = json_string_value(x);
    size_t n = schema_code_points(text);
    if (n < schema_count(c, v, WORD_MIN_LENGTH, 0)) return TRUTH_NO;
    if (n > schema_count(c, v, WORD_MAX_LENGTH, IR_NO_MAX)) return TRUTH_NO;
    schema_truth t = TRUTH_YES;
    const json_t *pattern = schema_get(c, v, WORD_PATTERN), *format = schema_get(c, v, WORD_FORMAT);
    if (json_is_string(pattern))
        t = both(t, matches(schema_pattern(
                                c, v->schema, WORD_PATTERN,
                                (bytes){json_string_value(pattern), json_string_length(pattern)}),
                            text));
    if (json_is_string(format) && t != TRUTH_NO) {
        const dfa *d = schema_format(c, v->schema, json_string_value(format));
        if (d != NULL) t = both(t, matches(d, text));
    }
    return t;
}

static schema_truth valid_schema(schema_ctx *c, const json_t *x, const json_t *schema);

/* In the other reading (schema.h): a `not` is narrow where its schema is wide. */
static schema_truth valid_flipped(schema_ctx *c, const json_t *x, const json_t *schema) {
    c->wide = !c->wide;
    schema_truth t = valid_schema(c, x, schema);
    c->wide = !c->wide;
    return t;
}

static schema_truth valid_array(schema_ctx *c, const json_t *x, const schema_view *v) {
    size_t n = json_array_size(x);
    if (n < schema_count(c, v, WORD_MIN_ITEMS, 0)) return TRUTH_NO;
    if (n > schema_count(c, v, WORD_MAX_ITEMS, IR_NO_MAX)) return TRUTH_NO;
    const json_t *items = schema_get(c, v, WORD_ITEMS),
                 *prefix = schema_get(c, v, WORD_PREFIX_ITEMS);
    const json_t *rest = items;
    if (prefix == NULL && json_is_array(items)) {
        prefix = items;
        rest = schema_get(c, v, WORD_ADDITIONAL_ITEMS);
    }
    schema_truth t = TRUTH_YES;
    for (size_t i = 0; i < n && t != TRUTH_NO; i++) {
        bool in_prefix = i < json_array_size(prefix), for_all = c->draft < 2020 && rest == items;
        const json_t *of[2] = {in_prefix ? json_array_get(prefix, i) : NULL,
                               in_prefix && !for_all ? NULL : rest};
        for (size_t k = 0; k < 2; k++)
            if (of[k] != NULL) t = both(t, valid_schema(c, json_array_get(x, i), of[k]));
    }
    if (v->of[WORD_UNIQUE_ITEMS] != NULL && schema_flag(c, v, WORD_UNIQUE_ITEMS))
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < i; j++)
                if (schema_equal(json_array_get(x, i), json_array_get(x, j))) return TRUTH_NO;
    const json_t *contains = schema_get(c, v, WORD_CONTAINS);
    if (contains == NULL || t == TRUTH_NO) return t;
    size_t least = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        schema_truth one = valid_schema(c, json_array_get(x, i), contains);
        least += one == TRUTH_YES;
        most += one != TRUTH_NO;
    }
    uint32_t min = u32_max(schema_count(c, v, WORD_MIN_CONTAINS, 1), c->draft < 2019);
    uint32_t max = schema_count(c, v, WORD_MAX_CONTAINS, IR_NO_MAX);
    if (most < min || least > max) return TRUTH_NO;
    return least >= min && most <= max ? t : TRUTH_UNKNOWN;
}

static schema_truth valid_property(schema_ctx *c, const char *name, const json_t *x,
                                   const schema_view *v) {
    const json_t *own = json_object_get(schema_get(c, v, WORD_PROPERTIES), name);
    schema_truth t = own == NULL ? TRUTH_YES : valid_schema(c, x, own);
    bool evaluated = own != NULL;
    const char *pattern;
    json_t *of;
    json_object_foreach(schema_get(c, v, WORD_PATTERN_PROPERTIES), pattern, of) {
        schema_truth match = schema_name_matches(c, v, pattern, name);
        if (match == TRUTH_NO) continue;
        if (match == TRUTH_UNKNOWN && !c->wide) return TRUTH_NO;
        evaluated = true;
        if (match == TRUTH_YES) t = both(t, valid_schema(c, x, of));
    }
    const json_t *others = schema_get(c, v, WORD_ADDITIONAL_PROPERTIES);
    if (others == NULL) others = schema_get(c, v, WORD_UNEVALUATED_PROPERTIES);
    return evaluated || others == NULL ? t : valid_schema(c, x, others);
}

static schema_truth valid_needs(schema_ctx *c, const json_t *x, const json_t *needs) {
    if (json_is_string(needs))
        return truth_of(json_object_get(x, json_string_value(needs)) != NULL);
    if (!json_is_array(needs)) return valid_schema(c, x, needs);
    for (size_t i = 0; i < json_array_size(needs); i++)
        if (json_object_get(x, json_string_value(json_array_get(needs, i))) == NULL)
            return TRUTH_NO;
    return TRUTH_YES;
}

static schema_truth valid_object(schema_ctx *c, const json_t *x, const schema_view *v) {
    size_t n = json_object_size(x);
    if (n < schema_count(c, v, WORD_MIN_PROPERTIES, 0)) return TRUTH_NO;
    if (n > schema_count(c, v, WORD_MAX_PROPERTIES, IR_NO_MAX)) return TRUTH_NO;
    const json_t *required = schema_get(c, v, WORD_REQUIRED);
    for (size_t i = 0; i < json_array_size(required); i++)
        if (json_object_get(x, json_string_value(json_array_get(required, i))) == NULL)
            return TRUTH_NO;
    schema_truth t = TRUTH_YES;
    const json_t *names = schema_get(c, v, WORD_PROPERTY_NAMES);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)x, name, value) {
        t = both(t, valid_property(c, name, value, v));
        if (names != NULL) {
            json_t *text = schema_own_json(c, json_string(name));
            t = both(t, valid_schema(c, text, names));
        }
        if (t == TRUTH_NO) return t;
    }
    static const schema_word needs[] = {WORD_DEPENDENCIES, WORD_DEPENDENT_REQUIRED,
                                        WORD_DEPENDENT_SCHEMAS};
    for (size_t i = 0; i < INFERD_COUNT(needs); i++) {
        json_object_foreach(schema_get(c, v, needs[i]), name, value) {
            if (json_object_get(x, name) != NULL) t = both(t, valid_needs(c, x, value));
        }
    }
    return t;
}

/* ---- schemas ---- */

static schema_truth valid_in_many(schema_ctx *c, const json_t *x, const schema_view *v) {
    schema_truth t = TRUTH_YES;
    const json_t *all = schema_get(c, v, WORD_ALL_OF), *any = schema_get(c, v, WORD_ANY_OF);
    const json_t *one = schema_get(c, v, WORD_ONE_OF);
    for (size_t i = 0; i < json_array_size(all); i++)
        t = both(t, valid_schema(c, x, json_array_get(all, i)));
    if (any != NULL) {
        schema_truth none = TRUTH_YES;
        for (size_t i = 0; i < json_array_size(any); i++)
            none = both(none, opposite(valid_schema(c, x, json_array_get(any, i))));
        t = both(t, opposite(none));
    }
    if (one == NULL || t == TRUTH_NO) return t;
    size_t least = 0, most = 0; // branches that hold: surely in both readings, perhaps in one
    for (size_t i = 0; i < json_array_size(one); i++) {
        schema_truth of = valid_schema(c, x, json_array_get(one, i));
        schema_truth other = valid_flipped(c, x, json_array_get(one, i));
        least += of == TRUTH_YES && other == TRUTH_YES;
        most += of != TRUTH_NO || other != TRUTH_NO;
    }
    if (most == 0 || least > 1) return TRUTH_NO;
    return least == 1 && most == 1 ? t : TRUTH_UNKNOWN;
}

static schema_truth valid_if(schema_ctx *c, const json_t *x, const schema_view *v) {
    const json_t *then = schema_get(c, v, WORD_THEN), *other = schema_get(c, v, WORD_ELSE);
    schema_truth condition = valid_schema(c, x, schema_get(c, v, WORD_IF));
    schema_truth a = then == NULL ? TRUTH_YES : valid_schema(c, x, then);
    schema_truth b = other == NULL ? TRUTH_YES : valid_schema(c, x, other);
    if (condition != valid_flipped(c, x, schema_get(c, v, WORD_IF))) condition = TRUTH_UNKNOWN;
    if (condition == TRUTH_UNKNOWN) return a == b ? a : TRUTH_UNKNOWN;
    return condition == TRUTH_YES ? a : b;
}

/* The texts of many values, so that one is found without looking at all. */
static schema_table *texts_of(schema_ctx *c, const json_t *values) {
    void **at = schema_table_at(c, c->value_sets, &values, sizeof values, true);
    if (*at != NULL) return *at;
    schema_table *set = schema_table_create(c);
    *at = set;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *one = json_array_get(values, i);
        if (json_is_string(one))
            *schema_table_at(c, set, json_string_value(one), json_string_length(one), true) = set;
    }
    return set;
}

static schema_truth in_values(schema_ctx *c, const json_t *x, const json_t *values) {
    enum { MANY = 8 };
    if (json_is_string(x) && json_array_size(values) > MANY)
        return truth_of(schema_table_at(c, texts_of(c, values), json_string_value(x),
                                        json_string_length(x), false) != NULL);
    for (size_t i = 0; i < json_array_size(values); i++)
        if (schema_equal(x, json_array_get(values, i))) return TRUTH_YES;
    return TRUTH_NO;
}

static schema_truth valid_base(schema_ctx *c, const json_t *x, const schema_view *v) {
    uint32_t type = schema_type_of(x);
    if ((schema_types(c, v) & type) == 0) return TRUTH_NO;
    const json_t *one = schema_get(c, v, WORD_CONST), *many = schema_get(c, v, WORD_ENUM);
    if (one != NULL && !schema_equal(x, one)) return TRUTH_NO;
    if (many != NULL && in_values(c, x, many) == TRUTH_NO) return TRUTH_NO;
    if ((type & TYPE_NUMBER) != 0) return valid_number(c, x, v);
    if (type == TYPE_STRING) return valid_string(c, x, v);
    if (type == TYPE_ARRAY) return valid_array(c, x, v);
    return type == TYPE_OBJECT ? valid_object(c, x, v) : TRUTH_YES;
}

static schema_truth valid_view(schema_ctx *c, const json_t *x, const schema_view *v) {
    static const schema_word refs[] = {WORD_REF, WORD_RECURSIVE_REF, WORD_DYNAMIC_REF};
    schema_truth t = valid_base(c, x, v);
    for (size_t i = 0; i < INFERD_COUNT(refs) && t != TRUTH_NO; i++) {
        const json_t *ref = schema_get(c, v, refs[i]);
        if (json_is_string(ref))
            t = both(t, valid_schema(
                            c, x, schema_resolve(c, v->schema, refs[i], json_string_value(ref))));
    }
    if (t != TRUTH_NO) t = both(t, valid_in_many(c, x, v));
    const json_t *none = schema_get(c, v, WORD_NOT);
    if (none != NULL && t != TRUTH_NO) t = both(t, opposite(valid_flipped(c, x, none)));
    if (schema_get(c, v, WORD_IF) != NULL && t != TRUTH_NO) t = both(t, valid_if(c, x, v));
    return t;
}

static schema_truth valid_schema(schema_ctx *c, const json_t *x, const json_t *schema) {
    if (json_is_boolean(schema)) return truth_of(json_is_true(schema));
    if (!json_is_object(schema) && c->weak != NULL) return TRUTH_YES;
    if (!json_is_object(schema) || c->n_value_depth == VALUE_DEPTH_MAX) return TRUTH_UNKNOWN;
    schema_tick(c);
    c->n_value_depth++;
    schema_truth t = valid_view(c, x, schema_view_of(c, schema));
    c->n_value_depth--;
    return t;
}

/* Without a value: UNKNOWN means that it depends on the value. */
schema_truth schema_violates(schema_ctx *c, const schema_view *v, schema_word w, const char *name,
                             const json_t *x) {
    if (w == WORD_PROPERTY_NAMES)
        return opposite(valid_flipped(c, schema_own_json(c, json_string(name)), v->of[w]));
    schema_truth t = TRUTH_NO;
    const char *pattern;
    json_t *of;
    json_object_foreach(v->of[WORD_PATTERN_PROPERTIES], pattern, of) {
        schema_truth match = schema_name_matches(c, v, pattern, name);
        if (match == TRUTH_NO) continue;
        if (w == WORD_ADDITIONAL_PROPERTIES) return TRUTH_NO;
        if (match == TRUTH_UNKNOWN) continue;
        schema_truth one = x == NULL ? TRUTH_UNKNOWN : opposite(valid_flipped(c, x, of));
        if (one != TRUTH_NO && t != TRUTH_YES) t = one;
    }
    if (w == WORD_PATTERN_PROPERTIES) return t;
    if (json_object_get(v->of[WORD_PROPERTIES], name) != NULL) return TRUTH_NO;
    if (json_is_false(v->of[w])) return TRUTH_YES;
    return x == NULL ? TRUTH_UNKNOWN : opposite(valid_flipped(c, x, v->of[w]));
}

static schema_truth valid_other(schema_ctx *c, const json_t *x, const schema_view *v,
                                schema_word w) {
    const char *name;
    json_t *value;
    schema_truth t = TRUTH_NO;
    if (!json_is_object(x)) return TRUTH_NO;
    json_object_foreach((json_t *)(uintptr_t)x, name, value) {
        schema_truth one = schema_violates(c, v, w, name, value);
        if (one == TRUTH_YES) return one;
        if (one == TRUTH_UNKNOWN) t = one;
    }
    return t;
}

schema_truth schema_valid(schema_ctx *c, const json_t *x, const schema_atom *a) {
    schema_view only; // one keyword
    const schema_view *v;
    schema_truth t;
    c->n_value_depth = 0;
    switch (a->kind) {
    case ATOM_SCHEMA:
        return valid_schema(c, x, a->schema);
    case ATOM_NOT:
        return opposite(valid_flipped(c, x, a->schema));
    case ATOM_BASE:
        return valid_base(c, x, schema_view_of(c, a->schema));
    case ATOM_TYPES:
        return truth_of((schema_type_of(x) & a->types) != 0);
    case ATOM_HAS:
        return truth_of(!json_is_object(x) || json_object_get(x, a->name) != NULL);
    case ATOM_LACKS:
        return truth_of(!json_is_object(x) || json_object_get(x, a->name) == NULL);
    default:
        break;
    }
    v = schema_view_of(c, a->schema);
    memset(&only, 0, sizeof only);
    only.schema = a->schema;
    switch (a->kind) {
    case ATOM_ANY_OF:
        only.of[WORD_ANY_OF] = v->of[WORD_ANY_OF];
        return valid_view(c, x, &only);
    case ATOM_ONE_OF:
        only.of[WORD_ONE_OF] = v->of[WORD_ONE_OF];
        return valid_view(c, x, &only);
    case ATOM_IF:
        return valid_if(c, x, v);
    case ATOM_OTHER:
        return valid_other(c, x, v, a->word);
    case ATOM_NEEDS:
        if (!json_is_object(x) || json_object_get(x, a->name) == NULL) return TRUTH_YES;
        return valid_needs(c, x, json_object_get(v->of[a->word], a->name));
    case ATOM_NOT_ENUM:
        return truth_of(a->word == WORD_ENUM ? in_values(c, x, v->of[WORD_ENUM]) == TRUTH_NO
                                             : !schema_equal(x, v->of[WORD_CONST]));
    case ATOM_NOT_PATTERN:
        if (!json_is_string(x)) return TRUTH_YES;
        only.of[WORD_PATTERN] = v->of[WORD_PATTERN];
        c->wide = !c->wide;
        t = opposite(valid_string(c, x, &only));
        c->wide = !c->wide;
        return t;
    default:
        if (!json_is_number(x)) return TRUTH_YES;
        only.of[WORD_MULTIPLE_OF] = v->of[WORD_MULTIPLE_OF];
        return opposite(valid_number(c, x, &only));
    }
}

schema_truth schema_valid_all(schema_ctx *c, const json_t *x, const atom_list *atoms) {
    schema_truth t = TRUTH_YES;
    for (size_t i = 0; i < atoms->n && t != TRUTH_NO; i++)
        t = both(t, schema_valid(c, x, &atoms->at[i]));
    return t;
}

schema_truth schema_valid_member(schema_ctx *c, const json_t *x, const atom_list *atoms,
                                 const schema_view *of) {
    schema_view rest = *of;
    rest.of[WORD_ENUM] = rest.of[WORD_CONST] == NULL ? NULL : rest.of[WORD_ENUM];
    rest.of[WORD_CONST] = NULL;
    schema_truth t = TRUTH_YES;
    for (size_t i = 0; i < atoms->n && t != TRUTH_NO; i++) {
        const schema_atom *a = &atoms->at[i];
        bool own = a->kind == ATOM_BASE && a->schema == of->schema;
        c->n_value_depth = 0;
        t = both(t, own ? valid_base(c, x, &rest) : schema_valid(c, x, a));
    }
    return t;
}
