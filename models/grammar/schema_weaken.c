/* schema_weaken.c - schemas that cannot be enforced become weaker ones (grammar_schema_kind).
 *
 *     scan      before goals are made: values of keywords that are malformed, references that lead
 *               nowhere, patterns and formats that are not known (schema_reach.c)
 *     soften    while goals are made: the compiler goes on as if the keyword were not there
 *     failure   anything else that cannot be enforced, at the place that the failure names
 *
 * What is left out is not in views (schema_words.c).  Behind `soften` and a failure the schema is
 * compiled again, until nothing fails; all attempts have one deadline.  When time is up, or after
 * WEAKEN_ATTEMPTS_MAX, the schema becomes that of any object.
 *
 * Always: what is valid for the schema is valid for the weaker one.  Two things make that hard:
 *
 *     gates     a schema below `not`, `if`, oneOf, or contains with maxContains must not become
 *               wider.  These keywords are weakened first: oneOf becomes anyOf, the others go
 *     leavings  a keyword may apply to what others leave, as additionalProperties to what
 *               properties leave: it goes with them
 *
 * Thread: that of its schema_ctx. */
#include "inferd/clock.h"
#include "schema.h"
#include "schema_weaken.h"

enum { WEAKEN_ATTEMPTS_MAX = 64 };

/* ---- what is left out ---- */

typedef enum leaving { LEFT_IN, LEFT_LOOSE, LEFT_OUT } leaving; // loose: oneOf is anyOf

static void **leaving_at(schema_ctx *c, const json_t *schema, schema_word w, bool add) {
    const void *key[2] = {schema, (const void *)(uintptr_t)w};
    return schema_table_at(c, c->left_out, key, sizeof key, add);
}

static leaving leaving_of(schema_ctx *c, const json_t *schema, schema_word w) {
    void **at = leaving_at(c, schema, w, false);
    return at == NULL ? LEFT_IN : (leaving)(uintptr_t)*at;
}

schema_word schema_word_left(schema_ctx *c, const json_t *schema, schema_word w) {
    if (c->weak == NULL) return w;
    leaving how = leaving_of(c, schema, w);
    return how == LEFT_OUT ? WORD_NONE : how == LEFT_LOOSE ? WORD_ANY_OF : w;
}

static void note(schema_ctx *c, weak_words *l, const json_t *schema, schema_word w) {
    if (l->n == l->capacity) {
        size_t capacity = size_max(2 * l->capacity, 16), n_bytes;
        weak_word *grown = NULL;
        if (size_mul(capacity, sizeof *grown, &n_bytes)) grown = realloc(l->at, n_bytes);
        if (grown == NULL) schema_no_memory(c);
        l->at = grown;
        l->capacity = capacity;
    }
    l->at[l->n++] = (weak_word){schema, w, false};
}

/* Notes it and what must go with it.  False: it has gone before. */
static bool leave_one(schema_ctx *c, const json_t *schema, schema_word w, leaving how) {
    weak_words *left = &c->weak->left;
    if (leaving_of(c, schema, w) >= how || json_object_get(schema, schema_word_name(w)) == NULL)
        return false;
    if (leaving_of(c, schema, w) == LEFT_IN) note(c, left, schema, w);
    for (size_t i = 0; i < left->n; i++)
        if (left->at[i].schema == schema && left->at[i].word == w)
            left->at[i].loose = how == LEFT_LOOSE;
    *leaving_at(c, schema, w, true) = (void *)(uintptr_t)how;
    c->weak->n_changes++;
    return true;
}

/* Keywords that would say more about a value without `w`. */
static void leave_dependents(schema_ctx *c, const json_t *schema, schema_word w) {
    static const struct {
        schema_word of, also;
    } dependents[] = {
        {WORD_PROPERTIES, WORD_ADDITIONAL_PROPERTIES},
        {WORD_PATTERN_PROPERTIES, WORD_ADDITIONAL_PROPERTIES},
        {WORD_PREFIX_ITEMS, WORD_ITEMS},
        {WORD_PREFIX_ITEMS, WORD_ADDITIONAL_ITEMS},
        {WORD_ITEMS, WORD_ADDITIONAL_ITEMS},
        {WORD_MIN_CONTAINS, WORD_CONTAINS},
    };
    for (size_t i = 0; i < INFERD_COUNT(dependents); i++)
        if (dependents[i].of == w) leave_one(c, schema, dependents[i].also, LEFT_OUT);
    static const schema_word evaluating[] = {
        WORD_PROPERTIES,
        WORD_PATTERN_PROPERTIES,
        WORD_ADDITIONAL_PROPERTIES,
        WORD_ITEMS,
        WORD_PREFIX_ITEMS,
        WORD_ADDITIONAL_ITEMS,
        WORD_CONTAINS,
        WORD_REF,
        WORD_DYNAMIC_REF,
        WORD_ALL_OF,
        WORD_ANY_OF,
        WORD_ONE_OF,
        WORD_IF,
        WORD_THEN,
        WORD_ELSE,
        WORD_NOT,
        WORD_DEPENDENT_SCHEMAS,
        WORD_RECURSIVE_REF,
        WORD_DEPENDENCIES,
    };
    for (size_t i = 0; i < INFERD_COUNT(evaluating); i++) {
        if (evaluating[i] != w) continue;
        leave_one(c, schema, WORD_UNEVALUATED_ITEMS, LEFT_OUT);
        leave_one(c, schema, WORD_UNEVALUATED_PROPERTIES, LEFT_OUT);
    }
}

static bool leave(schema_ctx *c, const json_t *schema, schema_word w, leaving how) {
    bool loose = leaving_of(c, schema, WORD_ONE_OF) == LEFT_LOOSE;
    if (w == WORD_ANY_OF && loose) w = WORD_ONE_OF; // it is the other's
    if (how == LEFT_LOOSE && json_object_get(schema, "anyOf") != NULL) how = LEFT_OUT;
    if (!leave_one(c, schema, w, how)) return false;
    leave_dependents(c, schema, w);
    return true;
}

/* ---- gates ---- */

static bool leave_gate(schema_ctx *c, const json_t *schema, schema_word w) {
    switch (w) {
    case WORD_NOT:
    case WORD_IF:
        return leave(c, schema, w, LEFT_OUT);
    case WORD_ONE_OF:
        return leave(c, schema, w, LEFT_LOOSE);
    case WORD_CONTAINS:
        return json_object_get(schema, "maxContains") != NULL && leave(c, schema, w, LEFT_OUT);
    default:
        return false;
    }
}

typedef struct climb {
    schema_table *seen;
    const json_t **stack;
    size_t n, capacity;
} climb;

static void push(schema_ctx *c, climb *w, const json_t *schema) {
    if (w->seen == NULL) w->seen = schema_table_create(c);
    void **known = schema_table_at(c, w->seen, &schema, sizeof schema, true);
    if (*known != NULL) return;
    *known = w;
    w->stack = schema_grow(c, w->stack, w->n, &w->capacity, sizeof *w->stack);
    w->stack[w->n++] = schema;
}

/* All gates above the schemas that were pushed; false: there is none left. */
static bool leave_gates(schema_ctx *c, climb *w) {
    bool any = false;
    while (w->n > 0) {
        const json_t *at = w->stack[--w->n];
        for (const schema_edge *e = schema_edges_to(c, at); e != NULL; e = e->next) {
            schema_tick(c);
            if (e->from == NULL) continue; // it is the root
            any |= leave_gate(c, e->from, e->word);
            push(c, w, e->from);
        }
    }
    return any;
}

/* ---- weakening ---- */

/* A keyword, or all that are left, or the keyword above.  No gate is above the schema. */
static void leave_word(schema_ctx *c, const json_t *schema, schema_word w) {
    if (w != WORD_NONE && leaving_of(c, schema, w) == LEFT_OUT) return; // just now
    if (w == WORD_ONE_OF && leave(c, schema, w, LEFT_LOOSE)) return;
    if (w != WORD_NONE && leave(c, schema, w, LEFT_OUT)) return;
    const char *key;
    json_t *value;
    bool any = false;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        schema_word one = schema_word_of(key);
        if (one != WORD_NONE) any |= leave(c, schema, one, LEFT_OUT);
    }
    for (const schema_edge *e = schema_edges_to(c, schema); e != NULL && !any; e = e->next)
        any = e->from != NULL && leave(c, e->from, e->word, LEFT_OUT);
}

/* Views of an attempt that has failed may be half made, and others have what is left out now. */
static void renew_views(schema_ctx *c) {
    c->views = schema_table_create(c);
    memset(c->recent, 0, sizeof c->recent);
}

/* Gates first: perhaps they suffice.  A part that is no schema counts as true. */
static bool weaken_faults(schema_ctx *c) {
    const schema_reach *r = c->reach;
    uint32_t n_before = c->weak->n_changes;
    bool any = false;
    climb above = {0};
    for (size_t i = 0; i < r->n_faults; i++) {
        const schema_fault *f = &r->faults[i];
        if (f->is_part) any |= leave_gate(c, f->schema, f->word);
        push(c, &above, f->schema);
    }
    any |= leave_gates(c, &above);
    for (size_t i = 0; i < r->n_faults && !any; i++)
        if (!r->faults[i].is_part) leave_word(c, r->faults[i].schema, r->faults[i].word);
    return c->weak->n_changes != n_before;
}

void schema_weaken_scan(schema_ctx *c) {
    do {
        renew_views(c);
        schema_reach_build(c);
    } while (weaken_faults(c));
}

bool schema_soften(schema_ctx *c, schema_word w, const json_t *at) {
    if (c->weak == NULL || c->quiet != NULL) return false;
    note(c, &c->weak->soft, at, w);
    return true;
}

void schema_soften_split(schema_ctx *c, const schema_atom *a) {
    bool under_not = a->kind == ATOM_NOT;
    if (c->weak == NULL) return;
    if (a->kind == ATOM_IF) schema_soften(c, WORD_IF, a->schema);
    const schema_edge *e = a->kind == ATOM_OTHER ? schema_edges_to(c, a->schema) : NULL;
    for (; e != NULL; e = e->next) under_not |= e->word == WORD_NOT;
    if (under_not) schema_soften(c, WORD_NONE, a->schema);
}

/* The schema that a place is in or stands for, and its keyword there. */
static const json_t *schema_around(schema_ctx *c, const json_t *at, schema_word *w) {
    const char *key = NULL;
    at = schema_original(c, at);
    while (at != NULL && !schema_is_reached(c, at)) {
        at = schema_parent(c, at, &key);
        *w = key != NULL ? schema_word_of(key) : WORD_NONE;
    }
    if (at == NULL) *w = WORD_NONE;
    return at != NULL ? at : c->root;
}

/* Where an attempt has failed that does not say where: in what was planned. */
static const json_t *planned_schema(const schema_ctx *c) {
    const json_t *found = c->root;
    for (size_t i = 0; c->planned != NULL && i < c->planned->atoms.n; i++)
        if (c->planned->atoms.at[i].schema != NULL) found = c->planned->atoms.at[i].schema;
    return found;
}

/* What the attempt went on without, or what it failed at.  False: nothing is left. */
static bool weaken(schema_ctx *c, bool failed) {
    weak_words *soft = &c->weak->soft;
    uint32_t n_before = c->weak->n_changes;
    /* Behind a soft one a failure may be a consequence: if not, it comes again. */
    if (failed && soft->n == 0 && c->failed_at != NULL)
        note(c, soft, c->failed_at, c->failed_word);
    else if (failed && soft->n == 0)
        note(c, soft, planned_schema(c), WORD_NONE);
    climb above = {0};
    for (size_t i = 0; i < soft->n; i++) {
        weak_word *one = &soft->at[i];
        one->schema = schema_around(c, one->schema, &one->word);
        push(c, &above, one->schema);
    }
    bool any = leave_gates(c, &above);
    for (size_t i = 0; i < soft->n && !any; i++)
        leave_word(c, soft->at[i].schema, soft->at[i].word);
    return c->weak->n_changes != n_before;
}

/* ---- the report ---- */

static void report(schema_ctx *c, const json_t *schema, schema_word w, const schema_fault *part) {
    buf pointer;
    buf_init(&pointer, 0);
    schema_pointer(c, schema, &pointer);
    schema_pointer_add(schema_word_name(w), &pointer);
    if (part != NULL && part->key != NULL)
        schema_pointer_add(part->key, &pointer);
    else if (part != NULL && part->index != SIZE_MAX)
        buf_add_format(&pointer, "/%zu", part->index);
    bool ok = !pointer.failed &&
              json_array_append_new(c->kind->weakened, json_string(buf_cstr(&pointer))) == 0;
    buf_deinit(&pointer);
    if (!ok) schema_no_memory(c);
}

static void report_all(schema_ctx *c) {
    const weak_words *left = &c->weak->left;
    for (size_t i = 0; i < left->n; i++) report(c, left->at[i].schema, left->at[i].word, NULL);
    for (size_t i = 0; i < c->reach->n_faults; i++) {
        const schema_fault *f = &c->reach->faults[i];
        bool loose = f->word == WORD_ANY_OF && leaving_of(c, f->schema, WORD_ONE_OF) == LEFT_LOOSE;
        report(c, f->schema, loose ? WORD_ONE_OF : f->word, f);
    }
}

/* ---- attempts ---- */

void schema_weaken_begin(schema_ctx *c) {
    c->left_out = schema_table_create(c);
    for (size_t i = 0; i < c->weak->left.n; i++) {
        const weak_word *l = &c->weak->left.at[i];
        leaving how = l->loose ? LEFT_LOOSE : LEFT_OUT;
        *leaving_at(c, l->schema, l->word, true) = (void *)(uintptr_t)how;
    }
    c->weak->soft.n = 0;
}

/* Does the keyword say which types a value has? */
static bool says_type(schema_word w) {
    switch (w) {
    case WORD_TYPE:
    case WORD_ENUM:
    case WORD_CONST:
    case WORD_REF:
    case WORD_RECURSIVE_REF:
    case WORD_DYNAMIC_REF:
    case WORD_ALL_OF:
    case WORD_ANY_OF:
    case WORD_ONE_OF:
        return true;
    default:
        return false;
    }
}

bool schema_root_lost_type(schema_ctx *c) {
    const weak_words *left = &c->weak->left;
    bool any = false, lost = false;
    for (size_t i = 0; i < left->n; i++) {
        if (left->at[i].schema != c->root) continue;
        any = true;
        lost |= says_type(left->at[i].word);
    }
    if (!any) return false;
    const schema_view *v = schema_view_of(c, c->root);
    for (uint32_t i = 0; i < v->n_words; i++)
        if (says_type((schema_word)v->order[i])) return false;
    return lost || v->n_words == 0;
}

weaken_next schema_weaken(schema_ctx *c, inferd_status s) {
    schema_weakening *w = c->weak;
    if (s == INFERD_ENOMEM) return WEAKEN_NO_MEMORY;
    if (setjmp(c->exit) != 0) return c->status == INFERD_ENOMEM ? WEAKEN_NO_MEMORY : WEAKEN_ALL;
    c->quiet = NULL;
    c->wide = false;
    c->n_scratch = 0;
    if (s == INFERD_OK && w->soft.n == 0) {
        report_all(c);
        return WEAKEN_DONE;
    }
    bool late = ++w->n_attempts >= WEAKEN_ATTEMPTS_MAX || clock_thread_us() >= w->deadline_us;
    if (late || !c->has_places) return WEAKEN_ALL;
    renew_views(c);
    schema_reach_build(c);
    return weaken(c, s != INFERD_OK) ? WEAKEN_AGAIN : WEAKEN_ALL;
}

void schema_weakening_deinit(schema_weakening *w) {
    free(w->left.at);
    free(w->soft.at);
}
