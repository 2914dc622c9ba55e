/* selftest_experts.c - the kernels of a mixture of experts, one by one.
 *
 * What a kernel reads from the one before is written by the host: choices, slots, and rows in the
 * order of lanes, by definitions of its own.  x are quarters up to 2, weights few bits times powers
 * of two, so products and their sums are exact in any order.
 *
 * Thread: one. */
#include <math.h>
#include <string.h>

#include "cuda/experts_params.h"
#include "cuda/formats.h"
#include "cuda/selftest_check.h"

enum { N_EXPERTS = 3, N_USED = 2, FEATURES = 40, ROWS_MAX = 70 };

static uint32_t mixed(uint32_t v) {
    v = (v ^ v >> 16) * 0x7feb352du;
    return v ^ v >> 13;
}

static double *numbers(size_t n) {
    double *v = calloc(n, sizeof *v);
    INFERD_CHECK(v != NULL);
    return v;
}

static uint32_t cols_of(uint32_t format) {
    return format <= CU_FMT_F16 ? 328 : format == CU_FMT_Q6 ? 512 : 480;
}

/* ---- the routing ---- */

typedef struct routing {
    uint32_t rows, n_slots;
    uint32_t chosen[ROWS_MAX * N_USED], slot_of[ROWS_MAX * N_USED], row_of[ROWS_MAX * N_USED];
    experts_state state;
    float p[ROWS_MAX * N_USED];
} routing;

/* Row i leaves out expert i % 7, if there is one: experts 0 and 1 have more rows than 2. */
static void route_rows(routing *t, uint32_t rows) {
    memset(t, 0, sizeof *t);
    t->rows = rows;
    t->n_slots = rows * N_USED;
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t out = i % 7 < 2 ? i % 7 : 2;
        t->chosen[2 * i] = out == 0 ? 1 : 0;
        t->chosen[2 * i + 1] = out == 2 ? 1 : 2;
        t->p[2 * i] = 0.25f;
        t->p[2 * i + 1] = 0.75f;
    }
    uint32_t slot = 0;
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        uint32_t first = slot;
        for (uint32_t i = 0; i < t->n_slots; i++) {
            if (t->chosen[i] != e) continue;
            t->row_of[slot] = i / N_USED;
            t->slot_of[i] = slot++;
        }
        if (slot > first)
            t->state.runs[t->state.n_runs++] = (expert_run){e, first, slot - first, 0};
        t->state.step_rows[e] = slot - first;
    }
    t->state.n_reads = t->state.n_runs;
}

/* The workspace as it is before a kernel: with what the kernels before it wrote, or 0xff. */
static experts_workspace put_workspace(check *c, const routing *t, bool chosen, bool sorted) {
    static unsigned char host[sizeof(experts_state) + 16 * ROWS_MAX * N_USED];
    size_t n = experts_workspace_bytes(t->n_slots), array = t->n_slots * sizeof(uint32_t);
    unsigned char *at = host + sizeof(experts_state);
    memset(host, 0xff, n);
    memset(host, 0, sizeof(experts_state));
    if (sorted) memcpy(host, &t->state, sizeof t->state);
    if (chosen) memcpy(at, t->chosen, array);
    if (chosen) memcpy(at + array, t->p, array);
    if (sorted) memcpy(at + 2 * array, t->slot_of, array);
    if (sorted) memcpy(at + 3 * array, t->row_of, array);
    return (experts_workspace){check_put(c, host, n), t->n_slots};
}

static void get_array(check *c, const experts_workspace *w, uint32_t i, void *out) {
    size_t array = w->n_slots * sizeof(uint32_t);
    check_get(c, out, (unsigned char *)w->base + sizeof(experts_state) + i * array, array);
}

/* Natural columns to the order of lanes: of 32, lane t has 16s + 2t, + 1, + 8, + 9. */
static uint32_t lanes_place(uint32_t col) {
    uint32_t c = col % 32;
    return col - c + c % 8 / 2 * 8 + c / 16 * 4 + c / 8 % 2 * 2 + c % 2;
}

/* ---- route, sort, sum ---- */

static void check_route(check *c) {
    static routing t;
    static uint32_t got[ROWS_MAX * N_USED];
    enum { ROWS = 9, COLS = 64 };
    double logits[ROWS * N_EXPERTS], x[ROWS * COLS], p[ROWS * N_USED], lanes[ROWS * COLS];
    double got_p[ROWS * N_USED], got_x[ROWS * COLS];
    if (!check_begin(c, "experts_route")) return;
    route_rows(&t, ROWS);
    for (uint32_t i = 0; i < ROWS; i++) {
        for (uint32_t e = 0; e < N_EXPERTS; e++) logits[i * N_EXPERTS + e] = -5;
        logits[i * N_EXPERTS + t.chosen[2 * i]] = 0.5;
        logits[i * N_EXPERTS + t.chosen[2 * i + 1]] = i % 3 == 0 ? 0.5 : 0.25;
        p[2 * i + 1] = 1 / (1 + (i % 3 == 0 ? 1 : exp(0.25)));
        p[2 * i] = 1 - p[2 * i + 1];
    }
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        x[i] = ((int)(mixed(i) % 17) - 8) / 4.0;
        lanes[i / COLS * COLS + lanes_place(i % COLS)] = x[i];
    }
    experts_workspace w = put_workspace(c, &t, false, false);
    static unsigned char nothing[1];
    cu_matrix quantised = format_matrix(check_types[CU_FMT_Q4], COLS, COLS, nothing);
    experts_args a = {.x = check_put_values(c, CU_BF16, x, ROWS * COLS),
                      .inner = CU_BF16,
                      .logits = check_put_values(c, CU_F32, logits, ROWS * N_EXPERTS),
                      .x_stride = COLS,
                      .logits_stride = N_EXPERTS,
                      .gate.first = quantised,
                      .up.first = quantised,
                      .n_experts = N_EXPERTS,
                      .n_used = N_USED,
                      .parts = check_room(c, ROWS * COLS * 2),
                      .rows = ROWS};
    if (!check_ready(c)) return;
    launch_experts_route(&c->l, &w, &a);
    if (!check_run(c)) return;
    get_array(c, &w, 0, got);
    check_words(c, "chosen", got, t.chosen, t.n_slots, N_USED);
    get_array(c, &w, 1, t.p);
    for (uint32_t i = 0; i < t.n_slots; i++) got_p[i] = (double)t.p[i];
    check_values(c, "p", got_p, p, t.n_slots, N_USED, 1e-6, 0);
    check_get_values(c, CU_BF16, got_x, a.parts, ROWS * COLS);
    check_values(c, "x", got_x, lanes, ROWS * COLS, COLS, 0, 0);
    check_end(c);
}

static void check_sort(check *c) {
    static routing t;
    static experts_state got;
    static uint32_t array[ROWS_MAX * N_USED];
    if (!check_begin(c, "experts_sort")) return;
    route_rows(&t, 33);
    experts_workspace w = put_workspace(c, &t, true, false);
    experts_args a = {.n_experts = N_EXPERTS, .n_used = N_USED, .rows = t.rows, .n_counts = 5};
    if (!check_ready(c)) return;
    launch_experts_sort(&c->l, &w, &a);
    if (!check_run(c)) return;
    get_array(c, &w, 2, array);
    check_words(c, "slot_of", array, t.slot_of, t.n_slots, 0);
    get_array(c, &w, 3, array);
    check_words(c, "row_of", array, t.row_of, t.n_slots, 0);
    check_get(c, &got, w.base, sizeof got);
    memcpy(got.counts, t.state.counts, sizeof got.counts); // scratch
    memcpy(got.firsts, t.state.firsts, sizeof got.firsts);
    check_words(c, "state", (const uint32_t *)(const void *)&got,
                (const uint32_t *)(const void *)&t.state, sizeof got / 4, 0);
    check_end(c);
}

static void check_sum(check *c, cu_type inner) {
    static routing t;
    enum { ROWS = 5, DIM = 40 };
    double parts[ROWS * N_USED * DIM], want[ROWS * DIM] = {0}, got[ROWS * DIM];
    if (!check_begin(c, "experts_sum_%s", type_name(inner))) return;
    route_rows(&t, ROWS);
    for (uint32_t i = 0; i < ROWS * N_USED * DIM; i++) parts[i] = (int)(mixed(i) % 64) - 32;
    for (uint32_t i = 0; i < t.n_slots; i++)
        for (uint32_t d = 0; d < DIM; d++)
            want[i / N_USED * DIM + d] += (double)t.p[i] * parts[t.slot_of[i] * DIM + d];
    experts_workspace w = put_workspace(c, &t, true, true);
    experts_args a = {.inner = inner,
                      .n_used = N_USED,
                      .parts = check_put_values(c, inner, parts, ROWS * N_USED * DIM),
                      .parts_type = inner,
                      .parts_stride = DIM,
                      .down.first = {.rows = DIM},
                      .out = check_room(c, ROWS * DIM * 4),
                      .out_type = CU_F32,
                      .out_stride = DIM,
                      .rows = ROWS};
    if (!check_ready(c)) return;
    launch_experts_sum(&c->l, &w, &a);
    if (!check_run(c)) return;
    check_get_values(c, CU_F32, got, a.out, ROWS * DIM);
    check_values(c, "out", got, want, ROWS * DIM, DIM, 0, 0);
    check_end(c);
}

/* ---- products ---- */

/* The matrices of all experts side by side. */
static experts_matrices put_matrices(check *c, uint32_t format, uint32_t cols, uint32_t seed,
                                     double *values) {
    const dtype type = check_types[format];
    experts_matrices m = {.step = format_bytes(type, FEATURES, cols)};
    unsigned char *all = check_room(c, N_EXPERTS * m.step);
    if (!check_ready(c)) return m;
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        cu_matrix one =
            check_matrix(c, type, FEATURES, cols, seed + e, values + (size_t)e * FEATURES * cols);
        const void *from = one.data != NULL ? one.data : one.low;
        if (!check_ready(c)) return m;
        c->api->copy_on_device(all + e * m.step, from, m.step, c->l.stream);
    }
    m.first = format_matrix(type, FEATURES, cols, all);
    return m;
}

static double dot(const double *x, const double *w, uint32_t n) {
    double sum = 0;
    for (uint32_t k = 0; k < n; k++) sum += x[k] * w[k];
    return sum;
}

/* `rows` chooses the kernel.  Plain: hidden to parts; gated: x to hidden. */
static void multiply(check *c, uint32_t format, cu_type inner, uint32_t rows, bool gated) {
    static routing t;
    uint32_t cols = cols_of(format), n_x = rows * (gated ? 1 : N_USED);
    if (!check_begin(c, "experts_%s_%s %u rows%s", check_format_names[format], type_name(inner),
                     rows, gated ? " gated" : ""))
        return;
    route_rows(&t, rows);
    double *w[2] = {numbers((size_t)N_EXPERTS * FEATURES * cols),
                    numbers((size_t)N_EXPERTS * FEATURES * cols)};
    double *x = numbers((size_t)n_x * cols), *lanes = numbers((size_t)n_x * cols);
    double *want = numbers((size_t)t.n_slots * FEATURES),
           *got = numbers((size_t)t.n_slots * FEATURES);
    for (uint32_t i = 0; i < n_x * cols; i++) {
        x[i] = ((int)(mixed(i) % 17) - 8) / 4.0;
        uint32_t to = format <= CU_FMT_F16 ? i % cols : lanes_place(i % cols);
        lanes[i / cols * cols + to] = x[i];
    }
    experts_workspace work = put_workspace(c, &t, true, true);
    void *source = check_put_values(c, inner, lanes, (size_t)n_x * cols);
    void *out = check_room(c, (size_t)t.n_slots * FEATURES * 4);
    experts_args a = {.x = source,
                      .inner = inner,
                      .x_stride = cols,
                      .act = GLU_CLAMPED_SWIGLU,
                      .n_experts = N_EXPERTS,
                      .n_used = N_USED,
                      .hidden = gated ? out : source,
                      .hidden_stride = gated ? FEATURES : cols,
                      .parts = gated ? source : out,
                      .parts_type = CU_F32,
                      .parts_stride = FEATURES,
                      .rows = rows};
    experts_matrices m = put_matrices(c, format, cols, 50, w[0]);
    if (gated) a.up = put_matrices(c, format, cols, 60, w[1]);
    if (gated) a.gate = m;
    if (!gated) a.down = m;
    for (uint32_t r = 0; r < t.state.n_runs; r++)
        for (uint32_t i = 0; i < t.state.runs[r].n * FEATURES; i++) {
            uint32_t slot = t.state.runs[r].first + i / FEATURES, f = i % FEATURES;
            const double *of = x + (size_t)(gated ? t.row_of[slot] : slot) * cols;
            size_t at = ((size_t)t.state.runs[r].expert * FEATURES + f) * cols;
            double v = dot(of, w[0] + at, cols);
            if (gated) {
                double g = fmin(v, 7), u = fmax(fmin(dot(of, w[1] + at, cols), 7), -7);
                v = g / (1 + exp(-1.702 * g)) * (u + 1);
            }
            want[slot * FEATURES + f] = v;
        }
    if (check_ready(c)) {
        if (gated)
            launch_experts_hidden(&c->l, &work, &a);
        else
            launch_experts_down(&c->l, &work, &a);
        if (check_run(c)) {
            cu_type type = gated ? inner : CU_F32;
            check_get_values(c, type, got, out, (size_t)t.n_slots * FEATURES);
            double bound = gated ? 1e-5 + 2 * type_rounding(type) : 0;
            check_values(c, "out", got, want, (size_t)t.n_slots * FEATURES, FEATURES, bound,
                         gated ? 1e-5 : 0);
            check_end(c);
        }
    }
    free(w[0]);
    free(w[1]);
    free(x);
    free(lanes);
    free(want);
    free(got);
}

void selftest_experts(check *c) {
    inferd_err err = {0};
    if (!check_begin(c, "experts")) return;
    if (experts_init(c->l.module, &c->device, &err) != INFERD_OK) {
        check_fail(c, "", err.text);
        return;
    }
    check_route(c);
    check_sort(c);
    for (cu_type inner = CU_BF16; inner <= CU_F16; inner++) {
        check_sum(c, inner);
        for (uint32_t f = 0; f < CU_FORMATS; f++) {
            multiply(c, f, inner, 5, false);
            multiply(c, f, inner, 20, true);
            multiply(c, f, inner, ROWS_MAX, false);
        }
    }
}
