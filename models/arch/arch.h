/* arch.h - architectures: each is a file of this folder that has its name, the keys its files may
 * have, and a function that reads them into a decoder_spec.
 *
 * Keys: docs of GGUF and models' own files; A stands for the architecture's name.  A reader checks
 * every number before it is multiplied, and refuses unknown values instead of guessing.
 *
 * Thread: any. */
#ifndef INFERD_ARCH_H
#define INFERD_ARCH_H

#include "decoder.h"
#include "gguf/known.h"

typedef struct arch {
    const char *name;
    bool rope_interleaved;          // pairs (2i, 2i+1): the order of q and k in this family's files
    bool yarn_between_dims;         // YaRN's ramp begins and ends between dimensions
    bool has_experts;               // files may have them; else they are refused
    double rope_base;               // of files without the key; 0: it is required
    const char *other_rope_base;    // another converter's name of rope.freq_base; NULL: none
    known_table keys;               // beside those of all (keys.c)
    const char *encoder_tensors[2]; // beginnings of names of what is not served: images, sounds
    inferd_status (*read)(const struct arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                          inferd_err *err);
} arch;

extern const arch arch_llama, arch_qwen2, arch_qwen3, arch_qwen3moe, arch_gemma3, arch_gpt_oss,
    arch_phi3, arch_mistral3, arch_smollm3, arch_olmo2, arch_granite, arch_granitemoe;

/* ---- read.c: numbers and shapes ---- */

/* "A.key" into out. */
const char *arch_key(const arch *a, const char *key, char *out, size_t n);
inferd_status arch_u32(const arch *a, const gguf *g, const char *name, uint32_t min, uint32_t max,
                       uint32_t *out, inferd_err *err);
inferd_status arch_u32_or(const arch *a, const gguf *g, const char *name, uint32_t min,
                          uint32_t max, uint32_t fallback, uint32_t *out, inferd_err *err);
/* A number of all blocks: one, or an array that has the same for each of n_blocks.  Without the key
 * *out stays; 0: the key is required. */
inferd_status arch_u32_each(const arch *a, const gguf *g, const char *name, uint32_t max,
                            uint32_t n_blocks, uint32_t *out, inferd_err *err);
inferd_status arch_f64_or(const arch *a, const gguf *g, const char *name, double min, double max,
                          double fallback, double *out, inferd_err *err);
/* A number with two names, A.name and A.other (NULL: none), the second from another converter.  A
 * file may have both, and then they must agree, because one of them would be ignored. */
inferd_status arch_f64_twice(const arch *a, const gguf *g, const char *name, const char *other,
                             double min, double max, double fallback, double *out, inferd_err *err);
/* What all architectures have: shapes, eps, rotary embedding, experts; the usual block, in which
 * all layers attend in the same way.  `context`: the positions that will be served; 0: all. */
inferd_status arch_read_base(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                             inferd_err *err);
/* The mixture that every layer has instead of one feed-forward network. */
inferd_status arch_read_experts(const arch *a, const gguf *g, decoder_spec *s, inferd_err *err);
/* The layers of kind 1: a period (layer i is one unless (i + 1) is a multiple of it; 0: all are),
 * or a bool for each; `period` of files without the key. */
inferd_status arch_read_pattern(const arch *a, const gguf *g, uint32_t period, decoder_spec *s,
                                inferd_err *err);

/* Layers of kind 1 have the window of A.attention.sliding_window, or it is absent or 0 and there
 * are none.  The caller sets the rotary embedding of kinds[1]. */
inferd_status arch_read_windows(const arch *a, const gguf *g, uint32_t period, decoder_spec *s,
                                inferd_err *err);

/* ---- rope.c ---- */

/* The rotary embedding of a kind of layers by the keys A.rope.*, and the tensors with factors. */
inferd_status arch_read_rope(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                             attn_kind *out, inferd_err *err);
/* The same dimensions, with frequencies of their own that are not scaled. */
inferd_status arch_plain_rope(const arch *a, const gguf *g, double base, uint32_t n_pairs,
                              attn_kind *out, inferd_err *err);
/* A copy. */
inferd_status arch_same_rope(const attn_kind *from, attn_kind *out, inferd_err *err);
/* rope.freq_base */
inferd_status arch_rope_base(const arch *a, const gguf *g, double *out, inferd_err *err);

/* ---- keys.c ---- */

/* Every key of the architecture is honoured by its reader, or has no effect, or is refused by its
 * name.  The spec is complete except for its vocabulary; or not is_read: then only names that no
 * table has are refused.  From key *at on, as in known_check_next. */
inferd_status arch_check_keys(const arch *a, const gguf *g, const decoder_spec *s, bool is_read,
                              size_t *at, inferd_err *err);

#endif
