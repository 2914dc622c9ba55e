/* test_cuda_attention.c - paged attention of the CUDA kernels against the formula in double, and
 * against itself in other batches, other cuts and other orders of threads.
 *
 * A `world` is some sequences with queries, keys and values for every position, exact in their
 * types.  A step computes positions [from, to) of each.  Slots are scattered over an arena in which
 * everything that a step must not see is not a number: other layers, other blocks, positions to
 * come, positions before every window; blocks that no row sees have no slot at all.
 *
 * How far outputs may be off: keys, values and queries are exact, scores are float, weights are
 * rounded to the type of keys and the output to the activations': two roundings, of relative size
 * 2^-9 / sqrt(3) at worst in bf16 (1.1e-3) and 2^-12 / sqrt(3) in f16, the first shrinking as many
 * keys share the weight.  When queries are f16 and keys bf16 the query is rounded too, which moves
 * scores of size s by s * 1.1e-3 / sqrt(head_dim).. s * 1.1e-3.  The table of cuda_rig.h allows
 * several times that. */
#include "cuda/attention.h"
#include "cuda/attention_params.h"
#include "cuda_emul/emul_run.h"
#include "cuda_rig.h"

enum { SEQS_MAX = 16, ROW_PAD = 8 };

typedef struct shape {
    cu_type inner, kv;
    uint32_t n_heads, n_kv_heads, head_dim, window;
    float softcap;
    bool sinks;
} shape;

typedef struct world {
    shape s;
    uint32_t n_seqs, lens[SEQS_MAX], first[SEQS_MAX], n_tokens; // first: sum of the lengths before
    float *q, *k, *v;                                           // [n_tokens, heads, head_dim]
    float *sinks;                                               // [n_heads]
    uint32_t layer_idx;
    kv_view kv;
    uint32_t n_slots;
    int32_t *slots; // [n_slots] shuffled: blocks take them in this order
} world;

/* How a step is launched: more than there is, less memory than wanted. */
typedef struct manner {
    uint32_t extra_decode, extra_tiles, extra_context; // launched for beyond what is there
    uint32_t workspace_rows; // room for the partials of so many; 0: of all
    uint32_t n_sms;          // 0: as the device has
} manner;

static uint32_t blocks_of(const world *w, uint32_t n_tokens) {
    return (n_tokens + w->kv.block_tokens - 1) / w->kv.block_tokens;
}

static void world_init(world *w, shape s, const uint32_t *lens, uint32_t n_seqs, uint64_t seed) {
    rig_seed(seed);
    *w = (world){.s = s, .n_seqs = n_seqs};
    for (uint32_t i = 0; i < n_seqs; i++) {
        w->lens[i] = lens[i];
        w->first[i] = w->n_tokens;
        w->n_tokens += lens[i];
    }
    w->q = rig_normals((size_t)w->n_tokens * s.n_heads * s.head_dim, 2);
    w->k = rig_normals((size_t)w->n_tokens * s.n_kv_heads * s.head_dim, 1);
    w->v = rig_normals((size_t)w->n_tokens * s.n_kv_heads * s.head_dim, 1);
    w->sinks = rig_normals(s.n_heads, 4); // beside scores of about 2
    /* A query with bits that keys' type has not would test another formula. */
    rig_round_all(s.kv, w->q, (size_t)w->n_tokens * s.n_heads * s.head_dim);
    rig_round_all(s.inner, w->q, (size_t)w->n_tokens * s.n_heads * s.head_dim);
    rig_round_all(s.kv, w->k, (size_t)w->n_tokens * s.n_kv_heads * s.head_dim);
    rig_round_all(s.kv, w->v, (size_t)w->n_tokens * s.n_kv_heads * s.head_dim);

    kv_view *kv = &w->kv;
    *kv = (kv_view){.group_layers = 1 + rig_below(3),
                    .n_groups = 1 + rig_below(3),
                    .block_tokens = rig_below(2) ? 16 : 32,
                    .n_kv_heads = s.n_kv_heads,
                    .head_dim = s.head_dim,
                    .slots_per_page = 1 + rig_below(5),
                    .type = (uint32_t)s.kv};
    w->layer_idx = rig_below(kv->group_layers * kv->n_groups);
    kv->layer_bytes = 2 * kv->n_kv_heads * kv->block_tokens * kv->head_dim * 2;
    kv->slot_bytes = kv->layer_bytes * kv->group_layers;
    kv->page_bytes = (uint64_t)kv->slots_per_page * kv->slot_bytes + 64 * rig_below(3);
    uint32_t n = 3; // some that nobody has
    for (uint32_t i = 0; i < n_seqs; i++) n += blocks_of(w, lens[i]) * kv->n_groups;
    w->n_slots = n;
    w->slots = malloc(n * sizeof *w->slots);
    INFERD_CHECK(w->slots != NULL);
    for (uint32_t i = 0; i < n; i++) w->slots[i] = (int32_t)i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = rig_below(i + 1);
        int32_t slot = w->slots[i];
        w->slots[i] = w->slots[j];
        w->slots[j] = slot;
    }
}

static void world_deinit(world *w) {
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->sinks);
    free(w->slots);
}

static uint32_t window_begin(const world *w, uint32_t pos) {
    return w->s.window != 0 && pos + 1 > w->s.window ? pos + 1 - w->s.window : 0;
}

/* ---- the formula ---- */

/* out = sum over p of softmax(score(p)) * v[p] for one head of one position */
static void attend(const world *w, uint32_t seq, uint32_t pos, uint32_t head, double *out) {
    uint32_t dim = w->s.head_dim, kv_head = head / (w->s.n_heads / w->s.n_kv_heads);
    uint32_t begin = window_begin(w, pos);
    double *scores = malloc((pos + 1) * sizeof *scores), max = -INFINITY, total = 0;
    INFERD_CHECK(scores != NULL);
    const float *q = w->q + ((size_t)(w->first[seq] + pos) * w->s.n_heads + head) * dim;
    for (uint32_t p = begin; p <= pos; p++) {
        const float *k = w->k + ((size_t)(w->first[seq] + p) * w->s.n_kv_heads + kv_head) * dim;
        double sum = 0;
        for (uint32_t d = 0; d < dim; d++) sum += (double)q[d] * (double)k[d];
        sum /= sqrt(dim);
        if (w->s.softcap != 0) sum = (double)w->s.softcap * tanh(sum / (double)w->s.softcap);
        scores[p] = sum;
        max = fmax(max, sum);
    }
    if (w->s.sinks) max = fmax(max, (double)w->sinks[head]);
    if (w->s.sinks) total = exp((double)w->sinks[head] - max);
    for (uint32_t d = 0; d < dim; d++) out[d] = 0;
    for (uint32_t p = begin; p <= pos; p++) {
        const float *v = w->v + ((size_t)(w->first[seq] + p) * w->s.n_kv_heads + kv_head) * dim;
        double weight = exp(scores[p] - max);
        total += weight;
        for (uint32_t d = 0; d < dim; d++) out[d] += weight * (double)v[d];
    }
    for (uint32_t d = 0; d < dim; d++) out[d] /= total;
    free(scores);
}

/* ---- one step on the device ---- */

typedef struct step {
    uint32_t n_rows, n_seqs;
    uint32_t *row_token; // [n_rows] index among the world's tokens
    uint32_t *row_seq, *row_pos;
    uint16_t *out; // [n_rows, out_stride] as the device left it
    uint32_t width, out_stride;
    bool good;
} step;

static void step_deinit(step *t) {
    free(t->row_token);
    free(t->row_seq);
    free(t->row_pos);
    free(t->out);
}

static void put_kv(const world *w, unsigned char *image, int32_t slot, uint32_t seq, uint32_t pos) {
    const kv_view *kv = &w->kv;
    size_t at = (size_t)slot / kv->slots_per_page * kv->page_bytes +
                (size_t)slot % kv->slots_per_page * kv->slot_bytes +
                (size_t)(w->layer_idx % kv->group_layers) * kv->layer_bytes;
    for (uint32_t head = 0; head < kv->n_kv_heads; head++) {
        size_t row = ((size_t)head * kv->block_tokens + pos % kv->block_tokens) * kv->head_dim * 2;
        size_t from = ((size_t)(w->first[seq] + pos) * kv->n_kv_heads + head) * kv->head_dim;
        rig_from_f32(w->s.kv, image + at + row, w->k + from, kv->head_dim);
        rig_from_f32(w->s.kv, image + at + kv->layer_bytes / 2 + row, w->v + from, kv->head_dim);
    }
}

/* Positions [from[i], to[i]) of each sequence; from = to: not in this step. */
static step step_run(cuda_rig *r, const world *w, const uint32_t *from, const uint32_t *to,
                     manner how) {
    const shape *s = &w->s;
    const kv_view *kv = &w->kv;
    step t = {.width = s->n_heads * s->head_dim};
    for (uint32_t i = 0; i < w->n_seqs; i++) t.n_rows += to[i] - from[i];
    t.row_token = calloc(t.n_rows, sizeof *t.row_token);
    t.row_seq = calloc(t.n_rows, sizeof *t.row_seq);
    t.row_pos = calloc(t.n_rows, sizeof *t.row_pos);
    size_t image_bytes =
        (w->n_slots + kv->slots_per_page - 1) / kv->slots_per_page * kv->page_bytes;
    unsigned char *image = malloc(image_bytes);
    step_seq seqs[SEQS_MAX];
    int32_t *tables = malloc(w->n_slots * sizeof *tables);
    INFERD_CHECK(t.row_token && t.row_seq && t.row_pos && image && tables);
    memset(image, 0xFF, image_bytes);

    uint32_t n_table = 0, n_rows = 0, group = w->layer_idx / kv->group_layers, context_max = 1;
    for (uint32_t i = 0; i < w->n_seqs; i++) {
        uint32_t table = n_table, n_blocks = blocks_of(w, w->lens[i]);
        for (uint32_t b = 0; b < n_blocks * kv->n_groups; b++, n_table++)
            tables[n_table] = w->slots[n_table];
        if (from[i] == to[i]) continue;
        uint32_t seen = window_begin(w, from[i]);
        for (uint32_t pos = seen; pos < to[i]; pos++)
            put_kv(w, image, tables[table + pos / kv->block_tokens * kv->n_groups + group], i, pos);
        for (uint32_t b = 0; b < n_blocks; b++)
            for (uint32_t g = 0; g < kv->n_groups; g++)
                if ((b + 1) * kv->block_tokens <= seen || b * kv->block_tokens >= to[i] ||
                    g != group)
                    tables[table + b * kv->n_groups + g] = -1;
        seqs[t.n_seqs] = (step_seq){n_rows, to[i] - from[i], from[i], n_blocks, table, {0}};
        for (uint32_t pos = from[i]; pos < to[i]; pos++, n_rows++) {
            t.row_token[n_rows] = w->first[i] + pos;
            t.row_seq[n_rows] = i;
            t.row_pos[n_rows] = pos;
        }
        if (to[i] - from[i] == 1) context_max = u32_max(context_max, to[i]);
        t.n_seqs++;
    }

    step_header h = {.n_rows = n_rows, .n_seqs = t.n_seqs};
    uint32_t *decode_rows = calloc(t.n_seqs, sizeof *decode_rows);
    step_tile *tiles = calloc(attention_tiles_max(n_rows, t.n_seqs), sizeof *tiles);
    uint32_t *row_seq = calloc(n_rows, sizeof *row_seq);
    INFERD_CHECK(decode_rows && tiles && row_seq);
    attention_plan(&h, seqs, decode_rows, tiles);
    EXPECT(h.n_tiles <= attention_tiles_max(n_rows, t.n_seqs));
    for (uint32_t i = 0; i < t.n_seqs; i++)
        for (uint32_t j = 0; j < seqs[i].n_rows; j++) row_seq[seqs[i].row_begin + j] = i;

    uint32_t q_stride = t.width + ROW_PAD;
    t.out_stride = t.width + 2 * ROW_PAD;
    float *q = calloc((size_t)n_rows * q_stride, sizeof *q);
    INFERD_CHECK(q != NULL);
    for (uint32_t i = 0; i < n_rows; i++) {
        memcpy(q + (size_t)i * q_stride, w->q + (size_t)t.row_token[i] * t.width,
               t.width * sizeof *q);
        for (uint32_t j = t.width; j < q_stride; j++) q[(size_t)i * q_stride + j] = NAN;
    }

    size_t out_bytes = (size_t)n_rows * t.out_stride * 2;
    step_view view = {.header = rig_put(r, &h, sizeof h),
                      .row_seq = rig_put(r, row_seq, n_rows * sizeof *row_seq),
                      .seqs = rig_put(r, seqs, t.n_seqs * sizeof *seqs),
                      .decode_rows = rig_put(r, decode_rows, h.n_decode * sizeof *decode_rows),
                      .tiles = rig_put(r, tiles, h.n_tiles * sizeof *tiles),
                      .tables = rig_put(r, tables, n_table * sizeof *tables)};
    kv_view there = *kv;
    there.arena = rig_put(r, image, image_bytes);
    uint32_t n_decode = h.n_decode + how.extra_decode;
    uint32_t room = how.workspace_rows != 0 ? how.workspace_rows : u32_max(n_decode, 1);
    attention_workspace work = {.partials_bytes =
                                    attention_partials_bytes(room, s->n_heads, s->head_dim),
                                .n_counters = attention_counters(room, s->n_kv_heads)};
    work.partials = rig_alloc(r, work.partials_bytes);
    work.counters = rig_alloc(r, work.n_counters * sizeof *work.counters);
    rig_fill(r, work.counters, 0, work.n_counters * sizeof *work.counters);
    attention_args a = {.out = rig_alloc(r, out_bytes),
                        .q = rig_put_f32(r, s->inner, q, (size_t)n_rows * q_stride),
                        .inner = s->inner,
                        .out_stride = t.out_stride,
                        .q_stride = q_stride,
                        .view = &view,
                        .kv = &there,
                        .layer_idx = w->layer_idx,
                        .n_heads = s->n_heads,
                        .n_kv_heads = s->n_kv_heads,
                        .head_dim = s->head_dim,
                        .scale = (float)(1 / sqrt(s->head_dim)),
                        .softcap = s->softcap,
                        .sinks = s->sinks ? rig_put(r, w->sinks, s->n_heads * sizeof(float)) : NULL,
                        .window = s->window,
                        .n_decode = n_decode,
                        .n_tiles = h.n_tiles + how.extra_tiles,
                        .context_max = context_max + how.extra_context};
    cu_device device = r->device;
    if (how.n_sms != 0) device.n_sms = how.n_sms;
    r->l.device = &device;
    launch_attention(&r->l, &work, &a);
    r->l.device = &r->device;
    t.good = rig_sync(r);
    t.out = malloc(out_bytes);
    uint32_t *counters = calloc(work.n_counters, sizeof *counters);
    INFERD_CHECK(t.out != NULL && counters != NULL);
    rig_read(r, t.out, a.out, out_bytes);
    rig_read(r, counters, work.counters, work.n_counters * sizeof *counters);
    for (uint32_t i = 0; i < work.n_counters; i++)
        if (t.good) EXPECT_EQ(counters[i], 0);

    const void *held[] = {view.header,   view.row_seq, view.seqs,   view.decode_rows,
                          view.tiles,    view.tables,  there.arena, work.partials,
                          work.counters, a.out,        a.q,         a.sinks};
    for (size_t i = 0; i < INFERD_COUNT(held); i++) rig_free(r, (void *)(uintptr_t)held[i]);
    free(image);
    free(tables);
    free(decode_rows);
    free(tiles);
    free(row_seq);
    free(counters);
    free(q);
    return t;
}

/* Every row is what the formula says, and nothing else was written. */
static void expect_formula(const world *w, const step *t, const char *what) {
    if (!t->good) return;
    const shape *s = &w->s;
    double *want = malloc(t->width * sizeof *want);
    float *got = malloc(t->width * sizeof *got);
    INFERD_CHECK(want != NULL && got != NULL);
    char name[256];
    snprintf(name, sizeof name, "%s: %u/%u heads of %u, kv %s, window %u, cap %g, %s%s", what,
             s->n_heads, s->n_kv_heads, s->head_dim, rig_type_name(s->kv), s->window,
             (double)s->softcap, rig_type_name(s->inner), s->sinks ? ", sinks" : "");
    cu_type worse = s->kv == CU_BF16 ? CU_BF16 : s->inner;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const uint16_t *out = t->out + (size_t)i * t->out_stride;
        rig_to_f32(s->inner, got, out, t->width);
        for (uint32_t h = 0; h < s->n_heads; h++)
            attend(w, t->row_seq[i], t->row_pos[i], h, want + (size_t)h * s->head_dim);
        for (uint32_t j = t->width; j < t->out_stride; j++) EXPECT_EQ(out[j], 0xFFFF);
        if (!rig_near("attention", worse, got, want, t->width, name)) {
            printf("    at position %u of sequence %u\n", t->row_pos[i], t->row_seq[i]);
            break;
        }
    }
    free(want);
    free(got);
}

/* Row by row the same bits as in another step of the same world. */
static void expect_same_bits(const step *a, const step *b, const char *what) {
    if (!a->good || !b->good) return;
    uint32_t n_same = 0;
    for (uint32_t i = 0; i < a->n_rows; i++)
        for (uint32_t j = 0; j < b->n_rows; j++) {
            if (a->row_token[i] != b->row_token[j]) continue;
            n_same++;
            if (memcmp(a->out + (size_t)i * a->out_stride, b->out + (size_t)j * b->out_stride,
                       a->width * 2) == 0)
                continue;
            printf("%s: position %u of sequence %u has other bits\n", what, a->row_pos[i],
                   a->row_seq[i]);
            test_failures++;
            return;
        }
    EXPECT(n_same > 0);
}

static void begin(cuda_rig *r) {
    inferd_err err = {0};
    rig_open(r);
    if (attention_init(r->module, &r->device, &err) != INFERD_OK) {
        printf("attention_init: %s\n", err.text);
        exit(1);
    }
}

/* A world, one step of it, compared with the formula. */
static void check(shape s, const uint32_t *from, const uint32_t *to, uint32_t n_seqs, manner how,
                  uint64_t seed, const char *what) {
    cuda_rig r;
    world w;
    begin(&r);
    world_init(&w, s, to, n_seqs, seed);
    step t = step_run(&r, &w, from, to, how);
    expect_formula(&w, &t, what);
    step_deinit(&t);
    world_deinit(&w);
    rig_close(&r);
}

/* One row of each sequence: the last. */
static void check_decode(shape s, const uint32_t *lens, uint32_t n_seqs, manner how,
                         uint64_t seed) {
    uint32_t from[SEQS_MAX];
    for (uint32_t i = 0; i < n_seqs; i++) from[i] = lens[i] - 1;
    check(s, from, lens, n_seqs, how, seed, "decode");
}

/* ---- decode ---- */

static const uint32_t edges[] = {1, 15, 16, 17, 63, 64, 65, 66, 127, 128, 129, 130, 257, 700};

static void decode_is_the_formula_for_every_head_dim_and_group(void) {
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256}, groups[] = {1, 3, 4, 8, 16};
    for (uint32_t d = 0; d < INFERD_COUNT(dims); d++)
        for (uint32_t g = 0; g < INFERD_COUNT(groups); g++) {
            uint32_t n_kv_heads = 1 + (d + g) % 2;
            shape s = {CU_BF16, d % 2 ? CU_F16 : CU_BF16, n_kv_heads * groups[g], n_kv_heads,
                       dims[d]};
            check_decode(s, edges, INFERD_COUNT(edges), (manner){0}, 100 + d * 10 + g);
        }
}

static void decode_is_the_formula_for_all_types(void) {
    for (int i = 0; i < 4; i++) {
        shape s = {i & 1 ? CU_F16 : CU_BF16, i & 2 ? CU_F16 : CU_BF16, 6, 2, 64};
        check_decode(s, edges, INFERD_COUNT(edges), (manner){0}, 200 + (uint64_t)i);
    }
}

static void decode_is_the_formula_for_odd_dimensions_and_many_heads(void) {
    static const uint32_t dims[] = {8, 24, 40, 72, 88, 104, 120, 136, 200, 248};
    static const uint32_t lens[] = {3, 70, 150};
    for (uint32_t i = 0; i < INFERD_COUNT(dims); i++)
        check_decode((shape){CU_F16, CU_F16, 4, 2, dims[i]}, lens, 3, (manner){0}, 300 + i);
    /* 17, 40 query heads per key head: two and three passes over the keys */
    check_decode((shape){CU_F16, CU_F16, 34, 2, 64}, lens, 3, (manner){0}, 310);
    check_decode((shape){CU_BF16, CU_BF16, 40, 1, 32}, lens, 3, (manner){.n_sms = 1}, 311);
}

static void decode_sees_its_window_only(void) {
    static const uint32_t windows[] = {1, 2, 5, 16, 17, 100, 129, 160};
    for (uint32_t i = 0; i < INFERD_COUNT(windows); i++)
        check_decode((shape){CU_F16, CU_F16, 4, 2, 64, windows[i]}, edges, INFERD_COUNT(edges),
                     (manner){0}, 400 + i);
    check_decode((shape){CU_BF16, CU_BF16, 4, 1, 128, 100, 5}, edges, INFERD_COUNT(edges),
                 (manner){0}, 420);
}

static void decode_caps_scores(void) {
    static const float caps[] = {0.5f, 2, 50};
    for (uint32_t i = 0; i < INFERD_COUNT(caps); i++)
        check_decode((shape){CU_F16, CU_F16, 4, 2, 64, 0, caps[i]}, edges, INFERD_COUNT(edges),
                     (manner){0}, 430 + i);
}

static void decode_of_a_long_row_stays_within_the_splits(void) {
    /* 32 splits of 256; one chunk more than 64 splits of 256, so splits grow */
    static const uint32_t lens[] = {8192, 64 * 256 + 5, 20};
    check_decode((shape){CU_F16, CU_F16, 2, 1, 16}, lens, 3, (manner){0}, 500);
    /* 64 splits of 2112: a warp finds the places of its 33 chunks in two goes */
    static const uint32_t very_long[] = {132000};
    check_decode((shape){CU_F16, CU_F16, 1, 1, 8}, very_long, 1, (manner){0}, 501);
}

static void a_graph_of_a_larger_bucket_serves_a_small_batch(void) {
    static const uint32_t lens[] = {5, 300, 64, 1};
    manner how = {.extra_decode = 3, .extra_tiles = 4, .extra_context = 5000};
    check_decode((shape){CU_BF16, CU_BF16, 4, 2, 64}, lens, 4, how, 510);
    static const uint32_t from[] = {0, 290, 63, 0}, to[] = {5, 300, 64, 1};
    check((shape){CU_BF16, CU_BF16, 4, 2, 64}, from, to, 4, how, 511, "mixed");
}

static void a_small_workspace_takes_more_launches(void) {
    static const uint32_t lens[] = {5, 300, 64, 1, 200, 140, 18};
    check_decode((shape){CU_BF16, CU_BF16, 4, 2, 64}, lens, 7, (manner){.workspace_rows = 2}, 520);
    check_decode((shape){CU_BF16, CU_BF16, 4, 2, 64}, lens, 7,
                 (manner){.workspace_rows = 1, .extra_decode = 2, .n_sms = 1}, 521);
}

static void a_decode_row_has_the_same_bits_alone_and_among_others(void) {
    static const uint32_t lens[] = {700, 64, 129, 300, 2000, 17};
    static const shape shapes[] = {{CU_BF16, CU_BF16, 8, 2, 64}, {CU_F16, CU_F16, 17, 1, 80, 130}};
    for (uint32_t k = 0; k < INFERD_COUNT(shapes); k++) {
        cuda_rig r;
        world w;
        begin(&r);
        world_init(&w, shapes[k], lens, 6, 530 + k);
        uint32_t from[6], none[6];
        for (uint32_t i = 0; i < 6; i++) from[i] = none[i] = lens[i] - 1;
        step all = step_run(&r, &w, from, lens, (manner){0});
        expect_formula(&w, &all, "all rows");
        for (uint32_t i = 0; i < 6; i++) {
            uint32_t to[6];
            memcpy(to, none, sizeof to);
            to[i] = lens[i];
            manner how = {.n_sms = 1 + i % 3, .extra_decode = i % 2, .extra_context = i * 400};
            step one = step_run(&r, &w, from, to, how);
            expect_same_bits(&one, &all, "a row alone");
            step_deinit(&one);
        }
        step_deinit(&all);
        world_deinit(&w);
        rig_close(&r);
    }
}

/* ---- prefill ---- */

static void prefill_is_the_formula_for_every_head_dim_and_group(void) {
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256}, groups[] = {1, 3, 4};
    static const uint32_t from[] = {0, 0, 3, 60}, to[] = {2, 70, 20, 202};
    for (uint32_t d = 0; d < INFERD_COUNT(dims); d++)
        for (uint32_t g = 0; g < INFERD_COUNT(groups); g++) {
            uint32_t n_kv_heads = 1 + (d + g) % 2;
            shape s = {CU_BF16, d % 2 ? CU_F16 : CU_BF16, n_kv_heads * groups[g], n_kv_heads,
                       dims[d]};
            check(s, from, to, 4, (manner){0}, 600 + d * 10 + g, "prefill");
        }
}

static void prefill_is_the_formula_at_the_edges_of_tiles(void) {
    static const uint32_t from[] = {0, 0, 0, 0, 0, 1, 63, 64, 127, 500},
                          to[] = {15, 16, 17, 33, 129, 3, 65, 66, 160, 502};
    static const uint32_t dims[] = {64, 256};
    for (uint32_t d = 0; d < 2; d++)
        check((shape){CU_F16, CU_F16, 2, 1, dims[d]}, from, to, 10, (manner){0}, 640 + d,
              "prefill");
}

static void prefill_is_the_formula_for_all_types_and_odd_dimensions(void) {
    static const uint32_t from[] = {0, 17}, to[] = {40, 90};
    for (int i = 0; i < 4; i++)
        check((shape){i & 1 ? CU_F16 : CU_BF16, i & 2 ? CU_F16 : CU_BF16, 2, 1, 64}, from, to, 2,
              (manner){0}, 650 + (uint64_t)i, "prefill");
    static const uint32_t dims[] = {8, 24, 72, 88, 104, 136, 248};
    for (uint32_t i = 0; i < INFERD_COUNT(dims); i++)
        check((shape){CU_F16, CU_F16, 2, 1, dims[i]}, from, to, 2, (manner){0}, 660 + i, "prefill");
}

static void prefill_sees_its_window_only(void) {
    static const uint32_t windows[] = {1, 5, 16, 64, 65, 100, 150};
    static const uint32_t from[] = {0, 300, 130, 65}, to[] = {200, 330, 132, 128};
    for (uint32_t i = 0; i < INFERD_COUNT(windows); i++)
        check((shape){CU_F16, CU_F16, 2, 1, i % 2 ? 64 : 256, windows[i]}, from, to, 4, (manner){0},
              670 + i, "prefill");
    check((shape){CU_BF16, CU_F16, 2, 2, 80, 40, 3}, from, to, 4, (manner){0}, 680, "prefill");
}

/* One key at the end of a tile of keys decides: the first row's oldest key is the last of its tile,
 * or the last row's newest unseen key is the first of its tile, and no diagonal crosses the tile.
 * */
static void prefill_sees_its_window_to_the_key(void) {
    static const struct {
        uint32_t head_dim, window, from, to;
    } at[] = {{64, 5, 67, 80},     {256, 5, 67, 80},  {64, 1, 127, 130}, {64, 100, 150, 165},
              {64, 100, 215, 229}, {256, 40, 66, 73}, {256, 40, 99, 105}};
    for (uint32_t i = 0; i < INFERD_COUNT(at); i++)
        check((shape){CU_F16, CU_F16, 12, 1, at[i].head_dim, at[i].window}, &at[i].from, &at[i].to,
              1, (manner){0}, 684 + i, "prefill");
}

static void prefill_of_a_long_prefix_finds_its_chunks_in_batches(void) {
    /* a block knows the places of 2048 tokens at a time */
    static const uint32_t from[] = {2040, 4100}, to[] = {2060, 4103};
    check((shape){CU_F16, CU_F16, 1, 1, 16}, from, to, 2, (manner){0}, 690, "prefill");
    check((shape){CU_F16, CU_F16, 1, 1, 136}, from, to, 2, (manner){0}, 691, "prefill");
    check((shape){CU_F16, CU_F16, 1, 1, 16, 2500}, from, to, 2, (manner){0}, 692, "prefill");
}

static void a_prompt_has_the_same_bits_however_it_is_cut(void) {
    static const uint32_t lens[] = {330, 40}, zero[] = {0, 0};
    static const uint32_t cuts[] = {1, 63, 64, 129, 200};
    static const shape shapes[] = {{CU_BF16, CU_BF16, 2, 1, 64}, {CU_F16, CU_F16, 1, 1, 256, 70}};
    for (uint32_t k = 0; k < 2; k++) {
        cuda_rig r;
        world w;
        begin(&r);
        world_init(&w, shapes[k], lens, 2, 700 + k);
        step all = step_run(&r, &w, zero, lens, (manner){0});
        expect_formula(&w, &all, "whole prompts");
        for (uint32_t i = 0; i < INFERD_COUNT(cuts); i++) {
            uint32_t from[] = {cuts[i], 40}; // the other sequence is absent
            step rest = step_run(&r, &w, from, lens, (manner){0});
            expect_same_bits(&rest, &all, "a prompt's rest");
            step_deinit(&rest);
        }
        step_deinit(&all);
        world_deinit(&w);
        rig_close(&r);
    }
}

/* ---- both ---- */

static void decode_and_prefill_agree(void) {
    static const uint32_t lens[] = {150}, zero[] = {0};
    static const uint32_t at[] = {1, 16, 64, 130, 149};
    for (int k = 0; k < 2; k++) {
        cuda_rig r;
        world w;
        begin(&r);
        world_init(&w, (shape){CU_F16, CU_F16, 4, 1, k ? 128 : 32, k ? 60 : 0}, lens, 1, 800 + k);
        step all = step_run(&r, &w, zero, lens, (manner){0});
        for (uint32_t i = 0; i < INFERD_COUNT(at); i++) {
            uint32_t from[] = {at[i]}, to[] = {at[i] + 1};
            step one = step_run(&r, &w, from, to, (manner){0});
            float a[4 * 128], b[4 * 128];
            rig_to_f32(CU_F16, a, one.out, one.width);
            rig_to_f32(CU_F16, b, all.out + (size_t)at[i] * all.out_stride, all.width);
            EXPECT(rig_error_f32(a, b, one.width) <= rig_tolerance("attention", CU_F16));
            step_deinit(&one);
        }
        step_deinit(&all);
        world_deinit(&w);
        rig_close(&r);
    }
}

static void a_mixed_batch_is_the_formula(void) {
    static const uint32_t from[] = {0, 99, 299, 10, 0, 16, 200},
                          to[] = {140, 100, 300, 12, 1, 33, 201};
    check((shape){CU_BF16, CU_BF16, 8, 2, 64}, from, to, 7, (manner){0}, 810, "mixed");
    check((shape){CU_F16, CU_BF16, 4, 4, 128, 48}, from, to, 7, (manner){0}, 811, "mixed");
}

/* One split, several splits, and prefill; the shape of gpt-oss with and without its window. */
static void sinks_take_their_share(void) {
    static const uint32_t from[] = {0, 9, 299, 10, 0, 700}, to[] = {40, 10, 300, 12, 1, 701};
    static const shape shapes[] = {{CU_BF16, CU_BF16, 64, 8, 64, 0, 0, true},
                                   {CU_BF16, CU_F16, 16, 2, 64, 128, 0, true},
                                   {CU_F16, CU_F16, 20, 1, 128, 0, 5, true}}; // two passes
    for (uint32_t i = 0; i < INFERD_COUNT(shapes); i++)
        check(shapes[i], from, to, i == 0 ? 5 : 6, (manner){0}, 840 + i, "sinks");
}

/* A sink above all scores by hundreds leaves nothing; one far below changes nothing. */
static void a_sink_may_be_far_from_the_scores(void) {
    static const uint32_t lens[] = {30, 400}, from[] = {0, 399};
    cuda_rig r;
    world w;
    begin(&r);
    world_init(&w, (shape){CU_BF16, CU_BF16, 2, 1, 64, 0, 0, true}, lens, 2, 850);
    w.sinks[0] = 400;
    w.sinks[1] = -400;
    step t = step_run(&r, &w, from, lens, (manner){0});
    expect_formula(&w, &t, "far sinks");
    for (uint32_t i = 0; i < t.n_rows; i++)
        for (uint32_t d = 0; d < 64; d++)
            EXPECT_EQ(t.out[(size_t)i * t.out_stride + d] & 0x7fff, 0);
    step_deinit(&t);
    world_deinit(&w);
    rig_close(&r);
}

/* Heads of the families: groups of 1, 4 and 8, dimensions of 64, 96 and 128. */
static void heads_of_the_families_are_the_formula(void) {
    static const uint32_t from[] = {0, 60}, to[] = {20, 61};
    static const shape shapes[] = {{CU_BF16, CU_BF16, 32, 4, 128}, // qwen3-30b-a3b
                                   {CU_BF16, CU_BF16, 32, 8, 128}, // mixtral
                                   {CU_BF16, CU_F16, 32, 32, 96},  // phi3
                                   {CU_F16, CU_F16, 32, 8, 64}};   // granite
    for (uint32_t i = 0; i < INFERD_COUNT(shapes); i++)
        check(shapes[i], from, to, 2, (manner){0}, 860 + i, "families");
}

static void the_order_of_threads_changes_nothing(void) {
    static const uint32_t from[] = {0, 699, 299, 10}, to[] = {140, 700, 300, 12};
    static const shape shapes[] = {{CU_BF16, CU_BF16, 4, 1, 64}, {CU_F16, CU_F16, 2, 1, 256, 100}};
    for (uint32_t k = 0; k < 2; k++) {
        cuda_rig r;
        world w;
        begin(&r);
        world_init(&w, shapes[k], to, 4, 820 + k);
        step in_order = step_run(&r, &w, from, to, (manner){.n_sms = 1});
        expect_formula(&w, &in_order, "in order");
        for (uint64_t seed = 1; seed <= 2; seed++) {
            if (!rig_is_real(&r))
                emul_set_options(&(emul_options){.seed = seed * 77, .shuffle = true});
            step other = step_run(&r, &w, from, to, (manner){.n_sms = (uint32_t)seed});
            expect_same_bits(&other, &in_order, "another order");
            step_deinit(&other);
        }
        if (!rig_is_real(&r)) emul_set_options(&(emul_options){.seed = 1});
        step_deinit(&in_order);
        world_deinit(&w);
        rig_close(&r);
    }
}

static void every_block_waits_for_the_predecessor(void) {
    static const uint32_t lens[] = {5, 30}, from[] = {4, 29}, zero[] = {0, 0};
    cuda_rig r;
    world w;
    begin(&r);
    if (rig_is_real(&r)) {
        rig_close(&r);
        SKIP("only emulation knows");
    }
    manner how = {.extra_decode = 2, .extra_tiles = 2, .extra_context = 2000};
    world_init(&w, (shape){CU_BF16, CU_BF16, 4, 2, 64}, lens, 2, 830);
    step decode = step_run(&r, &w, from, lens, how);
    EXPECT(emul_waited()); // of the prefill launch, which has surplus tiles only
    EXPECT(emul_released());
    how.extra_tiles = 0;
    step only = step_run(&r, &w, from, lens, how);
    EXPECT(emul_waited());
    EXPECT(emul_released());
    how = (manner){.extra_tiles = 3};
    step prefill = step_run(&r, &w, zero, lens, how);
    EXPECT(emul_waited());
    EXPECT(emul_released());
    step_deinit(&decode);
    step_deinit(&only);
    step_deinit(&prefill);
    world_deinit(&w);
    rig_close(&r);
}

/* ---- host side ---- */

static void splits_cover_the_context_and_stay_in_bounds(void) {
    uint32_t most = 0;
    for (uint32_t n = 1; n <= 20000; n++) {
        uint32_t per = attention_split_chunks(n), splits = attention_n_splits(n);
        EXPECT(per >= 8 && per % 4 == 0);
        EXPECT(splits * per >= n && (splits - 1) * per < n); // none is empty
        EXPECT(splits <= ATTENTION_SPLITS_MAX);
        most = u32_max(most, splits);
        EXPECT(most <= attention_n_splits_bound(n));
        EXPECT(attention_n_splits_bound(n) <= ATTENTION_SPLITS_MAX);
        if (test_failures > 0) return;
    }
    EXPECT_EQ(attention_n_splits(1), 1);
    EXPECT_EQ(attention_n_splits(8), 1);
    EXPECT_EQ(attention_n_splits(9), 2);
    EXPECT_EQ(attention_n_splits_bound(8), 1);
    EXPECT_EQ(attention_n_splits(128), 16);
    EXPECT_EQ(attention_n_splits(1024), 64);
    EXPECT_EQ(attention_n_splits(8192), 64);
}

static void blocks_fit_where_they_are_meant_to(void) {
    static const uint32_t dims[] = {64, 80, 96, 128, 256};
    static const uint32_t blocks_90[] = {5, 3, 3, 3, 2}; // the launch bounds of attention.cu
    for (uint32_t i = 0; i < INFERD_COUNT(dims); i++) {
        EXPECT(attention_decode_shared(dims[i]) + 1024 <= 228 * 1024 / blocks_90[i]);
        EXPECT(attention_prefill_shared(dims[i]) + 1024 <= 164 * 1024 / 2);
        EXPECT(attention_prefill_shared(dims[i]) <= 99 * 1024);
        EXPECT_EQ(attention_row_units(dims[i]) % 2, 1);
    }
}

static void the_plan_holds_every_row_once_longest_first(void) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        enum { SEQS = 200 };
        step_seq seqs[SEQS];
        static uint32_t decode_rows[SEQS], seen[SEQS * 300];
        static step_tile tiles[SEQS * 4];
        rig_seed(seed);
        step_header h = {.n_seqs = rig_below(SEQS + 1)};
        for (uint32_t i = 0; i < h.n_seqs; i++) {
            uint32_t n = rig_below(3) ? 1 : 2 + rig_below(299);
            seqs[i] =
                (step_seq){h.n_rows, n, rig_below(4) ? rig_below(5000) : rig_below(5), 0, 0, {0}};
            h.n_rows += n;
        }
        attention_plan(&h, seqs, decode_rows, tiles);
        memset(seen, 0, sizeof seen);
        uint32_t before = UINT32_MAX;
        for (uint32_t i = 0; i < h.n_decode; i++) {
            uint32_t seq = 0;
            while (seqs[seq].row_begin != decode_rows[i]) seq++;
            EXPECT_EQ(seqs[seq].n_rows, 1);
            uint32_t length = seqs[seq].pos_begin + 1;
            EXPECT(length <= before || length - before <= before / 4);
            before = u32_min(before, length);
            seen[decode_rows[i]]++;
        }
        before = UINT32_MAX;
        for (uint32_t i = 0; i < h.n_tiles; i++) {
            step_tile t = tiles[i];
            const step_seq *s = &seqs[t.seq];
            EXPECT(t.n_rows > 0 && t.n_rows <= ATTENTION_TILE_ROWS && s->n_rows > 1);
            EXPECT(t.row_begin >= s->row_begin &&
                   t.row_begin + t.n_rows <= s->row_begin + s->n_rows);
            uint32_t length = s->pos_begin + t.row_begin - s->row_begin + t.n_rows;
            EXPECT(length <= before || length - before <= before / 4);
            before = u32_min(before, length);
            for (uint32_t j = 0; j < t.n_rows; j++) seen[t.row_begin + j]++;
        }
        EXPECT(h.n_tiles <= attention_tiles_max(h.n_rows, h.n_seqs));
        for (uint32_t i = 0; i < h.n_rows; i++) EXPECT_EQ(seen[i], 1);
        if (test_failures > 0) {
            printf("seed %" PRIu64 "\n", seed);
            return;
        }
    }
}

static void shapes_without_a_kernel_are_named(void) {
    inferd_err err = {0};
    EXPECT_EQ(attention_supported(32, 8, 128, &err), INFERD_OK);
    EXPECT_EQ(attention_supported(1, 1, 8, &err), INFERD_OK);
    EXPECT_EQ(attention_supported(8, 4, 256, &err), INFERD_OK);
    EXPECT_EQ(attention_supported(9, 2, 64, &err), INFERD_EUNSUPPORTED);
    EXPECT_STR(err.text, "9 query heads do not share 2 key heads evenly");
    EXPECT_EQ(attention_supported(8, 2, 264, &err), INFERD_EUNSUPPORTED);
    EXPECT_STR(err.text, "heads of 264 dimensions: expected a multiple of 8 up to 256");
    EXPECT_EQ(attention_supported(8, 2, 100, &err), INFERD_EUNSUPPORTED);
    EXPECT_EQ(attention_supported(8, 0, 64, &err), INFERD_EUNSUPPORTED);
    EXPECT_EQ(attention_supported(8, 2, 0, &err), INFERD_EUNSUPPORTED);
}

static void the_workspace_has_an_upper_end(void) {
    size_t row = (size_t)32 * ATTENTION_SPLITS_MAX * (128 + 2) * 4;
    EXPECT_EQ(attention_partials_bytes(0, 32, 128), 0);
    EXPECT_EQ(attention_partials_bytes(3, 32, 128), 3 * row);
    EXPECT_EQ(attention_partials_bytes(1000, 32, 128), ATTENTION_PARTIALS_BYTES);
    EXPECT(attention_partials_bytes(1000, 4096, 256) > ATTENTION_PARTIALS_BYTES); // one row
    EXPECT_EQ(attention_counters(7, 8), 56);
}

/* Rows of a launch, of n rows of 32 heads of 128 that see `context` tokens. */
static uint32_t launch_rows(uint32_t n, uint32_t context, size_t partials_bytes) {
    attention_workspace w = {.partials_bytes = partials_bytes, .n_counters = 256 * 8};
    return attention_launch_rows(&w, &(attention_args){.n_decode = n,
                                                       .context_max = context,
                                                       .n_heads = 32,
                                                       .n_kv_heads = 8,
                                                       .head_dim = 128});
}

/* 252 of 256 rows of 2k tokens fit, and the other 4 had a launch of their own in every layer. */
static void launches_of_a_batch_are_about_equal(void) {
    size_t most = ATTENTION_PARTIALS_BYTES, row = attention_partials_bytes(1, 32, 128);
    EXPECT_EQ(launch_rows(252, 2048, most), 252);
    EXPECT_EQ(launch_rows(256, 2048, most), 128);
    EXPECT_EQ(launch_rows(256, 1024, most), 256);
    EXPECT_EQ(launch_rows(256, 128, 0), 256);      // one split: no partials
    EXPECT_EQ(launch_rows(256, 100000, most), 52); // 63 fit: 5 launches
    EXPECT_EQ(launch_rows(5, 100000, row), 1);
    EXPECT_EQ(launch_rows(5, 100000, 3 * row), 3);
    for (uint32_t n = 1; n <= 256; n++)
        for (size_t rows = 1; rows <= 64; rows++) {
            uint32_t each = launch_rows(n, 100000, rows * row), n_launches = (n + each - 1) / each;
            EXPECT(each <= rows && n_launches == (n + rows - 1) / rows);
            EXPECT(n_launches * each - n < n_launches);
        }
}

/* A launch for a bucket has room for every row of it, and for none of 16384 tokens or more there is
 * a larger one. */
static void contexts_of_a_bucket_have_its_splits(void) {
    static const uint32_t n_splits[] = {4, 8, 16, 32, 64}, windows[] = {1, 500, 1024, 4096, 40000};
    uint32_t n = 0, before = 0;
    for (uint32_t context = 1; context <= 300000; context += 13) {
        uint32_t bucket = attention_context_bucket(context);
        n += bucket != before;
        before = bucket;
        EXPECT(bucket >= context || bucket == 16384);
        uint32_t most = attention_n_splits_bound(bucket / ATTENTION_CHUNK);
        EXPECT_EQ(most, n_splits[n - 1]);
        for (uint32_t i = 0; i <= INFERD_COUNT(windows); i++) {
            uint32_t chunks = (context + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
            uint32_t of_bucket = bucket / ATTENTION_CHUNK;
            if (i < INFERD_COUNT(windows)) {
                uint32_t seen = (windows[i] - 1 + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK + 1;
                chunks = u32_min(chunks, seen);
                of_bucket = u32_min(of_bucket, seen);
            }
            EXPECT(attention_n_splits(chunks) <= attention_n_splits_bound(of_bucket));
        }
    }
    EXPECT_EQ(n, 5);
}

static const test_case cases[] = {
    TEST(splits_cover_the_context_and_stay_in_bounds),
    TEST(blocks_fit_where_they_are_meant_to),
    TEST(the_plan_holds_every_row_once_longest_first),
    TEST(shapes_without_a_kernel_are_named),
    TEST(the_workspace_has_an_upper_end),
    TEST(launches_of_a_batch_are_about_equal),
    TEST(contexts_of_a_bucket_have_its_splits),
    TEST(decode_is_the_formula_for_every_head_dim_and_group),
    TEST(decode_is_the_formula_for_all_types),
    TEST(decode_is_the_formula_for_odd_dimensions_and_many_heads),
    TEST(decode_sees_its_window_only),
    TEST(decode_caps_scores),
    TEST(decode_of_a_long_row_stays_within_the_splits),
    TEST(a_graph_of_a_larger_bucket_serves_a_small_batch),
    TEST(a_small_workspace_takes_more_launches),
    TEST(a_decode_row_has_the_same_bits_alone_and_among_others),
    TEST(prefill_is_the_formula_for_every_head_dim_and_group),
    TEST(prefill_is_the_formula_at_the_edges_of_tiles),
    TEST(prefill_is_the_formula_for_all_types_and_odd_dimensions),
    TEST(prefill_sees_its_window_only),
    TEST(prefill_sees_its_window_to_the_key),
    TEST(prefill_of_a_long_prefix_finds_its_chunks_in_batches),
    TEST(a_prompt_has_the_same_bits_however_it_is_cut),
    TEST(decode_and_prefill_agree),
    TEST(a_mixed_batch_is_the_formula),
    TEST(sinks_take_their_share),
    TEST(a_sink_may_be_far_from_the_scores),
    TEST(heads_of_the_families_are_the_formula),
    TEST(the_order_of_threads_changes_nothing),
    TEST(every_block_waits_for_the_predecessor),
};

TEST_MAIN(cases)
