/* closure.h - what the closure of a set of configs is made of: machine_closure.c does it, and
 * machine_object.c what concerns objects.
 *
 * Thread: under the machine's lock. */
#ifndef INFERD_GRAMMAR_CLOSURE_H
#define INFERD_GRAMMAR_CLOSURE_H

#include "machine.h"

/* Enter the node with frame f behind it, or, for IR_NEVER, go on behind f's child.  f may be
 * FRAME_NONE: that way does not exist. */
void closure_add_todo(grammar_machine *m, ir_node node, uint32_t f);
void closure_add_config(grammar_machine *m, uint32_t f, uint32_t d, uint32_t t);
void closure_begin_term(grammar_machine *m, uint32_t f, uint32_t term);

/* What needs these frames can be written on a stack of this depth. */
static inline bool closure_has_room(const grammar_machine *m, uint32_t depth, uint32_t nests) {
    return nests <= m->g->limits.stack_max && depth <= m->g->limits.stack_max - nests;
}

/* The node has a text, without which its `nests` is GRAMMAR_NO_TEXT, and does not nest too deeply:
 * so no way that is begun ends for want of frames. */
static inline bool closure_fits(const grammar_machine *m, uint32_t depth, ir_node node) {
    return closure_has_room(m, depth, m->g->nests[node]);
}

/* One more, where only the way to min and max matters. */
static inline uint32_t closure_count_on(uint32_t count, uint32_t min, uint32_t max) {
    return max == IR_NO_MAX ? u32_min(count + 1, min) : count + 1;
}

/* The object's frame f goes on with its next phase (a copy: frames move). */
void object_advance(grammar_machine *m, const frame *f);
/* A byte inside a name. */
void object_move_key(grammar_machine *m, const config *c, unsigned char byte);

#endif
