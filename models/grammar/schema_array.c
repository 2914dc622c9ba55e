/* schema_array.c - arrays: items by position, contains, uniqueItems.
 *
 * uniqueItems is enforced where the items are of few values, as a graph over the set of those that
 * have been written. */
#include "schema.h"
#include "schema_weaken.h"

enum { UNIQUE_VALUES_MAX = 8 };

typedef struct items {
    const json_t *prefix; // an array of schemas, or NULL
    const json_t *rest;
    /* Before 2020-12 `items` is for all items, and prefixItems no keyword: both hold. */
    bool rest_is_for_all;
} items;

static items items_of(schema_ctx *c, const schema_view *v) {
    items it = {.prefix = schema_get(c, v, WORD_PREFIX_ITEMS),
                .rest = schema_get(c, v, WORD_ITEMS)};
    if (json_is_array(it.rest)) {
        if (it.prefix != NULL) schema_malformed(c, WORD_ITEMS, v->schema, "is not a schema");
        it.prefix = it.rest;
        it.rest = schema_get(c, v, WORD_ADDITIONAL_ITEMS);
    }
    if (it.prefix != NULL && !json_is_array(it.prefix))
        schema_malformed(c, WORD_PREFIX_ITEMS, v->schema, "is not an array of schemas");
    it.rest_is_for_all = c->draft < 2020 && schema_get(c, v, WORD_PREFIX_ITEMS) != NULL;
    return it;
}

bool schema_item_atoms(schema_ctx *c, const atom_list *flat, size_t i, atom_list *out) {
    for (size_t k = 0; k < flat->n; k++) {
        if (flat->at[k].kind != ATOM_BASE) continue;
        items it = items_of(c, schema_view_of(c, flat->at[k].schema));
        bool in_prefix = i < json_array_size(it.prefix);
        const json_t *of[2] = {in_prefix ? json_array_get(it.prefix, i) : NULL,
                               in_prefix && !it.rest_is_for_all ? NULL : it.rest};
        for (size_t m = 0; m < INFERD_COUNT(of); m++) {
            if (of[m] == NULL || json_is_true(of[m])) continue;
            atom_list_add(c, out, atom_of(of[m]));
            if (json_is_false(of[m])) return false;
        }
    }
    return true;
}

static void read_base(schema_ctx *c, const schema_view *v, array_plan *p,
                      const schema_view **contains, size_t *n_contains,
                      const schema_view **unique) {
    p->min = u32_max(p->min, schema_count(c, v, WORD_MIN_ITEMS, 0));
    p->max = u32_min(p->max, schema_count(c, v, WORD_MAX_ITEMS, IR_NO_MAX));
    p->n_prefix = size_max(p->n_prefix, json_array_size(items_of(c, v).prefix));
    if (v->of[WORD_UNIQUE_ITEMS] != NULL && schema_flag(c, v, WORD_UNIQUE_ITEMS)) *unique = v;
    if (schema_get(c, v, WORD_CONTAINS) == NULL) return;
    /* Before 2019-09 minContains is no keyword, so one item must be there. */
    uint32_t least = schema_count(c, v, WORD_MIN_CONTAINS, 1);
    if (least == 0 && c->draft < 2019) least = 1;
    if (least == 0 && v->of[WORD_MAX_CONTAINS] == NULL) return;
    if (least != 1 || v->of[WORD_MAX_CONTAINS] != NULL)
        schema_refuse(c, WORD_CONTAINS, v->schema, "minContains other than 1, or maxContains");
    if (*n_contains == SCHEMA_CONTAINS_MAX)
        schema_refuse(c, WORD_CONTAINS, v->schema, "there are more than two");
    contains[(*n_contains)++] = v;
}

static bool is_value_of(const json_t *values, size_t n, const json_t *x) {
    for (size_t i = 0; i < n; i++)
        if (schema_equal(json_array_get(values, i), x)) return true;
    return false;
}

/* The values that items can have, if they are few; else NULL. */
static const json_t *few_values(schema_ctx *c, const atom_list *atoms) {
    atom_list flat = {0};
    json_t *found = schema_own_json(c, json_array());
    if (!schema_flatten(c, atoms, &flat)) return found;
    const json_t *from = NULL;
    for (size_t i = 0; i < flat.n && from == NULL; i++) {
        if (flat.at[i].kind != ATOM_BASE) continue;
        const schema_view *v = schema_view_of(c, flat.at[i].schema);
        if (schema_get(c, v, WORD_CONST) != NULL)
            from = schema_own_json(c, json_pack("[O]", schema_get(c, v, WORD_CONST)));
        else
            from = schema_get(c, v, WORD_ENUM);
    }
    if (from == NULL && (schema_types_left(c, &flat) & ~(TYPE_BOOLEAN | TYPE_NULL)) == 0)
        from = schema_own_json(c, json_pack("[n,b,b]", 0, 1));
    for (size_t i = 0; i < json_array_size(from); i++) {
        json_t *x = json_array_get(from, i);
        schema_truth t = schema_valid_all(c, x, &flat);
        if (t == TRUTH_UNKNOWN) return NULL;
        if (t == TRUTH_NO || is_value_of(found, json_array_size(found), x)) continue;
        if (json_array_size(found) == UNIQUE_VALUES_MAX) return NULL;
        if (json_array_append(found, x) != 0) schema_no_memory(c);
    }
    return from == NULL ? NULL : found;
}

void schema_plan_array(schema_ctx *c, goal *g) {
    array_plan *p = schema_take(c, sizeof *p);
    const schema_view *contains[SCHEMA_CONTAINS_MAX], *unique = NULL;
    size_t n_contains = 0;
    p->max = IR_NO_MAX;
    for (size_t i = 0; i < g->atoms.n; i++)
        if (g->atoms.at[i].kind == ATOM_BASE)
            read_base(c, schema_view_of(c, g->atoms.at[i].schema), p, contains, &n_contains,
                      &unique);
    if (p->n_prefix > c->limits->properties_max)
        schema_fail(c, INFERD_ETOOLONG,
                    "an array has more than properties_max, %u, items by position",
                    c->limits->properties_max);
    p->prefix = schema_take_array(c, p->n_prefix, sizeof *p->prefix);
    for (size_t i = 0; i < p->n_prefix; i++) {
        atom_list atoms = {0};
        p->prefix[i] =
            schema_item_atoms(c, &g->atoms, i, &atoms) ? schema_goal(c, &atoms) : GOAL_NEVER;
    }
    atom_list rest = {0};
    p->rest =
        schema_item_atoms(c, &g->atoms, p->n_prefix, &rest) ? schema_goal(c, &rest) : GOAL_NEVER;
    for (size_t i = 0; i < p->n_prefix; i++) {
        if (p->prefix[i] != GOAL_NEVER) continue;
        p->n_prefix = i; // nothing can be here, so the array ends before
        p->rest = GOAL_NEVER;
    }
    if (p->rest == GOAL_NEVER) p->max = u32_min(p->max, (uint32_t)p->n_prefix);
    if (p->min > p->max || (n_contains > 0 && p->max == 0)) return;
    if (unique != NULL && p->max > 1) {
        p->unique = p->n_prefix == 0 && n_contains == 0 ? few_values(c, &rest) : NULL;
        if (p->unique == NULL && !schema_soften(c, WORD_UNIQUE_ITEMS, unique->schema))
            schema_refuse(c, WORD_UNIQUE_ITEMS, unique->schema, NULL);
    }
    if (n_contains > 0) schema_plan_contains(c, g, p, contains, n_contains);
    g->array = p;
    for (size_t i = 0; i < p->n_prefix; i++) schema_goal_child(c, g, p->prefix[i]);
    schema_goal_child(c, g, p->rest);
}

/* ---- nodes ---- */

static ir_node text(schema_ctx *c, const char *s) {
    return schema_literal(c, (bytes){s, strlen(s)});
}

/* What may follow when the values of `set` have been written: a node for each set, the largest
 * first. */
static ir_node finish_unique(schema_ctx *c, const array_plan *p) {
    size_t n = json_array_size(p->unique);
    uint32_t n_sets = 1u << n;
    ir_node values[UNIQUE_VALUES_MAX], *of = schema_take_array(c, n_sets, sizeof *of);
    ir_node white = ir_white(c->graph), comma = ir_comma(c->graph);
    ir_node close[2] = {white, text(c, "]")};
    for (size_t i = 0; i < n; i++) values[i] = schema_value_node(c, json_array_get(p->unique, i));
    for (uint32_t set = n_sets; set-- > 0;) {
        ir_node ways[UNIQUE_VALUES_MAX + 1];
        size_t n_ways = 0;
        uint32_t n_in = (uint32_t)__builtin_popcount(set);
        if (n_in >= p->min && n_in <= p->max)
            ways[n_ways++] = set == 0 ? close[1] : ir_seq(c->graph, close, 2);
        for (size_t i = 0; i < n && n_in < p->max; i++) {
            if ((set >> i & 1) != 0) continue;
            ir_node one[3] = {comma, values[i], of[set | 1u << i]};
            size_t from = set == 0 ? 1 : 0;
            ways[n_ways++] = ir_seq(c->graph, one + from, 3 - from);
        }
        of[set] = ir_alt(c->graph, ways, n_ways);
    }
    ir_node all[3] = {text(c, "["), white, of[0]};
    return ir_seq(c->graph, all, 3);
}

ir_node schema_finish_array(schema_ctx *c, const array_plan *p) {
    if (p->unique != NULL) return finish_unique(c, p);
    if (p->contains != NULL) return schema_finish_contains(c, p);
    ir_node *prefix = schema_take_array(c, p->n_prefix, sizeof *prefix);
    ir_node rest = schema_goal_node(c, p->rest);
    size_t n = 0;
    while (n < p->n_prefix && (prefix[n] = schema_goal_node(c, p->prefix[n])) != IR_NEVER) n++;
    uint32_t max = p->max;
    if (n < p->n_prefix || rest == IR_NEVER) {
        rest = IR_NEVER;
        max = u32_min(max, (uint32_t)n);
    }
    if (p->min > max) return IR_NEVER;
    return ir_array(c->graph, prefix, n, rest, p->min, max);
}
