/* qwen3moe.c - Qwen3 with experts in every layer (30B-A3B, Coder, 235B-A22B). */
#include "arch/arch.h"

static inferd_status read_qwen3moe(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                   inferd_err *err) {
    inferd_status st = arch_read_base(a, g, context, s, err);
    s->qk_norm = QK_NORM_HEAD;
    return st != INFERD_OK ? st : arch_read_experts(a, g, s, err);
}

const arch arch_qwen3moe = {
    .name = "qwen3moe", .has_experts = true, .rope_base = 10000, .read = read_qwen3moe};
