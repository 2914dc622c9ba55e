/* memory.c - how much memory, and opening and closing; see memory.h.
 *
 *     device   [ others | reserve |        memory_bytes          ]
 *                                 [ workspace |      pages       ]
 *
 * The workspace is rounded up to whole blocks and uses all of them.
 *
 * Thread: engine; n_pages and n_ready are written by the thread that makes handles. */
#include <string.h>
#include <time.h>

#include "kernels/machine.h"
#include "cuda/memory_private.h"

#define MIB               ((uint64_t)1 << 20)
#define RESERVE_BYTES_MIN (1024 * MIB)
#define WORKSPACE_MIN     (64 * MIB)
#define WORKSPACE_MAX     (2048 * MIB)
#define READY_BYTES       (64 * MIB)
#define PAGE_BYTES        ((size_t)2 << 20)
#define PAGE_BYTES_MIN    ((size_t)4 << 10)
#define PAGE_BYTES_MAX    ((size_t)64 << 20)

enum { RESERVE_PERCENT = 2, WORKSPACE_PART = 16, AGAIN_US = 10000 };

typedef unsigned long long ull; // for printing

inferd_status memory_fail(const cuda_memory *m, cu_result r, inferd_err *err, const char *format,
                          ...) {
    char what[CU_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return cu_fail(m->api, r, err, what);
}

/* ---- sizes ---- */

/* Bytes for the workspace and pages together. */
static inferd_status choose_memory(const cuda_memory *m, const cuda_memory_options *o,
                                   uint64_t *out, inferd_err *err) {
    uint64_t free_bytes = 0, total_bytes = 0;
    cu_result r = m->api->memory_info(&free_bytes, &total_bytes);
    if (r != CU_OK) return memory_fail(m, r, err, "asking for the free memory of the device");
    if (o->memory_bytes > free_bytes)
        return inferd_fail(err, INFERD_ENOMEM,
                           "memory of %llu MiB was asked for, device %u has %llu MiB free of %llu",
                           (ull)(o->memory_bytes / MIB), m->device_index, (ull)(free_bytes / MIB),
                           (ull)(total_bytes / MIB));
    *out = o->memory_bytes;
    if (o->memory_bytes != 0) return INFERD_OK;
    uint64_t reserve = o->reserve_bytes, part = total_bytes / 100 * RESERVE_PERCENT;
    if (reserve == 0) reserve = part > RESERVE_BYTES_MIN ? part : RESERVE_BYTES_MIN;
    if (free_bytes <= reserve)
        return inferd_fail(err, INFERD_ENOMEM,
                           "device %u has %llu MiB free of %llu, and the reserve alone is %llu MiB",
                           m->device_index, (ull)(free_bytes / MIB), (ull)(total_bytes / MIB),
                           (ull)(reserve / MIB));
    *out = free_bytes - reserve;
    return INFERD_OK;
}

static inferd_status choose_page(cuda_memory *m, const cuda_memory_options *o, inferd_err *err) {
    m->page_bytes = o->page_bytes != 0 ? o->page_bytes : PAGE_BYTES;
    if (m->page_bytes < PAGE_BYTES_MIN || m->page_bytes > PAGE_BYTES_MAX ||
        (m->page_bytes & (m->page_bytes - 1)) != 0)
        return inferd_fail(err, INFERD_EINVAL,
                           "a page of %zu bytes, expected a power of two from %zu to %zu",
                           m->page_bytes, PAGE_BYTES_MIN, PAGE_BYTES_MAX);
    m->block_bytes = m->page_bytes;
    m->block_pages = 1;
    return INFERD_OK;
}

static uint64_t choose_workspace(const cuda_memory_options *o, uint64_t memory_bytes) {
    if (o->workspace_bytes != 0) return o->workspace_bytes;
    uint64_t n = memory_bytes / WORKSPACE_PART;
    uint64_t least = o->workspace_least < memory_bytes / 2 ? o->workspace_least : memory_bytes / 2;
    if (n > WORKSPACE_MAX) n = WORKSPACE_MAX;
    if (o->workspace_least > 0 && n < least) n = least;
    return n < WORKSPACE_MIN ? WORKSPACE_MIN : n;
}

static inferd_status choose_blocks(cuda_memory *m, const cuda_memory_options *o,
                                   uint64_t memory_bytes, inferd_err *err) {
    uint64_t workspace_bytes = choose_workspace(o, memory_bytes);
    uint64_t n_blocks = memory_bytes / m->block_bytes;
    uint64_t n_work = workspace_bytes / m->block_bytes + (workspace_bytes % m->block_bytes != 0);
    if (n_work >= n_blocks)
        return inferd_fail(err, INFERD_ENOMEM,
                           "a workspace of %llu KiB leaves no pages: the memory is %llu KiB in "
                           "blocks of %zu KiB",
                           (ull)(workspace_bytes >> 10), (ull)(memory_bytes >> 10),
                           m->block_bytes >> 10);
    if (n_blocks * m->block_pages > INT32_MAX)
        return inferd_fail(err, INFERD_EINVAL, "%llu pages of %zu bytes, at most %d are possible",
                           (ull)(n_blocks * m->block_pages), m->page_bytes, INT32_MAX);
    m->workspace_blocks = (uint32_t)n_work;
    m->n_blocks_planned = (uint32_t)n_blocks;
    return INFERD_OK;
}

/* ---- opening ---- */

/* Without VMM: one allocation; if another process took memory meanwhile, a second try with the
 * memory that is free then. */
static inferd_status open_run(cuda_memory *m, const cuda_memory_options *o, uint64_t memory_bytes,
                              inferd_err *err) {
    void *p = NULL;
    inferd_status s = choose_blocks(m, o, memory_bytes, err);
    if (s != INFERD_OK) return s;
    size_t n = (size_t)m->n_blocks_planned * m->block_bytes;
    cu_result r = COUNTED(m->n_calls, m->api->alloc(n, &p));
    if (r == CU_ENOMEM) {
        nanosleep(&(struct timespec){.tv_nsec = AGAIN_US * 1000}, NULL);
        if ((s = choose_memory(m, o, &memory_bytes, err)) != INFERD_OK ||
            (s = choose_blocks(m, o, memory_bytes, err)) != INFERD_OK)
            return s;
        n = (size_t)m->n_blocks_planned * m->block_bytes;
        r = COUNTED(m->n_calls, m->api->alloc(n, &p));
    }
    if (r != CU_OK) return memory_fail(m, r, err, "taking %zu MiB of device memory", n >> 20);
    m->arena = p;
    m->arena_bytes = n;
    m->pages = m->arena + m->workspace_blocks * m->block_bytes;
    m->n_made = m->n_blocks_planned;
    return INFERD_OK;
}

static inferd_status make_handles(cuda_memory *m, const cuda_memory_options *o,
                                  uint64_t memory_bytes, inferd_err *err) {
    inferd_status s = handles_choose(m, memory_bytes, err);
    if (s != INFERD_OK) return s;
    s = choose_blocks(m, o, memory_bytes, err);
    if (s != INFERD_OK) return s;
    uint64_t n_ready = o->ready_pages_min;
    if (n_ready == 0) n_ready = READY_BYTES / m->page_bytes;
    uint64_t n_first = (n_ready + m->block_pages - 1) / m->block_pages;
    uint32_t n_blocks = m->n_blocks_planned - m->workspace_blocks;
    if (n_first == 0) n_first = 1;
    atomic_store(&m->n_pages, n_blocks * m->block_pages);
    return handles_open(m, n_first < n_blocks ? (uint32_t)n_first : n_blocks, err);
}

/* A driver that lacks or refuses these calls gets one allocation instead.  Not so when the device
 * is gone, when memory is short, or when a second address shows wrong contents. */
static bool is_refused(inferd_status s) {
    return s == INFERD_EDEVICE || s == INFERD_EUNSUPPORTED || s == INFERD_ENOTFOUND;
}

static inferd_status open_handles(cuda_memory *m, const cuda_memory_options *o,
                                  uint64_t memory_bytes, inferd_err *err) {
    inferd_err refusal = {0};
    inferd_status s = make_handles(m, o, memory_bytes, &refusal);
    if (s == INFERD_OK) return s;
    if (!is_refused(s)) {
        *err = refusal;
        return s;
    }
    handles_stop(m);
    handles_close(m);
    parts_degrade(m->parts, PART_VMM, refusal.text);
    m->vmm = false;
    s = choose_page(m, o, err);
    return s == INFERD_OK ? open_run(m, o, memory_bytes, err) : s;
}

static inferd_status open_all(cuda_memory *m, const cuda_memory_options *o, inferd_err *err) {
    uint64_t memory_bytes = 0;
    inferd_status s;
    cu_result r = m->api->device_use(m->device_index);
    if (r != CU_OK) return memory_fail(m, r, err, "using device %u", m->device_index);
    if ((s = choose_page(m, o, err)) != INFERD_OK ||
        (s = choose_memory(m, o, &memory_bytes, err)) != INFERD_OK ||
        (s = choose_blocks(m, o, memory_bytes, err)) != INFERD_OK || // in pages
        (s = uploads_open(m, err)) != INFERD_OK ||
        (s = bus_measure(m, memory_bytes, err)) != INFERD_OK)
        return s;
    s = m->vmm ? open_handles(m, o, memory_bytes, err) : open_run(m, o, memory_bytes, err);
    if (s != INFERD_OK) return s;
    uint32_t n_blocks = m->n_blocks_planned - m->workspace_blocks;
    if (!m->vmm) {
        atomic_store(&m->n_pages, n_blocks);
        atomic_store(&m->n_ready, n_blocks);
    }
    m->held = calloc(n_blocks, 1);
    if (m->held == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the state of %u blocks", n_blocks);
    s = workspace_open(&m->work, m->arena, m->workspace_blocks * m->block_bytes, err);
    if (s == INFERD_OK) s = images_open(m, err);
    return s != INFERD_OK ? s : swap_open(m, err);
}

inferd_status memory_open(const cu_api *api, uint32_t device_index, const cu_device *device,
                          const cuda_memory_options *options, cuda_memory **out, inferd_err *err) {
    *out = NULL;
    cuda_memory *m = calloc(1, sizeof *m);
    if (m == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the device memory's state");
    m->api = api;
    m->device_index = device_index;
    m->parts = options->parts;
    m->vmm = device->vmm && (m->parts == NULL || parts_is_on(m->parts, PART_VMM));
    images *im = &m->images;
    im->host_bytes = im->machine_bytes = machine_memory_bytes();
    if (options->host_bytes != 0 &&
        (im->machine_bytes == 0 || options->host_bytes < im->machine_bytes))
        im->host_bytes = options->host_bytes;
    inferd_status s = open_all(m, options, err);
    if (s != INFERD_OK) {
        memory_close(m);
        return s;
    }
    *out = m;
    return INFERD_OK;
}

void memory_close(cuda_memory *m) {
    if (m == NULL) return;
    handles_stop(m);
    while (m->windows != NULL) window_close_cuda(m, m->windows); // each waits for its copies
    swap_close(m);
    images_close(m);
    uploads_close(m);
    if (m->vmm)
        handles_close(m);
    else if (m->arena != NULL)
        COUNTED(m->n_calls, m->api->free(m->arena));
    workspace_close(&m->work);
    free(m->held);
    free(m);
}

/* ---- reading ---- */

void *memory_base(const cuda_memory *m) {
    return m->pages;
}
uint32_t memory_n_pages(const cuda_memory *m) {
    return atomic_load_explicit(&m->n_pages, memory_order_acquire);
}
uint32_t memory_n_ready(const cuda_memory *m) {
    return atomic_load_explicit(&m->n_ready, memory_order_acquire);
}
size_t memory_page_bytes(const cuda_memory *m) {
    return m->page_bytes;
}
uint32_t memory_extent_pages(const cuda_memory *m) {
    return m->vmm ? m->block_pages : 0;
}
uint64_t memory_host_bytes(const cuda_memory *m) {
    return m->images.host_bytes;
}
uint64_t memory_n_calls(const cuda_memory *m) {
    return atomic_load_explicit(&m->n_calls, memory_order_relaxed);
}

void memory_get_stats(cuda_memory *m, cuda_memory_stats *out) {
    uint32_t n_ready = memory_n_ready(m);
    images_tell_refusal(m);
    *out = (cuda_memory_stats){
        .handle_bytes = m->vmm ? m->block_bytes : 0,
        .n_handles = m->vmm ? m->workspace_blocks + n_ready / m->block_pages : 0,
        .n_pages_planned = (m->n_blocks_planned - m->workspace_blocks) * m->block_pages,
        .n_maps = m->n_maps,
        .n_unmaps = m->n_unmaps,
        .n_calls = memory_n_calls(m),
        .n_background_calls = atomic_load_explicit(&m->n_background_calls, memory_order_relaxed),
        .load_bytes = m->up.load_bytes,
        .load_us = m->up.load_us,
        .bus_bytes_per_s = m->bus_bytes_per_s,
        .pinned_bytes = images_pinned_bytes(m),
        .image_bytes = m->images.used_bytes,
        .workspace_used = m->work.used_bytes,
        .workspace_bytes = m->work.n_bytes};
}
