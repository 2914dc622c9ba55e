/* reasoning_name.c - the name under which a template reads the reasoning of earlier turns.
 *
 * Clients send it as reasoning_content or as reasoning, and templates read one of three names: the
 * text is given to them under the name that they read.  Some read it only beside a call. */
#include <string.h>

#include "calls/learn.h"
#include "calls/write.h"
#include "inferd/json_whole.h"

static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};

/* ---- what a template reads ---- */

/* The message of the assistant with reasoning under this name, and a call, or none. */
static json_t *make_message(const char *name, const char *content, bool with_call) {
    json_t *m =
        with_call ? probe_calls(PROBE_NAME_1, "{}", NULL, NULL) : probe_said("", NULL, NULL);
    if (m != NULL && json_object_set_new(m, "content", json_string(content)) == 0 &&
        json_object_set_new(m, name, json_string(PROBE_REASON)) == 0)
        return m;
    json_decref(m);
    return NULL;
}

static bool shows(prober *p, json_t *message) {
    buf text = {0};
    bool shown = probe_message(p, message, &text) &&
                 bytes_find((bytes){text.p, text.n}, bytes_of(PROBE_REASON), 0) != SIZE_MAX;
    buf_deinit(&text);
    return shown;
}

/* Some read it only where a variable of the request asks for reasoning: the usual name is taken if
 * the source has it. */
bool learn_reasoning_name(prober *p, bytes source, call_format *f) {
    for (size_t i = 0; i < INFERD_COUNT(names) && f->reasoning_name == NULL; i++) {
        bool beside_call = shows(p, make_message(names[i], "", true));
        if (!beside_call && !shows(p, make_message(names[i], PROBE_CONTENT, false))) continue;
        f->reasoning_name = names[i];
        f->reasoning_is_content =
            beside_call && !shows(p, make_message(names[i], PROBE_CONTENT, true));
    }
    if (f->reasoning_name == NULL && bytes_find(source, bytes_of(names[0]), 0) != SIZE_MAX)
        f->reasoning_name = names[0];
    return !p->no_memory;
}

/* ---- messages ---- */

static json_t *reasoning_of(const json_t *message) {
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        json_t *v = json_object_get(message, names[i]);
        if (json_string_length(v) > 0) return v;
    }
    return NULL;
}

/* Is there a text that the template does not read? */
static bool is_misnamed(const call_format *f, const json_t *message) {
    return json_string_length(json_object_get(message, f->reasoning_name)) == 0 &&
           reasoning_of(message) != NULL;
}

/* Does the template refuse both texts of this message? */
static bool has_both(const call_format *f, const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    return f->reasoning_is_content && reasoning_of(message) != NULL &&
           json_array_size(json_object_get(message, "tool_calls")) > 0 &&
           (json_string_length(content) > 0 || json_array_size(content) > 0);
}

/* The content goes behind the reasoning. */
static bool join(json_t *message, const char *name) {
    bytes thought = {json_string_value(reasoning_of(message)),
                     json_string_length(reasoning_of(message))};
    buf both = {0};
    buf_add(&both, thought.p, thought.n);
    buf_add_str(&both, "\n\n");
    call_write_content(json_object_get(message, "content"), &both);
    json_t *v = both.failed ? NULL : json_stringn_nocheck(both.p, both.n);
    buf_deinit(&both);
    return json_object_set_new(message, name, v) == 0 &&
           json_object_set_new(message, "content", json_string("")) == 0;
}

static json_t *rename_message(const call_format *f, json_t *message) {
    bool both = has_both(f, message);
    if (!both && !is_misnamed(f, message)) return json_incref(message);
    json_t *copy = json_copy_whole(message);
    if (copy != NULL &&
        (both ? join(copy, f->reasoning_name)
              : json_object_set(copy, f->reasoning_name, reasoning_of(message)) == 0))
        return copy;
    json_decref(copy);
    return NULL;
}

json_t *call_format_reasoned(const call_format *f, json_t *messages) {
    json_t *out = NULL, *m;
    size_t i;
    json_array_foreach(messages, i, m) {
        const char *role = json_string_value(json_object_get(m, "role"));
        if (f->reasoning_name == NULL || role == NULL || strcmp(role, "assistant") != 0) continue;
        if (!has_both(f, m) && !is_misnamed(f, m)) continue;
        if (out == NULL && (out = json_copy_whole(messages)) == NULL) return NULL;
        if (json_array_set_new(out, i, rename_message(f, m)) == 0) continue;
        json_decref(out);
        return NULL;
    }
    return out != NULL ? out : json_incref(messages);
}
