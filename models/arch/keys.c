/* keys.c - the keys that files may have: those that are honoured, that change nothing, or that must
 * have the value which is computed anyway.
 *
 * The names are those that converters write: that of llama.cpp, which made most files, and other
 * known ones.  A key that is in no table is refused by its name (gguf/known.h): a new one is added
 * here, or in the file of an architecture, when it is honoured or known to change nothing. */

#include "arch/arch.h"

/* Of all architectures; read.c and rope.c read those that are honoured. */
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
    {"rope.scaling.type", KNOWN_READ, 0},
    {"rope.scaling.factor", KNOWN_READ, 0},
    {"rope.scale_linear", KNOWN_READ, 0},
    {"expert_count", KNOWN_READ, 0},

    {"vocab_size", KNOWN_HARMLESS, 0},                   // the embedding has so many rows
    {"attention.layer_norm_epsilon", KNOWN_HARMLESS, 0}, // of a norm that no family here has
    {"rope.scaling.finetuned", KNOWN_HARMLESS, 0},       // about the model's training
    {"tensor_data_layout", KNOWN_HARMLESS, 0},           // about the model's origin
    {"pooling_type", KNOWN_HARMLESS, 0},                 // of embeddings, which are not served

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
    {"rope.scaling.alpha", KNOWN_IS, 0},
    {"rope.dimension_sections", KNOWN_EMPTY, 0},
    {"attention.sliding_window", KNOWN_IS, 0}, // llama and gemma3 read it
    {"attention.sliding_window_pattern", KNOWN_READ, 0},
    {"leading_dense_block_count", KNOWN_IS, 0},
    {"nextn_predict_layers", KNOWN_READ, 0},
};

/* Of rotary embeddings that are scaled in none of the two ways below. */
static const known_key usual_rope_keys[] = {
    {"rope.scaling.original_context_length", KNOWN_HARMLESS, 0},
    {"rope.scaling.yarn_beta_fast", KNOWN_HARMLESS, 0},
    {"rope.scaling.yarn_beta_slow", KNOWN_HARMLESS, 0},
    {"rope.scaling.attn_factor", KNOWN_IS, 1},
    {"rope.scaling.yarn_attn_factor", KNOWN_IS_OR_0, 1},
    {"rope.scaling.yarn_ext_factor", KNOWN_IS, 0},
    {"rope.scaling.yarn_log_multiplier", KNOWN_IS, 0},
};
static const known_key yarn_keys[] = {
    {"rope.scaling.original_context_length", KNOWN_READ, 0},
    {"rope.scaling.yarn_beta_fast", KNOWN_READ, 0},
    {"rope.scaling.yarn_beta_slow", KNOWN_READ, 0},
    {"rope.scaling.attn_factor", KNOWN_READ, 0},
    {"rope.scaling.yarn_attn_factor", KNOWN_READ, 0},
    {"rope.scaling.yarn_ext_factor", KNOWN_IS, 1},
    {"rope.scaling.yarn_log_multiplier", KNOWN_READ, 0},
};
static const known_key long_rope_keys[] = {
    {"rope.scaling.factor", KNOWN_IS_OR_0, 1}, // its two tensors are all that divides
    {"rope.scale_linear", KNOWN_IS_OR_0, 1},
    {"rope.scaling.original_context_length", KNOWN_READ, 0},
    {"rope.scaling.attn_factor", KNOWN_READ, 0},
};

static const known_key dense_keys[] = {
    {"expert_used_count", KNOWN_HARMLESS, 0}, // of expert_count, which is 0
    {"expert_feed_forward_length", KNOWN_HARMLESS, 0},
    {"expert_group_count", KNOWN_HARMLESS, 0},
    {"expert_group_used_count", KNOWN_HARMLESS, 0},
    {"expert_gating_func", KNOWN_HARMLESS, 0},
    {"expert_weights_norm", KNOWN_HARMLESS, 0},
    {"expert_weights_scale", KNOWN_HARMLESS, 0},
    {"expert_shared_feed_forward_length", KNOWN_HARMLESS, 0}, // dense Granite 4 has this one
    {"expert_shared_count", KNOWN_IS, 0},
};
/* As be_experts computes them: a softmax; the chosen elements are divided by their sum. */
static const known_key expert_keys[] = {
    {"expert_used_count", KNOWN_READ, 0},
    {"expert_feed_forward_length", KNOWN_READ, 0},
    {"expert_group_count", KNOWN_IS_OR_0, 1},
    {"expert_group_used_count", KNOWN_IS_OR_0, 1},
    {"expert_gating_func", KNOWN_IS_OR_0, 1},
    {"expert_weights_norm", KNOWN_IS, 1},
    {"expert_weights_scale", KNOWN_IS_OR_0, 1},
    {"expert_shared_count", KNOWN_IS, 0},
    {"expert_shared_feed_forward_length", KNOWN_IS, 0}, // Qwen3-Coder says 0
};

#define TABLE(keys) ((known_table){keys, INFERD_COUNT(keys)})

static known_table rope_table(const decoder_spec *s) {
    return s->rope_scaling == ROPE_YARN   ? TABLE(yarn_keys)
           : s->rope_scaling == ROPE_LONG ? TABLE(long_rope_keys)
                                          : TABLE(usual_rope_keys);
}

/* Every table there is: the spec was not read, so that it is not known which of them count. */
static inferd_status check_names(const arch *a, const gguf *g, const char *prefix, size_t *at,
                                 inferd_err *err) {
    static const known_key computed[] = {
        {"attention.scale", KNOWN_READ, 0},          {"embedding_scale", KNOWN_READ, 0},
        {"embedding_length_out", KNOWN_READ, 0},     {"attention.head_dim", KNOWN_READ, 0},
        {"attention.key_length_swa", KNOWN_READ, 0}, {"attention.value_length_swa", KNOWN_READ, 0},
        {"rope.dimension_count_swa", KNOWN_READ, 0},
    };
    const known_table tables[] = {
        a->keys,           TABLE(computed),       TABLE(usual_rope_keys), TABLE(yarn_keys),
        TABLE(dense_keys), TABLE(long_rope_keys), TABLE(expert_keys),     TABLE(all_keys),
    };
    return known_check_next(g, prefix, tables, INFERD_COUNT(tables), true, at, err);
}

inferd_status arch_check_keys(const arch *a, const gguf *g, const decoder_spec *s, bool is_read,
                              size_t *at, inferd_err *err) {
    const known_key computed[] = {
        // the required value differs between models
        {"attention.scale", KNOWN_IS_OR_0, (double)s->kinds[0].attn.scale},
        {"embedding_scale", KNOWN_IS_OR_0, (double)s->embed_scale},
        {"embedding_length_out", KNOWN_IS_OR_0, s->dim},
        {"attention.head_dim", KNOWN_IS, s->head_dim},
        {"attention.key_length_swa", KNOWN_IS, s->head_dim},
        {"attention.value_length_swa", KNOWN_IS, s->head_dim},
        {"rope.dimension_count_swa", KNOWN_IS, s->kinds[0].rope.n_pairs * 2},
    };
    const known_table tables[] = {
        a->keys,         TABLE(computed),
        rope_table(s),   s->n_experts > 0 ? TABLE(expert_keys) : TABLE(dense_keys),
        TABLE(all_keys),
    };
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.", a->name);
    if (!is_read) return check_names(a, g, prefix, at, err);
    return known_check_next(g, prefix, tables, INFERD_COUNT(tables), false, at, err);
}
