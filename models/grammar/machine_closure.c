/* machine_closure.c - from a set of configs and a byte to the next: entering nodes, leaving frames,
 * until nothing is to do.  A closure's work is bounded by steps_max. */
#include <string.h>

#include "closure.h"
#include "inferd/hash.h"

/* ---- the set that is made ---- */

void closure_add_todo(grammar_machine *m, ir_node node, uint32_t f) {
    if (f == FRAME_NONE || !machine_hold(m, (void **)&m->todos, &m->todos_capacity,
                                         (size_t)m->n_todos + 1, sizeof *m->todos))
        return;
    m->todos[m->n_todos++] = (todo){node, f};
}

void closure_add_config(grammar_machine *m, uint32_t f, uint32_t d, uint32_t t) {
    if (f == FRAME_NONE) return;
    if (m->n_made >= m->g->limits.configs_max) {
        inferd_fail(&m->failure, INFERD_ETOOLONG,
                    "the text can be read in more than configs_max = %u ways at once",
                    m->g->limits.configs_max);
        return;
    }
    if (machine_hold(m, (void **)&m->made, &m->made_capacity, (size_t)m->n_made + 1,
                     sizeof *m->made))
        m->made[m->n_made++] = (config){f, d, t};
}

/* A config of a terminal: kept if bytes may follow; complete ones go on behind it. */
static void add_state_of(grammar_machine *m, uint32_t f, uint32_t d) {
    const grammar *g = m->g;
    if (f == FRAME_NONE) return;
    uint32_t term = g->term_of[d], s = d - g->first_state[term];
    const dfa *a = &g->terms[term];
    if (a->tags[s] != 0) closure_add_todo(m, IR_NEVER, f);
    if ((g->follow[d] & GRAMMAR_GOES_ON) != 0) closure_add_config(m, f, d, 0);
}

void closure_begin_term(grammar_machine *m, uint32_t f, uint32_t term) {
    add_state_of(m, f, m->g->first_state[term]);
}

static uint32_t push(grammar_machine *m, ir_node node, uint32_t pos, uint32_t count, uint32_t aux,
                     uint32_t parent) {
    return machine_frame(
        m, &(frame){.node = node, .pos = pos, .count = count, .aux = aux, .parent = parent});
}

/* ---- nodes and frames ---- */

static void advance_repeat(grammar_machine *m, uint32_t at) {
    const frame f = m->frames[at];
    const graph_node *n = &m->g->nodes[f.node];
    uint64_t done = (uint64_t)f.count + 1;
    if (done >= n->c) closure_add_todo(m, IR_NEVER, f.parent);
    if (n->d != IR_NO_MAX && done >= n->d) return;
    uint32_t to = push(m, f.node, 0, closure_count_on(f.count, n->c, n->d), 0, f.parent);
    if (n->kind == NODE_CHARS)
        closure_begin_term(m, to, TERM_CHAR);
    else
        closure_add_todo(m, n->b, to);
}

/* The child that this frame waits for is complete. */
static void advance(grammar_machine *m, uint32_t at) {
    const frame f = m->frames[at];
    if (at == 0) {
        m->made_accepts = true;
        return;
    }
    const graph_node *n = &m->g->nodes[f.node];
    if (n->kind == NODE_SEQ) {
        ir_node child = m->g->children[n->a + f.pos];
        bool last = f.pos + 1 == n->b; // its frame would do nothing: recursion at the end is flat
        closure_add_todo(m, child, last ? f.parent : push(m, f.node, f.pos + 1, 0, 0, f.parent));
    } else if (n->kind == NODE_OBJECT) {
        object_advance(m, &f);
    } else {
        advance_repeat(m, at);
    }
}

static void enter(grammar_machine *m, ir_node id, uint32_t f) {
    const graph_node *n = &m->g->nodes[id];
    if (!closure_fits(m, m->frames[f].depth, id)) return;
    switch (n->kind) {
    case NODE_NEVER:
        break;
    case NODE_EMPTY:
        closure_add_todo(m, IR_NEVER, f);
        break;
    case NODE_TERM:
        closure_begin_term(m, f, n->a);
        break;
    case NODE_SEQ:
        closure_add_todo(m, m->g->children[n->a], push(m, id, 1, 0, 0, f));
        break;
    case NODE_ALT:
        for (uint32_t i = 0; i < n->b; i++) closure_add_todo(m, m->g->children[n->a + i], f);
        break;
    case NODE_REPEAT:
        if (n->c == 0) closure_add_todo(m, IR_NEVER, f);
        closure_add_todo(m, n->a, push(m, id, 0, 0, 0, f));
        break;
    case NODE_CHARS:
        if (n->c == 0) closure_add_todo(m, IR_NEVER, f);
        closure_begin_term(m, push(m, id, 0, 0, 0, f), TERM_CHAR);
        break;
    case NODE_OBJECT:
        closure_begin_term(m, push(m, id, 0, 0, OBJECT_OPEN, f), TERM_OBJECT_OPEN);
        break;
    case NODE_REF:
        closure_add_todo(m, m->g->rules[n->a], f);
        break;
    }
}

/* Was this done before in this closure?  Notes it. */
static bool was_entered(grammar_machine *m, const todo *t) {
    if (m->n_entered >= m->entered_size / 2) {
        uint32_t size = m->entered_size == 0 ? 128 : m->entered_size * 2;
        entered *p = calloc(size, sizeof *p);
        if (p == NULL) {
            inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
            return true;
        }
        for (uint32_t i = 0; i < m->entered_size; i++) {
            if (m->entered[i].stamp != m->stamp) continue;
            uint32_t at = (uint32_t)hash_fold(hash_step(HASH_BEGIN, m->entered[i].what));
            while (p[at & (size - 1)].stamp != 0) at++;
            p[at & (size - 1)] = m->entered[i];
        }
        free(m->entered);
        m->entered = p;
        m->entered_size = size;
    }
    uint64_t what = (uint64_t)t->node << 32 | t->frame;
    uint32_t at = (uint32_t)hash_fold(hash_step(HASH_BEGIN, what)), mask = m->entered_size - 1;
    for (; m->entered[at & mask].stamp == m->stamp; at++)
        if (m->entered[at & mask].what == what) return true;
    m->entered[at & mask] = (entered){what, m->stamp};
    m->n_entered++;
    return false;
}

static void begin_closure(grammar_machine *m) {
    m->n_made = m->n_todos = m->n_entered = 0;
    m->made_accepts = false;
    if (++m->stamp == 0) { // stamps of long ago would count again
        if (m->entered != NULL) memset(m->entered, 0, m->entered_size * sizeof *m->entered);
        m->stamp = 1;
    }
}

/* False: the operation has done all it may. */
static bool count_steps(grammar_machine *m, uint32_t n) {
    m->n_steps += n;
    if (m->n_steps <= m->g->limits.steps_max) return true;
    inferd_fail(&m->failure, INFERD_ETOOLONG,
                "a mask or text needs more than steps_max = %u steps of the grammar",
                m->g->limits.steps_max);
    return false;
}

/* Does all that is to do, and gives the set its number. */
static uint32_t end_closure(grammar_machine *m) {
    while (m->n_todos > 0 && m->failure.status == INFERD_OK) {
        if (!count_steps(m, 1)) break;
        todo t = m->todos[--m->n_todos];
        if (was_entered(m, &t)) continue;
        if (t.node == IR_NEVER)
            advance(m, t.frame);
        else
            enter(m, t.node, t.frame);
    }
    if (m->failure.status != INFERD_OK) return STATE_DEAD;
    machine_sort(m->made, &m->n_made);
    return machine_intern(m, m->made, m->n_made, m->made_accepts);
}

uint32_t machine_start(grammar_machine *m) {
    begin_closure(m);
    closure_add_todo(m, m->g->root, 0);
    return end_closure(m);
}

uint32_t machine_move(grammar_machine *m, uint32_t s, uint32_t group) {
    const grammar *g = m->g;
    unsigned char byte = m->maps[m->states[s].map]->reps[group];
    begin_closure(m);
    uint32_t n = m->states[s].n_configs, first = m->states[s].configs;
    if (!count_steps(m, n)) return STATE_DEAD;
    for (uint32_t i = 0; i < n; i++) {
        config c = m->configs[first + i];
        if (c.t != 0) {
            object_move_key(m, &c, byte);
            continue;
        }
        uint32_t term = g->term_of[c.d], base = g->first_state[term];
        const dfa *a = &g->terms[term];
        uint32_t to = dfa_step(a, c.d - base, byte);
        if (to != DFA_DEAD) add_state_of(m, c.frame, base + to);
    }
    uint32_t to = end_closure(m);
    if (m->failure.status == INFERD_OK) m->succ[m->states[s].succ + group] = to;
    return to;
}
