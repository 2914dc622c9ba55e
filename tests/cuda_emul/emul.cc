// emul.cc - runs kernels on fibers and keeps the rules of gpu.cuh (emul_run.h, emul.h).
//
// A launch takes the blocks one by one.  Each thread of a block is a fiber with its own stack;
// fibers switch only inside the words, when they have to wait:
//
//     READY -> running        next()           taken from the ready ring (in order, or a random
//     one) running -> AT_WARP      meet()           until all 32 lanes of the warp are at the same
//     word running -> AT_BLOCK     emul_sync_threads   until all threads that have not returned are
//     there running -> AT_NAMED     emul_sync_named  until the barrier's warps have come running ->
//     DONE         fiber_main
//
// The last to arrive does the work for all (its fellows' operands lie on their stacks, which stand
// still) and makes them READY.  Nobody READY and not all DONE is a deadlock.  A broken rule never
// returns: fail() writes the sentence and leaves for the launch; the fibers of that block are
// abandoned and begin anew in the next one.
//
// Always true: one launch at a time (the mutex), so that everything here is plain static data.
//
// Thread: any; the fibers of a launch belong to the host thread that called emul_launch.
#include "emul_fiber.h"
#include "emul_touch.h"
#include "emul_math.h"

namespace {

// ---- a launch ----
bool refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(run.why, sizeof run.why, format, args);
    va_end(args);
    return false;
}

bool check_launch(const void *fn, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes,
                  const void *params, uint32_t params_bytes, uint32_t threads_max) {
    uint32_t shared_max = setting.options.shared_bytes_max;
    if (shared_max == 0) shared_max = EMUL_SHARED_MAX;
    if (fn == nullptr) return refuse("launch of no kernel");
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
        return refuse("grid (%u, %u, %u) has a dimension of 0", grid[0], grid[1], grid[2]);
    if (grid[0] > INT32_MAX || grid[1] > EMUL_GRID_YZ_MAX || grid[2] > EMUL_GRID_YZ_MAX)
        return refuse("grid (%u, %u, %u), at most (2147483647, %d, %d)", grid[0], grid[1], grid[2],
                      EMUL_GRID_YZ_MAX, EMUL_GRID_YZ_MAX);
    if ((double)grid[0] * grid[1] * grid[2] > EMUL_BLOCKS_MAX)
        return refuse("grid (%u, %u, %u) has more than the %d blocks that emulation runs", grid[0],
                      grid[1], grid[2], EMUL_BLOCKS_MAX);
    if (threads == 0 || threads % 32 != 0)
        return refuse("%u threads per block, expected whole warps", threads);
    if (threads > threads_max || threads > EMUL_THREADS_MAX)
        return refuse("%u threads per block, the kernel's bound is %u", threads,
                      std::min(threads_max, (uint32_t)EMUL_THREADS_MAX));
    if (shared_bytes > shared_max)
        return refuse("%u bytes of shared memory, the limit is %u", shared_bytes, shared_max);
    if (params_bytes > EMUL_PARAMS_MAX || (params == nullptr && params_bytes > 0))
        return refuse("%u bytes of params at %p, at most %d", params_bytes, params,
                      EMUL_PARAMS_MAX);
    return true;
}

void run_block(const uint32_t at[3], uint32_t idx, const void *params) {
    memcpy(run.block, at, sizeof run.block);
    memset(run.shared, 0xff, run.shared_bytes);
    memset(run.warps, 0, sizeof run.warps);
    memset(run.named, 0, sizeof run.named);
    run.barrier.n = 0;
    run.n_done = 0;
    run.ready_head = run.ready_n = 0;
    run.block_waited = false;
    watch::block_begin(idx, run.n_warps, run.shared_bytes);
    for (uint32_t i = 0; i < run.n_threads; i++) {
        fiber *f = &fibers[i];
        if (!f->begun) fiber_begin(f);
        f->copies.clear();
        f->group = f->n_looks = 0;
        f->at = {nullptr, 0};
        f->waited = false;
        f->wrote_early = f->read_early = nullptr;
        make_ready(f);
    }
    uint32_t first = setting.options.shuffle ? random_below(run.n_threads) : 0;
    std::swap(run.ready[0], run.ready[first]);
    self = &fibers[run.ready[0]];
    run.ready_head = 1;
    run.ready_n--;
    switch_to(&host, &self->ctx, false);
    self = nullptr;
    if (run.failed)
        for (uint32_t i = 0; i < run.n_threads; i++) fibers[i].begun = false;
    else if (memcmp(run.params, params, run.params_bytes) != 0) {
        run.failed = true;
        refuse("kernel %s, block (%u, %u, %u) changed its params", run.kernel, at[0], at[1], at[2]);
    }
    if (!run.block_waited) run.all_waited = false;
}

bool run_grid(const void *params) {
    uint32_t n = run.grid[0] * run.grid[1] * run.grid[2];
    std::vector<uint32_t> order(n);
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; setting.options.shuffle && i > 1; i--)
        std::swap(order[i - 1], order[random_below(i)]);
    watch::launch_begin();
    run.failed = run.released = false;
    run.all_waited = true;
    run.counts = {};
    for (uint32_t i = 0; i < n && !run.failed; i++) {
        uint32_t b = order[i];
        const uint32_t at[3] = {b % run.grid[0], b / run.grid[0] % run.grid[1],
                                b / run.grid[0] / run.grid[1]};
        run_block(at, b, params);
        run.counts.n_blocks++;
    }
    setting.counts = run.counts;
    setting.waited = run.all_waited && !run.failed;
    setting.released = run.released;
    return !run.failed;
}

} // namespace

// ---- emul_run.h ----
extern "C" void emul_set_options(const emul_options *options) {
    pthread_mutex_lock(&setting.mutex);
    setting.options = *options;
    pthread_mutex_unlock(&setting.mutex);
}

extern "C" void emul_set_memory_check(emul_memory_check *ok, void *ctx) {
    pthread_mutex_lock(&setting.mutex);
    setting.check = ok;
    setting.check_ctx = ctx;
    pthread_mutex_unlock(&setting.mutex);
}

extern "C" bool emul_waited(void) {
    pthread_mutex_lock(&setting.mutex);
    bool waited = setting.waited;
    pthread_mutex_unlock(&setting.mutex);
    return waited;
}

extern "C" bool emul_released(void) {
    pthread_mutex_lock(&setting.mutex);
    bool released = setting.released;
    pthread_mutex_unlock(&setting.mutex);
    return released;
}

extern "C" void emul_settle(void) {
    pthread_mutex_lock(&setting.mutex);
    watch::launch.number++;
    pthread_mutex_unlock(&setting.mutex);
}

extern "C" void emul_get_counts(emul_counts *out) {
    pthread_mutex_lock(&setting.mutex);
    *out = setting.counts;
    pthread_mutex_unlock(&setting.mutex);
}

extern "C" bool emul_has_hooks(void) {
#ifdef EMUL_NO_HOOKS
    return false;
#else
    return true;
#endif
}

// Locked from here on.
static bool launch_locked(const void *fn, const uint32_t grid[3], uint32_t threads,
                          uint32_t shared_bytes, const void *params, uint32_t params_bytes,
                          uint32_t threads_max) {
    run.kernel = "?";
    run.why[0] = 0;
    if (!check_launch(fn, grid, threads, shared_bytes, params, params_bytes, threads_max))
        return false;
    if (!stacks_make())
        return refuse("no memory for %d stacks of %zu bytes", EMUL_THREADS_MAX, STACK_BYTES);
    void *arena = nullptr;
    size_t n = NEIGHBOURHOOD + shared_bytes + NEIGHBOURHOOD;
    if (posix_memalign(&arena, 128, n) != 0)
        return refuse("no memory for %zu bytes of shared memory", n);
    memcpy(&run.fn, &fn, sizeof fn);
    memcpy(run.grid, grid, sizeof run.grid);
    run.n_threads = threads;
    run.n_warps = threads / 32;
    run.shared = (unsigned char *)arena + NEIGHBOURHOOD;
    run.shared_bytes = shared_bytes;
    if (params_bytes > 0) memcpy(run.params, params, params_bytes);
    run.params_bytes = params_bytes;
    run.random = setting.options.seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
    if (run.random == 0) run.random = 1;
#ifdef EMUL_TSAN
    host.tsan = __tsan_get_current_fiber();
#endif
    bool ok = run_grid(params);
    free(arena);
    return ok;
}

extern "C" bool emul_launch(const void *fn, const uint32_t grid[3], uint32_t threads,
                            uint32_t shared_bytes, const void *params, uint32_t params_bytes,
                            uint32_t threads_max, char *why, size_t why_bytes) {
    pthread_mutex_lock(&setting.mutex);
    bool ok = launch_locked(fn, grid, threads, shared_bytes, params, params_bytes, threads_max);
    if (why_bytes > 0) snprintf(why, why_bytes, "%s", ok ? "" : run.why);
    pthread_mutex_unlock(&setting.mutex);
    return ok;
}

// ---- the words: where am I ----
extern "C" {

void emul_enter(const char *kernel) {
    run.kernel = kernel;
}
uint32_t emul_thread_idx(void) {
    return self->thread;
}
uint32_t emul_n_threads(void) {
    return run.n_threads;
}
uint32_t emul_block(uint32_t axis) {
    return run.block[axis];
}
uint32_t emul_grid(uint32_t axis) {
    return run.grid[axis];
}
void *emul_shared(void) {
    return run.shared;
}

// ---- together ----
bool emul_sync_threads(bool x, bool wants_or, const char *file, uint32_t line) {
    fiber *me = self;
    meeting *m = &run.warps[me->warp];
    op what = wants_or ? OP_SYNC_THREADS_OR : OP_SYNC_THREADS;
    me->at = {file, line};
    if (m->n > 0)
        fail(me, &me->at, "divergence: %s, but %u lanes of the warp wait in %s at %s:%u",
             op_names[what], m->n, op_names[m->what], base_name(m->at.file), m->at.line);
    if (run.barrier.n == 0) {
        run.barrier.what = what;
        run.barrier.at = me->at;
        run.barrier.any = false;
    } else if (run.barrier.what != what || !same_place(&run.barrier.at, &me->at)) {
        fail(me, &me->at, "%s, but %u other threads of the block wait in %s at %s:%u",
             op_names[what], run.barrier.n, op_names[run.barrier.what],
             base_name(run.barrier.at.file), run.barrier.at.line);
    }
    run.barrier.any |= x;
    m->n_at_block++;
    me->st = AT_BLOCK;
    if (++run.barrier.n + run.n_done < run.n_threads) {
        next(me);
    } else {
        complete_barrier(me);
        let_others(me);
    }
    return me->answer;
}

void emul_sync_warp(const char *file, uint32_t line) {
    if (!meet(OP_SYNC_WARP, 0, file, line)) return;
    if (watch::clock_spent()) fail(self, &self->at, "too many barriers in one block for emulation");
    watch::clock_tick(self->warp);
    part();
}

void emul_sync_named(uint32_t id, uint32_t threads, const char *file, uint32_t line) {
    fiber *me = self;
    place at = {file, line};
    if (id < 1 || id > 15) fail(me, &at, "named barrier %u, expected 1 to 15", id);
    if (threads == 0 || threads % 32 != 0 || threads > run.n_threads)
        fail(me, &at, "named barrier of %u threads, expected whole warps of a block of %u", threads,
             run.n_threads);
    if (!meet(OP_SYNC_NAMED, id << 16 | threads, file, line)) return;
    me = self;
    named_barrier *b = &run.named[id];
    if (b->n == 0) {
        b->threads = threads;
        b->at = at;
        b->warps = 0;
    } else if (b->threads != threads) {
        fail(me, &at, "named barrier %u of %u threads, but warps wait there for %u (%s:%u)", id,
             threads, b->threads, base_name(b->at.file), b->at.line);
    }
    b->n += 32;
    b->warps |= 1u << me->warp;
    if (b->n < threads) { // the whole warp waits
        for (uint32_t i = 0; i < 32; i++) fibers[me->warp * 32 + i].st = AT_NAMED;
        next(me);
        return;
    }
    if (watch::clock_spent()) fail(me, &at, "too many barriers in one block for emulation");
    watch::clock_join(b->warps);
    for (uint32_t i = 0; i < run.n_threads; i++)
        if ((b->warps >> fibers[i].warp & 1) && &fibers[i] != me) make_ready(&fibers[i]);
    b->n = 0;
    let_others(me);
}

uint64_t emul_shfl(uint64_t v, uint32_t arg, emul_shfl_kind kind, const char *file, uint32_t line) {
    fiber *me = self, *lanes = &fibers[me->warp * 32];
    op what = (op)(OP_SHFL + kind);
    place at = {file, line};
    if (arg > 31) fail(me, &at, "%s with argument %u, expected 0 to 31", op_names[what], arg);
    me->value = v;
    me->arg = arg;
    if (!meet(what, 0, file, line)) return me->value;
    uint64_t values[32];
    for (uint32_t i = 0; i < 32; i++) values[i] = lanes[i].value;
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t n = lanes[i].arg, from = n;
        if (kind == EMUL_SHFL_XOR) from = i ^ n;
        if (kind == EMUL_SHFL_DOWN) from = i + n > 31 ? i : i + n;
        if (kind == EMUL_SHFL_UP) from = i < n ? i : i - n;
        lanes[i].value = values[from];
    }
    v = me->value;
    part();
    return v;
}

uint32_t emul_ballot(bool x, const char *file, uint32_t line) {
    fiber *me = self, *lanes = &fibers[me->warp * 32];
    me->value = x;
    if (meet(OP_BALLOT, 0, file, line)) {
        uint32_t bits = 0;
        for (uint32_t i = 0; i < 32; i++) bits |= (uint32_t)lanes[i].value << i;
        for (uint32_t i = 0; i < 32; i++) lanes[i].value = bits;
        part();
    }
    return (uint32_t)me->value;
}

void emul_ldmatrix(uint32_t *r, uint32_t n, bool transposed, const void *row, const char *file,
                   uint32_t line) {
    fiber *me = self;
    me->out = r;
    me->a = row;
    if (!meet(OP_LDMATRIX, n << 1 | transposed, file, line)) return;
    ldmatrix_run(&fibers[me->warp * 32], n, transposed);
    part();
}

void emul_mma(emul_mma_kind kind, float *d, const uint32_t *a, const uint32_t *b, const char *file,
              uint32_t line) {
    fiber *me = self;
    me->out = d;
    me->a = a;
    me->b = b;
    if (!meet(OP_MMA, kind, file, line)) return;
    run.counts.n_mma++;
    if (kind == EMUL_MMA_TF32)
        mma_tf32_run(&fibers[me->warp * 32], file, line);
    else
        mma_run(kind, &fibers[me->warp * 32]);
    part();
}

// ---- memory ----
void emul_load(void *out, const void *p, uint32_t n, emul_load_kind kind, const char *file,
               uint32_t line) {
    self->at = {file, line};
    uint32_t flags = kind == EMUL_LOAD_ANY ? 0u : (uint32_t)TOUCH_GLOBAL;
    if (kind == EMUL_LOAD_STREAM) {
        flags |= TOUCH_STREAM;
        run.counts.stream_bytes += n;
    } else if (kind == EMUL_LOAD_FRESH) {
        look(self);
    }
    touch_word(self, p, n, flags);
    memcpy(out, p, n);
}

void emul_store(void *p, const void *v, uint32_t n, const char *file, uint32_t line) {
    self->at = {file, line};
    touch_word(self, p, n, watch::WRITE);
    memcpy(p, v, n);
}

uint32_t emul_shared_address(const void *p, const char *file, uint32_t line) {
    self->at = {file, line};
    if ((uintptr_t)p - (uintptr_t)run.shared > run.shared_bytes)
        fail(self, &self->at, "%p is not in shared memory", p);
    return (uint32_t)((uintptr_t)p - (uintptr_t)run.shared);
}

void emul_cp_async(void *dst, const void *src, bool valid, const char *file, uint32_t line) {
    fiber *me = self;
    me->at = {file, line};
    touch_word(me, dst, 16, watch::WRITE | TOUCH_SHARED);
    copy c = {};
    c.to = (unsigned char *)dst;
    c.from = valid ? (const unsigned char *)src : nullptr;
    c.group = me->group;
    c.at = me->at;
    if (valid) {
        touch_word(me, src, 16, TOUCH_GLOBAL);
        run.counts.copy_bytes += 16;
        c.was_read = random_below(2) == 0;
        if (c.was_read) memcpy(c.bytes, src, 16);
    } else if ((uintptr_t)src % 16 != 0) {
        fail(me, &me->at, "the source %p is not aligned to 16 bytes", src);
    }
    memset(dst, 0xff, 16);
    watch::arena.copying[((unsigned char *)dst - run.shared) / 16] = (uint16_t)(me->thread + 1);
    me->copies.push_back(c);
}

void emul_cp_async_commit(const char *file, uint32_t line) {
    self->at = {file, line};
    self->group++;
}

void emul_cp_async_wait(uint32_t n_left, const char *file, uint32_t line) {
    fiber *me = self;
    me->at = {file, line};
    size_t n = 0;
    while (n < me->copies.size() && me->copies[n].group + n_left < me->group)
        land(me, &me->copies[n++]);
    me->copies.erase(me->copies.begin(), me->copies.begin() + (ptrdiff_t)n);
    let_others(me);
}

// ---- between blocks ----
void emul_fence(const char *file, uint32_t line) {
    self->at = {file, line};
    watch::fence();
    let_others(self);
}

uint64_t emul_atomic(void *p, uint32_t n, uint64_t v, emul_atomic_kind kind, const char *file,
                     uint32_t line) {
    fiber *me = self;
    me->at = {file, line};
    look(me);
    let_others(me);
    touch_word(me, p, n, watch::ATOMIC);
    run.counts.n_atomics++;
    if ((uintptr_t)p - (uintptr_t)me->ctx.stack < STACK_BYTES)
        fail(me, &me->at, "an atomic operation on a local variable");
    if ((uintptr_t)p - (uintptr_t)run.shared >= run.shared_bytes) watch::atomic_on(p);
    uint64_t old = 0;
    memcpy(&old, p, n); // little endian, as the device
    uint64_t result = kind == EMUL_ADD ? old + v : kind == EMUL_OR ? (old | v) : std::max(old, v);
    memcpy(p, &result, n);
    return old;
}

void emul_wait_predecessor(const char *file, uint32_t line) {
    fiber *me = self;
    me->at = {file, line};
    if (me->wrote_early != nullptr && !me->waited)
        fail(me, &me->at, "it wrote to %p before wait_predecessor()", me->wrote_early);
    if (me->read_early != nullptr && !me->waited)
        fail(me, &me->at, "it read %p, which the launch before wrote, before wait_predecessor()",
             me->read_early);
    me->waited = run.block_waited = true;
}

void emul_release_dependents(const char *file, uint32_t line) {
    self->at = {file, line};
    run.released = true;
}

// ---- numbers ----
uint32_t emul_fma2_f16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out = 0;
    for (uint32_t shift = 0; shift < 32; shift += 16) {
        double v = fma_odd(emul_f16_to_f32((uint16_t)(a >> shift)),
                           emul_f16_to_f32((uint16_t)(b >> shift)),
                           emul_f16_to_f32((uint16_t)(c >> shift)));
        out |= (uint32_t)emul_f32_to_f16((float)round_to(v, 11, -14)) << shift;
    }
    return out;
}

uint32_t emul_fma2_bf16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out = 0;
    for (uint32_t shift = 0; shift < 32; shift += 16) {
        double v = fma_odd(emul_bf16_to_f32((uint16_t)(a >> shift)),
                           emul_bf16_to_f32((uint16_t)(b >> shift)),
                           emul_bf16_to_f32((uint16_t)(c >> shift)));
        out |= (uint32_t)emul_f32_to_bf16((float)round_to(v, 8, -126)) << shift;
    }
    return out;
}

// ---- plain accesses: what -fsanitize=thread makes the compilers call ----
#ifndef EMUL_NO_HOOKS
static inline void hook(const void *p, uint32_t n, uint32_t flags, bool aligned, const void *pc) {
    fiber *f = self;
    if (f == nullptr || (uintptr_t)p - (uintptr_t)f->ctx.stack < STACK_BYTES) return;
    if (aligned && (uintptr_t)p % n != 0) {
        touched t = {f, p, n, flags | TOUCH_PLAIN, pc};
        fail_touch(&t, "not aligned to %u bytes", n);
    }
    touch(f, p, n, flags | TOUCH_PLAIN, pc);
}
#define HOOK(name, n, flags, aligned)                                                              \
    void name(void *p);                                                                            \
    void name(void *p) {                                                                           \
        hook(p, n, flags, aligned, __builtin_return_address(0));                                   \
    }
#define HOOKS(n)                                                                                   \
    HOOK(__tsan_read##n, n, watch::READ, true)                                                     \
    HOOK(__tsan_write##n, n, watch::WRITE, true)                                                   \
    HOOK(__tsan_unaligned_read##n, n, watch::READ, false)                                          \
    HOOK(__tsan_unaligned_write##n, n, watch::WRITE, false)                                        \
    HOOK(__tsan_read_write##n, n, watch::WRITE, true)                                              \
    HOOK(__tsan_unaligned_read_write##n, n, watch::WRITE, false)                                   \
    HOOK(__tsan_volatile_read##n, n, watch::READ, true)                                            \
    HOOK(__tsan_volatile_write##n, n, watch::WRITE, true)                                          \
    HOOK(__tsan_unaligned_volatile_read##n, n, watch::READ, false)                                 \
    HOOK(__tsan_unaligned_volatile_write##n, n, watch::WRITE, false)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_read_range(void *p, size_t n);
void __tsan_read_range(void *p, size_t n) {
    if (n > 0) hook(p, (uint32_t)n, watch::READ, false, __builtin_return_address(0));
}
void __tsan_write_range(void *p, size_t n);
void __tsan_write_range(void *p, size_t n) {
    if (n > 0) hook(p, (uint32_t)n, watch::WRITE, false, __builtin_return_address(0));
}
void *__tsan_memcpy(void *to, const void *from, size_t n);
void *__tsan_memcpy(void *to, const void *from, size_t n) {
    if (n > 0) hook(from, (uint32_t)n, watch::READ, false, __builtin_return_address(0));
    if (n > 0) hook(to, (uint32_t)n, watch::WRITE, false, __builtin_return_address(0));
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n);
void *__tsan_memmove(void *to, const void *from, size_t n) {
    if (n > 0) hook(from, (uint32_t)n, watch::READ, false, __builtin_return_address(0));
    if (n > 0) hook(to, (uint32_t)n, watch::WRITE, false, __builtin_return_address(0));
    return memmove(to, from, n);
}
void *__tsan_memset(void *to, int byte, size_t n);
void *__tsan_memset(void *to, int byte, size_t n) {
    if (n > 0) hook(to, (uint32_t)n, watch::WRITE, false, __builtin_return_address(0));
    return memset(to, byte, n);
}
void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_entry(void *);
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
#endif
}
