/* olmo2.c - OLMo 2 and 3: blocks are normed after, not before, and q and k over all of their heads;
 * OLMo 3 has windows; in those layers rotary frequencies are not scaled. */
#include "arch/arch.h"

static inferd_status read_olmo2(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                inferd_err *err) {
    enum { PERIOD = 4 };
    double base;
    inferd_status st;
    if ((st = arch_read_base(a, g, context, s, err)) ||
        (st = arch_read_windows(a, g, PERIOD, s, err)))
        return st;
    s->pre_norms = false;
    s->post_norms = true;
    s->qk_norm = QK_NORM_ALL;
    if (s->n_kinds == 1) return INFERD_OK;
    if ((st = arch_rope_base(a, g, &base, err)) ||
        (st = arch_f64_or(a, g, "rope.freq_base_swa", 1.0, 1e12, base, &base, err)))
        return st;
    return arch_plain_rope(a, g, base, s->kinds[0].rope.n_pairs, &s->kinds[1], err);
}

static const known_key keys[] = {
    {"attention.sliding_window", KNOWN_READ, 0},
    {"rope.freq_base_swa", KNOWN_READ, 0},
};

const arch arch_olmo2 = {
    .name = "olmo2", .rope_base = 10000, .keys = {keys, INFERD_COUNT(keys)}, .read = read_olmo2};
