/* schema.c - a JSON Schema becomes a grammar (see schema.h for how).
 *
 * Goals are planned and finished depth-first on a stack of their own: a goal is planned when it is
 * met first, its children are finished, then it is.  A child that is open already is a recursion
 * and becomes a reference to a rule. */
#include "schema.h"
#include "schema_weaken.h"

#include "inferd/clock.h"

/* ---- goals ---- */

static goal *new_goal(schema_ctx *c, goal_id *id) {
    if (c->n_goals >= c->limits->nodes_max)
        schema_fail(c, INFERD_ETOOLONG, "the schema needs more than nodes_max, %u, combinations",
                    c->limits->nodes_max);
    c->goals = schema_grow(c, c->goals, c->n_goals, &c->goals_capacity, sizeof *c->goals);
    goal *g = schema_take(c, sizeof *g);
    *id = (goal_id)c->n_goals;
    c->goals[c->n_goals++] = g;
    return g;
}

/* The goal of flattened atoms: the same for the same list. */
static goal_id goal_of_flat(schema_ctx *c, const atom_list *flat) {
    uint64_t *key = NULL;
    size_t n = 0, capacity = 0;
    for (size_t i = 0; i < flat->n; i++) {
        const schema_atom *a = &flat->at[i];
        uint64_t words[3] = {(uint64_t)(uintptr_t)a->schema, (uint64_t)(uintptr_t)a->name,
                             (uint64_t)a->kind << 32 | (uint64_t)a->word << 16 | a->types};
        for (size_t k = 0; k < INFERD_COUNT(words); k++) {
            key = schema_grow_list(c, key, n, &capacity, sizeof *key);
            key[n++] = words[k];
        }
    }
    void **known = schema_table_at(c, c->goals_by_atoms, key, n * sizeof *key, true);
    if (*known == NULL) {
        goal_id id;
        goal *g = new_goal(c, &id);
        g->atoms.at = schema_take_array(c, flat->n, sizeof *flat->at);
        g->atoms.n = g->atoms.capacity = flat->n;
        if (flat->n > 0) memcpy(g->atoms.at, flat->at, flat->n * sizeof *flat->at);
        *known = (void *)(uintptr_t)id;
    }
    return (goal_id)(uintptr_t)*known;
}

/* Whether an alternative is not ruled out at first sight: by types, and by names of properties. */
static bool is_open(schema_ctx *c, const atom_list *flat, uint32_t types, const atom_list *way) {
    for (size_t i = 0; i < way->n; i++) {
        const schema_atom *a = &way->at[i];
        if (a->kind == ATOM_TYPES && (a->types & types) == 0) return false;
        if (a->kind != ATOM_LACKS && a->kind != ATOM_HAS) continue;
        for (size_t k = 0; k < flat->n; k++) {
            const schema_atom *b = &flat->at[k];
            if (b->name == a->name && b->kind != a->kind &&
                (b->kind == ATOM_LACKS || b->kind == ATOM_HAS) && types == TYPE_OBJECT)
                return false;
            if (a->kind == ATOM_LACKS && b->kind == ATOM_BASE && types == TYPE_OBJECT &&
                schema_requires(c, schema_view_of(c, b->schema), a->name))
                return false;
        }
    }
    return true;
}

/* Replaces negations and needs with one alternative left by it, so that they do not multiply cases.
 * False: one has none left.  `changed`: the list has to be flattened again. */
static bool settle(schema_ctx *c, const atom_list *flat, atom_list *out, bool *changed) {
    uint32_t types = schema_types_left(c, flat);
    *changed = false;
    for (size_t i = 0; i < flat->n; i++) {
        const schema_atom *a = &flat->at[i];
        split s = {0};
        size_t n_open = 0, last = 0;
        bool few = a->kind == ATOM_NOT || a->kind == ATOM_NEEDS;
        if (a->kind == ATOM_NOT) schema_negate(c, a->schema, &s);
        if (a->kind == ATOM_NEEDS) schema_split(c, a, flat, &s);
        for (size_t k = 0; k < s.n; k++) {
            if (!is_open(c, flat, types, &s.at[k])) continue;
            n_open++;
            last = k;
        }
        if (!few || n_open > 1) {
            atom_list_add(c, out, *a);
            continue;
        }
        if (n_open == 0 && a->kind == ATOM_NOT && schema_negation_softens(c, a->schema)) continue;
        if (n_open == 0) return false;
        *changed = true;
        for (size_t k = 0; k < s.at[last].n; k++) atom_list_add(c, out, s.at[last].at[k]);
    }
    return true;
}

static bool flatten_and_settle(schema_ctx *c, const atom_list *atoms, atom_list *flat) {
    bool changed = true;
    if (!schema_flatten(c, atoms, flat)) return false;
    while (changed) {
        atom_list settled = {0};
        if (!settle(c, flat, &settled, &changed)) return false;
        if (!changed) return true;
        *flat = (atom_list){0};
        if (!schema_flatten(c, &settled, flat)) return false;
    }
    return true;
}

goal_id schema_goal(schema_ctx *c, const atom_list *atoms) {
    atom_list flat = {0};
    void **single = NULL;
    schema_tick(c);
    if (atoms->n == 1 && atoms->at[0].kind == ATOM_SCHEMA && json_is_object(atoms->at[0].schema)) {
        const json_t *schema = atoms->at[0].schema;
        single = schema_table_at(c, c->single_goals, &schema, sizeof schema, false);
        if (single != NULL) return (goal_id)(uintptr_t)*single - 1;
    }
    goal_id id = GOAL_NEVER;
    if (flatten_and_settle(c, atoms, &flat) && (flat.n < 2 || !schema_apart(c, &flat, 2)))
        id = goal_of_flat(c, &flat);
    if (atoms->n == 1 && atoms->at[0].kind == ATOM_SCHEMA && json_is_object(atoms->at[0].schema)) {
        const json_t *schema = atoms->at[0].schema;
        single = schema_table_at(c, c->single_goals, &schema, sizeof schema, true);
        *single = (void *)(uintptr_t)(id + 1);
    }
    return id;
}

void schema_goal_child(schema_ctx *c, goal *g, goal_id child) {
    g->children =
        schema_grow(c, g->children, g->n_children, &g->children_capacity, sizeof *g->children);
    g->children[g->n_children++] = child;
}

ir_node schema_goal_node(schema_ctx *c, goal_id id) {
    goal *g = c->goals[id];
    if (g->state == GOAL_DONE && (!g->has_rule || g->node == IR_NEVER)) return g->node;
    if (!g->has_rule) {
        g->rule = ir_rule(c->graph);
        g->has_rule = true;
    }
    return ir_ref(c->graph, g->rule);
}

/* ---- plans ---- */

static void plan_alternatives(schema_ctx *c, goal *g, size_t at) {
    split s;
    c->dropped_word = WORD_NONE;
    schema_split(c, &g->atoms.at[at], &g->atoms, &s);
    g->alternatives = true;
    for (size_t i = 0; i < s.n; i++) {
        atom_list atoms = {0};
        for (size_t k = 0; k < g->atoms.n; k++) {
            if (k < at && atom_is_split(&g->atoms.at[k])) continue; // implied
            if (k != at) {
                atom_list_add(c, &atoms, g->atoms.at[k]);
                continue;
            }
            for (size_t m = 0; m < s.at[i].n; m++) atom_list_add(c, &atoms, s.at[i].at[m]);
        }
        goal_id child = schema_goal(c, &atoms);
        if (child != GOAL_NEVER) {
            schema_goal_child(c, g, child);
        } else if (c->dropped_word != WORD_NONE) {
            /* Nothing is left, perhaps because a violation could not be expressed. */
            schema_word w = g->atoms.at[at].kind == ATOM_ONE_OF ? WORD_ONE_OF : WORD_NOT;
            char text[160];
            snprintf(text, sizeof text, "a value that violates \"%s\" cannot be described",
                     schema_word_name(c->dropped_word));
            if (g->atoms.at[at].kind == ATOM_ONE_OF)
                schema_refuse(c, w, g->atoms.at[at].schema, text);
        }
    }
    if (g->n_children == 0 && c->dropped_word != WORD_NONE)
        schema_soften_split(c, &g->atoms.at[at]);
}

static void add_scalar(schema_ctx *c, goal *g, ir_node node) {
    if (node == IR_NEVER) return;
    g->scalars = schema_grow(c, g->scalars, g->n_scalars, &g->scalars_capacity, sizeof *g->scalars);
    g->scalars[g->n_scalars++] = node;
}

/* null, true or false, unless an excluded value. */
static void add_named(schema_ctx *c, goal *g, json_t *value, const char *text) {
    for (size_t i = 0; i < g->atoms.n; i++)
        if (g->atoms.at[i].kind == ATOM_NOT_ENUM &&
            schema_valid(c, value, &g->atoms.at[i]) == TRUTH_NO)
            return;
    add_scalar(c, g, schema_literal(c, (bytes){text, strlen(text)}));
}

static void plan_types(schema_ctx *c, goal *g) {
    uint32_t types = schema_types_left(c, &g->atoms);
    if ((types & TYPE_NULL) != 0) add_named(c, g, json_null(), "null");
    if ((types & TYPE_BOOLEAN) != 0) {
        add_named(c, g, json_true(), "true");
        add_named(c, g, json_false(), "false");
    }
    if ((types & TYPE_NUMBER) != 0)
        add_scalar(c, g, schema_number(c, &g->atoms, types & TYPE_NUMBER));
    if ((types & TYPE_STRING) != 0) add_scalar(c, g, schema_string(c, &g->atoms));
    if ((types & TYPE_ARRAY) != 0) schema_plan_array(c, g);
    if ((types & TYPE_OBJECT) != 0) schema_plan_object(c, g);
}

/* What must not be valid, so that a split has no effect: the schema of a negation, or of an `if`
 * without `else`.  NULL: a split of another kind. */
static const json_t *excluded_by(schema_ctx *c, const schema_atom *a) {
    if (a->kind == ATOM_NOT) return a->schema;
    if (a->kind != ATOM_IF) return NULL;
    const schema_view *v = schema_view_of(c, a->schema);
    return v->of[WORD_ELSE] == NULL ? v->of[WORD_IF] : NULL;
}

/* A split that the other demands ensure: no value satisfies them and is valid for the schema that
 * it excludes.  Without this a oneOf of n branches would have a number of cases that is exponential
 * in n, and a chain of n conditions n * n cases. */
static bool is_implied(schema_ctx *c, const goal *g, size_t at) {
    const json_t *excluded = excluded_by(c, &g->atoms.at[at]);
    atom_list atoms = {0};
    if (excluded == NULL) return false;
    for (size_t i = 0; i < g->atoms.n; i++)
        if (!atom_is_split(&g->atoms.at[i])) atom_list_add(c, &atoms, g->atoms.at[i]);
    atom_list_add(c, &atoms, atom_of(excluded));
    c->wide = true;
    bool implied = schema_apart(c, &atoms, 1);
    c->wide = false;
    return implied;
}

static void plan(schema_ctx *c, goal *g) {
    for (size_t i = 0; i < g->atoms.n; i++) {
        if (g->atoms.at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, g->atoms.at[i].schema);
        if (schema_get(c, v, WORD_ENUM) == NULL && schema_get(c, v, WORD_CONST) == NULL) continue;
        add_scalar(c, g, schema_values(c, &g->atoms, v));
        return;
    }
    for (size_t i = 0; i < g->atoms.n; i++) {
        if (!atom_is_split(&g->atoms.at[i]) || is_implied(c, g, i)) continue;
        plan_alternatives(c, g, i);
        return;
    }
    plan_types(c, g);
}

static ir_node finish(schema_ctx *c, goal *g) {
    size_t n = 0, n_max = g->n_scalars + 2 + (g->alternatives ? g->n_children : 0);
    ir_node *ways = schema_take_array(c, n_max, sizeof *ways);
    for (size_t i = 0; i < g->n_scalars; i++) ways[n++] = g->scalars[i];
    if (g->array != NULL) ways[n++] = schema_finish_array(c, g->array);
    if (g->object != NULL) ways[n++] = schema_finish_object(c, g->object);
    if (g->alternatives)
        for (size_t i = 0; i < g->n_children; i++) ways[n++] = schema_goal_node(c, g->children[i]);
    return ir_alt(c->graph, ways, n);
}

/* A goal that is an alternative of itself, with nothing written in between. */
static void check_loop(schema_ctx *c, const goal_id *stack, size_t n, goal_id child) {
    for (size_t i = n; i-- > 0;) {
        if (!c->goals[stack[i]]->alternatives) return;
        if (stack[i] != child) continue;
        const json_t *at = c->root;
        for (size_t k = 0; k < c->goals[child]->atoms.n; k++)
            if (c->goals[child]->atoms.at[k].schema != NULL)
                at = c->goals[child]->atoms.at[k].schema;
        schema_malformed(c, WORD_NONE, at, "the schema refers to itself for the same value");
    }
}

static void build(schema_ctx *c, goal_id root) {
    goal_id *stack = NULL;
    size_t n = 0, capacity = 0;
    stack = schema_grow(c, stack, n, &capacity, sizeof *stack);
    stack[n++] = root;
    while (n > 0) {
        goal *g = c->goals[stack[n - 1]];
        schema_tick(c);
        c->planned = g;
        if (g->state == GOAL_NEW) {
            schema_arena mark = schema_scratch_begin(c);
            g->state = GOAL_OPEN;
            plan(c, g);
            schema_scratch_end(c, &mark);
        }
        if (g->next_child < g->n_children) {
            goal_id child = g->children[g->next_child++];
            if (c->goals[child]->state == GOAL_OPEN) check_loop(c, stack, n, child);
            if (c->goals[child]->state != GOAL_NEW) continue;
            stack = schema_grow(c, stack, n, &capacity, sizeof *stack);
            stack[n++] = child;
            continue;
        }
        g->node = finish(c, g);
        g->state = GOAL_DONE;
        if (g->has_rule) ir_rule_set(c->graph, g->rule, g->node);
        schema_check(c, ir_status(c->graph, c->err));
        n--;
    }
}

/* ---- the whole ---- */

static int draft_of(const json_t *root) {
    const char *uri = json_string_value(json_object_get(root, "$schema"));
    static const struct {
        const char *part;
        int draft;
    } drafts[] = {{"draft-03", 3}, {"draft-04", 4},   {"draft-05", 4},  {"draft-06", 6},
                  {"draft-07", 7}, {"2019-09", 2019}, {"2020-12", 2020}};
    for (size_t i = 0; uri != NULL && i < INFERD_COUNT(drafts); i++)
        if (strstr(uri, drafts[i].part) != NULL) return drafts[i].draft;
    return 2020;
}

static uint64_t deadline_of(const grammar_limits *l) {
    return clock_thread_us() + (uint64_t)l->compile_ms_max * 1000;
}

static void begin(schema_ctx *c) {
    c->deadline_us = c->weak != NULL ? c->weak->deadline_us : deadline_of(c->limits);
    c->draft = draft_of(c->root);
    c->sites = schema_table_create(c);
    c->views = schema_table_create(c);
    c->names = schema_table_create(c);
    c->goals_by_atoms = schema_table_create(c);
    c->made = schema_table_create(c);
    c->automata = schema_table_create(c);
    c->resolved = schema_table_create(c);
    c->negations = schema_table_create(c);
    c->value_sets = schema_table_create(c);
    c->ids = schema_table_create(c);
    c->single_goals = schema_table_create(c);
    if (c->weak != NULL) schema_weaken_begin(c);
    goal_id never;
    goal *g = new_goal(c, &never);
    g->state = GOAL_DONE;
    g->node = IR_NEVER;
}

static void compile(schema_ctx *c, ir_node *root) {
    begin(c);
    schema_sites_build(c);
    c->has_places = true;
    if (c->weak != NULL) schema_weaken_scan(c);
    if (c->kind->strict) schema_check_strict(c);
    atom_list atoms = {0};
    atom_list_add(c, &atoms, atom_of(c->root));
    if (c->weak != NULL && schema_root_lost_type(c))
        atom_list_add(c, &atoms, atom_types(TYPE_OBJECT));
    goal_id id = schema_goal(c, &atoms);
    build(c, id);
    *root = c->goals[id]->node;
    if (*root != IR_NEVER) return;
    if (c->lost_at != NULL)
        schema_refuse(c, WORD_NOT, c->lost_at, "no value is left that can be described");
    schema_fail(c, INFERD_EINVAL, "no value can be valid for the schema");
}

static inferd_status run(schema_ctx *c, ir_node *root) {
    if (setjmp(c->exit) != 0) return c->status;
    compile(c, root);
    return INFERD_OK;
}

static inferd_status add_as_is(ir *g, const json_t *schema, const grammar_schema_kind *kind,
                               ir_node *out, inferd_err *failure) {
    schema_ctx c = {
        .limits = ir_limits(g), .kind = kind, .root = schema, .err = failure, .graph = g};
    inferd_status s = run(&c, out);
    schema_memory_deinit(&c);
    return s;
}

static inferd_status add_any_object(ir *g, const grammar_schema_kind *kind, ir_node *out,
                                    inferd_err *failure) {
    json_t *schema = json_pack("{s:s}", "type", "object");
    *failure = (inferd_err){0};
    inferd_status s = INFERD_ENOMEM;
    if (schema != NULL && json_array_append_new(kind->weakened, json_string("#")) == 0)
        s = add_as_is(g, schema, kind, out, failure);
    json_decref(schema);
    return s != INFERD_ENOMEM ? s : inferd_fail(failure, s, "no memory for a grammar");
}

/* Each attempt has a context of its own, and begins with the graph as it was. */
static inferd_status add_weaker(ir *g, const json_t *schema, const grammar_schema_kind *kind,
                                ir_node *out, inferd_err *failure) {
    schema_weakening weak = {.deadline_us = deadline_of(ir_limits(g))};
    const ir_mark mark = ir_mark_now(g);
    weaken_next next;
    do {
        if (weak.n_attempts > 0) ir_go_back(g, &mark);
        schema_ctx c = {.limits = ir_limits(g),
                        .kind = kind,
                        .root = schema,
                        .err = failure,
                        .graph = g,
                        .weak = &weak};
        next = schema_weaken(&c, run(&c, out));
        schema_memory_deinit(&c);
    } while (next == WEAKEN_AGAIN);
    schema_weakening_deinit(&weak);
    if (next == WEAKEN_DONE) return INFERD_OK;
    if (next == WEAKEN_NO_MEMORY)
        return inferd_fail(failure, INFERD_ENOMEM, "no memory for a grammar");
    ir_go_back(g, &mark);
    return add_any_object(g, kind, out, failure);
}

inferd_status schema_add(ir *g, const json_t *schema, const grammar_schema_kind *kind, ir_node *out,
                         inferd_err *err) {
    static const grammar_schema_kind plain = {0};
    inferd_err failure = {0};
    if (kind == NULL) kind = &plain;
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return inferd_fail(err, INFERD_EINVAL, "a schema is an object or a boolean");
    bool weaker = kind->weakened != NULL && !kind->strict;
    inferd_status s = weaker ? add_weaker(g, schema, kind, out, &failure)
                             : add_as_is(g, schema, kind, out, &failure);
    return s == INFERD_OK ? s : inferd_fail(err, s, "%s", failure.text);
}

inferd_status grammar_of_schema(const json_t *schema, const grammar_schema_kind *kind,
                                const grammar_options *options, grammar **out, inferd_err *err) {
    grammar_limits limits =
        options == NULL || options->limits == NULL ? grammar_limits_default : *options->limits;
    *out = NULL;
    if (kind != NULL && kind->compact) limits.white_bytes_max = 0;
    if (kind != NULL && kind->spaced) limits.white_bytes_max = GRAMMAR_WHITE_SPACED;
    ir *g = ir_create(&limits);
    if (g == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar");
    ir_node root = IR_NEVER;
    inferd_status s = schema_add(g, schema, kind, &root, err);
    ir_is_json(g);
    if (s == INFERD_OK) return ir_finish(g, root, options, out, err);
    ir_destroy(g);
    return s;
}

inferd_status grammar_of_json(const grammar_options *options, bool object_only, grammar **out,
                              inferd_err *err) {
    json_t *schema = object_only ? json_pack("{s:s}", "type", "object") : json_object();
    *out = NULL;
    if (schema == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar");
    inferd_status s = grammar_of_schema(schema, NULL, options, out, err);
    json_decref(schema);
    return s;
}
