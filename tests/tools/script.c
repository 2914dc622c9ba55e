/* script.c - see script.h. */
#include "tools/script.h"

#include <errno.h>

enum { LINES_FIRST = 16, SHOWN_TAIL_BYTES = 80 };

struct script {
    char *path;
    long n_bytes;       // read so far: whole lines
    uint32_t n_read;    // lines read so far, empty ones too
    json_t **values;    // [n_lines] what lines[i] borrows from; owned
    script_line *lines; // [n_lines] owned
    uint32_t n_lines, capacity;
};

inferd_status script_open(const char *path, script **out, inferd_err *err) {
    script *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s != NULL) s->path = strdup(path);
    if (s == NULL || s->path == NULL) {
        script_close(s);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a script");
    }
    *out = s;
    return INFERD_OK;
}

void script_close(script *s) {
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->n_lines; i++) json_decref(s->values[i]);
    free(s->values);
    free(s->lines);
    free(s->path);
    free(s);
}

void script_quote(bytes text, buf *out) {
    buf_add_char(out, '"');
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.p[i];
        if (c == '\n')
            buf_add_str(out, "\\n");
        else if (c == '"' || c == '\\')
            buf_add_format(out, "\\%c", c);
        else if (c < 0x20 || c >= 0x7F)
            buf_add_format(out, "\\x%02x", c);
        else
            buf_add_char(out, (char)c);
    }
    buf_add_char(out, '"');
}

/* ---- reading ---- */

static bool is_text_or_list(const json_t *value, bool ids_too) {
    if (json_is_string(value)) return true;
    if (!json_is_array(value)) return false;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *part = json_array_get(value, i);
        if (!json_is_string(part) && !(ids_too && json_is_integer(part))) return false;
    }
    return true;
}

/* What is wrong with a line; NULL: nothing. */
static const char *read_line(json_t *value, script_line *out) {
    const char *key;
    json_t *field;
    *out = (script_line){.tail_bytes = SCRIPT_TAIL_BYTES};
    if (!json_is_object(value)) return "it is no object";
    json_object_foreach(value, key, field) {
        if (strcmp(key, "when") == 0) {
            if (!is_text_or_list(field, false)) return "when is no text, and no list of texts";
            out->when = field;
        } else if (strcmp(key, "say") == 0) {
            if (!is_text_or_list(field, true))
                return "say is no text, and no list of texts and ids";
            out->say = field;
        } else if (strcmp(key, "once") == 0) {
            if (!json_is_boolean(field)) return "once is not true or false";
            out->once = json_is_true(field);
        } else if (strcmp(key, "tail") == 0) {
            if (json_integer_value(field) < 1) return "tail is no number of bytes";
            out->tail_bytes = (size_t)json_integer_value(field);
        } else {
            return "it has a key besides when, say, once and tail";
        }
    }
    return out->when != NULL && out->say != NULL ? NULL : "when or say is missing";
}

static bool has_room(script *s) {
    if (s->n_lines < s->capacity) return true;
    uint32_t capacity = s->capacity > 0 ? 2 * s->capacity : LINES_FIRST;
    json_t **values = realloc(s->values, capacity * sizeof *values);
    if (values != NULL) s->values = values;
    script_line *lines = realloc(s->lines, capacity * sizeof *lines);
    if (lines != NULL) s->lines = lines;
    if (values == NULL || lines == NULL) return false;
    s->capacity = capacity;
    return true;
}

/* Line number n_read + 1. */
static inferd_status add_line(script *s, const char *text, size_t n, inferd_err *err) {
    json_error_t why;
    uint32_t no = s->n_read + 1;
    if (strspn(text, " \t\r\n") >= n) return INFERD_OK;
    if (s->n_lines == SCRIPT_LINES_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "the script has more than %d lines",
                           SCRIPT_LINES_MAX);
    if (!has_room(s)) return inferd_fail(err, INFERD_ENOMEM, "no memory for a line of the script");
    json_t *value = json_loadb(text, n, 0, &why);
    if (value == NULL) return inferd_fail(err, INFERD_EFORMAT, "script line %u: %s", no, why.text);
    const char *wrong = read_line(value, &s->lines[s->n_lines]);
    if (wrong != NULL) {
        json_decref(value);
        return inferd_fail(err, INFERD_EFORMAT, "script line %u: %s", no, wrong);
    }
    s->lines[s->n_lines].no = no;
    s->values[s->n_lines++] = value;
    return INFERD_OK;
}

/* The lines that were appended since the last time.  One that is wrong is read again next time. */
static inferd_status read_more(script *s, inferd_err *err) {
    inferd_status status = INFERD_OK;
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;
    FILE *f = fopen(s->path, "re");
    if (f == NULL || fseek(f, s->n_bytes, SEEK_SET) != 0)
        status =
            inferd_fail(err, INFERD_EIO, "cannot read the script %s: %s", s->path, strerror(errno));
    while (status == INFERD_OK && (n = getline(&text, &capacity, f)) > 0 && text[n - 1] == '\n') {
        status = add_line(s, text, (size_t)n, err);
        if (status != INFERD_OK) break;
        s->n_read++;
        s->n_bytes += n;
    }
    free(text);
    if (f != NULL) fclose(f);
    return status;
}

/* ---- matching ---- */

static bool contains(bytes text, const json_t *needle) {
    return memmem(text.p, text.n, json_string_value(needle), json_string_length(needle)) != NULL;
}

static bytes tail_of(bytes text, size_t n_max) {
    size_t n = size_min(text.n, n_max);
    return (bytes){text.p + (text.n - n), n};
}

static bool matches(const script_line *line, bytes prompt) {
    bytes tail = tail_of(prompt, line->tail_bytes);
    if (line->once && line->used) return false;
    if (json_is_string(line->when)) return contains(tail, line->when);
    for (size_t i = 0; i < json_array_size(line->when); i++)
        if (!contains(tail, json_array_get(line->when, i))) return false;
    return true;
}

inferd_status script_find(script *s, bytes prompt, script_line *out, inferd_err *err) {
    inferd_status status = read_more(s, err);
    if (status != INFERD_OK) return status;
    for (uint32_t i = 0; i < s->n_lines; i++) {
        if (!matches(&s->lines[i], prompt)) continue;
        s->lines[i].used = true;
        *out = s->lines[i];
        return INFERD_OK;
    }
    buf shown = {0};
    script_quote(tail_of(prompt, SHOWN_TAIL_BYTES), &shown);
    inferd_fail(err, INFERD_ENOTFOUND,
                "no line of the script matches the prompt, which ends with %s", buf_cstr(&shown));
    buf_deinit(&shown);
    return INFERD_ENOTFOUND;
}

/* ---- tokens ---- */

static inferd_status encode_part(const json_t *part, const tokenizer *tok, uint32_t n_vocab,
                                 tok_ids *out, inferd_err *err) {
    if (json_is_integer(part)) {
        json_int_t id = json_integer_value(part);
        if (id < 0 || id >= (json_int_t)n_vocab)
            return inferd_fail(err, INFERD_EINVAL, "the script says token %lld of %u",
                               (long long)id, n_vocab);
        return tok_ids_push(out, (tok_id)id)
                   ? INFERD_OK
                   : inferd_fail(err, INFERD_ENOMEM, "no memory for the tokens of the script");
    }
    bytes text = {json_string_value(part), json_string_length(part)};
    tok_span all = {.n = text.n, .specials = true};
    return tok_encode(tok, text, &all, 1, NULL, out, err);
}

inferd_status script_encode(const json_t *say, const tokenizer *tok, uint32_t n_vocab, tok_ids *out,
                            inferd_err *err) {
    inferd_status status = INFERD_OK;
    if (!json_is_array(say)) return encode_part(say, tok, n_vocab, out, err);
    for (size_t i = 0; i < json_array_size(say) && status == INFERD_OK; i++)
        status = encode_part(json_array_get(say, i), tok, n_vocab, out, err);
    return status;
}
