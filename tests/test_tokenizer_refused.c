/* test_tokenizer_refused.c - vocabularies that cannot be used, each refused in a few words. */
#include "tok_tiny.h"
#include "tokenizer/pretok.h"

static const char *const no_merges[] = {NULL};

static void an_unknown_model_is_named(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    w.model = "t5";
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.model is \"t5\"; known are gpt2");
    words_bpe(&w, "smollm", no_merges);
    w.model = "bad\nname";
    words_refused(&w, INFERD_EUNSUPPORTED, "\"bad?name\"");
    words_bpe(&w, "smollm", no_merges);
    w.model = NULL;
    words_refused(&w, INFERD_EFORMAT, "tokenizer.ggml.model");
}

static void an_unknown_split_is_named_with_the_known_ones(void) {
    tiny_words w;
    words_bpe(&w, "chameleon", no_merges); // its expression is known by an approximation only
    words_refused(&w, INFERD_EUNSUPPORTED,
                  "tokenizer.ggml.pre is \"chameleon\"; known are llama-bpe, qwen2, qwen35,");
    words_bpe(&w, "qwen", no_merges); // no prefix of a known name will do
    words_refused(&w, INFERD_EUNSUPPORTED, " more (docs/models.md)");
    words_bpe(&w, NULL, no_merges);
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.pre is absent");
}

static void known_splits_open(void) {
    for (size_t i = 0; i < pretok_n_names(); i++) {
        tiny_words w;
        words_bpe(&w, pretok_name_at(i)->name, no_merges);
        tok_close(words_open(&w));
    }
    tok_close(NULL);
}

static void tokens_must_be_there(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    for (size_t i = 0; i < w.n; i++) buf_deinit(&w.names[i]);
    w.n = 0;
    words_refused(&w, INFERD_EFORMAT, "tokenizer.ggml.tokens is absent");
}

static void arrays_must_be_as_long_as_the_tokens(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    w.n_kinds = 255;
    words_refused(&w, INFERD_EFORMAT, "token_type has 255 entries for 256 tokens");
    words_spm(&w);
    w.n_scores = 3;
    words_refused(&w, INFERD_EFORMAT, "scores has 3 entries for 259 tokens");
}

static void token_types_are_known(void) {
    static const int32_t bad[] = {0, 7, -1, 1 << 30};
    for (size_t i = 0; i < INFERD_COUNT(bad); i++) {
        tiny_words w;
        words_bpe(&w, "smollm", no_merges);
        w.kinds[9] = bad[i];
        words_refused(&w, INFERD_EFORMAT, "token 9 has type");
    }
}

static void a_token_has_a_bound(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    for (int i = 0; i < 2049; i++) buf_add_char(&w.names[5], 'x');
    words_refused(&w, INFERD_EFORMAT, "token 5 is 2051 bytes long, more than 2048");
}

static void ids_must_name_tokens(void) {
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < INFERD_COUNT(keys); i++) {
        tiny_words w;
        words_bpe(&w, "smollm", no_merges);
        tiny_kv_u32(&w.g, keys[i], 256);
        words_refused(&w, INFERD_EFORMAT, keys[i]);
        words_bpe(&w, "smollm", no_merges);
        tiny_kv_u32(&w.g, keys[i], UINT32_MAX);
        words_refused(&w, INFERD_EFORMAT, keys[i]);
    }
}

static void an_added_token_must_be_named(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_bos_token", true);
    words_refused(&w, INFERD_EFORMAT, "add_bos_token is true but the file names no such token");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_eos_token", true);
    words_refused(&w, INFERD_EFORMAT, "add_eos_token is true but the file names no such token");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_str(&w.g, "tokenizer.ggml.add_bos_token", "yes");
    words_refused(&w, INFERD_EFORMAT, "add_bos_token");
}

static void merges_must_be_there(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    w.no_merges = true;
    words_refused(&w, INFERD_EFORMAT, "tokenizer.ggml.merges is absent");
}

static void some_byte_must_have_a_token(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    for (size_t i = 0; i < w.n; i++) w.kinds[i] = WORD_CONTROL;
    words_refused(&w, INFERD_EFORMAT, "no token of one byte");
}

static void switches_we_do_not_have_are_not_ignored(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", true);
    words_refused(&w, INFERD_EUNSUPPORTED, "add_space_prefix is true");
    words_spm(&w);
    tiny_kv_bool(&w.g, "tokenizer.ggml.remove_extra_whitespaces", true);
    words_refused(&w, INFERD_EUNSUPPORTED, "remove_extra_whitespaces is true");
    words_bpe(&w, "smollm", no_merges); // only the reader of the other family looked at it
    tiny_kv_bool(&w.g, "tokenizer.ggml.remove_extra_whitespaces", true);
    words_refused(&w, INFERD_EUNSUPPORTED, "remove_extra_whitespaces is true");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_bool(&w.g, "tokenizer.ggml.remove_extra_whitespaces", false);
    tok_close(words_open(&w));
}

/* Ignored, each of these would make other ids of some text. */
static void keys_that_would_change_text_are_refused(void) {
    tiny_words w;
    words_spm(&w);
    tiny_kv_array(&w.g, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, 3);
    tiny_put(&w.g.metadata, 0x030201, 3);
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.precompiled_charsmap is an array of 3");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_bool(&w.g, "tokenizer.ggml.normalizer.lowercase", true);
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.normalizer.lowercase is true");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.suppress_tokens", (int32_t[]){1, 2}, 2);
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.suppress_tokens is an array of 2");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_bool(&w.g, "tokenizer.ggml.reverse", true);
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.reverse (true) is not known");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_str(&w.g, "tokenizer.rwkv.world", "x");
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.rwkv.world (\"x\") is not known");
}

static void keys_that_change_nothing_are_not(void) {
    tiny_words w;
    words_spm(&w);
    tiny_kv_array(&w.g, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, 0);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_sep_token", true);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_unknown_token", false);
    tiny_kv_u32(&w.g, "tokenizer.ggml.fim_pre_token_id", 7);
    tiny_kv_str(&w.g, "tokenizer.huggingface.json", "{}");
    tiny_kv_str(&w.g, "tokenizer.chat_template.tool_use", "x");
    tiny_kv_bool(&w.g, "tokenizer.ggml.normalizer.lowercase", false);
    tok_close(words_open(&w));
}

/* With several models in a configuration the message did not say which of them it was about. */
static void errors_name_the_file_once(void) {
    tiny_words w;
    words_bpe(&w, "afmoe", no_merges);
    words_refused(&w, INFERD_EUNSUPPORTED,
                  ": tokenizer.ggml.pre is \"afmoe\"; known are llama-bpe");
    words_bpe(&w, "afmoe", no_merges);
    gguf *g = words_gguf(&w);
    tokenizer *t = NULL;
    inferd_err err = {0};
    EXPECT_EQ(tok_open(g, &t, &err), INFERD_EUNSUPPORTED);
    EXPECT(strstr(err.text, image_path) == err.text);
    EXPECT(strstr(err.text + 1, image_path) == NULL);
    gguf_close(g);
    words_bpe(&w, "smollm", no_merges); // what the reader of keys says
    tiny_kv_str(&w.g, "tokenizer.ggml.bos_token_id", "x");
    g = words_gguf(&w);
    EXPECT_EQ(tok_open(g, &t, &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, image_path) == err.text);
    EXPECT(strstr(err.text + 1, image_path) == NULL);
    gguf_close(g);
}

static void all_ends_must_name_tokens(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.eos_token_ids", (int32_t[]){3, 256}, 2);
    words_refused(&w, INFERD_EFORMAT, "eos_token_ids[1] is 256, and there are 256 tokens");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.eos_token_ids", (int32_t[]){3, -1}, 2);
    words_refused(&w, INFERD_EFORMAT, "eos_token_ids[1] is -1");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.eos_token_ids", (int32_t[]){3, 5}, 2);
    tokenizer *t = words_open(&w);
    EXPECT(tok_is_end(t, 3) && tok_is_end(t, 5) && !tok_is_end(t, 4));
    tok_close(t);
}

/* Ollama's converter writes these, and a file that has them was refused. */
static void keys_of_another_converter_are_read(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_seperator_token", true); // as add_sep_token
    tiny_kv_u32(&w.g, "tokenizer.ggml.seperator_token_id", 7);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.seperator_token_ids", (int32_t[]){7, 8}, 2);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.padding_token_ids", (int32_t[]){0, 1}, 2);
    tiny_kv_u32(&w.g, "tokenizer.ggml.bos_token_id", 5);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.bos_token_ids", (int32_t[]){4, 5}, 2);
    tokenizer *t = words_open(&w);
    EXPECT_EQ(tok_bos(t), 5);
    EXPECT(!tok_is_end(t, 4) && !tok_is_end(t, 7) && !tok_is_end(t, 1));
    tok_close(t);
}

/* A text begins with one BOS, so a list may not say that it is another one. */
static void a_list_of_bos_tokens_has_the_one_that_is_added(void) {
    tiny_words w;
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_u32(&w.g, "tokenizer.ggml.bos_token_id", 5);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.bos_token_ids", (int32_t[]){4, 6}, 2);
    words_refused(&w, INFERD_EFORMAT, "bos_token_id is 5, and tokenizer.ggml.bos_token_ids does");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.bos_token_ids", (int32_t[]){4}, 1);
    words_refused(&w, INFERD_EFORMAT, "bos_token_ids is present without");
    words_bpe(&w, "smollm", no_merges);
    tiny_kv_u32(&w.g, "tokenizer.ggml.bos_token_id", 5);
    tiny_kv_i32s(&w.g, "tokenizer.ggml.bos_token_ids", (int32_t[]){5, 256}, 2);
    words_refused(&w, INFERD_EFORMAT, "bos_token_ids[1] is 256, and there are 256 tokens");
}

static void byte_tokens_are_complete_and_well_written(void) {
    static const char *const bad[] = {"<0x0G>", "<0x0>", "0x0A", "<0x0AA>", "", "<0x0A"};
    tiny_words w;
    words_spm(&w);
    w.kinds[SPM_BYTE_0 + 10] = WORD_NORMAL;
    words_refused(&w, INFERD_EFORMAT, "no byte token <0x0A>");
    for (size_t i = 0; i < INFERD_COUNT(bad); i++) {
        words_spm(&w);
        buf_clear(&w.names[SPM_BYTE_0 + 10]);
        buf_add_str(&w.names[SPM_BYTE_0 + 10], bad[i]);
        words_refused(&w, INFERD_EFORMAT, "byte token 13 is");
    }
}

static void scores_are_numbers(void) {
    tiny_words w;
    words_spm(&w);
    w.scores[7] = NAN;
    words_refused(&w, INFERD_EFORMAT, "token 7 has NaN");
}

static const test_case cases[] = {
    TEST(an_unknown_model_is_named),
    TEST(an_unknown_split_is_named_with_the_known_ones),
    TEST(known_splits_open),
    TEST(tokens_must_be_there),
    TEST(arrays_must_be_as_long_as_the_tokens),
    TEST(token_types_are_known),
    TEST(a_token_has_a_bound),
    TEST(ids_must_name_tokens),
    TEST(an_added_token_must_be_named),
    TEST(merges_must_be_there),
    TEST(some_byte_must_have_a_token),
    TEST(switches_we_do_not_have_are_not_ignored),
    TEST(keys_that_would_change_text_are_refused),
    TEST(keys_that_change_nothing_are_not),
    TEST(errors_name_the_file_once),
    TEST(all_ends_must_name_tokens),
    TEST(keys_of_another_converter_are_read),
    TEST(a_list_of_bos_tokens_has_the_one_that_is_added),
    TEST(byte_tokens_are_complete_and_well_written),
    TEST(scores_are_numbers),
};

TEST_MAIN(cases)
