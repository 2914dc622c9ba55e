/* bench_cold.c - a model's weights from the file into prepared pages, end to end, and its parts.
 *
 *     bench_cold [--threads N] [--rounds N] [--packed [--direct]] MODEL.gguf
 *
 *     copy     memcpy of as many bytes as the file's weights, by all threads
 *     into     the same part of the file read into memory, by all threads: nothing is prepared
 *     read     the same, each thread into one small buffer
 *     cold     the stage (models/stage.h): COLD to WARM, with pages that were touched before
 *
 * Bytes are those of the file, once; with --packed those of the packed file beside the model
 * (`inferd pack`), which is then read and not prepared.  Rates are 10^9 bytes read and written per
 * second: `cold` reads the file's bytes and writes those of the pages, and its share is of `copy`.
 * `÷ into` is the time of `cold` ÷ that of `into`.  Each round measures all in turn, so that other
 * processes affect all equally; figures are medians of rounds.  Files are in the page cache; with
 * --direct the packed file is not: it leaves the cache before `cold`, and `into` reads past the
 * cache, as the stage does then, in one thread. */
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "models/model.h"

enum {
    ROUNDS = 40,
    ROUNDS_MAX = 1000,
    INTO_BYTES = 1 << 20, // by one call
    DIRECT_BYTES = 4 << 20,
    READ_BYTES = 96 << 10,
    BUDGET_US = 40000, // of a piece, as the engine's when nothing else runs
    SPARE_MIB = 128,   // beside the weights
    HUGE = 2 << 20
};

typedef enum how { COPY, INTO, READ, COLD, HOWS } how;
static const char *const names[HOWS] = {"copy", "into", "read", "cold"};

typedef struct rig {
    backend *be;
    model *m;
    bound_model *p;
    uint32_t *pages, n_pages;
    int fd, direct_fd;    // -1: none
    size_t n_bytes, part; // of the file; of one call
    unsigned char *from, *to;
    sem_t woken;
    how how;
    bool failed;
} rig;

static void need(inferd_status s, const inferd_err *err) {
    if (s == INFERD_OK) return;
    fprintf(stderr, "bench_cold: %s\n", err->text);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static unsigned char *take_memory(size_t n_bytes) {
    unsigned char *p = aligned_alloc(HUGE, (n_bytes + HUGE - 1) / HUGE * HUGE);
    INFERD_CHECK(p != NULL);
    madvise(p, n_bytes, MADV_HUGEPAGE);
    memset(p, 1, n_bytes);
    return p;
}

static void open_rig(rig *r, const char *path, const char *packed, uint32_t n_threads) {
    inferd_err err = {0};
    struct stat info;
    need(model_open(&(model_options){.path = path}, &r->m, &err), &err);
    uint64_t memory = model_about(r->m)->file_bytes * 5 / 4 + ((uint64_t)SPARE_MIB << 20);
    need(backend_open(
             &(backend_options){.kind = "cpu", .n_threads = n_threads, .memory_bytes = memory},
             &r->be, &err),
         &err);
    model_limits limits = {.rows_max = 32, .logits_max = 1, .kv = KV_AUTO};
    need(bound_open(r->m, r->be, &limits, &r->p, &err), &err);
    r->n_pages = bound_weight_pages(r->p);
    r->pages = malloc(r->n_pages * sizeof *r->pages);
    INFERD_CHECK(r->pages != NULL);
    for (uint32_t i = 0; i < r->n_pages; i++) r->pages[i] = i;
    /* All of them: a thread that touches one delays the moving of others into a window. */
    for (uint32_t i = 0; i < be_n_pages(r->be); i++) be_page_touch(r->be, i);
    r->fd = open(packed != NULL ? packed : path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0 || fstat(r->fd, &info) != 0) {
        perror(packed != NULL ? packed : path);
        exit(1);
    }
    r->n_bytes = packed != NULL ? (size_t)info.st_size : bound_stage_bytes(r->p);
    r->from = take_memory(r->n_bytes);
    r->to = take_memory(r->n_bytes);
    sem_init(&r->woken, 0, 0);
}

static void close_rig(rig *r) {
    bound_close(r->p);
    model_close(r->m);
    backend_close(r->be);
    close(r->fd);
    if (r->direct_fd >= 0) close(r->direct_fd);
    free(r->pages);
    free(r->from);
    free(r->to);
    sem_destroy(&r->woken);
}

static void work(void *ctx, uint32_t i) {
    static _Thread_local unsigned char buffer[READ_BYTES];
    rig *r = ctx;
    size_t at = i * r->part, n = size_min(r->part, r->n_bytes - at);
    if (r->how == COPY)
        memcpy(r->to + at, r->from + at, n);
    else if (pread(r->fd, r->how == INTO ? r->to + at : buffer, n, (off_t)at) != (ssize_t)n)
        r->failed = true;
}

static void read_direct(rig *r) {
    for (size_t at = 0; at < r->n_bytes; at += DIRECT_BYTES) {
        size_t n = size_min(DIRECT_BYTES, r->n_bytes - at);
        if (pread(r->direct_fd, r->to + at, n, (off_t)at) != (ssize_t)n) r->failed = true;
    }
}

static void wake(void *ctx) {
    sem_post(ctx);
}

static double measure(rig *r, how what) {
    inferd_err err = {0};
    r->how = what;
    r->part = what == READ ? READ_BYTES : INTO_BYTES;
    if (what == COLD && r->direct_fd >= 0) posix_fadvise(r->fd, 0, 0, POSIX_FADV_DONTNEED);
    double began = now_s();
    if (what == INTO && r->direct_fd >= 0) {
        read_direct(r);
        return now_s() - began;
    }
    if (what != COLD) {
        be_parallel(r->be, (uint32_t)((r->n_bytes + r->part - 1) / r->part), work, r);
        return now_s() - began;
    }
    bound_progress at = {0};
    need(bound_stage_begin(r->p, r->pages, r->n_pages, wake, &r->woken, &err), &err);
    while (!at.finished) {
        need(bound_stage_step(r->p, BUDGET_US, &at, &err), &err);
        while (at.waiting && sem_wait(&r->woken) != 0) {
        }
    }
    double took = now_s() - began;
    bound_unstage(r->p);
    return took;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static double seconds[HOWS][ROUNDS_MAX];
    uint32_t n_threads = 0, n_rounds = ROUNDS;
    bool is_packed = false, is_direct = false;
    const char *path = NULL;
    char packed[4096];
    rig r = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            n_rounds = u32_min((uint32_t)strtoul(argv[++i], NULL, 10), ROUNDS_MAX);
        else if (strcmp(argv[i], "--packed") == 0)
            is_packed = true;
        else if (strcmp(argv[i], "--direct") == 0)
            is_direct = true;
        else
            path = argv[i];
    }
    if (path == NULL || n_rounds == 0 || (is_direct && !is_packed)) {
        fprintf(stderr, "usage: bench_cold [--threads N] [--rounds N] [--packed [--direct]] "
                        "MODEL.gguf\n");
        return 2;
    }
    snprintf(packed, sizeof packed, "%s.inferd-cpu-panels-1", path);
    open_rig(&r, path, is_packed ? packed : NULL, n_threads);
    r.direct_fd = is_direct ? open(packed, O_RDONLY | O_CLOEXEC | O_DIRECT) : -1;
    r.failed = is_direct && r.direct_fd < 0;
    for (uint32_t i = 0; i < n_rounds; i++)
        for (how h = 0; h < HOWS; h++) {
            nap();
            seconds[h][i] = measure(&r, h);
        }
    printf("%s, %u threads, %.1f MB of the file, %u pages, %u rounds%s%s\n",
           model_about(r.m)->weights, be_n_threads(r.be), (double)r.n_bytes * 1e-6, r.n_pages,
           n_rounds, bound_stage_note(r.p)[0] != 0 ? ", " : "", bound_stage_note(r.p));
    double rate[HOWS], median[HOWS];
    for (how h = 0; h < HOWS; h++) {
        qsort(seconds[h], n_rounds, sizeof seconds[h][0], by_value);
        median[h] = seconds[h][n_rounds / 2];
        double n = h == COLD && !is_packed ? (double)r.n_bytes + (double)r.n_pages * HUGE
                                           : 2 * (double)r.n_bytes;
        rate[h] = n * 1e-9 / median[h];
        printf("%-5s %8.2f ms (least %.2f, p90 %.2f) %8.2f GB/s\n", names[h], median[h] * 1e3,
               seconds[h][0] * 1e3, seconds[h][n_rounds * 9 / 10] * 1e3, rate[h]);
    }
    printf("cold ÷ copy: %.0f %%; time ÷ into: %.2f; of the least times %.0f %%, %.2f\n",
           100 * rate[COLD] / rate[COPY], median[COLD] / median[INTO],
           100 * rate[COLD] * median[COLD] / seconds[COLD][0] /
               (rate[COPY] * median[COPY] / seconds[COPY][0]),
           seconds[COLD][0] / seconds[INTO][0]);
    close_rig(&r);
    return r.failed ? 1 : 0;
}
