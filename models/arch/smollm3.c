/* smollm3.c - SmolLM3: the usual block; every fourth layer does not rotate q and k.  Files have no
 * key for it. */
#include "arch/arch.h"

static inferd_status read_smollm3(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                  inferd_err *err) {
    enum { PERIOD = 4 };
    inferd_status st = arch_read_base(a, g, context, s, err);
    s->n_kinds = 2;
    s->kinds[1].attn = s->kinds[0].attn;
    for (uint32_t i = PERIOD - 1; i < s->n_layers; i += PERIOD)
        s->other_layers[i / 64] |= (uint64_t)1 << i % 64;
    return st;
}

const arch arch_smollm3 = {
    .name = "smollm3", .rope_interleaved = true, .rope_base = 10000, .read = read_smollm3};
