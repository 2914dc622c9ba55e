/* schema_refs.c - places in a schema: their JSON pointers, and what a $ref means.
 *
 * One walk notes for every container its parent, key and resource: the nearest object around it
 * that has an identifier ($id, or id in draft 4).  A reference is resolved in three steps: its URI
 * against the identifier of the resource, the URI to a resource of this document, the fragment to a
 * pointer or an anchor in it.  Nothing is fetched: a reference to another document is refused. */
#include "schema.h"

struct schema_site {
    const json_t *parent; // NULL: the root
    const char *key;      // in an object
    size_t index;         // in an array
    const json_t *resource;
    const char *base; // of a resource: its absolute identifier, without fragment; else NULL
    bool made;        // by the compiler, for this place
};

typedef enum place { PLACE_SCHEMA, PLACE_MAP, PLACE_LIST, PLACE_PLAIN } place;

typedef struct walk {
    const json_t *at;
    void *iter;   // of an object
    size_t index; // of an array
    place place;
    uint32_t depth; // of schemas
    bool begun;
} walk;

static place place_of(place parent, const char *key, const json_t *value) {
    static const char *const maps[] = {"properties",  "patternProperties", "$defs",
                                       "definitions", "dependentSchemas",  "dependencies"};
    if (parent == PLACE_MAP || parent == PLACE_LIST) return PLACE_SCHEMA;
    if (parent == PLACE_PLAIN) return PLACE_PLAIN;
    for (size_t i = 0; i < INFERD_COUNT(maps); i++)
        if (strcmp(key, maps[i]) == 0) return json_is_object(value) ? PLACE_MAP : PLACE_PLAIN;
    switch (schema_word_of(key)) {
    case WORD_ALL_OF:
    case WORD_ANY_OF:
    case WORD_ONE_OF:
    case WORD_PREFIX_ITEMS:
        return PLACE_LIST;
    case WORD_ITEMS:
        return json_is_array(value) ? PLACE_LIST : PLACE_SCHEMA;
    case WORD_ADDITIONAL_ITEMS:
    case WORD_ADDITIONAL_PROPERTIES:
    case WORD_CONTAINS:
    case WORD_ELSE:
    case WORD_IF:
    case WORD_NOT:
    case WORD_PROPERTY_NAMES:
    case WORD_THEN:
    case WORD_UNEVALUATED_ITEMS:
    case WORD_UNEVALUATED_PROPERTIES:
        return PLACE_SCHEMA;
    default:
        return PLACE_PLAIN;
    }
}

static schema_site *site_of(schema_ctx *c, const json_t *at, bool add) {
    void **p = schema_table_at(c, c->sites, &at, sizeof at, add);
    if (p == NULL) return NULL;
    if (*p == NULL && add) *p = schema_take(c, sizeof(schema_site));
    return *p;
}

/* ---- identifiers ---- */

/* NULL: none.  Up to draft 7 what is beside a $ref counts as not there; the root's still names the
 * document. */
static const char *identifier(const schema_ctx *c, const json_t *schema) {
    if (c->draft <= 7 && schema != c->root && json_object_get(schema, "$ref") != NULL) return NULL;
    return json_string_value(json_object_get(schema, c->draft <= 4 ? "id" : "$id"));
}

static bool has_scheme(const char *uri) {
    size_t n = strcspn(uri, ":/?#");
    return n > 0 && uri[n] == ':';
}

/* `uri` without its fragment, resolved against `base` ("" if there is none). */
static const char *resolve_uri(schema_ctx *c, const char *base, const char *uri) {
    size_t n = strcspn(uri, "#"), keep = 0;
    if (n == 0) return base;
    if (!has_scheme(uri)) {
        const char *host = strstr(base, "://");
        size_t root = host == NULL ? 0 : (size_t)(host + 3 - base) + strcspn(host + 3, "/");
        if (uri[0] == '/') {
            keep = root;
        } else {
            keep = strlen(base);
            while (keep > root && base[keep - 1] != '/') keep--;
            if (host == NULL && keep == 0 && has_scheme(base)) keep = 0;
        }
        if (uri[0] == '.' && uri[1] == '/') {
            uri += 2;
            n -= 2;
        }
    }
    char *text = schema_take(c, keep + n + 1);
    memcpy(text, base, keep);
    memcpy(text + keep, uri, n);
    return text;
}

static void note(schema_ctx *c, const json_t *at, const walk *parent, const char *key, size_t index,
                 place where) {
    schema_site *s = site_of(c, at, true);
    if (s->resource != NULL) return; // a tree that shares a node: its first place
    const schema_site *up = parent == NULL ? NULL : site_of(c, parent->at, false);
    *s = (schema_site){.parent = parent == NULL ? NULL : parent->at,
                       .key = key,
                       .index = index,
                       .resource = up == NULL ? at : up->resource};
    if (up == NULL) s->base = "";
    if (where != PLACE_SCHEMA || !json_is_object(at)) return;
    const char *id = identifier(c, at);
    if (id == NULL || id[0] == '#' || id[0] == 0) return;
    const char *outer = up == NULL ? "" : site_of(c, up->resource, false)->base;
    c->has_resources |= up != NULL;
    s->resource = at;
    s->base = resolve_uri(c, outer, id);
    void **known = schema_table_at(c, c->ids, s->base, strlen(s->base), true);
    if (*known == NULL) *known = (void *)(uintptr_t)at;
}

/* Anchors are kept as "base#anchor" beside the identifiers. */
static void note_anchor(schema_ctx *c, const json_t *at) {
    const schema_site *s = site_of(c, at, false);
    const char *base = site_of(c, s->resource, false)->base, *id = identifier(c, at);
    const char *names[3] = {json_string_value(json_object_get(at, "$anchor")),
                            json_string_value(json_object_get(at, "$dynamicAnchor")),
                            id != NULL && id[0] == '#' && id[1] != 0 ? id + 1 : NULL};
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        if (names[i] == NULL) continue;
        size_t n = strlen(base) + strlen(names[i]) + 2;
        char *key = schema_take(c, n);
        snprintf(key, n, "%s#%s", base, names[i]);
        void **known = schema_table_at(c, c->ids, key, n - 1, true);
        if (*known == NULL) *known = (void *)(uintptr_t)at;
    }
}

/* Texts are C strings here, but for patterns; a parser may let U+0000 into them. */
static void check_text(schema_ctx *c, const walk *w, const char *key, const json_t *value) {
    if (memchr(json_string_value(value), 0, json_string_length(value)) == NULL) return;
    schema_word word = key == NULL ? WORD_NONE : schema_word_of(key);
    if (w->place == PLACE_SCHEMA && key != NULL && (word == WORD_NONE || word == WORD_PATTERN))
        return;
    schema_refuse(c, word, w->at, "it has U+0000");
}

void schema_sites_build(schema_ctx *c) {
    if (!json_is_object(c->root) && !json_is_array(c->root)) return;
    size_t capacity = 0, n = 0;
    walk *stack = NULL;
    note(c, c->root, NULL, NULL, 0, PLACE_SCHEMA);
    stack = schema_grow(c, stack, n, &capacity, sizeof *stack);
    stack[n++] = (walk){.at = c->root, .place = PLACE_SCHEMA, .depth = 1};
    while (n > 0) {
        walk *w = &stack[n - 1];
        const char *key = NULL;
        json_t *value = NULL, *at = (json_t *)(uintptr_t)w->at;
        schema_tick(c);
        if (json_is_object(at)) {
            w->iter = w->begun ? json_object_iter_next(at, w->iter) : json_object_iter(at);
            if (!w->begun && w->place == PLACE_SCHEMA) note_anchor(c, at);
            w->begun = true;
            if (w->iter != NULL) {
                key = json_object_iter_key(w->iter);
                value = json_object_iter_value(w->iter);
            }
        } else {
            value = json_array_get(at, w->index);
            w->index++;
        }
        if (value == NULL) {
            n--;
            continue;
        }
        if (json_is_string(value)) check_text(c, w, key, value);
        if (!json_is_object(value) && !json_is_array(value)) continue;
        place p = key == NULL ? (w->place == PLACE_LIST ? PLACE_SCHEMA : PLACE_PLAIN)
                              : place_of(w->place, key, value);
        uint32_t depth = w->depth + (p == PLACE_SCHEMA || p == PLACE_PLAIN ? 1 : 0);
        if (depth > c->limits->schema_depth_max)
            schema_fail(c, INFERD_ETOOLONG, "the schema is nested deeper than schema_depth_max, %u",
                        c->limits->schema_depth_max);
        note(c, value, w, key, w->index - (key == NULL), p);
        stack = schema_grow(c, stack, n, &capacity, sizeof *stack);
        stack[n++] = (walk){.at = value, .place = p, .depth = depth};
    }
}

void schema_made_at(schema_ctx *c, const json_t *made, const json_t *origin) {
    const schema_site *from = site_of(c, origin, false);
    schema_site copy = from == NULL ? (schema_site){.resource = c->root} : *from;
    copy.made = true;
    *site_of(c, made, true) = copy;
}

const json_t *schema_parent(schema_ctx *c, const json_t *at, const char **key) {
    const schema_site *s = site_of(c, at, false);
    *key = s == NULL ? NULL : s->key;
    return s == NULL ? NULL : s->parent;
}

const json_t *schema_original(schema_ctx *c, const json_t *at) {
    const schema_site *s = site_of(c, at, false);
    if (s == NULL || !s->made) return at;
    if (s->parent == NULL) return c->root;
    return s->key != NULL ? json_object_get(s->parent, s->key)
                          : json_array_get(s->parent, s->index);
}

bool schema_is_made(schema_ctx *c, const json_t *schema) {
    const schema_site *s = site_of(c, schema, false);
    return s != NULL && s->made;
}

/* ---- pointers ---- */

static void add_escaped(buf *out, const char *key) {
    for (; *key != 0; key++) {
        if (*key == '~')
            buf_add_str(out, "~0");
        else if (*key == '/')
            buf_add_str(out, "~1");
        else
            buf_add_char(out, *key);
    }
}

void schema_pointer_add(const char *key, buf *out) {
    buf_add_char(out, '/');
    add_escaped(out, key);
}

void schema_pointer(schema_ctx *c, const json_t *at, buf *out) {
    const schema_site *chain[512];
    size_t n = 0;
    for (const schema_site *s = site_of(c, at, false); s != NULL && s->parent != NULL && n < 512;
         s = site_of(c, s->parent, false))
        chain[n++] = s;
    buf_add_char(out, '#');
    while (n > 0) {
        const schema_site *s = chain[--n];
        if (s->key != NULL)
            schema_pointer_add(s->key, out);
        else
            buf_add_format(out, "/%zu", s->index);
    }
}

static int hex(char x) {
    if (x >= '0' && x <= '9') return x - '0';
    x |= 32;
    return x >= 'a' && x <= 'f' ? x - 'a' + 10 : -1;
}

/* A token of a pointer without its escapes, into `out`; NULL: not a pointer. */
static const char *unescape(const char *p, size_t n, char *out) {
    char *at = out;
    for (size_t i = 0; i < n; i++) {
        char x = p[i];
        if (x == '%' && n - i > 2 && hex(p[i + 1]) >= 0 && hex(p[i + 2]) >= 0) {
            x = (char)(hex(p[i + 1]) * 16 + hex(p[i + 2]));
            i += 2;
        }
        *at++ = x;
    }
    size_t n_out = (size_t)(at - out), kept = 0;
    for (size_t i = 0; i < n_out; i++) {
        char x = out[i];
        if (x == '~' && i + 1 < n_out && (out[i + 1] == '0' || out[i + 1] == '1'))
            x = out[++i] == '0' ? '~' : '/';
        out[kept++] = x;
    }
    out[kept] = 0;
    return memchr(out, 0, kept) == NULL ? out : NULL;
}

static const json_t *follow_pointer(schema_ctx *c, const json_t *at, const char *pointer) {
    char *token = schema_take(c, strlen(pointer) + 1);
    while (at != NULL && *pointer == '/') {
        size_t n = strcspn(++pointer, "/");
        if (unescape(pointer, n, token) == NULL) return NULL;
        if (json_is_array(at)) {
            char *end;
            unsigned long i = strtoul(token, &end, 10);
            at = *token == 0 || *end != 0 ? NULL : json_array_get(at, i);
        } else {
            at = json_object_get(at, token);
        }
        pointer += n;
    }
    return *pointer == 0 ? at : NULL;
}

static const json_t *find_target(schema_ctx *c, const json_t *from, schema_word w,
                                 const char *ref) {
    const schema_site *s = site_of(c, from, false);
    const json_t *resource = s == NULL ? c->root : s->resource;
    const char *base = site_of(c, resource, false)->base;
    const char *uri = resolve_uri(c, base, ref), *fragment = strchr(ref, '#');
    char text[200];
    if (uri != base) {
        void **known = schema_table_at(c, c->ids, uri, strlen(uri), false);
        if (known == NULL) {
            snprintf(text, sizeof text, "\"%.120s\" is not in this document", ref);
            schema_refuse(c, w, from, text);
        }
        resource = *known;
    }
    if (fragment == NULL || fragment[1] == 0) return resource;
    const json_t *found;
    if (fragment[1] == '/') {
        found = follow_pointer(c, resource, fragment + 1);
    } else {
        size_t n = strlen(uri) + strlen(fragment) + 1;
        char *key = schema_take(c, n);
        snprintf(key, n, "%s%s", uri, fragment);
        void **known = schema_table_at(c, c->ids, key, n - 1, false);
        found = known == NULL ? NULL : *known;
    }
    if (found == NULL) {
        snprintf(text, sizeof text, "leads nowhere: \"%.120s\"", ref);
        schema_malformed(c, w, from, text);
    }
    return found;
}

const json_t *schema_resolve(schema_ctx *c, const json_t *from, schema_word w, const char *ref) {
    const void *key[2] = {from, (const void *)(uintptr_t)w};
    void **known = schema_table_at(c, c->resolved, key, sizeof key, false);
    if (known != NULL) return *known;
    if (++c->n_refs > c->limits->refs_max)
        schema_fail(c, INFERD_ETOOLONG, "the schema needs more than refs_max, %u, references",
                    c->limits->refs_max);
    const json_t *target = find_target(c, from, w, ref);
    *schema_table_at(c, c->resolved, key, sizeof key, true) = (void *)(uintptr_t)target;
    return target;
}
