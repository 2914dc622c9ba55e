/* parser_tree.c - values between tags with parts between tags (MiniMax M3):
 *
 *     <place><city>Rome</city><days><item>1</item><item>2</item></days></place>
 *
 * Such a value is read when it is complete.  The schema of the tool tells lists from objects and
 * texts from numbers; where it does not, a list is what holds items, and a text without parts is
 * what it looks like.  A tree that is none (tags that do not close) is text. */
#include <string.h>

#include "calls/parser.h"
#include "calls/types.h"

/* ---- schemas ---- */

/* The schema of a part: in the schema, or in the first of its anyOf and oneOf that knows it. */
static const json_t *schema_of_part(const json_t *root, const json_t *schema, bytes key,
                                    bool in_list) {
    static const char *const groups[] = {"anyOf", "oneOf"};
    const json_t *part = NULL;
    json_t *way;
    size_t i;
    schema = call_schema_follow(root, schema);
    if (in_list) return call_schema_follow(root, json_object_get(schema, "items"));
    part = json_object_getn(json_object_get(schema, "properties"), key.p, key.n);
    for (size_t g = 0; g < INFERD_COUNT(groups) && part == NULL; g++)
        json_array_foreach(json_object_get(schema, groups[g]), i, way) {
            if (part != NULL) break;
            const json_t *properties = json_object_get(call_schema_follow(root, way), "properties");
            part = json_object_getn(properties, key.p, key.n);
        }
    if (part == NULL) part = json_object_get(schema, "additionalProperties");
    return call_schema_follow(root, part);
}

/* ---- tags ---- */

typedef struct tree_tag {
    bool closes;
    bytes key;
    size_t end; // of the tag in the text
} tree_tag;

/* What stands before the key in the tag that closes it. */
static bytes close_start(const call_format *f) {
    bytes mark = f->value_close[CALL_TYPE_STRING];
    const char *key = memchr(mark.p, CALL_KEY, mark.n);
    return (bytes){mark.p, key == NULL ? mark.n : (size_t)(key - mark.p)};
}

/* The tag at `at`.  MATCH_PART: the text ends in it. */
static match_result tag_at(const call_format *f, bytes text, size_t at, tree_tag *out) {
    bytes rest = bytes_from(text, at), open = f->key_open, close = close_start(f);
    bytes tail = bytes_trim(f->key_close[CALL_TYPE_STRING]);
    size_t n = size_min(rest.n, size_max(open.n, close.n));
    if (n < open.n && memcmp(rest.p, open.p, n) != 0) return MATCH_NO;
    if (n < open.n) return MATCH_PART;
    if (n < close.n && memcmp(rest.p, close.p, n) == 0) return MATCH_PART;
    out->closes = bytes_start(rest, close);
    if (!out->closes && !bytes_start(rest, open)) return MATCH_NO;
    size_t from = out->closes ? close.n : open.n;
    bytes key = {rest.p, size_min(rest.n, from + PARSER_KEY_BYTES_MAX)};
    size_t end = bytes_find(key, tail, from);
    if (end == SIZE_MAX) return key.n < rest.n ? MATCH_NO : MATCH_PART;
    out->key = bytes_trim((bytes){rest.p + from, end - from});
    out->end = at + end + tail.n;
    return MATCH_YES;
}

/* ---- a tree as JSON ---- */

typedef struct tree_level {
    const json_t *schema;
    bytes key;
    bool list;
    size_t n; // of parts
} tree_level;

typedef struct tree_reader {
    const call_format *f;
    const json_t *root;
    bytes text;
    buf *out;
    tree_level levels[VALUE_DEPTH_MAX]; // [depth] containers that are open
    size_t depth;
} tree_reader;

static void add_leaf(buf *out, bytes text, unsigned types) {
    const unsigned string = 1u << CALL_TYPE_STRING;
    if (types == 0) types = CALL_TYPES_ALL;
    if (bytes_trim(text).n == 0 && (types & string) == 0) {
        buf_add_str(out, (types & 1u << CALL_TYPE_OBJECT) != 0  ? "{}"
                         : (types & 1u << CALL_TYPE_ARRAY) != 0 ? "[]"
                                                                : "null");
        return;
    }
    if (types == string || bytes_trim(text).n == 0) {
        buf_add_char(out, '"');
        value_add_escaped(out, text);
        buf_add_char(out, '"');
        return;
    }
    parser_add_value(out, text, types);
}

/* A value begins at `at`: a container stays open, a leaf is read to its end.  False: no tree. */
static bool begin_value(tree_reader *r, const json_t *schema, bytes key, size_t *at) {
    tree_tag tag;
    unsigned types = call_types_of(r->root, schema);
    size_t from = *at;
    bool whole = r->depth == 0;
    while (*at < r->text.n && tag_at(r->f, r->text, *at, &tag) != MATCH_YES) ++*at;
    bool leaf = *at == r->text.n || tag.closes;
    if (leaf && !whole && *at == r->text.n) return false;
    if (leaf) {
        add_leaf(r->out, (bytes){r->text.p + from, *at - from}, types);
        return true;
    }
    if (bytes_trim((bytes){r->text.p + from, *at - from}).n > 0) return false; // text and parts
    if (r->depth == VALUE_DEPTH_MAX) return false;
    bool list = (types & 1u << CALL_TYPE_ARRAY) != 0,
         object = (types & 1u << CALL_TYPE_OBJECT) != 0;
    if (list == object) list = bytes_equal(tag.key, r->f->item);
    r->levels[r->depth++] = (tree_level){.schema = schema, .key = key, .list = list};
    buf_add_char(r->out, list ? '[' : '{');
    return true;
}

/* The tag of the next part, which begins. */
static bool begin_part(tree_reader *r, const tree_tag *tag, size_t *at) {
    tree_level *level = &r->levels[r->depth - 1];
    const json_t *schema = schema_of_part(r->root, level->schema, tag->key, level->list);
    size_t depth = r->depth;
    if (level->n++ > 0) buf_add_char(r->out, ',');
    if (!level->list) {
        buf_add_char(r->out, '"');
        value_add_escaped(r->out, tag->key);
        buf_add_str(r->out, "\":");
    }
    *at = tag->end;
    if (!begin_value(r, schema, tag->key, at)) return false;
    tree_tag end;
    if (r->depth > depth) return true; // its parts follow
    if (tag_at(r->f, r->text, *at, &end) != MATCH_YES || !end.closes) return false;
    *at = end.end;
    return bytes_equal(end.key, tag->key);
}

static bool read_tree(tree_reader *r, const json_t *schema) {
    size_t at = 0;
    tree_tag tag;
    if (!begin_value(r, schema, (bytes){NULL, 0}, &at)) return false;
    while (r->depth > 0) {
        while (at < r->text.n && call_is_white(r->text.p[at])) at++;
        tree_level level = r->levels[r->depth - 1];
        bool ends = at == r->text.n;
        if (!ends && tag_at(r->f, r->text, at, &tag) != MATCH_YES) return false;
        if (!ends && !tag.closes) {
            if (!begin_part(r, &tag, &at)) return false;
            continue;
        }
        if (ends != (r->depth == 1)) return false; // only the outermost tag is outside of the text
        if (!ends && !bytes_equal(tag.key, level.key)) return false;
        if (!ends) at = tag.end;
        buf_add_char(r->out, level.list ? ']' : '}');
        r->depth--;
    }
    return at == r->text.n;
}

static void end_tree(call_parser *p, bytes text) {
    tree_reader *r = calloc(1, sizeof *r);
    const json_t *root = parser_arguments_schema(p);
    size_t from = p->out.n;
    if (r == NULL) {
        p->failed = true;
        return;
    }
    *r = (tree_reader){.f = p->f, .root = root, .text = text, .out = &p->out};
    bytes key = {p->key.p, p->key.n};
    if (!read_tree(r, schema_of_part(root, root, key, false))) {
        p->out.n = from;
        buf_add_char(&p->out, '"');
        value_add_escaped(&p->out, text);
        buf_add_char(&p->out, '"');
    }
    free(r);
}

step_result parser_tree(call_parser *p) {
    bytes text = parser_rest(p, 0);
    size_t i = p->n_seen, end = text.n, next = text.n;
    while (i < text.n && next == text.n) {
        tree_tag tag;
        match_result m = tag_at(p->f, text, i, &tag);
        if (m == MATCH_PART) break;
        if (m != MATCH_YES) {
            i++;
            continue;
        }
        if (tag.closes && p->depth == 0) {
            end = i;
            next = tag.end;
            break;
        }
        p->depth += tag.closes ? (size_t)-1 : 1;
        i = tag.end;
    }
    p->n_seen = i;
    if (end == text.n) return STEP_WAITS;
    end_tree(p, (bytes){text.p, end});
    parser_flush(p);
    parser_take(p, next);
    p->state = PARSER_TAG;
    return STEP_ON;
}
