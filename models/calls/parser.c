/* parser.c - reasoning, content and calls: see parser.h.  Names between marks are in parser_name.c,
 * arguments between tags in parser_tags.c, calls that are JSON objects in parser_object.c. */
#include "calls/parser.h"

#include <string.h>

#include "calls/start.h"
#include "models/grammar.h"

/* ---- events ---- */

static void send(call_parser *p, const call_event *ev) {
    p->on(p->ctx, ev);
}

/* Text without the names of control tokens, which are between bytes 0xff. */
static void send_text(call_parser *p, call_event_kind kind, bytes text) {
    size_t from = 0;
    for (size_t i = 0; text.n > 0 && i <= text.n; i++) {
        bool mark = i < text.n && text.p[i] == '\xff';
        if (i < text.n && !mark) continue;
        bytes part = {text.p + from, i - from};
        if (part.n > 0 && !p->in_token) send(p, &(call_event){.kind = kind, .text = part});
        if (mark) p->in_token = !p->in_token;
        from = i + 1;
    }
}

void parser_emit(call_parser *p, call_event_kind kind, bytes text) {
    while (p->trim && text.n > 0 && call_is_white(text.p[0])) text = bytes_from(text, 1);
    if (text.n == 0) return;
    p->trim = false;
    if (kind == CALL_EVENT_CONTENT && bytes_trim(text).n > 0) p->said = p->headed = true;
    send_text(p, kind, text);
}

void parser_begin_call(call_parser *p) {
    p->begun = true;
    send(p, &(call_event){.kind = CALL_EVENT_BEGIN,
                          .name = {p->name.p, p->name.n},
                          .id = {p->id.p, p->id.n}});
}

void parser_flush(call_parser *p) {
    send_text(p, CALL_EVENT_ARGUMENTS, (bytes){p->out.p, p->out.n});
    p->failed = p->failed || p->out.failed;
    buf_clear(&p->out);
}

void parser_end_call(call_parser *p) {
    parser_flush(p);
    if (p->begun) send(p, &(call_event){.kind = CALL_EVENT_END, .complete = p->whole});
    if (p->has_value) value_deinit(&p->value);
    p->has_value = p->begun = p->whole = p->other = p->in_token = false;
    p->called = true;
    p->n_keys = 0;
    buf_clear(&p->name);
    buf_clear(&p->id);
}

/* ---- held text ---- */

size_t parser_skip(const call_parser *p, size_t at) {
    while (at < p->held.n && call_is_white(p->held.p[at])) at++;
    return at;
}

bytes parser_rest(const call_parser *p, size_t at) {
    return p->held.n > at ? (bytes){p->held.p + at, p->held.n - at} : (bytes){"", 0};
}

void parser_take(call_parser *p, size_t n) {
    p->held = bytes_from(p->held, n);
    p->n_taken += (int64_t)n;
    p->at = 0;
}

/* Appends to the held text.  What was taken is dropped from the store when it is the larger part.
 */
static void hold(call_parser *p, bytes text) {
    size_t n_before = p->store.n - p->held.n;
    if (n_before > p->held.n) {
        if (p->held.n > 0) memmove(p->store.p, p->held.p, p->held.n);
        p->store.n = p->held.n;
        n_before = 0;
    }
    buf_add(&p->store, text.p, text.n);
    p->failed = p->failed || p->store.failed;
    if (p->store.n > 0) p->held = (bytes){p->store.p + n_before, p->store.n - n_before};
}

/* Is this next text white space behind white space, where it is layout?  Then it changes nothing,
 * and what the last step waits for has not come: a long run of it is looked at once. */
static bool is_more_white(const call_parser *p, bytes next) {
    parser_state s = p->state;
    bool is_read = s == PARSER_OBJECT || s == PARSER_JSON || s == PARSER_LOOSE ||
                   s == PARSER_TREE || (s == PARSER_VALUE && p->n_seen == p->held.n);
    if (is_read || p->held.n == 0 || !call_is_white(p->held.p[p->held.n - 1])) return false;
    size_t n = 0;
    while (n < next.n && call_is_white(next.p[n])) n++;
    return n == next.n;
}

/* Is the mark at `at`, in which the text ends, no text?  A control token never is, and the header
 * of a turn is none. */
static bool is_lost(const call_parser *p, size_t at) {
    bool structured = bytes_trim(p->f->content_open).n > 0;
    at = parser_skip(p, at);
    return at < p->held.n &&
           (p->held.p[at] == CALL_TOKEN || (structured && !p->headed && !p->in_reasoning));
}

/* What was read is no call: its first byte is text. */
static void give_up(call_parser *p) {
    bool lost = p->cut && is_lost(p, 0);
    if (p->has_value) value_deinit(&p->value);
    p->has_value = p->other = p->begun = p->whole = false;
    buf_clear(&p->name);
    buf_clear(&p->id);
    buf_clear(&p->out);
    buf_clear(&p->kept);
    p->state = PARSER_TEXT;
    p->at = 0;
    p->cut = false;
    if (lost) parser_take(p, p->held.n);
    if (p->held.n == 0) return;
    parser_emit(p, CALL_EVENT_CONTENT, (bytes){p->held.p, 1});
    parser_take(p, 1);
}

/* ---- text ---- */

static void add_mark(parser_mark *marks, size_t *n, mark_kind kind, bytes whole) {
    bytes anchor = call_anchor(whole);
    if (anchor.n > 0) marks[(*n)++] = (parser_mark){kind, bytes_trim(whole), anchor};
}

/* What may interrupt the text now. */
static size_t list_marks(const call_parser *p, parser_mark marks[PARSER_MARKS]) {
    const call_format *f = p->f;
    size_t n = 0;
    if (p->in_reasoning) {
        add_mark(marks, &n, MARK_ANSWER, f->reasoning_close);
        return n;
    }
    bool structured = bytes_trim(f->content_open).n > 0;
    if (!p->no_calls && f->style != CALL_NONE) {
        add_mark(marks, &n, MARK_CALLS, (bytes){p->open.p, p->open.n});
        add_mark(marks, &n, MARK_OTHER_CALLS, f->other_open);
    }
    add_mark(marks, &n, MARK_REASONING, f->reasoning_open);
    /* Between two messages; or reasoning that the model closes without having begun it. */
    add_mark(marks, &n, structured ? MARK_TURN : MARK_ANSWER, f->reasoning_close);
    add_mark(marks, &n, MARK_CONTENT, f->content_open);
    add_mark(marks, &n, MARK_CONTENT, f->preamble_open);
    for (int i = 0; i < CALL_HEADERS; i++) add_mark(marks, &n, MARK_CONTENT, f->headers[i]);
    add_mark(marks, &n, MARK_LAYOUT, f->content_close);
    add_mark(marks, &n, MARK_LAYOUT, f->turn_close);
    return n;
}

typedef struct found_mark {
    const parser_mark *mark; // the longest one at `at`; NULL: none
    size_t at;               // where it begins, or where it could begin
    size_t n;                // its bytes
    size_t id_at, n_id;      // in it
    bool lost;               // the text ends in a mark here, which is no text
} found_mark;

/* The first mark.  Text before `at` has none.  Behind content reasoning cannot begin, unless marks
 * open content, too. */
static found_mark find_mark(const call_parser *p, const parser_mark *marks, size_t n_marks) {
    found_mark found = {0};
    bool structured = bytes_trim(p->f->content_open).n > 0, blank = !p->said && !p->called;
    const size_t white_max = GRAMMAR_REASONING_WHITE_MAX; // as a grammar allows it
    for (; found.at < p->held.n; found.at++) {
        bytes rest = parser_rest(p, found.at);
        bool part = false;
        blank = blank && found.at <= white_max &&
                (found.at == 0 || call_is_white(p->held.p[found.at - 1]));
        for (size_t k = 0; k < n_marks; k++) {
            bytes anchor = marks[k].anchor;
            bool first = marks[k].kind == MARK_REASONING ||
                         (marks[k].kind == MARK_ANSWER && !p->in_reasoning);
            if (first && !structured && !blank) continue;
            size_t n = size_min(anchor.n, rest.n);
            if (memcmp(rest.p, anchor.p, n) != 0) continue;
            match m = call_match(marks[k].whole, rest);
            if (n < anchor.n || m.result == MATCH_PART) part = true;
            if (n < anchor.n || m.result != MATCH_YES) continue;
            if (found.mark != NULL && found.mark->anchor.n >= anchor.n) continue;
            found.mark = &marks[k];
            found.n = m.n;
            found.id_at = m.id.n > 0 ? (size_t)(m.id.p - rest.p) : 0;
            found.n_id = m.id.n;
        }
        if (part && !p->final) {
            found.mark = NULL;
            return found;
        }
        found.lost = part && found.mark == NULL && is_lost(p, found.at) &&
                     (rest.p[0] == CALL_TOKEN || bytes_trim((bytes){p->held.p, found.at}).n == 0);
        if (found.mark != NULL || found.lost) return found;
    }
    return found;
}

static call_event_kind kind_of_text(const call_parser *p) {
    return p->in_reasoning ? CALL_EVENT_REASONING : CALL_EVENT_CONTENT;
}

/* Sends held[0, n) but for white space at its end, which belongs to a mark that may follow. */
static void send_before(call_parser *p, size_t n) {
    size_t end = n;
    while (end > 0 && call_is_white(p->held.p[end - 1])) end--;
    parser_emit(p, kind_of_text(p), (bytes){p->held.p, end});
    parser_take(p, end);
}

/* A call may follow at `at`; the mark before it had this id. */
static void begin_reading(call_parser *p, size_t at, bytes id) {
    bool object = p->f->style == CALL_OBJECT || p->f->style == CALL_KEYED;
    buf_add(&p->id, id.p, size_min(id.n, CALL_ID_BYTES_MAX));
    p->at = at;
    p->object = OBJECT_OPEN;
    p->state = object ? PARSER_OBJECT : PARSER_NAME;
}

/* Is the message a call from its first byte on, without a mark?  MATCH_PART: that is not known. */
static match_result starts_with_call(const call_parser *p) {
    if (!p->f->at_start || p->no_calls || p->said || p->called || p->in_reasoning) return MATCH_NO;
    match_result starts = call_start_match(p->f, p->tools, parser_rest(p, 0));
    return starts == MATCH_PART && p->final ? MATCH_NO : starts;
}

static step_result step_text(call_parser *p) {
    parser_mark marks[PARSER_MARKS];
    size_t n_marks = list_marks(p, marks);
    match_result starts = starts_with_call(p);
    if (starts == MATCH_PART) return STEP_WAITS;
    if (starts == MATCH_YES) {
        begin_reading(p, parser_skip(p, 0) + (p->f->style == CALL_PYTHON), (bytes){NULL, 0});
        return STEP_ON;
    }
    found_mark found = find_mark(p, marks, n_marks);
    size_t n_before = p->held.n;
    send_before(p, found.at);
    size_t at = found.at - (n_before - p->held.n); // white space before the mark
    if (found.mark == NULL) {
        if (!p->final) return STEP_WAITS;
        bool layout = p->called || p->in_reasoning || found.lost;
        if (!layout) parser_emit(p, kind_of_text(p), parser_rest(p, 0));
        parser_take(p, p->held.n);
        return STEP_WAITS;
    }
    int64_t mark_at = p->n_taken + (int64_t)at;
    switch (found.mark->kind) {
    case MARK_CALLS:
    case MARK_OTHER_CALLS:
        p->other = found.mark->kind == MARK_OTHER_CALLS;
        begin_reading(p, at + found.n, (bytes){p->held.p + at + found.id_at, found.n_id});
        return STEP_ON;
    case MARK_REASONING:
        p->in_reasoning = true;
        p->reasoning = (call_reasoning){.from = mark_at + (int64_t)found.n, .to = INT64_MAX};
        break;
    case MARK_ANSWER:
    case MARK_TURN:
        if (p->in_reasoning) p->reasoning.to = mark_at;
        p->in_reasoning = p->headed = false;
        break;
    default:
        p->headed = p->headed || found.mark->kind == MARK_CONTENT;
        p->said = p->said || p->f->at_start; // calls without a mark do not come behind this one
    }
    p->trim = true;
    parser_take(p, at + found.n);
    return STEP_ON;
}

/* ---- arguments that are one value ---- */

static step_result step_value(call_parser *p) {
    for (size_t i = 0; i < p->held.n; i++) {
        value_step step = value_push(&p->value, p->held.p[i], &p->out);
        if (step == VALUE_MORE) continue;
        parser_flush(p);
        parser_take(p, step == VALUE_ENDS ? i + 1 : i);
        p->whole = step != VALUE_IS_NO_VALUE; // all that come here begin as an object
        p->state = PARSER_CLOSE;
        return STEP_ON;
    }
    parser_flush(p);
    parser_take(p, p->held.n);
    return STEP_WAITS;
}

static step_result step_close(call_parser *p) {
    match m = call_match(p->f->call_close, parser_rest(p, 0));
    if (m.result == MATCH_PART && !p->final) return STEP_WAITS;
    if (m.result == MATCH_YES) parser_take(p, m.n);
    if (m.result == MATCH_PART) parser_take(p, p->held.n); // the text ends in the mark
    parser_end_call(p);
    p->state = PARSER_AFTER;
    return STEP_ON;
}

/* ---- behind a call ---- */

/* The start of a further call of the section; `at` is moved behind it. */
static match_result match_next(const call_parser *p, size_t *at, bytes *id) {
    const call_format *f = p->f;
    bytes separator = bytes_trim(f->separator), open = bytes_trim(f->call_open);
    size_t i = parser_skip(p, 0);
    if (separator.n > 0) {
        match m = call_match(separator, parser_rest(p, i));
        if (m.result != MATCH_YES) return m.result;
        i = parser_skip(p, i + m.n);
    }
    match m = call_match(open, parser_rest(p, i));
    *at = i + m.n;
    *id = m.id;
    if (open.n > 0 || m.result != MATCH_YES) return m.result;
    i = parser_skip(p, i);
    if (i == p->held.n) return MATCH_PART;
    char c = p->held.p[i];
    bool named = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    bool lines = f->separator.n > 0 && named; // calls on lines of their own
    if (f->style == CALL_PYTHON) return separator.n > 0 || lines ? MATCH_YES : MATCH_NO;
    return p->held.p[i] == '{' ? MATCH_YES : MATCH_NO;
}

static step_result step_after(call_parser *p) {
    const call_format *f = p->f;
    bytes close = bytes_trim(f->section_close);
    bytes id = {NULL, 0};
    size_t at = 0;
    match end = close.n > 0 ? call_match(close, parser_rest(p, 0)) : (match){.result = MATCH_NO};
    match_result next = f->single && close.n == 0 ? MATCH_NO : match_next(p, &at, &id);
    p->state = PARSER_TEXT;
    if (end.result == MATCH_YES) {
        parser_take(p, end.n);
    } else if (next == MATCH_YES) {
        begin_reading(p, at, id);
    } else if (next == MATCH_PART || end.result == MATCH_PART) {
        p->state = PARSER_AFTER; // at the end of the text half a mark behind a call is no content
        return STEP_WAITS;
    }
    return STEP_ON;
}

/* ---- driving ---- */

static step_result step(call_parser *p) {
    switch (p->state) {
    case PARSER_TEXT:
        return step_text(p);
    case PARSER_NAME:
        return parser_name(p);
    case PARSER_OBJECT:
        return parser_object(p);
    case PARSER_JSON:
    case PARSER_LOOSE:
        return step_value(p);
    case PARSER_TAG:
        return parser_tag(p);
    case PARSER_KEY:
        return parser_key(p);
    case PARSER_VALUE:
        return parser_value(p);
    case PARSER_TREE:
        return parser_tree(p);
    case PARSER_CLOSE:
        return step_close(p);
    case PARSER_AFTER:
        return step_after(p);
    }
    return STEP_WAITS;
}

static void run(call_parser *p) {
    step_result result = STEP_ON;
    p->asked = false;
    while (result != STEP_WAITS && !p->failed) {
        result = step(p);
        if (result == STEP_NO_CALL) give_up(p);
        if (p->held.n == 0 && p->state == PARSER_TEXT) break;
    }
}

bool call_parser_push(call_parser *p, bytes text, call_sink on, void *ctx) {
    p->on = on;
    p->ctx = ctx;
    if (!p->pushed) hold(p, p->f->prompt_end);
    bool nothing_new = p->pushed && is_more_white(p, text);
    p->pushed = true;
    hold(p, text);
    if (!nothing_new) run(p);
    return !p->failed;
}

bool call_parser_finish(call_parser *p, call_sink on, void *ctx) {
    p->on = on;
    p->ctx = ctx;
    p->final = true;
    run(p);
    parser_drop_member(p);
    if (p->begun) parser_end_call(p);
    return !p->failed;
}

call_reasoning call_parser_reasoning(const call_parser *p) {
    call_reasoning r = p->reasoning;
    r.known = p->final ? INT64_MAX : p->n_taken;
    return r;
}

/* Is the held text the beginning of a mark of calls, or of a call without one? */
static bool holds_mark(const call_parser *p, size_t n_held) {
    parser_mark marks[PARSER_MARKS];
    if (bytes_trim((bytes){p->held.p, n_held}).n == 0) return false;
    if (starts_with_call(p) != MATCH_NO) return true;
    for (size_t k = 0, n = list_marks(p, marks); k < n; k++) {
        bool calls = marks[k].kind == MARK_CALLS || marks[k].kind == MARK_OTHER_CALLS;
        for (size_t i = 0; calls && i < n_held; i++)
            if (!call_is_white(p->held.p[i]) &&
                call_match(marks[k].whole, parser_rest(p, i)).result != MATCH_NO)
                return true;
    }
    return false;
}

bool call_parser_in_call(call_parser *p, bytes next) {
    size_t n_held = p->held.n, at = 0;
    bytes id = {NULL, 0}, close = bytes_trim(p->f->section_close);
    if (p->state != PARSER_TEXT && p->state != PARSER_AFTER) return true;
    bool more_white = is_more_white(p, next);
    if (more_white && p->asked) return p->in_call;
    hold(p, next);
    bool in = false;
    if (!p->failed && p->state == PARSER_TEXT)
        in = holds_mark(p, n_held);
    else if (!p->failed)
        in = match_next(p, &at, &id) != MATCH_NO ||
             (close.n > 0 && call_match(close, parser_rest(p, 0)).result != MATCH_NO);
    p->store.n -= p->held.n - n_held;
    p->held.n = n_held;
    p->asked = more_white;
    p->in_call = in;
    return in;
}

call_parser *call_parser_create(const call_format *f, const call_parser_options *o) {
    call_parser *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->f = f;
    p->tools = o->tools;
    p->no_calls = o->no_calls;
    p->in_reasoning = p->trim = o->in_reasoning;
    p->reasoning.to = o->in_reasoning ? INT64_MAX : 0;
    p->n_taken = -(int64_t)f->prompt_end.n;
    buf_add(&p->open, f->section_open.p, f->section_open.n);
    buf_add(&p->open, f->call_open.p, f->call_open.n);
    if (!p->open.failed) return p;
    call_parser_destroy(p);
    return NULL;
}

void call_parser_destroy(call_parser *p) {
    if (p == NULL) return;
    if (p->has_value) value_deinit(&p->value);
    buf_deinit(&p->store);
    buf_deinit(&p->open);
    buf_deinit(&p->name);
    buf_deinit(&p->id);
    buf_deinit(&p->key);
    buf_deinit(&p->out);
    buf_deinit(&p->kept);
    buf_deinit(&p->close);
    free(p);
}
