/* arch_keys.c - the keys and tensors that the files of each family may have: those that are
 * honoured, that change nothing, or that must have the value which is computed anyway.
 *
 * The names are those that converters write: that of llama.cpp, which made most files, and other
 * known ones.  A key that is in no table is refused by its name (gguf/known.h): a new
 * one is added here when it is honoured, or when it is known to change nothing. */
#include <string.h>

#include "decoder.h"
#include "gguf/known.h"

/* Of all families; arch.c reads those that are honoured. */
static const known_key all_keys[] = {
    {"block_count", KNOWN_READ, 0},
    {"context_length", KNOWN_READ, 0},
    {"embedding_length", KNOWN_READ, 0},
    {"feed_forward_length", KNOWN_READ, 0},
    {"attention.head_count", KNOWN_READ, 0},
    {"attention.head_count_kv", KNOWN_READ, 0},
    {"attention.key_length", KNOWN_READ, 0},
    {"attention.value_length", KNOWN_READ, 0},
    {"attention.layer_norm_rms_epsilon", KNOWN_READ, 0},
    {"rope.dimension_count", KNOWN_READ, 0},
    {"rope.freq_base", KNOWN_READ, 0},
    {"rope.scaling.type", KNOWN_READ, 0}, // yarn and longrope are refused there
    {"rope.scaling.factor", KNOWN_READ, 0},
    {"rope.scale_linear", KNOWN_READ, 0},
    {"expert_count", KNOWN_READ, 0},

    {"vocab_size", KNOWN_HARMLESS, 0},                   // the embedding has so many rows
    {"attention.layer_norm_epsilon", KNOWN_HARMLESS, 0}, // of a norm that no family here has
    {"rope.scaling.original_context_length", KNOWN_HARMLESS, 0}, // only yarn and longrope use it,
    {"rope.scaling.yarn_beta_fast", KNOWN_HARMLESS, 0},          // and these two
    {"rope.scaling.yarn_beta_slow", KNOWN_HARMLESS, 0},
    {"rope.scaling.finetuned", KNOWN_HARMLESS, 0}, // about the model's training
    {"tensor_data_layout", KNOWN_HARMLESS, 0},     // about the model's origin
    {"pooling_type", KNOWN_HARMLESS, 0},           // of embeddings, which are not served

    {"attention.causal", KNOWN_IS, 1},
    {"attention.clamp_kqv", KNOWN_IS, 0},
    {"attention.max_alibi_bias", KNOWN_IS, 0},
    {"attention.temperature_length", KNOWN_IS, 0},
    {"attention.temperature_scale", KNOWN_IS, 0},
    {"attention.shared_kv_layers", KNOWN_IS, 0},
    {"attn_logit_softcapping", KNOWN_IS, 0},
    {"final_logit_softcapping", KNOWN_IS, 0}, // gemma3 reads it
    {"use_parallel_residual", KNOWN_IS, 0},
    {"logit_scale", KNOWN_IS_OR_0, 1},
    {"residual_scale", KNOWN_IS_OR_0, 1},
    {"rope.scaling.attn_factor", KNOWN_IS, 1},
    {"rope.scaling.alpha", KNOWN_IS, 0},
    {"rope.scaling.yarn_attn_factor", KNOWN_IS_OR_0, 1},
    {"rope.scaling.yarn_ext_factor", KNOWN_IS, 0},
    {"rope.scaling.yarn_log_multiplier", KNOWN_IS, 0},
    {"rope.dimension_sections", KNOWN_EMPTY, 0},
    {"attention.sliding_window", KNOWN_IS, 0}, // llama and gemma3 read it
    {"attention.sliding_window_pattern", KNOWN_READ, 0},
    {"leading_dense_block_count", KNOWN_IS, 0},
    {"expert_used_count", KNOWN_HARMLESS, 0}, // of expert_count, which is 0
    {"expert_shared_count", KNOWN_IS, 0},
    {"expert_group_count", KNOWN_HARMLESS, 0},
    {"expert_group_used_count", KNOWN_HARMLESS, 0},
    {"expert_gating_func", KNOWN_HARMLESS, 0},
    {"expert_weights_norm", KNOWN_HARMLESS, 0},
    {"expert_weights_scale", KNOWN_HARMLESS, 0},
    {"nextn_predict_layers", KNOWN_IS, 0},
};

static const known_key llama_keys[] = {
    {"attention.sliding_window", KNOWN_READ, 0},
};

static const known_key gemma3_keys[] = {
    {"attention.sliding_window", KNOWN_READ, 0},
    {"rope.freq_base_swa", KNOWN_READ, 0},
    {"rope.local.freq_base", KNOWN_READ, 0},
    {"rope.global.freq_base", KNOWN_READ, 0},
    {"final_logit_softcapping", KNOWN_READ, 0},
    {"vision.*", KNOWN_HARMLESS, 0}, // of the image encoder: only text is served
    {"mm.*", KNOWN_HARMLESS, 0},
};

static const struct {
    const char *name;
    known_table keys;
    const char *encoder_tensors[2]; // beginnings of names; see vision.*
} families[] = {
    {"llama", {llama_keys, INFERD_COUNT(llama_keys)}, {NULL, NULL}},
    {"qwen3", {NULL, 0}, {NULL, NULL}},
    {"gemma3", {gemma3_keys, INFERD_COUNT(gemma3_keys)}, {"v.", "mm."}},
};

static size_t family_of(const decoder_spec *s) {
    for (size_t i = 0; i < INFERD_COUNT(families); i++)
        if (strcmp(families[i].name, s->architecture) == 0) return i;
    INFERD_CHECK(!"a family that arch.c reads");
    return 0;
}

inferd_status decoder_keys_check(const gguf *g, const decoder_spec *s, inferd_err *err) {
    const known_key computed[] = {
        // the required value differs between models
        {"attention.scale", KNOWN_IS_OR_0, (double)s->attn.scale},
        {"embedding_scale", KNOWN_IS_OR_0, (double)s->embed_scale},
        {"embedding_length_out", KNOWN_IS_OR_0, s->dim},
        {"attention.head_dim", KNOWN_IS, s->head_dim},
        {"attention.key_length_swa", KNOWN_IS, s->head_dim},
        {"attention.value_length_swa", KNOWN_IS, s->head_dim},
        {"rope.dimension_count_swa", KNOWN_IS, s->head_dim},
    };
    const known_table tables[] = {
        families[family_of(s)].keys,
        {computed, INFERD_COUNT(computed)},
        {all_keys, INFERD_COUNT(all_keys)},
    };
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.", s->architecture);
    return known_check(g, prefix, tables, INFERD_COUNT(tables), err);
}

bool decoder_tensor_is_harmless(const decoder_spec *s, const char *name) {
    static const char rotary[] = ".attn_rot_embd.weight"; // the usual frequencies once more
    size_t family = family_of(s), n = strlen(name);
    for (size_t i = 0; i < INFERD_COUNT(families[family].encoder_tensors); i++) {
        const char *begin = families[family].encoder_tensors[i];
        if (begin != NULL && strncmp(name, begin, strlen(begin)) == 0) return true;
    }
    return n >= sizeof rotary && strcmp(name + n - (sizeof rotary - 1), rotary) == 0;
}
