/* test_tokenizer_refused.c - vocabularies that cannot be used, each refused in a few words. */
#include "tok_tiny.h"

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
    words_bpe(&w, "default", no_merges); // ggml splits this one by a rule of its own
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.pre is \"default\"; known are smollm,");
    words_bpe(&w, "qwen", no_merges); // no prefix of a known name will do
    words_refused(&w, INFERD_EUNSUPPORTED, "qwen2, starcoder, deepseek-llm");
    words_bpe(&w, NULL, no_merges);
    words_refused(&w, INFERD_EUNSUPPORTED, "tokenizer.ggml.pre is absent");
}

static void known_splits_open(void) {
    static const char *const known[] = {"smollm",    "gpt-2",        "llama-bpe",      "qwen2",
                                        "starcoder", "deepseek-llm", "deepseek-coder", "llama3",
                                        "llama-v3",  "phi-2",        "refact",         "tekken"};
    for (size_t i = 0; i < INFERD_COUNT(known); i++) {
        tiny_words w;
        words_bpe(&w, known[i], no_merges);
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
    TEST(byte_tokens_are_complete_and_well_written),
    TEST(scores_are_numbers),
};

TEST_MAIN(cases)
