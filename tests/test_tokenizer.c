/* test_tokenizer.c - byte-level BPE, special tokens, spans, limits, and what a vocabulary says.
 *
 * SentencePiece is in test_tokenizer_spm.c, the way back to text in test_tokenizer_stream.c. */
#include "tok_tiny.h"

static const char *const hello[] = {"h e", "l l",   "he ll", "hell o",  "Ġ w",
                                    "o r", "Ġw or", "l d",   "Ġwor ld", NULL};
enum { HE = 256, LL, HELL, HELLO, SP_W, OR, SP_WOR, LD, SP_WORLD, SPECIAL };

static tokenizer *open_hello(const char *pre) {
    tiny_words w;
    words_bpe(&w, pre, hello);
    EXPECT_EQ(words_add(&w, "<|s|>", WORD_CONTROL), SPECIAL);
    words_add(&w, "<|s|>!", WORD_CONTROL);
    words_add(&w, "<tool>", WORD_USER_DEFINED);
    words_add(&w, "<unk>", WORD_UNKNOWN);
    return words_open(&w);
}

/* ---- merging ---- */

static void words_become_their_tokens(void) {
    tokenizer *t = open_hello("smollm");
    expect_ids(t, "", false, "");
    EXPECT_EQ(tok_encode(t, (bytes){NULL, 0}, NULL, 0, NULL, &(tok_ids){0}, NULL), INFERD_OK);
    expect_ids(t, "hello world", false, "259 264");
    expect_ids(t, "hello", false, "259");
    expect_ids(t, "hell he", false, "258 32 256");
    expect_ids(t, "hellold", false, "259 263");
    expect_ids(t, "é", false, "195 169"); // bytes nobody merged
    expect_ids(t, "1 2", false, "49 32 50");
    tok_close(t);
}

static void the_earliest_merge_goes_first_then_the_leftmost(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){"b c", "a b", "a a", NULL});
    tokenizer *t = words_open(&w);
    expect_ids(t, "abc", false, "97 256");
    expect_ids(t, "ab", false, "257");
    expect_ids(t, "aaa", false, "258 97");
    expect_ids(t, "aab", false, "97 257"); // a b is earlier than a a
    tok_close(t);
}

static void a_token_that_merging_does_not_give_is_not_used(void) {
    for (int ignore_merges = 0; ignore_merges < 2; ignore_merges++) {
        tiny_words w;
        words_bpe(&w, ignore_merges ? "llama-bpe" : "smollm", (const char *[]){"a b", NULL});
        EXPECT_EQ(words_add(&w, "abc", WORD_NORMAL), 257);
        tokenizer *t = words_open(&w);
        expect_ids(t, "abc", false,
                   ignore_merges ? "257" : "256 99"); // llama 3 looks words up first
        expect_ids(t, "abcd", false, "256 99 100");
        tok_close(t);
    }
}

static void qwen2_composes_before_it_looks(void) {
    tokenizer *qwen = open_hello("qwen2"), *llama = open_hello("llama-bpe");
    expect_ids(qwen, "e\u0301", false, "195 169");
    expect_ids(qwen, "é", false, "195 169");
    expect_ids(llama, "e\u0301", false, "101 204 129");
    tok_close(qwen);
    tok_close(llama);
}

static void a_byte_without_a_token_gives_none(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){"a b", NULL});
    buf_clear(&w.names[1]);
    buf_add_str(&w.names[1], "nobody writes this");
    tokenizer *t = words_open(&w);
    expect_ids(t, "x\001y", false, "120 121");
    expect_ids(t, "\001", false, "");
    tok_close(t);
}

static void nul_bytes_are_text(void) {
    tokenizer *t = open_hello("smollm");
    tok_ids ids = {0};
    EXPECT_EQ(tok_encode(t, (bytes){"a\0he", 4}, NULL, 0, NULL, &ids, NULL), INFERD_OK);
    char printed[64];
    ids_print(&ids, printed, sizeof printed);
    EXPECT_STR(printed, "97 0 256");
    tok_ids_deinit(&ids);
    tok_close(t);
}

static void long_words_merge_too(void) {
    enum { LETTERS = 300000 };
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){"a a", "aa aa", "aaaa aaaa", NULL});
    tokenizer *t = words_open(&w);
    char *text = malloc(LETTERS + 3);
    tok_ids ids = {0};
    if (text == NULL) return;
    memset(text, 'a', LETTERS + 3);
    EXPECT_EQ(tok_encode(t, (bytes){text, LETTERS + 3}, NULL, 0, NULL, &ids, NULL), INFERD_OK);
    EXPECT_EQ(ids.n, LETTERS / 8 + 2);
    EXPECT(ids.n > 2 && ids.ids[0] == 258 && ids.ids[ids.n - 3] == 258);
    EXPECT(ids.n > 2 && ids.ids[ids.n - 2] == 256 && ids.ids[ids.n - 1] == 97); // 3 left: aa, a
    tok_ids_deinit(&ids);
    free(text);
    tok_close(t);
}

/* ---- special tokens and spans ---- */

static void specials_match_only_where_they_are_trusted(void) {
    tokenizer *t = open_hello("smollm");
    expect_ids(t, "he<|s|>ll", true, "256 265 257");
    expect_ids(t, "<|s|>", true, "265");
    expect_ids(t, "<|s|>!", true, "266"); // the longest
    expect_ids(t, "<|s|>", false, "60 124 115 124 62");
    /* Unknown is matched where control tokens are: as text it made five tokens of a word that the
     * models' own tokenizers read as one. */
    expect_ids(t, "he<unk>ll", true, "256 268 257");
    expect_ids(t, "<unk>", false, "60 117 110 107 62");
    expect_ids(t, "x<tool>", false, "120 267"); // user-defined is, for everybody
    expect_ids(t, "x<tool>", true, "120 267");
    tok_close(t);
}

static void expect_span_ids(const tokenizer *t, const char *text, const tok_span *spans,
                            size_t n_spans, const char *expected) {
    tok_ids ids = {0};
    char printed[256];
    EXPECT_EQ(tok_encode(t, (bytes){text, strlen(text)}, spans, n_spans, NULL, &ids, NULL),
              INFERD_OK);
    ids_print(&ids, printed, sizeof printed);
    EXPECT_STR(printed, expected);
    tok_ids_deinit(&ids);
}

static void a_request_cannot_forge_a_turn(void) {
    tokenizer *t = open_hello("smollm");
    const char *text = "<|s|><|s|><|s|>";
    tok_span spans[] = {{5, true}, {5, false}, {5, true}};
    expect_span_ids(t, text, spans, 3, "265 60 124 115 124 62 265");
    // Nor with the help of the template's text before or behind its own.
    tok_span before[] = {{3, true}, {2, false}}, behind[] = {{3, false}, {2, true}};
    expect_span_ids(t, "<|s|>", before, 2, "60 124 115 124 62");
    expect_span_ids(t, "<|s|>", behind, 2, "60 124 115 124 62");
    // Trusted text that comes in parts is one text.
    tok_span parts[] = {{0, false}, {3, true}, {0, false}, {2, true}, {0, false}};
    expect_span_ids(t, "<|s|>", parts, 5, "265");
    // The longer one would need a byte of the request.
    tok_span mixed[] = {{5, true}, {1, false}};
    expect_span_ids(t, "<|s|>!", mixed, 2, "265 33");
    // A user-defined one may lie across.
    tok_span across[] = {{2, true}, {4, false}};
    expect_span_ids(t, "<tool>", across, 2, "267");
    tok_close(t);
}

static void words_are_cut_across_spans(void) {
    tokenizer *t = open_hello("smollm");
    tok_span spans[] = {{6, true}, {5, false}, {5, true}};
    expect_span_ids(t, "hello world<|s|>", spans, 3, "259 264 265");
    tok_close(t);
}

static void spans_must_cover_the_text(void) {
    tokenizer *t = open_hello("smollm");
    tok_ids ids = {0};
    inferd_err err = {0};
    tok_span less[] = {{2, true}, {1, false}}, more[] = {{2, true}, {SIZE_MAX, false}};
    EXPECT_EQ(tok_encode(t, (bytes){"abcd", 4}, less, 2, NULL, &ids, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "the spans do not cover a text of 4 bytes");
    EXPECT_EQ(tok_encode(t, (bytes){"abcd", 4}, more, 2, NULL, &ids, &err), INFERD_EINVAL);
    EXPECT_EQ(ids.n, 0);
    tok_close(t);
}

static void add_special_follows_the_file(void) {
    static const struct {
        const char *pre;
        int add_bos, add_eos; // -1: no such key
        const char *expected;
    } rows[] = {
        {"smollm", -1, -1, "256"},        {"smollm", 1, -1, "265 256"},
        {"smollm", 1, 1, "265 256 266"},  {"smollm", 0, 1, "256 266"},
        {"llama-bpe", -1, -1, "265 256"}, // was trained so, and its files do not always say it
        {"llama-bpe", 0, -1, "256"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        tiny_words w;
        words_bpe(&w, rows[i].pre, hello);
        words_add(&w, "<|s|>", WORD_CONTROL);
        words_add(&w, "<|e|>", WORD_CONTROL);
        tiny_kv_u32(&w.g, "tokenizer.ggml.bos_token_id", SPECIAL);
        tiny_kv_u32(&w.g, "tokenizer.ggml.eos_token_id", SPECIAL + 1);
        if (rows[i].add_bos >= 0)
            tiny_kv_bool(&w.g, "tokenizer.ggml.add_bos_token", rows[i].add_bos);
        if (rows[i].add_eos >= 0)
            tiny_kv_bool(&w.g, "tokenizer.ggml.add_eos_token", rows[i].add_eos);
        tokenizer *t = words_open(&w);
        tok_ids ids = {0};
        char printed[64];
        tok_encode_options options = {.add_special = true};
        EXPECT_EQ(tok_encode(t, (bytes){"he", 2}, NULL, 0, &options, &ids, NULL), INFERD_OK);
        ids_print(&ids, printed, sizeof printed);
        EXPECT_STR(printed, rows[i].expected);
        EXPECT_EQ(tok_bos(t), SPECIAL);
        EXPECT_EQ(tok_eos(t), SPECIAL + 1);
        tok_ids_deinit(&ids);
        expect_ids(t, "he", true, "256");
        tok_close(t);
    }
}

/* ---- limits ---- */

static void text_must_be_utf8(void) {
    static const struct {
        const char *text;
        const char *error;
    } rows[] = {
        {"\x80", "the text is not UTF-8 at byte 0"},
        {"hello \xC3", "the text is not UTF-8 at byte 6"},
        {"ab\xED\xA0\x80", "the text is not UTF-8 at byte 2"},
        {"<|s|>\xFF", "the text is not UTF-8 at byte 5"},
    };
    tokenizer *t = open_hello("smollm");
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        tok_ids ids = {0};
        inferd_err err = {0};
        EXPECT(tok_ids_push(&ids, 7));
        bytes text = {rows[i].text, strlen(rows[i].text)};
        tok_span all = {text.n, true};
        EXPECT_EQ(tok_encode(t, text, &all, 1, NULL, &ids, &err), INFERD_EINVAL);
        EXPECT_STR(err.text, rows[i].error);
        EXPECT_EQ(ids.n, 1);
        tok_ids_deinit(&ids);
    }
    tok_close(t);
}

static void too_many_ids_are_refused_and_taken_back(void) {
    tokenizer *t = open_hello("smollm");
    tok_ids ids = {0};
    inferd_err err = {0};
    tok_encode_options options = {.ids_max = 3};
    EXPECT(tok_ids_push(&ids, 7));
    EXPECT_EQ(tok_encode(t, (bytes){"a b", 3}, NULL, 0, &options, &ids, &err), INFERD_OK);
    EXPECT_EQ(ids.n, 4); // what was there does not count
    EXPECT_EQ(tok_encode(t, (bytes){"a b ", 4}, NULL, 0, &options, &ids, &err), INFERD_ETOOLONG);
    EXPECT_STR(err.text, "the text has more than 3 tokens");
    EXPECT_EQ(ids.n, 4);
    tok_ids_deinit(&ids);
    tok_close(t);
}

static void a_long_text_can_be_canceled(void) {
    enum { BYTES = 256 * 1024 };
    static const char *const units[] = {"he ", "a", "<|s|>"}; // words, one word, specials
    tokenizer *t = open_hello("smollm");
    atomic_bool cancel = true;
    tok_encode_options options = {.cancel = &cancel};
    char *text = malloc(BYTES);
    if (text == NULL) return;
    for (size_t i = 0; i < INFERD_COUNT(units); i++) {
        size_t n_unit = strlen(units[i]), n = BYTES / n_unit * n_unit;
        tok_ids ids = {0};
        inferd_err err = {0};
        for (size_t at = 0; at < n; at += n_unit) memcpy(text + at, units[i], n_unit);
        tok_span all = {n, true};
        EXPECT_EQ(tok_encode(t, (bytes){text, n}, &all, 1, &options, &ids, &err), INFERD_ECANCELED);
        EXPECT_EQ(ids.n, 0);
        all.n = n_unit * 100; // short ones are not worth looking
        EXPECT_EQ(tok_encode(t, (bytes){text, all.n}, &all, 1, &options, &ids, &err), INFERD_OK);
        EXPECT(ids.n > 0);
        tok_ids_deinit(&ids);
    }
    free(text);
    tok_close(t);
}

/* ---- what a vocabulary says ---- */

static void names_pieces_and_kinds(void) {
    tokenizer *t = open_hello("smollm");
    EXPECT_EQ(tok_n_vocab(t), SPECIAL + 4);
    EXPECT_EQ(tok_find(t, (bytes){"Ġworld", 7}), SP_WORLD);
    EXPECT_EQ(tok_find(t, (bytes){" world", 6}), -1);
    EXPECT_EQ(tok_find(t, (bytes){NULL, 0}), -1);
    EXPECT_EQ(tok_find(t, (bytes){"<|s|>", 5}), SPECIAL);
    EXPECT_EQ(tok_piece(t, SP_WORLD).n, 6);
    EXPECT(memcmp(tok_piece(t, SP_WORLD).p, " world", 6) == 0);
    EXPECT(tok_name(t, SP_WORLD).n == 7 && memcmp(tok_name(t, SP_WORLD).p, "Ġworld", 7) == 0);
    EXPECT_EQ(tok_piece(t, SPECIAL).n, 5);
    EXPECT(tok_is_control(t, SPECIAL) && tok_is_control(t, SPECIAL + 3));
    EXPECT(!tok_is_control(t, SPECIAL + 2) && !tok_is_control(t, HE));
    for (tok_id b = 0; b < 256; b++) {
        EXPECT_EQ(tok_piece(t, b).n, 1);
        EXPECT_EQ((unsigned char)tok_piece(t, b).p[0], b);
    }
    // Embeddings may have more rows than the vocabulary has tokens.
    tok_id outside[] = {-1, SPECIAL + 4, INT32_MAX};
    for (size_t i = 0; i < INFERD_COUNT(outside); i++) {
        EXPECT_EQ(tok_piece(t, outside[i]).n, 0);
        EXPECT_EQ(tok_name(t, outside[i]).n, 0);
        EXPECT(!tok_is_end(t, outside[i]) && !tok_is_control(t, outside[i]));
    }
    EXPECT_EQ(tok_bos(t), -1);
    EXPECT_EQ(tok_eos(t), -1);
    tok_close(t);
}

static void user_defined_tokens_are_written_as_they_are(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){NULL});
    tok_id id = words_add(&w, "õ!", WORD_USER_DEFINED); // not the byte 0xF5
    tok_id no_bytes = words_add(&w, "中", WORD_NORMAL);
    tokenizer *t = words_open(&w);
    EXPECT(tok_piece(t, id).n == 3 && memcmp(tok_piece(t, id).p, "õ!", 3) == 0);
    EXPECT(tok_piece(t, no_bytes).n == 3); // a name that spells no bytes
    expect_ids(t, "õ!", false, "256");
    tok_close(t);
}

static void equal_names_keep_their_first_id(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){"a b", NULL});
    tok_id again = words_add(&w, "ab", WORD_NORMAL);
    words_add(&w, "<|s|>", WORD_CONTROL);
    words_add(&w, "<|s|>", WORD_CONTROL);
    tokenizer *t = words_open(&w);
    EXPECT_EQ(tok_find(t, (bytes){"ab", 2}), 256);
    EXPECT_EQ(tok_piece(t, again).n, 2); // it still has a text
    expect_ids(t, "ab<|s|>", true, "256 258");
    tok_close(t);
}

static void merges_without_tokens_are_dropped_and_counted(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){"a b", NULL});
    words_add(&w, "ac", WORD_CONTROL);
    w.merges = (const char *[]){"a b", "a d", "zz a", "a zz", "ab", "a ", " a", "", "a c", NULL};
    tokenizer *t = words_open(&w);
    EXPECT_EQ(tok_n_merges_dropped(t), 8); // the last would give a control token
    expect_ids(t, "ab", false, "256");
    expect_ids(t, "ac", false, "97 99");
    tok_close(t);
}

static void a_text_cannot_merge_to_a_control_token(void) {
    tiny_words w;
    words_bpe(&w, "llama-bpe", (const char *[]){NULL});
    words_add(&w, "stop", WORD_CONTROL);
    tokenizer *t = words_open(&w);
    expect_ids(t, "stop", false, "115 116 111 112"); // not as a whole word either
    expect_ids(t, "stop", true, "256");
    tok_close(t);
}

static void generation_ends_at_well_known_tokens(void) {
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>",    "<end_of_turn>",
                                       "</s>",       "<|endoftext|>", "<｜end▁of▁sentence｜>",
                                       "<|end|>"};
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){NULL});
    tok_id first = (tok_id)w.n;
    for (size_t i = 0; i < INFERD_COUNT(ends); i++) words_add(&w, ends[i], WORD_CONTROL);
    tok_id user_defined = words_add(&w, "<|eom_id|>", WORD_USER_DEFINED);
    tok_id plain = words_add(&w, "<eos>", WORD_NORMAL); // text that looks so is text
    tok_id start = words_add(&w, "<|im_start|>", WORD_CONTROL);
    tok_id eot = words_add(&w, "<custom>", WORD_CONTROL);
    tiny_kv_u32(&w.g, "tokenizer.ggml.eos_token_id", 'z');
    tiny_kv_u32(&w.g, "tokenizer.ggml.eot_token_id", (uint32_t)eot);
    tokenizer *t = words_open(&w);
    for (size_t i = 0; i < INFERD_COUNT(ends); i++) EXPECT(tok_is_end(t, first + (tok_id)i));
    EXPECT(tok_is_end(t, user_defined) && tok_is_end(t, eot) && tok_is_end(t, 'z'));
    EXPECT(!tok_is_end(t, plain) && !tok_is_end(t, start) && !tok_is_end(t, 'a'));
    tok_close(t);
}

/* Gemma's vocabulary has tags of HTML.  An answer with struck out text ended behind it. */
static void a_tag_of_html_is_no_end(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){NULL});
    tok_id tag = words_add(&w, "</s>", WORD_USER_DEFINED);
    tok_id turn = words_add(&w, "<end_of_turn>", WORD_CONTROL);
    tokenizer *t = words_open(&w);
    EXPECT(!tok_is_end(t, tag) && tok_is_end(t, turn));
    tok_close(t);
}

static void in_harmony_end_only_ends_a_message(void) {
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){NULL});
    tok_id end = words_add(&w, "<|end|>", WORD_CONTROL);
    tok_id ret = words_add(&w, "<|return|>", WORD_CONTROL);
    tok_id call = words_add(&w, "<|call|>", WORD_CONTROL);
    tokenizer *t = words_open(&w);
    EXPECT(!tok_is_end(t, end) && tok_is_end(t, ret) && tok_is_end(t, call));
    tok_close(t);
}

static void the_vocabulary_of_the_tiny_model_opens(void) {
    tiny_gguf *g = malloc(sizeof *g);
    tokenizer *t = NULL;
    if (g == NULL) return;
    tiny_gguf_init(g);
    tiny_tokenizer_add(g);
    gguf *opened = open_good(g);
    EXPECT_EQ(tok_open(opened, &t, NULL), INFERD_OK);
    gguf_close(opened);
    if (t != NULL) {
        char expected[64];
        snprintf(expected, sizeof expected, "%d %d", TINY_IM_START, TINY_BYTE_0 + 'x');
        EXPECT_EQ(tok_n_merges_dropped(t), 0);
        expect_ids(t, "<|im_start|>x", true, expected);
    }
    tok_close(t);
    tiny_gguf_deinit(g);
    free(g);
}

static const test_case cases[] = {
    TEST(words_become_their_tokens),
    TEST(the_earliest_merge_goes_first_then_the_leftmost),
    TEST(a_token_that_merging_does_not_give_is_not_used),
    TEST(qwen2_composes_before_it_looks),
    TEST(a_byte_without_a_token_gives_none),
    TEST(nul_bytes_are_text),
    TEST(long_words_merge_too),
    TEST(specials_match_only_where_they_are_trusted),
    TEST(a_request_cannot_forge_a_turn),
    TEST(words_are_cut_across_spans),
    TEST(spans_must_cover_the_text),
    TEST(add_special_follows_the_file),
    TEST(text_must_be_utf8),
    TEST(too_many_ids_are_refused_and_taken_back),
    TEST(a_long_text_can_be_canceled),
    TEST(names_pieces_and_kinds),
    TEST(user_defined_tokens_are_written_as_they_are),
    TEST(equal_names_keep_their_first_id),
    TEST(merges_without_tokens_are_dropped_and_counted),
    TEST(a_text_cannot_merge_to_a_control_token),
    TEST(generation_ends_at_well_known_tokens),
    TEST(a_tag_of_html_is_no_end),
    TEST(in_harmony_end_only_ends_a_message),
    TEST(the_vocabulary_of_the_tiny_model_opens),
};

TEST_MAIN(cases)
