/* rope.c - rotary frequencies from the metadata of a model.
 *
 *     f_i = base^(-2i / rot)                          plain; rot dimensions are rotated, i < rot /
 * 2 f_i / factor                                    linear f_i / divisor_i the tensor rope_freqs
 * (Llama 3.1) f_i / factor * r_i + f_i * (1 - r_i)            YaRN (Peng et al., arXiv 2309.00071)
 *     f_i / ext_i                                     LongRoPE (Ding et al., arXiv 2402.13753), of
 *                                                     two tensors: for contexts up to the original
 *                                                     one, and for longer ones
 *
 * r_i of YaRN rises from 0 at the dimension that turns beta_fast times within the original context
 * to 1 at the one that turns beta_slow times.  Most models round these two dimensions to whole
 * numbers, gpt-oss does not; files have no key for it.
 *
 * YaRN and LongRoPE also multiply cosines and sines: rope_spec.scale.
 *
 * Thread: any. */
#include <math.h>
#include <string.h>

#include "arch/arch.h"

/* What the keys say, before frequencies are made of it. */
typedef struct rope_keys {
    rope_scaling kind;
    double base, factor;
    uint32_t n_pairs, original;  // original: positions of the first training
    double beta_fast, beta_slow; // YaRN
    bool whole_dims;             // YaRN: the ends of the ramp are whole dimensions
    double scale;                // of cosines and sines
    float divisors[DECODER_HEAD_DIM_MAX / 2];
    const char *divided_by; // the tensor they come from; NULL: none
} rope_keys;

static inferd_status read_kind(const arch *a, const gguf *g, rope_scaling *out, inferd_err *err) {
    static const char *const names[] = {[ROPE_PLAIN] = "none",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_YARN] = "yarn",
                                        [ROPE_LONG] = "longrope"};
    char key[128];
    bytes kind;
    inferd_status st =
        gguf_str_opt(g, arch_key(a, "rope.scaling.type", key, sizeof key), &kind, err);
    *out = gguf_find_tensor(g, "rope_factors_short.weight") != NULL ? ROPE_LONG : ROPE_LINEAR;
    if (st != INFERD_OK || kind.p == NULL) return st;
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        if (kind.n != strlen(names[i]) || memcmp(kind.p, names[i], kind.n) != 0) continue;
        *out = (rope_scaling)i;
        return INFERD_OK;
    }
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "%s: %s is \"%.*s\"; known: none, linear, yarn, longrope (and rope_freqs)",
                       gguf_path(g), key, (int)size_min(kind.n, 32), kind.p);
}

static inferd_status read_factor(const arch *a, const gguf *g, double *out, inferd_err *err) {
    inferd_status st =
        arch_f64_twice(a, g, "rope.scaling.factor", "rope.scale_linear", 0.0, 1e6, 1.0, out, err);
    if (st == INFERD_OK && *out == 0.0) *out = 1.0; // written by old converters for "none"
    return st;
}

/* A tensor of one positive number for each pair. */
static inferd_status read_divisors(const gguf *g, const char *name, rope_keys *k, inferd_err *err) {
    const gguf_tensor *t = gguf_find_tensor(g, name);
    if (t == NULL)
        return inferd_fail(err, INFERD_EFORMAT, "%s: tensor %s is missing", gguf_path(g), name);
    if (t->type != DTYPE_F32 || t->n_dims != 1 || t->dims[0] != k->n_pairs)
        return inferd_fail(err, INFERD_EFORMAT, "%s: %s is %s of %llu, expected F32 of %u",
                           gguf_path(g), name, dtype_about(t->type).name,
                           (unsigned long long)t->dims[0], k->n_pairs);
    inferd_status st =
        gguf_read(g, t, 0, k->divisors, (size_t)k->n_pairs * sizeof k->divisors[0], err);
    for (uint32_t i = 0; st == INFERD_OK && i < k->n_pairs; i++)
        if (!(k->divisors[i] > 0.0f) || !isfinite(k->divisors[i]))
            return inferd_fail(err, INFERD_EFORMAT, "%s: %s[%u] is %g; expected a positive number",
                               gguf_path(g), name, i, (double)k->divisors[i]);
    k->divided_by = name;
    return st;
}

/* The factor of a model's cosines and sines by the length of its context, as YaRN defines it. */
static double yarn_scale(double factor, double multiplier) {
    return factor <= 1.0 ? 1.0 : 0.1 * multiplier * log(factor) + 1.0;
}

/* The converter writes two things as yarn_attn_factor: attention_factor of a configuration, which
 * is the whole scale, and attn_factor (0.878 in DeepSeek-R1-0528-Qwen3-8B), which transformers and
 * llama.cpp do not apply.  No whole scale is below 1. */
static inferd_status read_yarn(const arch *a, const gguf *g, rope_keys *k, inferd_err *err) {
    double multiplier, scale, said, more;
    inferd_status st;
    if ((st = arch_f64_or(a, g, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0, &k->beta_fast,
                          err)) ||
        (st = arch_f64_or(a, g, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0, &k->beta_slow,
                          err)) ||
        (st = arch_f64_or(a, g, "rope.scaling.yarn_log_multiplier", 0, 100, 0, &multiplier, err)))
        return st;
    scale = yarn_scale(k->factor, 1.0);
    if (multiplier != 0) scale /= yarn_scale(k->factor, multiplier);
    if ((st = arch_f64_or(a, g, "rope.scaling.yarn_attn_factor", 1e-6, 1e6, 0, &said, err)) ||
        (st = arch_f64_or(a, g, "rope.scaling.attn_factor", 1e-6, 1e6, 1.0, &more, err)))
        return st;
    if (said >= 1.0) scale = said; // 0: there is no such key
    k->scale = scale * more;
    k->whole_dims = !a->yarn_between_dims;
    if (k->base <= 1.0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: rope.freq_base is %g; with YaRN it must be above 1", gguf_path(g),
                           k->base);
    return INFERD_OK;
}

static inferd_status read_long(const arch *a, const gguf *g, uint32_t context, uint32_t trained,
                               rope_keys *k, inferd_err *err) {
    bool longer = (context != 0 ? context : trained) > k->original;
    if (k->original < 2) // its logarithm divides
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: %s.rope.scaling.original_context_length is %u; with LongRoPE it "
                           "must be above 1",
                           gguf_path(g), a->name, k->original);
    double ratio = (double)trained / k->original;
    double usual = ratio <= 1.0 ? 1.0 : sqrt(1.0 + log(ratio) / log(k->original));
    inferd_status st =
        arch_f64_or(a, g, "rope.scaling.attn_factor", 1e-6, 1e6, usual, &k->scale, err);
    if (st != INFERD_OK) return st;
    k->factor = 1.0;
    return read_divisors(g, longer ? "rope_factors_long.weight" : "rope_factors_short.weight", k,
                         err);
}

/* Of the two divisors of a frequency the smaller one makes it too large. */
static inferd_status refuse_freq(const arch *a, const gguf *g, uint32_t pair_idx,
                                 const rope_keys *k, inferd_err *err) {
    char key[128];
    double divisor = k->divided_by != NULL ? (double)k->divisors[pair_idx] : INFINITY;
    if (divisor < k->factor)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: %s[%u] is %g, so that rotary frequency is not finite", gguf_path(g),
                           k->divided_by, pair_idx, divisor);
    if (!gguf_has(g, arch_key(a, "rope.scaling.factor", key, sizeof key)))
        arch_key(a, "rope.scale_linear", key, sizeof key);
    return inferd_fail(err, INFERD_EFORMAT, "%s: %s is %g, so rotary frequency %u is not finite",
                       gguf_path(g), key, k->factor, pair_idx);
}

/* The dimension, counted in pairs, that turns so often within the original context. */
static double dim_of_turns(const rope_keys *k, double turns) {
    return k->n_pairs * log(k->original / (turns * 2 * M_PI)) / log(k->base);
}

/* r_i: how far the frequency is divided. */
static double ramp(const rope_keys *k, uint32_t pair_idx) {
    double low = dim_of_turns(k, k->beta_fast), high = dim_of_turns(k, k->beta_slow);
    if (k->whole_dims) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, 2.0 * k->n_pairs - 1);
    if (low == high) high += 0.001;
    return fmin(fmax((pair_idx - low) / (high - low), 0), 1);
}

static double freq_of(const rope_keys *k, uint32_t pair_idx) {
    double plain = pow(k->base, -(double)pair_idx / (double)k->n_pairs);
    if (k->divided_by != NULL) plain /= (double)k->divisors[pair_idx];
    if (k->kind != ROPE_YARN) return plain / k->factor;
    double r = ramp(k, pair_idx);
    return plain / k->factor * r + plain * (1 - r);
}

/* Into memory that the kind owns. */
static inferd_status make(const arch *a, const gguf *g, const rope_keys *k, attn_kind *out,
                          inferd_err *err) {
    float *freq = malloc((size_t)k->n_pairs * sizeof *freq);
    if (freq == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u rotary frequencies", k->n_pairs);
    for (uint32_t i = 0; i < k->n_pairs; i++) {
        freq[i] = (float)freq_of(k, i);
        if (isfinite(freq[i])) continue;
        free(freq);
        return refuse_freq(a, g, i, k, err);
    }
    out->rope_freq = freq;
    out->rope = (rope_spec){.inv_freq = freq,
                            .n_pairs = k->n_pairs,
                            .scale = (float)k->scale,
                            .interleaved = a->rope_interleaved};
    return INFERD_OK;
}

inferd_status arch_rope_base(const arch *a, const gguf *g, double *out, inferd_err *err) {
    inferd_status st = arch_f64_twice(a, g, "rope.freq_base", a->other_rope_base, 1.0, 1e12,
                                      a->rope_base, out, err);
    if (st != INFERD_OK || *out != 0) return st;
    return inferd_fail(err, INFERD_EFORMAT, "%s: %s.rope.freq_base is missing", gguf_path(g),
                       a->name);
}

/* How many of a head's dimensions are rotated. */
static inferd_status read_dims(const arch *a, const gguf *g, const decoder_spec *s, rope_keys *k,
                               inferd_err *err) {
    uint32_t rot;
    inferd_status st =
        arch_u32_or(a, g, "rope.dimension_count", 2, DECODER_HEAD_DIM_MAX, s->head_dim, &rot, err);
    if (st != INFERD_OK) return st;
    if (rot % 2 != 0 || rot > s->head_dim || (a->rope_interleaved && rot != s->head_dim))
        return inferd_fail(
            err, INFERD_EUNSUPPORTED,
            "%s: %s.rope.dimension_count is %u; for this architecture it must be %s %u",
            gguf_path(g), a->name, rot,
            a->rope_interleaved ? "the head length" : "an even number up to", s->head_dim);
    k->n_pairs = rot / 2;
    return INFERD_OK;
}

inferd_status arch_read_rope(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                             attn_kind *out, inferd_err *err) {
    rope_keys k = {.scale = 1.0, .factor = 1.0};
    inferd_status st;
    if ((st = read_dims(a, g, s, &k, err)) || (st = arch_rope_base(a, g, &k.base, err)) ||
        (st = read_kind(a, g, &k.kind, err)) ||
        (st = arch_u32_or(a, g, "rope.scaling.original_context_length", 1, DECODER_CONTEXT_MAX,
                          s->context_trained, &k.original, err)))
        return st;
    if (k.kind == ROPE_LINEAR || k.kind == ROPE_YARN)
        if ((st = read_factor(a, g, &k.factor, err))) return st;
    if (k.kind == ROPE_YARN && (st = read_yarn(a, g, &k, err))) return st;
    if (k.kind == ROPE_LONG)
        st = read_long(a, g, context, s->context_trained, &k, err);
    else if (gguf_find_tensor(g, "rope_freqs.weight") != NULL)
        st = read_divisors(g, "rope_freqs.weight", &k, err);
    s->rope_scaling = k.kind;
    s->rope_original = k.original;
    return st != INFERD_OK ? st : make(a, g, &k, out, err);
}

inferd_status arch_plain_rope(const arch *a, const gguf *g, double base, uint32_t n_pairs,
                              attn_kind *out, inferd_err *err) {
    rope_keys k = {.base = base, .factor = 1.0, .scale = 1.0, .n_pairs = n_pairs};
    return make(a, g, &k, out, err);
}

inferd_status arch_same_rope(const attn_kind *from, attn_kind *out, inferd_err *err) {
    size_t n_bytes = from->rope.n_pairs * sizeof *from->rope_freq;
    float *freq = malloc(size_max(n_bytes, 1));
    if (freq == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u rotary frequencies",
                           from->rope.n_pairs);
    memcpy(freq, from->rope_freq, n_bytes);
    out->rope = from->rope;
    out->rope.inv_freq = out->rope_freq = freq;
    return INFERD_OK;
}
