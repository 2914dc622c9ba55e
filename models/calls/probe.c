/* probe.c - see probe.h. */
#include "calls/probe.h"

#include <string.h>

#include "chat/json_text.h"
#include "chat/template.h"

/* A tool for each name, of the kind that templates print. */
static const char tool_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"" PROBE_NAME_1 "\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"" PROBE_KEY_1
    "\":{\"type\":\"string\",\"description\":\"d\"},\"" PROBE_KEY_2
    "\":{\"type\":\"string\",\"description\":\"d\"}},\"required\":[\"" PROBE_KEY_1 "\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"" PROBE_NAME_2 "\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"" PROBE_KEY_2
    "\":{\"type\":\"string\",\"description\":\"d\"}},\"required\":[\"" PROBE_KEY_2 "\"]}}}]";

static json_t *parse(const char *text) {
    json_t *v = NULL;
    inferd_err ignored;
    return json_text_read(bytes_of(text), &v, &ignored) == INFERD_OK ? v : NULL;
}

/* `first` stands before the user's message, `message` behind it; both may be NULL. */
static bool render(prober *p, json_t *first, json_t *message, bool prompt, buf *out) {
    json_t *messages = json_array(), *user = json_object();
    chat_input in = {.messages = messages, .tools = p->tools, .add_generation_prompt = prompt};
    chat_text text = {0};
    inferd_err err = {0};
    bool ok = messages != NULL && user != NULL &&
              json_object_set_new(user, "role", json_string("user")) == 0 &&
              json_object_set_new(user, "content", json_string(PROBE_ASKED)) == 0 &&
              (first == NULL || json_array_append(messages, first) == 0) &&
              json_array_append(messages, user) == 0 &&
              (message == NULL || json_array_append(messages, message) == 0);
    if (p->tok == NULL) { // without a vocabulary the names of its special tokens are empty
        in.kwargs = json_pack("{ss,ss}", "bos_token", "", "eos_token", "");
        ok = ok && in.kwargs != NULL;
    }
    if (!ok) p->no_memory = true;
    if (ok && chat_try(p->t, p->tok, &in, &text, &err) != INFERD_OK) {
        p->no_memory |= err.status == INFERD_ENOMEM;
        ok = false;
    }
    if (ok) buf_add(out, text.text, text.n);
    chat_text_deinit(&text);
    json_decref(in.kwargs);
    json_decref(user);
    json_decref(messages);
    return ok && !out->failed;
}

/* The texts of two conversations part in the middle of a mark if both marks begin alike: go back to
 * where the mark begins. */
static size_t shared(bytes a, bytes b) {
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n]) n++;
    for (size_t i = n; i-- > 0 && n - i < 64 && a.p[i] != '>' && a.p[i] != '\n';)
        if (a.p[i] == '<') return i;
    return n;
}

/* The end of the user's turn is looked for behind its text: what stands before may depend on what
 * follows (tools before the last message). */
static void cut_base(prober *p, buf *text) {
    bytes base = {p->base.p, p->base.n}, all = {text->p, text->n}, asked = bytes_of(PROBE_ASKED);
    size_t in_base = bytes_find(base, asked, 0), in_text = bytes_find(all, asked, 0);
    size_t n = 0;
    if (in_base != SIZE_MAX && in_text != SIZE_MAX)
        n = in_text + shared(bytes_from(base, in_base), bytes_from(all, in_text));
    if (n > 0) memmove(text->p, text->p + n, text->n - n);
    text->n -= n;
}

bool probe_prompt(prober *p, buf *out) {
    buf_clear(out);
    if (!render(p, NULL, NULL, true, out)) return false;
    cut_base(p, out);
    return true;
}

bool probe_conversation(prober *p, json_t *first, buf *out) {
    return render(p, first, NULL, true, out);
}

bool probe_message(prober *p, json_t *message, buf *out) {
    buf_clear(out);
    bool ok = message != NULL && render(p, NULL, message, false, out);
    if (message == NULL) p->no_memory = true;
    json_decref(message);
    if (ok) cut_base(p, out);
    return ok;
}

bool prober_init(prober *p, const chat_template *t, const tokenizer *tok, json_t *tools) {
    *p = (prober){
        .t = t, .tok = tok, .tools = tools != NULL ? json_incref(tools) : parse(tool_text)};
    if (p->tools == NULL) {
        p->no_memory = true;
        return false;
    }
    return render(p, NULL, NULL, false, &p->base);
}

void prober_deinit(prober *p) {
    json_decref(p->tools);
    buf_deinit(&p->base);
}

json_t *probe_said(const char *content, const char *field, const char *thought) {
    json_t *m = json_object();
    if (m != NULL && json_object_set_new(m, "role", json_string("assistant")) == 0 &&
        json_object_set_new(m, "content", json_string(content)) == 0 &&
        (field == NULL || json_object_set_new(m, field, json_string(thought)) == 0))
        return m;
    json_decref(m);
    return NULL;
}

static bool add_call(json_t *calls, const char *id, const char *name, const char *arguments) {
    json_t *call = json_object(), *function = json_object();
    bool ok = call != NULL && function != NULL &&
              json_object_set_new(call, "id", json_string(id)) == 0 &&
              json_object_set_new(call, "type", json_string("function")) == 0 &&
              json_object_set(call, "function", function) == 0 &&
              json_object_set_new(function, "name", json_string(name)) == 0 &&
              json_object_set_new(function, "arguments", json_string(arguments)) == 0 &&
              json_array_append(calls, call) == 0;
    json_decref(function);
    json_decref(call);
    return ok;
}

json_t *probe_calls(const char *name_1, const char *arguments_1, const char *name_2,
                    const char *arguments_2) {
    json_t *m = probe_said("", NULL, NULL), *calls = json_array();
    bool ok = m != NULL && calls != NULL && add_call(calls, PROBE_ID_1, name_1, arguments_1) &&
              (name_2 == NULL || add_call(calls, PROBE_ID_2, name_2, arguments_2)) &&
              json_object_set(m, "tool_calls", calls) == 0;
    json_decref(calls);
    if (ok) return m;
    json_decref(m);
    return NULL;
}
