/* bench_kernels.c - how fast the CPU backend's operations are on this machine.
 *
 *     bench_kernels                 every weight type, one shape, and a whole forward pass
 *     bench_kernels Q4_1 8          one type, at most 8 rows
 *
 * Weights are random bytes with sane scales: speed does not depend on them.  The forward pass has
 * the shape of SmolLM2-135M (30 layers, dim 576, ffn 1536, 9 heads over 3 kv heads, 49152 words),
 * all projections Q4_1 and the head Q8_0, keys and values f16; sampling and the tokenizer are not
 * in it.  Times are the best of several runs.  INFERD_CPU and `taskset` choose what is measured. */
#include <math.h>
#include <string.h>

#include "inferd/clock.h"
#include "kernels/backend.h"

enum { DIM = 576, FFN = 1536, LAYERS = 30, HEADS = 9, KV_HEADS = 3, HEAD_DIM = 64, VOCAB = 49152 };
enum { ROWS_MAX = 512, BLOCK_TOKENS = 16, CONTEXT = 128 };

static uint64_t random_state = 1;
static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

/* Weights are laid out one after the other in one window. */
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

/* ---- one matrix ---- */

static void bench_type(dtype type, uint32_t rows_max) {
    static const uint32_t row_counts[] = {1, 2, 4, 8, 16, 32, 128};
    uint32_t rows = type == DTYPE_Q4_K || type == DTYPE_Q5_K || type == DTYPE_Q6_K ? 6144 : 8192;
    uint32_t cols = 1536;
    unsigned char *mark = next_weight;
    weight w = make_weight(type, rows, cols);
    act *x = be_act_open(be, ACT_INNER, 128, cols), *out = be_act_open(be, ACT_INNER, 128, rows);
    INFERD_CHECK(x != NULL && out != NULL);
    printf("%-5s [%u, %u]", dtype_about(type).name, rows, cols);
    for (size_t i = 0; i < INFERD_COUNT(row_counts) && row_counts[i] <= rows_max; i++) {
        uint32_t n = row_counts[i];
        uint64_t best_us = UINT64_MAX;
        for (int run = 0; run < 7; run++) {
            uint64_t begin_us = clock_now_us();
            for (int again = 0; again < 4; again++) be_matmul(be, out, x, &w, NULL, n);
            uint64_t us = clock_now_us() - begin_us;
            if (us < best_us) best_us = us;
        }
        double seconds = (double)best_us * 1e-6 / 4;
        printf("  n=%u %.0f GOP/s", n, 2e-9 * n * rows * cols / seconds);
        if (n == 1)
            printf(" %.1f GB/s", 1e-9 * (double)be_weight_bytes(be, type, rows, cols) / seconds);
    }
    printf("\n");
    be_act_close(be, x);
    be_act_close(be, out);
    next_weight = mark;
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
        be_attention(be, attn, q, k, v, i, &spec);
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
    static uint32_t promised[ROWS_MAX], positions[ROWS_MAX], row_seq[ROWS_MAX], logit_rows[64];
    static batch_seq seqs[64];
    uint32_t n_blocks = (stored + n_rows + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    int32_t *slots = malloc((size_t)n_seqs * n_blocks * sizeof *slots);
    INFERD_CHECK(slots != NULL && n_seqs * n_rows <= ROWS_MAX && n_seqs <= 64);
    batch b = {n_seqs * n_rows, n_seqs,  n_seqs, tokens,    promised,
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
    static const dtype types[] = {DTYPE_Q4_1, DTYPE_Q4_0, DTYPE_Q5_0, DTYPE_Q5_1,
                                  DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
                                  DTYPE_F16,  DTYPE_BF16, DTYPE_F32};
    inferd_err err;
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
    const char *only = argc > 1 ? argv[1] : NULL;
    uint32_t rows_max = argc > 2 ? (uint32_t)atoi(argv[2]) : 128;
    for (size_t i = 0; i < INFERD_COUNT(types); i++)
        if (only == NULL || strcmp(only, dtype_about(types[i]).name) == 0)
            bench_type(types[i], rows_max);
    if (only == NULL || strcmp(only, "forward") == 0) {
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
    }
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
