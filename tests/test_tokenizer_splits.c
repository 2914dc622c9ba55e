/* test_tokenizer_splits.c - words against those that the published regular expressions make.
 *
 * tests/data has strings with the ends of their words, by the expression itself in the Hugging Face
 * engine (tests/tools/make_splits.py).  Mistral Nemo's "tekken" was refused while the README said
 * that Nemo can be served. */
#include "tok_vectors.h"
#include "tokenizer/pretok.h"

typedef struct ends {
    const unsigned char *text;
    json_t *expected;
    size_t at, n; // bytes and words so far
    bool same;
} ends;

static bool compare_word(void *ctx, const unsigned char *word, size_t n) {
    ends *e = ctx;
    e->at += n;
    json_t *end = json_array_get(e->expected, e->n++);
    e->same = e->same && word == e->text + e->at - n && end != NULL &&
              (size_t)json_integer_value(end) == e->at;
    return true;
}

static bool splits_as(pretok_kind kind, json_t *line) {
    json_t *text = json_object_get(line, "text");
    ends e = {(const unsigned char *)json_string_value(text), json_object_get(line, "ends"), 0, 0,
              true};
    EXPECT(json_is_string(text) && json_is_array(e.expected));
    if (!json_is_string(text)) return false;
    EXPECT(pretok_split(kind, e.text, json_string_length(text), compare_word, &e));
    e.same = e.same && e.n == json_array_size(e.expected) && e.at == json_string_length(text);
    if (!e.same) printf("  \"%s\"\n", json_string_value(text));
    return e.same;
}

static void tekken_splits_as_its_expression(void) {
    buf b = read_whole(INFERD_SOURCE_DIR "/tests/data/tekken.splits.jsonl.xz", true);
    size_t n = 0, n_same = 0;
    EXPECT(b.p != NULL);
    char *end = b.p + b.n;
    for (char *line = b.p, *next; line != NULL && line < end; line = next, n++) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        next = newline != NULL ? newline + 1 : end;
        json_t *j = json_loadb(line, (size_t)(next - line), JSON_ALLOW_NUL, NULL);
        n_same += splits_as(PRETOK_TEKKEN, j);
        json_decref(j);
    }
    printf("tekken: %zu of %zu strings have the same words\n", n_same, n);
    EXPECT_EQ(n, 4000);
    EXPECT_EQ(n_same, n);
    buf_deinit(&b);
}

static const test_case cases[] = {
    TEST(tekken_splits_as_its_expression),
};

TEST_MAIN(cases)
