/* bench_cpu_attention.c - attention of the CPU backend alone, compared with the limits of memory
 * and arithmetic.
 *
 *     bench_cpu_attention                 every shape, type and size, all threads
 *     bench_cpu_attention 1 bf16 decode   threads (0: all), one type, one part
 *
 *     decode    one new row of each of 1, 8 or 32 sequences: all layers, one after another, and one
 *               layer repeatedly, with its keys and values in a cache if they fit
 *     shared    the same, with the same slots at the beginning of all sequences
 *     prompt    rows of one sequence with an empty cache
 *
 * Blocks of 16 tokens are in random order in huge pages.  Each layer's time is the best of several
 * rounds, and a step is the sum over the layers: short samples are less disturbed by other
 * processes on the machine.  The time of the thread pool is included, the plan of the step is not.
 * bytes: keys and values attended to (shared: as often as they are attended to).  FLOP: 4 per query
 * head, feature and position attended to.  INFERD_CPU chooses the level. */
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cpu/attn_plan.h"
#include "cpu/level.h"
#include "cpu/threads.h"

enum { BLOCK_TOKENS = 16, SEQS_MAX = 32, ROWS_MAX = 2048, PAGE_BYTES = 2 << 20 };
#define ARENA_BYTES ((size_t)1 << 30)

typedef struct shape {
    const char *name;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
} shape;
static const shape shapes[] = {{"SmolLM2-135M", 30, 9, 3, 64}, {"Llama-8B", 32, 32, 8, 128}};

typedef struct type_name {
    const char *name;
    kv_type type;
} type_name;
static const type_name types[] = {
    {"bf16", KV_BF16}, {"f16", KV_F16}, {"f32", KV_F32}, {"int8", KV_I8}, {"int16", KV_I16}};

static const cpu_level *level;
static tpool *threads;
static unsigned char *arena;
static float *q, *k, *v, *out;

typedef struct work {
    kv_layout l;
    attn_spec spec;
    batch b;
    batch_seq seqs[SEQS_MAX];
    uint32_t positions[ROWS_MAX], row_seq[ROWS_MAX];
    int32_t *slots;
    attn_plan *plan;
} work;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t random_u32(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* n_seqs sequences that attend from n_rows rows each, the last row at position len - 1; a slot
 * holds all layers.  False: they do not fit. */
static bool work_init(work *w, const shape *s, kv_type type, uint32_t n_layers, uint32_t n_seqs,
                      uint32_t n_rows, uint32_t len, bool shared) {
    *w = (work){.spec = {s->n_heads, s->n_kv_heads, s->head_dim, 0.1f, 0, 0}};
    w->l =
        (kv_layout){type, n_layers, s->n_kv_heads, s->head_dim, BLOCK_TOKENS, 1, n_layers, 0, 0, 0};
    w->l.layer_bytes = w->l.slot_bytes =
        kv_layer_bytes_of(type, s->n_kv_heads, s->head_dim, BLOCK_TOKENS);
    w->l.slots_per_page = (uint32_t)(PAGE_BYTES / w->l.slot_bytes);
    uint32_t n_blocks = kv_blocks_of(&w->l, len), n_slots = n_seqs * n_blocks * n_layers;
    if ((size_t)(n_slots / w->l.slots_per_page + 1) * PAGE_BYTES > ARENA_BYTES) return false;
    w->slots = malloc((size_t)n_slots * sizeof *w->slots);
    w->plan = attn_plan_open();
    INFERD_CHECK(w->slots != NULL && w->plan != NULL);
    for (uint32_t i = 0; i < n_slots; i++) w->slots[i] = (int32_t)i;
    for (uint32_t i = n_slots; i > 1; i--) {
        uint32_t other = random_u32() % i;
        int32_t slot = w->slots[i - 1];
        w->slots[i - 1] = w->slots[other];
        w->slots[other] = slot;
    }
    for (uint32_t i = 0; i < n_seqs; i++) {
        int32_t *mine = w->slots + (size_t)i * n_blocks * n_layers;
        if (shared) memcpy(mine, w->slots, (size_t)(n_blocks - 1) * n_layers * sizeof *mine);
        w->seqs[i] = (batch_seq){i * n_rows, n_rows, len - n_rows, n_blocks, mine};
        for (uint32_t r = 0; r < n_rows; r++) {
            w->positions[i * n_rows + r] = len - n_rows + r;
            w->row_seq[i * n_rows + r] = i;
        }
    }
    w->b = (batch){.n_rows = n_seqs * n_rows,
                   .n_seqs = n_seqs,
                   .positions = w->positions,
                   .row_seq = w->row_seq,
                   .seqs = w->seqs};
    INFERD_CHECK(attn_plan_make(w->plan, &w->b, &w->l, &w->spec, tpool_n_threads(threads)));
    return true;
}

static void work_deinit(work *w) {
    free(w->slots);
    attn_plan_close(w->plan);
}

static void attend(const work *w, uint32_t layer) {
    attn_job job = {out, q, k, v, NULL, &w->b, &w->l, &w->spec, w->plan, arena, PAGE_BYTES, layer};
    tpool_share(threads, level->attend, &job, attn_plan_n_units(w->plan));
    if (attn_plan_n_merges(w->plan) > 0)
        tpool_share(threads, level->attend_merge, &job, attn_plan_n_merges(w->plan));
}

/* Seconds of one step. */
static double measure(const work *w) {
    static double best[64];
    for (uint32_t i = 0; i < w->l.n_layers; i++) best[i] = 1e9;
    double begin = now_s();
    for (int round = 0; round < 200; round++) {
        for (uint32_t i = 0; i < w->l.n_layers; i++) {
            double at = now_s();
            attend(w, i);
            double seconds = now_s() - at;
            if (seconds < best[i]) best[i] = seconds;
        }
        if (round >= 3 && now_s() - begin > 0.4) break;
    }
    double sum = 0;
    for (uint32_t i = 0; i < w->l.n_layers; i++) sum += best[i];
    return sum;
}

static void bench_decode(const shape *s, type_name t, bool shared) {
    static const uint32_t lens[] = {128, 512, 1024, 4096}, seqs[] = {1, 8, 32};
    printf("%s %s %s\n  %5s %4s %9s %28s %28s\n", shared ? "shared" : "decode", s->name, t.name,
           "len", "seqs", "MB", "all layers us/head GB/s", "one layer us/head GB/s");
    for (size_t i = shared ? 1 : 0; i < INFERD_COUNT(seqs); i++) {
        for (size_t at = shared ? 2 : 0; at < INFERD_COUNT(lens); at++) {
            work w;
            double n_bytes = (double)kv_tile_bytes(t.type, s->head_dim) * (lens[at] / KV_TILE) *
                             s->n_kv_heads * seqs[i];
            if (!work_init(&w, s, t.type, s->n_layers, seqs[i], 1, lens[at], shared)) continue;
            double all = measure(&w) / s->n_layers;
            work_deinit(&w);
            INFERD_CHECK(work_init(&w, s, t.type, 1, seqs[i], 1, lens[at], shared));
            double one = measure(&w);
            work_deinit(&w);
            printf("  %5u %4u %9.2f %19.2f %8.1f %19.2f %8.1f\n", lens[at], seqs[i],
                   n_bytes * s->n_layers * 1e-6, all * 1e6 / (seqs[i] * s->n_kv_heads),
                   n_bytes / all * 1e-9, one * 1e6 / (seqs[i] * s->n_kv_heads),
                   n_bytes / one * 1e-9);
        }
    }
}

static void bench_prompt(const shape *s, type_name t) {
    static const uint32_t lens[] = {128, 512, 2048};
    printf("prompt %s %s\n", s->name, t.name);
    for (size_t i = 0; i < INFERD_COUNT(lens); i++) {
        work w;
        INFERD_CHECK(work_init(&w, s, t.type, s->n_layers, 1, lens[i], lens[i], false));
        attn_job job = {out, q, k, v, NULL, &w.b, &w.l, &w.spec, w.plan, arena, PAGE_BYTES, 0};
        double seconds = measure(&w), store = 1e9;
        for (int round = 0; round < 20; round++) {
            double at = now_s();
            tpool_split(threads, level->kv_store, &job, lens[i]);
            double took = now_s() - at;
            if (took < store) store = took;
        }
        double flop = 2.0 * s->n_heads * s->head_dim * lens[i] * (lens[i] + 1) * s->n_layers;
        printf("  %5u rows %9.2f ms all layers %8.0f GFLOP/s   storing them %7.2f ms\n", lens[i],
               seconds * 1e3, flop / seconds * 1e-9, store * 1e3 * s->n_layers);
        work_deinit(&w);
    }
}

int main(int argc, char **argv) {
    inferd_err err;
    uint32_t n_threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    const char *type = argc > 2 ? argv[2] : NULL, *part = argc > 3 ? argv[3] : NULL;
    level = level_choose(getenv("INFERD_CPU"), &err);
    if (level == NULL || tpool_open(n_threads, &threads, &err) != INFERD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    tpool_pin_caller(threads);
    size_t n = (size_t)ROWS_MAX * 32 * 128;
    float **const all[] = {&q, &k, &v, &out};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        *all[i] = aligned_alloc(64, n * sizeof(float));
        INFERD_CHECK(*all[i] != NULL);
        for (size_t e = 0; e < n; e++) (*all[i])[e] = (float)(random_u32() % 2001) * 1e-3f - 1;
    }
    arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    INFERD_CHECK(arena != MAP_FAILED);
    madvise(arena, ARENA_BYTES, MADV_HUGEPAGE);
    memset(arena, 0, ARENA_BYTES); // zero in every type; speed does not depend on the values
    printf("%s, %u threads\n", level->name, tpool_n_threads(threads));
    for (size_t s = 0; s < INFERD_COUNT(shapes); s++) {
        for (size_t t = 0; t < INFERD_COUNT(types); t++) {
            if (type != NULL && strcmp(type, "all") != 0 && strcmp(type, types[t].name) != 0)
                continue;
            if (part == NULL || strcmp(part, "decode") == 0)
                bench_decode(&shapes[s], types[t], false);
            if (part == NULL || strcmp(part, "shared") == 0)
                bench_decode(&shapes[s], types[t], true);
            if (part == NULL || strcmp(part, "prompt") == 0) bench_prompt(&shapes[s], types[t]);
        }
    }
    for (size_t i = 0; i < INFERD_COUNT(all); i++) free(*all[i]);
    munmap(arena, ARENA_BYTES);
    tpool_close(threads);
    return 0;
}
