/* test_threads.c - the thread pool, and how many threads a process may have. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/machine.h"
#include "cpu/threads.h"
#include "test.h"

static tpool *open_tpool(uint32_t n_threads) {
    inferd_err err = {0};
    tpool *p = NULL;
    EXPECT_EQ(tpool_open(n_threads, &p, &err), INFERD_OK);
    EXPECT_EQ(tpool_n_threads(p), n_threads);
    return p;
}

static void pause_us(long us) {
    struct timespec t = {.tv_nsec = us * 1000};
    nanosleep(&t, NULL);
}

/* ---- running ---- */

typedef struct ranks {
    uint32_t calls[8];
    uint32_t n_ranks;
} ranks;

static void mark_rank(void *ctx, uint32_t rank, uint32_t n_ranks) {
    ranks *r = ctx;
    r->calls[rank]++; // a rank's own place
    if (rank == 0) r->n_ranks = n_ranks;
}

static void every_rank_runs_once(void) {
    for (uint32_t n = 1; n <= 8; n++) {
        tpool *p = open_tpool(n);
        ranks r = {0};
        tpool_run(p, mark_rank, &r);
        EXPECT_EQ(r.n_ranks, n);
        for (uint32_t i = 0; i < 8; i++) EXPECT_EQ(r.calls[i], i < n);
        tpool_run_alone(p, mark_rank, &r);
        EXPECT_EQ(r.n_ranks, 1);
        EXPECT_EQ(r.calls[0], 2);
        tpool_close(p);
    }
}

typedef struct late_job {
    uint32_t *times; // [LATE_N] how often each was done
    uint32_t round;
} late_job;
enum { LATE_N = 5, LATE_ROUNDS = 4000 };

static void count_late(const void *job, uint32_t begin, uint32_t end) {
    const late_job *j = job;
    for (uint32_t i = begin; i < end; i++) j->times[i] += j->round; // i is this rank's
}

/* Many more ranks than there is work, or are CPUs: most come when the work is done, some when the
 * next has begun, and none of them finds work that is not its own. */
static void a_late_thread_does_nothing(void) {
    tpool *p = open_tpool(6);
    for (uint32_t round = 1; round <= LATE_ROUNDS; round++) {
        uint32_t times[LATE_N] = {0}, n = 1 + round % LATE_N; // gone when the round is over
        tpool_share(p, count_late, &(late_job){times, round}, n);
        for (uint32_t i = 0; i < LATE_N; i++)
            if (times[i] != (i < n ? round : 0)) EXPECT_EQ(times[i], i < n ? round : 0);
        if (round % 512 == 0) pause_us(300); // they sleep meanwhile
        if (round % 97 != 0) continue;
        ranks r = {0};
        tpool_run(p, mark_rank, &r); // all are called, also those that were not waited for
        for (uint32_t i = 0; i < 6; i++) EXPECT_EQ(r.calls[i], 1);
    }
    tpool_close(p);
}

typedef struct sum_job {
    const uint32_t *in;
    uint64_t *out; // [n] one per element
} sum_job;

static void square(const void *job, uint32_t begin, uint32_t end) {
    const sum_job *j = job;
    for (uint32_t i = begin; i < end; i++) j->out[i] = (uint64_t)j->in[i] * j->in[i];
}

/* Each run reads what the run before wrote on other threads, without any lock of its own: under
 * the thread sanitizer this shows that fork and join order memory. */
static void runs_see_what_earlier_runs_wrote(void) {
    enum { N = 100, RUNS = 2000 };
    tpool *p = open_tpool(3);
    uint32_t in[N];
    uint64_t out[N];
    for (uint32_t run = 0; run < RUNS; run++) {
        for (uint32_t i = 0; i < N; i++) in[i] = i + run;
        if (run % 2 == 0)
            tpool_split(p, square, &(sum_job){in, out}, N);
        else
            tpool_share(p, square, &(sum_job){in, out}, N);
        uint64_t sum = 0, expected = 0;
        for (uint32_t i = 0; i < N; i++) {
            sum += out[i];
            expected += (uint64_t)(i + run) * (i + run);
        }
        if (sum != expected) test_failures++;
        if (run % 500 == 499) pause_us(2000); // long enough for the workers to fall asleep
    }
    EXPECT_EQ(test_failures, 0);
    tpool_close(p);
}

typedef struct cover_job {
    atomic_uint *counts;
} cover_job;

static void cover(const void *job, uint32_t begin, uint32_t end) {
    const cover_job *j = job;
    EXPECT(begin < end);
    for (uint32_t i = begin; i < end; i++) atomic_fetch_add(&j->counts[i], 1);
}

static void ranges_cover_everything_once(void) {
    enum { N_MAX = 70 };
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads += 2) {
        tpool *p = open_tpool(n_threads);
        for (uint32_t n = 0; n < N_MAX; n++) {
            atomic_uint counts[N_MAX] = {0};
            cover_job job = {counts};
            tpool_split(p, cover, &job, n);
            tpool_share(p, cover, &job, n);
            if (n > 0) tpool_alone(p, cover, &job, n);
            for (uint32_t i = 0; i < N_MAX; i++) EXPECT_EQ(counts[i], i < n ? 3 : 0);
        }
        tpool_close(p);
    }
}

/* ---- rows of phases ---- */

enum { CELLS = 37 };

typedef struct cells {
    const uint64_t *in; // [CELLS]; written by other ranks in the phase before
    uint64_t *out;      // [CELLS]
    uint64_t *own;      // [8] of each rank
    uint32_t salt;
} cells;

static uint64_t mix(uint64_t sum, uint32_t i, uint32_t salt) {
    return (sum ^ i) * 0x9e3779b97f4a7c15u + salt;
}

/* Every part reads all cells: whoever leaves a barrier early finds old ones. */
static void mix_cells(const void *job, uint32_t begin, uint32_t end) {
    const cells *c = job;
    for (uint32_t i = begin; i < end; i++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; k < CELLS; k++) sum += c->in[k];
        c->out[i] = mix(sum, i, c->salt);
    }
}

static void count_own(const void *job, uint32_t begin, uint32_t end) {
    const cells *c = job;
    EXPECT_EQ(end, begin + 1);
    c->own[begin] += c->salt;
}

/* Rows of all kinds of phases give what one thread gives, under the thread sanitizer too. */
static void phases_run_in_order_on_any_number_of_threads(void) {
    enum { PHASES = 60, ROWS = 40 };
    static const phase_how kinds[] = {PHASE_SPLIT, PHASE_SHARE, PHASE_EACH,  PHASE_SHARE,
                                      PHASE_SHARE, PHASE_ALONE, PHASE_ALONE, PHASE_EACH,
                                      PHASE_EACH,  PHASE_SPLIT, PHASE_ALONE, PHASE_SHARE};
    uint64_t expected[CELLS] = {0};
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        tpool *p = open_tpool(n_threads);
        uint64_t table[2][CELLS] = {{0}}, own[8] = {0}, salts = 0;
        cells jobs[PHASES];
        tpool_phase phases[PHASES];
        static const unsigned char matrix[5 * CELLS];
        const tpool_reads reads = {{{matrix, 1, CELLS / 2}, {matrix + 1, 5, CELLS - CELLS / 2}}, 2};
        for (uint32_t row = 0; row < ROWS; row++) {
            for (uint32_t i = 0, side = 0; i < PHASES; i++) {
                phase_how how = kinds[(i * 7 + row) % INFERD_COUNT(kinds)];
                jobs[i] = (cells){table[side], table[1 - side], own, i + 1};
                phases[i] = (tpool_phase){mix_cells, &jobs[i], CELLS, how,
                                          how == PHASE_SPLIT ? &reads : NULL};
                if (how == PHASE_EACH) {
                    phases[i].f = count_own;
                    salts += i + 1;
                } else {
                    side = 1 - side;
                }
            }
            tpool_phases(p, phases, PHASES - row % 5);
            for (uint32_t i = PHASES - row % 5; i < PHASES; i++)
                if (phases[i].how == PHASE_EACH) salts -= i + 1;
            if (row % 10 == 9) pause_us(500); // long enough for the workers to fall asleep
        }
        if (n_threads == 1) memcpy(expected, table[0], sizeof expected);
        EXPECT(memcmp(table[0], expected, sizeof expected) == 0);
        uint64_t counted = 0;
        for (uint32_t rank = 0; rank < 8; rank++) {
            counted += own[rank];
            EXPECT(rank == 0 || rank < n_threads || own[rank] == 0);
        }
        if (!tpool_is_crowded(p)) // of the last rows at least; a crowded pool has fewer ranks
            EXPECT(counted >= salts && counted <= salts * n_threads);
        tpool_close(p);
    }
}

static void phases_cover_everything_once(void) {
    enum { N_MAX = 20 };
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        tpool *p = open_tpool(n_threads);
        for (uint32_t n = 0; n < N_MAX; n++) {
            atomic_uint counts[N_MAX] = {0};
            cover_job job = {counts};
            const tpool_phase phases[] = {{cover, &job, n, PHASE_SPLIT},
                                          {cover, &job, n, PHASE_SHARE},
                                          {cover, &job, n, PHASE_ALONE},
                                          {cover, &job, n, PHASE_SHARE},
                                          {cover, &job, n, PHASE_SHARE}};
            tpool_phases(p, phases, INFERD_COUNT(phases));
            for (uint32_t i = 0; i < N_MAX; i++) EXPECT_EQ(counts[i], i < n ? 5 : 0);
        }
        tpool_phases(p, NULL, 0);
        tpool_close(p);
    }
}

static void sleeping_workers_wake_up(void) {
    tpool *p = open_tpool(4);
    for (int i = 0; i < 20; i++) {
        ranks r = {0};
        pause_us(1000); // longer than workers spin
        tpool_run(p, mark_rank, &r);
        for (uint32_t rank = 0; rank < 4; rank++) EXPECT_EQ(r.calls[rank], 1);
    }
    tpool_close(p);
}

static void tpool_closes_awake_and_asleep(void) {
    for (int i = 0; i < 10; i++) {
        tpool *p = open_tpool(3);
        if (i % 2 == 0) pause_us(1000);
        tpool_close(p);
    }
    tpool_close(NULL);
}

static void too_many_threads_are_refused(void) {
    inferd_err err = {0};
    tpool *p;
    EXPECT_EQ(tpool_open(TPOOL_THREADS_MAX + 1, &p, &err), INFERD_EINVAL);
    EXPECT(p == NULL);
    EXPECT(strstr(err.text, "257") != NULL);
}

static void default_is_the_cpus_allowed(void) {
    inferd_err err = {0};
    tpool *p;
    EXPECT_EQ(tpool_open(0, &p, &err), INFERD_OK);
    EXPECT_EQ(tpool_n_threads(p), machine_cpus_allowed());
    tpool_close(p);
}

/* ---- denormals ---- */

static volatile float tiny = 1e-30f;

static void multiply_tiny(void *ctx, uint32_t rank, uint32_t n_ranks) {
    (void)n_ranks;
    ((float *)ctx)[rank] = tiny * tiny * 1e25f * tiny; // the result would be a denormal or zero
    ((float *)ctx)[rank] = 1e-20f * tiny * 1e10f;      // 1e-40 would be a denormal
}

static void denormals_are_zero_on_all_ranks_while_running(void) {
#if defined(__x86_64__) || defined(__aarch64__)
    tpool *p = open_tpool(2);
    float out[2] = {1, 1};
    tiny = 1e-30f;
    tpool_run(p, multiply_tiny, out);
    EXPECT(out[0] == 0 && out[1] == 0);
    out[0] = 1;
    tpool_run_alone(p, multiply_tiny, out);
    EXPECT(out[0] == 0);
    volatile float x = 1e-30f, y = 1e-10f;
    EXPECT(x * y > 0); // and the caller has its own mode back
    tpool_close(p);
#else
    SKIP("no such mode here");
#endif
}

/* ---- pinning ---- */

static uint32_t cpus_of_caller(void) {
    cpu_set_t set;
    EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    return (uint32_t)CPU_COUNT(&set);
}

static void caller_is_pinned_and_gets_its_mask_back(void) {
    uint32_t n_cpus = cpus_of_caller();
    tpool *p = open_tpool(n_cpus);
    tpool_pin_caller(p);
    EXPECT_EQ(cpus_of_caller(), 1);
    tpool_pin_caller(p);
    tpool_close(p);
    EXPECT_EQ(cpus_of_caller(), n_cpus);
}

static void no_thread_is_pinned_when_threads_are_not_the_cpus(void) {
    uint32_t n_cpus = cpus_of_caller();
    tpool *p = open_tpool(n_cpus + 1);
    tpool_pin_caller(p);
    EXPECT_EQ(cpus_of_caller(), n_cpus);
    tpool_close(p);
}

/* ---- foreign load ---- */

enum { CALM_US = 20000, RUNS_MAX = 1000 };

/* Runs of 20 ms, of which ranks are away for off_us, until `crowded` is so; how many it took. */
static int judge_until(tpool *p, uint64_t off_us, bool crowded) {
    int n = 0;
    while (n < RUNS_MAX && tpool_is_crowded(p) != crowded) tpool_judge(p, CALM_US, off_us), n++;
    EXPECT(n < RUNS_MAX);
    return n;
}

static void rank_that_is_kept_away_is_left_out_and_tried_again(void) {
    tpool *p = open_tpool(2);
    for (int i = 0; i < 100; i++) tpool_judge(p, CALM_US, CALM_US / 8); // our own other threads
    EXPECT(!tpool_is_crowded(p));
    for (int i = 0; i < 10; i++) { // a hiccup, and it is over
        tpool_judge(p, CALM_US, CALM_US / 2);
        EXPECT(!tpool_is_crowded(p));
        tpool_judge(p, CALM_US, 0);
    }
    EXPECT_EQ(judge_until(p, CALM_US / 2, true), 2);
    int first = judge_until(p, 0, false);
    EXPECT(first * CALM_US <= 100000);
    EXPECT_EQ(judge_until(p, CALM_US / 2, true), 2); // the try went wrong
    EXPECT(judge_until(p, 0, false) > first);
    tpool_close(p);
}

static void short_time_away_is_enough_when_it_is_most_of_it(void) {
    tpool *p = open_tpool(2);
    for (int i = 0; i < 16 && !tpool_is_crowded(p); i++) tpool_judge(p, 1500, 1000);
    EXPECT(tpool_is_crowded(p));
    tpool_close(p);
}

static void one_rank_always_remains(void) {
    tpool *p = open_tpool(3);
    for (int i = 0; i < 10; i++) tpool_judge(p, CALM_US, 3 * CALM_US);
    EXPECT(tpool_is_crowded(p));
    atomic_uint counts[5] = {0};
    cover_job job = {counts};
    tpool_phase phase = {cover, &job, 5, PHASE_SPLIT};
    tpool_phases(p, &phase, 1);
    tpool_split(p, cover, &job, 5);
    for (int i = 0; i < 5; i++) EXPECT_EQ(counts[i], 2);
    ranks r = {0};
    tpool_run(p, mark_rank, &r); // and tpool_run is on every rank all the same
    for (uint32_t rank = 0; rank < 3; rank++) EXPECT_EQ(r.calls[rank], 1);
    tpool_close(p);
}

static void a_crowded_tpool_pins_no_thread(void) {
    uint32_t n_cpus = cpus_of_caller();
    if (n_cpus < 2) SKIP("needs two CPUs");
    tpool *p = open_tpool(n_cpus);
    tpool_pin_caller(p);
    EXPECT_EQ(cpus_of_caller(), 1);
    judge_until(p, CALM_US, true);
    EXPECT_EQ(cpus_of_caller(), n_cpus);
    judge_until(p, 0, false);
    EXPECT_EQ(cpus_of_caller(), 1);
    tpool_close(p);
    EXPECT_EQ(cpus_of_caller(), n_cpus);
}

/* ---- control groups, as files ---- */

typedef struct group_tree {
    char root[64], groups[96];
} group_tree;

static group_tree tree_make(const char *groups) {
    group_tree t;
    snprintf(t.root, sizeof t.root, "test_threads_XXXXXX");
    EXPECT(mkdtemp(t.root) != NULL);
    snprintf(t.groups, sizeof t.groups, "%s/self", t.root);
    FILE *f = fopen(t.groups, "w");
    EXPECT(f != NULL);
    if (f == NULL) return t;
    fputs(groups, f);
    fclose(f);
    return t;
}

/* A file with `text` at root/path; the folders on the way are made. */
static void tree_write(const group_tree *t, const char *path, const char *text) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", t->root, path);
    for (char *slash = strchr(full + strlen(t->root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    EXPECT(f != NULL);
    if (f == NULL) return;
    fputs(text, f);
    fclose(f);
}

static void tree_remove(const group_tree *t) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", t->root);
    EXPECT_EQ(system(command), 0);
}

static void quota_of_version_2_is_the_tightest_on_the_way(void) {
    group_tree t = tree_make("0::/a/b\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 0);
    tree_write(&t, "a/b/cpu.max", "max 100000\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 0);
    tree_write(&t, "a/cpu.max", "250000 100000\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 3); // 2.5, rounded up
    tree_write(&t, "a/b/cpu.max", "50000 100000\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 1);
    tree_write(&t, "a/memory.max", "1073741824\n");
    tree_write(&t, "a/b/memory.max", "max\n");
    EXPECT_EQ(machine_group_memory(t.groups, t.root), 1 << 30);
    tree_remove(&t);
}

static void quota_inside_a_container_is_at_the_mount(void) {
    group_tree t = tree_make("0::/\n");
    tree_write(&t, "cpu.max", "400000 100000\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 4);
    tree_remove(&t);
    t = tree_make("0::/not/visible/here\n");
    tree_write(&t, "cpu.max", "200000 100000\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 2);
    tree_remove(&t);
}

static void quota_of_version_1_is_found_under_its_controller(void) {
    group_tree t = tree_make("12:cpuset:/x\n4:cpu,cpuacct:/docker/8f\n3:memory:/docker/8f\n0::/\n");
    tree_write(&t, "cpu,cpuacct/docker/8f/cpu.cfs_quota_us", "-1\n");
    tree_write(&t, "cpu,cpuacct/docker/8f/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 0);
    tree_write(&t, "cpu,cpuacct/docker/8f/cpu.cfs_quota_us", "150000\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 2);
    tree_write(&t, "memory/memory.limit_in_bytes", "4096\n");
    EXPECT_EQ(machine_group_memory(t.groups, t.root), 4096);
    tree_remove(&t);
}

static void broken_group_files_are_no_limit(void) {
    group_tree t = tree_make("nonsense\n0\n0::/a\n");
    tree_write(&t, "a/cpu.max", "many\n");
    tree_write(&t, "cpu.max", "-5 0\n");
    tree_write(&t, "a/memory.max", "\n");
    EXPECT_EQ(machine_group_cpus(t.groups, t.root), 0);
    EXPECT_EQ(machine_group_memory(t.groups, t.root), 0);
    EXPECT_EQ(machine_group_cpus("no/such/file", t.root), 0);
    tree_remove(&t);
}

static void this_machine_has_cpus_and_memory(void) {
    EXPECT(machine_cpus_allowed() >= 1);
    EXPECT(machine_cpus_allowed() <= machine_cpus_in_mask());
    EXPECT(machine_memory_bytes() > 64 << 20);
}

static const test_case cases[] = {
    TEST(every_rank_runs_once),
    TEST(a_late_thread_does_nothing),
    TEST(runs_see_what_earlier_runs_wrote),
    TEST(ranges_cover_everything_once),
    TEST(phases_run_in_order_on_any_number_of_threads),
    TEST(phases_cover_everything_once),
    TEST(sleeping_workers_wake_up),
    TEST(tpool_closes_awake_and_asleep),
    TEST(too_many_threads_are_refused),
    TEST(default_is_the_cpus_allowed),
    TEST(denormals_are_zero_on_all_ranks_while_running),
    TEST(caller_is_pinned_and_gets_its_mask_back),
    TEST(no_thread_is_pinned_when_threads_are_not_the_cpus),
    TEST(rank_that_is_kept_away_is_left_out_and_tried_again),
    TEST(short_time_away_is_enough_when_it_is_most_of_it),
    TEST(one_rank_always_remains),
    TEST(a_crowded_tpool_pins_no_thread),
    TEST(quota_of_version_2_is_the_tightest_on_the_way),
    TEST(quota_inside_a_container_is_at_the_mount),
    TEST(quota_of_version_1_is_found_under_its_controller),
    TEST(broken_group_files_are_no_limit),
    TEST(this_machine_has_cpus_and_memory),
};
TEST_MAIN(cases)
