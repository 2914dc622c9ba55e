/* stage_cached.c - see stage_cached.h. */
#include "stage_cached.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <unistd.h>

#include "inferd/clock.h"

enum {
    PART_BYTES = 64 << 10, // by one call
    SAMPLES = 64,
    SAMPLES_MOST = 56 // so many of them were there: most of the file is
};

/* Some bytes from `at` on, if that needs no disk; 0: not now, or never. */
static size_t read_now(int fd, unsigned char *out, size_t n, uint64_t at) {
    ssize_t got;
    do {
        got = preadv2(fd, &(struct iovec){out, n}, 1, (off_t)at, RWF_NOWAIT);
    } while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

/* Not the model's own descriptor, from which the reader reads ahead. */
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
    posix_fadvise(fd, (off_t)from, (off_t)(end - from), POSIX_FADV_WILLNEED); // a wish
}

typedef struct shared_read {
    int fd;
    uint64_t from;
    unsigned char *out;
    size_t n;
    atomic_bool failed;
    atomic_ullong waited_us;
} shared_read;

/* The same bytes from wherever they are; 0: the file ended, or it cannot be read. */
static size_t read_waiting(shared_read *r, unsigned char *out, size_t n, uint64_t at) {
    uint64_t began_us = clock_now_us();
    ssize_t got;
    do {
        got = pread(r->fd, out, n, (off_t)at);
    } while (got < 0 && errno == EINTR);
    atomic_fetch_add_explicit(&r->waited_us, clock_now_us() - began_us, memory_order_relaxed);
    return got > 0 ? (size_t)got : 0;
}

static void read_part(void *ctx, uint32_t i) {
    shared_read *r = ctx;
    size_t at = (size_t)i * PART_BYTES, end = size_min(at + PART_BYTES, r->n);
    while (at < end && !atomic_load_explicit(&r->failed, memory_order_relaxed)) {
        size_t got = read_now(r->fd, r->out + at, end - at, r->from + at);
        if (got == 0) got = read_waiting(r, r->out + at, end - at, r->from + at);
        if (got == 0) atomic_store_explicit(&r->failed, true, memory_order_relaxed);
        at += got;
    }
}

bool cached_read(backend *be, int fd, uint64_t from, unsigned char *out, size_t n,
                 uint64_t *waited_us) {
    shared_read r = {fd, from, out, n, false, 0};
    uint32_t n_parts = (uint32_t)((n + PART_BYTES - 1) / PART_BYTES);
    if (n_parts == 1)
        read_part(&r, 0);
    else
        be_parallel(be, n_parts, read_part, &r);
    *waited_us += atomic_load(&r.waited_us);
    return !atomic_load(&r.failed);
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
