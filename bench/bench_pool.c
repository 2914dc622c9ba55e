/* bench_pool.c - the cost of taking a page from the pool and giving it back.
 *
 *     bench_pool [--json] [--pages N] [--owners N]
 *
 * Tests scheduler/memory/pool.c alone, at the size of a device of 80 GB (40,960 pages of 2 MiB)
 * with 64 models that have guarantees.  A round takes BATCH pages one by one, cycling through the
 * models, gives them back in a random order with the fence of the unfinished step, and ends that
 * step, as the engine does.  The clock is read around BATCH calls, because reading it takes as long
 * as one call.  Before and between rounds random pages are exchanged, so that the lists are in the
 * order they have after long use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"
#include "rng.h"
#include "share_table.h"

enum {
    PAGES = 40960,
    OWNERS = 64,
    BATCH = 256,
    ROUNDS = 4000,
    EXTENT_GPU = 16, // pages of a handle of 32 MiB
    HELD_PERCENT = 80,
    MIXES_PER_ROUND = 64
};

typedef struct bench {
    pool p;
    uint32_t *held; // [n_held] owned; pages held during all rounds
    uint32_t n_held;
    rng random;
    samples take, give, finish; // ns per page
} bench;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void shuffle(uint32_t *v, uint32_t n, rng *r) {
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)rng_below(r, i), x = v[i - 1];
        v[i - 1] = v[k];
        v[k] = x;
    }
}

/* Gives back random held pages and takes other pages instead. */
static void mix(bench *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = (uint32_t)rng_below(&b->random, b->n_held);
        uint32_t owner = b->p.pages[b->held[k]].owner;
        pool_give(&b->p, b->held[k], 0);
        b->held[k] = pool_take(&b->p, owner, PAGE_KV);
        INFERD_CHECK(b->held[k] != PAGE_NONE);
    }
}

static inferd_status open_bench(bench *b, uint32_t n_pages, uint32_t n_owners,
                                uint32_t extent_pages, inferd_err *err) {
    *b = (bench){.random = rng_make(1, n_pages, extent_pages)};
    inferd_status s = pool_init_extents(&b->p, n_pages, n_pages, extent_pages, n_owners, err);
    for (uint32_t i = 0; s == INFERD_OK && i < n_owners; i++) // guarantees of a tenth of the pool
        s = pool_set_limits(&b->p, i, n_pages / n_owners / 10, UINT32_MAX, err);
    b->held = malloc(n_pages * sizeof *b->held);
    if (s == INFERD_OK && b->held == NULL) s = inferd_fail(err, INFERD_ENOMEM, "no memory");
    if (s != INFERD_OK) return s;
    while (b->n_held < (uint64_t)n_pages * HELD_PERCENT / 100) {
        uint32_t page = pool_take(&b->p, b->n_held % n_owners, PAGE_KV);
        INFERD_CHECK(page != PAGE_NONE);
        b->held[b->n_held++] = page;
    }
    mix(b, 4 * n_pages);
    return INFERD_OK;
}

static void round_once(bench *b, uint32_t i) {
    uint32_t pages[BATCH];
    uint64_t epoch = pool_launch(&b->p);
    double from = now_ns();
    for (uint32_t k = 0; k < BATCH; k++)
        pages[k] = pool_take(&b->p, (i + k) % b->p.n_owners, PAGE_KV);
    double taken = now_ns();
    for (uint32_t k = 0; k < BATCH; k++) INFERD_CHECK(pages[k] != PAGE_NONE);
    shuffle(pages, BATCH, &b->random);
    double before = now_ns();
    for (uint32_t k = 0; k < BATCH; k++) pool_give(&b->p, pages[k], epoch);
    double given = now_ns();
    pool_finish(&b->p, epoch); // out of quarantine: part of the cost of giving back
    double finished = now_ns();
    samples_add(&b->take, (taken - from) / BATCH);
    samples_add(&b->give, (given - before) / BATCH);
    samples_add(&b->finish, (finished - given) / BATCH);
}

static void tell(const char *what, bench *b, bool json) {
    if (json) {
        json_t *o = json_pack("{s:s,s:i,s:o,s:o,s:o}", "what", what, "pages", (int)b->p.n_pages,
                              "take_ns", samples_json(&b->take), "give_ns", samples_json(&b->give),
                              "finish_ns", samples_json(&b->finish));
        char *text = json_dumps(o, JSON_REAL_PRECISION(6));
        if (text != NULL) puts(text);
        free(text);
        json_decref(o);
        return;
    }
    printf("%-18s take %6.1f ns median, %6.1f p99;  give %6.1f, %6.1f;  out of quarantine %6.1f, "
           "%6.1f\n",
           what, samples_at(&b->take, .5), samples_at(&b->take, .99), samples_at(&b->give, .5),
           samples_at(&b->give, .99), samples_at(&b->finish, .5), samples_at(&b->finish, .99));
}

static inferd_status run(const char *what, uint32_t n_pages, uint32_t n_owners,
                         uint32_t extent_pages, bool json, inferd_err *err) {
    bench b;
    inferd_status s = open_bench(&b, n_pages, n_owners, extent_pages, err);
    for (uint32_t i = 0; s == INFERD_OK && i < ROUNDS; i++) {
        mix(&b, MIXES_PER_ROUND);
        round_once(&b, i);
    }
    if (s == INFERD_OK) s = pool_verify(&b.p, err);
    if (s == INFERD_OK) tell(what, &b, json);
    samples_free(&b.take);
    samples_free(&b.give);
    samples_free(&b.finish);
    free(b.held);
    pool_deinit(&b.p);
    return s;
}

static bool number(const char *text, uint32_t *out) {
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    *out = (uint32_t)v;
    return *text != 0 && *end == 0 && v >= 1 && v <= UINT32_MAX / 2;
}

int main(int argc, char **argv) {
    uint32_t n_pages = PAGES, n_owners = OWNERS;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        bool good = false;
        if (strcmp(argv[i], "--json") == 0) good = json = true;
        if (i + 1 < argc && strcmp(argv[i], "--pages") == 0) good = number(argv[++i], &n_pages);
        if (i + 1 < argc && strcmp(argv[i], "--owners") == 0) good = number(argv[++i], &n_owners);
        if (good) continue;
        fprintf(stderr, "usage: bench_pool [--json] [--pages N] [--owners N]\n");
        return 2;
    }
    if (n_pages < 10 * BATCH || n_pages > PAGES * 16 || n_owners > 4096) {
        fprintf(stderr, "bench_pool: %u pages and %u owners, expected %d to %d and at most 4096\n",
                n_pages, n_owners, 10 * BATCH, PAGES * 16);
        return 2;
    }
    inferd_err err = {0};
    inferd_status s = run("extents of 1", n_pages, n_owners, 1, json, &err);
    if (s == INFERD_OK) s = run("extents of 16", n_pages, n_owners, EXTENT_GPU, json, &err);
    if (s == INFERD_OK) return 0;
    fprintf(stderr, "bench_pool: %s\n", err.text);
    return 1;
}
