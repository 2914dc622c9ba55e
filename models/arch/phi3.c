/* phi3.c - Phi-3, Phi-3.5 and Phi-4: the usual block; q, k and v are one tensor and gate and up
 * another, some rotate a part of a head, some have LongRoPE. */
#include "arch/arch.h"

static inferd_status read_phi3(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                               inferd_err *err) {
    inferd_status st = arch_read_base(a, g, context, s, err);
    if (st != INFERD_OK) return st;
    s->fused_gate_up = true;
    return arch_u32_or(a, g, "attention.sliding_window", 0, DECODER_CONTEXT_MAX, 0,
                       &s->kinds[0].attn.window, err);
}

static const known_key keys[] = {
    {"attention.sliding_window", KNOWN_READ, 0},
};

const arch arch_phi3 = {
    .name = "phi3", .rope_base = 10000, .keys = {keys, INFERD_COUNT(keys)}, .read = read_phi3};
