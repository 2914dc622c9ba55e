/* schema_flat.c - flattening: from demands to a list of bases and splits.
 *
 * A schema is read key by key, in the order in which it is written: $ref and allOf are entered
 * where they stand, the base of an object stands where its properties do, anyOf and its kind stay
 * as splits.  A negation with one alternative is entered too.
 *
 * The path of entered schemas is the stack; a schema that is entered while it is on the path would
 * be defined by itself, and is an error. */
#include "schema.h"
#include "schema_weaken.h"

typedef struct frame {
    atom_list list;      // atoms to enter, if `view` is NULL
    const json_t *array; // schemas of an allOf
    size_t index;
    const schema_view *view; // a schema whose keys are read
    bool base_done;
    schema_atom entered; // the schema or negation that this frame stands for
} frame;

typedef struct flattening {
    schema_ctx *c;
    frame *stack;
    size_t n, capacity;
    atom_list seen;
    atom_list *out;
    bool never;
} flattening;

void atom_list_add(schema_ctx *c, atom_list *l, schema_atom a) {
    l->at = schema_grow_list(c, l->at, l->n, &l->capacity, sizeof *l->at);
    l->at[l->n++] = a;
}

static bool same(const schema_atom *a, const schema_atom *b) {
    return a->schema == b->schema && a->kind == b->kind && a->word == b->word &&
           a->types == b->types && a->name == b->name;
}

static bool holds(const atom_list *l, const schema_atom *a) {
    for (size_t i = 0; i < l->n; i++)
        if (same(&l->at[i], a)) return true;
    return false;
}

bool atom_is_split(const schema_atom *a) {
    switch (a->kind) {
    case ATOM_NOT:
    case ATOM_ANY_OF:
    case ATOM_ONE_OF:
    case ATOM_IF:
    case ATOM_NEEDS:
    case ATOM_OTHER:
        return true;
    default:
        return false;
    }
}

static void emit(flattening *f, schema_atom a) {
    if (!holds(f->out, &a)) atom_list_add(f->c, f->out, a);
}

static frame *push(flattening *f) {
    f->stack = schema_grow_list(f->c, f->stack, f->n, &f->capacity, sizeof *f->stack);
    frame *top = &f->stack[f->n++];
    *top = (frame){0};
    return top;
}

static bool on_path(const flattening *f, const schema_atom *a) {
    for (size_t i = 0; i < f->n; i++)
        if (f->stack[i].entered.schema != NULL && same(&f->stack[i].entered, a)) return true;
    return false;
}

static void enter_not(flattening *f, schema_atom a) {
    if (json_is_false(a.schema)) return;
    split alternatives = {0};
    schema_negate(f->c, a.schema, &alternatives);
    if (alternatives.n == 0) {
        f->never = !schema_negation_softens(f->c, a.schema);
    } else if (alternatives.n == 1) {
        frame *top = push(f);
        top->list = alternatives.at[0];
        top->entered = a;
    } else {
        emit(f, a);
    }
}

/* A schema whose keywords are all in its base. */
static bool is_its_base(const schema_view *v) {
    static const schema_word others[] = {
        WORD_REF,
        WORD_DYNAMIC_REF,
        WORD_RECURSIVE_REF,
        WORD_ALL_OF,
        WORD_ANY_OF,
        WORD_ONE_OF,
        WORD_IF,
        WORD_DEPENDENCIES,
        WORD_NOT,
        WORD_DEPENDENT_REQUIRED,
        WORD_DEPENDENT_SCHEMAS,
    };
    for (size_t i = 0; i < INFERD_COUNT(others); i++)
        if (v->of[others[i]] != NULL) return false;
    return true;
}

/* Whether a schema is demanded and its negation, too. */
static bool contradicts(const flattening *f, const schema_atom *a) {
    schema_atom other = *a;
    other.kind = a->kind == ATOM_NOT ? ATOM_SCHEMA : ATOM_NOT;
    if (holds(&f->seen, &other)) return true;
    if (a->kind != ATOM_NOT || !is_its_base(schema_view_of(f->c, a->schema))) return false;
    other.kind = ATOM_BASE;
    return holds(f->out, &other);
}

static void enter(flattening *f, schema_atom a) {
    if (a.kind != ATOM_SCHEMA && a.kind != ATOM_NOT) {
        emit(f, a);
        return;
    }
    schema_tick(f->c);
    if (json_is_true(a.schema) || json_is_false(a.schema)) {
        if (json_is_true(a.schema) == (a.kind == ATOM_NOT)) f->never = true;
        return;
    }
    if (!json_is_object(a.schema)) {
        if (f->c->weak != NULL) return; // it counts as true, and no gate is above it
        schema_malformed(f->c, WORD_NONE, a.schema, "a schema is an object or a boolean");
    }
    if (on_path(f, &a))
        schema_malformed(f->c, WORD_NONE, a.schema,
                         "the schema refers to itself for the same value");
    if (holds(&f->seen, &a)) return;
    if (contradicts(f, &a)) {
        f->never = true;
        return;
    }
    atom_list_add(f->c, &f->seen, a);
    if (a.kind == ATOM_NOT) {
        enter_not(f, a);
        return;
    }
    frame *top = push(f);
    top->view = schema_view_of(f->c, a.schema);
    top->entered = a;
}

/* ---- keys of a schema ---- */

static void check_schemas(flattening *f, const frame *top, schema_word w, const json_t *value) {
    if (!json_is_array(value))
        schema_malformed(f->c, w, top->view->schema, "is not an array of schemas");
}

static void add_needs(flattening *f, const frame *top, schema_word w, const json_t *value) {
    if (!json_is_object(value)) schema_malformed(f->c, w, top->view->schema, "is not an object");
    const char *key;
    json_t *needs;
    json_object_foreach((json_t *)(uintptr_t)value, key, needs) {
        if (json_is_true(needs) || (json_is_array(needs) && json_array_size(needs) == 0)) continue;
        emit(f, (schema_atom){.schema = top->view->schema,
                              .kind = ATOM_NEEDS,
                              .word = w,
                              .name = schema_intern(f->c, key)});
    }
}

/* unevaluated* sees the properties that $ref, anyOf and so on look at.  Without such neighbours it
 * is additionalProperties (the base reads it so). */
static void check_unevaluated(flattening *f, const frame *top, schema_word w, const json_t *value) {
    static const schema_word neighbours[] = {
        WORD_REF,    WORD_DYNAMIC_REF, WORD_RECURSIVE_REF,     WORD_ALL_OF, WORD_ANY_OF,
        WORD_ONE_OF, WORD_IF,          WORD_DEPENDENT_SCHEMAS, WORD_NOT,    WORD_CONTAINS,
    };
    if (json_is_true(value)) return;
    for (size_t i = 0; i < INFERD_COUNT(neighbours); i++)
        if (top->view->of[neighbours[i]] != NULL) schema_refuse(f->c, w, top->view->schema, NULL);
    if (w == WORD_UNEVALUATED_ITEMS) schema_refuse(f->c, w, top->view->schema, NULL);
}

static void add_base(flattening *f, frame *top) {
    if (top->base_done) return;
    top->base_done = true;
    emit(f, (schema_atom){.schema = top->view->schema, .kind = ATOM_BASE});
}

static void read_ref(flattening *f, frame *top, schema_word w, const json_t *value) {
    const json_t *schema = top->view->schema;
    if (!json_is_string(value)) schema_malformed(f->c, w, schema, "is not a string");
    /* The target of the other two depends on the way to it, where there is more than one resource.
     */
    if (w != WORD_REF && f->c->has_resources) schema_refuse(f->c, w, schema, NULL);
    enter(f, atom_of(schema_resolve(f->c, schema, w, json_string_value(value))));
}

/* The place of a base is that of the first keyword about names of properties. */
static bool names_properties(schema_word w) {
    return w == WORD_PROPERTIES || w == WORD_PATTERN_PROPERTIES || w == WORD_ADDITIONAL_PROPERTIES;
}
static bool any_names(const schema_view *v) {
    return v->of[WORD_PROPERTIES] != NULL || v->of[WORD_PATTERN_PROPERTIES] != NULL ||
           v->of[WORD_ADDITIONAL_PROPERTIES] != NULL;
}

static void read_key(flattening *f, frame *top, schema_word w) {
    const json_t *schema = top->view->schema, *value = schema_get(f->c, top->view, w);
    if (value == NULL) return;
    switch (w) {
    case WORD_NONE:
    case WORD_THEN:
    case WORD_ELSE:
        return;
    case WORD_REF:
    case WORD_RECURSIVE_REF:
    case WORD_DYNAMIC_REF:
        read_ref(f, top, w, value);
        return;
    case WORD_ALL_OF:
        check_schemas(f, top, w, value);
        push(f)->array = value;
        return;
    case WORD_ANY_OF:
    case WORD_ONE_OF:
        check_schemas(f, top, w, value);
        emit(f,
             (schema_atom){.schema = schema, .kind = w == WORD_ANY_OF ? ATOM_ANY_OF : ATOM_ONE_OF});
        return;
    case WORD_IF:
        if (top->view->of[WORD_THEN] != NULL || top->view->of[WORD_ELSE] != NULL)
            emit(f, (schema_atom){.schema = schema, .kind = ATOM_IF});
        return;
    case WORD_NOT:
        enter(f, (schema_atom){.schema = value, .kind = ATOM_NOT});
        return;
    case WORD_DEPENDENCIES:
    case WORD_DEPENDENT_REQUIRED:
    case WORD_DEPENDENT_SCHEMAS:
        add_needs(f, top, w, value);
        return;
    case WORD_DISALLOW:
    case WORD_DIVISIBLE_BY:
    case WORD_EXTENDS:
        if (f->c->draft == 3) schema_refuse(f->c, w, schema, "a keyword of draft 3 only");
        return;
    case WORD_UNEVALUATED_ITEMS:
    case WORD_UNEVALUATED_PROPERTIES:
        check_unevaluated(f, top, w, value);
        add_base(f, top);
        return;
    default:
        if (names_properties(w) || !any_names(top->view)) add_base(f, top);
        return;
    }
}

/* Moves on by one step; false: the frame has ended. */
static bool step(flattening *f, frame *top) {
    if (top->array != NULL) {
        const json_t *next = json_array_get(top->array, top->index++);
        if (next != NULL) enter(f, atom_of(next));
        return next != NULL;
    }
    if (top->view == NULL) {
        if (top->index == top->list.n) return false;
        enter(f, top->list.at[top->index++]);
        return true;
    }
    if (top->index == top->view->n_words) return false;
    read_key(f, top, (schema_word)top->view->order[top->index++]);
    return true;
}

bool schema_flatten(schema_ctx *c, const atom_list *in, atom_list *out) {
    flattening f = {.c = c, .out = out};
    push(&f)->list = *in;
    while (f.n > 0 && !f.never)
        if (!step(&f, &f.stack[f.n - 1])) f.n--;
    return !f.never && schema_types_left(c, out) != 0;
}

/* ---- what types remain ---- */

static uint32_t types_of_values(schema_ctx *c, const schema_view *v) {
    const json_t *one = schema_get(c, v, WORD_CONST), *many = schema_get(c, v, WORD_ENUM);
    uint32_t types = TYPE_ALL;
    if (one != NULL) types = schema_type_of(one);
    if (many == NULL) return types;
    if (!json_is_array(many)) schema_malformed(c, WORD_ENUM, v->schema, "is not an array");
    uint32_t of_many = 0;
    for (size_t i = 0; i < json_array_size(many); i++)
        of_many |= schema_type_of(json_array_get(many, i));
    return types & of_many;
}

uint32_t schema_types_left(schema_ctx *c, const atom_list *flat) {
    uint32_t types = TYPE_ALL;
    for (size_t i = 0; i < flat->n && types != 0; i++) {
        const schema_atom *a = &flat->at[i];
        if (a->kind == ATOM_TYPES) types &= a->types;
        if (a->kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, a->schema);
        types &= schema_types(c, v) & types_of_values(c, v);
    }
    return types;
}
