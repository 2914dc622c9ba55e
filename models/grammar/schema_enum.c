/* schema_enum.c - values: the texts of enum and const.
 *
 * Values without children are one automaton of literals.  A number may be written in more than one
 * way: as Python and JavaScript write it, and a whole one with or without ".0".  Between the tokens
 * of an array or object white space is allowed, as elsewhere. */
#include <math.h>

#include "schema.h"

typedef struct texts {
    bytes *at;
    size_t n, capacity, n_bytes;
} texts;

static void add_text(schema_ctx *c, texts *t, const char *p, size_t n) {
    char *copy = schema_take(c, n + 1);
    memcpy(copy, p, n);
    t->at = schema_grow(c, t->at, t->n, &t->capacity, sizeof *t->at);
    t->at[t->n++] = (bytes){copy, n};
    t->n_bytes += n;
    if (t->n_bytes > c->limits->enum_bytes_max)
        schema_fail(c, INFERD_ETOOLONG,
                    "the values of an enum have more than enum_bytes_max, %u, bytes",
                    c->limits->enum_bytes_max);
}

/* The shortest digits that read back as the same number; returns how many. */
static int shortest(double x, char *out, size_t n) {
    int digits = 1;
    for (; digits < 17; digits++) {
        snprintf(out, n, "%.*g", digits, x);
        if (strtod(out, NULL) == x) return digits;
    }
    snprintf(out, n, "%.17g", x);
    return digits;
}

/* An integer beyond 64 bits is read as the nearest double, so it may be another number. */
static void refuse_wide(schema_ctx *c, double x) {
    static const char why[] = "an integer beyond 64 bits is not known exactly";
    if (fabs(x) < 0x1p63) return;
    if (c->failed_at != NULL) schema_refuse(c, c->failed_word, c->failed_at, why);
    schema_fail(c, INFERD_EUNSUPPORTED, "%s", why);
}

static void add_real(schema_ctx *c, texts *t, double x) {
    char text[64];
    refuse_wide(c, x);
    int digits = shortest(x, text, sizeof text);
    if (strchr(text, 'e') != NULL) add_text(c, t, text, strlen(text));
    if (x != 0 && (fabs(x) < 1e-6 || fabs(x) >= 1e21)) return;
    int decimals = x == 0 ? 0 : digits - 1 - (int)floor(log10(fabs(x)));
    snprintf(text, sizeof text, "%.*f", decimals < 0 ? 0 : decimals, x);
    if (strtod(text, NULL) == x) add_text(c, t, text, strlen(text));
    if (x != floor(x)) return;
    snprintf(text, sizeof text, "%.1f", x);
    add_text(c, t, text, strlen(text));
}

static void add_string(schema_ctx *c, texts *t, const char *s) {
    buf out;
    buf_init(&out, 0);
    buf_add_char(&out, '"');
    json_canonical(&out, (bytes){s, strlen(s)});
    buf_add_char(&out, '"');
    if (out.failed) {
        buf_deinit(&out);
        schema_no_memory(c);
    }
    char *copy = schema_take(c, out.n);
    size_t n = out.n;
    memcpy(copy, out.p, n);
    buf_deinit(&out);
    add_text(c, t, copy, n);
}

/* The texts of a value without children. */
static void add_scalar(schema_ctx *c, texts *t, const json_t *x) {
    char text[32];
    switch (json_typeof(x)) {
    case JSON_STRING:
        add_string(c, t, json_string_value(x));
        return;
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(x));
        add_text(c, t, text, strlen(text));
        return;
    case JSON_REAL:
        add_real(c, t, json_real_value(x));
        return;
    case JSON_TRUE:
        add_text(c, t, "true", 4);
        return;
    case JSON_FALSE:
        add_text(c, t, "false", 5);
        return;
    default:
        add_text(c, t, "null", 4);
        return;
    }
}

static ir_node node_of_texts(schema_ctx *c, const texts *t) {
    if (t->n == 0) return IR_NEVER;
    if (t->n == 1) return schema_literal(c, t->at[0]);
    size_t n_key = 0;
    char *key = schema_take(c, t->n_bytes + t->n + 1);
    key[n_key++] = 'e';
    for (size_t i = 0; i < t->n; i++) {
        memcpy(key + n_key, t->at[i].p, t->at[i].n);
        n_key += t->at[i].n;
        key[n_key++] = 0;
    }
    void **known = schema_table_at(c, c->automata, key, n_key, true);
    if (*known != NULL) return (ir_node)(uintptr_t)*known;
    dfa_limits limits = schema_dfa_limits(c);
    limits.states_max = UINT32_MAX / 4; // enum_bytes_max bounds them
    dfa d;
    schema_check(c, dfa_of_literals(t->at, NULL, t->n, &limits, &d, c->err));
    ir_node node = ir_term(c->graph, &d);
    *known = (void *)(uintptr_t)node;
    return node;
}

/* ---- arrays and objects ---- */

typedef struct part {
    const json_t *at;
    void *iter;
    size_t index;
} part;

typedef struct sequence {
    ir_node *at;
    size_t n, capacity;
} sequence;

static void add_node(schema_ctx *c, sequence *s, ir_node node) {
    s->at = schema_grow(c, s->at, s->n, &s->capacity, sizeof *s->at);
    s->at[s->n++] = node;
}

static void add_word(schema_ctx *c, sequence *s, const char *word) {
    add_node(c, s, schema_literal(c, (bytes){word, strlen(word)}));
}

ir_node schema_value_node(schema_ctx *c, const json_t *value) {
    sequence s = {0};
    part *stack = NULL;
    size_t n = 0, capacity = 0;
    const json_t *next = value;
    for (;;) {
        if (json_is_object(next) || json_is_array(next)) {
            add_word(c, &s, json_is_object(next) ? "{" : "[");
            stack = schema_grow(c, stack, n, &capacity, sizeof *stack);
            stack[n++] = (part){.at = next};
        } else {
            texts t = {0};
            add_scalar(c, &t, next);
            add_node(c, &s, node_of_texts(c, &t));
        }
        next = NULL;
        while (n > 0 && next == NULL) {
            part *top = &stack[n - 1];
            json_t *at = (json_t *)(uintptr_t)top->at;
            bool object = json_is_object(at), first = top->index == 0;
            if (object)
                top->iter = first ? json_object_iter(at) : json_object_iter_next(at, top->iter);
            if (object ? top->iter == NULL : top->index == json_array_size(at)) {
                add_node(c, &s, ir_white(c->graph));
                add_word(c, &s, object ? "}" : "]");
                n--;
                continue;
            }
            add_node(c, &s, first ? ir_white(c->graph) : ir_comma(c->graph));
            if (object) {
                texts t = {0};
                add_string(c, &t, json_object_iter_key(top->iter));
                add_node(c, &s, node_of_texts(c, &t));
                add_node(c, &s, ir_colon(c->graph));
                next = json_object_iter_value(top->iter);
            } else {
                next = json_array_get(at, top->index);
            }
            top->index++;
        }
        if (next == NULL) return ir_seq(c->graph, s.at, s.n);
    }
}

ir_node schema_values(schema_ctx *c, const atom_list *flat, const schema_view *v) {
    const json_t *one = schema_get(c, v, WORD_CONST), *many = schema_get(c, v, WORD_ENUM);
    schema_word w = one != NULL ? WORD_CONST : WORD_ENUM;
    size_t n = one != NULL ? 1 : json_array_size(many);
    if (n > c->limits->enum_max)
        schema_fail(c, INFERD_ETOOLONG, "an enum has more than enum_max, %u, values",
                    c->limits->enum_max);
    texts scalars = {0};
    sequence ways = {0};
    c->failed_at = v->schema; // of a limit that is met here
    c->failed_word = w;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = one != NULL ? one : json_array_get(many, i);
        schema_tick(c);
        schema_truth t = schema_valid_member(c, x, flat, v);
        if (t == TRUTH_UNKNOWN) schema_refuse(c, w, v->schema, "a value cannot be checked");
        if (t == TRUTH_NO) continue;
        if (json_is_object(x) || json_is_array(x))
            add_node(c, &ways, schema_value_node(c, x));
        else
            add_scalar(c, &scalars, x);
    }
    if (scalars.n > 0) add_node(c, &ways, node_of_texts(c, &scalars));
    c->failed_at = NULL;
    return ir_alt(c->graph, ways.at, ways.n);
}
