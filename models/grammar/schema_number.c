/* schema_number.c - numbers: bounds, multiples, and what is excluded.
 *
 * Bounds of all bases are cut; excluded values split the range; what dfa_of_numbers cannot express
 * at once is a product.  A fraction is written with a last digit behind the point that is not 0,
 * which tells it from an integer such as 1.0. */
#include <math.h>

#include "schema.h"
#include "schema_weaken.h"

enum { NUMBER_VALUES_MAX = 256 }; // excluded

typedef struct numbers {
    number_bound min, max;
    const json_t **multiples, **not_multiples;
    size_t n_multiples, multiples_capacity, n_not, not_capacity;
    long double *excluded;
    size_t n_excluded, excluded_capacity;
    const schema_view *last; // for errors
} numbers;

static const struct {
    const char *name;
    long double min, max;
} ranges[] = {
    {"int8", -128, 127},
    {"int16", -32768, 32767},
    {"int32", -2147483648.0L, 2147483647},
    {"int64", -9223372036854775808.0L, 9223372036854775807.0L},
    {"uint8", 0, 255},
    {"uint16", 0, 65535},
    {"uint32", 0, 4294967295.0L},
    {"uint64", 0, 18446744073709551615.0L},
};

static long double value_of(const json_t *x) {
    return json_is_integer(x) ? (long double)json_integer_value(x)
                              : (long double)json_real_value(x);
}

static void raise_min(number_bound *b, long double at, bool open) {
    if (!b->set || at > b->at || (at == b->at && open)) *b = (number_bound){true, open, at};
}
static void lower_max(number_bound *b, long double at, bool open) {
    if (!b->set || at < b->at || (at == b->at && open)) *b = (number_bound){true, open, at};
}

static const json_t *number_at(schema_ctx *c, const schema_view *v, schema_word w) {
    const json_t *x = schema_get(c, v, w);
    if (x != NULL && !json_is_number(x)) schema_malformed(c, w, v->schema, "is not a number");
    return x;
}

void schema_bounds(schema_ctx *c, const schema_view *v, number_bound *min, number_bound *max) {
    const json_t *low = schema_get(c, v, WORD_EXCLUSIVE_MINIMUM);
    const json_t *high = schema_get(c, v, WORD_EXCLUSIVE_MAXIMUM);
    const json_t *at_least = number_at(c, v, WORD_MINIMUM),
                 *at_most = number_at(c, v, WORD_MAXIMUM);
    *min = *max = (number_bound){0};
    /* In draft 4 a flag, which validators of it take from a number, too. */
    bool low_flag = json_is_true(low) || (c->draft <= 4 && low != NULL && !json_is_false(low));
    bool high_flag = json_is_true(high) || (c->draft <= 4 && high != NULL && !json_is_false(high));
    if (at_least != NULL) raise_min(min, value_of(at_least), low_flag);
    if (at_most != NULL) lower_max(max, value_of(at_most), high_flag);
    if (low != NULL && !json_is_boolean(low))
        raise_min(min, value_of(number_at(c, v, WORD_EXCLUSIVE_MINIMUM)), true);
    if (high != NULL && !json_is_boolean(high))
        lower_max(max, value_of(number_at(c, v, WORD_EXCLUSIVE_MAXIMUM)), true);
    const char *format = json_string_value(schema_get(c, v, WORD_FORMAT));
    for (size_t i = 0; format != NULL && i < INFERD_COUNT(ranges); i++) {
        if (strcmp(format, ranges[i].name) != 0) continue;
        raise_min(min, ranges[i].min, false);
        lower_max(max, ranges[i].max, false);
    }
}

/* ---- collecting ---- */

static void exclude(schema_ctx *c, numbers *n, const schema_atom *a, const json_t *x) {
    if (!json_is_number(x)) return;
    if (json_is_real(x) && fabsl(value_of(x)) >= 0x1p63L)
        schema_refuse(c, a->word, a->schema, "an integer beyond 64 bits is not known exactly");
    n->excluded =
        schema_grow(c, n->excluded, n->n_excluded, &n->excluded_capacity, sizeof *n->excluded);
    n->excluded[n->n_excluded++] = value_of(x);
}

static void read_atom(schema_ctx *c, numbers *n, const schema_atom *a) {
    const schema_view *v = a->schema == NULL ? NULL : schema_view_of(c, a->schema);
    if (a->kind == ATOM_BASE) {
        number_bound min, max;
        schema_bounds(c, v, &min, &max);
        if (min.set) raise_min(&n->min, min.at, min.open);
        if (max.set) lower_max(&n->max, max.at, max.open);
        const json_t *multiple = number_at(c, v, WORD_MULTIPLE_OF);
        if (multiple == NULL) return;
        if (!(value_of(multiple) > 0))
            schema_malformed(c, WORD_MULTIPLE_OF, v->schema, "is not above 0");
        n->multiples = schema_grow(c, n->multiples, n->n_multiples, &n->multiples_capacity,
                                   sizeof *n->multiples);
        n->multiples[n->n_multiples++] = multiple;
        n->last = v;
    } else if (a->kind == ATOM_NOT_MULTIPLE) {
        n->not_multiples =
            schema_grow(c, n->not_multiples, n->n_not, &n->not_capacity, sizeof *n->not_multiples);
        n->not_multiples[n->n_not++] = number_at(c, v, WORD_MULTIPLE_OF);
        n->last = v;
    } else if (a->kind == ATOM_NOT_ENUM && a->word == WORD_CONST) {
        exclude(c, n, a, v->of[WORD_CONST]);
    } else if (a->kind == ATOM_NOT_ENUM) {
        for (size_t i = 0; i < json_array_size(v->of[WORD_ENUM]); i++)
            exclude(c, n, a, json_array_get(v->of[WORD_ENUM], i));
    }
}

static int by_value(const void *a, const void *b) {
    long double x = *(const long double *)a, y = *(const long double *)b;
    return (x > y) - (x < y);
}

/* ---- automata ---- */

static dfa *range_dfa(schema_ctx *c, const numbers *n, bool integer, number_bound min,
                      number_bound max, double multiple) {
    number_range r;
    memset(&r, 0, sizeof r); // padding too: it is a key
    r.integer = integer;
    r.multiple_of = multiple;
    if (integer) {
        if (min.set)
            min = (number_bound){true, false, min.open ? floorl(min.at) + 1 : ceill(min.at)};
        if (max.set)
            max = (number_bound){true, false, max.open ? ceill(max.at) - 1 : floorl(max.at)};
    }
    if (min.set && max.set && (min.at > max.at || (min.at == max.at && (min.open || max.open))))
        return NULL;
    const long double edge = 9223372036854775807.0L;
    bool min_exact = !min.set || (min.at == floorl(min.at) && fabsl(min.at) <= edge);
    bool max_exact = !max.set || (max.at == floorl(max.at) && fabsl(max.at) <= edge);
    r.has_min = min.set;
    r.has_max = max.set;
    r.open_min = min.open;
    r.open_max = max.open;
    if (min_exact && max_exact && (min.set || max.set)) {
        r.exact = true;
        r.min_int = min.set ? (int64_t)min.at : 0;
        r.max_int = max.set ? (int64_t)max.at : 0;
    }
    r.min = (double)min.at;
    r.max = (double)max.at;
    /* A bound that is no double is moved inwards. */
    if (min.set && (long double)r.min < min.at) r.min = nextafter(r.min, INFINITY);
    if (max.set && (long double)r.max > max.at) r.max = nextafter(r.max, -INFINITY);
    void **known = schema_table_at(c, c->automata, &r, sizeof r, true);
    if (*known != NULL) return *known;
    dfa_limits limits = schema_dfa_limits(c);
    dfa out;
    inferd_status s = dfa_of_numbers(&r, &limits, &out, c->err);
    if (s == INFERD_EUNSUPPORTED && n->last != NULL) {
        if (!schema_soften(c, WORD_MULTIPLE_OF, n->last->schema))
            schema_refuse(c, WORD_MULTIPLE_OF, n->last->schema, c->err->text);
        r.multiple_of = 0;
        schema_check(c, dfa_of_numbers(&r, &limits, &out, c->err));
        return schema_own(c, &out);
    }
    schema_check(c, s);
    *known = schema_own(c, &out);
    return *known;
}

static dfa *of_text(schema_ctx *c, const char *pattern) {
    void **known = schema_table_at(c, c->automata, pattern, strlen(pattern), true);
    if (*known != NULL) return *known;
    dfa_limits limits = schema_dfa_limits(c);
    dfa out;
    schema_check(
        c, regex_compile((bytes){pattern, strlen(pattern)}, REGEX_TEXT, &limits, &out, c->err));
    *known = schema_own(c, &out);
    return *known;
}

typedef inferd_status (*dfa_operation)(const dfa *a, const dfa *b, const dfa_limits *limits,
                                       dfa *out, inferd_err *err);

static dfa *combine(schema_ctx *c, dfa_operation op, const dfa *a, const dfa *b) {
    dfa_limits limits = schema_dfa_limits(c);
    dfa out;
    schema_check(c, op(a, b, &limits, &out, c->err));
    return schema_own(c, &out);
}

/* The range without the excluded values; NULL: nothing. */
static dfa *pieces(schema_ctx *c, const numbers *n, bool integer) {
    number_bound from = n->min;
    double multiple = n->n_multiples == 0 ? 0 : (double)value_of(n->multiples[0]);
    dfa *all = NULL;
    for (size_t i = 0; i <= n->n_excluded; i++) {
        number_bound to = n->max;
        if (i < n->n_excluded) lower_max(&to, n->excluded[i], true);
        dfa *one = range_dfa(c, n, integer, from, to, multiple);
        if (one != NULL && !dfa_is_empty(one))
            all = all == NULL ? one : combine(c, dfa_or, all, one);
        if (i < n->n_excluded) raise_min(&from, n->excluded[i], true);
    }
    return all;
}

static dfa *number_dfa(schema_ctx *c, const numbers *n, uint32_t types) {
    static const char fraction[] = "-?(0|[1-9][0-9]*)\\.[0-9]*[1-9]";
    static const char whole[] = "-?(0|[1-9][0-9]*)";
    bool integer = types == TYPE_INTEGER;
    dfa *d = pieces(c, n, integer);
    number_bound none = {0};
    for (size_t i = 1; d != NULL && i < n->n_multiples; i++) {
        dfa *one = range_dfa(c, n, integer, none, none, (double)value_of(n->multiples[i]));
        d = combine(c, dfa_and, d, one);
    }
    if (d != NULL && types == TYPE_FRACTION) d = combine(c, dfa_and, d, of_text(c, fraction));
    for (size_t i = 0; d != NULL && i < n->n_not; i++) {
        long double of = value_of(n->not_multiples[i]);
        if (!(of > 0) || of != floorl(of))
            schema_refuse(c, WORD_MULTIPLE_OF, n->last->schema, NULL);
        dfa *multiples = range_dfa(c, n, true, none, none, (double)of);
        dfa *wholes = combine(c, dfa_and_not, of_text(c, whole), multiples);
        dfa *allowed = integer ? wholes : combine(c, dfa_or, wholes, of_text(c, fraction));
        d = combine(c, dfa_and, d, allowed);
    }
    return d;
}

ir_node schema_number(schema_ctx *c, const atom_list *flat, uint32_t types) {
    numbers n = {0};
    for (size_t i = 0; i < flat->n; i++) read_atom(c, &n, &flat->at[i]);
    if (n.n_excluded > NUMBER_VALUES_MAX)
        schema_fail(c, INFERD_EUNSUPPORTED, "more than %d excluded numbers cannot be enforced",
                    NUMBER_VALUES_MAX);
    if (n.n_excluded > 1) qsort(n.excluded, n.n_excluded, sizeof *n.excluded, by_value);
    const dfa *d = number_dfa(c, &n, types);
    return d == NULL || dfa_is_empty(d) ? IR_NEVER : schema_term(c, d);
}
