/* ir_measure.c - what a grammar's graph says about each node: the length of its shortest text, the
 * frames that it needs, whether it may be empty; and graphs that the machine cannot run.
 *
 * Both measures are least fixed points over a graph with circles.  Nodes are visited behind what
 * they refer to, so a pass is enough but for circles. */
#include <string.h>

#include "ir_private.h"

enum { NULLABLE_REPEAT_MAX = 64 }; // of something that may be empty: each is a way of its own
enum { MEASURE_STEPS_MAX = 20000000 };

/* ---- the shortest text of each node ---- */

static uint32_t add_sat(uint32_t a, uint32_t b) {
    return a == GRAMMAR_NO_TEXT || b == GRAMMAR_NO_TEXT || a > GRAMMAR_NO_TEXT - 1 - b
               ? GRAMMAR_NO_TEXT
               : a + b;
}

static uint32_t mul_sat(uint32_t a, uint32_t n) {
    if (n == 0) return 0;
    return a == GRAMMAR_NO_TEXT || a > (GRAMMAR_NO_TEXT - 1) / n ? GRAMMAR_NO_TEXT : a * n;
}

/* `,"name":` and the value of one that is not required. */
static uint32_t shortest_optional(const grammar *g, const object *o) {
    uint32_t best = GRAMMAR_NO_TEXT;
    for (uint32_t i = 0; i < o->n_properties; i++)
        if (!o->required[i])
            best = u32_min(best, add_sat(o->name_bytes[i], g->shortest[o->values[i]]));
    for (uint32_t i = 0; i < o->n_other_values && o->others != UINT32_MAX; i++)
        best = u32_min(
            best, add_sat(g->distance[g->first_state[o->others]], g->shortest[o->other_values[i]]));
    return add_sat(best, 4);
}

/* `{` , `"name":` and the value of each required property, `,` between them, `}`. */
static uint32_t shortest_object(const grammar *g, const object *o) {
    uint32_t sum = 2, n = 0;
    for (uint32_t i = 0; i < o->n_properties; i++) {
        if (!o->required[i]) continue;
        sum = add_sat(sum, add_sat(o->name_bytes[i] + (n > 0 ? 4 : 3), g->shortest[o->values[i]]));
        n++;
    }
    uint32_t n_missing = o->min > n ? o->min - n : 0;
    if (n > o->max || (o->others == UINT32_MAX && n_missing > o->n_properties - n))
        return GRAMMAR_NO_TEXT;
    if (n_missing == 0) return sum;
    sum = add_sat(sum, mul_sat(shortest_optional(g, o), n_missing));
    return n > 0 || sum == GRAMMAR_NO_TEXT ? sum : sum - 1; // the first has no comma
}

/* `}`, and before it `,"name":` and the value of each property that is required from here on. */
static bool find_needs(const grammar *g, object *o) {
    uint32_t n = o->n_properties;
    o->needs = malloc(((size_t)n + 1) * sizeof *o->needs);
    if (o->needs == NULL) return false;
    o->needs[n] = 1;
    for (uint32_t i = n; i-- > 0;)
        o->needs[i] = !o->required[i]
                          ? o->needs[i + 1]
                          : add_sat(o->needs[i + 1],
                                    add_sat(o->name_bytes[i] + 4, g->shortest[o->values[i]]));
    return true;
}

static uint32_t shortest_repeat(const grammar *g, const graph_node *n) {
    uint32_t first = g->shortest[n->a], rest = g->shortest[n->b];
    if (n->c == 0) return 0;
    return n->c == 1 ? first : add_sat(first, mul_sat(rest, n->c - 1));
}

static uint32_t shortest_of(const grammar *g, const graph_node *n) {
    uint32_t best = GRAMMAR_NO_TEXT, sum = 0;
    switch (n->kind) {
    case NODE_NEVER:
        return GRAMMAR_NO_TEXT;
    case NODE_EMPTY:
        return 0;
    case NODE_TERM:
        return g->distance[g->first_state[n->a]];
    case NODE_SEQ:
        for (uint32_t i = 0; i < n->b; i++) sum = add_sat(sum, g->shortest[g->children[n->a + i]]);
        return sum;
    case NODE_ALT:
        for (uint32_t i = 0; i < n->b; i++)
            best = u32_min(best, g->shortest[g->children[n->a + i]]);
        return best;
    case NODE_REPEAT:
        return shortest_repeat(g, n);
    case NODE_CHARS:
        return n->c;
    case NODE_OBJECT:
        return shortest_object(g, &g->objects[n->a]);
    case NODE_REF:
        return g->shortest[g->rules[n->a]];
    }
    return GRAMMAR_NO_TEXT;
}

/* ---- frames ---- */

/* The least number of frames with which `n` more properties that are not required can be written.
 */
static uint32_t nests_of_optional(const grammar *g, const object *o, uint32_t n) {
    for (uint32_t most = 0;;) {
        uint32_t n_fit = 0, next = GRAMMAR_NO_TEXT;
        for (uint32_t i = 0; i < o->n_properties; i++) {
            uint32_t one = g->nests[o->values[i]];
            if (o->required[i]) continue;
            n_fit += one <= most;
            if (one > most) next = u32_min(next, one);
        }
        if (n_fit >= n) return most;
        if (next == GRAMMAR_NO_TEXT) return next;
        most = next;
    }
}

static uint32_t nests_of_object(const grammar *g, const object *o) {
    uint32_t most = 0, n = o->n_required[0], others = GRAMMAR_NO_TEXT;
    for (uint32_t i = 0; i < o->n_properties; i++)
        if (o->required[i]) most = u32_max(most, g->nests[o->values[i]]);
    if (n >= o->min) return add_sat(most, 1);
    for (uint32_t i = 0; i < o->n_other_values && o->others != UINT32_MAX; i++)
        others = u32_min(others, g->nests[o->other_values[i]]);
    if (others > most) others = u32_min(others, nests_of_optional(g, o, o->min - n));
    return add_sat(u32_max(most, others), 1);
}

/* As the machine pushes them: the last child of a sequence needs no frame of it.  What has no text,
 * as an object with more required properties than it may have, cannot be written with any. */
static uint32_t nests_of(const grammar *g, const graph_node *n) {
    uint32_t best = GRAMMAR_NO_TEXT, most = 0;
    if (g->shortest[n - g->nodes] == GRAMMAR_NO_TEXT) return GRAMMAR_NO_TEXT;
    switch (n->kind) {
    case NODE_NEVER:
        return GRAMMAR_NO_TEXT;
    case NODE_EMPTY:
    case NODE_TERM:
        return 0;
    case NODE_SEQ:
        for (uint32_t i = 0; i < n->b; i++)
            most = u32_max(most, add_sat(g->nests[g->children[n->a + i]], i + 1 < n->b));
        return most;
    case NODE_ALT:
        for (uint32_t i = 0; i < n->b; i++) best = u32_min(best, g->nests[g->children[n->a + i]]);
        return best;
    case NODE_REPEAT:
        if (n->c == 0) return 0;
        most = n->c > 1 ? u32_max(g->nests[n->a], g->nests[n->b]) : g->nests[n->a];
        return add_sat(most, 1);
    case NODE_CHARS:
        return n->c > 0;
    case NODE_OBJECT:
        return nests_of_object(g, &g->objects[n->a]);
    case NODE_REF:
        return g->nests[g->rules[n->a]];
    }
    return GRAMMAR_NO_TEXT;
}

/* Of each state inside a name of others: the frames of the value that needs the fewest, of those
 * that a name can still have.  And the most of these where plain text may follow, which then leads
 * from one such state to another. */
static void find_name_nests(const grammar *g, object *o) {
    const dfa *d = &g->terms[o->others];
    uint32_t *nests = g->name_nests + g->first_state[o->others];
    for (uint32_t s = 0; s < d->n_states; s++) {
        uint32_t tag = d->tags[s];
        nests[s] = tag == 0 || tag > o->n_other_values ? GRAMMAR_NO_TEXT
                                                       : g->nests[o->other_values[tag - 1]];
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = d->n_states; s-- > 0;)
            for (uint32_t i = 0, n = dfa_n_ways(d, s); i < n; i++) {
                uint32_t to = dfa_way(d, s, i);
                if (to == DFA_DEAD || nests[to] >= nests[s]) continue;
                nests[s] = nests[to];
                changed = true;
            }
    }
    for (uint32_t s = 0; s < d->n_states; s++)
        if ((g->follow[g->first_state[o->others] + s] & GRAMMAR_PLAIN) != 0)
            o->others_nest = u32_max(o->others_nest, nests[s]);
}

/* ---- passes ---- */

/* The i-th node that a node refers to; UINT32_MAX: behind the last. */
static ir_node child_of(const grammar *g, const graph_node *n, uint32_t i) {
    switch (n->kind) {
    case NODE_SEQ:
    case NODE_ALT:
        return i < n->b ? g->children[n->a + i] : UINT32_MAX;
    case NODE_REPEAT:
        return i == 0 ? n->a : i == 1 ? n->b : UINT32_MAX;
    case NODE_REF:
        return i == 0 ? g->rules[n->a] : UINT32_MAX;
    case NODE_OBJECT: {
        const object *o = &g->objects[n->a];
        if (i < o->n_properties) return o->values[i];
        i -= o->n_properties;
        return i < o->n_other_values ? o->other_values[i] : UINT32_MAX;
    }
    default:
        return UINT32_MAX;
    }
}

typedef struct visit {
    ir_node node;
    uint32_t i;
} visit;

/* All nodes, each behind those that it refers to, but for circles.  *n_links: how many there are.
 */
static bool sort_nodes(const grammar *g, ir_node *order, uint64_t *n_links) {
    bool *met = calloc(g->n_nodes, sizeof *met);
    visit *stack = malloc((size_t)g->n_nodes * sizeof *stack);
    uint32_t n_sorted = 0;
    *n_links = g->n_nodes;
    for (ir_node root = 0; met != NULL && stack != NULL && root < g->n_nodes; root++) {
        uint32_t n = 0;
        if (!met[root]) stack[n++] = (visit){root, 0};
        met[root] = true;
        while (n > 0) {
            visit *v = &stack[n - 1];
            ir_node next = child_of(g, &g->nodes[v->node], v->i++);
            if (next == UINT32_MAX) {
                order[n_sorted++] = stack[--n].node;
                continue;
            }
            ++*n_links;
            if (met[next]) continue;
            met[next] = true;
            stack[n++] = (visit){next, 0};
        }
    }
    free(met);
    free(stack);
    return n_sorted == g->n_nodes;
}

/* Passes until nothing changes. */
static inferd_status measure(grammar *g, const ir_node *order, uint64_t n_links,
                             uint32_t (*of)(const grammar *, const graph_node *), uint32_t *out,
                             inferd_err *err) {
    memset(out, 0xff, g->n_nodes * sizeof *out);
    uint64_t n_steps = 0;
    for (bool changed = true; changed; n_steps += n_links) {
        if (n_steps > MEASURE_STEPS_MAX)
            return inferd_fail(err, INFERD_ETOOLONG, "the rules of the grammar nest too deeply");
        changed = false;
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            uint32_t n = of(g, &g->nodes[order[i]]);
            changed |= n != out[order[i]];
            out[order[i]] = n;
        }
    }
    return INFERD_OK;
}

/* Is the empty text possible, for repeats: they count each round as a way of its own. */
static inferd_status check_repeats(const grammar *g, inferd_err *err) {
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const graph_node *n = &g->nodes[i];
        if (n->kind != NODE_REPEAT || n->d == IR_NO_MAX || n->d <= NULLABLE_REPEAT_MAX) continue;
        if (g->shortest[n->a] == 0 || g->shortest[n->b] == 0)
            return inferd_fail(err, INFERD_EUNSUPPORTED,
                               "up to %u repeats of something that may be empty; at most %d are "
                               "supported",
                               n->d, NULLABLE_REPEAT_MAX);
    }
    return INFERD_OK;
}

/* ---- left recursion ---- */

/* Nodes that are entered with node n before any byte is read: the i-th, or IR_NEVER behind them.
 * Asked in order, so that of a sequence all before i - 1 may be empty. */
static ir_node entered_with(const grammar *g, const graph_node *n, uint32_t i) {
    switch (n->kind) {
    case NODE_SEQ:
        if (i >= n->b || (i > 0 && g->shortest[g->children[n->a + i - 1]] != 0)) return IR_NEVER;
        return g->children[n->a + i];
    case NODE_ALT:
        return i < n->b ? g->children[n->a + i] : IR_NEVER;
    case NODE_REPEAT:
        return i == 0 ? n->a : i == 1 && g->shortest[n->a] == 0 ? n->b : IR_NEVER;
    case NODE_REF:
        return i == 0 ? g->rules[n->a] : IR_NEVER;
    default:
        return IR_NEVER;
    }
}

/* A depth-first search for a circle of nodes that are entered without reading. */
static inferd_status check_left_recursion(const grammar *g, inferd_err *err) {
    enum { NEW, OPEN, DONE };
    uint8_t *state = calloc(g->n_nodes, 1);
    visit *stack = malloc(((size_t)g->n_nodes + 1) * sizeof *stack);
    inferd_status status = INFERD_OK;
    if (state == NULL || stack == NULL)
        status = inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar of %u nodes", g->n_nodes);
    for (ir_node root = 0; root < g->n_nodes && status == INFERD_OK; root++) {
        uint32_t n = 0;
        if (state[root] == NEW) {
            stack[n++] = (visit){root, 0};
            state[root] = OPEN;
        }
        while (n > 0 && status == INFERD_OK) {
            visit *v = &stack[n - 1];
            ir_node next = entered_with(g, &g->nodes[v->node], v->i++);
            if (next == IR_NEVER) { // a child is NEVER only if all is
                state[v->node] = DONE;
                n--;
            } else if (state[next] == OPEN) {
                status = inferd_fail(err, INFERD_EUNSUPPORTED,
                                     "a rule of the grammar begins with itself (left recursion)");
            } else if (state[next] == NEW) {
                state[next] = OPEN;
                stack[n++] = (visit){next, 0};
            }
        }
    }
    free(state);
    free(stack);
    return status;
}

/* ---- the whole ---- */

static inferd_status measure_both(grammar *g, ir_node *order, inferd_err *err) {
    uint64_t n_links;
    if (!sort_nodes(g, order, &n_links))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar of %u nodes", g->n_nodes);
    inferd_status s = measure(g, order, n_links, shortest_of, g->shortest, err);
    return s == INFERD_OK ? measure(g, order, n_links, nests_of, g->nests, err) : s;
}

inferd_status grammar_measure(grammar *g, inferd_err *err) {
    ir_node *order = malloc(g->n_nodes * sizeof *order);
    g->shortest = malloc(g->n_nodes * sizeof *g->shortest);
    g->nests = malloc(g->n_nodes * sizeof *g->nests);
    g->name_nests = calloc(size_max(grammar_n_states(g), 1), sizeof *g->name_nests);
    inferd_status s = INFERD_OK;
    if (order == NULL || g->shortest == NULL || g->nests == NULL || g->name_nests == NULL)
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar of %u nodes", g->n_nodes);
    if (s == INFERD_OK) s = measure_both(g, order, err);
    free(order);
    for (uint32_t i = 0; s == INFERD_OK && i < g->n_objects; i++) {
        if (!find_needs(g, &g->objects[i]))
            s = inferd_fail(err, INFERD_ENOMEM, "no memory for %u objects", g->n_objects);
        else if (g->objects[i].others != UINT32_MAX)
            find_name_nests(g, &g->objects[i]);
    }
    if (s == INFERD_OK) s = check_repeats(g, err);
    if (s == INFERD_OK) s = check_left_recursion(g, err);
    if (s != INFERD_OK) return s;
    if (g->shortest[g->root] == GRAMMAR_NO_TEXT)
        return inferd_fail(err, INFERD_EINVAL, "no text can match");
    if (g->nests[g->root] > g->limits.stack_max)
        return inferd_fail(err, INFERD_ETOOLONG, "every text nests deeper than stack_max = %u",
                           g->limits.stack_max);
    return INFERD_OK;
}
