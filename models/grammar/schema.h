/* schema.h - parts of the JSON Schema compiler (schema*.c).
 *
 *     schema ──flatten──> atoms ──goal──> plan ──finish──> node of ir.h
 *
 * An *atom* is one demand on a value: "valid for this schema", "not valid for that one", "the
 * keywords of this object that need no other schema at the same place" (ATOM_BASE), "one of its
 * anyOf". A *goal* is a list of atoms that hold at once: flattened, which means that $ref, allOf
 * and `not` have been followed until only bases and splits are left.  Goals are kept by their list,
 * so a shared definition is built once, and recursion is a goal that is met while it is open.
 *
 * A goal with a *split* (anyOf, oneOf, if, dependencies, the negation of several keywords) becomes
 * an alternation of goals in which an alternative takes the place of the split.  A goal of bases
 * only becomes an alternation over the types: for each, the bases are merged (ranges are cut,
 * automata multiplied, a property has the atoms of all bases as its goal).
 *
 * So every combination is exact or refused, and merging allOf, $ref with siblings and conditions is
 * the same operation.  The price is a number of cases; it is bounded by limits.nodes_max.
 *
 * Order of properties: that in which the keywords are written, a $ref or allOf where it stands.
 *
 * Two readings of a schema: the validators of draft 7 and older ignore siblings of $ref, those of
 * old drafts ignore newer keywords, and not all enforce formats.  The *narrow* reading has all
 * these demands and is used where a demand must hold; the *wide* one leaves them out and is used
 * where a schema must not hold.  So a text that is accepted is valid under both.
 *
 * Memory is an arena; a failure is a longjmp to the function that began (schema_run), which frees
 * the arena, the automata (schema_own) and the graph. Thread: any; a schema_ctx belongs to one
 * compilation. */
#ifndef INFERD_GRAMMAR_SCHEMA_H
#define INFERD_GRAMMAR_SCHEMA_H

#include <jansson.h>
#include <setjmp.h>

#include "dfa.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "ir.h"
#include "models/grammar.h"
#include "schema_words.h"

typedef enum schema_truth { TRUTH_NO, TRUTH_YES, TRUTH_UNKNOWN } schema_truth;

/* ---- atoms and goals ---- */

typedef enum atom_kind {
    ATOM_SCHEMA, // valid for the schema; none is left after flattening
    ATOM_NOT,    // not valid for it; a split
    ATOM_BASE,
    ATOM_ANY_OF, // splits of a schema object
    ATOM_ONE_OF,
    ATOM_IF,
    ATOM_NEEDS,       // what a property needs: `word` and `name` say which of the dependencies
    ATOM_TYPES,       // of these types
    ATOM_HAS,         // if an object: has the property
    ATOM_LACKS,       // if an object: does not have it
    ATOM_OTHER,       // an object with a property that violates `word`; a split
    ATOM_NOT_ENUM,    // none of the values of `enum` or `const` (word)
    ATOM_NOT_PATTERN, // if a string: does not match the pattern
    ATOM_NOT_MULTIPLE // if a number: no multiple
} atom_kind;

typedef struct schema_atom {
    const json_t *schema;
    atom_kind kind;
    schema_word word;
    uint32_t types;   // of ATOM_TYPES
    const char *name; // interned: equal names are equal pointers
} schema_atom;

typedef struct atom_list {
    schema_atom *at;
    size_t n, capacity;
} atom_list;

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8, // a number that is not an integer
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION,
    TYPE_ALL = 127
};

typedef uint32_t goal_id;
enum { GOAL_NEVER = 0 }; // always there

typedef struct object_plan {
    const char **names; // [n] in order
    bool *required;     // [n]
    goal_id *values;    // [n]
    size_t n;
    const dfa *others;     // NULL: none
    goal_id *other_values; // [n_others] by tag
    size_t n_others;
    uint32_t min, max;
    bool any_order; // of several schemas, or asked for
} object_plan;

enum { SCHEMA_CONTAINS_MAX = 2 }; // demands of one array

typedef struct array_plan {
    goal_id *prefix; // [n_prefix]
    size_t n_prefix;
    goal_id rest;
    uint32_t min, max;
    /* For each place in the prefix, and one for the rest, the goals of an item that is the one that
     * `contains` demands: by the set of demands that it fulfils.  NULL: no such demand. */
    goal_id (*contains)[1 << SCHEMA_CONTAINS_MAX];
    size_t n_contains;
    const json_t *unique; // the values of which each is an item once at most; NULL: no such demand
} array_plan;

typedef struct goal {
    atom_list atoms; // flattened
    enum { GOAL_NEW, GOAL_OPEN, GOAL_DONE } state;
    ir_node node; // of a done goal
    bool has_rule;
    uint32_t rule;     // of a goal that was met while it was open
    bool alternatives; // an alternation of `children`; else types
    goal_id *children;
    size_t n_children, next_child, children_capacity;
    ir_node *scalars; // [n_scalars] nodes of types without children
    size_t n_scalars, scalars_capacity;
    object_plan *object; // NULL: no objects
    array_plan *array;   // NULL: no arrays
} goal;

typedef struct schema_site schema_site;
typedef struct schema_block schema_block;
typedef struct schema_table schema_table;

enum { SCHEMA_RECENT_BITS = 8 };

typedef struct schema_arena {
    schema_block *blocks; // newest first; owned
    char *at, *end;       // the free rest of the newest
} schema_arena;

typedef struct schema_ctx {
    const grammar_limits *limits;
    const grammar_schema_kind *kind;
    const json_t *root;
    ir *graph;
    uint64_t deadline_us;
    uint32_t n_ticks;
    int draft; // 3, 4, 6, 7, 2019, 2020
    /* Flattening and proofs may fail quietly: then a failure jumps to `quiet`. */
    jmp_buf exit;
    jmp_buf *quiet;
    bool wide;                     // the reading in force
    bool has_resources;            // identifiers inside the document
    bool has_places;               // all sites are known
    struct schema_weakening *weak; // NULL: what cannot be enforced is refused
    schema_table *left_out;        // of `weak`, by schema and word
    struct schema_reach *reach;
    const goal *planned;     // the goal that is planned or finished
    const json_t *failed_at; // the place of the failure; NULL: it has none
    schema_word failed_word;
    inferd_status status;
    inferd_err *err;
    /* The last keyword whose negation cannot be expressed, so that an alternative was left out; for
     * the error of what nothing matches then.  WORD_NONE: none. */
    schema_word dropped_word;
    const json_t *dropped_at, *lost_at; // lost_at: of any, ever
    schema_arena kept, scratch;
    uint32_t n_scratch; // uses of scratch under way, one within another
    size_t n_bytes;
    schema_table *sites, *views, *names, *goals_by_atoms, *made, *automata, *resolved, *negations,
        *value_sets, *ids, *single_goals;
    /* Properties depend on one another (not, if, dependencies, oneOf with branches that are not
     * apart): no order of them is the schema's, and they may come in any. */
    bool any_order;
    uint32_t n_value_depth;
    const schema_view *recent[1 << SCHEMA_RECENT_BITS]; // views by a hash of their schema
    goal **goals;
    size_t n_goals, goals_capacity;
    void **owned; // automata
    size_t n_owned, owned_capacity;
    void **jsons; // made by the compiler
    size_t n_jsons, jsons_capacity;
    uint32_t n_refs;
} schema_ctx;

/* ---- memory and failures (schema_memory.c) ---- */

void *schema_take(schema_ctx *c, size_t n_bytes); // zeroed; never NULL
void *schema_take_array(schema_ctx *c, size_t n, size_t element_bytes);
void *schema_grow(schema_ctx *c, void *items, size_t n, size_t *capacity, size_t element_bytes);
/* The same for lists of atoms and the like: in a use of scratch they are from there. */
void *schema_grow_list(schema_ctx *c, void *items, size_t n, size_t *capacity,
                       size_t element_bytes);
/* A plan or a proof begins and ends: its lists are freed. */
schema_arena schema_scratch_begin(schema_ctx *c);
void schema_scratch_end(schema_ctx *c, const schema_arena *mark);
void schema_memory_deinit(schema_ctx *c);
/* Fails for a schema or keyword: "\"not\" at #/a cannot be enforced" is word, pointer, format. */
_Noreturn void schema_fail(schema_ctx *c, inferd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void schema_refuse(schema_ctx *c, schema_word w, const json_t *at, const char *why);
_Noreturn void schema_malformed(schema_ctx *c, schema_word w, const json_t *at, const char *why);
_Noreturn void schema_no_memory(schema_ctx *c);
void schema_check(schema_ctx *c, inferd_status s); // jumps unless INFERD_OK; err is set
void schema_tick(schema_ctx *c);                   // now and then looks at the clock
/* The automaton moves into the context, which frees it. */
dfa *schema_own(schema_ctx *c, dfa *take);
json_t *schema_own_json(schema_ctx *c, json_t *take); // NULL: no memory

/* Open addressing over keys of bytes; values are pointers or numbers. */
schema_table *schema_table_create(schema_ctx *c);
void **schema_table_at(schema_ctx *c, schema_table *t, const void *key, size_t n, bool add);
const char *schema_intern(schema_ctx *c, const char *name);

/* ---- places and references (schema_refs.c) ---- */

void schema_sites_build(schema_ctx *c);
/* What a node is in, and as which member (NULL: an item); NULL: the root, or not of the schema. */
const json_t *schema_parent(schema_ctx *c, const json_t *at, const char **key);
const json_t *schema_original(schema_ctx *c, const json_t *at); // of one that was made
void schema_pointer_add(const char *key, buf *out);             // "/key"
/* Appends "#/properties/a" for a node of the schema, or of the one that a made one stands for. */
void schema_pointer(schema_ctx *c, const json_t *at, buf *out);
void schema_made_at(schema_ctx *c, const json_t *made, const json_t *origin);
bool schema_is_made(schema_ctx *c, const json_t *schema);
const json_t *schema_resolve(schema_ctx *c, const json_t *from, schema_word w, const char *ref);

/* ---- views (schema_words.c) ---- */

const schema_view *schema_view_of(schema_ctx *c, const json_t *schema);
/* The keyword, unless the reading in force leaves it out. */
json_t *schema_get(schema_ctx *c, const schema_view *v, schema_word w);
uint32_t schema_types(schema_ctx *c, const schema_view *v); // of `type`
/* A count such as minLength; `otherwise` if absent. */
uint32_t schema_count(schema_ctx *c, const schema_view *v, schema_word w, uint32_t otherwise);
bool schema_flag(schema_ctx *c, const schema_view *v, schema_word w);
bool schema_requires(schema_ctx *c, const schema_view *v, const char *name); // `required` has it

/* ---- flattening and splits (schema_flat.c, schema_split.c) ---- */

void atom_list_add(schema_ctx *c, atom_list *l, schema_atom a);
static inline schema_atom atom_of(const json_t *schema) {
    return (schema_atom){.schema = schema};
}
static inline schema_atom atom_not(const json_t *schema) {
    return (schema_atom){.schema = schema, .kind = ATOM_NOT};
}
static inline schema_atom atom_types(uint32_t types) {
    return (schema_atom){.kind = ATOM_TYPES, .types = types};
}
/* False: no value can satisfy all of them. */
bool schema_flatten(schema_ctx *c, const atom_list *in, atom_list *out);
bool atom_is_split(const schema_atom *a);
/* The alternatives of a split: each a list of atoms.  `among`: the atoms that it is one of. */
typedef struct split {
    atom_list *at;
    size_t n, capacity;
} split;
void schema_split(schema_ctx *c, const schema_atom *a, const atom_list *among, split *out);
atom_list *schema_split_add(schema_ctx *c, split *s);
void schema_split_add_one(schema_ctx *c, split *s, schema_atom a);

/* ---- schemas that are made (schema_made.c) ---- */

/* {w: value}; `of` and `name` (interned, or NULL) tell it from others of the same origin. */
const json_t *schema_make(schema_ctx *c, const json_t *origin, schema_word of, const char *name,
                          schema_word w, json_t *take_value);
json_t *schema_make_not(schema_ctx *c, const json_t *origin, json_t *value); // {"not": value}
/* {"properties": {name: value}}, and the same with {"not": value}. */
const json_t *schema_make_property(schema_ctx *c, const json_t *origin, const char *name,
                                   json_t *value);
const json_t *schema_property_not(schema_ctx *c, const json_t *origin, const char *name,
                                  json_t *value);
/* The schema of an array or object that is this value. */
const json_t *schema_make_like(schema_ctx *c, const json_t *origin, const json_t *value);

/* ---- negations (schema_negate.c) ---- */

void schema_negate(schema_ctx *c, const json_t *schema, split *out);
/* No alternative is left of this negation: was one left out, and may the compiler go on without the
 * negation? */
bool schema_negation_softens(schema_ctx *c, const json_t *schema);
bool schema_is_trivial(const json_t *schema); // true or {}
/* The violation of this keyword is left out. */
void schema_drop(schema_ctx *c, const schema_view *v, schema_word w);

/* ---- goals (schema.c) ---- */

goal_id schema_goal(schema_ctx *c, const atom_list *atoms);
void schema_goal_child(schema_ctx *c, goal *g,
                       goal_id child); // must be done before `g` is finished
/* The types that flattened atoms leave, by `type`, enum, const. */
uint32_t schema_types_left(schema_ctx *c, const atom_list *flat);

/* Provably no value satisfies all (schema_apart.c). */
bool schema_apart(schema_ctx *c, const atom_list *atoms, int depth);

/* ---- types (schema_object.c, schema_array.c, schema_string.c, schema_number.c, schema_enum.c)
 * ---- */

/* What the bases demand of a property or an item; false: it cannot be there. */
/* UNKNOWN: the languages of patterns do not agree; such names are not written. */
schema_truth schema_name_matches(schema_ctx *c, const schema_view *v, const char *pattern,
                                 const char *name);
void schema_names(schema_ctx *c, const atom_list *flat,
                  object_plan *p); // named properties, in order
bool schema_property_atoms(schema_ctx *c, const atom_list *flat, const char *name, atom_list *out);
bool schema_item_atoms(schema_ctx *c, const atom_list *flat, size_t i, atom_list *out);
void schema_plan_object(schema_ctx *c, goal *g);
ir_node schema_finish_object(schema_ctx *c, const object_plan *p);
void schema_plan_array(schema_ctx *c, goal *g);
ir_node schema_finish_array(schema_ctx *c, const array_plan *p);
/* (schema_contains.c) */
void schema_plan_contains(schema_ctx *c, goal *g, array_plan *p, const schema_view *const *demands,
                          size_t n);
ir_node schema_finish_contains(schema_ctx *c, const array_plan *p);
ir_node schema_goal_node(schema_ctx *c, goal_id id); // a reference while it is open
ir_node schema_string(schema_ctx *c, const atom_list *flat);
bool schema_strings_apart(schema_ctx *c, const atom_list *flat); // provably no string
/* The automaton of the content; false: no string fits.  Lengths only: NULL, and they are set. */
bool schema_string_dfa(schema_ctx *c, const atom_list *flat, const dfa **out, uint32_t *min,
                       uint32_t *max);
ir_node schema_number(schema_ctx *c, const atom_list *flat, uint32_t types);
ir_node schema_values(schema_ctx *c, const atom_list *flat,
                      const schema_view *v); // of its enum, const
ir_node schema_value_node(schema_ctx *c, const json_t *value);
const dfa *schema_any_string(schema_ctx *c);
/* These texts as content of strings; the content of strings of these lengths. */
const dfa *schema_literals(schema_ctx *c, const char *const *texts, size_t n);
const dfa *schema_lengths(schema_ctx *c, uint32_t min, uint32_t max, const schema_view *v);
/* What `d` accepts but for these texts. */
const dfa *schema_without(schema_ctx *c, const dfa *d, const char *const *texts, size_t n);
const dfa *schema_pattern(schema_ctx *c, const json_t *at, schema_word w, bytes pattern);
const dfa *schema_pattern_of(schema_ctx *c, bool wide, const json_t *at, schema_word w,
                             bytes pattern);
/* NULL: a format of numbers. */
const dfa *schema_format(schema_ctx *c, const json_t *at, const char *name);
dfa_limits schema_dfa_limits(const schema_ctx *c);
/* Nodes that are made once. */
ir_node schema_literal(schema_ctx *c, bytes text);
ir_node schema_term(schema_ctx *c, const dfa *d);

typedef struct number_bound {
    bool set, open;
    long double at;
} number_bound;
/* Bounds of a base, formats included. */
void schema_bounds(schema_ctx *c, const schema_view *v, number_bound *min, number_bound *max);

/* ---- values (schema_value.c) ---- */

schema_truth schema_valid(schema_ctx *c, const json_t *x, const schema_atom *a);
/* Whether a property violates additionalProperties, patternProperties or propertyNames. */
schema_truth schema_violates(schema_ctx *c, const schema_view *v, schema_word w, const char *name,
                             const json_t *x);
schema_truth schema_valid_all(schema_ctx *c, const json_t *x, const atom_list *atoms);
/* The same for a value of enum or const of one of them. */
schema_truth schema_valid_member(schema_ctx *c, const json_t *x, const atom_list *atoms,
                                 const schema_view *of);
bool schema_equal(const json_t *a, const json_t *b); // as JSON Schema says: 1 equals 1.0
uint32_t schema_type_of(const json_t *x);
size_t schema_code_points(const char *text);

/* ---- the strict profile (schema_strict.c) ---- */

void schema_check_strict(schema_ctx *c);

/* ---- for other compilers (schema.c) ---- */

/* Adds the values of a schema to a graph that holds more.  White space is that of the graph's
 * limits. On failure the graph can only be destroyed. */
inferd_status schema_add(ir *g, const json_t *schema, const grammar_schema_kind *kind, ir_node *out,
                         inferd_err *err);

#endif
