/* selftest_steps.c - the kernels of a whole step: attention and drawing.
 *
 * Attention.  Values lie between 1 and 2, so outputs do too, and a relative bound is
 * meaningful.  Weights are rounded to the type of keys, sums are float.
 *
 * Drawing.  Ids must be right, log-probabilities have a bound.  The noise of a sampled row is
 * defined by inferd/sample_math.h, compiled for the host.
 *
 * Thread: one. */
#include <math.h>
#include <string.h>

#include "cuda/attention.h"
#include "cuda/draw.h"
#include "cuda/draw_params.h"
#include "cuda/selftest_check.h"
#include "inferd/sample_math.h"

static uint32_t mixed(uint32_t v) {
    v = (v ^ v >> 16) * 0x7feb352du;
    v = (v ^ v >> 15) * 0x846ca68bu;
    return v ^ v >> 16;
}

/* ---- attention ---- */

enum { A_HEADS = 4, A_KV_HEADS = 2, A_BLOCK = 16, A_CONTEXT = 330, A_PREFILL = 24 };

typedef struct world {           // one sequence
    uint32_t dim, n_rows, first; // rows are positions first, first + 1, ...
    uint32_t window;
    double softcap;
    bool sinks;        // of sink_of
    double *q, *k, *v; // [n_rows, A_HEADS, dim], [A_CONTEXT, A_KV_HEADS, dim]
} world;

static double sink_of(uint32_t head) {
    return (double)head / 2 - 1;
}

static void attend(const world *w, uint32_t row, uint32_t head, double *out) {
    static double weights[A_CONTEXT];
    uint32_t dim = w->dim, last = w->first + row, kv_head = head / (A_HEADS / A_KV_HEADS);
    uint32_t begin = w->window != 0 && last + 1 > w->window ? last + 1 - w->window : 0;
    const double *q = w->q + ((size_t)row * A_HEADS + head) * dim;
    double most = -INFINITY, total = 0;
    for (uint32_t p = begin; p <= last; p++) {
        const double *k = w->k + ((size_t)p * A_KV_HEADS + kv_head) * dim;
        double score = 0;
        for (uint32_t d = 0; d < dim; d++) score += q[d] * k[d];
        score /= sqrt(dim);
        if (w->softcap != 0) score = w->softcap * tanh(score / w->softcap);
        weights[p] = score;
        most = fmax(most, score);
    }
    if (w->sinks) total = exp(sink_of(head) - most);
    for (uint32_t d = 0; d < dim; d++) out[d] = 0;
    for (uint32_t p = begin; p <= last; p++) {
        const double *v = w->v + ((size_t)p * A_KV_HEADS + kv_head) * dim;
        double share = exp(weights[p] - most);
        total += share;
        for (uint32_t d = 0; d < dim; d++) out[d] += share * v[d];
    }
    for (uint32_t d = 0; d < dim; d++) out[d] /= total;
}

static double *numbers(size_t n) {
    double *v = calloc(n, sizeof *v);
    INFERD_CHECK(v != NULL);
    return v;
}

static world make_world(uint32_t dim, uint32_t first, uint32_t n_rows, bool limited) {
    world w = {.dim = dim, .n_rows = n_rows, .first = first};
    uint32_t n_q = n_rows * A_HEADS * dim, n_kv = A_CONTEXT * A_KV_HEADS * dim;
    if (limited) {
        w.window = 50;
        w.softcap = 3;
        w.sinks = true;
    }
    w.q = numbers(n_q);
    w.k = numbers(n_kv);
    w.v = numbers(n_kv);
    for (uint32_t i = 0; i < n_q; i++) w.q[i] = ((int)(mixed(i) % 9) - 4) / 4.0;
    for (uint32_t i = 0; i < n_kv; i++) {
        w.k[i] = ((int)(mixed(i + 99) % 9) - 4) / 2.0;
        w.v[i] = 1 + mixed(i + 7777) % 16 / 16.0;
    }
    return w;
}

/* Keys and values at the positions of the block table: blocks in reverse order, one slot after the
 * other; memory behind the context is NaN. */
static void *put_arena(check *c, const world *w, cu_type type, uint32_t n_blocks) {
    uint32_t half = A_KV_HEADS * A_BLOCK * w->dim, n = n_blocks * 2 * half;
    double *arena = numbers(n);
    for (uint32_t i = 0; i < n; i++) arena[i] = NAN;
    for (uint32_t p = 0; p < w->first + w->n_rows; p++)
        for (uint32_t h = 0; h < A_KV_HEADS; h++) {
            uint32_t slot = n_blocks - 1 - p / A_BLOCK;
            double *at = arena + slot * 2 * half + (h * A_BLOCK + p % A_BLOCK) * w->dim;
            size_t from = ((size_t)p * A_KV_HEADS + h) * w->dim;
            memcpy(at, w->k + from, w->dim * sizeof *at);
            memcpy(at + half, w->v + from, w->dim * sizeof *at);
        }
    void *p = check_put_values(c, type, arena, n);
    free(arena);
    return p;
}

static void attention(check *c, cu_type stored, cu_type inner, uint32_t dim, bool prefill,
                      bool limited) {
    uint32_t first = prefill ? 37 : A_CONTEXT - 1, n_rows = prefill ? A_PREFILL : 1;
    uint32_t n_blocks = (first + n_rows + A_BLOCK - 1) / A_BLOCK, width = A_HEADS * dim;
    if (!check_begin(c, "attention_%s_%s_%u %s%s", prefill ? "prefill" : "decode",
                     type_name(stored), dim, type_name(inner),
                     limited ? " window, capped, sinks" : ""))
        return;
    world w = make_world(dim, first, n_rows, limited);
    const step_header header = {
        .n_rows = n_rows, .n_seqs = 1, .n_decode = !prefill, .n_tiles = prefill};
    const step_seq seq = {.n_rows = n_rows, .pos_begin = first, .n_blocks = n_blocks};
    const step_tile tile = {.n_rows = n_rows};
    uint32_t positions[A_PREFILL], zeros[A_PREFILL] = {0};
    int32_t table[A_CONTEXT / A_BLOCK + 1];
    for (uint32_t i = 0; i < n_rows; i++) positions[i] = first + i;
    for (uint32_t i = 0; i < n_blocks; i++) table[i] = (int32_t)(n_blocks - 1 - i);
    double sinks[A_HEADS];
    for (uint32_t i = 0; i < A_HEADS; i++) sinks[i] = sink_of(i);
    kv_view kv = {.slots_per_page = 1,
                  .slot_bytes = 2 * A_KV_HEADS * A_BLOCK * dim * 2,
                  .group_layers = 1,
                  .n_groups = 1,
                  .block_tokens = A_BLOCK,
                  .n_kv_heads = A_KV_HEADS,
                  .head_dim = dim,
                  .type = stored};
    kv.page_bytes = kv.layer_bytes = kv.slot_bytes;
    attention_args a = {.out = check_room(c, n_rows * width * 2),
                        .q = check_put_values(c, inner, w.q, n_rows * width),
                        .inner = inner,
                        .out_stride = width,
                        .q_stride = width,
                        .kv = &kv,
                        .n_heads = A_HEADS,
                        .n_kv_heads = A_KV_HEADS,
                        .head_dim = dim,
                        .scale = (float)(1 / sqrt(dim)),
                        .softcap = (float)w.softcap,
                        .sinks = w.sinks ? check_put_values(c, CU_F32, sinks, A_HEADS) : NULL,
                        .window = w.window,
                        .n_decode = !prefill,
                        .n_tiles = prefill,
                        .context_max = first + n_rows};
    step_view view = {.header = check_put(c, &header, sizeof header),
                      .positions = check_put(c, positions, n_rows * sizeof *positions),
                      .row_seq = check_put(c, zeros, sizeof zeros),
                      .seqs = check_put(c, &seq, sizeof seq),
                      .decode_rows = check_put(c, zeros, sizeof zeros),
                      .tiles = check_put(c, &tile, sizeof tile),
                      .tables = check_put(c, table, n_blocks * sizeof *table)};
    kv.arena = put_arena(c, &w, stored, n_blocks);
    a.view = &view;
    attention_workspace work = {.partials_bytes = attention_partials_bytes(1, A_HEADS, dim),
                                .n_counters = attention_counters(1, A_KV_HEADS)};
    work.partials = check_room(c, work.partials_bytes);
    work.counters = check_zeros(c, work.n_counters * sizeof(uint32_t));
    double *got = numbers(n_rows * width), *want = numbers(n_rows * width);
    for (uint32_t i = 0; i < n_rows * A_HEADS; i++)
        attend(&w, i / A_HEADS, i % A_HEADS, want + i * dim);
    if (check_ready(c)) {
        launch_attention(&c->l, &work, &a);
        if (check_run(c)) {
            check_get_values(c, inner, got, a.out, n_rows * width);
            check_values(c, "out", got, want, n_rows * width, width,
                         2 * type_rounding(stored) + 2 * type_rounding(inner), 0);
            check_end(c);
        }
    }
    free(w.q);
    free(w.k);
    free(w.v);
    free(got);
    free(want);
}

void selftest_attention(check *c) {
    static const uint32_t dims[] = {64, 80, 96, 128, 256};
    inferd_err err = {0};
    if (!check_begin(c, "attention")) return;
    if (attention_init(c->l.module, &c->device, &err) != INFERD_OK) {
        check_fail(c, "", err.text);
        return;
    }
    for (size_t i = 0; i < INFERD_COUNT(dims); i++)
        for (int prefill = 0; prefill < 2; prefill++) {
            attention(c, CU_F16, CU_F16, dims[i], prefill, false);
            attention(c, CU_BF16, CU_BF16, dims[i], prefill, false);
            attention(c, CU_F16, CU_BF16, dims[i], prefill, true);
        }
}

/* ---- drawing ---- */

enum { D_VOCAB = 9000, D_STRIDE = 9008, D_SLICES = 3, D_ROWS = 7, D_TOP = 5 };

typedef struct lot {
    float logits[D_ROWS][D_STRIDE], changed[D_STRIDE];
    sample_params params[D_ROWS];
    sample_row rows[D_ROWS];
    tok_id ids[D_ROWS];
    logit_bias bias;
    tok_id banned;
} lot;

static uint32_t largest(const float *logits, uint32_t begin, uint32_t end) {
    uint32_t best = begin;
    for (uint32_t i = begin; i < end; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Among the `n` largest logits: argmax((logit - most) / temperature + noise). */
static tok_id sampled(const float *logits, const sample_params *p, uint32_t position, float least) {
    float most = logits[largest(logits, 0, D_VOCAB)], best = -INFINITY;
    tok_id id = -1;
    for (uint32_t i = 0; i < D_VOCAB; i++) {
        if (logits[i] < least) continue;
        sample_noise noise = sample_philox(p->seed, i / 4, position, p->choice_idx);
        float z = sm_div(sm_add(logits[i], -most), p->temperature);
        float v = sm_add(z, sample_gumbel(noise.word[i % 4]));
        if (v > best) best = v, id = (tok_id)i;
    }
    return id;
}

/* Row 0 greedy, 1 forced, 2 greedy with a bias that moves the choice and a ban of the token that
 * would win then, 3 sampled, 4 sampled among the 8 largest, 5 narrowed by top_p to the largest, 6
 * greedy with the largest in the last slice. */
static void make_lot(lot *d) {
    for (uint32_t r = 0; r < D_ROWS; r++) {
        for (uint32_t i = 0; i < D_STRIDE; i++)
            d->logits[r][i] = i < D_VOCAB ? (float)(mixed(r * D_STRIDE + i) % 4096) / 512 : NAN;
        d->params[r] = (sample_params){
            .top_p = 1, .repetition_penalty = 1, .seed = 1000 + r, .choice_idx = r % 2};
        d->rows[r] = (sample_row){.logits = d->logits[r],
                                  .params = &d->params[r],
                                  .n_tokens = 10 + r,
                                  .n_prompt = 10 + r,
                                  .forced = -1,
                                  .n_top = r % 2 == 0 ? D_TOP : 0};
    }
    /* Logits are multiples of 1/512 with ties; these are larger, each by a different amount. */
    for (uint32_t r = 0; r < D_ROWS; r++)
        for (uint32_t k = 0; k < D_TOP + 3; k++)
            d->logits[r][(r * 997 + k * 1201) % D_VOCAB] = 16 - (float)k / 4;
    d->rows[1].forced = 77;
    d->bias = (logit_bias){.id = 5000, .bias = 40};
    d->params[2].bias = &d->bias;
    d->params[2].n_bias = 1;
    d->banned = (2 * 997) % D_VOCAB; // the largest of row 2
    d->rows[2].banned = &d->banned;
    d->rows[2].n_banned = 1;
    memcpy(d->changed, d->logits[2], sizeof d->changed);
    d->changed[5000] += 40;
    d->changed[d->banned] = -INFINITY;
    d->params[3].temperature = 3;
    d->params[4].temperature = 2;
    d->params[4].top_k = D_TOP + 3;
    d->params[5].temperature = 0.5f;
    d->params[5].top_p = 0.125f;
    d->logits[6][D_VOCAB - 1] = 20;
    for (uint32_t r = 0; r < D_ROWS; r++)
        d->ids[r] = (tok_id)largest(r == 2 ? d->changed : d->logits[r], 0, D_VOCAB);
    d->ids[1] = 77;
    d->ids[3] = sampled(d->logits[3], &d->params[3], d->rows[3].n_tokens, -INFINITY);
    d->ids[4] = sampled(d->logits[4], &d->params[4], d->rows[4].n_tokens, 16 - (D_TOP + 2) / 4.0f);
}

/* The results of the first kernel: the largest logit of each slice, before and after changes. */
static void check_scans(check *c, const lot *d, const draw_args *a) {
    static draw_scan scans[D_ROWS][D_SLICES];
    static float changed[D_ROWS][D_STRIDE];
    double got[D_ROWS * D_SLICES * 6], want[D_ROWS * D_SLICES * 6];
    const unsigned char *at = (const unsigned char *)a->scratch + draw_workspace_zeros(a->rows_max);
    uint32_t n = 0;
    check_get(c, scans, at, sizeof scans);
    check_get(c, changed, a->changed, sizeof changed);
    for (uint32_t r = 0; r < D_ROWS; r++)
        for (uint32_t s = 0; s < D_SLICES; s++, n += 6) {
            const draw_scan *x = &scans[r][s];
            const float *now = r == 2 ? d->changed : d->logits[r];
            uint32_t begin = s * DRAW_SLICE, end = u32_min(begin + DRAW_SLICE, D_VOCAB);
            uint32_t raw_id = largest(d->logits[r], begin, end), id = largest(now, begin, end);
            const double of_row[6] = {(double)x->raw_max, (double)x->max, x->raw_id, x->id,
                                      x->raw_broken,      x->broken};
            const double right[6] = {
                (double)d->logits[r][raw_id], (double)now[id], raw_id, id, 0, 0};
            memcpy(got + n, of_row, sizeof of_row);
            memcpy(want + n, right, sizeof right);
        }
    check_values(c, "scan", got, want, n, D_SLICES * 6, 0, 0);
    for (uint32_t i = 0; i < D_VOCAB; i++)
        check_values(c, "changed logit", &(double){(double)changed[2][i]},
                     &(double){(double)d->changed[i]}, 1, 0, 0, 0);
}

static void check_results(check *c, const lot *d, const draw_args *a) {
    sample_result results[D_ROWS];
    int32_t drawn[D_ROWS];
    double ids[D_ROWS], right[D_ROWS], logprobs[D_ROWS], sure[D_ROWS];
    check_get(c, results, a->results, sizeof results);
    check_get(c, drawn, a->drawn, sizeof drawn);
    for (uint32_t r = 0; r < D_ROWS; r++) {
        double most = (double)d->logits[r][largest(d->logits[r], 0, D_VOCAB)], sum = 0;
        for (uint32_t i = 0; i < D_VOCAB; i++) sum += exp((double)d->logits[r][i] - most);
        double norm = most + log(sum);
        ids[r] = results[r].id;
        right[r] = d->ids[r];
        logprobs[r] = (double)results[r].logprob;
        sure[r] = (double)d->logits[r][d->ids[r]] - norm;
        check_values(c, "id", &ids[r], &right[r], 1, 0, 0, 0);
        check_values(c, "drawn", &(double){drawn[r]}, &right[r], 1, 0, 0, 0);
        check_values(c, "logprob", &logprobs[r], &sure[r], 1, 0, 1e-5, 1e-4);
        for (uint32_t k = 0; k < (d->rows[r].n_top > 0 && r != 6 ? D_TOP : 0); k++) {
            uint32_t id = (r * 997 + k * 1201) % D_VOCAB;
            double top = (double)d->logits[r][id] - norm;
            check_values(c, "alternative", &(double){results[r].top[k].id}, &(double){id}, 1, 0, 0,
                         0);
            check_values(c, "alternative's logprob", &(double){(double)results[r].top[k].logprob},
                         &top, 1, 0, 1e-5, 1e-4);
        }
    }
}

static bool put_lot(check *c, lot *d, draw_args *a) {
    enum { PLAN_BYTES = 4096 };
    static unsigned char host[PLAN_BYTES];
    uint32_t zeros[D_ROWS] = {0};
    tok_id tokens[D_ROWS] = {0};
    batch b = {.n_logits = D_ROWS, .logit_rows = zeros, .tokens = tokens, .pending = zeros};
    draw_plan plan = {.host = host, .bytes_max = sizeof host};
    void *scratch = calloc(1, draw_scratch_bytes(D_VOCAB));
    inferd_err err = {0};
    INFERD_CHECK(scratch != NULL);
    INFERD_CHECK(draw_plan_build(&plan, d->rows, &b, D_VOCAB, scratch, &err) == INFERD_OK);
    free(scratch);
    size_t zero = draw_workspace_zeros(D_ROWS), n = draw_workspace_bytes(D_ROWS, D_VOCAB);
    *a = (draw_args){.plan = check_put(c, host, plan.bytes),
                     .logits = check_put(c, d->logits, sizeof d->logits),
                     .changed = check_room(c, sizeof d->logits),
                     .rows = D_ROWS,
                     .n_vocab = D_VOCAB,
                     .stride = D_STRIDE,
                     .drawn_before = check_put(c, zeros, sizeof zeros),
                     .drawn = check_room(c, D_ROWS * sizeof(int32_t)),
                     .results = check_room(c, D_ROWS * sizeof(sample_result)),
                     .scratch = check_room(c, n),
                     .rows_max = D_ROWS};
    if (a->scratch != NULL) c->api->fill(a->scratch, 0, zero, c->l.stream);
    return check_ready(c);
}

/* launch_draw launches both kernels, so the results of the first are checked separately: results
 * of the second from wrong scans would say nothing about it. */
void selftest_draw(check *c) {
    static lot d;
    draw_args a;
    inferd_err err = {0};
    if (!check_begin(c, "draw_scan")) return;
    if (draw_init(c->l.module, &c->device, &err) != INFERD_OK) {
        check_fail(c, "", err.text);
        return;
    }
    make_lot(&d);
    check_about(c, "draw_scan");
    if (!put_lot(c, &d, &a)) return;
    launch_draw(&c->l, &a);
    if (!check_run(c)) return;
    check_scans(c, &d, &a);
    bool right = c->row.result == SELF_TEST_OK;
    check_end(c);
    if (!check_begin(c, "draw_pick")) return;
    check_about(c, "draw_pick");
    if (!right) {
        check_skip(c, "draw_pick", "draw_scan, which makes its input, is wrong");
        return;
    }
    if (!put_lot(c, &d, &a)) return;
    launch_draw(&c->l, &a);
    if (!check_run(c)) return;
    check_results(c, &d, &a);
    check_end(c);
}
