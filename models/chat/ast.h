/* ast.h - a parsed template.
 *
 * Nodes lie in the template's arena and never change, so any number of threads may render it.
 * Operators of one precedence are one node with many kids ("a ~ b ~ c"), and so are the branches of
 * an if: the tree is only as deep as the source is nested, at most JAST_DEPTH_MAX.
 *
 * Names are numbers (symbols), so a lookup compares no text.
 *
 * Thread: any, read-only. */
#ifndef INFERD_CHAT_AST_H
#define INFERD_CHAT_AST_H

#include "chat/value.h"

enum { JAST_DEPTH_MAX = 200 };

typedef enum jnode_kind {
    // expressions                 kids
    JN_CONST,   // value
    JN_NAME,    // id
    JN_LIST,    // items
    JN_TUPLE,   // items
    JN_DICT,    // key, value, key, value, ..
    JN_ATTR,    // owner           value: the name
    JN_ITEM,    // owner, subscript
    JN_SLICE,   // start, stop, step, each may be NULL
    JN_CALL,    // callee          args
    JN_FILTER,  // value or NULL   fn, value: the name, args
    JN_TEST,    // value           fn, value: the name, args
    JN_IF_ELSE, // condition, then, else or NULL
    JN_OR,      // two or more
    JN_AND,     // two or more
    JN_NOT,
    JN_NEGATE,
    JN_PLUS,
    JN_COMPARE, // first, ..       ops[n_kids - 1]
    JN_ARITH,   // first, ..       ops[n_kids - 1], from left to right
    JN_CONCAT,  // two or more
    JN_NS_ATTR, // a target only   id, value: the attribute
    // statements
    JN_BODY,         // statements
    JN_TEXT,         // value
    JN_PRINT,        // expressions
    JN_IF,           // condition, body, condition, body, .., [body of else]
    JN_FOR,          // see JFOR_*, flag: recursive
    JN_SET,          // target, expression
    JN_SET_BLOCK,    // target, body, filter chain or NULL
    JN_MACRO,        // id, macro
    JN_CALL_BLOCK,   // call       macro: the caller
    JN_FILTER_BLOCK, // filter chain, body
    JN_WITH,         // body, target, value, target, value, ..
    JN_GENERATION,   // body
    JN_BREAK,
    JN_CONTINUE,
} jnode_kind;

enum { JFOR_TARGET, JFOR_OVER, JFOR_TEST, JFOR_BODY, JFOR_ELSE, JFOR_N_KIDS };

typedef struct jnode jnode;

typedef struct jargs {
    jnode **pos; // [n_pos]
    jnode **kw;  // [n_kw]
    const jstr **kw_names;
    size_t n_pos, n_kw;
    jnode *star, *star_star; // *list, **dict; or NULL
} jargs;

typedef struct jmacro_def {
    const jstr *name;
    uint32_t *params; // [n_params] symbols
    jnode **defaults; // [n_defaults] of the last ones
    size_t n_params, n_defaults;
    jnode *body;
    bool uses_caller, uses_kwargs, uses_varargs;
} jmacro_def;

struct jnode {
    uint8_t kind;
    bool flag;
    uint16_t depth;
    uint32_t line;
    uint32_t id;
    uint32_t n_kids;
    jnode **kids;
    union {
        const uint8_t *ops;
        const jargs *args;
        const jmacro_def *macro;
    };
    const void *fn; // JN_FILTER: const jfilter *, JN_TEST: const jtest *; NULL: unknown
    jval value;
};

/* JN_COMPARE and JN_ARITH */
enum {
    JOP_EQ,
    JOP_NE,
    JOP_LT,
    JOP_LE,
    JOP_GT,
    JOP_GE,
    JOP_IN,
    JOP_NOT_IN,
    JOP_ADD,
    JOP_SUB,
    JOP_MUL,
    JOP_DIV,
    JOP_FLOORDIV,
    JOP_MOD,
    JOP_POW
};

/* Symbols that the interpreter itself needs have fixed numbers. */
enum { JSYM_LOOP, JSYM_CALLER, JSYM_KWARGS, JSYM_VARARGS, JSYM_N_FIXED };

typedef struct jast {
    jnode *root;
    const jstr **symbols; // [n_symbols] NUL-terminated
    uint32_t n_symbols;
    const bool *hidden; // [n_symbols] see names.c
} jast;

/* Fails through c->exit. */
void jast_parse(jctx *c, bytes source, jast *out);
/* names.c: set out->hidden. */
void jast_find_hidden(jctx *c, jast *ast);

#endif
