/* parse.h - shared by the two halves of the parser.  Private to parse.c and parse_expr.c. */
#ifndef INFERD_CHAT_PARSE_H
#define INFERD_CHAT_PARSE_H

#include "chat/ast.h"
#include "chat/lex.h"

enum { JSYM_BUCKETS = 4096 };

typedef struct jsymbol {
    struct jsymbol *next; // in its bucket
    const jstr *name;
    uint32_t id;
} jsymbol;

typedef struct jmacro_scope {
    struct jmacro_scope *outer;
    jmacro_def *def;
} jmacro_scope;

typedef struct jparser {
    jctx *c;
    jlex lex;
    jtok now, next;
    int depth;            // of recursion
    int loops;            // enclosing loops within the macro: break needs one
    jmacro_scope *macros; // enclosing macros, innermost first
    jsymbol *buckets[JSYM_BUCKETS];
    const jstr **symbols;
    size_t n_symbols, symbols_capacity;
} jparser;

typedef struct jnode_list {
    jnode **v;
    size_t n, capacity;
} jnode_list;

/* parse.c */
void jparse_step(jparser *p); // to the next token
bool jparse_at_name(const jparser *p, const char *name);
bool jparse_skip(jparser *p, jtok_kind kind);
bool jparse_skip_name(jparser *p, const char *name);
void jparse_expect(jparser *p, jtok_kind kind, const char *what);
uint32_t jparse_symbol(jparser *p, bytes name);
_Noreturn void jparse_unexpected(jparser *p);
void jparse_enter(jparser *p); // counts recursion; paired with leave
void jparse_leave(jparser *p);
jnode *jparse_node(jparser *p, jnode_kind kind, uint32_t line);
void jparse_push(jparser *p, jnode_list *list, jnode *node);
/* Give `node` its kids and its depth. */
jnode *jparse_finish(jparser *p, jnode *node, const jnode_list *kids);

/* parse_expr.c */
enum { JTUPLE_SIMPLE = 1, JTUPLE_NO_IF = 2, JTUPLE_PARENS = 4, JTUPLE_NAMESPACE = 8 };
jnode *jparse_expression(jparser *p);
/* One expression, or several with commas: a tuple.  `end` is a name that ends it, or NULL. */
jnode *jparse_tuple(jparser *p, int mode, const char *end);
jnode *jparse_target(jparser *p, int mode, const char *end); // of an assignment
jnode *jparse_filters(jparser *p, jnode *value, bool begun); // "|a|b", or "a|b" when begun
jargs *jparse_args(jparser *p, uint16_t *depth);
const jstr *jparse_name(jparser *p); // the text of a name token, and go on

#endif
