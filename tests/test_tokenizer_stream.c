/* test_tokenizer_stream.c - ids back to text, one at a time, never half a character. */
#include "tok_tiny.h"
#include "tokenizer/utf8.h"

#define BAD "\xEF\xBF\xBD" // U+FFFD

static tokenizer *open_bytes(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){"h i", NULL});
    words_add(&w, "<|end|>", WORD_CONTROL); // 257
    words_add(&w, "<tool>", WORD_USER_DEFINED);
    return words_open(&w);
}

static void push_all(tok_stream *s, const tok_id *ids, size_t n, buf *out) {
    for (size_t i = 0; i < n; i++) tok_stream_push(s, ids[i], out);
}

static void a_character_comes_out_when_it_is_whole(void) {
    tokenizer *t = open_bytes();
    tok_stream s;
    buf out = {0};
    tok_stream_init(&s, t, true);
    tok_id robot[] = {0xF0, 0x9F, 0xA4, 0x96};
    push_all(&s, robot, 3, &out);
    EXPECT_EQ(out.n, 0);
    push_all(&s, robot + 3, 1, &out);
    EXPECT_STR(buf_cstr(&out), "🤖");
    tok_stream_push(&s, 256, &out);
    EXPECT_STR(buf_cstr(&out), "🤖hi");
    tok_stream_finish(&s, &out);
    EXPECT_STR(buf_cstr(&out), "🤖hi");
    buf_deinit(&out);
    tok_close(t);
}

static void specials_are_hidden_when_asked(void) {
    tokenizer *t = open_bytes();
    tok_id ids[] = {256, 257, 258, -1, 9999, 'x'}; // -1 and 9999 are no tokens
    for (int skip = 0; skip < 2; skip++) {
        tok_stream s;
        buf out = {0};
        tok_stream_init(&s, t, skip);
        push_all(&s, ids, INFERD_COUNT(ids), &out);
        tok_stream_finish(&s, &out);
        EXPECT_STR(buf_cstr(&out), skip ? "hi<tool>x" : "hi<|end|><tool>x");
        buf_deinit(&out);
    }
    // A hidden token does not come between the bytes of a character; a shown one does.
    tok_id split[] = {0xC3, 257, 0xA9};
    for (int skip = 0; skip < 2; skip++) {
        tok_stream s;
        buf out = {0};
        tok_stream_init(&s, t, skip);
        push_all(&s, split, INFERD_COUNT(split), &out);
        EXPECT_STR(buf_cstr(&out), skip ? "é" : BAD "<|end|>" BAD);
        buf_deinit(&out);
    }
    tok_close(t);
}

static void what_cannot_be_text_is_replaced(void) {
    static const struct {
        const char *raw, *text;
    } rows[] = {
        // one U+FFFD for each longest start of a character, as Unicode recommends
        {"a\x80"
         "b",
         "a" BAD "b"},
        {"\xC3", BAD},
        {"\xC3"
         "a",
         BAD "a"},
        {"\xE4\xB8"
         "a",
         BAD "a"},
        {"\xF0\x9F\xA4", BAD},
        {"\xF0\x9F\xA4\xF0\x9F\xA4\x96", BAD "🤖"},
        {"\xC0\x80", BAD BAD},
        {"\xED\xA0\x80", BAD BAD BAD},
        {"\xE0\x80\x80", BAD BAD BAD},
        {"\xF4\x90\x80\x80", BAD BAD BAD BAD},
        {"\xFF\xFE", BAD BAD},
        {"\xF1\x80\x80\xE1\x80\xC2"
         "b",
         BAD BAD BAD "b"},
    };
    tokenizer *t = open_bytes();
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        tok_stream s;
        buf out = {0};
        tok_stream_init(&s, t, true);
        for (const char *p = rows[i].raw; *p != 0; p++)
            tok_stream_push(&s, (unsigned char)*p, &out);
        tok_stream_finish(&s, &out);
        EXPECT_STR(buf_cstr(&out), rows[i].text);
        buf_deinit(&out);
    }
    tok_close(t);
}

/* ---- every split gives the same ---- */

/* Can p[0..n) become a character?  By trying what could follow. */
static bool is_start_of_character(const unsigned char *p, size_t n) {
    static const unsigned char follow[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF};
    unsigned char whole[UTF8_BYTES_MAX];
    if (n >= UTF8_BYTES_MAX) return false;
    memcpy(whole, p, n);
    for (size_t i = 0; i < INFERD_COUNT(follow); i++) {
        whole[n] = follow[i];
        if (utf8_char_bytes(whole, n + 1) == n + 1 || is_start_of_character(whole, n + 1))
            return true;
    }
    return false;
}

/* All bytes at once, from the definition of a maximal subpart. */
static void replace_plainly(const unsigned char *p, size_t n, buf *out) {
    for (size_t at = 0; at < n;) {
        size_t length = utf8_char_bytes(p + at, n - at);
        if (length > 0) {
            buf_add(out, p + at, length);
        } else {
            buf_add_str(out, BAD);
            for (length = 1; at + length < n && is_start_of_character(p + at, length + 1);)
                length++;
        }
        at += length;
    }
}

/* What a push returns: the bytes that came out for tokens before it. */
static void bytes_of_earlier_tokens_are_told_apart(void) {
    static const struct {
        const char *tokens[3]; // raw bytes
        size_t n_earlier[3];
    } rows[] = {
        {{"\xE2", " x", "y"}, {0, 3, 0}},
        {{"\xE2", "\xE2", "\xFF"}, {0, 3, 3}},
        {{"\xE2", "\x98", "\x83x"}, {0, 0, 0}}, // one character of all three
        {{"\xE2", "\x98 x", "y"}, {0, 0, 0}},   // one U+FFFD of the first two
        {{"a\xE2", "b\xE2", "\x98\x83"}, {0, 3, 0}},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        tiny_words w;
        words_bpe(&w, "smollm", (const char *[]){NULL});
        for (size_t k = 0; k < 3; k++) {
            for (const char *p = rows[i].tokens[k]; *p != 0; p++)
                tiny_byte_name((unsigned char)*p, &w.names[w.n]);
            w.kinds[w.n++] = WORD_NORMAL;
        }
        tokenizer *t = words_open(&w);
        tok_stream s;
        buf out = {0};
        tok_stream_init(&s, t, true);
        for (size_t k = 0; k < 3; k++)
            EXPECT_EQ(tok_stream_push(&s, (tok_id)(BPE_FIRST + k), &out), rows[i].n_earlier[k]);
        buf_deinit(&out);
        tok_close(t);
    }
}

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static void every_split_of_a_text_gives_the_same(void) {
    // Tokens of one to three bytes, so that characters break everywhere.
    static const unsigned char often[] = {'a',  0x80, 0xBF, 0xC2, 0xE0, 0xED, 0xEF,
                                          0xF0, 0xF4, 0x9F, 0xA0, 0x90, 0x8F};
    enum { TOKENS = 200 };
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){NULL});
    while (w.n < BPE_FIRST + TOKENS) {
        for (uint32_t i = 2 + random_below(2); i > 0; i--)
            tiny_byte_name(often[random_below(INFERD_COUNT(often))], &w.names[w.n]);
        w.kinds[w.n++] = WORD_NORMAL;
    }
    tokenizer *t = words_open(&w);
    for (int round = 0; round < 5000; round++) {
        tok_stream s;
        buf all = {0}, expected = {0}, got = {0};
        tok_stream_init(&s, t, true);
        for (uint32_t i = random_below(12); i > 0; i--) {
            tok_id id = random_below(3) == 0 ? often[random_below(INFERD_COUNT(often))]
                                             : (tok_id)(BPE_FIRST + random_below(TOKENS));
            buf_add(&all, tok_piece(t, id).p, tok_piece(t, id).n);
            size_t before = got.n;
            tok_stream_push(&s, id, &got);
            const unsigned char *out = (const unsigned char *)buf_cstr(&got);
            EXPECT_EQ(utf8_valid_bytes(out + before, got.n - before), got.n - before);
        }
        tok_stream_finish(&s, &got);
        replace_plainly((const unsigned char *)all.p, all.n, &expected);
        EXPECT_STR(buf_cstr(&got), buf_cstr(&expected));
        buf_deinit(&all);
        buf_deinit(&expected);
        buf_deinit(&got);
    }
    tok_close(t);
}

/* ---- SentencePiece ---- */

static void expect_text(const tokenizer *t, bool skip, const tok_id *ids, size_t n,
                        const char *expected) {
    tok_stream s;
    buf out = {0};
    tok_stream_init(&s, t, skip);
    push_all(&s, ids, n, &out);
    tok_stream_finish(&s, &out);
    EXPECT_STR(buf_cstr(&out), expected);
    buf_deinit(&out);
}

static void the_first_space_of_a_text_is_dropped(void) {
    for (int prefix = 0; prefix < 2; prefix++) {
        tiny_words w;
        words_spm(&w);
        words_add(&w, "▁a", WORD_NORMAL); // 259
        words_add(&w, "▁", WORD_NORMAL);
        tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", prefix);
        tokenizer *t = words_open(&w);
        expect_text(t, true, (tok_id[]){259, 259}, 2, prefix ? "a a" : " a a");
        expect_text(t, true, (tok_id[]){260, 259}, 2, prefix ? " a" : "  a"); // one only
        expect_text(t, true, (tok_id[]){1, 259, 2, 259}, 4, prefix ? "a a" : " a a");
        expect_text(t, false, (tok_id[]){1, 259}, 2, "<s> a"); // it is not the first then
        expect_text(t, true, (tok_id[]){SPM_BYTE_0 + ' ', SPM_BYTE_0 + 'x'}, 2,
                    prefix ? "x" : " x");
        expect_text(t, true, (tok_id[]){SPM_BYTE_0 + 0xC3, SPM_BYTE_0 + 0xA9, 259}, 3, "é a");
        expect_text(t, true, (tok_id[]){0}, 1, ""); // <unk> is no text
        expect_text(t, true, NULL, 0, "");
        tok_close(t);
    }
}

static void a_full_buffer_says_so(void) {
    tokenizer *t = open_bytes();
    tok_stream s;
    buf out;
    buf_init(&out, 3);
    tok_stream_init(&s, t, true);
    push_all(&s, (tok_id[]){256, 256}, 2, &out);
    EXPECT(out.failed);
    EXPECT_EQ(out.n, 2);
    buf_deinit(&out);
    tok_close(t);
}

static const test_case cases[] = {
    TEST(a_character_comes_out_when_it_is_whole),
    TEST(specials_are_hidden_when_asked),
    TEST(what_cannot_be_text_is_replaced),
    TEST(bytes_of_earlier_tokens_are_told_apart),
    TEST(every_split_of_a_text_gives_the_same),
    TEST(the_first_space_of_a_text_is_dropped),
    TEST(a_full_buffer_says_so),
};

TEST_MAIN(cases)
