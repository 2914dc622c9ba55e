/* bench_stage.c - the speed of preparing weights: rows as in a file -> panels of the CPU backend,
 * compared with the copy rate of the same threads in the same run.
 *
 *     bench_stage [--threads N] [TYPE ...]  N: as many as the process may use
 *
 *     copy     memcpy of the pieces to the memory of the panels: bytes read and bytes written
 *     cold     rows that no cache holds -> panels
 *     pread    a file in the page cache -> pieces; each piece is reused
 *     cached   rows that `pread` has just read into a piece, as in a stage -> panels
 *     both     pread, then cached: the work of a stage
 *
 * Rates are 10^9 bytes per second, read and written together (`pread` and `both`: bytes of the
 * file), the median over pieces of all memory; `share` is cold as a share of copy.  A sample is one
 * piece on each thread, and samples of the columns alternate, so that other processes on the
 * machine affect all columns equally.  Each sample is of other pieces than the one before, which
 * caches still hold. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/level.h"
#include "cpu/panel.h"
#include "inferd/clock.h"

enum {
    COLS = 1536,
    PANELS = 8, // of a piece: for most types they fit in L2
    SAMPLES = 400,
    HUGE = 2 << 20
};
#define MEMORY_BYTES ((size_t)256 << 20) // for each side: no cache holds it

static const dtype types[] = {DTYPE_Q4_0,  DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,
                              DTYPE_Q8_0,  DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,
                              DTYPE_Q2_K,  DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS,
                              DTYPE_MXFP4, DTYPE_F16,  DTYPE_BF16,   DTYPE_F32};

typedef enum how { COPY, COLD, PREAD, CACHED, BOTH, HOWS } how; // CACHED uses the piece of PREAD

typedef struct job {
    how how;
    dtype type;
    panel_pack_fn *pack;
    const unsigned char *from;      // MEMORY_BYTES
    unsigned char *to, *piece;      // MEMORY_BYTES; a piece for each thread
    int fd;                         // has the same contents as `from`
    size_t rows_bytes, panel_bytes; // of a panel
    size_t sample, n_places;        // pieces of all memory
    bool failed;
} job;

static void read_piece(job *j, unsigned char *out, size_t n, size_t at) {
    if (pread(j->fd, out, n, (off_t)at) != (ssize_t)n) j->failed = true;
}

static void work(void *ctx, uint32_t rank, uint32_t n_ranks) {
    job *j = ctx;
    size_t turn = j->sample * HOWS + j->how, n = PANELS * j->rows_bytes;
    size_t place = (turn * n_ranks + rank) % j->n_places;
    const unsigned char *from = j->from + place * n;
    unsigned char *to = j->to + place * PANELS * j->panel_bytes, *piece = j->piece + rank * n;
    if (j->how == COPY) memcpy(to, from, n);
    if (j->how == PREAD || j->how == BOTH) read_piece(j, piece, n, place * n);
    if (j->how == COPY || j->how == PREAD) return;
    for (size_t i = 0; i < PANELS; i++)
        j->pack(j->type, COLS, (j->how == COLD ? from : piece) + i * j->rows_bytes, PANEL_ROWS,
                to + i * j->panel_bytes);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void bench_type(tpool *p, job *j, dtype type) {
    static double seconds[HOWS][SAMPLES];
    double rate[HOWS];
    dtype_info info = dtype_about(type);
    j->type = type;
    j->rows_bytes = (size_t)COLS / info.block_elems * info.block_bytes * PANEL_ROWS;
    j->panel_bytes = panel_bytes(type, COLS);
    j->n_places = MEMORY_BYTES / (PANELS * j->panel_bytes); // panels are no smaller than rows
    for (j->sample = 0; j->sample < SAMPLES; j->sample++) {
        for (j->how = 0; j->how < HOWS; j->how++) {
            double began = now_s();
            tpool_run(p, work, j);
            seconds[j->how][j->sample] = now_s() - began;
        }
    }
    for (int h = 0; h < HOWS; h++) {
        double file = (double)PANELS * (double)j->rows_bytes * tpool_n_threads(p);
        double panels = (double)PANELS * (double)j->panel_bytes * tpool_n_threads(p);
        double n_bytes = h == COPY ? 2 * file : h == PREAD || h == BOTH ? file : file + panels;
        qsort(seconds[h], SAMPLES, sizeof seconds[h][0], by_value);
        rate[h] = n_bytes * 1e-9 / seconds[h][SAMPLES / 2];
    }
    printf("%-6s %8u %8.2f %8.2f %8.2f %8.2f %8.2f %7.0f%%\n", info.name, tpool_n_threads(p),
           rate[COPY], rate[COLD], rate[PREAD], rate[CACHED], rate[BOTH],
           100 * rate[COLD] / rate[COPY]);
    fflush(stdout);
}

static unsigned char *take_memory(size_t n_bytes) {
    unsigned char *p = aligned_alloc(HUGE, (n_bytes + HUGE - 1) / HUGE * HUGE);
    INFERD_CHECK(p != NULL);
    madvise(p, n_bytes, MADV_HUGEPAGE);
    memset(p, 1, n_bytes);
    return p;
}

/* An unlinked file with the contents of `from`: its pages are in the page cache. */
static int take_file(const unsigned char *from) {
    char path[] = "/tmp/bench_stage.XXXXXX";
    int fd = mkstemp(path);
    INFERD_CHECK(fd >= 0);
    unlink(path);
    for (size_t at = 0; at < MEMORY_BYTES;) {
        ssize_t n = write(fd, from + at, MEMORY_BYTES - at);
        INFERD_CHECK(n > 0);
        at += (size_t)n;
    }
    return fd;
}

static bool want_type(const char *name, bool *wanted) {
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        if (strcmp(name, dtype_about(types[i]).name) != 0) continue;
        wanted[i] = true;
        return true;
    }
    fprintf(stderr, "TYPE is \"%s\", expected one of", name);
    for (size_t i = 0; i < INFERD_COUNT(types); i++)
        fprintf(stderr, " %s", dtype_about(types[i]).name);
    fprintf(stderr, "\n");
    return false;
}

/* `wanted`: by index in `types`. */
static bool bench_threads(job *j, uint32_t n_threads, const bool *wanted) {
    tpool *p;
    inferd_err err = {0};
    if (tpool_open(n_threads, &p, &err) != INFERD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    tpool_pin_caller(p);
    j->piece = take_memory((size_t)PANELS * PANEL_ROWS * COLS * sizeof(float) * tpool_n_threads(p));
    for (size_t i = 0; i < INFERD_COUNT(types); i++)
        if (wanted[i]) bench_type(p, j, types[i]);
    free(j->piece);
    tpool_close(p);
    return true;
}

int main(int argc, char **argv) {
    uint32_t n_threads = 0;
    bool wanted[INFERD_COUNT(types)] = {0}, is_any = false;
    inferd_err err = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (want_type(argv[i], wanted))
            is_any = true;
        else
            return 2;
    }
    for (size_t i = 0; i < INFERD_COUNT(types) && !is_any; i++) wanted[i] = true;
    const cpu_level *level = level_choose(getenv("INFERD_CPU"), &err);
    if (level == NULL) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    job j = {.pack = level->pack};
    unsigned char *from = take_memory(MEMORY_BYTES);
    for (size_t i = 0; i < MEMORY_BYTES; i++) from[i] = (unsigned char)(i * 2654435761u >> 13);
    j.from = from;
    j.to = take_memory(MEMORY_BYTES);
    j.fd = take_file(from);
    printf("%s\n%-6s %8s %8s %8s %8s %8s %8s %8s\n", level->name, "type", "threads", "copy", "cold",
           "pread", "cached", "both", "share");
    bool done = bench_threads(&j, 1, wanted);
    if (n_threads != 1) done = done && bench_threads(&j, n_threads, wanted);
    close(j.fd);
    free(from);
    free(j.to);
    return done && !j.failed ? 0 : 1;
}
