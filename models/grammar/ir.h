/* ir.h - a grammar as a graph: what its front ends (schema.c, gbnf.c, ...) build and the machine
 * (machine.h) walks.
 *
 *     EMPTY                nothing
 *     NEVER                no text at all; a branch that is NEVER disappears
 *     TERM                 a text of an automaton (dfa.h)
 *     SEQ, ALT             children in order; one of them
 *     REPEAT               first (rest)*, min to max of both together: [first, rest, rest ...]
 *     STRING               a JSON string of min to max code points, quotes included
 *     OBJECT               a JSON object: named properties in order, then others; or in any order
 *     REF                  a rule, which may be recursive, but not left-recursive
 *
 * Nodes are hash-consed: building the same node twice gives the same index.  Nodes are never
 * changed or freed before the whole.  A count is a number on the machine's stack, so a large bound
 * costs nothing.  Building never fails at once: the first failure is kept (ir_status) and later
 * calls return IR_NEVER.
 *
 * Thread: any; an ir belongs to its builder until ir_finish. */
#ifndef INFERD_IR_H
#define INFERD_IR_H

#include "dfa.h"
#include "inferd/base.h"
#include "inferd/status.h"
#include "models/grammar.h"

typedef struct ir ir;
typedef uint32_t ir_node;

enum { IR_NEVER = 0, IR_EMPTY = 1 }; // always there
#define IR_NO_MAX UINT32_MAX
enum { IR_ANY_ORDER_MAX = 64 };

ir *ir_create(const grammar_limits *limits); // NULL: no memory
void ir_destroy(ir *g);                      // accepts NULL
const grammar_limits *ir_limits(const ir *g);
/* The first failure of building.  ir_fail records one, unless there was one. */
inferd_status ir_status(const ir *g, inferd_err *err);
__attribute__((format(printf, 3, 4))) void ir_fail(ir *g, inferd_status status, const char *format,
                                                   ...);

/* What was built since a mark can be dropped, also after a failure; there was none at the mark. */
typedef struct ir_mark {
    uint32_t n_nodes, n_children, n_rules, n_objects, n_terms;
} ir_mark;
ir_mark ir_mark_now(const ir *g);
void ir_go_back(ir *g, const ir_mark *to);

ir_node ir_literal(ir *g, bytes text);
ir_node ir_term(ir *g, dfa *take); // the automaton is the grammar's from now on; *take is zeroed
ir_node ir_seq(ir *g, const ir_node *nodes, size_t n);
ir_node ir_alt(ir *g, const ir_node *nodes, size_t n);
/* min <= max; IR_NO_MAX.  A `first` or `rest` that may be empty allows fewer than min. */
ir_node ir_repeat(ir *g, ir_node first, ir_node rest, uint32_t min, uint32_t max);
/* A JSON string of any content, min to max code points (IR_NO_MAX), in any valid encoding. */
ir_node ir_string(ir *g, uint32_t min, uint32_t max);
ir_node ir_white(ir *g); // optional white space of JSON, limits.white_bytes_max at most
ir_node ir_comma(ir *g); // a comma, and white space around it
ir_node ir_colon(ir *g);

/* A rule may be referred to before it is set. */
uint32_t ir_rule(ir *g);
void ir_rule_set(ir *g, uint32_t rule, ir_node node);
ir_node ir_ref(ir *g, uint32_t rule);

typedef struct ir_property {
    bytes name; // UTF-8, decoded; borrowed for the call
    bool required;
    ir_node value; // IR_NEVER: the property must not be there (an error of the schema if required)
} ir_property;

typedef struct ir_object_spec {
    const ir_property *properties; // [n_properties] in the order in which they are written
    size_t n_properties;
    /* Properties with other names, behind the named ones: the names as automaton over the content
     * of a JSON string in canonical encoding, without quotes; its tag is an index of other_values.
     * Declared names never count as others, so it may accept them.  NULL: none. */
    dfa *others;                 // taken, and zeroed
    const ir_node *other_values; // [n_other_values]
    size_t n_other_values;
    uint32_t min, max; // of properties; IR_NO_MAX
    /* Named properties and others in any order; of more than IR_ANY_ORDER_MAX named ones: as
     * listed. */
    bool any_order;
} ir_object_spec;
/* White space is allowed where JSON allows it. */
ir_node ir_object(ir *g, const ir_object_spec *spec);

/* A JSON array: prefix[0], prefix[1], ..., then `rest` each (IR_NEVER: no more); min to max items,
 * where prefix items may be missing down to min. */
ir_node ir_array(ir *g, const ir_node *prefix, size_t n_prefix, ir_node rest, uint32_t min,
                 uint32_t max);

/* Reasoning up to this mark and with it (grammar_options), anywhere: the first one's mark counts.
 */
ir_node ir_reasoning(ir *g, bytes end);
/* The text is JSON.  Where it may reason first, white space leads to both: in front of the text it
 * is JSON, too. */
void ir_is_json(ir *g);
/* The end of building: takes `g` in any case.  Fails with what building failed with, and with: no
 * text matches; left recursion.  Puts the reasoning of `options` before the text, and its marks
 * around it. */
inferd_status ir_finish(ir *g, ir_node root, const grammar_options *options, grammar **out,
                        inferd_err *err);

#endif
