/* qwen3.c - Qwen3: the usual block; each head of q and k is normed. */
#include "arch/arch.h"

static inferd_status read_qwen3(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                inferd_err *err) {
    inferd_status st = arch_read_base(a, g, context, s, err);
    s->qk_norm = QK_NORM_HEAD;
    return st;
}

const arch arch_qwen3 = {.name = "qwen3", .rope_base = 10000, .read = read_qwen3};
