/* test_tokenizer_vectors.c - the tokenizer of GGUF files against ids that other engines made.
 *
 * SmolLM2's own tokenizer on 4,000 strings, with the vocabulary of a GGUF that INFERD_TEST_MODEL
 * names, and the vocabularies with .inp/.out pairs that ggml ships: those among the shared files,
 * and those in the folder INFERD_VOCABS (models/ of llama.cpp).  What is missing is skipped. */
#include "tok_vectors.h"
#include "tokenizer/nfc.h"

/* A GGUF that is packed with xz, through a temporary file. */
static tokenizer *open_packed(const char *path) {
    char temporary[256];
    const char *dir = getenv("TMPDIR");
    buf b = read_whole(path, true);
    if (b.p == NULL) return NULL;
    snprintf(temporary, sizeof temporary, "%s/inferd-vocab-XXXXXX", dir != NULL ? dir : P_tmpdir);
    int fd = mkstemp(temporary);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    bool ok = f != NULL && fwrite(b.p, 1, b.n, f) == b.n;
    if (f != NULL) ok = fclose(f) == 0 && ok;
    buf_deinit(&b);
    tokenizer *t = ok ? open_tokenizer(temporary) : NULL;
    if (fd >= 0) unlink(temporary);
    return t;
}

static void smollm2_has_the_ids_of_its_own_tokenizer(void) {
    const char *model = getenv("INFERD_TEST_MODEL");
    size_t n_same, n_back;
    if (model == NULL) SKIP("INFERD_TEST_MODEL names no GGUF of SmolLM2");
    if (access(shared_path("tokenizers/smollm2.vectors.jsonl.xz"), R_OK) != 0)
        SKIP("no smollm2.vectors.jsonl.xz");
    tokenizer *t = open_tokenizer(model);
    EXPECT(t != NULL);
    if (t == NULL) return;
    size_t n = check_lines(t, "tokenizers/smollm2.vectors.jsonl.xz", &n_same, &n_back);
    printf("smollm2: %zu of %zu strings have the same ids, %zu come back\n", n_same, n, n_back);
    EXPECT_EQ(n, 4000);
    EXPECT_EQ(n_same, n);
    tok_close(t);
}

/* ---- ggml's pairs of files ---- */

/* The next line of numbers. */
static tok_ids read_ids(char **at, const char *end) {
    tok_ids ids = {0};
    while (*at < end && **at != '\n') {
        char *after;
        long id = strtol(*at, &after, 10);
        if (after == *at) break;
        EXPECT(tok_ids_push(&ids, (tok_id)id));
        *at = after;
        while (*at < end && **at == ' ') (*at)++;
    }
    if (*at < end) (*at)++;
    return ids;
}

/* ggml-vocab-KIND.gguf with `suffix`, of the shared files or of INFERD_VOCABS. */
static const char *vocab_path(const char *kind, const char *suffix) {
    static char path[4096];
    char name[256];
    const char *folder = getenv("INFERD_VOCABS");
    snprintf(name, sizeof name, "tokenizers/ggml-vocab-%s.gguf%s", kind, suffix);
    const char *shared = shared_path(name);
    if (access(shared, R_OK) == 0 || folder == NULL) return shared;
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf%s", folder, kind, suffix);
    return path;
}

static tokenizer *open_vocab(const char *kind) {
    if (access(vocab_path(kind, ".xz"), R_OK) == 0) return open_packed(vocab_path(kind, ".xz"));
    return access(vocab_path(kind, ""), R_OK) == 0 ? open_tokenizer(vocab_path(kind, "")) : NULL;
}

/* `composes`: the ids come from llama.cpp, which does not compose text as the model's own tokenizer
 * does; records that this changes are left out. */
static void compare_pair(const char *kind, bool composes) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    size_t n = 0, n_same = 0, n_back = 0, n_left_out = 0;
    if (access(vocab_path(kind, ".inp"), R_OK) != 0) SKIP(kind);
    tokenizer *t = open_vocab(kind);
    EXPECT(t != NULL);
    if (t == NULL) return;
    buf inputs = read_whole(vocab_path(kind, ".inp"), false);
    buf outputs = read_whole(vocab_path(kind, ".out"), false);
    const char *text = buf_cstr(&inputs), *end = text + inputs.n;
    (void)buf_cstr(&outputs); // strtol stops at the NUL
    char *at = outputs.p, *outputs_end = outputs.p + outputs.n;
    for (const char *next; text < end; text = next) {
        const char *stop = strstr(text, separator);
        next = stop == NULL ? end : stop + sizeof separator - 1;
        if (stop == NULL) stop = end; // gemma-4's last record
        bytes record = {text, (size_t)(stop - text)};
        tok_ids ids = read_ids(&at, outputs_end);
        if (composes && !nfc_is_normal((const unsigned char *)text, record.n)) {
            n_left_out++;
        } else {
            n++;
            n_same += encodes_to(t, record, &ids);
            n_back += decodes_to(t, &ids, record);
        }
        tok_ids_deinit(&ids);
    }
    printf("%s: %zu of %zu records have the same ids, %zu come back; %zu left out\n", kind, n_same,
           n, n_back, n_left_out);
    EXPECT(n > 40);
    EXPECT(at == outputs_end);
    EXPECT_EQ(n_same, n);
    EXPECT_EQ(n_back, n);
    buf_deinit(&inputs);
    buf_deinit(&outputs);
    tok_close(t);
}

static void ggml_pair_agrees(const char *kind) {
    compare_pair(kind, false);
}

static void ggml_gpt2_agrees(void) {
    ggml_pair_agrees("gpt-2");
}
static void ggml_starcoder_agrees(void) {
    ggml_pair_agrees("starcoder");
}
static void ggml_qwen2_agrees(void) {
    ggml_pair_agrees("qwen2");
}
static void ggml_deepseek_coder_agrees(void) {
    ggml_pair_agrees("deepseek-coder");
}
static void ggml_llama_spm_agrees(void) {
    ggml_pair_agrees("llama-spm");
}
static void ggml_phi3_agrees(void) {
    ggml_pair_agrees("phi-3");
}
static void ggml_llama_bpe_agrees(void) {
    ggml_pair_agrees("llama-bpe");
}
static void ggml_deepseek_llm_agrees(void) {
    ggml_pair_agrees("deepseek-llm");
}
static void ggml_falcon_agrees(void) {
    ggml_pair_agrees("falcon");
}
static void ggml_mpt_agrees(void) {
    ggml_pair_agrees("mpt");
}
static void ggml_command_r_agrees(void) {
    ggml_pair_agrees("command-r");
}
static void ggml_refact_agrees(void) {
    ggml_pair_agrees("refact");
}
static void ggml_qwen35_agrees(void) {
    compare_pair("qwen35", true);
}
static void ggml_gemma_4_agrees(void) {
    ggml_pair_agrees("gemma-4");
}

static const test_case cases[] = {
    TEST(smollm2_has_the_ids_of_its_own_tokenizer),
    TEST(ggml_gpt2_agrees),
    TEST(ggml_starcoder_agrees),
    TEST(ggml_qwen2_agrees),
    TEST(ggml_deepseek_coder_agrees),
    TEST(ggml_llama_spm_agrees),
    TEST(ggml_phi3_agrees),
    TEST(ggml_llama_bpe_agrees),
    TEST(ggml_deepseek_llm_agrees),
    TEST(ggml_falcon_agrees),
    TEST(ggml_mpt_agrees),
    TEST(ggml_command_r_agrees),
    TEST(ggml_refact_agrees),
    TEST(ggml_qwen35_agrees),
    TEST(ggml_gemma_4_agrees),
};

TEST_MAIN(cases)
