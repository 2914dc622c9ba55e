/* arch.c - the families of models: reading the metadata of each.
 *
 * Keys: docs of GGUF and models' own files; A stands for the architecture's name.  A reader checks
 * every number before it is multiplied, and refuses unknown values instead of guessing.
 *
 * Rotary embedding: angle of pair i = position * base^(-2i / rot) / divisor_i / factor, where
 * divisors are the tensor rope_freqs (llama 3.1) and factor is that of linear scaling. */
#include <math.h>
#include <string.h>

#include "decoder.h"

typedef struct arch {
    const char *name;
    bool rope_interleaved;       // pairs (2i, 2i+1): the order of q and k in this family's files
    double rope_base;            // of files without the key; 0: it is required
    const char *other_rope_base; // another converter's name of rope.freq_base; NULL: none
    inferd_status (*read)(const struct arch *a, const gguf *g, decoder_spec *s, inferd_err *err);
} arch;

/* "A.key" */
static const char *key_of(const arch *a, const char *key, char *out, size_t n) {
    snprintf(out, n, "%s.%s", a->name, key);
    return out;
}

static inferd_status read_u32(const arch *a, const gguf *g, const char *name, uint32_t min,
                              uint32_t max, uint32_t *out, inferd_err *err) {
    char key[128];
    uint64_t value;
    inferd_status s = gguf_u64(g, key_of(a, name, key, sizeof key), min, max, &value, err);
    if (s == INFERD_OK) *out = (uint32_t)value;
    return s;
}

static inferd_status read_u32_or(const arch *a, const gguf *g, const char *name, uint32_t min,
                                 uint32_t max, uint32_t fallback, uint32_t *out, inferd_err *err) {
    char key[128];
    uint64_t value;
    inferd_status s =
        gguf_u64_or(g, key_of(a, name, key, sizeof key), min, max, fallback, &value, err);
    if (s == INFERD_OK) *out = (uint32_t)value;
    return s;
}

/* A number with two names, A.name and A.other (NULL: none), the second from another converter.  A
 * file may have both, and then they must agree, because one of them would be ignored. */
static inferd_status read_named_twice(const arch *a, const gguf *g, const char *name,
                                      const char *other, double min, double max, double fallback,
                                      double *out, inferd_err *err) {
    char key[128], other_key[128];
    double second;
    key_of(a, name, key, sizeof key);
    if (other == NULL) return gguf_f64_or(g, key, min, max, fallback, out, err);
    key_of(a, other, other_key, sizeof other_key);
    inferd_status s = gguf_f64_or(g, other_key, min, max, fallback, &second, err);
    if (s == INFERD_OK) s = gguf_f64_or(g, key, min, max, second, out, err);
    if (s != INFERD_OK || !gguf_has(g, other_key)) return s;
    if (fabs(*out - second) <= 1e-6 * fabs(second)) return INFERD_OK; // f32 beside f64
    return inferd_fail(err, INFERD_EFORMAT,
                       "%s: %s is %.9g and %s is %.9g; both are names of one number and must agree",
                       gguf_path(g), key, *out, other_key, second);
}

static inferd_status read_shape(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    inferd_status st = INFERD_OK;
    uint32_t value_dim;
    if ((st = read_u32(a, g, "block_count", 1, DECODER_LAYERS_MAX, &s->n_layers, err)) ||
        (st = read_u32(a, g, "embedding_length", 1, DECODER_DIM_MAX, &s->dim, err)) ||
        (st = read_u32(a, g, "feed_forward_length", 1, DECODER_FFN_MAX, &s->ffn_dim, err)) ||
        (st = read_u32(a, g, "attention.head_count", 1, DECODER_HEADS_MAX, &s->n_heads, err)) ||
        (st = read_u32_or(a, g, "attention.head_count_kv", 1, DECODER_HEADS_MAX, s->n_heads,
                          &s->n_kv_heads, err)) ||
        (st = read_u32(a, g, "context_length", 1, DECODER_CONTEXT_MAX, &s->context_trained, err)))
        return st;
    if (s->n_heads % s->n_kv_heads != 0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: attention.head_count %u is no multiple of head_count_kv %u",
                           gguf_path(g), s->n_heads, s->n_kv_heads);
    if ((st = read_u32_or(a, g, "attention.key_length", 1, DECODER_HEAD_DIM_MAX,
                          s->dim / s->n_heads, &s->head_dim, err)) ||
        (st = read_u32_or(a, g, "attention.value_length", 1, DECODER_HEAD_DIM_MAX, s->head_dim,
                          &value_dim, err)))
        return st;
    if (s->head_dim == 0 || s->head_dim % 2 != 0 || s->head_dim > DECODER_HEAD_DIM_MAX)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: a head of %u dimensions; expected an even number up to %u",
                           gguf_path(g), s->head_dim, DECODER_HEAD_DIM_MAX);
    if (value_dim != s->head_dim)
        return inferd_fail(
            err, INFERD_EUNSUPPORTED,
            "%s: keys of %u and values of %u dimensions; equal lengths are supported", gguf_path(g),
            s->head_dim, value_dim);
    return INFERD_OK;
}

static inferd_status read_norm_eps(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    char key[128];
    double eps;
    inferd_status st = gguf_f64(g, key_of(a, "attention.layer_norm_rms_epsilon", key, sizeof key),
                                1e-12, 0.999, &eps, err);
    s->norm_eps = (float)eps;
    return st;
}

/* The factor of linear scaling; 1 without. */
static inferd_status read_rope_factor(const arch *a, const gguf *g, double *factor,
                                      inferd_err *err) {
    char key[128];
    bytes kind;
    *factor = 1.0;
    inferd_status st = gguf_str_opt(g, key_of(a, "rope.scaling.type", key, sizeof key), &kind, err);
    if (st != INFERD_OK) return st;
    if (kind.p != NULL && kind.n == 4 && memcmp(kind.p, "none", 4) == 0) return INFERD_OK;
    if (kind.p != NULL && !(kind.n == 6 && memcmp(kind.p, "linear", 6) == 0))
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "%s: %s is \"%.*s\"; known: none, linear (and rope_freqs)", gguf_path(g),
                           key, (int)size_min(kind.n, 32), kind.p);
    st = read_named_twice(a, g, "rope.scaling.factor", "rope.scale_linear", 0.0, 1e6, 1.0, factor,
                          err);
    if (st == INFERD_OK && *factor == 0.0) *factor = 1.0; // written by old converters for "none"
    return st;
}

/* Divisors of the base frequencies, from the tensor rope_freqs; all 1 without it. */
static inferd_status read_rope_divisors(const gguf *g, uint32_t n_pairs, float *out,
                                        inferd_err *err) {
    for (uint32_t i = 0; i < n_pairs; i++) out[i] = 1.0f;
    const gguf_tensor *t = gguf_find_tensor(g, "rope_freqs.weight");
    if (t == NULL) return INFERD_OK;
    if (t->type != DTYPE_F32 || t->n_dims != 1 || t->dims[0] != n_pairs)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: rope_freqs.weight is %s of %llu, expected F32 of %u", gguf_path(g),
                           dtype_about(t->type).name, (unsigned long long)t->dims[0], n_pairs);
    inferd_status st = gguf_read(g, t, 0, out, (size_t)n_pairs * sizeof *out, err);
    for (uint32_t i = 0; st == INFERD_OK && i < n_pairs; i++)
        if (!(out[i] > 0.0f) || !isfinite(out[i]))
            return inferd_fail(err, INFERD_EFORMAT,
                               "%s: rope_freqs.weight[%u] is %g; expected a positive number",
                               gguf_path(g), i, (double)out[i]);
    return st;
}

/* Of the two divisors of a frequency the smaller one makes it too large. */
static inferd_status refuse_freq(const arch *a, const gguf *g, uint32_t pair_idx, double divisor,
                                 double factor, inferd_err *err) {
    char key[128];
    if (divisor < factor)
        return inferd_fail(
            err, INFERD_EFORMAT,
            "%s: rope_freqs.weight[%u] is %g, so that rotary frequency is not finite", gguf_path(g),
            pair_idx, divisor);
    if (!gguf_has(g, key_of(a, "rope.scaling.factor", key, sizeof key)))
        key_of(a, "rope.scale_linear", key, sizeof key);
    return inferd_fail(err, INFERD_EFORMAT, "%s: %s is %g, so rotary frequency %u is not finite",
                       gguf_path(g), key, factor, pair_idx);
}

/* Frequencies of n_pairs pairs, into memory that the spec owns; divided by `divisors` if given. */
static inferd_status make_freqs(const arch *a, const gguf *g, uint32_t n_pairs, double base,
                                double factor, const float *divisors, float **out,
                                inferd_err *err) {
    float *freq = malloc((size_t)n_pairs * sizeof *freq);
    if (freq == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u rotary frequencies", n_pairs);
    for (uint32_t i = 0; i < n_pairs; i++) {
        double plain = pow(base, -(double)i / (double)n_pairs);
        double divisor = divisors != NULL ? (double)divisors[i] : 1.0;
        freq[i] = (float)(plain / divisor / factor);
        if (!isfinite(freq[i])) {
            free(freq);
            return refuse_freq(a, g, i, divisor, factor, err);
        }
    }
    *out = freq;
    return INFERD_OK;
}

static rope_spec rope_of(const arch *a, const float *freq, uint32_t n_pairs) {
    return (rope_spec){
        .inv_freq = freq, .n_pairs = n_pairs, .scale = 1.0f, .interleaved = a->rope_interleaved};
}

static inferd_status read_rope_base(const arch *a, const gguf *g, double *out, inferd_err *err) {
    inferd_status st = read_named_twice(a, g, "rope.freq_base", a->other_rope_base, 1.0, 1e12,
                                        a->rope_base, out, err);
    if (st != INFERD_OK || *out != 0) return st;
    return inferd_fail(err, INFERD_EFORMAT, "%s: %s.rope.freq_base is missing", gguf_path(g),
                       a->name);
}

static inferd_status read_rope(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    double base, factor;
    uint32_t rot;
    float divisors[DECODER_HEAD_DIM_MAX / 2];
    inferd_status st =
        read_u32_or(a, g, "rope.dimension_count", 2, DECODER_HEAD_DIM_MAX, s->head_dim, &rot, err);
    if (st != INFERD_OK) return st;
    if (rot != s->head_dim)
        return inferd_fail(
            err, INFERD_EUNSUPPORTED,
            "%s: %s.rope.dimension_count is %u; for this architecture it must be the head "
            "length %u",
            gguf_path(g), a->name, rot, s->head_dim);
    if ((st = read_rope_base(a, g, &base, err)) || (st = read_rope_factor(a, g, &factor, err)) ||
        (st = read_rope_divisors(g, rot / 2, divisors, err)) ||
        (st = make_freqs(a, g, rot / 2, base, factor, divisors, &s->rope_freq, err)))
        return st;
    s->rope = rope_of(a, s->rope_freq, rot / 2);
    return INFERD_OK;
}

static attn_spec attn_of(const decoder_spec *s, float scale, uint32_t window) {
    return (attn_spec){.n_heads = s->n_heads,
                       .n_kv_heads = s->n_kv_heads,
                       .head_dim = s->head_dim,
                       .scale = scale,
                       .window = window};
}

static float usual_scale(const decoder_spec *s) {
    return 1.0f / sqrtf((float)s->head_dim);
}

/* The keys of all families. */
static inferd_status read_base(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    inferd_status st;
    uint32_t n_experts;
    if ((st = read_shape(a, g, s, err)) || (st = read_norm_eps(a, g, s, err)) ||
        (st = read_rope(a, g, s, err)) ||
        (st = read_u32_or(a, g, "expert_count", 0, 1024, 0, &n_experts, err)))
        return st;
    if (n_experts > 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "%s: a mixture of %u experts; dense models are supported", gguf_path(g),
                           n_experts);
    s->embed_scale = 1.0f;
    s->attn = attn_of(s, usual_scale(s), 0);
    return INFERD_OK;
}

/* Llama 2 and 3.x, SmolLM2, Mistral, TinyLlama: the base block. */
static inferd_status read_llama(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    inferd_status st = read_base(a, g, s, err);
    if (st != INFERD_OK) return st;
    // Mistral 7B v0.1: the last 4,096 positions; most files have no such key
    return read_u32_or(a, g, "attention.sliding_window", 0, DECODER_CONTEXT_MAX, 0, &s->attn.window,
                       err);
}

/* Qwen3: each head of q and k is normed. */
static inferd_status read_qwen3(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    inferd_status st = read_base(a, g, s, err);
    s->qk_norm = true;
    return st;
}

/* A bit for each layer. */
typedef uint64_t layer_bits[DECODER_LAYERS_MAX / 64];

/* Layer i is windowed unless (i + 1) is a multiple of `period`; 0: all are. */
static void set_period(uint32_t n_layers, uint32_t period, layer_bits windowed) {
    for (uint32_t i = 0; i < n_layers; i++)
        if (period == 0 || (i + 1) % period != 0) windowed[i / 64] |= (uint64_t)1 << i % 64;
}

/* The layers with a window: a period, or a bool for each layer.  `windowed` is all 0 before. */
static inferd_status read_pattern(const arch *a, const gguf *g, uint32_t n_layers,
                                  layer_bits windowed, inferd_err *err) {
    enum { PERIOD = 6 }; // of files without the key
    char key[128];
    uint32_t period;
    gguf_array_view all;
    inferd_err no_bools;
    inferd_status st;
    key_of(a, "attention.sliding_window_pattern", key, sizeof key);
    if (!gguf_is_array(g, key)) {
        st = read_u32_or(a, g, "attention.sliding_window_pattern", 0, DECODER_LAYERS_MAX, PERIOD,
                         &period, err);
        if (st == INFERD_OK) set_period(n_layers, period, windowed);
        return st;
    }
    if (gguf_array_opt(g, key, GGUF_BOOL, &all, &no_bools) != INFERD_OK &&
        (st = gguf_array_opt(g, key, GGUF_U32, &all, err)) != INFERD_OK)
        return st;
    if (all.n != n_layers)
        return inferd_fail(err, INFERD_EFORMAT, "%s: %s has %zu elements for %u layers",
                           gguf_path(g), key, all.n, n_layers);
    for (uint32_t i = 0; i < n_layers; i++) {
        int64_t v = gguf_array_int(&all, i);
        if (v != 0 && v != 1)
            return inferd_fail(err, INFERD_EFORMAT, "%s: %s[%u] is %lld, expected 0 or 1",
                               gguf_path(g), key, i, (long long)v);
        windowed[i / 64] |= (uint64_t)v << i % 64;
    }
    return INFERD_OK;
}

/* The local layers of Gemma 3: a window, and a rotary base of their own that is never scaled.  A
 * file without a window has no such layers. */
static inferd_status read_gemma3_local(const arch *a, const gguf *g, decoder_spec *s,
                                       inferd_err *err) {
    inferd_status st;
    uint32_t window;
    double base;
    if ((st = read_u32_or(a, g, "attention.sliding_window", 0, DECODER_CONTEXT_MAX, 0, &window,
                          err)) ||
        window == 0)
        return st;
    if ((st = read_named_twice(a, g, "rope.freq_base_swa", "rope.local.freq_base", 1.0, 1e12,
                               10000.0, &base, err)) ||
        (st = make_freqs(a, g, s->rope.n_pairs, base, 1.0, NULL, &s->local_rope_freq, err)) ||
        (st = read_pattern(a, g, s->n_layers, s->local_layers, err)))
        return st;
    s->local_rope = rope_of(a, s->local_rope_freq, s->rope.n_pairs);
    s->local_attn = s->attn;
    s->local_attn.window = window;
    return INFERD_OK;
}

/* Gemma 3 (text).  Files hold the weights of norms with their + 1. */
static inferd_status read_gemma3(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    enum { LAYERS_OF_27B = 62 };
    char key[128];
    double cap;
    inferd_status st = read_base(a, g, s, err);
    if (st != INFERD_OK ||
        (st = gguf_f64_or(g, key_of(a, "final_logit_softcapping", key, sizeof key), 0.0, 1e6, 0.0,
                          &cap, err)))
        return st;
    s->softcap = (float)cap;
    s->embed_scale = sqrtf((float)s->dim);
    s->qk_norm = s->post_norms = true;
    s->act = ACT_GELU_TANH;
    /* The largest model scales its queries by dim / n_heads, the head length without an explicit
     * one; files have no key for it. */
    if (s->n_layers == LAYERS_OF_27B) s->attn.scale = 1.0f / sqrtf((float)(s->dim / s->n_heads));
    return read_gemma3_local(a, g, s, err);
}

/* When all layers have the window, or none has one, a pattern in the file must agree. */
static inferd_status check_pattern(const arch *a, const gguf *g, const decoder_spec *s,
                                   inferd_err *err) {
    char key[128];
    layer_bits windowed = {0};
    if (s->local_attn.window != 0 || // gemma3: the pattern is honoured
        !gguf_has(g, key_of(a, "attention.sliding_window_pattern", key, sizeof key)))
        return INFERD_OK;
    inferd_status st = read_pattern(a, g, s->n_layers, windowed, err);
    bool computed = s->attn.window != 0;
    for (uint32_t i = 0; st == INFERD_OK && i < s->n_layers; i++)
        if ((windowed[i / 64] >> i % 64 & 1) != computed)
            return inferd_fail(err, INFERD_EUNSUPPORTED,
                               "%s: %s says that layer %u has %s; with this architecture and "
                               "attention.sliding_window %u, %s is supported",
                               gguf_path(g), key, i, computed ? "no window" : "a window",
                               s->attn.window,
                               computed ? "only a window of all layers" : "no window");
    return st;
}

static const arch archs[] = {
    {"llama", true, 10000, NULL, read_llama},
    {"qwen3", false, 10000, NULL, read_qwen3},
    {"gemma3", false, 0, "rope.global.freq_base", read_gemma3},
};

static inferd_status refuse_unknown(const gguf *g, bytes name, inferd_err *err) {
    char known[256] = "";
    for (size_t i = 0; i < INFERD_COUNT(archs); i++) {
        if (i > 0) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, archs[i].name, sizeof known - strlen(known) - 1);
    }
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "%s: general.architecture is \"%.*s\"; known architectures: %s",
                       gguf_path(g), (int)size_min(name.n, 64), name.p, known);
}

inferd_status decoder_spec_read(const gguf *g, decoder_spec *out, inferd_err *err) {
    *out = (decoder_spec){0};
    bytes name;
    inferd_status st = gguf_str(g, "general.architecture", &name, err);
    if (st != INFERD_OK) return st;
    for (size_t i = 0; i < INFERD_COUNT(archs); i++) {
        if (name.n != strlen(archs[i].name) || memcmp(name.p, archs[i].name, name.n) != 0) continue;
        out->architecture = archs[i].name;
        st = archs[i].read(&archs[i], g, out, err);
        if (st == INFERD_OK) st = check_pattern(&archs[i], g, out, err);
        if (st == INFERD_OK) st = decoder_keys_check(g, out, err);
        if (st != INFERD_OK) decoder_spec_deinit(out);
        return st;
    }
    return refuse_unknown(g, name, err);
}

void decoder_spec_deinit(decoder_spec *s) {
    free(s->rope_freq);
    free(s->local_rope_freq);
    s->rope_freq = s->local_rope_freq = NULL;
}
