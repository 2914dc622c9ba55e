/* test_cuda_draw.c - the device draws what models/sampler.c draws, bit for bit.
 *
 * Equal logits must give equal ids and equal bits of every log-probability, so nothing here has a
 * tolerance.  A `lot` is one launch: rows that differ in everything, behind them rows that the
 * launch bound covers and the plan does not have.  Between rows of logits lie NaN and +inf: what is
 * read too far makes a row broken.  Every lot is launched twice with different orders of the
 * emulated threads: the second finds what the first left in the scratch. */
#include "cuda/draw.h"

#include "cuda_emul/emul_run.h"
#include "cuda_rig.h"
#include "models/sampler.h"

enum { SEED = 20, ROWS_MAX = 64, HISTORY_MAX = 400, LIST_MAX = 40, MASKS = 4 };

/* ---- one row ---- */

typedef struct row_case {
    sample_params params;
    logit_bias bias[LIST_MAX];
    tok_id banned[LIST_MAX];
    uint32_t n_banned;
    const uint64_t *mask; // of the lot, or NULL
    tok_id *tokens;       // [n_tokens]; history, or longer ones that a test owns
    uint32_t n_prompt, n_tokens;
    tok_id history[HISTORY_MAX];
    tok_id forced;
    int32_t n_top;
    bool pending;  // the last token comes from the device
    float *logits; // [n_vocab]
} row_case;

typedef struct lot {
    uint32_t n_vocab, n_rows, bound, rows_max; // n_rows <= bound <= rows_max
    row_case row[ROWS_MAX];
    uint64_t *masks[MASKS]; // shared by rows; owned
} lot;

static lot *lot_make(uint32_t n_vocab, uint32_t n_rows) {
    lot *t = calloc(1, sizeof *t);
    INFERD_CHECK(t != NULL && n_rows <= ROWS_MAX);
    *t = (lot){.n_vocab = n_vocab, .n_rows = n_rows, .bound = n_rows, .rows_max = n_rows};
    for (uint32_t i = 0; i < n_rows; i++) {
        row_case *c = &t->row[i];
        c->params =
            (sample_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 77 + i};
        c->tokens = c->history;
        c->forced = -1;
        c->n_top = 3;
        c->logits = rig_normals(n_vocab, 3);
    }
    return t;
}

static void lot_free(lot *t) {
    for (uint32_t i = 0; i < t->n_rows; i++) free(t->row[i].logits);
    for (uint32_t i = 0; i < MASKS; i++) free(t->masks[i]);
    free(t);
}

/* Nothing, a few tokens, most, or all and bits behind the vocabulary. */
static const uint64_t *some_mask(lot *t) {
    uint32_t k = rig_below(MASKS), n_words = (t->n_vocab + 63) / 64;
    if (t->masks[k] != NULL) return t->masks[k];
    uint64_t *mask = t->masks[k] = calloc(n_words, sizeof *mask);
    INFERD_CHECK(mask != NULL);
    for (uint32_t i = 0; i < 64 * n_words; i++)
        if (k == 3 || (k > 0 && i < t->n_vocab && rig_below(k == 1 ? 40 : 10) < (k == 1 ? 1 : 9)))
            mask[i / 64] |= UINT64_C(1) << i % 64;
    return mask;
}

static sample_row row_of_case(const row_case *c) {
    return (sample_row){.logits = c->logits,
                        .params = &c->params,
                        .tokens = c->tokens,
                        .n_prompt = c->n_prompt,
                        .n_tokens = c->n_tokens,
                        .banned = c->banned,
                        .n_banned = c->n_banned,
                        .mask = c->mask,
                        .forced = c->forced,
                        .n_top = c->n_top};
}

static void fill_rows(lot *t, sample_row *rows) {
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        c->params.bias = c->bias;
        rows[i] = row_of_case(c);
    }
}

/* ---- what a launch must give ---- */

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static bool same_result(const sample_result *a, const sample_result *b) {
    bool same =
        a->id == b->id && bits_of(a->logprob) == bits_of(b->logprob) && a->n_top == b->n_top;
    for (uint32_t k = 0; same && k < a->n_top && k < SAMPLE_TOP_MAX; k++)
        same = a->top[k].id == b->top[k].id &&
               bits_of(a->top[k].logprob) == bits_of(b->top[k].logprob);
    return same;
}

static void print_result(const char *name, const sample_result *r) {
    printf("  %s: id %d, logprob %.9g, %u alternatives:", name, r->id, (double)r->logprob,
           r->n_top);
    for (uint32_t k = 0; k < r->n_top && k < SAMPLE_TOP_MAX; k++)
        printf(" %d:%.9g", r->top[k].id, (double)r->top[k].logprob);
    printf("\n");
}

static void print_case(const lot *t, uint32_t i, const char *what) {
    const row_case *c = &t->row[i];
    const sample_params *p = &c->params;
    printf("%s: row %u of %u, vocabulary %u: temperature %g top_p %g min_p %g top_k %u penalties "
           "%g %g %g, "
           "%u biases, %u banned, %u tokens, forced %d, n_top %d%s%s\n",
           what, i, t->n_rows, t->n_vocab, (double)p->temperature, (double)p->top_p,
           (double)p->min_p, p->top_k, (double)p->repetition_penalty, (double)p->presence_penalty,
           (double)p->frequency_penalty, p->n_bias, c->n_banned, c->n_tokens, c->forced, c->n_top,
           c->pending ? ", promised" : "", c->mask != NULL ? ", masked" : "");
}

static void expect_results(const lot *t, const sample_row *rows, const sample_result *got,
                           const int32_t *drawn, const char *what) {
    sampler *s = sampler_create(t->n_vocab);
    INFERD_CHECK(s != NULL);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        sample_result want;
        sampler_draw(s, &rows[i], &want);
        tok_id next = want.id >= 0 ? want.id : 0;
        if (same_result(&want, &got[i]) && drawn[i] == next) continue;
        test_failures++;
        print_case(t, i, what);
        print_result("sampler.c", &want);
        print_result("device", &got[i]);
        if (drawn[i] != next)
            printf("  the next step would read %d, expected %d\n", drawn[i], next);
    }
    sampler_destroy(s);
}

static bool all_bytes(const void *p, uint8_t byte, size_t n) {
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        if (b[i] != byte) return false;
    return true;
}

/* ---- launching a lot ---- */

typedef struct rig_lot { // a lot's memory
    uint32_t stride;
    void *plan, *logits, *changed, *before, *drawn, *results, *scratch;
    size_t plan_bytes;
} rig_lot;

static void *put_logits(cuda_rig *r, const lot *t, uint32_t stride) {
    float *host = malloc((size_t)t->bound * stride * sizeof *host + 1);
    INFERD_CHECK(host != NULL);
    for (uint32_t i = 0; i < t->bound; i++)
        for (uint32_t j = 0; j < stride; j++)
            host[(size_t)i * stride + j] = j >= t->n_vocab ? (j % 2 ? NAN : INFINITY)
                                           : i < t->n_rows ? t->row[i].logits[j]
                                                           : 1.0f;
    void *dev = rig_put(r, host, (size_t)t->bound * stride * sizeof *host);
    free(host);
    return dev;
}

/* The draws of the step before are as many as the rows, each row's in a place of its own. */
static uint32_t place_of(const lot *t, uint32_t i) {
    return (i * 7 + 3) % t->rows_max;
}

/* The plan as a batch of three tokens a draw wants it; promised tokens are hidden from it. */
static inferd_status plan_lot(lot *t, draw_plan *plan, void *scratch, inferd_err *err) {
    sample_row rows[ROWS_MAX];
    tok_id tokens[3 * ROWS_MAX];
    uint32_t pending[3 * ROWS_MAX], logit_rows[ROWS_MAX];
    for (uint32_t i = 0; i < 3 * ROWS_MAX; i++) {
        tokens[i] = 1;
        pending[i] = 0xdead;
    }
    fill_rows(t, rows);
    tok_id *hidden[ROWS_MAX] = {NULL};
    for (uint32_t i = 0; i < t->n_rows; i++) {
        logit_rows[i] = 3 * i + i % 3;
        if (!t->row[i].pending) continue;
        tokens[logit_rows[i]] = TOK_PENDING;
        pending[logit_rows[i]] = place_of(t, i);
        hidden[i] = malloc(rows[i].n_tokens * sizeof(tok_id));
        INFERD_CHECK(hidden[i] != NULL);
        memcpy(hidden[i], rows[i].tokens, rows[i].n_tokens * sizeof(tok_id));
        hidden[i][rows[i].n_tokens - 1] = 2; // nobody knows it
        rows[i].tokens = hidden[i];
    }
    for (uint32_t i = 0; i < t->n_rows; i++) rows[i].logits = NULL;
    batch b = {.n_rows = 3 * t->n_rows,
               .n_logits = t->n_rows,
               .tokens = tokens,
               .pending = pending,
               .logit_rows = logit_rows};
    inferd_status s = draw_plan_build(plan, rows, &b, t->n_vocab, scratch, err);
    for (uint32_t i = 0; i < t->n_rows; i++) free(hidden[i]);
    return s;
}

static void *put_before(cuda_rig *r, const lot *t) {
    int32_t before[ROWS_MAX];
    for (uint32_t i = 0; i < ROWS_MAX; i++) before[i] = 1;
    for (uint32_t i = 0; i < t->n_rows; i++)
        if (t->row[i].pending) before[place_of(t, i)] = t->row[i].tokens[t->row[i].n_tokens - 1];
    return rig_put(r, before, t->rows_max * sizeof *before);
}

/* An upload of exactly the size it needs. */
static void *put_plan(cuda_rig *r, lot *t) {
    inferd_err err = {0};
    size_t n_max = draw_plan_bytes(t->n_rows) + ((size_t)1 << 21),
           scratch_bytes = draw_scratch_bytes(t->n_vocab);
    void *host = malloc(n_max), *scratch = calloc(1, scratch_bytes), *dev = NULL;
    INFERD_CHECK(host != NULL && scratch != NULL);
    draw_plan plan = {.host = host, .bytes_max = n_max};
    EXPECT_EQ(plan_lot(t, &plan, scratch, &err), INFERD_OK);
    EXPECT_EQ(plan.n_rows, t->n_rows);
    EXPECT(all_bytes(scratch, 0, scratch_bytes));
    if (plan.n_rows == t->n_rows) dev = rig_put(r, host, plan.bytes);
    free(host);
    free(scratch);
    return dev;
}

static void lot_put(cuda_rig *r, lot *t, rig_lot *d) {
    size_t scratch = draw_workspace_bytes(t->rows_max, t->n_vocab);
    d->stride = (t->n_vocab + 7) / 8 * 8 + (t->n_vocab % 3 == 0 ? 8 : 0);
    d->plan = put_plan(r, t);
    d->logits = put_logits(r, t, d->stride);
    d->changed = rig_alloc(r, (size_t)t->rows_max * d->stride * sizeof(float));
    d->before = put_before(r, t);
    d->drawn = rig_alloc(r, t->rows_max * sizeof(int32_t));
    d->results = rig_alloc(r, t->rows_max * sizeof(sample_result));
    d->scratch = rig_alloc(r, scratch);
    rig_fill(r, d->scratch, 0xFF, scratch); // zeros where it says, and nowhere else
    rig_fill(r, d->scratch, 0, draw_workspace_zeros(t->rows_max));
}

static void lot_launch(cuda_rig *r, const lot *t, const rig_lot *d) {
    rig_fill(r, d->drawn, 0xFF, t->rows_max * sizeof(int32_t));
    rig_fill(r, d->results, 0xFF, t->rows_max * sizeof(sample_result));
    launch_draw(&r->l, &(draw_args){.plan = d->plan,
                                    .logits = d->logits,
                                    .changed = d->changed,
                                    .rows = t->bound,
                                    .n_vocab = t->n_vocab,
                                    .stride = d->stride,
                                    .drawn_before = d->before,
                                    .drawn = d->drawn,
                                    .results = d->results,
                                    .scratch = d->scratch,
                                    .rows_max = t->rows_max});
}

static void lot_check(cuda_rig *r, lot *t, const rig_lot *d, const char *what) {
    sample_row rows[ROWS_MAX];
    static sample_result got[ROWS_MAX];
    int32_t drawn[ROWS_MAX];
    size_t zeros = draw_workspace_zeros(t->rows_max);
    uint8_t *left = malloc(zeros);
    INFERD_CHECK(left != NULL);
    if (rig_sync(r)) {
        rig_read(r, got, d->results, t->rows_max * sizeof *got);
        rig_read(r, drawn, d->drawn, t->rows_max * sizeof *drawn);
        rig_read(r, left, d->scratch, zeros);
        fill_rows(t, rows);
        expect_results(t, rows, got, drawn, what);
        uint32_t n = t->n_rows, rest = t->rows_max - n;
        EXPECT(all_bytes(got + n, 0xFF, rest * sizeof *got));
        EXPECT(all_bytes(drawn + n, 0xFF, rest * sizeof *drawn));
        EXPECT(all_bytes(left, 0, zeros));
    }
    free(left);
}

static void lot_free_device(cuda_rig *r, const rig_lot *d) {
    void *all[] = {d->plan, d->logits, d->changed, d->before, d->drawn, d->results, d->scratch};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) rig_free(r, all[i]);
}

static void run_lot(cuda_rig *r, lot *t, const char *what) {
    inferd_err err = {0};
    rig_lot d;
    if (!r->opened) return;
    EXPECT_EQ(draw_init(r->module, &r->device, &err), INFERD_OK);
    lot_put(r, t, &d);
    for (uint64_t seed = 1; d.plan != NULL && seed <= 2; seed++) {
        emul_set_options(&(emul_options){.seed = seed, .shuffle = seed > 1});
        lot_launch(r, t, &d);
        lot_check(r, t, &d, what);
    }
    emul_set_options(&(emul_options){.seed = 1});
    lot_free_device(r, &d);
}

/* ---- logits of many kinds ---- */

typedef enum logits_kind {
    NORMAL,
    PEAKED,      // one far above
    EQUAL,       // all the same
    FEW,         // a handful of values, so ties everywhere
    ZEROS,       // +0 and -0
    MANY_MINUS,  // -inf but for a few
    ONE_FINITE,  // -inf but for one
    HUGE_SPREAD, // up to the largest floats
    TINY_SPREAD, // neighbouring floats, and denormals
    RISING,
    FALLING,
    NOTHING, // -inf everywhere: broken
    NAN_SOMEWHERE,
    INF_SOMEWHERE,
    KINDS
} logits_kind;

static float logit_of(logits_kind kind, uint32_t i, uint32_t n, uint32_t special) {
    switch (kind) {
    case PEAKED:
        return i == special ? 25.0f : rig_normal();
    case EQUAL:
        return -3.25f;
    case FEW:
        return (float)rig_below(4) * 0.5f;
    case ZEROS:
        return rig_below(2) ? 0.0f : -0.0f;
    case MANY_MINUS:
        return rig_below(8) ? -INFINITY : rig_normal();
    case ONE_FINITE:
        return i == special ? -7.0f : -INFINITY;
    case HUGE_SPREAD:
        return rig_uniform(-3.4e38f, 3.4e38f);
    case TINY_SPREAD:
        return rig_below(2) ? 1.0f + (float)rig_below(5) * 0x1p-23f : (float)rig_below(9) * 1e-44f;
    case RISING:
        return (float)i * (20.0f / (float)n);
    case FALLING:
        return -(float)i * (20.0f / (float)n);
    case NOTHING:
        return -INFINITY;
    case NAN_SOMEWHERE:
        return i == special ? NAN : rig_normal();
    case INF_SOMEWHERE:
        return i == special ? INFINITY : rig_normal();
    default:
        return 3.0f * rig_normal();
    }
}

static void fill_logits(row_case *c, uint32_t n, logits_kind kind) {
    uint32_t special = rig_below(n);
    for (uint32_t i = 0; i < n; i++) c->logits[i] = logit_of(kind, i, n, special);
    if (kind == MANY_MINUS) c->logits[special] = 0.5f;
}

/* ---- parameters of many kinds ---- */

static const float temperatures[] = {0, 1e-31f, 1e-30f, 1e-20f, 0.1f, 0.7f, 1, 1, 2.5f, 100};
static const float top_ps[] = {1, 1, 1e-13f, 1e-6f, 0.3f, 0.9f, 0.95f, 0.999f, 0.99999994f};
static const float min_ps[] = {0, 0, 0.1f, 1};

static uint32_t some_top_k(uint32_t n) {
    const uint32_t top_ks[] = {0, 0, 0, 1, 2, 50, n / 2 + 1, n - 1, n, n + 1, UINT32_MAX};
    return top_ks[rig_below(INFERD_COUNT(top_ks))];
}

static tok_id some_id(uint32_t n) { // sometimes none of the vocabulary
    uint32_t what = rig_below(12);
    if (what == 0) return (tok_id)(n + rig_below(3));
    if (what == 1) return -1 - (tok_id)rig_below(3);
    return (tok_id)(what < 6 ? rig_below(u32_min(n, 9)) : rig_below(n));
}

static void some_params(row_case *c, uint32_t n) {
    sample_params *p = &c->params;
    p->temperature = temperatures[rig_below(INFERD_COUNT(temperatures))];
    p->top_p = top_ps[rig_below(INFERD_COUNT(top_ps))];
    p->min_p = min_ps[rig_below(INFERD_COUNT(min_ps))];
    p->top_k = some_top_k(n);
    p->seed = (uint64_t)rig_u32() << 32 | rig_u32();
    p->choice_idx = rig_below(4);
    static const int32_t n_tops[] = {-1, -1, 0, 1, 5, 20};
    c->n_top = n_tops[rig_below(INFERD_COUNT(n_tops))];
    c->forced = rig_below(12) == 0 ? (tok_id)rig_below(n) : -1;
}

static void some_changes(row_case *c, uint32_t n) {
    sample_params *p = &c->params;
    p->n_bias = rig_below(2) ? rig_below(LIST_MAX) : 0;
    for (uint32_t i = 0; i < p->n_bias; i++)
        c->bias[i] =
            (logit_bias){some_id(n), rig_below(9) ? rig_uniform(-5, 5) : rig_uniform(-100, 100)};
    c->n_banned = rig_below(2) ? rig_below(LIST_MAX) : 0;
    for (uint32_t i = 0; i < c->n_banned; i++) c->banned[i] = some_id(n);
    if (rig_below(2)) p->repetition_penalty = rig_uniform(0.5f, 2);
    if (rig_below(2)) p->presence_penalty = rig_uniform(-2, 2);
    if (rig_below(2)) p->frequency_penalty = rig_uniform(-2, 2);
}

static void some_history(row_case *c, uint32_t n) {
    c->n_tokens = rig_below(HISTORY_MAX);
    c->n_prompt = rig_below(c->n_tokens + 1);
    for (uint32_t i = 0; i < c->n_tokens; i++) c->history[i] = some_id(n);
    c->pending = c->n_prompt < c->n_tokens && rig_below(2);
}

/* n_lots launches of n_rows rows that have nothing in common. */
static void run_random(uint32_t n_vocab, uint32_t n_lots, uint32_t n_rows, uint64_t seed) {
    char what[64];
    cuda_rig r;
    rig_open(&r);
    for (uint32_t k = 0; k < n_lots; k++) {
        snprintf(what, sizeof what, "seed %" PRIu64 ", lot %u", seed, k);
        rig_seed(seed * 1000 + k);
        lot *t = lot_make(n_vocab, n_rows);
        t->bound = n_rows + rig_below(3);
        t->rows_max = t->bound + rig_below(3);
        for (uint32_t i = 0; i < n_rows; i++) {
            row_case *c = &t->row[i];
            uint32_t kind = rig_below(2 * KINDS);
            fill_logits(c, n_vocab, kind < KINDS ? (logits_kind)kind : NORMAL);
            some_params(c, n_vocab);
            some_history(c, n_vocab);
            if (rig_below(2)) some_changes(c, n_vocab);
            if (rig_below(3) == 0) c->mask = some_mask(t);
        }
        run_lot(&r, t, what);
        lot_free(t);
    }
    rig_close(&r);
}

static void small_vocabularies_draw_as_the_sampler(void) {
    run_random(1, 1, 20, SEED);
    run_random(5, 1, 50, SEED + 1);
    run_random(100, 1, 50, SEED + 2);
    run_random(1000, 1, 50, SEED + 3);
}

static void vocabularies_of_whole_slices_and_one_more_do(void) {
    run_random(4095, 1, 12, SEED + 4);
    run_random(4096, 1, 24, SEED + 5);
    run_random(4097, 1, 24, SEED + 6);
    run_random(9001, 1, 24, SEED + 7);
}

static void a_large_vocabulary_does(void) {
    run_random(40000, 1, 12, SEED + 8);
}

/* ---- each parameter against each ---- */

/* Every top_p with every top_k, over logits whose threshold lies among ties, whose mass is all in
 * one token or evenly spread. */
static void every_top_p_goes_with_every_top_k(void) {
    static const float all_p[] = {1e-13f, 1e-6f, 0.3f, 0.95f, 0.999f, 1};
    static const logits_kind kinds[] = {NORMAL, PEAKED, EQUAL, FEW, ZEROS, MANY_MINUS, TINY_SPREAD};
    enum { N = 300 };
    const uint32_t all_k[] = {0, 1, 2, 50, N - 1, N, N + 1};
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 9);
    for (size_t kind = 0; kind < INFERD_COUNT(kinds); kind++) {
        lot *t = lot_make(N, INFERD_COUNT(all_p) * INFERD_COUNT(all_k));
        for (uint32_t i = 0; i < t->n_rows; i++) {
            row_case *c = &t->row[i];
            fill_logits(c, N, kinds[kind]);
            c->params.top_p = all_p[i % INFERD_COUNT(all_p)];
            c->params.top_k = all_k[i / INFERD_COUNT(all_p)];
            c->params.temperature = i % 2 ? 0.7f : 1;
            c->n_top = -1;
        }
        run_lot(&r, t, "top_p and top_k");
        lot_free(t);
    }
    rig_close(&r);
}

/* Candidates beyond what a block keeps in shared memory: nearly equal logits, wide temperatures. */
static void thresholds_inside_thousands_of_near_ties_are_exact(void) {
    enum { N = 9001 };
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 10);
    lot *t = lot_make(N, 8);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        fill_logits(c, N, i < 3 ? NORMAL : i < 5 ? EQUAL : i < 7 ? TINY_SPREAD : ZEROS);
        c->params.temperature = i < 3 ? 100 : 0.7f;
        c->params.top_p = i % 2 ? 0.37f : 0.83f;
        c->params.top_k = i == 2 || i == 4 ? 5003 : i == 6 ? 8999 : 0;
    }
    run_lot(&r, t, "near ties");
    lot_free(t);
    rig_close(&r);
}

/* min_p is compared with exp(z) itself: logits exactly on the edge and one float below. */
static void min_p_keeps_the_edge(void) {
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 11);
    lot *t = lot_make(64, 24);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        float min_p = 0.25f + 0.03f * (float)(i / 3), edge = logf(min_p);
        for (uint32_t j = 0; j < 64; j++) c->logits[j] = edge + (float)((int)j - 40) * 6e-8f;
        c->logits[i] = 0;
        c->params.min_p = min_p;
        if (i % 3 == 1) c->params.top_p = 0.9999f;
        if (i % 3 == 2) c->params.top_k = 60;
    }
    run_lot(&r, t, "edge of min_p");
    lot_free(t);
    rig_close(&r);
}

/* ---- broken rows ---- */

/* Also when nothing of that slice can be drawn: it is banned, behind top_k, or the row is forced.
 */
static void what_is_not_a_number_anywhere_breaks_its_row_only(void) {
    enum { N = 9001 };
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 12);
    lot *t = lot_make(N, 14);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        sample_params *p = &c->params;
        c->logits[17] = 30;
        if (i % 2 == 0) c->logits[8190 + i] = i % 4 ? NAN : INFINITY;
        if (i / 2 == 1) p->temperature = 0;
        if (i / 2 == 2) p->top_k = 3;
        if (i / 2 == 3) c->forced = 5;
        if (i / 2 == 4) c->banned[c->n_banned++] = (tok_id)(8190 + i);
        if (i / 2 == 5) p->top_p = 0.01f;
        if (i / 2 == 6) c->n_top = -1;
    }
    run_lot(&r, t, "broken");
    lot_free(t);
    rig_close(&r);
}

/* The row is sound, but a bias makes an infinite logit, or bans leave nothing. */
static void a_change_can_break_a_row(void) {
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 13);
    lot *t = lot_make(20, 12);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        c->n_top = i % 2 ? -1 : 4;
        if (i / 2 == 0) {
            c->logits[3] = 3.4e38f;
            c->bias[c->params.n_bias++] = (logit_bias){3, 3e38f};
        } else if (i / 2 == 1) {
            for (tok_id j = 0; j < 20; j++) c->banned[c->n_banned++] = j;
        } else if (i / 2 == 2) {
            for (tok_id j = 0; j < 19; j++) c->banned[c->n_banned++] = 19 - j; // 0 stays
            c->params.temperature = 0;
        } else if (i / 2 == 3) { // all but one, and top_p
            for (tok_id j = 0; j < 19; j++) c->banned[c->n_banned++] = j;
            c->params.top_p = 0.5f;
        } else if (i / 2 == 4) { // a forced row is not changed
            for (tok_id j = 0; j < 20; j++) c->banned[c->n_banned++] = j;
            c->forced = 7;
        }
    }
    run_lot(&r, t, "changes that break");
    lot_free(t);
    rig_close(&r);
}

/* ---- lists ---- */

/* The order of adding is the list's, also for one token named often; a token banned twice is
 * banned. */
static void biases_of_one_token_are_added_in_order(void) {
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 14);
    lot *t = lot_make(5000, 10);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        for (uint32_t j = 0; j < 30; j++)
            c->bias[j] = (logit_bias){(tok_id)(4094 + j % 4),
                                      (j % 8 < 4 ? 1.0f : -1.0f) * rig_uniform(20, 100)};
        c->params.n_bias = 30;
        for (tok_id j = 0; j < 6; j++) c->banned[c->n_banned++] = j % 2 ? 4096 : 9 + j;
        c->params.temperature = i % 2 ? 0 : 0.1f;
        if (i > 5) c->params.top_p = 0.4f;
    }
    run_lot(&r, t, "duplicates");
    lot_free(t);
    rig_close(&r);
}

/* What a penalty leaves is only seen where two logits meet: beside the penalised token 4 lies one
 * that equals what it must become, once before it and once behind. */
static void penalties_round_as_they_are_written(void) {
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 23);
    lot *t = lot_make(8, ROWS_MAX);
    float l = 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        sample_params *p = &c->params;
        if (i % 2 == 0) l = rig_uniform(-9, 9);
        *p = i % 2 ? t->row[i - 1].params
                   : (sample_params){.top_p = 1,
                                     .repetition_penalty = rig_uniform(1, 2),
                                     .presence_penalty = rig_uniform(-2, 2),
                                     .frequency_penalty = rig_uniform(-2, 2)};
        c->n_tokens = 1 + i / 2 % 9;
        for (uint32_t j = 0; j < c->n_tokens; j++) c->history[j] = 4;
        for (uint32_t j = 0; j < 8; j++) c->logits[j] = -1000;
        c->logits[4] = l;
        float left = l > 0 ? l / p->repetition_penalty : l * p->repetition_penalty;
        float by_frequency = p->frequency_penalty * (float)c->n_tokens;
        left -= p->presence_penalty;
        left -= by_frequency;
        c->logits[i % 2 ? 3 : 5] = left;
    }
    run_lot(&r, t, "rounding");
    lot_free(t);
    rig_close(&r);
}

static void counts_of_a_history_stop_at_65535(void) {
    enum { N_TOKENS = 70000 };
    tok_id *tokens = malloc(N_TOKENS * sizeof *tokens);
    cuda_rig r;
    INFERD_CHECK(tokens != NULL);
    rig_open(&r);
    rig_seed(SEED + 15);
    lot *t = lot_make(40, 6);
    for (uint32_t i = 0; i < N_TOKENS; i++) tokens[i] = 7;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        c->tokens = tokens;
        c->n_tokens = i < 2 ? 65535 : i < 4 ? 65536 : i == 4 ? N_TOKENS : 65534;
        c->pending = i % 2;
        c->params.frequency_penalty = 1e-4f;
        c->params.temperature = 0;
        memset(c->logits, 0, 40 * sizeof(float));
        c->logits[7] = 6.55351f; // largest or not by one count
        c->logits[8] = i % 3 == 0 ? 1e-5f : -1e-5f;
    }
    run_lot(&r, t, "long histories");
    lot_free(t);
    rig_close(&r);
    free(tokens);
}

/* In the output already, only in the prompt, nowhere before, in another slice, and not a token. */
static void a_pending_token_counts_as_output(void) {
    enum { N = 5000 };
    static const tok_id late[] = {3, 4, 9, 4097, N, N + 7, 3, 4};
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 16);
    lot *t = lot_make(N, INFERD_COUNT(late));
    t->rows_max = t->n_rows + 3;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        const tok_id history[] = {4, 5, 5, 3, 6, 3, late[i]};
        memcpy(c->history, history, sizeof history);
        c->n_prompt = 3;
        c->n_tokens = INFERD_COUNT(history);
        c->pending = true;
        c->params.temperature = 0;
        for (uint32_t j = 0; j < N; j++) c->logits[j] = j < 10 ? 10 - 0.01f * (float)j : -1;
        if (late[i] < N) c->logits[late[i]] = 10.3f; // one penalty more takes it below 0
        c->params.repetition_penalty = i == 6 ? 1.01f : 1;
        c->params.presence_penalty = i == 7 ? 0 : 0.1f;
        c->params.frequency_penalty = i < 6 ? 0.19f : 0.25f;
    }
    run_lot(&r, t, "promised");
    for (uint32_t i = 0; i < t->n_rows; i++) { // without what came before, and without penalties
        row_case *c = &t->row[i];
        c->history[0] = late[i];
        c->n_prompt = 0;
        c->n_tokens = 1;
        if (i == 7) c->params.frequency_penalty = 0;
    }
    run_lot(&r, t, "promised alone");
    lot_free(t);
    rig_close(&r);
}

/* ---- log-probabilities ---- */

static void alternatives_are_the_first_in_order(void) {
    static const uint32_t sizes[] = {5, 22, 4100};
    static const logits_kind kinds[] = {NORMAL, EQUAL, FEW, MANY_MINUS, RISING, FALLING};
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 17);
    for (size_t k = 0; k < INFERD_COUNT(sizes); k++) {
        lot *t = lot_make(sizes[k], k == 2 ? 22 : 44);
        for (uint32_t i = 0; i < t->n_rows; i++) {
            row_case *c = &t->row[i];
            fill_logits(c, sizes[k], kinds[(i + i / 22) % INFERD_COUNT(kinds)]);
            c->n_top = (int32_t)(i % 22) - 1;
            if (i % 5 == 1) c->forced = (tok_id)rig_below(sizes[k]);
            if (i % 5 == 2) c->params.temperature = 0;
            if (i % 5 == 3) c->params.top_p = 0.8f;
        }
        run_lot(&r, t, "alternatives");
        lot_free(t);
    }
    rig_close(&r);
}

/* A forced token may be one that bans and penalties are for: nothing of them is looked at. */
static void a_forced_row_reports_its_token(void) {
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 18);
    lot *t = lot_make(4200, 12);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        c->forced = i % 2 ? 4199 : (tok_id)(i * 300);
        some_changes(c, 4200);
        some_history(c, 4200);
        c->n_top = (int32_t)(i % 4) - 1;
        c->logits[c->forced] = i % 3 ? c->logits[c->forced] : -INFINITY;
        if (i > 7) c->params.top_p = 0.5f;
    }
    run_lot(&r, t, "forced");
    lot_free(t);
    rig_close(&r);
}

/* ---- rows and launches ---- */

/* The same row alone, and between others of every kind. */
static void neighbours_do_not_matter(void) {
    enum { N = 4100 };
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 19);
    lot *one = lot_make(N, 1), *many = lot_make(N, 2 * KINDS);
    sample_row row;
    sample_result alone, among;
    one->row[0].params.top_p = 0.7f;
    sampler *s = sampler_create(N);
    INFERD_CHECK(s != NULL);
    for (uint32_t i = 0; i < many->n_rows; i++) {
        row_case *c = &many->row[i];
        if (i % 2 == 0) {
            fill_logits(c, N, (logits_kind)(i / 2));
            some_params(c, N);
            some_changes(c, N);
            if (i % 3 == 0) c->mask = some_mask(many);
            continue;
        }
        memcpy(c->logits, one->row[0].logits, N * sizeof(float));
        c->params = one->row[0].params;
        row = row_of_case(c);
        sampler_draw(s, &row, &among);
        row = row_of_case(&one->row[0]);
        sampler_draw(s, &row, &alone);
        EXPECT(same_result(&alone, &among));
    }
    run_lot(&r, one, "alone");
    run_lot(&r, many, "among others");
    sampler_destroy(s);
    lot_free(one);
    lot_free(many);
    rig_close(&r);
}

/* One graph is launched for plans of any number of rows up to its bound. */
static void a_launch_may_have_fewer_rows_than_its_bound(void) {
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 20);
    for (uint32_t n = 0; n <= 3; n++) {
        lot *t = lot_make(5000, n);
        t->bound = 4;
        t->rows_max = 9;
        for (uint32_t i = 0; i < n; i++) t->row[i].params.top_p = 0.6f;
        run_lot(&r, t, "fewer rows");
        lot_free(t);
    }
    rig_close(&r);
}

/* Scratch of one size serves launches of any bound and plan, one after the other. */
static void launches_of_other_sizes_share_scratch(void) {
    enum { N = 5000, MAX = 6 };
    cuda_rig r;
    rig_lot d[3], shared;
    lot *t[3];
    inferd_err err = {0};
    rig_open(&r);
    if (!r.opened) return;
    rig_seed(SEED + 21);
    EXPECT_EQ(draw_init(r.module, &r.device, &err), INFERD_OK);
    for (uint32_t i = 0; i < 3; i++) {
        t[i] = lot_make(i == 1 ? 300 : N, i == 0 ? MAX : 2 + i);
        t[i]->rows_max = MAX;
        for (uint32_t j = 0; j < t[i]->n_rows; j++) {
            some_params(&t[i]->row[j], t[i]->n_vocab);
            some_changes(&t[i]->row[j], t[i]->n_vocab);
            if (j % 2 == 0) t[i]->row[j].mask = some_mask(t[i]);
        }
        lot_put(&r, t[i], &d[i]);
        if (i == 0) shared = d[0];
        d[i].scratch = shared.scratch; // of the largest
    }
    for (uint32_t k = 0; k < 7; k++) {
        uint32_t i = k * 2 % 3;
        lot_launch(&r, t[i], &d[i]);
        lot_check(&r, t[i], &d[i], "shared scratch");
    }
    for (uint32_t i = 0; i < 3; i++) lot_free(t[i]);
    rig_close(&r);
}

static void draws_are_two_launches(void) {
    cuda_rig r;
    rig_open(&r);
    lot *t = lot_make(4100, 3);
    run_lot(&r, t, "counting");
    EXPECT_EQ(r.l.n_launches, 4);
    EXPECT_EQ(rig_launches(&r, "draw_scan"), 2);
    EXPECT_EQ(rig_launches(&r, "draw_pick"), 2);
    lot_free(t);
    rig_close(&r);
}

/* ---- packing ---- */

/* Wherever the upload ends, the counts of histories are zero for the next plan. */
static void lists_that_do_not_fit_are_refused(void) {
    inferd_err err = {0};
    rig_seed(SEED + 22);
    lot *t = lot_make(100, 3);
    for (uint32_t i = 0; i < 3; i++) {
        row_case *c = &t->row[i];
        some_history(c, 100);
        c->params.n_bias = 5;
        for (uint32_t j = 0; j < 5; j++) c->bias[j] = (logit_bias){(tok_id)(j % 3), 1};
        c->n_banned = 4;
        for (uint32_t j = 0; j < 4; j++) c->banned[j] = (tok_id)(j % 2);
        c->params.frequency_penalty = 1;
        if (i > 0) c->mask = some_mask(t);
    }
    size_t scratch_bytes = draw_scratch_bytes(100), n_max = 1 << 16;
    unsigned char *host = malloc(n_max);
    void *scratch = calloc(1, scratch_bytes);
    INFERD_CHECK(host != NULL && scratch != NULL);
    draw_plan whole = {.host = host, .bytes_max = n_max};
    EXPECT_EQ(plan_lot(t, &whole, scratch, &err), INFERD_OK);
    EXPECT(all_bytes(scratch, 0, scratch_bytes));
    EXPECT(whole.bytes > draw_plan_bytes(3));
    for (size_t n = 0; n < whole.bytes; n++) {
        unsigned char *exact = malloc(n + 1); // sanitizers see what goes beyond
        INFERD_CHECK(exact != NULL);
        exact[n] = 0xA5;
        draw_plan plan = {.host = exact, .bytes_max = n};
        EXPECT_EQ(plan_lot(t, &plan, scratch, &err), INFERD_ETOOLONG);
        EXPECT(strstr(err.text, "3 rows") != NULL);
        EXPECT(exact[n] == 0xA5);
        EXPECT(all_bytes(scratch, 0, scratch_bytes));
        free(exact);
    }
    draw_plan plan = {.host = host, .bytes_max = whole.bytes};
    EXPECT_EQ(plan_lot(t, &plan, scratch, &err), INFERD_OK);
    EXPECT_EQ(plan.bytes, whole.bytes);
    free(host);
    free(scratch);
    lot_free(t);
}

/* Rows of one mask upload it once; a forced row uploads none. */
static void a_mask_is_packed_once(void) {
    inferd_err err = {0};
    uint64_t a[2] = {5, 0}, b[2] = {5, 0};
    lot *t = lot_make(100, 6);
    for (uint32_t i = 0; i < 6; i++) t->row[i].mask = i == 0 ? NULL : i % 2 ? a : b;
    t->row[5].forced = 1;
    uint32_t scratch[200] = {0};
    size_t n_max = draw_plan_bytes(6) + 2 * draw_mask_bytes(100);
    EXPECT_EQ(draw_mask_bytes(100), sizeof a);
    unsigned char *host = malloc(n_max);
    INFERD_CHECK(host != NULL);
    draw_plan plan = {.host = host, .bytes_max = n_max};
    EXPECT_EQ(plan_lot(t, &plan, scratch, &err), INFERD_OK);
    EXPECT_EQ(plan.bytes, n_max);
    plan.bytes_max = n_max - 1;
    EXPECT_EQ(plan_lot(t, &plan, scratch, &err), INFERD_ETOOLONG);
    free(host);
    lot_free(t);
}

/* Masks alone, with every way of drawing: a mask in one slice only, of one token, of none. */
static void masked_rows_draw_as_the_sampler(void) {
    enum { N = 9001, WORDS = (N + 63) / 64 };
    static uint64_t masks[5][WORDS];
    cuda_rig r;
    rig_open(&r);
    rig_seed(SEED + 24);
    masks[0][65] = masks[0][66] = ~UINT64_C(0);    // the second slice
    masks[1][N / 64] = UINT64_C(1) << N % 64 >> 1; // the last token
    memset(masks[2], 0xff, sizeof masks[2]);
    memset(masks[4], 0x55, sizeof masks[4]);
    lot *t = lot_make(N, 50); // masks[3] allows nothing
    for (uint32_t i = 0; i < t->n_rows; i++) {
        row_case *c = &t->row[i];
        c->mask = masks[i % 5];
        if (i / 5 == 1) c->params.temperature = 0;
        if (i / 5 == 2) c->params.top_k = 3;
        if (i / 5 == 3) c->params.top_p = 0.8f;
        if (i / 5 == 4) c->params.min_p = 0.3f;
        if (i / 5 == 5) c->params.top_k = 200, c->params.top_p = 0.5f;
        if (i / 5 == 6) c->bias[c->params.n_bias++] = (logit_bias){(tok_id)i, 100};
        if (i / 5 == 7) c->forced = 8;
        if (i / 5 == 8) c->logits[4] = NAN;
        if (i / 5 == 9) c->logits[4200] = INFINITY, c->n_top = -1;
    }
    run_lot(&r, t, "masked");
    lot_free(t);
    rig_close(&r);
}

static void rows_without_lists_take_what_is_said(void) {
    inferd_err err = {0};
    lot *t = lot_make(100, 5);
    t->row[2].banned[0] = 100; // no token of the vocabulary
    t->row[2].n_banned = 1;
    uint32_t scratch[200] = {0};
    unsigned char *host = malloc(draw_plan_bytes(5));
    INFERD_CHECK(host != NULL && draw_scratch_bytes(100) <= sizeof scratch);
    draw_plan plan = {.host = host, .bytes_max = draw_plan_bytes(5)};
    EXPECT_EQ(plan_lot(t, &plan, scratch, &err), INFERD_OK);
    EXPECT_EQ(plan.bytes, draw_plan_bytes(5));
    free(host);
    lot_free(t);
}

static const test_case cases[] = {
    TEST(small_vocabularies_draw_as_the_sampler),
    TEST(vocabularies_of_whole_slices_and_one_more_do),
    TEST(a_large_vocabulary_does),
    TEST(every_top_p_goes_with_every_top_k),
    TEST(thresholds_inside_thousands_of_near_ties_are_exact),
    TEST(min_p_keeps_the_edge),
    TEST(what_is_not_a_number_anywhere_breaks_its_row_only),
    TEST(a_change_can_break_a_row),
    TEST(biases_of_one_token_are_added_in_order),
    TEST(penalties_round_as_they_are_written),
    TEST(counts_of_a_history_stop_at_65535),
    TEST(a_pending_token_counts_as_output),
    TEST(alternatives_are_the_first_in_order),
    TEST(a_forced_row_reports_its_token),
    TEST(neighbours_do_not_matter),
    TEST(a_launch_may_have_fewer_rows_than_its_bound),
    TEST(launches_of_other_sizes_share_scratch),
    TEST(draws_are_two_launches),
    TEST(lists_that_do_not_fit_are_refused),
    TEST(a_mask_is_packed_once),
    TEST(masked_rows_draw_as_the_sampler),
    TEST(rows_without_lists_take_what_is_said),
};
TEST_MAIN(cases)
