/* cpu.c - the CPU backend: opening it, its pages, its weights, its steps.
 *
 * Depth is 1: the step is computed by the thread that ends it, so a step planned ahead would only
 * wait.  The instruction set is the best the machine has; INFERD_CPU names another level (level.h),
 * for tests and for comparing.
 *
 * Thread: engine. */
#include "cpu/cpu.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "kernels/machine.h"
#include "cpu/panel.h"
#include "dummy.h"
#include "inferd/clock.h"

/* ---- the device ---- */

static void scratch_close(cpu_scratch *s);

static void cpu_close(backend *be) {
    cpu_backend *c = cpu_of(be);
    tpool_close(c->threads);
    arena_close(c->pages);
    scratch_close(&c->scratch);
    phases_close(c->phases);
    experts_close(c->experts);
    for (size_t i = 0; i < ATTN_PLANS; i++) attn_plan_close(c->plans[i].plan);
    for (size_t i = 0; i < ROPE_TABLES; i++) {
        free(c->ropes[i].data);
        free(c->ropes[i].inv_freq);
    }
    free(c->faults);
    free(c->part_ns);
    free(c);
}

static const char *cpu_name(const backend *be) {
    return cpu_of_const(be)->name;
}
static uint32_t cpu_depth(const backend *be) {
    (void)be;
    return 1;
}
static uint32_t cpu_n_threads(const backend *be) {
    return tpool_n_threads(cpu_of_const(be)->threads);
}

/* Products reach full speed at some 16 rows; with more rows than this the data between two
 * products does not fit the caches (512 rows of SmolLM2-135M: 20 % slower per row). */
static uint32_t cpu_rows_best(const backend *be) {
    (void)be;
    return 128;
}

static void cpu_get_stats(const backend *be, backend_stats *out) {
    const cpu_backend *c = cpu_of_const(be);
    *out = (backend_stats){.n_kv_page_faults = c->n_kv_page_faults,
                           .n_pages_touched = arena_n_touched(c->pages)};
}

static uint32_t cpu_get_profile(const backend *be, be_part out[BE_PARTS_MAX]) {
    static const char *const names[N_STEP_PARTS] = {
        [PART_EMBED] = "embed",       [PART_NORM] = "norm, round", [PART_MATMUL] = "q k v, o, down",
        [PART_GATE_UP] = "gate, up",  [PART_EXPERTS] = "experts",  [PART_HEAD] = "head",
        [PART_STORE] = "turn, store", [PART_ATTEND] = "attend",    [PART_OTHER] = "other"};
    const cpu_backend *c = cpu_of_const(be);
    if (c->part_ns == NULL) return 0;
    for (uint32_t i = 0; i < N_STEP_PARTS; i++) out[i] = (be_part){names[i], c->part_ns[i]};
    return N_STEP_PARTS;
}

/* ---- pages ---- */

static uint32_t cpu_n_pages(const backend *be) {
    return arena_n_pages(cpu_of_const(be)->pages);
}
static uint32_t cpu_n_pages_warm(const backend *be) {
    return arena_n_warm(cpu_of_const(be)->pages);
}
static size_t cpu_page_bytes(const backend *be) {
    (void)be;
    return ARENA_PAGE_BYTES;
}

static inferd_status cpu_window_open(backend *be, size_t n_bytes, be_window **out,
                                     inferd_err *err) {
    *out = NULL;
    be_window *w = calloc(1, sizeof *w);
    if (w == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a window");
    w->ops = be->ops;
    inferd_status s = window_open(cpu_of(be)->pages, n_bytes, &w->w, err);
    if (s != INFERD_OK) {
        free(w);
        return s;
    }
    *out = w;
    return INFERD_OK;
}

static void cpu_window_close(backend *be, be_window *w) {
    window_close(cpu_of(be)->pages, w->w);
    free(w);
}

static void *cpu_window_base(const be_window *w) {
    return window_base(w->w);
}

typedef struct touch_job {
    arena *pages;
    const uint32_t *list;
} touch_job;

static void touch(const void *job, uint32_t begin, uint32_t end) {
    const touch_job *j = job;
    uint32_t n_pages = arena_n_pages(j->pages);
    for (uint32_t i = begin; i < end; i++) // window_map refuses a page that does not exist
        if (j->list[i] < n_pages) arena_touch(j->pages, j->list[i]);
}

static inferd_status cpu_window_map(backend *be, be_window *w, const uint32_t *pages,
                                    uint32_t n_pages, inferd_err *err) {
    cpu_backend *c = cpu_of(be);
    tpool_share(c->threads, touch, &(touch_job){c->pages, pages}, n_pages);
    return window_map(c->pages, w->w, pages, n_pages, err);
}

static inferd_status cpu_window_grow(backend *be, be_window *w, const uint32_t *pages,
                                     uint32_t n_pages, inferd_err *err) {
    return window_grow(cpu_of(be)->pages, w->w, pages, n_pages, err);
}

static uint32_t cpu_n_host_pages(const backend *be) {
    return cpu_of_const(be)->n_host_pages;
}

static void cpu_page_touch(backend *be, uint32_t page) {
    arena *a = cpu_of(be)->pages;
    if (page < arena_n_pages(a)) arena_touch(a, page); // else window_grow refuses it
}

static inferd_status cpu_window_unmap(backend *be, be_window *w, inferd_err *err) {
    return window_unmap(cpu_of(be)->pages, w->w, err);
}

/* 16-bit integers are multiplied without conversion at every level, are as near to float32 as f16,
 * and have a scale, so that no key is too large for them. */
static kv_type cpu_kv_preferred(const backend *be) {
    (void)be;
    return KV_I16;
}

static size_t cpu_kv_layer_bytes(const backend *be, kv_type type, uint32_t n_kv_heads,
                                 uint32_t head_dim, uint32_t block_tokens) {
    (void)be;
    return kv_layer_bytes_of(type, n_kv_heads, head_dim, block_tokens);
}

enum { MOVE_ALONE_BYTES = 512 << 10 };

typedef struct kv_copies {
    arena *pages;
    const kv_layout *kv;
    const int32_t *from, *to;
} kv_copies;

static unsigned char *slot_at(const kv_copies *j, int32_t slot) {
    uint32_t page = (uint32_t)slot / j->kv->slots_per_page;
    size_t at = (size_t)((uint32_t)slot % j->kv->slots_per_page) * j->kv->slot_bytes;
    arena_touch(j->pages, page);
    return arena_base(j->pages) + (size_t)page * ARENA_PAGE_BYTES + at;
}

static void copy_slot(void *ctx, uint32_t i) {
    const kv_copies *j = ctx;
    memcpy(slot_at(j, j->to[i]), slot_at(j, j->from[i]), j->kv->slot_bytes);
}

static void cpu_kv_move(backend *be, const kv_layout *kv, uint32_t n, const int32_t *from,
                        const int32_t *to, bool to_host) {
    (void)to_host; // slots of the host are slots of the arena
    kv_copies j = {cpu_of(be)->pages, kv, from, to};
    for (uint32_t i = 0; i < n; i++) // the background thread stays ahead of the pages in use
        arena_use(j.pages, (uint32_t)to[i] / kv->slots_per_page);
    if (n * kv->slot_bytes >= MOVE_ALONE_BYTES)
        be_parallel(be, n, copy_slot, &j);
    else // waking other threads would take longer
        for (uint32_t i = 0; i < n; i++) copy_slot(&j, i);
}

static unsigned char *cpu_kv_slot(backend *be, const kv_layout *kv, int32_t slot) {
    kv_copies j = {cpu_of(be)->pages, kv, NULL, NULL};
    arena_use(j.pages, (uint32_t)slot / kv->slots_per_page);
    return slot_at(&j, slot);
}

/* Steps are done when they have ended. */
static void cpu_page_zero(backend *be, uint32_t page, size_t begin, size_t n_bytes) {
    arena *pages = cpu_of(be)->pages;
    INFERD_CHECK(begin <= ARENA_PAGE_BYTES && n_bytes <= ARENA_PAGE_BYTES - begin);
    arena_touch(pages, page);
    memset(arena_base(pages) + (size_t)page * ARENA_PAGE_BYTES + begin, 0, n_bytes);
}

/* ---- weights ---- */

static bool cpu_weight_supported(const backend *be, dtype type) {
    (void)be;
    return panel_supported(type);
}

static const char *cpu_weight_math(const backend *be, dtype type) {
    const cpu_backend *c = cpu_of_const(be);
    switch (level_math(c->level, type, c->exact)) {
    case MATH_I16:
        return "i16";
    case MATH_BF16:
        return "bf16";
    default:
        return "f32";
    }
}

static size_t cpu_weight_bytes(const backend *be, dtype type, uint32_t rows, uint32_t cols) {
    (void)be;
    return ((size_t)rows + PANEL_ROWS - 1) / PANEL_ROWS * panel_bytes(type, cols);
}

static void cpu_weight_init(backend *be, weight *w, dtype type, uint32_t rows, uint32_t cols,
                            void *dst) {
    (void)be;
    *w = (weight){.type = type, .rows = rows, .cols = cols, .data = dst};
}

typedef struct pack_job {
    panel_pack_fn *f;
    const weight *w;
    const unsigned char *rows; // of the file
    size_t row_bytes;
    uint32_t row_begin, n_rows;
    atomic_bool *not_finite; // one of the rows has a number that is not finite
} pack_job;

static void pack(const void *job, uint32_t begin, uint32_t end) {
    const pack_job *j = job;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t row = i * PANEL_ROWS;
        size_t panel = (j->row_begin + row) / PANEL_ROWS;
        bool finite =
            j->f(j->w->type, j->w->cols, j->rows + row * j->row_bytes,
                 u32_min(j->n_rows - row, PANEL_ROWS),
                 (unsigned char *)j->w->data + panel * panel_bytes(j->w->type, j->w->cols));
        if (!finite) atomic_store(j->not_finite, true);
    }
}

/* An error that names the first number of the job that is not finite. */
static inferd_status tell_not_finite(const pack_job *j, inferd_err *err) {
    for (uint32_t row = 0; row < j->n_rows; row++) {
        float value;
        uint32_t col =
            dtype_find_not_finite(j->w->type, j->rows + row * j->row_bytes, j->w->cols, &value);
        if (col < j->w->cols)
            return inferd_fail(err, INFERD_EFORMAT, "row %u, column %u is %g, not a finite number",
                               j->row_begin + row, col, (double)value);
    }
    INFERD_CHECK(!"a row with a number that is not finite");
    return INFERD_EFORMAT;
}

static pack_job pack_job_of(const backend *be, const weight *w, const void *rows,
                            uint32_t row_begin, uint32_t n_rows, atomic_bool *not_finite) {
    _Static_assert(PANEL_ROWS == (int)BE_PREPARE_ROWS, "a panel is prepared in one call");
    INFERD_CHECK(row_begin % PANEL_ROWS == 0 && row_begin <= w->rows &&
                 n_rows <= w->rows - row_begin);
    dtype_info info = dtype_about(w->type);
    size_t row_bytes = (size_t)w->cols / info.block_elems * info.block_bytes;
    return (pack_job){
        cpu_of_const(be)->level->pack, w, rows, row_bytes, row_begin, n_rows, not_finite};
}

static uint32_t n_panels_of(uint32_t n_rows) {
    return (n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

static void cpu_weight_prepare(backend *be, weight *w, const void *rows, uint32_t row_begin,
                               uint32_t n_rows) {
    atomic_bool not_finite = false;
    pack_job job = pack_job_of(be, w, rows, row_begin, n_rows, &not_finite);
    inferd_err err = {0};
    tpool_pin_caller(cpu_of(be)->threads);
    tpool_share(cpu_of(be)->threads, pack, &job, n_panels_of(n_rows));
    if (atomic_load(&not_finite)) backend_fail(be, tell_not_finite(&job, &err), "%s", err.text);
}

static inferd_status cpu_weight_prepare_part(const backend *be, const weight *w, const void *rows,
                                             uint32_t row_begin, uint32_t n_rows, inferd_err *err) {
    atomic_bool not_finite = false;
    pack_job job = pack_job_of(be, w, rows, row_begin, n_rows, &not_finite);
    pack(&job, 0, n_panels_of(n_rows));
    return atomic_load(&not_finite) ? tell_not_finite(&job, err) : INFERD_OK;
}

typedef struct dummy_job {
    const weight *w;
    unsigned char *out;
    size_t row_bytes;
    uint64_t seed;
    float scale;
    uint32_t row_begin, n_rows;
} dummy_job;

static void make_up(const void *job, uint32_t begin, uint32_t end) {
    const dummy_job *j = job;
    for (uint32_t panel = begin; panel < end; panel++) {
        uint32_t row = panel * PANEL_ROWS, n = u32_min(PANEL_ROWS, j->n_rows - row);
        dummy_file_rows(j->w->type, j->w->cols, j->seed, j->scale, j->row_begin + row, n,
                        j->out + row * j->row_bytes);
    }
}

/* Rows in the format of a file, a few megabytes at a time. */
static void cpu_weight_dummy_rows(backend *be, weight *w, uint64_t seed, float scale,
                                  uint32_t row_begin, uint32_t n_rows) {
    enum { CHUNK_BYTES = 4 << 20 };
    INFERD_CHECK(row_begin % PANEL_ROWS == 0 && row_begin <= w->rows &&
                 n_rows <= w->rows - row_begin);
    dtype_info info = dtype_about(w->type);
    dummy_job job = {.w = w, .seed = seed, .scale = scale};
    job.row_bytes = (size_t)w->cols / info.block_elems * info.block_bytes;
    uint32_t n_panels = (uint32_t)(CHUNK_BYTES / (job.row_bytes * PANEL_ROWS));
    uint32_t rows_max = u32_min(u32_max(n_panels, 1) * PANEL_ROWS, n_rows);
    job.out = malloc(size_max(rows_max * job.row_bytes, 1));
    if (job.out == NULL) {
        backend_fail(be, INFERD_ENOMEM, "no memory for %u rows of %u", rows_max, w->cols);
        return;
    }
    uint32_t end = row_begin + n_rows;
    for (job.row_begin = row_begin; job.row_begin < end; job.row_begin += rows_max) {
        job.n_rows = u32_min(rows_max, end - job.row_begin);
        tpool_split(cpu_of(be)->threads, make_up, &job, (job.n_rows + PANEL_ROWS - 1) / PANEL_ROWS);
        cpu_weight_prepare(be, w, job.out, job.row_begin, job.n_rows);
    }
    free(job.out);
}

static void cpu_weight_dummy(backend *be, weight *w, uint64_t seed, float scale) {
    cpu_weight_dummy_rows(be, w, seed, scale, 0, w->rows);
}

/* Panels (panel.h) are the same at every instruction set. */
static const char *cpu_weight_layout(const backend *be) {
    (void)be;
    return "cpu-panels-1";
}

static void cpu_vec_init(backend *be, vec *v, uint32_t n, void *dst) {
    (void)be;
    *v = (vec){.data = dst, .n = n};
}

static void cpu_vec_load(backend *be, vec *v, const float *host) {
    (void)be;
    memcpy(v->data, host, v->n * sizeof *v->data);
}

static void cpu_vec_fill(backend *be, vec *v, float value) {
    (void)be;
    for (uint32_t i = 0; i < v->n; i++) v->data[i] = value;
}

/* ---- activations ---- */

static void cpu_scratch_begin(backend *be) {
    cpu_backend *c = cpu_of(be);
    INFERD_CHECK(!c->scratch.open);
    c->scratch.open = true;
    c->scratch.used = 0;
}

static void cpu_scratch_end(backend *be) {
    cpu_of(be)->scratch.open = false;
}

static void scratch_close(cpu_scratch *s) {
    if (s->mapped != NULL) munmap(s->mapped, s->mapped_bytes);
    *s = (cpu_scratch){0};
}

static bool reserve_scratch(cpu_scratch *s) {
    size_t n = CPU_SCRATCH_BYTES_MAX + ARENA_PAGE_BYTES;
    void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    uintptr_t at = ((uintptr_t)p + ARENA_PAGE_BYTES - 1) / ARENA_PAGE_BYTES * ARENA_PAGE_BYTES;
    s->base = (unsigned char *)p + (at - (uintptr_t)p);
    s->mapped = p;
    s->mapped_bytes = n;
    return true;
}

/* Make the first n bytes accessible memory.  They are touched now, and not in a step. */
static bool hold_scratch(cpu_scratch *s, size_t n) {
    if (n <= s->n_bytes) return true;
    if (n > CPU_SCRATCH_BYTES_MAX || (s->base == NULL && !reserve_scratch(s))) return false;
    n = (n + ARENA_PAGE_BYTES - 1) / ARENA_PAGE_BYTES * ARENA_PAGE_BYTES;
    unsigned char *fresh = s->base + s->n_bytes;
    if (mprotect(fresh, n - s->n_bytes, PROT_READ | PROT_WRITE) != 0) return false;
    madvise(fresh, n - s->n_bytes, MADV_HUGEPAGE);
    memset(fresh, 0, n - s->n_bytes);
    s->n_bytes = n;
    return true;
}

static void *take_scratch(cpu_scratch *s, size_t n) {
    enum { ALIGN = 4096 };
    size_t at = (s->used + ALIGN - 1) / ALIGN * ALIGN;
    if (n > SIZE_MAX - at || !hold_scratch(s, at + n)) return NULL;
    s->used = at + n;
    return s->base + at;
}

/* An allocation outside the scratch.  A large one is aligned to huge pages and not rounded up: its
 * last part is in small pages. */
static void *take_memory(size_t n) {
    size_t align = n >= ARENA_PAGE_BYTES ? ARENA_PAGE_BYTES : 64;
    void *data;
    if (posix_memalign(&data, align, n) != 0) return NULL;
    if (align == ARENA_PAGE_BYTES)
        madvise(data, n / ARENA_PAGE_BYTES * ARENA_PAGE_BYTES, MADV_HUGEPAGE);
    memset(data, 0, n); // touched now, not in a step
    return data;
}

static act *cpu_act_open(backend *be, act_kind kind, uint32_t rows_max, uint32_t dim) {
    (void)kind; // all are floats
    cpu_backend *c = cpu_of(be);
    size_t n_bytes;
    act *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    *a = (act){.rows_max = rows_max, .dim = dim, .in_scratch = c->scratch.open};
    if (size_mul(rows_max, dim, &n_bytes) && size_mul(n_bytes, sizeof(float), &n_bytes) &&
        size_add(n_bytes, 64, &n_bytes))
        a->data = a->in_scratch ? take_scratch(&c->scratch, n_bytes) : take_memory(n_bytes);
    if (a->data == NULL) {
        free(a);
        return NULL;
    }
    a->n_bytes = n_bytes;
    c->rows_max = u32_max(c->rows_max, rows_max);
    return a;
}

static void cpu_act_close(backend *be, act *a) {
    cpu_flush(cpu_of(be), true); // recorded operations may use it
    if (!a->in_scratch) free(a->data);
    free(a);
}

static const float *cpu_act_host(backend *be, const act *a) {
    cpu_flush(cpu_of(be), true);
    return a->data;
}

/* ---- page faults of a step ----
 *
 * None after the first steps: pages of the arena are touched (arena.h), activations and tables
 * are written when they are made, and the rest is touched here: the code of batch shapes that
 * did not occur yet, and the stacks. */

static void touch_code(void) {
#if defined(MADV_POPULATE_READ)
    extern const char __executable_start[] __attribute__((weak)), etext[] __attribute__((weak));
    uintptr_t page = 4095, begin = (uintptr_t)__executable_start & ~page;
    uintptr_t end = ((uintptr_t)etext + page) & ~page;
    if (begin != 0 && end > begin)
        madvise((void *)begin, end - begin, MADV_POPULATE_READ); // a failure is harmless
#endif
}

static void touch_stack(void *ctx, uint32_t rank, uint32_t n_ranks) {
    volatile unsigned char stack[160 * 1024]; // more than any operation uses
    (void)ctx, (void)rank, (void)n_ranks;
    for (size_t i = 0; i < sizeof stack; i += 1024) stack[i] = 0;
}

static long faults_of_thread(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
    return usage.ru_minflt + usage.ru_majflt;
}

/* On the ranks that compute; the set may differ between the beginning and the end of a step. */
static void sample_faults(const void *job, uint32_t rank, uint32_t end) {
    const cpu_backend *c = job;
    (void)end;
    c->faults[rank].step = c->step;
    c->faults[rank].n = faults_of_thread();
}

static void count_faults(const void *job, uint32_t rank, uint32_t end) {
    const cpu_backend *c = job;
    rank_faults *f = &c->faults[rank];
    (void)end;
    if (f->step == c->step) f->in_step = (uint64_t)(faults_of_thread() - f->n);
}

static void on_computing_ranks(cpu_backend *c, range_fn *f) {
    tpool_phases(c->threads, &(tpool_phase){f, c, 0, PHASE_EACH}, 1);
}

/* ---- one step ---- */

typedef struct slots_job {
    arena *pages;
    const batch *b;
    const kv_layout *kv;
    atomic_uint *n_late;
} slots_job;

/* First touches of the pages that sequences [begin, end) write in this step. */
static void touch_slots(const void *job, uint32_t begin, uint32_t end) {
    const slots_job *j = job;
    uint32_t n_groups = j->kv->n_groups;
    for (uint32_t i = begin; i < end; i++) {
        const batch_seq *s = &j->b->seqs[i];
        if (s->n_rows == 0) continue;
        uint32_t first = s->pos_begin / j->kv->block_tokens;
        uint32_t last = (s->pos_begin + s->n_rows - 1) / j->kv->block_tokens;
        for (uint32_t k = first * n_groups; k < (last + 1) * n_groups; k++)
            if (arena_touch(j->pages, (uint32_t)s->slots[k] / j->kv->slots_per_page))
                atomic_fetch_add_explicit(j->n_late, 1, memory_order_relaxed);
    }
}

/* The slots that the sequence writes in this step lie in pages that are not in windows.  *late:
 * some page has not been touched. */
static bool check_slots(cpu_backend *c, const batch_seq *s, const kv_layout *kv, bool *late) {
    if (s->n_rows == 0) return true;
    uint32_t last = (s->pos_begin + s->n_rows - 1) / kv->block_tokens;
    if (last >= s->n_blocks) {
        backend_fail(&c->be, INFERD_EINVAL, "position %u has no slots: the sequence has %u blocks",
                     s->pos_begin + s->n_rows - 1, s->n_blocks);
        return false;
    }
    for (uint32_t block = s->pos_begin / kv->block_tokens; block <= last; block++) {
        for (uint32_t group = 0; group < kv->n_groups; group++) {
            int32_t slot = s->slots[(size_t)block * kv->n_groups + group];
            uint32_t page = slot >= 0 ? (uint32_t)slot / kv->slots_per_page : UINT32_MAX;
            if (page >= arena_n_pages(c->pages) || arena_is_away(c->pages, page)) {
                backend_fail(&c->be, INFERD_EDEVICE, "slot %d is not in the arena", slot);
                return false;
            }
            arena_use(c->pages, page);
            *late |= !arena_is_home(c->pages, page);
        }
    }
    return true;
}

static bool check_pages(cpu_backend *c, const batch *b, const kv_layout *kv) {
    bool late = false;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (!check_slots(c, &b->seqs[i], kv, &late)) return false;
    if (!late) return true;
    atomic_uint n_late = 0;
    tpool_share(c->threads, touch_slots, &(slots_job){c->pages, b, kv, &n_late}, b->n_seqs);
    c->n_kv_page_faults += n_late;
    return true;
}

static void cpu_step_begin(backend *be, const batch *b, const kv_layout *kv) {
    cpu_backend *c = cpu_of(be);
    tpool_pin_caller(c->threads);
    cpu_flush(c, true);
    c->batch = b;
    c->kv = kv;
    c->step++;
    c->wanted = NULL;
    experts_begin_step(c->experts);
    c->step_began_us = clock_now_us();
    arena_step_begin(c->pages);
    if (!check_pages(c, b, kv)) return;
    if (c->step == 1) tpool_run(c->threads, touch_stack, NULL);
    on_computing_ranks(c, sample_faults);
    c->in_step = true;
}

static void cpu_sync(backend *be) {
    cpu_backend *c = cpu_of(be);
    cpu_flush(c, true);
    if (!c->in_step) return;
    c->in_step = false;
    on_computing_ranks(c, count_faults);
    for (uint32_t i = 0; i < tpool_n_threads(c->threads); i++) {
        if (c->step > WARM_UP_STEPS) c->n_kv_page_faults += c->faults[i].in_step;
        c->faults[i].in_step = 0;
    }
}

/* A step that failed while its operations were recorded is not computed. */
static void cpu_step_end(backend *be, bool failed) {
    cpu_backend *c = cpu_of(be);
    if (failed)
        phases_clear(c->phases);
    else
        cpu_flush(c, false);
    c->step_ended_us = clock_now_us();
    arena_step_end(c->pages, c->step_ended_us);
}

static void cpu_want_logits(backend *be, const act *logits, uint32_t n) {
    (void)n;
    cpu_of(be)->wanted = logits;
}

static void cpu_step_finish(backend *be, be_step_result *out) {
    cpu_backend *c = cpu_of(be);
    cpu_sync(be);
    out->device_us = c->step_ended_us - c->step_began_us;
    out->n_saturated = c->n_saturated;
    out->n_experts = experts_counts(c->experts, &out->expert_rows, &out->n_expert_reads);
    c->n_saturated = 0;
    if (c->wanted == NULL) return;
    out->logits = c->wanted->data;
    out->logits_stride = c->wanted->dim;
}

static void cpu_thread_beside(const backend *be) {
    tpool_leave(cpu_of_const(be)->threads);
}

static void cpu_event_record(backend *be, uint32_t event) {
    cpu_backend *c = cpu_of(be);
    cpu_flush(c, true);
    c->events_us[event] = clock_now_us();
}

static uint64_t cpu_event_elapsed_us(const backend *be, uint32_t begin, uint32_t end) {
    const uint64_t *at = cpu_of_const(be)->events_us;
    return at[end] > at[begin] ? at[end] - at[begin] : 0;
}

static void cpu_parallel(backend *be, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx) {
    tpool_each(cpu_of(be)->threads, n, f, ctx);
}

/* ---- opening ---- */

static const backend_ops cpu_ops = {
    .close = cpu_close,
    .name = cpu_name,
    .depth = cpu_depth,
    .n_threads = cpu_n_threads,
    .rows_best = cpu_rows_best,
    .get_stats = cpu_get_stats,
    .get_profile = cpu_get_profile,
    .n_pages = cpu_n_pages,
    .n_pages_warm = cpu_n_pages_warm,
    .n_host_pages = cpu_n_host_pages,
    .page_bytes = cpu_page_bytes,
    .page_touch = cpu_page_touch,
    .window_open = cpu_window_open,
    .window_close = cpu_window_close,
    .window_base = cpu_window_base,
    .window_map = cpu_window_map,
    .window_grow = cpu_window_grow,
    .window_unmap = cpu_window_unmap,
    .kv_preferred = cpu_kv_preferred,
    .kv_move = cpu_kv_move,
    .kv_slot = cpu_kv_slot,
    .page_zero = cpu_page_zero,
    .kv_layer_bytes = cpu_kv_layer_bytes,
    .weight_supported = cpu_weight_supported,
    .weight_math = cpu_weight_math,
    .weight_bytes = cpu_weight_bytes,
    .weight_init = cpu_weight_init,
    .weight_prepare = cpu_weight_prepare,
    .weight_prepare_part = cpu_weight_prepare_part,
    .weight_dummy = cpu_weight_dummy,
    .weight_dummy_rows = cpu_weight_dummy_rows,
    .weight_layout = cpu_weight_layout,
    .vec_init = cpu_vec_init,
    .vec_load = cpu_vec_load,
    .vec_fill = cpu_vec_fill,
    .scratch_begin = cpu_scratch_begin,
    .scratch_end = cpu_scratch_end,
    .act_open = cpu_act_open,
    .act_close = cpu_act_close,
    .step_begin = cpu_step_begin,
    .step_end = cpu_step_end,
    .step_finish = cpu_step_finish,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .matmul = cpu_matmul,
    .rope = cpu_rope,
    .attention = cpu_attention,
    .head_norm = cpu_head_norm,
    .glu = cpu_glu,
    .experts = cpu_experts,
    .scale = cpu_scale,
    .add = cpu_add,
    .take_logit_rows = cpu_take_logit_rows,
    .softcap = cpu_softcap,
    .want_logits = cpu_want_logits,
    .sync = cpu_sync,
    .act_host = cpu_act_host,
    .event_record = cpu_event_record,
    .event_elapsed_us = cpu_event_elapsed_us,
    .parallel = cpu_parallel,
    .thread_beside = cpu_thread_beside,
};

inferd_status cpu_list_devices(const backend_options *options, backend_device_about *out,
                               uint32_t *n, inferd_err *err) {
    const cpu_level *level = level_choose(getenv("INFERD_CPU"), err);
    if (level == NULL) return err != NULL ? err->status : INFERD_EINVAL;
    out[0] = (backend_device_about){.n_units = options->n_threads,
                                    .memory_bytes = options->memory_bytes};
    if (out[0].n_units == 0 && options->cores != NULL && options->cores[0] != 0) {
        cpu_set_t cpus;
        inferd_status s = machine_cpu_list(options->cores, &cpus, err);
        if (s != INFERD_OK) return s;
        out[0].n_units = (uint32_t)CPU_COUNT(&cpus);
    }
    /* The whole machine, unless the device was given less. */
    if (out[0].n_units == 0) out[0].n_units = machine_cpus_allowed();
    if (out[0].memory_bytes == 0) out[0].memory_bytes = machine_memory_bytes();
    snprintf(out[0].kind, sizeof out[0].kind, "cpu");
    snprintf(out[0].name, sizeof out[0].name, "cpu %s", level->name);
    *n = 1;
    return INFERD_OK;
}

/* The arena's thread inherits the CPUs of the caller, so the caller has the pool's for a moment. */
static inferd_status open_arena(cpu_backend *c, const backend_options *o, inferd_err *err) {
    cpu_set_t found;
    bool known = sched_getaffinity(0, sizeof found, &found) == 0;
    size_t n_bytes;
    if (!size_add(o->memory_bytes, o->host_bytes, &n_bytes))
        return inferd_fail(err, INFERD_EINVAL, "memory of %llu bytes and %llu more for weights",
                           (unsigned long long)o->memory_bytes, (unsigned long long)o->host_bytes);
    c->n_host_pages = (uint32_t)size_min(o->host_bytes / ARENA_PAGE_BYTES, UINT32_MAX);
    if (known) tpool_leave(c->threads);
    inferd_status s = arena_open(n_bytes, &c->pages, err);
    if (known) sched_setaffinity(0, sizeof found, &found);
    return s;
}

inferd_status cpu_open(const backend_options *options, backend **out, inferd_err *err) {
    *out = NULL;
    const cpu_level *level = level_choose(getenv("INFERD_CPU"), err);
    if (level == NULL) return err != NULL ? err->status : INFERD_EINVAL;
    cpu_backend *c = calloc(1, sizeof *c);
    if (c == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the backend");
    c->be.ops = &cpu_ops;
    c->level = level;
    c->exact = options->exact_math;
    snprintf(c->name, sizeof c->name, "cpu %s%s", level->name, c->exact ? ", exact" : "");
    inferd_status s = tpool_open_on(options->cores, options->n_threads, &c->threads, err);
    if (s != INFERD_OK) goto fail;
    s = open_arena(c, options, err);
    if (s != INFERD_OK) goto fail;
    c->phases = phases_open();
    c->experts = experts_open();
    for (size_t i = 0; i < ATTN_PLANS; i++) c->plans[i].plan = attn_plan_open();
    if (c->phases == NULL || c->experts == NULL || c->plans[0].plan == NULL ||
        c->plans[1].plan == NULL) {
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for the plan of a step");
        goto fail;
    }
    c->faults = calloc(tpool_n_threads(c->threads), sizeof *c->faults);
    if (c->faults == NULL) {
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for %u counters",
                        tpool_n_threads(c->threads));
        goto fail;
    }
    if (options->profile && (c->part_ns = calloc(N_STEP_PARTS, sizeof *c->part_ns)) == NULL) {
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for a profile");
        goto fail;
    }
    touch_code();
    *out = &c->be;
    return INFERD_OK;

fail:
    cpu_close(&c->be);
    return s;
}
