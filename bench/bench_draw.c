/* bench_draw.c - drawing tokens from logits on the device (see gpu.h for timing).
 *
 * `bytes` is the size of the logits of all rows, which one pass reads.  The number of passes is not
 * printed, because it needs the maximum memory rate: passes = time * rate / bytes. */
#include <string.h>

#include "cuda/draw.h"
#include "gpu.h"

typedef struct mode {
    const char *name;
    sample_params params;
    int32_t n_top;
    uint32_t n_history;
} mode;

static const mode modes[] = {
    {"greedy", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}, -1, 0},
    {"temperature", {.temperature = 0.8f, .top_p = 1, .repetition_penalty = 1, .seed = 1}, -1, 0},
    {"top-k 50",
     {.temperature = 0.8f, .top_p = 1, .top_k = 50, .repetition_penalty = 1, .seed = 1},
     -1,
     0},
    {"top-p 0.9", {.temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1, .seed = 1}, -1, 0},
    {"min-p 0.05",
     {.temperature = 0.8f, .top_p = 1, .min_p = 0.05f, .repetition_penalty = 1, .seed = 1},
     -1,
     0},
    {"all, penalties",
     {.temperature = 0.8f,
      .top_p = 0.9f,
      .min_p = 0.05f,
      .top_k = 50,
      .repetition_penalty = 1.1f,
      .presence_penalty = 0.3f,
      .frequency_penalty = 0.3f,
      .seed = 1},
     -1,
     1000},
    {"20 logprobs", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}, 20, 0},
};

static void queue(gpu *g, void *ctx, uint32_t i) {
    (void)i;
    launch_draw(&g->l, ctx);
}

/* The plan of n rows in device memory. */
static void *make_plan(gpu *g, const mode *m, uint32_t n, uint32_t n_vocab) {
    inferd_err err = {0};
    size_t n_bytes = draw_plan_bytes(n) + (size_t)n * m->n_history * sizeof(draw_seen) + 4096;
    sample_row *rows = calloc(n, sizeof *rows);
    tok_id *history = calloc(m->n_history + 1, sizeof *history),
           *tokens = calloc(n, sizeof *tokens);
    uint32_t *zeros = calloc(n, sizeof *zeros);
    void *scratch = calloc(1, draw_scratch_bytes(n_vocab)), *host = calloc(1, n_bytes);
    if (!rows || !history || !tokens || !zeros || !scratch || !host)
        gpu_die("no memory for %u draws", n);
    for (uint32_t i = 0; i < m->n_history; i++) history[i] = (tok_id)(i * 7919 % n_vocab);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (sample_row){.params = &m->params,
                               .tokens = history,
                               .n_prompt = m->n_history / 2,
                               .n_tokens = m->n_history,
                               .forced = -1,
                               .n_top = m->n_top};
    batch b = {.n_rows = n, .n_logits = n, .tokens = tokens, .pending = zeros, .logit_rows = zeros};
    draw_plan plan = {.host = host, .bytes_max = n_bytes};
    gpu_need_status(draw_plan_build(&plan, rows, &b, n_vocab, scratch, &err), &err);
    void *p = gpu_put(g, host, plan.bytes);
    free(rows);
    free(history);
    free(tokens);
    free(zeros);
    free(scratch);
    free(host);
    return p;
}

static void draw_case(gpu *g, const mode *m, uint32_t n_vocab, uint32_t n, const char *logits_name,
                      draw_args a) {
    void *plan = make_plan(g, m, n, n_vocab);
    a.plan = plan;
    a.rows = a.rows_max = n;
    a.n_vocab = n_vocab;
    a.scratch = gpu_take_zeros(g, draw_workspace_bytes(n, n_vocab));
    gpu_time t = gpu_measure(g, queue, &a, 1);
    row_begin("draw");
    row_text("mode", m->name);
    row_count("vocabulary", n_vocab);
    row_count("rows", n);
    row_text("logits", logits_name);
    row_time(&t);
    row_rate(&t, 4.0 * n * n_vocab, 0);
    row_end();
    gpu_give(g, a.scratch);
    gpu_give(g, plan);
}

void bench_draw(gpu *g) {
    static const uint32_t vocabs[] = {32000, 128256, 151936, 262208}, rows[] = {1, 32, 256};
    static const struct {
        const char *name;
        float scale;
    } kinds[] = {{"flat", 0.5f}, {"peaked", 5}};
    inferd_err err = {0};
    gpu_need_status(draw_init(g->module, &g->device, &err), &err);
    uint32_t n_max = g->tiny ? 2 : 256, v_max = g->tiny ? 500 : 262208,
             noise = g->tiny ? 500 : 4 << 20;
    draw_args a = {.stride = (v_max + 7) / 8 * 8};
    size_t n_logits = (size_t)n_max * a.stride;
    float *logits = gpu_take(g, n_logits * 4);
    a.logits = logits;
    a.changed = gpu_take(g, n_logits * 4);
    a.drawn = gpu_take_zeros(g, n_max * sizeof *a.drawn);
    a.drawn_before = a.drawn;
    a.results = gpu_take(g, n_max * sizeof *a.results);
    for (size_t k = 0; k < INFERD_COUNT(kinds); k++) {
        float *some = gpu_normals(g, CU_F32, noise, kinds[k].scale, 21);
        for (size_t at = 0; at < n_logits; at += noise)
            gpu_need(g,
                     g->api->copy_on_device(logits + at, some, size_min(noise, n_logits - at) * 4,
                                            g->l.stream),
                     "copying logits");
        gpu_give(g, some);
        for (size_t v = 0; v < (g->tiny ? 1 : INFERD_COUNT(vocabs)); v++)
            for (size_t r = 0; r < (g->tiny ? 1 : INFERD_COUNT(rows)); r++)
                for (size_t m = 0; m < INFERD_COUNT(modes); m++)
                    draw_case(g, &modes[m], g->tiny ? v_max : vocabs[v], g->tiny ? n_max : rows[r],
                              kinds[k].name, a);
    }
    gpu_give(g, logits);
    gpu_give(g, a.changed);
    gpu_give(g, a.drawn);
    gpu_give(g, a.results);
}
