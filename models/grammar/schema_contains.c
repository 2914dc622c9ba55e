/* schema_contains.c - arrays that contain an item, or two.
 *
 * An alternation over the place of the item: those before and behind it are as any.  With a demand
 * alone, no prefix and no maximum the place has no bound; else it is one of the first
 * CONTAINS_PLACES_MAX, and an array whose only such item is behind these is not written.
 *
 * Two demands are fulfilled by one item or by two. */
#include "schema.h"

enum { CONTAINS_PLACES_MAX = 16, CONTAINS_PLACES_OF_TWO_MAX = 6 };

void schema_plan_contains(schema_ctx *c, goal *g, array_plan *p, const schema_view *const *demands,
                          size_t n) {
    p->n_contains = n;
    p->contains = schema_take_array(c, p->n_prefix + 1, sizeof *p->contains);
    for (size_t i = 0; i <= p->n_prefix && i <= CONTAINS_PLACES_MAX; i++) {
        for (uint32_t set = 1; set < 1u << n; set++) {
            atom_list with = {0};
            if (!schema_item_atoms(c, &g->atoms, i, &with)) continue; // GOAL_NEVER
            for (size_t k = 0; k < n; k++)
                if ((set >> k & 1) != 0)
                    atom_list_add(c, &with, atom_of(demands[k]->of[WORD_CONTAINS]));
            p->contains[i][set] = schema_goal(c, &with);
            schema_goal_child(c, g, p->contains[i][set]);
        }
    }
}

typedef struct placing {
    schema_ctx *c;
    const array_plan *p;
    ir_node rest, *prefix; // [n_prefix] and room for CONTAINS_PLACES_MAX more
    ir_node ways[CONTAINS_PLACES_MAX + 2 * CONTAINS_PLACES_OF_TWO_MAX * CONTAINS_PLACES_OF_TWO_MAX];
    size_t n_ways;
} placing;

static ir_node item_at(const placing *a, size_t i) {
    return i < a->p->n_prefix ? schema_goal_node(a->c, a->p->prefix[i]) : a->rest;
}

static ir_node demanded_at(const placing *a, size_t i, uint32_t set) {
    return schema_goal_node(a->c, a->p->contains[size_min(i, a->p->n_prefix)][set]);
}

/* Arrays with the demands of `set_i` at place i, and of `set_j` at place j >= i if it is not empty.
 */
static void add_way(placing *a, size_t i, uint32_t set_i, size_t j, uint32_t set_j) {
    size_t n = size_max(a->p->n_prefix, size_max(i, j) + 1);
    uint32_t least = (uint32_t)size_max(i, j) + 1;
    for (size_t k = 0; k < n; k++) a->prefix[k] = item_at(a, k);
    a->prefix[i] = demanded_at(a, i, set_i);
    if (set_j != 0) a->prefix[j] = demanded_at(a, j, set_j);
    for (size_t k = 0; k < least; k++)
        if (a->prefix[k] == IR_NEVER) return;
    uint32_t max = a->p->max;
    for (size_t k = least; k < n; k++)
        if (a->prefix[k] == IR_NEVER) n = k; // nothing can be here: the array ends before
    if (n < a->p->n_prefix || a->rest == IR_NEVER) max = u32_min(max, (uint32_t)n);
    uint32_t min = u32_max(a->p->min, least);
    if (min > max) return;
    ir_node rest = max <= n ? IR_NEVER : a->rest;
    a->ways[a->n_ways++] = ir_array(a->c->graph, a->prefix, n, rest, min, max);
}

static ir_node text(schema_ctx *c, const char *s) {
    return schema_literal(c, (bytes){s, strlen(s)});
}

/* One demand and no bound: first such an item, or some others, it, and any. */
static ir_node unbounded(schema_ctx *c, const array_plan *p, ir_node rest, ir_node with) {
    if (with == IR_NEVER) return IR_NEVER;
    ir_node white = ir_white(c->graph);
    ir_node next[2] = {ir_comma(c->graph), rest};
    ir_node more = ir_seq(c->graph, next, 2);
    ir_node any = ir_repeat(c->graph, more, more, 0, IR_NO_MAX);
    next[1] = with;
    ir_node close[2] = {white, text(c, "]")};
    ir_node all[7] = {
        text(c, "["), white, rest, any, ir_seq(c->graph, next, 2), any, ir_seq(c->graph, close, 2)};
    ir_node ways[2] = {ir_array(c->graph, &with, 1, rest, u32_max(p->min, 1), IR_NO_MAX),
                       ir_seq(c->graph, all, 7)};
    return ir_alt(c->graph, ways, 2);
}

ir_node schema_finish_contains(schema_ctx *c, const array_plan *p) {
    placing a = {.c = c, .p = p, .rest = schema_goal_node(c, p->rest)};
    if (p->n_contains == 1 && p->n_prefix == 0 && p->max == IR_NO_MAX && p->min <= 2)
        return unbounded(c, p, a.rest, schema_goal_node(c, p->contains[0][1]));
    a.prefix = schema_take_array(c, p->n_prefix + CONTAINS_PLACES_MAX, sizeof *a.prefix);
    size_t places = p->n_contains == 1 ? CONTAINS_PLACES_MAX : CONTAINS_PLACES_OF_TWO_MAX;
    places = size_min(places, p->max);
    for (size_t i = 0; i < places; i++) {
        add_way(&a, i, (1u << p->n_contains) - 1, i, 0);
        for (size_t j = i + 1; j < places && p->n_contains == 2; j++) {
            add_way(&a, i, 1, j, 2);
            add_way(&a, i, 2, j, 1);
        }
    }
    return ir_alt(c->graph, a.ways, a.n_ways);
}
