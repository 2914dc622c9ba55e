/* tags_nested.c - values in the notation of a format, as deep as the schema goes: tag_of_nested.
 *
 *     CALL_BRACES   {a:1,b:[<mark>x<mark>,{c:true}]}
 *     CALL_PYTHON   (a=1, b=['x', {'c': True}]), and lists and objects between tags (literals)
 *     a tree        <a>1</a><b><item>x</item><item><c>true</c></item></b>
 *
 * Objects come in the order of the schema's properties (sorted in CALL_BRACES, as templates write
 * them), optional ones may be left out, and others cannot be written.  Without properties any key
 * can.  Of the keywords type, enum, const, properties, required, additionalProperties, items,
 * minItems, maxItems, anyOf, oneOf and references to definitions count, and those of numbers; the
 * scope names others.
 *
 * Formats are made from the outside: a value is a slot, an empty object that is filled later, so
 * the depth of a schema costs no stack.  Containers deeper than NEST_DEPTH_MAX, which recursive
 * schemas have, are JSON.  Slots are bounded for all tools together (tag_scope): what a schema is
 * worth does not depend on how fast a machine compiles. */
#include <string.h>

#include "calls/tags_nest.h"
#include "inferd/json_whole.h"

enum {
    NEST_DEPTH_MAX = 4,     // of containers; a structural tag has a limit of formats in formats
    NEST_ANY_DEPTH_MAX = 2, // of those without a schema
    NEST_ANY_SLOTS = 256,   // of arguments without a schema; they take 7
    NEST_ITEMS_MAX = 1000000
};

/* ---- slots ---- */

/* A value without memory for its place fails the whole. */
static value value_in(const value *v, const char *word, const char *key, const json_t *schema) {
    return (value){schema, v->depth + 1, tag_place(v->place, word, key)};
}

/* A new slot for a value; it takes the place. */
static json_t *slot(nest *n, value v) {
    if (n->n_jobs == n->capacity) {
        size_t capacity = size_max(2 * n->capacity, 32);
        value_job *grown = realloc(n->jobs, capacity * sizeof *grown);
        if (grown == NULL) {
            n->failed = true;
            free(v.place);
            return NULL;
        }
        n->jobs = grown;
        n->capacity = capacity;
    }
    json_t *made = json_object();
    if (n->scope->slots_left == 0)
        n->scope->unfit = true;
    else
        n->scope->slots_left--;
    n->failed = n->failed || made == NULL || v.place == NULL;
    if (made != NULL)
        n->jobs[n->n_jobs++] = (value_job){made, v};
    else
        free(v.place);
    return made;
}

/* Takes the ways.  A way that is a slot itself must stay where it is until it is filled. */
static void fill(nest *n, json_t *in, json_t *ways) {
    bool stays = json_object_size(json_array_get(ways, 0)) == 0;
    json_t *format = stays ? json_pack("{s:s,s:o}", "type", "or", "elements", ways) : tag_or(ways);
    if (format == NULL || json_object_update(in, format) != 0) n->failed = true;
    json_decref(format);
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

/* ---- parts between tags ---- */

static bool is_listed(const json_t *schema) {
    return json_object_get(schema, "enum") != NULL || json_object_get(schema, "const") != NULL;
}

/* Is a text one of the values, and the only one? */
static bool takes_text(const nest *n, const json_t *schema, bool *only) {
    const json_t *of = call_schema_follow(n->root, schema);
    unsigned types = call_types_of(n->root, of);
    *only = !is_listed(of) && types == TEXT_BIT;
    return !is_listed(of) && (types == 0 || (types & TEXT_BIT) != 0);
}

/* `begin` value `end`.  A text runs up to the mark behind it, so it is a tag of its own.  Takes the
 * place. */
static json_t *between_tags(nest *n, bytes begin, value v, bytes end) {
    bool only, text = takes_text(n, v.schema, &only), none = v.place == NULL;
    json_t *ways = json_array();
    for (int i = text ? 0 : 1; i < (only ? 1 : 2) && !none; i++) {
        tag_writer w;
        tag_begin(&w);
        tag_mark(&w, begin, (bytes){NULL, 0});
        if (i == 0) {
            tag_add(&w, tag_of_string(call_schema_of_text(n->root, v.schema), v.place));
        } else {
            tag_add(&w, slot(n, v));
            v.place = NULL;
        }
        tag_mark(&w, end, (bytes){NULL, 0});
        none = !nest_add_way(ways, tag_end(&w));
    }
    free(v.place);
    n->failed = n->failed || none;
    return json_array_size(ways) == 1 ? tag_or(ways) : tag_around("", tag_or(ways), "");
}

/* <key>value</key>. */
static json_t *part_of_tree(nest *n, bytes key, value v) {
    buf open = {0}, close = {0};
    bytes behind = n->f->key_close[CALL_TYPE_STRING];
    buf_add(&open, n->f->key_open.p, n->f->key_open.n);
    buf_add(&open, key.p, key.n);
    buf_add(&open, behind.p, behind.n);
    call_fill_key(n->f->value_close[CALL_TYPE_STRING], key, &close);
    json_t *part = between_tags(n, (bytes){open.p, open.n}, v, (bytes){close.p, close.n});
    n->failed = n->failed || open.failed || close.failed;
    buf_deinit(&open);
    buf_deinit(&close);
    return part;
}

/* A part of any name. */
static json_t *any_part_of_tree(nest *n, value v) {
    static const char name[] = "[a-zA-Z_][a-zA-Z0-9_.\\-]*";
    bytes close = n->f->value_close[CALL_TYPE_STRING], none = {NULL, 0};
    const char *key = memchr(close.p, CALL_KEY, close.n);
    size_t at = key == NULL ? close.n : (size_t)(key - close.p);
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, n->f->key_open, none);
    tag_add(&w, tag_of_pattern(name));
    tag_add(&w, between_tags(n, n->f->key_close[CALL_TYPE_STRING], v, (bytes){close.p, at}));
    tag_add(&w, tag_of_pattern(name));
    tag_mark(&w, bytes_from(close, size_min(at + 1, close.n)), none);
    return tag_end(&w);
}

/* ---- members ---- */

static const char *separator_of(const nest *n) {
    return n->as == TREE ? "" : n->as == BRACES ? "," : ", ";
}

/* Are these the arguments of a call in Python?  Their names are no texts. */
static bool in_python_call(const nest *n, const value *v) {
    return n->as == PYTHON && n->f->style == CALL_PYTHON && v->depth == 0;
}

/* One property. */
static json_t *member(nest *n, const value *of, const char *key, const json_t *schema) {
    bool call = in_python_call(n, of);
    value v = value_in(of, "properties", key, schema);
    tag_writer w;
    if (n->as == TREE) return part_of_tree(n, bytes_of(key), v);
    tag_begin(&w);
    tag_text(&w, bytes_of(n->as == PYTHON && !call ? "'" : ""));
    tag_text(&w, bytes_of(key));
    tag_text(&w, bytes_of(n->as == BRACES ? ":" : call ? "=" : "': "));
    tag_add(&w, slot(n, v));
    return tag_end(&w);
}

/* Takes the tag. */
static json_t *repeated(json_t *tag, const char *separator, json_int_t min, json_int_t max) {
    json_t *tags = json_array(), *v = NULL;
    bool ok = tags != NULL && tag != NULL && json_array_append(tags, tag) == 0;
    json_decref(tag);
    if (ok)
        v = tag_separated(tags, bytes_of(separator), false, false);
    else
        json_decref(tags);
    ok = v != NULL && json_object_set_new(v, "at_least", json_integer(min)) == 0 &&
         json_object_set_new(v, "at_most", max < 0 ? json_null() : json_integer(max)) == 0;
    if (ok) return v;
    json_decref(v);
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

static json_t *members_of(nest *n, const value *v, const char **names, size_t n_names) {
    const json_t *properties = json_object_get(v->schema, "properties");
    json_t *elements = json_array(), *required = json_array(), *made = NULL;
    bool ok = elements != NULL && required != NULL;
    for (size_t i = 0; i < n_names && ok && !n->scope->unfit; i++) {
        const char *name = names[i];
        json_t *one = member(n, v, name, json_object_get(properties, name));
        bool must = tag_is_required(v->schema, name);
        ok =
            nest_add_way(elements, one) && json_array_append_new(required, json_boolean(must)) == 0;
    }
    if (ok)
        made = json_pack("{s:s,s:O,s:O,s:s}", "type", "members", "elements", elements, "required",
                         required, "separator", separator_of(n));
    json_decref(elements);
    json_decref(required);
    return made;
}

static void add_members(nest *n, tag_writer *w, const value *v) {
    size_t n_names = 0;
    const char **names = names_of(n, json_object_get(v->schema, "properties"), &n_names);
    if (n_names > TAG_MEMBERS_MAX) n->scope->unfit = true;
    n->failed = n->failed || names == NULL;
    if (!n->failed && !n->scope->unfit && n_names > 0) tag_add(w, members_of(n, v, names, n_names));
    free(names);
}

/* ---- containers ---- */

/* Any members: keys that need no quotes, or text in Python's. */
static void add_any_members(nest *n, tag_writer *w, const value *v) {
    const json_t *of = json_object_get(v->schema, "additionalProperties");
    value any = value_in(v, "additionalProperties", NULL, json_is_object(of) ? of : NULL);
    bool call = in_python_call(n, v);
    json_t *tag;
    if (n->as == TREE) {
        tag = any_part_of_tree(n, any);
    } else {
        tag_writer one;
        tag_begin(&one);
        tag_add(&one, n->as == BRACES ? tag_of_pattern("[^\\s:,{}\\[\\]<>\"']+")
                      : call          ? tag_of_pattern("[a-zA-Z_][a-zA-Z0-9_]*")
                                      : nest_any_string(n, &(value){NULL, 2, NULL}));
        tag_text(&one, bytes_of(n->as == BRACES ? ":" : call ? "=" : ": "));
        tag_add(&one, slot(n, any));
        tag = tag_end(&one);
    }
    tag_add(w, repeated(tag, separator_of(n), 0, -1));
}

static json_t *object(nest *n, const value *v) {
    tag_writer w;
    bool known = json_object_size(json_object_get(v->schema, "properties")) > 0;
    bool closed = json_is_false(json_object_get(v->schema, "additionalProperties"));
    tag_begin(&w);
    if (n->as != TREE) tag_text(&w, bytes_of("{"));
    if (known)
        add_members(n, &w, v);
    else if (!closed)
        add_any_members(n, &w, v);
    if (n->as != TREE) tag_text(&w, bytes_of("}"));
    if (n->as == TREE && json_array_size(w.elements) == 0) tag_add(&w, tag_of_pattern("\\s{0,2}"));
    return tag_end_sequence(&w);
}

/* A bound of items; what is none is not enforced. */
static json_int_t items_bound(nest *n, const value *v, const char *word, json_int_t absent) {
    const json_t *bound = json_object_get(v->schema, word);
    json_int_t count = json_integer_value(bound);
    if (bound == NULL) return absent;
    if (json_is_integer(bound) && count >= 0 && count <= NEST_ITEMS_MAX) return count;
    tag_not_enforced(n->scope, v->place, word);
    return absent;
}

static json_t *list(nest *n, const value *v) {
    value item = value_in(v, "items", NULL, json_object_get(v->schema, "items"));
    json_int_t min = items_bound(n, v, "minItems", 0), max = items_bound(n, v, "maxItems", -1);
    tag_writer w;
    if (max >= 0 && min > max) n->scope->unfit = true;
    tag_begin(&w);
    if (n->as == TREE) {
        tag_add(&w, repeated(part_of_tree(n, n->f->item, item), "", min, max));
        return tag_end_sequence(&w);
    }
    tag_text(&w, bytes_of("["));
    tag_add(&w, repeated(tag_around("", slot(n, item), ""), separator_of(n), min, max));
    tag_text(&w, bytes_of("]"));
    return tag_end_sequence(&w);
}

/* Lists and objects without a schema, as JSON. */
static json_t *any_json(const char *place) {
    json_t *schema = json_pack("{s:[ss]}", "type", "array", "object");
    json_t *made = schema == NULL ? NULL : tag_of_schema(schema, place);
    json_decref(schema);
    return made;
}

static bool add_containers(nest *n, json_t *ways, const value *v, unsigned types) {
    const unsigned both = 1u << CALL_TYPE_ARRAY | 1u << CALL_TYPE_OBJECT;
    bool any = call_types_of(n->root, v->schema) == 0, ok = true;
    if ((types & both) == 0) return true;
    if (any && v->depth > NEST_ANY_DEPTH_MAX) return nest_add_way(ways, any_json(v->place));
    bool json = n->as == PYTHON && v->depth == 1; // some templates write objects so, and lists not
    if (json || v->depth > NEST_DEPTH_MAX)
        ok = nest_add_way(ways, tag_of_argument(n->root, v->schema, v->place));
    if (v->depth > NEST_DEPTH_MAX) return ok;
    tag_check_keywords(n->scope, v->schema, types & both, v->place);
    if ((types & 1u << CALL_TYPE_ARRAY) != 0) ok = ok && nest_add_way(ways, list(n, v));
    if ((types & 1u << CALL_TYPE_OBJECT) != 0) ok = ok && nest_add_way(ways, object(n, v));
    return ok;
}

/* ---- values ---- */

/* Of a tree, texts are no values: see between_tags. */
static bool add_branches(nest *n, json_t *ways, const value *v, bool *some) {
    static const char *const groups[] = {"anyOf", "oneOf"};
    bool ok = true;
    char key[24];
    size_t i;
    json_t *way;
    *some = false;
    if (json_object_get(v->schema, "type") != NULL) return true;
    for (size_t g = 0; g < INFERD_COUNT(groups) && !*some; g++)
        json_array_foreach(json_object_get(v->schema, groups[g]), i, way) {
            const json_t *of = call_schema_follow(n->root, way);
            *some = true;
            if (n->as == TREE && !is_listed(of) && call_types_of(n->root, of) == TEXT_BIT) continue;
            snprintf(key, sizeof key, "%zu", i);
            ok = ok && nest_add_way(ways, slot(n, value_in(v, groups[g], key, way)));
        }
    return ok;
}

/* Takes the place. */
static void make(nest *n, value_job j) {
    const json_t *schema = call_schema_follow(n->root, j.of.schema);
    value v = {schema, j.of.depth, j.of.place};
    unsigned types = call_types_of(n->root, schema);
    json_t *ways = json_array();
    bool some = false, ok = ways != NULL;
    if (schema == NULL && j.of.schema != NULL) tag_not_enforced(n->scope, v.place, "$ref");
    if (types == 0) types = CALL_TYPES_ALL;
    if (n->as == TREE) types &= ~TEXT_BIT; // a tag of its own, see between_tags
    ok = ok && nest_add_constants(n, ways, schema, &some);
    if (ok && !some && v.depth <= NEST_DEPTH_MAX) ok = add_branches(n, ways, &v, &some);
    if (ok && !some)
        ok = nest_add_scalars(n, ways, &v, types) && add_containers(n, ways, &v, types);
    size_t n_ways = json_array_size(ways);
    free(v.place);
    if (ok && n_ways > 0 && n_ways <= TAG_PARTS_MAX) {
        fill(n, j.slot, ways);
        return;
    }
    n->failed = n->failed || !ok;
    n->scope->unfit = true;
    json_decref(ways);
}

/* Fills all slots.  False: no memory, or the schema does not fit. */
static bool finish(nest *n) {
    while (n->n_jobs > 0 && !n->failed && !n->scope->unfit) make(n, n->jobs[--n->n_jobs]);
    for (size_t i = 0; i < n->n_jobs; i++) free(n->jobs[i].of.place);
    free(n->jobs);
    return !n->failed && !n->scope->unfit;
}

static notation notation_of(const call_format *f) {
    return f->style == CALL_BRACES ? BRACES : f->tree ? TREE : PYTHON;
}

json_t *tag_of_nested(const call_format *f, const json_t *root, const json_t *schema,
                      const char *place, tag_scope *scope) {
    nest n = {.f = f, .as = notation_of(f), .root = root, .scope = scope};
    json_t *v = slot(&n, (value){schema, 1, tag_place(place, NULL, NULL)});
    if (finish(&n)) return v;
    json_decref(v);
    return NULL;
}

void tag_members(tag_writer *w, const call_format *f, const json_t *parameters, const char *place,
                 tag_scope *scope) {
    tag_scope any = {.slots_left = NEST_ANY_SLOTS};
    nest n = {.f = f, .as = notation_of(f), .root = parameters, .scope = scope};
    value v = {parameters, 0, tag_place(place, NULL, NULL)};
    if (scope->any) {
        n.scope = &any;
        v.schema = NULL;
    }
    n.failed = v.place == NULL;
    if (!n.failed && !scope->any)
        tag_check_keywords(scope, parameters, 1u << CALL_TYPE_OBJECT, v.place);
    if (n.as != TREE) tag_text(w, bytes_of(n.as == PYTHON ? "(" : "{"));
    if (!n.failed && scope->any)
        add_any_members(&n, w, &v);
    else if (!n.failed)
        add_members(&n, w, &v);
    if (n.as != TREE) tag_text(w, bytes_of(n.as == PYTHON ? ")" : "}"));
    free(v.place);
    if (!finish(&n)) w->failed = true;
}
