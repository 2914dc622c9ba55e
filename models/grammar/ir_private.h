/* ir_private.h - the graph while it is built; ir.c, ir_object.c and ir_finish.c see it. */
#ifndef INFERD_IR_PRIVATE_H
#define INFERD_IR_PRIVATE_H

#include "grammar.h"
#include "ir.h"

struct ir {
    grammar_limits limits;
    inferd_err failure; // the first one
    graph_node *nodes;  // [n_nodes] owned, as all arrays here
    uint32_t n_nodes, nodes_capacity;
    ir_node *children;
    uint32_t n_children, children_capacity;
    ir_node *rules;
    uint32_t n_rules, rules_capacity;
    object *objects;
    uint32_t n_objects, objects_capacity;
    dfa *terms;
    uint32_t n_terms, terms_capacity;
    bool json;    // white space may stand before the text
    bool reasons; // there are these two terminals (grammar.h)
    uint32_t reasoning, closing;
    ir_node reasoning_node;
    uint32_t *table; // [table_size] nodes by hash; UINT32_MAX: none
    uint32_t table_size;
};

bool ir_add_fixed_terms(ir *g); // ir_terms.c: into terms[0, TERMS_FIXED).  False: no memory
ir_node ir_term_node(ir *g, uint32_t term);
ir_node ir_object_node(ir *g, uint32_t at);
object *ir_new_object(ir *g); // NULL: recorded; valid until the next one
void ir_objects_free(object *objects, uint32_t n);
/* ir_measure.c: shortest texts and frames of all nodes, when states are numbered. */
inferd_status grammar_measure(grammar *g, inferd_err *err);
dfa_limits ir_dfa_limits(const ir *g);

#endif
