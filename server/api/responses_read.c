/* responses_read.c - see responses.h: the body of a request becomes that of a chat.
 *
 *   input         messages (responses_items.c)
 *   tools         functions; hosted ones are left out and named
 *   text.format   response_format, unchanged */
#include "custom_tool.h"
#include "json_in.h"
#include "responses.h"

/* ---- tools ---- */

json_t *responses_function_name(form_reader *r, json_t *name, json_t *space) {
    bytes of = string_of(space);
    if (!json_is_string(name) || of.n == 0) return json_incref(name);
    bool ends = of.p[of.n - 1] == '_';
    json_t *flat = json_sprintf("%s%s%s", of.p, ends ? "" : "__", json_string_value(name));
    if (flat == NULL) r->no_memory = true;
    return flat;
}

/* A grammar that is only shown to the model is named. */
static void describe_custom(form_reader *r, json_t *tool, json_t *function) {
    custom_grammar kind = custom_tool_describe(function, given(tool, "format"));
    if (kind == CUSTOM_SHOWN) form_leave_out(r, "tools", "format");
    r->no_memory |= kind == CUSTOM_NO_MEMORY;
}

static bool add_tool(form_reader *r, json_t *tool) {
    json_t *type = given(tool, "type"), *name = given(tool, "name");
    json_t *space = responses_form_of(r)->space, *flat = responses_function_name(r, name, space);
    json_t *function = form_add_function(r, json_incref(flat), tool, "parameters");
    if (function != NULL && is(type, "custom")) describe_custom(r, tool, function);
    if (function != NULL && json_is_string(flat))
        put(r, responses_form_of(r)->names, json_string_value(flat),
            json_pack("{s:O,s:O,s:O*}", "type", type, "name", name, "namespace", space));
    json_decref(flat);
    return function != NULL;
}

static bool read_tool(form_reader *r, json_t *tool);

static bool read_namespace(form_reader *r, json_t *tool) {
    char path[API_PARAM_BYTES];
    json_t *tools = given(tool, "tools");
    if (!form_need_string(r, tool, "name")) return false;
    if (!json_is_array(tools)) return form_bad(r, "tools", tools, "must be an array");
    snprintf(path, sizeof path, "%.64s.tools", r->at);
    responses_form_of(r)->space = given(tool, "name");
    bool ok = form_each(r, tools, path, read_tool);
    responses_form_of(r)->space = NULL;
    return ok;
}

static bool read_tool(form_reader *r, json_t *tool) {
    json_t *type = given(tool, "type");
    if (!form_need_string(r, tool, "type")) return false;
    if (is(type, "namespace") && responses_form_of(r)->space == NULL)
        return read_namespace(r, tool); // they are in no other one
    if (is(type, "function") || is(type, "custom")) return add_tool(r, tool);
    form_leave_out(r, "tools", json_string_value(type));
    return true;
}

static bool read_tools(form_reader *r, json_t *tools) {
    return form_each(r, tools, "tools", read_tool);
}

/* ---- the choice of tools ---- */

static bool is_own(const json_t *tool) {
    const json_t *type = given(tool, "type");
    return is(type, "function") || is(type, "custom");
}

/* Of the tools in namespaces, by their own names, which a choice may give alone: their functions.
 */
static json_t *own_names(form_reader *r) {
    json_t *own = json_object(), *tool;
    const char *flat;
    json_object_foreach(responses_form_of(r)->names, flat, tool)
        put(r, own, json_string_value(given(tool, "name")), json_string(flat));
    return own;
}

/* The choice of the function of the tool that this one names; `own`: own_names.  The chat's check
 * finds a name that no tool has. */
static json_t *chosen(form_reader *r, const json_t *own, const json_t *choice) {
    json_t *space = given(choice, "namespace"), *names = responses_form_of(r)->names;
    json_t *flat = responses_function_name(r, given(choice, "name"), space);
    const char *name = json_is_string(flat) ? json_string_value(flat) : "";
    const json_t *other = json_object_get(own, name);
    if (space == NULL && json_object_get(names, name) == NULL && other != NULL)
        name = json_string_value(other);
    json_t *as_chat = form_choice(name);
    json_decref(flat);
    return as_chat;
}

/* Hosted tools are left out of the list, too. */
static bool read_allowed(form_reader *r, json_t *own, json_t *choice) {
    json_t *tools = given(choice, "tools"), *list, *one;
    size_t i;
    if (!form_check_length(r, "tools", tools)) return false;
    list = json_array();
    json_array_foreach(tools, i, one) {
        bool hosted = json_is_string(given(one, "type")) && !is_own(one);
        if (!hosted) append(r, list, chosen(r, own, one));
    }
    bool all_hosted = json_array_size(list) == 0 && json_array_size(tools) > 0;
    put(r, r->chat, "tool_choice",
        all_hosted ? json_string("none")
                   : json_pack("{s:s,s:{s:O,s:O*}}", "type", "allowed_tools", "allowed_tools",
                               "tools", list, "mode", given(choice, "mode")));
    json_decref(list);
    return true;
}

static bool read_choice(form_reader *r, json_t *choice) {
    bool asked = json_array_size(given(r->body, "tools")) > 0;
    json_t *type = json_is_object(choice) ? given(choice, "type") : choice;
    if (form_leaves_out_choice(r, type, NULL)) return true;
    if (!json_is_object(choice)) {
        put(r, r->chat, "tool_choice", json_incref(choice));
        return true;
    }
    if (!form_need_string(r, choice, "type")) return false;
    if (!asked) return form_bad(r, "", choice, "needs \"tools\"");
    json_t *own = own_names(r);
    bool ok = true;
    if (is(type, "allowed_tools"))
        ok = read_allowed(r, own, choice);
    else if (is_own(choice))
        put(r, r->chat, "tool_choice", chosen(r, own, choice));
    else
        form_leave_out(r, "tool_choice", json_string_value(type));
    json_decref(own);
    return ok;
}

/* ---- other fields ---- */

static bool read_store(form_reader *r, json_t *v) {
    if (json_is_true(v)) return true; // as without it
    response_draft_destroy(responses_form_of(r)->draft);
    responses_form_of(r)->draft = NULL;
    return true;
}

static bool read_format(form_reader *r, json_t *format) {
    json_t *schema = given(format, "schema");
    if (is(given(format, "type"), "json_schema") && !json_is_object(schema))
        return form_bad(r, "schema", schema, "must be a JSON Schema, an object");
    put(r, r->chat, "response_format", json_incref(format));
    return true;
}

static bool read_include(form_reader *r, json_t *include) {
    json_t *one;
    size_t i;
    bool ok = json_is_array(include);
    json_array_foreach(include, i, one) {
        ok = ok && json_is_string(one);
        if (is(one, "reasoning.encrypted_content")) responses_form_of(r)->wants_encrypted = true;
        if (is(one, "message.output_text.logprobs"))
            form_leave_out(r, "include", json_string_value(one));
    }
    return ok ? true : form_bad(r, "", include, "must be an array of strings");
}

/* It is repeated in three events, so it has OpenAI's bounds. */
static bool read_metadata(form_reader *r, json_t *metadata) {
    json_t *value;
    const char *key;
    bool ok = json_object_size(metadata) <= RESPONSES_METADATA_MAX;
    json_object_foreach(metadata, key, value) {
        ok = ok && count_characters(key) <= RESPONSES_METADATA_KEY_MAX && json_is_string(value) &&
             count_characters(json_string_value(value)) <= RESPONSES_METADATA_VALUE_MAX;
    }
    return ok ? true
              : form_bad(r, "", metadata,
                         "must be an object of at most 16 strings of up to 512 characters, with "
                         "names of up to 64");
}

static const char *const same[] = {
    "model", "stream", "temperature", "top_p", "parallel_tool_calls", "service_tier",
    /* of chats, not of OpenAI's /v1/responses */
    "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop",
    "ignore_eos", "min_tokens", "thinking_token_budget", "chat_template_kwargs", "priority",
    "cache_salt", "cache_prompt", "keep_alive", NULL};
static const char *const ignored[] = {"truncation",
                                      "top_logprobs",
                                      "max_tool_calls",
                                      "stream_options",
                                      "context_management",
                                      "client_metadata",
                                      "user",
                                      "safety_identifier",
                                      "prompt_cache_key",
                                      "prompt_cache_options",
                                      "prompt_cache_retention",
                                      NULL};

#define NO_STATE .kind = FORM_REFUSED, .why = "send the whole conversation as \"input\""
static const form_field rows[] = {
    {"max_output_tokens", "max_tokens", FORM_ANY},
    {"reasoning.effort", "reasoning_effort", FORM_ANY},
    {"text.verbosity", "verbosity", FORM_ANY},
    {"text.format", "response_format", FORM_ANY, read_format},
    {"include", NULL, FORM_ARRAY, read_include},
    {"metadata", NULL, FORM_OBJECT, read_metadata},
    {"background", .kind = FORM_REFUSED, .why = "a request ends with its connection"},
    {"conversation", NO_STATE},
    {"prompt", NO_STATE},
    {"store", NULL, FORM_BOOL, read_store}, // before the items, which are kept
    {"instructions", NULL, FORM_STRING, responses_read_instructions},
    {"previous_response_id", NULL, FORM_STRING, responses_read_previous},
    {"input", "messages", FORM_ANY, responses_read_input, .required = true},
    {"tools", NULL, FORM_ARRAY, read_tools},
    {"tool_choice", NULL, FORM_ANY, read_choice}, // behind the tools that it names
    {"tool_choice.name", "tool_choice.function.name", FORM_PART},
    {"tool_choice.tools", "tool_choice.allowed_tools.tools", FORM_PART}};

static const form_fields fields = {same, ignored, rows, INFERD_COUNT(rows)};

void responses_locate(const answer_form *f, api_error *err) {
    form_locate(f, &fields, err);
}

/* ---- what the answer repeats ---- */

/* Members of the answer and what they are for a request without them.  A long list of tools is not
 * repeated; a given object has the members that it lacks. */
static const char defaults[] =
    "{\"temperature\":null,\"top_p\":null,\"max_output_tokens\":null,\"instructions\":null,"
    "\"previous_response_id\":null,\"parallel_tool_calls\":true,\"tool_choice\":\"auto\","
    "\"tools\":[],\"reasoning\":{\"effort\":null,\"summary\":null},\"metadata\":{},"
    "\"text\":{\"format\":{\"type\":\"text\"}}}";

static void echo_value(form_reader *r, json_t *echo, const char *name, json_t *v) {
    json_t *otherwise = json_object_get(echo, name);
    bool objects = json_is_object(otherwise);
    json_t *whole = objects ? json_copy_whole(otherwise) : json_incref(v);
    if (objects && json_object_update(whole, v) != 0) r->no_memory = true;
    if (!json_is_array(v) || json_dumpb(v, NULL, 0, JSON_COMPACT) <= RESPONSES_TOOLS_BYTES_MAX)
        put(r, echo, name, json_incref(whole));
    json_decref(whole);
}

static void write_echo(form_reader *r) {
    responses_form *f = responses_form_of(r);
    json_t *echo = NULL, *tools = json_array(), *v;
    json_in_parse((bytes){defaults, strlen(defaults)}, &json_limits_default, &echo, NULL);
    const char *name;
    size_t i;
    json_array_foreach(given(r->body, "tools"), i, v) {
        bool shown = is_own(v) || is(given(v, "type"), "namespace"); // hosted ones were left out
        if (shown) append(r, tools, json_incref(v));
    }
    json_object_foreach(echo, name, v) if (given(r->body, name) != NULL)
        echo_value(r, echo, name, strcmp(name, "tools") == 0 ? tools : given(r->body, name));
    put(r, echo, "store", json_boolean(response_draft_is_kept(f->draft)));
    form_add_json(&f->echo, echo, false);
    r->no_memory |= f->echo.failed;
    json_decref(tools);
    json_decref(echo);
}

/* ---- the whole ---- */

bool responses_read(json_t *body, const form_host *host, json_t **chat, answer_form **out,
                    unknown_fields *unknown, api_error *err) {
    responses_form *f = calloc(1, sizeof *f);
    if (f == NULL) return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    *out = &f->base;
    *f = (responses_form){.base.type = &responses_form_type, .names = json_object(), .host = host};
    form_reader r = {.form = &f->base,
                     .body = body,
                     .turns.between = {"", "\n\n", "\n\n", "\n\n"},
                     .turns.between_thoughts = "\n\n",
                     .unknown = unknown,
                     .err = err};
    form_read_begin(&r);
    f->draft = response_draft_create(host, &r.no_memory);
    bool ok = f->names != NULL && form_read_fields(&r, &fields);
    if (ok) write_echo(&r);
    f->host = NULL;
    r.no_memory |= f->names == NULL;
    return form_read_end(&r, ok, chat);
}
