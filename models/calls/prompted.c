/* prompted.c - tools for a template that knows none: call_format_messages.
 *
 * The tools are described in the system message, or in the first message of the user where the
 * template takes no system message; calls of earlier turns and their results become text, in the
 * way that the description asks for:
 *
 *     assistant   text <tool_call> {"name": ..., "arguments": ...} </tool_call>
 *     user        <tool_response> result </tool_response>
 *
 * The same conversation always gives the same text, so a longer one begins with a shorter one. */
#include <string.h>

#include "calls/learn.h"
#include "chat/template.h"
#include "inferd/json_whole.h"

static const char before_tools[] =
    "You can call functions. Their names and the JSON Schemas of their arguments are:\n<tools>\n";
static const char after_tools[] =
    "</tools>\nTo call one, write a JSON object with its name and arguments between tags:\n"
    "<tool_call>\n{\"name\": \"the name\", \"arguments\": {\"key\": \"value\"}}\n</tool_call>\n"
    "The result comes between <tool_response> tags.";

/* ---- what a template can do ---- */

static bool shows(prober *p, json_t *first, const char *word) {
    buf out = {0};
    bool shown = probe_conversation(p, first, &out) &&
                 bytes_find((bytes){out.p, out.n}, bytes_of(word), 0) != SIZE_MAX;
    buf_deinit(&out);
    return shown;
}

bool learn_prompted(prober *p, call_format *f) {
    json_t *system = probe_said(PROBE_REASON, NULL, NULL);
    bool named = system != NULL && json_object_set_new(system, "role", json_string("system")) == 0;
    if (!named) p->no_memory = true;
    f->prompted = !shows(p, NULL, PROBE_NAME_2);
    f->prompted_in_user = named && f->prompted && !shows(p, system, PROBE_REASON);
    json_decref(system);
    return !p->no_memory;
}

/* ---- text ---- */

static void add_json(buf *out, const json_t *v) {
    char *text = json_dumps_whole(v, JSON_ENCODE_ANY);
    if (text == NULL)
        out->failed = true;
    else
        buf_add_str(out, text);
    free(text);
}

static void add_content(buf *out, const json_t *content) {
    size_t i;
    json_t *part;
    if (json_is_string(content))
        buf_add(out, json_string_value(content), json_string_length(content));
    json_array_foreach((json_t *)(uintptr_t)content, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (json_is_string(text)) buf_add(out, json_string_value(text), json_string_length(text));
    }
}

static void add_tools(buf *out, const json_t *tools) {
    size_t i;
    json_t *tool;
    buf_add_str(out, before_tools);
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
        add_json(out, json_object_get(tool, "function"));
        buf_add_char(out, '\n');
    }
    buf_add_str(out, after_tools);
}

static void add_calls(buf *out, const json_t *calls) {
    size_t i;
    json_t *call;
    json_array_foreach((json_t *)(uintptr_t)calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        const json_t *arguments = json_object_get(function, "arguments");
        buf_add_str(out, out->n > 0 ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        add_json(out, json_object_get(function, "name"));
        buf_add_str(out, ", \"arguments\": ");
        if (json_is_string(arguments) && json_string_length(arguments) > 0)
            buf_add(out, json_string_value(arguments), json_string_length(arguments));
        else
            buf_add_str(out, "{}");
        buf_add_str(out, "}\n</tool_call>");
    }
}

/* ---- messages ---- */

static bool append(json_t *messages, const char *role, const buf *text) {
    json_t *m = json_object();
    bool ok =
        m != NULL && !text->failed && json_object_set_new(m, "role", json_string(role)) == 0 &&
        json_object_set_new(m, "content", json_stringn(text->n > 0 ? text->p : "", text->n)) == 0 &&
        json_array_append(messages, m) == 0;
    json_decref(m);
    return ok;
}

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role == NULL ? "" : role;
}

static bool is_result(const json_t *message) {
    return strcmp(role_of(message), "tool") == 0 || strcmp(role_of(message), "function") == 0;
}

/* One message, or all results that follow each other; *i is moved behind them. */
static bool convert(const json_t *messages, size_t *i, const char *before, json_t *out) {
    const json_t *m = json_array_get(messages, *i);
    buf text = {0};
    bool ok;
    if (is_result(m)) {
        for (; is_result(m); m = json_array_get(messages, ++*i)) {
            buf_add_str(&text, text.n > 0 ? "\n<tool_response>\n" : "<tool_response>\n");
            add_content(&text, json_object_get(m, "content"));
            buf_add_str(&text, "\n</tool_response>");
        }
        ok = append(out, "user", &text);
    } else if (json_array_size(json_object_get(m, "tool_calls")) > 0) {
        add_content(&text, json_object_get(m, "content"));
        add_calls(&text, json_object_get(m, "tool_calls"));
        ok = append(out, "assistant", &text);
        ++*i;
    } else if (before != NULL) {
        buf_add_str(&text, before);
        buf_add_str(&text, "\n\n");
        add_content(&text, json_object_get(m, "content"));
        ok = append(out, role_of(m), &text);
        ++*i;
    } else {
        ok = json_array_append(out, (json_t *)(uintptr_t)m) == 0;
        ++*i;
    }
    buf_deinit(&text);
    return ok;
}

json_t *call_format_messages(const call_format *f, const json_t *messages, const json_t *tools) {
    json_t *out = json_array();
    buf description = {0};
    bool ok = out != NULL;
    if (json_array_size(tools) > 0) add_tools(&description, tools);
    const char *text = description.n > 0 ? buf_cstr(&description) : NULL;
    const char *holder = f->prompted_in_user ? "user" : "system";
    if (text != NULL && !f->prompted_in_user &&
        strcmp(role_of(json_array_get(messages, 0)), holder) != 0) {
        ok = ok && append(out, "system", &description);
        text = NULL;
    }
    for (size_t i = 0; ok && i < json_array_size(messages);) {
        bool here = text != NULL && strcmp(role_of(json_array_get(messages, i)), holder) == 0;
        ok = convert(messages, &i, here ? text : NULL, out);
        if (here) text = NULL;
    }
    ok = ok && !description.failed;
    buf_deinit(&description);
    if (ok) return out;
    json_decref(out);
    return NULL;
}
