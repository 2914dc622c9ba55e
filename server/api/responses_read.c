/* responses_read.c - see responses.h: the body of a request becomes that of a chat.
 *
 *   input         messages (responses_items.c)
 *   tools         functions; hosted ones are left out and named
 *   text.format   response_format, without members that are not known */
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

/* As the answer repeats it: in the members of its type. */
static json_t *shown_tool(form_reader *r, json_t *tool) {
    bool custom = is(given(tool, "type"), "custom");
    json_t *format = given(tool, "format"), *syntax = given(format, "syntax");
    json_t *shown = form_pick(
        r, tool, custom ? "type name description" : "type name description parameters strict");
    bool known =
        is(given(format, "type"), "grammar") && (is(syntax, "lark") || is(syntax, "regex"));
    if (custom && known && json_is_string(given(format, "definition")))
        put(r, shown, "format", form_pick(r, format, "type syntax definition"));
    return shown;
}

static bool is_own(const json_t *tool) {
    const json_t *type = given(tool, "type");
    return is(type, "function") || is(type, "custom");
}

/* In a namespace, or in none. */
static bool read_own(form_reader *r, json_t *tool) {
    responses_form *f = responses_form_of(r);
    json_t *type = given(tool, "type"), *name = given(tool, "name");
    if (!form_need_string(r, tool, "type")) return false;
    if (!is_own(tool)) {
        form_leave_out(r, "tools", json_string_value(type));
        return true;
    }
    json_t *flat = responses_function_name(r, name, f->space);
    json_t *function = form_add_function(r, json_incref(flat), tool, "parameters");
    if (function != NULL && is(type, "custom")) describe_custom(r, tool, function);
    if (function != NULL && json_is_string(flat))
        put(r, f->names, json_string_value(flat),
            json_pack("{s:O,s:O,s:O*}", "type", type, "name", name, "namespace", f->space));
    if (function != NULL) append(r, f->shown_in, shown_tool(r, tool));
    json_decref(flat);
    return function != NULL;
}

static bool read_tool(form_reader *r, json_t *tool) {
    responses_form *f = responses_form_of(r);
    char path[API_PARAM_BYTES];
    json_t *type = given(tool, "type"), *tools = given(tool, "tools");
    const char *about = json_string_value(given(tool, "description"));
    if (!is(type, "namespace")) return read_own(r, tool);
    if (!form_need_string(r, tool, "name")) return false;
    if (!json_is_array(tools)) return form_bad(r, "tools", tools, "must be an array");
    snprintf(path, sizeof path, "%.64s.tools", r->at);
    f->space = given(tool, "name");
    f->shown_in = json_array();
    append(r, f->shown,
           json_pack("{s:O,s:O,s:s,s:O}", "type", type, "name", f->space, "description",
                     about == NULL ? "" : about, "tools", f->shown_in));
    bool ok = form_each(r, tools, path, read_own);
    json_decref(f->shown_in);
    f->shown_in = f->shown;
    f->space = NULL;
    return ok;
}

/* ---- the choice of tools ---- */

/* The choice of the function of the tool that this one names; of one in a namespace its own name is
 * enough.  The chat's check finds a name that no tool has. */
static json_t *chosen(form_reader *r, const json_t *choice) {
    json_t *names = responses_form_of(r)->names, *space = given(choice, "namespace"), *tool;
    json_t *asked = responses_function_name(r, given(choice, "name"), space);
    const char *name = json_is_string(asked) ? json_string_value(asked) : "", *flat, *own = NULL;
    json_object_foreach(names, flat, tool) if (json_equal(given(tool, "name"), asked)) own = flat;
    bool by_own = space == NULL && own != NULL && json_object_get(names, name) == NULL;
    json_t *as_chat = form_choice(by_own ? own : name);
    json_decref(asked);
    return as_chat;
}

/* Hosted tools are left out of the list, too. */
static bool read_allowed(form_reader *r, json_t *choice) {
    json_t *tools = given(choice, "tools"), *list, *one;
    size_t i;
    if (!form_check_length(r, "tools", tools)) return false;
    list = json_array();
    json_array_foreach(tools, i, one) {
        bool hosted = json_is_string(given(one, "type")) && !is_own(one);
        if (!hosted) append(r, list, chosen(r, one));
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
    if (is(type, "allowed_tools")) return read_allowed(r, choice);
    if (is_own(choice))
        put(r, r->chat, "tool_choice", chosen(r, choice));
    else
        form_leave_out(r, "tool_choice", json_string_value(type));
    return true;
}

/* ---- other fields ---- */

static const char format_members[] = "type name schema strict description";

static bool read_format(form_reader *r, json_t *format) {
    json_t *type = given(format, "type"), *schema = given(format, "schema");
    bool of_schema = is(type, "json_schema");
    if (!of_schema && !is(type, "text") && !is(type, "json_object"))
        return form_bad(r, "type", type, "must be text, json_object or json_schema");
    if (of_schema && !json_is_object(schema))
        return form_bad(r, "schema", schema, "must be a JSON Schema, an object");
    json_t *known = form_pick(r, format, format_members);
    if (of_schema && given(known, "name") == NULL) put(r, known, "name", json_string("output"));
    put(r, r->chat, "response_format", known);
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
static const char *const ignored[] = {
    "truncation", "max_tool_calls", "top_logprobs", "context_management", "stream_options",
    /* of the client */
    "user", "client_metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", NULL};

#define NO_STATE .kind = FORM_REFUSED, .why = "send the whole conversation as \"input\""
static const form_field rows[] = {
    {"max_output_tokens", "max_tokens", FORM_ANY},
    {"reasoning.effort", "reasoning_effort", FORM_STRING, form_read_effort},
    {"text.verbosity", "verbosity", FORM_ANY},
    {"text.format", "response_format", FORM_OBJECT, read_format},
    {"include", NULL, FORM_ARRAY, read_include},
    {"metadata", NULL, FORM_OBJECT, read_metadata},
    {"background", .kind = FORM_REFUSED, .why = "a request ends with its connection"},
    {"conversation", NO_STATE},
    {"prompt", NO_STATE},
    {"store", NULL, FORM_BOOL},
    {"instructions", NULL, FORM_STRING, responses_read_instructions},
    {"previous_response_id", NULL, FORM_STRING, responses_read_previous},
    {"input", "messages", FORM_ANY, responses_read_input, .required = true},
    {"tools", NULL, FORM_EACH, read_tool},
    {"tool_choice", NULL, FORM_ANY, read_choice}, // behind the tools that it names
    {"tool_choice.name", "tool_choice.function.name", FORM_PART},
    {"tool_choice.tools", "tool_choice.allowed_tools.tools", FORM_PART}};

static const form_object members[] = {{"reasoning", "effort summary generate_summary"},
                                      {"text", "format verbosity"},
                                      {"text.format", format_members},
                                      {"tool_choice", "type name namespace mode tools"},
                                      {"stream_options", "include_obfuscation"}};

const form_fields responses_fields = {
    same, ignored, rows, INFERD_COUNT(rows), members, INFERD_COUNT(members)};

/* ---- what the answer repeats ---- */

/* Members of the answer, and what they are for a request without them. */
static const char defaults[] =
    "{\"temperature\":null,\"top_p\":null,\"max_output_tokens\":null,\"instructions\":null,"
    "\"previous_response_id\":null,\"parallel_tool_calls\":true,\"metadata\":{},\"tools\":[],"
    "\"tool_choice\":\"auto\",\"reasoning\":{\"effort\":null,\"summary\":null},"
    "\"text\":{\"format\":{\"type\":\"text\"}}}";

/* What has an effect, in the members of its type.  A long list of tools is not repeated. */
static void write_echo(form_reader *r) {
    static const char *const plain[] = {"temperature",
                                        "top_p",
                                        "max_output_tokens",
                                        "instructions",
                                        "previous_response_id",
                                        "parallel_tool_calls",
                                        "metadata"};
    responses_form *f = responses_form_of(r);
    json_t *echo = NULL, *asked = given(r->body, "tool_choice");
    json_t *choice = given(r->chat, "tool_choice"), *format = given(r->chat, "response_format");
    json_in_parse((bytes){defaults, strlen(defaults)}, &json_limits_default, &echo, NULL);
    json_t *text = json_object_get(echo, "text");
    for (size_t i = 0; i < INFERD_COUNT(plain); i++)
        put_given(r, echo, plain[i], given(r->body, plain[i]));
    put_given(r, json_object_get(echo, "reasoning"), "effort", given(r->chat, "reasoning_effort"));
    put_given(r, text, "verbosity", given(r->chat, "verbosity"));
    bool schema = is(given(format, "type"), "json_schema");
    if (format != NULL)
        put(r, text, "format", form_pick(r, format, schema ? format_members : "type"));
    bool list = is(given(asked, "type"), "allowed_tools");
    if (json_is_object(choice))
        put(r, echo, "tool_choice", form_pick(r, asked, list ? "type mode tools" : "type name"));
    else
        put_given(r, echo, "tool_choice", choice);
    if (json_dumpb(f->shown, NULL, 0, JSON_COMPACT) <= RESPONSES_TOOLS_BYTES_MAX)
        put_given(r, echo, "tools", f->shown);
    put(r, echo, "store", json_boolean(response_draft_is_kept(f->draft)));
    form_add_json(&f->echo, echo, false);
    r->no_memory |= f->echo.failed;
    json_decref(echo);
}

/* ---- the whole ---- */

bool responses_read(json_t *body, const form_host *host, json_t **chat, answer_form **out,
                    unknown_fields *unknown, api_error *err) {
    responses_form *f = calloc(1, sizeof *f);
    if (f == NULL) return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    *out = &f->base;
    *f = (responses_form){.base.type = &responses_form_type, .names = json_object(), .host = host};
    f->shown = f->shown_in = json_array();
    form_reader r = {.form = &f->base,
                     .body = body,
                     .turns.between = {"", "\n\n", "\n\n", "\n\n"},
                     .turns.between_thoughts = "\n\n",
                     .unknown = unknown,
                     .err = err};
    form_read_begin(&r);
    if (!json_is_false(given(body, "store"))) // before the items, which are kept
        f->draft = response_draft_create(host, &r.no_memory);
    r.no_memory |= f->names == NULL || f->shown == NULL;
    bool ok = !r.no_memory && form_read_fields(&r);
    if (ok) write_echo(&r);
    f->host = NULL;
    return form_read_end(&r, ok, chat);
}
