/* parser_name.c - the name of a call between marks, and what shows that its arguments follow. */
#include <string.h>

#include "calls/parser.h"

static bool ends_name(const call_parser *p, char c) {
    bytes close = bytes_trim(p->other ? p->f->other_name_close : p->f->name_close);
    return call_is_white(c) || strchr("<([{\"'>|=,\xff", c) != NULL ||
           (close.n > 0 && c == close.p[0]);
}

/* Does the text at `at` begin as the arguments of a call do? */
static match match_arguments(const call_parser *p, size_t at) {
    const call_format *f = p->f;
    match no = {MATCH_NO, 0, {NULL, 0}, {NULL, 0}}, yes = {MATCH_YES, 0, {NULL, 0}, {NULL, 0}};
    size_t i = parser_skip(p, at);
    if (f->style == CALL_TAGS) {
        match key = call_match(f->key_open, parser_rest(p, i));
        match end = call_match(f->call_close, parser_rest(p, i));
        if (key.result == MATCH_YES || end.result == MATCH_YES) return yes;
        no.result = key.result == MATCH_PART || end.result == MATCH_PART ? MATCH_PART : MATCH_NO;
        return no;
    }
    char open = f->style == CALL_PYTHON ? '(' : '{';
    if (i == p->held.n) no.result = MATCH_PART;
    return i < p->held.n && p->held.p[i] == open ? yes : no;
}

static step_result waits(call_parser *p, match_result result) {
    p->cut = result == MATCH_PART && p->final;
    return result == MATCH_PART && !p->final ? STEP_WAITS : STEP_NO_CALL;
}

step_result parser_name(call_parser *p) {
    const call_format *f = p->f;
    bytes close = bytes_trim(p->other ? f->other_name_close : f->name_close);
    size_t from = parser_skip(p, p->at), end = from;
    while (end < p->held.n && !ends_name(p, p->held.p[end])) end++;
    if (end - from > CALL_NAME_BYTES_MAX) return STEP_NO_CALL;
    if (end == p->held.n) return waits(p, MATCH_PART);
    if (end == from) return STEP_NO_CALL;
    match m = call_match(close, parser_rest(p, end));
    if (m.result != MATCH_YES) return waits(p, m.result);
    size_t at = end + m.n;
    match next = match_arguments(p, at);
    bool cut = p->final && next.result == MATCH_PART && close.n > 0; // behind the mark of a name
    if (next.result != MATCH_YES && !cut) return waits(p, next.result);
    buf_add(&p->name, p->held.p + from, end - from);
    buf_add(&p->id, m.id.p, size_min(m.id.n, CALL_ID_BYTES_MAX));
    p->failed = p->failed || p->name.failed || p->id.failed;
    parser_begin_call(p);
    at = f->style == CALL_TAGS ? at : parser_skip(p, at);
    p->has_value = f->style != CALL_TAGS;
    p->state = f->style == CALL_TAGS   ? PARSER_TAG
               : f->style == CALL_JSON ? PARSER_JSON
                                       : PARSER_LOOSE;
    if (f->style == CALL_JSON) value_init(&p->value, VALUE_JSON, (bytes){NULL, 0});
    if (f->style == CALL_BRACES) value_init(&p->value, VALUE_LOOSE, f->quote);
    if (f->style == CALL_PYTHON) {
        value_init_arguments(&p->value, (bytes){NULL, 0}, &p->out);
        p->value.raw = f->raw_text;
        at++;
    }
    parser_take(p, at);
    return STEP_ON;
}
