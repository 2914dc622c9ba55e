/* gbnf.c - from the rules of a GBNF to the graph of a grammar.
 *
 * What is regular becomes automata, as large ones as the limits allow; only what is left - rules
 * that contain themselves, and parts too large for an automaton - becomes nodes of the graph, with
 * rules and counts on the machine's stack.  Rules of a regular part are inlined.
 *
 *     sort_rules      which rules contain no recursive one, from the innermost on
 *     compile_nodes   from parents to children: a part that is regular becomes a term; the others
 *                     are cut into pieces, neighbours that are regular staying together
 *     build_nodes     from children to parents: nodes of pieces */
#include "gbnf.h"
#include "inferd/clock.h"
#include "ir.h"

enum {
    INLINE_STATES_MAX = 256,  // a rule with a larger automaton is a part of its own
    WORK_STATES_MAX = 1 << 20 // of all automata, also of those that became too large
};

/* What is known of a node of the tree. */
typedef struct part {
    bool regular; // all rules in it may be inlined
    bool wanted;  // the graph needs it
    bool built;
    ir_node node;                 // valid when built
    uint32_t pieces_at, n_pieces; // of a node that is no term: pieces[pieces_at, + n_pieces)
} part;

typedef struct piece { // a node of the graph, or one of the tree that is not built yet
    bool built;
    uint32_t node;
} piece;

typedef struct range {
    uint32_t begin, end;
} range;

typedef struct compiler {
    gbnf *g;
    ir *ir;
    dfa_limits limits;
    uint64_t deadline_us;
    uint32_t *bodies;   // [n_rules] of the tree
    bool *inlined;      // [n_rules] of a regular part the rule may be one
    uint32_t *ir_rules; // [n_rules] of the graph; DFA_DEAD: not needed
    part *parts;        // [n_parts] of the nodes that were parsed
    uint32_t n_parts;
    uint32_t *todo; // [n_todo] nodes that are wanted and neither terms nor cut yet
    uint32_t n_todo, todo_capacity;
    piece *pieces;
    uint32_t n_pieces, pieces_capacity;
    uint32_t *items; // [n_items] of the node in work
    uint32_t n_items, items_capacity;
    range *ranges; // a stack, of the items in work
    uint32_t n_ranges, ranges_capacity;
    uint64_t n_work; // states
    inferd_err *err;
} compiler;

/* ---- terms ---- */

/* The sets of the automaton alone, numbered anew: others would only make more symbols. */
static bool own_sets(const regex_tree *t, nfa *n, dfa_keys *out) {
    bool added;
    *out = (dfa_keys){0};
    for (uint32_t i = 0; i < n->n; i++) {
        nfa_state *at = &n->states[i];
        if (at->kind != NFA_SET) continue;
        uint32_t begin = t->sets.at[at->other], end = t->sets.at[at->other + 1];
        at->other = dfa_keys_put(out, t->sets.words + begin, end - begin, &added);
        if (at->other == DFA_DEAD) return false;
    }
    return true;
}

/* The automaton of a regular node.  INFERD_ETOOLONG: it is too large. */
static inferd_status automaton_of(compiler *w, uint32_t node, dfa *out, inferd_err *err) {
    dfa_keys sets = {0};
    symbols sym = {0};
    nfa n = {0};
    dfa_table table = {0};
    *out = (dfa){0};
    if (clock_thread_us() > w->deadline_us) return INFERD_ETIMEOUT; // grammar_of_gbnf says it
    bool small = w->g->tree.nodes[node].kind == REGEX_SET;          // which is always possible
    if (w->n_work > WORK_STATES_MAX && !small)
        return inferd_fail(err, INFERD_ETOOLONG, "grammar: too large automata");
    w->g->tree.root = node;
    inferd_status s = nfa_of_tree(&w->g->tree, DFA_DEAD, &w->limits, &n, err);
    w->n_work += s == INFERD_OK ? n.n : w->limits.nfa_states_max;
    if (s == INFERD_OK && !(own_sets(&w->g->tree, &n, &sets) && symbols_of_sets(&sets, &sym)))
        s = dfa_no_memory(err);
    if (s == INFERD_OK) {
        s = nfa_determinize(&n, &sym, &w->limits, &table, err);
        w->n_work += s == INFERD_OK ? table.n_states : w->limits.states_max;
    }
    if (s == INFERD_OK) s = regex_bytes(&table, &sym, false, &w->limits, out, err);
    dfa_table_deinit(&table);
    free(n.states);
    symbols_deinit(&sym);
    dfa_keys_deinit(&sets);
    return s;
}

/* Does it accept the empty text and no other? */
static bool is_only_empty(const dfa *d) {
    bool only = d->n_states == 1 && d->tags[0] != 0;
    for (uint32_t i = 0; only && i < dfa_n_ways(d, 0); i++) only = dfa_way(d, 0, i) == DFA_DEAD;
    return only;
}

/* *done: the node is a term now.  False: it is too large for one. */
static inferd_status build_term(compiler *w, uint32_t node, ir_node *out, bool *done) {
    dfa d;
    inferd_err large = {0};
    inferd_status s = automaton_of(w, node, &d, &large);
    if (s != INFERD_OK && s != INFERD_ETOOLONG && w->err != NULL) *w->err = large;
    *done = s == INFERD_OK;
    if (!*done) return s == INFERD_ETOOLONG ? INFERD_OK : s;
    *out = IR_EMPTY;
    if (is_only_empty(&d))
        dfa_deinit(&d);
    else
        *out = ir_term(w->ir, &d);
    return INFERD_OK;
}

/* ---- which rules are regular ---- */

static void find_regular(compiler *w) {
    for (uint32_t i = 0; i < w->n_parts; i++) { // children before parents
        const regex_node *n = &w->g->tree.nodes[i];
        bool *regular = &w->parts[i].regular;
        switch (n->kind) {
        case REGEX_SEQ:
        case REGEX_ALT:
            *regular = w->parts[n->a].regular && w->parts[n->b].regular;
            break;
        case REGEX_REPEAT:
            *regular = w->parts[n->a].regular;
            break;
        case REGEX_RULE:
            *regular = w->inlined[n->a];
            break;
        default:
            *regular = true;
            break;
        }
    }
}

typedef struct sorter {
    uint32_t *pending;  // [n_rules] rules named in a rule that are not inlined so far
    uint32_t *users_at; // [n_rules + 1]
    uint32_t *users;    // rules that name a rule: [users_at[r], users_at[r + 1])
    uint32_t *queue;    // [n_rules]
} sorter;

static bool list_users(const gbnf *g, sorter *o) {
    uint32_t n = 0, n_rules = g->n_rules;
    for (uint32_t i = 0; i < g->tree.n; i++) n += g->tree.nodes[i].kind == REGEX_RULE;
    o->pending = calloc(n_rules, sizeof *o->pending);
    o->users_at = calloc((size_t)n_rules + 1, sizeof *o->users_at);
    o->users = calloc((size_t)n + 1, sizeof *o->users);
    o->queue = calloc(n_rules, sizeof *o->queue);
    if (o->pending == NULL || o->users_at == NULL || o->users == NULL || o->queue == NULL)
        return false;
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < g->tree.n; i++) {
            const regex_node *at = &g->tree.nodes[i];
            if (at->kind != REGEX_RULE) continue;
            if (fill)
                o->users[--o->users_at[at->a]] = at->b;
            else
                o->users_at[at->a]++, o->pending[at->b]++;
        }
        for (uint32_t r = 0; !fill && r < n_rules; r++) o->users_at[r + 1] += o->users_at[r];
    }
    return true;
}

/* A rule is inlined if its automaton is small and it names only rules that are. */
static inferd_status sort_rules(compiler *w) {
    sorter o = {0};
    uint32_t n = 0, n_rules = w->g->n_rules;
    inferd_status s = list_users(w->g, &o) ? INFERD_OK : dfa_no_memory(w->err);
    for (uint32_t r = 0; s == INFERD_OK && r < n_rules; r++)
        if (o.pending[r] == 0) o.queue[n++] = r;
    for (uint32_t i = 0; s == INFERD_OK && i < n; i++) {
        uint32_t r = o.queue[i];
        dfa d;
        inferd_err large = {0};
        s = automaton_of(w, w->bodies[r], &d, &large);
        if (s != INFERD_OK && s != INFERD_ETOOLONG && w->err != NULL) *w->err = large;
        w->inlined[r] = s == INFERD_OK && d.n_states <= INLINE_STATES_MAX;
        if (s == INFERD_OK && is_only_empty(&d)) w->bodies[r] = 0;
        dfa_deinit(&d);
        if (s == INFERD_ETOOLONG) s = INFERD_OK;
        if (!w->inlined[r]) continue;
        for (uint32_t u = o.users_at[r]; u < o.users_at[r + 1]; u++)
            if (--o.pending[o.users[u]] == 0) o.queue[n++] = o.users[u];
    }
    free(o.pending);
    free(o.users_at);
    free(o.users);
    free(o.queue);
    return s;
}

/* ---- from parents to children ---- */

static inferd_status want(compiler *w, uint32_t node) {
    if (w->parts[node].wanted) return INFERD_OK;
    uint32_t *p = dfa_grow(w->todo, &w->todo_capacity, (size_t)w->n_todo + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->err);
    w->todo = p;
    w->todo[w->n_todo++] = node;
    w->parts[node].wanted = true;
    return INFERD_OK;
}

static inferd_status add_piece(compiler *w, piece it) {
    piece *p = dfa_grow(w->pieces, &w->pieces_capacity, (size_t)w->n_pieces + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->err);
    w->pieces = p;
    w->pieces[w->n_pieces++] = it;
    return it.built ? INFERD_OK : want(w, it.node);
}

static inferd_status add_item(compiler *w, uint32_t node) {
    uint32_t *p = dfa_grow(w->items, &w->items_capacity, (size_t)w->n_items + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->err);
    w->items = p;
    w->items[w->n_items++] = node;
    return INFERD_OK;
}

/* The members of a sequence or choice, which is a chain to the left, in their order. */
static inferd_status list_items(compiler *w, uint32_t node) {
    const regex_tree *t = &w->g->tree;
    regex_kind kind = t->nodes[node].kind;
    inferd_status s = INFERD_OK;
    w->n_items = 0;
    for (; s == INFERD_OK && t->nodes[node].kind == kind; node = t->nodes[node].a)
        s = add_item(w, t->nodes[node].b);
    if (s == INFERD_OK) s = add_item(w, node);
    for (uint32_t i = 0; s == INFERD_OK && i < w->n_items / 2; i++) {
        uint32_t *a = &w->items[i], *b = &w->items[w->n_items - 1 - i], x = *a;
        *a = *b;
        *b = x;
    }
    return s;
}

/* The items of a range as one new node. */
static inferd_status join_items(compiler *w, regex_kind kind, range r, uint32_t *out) {
    *out = w->items[r.begin];
    for (uint32_t i = r.begin + 1; i < r.end; i++) {
        regex_node n = {.kind = kind, .a = *out, .b = w->items[i]};
        if (!regex_add_node(&w->g->tree, n, out)) return dfa_no_memory(w->err);
    }
    return INFERD_OK;
}

static inferd_status push_range(compiler *w, uint32_t begin, uint32_t end) {
    range *p = dfa_grow(w->ranges, &w->ranges_capacity, (size_t)w->n_ranges + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->err);
    w->ranges = p;
    w->ranges[w->n_ranges++] = (range){begin, end};
    return INFERD_OK;
}

/* Regular items as terms: one, or if that is too large one for each half, and so on. */
static inferd_status add_run(compiler *w, regex_kind kind, uint32_t begin, uint32_t end) {
    inferd_status s = begin < end ? push_range(w, begin, end) : INFERD_OK;
    while (s == INFERD_OK && w->n_ranges > 0) {
        range r = w->ranges[--w->n_ranges];
        if (r.end - r.begin == 1) {
            s = add_piece(w, (piece){.node = w->items[r.begin]});
            continue;
        }
        uint32_t joined, middle = r.begin + (r.end - r.begin) / 2;
        piece it = {.built = true};
        bool done = false;
        s = join_items(w, kind, r, &joined);
        if (s == INFERD_OK) s = build_term(w, joined, &it.node, &done);
        if (s == INFERD_OK && done) s = add_piece(w, it);
        if (s != INFERD_OK || done) continue;
        s = push_range(w, middle, r.end);
        if (s == INFERD_OK) s = push_range(w, r.begin, middle);
    }
    return s;
}

/* Neighbours that are regular stay together. */
static inferd_status cut_sequence(compiler *w, uint32_t node) {
    inferd_status s = list_items(w, node);
    uint32_t first = 0; // of the regular items that are open
    for (uint32_t i = 0; s == INFERD_OK && i < w->n_items; i++) {
        if (w->parts[w->items[i]].regular) continue;
        s = add_run(w, REGEX_SEQ, first, i);
        if (s == INFERD_OK) s = add_piece(w, (piece){.node = w->items[i]});
        first = i + 1;
    }
    return s == INFERD_OK ? add_run(w, REGEX_SEQ, first, w->n_items) : s;
}

/* All that are regular stay together: the order of choices does not matter. */
static inferd_status cut_choice(compiler *w, uint32_t node) {
    inferd_status s = list_items(w, node);
    uint32_t n_regular = 0;
    for (uint32_t i = 0; s == INFERD_OK && i < w->n_items; i++) {
        if (w->parts[w->items[i]].regular)
            w->items[n_regular++] = w->items[i];
        else
            s = add_piece(w, (piece){.node = w->items[i]});
    }
    return s == INFERD_OK ? add_run(w, REGEX_ALT, 0, n_regular) : s;
}

static inferd_status want_rule(compiler *w, uint32_t rule) {
    if (w->ir_rules[rule] != DFA_DEAD) return INFERD_OK;
    w->ir_rules[rule] = ir_rule(w->ir);
    return want(w, w->bodies[rule]);
}

/* A node that is wanted becomes a term, or is cut into pieces. */
static inferd_status compile_node(compiler *w, uint32_t number) {
    part *p = &w->parts[number];
    const regex_node n = w->g->tree.nodes[number];
    inferd_status s = INFERD_OK;
    if (p->regular) s = build_term(w, number, &p->node, &p->built);
    if (s != INFERD_OK || p->built) return s;
    p->pieces_at = w->n_pieces;
    switch (n.kind) {
    case REGEX_SEQ:
        s = cut_sequence(w, number);
        break;
    case REGEX_ALT:
        s = cut_choice(w, number);
        break;
    case REGEX_REPEAT:
        s = add_piece(w, (piece){.node = n.a});
        break;
    case REGEX_RULE:
        s = want_rule(w, n.a);
        break;
    default:
        return inferd_fail(w->err, INFERD_ETOOLONG, "grammar: an item needs too many states");
    }
    p->n_pieces = w->n_pieces - p->pieces_at;
    return s;
}

/* ---- from children to parents ---- */

static inferd_status build_node(compiler *w, uint32_t number) {
    part *p = &w->parts[number];
    const regex_node *n = &w->g->tree.nodes[number];
    size_t n_bytes = size_max(p->n_pieces, 1) * sizeof(ir_node);
    ir_node *nodes = malloc(n_bytes);
    if (nodes == NULL) return dfa_no_memory(w->err);
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        piece it = w->pieces[p->pieces_at + i];
        nodes[i] = it.built ? it.node : w->parts[it.node].node;
    }
    switch (n->kind) {
    case REGEX_SEQ:
        p->node = ir_seq(w->ir, nodes, p->n_pieces);
        break;
    case REGEX_ALT:
        p->node = ir_alt(w->ir, nodes, p->n_pieces);
        break;
    case REGEX_REPEAT:
        p->node = ir_repeat(w->ir, nodes[0], nodes[0], n->min, n->max);
        break;
    default:
        p->node = ir_ref(w->ir, w->ir_rules[n->a]);
        break;
    }
    p->built = true;
    free(nodes);
    return INFERD_OK;
}

static inferd_status build_graph(compiler *w) {
    inferd_status s = want_rule(w, 0);
    while (s == INFERD_OK && w->n_todo > 0) s = compile_node(w, w->todo[--w->n_todo]);
    for (uint32_t i = 0; s == INFERD_OK && i < w->n_parts; i++)
        if (w->parts[i].wanted && !w->parts[i].built) s = build_node(w, i);
    for (uint32_t r = 0; s == INFERD_OK && r < w->g->n_rules; r++)
        if (w->ir_rules[r] != DFA_DEAD)
            ir_rule_set(w->ir, w->ir_rules[r], w->parts[w->bodies[r]].node);
    return s;
}

/* ---- the whole ---- */

static bool compiler_alloc(compiler *w) {
    uint32_t n_rules = w->g->n_rules;
    w->n_parts = w->g->tree.n;
    w->bodies = calloc(n_rules, sizeof *w->bodies);
    w->inlined = calloc(n_rules, sizeof *w->inlined);
    w->ir_rules = calloc(n_rules, sizeof *w->ir_rules);
    w->parts = calloc(w->n_parts, sizeof *w->parts);
    if (w->bodies == NULL || w->inlined == NULL || w->ir_rules == NULL || w->parts == NULL)
        return false;
    for (uint32_t r = 0; r < n_rules; r++) w->bodies[r] = w->g->rules[r].body;
    memset(w->ir_rules, 0xFF, n_rules * sizeof *w->ir_rules);
    w->g->tree.bodies = w->bodies;
    return true;
}

static void compiler_deinit(compiler *w) {
    free(w->bodies);
    free(w->inlined);
    free(w->ir_rules);
    free(w->parts);
    free(w->todo);
    free(w->pieces);
    free(w->items);
    free(w->ranges);
}

inferd_status grammar_of_gbnf(bytes source, const grammar_options *options, grammar **out,
                              inferd_err *err) {
    const grammar_limits *l =
        options != NULL && options->limits != NULL ? options->limits : &grammar_limits_default;
    gbnf g;
    *out = NULL;
    inferd_status s = gbnf_parse(source, l, &g, err);
    if (s != INFERD_OK) return s;
    s = gbnf_check_left(&g, err);
    if (s != INFERD_OK) {
        gbnf_deinit(&g);
        return s;
    }
    compiler w = {
        .g = &g,
        .ir = ir_create(l),
        .limits = dfa_limits_default,
        .deadline_us = clock_thread_us() + (uint64_t)l->compile_ms_max * 1000,
        .err = err,
    };
    w.limits.states_max = l->dfa_states_max;
    if (w.ir == NULL || !compiler_alloc(&w)) s = dfa_no_memory(err);
    if (s == INFERD_OK) s = sort_rules(&w);
    if (s == INFERD_OK) {
        find_regular(&w);
        s = build_graph(&w);
    }
    if (s == INFERD_OK)
        s = ir_finish(w.ir, w.parts[w.bodies[0]].node, options, out, err);
    else
        ir_destroy(w.ir);
    compiler_deinit(&w);
    gbnf_deinit(&g);
    if (s != INFERD_ETIMEOUT) return s;
    return inferd_fail(err, INFERD_ETOOLONG,
                       "grammar: takes longer to compile than compile_ms_max, %u ms",
                       l->compile_ms_max);
}
