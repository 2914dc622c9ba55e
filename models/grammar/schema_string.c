/* schema_string.c - strings: length, pattern, format, and what is excluded.
 *
 * Lengths alone are counted by the machine.  Anything else is a product of automata over the
 * content of the string; a maximal length is left out where the automaton has no longer text.
 * Automata are built once for each pattern, format, length and combination. */
#include "schema.h"
#include "schema_weaken.h"

enum { LENGTH_FITS_MIN = 121 };

typedef struct parts {
    const dfa **at;
    size_t n, capacity;
    const char **excluded;
    size_t n_excluded, excluded_capacity;
    uint32_t min, max;
    const schema_view *last; // for errors
} parts;

dfa_limits schema_dfa_limits(const schema_ctx *c) {
    dfa_limits l = dfa_limits_default;
    l.states_max = c->limits->dfa_states_max;
    l.pattern_bytes_max = c->limits->pattern_bytes_max;
    l.nesting_max = c->limits->pattern_nesting_max;
    return l;
}

/* Puts keyword and pointer in front of a failure. */
static void check_at(schema_ctx *c, inferd_status s, schema_word w, const json_t *at) {
    if (s == INFERD_OK) return;
    if (c->quiet == NULL && s != INFERD_ENOMEM) {
        buf pointer;
        buf_init(&pointer, 0);
        schema_pointer(c, at, &pointer);
        c->failed_at = at;
        c->failed_word = w;
        inferd_context(c->err, "\"%s\" at %.200s %s", schema_word_name(w), buf_cstr(&pointer),
                       s == INFERD_EINVAL ? "is wrong" : "cannot be enforced");
        buf_deinit(&pointer);
    }
    schema_check(c, s);
}

/* The same, unless the compiler may go on without the keyword. */
static bool goes_without(schema_ctx *c, inferd_status s, schema_word w, const json_t *at) {
    if (s == INFERD_OK) return false;
    if (s != INFERD_ENOMEM && schema_soften(c, w, at)) return true;
    check_at(c, s, w, at);
    return false;
}

static dfa **cached(schema_ctx *c, char kind, const void *key, size_t n) {
    char *full = schema_take(c, n + 1);
    full[0] = kind;
    memcpy(full + 1, key, n);
    return (dfa **)(void *)schema_table_at(c, c->automata, full, n + 1, true);
}

ir_node schema_literal(schema_ctx *c, bytes text) {
    dfa **known = cached(c, 'i', text.p, text.n);
    if (*known == NULL) *known = (dfa *)(uintptr_t)ir_literal(c->graph, text);
    return (ir_node)(uintptr_t)*known;
}

ir_node schema_term(schema_ctx *c, const dfa *d) {
    dfa **known = cached(c, 'm', &d, sizeof d), copy;
    if (*known == NULL) {
        schema_check(c, dfa_copy(d, &copy, c->err));
        *known = (dfa *)(uintptr_t)ir_term(c->graph, &copy);
    }
    return (ir_node)(uintptr_t)*known;
}

/* In the wide reading what one of the languages of patterns finds, in the narrow one what both
 * find. */
const dfa *schema_pattern(schema_ctx *c, const json_t *at, schema_word w, bytes pattern) {
    dfa **known = cached(c, c->wide ? 'P' : 'p', pattern.p, pattern.n), out;
    if (*known != NULL) return *known;
    dfa_limits limits = schema_dfa_limits(c);
    regex_use use = c->wide ? REGEX_JSON_SEARCH_WIDE : REGEX_JSON_SEARCH;
    inferd_status s = regex_compile(pattern, use, &limits, &out, c->err);
    if (w != WORD_PATTERN)
        check_at(c, s, w, at);
    else if (goes_without(c, s, w, at))
        return schema_any_string(c);
    *known = schema_own(c, &out);
    return *known;
}

const dfa *schema_pattern_of(schema_ctx *c, bool wide, const json_t *at, schema_word w,
                             bytes pattern) {
    bool before = c->wide;
    c->wide = wide;
    const dfa *d = schema_pattern(c, at, w, pattern);
    c->wide = before;
    return d;
}

static bool is_numeric(const char *format) {
    static const char *const names[] = {"int8",   "int16",  "int32", "int64",  "uint8", "uint16",
                                        "uint32", "uint64", "float", "double", "int",   "decimal"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++)
        if (strcmp(names[i], format) == 0) return true;
    return false;
}

const dfa *schema_format(schema_ctx *c, const json_t *at, const char *name) {
    if (is_numeric(name)) return NULL;
    dfa **known = cached(c, 'f', name, strlen(name)), out;
    if (*known != NULL) return *known;
    dfa_limits limits = schema_dfa_limits(c);
    inferd_status s = dfa_of_format(name, &limits, &out, c->err);
    if (goes_without(c, s, WORD_FORMAT, at)) return NULL;
    *known = schema_own(c, &out);
    return *known;
}

const dfa *schema_lengths(schema_ctx *c, uint32_t min, uint32_t max, const schema_view *v) {
    uint32_t key[2] = {min, max};
    dfa **known = cached(c, 'l', key, sizeof key), out;
    if (*known != NULL) return *known;
    dfa_limits limits = schema_dfa_limits(c);
    inferd_status s = dfa_of_json_lengths(min, max, &limits, &out, c->err);
    if (v == NULL)
        schema_check(c, s);
    else
        check_at(c, s, max == UINT32_MAX ? WORD_MIN_LENGTH : WORD_MAX_LENGTH, v->schema);
    *known = schema_own(c, &out);
    return *known;
}

const dfa *schema_any_string(schema_ctx *c) {
    return schema_lengths(c, 0, UINT32_MAX, NULL);
}

/* ---- collecting ---- */

static void add_part(schema_ctx *c, parts *p, const dfa *d) {
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i] == d) return;
    p->at = schema_grow(c, p->at, p->n, &p->capacity, sizeof *p->at);
    p->at[p->n++] = d;
}

static void exclude(schema_ctx *c, parts *p, const json_t *value) {
    if (!json_is_string(value)) return;
    p->excluded =
        schema_grow(c, p->excluded, p->n_excluded, &p->excluded_capacity, sizeof *p->excluded);
    p->excluded[p->n_excluded++] = json_string_value(value);
}

static bytes string_of(schema_ctx *c, const schema_view *v, schema_word w) {
    const json_t *value = schema_get(c, v, w);
    if (value != NULL && !json_is_string(value))
        schema_malformed(c, w, v->schema, "is not a string");
    return (bytes){json_string_value(value), json_string_length(value)};
}

static void read_base(schema_ctx *c, parts *p, const schema_view *v) {
    p->min = u32_max(p->min, schema_count(c, v, WORD_MIN_LENGTH, 0));
    p->max = u32_min(p->max, schema_count(c, v, WORD_MAX_LENGTH, UINT32_MAX));
    bytes pattern = string_of(c, v, WORD_PATTERN);
    const char *format = string_of(c, v, WORD_FORMAT).p;
    if (pattern.p != NULL) add_part(c, p, schema_pattern(c, v->schema, WORD_PATTERN, pattern));
    const dfa *d = format == NULL ? NULL : schema_format(c, v->schema, format);
    if (d != NULL) add_part(c, p, d);
    if (pattern.p != NULL || format != NULL || v->of[WORD_MAX_LENGTH] != NULL) p->last = v;
}

static void read_atom(schema_ctx *c, parts *p, const schema_atom *a) {
    const schema_view *v = a->schema == NULL ? NULL : schema_view_of(c, a->schema);
    if (a->kind == ATOM_BASE) {
        read_base(c, p, v);
    } else if (a->kind == ATOM_NOT_ENUM && a->word == WORD_CONST) {
        exclude(c, p, v->of[WORD_CONST]);
    } else if (a->kind == ATOM_NOT_ENUM) {
        for (size_t i = 0; i < json_array_size(v->of[WORD_ENUM]); i++)
            exclude(c, p, json_array_get(v->of[WORD_ENUM], i));
    } else if (a->kind == ATOM_NOT_PATTERN) {
        bytes pattern = string_of(c, v, WORD_PATTERN);
        dfa **known = cached(c, 'n', pattern.p, pattern.n), out;
        if (*known == NULL) { // excluded: what any language finds
            dfa_limits limits = schema_dfa_limits(c);
            const dfa *d = schema_pattern_of(c, true, v->schema, WORD_PATTERN, pattern);
            check_at(c, dfa_and_not(schema_any_string(c), d, &limits, &out, c->err), WORD_PATTERN,
                     v->schema);
            *known = schema_own(c, &out);
        }
        add_part(c, p, *known);
    }
}

/* ---- products ---- */

/* Bytes of the longest text; UINT32_MAX if there is no longest. */
static uint32_t longest(schema_ctx *c, const dfa *d) {
    uint32_t *n_in = schema_take_array(c, d->n_states, sizeof *n_in);
    uint32_t *length = schema_take_array(c, d->n_states, sizeof *length);
    uint32_t *ready = schema_take_array(c, d->n_states, sizeof *ready);
    for (uint32_t s = 0; s < d->n_states; s++) {
        for (uint32_t k = 0; k < d->n_classes; k++) {
            uint32_t to = dfa_step_class(d, s, k);
            if (to != DFA_DEAD) n_in[to]++;
        }
    }
    uint32_t n = 0, n_done = 0, most = 0;
    if (d->n_states > 0 && n_in[0] == 0) ready[n++] = 0; // trimmed: all are reached from it
    while (n_done < n) {
        uint32_t s = ready[n_done++];
        most = u32_max(most, length[s]);
        for (uint32_t k = 0; k < d->n_classes; k++) {
            uint32_t to = dfa_step_class(d, s, k);
            if (to == DFA_DEAD) continue;
            length[to] = u32_max(length[to], length[s] + 1);
            if (--n_in[to] == 0) ready[n++] = to;
        }
    }
    return n == d->n_states ? most : UINT32_MAX;
}

/* A product with a long maxLength may have too many states: then the maximum is lowered to one that
 * fits, which no writer notices (120 characters at least; a shorter one is refused). */
static uint32_t length_that_fits(const schema_ctx *c, const dfa *d) {
    uint32_t n = c->limits->dfa_states_max / (d->n_states + 1);
    return n < LENGTH_FITS_MIN ? UINT32_MAX : n - 1;
}

static const dfa *times(schema_ctx *c, const dfa *a, const dfa *b, const schema_view *v) {
    dfa out;
    dfa_limits limits = schema_dfa_limits(c);
    schema_tick(c);
    inferd_status s = dfa_and(a, b, &limits, &out, c->err);
    if (v == NULL)
        schema_check(c, s);
    else
        check_at(c, s, v->of[WORD_PATTERN] != NULL ? WORD_PATTERN : WORD_FORMAT, v->schema);
    return schema_own(c, &out);
}

const dfa *schema_literals(schema_ctx *c, const char *const *texts, size_t n) {
    bytes *literals = schema_take_array(c, n, sizeof *literals);
    for (size_t i = 0; i < n; i++) {
        buf content;
        buf_init(&content, 0);
        json_canonical(&content, (bytes){texts[i], strlen(texts[i])});
        bool failed = content.failed;
        char *copy = failed ? NULL : schema_take(c, content.n + 1);
        if (content.n > 0 && !failed) memcpy(copy, content.p, content.n);
        literals[i] = (bytes){copy, content.n};
        buf_deinit(&content);
        if (failed) schema_no_memory(c);
    }
    dfa_limits limits = schema_dfa_limits(c);
    dfa out;
    schema_check(c, dfa_of_literals(literals, NULL, n, &limits, &out, c->err));
    return schema_own(c, &out);
}

const dfa *schema_without(schema_ctx *c, const dfa *d, const char *const *texts, size_t n) {
    dfa_limits limits = schema_dfa_limits(c);
    dfa out;
    schema_check(c, dfa_and_not(d, schema_literals(c, texts, n), &limits, &out, c->err));
    return schema_own(c, &out);
}

/* The product of the parts, cached by what goes into it. */
static const dfa *product(schema_ctx *c, const parts *p) {
    size_t n_bytes = p->n * sizeof *p->at + sizeof p->min + sizeof p->max;
    char *key = schema_take(c, n_bytes);
    memcpy(key, p->at, p->n * sizeof *p->at);
    memcpy(key + p->n * sizeof *p->at, &p->min, sizeof p->min);
    memcpy(key + p->n * sizeof *p->at + sizeof p->min, &p->max, sizeof p->max);
    dfa **known = cached(c, 'x', key, n_bytes);
    if (*known != NULL) return *known;
    const dfa *d = p->at[0];
    for (size_t i = 1; i < p->n; i++) d = times(c, d, p->at[i], p->last);
    uint32_t max = p->max;
    if (max != UINT32_MAX && longest(c, d) <= max) max = UINT32_MAX;
    if (max != UINT32_MAX) max = u32_max(p->min, u32_min(max, length_that_fits(c, d)));
    if (p->min > 0 || max != UINT32_MAX)
        d = times(c, d, schema_lengths(c, p->min, max, p->last), p->last);
    *known = (dfa *)(uintptr_t)d;
    return d;
}

bool schema_strings_apart(schema_ctx *c, const atom_list *flat) {
    parts p = {.max = UINT32_MAX};
    for (size_t i = 0; i < flat->n; i++) read_atom(c, &p, &flat->at[i]);
    if (p.min > p.max) return true;
    if (p.n < 2 && (p.n == 0 || p.max == UINT32_MAX)) return false;
    return dfa_is_empty(product(c, &p));
}

bool schema_string_dfa(schema_ctx *c, const atom_list *flat, const dfa **out, uint32_t *min,
                       uint32_t *max) {
    parts p = {.max = UINT32_MAX};
    *out = NULL;
    for (size_t i = 0; i < flat->n; i++) read_atom(c, &p, &flat->at[i]);
    *min = p.min;
    *max = p.max;
    if (p.min > p.max) return false;
    const dfa *d = NULL;
    if (p.n > 0) d = product(c, &p);
    if (p.n_excluded > 0)
        d = schema_without(c, d != NULL ? d : schema_lengths(c, p.min, p.max, p.last), p.excluded,
                           p.n_excluded);
    *out = d;
    return d == NULL || !dfa_is_empty(d);
}

ir_node schema_string(schema_ctx *c, const atom_list *flat) {
    const dfa *d;
    uint32_t min, max;
    if (!schema_string_dfa(c, flat, &d, &min, &max)) return IR_NEVER;
    if (d == NULL) return ir_string(c->graph, min, max);
    ir_node quote = schema_literal(c, (bytes){"\"", 1});
    ir_node all[3] = {quote, schema_term(c, d), quote};
    return ir_seq(c->graph, all, 3);
}
