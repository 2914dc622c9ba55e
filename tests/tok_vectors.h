/* tok_vectors.h - strings with the ids that another engine made of them, for the tokenizer tests.
 *
 * The files lie outside the repository, in the folder INFERD_SHARED or beside the source tree. */
#ifndef INFERD_TOK_VECTORS_H
#define INFERD_TOK_VECTORS_H

#include <jansson.h>
#include <unistd.h>

#include "gguf/gguf.h"
#include "models/tokenizer.h"
#include "test.h"

static inline const char *shared_path(const char *name) {
    static char path[4096];
    const char *dir = getenv("INFERD_SHARED");
    if (dir != NULL)
        snprintf(path, sizeof path, "%s/%s", dir, name);
    else
        snprintf(path, sizeof path, "%s/../shared/%s", INFERD_SOURCE_DIR, name);
    return path;
}

/* The whole of a file, through `xz -dc` when `packed`; p == NULL: it cannot be read. */
static inline buf read_whole(const char *path, bool packed) {
    buf b = {0};
    char command[4200], block[65536];
    if (access(path, R_OK) != 0) return b;
    snprintf(command, sizeof command, "xz -dc '%s'", path);
    FILE *f = packed ? popen(command, "r") : fopen(path, "rb");
    if (f == NULL) return b;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) buf_add(&b, block, n);
    bool ok = (packed ? pclose(f) : fclose(f)) == 0 && !b.failed;
    if (!ok) buf_deinit(&b);
    return b;
}

static inline tokenizer *open_tokenizer(const char *path) {
    gguf *g = NULL;
    tokenizer *t = NULL;
    inferd_err err = {0};
    if (gguf_open(path, &g, &err) == INFERD_OK) (void)tok_open(g, &t, &err);
    gguf_close(g);
    if (t == NULL) printf("%s\n", err.text);
    return t;
}

static inline void print_ids(const char *label, const tok_ids *ids) {
    printf("  %s", label);
    for (size_t i = 0; i < ids->n; i++) printf(" %d", ids->ids[i]);
    printf("\n");
}

/* Whether `text` gives exactly `expected`; says so when it does not. */
static inline bool encodes_to(const tokenizer *t, bytes text, const tok_ids *expected) {
    tok_ids ids = {0};
    tok_span all = {text.n, true};
    inferd_err err = {0};
    bool same = tok_encode(t, text, &all, 1, NULL, &ids, &err) == INFERD_OK &&
                ids.n == expected->n &&
                (ids.n == 0 || memcmp(ids.ids, expected->ids, ids.n * sizeof *ids.ids) == 0);
    if (!same) {
        printf("  \"%.*s\" %s\n", (int)text.n, text.p, err.text);
        print_ids("expected", expected);
        print_ids("got     ", &ids);
    }
    tok_ids_deinit(&ids);
    return same;
}

/* Whether pushing the ids one by one gives the text back. */
static inline bool decodes_to(const tokenizer *t, const tok_ids *ids, bytes text) {
    tok_stream s;
    buf out = {0};
    tok_stream_init(&s, t, false);
    for (size_t i = 0; i < ids->n; i++) tok_stream_push(&s, ids->ids[i], &out);
    tok_stream_finish(&s, &out);
    bool same =
        !out.failed && out.n == text.n && (text.n == 0 || memcmp(out.p, text.p, text.n) == 0);
    buf_deinit(&out);
    return same;
}

/* ---- 4,000 strings as JSON lines ---- */

/* All lines of `name`: how many there are, how many ids and how many round trips were right. */
static inline size_t check_lines(const tokenizer *t, const char *name, size_t *n_same,
                                 size_t *n_back) {
    buf b = read_whole(shared_path(name), true);
    size_t n = 0;
    char *end = b.p + b.n;
    *n_same = *n_back = 0;
    for (char *line = b.p, *next; line != NULL && line < end; line = next, n++) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        next = newline != NULL ? newline + 1 : end;
        json_t *j = json_loadb(line, (size_t)(next - line), JSON_ALLOW_NUL, NULL);
        json_t *text = json_object_get(j, "text"), *list = json_object_get(j, "ids");
        EXPECT(json_is_string(text) && json_is_array(list));
        tok_ids ids = {0};
        for (size_t i = 0; i < json_array_size(list); i++)
            EXPECT(tok_ids_push(&ids, (tok_id)json_integer_value(json_array_get(list, i))));
        bytes s = {json_string_value(text), json_string_length(text)};
        *n_same += encodes_to(t, s, &ids);
        *n_back += decodes_to(t, &ids, s);
        tok_ids_deinit(&ids);
        json_decref(j);
    }
    buf_deinit(&b);
    return n;
}

#endif
