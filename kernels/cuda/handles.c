/* handles.c - the size of a handle, and the handles themselves; see memory.h.
 *
 * Mapping a window costs calls per handle, so large handles switch models faster; a window takes
 * whole handles, so small ones waste less.  The probe maps the same bytes (one handle of the
 * largest size) as handles of each size, allows access to them and unmaps them, as a window does
 * when its model is loaded and evicted.  It takes the smallest size for which that costs at most
 * 5 % of the bus time of the bytes; the largest when none is cheap enough.  Creating a handle is
 * left out: it happens once, in the background.  Times are measured between two events on an idle
 * stream, which the device stamps as the host records them.
 *
 * Making handles: create and map one by one, allow access to all of them in one call, and only then
 * increase n_ready.  The thread that makes the rest owns n_made and the tail of `handles` until it
 * is joined; the engine uses handles below n_ready only.
 *
 * When the device has no more memory (another process took it since it was counted), a handle is
 * tried once again after a moment, and then the existing handles are the capacity. */
#include <string.h>
#include <time.h>

#include "cuda/memory_private.h"

#define HANDLE_BYTES_MAX ((size_t)64 << 20)
#define BUS_PROBE_BYTES  ((size_t)8 << 20)

enum {
    HANDLE_SIZES = 6,        // 2, 4 ... 64 MiB
    PROBE_HANDLES_MAX = 32,  // 1 << (HANDLE_SIZES - 1)
    PROBE_TIMES = 3,         // the fastest counts
    MAPPING_PERCENT_MAX = 5, // of the time on the bus
    HANDLES_MIN = 16,        // the memory is at least so many handles, or they are too large
    GROW_HANDLES = 32,       // made between two looks at `closing`
    RETRY_US = 10000
};
#define GROW_BYTES ((size_t)64 << 20)

/* ---- probing ---- */

static cu_result start_clock(cuda_memory *m) {
    return m->api->event_record(m->up.begin, m->up.stream);
}

static cu_result read_clock(cuda_memory *m, uint64_t *best_us) {
    const cu_api *api = m->api;
    uint64_t us = 0;
    cu_result r;
    if ((r = api->event_record(m->up.end, m->up.stream)) != CU_OK ||
        (r = api->event_sync(m->up.end)) != CU_OK ||
        (r = api->event_elapsed_us(m->up.begin, m->up.end, &us)) != CU_OK)
        return r;
    if (us == 0) us = 1;
    if (*best_us == 0 || us < *best_us) *best_us = us;
    return CU_OK;
}

/* The first copy of a process is slower: one copy more than PROBE_TIMES. */
static cu_result time_copies(cuda_memory *m, void *device, const void *host, size_t n,
                             uint64_t *best_us) {
    cu_result r = m->api->copy_to_device(device, host, n, m->up.stream);
    for (int i = 0; r == CU_OK && i < PROBE_TIMES; i++)
        if ((r = start_clock(m)) == CU_OK &&
            (r = m->api->copy_to_device(device, host, n, m->up.stream)) == CU_OK)
            r = read_clock(m, best_us);
    return r;
}

inferd_status bus_measure(cuda_memory *m, uint64_t memory_bytes, inferd_err *err) {
    size_t n = size_min(BUS_PROBE_BYTES, (size_t)(memory_bytes / 4));
    void *host = NULL, *device = NULL;
    uint64_t us = 0;
    inferd_status s = INFERD_OK;
    cu_result r = COUNTED(m->n_calls, m->api->host_alloc(n, &host));
    if (r != CU_OK)
        return memory_fail(m, r, err, "taking %zu KiB of pinned host memory to measure the bus",
                           n >> 10);
    r = COUNTED(m->n_calls, m->api->alloc(n, &device));
    if (r != CU_OK) {
        s = memory_fail(m, r, err, "taking %zu KiB of device memory to measure the bus", n >> 10);
    } else {
        memset(host, 0, n);
        r = time_copies(m, device, host, n, &us);
        if (r != CU_OK) {
            s = memory_fail(m, r, err, "measuring the bus with copies of %zu KiB", n >> 10);
            m->api->stream_sync(m->up.stream); // the copies read memory that is freed below
        } else {
            m->bus_bytes_per_s = (uint64_t)n * 1000000 / us;
        }
    }
    if (device != NULL && (r = COUNTED(m->n_calls, m->api->free(device))) != CU_OK &&
        s == INFERD_OK)
        s = memory_fail(m, r, err, "freeing device memory after measuring the bus");
    if ((r = COUNTED(m->n_calls, m->api->host_free(host))) != CU_OK && s == INFERD_OK)
        s = memory_fail(m, r, err, "freeing pinned host memory after measuring the bus");
    return s;
}

/* Alignment beyond the granularity is optional: handles are mapped at multiples of their size from
 * the beginning of the range. */
cu_result handles_reserve(cuda_memory *m, size_t n, size_t align, void **out) {
    cu_result r = COUNTED(m->n_calls, m->api->vmm_reserve(n, align, out));
    if (r != CU_EINVAL && r != CU_EUNSUPPORTED) return r;
    return COUNTED(m->n_calls, m->api->vmm_reserve(n, 0, out));
}

/* The time of a window's calls for `n` handles of h bytes; the fastest of a few. */
static cu_result time_mapping(cuda_memory *m, unsigned char *range, const cu_handle *handles,
                              uint32_t n, size_t h, uint64_t *best_us) {
    const cu_api *api = m->api;
    cu_result r = CU_OK;
    for (int i = 0; r == CU_OK && i < PROBE_TIMES; i++) {
        uint32_t n_mapped = 0;
        if ((r = start_clock(m)) != CU_OK) return r;
        while (n_mapped < n && (r = COUNTED(m->n_calls, api->vmm_map(range + n_mapped * h, h,
                                                                     handles[n_mapped]))) == CU_OK)
            n_mapped++;
        if (r == CU_OK) r = COUNTED(m->n_calls, api->vmm_access(range, n * h));
        if (n_mapped > 0) {
            cu_result u = COUNTED(m->n_calls, api->vmm_unmap(range, n_mapped * h));
            if (r == CU_OK) r = u;
        }
        if (r == CU_OK) r = read_clock(m, best_us);
    }
    return r;
}

/* Microseconds to map n_bytes of the reserved range as handles of h bytes. */
static inferd_status probe_size(cuda_memory *m, unsigned char *range, size_t n_bytes, size_t h,
                                uint64_t *us, inferd_err *err) {
    cu_handle handles[PROBE_HANDLES_MAX];
    uint32_t n = (uint32_t)(n_bytes / h), n_made = 0;
    cu_result r = CU_OK;
    while (n_made < n &&
           (r = COUNTED(m->n_calls, m->api->vmm_create(h, &handles[n_made]))) == CU_OK)
        n_made++;
    *us = 0;
    if (r == CU_OK) r = time_mapping(m, range, handles, n, h, us);
    inferd_status s = INFERD_OK;
    if (r != CU_OK)
        s = memory_fail(m, r, err, "trying handles of %zu KiB for %zu KiB of device memory",
                        h >> 10, n_bytes >> 10);
    for (uint32_t i = 0; i < n_made; i++) {
        r = COUNTED(m->n_calls, m->api->vmm_release(handles[i]));
        if (r != CU_OK && s == INFERD_OK)
            s = memory_fail(m, r, err, "releasing a handle of %zu KiB", h >> 10);
    }
    return s;
}

static inferd_status check_granularity(const cuda_memory *m, size_t granularity, inferd_err *err) {
    if (granularity > HANDLE_BYTES_MAX)
        return inferd_fail(
            err, INFERD_EUNSUPPORTED,
            "device %u maps memory in pieces of %zu MiB, at most %zu MiB are possible",
            m->device_index, granularity >> 20, HANDLE_BYTES_MAX >> 20);
    if (granularity == 0 || (granularity & (granularity - 1)) != 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "device %u maps memory in pieces of %zu bytes, which is no power of two",
                           m->device_index, granularity);
    return INFERD_OK;
}

inferd_status handles_choose(cuda_memory *m, uint64_t memory_bytes, inferd_err *err) {
    size_t granularity = 0;
    cu_result r = m->api->vmm_granularity(&granularity);
    if (r != CU_OK) return memory_fail(m, r, err, "asking for the granularity of device memory");
    inferd_status s = check_granularity(m, granularity, err);
    if (s != INFERD_OK) return s;

    size_t smallest = size_max(granularity, m->page_bytes), largest = smallest;
    for (int i = 1; i < HANDLE_SIZES; i++)
        if (2 * largest <= HANDLE_BYTES_MAX && 2 * largest <= memory_bytes / HANDLES_MIN)
            largest *= 2;
    m->block_bytes = smallest;
    if (largest > smallest) {
        void *range = NULL;
        r = handles_reserve(m, largest, largest, &range);
        if (r != CU_OK)
            return memory_fail(m, r, err, "reserving %zu MiB of device addresses", largest >> 20);
        double bus_us = (double)largest * 1e6 / (double)m->bus_bytes_per_s;
        for (size_t h = smallest; h <= largest && s == INFERD_OK; h *= 2) {
            uint64_t us;
            s = probe_size(m, range, largest, h, &us, err);
            m->block_bytes = h;
            if ((double)us * 100 <= bus_us * MAPPING_PERCENT_MAX) break;
        }
        r = COUNTED(m->n_calls, m->api->vmm_unreserve(range, largest));
        if (r != CU_OK && s == INFERD_OK)
            s = memory_fail(m, r, err, "giving back %zu MiB of device addresses", largest >> 20);
    }
    m->block_pages = (uint32_t)(m->block_bytes / m->page_bytes);
    return s;
}

/* ---- making ---- */

static unsigned char *handle_at(const cuda_memory *m, uint32_t k) {
    return m->arena + (size_t)k * m->block_bytes;
}

static cu_result create(cuda_memory *m, atomic_ullong *n_calls, cu_handle *out) {
    cu_result r = COUNTED(*n_calls, m->api->vmm_create(m->block_bytes, out));
    if (r != CU_ENOMEM) return r;
    nanosleep(&(struct timespec){.tv_nsec = RETRY_US * 1000}, NULL);
    return COUNTED(*n_calls, m->api->vmm_create(m->block_bytes, out));
}

/* Make handles [n_made, end); after a failure all handles below n_made work. */
static cu_result make(cuda_memory *m, uint32_t end, atomic_ullong *n_calls) {
    const cu_api *api = m->api;
    uint32_t begin = m->n_made, k = begin;
    cu_result r = CU_OK;
    for (; k < end; k++) {
        if ((r = create(m, n_calls, &m->handles[k])) != CU_OK) break;
        r = COUNTED(*n_calls, api->vmm_map(handle_at(m, k), m->block_bytes, m->handles[k]));
        if (r != CU_OK) {
            COUNTED(*n_calls, api->vmm_release(m->handles[k]));
            break;
        }
    }
    if (k == begin) return r;
    size_t n_bytes = (size_t)(k - begin) * m->block_bytes;
    cu_result a = COUNTED(*n_calls, api->vmm_access(handle_at(m, begin), n_bytes));
    if (a == CU_OK) {
        m->n_made = k;
        return r;
    }
    COUNTED(*n_calls, api->vmm_unmap(handle_at(m, begin), n_bytes));
    for (uint32_t i = begin; i < k; i++) COUNTED(*n_calls, api->vmm_release(m->handles[i]));
    return a;
}

/* Bytes written at a second address of a handle must be read at its first. */
enum { ALIAS_BYTES = 4096, ALIAS_BYTE = 0x5a };

/* Through `alias` in, through the arena out. */
static cu_result write_and_read(cuda_memory *m, void *alias, unsigned char *seen) {
    cu_result r = m->api->fill(m->arena, 0, ALIAS_BYTES, m->up.stream);
    if (r == CU_OK) r = m->api->fill(alias, ALIAS_BYTE, ALIAS_BYTES, m->up.stream);
    if (r == CU_OK) r = m->api->copy_to_host(seen, m->arena, ALIAS_BYTES, m->up.stream);
    cu_result waited = m->api->stream_sync(m->up.stream);
    return r != CU_OK ? r : waited;
}

static inferd_status check_alias(cuda_memory *m, inferd_err *err) {
    const cu_api *api = m->api;
    unsigned char seen[ALIAS_BYTES] = {0};
    void *range = NULL;
    cu_result r = handles_reserve(m, m->block_bytes, m->block_bytes, &range);
    if (r != CU_OK) return memory_fail(m, r, err, "reserving device addresses for a second view");
    r = COUNTED(m->n_calls, api->vmm_map(range, m->block_bytes, m->handles[0]));
    bool mapped = r == CU_OK;
    if (r == CU_OK) r = COUNTED(m->n_calls, api->vmm_access(range, m->block_bytes));
    if (r == CU_OK) r = write_and_read(m, range, seen);
    inferd_status s = INFERD_OK;
    if (r != CU_OK) s = memory_fail(m, r, err, "mapping a handle at a second address");
    if (mapped && (r = COUNTED(m->n_calls, api->vmm_unmap(range, m->block_bytes))) != CU_OK &&
        s == INFERD_OK)
        s = memory_fail(m, r, err, "unmapping the second address of a handle");
    COUNTED(m->n_calls, api->vmm_unreserve(range, m->block_bytes));
    if (s != INFERD_OK) return s;
    for (size_t i = 0; i < ALIAS_BYTES; i++)
        if (seen[i] != ALIAS_BYTE)
            return inferd_fail(err, INFERD_EIO,
                               "device %u: byte %zu of a handle is 0x%02x at its first address and "
                               "was written as 0x%02x at its second: virtual memory management "
                               "does not work here (INFERD_CUDA_OFF=vmm runs without it)",
                               m->device_index, i, seen[i], ALIAS_BYTE);
    return INFERD_OK;
}

static uint32_t pages_made(const cuda_memory *m) {
    return m->n_made > m->workspace_blocks ? (m->n_made - m->workspace_blocks) * m->block_pages : 0;
}

static void *grow(void *arg) {
    cuda_memory *m = arg;
    uint32_t n_each = u32_min(GROW_HANDLES, u32_max(1, (uint32_t)(GROW_BYTES / m->block_bytes)));
    cu_result r = m->api->device_use(m->device_index);
    while (r == CU_OK && m->n_made < m->n_blocks_planned) {
        if (atomic_load_explicit(&m->closing, memory_order_relaxed)) return NULL;
        r = make(m, u32_min(m->n_made + n_each, m->n_blocks_planned), &m->n_background_calls);
        atomic_store_explicit(&m->n_ready, pages_made(m), memory_order_release);
    }
    atomic_store_explicit(&m->n_pages, pages_made(m), memory_order_release);
    return NULL;
}

inferd_status handles_open(cuda_memory *m, uint32_t n_first, inferd_err *err) {
    size_t n_bytes = (size_t)m->n_blocks_planned * m->block_bytes;
    void *arena = NULL;
    cu_result r = handles_reserve(m, n_bytes, m->block_bytes, &arena);
    if (r != CU_OK)
        return memory_fail(m, r, err, "reserving %zu MiB of device addresses", n_bytes >> 20);
    m->arena = arena;
    m->arena_bytes = n_bytes;
    m->pages = m->arena + m->workspace_blocks * m->block_bytes;
    m->handles = calloc(m->n_blocks_planned, sizeof *m->handles);
    if (m->handles == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the list of %u handles",
                           m->n_blocks_planned);

    r = make(m, m->workspace_blocks + n_first, &m->n_calls);
    if (r != CU_OK && (r != CU_ENOMEM || m->n_made <= m->workspace_blocks))
        return memory_fail(m, r, err,
                           "making the first %u handles of %zu KiB of device memory, of which %u "
                           "could be made",
                           m->workspace_blocks + n_first, m->block_bytes >> 10, m->n_made);
    inferd_status s = check_alias(m, err);
    if (s != INFERD_OK) return s;
    atomic_store(&m->n_ready, pages_made(m));
    bool all = r == CU_OK && m->n_made == m->n_blocks_planned;
    if (r != CU_OK || all) {
        atomic_store(&m->n_pages, pages_made(m));
        return INFERD_OK;
    }
    int e = pthread_create(&m->grower, NULL, grow, m);
    if (e != 0)
        return inferd_fail(err, INFERD_ENOMEM, "cannot start the thread that makes memory: %s",
                           strerror(e));
    m->has_grower = true;
    return INFERD_OK;
}

/* ---- closing ---- */

void handles_stop(cuda_memory *m) {
    atomic_store_explicit(&m->closing, true, memory_order_relaxed);
    if (m->has_grower) pthread_join(m->grower, NULL);
    m->has_grower = false;
}

void handles_close(cuda_memory *m) {
    const cu_api *api = m->api;
    if (m->arena == NULL) return;
    size_t made_bytes = (size_t)m->n_made * m->block_bytes;
    cu_result r = CU_OK;
    if (m->n_made > 0) r = COUNTED(m->n_calls, api->vmm_unmap(m->arena, made_bytes));
    for (uint32_t i = 0; i < m->n_made; i++) COUNTED(m->n_calls, api->vmm_release(m->handles[i]));
    if (r == CU_OK || r == CU_ELOST)
        COUNTED(m->n_calls, api->vmm_unreserve(m->arena, m->arena_bytes));
    free(m->handles);
    m->handles = NULL;
    m->arena = NULL;
    m->n_made = 0;
}
