/* qwen2.c - Qwen2, Qwen2.5, QwQ and the models distilled into them: the usual block, with biases of
 * q, k and v. */
#include "arch/arch.h"

static inferd_status read_qwen2(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                inferd_err *err) {
    inferd_status st = arch_read_base(a, g, context, s, err);
    s->qkv_bias = true;
    return st;
}

const arch arch_qwen2 = {.name = "qwen2", .rope_base = 10000, .read = read_qwen2};
