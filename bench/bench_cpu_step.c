/* bench_cpu_step.c - whole steps of a model on the CPU backend, and the time of their phases.
 *
 *     bench_cpu_step MODEL [exact]
 *
 * MODEL is a GGUF file or dummy:SHAPE (docs/configuration.md).  Each case is measured twice: plain,
 * and with the time of every phase (phases.h); the sum of the phases is compared with the time of
 * the step.  Bytes are the weights that a step reads, counted once; DRAM is the rate at which all
 * threads together read memory with prefetching, measured at the start.  Times are medians.
 * INFERD_CPU and `taskset` choose the level and the CPUs.  Sampling and HTTP are not included. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu_roofs.h"
#include "inferd/clock.h"
#include "models/model.h"

enum { ROWS_MAX = 512, SEQS_MAX = 64, RUNS_MAX = 400, RUN_US = 700000, DRAM_BYTES = 512 << 20 };

typedef struct rig {
    backend *be;
    model *m;
    bound_model *p;
    uint32_t *pages, n_pages;
    tok_id tokens[ROWS_MAX];
    uint32_t pending[ROWS_MAX], positions[ROWS_MAX], row_seq[ROWS_MAX], logit_rows[SEQS_MAX];
    batch_seq seqs[SEQS_MAX];
} rig;

static void need(inferd_status s, const inferd_err *err) {
    if (s == INFERD_OK) return;
    fprintf(stderr, "bench_cpu_step: %s\n", err->text);
    exit(1);
}

static void rig_open(rig *r, const char *path, bool exact, bool profile) {
    inferd_err err = {0};
    memset(r, 0, sizeof *r);
    need(model_open(&(model_options){.path = path, .allow_dummy = true}, &r->m, &err), &err);
    uint64_t memory = 2 * model_about(r->m)->file_bytes + ((uint64_t)3 << 30);
    need(backend_open(
             &(backend_options){
                 .kind = "cpu", .memory_bytes = memory, .exact_math = exact, .profile = profile},
             &r->be, &err),
         &err);
    model_limits limits = {.rows_max = ROWS_MAX, .logits_max = SEQS_MAX, .kv = KV_AUTO};
    need(bound_open(r->m, r->be, &limits, &r->p, &err), &err);
    r->n_pages = bound_weight_pages(r->p);
    r->pages = malloc(r->n_pages * sizeof *r->pages);
    INFERD_CHECK(r->pages != NULL);
    for (uint32_t i = 0; i < r->n_pages; i++) r->pages[i] = i;
    need(bound_bring_up(r->p, r->pages, r->n_pages, &err), &err);
}

static void rig_close(rig *r) {
    bound_close(r->p);
    model_close(r->m);
    backend_close(r->be);
    free(r->pages);
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Median microseconds of a step in which n_seqs sequences with `stored` positions compute n_rows
 * more each; also the mean. */
static double step_us(rig *r, uint32_t n_seqs, uint32_t n_rows, uint32_t stored, double *mean_us) {
    const kv_layout *kv = bound_kv(r->p);
    uint32_t n_blocks = kv_blocks_of(kv, stored + n_rows);
    size_t n_slots = (size_t)n_seqs * n_blocks * kv->n_groups;
    int32_t *slots = malloc(n_slots * sizeof *slots);
    INFERD_CHECK(slots != NULL && n_seqs * n_rows <= ROWS_MAX && n_seqs <= SEQS_MAX);
    /* Blocks of the sequences alternate, as they do when all sequences grow. */
    for (uint32_t s = 0; s < n_seqs; s++)
        for (uint32_t i = 0; i < n_blocks * kv->n_groups; i++)
            slots[(size_t)s * n_blocks * kv->n_groups + i] =
                (int32_t)(r->n_pages * kv->slots_per_page + i * n_seqs + s);
    batch b = {.n_rows = n_seqs * n_rows,
               .n_seqs = n_seqs,
               .n_logits = n_seqs,
               .tokens = r->tokens,
               .pending = r->pending,
               .positions = r->positions,
               .row_seq = r->row_seq,
               .seqs = r->seqs,
               .logit_rows = r->logit_rows};
    for (uint32_t s = 0; s < n_seqs; s++) {
        r->seqs[s] = (batch_seq){s * n_rows, n_rows, stored, n_blocks,
                                 slots + (size_t)s * n_blocks * kv->n_groups};
        r->logit_rows[s] = (s + 1) * n_rows - 1;
        for (uint32_t i = 0; i < n_rows; i++) {
            uint32_t row = s * n_rows + i;
            r->tokens[row] = (tok_id)(1 + (row * 7919 + stored) % (model_about(r->m)->n_vocab - 1));
            r->positions[row] = stored + i;
            r->row_seq[row] = s;
        }
    }
    static uint64_t us[RUNS_MAX];
    uint64_t all_us = 0;
    uint32_t n_runs = 0;
    for (int i = -2; n_runs < 5 || (all_us < RUN_US && n_runs < RUNS_MAX); i++) { // two warm-ups
        inferd_err err = {0};
        be_step_result result;
        uint64_t began = clock_now_us();
        bound_launch(r->p, &b, NULL, model_about(r->m)->n_vocab);
        need(be_step_finish(r->be, &result, &err), &err);
        uint64_t took = clock_now_us() - began;
        if (i < 0) continue;
        us[n_runs++] = took;
        all_us += took;
    }
    qsort(us, n_runs, sizeof *us, ascending);
    free(slots);
    *mean_us = (double)all_us / n_runs;
    return (double)us[n_runs / 2];
}

static double dram_bytes_per_us(void) {
    inferd_err err = {0};
    tpool *threads;
    unsigned char *memory = aligned_alloc(2 << 20, DRAM_BYTES);
    INFERD_CHECK(memory != NULL);
    madvise(memory, DRAM_BYTES, MADV_HUGEPAGE);
    memset(memory, 1, DRAM_BYTES);
    need(tpool_open(0, &threads, &err), &err);
    double rate = roof_read(threads, memory, DRAM_BYTES);
    tpool_close(threads);
    free(memory);
    return rate * 1e-6;
}

/* ---- cases ---- */

static const struct {
    const char *name;
    uint32_t n_seqs, n_rows, stored;
} cases[] = {
    {"1 stream at 128", 1, 1, 128},      {"1 stream at 1024", 1, 1, 1024},
    {"2 streams at 128", 2, 1, 128},     {"4 streams at 128", 4, 1, 128},
    {"8 streams at 128", 8, 1, 128},     {"32 streams at 128", 32, 1, 128},
    {"32 streams at 1024", 32, 1, 1024}, {"prompt of 32", 1, 32, 0},
    {"prompt of 128", 1, 128, 0},        {"prompt of 256", 1, 256, 0},
};

int main(int argc, char **argv) {
    static rig plain, profiled;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_cpu_step MODEL [exact]\n");
        return 2;
    }
    bool exact = argc > 2 && strcmp(argv[2], "exact") == 0;
    rig_open(&plain, argv[1], exact, false);
    rig_open(&profiled, argv[1], exact, true);
    char math[256];
    bound_describe_math(plain.p, math, sizeof math);
    double dram = dram_bytes_per_us();
    double step_bytes = (double)bound_step_bytes(plain.p);
    printf("%s: %s, %u threads; %s\n", argv[1], be_name(plain.be), be_n_threads(plain.be), math);
    printf("weights %.1f MB, DRAM %.1f GB/s: at most %.0f steps/s of few rows\n\n",
           step_bytes * 1e-6, dram * 1e-3, dram * 1e6 / step_bytes);
    printf("| case | ms | tokens/s | DRAM | parts, %% of the step | sum "
           "|\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < INFERD_COUNT(cases); i++) {
        be_part before[BE_PARTS_MAX], after[BE_PARTS_MAX];
        double mean, part_mean;
        double us = step_us(&plain, cases[i].n_seqs, cases[i].n_rows, cases[i].stored, &mean);
        /* Run once before, so that the warm-up is not counted. */
        step_us(&profiled, cases[i].n_seqs, cases[i].n_rows, cases[i].stored, &part_mean);
        uint32_t n = be_get_profile(profiled.be, before);
        uint64_t began = clock_now_us();
        step_us(&profiled, cases[i].n_seqs, cases[i].n_rows, cases[i].stored, &part_mean);
        double total = (double)(clock_now_us() - began), sum = 0;
        be_get_profile(profiled.be, after);
        printf("| %s | %.2f | %.0f | %.0f %% |", cases[i].name, us * 1e-3,
               cases[i].n_seqs * cases[i].n_rows * 1e6 / us, 100 * step_bytes / us / dram);
        for (uint32_t k = 0; k < n; k++) sum += (double)(after[k].ns - before[k].ns) * 1e-3;
        for (uint32_t k = 0; k < n; k++)
            printf(" %s %.1f%s", after[k].name, (double)(after[k].ns - before[k].ns) * 1e-1 / sum,
                   k + 1 < n ? "," : "");
        printf(" | %.1f %% |\n", 100 * sum / total);
        fflush(stdout);
    }
    rig_close(&plain);
    rig_close(&profiled);
    return 0;
}
