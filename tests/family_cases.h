/* family_cases.h - the families of test_families, and for each the changes that its golden must
 * notice.
 *
 * A change is one of three:
 *
 *     .key     another value of a metadata key, in the file
 *     .tensor  other values in the tensors whose names end so, in the file
 *     .spec    another field of the description that was read
 *
 * The comparison with the golden is then off by more than FLIP_NMSE, which is far from what a
 * correct computation is: so a computation that ignores this key, tensor or field is noticed.
 *
 * `pending`: this build does not load the family. */
#ifndef INFERD_FAMILY_CASES_H
#define INFERD_FAMILY_CASES_H

#include "decoder.h"

typedef enum flip_data {
    FLIP_FILL,   // all elements are `value`
    FLIP_SCALE,  // multiplied by `value`
    FLIP_REVERSE // the last element comes first
} flip_data;

typedef struct family_flip {
    const char *what;
    const char *key; // without "general.architecture."; a number, or element `idx` of an array
    double value;
    uint32_t idx;
    const char *tensor; // "attn_q.bias"
    flip_data data;
    void (*spec)(decoder_spec *s);      // before the model is placed
    void (*spec_late)(decoder_spec *s); // after its tensors were bound
} family_flip;

typedef struct family_case {
    const char *name; // of NAME.golden
    bool pending;
    const family_flip *flips; // ends with an empty one
} family_case;

/* ---- fields of the description ---- */

static inline void flip_rope_pairs(decoder_spec *s) {
    s->kinds[0].rope.interleaved = !s->kinds[0].rope.interleaved;
}

static inline void flip_local_rope_pairs(decoder_spec *s) {
    s->kinds[1].rope.interleaved = !s->kinds[1].rope.interleaved;
}

static inline void flip_attn_scale(decoder_spec *s) {
    s->kinds[0].attn.scale *= 1.05f;
}

static inline void flip_local_attn_scale(decoder_spec *s) {
    s->kinds[1].attn.scale *= 1.05f;
}

static inline void flip_qk_norm(decoder_spec *s) {
    s->qk_norm = s->qk_norm == QK_NORM_NONE ? QK_NORM_HEAD : QK_NORM_NONE;
}

static inline void flip_post_norms(decoder_spec *s) {
    s->post_norms = !s->post_norms;
}

static inline void flip_embed_scale(decoder_spec *s) {
    s->embed_scale = s->embed_scale == 1 ? 1.05f : 1;
}

static inline void flip_act(decoder_spec *s) {
    s->act = s->act == ACT_SILU ? ACT_GELU_TANH : ACT_SILU;
}

static inline void flip_softcap(decoder_spec *s) {
    s->softcap = s->softcap == 0 ? 10 : 0;
}

static inline void flip_attn_softcap(decoder_spec *s) {
    s->kinds[0].attn.softcap = 50;
}

/* One key more or fewer in each window. */
static inline void flip_window_plus(decoder_spec *s) {
    s->kinds[1].attn.window++;
}

static inline void flip_window_minus(decoder_spec *s) {
    s->kinds[1].attn.window--;
}

static inline void flip_window_all(decoder_spec *s) {
    s->kinds[0].attn.window = 64;
}

/* Layer 0 of a family that has windows. */
static inline void flip_layer_0(decoder_spec *s) {
    s->other_layers[0] ^= 1;
}

static inline void flip_last_layer(decoder_spec *s) {
    s->other_layers[(s->n_layers - 1) / 64] ^= (uint64_t)1 << (s->n_layers - 1) % 64;
}

/* The windowed layers with the rotary frequencies of the others. */
static inline void flip_one_rope(decoder_spec *s) {
    memcpy(s->kinds[1].rope_freq, s->kinds[0].rope_freq,
           s->kinds[0].rope.n_pairs * sizeof *s->kinds[0].rope_freq);
}

static inline void flip_rope_scale(decoder_spec *s) {
    s->kinds[0].rope.scale *= 1.05f;
}

/* ---- lists that several families share ---- */

#define FLIPS_BASE                                                                                 \
    {.what = "rotary pairs", .spec = flip_rope_pairs},                                             \
        {.what = "rotary base", .key = "rope.freq_base", .value = 20000},                          \
        {.what = "scale of attention", .spec = flip_attn_scale},                                   \
        {.what = "scale of rotary embedding", .spec = flip_rope_scale},                            \
        {.what = "scale of the embedding", .spec = flip_embed_scale},                              \
        {.what = "activation", .spec = flip_act},                                                  \
        {.what = "a cap of the logits", .spec = flip_softcap},                                     \
        {.what = "a window of all layers", .spec = flip_window_all},                               \
        {.what = "epsilon of norms", .key = "attention.layer_norm_rms_epsilon", .value = 1e-2},    \
        {.what = "attn_norm", .tensor = "attn_norm.weight", .data = FLIP_FILL, .value = 1}, {      \
        .what = "output_norm", .tensor = "output_norm.weight", .data = FLIP_FILL, .value = 1       \
    }

#define FLIPS_FFN_NORM                                                                             \
    { .what = "ffn_norm", .tensor = "ffn_norm.weight", .value = 1 }

#define FLIPS_QK_NORM                                                                              \
    {.what = "norms of q and k", .spec_late = flip_qk_norm},                                       \
        {.what = "q_norm", .tensor = "attn_q_norm.weight", .data = FLIP_FILL, .value = 1}, {       \
        .what = "k_norm", .tensor = "attn_k_norm.weight", .data = FLIP_FILL, .value = 1            \
    }

#define FLIPS_QKV_BIAS                                                                             \
    {.what = "bias of q", .tensor = "attn_q.bias"},                                                \
        {.what = "bias of k", .tensor = "attn_k.bias"}, {                                          \
        .what = "bias of v", .tensor = "attn_v.bias"                                               \
    }

#define FLIPS_EXPERTS                                                                              \
    {.what = "the router", .tensor = "ffn_gate_inp.weight", .data = FLIP_SCALE, .value = 1.05},    \
        {.what = "experts used", .key = "expert_used_count", .value = 1}, {                        \
        .what = "order of experts", .tensor = "ffn_gate_inp.weight", .data = FLIP_REVERSE          \
    }

#define FLIPS_YARN                                                                                 \
    {.what = "factor of yarn", .key = "rope.scaling.factor", .value = 9}, {                        \
        .what = "original context", .key = "rope.scaling.original_context_length", .value = 128    \
    }

static const family_flip flips_llama[] = {FLIPS_BASE, FLIPS_FFN_NORM, {0}};
static const family_flip flips_llama3_rope[] = {
    FLIPS_BASE,
    FLIPS_FFN_NORM,
    {.what = "rope_freqs", .tensor = "rope_freqs.weight", .data = FLIP_FILL, .value = 1},
    {0},
};
static const family_flip flips_llama_bias[] = {
    FLIPS_BASE,
    FLIPS_FFN_NORM,
    FLIPS_QKV_BIAS,
    {.what = "bias of o", .tensor = "attn_output.bias"},
    {.what = "bias of gate", .tensor = "ffn_gate.bias"},
    {.what = "bias of up", .tensor = "ffn_up.bias"},
    {.what = "bias of down", .tensor = "ffn_down.bias"},
    {0},
};
static const family_flip flips_qwen3[] = {FLIPS_BASE, FLIPS_FFN_NORM, FLIPS_QK_NORM, {0}};
static const family_flip flips_gemma3[] = {
    {.what = "rotary pairs", .spec = flip_rope_pairs},
    {.what = "rotary pairs of windows", .spec = flip_local_rope_pairs},
    {.what = "rotary base", .key = "rope.freq_base", .value = 500000},
    {.what = "rotary base of windows", .key = "rope.freq_base_swa", .value = 20000},
    {.what = "one rotary base", .spec = flip_one_rope},
    {.what = "linear factor", .key = "rope.scaling.factor", .value = 4},
    {.what = "scale of attention", .spec = flip_attn_scale},
    {.what = "scale of attention in windows", .spec = flip_local_attn_scale},
    {.what = "scale of the embedding", .spec = flip_embed_scale},
    {.what = "activation", .spec = flip_act},
    {.what = "a cap of the logits", .spec = flip_softcap},
    {.what = "epsilon of norms", .key = "attention.layer_norm_rms_epsilon", .value = 1e-2},
    {.what = "longer windows", .spec = flip_window_plus},
    {.what = "shorter windows", .spec = flip_window_minus},
    {.what = "layer 0 sees all", .spec = flip_layer_0},
    {.what = "the last layer sees all", .spec = flip_last_layer},
    {.what = "norms behind blocks", .spec_late = flip_post_norms},
    {.what = "post_attention_norm", .tensor = "post_attention_norm.weight", .value = 1},
    {.what = "post_ffw_norm", .tensor = "post_ffw_norm.weight", .value = 1},
    {.what = "attn_norm", .tensor = "attn_norm.weight", .value = 1},
    {.what = "output_norm", .tensor = "output_norm.weight", .value = 1},
    FLIPS_FFN_NORM,
    FLIPS_QK_NORM,
    {0},
};
static const family_flip flips_qwen2[] = {FLIPS_BASE, FLIPS_FFN_NORM, FLIPS_QKV_BIAS, {0}};
static const family_flip flips_qwen2_yarn[] = {
    FLIPS_BASE, FLIPS_FFN_NORM, FLIPS_QKV_BIAS, FLIPS_YARN, {0}};
static const family_flip flips_qwen3moe[] = {
    FLIPS_BASE, FLIPS_FFN_NORM, FLIPS_QK_NORM, FLIPS_EXPERTS, {0}};
static const family_flip flips_mixtral[] = {FLIPS_BASE, FLIPS_FFN_NORM, FLIPS_EXPERTS, {0}};
static const family_flip flips_gpt_oss[] = {
    {.what = "rotary pairs", .spec = flip_rope_pairs},
    {.what = "rotary base", .key = "rope.freq_base", .value = 100000},
    {.what = "scale of attention", .spec = flip_attn_scale},
    {.what = "scale of the embedding", .spec = flip_embed_scale},
    {.what = "a cap of the logits", .spec = flip_softcap},
    {.what = "epsilon of norms", .key = "attention.layer_norm_rms_epsilon", .value = 1e-2},
    {.what = "longer windows", .key = "attention.sliding_window", .value = 13},
    {.what = "shorter windows", .key = "attention.sliding_window", .value = 11},
    {.what = "layer 0 sees all", .spec = flip_layer_0},
    {.what = "the last layer has a window", .spec = flip_last_layer},
    {.what = "sinks", .tensor = "attn_sinks.weight", .value = -1e30},
    {.what = "order of sinks", .tensor = "attn_sinks.weight", .data = FLIP_REVERSE},
    {.what = "post_attention_norm", .tensor = "post_attention_norm.weight", .value = 1},
    {.what = "attn_norm", .tensor = "attn_norm.weight", .value = 1},
    {.what = "output_norm", .tensor = "output_norm.weight", .value = 1},
    FLIPS_QKV_BIAS,
    {.what = "bias of o", .tensor = "attn_output.bias"},
    {.what = "bias of the router", .tensor = "ffn_gate_inp.bias"},
    {.what = "bias of gates", .tensor = "ffn_gate_exps.bias"},
    {.what = "bias of ups", .tensor = "ffn_up_exps.bias"},
    {.what = "bias of downs", .tensor = "ffn_down_exps.bias"},
    FLIPS_EXPERTS,
    FLIPS_YARN,
    {.what = "yarn's beta_fast", .key = "rope.scaling.yarn_beta_fast", .value = 16},
    {.what = "yarn's beta_slow", .key = "rope.scaling.yarn_beta_slow", .value = 2},
    {0},
};

static const family_case family_cases[] = {
    {"llama", false, flips_llama},           {"llama3-rope", false, flips_llama3_rope},
    {"llama-bias", false, flips_llama_bias}, {"nemo", false, flips_llama},
    {"qwen3", false, flips_qwen3},           {"gemma3", false, flips_gemma3},
    {"qwen2", false, flips_qwen2},           {"qwen2-yarn", false, flips_qwen2_yarn},
    {"qwen3moe", false, flips_qwen3moe},     {"mixtral", false, flips_mixtral},
    {"gpt-oss", false, flips_gpt_oss},       {"gpt-oss-mxfp4", false, flips_gpt_oss},
};

#endif
