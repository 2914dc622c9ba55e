/* attention.c - the choice of attention kernel and grid; and the plan of a step's rows.
 *
 * Kernels are looked up once per process by name and head dimension (attention_init).  Grids:
 *
 *     decode    (kv heads, blocks per row, rows).  As many blocks per row as its splits, unless
 *               that is more than GRID_PER_SM blocks for each multiprocessor: then blocks take
 *               several splits each, because a surplus block (a short row in a launch for long
 *               ones) occupies its multiprocessor for a chain of loads.  At least two, so
 *               that the longest row of a large batch is not left to one block.
 *     prefill   (heads, tiles, or half tiles of 64 rows)
 *
 * Partials have room for a number of rows; more rows take several launches of about equal size:
 * a last launch of a few rows would leave most of the device idle.
 *
 * Plan.  Blocks start in the order of their index, so long work placed first leaves short work to
 * fill the gaps at the end.  Rows and tiles are sorted by counting, into buckets of a length's
 * leading three bits: longest first to within a quarter, without a comparison sort in every step.
 *
 * Thread: engine. */
#include "cuda/attention.h"

#include "cuda/attention_params.h"

#define LOG2_E 1.4426950408889634

enum { GRID_PER_SM = 16, BLOCKS_PER_ROW_MIN = 2, GRID_YZ_MAX = 65535 };

/* ---- kernels ---- */

typedef struct kernels {
    uint32_t dim;
    const cu_kernel *decode[2], *prefill[2]; // of f16 and bf16 keys
} kernels;

#define KERNELS_OF(D) {.dim = D},
static kernels table[] = {ATTENTION_DIMS(KERNELS_OF)};

/* The smallest kernel that holds the dimension. */
static const kernels *choose(uint32_t head_dim) {
    for (size_t i = 0; i < INFERD_COUNT(table); i++)
        if (table[i].dim >= head_dim) return &table[i];
    return NULL;
}

static inferd_status load(const cuda_module *m, const cu_device *d, const char *what, bool bf16,
                          uint32_t dim, uint32_t shared_bytes, const cu_kernel **out,
                          inferd_err *err) {
    char name[64];
    snprintf(name, sizeof name, "attention_%s_%s_%u", what, bf16 ? "bf16" : "f16", dim);
    *out = module_find(m, name);
    if (*out == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "the module (%s) has no kernel %s", m->about,
                           name);
    if (shared_bytes > d->shared_bytes_max)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "%s needs %u bytes of shared memory, %s allows %u", name, shared_bytes,
                           d->name, d->shared_bytes_max);
    return module_load(m, *out, ATTENTION_THREADS, shared_bytes, err);
}

inferd_status attention_init(const cuda_module *m, const cu_device *d, inferd_err *err) {
    for (size_t i = 0; i < INFERD_COUNT(table); i++) {
        kernels *k = &table[i];
        for (int bf16 = 0; bf16 < 2; bf16++) {
            inferd_status s = load(m, d, "decode", bf16 != 0, k->dim,
                                   attention_decode_shared(k->dim), &k->decode[bf16], err);
            if (s == INFERD_OK)
                s = load(m, d, "prefill", bf16 != 0, k->dim, attention_prefill_shared(k->dim),
                         &k->prefill[bf16], err);
            if (s != INFERD_OK) return s;
        }
    }
    return INFERD_OK;
}

inferd_status attention_supported(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim,
                                  inferd_err *err) {
    if (n_kv_heads == 0 || n_heads == 0 || n_heads % n_kv_heads != 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "%u query heads do not share %u key heads evenly", n_heads, n_kv_heads);
    if (head_dim == 0 || head_dim % 8 != 0 || head_dim > ATTENTION_HEAD_DIM_MAX)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "heads of %u dimensions: expected a multiple of 8 up to %d", head_dim,
                           ATTENTION_HEAD_DIM_MAX);
    return INFERD_OK;
}

/* ---- workspace ---- */

/* Bytes of one row: every split of every head has head_dim sums, a maximum and a sum. */
static size_t row_partials(uint32_t n_heads, uint32_t head_dim, uint32_t n_splits) {
    return (size_t)n_heads * n_splits * (head_dim + 2) * sizeof(float);
}

size_t attention_partials_bytes(uint32_t n_decode, uint32_t n_heads, uint32_t head_dim) {
    size_t row = row_partials(n_heads, head_dim, ATTENTION_SPLITS_MAX);
    return size_min(n_decode * row, size_max(row, ATTENTION_PARTIALS_BYTES));
}

uint32_t attention_counters(uint32_t n_decode, uint32_t n_kv_heads) {
    return n_decode * n_kv_heads;
}

/* ---- launching ---- */

/* The parameters of both kernels. */
static attention_params params_of(const attention_args *a) {
    const kv_view *kv = a->kv;
    float log2_e = (float)LOG2_E;
    return (attention_params){
        .out = a->out,
        .q = a->q,
        .sinks = a->sinks,
        .view = *a->view,
        .kv = *kv,
        .layer_offset = (uint64_t)(a->layer_idx % kv->group_layers) * kv->layer_bytes,
        .layer_group = a->layer_idx / kv->group_layers,
        .inner = (uint32_t)a->inner,
        .out_stride = a->out_stride,
        .q_stride = a->q_stride,
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .group = a->n_heads / a->n_kv_heads,
        .window = a->window,
        .cap_scale = a->softcap != 0 ? a->scale / a->softcap : 0,
        .score_scale = (a->softcap != 0 ? a->softcap : a->scale) * log2_e,
    };
}

/* The most splits of a row: of the whole context, or of the chunks that a window may touch. */
static uint32_t splits_bound(const attention_args *a) {
    uint32_t n = (a->context_max + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
    if (a->window != 0) n = u32_min(n, (a->window - 1 + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK + 1);
    return attention_n_splits_bound(u32_max(n, 1));
}

/* Not 2048: 4096 tokens have as many splits, only longer ones. */
uint32_t attention_context_bucket(uint32_t context_max) {
    static const uint32_t ends[] = {512, 1024, 4096, 8192, 16384};
    uint32_t i = 0;
    while (i + 1 < INFERD_COUNT(ends) && ends[i] < context_max) i++;
    return ends[i];
}

uint32_t attention_launch_rows(const attention_workspace *w, const attention_args *a) {
    uint32_t n_splits = splits_bound(a);
    size_t row_bytes = row_partials(a->n_heads, a->head_dim, n_splits);
    size_t rows_max = size_min(w->partials_bytes / row_bytes, w->n_counters / a->n_kv_heads);
    if (n_splits == 1) rows_max = GRID_YZ_MAX; // no partials
    rows_max = size_min(rows_max, GRID_YZ_MAX);
    INFERD_CHECK(rows_max > 0 && a->n_decode > 0);
    uint32_t n_launches = (uint32_t)((a->n_decode + rows_max - 1) / rows_max);
    return (a->n_decode + n_launches - 1) / n_launches;
}

static void launch_decode(launcher *l, const attention_workspace *w, const attention_args *a,
                          const kernels *k, attention_params p) {
    p.splits_max = splits_bound(a);
    uint32_t per_launch = attention_launch_rows(w, a);
    uint32_t items = p.splits_max * ((p.group + ATTENTION_HEADS - 1) / ATTENTION_HEADS);
    p.partials = w->partials;
    p.partial_sums = p.splits_max == 1 ? NULL
                                       : w->partials + (size_t)per_launch * a->n_heads *
                                                           p.splits_max * a->head_dim;
    p.counters = w->counters;
    for (uint32_t begin = 0; begin < a->n_decode; begin += per_launch) {
        uint32_t n = u32_min(per_launch, a->n_decode - begin);
        uint32_t blocks = GRID_PER_SM * l->device->n_sms / (n * a->n_kv_heads);
        p.decode_begin = begin;
        launch(l, k->decode[a->kv->type == CU_BF16], a->n_kv_heads,
               u32_min(items, u32_max(blocks, BLOCKS_PER_ROW_MIN)), n, ATTENTION_THREADS,
               attention_decode_shared(k->dim), &p, sizeof p);
    }
}

void launch_attention(launcher *l, const attention_workspace *w, const attention_args *a) {
    const kernels *k = choose(a->head_dim);
    INFERD_CHECK(attention_supported(a->n_heads, a->n_kv_heads, a->head_dim, NULL) == INFERD_OK);
    INFERD_CHECK(k != NULL && k->decode[0] != NULL); // attention_init came first
    INFERD_CHECK(a->kv->block_tokens % ATTENTION_CHUNK == 0 && a->kv->block_tokens > 0);
    INFERD_CHECK(a->kv->head_dim == a->head_dim && a->kv->n_kv_heads == a->n_kv_heads);
    INFERD_CHECK(a->q_stride % ROW_ALIGN == 0 && a->out_stride % ROW_ALIGN == 0);
    INFERD_CHECK(a->scale > 0 && a->softcap >= 0);
    attention_params p = params_of(a);
    if (a->n_decode > 0) launch_decode(l, w, a, k, p);
    uint32_t parts = ATTENTION_TILE_ROWS / attention_block_rows(k->dim);
    INFERD_CHECK(a->n_tiles <= GRID_YZ_MAX / parts);
    if (a->n_tiles > 0)
        launch(l, k->prefill[a->kv->type == CU_BF16], a->n_heads, a->n_tiles * parts, 1,
               ATTENTION_THREADS, attention_prefill_shared(k->dim), &p, sizeof p);
}

/* ---- plan ---- */

enum { BUCKETS = 30 * 4 + 4 };

/* 0 for the longest: the length's magnitude and the two bits behind its leading one. */
static uint32_t bucket(uint32_t length) {
    if (length < 4) return BUCKETS - 1 - length;
    uint32_t shift = 29 - (uint32_t)__builtin_clz(length); // leaves three bits, 4 to 7
    return BUCKETS - 1 - (shift * 4 + (length >> shift));
}

/* Tile `i` of a sequence; the last tiles are the longest. */
static step_tile tile_of(const step_seq *s, uint32_t seq, uint32_t i) {
    uint32_t skip = i * ATTENTION_TILE_ROWS;
    return (step_tile){seq, s->row_begin + skip, u32_min(s->n_rows - skip, ATTENTION_TILE_ROWS), 0};
}

void attention_plan(step_header *h, const step_seq *seqs, uint32_t *decode_rows, step_tile *tiles) {
    uint32_t decode_at[BUCKETS + 1] = {0},
                                 tile_at[BUCKETS + 1] = {0}; // counts, then where next goes
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < h->n_seqs; i++) {
            const step_seq *s = &seqs[i];
            if (s->n_rows == 1) {
                uint32_t b = bucket(s->pos_begin + 1);
                if (pass == 0)
                    decode_at[b + 1]++;
                else
                    decode_rows[decode_at[b]++] = s->row_begin;
                continue;
            }
            for (uint32_t t = 0; t * ATTENTION_TILE_ROWS < s->n_rows; t++) {
                step_tile tile = tile_of(s, i, t);
                uint32_t b = bucket(s->pos_begin + (tile.row_begin - s->row_begin) + tile.n_rows);
                if (pass == 0)
                    tile_at[b + 1]++;
                else
                    tiles[tile_at[b]++] = tile;
            }
        }
        if (pass == 1) break;
        for (uint32_t b = 0; b < BUCKETS; b++) {
            decode_at[b + 1] += decode_at[b];
            tile_at[b + 1] += tile_at[b];
        }
        h->n_decode = decode_at[BUCKETS];
        h->n_tiles = tile_at[BUCKETS];
    }
}
