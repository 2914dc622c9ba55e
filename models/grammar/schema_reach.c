/* schema_reach.c - which schemas the root reaches, and by which keywords; for schema_weaken.c.
 *
 * A walk over views from the root, through keywords and references.  On the way it looks at the
 * form of each keyword's value, so that all that is malformed is found at once.
 * Thread: that of its schema_ctx. */
#include "schema.h"
#include "schema_weaken.h"

typedef struct walk {
    schema_ctx *c;
    const json_t **stack;
    size_t n, capacity, faults_capacity;
} walk;

static void add_fault(walk *w, const schema_fault *f) {
    schema_reach *r = w->c->reach;
    r->faults = schema_grow(w->c, r->faults, r->n_faults, &w->faults_capacity, sizeof *r->faults);
    r->faults[r->n_faults++] = *f;
}

/* ---- the form of a keyword's value ---- */

static bool all_strings(const json_t *array) {
    for (size_t i = 0; i < json_array_size(array); i++)
        if (!json_is_string(json_array_get(array, i))) return false;
    return json_is_array(array);
}

static bool is_schema(const json_t *x) {
    return json_is_object(x) || json_is_boolean(x);
}

static bool are_needs(const json_t *map) {
    const char *name;
    json_t *needs;
    json_object_foreach((json_t *)(uintptr_t)map, name, needs) {
        if (!json_is_string(needs) && !all_strings(needs) && !is_schema(needs)) return false;
    }
    return json_is_object(map);
}

/* Automata are kept, so that looking at them costs nothing if they are used. */
static void look_at_string(schema_ctx *c, const schema_view *v, schema_word w) {
    bytes text = {json_string_value(v->of[w]), json_string_length(v->of[w])};
    if (text.p == NULL) schema_malformed(c, w, v->schema, "is not a string");
    if ((schema_types(c, v) & TYPE_STRING) == 0) return;
    if (w == WORD_PATTERN)
        schema_pattern(c, v->schema, w, text);
    else
        schema_format(c, v->schema, text.p);
}

/* Fails quietly. */
static void look_at(schema_ctx *c, const schema_view *v, schema_word w) {
    const char *ref = json_string_value(v->of[w]);
    switch (w) {
    case WORD_FORMAT:
    case WORD_PATTERN:
        look_at_string(c, v, w);
        return;
    case WORD_TYPE:
        schema_types(c, v);
        return;
    case WORD_UNIQUE_ITEMS:
        schema_flag(c, v, w);
        return;
    case WORD_REF:
    case WORD_RECURSIVE_REF:
    case WORD_DYNAMIC_REF:
        if (ref == NULL || (w != WORD_REF && c->has_resources))
            schema_refuse(c, w, v->schema, NULL);
        schema_resolve(c, v->schema, w, ref);
        return;
    default:
        schema_count(c, v, w, 0);
        return;
    }
}

static bool succeeds(schema_ctx *c, const schema_view *v, schema_word w) {
    jmp_buf here;
    if (setjmp(here) != 0) {
        c->quiet = NULL;
        return false;
    }
    c->quiet = &here;
    look_at(c, v, w);
    c->quiet = NULL;
    return true;
}

static bool is_well_formed(schema_ctx *c, const schema_view *v, schema_word w) {
    const json_t *x = v->of[w];
    switch (w) {
    case WORD_MINIMUM:
    case WORD_MAXIMUM:
        return json_is_number(x);
    case WORD_EXCLUSIVE_MINIMUM:
    case WORD_EXCLUSIVE_MAXIMUM:
        return json_is_number(x) || json_is_boolean(x);
    case WORD_MULTIPLE_OF:
        return json_is_number(x) && json_number_value(x) > 0;
    case WORD_ENUM:
        return json_is_array(x) && json_array_size(x) <= c->limits->enum_max;
    case WORD_REQUIRED:
        return all_strings(x);
    case WORD_PROPERTIES:
    case WORD_PATTERN_PROPERTIES:
    case WORD_DEPENDENT_SCHEMAS:
        return json_is_object(x);
    case WORD_DEPENDENCIES:
    case WORD_DEPENDENT_REQUIRED:
        return are_needs(x);
    case WORD_ALL_OF:
    case WORD_ANY_OF:
    case WORD_ONE_OF:
    case WORD_PREFIX_ITEMS:
        return json_is_array(x);
    case WORD_ITEMS:
        return json_is_array(x) ? v->of[WORD_PREFIX_ITEMS] == NULL : is_schema(x);
    case WORD_ADDITIONAL_ITEMS:
    case WORD_ADDITIONAL_PROPERTIES:
    case WORD_UNEVALUATED_ITEMS:
    case WORD_UNEVALUATED_PROPERTIES:
    case WORD_CONTAINS:
    case WORD_PROPERTY_NAMES:
    case WORD_NOT:
    case WORD_IF:
    case WORD_THEN:
    case WORD_ELSE:
        return is_schema(x);
    case WORD_DISALLOW:
    case WORD_DIVISIBLE_BY:
    case WORD_EXTENDS:
        return c->draft != 3;
    case WORD_NONE:
    case WORD_CONST:
    case WORD_COUNT:
        return true;
    default:
        return succeeds(c, v, w);
    }
}

/* ---- the walk ---- */

static void push(walk *w, const json_t *schema) {
    w->stack = schema_grow(w->c, w->stack, w->n, &w->capacity, sizeof *w->stack);
    w->stack[w->n++] = schema;
}

/* What is below a keyword; key or index: where in its value. */
static void reach(walk *w, const schema_view *v, schema_word word, const json_t *to,
                  const char *key, size_t index) {
    schema_ctx *c = w->c;
    if (json_is_boolean(to)) return;
    if (!json_is_object(to)) {
        add_fault(w, &(schema_fault){v->schema, word, true, key, index});
        return;
    }
    void **at = schema_table_at(c, c->reach->edges, &to, sizeof to, true);
    if (*at == NULL) push(w, to);
    schema_edge *e = schema_take(c, sizeof *e);
    *e = (schema_edge){v->schema, word, *at};
    *at = e;
}

static void reach_list(walk *w, const schema_view *v, schema_word word, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        reach(w, v, word, json_array_get(list, i), NULL, i);
}

static void reach_map(walk *w, const schema_view *v, schema_word word, const json_t *map) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, key, value) {
        bool names = json_is_string(value) || json_is_array(value); // that a property needs
        if (word == WORD_DEPENDENCIES && names) continue;
        reach(w, v, word, value, key, SIZE_MAX);
    }
}

static void reach_below(walk *w, const schema_view *v, schema_word word) {
    const json_t *x = v->of[word];
    switch (word) {
    case WORD_REF:
    case WORD_RECURSIVE_REF:
    case WORD_DYNAMIC_REF:
        x = schema_resolve(w->c, v->schema, word, json_string_value(x));
        break;
    case WORD_ALL_OF:
    case WORD_ANY_OF:
    case WORD_ONE_OF:
    case WORD_PREFIX_ITEMS:
        reach_list(w, v, word, x);
        return;
    case WORD_PROPERTIES:
    case WORD_PATTERN_PROPERTIES:
    case WORD_DEPENDENT_SCHEMAS:
    case WORD_DEPENDENCIES:
        reach_map(w, v, word, x);
        return;
    case WORD_ITEMS:
        if (!json_is_array(x)) break;
        reach_list(w, v, word, x);
        return;
    case WORD_THEN:
    case WORD_ELSE:
        if (v->of[WORD_IF] == NULL) return;
        break;
    case WORD_ADDITIONAL_ITEMS:
    case WORD_ADDITIONAL_PROPERTIES:
    case WORD_UNEVALUATED_ITEMS:
    case WORD_UNEVALUATED_PROPERTIES:
    case WORD_CONTAINS:
    case WORD_PROPERTY_NAMES:
    case WORD_NOT:
    case WORD_IF:
        break;
    default:
        return;
    }
    reach(w, v, word, x, NULL, SIZE_MAX);
}

void schema_reach_build(schema_ctx *c) {
    walk w = {.c = c};
    c->reach = schema_take(c, sizeof *c->reach);
    c->reach->edges = schema_table_create(c);
    if (!json_is_object(c->root)) return;
    void **at = schema_table_at(c, c->reach->edges, &c->root, sizeof c->root, true);
    *at = schema_take(c, sizeof(schema_edge)); // from nowhere
    push(&w, c->root);
    while (w.n > 0) {
        const schema_view *v = schema_view_of(c, w.stack[--w.n]);
        for (uint32_t i = 0; i < v->n_words; i++) {
            schema_word word = (schema_word)v->order[i];
            schema_tick(c);
            if (is_well_formed(c, v, word))
                reach_below(&w, v, word);
            else
                add_fault(&w, &(schema_fault){v->schema, word, false, NULL, SIZE_MAX});
        }
    }
}

bool schema_is_reached(schema_ctx *c, const json_t *schema) {
    return schema_table_at(c, c->reach->edges, &schema, sizeof schema, false) != NULL;
}

const schema_edge *schema_edges_to(schema_ctx *c, const json_t *schema) {
    void **at = schema_table_at(c, c->reach->edges, &schema, sizeof schema, false);
    return at == NULL ? NULL : *at;
}
