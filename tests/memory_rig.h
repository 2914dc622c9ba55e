/* memory_rig.h - a device memory of the CUDA backend on the fake, for its tests.
 *
 * The fake has addresses, aliases, queues that run late and a clock.  Its calls go through a table
 * of this file (W_*), which can hold a call back (gates), add to the clock what mapping costs
 * (map_us), and tell our allocations from the fake's (in_fake).
 *
 *     bench b;
 *     open_small(&b, 4);     // extents of 4 pages; 0: no VMM
 *     ... b.m ...
 *     end(&b);               // nothing is left, no rule was broken */
#ifndef INFERD_MEMORY_RIG_H
#define INFERD_MEMORY_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "cuda/memory.h"
#include "cuda_emul/fake_api.h"
#include "test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, PAGE = 64 * KIB };

/* ---- the table in between ---- */

static _Thread_local int in_fake; // calls deep

/* A call waits while none are free. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_free; // UINT32_MAX: no gate
} gate;
static gate creating = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, UINT32_MAX};
static gate pinning = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, UINT32_MAX};

static inline void gate_set(gate *g, uint32_t n_free) {
    pthread_mutex_lock(&g->lock);
    g->n_free = n_free;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static inline void gate_pass(gate *g) {
    pthread_mutex_lock(&g->lock);
    while (g->n_free == 0) pthread_cond_wait(&g->changed, &g->lock);
    if (g->n_free != UINT32_MAX) g->n_free--;
    pthread_mutex_unlock(&g->lock);
}

static uint64_t map_us, access_us; // what these calls cost; set while nothing runs
static atomic_ullong mapping_us;   // spent so far
static struct {                    // mapping_us when the event was recorded
    cu_event event;
    unsigned long long us;
} recorded[64];
static uint32_t n_recorded;

static inline void note_record(cu_event e) { // of the thread that opens: only two events matter
    if (map_us + access_us == 0) return;
    uint32_t i = 0;
    while (i < n_recorded && recorded[i].event != e) i++;
    if (i == n_recorded && n_recorded < INFERD_COUNT(recorded)) n_recorded++;
    if (i == INFERD_COUNT(recorded)) return;
    recorded[i].event = e;
    recorded[i].us = atomic_load(&mapping_us);
}

static inline uint64_t between(cu_event begin, cu_event end) {
    unsigned long long b = 0, e = 0;
    for (uint32_t i = 0; i < n_recorded; i++) {
        if (recorded[i].event == begin) b = recorded[i].us;
        if (recorded[i].event == end) e = recorded[i].us;
    }
    return e - b;
}

#define W(name, params, args, before, after)                                                       \
    static cu_result W_##name params {                                                             \
        before;                                                                                    \
        in_fake++;                                                                                 \
        cu_result r = fake_api()->name args;                                                       \
        after;                                                                                     \
        in_fake--;                                                                                 \
        return r;                                                                                  \
    }
#define NOTHING (void)0
W(device_use, (uint32_t i), (i), NOTHING, NOTHING)
W(memory_info, (uint64_t * f, uint64_t *t), (f, t), NOTHING, NOTHING)
W(alloc, (size_t n, void **out), (n, out), NOTHING, NOTHING)
W(free, (void *p), (p), NOTHING, NOTHING)
W(host_alloc, (size_t n, void **out), (n, out), NOTHING, NOTHING)
W(host_free, (void *p), (p), NOTHING, NOTHING)
W(host_pin, (void *p, size_t n), (p, n), gate_pass(&pinning), NOTHING)
W(host_unpin, (void *p), (p), NOTHING, NOTHING)
W(vmm_granularity, (size_t * out), (out), NOTHING, NOTHING)
W(vmm_reserve, (size_t n, size_t align, void **out), (n, align, out), NOTHING, NOTHING)
W(vmm_unreserve, (void *p, size_t n), (p, n), NOTHING, NOTHING)
W(vmm_create, (size_t n, cu_handle *out), (n, out), gate_pass(&creating), NOTHING)
W(vmm_release, (cu_handle h), (h), NOTHING, NOTHING)
W(vmm_map, (void *p, size_t n, cu_handle h), (p, n, h), NOTHING,
  atomic_fetch_add(&mapping_us, map_us))
W(vmm_unmap, (void *p, size_t n), (p, n), NOTHING, NOTHING)
W(vmm_access, (void *p, size_t n), (p, n), NOTHING, atomic_fetch_add(&mapping_us, access_us))
W(stream_create, (bool urgent, cu_stream *out), (urgent, out), NOTHING, NOTHING)
W(stream_destroy, (cu_stream s), (s), NOTHING, NOTHING)
W(stream_sync, (cu_stream s), (s), NOTHING, NOTHING)
W(stream_wait, (cu_stream s, cu_event e), (s, e), NOTHING, NOTHING)
W(event_create, (uint32_t flags, cu_event *out), (flags, out), NOTHING, NOTHING)
W(event_destroy, (cu_event e), (e), NOTHING, NOTHING)
W(event_record, (cu_event e, cu_stream s), (e, s), NOTHING, note_record(e))
W(event_query, (cu_event e), (e), NOTHING, NOTHING)
W(event_sync, (cu_event e), (e), NOTHING, NOTHING)
W(event_elapsed_us, (cu_event b, cu_event e, uint64_t *out), (b, e, out), NOTHING,
  *out += between(b, e))
W(copy_to_device, (void *d, const void *s, size_t n, cu_stream st), (d, s, n, st), NOTHING, NOTHING)
W(copy_to_host, (void *d, const void *s, size_t n, cu_stream st), (d, s, n, st), NOTHING, NOTHING)
W(fill, (void *d, uint8_t byte, size_t n, cu_stream st), (d, byte, n, st), NOTHING, NOTHING)

static inline const char *W_text(void) {
    return fake_api()->text();
}

static const cu_api table = {.name = "fake",
                             .text = W_text,
                             .device_use = W_device_use,
                             .memory_info = W_memory_info,
                             .alloc = W_alloc,
                             .free = W_free,
                             .host_alloc = W_host_alloc,
                             .host_free = W_host_free,
                             .host_pin = W_host_pin,
                             .host_unpin = W_host_unpin,
                             .vmm_granularity = W_vmm_granularity,
                             .vmm_reserve = W_vmm_reserve,
                             .vmm_unreserve = W_vmm_unreserve,
                             .vmm_create = W_vmm_create,
                             .vmm_release = W_vmm_release,
                             .vmm_map = W_vmm_map,
                             .vmm_unmap = W_vmm_unmap,
                             .vmm_access = W_vmm_access,
                             .stream_create = W_stream_create,
                             .stream_destroy = W_stream_destroy,
                             .stream_sync = W_stream_sync,
                             .stream_wait = W_stream_wait,
                             .event_create = W_event_create,
                             .event_destroy = W_event_destroy,
                             .event_record = W_event_record,
                             .event_query = W_event_query,
                             .event_sync = W_event_sync,
                             .event_elapsed_us = W_event_elapsed_us,
                             .copy_to_device = W_copy_to_device,
                             .copy_to_host = W_copy_to_host,
                             .fill = W_fill};

/* ---- a memory to test with ---- */

typedef struct bench {
    cu_device device;
    cuda_memory *m;
    cu_stream s; // what a step would run on
    inferd_err err;
} bench;

static const cuda_memory_options small = {
    .memory_bytes = 24 * MIB, .workspace_bytes = 512 * KIB, .page_bytes = PAGE};

/* A fresh fake with extents of so many pages (0: no VMM), nothing opened yet. */
static inline void begin(bench *b, uint32_t extent_pages) {
    memset(b, 0, sizeof *b);
    map_us = access_us = n_recorded = 0;
    fake_reset();
    fake_options()->granularity = (size_t)PAGE * u32_max(extent_pages, 1);
    EXPECT_EQ(table.device_use == W_device_use, 1);
    EXPECT_EQ(fake_api()->init(), CU_OK);
    EXPECT_EQ(fake_api()->device_use(0), CU_OK);
    EXPECT_EQ(fake_api()->device_about(0, &b->device), CU_OK);
    b->device.vmm = extent_pages > 0;
    EXPECT_EQ(fake_api()->stream_create(true, &b->s), CU_OK);
}

static inline inferd_status open_with(bench *b, const cuda_memory_options *o) {
    return memory_open(&table, 0, &b->device, o, &b->m, &b->err);
}

static inline void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static inline void wait_grown(const bench *b) {
    for (int i = 0; i < 50000 && memory_n_ready(b->m) != memory_n_pages(b->m); i++) nap();
    EXPECT_EQ(memory_n_ready(b->m), memory_n_pages(b->m));
}

static inline void open_small(bench *b, uint32_t extent_pages) {
    begin(b, extent_pages);
    EXPECT_EQ(open_with(b, &small), INFERD_OK);
    if (b->m == NULL) {
        printf("%s\n", b->err.text);
        exit(1);
    }
    wait_grown(b);
}

static inline void end(bench *b) {
    memory_close(b->m);
    b->m = NULL;
    gate_set(&creating, UINT32_MAX);
    fake_api()->stream_destroy(b->s);
    EXPECT_EQ(fake_leaks(), 0);
    EXPECT_EQ(fake_violations(), 0);
    EXPECT_EQ(fake_held_bytes(), 0);
    EXPECT_EQ(fake_held_host_bytes(), 0);
    fake_reset();
}

static inline uint32_t block_pages(const bench *b) {
    return u32_max(memory_extent_pages(b->m), 1);
}

/* `n` whole blocks: from page `first` on; VMM: from the last one down, so that nothing is in order.
 */
static inline uint32_t some_pages(const bench *b, uint32_t n, uint32_t first, uint32_t *pages) {
    uint32_t each = block_pages(b), n_pages = 0, n_blocks = memory_n_ready(b->m) / each;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block =
            memory_extent_pages(b->m) == 0 ? first / each + i : n_blocks - 1 - first / each - i;
        for (uint32_t j = 0; j < each; j++) pages[n_pages++] = block * each + j;
    }
    return n_pages;
}

static inline unsigned char byte_at(size_t i, uint32_t seed) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u;
    return (unsigned char)((z ^ z >> 29) >> 16);
}

static inline void fill_image(const bench *b, const cuda_window *w, size_t n, uint32_t seed) {
    unsigned char *image = memory_image_of(b->m, window_base_cuda(w));
    EXPECT(image != NULL);
    for (size_t i = 0; image != NULL && i < n; i++) image[i] = byte_at(i, seed);
}

/* Bytes of the device as the stream sees them. */
static inline bool shows(const bench *b, const void *device, size_t n, size_t offset,
                         uint32_t seed) {
    unsigned char *host = malloc(n);
    INFERD_CHECK(host != NULL);
    EXPECT_EQ(fake_api()->copy_to_host(host, device, n, b->s), CU_OK);
    EXPECT_EQ(fake_api()->stream_sync(b->s), CU_OK);
    size_t i = 0;
    while (i < n && host[i] == byte_at(offset + i, seed)) i++;
    free(host);
    return i == n;
}

static inline const unsigned char *page_at(const bench *b, uint32_t page) {
    return (unsigned char *)memory_base(b->m) + (size_t)page * PAGE;
}

static inline uint32_t n_blocks_of(const bench *b, size_t n_bytes) {
    size_t block = (size_t)PAGE * block_pages(b);
    return (uint32_t)((n_bytes + block - 1) / block);
}

#endif
