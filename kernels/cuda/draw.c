/* draw.c - packing the draws for the device, and the two launches; see draw.h. */
#include "cuda/draw.h"

#include <string.h>

#include "cuda/draw_params.h"

static const cu_kernel *k_scan, *k_pick; // the module lives as long as the process

/* ---- packing ---- */

size_t draw_scratch_bytes(uint32_t n_vocab) {
    return (size_t)n_vocab * 2 * sizeof(uint32_t);
}

size_t draw_plan_bytes(uint32_t n_rows) {
    return sizeof(draw_header) + (size_t)n_rows * sizeof(draw_row);
}

size_t draw_mask_bytes(uint32_t n_vocab) {
    return ((size_t)n_vocab + 63) / 64 * sizeof(uint64_t);
}

typedef struct packer {
    unsigned char *p;
    size_t n, n_max;
    uint32_t n_vocab;
    uint32_t *n_output;  // [n_vocab] counts of one list of a row; all zero between lists
    uint32_t *in_prompt; // [n_vocab] likewise
} packer;

/* Room for n bytes at the end; NULL: the upload is full. */
static void *append(packer *k, size_t n) {
    if (n > k->n_max - k->n) return NULL;
    void *at = k->p + k->n;
    k->n += n;
    return at;
}

static bool penalises(const sample_params *p) {
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* Each with the count of its token: threads add biases of different tokens at the same time. */
static bool pack_bias(packer *k, const sample_row *from, draw_row *to, uint32_t *n) {
    const sample_params *p = from->params;
    bool fits = true;
    to->bias_begin = *n;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if ((uint32_t)p->bias[i].id < k->n_vocab) k->n_output[p->bias[i].id]++;
    for (uint32_t i = 0; i < p->n_bias; i++) {
        uint32_t id = (uint32_t)p->bias[i].id;
        if (id >= k->n_vocab) continue;
        draw_bias *b = fits ? append(k, sizeof *b) : NULL;
        fits = b != NULL;
        if (fits) *b = (draw_bias){(int32_t)id, p->bias[i].bias, k->n_output[id]};
        k->n_output[id] = 0;
        to->n_bias += fits;
        *n += fits;
    }
    return fits;
}

/* Each token once: two threads never write one logit. */
static bool pack_banned(packer *k, const sample_row *from, draw_row *to, uint32_t *n) {
    bool fits = true;
    to->banned_begin = *n;
    for (uint32_t i = 0; i < from->n_banned; i++)
        if ((uint32_t)from->banned[i] < k->n_vocab) k->n_output[from->banned[i]] = 1;
    for (uint32_t i = 0; i < from->n_banned; i++) {
        uint32_t id = (uint32_t)from->banned[i];
        if (id >= k->n_vocab || k->n_output[id] == 0) continue;
        int32_t *at = fits ? append(k, sizeof *at) : NULL;
        fits = at != NULL;
        if (fits) *at = (int32_t)id;
        k->n_output[id] = 0;
        to->n_banned += fits;
        *n += fits;
    }
    return fits;
}

/* Each token of the history once, with its count.  `n_known`: without the pending token. */
static bool pack_seen(packer *k, const sample_row *from, uint32_t n_known, draw_row *to,
                      uint32_t *n) {
    bool fits = true;
    to->seen_begin = *n;
    if (!penalises(from->params)) return true;
    for (uint32_t i = 0; i < n_known; i++) {
        uint32_t id = (uint32_t)from->tokens[i];
        if (id >= k->n_vocab) continue;
        if (i < from->n_prompt)
            k->in_prompt[id] = 1;
        else if (k->n_output[id] < UINT16_MAX)
            k->n_output[id]++;
    }
    for (uint32_t i = 0; i < n_known; i++) {
        uint32_t id = (uint32_t)from->tokens[i];
        if (id >= k->n_vocab || (k->n_output[id] == 0 && k->in_prompt[id] == 0)) continue;
        draw_seen *s = fits ? append(k, sizeof *s) : NULL;
        fits = s != NULL;
        if (fits) *s = (draw_seen){(int32_t)id, k->n_output[id]};
        k->n_output[id] = k->in_prompt[id] = 0;
        to->n_seen += fits;
        *n += fits;
    }
    return fits;
}

/* Each mask once: most rows of a batch are in the same few places of a grammar. */
static bool pack_masks(packer *k, const sample_row *rows, draw_row *to, uint32_t n_rows) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint64_t *mask = rows[i].forced < 0 ? rows[i].mask : NULL;
        if (mask == NULL) continue;
        for (uint32_t j = i; j-- > 0 && to[i].mask == 0;)
            if (to[j].mask != 0 && rows[j].mask == mask) to[i].mask = to[j].mask;
        if (to[i].mask != 0) continue;
        void *at = append(k, draw_mask_bytes(k->n_vocab));
        if (at == NULL) return false;
        memcpy(at, mask, draw_mask_bytes(k->n_vocab));
        to[i].mask = ++n;
    }
    return true;
}

static draw_row describe(const sample_row *from, const batch *b, uint32_t draw_idx) {
    const sample_params *p = from->params;
    draw_row to = {.temperature = p->temperature,
                   .top_p = p->top_p,
                   .min_p = p->min_p,
                   .repetition_penalty = p->repetition_penalty,
                   .presence_penalty = p->presence_penalty,
                   .frequency_penalty = p->frequency_penalty,
                   .top_k = p->top_k,
                   .choice_idx = p->choice_idx,
                   .seed = p->seed,
                   .position = from->n_tokens,
                   .forced = from->forced,
                   .n_top = from->n_top};
    uint32_t row = b->logit_rows[draw_idx];
    if (b->tokens[row] == TOK_PENDING) {
        to.flags |= DRAW_PENDING;
        to.pending = b->pending[row];
    }
    return to;
}

inferd_status draw_plan_build(draw_plan *plan, const sample_row *rows, const batch *b,
                              uint32_t n_vocab, void *scratch, inferd_err *err) {
    packer k = {.p = plan->host,
                .n_max = plan->bytes_max,
                .n_vocab = n_vocab,
                .n_output = scratch,
                .in_prompt = (uint32_t *)scratch + n_vocab};
    uint32_t n = b->n_logits, n_bias = 0, n_banned = 0, n_seen = 0;
    draw_header *h = append(&k, sizeof *h);
    draw_row *to = append(&k, n * sizeof *to);
    bool fits = h != NULL && to != NULL;
    for (uint32_t i = 0; fits && i < n; i++) to[i] = describe(&rows[i], b, i);
    if (fits) *h = (draw_header){.n_rows = n, .bias_at = (uint32_t)k.n};
    for (uint32_t i = 0; fits && i < n; i++)
        fits = rows[i].forced >= 0 || pack_bias(&k, &rows[i], &to[i], &n_bias);
    if (fits) h->banned_at = (uint32_t)k.n;
    for (uint32_t i = 0; fits && i < n; i++)
        fits = rows[i].forced >= 0 || pack_banned(&k, &rows[i], &to[i], &n_banned);
    if (fits) h->seen_at = (uint32_t)k.n;
    for (uint32_t i = 0; fits && i < n; i++) {
        uint32_t n_known = rows[i].n_tokens - ((to[i].flags & DRAW_PENDING) != 0);
        fits = rows[i].forced >= 0 || pack_seen(&k, &rows[i], n_known, &to[i], &n_seen);
    }
    if (fits) h->masks_at = (uint32_t)k.n;
    if (fits) h->mask_words = (uint32_t)(draw_mask_bytes(n_vocab) / sizeof(uint32_t));
    fits = fits && pack_masks(&k, rows, to, n);
    if (!fits)
        return inferd_fail(err, INFERD_ETOOLONG, "what to draw for %u rows does not fit %zu bytes",
                           n, plan->bytes_max);
    for (uint32_t i = 0; i < n; i++) {
        bool changed =
            to[i].n_bias > 0 || to[i].n_banned > 0 || to[i].mask != 0 || penalises(rows[i].params);
        if (!changed || rows[i].forced >= 0) to[i].flags |= DRAW_PLAIN;
    }
    plan->n_rows = n;
    plan->bytes = k.n;
    return INFERD_OK;
}

/* ---- launching ---- */

static uint32_t slices_of(uint32_t n_vocab) {
    return (n_vocab + DRAW_SLICE - 1) / DRAW_SLICE;
}

static size_t rounded(size_t n) {
    return (n + 15) / 16 * 16;
}

size_t draw_workspace_zeros(uint32_t rows_max) {
    return rounded(rows_max * sizeof(uint32_t)) + rounded(rows_max * sizeof(draw_bins));
}

size_t draw_workspace_bytes(uint32_t rows, uint32_t n_vocab) {
    size_t n = (size_t)rows * slices_of(n_vocab);
    return draw_workspace_zeros(rows) + rounded(n * sizeof(draw_scan)) +
           rounded(n * sizeof(draw_part));
}

inferd_status draw_init(const cuda_module *m, const cu_device *d, inferd_err *err) {
    (void)d;
    k_scan = module_find(m, "draw_scan");
    k_pick = module_find(m, "draw_pick");
    if (k_scan == NULL || k_pick == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "the module has no kernels to draw tokens");
    inferd_status s = module_load(m, k_scan, DRAW_THREADS, DRAW_SCAN_SHARED_BYTES, err);
    return s != INFERD_OK ? s : module_load(m, k_pick, DRAW_THREADS, DRAW_SHARED_BYTES, err);
}

void launch_draw(launcher *l, const draw_args *a) {
    uint32_t n_slices = slices_of(a->n_vocab);
    size_t n = (size_t)a->rows * n_slices;
    unsigned char *scratch = a->scratch;
    draw_params p = {.plan = a->plan,
                     .logits = a->logits,
                     .changed = a->changed,
                     .drawn_before = a->drawn_before,
                     .drawn = a->drawn,
                     .results = a->results,
                     /* zeroed memory comes first: its address must not depend on `rows` */
                     .counters = (void *)scratch,
                     .bins = (void *)(scratch + rounded(a->rows_max * sizeof(uint32_t))),
                     .n_vocab = a->n_vocab,
                     .stride = a->stride,
                     .n_slices = n_slices};
    scratch += draw_workspace_zeros(a->rows_max);
    p.scans = (void *)scratch;
    p.parts = (void *)(scratch + rounded(n * sizeof(draw_scan)));
    launch(l, k_scan, n_slices, a->rows, 1, DRAW_THREADS, DRAW_SCAN_SHARED_BYTES, &p, sizeof p);
    launch(l, k_pick, n_slices, a->rows, 1, DRAW_THREADS, DRAW_SHARED_BYTES, &p, sizeof p);
}
