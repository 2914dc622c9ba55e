/* test_cuda_backend.c - whole steps on the CUDA backend (on emulation, or on a GPU) beside the
 * CPU's.
 *
 * A small decoder with random weights is built on both backends from the same file bytes, and the
 * same tokens go through both: prefill in chunks, decode of several sequences, graphs, drawing, two
 * steps on their way, eviction and reload, failures.  The CPU computes in float; the bounds are
 * what 16-bit activations cost (see `bounds`). */
#include <sched.h>

#include "cuda/cuda.h"
#include "cuda_emul/fake_api.h"
#include "cuda_rig.h"
#include "decoder.h"
#include "inferd/clock.h"
#include "models/sampler.h"

enum {
    LAYERS = 2,
    HEADS = 4,
    KV_HEADS = 2,
    VOCAB = 100,
    ROWS_MAX = 300,
    BLOCKS_MAX = 16,
    SEQS_MAX = 4,
    EXPERTS = 6,
    EXPERTS_USED = 2
};

/* Relative L2 distance of logits from the CPU's. */
static const struct {
    const char *activations;
    double bound;
} bounds[] = {{"bf16", 2e-2}, {"f16", 3e-3}};

typedef struct shape {
    uint32_t dim, head_dim, ffn;
    dtype type;
    bool qk_norm, post_norms, bias, tied;
    bool fine_v; // attn_v is Q6_K
    act_fn act;
    uint32_t window;
    float softcap;
    bool experts, sinks; // EXPERTS of them, EXPERTS_USED for each row
} shape;

static const shape plain = {.dim = 64, .head_dim = 16, .ffn = 96, .type = DTYPE_BF16};

static uint32_t scratch_rows = 40; // that a step may have, at most ROWS_MAX

/* One backend with the model on it. */
typedef struct side {
    backend *be;
    be_window *window;
    uint32_t pages[64], n_pages;
    uint32_t first_kv_page;
    decoder_spec spec;
    decoder_weights weights;
    decoder_layer layers[LAYERS];
    weight experts[LAYERS][3][EXPERTS];
    decoder_scratch scratch;
    kv_layout kv;
    size_t at; // in the window
    bool dry;  // only count
    int32_t slots[SEQS_MAX][BLOCKS_MAX * LAYERS];
    uint32_t next_slot;
    float freq[128];
} side;

/* ---- weights: the same bytes on both sides ---- */

static uint64_t state;
static uint32_t next_u32(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static float next_normal(float scale) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(next_u32() % 65536) / 65536.0f - 0.5f;
    return sum * 1.732f * scale;
}

static void put_half(unsigned char *p, float v) {
    uint16_t h = f32_to_f16(v);
    memcpy(p, &h, 2);
}

/* A row as a file has it, of values about `scale` in size. */
static void make_row(dtype type, uint32_t cols, float scale, unsigned char *out) {
    dtype_info info = dtype_about(type);
    for (uint32_t b = 0; b < cols / info.block_elems; b++) {
        unsigned char *p = out + (size_t)b * info.block_bytes;
        float v = next_normal(scale);
        uint16_t bits = type == DTYPE_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
        if (type == DTYPE_F32) {
            memcpy(p, &v, 4);
            continue;
        }
        if (type == DTYPE_F16 || type == DTYPE_BF16) {
            memcpy(p, &bits, 2);
            continue;
        }
        for (uint32_t i = 0; i < info.block_bytes; i++) p[i] = (unsigned char)next_u32();
        float step = scale / (type == DTYPE_Q8_0 ? 74 : 8) * (1 + (float)(next_u32() % 16) / 16);
        if (type == DTYPE_Q6_K)
            put_half(p + 208, step / 256);
        else if (type == DTYPE_Q2_K)
            put_half(p + 80, step / 4), put_half(p + 82, step * 3 / 8);
        else if (type == DTYPE_Q3_K)
            put_half(p + 108, step / 32);
        else if (type == DTYPE_IQ4_NL || type == DTYPE_IQ4_XS)
            put_half(p, step / (type == DTYPE_IQ4_NL ? 8 : 256));
        else if (type == DTYPE_MXFP4)
            p[0] = (unsigned char)(ilogbf(step) + 128 - 1);
        else
            put_half(p, type == DTYPE_Q4_K || type == DTYPE_Q5_K ? step / 32 : step);
        if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) put_half(p + 2, step / 8);
        if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) put_half(p + 2, -scale * 1.7f);
    }
}

static void *place(side *s, size_t n) {
    void *p = s->dry ? NULL : (unsigned char *)be_window_base(s->window) + s->at;
    s->at += (n + 255) / 256 * 256;
    return p;
}

static void add_matrix(side *s, weight *w, dtype type, uint32_t rows, uint32_t cols) {
    void *dst = place(s, be_weight_bytes(s->be, type, rows, cols));
    if (s->dry) return;
    dtype_info info = dtype_about(type);
    size_t row_bytes = (size_t)cols / info.block_elems * info.block_bytes;
    unsigned char *file = malloc(rows * row_bytes);
    for (uint32_t i = 0; i < rows; i++)
        make_row(type, cols, 1.0f / sqrtf((float)cols), file + i * row_bytes);
    be_weight_init(s->be, w, type, rows, cols, dst);
    be_weight_prepare(s->be, w, file, 0, rows);
    free(file);
}

static void add_vector(side *s, vec *v, uint32_t n, float mean, float spread) {
    void *dst = place(s, n * sizeof(float));
    if (s->dry) return;
    float *values = malloc(n * sizeof *values);
    for (uint32_t i = 0; i < n; i++) values[i] = mean + next_normal(spread);
    be_vec_init(s->be, v, n, dst);
    be_vec_load(s->be, v, values);
    free(values);
}

/* Matrices of one role side by side. */
static void add_experts(side *s, const shape *m, uint32_t layer) {
    decoder_layer *l = &s->layers[layer];
    weight(*w)[EXPERTS] = s->experts[layer];
    add_matrix(s, &l->w_router, DTYPE_F32, EXPERTS, m->dim);
    for (uint32_t e = 0; e < EXPERTS; e++) add_matrix(s, &w[0][e], m->type, m->ffn, m->dim);
    for (uint32_t e = 0; e < EXPERTS; e++) add_matrix(s, &w[1][e], m->type, m->ffn, m->dim);
    for (uint32_t e = 0; e < EXPERTS; e++) add_matrix(s, &w[2][e], m->type, m->dim, m->ffn);
    l->experts.n_experts = EXPERTS;
    l->experts.n_used = EXPERTS_USED;
    l->experts.fn = m->act;
    l->experts.gate = w[0];
    l->experts.up = w[1];
    l->experts.down = w[2];
    if (!m->bias) return;
    add_vector(s, &l->b_router, EXPERTS, 0, 0.3f);
    add_vector(s, &l->experts.gate_bias, EXPERTS * m->ffn, 0, 0.3f);
    add_vector(s, &l->experts.up_bias, EXPERTS * m->ffn, 0, 0.3f);
    add_vector(s, &l->experts.down_bias, EXPERTS * m->dim, 0, 0.3f);
}

static void build(side *s, const shape *m) {
    uint32_t q = HEADS * m->head_dim, kv = KV_HEADS * m->head_dim;
    s->at = 0;
    add_matrix(s, &s->weights.embed, m->type, VOCAB, m->dim);
    add_vector(s, &s->weights.norm, m->dim, 1, 0.2f);
    if (!m->tied) add_matrix(s, &s->weights.head, m->type, VOCAB, m->dim);
    if (!s->dry) be_window_upload(s->be, s->window, 0, s->at);
    for (uint32_t i = 0; i < LAYERS; i++) {
        decoder_layer *l = &s->layers[i];
        size_t begin = s->at;
        add_vector(s, &l->attn_norm, m->dim, 1, 0.2f);
        add_vector(s, &l->ffn_norm, m->dim, 1, 0.2f);
        add_matrix(s, &l->wq, m->type, q, m->dim);
        add_matrix(s, &l->wk, m->type, kv, m->dim);
        add_matrix(s, &l->wv, m->fine_v ? DTYPE_Q6_K : m->type, kv, m->dim);
        add_matrix(s, &l->wo, m->type, m->dim, q);
        if (m->experts) add_experts(s, m, i);
        if (!m->experts) add_matrix(s, &l->w_gate, m->type, m->ffn, m->dim);
        if (!m->experts) add_matrix(s, &l->w_up, m->type, m->ffn, m->dim);
        if (!m->experts) add_matrix(s, &l->w_down, m->type, m->dim, m->ffn);
        if (m->bias) add_vector(s, &l->bq, q, 0, 0.3f);
        if (m->bias && !m->experts) add_vector(s, &l->b_down, m->dim, 0, 0.3f);
        if (m->sinks) add_vector(s, &l->sinks, HEADS, 0, 1);
        if (m->qk_norm) add_vector(s, &l->q_norm, m->head_dim, 1, 0.2f);
        if (m->qk_norm) add_vector(s, &l->k_norm, m->head_dim, 1, 0.2f);
        if (m->post_norms) add_vector(s, &l->post_attn_norm, m->dim, 0.5f, 0.1f);
        if (m->post_norms) add_vector(s, &l->post_ffn_norm, m->dim, 0.5f, 0.1f);
        if (!s->dry) be_window_upload(s->be, s->window, begin, s->at);
    }
    if (m->tied) s->weights.head = s->weights.embed;
}

static void describe(side *s, const shape *m) {
    uint32_t n_pairs = m->head_dim / 2;
    for (uint32_t i = 0; i < n_pairs; i++) s->freq[i] = powf(10000, -(float)i / (float)n_pairs);
    s->spec = (decoder_spec){
        .n_layers = LAYERS,
        .dim = m->dim,
        .n_heads = HEADS,
        .n_kv_heads = KV_HEADS,
        .head_dim = m->head_dim,
        .ffn_dim = m->ffn,
        .n_vocab = VOCAB,
        .norm_eps = 1e-5f,
        .embed_scale = m->post_norms ? 2.0f : 1.0f,
        .n_kinds = 1,
        .kinds = {{.rope = {.inv_freq = s->freq,
                            .n_pairs = n_pairs,
                            .scale = 1,
                            .interleaved = !m->qk_norm},
                   .attn = {HEADS, KV_HEADS, m->head_dim, 1.0f / sqrtf((float)m->head_dim),
                            m->softcap, m->window}}},
        .qk_norm = m->qk_norm ? QK_NORM_HEAD : QK_NORM_NONE,
        .residual_scale = 1.0f,
        .logit_scale = 1.0f,
        .pre_norms = true,
        .post_norms = m->post_norms,
        .sinks = m->sinks,
        .n_experts = m->experts ? EXPERTS : 0,
        .n_experts_used = m->experts ? EXPERTS_USED : 0,
        .act = m->act,
        .softcap = m->softcap};
    s->weights.layers = s->layers;
}

static void take_slots(side *s) {
    for (uint32_t q = 0; q < SEQS_MAX; q++)
        for (uint32_t i = 0; i < BLOCKS_MAX * s->kv.n_groups; i++)
            s->slots[q][i] =
                (int32_t)(s->first_kv_page * s->kv.slots_per_page + s->next_slot++ * 7 % 311);
}

static void wait_for_pages(side *s, uint32_t n) {
    while (be_n_pages_ready(s->be) < n && be_n_pages_ready(s->be) < be_n_pages(s->be))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    EXPECT(be_n_pages_ready(s->be) >= n);
}

static bool side_open(side *s, const backend_options *o, const shape *m, kv_type kv,
                      uint64_t seed) {
    inferd_err err = {0};
    memset(s, 0, sizeof *s);
    if (backend_open(o, &s->be, &err) != INFERD_OK) {
        printf("opening %s: %s\n", o->kind, err.text);
        test_failures++;
        return false;
    }
    describe(s, m);
    s->dry = true;
    build(s, m);
    s->dry = false;
    uint32_t extent = u32_max(be_extent_pages(s->be), 1);
    s->n_pages = (uint32_t)((s->at + be_page_bytes(s->be) - 1) / be_page_bytes(s->be));
    s->n_pages = (s->n_pages + extent - 1) / extent * extent;
    for (uint32_t i = 0; i < s->n_pages; i++) s->pages[i] = i;
    s->first_kv_page = s->n_pages;
    wait_for_pages(s, s->n_pages + 8);
    EXPECT_EQ(be_window_open(s->be, s->at, &s->window, &err), INFERD_OK);
    EXPECT_EQ(be_window_map(s->be, s->window, s->pages, s->n_pages, &err), INFERD_OK);
    EXPECT_EQ(kv_layout_choose(s->be, &s->spec, kv, &s->kv, &err), INFERD_OK);
    EXPECT_EQ(decoder_scratch_open(s->be, &s->spec, scratch_rows, scratch_rows, &s->scratch, &err),
              INFERD_OK);
    state = seed;
    build(s, m);
    take_slots(s);
    bool ok = be_check(s->be, &err) == INFERD_OK;
    if (err.text[0] != 0) printf("%s\n", err.text);
    EXPECT(ok);
    return ok;
}

static void side_close(side *s) {
    if (s->be == NULL) return;
    backend_stats stats;
    be_get_stats(s->be, &stats);
    gpu_calls_add(stats.n_launches + stats.n_graph_launches);
    decoder_scratch_close(s->be, &s->scratch);
    be_window_close(s->be, s->window);
    backend_close(s->be);
    s->be = NULL;
}

static backend_options cuda_options(const char *activations) {
    static const cuda_module *module;
    const char *path = getenv("INFERD_CUDA_MODULE");
    if (path == NULL || path[0] == 0) module = emul_module();
    return (backend_options){.kind = "cuda",
                             .n_threads = 1,
                             .memory_bytes = module != NULL ? 160u << 20 : 2ull << 30,
                             .activations = activations,
                             .module = module};
}

static bool open_pair(side *cpu, side *gpu, const shape *m, const char *activations) {
    backend_options on_cpu = {
        .kind = "cpu", .n_threads = 1, .memory_bytes = 64u << 20, .exact_math = true};
    backend_options on_gpu = cuda_options(activations);
    uint64_t seed = 5;
    fake_reset();
    cpu->be = gpu->be = NULL;
    return side_open(cpu, &on_cpu, m, KV_F32, seed) && side_open(gpu, &on_gpu, m, KV_F16, seed);
}

static void close_pair(side *cpu, side *gpu) {
    side_close(cpu);
    side_close(gpu);
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

/* ---- steps ---- */

typedef struct piece { // n tokens of sequence seq, from position pos on
    uint32_t seq, pos, n;
} piece;

typedef struct step_batch {
    batch b;
    tok_id tokens[ROWS_MAX];
    uint32_t pending[ROWS_MAX], positions[ROWS_MAX], row_seq[ROWS_MAX], logit_rows[ROWS_MAX];
    batch_seq seqs[SEQS_MAX];
} step_batch;

static tok_id token_at(uint32_t seq, uint32_t pos) {
    return (tok_id)((seq * 31 + pos * 17 + pos * pos) % VOCAB);
}

/* The last row of each piece wants logits; or every row. */
static void make_batch(const side *s, step_batch *t, const piece *p, uint32_t n, bool all) {
    memset(t, 0, sizeof *t);
    t->b = (batch){.tokens = t->tokens,
                   .pending = t->pending,
                   .positions = t->positions,
                   .row_seq = t->row_seq,
                   .seqs = t->seqs,
                   .logit_rows = t->logit_rows,
                   .n_seqs = n};
    for (uint32_t i = 0; i < n; i++) {
        t->seqs[i] = (batch_seq){t->b.n_rows, p[i].n, p[i].pos, BLOCKS_MAX, s->slots[p[i].seq]};
        for (uint32_t j = 0; j < p[i].n; j++) {
            uint32_t row = t->b.n_rows++;
            t->tokens[row] = token_at(p[i].seq, p[i].pos + j);
            t->positions[row] = p[i].pos + j;
            t->row_seq[row] = i;
            if (all || j + 1 == p[i].n) t->logit_rows[t->b.n_logits++] = row;
        }
    }
}

static inferd_status run(side *s, const piece *p, uint32_t n, bool all, float *logits,
                         inferd_err *err) {
    step_batch t;
    be_step_result r;
    make_batch(s, &t, p, n, all);
    be_step_begin(s->be, &t.b, &s->kv);
    decoder_forward(s->be, &s->spec, &s->weights, &s->scratch, &t.b);
    be_want_logits(s->be, s->scratch.logits, t.b.n_logits);
    be_step_end(s->be);
    inferd_status status = be_step_finish(s->be, &r, err);
    for (uint32_t i = 0; status == INFERD_OK && i < t.b.n_logits; i++)
        memcpy(logits + i * VOCAB, r.logits + i * r.logits_stride, VOCAB * sizeof(float));
    return status;
}

static double distance(const float *a, const float *b, size_t n) {
    double d = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(d / norm);
}

static void expect_same(side *cpu, side *gpu, const piece *p, uint32_t n, bool all, double bound,
                        const char *what) {
    static float a[ROWS_MAX * VOCAB], b[ROWS_MAX * VOCAB];
    inferd_err err = {0};
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) rows += all ? p[i].n : 1;
    EXPECT_EQ(run(cpu, p, n, all, a, &err), INFERD_OK);
    EXPECT_EQ(run(gpu, p, n, all, b, &err), INFERD_OK);
    if (err.text[0] != 0) printf("%s: %s\n", what, err.text);
    double d = distance(b, a, (size_t)rows * VOCAB);
    if (!(d <= bound)) {
        printf("%s: logits are %.3g away from the CPU's, at most %.3g\n", what, d, bound);
        test_failures++;
    }
}

/* Prefill in two chunks beside another sequence, then decode both with a third, several times. */
static void talk(const shape *m, const char *activations, double bound, const char *what) {
    side cpu, gpu;
    if (open_pair(&cpu, &gpu, m, activations)) {
        expect_same(&cpu, &gpu, (piece[]){{0, 0, 20}, {1, 0, 5}}, 2, true, bound, what);
        expect_same(&cpu, &gpu, (piece[]){{0, 20, 3}, {1, 5, 1}, {2, 0, 1}}, 3, false, bound, what);
        for (uint32_t i = 0; i < 4; i++)
            expect_same(&cpu, &gpu, (piece[]){{0, 23 + i, 1}, {1, 6 + i, 1}, {2, 1 + i, 1}}, 3,
                        false, bound, what);
        expect_same(&cpu, &gpu, (piece[]){{2, 5, 1}}, 1, false, bound, what);
        backend_stats stats;
        be_get_stats(gpu.be, &stats);
        EXPECT_EQ(stats.n_kv_driver_calls, 0);
        EXPECT(stats.n_graph_launches >= 3); // of four equal steps: once by hand, then captured
    }
    close_pair(&cpu, &gpu);
}

static void a_model_gives_the_logits_of_the_cpu(void) {
    for (size_t i = 0; i < INFERD_COUNT(bounds); i++)
        talk(&plain, bounds[i].activations, bounds[i].bound, bounds[i].activations);
}

static void every_type_of_weights_does(void) {
    static const dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_Q8_0,   DTYPE_Q4_0, DTYPE_Q4_1,
                                  DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_IQ4_NL, DTYPE_MXFP4};
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        shape m = plain;
        m.type = types[i];
        talk(&m, "f16", bounds[1].bound, dtype_about(types[i]).name);
    }
}

static void k_quants_do(void) {
    static const dtype types[] = {DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
                                  DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_IQ4_XS};
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        shape m = {.dim = 256, .head_dim = 64, .ffn = 256, .type = types[i], .tied = true};
        talk(&m, "f16", bounds[1].bound, dtype_about(types[i]).name);
        m.fine_v = true; // it has larger values here, which f16 rounds
        talk(&m, "f16", 2 * bounds[1].bound, dtype_about(types[i]).name); // a finer attn_v
    }
}

static void every_kind_of_family_does(void) {
    shape qwen = plain, gemma = plain, biased = plain, windowed = plain;
    qwen.qk_norm = true;
    gemma.qk_norm = gemma.post_norms = gemma.tied = true;
    gemma.act = ACT_GELU_TANH;
    gemma.softcap = 20;
    biased.bias = true;
    windowed.window = 6;
    talk(&qwen, "f16", bounds[1].bound, "q and k normed");
    talk(&gemma, "f16", 2 * bounds[1].bound, "four norms, gelu, softcap");
    talk(&biased, "f16", bounds[1].bound, "biases");
    talk(&windowed, "f16", bounds[1].bound, "a window");
}

/* Prompts, graphs of several rows with fewer in the batch, and experts that no row uses. */
static void mixtures_of_experts_do(void) {
    static const dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_1};
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        shape m = plain;
        m.experts = true;
        m.type = types[i];
        talk(&m, "f16", bounds[1].bound, dtype_about(types[i]).name);
    }
    shape oss = plain;
    oss.experts = oss.bias = oss.sinks = true;
    oss.act = ACT_CLAMPED_SWIGLU;
    oss.window = 6;
    talk(&oss, "f16", bounds[1].bound, "clamped, biases, sinks");
}

/* What the CPU counts, the GPU counts; a graph's surplus rows are no rows of an expert. */
static void experts_of_a_step_are_counted(void) {
    shape m = plain;
    side cpu, gpu;
    m.experts = true;
    if (open_pair(&cpu, &gpu, &m, "f16")) {
        const piece pieces[] = {{0, 0, 9}, {1, 0, 1}, {2, 0, 1}};
        for (uint32_t i = 0; i < 5; i++) { // the first two sequences, then all as single rows
            side *both[2] = {&cpu, &gpu};
            uint32_t rows[2][EXPERTS] = {{0}}, n_reads[2] = {0}, sum = 0;
            for (int k = 0; k < 2; k++) {
                step_batch t;
                be_step_result r;
                inferd_err err = {0};
                piece single[] = {{0, 8 + i, 1}, {1, i, 1}, {2, i, 1}};
                make_batch(both[k], &t, i == 0 ? pieces : single, 3, false);
                be_step_begin(both[k]->be, &t.b, &both[k]->kv);
                decoder_forward(both[k]->be, &both[k]->spec, &both[k]->weights, &both[k]->scratch,
                                &t.b);
                be_step_end(both[k]->be);
                EXPECT_EQ(be_step_finish(both[k]->be, &r, &err), INFERD_OK);
                EXPECT_EQ(r.n_experts, EXPERTS);
                if (r.n_experts == EXPERTS) memcpy(rows[k], r.expert_rows, sizeof rows[k]);
                n_reads[k] = r.n_expert_reads;
            }
            EXPECT(memcmp(rows[0], rows[1], sizeof rows[0]) == 0);
            EXPECT_EQ(n_reads[0], n_reads[1]);
            for (uint32_t e = 0; e < EXPERTS; e++) sum += rows[1][e];
            /* The last layer computes the rows with logits only. */
            EXPECT_EQ(sum, EXPERTS_USED * (i == 0 ? 11 + 3 : 3 * LAYERS));
        }
        backend_stats stats;
        be_get_stats(gpu.be, &stats);
        EXPECT(stats.n_graph_launches > 0);
    }
    close_pair(&cpu, &gpu);
}

/* ---- what is launched ---- */

static uint64_t launches_of(side *gpu, const piece *p, uint32_t n) {
    static float logits[ROWS_MAX * VOCAB];
    backend_stats before, after;
    inferd_err err = {0};
    be_get_stats(gpu->be, &before);
    EXPECT_EQ(run(gpu, p, n, false, logits, &err), INFERD_OK);
    be_get_stats(gpu->be, &after);
    return after.n_launches - before.n_launches;
}

static const shape quantised = {.dim = 256, .head_dim = 64, .ffn = 256, .type = DTYPE_Q4_K};

static void one_row_takes_at_most_seven_launches_a_layer(void) {
    shape kinds[2] = {quantised, quantised};
    kinds[1].qk_norm = true;
    for (int i = 0; i < 2; i++) {
        side gpu;
        backend_options o = cuda_options("bf16");
        fake_reset();
        if (!side_open(&gpu, &o, &kinds[i], KV_F16, 5)) continue;
        uint64_t n = launches_of(&gpu, (piece[]){{0, 0, 1}}, 1);
        EXPECT(n <= 7 * LAYERS + 3); // embedding, norm and head, and room for one more
        if (n > 7 * LAYERS + 3)
            printf("%llu launches for %d layers\n", (unsigned long long)n, LAYERS);
        side_close(&gpu);
    }
}

/* As in half of the layers of Q4_K_M: v is in the launch of q and k all the same, unless that is
 * switched off. */
static void a_finer_v_takes_no_launch_more(void) {
    uint64_t n[3];
    for (int i = 0; i < 3; i++) {
        shape m = {.dim = 256, .head_dim = 64, .ffn = 256, .type = DTYPE_Q4_K, .fine_v = i > 0};
        side gpu;
        backend_options o = cuda_options("bf16");
        if (i == 2) o.off = "mixed";
        fake_reset();
        if (!side_open(&gpu, &o, &m, KV_F16, 5)) return;
        n[i] = launches_of(&gpu, (piece[]){{0, 0, 3}}, 1);
        side_close(&gpu);
    }
    EXPECT_EQ(n[1], n[0]);
    EXPECT_EQ(n[2], n[0] + 2 * LAYERS); // the norm, q and k, v
}

static void eight_rows_take_the_launches_of_four(void) {
    uint64_t n[3];
    for (int i = 0; i < 3; i++) {
        side gpu;
        backend_options o = cuda_options("bf16");
        if (i == 2) o.off = "gemv8";
        fake_reset();
        if (!side_open(&gpu, &o, &quantised, KV_F16, 5)) return;
        n[i] = launches_of(&gpu, (piece[]){{0, 0, i == 0 ? 4 : 8}}, 1);
        side_close(&gpu);
    }
    EXPECT_EQ(n[1], n[0]);
    /* Two norms and the gate; behind its attention the last layer has one row. */
    EXPECT_EQ(n[2], n[0] + 3 * (LAYERS - 1) + 1);
}

static void each_number_of_rows_takes_its_kernel(void) {
    side gpu;
    backend_options o = cuda_options("bf16");
    backend_stats a, b;
    fake_reset();
    if (!side_open(&gpu, &o, &quantised, KV_F16, 5)) return;
    be_get_stats(gpu.be, &a);
    launches_of(&gpu, (piece[]){{0, 0, 4}}, 1);
    be_get_stats(gpu.be, &b);
    EXPECT(b.n_matmul_gemv > a.n_matmul_gemv);
    EXPECT_EQ(b.n_matmul_skinny, a.n_matmul_skinny);
    launches_of(&gpu, (piece[]){{0, 4, 30}}, 1);
    be_get_stats(gpu.be, &a);
    EXPECT(a.n_matmul_skinny > b.n_matmul_skinny);
    EXPECT_EQ(a.n_matmul_expanded, 0);
    side_close(&gpu);
}

/* Of weights that are read as they are, skinny reads more bytes in the same time. */
static void weights_of_16_bits_take_skinny_with_one_row(void) {
    side gpu;
    backend_options o = cuda_options("bf16");
    backend_stats a, b;
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    be_get_stats(gpu.be, &a);
    launches_of(&gpu, (piece[]){{0, 0, 1}}, 1);
    be_get_stats(gpu.be, &b);
    EXPECT_EQ(b.n_matmul_gemv, a.n_matmul_gemv);
    EXPECT(b.n_matmul_skinny > a.n_matmul_skinny);
    side_close(&gpu);
}

/* ---- the same bits ---- */

static void a_step_gives_the_same_bits_again_and_after_eviction(void) {
    static float first[ROWS_MAX * VOCAB], again[ROWS_MAX * VOCAB];
    side gpu;
    backend_options o = cuda_options("bf16");
    inferd_err err = {0};
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    piece prompt = {0, 0, 20}, next = {0, 20, 1};
    EXPECT_EQ(run(&gpu, &prompt, 1, true, first, &err), INFERD_OK);
    EXPECT_EQ(run(&gpu, &prompt, 1, true, again, &err), INFERD_OK);
    EXPECT(memcmp(first, again, 20 * VOCAB * sizeof(float)) == 0);
    for (int i = 0; i < 3; i++) EXPECT_EQ(run(&gpu, &next, 1, false, first, &err), INFERD_OK);
    backend_stats before, after;
    be_get_stats(gpu.be, &before);
    /* evicted to the host, and back in other pages at the same address: keys and values stayed */
    void *base = be_window_base(gpu.window);
    EXPECT_EQ(be_window_unmap(gpu.be, gpu.window, &err), INFERD_OK);
    uint32_t extent = u32_max(be_extent_pages(gpu.be), 1), pages[64];
    uint32_t n_kv = (311 + gpu.kv.slots_per_page - 1) / gpu.kv.slots_per_page + 1;
    uint32_t from = (gpu.first_kv_page + n_kv + extent - 1) / extent * extent;
    for (uint32_t i = 0; i < gpu.n_pages; i++) pages[i] = from + i;
    wait_for_pages(&gpu, from + gpu.n_pages);
    EXPECT_EQ(be_window_map(gpu.be, gpu.window, pages, gpu.n_pages, &err), INFERD_OK);
    EXPECT(be_window_base(gpu.window) == base);
    be_window_upload(gpu.be, gpu.window, 0, gpu.at);
    EXPECT_EQ(run(&gpu, &next, 1, false, again, &err), INFERD_OK); // while it arrives
    EXPECT(memcmp(first, again, VOCAB * sizeof(float)) == 0);
    EXPECT_EQ(be_sync(gpu.be, &err), INFERD_OK);
    EXPECT_EQ(run(&gpu, &next, 1, false, again, &err), INFERD_OK); // the old graph
    EXPECT(memcmp(first, again, VOCAB * sizeof(float)) == 0);
    be_get_stats(gpu.be, &after);
    EXPECT(after.n_graph_launches > before.n_graph_launches);
    EXPECT_EQ(after.n_graphs, before.n_graphs);
    side_close(&gpu);
    EXPECT_EQ(fake_take_violations(), 0);
}

/* ---- beside uploads ---- */

/* A window of another model, the bytes of which stay on their way until a call waits for them. */
typedef struct other_window {
    be_window *w;
    uint32_t pages[8], n_pages;
} other_window;

static void upload_other(side *s, other_window *o) {
    inferd_err err = {0};
    uint32_t extent = u32_max(be_extent_pages(s->be), 1);
    uint32_t n_kv = (311 + s->kv.slots_per_page - 1) / s->kv.slots_per_page + 1;
    uint32_t from = (s->first_kv_page + n_kv + extent - 1) / extent * extent;
    o->n_pages = extent;
    INFERD_CHECK(extent <= INFERD_COUNT(o->pages));
    for (uint32_t i = 0; i < extent; i++) o->pages[i] = from + i;
    wait_for_pages(s, from + extent);
    size_t n_bytes = extent * be_page_bytes(s->be);
    EXPECT_EQ(be_window_open(s->be, n_bytes, &o->w, &err), INFERD_OK);
    EXPECT_EQ(be_window_map(s->be, o->w, o->pages, o->n_pages, &err), INFERD_OK);
    EXPECT_EQ(be_sync(s->be, &err), INFERD_OK);
    fake_hold_queues();
    be_window_upload(s->be, o->w, 0, n_bytes);
    EXPECT_EQ(be_window_n_pending(s->be, o->w), n_bytes);
}

static uint64_t graph_launches(const side *s) {
    backend_stats stats;
    be_get_stats(s->be, &stats);
    return stats.n_graph_launches;
}

/* Seen, captured and replayed while another window is on its way.  The model itself goes and comes
 * back at the same address: it has its graph again when it has arrived, and not before. */
static void graphs_are_used_while_another_models_weights_arrive(void) {
    static float first[VOCAB], again[VOCAB];
    if (cuda_options(NULL).module == NULL) SKIP("a real device cannot be held");
    side gpu;
    other_window other;
    backend_options o = cuda_options("bf16");
    inferd_err err = {0};
    piece prompt = {0, 0, 20}, next = {0, 20, 1};
    static float logits[ROWS_MAX * VOCAB];
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    EXPECT_EQ(run(&gpu, &prompt, 1, true, logits, &err), INFERD_OK);
    upload_other(&gpu, &other);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(run(&gpu, &next, 1, false, i == 0 ? first : again, &err), INFERD_OK);
        if (i > 0) EXPECT(memcmp(first, again, sizeof first) == 0);
    }
    EXPECT_EQ(graph_launches(&gpu), 3);
    EXPECT(be_window_n_pending(gpu.be, other.w) > 0); // no step has waited for it

    void *base = be_window_base(gpu.window);
    EXPECT_EQ(be_window_unmap(gpu.be, gpu.window, &err), INFERD_OK);
    EXPECT_EQ(be_window_map(gpu.be, gpu.window, gpu.pages, gpu.n_pages, &err), INFERD_OK);
    EXPECT(be_window_base(gpu.window) == base);
    be_window_upload(gpu.be, gpu.window, 0, gpu.at);
    EXPECT_EQ(run(&gpu, &next, 1, false, again, &err), INFERD_OK); // waits for its own
    EXPECT(memcmp(first, again, sizeof first) == 0);
    EXPECT_EQ(graph_launches(&gpu), 3);
    be_window_upload(gpu.be, other.w, 0, be_page_bytes(gpu.be));
    EXPECT_EQ(run(&gpu, &next, 1, false, again, &err), INFERD_OK);
    EXPECT(memcmp(first, again, sizeof first) == 0);
    EXPECT_EQ(graph_launches(&gpu), 4);
    EXPECT(be_window_n_pending(gpu.be, other.w) > 0);

    cuda_of(gpu.be)->parts.part[PART_WINDOWS].state = BE_PART_OFF; // any upload is in the way
    EXPECT_EQ(run(&gpu, &next, 1, false, again, &err), INFERD_OK);
    EXPECT(memcmp(first, again, sizeof first) == 0);
    EXPECT_EQ(graph_launches(&gpu), 4);
    be_window_close(gpu.be, other.w);
    side_close(&gpu);
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

/* A step of one row in a model of many weights asks the device about uploads once, not once for
 * each of its operations. */
static void a_step_asks_about_uploads_once(void) {
    static float logits[ROWS_MAX * VOCAB];
    if (cuda_options(NULL).module == NULL) SKIP("calls are counted by the fake");
    side gpu;
    other_window other;
    backend_options o = cuda_options("bf16");
    inferd_err err = {0};
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    upload_other(&gpu, &other);
    uint64_t before = fake_calls("event_query");
    EXPECT_EQ(run(&gpu, (piece[]){{0, 0, 20}}, 1, true, logits, &err), INFERD_OK);
    EXPECT(fake_calls("event_query") - before <= 1);
    be_window_close(gpu.be, other.w);
    side_close(&gpu);
    EXPECT_EQ(fake_take_violations(), 0);
}

/* ---- rows ---- */

/* A workspace of 1 GiB has room for the activations of 2,048 rows. */
static void a_step_has_as_many_rows_as_the_workspace_holds(void) {
    static const struct {
        uint32_t workspace_mib, rows;
    } cases_of[] = {{64, 512}, {256, 512}, {400, 768}, {512, 1024}, {1024, 2048}, {2048, 2048}};
    if (cuda_options(NULL).module == NULL) SKIP("it takes a device to itself");
    for (size_t i = 0; i < INFERD_COUNT(cases_of); i++) {
        backend *be = NULL;
        backend_options o = cuda_options("bf16");
        inferd_err err = {0};
        fake_reset();
        fake_options()->poison = false;
        fake_options()->device[0].memory_bytes = 3ull << 30;
        o.memory_bytes = 2200ull << 20;
        o.workspace_bytes = (uint64_t)cases_of[i].workspace_mib << 20;
        EXPECT_EQ(backend_open(&o, &be, &err), INFERD_OK);
        if (be == NULL) break;
        EXPECT_EQ(be_rows_default(be), cases_of[i].rows);
        EXPECT_EQ(be_rows_best(be), 0);
        backend_close(be);
    }
}

static uint64_t copied_by(side *s, const piece *p, uint32_t n) {
    static float logits[ROWS_MAX * VOCAB];
    inferd_err err = {0};
    fake_counts before, after;
    fake_get_counts(&before);
    EXPECT_EQ(run(s, p, n, false, logits, &err), INFERD_OK);
    fake_get_counts(&after);
    return after.copied_bytes - before.copied_bytes;
}

/* A step of few rows takes the arrays of few rows to the device, however many a step may have: with
 * 2,048 each decode step took 144 KB there.  Graphs know where the arrays of few rows are, whatever
 * came between. */
static void a_step_of_few_rows_takes_little_to_the_device(void) {
    enum { FEW_BYTES = 20 << 10, MANY_BYTES = 140 << 10 };
    if (cuda_options(NULL).module == NULL) SKIP("the fake counts the bytes");
    side cpu, gpu;
    scratch_rows = ROWS_MAX;
    if (open_pair(&cpu, &gpu, &plain, "f16")) {
        piece prompts[] = {{0, 0, 140}, {1, 0, 150}}, next[] = {{0, 140, 1}, {1, 150, 1}};
        act *wide = be_act_open(gpu.be, ACT_INNER, 2048, 16); // of another model
        double bound = bounds[1].bound;
        expect_same(&cpu, &gpu, prompts, 2, false, bound, "a large step");
        for (int i = 0; i < 3; i++) expect_same(&cpu, &gpu, next, 2, false, bound, "a small step");
        uint64_t n_graphs = graph_launches(&gpu);
        EXPECT(copied_by(&gpu, prompts, 2) >= MANY_BYTES);
        EXPECT(copied_by(&gpu, next, 2) <= FEW_BYTES);
        expect_same(&cpu, &gpu, next, 2, false, bound, "a small step after a large one");
        EXPECT_EQ(graph_launches(&gpu), n_graphs + 2);
        be_act_close(gpu.be, wide);
    }
    close_pair(&cpu, &gpu);
    scratch_rows = 40;
}

/* ---- waiting ---- */

/* How many of two steps of one row were waited for asleep. */
static uint64_t sleeps_of_two_steps(side *s) {
    static float logits[ROWS_MAX * VOCAB];
    inferd_err err = {0};
    fake_counts before, after;
    fake_get_counts(&before);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(run(s, (piece[]){{0, 0, 1}}, 1, false, logits, &err), INFERD_OK);
    fake_get_counts(&after);
    return after.n_sleeps - before.n_sleeps;
}

static void long_steps_are_waited_for_asleep(void) {
    if (cuda_options(NULL).module == NULL) SKIP("the fake sees how it is waited for");
    for (int slow = 0; slow < 2; slow++) {
        side gpu;
        backend_options o = cuda_options("bf16");
        fake_reset();
        fake_options()->launch_us = slow ? 500 : 2; // 17 launches or more
        if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
        cuda_backend *c = cuda_of(gpu.be);
        c->wait = CUDA_WAIT_BY_STEP;
        EXPECT_EQ(sleeps_of_two_steps(&gpu), slow ? 1 : 0); // before the first none was seen
        EXPECT_EQ(sleeps_of_two_steps(&gpu), slow ? 2 : 0);
        c->wait = CUDA_WAIT_ASLEEP;
        EXPECT_EQ(sleeps_of_two_steps(&gpu), 2);
        c->wait = CUDA_WAIT_SPINNING;
        EXPECT_EQ(sleeps_of_two_steps(&gpu), 0);
        side_close(&gpu);
        EXPECT_EQ(fake_take_violations(), 0);
        EXPECT_EQ(fake_leaks(), 0);
    }
}

static void a_host_with_few_cpus_waits_asleep(void) {
    EXPECT_EQ(cuda_wait_choose(false, 16, 1), CUDA_WAIT_BY_STEP);
    EXPECT_EQ(cuda_wait_choose(false, 3, 1), CUDA_WAIT_BY_STEP);
    EXPECT_EQ(cuda_wait_choose(false, 2, 1), CUDA_WAIT_ASLEEP);
    EXPECT_EQ(cuda_wait_choose(false, 16, 8), CUDA_WAIT_ASLEEP); // two for each engine
    EXPECT_EQ(cuda_wait_choose(false, 64, 8), CUDA_WAIT_BY_STEP);
    EXPECT_EQ(cuda_wait_choose(true, 64, 1), CUDA_WAIT_ASLEEP); // a quota
    if (cuda_options(NULL).module == NULL) SKIP("the fake sees how it is waited for");
    cpu_set_t before, one;
    EXPECT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    for (int i = 0; i < 3; i++) { // as it comes, refused, switched off
        backend *be = NULL;
        backend_options o = cuda_options("bf16");
        inferd_err err = {0};
        fake_reset();
        if (i == 1) fake_fail_call("device_blocking", 1, CU_EUNSUPPORTED);
        if (i == 2) o.off = "blocking";
        EXPECT_EQ(backend_open(&o, &be, &err), INFERD_OK);
        if (be == NULL) break;
        const cuda_backend *c = cuda_of(be);
        EXPECT_EQ(c->wait, i == 2 ? CUDA_WAIT_SPINNING : CUDA_WAIT_ASLEEP);
        EXPECT_EQ(fake_calls("device_blocking"), i == 2 ? 0 : 1);
        EXPECT_EQ(c->parts.part[PART_BLOCKING].state, i == 0   ? BE_PART_ON
                                                      : i == 1 ? BE_PART_DEGRADED
                                                               : BE_PART_OFF);
        EXPECT(strstr(be_name(be), i == 2 ? "waits spinning" : "waits asleep") != NULL);
        backend_close(be);
        EXPECT_EQ(fake_leaks(), 0);
    }
    EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

/* ---- drawing ---- */

static const sample_params params_of[] = {
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7},
    {.temperature = 0.8f,
     .top_p = 0.9f,
     .top_k = 20,
     .repetition_penalty = 1.3f,
     .seed = 9,
     .presence_penalty = 0.5f,
     .frequency_penalty = 0.25f},
};

static void the_device_draws_what_the_host_would(void) {
    side gpu;
    backend_options o = cuda_options("f16");
    inferd_err err = {0};
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    sampler *host = sampler_create(VOCAB - 3);
    step_batch t;
    be_step_result r;
    make_batch(&gpu, &t, (piece[]){{0, 0, 6}, {1, 0, 4}, {2, 0, 5}}, 3, false);
    sample_row rows[3] = {0};
    for (uint32_t i = 0; i < 3; i++)
        rows[i] = (sample_row){.params = &params_of[i],
                               .tokens = t.tokens + t.seqs[i].row_begin,
                               .n_prompt = t.seqs[i].n_rows - 2,
                               .n_tokens = t.seqs[i].n_rows,
                               .forced = -1,
                               .n_top = 5};
    be_step_begin(gpu.be, &t.b, &gpu.kv);
    decoder_forward(gpu.be, &gpu.spec, &gpu.weights, &gpu.scratch, &t.b);
    be_draw(gpu.be, gpu.scratch.logits, rows, 3, VOCAB - 3);
    be_want_logits(gpu.be, gpu.scratch.logits, 3);
    be_step_end(gpu.be);
    EXPECT_EQ(be_step_finish(gpu.be, &r, &err), INFERD_OK);
    for (uint32_t i = 0; r.draws != NULL && i < 3; i++) {
        sample_result expected;
        rows[i].logits = r.logits + i * r.logits_stride;
        sampler_draw(host, &rows[i], &expected);
        EXPECT_EQ(r.draws[i].id, expected.id);
        EXPECT_NEAR(r.draws[i].logprob, expected.logprob, 0);
        EXPECT_EQ(r.draws[i].n_top, 5);
        for (uint32_t k = 0; k < 5; k++) {
            EXPECT_EQ(r.draws[i].top[k].id, expected.top[k].id);
            EXPECT_NEAR(r.draws[i].top[k].logprob, expected.top[k].logprob, 0);
        }
    }
    EXPECT(r.draws != NULL);
    sampler_destroy(host);
    side_close(&gpu);
}

/* How n tokens come after a prompt.  AHEAD: the next step is on its way before the token is known.
 * LATER: likewise, and what is drawn from it is told when that token is known. */
typedef enum way { ALONE, AHEAD, LATER } way;

static void generate(side *s, uint32_t seq, uint32_t n, way how, const sample_params *params,
                     const uint64_t *mask, tok_id *history) {
    bool ahead = how != ALONE;
    step_batch t[2];
    sample_row row[2];
    be_step_result r;
    inferd_err err = {0};
    uint32_t prompt = 5;
    for (uint32_t i = 0; i < prompt; i++) history[i] = token_at(seq, i);
    for (uint32_t i = 0; i < n; i++) {
        step_batch *b = &t[i % 2];
        piece p = i == 0 ? (piece){seq, 0, prompt} : (piece){seq, prompt + i - 1, 1};
        make_batch(s, b, &p, 1, false);
        if (i > 0) b->tokens[0] = ahead ? TOK_PENDING : history[prompt + i - 1];
        row[i % 2] = (sample_row){.params = params,
                                  .tokens = history,
                                  .n_prompt = prompt,
                                  .n_tokens = prompt + i,
                                  .mask = mask,
                                  .forced = -1,
                                  .n_top = -1};
        b->b.draws_later = how == LATER;
        be_step_begin(s->be, &b->b, &s->kv);
        decoder_forward(s->be, &s->spec, &s->weights, &s->scratch, &b->b);
        be_draw(s->be, s->scratch.logits, &row[i % 2], 1, VOCAB);
        be_step_end(s->be);
        if (!ahead || i > 0) {
            EXPECT_EQ(be_step_finish(s->be, &r, &err), INFERD_OK);
            if (err.text[0] != 0) printf("%s\n", err.text);
            if (r.draws != NULL) history[prompt + (ahead ? i - 1 : i)] = r.draws[0].id;
        }
        if (how == LATER) be_step_draw(s->be, &row[i % 2]);
    }
    if (!ahead) return;
    EXPECT_EQ(be_step_finish(s->be, &r, &err), INFERD_OK);
    if (r.draws != NULL) history[prompt + n - 1] = r.draws[0].id;
}

static void two_steps_on_their_way_give_the_tokens_of_one(void) {
    side gpu;
    backend_options o = cuda_options("bf16");
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    for (size_t i = 0; i < INFERD_COUNT(params_of); i++) {
        uint64_t mask[(VOCAB + 63) / 64];
        memset(mask, 0x5a, sizeof mask);
        for (uint32_t masked = 0; masked < 2; masked++) {
            tok_id alone[32] = {0}, ahead[32] = {0}, later[32] = {0};
            const uint64_t *bits = masked ? mask : NULL;
            generate(&gpu, 1, 10, ALONE, &params_of[i], bits, alone);
            generate(&gpu, 1, 10, AHEAD, &params_of[i], bits, ahead);
            generate(&gpu, 1, 10, LATER, &params_of[i], bits, later);
            EXPECT(memcmp(alone, ahead, 15 * sizeof *alone) == 0);
            EXPECT(memcmp(alone, later, 15 * sizeof *alone) == 0);
            for (uint32_t k = 5; masked && k < 15; k++)
                EXPECT((mask[alone[k] / 64] >> alone[k] % 64 & 1) != 0);
        }
    }
    side_close(&gpu);
    EXPECT_EQ(fake_take_violations(), 0);
}

/* ---- keys and values elsewhere ---- */

static void send(side *s, step_batch *t, piece p) {
    make_batch(s, t, &p, 1, false);
    be_step_begin(s->be, &t->b, &s->kv);
    decoder_forward(s->be, &s->spec, &s->weights, &s->scratch, &t->b);
    be_want_logits(s->be, s->scratch.logits, t->b.n_logits);
    be_step_end(s->be);
}

static void finish(side *s, float *logits) {
    inferd_err err = {0};
    be_step_result r;
    inferd_status status = be_step_finish(s->be, &r, &err);
    if (status != INFERD_OK) printf("%s\n", err.text);
    EXPECT_EQ(status, INFERD_OK);
    if (status == INFERD_OK) memcpy(logits, r.logits, VOCAB * sizeof *logits);
}

/* A prompt is computed, and before anybody has waited for it its slots are parked and another one
 * is computed in them; while that decodes, the first comes back to slots elsewhere and decodes
 * there.  Both give the bits that they give alone. */
static void what_was_swapped_out_gives_the_same_bits(void) {
    enum { PROMPT = 24 };
    static float alone[2][VOCAB], moved[2][VOCAB], unused[VOCAB];
    static step_batch t[2];
    int32_t swapped[BLOCKS_MAX * LAYERS];
    side gpu;
    backend_options o = cuda_options("bf16");
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    uint32_t n = kv_blocks_of(&gpu.kv, PROMPT) * gpu.kv.n_groups;
    for (uint32_t i = 0; i < n; i++) swapped[i] = (int32_t)(i * 5 + 2);
    for (uint32_t seq = 0; seq < 2; seq++) {
        send(&gpu, &t[0], (piece){seq, 0, PROMPT});
        finish(&gpu, unused);
        send(&gpu, &t[0], (piece){seq, PROMPT, 1});
        finish(&gpu, alone[seq]);
    }
    memcpy(gpu.slots[1], gpu.slots[0], sizeof gpu.slots[1]);
    for (int round = 0; round < 6; round++) {
        int32_t *home = gpu.slots[0], *elsewhere = gpu.slots[2 + round % 2];
        send(&gpu, &t[0], (piece){0, 0, PROMPT});
        be_kv_move(gpu.be, &gpu.kv, n, home, swapped, true);
        send(&gpu, &t[1], (piece){1, 0, PROMPT});
        finish(&gpu, unused);
        finish(&gpu, unused);
        send(&gpu, &t[0], (piece){1, PROMPT, 1});
        be_kv_move(gpu.be, &gpu.kv, n, swapped, elsewhere, false);
        int32_t before[BLOCKS_MAX * LAYERS];
        memcpy(before, home, sizeof before);
        memcpy(home, elsewhere, sizeof before);
        send(&gpu, &t[1], (piece){0, PROMPT, 1});
        finish(&gpu, moved[1]);
        finish(&gpu, moved[0]);
        memcpy(home, before, sizeof before);
        EXPECT(memcmp(moved[0], alone[0], sizeof alone[0]) == 0);
        EXPECT(memcmp(moved[1], alone[1], sizeof alone[1]) == 0);
    }
    side_close(&gpu);
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

/* ---- failures ---- */

static void wrong_batches_are_refused_and_the_next_is_served(void) {
    static float logits[ROWS_MAX * VOCAB];
    side gpu;
    backend_options o = cuda_options("bf16");
    inferd_err err = {0};
    step_batch t;
    be_step_result r;
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    for (int i = 0; i < 4; i++) {
        make_batch(&gpu, &t, (piece[]){{0, 0, 2}}, 1, false);
        int32_t slots[BLOCKS_MAX * LAYERS];
        memcpy(slots, gpu.slots[0], sizeof slots);
        t.seqs[0].slots = slots;
        if (i == 0) t.tokens[1] = VOCAB;
        if (i == 1) slots[0] = INT32_MAX;
        if (i == 2) t.tokens[1] = TOK_PENDING;
        if (i == 3) slots[0] = -1;
        be_step_begin(gpu.be, &t.b, &gpu.kv);
        decoder_forward(gpu.be, &gpu.spec, &gpu.weights, &gpu.scratch, &t.b);
        be_step_end(gpu.be);
        EXPECT(be_step_finish(gpu.be, &r, &err) != INFERD_OK);
        EXPECT_EQ(run(&gpu, (piece[]){{0, 0, 2}}, 1, false, logits, &err), INFERD_OK);
    }
    side_close(&gpu);
    EXPECT_EQ(fake_take_violations(), 0);
}

/* A call that fails between the launch of a step and its draws, or among these, fails the step; the
 * step before it, and the next one, are whole. */
static void a_later_draw_may_fail(void) {
    static float logits[ROWS_MAX * VOCAB];
    if (cuda_options(NULL).module == NULL) SKIP("a real device does not fail on demand");
    side gpu;
    inferd_err err = {0};
    backend_options o = cuda_options("bf16");
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    for (uint32_t n = 1;; n++) {
        step_batch t;
        be_step_result r;
        sample_row row = {.params = &params_of[0], .n_tokens = 2, .forced = -1, .n_top = -1};
        make_batch(&gpu, &t, (piece[]){{0, 0, 2}}, 1, false);
        t.b.draws_later = true;
        be_step_begin(gpu.be, &t.b, &gpu.kv);
        decoder_forward(gpu.be, &gpu.spec, &gpu.weights, &gpu.scratch, &t.b);
        be_draw(gpu.be, gpu.scratch.logits, &row, 1, VOCAB);
        be_step_end(gpu.be);
        fake_fail_own_at(n, CU_EFAILED);
        be_step_draw(gpu.be, &row);
        bool reached = fake_failed();
        fake_fail_at(0, CU_OK);
        inferd_status s = be_step_finish(gpu.be, &r, &err);
        EXPECT_EQ(s == INFERD_OK, !reached);
        EXPECT_EQ(run(&gpu, (piece[]){{0, 0, 2}}, 1, false, logits, &err), INFERD_OK);
        if (!reached) break;
    }
    side_close(&gpu);
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

static void any_call_may_fail_and_nothing_is_kept(void) {
    static float logits[ROWS_MAX * VOCAB];
    if (cuda_options(NULL).module == NULL) SKIP("a real device does not fail on demand");
    for (uint32_t n = 1;; n++) {
        side gpu = {0};
        inferd_err err = {0};
        fake_reset();
        fake_options()->poison = false; // filling it a few hundred times takes long
        backend_options o = cuda_options("bf16");
        fake_fail_at(n, CU_ENOMEM);
        inferd_status s = backend_open(&o, &gpu.be, &err);
        bool reached = fake_failed();
        fake_fail_at(0, CU_OK);
        if (s != INFERD_OK) EXPECT(err.text[0] != 0);
        backend_close(gpu.be);
        EXPECT_EQ(fake_leaks(), 0);
        if (!reached) break;
    }
    shape mixture = plain;
    mixture.experts = true;
    for (uint32_t n = 1;; n++) { // in the middle of a step
        side gpu;
        inferd_err err = {0};
        fake_reset();
        fake_options()->poison = false; // filling it a few hundred times takes long
        backend_options o = cuda_options("bf16");
        if (!side_open(&gpu, &o, &mixture, KV_F16, 5)) return;
        be_sync(gpu.be, &err);
        fake_fail_at(n, CU_EFAILED);
        run(&gpu, (piece[]){{0, 0, 2}}, 1, false, logits, &err);
        bool reached = fake_failed();
        fake_fail_at(0, CU_OK);
        EXPECT_EQ(run(&gpu, (piece[]){{0, 0, 2}}, 1, false, logits, &err), INFERD_OK);
        side_close(&gpu);
        EXPECT_EQ(fake_leaks(), 0);
        if (!reached) break;
    }
}

static void a_missing_library_is_told_and_a_named_one_is_an_error(void) {
    if (cuda_options(NULL).module == NULL) SKIP("a real machine has it or not");
    inferd_err err = {0};
    backend *be = NULL;
    backend_options o = cuda_options("bf16");
    fake_reset();
    fake_options()->lt = false;
    EXPECT_EQ(backend_open(&o, &be, &err), INFERD_OK);
    EXPECT(be != NULL && strstr(be_name(be), "without cuBLASLt") != NULL);
    EXPECT(be != NULL && be_warning(be)[0] != 0);
    backend_close(be);
    o.cublaslt_path = "/nowhere";
    EXPECT_EQ(backend_open(&o, &be, &err), INFERD_ENOTFOUND);
    EXPECT(strncmp(err.text, "cublaslt: ", 10) == 0);
    EXPECT_EQ(fake_leaks(), 0);
}

/* ---- parts that can be switched off, or are refused ---- */

enum { PART_STEPS = 4 };

/* A prompt, then some steps of three rows: one launched, one captured, the others replayed. */
static void run_parts(side *gpu, float *logits) {
    inferd_err err = {0};
    piece prompt[3] = {{0, 0, 9}, {1, 0, 5}, {2, 0, 12}};
    EXPECT_EQ(run(gpu, prompt, 3, false, logits, &err), INFERD_OK);
    EXPECT_EQ(be_sync(gpu->be, &err), INFERD_OK);
    for (uint32_t i = 0; i < PART_STEPS; i++) {
        piece next[3] = {{0, 9 + i, 1}, {1, 5 + i, 1}, {2, 12 + i, 1}};
        EXPECT_EQ(run(gpu, next, 3, false, logits + (i + 1) * 3 * VOCAB, &err), INFERD_OK);
    }
    if (err.text[0] != 0) printf("%s\n", err.text);
}

static const be_device_part *part_of(const side *gpu, backend_stats *stats, const char *name) {
    be_get_stats(gpu->be, stats);
    for (uint32_t i = 0; i < stats->n_parts; i++)
        if (strcmp(stats->parts[i].name, name) == 0) return &stats->parts[i];
    printf("no part %s\n", name);
    abort();
}

enum { PART_LOGITS = (PART_STEPS + 1) * 3 * VOCAB };
static float part_reference[PART_LOGITS], part_logits[PART_LOGITS];

/* Opens as the fake is, runs, and expects the bits of a device on which everything works. */
static bool same_bits(side *gpu, const backend_options *o, const char *what) {
    if (!side_open(gpu, o, &plain, KV_F16, 5)) return false;
    run_parts(gpu, part_logits);
    if (memcmp(part_logits, part_reference, sizeof part_logits) == 0) return true;
    printf("%s: other bits\n", what);
    test_failures++;
    return true;
}

static bool make_reference(void) {
    side gpu;
    backend_stats stats;
    backend_options o = cuda_options("bf16");
    if (o.module == NULL) return false;
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return false;
    run_parts(&gpu, part_reference);
    be_get_stats(gpu.be, &stats);
    EXPECT(stats.n_graph_launches > 0);
    for (uint32_t i = 0; i < stats.n_parts; i++) EXPECT_EQ(stats.parts[i].state, BE_PART_ON);
    side_close(&gpu);
    return true;
}

static void a_part_that_is_refused_falls_back_and_says_so(void) {
    static const struct {
        const char *call;
        cu_result result;
        const char *part;
    } cases[] = {{"vmm_granularity", CU_EUNSUPPORTED, "vmm"},
                 {"vmm_reserve", CU_EINVAL, "vmm"},
                 {"vmm_create", CU_EUNSUPPORTED, "vmm"},
                 {"vmm_map", CU_EFAILED, "vmm"},
                 {"vmm_access", CU_EINVAL, "vmm"},
                 {"capture_begin", CU_EUNSUPPORTED, "graphs"},
                 {"capture_end", CU_EUNSUPPORTED, "graphs"},
                 {"graph_launch", CU_EINVAL, "graphs"},
                 {"kernel_carve_out", CU_EINVAL, "carveout"},
                 {"host_pin", CU_EUNSUPPORTED, "pinned"},
                 {"lt_matmul", CU_EUNSUPPORTED, "lt"},
                 {"lt_candidates", CU_EUNSUPPORTED, "lt"}};
    backend_stats stats;
    if (!make_reference()) SKIP("a real device does not refuse on demand");
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        side gpu = {0};
        backend_options o = cuda_options("bf16");
        fake_reset();
        fake_fail_call_always(cases[i].call, 1, cases[i].result);
        if (!same_bits(&gpu, &o, cases[i].call)) continue;
        const be_device_part *part = part_of(&gpu, &stats, cases[i].part);
        for (int ms = 0; part->state == BE_PART_ON && ms < 2000; ms++) { // the pinner's turn
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            part = part_of(&gpu, &stats, cases[i].part);
        }
        EXPECT_EQ(part->state, BE_PART_DEGRADED);
        EXPECT(part->why[0] != 0);
        for (uint32_t k = 0; k < stats.n_parts; k++) // and no other part
            if (&stats.parts[k] != part) EXPECT_EQ(stats.parts[k].state, BE_PART_ON);
        if (test_failures > 0) printf("%s: %s\n", cases[i].call, part->why);
        fake_fail_call_always(cases[i].call, 0, CU_OK);
        side_close(&gpu);
        EXPECT_EQ(fake_take_violations(), 0);
        EXPECT_EQ(fake_leaks(), 0);
    }
}

/* The attribute is refused at the launch, or by the graph that holds such launches. */
static void refused_dependent_launches_are_plain_ones(void) {
    backend_stats stats;
    fake_counts counts;
    if (!make_reference()) SKIP("a real device does not refuse on demand");
    for (int graphs = 0; graphs < 2; graphs++) {
        side gpu = {0};
        backend_options o = cuda_options("bf16");
        fake_reset();
        fake_options()->no_dependent = graphs == 0;
        fake_options()->no_dependent_graphs = graphs == 1;
        if (!same_bits(&gpu, &o, "dependent launches")) return;
        const be_device_part *part = part_of(&gpu, &stats, "pdl");
        EXPECT_EQ(part->state, BE_PART_DEGRADED);
        EXPECT(strstr(part->why, "dependent") != NULL);
        EXPECT_EQ(part_of(&gpu, &stats, "graphs")->state, BE_PART_ON);
        EXPECT(stats.n_graph_launches > 0);
        fake_get_counts(&counts);
        uint64_t before = counts.n_dependent;
        run_parts(&gpu, part_logits);
        fake_get_counts(&counts);
        EXPECT_EQ(counts.n_dependent, before);
        side_close(&gpu);
        EXPECT_EQ(fake_take_violations(), 0);
    }
}

static void a_part_that_is_switched_off_is_not_used(void) {
    static const struct {
        const char *part, *call; // that is not made then
    } cases[] = {{"vmm", "vmm_create"},  {"graphs", "capture_begin"},
                 {"lt", "lt_open"},      {"carveout", "kernel_carve_out"},
                 {"pinned", "host_pin"}, {"pdl", NULL}};
    backend_stats stats;
    fake_counts counts;
    if (!make_reference()) SKIP("a real module keeps no count of its calls");
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        side gpu = {0};
        backend_options o = cuda_options("bf16");
        o.off = cases[i].part;
        fake_reset();
        if (!same_bits(&gpu, &o, cases[i].part)) continue;
        EXPECT_EQ(part_of(&gpu, &stats, cases[i].part)->state, BE_PART_OFF);
        EXPECT_STR(part_of(&gpu, &stats, cases[i].part)->why, "switched off by the options");
        if (cases[i].call != NULL) EXPECT_EQ(fake_calls(cases[i].call), 0);
        fake_get_counts(&counts);
        EXPECT_EQ(counts.n_dependent > 0, cases[i].call != NULL);
        side_close(&gpu);
        EXPECT_EQ(fake_take_violations(), 0);
    }
    fake_reset();
    setenv("INFERD_CUDA_OFF", " graphs ,pdl,", 1);
    side gpu = {0};
    backend_options o = cuda_options("bf16");
    o.off = "vmm";
    if (same_bits(&gpu, &o, "the environment")) {
        EXPECT_STR(part_of(&gpu, &stats, "graphs")->why, "switched off by INFERD_CUDA_OFF");
        EXPECT_EQ(part_of(&gpu, &stats, "pdl")->state, BE_PART_OFF);
        EXPECT_EQ(part_of(&gpu, &stats, "vmm")->state, BE_PART_OFF);
        EXPECT_EQ(part_of(&gpu, &stats, "pinned")->state, BE_PART_ON);
    }
    side_close(&gpu);
    inferd_err err = {0};
    setenv("INFERD_CUDA_OFF", "graphs,vm", 1);
    EXPECT_EQ(backend_open(&o, &gpu.be, &err), INFERD_EINVAL);
    EXPECT(strncmp(err.text, "INFERD_CUDA_OFF names \"vm\", expected vmm, graphs", 48) == 0);
    unsetenv("INFERD_CUDA_OFF");
}

static void an_old_device_has_parts_that_are_absent(void) {
    backend_options o = cuda_options("bf16");
    backend_stats stats;
    if (o.module == NULL) SKIP("a real device is what it is");
    side gpu = {0};
    fake_reset();
    fake_set_cc(8, 0);
    fake_options()->device[0].vmm = false;
    fake_options()->lt = false;
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    run_parts(&gpu, part_logits);
    EXPECT_EQ(part_of(&gpu, &stats, "pdl")->state, BE_PART_ABSENT);
    EXPECT_EQ(part_of(&gpu, &stats, "vmm")->state, BE_PART_ABSENT);
    EXPECT_EQ(part_of(&gpu, &stats, "lt")->state, BE_PART_ABSENT);
    EXPECT_EQ(be_extent_pages(gpu.be), 0);
    be_device_part parts[BE_DEVICE_PARTS_MAX]; // the same is said without opening it
    uint32_t n = 0;
    inferd_err err = {0};
    EXPECT_EQ(backend_list_parts(&o, 0, parts, &n, &err), INFERD_OK);
    EXPECT_EQ(n, stats.n_parts);
    for (uint32_t i = 0; i < n; i++) EXPECT_EQ(parts[i].state, stats.parts[i].state);
    side_close(&gpu);
}

/* A wrong result is no reason to go another way in silence. */
static void a_second_address_that_shows_other_bytes_is_an_error(void) {
    backend_options o = cuda_options("bf16");
    backend *be = NULL;
    inferd_err err = {0};
    if (o.module == NULL) SKIP("a real device works");
    fake_reset();
    fake_options()->broken_alias = true;
    EXPECT_EQ(backend_open(&o, &be, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "INFERD_CUDA_OFF=vmm") != NULL);
    EXPECT_EQ(fake_leaks(), 0);
    /* Alignment is a wish: without it the same range serves. */
    fake_reset();
    fake_fail_call("vmm_reserve", 1, CU_EINVAL);
    EXPECT_EQ(backend_open(&o, &be, &err), INFERD_OK);
    backend_stats stats;
    if (be != NULL) {
        be_get_stats(be, &stats);
        EXPECT_EQ(stats.parts[0].state, BE_PART_ON);
    }
    backend_close(be);
}

/* What made up weights is still running when the next kernel could read them. */
static void nothing_overtakes_the_kernel_that_makes_up_weights(void) {
    backend_options o = cuda_options("bf16");
    fake_counts before, after;
    if (o.module == NULL) SKIP("a real module keeps no count of its calls");
    side gpu = {0};
    inferd_err err = {0};
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    cuda_backend *c = cuda_of(gpu.be);
    be_sync(gpu.be, &err);
    be_weight_dummy(gpu.be, &gpu.weights.embed, 1, 0.1f);
    EXPECT(c->launch.settle);
    fake_get_counts(&before);
    be_weight_dummy(gpu.be, &gpu.weights.embed, 1, 0.1f);
    fake_get_counts(&after);
    EXPECT_EQ(after.n_dependent, before.n_dependent);
    side_close(&gpu);
}

static void a_lost_device_says_so_from_then_on(void) {
    static float logits[ROWS_MAX * VOCAB];
    side gpu;
    backend_options o = cuda_options("bf16");
    inferd_err err = {0};
    if (o.module == NULL) SKIP("a real device is not lost on demand");
    fake_reset();
    if (!side_open(&gpu, &o, &plain, KV_F16, 5)) return;
    be_sync(gpu.be, &err);
    fake_lose_context_at(3);
    EXPECT_EQ(run(&gpu, (piece[]){{0, 0, 2}}, 1, false, logits, &err), INFERD_ELOST);
    EXPECT_EQ(run(&gpu, (piece[]){{0, 0, 2}}, 1, false, logits, &err), INFERD_ELOST);
    side_close(&gpu);
}

static const test_case cases[] = {
    TEST(a_model_gives_the_logits_of_the_cpu),
    TEST(every_type_of_weights_does),
    TEST(k_quants_do),
    TEST(every_kind_of_family_does),
    TEST(mixtures_of_experts_do),
    TEST(experts_of_a_step_are_counted),
    TEST(one_row_takes_at_most_seven_launches_a_layer),
    TEST(a_finer_v_takes_no_launch_more),
    TEST(eight_rows_take_the_launches_of_four),
    TEST(each_number_of_rows_takes_its_kernel),
    TEST(weights_of_16_bits_take_skinny_with_one_row),
    TEST(a_step_gives_the_same_bits_again_and_after_eviction),
    TEST(graphs_are_used_while_another_models_weights_arrive),
    TEST(a_step_asks_about_uploads_once),
    TEST(a_step_has_as_many_rows_as_the_workspace_holds),
    TEST(a_step_of_few_rows_takes_little_to_the_device),
    TEST(long_steps_are_waited_for_asleep),
    TEST(a_host_with_few_cpus_waits_asleep),
    TEST(the_device_draws_what_the_host_would),
    TEST(two_steps_on_their_way_give_the_tokens_of_one),
    TEST(what_was_swapped_out_gives_the_same_bits),
    TEST(wrong_batches_are_refused_and_the_next_is_served),
    TEST(a_later_draw_may_fail),
    TEST(any_call_may_fail_and_nothing_is_kept),
    TEST(a_missing_library_is_told_and_a_named_one_is_an_error),
    TEST(a_part_that_is_refused_falls_back_and_says_so),
    TEST(refused_dependent_launches_are_plain_ones),
    TEST(a_part_that_is_switched_off_is_not_used),
    TEST(an_old_device_has_parts_that_are_absent),
    TEST(a_second_address_that_shows_other_bytes_is_an_error),
    TEST(nothing_overtakes_the_kernel_that_makes_up_weights),
    TEST(a_lost_device_says_so_from_then_on),
};
TEST_MAIN(cases)
