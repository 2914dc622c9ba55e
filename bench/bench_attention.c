/* bench_attention.c - paged attention: one layer of decoding, and of a prompt (see gpu.h for
 * timing).
 *
 *     decode    batches of sequences of equal length, and one mixed batch; slots in order, or
 *               shuffled over the whole arena; 1, 4 or all layers of a block in one slot.
 *               bytes = bytes read of keys and values
 *     prefill   one prompt after a prefix; FLOP 4 * heads * head_dim * (n * prefix + n^2 / 2)
 *
 * Repetitions cycle through the layers, so that keys and values are read from memory. */
#include <math.h>
#include <string.h>

#include "cuda/attention.h"
#include "gpu.h"

enum { BLOCK_TOKENS = 16, PAGE_BYTES = 2 << 20, BATCH_MAX = 256 };

typedef struct shape {
    const char *name;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
} shape;

static const shape shapes[] = {
    {"8b", 32, 32, 8, 128}, {"1b", 16, 32, 8, 64}, {"gemma-3-4b", 32, 8, 4, 256}};
static const shape tiny_shape = {"tiny", 2, 4, 2, 64};

typedef struct kv_memory {
    unsigned char *p;
    uint64_t n_bytes;
} kv_memory;

typedef struct work {
    const shape *s;
    kv_view kv;
    step_view view;
    void *block; // the step's parameters
    attention_workspace space;
    attention_args a;
    uint64_t tokens; // of all contexts
} work;

static void layout(work *w, const kv_memory *arena, uint32_t group) {
    const shape *s = w->s;
    kv_view *kv = &w->kv;
    *kv = (kv_view){.arena = arena->p,
                    .page_bytes = PAGE_BYTES,
                    .group_layers = group,
                    .n_groups = s->n_layers / group,
                    .block_tokens = BLOCK_TOKENS,
                    .n_kv_heads = s->n_kv_heads,
                    .head_dim = s->head_dim,
                    .type = CU_BF16};
    kv->layer_bytes = 2 * s->n_kv_heads * BLOCK_TOKENS * s->head_dim * 2;
    kv->slot_bytes = kv->layer_bytes * group;
    kv->slots_per_page = PAGE_BYTES / kv->slot_bytes;
}

static uint64_t slots_in(const work *w, const kv_memory *a) {
    return a->n_bytes / PAGE_BYTES * w->kv.slots_per_page;
}

static uint64_t slots_of(const work *w, const uint32_t *lens, uint32_t n) {
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < n; i++) blocks += (lens[i] + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    return blocks * w->kv.n_groups;
}

static uint64_t random_state = 7;
static uint32_t below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

/* n different slots of n_slots, in order or shuffled; the caller frees. */
static int32_t *choose_slots(uint64_t n, uint64_t n_slots, bool shuffled) {
    int32_t *all = malloc(n_slots * sizeof *all);
    if (all == NULL) gpu_die("no memory for %llu slots", (unsigned long long)n_slots);
    for (uint64_t i = 0; i < n_slots; i++) all[i] = (int32_t)i;
    for (uint64_t i = 0; shuffled && i < n; i++) {
        uint64_t j = i + below((uint32_t)(n_slots - i));
        int32_t slot = all[i];
        all[i] = all[j];
        all[j] = slot;
    }
    return all;
}

static void *place(unsigned char *base, size_t *at, size_t n) {
    void *p = base + *at;
    *at += (n + 255) / 256 * 256;
    return p;
}

/* Sequence i has lens[i] positions, the last n_new of them are rows of this step. */
static void make_step(gpu *g, work *w, const uint32_t *lens, uint32_t n_seqs, uint32_t n_new,
                      const int32_t *slots) {
    uint64_t n_slots = slots_of(w, lens, n_seqs);
    uint32_t n_rows = n_seqs * n_new, n_tiles = attention_tiles_max(n_rows, n_seqs);
    size_t n_bytes = 8192 + n_rows * 64 + n_seqs * (sizeof(step_seq) + 8) +
                     n_tiles * sizeof(step_tile) + n_slots * 4;
    unsigned char *host = calloc(1, n_bytes);
    if (host == NULL) gpu_die("no memory for a step of %zu bytes", n_bytes);
    w->block = gpu_take(g, n_bytes);
    unsigned char *device = w->block;
    size_t at = 0;
    step_header *h = place(host, &at, sizeof *h);
    step_seq *seqs = place(host, &at, n_seqs * sizeof *seqs);
    uint32_t *positions = place(host, &at, n_rows * 4), *row_seq = place(host, &at, n_rows * 4);
    uint32_t *decode_rows = place(host, &at, n_seqs * 4);
    step_tile *tiles = place(host, &at, n_tiles * sizeof *tiles);
    int32_t *tables = place(host, &at, n_slots * 4);
    INFERD_CHECK(at <= n_bytes);
    *h = (step_header){.n_rows = n_rows, .n_seqs = n_seqs, .n_logits = n_seqs};
    uint32_t table = 0, row = 0, longest = 0;
    w->tokens = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        uint32_t n_blocks = (lens[i] + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
        seqs[i] = (step_seq){.row_begin = row,
                             .n_rows = n_new,
                             .pos_begin = lens[i] - n_new,
                             .n_blocks = n_blocks,
                             .table_begin = table};
        for (uint32_t k = 0; k < n_new; k++, row++) {
            positions[row] = lens[i] - n_new + k;
            row_seq[row] = i;
        }
        table += n_blocks * w->kv.n_groups;
        w->tokens += lens[i];
        longest = u32_max(longest, lens[i]);
    }
    memcpy(tables, slots, n_slots * 4);
    attention_plan(h, seqs, decode_rows, tiles);
#define ON_DEVICE(p) (void *)(device + ((unsigned char *)(p)-host))
    w->view = (step_view){.header = ON_DEVICE(h),
                          .positions = ON_DEVICE(positions),
                          .row_seq = ON_DEVICE(row_seq),
                          .seqs = ON_DEVICE(seqs),
                          .decode_rows = ON_DEVICE(decode_rows),
                          .tiles = ON_DEVICE(tiles),
                          .tables = ON_DEVICE(tables)};
#undef ON_DEVICE
    w->a.n_decode = h->n_decode;
    w->a.n_tiles = h->n_tiles;
    w->a.context_max = longest;
    gpu_need(g, g->api->copy_to_device(device, host, n_bytes, g->l.stream), "copying a step");
    gpu_sync(g);
    free(host);
}

static void queue_layer(gpu *g, void *ctx, uint32_t i) {
    work *w = ctx;
    attention_args a = w->a;
    a.view = &w->view;
    a.kv = &w->kv;
    a.layer_idx = i % w->s->n_layers;
    launch_attention(&g->l, &w->space, &a);
}

static void set_args(work *w, void *q, void *out) {
    const shape *s = w->s;
    w->a = (attention_args){.out = out,
                            .q = q,
                            .inner = CU_BF16,
                            .out_stride = s->n_heads * s->head_dim,
                            .q_stride = s->n_heads * s->head_dim,
                            .n_heads = s->n_heads,
                            .n_kv_heads = s->n_kv_heads,
                            .head_dim = s->head_dim,
                            .scale = 1 / sqrtf((float)s->head_dim)};
}

static void open_space(gpu *g, work *w, uint32_t n_decode) {
    const shape *s = w->s;
    w->space.partials_bytes = attention_partials_bytes(n_decode, s->n_heads, s->head_dim);
    w->space.partials = gpu_take(g, w->space.partials_bytes);
    w->space.n_counters = attention_counters(n_decode, s->n_kv_heads);
    w->space.counters = gpu_take_zeros(g, w->space.n_counters * sizeof *w->space.counters);
}

static void close_space(gpu *g, work *w) {
    gpu_give(g, w->space.partials);
    gpu_give(g, w->space.counters);
}

/* Opens an arena of `wanted` bytes, or of three quarters of the free memory if that is less. */
static kv_memory open_arena(gpu *g, uint64_t wanted) {
    uint64_t most = gpu_free_bytes(g) / 4 * 3;
    kv_memory a = {.n_bytes = (wanted < most ? wanted : most) / PAGE_BYTES * PAGE_BYTES};
    a.p = gpu_take(g, a.n_bytes);
    gpu_scribble(g, a.p, a.n_bytes);
    return a;
}

/* ---- decode ---- */

static void decode_case(gpu *g, const kv_memory *arena, const shape *s, uint32_t group,
                        bool shuffled, const uint32_t *lens, uint32_t n, const char *context,
                        void *q, void *out) {
    work w = {.s = s};
    layout(&w, arena, group);
    set_args(&w, q, out);
    uint64_t n_slots = slots_of(&w, lens, n), there = slots_in(&w, arena);
    row_begin("decode_attention");
    row_text("shape", s->name);
    row_count("batch", n);
    row_text("context", context);
    row_count("group_layers", group);
    row_text("slots", shuffled ? "shuffled" : "sequential");
    if (n_slots > there) {
        row_text("left_out", "does not fit the device's free memory");
        row_end();
        return;
    }
    int32_t *slots = choose_slots(n_slots, there, shuffled);
    make_step(g, &w, lens, n, 1, slots);
    free(slots);
    open_space(g, &w, n);
    gpu_time t = gpu_measure(g, queue_layer, &w, s->n_layers);
    row_time(&t);
    row_rate(&t, (double)w.tokens * 2 * s->n_kv_heads * s->head_dim * 2, 0);
    row_end();
    close_space(g, &w);
    gpu_give(g, w.block);
}

/* Contexts from 64 to 16384 with a median of about 1000: 2^(6 + sum of four uniforms * 2). */
static void mixed(uint32_t *lens, uint32_t n) {
    random_state = 7;
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) sum += below(1 << 16) / 65536.0;
        lens[i] = (uint32_t)exp2(6 + 2 * sum);
    }
}

static void decode_shape(gpu *g, const kv_memory *arena, const shape *s) {
    static const uint32_t batches[] = {1, 8, 32, 128, 256}, contexts[] = {128, 1024, 4096, 16384};
    uint32_t lens[BATCH_MAX], most = g->tiny ? 2 : BATCH_MAX;
    char context[16];
    void *q = gpu_normals(g, CU_BF16, (size_t)most * s->n_heads * s->head_dim, 1, 9);
    void *out = gpu_take(g, (size_t)most * s->n_heads * s->head_dim * 2);
    for (size_t b = 0; b < INFERD_COUNT(batches) && batches[b] <= most; b++) {
        uint32_t n = g->tiny ? 2 : batches[b];
        for (size_t c = 0; c < (g->tiny ? 1 : INFERD_COUNT(contexts)); c++) {
            for (uint32_t i = 0; i < n; i++) lens[i] = g->tiny ? 40 : contexts[c];
            snprintf(context, sizeof context, "%u", lens[0]);
            decode_case(g, arena, s, s->n_layers, true, lens, n, context, q, out);
            if (n != 32 && n != 2) continue; // layouts are compared for these batch sizes only
            for (uint32_t group = 1; group <= s->n_layers;
                 group = group == 4 ? s->n_layers : group * 4) {
                if (s->n_layers % group != 0) break;
                decode_case(g, arena, s, group, false, lens, n, context, q, out);
                if (group != s->n_layers)
                    decode_case(g, arena, s, group, true, lens, n, context, q, out);
                if (group == s->n_layers) break;
            }
        }
        if (n == 1 || g->tiny) continue;
        mixed(lens, n);
        decode_case(g, arena, s, s->n_layers, true, lens, n, "mixed", q, out);
    }
    gpu_give(g, q);
    gpu_give(g, out);
}

void bench_attention(gpu *g) {
    inferd_err err = {0};
    gpu_need_status(attention_init(g->module, &g->device, &err), &err);
    kv_memory a = open_arena(g, g->tiny ? 8ull << 20 : 96ull << 30);
    row_begin("arena");
    row_count("bytes", a.n_bytes);
    row_end();
    for (size_t i = 0; i < (g->tiny ? 1 : INFERD_COUNT(shapes)); i++)
        decode_shape(g, &a, g->tiny ? &tiny_shape : &shapes[i]);
    gpu_give(g, a.p);
}

/* ---- prefill ---- */

static void prefill_case(gpu *g, const kv_memory *arena, const shape *s, uint32_t prefix,
                         uint32_t n, void *q, void *out) {
    work w = {.s = s};
    layout(&w, arena, s->n_layers);
    set_args(&w, q, out);
    uint32_t len = prefix + n;
    uint64_t n_slots = slots_of(&w, &len, 1), there = slots_in(&w, arena);
    INFERD_CHECK(n_slots <= there);
    int32_t *slots = choose_slots(n_slots, there, true);
    make_step(g, &w, &len, 1, n, slots);
    free(slots);
    open_space(g, &w, 1);
    gpu_time t = gpu_measure(g, queue_layer, &w, s->n_layers);
    row_begin("prefill_attention");
    row_text("shape", s->name);
    row_count("rows", n);
    row_count("prefix", prefix);
    row_time(&t);
    row_rate(&t, 0, 4.0 * s->n_heads * s->head_dim * ((double)n * prefix + (double)n * n / 2));
    row_end();
    close_space(g, &w);
    gpu_give(g, w.block);
}

void bench_prefill(gpu *g) {
    static const uint32_t counts[] = {512, 2048, 8192, 32768}, tiny_counts[] = {130};
    inferd_err err = {0};
    gpu_need_status(attention_init(g->module, &g->device, &err), &err);
    kv_memory a = open_arena(g, g->tiny ? 8ull << 20 : 16ull << 30);
    const uint32_t *list = g->tiny ? tiny_counts : counts;
    size_t n_counts = g->tiny ? 1 : INFERD_COUNT(counts);
    uint32_t most = list[n_counts - 1];
    for (size_t i = 0; i < (g->tiny ? 1 : INFERD_COUNT(shapes)); i++) {
        const shape *s = g->tiny ? &tiny_shape : &shapes[i];
        void *q = gpu_normals(g, CU_BF16, (size_t)most * s->n_heads * s->head_dim, 1, 9);
        void *out = gpu_take(g, (size_t)most * s->n_heads * s->head_dim * 2);
        for (size_t c = 0; c < n_counts; c++) {
            prefill_case(g, &a, s, 0, list[c], q, out);
            prefill_case(g, &a, s, g->tiny ? 32 : 8192, list[c], q, out);
        }
        gpu_give(g, q);
        gpu_give(g, out);
    }
    gpu_give(g, a.p);
}
