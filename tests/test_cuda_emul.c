/* The device emulator: kernels that keep the rules give the right numbers, and each rule has a
 * kernel that breaks it and is refused with a sentence (cuda_emul/emul_test_kernels.cu).
 *
 * Numbers are compared with formulas of their own: every half and bfloat16, rounding by search for
 * the nearest of all 65536 values, matrix products in double.  What only plain accesses show needs
 * the emulator's hooks; sanitizer builds do not have them, and leave those cases to the sanitizer.
 */
#include "cuda_emul/emul_run.h"
#include "cuda_emul/emul_test.h"
#include "test.h"

#include <float.h>
#include <pthread.h>

extern const cu_kernel emul_test_table[];
extern const uint32_t emul_test_table_n;

static char why[EMUL_WHY_BYTES];

/* One launch; false leaves the sentence in `why`. */
static bool launch_grid(const char *name, uint32_t x, uint32_t y, uint32_t z, uint32_t threads,
                        uint32_t shared_bytes, const emul_test_params *p) {
    for (uint32_t i = 0; i < emul_test_table_n; i++) {
        const cu_kernel *k = &emul_test_table[i];
        const uint32_t grid[3] = {x, y, z};
        if (strcmp(k->name, name) == 0)
            return emul_launch(k->fn, grid, threads, shared_bytes, p, k->params_bytes,
                               k->threads_max, why, sizeof why);
    }
    snprintf(why, sizeof why, "no kernel %s", name);
    return false;
}
static bool launch_ok(const char *name, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                      const emul_test_params *p) {
    bool ok = launch_grid(name, blocks, 1, 1, threads, shared_bytes, p);
    if (!ok) printf("%s, variant %u: %s\n", name, p->what, why);
    return ok;
}

/* The launch must fail with a sentence that has `words` in it. */
static void expect_refused(const char *name, uint32_t blocks, uint32_t threads,
                           uint32_t shared_bytes, const emul_test_params *p, const char *words) {
    bool ok = launch_grid(name, blocks, 1, 1, threads, shared_bytes, p);
    if (ok || strstr(why, words) == NULL) {
        printf("%s, variant %u: expected a failure with \"%s\", got \"%s\"\n", name, p->what, words,
               ok ? "success" : why);
        test_failures++;
    } else if (getenv("INFERD_TEST_VERBOSE") != NULL) {
        printf("%s\n", why);
    }
}

static void set_order(uint64_t seed, bool shuffle) {
    emul_options o = {.seed = seed, .shuffle = shuffle};
    emul_set_options(&o);
}

/* Every test's orders: as written, then some random ones. */
enum { N_ORDERS = 6 };
static void set_nth_order(uint32_t i) {
    set_order(100 + i, i > 0);
}

static uint64_t random_state = 12345;
static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 32);
}

/* ---- where and in which order ---- */
static void threads_know_where_they_are(void) {
    static uint32_t out[3 * 4 * 2 * 96], grid[1];
    emul_test_params p = {.out = out, .scratch = grid};
    set_order(1, true);
    EXPECT(launch_grid("where", 3, 4, 2, 96, 0, &p));
    EXPECT_EQ(grid[0], 3 | 4 << 8 | 2 << 16);
    for (uint32_t i = 0; i < 3 * 4 * 2 * 96; i++) {
        uint32_t b = i / 96, t = i % 96;
        EXPECT_EQ(out[i],
                  b % 3 | (b / 3 % 4) << 4 | (b / 12) << 8 | (t % 32) << 12 | (t / 32) << 20);
    }
}

static void order_is_as_written_or_by_seed(void) {
    enum { N = 4 * 64 };
    static uint32_t out[3][N], first[N];
    for (uint32_t n_barriers = 0; n_barriers < 3; n_barriers++) {
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t counter = 0, seen = 0;
            emul_test_params p = {.out = out[i], .counter = &counter, .n = n_barriers};
            set_order(i < 2 ? 7 : 8, true);
            EXPECT(launch_ok("order", 4, 64, 0, &p));
            for (uint32_t k = 0; k < N; k++)
                for (uint32_t j = 0; j < N; j++) seen += out[i][k] == j;
            EXPECT_EQ(seen, N); // a permutation
        }
        EXPECT(memcmp(out[0], out[1], sizeof out[0]) == 0); // the same seed
        EXPECT(memcmp(out[0], out[2], sizeof out[0]) != 0);
        if (n_barriers > 0) EXPECT(memcmp(out[0], first, sizeof first) != 0);
        memcpy(first, out[0], sizeof first);
    }
    uint32_t counter = 0, n_later = 0;
    emul_test_params p = {.out = out[0], .counter = &counter};
    set_order(9, true);
    EXPECT(launch_ok("order", 8, 32, 0, &p));
    for (uint32_t k = 32; k < N; k += 32) n_later += out[0][k] / 32 > out[0][k - 32] / 32;
    EXPECT(n_later < 7); // blocks do not come in their order either
    counter = 0;
    set_order(9, false);
    EXPECT(launch_ok("order", 4, 64, 0, &p));
    for (uint32_t k = 0; k < N; k++) EXPECT_EQ(out[0][k], k);
}

/* ---- together ---- */
static void barriers_order_a_block(void) {
    static uint32_t out[128];
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        emul_test_params p = {.out = out, .what = MEET_OK};
        EXPECT(launch_ok("meet", 1, 128, 512, &p));
        for (uint32_t t = 0; t < 128; t++) EXPECT_EQ(out[t], 127 - t);
        p.what = MEET_OR;
        EXPECT(launch_ok("meet", 1, 128, 0, &p));
        for (uint32_t t = 0; t < 128; t++) EXPECT_EQ(out[t], 1);
        memset(out, 0, sizeof out);
        p.what = MEET_EARLY_RETURN;
        EXPECT(launch_ok("meet", 1, 128, 0, &p));
        for (uint32_t t = 0; t < 128; t++) EXPECT_EQ(out[t], t != 5 && t != 127);
    }
}

static void broken_meetings_are_named(void) {
    static const struct {
        uint32_t what;
        const char *words;
    } cases[] = {
        {MEET_OTHER_LINE, "other threads of the block wait in sync_threads()"},
        {MEET_OTHER_KIND, "other threads of the block wait in sync_threads"},
        {MEET_LANE_AT_SHUFFLE, "divergence"},
        {MEET_SHUFFLE_LATE, "divergence"},
        {MEET_SHUFFLES_DIFFER, "divergence"},
        {MEET_SUMS_DIFFER, "divergence"},
        {MEET_LANE_RETURNED, "divergence"},
        {MEET_LANE_RETURNS, "divergence"},
        {MEET_DEADLOCK, "deadlock"},
        {MEET_NAMED_ID, "named barrier 16, expected 1 to 15"},
        {MEET_NAMED_THREADS, "named barrier of 48 threads, expected whole warps"},
        {MEET_NAMED_DISAGREE, "named barrier 1 of"},
        {MEET_LANES_DISAGREE, "divergence: sync_named() with argument"},
        {MEET_SHUFFLE_LANE, "with argument 32, expected 0 to 31"},
    };
    static uint32_t out[128];
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            emul_test_params p = {.out = out, .what = cases[i].what};
            expect_refused("meet", 2, 128, 512, &p, cases[i].words);
        }
    }
    set_order(1, false);
    emul_test_params p = {.out = out, .what = MEET_DEADLOCK};
    expect_refused("meet", 2, 128, 512, &p, "96 threads (first 0) wait in sync_threads()");
    expect_refused("meet", 2, 128, 512, &p, "32 threads (first 64) wait in sync_named()");
    expect_refused("meet", 2, 128, 512, &p, "kernel meet, block (0, 0, 0)");
}

static void shuffles_move_what_they_say(void) {
    enum { N = 128 };
    static uint32_t out[10][N];
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        emul_test_params p = {.out = out};
        EXPECT(launch_ok("shuffles", 1, N, 0, &p));
        for (uint32_t t = 0; t < N; t++) {
            uint32_t lane = t % 32, warp = t - lane, ballot = 0, sum = 0;
            for (uint32_t i = 0; i < 32; i++) ballot |= (uint32_t)((warp + i) % 3 == 0) << i;
            for (uint32_t i = 0; i < 32; i++) sum += warp + i;
            uint32_t down1 = lane == 31 ? t : t + 1;
            EXPECT_EQ(out[0][t], warp + lane * 7 % 32);
            EXPECT_EQ(out[1][t], t ^ 5);
            EXPECT_EQ(out[2][t], lane + 3 > 31 ? t : t + 3);
            EXPECT_EQ(out[3][t], lane < 3 ? t : t - 3);
            EXPECT_EQ(out[4][t], ballot);
            EXPECT_EQ(out[5][t], 1000 + (t ^ 16));
            EXPECT_EQ(out[6][t], 4 * down1 + 1);
            EXPECT_EQ(out[7][t], sum);
            EXPECT_EQ(out[8][t], 31);
            EXPECT_EQ((int32_t)out[9][t], -(int32_t)(lane == 0 ? t : t - 1));
        }
    }
}

/* ---- races ---- */
static void races_in_a_block_are_found(void) {
    static const struct {
        uint32_t what;
        const char *words; // NULL: none
    } cases[] = {
        {RACE_BARRIER, NULL},
        {RACE_NONE, "race in shared memory"},
        {RACE_WARP_SYNC, NULL},
        {RACE_WARP_SHUFFLE, "race in shared memory"},
        {RACE_WARP_NONE, "race in shared memory"},
        {RACE_WARP_SYNC_ACROSS, "race in shared memory"},
        {RACE_NAMED, NULL},
        {RACE_NAMED_OUTSIDER, "race in shared memory"},
        {RACE_WRITE_AFTER_READ, "race in shared memory"},
        {RACE_WRITE_AFTER_WARP_READ, "race in shared memory"},
        {RACE_ATOMICS, NULL},
        {RACE_ATOMIC_AND_PLAIN, "race in shared memory"},
        {RACE_GLOBAL, "race in global memory"},
        {RACE_GLOBAL_BARRIER, NULL},
        {RACE_SAME_VALUE, "race in shared memory"},
        {RACE_NEIGHBOUR_BYTES, NULL},
        {RACE_LAST_READER_WRITES, "race in shared memory"},
        {RACE_FIRST_READER_WRITES, "race in shared memory"},
    };
    static uint32_t out[128];
    for (uint32_t order = 0; order < 2 * N_ORDERS; order++) {
        set_nth_order(order);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            emul_test_params p = {.out = out, .what = cases[i].what};
            if (cases[i].words != NULL && !emul_has_hooks()) continue;
            if (cases[i].words == NULL)
                EXPECT(launch_ok("race", 1, 128, 512, &p));
            else
                expect_refused("race", 1, 128, 512, &p, cases[i].words);
        }
    }
}

static void blocks_talk_through_counters(void) {
    enum { BLOCKS = 16, N = 100 };
    static uint32_t in[BLOCKS * N], parts[BLOCKS * 64], out[BLOCKS * 64], counters[1 + BLOCKS];
    uint32_t want = 0;
    for (uint32_t i = 0; i < BLOCKS * N; i++) in[i] = i * i % 1000, want += in[i];
    uint32_t last = in[BLOCKS * N - 1];

    static const struct {
        uint32_t what;
        bool plain; // seen by the hooks only
        const char *words;
    } cases[] = {
        {BLOCKS_LAST_ARRIVES, false, NULL},
        {BLOCKS_TWO_COUNTERS, false, NULL},
        {BLOCKS_ALL_FENCE, false, NULL},
        {BLOCKS_LAST_OVERWRITES, false, NULL},
        {BLOCKS_OVERWRITES_NO_FENCE, true, "conflict in global memory"},
        {BLOCKS_NO_FENCE, true, "conflict in global memory"},
        {BLOCKS_NO_ACQUIRE, true, "conflict in global memory"},
        {BLOCKS_FENCE_TOO_EARLY, true, "conflict in global memory"},
        {BLOCKS_NO_ORDER, true, "conflict in global memory"},
        {BLOCKS_SAME_BYTE, true, "conflict in global memory"},
        {BLOCKS_WRITE_READ_BYTE, true, "conflict in global memory"},
        {BLOCKS_STREAM_WRITTEN, true, "load_stream of memory that this launch has written"},
    };
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            emul_test_params p = {in, out, parts, counters, cases[i].what, N};
            if (cases[i].plain && !emul_has_hooks()) continue;
            memset(counters, 0, sizeof counters);
            if (cases[i].words != NULL) {
                expect_refused("blocks", BLOCKS, 64, 16, &p, cases[i].words);
                in[BLOCKS * N - 1] = last;
                continue;
            }
            out[0] = 0;
            EXPECT(launch_ok("blocks", BLOCKS, 64, 16, &p));
            if (cases[i].what == BLOCKS_LAST_OVERWRITES) {
                EXPECT_EQ(in[BLOCKS * N - 1], 0);
                in[BLOCKS * N - 1] = last;
                continue;
            }
            EXPECT_EQ(out[0], want);
            EXPECT_EQ(counters[0], 0);
        }
    }
}

/* ---- asynchronous copies ---- */
static void copies_arrive_at_the_wait(void) {
    enum { N = 128, STAGES = 6 };
    static uint32_t in[STAGES * N][4] __attribute__((aligned(16)));
    static uint32_t out[STAGES * N][4] __attribute__((aligned(16)));
    for (uint32_t i = 0; i < STAGES * N; i++)
        for (uint32_t j = 0; j < 4; j++) in[i][j] = random_u32();
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        emul_test_params p = {.in = in, .out = out, .what = COPY_OK, .n = STAGES};
        EXPECT(launch_ok("copy", 1, N, 2 * N * 16, &p));
        for (uint32_t i = 0; i < STAGES * N; i++)
            EXPECT(memcmp(out[i], in[i / N * N + N - 1 - i % N], 16) == 0);
        emul_counts counts;
        emul_get_counts(&counts);
        EXPECT_EQ(counts.copy_bytes, STAGES * N * 16);
        EXPECT_EQ(counts.n_barriers, 2 * STAGES);
        EXPECT_EQ(counts.n_blocks, 1);
        p.what = COPY_OR_ZERO;
        EXPECT(launch_ok("copy", 1, N, N * 16, &p));
        emul_get_counts(&counts);
        EXPECT_EQ(counts.copy_bytes, N / 2 * 16);
        for (uint32_t t = 0; t < N; t++) {
            static const uint32_t zero[4];
            EXPECT(memcmp(out[t], t % 2 == 0 ? in[t] : zero, 16) == 0);
        }
    }
}

static void broken_copies_are_named(void) {
    enum { N = 128 };
    static uint32_t in[2 * N][4] __attribute__((aligned(16)));
    static uint32_t out[2 * N][4] __attribute__((aligned(16)));
    static const struct {
        uint32_t what;
        const char *words;
    } cases[] = {
        {COPY_NOT_WAITED, "the kernel ends with 1 asynchronous copies not waited for"},
        {COPY_NOT_COMMITTED, "the kernel ends with 1 asynchronous copies not waited for"},
        {COPY_READ_EARLY, "is the destination of an asynchronous copy"},
        {COPY_READ_NEWEST, "is the destination of an asynchronous copy"},
        {COPY_NO_BARRIER, "shared"}, // a copy on its way, or a race
        {COPY_TWICE, "is the destination of an asynchronous copy"},
        {COPY_DST_MISALIGNED, "not aligned to 16 bytes"},
        {COPY_SRC_MISALIGNED, "not aligned to 16 bytes"},
        {COPY_DST_GLOBAL, "shared memory"},
        {COPY_SRC_SHARED, "shared memory, expected global memory"},
        {COPY_PAST_END, "shared memory"},
    };
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            emul_test_params p = {.in = in, .out = out, .what = cases[i].what, .n = 2};
            expect_refused("copy", 1, N, 2 * N * 16, &p, cases[i].words);
        }
    }
}

/* The source may be read at any time until the wait: both happen. */
static void copies_read_their_source_at_any_time(void) {
    enum { N = 128 };
    static uint32_t out[2 * N][4] __attribute__((aligned(16)));
    uint32_t n_old = 0, n_new = 0;
    for (uint32_t t = 0; t < N; t++) out[t][0] = 5;
    set_order(3, false);
    emul_test_params p = {.out = out, .what = COPY_SRC_CHANGES};
    EXPECT(launch_ok("copy", 1, N, N * 16, &p));
    for (uint32_t t = 0; t < N; t++) n_old += out[N + t][0] == 5, n_new += out[N + t][0] == 1;
    EXPECT_EQ(n_old + n_new, N);
    EXPECT(n_old > 20 && n_new > 20);
}

/* ---- one access ---- */
typedef struct allowed {
    const char *begin, *end;     // may be read
    const char *w_begin, *w_end; // may be written too
    uint32_t n_asked;
} allowed;

static bool may(const void *p, size_t n, bool write, void *ctx) {
    allowed *a = ctx;
    const char *c = p;
    a->n_asked++;
    if (c >= a->w_begin && c + n <= a->w_end) return true;
    return !write && c >= a->begin && c + n <= a->end;
}

static void accesses_are_checked(void) {
    static uint32_t in[64] __attribute__((aligned(16))), out[128] __attribute__((aligned(16)));
    static uint32_t secret[4096] __attribute__((aligned(16))),
        counter[4] __attribute__((aligned(8)));
    static const struct {
        uint32_t what, n;
        const char *words;
        bool plain;
    } cases[] = {
        {ACCESS_PAST_SHARED, 64, "outside of shared memory, which has 256 bytes", true},
        {ACCESS_BEFORE_SHARED, 64, "outside of shared memory, which has 256 bytes", true},
        {ACCESS_LOAD_MISALIGNED, 64, "reads 16 bytes", false},
        {ACCESS_LOAD_MISALIGNED, 64, "not aligned to 16 bytes", false},
        {ACCESS_STORE_MISALIGNED, 64, "not aligned to 8 bytes", false},
        {ACCESS_STREAM_SHARED, 64, "shared memory, expected global memory", true},
        {ACCESS_FRESH_LOCAL, 64, "a local variable, expected global memory", false},
        {ACCESS_ATOMIC_LOCAL, 64, "an atomic operation on a local variable", false},
        {ACCESS_ATOMIC_MISALIGNED, 64, "not aligned to 8 bytes", false},
        {ACCESS_OTHERS_LOCAL, 64, "a local variable of thread 0", false},
        {ACCESS_WRITE_PARAMS, 64, "params", false},
        {ACCESS_WRITE_PARAMS, 64, "writes 4 bytes", true},
        {ACCESS_FORBIDDEN, 64, "not memory of the device that it may read", false},
        {ACCESS_FORBIDDEN_WRITE, 64, "not memory of the device that it may write", false},
        {ACCESS_PLAIN_PAST_SHARED, 64, "outside of shared memory, which has 256 bytes", true},
        {ACCESS_PLAIN_MISALIGNED, 2, "not aligned to 4 bytes", true},
        {ACCESS_FORBIDDEN_PLAIN, 64, "not memory of the device that it may read", true},
        {ACCESS_FORBIDDEN_PLAIN, 64, "addr2line", true},
    };
    allowed a = {(const char *)in, (const char *)(in + 64), (const char *)out,
                 (const char *)(out + 128), 0};
    for (size_t i = 0; i < 64; i++) in[i] = (uint32_t)i;
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        emul_test_params p = {in, out, secret, counter, ACCESS_OK, 0};
        emul_set_memory_check(may, &a);
        EXPECT(launch_ok("access", 1, 32, 512, &p));
        for (uint32_t t = 0; t < 32; t++) EXPECT_EQ(out[t], t + 1 + 3 + 0 + 1 + 2 + 3 + 0);
        emul_counts counts;
        emul_get_counts(&counts);
        EXPECT_EQ(counts.stream_bytes, 32 * (4 + 8 + 16));
        p.what = ACCESS_CONSTANTS; // of the program itself
        EXPECT(launch_ok("access", 1, 32, 0, &p));
        for (uint32_t t = 0; t < 32; t++) EXPECT_EQ(out[t], "\3\1\4\1\5\11\2\6"[t % 8]);
        p.what = ACCESS_SHARED_ADDRESS;
        EXPECT(launch_ok("access", 1, 32, 128, &p));
        for (uint32_t t = 0; t < 32; t++) EXPECT_EQ(out[t], 4 * t);
        EXPECT(a.n_asked > 0);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            if (cases[i].what == ACCESS_ATOMIC_MISALIGNED) emul_set_memory_check(NULL, NULL);
            p.what = cases[i].what;
            p.n = cases[i].n;
            if (cases[i].plain && !emul_has_hooks()) continue;
            expect_refused("access", 1, 32, 256, &p, cases[i].words);
            emul_set_memory_check(may, &a);
        }
    }
    emul_set_memory_check(NULL, NULL);
}

/* What nobody wrote is not a number, in every block anew. */
static void shared_memory_begins_as_nan(void) {
    static uint32_t out[64];
    emul_test_params p = {.in = out, .out = out, .what = ACCESS_UNWRITTEN};
    EXPECT(launch_ok("access", 2, 32, 128, &p));
    for (uint32_t t = 0; t < 64; t++) EXPECT_EQ(out[t], 0xffffffffu);
}

static void waiting_in_a_loop_is_found(void) {
    static uint32_t out[32], counter;
    emul_test_params p = {.in = out, .out = out, .counter = &counter, .what = ACCESS_WAITS_IN_LOOP};
    set_order(1, false);
    expect_refused("access", 1, 32, 0, &p, "waits in a loop for another thread");
}

/* ---- programmatic dependent launch ---- */
static void dependents_wait_before_they_touch(void) {
    enum { N = 64 };
    static uint32_t a[N] __attribute__((aligned(16))), b[N] __attribute__((aligned(16)));
    static uint32_t c[N] __attribute__((aligned(16))), other[N] __attribute__((aligned(16)));
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        emul_test_params first = {a, b, other, NULL, PDL_OK, 0},
                         second = {b, c, other, NULL, PDL_OK, 0};
        EXPECT(launch_ok("pdl", 2, 32, 0, &first));
        EXPECT(emul_waited() && emul_released());
        EXPECT(launch_ok("pdl", 2, 32, 0, &second));
        for (uint32_t i = 0; i < N; i++) EXPECT_EQ(c[i], 2);
        second.what = PDL_READS_OWN_INPUT_EARLY; // nobody wrote `other` before
        EXPECT(launch_ok("pdl", 2, 32, 0, &first));
        EXPECT(launch_ok("pdl", 2, 32, 0, &second));
        second.what = PDL_ONE_BLOCK_WAITS;
        EXPECT(launch_ok("pdl", 2, 32, 0, &second));
        EXPECT(!emul_waited());
        if (!emul_has_hooks()) continue;
        second.what = PDL_READS_EARLY;
        EXPECT(launch_ok("pdl", 2, 32, 0, &first));
        expect_refused("pdl", 2, 32, 0, &second,
                       "which the launch before wrote, before wait_predecessor()");
        EXPECT(!emul_waited());
        EXPECT(launch_ok("pdl", 2, 32, 0, &first));
        emul_settle();
        EXPECT(launch_ok("pdl", 2, 32, 0, &second));
        second.what = PDL_WRITES_EARLY;
        expect_refused("pdl", 2, 32, 0, &second, "before wait_predecessor()");
    }
}

/* ---- tensor cores ---- */
static double f16_value(uint16_t bits) {
    int e = bits >> 10 & 31, m = bits & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return bits & 0x8000 ? -v : v;
}
static double bf16_value(uint16_t bits) {
    int e = bits >> 7 & 255, m = bits & 127;
    double v = e == 255 ? (m ? NAN : INFINITY) : e == 0 ? ldexp(m, -133) : ldexp(128 + m, e - 134);
    return bits & 0x8000 ? -v : v;
}

static void products_are_right(void) {
    for (uint32_t round = 0; round < 40; round++) {
        bool half = round & 1;
        uint32_t what = MATRIX_LD4 + round / 2 % 4, stride = 32 + 16 * (round % 3);
        uint16_t ab[256 + 128] __attribute__((aligned(16)));
        float d[16][8] __attribute__((aligned(16)));
        double want[16][8], size[16][8];
        uint32_t out[6][32];
        for (uint32_t i = 0; i < 384; i++) { // magnitudes of 2^-4 to 2^4, both signs
            uint32_t r = random_u32();
            ab[i] = (uint16_t)(half ? (r & 0x83ff) | (11 + r / 65536 % 8) << 10
                                    : (r & 0x807f) | (123 + r / 65536 % 8) << 7);
        }
        for (uint32_t i = 0; i < 16; i++)
            for (uint32_t j = 0; j < 8; j++) {
                want[i][j] = d[i][j] = (float)(int32_t)random_u32() * 0x1p-28f;
                size[i][j] = fabs(want[i][j]);
                for (uint32_t k = 0; k < 16; k++) {
                    uint16_t a = ab[i * 16 + k], b = ab[256 + k * 8 + j];
                    double v = half ? f16_value(a) * f16_value(b) : bf16_value(a) * bf16_value(b);
                    want[i][j] += v;
                    size[i][j] += fabs(v);
                }
            }
        set_order(round, round & 4);
        emul_test_params p = {ab, out, d, NULL, what, stride};
        EXPECT(launch_ok(half ? "matrix_f16" : "matrix_bf16", 1, 32, 16 * stride + 256, &p));
        emul_counts counts;
        emul_get_counts(&counts);
        EXPECT_EQ(counts.n_mma, 1);
        EXPECT_EQ(counts.n_ldmatrix, 6);
        // Rows 32 bytes apart meet in the banks by twos, 64 by fours, 16 and 48 not at all.
        uint32_t n_conflicts = stride == 32 ? 4 * 1 : stride == 64 ? 4 * 3 : 0;
        if (what == MATRIX_LD4 || what == MATRIX_LD2) n_conflicts += 2 * 1;
        EXPECT_EQ(counts.n_ldmatrix_conflicts, n_conflicts);
        for (uint32_t i = 0; i < 16; i++)
            for (uint32_t j = 0; j < 8; j++)
                EXPECT_NEAR(d[i][j], want[i][j], 17 * FLT_EPSILON * size[i][j]);
        for (uint32_t lane = 0; lane < 32; lane++) { // the fragments themselves, by the PTX manual
            uint32_t g = lane / 4, t = lane % 4;
            for (uint32_t i = 0; i < 4; i++) {
                const uint16_t *at = &ab[(g + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2)];
                EXPECT_EQ(out[i][lane], at[0] | (uint32_t)at[1] << 16);
            }
            for (uint32_t i = 0; i < 2; i++) {
                const uint16_t *at = &ab[256 + (2 * t + 8 * i) * 8 + g];
                EXPECT_EQ(out[4 + i][lane], at[0] | (uint32_t)at[8] << 16);
            }
        }
    }
}

/* One 1 in each matrix, everything else 0: every position of every fragment is where it belongs. */
static void every_fragment_position_is_right(void) {
    uint16_t ab[384] __attribute__((aligned(16)));
    uint32_t out[6][32];
    set_order(1, false);
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t j = (i + k) % 8;
            float d[16][8] = {{0}};
            memset(ab, 0, sizeof ab);
            ab[i * 16 + k] = 0x3f80;
            ab[256 + k * 8 + j] = 0x4000;
            emul_test_params p = {ab, out, d, NULL, MATRIX_LD4, 32};
            EXPECT(launch_ok("matrix_bf16", 1, 32, 16 * 32 + 256, &p));
            for (uint32_t r = 0; r < 16; r++)
                for (uint32_t c = 0; c < 8; c++) EXPECT_EQ(d[r][c], r == i && c == j ? 2 : 0);
        }
}

/* As floats are: one 1 each at first, then random numbers of 10 bits of mantissa. */
static void products_of_tf32_are_right(void) {
    for (uint32_t round = 0; round < 128 + 20; round++) {
        float ab[128 + 64] = {0}, d[16][8] = {{0}};
        uint32_t i = round / 8, k = round % 8, j = (i + k) % 8;
        if (round < 128) ab[i * 8 + k] = 1, ab[128 + k * 8 + j] = 2;
        for (uint32_t n = 0; n < 192 && round >= 128; n++)
            ab[n] = ldexpf((float)(random_u32() % 2048) - 1023.5f, (int)(random_u32() % 8) - 10);
        set_order(round, round & 4);
        emul_test_params p = {.in = ab, .scratch = d};
        EXPECT(launch_ok("matrix_tf32", 1, 32, 0, &p));
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t c = 0; c < 8; c++) {
                double want = 0, size = 0;
                for (uint32_t n = 0; n < 8; n++) {
                    double v = (double)ab[r * 8 + n] * (double)ab[128 + n * 8 + c];
                    want += v;
                    size += fabs(v);
                }
                EXPECT_NEAR(d[r][c], want, 9 * FLT_EPSILON * size);
            }
    }
    float bad[192] = {0}, d[16][8];
    bad[77] = 1 + FLT_EPSILON;
    expect_refused("matrix_tf32", 1, 32, 0, &(emul_test_params){.in = bad, .scratch = d},
                   "its low 13 bits must be 0");
}

static void broken_matrices_are_named(void) {
    static uint16_t ab[384] __attribute__((aligned(16)));
    static float d[16][8];
    static uint32_t out[6][32];
    static const struct {
        uint32_t what;
        const char *words;
        bool plain;
    } cases[] = {
        {MATRIX_MISALIGNED, "thread 17", false},
        {MATRIX_MISALIGNED, "not aligned to 16 bytes", false},
        {MATRIX_GLOBAL_ROW, "shared memory", false},
        {MATRIX_PAST_END, "shared memory", false},
        {MATRIX_DIVERGENT, "divergence", false},
        {MATRIX_RACE, "race in shared memory", true},
    };
    for (uint32_t order = 0; order < N_ORDERS; order++) {
        set_nth_order(order);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            emul_test_params p = {ab, out, d, NULL, cases[i].what, 32};
            if (cases[i].plain && !emul_has_hooks()) continue;
            expect_refused("matrix_bf16", 1, 32, 16 * 32 + 256, &p, cases[i].words);
        }
    }
}

/* ---- numbers ---- */
static bool numbers(uint32_t what, const void *in, void *out, uint32_t n) {
    emul_test_params p = {.in = in, .out = out, .what = what, .n = n};
    return launch_ok("numbers", (n + 127) / 128, 128, 0, &p);
}

static void all_16_bit_values_become_floats(void) {
    enum { N = 65536 };
    static uint32_t in[N];
    static float out[2][N];
    set_order(1, false);
    for (uint32_t i = 0; i < N; i++) in[i] = i;
    for (uint32_t half = 0; half < 2; half++) {
        EXPECT(numbers(half ? NUMBERS_F16_TO_F32 : NUMBERS_BF16_TO_F32, in, out[0], N));
        EXPECT(numbers(half ? NUMBERS_UNPACK_F16 : NUMBERS_UNPACK_BF16, in, out[1], N));
        for (uint32_t i = 0; i < N; i++) {
            double want = half ? f16_value((uint16_t)i) : bf16_value((uint16_t)i);
            for (uint32_t k = 0; k < 2; k++)
                EXPECT(isnan(want) ? isnan(out[k][i])
                                   : out[k][i] == want && !signbit(out[k][i]) == !signbit(want));
        }
    }
}

/* The nearest 16-bit value of |v|, even at a tie, found among the positive ones. */
static uint16_t nearest(long double v, bool half) {
    uint16_t low = 0, high = half ? 0x7c00 : 0x7f80, sign = signbit(v) ? 0x8000 : 0;
    long double size = fabsl(v);
    if (isnan(v)) return 0x7fff;
    while (high - low > 1) { // value(low) <= size < value(high)
        uint16_t mid = (uint16_t)((low + high) / 2);
        if ((half ? f16_value(mid) : bf16_value(mid)) <= size)
            low = mid;
        else
            high = mid;
    }
    long double a = half ? f16_value(low) : bf16_value(low),
                b = half ? f16_value(high) : bf16_value(high);
    if (isinf(b)) b = half ? 65536.0L : 0x1p128L; // where the next binade would begin
    long double middle = (a + b) / 2;
    bool up = size > middle || (size == middle && (low & 1));
    return (uint16_t)(sign | (isinf(size) ? (half ? 0x7c00 : 0x7f80) : up ? high : low));
}

static void floats_round_to_the_nearest(void) {
    enum { N = 200000 };
    static float in[N];
    static uint32_t out[2][N];
    set_order(1, false);
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t bits = random_u32();
            uint16_t at = (uint16_t)random_u32();
            float v, low = (float)(half ? f16_value(at) : bf16_value(at));
            float high =
                (float)(half ? f16_value((uint16_t)(at + 1)) : bf16_value((uint16_t)(at + 1)));
            memcpy(&v, &bits, 4);
            if (i % 4 == 1) v = low;
            if (i % 4 >= 2) v = (low + high) / 2; // ties and their neighbours
            if (i % 8 == 3) v = nextafterf(v, INFINITY);
            if (i % 8 == 7) v = nextafterf(v, -INFINITY);
            in[i] = v;
        }
        in[0] = 0.0f, in[1] = -0.0f, in[2] = INFINITY, in[3] = -INFINITY, in[4] = NAN;
        in[5] = 65519.996f, in[6] = 65520.0f, in[7] = FLT_MAX, in[8] = 0x1p-25f,
        in[9] = -0x1.8p-25f;
        in[10] = 0x1.ffep-15f, in[11] = 0x1.ffdp-15f, in[12] = 0x1p-149f;
        EXPECT(numbers(half ? NUMBERS_F32_TO_F16 : NUMBERS_F32_TO_BF16, in, out[0], N));
        EXPECT(numbers(half ? NUMBERS_PACK_F16 : NUMBERS_PACK_BF16, in, out[1], N));
        for (uint32_t i = 0; i < N; i++) {
            uint32_t want = nearest(in[i], half), minus = nearest(-in[i], half);
            if (out[0][i] != want) printf("%a gives %#x\n", in[i], out[0][i]);
            EXPECT_EQ(out[0][i], want);
            EXPECT_EQ(out[1][i], want | minus << 16);
        }
    }
}

static void pairs_multiply_and_add_with_one_rounding(void) {
    enum { N = 100000 };
    static uint32_t in[3 * N], out[N];
    if (LDBL_MANT_DIG < 64) SKIP("long double has too few digits for the exact sum");
    set_order(1, false);
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < 3 * N; i++) {
            in[i] = random_u32();
            // bfloat16: near enough to each other for an exact sum, tiny and huge ones too
            uint32_t exponent = i % 3 == 2 ? 127 : 112 + random_u32() % 30;
            if (i / 3 % 8 == 1) exponent = i % 3 == 2 ? 2 : 64 - random_u32() % 4;
            if (i / 3 % 8 == 3) exponent = i % 3 == 2 ? 40 : 127; // decides ties, far below the sum
            if (i / 3 % 8 == 2) exponent = i % 3 == 2 ? 254 : 190;
            if (!half) in[i] = (in[i] & 0x807f807fu) | exponent << 7 | exponent << 23;
        }
        EXPECT(numbers(half ? NUMBERS_FMA2_F16 : NUMBERS_FMA2_BF16, in, out, N));
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t shift = 0; shift < 32; shift += 16) {
                long double v[3];
                for (uint32_t k = 0; k < 3; k++) {
                    uint16_t bits = (uint16_t)(in[3 * i + k] >> shift);
                    v[k] = half ? f16_value(bits) : bf16_value(bits);
                }
                long double product = v[0] * v[1], sum = product + v[2], part = sum - product;
                long double error = (product - (sum - part)) + (v[2] - part);
                if (isfinite(sum) && error != 0)
                    sum = nextafterl(sum, error > 0 ? INFINITY : -INFINITY);
                uint16_t got = (uint16_t)(out[i] >> shift);
                EXPECT_EQ(got, nearest(sum, half));
            }
    }
}

static void other_functions_are_those_of_the_library(void) {
    enum { N = 300 };
    static float in[N], out[N][10];
    set_order(1, false);
    for (uint32_t i = 0; i < N; i++) in[i] = (float)i - 150.0f;
    in[1] = -INFINITY;
    EXPECT(numbers(NUMBERS_OTHERS, in, out, N));
    for (uint32_t i = 0; i < N; i++) {
        double x = in[i], e = exp2(x);
        if (e > FLT_MAX)
            EXPECT(isinf(out[i][0]));
        else
            EXPECT_NEAR(out[i][0], e < FLT_MIN ? 0.0 : e, e * 2 * FLT_EPSILON);
        if (x > -80 && x < 80) EXPECT_NEAR(out[i][1], exp(x), exp(x) * 2 * FLT_EPSILON);
        EXPECT_NEAR(out[i][2], tanh(x), 2 * FLT_EPSILON);
        EXPECT_NEAR(out[i][3], 1 / sqrt(fmax(x, 0.5)), 2 * FLT_EPSILON);
        EXPECT(out[i][4] == fmin(x, 0.5));
        EXPECT(out[i][5] == x && out[i][7] == x);
        if (isfinite(x)) EXPECT(out[i][6] == x * x - x);
        uint32_t n_ones = 0, n_zeros = 32;
        for (uint32_t k = i; k > 0; k >>= 1) n_ones += k & 1, n_zeros--;
        EXPECT_EQ(out[i][8], n_ones);
        EXPECT_EQ(out[i][9], n_zeros);
    }
    EXPECT(out[1][0] == 0.0f);
}

/* ---- launches ---- */
static void launches_have_limits(void) {
    static uint32_t out[64];
    emul_test_params p = {.out = out, .scratch = out};
    emul_options o = {.seed = 1, .shared_bytes_max = 1000};
    EXPECT(!launch_grid("where", 0, 1, 1, 32, 0, &p) && strstr(why, "dimension of 0"));
    EXPECT(!launch_grid("where", 1, 65536, 1, 32, 0, &p) && strstr(why, "65535"));
    EXPECT(!launch_grid("where", 1u << 31, 1, 1, 32, 0, &p) && strstr(why, "2147483647"));
    EXPECT(!launch_grid("where", 1u << 20, 60000, 60000, 32, 0, &p) && strstr(why, "emulation"));
    EXPECT(!launch_grid("access", 1, 1, 1, 64, 0, &p) && strstr(why, "the kernel's bound is 32"));
    EXPECT(!launch_grid("where", 1, 1, 1, 48, 0, &p) && strstr(why, "whole warps"));
    EXPECT(!launch_grid("where", 1, 1, 1, 0, 0, &p) && strstr(why, "whole warps"));
    EXPECT(!launch_grid("where", 1, 1, 1, 32, EMUL_SHARED_MAX + 1, &p) &&
           strstr(why, "limit is 232448"));
    emul_set_options(&o);
    EXPECT(!launch_grid("where", 1, 1, 1, 32, 1001, &p) && strstr(why, "limit is 1000"));
    EXPECT(launch_grid("where", 1, 1, 1, 32, 1000, &p));
    EXPECT_STR(why, "");
    const uint32_t grid[3] = {1, 1, 1};
    EXPECT(!emul_launch(NULL, grid, 32, 0, &p, sizeof p, 32, why, sizeof why));
    EXPECT(!emul_launch(emul_test_table[0].fn, grid, 32, 0, &p, EMUL_PARAMS_MAX + 1, 32, why, 10));
    EXPECT_EQ(strlen(why), 9);
}

static void a_local_array_fits_the_stack(void) {
    static uint32_t out[32];
    emul_test_params p = {.out = out, .n = 99};
    uint32_t want = 0;
    for (uint32_t i = 0; i < 2048; i++) want += i ^ 99;
    EXPECT(launch_ok("local_array", 2 - 1, 32, 0, &p));
    for (uint32_t t = 0; t < 32; t++) EXPECT_EQ(out[t], want);
}

static void *storm_thread(void *ctx) {
    uint32_t *n_failed = ctx;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t out[4] = {0};
        char text[EMUL_WHY_BYTES];
        const uint32_t grid[3] = {4, 1, 1};
        emul_test_params p = {.out = out, .n = 3};
        const cu_kernel *k = &emul_test_table[0];
        while (strcmp(k->name, "storm") != 0) k++;
        bool ok =
            emul_launch(k->fn, grid, 256, 128, &p, sizeof p, k->threads_max, text, sizeof text);
        for (uint32_t b = 0; b < 4; b++) ok = ok && out[b] == 3 * 255 * 128;
        *n_failed += !ok;
    }
    return NULL;
}

static void host_threads_take_turns(void) {
    pthread_t threads[4];
    uint32_t n_failed[4] = {0};
    set_order(5, true);
    for (uint32_t i = 0; i < 4; i++)
        EXPECT(pthread_create(&threads[i], NULL, storm_thread, &n_failed[i]) == 0);
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(n_failed[i], 0);
    }
}

static void full_blocks_run(void) {
    static uint32_t out[50];
    for (uint32_t order = 0; order < 2; order++) {
        set_nth_order(order);
        emul_test_params p = {.out = out, .n = 10};
        EXPECT(launch_ok("storm", 2, 1024, 128, &p));
        EXPECT_EQ(out[1], 10 * 1023 * 512);
        EXPECT(launch_ok("storm", 50, 128, 128, &p));
        EXPECT_EQ(out[49], 10 * 127 * 64);
    }
}

static const test_case cases[] = {
    TEST(threads_know_where_they_are),
    TEST(order_is_as_written_or_by_seed),
    TEST(barriers_order_a_block),
    TEST(broken_meetings_are_named),
    TEST(shuffles_move_what_they_say),
    TEST(races_in_a_block_are_found),
    TEST(blocks_talk_through_counters),
    TEST(copies_arrive_at_the_wait),
    TEST(broken_copies_are_named),
    TEST(copies_read_their_source_at_any_time),
    TEST(accesses_are_checked),
    TEST(shared_memory_begins_as_nan),
    TEST(waiting_in_a_loop_is_found),
    TEST(dependents_wait_before_they_touch),
    TEST(products_are_right),
    TEST(every_fragment_position_is_right),
    TEST(products_of_tf32_are_right),
    TEST(broken_matrices_are_named),
    TEST(all_16_bit_values_become_floats),
    TEST(floats_round_to_the_nearest),
    TEST(pairs_multiply_and_add_with_one_rounding),
    TEST(other_functions_are_those_of_the_library),
    TEST(launches_have_limits),
    TEST(a_local_array_fits_the_stack),
    TEST(host_threads_take_turns),
    TEST(full_blocks_run),
};
TEST_MAIN(cases)
