/* llama.c - Llama 2 and 3.x, SmolLM2, Mistral, TinyLlama: the usual block; and Mixtral, with
 * experts.
 *
 * Llama 3.1 scales its rotary frequencies by the tensor rope_freqs. */
#include "arch/arch.h"

static inferd_status read_llama(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                inferd_err *err) {
    uint32_t n_experts;
    inferd_status st;
    if ((st = arch_read_base(a, g, context, s, err)) ||
        // Mistral 7B v0.1: the last 4,096 positions; most files have no such key
        (st = arch_u32_or(a, g, "attention.sliding_window", 0, DECODER_CONTEXT_MAX, 0,
                          &s->kinds[0].attn.window, err)) ||
        (st = arch_u32_or(a, g, "expert_count", 0, BE_EXPERTS_MAX, 0, &n_experts, err)))
        return st;
    return n_experts > 0 ? arch_read_experts(a, g, s, err) : INFERD_OK;
}

static const known_key keys[] = {
    {"attention.sliding_window", KNOWN_READ, 0},
};

const arch arch_llama = {.name = "llama",
                         .rope_interleaved = true,
                         .has_experts = true,
                         .rope_base = 10000,
                         .keys = {keys, INFERD_COUNT(keys)},
                         .read = read_llama};
