/* test_tokenizer_spm.c - SentencePiece BPE: scores, spaces, bytes for what has no token. */
#include "tok_tiny.h"
#include "tokenizer/utf8.h"

enum { MARK = SPM_FIRST, A, B, AB, SP_A, SP_AB };

static void fill(tiny_words *w) {
    words_spm(w);
    EXPECT_EQ(words_add_scored(w, "▁", WORD_NORMAL, -10), MARK);
    words_add_scored(w, "a", WORD_NORMAL, -11);
    words_add_scored(w, "b", WORD_NORMAL, -12);
    words_add_scored(w, "ab", WORD_NORMAL, -1);
    words_add_scored(w, "▁a", WORD_NORMAL, -2);
    EXPECT_EQ(words_add_scored(w, "▁ab", WORD_NORMAL, -3), SP_AB);
}

static tokenizer *open_ab(bool prefix) {
    tiny_words w;
    fill(&w);
    if (!prefix) tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    return words_open(&w);
}

static void the_best_score_merges_first(void) {
    tokenizer *t = open_ab(false);
    expect_ids(t, "", false, "");
    expect_ids(t, "ab", false, "262");
    expect_ids(t, " ab", false, "264"); // a b, then the mark
    expect_ids(t, " a", false, "263");
    expect_ids(t, "aab", false, "260 262"); // a b is better than what a a could be
    expect_ids(t, " b", false, "259 261");
    expect_ids(t, "ab ab", false, "262 264");
    expect_ids(t, "  ab", false, "259 264");
    expect_ids(t, "▁ab", false, "264"); // the mark itself is a space
    tok_close(t);
}

static void equal_scores_merge_from_the_left(void) {
    tiny_words w;
    words_spm(&w);
    words_add_scored(&w, "a", WORD_NORMAL, -5);
    words_add_scored(&w, "aa", WORD_NORMAL, -1); // 260
    words_add_scored(&w, "b", WORD_NORMAL, -5);
    words_add_scored(&w, "ab", WORD_NORMAL, -1); // 262
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    tokenizer *t = words_open(&w);
    expect_ids(t, "aab", false, "260 261");
    expect_ids(t, "aaab", false, "260 262");
    tok_close(t);
}

static void a_space_goes_before_the_text_and_after_special_tokens(void) {
    tokenizer *t = open_ab(true);
    expect_ids(t, "", false, ""); // not before nothing
    expect_ids(t, "ab", false, "264");
    expect_ids(t, " ab", false, "259 264");
    expect_ids(t, "<s>ab</s>", true, "1 264 2");
    expect_ids(t, "<s></s>", true, "1 2");
    expect_ids(t, "ab<s> ab", true, "264 1 259 264");
    tok_close(t);
}

static void what_has_no_token_goes_by_its_bytes(void) {
    tokenizer *t = open_ab(false);
    expect_ids(t, "aéb", false, "260 198 172 261"); // <0xC3> is 3 + 0xC3
    expect_ids(t, "\n", false, "13");
    expect_ids(t, "🤖", false, "243 162 167 153");
    tok_close(t);
}

static void a_token_of_characters_without_tokens_is_found(void) {
    tiny_words w;
    fill(&w);
    tok_id tea = words_add_scored(&w, "茶é", WORD_NORMAL, -4); // neither is a token alone
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    tokenizer *t = words_open(&w);
    char expected[64];
    snprintf(expected, sizeof expected, "260 %d 261", tea);
    expect_ids(t, "a茶éb", false, expected);
    tok_close(t);
}

static void a_token_may_reach_across_a_space(void) {
    tiny_words w;
    fill(&w);
    tok_id across = words_add_scored(&w, "b▁", WORD_NORMAL, 0);
    tok_id all = words_add_scored(&w, "b▁a", WORD_NORMAL, 1);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    tokenizer *t = words_open(&w);
    char expected[64];
    snprintf(expected, sizeof expected, "%d %d", all, AB); // b▁, b▁a; then a b of what is left
    expect_ids(t, "b aab", false, expected);
    snprintf(expected, sizeof expected, "%d %d", across, across);
    expect_ids(t, "b b ", false, expected);
    tok_close(t);
}

/* Gemma 4: the pieces of SentencePiece, and merges instead of scores. */
static void listed_merges_have_the_order_of_the_list(void) {
    static const char *const merges[] = {"b a", "a b",   "▁ a",   "▁a b", "▁ ▁",
                                         "é b", "<s> a", "\n \n", NULL};
    for (int relative = 0; relative < 2; relative++) {
        tiny_words w;
        words_spm(&w);
        w.model = relative ? "gpt2" : "gemma4"; // files of relatives say so in another place
        w.pre = relative ? "gemma4" : NULL;
        w.merges = merges;
        words_add(&w, "▁", WORD_NORMAL); // 259
        words_add(&w, "a", WORD_NORMAL);
        words_add(&w, "b", WORD_NORMAL);
        words_add(&w, "ab", WORD_NORMAL); // 262
        words_add(&w, "ba", WORD_NORMAL);
        words_add(&w, "▁a", WORD_NORMAL);
        words_add(&w, "▁ab", WORD_NORMAL); // 265
        words_add(&w, "▁▁", WORD_NORMAL);
        words_add(&w, "\n", WORD_NORMAL);
        words_add(&w, "\n\n", WORD_NORMAL); // 268
        tokenizer *t = words_open(&w);
        expect_ids(t, "aba", false, "260 263"); // b a is first in the list
        expect_ids(t, "ab", false, "262");
        expect_ids(t, " ab", false, "259 262"); // a b is before the mark and a
        expect_ids(t, " a", false, "264");
        expect_ids(t, "  b", false, "266 261");
        expect_ids(t, "a\n\n\nb", false, "260 268 267 261"); // lines are merged with the rest
        expect_ids(t, "aé", false, "260 198 172");
        expect_ids(t, "<s>a", true, "1 260");
        EXPECT_EQ(tok_n_merges_dropped(t), 2); // é is no token, and <s> is no text
        tok_close(t);
    }
}

static void listed_merges_must_be_there(void) {
    tiny_words w;
    words_spm(&w);
    w.model = "gemma4";
    words_refused(&w, INFERD_EFORMAT, "tokenizer.ggml.merges is absent");
}

/* Text that says <unk> is the token to the tokenizers that models were trained with. */
static void the_unknown_token_is_matched_where_control_tokens_are(void) {
    tokenizer *t = open_ab(false);
    expect_ids(t, "a<unk>b", true, "260 0 261");
    expect_ids(t, "<unk>", false, "63 120 113 110 65"); // a request cannot write it
    tok_close(t);
}

/* Phi 3's added tokens swallow white space, which its template writes behind them. */
static void special_tokens_of_phi_3_take_the_space_behind_them(void) {
    for (int phi3 = 0; phi3 < 2; phi3++) {
        tiny_words w;
        fill(&w);
        tok_id user = words_add(&w, "<|user|>", WORD_CONTROL);
        words_add(&w, "<|end|>", WORD_CONTROL);
        words_add(&w, "<|assistant|>", WORD_CONTROL);
        words_add(&w, phi3 ? "<|placeholder1|>" : "<|other|>", WORD_CONTROL);
        tokenizer *t = words_open(&w);
        EXPECT_EQ(user, 265);
        expect_ids(t, "<|user|>\nab<|end|> \u3000<|assistant|>", true,
                   phi3 ? "265 264 266 267" : "265 259 13 262 266 259 259 230 131 131 267");
        expect_ids(t, "<s> ab", true, "1 259 264"); // not all of them do
        tok_parts parts = {0};
        tok_span all = {12, true};
        EXPECT_EQ(tok_split(t, (bytes){"<|user|>\n ab", 12}, &all, 1, &parts, NULL), INFERD_OK);
        EXPECT_EQ(parts.n, 2);
        EXPECT(parts.n == 2 && parts.parts[0].n == (phi3 ? 10 : 8));
        tok_parts_deinit(&parts);
        tok_close(t);
    }
}

/* Converters write rows without a token so; no text is one of them. */
static void fillers_are_not_matched(void) {
    tiny_words w;
    fill(&w);
    words_add(&w, "[PAD265]", WORD_USER_DEFINED);
    tok_id other = words_add(&w, "[PAD7]", WORD_USER_DEFINED); // the name of something
    tokenizer *t = words_open(&w);
    tok_ids ids = {0};
    char printed[64];
    EXPECT_EQ(tok_encode(t, (bytes){"[PAD265]", 8}, NULL, 0, NULL, &ids, NULL), INFERD_OK);
    EXPECT_EQ(ids.n, 9); // the leading space and eight bytes
    ids.n = 0;
    EXPECT_EQ(tok_encode(t, (bytes){"[PAD7]", 6}, NULL, 0, NULL, &ids, NULL), INFERD_OK);
    snprintf(printed, sizeof printed, "%d", other);
    char got[64];
    ids_print(&ids, got, sizeof got);
    EXPECT_STR(got, printed);
    tok_ids_deinit(&ids);
    tok_close(t);
}

static void the_first_of_equal_names_is_found(void) {
    tiny_words w;
    fill(&w);
    words_add_scored(&w, "ab", WORD_NORMAL, 0);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    tokenizer *t = words_open(&w);
    EXPECT_EQ(tok_find(t, (bytes){"ab", 2}), AB);
    expect_ids(t, "ab", false, "262");
    EXPECT(tok_piece(t, SP_AB + 1).n == 2); // and the second still has its text
    tok_close(t);
}

static void special_names_cannot_be_spelled(void) {
    tiny_words w;
    words_spm(&w);
    words_add_scored(&w, "<", WORD_NORMAL, -5); // 259
    words_add_scored(&w, "s", WORD_NORMAL, -5);
    words_add_scored(&w, ">", WORD_NORMAL, -5);
    words_add_scored(&w, "s>", WORD_NORMAL, -1);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    tokenizer *t = words_open(&w);
    expect_ids(t, "<s>", false, "259 262"); // "<" and "s>" would be the control token
    expect_ids(t, "<s>", true, "1");
    expect_ids(t, "<0x41>", false, "259 51 123 55 52 261"); // nor is a byte's name the byte
    tok_close(t);
}

/* Gemma's files give user-defined tokens a score of -1000; what is next to the spaces would have
 * taken the last of them. */
static void runs_of_spaces_come_before_other_merges(void) {
    tiny_words w;
    fill(&w);
    tok_id two = words_add_scored(&w, "  ", WORD_USER_DEFINED, -1000);
    tok_id three = words_add_scored(&w, "   ", WORD_USER_DEFINED, -1000);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    tokenizer *t = words_open(&w);
    char expected[64];
    snprintf(expected, sizeof expected, "%d %d", two, AB);
    expect_ids(t, "  ab", false, expected);
    snprintf(expected, sizeof expected, "%d %d", three, AB);
    expect_ids(t, "   ab", false, expected);
    snprintf(expected, sizeof expected, "%d %d", three, SP_AB);
    expect_ids(t, "    ab", false, expected);
    tok_close(t);
}

/* Converters write runs of spaces as user-defined tokens with plain spaces. */
static void runs_of_spaces_are_merged_like_words(void) {
    tiny_words w;
    fill(&w);
    tok_id two = words_add_scored(&w, "  ", WORD_USER_DEFINED, -0.5f);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
    tokenizer *t = words_open(&w);
    char expected[64];
    EXPECT_EQ(tok_find(t, (bytes){"▁▁", 6}), two);
    EXPECT(tok_piece(t, two).n == 2 && memcmp(tok_piece(t, two).p, "  ", 2) == 0);
    snprintf(expected, sizeof expected, "%d %d", two, SP_AB);
    expect_ids(t, "   ab", false, expected);
    tok_close(t);
}

static void bos_is_added_unless_the_file_says_no(void) {
    for (int said = -1; said <= 1; said++) {
        tiny_words w;
        tok_ids ids = {0};
        char printed[64];
        tok_encode_options options = {.add_special = true};
        fill(&w);
        if (said >= 0) tiny_kv_bool(&w.g, "tokenizer.ggml.add_bos_token", said);
        tokenizer *t = words_open(&w);
        EXPECT_EQ(tok_encode(t, (bytes){"ab", 2}, NULL, 0, &options, &ids, NULL), INFERD_OK);
        ids_print(&ids, printed, sizeof printed);
        EXPECT_STR(printed, said == 0 ? "264" : "1 264");
        EXPECT(tok_is_end(t, 2) && !tok_is_end(t, 1));
        tok_ids_deinit(&ids);
        tok_close(t);
    }
}

/* ---- against the definition ---- */

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* The characters of the random vocabularies; a space is written by its mark, as in a name. */
static const char *const letters[] = {"a", "b", "▁", "é"};

static buf random_text(size_t n_max) {
    buf b = {0};
    for (size_t i = 1 + random_below((uint32_t)n_max); i > 0; i--)
        buf_add_str(&b, letters[random_below(INFERD_COUNT(letters))]);
    return b;
}

/* A vocabulary by the definition only: which names there are, with their scores. */
typedef struct plain_vocab {
    buf names[40];
    float scores[40];
    size_t n;
} plain_vocab;

static tok_id plain_find(const plain_vocab *v, const char *p, size_t n) {
    for (size_t i = 0; i < v->n; i++)
        if (v->names[i].n == n && memcmp(v->names[i].p, p, n) == 0) return (tok_id)i;
    return -1;
}

/* Merge neighbours of the whole text by the best score of the joined text, as long as there are
 * any; `at` are the borders of the pieces. */
static void encode_plainly(const plain_vocab *v, const buf *text, tok_ids *out) {
    size_t at[1024], n = 0;
    for (size_t i = 0; i < text->n; i += utf8_length((unsigned char)text->p[i])) at[n++] = i;
    at[n] = text->n;
    for (;;) {
        size_t best_at = 0;
        tok_id best = -1;
        for (size_t i = 0; i + 1 < n; i++) {
            tok_id id = plain_find(v, text->p + at[i], at[i + 2] - at[i]);
            if (id >= 0 && (best < 0 || v->scores[id] > v->scores[best])) {
                best = id;
                best_at = i;
            }
        }
        if (best < 0) break;
        memmove(at + best_at + 1, at + best_at + 2, (n - best_at - 1) * sizeof *at);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        tok_id id = plain_find(v, text->p + at[i], at[i + 1] - at[i]);
        if (id >= 0) EXPECT(tok_ids_push(out, SPM_FIRST + id));
        for (size_t k = at[i]; id < 0 && k < at[i + 1]; k++)
            EXPECT(tok_ids_push(out, SPM_BYTE_0 + (unsigned char)text->p[k]));
    }
}

static void put_spaces(buf *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->n; i++) {
        bool mark = text->n - i >= 3 && memcmp(text->p + i, "▁", 3) == 0;
        text->p[n++] = mark ? ' ' : text->p[i];
        if (mark) i += 2;
    }
    text->n = n;
}

static void encoding_follows_its_definition(void) {
    for (int round = 0; round < 150; round++) {
        plain_vocab v = {0};
        tiny_words w;
        words_spm(&w);
        size_t n_names = 4 + random_below(30);
        while (v.n < n_names) {
            buf name = random_text(5);
            float score = (float)random_below(round % 3 == 0 ? 4 : 1000); // some have many ties
            if (plain_find(&v, name.p, name.n) >= 0) {
                buf_deinit(&name);
                continue;
            }
            words_add_scored(&w, buf_cstr(&name), WORD_NORMAL, score);
            v.scores[v.n] = score;
            v.names[v.n++] = name;
        }
        tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", false);
        tokenizer *t = words_open(&w);
        for (int i = 0; i < 20; i++) {
            tok_ids expected = {0}, got = {0};
            buf text = random_text(i < 15 ? 20 : 300); // some beyond the short path
            encode_plainly(&v, &text, &expected);
            put_spaces(&text);
            EXPECT_EQ(tok_encode(t, (bytes){text.p, text.n}, NULL, 0, NULL, &got, NULL), INFERD_OK);
            bool same =
                got.n == expected.n && memcmp(got.ids, expected.ids, got.n * sizeof *got.ids) == 0;
            if (!same) printf("round %d: \"%s\"\n", round, buf_cstr(&text));
            EXPECT(same);
            tok_ids_deinit(&expected);
            tok_ids_deinit(&got);
            buf_deinit(&text);
        }
        for (size_t i = 0; i < v.n; i++) buf_deinit(&v.names[i]);
        tok_close(t);
    }
}

static const test_case cases[] = {
    TEST(the_best_score_merges_first),
    TEST(equal_scores_merge_from_the_left),
    TEST(a_space_goes_before_the_text_and_after_special_tokens),
    TEST(what_has_no_token_goes_by_its_bytes),
    TEST(a_token_of_characters_without_tokens_is_found),
    TEST(a_token_may_reach_across_a_space),
    TEST(listed_merges_have_the_order_of_the_list),
    TEST(listed_merges_must_be_there),
    TEST(the_unknown_token_is_matched_where_control_tokens_are),
    TEST(special_tokens_of_phi_3_take_the_space_behind_them),
    TEST(fillers_are_not_matched),
    TEST(the_first_of_equal_names_is_found),
    TEST(special_names_cannot_be_spelled),
    TEST(runs_of_spaces_come_before_other_merges),
    TEST(runs_of_spaces_are_merged_like_words),
    TEST(bos_is_added_unless_the_file_says_no),
    TEST(encoding_follows_its_definition),
};

TEST_MAIN(cases)
