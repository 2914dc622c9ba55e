// emul_fiber.h - threads of a block as fibers: their stacks, who runs next, and how lanes of a warp
// meet. A part of emul.cc, which says how it all works.
//
// A switch saves six registers and changes the stack pointer: a few nanoseconds, no system call.
// Other processors than x86-64 use ucontext.  The address and thread sanitizers are told of every
// switch.
//
// Thread: the launching host thread, under emul.cc's mutex.
#ifndef INFERD_EMUL_FIBER_H
#define INFERD_EMUL_FIBER_H

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>

#include "cuda/gpu.cuh"

#include "emul.h"
#include "emul_watch.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMUL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMUL_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define EMUL_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMUL_TSAN 1
#endif
#endif
#ifdef EMUL_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EMUL_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(__x86_64__) && !defined(EMUL_UCONTEXT)
#define EMUL_UCONTEXT // defined by hand, it serves to test that way
#endif
#ifdef EMUL_UCONTEXT
#include <ucontext.h>
#endif

namespace {

constexpr size_t GUARD_BYTES = 64 * 1024; // whole pages anywhere
#if defined(EMUL_ASAN) || defined(EMUL_TSAN) || !defined(__OPTIMIZE__)
constexpr size_t STACK_BYTES = 256 * 1024; // frames are larger there
#else
constexpr size_t STACK_BYTES = 128 * 1024;
#endif
// A thread that looks that often for what others do waits in a loop.
constexpr uint32_t LOOKS_MAX = 4 * 1000 * 1000;
constexpr size_t STRIDE_BYTES = STACK_BYTES + GUARD_BYTES;
// Addresses that near to shared memory are taken for it: its bounds are checked then.  Under ASan
// the block is exact and the neighbourhood is somebody else's.
#ifdef EMUL_ASAN
constexpr size_t NEIGHBOURHOOD = 0;
#else
constexpr size_t NEIGHBOURHOOD = 64 * 1024;
#endif

enum state : uint8_t { READY, AT_WARP, AT_BLOCK, AT_NAMED, DONE };
enum op : uint8_t {
    OP_NONE,
    OP_SYNC_WARP,
    OP_SHFL,
    OP_SHFL_XOR,
    OP_SHFL_DOWN,
    OP_SHFL_UP,
    OP_BALLOT,
    OP_LDMATRIX,
    OP_MMA,
    OP_SYNC_NAMED,
    OP_SYNC_THREADS,
    OP_SYNC_THREADS_OR
};
const char *const op_names[] = {
    "nothing",  "sync_warp()", "shfl()", "shfl_xor()",   "shfl_down()",    "shfl_up()",
    "ballot()", "ldmatrix",    "mma()",  "sync_named()", "sync_threads()", "sync_threads_or()"};

struct place {
    const char *file;
    uint32_t line;
};

struct copy { // a cp.async on its way
    unsigned char *to;
    const unsigned char *from; // NULL: zeros
    uint32_t group;
    bool was_read; // the source, at issue: into bytes
    place at;
    unsigned char bytes[16];
};

struct context {
#ifndef EMUL_UCONTEXT
    void *sp;
#else
    ucontext_t uc;
#endif
    const void *stack; // lowest address
    size_t stack_bytes;
    void *fake; // ASan's
    void *tsan;
};

struct fiber {
    context ctx;
    bool begun; // its stack stands in fiber_main's loop
    state st;
    uint32_t thread, warp, lane;
    place at; // the word it is in, or was in last

    // operands of the word it waits in; its fellows read and write them
    uint64_t value;
    uint32_t arg;
    bool answer;
    void *out;
    const void *a, *b;

    std::vector<copy> copies;             // oldest first
    uint32_t group;                       // of copies not yet committed
    uint32_t n_looks;                     // load_fresh() and atomics in this block
    bool waited;                          // called wait_predecessor
    const void *wrote_early, *read_early; // before that, if at all
};

struct meeting { // of lanes of a warp
    op what;
    place at;
    uint32_t arg;
    uint32_t n, n_at_block, n_done;
};
struct named_barrier {
    uint32_t threads, n, warps;
    place at;
};

struct {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    emul_options options = {1, false, 0};
    emul_memory_check *check = nullptr;
    void *check_ctx = nullptr;
    bool waited = false, released = false; // of the newest launch, as the counts
    emul_counts counts = {};
} setting;

char *stacks; // EMUL_THREADS_MAX strides
fiber fibers[EMUL_THREADS_MAX];
fiber *self;
context host;
context *arrived_from;

struct {
    const char *kernel;
    void (*fn)(const void *);
    uint32_t grid[3], block[3];
    uint32_t n_threads, n_done, n_warps, shared_bytes;
    unsigned char *shared; // 128-byte aligned; its end is the end of an allocation under ASan
    alignas(64) unsigned char params[EMUL_PARAMS_MAX];
    uint32_t params_bytes;
    uint64_t random;

    uint16_t ready[EMUL_THREADS_MAX];
    uint32_t ready_head, ready_n;

    meeting warps[watch::WARPS_MAX];
    named_barrier named[16];
    struct {
        op what;
        place at;
        uint32_t n;
        bool any;
    } barrier;

    bool failed, block_waited, all_waited, released;
    emul_counts counts;
    char why[EMUL_WHY_BYTES];
} run;
// ---- contexts ----
#ifndef EMUL_UCONTEXT
extern "C" void emul_switch(void **save, void *load);
__asm__(".text\n"
        ".globl emul_switch\n"
        ".type emul_switch,@function\n"
        "emul_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emul_switch,.-emul_switch\n");
#endif

#if defined(EMUL_TSAN) && defined(__clang__)
#define NO_TSAN __attribute__((no_sanitize("thread"), noinline))
#elif defined(EMUL_TSAN)
#define NO_TSAN __attribute__((no_sanitize_thread, noinline))
#else
#define NO_TSAN
#endif

// What a context does first after it was switched to.
void landed(context *me) {
    (void)me;
#ifdef EMUL_ASAN
    const void *bottom;
    size_t n;
    __sanitizer_finish_switch_fiber(me->fake, &bottom, &n);
    if (arrived_from == &host) {
        host.stack = bottom;
        host.stack_bytes = n;
    }
#endif
}

// `forever`: what is on this stack is given up.
NO_TSAN void switch_to(context *from, context *to, bool forever) {
    (void)forever;
    arrived_from = from;
#ifdef EMUL_ASAN
    __sanitizer_start_switch_fiber(forever ? nullptr : &from->fake, to->stack, to->stack_bytes);
#endif
#ifdef EMUL_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#ifndef EMUL_UCONTEXT
    emul_switch(&from->sp, to->sp);
#else
    swapcontext(&from->uc, &to->uc);
#endif
    landed(from);
}

void fiber_main();

void fiber_begin(fiber *f) {
    char *low = (char *)f->ctx.stack;
#ifdef EMUL_ASAN
    ASAN_UNPOISON_MEMORY_REGION(low, STACK_BYTES);
    f->ctx.fake = nullptr;
#endif
#ifdef EMUL_TSAN
    if (f->ctx.tsan != nullptr) __tsan_destroy_fiber(f->ctx.tsan);
    f->ctx.tsan = __tsan_create_fiber(0);
#endif
#ifndef EMUL_UCONTEXT
    // Six registers, the address that emul_switch returns to, and an end for stack walks;
    // fiber_main begins with the alignment that a call would have given it.
    void **top = (void **)(low + STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof *top);
    top[6] = (void *)fiber_main;
    f->ctx.sp = top;
#else
    getcontext(&f->ctx.uc);
    f->ctx.uc.uc_stack.ss_sp = low;
    f->ctx.uc.uc_stack.ss_size = STACK_BYTES;
    f->ctx.uc.uc_link = nullptr;
    makecontext(&f->ctx.uc, fiber_main, 0);
#endif
    f->begun = true;
}

bool stacks_make() {
    if (stacks != nullptr) return true;
    void *p = mmap(nullptr, STRIDE_BYTES * EMUL_THREADS_MAX, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    for (uint32_t i = 0; i < EMUL_THREADS_MAX; i++) { // the guard is below the stack
        char *guard = (char *)p + i * STRIDE_BYTES;
        if (mprotect(guard, GUARD_BYTES, PROT_NONE) != 0) {
            munmap(p, STRIDE_BYTES * EMUL_THREADS_MAX);
            return false;
        }
        fibers[i].ctx.stack = guard + GUARD_BYTES;
        fibers[i].ctx.stack_bytes = STACK_BYTES;
        fibers[i].thread = i;
        fibers[i].warp = i / 32;
        fibers[i].lane = i % 32;
    }
    stacks = (char *)p;
    return true;
}

// ---- failing ----
const char *base_name(const char *file) {
    const char *slash = file == nullptr ? nullptr : strrchr(file, '/');
    return file == nullptr ? "?" : slash != nullptr ? slash + 1 : file;
}

// The sentence for why, and away.  `f`: whose fault it is.
[[noreturn]] __attribute__((format(printf, 3, 4))) void fail(const fiber *f, const place *at,
                                                             const char *format, ...) {
    char text[640], where[160] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (at != nullptr && at->file != nullptr)
        snprintf(where, sizeof where, " at %s:%u", base_name(at->file), at->line);
    snprintf(run.why, sizeof run.why, "kernel %s, block (%u, %u, %u), thread %u%s: %s", run.kernel,
             run.block[0], run.block[1], run.block[2], f->thread, where, text);
    run.failed = true;
    switch_to(&self->ctx, &host, true);
    abort(); // nobody returns to an abandoned fiber
}

bool same_place(const place *a, const place *b) {
    return a->line == b->line && (a->file == b->file || strcmp(a->file, b->file) == 0);
}

// ---- who runs ----
uint64_t random_next() {
    run.random ^= run.random >> 12;
    run.random ^= run.random << 25;
    run.random ^= run.random >> 27;
    return run.random * 0x2545f4914f6cdd1dull;
}
uint32_t random_below(uint32_t n) {
    return (uint32_t)((random_next() >> 32) * n >> 32);
}

void make_ready(fiber *f) {
    f->st = READY;
    run.ready[(run.ready_head + run.ready_n++) % EMUL_THREADS_MAX] = (uint16_t)f->thread;
}

// Nobody can run: say who waits where.
[[noreturn]] void fail_deadlock() {
    char text[480] = "";
    size_t used = 0;
    bool told[EMUL_THREADS_MAX] = {false};
    const fiber *first = nullptr;
    for (uint32_t i = 0; i < run.n_threads && used < sizeof text - 80; i++) {
        const fiber *f = &fibers[i];
        if (f->st == DONE || told[i]) continue;
        if (first == nullptr) first = f;
        uint32_t n = 0;
        for (uint32_t j = i; j < run.n_threads; j++) {
            if (fibers[j].st != f->st || !same_place(&fibers[j].at, &f->at)) continue;
            told[j] = true;
            n++;
        }
        op what = f->st == AT_BLOCK   ? run.barrier.what
                  : f->st == AT_NAMED ? OP_SYNC_NAMED
                                      : run.warps[f->warp].what;
        int k =
            snprintf(text + used, sizeof text - used, "%s%u threads (first %u) wait in %s at %s:%u",
                     used > 0 ? "; " : "", n, i, op_names[what], base_name(f->at.file), f->at.line);
        used += k > 0 ? (size_t)k : 0;
    }
    fail(first, nullptr, "deadlock, nobody can run: %s; %u of %u threads have returned", text,
         run.n_done, run.n_threads);
}

// Run somebody else; comes back when `self` has been made ready and was chosen.
void next(fiber *me) {
    if (run.ready_n == 0) {
        if (run.n_done < run.n_threads) fail_deadlock();
        switch_to(&me->ctx, &host, false);
        return;
    }
    uint16_t *head = &run.ready[run.ready_head];
    if (setting.options.shuffle && run.ready_n > 1)
        std::swap(*head,
                  run.ready[(run.ready_head + random_below(run.ready_n)) % EMUL_THREADS_MAX]);
    fiber *f = &fibers[*head];
    run.ready_head = (run.ready_head + 1) % EMUL_THREADS_MAX;
    run.ready_n--;
    self = f;
    if (f != me) switch_to(&me->ctx, &f->ctx, false);
}

// With shuffle, the others may go first.
void let_others(fiber *me) {
    if (!setting.options.shuffle) return;
    make_ready(me);
    next(me);
}

void complete_barrier(fiber *me) {
    if (watch::clock_spent()) fail(me, nullptr, "too many barriers in one block for emulation");
    watch::clock_join(run.n_warps == 32 ? ~0u : (1u << run.n_warps) - 1);
    for (uint32_t i = 0; i < run.n_threads; i++) {
        fiber *f = &fibers[i];
        if (f->st != AT_BLOCK) continue;
        f->answer = run.barrier.any;
        if (f != me) make_ready(f);
    }
    if (me->st == AT_BLOCK) me->st = READY;
    for (uint32_t w = 0; w < run.n_warps; w++) run.warps[w].n_at_block = 0;
    run.barrier.n = 0;
    run.counts.n_barriers++;
}

void thread_returned(fiber *me) {
    meeting *m = &run.warps[me->warp];
    if (!me->copies.empty())
        fail(me, &me->copies[0].at, "the kernel ends with %zu asynchronous copies not waited for",
             me->copies.size());
    if (m->n > 0)
        fail(me, nullptr, "divergence: it returned while lane %u of its warp waits in %s at %s:%u",
             (uint32_t)(std::find_if(&fibers[me->warp * 32], &fibers[me->warp * 32 + 32],
                                     [](const fiber &f) { return f.st == AT_WARP; }) -
                        &fibers[me->warp * 32]),
             op_names[m->what], base_name(m->at.file), m->at.line);
    me->st = DONE;
    m->n_done++;
    run.n_done++;
    if (run.barrier.n > 0 && run.barrier.n + run.n_done == run.n_threads) complete_barrier(me);
}

NO_TSAN void fiber_main() {
    landed(&self->ctx);
    for (;;) { // one turn per block
        fiber *me = self;
        run.fn(run.params);
        thread_returned(me);
        next(me);
    }
}

// ---- meeting in a warp ----
// True for the lane that completes the meeting: it works for all, then calls part(); false: done.
bool meet(op what, uint32_t arg, const char *file, uint32_t line) {
    fiber *me = self;
    meeting *m = &run.warps[me->warp];
    me->at = {file, line};
    if (m->n_done > 0)
        fail(me, &me->at, "divergence: %s, but %u lanes of the warp have returned", op_names[what],
             m->n_done);
    if (m->n_at_block > 0)
        fail(me, &me->at, "divergence: %s, but %u lanes of the warp wait in %s at %s:%u",
             op_names[what], m->n_at_block, op_names[run.barrier.what],
             base_name(run.barrier.at.file), run.barrier.at.line);
    if (m->n == 0) {
        m->what = what;
        m->at = me->at;
        m->arg = arg;
    } else if (m->what != what || !same_place(&m->at, &me->at)) {
        fail(me, &me->at, "divergence: %s, but %u lanes of the warp wait in %s at %s:%u",
             op_names[what], m->n, op_names[m->what], base_name(m->at.file), m->at.line);
    } else if (m->arg != arg) {
        fail(me, &me->at, "divergence: %s with argument %u, but other lanes of the warp gave %u",
             op_names[what], arg, m->arg);
    }
    if (++m->n < 32) {
        me->st = AT_WARP;
        next(me);
        return false;
    }
    m->n = 0;
    return true;
}

void part() {
    fiber *me = self, *lanes = &fibers[me->warp * 32];
    for (uint32_t i = 0; i < 32; i++)
        if (&lanes[i] != me) make_ready(&lanes[i]);
    let_others(me);
}

// Blocks run one after another and threads until they wait in a word: a loop that waits for
// somebody else's write would not end.
void look(fiber *me) {
    if (++me->n_looks > LOOKS_MAX)
        fail(me, &me->at, "it waits in a loop for another thread (%u reads and atomics)",
             LOOKS_MAX);
}

} // namespace

#endif
