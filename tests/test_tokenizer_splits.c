/* test_tokenizer_splits.c - words against those that the published regular expressions make.
 *
 * tests/data/splits.jsonl.xz has strings with the lengths of their words, by the expressions
 * themselves (tests/tools/make_splits.py); INFERD_SPLITS names a longer file of the same form. */
#include "tok_vectors.h"
#include "tokenizer/pretok.h"

enum { FAMILIES_MAX = 64, SHOWN_MAX = 3, STRINGS_MIN = 1500 };

typedef struct lengths {
    const json_t *expected;
    size_t at, n; // bytes and words so far
    bool same;
} lengths;

static bool compare_word(void *ctx, const unsigned char *word, size_t n) {
    (void)word;
    lengths *l = ctx;
    const json_t *expected = json_array_get(l->expected, l->n++);
    l->at += n;
    l->same = l->same && expected != NULL && (size_t)json_integer_value(expected) == n;
    return true;
}

static bool splits_as(pretok_kind kind, bytes text, const json_t *expected) {
    lengths l = {expected, 0, 0, true};
    EXPECT(pretok_split(kind, (const unsigned char *)text.p, text.n, compare_word, &l));
    return l.same && l.n == json_array_size(expected) && l.at == text.n;
}

typedef struct family {
    const pretok_name *name;
    size_t n_same;
} family;

static size_t read_families(json_t *line, family families[FAMILIES_MAX]) {
    size_t n = json_array_size(line);
    EXPECT(n > 0 && n <= FAMILIES_MAX);
    if (n > FAMILIES_MAX) return 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(line, i));
        families[i] = (family){pretok_find((bytes){name, strlen(name)}), 0};
        EXPECT(families[i].name != NULL);
    }
    return n;
}

static void compare_line(json_t *line, family *families, size_t n_families) {
    json_t *text = json_object_get(line, "text"), *rows = json_object_get(line, "words");
    const json_t *row = NULL;
    EXPECT(json_is_string(text) && json_array_size(rows) == n_families);
    bytes s = {json_string_value(text), json_string_length(text)};
    for (size_t i = 0; s.p != NULL && i < n_families; i++) {
        const json_t *own = json_array_get(rows, i);
        if (json_array_size(own) > 0) row = own; // else the words of the family before
        bool same = splits_as(families[i].name->kind, s, row);
        families[i].n_same += same;
        static int n_shown;
        if (!same && n_shown++ < SHOWN_MAX) printf("  %s: %s\n", families[i].name->name, s.p);
    }
}

static void words_are_those_of_the_expressions(void) {
    const char *more = getenv("INFERD_SPLITS");
    buf b = more != NULL ? read_whole(more, false)
                         : read_whole(INFERD_SOURCE_DIR "/tests/data/splits.jsonl.xz", true);
    family families[FAMILIES_MAX];
    size_t n_families = 0, n = 0;
    EXPECT(b.p != NULL);
    char *end = b.p + b.n;
    for (char *line = b.p, *next; line != NULL && line < end; line = next) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        next = newline != NULL ? newline + 1 : end;
        json_t *j = json_loadb(line, (size_t)(next - line), JSON_ALLOW_NUL, NULL);
        if (n_families == 0) {
            n_families = read_families(j, families);
        } else {
            compare_line(j, families, n_families);
            n++;
        }
        json_decref(j);
        if (n_families == 0) break;
    }
    EXPECT(n >= STRINGS_MIN);
    for (size_t i = 0; i < n_families; i++) {
        printf("%s: %zu of %zu strings have the same words\n", families[i].name->name,
               families[i].n_same, n);
        EXPECT_EQ(families[i].n_same, n);
    }
    buf_deinit(&b);
}

/* Every scanner has vectors: by this name or by another of the same kind. */
static void every_kind_has_vectors(void) {
    buf b = read_whole(INFERD_SOURCE_DIR "/tests/data/splits.jsonl.xz", true);
    bool seen[PRETOK_KINDS] = {false};
    char *newline = b.p == NULL ? NULL : memchr(b.p, '\n', b.n);
    EXPECT(newline != NULL);
    if (newline == NULL) return;
    json_t *list = json_loadb(b.p, (size_t)(newline - b.p), 0, NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        const pretok_name *found = pretok_find((bytes){name, strlen(name)});
        if (found != NULL) seen[found->kind] = true;
    }
    for (size_t kind = 0; kind < PRETOK_KINDS; kind++) {
        if (!seen[kind]) printf("  kind %zu has no vectors\n", kind);
        EXPECT(seen[kind]);
    }
    json_decref(list);
    buf_deinit(&b);
}

/* The document names every pre-tokenizer, so that it cannot fall behind. */
static void the_document_lists_every_name(void) {
    buf b = read_whole(INFERD_SOURCE_DIR "/docs/models.md", false);
    EXPECT(b.p != NULL);
    const char *text = buf_cstr(&b);
    for (size_t i = 0; i < pretok_n_names(); i++) {
        char quoted[64];
        snprintf(quoted, sizeof quoted, "`%s`", pretok_name_at(i)->name);
        if (strstr(text, quoted) == NULL) printf("  docs/models.md has no %s\n", quoted);
        EXPECT(strstr(text, quoted) != NULL);
    }
    buf_deinit(&b);
}

static const test_case cases[] = {
    TEST(words_are_those_of_the_expressions),
    TEST(every_kind_has_vectors),
    TEST(the_document_lists_every_name),
};

TEST_MAIN(cases)
