/* tags_string.c - the text of a string that follows a schema, without quotes and escapes: what
 * stands between two marks.  pattern, format, minLength and maxLength count; see tags_string.h. */
#include "tags_string.h"

#include <string.h>

typedef struct text_builder {
    const dfa_limits *limits;
    json_t *left_out; // NULL: failures stay
    dfa all;          // what is allowed so far
} text_builder;

/* Narrows what is allowed to what `d` accepts, too; takes it. */
static inferd_status narrow(text_builder *t, dfa *d, inferd_err *err) {
    dfa both = {0};
    inferd_status s = dfa_and(&t->all, d, t->limits, &both, err);
    dfa_deinit(d);
    if (s != INFERD_OK) return s;
    if (dfa_is_empty(&both)) {
        dfa_deinit(&both);
        return inferd_fail(err, INFERD_EUNSUPPORTED, "no text follows its schema");
    }
    dfa_deinit(&t->all);
    t->all = both;
    return INFERD_OK;
}

static inferd_status narrow_pattern(text_builder *t, const buf *pattern, inferd_err *err) {
    dfa d = {0};
    if (pattern->failed) return inferd_fail(err, INFERD_ENOMEM, "no memory for a pattern");
    inferd_status s =
        regex_compile((bytes){pattern->p, pattern->n}, REGEX_TEXT, t->limits, &d, err);
    return s == INFERD_OK ? narrow(t, &d, err) : s;
}

/* Anywhere in the text.  Look-aheads stand at the beginning of a pattern only. */
static inferd_status add_pattern(text_builder *t, const json_t *v, inferd_err *err) {
    const char *p = json_string_value(v);
    bool ahead = p != NULL && p[0] == '^' && strstr(p, "(?=") == p + 1 && strchr(p, '|') == NULL;
    buf pattern = {0};
    if (p == NULL) return inferd_fail(err, INFERD_EUNSUPPORTED, "a pattern must be a string");
    buf_add_format(&pattern, ahead ? "%s[\\s\\S]*" : "[\\s\\S]*(?:%s)[\\s\\S]*", p);
    inferd_status s = narrow_pattern(t, &pattern, err);
    buf_deinit(&pattern);
    return s;
}

static inferd_status add_format(text_builder *t, const json_t *v, inferd_err *err) {
    const char *name = json_string_value(v);
    dfa d = {0};
    if (name == NULL) return inferd_fail(err, INFERD_EUNSUPPORTED, "a format must be a string");
    inferd_status s = dfa_of_format_text(name, t->limits, &d, err);
    return s == INFERD_OK ? narrow(t, &d, err) : s;
}

static inferd_status add_length(text_builder *t, const json_t *v, bool most, inferd_err *err) {
    json_int_t n = json_integer_value(v);
    buf pattern = {0};
    if (!json_is_integer(v) || n < 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "a length must be an integer");
    buf_add_format(&pattern, most ? "[\\s\\S]{0,%lld}" : "[\\s\\S]{%lld,}", (long long)n);
    inferd_status s = narrow_pattern(t, &pattern, err);
    buf_deinit(&pattern);
    return s;
}

static inferd_status add_keyword(text_builder *t, const char *key, const json_t *v,
                                 inferd_err *err) {
    if (strcmp(key, "pattern") == 0) return add_pattern(t, v, err);
    if (strcmp(key, "format") == 0) return add_format(t, v, err);
    if (strcmp(key, "maxLength") == 0) return add_length(t, v, true, err);
    if (strcmp(key, "minLength") == 0) return add_length(t, v, false, err);
    return inferd_fail(err, INFERD_EUNSUPPORTED, "\"%s\" of a text between marks", key);
}

/* A keyword that cannot be enforced is left out, if that may be. */
static inferd_status leave_out(text_builder *t, const char *key, inferd_status s, inferd_err *err) {
    if (s == INFERD_ENOMEM || t->left_out == NULL) return s;
    json_t *pointer = json_sprintf("#/%s", key);
    if (json_array_append_new(t->left_out, pointer) != 0)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a schema");
    return INFERD_OK;
}

inferd_status tags_string(const json_t *schema, bytes end, const dfa_limits *limits,
                          json_t *left_out, dfa *out, inferd_err *err) {
    static const char *const keys[] = {"pattern", "format", "maxLength", "minLength",
                                       "allOf",   "anyOf",  "oneOf",     "not",
                                       "if",      "enum",   "const"};
    text_builder t = {.limits = limits, .left_out = left_out};
    inferd_status s = tags_without(&end, end.n > 0 ? 1 : 0, &t.all, err);
    for (size_t i = 0; i < INFERD_COUNT(keys) && s == INFERD_OK; i++) {
        const json_t *v = json_object_get(schema, keys[i]);
        inferd_err why = {0};
        if (v == NULL) continue;
        s = add_keyword(&t, keys[i], v, &why);
        if (s != INFERD_OK) s = leave_out(&t, keys[i], s, &why);
        if (s != INFERD_OK && err != NULL) *err = why;
    }
    if (s == INFERD_OK)
        *out = t.all;
    else
        dfa_deinit(&t.all);
    return s;
}
