/* custom_tool.c - see custom_tool.h. */
#include "custom_tool.h"

#include "json_in.h"
#include "json_out.h"

static void add_text(buf *out, json_t *v) {
    if (json_is_string(v)) buf_add(out, json_string_value(v), json_string_length(v));
}

/* A new reference; NULL: no memory. */
static json_t *text_json(buf *text) {
    json_t *v = text->failed ? NULL : json_stringn(buf_cstr(text), text->n);
    buf_deinit(text);
    return v;
}

/* The parameters; pattern NULL: the input is any text. */
static json_t *make_parameters(json_t *pattern) {
    json_t *input = json_pack("{s:s}", "type", "string");
    if (input == NULL) return NULL;
    if (pattern != NULL && json_object_set(input, "pattern", pattern) != 0) {
        json_decref(input);
        return NULL;
    }
    return json_pack("{s:s,s:{s:o},s:[s],s:b}", "type", "object", "properties", "input", input,
                     "required", "input", "additionalProperties", 0);
}

static json_t *make_pattern(json_t *definition) {
    buf text = {0};
    buf_add_str(&text, "^(?:");
    add_text(&text, definition);
    buf_add_str(&text, ")$");
    return text_json(&text);
}

static json_t *make_description(json_t *description, json_t *syntax, json_t *definition) {
    buf text = {0};
    add_text(&text, description);
    buf_add_str(&text, "\n\nThe input follows this grammar (");
    if (json_is_string(syntax))
        add_text(&text, syntax);
    else
        buf_add_str(&text, "text");
    buf_add_str(&text, "):\n");
    add_text(&text, definition);
    return text_json(&text);
}

custom_grammar custom_tool_describe(json_t *function, json_t *grammar) {
    json_t *syntax = json_object_get(grammar, "syntax");
    json_t *definition = json_object_get(grammar, "definition"), *pattern = NULL;
    bool with_grammar = json_is_string(definition);
    bool regex =
        with_grammar && json_is_string(syntax) && strcmp(json_string_value(syntax), "regex") == 0;
    if (regex && (pattern = make_pattern(definition)) == NULL) return CUSTOM_NO_MEMORY;
    bool ok = json_object_set_new(function, "parameters", make_parameters(pattern)) == 0;
    json_decref(pattern);
    if (ok && with_grammar)
        ok = json_object_set_new(function, "description",
                                 make_description(json_object_get(function, "description"), syntax,
                                                  definition)) == 0;
    if (!ok) return CUSTOM_NO_MEMORY;
    return !with_grammar ? CUSTOM_FREE : regex ? CUSTOM_ENFORCED : CUSTOM_SHOWN;
}

json_t *custom_tool_arguments(json_t *input) {
    if (!json_is_string(input)) return NULL;
    buf text = {0};
    buf_add_str(&text, "{\"input\":");
    json_add_string(&text, json_string_value(input), json_string_length(input));
    buf_add_char(&text, '}');
    return text_json(&text);
}

bool custom_tool_unwrap(buf *arguments) {
    json_t *v = NULL;
    bytes text = {arguments->p == NULL ? "" : arguments->p, arguments->n};
    if (json_in_parse(text, &json_limits_default, &v, NULL) == INFERD_ENOMEM)
        arguments->failed = true;
    json_t *input = json_object_get(v, "input");
    if (json_is_string(input)) {
        buf_clear(arguments);
        buf_add(arguments, json_string_value(input), json_string_length(input));
    }
    json_decref(v);
    return !arguments->failed;
}
