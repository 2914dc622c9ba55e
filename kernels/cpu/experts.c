/* experts.c - see experts.h. */
#include "cpu/experts.h"

#include <math.h>
#include <string.h>

enum { FETCHED_BYTES = 64 << 10 }; // of a matrix by one rank; L2 has room for a few

/* The slots of one expert. */
typedef struct expert_slots {
    uint32_t expert, first, n;
    uint32_t tiles_before;  // of the experts before it
    uint64_t cost_before;   // see cost_of
    size_t x_at, hidden_at; // their integers, in x and hidden of the room
} expert_slots;

struct experts {
    uint32_t *chosen;          // [n, n_used] experts of each row, ascending
    float *p;                  // [n, n_used] their weights
    uint32_t *slot_of;         // [n, n_used]
    uint32_t *row_of;          // [n * n_used] the row of each slot
    expert_slots *used;        // [n_experts]
    uint32_t *next;            // [n_experts] scratch of the sort
    uint32_t *counts;          // [n_experts] see experts_counts
    unsigned char *x, *hidden; // integers, or floats: [slots, dim], and of up [slots, ffn]
    size_t slots_room, experts_room, x_room, hidden_room;

    uint32_t n_used; // experts with rows
    uint32_t n_tiles;
    uint64_t cost;
    uint32_t n_counted, n_reads;
};

/* ---- memory ---- */

experts *experts_open(void) {
    return calloc(1, sizeof(experts));
}

void experts_close(experts *e) {
    if (e == NULL) return;
    free(e->chosen);
    free(e->p);
    free(e->slot_of);
    free(e->row_of);
    free(e->used);
    free(e->next);
    free(e->counts);
    free(e->x);
    free(e->hidden);
    free(e);
}

/* Replace *p by n_bytes, all written so that none faults later.  What it held is not kept. */
static bool grow(void *p, size_t n_bytes) {
    void **at = p;
    void *fresh = aligned_alloc(64, qact_align(size_max(n_bytes, 1)));
    if (fresh == NULL) return false;
    memset(fresh, 0, qact_align(size_max(n_bytes, 1)));
    free(*at);
    *at = fresh;
    return true;
}

/* Bytes for the rows of all experts: an expert's rows are whole tiles. */
static size_t gathered_bytes(cpu_math math, size_t n_slots, size_t n_used_max, uint32_t cols) {
    if (math == MATH_F32) return n_slots * cols * sizeof(float);
    size_t rows = n_slots + n_used_max * (QACT_ROWS - 1);
    return qact_bytes((uint32_t)rows, cols) + n_used_max * (qact_bytes(1, 0) + 64);
}

bool experts_reserve(experts *e, const expert_weights *w, uint32_t rows_max, cpu_math math,
                     cpu_math down_math) {
    size_t n_slots = (size_t)rows_max * w->n_used, n_experts = w->n_experts;
    size_t n_used_max = size_min(n_slots, n_experts);
    size_t x_bytes = gathered_bytes(math, n_slots, n_used_max, w->gate->cols);
    size_t hidden_bytes = gathered_bytes(down_math, n_slots, n_used_max, w->down->cols);
    if (math == MATH_F32) // up lies there before it is applied
        hidden_bytes = size_max(hidden_bytes, n_slots * w->down->cols * sizeof(float));
    if (n_slots > e->slots_room) {
        if (!grow(&e->chosen, n_slots * sizeof *e->chosen) ||
            !grow(&e->p, n_slots * sizeof *e->p) ||
            !grow(&e->slot_of, n_slots * sizeof *e->slot_of) ||
            !grow(&e->row_of, n_slots * sizeof *e->row_of))
            return false;
        e->slots_room = n_slots;
    }
    if (n_experts > e->experts_room) {
        if (!grow(&e->used, n_experts * sizeof *e->used) ||
            !grow(&e->next, n_experts * sizeof *e->next) ||
            !grow(&e->counts, n_experts * sizeof *e->counts))
            return false;
        e->experts_room = n_experts;
    }
    if (x_bytes > e->x_room) {
        if (!grow(&e->x, x_bytes)) return false;
        e->x_room = x_bytes;
    }
    if (hidden_bytes > e->hidden_room) {
        if (!grow(&e->hidden, hidden_bytes)) return false;
        e->hidden_room = hidden_bytes;
    }
    return true;
}

void experts_begin_step(experts *e) {
    if (e->n_counted > 0) memset(e->counts, 0, e->n_counted * sizeof *e->counts);
    e->n_counted = e->n_reads = 0;
}

uint32_t experts_counts(const experts *e, const uint32_t **rows, uint32_t *n_reads) {
    *rows = e->counts;
    *n_reads = e->n_reads;
    return e->n_counted;
}

/* ---- which experts ---- */

/* The n_used experts of a row with the largest logits, of equal ones the lower first; not a number
 * is smaller than any, and makes the row's weights so. */
static void choose(const float *logits, uint32_t n_experts, uint32_t n_used, uint32_t *chosen) {
    float value[BE_EXPERTS_USED_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_experts; i++) {
        float x = logits[i] == logits[i] ? logits[i] : -INFINITY;
        if (n == n_used && !(x > value[n - 1])) continue;
        uint32_t at = n < n_used ? n++ : n - 1;
        for (; at > 0 && x > value[at - 1]; at--) {
            value[at] = value[at - 1];
            chosen[at] = chosen[at - 1];
        }
        value[at] = x;
        chosen[at] = i;
    }
}

static void sort_ascending(uint32_t *x, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        uint32_t value = x[i], at = i;
        for (; at > 0 && x[at - 1] > value; at--) x[at] = x[at - 1];
        x[at] = value;
    }
}

/* Softmax of the chosen logits. */
static void weigh_chosen(const float *logits, const uint32_t *chosen, uint32_t n, float *p) {
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) max = fmaxf(max, logits[chosen[i]]);
    for (uint32_t i = 0; i < n; i++) sum += p[i] = expf(logits[chosen[i]] - max);
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}

void experts_route(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    uint32_t n_used = j->w->n_used;
    for (size_t row = begin; row < end; row++) {
        const float *logits = j->logits + row * j->w->n_experts;
        uint32_t *chosen = j->room->chosen + row * n_used;
        choose(logits, j->w->n_experts, n_used, chosen);
        sort_ascending(chosen, n_used);
        weigh_chosen(logits, chosen, n_used, j->room->p + row * n_used);
    }
}

/* ---- slots ---- */

/* What a unit of an expert with n rows costs: its weights, which are read once, and the products.
 */
static uint32_t cost_of(uint32_t n) {
    enum { READING = 4 };
    return READING + n;
}

static uint32_t units_of_rows(uint32_t rows) {
    return (rows + MATMUL_UNIT - 1) / MATMUL_UNIT;
}

/* The expert's slots begin at `first`; its place after the experts before it. */
static void place(const experts_job *j, uint32_t expert, uint32_t first, uint32_t n, size_t *x_at,
                  size_t *hidden_at) {
    experts *e = j->room;
    expert_slots *u = &e->used[e->n_used++];
    *u = (expert_slots){.expert = expert,
                        .first = first,
                        .n = n,
                        .tiles_before = e->n_tiles,
                        .cost_before = e->cost,
                        .x_at = *x_at,
                        .hidden_at = *hidden_at};
    e->n_tiles += qact_tiles(n);
    e->cost += cost_of(n);
    *x_at += qact_align(qact_bytes(n, j->w->gate->cols));
    *hidden_at += qact_align(qact_bytes(n, j->w->down->cols));
}

void experts_sort(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    experts *e = j->room;
    uint32_t n_experts = j->w->n_experts, n_used = j->w->n_used, n_slots = j->n * n_used;
    (void)begin, (void)end;
    memset(e->next, 0, n_experts * sizeof *e->next);
    for (uint32_t i = 0; i < n_slots; i++) e->next[e->chosen[i]]++;
    e->n_used = e->n_tiles = 0;
    e->cost = 0;
    size_t x_at = 0, hidden_at = 0;
    for (uint32_t expert = 0, first = 0; expert < n_experts; expert++) {
        uint32_t n = e->next[expert];
        e->next[expert] = first;
        e->counts[expert] += n;
        if (n > 0) place(j, expert, first, n, &x_at, &hidden_at);
        first += n;
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        e->slot_of[i] = e->next[e->chosen[i]]++;
        e->row_of[e->slot_of[i]] = i / n_used;
    }
    e->n_reads += e->n_used;
    e->n_counted = u32_max(e->n_counted, n_experts);
}

void experts_route_and_sort(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    (void)begin, (void)end;
    experts_route(j, 0, j->n);
    experts_sort(j, 0, 1);
}

/* ---- x and hidden, as products read them ---- */

/* Of `total`, where part `i` of n_parts begins. */
static uint64_t begin_of(const experts_job *j, uint64_t total, uint32_t i) {
    return total * i / j->n_parts;
}

/* What is made of the rows of an expert: from floats [slots, dim], or from those of other rows. */
typedef struct gathering {
    const experts_job *j;
    const float *from;
    bool rows; // from row_of
    cpu_math math;
    unsigned char *to;
    uint32_t dim;
} gathering;

/* Tiles [begin, end) of one expert's rows. */
static void gather_tiles(const gathering *g, const expert_slots *u, size_t at, uint32_t begin,
                         uint32_t end) {
    const uint32_t *rows = g->j->room->row_of + u->first;
    if (g->math != MATH_F32) {
        qact_job job = {.out = qact_at(g->to + at, u->n, g->dim),
                        .x = g->rows ? g->from : g->from + (size_t)u->first * g->dim,
                        .rows = g->rows ? rows : NULL,
                        .n = u->n,
                        .dim = g->dim,
                        .math = g->math};
        g->j->level->quantize(&job, begin, end);
        return;
    }
    float *to = (float *)(void *)g->to + (size_t)u->first * g->dim;
    for (uint32_t i = begin * QACT_ROWS; i < end * QACT_ROWS && i < u->n; i++)
        memcpy(to + (size_t)i * g->dim, g->from + (size_t)rows[i] * g->dim, g->dim * sizeof *to);
}

/* Parts [begin, end) of all tiles. */
static void gather(const gathering *g, bool x, uint32_t begin, uint32_t end) {
    const experts *e = g->j->room;
    uint32_t first = (uint32_t)begin_of(g->j, e->n_tiles, begin);
    uint32_t limit = (uint32_t)begin_of(g->j, e->n_tiles, end);
    for (uint32_t i = 0; i < e->n_used; i++) {
        const expert_slots *u = &e->used[i];
        uint32_t b = u32_max(first, u->tiles_before);
        uint32_t l = u32_min(limit, u->tiles_before + qact_tiles(u->n));
        if (b < l)
            gather_tiles(g, u, x ? u->x_at : u->hidden_at, b - u->tiles_before,
                         l - u->tiles_before);
    }
}

/* The weights that part `part` of the next products reads first: few rows wait for the memory,
 * which is idle meanwhile. */
static void fetch(const experts_job *j, const weight *w, uint32_t part) {
    const experts *e = j->room;
    const uint32_t n_units = units_of_rows(w->rows);
    uint64_t at = begin_of(j, e->cost * n_units, part);
    size_t unit_bytes = panel_bytes(w->type, w->cols) * MATMUL_UNIT / PANEL_ROWS;
    for (uint32_t i = 0; i < e->n_used; i++) {
        const expert_slots *u = &e->used[i];
        uint64_t before = u->cost_before * n_units, each = cost_of(u->n);
        if (at >= before + each * n_units) continue;
        uint64_t unit = at > before ? (at - before + each - 1) / each : 0;
        const unsigned char *p = (const unsigned char *)w[u->expert].data + unit * unit_bytes;
        size_t n = size_min((n_units - unit) * unit_bytes, FETCHED_BYTES);
        for (size_t k = 0; k < n; k += 64) __builtin_prefetch(p + k, 0, 2);
        return;
    }
}

void experts_gather(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    if (j->fetches) fetch(j, j->w->gate, begin);
    if (j->fetches) fetch(j, j->w->up, begin);
    gathering g = {j, j->x, true, j->math, j->room->x, j->w->gate->cols};
    gather(&g, true, begin, end);
}

void experts_again(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    if (j->fetches) fetch(j, j->w->down, begin);
    gathering g = {j, j->hidden, false, j->down_math, j->room->hidden, j->w->down->cols};
    gather(&g, false, begin, end);
}

/* ---- products ---- */

static const float *bias_of(const vec *bias, uint32_t expert, uint32_t rows) {
    return bias->data != NULL ? bias->data + (size_t)expert * rows : NULL;
}

/* out[n, rows] of one expert's slots = x times w + bias: its units [begin, end). */
static void multiply(const experts_job *j, const expert_slots *u, cpu_math math,
                     const unsigned char *x, size_t x_at, const weight *w, const vec *bias,
                     float *out, uint32_t begin, uint32_t end) {
    const float *b = bias_of(bias, u->expert, w->rows);
    out += (size_t)u->first * w->rows;
    if (math == MATH_F32) {
        const float *rows = (const float *)(const void *)x + (size_t)u->first * w->cols;
        matmul_job job = {out, rows, &w[u->expert], b, u->n};
        j->level->matmul(&job, begin, end);
        return;
    }
    qmatmul_job job = {.x = qact_at((unsigned char *)(uintptr_t)x + x_at, u->n, w->cols),
                       .w = &w[u->expert],
                       .bias = b,
                       .out = out,
                       .n = u->n,
                       .math = math};
    j->level->qmatmul(&job, begin, end);
}

static void hidden_units(const experts_job *j, const expert_slots *u, uint32_t begin,
                         uint32_t end) {
    const weight *gate = j->w->gate, *up = j->w->up;
    const uint32_t ffn = gate->rows;
    if (j->math != MATH_F32) {
        qglu_job job = {.x = qact_at(j->room->x + u->x_at, u->n, gate->cols),
                        .gate = &gate[u->expert],
                        .up = &up[u->expert],
                        .gate_bias = bias_of(&j->w->gate_bias, u->expert, ffn),
                        .up_bias = bias_of(&j->w->up_bias, u->expert, ffn),
                        .fn = j->w->fn,
                        .out = j->hidden + (size_t)u->first * ffn,
                        .n = u->n,
                        .math = j->math};
        j->level->qglu(&job, begin, end);
        return;
    }
    float *ups = (float *)(void *)j->room->hidden;
    range_fn *fn = level_gate(j->level, j->w->fn);
    multiply(j, u, MATH_F32, j->room->x, 0, gate, &j->w->gate_bias, j->hidden, begin, end);
    multiply(j, u, MATH_F32, j->room->x, 0, up, &j->w->up_bias, ups, begin, end);
    uint32_t first = begin * MATMUL_UNIT, limit = u32_min(end * MATMUL_UNIT, ffn);
    for (uint32_t i = 0; i < u->n; i++) {
        size_t at = (size_t)(u->first + i) * ffn + first;
        flat_job job = {j->hidden + at, j->hidden + at, ups + at, limit - first};
        fn(&job, 0, (uint32_t)((job.n + FLAT_UNIT - 1) / FLAT_UNIT));
    }
}

static void down_units(const experts_job *j, const expert_slots *u, uint32_t begin, uint32_t end) {
    const unsigned char *from =
        j->down_math == MATH_F32 ? (const unsigned char *)j->hidden : j->room->hidden;
    multiply(j, u, j->down_math, from, u->hidden_at, j->w->down, &j->w->down_bias, j->parts, begin,
             end);
}

/* Parts [begin, end) of the work: units of all experts in order, n_units each, cut where their
 * costs are equal. */
static void each_expert(const experts_job *j, uint32_t n_units, uint32_t begin, uint32_t end,
                        void (*f)(const experts_job *j, const expert_slots *u, uint32_t begin,
                                  uint32_t end)) {
    const experts *e = j->room;
    uint64_t first = begin_of(j, e->cost * n_units, begin);
    uint64_t limit = begin_of(j, e->cost * n_units, end);
    for (uint32_t i = 0; i < e->n_used; i++) {
        const expert_slots *u = &e->used[i];
        uint64_t before = u->cost_before * n_units, each = cost_of(u->n);
        uint64_t all = each * n_units;
        if (before >= limit || before + all <= first) continue;
        uint64_t b = first > before ? (first - before + each - 1) / each : 0;
        uint64_t l = limit < before + all ? (limit - before + each - 1) / each : n_units;
        if (b < l) f(j, u, (uint32_t)b, (uint32_t)l);
    }
}

void experts_hidden(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    each_expert(j, units_of_rows(j->w->gate->rows), begin, end, hidden_units);
}

void experts_down(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    each_expert(j, units_of_rows(j->w->down->rows), begin, end, down_units);
}

void experts_sum(const void *job, uint32_t begin, uint32_t end) {
    const experts_job *j = job;
    combine_job combine = {.out = j->out,
                           .parts = j->parts,
                           .slots = j->room->slot_of,
                           .p = j->room->p,
                           .n_used = j->w->n_used,
                           .dim = j->w->down->rows};
    j->level->combine(&combine, begin, end);
}
