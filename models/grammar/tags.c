/* tags.c - structural tags: free text with parts that follow schemas.
 *
 *     {"structures": [{"begin", "schema", "end"} ...], "triggers": [text ...]}      vLLM
 *     {"format": FORMAT}                                                            xgrammar
 *
 *     FORMAT    const_string     value
 *               json_schema      json_schema
 *               regex            pattern
 *               any_text         (inside a tag: up to the first `end` of the tag)
 *               sequence, or     elements: [FORMAT ...]
 *               tag              begin, content: FORMAT, end
 *               triggered_tags   triggers, tags: [tag ...], at_least_one, stop_after_first
 *               tags_with_separator   tags, separator, at_least_one, stop_after_first
 *
 * With triggers, text is free until a trigger is complete; then one of the tags that begin with it
 * must follow.  Free text is an automaton for each trigger (tags_text.h), of the texts that end
 * with its first occurrence and have no other trigger before: each text has one reading.
 *
 *     ( until_trigger_1 (rest of a tag's begin, content, end | ...)  |  until_trigger_2 ... )* free
 *
 * With grammar_schema_kind.tokens, texts (value, begin, end, separator, triggers) may name control
 * tokens.  They are converted when they are read, and symbols are compared and cut as other bytes.
 *
 * A format is walked with a stack of its own: a frame for each that has parts, and the nodes of the
 * parts that are finished.
 * Thread: any; a builder belongs to one compilation. */
#include <string.h>

#include "dfa.h"
#include "inferd/clock.h"
#include "ir.h"
#include "models/grammar.h"
#include "schema.h"
#include "tags_text.h"

enum {
    TAGS_DEPTH_MAX = 32,   // of formats in formats
    TAGS_PARTS_MAX = 1024, // of one format
    TAGS_AUTOMATA_BYTES_MAX = 32 << 20
};

typedef enum format_kind {
    FORMAT_STRING,
    FORMAT_SCHEMA,
    FORMAT_REGEX,
    FORMAT_ANY,
    FORMAT_SEQUENCE,
    FORMAT_OR,
    FORMAT_TAG,
    FORMAT_TRIGGERED,
    FORMAT_SEPARATED,
    FORMAT_STRUCTURES, // the object of vLLM's form
    FORMAT_STRUCTURE,  // one of its structures
    FORMAT_OUTER,      // the object around xgrammar's form
    FORMAT_KINDS
} format_kind;

/* Names on the wire, and the members that a format may have beside `type`. */
static const struct {
    const char *name;
    const char *members[6];
} formats[FORMAT_KINDS] = {
    [FORMAT_STRING] = {"const_string", {"value"}},
    [FORMAT_SCHEMA] = {"json_schema", {"json_schema"}},
    [FORMAT_REGEX] = {"regex", {"pattern"}},
    [FORMAT_ANY] = {"any_text", {NULL}},
    [FORMAT_SEQUENCE] = {"sequence", {"elements"}},
    [FORMAT_OR] = {"or", {"elements"}},
    [FORMAT_TAG] = {"tag", {"begin", "content", "end"}},
    [FORMAT_TRIGGERED] = {"triggered_tags",
                          {"triggers", "tags", "at_least_one", "stop_after_first"}},
    [FORMAT_SEPARATED] = {"tags_with_separator",
                          {"tags", "separator", "at_least_one", "stop_after_first"}},
    [FORMAT_STRUCTURES] = {"structural_tag", {"structures", "triggers"}},
    [FORMAT_STRUCTURE] = {NULL, {"begin", "schema", "end"}},
    [FORMAT_OUTER] = {NULL, {"format"}},
};

typedef struct frame {
    const json_t *v;
    format_kind kind;
    const json_t *parts; // array; NULL: the one part is `only`
    const json_t *only;
    size_t next; // part to be built
} frame;

/* A text of the JSON with symbols in place of names. */
typedef struct converted {
    struct converted *next;
    buf text;
} converted;

typedef struct builder {
    ir *g;
    const grammar_schema_kind *kind;
    dfa_limits limits;
    uint64_t deadline_us; // of all of it
    size_t n_bytes;       // of the automata
    frame frames[TAGS_DEPTH_MAX];
    size_t depth;
    ir_node *nodes; // [n_nodes] finished parts of all frames; owned
    size_t n_nodes, capacity;
    converted *texts; // owned
} builder;

/* ---- failures ---- */

/* The JSON pointer of what is being built; cut where there is no room. */
static const char *path_of(const builder *b, char *out, size_t n_out) {
    size_t n = (size_t)snprintf(out, n_out, "#");
    if (b->depth > 0 && b->frames[0].kind != FORMAT_STRUCTURES)
        n += (size_t)snprintf(out + n, n_out - n, "/format");
    for (size_t i = 0; i + 1 < b->depth && n < n_out; i++) {
        const frame *f = &b->frames[i];
        const char *name = f->kind == FORMAT_TAG                                ? "content"
                           : f->kind == FORMAT_STRUCTURES                       ? "structures"
                           : f->kind == FORMAT_SEQUENCE || f->kind == FORMAT_OR ? "elements"
                                                                                : "tags";
        if (f->parts == NULL)
            n += (size_t)snprintf(out + n, n_out - n, "/%s", name);
        else
            n += (size_t)snprintf(out + n, n_out - n, "/%s/%zu", name, f->next - 1);
    }
    return out;
}

static void fail(builder *b, inferd_status status, const char *what) {
    char path[256];
    ir_fail(b->g, status, "structural tag at %s: %s", path_of(b, path, sizeof path), what);
}

static void fail_err(builder *b, const inferd_err *err) {
    fail(b, err->status, err->text);
}

static void fail_member(builder *b, const char *name, const char *must) {
    char what[160];
    snprintf(what, sizeof what, "\"%s\" must be %s", name, must);
    fail(b, INFERD_EINVAL, what);
}

static bool failed(const builder *b) {
    return ir_status(b->g, NULL) != INFERD_OK;
}

/* ---- members ---- */

static const json_t *given(const json_t *v, const char *name) {
    const json_t *m = json_object_get(v, name);
    return m == NULL || json_is_null(m) ? NULL : m;
}

static bytes convert(builder *b, bytes text) {
    converted *c = calloc(1, sizeof *c);
    if (c == NULL) {
        fail(b, INFERD_ENOMEM, "no memory for its texts");
        return text;
    }
    c->next = b->texts;
    b->texts = c;
    if (!tags_add_text(&c->text, text))
        fail(b, INFERD_EINVAL, "U+FDD0 and U+FDD1 must enclose the name of a control token");
    if (c->text.failed) fail(b, INFERD_ENOMEM, "no memory for its texts");
    return (bytes){c->text.p, c->text.n};
}

static bytes text_of(builder *b, const json_t *m) {
    bytes text = {json_string_value(m), json_string_length(m)};
    bool marked =
        b->kind != NULL && b->kind->tokens && text.n > 0 &&
        (strstr(text.p, GRAMMAR_TOKEN_OPEN) != NULL || strstr(text.p, GRAMMAR_TOKEN_CLOSE) != NULL);
    return marked ? convert(b, text) : text;
}

static bytes text_member(builder *b, const json_t *v, const char *name, bool may_be_empty) {
    const json_t *m = given(v, name);
    bytes text = text_of(b, m);
    if (text.n == 0 && !may_be_empty) fail_member(b, name, "a string that is not empty");
    if (m != NULL && !json_is_string(m)) fail_member(b, name, "a string");
    return text;
}

static bool flag_member(builder *b, const json_t *v, const char *name) {
    const json_t *m = given(v, name);
    if (m != NULL && !json_is_boolean(m)) fail_member(b, name, "true or false");
    return json_is_true(m);
}

static const json_t *list_member(builder *b, const json_t *v, const char *name, size_t n_max) {
    const json_t *m = given(v, name);
    char must[64];
    snprintf(must, sizeof must, "an array of 1 to %zu", n_max);
    if (json_array_size(m) == 0 || json_array_size(m) > n_max) fail_member(b, name, must);
    return m;
}

/* A member that is not known could mean anything. */
static void check_members(builder *b, const json_t *v, format_kind kind) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        char what[160];
        bool known = strcmp(key, "type") == 0 || json_is_null(value);
        for (size_t i = 0; i < INFERD_COUNT(formats[kind].members); i++) {
            const char *name = formats[kind].members[i];
            known |= name != NULL && strcmp(key, name) == 0;
        }
        if (known) continue;
        snprintf(what, sizeof what, "\"%.64s\" cannot be enforced", key);
        fail(b, INFERD_EUNSUPPORTED, what);
    }
}

/* ---- automata ---- */

/* Takes the automaton. */
static ir_node term(builder *b, inferd_status status, dfa *d, const inferd_err *err) {
    b->n_bytes += dfa_bytes(d);
    if (status == INFERD_OK && b->n_bytes <= TAGS_AUTOMATA_BYTES_MAX) return ir_term(b->g, d);
    dfa_deinit(d);
    if (status == INFERD_OK)
        fail(b, INFERD_ETOOLONG, "its automata are too large");
    else
        fail_err(b, err);
    return IR_NEVER;
}

static ir_node until(builder *b, const bytes *texts, size_t n, size_t which) {
    dfa d = {0};
    inferd_err err = {0};
    inferd_status s = tags_until(texts, n, which, &d, &err);
    if (s == INFERD_OK && dfa_is_empty(&d))
        fail(b, INFERD_EINVAL, "a trigger is part of another one");
    return term(b, s, &d, &err);
}

static ir_node without(builder *b, const bytes *texts, size_t n) {
    dfa d = {0};
    inferd_err err = {0};
    inferd_status s = tags_without(texts, n, &d, &err);
    return term(b, s, &d, &err);
}

static ir_node pattern_node(builder *b, bytes pattern) {
    dfa d = {0};
    inferd_err err = {0};
    inferd_status s = regex_compile(pattern, REGEX_TEXT, &b->limits, &d, &err);
    return term(b, s, &d, &err);
}

/* The pointers of `found` are of a schema in what is being built. */
static bool report(builder *b, const char *member, const json_t *found) {
    char path[1024]; // TAGS_DEPTH_MAX times "/elements/1023"
    path_of(b, path, sizeof path);
    bool ok = true;
    for (size_t i = 0; i < json_array_size(found) && ok; i++) {
        const char *pointer = json_string_value(json_array_get(found, i));
        json_t *whole = json_sprintf("%s/%s%s", path, member, pointer + 1);
        ok = json_array_append_new(b->kind->weakened, whole) == 0;
    }
    return ok;
}

static ir_node schema_node(builder *b, const json_t *v, const char *member) {
    const json_t *schema = given(v, member);
    ir_node node = IR_NEVER;
    inferd_err err = {0};
    grammar_schema_kind kind = {0};
    if (b->kind != NULL) kind = *b->kind;
    bool weakens = kind.weakened != NULL && schema != NULL;
    if (weakens) kind.weakened = json_array();
    if (schema == NULL)
        fail(b, INFERD_EINVAL, "there is no schema");
    else if (weakens && kind.weakened == NULL)
        fail(b, INFERD_ENOMEM, "no memory for its schema");
    else if (schema_add(b->g, schema, &kind, &node, &err) != INFERD_OK)
        fail_err(b, &err);
    else if (weakens && !report(b, member, kind.weakened))
        fail(b, INFERD_ENOMEM, "no memory for its schema");
    if (weakens) json_decref(kind.weakened);
    return node;
}

/* ---- formats without parts ---- */

/* The nearest tag around what is being built decides where free text ends. */
static ir_node any_text(builder *b) {
    const frame *around = b->depth > 1 ? &b->frames[b->depth - 2] : NULL;
    if (around == NULL || around->kind != FORMAT_TAG) return without(b, NULL, 0);
    bytes end = text_member(b, around->v, "end", false);
    return failed(b) ? IR_NEVER : without(b, &end, 1); // up to it
}

static ir_node leaf(builder *b, const json_t *v, format_kind kind) {
    switch (kind) {
    case FORMAT_STRING:
        return ir_literal(b->g, text_member(b, v, "value", false));
    case FORMAT_SCHEMA:
        return schema_node(b, v, "json_schema");
    case FORMAT_REGEX:
        return pattern_node(b, text_member(b, v, "pattern", false));
    case FORMAT_ANY:
        return any_text(b);
    default:
        return IR_NEVER;
    }
}

/* ---- formats with parts, from the nodes of these ---- */

/* A tag; of its `begin` the first n_read bytes were read with the trigger. */
static ir_node tag_node(builder *b, const json_t *tag, ir_node content, size_t n_read) {
    bytes begin = text_member(b, tag, "begin", true), end = text_member(b, tag, "end", true);
    ir_node parts[3] = {IR_EMPTY, content, IR_EMPTY};
    const json_t *inner = given(tag, "content");
    const char *type = json_string_value(json_object_get(inner, "type"));
    if (failed(b) || begin.n < n_read) return IR_NEVER;
    if (begin.n > n_read) parts[0] = ir_literal(b->g, (bytes){begin.p + n_read, begin.n - n_read});
    if (end.n > 0) parts[2] = ir_literal(b->g, end);
    if (type != NULL && strcmp(type, formats[FORMAT_ANY].name) == 0) { // one reading, not two
        parts[1] = until(b, &end, 1, 0);
        parts[2] = IR_EMPTY;
    }
    return ir_seq(b->g, parts, 3);
}

static bool starts_with(bytes text, bytes with) {
    return text.n >= with.n && memcmp(text.p, with.p, with.n) == 0;
}

/* The trigger that is complete first in the begin of a tag: the shortest. */
static size_t trigger_of(bytes begin, const bytes *triggers, size_t n) {
    size_t found = n;
    for (size_t i = 0; i < n; i++)
        if (starts_with(begin, triggers[i]) && (found == n || triggers[i].n < triggers[found].n))
            found = i;
    return found;
}

/* The trigger of each tag, by index. */
static void find_triggers(builder *b, const json_t *tags, const bytes *triggers, size_t n,
                          size_t *out) {
    for (size_t i = 0; i < json_array_size(tags); i++) {
        bytes begin = text_member(b, json_array_get(tags, i), "begin", false);
        out[i] = trigger_of(begin, triggers, n);
        if (out[i] == n && !failed(b)) fail(b, INFERD_EINVAL, "a tag begins with no trigger");
    }
}

/* What follows each trigger: one of the tags that begin with it.  false: recorded. */
static bool after_triggers(builder *b, const json_t *tags, const ir_node *contents,
                           const bytes *triggers, size_t n, ir_node *out) {
    size_t n_tags = json_array_size(tags);
    ir_node *some = calloc(size_max(n_tags, 1), sizeof *some);
    size_t *which = calloc(size_max(n_tags, 1), sizeof *which);
    if (some == NULL || which == NULL) fail(b, INFERD_ENOMEM, "no memory for tags");
    if (!failed(b)) find_triggers(b, tags, triggers, n, which);
    for (size_t t = 0; t < n && !failed(b); t++) {
        size_t n_some = 0;
        for (size_t i = 0; i < n_tags; i++)
            if (which[i] == t)
                some[n_some++] = tag_node(b, json_array_get(tags, i), contents[i], triggers[t].n);
        if (n_some == 0) fail(b, INFERD_EINVAL, "a trigger begins no tag");
        out[t] = ir_alt(b->g, some, n_some);
    }
    free(some);
    free(which);
    return !failed(b);
}

static bool read_triggers(builder *b, const json_t *v, bytes *out, size_t *n) {
    const json_t *list = list_member(b, v, "triggers", TAGS_TEXTS_MAX);
    *n = failed(b) ? 0 : json_array_size(list);
    for (size_t i = 0; i < *n; i++) {
        const json_t *one = json_array_get(list, i);
        out[i] = text_of(b, one);
        if (out[i].n == 0) fail_member(b, "triggers", "strings that are not empty");
    }
    return !failed(b);
}

static ir_node triggered(builder *b, const json_t *v, const json_t *tags, const ir_node *contents) {
    bytes triggers[TAGS_TEXTS_MAX];
    ir_node after[TAGS_TEXTS_MAX], items[TAGS_TEXTS_MAX];
    size_t n;
    bool some = flag_member(b, v, "at_least_one"), one = flag_member(b, v, "stop_after_first");
    if (!read_triggers(b, v, triggers, &n) ||
        !after_triggers(b, tags, contents, triggers, n, after))
        return IR_NEVER;
    for (size_t t = 0; t < n; t++) {
        ir_node parts[2] = {until(b, triggers, n, t), after[t]};
        items[t] = ir_seq(b->g, parts, 2);
    }
    ir_node item = ir_alt(b->g, items, n), rest = without(b, triggers, n);
    if (one) return some ? item : ir_alt(b->g, (ir_node[]){item, rest}, 2);
    ir_node all = ir_repeat(b->g, item, item, some, IR_NO_MAX);
    return ir_seq(b->g, (ir_node[]){all, rest}, 2);
}

static ir_node separated(builder *b, const json_t *v, const ir_node *tags, size_t n) {
    bytes separator = text_member(b, v, "separator", true);
    bool some = flag_member(b, v, "at_least_one"), one = flag_member(b, v, "stop_after_first");
    ir_node tag = ir_alt(b->g, tags, n), next = tag;
    if (failed(b)) return IR_NEVER;
    if (separator.n > 0) next = ir_seq(b->g, (ir_node[]){ir_literal(b->g, separator), tag}, 2);
    return ir_repeat(b->g, tag, next, some, one ? 1 : IR_NO_MAX);
}

/* Are the parts of this frame built without `begin`, which its triggers read in part? */
static bool has_triggers(const frame *f) {
    return f->kind == FORMAT_TRIGGERED || f->kind == FORMAT_STRUCTURES;
}

static ir_node combine(builder *b, const frame *f, const ir_node *nodes, size_t n) {
    switch (f->kind) {
    case FORMAT_SEQUENCE:
        return ir_seq(b->g, nodes, n);
    case FORMAT_OR:
        return ir_alt(b->g, nodes, n);
    case FORMAT_TAG:
    case FORMAT_STRUCTURE: // inside of triggers: of the tag, its content
        return b->depth > 1 && has_triggers(&b->frames[b->depth - 2])
                   ? nodes[0]
                   : tag_node(b, f->v, nodes[0], 0);
    case FORMAT_TRIGGERED:
    case FORMAT_STRUCTURES:
        return triggered(b, f->v, f->parts, nodes);
    case FORMAT_SEPARATED:
        return separated(b, f->v, nodes, n);
    default:
        return IR_NEVER;
    }
}

/* ---- the walk ---- */

static bool push_node(builder *b, ir_node node) {
    if (b->n_nodes == b->capacity) {
        size_t capacity = size_max(2 * b->capacity, 64), n_bytes;
        ir_node *grown = NULL;
        if (size_mul(capacity, sizeof *grown, &n_bytes)) grown = realloc(b->nodes, n_bytes);
        if (grown == NULL) {
            fail(b, INFERD_ENOMEM, "no memory for its parts");
            return false;
        }
        b->nodes = grown;
        b->capacity = capacity;
    }
    b->nodes[b->n_nodes++] = node;
    return true;
}

/* Of the last frame; FORMAT_KINDS: recorded.  Parts of triggers and separators are tags, with or
 * without a type. */
static format_kind kind_of(builder *b, const json_t *v) {
    const frame *around = b->depth > 1 ? &b->frames[b->depth - 2] : NULL;
    const char *type = json_string_value(json_object_get(v, "type"));
    bool in_tags =
        around != NULL && (around->kind == FORMAT_TRIGGERED || around->kind == FORMAT_SEPARATED);
    char what[160];
    if (around != NULL && around->kind == FORMAT_STRUCTURES) return FORMAT_STRUCTURE;
    if (in_tags && type == NULL && json_is_object(v)) return FORMAT_TAG;
    for (int i = 0; type != NULL && i < FORMAT_STRUCTURES; i++)
        if (strcmp(type, formats[i].name) == 0 && (!in_tags || i == FORMAT_TAG))
            return (format_kind)i;
    if (type == NULL)
        fail_member(b, "type", "there: the type of a format");
    else if (in_tags)
        fail_member(b, "type", "\"tag\"");
    else {
        snprintf(what, sizeof what, "a format of type \"%.64s\" cannot be enforced", type);
        fail(b, INFERD_EUNSUPPORTED, what);
    }
    return FORMAT_KINDS;
}

/* The parts of a format; a structure's only part is its schema, which is a leaf. */
static void find_parts(builder *b, frame *f) {
    switch (f->kind) {
    case FORMAT_SEQUENCE:
    case FORMAT_OR:
        f->parts = list_member(b, f->v, "elements", TAGS_PARTS_MAX);
        break;
    case FORMAT_TRIGGERED:
    case FORMAT_SEPARATED:
        f->parts = list_member(b, f->v, "tags", TAGS_PARTS_MAX);
        break;
    case FORMAT_STRUCTURES:
        f->parts = list_member(b, f->v, "structures", TAGS_PARTS_MAX);
        break;
    case FORMAT_TAG:
        f->only = given(f->v, "content");
        if (f->only == NULL) fail_member(b, "content", "a format");
        break;
    default:
        break;
    }
}

/* Begins a format: its node is pushed at once, or its frame stays and waits for its parts.
 * FORMAT_KINDS: by its type. */
static void begin(builder *b, const json_t *v, format_kind kind) {
    if (b->depth == TAGS_DEPTH_MAX) {
        ir_fail(b->g, INFERD_ETOOLONG, "structural tag: more than %d formats inside of another",
                TAGS_DEPTH_MAX);
        return;
    }
    frame *f = &b->frames[b->depth++];
    *f = (frame){.v = v, .kind = kind};
    if (kind == FORMAT_KINDS) f->kind = kind_of(b, v);
    if (!json_is_object(v)) fail(b, INFERD_EINVAL, "a format must be an object");
    if (failed(b)) return;
    check_members(b, v, f->kind);
    find_parts(b, f);
    if (clock_thread_us() > b->deadline_us)
        fail(b, INFERD_ETOOLONG, "compiling takes longer than compile_ms_max");
    if (failed(b) || f->parts != NULL || f->only != NULL) return;
    if (f->kind == FORMAT_STRUCTURE) {
        ir_node content = schema_node(b, v, "schema");
        push_node(b, combine(b, f, &content, 1));
    } else {
        push_node(b, leaf(b, v, f->kind));
    }
    b->depth--;
}

static ir_node walk(builder *b, const json_t *v, format_kind kind) {
    begin(b, v, kind);
    while (b->depth > 0 && !failed(b)) {
        frame *f = &b->frames[b->depth - 1];
        size_t n = f->parts != NULL ? json_array_size(f->parts) : 1;
        if (f->next < n) {
            const json_t *part = f->parts != NULL ? json_array_get(f->parts, f->next) : f->only;
            f->next++;
            begin(b, part, FORMAT_KINDS);
            continue;
        }
        ir_node node = combine(b, f, b->nodes + b->n_nodes - n, n);
        b->n_nodes -= n;
        b->depth--;
        push_node(b, node);
    }
    return b->n_nodes == 1 && !failed(b) ? b->nodes[0] : IR_NEVER;
}

static void builder_free(builder *b) {
    for (converted *c = b->texts, *next; c != NULL; c = next) {
        next = c->next;
        buf_deinit(&c->text);
        free(c);
    }
    free(b->nodes);
    free(b);
}

inferd_status grammar_of_tags(const json_t *tags, const grammar_schema_kind *kind,
                              const grammar_options *options, grammar **out, inferd_err *err) {
    const json_t *format = given(tags, "format");
    grammar_limits limits =
        options == NULL || options->limits == NULL ? grammar_limits_default : *options->limits;
    if (kind != NULL && kind->compact) limits.white_bytes_max = 0;
    builder *b = calloc(1, sizeof *b);
    ir *g = ir_create(&limits);
    *out = NULL;
    if (b == NULL || g == NULL) {
        free(b);
        ir_destroy(g);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a structural tag");
    }
    b->g = g;
    b->kind = kind;
    b->deadline_us = clock_thread_us() + (uint64_t)limits.compile_ms_max * 1000;
    b->limits = dfa_limits_default;
    b->limits.states_max = limits.dfa_states_max;
    b->limits.pattern_bytes_max = limits.pattern_bytes_max;
    b->limits.nesting_max = limits.pattern_nesting_max;
    if (format != NULL) check_members(b, tags, FORMAT_OUTER);
    ir_node root =
        format != NULL ? walk(b, format, FORMAT_KINDS) : walk(b, tags, FORMAT_STRUCTURES);
    builder_free(b);
    return ir_finish(g, root, options, out, err);
}
