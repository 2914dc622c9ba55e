/* responses_read.c - see responses.h: the body of a request becomes that of a chat.
 *
 *   input         messages (responses_items.c)
 *   tools         functions; hosted ones are left out and named
 *   text.format   response_format, unchanged
 *   other fields  unchanged; the chat's table checks them, and responses_locate corrects the paths
 *                 in its errors */
#include "responses_read.h"

#include "api_params.h"
#include "api_tools.h"
#include "nearest.h"

void responses_leave_out(responses_reader *r, const char *what, const char *type) {
    char name[2 * API_QUOTE_BYTES];
    snprintf(name, sizeof name, "%s.%s", what, type);
    unknown_add(r->unknown, name);
}

/* ---- tools ---- */

/* The arguments of a custom tool, and the grammar that its input should have: it is shown to the
 * model, but not enforced. */
static void describe_custom(responses_reader *r, json_t *tool, json_t *function) {
    json_t *format = given(tool, "format"), *definition = given(format, "definition");
    bytes text = string_of(given(tool, "description"));
    put(r, function, "parameters",
        json_pack("{s:s,s:{s:{s:s}},s:[s],s:b}", "type", "object", "properties", "input", "type",
                  "string", "required", "input", "additionalProperties", 0));
    if (!json_is_string(definition)) return;
    responses_leave_out(r, "tools", "format");
    json_t *syntax = given(format, "syntax");
    put(r, function, "description",
        json_sprintf("%s\n\nThe input follows this grammar (%s):\n%s", text.n > 0 ? text.p : "",
                     json_is_string(syntax) ? json_string_value(syntax) : "text",
                     json_string_value(definition)));
}

/* Members of wrong types are found by the chat's check. */
static void add_tool(responses_reader *r, json_t *tool, json_t *space, const char *place) {
    static const char *const members[] = {"description", "parameters", "strict"};
    bool custom = is(json_object_get(tool, "type"), "custom");
    json_t *function = json_object(), *chat = json_object(), *name = given(tool, "name");
    json_t *flat = responses_function_name(name, space);
    for (size_t i = 0; i < (custom ? 1 : INFERD_COUNT(members)); i++)
        if (given(tool, members[i]) != NULL)
            put(r, function, members[i], json_incref(json_object_get(tool, members[i])));
    if (custom) describe_custom(r, tool, function);
    if (json_is_string(flat)) {
        json_t *known = json_object();
        put(r, known, "type", json_incref(json_object_get(tool, "type")));
        put(r, known, "name", json_incref(name));
        if (space != NULL) put(r, known, "namespace", json_incref(space));
        put(r, r->f->names, json_string_value(flat), known);
    }
    if (name != NULL) put(r, function, "name", flat);
    put(r, chat, "type", json_string("function"));
    put(r, chat, "function", function);
    append(r, r->tools, chat);
    append(r, r->f->places, json_string(place));
}

static bool read_tool(responses_reader *r, json_t *tool, json_t *space, const char *place) {
    json_t *type = given(tool, "type"), *inner = given(tool, "tools"), *one;
    char here[API_PARAM_BYTES];
    size_t i;
    if (!json_is_string(type)) {
        snprintf(here, sizeof here, "%s.type", place);
        return api_fail(r->err, json_is_object(tool) && type == NULL ? API_MISSING : API_BAD_VALUE,
                        json_is_object(tool) ? here : place,
                        "a tool must be an object with a string \"type\"");
    }
    if (is(type, "function") || is(type, "custom")) {
        add_tool(r, tool, space, place);
    } else if (is(type, "namespace") && space == NULL) {
        json_t *name = given(tool, "name");
        snprintf(here, sizeof here, "%s.%s", place, json_is_string(name) ? "tools" : "name");
        if (!json_is_string(name) || !json_is_array(inner))
            return api_fail(r->err, API_BAD_VALUE, here,
                            "a namespace needs a string \"name\" and an array \"tools\"");
        json_array_foreach(inner, i, one) {
            snprintf(here, sizeof here, "%s.tools[%zu]", place, i);
            if (!read_tool(r, one, name, here)) return false;
        }
    } else {
        responses_leave_out(r, "tools", json_string_value(type));
    }
    return true;
}

static bool read_tools(responses_reader *r) {
    json_t *tools = given(r->body, "tools"), *tool;
    char place[API_PARAM_BYTES];
    size_t i;
    if (tools != NULL && !json_is_array(tools))
        return api_fail(r->err, API_BAD_VALUE, "tools", "\"tools\" must be an array");
    json_array_foreach(tools, i, tool) {
        snprintf(place, sizeof place, "tools[%zu]", i);
        size_t n_before = json_array_size(r->tools);
        if (!read_tool(r, tool, NULL, place)) return false;
        if (json_array_size(r->tools) > n_before) append(r, r->shown, json_incref(tool));
        if (json_array_size(r->tools) > API_TOOLS_MAX)
            return api_fail(r->err, API_BAD_VALUE, "tools", "more tools than the limit %d",
                            API_TOOLS_MAX);
    }
    return true;
}

/* ---- the choice of tools ---- */

/* The function of the tool that a choice names; NULL: there is none. */
static const char *named_tool(const responses_reader *r, json_t *choice) {
    json_t *name = given(choice, "name"), *space = given(choice, "namespace"), *known;
    const char *flat;
    json_object_foreach(r->f->names, flat, known) {
        bool whole = space == NULL && is(name, flat);
        bool own = json_equal(name, json_object_get(known, "name")) &&
                   (space == NULL || json_equal(space, json_object_get(known, "namespace")));
        if (whole || own) return flat;
    }
    return NULL;
}

static json_t *function_choice(const char *flat) {
    return json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", flat);
}

static bool is_own(json_t *choice) {
    json_t *type = given(choice, "type");
    return is(type, "function") || is(type, "custom");
}

/* Hosted tools are left out of the list, too. */
static bool read_allowed(responses_reader *r, json_t *choice) {
    json_t *tools = given(choice, "tools"), *mode = given(choice, "mode"), *one, *list;
    size_t i;
    if (json_array_size(tools) == 0)
        return api_fail(r->err, API_BAD_VALUE, "tool_choice.tools",
                        "\"tool_choice.tools\" must be an array that is not empty");
    list = json_array();
    json_array_foreach(tools, i, one) {
        const char *flat = is_own(one) ? named_tool(r, one) : NULL;
        if (flat != NULL) {
            append(r, list, function_choice(flat));
            continue;
        }
        char param[API_PARAM_BYTES];
        snprintf(param, sizeof param, "tool_choice.tools[%zu]", i);
        if (json_is_string(given(one, "type")) && !is_own(one)) continue;
        json_decref(list);
        return api_fail(r->err, API_BAD_VALUE, param, "\"%s\" must name one of \"tools\"", param);
    }
    if (json_array_size(list) == 0) {
        r->no_memory |= list == NULL;
        json_decref(list);
        put(r, r->chat, "tool_choice", json_string("none"));
        return true;
    }
    json_t *allowed = json_object();
    put(r, allowed, "tools", list);
    if (mode != NULL) put(r, allowed, "mode", json_incref(mode));
    put(r, r->chat, "tool_choice",
        json_pack("{s:s,s:o}", "type", "allowed_tools", "allowed_tools", allowed));
    return true;
}

static bool read_choice(responses_reader *r) {
    json_t *choice = given(r->body, "tool_choice"), *type = given(choice, "type");
    bool left_out = json_array_size(r->tools) == 0 && json_array_size(given(r->body, "tools")) > 0;
    if (choice == NULL) return true;
    if (is(choice, "none") || is(choice, "auto") || is(choice, "required")) {
        if (!left_out) put(r, r->chat, "tool_choice", json_incref(choice));
        return true;
    }
    if (!json_is_string(type))
        return api_fail(r->err, API_BAD_VALUE, "tool_choice",
                        "\"tool_choice\" must be \"none\", \"auto\", \"required\", or an object "
                        "with a string \"type\"");
    if (is(type, "allowed_tools")) return read_allowed(r, choice);
    if (json_array_size(given(r->body, "tools")) == 0)
        return api_fail(r->err, API_BAD_VALUE, "tool_choice", "\"tool_choice\" needs \"tools\"");
    if (!is_own(choice)) {
        responses_leave_out(r, "tool_choice", json_string_value(type));
        return true;
    }
    const char *flat = named_tool(r, choice);
    if (flat == NULL)
        return api_fail(r->err, API_BAD_VALUE, "tool_choice.name",
                        "\"tool_choice.name\" must be the name of one of \"tools\"");
    put(r, r->chat, "tool_choice", function_choice(flat));
    return true;
}

/* ---- fields ---- */

/* Read above and below; the chat's fields of the same names; without effect; refused, because they
 * need what is not kept. */
enum { OWN, PASSED, KEPT, STATE, FIELD_KINDS, FIELDS_MAX = 24 };
static const char *const fields[FIELD_KINDS][FIELDS_MAX] = {
    [OWN] = {"input", "instructions", "tools", "tool_choice", "text", "reasoning", "include",
             "metadata", "max_output_tokens", "background"},
    [PASSED] = {"model", "stream", "temperature", "top_p", "parallel_tool_calls", "service_tier",
                /* of chats, not of OpenAI's /v1/responses */
                "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
                "seed", "stop", "ignore_eos", "min_tokens", "thinking_token_budget",
                "chat_template_kwargs", "priority", "cache_salt", "cache_prompt", "keep_alive"},
    [KEPT] = {"store", "truncation", "top_logprobs", "max_tool_calls", "stream_options",
              "context_management", "client_metadata", "user", "safety_identifier",
              "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"},
    [STATE] = {"previous_response_id", "conversation", "prompt"}};

static bool read_field(responses_reader *r, const char *name, json_t *value) {
    nearest near = {0};
    for (int i = 0; i < FIELD_KINDS * FIELDS_MAX; i++) {
        int kind = i / FIELDS_MAX;
        const char *known = fields[kind][i % FIELDS_MAX];
        if (known == NULL) continue;
        nearest_try(&near, name, known);
        if (strcmp(name, known) != 0) continue;
        if (kind == PASSED) put(r, r->chat, name, json_incref(value));
        if (kind != STATE || json_is_null(value)) return true;
        return api_fail(
            r->err, API_UNSUPPORTED, name,
            "\"%s\" is not supported: no state is kept between requests; send the whole "
            "conversation as \"input\"",
            name);
    }
    unknown_field *f = unknown_add(r->unknown, name);
    if (f != NULL) f->meant = nearest_word(&near);
    return true;
}

static bool fail_type(const responses_reader *r, const char *name, const char *must) {
    return api_fail(r->err, API_BAD_VALUE, name, "\"%s\" must be %s", name, must);
}

static bool read_format(responses_reader *r) {
    json_t *text = given(r->body, "text"), *format = given(text, "format");
    json_t *verbosity = given(text, "verbosity");
    if (text != NULL && !json_is_object(text)) return fail_type(r, "text", "an object");
    if (verbosity != NULL) put(r, r->chat, "verbosity", json_incref(verbosity));
    if (format == NULL) return true;
    if (is(given(format, "type"), "json_schema") && !json_is_object(given(format, "schema")))
        return api_fail(r->err, API_MISSING, "text.format.schema",
                        "\"text.format.schema\" is required: the JSON Schema");
    put(r, r->chat, "response_format", json_incref(format));
    return true;
}

static bool read_include(responses_reader *r) {
    json_t *include = given(r->body, "include"), *one;
    size_t i;
    if (include != NULL && !json_is_array(include))
        return fail_type(r, "include", "an array of strings");
    json_array_foreach(include, i, one) {
        if (!json_is_string(one)) return fail_type(r, "include", "an array of strings");
        if (is(one, "reasoning.encrypted_content")) r->f->wants_encrypted = true;
        if (is(one, "message.output_text.logprobs"))
            responses_leave_out(r, "include", json_string_value(one));
    }
    return true;
}

static bool read_metadata(responses_reader *r) {
    json_t *metadata = given(r->body, "metadata"), *value;
    const char *key;
    bool ok = metadata == NULL || json_is_object(metadata);
    json_object_foreach(metadata, key, value) ok = ok && json_is_string(value);
    return ok ? true : fail_type(r, "metadata", "an object of strings");
}

static bool read_fields(responses_reader *r) {
    json_t *max = given(r->body, "max_output_tokens"), *thought = given(r->body, "reasoning");
    json_t *background = given(r->body, "background"), *value;
    const char *name;
    json_object_foreach(r->body, name, value) if (!read_field(r, name, value)) return false;
    if (background != NULL && !json_is_false(background))
        return api_fail(r->err, API_UNSUPPORTED, "background",
                        "\"background\" is not supported: nothing is kept after the request");
    if (max != NULL) put(r, r->chat, "max_tokens", json_incref(max));
    if (thought != NULL && !json_is_object(thought)) return fail_type(r, "reasoning", "an object");
    if (given(thought, "effort") != NULL)
        put(r, r->chat, "reasoning_effort", json_incref(json_object_get(thought, "effort")));
    return read_format(r) && read_include(r) && read_metadata(r);
}

/* Into memory that is there: json_dumps leaves out what its own memory is short for. */
void responses_add_json(buf *out, const json_t *v) {
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY, n = json_dumpb(v, NULL, 0, flags);
    if (!buf_reserve(out, n)) return;
    out->failed = n == 0 || json_dumpb(v, out->p + out->n, n, flags) != n;
    out->n += n;
}

/* ---- what the answer repeats ---- */

/* The field of the body; absent, or too long: this JSON. */
static void echo_field(responses_reader *r, const char *name, const char *otherwise) {
    json_t *v = strcmp(name, "tools") == 0 ? r->shown : given(r->body, name);
    buf *out = &r->f->echo, text = {0};
    if (v != NULL) responses_add_json(&text, v);
    buf_add_format(out, ",\"%s\":", name);
    if (v == NULL || text.n + out->n > RESPONSES_ECHO_BYTES_MAX)
        buf_add_str(out, otherwise);
    else
        buf_add(out, text.p, text.n);
    out->failed |= text.failed;
    buf_deinit(&text);
}

static void write_echo(responses_reader *r) {
    static const struct {
        const char *name, *otherwise;
    } rows[] = {{"temperature", "null"},
                {"top_p", "null"},
                {"max_output_tokens", "null"},
                {"parallel_tool_calls", "true"},
                {"tool_choice", "\"auto\""},
                {"reasoning", "{\"effort\":null,\"summary\":null}"},
                {"metadata", "{}"},
                {"instructions", "null"},
                {"tools", "[]"}};
    json_t *text = given(r->body, "text"), *given_format = given(text, "format");
    buf *out = &r->f->echo, format = {0};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) echo_field(r, rows[i].name, rows[i].otherwise);
    if (given_format == NULL)
        buf_add_str(&format, "{\"type\":\"text\"}");
    else
        responses_add_json(&format, given_format);
    bool fits = format.n <= RESPONSES_ECHO_BYTES_MAX, verbose = given(text, "verbosity") != NULL;
    buf_add_str(out, fits ? ",\"text\":{\"format\":" : ",\"text\":{");
    if (fits) buf_add(out, format.p, format.n);
    if (verbose) buf_add_str(out, fits ? ",\"verbosity\":" : "\"verbosity\":");
    if (verbose) responses_add_json(out, given(text, "verbosity"));
    buf_add_char(out, '}');
    out->failed |= format.failed;
    buf_deinit(&format);
}

/* ---- the whole ---- */

bool responses_read(json_t *body, json_t **chat, answer_form **out, unknown_fields *unknown,
                    api_error *err) {
    responses_form *f = calloc(1, sizeof *f);
    if (f == NULL) return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    f->base.type = &responses_form_type;
    *out = &f->base;
    f->names = json_object();
    f->places = json_array();
    responses_reader r = {.f = f,
                          .body = body,
                          .chat = json_object(),
                          .messages = json_array(),
                          .tools = json_array(),
                          .shown = json_array(),
                          .unknown = unknown,
                          .err = err};
    put(&r, r.chat, "messages", r.messages);
    put(&r, r.chat, "tools", r.tools);
    bool ok = !r.no_memory && f->names != NULL && f->places != NULL;
    if (!ok) r.no_memory = true;
    ok = ok && read_fields(&r) && responses_read_input(&r) && read_tools(&r) &&
         (r.no_memory || read_choice(&r)); // names may be missing
    if (ok) write_echo(&r);
    if (ok && (r.no_memory || f->echo.failed)) ok = false;
    if (!ok && err->fault == API_OK)
        api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    buf_deinit(&r.text);
    buf_deinit(&r.reasoning);
    json_decref(r.calls);
    json_decref(r.shown);
    if (ok)
        *chat = r.chat;
    else
        json_decref(r.chat);
    return ok;
}

/* Tells `at` from the paths below: "tools[3].function.name" is one of "tools[3].function". */
static bool is_below(const char *param, const char *at) {
    size_t n = strlen(at);
    return strncmp(param, at, n) == 0 && (param[n] == 0 || param[n] == '.' || param[n] == '[');
}

static void rename_param(api_error *err, const char *theirs, const char *ours) {
    char param[API_PARAM_BYTES], message[API_MESSAGE_BYTES];
    size_t n = strlen(theirs);
    snprintf(param, sizeof param, "%s%s", ours, err->param + n);
    if (err->message[0] == '"' && strncmp(err->message + 1, theirs, n) == 0 &&
        err->message[n + 1] == '"') {
        snprintf(message, sizeof message, "\"%s%s", ours, err->message + n + 1);
        memcpy(err->message, message, sizeof message);
    }
    memcpy(err->param, param, sizeof param);
}

void responses_locate(const answer_form *form, api_error *err) {
    static const struct {
        const char *theirs, *ours;
    } rows[] = {{"messages", "input"},
                {"max_tokens", "max_output_tokens"},
                {"reasoning_effort", "reasoning.effort"},
                {"verbosity", "text.verbosity"},
                {"response_format", "text.format"},
                {"tool_choice.function.name", "tool_choice.name"},
                {"tool_choice.allowed_tools.tools", "tool_choice.tools"}};
    const responses_form *f = (const responses_form *)form;
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        if (!is_below(err->param, rows[i].theirs)) continue;
        rename_param(err, rows[i].theirs, rows[i].ours);
        return;
    }
    unsigned idx;
    char theirs[API_PARAM_BYTES];
    if (sscanf(err->param, "tools[%u]", &idx) != 1) return;
    snprintf(theirs, sizeof theirs, "tools[%u].function", idx);
    const char *place = json_string_value(json_array_get(f->places, idx));
    if (place != NULL && is_below(err->param, theirs)) rename_param(err, theirs, place);
}
