/* regex_private.h - the parts of the pattern compiler.
 *
 *     pattern --regex_parse--> tree, sets of code points
 *     sets    --symbols_of_sets--> symbols: code points that no set tells apart
 *     tree    --regex_automaton--> a table over symbols, deterministic and minimal
 *     table   --regex_bytes--> an automaton over the bytes in which a code point is written
 *
 * Determinization happens over symbols, of which a pattern has few, and not over bytes: a state
 * that reads any character has one edge there, and a dozen states once it is written in bytes.
 *
 * Thread: any; all of it belongs to one call of the compiler. */
#ifndef INFERD_REGEX_PRIVATE_H
#define INFERD_REGEX_PRIVATE_H

#include "dfa_private.h"

enum { CODE_POINT_MAX = 0x10FFFF, SURROGATE_FIRST = 0xD800, SURROGATE_LAST = 0xDFFF };

static inline int hex_value(char c) { // -1: no hexadecimal digit
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* ---- sets of code points (regex_sets.c) ---- */

typedef struct code_range {
    uint32_t first, last;
} code_range;
/* Ranges in any order while they are added; sorted, apart and without surrogates once normal. */
typedef struct code_set {
    code_range *ranges; // [n] owned
    uint32_t n, capacity;
    bool failed; // no memory
} code_set;
void code_set_deinit(code_set *s);
void code_set_add(code_set *s, uint32_t first, uint32_t last);
void code_set_normalize(code_set *s);
void code_set_complement(code_set *s); // normalizes
/* Adds the code points with a General_Category in `categories`, a bit for each. */
void code_set_add_categories(code_set *s, uint32_t categories);
/* The categories of \p{name}; 0: no such name is known. */
uint32_t code_categories(bytes name);

/* What a class escape stands for.  ECMA-262 and Python differ beyond ASCII, so there are two sets:
 * what both call a member, and what either does.  A negation uses the larger one, so whatever a
 * pattern accepts here, both accept. */
typedef enum code_class { CLASS_DIGIT, CLASS_WORD, CLASS_SPACE } code_class;
void code_set_add_class(code_set *s, code_class kind, bool either);
void code_set_add_dot(code_set *s, bool either); // all but the ends of lines

/* ---- trees (regex_parse.c) ---- */

typedef enum regex_kind {
    REGEX_EMPTY,
    REGEX_SET,    // a code point of set `a`
    REGEX_BEGIN,  // ^
    REGEX_END,    // $
    REGEX_SEQ,    // a, then b
    REGEX_ALT,    // a or b
    REGEX_REPEAT, // a, min to max times
    REGEX_RULE,   // the body of rule a, named in that of rule b: only in GBNF
} regex_kind;
#define REGEX_NO_MAX UINT32_MAX

typedef struct regex_node {
    regex_kind kind;
    uint32_t a, b, min, max;
} regex_node;
typedef struct regex_tree {
    regex_node *nodes; // [n] owned; node 0 is REGEX_EMPTY
    uint32_t n, capacity, root;
    const uint32_t *bodies; // borrowed; the node of each rule; NULL: no rules
    dfa_keys sets;          // normal sets of code points: first, last, first, last ...
} regex_tree;
void regex_tree_deinit(regex_tree *t);
/* The part [begin, end) of a pattern.  wide: what one of the languages accepts, not both. */
inferd_status regex_parse(bytes pattern, size_t begin, size_t end, bool wide,
                          const dfa_limits *limits, regex_tree *out, inferd_err *err);
/* A node; two in order, of which either may be empty.  False: no memory. */
bool regex_add_node(regex_tree *t, regex_node node, uint32_t *out);
bool regex_add_seq(regex_tree *t, uint32_t a, uint32_t b, uint32_t *out);
/* The number of a set, which is normalized.  DFA_DEAD: no memory. */
uint32_t regex_put_set(regex_tree *t, code_set *set);

/* ---- symbols (regex_symbols.c) ---- */

typedef struct code_interval {
    uint32_t first, last, symbol;
} code_interval;
typedef struct symbols {
    uint32_t n;               // of symbols
    code_interval *intervals; // [n_intervals] owned; ascending; no set has what is between them
    uint32_t n_intervals;
    uint32_t *members;    // owned; the symbols of set i: [members_at[i], members_at[i + 1])
    uint32_t *members_at; // owned
} symbols;
void symbols_deinit(symbols *s);
bool symbols_of_sets(const dfa_keys *sets, symbols *out); // false: no memory

/* ---- from trees to automata (regex_nfa.c, regex_subsets.c) ---- */

typedef enum nfa_kind { NFA_SET, NFA_SPLIT, NFA_BEGIN, NFA_END, NFA_ACCEPT } nfa_kind;
typedef struct nfa_state {
    nfa_kind kind;
    uint32_t out;   // the next state
    uint32_t other; // NFA_SPLIT: the other next state.  NFA_SET: the set
} nfa_state;
typedef struct nfa {
    nfa_state *states; // [n] owned
    uint32_t n, capacity, start;
    uint32_t rest; // a state that reads any character, after which all is accepted; DFA_DEAD: none
} nfa;
/* any_set: the set of all code points for a pattern that may match anywhere; DFA_DEAD: it matches
 * the whole text. */
inferd_status nfa_of_tree(const regex_tree *t, uint32_t any_set, const dfa_limits *limits, nfa *out,
                          inferd_err *err);
inferd_status nfa_determinize(const nfa *n, const symbols *s, const dfa_limits *limits,
                              dfa_table *out, inferd_err *err);

/* ---- bytes (regex_bytes.c) ---- */

/* Takes the table over symbols; each symbol is replaced by the bytes of its code points. */
inferd_status regex_bytes(dfa_table *t, const symbols *s, bool json, const dfa_limits *limits,
                          dfa *out, inferd_err *err);

#endif
