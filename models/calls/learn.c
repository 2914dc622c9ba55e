/* learn.c - the format of tool calls, from what a template writes: learn_calls_of.
 *
 * One call is rendered, then two.  Between them lie the marks:
 *
 *     <tool_calls>[ {"name": "a" ...}                           ]</tool_calls><|im_end|>
 *     <tool_calls>[ {"name": "a" ...} ,  {"name": "b" ...}      ]</tool_calls><|im_end|>
 *     `-- before --'                 `middle'              `---- behind ----'
 *
 *     call_open       what `before` and `middle` both end with
 *     section_open    the rest of `before`
 *     call_close      what the rest of `middle` and `behind` both begin with
 *     separator       the rest of `middle`
 *     section_close   the rest of `behind`, without the end of the turn that content has, too
 *
 * Arguments between tags need more: the marks around keys and values are found in calls with none,
 * one and two arguments, and with values of each type.
 *
 * At the end some calls that are hard to read are rendered and read: a format that does not give
 * them back is no format. */
#include <string.h>

#include "calls/learn.h"
#include "calls/value.h"

#define ARGUMENT(key, value) "{\"" key "\":\"" value "\"}"
#define ARGUMENT_1           ARGUMENT(PROBE_KEY_1, PROBE_VALUE_1)
#define BOTH                 "{\"" PROBE_KEY_1 "\":\"" PROBE_VALUE_1 "\",\"" PROBE_KEY_2 "\":\"" PROBE_VALUE_2 "\"}"
#define ARGUMENT_2           ARGUMENT(PROBE_KEY_2, PROBE_VALUE_2)

/* Texts of the template, and the calls in them. */
typedef struct learner {
    prober *p;
    call_format *f;
    buf one, two;
    call_core first, second; // of `two`; first alone of `one` if it is single
} learner;

static bytes text_of(const buf *b) {
    return (bytes){b->p, b->n};
}

static bytes slice(bytes s, size_t from, size_t end) {
    return s.p == NULL ? s : (bytes){s.p + from, end > from ? end - from : 0};
}

static void fail(call_format *f, const char *why) {
    if (f->why[0] == 0) snprintf(f->why, sizeof f->why, "%s", why);
    f->style = CALL_NONE;
}

static bool set(call_format *f, bytes *mark, bytes text) {
    if (call_format_set(f, mark, text)) return true;
    fail(f, "the marks of its tool calls are too long");
    return false;
}

/* ---- placeholders ---- */

/* Replaces `what` by one byte. */
static void replace(buf *s, bytes what, char by) {
    size_t at = 0;
    while ((at = bytes_find(text_of(s), what, at)) != SIZE_MAX) {
        s->p[at] = by;
        memmove(s->p + at + 1, s->p + at + what.n, s->n - at - what.n);
        s->n -= what.n - 1;
    }
}

/* A copy with placeholders, to compare what stands around two calls. */
static bool normalize(bytes text, buf *out) {
    buf_clear(out);
    buf_add(out, text.p, text.n);
    if (out->failed) return false;
    replace(out, bytes_of(PROBE_ID_1), CALL_ID);
    replace(out, bytes_of(PROBE_ID_2), CALL_ID);
    replace(out, bytes_of(PROBE_NAME_1), CALL_NAME);
    replace(out, bytes_of(PROBE_NAME_2), CALL_NAME);
    return true;
}

/* Sets a mark from what two calls have in its place: digits in which they differ are the number of
 * the call. */
static bool set_numbered(learner *l, bytes *mark, bytes first, bytes second) {
    buf a = {0}, b = {0};
    bool ok = normalize(first, &a) && normalize(second, &b);
    for (size_t i = 0; ok && i < a.n && a.n == b.n; i++) {
        if (a.p[i] == b.p[i] || a.p[i] < '0' || a.p[i] > '1') continue;
        l->f->index_from_one = a.p[i] == '1';
        a.p[i] = CALL_INDEX;
    }
    ok = ok && set(l->f, mark, text_of(&a));
    buf_deinit(&a);
    buf_deinit(&b);
    return ok;
}

/* ---- around the calls ---- */

/* The text before the first call, without the header of the turn and the reasoning. */
static size_t begin_of_calls(learner *l, bytes lead) {
    buf turn = {0}, said = {0};
    size_t at = 0;
    bytes close = bytes_trim(l->f->reasoning_close);
    if (probe_prompt(l->p, &turn)) at = learn_prefix(lead, text_of(&turn));
    if (probe_message(l->p, probe_said(PROBE_CONTENT, NULL, NULL), &said))
        at = size_max(at, learn_prefix(lead, text_of(&said)));
    for (size_t i = 0; close.n > 0 && i < lead.n;) {
        size_t found = bytes_find(lead, close, i);
        if (found == SIZE_MAX) break;
        i = found + close.n;
        at = size_max(at, i);
    }
    bytes content = bytes_trim(l->f->content_open);
    size_t found = content.n > 0 ? bytes_find(lead, content, at) : SIZE_MAX;
    if (found != SIZE_MAX) at = found + content.n;
    buf_deinit(&turn);
    buf_deinit(&said);
    return at;
}

/* What ends a turn, behind content. */
static bool end_of_turn(learner *l, buf *out) {
    bool ok = probe_message(l->p, probe_said(PROBE_CONTENT, NULL, NULL), out);
    size_t at = ok ? bytes_find(text_of(out), bytes_of(PROBE_CONTENT), 0) : SIZE_MAX;
    if (at == SIZE_MAX) {
        buf_clear(out);
        return false;
    }
    at += strlen(PROBE_CONTENT);
    memmove(out->p, out->p + at, out->n - at);
    out->n -= at;
    return true;
}

/* What closes content, where marks open it: what a turn of content alone has at its end, or calls
 * that follow content begin with. */
static bool set_content_close(learner *l, bytes end, bytes before, bytes behind) {
    call_format *f = l->f;
    bytes close = slice(end, 0, end.n - learn_suffix(end, behind));
    bytes both = slice(end, 0, learn_prefix(end, before));
    if (f->content_open.n > 0 && bytes_trim(close).n > 0) return set(f, &f->content_close, close);
    return bytes_trim(both).n == 0 || set(f, &f->content_close, both);
}

/* Marks at the end of all turns, but for the last one, which is a token of the end.  Some templates
 * open the next turn in any case, or write what is no mark. */
static bool set_turn_close(learner *l, bytes end) {
    bytes s = bytes_trim(end);
    buf turn = {0};
    probe_prompt(l->p, &turn);
    bytes next = bytes_trim(text_of(&turn));
    if (s.n >= next.n && bytes_equal(bytes_from(s, s.n - next.n), next)) s.n -= next.n;
    s = bytes_trim(s);
    buf_deinit(&turn);
    s.n = s.n > 0 && (s.p[s.n - 1] == '>' || s.p[s.n - 1] == ']') ? learn_back(s, s.n - 1) : 0;
    for (size_t i = 0; i < s.n; i++)
        if (call_is_white(s.p[i])) return true;
    return set(l->f, &l->f->turn_close, s);
}

/* The texts before, between and behind two calls: marks of the format.  middle n 0 and `single`:
 * there is one call only. */
static bool set_around(learner *l, bytes before, bytes middle, bytes behind) {
    call_format *f = l->f;
    buf a = {0}, b = {0}, end = {0};
    bool ok = normalize(before, &a) && normalize(middle, &b);
    bytes pre = text_of(&a), mid = text_of(&b);
    if (ok && end_of_turn(l, &end)) ok = set_content_close(l, text_of(&end), pre, behind);
    if (ok && f->single) {
        size_t n = learn_suffix(behind, text_of(&end));
        ok = set(f, &f->call_open, pre) && set(f, &f->call_close, slice(behind, 0, behind.n - n));
    } else if (ok) {
        size_t n_open = learn_suffix(pre, mid);
        while (n_open > 0 && call_is_white(pre.p[pre.n - n_open])) n_open--; // layout before it
        bytes rest = slice(mid, 0, mid.n - n_open);
        size_t n_close = learn_prefix(rest, behind);
        while (n_close > 0 && call_is_white(rest.p[n_close - 1])) n_close--;
        bytes left = bytes_from(behind, n_close);
        size_t n_end = learn_suffix(left, text_of(&end));
        bytes turn_end = bytes_from(left, left.n - n_end);
        left.n -= n_end;
        bytes section = slice(pre, 0, pre.n - n_open);
        if (bytes_trim(section).n == 0) section.n = 0;
        ok = set(f, &f->section_open, section) &&
             set(f, &f->call_open, bytes_from(pre, pre.n - n_open)) &&
             set(f, &f->call_close, slice(rest, 0, n_close)) &&
             set(f, &f->separator, bytes_from(rest, n_close)) && set(f, &f->section_close, left) &&
             set_turn_close(l, turn_end);
    }
    buf_deinit(&a);
    buf_deinit(&b);
    buf_deinit(&end);
    return ok;
}

/* ---- arguments between tags ---- */

static const struct {
    const char *json, *written[3]; // as templates write it
} samples[CALL_TYPES] = {
    [CALL_TYPE_NUMBER] = {"71", {"71"}},
    [CALL_TYPE_BOOL] = {"true", {"true", "True"}},
    [CALL_TYPE_NULL] = {"null", {"null", "None"}},
    [CALL_TYPE_ARRAY] = {"[\"inferd_x\"]", {"[\"inferd_x\"]", "['inferd_x']"}},
    [CALL_TYPE_OBJECT] = {"{\"inferd_y\":\"inferd_z\"}",
                          {"{\"inferd_y\": \"inferd_z\"}", "{'inferd_y': 'inferd_z'}",
                           "{\"inferd_y\":\"inferd_z\"}"}},
};

/* The mark behind a value, which may name the key once more: </key>. */
static bool set_value_close(learner *l, call_type type, bytes mark) {
    buf close = {0};
    buf_add(&close, mark.p, mark.n);
    if (!close.failed) replace(&close, bytes_of(PROBE_KEY_1), CALL_KEY);
    bool ok = !close.failed && set(l->f, &l->f->value_close[type], text_of(&close));
    buf_deinit(&close);
    return ok;
}

/* One call of one argument, and where its key ends.  SIZE_MAX: the template does not write it. */
static size_t render_argument(learner *l, const char *value, buf *out) {
    buf arguments = {0};
    buf_add_format(&arguments, "{\"" PROBE_KEY_1 "\":%s}", value);
    const char *text = buf_cstr(&arguments);
    bool ok = text != NULL && probe_message(l->p, probe_calls(PROBE_NAME_1, text, NULL, NULL), out);
    buf_deinit(&arguments);
    size_t at = ok ? bytes_find(text_of(out), bytes_of(PROBE_KEY_1), 0) : SIZE_MAX;
    return at == SIZE_MAX ? SIZE_MAX : at + strlen(PROBE_KEY_1);
}

/* Is a list written as `>` `<`item`>` inferd_x...?  Then values have parts between tags. */
static bool is_tree(learner *l, bytes text, size_t at) {
    call_format *f = l->f;
    bytes close = f->key_close[CALL_TYPE_STRING], open = f->key_open;
    size_t value = bytes_find(text, bytes_of("inferd_x"), at);
    if (value == SIZE_MAX) return false;
    bytes s = slice(text, at, value);
    if (s.n <= 2 * close.n + open.n || !bytes_start(s, close)) return false;
    s = bytes_from(s, close.n);
    if (!bytes_start(s, open) || !bytes_equal(bytes_from(s, s.n - close.n), close)) return false;
    s = slice(s, open.n, s.n - close.n);
    bool keyed = memchr(f->value_close[CALL_TYPE_STRING].p, CALL_KEY,
                        f->value_close[CALL_TYPE_STRING].n) != NULL;
    if (keyed && set(f, &f->item, s)) f->tree = true;
    return f->tree;
}

/* The marks of one type; `behind`: what follows the mark that closes a value. */
static bool set_type(learner *l, call_type type, bytes behind) {
    call_format *f = l->f;
    buf text = {0};
    size_t at = render_argument(l, samples[type].json, &text), value = SIZE_MAX, n = 0;
    for (size_t i = 0; i < 3 && samples[type].written[i] != NULL && value == SIZE_MAX; i++) {
        bytes written = bytes_of(samples[type].written[i]);
        for (size_t from = at; from != SIZE_MAX;) { // the last one: a mark may name the type
            from = bytes_find(text_of(&text), written, from);
            if (from != SIZE_MAX) value = from++;
        }
        if (value != SIZE_MAX && type == CALL_TYPE_BOOL) f->python_words = i == 1;
        if (value != SIZE_MAX && type == CALL_TYPE_OBJECT) {
            f->spaced = i == 0;
            f->compact = i == 2;
            f->literals = i == 1;
        }
        n = written.n;
    }
    bool ok = true;
    bytes rest = value == SIZE_MAX ? (bytes){NULL, 0} : bytes_from(text_of(&text), value + n);
    bool same_end = rest.n >= behind.n && bytes_equal(bytes_from(rest, rest.n - behind.n), behind);
    if (value == SIZE_MAX || !same_end) { // as a text
        f->key_close[type] = f->key_close[CALL_TYPE_STRING];
        f->value_close[type] = f->value_close[CALL_TYPE_STRING];
        if (type == CALL_TYPE_ARRAY && at != SIZE_MAX) is_tree(l, text_of(&text), at);
        if (type >= CALL_TYPE_ARRAY && at != SIZE_MAX && !f->tree)
            fail(f, "its template writes lists and objects between tags");
    } else {
        ok = set(f, &f->key_close[type], slice(text_of(&text), at, value)) &&
             set_value_close(l, type, slice(rest, 0, rest.n - behind.n));
    }
    buf_deinit(&text);
    return ok;
}

/* Some templates wrap a string that looks like a mark: <![CDATA[...]]>. */
static bool set_wrap(learner *l) {
    static const char odd[] = "inferd<x>&\ny";
    call_format *f = l->f;
    bytes close = f->key_close[CALL_TYPE_STRING];
    buf text = {0};
    size_t at = render_argument(l, "\"inferd<x>&\\ny\"", &text);
    size_t value = at == SIZE_MAX ? at : bytes_find(text_of(&text), bytes_of(odd), at);
    bool ok = true;
    if (value != SIZE_MAX) {
        bytes before = slice(text_of(&text), at, value);
        bytes rest = bytes_from(text_of(&text), value + strlen(odd));
        size_t n = bytes_find(rest, bytes_trim(f->value_close[CALL_TYPE_STRING]), 0);
        if (before.n > close.n && bytes_start(before, close) && n != SIZE_MAX && n > 0)
            ok = set(f, &f->wrap_open, bytes_from(before, close.n)) &&
                 set(f, &f->wrap_close, slice(rest, 0, n));
    }
    buf_deinit(&text);
    return ok;
}

/* Marks around keys and values: `first` is the only call in `one`. */
static bool set_tags(learner *l, const call_core *first, size_t *end) {
    call_format *f = l->f;
    bytes one = text_of(&l->one);
    buf two = {0};
    call_core core;
    if (!probe_message(l->p, probe_calls(PROBE_NAME_1, BOTH, NULL, NULL), &two) ||
        !learn_core(text_of(&two), 0, bytes_of(PROBE_NAME_1), bytes_of(PROBE_KEY_1),
                    bytes_of(PROBE_VALUE_1), &core)) {
        buf_deinit(&two);
        fail(f, "its template writes no call with two arguments");
        return true;
    }
    bytes all = text_of(&two);
    size_t next_key = bytes_find(all, bytes_of(PROBE_KEY_2), core.args_end);
    bool ok = next_key != SIZE_MAX;
    if (ok) {
        bytes between = slice(all, core.args_end, next_key);
        bytes before = slice(one, first->name_end, first->args_at);
        size_t n = learn_suffix(before, between);
        size_t key_end = first->args_at + strlen(PROBE_KEY_1);
        size_t value_at = first->args_end - strlen(PROBE_VALUE_1);
        bytes close = slice(before, 0, before.n - n), second = close;
        if (!f->single) {
            bytes calls = text_of(&l->two);
            second = slice(calls, l->second.name_end, l->second.args_at - n);
        }
        ok = set_numbered(l, &f->name_close, close, second) &&
             set(f, &f->key_open, bytes_from(before, before.n - n)) &&
             set(f, &f->key_close[CALL_TYPE_STRING], slice(one, key_end, value_at)) &&
             set_value_close(l, CALL_TYPE_STRING, slice(between, 0, between.n - n));
        *end = first->args_end + between.n - n;
    } else {
        fail(f, "its template does not write the second argument of a call");
        ok = true;
    }
    buf_deinit(&two);
    for (int t = CALL_TYPE_NUMBER; ok && f->style != CALL_NONE && t < CALL_TYPES; t++)
        ok = set_type(l, (call_type)t, bytes_from(one, *end));
    return ok && (f->style == CALL_NONE || set_wrap(l));
}

/* ---- all of it ---- */

/* Renders one call and two, and finds them.  False: no memory. */
static bool find_calls(learner *l) {
    call_format *f = l->f;
    bytes key_1 = bytes_of(PROBE_KEY_1), value_1 = bytes_of(PROBE_VALUE_1);
    call_core alone;
    if (!probe_message(l->p, probe_calls(PROBE_NAME_1, ARGUMENT_1, NULL, NULL), &l->one) ||
        !learn_core(text_of(&l->one), 0, bytes_of(PROBE_NAME_1), key_1, value_1, &alone))
        return !l->p->no_memory;
    f->style = alone.style;
    l->first = alone;
    f->single = true;
    if (probe_message(l->p, probe_calls(PROBE_NAME_1, ARGUMENT_1, PROBE_NAME_2, ARGUMENT_2),
                      &l->two) &&
        learn_core(text_of(&l->two), 0, bytes_of(PROBE_NAME_1), key_1, value_1, &l->first) &&
        learn_core(text_of(&l->two), l->first.end, bytes_of(PROBE_NAME_2), bytes_of(PROBE_KEY_2),
                   bytes_of(PROBE_VALUE_2), &l->second))
        f->single = l->first.style != l->second.style;
    if (f->single) l->first = alone;
    return !l->p->no_memory;
}

/* The white space between the tokens of JSON: in a call of two arguments.  Templates that write the
 * text of the request as it is tell nothing. */
static void set_spacing(learner *l) {
    static const char odd[] = "{ \"" PROBE_KEY_1 "\" :\"" PROBE_VALUE_1 "\"}";
    buf text = {0};
    bool written = probe_message(l->p, probe_calls(PROBE_NAME_1, odd, NULL, NULL), &text);
    if (!written || bytes_find(text_of(&text), bytes_of(odd), 0) == SIZE_MAX)
        probe_message(l->p, probe_calls(PROBE_NAME_1, BOTH, NULL, NULL), &text);
    bytes all = text_of(&text);
    l->f->spaced = bytes_find(all, bytes_of("\": \"" PROBE_VALUE_1 "\", \"" PROBE_KEY_2 "\": "),
                              0) != SIZE_MAX;
    l->f->compact =
        bytes_find(all, bytes_of("\":\"" PROBE_VALUE_1 "\",\"" PROBE_KEY_2 "\":"), 0) != SIZE_MAX;
    buf_deinit(&text);
}

/* Python's strings have escapes; some templates write none. */
static void set_raw(learner *l) {
    buf text = {0};
    bool written = render_argument(l, "\"inferd\\\\x\"", &text) != SIZE_MAX;
    l->f->raw_text = written && bytes_find(text_of(&text), bytes_of("inferd\\x"), 0) != SIZE_MAX;
    written = render_argument(l, samples[CALL_TYPE_OBJECT].json, &text) != SIZE_MAX;
    l->f->literals =
        written && bytes_find(text_of(&text), bytes_of("{'inferd_y': "), 0) != SIZE_MAX;
    buf_deinit(&text);
}

/* The text of an object around its name and arguments. */
static bool set_object(learner *l, bytes text) {
    call_format *f = l->f;
    const call_core *a = &l->first, *b = f->single ? a : &l->second;
    if (a->name_end > a->args_at)
        return true; // arguments before the name: written in another order
    return set_numbered(l, &f->object_head, slice(text, a->at, a->name_at),
                        slice(text, b->at, b->name_at)) &&
           set_numbered(l, &f->object_middle, slice(text, a->name_end, a->args_at),
                        slice(text, b->name_end, b->args_at)) &&
           set_numbered(l, &f->object_tail, slice(text, a->args_end, a->end),
                        slice(text, b->args_end, b->end));
}

static bool set_styles(learner *l, bytes text) {
    call_format *f = l->f;
    const call_core *c = &l->first;
    bool ok = true;
    set_spacing(l);
    if (f->style == CALL_OBJECT || f->style == CALL_KEYED) {
        ok = set(f, &f->name_key, c->name_key) && set(f, &f->arguments_key, c->arguments_key) &&
             set_object(l, text);
    } else if (f->style == CALL_JSON) {
        bytes a = slice(text, c->name_end, c->args_at), b = a;
        if (!f->single) b = slice(text, l->second.name_end, l->second.args_at);
        ok = set_numbered(l, &f->name_close, a, b);
    } else if (f->style == CALL_PYTHON) {
        set_raw(l);
    } else if (f->style == CALL_BRACES) {
        ok = set(f, &f->quote, c->quote);
    }
    return ok;
}

/* Does the prompt end with the mark that separates calls?  Then it opens the first one. */
static bool opens_in_prompt(learner *l) {
    call_format *f = l->f;
    buf turn = {0}, open = {0};
    bytes mark = bytes_trim(f->separator);
    bool ok = probe_prompt(l->p, &turn) && turn.n >= mark.n &&
              bytes_equal(bytes_from(text_of(&turn), turn.n - mark.n), mark);
    if (ok) {
        buf_add(&open, mark.p, mark.n);
        buf_add(&open, f->content_open.p, f->content_open.n);
        ok = !open.failed && set(f, &f->content_open, text_of(&open));
        f->prompt_end = f->call_open = mark;
        f->separator.n = 0;
    }
    buf_deinit(&turn);
    buf_deinit(&open);
    return ok;
}

/* Calls need a mark before them, or to be the whole message. */
static bool set_first_mark(learner *l) {
    call_format *f = l->f;
    if (bytes_trim(f->section_open).n + bytes_trim(f->call_open).n > 0) return true;
    if (bytes_trim(f->separator).n > 0 && opens_in_prompt(l)) return true;
    f->at_start = f->style == CALL_OBJECT || f->style == CALL_PYTHON;
    if (!f->at_start) fail(f, "no mark stands before its tool calls");
    return true;
}

static bool check_format(learner *l, size_t header) {
    buf end = {0};
    bool ends = end_of_turn(l, &end);
    bool ok = learn_reads_back(l->p, l->f, header, ends ? text_of(&end) : (bytes){NULL, 0});
    buf_deinit(&end);
    if (!ok) fail(l->f, "tool calls as its template writes them cannot be read back");
    return !l->p->no_memory;
}

static bool learn_calls(learner *l) {
    call_format *f = l->f;
    if (!find_calls(l)) return false;
    if (f->style == CALL_NONE) return true;
    bytes text = text_of(f->single ? &l->one : &l->two);
    size_t end_1 = l->first.end, end_2 = f->single ? end_1 : l->second.end;
    if (!set_styles(l, text)) return false;
    if (f->style == CALL_TAGS) {
        call_core alone;
        size_t end = 0;
        learn_core(text_of(&l->one), 0, bytes_of(PROBE_NAME_1), bytes_of(PROBE_KEY_1),
                   bytes_of(PROBE_VALUE_1), &alone);
        if (!set_tags(l, &alone, &end)) return false;
        if (f->style == CALL_NONE) return true;
        end_1 += end - alone.end;
        end_2 += end - alone.end;
    }
    size_t from = begin_of_calls(l, slice(text, 0, l->first.at));
    bytes before = slice(text, from, l->first.at), behind = bytes_from(text, end_2);
    bytes middle = f->single ? (bytes){NULL, 0} : slice(text, end_1, l->second.at);
    if (!set_around(l, before, middle, behind)) return false;
    return set_first_mark(l) && (f->style == CALL_NONE || check_format(l, from));
}

bool learn_calls_of(prober *p, call_format *f) {
    learner l = {.p = p, .f = f};
    bool ok = learn_calls(&l);
    buf_deinit(&l.one);
    buf_deinit(&l.two);
    return (ok || f->why[0] != 0) && !p->no_memory; // a mark may be too long
}
