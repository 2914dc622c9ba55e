/* tags_nested.c - values in the notation of a format, as deep as the schema goes: tag_of_nested.
 *
 *     CALL_BRACES   {a:1,b:[<mark>x<mark>,{c:true}]}
 *     CALL_PYTHON   (a=1, b=['x', {'c': True}]), and lists and objects between tags (literals)
 *     a tree        <a>1</a><b><item>x</item><item><c>true</c></item></b>
 *
 * Objects come in the order of the schema's properties (sorted in CALL_BRACES, as templates write
 * them), optional ones may be left out, and others cannot be written.  Without properties any key
 * can.  Of the keywords type, enum, const, properties, required, additionalProperties, items,
 * minItems up to 1, anyOf, oneOf and local references count, and those of numbers.
 *
 * Formats are made from the outside: a value is a slot, an empty object that is filled later, so
 * the depth of a schema costs no stack.  Containers deeper than NEST_DEPTH_MAX, which recursive
 * schemas have, are JSON. */
#include <string.h>

#include "calls/tags.h"
#include "calls/types.h"
#include "inferd/json_whole.h"

enum {
    NEST_DEPTH_MAX = 4,     // of containers; a structural tag has a limit of formats in formats
    NEST_ANY_DEPTH_MAX = 2, // of those without a schema
    NEST_SLOTS_MAX = 4096,
    NEST_EXACT_MAX = 4 // optional properties in an object without required ones, in order
};

typedef enum notation { BRACES, PYTHON, TREE } notation;

/* A value to be made. */
typedef struct job {
    json_t *slot; // borrowed from the format around it
    const json_t *schema;
    uint32_t depth;
} job;

typedef struct nest {
    const call_format *f;
    notation as;
    const json_t *root;
    const char *place; // of the argument, for what cannot be enforced
    job *jobs;         // [n_jobs] owned
    size_t n_jobs, capacity, n_slots;
    bool failed;
} nest;

#define TEXT_BIT (1u << CALL_TYPE_STRING)

/* ---- slots ---- */

/* A new slot for a value of this schema (NULL: any). */
static json_t *slot(nest *n, const json_t *schema, uint32_t depth) {
    if (n->n_jobs == n->capacity) {
        size_t capacity = size_max(2 * n->capacity, 32);
        job *grown = realloc(n->jobs, capacity * sizeof *grown);
        if (grown == NULL) {
            n->failed = true;
            return NULL;
        }
        n->jobs = grown;
        n->capacity = capacity;
    }
    json_t *v = json_object();
    if (v == NULL || ++n->n_slots > NEST_SLOTS_MAX) n->failed = true;
    if (v != NULL) n->jobs[n->n_jobs++] = (job){v, schema, depth};
    return v;
}

static void fill(nest *n, json_t *in, json_t *format) {
    if (format == NULL || json_object_update(in, format) != 0) n->failed = true;
    json_decref(format);
}

static bool add_way(json_t *ways, json_t *way) {
    return json_array_append_new(ways, way) == 0;
}

/* {begin, format, end} as a tag, which may be left out or repeated; takes the format. */
static json_t *tag_around(const char *begin, json_t *format, const char *end) {
    tag_writer w;
    tag_begin(&w);
    tag_text(&w, bytes_of(begin));
    tag_add(&w, format);
    tag_text(&w, bytes_of(end));
    return tag_end(&w);
}

/* ---- schemas ---- */

/* ---- scalars ---- */

/* Can the text stand between quotes as it is? */
static bool is_plain(bytes s) {
    for (size_t i = 0; i < s.n; i++)
        if (strchr("'\"\\", s.p[i]) != NULL || (unsigned char)s.p[i] < ' ') return false;
    return true;
}

static json_t *sequence_of(bytes begin, bytes text, bytes end) {
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, begin, (bytes){NULL, 0});
    tag_text(&w, text);
    tag_mark(&w, end, (bytes){NULL, 0});
    return tag_end_sequence(&w);
}

static json_t *text_of_json(const json_t *v) {
    char *dumped = json_dumps_whole(v, JSON_ENCODE_ANY);
    json_t *out = dumped == NULL ? NULL : tag_of_text(bytes_of(dumped));
    free(dumped);
    return out;
}

/* One value of an enum. */
static json_t *constant(const nest *n, const json_t *v) {
    bytes text = {json_string_value(v), json_string_length(v)};
    bool python = n->as == PYTHON;
    if (json_is_string(v)) {
        if (n->as == TREE) return tag_of_text(text);
        if (n->as == BRACES) return sequence_of(n->f->quote, text, n->f->quote);
        return is_plain(text) ? sequence_of(bytes_of("'"), text, bytes_of("'")) : text_of_json(v);
    }
    if (json_is_boolean(v) && python)
        return tag_of_pattern(json_is_true(v) ? "True|true" : "False|false");
    if (json_is_null(v)) return tag_of_pattern("None|null");
    return text_of_json(v);
}

static bool add_constants(const nest *n, json_t *ways, const json_t *schema, bool *some) {
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    size_t i;
    json_t *v;
    bool ok = true;
    *some = json_array_size(list) > 0 || only != NULL;
    if (only != NULL) return add_way(ways, constant(n, only));
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        if (json_is_string(v) && json_string_length(v) == 0 && n->as == TREE) continue;
        ok = ok && add_way(ways, constant(n, v));
    }
    return ok;
}

static bool has_keywords(const json_t *schema) {
    static const char *const keys[] = {"pattern", "format", "minLength", "maxLength"};
    bool some = false;
    for (size_t i = 0; i < INFERD_COUNT(keys); i++)
        some |= json_object_get(schema, keys[i]) != NULL;
    return some;
}

/* Texts of Python that their schema narrows have no escapes here. */
static json_t *any_string(const nest *n, const json_t *schema, uint32_t depth) {
    bytes quote = n->as == PYTHON ? bytes_of("'") : n->f->quote;
    bool narrowed = has_keywords(schema);
    if (n->as == PYTHON && !narrowed && n->f->raw_text && n->f->style == CALL_PYTHON && depth == 1)
        return tag_of_pattern("'[^']*'|\"[^\"]*\"");
    if (n->as == PYTHON && !narrowed)
        return tag_of_pattern("'(?:[^'\\\\\\n]|\\\\.)*'|\"(?:[^\"\\\\\\n]|\\\\.)*\"");
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, quote, (bytes){NULL, 0});
    tag_add(&w, tag_of_string(schema, n->place));
    tag_mark(&w, quote, (bytes){NULL, 0});
    return tag_end(&w);
}

/* A number with what the schema says of numbers. */
static json_t *number(const nest *n, const json_t *schema) {
    static const char *const words[] = {"minimum", "maximum", "exclusiveMinimum",
                                        "exclusiveMaximum", "multipleOf"};
    const json_t *type = json_object_get(schema, "type");
    bool whole = json_is_string(type) && strcmp(json_string_value(type), "integer") == 0;
    json_t *of = json_object(), *out = NULL;
    bool ok = of != NULL &&
              json_object_set_new(of, "type", json_string(whole ? "integer" : "number")) == 0;
    for (size_t i = 0; i < INFERD_COUNT(words); i++) {
        json_t *v = json_object_get(schema, words[i]);
        if (v != NULL) ok = ok && json_object_set(of, words[i], v) == 0;
    }
    if (ok) out = tag_of_schema(of, n->place);
    json_decref(of);
    return out;
}

static bool add_scalars(const nest *n, json_t *ways, const json_t *schema, unsigned types,
                        uint32_t depth) {
    bool ok = true;
    if ((types & TEXT_BIT) != 0) ok = ok && add_way(ways, any_string(n, schema, depth));
    if ((types & 1u << CALL_TYPE_NUMBER) != 0) ok = ok && add_way(ways, number(n, schema));
    if ((types & 1u << CALL_TYPE_BOOL) != 0)
        ok =
            ok &&
            add_way(ways, tag_of_pattern(n->as == PYTHON ? "True|False|true|false" : "true|false"));
    if ((types & 1u << CALL_TYPE_NULL) != 0)
        ok = ok && add_way(ways, tag_of_pattern(n->as == PYTHON ? "None|null" : "null|None"));
    return ok;
}

/* ---- parts between tags ---- */

/* Is a text one of the values, and the only one? */
static bool takes_text(const nest *n, const json_t *schema, bool *only) {
    const json_t *of = call_schema_follow(n->root, schema);
    unsigned types = call_types_of(n->root, of);
    bool listed = json_object_get(of, "enum") != NULL || json_object_get(of, "const") != NULL;
    *only = !listed && types == TEXT_BIT;
    return !listed && (types == 0 || (types & TEXT_BIT) != 0);
}

/* `begin` value `end`.  A text runs up to the mark behind it, so it is a tag of its own. */
static json_t *between_tags(nest *n, bytes begin, const json_t *schema, uint32_t depth, bytes end) {
    bool only, text = takes_text(n, schema, &only), none = false;
    json_t *ways = json_array();
    for (int i = text ? 0 : 1; i < (only ? 1 : 2) && !none; i++) {
        tag_writer w;
        tag_begin(&w);
        tag_mark(&w, begin, (bytes){NULL, 0});
        tag_add(&w, i == 0 ? tag_of_string(call_schema_of_text(n->root, schema), n->place)
                           : slot(n, schema, depth));
        tag_mark(&w, end, (bytes){NULL, 0});
        none = !add_way(ways, tag_end(&w));
    }
    n->failed = n->failed || none;
    return json_array_size(ways) == 1 ? tag_or(ways) : tag_around("", tag_or(ways), "");
}

/* <key>value</key>. */
static json_t *part_of_tree(nest *n, bytes key, const json_t *schema, uint32_t depth) {
    buf open = {0}, close = {0};
    bytes behind = n->f->key_close[CALL_TYPE_STRING];
    buf_add(&open, n->f->key_open.p, n->f->key_open.n);
    buf_add(&open, key.p, key.n);
    buf_add(&open, behind.p, behind.n);
    call_fill_key(n->f->value_close[CALL_TYPE_STRING], key, &close);
    json_t *part =
        between_tags(n, (bytes){open.p, open.n}, schema, depth, (bytes){close.p, close.n});
    n->failed = n->failed || open.failed || close.failed;
    buf_deinit(&open);
    buf_deinit(&close);
    return part;
}

/* A part of any name. */
static json_t *any_part_of_tree(nest *n, const json_t *schema, uint32_t depth) {
    static const char name[] = "[a-zA-Z_][a-zA-Z0-9_.\\-]*";
    bytes close = n->f->value_close[CALL_TYPE_STRING], none = {NULL, 0};
    const char *key = memchr(close.p, CALL_KEY, close.n);
    size_t at = key == NULL ? close.n : (size_t)(key - close.p);
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, n->f->key_open, none);
    tag_add(&w, tag_of_pattern(name));
    tag_add(&w, between_tags(n, n->f->key_close[CALL_TYPE_STRING], schema, depth,
                             (bytes){close.p, at}));
    tag_add(&w, tag_of_pattern(name));
    tag_mark(&w, bytes_from(close, size_min(at + 1, close.n)), none);
    return tag_end(&w);
}

/* ---- members ---- */

/* One property: `before` key value `behind`. */
static json_t *member(nest *n, const char *key, const json_t *schema, uint32_t depth,
                      const char *before, const char *behind) {
    bool call = n->as == PYTHON && n->f->style == CALL_PYTHON && depth == 0;
    tag_writer w;
    if (n->as == TREE) return part_of_tree(n, bytes_of(key), schema, depth + 1);
    tag_begin(&w);
    tag_text(&w, bytes_of(before));
    tag_text(&w, bytes_of(n->as == PYTHON && !call ? "'" : ""));
    tag_text(&w, bytes_of(key));
    tag_text(&w, bytes_of(n->as == BRACES ? ":" : call ? "=" : "': "));
    tag_add(&w, slot(n, schema, depth + 1));
    tag_text(&w, bytes_of(behind));
    return tag_end(&w);
}

static json_t *repeated(json_t *tag, const char *separator, bool some) {
    json_t *tags = json_array();
    bool ok = tags != NULL && tag != NULL && json_array_append(tags, tag) == 0;
    json_decref(tag);
    if (ok) return tag_separated(tags, bytes_of(separator), some, false);
    json_decref(tags);
    return NULL;
}

static int compare_names(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    int order = strcasecmp(*x, *y);
    return order != 0 ? order : strcmp(*x, *y);
}

/* The names of the properties, in the order in which templates write arguments: CALL_BRACES sorts
 * them, in any letter case.  NULL: no memory. */
static const char **names_of(const nest *n, const json_t *properties, size_t *count) {
    const char **names = calloc(size_max(json_object_size(properties), 1), sizeof *names), *name;
    json_t *v;
    size_t i = 0;
    json_object_foreach((json_t *)(uintptr_t)properties, name, v) {
        if (names != NULL) names[i++] = name;
    }
    *count = i;
    if (names != NULL && n->as == BRACES) qsort(names, i, sizeof *names, compare_names);
    return names;
}

typedef struct members {
    const char **names; // [n]
    size_t n, first;    // `first`: the first one that is required; n: none is
    const json_t *properties, *schema;
    uint32_t depth;
    const char *separator;
} members;

static json_t *member_at(nest *n, const members *m, size_t i, const char *before,
                         const char *behind) {
    const json_t *schema = json_object_get(m->properties, m->names[i]);
    return member(n, m->names[i], schema, m->depth, before, behind);
}

/* Those before the first required one carry the separator behind them, the others before them. */
static void add_some_required(nest *n, tag_writer *w, const members *m) {
    for (size_t i = 0; i < m->n; i++) {
        bool required = tag_is_required(m->schema, m->names[i]);
        bool early = i<m->first, late = i> m->first;
        json_t *one = member_at(n, m, i, late ? m->separator : "", early ? m->separator : "");
        tag_add(w, required || one == NULL ? one : tag_maybe(one));
    }
}

/* Nothing, or one of them first and any of those behind it. */
static void add_none_required(nest *n, tag_writer *w, const members *m) {
    json_t *ways = json_array();
    for (size_t first = 0; first < m->n; first++) {
        tag_writer rest;
        tag_begin(&rest);
        tag_add(&rest, member_at(n, m, first, "", ""));
        for (size_t i = first + 1; i < m->n; i++) {
            json_t *one = member_at(n, m, i, m->separator, "");
            tag_add(&rest, one == NULL ? NULL : tag_maybe(one));
        }
        if (!add_way(ways, tag_end(&rest))) n->failed = true;
    }
    json_t *tag = tag_around("", tag_or(ways), "");
    tag_add(w, tag == NULL ? NULL : tag_maybe(tag));
}

/* In any order: of many in a part of an argument, the ways to leave some out are too many. */
static void add_any_order(nest *n, tag_writer *w, const members *m) {
    json_t *tags = json_array();
    for (size_t i = 0; i < m->n; i++)
        if (!add_way(tags, member_at(n, m, i, "", ""))) n->failed = true;
    tag_add(w, tag_separated(tags, bytes_of(m->separator), false, false));
}

static void add_members(nest *n, tag_writer *w, const json_t *schema, uint32_t depth) {
    members m = {.schema = schema, .depth = depth};
    m.properties = json_object_get(schema, "properties");
    m.separator = n->as == TREE ? "" : n->as == BRACES ? "," : ", ";
    m.names = names_of(n, m.properties, &m.n);
    n->failed = n->failed || m.names == NULL;
    while (m.first < m.n && !tag_is_required(schema, m.names[m.first])) m.first++;
    if (n->failed || m.n == 0) {
        free(m.names);
        return;
    }
    if (m.first < m.n || n->as == TREE)
        add_some_required(n, w, &m);
    else if (depth == 0 || m.n <= NEST_EXACT_MAX)
        add_none_required(n, w, &m);
    else
        add_any_order(n, w, &m);
    free(m.names);
}

/* ---- containers ---- */

/* Any object: keys that need no quotes, or text in Python's. */
static void add_any_members(nest *n, tag_writer *w, const json_t *schema, uint32_t depth) {
    const json_t *of = json_object_get(schema, "additionalProperties");
    json_t *tag;
    if (n->as == TREE) {
        tag = any_part_of_tree(n, of, depth + 1);
    } else {
        tag_writer one;
        tag_begin(&one);
        tag_add(&one, n->as == BRACES ? tag_of_pattern("[^\\s:,{}\\[\\]<>\"']+")
                                      : any_string(n, NULL, 2));
        tag_text(&one, bytes_of(n->as == BRACES ? ":" : ": "));
        tag_add(&one, slot(n, json_is_object(of) ? of : NULL, depth + 1));
        tag = tag_end(&one);
    }
    tag_add(w, repeated(tag, n->as == TREE ? "" : n->as == BRACES ? "," : ", ", false));
}

static json_t *object(nest *n, const json_t *schema, uint32_t depth) {
    tag_writer w;
    bool known = json_object_size(json_object_get(schema, "properties")) > 0;
    bool closed = json_is_false(json_object_get(schema, "additionalProperties"));
    tag_begin(&w);
    if (n->as != TREE) tag_text(&w, bytes_of("{"));
    if (known)
        add_members(n, &w, schema, depth);
    else if (!closed)
        add_any_members(n, &w, schema, depth);
    if (n->as != TREE) tag_text(&w, bytes_of("}"));
    if (n->as == TREE && json_array_size(w.elements) == 0) tag_add(&w, tag_of_pattern("\\s{0,2}"));
    return tag_end_sequence(&w);
}

static json_t *list(nest *n, const json_t *schema, uint32_t depth) {
    const json_t *items = json_object_get(schema, "items");
    bool some = json_integer_value(json_object_get(schema, "minItems")) > 0;
    tag_writer w;
    tag_begin(&w);
    if (n->as == TREE) {
        tag_add(&w, repeated(part_of_tree(n, n->f->item, items, depth + 1), "", some));
        return tag_end_sequence(&w);
    }
    tag_text(&w, bytes_of("["));
    tag_add(&w, repeated(tag_around("", slot(n, items, depth + 1), ""),
                         n->as == BRACES ? "," : ", ", some));
    tag_text(&w, bytes_of("]"));
    return tag_end_sequence(&w);
}

static bool add_containers(nest *n, json_t *ways, const json_t *schema, unsigned types,
                           uint32_t depth) {
    const unsigned both = 1u << CALL_TYPE_ARRAY | 1u << CALL_TYPE_OBJECT;
    bool any = call_types_of(n->root, schema) == 0, ok = true;
    if ((types & both) == 0 || (any && depth > NEST_ANY_DEPTH_MAX)) return true;
    bool json = n->as == PYTHON && depth == 1; // some templates write objects so, and lists not
    if (json) ok = add_way(ways, tag_of_argument(n->root, schema, n->place));
    if (depth > NEST_DEPTH_MAX) // as JSON
        return add_way(ways, tag_of_argument(n->root, schema, n->place));
    if ((types & 1u << CALL_TYPE_ARRAY) != 0) ok = ok && add_way(ways, list(n, schema, depth));
    if ((types & 1u << CALL_TYPE_OBJECT) != 0) ok = ok && add_way(ways, object(n, schema, depth));
    return ok;
}

/* ---- values ---- */

static bool add_branches(nest *n, json_t *ways, const json_t *schema, uint32_t depth, bool *some) {
    static const char *const groups[] = {"anyOf", "oneOf"};
    bool ok = true;
    size_t i;
    json_t *way;
    *some = false;
    if (json_object_get(schema, "type") != NULL) return true;
    for (size_t g = 0; g < INFERD_COUNT(groups) && !*some; g++)
        json_array_foreach(json_object_get(schema, groups[g]), i, way) {
            *some = true;
            ok = ok && add_way(ways, slot(n, way, depth + 1));
        }
    return ok;
}

static void make(nest *n, job j) {
    const json_t *schema = call_schema_follow(n->root, j.schema);
    unsigned types = call_types_of(n->root, schema);
    json_t *ways = json_array();
    bool some = false, ok = ways != NULL;
    if (types == 0) types = CALL_TYPES_ALL;
    if (n->as == TREE) types &= ~TEXT_BIT; // a tag of its own, see between_tags
    ok = ok && add_constants(n, ways, schema, &some);
    if (ok && !some && j.depth <= NEST_DEPTH_MAX)
        ok = add_branches(n, ways, schema, j.depth, &some);
    if (ok && !some)
        ok = add_scalars(n, ways, schema, types, j.depth) &&
             add_containers(n, ways, schema, types, j.depth);
    if (ok && json_array_size(ways) > 0) {
        fill(n, j.slot, tag_or(ways));
        return;
    }
    n->failed = true;
    json_decref(ways);
}

/* Fills all slots. */
static bool finish(nest *n) {
    while (n->n_jobs > 0 && !n->failed) make(n, n->jobs[--n->n_jobs]);
    free(n->jobs);
    return !n->failed;
}

static notation notation_of(const call_format *f) {
    return f->style == CALL_BRACES ? BRACES : f->tree ? TREE : PYTHON;
}

json_t *tag_of_nested(const call_format *f, const json_t *root, const json_t *schema,
                      const char *place) {
    nest n = {.f = f, .as = notation_of(f), .root = root, .place = place};
    json_t *v = slot(&n, schema, 1);
    if (finish(&n)) return v;
    json_decref(v);
    return NULL;
}

void tag_members(tag_writer *w, const call_format *f, const json_t *parameters, const char *place) {
    nest n = {.f = f, .as = notation_of(f), .root = parameters, .place = place};
    if (n.as != TREE) tag_text(w, bytes_of(n.as == PYTHON ? "(" : "{"));
    add_members(&n, w, parameters, 0);
    if (n.as != TREE) tag_text(w, bytes_of(n.as == PYTHON ? ")" : "}"));
    if (!finish(&n)) w->failed = true;
}
