/* test_attention.c - attention of the CPU backend, at every level this machine has, against the
 * formula in double precision written out here, and against itself in other batches. */
#include "cpu_rig.h"

enum { SEQS = 3, LEN_MAX = 40 };
static const uint32_t seq_lens[SEQS] = {1, 23, 40};

typedef struct attn_case {
    kv_type type;
    uint32_t n_heads, n_kv_heads, head_dim, block_tokens, window;
    float softcap;
} attn_case;

static const attn_case attn_cases[] = {
    {KV_F16, 3, 3, 16, 16, 0, 0},  {KV_F16, 9, 3, 64, 16, 0, 0},    {KV_F16, 8, 1, 80, 16, 0, 0},
    {KV_F16, 5, 1, 128, 32, 0, 0}, {KV_BF16, 9, 3, 64, 16, 0, 0},   {KV_F32, 4, 2, 64, 16, 0, 0},
    {KV_F16, 4, 2, 20, 8, 0, 0},   {KV_F32, 2, 1, 7, 5, 0, 0},      {KV_F16, 9, 3, 64, 16, 7, 0},
    {KV_F16, 2, 2, 64, 16, 17, 0}, {KV_F16, 4, 1, 64, 16, 0, 0.5f}, {KV_BF16, 6, 2, 96, 48, 16, 2},
};

/* The values that attention sees: what the layers of the model would compute. */
typedef struct attn_data {
    attn_case c;
    kv_layout kv;
    uint32_t n_rows;  // of all sequences together
    float *q, *k, *v; // [n_rows, ...], the rows of sequence 0 first
    int32_t *slots[SEQS];
} attn_data;

enum { LAYERS = 6, GROUP_LAYERS = 3, LAYER = 4, OTHER_LAYER = 1 };

static void attn_data_init(attn_data *a, backend *be, attn_case c) {
    *a = (attn_data){.c = c};
    a->kv = (kv_layout){.type = c.type,
                        .n_layers = LAYERS,
                        .n_kv_heads = c.n_kv_heads,
                        .head_dim = c.head_dim,
                        .block_tokens = c.block_tokens,
                        .group_layers = GROUP_LAYERS,
                        .n_groups = LAYERS / GROUP_LAYERS};
    a->kv.layer_bytes = be_kv_layer_bytes(be, c.type, c.n_kv_heads, c.head_dim, c.block_tokens);
    EXPECT_EQ(a->kv.layer_bytes % 64, 0);
    a->kv.slot_bytes = a->kv.layer_bytes * GROUP_LAYERS;
    a->kv.slots_per_page = (uint32_t)(be_page_bytes(be) / a->kv.slot_bytes);
    for (uint32_t s = 0; s < SEQS; s++) a->n_rows += seq_lens[s];
    a->q = random_floats((size_t)a->n_rows * c.n_heads * c.head_dim);
    a->k = random_floats((size_t)a->n_rows * c.n_kv_heads * c.head_dim);
    a->v = random_floats((size_t)a->n_rows * c.n_kv_heads * c.head_dim);
    /* Slots in no order, spread over the pages that are not in the window. */
    uint32_t n_slots = (ARENA_PAGES - WINDOW_PAGES) * a->kv.slots_per_page;
    bool *used = calloc(n_slots, sizeof *used);
    for (uint32_t s = 0; s < SEQS; s++) {
        uint32_t n = kv_blocks_of(&a->kv, seq_lens[s]) * a->kv.n_groups;
        a->slots[s] = malloc(n * sizeof *a->slots[s]);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t slot = random_u32() % n_slots;
            while (used[slot]) slot = (slot + 1) % n_slots;
            used[slot] = true;
            a->slots[s][i] = (int32_t)(WINDOW_PAGES * a->kv.slots_per_page + slot);
        }
    }
    free(used);
}

static void attn_data_deinit(attn_data *a) {
    free(a->q);
    free(a->k);
    free(a->v);
    for (uint32_t s = 0; s < SEQS; s++) free(a->slots[s]);
}

static uint32_t seq_first(uint32_t seq) {
    uint32_t first = 0;
    for (uint32_t s = 0; s < seq; s++) first += seq_lens[s];
    return first;
}

typedef struct attn_acts {
    weight tq, tk, tv;
    act *q, *k, *v, *out;
} attn_acts;

/* One step: rows [from[s], to[s]) of each sequence; results into out by row. */
static void attn_step(device *d, attn_data *a, attn_acts *t, const uint32_t *from,
                      const uint32_t *to, float *out) {
    rows_batch r;
    batch_seq seqs[SEQS];
    uint32_t n = 0, n_seqs = 0, width = a->c.n_heads * a->c.head_dim;
    memset(&r, 0, sizeof r);
    for (uint32_t s = 0; s < SEQS; s++) {
        if (from[s] >= to[s]) continue;
        seqs[n_seqs] = (batch_seq){n, to[s] - from[s], from[s], kv_blocks_of(&a->kv, seq_lens[s]),
                                   a->slots[s]};
        for (uint32_t i = from[s]; i < to[s]; i++, n++) {
            r.tokens[n] = (tok_id)(seq_first(s) + i);
            r.positions[n] = i;
            r.row_seq[n] = n_seqs;
        }
        n_seqs++;
    }
    r.b = (batch){.n_rows = n,
                  .n_seqs = n_seqs,
                  .tokens = r.tokens,
                  .positions = r.positions,
                  .row_seq = r.row_seq,
                  .seqs = seqs,
                  .logit_rows = r.logit_rows,
                  .promised = r.promised};
    attn_spec spec = {a->c.n_heads, a->c.n_kv_heads, a->c.head_dim, 1 / sqrtf((float)a->c.head_dim),
                      a->c.softcap, a->c.window};
    be_step_begin(d->be, &r.b, &a->kv);
    /* Another layer with other keys first: layers must not share memory. */
    be_embed(d->be, t->q, &t->tq, 1);
    be_embed(d->be, t->k, &t->tk, -2);
    be_embed(d->be, t->v, &t->tv, 5);
    be_attention(d->be, t->out, t->q, t->k, t->v, OTHER_LAYER, &spec);
    be_embed(d->be, t->k, &t->tk, 1);
    be_embed(d->be, t->v, &t->tv, 1);
    be_attention(d->be, t->out, t->q, t->k, t->v, LAYER, &spec);
    sync_ok(d);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (size_t)r.tokens[i] * width, be_act_host(d->be, t->out) + (size_t)i * width,
               width * sizeof *out);
}

static attn_acts attn_acts_open(device *d, attn_data *a) {
    uint32_t width = a->c.n_heads * a->c.head_dim, kv_width = a->c.n_kv_heads * a->c.head_dim;
    d->next = be_window_base(d->window);
    return (attn_acts){make_table(d, a->q, a->n_rows, width),
                       make_table(d, a->k, a->n_rows, kv_width),
                       make_table(d, a->v, a->n_rows, kv_width),
                       be_act_open(d->be, ACT_INNER, a->n_rows, width),
                       be_act_open(d->be, ACT_INNER, a->n_rows, kv_width),
                       be_act_open(d->be, ACT_INNER, a->n_rows, kv_width),
                       be_act_open(d->be, ACT_INNER, a->n_rows, width)};
}

static void attn_acts_close(device *d, attn_acts *t) {
    be_act_close(d->be, t->q);
    be_act_close(d->be, t->k);
    be_act_close(d->be, t->v);
    be_act_close(d->be, t->out);
}

/* Every sequence, `chunk` positions per step, all sequences together or one after the other. */
static void attn_in_chunks(device *d, attn_data *a, uint32_t chunk, bool together, float *out) {
    attn_acts t = attn_acts_open(d, a);
    for (uint32_t alone = 0; alone < (together ? 1 : SEQS); alone++) {
        for (uint32_t begin = 0; begin < LEN_MAX; begin += chunk) {
            uint32_t from[SEQS] = {0}, to[SEQS] = {0}, n = 0;
            for (uint32_t s = 0; s < SEQS; s++) {
                if (!together && s != alone) continue;
                from[s] = begin;
                to[s] = u32_min(begin + chunk, seq_lens[s]);
                n += to[s] > from[s];
            }
            if (n > 0) attn_step(d, a, &t, from, to, out);
        }
    }
    attn_acts_close(d, &t);
}

static double as_stored(kv_type type, float x) {
    return type == KV_F32   ? (double)x
           : type == KV_F16 ? (double)f16_to_f32(f32_to_f16(x))
                            : (double)bf16_to_f32(f32_to_bf16(x));
}

static void expect_attention(const attn_data *a, const char *level, const float *got) {
    const attn_case *c = &a->c;
    static const char *const ops[] = {"attention f16", "attention bf16", "attention f32"};
    double tolerance = tolerance_of(c->softcap != 0 ? "attention softcap" : ops[c->type]);
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t pos = 0; pos < seq_lens[s]; pos++) {
            for (uint32_t head = 0; head < c->n_heads; head++) {
                uint32_t kv_head = head / (c->n_heads / c->n_kv_heads);
                size_t row = seq_first(s) + pos;
                const float *q = a->q + (row * c->n_heads + head) * c->head_dim;
                double p[LEN_MAX], max = -1e30, total = 0;
                uint32_t begin = c->window != 0 && pos + 1 > c->window ? pos + 1 - c->window : 0;
                for (uint32_t at = begin; at <= pos; at++) {
                    const float *k =
                        a->k + ((seq_first(s) + at) * c->n_kv_heads + kv_head) * c->head_dim;
                    p[at] = 0;
                    for (uint32_t i = 0; i < c->head_dim; i++)
                        p[at] += (double)q[i] * as_stored(c->type, k[i]);
                    p[at] /= sqrt(c->head_dim);
                    if (c->softcap != 0)
                        p[at] = (double)c->softcap * tanh(p[at] / (double)c->softcap);
                    max = fmax(max, p[at]);
                }
                for (uint32_t at = begin; at <= pos; at++) total += p[at] = exp(p[at] - max);
                for (uint32_t i = 0; i < c->head_dim; i++) {
                    double sum = 0;
                    for (uint32_t at = begin; at <= pos; at++) {
                        size_t from =
                            ((seq_first(s) + at) * c->n_kv_heads + kv_head) * c->head_dim + i;
                        sum += p[at] * as_stored(c->type, a->v[from]);
                    }
                    expect_close("attention", level,
                                 (double)got[(row * c->n_heads + head) * c->head_dim + i],
                                 sum / total, tolerance);
                }
            }
        }
    }
}

static void attention_is_softmax_over_stored_positions(void) {
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 2)) continue;
        for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
            attn_data a;
            attn_data_init(&a, d.be, attn_cases[c]);
            size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
            float *out = calloc(n, sizeof *out);
            attn_in_chunks(&d, &a, LEN_MAX, true, out);
            expect_attention(&a, level_names[i], out);
            free(out);
            attn_data_deinit(&a);
        }
        device_close(&d);
    }
}

static void attention_does_not_depend_on_the_batch(void) {
    static const uint32_t chunks[] = {1, 7, 16, LEN_MAX};
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
            attn_data a = {0};
            float *one = NULL, *other = NULL;
            for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
                device d;
                if (!device_open(&d, level_names[i], n_threads)) continue;
                if (one == NULL) {
                    attn_data_init(&a, d.be, attn_cases[c]);
                    size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
                    one = calloc(n, sizeof *one);
                    other = calloc(n, sizeof *other);
                    attn_in_chunks(&d, &a, LEN_MAX, true, one);
                }
                for (size_t k = 0; k < INFERD_COUNT(chunks); k++) {
                    for (int together = 0; together < 2; together++) {
                        size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
                        memset(other, 0, n * sizeof *other);
                        attn_in_chunks(&d, &a, chunks[k], together, other);
                        expect_same_bits("attention", level_names[i], other, one, n);
                    }
                }
                device_close(&d);
            }
            if (one != NULL) attn_data_deinit(&a);
            free(one);
            free(other);
        }
    }
}

/* What was in a slot before must not shine through a block that is partly filled. */
static void attention_ignores_what_slots_held_before(void) {
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        device d;
        if (!device_open(&d, level_names[i], 1)) continue;
        attn_data a;
        attn_data_init(&a, d.be, attn_cases[1]);
        size_t n = (size_t)a.n_rows * a.c.n_heads * a.c.head_dim;
        float *out = calloc(n, sizeof *out), *k = a.k;
        /* First every slot is filled with keys and values that are not numbers. */
        float *bad = malloc((size_t)a.n_rows * a.c.n_kv_heads * a.c.head_dim * sizeof *bad);
        for (size_t e = 0; e < (size_t)a.n_rows * a.c.n_kv_heads * a.c.head_dim; e++) bad[e] = NAN;
        float *v = a.v;
        a.k = a.v = bad;
        attn_in_chunks(&d, &a, LEN_MAX, true, out);
        a.k = k;
        a.v = v;
        attn_in_chunks(&d, &a, 1, true, out);
        expect_attention(&a, level_names[i], out);
        free(bad);
        free(out);
        attn_data_deinit(&a);
        device_close(&d);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Steps of one row, then suddenly of many: nothing may be touched for the first time then. */
static void steps_take_no_page_faults_after_warm_up(void) {
#if defined(SANITIZED)
    SKIP("a sanitizer has page faults of its own");
#endif
    device d;
    backend_stats stats;
    if (!device_open(&d, "avx2", 2)) EXPECT(device_open(&d, "base", 2));
    do { // a page taken before the background thread came is counted, and rightly
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        be_get_stats(d.be, &stats);
    } while (stats.n_pages_touched < ARENA_PAGES);
    attn_data a;
    attn_data_init(&a, d.be, attn_cases[1]);
    float *out = calloc((size_t)a.n_rows * a.c.n_heads * a.c.head_dim, sizeof *out);
    attn_in_chunks(&d, &a, 1, true, out);
    attn_in_chunks(&d, &a, LEN_MAX, true, out);
    unsigned char *file = file_rows(DTYPE_Q4_1, 640, 576);
    float *x = random_floats((size_t)ROWS_MAX * 576);
    d.next = be_window_base(d.window);
    weight w = make_weight(&d, DTYPE_Q4_1, 640, 576, file);
    weight table = make_table(&d, x, ROWS_MAX, 576);
    act *in = be_act_open(d.be, ACT_INNER, ROWS_MAX, 576),
        *result = be_act_open(d.be, ACT_INNER, ROWS_MAX, 640);
    for (uint32_t n = 1; n <= ROWS_MAX; n++) {
        rows_batch r;
        step_of_rows(&d, &r, 0, n);
        be_embed(d.be, in, &table, 1);
        be_matmul(d.be, result, in, &w, NULL, n);
        sync_ok(&d);
    }
    be_get_stats(d.be, &stats);
    EXPECT_EQ(stats.n_kv_page_faults, 0);
    EXPECT_EQ(stats.n_kv_driver_calls, 0);
    be_act_close(d.be, in);
    be_act_close(d.be, result);
    attn_data_deinit(&a);
    free(file);
    free(x);
    free(out);
    device_close(&d);
}

static const test_case cases[] = {
    TEST(attention_is_softmax_over_stored_positions),
    TEST(attention_does_not_depend_on_the_batch),
    TEST(attention_ignores_what_slots_held_before),
    TEST(steps_take_no_page_faults_after_warm_up),
};
TEST_MAIN(cases)
