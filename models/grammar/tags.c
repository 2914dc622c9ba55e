/* tags.c - structural tags: free text with parts that follow schemas.
 *
 *     {"structures": [{"begin", "schema", "end"} ...], "triggers": [text ...]}      vLLM
 *     {"format": FORMAT}                                                            xgrammar
 *
 *     FORMAT    const_string     value
 *               json_schema      json_schema
 *               regex            pattern
 *               any_text         (inside a tag: up to the first `end` of the tag)
 *               string_text      json_schema: the same, if it follows the schema as a string
 *               sequence, or     elements: [FORMAT ...]
 *               tag              begin, content: FORMAT, end
 *               triggered_tags   triggers, tags: [tag ...], at_least_one, stop_after_first
 *               tags_with_separator   tags, separator, at_least_one, stop_after_first
 *
 * inferd's own, for the notations of tool calls:
 *
 *               tags_with_separator   ... at_least, at_most: how many
 *               members          elements: [FORMAT ...], separator, required: [bool ...]: in this
 *                                order, with the separator between those that are there
 *
 * Texts of inferd itself (grammar_schema_kind.tokens) have one more:
 *
 *               reasoning        end: up to this mark and with it; see grammar_in_reasoning
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
#include "tags.h"

#include <string.h>

#include "inferd/clock.h"
#include "schema.h"
#include "tags_string.h"

/* ---- automata ---- */

/* Takes the automaton. */
static ir_node term(tags_builder *b, inferd_status status, dfa *d, const inferd_err *err) {
    b->n_bytes += dfa_bytes(d);
    if (status == INFERD_OK && b->n_bytes <= TAGS_AUTOMATA_BYTES_MAX) return ir_term(b->g, d);
    dfa_deinit(d);
    if (status == INFERD_OK)
        tags_fail(b, INFERD_ETOOLONG, "its automata are too large");
    else
        tags_fail_err(b, err);
    return IR_NEVER;
}

/* Kinds of nodes that are kept (tags_made.h); of one text: up to its end, a pattern, a literal. */
enum {
    MADE_UNTIL = 'u',
    MADE_PATTERN = 'p',
    MADE_LITERAL = 'l',
    MADE_SCHEMA = 's',
    MADE_STRING = 't'
};

static ir_node until(tags_builder *b, const bytes *texts, size_t n, size_t which) {
    dfa d = {0};
    inferd_err err = {0};
    inferd_status s = tags_until(texts, n, which, &d, &err);
    if (s == INFERD_OK && dfa_is_empty(&d))
        tags_fail(b, INFERD_EINVAL, "a trigger is part of another one");
    return term(b, s, &d, &err);
}

static ir_node without(tags_builder *b, const bytes *texts, size_t n) {
    dfa d = {0};
    inferd_err err = {0};
    inferd_status s = tags_without(texts, n, &d, &err);
    return term(b, s, &d, &err);
}

static ir_node pattern_node(tags_builder *b, bytes pattern) {
    dfa d = {0};
    inferd_err err = {0};
    inferd_status s = regex_compile(pattern, REGEX_TEXT, &b->limits, &d, &err);
    return term(b, s, &d, &err);
}

/* The node of one text, which may have been made before. */
static ir_node of_text(tags_builder *b, char kind, bytes text) {
    ir_node node = IR_NEVER;
    const json_t *nothing;
    buf key = {0};
    if (tags_failed(b)) return IR_NEVER;
    tags_made_key(&key, kind, text);
    if (!tags_made_find(&b->made, &key, &node, &nothing)) {
        node = kind == MADE_UNTIL     ? until(b, &text, 1, 0)
               : kind == MADE_PATTERN ? pattern_node(b, text)
                                      : ir_literal(b->g, text);
        if (!tags_failed(b)) tags_made_keep(&b->made, &key, node, NULL);
    }
    buf_deinit(&key);
    return node;
}

/* The pointers of `found` are of the schema in what is being built. */
static void report(tags_builder *b, const char *member, const json_t *found) {
    char path[1024]; // TAGS_DEPTH_MAX times "/elements/1023"
    bool ok = true;
    tags_path(b, path, sizeof path);
    for (size_t i = 0; i < json_array_size(found) && ok; i++) {
        const char *pointer = json_string_value(json_array_get(found, i));
        json_t *whole = json_sprintf("%s/%s%s", path, member, pointer + 1);
        ok = json_array_append_new(b->kind->weakened, whole) == 0;
    }
    if (!ok) tags_fail(b, INFERD_ENOMEM, "no memory for its schema");
}

/* left_out NULL: what cannot be enforced fails. */
static ir_node make_schema(tags_builder *b, const json_t *schema, json_t *left_out) {
    ir_node node = IR_NEVER;
    inferd_err err = {0};
    grammar_schema_kind kind = {0};
    if (b->kind != NULL) kind = *b->kind;
    kind.weakened = left_out;
    if (schema == NULL)
        tags_fail(b, INFERD_EINVAL, "there is no schema");
    else if (schema_add(b->g, schema, &kind, &node, &err) != INFERD_OK)
        tags_fail_err(b, &err);
    return node;
}

static ir_node make_string(tags_builder *b, const json_t *schema, bytes end, json_t *left_out) {
    dfa d = {0};
    inferd_err err = {0};
    inferd_status s = tags_string(schema, end, &b->limits, left_out, &d, &err);
    return term(b, s, &d, &err);
}

/* MADE_SCHEMA, or MADE_STRING, a text up to `end`, which may have been made before. */
static ir_node of_schema(tags_builder *b, char kind, const json_t *schema, bytes end,
                         const char *member) {
    bool strict = b->kind == NULL || b->kind->strict || b->kind->weakened == NULL;
    json_t *left_out = strict ? NULL : json_array();
    const json_t *found = left_out;
    ir_node node = IR_NEVER;
    buf key = {0};
    if (!strict && left_out == NULL) tags_fail(b, INFERD_ENOMEM, "no memory for its schema");
    tags_made_key(&key, kind, end);
    buf_add_char(&key, 0); // between both
    tags_made_key_schema(&key, schema);
    if (!tags_failed(b) && !tags_made_find(&b->made, &key, &node, &found)) {
        node = kind == MADE_SCHEMA ? make_schema(b, schema, left_out)
                                   : make_string(b, schema, end, left_out);
        if (!tags_failed(b)) tags_made_keep(&b->made, &key, node, left_out);
    }
    if (!tags_failed(b)) report(b, member, found);
    buf_deinit(&key);
    json_decref(left_out);
    return node;
}

static ir_node schema_node(tags_builder *b, const json_t *v, const char *member) {
    return of_schema(b, MADE_SCHEMA, tags_given(v, member), (bytes){NULL, 0}, member);
}

/* ---- formats without parts ---- */

/* The nearest tag around what is being built decides where free text ends. */
static ir_node any_text(tags_builder *b) {
    const tags_frame *around = b->depth > 1 ? &b->frames[b->depth - 2] : NULL;
    if (around == NULL || around->kind != FORMAT_TAG) return without(b, NULL, 0);
    return of_text(b, MADE_UNTIL, tags_text_member(b, around->v, "end", false)); // with it
}

static ir_node string_text(tags_builder *b, const json_t *v) {
    const tags_frame *around = b->depth > 1 ? &b->frames[b->depth - 2] : NULL;
    bytes end = {NULL, 0};
    if (around != NULL && around->kind == FORMAT_TAG)
        end = tags_text_member(b, around->v, "end", false);
    return of_schema(b, MADE_STRING, tags_given(v, "json_schema"), end, "json_schema");
}

static ir_node reasoning_text(tags_builder *b, const json_t *v) {
    bytes end = tags_text_member(b, v, "end", false);
    return tags_failed(b) ? IR_NEVER : ir_reasoning(b->g, end);
}

static ir_node leaf(tags_builder *b, const json_t *v, format_kind kind) {
    switch (kind) {
    case FORMAT_STRING:
        return of_text(b, MADE_LITERAL, tags_text_member(b, v, "value", false));
    case FORMAT_SCHEMA:
        return schema_node(b, v, "json_schema");
    case FORMAT_REGEX:
        return of_text(b, MADE_PATTERN, tags_text_member(b, v, "pattern", false));
    case FORMAT_ANY:
        return any_text(b);
    case FORMAT_TEXT:
        return string_text(b, v);
    case FORMAT_REASONING:
        return reasoning_text(b, v);
    default:
        return IR_NEVER;
    }
}

/* ---- formats with parts, from the nodes of these ---- */

/* A tag; of its `begin` the first n_read bytes were read with the trigger. */
static ir_node tag_node(tags_builder *b, const json_t *tag, ir_node content, size_t n_read) {
    bytes begin = tags_text_member(b, tag, "begin", true),
          end = tags_text_member(b, tag, "end", true);
    ir_node parts[3] = {IR_EMPTY, content, IR_EMPTY};
    const json_t *inner = tags_given(tag, "content");
    const char *type = json_string_value(json_object_get(inner, "type"));
    if (tags_failed(b) || begin.n < n_read) return IR_NEVER;
    if (begin.n > n_read)
        parts[0] = of_text(b, MADE_LITERAL, (bytes){begin.p + n_read, begin.n - n_read});
    bool with_end = type != NULL && strcmp(type, tags_formats[FORMAT_ANY].name) == 0;
    if (end.n > 0 && !with_end) parts[2] = of_text(b, MADE_LITERAL, end);
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
static void find_triggers(tags_builder *b, const json_t *tags, const bytes *triggers, size_t n,
                          size_t *out) {
    for (size_t i = 0; i < json_array_size(tags); i++) {
        bytes begin = tags_text_member(b, json_array_get(tags, i), "begin", false);
        out[i] = trigger_of(begin, triggers, n);
        if (out[i] == n && !tags_failed(b))
            tags_fail(b, INFERD_EINVAL, "a tag begins with no trigger");
    }
}

/* What follows each trigger: one of the tags that begin with it.  false: recorded. */
static bool after_triggers(tags_builder *b, const json_t *tags, const ir_node *contents,
                           const bytes *triggers, size_t n, ir_node *out) {
    size_t n_tags = json_array_size(tags);
    ir_node *some = calloc(size_max(n_tags, 1), sizeof *some);
    size_t *which = calloc(size_max(n_tags, 1), sizeof *which);
    if (some == NULL || which == NULL) tags_fail(b, INFERD_ENOMEM, "no memory for tags");
    if (!tags_failed(b)) find_triggers(b, tags, triggers, n, which);
    for (size_t t = 0; t < n && !tags_failed(b); t++) {
        size_t n_some = 0;
        for (size_t i = 0; i < n_tags; i++)
            if (which[i] == t)
                some[n_some++] = tag_node(b, json_array_get(tags, i), contents[i], triggers[t].n);
        if (n_some == 0) tags_fail(b, INFERD_EINVAL, "a trigger begins no tag");
        out[t] = ir_alt(b->g, some, n_some);
    }
    free(some);
    free(which);
    return !tags_failed(b);
}

static bool read_triggers(tags_builder *b, const json_t *v, bytes *out, size_t *n) {
    const json_t *list = tags_list_member(b, v, "triggers", TAGS_TEXTS_MAX);
    *n = tags_failed(b) ? 0 : json_array_size(list);
    for (size_t i = 0; i < *n; i++) {
        const json_t *one = json_array_get(list, i);
        out[i] = tags_text_of(b, one);
        if (out[i].n == 0) tags_fail_member(b, "triggers", "strings that are not empty");
    }
    return !tags_failed(b);
}

static ir_node triggered(tags_builder *b, const json_t *v, const json_t *tags,
                         const ir_node *contents) {
    bytes triggers[TAGS_TEXTS_MAX];
    ir_node after[TAGS_TEXTS_MAX], items[TAGS_TEXTS_MAX];
    size_t n;
    bool some = tags_flag_member(b, v, "at_least_one"),
         one = tags_flag_member(b, v, "stop_after_first");
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

static ir_node separated(tags_builder *b, const json_t *v, const ir_node *tags, size_t n) {
    bytes separator = tags_text_member(b, v, "separator", true);
    bool some = tags_flag_member(b, v, "at_least_one"),
         one = tags_flag_member(b, v, "stop_after_first");
    uint32_t min = tags_count_member(b, v, "at_least", some),
             max = tags_count_member(b, v, "at_most", one ? 1 : IR_NO_MAX);
    ir_node tag = ir_alt(b->g, tags, n), next = tag;
    if (tags_failed(b)) return IR_NEVER;
    if (separator.n > 0)
        next = ir_seq(b->g, (ir_node[]){of_text(b, MADE_LITERAL, separator), tag}, 2);
    return ir_repeat(b->g, tag, next, min, max);
}

/* From the last one on, so that each has two nodes: what comes behind another one (`rest`), and
 * what comes if none was written yet (`start`), which is this one and its rest, or a later one. */
static ir_node members(tags_builder *b, const json_t *v, const ir_node *elements, size_t n) {
    const json_t *required = tags_given(v, "required");
    bytes separator = tags_text_member(b, v, "separator", true);
    ir_node rest = IR_EMPTY, mark = IR_EMPTY;
    ir_node *starts = malloc((n + 1) * sizeof *starts);
    size_t n_starts = 0;
    if (starts == NULL) tags_fail(b, INFERD_ENOMEM, "no memory for members");
    if (json_array_size(required) != n) tags_fail_member(b, "required", "of the same length");
    if (separator.n > 0) mark = of_text(b, MADE_LITERAL, separator);
    if (starts != NULL) starts[n_starts++] = IR_EMPTY;
    for (size_t i = n; i-- > 0 && !tags_failed(b);) {
        bool must = json_is_true(json_array_get(required, i));
        if (must) n_starts = 0;
        starts[n_starts++] = ir_seq(b->g, (ir_node[]){elements[i], rest}, 2);
        ir_node more = ir_seq(b->g, (ir_node[]){mark, elements[i]}, 2);
        if (!must) more = ir_repeat(b->g, more, more, 0, 1);
        rest = ir_seq(b->g, (ir_node[]){more, rest}, 2);
    }
    ir_node node = tags_failed(b)    ? IR_NEVER
                   : separator.n > 0 ? ir_alt(b->g, starts, n_starts)
                                     : rest;
    free(starts);
    return node;
}

/* Are the parts of this tags_frame built without `begin`, which its triggers read in part? */
static bool has_triggers(const tags_frame *f) {
    return f->kind == FORMAT_TRIGGERED || f->kind == FORMAT_STRUCTURES;
}

static ir_node combine(tags_builder *b, const tags_frame *f, const ir_node *nodes, size_t n) {
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
    case FORMAT_MEMBERS:
        return members(b, f->v, nodes, n);
    default:
        return IR_NEVER;
    }
}

/* ---- the walk ---- */

static bool push_node(tags_builder *b, ir_node node) {
    if (b->n_nodes == b->capacity) {
        size_t capacity = size_max(2 * b->capacity, 64), n_bytes;
        ir_node *grown = NULL;
        if (size_mul(capacity, sizeof *grown, &n_bytes)) grown = realloc(b->nodes, n_bytes);
        if (grown == NULL) {
            tags_fail(b, INFERD_ENOMEM, "no memory for its parts");
            return false;
        }
        b->nodes = grown;
        b->capacity = capacity;
    }
    b->nodes[b->n_nodes++] = node;
    return true;
}

/* Of the last tags_frame; FORMAT_KINDS: recorded.  Parts of triggers and separators are tags, with
 * or without a type. */
static format_kind kind_of(tags_builder *b, const json_t *v) {
    const tags_frame *around = b->depth > 1 ? &b->frames[b->depth - 2] : NULL;
    const char *type = json_string_value(json_object_get(v, "type"));
    bool in_tags =
        around != NULL && (around->kind == FORMAT_TRIGGERED || around->kind == FORMAT_SEPARATED);
    char what[160];
    if (around != NULL && around->kind == FORMAT_STRUCTURES) return FORMAT_STRUCTURE;
    if (in_tags && type == NULL && json_is_object(v)) return FORMAT_TAG;
    for (int i = 0; type != NULL && i < FORMAT_STRUCTURES; i++)
        if (strcmp(type, tags_formats[i].name) == 0 && (!in_tags || i == FORMAT_TAG) &&
            (i != FORMAT_REASONING || (b->kind != NULL && b->kind->tokens)))
            return (format_kind)i;
    if (type == NULL)
        tags_fail_member(b, "type", "there: the type of a format");
    else if (in_tags)
        tags_fail_member(b, "type", "\"tag\"");
    else {
        snprintf(what, sizeof what, "a format of type \"%.64s\" cannot be enforced", type);
        tags_fail(b, INFERD_EUNSUPPORTED, what);
    }
    return FORMAT_KINDS;
}

/* The parts of a format; a structure's only part is its schema, which is a leaf. */
static void find_parts(tags_builder *b, tags_frame *f) {
    switch (f->kind) {
    case FORMAT_SEQUENCE:
    case FORMAT_OR:
    case FORMAT_MEMBERS:
        f->parts = tags_list_member(b, f->v, "elements", TAGS_PARTS_MAX);
        break;
    case FORMAT_TRIGGERED:
    case FORMAT_SEPARATED:
        f->parts = tags_list_member(b, f->v, "tags", TAGS_PARTS_MAX);
        break;
    case FORMAT_STRUCTURES:
        f->parts = tags_list_member(b, f->v, "structures", TAGS_PARTS_MAX);
        break;
    case FORMAT_TAG:
        f->only = tags_given(f->v, "content");
        if (f->only == NULL) tags_fail_member(b, "content", "a format");
        break;
    default:
        break;
    }
}

/* Begins a format: its node is pushed at once, or its tags_frame stays and waits for its parts.
 * FORMAT_KINDS: by its type. */
static void begin(tags_builder *b, const json_t *v, format_kind kind) {
    if (b->depth == TAGS_DEPTH_MAX) {
        ir_fail(b->g, INFERD_ETOOLONG, "structural tag: more than %d formats inside of another",
                TAGS_DEPTH_MAX);
        return;
    }
    tags_frame *f = &b->frames[b->depth++];
    *f = (tags_frame){.v = v, .kind = kind};
    if (kind == FORMAT_KINDS) f->kind = kind_of(b, v);
    if (!json_is_object(v)) tags_fail(b, INFERD_EINVAL, "a format must be an object");
    if (tags_failed(b)) return;
    tags_check_members(b, v, f->kind);
    find_parts(b, f);
    if (clock_thread_us() > b->deadline_us)
        tags_fail(b, INFERD_ETOOLONG, "compiling takes longer than compile_ms_max");
    if (tags_failed(b) || f->parts != NULL || f->only != NULL) return;
    if (f->kind == FORMAT_STRUCTURE) {
        ir_node content = schema_node(b, v, "schema");
        push_node(b, combine(b, f, &content, 1));
    } else {
        push_node(b, leaf(b, v, f->kind));
    }
    b->depth--;
}

static ir_node walk(tags_builder *b, const json_t *v, format_kind kind) {
    begin(b, v, kind);
    while (b->depth > 0 && !tags_failed(b)) {
        tags_frame *f = &b->frames[b->depth - 1];
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
    return b->n_nodes == 1 && !tags_failed(b) ? b->nodes[0] : IR_NEVER;
}

inferd_status grammar_of_tags(const json_t *tags, const grammar_schema_kind *kind,
                              const grammar_options *options, grammar **out, inferd_err *err) {
    const json_t *format = tags_given(tags, "format");
    grammar_limits limits =
        options == NULL || options->limits == NULL ? grammar_limits_default : *options->limits;
    if (kind != NULL && kind->compact) limits.white_bytes_max = 0;
    if (kind != NULL && kind->spaced) limits.white_bytes_max = GRAMMAR_WHITE_SPACED;
    tags_builder *b = calloc(1, sizeof *b);
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
    if (format != NULL) tags_check_members(b, tags, FORMAT_OUTER);
    ir_node root =
        format != NULL ? walk(b, format, FORMAT_KINDS) : walk(b, tags, FORMAT_STRUCTURES);
    tags_texts_free(b);
    tags_made_deinit(&b->made);
    free(b->nodes);
    free(b);
    return ir_finish(g, root, options, out, err);
}
