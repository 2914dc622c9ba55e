/* parser_object.c - calls that are JSON objects: {"name": "f", "arguments": {...}}.
 *
 * Keys may come in any order, and others beside these; arguments that come before the name wait for
 * it.  Some models write the arguments as a text that holds JSON: that is unpacked. */
#include <string.h>

#include "calls/parser.h"
#include "chat/json_text.h"

enum { OF_OTHER, OF_NAME, OF_ARGUMENTS, OF_ID };

static bool is_key(const call_parser *p, const char *name) {
    return bytes_equal((bytes){p->key.p, p->key.n}, bytes_of(name));
}

static int kind_of_key(const call_parser *p) {
    bytes key = {p->key.p, p->key.n};
    if (p->f->style == CALL_KEYED) return OF_ARGUMENTS;
    if (bytes_equal(key, p->f->name_key) || is_key(p, "name")) return OF_NAME;
    if (bytes_equal(key, p->f->arguments_key) || is_key(p, "arguments") || is_key(p, "parameters"))
        return OF_ARGUMENTS;
    return is_key(p, "id") || is_key(p, "tool_call_id") ? OF_ID : OF_OTHER;
}

/* A call without a mark before it must look like one from its first key on. */
static bool is_likely(const call_parser *p) {
    return !p->f->at_start || p->begun || p->of_key != OF_OTHER || is_key(p, "type") ||
           is_key(p, "function");
}

/* The text of a JSON string. */
static bool read_string(bytes json, buf *out) {
    json_t *v = NULL;
    inferd_err ignored;
    bool ok = json_text_read(json, &v, &ignored) == INFERD_OK && json_is_string(v);
    if (ok) buf_add(out, json_string_value(v), json_string_length(v));
    json_decref(v);
    return ok;
}

/* The name is known: what was read of the object is no text any more. */
static void begin_call(call_parser *p, size_t at) {
    parser_begin_call(p);
    parser_take(p, at);
    if (p->kept.n == 0) return;
    buf_add(&p->out, p->kept.p, p->kept.n);
    buf_clear(&p->kept);
    parser_flush(p);
}

static bool end_name(call_parser *p, size_t at) {
    bool ok = read_string((bytes){p->out.p, p->out.n}, &p->name);
    buf_clear(&p->out);
    if (!ok || p->name.n == 0 || p->name.n > CALL_NAME_BYTES_MAX) return false;
    p->failed = p->failed || p->name.failed;
    if (p->begun) return true; // a second name: the first one was sent
    begin_call(p, at);
    return true;
}

/* Arguments that were a text: the JSON in it, if that is an object. */
static void unpack(buf *value) {
    bytes text = {value->p, value->n};
    buf inner = {0}, checked = {0};
    if (text.n > 0 && text.p[0] == '"' && read_string(text, &inner) &&
        value_read_all(VALUE_JSON, (bytes){NULL, 0}, (bytes){inner.p, inner.n}, &checked)) {
        buf_clear(value);
        buf_add(value, checked.p, checked.n);
    }
    buf_deinit(&inner);
    buf_deinit(&checked);
}

/* The value of a key is complete, and `at` behind it.  False: this is no call. */
static bool end_member(call_parser *p, size_t at) {
    value_deinit(&p->value);
    p->has_value = false;
    switch (p->of_key) {
    case OF_NAME:
        if (!p->begun) return end_name(p, at);
        buf_clear(&p->out);
        break;
    case OF_ARGUMENTS:
        if (!p->passing) unpack(&p->out);
        p->whole = p->n_keys++ == 0 && p->out.n > 0 && p->out.p[p->out.n - 1] == '}';
        if (p->begun) {
            parser_flush(p);
        } else {
            buf_add(&p->kept, p->out.p, p->out.n);
            p->failed = p->failed || p->kept.failed;
            buf_clear(&p->out);
        }
        break;
    case OF_ID:
        if (!p->begun && p->id.n == 0) read_string((bytes){p->out.p, p->out.n}, &p->id);
        if (p->id.n > CALL_ID_BYTES_MAX) buf_clear(&p->id);
        buf_clear(&p->out);
        break;
    default:
        buf_clear(&p->out);
    }
    if (p->begun)
        parser_take(p, at);
    else
        p->at = at;
    return true;
}

static bool end_key(call_parser *p) {
    buf_clear(&p->key);
    bool ok = read_string((bytes){p->out.p, p->out.n}, &p->key);
    buf_clear(&p->out);
    p->of_key = kind_of_key(p);
    if (!ok || !is_likely(p)) return false;
    if (p->f->style == CALL_KEYED && !p->begun) buf_add(&p->name, p->key.p, p->key.n);
    return true;
}

/* Keys and values: a value of JSON each.  True: it is complete. */
static bool read_value(call_parser *p, size_t *at, step_result *result) {
    *result = STEP_ON;
    for (; *at < p->held.n; ++*at) {
        value_step step = value_push(&p->value, p->held.p[*at], &p->out);
        if (step == VALUE_MORE) continue;
        if (step == VALUE_ENDS) ++*at;
        if (step == VALUE_IS_NO_VALUE) *result = STEP_NO_CALL;
        return true;
    }
    *result = STEP_WAITS;
    return false;
}

static void begin_json(call_parser *p) {
    value_init(&p->value, VALUE_JSON, (bytes){NULL, 0});
    p->has_value = true;
    p->passing = false;
}

/* Arguments of a call that has begun are passed on as they come, unless they are a text. */
static void pass_on(call_parser *p) {
    bool may = p->begun && p->of_key == OF_ARGUMENTS && p->out.n > 0;
    if (may && p->out.p[0] != '"') p->passing = true;
    if (p->passing) parser_flush(p);
}

static step_result step_member(call_parser *p) {
    size_t at = p->at;
    step_result result;
    bool complete = read_value(p, &at, &result);
    if (complete && result == STEP_ON) {
        if (p->object == OBJECT_KEY) {
            value_deinit(&p->value);
            p->has_value = false;
            if (!end_key(p)) {
                p->at = at;
                return STEP_NO_CALL;
            }
            if (p->f->style == CALL_KEYED && !p->begun) {
                begin_call(p, at);
                at = 0;
            }
            p->at = at;
            p->object = OBJECT_COLON;
            return STEP_ON;
        }
        if (!end_member(p, at)) {
            p->at = at;
            return STEP_NO_CALL;
        }
        p->object = OBJECT_NEXT;
        return STEP_ON;
    }
    if (p->object == OBJECT_VALUE) pass_on(p);
    if (p->begun && result == STEP_WAITS)
        parser_take(p, at);
    else
        p->at = at;
    return result;
}

/* The object is complete. */
static step_result end_object(call_parser *p, size_t at) {
    if (!p->begun) return STEP_NO_CALL; // it has no name
    if (p->n_keys == 0) buf_add_str(&p->out, "{}");
    p->whole = p->whole || p->n_keys == 0;
    parser_take(p, at);
    p->state = PARSER_CLOSE;
    return STEP_ON;
}

void parser_drop_member(call_parser *p) {
    bool arguments = p->object == OBJECT_VALUE && p->of_key == OF_ARGUMENTS;
    if (p->state == PARSER_OBJECT && !(arguments && p->passing)) buf_clear(&p->out);
}

static step_result broken(call_parser *p) {
    if (!p->begun) return STEP_NO_CALL;
    parser_drop_member(p);
    parser_take(p, p->at);
    p->state = PARSER_CLOSE;
    return STEP_ON;
}

step_result parser_object(call_parser *p) {
    if (p->object == OBJECT_KEY || p->object == OBJECT_VALUE) {
        step_result result = step_member(p);
        p->cut = result == STEP_WAITS && p->final && !p->begun;
        if (p->cut) return STEP_NO_CALL;
        return result == STEP_NO_CALL ? broken(p) : result;
    }
    size_t i = parser_skip(p, p->at);
    p->at = i;
    if (i == p->held.n) {
        p->cut = p->final && !p->begun;
        return p->cut ? STEP_NO_CALL : STEP_WAITS;
    }
    char c = p->held.p[i];
    switch (p->object) {
    case OBJECT_OPEN:
        if (c != '{') return broken(p);
        p->object = OBJECT_NEXT;
        p->at++;
        return STEP_ON;
    case OBJECT_NEXT:
        if (c == '}') return end_object(p, i + 1);
        if (c == ',') {
            p->at++;
            return STEP_ON;
        }
        if (c != '"') return broken(p);
        begin_json(p);
        p->object = OBJECT_KEY;
        return STEP_ON;
    default:
        if (c != ':') return broken(p);
        p->at++;
        begin_json(p);
        p->object = OBJECT_VALUE;
        return STEP_ON;
    }
}
