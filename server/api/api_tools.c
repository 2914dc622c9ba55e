/* api_tools.c - see api_tools.h. */
#include "api_tools.h"

#include <string.h>

/* ---- tools ---- */

static bool fail_at(api_error *err, api_fault fault, size_t i, const char *member,
                    const char *must) {
    char param[API_PARAM_BYTES];
    snprintf(param, sizeof param, "tools[%zu]%s%s", i, member[0] != 0 ? "." : "", member);
    return api_fail(err, fault, param, "\"%s\" %s", param, must);
}

static json_t *given(json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static bool is_name(json_t *v) {
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (s == NULL || n == 0 || n > API_TOOL_NAME_BYTES_MAX || strlen(s) != n) return false;
    for (size_t i = 0; i < n; i++) {
        bool letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z');
        if (!letter && !(s[i] >= '0' && s[i] <= '9') && strchr("_-./", s[i]) == NULL) return false;
    }
    return true;
}

static bool check_tool(json_t *tool, size_t i, api_error *err) {
    char must[96];
    json_t *type = given(tool, "type"), *function = given(tool, "function"), *v;
    if (!json_is_object(tool)) return fail_at(err, API_BAD_VALUE, i, "", "must be an object");
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        return fail_at(err, API_UNSUPPORTED, i, "type", "must be \"function\"");
    if (!json_is_object(function))
        return fail_at(err, API_MISSING, i, "function", "is required: an object");
    snprintf(must, sizeof must, "must be 1 to %d letters, digits, and the characters _ - . /",
             API_TOOL_NAME_BYTES_MAX);
    if (!is_name(given(function, "name")))
        return fail_at(err, API_BAD_VALUE, i, "function.name", must);
    v = given(function, "description");
    if (v != NULL && !json_is_string(v))
        return fail_at(err, API_BAD_VALUE, i, "function.description", "must be a string");
    v = given(function, "parameters");
    if (v != NULL && !json_is_object(v))
        return fail_at(err, API_BAD_VALUE, i, "function.parameters",
                       "must be a JSON Schema, an object");
    v = given(function, "strict");
    if (v != NULL && !json_is_boolean(v))
        return fail_at(err, API_BAD_VALUE, i, "function.strict", "must be true or false");
    return true;
}

bool api_tools_read(const api_reader *r, json_t *v) {
    if (!json_is_array(v))
        return api_fail(r->err, API_BAD_VALUE, "tools", "\"tools\" must be an array");
    size_t n = json_array_size(v);
    if (n > API_TOOLS_MAX)
        return api_fail(r->err, API_BAD_VALUE, "tools", "%zu tools are more than the limit %d", n,
                        API_TOOLS_MAX);
    for (size_t i = 0; i < n; i++)
        if (!check_tool(json_array_get(v, i), i, r->err)) return false;
    r->p->tools = n > 0 ? v : NULL;
    return true;
}

/* ---- the choice ---- */

static bool fail_choice(const api_reader *r) {
    return api_fail(
        r->err, API_BAD_VALUE, "tool_choice",
        "\"tool_choice\" must be \"none\", \"auto\", \"required\", or an object of type "
        "\"function\" or \"allowed_tools\"");
}

static bool read_mode(const api_reader *r, json_t *v) {
    static const char *const words[] = {"none", "auto", "required", "any"};
    static const tool_choice modes[] = {TOOLS_NONE, TOOLS_AUTO, TOOLS_REQUIRED, TOOLS_REQUIRED};
    for (size_t i = 0; json_is_string(v) && i < INFERD_COUNT(words); i++) {
        if (strcmp(json_string_value(v), words[i]) != 0) continue;
        r->p->choice = modes[i];
        return true;
    }
    return fail_choice(r);
}

/* Of a function that a choice names: nested, as chats have it, or beside its type. */
static const char *name_of(json_t *v) {
    json_t *function = given(v, "function");
    return json_string_value(given(function != NULL ? function : v, "name"));
}

bool api_tools_read_choice(const api_reader *r, json_t *v) {
    if (!json_is_object(v)) return read_mode(r, v);
    const char *type = json_string_value(given(v, "type"));
    json_t *allowed = given(v, "allowed_tools");
    if (type != NULL && strcmp(type, "allowed_tools") == 0) {
        json_t *mode = given(allowed, "mode");
        r->p->allowed = given(allowed, "tools");
        if (!json_is_array(r->p->allowed) || json_array_size(r->p->allowed) == 0)
            return api_fail(
                r->err, API_BAD_VALUE, "tool_choice.allowed_tools.tools",
                "\"tool_choice.allowed_tools.tools\" must be an array that is not empty");
        for (size_t i = 0; i < json_array_size(r->p->allowed); i++) {
            char param[API_PARAM_BYTES];
            snprintf(param, sizeof param, "tool_choice.allowed_tools.tools[%zu]", i);
            if (name_of(json_array_get(r->p->allowed, i)) == NULL)
                return api_fail(r->err, API_BAD_VALUE, param, "\"%s\" must name a function", param);
        }
        return mode == NULL ? true : read_mode(r, mode);
    }
    if (type != NULL && strcmp(type, "function") != 0) return fail_choice(r);
    const char *name = name_of(v);
    if (name == NULL)
        return api_fail(r->err, API_MISSING, "tool_choice.function.name",
                        "\"tool_choice.function.name\" is required: a string");
    r->p->choice = TOOLS_REQUIRED;
    r->p->called_name = name;
    return true;
}

/* The forms of 2023: only what changes nothing. */
bool api_tools_read_functions(const api_reader *r, json_t *v) {
    if (!json_is_array(v))
        return api_fail(r->err, API_BAD_VALUE, "functions", "\"functions\" must be an array");
    const char *said = json_string_value(json_object_get(r->p->root, "function_call"));
    if (json_array_size(v) == 0 || (said != NULL && strcmp(said, "none") == 0)) return true;
    return api_fail(
        r->err, API_UNSUPPORTED, "functions",
        "\"functions\" is not supported, except [], or with \"function_call\": \"none\"; "
        "use \"tools\"");
}

bool api_tools_read_function_call(const api_reader *r, json_t *v) {
    const char *s = json_string_value(v);
    if (s != NULL && (strcmp(s, "none") == 0 || strcmp(s, "auto") == 0)) return true;
    return api_fail(r->err, API_UNSUPPORTED, "function_call",
                    "\"function_call\" is not supported, except \"none\" and \"auto\"; use "
                    "\"tool_choice\"");
}

/* ---- between the fields ---- */

static json_t *tool_named(const api_params *p, const char *name) {
    size_t i;
    json_t *tool;
    json_array_foreach(p->tools, i, tool) {
        const char *of =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (name != NULL && strcmp(of, name) == 0) return tool;
    }
    return NULL;
}

static bool add_called(api_params *p, const char *name, const char *param, api_error *err) {
    json_t *tool = tool_named(p, name);
    char quoted[API_QUOTE_BYTES];
    if (tool == NULL)
        return api_fail(
            err, API_BAD_VALUE, param, "no tool has the name \"%s\"",
            api_quote(quoted, name == NULL ? "" : name, name == NULL ? 0 : strlen(name)));
    if (p->called == NULL) p->called = json_array();
    if (json_array_append(p->called, tool) == 0) return true;
    return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
}

bool api_tools_check(api_params *p, api_error *err) {
    bool chosen = p->choice == TOOLS_REQUIRED || p->allowed != NULL;
    if (p->tools == NULL && chosen)
        return api_fail(err, API_BAD_VALUE, "tool_choice", "\"tool_choice\" needs \"tools\"");
    /* If the request forbids all calls, its tools are left out of the prompt: a template would
     * still invite the model to call, and a call written as text is not the answer that was
     * requested. */
    if (p->choice == TOOLS_NONE) p->tools = NULL;
    if (p->tools == NULL) {
        p->choice = TOOLS_NONE;
        return true;
    }
    if (p->choice == TOOLS_UNSET) p->choice = TOOLS_AUTO;
    if (p->called_name != NULL)
        return add_called(p, p->called_name, "tool_choice.function.name", err);
    for (size_t i = 0; i < json_array_size(p->allowed); i++) {
        char param[API_PARAM_BYTES];
        snprintf(param, sizeof param, "tool_choice.allowed_tools.tools[%zu]", i);
        if (!add_called(p, name_of(json_array_get(p->allowed, i)), param, err)) return false;
    }
    if (p->called == NULL) p->called = json_incref(p->tools);
    return true;
}

/* clang-format off */
#define MAYBE(type) "{'type':['" type "','null']}"
#define NAME        "{'type':'string','minLength':1,'maxLength':128,'pattern':'^[a-zA-Z0-9_./-]+$'}"

const char api_tools_schema[] =
    "{'type':'array','maxItems':512,'items':{'type':'object','required':['function'],'properties':{"
    "'type':{'enum':['function',null]},"
    "'function':{'type':'object','required':['name'],'properties':{'name':" NAME ",'description':" MAYBE("string")
    ",'parameters':" MAYBE("object") ",'strict':" MAYBE("boolean") "}}}}}";
#define FUNCTION    "{'type':'object','required':['name'],'properties':{'name':{'type':'string'}}}"
/* The name of a function: nested, as chats have it, or beside the type, as /v1/responses has it. */
#define CALLED      "'properties':{'type':{'enum':['function',null]},'function':{'anyOf':[{'type':'null'}," FUNCTION "]},'name':" MAYBE("string") "},'anyOf':[{'required':['function'],'properties':{'function':" FUNCTION "}},{'required':['name'],'properties':{'name':{'type':'string'},'function':{'type':'null'}}}]"
#define ALLOWED     "{'type':'object','anyOf':[{'required':['function'],'properties':{'function':" FUNCTION "}},{'required':['name'],'properties':{'name':{'type':'string'}}}]}"

const char api_tool_choice_schema[] =
    "{'anyOf':[{'enum':['none','auto','required','any']},"
    "{'type':'object'," CALLED "},"
    "{'type':'object','required':['type','allowed_tools'],'properties':{'type':{'const':'allowed_tools'},"
        "'allowed_tools':{'type':'object','required':['tools'],'properties':{'mode':{'enum':['none','auto','required','any',null]},'tools':{'type':'array','minItems':1,'items':" ALLOWED "}}}}}]}";
/* clang-format on */
