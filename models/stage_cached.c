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
    SAMPLES_MOST = 56 // with so many cached samples, most of the file is cached
};

/* Read some bytes from `at` on, if that needs no disk; 0: it does, or they cannot be read. */
static size_t read_now(int fd, unsigned char *out, size_t n, uint64_t at) {
    ssize_t got;
    do {
        got = preadv2(fd, &(struct iovec){out, n}, 1, (off_t)at, RWF_NOWAIT);
    } while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

/* Not the model's own descriptor, which the reader uses with read-ahead. */
int cached_open(const gguf *g, uint64_t from, uint64_t end, cached_share *share) {
    uint32_t n = 0;
    unsigned char byte;
    int fd = gguf_reopen(g);
    for (uint32_t i = 0; i < SAMPLES && fd >= 0; i++)
        n += read_now(fd, &byte, 1, from + (end - from) / SAMPLES * i) == 1;
    *share = n == SAMPLES ? CACHED_ALL : n >= SAMPLES_MOST ? CACHED_MOST : CACHED_LITTLE;
    return fd;
}

void cached_fill(int fd, uint64_t from, uint64_t end) {
    posix_fadvise(fd, (off_t)from, (off_t)(end - from), POSIX_FADV_WILLNEED); // may be ignored
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

/* Shared by all threads. */
typedef struct shared_rows {
    const backend *be;
    int fd;
    const cached_part *parts;
    uint32_t n;
    unsigned char *buffer;
    size_t part_bytes;
    uint64_t until_us;
    atomic_uint next;
    atomic_bool stopped;
    pthread_mutex_t lock;
    bool there; // under lock, as the next two
    uint64_t waited_us;
    inferd_err failure;
} shared_rows;

static void note_end(shared_rows *r, bool there, uint64_t waited_us, const inferd_err *err) {
    pthread_mutex_lock(&r->lock);
    r->there = r->there && there;
    r->waited_us += waited_us;
    if (err->status != INFERD_OK) r->failure = *err;
    pthread_mutex_unlock(&r->lock);
    if (!there || err->status != INFERD_OK) atomic_store(&r->stopped, true);
}

/* The work of one thread, with the i-th part of the buffer. */
static void take_parts(void *ctx, uint32_t i) {
    shared_rows *r = ctx;
    unsigned char *rows = r->buffer + i * r->part_bytes;
    bool there = true;
    uint64_t waited_us = 0;
    inferd_err err = {0};
    do {
        uint32_t k = atomic_fetch_add(&r->next, 1);
        if (k >= r->n) break;
        const cached_part *p = &r->parts[k];
        size_t row_bytes = weight_entry_row_bytes(p->entry);
        there = cached_read(r->fd, p->entry->tensor->file_offset + p->row_begin * row_bytes, rows,
                            p->n_rows * row_bytes, &waited_us);
        if (there && be_weight_prepare_part(r->be, p->entry->matrix, rows, p->row_begin, p->n_rows,
                                            &err) != INFERD_OK)
            inferd_context(&err, "tensor %s", p->entry->tensor->name);
    } while (there && err.status == INFERD_OK && !atomic_load(&r->stopped) &&
             clock_now_us() < r->until_us);
    note_end(r, there, waited_us, &err);
}

inferd_status cached_rows(backend *be, int fd, const cached_part *parts, uint32_t n,
                          unsigned char *buffer, size_t buffer_bytes, size_t part_bytes,
                          uint64_t until_us, uint32_t *n_done, bool *there, uint64_t *waited_us,
                          inferd_err *err) {
    shared_rows r = {.be = be,
                     .fd = fd,
                     .parts = parts,
                     .n = n,
                     .buffer = buffer,
                     .part_bytes = part_bytes,
                     .until_us = until_us,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .there = true};
    uint32_t n_takers = (uint32_t)size_min(buffer_bytes / part_bytes, be_n_threads(be));
    INFERD_CHECK(n_takers > 0);
    be_parallel(be, u32_min(n_takers, n), take_parts, &r);
    *n_done = u32_min(atomic_load(&r.next), n); // every part that was taken is prepared
    *there = r.there;
    *waited_us += r.waited_us;
    return r.failure.status == INFERD_OK ? INFERD_OK
                                         : inferd_fail(err, r.failure.status, "%s", r.failure.text);
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
