/* messages.c - the fields of a body of /v1/messages; see messages.h.
 *
 * Each field that a chat has, too, is checked there (api_params.h). */
#include "messages.h"

#include <string.h>

typedef struct reading {
    json_t *body, *chat;
    unknown_fields *unknown;
    api_error *err;
} reading;

static json_t *given(const json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static bool fail_value(const reading *r, const char *name, const char *must) {
    return api_fail(r->err, API_BAD_VALUE, name, "\"%s\" must be %s", name, must);
}

static bool no_memory(const reading *r) {
    return api_fail(r->err, API_INTERNAL, NULL, "the server is short of memory");
}

/* Takes the reference; NULL: there was no memory for it. */
static bool set(const reading *r, const char *name, json_t *v) {
    return json_object_set_new(r->chat, name, v) == 0 ? true : no_memory(r);
}

/* ---- tools ---- */

/* Tools that Anthropic's servers run, or that its models know without a schema, have a type of
 * their own and are left out. */
static bool read_tool(const reading *r, json_t *tools, const json_t *tool, size_t i) {
    static const char *const names[][2] = {{"name", "name"},
                                           {"description", "description"},
                                           {"strict", "strict"},
                                           {"input_schema", "parameters"}};
    const char *type = json_string_value(given(tool, "type"));
    char name[API_PARAM_BYTES];
    if (type != NULL && strcmp(type, "custom") != 0) {
        snprintf(name, sizeof name, "tools.%s", type);
        unknown_add(r->unknown, name);
        return true;
    }
    snprintf(name, sizeof name, "tools[%zu].input_schema", i);
    if (!json_is_object(given(tool, "input_schema")))
        return fail_value(r, name, "a JSON Schema, an object");
    json_t *function = json_object();
    bool ok = true;
    for (size_t k = 0; k < INFERD_COUNT(names); k++) {
        json_t *v = given(tool, names[k][0]);
        ok = (v == NULL || json_object_set(function, names[k][1], v) == 0) && ok;
    }
    json_t *made = json_pack("{s:s,s:o}", "type", "function", "function", function);
    return json_array_append_new(tools, made) == 0 && ok ? true : no_memory(r);
}

static bool read_tools(const reading *r, const json_t *v) {
    json_t *tools = json_array(), *tool;
    size_t i;
    bool ok = json_is_array(v) || fail_value(r, "tools", "an array");
    if (ok) json_array_foreach(v, i, tool) ok = ok && read_tool(r, tools, tool, i);
    if (ok) return set(r, "tools", tools);
    json_decref(tools);
    return false;
}

static bool read_choice(const reading *r, const json_t *v) {
    static const char *const types[] = {"auto", "any", "none", "tool"};
    static const char *const modes[] = {"auto", "required", "none"};
    const char *type = json_string_value(given(v, "type"));
    const char *name = json_string_value(given(v, "name"));
    size_t i = 0;
    while (type != NULL && i < INFERD_COUNT(types) && strcmp(types[i], type) != 0) i++;
    if (type == NULL || i == INFERD_COUNT(types))
        return fail_value(r, "tool_choice", "an object of type auto, any, tool or none");
    if (json_is_true(given(v, "disable_parallel_tool_use")) &&
        !set(r, "parallel_tool_calls", json_false()))
        return false;
    if (i < INFERD_COUNT(modes)) return set(r, "tool_choice", json_string(modes[i]));
    if (name == NULL) return fail_value(r, "tool_choice.name", "a string");
    return set(r, "tool_choice",
               json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name));
}

/* ---- reasoning and form ---- */

/* Templates call the switch by one of two names.  "adaptive": the model decides. */
static bool read_thinking(const reading *r, const json_t *v) {
    const char *type = json_string_value(given(v, "type"));
    json_t *budget = given(v, "budget_tokens"), *kwargs = given(r->chat, "chat_template_kwargs");
    if (type == NULL) return fail_value(r, "thinking.type", "a string");
    bool off = strcmp(type, "disabled") == 0, ok = true;
    kwargs = json_is_object(kwargs) ? json_copy(kwargs) : json_object();
    static const char *const switches[] = {"enable_thinking", "thinking"};
    for (size_t i = 0; i < INFERD_COUNT(switches); i++)
        if (given(kwargs, switches[i]) == NULL)
            ok = json_object_set_new(kwargs, switches[i], json_boolean(!off)) == 0 && ok;
    if (!set(r, "chat_template_kwargs", kwargs)) return false;
    if (!ok) return no_memory(r);
    return off || budget == NULL || set(r, "thinking_token_budget", json_incref(budget));
}

static bool read_output(const reading *r, const json_t *v) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    const json_t *effort = given(v, "effort"), *format = given(v, "format");
    const char *word = json_string_value(effort), *type = json_string_value(given(format, "type"));
    if (!json_is_object(v)) return fail_value(r, "output_config", "an object");
    size_t i = 0;
    while (word != NULL && i < INFERD_COUNT(efforts) && strcmp(efforts[i], word) != 0) i++;
    if (effort != NULL && word == NULL) return fail_value(r, "output_config.effort", "a string");
    /* A word of a later version is a degree above those of today. */
    if (word != NULL && !set(r, "reasoning_effort", json_string(i < 7 ? word : "max")))
        return false;
    if (format == NULL) return true;
    if (type == NULL || strcmp(type, "json_schema") != 0 || given(format, "schema") == NULL)
        return fail_value(r, "output_config.format", "of type json_schema, with a schema");
    return set(r, "response_format",
               json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name",
                         "output", "schema", given(format, "schema")));
}

/* The client would send the next turn without those before it.  Told that there are no threads
 * (messages_write_error), it sends the whole conversation. */
static bool read_thread(const reading *r, const json_t *v) {
    (void)v;
    return api_fail(
        r->err, API_UNSUPPORTED, MESSAGES_THREAD,
        "\"thread\" is not supported: no state is kept between requests; send the whole "
        "conversation as \"messages\"");
}

/* ---- the body ---- */

static bool skip(const reading *r, const json_t *v) {
    (void)r, (void)v;
    return true;
}

static const struct {
    const char *name, *of_chat; // NULL: `read`
    bool (*read)(const reading *r, const json_t *v);
} fields[] = {{"model", "model", NULL},
              {"max_tokens", "max_tokens", NULL},
              {"temperature", "temperature", NULL},
              {"top_p", "top_p", NULL},
              {"top_k", "top_k", NULL},
              {"stop_sequences", "stop", NULL},
              {"stream", "stream", NULL},
              /* of this server: */
              {"seed", "seed", NULL},
              {"priority", "priority", NULL},
              {"cache_salt", "cache_salt", NULL},
              {"keep_alive", "keep_alive", NULL},
              {"chat_template_kwargs", "chat_template_kwargs", NULL},
              {"tools", NULL, read_tools},
              {"tool_choice", NULL, read_choice},
              {"thinking", NULL, read_thinking}, // behind chat_template_kwargs, which it changes
              {"output_config", NULL, read_output},
              {MESSAGES_THREAD, NULL, read_thread},
              {"system", NULL, skip}, // with the messages
              {"messages", NULL, skip},
              /* without effect: */
              {"metadata", NULL, skip},
              {"service_tier", NULL, skip},
              {"context_management", NULL, skip},
              {"cache_control", NULL, skip},
              {"betas", NULL, skip},
              {"anthropic_version", NULL, skip}};

static void find_unknown(const reading *r) {
    const char *key;
    json_t *v;
    json_object_foreach(r->body, key, v) {
        size_t i = 0;
        while (i < INFERD_COUNT(fields) && strcmp(fields[i].name, key) != 0) i++;
        if (i == INFERD_COUNT(fields)) unknown_add(r->unknown, key);
    }
}

/* A conversation that ends with text of the assistant: the answer goes on from there. */
static bool continue_last(const reading *r, json_t *turns) {
    json_t *last = json_array_get(turns, json_array_size(turns) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role == NULL || strcmp(role, "assistant") != 0 || given(last, "tool_calls") != NULL)
        return true;
    return set(r, "continue_final_message", json_true());
}

static bool read_fields(const reading *r, bool counted) {
    find_unknown(r);
    for (size_t i = 0; i < INFERD_COUNT(fields); i++) {
        json_t *v = given(r->body, fields[i].name);
        if (v == NULL) continue;
        if (fields[i].read != NULL ? !fields[i].read(r, v)
                                   : !set(r, fields[i].of_chat, json_incref(v)))
            return false;
    }
    if (!counted && given(r->body, "max_tokens") == NULL)
        return api_fail(r->err, API_MISSING, "max_tokens", "\"max_tokens\" is required");
    json_t *messages = given(r->body, "messages");
    if (messages == NULL)
        return api_fail(r->err, API_MISSING, "messages", "\"messages\" is required");
    json_t *turns = messages_read_turns(given(r->body, "system"), messages, r->unknown, r->err);
    return turns != NULL && set(r, "messages", turns) && continue_last(r, turns);
}

bool messages_read(json_t *body, bool counted, json_t **chat, unknown_fields *unknown,
                   api_error *err) {
    reading r = {.body = body, .chat = json_object(), .unknown = unknown, .err = err};
    if (r.chat != NULL && read_fields(&r, counted)) {
        *chat = r.chat;
        return true;
    }
    json_decref(r.chat);
    *chat = NULL;
    return api_fail(err, API_INTERNAL, NULL, "the server is short of memory"); // unless it failed
}
