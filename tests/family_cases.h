/* family_cases.h - the families of test_families, and for each the changes that its golden must
 * notice.
 *
 * A change is one of these:
 *
 *     .key     another value of a metadata key, in the file
 *     .tensor  other values in the tensors whose names end so, in the file
 *     .spec    another field of the description that was read
 *     .context another served context
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
    uint32_t context;                   // another served context
    void (*spec)(decoder_spec *s);      // before the model is placed
    void (*spec_late)(decoder_spec *s); // after its tensors were bound
} family_flip;

enum { FAMILY_LISTS_MAX = 10 };
typedef struct family_case {
    const char *name; // of NAME.golden
    bool pending;
    const family_flip *flips[FAMILY_LISTS_MAX]; // lists; each ends with an empty one
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
    s->softcap = s->softcap == 0 ? 1 : 0;
}

static inline void flip_window_all(decoder_spec *s) {
    s->kinds[0].attn.window = 64;
}

/* Of a family with two kinds of layers. */
static inline void flip_layer_0(decoder_spec *s) {
    s->other_layers[0] ^= 1;
}

static inline void flip_last_layer(decoder_spec *s) {
    s->other_layers[(s->n_layers - 1) / 64] ^= (uint64_t)1 << (s->n_layers - 1) % 64;
}

static inline void flip_layer_3(decoder_spec *s) {
    s->other_layers[0] ^= 1 << 3;
}

/* The windowed layers with the rotary frequencies of the others. */
static inline void flip_one_rope(decoder_spec *s) {
    memcpy(s->kinds[1].rope_freq, s->kinds[0].rope_freq,
           s->kinds[0].rope.n_pairs * sizeof *s->kinds[0].rope_freq);
}

static inline void flip_rope_scale(decoder_spec *s) {
    s->kinds[0].rope.scale *= 1.05f;
}

/* One pair fewer is rotated. */
static inline void flip_rope_part(decoder_spec *s) {
    s->kinds[0].rope.n_pairs--;
}

/* ---- lists ---- */

static const family_flip flips_base[] = {
    {.what = "rotary pairs", .spec = flip_rope_pairs},
    {.what = "rotary base", .key = "rope.freq_base", .value = 20000},
    {.what = "scale of attention", .spec = flip_attn_scale},
    {.what = "scale of rotary embedding", .spec = flip_rope_scale},
    {.what = "scale of the embedding", .spec = flip_embed_scale},
    {.what = "a cap of the logits", .spec = flip_softcap},
    {.what = "epsilon of norms", .key = "attention.layer_norm_rms_epsilon", .value = 1e-2},
    {.what = "output_norm", .tensor = "output_norm.weight", .value = 1},
    {0},
};
static const family_flip flips_mlp[] = {{.what = "activation", .spec = flip_act}, {0}};
static const family_flip flips_no_window[] = {
    {.what = "a window of all layers", .spec = flip_window_all}, {0}};
static const family_flip flips_pre_norms[] = {
    {.what = "attn_norm", .tensor = "attn_norm.weight", .value = 1},
    {.what = "ffn_norm", .tensor = "ffn_norm.weight", .value = 1},
    {0},
};
static const family_flip flips_post_norms[] = {
    {.what = "post_attention_norm", .tensor = "post_attention_norm.weight", .value = 1},
    {.what = "post_ffw_norm", .tensor = "post_ffw_norm.weight", .value = 1},
    {0},
};
static const family_flip flips_qk_norm[] = {
    {.what = "q_norm", .tensor = "attn_q_norm.weight", .value = 1},
    {.what = "k_norm", .tensor = "attn_k_norm.weight", .value = 1},
    {.what = "norms of q and k", .spec_late = flip_qk_norm},
    {0},
};
static const family_flip flips_qkv_bias[] = {
    {.what = "bias of q", .tensor = "attn_q.bias"},
    {.what = "bias of k", .tensor = "attn_k.bias"},
    {.what = "bias of v", .tensor = "attn_v.bias"},
    {0},
};
static const family_flip flips_fused_bias[] = {
    {.what = "bias of q, k and v", .tensor = "attn_qkv.bias"}, {0}};
static const family_flip flips_bias[] = {
    {.what = "bias of o", .tensor = "attn_output.bias"},
    {.what = "bias of gate", .tensor = "ffn_gate.bias"},
    {.what = "bias of up", .tensor = "ffn_up.bias"},
    {.what = "bias of down", .tensor = "ffn_down.bias"},
    {0},
};
static const family_flip flips_llama3[] = {
    {.what = "rope_freqs", .tensor = "rope_freqs.weight", .value = 1}, {0}};
static const family_flip flips_experts[] = {
    {.what = "the router", .tensor = "ffn_gate_inp.weight", .data = FLIP_SCALE, .value = 1.05},
    {.what = "experts used", .key = "expert_used_count", .value = 1},
    {.what = "order of experts", .tensor = "ffn_gate_inp.weight", .data = FLIP_REVERSE},
    {0},
};
static const family_flip flips_yarn[] = {
    {.what = "factor of yarn", .key = "rope.scaling.factor", .value = 9},
    {.what = "original context", .key = "rope.scaling.original_context_length", .value = 300},
    {0},
};
static const family_flip flips_yarn_betas[] = {
    {.what = "yarn's beta_fast", .key = "rope.scaling.yarn_beta_fast", .value = 2},
    {.what = "yarn's beta_slow", .key = "rope.scaling.yarn_beta_slow", .value = 0.125},
    {0},
};
static const family_flip flips_windows[] = {
    {.what = "longer windows", .key = "attention.sliding_window", .value = 13},
    {.what = "shorter windows", .key = "attention.sliding_window", .value = 11},
    {0},
};

static const family_flip flips_gemma3[] = {
    {.what = "rotary pairs of windows", .spec = flip_local_rope_pairs},
    {.what = "rotary base of windows", .key = "rope.freq_base_swa", .value = 20000},
    {.what = "one rotary base", .spec = flip_one_rope},
    {.what = "linear factor", .key = "rope.scaling.factor", .value = 4},
    {.what = "scale of attention in windows", .spec = flip_local_attn_scale},
    {.what = "layer 0 sees all", .spec = flip_layer_0},
    {.what = "the last layer sees all", .spec = flip_last_layer},
    {.what = "norms behind blocks", .spec_late = flip_post_norms},
    {0},
};
static const family_flip flips_gpt_oss[] = {
    {.what = "layer 0 sees all", .spec = flip_layer_0},
    {.what = "the last layer has a window", .spec = flip_last_layer},
    {.what = "sinks", .tensor = "attn_sinks.weight", .value = -1e30},
    {.what = "order of sinks", .tensor = "attn_sinks.weight", .data = FLIP_REVERSE},
    {.what = "post_attention_norm", .tensor = "post_attention_norm.weight", .value = 1},
    {.what = "attn_norm", .tensor = "attn_norm.weight", .value = 1},
    {.what = "bias of o", .tensor = "attn_output.bias"},
    {.what = "bias of the router", .tensor = "ffn_gate_inp.bias"},
    {.what = "bias of gates", .tensor = "ffn_gate_exps.bias"},
    {.what = "bias of ups", .tensor = "ffn_up_exps.bias"},
    {.what = "bias of downs", .tensor = "ffn_down_exps.bias"},
    {0},
};
static const family_flip flips_phi4[] = {
    {.what = "a part of each head", .spec = flip_rope_part},
    {.what = "factor of rotary embedding", .key = "rope.scaling.attn_factor", .value = 1.5},
    {.what = "factors of long contexts", .tensor = "rope_factors_long.weight", .value = 1},
    {.what = "order of factors", .tensor = "rope_factors_long.weight", .data = FLIP_REVERSE},
    {0},
};
static const family_flip flips_phi4_short[] = {
    {.what = "factor of rotary embedding", .key = "rope.scaling.attn_factor", .value = 1.5},
    {.what = "factors of short contexts", .tensor = "rope_factors_short.weight", .value = 1},
    {.what = "a longer context", .context = 257},
    {0},
};
static const family_flip flips_ministral3[] = {
    {.what = "yarn's multiplier", .key = "rope.scaling.yarn_log_multiplier", .value = 0.5},
    {.what = "temperature of attention", .key = "attention.temperature_scale", .value = 0.2},
    {0},
};
static const family_flip flips_smollm3[] = {
    {.what = "layer 0 is not rotated", .spec = flip_layer_0},
    {.what = "layer 3 is rotated", .spec = flip_layer_3},
    {0},
};
static const family_flip flips_olmo3[] = {
    {.what = "rotary base of windows", .key = "rope.freq_base_swa", .value = 100000},
    {.what = "layer 0 sees all", .key = "attention.sliding_window_pattern", .value = 0},
    {.what = "layer 3 has a window",
     .key = "attention.sliding_window_pattern",
     .idx = 3,
     .value = 1},
    {0},
};
static const family_flip flips_granite[] = {
    {.what = "key of attention's scale", .key = "attention.scale", .value = 0.25},
    {.what = "scale of blocks", .key = "residual_scale", .value = 0.25},
    {.what = "key of the embedding's scale", .key = "embedding_scale", .value = 10},
    {.what = "divisor of logits", .key = "logit_scale", .value = 9},
    {0},
};

/* ---- families ---- */

#define LLAMA_LISTS flips_base, flips_mlp, flips_no_window, flips_pre_norms
#define GPT_OSS_LISTS                                                                              \
    flips_base, flips_mlp, flips_windows, flips_qkv_bias, flips_experts, flips_yarn,               \
        flips_yarn_betas, flips_gpt_oss

static const family_case family_cases[] = {
    {"llama", false, {LLAMA_LISTS}},
    {"llama3-rope", false, {LLAMA_LISTS, flips_llama3}},
    {"llama-bias", false, {LLAMA_LISTS, flips_qkv_bias, flips_bias}},
    {"nemo", false, {LLAMA_LISTS}},
    {"qwen3", false, {LLAMA_LISTS, flips_qk_norm}},
    {"gemma3",
     false,
     {flips_base, flips_mlp, flips_pre_norms, flips_post_norms, flips_qk_norm, flips_windows,
      flips_gemma3}},
    {"qwen2", false, {LLAMA_LISTS, flips_qkv_bias}},
    {"qwen2-yarn", false, {LLAMA_LISTS, flips_qkv_bias, flips_yarn}},
    {"qwen2-fused", false, {LLAMA_LISTS, flips_fused_bias}},
    {"qwen3moe", false, {LLAMA_LISTS, flips_qk_norm, flips_experts}},
    {"mixtral", false, {LLAMA_LISTS, flips_experts}},
    {"gpt-oss", false, {GPT_OSS_LISTS}},
    {"gpt-oss-mxfp4", false, {GPT_OSS_LISTS}},
    {"phi3", false, {LLAMA_LISTS}},
    {"phi4-mini", false, {LLAMA_LISTS, flips_phi4}},
    {"phi4-mini-short", false, {flips_phi4_short}},
    {"mistral3", false, {LLAMA_LISTS}},
    {"ministral3", false, {LLAMA_LISTS, flips_yarn, flips_yarn_betas, flips_ministral3}},
    {"smollm3", false, {LLAMA_LISTS, flips_smollm3}},
    {"olmo2", false, {flips_base, flips_mlp, flips_no_window, flips_post_norms, flips_qk_norm}},
    {"olmo3",
     false,
     {flips_base, flips_mlp, flips_post_norms, flips_qk_norm, flips_windows, flips_yarn,
      flips_yarn_betas, flips_olmo3}},
    {"granite", false, {LLAMA_LISTS, flips_granite}},
    {"granitemoe", false, {LLAMA_LISTS, flips_granite, flips_experts}},
};

#endif
