/* custom_tool.c - see custom_tool.h. */
#include "custom_tool.h"

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

/* ---- the input in the arguments ---- */

static size_t skip_white(bytes s, size_t at) {
    while (at < s.n && s.p[at] != 0 && strchr(" \t\r\n", s.p[at]) != NULL) at++;
    return at;
}

/* Where the input begins, behind its quote: s.n where the text is cut before it.  False: the
 * arguments are no such object. */
static bool find_input(bytes s, size_t *at) {
    static const char *const words[] = {"{", "\"input\"", ":", "\""};
    *at = 0;
    for (size_t i = 0; i < INFERD_COUNT(words); i++) {
        *at = skip_white(s, *at);
        size_t n = strlen(words[i]), there = size_min(n, s.n - *at);
        if (memcmp(s.p + *at, words[i], there) != 0) return false;
        *at += there;
    }
    return true;
}

static void add_character(buf *out, uint32_t c) {
    int n_more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char leads[] = {0, 0xc0, 0xe0, 0xf0};
    buf_add_char(out, (char)(leads[n_more] | c >> 6 * n_more));
    for (int i = n_more - 1; i >= 0; i--) buf_add_char(out, (char)(0x80 | (c >> 6 * i & 0x3f)));
}

/* The digits of \uXXXX at `at`; UINT32_MAX: it is cut, or wrong. */
static uint32_t code_at(bytes s, size_t at) {
    uint32_t code = 0;
    if (s.n < 6 || at > s.n - 6 || s.p[at] != '\\' || s.p[at + 1] != 'u') return UINT32_MAX;
    for (size_t i = at + 2; i < at + 6; i++) {
        const char *digits = "0123456789abcdef";
        const char *d = s.p[i] == 0 ? NULL : strchr(digits, s.p[i] | 0x20);
        if (d == NULL) return UINT32_MAX;
        code = code << 4 | (uint32_t)(d - digits);
    }
    return code;
}

/* Adds the character of the escape at `at`; half a pair is U+FFFD.  Returns its bytes; 0: it is
 * cut, or wrong. */
static size_t add_escape(bytes s, size_t at, buf *out) {
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (s.n - at < 2 || s.p[at + 1] == 0) return 0;
    const char *name = strchr(names, s.p[at + 1]);
    if (name != NULL) buf_add_char(out, meant[name - names]);
    if (name != NULL) return 2;
    uint32_t code = code_at(s, at), low = code_at(s, at + 6);
    bool first = code >= 0xd800 && code < 0xdc00, second = low >= 0xdc00 && low < 0xe000;
    if (code == UINT32_MAX || (first && s.n - at < 12 && memchr(s.p + at, '"', s.n - at) == NULL))
        return 0;
    if (first && second) {
        add_character(out, 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00));
        return 12;
    }
    add_character(out, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
    return 6;
}

bool custom_tool_unwrap(buf *arguments) {
    bytes s = {arguments->p == NULL ? "" : arguments->p, arguments->n};
    buf input = {0};
    size_t at, n = 1;
    if (!find_input(s, &at)) return !arguments->failed;
    for (; at < s.n && s.p[at] != '"' && n > 0; at += n) {
        n = s.p[at] == '\\' ? add_escape(s, at, &input) : 1;
        if (s.p[at] != '\\') buf_add_char(&input, s.p[at]);
    }
    bool failed = arguments->failed || input.failed;
    buf_deinit(arguments);
    *arguments = input;
    arguments->failed = failed;
    return !failed;
}
