/* attention.h - paged attention: decode rows by split KV, prefill tiles on tensor cores.
 *
 * decode    one query row per sequence.  Work = (row, kv head, split): the heads of a group share
 *           one pass over their keys and values; splits cut the context at positions that depend on
 *           the row's own position only; partial (max, sum, output) are float, combined in the
 *           order of the splits.
 * prefill   tiles of query rows of one sequence and head; keys and values gathered from slots by
 *           cp.async; mma.sync; causal and window masks only where a tile crosses them.
 *
 * Keys and values of the rows themselves are stored before (launch_rope).  A mixed batch runs both.
 * Grids are upper bounds: the header on the device has the real numbers, surplus blocks return
 * at once, so that a captured graph serves any batch of its bucket.
 *
 * Always true: a decode row's bits depend on its own query, keys and values only, not on its
 * neighbours, on the bounds of the launch or on the device's size; so do a prefill row's, and they
 * do not depend on how the prompt was cut into steps either.
 *
 * The step block lies complete on the device before the first kernel of the step begins (a copy in
 * stream order): rows and tables are read before the launch before has ended.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_ATTENTION_H
#define INFERD_CUDA_ATTENTION_H

#include "cuda/layout.h"
#include "cuda/module.h"

enum { ATTENTION_TILE_ROWS = 128, ATTENTION_SPLITS_MAX = 64, ATTENTION_HEAD_DIM_MAX = 256 };

typedef struct attention_args {
    void *out;     // [rows, n_heads * head_dim] inner
    const void *q; // [rows, n_heads * head_dim] inner, rotated
    cu_type inner;
    uint32_t out_stride, q_stride;
    const step_view *view;
    const kv_view *kv; // kv->type CU_BF16 or CU_F16; may differ from inner
    uint32_t layer_idx;
    uint32_t n_heads, n_kv_heads, head_dim; // as attention_supported allows
    float scale, softcap;                   // softcap 0: none
    const float *sinks;                     // [n_heads] or NULL: one more score of each head
    uint32_t window;                        // 0: all
    uint32_t n_decode, n_tiles;             // upper bounds to launch for; 0: none
    uint32_t context_max;                   // longest context (position + 1) of a decode row
} attention_args;

typedef struct attention_workspace {
    float *partials; // decode: see attention_partials_bytes; 16-byte aligned
    size_t partials_bytes;
    uint32_t *counters; // [n_counters] zero between launches
    uint32_t n_counters;
} attention_workspace;

/* Bytes of partials and number of counters that n_decode rows of such heads can use.  With less
 * (but enough for one row) decode runs in several launches; more than PARTIALS_BYTES only when one
 * row needs it. */
enum { ATTENTION_PARTIALS_BYTES = 64 << 20 };
size_t attention_partials_bytes(uint32_t n_decode, uint32_t n_heads, uint32_t head_dim);
uint32_t attention_counters(uint32_t n_decode, uint32_t n_kv_heads);

/* Contexts are rounded up to one of five, so that one graph serves many lengths: 512, 1024, 4096,
 * 8192 or 16384 tokens.  Beyond, a row has ATTENTION_SPLITS_MAX splits, however long it is. */
uint32_t attention_context_bucket(uint32_t context_max);

/* Decode rows of each launch; the last one has fewer, by at most one row per launch. */
uint32_t attention_launch_rows(const attention_workspace *w, const attention_args *a);

/* head_dim is a multiple of 8 up to 256, and heads share kv heads evenly.  64, 80, 96, 128 and 256
 * have kernels of their own; others run on the next larger.  INFERD_EUNSUPPORTED names the
 * unsupported shape. */
inferd_status attention_supported(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim,
                                  inferd_err *err);
inferd_status attention_init(const cuda_module *m, const cu_device *d, inferd_err *err);
void launch_attention(launcher *l, const attention_workspace *w, const attention_args *a);

/* Fill decode_rows [n_seqs] and tiles of a step block from its sequences (host memory), and the
 * header's counts of both; the longest work comes first, to within a quarter. */
void attention_plan(step_header *h, const step_seq *seqs, uint32_t *decode_rows, step_tile *tiles);
/* The most tiles that n_rows rows in n_seqs sequences make. */
static inline uint32_t attention_tiles_max(uint32_t n_rows, uint32_t n_seqs) {
    return n_rows / ATTENTION_TILE_ROWS + n_seqs;
}

#endif
