/* schema_object.c - objects: names in order, and the names of others by automaton.
 *
 * Names come in this order: those of `properties` of all bases, as written; then those that are
 * only required; then any others.  Each has the demands of all bases on it: its own schema, those
 * of the patterns that its name matches, or else additionalProperties.
 *
 * Other names are sorted into classes by which patterns match; each class is a goal.
 *
 * A text may have a name twice, and a reader keeps the last value.  Values are valid in any case,
 * and a maximum holds for the names if it holds for the text; a minimum beyond what named
 * properties ensure is refused. */
#include "schema.h"
#include "schema_weaken.h"

enum { PATTERNS_MAX = 16 }; // of dfa_classify

typedef struct pattern_use {
    const schema_view *of;
    const char *pattern;
    const json_t *value;
    size_t part; // index of its automaton
} pattern_use;

typedef struct others {
    pattern_use *uses;
    size_t n_uses, capacity;
    const char *patterns[PATTERNS_MAX];
    const dfa *parts[PATTERNS_MAX];
    size_t n_parts;
    const dfa *names; // without those that are unsure; NULL: all
} others;

static json_t *object_of(schema_ctx *c, const schema_view *v, schema_word w) {
    json_t *map = schema_get(c, v, w);
    if (map != NULL && !json_is_object(map)) schema_malformed(c, w, v->schema, "is not an object");
    return map;
}

schema_truth schema_name_matches(schema_ctx *c, const schema_view *v, const char *pattern,
                                 const char *name) {
    bytes text = {pattern, strlen(pattern)};
    const dfa *all = schema_pattern_of(c, false, v->schema, WORD_PATTERN_PROPERTIES, text);
    const dfa *any = schema_pattern_of(c, true, v->schema, WORD_PATTERN_PROPERTIES, text);
    buf content;
    buf_init(&content, 0);
    json_canonical(&content, (bytes){name, strlen(name)});
    bool failed = content.failed;
    bytes canonical = {buf_cstr(&content), content.n};
    bool in_any = !failed && dfa_match(any, canonical) != 0;
    bool in_all = in_any && dfa_match(all, canonical) != 0;
    buf_deinit(&content);
    if (failed) schema_no_memory(c);
    return in_all ? TRUTH_YES : in_any ? TRUTH_UNKNOWN : TRUTH_NO;
}

static json_t *additional(schema_ctx *c, const schema_view *v) {
    json_t *of = schema_get(c, v, WORD_ADDITIONAL_PROPERTIES);
    return of != NULL ? of : schema_get(c, v, WORD_UNEVALUATED_PROPERTIES);
}

static bool add_atom(schema_ctx *c, atom_list *out, const json_t *schema) {
    if (json_is_true(schema)) return true;
    atom_list_add(c, out, atom_of(schema));
    return !json_is_false(schema);
}

static bool base_property(schema_ctx *c, const schema_view *v, const char *name, atom_list *out) {
    const json_t *own = json_object_get(object_of(c, v, WORD_PROPERTIES), name);
    const json_t *names = schema_get(c, v, WORD_PROPERTY_NAMES);
    const char *pattern;
    json_t *value;
    bool evaluated = own != NULL;
    if (own != NULL && !add_atom(c, out, own)) return false;
    if (names != NULL) {
        schema_atom a = atom_of(names);
        schema_truth t = schema_valid(c, schema_own_json(c, json_string(name)), &a);
        if (t == TRUTH_NO) return false;
        if (t == TRUTH_UNKNOWN) schema_refuse(c, WORD_PROPERTY_NAMES, v->schema, NULL);
    }
    json_object_foreach(object_of(c, v, WORD_PATTERN_PROPERTIES), pattern, value) {
        schema_truth t = schema_name_matches(c, v, pattern, name);
        if (t == TRUTH_NO) continue;
        if (t == TRUTH_UNKNOWN && !c->wide) return false;
        evaluated = true;
        if (t == TRUTH_YES && !add_atom(c, out, value)) return false;
    }
    const json_t *rest = additional(c, v);
    return evaluated || rest == NULL || add_atom(c, out, rest);
}

bool schema_property_atoms(schema_ctx *c, const atom_list *flat, const char *name, atom_list *out) {
    for (size_t i = 0; i < flat->n; i++) {
        const schema_atom *a = &flat->at[i];
        if (a->kind == ATOM_LACKS && strcmp(a->name, name) == 0) return false;
        if (a->kind == ATOM_BASE && !base_property(c, schema_view_of(c, a->schema), name, out))
            return false;
    }
    return true;
}

/* ---- names in order ---- */

typedef struct naming {
    schema_table *index; // 1 + place
    object_plan *plan;
    size_t capacity, required_capacity;
} naming;

static void add_name(schema_ctx *c, naming *n, const char *name, bool required) {
    object_plan *p = n->plan;
    void **at = schema_table_at(c, n->index, name, strlen(name), true);
    size_t place = (size_t)(uintptr_t)*at;
    if (place == 0) {
        if (p->n >= c->limits->properties_max)
            schema_fail(c, INFERD_ETOOLONG,
                        "an object has more than properties_max, %u, properties",
                        c->limits->properties_max);
        p->names = schema_grow(c, p->names, p->n, &n->capacity, sizeof *p->names);
        p->required = schema_grow(c, p->required, p->n, &n->required_capacity, sizeof *p->required);
        p->names[p->n] = name;
        p->required[p->n] = false;
        place = ++p->n;
        *at = (void *)(uintptr_t)place;
    }
    if (required) p->required[place - 1] = true;
}

static void add_required(schema_ctx *c, naming *n, const schema_view *v) {
    const json_t *required = schema_get(c, v, WORD_REQUIRED);
    if (required == NULL) return;
    if (!json_is_array(required)) schema_malformed(c, WORD_REQUIRED, v->schema, "is not an array");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (name == NULL)
            schema_malformed(c, WORD_REQUIRED, v->schema, "has a name that is no string");
        add_name(c, n, name, true);
    }
}

void schema_names(schema_ctx *c, const atom_list *flat, object_plan *p) {
    naming n = {.index = schema_table_create(c), .plan = p};
    const char *name;
    json_t *value;
    for (size_t i = 0; i < flat->n; i++) {
        if (flat->at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat->at[i].schema);
        json_object_foreach(object_of(c, v, WORD_PROPERTIES), name, value) {
            add_name(c, &n, name, false);
        }
    }
    for (size_t i = 0; i < flat->n; i++)
        if (flat->at[i].kind == ATOM_BASE)
            add_required(c, &n, schema_view_of(c, flat->at[i].schema));
    for (size_t i = 0; i < flat->n; i++) {
        const schema_atom *a = &flat->at[i];
        if (a->kind == ATOM_HAS || a->kind == ATOM_LACKS)
            add_name(c, &n, a->name, a->kind == ATOM_HAS);
    }
}

/* ---- other names ---- */

/* Names that only one of the languages of patterns finds are none: `any` is what one of them finds.
 */
static void exclude_unsure(schema_ctx *c, others *o, const dfa *any) {
    dfa_limits limits = schema_dfa_limits(c);
    dfa out;
    schema_check(c, dfa_and_not(any, o->parts[o->n_parts - 1], &limits, &out, c->err));
    const dfa *unsure = schema_own(c, &out);
    if (dfa_is_empty(unsure)) return;
    const dfa *names = o->names != NULL ? o->names : schema_any_string(c);
    schema_check(c, dfa_and_not(names, unsure, &limits, &out, c->err));
    o->names = schema_own(c, &out);
}

static void add_use(schema_ctx *c, others *o, const schema_view *v, const char *pattern,
                    const json_t *value) {
    size_t part = 0;
    while (part < o->n_parts && strcmp(o->patterns[part], pattern) != 0) part++;
    if (part == PATTERNS_MAX)
        schema_refuse(c, WORD_PATTERN_PROPERTIES, v->schema, "more than 16 patterns in one object");
    if (part == o->n_parts) {
        bytes text = {pattern, strlen(pattern)};
        o->patterns[part] = pattern;
        o->parts[part] = schema_pattern_of(c, false, v->schema, WORD_PATTERN_PROPERTIES, text);
        o->n_parts++;
        exclude_unsure(c, o, schema_pattern_of(c, true, v->schema, WORD_PATTERN_PROPERTIES, text));
    }
    o->uses = schema_grow(c, o->uses, o->n_uses, &o->capacity, sizeof *o->uses);
    o->uses[o->n_uses++] = (pattern_use){v, pattern, value, part};
}

/* The goal of names that match exactly these patterns. */
static goal_id goal_of_class(schema_ctx *c, const atom_list *flat, const others *o,
                             uint32_t matched) {
    atom_list atoms = {0};
    for (size_t i = 0; i < flat->n; i++) {
        if (flat->at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat->at[i].schema);
        bool evaluated = false;
        for (size_t u = 0; u < o->n_uses; u++) {
            if (o->uses[u].of != v || (matched >> o->uses[u].part & 1) == 0) continue;
            evaluated = true;
            if (!add_atom(c, &atoms, o->uses[u].value)) return GOAL_NEVER;
        }
        const json_t *rest = additional(c, v);
        if (!evaluated && rest != NULL && !add_atom(c, &atoms, rest)) return GOAL_NEVER;
    }
    return schema_goal(c, &atoms);
}

/* The values of enum or const that are valid names, as automaton; NULL: none. */
static const dfa *names_of_values(schema_ctx *c, const atom_list *flat, const schema_view *v) {
    const json_t *one = schema_get(c, v, WORD_CONST), *many = schema_get(c, v, WORD_ENUM);
    size_t n = one != NULL ? 1 : json_array_size(many), n_names = 0;
    const char **names = schema_take_array(c, n, sizeof *names);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = one != NULL ? one : json_array_get(many, i);
        if (json_is_string(x) && schema_valid_member(c, x, flat, v) == TRUTH_YES)
            names[n_names++] = json_string_value(x);
    }
    return n_names == 0 ? NULL : schema_literals(c, names, n_names);
}

/* The names that propertyNames allows; NULL: none. */
static const dfa *allowed_names(schema_ctx *c, const atom_list *flat) {
    atom_list names = {0}, flat_names = {0};
    const schema_view *at = NULL;
    for (size_t i = 0; i < flat->n; i++) {
        if (flat->at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat->at[i].schema);
        const json_t *of = schema_get(c, v, WORD_PROPERTY_NAMES);
        if (of == NULL) continue;
        atom_list_add(c, &names, atom_of(of));
        at = v;
    }
    if (at == NULL) return schema_any_string(c);
    atom_list_add(c, &names, (schema_atom){.kind = ATOM_TYPES, .types = TYPE_STRING});
    if (!schema_flatten(c, &names, &flat_names)) return NULL;
    for (size_t i = 0; i < flat_names.n; i++) {
        if (flat_names.at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat_names.at[i].schema);
        if (schema_get(c, v, WORD_ENUM) != NULL || schema_get(c, v, WORD_CONST) != NULL)
            return names_of_values(c, &flat_names, v);
    }
    for (size_t i = 0; i < flat_names.n; i++)
        if (atom_is_split(&flat_names.at[i]))
            schema_refuse(c, WORD_PROPERTY_NAMES, at->schema, NULL);
    const dfa *d;
    uint32_t min, max;
    if (!schema_string_dfa(c, &flat_names, &d, &min, &max)) return NULL;
    return d != NULL ? d : schema_lengths(c, min, max, NULL);
}

static void plan_others(schema_ctx *c, const atom_list *flat, object_plan *p) {
    others o = {0};
    const char *pattern;
    json_t *value;
    for (size_t i = 0; i < flat->n; i++) {
        if (flat->at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat->at[i].schema);
        json_object_foreach(object_of(c, v, WORD_PATTERN_PROPERTIES), pattern, value) {
            add_use(c, &o, v, pattern, value);
        }
    }
    goal_id none_match = goal_of_class(c, flat, &o, 0);
    if (o.n_parts == 0 && none_match == GOAL_NEVER) return;
    const dfa *names = allowed_names(c, flat);
    if (names == NULL) return;
    if (o.names != NULL) {
        dfa sure;
        dfa_limits some = schema_dfa_limits(c);
        schema_check(c, dfa_and(names, o.names, &some, &sure, c->err));
        names = schema_own(c, &sure);
    }
    if (o.n_parts == 0) {
        p->others = names;
        p->other_values = schema_take_array(c, 1, sizeof *p->other_values);
        p->other_values[0] = none_match;
        p->n_others = 1;
        return;
    }
    dfa classes = {0};
    dfa_limits limits = schema_dfa_limits(c);
    schema_check(c, dfa_classify(names, o.parts, o.n_parts, &limits, &classes, c->err));
    dfa *sorted = schema_own(c, &classes);
    uint32_t *sets = NULL;
    size_t capacity = 0, sets_capacity = 0;
    for (uint32_t s = 0; s < sorted->n_states; s++) {
        uint32_t *tag = &sorted->tags[s];
        if (*tag == 0) continue;
        size_t k = 0;
        while (k < p->n_others && sets[k] != *tag - 1) k++;
        if (k == p->n_others) {
            sets = schema_grow(c, sets, k, &sets_capacity, sizeof *sets);
            p->other_values =
                schema_grow(c, p->other_values, k, &capacity, sizeof *p->other_values);
            sets[k] = *tag - 1;
            p->other_values[k] = sets[k] == 0 ? none_match : goal_of_class(c, flat, &o, sets[k]);
            p->n_others++;
        }
        *tag = 1 + (uint32_t)k;
    }
    p->others = sorted;
}

/* ---- plan ---- */

/* A minimum counts members of the text, where others may repeat a name: it is exact if one member
 * more than the required ones suffices. */
static void check_minimum(schema_ctx *c, const atom_list *flat, const object_plan *p) {
    uint32_t n_required = 0;
    for (size_t i = 0; i < p->n; i++) n_required += p->required[i];
    if (p->others == NULL || p->min <= n_required + 1) return;
    for (size_t i = 0; i < flat->n; i++) {
        if (flat->at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat->at[i].schema);
        if (schema_count(c, v, WORD_MIN_PROPERTIES, 0) == p->min &&
            !schema_soften(c, WORD_MIN_PROPERTIES, v->schema))
            schema_refuse(c, WORD_MIN_PROPERTIES, v->schema,
                          "a name could be written twice to reach it");
    }
}

void schema_plan_object(schema_ctx *c, goal *g) {
    object_plan *p = schema_take(c, sizeof *p);
    p->max = IR_NO_MAX;
    uint32_t n_schemas = 0; // several have no common order
    for (size_t i = 0; i < g->atoms.n; i++) {
        if (g->atoms.at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, g->atoms.at[i].schema);
        n_schemas++;
        p->min = u32_max(p->min, schema_count(c, v, WORD_MIN_PROPERTIES, 0));
        p->max = u32_min(p->max, schema_count(c, v, WORD_MAX_PROPERTIES, IR_NO_MAX));
    }
    p->any_order = n_schemas > 1 || c->kind->any_order;
    if (p->min > p->max) return;
    schema_names(c, &g->atoms, p);
    p->values = schema_take_array(c, p->n, sizeof *p->values);
    for (size_t i = 0; i < p->n; i++) {
        atom_list atoms = {0};
        p->values[i] = schema_property_atoms(c, &g->atoms, p->names[i], &atoms)
                           ? schema_goal(c, &atoms)
                           : GOAL_NEVER;
        if (p->required[i] && p->values[i] == GOAL_NEVER) return;
    }
    plan_others(c, &g->atoms, p);
    check_minimum(c, &g->atoms, p);
    g->object = p;
    for (size_t i = 0; i < p->n; i++) schema_goal_child(c, g, p->values[i]);
    for (size_t i = 0; i < p->n_others; i++) schema_goal_child(c, g, p->other_values[i]);
}

/* The automaton of other names, without the classes that nothing is valid for and without the names
 * of properties that must not be there; false: none left. */
static bool finish_others(schema_ctx *c, const object_plan *p, const ir_property *properties,
                          const ir_node *values, dfa *out) {
    const dfa *d = p->others;
    dfa_limits limits = schema_dfa_limits(c);
    dfa made;
    bool any = false, all = true;
    for (size_t i = 0; i < p->n_others; i++) {
        any |= values[i] != IR_NEVER;
        all &= values[i] != IR_NEVER;
    }
    if (!any) return false;
    if (!all) {
        schema_check(c, dfa_copy(d, &made, c->err));
        dfa *marked = schema_own(c, &made);
        for (uint32_t s = 0; s < marked->n_states; s++)
            if (marked->tags[s] != 0 && values[marked->tags[s] - 1] == IR_NEVER)
                marked->tags[s] = 0;
        schema_check(c, dfa_and(marked, schema_any_string(c), &limits, &made, c->err)); // trims
        d = schema_own(c, &made);
    }
    const char **names = schema_take_array(c, p->n, sizeof *names);
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (properties[i].value == IR_NEVER) names[n++] = p->names[i];
    if (n > 0) d = schema_without(c, d, names, n);
    if (dfa_is_empty(d)) return false;
    schema_check(c, dfa_copy(d, out, c->err));
    return true;
}

ir_node schema_finish_object(schema_ctx *c, const object_plan *p) {
    ir_property *properties = schema_take_array(c, p->n, sizeof *properties);
    ir_node *values = schema_take_array(c, p->n_others, sizeof *values);
    for (size_t i = 0; i < p->n; i++) {
        properties[i] = (ir_property){.name = {p->names[i], strlen(p->names[i])},
                                      .required = p->required[i],
                                      .value = schema_goal_node(c, p->values[i])};
        if (p->required[i] && properties[i].value == IR_NEVER) return IR_NEVER;
    }
    for (size_t i = 0; i < p->n_others; i++) values[i] = schema_goal_node(c, p->other_values[i]);
    size_t n_possible = 0;
    for (size_t i = 0; i < p->n; i++) n_possible += properties[i].value != IR_NEVER;
    dfa names = {0};
    bool some = p->others != NULL && finish_others(c, p, properties, values, &names);
    if (!some && n_possible < p->min) return IR_NEVER;
    ir_object_spec spec = {.properties = properties,
                           .n_properties = p->n,
                           .others = some ? &names : NULL,
                           .other_values = values,
                           .n_other_values = p->n_others,
                           .min = p->min,
                           .max = p->max,
                           .any_order = p->any_order || c->any_order};
    ir_node node = ir_object(c->graph, &spec);
    if (!some) dfa_deinit(&names);
    return node;
}
