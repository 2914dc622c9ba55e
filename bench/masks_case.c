#include <string.h>

#include "masks_case.h"

static bytes text_of(const json_t *v) {
    return (bytes){json_string_value(v), json_string_length(v)};
}

/* ---- cases ---- */

static inferd_status read_tokens(const json_t *ids, uint32_t n_vocab, mask_test *t,
                                 inferd_err *err) {
    t->n_tokens = json_array_size(ids);
    t->tokens = calloc(t->n_tokens + 1, sizeof *t->tokens);
    if (t->tokens == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for tokens");
    for (size_t i = 0; i < t->n_tokens; i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= (json_int_t)n_vocab)
            return inferd_fail(err, INFERD_EFORMAT, "token %zu is not below %u", i, n_vocab);
        t->tokens[i] = (tok_id)value;
    }
    return INFERD_OK;
}

static inferd_status read_tests(const json_t *tests, uint32_t n_vocab, mask_case *c,
                                inferd_err *err) {
    c->tests = calloc(json_array_size(tests) + 1, sizeof *c->tests);
    if (c->tests == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for tests");
    for (; c->n_tests < json_array_size(tests); c->n_tests++) {
        const json_t *row = json_array_get(tests, c->n_tests);
        mask_test *t = &c->tests[c->n_tests];
        *t = (mask_test){.valid = json_is_true(json_object_get(row, "valid")),
                         .text = text_of(json_object_get(row, "text"))};
        if (t->text.p == NULL)
            return inferd_fail(err, INFERD_EFORMAT, "test %zu has no text", c->n_tests);
        const json_t *ids = json_object_get(row, "tokens");
        if (n_vocab > 0 && !json_is_array(ids))
            return inferd_fail(err, INFERD_EFORMAT, "test %zu has no tokens", c->n_tests);
        if (n_vocab > 0 && read_tokens(ids, n_vocab, t, err) != INFERD_OK) {
            c->n_tests++; // has memory
            return err->status;
        }
    }
    return INFERD_OK;
}

inferd_status mask_case_read(bytes line, uint32_t n_vocab, mask_case *out, inferd_err *err) {
    json_error_t problem;
    *out = (mask_case){.line = json_loadb(line.p, line.n, JSON_ALLOW_NUL, &problem)};
    if (out->line == NULL)
        return inferd_fail(err, INFERD_EFORMAT, "a case is not JSON: %s", problem.text);
    out->id = json_string_value(json_object_get(out->line, "id"));
    out->schema = text_of(json_object_get(out->line, "schema"));
    inferd_status s = out->id != NULL && out->schema.p != NULL
                          ? INFERD_OK
                          : inferd_fail(err, INFERD_EFORMAT, "a case has no id or no schema");
    if (s == INFERD_OK) s = read_tests(json_object_get(out->line, "tests"), n_vocab, out, err);
    if (s != INFERD_OK) mask_case_deinit(out);
    return s;
}

void mask_case_deinit(mask_case *c) {
    for (size_t i = 0; i < c->n_tests; i++) free(c->tests[i].tokens);
    free(c->tests);
    json_decref(c->line);
    *c = (mask_case){0};
}

/* ---- vocabularies ---- */

static const char magic[8] = {'I', 'F', 'P', 'I', 'E', 'C', 'E', 'S'};

static bool read_file(const char *path, char **p, size_t *n) {
    FILE *f = fopen(path, "rb");
    long size = -1;
    if (f == NULL) return false;
    if (fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    *p = size > 0 ? malloc((size_t)size) : NULL;
    *n = size > 0 ? (size_t)size : 0;
    bool ok = *p != NULL && fseek(f, 0, SEEK_SET) == 0 && fread(*p, 1, *n, f) == *n;
    fclose(f);
    if (!ok) free(*p);
    return ok;
}

/* The next n bytes of the file, or NULL. */
static const char *take(bytes *rest, size_t n) {
    if (rest->n < n) return NULL;
    const char *p = rest->p;
    rest->p += n;
    rest->n -= n;
    return p;
}

static bool take_u32(bytes *rest, uint32_t *out) {
    const char *p = take(rest, sizeof *out);
    if (p != NULL) memcpy(out, p, sizeof *out);
    return p != NULL;
}

static bool split(bytes rest, uint32_t n_vocab, uint32_t n_ends, tok_id *ends, bytes *pieces) {
    const char *p = take(&rest, n_ends * sizeof *ends);
    if (p == NULL) return false;
    memcpy(ends, p, n_ends * sizeof *ends);
    for (uint32_t i = 0; i < n_vocab; i++) {
        uint32_t n;
        if (!take_u32(&rest, &n) || (p = take(&rest, n)) == NULL) return false;
        pieces[i] = (bytes){p, n};
    }
    return rest.n == 0;
}

inferd_status mask_pieces_read(const char *path, grammar_vocab **out, uint32_t *n_vocab,
                               inferd_err *err) {
    char *file;
    size_t n;
    uint32_t n_ends = 0;
    if (!read_file(path, &file, &n))
        return inferd_fail(err, INFERD_EIO, "%s cannot be read, or is empty", path);
    bytes rest = {file, n};
    const char *m = take(&rest, sizeof magic);
    inferd_status s = INFERD_OK;
    if (m == NULL || memcmp(m, magic, sizeof magic) != 0 || !take_u32(&rest, n_vocab) ||
        !take_u32(&rest, &n_ends) || *n_vocab > n || n_ends > n)
        s = inferd_fail(err, INFERD_EFORMAT, "%s is not a file of pieces", path);
    tok_id *ends = s == INFERD_OK ? calloc((size_t)n_ends + 1, sizeof *ends) : NULL;
    bytes *pieces = s == INFERD_OK ? calloc((size_t)*n_vocab + 1, sizeof *pieces) : NULL;
    if (s == INFERD_OK && (ends == NULL || pieces == NULL))
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for %u pieces", *n_vocab);
    if (s == INFERD_OK && !split(rest, *n_vocab, n_ends, ends, pieces))
        s = inferd_fail(err, INFERD_EFORMAT, "%s has another length than its pieces", path);
    if (s == INFERD_OK) s = grammar_vocab_of_pieces(pieces, *n_vocab, ends, n_ends, out, err);
    free(pieces);
    free(ends);
    free(file);
    return s;
}

inferd_status mask_bytes_vocab(grammar_vocab **out, inferd_err *err) {
    char all[256];
    bytes pieces[256];
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
        pieces[i] = (bytes){&all[i], 1};
    }
    return grammar_vocab_of_pieces(pieces, 256, NULL, 0, out, err);
}
