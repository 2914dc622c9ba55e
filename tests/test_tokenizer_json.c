/* test_tokenizer_json.c - the tokenizer against the Hugging Face engine, 4,000 strings each.
 *
 * A tokenizer.json is turned into the GGUF metadata that converters write for it, in memory, and
 * the ids are compared with those of the engine the file is made for.  The files lie outside the
 * repository; what is missing is skipped. */
#include "gguf_image.h"
#include "tok_vectors.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { TOKENS_MAX = 1 << 19 };

/* The arrays of a GGUF vocabulary.  Names point into the JSON. */
typedef struct vocab {
    bytes names[TOKENS_MAX];
    int32_t kinds[TOKENS_MAX];
    size_t n;
} vocab;

static vocab v; // too big for the stack

static void put_token(size_t id, bytes name, int32_t kind) {
    INFERD_CHECK(id < TOKENS_MAX);
    for (; v.n <= id; v.n++) {
        v.names[v.n] = (bytes){"", 0};
        v.kinds[v.n] = UNUSED;
    }
    v.names[id] = name;
    v.kinds[id] = kind;
}

static bytes json_bytes(const json_t *j) {
    return (bytes){json_string_value(j), json_string_length(j)};
}

/* Converters write the user-defined tokens of SentencePiece with spaces.  In place. */
static bytes with_spaces(json_t *content) {
    char *p = (char *)json_string_value(content);
    size_t n = 0;
    for (size_t at = 0; p[at] != 0;) {
        bool mark = strncmp(p + at, "\xE2\x96\x81", 3) == 0;
        p[n++] = mark ? ' ' : p[at];
        at += mark ? 3 : 1;
    }
    return (bytes){p, n};
}

static void read_vocab(json_t *file, bool sentencepiece) {
    v.n = 0;
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach(json_object_get(json_object_get(file, "model"), "vocab"), key, value) {
        bool byte = strlen(key) == 6 && strncmp(key, "<0x", 3) == 0;
        put_token((size_t)json_integer_value(value), (bytes){key, strlen(key)},
                  byte ? BYTE : NORMAL);
    }
    json_array_foreach(json_object_get(file, "added_tokens"), i, value) {
        bool special = json_is_true(json_object_get(value, "special"));
        json_t *content = json_object_get(value, "content");
        bool unknown = strcmp(json_string_value(content), "<unk>") == 0; // as converters write it
        put_token((size_t)json_integer_value(json_object_get(value, "id")),
                  sentencepiece && !special ? with_spaces(content) : json_bytes(content),
                  unknown   ? UNKNOWN
                  : special ? CONTROL
                            : USER_DEFINED);
    }
}

/* Merge i of the file: "left right" or ["left", "right"], with `between` put between. */
static buf merge_at(json_t *merges, size_t i, const char *between) {
    json_t *merge = json_array_get(merges, i);
    buf b = {0};
    if (json_is_string(merge)) {
        bytes whole = json_bytes(merge);
        const char *space = memchr(whole.p + 1, ' ', whole.n - 1);
        INFERD_CHECK(space != NULL);
        size_t n_left = (size_t)(space - whole.p);
        buf_add(&b, whole.p, n_left);
        buf_add_str(&b, between);
        buf_add(&b, space + 1, whole.n - n_left - 1);
    } else {
        bytes left = json_bytes(json_array_get(merge, 0)),
              right = json_bytes(json_array_get(merge, 1));
        buf_add(&b, left.p, left.n);
        buf_add_str(&b, between);
        buf_add(&b, right.p, right.n);
    }
    INFERD_CHECK(!b.failed);
    return b;
}

static void put_merges(tiny_gguf *g, json_t *merges) {
    tiny_kv_array(g, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        buf b = merge_at(merges, i, " ");
        tiny_put_string(&g->metadata, b.p, b.n);
        buf_deinit(&b);
    }
}

/* The file lists merges from the best score down; what no merge makes has the worst. */
static void put_scores(tiny_gguf *g, json_t *ids, json_t *merges) {
    float *scores = malloc(v.n * sizeof *scores);
    INFERD_CHECK(scores != NULL);
    for (size_t i = 0; i < v.n; i++) scores[i] = -1e9f;
    for (size_t i = json_array_size(merges); i > 0; i--) {
        buf name = merge_at(merges, i - 1, "");
        scores[json_integer_value(json_object_get(ids, buf_cstr(&name)))] = -(float)i;
        buf_deinit(&name);
    }
    tiny_kv_array(g, "tokenizer.ggml.scores", GGUF_F32, v.n);
    for (size_t i = 0; i < v.n; i++) {
        uint32_t bits;
        memcpy(&bits, &scores[i], sizeof bits);
        tiny_put(&g->metadata, bits, 4);
    }
    free(scores);
}

static tokenizer *convert(json_t *file, const char *model, const char *pre, bool prefix) {
    read_vocab(file, strcmp(model, "llama") == 0);
    json_t *json_model = json_object_get(file, "model");
    json_t *merges = json_object_get(json_model, "merges");
    tiny_gguf *g = malloc(sizeof *g);
    tokenizer *t = NULL;
    inferd_err err = {0};
    INFERD_CHECK(g != NULL);
    tiny_gguf_init(g);
    tiny_kv_str(g, "tokenizer.ggml.model", model);
    if (pre != NULL) tiny_kv_str(g, "tokenizer.ggml.pre", pre);
    tiny_kv_bool(g, "tokenizer.ggml.add_space_prefix", prefix);
    tiny_kv_strs(g, "tokenizer.ggml.tokens", v.names, v.n);
    tiny_kv_i32s(g, "tokenizer.ggml.token_type", v.kinds, v.n);
    if (strcmp(model, "llama") != 0)
        put_merges(g, merges);
    else
        put_scores(g, json_object_get(json_model, "vocab"), merges);
    gguf *opened = open_good(g);
    EXPECT_EQ(tok_open(opened, &t, &err), INFERD_OK);
    if (t == NULL) printf("%s\n", err.text);
    gguf_close(opened);
    tiny_gguf_deinit(g);
    free(g);
    return t;
}

static void ids_agree(const char *name, const char *model, const char *pre, bool prefix) {
    char file_name[128];
    size_t n_same, n_back;
    snprintf(file_name, sizeof file_name, "tokenizers/%s.tokenizer.json.xz", name);
    buf b = read_whole(shared_path(file_name), true);
    if (b.p == NULL) SKIP(file_name);
    json_t *file = json_loadb(b.p, b.n, JSON_ALLOW_NUL, NULL);
    EXPECT(file != NULL);
    tokenizer *t = convert(file, model, pre, prefix);
    if (t != NULL) {
        snprintf(file_name, sizeof file_name, "tokenizers/%s.vectors.jsonl.xz", name);
        size_t n = check_lines(t, file_name, &n_same, &n_back);
        printf("%s: %zu of %zu strings have the same ids, %zu come back\n", name, n_same, n,
               n_back);
        EXPECT_EQ(tok_n_merges_dropped(t), 0);
        EXPECT_EQ(n, 4000);
        EXPECT_EQ(n_same, n);
    }
    tok_close(t);
    json_decref(file);
    buf_deinit(&b);
}

static void llama_3_1_agrees(void) {
    ids_agree("llama-3.1", "gpt2", "llama-bpe", false);
}
static void qwen3_agrees(void) {
    ids_agree("qwen3", "gpt2", "qwen2", false);
}
static void gpt_oss_agrees(void) {
    ids_agree("gpt-oss", "gpt2", "gpt-4o", false);
}
static void deepseek_v3_agrees(void) {
    ids_agree("deepseek-v3", "gpt2", "deepseek-v3", false);
}
static void mistral_agrees(void) {
    ids_agree("mistral-v0.1", "llama", "default", true);
}
static void gemma_3_agrees(void) {
    ids_agree("gemma-3", "llama", "default", false);
}
/* Gemma 3 lists merges too; Gemma 4's files have only those. */
static void gemma_3_agrees_by_its_merges(void) {
    ids_agree("gemma-3", "gemma4", NULL, false);
}

static const test_case cases[] = {
    TEST(llama_3_1_agrees),
    TEST(qwen3_agrees),
    TEST(gpt_oss_agrees),
    TEST(deepseek_v3_agrees),
    TEST(mistral_agrees),
    TEST(gemma_3_agrees),
    TEST(gemma_3_agrees_by_its_merges),
};

TEST_MAIN(cases)
