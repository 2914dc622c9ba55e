/* gbnf_left.c - finds a rule that begins with itself, to name it.
 *
 * The graph refuses left recursion, too (ir_finish), but knows no names of rules. */
#include "gbnf.h"

enum { WORK_MAX = 50 << 20 }; // nodes looked at; beyond it, the graph says it without a name

typedef struct finder {
    const gbnf *g;
    bool *nullable; // [n_nodes] the empty text is possible
    uint8_t *mark;  // [n_nodes]
    uint32_t *path; // [n_nodes] nodes that are open, from the root on
    uint8_t *step;  // [n_nodes] how many of its children were entered
} finder;

enum { NEW, OPEN, DONE };

static bool is_nullable(const finder *w, const regex_node *n) {
    switch (n->kind) {
    case REGEX_SEQ:
        return w->nullable[n->a] && w->nullable[n->b];
    case REGEX_ALT:
        return w->nullable[n->a] || w->nullable[n->b];
    case REGEX_REPEAT:
        return n->min == 0 || w->nullable[n->a];
    case REGEX_RULE:
        return w->nullable[w->g->rules[n->a].body];
    default:
        return n->kind == REGEX_EMPTY;
    }
}

/* False: too much work. */
static bool find_nullable(finder *w) {
    uint64_t n_work = 0;
    for (bool changed = true; changed; n_work += w->g->tree.n) {
        changed = false;
        if (n_work > WORK_MAX) return false;
        for (uint32_t i = 0; i < w->g->tree.n; i++) {
            if (w->nullable[i] || !is_nullable(w, &w->g->tree.nodes[i])) continue;
            w->nullable[i] = changed = true;
        }
    }
    return true;
}

/* The i-th node that is entered with this one before anything is read; DFA_DEAD: no more. */
static uint32_t entered_with(const finder *w, const regex_node *n, uint32_t i) {
    switch (n->kind) {
    case REGEX_SEQ:
        return i == 0 ? n->a : i == 1 && w->nullable[n->a] ? n->b : DFA_DEAD;
    case REGEX_ALT:
        return i == 0 ? n->a : i == 1 ? n->b : DFA_DEAD;
    case REGEX_REPEAT:
        return i == 0 ? n->a : DFA_DEAD;
    case REGEX_RULE:
        return i == 0 ? w->g->rules[n->a].body : DFA_DEAD;
    default:
        return DFA_DEAD;
    }
}

/* The rule that is named last on the path, which goes round in a circle. */
static inferd_status refuse(const finder *w, uint32_t n, inferd_err *err) {
    while (n > 0 && w->g->tree.nodes[w->path[n - 1]].kind != REGEX_RULE) n--;
    uint32_t rule = n == 0 ? 0 : w->g->tree.nodes[w->path[n - 1]].a;
    const gbnf_rule *r = &w->g->rules[rule];
    return gbnf_refuse(w->g->source, INFERD_EUNSUPPORTED, r->defined_at,
                       "a rule that begins with itself (left recursion):", r->name, err);
}

static inferd_status search(finder *w, inferd_err *err) {
    uint32_t n = 0;
    w->path[n++] = w->g->rules[0].body;
    w->mark[w->path[0]] = OPEN;
    while (n > 0) {
        uint32_t at = w->path[n - 1];
        uint32_t next = entered_with(w, &w->g->tree.nodes[at], w->step[at]++);
        if (next == DFA_DEAD) {
            w->mark[at] = DONE;
            n--;
        } else if (w->mark[next] == OPEN) {
            return refuse(w, n, err);
        } else if (w->mark[next] == NEW) {
            w->mark[next] = OPEN;
            w->path[n++] = next;
        }
    }
    return INFERD_OK;
}

inferd_status gbnf_check_left(const gbnf *g, inferd_err *err) {
    finder w = {
        .g = g,
        .nullable = calloc(g->tree.n, sizeof *w.nullable),
        .mark = calloc(g->tree.n, sizeof *w.mark),
        .path = calloc(g->tree.n, sizeof *w.path),
        .step = calloc(g->tree.n, sizeof *w.step),
    };
    inferd_status s = INFERD_OK;
    if (w.nullable == NULL || w.mark == NULL || w.path == NULL || w.step == NULL)
        s = dfa_no_memory(err);
    else if (find_nullable(&w))
        s = search(&w, err);
    free(w.nullable);
    free(w.mark);
    free(w.path);
    free(w.step);
    return s;
}
