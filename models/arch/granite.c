/* granite.c - Granite 3 and the dense Granite 4: the usual block with four multipliers; and Granite
 * 3 with experts. */
#include "arch/arch.h"

/* Files may say that nothing is rotated (NoPE). */
static inferd_status read_rotation(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    char key[128];
    bool rotated;
    inferd_status st = gguf_bool_or(g, arch_key(a, "rope.scaling.finetuned", key, sizeof key), true,
                                    &rotated, err);
    if (st == INFERD_OK && !rotated) s->kinds[0].rope.n_pairs = 0;
    return st;
}

static inferd_status read_granite(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                  inferd_err *err) {
    double embed, residual, logits, attention;
    inferd_status st;
    if ((st = arch_read_base(a, g, context, s, err)) ||
        (st = arch_f64_or(a, g, "embedding_scale", 0, 1e6, 1, &embed, err)) ||
        (st = arch_f64_or(a, g, "residual_scale", 0, 1e6, 1, &residual, err)) ||
        (st = arch_f64_or(a, g, "logit_scale", 0, 1e6, 1, &logits, err)) ||
        (st = arch_f64_or(a, g, "attention.scale", 0, 1e6, 0, &attention, err)))
        return st;
    if (embed != 0) s->embed_scale = (float)embed; // 0: not set
    if (residual != 0) s->residual_scale = (float)residual;
    if (logits != 0) s->logit_scale = (float)(1.0 / logits);
    if ((float)attention != 0) s->kinds[0].attn.scale = (float)attention;
    if (a->has_experts && (st = arch_read_experts(a, g, s, err))) return st;
    return read_rotation(a, g, s, err);
}

static const known_key keys[] = {
    {"embedding_scale", KNOWN_READ, 0},
    {"residual_scale", KNOWN_READ, 0},
    {"logit_scale", KNOWN_READ, 0},
    {"attention.scale", KNOWN_READ, 0},
    {"rope.scaling.finetuned", KNOWN_READ, 0},
    /* Of Mamba layers: a file that has some has tensors that are refused. */
    {"ssm.*", KNOWN_HARMLESS, 0},
};

const arch arch_granite = {.name = "granite",
                           .rope_interleaved = true,
                           .rope_base = 10000,
                           .keys = {keys, INFERD_COUNT(keys)},
                           .read = read_granite};
const arch arch_granitemoe = {.name = "granitemoe",
                              .rope_interleaved = true,
                              .has_experts = true,
                              .rope_base = 10000,
                              .keys = {keys, INFERD_COUNT(keys)},
                              .read = read_granite};
