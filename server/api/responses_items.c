/* responses_items.c - see responses.h: input items become messages.
 *
 * Neighbours of one role become one message, because templates expect turns that alternate; their
 * texts are separated by an empty line.  Instructions, and developer items before the first turn,
 * are the system message; later ones become part of the user's turn, because few templates accept
 * them elsewhere.  Items of other types than are known are left out and named: clients send ever
 * new ones. */
#include "responses_read.h"

#include <stdlib.h>

static json_t *text_json(bytes text) {
    return json_stringn(text.n == 0 ? "" : text.p, text.n);
}

__attribute__((format(printf, 4, 5))) static bool
fail_item(const responses_reader *r, api_fault fault, const char *member, const char *format, ...) {
    char param[API_PARAM_BYTES], message[API_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(param, sizeof param, "input[%zu]%s%s", r->item_idx, member[0] == 0 ? "" : ".", member);
    return api_fail(r->err, fault, param, "%s", message);
}

/* ---- turns ---- */

static void add_message(responses_reader *r, const char *role, const char *key, json_t *value,
                        bytes text, bool null) {
    json_t *m = json_object();
    put(r, m, "role", json_string(role));
    put(r, m, "content", null ? json_null() : text_json(text));
    if (key != NULL) put(r, m, key, value);
    append(r, r->messages, m);
}

static void end_turn(responses_reader *r) {
    if (r->role == NULL) return;
    r->no_memory |= r->text.failed || r->reasoning.failed;
    bool calls = r->calls != NULL;
    add_message(r, r->role, calls ? "tool_calls" : NULL, r->calls, (bytes){r->text.p, r->text.n},
                calls && !r->has_text);
    json_t *m = json_array_get(r->messages, json_array_size(r->messages) - 1);
    if (r->reasoning.n > 0)
        put(r, m, "reasoning_content", text_json((bytes){r->reasoning.p, r->reasoning.n}));
    r->calls = NULL;
    r->role = NULL;
    r->has_text = false;
    buf_clear(&r->text);
    buf_clear(&r->reasoning);
}

static void open_turn(responses_reader *r, const char *role) {
    if (r->role != NULL && strcmp(r->role, role) == 0) return;
    end_turn(r);
    r->role = role;
    r->system_over |= strcmp(role, "system") != 0;
}

static void add_text(buf *to, bool more, const char *between, bytes text) {
    if (more) buf_add_str(to, between);
    buf_add(to, text.p, text.n);
}

/* ---- contents ---- */

/* A string, or an array of parts, which are joined by newlines as chats join them.  `lenient`:
 * parts that are not text are left out; otherwise they are refused. */
static bool read_content(responses_reader *r, json_t *content, const char *member, bool lenient,
                         buf *out) {
    char here[API_PARAM_BYTES], quoted[API_QUOTE_BYTES];
    size_t i;
    json_t *part;
    if (json_is_string(content)) {
        add_text(out, false, "", string_of(content));
        return true;
    }
    if (!json_is_array(content))
        return fail_item(r, content == NULL ? API_MISSING : API_BAD_VALUE, member,
                         "\"%s\" must be a string or an array of parts", member);
    json_array_foreach(content, i, part) {
        json_t *type = json_object_get(part, "type");
        bool refusal = is(type, "refusal");
        bool text = is(type, "input_text") || is(type, "output_text") || is(type, "text") ||
                    is(type, "reasoning_text") || is(type, "summary_text");
        snprintf(here, sizeof here, "%s[%zu]", member, i);
        if (!json_is_string(type))
            return fail_item(r, json_is_object(part) ? API_MISSING : API_BAD_VALUE, here,
                             "a content part must be an object with a string \"type\"");
        if (!text && !refusal && lenient) {
            responses_leave_out(r, "input.content", json_string_value(type));
            continue;
        }
        if (!text && !refusal)
            return fail_item(r, API_UNSUPPORTED, here,
                             "content parts of type \"%s\" are not supported, only text",
                             api_quote(quoted, json_string_value(type), json_string_length(type)));
        json_t *value = json_object_get(part, refusal ? "refusal" : "text");
        if (!json_is_string(value))
            return fail_item(r, API_BAD_VALUE, here,
                             "a content part of this type needs a string "
                             "\"text\" or \"refusal\"");
        add_text(out, i > 0 && out->n > 0, "\n", string_of(value));
    }
    return true;
}

/* ---- items ---- */

/* Appends a text to the turn of the role. */
static bool read_message(responses_reader *r, json_t *item) {
    json_t *role = given(item, "role");
    bool system = is(role, "system") || is(role, "developer");
    if (!system && !is(role, "user") && !is(role, "assistant"))
        return fail_item(r, role == NULL ? API_MISSING : API_BAD_VALUE, "role",
                         "\"role\" must be one of user, assistant, system, developer");
    buf text = {0};
    bool ok = read_content(r, given(item, "content"), "content", false, &text);
    if (ok) {
        open_turn(r, is(role, "assistant")       ? "assistant"
                     : system && !r->system_over ? "system"
                                                 : "user");
        add_text(&r->text, r->has_text, "\n\n", (bytes){text.p, text.n});
        r->has_text = true;
        r->no_memory |= text.failed;
    }
    buf_deinit(&text);
    return ok;
}

/* Reasoning belongs to the text and the calls behind it. */
static bool read_reasoning(responses_reader *r, json_t *item) {
    enum { MARK_BYTES = sizeof RESPONSES_REASONING_MARK - 1 };
    json_t *content = given(item, "content"), *summary = given(item, "summary");
    bytes kept = string_of(given(item, "encrypted_content"));
    bool ours = kept.n > MARK_BYTES && memcmp(kept.p, RESPONSES_REASONING_MARK, MARK_BYTES) == 0;
    buf text = {0};
    bool ok = true;
    if (json_array_size(content) > 0)
        ok = read_content(r, content, "content", true, &text);
    else if (ours)
        buf_add(&text, kept.p + MARK_BYTES, kept.n - MARK_BYTES);
    else if (json_array_size(summary) > 0)
        ok = read_content(r, summary, "summary", true, &text);
    if (ok && text.n > 0) {
        open_turn(r, "assistant");
        add_text(&r->reasoning, r->reasoning.n > 0, "\n\n", (bytes){text.p, text.n});
    }
    r->no_memory |= text.failed;
    buf_deinit(&text);
    return ok;
}

static bool need_string(const responses_reader *r, json_t *item, const char *member) {
    json_t *v = given(item, member);
    if (json_is_string(v)) return true;
    return fail_item(r, v == NULL ? API_MISSING : API_BAD_VALUE, member,
                     "this item needs a string \"%s\"", member);
}

json_t *responses_function_name(json_t *name, json_t *space) {
    bytes of = string_of(space);
    if (!json_is_string(name) || of.n == 0) return json_copy(name);
    bool ends = of.p[of.n - 1] == '_';
    return json_sprintf("%s%s%s", of.p, ends ? "" : "__", json_string_value(name));
}

static bool read_call(responses_reader *r, json_t *item, bool custom) {
    const char *member = custom ? "input" : "arguments";
    if (!need_string(r, item, "name") || !need_string(r, item, member) ||
        !need_string(r, item, "call_id"))
        return false;
    json_t *arguments = json_incref(json_object_get(item, member));
    if (custom) {
        json_t *object = json_object();
        buf text = {0};
        put(r, object, "input", arguments);
        responses_add_json(&text, object);
        arguments = text.failed ? NULL : text_json((bytes){text.p, text.n});
        buf_deinit(&text);
        json_decref(object);
    }
    json_t *function = json_object(), *call = json_object();
    put(r, function, "name",
        responses_function_name(json_object_get(item, "name"), given(item, "namespace")));
    put(r, function, "arguments", arguments);
    put(r, call, "id", json_incref(json_object_get(item, "call_id")));
    put(r, call, "type", json_string("function"));
    put(r, call, "function", function);
    open_turn(r, "assistant");
    if (r->calls == NULL) r->calls = json_array();
    append(r, r->calls, call);
    return true;
}

static bool read_output(responses_reader *r, json_t *item) {
    buf text = {0};
    bool ok = need_string(r, item, "call_id") &&
              read_content(r, given(item, "output"), "output", true, &text);
    if (ok) {
        end_turn(r);
        r->system_over = true;
        add_message(r, "tool", "tool_call_id", json_incref(json_object_get(item, "call_id")),
                    (bytes){text.p, text.n}, false);
        r->no_memory |= text.failed;
    }
    buf_deinit(&text);
    return ok;
}

static bool read_item(responses_reader *r, json_t *item) {
    json_t *type = given(item, "type");
    if (!json_is_object(item))
        return fail_item(r, API_BAD_VALUE, "", "an item of \"input\" must be an object");
    if (type == NULL && given(item, "role") == NULL)
        return fail_item(r, API_MISSING, "type", "an item of \"input\" needs a \"type\"");
    if (type == NULL || is(type, "message")) return read_message(r, item);
    if (!json_is_string(type))
        return fail_item(r, API_BAD_VALUE, "type", "\"type\" must be a string");
    if (is(type, "function_call")) return read_call(r, item, false);
    if (is(type, "custom_tool_call")) return read_call(r, item, true);
    if (is(type, "function_call_output") || is(type, "custom_tool_call_output"))
        return read_output(r, item);
    if (is(type, "reasoning")) return read_reasoning(r, item);
    if (is(type, "item_reference"))
        return fail_item(r, API_UNSUPPORTED, "type",
                         "\"item_reference\" is not supported: nothing is kept after an answer; "
                         "send the item itself");
    responses_leave_out(r, "input", json_string_value(type));
    return true;
}

bool responses_read_input(responses_reader *r) {
    json_t *instructions = given(r->body, "instructions"), *input = given(r->body, "input"), *item;
    size_t i;
    if (instructions != NULL && !json_is_string(instructions))
        return api_fail(r->err, API_BAD_VALUE, "instructions", "\"instructions\" must be a string");
    if (input == NULL) return api_fail(r->err, API_MISSING, "input", "\"input\" is required");
    if (!json_is_string(input) && json_array_size(input) == 0)
        return api_fail(r->err, API_BAD_VALUE, "input",
                        "\"input\" must be a string, or an array of items that is not empty");
    if (instructions != NULL) {
        open_turn(r, "system");
        add_text(&r->text, false, "", string_of(instructions));
        r->has_text = true;
    }
    if (json_is_string(input)) {
        open_turn(r, "user");
        add_text(&r->text, false, "", string_of(input));
    }
    json_array_foreach(input, i, item) {
        r->item_idx = i;
        if (!read_item(r, item)) return false;
    }
    end_turn(r);
    if (json_array_size(r->messages) > 0 || r->no_memory) return true;
    return api_fail(r->err, API_BAD_VALUE, "input", "\"input\" has no message");
}
