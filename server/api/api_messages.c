/* api_messages.c - checks whether a conversation can be rendered by the template of a text model.
 *
 * Checks what OpenAI's schema requires of each role; unknown keys are passed to the template
 * unchanged.  A part that is not text is refused by name: nothing is ever fetched. */
#include "api_calls.h"
#include "api_params.h"
#include "media.h"

#include <string.h>

/* clang-format off */
#define TEXT_PART    "{'type':'object','required':['type','text'],'properties':{'type':{'const':'text'},'text':{'type':'string'}}}"
#define REFUSAL_PART "{'type':'object','required':['type','refusal'],'properties':{'type':{'const':'refusal'},'refusal':{'type':'string'}}}"
#define CONTENT(of)  "{'anyOf':[{'type':'string'},{'type':'array','minItems':1,'items':" of "}]}"
#define TEXTS        CONTENT(TEXT_PART)
#define ANSWER       CONTENT("{'anyOf':[" TEXT_PART "," REFUSAL_PART "]}")
#define MAYBE_STRING "{'type':['string','null']}"
#define CALLED(text) "{'type':'object','required':['name','" text "'],'properties':{'name':{'type':'string'},'" text "':{'type':'string'}}}"
#define OF_FUNCTION  "{'type':'object','required':['function'],'properties':{'function':" CALLED("arguments") "}}"
#define OF_CUSTOM    "{'type':'object','required':['type','custom'],'properties':{'type':{'const':'custom'},'custom':" CALLED("input") "}}"
#define TOOL_CALLS   "{'anyOf':[{'type':'null'},{'type':'array','items':{'anyOf':[" OF_FUNCTION "," OF_CUSTOM "]}}]}"
#define OLD_CALL     "{'anyOf':[{'type':'null'}," CALLED("arguments") "]}"

const char api_messages_schema[] =
    "{'type':'array','minItems':1,'items':{'anyOf':["
    "{'title':'SystemOrUserMessage','type':'object','required':['role','content'],'properties':{"
        "'role':{'enum':['system','developer','user']},'content':" TEXTS ","
        "'name':" MAYBE_STRING ",'tool_call_id':" MAYBE_STRING "}},"
    "{'title':'AssistantMessage','type':'object','required':['role'],'properties':{"
        "'role':{'const':'assistant'},'content':{'anyOf':[" ANSWER ",{'type':'null'}]},"
        "'tool_calls':" TOOL_CALLS ",'function_call':" OLD_CALL ",'name':" MAYBE_STRING ",'tool_call_id':" MAYBE_STRING "}},"
    "{'title':'ToolMessage','type':'object','required':['role','content','tool_call_id'],'properties':{"
        "'role':{'const':'tool'},'content':" TEXTS ",'tool_call_id':{'type':'string'},'name':" MAYBE_STRING "}},"
    "{'title':'FunctionMessage','type':'object','required':['role','content','name'],'properties':{"
        "'role':{'const':'function'},'content':" TEXTS ",'name':{'type':'string'},'tool_call_id':" MAYBE_STRING "}}"
    "]}}";
/* clang-format on */

typedef struct path {
    char text[API_PARAM_BYTES];
} path;

__attribute__((format(printf, 1, 2))) static path at(const char *format, ...) {
    path p;
    va_list args;
    va_start(args, format);
    vsnprintf(p.text, sizeof p.text, format, args);
    va_end(args);
    return p;
}

static bool check_part(json_t *part, size_t i, size_t k, bool assistant, api_error *err) {
    path here = at("messages[%zu].content[%zu]", i, k);
    if (!json_is_object(part))
        return api_fail(err, API_BAD_VALUE, here.text, "a content part must be an object");
    const char *type = json_string_value(json_object_get(part, "type"));
    if (type == NULL)
        return api_fail(err, API_MISSING, at("%s.type", here.text).text,
                        "a content part needs \"type\"");
    bool refusal = assistant && strcmp(type, "refusal") == 0;
    if (strcmp(type, "text") != 0 && !refusal) {
        char quoted[API_QUOTE_BYTES];
        err->media = media_of_part(type);
        return api_fail(err, API_UNSUPPORTED, at("%s.type", here.text).text,
                        "content parts of type \"%s\" are not supported, only \"text\"",
                        api_quote(quoted, type, strlen(type)));
    }
    if (!json_is_string(json_object_get(part, type)))
        return api_fail(err, API_BAD_VALUE, at("%s.%s", here.text, type).text,
                        "a content part of type \"%s\" needs a string \"%s\"", type, type);
    return true;
}

/* An answer that was cut in its reasoning has no content, and comes back so. */
static bool fill_content(json_t *m, api_error *err) {
    bool elsewhere = json_array_size(json_object_get(m, "tool_calls")) > 0 ||
                     json_is_object(json_object_get(m, "function_call")) ||
                     json_is_string(json_object_get(m, "refusal"));
    if (elsewhere || json_object_set_new(m, "content", json_string("")) == 0) return true;
    return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
}

static bool check_content(json_t *m, size_t i, bool assistant, api_error *err) {
    json_t *content = json_object_get(m, "content");
    path here = at("messages[%zu].content", i);
    if (json_is_string(content)) return true;
    if (content == NULL || json_is_null(content)) {
        if (assistant) return fill_content(m, err);
        return api_fail(err, API_MISSING, here.text, "a message needs \"content\"");
    }
    if (!json_is_array(content))
        return api_fail(err, API_BAD_VALUE, here.text,
                        "\"content\" must be a string or an array of parts");
    if (json_array_size(content) == 0)
        return api_fail(err, API_BAD_VALUE, here.text, "\"content\" must not be an empty array");
    for (size_t k = 0; k < json_array_size(content); k++)
        if (!check_part(json_array_get(content, k), i, k, assistant, err)) return false;
    return true;
}

static bool check_string(json_t *m, const char *key, bool required, size_t i, api_error *err) {
    json_t *v = json_object_get(m, key);
    if (json_is_string(v)) return true;
    path here = at("messages[%zu].%s", i, key);
    if (v != NULL && !json_is_null(v))
        return api_fail(err, API_BAD_VALUE, here.text, "\"%s\" must be a string", key);
    if (!required) return true;
    return api_fail(err, API_MISSING, here.text, "this message needs \"%s\"", key);
}

static bool check_message(json_t *m, size_t i, api_error *err) {
    static const char *const roles[] = {"system",    "user", "assistant",
                                        "developer", "tool", "function"};
    if (!json_is_object(m))
        return api_fail(err, API_BAD_VALUE, at("messages[%zu]", i).text,
                        "a message must be an object");
    json_t *role = json_object_get(m, "role");
    path here = at("messages[%zu].role", i);
    if (role == NULL || json_is_null(role))
        return api_fail(err, API_MISSING, here.text, "a message needs \"role\"");
    size_t r = 0;
    while (r < INFERD_COUNT(roles) &&
           !(json_is_string(role) && strcmp(json_string_value(role), roles[r]) == 0))
        r++;
    if (r == INFERD_COUNT(roles))
        return api_fail(err, API_BAD_VALUE, here.text,
                        "\"role\" must be one of system, developer, user, assistant, tool, "
                        "function");
    const char *name = roles[r];
    bool assistant = strcmp(name, "assistant") == 0;
    if (!check_content(m, i, assistant, err) ||
        !check_string(m, "tool_call_id", strcmp(name, "tool") == 0, i, err) ||
        !check_string(m, "name", strcmp(name, "function") == 0, i, err))
        return false;
    if (!api_calls_check(m, i, err)) return false;
    /* Models are trained with "system"; OpenAI calls the same message "developer" since 2024. */
    if (strcmp(name, "developer") == 0 &&
        json_object_set_new(m, "role", json_string("system")) != 0)
        return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    return true;
}

bool api_messages_check(json_t *messages, api_error *err) {
    if (!json_is_array(messages))
        return api_fail(err, API_BAD_VALUE, "messages", "\"messages\" must be an array");
    if (json_array_size(messages) == 0)
        return api_fail(err, API_BAD_VALUE, "messages", "\"messages\" must not be empty");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!check_message(json_array_get(messages, i), i, err)) return false;
    return api_calls_renew(messages, err);
}
