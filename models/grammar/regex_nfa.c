/* regex_nfa.c - from a tree to a nondeterministic automaton with at most two ways on.
 *
 * The automaton is made from its end to its beginning: a node is given the state that follows it
 * and becomes the state at which it begins.  A tree may be deep, so what is still to do stands on a
 * stack; `next` goes from one task to the following one. */
#include "regex_private.h"

enum { TASKS_PER_STATE = 8 };

typedef enum task_kind {
    TASK_NODE,     // the node, before `next`
    TASK_SECOND,   // `next` begins the second alternative; now the first, before state `to`
    TASK_SPLIT,    // `next` begins one way, `to` the other
    TASK_LOOP,     // `next` is the body of the loop at state `to`: close it, go on at state `to`
    TASK_OPTIONAL, // another optional copy, `count` in all; `to` is behind all of them
    TASK_COPY,     // another copy, `count` in all
} task_kind;

typedef struct task {
    task_kind kind;
    uint32_t node, to, count;
} task;

typedef struct builder {
    const regex_tree *tree;
    nfa *out;
    const dfa_limits *limits;
    task *tasks; // [n_tasks] owned
    uint32_t n_tasks, tasks_capacity;
    uint64_t n_done; // tasks: rules that contain nothing make no states
    inferd_err *err;
} builder;

static inferd_status refuse_size(builder *w) {
    return inferd_fail(w->err, INFERD_ETOOLONG, "pattern: its repetitions need more than %u states",
                       w->limits->nfa_states_max);
}

static inferd_status add_state(builder *w, nfa_state state, uint32_t *out) {
    nfa *n = w->out;
    if (n->n >= w->limits->nfa_states_max) return refuse_size(w);
    nfa_state *p = dfa_grow(n->states, &n->capacity, (size_t)n->n + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->err);
    n->states = p;
    n->states[n->n] = state;
    *out = n->n++;
    return INFERD_OK;
}

static inferd_status push(builder *w, task t) {
    task *p = dfa_grow(w->tasks, &w->tasks_capacity, (size_t)w->n_tasks + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->err);
    w->tasks = p;
    w->tasks[w->n_tasks++] = t;
    return INFERD_OK;
}

static inferd_status push_two(builder *w, task later, task sooner) {
    inferd_status s = push(w, later);
    return s == INFERD_OK ? push(w, sooner) : s;
}

/* min copies, then a loop or optional copies: the last part is made first. */
static inferd_status begin_repeat(builder *w, const regex_node *node, uint32_t *next) {
    inferd_status s = INFERD_OK;
    if (node->min > 0) s = push(w, (task){TASK_COPY, node->a, 0, node->min});
    if (s != INFERD_OK) return s;
    if (node->max != REGEX_NO_MAX)
        return node->max == node->min
                   ? INFERD_OK
                   : push(w, (task){TASK_OPTIONAL, node->a, *next, node->max - node->min});
    uint32_t loop;
    s = add_state(w, (nfa_state){NFA_SPLIT, *next, *next}, &loop);
    *next = loop;
    if (s != INFERD_OK) return s;
    return push_two(w, (task){TASK_LOOP, 0, loop, 0}, (task){TASK_NODE, node->a, 0, 0});
}

static inferd_status do_node(builder *w, uint32_t number, uint32_t *next) {
    const regex_node *node = &w->tree->nodes[number];
    switch (node->kind) {
    case REGEX_EMPTY:
        break;
    case REGEX_SET:
        return add_state(w, (nfa_state){NFA_SET, *next, node->a}, next);
    case REGEX_BEGIN:
        return add_state(w, (nfa_state){NFA_BEGIN, *next, 0}, next);
    case REGEX_END:
        return add_state(w, (nfa_state){NFA_END, *next, 0}, next);
    case REGEX_SEQ:
        return push_two(w, (task){TASK_NODE, node->a, 0, 0}, (task){TASK_NODE, node->b, 0, 0});
    case REGEX_ALT:
        return push_two(w, (task){TASK_SECOND, node->a, *next, 0},
                        (task){TASK_NODE, node->b, 0, 0});
    case REGEX_REPEAT:
        return begin_repeat(w, node, next);
    case REGEX_RULE:
        return push(w, (task){TASK_NODE, w->tree->bodies[node->a], 0, 0});
    }
    return INFERD_OK;
}

static inferd_status do_task(builder *w, task t, uint32_t *next) {
    inferd_status s;
    switch (t.kind) {
    case TASK_NODE:
        return do_node(w, t.node, next);
    case TASK_SECOND:
        s = push_two(w, (task){TASK_SPLIT, 0, *next, 0}, (task){TASK_NODE, t.node, 0, 0});
        *next = t.to;
        return s;
    case TASK_SPLIT:
        return add_state(w, (nfa_state){NFA_SPLIT, *next, t.to}, next);
    case TASK_LOOP:
        w->out->states[t.to].out = *next;
        *next = t.to;
        return INFERD_OK;
    case TASK_OPTIONAL: // each copy that is left out leaves out those behind it
        if (t.count > 1) {
            s = push(w, (task){TASK_OPTIONAL, t.node, t.to, t.count - 1});
            if (s != INFERD_OK) return s;
        }
        return push_two(w, (task){TASK_SPLIT, 0, t.to, 0}, (task){TASK_NODE, t.node, 0, 0});
    case TASK_COPY:
        if (t.count > 1) {
            s = push(w, (task){TASK_COPY, t.node, 0, t.count - 1});
            if (s != INFERD_OK) return s;
        }
        return push(w, (task){TASK_NODE, t.node, 0, 0});
    }
    return INFERD_OK;
}

/* A loop that reads characters of the set, then goes on at `next`.  *reader: the state that reads.
 */
static inferd_status add_any(builder *w, uint32_t set, uint32_t *next, uint32_t *reader) {
    uint32_t loop;
    inferd_status s = add_state(w, (nfa_state){NFA_SPLIT, 0, *next}, &loop);
    if (s == INFERD_OK) s = add_state(w, (nfa_state){NFA_SET, loop, set}, reader);
    if (s != INFERD_OK) return s;
    w->out->states[loop].out = *reader;
    *next = loop;
    return INFERD_OK;
}

inferd_status nfa_of_tree(const regex_tree *t, uint32_t any_set, const dfa_limits *limits, nfa *out,
                          inferd_err *err) {
    *out = (nfa){.rest = DFA_DEAD};
    builder w = {.tree = t, .out = out, .limits = limits, .err = err};
    uint32_t next = 0, first;
    inferd_status s = add_state(&w, (nfa_state){NFA_ACCEPT, 0, 0}, &next);
    if (s == INFERD_OK && any_set != DFA_DEAD) s = add_any(&w, any_set, &next, &out->rest);
    if (s == INFERD_OK) s = push(&w, (task){TASK_NODE, t->root, 0, 0});
    while (s == INFERD_OK && w.n_tasks > 0) {
        if (w.n_done++ > (uint64_t)TASKS_PER_STATE * limits->nfa_states_max) s = refuse_size(&w);
        if (s == INFERD_OK) s = do_task(&w, w.tasks[--w.n_tasks], &next);
    }
    if (s == INFERD_OK && any_set != DFA_DEAD) s = add_any(&w, any_set, &next, &first);
    out->start = next;
    free(w.tasks);
    if (s == INFERD_OK) return INFERD_OK;
    free(out->states);
    *out = (nfa){0};
    return s;
}
