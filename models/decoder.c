/* decoder.c - the forward pass.
 *
 *     x = embed(token)
 *     each layer:  x += mixer(x)
 *                  x += feed_forward(x)
 *     logits = head(rmsnorm(x)), for the rows with logits
 *
 *     mixer(x)         = Wo attend(rope(Wq a), rope(Wk a), Wv a)       a = rmsnorm(x)
 *     feed_forward(x)  = Wd fn(Wg m, Wu m)                             m = rmsnorm(x)
 *                      or, with experts, the weighted sum of such over those that Wr m chooses
 *
 * Beside norms before a block, or instead of them, a model may norm what it adds (post_norms).
 *
 * In the last layer the other rows need only their keys and values: their x is not used any more.
 * So when some rows have no logits, the rows with logits are gathered after its attention, and
 * the rest of the layer is computed for them alone: of a prompt that is one row, or none. */
#include "decoder.h"

#include <string.h>

/* h = the input of a block: x, normed if the model norms before its blocks. */
static const act *normed(backend *be, const decoder_spec *s, decoder_scratch *t, const act *x,
                         const vec *norm, uint32_t n) {
    if (s->pre_norms)
        be_rmsnorm(be, t->h, x, norm, n, s->norm_eps);
    else
        be_scale(be, t->h, x, n, s->dim, 1.0f);
    return t->h;
}

/* x += h, the output of a block */
static void add(backend *be, const decoder_spec *s, decoder_scratch *t, act *x,
                const vec *post_norm, uint32_t n) {
    if (s->post_norms) be_rmsnorm(be, t->h, t->h, post_norm, n, s->norm_eps);
    if (s->residual_scale != 1.0f) be_scale(be, t->h, t->h, n, s->dim, s->residual_scale);
    be_add(be, x, t->h, n, s->dim);
}

static void norm_q_and_k(backend *be, const decoder_spec *s, const decoder_layer *w,
                         decoder_scratch *t, uint32_t n) {
    switch (s->qk_norm) {
    case QK_NORM_NONE:
        break;
    case QK_NORM_HEAD:
        be_head_norm(be, t->q, &w->q_norm, n, s->n_heads, s->head_dim, s->norm_eps);
        be_head_norm(be, t->k, &w->k_norm, n, s->n_kv_heads, s->head_dim, s->norm_eps);
        break;
    case QK_NORM_ALL:
        be_rmsnorm(be, t->q, t->q, &w->q_norm, n, s->norm_eps);
        be_rmsnorm(be, t->k, t->k, &w->k_norm, n, s->norm_eps);
        break;
    }
}

/* att = attend(...) of layer layer_idx: the mixer up to Wo */
static void attend(backend *be, const decoder_spec *s, const decoder_layer *w, decoder_scratch *t,
                   uint32_t layer_idx, uint32_t n) {
    const attn_kind *kind = decoder_kind_of(s, layer_idx);
    const act *a = normed(be, s, t, t->x, &w->attn_norm, n);
    be_matmul(be, t->q, a, &w->wq, &w->bq, n);
    be_matmul(be, t->k, a, &w->wk, &w->bk, n);
    be_matmul(be, t->v, a, &w->wv, &w->bv, n);
    norm_q_and_k(be, s, w, t, n);
    be_rope(be, t->q, t->k, &kind->rope, s->n_heads, s->n_kv_heads, s->head_dim);
    be_attention(be, t->att, t->q, t->k, t->v, layer_idx, &kind->attn, &w->sinks);
}

/* x += Wo att: the rest of the mixer */
static void add_attention(backend *be, const decoder_spec *s, const decoder_layer *w,
                          decoder_scratch *t, act *x, const act *att, uint32_t n) {
    be_matmul(be, t->h, att, &w->wo, &w->bo, n);
    add(be, s, t, x, &w->post_attn_norm, n);
}

/* h = Wd fn(Wg m, Wu m) */
static void mlp(backend *be, const decoder_spec *s, const decoder_layer *w, decoder_scratch *t,
                const act *m, uint32_t n) {
    be_matmul(be, t->gate, m, &w->w_gate, &w->b_gate, n);
    be_matmul(be, t->up, m, &w->w_up, &w->b_up, n);
    be_glu(be, s->act, t->gate, t->gate, t->up, n, s->ffn_dim);
    be_matmul(be, t->h, t->gate, &w->w_down, &w->b_down, n);
}

/* h = sum over the chosen experts e of p_e mlp_e(m), chosen by Wr m */
static void mixture(backend *be, const decoder_layer *w, decoder_scratch *t, const act *m,
                    uint32_t n) {
    be_matmul(be, t->router, m, &w->w_router, &w->b_router, n);
    be_experts(be, t->h, m, t->router, &w->experts, t->hidden, t->parts, n);
}

static void add_feed_forward(backend *be, const decoder_spec *s, const decoder_layer *w,
                             decoder_scratch *t, act *x, uint32_t n) {
    const act *m = normed(be, s, t, x, &w->ffn_norm, n);
    if (s->n_experts > 0)
        mixture(be, w, t, m, n);
    else
        mlp(be, s, w, t, m, n);
    add(be, s, t, x, &w->post_ffn_norm, n);
}

static void read_out(backend *be, const decoder_spec *s, const decoder_weights *w,
                     decoder_scratch *t, uint32_t n) {
    be_rmsnorm(be, t->h, t->last, &w->norm, n, s->norm_eps);
    be_matmul(be, t->logits, t->h, &w->head, NULL, n);
    if (s->logit_scale != 1.0f) be_scale(be, t->logits, t->logits, n, s->n_vocab, s->logit_scale);
    if (s->softcap != 0) be_softcap(be, t->logits, n, s->n_vocab, s->softcap);
}

void decoder_forward(backend *be, const decoder_spec *s, const decoder_weights *w,
                     decoder_scratch *t, const batch *b) {
    const uint32_t last = s->n_layers - 1;
    const bool all_asked = b->n_logits == b->n_rows;
    be_embed(be, t->x, &w->embed, s->embed_scale);
    for (uint32_t i = 0; i < last + all_asked; i++) {
        attend(be, s, &w->layers[i], t, i, b->n_rows);
        add_attention(be, s, &w->layers[i], t, t->x, t->att, b->n_rows);
        add_feed_forward(be, s, &w->layers[i], t, t->x, b->n_rows);
    }
    if (!all_asked) attend(be, s, &w->layers[last], t, last, b->n_rows);
    if (b->n_logits == 0) return;
    be_take_logit_rows(be, t->last, t->x, s->dim);
    if (!all_asked) {
        be_take_logit_rows(be, t->last_att, t->att, s->n_heads * s->head_dim);
        add_attention(be, s, &w->layers[last], t, t->last, t->last_att, b->n_logits);
        add_feed_forward(be, s, &w->layers[last], t, t->last, b->n_logits);
    }
    read_out(be, s, w, t, b->n_logits);
}

/* ---- activations ---- */

enum { SCRATCH_ACTS = 14 };

/* In the order of decoder_scratch; rows 0: not used. */
static void list_acts(const decoder_spec *s, uint32_t rows_max, uint32_t logits_max,
                      be_act_shape out[SCRATCH_ACTS]) {
    uint32_t q_dim = s->n_heads * s->head_dim, kv_dim = s->n_kv_heads * s->head_dim;
    uint32_t either_max = u32_max(rows_max, logits_max);
    uint32_t dense = s->n_experts == 0 ? either_max : 0, routed = either_max - dense;
    uint32_t slots = routed * s->n_experts_used;
    const be_act_shape all[SCRATCH_ACTS] = {
        {ACT_STREAM, rows_max, s->dim},     {ACT_INNER, either_max, s->dim},
        {ACT_INNER, rows_max, q_dim},       {ACT_INNER, rows_max, kv_dim},
        {ACT_INNER, rows_max, kv_dim},      {ACT_INNER, rows_max, q_dim},
        {ACT_INNER, dense, s->ffn_dim},     {ACT_INNER, dense, s->ffn_dim},
        {ACT_STREAM, routed, s->n_experts}, {ACT_INNER, slots, s->ffn_dim},
        {ACT_STREAM, slots, s->dim},        {ACT_STREAM, logits_max, s->dim},
        {ACT_INNER, logits_max, q_dim},     {ACT_LOGITS, logits_max, s->n_vocab},
    };
    memcpy(out, all, sizeof all);
}

static void list_slots(decoder_scratch *t, act **out[SCRATCH_ACTS]) {
    act **const all[SCRATCH_ACTS] = {&t->x,     &t->h,    &t->q,        &t->k,      &t->v,
                                     &t->att,   &t->gate, &t->up,       &t->router, &t->hidden,
                                     &t->parts, &t->last, &t->last_att, &t->logits};
    memcpy(out, all, sizeof all);
}

inferd_status decoder_scratch_open(backend *be, const decoder_spec *s, uint32_t rows_max,
                                   uint32_t logits_max, decoder_scratch *out, inferd_err *err) {
    *out = (decoder_scratch){0};
    act **slots[SCRATCH_ACTS];
    be_act_shape shapes[SCRATCH_ACTS];
    inferd_status st = INFERD_OK;
    list_slots(out, slots);
    list_acts(s, rows_max, logits_max, shapes);
    be_scratch_begin(be);
    for (size_t i = 0; i < SCRATCH_ACTS && st == INFERD_OK; i++) {
        if (shapes[i].rows == 0) continue;
        *slots[i] = be_act_open(be, shapes[i].kind, shapes[i].rows, shapes[i].dim);
        if (*slots[i] == NULL)
            st = inferd_fail(err, INFERD_ENOMEM, "no memory for activations of %u x %u floats",
                             shapes[i].rows, shapes[i].dim);
    }
    be_scratch_end(be);
    if (st != INFERD_OK) decoder_scratch_close(be, out);
    return st;
}

void decoder_scratch_close(backend *be, decoder_scratch *t) {
    act **slots[SCRATCH_ACTS];
    list_slots(t, slots);
    for (size_t i = 0; i < SCRATCH_ACTS; i++) be_act_close(be, *slots[i]);
    *t = (decoder_scratch){0};
}

void decoder_needs(const decoder_spec *s, uint32_t rows_max, uint32_t logits_max, uint32_t context,
                   const kv_layout *kv, be_needs *out) {
    be_act_shape all[SCRATCH_ACTS];
    *out = (be_needs){.rows_max = rows_max,
                      .logits_max = logits_max,
                      .context = context,
                      .n_vocab = s->n_vocab,
                      .n_heads = s->n_heads,
                      .n_kv_heads = s->n_kv_heads,
                      .head_dim = s->head_dim,
                      .n_experts = s->n_experts,
                      .n_experts_used = s->n_experts_used,
                      .kv = *kv};
    list_acts(s, rows_max, logits_max, all);
    for (size_t i = 0; i < SCRATCH_ACTS; i++)
        if (all[i].rows > 0) out->acts[out->n_acts++] = all[i];
    for (uint32_t i = 0; i < s->n_kinds; i++)
        if (s->kinds[i].rope.n_pairs > 0) out->ropes[out->n_ropes++] = s->kinds[i].rope;
}

/* ---- keys and values ---- */

/* The groups of layers that fill a page best, for blocks of so many tokens; true: full enough to
 * end the search. */
static bool group_layers(const decoder_spec *s, kv_type type, uint32_t block_tokens, size_t layer,
                         size_t page, size_t *best_used, kv_layout *best) {
    for (uint32_t g = s->n_layers; g >= 1; g--) {
        if (s->n_layers % g != 0 || (size_t)g * layer > page) continue;
        size_t slot = (size_t)g * layer, used = page / slot * slot;
        if (used <= *best_used) continue;
        *best_used = used;
        *best = (kv_layout){
            .type = type,
            .n_layers = s->n_layers,
            .n_kv_heads = s->n_kv_heads,
            .head_dim = s->head_dim,
            .block_tokens = block_tokens,
            .group_layers = g,
            .n_groups = s->n_layers / g,
            .slots_per_page = (uint32_t)(page / slot),
            .layer_bytes = layer,
            .slot_bytes = slot,
        };
        if (used * 100 >= page * 95) return true;
    }
    return false;
}

static const uint32_t kv_block_tokens[] = {16, 32};

inferd_status kv_layout_choose(const backend *be, const decoder_spec *s, kv_type type,
                               kv_layout *out, inferd_err *err) {
    size_t page = be_page_bytes(be), best_used = 0;
    if (type == KV_AUTO) type = be_kv_preferred(be);
    kv_layout best = {0};
    bool good = false;
    for (size_t i = 0; i < INFERD_COUNT(kv_block_tokens) && !good; i++) {
        uint32_t n = kv_block_tokens[i];
        size_t layer = be_kv_layer_bytes(be, type, s->n_kv_heads, s->head_dim, n);
        if (layer == 0)
            return inferd_fail(err, INFERD_EUNSUPPORTED,
                               "%s cannot store keys and values as %s; use f16 or bf16",
                               be_name(be),
                               type == KV_F32   ? "f32"
                               : type == KV_F16 ? "f16"
                               : type == KV_I8  ? "int8"
                               : type == KV_I16 ? "int16"
                                                : "bf16");
        good = group_layers(s, type, n, layer, page, &best_used, &best);
    }
    if (best_used == 0)
        return inferd_fail(
            err, INFERD_EUNSUPPORTED,
            "keys and values of 16 tokens of one layer (%u heads of %u) do not fit a "
            "page of %zu bytes",
            s->n_kv_heads, s->head_dim, page);
    *out = best;
    return INFERD_OK;
}

void kv_layout_guess(const decoder_spec *s, kv_layout *out) {
    const size_t page = (size_t)2 << 20;
    size_t best_used = 0;
    bool good = false;
    *out = (kv_layout){.block_tokens = 16, .n_groups = s->n_layers, .slots_per_page = 1};
    for (size_t i = 0; i < INFERD_COUNT(kv_block_tokens) && !good; i++) {
        uint32_t n = kv_block_tokens[i];
        size_t layer = (size_t)2 * s->n_kv_heads * s->head_dim * n * sizeof(uint16_t);
        good = group_layers(s, KV_F16, n, layer, page, &best_used, out);
    }
}
