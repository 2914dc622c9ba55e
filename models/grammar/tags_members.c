/* tags_members.c - see tags.h. */
#include "tags.h"

#include <string.h>

/* A text of the JSON with symbols in place of names. */
typedef struct converted {
    struct converted *next;
    buf text;
} converted;

/* Names on the wire, and the members that a format may have beside `type`. */
const tags_format tags_formats[FORMAT_KINDS] = {
    [FORMAT_STRING] = {"const_string", {"value"}},
    [FORMAT_SCHEMA] = {"json_schema", {"json_schema"}},
    [FORMAT_REGEX] = {"regex", {"pattern"}},
    [FORMAT_ANY] = {"any_text", {NULL}},
    [FORMAT_TEXT] = {"string_text", {"json_schema"}},
    [FORMAT_REASONING] = {"reasoning", {"end"}},
    [FORMAT_SEQUENCE] = {"sequence", {"elements"}},
    [FORMAT_OR] = {"or", {"elements"}},
    [FORMAT_TAG] = {"tag", {"begin", "content", "end"}},
    [FORMAT_TRIGGERED] = {"triggered_tags",
                          {"triggers", "tags", "at_least_one", "stop_after_first"}},
    [FORMAT_SEPARATED] = {"tags_with_separator",
                          {"tags", "separator", "at_least_one", "stop_after_first", "at_least",
                           "at_most"}},
    [FORMAT_MEMBERS] = {"members", {"elements", "separator", "required"}},
    [FORMAT_STRUCTURES] = {"structural_tag", {"structures", "triggers"}},
    [FORMAT_STRUCTURE] = {NULL, {"begin", "schema", "end"}},
    [FORMAT_OUTER] = {NULL, {"format"}},
};

/* ---- failures ---- */

const char *tags_path(const tags_builder *b, char *out, size_t n_out) {
    size_t n = (size_t)snprintf(out, n_out, "#");
    if (b->depth > 0 && b->frames[0].kind != FORMAT_STRUCTURES)
        n += (size_t)snprintf(out + n, n_out - n, "/format");
    for (size_t i = 0; i + 1 < b->depth && n < n_out; i++) {
        const tags_frame *f = &b->frames[i];
        const char *name =
            f->kind == FORMAT_TAG          ? "content"
            : f->kind == FORMAT_STRUCTURES ? "structures"
            : f->kind == FORMAT_SEQUENCE || f->kind == FORMAT_OR || f->kind == FORMAT_MEMBERS
                ? "elements"
                : "tags";
        if (f->parts == NULL)
            n += (size_t)snprintf(out + n, n_out - n, "/%s", name);
        else
            n += (size_t)snprintf(out + n, n_out - n, "/%s/%zu", name, f->next - 1);
    }
    return out;
}

void tags_fail(tags_builder *b, inferd_status status, const char *what) {
    char path[256];
    ir_fail(b->g, status, "structural tag at %s: %s", tags_path(b, path, sizeof path), what);
}

void tags_fail_err(tags_builder *b, const inferd_err *err) {
    tags_fail(b, err->status, err->text);
}

void tags_fail_member(tags_builder *b, const char *name, const char *must) {
    char what[160];
    snprintf(what, sizeof what, "\"%s\" must be %s", name, must);
    tags_fail(b, INFERD_EINVAL, what);
}

bool tags_failed(const tags_builder *b) {
    return ir_status(b->g, NULL) != INFERD_OK;
}

/* ---- members ---- */

const json_t *tags_given(const json_t *v, const char *name) {
    const json_t *m = json_object_get(v, name);
    return m == NULL || json_is_null(m) ? NULL : m;
}

static bytes convert(tags_builder *b, bytes text) {
    converted *c = calloc(1, sizeof *c);
    if (c == NULL) {
        tags_fail(b, INFERD_ENOMEM, "no memory for its texts");
        return text;
    }
    c->next = b->texts;
    b->texts = c;
    if (!tags_add_text(&c->text, text))
        tags_fail(b, INFERD_EINVAL, "U+FDD0 and U+FDD1 must enclose the name of a control token");
    if (c->text.failed) tags_fail(b, INFERD_ENOMEM, "no memory for its texts");
    return (bytes){c->text.p, c->text.n};
}

bytes tags_text_of(tags_builder *b, const json_t *m) {
    bytes text = {json_string_value(m), json_string_length(m)};
    bool marked =
        b->kind != NULL && b->kind->tokens && text.n > 0 &&
        (strstr(text.p, GRAMMAR_TOKEN_OPEN) != NULL || strstr(text.p, GRAMMAR_TOKEN_CLOSE) != NULL);
    return marked ? convert(b, text) : text;
}

bytes tags_text_member(tags_builder *b, const json_t *v, const char *name, bool may_be_empty) {
    const json_t *m = tags_given(v, name);
    bytes text = tags_text_of(b, m);
    if (text.n == 0 && !may_be_empty) tags_fail_member(b, name, "a string that is not empty");
    if (m != NULL && !json_is_string(m)) tags_fail_member(b, name, "a string");
    return text;
}

bool tags_flag_member(tags_builder *b, const json_t *v, const char *name) {
    const json_t *m = tags_given(v, name);
    if (m != NULL && !json_is_boolean(m)) tags_fail_member(b, name, "true or false");
    return json_is_true(m);
}

uint32_t tags_count_member(tags_builder *b, const json_t *v, const char *name, uint32_t absent) {
    const json_t *m = tags_given(v, name);
    json_int_t n = json_integer_value(m);
    if (m == NULL) return absent;
    if (!json_is_integer(m) || n < 0) tags_fail_member(b, name, "an integer that is not negative");
    return (uint32_t)u64_min((uint64_t)n, IR_NO_MAX);
}

const json_t *tags_list_member(tags_builder *b, const json_t *v, const char *name, size_t n_max) {
    const json_t *m = tags_given(v, name);
    char must[64];
    snprintf(must, sizeof must, "an array of 1 to %zu", n_max);
    if (json_array_size(m) == 0 || json_array_size(m) > n_max) tags_fail_member(b, name, must);
    return m;
}

void tags_check_members(tags_builder *b, const json_t *v, format_kind kind) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        char what[160];
        bool known = strcmp(key, "type") == 0 || json_is_null(value);
        for (size_t i = 0; i < INFERD_COUNT(tags_formats[kind].members); i++) {
            const char *name = tags_formats[kind].members[i];
            known |= name != NULL && strcmp(key, name) == 0;
        }
        if (known) continue;
        snprintf(what, sizeof what, "\"%.64s\" cannot be enforced", key);
        tags_fail(b, INFERD_EUNSUPPORTED, what);
    }
}

void tags_texts_free(tags_builder *b) {
    for (converted *c = b->texts, *next; c != NULL; c = next) {
        next = c->next;
        buf_deinit(&c->text);
        free(c);
    }
}
