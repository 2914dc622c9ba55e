/* test_arch_keys.c - what a file says is honoured, or refused by its name.
 *
 * Keys that no reader looked at were ignored: a Gemma 3 of another pattern of windows computed
 * something else without a word, and so did a llama with a scale of its logits, of its attention or
 * of its embedding, with attention that is not causal, or with tensors that nothing reads. */
#include <math.h>

#include "decoder.h"
#include "gguf_image.h"
#include "weights.h"

/* ---- a file of a family ---- */

typedef struct family {
    const char *name;
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim;
} family;

static const family llama = {"llama", 2, 64, 4, 2, 16};
static const family qwen3 = {"qwen3", 2, 64, 4, 2, 32};
static const family gemma3 = {"gemma3", 7, 64, 4, 2, 32};
static const family qwen3moe = {"qwen3moe", 2, 64, 4, 2, 32};
static const family granite = {"granite", 2, 64, 4, 2, 16};
static const family phi3 = {"phi3", 2, 64, 4, 2, 16};
static const family gemma3_27b = {"gemma3", 62, 64, 4, 2, 32};

static const char *key(const family *f, const char *name) {
    static char out[128];
    snprintf(out, sizeof out, "%s.%s", f->name, name);
    return out;
}

/* What every file of the family says, but for the heads of keys and values. */
static void begin_without_kv_heads(tiny_gguf *g, const family *f) {
    tiny_gguf_init(g);
    tiny_kv_str(g, "general.architecture", f->name);
    tiny_kv_u32(g, key(f, "block_count"), f->n_layers);
    tiny_kv_u32(g, key(f, "context_length"), 512);
    tiny_kv_u32(g, key(f, "embedding_length"), f->dim);
    tiny_kv_u32(g, key(f, "feed_forward_length"), 96);
    tiny_kv_u32(g, key(f, "attention.head_count"), f->n_heads);
    tiny_kv_u32(g, key(f, "attention.key_length"), f->head_dim);
    tiny_kv_u32(g, key(f, "attention.value_length"), f->head_dim);
    tiny_kv_f32(g, key(f, "attention.layer_norm_rms_epsilon"), 1e-6f);
    tiny_kv_f32(g, key(f, "rope.freq_base"), 1e6f);
}

static void begin(tiny_gguf *g, const family *f) {
    begin_without_kv_heads(g, f);
    tiny_kv_u32(g, key(f, "attention.head_count_kv"), f->n_kv_heads);
}

/* Ends the life of `g`. */
static inferd_status read_spec(tiny_gguf *g, decoder_spec *s, inferd_err *err) {
    gguf *file = open_good(g);
    tiny_gguf_deinit(g);
    *err = (inferd_err){0};
    inferd_status st = decoder_spec_read(file, 0, s, err);
    gguf_close(file);
    return st;
}

static void is_read(tiny_gguf *g) {
    decoder_spec s;
    inferd_err err;
    EXPECT_EQ(read_spec(g, &s, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
    decoder_spec_deinit(&s);
}

/* With the file, the key and its value. */
static void is_not_read(tiny_gguf *g, const char *words) {
    decoder_spec s;
    inferd_err err;
    inferd_status st = read_spec(g, &s, &err);
    expect_failed(st, INFERD_EUNSUPPORTED, &err, words);
    expect_words(&err, image_path);
    decoder_spec_deinit(&s);
}

/* ---- keys ---- */

typedef struct real_key {
    const char *name;
    float neutral, other;
    const char *words;
} real_key;

static void a_number_that_is_not_honoured_is_refused(void) {
    static const real_key all[] = {
        {"logit_scale", 1, 0.5f, "key llama.logit_scale is 0.5"},
        {"attention.scale", 0.25f, 0.125f, "key llama.attention.scale is 0.125"}, // 16 per head
        {"embedding_scale", 1, 12, "key llama.embedding_scale is 12"},
        {"residual_scale", 1, 0.22f, "key llama.residual_scale is 0.22"},
        {"rope.scaling.attn_factor", 1, 1.19f, "key llama.rope.scaling.attn_factor is 1.19"},
        {"rope.scaling.yarn_log_multiplier", 0, 0.1f, "yarn_log_multiplier is 0.1"},
        {"attention.clamp_kqv", 0, 8, "key llama.attention.clamp_kqv is 8"},
        {"attention.max_alibi_bias", 0, 8, "key llama.attention.max_alibi_bias is 8"},
        {"attn_logit_softcapping", 0, 50, "key llama.attn_logit_softcapping is 50"},
        {"final_logit_softcapping", 0, 30, "key llama.final_logit_softcapping is 30"},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        begin(&g, &llama);
        tiny_kv_f32(&g, key(&llama, all[i].name), all[i].neutral);
        is_read(&g);
        begin(&g, &llama);
        tiny_kv_f32(&g, key(&llama, all[i].name), all[i].other);
        is_not_read(&g, all[i].words);
    }
}

static void a_switch_that_is_not_honoured_is_refused(void) {
    static const struct {
        const char *name;
        bool neutral;
        const char *words;
    } all[] = {
        {"attention.causal", true,
         "key llama.attention.causal is false, which is not supported; only true is computed"},
        {"use_parallel_residual", false,
         "use_parallel_residual is true, which is not supported; only false is computed"},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        begin(&g, &llama);
        tiny_kv_bool(&g, key(&llama, all[i].name), all[i].neutral);
        is_read(&g);
        begin(&g, &llama);
        tiny_kv_bool(&g, key(&llama, all[i].name), !all[i].neutral);
        is_not_read(&g, all[i].words);
    }
}

static void other_kinds_are_no_numbers(void) {
    tiny_gguf g;
    begin(&g, &llama);
    tiny_kv_str(&g, "llama.logit_scale", "1");
    is_not_read(&g, "key llama.logit_scale is \"1\"");
    begin(&g, &llama);
    tiny_kv_i32s(&g, "llama.logit_scale", (int32_t[]){1, 1}, 2);
    is_not_read(&g, "key llama.logit_scale is an array of 2 i32s");
    begin(&g, &llama);
    tiny_kv_i32s(&g, "llama.rope.dimension_sections", (int32_t[]){0, 0, 0, 0}, 4);
    is_read(&g);
    begin(&g, &llama);
    tiny_kv_i32s(&g, "llama.rope.dimension_sections", (int32_t[]){8, 4, 4, 0}, 4);
    is_not_read(&g, "key llama.rope.dimension_sections is an array of 4 i32s, which is not "
                    "supported; only an empty one, or one of zeros, is");
    begin(&g, &llama);
    tiny_kv_f32(&g, "llama.logit_scale", NAN);
    is_not_read(&g, "key llama.logit_scale is nan");
}

static void scales_are_those_of_the_family(void) {
    tiny_gguf g;
    begin(&g, &gemma3); // the embedding times the root of 64
    tiny_kv_f32(&g, "gemma3.embedding_scale", 8);
    is_read(&g);
    begin(&g, &gemma3);
    tiny_kv_f32(&g, "gemma3.embedding_scale", 1);
    is_not_read(&g, "key gemma3.embedding_scale is 1, which is not supported; only 8 (or 0, not "
                    "set) is computed");
    begin(&g, &gemma3_27b); // queries as if 64 were shared by 4 heads
    tiny_kv_f32(&g, "gemma3.attention.scale", 0.25f);
    is_read(&g);
    begin(&g, &gemma3_27b);
    tiny_kv_f32(&g, "gemma3.attention.scale", 0.17677669f);
    is_not_read(&g, "key gemma3.attention.scale is 0.17677");
}

static void a_key_that_is_not_known_is_refused(void) {
    static const family *const all[] = {&llama, &qwen3, &gemma3};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        char words[96];
        begin(&g, all[i]);
        tiny_kv_u32(&g, key(all[i], "attention.tomorrow"), 3);
        snprintf(words, sizeof words, "key %s.attention.tomorrow (3) is not known", all[i]->name);
        is_not_read(&g, words);
    }
    tiny_gguf g;
    begin(&g, &llama);
    tiny_kv_f32(&g, "llama.rope.freq_base_swa", 10000); // gemma3's
    is_not_read(&g, "key llama.rope.freq_base_swa (10000) is not known");
    begin(&g, &qwen3);
    tiny_kv_u32(&g, "qwen3.attention.sliding_window", 4096);
    is_not_read(&g, "key qwen3.attention.sliding_window is 4096");
}

static void keys_of_others_and_harmless_ones_are_read_over(void) {
    tiny_gguf g;
    begin(&g, &llama);
    tiny_kv_f32(&g, "qwen2.logit_scale", 5);
    tiny_kv_str(&g, "quantize.imatrix.file", "x.dat");
    tiny_kv_str(&g, "general.tomorrow", "x");
    tiny_kv_u32(&g, "llama.vocab_size", 7);
    tiny_kv_str(&g, "llama.tensor_data_layout", "Meta AI original pth");
    tiny_kv_u32(&g, "llama.rope.scaling.original_context_length", 8192);
    tiny_kv_bool(&g, "llama.rope.scaling.finetuned", true);
    tiny_kv_f32(&g, "llama.attention.layer_norm_epsilon", 1e-5f);
    tiny_kv_u32(&g, "llama.attention.head_dim", 16);
    tiny_kv_u32(&g, "llama.pooling_type", 3);
    is_read(&g);
    begin(&g, &gemma3);
    tiny_kv_u32(&g, "gemma3.vision.block_count", 27);
    tiny_kv_u32(&g, "gemma3.mm.tokens_per_image", 256);
    is_read(&g);
    begin(&g, &llama);
    tiny_kv_u32(&g, "llama.vision.block_count", 27);
    is_not_read(&g, "llama.vision.block_count");
}

/* Every published file of Qwen3-Coder says how wide its shared expert is, 0, and was refused. */
static void experts_may_say_that_none_is_shared(void) {
    for (uint32_t width = 0; width <= 96; width += 96) {
        tiny_gguf g;
        begin(&g, &qwen3moe);
        tiny_kv_u32(&g, "qwen3moe.expert_count", 4);
        tiny_kv_u32(&g, "qwen3moe.expert_used_count", 2);
        tiny_kv_u32(&g, "qwen3moe.expert_feed_forward_length", 32);
        tiny_kv_u32(&g, "qwen3moe.expert_shared_feed_forward_length", width);
        if (width == 0)
            is_read(&g);
        else
            is_not_read(&g, "key qwen3moe.expert_shared_feed_forward_length is 96");
    }
}

static void begin_granite4(tiny_gguf *g, const int32_t *kv_heads, size_t n) {
    begin_without_kv_heads(g, &granite);
    tiny_kv_i32s(g, "granite.attention.head_count_kv", kv_heads, n);
    tiny_kv_u32(g, "granite.expert_count", 0);
    tiny_kv_u32(g, "granite.expert_used_count", 0);
    tiny_kv_u32(g, "granite.expert_shared_feed_forward_length", 96);
    tiny_kv_u32(g, "granite.ssm.conv_kernel", 4);
    tiny_kv_u32(g, "granite.ssm.inner_size", 128);
    tiny_kv_bool(g, "granite.rope.scaling.finetuned", true);
}

/* The converter writes dense Granite 4 as the hybrid it might have been: heads as a list, and keys
 * of layers and experts that it does not have.  All such files were refused. */
static void dense_granite_4_has_keys_of_the_hybrid(void) {
    static const struct {
        int32_t heads[2];
        size_t n;
        inferd_status status;
        const char *words;
    } all[] = {
        {{2, 2}, 2, INFERD_OK, ""},
        {{2, 0},
         2,
         INFERD_EUNSUPPORTED,
         "granite.attention.head_count_kv is 2 for layer 0 and 0 for layer 1; one number for all"},
        {{2}, 1, INFERD_EFORMAT, "granite.attention.head_count_kv has 1 elements for 2 layers"},
        {{0, 0}, 2, INFERD_EFORMAT, "granite.attention.head_count_kv[0] is 0, expected 1 to 1024"},
        {{-1, -1}, 2, INFERD_EFORMAT, "granite.attention.head_count_kv[0] is -1, expected 1 to"},
        {{3, 3}, 2, INFERD_EFORMAT, "attention.head_count 4 is no multiple of head_count_kv 3"},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        decoder_spec s;
        inferd_err err;
        begin_granite4(&g, all[i].heads, all[i].n);
        inferd_status st = read_spec(&g, &s, &err);
        if (all[i].status != INFERD_OK)
            expect_failed(st, all[i].status, &err, all[i].words);
        else
            EXPECT_EQ(st, INFERD_OK);
        if (st == INFERD_OK) EXPECT_EQ(s.n_kv_heads, 2);
        decoder_spec_deinit(&s);
    }
}

/* ---- the scale of cosines and sines ---- */

/* 0.878 is the attn_factor of DeepSeek-R1-0528-Qwen3-8B.  It was taken for the whole scale, and
 * attention was too flat. */
static void a_factor_below_1_is_not_the_whole_scale(void) {
    const double usual = 0.1 * log(4) + 1;
    const struct {
        float said, log_multiplier; // 0: there is no such key
        double scale;
    } all[] = {{0, 0, usual},
               {(float)usual, 0, usual},
               {0.8782488562869419f, 0, usual},
               {1, 0, 1},
               {1.5f, 0, 1.5},
               {0, 1, 1},
               {0, 2, usual / (0.2 * log(4) + 1)}};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        decoder_spec s;
        inferd_err err;
        begin(&g, &qwen3);
        tiny_kv_str(&g, "qwen3.rope.scaling.type", "yarn");
        tiny_kv_f32(&g, "qwen3.rope.scaling.factor", 4);
        tiny_kv_u32(&g, "qwen3.rope.scaling.original_context_length", 128);
        if (all[i].said != 0) tiny_kv_f32(&g, "qwen3.rope.scaling.yarn_attn_factor", all[i].said);
        if (all[i].log_multiplier != 0)
            tiny_kv_f32(&g, "qwen3.rope.scaling.yarn_log_multiplier", all[i].log_multiplier);
        EXPECT_EQ(read_spec(&g, &s, &err), INFERD_OK);
        EXPECT_NEAR((double)s.kinds[0].rope.scale, all[i].scale, 1e-6);
        decoder_spec_deinit(&s);
    }
}

static void begin_long(tiny_gguf *g, uint32_t original) {
    static const float divisors[8] = {1, 1, 1, 1, 2, 2, 2, 2};
    begin(g, &phi3);
    tiny_kv_u32(g, "phi3.rope.scaling.original_context_length", original);
    tiny_tensor_add(g, "rope_factors_long.weight", DTYPE_F32, 1, (uint64_t[]){8}, divisors,
                    sizeof divisors);
    tiny_tensor_add(g, "rope_factors_short.weight", DTYPE_F32, 1, (uint64_t[]){8}, divisors,
                    sizeof divisors);
}

/* A factor beside the tensors was ignored, and an original context of 1 gave an infinite scale. */
static void longrope_has_no_other_divisor(void) {
    decoder_spec s;
    inferd_err err;
    tiny_gguf g;
    begin_long(&g, 128);
    is_read(&g);
    begin_long(&g, 128);
    tiny_kv_f32(&g, "phi3.rope.scaling.factor", 1);
    is_read(&g);
    begin_long(&g, 128);
    tiny_kv_f32(&g, "phi3.rope.scaling.factor", 4);
    is_not_read(&g, "key phi3.rope.scaling.factor is 4");
    begin_long(&g, 1);
    expect_failed(read_spec(&g, &s, &err), INFERD_EFORMAT, &err,
                  "phi3.rope.scaling.original_context_length is 1; with LongRoPE it must be above");
    decoder_spec_deinit(&s);
}

/* ---- which layers have a window ---- */

/* 'w' and 'g' for each layer. */
static void layers_are(tiny_gguf *g, const char *expected) {
    decoder_spec s;
    inferd_err err;
    char got[DECODER_LAYERS_MAX + 1];
    EXPECT_EQ(read_spec(g, &s, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
    for (uint32_t i = 0; i < s.n_layers; i++)
        got[i] = (decoder_kind_of(&s, i) == &s.kinds[1]) ? 'w' : 'g';
    got[s.n_layers] = 0;
    EXPECT_STR(got, expected);
    decoder_spec_deinit(&s);
}

static void begin_windowed(tiny_gguf *g) {
    begin(g, &gemma3);
    tiny_kv_u32(g, "gemma3.attention.sliding_window", 8);
}

static void a_pattern_is_a_period(void) {
    static const struct {
        uint32_t period;
        const char *layers;
    } all[] = {{6, "wwwwwgw"}, {2, "wgwgwgw"}, {1, "ggggggg"}, {7, "wwwwwwg"},
               {3, "wwgwwgw"}, {8, "wwwwwww"}, {0, "wwwwwww"}};
    tiny_gguf g;
    begin_windowed(&g);
    layers_are(&g, "wwwwwgw"); // as the family has it
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        begin_windowed(&g);
        tiny_kv_u32(&g, "gemma3.attention.sliding_window_pattern", all[i].period);
        layers_are(&g, all[i].layers);
    }
}

static void a_pattern_is_a_list(void) {
    static const uint8_t bits[] = {0, 1, 1, 0, 1, 0, 1};
    tiny_gguf g;
    begin_windowed(&g);
    tiny_kv_array(&g, "gemma3.attention.sliding_window_pattern", GGUF_BOOL, 7);
    buf_add(&g.metadata, bits, sizeof bits);
    layers_are(&g, "gwwgwgw");
    begin_windowed(&g);
    tiny_kv_i32s(&g, "gemma3.attention.sliding_window_pattern", (int32_t[]){1, 0, 0, 0, 0, 0, 1},
                 7);
    layers_are(&g, "wgggggw");
    begin_windowed(&g); // an element for each block, also for one that predicts a further token
    tiny_kv_u32(&g, "gemma3.nextn_predict_layers", 1);
    tiny_kv_i32s(&g, "gemma3.attention.sliding_window_pattern", (int32_t[]){1, 0, 0, 0, 0, 1, 1},
                 7);
    layers_are(&g, "wggggw");
}

static void a_pattern_must_fit(void) {
    decoder_spec s;
    inferd_err err;
    tiny_gguf g;
    begin_windowed(&g);
    tiny_kv_i32s(&g, "gemma3.attention.sliding_window_pattern", (int32_t[]){1, 0}, 2);
    expect_failed(read_spec(&g, &s, &err), INFERD_EFORMAT, &err,
                  "sliding_window_pattern has 2 elements for 7 layers");
    begin_windowed(&g);
    tiny_kv_i32s(&g, "gemma3.attention.sliding_window_pattern", (int32_t[]){1, 0, 2, 0, 0, 0, 1},
                 7);
    expect_failed(read_spec(&g, &s, &err), INFERD_EFORMAT, &err, "sliding_window_pattern[2] is 2");
    begin_windowed(&g);
    tiny_kv_str(&g, "gemma3.attention.sliding_window_pattern", "LLG");
    expect_failed(read_spec(&g, &s, &err), INFERD_EFORMAT, &err, "sliding_window_pattern");
}

static void without_a_window_all_layers_are_global(void) {
    tiny_gguf g;
    begin(&g, &gemma3);
    layers_are(&g, "ggggggg");
    begin(&g, &gemma3);
    tiny_kv_u32(&g, "gemma3.attention.sliding_window", 0);
    tiny_kv_u32(&g, "gemma3.attention.sliding_window_pattern", 1);
    layers_are(&g, "ggggggg");
    begin(&g, &gemma3);
    tiny_kv_u32(&g, "gemma3.attention.sliding_window_pattern", 2);
    is_not_read(&g, "gemma3.attention.sliding_window_pattern says that layer 0 has a window");
}

/* A llama's window is that of all layers.  A pattern of period 1, which means that no layer has a
 * window, was accepted beside it, and a list that says what is computed was refused. */
static void a_pattern_says_what_is_computed(void) {
    enum { LIST = -1 }; // the period stands for a list of bools
    static const struct {
        const family *family;
        uint32_t window;
        int period;
        int32_t bits[2];   // of the list: one for each layer, of gemma3 the first for all
        const char *words; // NULL: it is read
    } all[] = {
        {&llama, 8, 0, {0}, NULL},
        {&llama, 8, 3, {0}, NULL}, // of 2 layers none is the third
        {&llama, 8, 1, {0}, "sliding_window_pattern says that layer 0 has no window"},
        {&llama, 8, 2, {0}, "sliding_window_pattern says that layer 1 has no window"},
        {&llama, 8, LIST, {1, 1}, NULL},
        {&llama, 8, LIST, {1, 0}, "layer 1 has no window"},
        {&llama, 8, LIST, {0, 0}, "layer 0 has no window"},
        {&llama, 0, 1, {0}, NULL},
        {&llama, 0, 0, {0}, "layer 0 has a window"},
        {&llama, 0, LIST, {0, 0}, NULL},
        {&llama, 0, LIST, {0, 1}, "layer 1 has a window"},
        {&qwen3, 0, LIST, {0, 0}, NULL},
        {&qwen3, 0, LIST, {1, 0}, "layer 0 has a window"},
        {&gemma3, 0, LIST, {0}, NULL},
        {&gemma3, 0, LIST, {1}, "layer 0 has a window"},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        const family *f = all[i].family;
        tiny_gguf g;
        begin(&g, f);
        const char *name = key(f, "attention.sliding_window_pattern");
        if (all[i].window > 0) tiny_kv_u32(&g, "llama.attention.sliding_window", all[i].window);
        if (all[i].period == LIST) {
            tiny_kv_array(&g, name, GGUF_BOOL, f->n_layers);
            for (uint32_t k = 0; k < f->n_layers; k++)
                tiny_put(&g.metadata, (uint64_t)all[i].bits[f == &gemma3 ? 0 : k], 1);
        } else {
            tiny_kv_u32(&g, name, (uint32_t)all[i].period);
        }
        if (all[i].words == NULL)
            is_read(&g);
        else
            is_not_read(&g, all[i].words);
    }
}

/* The base of Gemma 3's rotary angles is no other family's, so none is assumed. */
static void gemma3_must_say_its_rotary_base(void) {
    decoder_spec s;
    inferd_err err;
    tiny_gguf g;
    begin(&g, &gemma3);
    char *at = memmem(g.metadata.p, g.metadata.n, "gemma3.rope.freq_base", 21);
    INFERD_CHECK(at != NULL);
    memcpy(at, "gemma9", 6); // another family's key, which is read over
    expect_failed(read_spec(&g, &s, &err), INFERD_EFORMAT, &err,
                  "gemma3.rope.freq_base is missing");
}

/* Ollama's files of gemma3:1b have the name that its converter gives it. */
static void the_base_has_another_name_too(void) {
    decoder_spec s;
    inferd_err err;
    tiny_gguf g;
    begin(&g, &gemma3);
    char *at = memmem(g.metadata.p, g.metadata.n, "gemma3.rope.freq_base", 21);
    INFERD_CHECK(at != NULL);
    memcpy(at, "gemma9", 6);
    tiny_kv_f32(&g, "gemma3.rope.global.freq_base", 400); // pairs 0 and 8 of 16: 1 and 1/20
    EXPECT_EQ(read_spec(&g, &s, &err), INFERD_OK);
    EXPECT(fabsf(s.kinds[0].rope_freq[8] - 0.05f) < 1e-6f);
    decoder_spec_deinit(&s);
    begin(&g, &llama);
    tiny_kv_f32(&g, "llama.rope.global.freq_base", 400);
    is_not_read(&g, "key llama.rope.global.freq_base (400) is not known");
}

static void local_layers_have_a_base_of_their_own(void) {
    static const char *const names[] = {"rope.freq_base_swa", "rope.local.freq_base"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        decoder_spec s;
        inferd_err err;
        tiny_gguf g;
        begin_windowed(&g);
        tiny_kv_f32(&g, key(&gemma3, names[i]), 400); // pairs 0 and 8 of 16: 1 and 1/20
        EXPECT_EQ(read_spec(&g, &s, &err), INFERD_OK);
        EXPECT(fabsf(s.kinds[1].rope.inv_freq[8] - 0.05f) < 1e-6f);
        EXPECT(fabsf(s.kinds[0].rope.inv_freq[8] - 0.001f) < 1e-8f);
        decoder_spec_deinit(&s);
    }
}

/* One of two contradicting values was dropped without a word. */
static void two_names_of_one_number_must_agree(void) {
    static const struct {
        const family *family;
        const char *name, *other;
        float value;
    } all[] = {
        {&gemma3, "rope.freq_base", "rope.global.freq_base", 1e6f}, // begin() says the first
        {&gemma3, "rope.freq_base_swa", "rope.local.freq_base", 10000},
        {&gemma3, "rope.scaling.factor", "rope.scale_linear", 8},
        {&llama, "rope.scaling.factor", "rope.scale_linear", 4},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        for (int agree = 0; agree < 2; agree++) {
            decoder_spec s;
            inferd_err err;
            tiny_gguf g;
            begin(&g, all[i].family);
            if (all[i].family == &gemma3) tiny_kv_u32(&g, "gemma3.attention.sliding_window", 8);
            if (i > 0) tiny_kv_f32(&g, key(all[i].family, all[i].name), all[i].value);
            tiny_kv_f32(&g, key(all[i].family, all[i].other), all[i].value * (agree ? 1 : 2));
            inferd_status st = read_spec(&g, &s, &err);
            if (agree) {
                EXPECT_EQ(st, INFERD_OK);
            } else {
                char words[256];
                snprintf(words, sizeof words, "%s.%s is %.9g and %s.%s is %.9g",
                         all[i].family->name, all[i].name, (double)all[i].value,
                         all[i].family->name, all[i].other, (double)all[i].value * 2);
                expect_failed(st, INFERD_EFORMAT, &err, words);
            }
            decoder_spec_deinit(&s);
        }
    }
}

/* ---- tensors ---- */

static void add_tensor(tiny_gguf *g, const char *name, uint32_t type, uint64_t cols,
                       uint64_t rows) {
    uint64_t dims[2] = {cols, rows};
    dtype_info about = dtype_about(type);
    size_t n = (size_t)(cols * rows) / about.block_elems * about.block_bytes;
    tiny_tensor_add(g, name, type, rows == 0 ? 1 : 2, dims, NULL,
                    rows == 0 ? cols * about.block_bytes : n);
}

/* A llama of one layer; one matrix of another type. */
static void begin_model(tiny_gguf *g, uint32_t gate_type) {
    static const family one = {"llama", 1, 256, 4, 2, 64};
    begin(g, &one);
    add_tensor(g, "token_embd.weight", DTYPE_F16, 256, 32);
    add_tensor(g, "output_norm.weight", DTYPE_F32, 256, 0);
    add_tensor(g, "blk.0.attn_norm.weight", DTYPE_F32, 256, 0);
    add_tensor(g, "blk.0.ffn_norm.weight", DTYPE_F32, 256, 0);
    add_tensor(g, "blk.0.attn_q.weight", DTYPE_F16, 256, 256);
    add_tensor(g, "blk.0.attn_k.weight", DTYPE_F16, 256, 128);
    add_tensor(g, "blk.0.attn_v.weight", DTYPE_F16, 256, 128);
    add_tensor(g, "blk.0.attn_output.weight", DTYPE_F16, 256, 256);
    add_tensor(g, "blk.0.ffn_gate.weight", gate_type, 256, 96);
    add_tensor(g, "blk.0.ffn_up.weight", DTYPE_F16, 256, 96);
    add_tensor(g, "blk.0.ffn_down.weight", DTYPE_F16, 96, 256);
}

/* Divisors this small are positive and finite, and what they divide is not: such a file was read
 * and failed at its first token. */
static void rotary_frequencies_are_finite(void) {
    static const struct {
        float divisor;    // of pair 3; 0: there is no tensor
        const char *name; // NULL: no factor
        double factor;
        const char *words; // NULL: it is read
    } all[] = {
        {1e-44f, NULL, 1, "rope_freqs.weight[3] is 9.80909e-45"},
        {1e-38f, NULL, 1, NULL}, // the frequency is 7e36
        {1e-38f, "rope.scaling.factor", 1e-30, "rope_freqs.weight[3] is 1e-38"},
        {0, "rope.scaling.factor", 1e-300, "llama.rope.scaling.factor is 1e-300"},
        {0, "rope.scale_linear", 1e-300, "llama.rope.scale_linear is 1e-300"},
        {0, "rope.scaling.factor", 1e-30, NULL},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        decoder_spec s;
        inferd_err err;
        tiny_gguf g;
        begin(&g, &llama);
        float divisors[8] = {1, 1, 1, all[i].divisor, 1, 1, 1, 1};
        if (all[i].name != NULL) tiny_kv_f64(&g, key(&llama, all[i].name), all[i].factor);
        if (all[i].divisor != 0)
            tiny_tensor_add(&g, "rope_freqs.weight", DTYPE_F32, 1, (uint64_t[]){8}, divisors,
                            sizeof divisors);
        inferd_status st = read_spec(&g, &s, &err);
        if (all[i].words == NULL)
            EXPECT_EQ(st, INFERD_OK);
        else
            expect_failed(st, INFERD_EFORMAT, &err, all[i].words);
        decoder_spec_deinit(&s);
    }
}

/* Ends the life of `g`. */
static inferd_status check_weights(tiny_gguf *g, inferd_err *err) {
    decoder_spec s;
    gguf *file = open_good(g);
    tiny_gguf_deinit(g);
    *err = (inferd_err){0};
    EXPECT_EQ(decoder_spec_read(file, 0, &s, err), INFERD_OK);
    s.n_vocab = 32;
    s.tied = true;
    inferd_status st = weights_check(file, &s, err);
    decoder_spec_deinit(&s);
    gguf_close(file);
    return st;
}

static void a_tensor_that_nothing_reads_is_refused(void) {
    static const char *const names[] = {
        "blk.0.attn_q_norm.weight", "blk.0.attn_norm.bias",    "output_norm.bias",
        "blk.0.attn_qkv.weight",    "blk.0.attn_sinks.weight", "blk.0.ffn_gate.scale",
        "blk.1.attn_norm.weight",   "cls.output.weight",       "v.patch_embd.weight",
        "rope_factors_long.weight", // of LongRoPE, which this is not: it was ignored
    };
    inferd_err err;
    tiny_gguf g;
    begin_model(&g, DTYPE_F16);
    EXPECT_EQ(check_weights(&g, &err), INFERD_OK);
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        begin_model(&g, DTYPE_F16);
        add_tensor(&g, names[i], DTYPE_F32, 64, 0);
        expect_failed(check_weights(&g, &err), INFERD_EUNSUPPORTED, &err, names[i]);
        expect_words(&err, image_path);
    }
}

static void tensors_that_are_read_or_harmless_are_not(void) {
    inferd_err err;
    tiny_gguf g;
    begin_model(&g, DTYPE_F16);
    add_tensor(&g, "blk.0.attn_q.bias", DTYPE_F32, 256, 0);
    add_tensor(&g, "blk.0.ffn_down.bias", DTYPE_F32, 256, 0);
    add_tensor(&g, "blk.0.attn_rot_embd.weight", DTYPE_F32, 32, 0);
    EXPECT_EQ(check_weights(&g, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
    decoder_spec s = {.architecture = "gemma3"};
    EXPECT(decoder_tensor_is_harmless(&s, "v.blk.0.attn_q.weight"));
    EXPECT(decoder_tensor_is_harmless(&s, "mm.input_projection.weight"));
    EXPECT(!decoder_tensor_is_harmless(&s, "blk.0.attn_sinks.weight"));
}

static void a_type_that_cannot_be_computed_with_lists_those_that_can(void) {
    static const uint32_t types[] = {16, 19, 22, 34}; // IQ2_XXS, IQ1_S, IQ2_S, TQ1_0
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        inferd_err err;
        tiny_gguf g;
        begin_model(&g, types[i]);
        expect_failed(
            check_weights(&g, &err), INFERD_EUNSUPPORTED, &err,
            "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, "
            "BF16, MXFP4");
        expect_words(&err, dtype_about(types[i]).name);
        expect_words(&err, "blk.0.ffn_gate.weight");
        expect_words(&err, image_path);
    }
}

static const test_case cases[] = {
    TEST(a_number_that_is_not_honoured_is_refused),
    TEST(a_switch_that_is_not_honoured_is_refused),
    TEST(other_kinds_are_no_numbers),
    TEST(scales_are_those_of_the_family),
    TEST(a_key_that_is_not_known_is_refused),
    TEST(keys_of_others_and_harmless_ones_are_read_over),
    TEST(experts_may_say_that_none_is_shared),
    TEST(dense_granite_4_has_keys_of_the_hybrid),
    TEST(a_factor_below_1_is_not_the_whole_scale),
    TEST(longrope_has_no_other_divisor),
    TEST(a_pattern_is_a_period),
    TEST(a_pattern_is_a_list),
    TEST(a_pattern_must_fit),
    TEST(without_a_window_all_layers_are_global),
    TEST(a_pattern_says_what_is_computed),
    TEST(gemma3_must_say_its_rotary_base),
    TEST(the_base_has_another_name_too),
    TEST(local_layers_have_a_base_of_their_own),
    TEST(two_names_of_one_number_must_agree),
    TEST(rotary_frequencies_are_finite),
    TEST(a_tensor_that_nothing_reads_is_refused),
    TEST(tensors_that_are_read_or_harmless_are_not),
    TEST(a_type_that_cannot_be_computed_with_lists_those_that_can),
};

TEST_MAIN(cases)
