/* decoder.h - one forward pass for decoder-only transformers, driven by a description.
 *
 * A decoder_spec describes a model of a family (shapes, rotary embedding, biases); the reader of
 * each architecture in arch.c fills one in from the file, and weights.c binds the tensors it needs.
 * A new family needs a reader and, rarely, a new branch here.
 *
 * Thread: the spec is read-only after reading; decoder_forward the engine's. */
#ifndef INFERD_DECODER_H
#define INFERD_DECODER_H

#include "gguf/gguf.h"
#include "inferd/batch.h"
#include "kernels/backend.h"

enum {
    DECODER_LAYERS_MAX = 512,
    DECODER_HEADS_MAX = 1024,
    DECODER_HEAD_DIM_MAX = 512, // the bound of attention kernels
    DECODER_DIM_MAX = 65536,
    DECODER_FFN_MAX = 1 << 20,
    DECODER_VOCAB_MAX = 1 << 20,
    DECODER_CONTEXT_MAX = 1 << 24
};

typedef struct decoder_spec {
    const char *architecture; // "llama"
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim;
    uint32_t n_vocab; // rows of the embedding and of the head
    uint32_t context_trained;
    float norm_eps;
    float embed_scale; // of the embedding; 1 for most
    bool tied;         // the head is the embedding
    float *rope_freq;  // [rope.n_pairs] owned: rope.inv_freq points to it
    rope_spec rope;
    attn_spec attn;
    bool qk_norm;    // q and k are normed per head (Qwen3, Gemma 3)
    bool post_norms; // the output of a block is normed before it is added (Gemma 3)
    act_fn act;      // of the gate
    float softcap;   // of the logits; 0 = none
    /* Layers with a sliding window (Gemma 3), a bit each: these have local_rope and local_attn, the
     * others rope and attn. */
    uint64_t local_layers[DECODER_LAYERS_MAX / 64];
    float *local_rope_freq; // owned: local_rope.inv_freq points to it
    rope_spec local_rope;
    attn_spec local_attn;
} decoder_spec;

static inline bool decoder_layer_is_local(const decoder_spec *s, uint32_t layer_idx) {
    return s->local_layers[layer_idx / 64] >> layer_idx % 64 & 1;
}

typedef struct decoder_layer {
    vec attn_norm, ffn_norm;
    vec q_norm, k_norm;                // qk_norm: [head_dim]
    vec post_attn_norm, post_ffn_norm; // post_norms
    weight wq, wk, wv, wo;
    vec bq, bk, bv, bo; // data NULL: absent
    weight w_gate, w_up, w_down;
    vec b_gate, b_up, b_down;
} decoder_layer;

typedef struct decoder_weights {
    weight embed;
    weight head; // the same data as embed when tied
    vec norm;
    decoder_layer *layers; // [n_layers] owned
} decoder_weights;

/* Activations of one step, [rows_max, ...], in the scratch of the backend. */
typedef struct decoder_scratch {
    act *x;               // [rows, dim] the residual stream
    act *h;               // [rows, dim] normed, or the output of a block
    act *q, *k, *v, *att; // [rows, heads * head_dim]
    act *gate, *up;       // [rows, ffn_dim]
    act *last, *last_att; // [logits, dim], [logits, heads * head_dim] the rows with logits
    act *logits;          // [logits, n_vocab]
} decoder_scratch;

/* -- arch.c: the supported families -- */
/* Fill in the spec from the metadata; an unknown architecture is INFERD_EUNSUPPORTED and lists the
 * known ones.  Every number is checked for range here. */
inferd_status decoder_spec_read(const gguf *g, decoder_spec *out, inferd_err *err);
void decoder_spec_deinit(decoder_spec *s);

/* -- arch_keys.c: the keys that the families' files may have -- */
/* Every key of the architecture is honoured by the reader, or has no effect, or is refused by
 * its name.  The spec is complete except for its vocabulary. */
inferd_status decoder_keys_check(const gguf *g, const decoder_spec *s, inferd_err *err);
/* A tensor that is not read, and that no computation needs. */
bool decoder_tensor_is_harmless(const decoder_spec *s, const char *name);

/* -- decoder.c -- */
inferd_status decoder_scratch_open(backend *be, const decoder_spec *s, uint32_t rows_max,
                                   uint32_t logits_max, decoder_scratch *out, inferd_err *err);
void decoder_scratch_close(backend *be, decoder_scratch *t);
/* The needs of its steps, for be_reserve: before decoder_scratch_open. */
void decoder_needs(const decoder_spec *s, uint32_t rows_max, uint32_t logits_max, uint32_t context,
                   const kv_layout *kv, be_needs *out);
/* Record the forward pass of one batch, between be_step_begin and be_step_end. */
void decoder_forward(backend *be, const decoder_spec *s, const decoder_weights *w,
                     decoder_scratch *t, const batch *b);

/* Choose T and G for a model's shape: the largest G that fills 95 % of a page with T = 16, else
 * with T = 32, else the best fill.  INFERD_EUNSUPPORTED when not even one layer's block fits a
 * page. */
inferd_status kv_layout_choose(const backend *be, const decoder_spec *s, kv_type type,
                               kv_layout *out, inferd_err *err);
/* The layout on a GPU, before one is open. */
void kv_layout_guess(const decoder_spec *s, kv_layout *out);

#endif
