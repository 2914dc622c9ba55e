/* interp.h - running a parsed template: declarations shared by its files.
 *
 *     eval.c     expressions: node -> value            attr.c     x.y and x[y]
 *     exec.c     statements, scopes, loops, macros     ops.c      + - * / and friends
 *     call.c     arguments                             format.c   '%s' % x and '{}'.format(x)
 *     filters_text.c, filters_list.c, is.c, methods.c, globals.c   functions of templates
 *     text.c     helpers shared by several of those
 *
 * Scopes form a chain; the outermost is `globals`, indexed by symbol and filled from the request
 * when a name is first read.  A macro keeps the chain it was defined in.  Everything a template can
 * call is a C function of one of four tables, found by name when the template is parsed (filters,
 * tests) or when it is looked up (methods, functions).
 *
 * Bounds: c.steps (every executed node is a step), `calls` (nesting of macros and recursive loops),
 * and `nest`, the recursion in C: at its bound a render needs less than 512 KiB of stack.
 *
 * Thread: that of the render. */
#ifndef INFERD_CHAT_INTERP_H
#define INFERD_CHAT_INTERP_H

#include "chat/ast.h"
#include "chat/print.h"
#include "chat/value.h"

enum { JNEST_MAX = 2000, JRANGE_MAX = 100000, JWIDTH_MAX = 100000 };

typedef struct jbinding {
    uint32_t id;
    jval value;
} jbinding;

typedef struct jscope {
    struct jscope *outer; // NULL: the globals
    jbinding *vars;       // [n]
    size_t n, capacity;
    bool kept; // by a macro: must not be reused
} jscope;

typedef struct jrender {
    jctx c; // first: memory and exit of the render
    const jast *ast;
    json_t *trusted, *vars; // borrowed; may be NULL
    const struct tm *now;
    jval *globals; // [ast->n_symbols] JV_MISSING until looked up
    jscope *scope; // innermost; NULL: the globals
    jbuf *out;     // the present output
    size_t nest, calls, calls_max;
    json_t *parsed; // owned: the document that from_json is reading
} jrender;

typedef struct jkwarg {
    const jstr *name;
    jval value;
} jkwarg;

typedef struct jcall {
    jval *pos;  // [n]
    jkwarg *kw; // [n_kw]
    size_t n, n_kw;
} jcall;

typedef struct jfilter {
    const char *name;
    jval (*run)(jrender *r, jval value, const jcall *call);
} jfilter;
typedef struct jtest {
    const char *name;
    bool (*run)(jrender *r, jval value, const jcall *call);
} jtest;
typedef struct jmethod {
    const char *name;
    jval (*run)(jrender *r, jval self, const jcall *call);
} jmethod;
struct jfunction {
    const char *name;
    jval (*run)(jrender *r, const jcall *call);
};
struct jbound {
    jval self;
    const jmethod *method;
};
struct jmacro {
    const jmacro_def *def;
    jscope *scope; // where it was defined
};

/* A running loop: the template's variable `loop`. */
struct jloop {
    const jnode *node;
    jscope *outer; // around the loop
    jiter it;
    jval current, before;
    jval after; // read ahead, when `peeked`; JV_MISSING: there is none
    bool peeked, drained, length_known;
    size_t index0, length, depth0;
    jlist *last_changed;
};

/* exec.c */
void jexec_template(jrender *r);
jval jscope_get(jrender *r, uint32_t id);
void jassign(jrender *r, const jnode *target, jval v);
const jstr *jmacro_call(jrender *r, const jmacro *macro, const jcall *call);
const jstr *jloop_recurse(jrender *r, jloop *loop, jval over);
bool jloop_peek(jrender *r, jloop *loop); // false: `current` is the last
size_t jloop_length(jrender *r, jloop *loop);
void jnest_enter(jrender *r, const jnode *node);

/* eval.c */
jval jeval(jrender *r, const jnode *node);
jcall jeval_args(jrender *r, const jargs *args);
jval jeval_filters(jrender *r, const jnode *node, jval v); // a chain with the first value `v`

/* ops.c */
jval jop_arith(jrender *r, int op, jval a, jval b);
bool jop_compare(jrender *r, int op, jval a, jval b);
jval jop_negate(jrender *r, jval v);
jval jop_plus(jrender *r, jval v);

/* attr.c */
jval jattr_get(jrender *r, jval owner, const jstr *name);       // owner.name
jval jattr_item(jrender *r, jval owner, jval key);              // owner[key]
jval jattr_path(jrender *r, jval v, jval path, jval otherwise); // "a.b.0", the form of filters

/* call.c */
jval jcall_value(jrender *r, jval callee, const jcall *call);
/* Sort the arguments of a call into `slots` by the names in `params`, "width first? blank?":
 * those with a question mark may be missing (JV_MISSING). */
void jcall_bind(jrender *r, const jcall *call, const char *what, const char *params, jval *slots);
const jstr *jarg_str(jrender *r, jval v, const char *what); // fails when it is no string
int64_t jarg_int(jrender *r, jval v, const char *what);
int64_t jarg_int_or(jrender *r, jval v, const char *what, int64_t otherwise);
bool jarg_true(jval v); // missing is false
const jstr *jarg_str_or(jrender *r, jval v, const char *what, const char *otherwise);

/* The tables. */
const jfilter *jfilter_find(const jstr *name);
const jtest *jtest_find(const jstr *name);
const jmethod *jmethod_find(jval self, const jstr *name);
const jmethod *jmethod_of_container(jval self, const jstr *name); // list, tuple, dict
const jmethod *jmethod_search(const jmethod *methods, size_t n, const jstr *name);
const jfunction *jfunction_find(const jstr *name);
bool jmethod_refused(jval self, const jstr *name); // the sandbox hides it
extern const jfilter jfilters_text[], jfilters_list[];
extern const size_t jfilters_text_n, jfilters_list_n;
bool jtest_run(jrender *r, const jstr *name, jval v, const jcall *call);

/* format.c */
const jstr *jformat_percent(jrender *r, const jstr *format, jval args);
const jstr *jformat_braces(jrender *r, const jstr *format, const jcall *call);

/* Helpers of filters and methods. */
const jstr *jtext_upper(jctx *c, const jstr *s);
const jstr *jtext_lower(jctx *c, const jstr *s);
const jstr *jtext_capitalize(jctx *c, const jstr *s);
const jstr *jtext_title(jctx *c, const jstr *s); // as the method; the filter has other rules
jlist *jtext_lines(jctx *c, const jstr *s, bool keep_ends);
const jstr *jtext_pad(jrender *r, const jstr *s, int64_t width, char align, const jstr *fill);
bool jtext_to_int(const jstr *s, int base, int64_t *out); // as int("..")
bool jtext_to_float(const jstr *s, double *out);
jval jgenerator_new(jctx *c, jlist *items, const char *name);

#endif
