/* stage_cached.c - see stage_cached.h. */
#include "stage_cached.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <unistd.h>

#include "inferd/clock.h"

enum {
    SAMPLES = 64,
    SAMPLES_MOST = 56,          // with so many cached samples, most of the file is cached
    CHUNK_PART_BYTES = 64 << 10 // of a chunk: summed while the nearest caches hold it
};

/* Read some bytes from `at` on, if that needs no disk; 0: it does, or they cannot be read. */
static size_t read_now(int fd, unsigned char *out, size_t n, uint64_t at) {
    ssize_t got;
    do {
        got = preadv2(fd, &(struct iovec){out, n}, 1, (off_t)at, RWF_NOWAIT);
    } while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

cached_share cached_look(const cached_range *ranges, uint32_t n) {
    uint64_t n_bytes = 0, before = 0; // before: bytes of the ranges before ranges[at]
    uint32_t n_cached = 0, at = 0;
    unsigned char byte;
    for (uint32_t i = 0; i < n; i++) n_bytes += ranges[i].end - ranges[i].from;
    for (uint32_t i = 0; i < SAMPLES && n_bytes > 0; i++) {
        uint64_t position = n_bytes / SAMPLES * i;
        while (position - before >= ranges[at].end - ranges[at].from) {
            before += ranges[at].end - ranges[at].from;
            at++;
        }
        const cached_range *r = &ranges[at];
        n_cached += r->fd >= 0 && read_now(r->fd, &byte, 1, r->from + (position - before)) == 1;
    }
    return n_cached == SAMPLES        ? CACHED_ALL
           : n_cached >= SAMPLES_MOST ? CACHED_MOST
                                      : CACHED_LITTLE;
}

void cached_fill(const cached_range *ranges, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        posix_fadvise(ranges[i].fd, (off_t)ranges[i].from, // may be ignored
                      (off_t)(ranges[i].end - ranges[i].from), POSIX_FADV_WILLNEED);
}

/* Read the same bytes, also from the disk; 0: the file ended, or it cannot be read. */
static size_t read_waiting(int fd, unsigned char *out, size_t n, uint64_t at, uint64_t *waited_us) {
    uint64_t began_us = clock_now_us();
    ssize_t got;
    do {
        got = pread(fd, out, n, (off_t)at);
    } while (got < 0 && errno == EINTR);
    *waited_us += clock_now_us() - began_us;
    return got > 0 ? (size_t)got : 0;
}

bool cached_read(int fd, uint64_t from, unsigned char *out, size_t n, uint64_t *waited_us) {
    for (size_t at = 0; at < n;) {
        size_t got = read_now(fd, out + at, n - at, from + at);
        if (got == 0) got = read_waiting(fd, out + at, n - at, from + at, waited_us);
        if (got == 0) return false;
        at += got;
    }
    return true;
}

/* n parts of one kind, shared by all threads. */
typedef struct shared shared;
/* Reads and takes in part k; the thread is taker i.  False: some bytes cannot be read. */
typedef bool take_fn(const shared *r, uint32_t i, uint32_t k, uint64_t *waited_us, inferd_err *err);
struct shared {
    take_fn *take;
    const backend *be;
    uint32_t n;
    uint64_t until_us;
    const gguf *g; // of rows
    const cached_range *files;
    const cached_part *parts;
    unsigned char *buffer;
    size_t part_bytes;
    const packed *packed; // of chunks
    unsigned char *window;
    uint32_t chunk_begin;
    atomic_uint next;
    atomic_bool stopped;
    pthread_mutex_t lock;
    bool there; // under lock, as the next two
    uint64_t waited_us;
    inferd_err failure;
};

static void note_end(shared *r, bool there, uint64_t waited_us, const inferd_err *err) {
    pthread_mutex_lock(&r->lock);
    r->there = r->there && there;
    r->waited_us += waited_us;
    if (err->status != INFERD_OK) r->failure = *err;
    pthread_mutex_unlock(&r->lock);
    if (!there || err->status != INFERD_OK) atomic_store(&r->stopped, true);
}

/* The work of one thread. */
static void take_parts(void *ctx, uint32_t i) {
    shared *r = ctx;
    bool there = true;
    uint64_t waited_us = 0;
    inferd_err err = {0};
    do {
        uint32_t k = atomic_fetch_add(&r->next, 1);
        if (k >= r->n) break;
        there = r->take(r, i, k, &waited_us, &err);
    } while (there && err.status == INFERD_OK && !atomic_load(&r->stopped) &&
             clock_now_us() < r->until_us);
    note_end(r, there, waited_us, &err);
}

static inferd_status take_all(shared *r, backend *be, uint32_t n_takers, uint32_t *n_done,
                              bool *there, uint64_t *waited_us, inferd_err *err) {
    r->be = be;
    r->there = true;
    pthread_mutex_init(&r->lock, NULL);
    be_parallel(be, u32_min(n_takers, r->n), take_parts, r);
    pthread_mutex_destroy(&r->lock);
    *n_done = u32_min(atomic_load(&r->next), r->n); // every part that was taken is complete
    *there = r->there;
    *waited_us += r->waited_us;
    return r->failure.status == INFERD_OK
               ? INFERD_OK
               : inferd_fail(err, r->failure.status, "%s", r->failure.text);
}

/* Into the i-th part of the buffer. */
static bool take_rows(const shared *r, uint32_t i, uint32_t k, uint64_t *waited_us,
                      inferd_err *err) {
    const cached_part *p = &r->parts[k];
    unsigned char *rows = r->buffer + i * r->part_bytes;
    size_t row_bytes = weight_entry_row_bytes(p->entry);
    uint64_t from = weight_entry_file_offset(p->entry) + p->row_begin * row_bytes;
    int fd = r->files[p->entry->tensor->part].fd;
    if (!cached_read(fd, from, rows, p->n_rows * row_bytes, waited_us)) return false;
    if (be_weight_prepare_part(r->be, p->entry->matrix, rows, p->row_begin, p->n_rows, err) !=
        INFERD_OK)
        weight_entry_name(r->g, p->entry, err);
    return true;
}

inferd_status cached_rows(backend *be, const gguf *g, const cached_range *files,
                          const cached_part *parts, uint32_t n, unsigned char *buffer,
                          size_t buffer_bytes, size_t part_bytes, uint64_t until_us,
                          uint32_t *n_done, bool *there, uint64_t *waited_us, inferd_err *err) {
    shared r = {.take = take_rows,
                .n = n,
                .until_us = until_us,
                .g = g,
                .files = files,
                .parts = parts,
                .buffer = buffer,
                .part_bytes = part_bytes};
    uint32_t n_takers = (uint32_t)size_min(buffer_bytes / part_bytes, be_n_threads(be));
    INFERD_CHECK(n_takers > 0);
    return take_all(&r, be, n_takers, n_done, there, waited_us, err);
}

static bool take_chunk(const shared *r, uint32_t i, uint32_t k, uint64_t *waited_us,
                       inferd_err *err) {
    (void)i;
    const packed *p = r->packed;
    uint32_t chunk = r->chunk_begin + k;
    size_t at = (size_t)chunk * PACKED_CHUNK_BYTES, end = packed_chunk_end(p, chunk);
    packed_sum sum;
    packed_sum_init(&sum);
    for (size_t n; at < end; at += n) {
        n = size_min(CHUNK_PART_BYTES, end - at);
        if (!cached_read(p->fd, p->data_at + at, r->window + at, n, waited_us)) return false;
        packed_sum_add(&sum, r->window + at, n);
    }
    packed_check(p, chunk, &sum, err);
    return true;
}

inferd_status cached_chunks(backend *be, const packed *p, unsigned char *window, uint32_t begin,
                            uint32_t end, uint64_t until_us, uint32_t *n_done, bool *there,
                            uint64_t *waited_us, inferd_err *err) {
    shared r = {.take = take_chunk,
                .n = end - begin,
                .until_us = until_us,
                .packed = p,
                .window = window,
                .chunk_begin = begin};
    return take_all(&r, be, be_n_threads(be), n_done, there, waited_us, err);
}

typedef struct shared_touch {
    backend *be;
    const uint32_t *pages;
} shared_touch;

static void touch_page(void *ctx, uint32_t i) {
    const shared_touch *t = ctx;
    be_page_touch(t->be, t->pages[i]);
}

bool cached_touch(backend *be, const uint32_t *pages, uint32_t end, uint32_t *n_touched,
                  uint64_t until_us) {
    while (*n_touched < end) {
        uint32_t n = u32_min(end - *n_touched, be_n_threads(be));
        shared_touch t = {be, pages + *n_touched};
        if (clock_now_us() > until_us) return false;
        be_parallel(be, n, touch_page, &t);
        *n_touched += n;
    }
    return true;
}
