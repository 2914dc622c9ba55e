/* decoder.h - one forward pass for decoder-only transformers, driven by a description.
 *
 * A decoder_spec describes a model: its shapes, and what its layers do beside the usual.  Each
 * architecture has a file in arch/ that reads one from the metadata of a model, and weights.c binds
 * the tensors it needs.  A new architecture needs such a file and, rarely, a new field here.
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

/* How layers of one kind attend.  A model has one kind, or two that alternate: with and without a
 * window (Gemma 3, gpt-oss), with and without rotation (SmolLM3). */
enum { DECODER_KINDS_MAX = 2 };
typedef struct attn_kind {
    rope_spec rope;   // n_pairs 0: q and k are not rotated
    float *rope_freq; // owned: rope.inv_freq points to it
    attn_spec attn;
} attn_kind;

/* How rotary frequencies are changed for contexts that are longer than the first training's. */
typedef enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN, ROPE_LONG } rope_scaling;

/* What the rows of q and k are normed over. */
typedef enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_ALL } qk_norm;

typedef struct decoder_spec {
    const char *architecture; // "llama"
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim;
    uint32_t n_mtp_layers; // behind them in the file: they predict further tokens, and are not read
    uint32_t ffn_dim;      // of a dense layer, or of each expert
    uint32_t n_vocab;      // rows of the embedding and of the head
    uint32_t context_trained;
    float norm_eps;
    bool tied; // the head is the embedding

    /* attention */
    attn_kind kinds[DECODER_KINDS_MAX];
    uint32_t n_kinds;
    rope_scaling rope_scaling;                      // of kinds[0]
    uint32_t rope_original;                         // positions of the first training
    uint64_t other_layers[DECODER_LAYERS_MAX / 64]; // a bit for each layer of kinds[1]
    qk_norm qk_norm;                                // Qwen3, Gemma 3: each head; OLMo 2: all of q
    bool qkv_bias, out_bias;                        // such tensors are required
    bool fused_gate_up;                             // one tensor may hold both, gate first
    bool sinks;                                     // gpt-oss

    /* feed-forward */
    act_fn act;                         // of the gate
    uint32_t n_experts, n_experts_used; // 0: every layer is dense
    bool expert_bias;                   // and of the router: required

    /* sums and scales; 1 and 0 for most */
    bool pre_norms;  // the input of a block is normed (not OLMo 2)
    bool post_norms; // its output is normed before it is added (Gemma 3, OLMo 2)
    float embed_scale, residual_scale, logit_scale;
    float softcap;             // of the logits; 0 = none
    const char *ffn_norm_name; // of the tensor; "ffn_norm" for most
} decoder_spec;

static inline const attn_kind *decoder_kind_of(const decoder_spec *s, uint32_t layer_idx) {
    return &s->kinds[s->other_layers[layer_idx / 64] >> layer_idx % 64 & 1];
}

typedef struct decoder_layer {
    vec attn_norm, ffn_norm;           // pre_norms
    vec q_norm, k_norm;                // [head_dim], or [heads * head_dim]
    vec post_attn_norm, post_ffn_norm; // post_norms
    vec sinks;                         // [n_heads]; absent without
    weight wq, wk, wv, wo;
    vec bq, bk, bv, bo;          // data NULL: absent
    weight w_gate, w_up, w_down; // dense
    vec b_gate, b_up, b_down;
    weight w_router; // [n_experts, dim]
    vec b_router;
    expert_weights experts;
} decoder_layer;

typedef struct decoder_weights {
    weight embed;
    weight head; // the same data as embed when tied
    vec norm;
    decoder_layer *layers; // [n_layers] owned
    weight *experts;       // [n_layers][gate, up, down][n_experts] owned
} decoder_weights;

/* Activations of one step, [rows_max, ...], in the scratch of the backend. */
typedef struct decoder_scratch {
    act *x;               // [rows, dim] the residual stream
    act *h;               // [rows, dim] normed, or the output of a block
    act *q, *k, *v, *att; // [rows, heads * head_dim]
    act *gate, *up;       // [rows, ffn_dim]; NULL with experts
    act *router;          // [rows, n_experts]; these three are NULL without
    act *hidden, *parts;  // [rows * n_experts_used, ffn_dim], [rows * n_experts_used, dim]
    act *last, *last_att; // [logits, dim], [logits, heads * head_dim] the rows with logits
    act *logits;          // [logits, n_vocab]
} decoder_scratch;

/* -- arch/ -- */
/* Fill in the spec from the metadata, for a service of `context` positions (0: all that the model
 * was trained for).  An unknown architecture is INFERD_EUNSUPPORTED and lists the known ones.
 * Every number is checked for range here, and a key that would be ignored is refused by its name.
 */
inferd_status decoder_spec_read(const gguf *g, uint32_t context, decoder_spec *out,
                                inferd_err *err);
void decoder_spec_deinit(decoder_spec *s);
/* Its two halves, for tools that tell every problem.  The values: on failure the spec has the
 * architecture, NULL: it is unknown.  The keys of a known one: known_check_next; is_read: the
 * values were read, too. */
inferd_status decoder_spec_values(const gguf *g, uint32_t context, decoder_spec *out,
                                  inferd_err *err);
inferd_status decoder_spec_keys(const gguf *g, const decoder_spec *s, bool is_read, size_t *at,
                                inferd_err *err);
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
