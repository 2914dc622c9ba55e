/* A step put together has the bits of the same operations run one by one, and what is left out is
 * only what nobody reads. */
#include <math.h>

#include "cpu_rig.h"

enum { DIM = 96, HEADS = 6, KV_HEADS = 2, HEAD_DIM = 16, FFN = 160, VOCAB = 200, LAYERS = 2 };
enum { ROWS = 19, BLOCK_TOKENS = 16, N_BLOCKS = 2 };

typedef struct layer {
    vec attn_norm, ffn_norm, head_norm, post_norm, bias;
    weight q, k, v, o, gate, up, down;
} layer;

typedef struct net {
    weight embed, head;
    vec norm;
    layer layers[LAYERS];
    act *x, *h, *q, *k, *v, *att, *gate, *up, *last, *logits;
    float inv_freq[HEAD_DIM / 2];
    kv_layout kv;
} net;

/* Other families: a norm per head, a norm after the block, biases, the other gate, a cap. */
typedef struct family {
    bool head_norms, post_norms, biases, cap;
    act_fn fn;
    dtype attention, gate, up, down;
} family;

static weight random_weight(device *d, dtype type, uint32_t rows, uint32_t cols) {
    unsigned char *file = file_rows(type, rows, cols);
    weight w = make_weight(d, type, rows, cols, file);
    free(file);
    return w;
}

static vec random_vec(device *d, uint32_t n) {
    float *x = random_floats(n);
    vec v = make_vec(d, x, n);
    free(x);
    return v;
}

static void net_open(device *d, net *m, const family *f) {
    *m = (net){0};
    random_state = 7;
    m->embed = random_weight(d, DTYPE_Q8_0, VOCAB, DIM);
    m->head = random_weight(d, DTYPE_Q8_0, VOCAB, DIM);
    m->norm = random_vec(d, DIM);
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        l->attn_norm = random_vec(d, DIM);
        l->ffn_norm = random_vec(d, DIM);
        l->head_norm = random_vec(d, HEAD_DIM);
        l->post_norm = random_vec(d, DIM);
        l->bias = random_vec(d, FFN);
        l->q = random_weight(d, f->attention, HEADS * HEAD_DIM, DIM);
        l->k = random_weight(d, f->attention, KV_HEADS * HEAD_DIM, DIM);
        l->v = random_weight(d, DTYPE_Q5_0, KV_HEADS * HEAD_DIM, DIM);
        l->o = random_weight(d, f->attention, DIM, HEADS * HEAD_DIM);
        l->gate = random_weight(d, f->gate, FFN, DIM);
        l->up = random_weight(d, f->up, FFN, DIM);
        l->down = random_weight(d, f->down, DIM, FFN);
    }
    struct {
        act **slot;
        uint32_t dim;
    } acts[] = {{&m->x, DIM},
                {&m->h, DIM},
                {&m->q, HEADS * HEAD_DIM},
                {&m->k, KV_HEADS * HEAD_DIM},
                {&m->v, KV_HEADS * HEAD_DIM},
                {&m->att, HEADS * HEAD_DIM},
                {&m->gate, FFN},
                {&m->up, FFN},
                {&m->last, DIM},
                {&m->logits, VOCAB}};
    for (size_t i = 0; i < INFERD_COUNT(acts); i++)
        *acts[i].slot = be_act_open(d->be, ACT_INNER, ROWS, acts[i].dim);
    for (int i = 0; i < HEAD_DIM / 2; i++) m->inv_freq[i] = powf(100, -(float)i / (HEAD_DIM / 2));
    m->kv = (kv_layout){.type = KV_F16,
                        .n_layers = LAYERS,
                        .n_kv_heads = KV_HEADS,
                        .head_dim = HEAD_DIM,
                        .block_tokens = BLOCK_TOKENS,
                        .group_layers = LAYERS,
                        .n_groups = 1};
    m->kv.layer_bytes = be_kv_layer_bytes(d->be, KV_F16, KV_HEADS, HEAD_DIM, BLOCK_TOKENS);
    m->kv.slot_bytes = LAYERS * m->kv.layer_bytes;
    m->kv.slots_per_page = (uint32_t)(be_page_bytes(d->be) / m->kv.slot_bytes);
}

static void net_close(device *d, net *m) {
    act *all[] = {m->x, m->h, m->q, m->k, m->v, m->att, m->gate, m->up, m->last, m->logits};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) be_act_close(d->be, all[i]);
}

/* Everything noted down so far is computed, and may be looked at. */
static void stop_here(device *d, const net *m, bool one_by_one) {
    if (one_by_one) be_act_host(d->be, m->x);
}

static void pass(device *d, net *m, const family *f, uint32_t n, bool one_by_one, float *out) {
#define OP(call) call, stop_here(d, m, one_by_one)
    backend *be = d->be;
    static const float eps = 1e-5f;
    rope_spec rope = {m->inv_freq, HEAD_DIM / 2, 1, true};
    attn_spec spec = {HEADS, KV_HEADS, HEAD_DIM, 0.25f, 0, 0};
    rows_batch r;
    int32_t slots[N_BLOCKS] = {(int32_t)(WINDOW_PAGES * m->kv.slots_per_page),
                               (int32_t)(WINDOW_PAGES * m->kv.slots_per_page + 1)};
    batch_seq seq = {0, n, 0, N_BLOCKS, slots};
    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < n; i++) {
        r.tokens[i] = (tok_id)(i * 11 % VOCAB);
        r.positions[i] = i;
    }
    r.logit_rows[0] = n / 2;
    r.logit_rows[1] = n - 1;
    r.b = (batch){.n_rows = n,
                  .n_seqs = 1,
                  .n_logits = n > 1 ? 2 : 1,
                  .tokens = r.tokens,
                  .positions = r.positions,
                  .row_seq = r.row_seq,
                  .seqs = &seq,
                  .logit_rows = r.logit_rows,
                  .pending = r.pending};
    be_step_begin(be, &r.b, &m->kv);
    OP(be_embed(be, m->x, &m->embed, 1));
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        vec bias = f->biases ? (vec){l->bias.data, KV_HEADS * HEAD_DIM} : (vec){0};
        OP(be_rmsnorm(be, m->h, m->x, &l->attn_norm, n, eps));
        OP(be_matmul(be, m->q, m->h, &l->q, NULL, n));
        OP(be_matmul(be, m->k, m->h, &l->k, &bias, n));
        OP(be_matmul(be, m->v, m->h, &l->v, NULL, n));
        if (f->head_norms) {
            OP(be_head_norm(be, m->q, &l->head_norm, n, HEADS, HEAD_DIM, eps));
            OP(be_head_norm(be, m->k, &l->head_norm, n, KV_HEADS, HEAD_DIM, eps));
        }
        OP(be_rope(be, m->q, m->k, &rope, HEADS, KV_HEADS, HEAD_DIM));
        OP(be_attention(be, m->att, m->q, m->k, m->v, (uint32_t)i, &spec, NULL));
        OP(be_matmul(be, m->h, m->att, &l->o, NULL, n));
        if (f->post_norms) OP(be_rmsnorm(be, m->h, m->h, &l->post_norm, n, eps));
        OP(be_add(be, m->x, m->h, n, DIM));
        OP(be_rmsnorm(be, m->h, m->x, &l->ffn_norm, n, eps));
        OP(be_matmul(be, m->gate, m->h, &l->gate, f->biases ? &l->bias : NULL, n));
        OP(be_matmul(be, m->up, m->h, &l->up, NULL, n));
        OP(be_glu(be, f->fn, m->gate, m->gate, m->up, n, FFN));
        OP(be_matmul(be, m->h, m->gate, &l->down, NULL, n));
        if (f->post_norms) OP(be_rmsnorm(be, m->h, m->h, &l->post_norm, n, eps));
        OP(be_add(be, m->x, m->h, n, DIM));
    }
    OP(be_take_logit_rows(be, m->last, m->x, DIM));
    OP(be_rmsnorm(be, m->h, m->last, &m->norm, r.b.n_logits, eps));
    OP(be_matmul(be, m->logits, m->h, &m->head, NULL, r.b.n_logits));
    if (f->cap) OP(be_softcap(be, m->logits, r.b.n_logits, VOCAB, 30));
    be_want_logits(be, m->logits, r.b.n_logits);
    be_step_end(be);
    be_step_result result = {0};
    inferd_err err = {0};
    EXPECT_EQ(be_step_finish(be, &result, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    EXPECT(result.logits != NULL);
    for (uint32_t i = 0; result.logits != NULL && i < r.b.n_logits; i++)
        memcpy(out + (size_t)i * VOCAB, result.logits + i * result.logits_stride,
               VOCAB * sizeof *out);
#undef OP
}

static void together_or_one_by_one_is_the_same(void) {
    static const family families[] = {
        {.fn = ACT_SILU,
         .attention = DTYPE_Q4_1,
         .gate = DTYPE_Q4_0,
         .up = DTYPE_Q4_0,
         .down = DTYPE_Q8_0},
        {true, true, true, true, ACT_GELU_TANH, DTYPE_Q5_1, DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_1},
        {.fn = ACT_SILU,
         .attention = DTYPE_BF16,
         .gate = DTYPE_BF16,
         .up = DTYPE_BF16,
         .down = DTYPE_BF16},
        // ways that cannot be mixed: floats beside integers
        {.fn = ACT_SILU,
         .attention = DTYPE_F16,
         .gate = DTYPE_F32,
         .up = DTYPE_Q4_0,
         .down = DTYPE_F16},
        {.fn = ACT_SILU,
         .attention = DTYPE_Q4_0,
         .gate = DTYPE_BF16,
         .up = DTYPE_Q4_0,
         .down = DTYPE_BF16},
    };
    static const uint32_t row_counts[] = {1, 3, 8, 19};
    static float together[2 * VOCAB], alone[2 * VOCAB];
    for (size_t level = 0; level < INFERD_COUNT(level_names); level++) {
        for (int exact = 0; exact < 2; exact++) {
            for (size_t i = 0; i < INFERD_COUNT(families); i++) {
                device d;
                net m;
                if (!device_open_math(&d, level_names[level], 2, exact != 0)) continue;
                net_open(&d, &m, &families[i]);
                for (size_t k = 0; k < INFERD_COUNT(row_counts); k++) {
                    size_t n = (row_counts[k] > 1 ? 2 : 1) * VOCAB;
                    pass(&d, &m, &families[i], row_counts[k], false, together);
                    pass(&d, &m, &families[i], row_counts[k], true, alone);
                    expect_same_bits("step", level_names[level], together, alone, n);
                    for (size_t e = 0; e < n; e++) EXPECT(isfinite(together[e]));
                }
                net_close(&d, &m);
                device_close(&d);
            }
        }
    }
}

static void what_is_read_later_is_not_left_out(void) {
    enum { N = 5 };
    device d;
    rows_batch r;
    EXPECT(device_open_math(&d, "base", 1, false));
    random_state = 3;
    float *rows = random_floats((size_t)N * DIM);
    weight table = make_table(&d, rows, N, DIM);
    weight gate = random_weight(&d, DTYPE_Q4_0, FFN, DIM),
           up = random_weight(&d, DTYPE_Q4_0, FFN, DIM);
    act *x = be_act_open(d.be, ACT_INNER, N, DIM), *g = be_act_open(d.be, ACT_INNER, N, FFN),
        *u = be_act_open(d.be, ACT_INNER, N, FFN), *out = be_act_open(d.be, ACT_INNER, N, FFN);
    step_of_rows(&d, &r, 0, N);
    be_embed(d.be, x, &table, 1);
    be_matmul(d.be, g, x, &gate, NULL, N);
    be_matmul(d.be, u, x, &up, NULL, N);
    be_glu(d.be, ACT_SILU, out, g, u, N, FFN);
    be_add(d.be, out, u, N, FFN); // reads what the gate has read
    sync_ok(&d);
    const float *gh = be_act_host(d.be, g), *uh = be_act_host(d.be, u),
                *oh = be_act_host(d.be, out);
    for (uint32_t i = 0; i < N * FFN; i++) {
        double expected = (double)gh[i] / (1 + exp(-(double)gh[i])) * (double)uh[i] + (double)uh[i];
        expect_close("glu and add", "base", (double)oh[i], expected, 1e-5 * (1 + fabs(expected)));
    }
    act *all[] = {x, g, u, out};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) be_act_close(d.be, all[i]);
    free(rows);
    device_close(&d);
}

static void a_step_longer_than_the_list_is_computed_whole(void) {
    enum { N = 2, TIMES = 3000 };
    device d;
    rows_batch r;
    float rows[2 * 16];
    for (int i = 0; i < 32; i++) rows[i] = (float)i;
    EXPECT(device_open(&d, "base", 2));
    weight table = make_table(&d, rows, N, 16);
    act *x = be_act_open(d.be, ACT_INNER, N, 16), *sum = be_act_open(d.be, ACT_INNER, N, 16);
    step_of_rows(&d, &r, 0, N);
    be_embed(d.be, x, &table, 1);
    be_embed(d.be, sum, &table, 0);
    for (int i = 0; i < TIMES; i++) be_add(d.be, sum, x, N, 16);
    sync_ok(&d);
    for (int i = 0; i < 32; i++) EXPECT(be_act_host(d.be, sum)[i] == (float)i * TIMES);
    be_act_close(d.be, x);
    be_act_close(d.be, sum);
    device_close(&d);
}

static void a_step_that_failed_computes_nothing(void) {
    device d;
    rows_batch r;
    inferd_err err = {0};
    float rows[16] = {1};
    EXPECT(device_open(&d, "base", 1));
    weight table = make_table(&d, rows, 1, 16);
    act *x = be_act_open(d.be, ACT_INNER, 1, 16);
    step_of_rows(&d, &r, 0, 1);
    be_embed(d.be, x, &table, 1);
    r.tokens[0] = 5; // the table has one row
    be_embed(d.be, x, &table, 1);
    be_step_end(d.be);
    be_step_result result;
    EXPECT_EQ(be_step_finish(d.be, &result, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "row 0 has token 5, the embedding has 1 rows");
    EXPECT(be_act_host(d.be, x)[0] == 0);
    be_act_close(d.be, x);
    device_close(&d);
}

static const test_case cases[] = {
    TEST(together_or_one_by_one_is_the_same),
    TEST(what_is_read_later_is_not_left_out),
    TEST(a_step_longer_than_the_list_is_computed_whole),
    TEST(a_step_that_failed_computes_nothing),
};
TEST_MAIN(cases)
