/* test_arch_ranges.c - numbers of a model's description outside their ranges, keys that are missing
 * or of another kind, and tensors of other shapes and types than the description says: each is
 * refused with its name before anything is multiplied or allocated. */
#include "decoder.h"
#include "gguf_image.h"
#include "model_private.h"
#include "weights.h"

enum { LAYERS = 1, DIM = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, FFN = 96, VOCAB = 32 };

typedef struct number {
    const char *key;
    double value;
    bool real; // f32, else u32
} number;

static const number usual[] = {
    {"block_count", LAYERS, false},
    {"context_length", 512, false},
    {"embedding_length", DIM, false},
    {"feed_forward_length", FFN, false},
    {"attention.head_count", HEADS, false},
    {"attention.head_count_kv", KV_HEADS, false},
    {"attention.key_length", HEAD_DIM, false},
    {"attention.value_length", HEAD_DIM, false},
    {"rope.dimension_count", HEAD_DIM, false},
    {"attention.layer_norm_rms_epsilon", 1e-6, true},
    {"rope.freq_base", 10000, true},
};

static void put_number(tiny_gguf *g, const char *name, double value, bool real) {
    char key[96];
    snprintf(key, sizeof key, "llama.%s", name);
    if (real)
        tiny_kv_f64(g, key, value);
    else if (value < 0)
        tiny_kv_bits(g, key, GGUF_I64, (uint64_t)(int64_t)value, 8);
    else
        tiny_kv_bits(g, key, GGUF_U64, (uint64_t)value, 8);
}

/* The usual description without `left_out` (NULL: all of it). */
static void begin(tiny_gguf *g, const char *left_out) {
    tiny_gguf_init(g);
    tiny_kv_str(g, "general.architecture", "llama");
    for (size_t i = 0; i < INFERD_COUNT(usual); i++)
        if (left_out == NULL || strcmp(left_out, usual[i].key) != 0)
            put_number(g, usual[i].key, usual[i].value, usual[i].real);
}

/* Ends the life of `g`. */
static inferd_status read_spec(tiny_gguf *g, inferd_err *err) {
    decoder_spec s;
    gguf *file = open_good(g);
    tiny_gguf_deinit(g);
    *err = (inferd_err){0};
    inferd_status st = decoder_spec_read(file, 0, &s, err);
    decoder_spec_deinit(&s);
    gguf_close(file);
    return st;
}

/* ---- the description ---- */

static void the_usual_one_is_read(void) {
    tiny_gguf g;
    inferd_err err;
    begin(&g, NULL);
    EXPECT_EQ(read_spec(&g, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
}

/* Keys without a fallback. */
static void a_key_that_is_missing_is_named(void) {
    static const char *const keys[] = {"block_count",          "context_length",
                                       "embedding_length",     "feed_forward_length",
                                       "attention.head_count", "attention.layer_norm_rms_epsilon"};
    tiny_gguf g;
    inferd_err err;
    for (size_t i = 0; i < INFERD_COUNT(keys); i++) {
        char words[96];
        begin(&g, keys[i]);
        snprintf(words, sizeof words, "key llama.%s is missing", keys[i]);
        expect_failed(read_spec(&g, &err), INFERD_EFORMAT, &err, words);
        expect_words(&err, image_path);
    }
    tiny_gguf_init(&g);
    expect_failed(read_spec(&g, &err), INFERD_EFORMAT, &err, "key general.architecture is missing");
}

static void a_number_outside_its_range_is_named(void) {
    static const number all[] = {
        {"block_count", 0, false},
        {"block_count", DECODER_LAYERS_MAX + 1.0, false},
        {"block_count", -1, false},
        {"block_count", 0x1p32 + 1, false}, // would be 1 in 32 bits
        {"context_length", 0, false},
        {"context_length", DECODER_CONTEXT_MAX + 1.0, false},
        {"embedding_length", 0, false},
        {"embedding_length", DECODER_DIM_MAX + 1.0, false},
        {"feed_forward_length", 0, false},
        {"feed_forward_length", DECODER_FFN_MAX + 1.0, false},
        {"attention.head_count", 0, false},
        {"attention.head_count", DECODER_HEADS_MAX + 1.0, false},
        {"attention.head_count_kv", 0, false},
        {"attention.head_count_kv", DECODER_HEADS_MAX + 1.0, false},
        {"attention.key_length", 0, false},
        {"attention.key_length", DECODER_HEAD_DIM_MAX + 2.0, false},
        {"attention.value_length", 0, false},
        {"attention.value_length", DECODER_HEAD_DIM_MAX + 2.0, false},
        {"rope.dimension_count", 0, false},
        {"rope.dimension_count", DECODER_HEAD_DIM_MAX + 2.0, false},
        {"attention.layer_norm_rms_epsilon", 0, true},
        {"attention.layer_norm_rms_epsilon", 1, true},
        {"attention.layer_norm_rms_epsilon", -1e-6, true},
        {"attention.layer_norm_rms_epsilon", NAN, true},
        {"rope.freq_base", 0, true},
        {"rope.freq_base", 0.5, true},
        {"rope.freq_base", -10000, true},
        {"rope.freq_base", 1e13, true},
        {"rope.freq_base", INFINITY, true},
        {"rope.freq_base", NAN, true},
        {"rope.scaling.factor", -1, true},
        {"rope.scaling.factor", INFINITY, true},
        {"rope.scaling.factor", NAN, true},
        {"expert_count", 1025, false},
        {"expert_count", -1, false},
        {"attention.sliding_window", DECODER_CONTEXT_MAX + 1.0, false},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        inferd_err err;
        char words[96];
        begin(&g, all[i].key);
        put_number(&g, all[i].key, all[i].value, all[i].real);
        snprintf(words, sizeof words, "key llama.%s is ", all[i].key);
        expect_failed(read_spec(&g, &err), INFERD_EFORMAT, &err, words);
        expect_words(&err, ", expected ");
    }
}

static void a_key_of_another_kind_is_named(void) {
    for (size_t i = 0; i < INFERD_COUNT(usual); i++) {
        tiny_gguf g;
        inferd_err err;
        char key[96], words[128];
        begin(&g, usual[i].key);
        snprintf(key, sizeof key, "llama.%s", usual[i].key);
        tiny_kv_str(&g, key, "64");
        snprintf(words, sizeof words, "key %s is a string, expected ", key);
        expect_failed(read_spec(&g, &err), INFERD_EFORMAT, &err, words);
    }
}

static void numbers_that_do_not_fit_together_are_refused(void) {
    static const struct {
        const char *key;
        double value;
        const char *words;
    } all[] = {
        {"attention.head_count_kv", 3, "4 is no multiple of head_count_kv 3"},
        {"attention.head_count_kv", 8, "4 is no multiple of head_count_kv 8"},
        {"attention.key_length", 15, "a head of 15 dimensions; expected an even number"},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        inferd_err err;
        begin(&g, all[i].key);
        put_number(&g, all[i].key, all[i].value, false);
        expect_failed(read_spec(&g, &err), INFERD_EFORMAT, &err, all[i].words);
    }
    tiny_gguf g; // more heads than dimensions, and no length of a head
    inferd_err err;
    tiny_gguf_init(&g);
    tiny_kv_str(&g, "general.architecture", "llama");
    for (size_t i = 0; i < INFERD_COUNT(usual); i++)
        if (strstr(usual[i].key, "head_count") == NULL && strstr(usual[i].key, "_length") == NULL)
            put_number(&g, usual[i].key, usual[i].value, usual[i].real);
    put_number(&g, "context_length", 512, false);
    put_number(&g, "embedding_length", DIM, false);
    put_number(&g, "feed_forward_length", FFN, false);
    put_number(&g, "attention.head_count", DIM + 1, false);
    expect_failed(read_spec(&g, &err), INFERD_EFORMAT, &err, "a head of 0 dimensions");
}

/* ---- divisors of the rotary frequencies ---- */

static void rope_freqs_are_checked(void) {
    static const struct {
        uint32_t type, n_dims;
        uint64_t dims[2];
        float third; // of the divisors
        const char *words;
    } all[] = {
        {DTYPE_F32, 1, {8}, 0, "rope_freqs.weight[3] is 0; expected a positive number"},
        {DTYPE_F32, 1, {8}, -1, "rope_freqs.weight[3] is -1"},
        {DTYPE_F32, 1, {8}, NAN, "rope_freqs.weight[3] is nan"},
        {DTYPE_F32, 1, {8}, INFINITY, "rope_freqs.weight[3] is inf"},
        {DTYPE_F32, 1, {7}, 1, "rope_freqs.weight is F32 of 7, expected F32 of 8"},
        {DTYPE_F32, 1, {9}, 1, "rope_freqs.weight is F32 of 9, expected F32 of 8"},
        {DTYPE_F32, 2, {8, 2}, 1, "rope_freqs.weight is F32"},
        {DTYPE_F16, 1, {8}, 1, "rope_freqs.weight is F16 of 8, expected F32 of 8"},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        inferd_err err;
        float values[16];
        for (int k = 0; k < 16; k++) values[k] = k == 3 ? all[i].third : 1;
        size_t n = (size_t)all[i].dims[0] * (all[i].n_dims == 2 ? 2 : 1);
        begin(&g, NULL);
        tiny_tensor_add(&g, "rope_freqs.weight", all[i].type, all[i].n_dims, all[i].dims, values,
                        n * (all[i].type == DTYPE_F16 ? 2 : 4));
        expect_failed(read_spec(&g, &err), INFERD_EFORMAT, &err, all[i].words);
    }
}

/* ---- shapes ---- */

typedef struct tensor {
    const char *name;
    uint32_t type, n_dims;
    uint64_t dims[4];
} tensor;

static const tensor layout[] = {
    {"token_embd.weight", DTYPE_F16, 2, {DIM, VOCAB}},
    {"output_norm.weight", DTYPE_F32, 1, {DIM}},
    {"blk.0.attn_norm.weight", DTYPE_F32, 1, {DIM}},
    {"blk.0.ffn_norm.weight", DTYPE_F32, 1, {DIM}},
    {"blk.0.attn_q.weight", DTYPE_F16, 2, {DIM, HEADS *HEAD_DIM}},
    {"blk.0.attn_k.weight", DTYPE_F16, 2, {DIM, KV_HEADS *HEAD_DIM}},
    {"blk.0.attn_v.weight", DTYPE_F16, 2, {DIM, KV_HEADS *HEAD_DIM}},
    {"blk.0.attn_output.weight", DTYPE_F16, 2, {HEADS * HEAD_DIM, DIM}},
    {"blk.0.ffn_gate.weight", DTYPE_F16, 2, {DIM, FFN}},
    {"blk.0.ffn_up.weight", DTYPE_F16, 2, {DIM, FFN}},
    {"blk.0.ffn_down.weight", DTYPE_F16, 2, {FFN, DIM}},
};

static void add_tensor(tiny_gguf *g, const tensor *t) {
    dtype_info about = dtype_about(t->type);
    size_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) n *= (size_t)t->dims[i];
    tiny_tensor_add(g, t->name, t->type, t->n_dims, t->dims, NULL,
                    n / about.block_elems * about.block_bytes);
}

/* The model with another tensor in place of the one of its name; NULL: as it should be. */
static inferd_status check_weights(const tensor *other, inferd_err *err) {
    tiny_gguf g;
    decoder_spec s;
    begin(&g, NULL);
    for (size_t i = 0; i < INFERD_COUNT(layout); i++) {
        bool is_other = other != NULL && strcmp(other->name, layout[i].name) == 0;
        if (!is_other || other->n_dims > 0) add_tensor(&g, is_other ? other : &layout[i]);
    }
    gguf *file = open_good(&g);
    tiny_gguf_deinit(&g);
    *err = (inferd_err){0};
    EXPECT_EQ(decoder_spec_read(file, 0, &s, err), INFERD_OK);
    s.n_vocab = VOCAB;
    s.tied = true;
    inferd_status st = weights_check(file, &s, err);
    decoder_spec_deinit(&s);
    gguf_close(file);
    return st;
}

/* Each tensor with each number of dimensions, each dimension one less, one more and swapped. */
static void another_shape_is_refused(void) {
    inferd_err err;
    EXPECT_EQ(check_weights(NULL, &err), INFERD_OK);
    for (size_t i = 0; i < INFERD_COUNT(layout); i++) {
        const tensor *t = &layout[i];
        uint32_t n = 0;
        tensor others[8];
        others[n++] = (tensor){t->name, t->type, t->n_dims, {t->dims[0] - 1, t->dims[1]}};
        others[n++] = (tensor){t->name, t->type, t->n_dims, {t->dims[0] + 1, t->dims[1]}};
        others[n++] =
            (tensor){t->name, t->type, 3, {t->dims[0], t->n_dims > 1 ? t->dims[1] : 1, 2}};
        others[n++] = (tensor){t->name, t->type, 0, {0}}; // not there
        if (t->n_dims == 1) {
            others[n++] = (tensor){t->name, t->type, 2, {t->dims[0], 2}};
        } else {
            others[n++] = (tensor){t->name, t->type, 1, {t->dims[0]}};
            others[n++] = (tensor){t->name, t->type, 2, {t->dims[0], t->dims[1] - 1}};
            others[n++] = (tensor){t->name, t->type, 2, {t->dims[0], t->dims[1] + 1}};
            if (t->dims[0] != t->dims[1])
                others[n++] = (tensor){t->name, t->type, 2, {t->dims[1], t->dims[0]}};
        }
        for (uint32_t k = 0; k < n; k++) {
            char words[96];
            snprintf(words, sizeof words, "tensor %s is ", t->name);
            expect_failed(check_weights(&others[k], &err), INFERD_EFORMAT, &err, words);
            expect_words(&err, others[k].n_dims == 0 ? "is missing" : ", expected [");
            expect_words(&err, image_path);
        }
    }
}

static void norms_have_types_of_numbers(void) {
    static const uint32_t types[] = {DTYPE_Q8_0, DTYPE_Q4_0, 24, 26, 28}; // I8, I32, F64
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        inferd_err err;
        tensor norm = {"blk.0.attn_norm.weight", types[i], 1, {DIM}};
        expect_failed(check_weights(&norm, &err), INFERD_EUNSUPPORTED, &err,
                      "expected F32, F16 or BF16");
        expect_words(&err, norm.name);
    }
    static const uint32_t good[] = {DTYPE_F16, DTYPE_BF16};
    for (size_t i = 0; i < INFERD_COUNT(good); i++) {
        inferd_err err;
        tensor norm = {"blk.0.attn_norm.weight", good[i], 1, {DIM}};
        EXPECT_EQ(check_weights(&norm, &err), INFERD_OK);
    }
}

static void matrices_have_types_that_are_computed(void) {
    static const uint32_t types[] = {24, 25, 26, 27, 28}; // I8 to F64
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        inferd_err err;
        tensor m = {"blk.0.ffn_up.weight", types[i], 2, {DIM, FFN}};
        expect_failed(check_weights(&m, &err), INFERD_EUNSUPPORTED, &err,
                      "which cannot be computed with; types that can: F32");
        expect_words(&err, dtype_about(types[i]).name);
    }
}

/* ---- the vocabulary beside the embedding ---- */

static inferd_status open_with_rows(uint32_t n_dims, uint64_t rows, inferd_err *err) {
    tiny_gguf *g = malloc(sizeof *g);
    model *m = NULL;
    INFERD_CHECK(g != NULL);
    tiny_gguf_init(g);
    tiny_model_fill(g, 1, &(tiny_model_options){.tied = true, .n_layers = 1});
    tiny_tensor *t = &g->tensors[0]; // the embedding: its data stays, and is too long or too short
    INFERD_CHECK(strcmp(t->name, "token_embd.weight") == 0);
    buf_deinit(&t->data);
    t->n_dims = n_dims;
    t->dims[1] = rows;
    t->dims[2] = 1;
    uint64_t n_bytes = t->dims[0] * rows * 4, at = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        uint64_t n = i == 0 ? n_bytes : g->tensors[i].data.n;
        g->tensors[i].offset = at;
        at += (n + 31) / 32 * 32;
    }
    buf image = {0};
    size_t data_at = tiny_gguf_bytes(g, &image);
    put_image(image.p, data_at, data_at + at); // zeros, and sparse
    *err = (inferd_err){0};
    inferd_status st = model_open(&(model_options){.path = image_path}, &m, err);
    model_close(m);
    buf_deinit(&image);
    tiny_gguf_deinit(g);
    free(g);
    return st;
}

static void the_embedding_has_a_row_for_each_token(void) {
    inferd_err err;
    EXPECT_EQ(open_with_rows(2, TINY_VOCAB, &err), INFERD_OK);
    EXPECT_EQ(open_with_rows(2, TINY_VOCAB + 7, &err), INFERD_OK); // padding: never drawn
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
    expect_failed(open_with_rows(2, TINY_VOCAB - 1, &err), INFERD_EFORMAT, &err,
                  "512 tokens in the vocabulary and 511 rows in token_embd.weight");
    expect_failed(open_with_rows(2, DECODER_VOCAB_MAX + 1, &err), INFERD_EFORMAT, &err,
                  "token_embd.weight has 2 dimensions and 1048577 rows; expected 2 and at most "
                  "1048576");
    expect_failed(open_with_rows(3, TINY_VOCAB, &err), INFERD_EFORMAT, &err,
                  "token_embd.weight has 3 dimensions and 512 rows");
}

static const test_case cases[] = {
    TEST(the_usual_one_is_read),
    TEST(a_key_that_is_missing_is_named),
    TEST(a_number_outside_its_range_is_named),
    TEST(a_key_of_another_kind_is_named),
    TEST(numbers_that_do_not_fit_together_are_refused),
    TEST(rope_freqs_are_checked),
    TEST(another_shape_is_refused),
    TEST(norms_have_types_of_numbers),
    TEST(matrices_have_types_that_are_computed),
    TEST(the_embedding_has_a_row_for_each_token),
};
TEST_MAIN(cases)
