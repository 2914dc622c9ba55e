/* gpt_oss.c - gpt-oss: experts with a clamped gate, attention sinks, biases everywhere, windows in
 * every other layer, from the first on.
 *
 * The norm before the experts is called post_attention_norm in its files. */
#include "arch/arch.h"

static inferd_status read_gpt_oss(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                  inferd_err *err) {
    enum { PERIOD = 2 };
    inferd_status st;
    if ((st = arch_read_base(a, g, context, s, err)) || (st = arch_read_experts(a, g, s, err)) ||
        (st = arch_read_windows(a, g, PERIOD, s, err)))
        return st;
    s->qkv_bias = s->out_bias = s->expert_bias = s->sinks = true;
    s->act = ACT_CLAMPED_SWIGLU;
    s->ffn_norm_name = "post_attention_norm";
    if (s->n_kinds == 1)
        return inferd_fail(err, INFERD_EFORMAT, "%s: gpt-oss.attention.sliding_window is missing",
                           gguf_path(g));
    return arch_same_rope(&s->kinds[0], &s->kinds[1], err);
}

static const known_key keys[] = {
    {"attention.sliding_window", KNOWN_READ, 0},
};

const arch arch_gpt_oss = {.name = "gpt-oss",
                           .has_experts = true,
                           .yarn_between_dims = true,
                           .rope_base = 10000,
                           .keys = {keys, INFERD_COUNT(keys)},
                           .read = read_gpt_oss};
