/* prompted.c - what a template leaves out becomes text: call_format_messages.
 *
 * Tools that the template does not show are described in the system message, or in the first
 * message of the user where it takes no system message, with an example of a call in the notation
 * of the format.  Calls of earlier turns that it does not write are text of their message, in the
 * same notation, and with them the results, if it shows no tools:
 *
 *     assistant   text <tool_call> {"name": ..., "arguments": ...} </tool_call>
 *     user        <tool_response> result </tool_response>
 *
 * The same conversation always gives the same text, so a longer one begins with a shorter one. */
#include <string.h>

#include "calls/learn.h"
#include "calls/write.h"
#include "chat/json_text.h"
#include "chat/template.h"
#include "inferd/json_whole.h"

static const char before_tools[] =
    "You can call functions. Their names and the JSON Schemas of their arguments are:\n<tools>\n";
static const char before_example[] =
    "</tools>\nTo call one, write its name and arguments in this way:\n";
static const char behind_example[] = "\nThe result comes between <tool_response> tags.";
static const char example[] = "[{\"id\":\"call00000\",\"function\":{\"name\":\"the name\","
                              "\"arguments\":\"{\\\"key\\\": \\\"value\\\"}\"}}]";

/* ---- what a template can do ---- */

static bool shows(prober *p, json_t *first, const char *word) {
    buf out = {0};
    bool shown = probe_conversation(p, first, &out) &&
                 bytes_find((bytes){out.p, out.n}, bytes_of(word), 0) != SIZE_MAX;
    buf_deinit(&out);
    return shown;
}

/* Beside this content. */
static bool writes_calls(prober *p, const char *content) {
    json_t *m = probe_calls(PROBE_NAME_1, "{}", NULL, NULL);
    buf text = {0};
    if (m != NULL && json_object_set_new(m, "content", json_string(content)) != 0)
        p->no_memory = true;
    bool written = probe_message(p, m, &text) &&
                   bytes_find((bytes){text.p, text.n}, bytes_of(PROBE_NAME_1), 0) != SIZE_MAX;
    buf_deinit(&text);
    return written;
}

/* Of two calls only the first: there is no exception, and both results stay. */
static bool writes_first_call(prober *p) {
    buf text = {0};
    bool first =
        probe_message(p,
                      probe_calls(PROBE_NAME_1, "{\"" PROBE_KEY_1 "\": \"" PROBE_VALUE_1 "\"}",
                                  PROBE_NAME_2, "{\"" PROBE_KEY_2 "\": \"" PROBE_VALUE_2 "\"}"),
                      &text);
    bytes s = {text.p, text.n};
    first = first && bytes_find(s, bytes_of(PROBE_VALUE_1), 0) != SIZE_MAX &&
            bytes_find(s, bytes_of(PROBE_VALUE_2), 0) == SIZE_MAX;
    buf_deinit(&text);
    return first;
}

bool learn_prompted(prober *p, call_format *f) {
    json_t *system = probe_said(PROBE_REASON, NULL, NULL);
    bool named = system != NULL && json_object_set_new(system, "role", json_string("system")) == 0;
    if (!named) p->no_memory = true;
    f->prompted = !shows(p, NULL, PROBE_NAME_2);
    f->prompted_in_user = named && f->prompted && !shows(p, system, PROBE_REASON);
    f->loses_calls = !writes_calls(p, "");
    f->loses_calls_beside_text = !f->loses_calls && !writes_calls(p, PROBE_CONTENT);
    f->loses_later_calls = writes_first_call(p);
    json_decref(system);
    return !p->no_memory;
}

/* ---- text ---- */

static void add_tools(const call_format *f, buf *out, const json_t *tools) {
    size_t i;
    json_t *tool, *call = NULL;
    buf_add_str(out, before_tools);
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
        call_write_json(json_object_get(tool, "function"), out);
        buf_add_char(out, '\n');
    }
    buf_add_str(out, before_example);
    if (json_text_read(bytes_of(example), &call, NULL) != INFERD_OK) out->failed = true;
    call_write(f, call, out);
    json_decref(call);
    if (f->loses_calls) buf_add_str(out, behind_example);
}

/* ---- messages ---- */

/* The copy in progress. */
typedef struct copy {
    const call_format *f;
    const json_t *messages;
    json_t *out, *origins; // owned
    bool ok;
} copy;

static void append(copy *c, json_t *message, json_int_t origin) {
    c->ok = c->ok && message != NULL && json_array_append(c->out, message) == 0 &&
            json_array_append_new(c->origins, json_integer(origin)) == 0;
}

/* The same message with this text; of a member of its own where `from` is NULL. */
static void append_text(copy *c, json_t *from, const char *role, const buf *text,
                        json_int_t origin) {
    json_t *m = from != NULL ? json_copy_whole(from) : json_object();
    json_t *content = json_stringn_nocheck(text->n > 0 ? text->p : "", text->n);
    c->ok = c->ok && m != NULL && !text->failed && content != NULL &&
            json_object_set_new(m, "role", json_string(role)) == 0 &&
            json_object_set(m, "content", content) == 0;
    json_object_del(m, "tool_calls");
    append(c, m, origin);
    json_decref(content);
    json_decref(m);
}

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role == NULL ? "" : role;
}

static bool is_result(const json_t *message) {
    return strcmp(role_of(message), "tool") == 0 || strcmp(role_of(message), "function") == 0;
}

/* All results that follow each other, from message i on; the index behind them. */
static size_t join_results(copy *c, size_t i) {
    buf text = {0};
    size_t from = i;
    for (const json_t *m; m = json_array_get(c->messages, i), is_result(m); i++) {
        buf_add_str(&text, text.n > 0 ? "\n<tool_response>\n" : "<tool_response>\n");
        call_write_content(json_object_get(m, "content"), &text);
        buf_add_str(&text, "\n</tool_response>");
    }
    append_text(c, NULL, "user", &text, (json_int_t)from);
    buf_deinit(&text);
    return i;
}

static void write_calls(copy *c, json_t *m, size_t i) {
    buf text = {0};
    call_write_content(json_object_get(m, "content"), &text);
    if (text.n > 0) buf_add_char(&text, '\n');
    call_write(c->f, json_object_get(m, "tool_calls"), &text);
    append_text(c, m, "assistant", &text, (json_int_t)i);
    buf_deinit(&text);
}

/* Is it of the assistant, with calls that the template does not write? */
static bool loses_calls(const call_format *f, const json_t *m) {
    const json_t *content = json_object_get(m, "content");
    bool with_text = json_string_length(content) > 0 || json_array_size(content) > 0;
    return json_array_size(json_object_get(m, "tool_calls")) > 0 &&
           (f->loses_calls || (f->loses_calls_beside_text && with_text));
}

/* `before`: a text in front of its own; NULL: none.  The index of the next message. */
static size_t convert(copy *c, size_t i, const buf *before) {
    json_t *m = json_array_get(c->messages, i);
    if (c->f->loses_calls && c->f->prompted && is_result(m)) return join_results(c, i);
    if (loses_calls(c->f, m)) {
        write_calls(c, m, i);
    } else if (before != NULL) {
        buf text = {0};
        buf_add(&text, before->p, before->n);
        buf_add_str(&text, "\n\n");
        call_write_content(json_object_get(m, "content"), &text);
        append_text(c, m, role_of(m), &text, (json_int_t)i);
        buf_deinit(&text);
    } else {
        append(c, m, (json_int_t)i);
    }
    return i + 1;
}

json_t *call_format_messages(const call_format *f, const json_t *messages, const json_t *tools,
                             json_t **origins) {
    copy c = {.f = f, .messages = messages, .out = json_array(), .origins = json_array()};
    buf description = {0};
    c.ok = c.out != NULL && c.origins != NULL;
    if (f->prompted && json_array_size(tools) > 0) add_tools(f, &description, tools);
    bool told = description.n == 0;
    const char *holder = f->prompted_in_user ? "user" : "system";
    if (!told && !f->prompted_in_user &&
        strcmp(role_of(json_array_get(messages, 0)), holder) != 0) {
        append_text(&c, NULL, "system", &description, -1);
        told = true;
    }
    for (size_t i = 0; c.ok && i < json_array_size(messages);) {
        bool here = !told && strcmp(role_of(json_array_get(messages, i)), holder) == 0;
        i = convert(&c, i, here ? &description : NULL);
        told = told || here;
    }
    c.ok = c.ok && !description.failed;
    buf_deinit(&description);
    *origins = c.ok ? c.origins : NULL;
    if (c.ok) return c.out;
    json_decref(c.out);
    json_decref(c.origins);
    return NULL;
}
