/* test_attention.c - attention of the CPU, at every level this machine has: against the formula in
 * double precision written out here, and against itself in other batches and other plans.
 *
 * Units of a plan are computed one after the other, backwards too: whoever computes them, and in
 * which order, must not matter. */
#include "cpu/attn_plan.h"
#include "cpu_rig.h"

/* ---- some sequences with keys and values ---- */

typedef struct attn_case {
    kv_type type;
    uint32_t n_heads, n_kv_heads, head_dim, block_tokens, window;
    float softcap;
} attn_case;

static const attn_case attn_cases[] = {
    {KV_F16, 3, 3, 16, 16, 0, 0},    {KV_F16, 9, 3, 64, 16, 0, 0},
    {KV_F16, 8, 1, 80, 16, 0, 0},    {KV_F16, 5, 1, 128, 32, 0, 0},
    {KV_F16, 4, 2, 20, 16, 0, 0},    {KV_F16, 9, 3, 64, 16, 7, 0},
    {KV_F16, 4, 1, 64, 16, 0, 0.5f}, {KV_BF16, 9, 3, 64, 16, 0, 0},
    {KV_BF16, 2, 1, 7, 16, 0, 0},    {KV_BF16, 6, 2, 96, 32, 300, 2},
    {KV_BF16, 4, 1, 128, 16, 0, 0},  {KV_BF16, 70, 1, 64, 16, 0, 0},
    {KV_F32, 4, 2, 64, 16, 0, 0},    {KV_F32, 2, 1, 7, 16, 17, 0},
    {KV_F32, 7, 1, 512, 16, 0, 0},   {KV_I8, 9, 3, 64, 16, 0, 0},
    {KV_I8, 4, 1, 128, 32, 255, 0},  {KV_I8, 2, 2, 7, 16, 0, 3},
    {KV_I8, 11, 1, 80, 16, 0, 0},    {KV_I16, 9, 3, 64, 16, 0, 0},
    {KV_I16, 4, 1, 128, 32, 255, 0}, {KV_I16, 2, 2, 7, 16, 0, 3},
    {KV_I16, 7, 1, 512, 16, 0, 0},   {KV_I16, 11, 1, 80, 16, 0, 0},
};

enum { SEQS_MAX = 8, TEST_PAGE_BYTES = 1 << 20, LAYERS = 4, GROUP_LAYERS = 2, LAYER = 3 };

typedef struct world {
    attn_case c;
    attn_spec spec;
    kv_layout kv;
    uint32_t n_seqs, n_rows;
    uint32_t lens[SEQS_MAX], first[SEQS_MAX]; // first row of a sequence
    float *q, *k, *v;                         // [n_rows, ...]
    int32_t *slots[SEQS_MAX];
    unsigned char *arena;
    uint32_t n_slots;
    bool *used;
} world;

static int32_t free_slot(world *w) {
    uint32_t slot = random_u32() % w->n_slots;
    while (w->used[slot]) slot = (slot + 1) % w->n_slots;
    w->used[slot] = true;
    return (int32_t)slot;
}

/* Sequence s begins like sequence like[s] for shared[s] positions (NULL: none does). */
static void world_init(world *w, attn_case c, uint32_t n_seqs, const uint32_t *lens,
                       const uint32_t *like, const uint32_t *shared) {
    *w = (world){.c = c, .n_seqs = n_seqs};
    w->spec = (attn_spec){c.n_heads, c.n_kv_heads, c.head_dim, 1 / sqrtf((float)c.head_dim),
                          c.softcap, c.window};
    w->kv = (kv_layout){.type = c.type,
                        .n_layers = LAYERS,
                        .n_kv_heads = c.n_kv_heads,
                        .head_dim = c.head_dim,
                        .block_tokens = c.block_tokens,
                        .group_layers = GROUP_LAYERS,
                        .n_groups = LAYERS / GROUP_LAYERS};
    kv_layout *l = &w->kv;
    l->layer_bytes = kv_layer_bytes_of(c.type, c.n_kv_heads, c.head_dim, c.block_tokens);
    EXPECT_EQ(l->layer_bytes % 64, 0);
    l->slot_bytes = l->layer_bytes * GROUP_LAYERS;
    l->slots_per_page = (uint32_t)(TEST_PAGE_BYTES / l->slot_bytes);
    uint32_t n_blocks = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        w->lens[s] = lens[s];
        w->first[s] = w->n_rows;
        w->n_rows += lens[s];
        n_blocks += kv_blocks_of(l, lens[s]);
    }
    uint32_t n_pages = n_blocks * l->n_groups * 5 / 4 / l->slots_per_page + 2;
    w->n_slots = n_pages * l->slots_per_page;
    w->used = calloc(w->n_slots, sizeof *w->used);
    w->arena = aligned_alloc(64, (size_t)n_pages * TEST_PAGE_BYTES);
    memset(w->arena, 0xff, (size_t)n_pages * TEST_PAGE_BYTES); // not numbers
    /* The same numbers whatever levels the machine has, and quotients that are no fractions: an
     * int8 that lies between two whole numbers is rounded either way. */
    random_state = 2 + (uint64_t)c.type * 8191 + c.n_heads * 131 + c.head_dim;
    w->q = random_floats((size_t)w->n_rows * c.n_heads * c.head_dim);
    w->k = random_floats((size_t)w->n_rows * c.n_kv_heads * c.head_dim);
    w->v = random_floats((size_t)w->n_rows * c.n_kv_heads * c.head_dim);
    size_t kv_width = (size_t)c.n_kv_heads * c.head_dim;
    for (size_t i = 0; i < w->n_rows * kv_width; i++) {
        w->k[i] *= 1 + 1e-3f * random_float();
        w->v[i] *= 1 + 1e-3f * random_float();
    }
    for (uint32_t s = 0; s < n_seqs; s++) {
        uint32_t n = kv_blocks_of(l, lens[s]) * l->n_groups;
        w->slots[s] = malloc(n * sizeof *w->slots[s]);
        uint32_t n_shared = shared != NULL ? shared[s] / l->block_tokens * l->n_groups : 0;
        for (uint32_t i = 0; i < n; i++)
            w->slots[s][i] = i < n_shared ? w->slots[like[s]][i] : free_slot(w);
        if (n_shared == 0) continue;
        size_t n_same = shared[s] * kv_width * sizeof(float);
        memcpy(w->k + w->first[s] * kv_width, w->k + w->first[like[s]] * kv_width, n_same);
        memcpy(w->v + w->first[s] * kv_width, w->v + w->first[like[s]] * kv_width, n_same);
    }
}

static void world_deinit(world *w) {
    for (uint32_t s = 0; s < w->n_seqs; s++) free(w->slots[s]);
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->used);
    free(w->arena);
}

/* ---- a step ---- */

typedef struct step {
    batch b;
    uint32_t *positions, *row_seq, *world_row; // [n_rows]
    batch_seq seqs[SEQS_MAX];
    float *q, *k, *v, *out; // of the rows of the step
} step;

static void step_init(step *t, const world *w, const uint32_t *from, const uint32_t *to) {
    size_t q_width = (size_t)w->c.n_heads * w->c.head_dim;
    size_t kv_width = (size_t)w->c.n_kv_heads * w->c.head_dim;
    uint32_t n = 0, row = 0;
    for (uint32_t s = 0; s < w->n_seqs; s++) n += to[s] > from[s] ? to[s] - from[s] : 0;
    *t = (step){0};
    t->positions = malloc((n + 1) * sizeof *t->positions);
    t->row_seq = malloc((n + 1) * sizeof *t->row_seq);
    t->world_row = malloc((n + 1) * sizeof *t->world_row);
    t->q = malloc((n * q_width + 1) * sizeof *t->q);
    t->out = calloc(n * q_width + 1, sizeof *t->out);
    t->k = malloc((n * kv_width + 1) * sizeof *t->k);
    t->v = malloc((n * kv_width + 1) * sizeof *t->v);
    t->b = (batch){.n_rows = n, .positions = t->positions, .row_seq = t->row_seq, .seqs = t->seqs};
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        if (from[s] >= to[s]) continue;
        t->seqs[t->b.n_seqs] = (batch_seq){row, to[s] - from[s], from[s],
                                           kv_blocks_of(&w->kv, w->lens[s]), w->slots[s]};
        for (uint32_t pos = from[s]; pos < to[s]; pos++, row++) {
            t->positions[row] = pos;
            t->row_seq[row] = t->b.n_seqs;
            t->world_row[row] = w->first[s] + pos;
            size_t at = w->first[s] + pos;
            memcpy(t->q + row * q_width, w->q + at * q_width, q_width * sizeof(float));
            memcpy(t->k + row * kv_width, w->k + at * kv_width, kv_width * sizeof(float));
            memcpy(t->v + row * kv_width, w->v + at * kv_width, kv_width * sizeof(float));
        }
        t->b.n_seqs++;
    }
}

static void step_deinit(step *t) {
    void *const all[] = {t->positions, t->row_seq, t->world_row, t->q, t->k, t->v, t->out};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) free(all[i]);
}

static uint64_t n_saturated;

static attn_job job_of(const world *w, const step *t, const attn_plan *p, uint32_t layer) {
    return (attn_job){.out = t->out,
                      .q = t->q,
                      .k = t->k,
                      .v = t->v,
                      .b = &t->b,
                      .kv = &w->kv,
                      .spec = &w->spec,
                      .plan = p,
                      .arena = w->arena,
                      .page_bytes = TEST_PAGE_BYTES,
                      .layer_idx = layer,
                      .n_saturated = &n_saturated};
}

/* Store what the rows [0, upto[s]) of each sequence have, in layer LAYER; and something else in the
 * layer before, which must not be seen. */
static void store(const cpu_level *level, const world *w, const uint32_t *upto) {
    static const uint32_t zero[SEQS_MAX];
    step t;
    step_init(&t, w, zero, upto);
    attn_job job = job_of(w, &t, NULL, LAYER);
    level->kv_store(&job, 0, t.b.n_rows / 3);
    level->kv_store(&job, t.b.n_rows / 3, t.b.n_rows);
    job.layer_idx = LAYER - 1;
    job.k = t.v;
    job.v = t.k;
    level->kv_store(&job, 0, t.b.n_rows);
    step_deinit(&t);
}

/* What rows [from, to) of each sequence give, into out [n_rows of the world, ...]. */
static void attend(const cpu_level *level, const world *w, attn_plan *p, const uint32_t *from,
                   const uint32_t *to, uint32_t n_threads, bool backwards, float *out) {
    size_t q_width = (size_t)w->c.n_heads * w->c.head_dim;
    step t;
    step_init(&t, w, from, to);
    EXPECT(attn_plan_make(p, &t.b, &w->kv, &w->spec, n_threads));
    attn_job job = job_of(w, &t, p, LAYER);
    uint32_t n = attn_plan_n_units(p), n_merges = attn_plan_n_merges(p);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t unit = backwards ? n - 1 - i : i;
        level->attend(&job, unit, unit + 1);
    }
    level->attend_merge(&job, 0, n_merges / 2);
    level->attend_merge(&job, n_merges / 2, n_merges);
    for (uint32_t i = 0; i < t.b.n_rows; i++)
        memcpy(out + t.world_row[i] * q_width, t.out + i * q_width, q_width * sizeof *out);
    step_deinit(&t);
}

/* ---- the formula ---- */

/* A row of n as it is stored.  16-bit integers are compared with what was to be stored: they may
 * differ by one between levels, because the sum of squares is rounded differently. */
static void as_stored(kv_type type, const float *x, uint32_t n, double *out) {
    float most = 0;
    for (uint32_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    if (type == KV_I16) type = KV_F32;
    for (uint32_t i = 0; i < n; i++)
        out[i] = type == KV_F32    ? (double)x[i]
                 : type == KV_F16  ? (double)f16_to_f32(f32_to_f16(x[i]))
                 : type == KV_BF16 ? (double)bf16_to_f32(f32_to_bf16(x[i]))
                                   : (double)rintf(x[i] * (127 / most)) * (double)(most / 127);
}

/* One head of the row at position `pos` of sequence s. */
static void formula(const world *w, kv_type type, uint32_t s, uint32_t pos, uint32_t head,
                    double *out) {
    const attn_case *c = &w->c;
    uint32_t kv_head = head / (c->n_heads / c->n_kv_heads), D = c->head_dim;
    const float *q = w->q + ((size_t)(w->first[s] + pos) * c->n_heads + head) * D;
    uint32_t begin = c->window != 0 && pos + 1 > c->window ? pos + 1 - c->window : 0;
    double *p = malloc((pos + 1) * sizeof *p), max = -1e30, total = 0, stored[HEAD_DIM_MAX];
    for (uint32_t at = begin; at <= pos; at++) {
        size_t row = (size_t)(w->first[s] + at) * c->n_kv_heads + kv_head;
        as_stored(type, w->k + row * D, D, stored);
        p[at] = 0;
        for (uint32_t d = 0; d < D; d++) p[at] += (double)q[d] * stored[d];
        p[at] /= sqrt(D);
        if (c->softcap != 0) p[at] = (double)c->softcap * tanh(p[at] / (double)c->softcap);
        max = fmax(max, p[at]);
    }
    for (uint32_t d = 0; d < D; d++) out[d] = 0;
    for (uint32_t at = begin; at <= pos; at++) total += p[at] = exp(p[at] - max);
    for (uint32_t at = begin; at <= pos; at++) {
        size_t row = (size_t)(w->first[s] + at) * c->n_kv_heads + kv_head;
        as_stored(type, w->v + row * D, D, stored);
        for (uint32_t d = 0; d < D; d++) out[d] += p[at] / total * stored[d];
    }
    free(p);
}

static double attention_tolerance(const attn_case *c, const char *level) {
    static const char *const ops[] = {"attention f16", "attention bf16", "attention f32",
                                      "attention int8", "attention int16"};
    bool dots = strcmp(level, "avx512bf16") == 0 || strcmp(level, "avx512amx") == 0;
    if (c->type == KV_BF16 && dots) return tolerance_of("attention bf16 dot");
    return tolerance_of(c->softcap != 0 && !kv_is_scaled(c->type) ? "attention softcap"
                                                                  : ops[c->type]);
}

static void expect_row(const world *w, const char *level, uint32_t s, uint32_t pos,
                       const float *got) {
    double right[HEAD_DIM_MAX];
    for (uint32_t head = 0; head<w->c.n_heads; head += head> 12 ? 19 : 1) {
        formula(w, w->c.type, s, pos, head, right);
        for (uint32_t d = 0; d < w->c.head_dim; d++) {
            size_t at = ((size_t)(w->first[s] + pos) * w->c.n_heads + head) * w->c.head_dim + d;
            expect_close("attention", level, (double)got[at], right[d],
                         attention_tolerance(&w->c, level));
        }
    }
}

/* ---- tests ---- */

static const uint32_t some_lens[] = {1, 23, 273, 530};
enum { SOME = INFERD_COUNT(some_lens) };
/* Positions at the borders of tiles and chunks. */
static const uint32_t some_positions[] = {0,   15,  16,  22,  254, 255, 256,
                                          257, 271, 272, 511, 512, 529};

/* NULL: this machine lacks it, or it attends as a level before does. */
static const cpu_level *level_of(size_t i) {
    inferd_err err = {0};
    const cpu_level *level = level_choose(level_names[i], &err);
    for (size_t k = 0; k < i && level != NULL; k++) {
        const cpu_level *other = level_choose(level_names[k], &err);
        if (other != NULL && other->attend == level->attend) level = NULL;
    }
    return level;
}

static void attention_is_softmax_over_stored_positions(void) {
    for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
        world w;
        world_init(&w, attn_cases[c], SOME, some_lens, NULL, NULL);
        size_t n = (size_t)w.n_rows * w.c.n_heads * w.c.head_dim;
        float *out = calloc(n, sizeof *out);
        attn_plan *p = attn_plan_open();
        for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
            const cpu_level *level = level_of(i);
            if (level == NULL) continue;
            store(level, &w, some_lens);
            for (size_t at = 0; at < INFERD_COUNT(some_positions); at++) {
                uint32_t from[SEQS_MAX], to[SEQS_MAX], pos = some_positions[at];
                for (uint32_t s = 0; s < SOME; s++) {
                    from[s] = pos;
                    to[s] = u32_min(pos + 1, w.lens[s]);
                }
                attend(level, &w, p, from, to, at % 2 == 0 ? 1 : 4, false, out);
                for (uint32_t s = i % 2; s < SOME; s += 2)
                    if (pos < w.lens[s] && (pos + at + c) % 3 == i % 3)
                        expect_row(&w, level_names[i], s, pos, out);
            }
        }
        attn_plan_close(p);
        free(out);
        world_deinit(&w);
    }
}

/* Alone, among others, in prompts of any cut, cut for many threads, computed in any order; in parts
 * of the sequences where tiles and chunks begin. */
static void attention_does_not_depend_on_the_batch(void) {
    static const uint32_t cuts[] = {1, 7, 16, 30};
    static const uint32_t spans[][2] = {{0, 30}, {240, 275}, {505, 530}};
    for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
        world w;
        world_init(&w, attn_cases[c], SOME, some_lens, NULL, NULL);
        for (size_t i = 1; i < INFERD_COUNT(level_names); i++) { // define has one way for all
            const cpu_level *level = level_of(i);
            uint32_t from[SEQS_MAX] = {0}, to[SEQS_MAX] = {0};
            if (level == NULL) continue;
            store(level, &w, some_lens);
            size_t n = (size_t)w.n_rows * w.c.n_heads * w.c.head_dim;
            float *one = calloc(n, sizeof *one), *other = calloc(n, sizeof *other);
            attn_plan *p = attn_plan_open();
            for (size_t k = 0; k < INFERD_COUNT(spans); k++) {
                for (uint32_t s = 0; s < SOME; s++) {
                    from[s] = spans[k][0];
                    to[s] = u32_min(spans[k][1], w.lens[s]);
                }
                attend(level, &w, p, from, to, 1, false, one);
                uint32_t cut = cuts[(c + i + k) % INFERD_COUNT(cuts)], n_cuts = 0;
                bool together = (c + i) % 2 == 0;
                for (uint32_t alone = 0; alone < (together ? 1 : SOME); alone++) {
                    for (uint32_t begin = spans[k][0]; begin < spans[k][1]; begin += cut) {
                        for (uint32_t s = 0; s < SOME; s++) {
                            from[s] = begin;
                            to[s] = u32_min(u32_min(begin + cut, spans[k][1]), w.lens[s]);
                            if (!together && s != alone) to[s] = 0;
                        }
                        n_cuts++;
                        attend(level, &w, p, from, to, 1 + n_cuts % 4, n_cuts % 2 == 0, other);
                    }
                }
            }
            expect_same_bits("attention", level_names[i], other, one, n);
            attn_plan_close(p);
            free(one);
            free(other);
        }
        world_deinit(&w);
    }
}

/* A whole prompt at once, and row by row. */
static void a_prompt_has_the_bits_of_its_rows(void) {
    static const uint32_t lens[] = {530}, zero[1];
    const attn_case c = {KV_BF16, 3, 1, 64, 16, 0, 0};
    for (size_t i = 1; i < INFERD_COUNT(level_names); i++) {
        const cpu_level *level = level_of(i);
        if (level == NULL) continue;
        world w;
        world_init(&w, c, 1, lens, NULL, NULL);
        store(level, &w, lens);
        size_t n = (size_t)w.n_rows * w.c.n_heads * w.c.head_dim;
        float *one = calloc(n, sizeof *one), *other = calloc(n, sizeof *other);
        attn_plan *p = attn_plan_open();
        attend(level, &w, p, zero, lens, 2, false, one);
        for (uint32_t pos = 0; pos < lens[0]; pos++) {
            uint32_t to = pos + 1;
            attend(level, &w, p, &pos, &to, 1 + pos % 3, false, other);
        }
        expect_same_bits("a prompt", level_names[i], other, one, n);
        attn_plan_close(p);
        free(one);
        free(other);
        world_deinit(&w);
    }
}

/* Sequences 1 and 2 begin as 0 does, for two chunks; 3 for one; 4 for less than one; 6 as 5 does.
 */
static void a_shared_prefix_changes_no_bit(void) {
    static const uint32_t lens[] = {520, 700, 514, 600, 300, 400, 257, 20};
    static const uint32_t like[] = {0, 0, 0, 0, 0, 5, 5, 0};
    static const uint32_t shared[] = {0, 512, 512, 256, 128, 0, 256, 0};
    for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
        world w;
        world_init(&w, attn_cases[c], SEQS_MAX, lens, like, shared);
        for (size_t i = 1; i < INFERD_COUNT(level_names); i++) {
            const cpu_level *level = level_of(i);
            uint32_t from[SEQS_MAX], to[SEQS_MAX];
            if (level == NULL) continue;
            store(level, &w, lens);
            size_t n = (size_t)w.n_rows * w.c.n_heads * w.c.head_dim;
            float *one = calloc(n, sizeof *one), *other = calloc(n, sizeof *other);
            attn_plan *p = attn_plan_open();
            for (uint32_t s = 0; s < SEQS_MAX; s++) {
                for (uint32_t k = 0; k < SEQS_MAX; k++) from[k] = to[k] = 0;
                from[s] = lens[s] - 1 - s % 2; // some with two new rows
                to[s] = lens[s];
                attend(level, &w, p, from, to, 1, false, one);
                EXPECT_EQ(attn_plan_n_merges(p), 0);
            }
            for (uint32_t s = 0; s < SEQS_MAX; s++) {
                from[s] = lens[s] - 1 - s % 2;
                to[s] = lens[s];
            }
            attend(level, &w, p, from, to, 1, true, other);
            /* 0, 1, 2 and 3, and 5 and 6 share something, unless their windows are past it. */
            if (w.c.window == 0) EXPECT_EQ(attn_plan_n_merges(p) / w.c.n_kv_heads, 9);
            expect_same_bits("attention of a shared prefix", level_names[i], other, one, n);
            attend(level, &w, p, from, to, 7, false, other);
            expect_same_bits("attention of a shared prefix, cut", level_names[i], other, one, n);
            attn_plan_close(p);
            free(one);
            free(other);
        }
        world_deinit(&w);
    }
}

/* A block that is partly filled holds anything past that: what is not a number must not shine
 * through, and what is stored later must not either. */
static void attention_ignores_what_is_not_stored_yet(void) {
    static const uint32_t lens[] = {19};
    for (size_t c = 0; c < INFERD_COUNT(attn_cases); c++) {
        for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
            const cpu_level *level = level_of(i);
            if (level == NULL) continue;
            world w;
            world_init(&w, attn_cases[c], 1, lens, NULL, NULL);
            float *out = calloc((size_t)w.n_rows * w.c.n_heads * w.c.head_dim, sizeof *out);
            attn_plan *p = attn_plan_open();
            for (uint32_t pos = 15; pos < lens[0]; pos++) {
                uint32_t to = pos + 1;
                store(level, &w, &to);
                attend(level, &w, p, &pos, &to, 1, false, out);
                expect_row(&w, level_names[i], 0, pos, out);
            }
            attn_plan_close(p);
            free(out);
            world_deinit(&w);
        }
    }
}

/* What is not finite is seen by those that attend to it, and by no other head or sequence. */
static void what_is_not_finite_is_seen(void) {
    static const uint32_t lens[] = {40, 40}, zero[2];
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        const cpu_level *level = level_of(i);
        for (kv_type type = KV_F16; level != NULL && type <= KV_I16; type++) {
            const attn_case c = {type, 2, 2, 64, 16, 0, 0};
            world w;
            world_init(&w, c, 2, lens, NULL, NULL);
            attn_plan *p = attn_plan_open();
            float *out = calloc((size_t)w.n_rows * 128, sizeof *out);
            w.v[20 * 128 + 3] = NAN;      // position 20, head 0
            w.v[32 * 128 + 64] = NAN;     // the first of a tile, head 1
            w.k[25 * 128 + 64 + 5] = NAN; // position 25, head 1
            store(level, &w, lens);
            attend(level, &w, p, zero, lens, 1, false, out);
            for (uint32_t pos = 20; pos < 40; pos++) EXPECT(!isfinite(out[pos * 128 + 3]));
            for (uint32_t pos = 25; pos < 40; pos++) EXPECT(!isfinite(out[pos * 128 + 64]));
            EXPECT(isfinite(out[24 * 128 + 64]) && isfinite(out[15 * 128 + 3]));
            /* Rows of the tile before were in one group with the next tile's, and saw it. */
            for (uint32_t pos = 0; pos < 16; pos++) EXPECT(isfinite(out[pos * 128 + 3]));
            for (uint32_t pos = 0; pos < 25; pos++) EXPECT(isfinite(out[pos * 128 + 64]));
            for (uint32_t at = 40 * 128; at < 80 * 128; at++) EXPECT(isfinite(out[at]));
            attn_plan_close(p);
            free(out);
            world_deinit(&w);
        }
    }
}

/* Rows of one head with everything the same, or all of it in one feature: the largest sums of
 * products that there can be, for which 32 bits have to be enough; weights that are all alike, and
 * one that is all there is. */
static void sums_of_int16_fit_32_bits(void) {
    static const uint32_t lens[] = {530};
    static const uint32_t dims[] = {16, 64, 512};
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        const cpu_level *level = level_of(i);
        for (uint32_t what = 0; level != NULL && what < 12; what++) {
            const uint32_t dim = dims[what / 4];
            const attn_case c = {KV_I16, 1, 1, dim, 16, 0, 0};
            const bool one_feature = what % 2 == 1, one_position = what / 2 % 2 == 1;
            world w;
            world_init(&w, c, 1, lens, NULL, NULL);
            for (uint32_t pos = 0; pos < lens[0]; pos++) {
                for (uint32_t d = 0; d < dim; d++) {
                    float x = one_feature && d != 3 ? 0 : 1000;
                    w.k[pos * dim + d] = one_position && pos != 7 ? -x : x;
                    w.q[pos * dim + d] = x;
                    w.v[pos * dim + d] = pos == 7 ? -2.0f : -1.0f;
                }
            }
            attn_plan *p = attn_plan_open();
            float *out = calloc((size_t)w.n_rows * dim, sizeof *out);
            uint32_t from = lens[0] - 1;
            store(level, &w, lens);
            attend(level, &w, p, &from, lens, 1, false, out);
            double right = one_position ? -2 : -(lens[0] + 1.0) / lens[0];
            for (uint32_t d = 0; d < dim; d++)
                expect_close("the largest sums", level->name, (double)out[from * dim + d], right,
                             3e-4);
            attn_plan_close(p);
            free(out);
            world_deinit(&w);
        }
    }
}

/* Keys and values beyond 65,504, the largest number of f16, were stored as infinite, and every
 * request to such a model ended in an error.  They are stored as the largest now, and counted;
 * 16-bit integers have no largest number; and what is not finite is still seen. */
static void what_f16_cannot_hold_is_counted(void) {
    static const uint32_t lens[] = {40}, zero[1];
    static const float values[] = {65504, -65504, 65505, -1e30f, 3e38f};
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        const cpu_level *level = level_of(i);
        for (int in_keys = 0; level != NULL && in_keys < 2; in_keys++) {
            const attn_case c = {KV_F16, 2, 2, 20, 16, 0, 0};
            world w, clipped;
            world_init(&w, c, 1, lens, NULL, NULL);
            for (size_t e = 0; e < (size_t)w.n_rows * 40; e++) w.q[e] *= 1e-5f;
            float *at = in_keys ? w.k : w.v;
            for (size_t n = 0; n < INFERD_COUNT(values); n++) at[300 + 37 * n] = values[n];
            attn_plan *p = attn_plan_open();
            float *out = calloc((size_t)w.n_rows * 40, sizeof *out);
            n_saturated = 0;
            store(level, &w, lens); // in one layer as keys, in the other as values
            EXPECT_EQ(n_saturated, 2 * 3);
            attend(level, &w, p, zero, lens, 1, false, out);
            clipped = w;
            clipped.k = malloc((size_t)w.n_rows * 40 * sizeof *w.k);
            clipped.v = malloc((size_t)w.n_rows * 40 * sizeof *w.v);
            for (size_t e = 0; e < (size_t)w.n_rows * 40; e++) {
                clipped.k[e] = fmaxf(fminf(w.k[e], 65504), -65504);
                clipped.v[e] = fmaxf(fminf(w.v[e], 65504), -65504);
            }
            double right[HEAD_DIM_MAX];
            for (uint32_t head = 0; head < 2; head++) {
                formula(&clipped, KV_F16, 0, 39, head, right);
                for (uint32_t d = 0; d < 20; d++)
                    expect_close("clipped", level->name, (double)out[39 * 40 + head * 20 + d],
                                 right[d], 2e-5 * (1 + fabs(right[d])));
            }
            at[20 * 40 + 20] = in_keys ? NAN : INFINITY; // of position 20, head 1
            n_saturated = 0;
            store(level, &w, lens);
            EXPECT_EQ(n_saturated, 2 * 3);
            attend(level, &w, p, zero, lens, 1, false, out);
            EXPECT(isfinite(out[15 * 40 + 20]) && !isfinite(out[20 * 40 + 20]));
            attn_plan_close(p);
            free(out);
            free(clipped.k);
            free(clipped.v);
            world_deinit(&w);
        }
    }
}

/* Rows of any size, up to where their squares or their sums are no floats. */
static void int16_has_no_largest_number(void) {
    static const uint32_t lens[] = {40}, zero[1];
    static const float sizes[] = {1e-30f, 1e-18f, 1e6f, 1e19f, 1e30f};
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        const cpu_level *level = level_of(i);
        for (size_t n = 0; level != NULL && n < INFERD_COUNT(sizes); n++) {
            const attn_case c = {KV_I16, 2, 1, 64, 16, 0, 0};
            world w;
            world_init(&w, c, 1, lens, NULL, NULL);
            for (size_t e = 0; e < (size_t)w.n_rows * 64; e++) {
                w.k[e] *= sizes[n];
                w.v[e] *= sizes[n];
            }
            for (size_t e = 0; e < (size_t)w.n_rows * 128; e++) w.q[e] /= sizes[n];
            attn_plan *p = attn_plan_open();
            float *out = calloc((size_t)w.n_rows * 128, sizeof *out);
            double right[64];
            store(level, &w, lens);
            attend(level, &w, p, zero, lens, 1, false, out);
            formula(&w, KV_F32, 0, 39, 1, right);
            for (uint32_t d = 0; d < 64; d++)
                expect_close("any size", level->name,
                             (double)out[39 * 128 + 64 + d] / (double)sizes[n],
                             right[d] / (double)sizes[n], 6e-4);
            attn_plan_close(p);
            free(out);
            world_deinit(&w);
        }
    }
}

/* How far a type is off: the size of the difference, as a part of the size of the result. */
static void type_is_off_by_less_than(kv_type type, const char *name, double limit) {
    static const uint32_t lens[] = {530};
    const attn_case c = {type, 9, 3, 64, 16, 0, 0};
    for (size_t i = 0; i < INFERD_COUNT(level_names); i++) {
        const cpu_level *level = level_of(i);
        if (level == NULL) continue;
        world w;
        world_init(&w, c, 1, lens, NULL, NULL);
        float *out = calloc((size_t)w.n_rows * 9 * 64, sizeof *out);
        attn_plan *p = attn_plan_open();
        uint32_t from = lens[0] - 1;
        double right[64], difference = 0, size = 0;
        store(level, &w, lens);
        attend(level, &w, p, &from, lens, 1, false, out);
        for (uint32_t head = 0; head < 9; head++) {
            formula(&w, KV_F32, 0, from, head, right);
            for (uint32_t d = 0; d < 64; d++) {
                double e = (double)out[((size_t)from * 9 + head) * 64 + d] - right[d];
                difference += e * e;
                size += right[d] * right[d];
            }
        }
        printf("%s at level %s: relative error %.6f\n", name, level->name, sqrt(difference / size));
        EXPECT(sqrt(difference / size) < limit);
        attn_plan_close(p);
        free(out);
        world_deinit(&w);
    }
}

static void int8_is_off_by_less_than_a_percent(void) {
    type_is_off_by_less_than(KV_I8, "int8", 0.01);
}

/* The default at level avx512bf16 was bf16 with bf16 queries and weights, 10 times as far off as
 * the f16 of older processors. */
static void int16_is_as_near_as_f16(void) {
    type_is_off_by_less_than(KV_F16, "f16", 5e-4);
    type_is_off_by_less_than(KV_I16, "int16", 5e-4);
}

/* ---- the plan alone ---- */

static bool has_row(const attn_plan *p, const attn_unit *u, uint32_t row) {
    for (uint32_t i = 0; i < u->n_rows; i++)
        if (p->rows[u->rows_at + i] == row) return true;
    return false;
}

/* Each row, head and chunk belongs to one unit; rows of a unit read the same slots. */
static void expect_cover(const attn_plan *p, const batch *b, const kv_layout *l,
                         const attn_spec *spec) {
    uint32_t group = spec->n_heads / spec->n_kv_heads;
    for (uint32_t row = 0; row < b->n_rows; row++) {
        uint32_t pos = b->positions[row];
        for (uint32_t head = 0; head < spec->n_heads; head++) {
            for (uint32_t c = attn_chunk_begin(spec, pos); c < attn_chunk_end(pos); c++) {
                uint32_t n = 0;
                for (uint32_t i = 0; i < p->n_units; i++) {
                    const attn_unit *u = &p->units[i];
                    if (head < u->head_begin || head >= u->head_begin + u->n_heads) continue;
                    if (c < u->chunk_begin || c >= u->chunk_end || !has_row(p, u, row)) continue;
                    n++;
                    EXPECT_EQ(u->head_begin / group, (u->head_begin + u->n_heads - 1) / group);
                    EXPECT(u->n_rows * u->n_heads <= ATTN_QUERIES);
                    EXPECT(u->whole == (p->partial_at[row] == UINT32_MAX));
                    const int32_t *mine = b->seqs[b->row_seq[row]].slots;
                    const int32_t *its = b->seqs[b->row_seq[p->rows[u->rows_at]]].slots;
                    uint32_t block = u32_min(c * ATTN_CHUNK, pos) / l->block_tokens;
                    EXPECT_EQ(mine[block * l->n_groups], its[block * l->n_groups]);
                }
                EXPECT_EQ(n, 1);
            }
        }
    }
}

static void a_plan_covers_everything_once(void) {
    static const uint32_t lens[] = {520, 700, 514, 600, 300, 1400, 257, 20};
    static const uint32_t like[] = {0, 0, 0, 0, 0, 1, 5, 0};
    static const uint32_t shared[] = {0, 512, 512, 256, 128, 512, 256, 0};
    attn_plan *p = attn_plan_open();
    for (uint32_t round = 0; round < 40; round++) {
        attn_case c = attn_cases[round % INFERD_COUNT(attn_cases)];
        uint32_t from[SEQS_MAX], to[SEQS_MAX];
        world w;
        step t;
        world_init(&w, c, SEQS_MAX, lens, like, shared);
        for (uint32_t s = 0; s < SEQS_MAX; s++) {
            to[s] = 1 + random_u32() % lens[s];
            from[s] = to[s] - u32_min(to[s], random_u32() % (s == 1 ? 60 : 3));
        }
        step_init(&t, &w, from, to);
        EXPECT(attn_plan_make(p, &t.b, &w.kv, &w.spec, 1 + round % 5));
        expect_cover(p, &t.b, &w.kv, &w.spec);
        step_deinit(&t);
        world_deinit(&w);
    }
    attn_plan_close(p);
}

/* A batch of n sequences with one new row each at position `pos`, without memory behind it. */
typedef struct bare_batch {
    batch b;
    uint32_t positions[64], row_seq[64];
    batch_seq seqs[64];
    int32_t *slots;
} bare_batch;

static void bare_init(bare_batch *t, uint32_t n, uint32_t pos, bool same) {
    uint32_t n_blocks = pos / 16 + 1;
    *t = (bare_batch){.slots = calloc((size_t)n * n_blocks, sizeof *t->slots)};
    t->b = (batch){.n_rows = n,
                   .n_seqs = n,
                   .positions = t->positions,
                   .row_seq = t->row_seq,
                   .seqs = t->seqs};
    for (uint32_t s = 0; s < n; s++) {
        t->positions[s] = pos;
        t->row_seq[s] = s;
        for (uint32_t i = 0; i < n_blocks; i++)
            t->slots[s * n_blocks + i] =
                (int32_t)(i + (same && i + 1 < n_blocks ? 0 : s * n_blocks));
        t->seqs[s] = (batch_seq){s, 1, pos, n_blocks, t->slots + s * n_blocks};
    }
}

static const kv_layout bare_layout = {.type = KV_BF16,
                                      .n_layers = 1,
                                      .n_kv_heads = 8,
                                      .head_dim = 128,
                                      .block_tokens = 16,
                                      .group_layers = 1,
                                      .n_groups = 1,
                                      .slots_per_page = 1};
static const attn_spec bare_spec = {32, 8, 128, 0.1f, 0, 0};

static void a_plan_is_cut_when_units_are_few(void) {
    attn_plan *p = attn_plan_open();
    bare_batch t;
    bare_init(&t, 1, 8191, false);
    EXPECT(attn_plan_make(p, &t.b, &bare_layout, &bare_spec, 1));
    EXPECT_EQ(attn_plan_n_units(p), 8);
    EXPECT_EQ(attn_plan_n_merges(p), 0);
    EXPECT(attn_plan_make(p, &t.b, &bare_layout, &bare_spec, 16));
    EXPECT(attn_plan_n_units(p) >= 48);
    EXPECT_EQ(attn_plan_n_merges(p), 8);
    free(t.slots);
    attn_plan_close(p);
}

/* Sharing stops where partials would take too much memory. */
static void partials_have_a_bound(void) {
    attn_plan *p = attn_plan_open();
    bare_batch t;
    bare_init(&t, 64, 4000, true);
    EXPECT(attn_plan_make(p, &t.b, &bare_layout, &bare_spec, 2));
    EXPECT_EQ(attn_plan_n_merges(p), 64 * 8);
    free(t.slots);
    bare_init(&t, 64, 40000, true);
    EXPECT(attn_plan_make(p, &t.b, &bare_layout, &bare_spec, 2));
    EXPECT_EQ(attn_plan_n_merges(p), 0);
    EXPECT_EQ(attn_plan_n_units(p), 64 * 8);
    EXPECT(p->n_partials * p->partial_floats * sizeof(float) <= 64u << 20);
    free(t.slots);
    attn_plan_close(p);
}

static void a_second_plan_of_the_same_size_allocates_nothing(void) {
    attn_plan *p = attn_plan_open();
    bare_batch t;
    for (uint32_t n = 64; n >= 1 && n <= 64; n -= 7) {
        bare_init(&t, n, 1200 + n, n % 2 == 0);
        const void *before[] = {p->units, p->rows, p->row_words, p->partials};
        EXPECT(attn_plan_make(p, &t.b, &bare_layout, &bare_spec, 2));
        const void *after[] = {p->units, p->rows, p->row_words, p->partials};
        if (n < 64) EXPECT(memcmp(before, after, sizeof before) == 0);
        free(t.slots);
    }
    attn_plan_close(p);
}

/* ---- through the backend ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

enum { DIM = 64, HEADS = 3, LEN = 40 };

/* Rows [from, to) of a sequence whose tokens are its positions. */
static void backend_step(device *d, const weight *table, const kv_layout *l, int32_t *slots, act *q,
                         act *k, act *out, uint32_t from, uint32_t to) {
    rows_batch r;
    memset(&r, 0, sizeof r);
    batch_seq seq = {0, to - from, from, kv_blocks_of(l, LEN), slots};
    for (uint32_t i = 0; i < to - from; i++) {
        r.tokens[i] = (tok_id)(from + i);
        r.positions[i] = from + i;
    }
    r.b = (batch){.n_rows = to - from,
                  .n_seqs = 1,
                  .tokens = r.tokens,
                  .positions = r.positions,
                  .row_seq = r.row_seq,
                  .seqs = &seq,
                  .logit_rows = r.logit_rows,
                  .pending = r.pending};
    attn_spec spec = {HEADS, HEADS, DIM, 0.125f, 0, 0};
    be_step_begin(d->be, &r.b, l);
    be_embed(d->be, q, table, 1);
    be_embed(d->be, k, table, -2);
    be_attention(d->be, out, q, k, k, 0, &spec, NULL);
    sync_ok(d);
}

/* Steps of one row, then suddenly of many: nothing may be touched for the first time then. */
static void steps_take_no_page_faults_after_warm_up(void) {
#if defined(SANITIZED)
    SKIP("a sanitizer has page faults of its own");
#endif
    device d;
    backend_stats stats;
    if (!device_open(&d, "avx2", 2)) EXPECT(device_open(&d, "base", 2));
    do // a page taken before the background thread came is counted, and rightly
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    while (be_n_pages_warm(d.be) < ARENA_PAGES);
    kv_layout l = {KV_F16, 1, HEADS, DIM, 16, 1, 1, 0, 0, 0};
    l.layer_bytes = l.slot_bytes = be_kv_layer_bytes(d.be, KV_F16, HEADS, DIM, 16);
    EXPECT_EQ(l.layer_bytes, kv_layer_bytes_of(KV_F16, HEADS, DIM, 16));
    l.slots_per_page = (uint32_t)(be_page_bytes(d.be) / l.slot_bytes);
    int32_t first = (int32_t)(WINDOW_PAGES * l.slots_per_page),
            slots[] = {first + 5, first, first + 9};
    float *x = random_floats((size_t)ROWS_MAX * 576);
    weight rows = make_table(&d, x, LEN, HEADS * DIM);
    act *q = be_act_open(d.be, ACT_INNER, LEN, HEADS * DIM),
        *k = be_act_open(d.be, ACT_INNER, LEN, HEADS * DIM),
        *out = be_act_open(d.be, ACT_INNER, LEN, HEADS * DIM);
    for (uint32_t pos = 0; pos < LEN; pos++)
        backend_step(&d, &rows, &l, slots, q, k, out, pos, pos + 1);
    float last[HEADS * DIM];
    memcpy(last, be_act_host(d.be, out), sizeof last);
    backend_step(&d, &rows, &l, slots, q, k, out, 0, LEN);
    expect_same_bits("attention", "of the backend",
                     be_act_host(d.be, out) + (LEN - 1) * HEADS * DIM, last, HEADS * DIM);
    unsigned char *file = file_rows(DTYPE_Q4_1, 640, 576);
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
    act *const all[] = {q, k, out, in, result};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) be_act_close(d.be, all[i]);
    free(file);
    free(x);
    device_close(&d);
}

static const test_case cases[] = {
    TEST(attention_is_softmax_over_stored_positions),
    TEST(attention_does_not_depend_on_the_batch),
    TEST(a_prompt_has_the_bits_of_its_rows),
    TEST(a_shared_prefix_changes_no_bit),
    TEST(attention_ignores_what_is_not_stored_yet),
    TEST(what_is_not_finite_is_seen),
    TEST(int8_is_off_by_less_than_a_percent),
    TEST(int16_is_as_near_as_f16),
    TEST(sums_of_int16_fit_32_bits),
    TEST(int16_has_no_largest_number),
    TEST(what_f16_cannot_hold_is_counted),
    TEST(a_plan_covers_everything_once),
    TEST(a_plan_is_cut_when_units_are_few),
    TEST(partials_have_a_bound),
    TEST(a_second_plan_of_the_same_size_allocates_nothing),
    TEST(steps_take_no_page_faults_after_warm_up),
};
TEST_MAIN(cases)
