/* grammar.h - a finished grammar: the graph of ir.h, analysed.  The machine reads it.
 *
 * Of each node the length of its shortest text is known (GRAMMAR_NO_TEXT: it has none, and is never
 * entered), of each state of an automaton the way to the nearest accepting one.  Terminals are
 * numbered through: state s of terminal t is first_state[t] + s.
 *
 * Thread: any; immutable. */
#ifndef INFERD_GRAMMAR_PRIVATE_H
#define INFERD_GRAMMAR_PRIVATE_H

#include <stdatomic.h>

#include "dfa.h"
#include "ir.h"

#define GRAMMAR_NO_TEXT UINT32_MAX
/* What may follow a state: any plain text; some plain text; some byte. */
enum { GRAMMAR_PLAIN = 1, GRAMMAR_TAKES_PLAIN = 2, GRAMMAR_GOES_ON = 4 };

typedef enum node_kind {
    NODE_NEVER,
    NODE_EMPTY,
    NODE_TERM,   // a: terminal
    NODE_SEQ,    // a: first of b children
    NODE_ALT,    // likewise
    NODE_REPEAT, // a: first, b: rest, c: min, d: max
    NODE_CHARS,  // c to d characters of a JSON string; always inside quotes
    NODE_OBJECT, // a: object
    NODE_REF     // a: rule
} node_kind;

typedef struct graph_node {
    node_kind kind;
    uint32_t a, b, c, d;
} graph_node;

/* The names of an object's properties as a trie over their canonical encoding. */
typedef struct key_node {
    uint32_t children, n_children; // in key_nodes, ascending by byte
    uint32_t begin, end;           // of the names below it, in by_name
    uint32_t property;             // with the name that ends here, or UINT32_MAX
    uint32_t depth;                // bytes from the root
    unsigned char byte;            // that leads here
} key_node;

typedef struct object {
    uint32_t n_properties;
    ir_node *values;         // [n_properties]
    bool *required;          // [n_properties]
    uint32_t *next_required; // [n_properties + 1] the first required one from here on, or n
    uint32_t *n_required;    // [n_properties + 1] how many from here on
    uint32_t *by_name;       // [n_properties] properties in the order of their encoded names
    uint32_t *name_bytes;    // [n_properties] of the encoded name
    uint32_t *needs;         // [n_properties + 1] bytes that must follow a value before this one
    key_node *key_nodes;     // [n_key_nodes] the first is the root
    uint32_t n_key_nodes;
    uint32_t others;       // terminal of other names; UINT32_MAX: none
    ir_node *other_values; // [n_other_values]
    uint32_t n_other_values;
    uint32_t others_nest; // the most name_nests where plain text may follow
    uint32_t min, max;
    bool any_order;       // a frame's set says which were written
    uint64_t must;        // of any_order: the required ones
    uint8_t classes[256]; // bytes that no name tells apart
    uint32_t n_classes;
} object;

/* Terminals that every grammar has; `_` is optional white space. */
enum {
    TERM_WHITE,        // _
    TERM_OBJECT_OPEN,  // {
    TERM_KEY_FIRST,    // _ "
    TERM_KEY_NEXT,     // _ , _ "
    TERM_COLON,        // _ : _
    TERM_OBJECT_CLOSE, // _ }
    TERM_ARRAY_OPEN,   // [ _
    TERM_COMMA,        // _ , _
    TERM_ARRAY_CLOSE,  // _ ]
    TERM_ARRAY_EMPTY,  // ]
    TERM_QUOTE,        // "
    TERM_CHAR,         // one character of a JSON string, in any encoding
    TERM_STRING,       // a JSON string, quotes included
    TERMS_FIXED
};

struct grammar {
    atomic_uint n_refs;
    grammar_limits limits;
    graph_node *nodes; // [n_nodes]
    uint32_t n_nodes;
    ir_node *children; // [n_children]
    uint32_t n_children;
    ir_node *rules; // [n_rules]
    uint32_t n_rules;
    object *objects; // [n_objects]
    uint32_t n_objects;
    dfa *terms; // [n_terms]
    uint32_t n_terms;
    ir_node root;
    uint32_t reasoning; // terminal: text up to its closing mark; UINT32_MAX: no reasoning
    uint32_t closing;   // of the same states, but only the shortest ways to the end of the mark

    uint32_t *shortest;    // [n_nodes] bytes of the shortest text
    uint32_t *nests;       // [n_nodes] frames of the text that needs the fewest
    uint32_t *first_state; // [n_terms + 1]
    uint32_t *term_of;     // [n_states] of a state numbered through
    uint32_t *distance;    // [n_states] bytes to the nearest accepting state
    uint32_t *name_nests;  // [n_states] inside a name of others: `nests` of a value it can have
    uint8_t *follow;       // [n_states] GRAMMAR_PLAIN and others; plain text: vocab.h
    size_t n_bytes;        // of all arrays
};

uint32_t grammar_n_states(const grammar *g);

#endif
