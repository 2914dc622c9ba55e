/* gemma3.c - Gemma 3 (text): norms before and after each block, five layers with a window and a
 * rotary base of their own to one without.
 *
 * Files hold the weights of norms with their + 1. */
#include <math.h>

#include "arch/arch.h"

/* A file without a window has no such layers. */
static inferd_status read_local(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err) {
    enum { PERIOD = 6 };
    double base;
    inferd_status st = arch_read_windows(a, g, PERIOD, s, err);
    if (st != INFERD_OK || s->n_kinds == 1) return st;
    st = arch_f64_twice(a, g, "rope.freq_base_swa", "rope.local.freq_base", 1.0, 1e12, 10000.0,
                        &base, err);
    if (st != INFERD_OK) return st;
    return arch_plain_rope(a, g, base, s->kinds[0].rope.n_pairs, &s->kinds[1], err);
}

static inferd_status read_gemma3(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                 inferd_err *err) {
    enum { LAYERS_OF_27B = 62 };
    double cap;
    inferd_status st = arch_read_base(a, g, context, s, err);
    if (st != INFERD_OK ||
        (st = arch_f64_or(a, g, "final_logit_softcapping", 0.0, 1e6, 0.0, &cap, err)))
        return st;
    s->softcap = (float)cap;
    s->embed_scale = sqrtf((float)s->dim);
    s->qk_norm = QK_NORM_HEAD;
    s->post_norms = true;
    s->act = ACT_GELU_TANH;
    /* The largest model scales its queries by dim / n_heads, the head length without an explicit
     * one; files have no key for it. */
    if (s->n_layers == LAYERS_OF_27B)
        s->kinds[0].attn.scale = 1.0f / sqrtf((float)(s->dim / s->n_heads));
    return read_local(a, g, s, err);
}

static const known_key keys[] = {
    {"attention.sliding_window", KNOWN_READ, 0},
    {"rope.freq_base_swa", KNOWN_READ, 0},
    {"rope.local.freq_base", KNOWN_READ, 0},
    {"rope.global.freq_base", KNOWN_READ, 0},
    {"final_logit_softcapping", KNOWN_READ, 0},
    {"vision.*", KNOWN_HARMLESS, 0}, // of the image encoder: only text is served
    {"mm.*", KNOWN_HARMLESS, 0},
};

const arch arch_gemma3 = {.name = "gemma3",
                          .other_rope_base = "rope.global.freq_base",
                          .keys = {keys, INFERD_COUNT(keys)},
                          .encoder_tensors = {"v.", "mm."},
                          .read = read_gemma3};
