/* bench_kernels.c - the speed of the CPU backend's operations on this machine.
 *
 *     bench_kernels                 a table of all products, and a whole forward pass
 *     bench_kernels Q4_1 8          one type, at most 8 rows
 *     bench_kernels forward         the forward pass alone
 *
 * The table: for each weight type, with float activations (exact) and with quantized activations
 * (qact.h), and for 1 to 128 rows: GOP/s, GB/s of weights, and the share of the limit measured in
 * the same run: memory up to 4 rows, the level's multiply instruction above.  The functions of the
 * level are called directly, on samples of half a millisecond over weights that no cache holds; the
 * best sample is shown.
 *
 * Weights are random bytes with normal scales: speed does not depend on them.  The forward pass has
 * the shape of SmolLM2-135M (30 layers, dim 576, ffn 1536, 9 heads over 3 kv heads, 49152 words),
 * all projections Q4_1 and the head Q8_0, keys and values f16; sampling and the tokenizer are not
 * included.  Times are the best of several runs.  INFERD_CPU and `taskset` choose the level and the
 * CPUs. */
#include <math.h>
#include <string.h>

#include "cpu_roofs.h"
#include "inferd/clock.h"
#include "kernels/backend.h"

enum { DIM = 576, FFN = 1536, LAYERS = 30, HEADS = 9, KV_HEADS = 3, HEAD_DIM = 64, VOCAB = 49152 };
enum { ROWS_MAX = 512, BLOCK_TOKENS = 16, CONTEXT = 128 };

static uint64_t random_state = 1;
static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

/* ---- the table ---- */

enum { TABLE_COLS = 1536, TABLE_ROWS_MAX = 128, MEMORY_ROWS = 4 };
#define TABLE_BYTES ((size_t)160 << 20)
static const uint32_t row_counts[] = {1, 2, 4, 8, 16, 32, 128};

typedef struct bench_table {
    tpool *threads;
    const cpu_level *level;
    unsigned char *weights; // TABLE_BYTES
    float *x, *out;         // [TABLE_ROWS_MAX, TABLE_COLS], [TABLE_ROWS_MAX, any rows of a sample]
    qact q;
    double read_rate, rates[3]; // of the roofs, per second; by cpu_math
} bench_table;

static void *take_memory(size_t n_bytes) {
    void *p = aligned_alloc(2 << 20, (n_bytes + (2 << 20) - 1) >> 21 << 21);
    INFERD_CHECK(p != NULL);
    return p;
}

/* Seconds of the best sample for n rows; each sample uses the next `n_panels` panels. */
static double best_seconds(const bench_table *t, dtype type, cpu_math math, uint32_t n,
                           uint32_t n_panels) {
    size_t sample_bytes = n_panels * panel_bytes(type, TABLE_COLS);
    size_t n_places = TABLE_BYTES / sample_bytes;
    double best = 1e9, until = roof_now() + 0.15;
    for (size_t i = 0; i < 40 || roof_now() < until; i++) {
        weight w = {.type = type, .rows = n_panels * PANEL_ROWS, .cols = TABLE_COLS};
        w.data = t->weights + i % n_places * sample_bytes;
        uint32_t n_units = w.rows / MATMUL_UNIT;
        double begin = roof_now();
        if (math == MATH_F32) {
            matmul_job job = {t->out, t->x, &w, NULL, n};
            tpool_split(t->threads, t->level->matmul, &job, n_units);
        } else {
            qmatmul_job job = {t->q, &w, NULL, NULL, t->out, n, math};
            tpool_split(t->threads, t->level->qmatmul, &job, n_units);
        }
        double seconds = roof_now() - begin;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void bench_type(const bench_table *t, dtype type, bool exact, uint32_t rows_max) {
    cpu_math math = level_math(t->level, type, exact);
    double n_bytes = (double)panel_bytes(type, TABLE_COLS), ops = 2.0 * PANEL_ROWS * TABLE_COLS;
    if (math == MATH_F32 && !exact) return; // supports only the exact method
    printf("%-6s %-5s", dtype_about(type).name, exact ? "exact" : "fast");
    for (size_t i = 0; i < INFERD_COUNT(row_counts) && row_counts[i] <= rows_max; i++) {
        uint32_t n = row_counts[i];
        if (math != MATH_F32) {
            qact_job job = {t->q, t->x, NULL, NULL, n, TABLE_COLS, 0, math};
            tpool_split(t->threads, t->level->quantize, &job, qact_tiles(n));
        }
        /* First an estimate, then a sample of half a millisecond. */
        uint32_t n_panels = 2 * tpool_n_threads(t->threads);
        double seconds = best_seconds(t, type, math, n, n_panels);
        double wanted = 0.0005 / seconds * n_panels, most = (double)TABLE_BYTES / n_bytes / 4;
        if (wanted > n_panels) n_panels = (uint32_t)(wanted < most ? wanted : most);
        seconds = best_seconds(t, type, math, n, n_panels) / n_panels;
        double share = n <= MEMORY_ROWS ? n_bytes / seconds / t->read_rate
                                        : ops * n / seconds / t->rates[math];
        printf(" | %4.0f %5.1f %3.0f%%", 1e-9 * ops * n / seconds, 1e-9 * n_bytes / seconds,
               t->rates[math] > 0 ? 100 * share : 0);
        fflush(stdout);
    }
    printf("\n");
}

static void bench_products(const cpu_level *level, const char *only, uint32_t rows_max) {
    static const dtype types[] = {DTYPE_Q4_1,  DTYPE_Q4_0, DTYPE_Q5_0,   DTYPE_Q5_1,
                                  DTYPE_Q8_0,  DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,
                                  DTYPE_Q2_K,  DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS,
                                  DTYPE_MXFP4, DTYPE_F16,  DTYPE_BF16,   DTYPE_F32};
    bench_table t = {.level = level};
    inferd_err err;
    INFERD_CHECK(tpool_open(0, &t.threads, &err) == INFERD_OK);
    tpool_pin_caller(t.threads);
    t.weights = take_memory(TABLE_BYTES);
    /* Bytes below 0x30: every half among them is a small positive number. */
    for (size_t i = 0; i < TABLE_BYTES; i++) t.weights[i] = (unsigned char)(random_u32() % 0x30);
    t.x = take_memory(sizeof(float) * TABLE_ROWS_MAX * TABLE_COLS);
    for (size_t i = 0; i < (size_t)TABLE_ROWS_MAX * TABLE_COLS; i++)
        t.x[i] = (float)(random_u32() % 2001) - 1000;
    /* The largest sample: a quarter of the weights for few rows, less for many. */
    size_t out_bytes = sizeof(float) * TABLE_ROWS_MAX * 65536;
    t.out = take_memory(out_bytes);
    memset(t.out, 0, out_bytes);
    size_t q_bytes = qact_bytes(TABLE_ROWS_MAX, TABLE_COLS);
    unsigned char *q = take_memory(q_bytes);
    t.q = qact_at(q, TABLE_ROWS_MAX, TABLE_COLS);
    t.read_rate = roof_read(t.threads, t.weights, TABLE_BYTES);
    for (cpu_math math = MATH_F32; math <= (level->has_bf16 ? MATH_BF16 : MATH_I16); math++)
        t.rates[math] = roof_multiply(t.threads, level, math);
    printf("%s, %u threads: reads %.1f GB/s, multiplies f32 %.0f, i16 %.0f, bf16 %.0f GOP/s\n",
           level->name, tpool_n_threads(t.threads), t.read_rate * 1e-9, t.rates[MATH_F32] * 1e-9,
           t.rates[MATH_I16] * 1e-9, t.rates[MATH_BF16] * 1e-9);
    printf("GOP/s, GB/s, share of the bound; rows of x");
    for (size_t i = 0; i < INFERD_COUNT(row_counts); i++) printf(" %u", row_counts[i]);
    printf("\n");
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        if (only != NULL && strcmp(only, dtype_about(types[i]).name) != 0) continue;
        bench_type(&t, types[i], true, rows_max);
        bench_type(&t, types[i], false, rows_max);
    }
    tpool_close(t.threads);
    free(t.weights);
    free(t.x);
    free(t.out);
    free(q);
}

/* Weights are laid out one after another in one window. */
static backend *be;
static unsigned char *next_weight;

static void *take(size_t n_bytes) {
    void *p = next_weight;
    next_weight += (n_bytes + 63) / 64 * 64;
    return p;
}

static weight make_weight(dtype type, uint32_t rows, uint32_t cols) {
    weight w;
    be_weight_init(be, &w, type, rows, cols, take(be_weight_bytes(be, type, rows, cols)));
    dtype_info info = dtype_about(type);
    size_t row_bytes = (size_t)cols / info.block_elems * info.block_bytes;
    uint32_t n_rows = BE_PREPARE_ROWS;
    unsigned char *rows_of_file = malloc(n_rows * row_bytes);
    INFERD_CHECK(rows_of_file != NULL);
    /* Bytes below 0x30: every half among them is a small positive number. */
    for (size_t i = 0; i < n_rows * row_bytes; i++)
        rows_of_file[i] = (unsigned char)(random_u32() % 0x30);
    for (uint32_t row = 0; row < rows; row += n_rows)
        be_weight_prepare(be, &w, rows_of_file, row, u32_min(n_rows, rows - row));
    free(rows_of_file);
    return w;
}

static vec make_vec(uint32_t n) {
    float ones[FFN];
    vec v;
    for (uint32_t i = 0; i < n; i++) ones[i] = 1;
    be_vec_init(be, &v, n, take(n * sizeof(float)));
    be_vec_load(be, &v, ones);
    return v;
}

/* ---- a forward pass ---- */

static struct {
    weight wq, wk, wv, wo, gate, up, down;
    vec attn_norm, ffn_norm;
} layers[LAYERS];
static weight head;
static vec out_norm;
static act *x, *h, *q, *k, *v, *attn, *gate, *up, *logits;
static kv_layout kv;
static float inv_freq[HEAD_DIM / 2];

static void forward(batch *b) {
    uint32_t n = b->n_rows;
    rope_spec rope = {inv_freq, HEAD_DIM / 2, 1, true};
    attn_spec spec = {HEADS, KV_HEADS, HEAD_DIM, 0.125f, 0, 0};
    be_step_begin(be, b, &kv);
    be_embed(be, x, &head, 1);
    for (uint32_t i = 0; i < LAYERS; i++) {
        be_rmsnorm(be, h, x, &layers[i].attn_norm, n, 1e-5f);
        be_matmul(be, q, h, &layers[i].wq, NULL, n);
        be_matmul(be, k, h, &layers[i].wk, NULL, n);
        be_matmul(be, v, h, &layers[i].wv, NULL, n);
        be_rope(be, q, k, &rope, HEADS, KV_HEADS, HEAD_DIM);
        be_attention(be, attn, q, k, v, i, &spec, NULL);
        be_matmul(be, h, attn, &layers[i].wo, NULL, n);
        be_add(be, x, h, n, DIM);
        be_rmsnorm(be, h, x, &layers[i].ffn_norm, n, 1e-5f);
        be_matmul(be, gate, h, &layers[i].gate, NULL, n);
        be_matmul(be, up, h, &layers[i].up, NULL, n);
        be_glu(be, ACT_SILU, gate, gate, up, n, FFN);
        be_matmul(be, h, gate, &layers[i].down, NULL, n);
        be_add(be, x, h, n, DIM);
    }
    be_take_logit_rows(be, h, x, DIM);
    be_rmsnorm(be, h, h, &out_norm, b->n_logits, 1e-5f);
    be_matmul(be, logits, h, &head, NULL, b->n_logits);
    inferd_err err;
    INFERD_CHECK(be_sync(be, &err) == INFERD_OK);
}

static void model_make(void) {
    for (uint32_t i = 0; i < HEAD_DIM / 2; i++)
        inv_freq[i] = (float)pow(10000.0, -2.0 * i / HEAD_DIM);
    for (int i = 0; i < LAYERS; i++) {
        layers[i].attn_norm = make_vec(DIM);
        layers[i].wq = make_weight(DTYPE_Q4_1, DIM, DIM);
        layers[i].wk = make_weight(DTYPE_Q4_1, KV_HEADS * HEAD_DIM, DIM);
        layers[i].wv = make_weight(DTYPE_Q4_1, KV_HEADS * HEAD_DIM, DIM);
        layers[i].wo = make_weight(DTYPE_Q4_1, DIM, DIM);
        layers[i].ffn_norm = make_vec(DIM);
        layers[i].gate = make_weight(DTYPE_Q4_1, FFN, DIM);
        layers[i].up = make_weight(DTYPE_Q4_1, FFN, DIM);
        layers[i].down = make_weight(DTYPE_Q4_1, DIM, FFN);
    }
    out_norm = make_vec(DIM);
    head = make_weight(DTYPE_Q8_0, VOCAB, DIM);
    x = be_act_open(be, ACT_INNER, ROWS_MAX, DIM), h = be_act_open(be, ACT_INNER, ROWS_MAX, DIM);
    q = be_act_open(be, ACT_INNER, ROWS_MAX, DIM), attn = be_act_open(be, ACT_INNER, ROWS_MAX, DIM);
    k = be_act_open(be, ACT_INNER, ROWS_MAX, KV_HEADS * HEAD_DIM);
    v = be_act_open(be, ACT_INNER, ROWS_MAX, KV_HEADS * HEAD_DIM);
    gate = be_act_open(be, ACT_INNER, ROWS_MAX, FFN),
    up = be_act_open(be, ACT_INNER, ROWS_MAX, FFN);
    logits = be_act_open(be, ACT_LOGITS, 64, VOCAB);
    INFERD_CHECK(x && h && q && k && v && attn && gate && up && logits);
    kv = (kv_layout){KV_F16, LAYERS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS, LAYERS, 1, 0, 0, 0};
    kv.layer_bytes = be_kv_layer_bytes(be, kv.type, KV_HEADS, HEAD_DIM, BLOCK_TOKENS);
    kv.slot_bytes = kv.group_layers * kv.layer_bytes;
    kv.slots_per_page = (uint32_t)(be_page_bytes(be) / kv.slot_bytes);
}

/* n_seqs sequences with `stored` positions each compute n_rows more. */
static void bench_forward(const char *what, uint32_t n_seqs, uint32_t n_rows, uint32_t stored,
                          uint32_t first_page) {
    static tok_id tokens[ROWS_MAX];
    static uint32_t pending[ROWS_MAX], positions[ROWS_MAX], row_seq[ROWS_MAX], logit_rows[64];
    static batch_seq seqs[64];
    uint32_t n_blocks = (stored + n_rows + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    int32_t *slots = malloc((size_t)n_seqs * n_blocks * sizeof *slots);
    INFERD_CHECK(slots != NULL && n_seqs * n_rows <= ROWS_MAX && n_seqs <= 64);
    batch b = {n_seqs * n_rows, n_seqs,  n_seqs, tokens,    pending,
               positions,       row_seq, seqs,   logit_rows};
    for (uint32_t s = 0; s < n_seqs; s++) {
        for (uint32_t i = 0; i < n_blocks; i++)
            slots[s * n_blocks + i] = (int32_t)(first_page * kv.slots_per_page + i * n_seqs + s);
        seqs[s] = (batch_seq){s * n_rows, n_rows, stored, n_blocks, slots + s * n_blocks};
        logit_rows[s] = (s + 1) * n_rows - 1;
        for (uint32_t i = 0; i < n_rows; i++) {
            tokens[s * n_rows + i] = (tok_id)(random_u32() % VOCAB);
            positions[s * n_rows + i] = stored + i;
            row_seq[s * n_rows + i] = s;
        }
    }
    uint64_t best_us = UINT64_MAX, all_us = 0;
    int n_runs = 0;
    for (; n_runs < 5 || (all_us < 1000000 && n_runs < 200); n_runs++) {
        uint64_t begin_us = clock_now_us();
        forward(&b);
        uint64_t us = clock_now_us() - begin_us;
        all_us += us;
        if (us < best_us) best_us = us;
    }
    printf("%-22s %8.2f ms  %7.0f tok/s best, %7.0f mean of %d\n", what, (double)best_us * 1e-3,
           b.n_rows * 1e6 / (double)best_us, b.n_rows * 1e6 * n_runs / (double)all_us, n_runs);
    free(slots);
}

int main(int argc, char **argv) {
    inferd_err err;
    const char *only = argc > 1 ? argv[1] : NULL;
    uint32_t rows_max = argc > 2 ? (uint32_t)atoi(argv[2]) : TABLE_ROWS_MAX;
    const cpu_level *level = level_choose(getenv("INFERD_CPU"), &err);
    if (level == NULL) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (only == NULL || strcmp(only, "forward") != 0) bench_products(level, only, rows_max);
    if (only != NULL && strcmp(only, "forward") != 0) return 0;

    backend_options options = {"cpu", 0, (uint64_t)1 << 30};
    if (backend_open(&options, &be, &err) != INFERD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s, %u threads\n", be_name(be), be_n_threads(be));

    enum { WEIGHT_PAGES = 192 };
    uint32_t pages[WEIGHT_PAGES];
    for (uint32_t i = 0; i < WEIGHT_PAGES; i++) pages[i] = i;
    be_window *w;
    if (be_window_open(be, WEIGHT_PAGES * be_page_bytes(be), &w, &err) != INFERD_OK ||
        be_window_map(be, w, pages, WEIGHT_PAGES, &err) != INFERD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    next_weight = be_window_base(w);
    uint64_t begin_us = clock_now_us();
    model_make();
    printf("prepared %.1f MB in %.0f ms\n",
           (double)(next_weight - (unsigned char *)be_window_base(w)) * 1e-6,
           (double)(clock_now_us() - begin_us) * 1e-3);
    bench_forward("1 stream at 128", 1, 1, CONTEXT, WEIGHT_PAGES);
    bench_forward("8 streams at 128", 8, 1, CONTEXT, WEIGHT_PAGES);
    bench_forward("32 streams at 128", 32, 1, CONTEXT, WEIGHT_PAGES);
    bench_forward("1 stream at 1024", 1, 1, 1024, WEIGHT_PAGES);
    bench_forward("prefill 128", 1, 128, 0, WEIGHT_PAGES);
    bench_forward("prefill 512", 1, 512, 0, WEIGHT_PAGES);
    backend_stats stats;
    be_get_stats(be, &stats);
    printf("page faults in steps %llu, pages touched %llu\n",
           (unsigned long long)stats.n_kv_page_faults, (unsigned long long)stats.n_pages_touched);
    act *acts[] = {x, h, q, k, v, attn, gate, up, logits};
    for (size_t i = 0; i < INFERD_COUNT(acts); i++) be_act_close(be, acts[i]);
    be_window_close(be, w);
    backend_close(be);
    return 0;
}
