/* tiny_gguf.h - writes GGUF files for tests: a few bytes that are wrong in one place, or a whole
 * small model that can be served.
 *
 *     tiny_gguf g;
 *     tiny_gguf_init(&g);
 *     tiny_kv_u32(&g, "llama.block_count", 3);
 *     tiny_tensor *t = tiny_tensor_add(&g, "output_norm.weight", DTYPE_F32, 1, dims, data, 256);
 *     t->offset = 7;                  // from here on wrong, as a test wants it
 *     tiny_gguf_write(&g, path);
 *     tiny_gguf_deinit(&g);
 *
 * Nothing is checked: what a field says is what is written.  Running out of memory or disk ends
 * the program, which a test may do and the product may not.
 *
 * The model (tiny_model_write) is of the llama architecture, with weights drawn from a seed by
 * integer arithmetic, so that the same seed gives the same file on every machine, and a byte-level
 * BPE vocabulary of 512 tokens that can spell anything. */
#ifndef INFERD_TINY_GGUF_H
#define INFERD_TINY_GGUF_H

#include <errno.h>
#include <math.h>

#include "gguf/gguf.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "kernels/dtype.h"

/* ---- a file ---- */

enum { TINY_TENSORS_MAX = 64, TINY_DIMS_MAX = 8 };

/* Knobs: any field may be changed between tiny_tensor_add and tiny_gguf_bytes. */
typedef struct tiny_tensor {
    char name[256];
    size_t name_bytes; // a NUL may be inside
    uint32_t n_dims;   // written as it is; at most TINY_DIMS_MAX dims follow
    uint64_t dims[TINY_DIMS_MAX];
    uint32_t type;
    uint64_t offset; // from the start of the data
    buf data;
} tiny_tensor;

typedef struct tiny_gguf {
    char magic[4];
    uint32_t version;
    uint64_t n_tensors_said, n_entries_said; // counted up by the functions below
    uint32_t alignment;                      // of the layout; the key is the caller's
    buf metadata;
    tiny_tensor tensors[TINY_TENSORS_MAX];
    size_t n_tensors;
    uint64_t data_bytes; // so far, padded
} tiny_gguf;

static inline void tiny_gguf_init(tiny_gguf *g) {
    memset(g, 0, sizeof *g);
    memcpy(g->magic, "GGUF", 4);
    g->version = 3;
    g->alignment = 32;
}

static inline void tiny_gguf_deinit(tiny_gguf *g) {
    buf_deinit(&g->metadata);
    for (size_t i = 0; i < g->n_tensors; i++) buf_deinit(&g->tensors[i].data);
}

static inline void tiny_put(buf *b, uint64_t v, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) buf_add_char(b, (char)(v >> (8 * i)));
}

static inline void tiny_put_string(buf *b, const void *p, size_t n) {
    tiny_put(b, n, 8);
    buf_add(b, p, n);
}

/* Zeros up to a multiple of `alignment`. */
static inline void tiny_pad(buf *b, size_t alignment) {
    while (b->n % alignment != 0) buf_add_char(b, 0);
}

/* ---- metadata ---- */

/* A key and the kind of its value; the caller appends the value to g->metadata. */
static inline void tiny_kv(tiny_gguf *g, const char *key, uint32_t kind) {
    tiny_put_string(&g->metadata, key, strlen(key));
    tiny_put(&g->metadata, kind, 4);
    g->n_entries_said++;
}
/* Of any kind, by the bits of its value. */
static inline void tiny_kv_bits(tiny_gguf *g, const char *key, uint32_t kind, uint64_t bits,
                                size_t n_bytes) {
    tiny_kv(g, key, kind);
    tiny_put(&g->metadata, bits, n_bytes);
}
static inline void tiny_kv_u32(tiny_gguf *g, const char *key, uint32_t v) {
    tiny_kv_bits(g, key, GGUF_U32, v, 4);
}
static inline void tiny_kv_bool(tiny_gguf *g, const char *key, bool v) {
    tiny_kv_bits(g, key, GGUF_BOOL, v, 1);
}
static inline void tiny_kv_f32(tiny_gguf *g, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    tiny_kv_bits(g, key, GGUF_F32, bits, 4);
}
static inline void tiny_kv_f64(tiny_gguf *g, const char *key, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    tiny_kv_bits(g, key, GGUF_F64, bits, 8);
}
static inline void tiny_kv_str(tiny_gguf *g, const char *key, const char *v) {
    tiny_kv(g, key, GGUF_STRING);
    tiny_put_string(&g->metadata, v, strlen(v));
}
/* An array's head; the caller appends `n` elements to g->metadata. */
static inline void tiny_kv_array(tiny_gguf *g, const char *key, uint32_t kind, uint64_t n) {
    tiny_kv(g, key, GGUF_ARRAY);
    tiny_put(&g->metadata, kind, 4);
    tiny_put(&g->metadata, n, 8);
}
static inline void tiny_kv_i32s(tiny_gguf *g, const char *key, const int32_t *v, size_t n) {
    tiny_kv_array(g, key, GGUF_I32, n);
    for (size_t i = 0; i < n; i++) tiny_put(&g->metadata, (uint32_t)v[i], 4);
}
static inline void tiny_kv_strs(tiny_gguf *g, const char *key, const bytes *v, size_t n) {
    tiny_kv_array(g, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) tiny_put_string(&g->metadata, v[i].p, v[i].n);
}

/* ---- tensors ---- */

/* Copies `n_bytes` of data (NULL: zeros) and lays it out after the tensors before it.  The result
 * belongs to g. */
static inline tiny_tensor *tiny_tensor_add(tiny_gguf *g, const char *name, uint32_t type,
                                           uint32_t n_dims, const uint64_t *dims, const void *data,
                                           size_t n_bytes) {
    INFERD_CHECK(g->n_tensors < TINY_TENSORS_MAX && n_dims <= TINY_DIMS_MAX);
    tiny_tensor *t = &g->tensors[g->n_tensors++];
    t->name_bytes = strlen(name);
    INFERD_CHECK(t->name_bytes < sizeof t->name);
    memcpy(t->name, name, t->name_bytes);
    t->n_dims = n_dims;
    memcpy(t->dims, dims, n_dims * sizeof *dims);
    t->type = type;
    t->offset = g->data_bytes;
    if (data != NULL)
        buf_add(&t->data, data, n_bytes);
    else
        for (size_t i = 0; i < n_bytes; i++) buf_add_char(&t->data, 0);
    INFERD_CHECK(!t->data.failed);
    g->data_bytes = (g->data_bytes + n_bytes + g->alignment - 1) / g->alignment * g->alignment;
    g->n_tensors_said++;
    return t;
}

/* The file, appended to `out`; returns where the data begins. */
static inline size_t tiny_gguf_bytes(const tiny_gguf *g, buf *out) {
    size_t start = out->n;
    buf_add(out, g->magic, 4);
    tiny_put(out, g->version, 4);
    tiny_put(out, g->n_tensors_said, 8);
    tiny_put(out, g->n_entries_said, 8);
    buf_add(out, g->metadata.p, g->metadata.n);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const tiny_tensor *t = &g->tensors[i];
        tiny_put_string(out, t->name, t->name_bytes);
        tiny_put(out, t->n_dims, 4);
        for (uint32_t k = 0; k < t->n_dims && k < TINY_DIMS_MAX; k++) tiny_put(out, t->dims[k], 8);
        tiny_put(out, t->type, 4);
        tiny_put(out, t->offset, 8);
    }
    INFERD_CHECK(start % g->alignment == 0);
    tiny_pad(out, g->alignment);
    size_t data_at = out->n - start;
    for (size_t i = 0; i < g->n_tensors; i++) {
        buf_add(out, g->tensors[i].data.p, g->tensors[i].data.n);
        tiny_pad(out, g->alignment);
    }
    INFERD_CHECK(!out->failed && !g->metadata.failed);
    return data_at;
}

static inline void tiny_file_write(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    bool ok = f != NULL && fwrite(p, 1, n, f) == n;
    if (f != NULL && fclose(f) != 0) ok = false;
    if (ok) return;
    fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
    exit(1);
}

static inline void tiny_gguf_write(const tiny_gguf *g, const char *path) {
    buf b = {0};
    tiny_gguf_bytes(g, &b);
    tiny_file_write(path, b.p, b.n);
    buf_deinit(&b);
}

/* ---- random weights ---- */

typedef struct tiny_random {
    uint64_t state;
} tiny_random;

static inline uint64_t tiny_random_next(tiny_random *r) { // splitmix64
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Close to normal: the sum of twelve uniform numbers has variance one, and sums of 16-bit integers
 * are the same everywhere, which logarithms and cosines are not. */
static inline float tiny_random_normal(tiny_random *r) {
    uint32_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t u = tiny_random_next(r);
        for (int k = 0; k < 4; k++) sum += (uint32_t)(u >> (16 * k)) & 0xffffu;
    }
    return ((float)sum - 6 * 65535) / 65536.0f;
}

/* ---- float rows to weight types ---- */

static inline void tiny_quant_32(uint32_t type, const float *x, buf *out) {
    float min = x[0], max = x[0], peak = x[0]; // peak: the largest magnitude, with its sign
    for (int i = 1; i < 32; i++) {
        if (x[i] < min) min = x[i];
        if (x[i] > max) max = x[i];
        if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
    }
    float unit = type == DTYPE_Q8_0   ? fabsf(peak) / 127
                 : type == DTYPE_Q4_0 ? peak / -8
                                      : (max - min) / 15;
    tiny_put(out, f32_to_f16(unit), 2);
    if (type == DTYPE_Q4_1) tiny_put(out, f32_to_f16(min), 2);
    int q[32];
    for (int i = 0; i < 32; i++) {
        float v = type == DTYPE_Q4_1 ? x[i] - min : x[i];
        q[i] = unit == 0 ? 0 : (int)lrintf(v / unit);
        if (type == DTYPE_Q4_0) q[i] += 8;
        if (type != DTYPE_Q8_0) q[i] = q[i] < 0 ? 0 : q[i] > 15 ? 15 : q[i];
    }
    if (type == DTYPE_Q8_0)
        for (int i = 0; i < 32; i++) buf_add_char(out, (char)q[i]);
    else
        for (int i = 0; i < 16; i++) buf_add_char(out, (char)(q[i] | q[i + 16] << 4));
}

/* `n` floats as F32, F16, BF16, Q8_0, Q4_0 or Q4_1, appended to `out`. */
static inline void tiny_quant(uint32_t type, const float *x, size_t n, buf *out) {
    for (size_t i = 0; i < n;) {
        uint32_t bits;
        switch (type) {
        case DTYPE_F32:
            memcpy(&bits, &x[i++], sizeof bits);
            tiny_put(out, bits, 4);
            break;
        case DTYPE_F16:
            tiny_put(out, f32_to_f16(x[i++]), 2);
            break;
        case DTYPE_BF16:
            tiny_put(out, f32_to_bf16(x[i++]), 2);
            break;
        default:
            INFERD_CHECK(type == DTYPE_Q8_0 || type == DTYPE_Q4_0 || type == DTYPE_Q4_1);
            INFERD_CHECK(n % 32 == 0);
            tiny_quant_32(type, x + i, out);
            i += 32;
        }
    }
}

/* ---- the vocabulary ---- */

enum {
    TINY_VOCAB = 512,
    TINY_ENDOFTEXT = 0, // control tokens come first ...
    TINY_IM_START = 1,
    TINY_IM_END = 2,
    TINY_BYTE_0 = 3, // ... then byte b is token 3 + b, then one token per merge
    TINY_MERGE_0 = TINY_BYTE_0 + 256,
    TINY_MERGES = TINY_VOCAB - TINY_MERGE_0
};

typedef struct tiny_vocab {
    buf names[TINY_VOCAB];
    buf merges[TINY_MERGES];
    size_t n; // tokens so far
} tiny_vocab;

/* GPT-2 writes each byte as a printable character: itself when it is one in Latin-1, and the next
 * code point from 256 on when it is not (so the space is U+0120). */
static inline void tiny_byte_name(unsigned byte, buf *out) {
    unsigned code = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && shown) code = byte;
        if (b < byte && !shown) code++;
    }
    if (code >= 128) {
        buf_add_char(out, (char)(0xc0 | code >> 6));
        buf_add_char(out, (char)(0x80 | (code & 63)));
    } else {
        buf_add_char(out, (char)code);
    }
}

/* The token with this name, or TINY_VOCAB. */
static inline size_t tiny_vocab_find(const tiny_vocab *v, const buf *name) {
    for (size_t i = 0; i < v->n; i++)
        if (v->names[i].n == name->n && memcmp(v->names[i].p, name->p, name->n) == 0) return i;
    return TINY_VOCAB;
}

/* Make `word` one token by merging its bytes from the left; false: the vocabulary is full. */
static inline bool tiny_vocab_add_word(tiny_vocab *v, const char *word) {
    buf left = {0}, whole = {0};
    tiny_byte_name((unsigned char)word[0], &left);
    buf_add(&whole, left.p, left.n);
    for (const char *c = word + 1; *c != 0 && v->n < TINY_VOCAB; c++) {
        tiny_byte_name((unsigned char)*c, &whole);
        if (tiny_vocab_find(v, &whole) == TINY_VOCAB) {
            buf *merge = &v->merges[v->n - TINY_MERGE_0];
            buf_add(merge, left.p, left.n);
            buf_add_char(merge, ' ');
            buf_add(merge, whole.p + left.n, whole.n - left.n);
            buf_add(&v->names[v->n++], whole.p, whole.n);
        }
        buf_clear(&left);
        buf_add(&left, whole.p, whole.n);
    }
    buf_deinit(&left);
    buf_deinit(&whole);
    return v->n < TINY_VOCAB;
}

static inline void tiny_vocab_init(tiny_vocab *v) {
    static const char *const controls[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static const char words[] =
        " the of and to in is that it was for on are with as his they be at one have this from or"
        " had by hot word but what some we can out other were all there when up use your how said"
        " an each she which do their time if will way about many then them write would like so"
        " these her long make thing see him two has look more day could go come did number sound"
        " no most people my over know water than call first who may down side been now find any"
        " new work part take get place made live where after back little only round man year came";
    memset(v, 0, sizeof *v);
    for (; v->n < TINY_BYTE_0; v->n++) buf_add_str(&v->names[v->n], controls[v->n]);
    for (; v->n < TINY_MERGE_0; v->n++)
        tiny_byte_name((unsigned)(v->n - TINY_BYTE_0), &v->names[v->n]);
    for (const char *p = words; *p != 0;) {
        char word[16] = " ";
        size_t n = strcspn(p + 1, " ");
        memcpy(word + 1, p + 1, n);
        if (!tiny_vocab_add_word(v, word)) break;
        p += n + 1;
    }
    INFERD_CHECK(v->n == TINY_VOCAB);
}

static inline void tiny_vocab_deinit(tiny_vocab *v) {
    for (size_t i = 0; i < TINY_VOCAB; i++) buf_deinit(&v->names[i]);
    for (size_t i = 0; i < TINY_MERGES; i++) buf_deinit(&v->merges[i]);
}

/* ChatML: each turn between <|im_start|>role and <|im_end|>. */
static const char tiny_chat_template[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* All tokenizer.* keys. */
static inline void tiny_tokenizer_add(tiny_gguf *g) {
    tiny_vocab v;
    tiny_vocab_init(&v);
    bytes names[TINY_VOCAB], merges[TINY_MERGES];
    int32_t types[TINY_VOCAB];
    for (size_t i = 0; i < TINY_VOCAB; i++) {
        names[i] = (bytes){v.names[i].p, v.names[i].n};
        types[i] = i < TINY_BYTE_0 ? 3 : 1; // control, normal
    }
    for (size_t i = 0; i < TINY_MERGES; i++) merges[i] = (bytes){v.merges[i].p, v.merges[i].n};
    tiny_kv_str(g, "tokenizer.ggml.model", "gpt2");
    tiny_kv_str(g, "tokenizer.ggml.pre", "smollm");
    tiny_kv_strs(g, "tokenizer.ggml.tokens", names, TINY_VOCAB);
    tiny_kv_i32s(g, "tokenizer.ggml.token_type", types, TINY_VOCAB);
    tiny_kv_strs(g, "tokenizer.ggml.merges", merges, TINY_MERGES);
    tiny_kv_u32(g, "tokenizer.ggml.bos_token_id", TINY_IM_START);
    tiny_kv_u32(g, "tokenizer.ggml.eos_token_id", TINY_IM_END);
    tiny_kv_u32(g, "tokenizer.ggml.unknown_token_id", TINY_ENDOFTEXT);
    tiny_kv_u32(g, "tokenizer.ggml.padding_token_id", TINY_IM_END);
    tiny_kv_bool(g, "tokenizer.ggml.add_bos_token", false);
    tiny_kv_bool(g, "tokenizer.ggml.add_space_prefix", false);
    tiny_kv_str(g, "tokenizer.chat_template", tiny_chat_template);
    tiny_vocab_deinit(&v);
}

/* ---- the model ---- */

/* Zero means the figure in brackets. */
typedef struct tiny_model_options {
    uint32_t type;       // of matrices: F32 (0), F16, BF16, Q8_0, Q4_0, Q4_1; norms are F32
    bool tied;           // no output.weight: the embedding is used again
    uint32_t n_layers;   // [3]; at most 6
    uint32_t dim;        // [64] a multiple of 32
    uint32_t n_heads;    // [4]
    uint32_t n_kv_heads; // [2]
    uint32_t ffn_dim;    // [128] a multiple of 32
    uint32_t n_ctx;      // [2048]
    const char *name;    // ["tiny"] general.name
    void (*add_keys)(tiny_gguf *g); // [none] adds further keys
} tiny_model_options;

/* A random [rows, columns] matrix; columns is contiguous and comes first in a GGUF. */
static inline void tiny_matrix_add(tiny_gguf *g, tiny_random *r, const char *name, uint32_t type,
                                   uint64_t columns, uint64_t rows) {
    size_t n = (size_t)(columns * rows);
    float *x = malloc(n * sizeof *x);
    INFERD_CHECK(x != NULL);
    for (size_t i = 0; i < n; i++) x[i] = 0.08f * tiny_random_normal(r);
    buf data = {0};
    tiny_quant(type, x, n, &data);
    INFERD_CHECK(!data.failed);
    tiny_tensor_add(g, name, type, 2, (uint64_t[]){columns, rows}, data.p, data.n);
    buf_deinit(&data);
    free(x);
}

/* A norm's weights, around one. */
static inline void tiny_norm_add(tiny_gguf *g, tiny_random *r, const char *name, uint64_t n) {
    buf data = {0};
    for (uint64_t i = 0; i < n; i++) {
        float x = 1 + 0.08f * tiny_random_normal(r);
        tiny_quant(DTYPE_F32, &x, 1, &data);
    }
    tiny_tensor_add(g, name, DTYPE_F32, 1, &n, data.p, data.n);
    buf_deinit(&data);
}

static inline void tiny_layer_add(tiny_gguf *g, tiny_random *r, uint32_t layer_idx,
                                  const tiny_model_options *o) {
    uint32_t head_dim = o->dim / o->n_heads;
    struct {
        const char *part;
        uint32_t columns, rows; // rows 0: a norm
    } parts[] = {
        {"attn_norm", o->dim, 0},
        {"attn_q", o->dim, o->n_heads * head_dim},
        {"attn_k", o->dim, o->n_kv_heads * head_dim},
        {"attn_v", o->dim, o->n_kv_heads * head_dim},
        {"attn_output", o->n_heads * head_dim, o->dim},
        {"ffn_norm", o->dim, 0},
        {"ffn_gate", o->dim, o->ffn_dim},
        {"ffn_up", o->dim, o->ffn_dim},
        {"ffn_down", o->ffn_dim, o->dim},
    };
    for (size_t i = 0; i < INFERD_COUNT(parts); i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", layer_idx, parts[i].part);
        if (parts[i].rows == 0)
            tiny_norm_add(g, r, name, parts[i].columns);
        else
            tiny_matrix_add(g, r, name, o->type, parts[i].columns, parts[i].rows);
    }
}

static inline void tiny_hparams_add(tiny_gguf *g, const tiny_model_options *o) {
    tiny_kv_str(g, "general.architecture", "llama");
    tiny_kv_str(g, "general.type", "model");
    tiny_kv_str(g, "general.name", o->name);
    tiny_kv_u32(g, "llama.vocab_size", TINY_VOCAB);
    tiny_kv_u32(g, "llama.context_length", o->n_ctx);
    tiny_kv_u32(g, "llama.embedding_length", o->dim);
    tiny_kv_u32(g, "llama.block_count", o->n_layers);
    tiny_kv_u32(g, "llama.feed_forward_length", o->ffn_dim);
    tiny_kv_u32(g, "llama.attention.head_count", o->n_heads);
    tiny_kv_u32(g, "llama.attention.head_count_kv", o->n_kv_heads);
    tiny_kv_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_kv_u32(g, "llama.rope.dimension_count", o->dim / o->n_heads);
    tiny_kv_f32(g, "llama.rope.freq_base", 10000.0f);
    if (o->add_keys != NULL) o->add_keys(g);
}

/* A whole model into `g`, so that a test can still spoil a part of it. */
static inline void tiny_model_fill(tiny_gguf *g, uint64_t seed, const tiny_model_options *options) {
    tiny_model_options o = {0};
    if (options != NULL) o = *options;
    if (o.n_layers == 0) o.n_layers = 3;
    if (o.dim == 0) o.dim = 64;
    if (o.n_heads == 0) o.n_heads = 4;
    if (o.n_kv_heads == 0) o.n_kv_heads = 2;
    if (o.ffn_dim == 0) o.ffn_dim = 128;
    if (o.n_ctx == 0) o.n_ctx = 2048;
    if (o.name == NULL) o.name = "tiny";
    tiny_random r = {seed};
    tiny_hparams_add(g, &o);
    tiny_tokenizer_add(g);
    tiny_matrix_add(g, &r, "token_embd.weight", o.type, o.dim, TINY_VOCAB);
    for (uint32_t i = 0; i < o.n_layers; i++) tiny_layer_add(g, &r, i, &o);
    tiny_norm_add(g, &r, "output_norm.weight", o.dim);
    if (!o.tied) tiny_matrix_add(g, &r, "output.weight", o.type, o.dim, TINY_VOCAB);
}

/* `options` may be NULL. */
static inline void tiny_model_write(const char *path, uint64_t seed,
                                    const tiny_model_options *options) {
    tiny_gguf *g = malloc(sizeof *g);
    INFERD_CHECK(g != NULL);
    tiny_gguf_init(g);
    tiny_model_fill(g, seed, options);
    tiny_gguf_write(g, path);
    tiny_gguf_deinit(g);
    free(g);
}

#endif
