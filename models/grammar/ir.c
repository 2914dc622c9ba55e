/* ir.c - building the graph of ir.h.
 *
 * A node is five words; its children lie in one array.  Equal nodes are found by a hash table, so
 * that a definition that is used often is one node, and a large schema stays small. */
#include "ir_private.h"

#include <stdarg.h>
#include <string.h>

#include "inferd/hash.h"

/* ---- failures ---- */

void ir_fail(ir *g, inferd_status status, const char *format, ...) {
    if (g->failure.status != INFERD_OK) return;
    va_list args;
    va_start(args, format);
    g->failure.status = status;
    vsnprintf(g->failure.text, sizeof g->failure.text, format, args);
    va_end(args);
    inferd_blank_controls(g->failure.text);
}

inferd_status ir_status(const ir *g, inferd_err *err) {
    if (g->failure.status != INFERD_OK && err != NULL) *err = g->failure;
    return g->failure.status;
}

const grammar_limits *ir_limits(const ir *g) {
    return &g->limits;
}

static void no_memory(ir *g) {
    ir_fail(g, INFERD_ENOMEM, "no memory for a grammar");
}

/* Room for one more of `n` things of this size; false: recorded. */
static bool hold(ir *g, void **array, uint32_t *capacity, size_t n, size_t bytes_each) {
    if (n < *capacity) return true;
    size_t wanted = *capacity < 64 ? 64 : (size_t)*capacity * 2, n_bytes;
    while (wanted <= n) wanted *= 2;
    if (wanted > UINT32_MAX || !size_mul(wanted, bytes_each, &n_bytes)) {
        no_memory(g);
        return false;
    }
    void *p = realloc(*array, n_bytes);
    if (p == NULL) {
        no_memory(g);
        return false;
    }
    *array = p;
    *capacity = (uint32_t)wanted;
    return true;
}

/* ---- nodes ---- */

static uint64_t hash_node(const graph_node *n, const ir_node *children) {
    uint64_t h = hash_step(hash_step(HASH_BEGIN, (uint64_t)n->kind), n->b);
    if (n->kind == NODE_SEQ || n->kind == NODE_ALT)
        for (uint32_t i = 0; i < n->b; i++) h = hash_step(h, children[i]);
    else
        h = hash_step(hash_step(hash_step(h, n->a), n->c), n->d);
    return hash_fold(h);
}

/* Of a node of the graph; NULL: it has none. */
static const ir_node *children_of(const ir *g, const graph_node *n) {
    return n->kind == NODE_SEQ || n->kind == NODE_ALT ? g->children + n->a : NULL;
}

static bool same_node(const ir *g, const graph_node *a, const graph_node *b,
                      const ir_node *b_children) {
    if (a->kind != b->kind || a->b != b->b) return false;
    if (a->kind == NODE_SEQ || a->kind == NODE_ALT)
        return memcmp(g->children + a->a, b_children, b->b * sizeof *b_children) == 0;
    return a->a == b->a && a->c == b->c && a->d == b->d;
}

static void fill_table(ir *g) {
    uint32_t mask = g->table_size - 1;
    memset(g->table, 0xff, (size_t)g->table_size * sizeof *g->table);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t at = (uint32_t)hash_node(&g->nodes[i], children_of(g, &g->nodes[i])) & mask;
        while (g->table[at] != UINT32_MAX) at = (at + 1) & mask;
        g->table[at] = i;
    }
}

static bool grow_table(ir *g) {
    uint32_t size = g->table_size == 0 ? 1024 : g->table_size * 2;
    uint32_t *table = malloc((size_t)size * sizeof *table);
    if (table == NULL) {
        no_memory(g);
        return false;
    }
    free(g->table);
    g->table = table;
    g->table_size = size;
    fill_table(g);
    return true;
}

/* The node, which may have been built before; `children` of SEQ and ALT are copied. */
static ir_node add_node(ir *g, graph_node n, const ir_node *children) {
    if (g->failure.status != INFERD_OK) return IR_NEVER;
    if (g->n_nodes >= g->table_size / 2 && !grow_table(g)) return IR_NEVER;
    uint32_t mask = g->table_size - 1, at = (uint32_t)hash_node(&n, children) & mask;
    for (; g->table[at] != UINT32_MAX; at = (at + 1) & mask)
        if (same_node(g, &g->nodes[g->table[at]], &n, children)) return g->table[at];
    if (g->n_nodes >= g->limits.nodes_max) {
        ir_fail(g, INFERD_ETOOLONG, "the grammar has more than nodes_max = %u nodes",
                g->limits.nodes_max);
        return IR_NEVER;
    }
    if (!hold(g, (void **)&g->nodes, &g->nodes_capacity, g->n_nodes, sizeof *g->nodes))
        return IR_NEVER;
    if (n.kind == NODE_SEQ || n.kind == NODE_ALT) {
        if (!hold(g, (void **)&g->children, &g->children_capacity, (size_t)g->n_children + n.b,
                  sizeof *g->children))
            return IR_NEVER;
        memcpy(g->children + g->n_children, children, n.b * sizeof *children);
        n.a = g->n_children;
        g->n_children += n.b;
    }
    g->nodes[g->n_nodes] = n;
    g->table[at] = g->n_nodes;
    return g->n_nodes++;
}

ir_node ir_term_node(ir *g, uint32_t term) {
    return add_node(g, (graph_node){.kind = NODE_TERM, .a = term}, NULL);
}

ir_node ir_term(ir *g, dfa *take) {
    if (g->failure.status == INFERD_OK && dfa_is_empty(take)) {
        dfa_deinit(take);
        return IR_NEVER;
    }
    if (g->failure.status != INFERD_OK ||
        !hold(g, (void **)&g->terms, &g->terms_capacity, g->n_terms, sizeof *g->terms)) {
        dfa_deinit(take);
        return IR_NEVER;
    }
    g->terms[g->n_terms++] = *take;
    *take = (dfa){0};
    return ir_term_node(g, g->n_terms - 1);
}

ir_node ir_literal(ir *g, bytes text) {
    if (g->failure.status != INFERD_OK) return IR_NEVER;
    if (text.n == 0) return IR_EMPTY;
    dfa d = {0};
    dfa_limits limits = ir_dfa_limits(g);
    inferd_err err = {0};
    if (dfa_of_literals(&text, NULL, 1, &limits, &d, &err) != INFERD_OK)
        ir_fail(g, err.status, "%s", err.text);
    return ir_term(g, &d);
}

ir_node ir_seq(ir *g, const ir_node *nodes, size_t n) {
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (nodes[i] == IR_NEVER) return IR_NEVER;
        n_kept += nodes[i] != IR_EMPTY;
    }
    if (n_kept == 0) return IR_EMPTY;
    ir_node *kept = malloc(n_kept * sizeof *kept);
    if (kept == NULL) {
        no_memory(g);
        return IR_NEVER;
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        if (nodes[i] != IR_EMPTY) kept[at++] = nodes[i];
    ir_node made = n_kept == 1
                       ? kept[0]
                       : add_node(g, (graph_node){.kind = NODE_SEQ, .b = (uint32_t)n_kept}, kept);
    free(kept);
    return made;
}

static int compare_nodes(const void *a, const void *b) {
    ir_node x = *(const ir_node *)a, y = *(const ir_node *)b;
    return (x > y) - (x < y);
}

ir_node ir_alt(ir *g, const ir_node *nodes, size_t n) {
    if (n == 0) return IR_NEVER;
    ir_node *kept = malloc(n * sizeof *kept);
    if (kept == NULL) {
        no_memory(g);
        return IR_NEVER;
    }
    memcpy(kept, nodes, n * sizeof *kept);
    qsort(kept, n, sizeof *kept, compare_nodes); // the order of branches does not matter
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept[i] != IR_NEVER && (n_kept == 0 || kept[n_kept - 1] != kept[i]))
            kept[n_kept++] = kept[i];
    ir_node made = IR_NEVER;
    if (n_kept == 1)
        made = kept[0];
    else if (n_kept > 1)
        made = add_node(g, (graph_node){.kind = NODE_ALT, .b = (uint32_t)n_kept}, kept);
    free(kept);
    return made;
}

ir_node ir_repeat(ir *g, ir_node first, ir_node rest, uint32_t min, uint32_t max) {
    if ((min > g->limits.repeat_max || (max != IR_NO_MAX && max > g->limits.repeat_max))) {
        ir_fail(g, INFERD_ETOOLONG, "a count of %u is more than repeat_max = %u",
                max != IR_NO_MAX ? max : min, g->limits.repeat_max);
        return IR_NEVER;
    }
    if (min > max) return IR_NEVER;
    if (first == IR_NEVER) return min == 0 ? IR_EMPTY : IR_NEVER;
    if (rest == IR_NEVER) {
        if (min > 1) return IR_NEVER;
        max = u32_min(max, 1);
    }
    if (max == 0 || (first == IR_EMPTY && rest == IR_EMPTY)) return IR_EMPTY;
    if (min == 1 && max == 1) return first;
    if (max == 1) return ir_alt(g, (ir_node[]){IR_EMPTY, first}, 2);
    return add_node(g, (graph_node){.kind = NODE_REPEAT, .a = first, .b = rest, .c = min, .d = max},
                    NULL);
}

ir_node ir_string(ir *g, uint32_t min, uint32_t max) {
    if (min > max) return IR_NEVER;
    if (min == 0 && max == IR_NO_MAX) return ir_term_node(g, TERM_STRING);
    ir_node quote = ir_term_node(g, TERM_QUOTE);
    ir_node chars = max == 0
                        ? IR_EMPTY
                        : add_node(g, (graph_node){.kind = NODE_CHARS, .c = min, .d = max}, NULL);
    return ir_seq(g, (ir_node[]){quote, chars, quote}, 3);
}

ir_node ir_white(ir *g) {
    return ir_term_node(g, TERM_WHITE);
}

ir_node ir_comma(ir *g) {
    return ir_term_node(g, TERM_COMMA);
}

ir_node ir_colon(ir *g) {
    return ir_term_node(g, TERM_COLON);
}

/* ---- rules ---- */

uint32_t ir_rule(ir *g) {
    if (g->failure.status != INFERD_OK ||
        !hold(g, (void **)&g->rules, &g->rules_capacity, g->n_rules, sizeof *g->rules))
        return 0;
    g->rules[g->n_rules] = IR_NEVER;
    return g->n_rules++;
}

void ir_rule_set(ir *g, uint32_t rule, ir_node node) {
    if (rule < g->n_rules) g->rules[rule] = node;
}

ir_node ir_ref(ir *g, uint32_t rule) {
    if (rule >= g->n_rules) return IR_NEVER;
    return add_node(g, (graph_node){.kind = NODE_REF, .a = rule}, NULL);
}

/* ---- arrays ---- */

/* `_ , _ item` */
static ir_node next_item(ir *g, ir_node item) {
    return ir_seq(g, (ir_node[]){ir_term_node(g, TERM_COMMA), item}, 2);
}

/* What follows k >= 1 items, from n_prefix items on: more of `rest`, and the end. */
static ir_node array_rest(ir *g, ir_node rest, uint32_t k, uint32_t min, uint32_t max) {
    ir_node next = rest == IR_NEVER ? IR_NEVER : next_item(g, rest);
    uint32_t more_min = min > k ? min - k : 0, more_max = max == IR_NO_MAX ? max : max - k;
    ir_node more = ir_repeat(g, next, next, more_min, more_max);
    return ir_seq(g, (ir_node[]){more, ir_term_node(g, TERM_ARRAY_CLOSE)}, 2);
}

ir_node ir_array(ir *g, const ir_node *prefix, size_t n_prefix, ir_node rest, uint32_t min,
                 uint32_t max) {
    if (n_prefix > g->limits.nodes_max)
        ir_fail(g, INFERD_ETOOLONG, "an array has %zu prefix items, nodes_max is %u", n_prefix,
                g->limits.nodes_max);
    if (min > max || n_prefix > g->limits.nodes_max) return IR_NEVER;
    uint32_t n = u32_min((uint32_t)n_prefix, max);
    ir_node first = n > 0 ? prefix[0] : max > 0 ? rest : IR_NEVER;
    ir_node close = ir_term_node(g, TERM_ARRAY_CLOSE), tail = IR_NEVER;
    if (first != IR_NEVER) tail = array_rest(g, max > n ? rest : IR_NEVER, u32_max(n, 1), min, max);
    for (uint32_t k = n; k-- > 1;) { // what follows k items, when item k is a prefix one
        ir_node more = ir_seq(g, (ir_node[]){next_item(g, prefix[k]), tail}, 2);
        tail = ir_alt(g, (ir_node[]){k >= min ? close : IR_NEVER, more}, 2);
    }
    ir_node some = ir_seq(g, (ir_node[]){first, tail}, 2);
    ir_node none = min == 0 ? ir_term_node(g, TERM_ARRAY_EMPTY) : IR_NEVER;
    ir_node items = ir_alt(g, (ir_node[]){none, some}, 2);
    return ir_seq(g, (ir_node[]){ir_term_node(g, TERM_ARRAY_OPEN), items}, 2);
}

/* ---- objects ---- */

/* The graph's node of object `at`; the object is complete. */
ir_node ir_object_node(ir *g, uint32_t at) {
    return add_node(g, (graph_node){.kind = NODE_OBJECT, .a = at}, NULL);
}

object *ir_new_object(ir *g) {
    if (g->failure.status != INFERD_OK ||
        !hold(g, (void **)&g->objects, &g->objects_capacity, g->n_objects, sizeof *g->objects))
        return NULL;
    object *o = &g->objects[g->n_objects++];
    *o = (object){.others = UINT32_MAX};
    return o;
}

/* ---- the whole ---- */

dfa_limits ir_dfa_limits(const ir *g) {
    dfa_limits l = dfa_limits_default;
    l.states_max = g->limits.dfa_states_max;
    l.pattern_bytes_max = g->limits.pattern_bytes_max;
    l.nesting_max = g->limits.pattern_nesting_max;
    return l;
}

static bool add_fixed_terms(ir *g) {
    if (!hold(g, (void **)&g->terms, &g->terms_capacity, TERMS_FIXED, sizeof *g->terms))
        return false;
    memset(g->terms, 0, TERMS_FIXED * sizeof *g->terms);
    g->n_terms = TERMS_FIXED; // ir_destroy frees what a failure leaves of them
    return ir_add_fixed_terms(g);
}

ir *ir_create(const grammar_limits *limits) {
    ir *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    g->limits = limits != NULL ? *limits : grammar_limits_default;
    bool ok = add_fixed_terms(g) &&
              add_node(g, (graph_node){.kind = NODE_NEVER}, NULL) == IR_NEVER &&
              add_node(g, (graph_node){.kind = NODE_EMPTY}, NULL) == IR_EMPTY;
    if (ok) return g;
    ir_destroy(g);
    return NULL;
}

static void object_deinit(object *o) {
    free(o->values);
    free(o->required);
    free(o->next_required);
    free(o->n_required);
    free(o->by_name);
    free(o->name_bytes);
    free(o->needs);
    free(o->key_nodes);
    free(o->other_values);
}

ir_mark ir_mark_now(const ir *g) {
    return (ir_mark){g->n_nodes, g->n_children, g->n_rules, g->n_objects, g->n_terms};
}

void ir_go_back(ir *g, const ir_mark *to) {
    for (uint32_t i = to->n_terms; i < g->n_terms; i++) dfa_deinit(&g->terms[i]);
    for (uint32_t i = to->n_objects; i < g->n_objects; i++) object_deinit(&g->objects[i]);
    g->n_nodes = to->n_nodes;
    g->n_children = to->n_children;
    g->n_rules = to->n_rules;
    g->n_objects = to->n_objects;
    g->n_terms = to->n_terms;
    g->failure = (inferd_err){0};
    fill_table(g);
}

void ir_objects_free(object *objects, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) object_deinit(&objects[i]);
    free(objects);
}

void ir_destroy(ir *g) {
    if (g == NULL) return;
    for (uint32_t i = 0; i < g->n_terms; i++) dfa_deinit(&g->terms[i]);
    ir_objects_free(g->objects, g->n_objects);
    free(g->terms);
    free(g->nodes);
    free(g->children);
    free(g->rules);
    free(g->table);
    free(g);
}
