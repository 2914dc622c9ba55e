/* dummy_model.c - a path becomes a shape, a shape becomes the header of a GGUF file in memory.
 *
 *     [ header | rope_freqs |            zeros that are never read            ]   a memfd
 *
 * The file has its full size but takes little memory: pages of a memfd that were never written
 * take none.  Only rope_freqs, which the header's reader needs, is written.
 *
 * The vocabulary has a token for each byte, three control tokens, and words that only the model
 * generates: no merges, so a text has as many tokens as bytes.
 *
 * Shapes: the models' published configurations. */
#include "dummy_model.h"

#include <errno.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "decoder.h"
#include "inferd/buf.h"
#include "models/model.h"

enum {
    TOKEN_END_OF_TEXT,
    TOKEN_TURN,
    TOKEN_END_OF_TURN,
    TOKEN_BYTE_0,
    TOKEN_WORD_0 = TOKEN_BYTE_0 + 256, // the smallest vocabulary
    SEED_MAX = INT32_MAX,
    ROPE_ORIGINAL_CONTEXT = 8192 // of Llama 3's scaling
};

typedef struct shape {
    const char *name, *arch;
    uint32_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, n_vocab, context;
    float norm_eps, rope_base;
    float llama3_factor; // of rope_freqs; 0: none
    float linear_factor; // of all frequencies; 0: none
    uint32_t window;     // of local layers; 0: none
    bool tied, qk_norm, post_norms;
    uint32_t n_experts, n_used; // 0: dense; ffn_dim is of each
    bool of_gpt_oss;            // biases, sinks, YaRN
} shape;

static const shape shapes[] = {
    {"llama-3.1-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072, 1e-5f, 500000,
     .llama3_factor = 8},
    {"llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 1e-5f, 500000,
     .llama3_factor = 32, .tied = true},
    {"qwen3-8b", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 40960, 1e-6f, 1e6f, .qk_norm = true},
    {"qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e-6f, 1e6f, .tied = true,
     .qk_norm = true},
    {"mistral-nemo-12b", "llama", 5120, 40, 32, 8, 128, 14336, 131072, 131072, 1e-5f, 1e6f},
    {"mistral-7b", "llama", 4096, 32, 32, 8, 128, 14336, 32768, 32768, 1e-5f, 1e6f},
    {"gemma-3-4b", "gemma3", 2560, 34, 8, 4, 256, 10240, 262208, 131072, 1e-6f, 1e6f,
     .linear_factor = 8, .window = 1024, .tied = true, .qk_norm = true, .post_norms = true},
    {"qwen3-30b-a3b", "qwen3moe", 2048, 48, 32, 4, 128, 768, 151936, 40960, 1e-6f, 1e6f,
     .qk_norm = true, .n_experts = 128, .n_used = 8},
    {"mixtral-8x7b", "llama", 4096, 32, 32, 8, 128, 14336, 32000, 32768, 1e-5f, 1e6f,
     .n_experts = 8, .n_used = 2},
    {"gpt-oss-20b", "gpt-oss", 2880, 24, 64, 8, 64, 2880, 201088, 131072, 1e-5f, 150000,
     .window = 128, .n_experts = 32, .n_used = 4, .of_gpt_oss = true},
    // One of each family for tests; rows are whole blocks of every type.
    {"tiny", "llama", 256, 2, 4, 2, 64, 512, 512, 2048, 1e-5f, 10000},
    {"tiny-qwen3", "qwen3", 256, 2, 4, 2, 128, 512, 512, 2048, 1e-6f, 1e6f, .tied = true,
     .qk_norm = true},
    {"tiny-gemma3", "gemma3", 256, 7, 4, 2, 64, 512, 512, 2048, 1e-6f, 1e6f, .linear_factor = 8,
     .window = 16, .tied = true, .qk_norm = true, .post_norms = true},
    {"tiny-qwen3moe", "qwen3moe", 256, 2, 4, 2, 128, 256, 512, 2048, 1e-6f, 1e6f, .qk_norm = true,
     .n_experts = 16, .n_used = 4},
    {"tiny-mixtral", "llama", 256, 2, 4, 2, 64, 512, 512, 2048, 1e-5f, 10000, .n_experts = 8,
     .n_used = 2},
    {"tiny-gpt-oss", "gpt-oss", 256, 4, 8, 2, 64, 256, 512, 2048, 1e-5f, 150000, .window = 32,
     .n_experts = 8, .n_used = 4, .of_gpt_oss = true},
};

/* -- the path -- */

typedef struct type_choice {
    const char *name;
    dtype type;
    bool mixed; // q4_k_m
} type_choice;

static const type_choice types[] = {
    {"f32", DTYPE_F32, false},     {"f16", DTYPE_F16, false},       {"bf16", DTYPE_BF16, false},
    {"q8_0", DTYPE_Q8_0, false},   {"q4_0", DTYPE_Q4_0, false},     {"q4_1", DTYPE_Q4_1, false},
    {"q5_0", DTYPE_Q5_0, false},   {"q5_1", DTYPE_Q5_1, false},     {"q4_k", DTYPE_Q4_K, false},
    {"q5_k", DTYPE_Q5_K, false},   {"q6_k", DTYPE_Q6_K, false},     {"q2_k", DTYPE_Q2_K, false},
    {"q3_k", DTYPE_Q3_K, false},   {"iq4_nl", DTYPE_IQ4_NL, false}, {"iq4_xs", DTYPE_IQ4_XS, false},
    {"mxfp4", DTYPE_MXFP4, false}, {"q4_k_m", DTYPE_Q4_K, true},
};
enum { TYPE_NORMAL = 2 }; // bf16

typedef struct wanted {
    shape s; // with the options applied
    type_choice type;
    bool mx_experts; // gpt-oss, as published: experts in MXFP4, the rest in `type`
    uint64_t seed;
} wanted;

/* "a, b, c": the names that begin the structs of a table. */
static void list_names(const void *table, size_t n, size_t each_bytes, char out[256]) {
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < n && at < 255; i++) {
        const char *name =
            *(const char *const *)(const void *)((const char *)table + i * each_bytes);
        at += (size_t)snprintf(out + at, 256 - at, "%s%s", i > 0 ? ", " : "", name);
    }
}

static bool is_word(bytes b, const char *word) {
    return b.n == strlen(word) && memcmp(b.p, word, b.n) == 0;
}

static int shown(bytes b) { // bytes of a word of the path that an error shows
    return (int)size_min(b.n, 40);
}

static inferd_status find_shape(bytes name, wanted *w, inferd_err *err) {
    char names[256];
    for (size_t i = 0; i < INFERD_COUNT(shapes); i++) {
        if (!is_word(name, shapes[i].name)) continue;
        w->s = shapes[i];
        return INFERD_OK;
    }
    list_names(shapes, INFERD_COUNT(shapes), sizeof shapes[0], names);
    return inferd_fail(err, INFERD_EINVAL, "no shape is called \"%.*s\"; there are %s", shown(name),
                       name.p, names);
}

static inferd_status read_type(bytes value, wanted *w, inferd_err *err) {
    char names[256];
    for (size_t i = 0; i < INFERD_COUNT(types); i++)
        if (is_word(value, types[i].name)) {
            w->type = types[i];
            return INFERD_OK;
        }
    list_names(types, INFERD_COUNT(types), sizeof types[0], names);
    return inferd_fail(err, INFERD_EINVAL, "dtype is \"%.*s\", expected one of %s", shown(value),
                       value.p, names);
}

static inferd_status read_number(const char *name, bytes value, uint32_t min, uint32_t max,
                                 uint32_t *out, inferd_err *err) {
    uint64_t v = 0;
    bool fine = value.n > 0 && value.n <= 10;
    for (size_t i = 0; fine && i < value.n; i++) {
        fine = value.p[i] >= '0' && value.p[i] <= '9';
        v = v * 10 + (uint64_t)(value.p[i] - '0');
    }
    if (!fine || v < min || v > max)
        return inferd_fail(err, INFERD_EINVAL,
                           "%s is \"%.*s\", expected a whole number from %u to %u", name,
                           shown(value), value.p, min, max);
    *out = (uint32_t)v;
    return INFERD_OK;
}

enum { OPTION_DTYPE }; // the first one

/* "name=value" */
static inferd_status read_option(bytes text, wanted *w, uint32_t *given, inferd_err *err) {
    uint32_t seed = 0;
    const struct {
        const char *name;
        uint32_t min, max, *out; // NULL: dtype
    } options[] = {
        [OPTION_DTYPE] = {"dtype", 0, 0, NULL},
        {"layers", 1, DECODER_LAYERS_MAX, &w->s.n_layers},
        {"context", 1, DECODER_CONTEXT_MAX, &w->s.context},
        {"vocab", TOKEN_WORD_0, DECODER_VOCAB_MAX, &w->s.n_vocab},
        {"seed", 0, SEED_MAX, &seed},
    };
    const char *equals = memchr(text.p, '=', text.n);
    bytes name = {text.p, equals != NULL ? (size_t)(equals - text.p) : text.n};
    bytes value = {text.p + text.n, 0};
    if (equals != NULL) value = (bytes){equals + 1, text.n - name.n - 1};
    for (uint32_t i = 0; i < INFERD_COUNT(options); i++) {
        if (!is_word(name, options[i].name)) continue;
        if (*given & 1u << i)
            return inferd_fail(err, INFERD_EINVAL, "%s is given twice", options[i].name);
        *given |= 1u << i;
        inferd_status st = options[i].out == NULL
                               ? read_type(value, w, err)
                               : read_number(options[i].name, value, options[i].min, options[i].max,
                                             options[i].out, err);
        if (options[i].out == &seed) w->seed = seed;
        return st;
    }
    char names[256];
    list_names(options, INFERD_COUNT(options), sizeof options[0], names);
    return inferd_fail(err, INFERD_EINVAL, "no option is called \"%.*s\"; there are %s",
                       shown(name), name.p, names);
}

static inferd_status read_path(const char *path, wanted *w, inferd_err *err) {
    const char *p = path + sizeof MODEL_DUMMY_PREFIX - 1;
    size_t n = strcspn(p, "?");
    uint32_t given = 0;
    *w = (wanted){.type = types[TYPE_NORMAL]};
    inferd_status st = find_shape((bytes){p, n}, w, err);
    for (p += n; st == INFERD_OK && *p != 0; p += n) {
        p++; // past ? or &
        n = strcspn(p, "&");
        st = read_option((bytes){p, n}, w, &given, err);
    }
    w->mx_experts = w->s.of_gpt_oss && !(given & 1u << OPTION_DTYPE);
    return st;
}

/* -- the header -- */

typedef struct header {
    buf metadata, tensors;
    uint32_t n_keys, n_tensors;
    const char *arch;
    uint64_t data_bytes;    // of the tensors so far, aligned
    uint64_t rope_freqs_at; // in the data
} header;

static void put(buf *b, uint64_t v, unsigned n_bytes) {
    unsigned char p[8];
    for (unsigned i = 0; i < n_bytes; i++) p[i] = (unsigned char)(v >> (8 * i));
    buf_add(b, p, n_bytes);
}

static void put_text(buf *b, const char *text, size_t n) {
    put(b, n, 8);
    buf_add(b, text, n);
}

/* A key that begins with '.' gets the architecture's name in front. */
static void put_key(header *h, const char *key, gguf_kind kind) {
    char name[128];
    int n = snprintf(name, sizeof name, "%s%s", key[0] == '.' ? h->arch : "", key);
    put_text(&h->metadata, name, (size_t)n);
    put(&h->metadata, kind, 4);
    h->n_keys++;
}
static void put_u32(header *h, const char *key, uint32_t v) {
    put_key(h, key, GGUF_U32);
    put(&h->metadata, v, 4);
}
static void put_f32(header *h, const char *key, float v) {
    uint32_t word;
    memcpy(&word, &v, sizeof word);
    put_key(h, key, GGUF_F32);
    put(&h->metadata, word, 4);
}
static void put_str(header *h, const char *key, const char *text) {
    put_key(h, key, GGUF_STRING);
    put_text(&h->metadata, text, strlen(text));
}
static void put_array(header *h, const char *key, gguf_kind kind, uint64_t n) {
    put_key(h, key, GGUF_ARRAY);
    put(&h->metadata, kind, 4);
    put(&h->metadata, n, 8);
}

static void describe(header *h, const wanted *w) {
    const shape *s = &w->s;
    put_str(h, "general.architecture", s->arch);
    put_str(h, "general.type", "model");
    char name[64];
    snprintf(name, sizeof name, "%s (made-up weights)", s->name);
    put_str(h, "general.name", name);
    put_u32(h, ".context_length", s->context);
    put_u32(h, ".embedding_length", s->dim);
    put_u32(h, ".block_count", s->n_layers);
    put_u32(h, ".feed_forward_length", s->ffn_dim);
    put_u32(h, ".attention.head_count", s->n_heads);
    put_u32(h, ".attention.head_count_kv", s->n_kv_heads);
    put_u32(h, ".attention.key_length", s->head_dim);
    put_u32(h, ".attention.value_length", s->head_dim);
    put_f32(h, ".attention.layer_norm_rms_epsilon", s->norm_eps);
    put_u32(h, ".rope.dimension_count", s->head_dim);
    put_f32(h, ".rope.freq_base", s->rope_base);
    if (s->linear_factor != 0) {
        put_str(h, ".rope.scaling.type", "linear");
        put_f32(h, ".rope.scaling.factor", s->linear_factor);
    }
    if (s->of_gpt_oss) {
        put_str(h, ".rope.scaling.type", "yarn");
        put_f32(h, ".rope.scaling.factor", 32);
        put_u32(h, ".rope.scaling.original_context_length", 4096);
    }
    if (s->window != 0) put_u32(h, ".attention.sliding_window", s->window);
    if (s->n_experts == 0) return;
    put_u32(h, ".expert_count", s->n_experts);
    put_u32(h, ".expert_used_count", s->n_used);
    put_u32(h, ".expert_feed_forward_length", s->ffn_dim);
}

/* -- the vocabulary -- */

static const char turns_template[] =
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* Byte-level vocabularies write a byte as one character: as itself if it is visible, else as the
 * next from U+0100 on.  All of them take one or two bytes in UTF-8. */
static size_t name_byte(unsigned byte, unsigned *next, char out[2]) {
    bool seen = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    unsigned c = seen ? byte : (*next)++;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

static void put_vocabulary(header *h, uint32_t n_vocab) {
    static const char *const controls[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    enum { NORMAL = 1, CONTROL = 3 };
    char name[16];
    unsigned next = 0x100;
    put_str(h, "tokenizer.ggml.model", "gpt2");
    put_str(h, "tokenizer.ggml.pre", "smollm");
    put_array(h, "tokenizer.ggml.tokens", GGUF_STRING, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (i < TOKEN_BYTE_0)
            put_text(&h->metadata, controls[i], strlen(controls[i]));
        else if (i < TOKEN_WORD_0)
            put_text(&h->metadata, name, name_byte(i - TOKEN_BYTE_0, &next, name));
        else // U+0120, the form of a space in names
            put_text(&h->metadata, name,
                     (size_t)snprintf(name, sizeof name, "\xC4\xA0w%u", i - TOKEN_WORD_0));
    }
    put_array(h, "tokenizer.ggml.token_type", GGUF_I32, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++)
        put(&h->metadata, i < TOKEN_BYTE_0 ? CONTROL : NORMAL, 4);
    put_array(h, "tokenizer.ggml.merges", GGUF_STRING, 0);
    put_u32(h, "tokenizer.ggml.bos_token_id", TOKEN_TURN);
    put_u32(h, "tokenizer.ggml.eos_token_id", TOKEN_END_OF_TURN);
    put_u32(h, "tokenizer.ggml.unknown_token_id", TOKEN_END_OF_TEXT);
    put_key(h, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
    put(&h->metadata, 0, 1);
    put_str(h, "tokenizer.chat_template", turns_template);
}

/* -- the tensors -- */

/* Rows that are no whole blocks have another type, as in files that llama.cpp quantises. */
static dtype type_of_rows(dtype type, uint32_t cols) {
    static const struct {
        dtype type, instead;
    } others[] = {{DTYPE_Q2_K, DTYPE_IQ4_NL},   {DTYPE_Q3_K, DTYPE_IQ4_NL},
                  {DTYPE_IQ4_XS, DTYPE_IQ4_NL}, {DTYPE_Q4_K, DTYPE_Q5_0},
                  {DTYPE_Q5_K, DTYPE_Q5_1},     {DTYPE_Q6_K, DTYPE_Q8_0}};
    for (size_t i = 0; i < INFERD_COUNT(others); i++)
        if (others[i].type == type && cols % dtype_about(type).block_elems != 0)
            type = others[i].instead;
    return cols % dtype_about(type).block_elems == 0 ? type : DTYPE_F16;
}

/* [n, rows, cols]; n or rows 0: one dimension fewer. */
static void put_stack(header *h, const char *name, dtype wanted_type, uint32_t cols, uint32_t rows,
                      uint32_t n) {
    dtype type = type_of_rows(wanted_type, cols);
    dtype_info about = dtype_about(type);
    INFERD_CHECK(cols % about.block_elems == 0);
    put_text(&h->tensors, name, strlen(name));
    put(&h->tensors, rows == 0 ? 1 : n == 0 ? 2 : 3, 4);
    put(&h->tensors, cols, 8);
    if (rows != 0) put(&h->tensors, rows, 8);
    if (n != 0) put(&h->tensors, n, 8);
    put(&h->tensors, type, 4);
    put(&h->tensors, h->data_bytes, 8);
    uint64_t n_bytes =
        (uint64_t)(cols / about.block_elems) * about.block_bytes * u32_max(rows, 1) * u32_max(n, 1);
    h->data_bytes +=
        (n_bytes + GGUF_ALIGNMENT_DEFAULT - 1) / GGUF_ALIGNMENT_DEFAULT * GGUF_ALIGNMENT_DEFAULT;
    h->n_tensors++;
}

static void put_tensor(header *h, const char *name, dtype type, uint32_t cols, uint32_t rows) {
    put_stack(h, name, type, cols, rows, 0);
}

/* q4_k_m spends more bits on the first and last eighths of the layers and every third between. */
static bool is_precise(uint32_t layer, uint32_t n_layers) {
    uint32_t eighth = n_layers / 8;
    return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

static void put_layer(header *h, const wanted *w, uint32_t layer) {
    const shape *s = &w->s;
    dtype type = w->type.type;
    dtype some = w->type.mixed && is_precise(layer, s->n_layers) ? DTYPE_Q6_K : type;
    dtype gates = w->mx_experts ? DTYPE_MXFP4 : type, downs = w->mx_experts ? DTYPE_MXFP4 : some;
    uint32_t q_dim = s->n_heads * s->head_dim, kv_dim = s->n_kv_heads * s->head_dim;
    const uint32_t n = s->n_experts;
    const bool oss = s->of_gpt_oss, dense = n == 0;
    const struct {
        const char *name;
        dtype type;
        uint32_t cols, rows, n;
        bool present;
    } all[] = {
        {"attn_norm.weight", DTYPE_F32, s->dim, 0, 0, true},
        {"attn_q.weight", type, s->dim, q_dim, 0, true},
        {"attn_k.weight", type, s->dim, kv_dim, 0, true},
        {"attn_v.weight", some, s->dim, kv_dim, 0, true},
        {"attn_q.bias", DTYPE_F32, q_dim, 0, 0, oss},
        {"attn_k.bias", DTYPE_F32, kv_dim, 0, 0, oss},
        {"attn_v.bias", DTYPE_F32, kv_dim, 0, 0, oss},
        {"attn_q_norm.weight", DTYPE_F32, s->head_dim, 0, 0, s->qk_norm},
        {"attn_k_norm.weight", DTYPE_F32, s->head_dim, 0, 0, s->qk_norm},
        {"attn_sinks.weight", DTYPE_F32, s->n_heads, 0, 0, oss},
        {"attn_output.weight", type, q_dim, s->dim, 0, true},
        {"attn_output.bias", DTYPE_F32, s->dim, 0, 0, oss},
        {"post_attention_norm.weight", DTYPE_F32, s->dim, 0, 0, s->post_norms || oss},
        {"ffn_norm.weight", DTYPE_F32, s->dim, 0, 0, !oss},
        {"ffn_gate.weight", type, s->dim, s->ffn_dim, 0, dense},
        {"ffn_up.weight", type, s->dim, s->ffn_dim, 0, dense},
        {"ffn_down.weight", some, s->ffn_dim, s->dim, 0, dense},
        {"ffn_gate_inp.weight", DTYPE_F32, s->dim, n, 0, !dense},
        {"ffn_gate_inp.bias", DTYPE_F32, n, 0, 0, oss},
        {"ffn_gate_exps.weight", gates, s->dim, s->ffn_dim, n, !dense},
        {"ffn_up_exps.weight", gates, s->dim, s->ffn_dim, n, !dense},
        {"ffn_down_exps.weight", downs, s->ffn_dim, s->dim, n, !dense},
        {"ffn_gate_exps.bias", DTYPE_F32, s->ffn_dim, n, 0, oss},
        {"ffn_up_exps.bias", DTYPE_F32, s->ffn_dim, n, 0, oss},
        {"ffn_down_exps.bias", DTYPE_F32, s->dim, n, 0, oss},
        {"post_ffw_norm.weight", DTYPE_F32, s->dim, 0, 0, s->post_norms},
    };
    char name[GGUF_NAME_BYTES_MAX + 1];
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        if (!all[i].present) continue;
        snprintf(name, sizeof name, "blk.%u.%s", layer, all[i].name);
        put_stack(h, name, all[i].type, all[i].cols, all[i].rows, all[i].n);
    }
}

static void put_tensors(header *h, const wanted *w) {
    const shape *s = &w->s;
    dtype type = w->type.type, of_head = w->type.mixed ? DTYPE_Q6_K : type;
    h->rope_freqs_at = h->data_bytes;
    if (s->llama3_factor != 0) put_tensor(h, "rope_freqs.weight", DTYPE_F32, s->head_dim / 2, 0);
    put_tensor(h, "token_embd.weight", s->tied ? of_head : type, s->dim, s->n_vocab);
    for (uint32_t i = 0; i < s->n_layers; i++) put_layer(h, w, i);
    put_tensor(h, "output_norm.weight", DTYPE_F32, s->dim, 0);
    if (!s->tied) put_tensor(h, "output.weight", of_head, s->dim, s->n_vocab);
}

/* Llama 3's scaling as divisors: long wavelengths become slower by the factor, short ones stay, and
 * between them (a quarter of the original context to all of it) it changes evenly. */
static void make_rope_freqs(const shape *s, float *out) {
    const double slow = 1, fast = 4; // turns within the original context
    for (uint32_t i = 0; i < s->head_dim / 2; i++) {
        double wave = 2 * M_PI * pow((double)s->rope_base, 2.0 * i / s->head_dim);
        double turns = ROPE_ORIGINAL_CONTEXT / wave, part = (turns - slow) / (fast - slow);
        double kept = fmin(fmax(part, 0), 1), factor = (double)s->llama3_factor;
        out[i] = (float)(1 / ((1 - kept) / factor + kept));
    }
}

/* -- the file -- */

static bool write_all(int fd, const void *p, size_t n, uint64_t at) {
    const char *from = p;
    while (n > 0) {
        ssize_t n_written = pwrite(fd, from, n, (off_t)at);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written <= 0) return false;
        from += n_written;
        at += (uint64_t)n_written;
        n -= (size_t)n_written;
    }
    return true;
}

/* The whole header into `out`, up to where the data begins. */
static void join(const header *h, buf *out) {
    static const char zeros[GGUF_ALIGNMENT_DEFAULT];
    buf_add(out, "GGUF", 4);
    put(out, 3, 4);
    put(out, h->n_tensors, 8);
    put(out, h->n_keys, 8);
    buf_add(out, h->metadata.p, h->metadata.n);
    buf_add(out, h->tensors.p, h->tensors.n);
    buf_add(out, zeros, (size_t)-out->n % GGUF_ALIGNMENT_DEFAULT);
    out->failed |= h->metadata.failed || h->tensors.failed;
}

static bool write_file(int fd, const shape *s, const header *h, const buf *head) {
    float freqs[DECODER_HEAD_DIM_MAX / 2];
    if (ftruncate(fd, (off_t)(head->n + h->data_bytes)) != 0) return false;
    if (!write_all(fd, head->p, head->n, 0)) return false;
    if (s->llama3_factor == 0) return true;
    make_rope_freqs(s, freqs);
    return write_all(fd, freqs, s->head_dim / 2 * sizeof freqs[0], head->n + h->rope_freqs_at);
}

static inferd_status make_file(const wanted *w, int *out, inferd_err *err) {
    header h = {.arch = w->s.arch};
    buf head = {0};
    int fd = -1;
    describe(&h, w);
    put_vocabulary(&h, w->s.n_vocab);
    put_tensors(&h, w);
    join(&h, &head);
    inferd_status st = INFERD_OK;
    if (head.failed)
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for a header of %u tokens", w->s.n_vocab);
    else if ((fd = memfd_create("inferd-dummy-model", MFD_CLOEXEC)) < 0)
        st = inferd_fail(err, INFERD_EIO, "cannot make a file in memory: %s", strerror(errno));
    else if (!write_file(fd, &w->s, &h, &head))
        st = inferd_fail(err, INFERD_EIO, "cannot write a header of %zu bytes to memory: %s",
                         head.n, strerror(errno));
    buf_deinit(&h.metadata);
    buf_deinit(&h.tensors);
    buf_deinit(&head);
    if (st != INFERD_OK && fd >= 0) close(fd);
    *out = fd;
    return st;
}

inferd_status dummy_model_open(const char *path, gguf **out, uint64_t *seed, inferd_err *err) {
    wanted w;
    int fd;
    *out = NULL;
    inferd_status st = read_path(path, &w, err);
    if (st == INFERD_OK) st = make_file(&w, &fd, err);
    if (st != INFERD_OK) {
        inferd_context(err, "%.120s", path);
        return st;
    }
    *seed = w.seed;
    return gguf_open_fd(fd, path, out, err);
}

float dummy_scale(const char *tensor_name, uint32_t n_layers) {
    const double normal = 0.02;
    bool residual =
        strstr(tensor_name, ".attn_output.") != NULL || strstr(tensor_name, ".ffn_down") != NULL;
    return (float)(residual ? normal / sqrt(2.0 * n_layers) : normal);
}
