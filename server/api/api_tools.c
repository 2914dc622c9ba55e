/* api_tools.c - see api_tools.h. */
#include "api_tools.h"

#include <string.h>

#include "custom_tool.h"

/* ---- tools ---- */

/* Where a function stands: "tools[3]", and "function" or "custom" below it. */
typedef struct place {
    const char *list, *inner; // inner "": at the top
    size_t i;
} place;

static bool fail_at(api_error *err, api_fault fault, const place *at, const char *member,
                    const char *must) {
    char param[API_PARAM_BYTES];
    const char *dot = at->inner[0] != 0 ? "." : "", *more = member[0] != 0 ? "." : "";
    snprintf(param, sizeof param, "%s[%zu]%s%s%s%s", at->list, at->i, dot, at->inner, more, member);
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

static bool no_memory(api_error *err) {
    return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
}

static bool check_named(json_t *v, const place *at, api_error *err) {
    char must[96];
    if (!json_is_object(v))
        return fail_at(err, v == NULL ? API_MISSING : API_BAD_VALUE, at, "",
                       "is required: an object");
    snprintf(must, sizeof must, "must be 1 to %d letters, digits, and the characters _ - . /",
             API_TOOL_NAME_BYTES_MAX);
    if (!is_name(given(v, "name"))) return fail_at(err, API_BAD_VALUE, at, "name", must);
    json_t *description = given(v, "description");
    if (description != NULL && !json_is_string(description))
        return fail_at(err, API_BAD_VALUE, at, "description", "must be a string");
    return true;
}

static bool check_function(json_t *function, const place *at, api_error *err) {
    if (!check_named(function, at, err)) return false;
    json_t *v = given(function, "parameters");
    if (v != NULL && !json_is_object(v))
        return fail_at(err, API_BAD_VALUE, at, "parameters", "must be a JSON Schema, an object");
    v = given(function, "strict");
    if (v != NULL && !json_is_boolean(v))
        return fail_at(err, API_BAD_VALUE, at, "strict", "must be true or false");
    return true;
}

static bool is(json_t *v, const char *word) {
    return json_is_string(v) && strcmp(json_string_value(v), word) == 0;
}

static bool check_custom_format(json_t *format, const place *at, api_error *err) {
    if (format == NULL) return true;
    json_t *type = given(format, "type"), *form = given(format, "grammar");
    if (is(type, "text")) return true;
    if (!is(type, "grammar"))
        return fail_at(err, API_BAD_VALUE, at, "format",
                       "must be an object of type \"text\" or \"grammar\"");
    json_t *syntax = given(form, "syntax");
    if (!json_is_string(given(form, "definition")) || (!is(syntax, "lark") && !is(syntax, "regex")))
        return fail_at(err, API_BAD_VALUE, at, "format.grammar",
                       "must be an object with a string \"definition\" and \"syntax\" \"lark\" or "
                       "\"regex\"");
    return true;
}

/* Of a tool that was read: is found by its name from here on.  A call has only the name, so each
 * tool has one of its own. */
static bool add_name(const api_reader *r, json_t *named, const place *at) {
    const char *name = json_string_value(given(named, "name"));
    if (r->p->tool_idx == NULL) r->p->tool_idx = json_object();
    const json_t *other = json_object_get(r->p->tool_idx, name);
    char must[API_PARAM_BYTES];
    snprintf(must, sizeof must, "is the name of %s[%lld], too", at->list,
             (long long)json_integer_value(other));
    if (other != NULL) return fail_at(r->err, API_BAD_VALUE, at, "name", must);
    return json_object_set_new(r->p->tool_idx, name, json_integer((json_int_t)at->i)) == 0
               ? true
               : no_memory(r->err);
}

/* A custom tool becomes a function; its name is kept, because its calls have another form. */
static bool read_custom(const api_reader *r, json_t *tool, const place *at) {
    json_t *custom = given(tool, "custom"), *format = given(custom, "format");
    if (!check_named(custom, at, r->err) || !check_custom_format(format, at, r->err) ||
        !add_name(r, custom, at))
        return false;
    json_t *function = json_object(), *name = json_object_get(custom, "name");
    json_t *description = given(custom, "description"), *form = given(format, "grammar");
    if (r->p->custom == NULL) r->p->custom = json_object();
    bool ok = json_object_set(function, "name", name) == 0 &&
              json_object_set_new(r->p->custom, json_string_value(name), json_true()) == 0 &&
              (description == NULL || json_object_set(function, "description", description) == 0);
    custom_grammar kind = ok ? custom_tool_describe(function, form) : CUSTOM_NO_MEMORY;
    ok = kind != CUSTOM_NO_MEMORY && json_object_set(tool, "function", function) == 0 &&
         json_object_set_new(tool, "type", json_string("function")) == 0;
    json_object_del(tool, "custom");
    json_decref(function);
    if (kind == CUSTOM_SHOWN) unknown_add(&r->p->unknown, "tools.custom.format");
    return ok ? true : no_memory(r->err);
}

static bool read_tool(const api_reader *r, json_t *tool, size_t i) {
    place at = {"tools", "", i};
    json_t *type = given(tool, "type");
    if (!json_is_object(tool)) return fail_at(r->err, API_BAD_VALUE, &at, "", "must be an object");
    if (is(type, "custom")) {
        at.inner = "custom";
        return read_custom(r, tool, &at);
    }
    if (type != NULL && !is(type, "function"))
        return fail_at(r->err, API_UNSUPPORTED, &at, "type", "must be \"function\" or \"custom\"");
    at.inner = "function";
    json_t *function = given(tool, "function");
    return check_function(function, &at, r->err) && add_name(r, function, &at);
}

static bool check_length(const api_reader *r, const json_t *list, const char *param) {
    size_t n = json_array_size(list);
    if (n <= API_TOOLS_MAX) return true;
    return api_fail(r->err, API_BAD_VALUE, param, "\"%s\" has %zu entries, more than the limit %d",
                    param, n, API_TOOLS_MAX);
}

static bool check_list(const api_reader *r, json_t *v, const char *name) {
    if (json_is_array(v)) return check_length(r, v, name);
    return api_fail(r->err, API_BAD_VALUE, name, "\"%s\" must be an array", name);
}

bool api_tools_read(const api_reader *r, json_t *v) {
    if (!check_list(r, v, "tools")) return false;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!read_tool(r, json_array_get(v, i), i)) return false;
    r->p->tools = json_array_size(v) > 0 ? v : NULL;
    return true;
}

/* ---- the choice ---- */

static bool fail_choice(const api_reader *r) {
    return api_fail(
        r->err, API_BAD_VALUE, "tool_choice",
        "\"tool_choice\" must be \"none\", \"auto\", \"required\", or an object of type "
        "\"function\", \"custom\" or \"allowed_tools\"");
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

/* Of a tool that a choice names: nested, as chats have it, or beside its type. */
static const char *name_of(json_t *v) {
    json_t *inner = given(v, "function");
    if (inner == NULL) inner = given(v, "custom");
    return json_string_value(given(inner != NULL ? inner : v, "name"));
}

/* `param`: static. */
static bool choose(const api_reader *r, const char *name, const char *param) {
    if (name == NULL)
        return api_fail(r->err, API_MISSING, param, "\"%s\" is required: a string", param);
    r->p->choice = TOOLS_REQUIRED;
    r->p->called_name = name;
    r->p->called_param = param;
    return true;
}

static bool read_allowed(const api_reader *r, json_t *allowed) {
    static const char list[] = "tool_choice.allowed_tools.tools";
    json_t *mode = given(allowed, "mode"), *tools = given(allowed, "tools");
    if (json_array_size(tools) == 0)
        return api_fail(r->err, API_BAD_VALUE, list, "\"%s\" must be an array that is not empty",
                        list);
    if (!check_length(r, tools, list)) return false;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const place at = {list, "", i};
        if (name_of(json_array_get(tools, i)) == NULL)
            return fail_at(r->err, API_BAD_VALUE, &at, "", "must name a tool");
    }
    r->p->allowed = tools;
    return mode == NULL ? true : read_mode(r, mode);
}

bool api_tools_read_choice(const api_reader *r, json_t *v) {
    if (!json_is_object(v)) return read_mode(r, v);
    const char *type = json_string_value(given(v, "type"));
    if (type != NULL && strcmp(type, "allowed_tools") == 0)
        return read_allowed(r, given(v, "allowed_tools"));
    bool custom = type != NULL && strcmp(type, "custom") == 0;
    if (type != NULL && !custom && strcmp(type, "function") != 0) return fail_choice(r);
    const char *param = custom ? "tool_choice.custom.name" : "tool_choice.function.name";
    return choose(r, name_of(v), param);
}

/* ---- the fields of 2023 ---- */

/* They become tools; the answer then has one call at most, as function_call. */
bool api_tools_read_functions(const api_reader *r, json_t *v) {
    if (!check_list(r, v, "functions")) return false;
    if (json_array_size(v) == 0) return true;
    if (r->p->tools != NULL)
        return api_fail(r->err, API_BAD_VALUE, "functions",
                        "\"functions\" and \"tools\" are the same; a request can have one of them");
    json_t *tools = json_array(), *function;
    if (tools == NULL || json_object_set_new(r->p->root, "tools", tools) != 0)
        return no_memory(r->err);
    size_t i;
    json_array_foreach(v, i, function) {
        const place at = {"functions", "", i};
        if (!check_function(function, &at, r->err) || !add_name(r, function, &at)) return false;
        json_t *tool = json_pack("{s:s,s:O}", "type", "function", "function", function);
        if (json_array_append_new(tools, tool) != 0) return no_memory(r->err);
    }
    r->p->tools = tools;
    r->p->function_calls = true;
    r->p->choice = TOOLS_UNSET;
    r->p->allowed = NULL;
    r->p->called_name = NULL;
    return true;
}

bool api_tools_read_function_call(const api_reader *r, json_t *v) {
    static const char must[] =
        "\"function_call\" must be \"none\", \"auto\", or an object with the name of a function";
    bool none = is(v, "none");
    if (!none && !is(v, "auto") && !json_is_object(v))
        return api_fail(r->err, API_BAD_VALUE, "function_call", "%s", must);
    if (!json_is_object(v)) {
        if (r->p->function_calls) r->p->choice = none ? TOOLS_NONE : TOOLS_AUTO;
        return true;
    }
    if (!r->p->function_calls)
        return api_fail(r->err, API_BAD_VALUE, "function_call",
                        "\"function_call\" needs \"functions\"");
    return choose(r, json_string_value(given(v, "name")), "function_call.name");
}

/* ---- between the fields ---- */

/* `has`: of each tool, whether it is in the list; a tool that is named again is there once. */
static bool add_called(api_params *p, const char *name, const char *param, bool has[API_TOOLS_MAX],
                       api_error *err) {
    const json_t *idx = json_object_get(p->tool_idx, name);
    char quoted[API_QUOTE_BYTES];
    if (idx == NULL)
        return api_fail(err, API_BAD_VALUE, param, "no tool has the name \"%s\"",
                        api_quote(quoted, name, strlen(name)));
    size_t i = (size_t)json_integer_value(idx);
    if (has[i]) return true;
    has[i] = true;
    return json_array_append(p->called, json_array_get(p->tools, i)) == 0 ? true : no_memory(err);
}

static bool find_called(api_params *p, api_error *err) {
    bool has[API_TOOLS_MAX] = {false};
    if (p->called_name == NULL && p->allowed == NULL) {
        p->called = json_incref(p->tools);
        return true;
    }
    p->called = json_array();
    if (p->called_name != NULL) return add_called(p, p->called_name, p->called_param, has, err);
    for (size_t i = 0; i < json_array_size(p->allowed); i++) {
        char param[API_PARAM_BYTES];
        snprintf(param, sizeof param, "tool_choice.allowed_tools.tools[%zu]", i);
        if (!add_called(p, name_of(json_array_get(p->allowed, i)), param, has, err)) return false;
    }
    return true;
}

bool api_tools_check(api_params *p, api_error *err) {
    bool chosen = p->choice == TOOLS_REQUIRED || p->allowed != NULL;
    if (p->function_calls) p->parallel_calls = false;
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
    return find_called(p, err);
}

/* clang-format off */
#define MAYBE(type) "{'type':['" type "','null']}"
#define NAME        "{'type':'string','minLength':1,'maxLength':128,'pattern':'^[a-zA-Z0-9_./-]+$'}"
#define DEFINED     "{'type':'object','required':['name'],'properties':{'name':" NAME ",'description':" MAYBE("string") ",'parameters':" MAYBE("object") ",'strict':" MAYBE("boolean") "}}"
#define GRAMMAR     "{'type':'object','required':['syntax','definition'],'properties':{'syntax':{'enum':['lark','regex']},'definition':{'type':'string'}}}"
#define FORMAT      "{'anyOf':[{'type':'null'},{'type':'object','required':['type'],'properties':{'type':{'const':'text'}}},{'type':'object','required':['type','grammar'],'properties':{'type':{'const':'grammar'},'grammar':" GRAMMAR "}}]}"
#define OF_CUSTOM   "{'type':'object','required':['type','custom'],'properties':{'type':{'const':'custom'},'custom':{'type':'object','required':['name'],'properties':{'name':" NAME ",'description':" MAYBE("string") ",'format':" FORMAT "}}}}"

const char api_tools_schema[] =
    "{'type':'array','maxItems':512,'items':{'anyOf':[{'type':'object','required':['function'],'properties':{"
    "'type':{'enum':['function',null]},'function':" DEFINED "}}," OF_CUSTOM "]}}";
const char api_functions_schema[] = "{'type':'array','maxItems':512,'items':" DEFINED "}";
#define NAMED       "{'type':'object','required':['name'],'properties':{'name':{'type':'string'}}}"
const char api_function_call_schema[] = "{'anyOf':[{'enum':['none','auto']}," NAMED "]}";
/* The name of a tool: nested, as chats have it, or beside the type, as /v1/responses has it. */
#define BY_NAME     "'anyOf':[{'required':['function'],'properties':{'function':" NAMED "}},{'required':['custom'],'properties':{'custom':" NAMED ",'function':{'type':'null'}}},{'required':['name'],'properties':{'name':{'type':'string'},'function':{'type':'null'},'custom':{'type':'null'}}}]"

const char api_tool_choice_schema[] =
    "{'anyOf':[{'enum':['none','auto','required','any']},"
    "{'type':'object','properties':{'type':{'enum':['function','custom',null]}}," BY_NAME "},"
    "{'type':'object','required':['type','allowed_tools'],'properties':{'type':{'const':'allowed_tools'},"
        "'allowed_tools':{'type':'object','required':['tools'],'properties':{'mode':{'enum':['none','auto','required','any',null]},'tools':{'type':'array','minItems':1,'maxItems':512,'items':{'type':'object'," BY_NAME "}}}}}}]}";
/* clang-format on */
