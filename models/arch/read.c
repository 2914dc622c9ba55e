/* read.c - see arch.h. */
#include <math.h>
#include <string.h>

#include "arch/arch.h"

const char *arch_key(const arch *a, const char *key, char *out, size_t n) {
    snprintf(out, n, "%s.%s", a->name, key);
    return out;
}

inferd_status arch_u32(const arch *a, const gguf *g, const char *name, uint32_t min, uint32_t max,
                       uint32_t *out, inferd_err *err) {
    char key[128];
    uint64_t value;
    inferd_status s = gguf_u64(g, arch_key(a, name, key, sizeof key), min, max, &value, err);
    if (s == INFERD_OK) *out = (uint32_t)value;
    return s;
}

inferd_status arch_u32_or(const arch *a, const gguf *g, const char *name, uint32_t min,
                          uint32_t max, uint32_t fallback, uint32_t *out, inferd_err *err) {
    char key[128];
    uint64_t value;
    inferd_status s =
        gguf_u64_or(g, arch_key(a, name, key, sizeof key), min, max, fallback, &value, err);
    if (s == INFERD_OK) *out = (uint32_t)value;
    return s;
}

inferd_status arch_u32_each(const arch *a, const gguf *g, const char *name, uint32_t max,
                            uint32_t n_blocks, uint32_t *out, inferd_err *err) {
    char key[128];
    gguf_array_view all;
    arch_key(a, name, key, sizeof key);
    if (!gguf_is_array(g, key))
        return *out == 0 ? arch_u32(a, g, name, 1, max, out, err)
                         : arch_u32_or(a, g, name, 1, max, *out, out, err);
    inferd_status st = gguf_array_opt(g, key, GGUF_U32, &all, err);
    if (st != INFERD_OK) return st;
    if (all.n != n_blocks)
        return inferd_fail(err, INFERD_EFORMAT, "%s: %s has %zu elements for %u layers",
                           gguf_path(g), key, all.n, n_blocks);
    int64_t first = gguf_array_int(&all, 0);
    for (uint32_t i = 1; i < n_blocks; i++)
        if (gguf_array_int(&all, i) != first)
            return inferd_fail(err, INFERD_EUNSUPPORTED,
                               "%s: %s is %lld for layer 0 and %lld for layer %u; one number for "
                               "all layers is supported",
                               gguf_path(g), key, (long long)first,
                               (long long)gguf_array_int(&all, i), i);
    if (first < 1 || first > max)
        return inferd_fail(err, INFERD_EFORMAT, "%s: %s[0] is %lld, expected 1 to %u", gguf_path(g),
                           key, (long long)first, max);
    *out = (uint32_t)first;
    return INFERD_OK;
}

inferd_status arch_f64_or(const arch *a, const gguf *g, const char *name, double min, double max,
                          double fallback, double *out, inferd_err *err) {
    char key[128];
    return gguf_f64_or(g, arch_key(a, name, key, sizeof key), min, max, fallback, out, err);
}

inferd_status arch_f64_twice(const arch *a, const gguf *g, const char *name, const char *other,
                             double min, double max, double fallback, double *out,
                             inferd_err *err) {
    char key[128], other_key[128];
    double second;
    arch_key(a, name, key, sizeof key);
    if (other == NULL) return gguf_f64_or(g, key, min, max, fallback, out, err);
    arch_key(a, other, other_key, sizeof other_key);
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
    uint32_t value_dim, n_blocks;
    if ((st = arch_u32(a, g, "block_count", 1, DECODER_LAYERS_MAX, &n_blocks, err)) ||
        (st = arch_u32_or(a, g, "nextn_predict_layers", 0, n_blocks - 1, 0, &s->n_mtp_layers,
                          err)) ||
        (st = arch_u32(a, g, "embedding_length", 1, DECODER_DIM_MAX, &s->dim, err)) ||
        (st = arch_u32_each(a, g, "feed_forward_length", DECODER_FFN_MAX, n_blocks, &s->ffn_dim,
                            err)) ||
        (st = arch_u32_each(a, g, "attention.head_count", DECODER_HEADS_MAX, n_blocks, &s->n_heads,
                            err)))
        return st;
    s->n_kv_heads = s->n_heads;
    if ((st = arch_u32_each(a, g, "attention.head_count_kv", DECODER_HEADS_MAX, n_blocks,
                            &s->n_kv_heads, err)) ||
        (st = arch_u32(a, g, "context_length", 1, DECODER_CONTEXT_MAX, &s->context_trained, err)))
        return st;
    s->n_layers = n_blocks - s->n_mtp_layers;
    if (s->n_heads % s->n_kv_heads != 0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: attention.head_count %u is no multiple of head_count_kv %u",
                           gguf_path(g), s->n_heads, s->n_kv_heads);
    if ((st = arch_u32_or(a, g, "attention.key_length", 1, DECODER_HEAD_DIM_MAX,
                          s->dim / s->n_heads, &s->head_dim, err)) ||
        (st = arch_u32_or(a, g, "attention.value_length", 1, DECODER_HEAD_DIM_MAX, s->head_dim,
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
    inferd_status st = gguf_f64(g, arch_key(a, "attention.layer_norm_rms_epsilon", key, sizeof key),
                                1e-12, 0.999, &eps, err);
    s->norm_eps = (float)eps;
    return st;
}

static attn_spec attn_of(const decoder_spec *s, float scale, uint32_t window) {
    return (attn_spec){.n_heads = s->n_heads,
                       .n_kv_heads = s->n_kv_heads,
                       .head_dim = s->head_dim,
                       .scale = scale,
                       .window = window};
}

/* Files of dense models may have expert_count 0. */
static inferd_status refuse_experts(const arch *a, const gguf *g, inferd_err *err) {
    uint32_t n_experts;
    inferd_status st = arch_u32_or(a, g, "expert_count", 0, UINT32_MAX, 0, &n_experts, err);
    if (st != INFERD_OK || n_experts == 0) return st;
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "%s: a mixture of %u experts; architecture %s is supported without",
                       gguf_path(g), n_experts, a->name);
}

inferd_status arch_read_base(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                             inferd_err *err) {
    inferd_status st;
    if ((st = read_shape(a, g, s, err)) || (st = read_norm_eps(a, g, s, err)) ||
        (st = arch_read_rope(a, g, context, s, &s->kinds[0], err)))
        return st;
    s->n_kinds = 1;
    s->pre_norms = true;
    s->embed_scale = s->residual_scale = s->logit_scale = 1.0f;
    s->ffn_norm_name = "ffn_norm";
    s->kinds[0].attn = attn_of(s, 1.0f / sqrtf((float)s->head_dim), 0);
    return a->has_experts ? INFERD_OK : refuse_experts(a, g, err);
}

inferd_status arch_read_experts(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    inferd_status st;
    if ((st = arch_u32(a, g, "expert_count", 1, BE_EXPERTS_MAX, &s->n_experts, err)) ||
        (st = arch_u32(a, g, "expert_used_count", 1, u32_min(s->n_experts, BE_EXPERTS_USED_MAX),
                       &s->n_experts_used, err)))
        return st;
    return arch_u32_or(a, g, "expert_feed_forward_length", 1, DECODER_FFN_MAX, s->ffn_dim,
                       &s->ffn_dim, err);
}

static void set_period(decoder_spec *s, uint32_t period) {
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (period == 0 || (i + 1) % period != 0) s->other_layers[i / 64] |= (uint64_t)1 << i % 64;
}

inferd_status arch_read_pattern(const arch *a, const gguf *g, uint32_t period, decoder_spec *s,
                                inferd_err *err) {
    static const char name[] = "attention.sliding_window_pattern";
    char key[128];
    gguf_array_view all;
    inferd_err no_bools;
    inferd_status st;
    arch_key(a, name, key, sizeof key);
    memset(s->other_layers, 0, sizeof s->other_layers);
    if (!gguf_is_array(g, key)) {
        st = arch_u32_or(a, g, name, 0, DECODER_LAYERS_MAX, period, &period, err);
        if (st == INFERD_OK) set_period(s, period);
        return st;
    }
    if (gguf_array_opt(g, key, GGUF_BOOL, &all, &no_bools) != INFERD_OK &&
        (st = gguf_array_opt(g, key, GGUF_U32, &all, err)) != INFERD_OK)
        return st;
    if (all.n != s->n_layers + s->n_mtp_layers)
        return inferd_fail(err, INFERD_EFORMAT, "%s: %s has %zu elements for %u layers",
                           gguf_path(g), key, all.n, s->n_layers + s->n_mtp_layers);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        int64_t v = gguf_array_int(&all, i);
        if (v != 0 && v != 1)
            return inferd_fail(err, INFERD_EFORMAT, "%s: %s[%u] is %lld, expected 0 or 1",
                               gguf_path(g), key, i, (long long)v);
        s->other_layers[i / 64] |= (uint64_t)v << i % 64;
    }
    return INFERD_OK;
}

inferd_status arch_read_windows(const arch *a, const gguf *g, uint32_t period, decoder_spec *s,
                                inferd_err *err) {
    uint32_t window;
    inferd_status st =
        arch_u32_or(a, g, "attention.sliding_window", 0, DECODER_CONTEXT_MAX, 0, &window, err);
    if (st != INFERD_OK || window == 0) return st;
    s->n_kinds = 2;
    s->kinds[1].attn = s->kinds[0].attn;
    s->kinds[1].attn.window = window;
    return arch_read_pattern(a, g, period, s, err);
}
