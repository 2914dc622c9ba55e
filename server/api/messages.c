/* messages.c - the fields of a body of /v1/messages; see messages.h.
 *
 * Each field that a chat has, too, is checked there (api_params.h). */
#include "messages.h"

/* ---- tools ---- */

/* Tools of other types, which Anthropic's servers or models know without a schema, are left out. */
static bool read_tool(form_reader *r, json_t *tool) {
    const json_t *type = given(tool, "type"), *schema = given(tool, "input_schema");
    if (json_is_string(type) && !is(type, "custom")) {
        form_leave_out(r, "tools", json_string_value(type));
        return true;
    }
    if (!json_is_object(schema))
        return form_bad(r, "input_schema", schema, "must be a JSON Schema, an object");
    return form_add_function(r, json_incref(given(tool, "name")), tool, "input_schema") != NULL;
}

static bool read_choice(form_reader *r, json_t *v) {
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *type = given(v, "type");
    if (json_is_true(given(v, "disable_parallel_tool_use")))
        put(r, r->chat, "parallel_tool_calls", json_false());
    if (form_leaves_out_choice(r, type, given(v, "name"))) return true;
    for (size_t i = 0; i < INFERD_COUNT(words); i++) {
        if (!is(type, words[i][0])) continue;
        put(r, r->chat, "tool_choice", json_string(words[i][1]));
        return true;
    }
    if (!is(type, "tool")) return form_bad(r, "type", type, "must be auto, any, tool or none");
    if (!form_need_string(r, v, "name")) return false;
    put(r, r->chat, "tool_choice", form_choice(json_string_value(given(v, "name"))));
    return true;
}

/* ---- reasoning and form ---- */

/* Templates call the switch by one of two names.  "adaptive": the model decides. */
static bool read_thinking(form_reader *r, json_t *v) {
    static const char *const switches[] = {"enable_thinking", "thinking"};
    json_t *budget = given(v, "budget_tokens"), *kwargs = given(r->chat, "chat_template_kwargs");
    bool off = is(given(v, "type"), "disabled");
    if (!form_need_string(r, v, "type")) return false;
    kwargs = json_is_object(kwargs) ? json_copy_whole(kwargs) : json_object();
    for (size_t i = 0; i < INFERD_COUNT(switches); i++)
        if (given(kwargs, switches[i]) == NULL) put(r, kwargs, switches[i], json_boolean(!off));
    put(r, r->chat, "chat_template_kwargs", kwargs);
    if (!off) put_given(r, r->chat, "thinking_token_budget", budget);
    return true;
}

static bool read_format(form_reader *r, json_t *v) {
    json_t *schema = given(v, "schema");
    if (!is(given(v, "type"), "json_schema") || schema == NULL)
        return form_bad(r, "", v, "must be of type json_schema, with a schema");
    put(r, r->chat, "response_format",
        json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name", "output",
                  "schema", schema));
    return true;
}

/* ---- the body ---- */

static const char *const same[] = {"model", "max_tokens", "temperature", "top_p", "top_k", "stream",
                                   /* of this server: */
                                   "seed", "priority", "cache_salt", "keep_alive",
                                   "chat_template_kwargs", NULL};
static const char *const ignored[] = {
    "metadata", "service_tier", "context_management", "cache_control", "betas", "anthropic_version",
    NULL};

static const form_field rows[] = {
    {"stop_sequences", "stop", FORM_ANY},
    {"tool_choice.name", "tool_choice.function.name", FORM_PART},
    {"thinking.budget_tokens", "thinking_token_budget", FORM_PART},
    {"output_config.format.schema", "response_format.json_schema.schema", FORM_PART},
    {"tools", NULL, FORM_EACH, read_tool},
    {"tool_choice", NULL, FORM_OBJECT, read_choice},
    {"thinking", NULL, FORM_OBJECT, read_thinking},
    {"output_config.effort", "reasoning_effort", FORM_STRING, form_read_effort},
    {"output_config.format", "response_format", FORM_OBJECT, read_format},
    /* Told that there are none (messages_write_error), the client sends the whole conversation. */
    {MESSAGES_THREAD, .kind = FORM_REFUSED,
     .why = "no state is kept between requests; send the whole conversation as \"messages\""},
    {"system", NULL, FORM_ANY, messages_read_system},
    {"messages", NULL, FORM_ARRAY, messages_read_turns, .required = true}};

static const form_object members[] = {{"tool_choice", "type name disable_parallel_tool_use"},
                                      {"thinking", "type budget_tokens"},
                                      {"output_config", "effort format"},
                                      {"output_config.format", "type schema"}};

const form_fields messages_fields = {
    same, ignored, rows, INFERD_COUNT(rows), members, INFERD_COUNT(members)};

/* A conversation that ends with text of the assistant: the answer goes on from there. */
static void continue_last(form_reader *r) {
    const json_t *turns = r->turns.messages;
    const json_t *last = json_array_get(turns, json_array_size(turns) - 1);
    if (is(given(last, "role"), "assistant") && given(last, "tool_calls") == NULL)
        put(r, r->chat, "continue_final_message", json_true());
}

bool messages_read(json_t *body, bytes text, bool counted, json_t **chat, answer_form **out,
                   unknown_fields *unknown, api_error *err) {
    messages_form *f = calloc(1, sizeof *f);
    if (f == NULL) return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    f->base.type = &messages_form_type;
    *out = &f->base;
    form_reader r = {.form = &f->base,
                     .body = body,
                     .text = text,
                     .turns.between = {"", "\n", "\n", ""}, // none within the model's own text
                     .turns.between_thoughts = "",
                     .unknown = unknown,
                     .err = err};
    form_read_begin(&r);
    bool ok = counted || given(body, "max_tokens") != NULL ||
              form_bad(&r, "max_tokens", NULL, "is required");
    ok = ok && form_read_fields(&r);
    if (ok) continue_last(&r);
    return form_read_end(&r, ok, chat);
}
