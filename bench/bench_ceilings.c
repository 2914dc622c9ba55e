/* bench_ceilings.c - the maximum rates of the CPU and the memory of this machine (roofs), for
 * comparison with other figures.
 *
 *     bench_ceilings [--json] [--threads N]      N: as many as the process may use
 *
 *     dram read          a buffer many times as large as the last cache, in huge pages if possible
 *     l3 read, l2 read   a piece that fits, repeatedly; every thread has its own
 *     clock              dependent rotations, one per cycle
 *     NAME zmm, ymm      an instruction in more independent chains than its latency requires
 *     barrier            all threads meet, spinning
 *     fork, join         an empty job on the backend's thread pool
 *     futex wake         from the call until the sleeping thread runs; and the call's own time
 *
 * A sample takes half a millisecond, and a row has as many samples as fit in ROW_US.  A row shows
 * the best sample, which is the machine's limit, and the median, which includes interference from
 * other processes.  A row for all threads is one job of the pool: rates are sums, the time is that
 * of the slowest thread.
 *
 * The loops are assembly with fixed registers, so the compiler cannot spill, merge or remove
 * anything.  An instruction that the machine lacks has no row; a CPU other than x86-64 has rows for
 * memory and threads only.
 *
 * With --json each row is an object on its own line:
 *
 *     {"bench":"ceiling","what":"dram read","threads":2,"best":85,"median":72,"unit":"GB/s"} */
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cpu/threads.h"

enum {
    SAMPLE_US = 500,
    ROW_US = 80000,
    SAMPLES_MAX = 1000,
    LINE_BYTES = 64,
    LOOP_BYTES = 8 * LINE_BYTES, // one iteration of the reading loop
    BARRIERS = 1000,             // in one sample
    WAKES = 200
};
#define DRAM_BYTES ((size_t)512 << 20)
#define DRAM_PIECE ((size_t)8 << 20) // read in one sample by each thread

static bool as_json;

static double now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct figure {
    double best, median;
} figure;

/* Prints one row, as a table line or as JSON.  `best` is the greatest rate or the least time. */
static void tell(const char *what, uint32_t n_threads, figure f, const char *unit) {
    if (as_json)
        printf(
            "{\"bench\":\"ceiling\",\"what\":\"%s\",\"threads\":%u,\"best\":%.4g,\"median\":%.4g,"
            "\"unit\":\"%s\"}\n",
            what, n_threads, f.best, f.median, unit);
    else
        printf("%-26s %4u %12.4g %12.4g  %s\n", what, n_threads, f.best, f.median, unit);
    fflush(stdout);
}

/* ---- samples ---- */

typedef struct task {
    tpool_fn *f;
    void (*next)(void *ctx, uint32_t sample); // before each sample; NULL: nothing
    void *ctx;
    bool alone;
} task;

static double sample_us(tpool *p, const task *t, uint32_t sample) {
    if (t->next != NULL) t->next(t->ctx, sample);
    double begin_us = now_us();
    if (t->alone)
        tpool_run_alone(p, t->f, t->ctx);
    else
        tpool_run(p, t->f, t->ctx);
    return now_us() - begin_us;
}

/* Microseconds of one sample. */
static figure time_of(tpool *p, const task *t) {
    static double us[SAMPLES_MAX];
    uint32_t n = 0;
    for (double end_us = now_us() + ROW_US; n < SAMPLES_MAX && (n < 5 || now_us() < end_us); n++)
        us[n] = sample_us(p, t, n);
    qsort(us, n, sizeof us[0], by_value);
    return (figure){us[0], us[n / 2]};
}

/* Converts items per sample to 10^9 items per second. */
static figure giga_per_s(figure us, double n_things) {
    return (figure){n_things * 1e-3 / us.best, n_things * 1e-3 / us.median};
}

/* Number of repetitions in one sample of work that takes `once_us`. */
static uint32_t times_for_sample(double once_us) {
    return (uint32_t)(SAMPLE_US / (once_us > 0.01 ? once_us : 0.01)) + 1;
}

/* ---- reading memory ---- */

/* Reads all lines of [at, at + n_bytes) and prefetches each one `ahead` bytes before its load.
 * n_bytes is a multiple of LOOP_BYTES; prefetching past the end of memory is allowed. */
typedef void read_fn(const unsigned char *at, size_t n_bytes, size_t ahead);

#if defined(__x86_64__)

#define READ_LINE_ZMM(line, reg)                                                                   \
    "prefetcht0 " #line "*64(%[at],%[ahead])\n\t"                                                  \
    "vmovaps " #line "*64(%[at]), %%zmm" #reg "\n\t"
#define READ_LINE_YMM(line, reg)                                                                   \
    "prefetcht0 " #line "*64(%[at],%[ahead])\n\t"                                                  \
    "vmovaps " #line "*64(%[at]), %%ymm" #reg "\n\t"                                               \
    "vmovaps " #line "*64+32(%[at]), %%ymm" #reg "\n\t"
#define READ_LINE_XMM(line, reg)                                                                   \
    "prefetcht0 " #line "*64(%[at],%[ahead])\n\t"                                                  \
    "movaps " #line "*64(%[at]), %%xmm" #reg "\n\t"                                                \
    "movaps " #line "*64+16(%[at]), %%xmm" #reg "\n\t"                                             \
    "movaps " #line "*64+32(%[at]), %%xmm" #reg "\n\t"                                             \
    "movaps " #line "*64+48(%[at]), %%xmm" #reg "\n\t"

/* clang-format off */
#define READ_LOOP(width, after)                                                                    \
    static void read_##width(const unsigned char *at, size_t n_bytes, size_t ahead) {              \
        const unsigned char *end = at + n_bytes;                                                   \
        __asm__ volatile(                                                                          \
            ".p2align 5\n1:\n\t"                                                                   \
            READ_LINE_##width(0, 0) READ_LINE_##width(1, 1) READ_LINE_##width(2, 2)                \
            READ_LINE_##width(3, 3) READ_LINE_##width(4, 4) READ_LINE_##width(5, 5)                \
            READ_LINE_##width(6, 6) READ_LINE_##width(7, 7)                                        \
            "add $512, %[at]\n\tcmp %[end], %[at]\n\tjb 1b\n\t" after                              \
            : [at] "+r"(at)                                                                        \
            : [end] "r"(end), [ahead] "r"(ahead)                                                   \
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "memory", "cc");     \
    }
READ_LOOP(ZMM, "vzeroupper")
READ_LOOP(YMM, "vzeroupper")
READ_LOOP(XMM, "")
/* clang-format on */

static read_fn *reader(void) {
    return __builtin_cpu_supports("avx512f") ? read_ZMM
           : __builtin_cpu_supports("avx")   ? read_YMM
                                             : read_XMM;
}

#else

static void read_words(const unsigned char *at, size_t n_bytes, size_t ahead) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (const unsigned char *end = at + n_bytes; at < end; at += LINE_BYTES) {
        const uint64_t *w = (const uint64_t *)(const void *)at;
        __builtin_prefetch(at + ahead);
        a |= w[0] | w[4], b |= w[1] | w[5], c |= w[2] | w[6], d |= w[3] | w[7];
    }
    __asm__ volatile("" : : "r"(a | b | c | d));
}

static read_fn *reader(void) {
    return read_words;
}

#endif

typedef struct reading {
    read_fn *read;
    const unsigned char *base;
    size_t share;          // bytes that belong to each rank, from base + rank * share
    size_t begin, n_bytes; // of each share, in this sample
    size_t ahead;
    uint32_t n_times;
} reading;

static void read_share(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const reading *r = ctx;
    (void)n_ranks;
    for (uint32_t i = 0; i < r->n_times; i++)
        r->read(r->base + rank * r->share + r->begin, r->n_bytes, r->ahead);
}

/* The next piece; it is not in the caches, because the whole share was read since its last use. */
static void next_piece(void *ctx, uint32_t sample) {
    reading *r = ctx;
    r->begin = sample % (r->share / r->n_bytes) * r->n_bytes;
}

/* Each rank writes the memory it will read: the first touch decides where pages are placed. */
static void write_share(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const reading *r = ctx;
    (void)n_ranks;
    memset((unsigned char *)(uintptr_t)r->base + rank * r->share, 1, r->share);
}

/* The best of several prefetch distances: the best distance differs between CPUs. */
static figure read_rate(tpool *p, reading *r, const task *t, double n_ranks) {
    static const size_t distances[] = {0, 2048, 8192, 16384};
    figure best = {0, 0};
    for (size_t i = 0; i < INFERD_COUNT(distances); i++) {
        r->ahead = distances[i];
        r->n_times = 1;
        if (t->next == NULL) r->n_times = times_for_sample(sample_us(p, t, 0));
        figure f = giga_per_s(time_of(p, t), n_ranks * r->n_times * (double)r->n_bytes);
        if (f.median > best.median) best.median = f.median;
        if (f.best > best.best) best.best = f.best;
    }
    return best;
}

/* The cache size in /sys/devices/system/cpu/cpu0/cache for a level, 0 when unknown.  (sysconf adds
 * up all last-level caches of a machine, also those that these CPUs do not share.) */
static size_t cache_bytes(unsigned level) {
    for (int i = 0; i < 8; i++) {
        unsigned found = 0, kib = 0;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        FILE *f = fopen(path, "re");
        if (f == NULL) return 0;
        bool good = fscanf(f, "%u", &found) == 1 && found == level;
        fclose(f);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (!good || (f = fopen(path, "re")) == NULL) continue;
        good = fscanf(f, "%uK", &kib) == 1;
        fclose(f);
        if (good) return (size_t)kib << 10;
    }
    return 0;
}

static void bench_reads(tpool *p, unsigned char *memory, size_t n_bytes, size_t l2, size_t l3) {
    uint32_t n = tpool_n_threads(p);
    size_t share = n_bytes / n / DRAM_PIECE * DRAM_PIECE;
    reading r = {reader(), memory, share, 0, DRAM_PIECE, 0, 1};
    tpool_run(p, write_share, &r);
    for (int all = 0; all < (n > 1 ? 2 : 1); all++) {
        uint32_t n_ranks = all ? n : 1;
        r.share = all ? share : share * n;
        r.n_bytes = DRAM_PIECE;
        tell("dram read", n_ranks,
             read_rate(p, &r, &(task){read_share, next_piece, &r, !all}, n_ranks), "GB/s");
    }
    struct {
        const char *what;
        size_t n_bytes; // of each thread
    } levels[] = {{"l3 read", size_min(l2 * 4, l3 / 2 / n)}, {"l2 read", l2 / 2}};
    if (levels[0].n_bytes < l2 * 3 / 2) levels[0].n_bytes = 0; // it would mostly measure L2
    for (size_t i = 0; i < INFERD_COUNT(levels); i++) {
        r.begin = 0;
        r.share = share;
        r.n_bytes = size_min(levels[i].n_bytes, share) / LOOP_BYTES * LOOP_BYTES;
        if (r.n_bytes == 0) continue;
        for (int all = 0; all < (n > 1 ? 2 : 1); all++)
            tell(levels[i].what, all ? n : 1,
                 read_rate(p, &r, &(task){read_share, NULL, &r, !all}, all ? n : 1), "GB/s");
    }
}

/* ---- arithmetic ---- */

#if defined(__x86_64__)

/* Accumulators are registers 0 and up, factors 14 and 15.  Where the instruction set needs one
 * instruction for the product and one for the sum, the product is in 13. */
/* clang-format off */
#define CHAINS10(one)                                                                              \
    one(0) one(1) one(2) one(3) one(4) one(5) one(6) one(7) one(8) one(9)
#define CHAINS14(one) CHAINS10(one) one(10) one(11) one(12) one(13)

#define PEAK_LOOP(name, width, chains)                                                             \
    static void peak_##name(uint64_t n_turns) {                                                    \
        __asm__ volatile(                                                                          \
            "vmovaps (%[factors]), %%" #width "14\n\t"                                             \
            "vmovaps (%[factors]), %%" #width "15\n\t"                                             \
            CHAINS14(CLEAR)                                                                        \
            ".p2align 5\n1:\n\t"                                                                   \
            chains                                                                                 \
            "dec %[n]\n\tjnz 1b\n\tvzeroupper"                                                     \
            : [n] "+r"(n_turns)                                                                    \
            : [factors] "r"(factors)                                                               \
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",      \
              "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc");                         \
    }
/* clang-format on */

/* 1.0 as bf16, close to 1.0 as float, and not zero as bytes: neither denormal nor a zero, which may
 * be faster to compute. */
#define FACTOR 0x3f803f80
static const uint32_t factors[16]
    __attribute__((aligned(64))) = {FACTOR, FACTOR, FACTOR, FACTOR, FACTOR, FACTOR, FACTOR, FACTOR,
                                    FACTOR, FACTOR, FACTOR, FACTOR, FACTOR, FACTOR, FACTOR, FACTOR};

#define CLEAR(i)    "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t" // clears the whole register
#define FMA_ZMM(i)  "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #i "\n\t"
#define FMA_YMM(i)  "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n\t"
#define BF16_ZMM(i) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #i "\n\t"
#define BUSD_ZMM(i) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #i "\n\t"
#define WSSD_ZMM(i) "vpdpwssd %%zmm14, %%zmm15, %%zmm" #i "\n\t"
#define BUSD_YMM(i) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #i "\n\t"
#define WSSD_YMM(i) "%{vex%} vpdpwssd %%ymm14, %%ymm15, %%ymm" #i "\n\t"
#define MADDWD_ZMM(i)                                                                              \
    "vpmaddwd %%zmm14, %%zmm15, %%zmm13\n\tvpaddd %%zmm13, %%zmm" #i ", %%zmm" #i "\n\t"
#define MADDWD_YMM(i)                                                                              \
    "vpmaddwd %%ymm14, %%ymm15, %%ymm13\n\tvpaddd %%ymm13, %%ymm" #i ", %%ymm" #i "\n\t"
#define MADDUBSW_YMM(i)                                                                            \
    "vpmaddubsw %%ymm14, %%ymm15, %%ymm13\n\tvpmaddwd %%ymm14, %%ymm13, %%ymm13\n\t"               \
    "vpaddd %%ymm13, %%ymm" #i ", %%ymm" #i "\n\t"

/* clang-format off */
PEAK_LOOP(fma_zmm, zmm, CHAINS14(FMA_ZMM))
PEAK_LOOP(fma_ymm, ymm, CHAINS14(FMA_YMM))
PEAK_LOOP(bf16_zmm, zmm, CHAINS14(BF16_ZMM))
PEAK_LOOP(busd_zmm, zmm, CHAINS14(BUSD_ZMM))
PEAK_LOOP(wssd_zmm, zmm, CHAINS14(WSSD_ZMM))
PEAK_LOOP(busd_ymm, ymm, CHAINS14(BUSD_YMM))
PEAK_LOOP(wssd_ymm, ymm, CHAINS14(WSSD_YMM))
PEAK_LOOP(maddwd_zmm, zmm, CHAINS10(MADDWD_ZMM))
PEAK_LOOP(maddwd_ymm, ymm, CHAINS10(MADDWD_YMM))
PEAK_LOOP(maddubsw_ymm, ymm, CHAINS10(MADDUBSW_YMM))
/* clang-format on */

/* A rotation needs the previous result and takes one cycle on every CPU: iterations are cycles. */
static void peak_clock(uint64_t n_turns) {
    uint64_t x = 1;
    __asm__ volatile(".p2align 5\n1:\n\t"
                     "ror $1, %[x]\n\tror $1, %[x]\n\tror $1, %[x]\n\tror $1, %[x]\n\t"
                     "ror $1, %[x]\n\tror $1, %[x]\n\tror $1, %[x]\n\tror $1, %[x]\n\t"
                     "dec %[n]\n\tjnz 1b"
                     : [n] "+r"(n_turns), [x] "+r"(x)
                     :
                     : "cc");
}

/* CPUID leaf 7, subleaf 1: the compiler's run-time check has no name for this feature. */
static bool has_avx_vnni(void) {
    uint32_t a = 7, b = 0, c = 1, d = 0;
    if (!__builtin_cpu_supports("avx2")) return false; // ensures that the OS saves the registers
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (a >> 4 & 1) != 0;
}

typedef struct peak {
    const char *what, *unit;
    void (*f)(uint64_t n_turns);
    double ops_per_turn; // a product and its addition are two
    bool is_there;
} peak;

typedef struct turns {
    void (*f)(uint64_t n_turns);
    uint64_t n;
} turns;

static void turn(void *ctx, uint32_t rank, uint32_t n_ranks) {
    const turns *t = ctx;
    (void)rank, (void)n_ranks;
    t->f(t->n);
}

static void bench_peaks(tpool *p) {
    bool avx2 = __builtin_cpu_supports("avx2"), avx512 = __builtin_cpu_supports("avx512bw");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni"), avx_vnni = has_avx_vnni();
    bool fma = avx2 && __builtin_cpu_supports("fma");
    bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    const peak peaks[] = {
        {"clock", "GHz", peak_clock, 8, true},
        {"vfmadd231ps zmm", "GFLOP/s", peak_fma_zmm, 14 * 32, avx512},
        {"vdpbf16ps zmm", "GFLOP/s", peak_bf16_zmm, 14 * 64, bf16},
        {"vpdpbusd zmm", "GOP/s", peak_busd_zmm, 14 * 128, vnni},
        {"vpdpwssd zmm", "GOP/s", peak_wssd_zmm, 14 * 64, vnni},
        {"vpmaddwd+vpaddd zmm", "GOP/s", peak_maddwd_zmm, 10 * 64, avx512},
        {"vfmadd231ps ymm", "GFLOP/s", peak_fma_ymm, 14 * 16, fma},
        {"vpdpbusd ymm", "GOP/s", peak_busd_ymm, 14 * 64, avx_vnni},
        {"vpdpwssd ymm", "GOP/s", peak_wssd_ymm, 14 * 32, avx_vnni},
        {"vpmaddwd+vpaddd ymm", "GOP/s", peak_maddwd_ymm, 10 * 32, avx2},
        {"vpmaddubsw+.. ymm", "GOP/s", peak_maddubsw_ymm, 10 * 64, avx2},
    };
    uint32_t n = tpool_n_threads(p);
    for (size_t i = 0; i < INFERD_COUNT(peaks); i++) {
        if (!peaks[i].is_there) continue;
        turns t = {peaks[i].f, 1000};
        task one = {turn, NULL, &t, true}, all = {turn, NULL, &t, false};
        sample_us(p, &one, 0); // powers up the wide units
        t.n = 1000ull * times_for_sample(sample_us(p, &one, 0));
        double n_ops = peaks[i].ops_per_turn * (double)t.n;
        tell(peaks[i].what, 1, giga_per_s(time_of(p, &one), n_ops), peaks[i].unit);
        if (n > 1 && peaks[i].f != peak_clock)
            tell(peaks[i].what, n, giga_per_s(time_of(p, &all), n_ops * n), peaks[i].unit);
    }
}

#else
static void bench_peaks(tpool *p) {
    (void)p;
}
#endif

/* ---- threads ---- */

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

typedef struct meeting {
    _Alignas(64) atomic_uint n_here;
    _Alignas(64) atomic_uint round;
} meeting;

static void meet(meeting *m, uint32_t n_ranks) {
    unsigned round = atomic_load_explicit(&m->round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&m->n_here, 1, memory_order_acq_rel) + 1 == n_ranks) {
        atomic_store_explicit(&m->n_here, 0, memory_order_relaxed);
        atomic_store_explicit(&m->round, round + 1, memory_order_release);
        return;
    }
    while (atomic_load_explicit(&m->round, memory_order_acquire) == round) relax();
}

static void meet_often(void *ctx, uint32_t rank, uint32_t n_ranks) {
    (void)rank;
    for (int i = 0; i < BARRIERS; i++) meet(ctx, n_ranks);
}

static void nothing(void *ctx, uint32_t rank, uint32_t n_ranks) {
    (void)ctx, (void)rank, (void)n_ranks;
}

/* Rank 1 sleeps, rank 0 wakes it. */
typedef struct waking {
    _Alignas(64) atomic_uint word; // raised to wake
    atomic_uint n_awake;
    double called_us[WAKES], returned_us[WAKES], awake_us[WAKES];
} waking;

static long futex(atomic_uint *word, int op, unsigned value) {
    return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void wake_often(void *ctx, uint32_t rank, uint32_t n_ranks) {
    waking *w = ctx;
    (void)n_ranks;
    for (unsigned i = 0; i < WAKES; i++) {
        if (rank == 1) {
            while (atomic_load(&w->word) == i) futex(&w->word, FUTEX_WAIT, i);
            w->awake_us[i] = now_us();
            atomic_fetch_add(&w->n_awake, 1);
        } else if (rank == 0) {
            double asleep_us = now_us() + 100; // by then it certainly sleeps
            while (now_us() < asleep_us) relax();
            w->called_us[i] = now_us();
            atomic_store(&w->word, i + 1);
            futex(&w->word, FUTEX_WAKE, 1);
            w->returned_us[i] = now_us();
            while (atomic_load(&w->n_awake) != i + 1) relax();
        }
    }
}

static void bench_threads(tpool *p) {
    static meeting m;
    static waking w;
    uint32_t n = tpool_n_threads(p);
    if (n < 2) return;
    figure us = time_of(p, &(task){meet_often, NULL, &m, false});
    tell("barrier", n, (figure){us.best * 1e3 / BARRIERS, us.median * 1e3 / BARRIERS}, "ns");
    us = time_of(p, &(task){nothing, NULL, NULL, false});
    tell("fork, join", n, (figure){us.best * 1e3, us.median * 1e3}, "ns");
    tpool_run(p, wake_often, &w);
    for (unsigned i = 0; i < WAKES; i++) {
        w.awake_us[i] -= w.called_us[i];
        w.returned_us[i] -= w.called_us[i];
    }
    qsort(w.awake_us, WAKES, sizeof(double), by_value);
    qsort(w.returned_us, WAKES, sizeof(double), by_value);
    tell("futex wake, until awake", 2, (figure){w.awake_us[0], w.awake_us[WAKES / 2]}, "us");
    tell("futex wake, the call", 2, (figure){w.returned_us[0], w.returned_us[WAKES / 2]}, "us");
}

/* ---- the machine ---- */

/* "model name : X" of /proc/cpuinfo, as far as it is there. */
static void cpu_name(char *out, size_t n_bytes) {
    char line[256];
    snprintf(out, n_bytes, "unknown CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || value == NULL) continue;
        snprintf(out, n_bytes, "%.*s", (int)strcspn(value + 2, "\n\"\\"), value + 2);
        break;
    }
    if (f != NULL) fclose(f);
}

static int usage(void) {
    fprintf(stderr, "usage: bench_ceilings [--json] [--threads N]\n");
    return 2;
}

int main(int argc, char **argv) {
    uint32_t n_threads = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            as_json = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            char *end;
            unsigned long n = strtoul(argv[++i], &end, 10);
            if (*end != '\0' || n == 0 || n > TPOOL_THREADS_MAX) return usage();
            n_threads = (uint32_t)n;
        } else {
            return usage();
        }
    }
    inferd_err err;
    tpool *p;
    if (tpool_open(n_threads, &p, &err) != INFERD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    tpool_pin_caller(p);
    n_threads = tpool_n_threads(p);

    size_t l2 = cache_bytes(2), l3 = cache_bytes(3);
    size_t n_bytes = size_max(DRAM_BYTES, l3 * 8);
    n_bytes = size_max(n_bytes, 2 * DRAM_PIECE * n_threads);
    unsigned char *memory =
        mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "no memory for a buffer of %zu MiB: %s\n", n_bytes >> 20, strerror(errno));
        tpool_close(p);
        return 1;
    }
    bool huge = madvise(memory, n_bytes, MADV_HUGEPAGE) == 0;
    char name[128];
    cpu_name(name, sizeof name);
    if (as_json)
        printf("{\"bench\":\"machine\",\"cpu\":\"%s\",\"threads\":%u,\"l2_bytes\":%ld,\"l3_bytes\":"
               "%ld,"
               "\"buffer_bytes\":%zu,\"huge_pages\":%s}\n",
               name, n_threads, l2, l3, n_bytes, huge ? "true" : "false");
    else
        printf("%s, %u threads, L2 %zu KiB, L3 %zu KiB, buffer %zu MiB%s\n\n%-26s %4s %12s %12s\n",
               name, n_threads, l2 >> 10, l3 >> 10, n_bytes >> 20, huge ? "" : ", no huge pages",
               "", "thr.", "best", "median");
    bench_reads(p, memory, n_bytes, l2, l3);
    munmap(memory, n_bytes);
    bench_peaks(p);
    bench_threads(p);
    tpool_close(p);
    return 0;
}
