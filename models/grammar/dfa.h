/* dfa.h - deterministic automata over bytes, and the operations that build them.
 *
 * The terminals of a grammar (ir.h) are such automata: a literal, a pattern, the numbers of a
 * range. Every automaton here is trimmed: each of its states can reach an accepting one, so a text
 * that has a state can be completed.  State 0 is the start.  n_states 0 is the empty language.
 *
 * Bytes that no state tells apart share a class.  A dense automaton has a table with a column per
 * class; a large set of literals, where nearly every state has one way on, has lists of edges
 * instead.  dfa_step reads both.
 *
 * All operations are iterative and bounded by dfa_limits; a language that needs more states is an
 * INFERD_ETOOLONG that says so.
 * Thread: any; a dfa belongs to its owner. */
#ifndef INFERD_DFA_H
#define INFERD_DFA_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

#define DFA_DEAD UINT32_MAX

typedef struct dfa {
    uint8_t classes[256]; // of each byte
    uint32_t n_classes, n_states;
    uint32_t *tags; // [n_states] owned; 0: does not accept, else 1 + the tag of what was read
    uint32_t *next; // [n_states, n_classes] owned; DFA_DEAD: no way on.  NULL: lists of edges
    uint32_t
        *edges_at; // [n_states + 1] owned; the edges of state s: [edges_at[s], edges_at[s + 1])
    uint8_t *edge_class; // [n_edges] owned; ascending within a state
    uint32_t *edge_to;   // [n_edges] owned
} dfa;

/* The state after `state` and a byte of this class (this byte); DFA_DEAD: there is none. */
static inline uint32_t dfa_step_class(const dfa *d, uint32_t state, uint32_t byte_class) {
    if (d->next != NULL) return d->next[(size_t)state * d->n_classes + byte_class];
    uint32_t low = d->edges_at[state], high = d->edges_at[state + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (d->edge_class[middle] == byte_class) return d->edge_to[middle];
        if (d->edge_class[middle] < byte_class)
            low = middle + 1;
        else
            high = middle;
    }
    return DFA_DEAD;
}
static inline uint32_t dfa_step(const dfa *d, uint32_t state, unsigned char byte) {
    return dfa_step_class(d, state, d->classes[byte]);
}

/* The ways on of a state, one after the other, for loops over all edges: way i leads to a state, or
 * to DFA_DEAD, with bytes of a class. */
static inline uint32_t dfa_n_ways(const dfa *d, uint32_t state) {
    return d->next != NULL ? d->n_classes : d->edges_at[state + 1] - d->edges_at[state];
}
static inline uint32_t dfa_way(const dfa *d, uint32_t state, uint32_t i) {
    return d->next != NULL ? d->next[(size_t)state * d->n_classes + i]
                           : d->edge_to[d->edges_at[state] + i];
}
static inline uint32_t dfa_way_class(const dfa *d, uint32_t state, uint32_t i) {
    return d->next != NULL ? i : d->edge_class[d->edges_at[state] + i];
}

typedef struct dfa_limits {
    uint32_t nfa_states_max;    // while a pattern is built       default 65,536
    uint32_t states_max;        // of one automaton               default 16,384
    uint32_t pattern_bytes_max; // of one pattern                 default 4 KiB
    uint32_t nesting_max;       // of groups in a pattern         default 50
    uint32_t repeat_max;        // {m,n} that is expanded         default 4,096
} dfa_limits;
extern const dfa_limits dfa_limits_default;

void dfa_deinit(dfa *d); // accepts a zeroed dfa
bool dfa_is_empty(const dfa *d);
size_t dfa_bytes(const dfa *d); // of its arrays
/* The tag + 1 that the automaton accepts this text with; 0: it does not. */
uint32_t dfa_match(const dfa *d, bytes text);
inferd_status dfa_copy(const dfa *d, dfa *out, inferd_err *err);

/* Exactly these texts; text i has tag tags[i] (NULL: all 0).  A text given twice: the lower tag.
 * States are bounded by the bytes of the texts, not by limits. */
inferd_status dfa_of_literals(const bytes *texts, const uint32_t *tags, size_t n,
                              const dfa_limits *limits, dfa *out, inferd_err *err);

/* What both accept (tag of a) / what a accepts and b does not (tag of a) / what any accepts (the
 * tag of a, where both accept). */
inferd_status dfa_and(const dfa *a, const dfa *b, const dfa_limits *limits, dfa *out,
                      inferd_err *err);
inferd_status dfa_and_not(const dfa *a, const dfa *b, const dfa_limits *limits, dfa *out,
                          inferd_err *err);
inferd_status dfa_or(const dfa *a, const dfa *b, const dfa_limits *limits, dfa *out,
                     inferd_err *err);
/* The product of n <= 16 automata over what `all` accepts; the tag is the set of those that accept,
 * as bits. */
inferd_status dfa_classify(const dfa *all, const dfa *const *parts, size_t n,
                           const dfa_limits *limits, dfa *out, inferd_err *err);
/* Fewest states, in time n log n.  Lists of edges are left as they are. */
inferd_status dfa_minimize(dfa *d, inferd_err *err);

/* ---- patterns (regex.c): ECMA-262 with the u flag, less back-references, \b, \B and look-around,
 * which are an INFERD_EUNSUPPORTED that names the construct and its offset; but look-aheads at the
 * beginning, behind ^, are enforced.  What ECMA-262 and Python's re understand differently, \w of
 * é, is accepted if both accept it. ---- */

typedef enum regex_use {
    REGEX_TEXT,        // the whole text, as bytes of UTF-8
    REGEX_JSON_WHOLE,  // the whole content of a JSON string, in its canonical encoding, no quotes
    REGEX_JSON_SEARCH, // the same, where the pattern may match anywhere in it, as JSON Schema says
    REGEX_JSON_SEARCH_WIDE // the same, accepted if one of the two languages accepts it: to be
                           // excluded
} regex_use;
inferd_status regex_compile(bytes pattern, regex_use use, const dfa_limits *limits, dfa *out,
                            inferd_err *err);

/* The content of a JSON string of min to max code points, canonically encoded: quote and backslash
 * escaped, controls as \b \f \n \r \t or \u00xx in lower case, all else as UTF-8.
 * max UINT32_MAX: no bound. */
inferd_status dfa_of_json_lengths(uint32_t min, uint32_t max, const dfa_limits *limits, dfa *out,
                                  inferd_err *err);
/* Appends the canonical encoding of UTF-8 text, without quotes. */
void json_canonical(buf *out, bytes text);

/* ---- numbers (number.c) ---- */

enum { NUMBER_DIGITS_MAX = 40 }; // before the point, and behind it, where the schema sets no bound

typedef struct number_range {
    bool integer;
    bool has_min, has_max, open_min, open_max; // open: the bound itself is not allowed
    double min, max;
    /* Bounds beyond 2^53 are exact only as integers: used instead of min, max when set. */
    bool exact;
    int64_t min_int, max_int;
    double multiple_of; // 0: any
} number_range;
/* JSON numbers of the range: without an exponent where there is a bound or a multiple.  A multiple
 * that cannot be enforced is an INFERD_EUNSUPPORTED. */
inferd_status dfa_of_numbers(const number_range *range, const dfa_limits *limits, dfa *out,
                             inferd_err *err);

/* ---- formats (formats.c) ---- */

/* The content of a JSON string of this JSON Schema format, no quotes.  INFERD_EUNSUPPORTED: no such
 * format is known. */
inferd_status dfa_of_format(const char *name, const dfa_limits *limits, dfa *out, inferd_err *err);
/* The same as text, which is not in JSON. */
inferd_status dfa_of_format_text(const char *name, const dfa_limits *limits, dfa *out,
                                 inferd_err *err);

#endif
