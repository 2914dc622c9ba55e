/* gbnf.h - llama.cpp's grammar format: what gbnf_parse.c reads and gbnf.c builds from.
 *
 * All rules share one tree of nodes (regex_private.h), in which children come before parents.
 *
 * Thread: any; all of it belongs to one call of grammar_of_gbnf. */
#ifndef INFERD_GBNF_H
#define INFERD_GBNF_H

#include "models/grammar.h"
#include "regex_private.h"

typedef struct gbnf_rule {
    bytes name;        // borrowed from the source
    size_t at;         // where it is named first, an offset in the source
    size_t defined_at; // the same, of its definition
    uint32_t body;     // a node of the tree
    bool defined;
} gbnf_rule;

typedef struct gbnf {
    bytes source;
    regex_tree tree;
    gbnf_rule *rules; // [n_rules] owned; rule 0 is the root
    uint32_t n_rules, rules_capacity;
} gbnf;

void gbnf_deinit(gbnf *g);
inferd_status gbnf_parse(bytes source, const grammar_limits *limits, gbnf *out, inferd_err *err);
/* Refuses, with its name, a rule that begins with itself. */
inferd_status gbnf_check_left(const gbnf *g, inferd_err *err);
/* "grammar: line 3, column 7: what" */
inferd_status gbnf_refuse(bytes source, inferd_status status, size_t at, const char *what,
                          bytes name, inferd_err *err);

#endif
