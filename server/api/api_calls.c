/* api_calls.c - see api_calls.h. */
#include "api_calls.h"

#include <string.h>

#include "custom_tool.h"
#include "inferd/base.h"

enum { CALL_ID_BYTES = 10 }; // of an id that every template accepts: nine letters and digits

static json_t *given(json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static bool is(json_t *v, const char *word) {
    return json_is_string(v) && strcmp(json_string_value(v), word) == 0;
}

/* ---- checking ---- */

static bool has_strings(json_t *v, const char *one, const char *other) {
    return json_is_string(json_object_get(v, one)) && json_is_string(json_object_get(v, other));
}

static bool is_custom(json_t *call) {
    return is(json_object_get(call, "type"), "custom") &&
           has_strings(json_object_get(call, "custom"), "name", "input");
}

static bool check_tool_call(json_t *call, size_t i, size_t k, api_error *err) {
    char param[API_PARAM_BYTES];
    if (is_custom(call) || has_strings(json_object_get(call, "function"), "name", "arguments"))
        return true;
    bool custom = is(json_object_get(call, "type"), "custom");
    const char *kind = custom ? "custom" : "function";
    snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].%s", i, k, kind);
    return api_fail(err, API_BAD_VALUE, param,
                    "a tool call needs an object \"%s\" with the strings \"name\" and \"%s\"", kind,
                    custom ? "input" : "arguments");
}

bool api_calls_check(json_t *message, size_t i, api_error *err) {
    char param[API_PARAM_BYTES];
    if (!is(json_object_get(message, "role"), "assistant")) return true;
    json_t *calls = given(message, "tool_calls"), *old = given(message, "function_call"), *call;
    size_t k;
    if (calls != NULL && !json_is_array(calls)) {
        snprintf(param, sizeof param, "messages[%zu].tool_calls", i);
        return api_fail(err, API_BAD_VALUE, param, "\"tool_calls\" must be an array");
    }
    json_array_foreach(calls, k, call) if (!check_tool_call(call, i, k, err)) return false;
    if (old == NULL || has_strings(old, "name", "arguments")) return true;
    snprintf(param, sizeof param, "messages[%zu].function_call", i);
    return api_fail(err, API_BAD_VALUE, param,
                    "\"function_call\" must be an object with the strings \"name\" and "
                    "\"arguments\"");
}

/* ---- rewriting ---- */

static bool put(json_t *object, const char *name, json_t *v) { // takes the value
    return json_object_set_new(object, name, v) == 0;
}

static bool renew_custom(json_t *call) {
    json_t *custom = json_object_get(call, "custom"), *function = json_object();
    bool ok = function != NULL &&
              put(function, "name", json_incref(json_object_get(custom, "name"))) &&
              put(function, "arguments", custom_tool_arguments(json_object_get(custom, "input")));
    if (!ok) {
        json_decref(function);
        return false;
    }
    ok = put(call, "function", function) && put(call, "type", json_string("function"));
    json_object_del(call, "custom");
    return ok;
}

/* The call that was made last, and its result: messages of 2023 have one call each. */
static void write_id(char id[CALL_ID_BYTES], size_t n_calls) {
    snprintf(id, CALL_ID_BYTES, "call%05zu", n_calls % 100000);
}

/* A message may have both forms; then tool_calls count. */
static bool renew_assistant(json_t *message, size_t *n_calls) {
    json_t *calls = given(message, "tool_calls"), *old = given(message, "function_call"), *call;
    size_t k;
    json_array_foreach(calls, k, call) {
        if (is_custom(call) && !renew_custom(call)) return false;
    }
    /* Templates take a message with the member for one that calls. */
    if (json_array_size(calls) == 0) json_object_del(message, "tool_calls");
    bool ok = true;
    if (old != NULL && given(message, "tool_calls") == NULL) {
        char id[CALL_ID_BYTES];
        write_id(id, ++*n_calls);
        ok = put(message, "tool_calls",
                 json_pack("[{s:s,s:s,s:O}]", "id", id, "type", "function", "function", old));
    }
    json_object_del(message, "function_call");
    return ok;
}

static bool renew_result(json_t *message, size_t n_calls) {
    char id[CALL_ID_BYTES];
    write_id(id, n_calls);
    if (!put(message, "role", json_string("tool"))) return false;
    return given(message, "tool_call_id") != NULL || put(message, "tool_call_id", json_string(id));
}

bool api_calls_renew(json_t *messages, api_error *err) {
    size_t i, n_calls = 0;
    json_t *m;
    json_array_foreach(messages, i, m) {
        json_t *role = json_object_get(m, "role");
        bool ok = is(role, "assistant")  ? renew_assistant(m, &n_calls)
                  : is(role, "function") ? renew_result(m, n_calls)
                                         : true;
        if (!ok) return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    }
    return true;
}
