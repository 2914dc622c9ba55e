/* tags_message.c - what a message may be, as a structural tag: call_tags.
 *
 * With CALL_AUTO the text is free until the first mark of calls is complete; from there on it must
 * be a call.  Formats that open content with a mark of its own have content or calls behind their
 * marks instead, and formats without a mark before calls have them at the start of the message
 * only.
 *
 * Where the turn begins anew behind each of its parts (call_format.closes_turn), reasoning and
 * content may stand before the last part:
 *
 *     ( reasoning_open reasoning | preamble_open content ) reasoning_close )*  content, or calls
 *
 * Marks behind content and at the end of the turn may be written or not: the token of the end tells
 * the same.  Where the prompt ends with a mark (prompt_end), the message begins behind it. */
#include <string.h>

#include "calls/start.h"
#include "inferd/json_whole.h"
#include "models/grammar.h"

static const bytes nothing = {NULL, 0};

static bytes text_of(const json_t *v) {
    return (bytes){json_string_value(v), json_string_length(v)};
}

#define LAYOUT "[ \\n]{0,4}" // white space that a model may write before a mark, or behind calls

/* ---- calls ---- */

static bytes trim_start(bytes s) {
    while (s.n > 0 && call_is_white(s.p[0])) s = bytes_from(s, 1);
    return s;
}

static bytes trim_end(bytes s) {
    while (s.n > 0 && call_is_white(s.p[s.n - 1])) s.n--;
    return s;
}

static bytes or_else(bytes mark, const char *text) {
    return mark.n > 0 ? mark : bytes_of(text);
}

/* The object of a call: as the template writes it, or in the usual way. */
static void add_object(tag_writer *w, const call_format *f, bytes name, const json_t *parameters) {
    buf head = {0}, middle = {0};
    buf_add_str(&head, "{\"");
    buf_add(&head, f->name_key.p, f->name_key.n);
    buf_add_str(&head, "\": \"");
    buf_add_str(&middle, "\", \"");
    buf_add(&middle, f->arguments_key.p, f->arguments_key.n);
    buf_add_str(&middle, "\": ");
    w->failed = w->failed || head.failed || middle.failed;
    tag_mark(w, or_else(f->object_head, buf_cstr(&head)), name);
    tag_text(w, name);
    tag_mark(w, or_else(f->object_middle, buf_cstr(&middle)), name);
    tag_add(w, tag_of_schema(parameters, name.p));
    tag_mark(w, or_else(f->object_tail, "}"), name);
    buf_deinit(&head);
    buf_deinit(&middle);
}

/* The name between the first marks, which is all of *w, or between the second ones. */
static void either_head(tag_writer *w, const call_format *f, bytes name) {
    tag_writer other;
    json_t *ways = json_array();
    tag_begin(&other);
    tag_mark(&other, f->other_open, name);
    tag_text(&other, name);
    tag_mark(&other, f->other_name_close, name);
    json_t *head = tag_end_sequence(w), *second = tag_end_sequence(&other);
    bool ok = ways != NULL && head != NULL && second != NULL &&
              json_array_append(ways, head) == 0 && json_array_append(ways, second) == 0;
    json_decref(head);
    json_decref(second);
    tag_begin(w);
    tag_add(w, ok ? tag_or(json_incref(ways)) : NULL);
    json_decref(ways);
}

/* Behind the last call of a message may be white space: where it separates calls, a model cannot
 * know yet whether one more follows. */
static json_t *call_of(const call_format *f, const json_t *tool, tag_scope *scope) {
    const json_t *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");
    const json_t *of = scope->any ? NULL : parameters; // in JSON, no schema is any object
    bytes name = text_of(json_object_get(function, "name"));
    tag_writer w;
    tag_begin(&w);
    tag_mark(&w, f->call_open, name);
    switch (f->style) {
    case CALL_OBJECT:
        if (call_start_is_usual(f))
            call_start_add_object(&w, f, name, of);
        else
            add_object(&w, f, name, of);
        break;
    case CALL_KEYED:
        tag_text(&w, bytes_of("{\""));
        tag_text(&w, name);
        tag_text(&w, bytes_of("\": "));
        tag_add(&w, tag_of_schema(of, name.p));
        tag_text(&w, bytes_of("}"));
        break;
    default:
        tag_text(&w, name);
        tag_mark(&w, f->name_close, name);
        if (f->other_open.n > 0) either_head(&w, f, name);
        tag_arguments(&w, f, name.p, parameters, scope);
    }
    tag_mark(&w, trim_end(f->call_close), name);
    if (scope->last) tag_add(&w, tag_of_pattern(LAYOUT));
    return tag_end(&w);
}

/* Do the names or values of a schema have the characters that enclose names of control tokens?  In
 * a notation they would be taken for these, or for none.  true, too: no memory to look. */
static bool names_tokens(const json_t *schema) {
    char *text = schema == NULL ? NULL : json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    bool some = schema != NULL &&
                (text == NULL || strstr(text, "\uFDD0") != NULL || strstr(text, "\uFDD1") != NULL);
    free(text);
    return some;
}

/* The call, with any arguments where its schema does not fit.  Then nothing of it is enforced, and
 * what it took of the scope is free again. */
static json_t *call_in(const call_format *f, const call_tags_options *o, const json_t *tool,
                       tag_scope *scope) {
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    size_t n_slots = scope->slots_left, n_places = json_array_size(scope->weakened);
    bool strict = json_is_true(json_object_get(function, "strict"));
    json_t *call = NULL;
    const json_t *parameters = json_object_get(function, "parameters");
    bool in_json = f->style == CALL_OBJECT || f->style == CALL_KEYED || f->style == CALL_JSON;
    scope->any = (o->any_arguments && !strict && parameters != NULL) ||
                 (!in_json && names_tokens(parameters));
    if (!scope->any) call = call_of(f, tool, scope);
    scope->any = scope->any || scope->unfit;
    scope->unfit = false;
    if (!scope->any) return call;
    json_decref(call);
    scope->slots_left = n_slots;
    while (json_array_size(scope->weakened) > n_places)
        json_array_remove(scope->weakened, json_array_size(scope->weakened) - 1);
    tag_not_enforced(scope, name == NULL ? "" : name, NULL);
    return call_of(f, tool, scope);
}

/* `last`: nothing else follows a call. */
static json_t *all_calls(const call_format *f, const call_tags_options *o, bool last) {
    json_t *calls = json_array(), *tool;
    tag_scope scope = {.slots_left = CALL_TAGS_VALUES_MAX, .weakened = o->weakened, .last = last};
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)o->tools, i, tool) {
        json_t *call = call_in(f, o, tool, &scope);
        if (json_array_append_new(calls, call) == 0 && !scope.failed) continue;
        json_decref(calls);
        return NULL;
    }
    return calls;
}

/* ---- parts of a turn ---- */

static bool is_mark(bytes mark) {
    return bytes_trim(mark).n > 0;
}

static void add_open(tag_writer *w, bytes mark) {
    if (mark.n > 0 && call_is_white(mark.p[0])) tag_add(w, tag_of_pattern(LAYOUT));
    tag_mark(w, trim_start(mark), nothing);
}

/* A mark that may be left out. */
static void add_maybe(tag_writer *w, bytes mark) {
    tag_writer inner;
    if (!is_mark(mark)) return;
    tag_begin(&inner);
    add_open(&inner, mark);
    tag_add(w, tag_maybe(tag_of(tag_end_sequence(&inner))));
}

/* Text from one mark up to the other. */
static json_t *text_between(bytes open, bytes close) {
    tag_writer w;
    json_t *tag = tag_of(tag_of_any());
    tag_begin(&w);
    add_open(&w, (bytes){open.p, open.n - trim_start(open).n});
    bool ok = tag != NULL &&
              json_object_set_new(tag, "begin", tag_string_of_mark(trim_start(open))) == 0 &&
              json_object_set_new(tag, "end", tag_string_of_mark(bytes_trim(close))) == 0;
    tag_add(&w, ok ? json_incref(tag) : NULL);
    json_decref(tag);
    return tag_end_sequence(&w);
}

static json_t *reasoning_of(const call_format *f) {
    tag_writer w;
    tag_begin(&w);
    add_open(&w, f->reasoning_open);
    tag_add(&w, tag_format("reasoning", "end", tag_string_of_mark(bytes_trim(f->reasoning_close))));
    return tag_end_sequence(&w);
}

/* Parts before others, each of which begins the turn anew; `said`: content, too. */
static void add_earlier(tag_writer *w, const call_format *f, bool said) {
    bytes open = is_mark(f->preamble_open) ? f->preamble_open : f->content_open;
    json_t *parts = json_array();
    if (!f->closes_turn) {
        json_decref(parts);
        return;
    }
    bool ok = parts != NULL && json_array_append_new(parts, tag_of(reasoning_of(f))) == 0;
    if (ok && said && is_mark(open))
        ok = json_array_append_new(parts, tag_of(text_between(open, f->reasoning_close))) == 0;
    tag_add(w, ok ? tag_separated(json_incref(parts), nothing, false, false) : NULL);
    json_decref(parts);
}

/* ---- sections ---- */

/* Calls, of which the second one stands in a part of its own. */
static bool has_parts(const call_format *f) {
    return f->closes_turn && is_mark(f->separator) &&
           bytes_equal(bytes_trim(f->separator), bytes_trim(f->reasoning_close));
}

/* One call, behind what may stand before it in its part. */
static json_t *call_in_part(const call_format *f, json_t *calls, bool said) {
    tag_writer w;
    tag_begin(&w);
    add_earlier(&w, f, said);
    tag_add(&w, tag_of_pattern(LAYOUT));
    tag_add(&w, calls == NULL ? NULL : tag_or(calls));
    return tag_list(tag_of(tag_end_sequence(&w)));
}

static bool may_say(const call_tags_options *o) {
    return o->choice != CALL_REQUIRED && o->content == NULL;
}

/* The calls of a section, with its marks: a tag.  Without marks of a section: its calls.  `last`:
 * nothing else follows. */
static json_t *section(const call_format *f, const call_tags_options *o, bytes open, bool last) {
    bool one = !o->parallel || f->single;
    json_t *calls = all_calls(f, o, false), *separator = tag_string_of_mark(f->separator),
           *list = NULL;
    if (calls != NULL && has_parts(f)) calls = call_in_part(f, calls, may_say(o));
    if (calls != NULL && separator != NULL)
        list = tag_separated(json_incref(calls), text_of(separator), true, one);
    json_decref(calls);
    json_decref(separator);
    bool marks =
        bytes_trim(open).n + bytes_trim(f->section_close).n + bytes_trim(f->turn_close).n > 0;
    tag_writer w;
    tag_begin(&w);
    tag_add(&w, list);
    if (marks) tag_mark(&w, trim_end(f->section_close), nothing);
    if (last) tag_add(&w, tag_of_pattern(LAYOUT));
    if (!marks) return tag_end_sequence(&w);
    add_maybe(&w, f->turn_close);
    json_t *tag = tag_of(tag_end_sequence(&w));
    if (tag != NULL && json_object_set_new(tag, "begin", tag_string_of_mark(open)) == 0) return tag;
    json_decref(tag);
    return NULL;
}

/* Calls, with the white space before them that a model may write. */
static json_t *behind_layout(const call_format *f, const call_tags_options *o, bytes open) {
    call_format trimmed = *f; // its marks are borrowed from f
    tag_writer w;
    if (open.n == 0) trimmed.call_open = trim_start(f->call_open);
    tag_begin(&w);
    if (!has_parts(f)) add_earlier(&w, f, may_say(o));
    tag_add(&w, tag_of_pattern(LAYOUT));
    tag_add(&w, section(&trimmed, o, trim_start(open), true));
    return tag_end_sequence(&w);
}

/* What stands before all calls. */
static bytes open_of_start(const call_format *f) {
    return f->at_start && f->style == CALL_PYTHON ? bytes_of("[") : f->section_open;
}

/* ---- messages ---- */

/* White space before content that follows a form, as much as before reasoning: of both, and of
 * calls, the first bytes may be the same. */
static void add_white(tag_writer *w) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "[ \\t\\n\\r]{0,%d}", GRAMMAR_REASONING_WHITE_MAX);
    tag_add(w, tag_of_pattern(pattern));
}

/* Content, between marks that may be left out. */
static json_t *content_of(const call_format *f, const call_tags_options *o) {
    tag_writer w;
    tag_begin(&w);
    add_earlier(&w, f, o->content == NULL);
    if (o->content != NULL) add_white(&w);
    if (o->tools != NULL)
        add_open(&w, f->content_open);
    else
        add_maybe(&w, f->content_open);
    tag_add(&w, o->content != NULL ? json_deep_copy_whole(o->content) : tag_of_any());
    add_maybe(&w, f->content_close);
    add_maybe(&w, f->turn_close);
    return tag_end_sequence(&w);
}

/* A tag of the mark that closes content, behind which nothing but the end of the turn follows. */
static json_t *end_of_content(const call_format *f) {
    tag_writer w;
    tag_begin(&w);
    tag_add(&w, tag_of_pattern(LAYOUT));
    add_maybe(&w, f->turn_close);
    json_t *tag = tag_of(tag_end_sequence(&w)),
           *mark = tag_string_of_mark(bytes_trim(f->content_close));
    if (tag != NULL && json_object_set_new(tag, "begin", mark) == 0) return tag;
    json_decref(tag);
    return NULL;
}

/* Free text, interrupted by calls from the first of their marks on. */
static json_t *triggered(const call_format *f, const call_tags_options *o) {
    bool in_section = is_mark(f->section_open);
    bytes open = trim_start(in_section ? f->section_open : f->call_open);
    bytes close = bytes_trim(f->content_close);
    bool closes = close.n > 0 && bytes_start(open, close); // calls stand behind closed content
    bool one = !o->parallel || f->single || closes;
    json_t *tags = NULL, *v = NULL, *triggers = NULL;
    if (in_section) {
        tags = tag_list(section(f, o, open, one));
    } else {
        call_format trimmed = *f; // its marks are borrowed from f
        trimmed.call_open = open;
        tags = all_calls(&trimmed, o, one);
    }
    bool ok = tags != NULL;
    if (ok && closes) ok = json_array_append_new(tags, end_of_content(f)) == 0;
    if (ok) v = tag_format("triggered_tags", "tags", json_incref(tags));
    json_decref(tags);
    triggers = tag_list(tag_string_of_mark(closes ? close : call_anchor(open)));
    ok = v != NULL && triggers != NULL && json_object_set(v, "triggers", triggers) == 0 &&
         json_object_set_new(v, "stop_after_first", json_boolean(one)) == 0;
    json_decref(triggers);
    if (ok) return v;
    json_decref(v);
    return NULL;
}

/* Content that is closed may stand before calls. */
static json_t *behind_content(const call_format *f, const call_tags_options *o, json_t *calls) {
    bool closed = !f->closes_turn && is_mark(f->content_open) && is_mark(f->content_close);
    if (!closed || !may_say(o)) return calls;
    tag_writer w;
    tag_begin(&w);
    tag_add(&w, tag_maybe(tag_of(text_between(f->content_open, f->content_close))));
    tag_add(&w, calls);
    return tag_end_sequence(&w);
}

/* Takes the ways. */
static json_t *either(json_t *first, json_t *second) {
    json_t *ways = json_array();
    bool ok = ways != NULL && first != NULL && second != NULL &&
              json_array_append(ways, first) == 0 && json_array_append(ways, second) == 0;
    json_decref(first);
    json_decref(second);
    if (ok) return tag_or(ways);
    json_decref(ways);
    return NULL;
}

/* Content behind its mark, or calls. */
static json_t *content_or_calls(const call_format *f, const call_tags_options *o) {
    return either(content_of(f, o), behind_content(f, o, behind_layout(f, o, f->section_open)));
}

/* Calls are the whole message, or text that does not begin as they do. */
static json_t *calls_or_text(const call_format *f, const call_tags_options *o) {
    tag_writer w;
    tag_begin(&w);
    if (o->content != NULL) add_white(&w);
    tag_add(&w, o->content == NULL ? call_start_others(f)
                                   : call_start_content(f, o->tools, o->content));
    return either(tag_end_sequence(&w), behind_layout(f, o, open_of_start(f)));
}

static bytes behind_prompt(bytes mark, bytes prompt_end) {
    return bytes_start(mark, prompt_end) ? bytes_from(mark, prompt_end.n) : mark;
}

/* The prompt ends with the mark that stands before content and before each call: the first one is
 * there already.  `rest`: the format without it. */
static json_t *begun_in_prompt(const call_format *f, const call_format *rest,
                               const call_tags_options *o) {
    json_t *calls = behind_layout(rest, o, rest->section_open);
    tag_writer w;
    if (o->choice == CALL_REQUIRED) return calls;
    tag_begin(&w);
    if (o->content != NULL) add_white(&w);
    tag_mark(&w, rest->content_open, nothing);
    tag_add(&w, o->content != NULL ? json_deep_copy_whole(o->content) : triggered(f, o));
    return either(tag_end_sequence(&w), calls);
}

/* The mark behind reasoning may be the first; takes the message. */
static json_t *behind_close(const call_format *f, json_t *message) {
    tag_writer w;
    tag_begin(&w);
    add_maybe(&w, bytes_trim(f->reasoning_close));
    tag_add(&w, message);
    return tag_end_sequence(&w);
}

json_t *call_tags(const call_format *f, const call_tags_options *o) {
    json_t *message;
    call_format rest = *f; // its marks are borrowed from f
    if (f->prompt_end.n > 0) {
        rest.content_open = behind_prompt(f->content_open, f->prompt_end);
        rest.call_open = behind_prompt(f->call_open, f->prompt_end);
        rest.separator = f->prompt_end;
    }
    if (o->tools == NULL)
        message = content_of(&rest, o);
    else if (f->prompt_end.n > 0)
        message = begun_in_prompt(f, &rest, o);
    else if (o->choice == CALL_REQUIRED)
        message = behind_layout(f, o, open_of_start(f));
    else if (f->at_start)
        message = calls_or_text(f, o);
    else if (o->content != NULL || is_mark(f->content_open))
        message = content_or_calls(f, o);
    else
        message = triggered(f, o);
    if (f->closes_first) message = behind_close(f, message);
    json_t *v = json_object();
    if (v != NULL && message != NULL && json_object_set(v, "format", message) == 0) {
        json_decref(message);
        return v;
    }
    json_decref(message);
    json_decref(v);
    return NULL;
}
