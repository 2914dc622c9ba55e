/* value.h - the values of a template, with the semantics of Python.
 *
 * A jval is two words, passed by value.  Scalars are inside; everything else is in the arena and
 * immutable once made, except namespaces, the loop object, generators and lists that the template
 * writes.  `foreign` marks a scalar that came from the request: its digits are printed as untrusted
 * text.  `mark` says which message it came from, and the same of a list or dict: brackets and
 * commas around data belong to it.
 *
 * Undefined values remember the failed lookup, because the error is raised only when one is used.
 * There are no other objects, so a template cannot break out of the sandbox.
 *
 * Thread: that of the render; constants of a template: any. */
#ifndef INFERD_CHAT_VALUE_H
#define INFERD_CHAT_VALUE_H

#include "chat/str.h"

/* Ordered so that kind >= JV_STR has a pointer. */
typedef enum jkind {
    JV_MISSING, // no value at all: an argument that was not given
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_WIDE, // an integer beyond 64 bits, by its digits: it can be written, not reckoned with
    JV_STR,
    JV_UNDEFINED,
    JV_LIST,
    JV_TUPLE,
    JV_DICT,
    JV_RANGE,
    JV_VIEW,      // keys(), values(), items() of a dict
    JV_GENERATOR, // the result of map, select and the like: can be iterated once
    JV_NAMESPACE,
    JV_MACRO,
    JV_LOOP,
    JV_METHOD,   // a method bound to its value
    JV_FUNCTION, // a global
    JV_SLICE     // the subscript of x[a:b:c], not visible elsewhere
} jkind;

typedef struct jundef jundef;
typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jrange jrange;
typedef struct jview jview;
typedef struct jgenerator jgenerator;
typedef struct jmacro jmacro;
typedef struct jloop jloop;
typedef struct jbound jbound;
typedef struct jfunction jfunction;
typedef struct jslice jslice;

typedef struct jval {
    uint8_t kind;
    bool foreign;
    jmark mark; // of data from a message: that of its text; else JMARK_REQUEST
    union {
        bool b;
        int64_t i;
        double f;
        const jstr *s; // JV_STR, JV_WIDE
        const jundef *undef;
        jlist *list; // JV_LIST, JV_TUPLE
        jdict *dict; // JV_DICT, JV_NAMESPACE
        jrange *range;
        jview *view;
        jgenerator *gen;
        jmacro *macro;
        jloop *loop;
        jbound *bound;
        const jfunction *fn;
        jslice *slice;
    } u;
} jval;

struct jlist {
    jval *items; // [n]
    size_t n, capacity;
    bool open; // written in the template as [...]: append() and pop() change it
};

typedef struct jpair {
    jval key, value;
} jpair;

struct jdict {
    jpair *pairs; // [n] in the order of insertion; keys differ
    size_t n, capacity;
};

struct jrange {
    int64_t start, step;
    size_t n;
};

enum { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };
struct jview {
    jdict *dict;
    int what;
};

struct jgenerator {
    jval *items; // [n]
    size_t n, i; // items before `i` were taken
    const char *name;
};

struct jundef {
    const char *message; // or NULL, then:
    jval owner;          // JV_MISSING: a variable
    jval name;
    bool unsafe; // an attribute that the sandbox hides
};

struct jslice {
    jval part[3]; // start, stop, step; JV_NONE when left out
};

static inline jval jv_missing(void) {
    return (jval){.kind = JV_MISSING};
}
static inline jval jv_none(void) {
    return (jval){.kind = JV_NONE};
}
static inline jval jv_bool(bool b) {
    return (jval){.kind = JV_BOOL, .u.b = b};
}
static inline jval jv_int(int64_t i) {
    return (jval){.kind = JV_INT, .u.i = i};
}
static inline jval jv_float(double f) {
    return (jval){.kind = JV_FLOAT, .u.f = f};
}
static inline jval jv_str(const jstr *s) {
    return (jval){.kind = JV_STR, .u.s = s};
}
static inline jval jv_list(jlist *list) {
    return (jval){.kind = JV_LIST, .u.list = list};
}
static inline jval jv_tuple(jlist *list) {
    return (jval){.kind = JV_TUPLE, .u.list = list};
}
static inline jval jv_dict(jdict *dict) {
    return (jval){.kind = JV_DICT, .u.dict = dict};
}

static inline bool jv_is_number(jval v) { // as Python: a bool is one
    return v.kind == JV_BOOL || v.kind == JV_INT || v.kind == JV_FLOAT;
}
static inline bool jv_is_integer(jval v) {
    return v.kind == JV_BOOL || v.kind == JV_INT;
}
static inline int64_t jv_integer(jval v) {
    return v.kind == JV_BOOL ? v.u.b : v.u.i;
}
static inline double jv_double(jval v) {
    return v.kind == JV_FLOAT ? v.u.f : (double)jv_integer(v);
}

/* Where a text or a scalar came from. */
static inline jmark jv_mark(jval v) {
    if (v.kind == JV_STR) return jstr_mark(v.u.s);
    return v.foreign ? v.mark : JMARK_TEMPLATE;
}
static inline jval jv_with_mark(jval v, jmark mark) { // of a scalar
    v.foreign = mark != JMARK_TEMPLATE;
    v.mark = v.foreign ? mark : JMARK_REQUEST;
    return v;
}

/* The limit of nested data, in every walk over it. */
enum { JVALUE_DEPTH_MAX = 200 };

jval jv_undefined(jctx *c, jval owner, jval name); // owner JV_MISSING: a variable
jval jv_undefined_because(jctx *c, const char *message);
_Noreturn void jv_fail_undefined(jctx *c, jval v); // it was used
const char *jv_type_name(jval v);                  // as in "'int' object is not iterable"

jlist *jlist_new(jctx *c, size_t capacity);
void jlist_add(jctx *c, jlist *list, jval v);
jval jv_pair(jctx *c, jval a, jval b); // a tuple
jdict *jdict_new(jctx *c, size_t capacity);
jval *jdict_find(jctx *c, const jdict *d, jval key); // NULL: not there
void jdict_set(jctx *c, jdict *d, jval key, jval value);
void jdict_add(jctx *c, jdict *d, jval key, jval value); // the key is known to be new

bool jv_truth(jval v);
bool jv_equal(jctx *c, jval a, jval b);
/* -1, 0, 1, or 2 when one is NaN; `op` for the error when they have no order. */
int jv_compare(jctx *c, jval a, jval b, const char *op);
bool jv_contains(jctx *c, jval container, jval item);
bool jv_has_length(jval v);
size_t jv_length(jctx *c, jval v);
bool jv_hashable(jval v);

/* Walk over anything iterable. */
typedef struct jiter {
    jval of;
    size_t i;  // elements given
    size_t at; // of a text: byte
} jiter;
bool jv_iterable(jval v);
void jiter_init(jctx *c, jiter *it, jval of); // fails when it is not iterable
bool jiter_next(jctx *c, jiter *it, jval *out);
jlist *jv_to_list(jctx *c, jval v); // a new one

/* Data from JSON; its texts are borrowed unless they are to be copied. */
jval jv_from_json(jctx *c, json_t *json, jmark mark, bool copy);
/* The conversation of a request: each element has a mark of its own. */
jval jv_from_messages(jctx *c, json_t *messages);

#endif
